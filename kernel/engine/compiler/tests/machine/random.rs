//! Random programs that the verifier takes: straight lines and forward jumps over everything that
//! the instruction set has, with all registers in use.
//!
//! Unlike those of `bpf_cases`, they strain the assignment of registers: many numbers are live at
//! once, and shifts, divisions and calls want registers of their own.

use bpf::{
    AluOp, AtomicOp, Condition, Helper, Insn, MapDef, MapIndex, MapKind, Operand, Program,
    ProgramKind, Reg, Size, Swap, Target, Width, context::Register,
};
use bpf_interpreter::{Space, TestMachine};

/// Numbers by xorshift.
pub struct Random(u64);

/// Kernel memory of the worlds, of [`KERNEL_BYTES`].
pub const KERNEL: u64 = 0xffff_8880_0000_1000;
pub const KERNEL_BYTES: u64 = 64;

impl Random {
    pub fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        random.next();
        random.next();
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// A number near those at which arithmetic goes wrong.
    pub fn number(&mut self) -> u64 {
        let edge = self.of(&[
            0,
            1,
            2,
            7,
            8,
            31,
            32,
            63,
            64,
            0x7f,
            0x80,
            0xff,
            0x7fff,
            0x8000,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_ffff,
            0x1_0000_0000,
            i64::MAX as u64,
            i64::MIN as u64,
            u64::MAX,
            u64::MAX - 1,
            KERNEL,
        ]);
        match self.below(4) {
            0 => self.next(),
            1 => edge.wrapping_add(self.below(3)),
            _ => edge,
        }
    }

    pub fn world(&mut self, program: &Program) -> TestMachine {
        let mut world = TestMachine::new(program);
        for register in Register::ALL {
            let number = self.number();
            world.set_register(register, number);
        }
        world.cpu = self.below(u64::from(crate::machine::CPUS)) as u32;
        world.pid_tgid = self.next();
        world.func_ip = self.next();
        world.return_address = self.next();
        world.room_for_records = self.below(3) as usize;
        world.call_stack = (0..self.below(5)).map(|_| self.next()).collect();
        let bytes: Vec<u8> = (0..KERNEL_BYTES)
            .map(|_| self.next() as u8 & 0x83)
            .collect();
        world.put(Space::Kernel, KERNEL, &bytes);
        world.put(Space::User, 0x1000, &bytes);
        world
    }
}

const SCALARS: [Reg; 9] = [
    Reg::R0,
    Reg::R1,
    Reg::R2,
    Reg::R3,
    Reg::R4,
    Reg::R5,
    Reg::R7,
    Reg::R8,
    Reg::R9,
];
const SIZES: [Size; 4] = [Size::B1, Size::B2, Size::B4, Size::B8];
/// Bytes of the stack that are used, from `r10` down.
const STACK: i16 = 64;

/// A program of about `length` instructions. `r6` keeps the context, or the value of an array.
pub fn program(random: &mut Random, length: usize, calls: bool) -> Program {
    let mut insns = Vec::new();
    let map = |name: &'static str, kind, value_size, entries| MapDef {
        name: name.into(),
        kind,
        key_size: 4,
        value_size,
        entries,
    };
    let maps = vec![
        map("counters", MapKind::PerCpuArray, 8, 65),
        map("values", MapKind::Array, 32, 3),
        map("hash", MapKind::PerCpuHash, 16, 4),
    ];
    let value = random.below(2) == 0;
    let mov = |dst, operand: Operand| Insn::Alu {
        width: Width::W64,
        op: AluOp::Mov,
        dst,
        operand,
    };
    insns.push(mov(Reg::R6, Reg::R1.into()));
    if value {
        insns.push(Insn::Store {
            base: Reg::R10,
            offset: -4,
            size: Size::B4,
            value: (random.below(3) as i32).into(),
        });
        insns.push(Insn::LoadMap {
            dst: Reg::R1,
            map: MapIndex(1),
        });
        insns.push(mov(Reg::R2, Reg::R10.into()));
        insns.push(Insn::Alu {
            width: Width::W64,
            op: AluOp::Add,
            dst: Reg::R2,
            operand: (-4).into(),
        });
        insns.push(Insn::Call {
            helper: Helper::MapLookup,
        });
        insns.push(mov(Reg::R9, Reg::R6.into()));
        insns.push(mov(Reg::R6, Reg::R0.into()));
    }
    let context = if value { Reg::R9 } else { Reg::R6 };
    let read = |random: &mut Random, dst: Reg| {
        let size = random.of(&SIZES);
        Insn::Load {
            dst,
            base: context,
            offset: random.of(&Register::ALL).offset(),
            size: if random.below(3) == 0 { size } else { Size::B8 },
            signed: random.below(2) == 0 && size != Size::B8,
        }
    };
    let fill = |insns: &mut Vec<Insn>, random: &mut Random, reg| {
        insns.push(match random.below(3) {
            0 => Insn::LoadImm {
                dst: reg,
                value: random.number(),
            },
            1 => mov(reg, (random.number() as i32).into()),
            _ => read(random, reg),
        });
    };
    for reg in SCALARS {
        if reg != context {
            fill(&mut insns, random, reg);
        }
    }
    for slot in 0..STACK / 8 {
        insns.push(Insn::Store {
            base: Reg::R10,
            offset: -8 * (slot + 1),
            size: Size::B8,
            value: match random.below(2) {
                0 => Operand::Imm(random.number() as i32),
                _ => Reg::R2.into(),
            },
        });
    }
    if value {
        fill(&mut insns, random, Reg::R9);
    }
    let begin = insns.len();
    let scalars: Vec<Reg> = SCALARS
        .into_iter()
        .filter(|&reg| value || reg != context)
        .collect();
    for _ in 0..length {
        let (dst, src) = (random.of(&scalars), random.of(&scalars));
        let width = random.of(&[Width::W32, Width::W64]);
        let operand = match random.below(2) {
            0 => Operand::Imm(random.number() as i32),
            _ => src.into(),
        };
        let offset = -8 * (1 + random.below(STACK as u64 / 8) as i16);
        let memory = |random: &mut Random| {
            let size = random.of(&SIZES);
            let within = random.below(8 / u64::from(size.bytes())) as i16 * size.bytes() as i16;
            match random.below(2) {
                0 if value => (Reg::R6, 8 * random.below(4) as i16 + within, size),
                _ => (Reg::R10, offset + within, size),
            }
        };
        match random.below(20) {
            0..8 => insns.push(Insn::Alu {
                width,
                op: random.of(&AluOp::ALL),
                dst,
                operand,
            }),
            8 => insns.push(Insn::Negate { width, dst }),
            9 => insns.push(Insn::SignExtend {
                width,
                bits: match width {
                    Width::W32 => random.of(&[8, 16]),
                    Width::W64 => random.of(&[8, 16, 32]),
                },
                dst,
                src,
            }),
            10 => insns.push(Insn::Swap {
                swap: random.of(&[Swap::ToBig, Swap::ToLittle, Swap::Always]),
                bits: random.of(&[16, 32, 64]),
                dst,
            }),
            11 if !value => insns.push(read(random, dst)),
            11 | 12 => {
                let (base, offset, size) = memory(random);
                insns.push(Insn::Load {
                    dst,
                    base,
                    offset,
                    size,
                    signed: random.below(2) == 0 && size != Size::B8,
                });
            }
            13 => {
                let (base, offset, size) = memory(random);
                insns.push(Insn::Store {
                    base,
                    offset,
                    size,
                    value: operand,
                });
            }
            14 => {
                let (base, offset, size) = memory(random);
                let size = if size == Size::B8 { size } else { Size::B4 };
                let fetch = random.below(2) == 0;
                insns.push(Insn::Atomic {
                    op: random.of(&[
                        AtomicOp::Add { fetch },
                        AtomicOp::Or { fetch },
                        AtomicOp::And { fetch },
                        AtomicOp::Xor { fetch },
                        AtomicOp::Exchange,
                        AtomicOp::CompareExchange,
                    ]),
                    base,
                    offset: offset & !7,
                    size,
                    reg: src,
                });
            }
            15 => {
                let size = random.of(&SIZES);
                if random.below(2) == 0 {
                    insns.push(Insn::LoadImm {
                        dst: src,
                        value: KERNEL + random.below(KERNEL_BYTES),
                    });
                }
                insns.push(Insn::Load {
                    dst,
                    base: src,
                    offset: random.of(&[0, 0, 1, 8, -8, i16::MAX, i16::MIN]),
                    size,
                    signed: random.below(2) == 0 && size != Size::B8,
                });
            }
            16 | 17 => insns.push(Insn::Branch {
                width,
                condition: random.of(&Condition::ALL),
                dst,
                operand,
                // Filled in when the length is known.
                target: Target(0),
            }),
            kind => {
                call(random, &mut insns, calls && kind == 18, offset);
                for reg in &SCALARS[1..6] {
                    fill_constant(&mut insns, random, *reg);
                }
            }
        }
    }
    let end = insns.len();
    let length = end - begin;
    for i in begin..end {
        // Not over the definitions after a call.
        let target = i + 1 + random.below((length / 3 + 1) as u64) as usize;
        let mut target = target.min(end);
        while insns[i + 1..target]
            .iter()
            .any(|insn| matches!(insn, Insn::Call { .. }))
        {
            target -= 1;
        }
        if let Insn::Branch { target: place, .. } = &mut insns[i] {
            *place = Target(target as u16);
        }
    }
    for reg in SCALARS.into_iter().skip(1) {
        if value || reg != context {
            insns.push(Insn::Alu {
                width: Width::W64,
                op: AluOp::Mul,
                dst: Reg::R0,
                operand: 0x0101_0101.into(),
            });
            insns.push(Insn::Alu {
                width: Width::W64,
                op: AluOp::Add,
                dst: Reg::R0,
                operand: reg.into(),
            });
        }
    }
    for slot in 0..STACK / 8 {
        insns.push(Insn::Load {
            dst: Reg::R1,
            base: Reg::R10,
            offset: -8 * (slot + 1),
            size: Size::B8,
            signed: false,
        });
        insns.push(Insn::Alu {
            width: Width::W64,
            op: AluOp::Xor,
            dst: Reg::R0,
            operand: Reg::R1.into(),
        });
    }
    insns.push(Insn::Exit);
    Program {
        kind: ProgramKind::Probe,
        insns,
        maps,
    }
}

fn fill_constant(insns: &mut Vec<Insn>, random: &mut Random, dst: Reg) {
    insns.push(Insn::LoadImm {
        dst,
        value: random.number(),
    });
}

/// A call of a helper; `out` of the code, or in place.
fn call(random: &mut Random, insns: &mut Vec<Insn>, out: bool, offset: i16) {
    let set = |dst, operand: Operand| Insn::Alu {
        width: Width::W64,
        op: AluOp::Mov,
        dst,
        operand,
    };
    let scalar = random.of(&[Reg::R0, Reg::R2, Reg::R3, Reg::R7, Reg::R8]);
    let map = |insns: &mut Vec<Insn>, map| {
        insns.push(Insn::LoadMap {
            dst: Reg::R1,
            map: MapIndex(map),
        });
    };
    let key = |insns: &mut Vec<Insn>, reg| {
        insns.push(set(reg, Reg::R10.into()));
        insns.push(Insn::Alu {
            width: Width::W64,
            op: AluOp::Add,
            dst: reg,
            operand: i32::from(offset).into(),
        });
    };
    let helper = match (out, random.below(5)) {
        (false, 0) => Helper::CpuId,
        (false, 1) => {
            insns.push(set(Reg::R1, scalar.into()));
            Helper::Log2
        }
        (false, 2) => {
            map(insns, 0);
            let index = random.below(70) as i32;
            let delta = random.of(&[1, -1, 5, i32::MIN]);
            let from = match random.below(3) {
                0 => Operand::Imm(index),
                _ => scalar.into(),
            };
            insns.push(set(Reg::R2, from));
            let delta = match random.below(2) {
                0 => Operand::Imm(delta),
                _ => random.of(&[Reg::R0, Reg::R7]).into(),
            };
            insns.push(set(Reg::R3, delta));
            Helper::Add
        }
        (false, 3) => random.of(&[Helper::PidTgid, Helper::NotRecording]),
        (false, _) => {
            insns.push(set(Reg::R1, scalar.into()));
            insns.push(Insn::Call {
                helper: Helper::Log2,
            });
            map(insns, 0);
            insns.push(set(Reg::R2, Reg::R0.into()));
            insns.push(set(Reg::R3, 1.into()));
            Helper::Add
        }
        (true, 0) => {
            map(insns, 2);
            key(insns, Reg::R2);
            insns.push(set(Reg::R3, random.of(&[Reg::R0, Reg::R7]).into()));
            Helper::AddByKey
        }
        (true, 1) => {
            map(insns, 2);
            key(insns, Reg::R2);
            insns.push(set(Reg::R3, (random.below(3) as i32).into()));
            random.of(&[
                Helper::MapDelete,
                Helper::DeleteOfCpus,
                Helper::UseKey,
                Helper::SumOfCpus,
                Helper::MostOfCpus,
            ])
        }
        (true, 2) => {
            insns.push(set(Reg::R3, scalar.into()));
            key(insns, Reg::R1);
            insns.push(set(Reg::R2, 8.into()));
            random.of(&[Helper::ReadKernel, Helper::ReadUserStr])
        }
        (true, 3) => {
            insns.push(set(Reg::R1, scalar.into()));
            insns.push(set(Reg::R2, 20.into()));
            Helper::StrLen
        }
        (true, _) => {
            key(insns, Reg::R1);
            insns.push(set(Reg::R2, 8.into()));
            Helper::Comm
        }
    };
    insns.push(Insn::Call { helper });
}
