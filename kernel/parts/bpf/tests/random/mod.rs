//! Random programs, and random machines to run them on. The same seed gives the same ones.
//!
//! A program of random bytes is refused at its first instruction and shows nothing. So the writer
//! keeps a rough idea of what each register holds and mostly writes what makes sense: it compares
//! lookups with null, masks indexes, submits records. "Mostly" is what a test wants: a bound may be
//! off by one, a check may be missing, an instruction may be any. The idea is only that; it is not
//! a second verifier.

use bpf::{
    AluOp, AtomicOp, Builder, Condition, Helper, Insn, Kind, MapDef, MapIndex, MapKind, Operand,
    Program, Reg,
    Reg::*,
    Size, Swap, Target, Width,
    context::Register,
    interpreter::{Space, TestMachine},
};

/// Where a machine has kernel memory of [`KERNEL_BYTES`].
pub const KERNEL: u64 = 0xffff_8000_0000_1000;
pub const KERNEL_BYTES: u64 = 64;

/// A generator of numbers (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03;
        Self(mixed | 1)
    }

    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        (self.number() >> 11) % limit
    }

    /// True so many times of a hundred.
    pub fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }

    pub fn one_of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// A number near a bound of something, or any.
    pub fn interesting(&mut self) -> u64 {
        let near = self.below(5).wrapping_sub(2);
        match self.below(6) {
            0 => self.below(16),
            1 => (1u64 << self.below(64)).wrapping_add(near),
            2 => (1u64 << self.below(64)).wrapping_neg().wrapping_add(near),
            3 => KERNEL + self.below(KERNEL_BYTES + 8),
            4 => self.below(0x1_0000),
            _ => self.number(),
        }
    }
}

/// The writer's idea of a register.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Idea {
    Unset,
    Number,
    /// From zero to that.
    UpTo(u64),
    Context,
    /// So far below `r10`.
    Stack(u64),
    /// Somewhere in the written part of the stack.
    SomewhereInStack,
    Value(u16),
    ValueOrNull(u16),
    Record(u64),
    RecordOrNull(u64),
    EntryData,
}

const SIZES: [Size; 4] = [Size::B1, Size::B2, Size::B4, Size::B8];
const OPS: [AluOp; 14] = [
    AluOp::Mov,
    AluOp::Add,
    AluOp::Sub,
    AluOp::Mul,
    AluOp::Div,
    AluOp::SignedDiv,
    AluOp::Mod,
    AluOp::SignedMod,
    AluOp::And,
    AluOp::Or,
    AluOp::Xor,
    AluOp::ShiftLeft,
    AluOp::ShiftRight,
    AluOp::ShiftRightSigned,
];
const CONDITIONS: [Condition; 11] = [
    Condition::Equal,
    Condition::NotEqual,
    Condition::AnyBit,
    Condition::Above,
    Condition::AboveOrEqual,
    Condition::Below,
    Condition::BelowOrEqual,
    Condition::Greater,
    Condition::GreaterOrEqual,
    Condition::Less,
    Condition::LessOrEqual,
];
const ATOMICS: [AtomicOp; 10] = [
    AtomicOp::Add { fetch: false },
    AtomicOp::Add { fetch: true },
    AtomicOp::Or { fetch: false },
    AtomicOp::Or { fetch: true },
    AtomicOp::And { fetch: false },
    AtomicOp::And { fetch: true },
    AtomicOp::Xor { fetch: false },
    AtomicOp::Xor { fetch: true },
    AtomicOp::Exchange,
    AtomicOp::CompareExchange,
];

const ARRAY: u16 = 0;
const COUNTERS: u16 = 1;
const HASH: u16 = 2;
const STACKS: u16 = 3;
const RING: u16 = 4;

fn maps() -> [MapDef; 5] {
    let map = |kind, key_size, value_size, entries| MapDef {
        name: "map".into(),
        kind,
        key_size,
        value_size,
        entries,
    };
    [
        map(MapKind::Array, 4, 24, 4),
        MapDef::counters("counters", 16),
        map(MapKind::Hash, 8, 16, 3),
        map(MapKind::Stacks, 4, 16, 2),
        MapDef::ring("ring"),
    ]
}

struct Writer {
    random: Random,
    b: Builder,
    kind: Kind,
    ideas: [Idea; 11],
    /// Of the 64 bytes below `r10`: those that were written as numbers.
    written: [bool; 64],
    /// Registers that are not to be overwritten: counters of turns, and that of the record.
    kept: Vec<Reg>,
    /// A record is reserved, that deep in branches and loops.
    held: bool,
    held_at: u32,
    record_in: Option<Reg>,
    /// The way out of failed checks.
    end: bpf::Label,
}

/// A random program.
pub fn program(seed: u64) -> Program {
    let mut random = Random::new(seed);
    let data = 8 * random.below(4) as u32;
    let kind = match random.below(3) {
        0 => Kind::Probe,
        1 => Kind::Entry { data },
        _ => Kind::Return { data },
    };
    let mut b = Builder::new(kind);
    for map in maps() {
        b.map(map);
    }
    let end = b.label();
    let mut ideas = [Idea::Unset; 11];
    ideas[1] = Idea::Context;
    ideas[10] = Idea::Stack(0);
    let mut writer = Writer {
        random,
        b,
        kind,
        ideas,
        written: [false; 64],
        kept: Vec::new(),
        held: false,
        held_at: 0,
        record_in: None,
        end,
    };
    writer.insn_mov(R6, R1);
    let statements = 3 + writer.random.below(12);
    for _ in 0..statements {
        writer.statement(0);
    }
    writer.give_back();
    writer.b.mov(R0, 0);
    writer.b.place(end);
    let mut program = {
        // The way out from checks leads here with anything in r0.
        writer.b.mov(R0, 0).push(Insn::Exit);
        writer.b.finish().unwrap()
    };
    let mut random = writer.random;
    for insn in &mut program.insns {
        // A check of the lower half may be right or a mistake.
        if let Insn::Branch { width, operand, .. } = insn
            && *operand != Operand::Imm(0)
            && random.percent(8)
        {
            *width = Width::W32;
        }
    }
    if random.percent(10) {
        let at = random.below(program.insns.len() as u64) as usize;
        let insns = program.insns.len() as u64;
        program.insns[at] = any_insn(&mut random, insns);
    }
    program
}

/// A machine with random registers and memory.
pub fn machine(program: &Program, random: &mut Random) -> TestMachine {
    let mut machine = TestMachine::new(program);
    for register in Register::ALL {
        machine.set_register(register, random.interesting());
    }
    let bytes: Vec<u8> = (0..KERNEL_BYTES)
        .map(|_| random.interesting() as u8)
        .collect();
    machine.put(Space::Kernel, KERNEL, &bytes);
    machine.put(Space::User, 0x1000, &bytes);
    machine.entry_data.fill_with(|| random.number() as u8);
    machine.room_for_records = random.below(4) as usize;
    machine.call_stack = vec![KERNEL, KERNEL + 8, KERNEL + 16];
    machine.cpu = random.below(4) as u32;
    machine.func_ip = random.interesting();
    machine.return_address = random.interesting();
    machine
}

/// Any instruction that can be written down, or nearly so.
fn any_insn(random: &mut Random, insns: u64) -> Insn {
    let dst = random.one_of(&Reg::ALL);
    let src = random.one_of(&Reg::ALL);
    let imm = random.interesting() as i32;
    let operand = if random.percent(50) {
        Operand::Imm(imm)
    } else {
        Operand::Reg(src)
    };
    let width = random.one_of(&[Width::W32, Width::W64]);
    let size = random.one_of(&SIZES);
    let offset = match random.below(3) {
        0 => random.below(32) as i16,
        1 => -(random.below(520) as i16),
        _ => random.number() as i16,
    };
    let target = Target(random.below(insns + 1) as u16);
    match random.below(13) {
        0 => Insn::Alu {
            width,
            op: random.one_of(&OPS),
            dst,
            operand,
        },
        1 => Insn::Negate { width, dst },
        2 => Insn::SignExtend {
            width,
            bits: random.one_of(&[7, 8, 16, 32]),
            dst,
            src,
        },
        3 => Insn::Swap {
            swap: random.one_of(&[Swap::ToLittle, Swap::ToBig, Swap::Always]),
            bits: random.one_of(&[8, 16, 32, 64]),
            dst,
        },
        4 => Insn::LoadImm {
            dst,
            value: random.interesting(),
        },
        5 => Insn::LoadMap {
            dst,
            map: MapIndex(random.below(6) as u16),
        },
        6 => Insn::Load {
            dst,
            base: src,
            offset,
            size,
            signed: random.percent(30),
        },
        7 => Insn::Store {
            base: dst,
            offset,
            size,
            value: operand,
        },
        8 => Insn::Atomic {
            op: random.one_of(&ATOMICS),
            base: dst,
            offset,
            size,
            reg: src,
        },
        9 => Insn::Jump { target },
        10 => Insn::Branch {
            width,
            condition: random.one_of(&CONDITIONS),
            dst,
            operand,
            target,
        },
        11 => Insn::Call {
            helper: random.one_of(&Helper::ALL),
        },
        _ => Insn::Exit,
    }
}

impl Writer {
    fn idea(&self, reg: Reg) -> Idea {
        self.ideas[usize::from(reg.number())]
    }

    fn think(&mut self, reg: Reg, idea: Idea) {
        self.ideas[usize::from(reg.number())] = idea;
    }

    fn insn_mov(&mut self, dst: Reg, src: Reg) {
        self.b.mov(dst, src);
        self.think(dst, self.idea(src));
    }

    /// A register to write.
    fn free(&mut self) -> Reg {
        let candidates: Vec<_> = Reg::ALL[..10]
            .iter()
            .copied()
            .filter(|reg| !self.kept.contains(reg))
            // The context is kept in r6, mostly.
            .filter(|reg| *reg != R6)
            .collect();
        self.random.one_of(&candidates)
    }

    fn find(&mut self, wanted: impl Fn(Idea) -> bool) -> Option<Reg> {
        let found: Vec<_> = Reg::ALL
            .into_iter()
            .filter(|reg| wanted(self.idea(*reg)))
            .collect();
        (!found.is_empty()).then(|| self.random.one_of(&found))
    }

    /// A register with a number; one is set if there is none.
    fn number(&mut self) -> Reg {
        let found = self.find(|idea| matches!(idea, Idea::Number | Idea::UpTo(_)));
        match found {
            Some(reg) if self.random.percent(90) => reg,
            _ => {
                let reg = self.free();
                let value = self.random.interesting();
                self.b.set(reg, value as i64);
                self.think(reg, Idea::Number);
                reg
            }
        }
    }

    fn operand(&mut self) -> Operand {
        if self.random.percent(50) {
            Operand::Imm(self.random.interesting() as i32)
        } else {
            Operand::Reg(self.number())
        }
    }

    /// A register with a number from 0 to `most`, or a little more.
    fn up_to(&mut self, most: u64) -> Reg {
        let most = if self.random.percent(4) {
            most + 1 + self.random.below(8)
        } else {
            most
        };
        let reg = self.free();
        let from = self.number();
        self.insn_mov(reg, from);
        let width = self.random.one_of(&[Width::W32, Width::W64]);
        match self.random.below(4) {
            0 => {
                // The greatest mask that is not above it.
                let mask = (most + 1).next_power_of_two() / 2;
                let mask = if (most + 1).is_power_of_two() {
                    most
                } else {
                    mask.saturating_sub(1)
                };
                self.b.push(Insn::Alu {
                    width,
                    op: AluOp::And,
                    dst: reg,
                    operand: Operand::Imm(mask as i32),
                });
            }
            1 => {
                self.b.push(Insn::Alu {
                    width,
                    op: AluOp::Mod,
                    dst: reg,
                    operand: Operand::Imm(most as i32 + 1),
                });
            }
            2 => {
                // A branch over an assignment.
                let inside = self.b.label();
                self.b
                    .branch(Condition::BelowOrEqual, reg, most as i32, inside)
                    .mov(reg, 0)
                    .place(inside);
            }
            _ => {
                let inside = self.b.label();
                let beyond = self.b.label();
                self.b
                    .branch(Condition::Greater, reg, most as i32, beyond)
                    .branch(Condition::GreaterOrEqual, reg, 0, inside)
                    .place(beyond)
                    .mov(reg, most as i32)
                    .place(inside);
            }
        }
        self.think(reg, Idea::UpTo(most));
        reg
    }

    fn statement(&mut self, depth: u32) {
        match self.random.below(26) {
            0 | 1 => self.calculate(),
            2 => {
                let dst = self.free();
                let src = self.random.one_of(&Reg::ALL[..10]);
                if self.idea(src) != Idea::Unset || self.random.percent(2) {
                    self.insn_mov(dst, src);
                }
            }
            3 => self.load_context(),
            4..=6 => self.store_on_stack(),
            7 => self.load_from_stack(),
            8 => self.point_into_stack(),
            9 => self.load_kernel(),
            10..=12 => self.use_pointer(),
            24 => self.use_stack_pointer(),
            13 | 14 => self.check_null(),
            15 => self.lookup(),
            16 | 17 => self.call(),
            18 | 19 if self.held => {
                // Where a branch does not go, it would not be given back.
                if depth == self.held_at || self.random.percent(2) {
                    self.give_back();
                }
            }
            18 | 19 => self.reserve(depth),
            20 | 21 if depth < 3 => self.branch(depth),
            22 if depth < 2 => self.turn(depth),
            23 => self.atomic(),
            _ if self.random.percent(3) => {
                let insn = any_insn(&mut self.random, 1);
                if !matches!(insn, Insn::Jump { .. } | Insn::Branch { .. }) {
                    self.b.push(insn);
                }
            }
            _ => self.calculate(),
        }
    }

    fn calculate(&mut self) {
        let from = self.number();
        let dst = self.free();
        if dst != from {
            self.insn_mov(dst, from);
        }
        let width = self.random.one_of(&[Width::W32, Width::W64]);
        match self.random.below(8) {
            0 => self.b.push(Insn::Negate { width, dst }),
            1 => {
                let bits = self.random.one_of(&[8, 16]);
                self.b.push(Insn::SignExtend {
                    width,
                    bits,
                    dst,
                    src: from,
                })
            }
            2 => {
                let swap = self
                    .random
                    .one_of(&[Swap::ToLittle, Swap::ToBig, Swap::Always]);
                let bits = self.random.one_of(&[16, 32, 64]);
                self.b.push(Insn::Swap { swap, bits, dst })
            }
            _ => {
                let op = self.random.one_of(&OPS);
                let operand = match self.operand() {
                    // A new number may have overwritten the register.
                    Operand::Reg(reg) if self.idea(reg) == Idea::Unset => Operand::Imm(1),
                    operand => operand,
                };
                self.b.push(Insn::Alu {
                    width,
                    op,
                    dst,
                    operand,
                })
            }
        };
        self.think(dst, Idea::Number);
    }

    fn load_context(&mut self) {
        let Some(base) = self.find(|idea| idea == Idea::Context) else {
            return;
        };
        let register = self.random.one_of(&Register::ALL);
        let size = self.random.one_of(&SIZES);
        let off = if self.random.percent(2) { 2 } else { 0 };
        let dst = self.free();
        self.b.push(Insn::Load {
            dst,
            base,
            offset: register.offset() + off,
            size,
            signed: self.random.percent(30),
        });
        self.think(dst, Idea::Number);
    }

    fn store_on_stack(&mut self) {
        let size = self.random.one_of(&SIZES);
        let bytes = u64::from(size.bytes());
        let below = bytes * (1 + self.random.below(64 / bytes));
        let value = match self.random.below(10) {
            0 | 1 if size == Size::B8 => {
                let any = self.find(|idea| idea != Idea::Unset);
                any.map_or(Operand::Imm(0), Operand::Reg)
            }
            2..=5 => Operand::Imm(self.random.below(6) as i32),
            _ => Operand::Reg(self.number()),
        };
        let odd = i16::from(self.random.percent(3));
        self.b.store(R10, odd - (below as i16), size, value);
        let is_number = match value {
            Operand::Imm(_) => true,
            Operand::Reg(reg) => matches!(self.idea(reg), Idea::Number | Idea::UpTo(_)),
        };
        let from = 64 - below as usize;
        self.written[from..from + bytes as usize].fill(is_number);
    }

    fn load_from_stack(&mut self) {
        let size = self.random.one_of(&SIZES);
        let bytes = size.bytes() as usize;
        let places: Vec<usize> = (0..=64 - bytes)
            .filter(|from| self.written[*from..*from + bytes].iter().all(|byte| *byte))
            .collect();
        let from = if places.is_empty() || self.random.percent(2) {
            if self.random.percent(80) {
                return;
            }
            8 * self.random.below(8) as usize
        } else {
            self.random.one_of(&places)
        };
        let dst = self.free();
        let signed = self.random.percent(20);
        self.b.push(Insn::Load {
            dst,
            base: R10,
            offset: from as i16 - 64,
            size,
            signed,
        });
        self.think(dst, Idea::Number);
    }

    fn point_into_stack(&mut self) {
        let dst = self.free();
        let below = 8 * (1 + self.random.below(8));
        if self.random.percent(60) {
            self.b.mov(dst, R10).alu(AluOp::Add, dst, -(below as i32));
            self.think(dst, Idea::Stack(below));
            return;
        }
        // A byte somewhere in the lowest bytes. They are written first, mostly.
        if self.random.percent(90) {
            for at in [-32, -24] {
                self.b.store(R10, at, Size::B8, 0);
            }
            self.written[32..48].fill(true);
        }
        let index = self.up_to(15);
        self.b
            .alu(AluOp::Add, index, R10)
            .alu(AluOp::Sub, index, 32);
        self.think(index, Idea::SomewhereInStack);
    }

    fn load_kernel(&mut self) {
        let base = self.number();
        let dst = self.free();
        let size = self.random.one_of(&SIZES);
        let offset = self.random.below(32) as i16;
        self.b.load(dst, base, offset, size);
        self.think(dst, Idea::Number);
    }

    /// Loads or stores through a pointer to a value, a record, entry data, or into the stack.
    fn use_pointer(&mut self) {
        let Some(mut base) = self.find(|idea| {
            matches!(
                idea,
                Idea::Value(_) | Idea::Record(_) | Idea::EntryData | Idea::SomewhereInStack
            )
        }) else {
            return self.lookup();
        };
        let bytes = match self.idea(base) {
            Idea::Value(map) => u64::from(maps()[usize::from(map)].value_size),
            Idea::Record(size) => size,
            Idea::EntryData => u64::from(self.kind.shared_bytes()),
            _ => 1,
        };
        let size = self.random.one_of(&SIZES);
        let access = u64::from(size.bytes());
        if access > bytes {
            return;
        }
        let mut offset = self.random.below(bytes - access + 1);
        if self.random.percent(2) {
            offset = bytes - access + 1;
        }
        if self.random.percent(25) && offset > 0 {
            // A part of the offset is in a register.
            let idea = self.idea(base);
            let index = self.up_to(offset);
            if self.idea(base) != idea {
                return;
            }
            let sum = self.free();
            if sum == index {
                self.b.alu(AluOp::Add, sum, base);
            } else {
                self.b.mov(sum, base).alu(AluOp::Add, sum, index);
            }
            self.think(sum, Idea::Unset);
            base = sum;
            offset = 0;
        }
        if self.random.percent(50) {
            let dst = self.free();
            self.b.load(dst, base, offset as i16, size);
            self.think(dst, Idea::Number);
        } else {
            let value = match self.random.percent(50) {
                true => Operand::Imm(self.random.interesting() as i32),
                false => {
                    let number = self.find(|idea| matches!(idea, Idea::Number | Idea::UpTo(_)));
                    number.map_or(Operand::Imm(1), Operand::Reg)
                }
            };
            self.b.store(base, offset as i16, size, value);
        }
    }

    /// Loads or stores through a pointer into the stack that is not `r10`.
    fn use_stack_pointer(&mut self) {
        let Some(base) = self.find(|idea| matches!(idea, Idea::Stack(below) if below > 0)) else {
            return self.point_into_stack();
        };
        let Idea::Stack(below) = self.idea(base) else {
            return;
        };
        let size = self.random.one_of(&SIZES);
        let bytes = u64::from(size.bytes());
        let offset = bytes * self.random.below(below / bytes);
        let from = (64 - below + offset) as usize;
        let place = from..from + bytes as usize;
        if self.written[place.clone()].iter().all(|byte| *byte) && self.random.percent(60) {
            let dst = self.free();
            self.b.load(dst, base, offset as i16, size);
            self.think(dst, Idea::Number);
        } else {
            let imm = self.random.interesting() as i32;
            self.b.store(base, offset as i16, size, imm);
            self.written[place].fill(true);
        }
    }

    fn check_null(&mut self) {
        let Some(reg) = self.find(|idea| {
            matches!(idea, Idea::ValueOrNull(_)) || matches!(idea, Idea::RecordOrNull(_))
        }) else {
            return self.load_context();
        };
        let checked = match self.idea(reg) {
            Idea::ValueOrNull(map) => Idea::Value(map),
            Idea::RecordOrNull(size) => Idea::Record(size),
            other => other,
        };
        // With a record in hand the way out is closed.
        if self.held && matches!(checked, Idea::Value(_)) {
            let there = self.b.label();
            self.b.branch(Condition::NotEqual, reg, 0, there);
            let (end, ideas) = (self.end, self.ideas);
            let (kept, record_in) = (self.kept.clone(), self.record_in);
            self.give_back();
            (self.held, self.ideas) = (true, ideas);
            (self.kept, self.record_in) = (kept, record_in);
            self.b.jump(end).place(there);
        } else if self.kept.is_empty() || self.random.percent(70) {
            self.b.branch(Condition::Equal, reg, 0, self.end);
        } else {
            return;
        }
        self.think(reg, checked);
    }

    fn lose_arguments(&mut self) {
        for reg in [R0, R1, R2, R3, R4, R5] {
            self.think(reg, Idea::Unset);
        }
    }

    /// `r2 = ` a key on the stack, of 8 bytes for the hash.
    fn key(&mut self, map: u16) {
        if map == HASH {
            if !self.written[48..56].iter().all(|byte| *byte) || self.random.percent(30) {
                let value = self.random.below(5) as i32;
                self.b.store(R10, -16, Size::B8, value);
                self.written[48..56].fill(true);
            }
            self.b.mov(R2, R10).alu(AluOp::Add, R2, -16);
        } else {
            let entries = u64::from(maps()[usize::from(map)].entries);
            match self.random.below(3) {
                0 => {
                    self.b
                        .store(R10, -20, Size::B4, self.random.below(entries) as i32);
                }
                1 => {
                    let index = self.up_to(entries - 1);
                    self.b.store(R10, -20, Size::B4, index);
                }
                _ => {
                    let index = self.number();
                    self.b.store(R10, -20, Size::B4, index);
                }
            }
            self.written[44..48].fill(true);
            self.b.mov(R2, R10).alu(AluOp::Add, R2, -20);
        }
        self.think(R2, Idea::Unset);
    }

    fn lookup(&mut self) {
        if self.kind.shared_bytes() > 0 && self.random.percent(30) {
            self.b.call(Helper::EntryData);
            self.lose_arguments();
            self.think(R0, Idea::EntryData);
            return;
        }
        let map = self.random.one_of(&[ARRAY, COUNTERS, HASH]);
        self.key(map);
        self.b.load_map(R1, MapIndex(map)).call(Helper::MapLookup);
        self.lose_arguments();
        self.think(R0, Idea::ValueOrNull(map));
        if self.random.percent(40) {
            let kept = self.random.one_of(&[R7, R8, R9]);
            if !self.kept.contains(&kept) {
                self.insn_mov(kept, R0);
            }
        }
        if self.random.percent(75) {
            self.check_null();
        }
    }

    fn call(&mut self) {
        let helper = self.random.one_of(&[
            Helper::Add,
            Helper::Add,
            Helper::AddByKey,
            Helper::MapUpdate,
            Helper::MapDelete,
            Helper::CpuId,
            Helper::PidTgid,
            Helper::Tsc,
            Helper::FuncIp,
            Helper::Log2,
            Helper::Comm,
            Helper::ReadKernel,
            Helper::ReadUserStr,
            Helper::StrLen,
            Helper::StackId,
            Helper::AppendStr,
            Helper::AppendBytes,
            Helper::ReturnAddress,
        ]);
        match helper {
            Helper::Add => {
                let index = self.number();
                self.b
                    .mov(R2, index)
                    .mov(R3, 1)
                    .load_map(R1, MapIndex(COUNTERS));
            }
            Helper::AddByKey | Helper::MapDelete => {
                self.key(HASH);
                self.b.mov(R3, 2).load_map(R1, MapIndex(HASH));
            }
            Helper::MapUpdate => {
                let map = self.random.one_of(&[COUNTERS, HASH]);
                self.key(map);
                let flags = self.random.below(4) as i32;
                self.b
                    .store(R10, -64, Size::B8, 7)
                    .store(R10, -56, Size::B8, 9)
                    .mov(R3, R10)
                    .alu(AluOp::Add, R3, -64)
                    .mov(R4, flags)
                    .load_map(R1, MapIndex(map));
                self.written[..16].fill(true);
            }
            Helper::Log2 => {
                let number = self.number();
                self.b.mov(R1, number);
            }
            Helper::Comm | Helper::ReadKernel | Helper::ReadUserStr => {
                let address = self.number();
                let size = 1 + self.random.below(16) as usize;
                let below = 16 + self.random.below(40) as usize;
                self.b
                    .mov(R3, address)
                    .mov(R1, R10)
                    .alu(AluOp::Sub, R1, below as i32)
                    .mov(R2, size as i32);
                self.written[64 - below..64 - below + size].fill(true);
            }
            Helper::StrLen => {
                let address = self.number();
                self.b.mov(R1, address).mov(R2, 20);
            }
            Helper::StackId => {
                let Some(context) = self.find(|idea| idea == Idea::Context) else {
                    return;
                };
                self.b
                    .mov(R1, context)
                    .load_map(R2, MapIndex(STACKS))
                    .mov(R3, self.random.below(4) as i32);
            }
            Helper::AppendStr | Helper::AppendBytes => {
                let Some(record) = self.find(|idea| matches!(idea, Idea::Record(_))) else {
                    return;
                };
                let number = self.number();
                if self.idea(record) == Idea::Unset || record == number {
                    return;
                }
                self.b.mov(R1, record);
                if helper == Helper::AppendStr {
                    self.b.mov(R2, number).mov(R3, 8);
                } else {
                    self.b
                        .store(R10, -8, Size::B8, 3)
                        .mov(R2, R10)
                        .alu(AluOp::Sub, R2, 8)
                        .mov(R3, 8);
                    self.written[56..].fill(true);
                }
            }
            Helper::ReturnAddress if !matches!(self.kind, Kind::Return { .. }) => return,
            Helper::FuncIp => {
                let Some(context) = self.find(|idea| idea == Idea::Context) else {
                    return;
                };
                self.b.mov(R1, context);
            }
            _ => {}
        }
        self.b.call(helper);
        self.lose_arguments();
        self.think(R0, Idea::Number);
    }

    fn reserve(&mut self, depth: u32) {
        let size = 8 * (1 + self.random.below(4));
        self.b.load_map(R1, MapIndex(RING)).mov(R2, size as i32);
        if self.random.percent(50) {
            self.b.mov(R3, 0).call(Helper::RingReserve);
        } else {
            self.b.mov(R3, 40).mov(R4, 5).call(Helper::EventReserve);
        }
        self.lose_arguments();
        self.think(R0, Idea::RecordOrNull(size));
        if self.random.percent(98) {
            self.b.branch(Condition::Equal, R0, 0, self.end);
            self.think(R0, Idea::Record(size));
        }
        self.held = true;
        self.held_at = depth;
        // It is kept in a register that nothing else is written to, mostly.
        let kept = [R7, R8, R9]
            .into_iter()
            .find(|reg| !self.kept.contains(reg));
        if let Some(kept) = kept
            && self.random.percent(98)
        {
            self.insn_mov(kept, R0);
            self.kept.push(kept);
            self.record_in = Some(kept);
        }
    }

    /// Gives the record back, if there is one and a register holds it.
    fn give_back(&mut self) {
        if !self.held || self.random.percent(1) {
            return;
        }
        let Some(record) = self.find(|idea| matches!(idea, Idea::Record(_))) else {
            return;
        };
        let helper = self
            .random
            .one_of(&[Helper::RingSubmit, Helper::RingDiscard]);
        self.b.mov(R1, record).mov(R2, 0).call(helper);
        self.held = false;
        if let Some(kept) = self.record_in.take() {
            self.kept.retain(|reg| *reg != kept);
        }
        self.lose_arguments();
        for reg in Reg::ALL {
            if matches!(self.idea(reg), Idea::Record(_)) {
                self.think(reg, Idea::Unset);
            }
        }
        self.think(R0, Idea::Number);
    }

    /// A few statements that are jumped over, or not.
    fn branch(&mut self, depth: u32) {
        let over = self.b.label();
        let reg = self.number();
        let operand = self.operand();
        let condition = self.random.one_of(&CONDITIONS);
        self.b.branch(condition, reg, operand, over);
        let (ideas, written, held) = (self.ideas, self.written, self.held);
        for _ in 0..=self.random.below(3) {
            self.statement(depth + 1);
        }
        if self.held && !held {
            self.give_back();
        }
        self.b.place(over);
        for (now, before) in self.ideas.iter_mut().zip(ideas) {
            if *now != before {
                let numbers = |idea| matches!(idea, Idea::Number | Idea::UpTo(_));
                *now = match numbers(*now) && numbers(before) {
                    true => Idea::Number,
                    false => Idea::Unset,
                };
            }
        }
        for (now, before) in self.written.iter_mut().zip(written) {
            *now &= before;
        }
    }

    /// A loop of a few turns.
    fn turn(&mut self, depth: u32) {
        let candidates: Vec<_> = [R7, R8, R9]
            .into_iter()
            .filter(|reg| !self.kept.contains(reg))
            .filter(|reg| matches!(self.idea(*reg), Idea::Unset | Idea::Number | Idea::UpTo(_)))
            .collect();
        if candidates.is_empty() || self.held {
            return;
        }
        let counter = self.random.one_of(&candidates);
        let head = self.b.label();
        self.b.mov(counter, 0).place(head);
        self.kept.push(counter);
        let turns = 1 + self.random.below(10);
        self.think(counter, Idea::UpTo(turns));
        // What a turn loses is not there in the next one.
        for reg in [R0, R1, R2, R3, R4, R5] {
            self.think(reg, Idea::Unset);
        }
        for reg in [R7, R8, R9] {
            if reg != counter {
                self.think(reg, Idea::Unset);
            }
        }
        for _ in 0..=self.random.below(3) {
            self.statement(depth + 1);
        }
        if self.held {
            self.give_back();
        }
        self.b.alu(AluOp::Add, counter, 1);
        if self.random.percent(50) {
            self.b.branch(Condition::Below, counter, turns as i32, head);
        } else {
            let limit = Operand::Imm(turns as i32);
            self.b.branch(Condition::NotEqual, counter, limit, head);
        }
        self.kept.pop();
    }

    fn atomic(&mut self) {
        let base =
            self.find(|idea| matches!(idea, Idea::Value(_) | Idea::Record(_) | Idea::EntryData));
        let op = self.random.one_of(&ATOMICS);
        let size = self.random.one_of(&[Size::B4, Size::B8]);
        let (base, offset) = match base {
            Some(base) if self.random.percent(80) => (base, 0),
            _ => {
                self.b.store(R10, -8, Size::B8, 5);
                self.written[56..].fill(true);
                (R10, -8)
            }
        };
        let Some(reg) = self.find(|idea| matches!(idea, Idea::Number)) else {
            return;
        };
        if op == AtomicOp::CompareExchange {
            if base == R0 {
                return;
            }
            self.b.mov(R0, self.random.below(8) as i32);
            self.think(R0, Idea::Number);
        }
        if self.kept.contains(&reg) {
            return;
        }
        self.b.push(Insn::Atomic {
            op,
            base,
            offset,
            size,
            reg,
        });
    }
}
