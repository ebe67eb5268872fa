//! Instructions as text, in the form that BPF's tools print: `r2 = *(u64 *)(r1 + 112)`.
//!
//! `r0` to `r10` are 64 bits of a register, `w0` to `w10` its lower 32. A jump names the number of
//! the instruction that it leads to, as refusals do.

use core::fmt::{Display, Formatter, Result};

use crate::{AluOp, AtomicOp, Condition, Helper, Insn, MapIndex, Operand, Reg, Size, Swap, Width};

impl Display for Reg {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "r{}", self.number())
    }
}

impl Display for MapIndex {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "map {}", self.0)
    }
}

impl Display for Helper {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Self::MapLookup => "map_lookup",
            Self::MapUpdate => "map_update",
            Self::MapDelete => "map_delete",
            Self::CpuId => "cpu_id",
            Self::PidTgid => "pid_tgid",
            Self::Comm => "comm",
            Self::StackId => "stack_id",
            Self::ReadUser => "read_user",
            Self::ReadKernel => "read_kernel",
            Self::ReadUserStr => "read_user_str",
            Self::ReadKernelStr => "read_kernel_str",
            Self::RingReserve => "ring_reserve",
            Self::RingSubmit => "ring_submit",
            Self::RingDiscard => "ring_discard",
            Self::FuncIp => "func_ip",
            Self::Tsc => "tsc",
            Self::Log2 => "log2",
            Self::Add => "add",
            Self::AddByKey => "add_by_key",
            Self::EventReserve => "event_reserve",
            Self::StrLen => "str_len",
            Self::UserStrLen => "user_str_len",
            Self::AppendStr => "append_str",
            Self::AppendUserStr => "append_user_str",
            Self::AppendBytes => "append_bytes",
            Self::EntryData => "entry_data",
            Self::ReturnAddress => "return_address",
            Self::Trigger => "trigger",
            Self::NotRecording => "not_recording",
            Self::SumOfCpus => "sum_of_cpus",
            Self::MostOfCpus => "most_of_cpus",
            Self::DeleteOfCpus => "delete_of_cpus",
            Self::NextKey => "next_key",
            Self::RecordStack => "record_stack",
            Self::CountKeys => "count_keys",
            Self::CountFrames => "count_frames",
            Self::ReadPart => "read_part",
            Self::ReadUserPart => "read_user_part",
            Self::CanRead => "can_read",
            Self::AimWatch => "aim_watch",
            Self::WatchedAddress => "watched_address",
            Self::UseKey => "use_key",
            Self::TrueAddress => "true_address",
        })
    }
}

/// A register as an operation of that width names it.
struct Named(Width, Reg);

impl Display for Named {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let letter = match self.0 {
            Width::W32 => 'w',
            Width::W64 => 'r',
        };
        write!(f, "{letter}{}", self.1.number())
    }
}

/// An operand as an operation of that width names it.
struct Second(Width, Operand);

impl Display for Second {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.1 {
            Operand::Reg(reg) => Named(self.0, reg).fmt(f),
            Operand::Imm(imm) => imm.fmt(f),
        }
    }
}

/// `(u64 *)(r1 + 112)`.
struct Place {
    signed: bool,
    size: Size,
    base: Reg,
    offset: i16,
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self {
            signed,
            size,
            base,
            offset,
        } = self;
        let letter = if *signed { 's' } else { 'u' };
        let bits = size.bytes() * 8;
        let sign = if *offset < 0 { '-' } else { '+' };
        let distance = offset.unsigned_abs();
        write!(f, "({letter}{bits} *)({base} {sign} {distance})")
    }
}

const fn sign_of(op: AluOp) -> &'static str {
    match op {
        AluOp::Mov => "=",
        AluOp::Add => "+=",
        AluOp::Sub => "-=",
        AluOp::Mul => "*=",
        AluOp::Div => "/=",
        AluOp::SignedDiv => "s/=",
        AluOp::Mod => "%=",
        AluOp::SignedMod => "s%=",
        AluOp::And => "&=",
        AluOp::Or => "|=",
        AluOp::Xor => "^=",
        AluOp::ShiftLeft => "<<=",
        AluOp::ShiftRight => ">>=",
        AluOp::ShiftRightSigned => "s>>=",
    }
}

const fn sign_of_condition(condition: Condition) -> &'static str {
    match condition {
        Condition::Equal => "==",
        Condition::NotEqual => "!=",
        Condition::AnyBit => "&",
        Condition::Above => ">",
        Condition::AboveOrEqual => ">=",
        Condition::Below => "<",
        Condition::BelowOrEqual => "<=",
        Condition::Greater => "s>",
        Condition::GreaterOrEqual => "s>=",
        Condition::Less => "s<",
        Condition::LessOrEqual => "s<=",
    }
}

impl Display for Insn {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match *self {
            Self::Alu {
                width,
                op,
                dst,
                operand,
            } => {
                let (dst, sign, operand) = (Named(width, dst), sign_of(op), Second(width, operand));
                write!(f, "{dst} {sign} {operand}")
            }
            Self::Negate { width, dst } => {
                let dst = Named(width, dst);
                write!(f, "{dst} = -{dst}")
            }
            Self::SignExtend {
                width,
                bits,
                dst,
                src,
            } => write!(f, "{} = (s{bits}){}", Named(width, dst), Named(width, src)),
            Self::Swap { swap, bits, dst } => {
                let name = match swap {
                    Swap::ToLittle => "le",
                    Swap::ToBig => "be",
                    Swap::Always => "bswap",
                };
                write!(f, "{dst} = {name}{bits} {dst}")
            }
            Self::LoadImm { dst, value } => write!(f, "{dst} = {value:#x} ll"),
            Self::LoadMap { dst, map } => write!(f, "{dst} = {map}"),
            Self::Load {
                dst,
                base,
                offset,
                size,
                signed,
            } => {
                let place = Place {
                    signed,
                    size,
                    base,
                    offset,
                };
                write!(f, "{dst} = *{place}")
            }
            Self::Store {
                base,
                offset,
                size,
                value,
            } => {
                let place = Place {
                    signed: false,
                    size,
                    base,
                    offset,
                };
                write!(f, "*{place} = {}", Second(Width::W64, value))
            }
            Self::Atomic {
                op,
                base,
                offset,
                size,
                reg,
            } => {
                let place = Place {
                    signed: false,
                    size,
                    base,
                    offset,
                };
                let (fetch, sign, name) = match op {
                    AtomicOp::Add { fetch } => (fetch, "+=", "atomic_fetch_add"),
                    AtomicOp::Or { fetch } => (fetch, "|=", "atomic_fetch_or"),
                    AtomicOp::And { fetch } => (fetch, "&=", "atomic_fetch_and"),
                    AtomicOp::Xor { fetch } => (fetch, "^=", "atomic_fetch_xor"),
                    AtomicOp::Exchange => (true, "", "xchg"),
                    AtomicOp::CompareExchange => {
                        return write!(f, "r0 = cmpxchg({place}, r0, {reg})");
                    }
                };
                if fetch {
                    write!(f, "{reg} = {name}({place}, {reg})")
                } else {
                    write!(f, "lock *{place} {sign} {reg}")
                }
            }
            Self::Jump { target } => write!(f, "goto {}", target.0),
            Self::Branch {
                width,
                condition,
                dst,
                operand,
                target,
            } => write!(
                f,
                "if {} {} {} goto {}",
                Named(width, dst),
                sign_of_condition(condition),
                Second(width, operand),
                target.0
            ),
            Self::Call { helper } => write!(f, "call {helper}"),
            Self::Exit => f.write_str("exit"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Target;
    use Reg::*;

    #[test]
    fn each_instruction_prints_in_the_form_of_bpf() {
        let alu = |width, op, operand| Insn::Alu {
            width,
            op,
            dst: R1,
            operand,
        };
        let load = |offset, size, signed| Insn::Load {
            dst: R2,
            base: R1,
            offset,
            size,
            signed,
        };
        let store = |size, value| Insn::Store {
            base: R10,
            offset: -8,
            size,
            value,
        };
        let atomic = |op| Insn::Atomic {
            op,
            base: R1,
            offset: 0,
            size: Size::B4,
            reg: R2,
        };
        let branch = |width, condition, operand| Insn::Branch {
            width,
            condition,
            dst: R3,
            operand,
            target: Target(12),
        };
        let swap = |swap, bits| Insn::Swap {
            swap,
            bits,
            dst: R4,
        };
        let cases = [
            (alu(Width::W64, AluOp::Mov, Operand::Imm(-5)), "r1 = -5"),
            (alu(Width::W32, AluOp::Add, Operand::Reg(R2)), "w1 += w2"),
            (alu(Width::W64, AluOp::Sub, Operand::Reg(R2)), "r1 -= r2"),
            (alu(Width::W64, AluOp::Mul, Operand::Imm(3)), "r1 *= 3"),
            (alu(Width::W64, AluOp::Div, Operand::Imm(3)), "r1 /= 3"),
            (
                alu(Width::W64, AluOp::SignedDiv, Operand::Imm(3)),
                "r1 s/= 3",
            ),
            (alu(Width::W64, AluOp::Mod, Operand::Imm(3)), "r1 %= 3"),
            (
                alu(Width::W64, AluOp::SignedMod, Operand::Imm(3)),
                "r1 s%= 3",
            ),
            (alu(Width::W64, AluOp::And, Operand::Imm(3)), "r1 &= 3"),
            (alu(Width::W64, AluOp::Or, Operand::Imm(3)), "r1 |= 3"),
            (alu(Width::W64, AluOp::Xor, Operand::Imm(3)), "r1 ^= 3"),
            (
                alu(Width::W64, AluOp::ShiftLeft, Operand::Imm(3)),
                "r1 <<= 3",
            ),
            (
                alu(Width::W64, AluOp::ShiftRight, Operand::Imm(3)),
                "r1 >>= 3",
            ),
            (
                alu(Width::W64, AluOp::ShiftRightSigned, Operand::Imm(3)),
                "r1 s>>= 3",
            ),
            (
                Insn::Negate {
                    width: Width::W32,
                    dst: R7,
                },
                "w7 = -w7",
            ),
            (
                Insn::SignExtend {
                    width: Width::W64,
                    bits: 8,
                    dst: R1,
                    src: R2,
                },
                "r1 = (s8)r2",
            ),
            (swap(Swap::ToLittle, 16), "r4 = le16 r4"),
            (swap(Swap::ToBig, 32), "r4 = be32 r4"),
            (swap(Swap::Always, 64), "r4 = bswap64 r4"),
            (
                Insn::LoadImm {
                    dst: R1,
                    value: 0x1234_5678_9abc,
                },
                "r1 = 0x123456789abc ll",
            ),
            (
                Insn::LoadMap {
                    dst: R1,
                    map: MapIndex(3),
                },
                "r1 = map 3",
            ),
            (load(112, Size::B8, false), "r2 = *(u64 *)(r1 + 112)"),
            (load(-1, Size::B1, true), "r2 = *(s8 *)(r1 - 1)"),
            (load(i16::MIN, Size::B2, true), "r2 = *(s16 *)(r1 - 32768)"),
            (store(Size::B4, Operand::Imm(7)), "*(u32 *)(r10 - 8) = 7"),
            (store(Size::B8, Operand::Reg(R6)), "*(u64 *)(r10 - 8) = r6"),
            (
                atomic(AtomicOp::Add { fetch: false }),
                "lock *(u32 *)(r1 + 0) += r2",
            ),
            (
                atomic(AtomicOp::Or { fetch: true }),
                "r2 = atomic_fetch_or((u32 *)(r1 + 0), r2)",
            ),
            (
                atomic(AtomicOp::And { fetch: true }),
                "r2 = atomic_fetch_and((u32 *)(r1 + 0), r2)",
            ),
            (
                atomic(AtomicOp::Xor { fetch: false }),
                "lock *(u32 *)(r1 + 0) ^= r2",
            ),
            (atomic(AtomicOp::Exchange), "r2 = xchg((u32 *)(r1 + 0), r2)"),
            (
                atomic(AtomicOp::CompareExchange),
                "r0 = cmpxchg((u32 *)(r1 + 0), r0, r2)",
            ),
            (Insn::Jump { target: Target(9) }, "goto 9"),
            (
                branch(Width::W64, Condition::Equal, Operand::Imm(0)),
                "if r3 == 0 goto 12",
            ),
            (
                branch(Width::W32, Condition::Less, Operand::Reg(R4)),
                "if w3 s< w4 goto 12",
            ),
            (
                branch(Width::W64, Condition::AnyBit, Operand::Imm(8)),
                "if r3 & 8 goto 12",
            ),
            (
                Insn::Call {
                    helper: Helper::MapLookup,
                },
                "call map_lookup",
            ),
            (Insn::Exit, "exit"),
        ];
        for (insn, text) in cases {
            assert_eq!(insn.to_string(), text);
        }
    }

    #[test]
    fn no_two_helpers_conditions_or_operations_share_a_name() {
        let mut names: Vec<_> = Helper::ALL
            .iter()
            .map(|helper| helper.to_string())
            .collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), Helper::ALL.len());
    }
}
