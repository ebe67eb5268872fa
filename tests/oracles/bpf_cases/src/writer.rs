//! Writes programs that mostly do what is allowed.
//!
//! The writer knows what each register and each slot of the stack holds at the place where it
//! writes, on every path that leads there, and chooses statements that fit.
//!
//! W1. `r6` is the context from the first instruction on.
//! W2. A register that [`Writer::kept`] names is not written: counters of loops, pointers in loops,
//!     the record that is held.
//! W3. In a loop nothing is relied on that its body may change, because the body is reached again
//!     from its end.

use alloc::{vec, vec::Vec};

use bpf::{
    AluOp, AtomicOp, Condition, Helper, Insn, Kind, MOST_RECORD_BYTES, MapDef, MapIndex, MapKind,
    Operand, Program, Reg,
    Reg::*,
    STACK_BYTES, Size, Swap, Target, Width,
    context::{self, Register},
};
use instruction_cases::Random;

use crate::{
    mistakes::{SIZES, atomic, imm, width},
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
    /// Of the stack, from its lowest byte.
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
    kind: Kind,
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
        0 => Kind::Entry {
            data: 8 * (1 + random.below(4) as u32),
        },
        1 => Kind::Return {
            data: 8 * random.below(4) as u32,
        },
        _ => Kind::Probe,
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

    fn load_register(&mut self) {
        let dst = self.writable();
        let register = self.random.of(&Register::ALL);
        debug_assert!(register.offset() < context::BYTES);
        let size = if self.random.one_in(4) {
            self.random.of(&SIZES)
        } else {
            Size::B8
        };
        self.insns.push(Insn::Load {
            dst,
            base: R6,
            offset: register.offset(),
            size,
            signed: size != Size::B8 && self.random.one_in(8),
        });
        self.set(dst, Holds::Number);
    }

    /// Bytes of what a pointer to it may access, and where they begin from the pointer.
    fn extent(&self, holds: Holds) -> Option<(i32, i32)> {
        match holds {
            Holds::Stack(at) => Some((-(STACK_BYTES as i32) - i32::from(at), STACK_BYTES as i32)),
            Holds::Value(map) => Some((0, self.maps[map].value_size as i32)),
            Holds::Record(size) => Some((0, size as i32)),
            Holds::EntryData => Some((0, self.kind.shared_bytes() as i32)),
            Holds::Nothing | Holds::Number | Holds::Context => None,
        }
    }

    /// A place of that many bytes inside of what the pointer accesses.
    fn offset(&mut self, holds: Holds, bytes: u32, is_aligned: bool) -> Option<i16> {
        let (from, size) = self.extent(holds)?;
        let last = size - bytes as i32;
        if last < 0 {
            return None;
        }
        // The places that programs use most are near to each other, so that they meet again.
        let near = match holds {
            Holds::Stack(_) if !self.random.one_in(8) => (last - 56).max(0),
            _ => 0,
        };
        let mut place = near + self.random.below((last - near + 1) as u64) as i32;
        if is_aligned || !self.random.one_in(4) {
            place -= place % bytes as i32;
        }
        i16::try_from(from + place).ok()
    }

    /// Of the stack, the index of the byte at that offset of that pointer.
    fn stack_byte(holds: Holds, offset: i16) -> Option<usize> {
        match holds {
            Holds::Stack(at) => {
                usize::try_from(STACK_BYTES as i32 + i32::from(at) + i32::from(offset)).ok()
            }
            _ => None,
        }
    }

    /// Notes that numbers were written to the stack. False if pointers are there that must stay.
    fn overwrite(&mut self, first: usize, bytes: usize) -> bool {
        let slots = first / 8..=(first + bytes - 1) / 8;
        let has_pointers = slots
            .clone()
            .any(|slot| self.state.pointers[slot] != Holds::Nothing);
        if has_pointers && self.in_loop {
            return false;
        }
        for slot in slots {
            if self.state.pointers[slot] != Holds::Nothing {
                self.state.pointers[slot] = Holds::Nothing;
                self.state.is_set[slot * 8..slot * 8 + 8].fill(false);
            }
        }
        self.state.is_set[first..first + bytes].fill(true);
        true
    }

    fn is_readable(&self, first: usize, bytes: usize) -> bool {
        let slots = first / 8..=(first + bytes - 1) / 8;
        self.state.is_set[first..first + bytes]
            .iter()
            .all(|set| *set)
            && self.state.pointers[slots]
                .iter()
                .all(|pointer| *pointer == Holds::Nothing)
    }

    /// A load, a store, or an atomic operation through a pointer.
    fn access(&mut self) {
        let base = if self.random.one_in(2) {
            Some(R10)
        } else {
            let accessible = |holds| {
                matches!(
                    holds,
                    Holds::Stack(_) | Holds::Value(_) | Holds::Record(_) | Holds::EntryData
                )
            };
            self.find(accessible)
        };
        let Some(base) = base else { return };
        let holds = self.holds(base);
        let size = self.random.of(&SIZES);
        let what = self.random.below(5);
        let size = match what {
            4 if size == Size::B1 => Size::B4,
            4 if size == Size::B2 => Size::B8,
            _ => size,
        };
        let bytes = size.bytes() as usize;
        let Some(offset) = self.offset(holds, size.bytes(), what == 4) else {
            return;
        };
        let place = Self::stack_byte(holds, offset);
        let is_readable = place.is_none_or(|place| self.is_readable(place, bytes));
        match what {
            0 | 1 if is_readable => {
                let dst = self.writable();
                self.insns.push(Insn::Load {
                    dst,
                    base,
                    offset,
                    size,
                    signed: size != Size::B8 && self.random.one_in(4),
                });
                self.set(dst, Holds::Number);
            }
            4 if is_readable => {
                let op = atomic(self.random);
                let reg = self.number();
                let has_result = self.holds(R0) == Holds::Number && self.kept & 1 == 0;
                let fetches = !matches!(
                    op,
                    AtomicOp::Add { fetch: false }
                        | AtomicOp::Or { fetch: false }
                        | AtomicOp::And { fetch: false }
                        | AtomicOp::Xor { fetch: false }
                );
                let fits = match op {
                    AtomicOp::CompareExchange => has_result,
                    _ => !fetches || self.kept & bit(reg) == 0,
                };
                // Finding a number may have overwritten the base.
                if fits && self.holds(base) == holds {
                    self.insns.push(Insn::Atomic {
                        op,
                        base,
                        offset,
                        size,
                        reg,
                    });
                }
            }
            _ => {
                let value = self.operand();
                if self.holds(base) != holds {
                    return;
                }
                if place.is_none_or(|place| self.overwrite(place, bytes)) {
                    self.insns.push(Insn::Store {
                        base,
                        offset,
                        size,
                        value,
                    });
                }
            }
        }
    }

    fn kernel_load(&mut self) {
        let dst = self.writable();
        let base = if self.random.one_in(2) {
            let value = world::KERNEL + self.random.below(world::KERNEL_BYTES + 16) - 8;
            self.insns.push(Insn::LoadImm { dst, value });
            dst
        } else {
            self.number()
        };
        let size = self.random.of(&SIZES);
        self.insns.push(Insn::Load {
            dst,
            base,
            offset: self.random.below(64) as i16 - 8,
            size,
            signed: size != Size::B8 && self.random.one_in(4),
        });
        self.set(dst, Holds::Number);
    }

    fn call(&mut self, helper: Helper, result: Holds) {
        self.insns.push(Insn::Call { helper });
        self.state.call(result);
    }

    /// The result of a call is often kept.
    fn keep_result(&mut self) {
        if self.random.one_in(2)
            && let Some(reg) = self.saved()
        {
            self.mov(reg, R0);
            self.set(reg, self.holds(R0));
        }
    }

    /// A helper that only takes numbers and the context.
    fn ask(&mut self) {
        let helper = self.random.of(&[
            Helper::CpuId,
            Helper::PidTgid,
            Helper::Tsc,
            Helper::Log2,
            Helper::FuncIp,
            Helper::StrLen,
            Helper::UserStrLen,
            Helper::ReturnAddress,
            Helper::StackId,
            Helper::RecordStack,
            Helper::CountFrames,
            Helper::CountKeys,
            Helper::NotRecording,
            Helper::Trigger,
        ]);
        match helper {
            Helper::ReturnAddress if !matches!(self.kind, Kind::Return { .. }) => return,
            Helper::Log2 | Helper::Trigger => self.number_argument(R1),
            Helper::FuncIp => self.mov(R1, R6),
            Helper::StrLen | Helper::UserStrLen => {
                self.number_argument(R1);
                let most = self.random.below(40) as i32;
                self.mov(R2, most);
            }
            Helper::StackId | Helper::RecordStack => {
                let kind = match helper {
                    Helper::StackId => MapKind::Stacks,
                    _ => MapKind::Ring,
                };
                let Some(map) = self.map_of(&[kind]) else {
                    return;
                };
                let flags = self.random.below(4) as i32 | self.random.of(&[0, 0x100]);
                self.mov(R1, R6);
                self.insns.push(Insn::LoadMap { dst: R2, map });
                self.mov(R3, flags);
            }
            Helper::CountFrames => {
                let Some(map) = self.map_of(&[MapKind::Stacks]) else {
                    return;
                };
                self.number_argument(R2);
                self.insns.push(Insn::LoadMap { dst: R1, map });
            }
            Helper::CountKeys => {
                let Some(map) = self.map_of(&[MapKind::Hash, MapKind::PerCpuHash]) else {
                    return;
                };
                self.insns.push(Insn::LoadMap { dst: R1, map });
            }
            _ => {}
        }
        self.call(helper, Holds::Number);
        self.keep_result();
    }

    fn map_of(&mut self, kinds: &[MapKind]) -> Option<MapIndex> {
        let count = self.maps.len();
        let first = self.random.below(count as u64) as usize;
        let mut maps = (0..count).cycle().skip(first).take(count);
        maps.find(|map| kinds.contains(&self.maps[*map].kind))
            .map(|map| MapIndex(map as u16))
    }

    /// A place of the stack for that many bytes, a multiple of 8, where no pointer has to stay.
    fn buffer(&mut self, bytes: u32) -> Option<i16> {
        let slots = i32::try_from(bytes.div_ceil(8)).ok()?;
        let first = slots + self.random.below(8) as i32;
        let start = STACK_BYTES - first as usize * 8;
        self.overwrite(start, slots as usize * 8)
            .then_some(-8 * first as i16)
    }

    /// `dst = r10 + offset`.
    fn stack_pointer(&mut self, dst: Reg, offset: i16) {
        self.mov(dst, R10);
        self.alu(AluOp::Add, dst, i32::from(offset));
    }

    /// The key that is next from some place on.
    fn next_key(&mut self) {
        let Some(map) = self.map_of(&[MapKind::Hash, MapKind::PerCpuHash]) else {
            return;
        };
        let size = 8 * (1 + self.random.below(4) as u32);
        let Some(offset) = self.buffer(size) else {
            return;
        };
        self.stack_pointer(R3, offset);
        let place = self.random.below(4) as i32;
        self.mov(R2, place);
        self.mov(R4, size as i32);
        self.insns.push(Insn::LoadMap { dst: R1, map });
        self.call(Helper::NextKey, Holds::Number);
        self.keep_result();
    }

    /// A helper that fills memory: the stack, or what a pointer points to.
    fn fill_buffer(&mut self) {
        let helper = self.random.of(&[
            Helper::Comm,
            Helper::ReadUser,
            Helper::ReadKernel,
            Helper::ReadUserStr,
            Helper::ReadKernelStr,
            Helper::NextKey,
        ]);
        if helper == Helper::NextKey {
            self.next_key();
            return;
        }
        let pointer = SAVED
            .into_iter()
            .find(|reg| matches!(self.holds(*reg), Holds::Value(_) | Holds::Record(_)));
        let size = match pointer {
            Some(reg) if self.random.one_in(2) => {
                let (_, size) = self.extent(self.holds(reg)).unwrap_or((0, 1));
                let size = 1 + self.random.below(size.min(64) as u64) as i32;
                self.mov(R1, reg);
                size
            }
            _ => {
                let size = 1 + self.random.below(32) as u32;
                // All of the slots count as set, so all of them are filled.
                let size = size.next_multiple_of(8);
                let Some(offset) = self.buffer(size) else {
                    return;
                };
                self.stack_pointer(R1, offset);
                size as i32
            }
        };
        self.mov(R2, size);
        if helper != Helper::Comm {
            if self.random.one_in(2) {
                let (from, bytes) = match helper {
                    Helper::ReadUser | Helper::ReadUserStr => (world::USER, world::USER_BYTES),
                    _ => (world::KERNEL, world::KERNEL_BYTES),
                };
                let value = from + self.random.below(bytes);
                self.insns.push(Insn::LoadImm { dst: R3, value });
            } else {
                self.number_argument(R3);
            }
        }
        self.call(helper, Holds::Number);
    }

    /// Stores a key and points `dst` to it.
    fn key(&mut self, map: MapIndex, dst: Reg) -> bool {
        let def = &self.maps[usize::from(map.0)];
        let (bytes, entries) = (def.key_size, u64::from(def.entries));
        let is_array = matches!(def.kind, MapKind::Array | MapKind::PerCpuArray);
        let Some(offset) = self.buffer(bytes) else {
            return false;
        };
        let known = SAVED
            .into_iter()
            .find(|reg| self.holds(*reg) == Holds::Number);
        for at in (0..bytes.next_multiple_of(8) as i16).step_by(8) {
            let value = match known {
                Some(reg) if self.random.one_in(3) => reg.into(),
                // Few keys, so that they meet again; now and then an index behind the end.
                _ if is_array => (self.random.below(entries + 1) as i32).into(),
                _ => (self.random.below(3) as i32).into(),
            };
            self.insns.push(Insn::Store {
                base: R10,
                offset: offset + at,
                size: Size::B8,
                value,
            });
        }
        self.stack_pointer(dst, offset);
        true
    }

    /// Writes a block for the case that `r0` is not null and holds this.
    fn unless_null(&mut self, holds: Holds, block: impl FnOnce(&mut Self)) {
        let copy = if self.random.one_in(2) {
            self.saved()
        } else {
            None
        };
        if let Some(copy) = copy {
            self.mov(copy, R0);
            self.set(copy, Holds::Nothing);
        }
        self.state.registers[0] = Holds::Nothing;
        let checked = match copy {
            Some(copy) if self.random.one_in(2) => copy,
            _ => R0,
        };
        let mut null = self.state.clone();
        if self.random.one_in(2) {
            let jump = self.branch(Condition::Equal, checked, 0.into());
            self.fill_in(copy, holds);
            block(self);
            self.land(jump);
        } else {
            // The other way round, with a block of its own for null.
            let jump = self.branch(Condition::NotEqual, checked, 0.into());
            let (kept, before) = (self.kept, self.state.clone());
            if self.record.is_none() {
                self.block();
            }
            null = core::mem::replace(&mut self.state, before);
            self.kept = kept;
            let over = self.jump();
            self.land(jump);
            self.fill_in(copy, holds);
            block(self);
            self.land(over);
        }
        let not_null = self.state.clone();
        self.state = not_null.join(null);
    }

    fn fill_in(&mut self, copy: Option<Reg>, holds: Holds) {
        self.set(R0, holds);
        if let Some(copy) = copy {
            self.set(copy, holds);
        }
    }

    fn lookup(&mut self) {
        let with_keys = [
            MapKind::Array,
            MapKind::PerCpuArray,
            MapKind::Hash,
            MapKind::PerCpuHash,
        ];
        let Some(map) = self.map_of(&with_keys) else {
            return;
        };
        if !self.key(map, R2) {
            return;
        }
        self.insns.push(Insn::LoadMap { dst: R1, map });
        self.call(Helper::MapLookup, Holds::Nothing);
        self.unless_null(Holds::Value(usize::from(map.0)), |writer| {
            writer.access();
            writer.block();
        });
    }

    fn add(&mut self) {
        let Some(map) = self.map_of(&[MapKind::Array, MapKind::PerCpuArray]) else {
            return;
        };
        let def = &self.maps[usize::from(map.0)];
        let entries = u64::from(def.entries);
        if def.value_size < 8 {
            return;
        }
        self.insns.push(Insn::LoadMap { dst: R1, map });
        if self.random.one_in(3) {
            self.number_argument(R2);
        } else {
            let index = self.random.below(entries + 1) as i32;
            self.mov(R2, index);
        }
        self.number_argument(R3);
        self.call(Helper::Add, Holds::Number);
    }

    fn change_hash(&mut self) {
        let Some(map) = self.map_of(&[MapKind::Hash, MapKind::PerCpuHash]) else {
            return;
        };
        let helper = self.random.of(&[
            Helper::AddByKey,
            Helper::AddByKey,
            Helper::MapUpdate,
            Helper::MapDelete,
            Helper::DeleteOfCpus,
            Helper::SumOfCpus,
            Helper::MostOfCpus,
        ]);
        if helper == Helper::MapUpdate {
            let bytes = self.maps[usize::from(map.0)].value_size;
            let Some(offset) = self.buffer(bytes) else {
                return;
            };
            for at in (0..bytes as i16).step_by(8) {
                self.insns.push(Insn::Store {
                    base: R10,
                    offset: offset + at,
                    size: Size::B8,
                    value: imm(self.random).into(),
                });
            }
            self.stack_pointer(R3, offset);
        }
        if !self.key(map, R2) {
            return;
        }
        match helper {
            Helper::AddByKey | Helper::SumOfCpus | Helper::MostOfCpus => self.number_argument(R3),
            Helper::MapUpdate => {
                let flags = self.random.below(3) as i32;
                self.mov(R4, flags);
            }
            _ => {}
        }
        self.insns.push(Insn::LoadMap { dst: R1, map });
        self.call(helper, Holds::Number);
        self.keep_result();
    }

    /// A branch, with one or two blocks.
    fn either(&mut self) {
        if self.depth > 3 {
            return;
        }
        let dst = self.number();
        let operand = self.operand();
        if self.holds(dst) != Holds::Number {
            return;
        }
        let width = width(self.random);
        let condition = self.random.of(&Condition::ALL);
        let jump = self.branch_of(width, condition, dst, operand);
        let before = self.state.clone();
        self.block();
        let first = core::mem::replace(&mut self.state, before);
        if self.random.one_in(2) {
            let over = self.jump();
            self.land(jump);
            self.block();
            self.land(over);
        } else {
            self.land(jump);
        }
        let second = self.state.clone();
        self.state = first.join(second);
    }

    /// A loop with a counter.
    fn repeat(&mut self) {
        if self.depth > 2 {
            return;
        }
        let Some(counter) = self.saved() else { return };
        let turns = 1 + self.random.below(6) as i32;
        let counts_up = self.random.one_in(2);
        let is_checked_first = !counts_up && self.random.one_in(2);
        if is_checked_first && self.random.one_in(2) {
            let number = self.number();
            self.mov(counter, number);
            self.alu(AluOp::And, counter, 7);
        } else {
            self.mov(counter, if counts_up { 0 } else { turns });
        }
        self.set(counter, Holds::Number);

        let (kept, only_numbers, in_loop) = (self.kept, self.only_numbers, self.in_loop);
        self.in_loop = true;
        self.kept |= bit(counter);
        self.state.registers[..6].fill(Holds::Nothing);
        for reg in SAVED {
            match self.holds(reg) {
                Holds::Number => self.only_numbers |= bit(reg),
                Holds::Nothing => {}
                _ => self.kept |= bit(reg),
            }
        }
        let head = self.here();
        let leave = is_checked_first.then(|| self.branch(Condition::Equal, counter, 0.into()));
        let before = self.state.clone();
        self.block();
        if self.state.is_dead {
            // The end of the turn is not reached, but is written all the same.
            self.state = before.clone();
        }
        if counts_up {
            self.alu(AluOp::Add, counter, 1);
            let back = self.branch(Condition::Below, counter, turns.into());
            self.lead(back, head);
        } else {
            self.alu(AluOp::Sub, counter, 1);
            let back = if is_checked_first {
                self.jump()
            } else {
                self.branch(Condition::NotEqual, counter, 0.into())
            };
            self.lead(back, head);
        }
        if let Some(leave) = leave {
            self.land(leave);
        }
        let after = self.state.clone();
        self.state = after.join(before);
        (self.kept, self.only_numbers, self.in_loop) = (kept, only_numbers, in_loop);
    }

    fn lead(&mut self, jump: usize, to: Target) {
        if let Insn::Jump { target } | Insn::Branch { target, .. } = &mut self.insns[jump] {
            *target = to;
        }
    }

    /// Reserves a record, fills it, and gives it back.
    fn take_record(&mut self) {
        if self.record.is_some() {
            return;
        }
        let Some(reg) = self.saved() else { return };
        let Some(ring) = self.map_of(&[MapKind::Ring]) else {
            return;
        };
        let is_event = self.random.one_in(2);
        let size = if self.random.one_in(16) {
            MOST_RECORD_BYTES
        } else {
            8 * (1 + self.random.below(6) as u32)
        };
        self.insns.push(Insn::LoadMap { dst: R1, map: ring });
        self.mov(R2, size as i32);
        if is_event {
            let (room, number) = (self.random.below(32) as i32, imm(self.random));
            self.mov(R3, room);
            self.mov(R4, number);
            self.call(Helper::EventReserve, Holds::Nothing);
        } else {
            self.mov(R3, 0);
            self.call(Helper::RingReserve, Holds::Nothing);
        }
        self.unless_null(Holds::Record(size), |writer| {
            let kept = writer.kept;
            writer.mov(reg, R0);
            writer.set(reg, Holds::Record(size));
            writer.kept |= bit(reg);
            writer.record = Some(HeldRecord { reg, is_event });
            for _ in 0..1 + writer.random.below(3) {
                writer.access();
                writer.append();
            }
            writer.block();
            writer.record = None;
            writer.kept = kept;
            writer.mov(R1, reg);
            writer.mov(R2, 0);
            let helper = if writer.random.one_in(4) {
                Helper::RingDiscard
            } else {
                Helper::RingSubmit
            };
            writer.call(helper, Holds::Number);
            // All pointers to it are lost.
            let registers = writer.state.registers.iter_mut();
            for holds in registers.chain(&mut writer.state.pointers) {
                if matches!(holds, Holds::Record(_)) {
                    *holds = Holds::Nothing;
                }
            }
        });
        // A slot that held a pointer to it is not known to be set any more.
        for (slot, pointer) in self.state.pointers.iter().enumerate() {
            if *pointer == Holds::Nothing && !self.in_loop {
                let bytes = slot * 8..slot * 8 + 8;
                let is_partly_set = self.state.is_set[bytes.clone()].iter().any(|set| !set);
                if is_partly_set {
                    self.state.is_set[bytes].fill(false);
                }
            }
        }
    }

    /// Appends to an event.
    fn append(&mut self) {
        let Some(HeldRecord {
            reg,
            is_event: true,
        }) = self.record
        else {
            return;
        };
        let helper = self.random.of(&[
            Helper::AppendStr,
            Helper::AppendUserStr,
            Helper::AppendBytes,
        ]);
        if helper == Helper::AppendBytes {
            let Some(offset) = self.buffer(8) else { return };
            self.insns.push(Insn::Store {
                base: R10,
                offset,
                size: Size::B8,
                value: imm(self.random).into(),
            });
            self.stack_pointer(R2, offset);
            let bytes = 1 + self.random.below(8) as i32;
            self.mov(R3, bytes);
        } else {
            self.number_argument(R2);
            let length = self.random.below(30) as i32;
            self.mov(R3, length);
        }
        self.mov(R1, reg);
        self.call(helper, Holds::Number);
    }

    /// Stores a pointer on the stack, or loads one that is there.
    fn spill(&mut self) {
        let known = (0..self.state.pointers.len())
            .find(|slot| self.state.pointers[*slot] != Holds::Nothing);
        match known {
            Some(slot) if self.random.one_in(2) => {
                let dst = self.for_pointer();
                self.insns.push(Insn::Load {
                    dst,
                    base: R10,
                    offset: slot as i16 * 8 - STACK_BYTES as i16,
                    size: Size::B8,
                    signed: false,
                });
                self.set(dst, self.state.pointers[slot]);
            }
            // A record that is given back would be left behind.
            _ if self.in_loop => {}
            _ => {
                let spillable =
                    |holds| !matches!(holds, Holds::Nothing | Holds::Number | Holds::Record(_));
                let Some(reg) = self.find(spillable) else {
                    return;
                };
                let Some(offset) = self.buffer(8) else { return };
                self.insns.push(Insn::Store {
                    base: R10,
                    offset,
                    size: Size::B8,
                    value: reg.into(),
                });
                let slot = (STACK_BYTES as i16 + offset) as usize / 8;
                self.state.pointers[slot] = self.holds(reg);
            }
        }
    }

    /// A pointer moved by a number between bounds, and an access there.
    fn walk_pointer(&mut self) {
        let movable = |holds| {
            matches!(
                holds,
                Holds::Stack(_) | Holds::Value(_) | Holds::Record(_) | Holds::EntryData
            )
        };
        let Some(from) = self.find(movable) else {
            return;
        };
        let holds = self.holds(from);
        let dst = self.for_pointer();
        if dst == from {
            return;
        }
        if let Holds::Stack(at) = holds
            && self.random.one_in(2)
        {
            // By a constant: the pointer stays known.
            let by = -8 * self.random.below(8) as i16;
            if at + by < -(STACK_BYTES as i16) {
                return;
            }
            self.mov(dst, from);
            self.alu(AluOp::Add, dst, i32::from(by));
            self.set(dst, Holds::Stack(at + by));
            return;
        }
        let Some((start, bytes)) = self.extent(holds) else {
            return;
        };
        // A power of two minus one for a mask; of an object of 8 bytes that is the first 8.
        let (start, room) = match holds {
            Holds::Stack(at) => (-64 - i32::from(at), 64),
            _ => (start, bytes),
        };
        if room < 8 {
            return;
        }
        let span = 1 << (room as u32).ilog2();
        let number = self.number();
        if self.holds(from) != holds || dst == number || number == from {
            return;
        }
        let distance = self.writable();
        if distance == dst || distance == from || self.kept & bit(distance) != 0 {
            return;
        }
        self.mov(distance, number);
        self.set(distance, Holds::Number);
        self.alu(AluOp::And, distance, span - 8);
        if self.random.one_in(2) {
            self.mov(dst, from);
            self.alu(AluOp::Add, dst, distance);
        } else {
            self.mov(dst, distance);
            self.alu(AluOp::Add, dst, from);
        }
        self.set(dst, Holds::Nothing);
        let size = self.random.of(&SIZES);
        let offset = start as i16 + self.random.below(9 - u64::from(size.bytes())) as i16;
        let is_stack = matches!(holds, Holds::Stack(_));
        let is_load = self.random.one_in(2);
        let reaches = STACK_BYTES - 64..STACK_BYTES;
        if is_stack && is_load && !self.is_readable(reaches.start, reaches.len()) {
            return;
        }
        let slots = reaches.start / 8..;
        let reaches_pointers = self.state.pointers[slots]
            .iter()
            .any(|pointer| *pointer != Holds::Nothing);
        if is_stack && reaches_pointers {
            return;
        }
        if is_load {
            let value = self.writable();
            self.insns.push(Insn::Load {
                dst: value,
                base: dst,
                offset,
                size,
                signed: false,
            });
            self.set(value, Holds::Number);
        } else {
            let value = imm(self.random).into();
            self.insns.push(Insn::Store {
                base: dst,
                offset,
                size,
                value,
            });
        }
    }

    fn entry_data(&mut self) {
        if self.kind.shared_bytes() == 0 {
            return;
        }
        self.call(Helper::EntryData, Holds::EntryData);
        self.keep_result();
        self.access();
    }
}
