//! Writes programs that mostly do what is allowed.
//!
//! The writer knows what each register and each slot of the stack holds at the place where it
//! writes, on every path that leads there, and chooses statements that fit.
//!
//! CASES-1. `r6` is the context from the first instruction on.
//! CASES-2. A register that [`Writer::kept`] names is not written: counters of loops, pointers in
//!     loops, the record that is held.
//! CASES-3. In a loop nothing is relied on that its body may change, because the body is reached
//!     again from its end.

mod calls;
mod flow;
mod memory;
mod records;

use alloc::{vec, vec::Vec};

use bpf::{
    AluOp, Condition, Insn, MapDef, MapKind, Operand, Program, ProgramKind, Reg, Reg::*,
    STACK_BYTES, Swap, Target, Width,
};
use instruction_cases::Random;

use crate::{
    mistakes::{imm, width},
    world,
};

/// The content of a register or a slot of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Nothing,
    Number,
    Context,
    /// A place in the stack, from `r10`.
    Stack(i16),
    Value(usize),
    Record(u32),
    EntryData,
}

#[derive(Clone)]
struct State {
    registers: [Holds; 10],
    /// Bytes of the stack that are set, from its lowest byte.
    is_set: [bool; STACK_BYTES],
    pointers: [Holds; STACK_BYTES / 8],
    /// No path leads here.
    is_dead: bool,
}

#[derive(Clone, Copy)]
struct HeldRecord {
    reg: Reg,
    is_event: bool,
}

struct Writer<'a> {
    random: &'a mut Random,
    insns: Vec<Insn>,
    kind: ProgramKind,
    maps: Vec<MapDef>,
    state: State,
    /// Registers that are not written, and those that only get numbers: bit N is register N.
    kept: u16,
    only_numbers: u16,
    record: Option<HeldRecord>,
    in_loop: bool,
    depth: u32,
    /// Write no more statements when there are so many instructions.
    most: usize,
}

const SAVED: [Reg; 3] = [R7, R8, R9];
const SCRATCH: [Reg; 6] = [R0, R1, R2, R3, R4, R5];

pub(crate) fn draw(random: &mut Random) -> Program {
    let kind = match random.below(4) {
        0 => ProgramKind::Entry {
            data: 8 * (1 + random.below(4) as u32),
        },
        1 => ProgramKind::Return {
            data: 8 * random.below(4) as u32,
        },
        _ => ProgramKind::Probe,
    };
    let most = random.of(&[5, 10, 20, 20, 40, 40, 80, 150]);
    let mut writer = Writer {
        insns: Vec::new(),
        kind,
        maps: maps(random),
        state: State {
            registers: [Holds::Nothing; 10],
            is_set: [false; STACK_BYTES],
            pointers: [Holds::Nothing; STACK_BYTES / 8],
            is_dead: false,
        },
        kept: 1 << 6,
        only_numbers: 0,
        record: None,
        in_loop: false,
        depth: 0,
        most,
        random,
    };
    writer.state.registers[1] = Holds::Context;
    writer.state.registers[6] = Holds::Context;
    writer.mov(R6, R1);
    while writer.insns.len() < most && !writer.state.is_dead {
        writer.statement();
    }
    writer.exit();
    Program {
        kind,
        insns: writer.insns,
        maps: writer.maps,
    }
}

/// Some maps, of every kind now and then.
fn maps(random: &mut Random) -> Vec<MapDef> {
    let array = |kind, value_size, entries| MapDef {
        name: "array".into(),
        kind,
        key_size: 4,
        value_size,
        entries,
    };
    let hash = |kind, key_size, value_size, entries| MapDef {
        name: "hash".into(),
        kind,
        key_size,
        value_size,
        entries,
    };
    let mut maps = vec![MapDef::ring("ring")];
    for _ in 0..1 + random.below(3) {
        let entries = 1 + random.below(8) as u32;
        let value_size = 8 * (1 + random.below(5) as u32);
        maps.push(match random.below(6) {
            0 => array(MapKind::Array, random.of(&[8, 16, 64, 12, 4]), entries),
            1 => array(MapKind::PerCpuArray, value_size, entries),
            2 => hash(MapKind::Hash, random.of(&[8, 16, 4]), value_size, entries),
            3 => hash(MapKind::PerCpuHash, 8, value_size, entries),
            4 => MapDef::histogram("histogram"),
            _ => MapDef {
                name: "stacks".into(),
                kind: MapKind::Stacks,
                key_size: 4,
                value_size,
                entries,
            },
        });
    }
    maps
}

fn bit(reg: Reg) -> u16 {
    1 << reg.number()
}

fn index(reg: Reg) -> usize {
    usize::from(reg.number())
}

impl State {
    fn call(&mut self, result: Holds) {
        self.registers[..6].fill(Holds::Nothing);
        self.registers[0] = result;
    }

    /// The facts that hold on both paths.
    fn join(self, other: Self) -> Self {
        if self.is_dead {
            return other;
        }
        if other.is_dead {
            return self;
        }
        let mut both = self;
        for (a, b) in both.registers.iter_mut().zip(other.registers) {
            if *a != b {
                *a = Holds::Nothing;
            }
        }
        for (slot, (a, b)) in both.pointers.iter_mut().zip(other.pointers).enumerate() {
            if *a != b {
                *a = Holds::Nothing;
                both.is_set[slot * 8..slot * 8 + 8].fill(false);
            }
        }
        for (a, b) in both.is_set.iter_mut().zip(other.is_set) {
            *a &= b;
        }
        both
    }
}

impl Writer<'_> {
    fn here(&self) -> Target {
        Target(self.insns.len() as u16)
    }

    /// Writes a jump whose target is not known yet; returns its place.
    fn branch(&mut self, condition: Condition, dst: Reg, operand: Operand) -> usize {
        self.branch_of(Width::W64, condition, dst, operand)
    }

    fn branch_of(
        &mut self,
        width: Width,
        condition: Condition,
        dst: Reg,
        operand: Operand,
    ) -> usize {
        let target = self.here();
        self.insns.push(Insn::Branch {
            width,
            condition,
            dst,
            operand,
            target,
        });
        self.insns.len() - 1
    }

    fn jump(&mut self) -> usize {
        let target = self.here();
        self.insns.push(Insn::Jump { target });
        self.insns.len() - 1
    }

    /// Lets the jump lead to the next instruction.
    fn land(&mut self, jump: usize) {
        let here = self.here();
        if let Insn::Jump { target } | Insn::Branch { target, .. } = &mut self.insns[jump] {
            *target = here;
        }
    }

    fn alu(&mut self, op: AluOp, dst: Reg, operand: impl Into<Operand>) {
        self.insns.push(Insn::Alu {
            width: Width::W64,
            op,
            dst,
            operand: operand.into(),
        });
    }

    fn mov(&mut self, dst: Reg, operand: impl Into<Operand>) {
        self.alu(AluOp::Mov, dst, operand);
    }

    fn set(&mut self, reg: Reg, holds: Holds) {
        self.state.registers[index(reg)] = holds;
    }

    fn holds(&self, reg: Reg) -> Holds {
        match reg {
            R10 => Holds::Stack(0),
            _ => self.state.registers[index(reg)],
        }
    }

    /// A register that may be written.
    fn writable(&mut self) -> Reg {
        let forbidden = self.kept;
        self.any_but(forbidden)
    }

    /// A register that a pointer may be put into.
    fn for_pointer(&mut self) -> Reg {
        let forbidden = self.kept | self.only_numbers;
        self.any_but(forbidden)
    }

    fn any_but(&mut self, forbidden: u16) -> Reg {
        loop {
            let reg = if self.random.one_in(2) {
                self.random.of(&SCRATCH)
            } else {
                self.random.of(&SAVED)
            };
            if forbidden & bit(reg) == 0 {
                return reg;
            }
        }
    }

    /// A register that calls do not change, and that may be written with anything.
    fn saved(&mut self) -> Option<Reg> {
        let forbidden = self.kept | self.only_numbers;
        let first = self.random.below(3) as usize;
        let mut regs = SAVED.into_iter().cycle().skip(first).take(3);
        regs.find(|reg| forbidden & bit(*reg) == 0)
    }

    /// A register with a number in it, an existing one if there is one.
    fn number(&mut self) -> Reg {
        match self.find(|holds| holds == Holds::Number) {
            Some(reg) => reg,
            None => {
                let reg = self.writable();
                self.constant(reg);
                reg
            }
        }
    }

    fn find(&mut self, fits: impl Fn(Holds) -> bool) -> Option<Reg> {
        let first = self.random.below(11) as usize;
        let mut regs = Reg::ALL.into_iter().cycle().skip(first).take(11);
        regs.find(|reg| fits(self.holds(*reg)))
    }

    fn constant(&mut self, dst: Reg) {
        if self.random.one_in(3) {
            let value = world::number(self.random);
            self.insns.push(Insn::LoadImm { dst, value });
        } else {
            let value = imm(self.random);
            self.mov(dst, value);
        }
        self.set(dst, Holds::Number);
    }

    fn operand(&mut self) -> Operand {
        if self.random.one_in(2) {
            imm(self.random).into()
        } else {
            self.number().into()
        }
    }

    /// Puts a number into the register of an argument.
    fn number_argument(&mut self, dst: Reg) {
        let known = SAVED
            .into_iter()
            .find(|reg| self.holds(*reg) == Holds::Number);
        match known {
            Some(reg) if self.random.one_in(2) => self.mov(dst, reg),
            _ => self.constant(dst),
        }
    }

    fn statement(&mut self) {
        match self.random.below(100) {
            0..=17 => self.arithmetic(),
            18..=23 => self.load_register(),
            24..=27 => {
                let dst = self.writable();
                self.constant(dst);
            }
            28..=38 => self.access(),
            39..=43 => self.kernel_load(),
            44..=49 => self.ask(),
            50..=54 => self.fill_buffer(),
            55..=61 => self.lookup(),
            62..=66 => self.add(),
            67..=72 => self.change_hash(),
            73..=80 => self.either(),
            81..=84 => self.repeat(),
            85..=90 => self.take_record(),
            91..=93 => self.spill(),
            94..=96 => self.walk_pointer(),
            97 => self.entry_data(),
            98 => self.append(),
            _ => {
                if self.depth > 0 && self.record.is_none() {
                    self.exit();
                    self.state.is_dead = true;
                }
            }
        }
    }

    /// A few statements inside of something.
    fn block(&mut self) {
        self.depth += 1;
        for _ in 0..=self.random.below(4) {
            if self.state.is_dead || self.insns.len() > self.most + 40 || self.depth > 4 {
                break;
            }
            self.statement();
        }
        self.depth -= 1;
    }

    fn exit(&mut self) {
        match self.find(|holds| holds == Holds::Number) {
            Some(reg) if self.random.one_in(2) => {
                if reg != R0 {
                    self.mov(R0, reg);
                }
            }
            _ => {
                let result = imm(self.random);
                self.mov(R0, result);
            }
        }
        self.insns.push(Insn::Exit);
    }

    fn arithmetic(&mut self) {
        let width = width(self.random);
        if self.random.one_in(4) {
            let dst = self.number();
            if self.kept & bit(dst) != 0 {
                return;
            }
            let src = self.number();
            self.insns.push(match self.random.below(3) {
                0 => Insn::Negate { width, dst },
                1 => {
                    let most = if width == Width::W64 { 3 } else { 2 };
                    let bits = [8, 16, 32][self.random.below(most) as usize];
                    Insn::SignExtend {
                        width,
                        bits,
                        dst,
                        src,
                    }
                }
                _ => Insn::Swap {
                    swap: self.random.of(&[Swap::ToLittle, Swap::ToBig, Swap::Always]),
                    bits: self.random.of(&[16, 32, 64]),
                    dst,
                },
            });
            return;
        }
        let op = self.random.of(&AluOp::ALL);
        let dst = if op == AluOp::Mov {
            self.writable()
        } else {
            self.number()
        };
        if self.kept & bit(dst) != 0 {
            return;
        }
        let operand = self.operand();
        // The operand may have taken the register.
        if op != AluOp::Mov && self.holds(dst) != Holds::Number {
            return;
        }
        self.insns.push(Insn::Alu {
            width,
            op,
            dst,
            operand,
        });
        self.set(dst, Holds::Number);
    }
}
