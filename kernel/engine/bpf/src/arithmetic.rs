//! The meaning of arithmetic and of comparisons, as RFC 9669 gives it: pure functions of numbers.
//!
//! Code that folds constants uses them, and so does the interpreter of the tests. Nothing here can
//! fail, because division by zero and the overflow of a signed division have results.

use crate::{AluOp, Condition, Swap, Width};

impl Width {
    /// The bits of a shift's count that matter.
    const fn shift_mask(self) -> u64 {
        match self {
            Self::W32 => 31,
            Self::W64 => 63,
        }
    }

    /// `value` as a register holds it after an operation of this width.
    pub const fn truncate(self, value: u64) -> u64 {
        match self {
            Self::W32 => value as u32 as u64,
            Self::W64 => value,
        }
    }

    /// `value` at this width, as a signed number.
    pub const fn signed(self, value: u64) -> i64 {
        match self {
            Self::W32 => value as i32 as i64,
            Self::W64 => value as i64,
        }
    }
}

impl AluOp {
    /// `dst OP operand` at that width. `operand` is sign-extended already.
    pub const fn apply(self, width: Width, dst: u64, operand: u64) -> u64 {
        let (a, b) = (width.truncate(dst), width.truncate(operand));
        let (signed_a, signed_b) = (width.signed(dst), width.signed(operand));
        let count = (b & width.shift_mask()) as u32;
        let result = match self {
            Self::Mov => b,
            Self::Add => a.wrapping_add(b),
            Self::Sub => a.wrapping_sub(b),
            Self::Mul => a.wrapping_mul(b),
            Self::Div => match a.checked_div(b) {
                Some(quotient) => quotient,
                None => 0,
            },
            Self::Mod => match a.checked_rem(b) {
                Some(remainder) => remainder,
                None => a,
            },
            // `MIN / -1` of 32 bits is 2^31 in 64 bits, whose low half is `MIN` again.
            Self::SignedDiv if signed_b == 0 => 0,
            Self::SignedDiv => signed_a.wrapping_div(signed_b) as u64,
            Self::SignedMod if signed_b == 0 => a,
            Self::SignedMod => signed_a.wrapping_rem(signed_b) as u64,
            Self::And => a & b,
            Self::Or => a | b,
            Self::Xor => a ^ b,
            Self::ShiftLeft => a << count,
            Self::ShiftRight => a >> count,
            Self::ShiftRightSigned => (signed_a >> count) as u64,
        };
        width.truncate(result)
    }
}

impl Condition {
    /// Whether `dst CONDITION operand` holds at that width. `operand` is sign-extended already.
    pub const fn holds(self, width: Width, dst: u64, operand: u64) -> bool {
        let (a, b) = (width.truncate(dst), width.truncate(operand));
        let (signed_a, signed_b) = (width.signed(dst), width.signed(operand));
        match self {
            Self::Equal => a == b,
            Self::NotEqual => a != b,
            Self::AnyBit => a & b != 0,
            Self::Above => a > b,
            Self::AboveOrEqual => a >= b,
            Self::Below => a < b,
            Self::BelowOrEqual => a <= b,
            Self::Greater => signed_a > signed_b,
            Self::GreaterOrEqual => signed_a >= signed_b,
            Self::Less => signed_a < signed_b,
            Self::LessOrEqual => signed_a <= signed_b,
        }
    }
}

impl Swap {
    /// The low `bits` of `value`, in that order; `None` unless `bits` is 16, 32 or 64.
    pub const fn apply(self, bits: u8, value: u64) -> Option<u64> {
        let reversed = match bits {
            16 => (value as u16).swap_bytes() as u64,
            32 => (value as u32).swap_bytes() as u64,
            64 => value.swap_bytes(),
            _ => return None,
        };
        Some(match self {
            Self::ToLittle => value & (u64::MAX >> (64 - bits as u32)),
            Self::ToBig | Self::Always => reversed,
        })
    }
}

/// The low `bits` of `value`, sign-extended to `width`; `None` unless `bits` is 8 or 16, or 32 at
/// 64 bits.
pub const fn sign_extend(width: Width, bits: u8, value: u64) -> Option<u64> {
    let extended = match (bits, width) {
        (8, _) => value as i8 as i64,
        (16, _) => value as i16 as i64,
        (32, Width::W64) => value as i32 as i64,
        _ => return None,
    };
    Some(width.truncate(extended as u64))
}
