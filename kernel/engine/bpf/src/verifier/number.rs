//! Sets of numbers: what the verifier knows about a number in a register.
//!
//! A [`Number`] stands for all 64-bit numbers that are between its unsigned bounds, between its
//! signed bounds, and that have its known bits. Each operation on sets gives a set that contains
//! the result of the operation on any members. It may contain more, never less: that is the one
//! rule of this file, and the tests compare each operation with the processor's.
//!
//! Bounds and bits tell different things. `r1 < 60` is bounds; `r1 & ~7` is bits. Whenever one of
//! the three changes, [`Number::settled`] carries to the others what it tells about them.
//!
//! A set with no members has no [`Number`]: a path on which one would appear is never taken.

use core::fmt;

use crate::{AluOp, Swap, Width};

/// Numbers that have the bits of `value` where `unknown` has a zero.
///
/// NUMBER-1. `value & unknown` is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bits {
    pub(super) value: u64,
    pub(super) unknown: u64,
}

impl Bits {
    const ANY: Self = Self::new(0, u64::MAX);

    /// Where `unknown` has a one, `value` is ignored.
    const fn new(value: u64, unknown: u64) -> Self {
        Self {
            value: value & !unknown,
            unknown,
        }
    }

    const fn constant(value: u64) -> Self {
        Self::new(value, 0)
    }

    /// The bits that all numbers from `least` to `most` share: those above the highest in which
    /// these two differ.
    const fn between(least: u64, most: u64) -> Self {
        let different = least ^ most;
        let unknown = match different.leading_zeros() {
            64 => 0,
            shared => u64::MAX >> shared,
        };
        Self::new(least, unknown)
    }

    /// The greatest member.
    const fn most(self) -> u64 {
        self.value | self.unknown
    }

    const fn contains(self, number: u64) -> bool {
        number & !self.unknown == self.value
    }

    /// The numbers in both.
    fn meet(self, other: Self) -> Option<Self> {
        let known_in_both = !self.unknown & !other.unknown;
        if (self.value ^ other.value) & known_in_both != 0 {
            return None;
        }
        Some(Self::new(
            self.value | other.value,
            self.unknown & other.unknown,
        ))
    }

    /// `self + other + carry`.
    ///
    /// A sum's bit is known if both summands' bits and the carry into it are. A carry can only grow
    /// with the summands, so it is known where the least and the greatest summands agree in it.
    const fn add(self, other: Self, carry: u64) -> Self {
        let least = self.value.wrapping_add(other.value).wrapping_add(carry);
        let most = self.most().wrapping_add(other.most()).wrapping_add(carry);
        let least_carries = least ^ self.value ^ other.value;
        let most_carries = most ^ self.most() ^ other.most();
        Self::new(
            least,
            self.unknown | other.unknown | (least_carries ^ most_carries),
        )
    }

    const fn not(self) -> Self {
        Self::new(!self.value, self.unknown)
    }

    /// `self - other`, which is `self + !other + 1`.
    const fn sub(self, other: Self) -> Self {
        self.add(other.not(), 1)
    }

    const fn and(self, other: Self) -> Self {
        let zero = !self.most() | !other.most();
        Self::new(
            self.value & other.value,
            (self.unknown | other.unknown) & !zero,
        )
    }

    const fn or(self, other: Self) -> Self {
        let one = self.value | other.value;
        Self::new(one, (self.unknown | other.unknown) & !one)
    }

    const fn xor(self, other: Self) -> Self {
        Self::new(self.value ^ other.value, self.unknown | other.unknown)
    }

    /// The low bits of a product are known as far as the factors' are: above the zeros that both
    /// end with, as many as the shorter run of known bits has.
    fn mul(self, other: Self) -> Self {
        let zeros = |bits: Self| bits.most().trailing_zeros();
        let known_behind = |bits: Self| bits.unknown.trailing_zeros() - zeros(bits);
        let run = known_behind(self).min(known_behind(other));
        let known = zeros(self) + zeros(other) + run;
        let unknown = u64::MAX.checked_shl(known).unwrap_or(0);
        Self::new(self.value.wrapping_mul(other.value), unknown)
    }

    const fn shift_left(self, count: u32) -> Self {
        Self::new(self.value << count, self.unknown << count)
    }

    const fn shift_right(self, count: u32) -> Self {
        Self::new(self.value >> count, self.unknown >> count)
    }

    /// An unknown sign fills the upper bits as unknown, a known one as known.
    const fn shift_right_signed(self, count: u32) -> Self {
        Self::new(
            (self.value as i64 >> count) as u64,
            (self.unknown as i64 >> count) as u64,
        )
    }

    /// The low `bits`, the others zero.
    const fn low(self, bits: u32) -> Self {
        let kept = ones(bits);
        Self::new(self.value & kept, self.unknown & kept)
    }
}

/// A number whose low `bits` are ones, the others zero.
const fn ones(bits: u32) -> u64 {
    match bits {
        0 => 0,
        _ => u64::MAX >> (64 - bits),
    }
}

/// A set of numbers, never empty. See the module's text.
///
/// NUMBER-2. `least <= most`, `least_signed <= most_signed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    least: u64,
    most: u64,
    least_signed: i64,
    most_signed: i64,
    bits: Bits,
}

impl Number {
    /// All numbers.
    pub(super) const ANY: Self = Self {
        least: 0,
        most: u64::MAX,
        least_signed: i64::MIN,
        most_signed: i64::MAX,
        bits: Bits::ANY,
    };

    /// One number.
    pub(super) const fn constant(value: u64) -> Self {
        Self {
            least: value,
            most: value,
            least_signed: value as i64,
            most_signed: value as i64,
            bits: Bits::constant(value),
        }
    }

    /// All numbers from `least` to `most`, which is not below it.
    pub(super) fn between(least: u64, most: u64) -> Self {
        Self {
            least,
            most,
            ..Self::ANY
        }
        .settled()
        .unwrap_or(Self::ANY)
    }

    /// The same by signed bounds.
    fn between_signed(least: i64, most: i64) -> Self {
        Self {
            least_signed: least,
            most_signed: most,
            ..Self::ANY
        }
        .settled()
        .unwrap_or(Self::ANY)
    }

    /// All numbers with these bits.
    fn with_bits(bits: Bits) -> Self {
        Self { bits, ..Self::ANY }.settled().unwrap_or(Self::ANY)
    }

    /// All numbers of `bits` bits.
    pub(super) fn of_bits(bits: u32) -> Self {
        Self::between(0, ones(bits))
    }

    /// All signed numbers of `bits` bits.
    pub(super) fn of_signed_bits(bits: u32) -> Self {
        let most = (ones(bits) >> 1) as i64;
        Self::between_signed(-most - 1, most)
    }

    /// The least member, unsigned.
    pub const fn least(&self) -> u64 {
        self.least
    }

    /// The greatest member, unsigned.
    pub const fn most(&self) -> u64 {
        self.most
    }

    /// The least member, signed.
    pub const fn least_signed(&self) -> i64 {
        self.least_signed
    }

    /// The greatest member, signed.
    pub const fn most_signed(&self) -> i64 {
        self.most_signed
    }

    /// The number, if there is only one.
    pub const fn known(&self) -> Option<u64> {
        if self.least == self.most {
            Some(self.least)
        } else {
            None
        }
    }

    /// Whether `number` is a member.
    pub const fn contains(&self, number: u64) -> bool {
        self.least <= number
            && number <= self.most
            && self.least_signed <= number as i64
            && number as i64 <= self.most_signed
            && self.bits.contains(number)
    }

    /// Whether all members of `other` are members, as far as bounds and bits tell.
    pub(super) const fn includes(&self, other: &Self) -> bool {
        self.least <= other.least
            && other.most <= self.most
            && self.least_signed <= other.least_signed
            && other.most_signed <= self.most_signed
            && other.bits.unknown & !self.bits.unknown == 0
            && self.bits.contains(other.bits.value)
    }

    /// Whether all members are multiples of `step`, a power of two.
    pub(super) const fn is_multiple_of(&self, step: u64) -> bool {
        self.bits.most() & (step - 1) == 0
    }

    /// Carries what bounds and bits tell to each other. `None` if they contradict each other,
    /// because the set is empty then.
    fn settled(mut self) -> Option<Self> {
        // Bits may shorten bounds, and these may make more bits known: the second turn brings what
        // the first began with the bits that were known before it.
        for _ in 0..2 {
            const SIGN: u64 = 1 << 63;
            let bits = self.bits;
            self.least = self.least.max(bits.value);
            self.most = self.most.min(bits.most());
            let least_signed = bits.value | (bits.unknown & SIGN);
            let most_signed = bits.value | (bits.unknown & !SIGN);
            self.least_signed = self.least_signed.max(least_signed as i64);
            self.most_signed = self.most_signed.min(most_signed as i64);
            // Numbers of one sign have the same order in both senses.
            if self.least as i64 <= self.most as i64 {
                self.least_signed = self.least_signed.max(self.least as i64);
                self.most_signed = self.most_signed.min(self.most as i64);
            }
            if self.least_signed >= 0 || self.most_signed < 0 {
                self.least = self.least.max(self.least_signed as u64);
                self.most = self.most.min(self.most_signed as u64);
            }
            if self.least > self.most || self.least_signed > self.most_signed {
                return None;
            }
            self.bits = self.bits.meet(Bits::between(self.least, self.most))?;
        }
        Some(self)
    }

    /// The members of both, or a little more. `None` if there are none.
    pub(super) fn meet(self, other: Self) -> Option<Self> {
        Self {
            least: self.least.max(other.least),
            most: self.most.min(other.most),
            least_signed: self.least_signed.max(other.least_signed),
            most_signed: self.most_signed.min(other.most_signed),
            bits: self.bits.meet(other.bits)?,
        }
        .settled()
    }

    /// The members that both have: facts about one operation's result. Both are right, so there is
    /// at least one.
    fn and_also(self, other: Self) -> Self {
        self.meet(other).unwrap_or(self)
    }

    /// The members that are at most `most`. `None` if there are none.
    pub(super) fn at_most(self, most: u64) -> Option<Self> {
        self.meet(Self::between(0, most))
    }

    pub(super) fn at_least(self, least: u64) -> Option<Self> {
        self.meet(Self::between(least, u64::MAX))
    }

    pub(super) fn at_most_signed(self, most: i64) -> Option<Self> {
        self.meet(Self::between_signed(i64::MIN, most))
    }

    pub(super) fn at_least_signed(self, least: i64) -> Option<Self> {
        self.meet(Self::between_signed(least, i64::MAX))
    }

    /// The members of which the lower half, zero-extended or sign-extended, is one of `half`.
    pub(super) fn with_low_half(self, half: Self) -> Option<Self> {
        let extended = half.sign_extended(32);
        let half = half.low(32);
        let bits = Bits::new(half.bits.value, half.bits.unknown | !ones(32));
        let mut members = Self {
            bits: self.bits.meet(bits)?,
            ..self
        };
        // The bounds of the half are those of the number if the upper half is known.
        let upper = self.least & !ones(32);
        if upper == self.most & !ones(32) {
            members.least = self.least.max(upper | half.least);
            members.most = self.most.min(upper | half.most);
        }
        // The same for the signed bounds: `-5 to 5` has two upper halves, `-5 to -1` has one.
        let members = members.settled()?;
        let range = Self::of_signed_bits(32);
        if range.least_signed <= self.least_signed && self.most_signed <= range.most_signed {
            return members.meet(extended);
        }
        Some(members)
    }

    /// The members that have one of these bits or more.
    pub(super) fn with_any_of(self, bits: u64) -> Option<Self> {
        if self.bits.most() & bits == 0 {
            return None;
        }
        match bits.is_power_of_two() {
            true => self.meet(Self::with_bits(Bits::new(bits, !bits))),
            false => self.meet(Self::between(1, u64::MAX)),
        }
    }

    /// The members that have none of these bits.
    pub(super) fn with_none_of(self, bits: u64) -> Option<Self> {
        self.meet(Self::with_bits(Bits::new(0, !bits)))
    }

    /// The set without that number, if it is at an end.
    pub(super) fn without(self, number: u64) -> Option<Self> {
        if self.known() == Some(number) {
            return None;
        }
        let mut rest = self;
        if rest.least == number {
            rest.least = number.checked_add(1)?;
        }
        if rest.most == number {
            rest.most = number.checked_sub(1)?;
        }
        if rest.least_signed == number as i64 {
            rest.least_signed = rest.least_signed.checked_add(1)?;
        }
        if rest.most_signed == number as i64 {
            rest.most_signed = rest.most_signed.checked_sub(1)?;
        }
        rest.settled()
    }

    pub(super) fn add(self, other: Self) -> Self {
        let mut sum = Self::with_bits(self.bits.add(other.bits, 0));
        let least = self.least.checked_add(other.least);
        if let (Some(least), Some(most)) = (least, self.most.checked_add(other.most)) {
            sum = sum.and_also(Self::between(least, most));
        }
        let least = self.least_signed.checked_add(other.least_signed);
        if let (Some(least), Some(most)) = (least, self.most_signed.checked_add(other.most_signed))
        {
            sum = sum.and_also(Self::between_signed(least, most));
        }
        sum
    }

    pub(super) fn sub(self, other: Self) -> Self {
        let mut difference = Self::with_bits(self.bits.sub(other.bits));
        let least = self.least.checked_sub(other.most);
        if let (Some(least), Some(most)) = (least, self.most.checked_sub(other.least)) {
            difference = difference.and_also(Self::between(least, most));
        }
        let least = self.least_signed.checked_sub(other.most_signed);
        if let (Some(least), Some(most)) = (least, self.most_signed.checked_sub(other.least_signed))
        {
            difference = difference.and_also(Self::between_signed(least, most));
        }
        difference
    }

    fn mul(self, other: Self) -> Self {
        let mut product = Self::with_bits(self.bits.mul(other.bits));
        let least = self.least.checked_mul(other.least);
        if let (Some(least), Some(most)) = (least, self.most.checked_mul(other.most)) {
            product = product.and_also(Self::between(least, most));
        }
        // The extremes of a product are at the ends of its factors.
        let ends = [
            self.least_signed.checked_mul(other.least_signed),
            self.least_signed.checked_mul(other.most_signed),
            self.most_signed.checked_mul(other.least_signed),
            self.most_signed.checked_mul(other.most_signed),
        ];
        if let [Some(a), Some(b), Some(c), Some(d)] = ends {
            let (least, most) = (a.min(b).min(c).min(d), a.max(b).max(c).max(d));
            product = product.and_also(Self::between_signed(least, most));
        }
        product
    }

    fn div(self, other: Self) -> Self {
        // Division by zero gives zero.
        let least = if other.least == 0 {
            0
        } else {
            self.least / other.most
        };
        Self::between(least, self.most / other.least.max(1))
    }

    fn signed_div(self, other: Self) -> Self {
        if self.least_signed >= 0 && other.least_signed >= 0 {
            return self.div(other);
        }
        // No quotient is further from zero than the dividend. `MIN / -1` is `MIN`.
        let distance = self
            .least_signed
            .unsigned_abs()
            .max(self.most_signed.unsigned_abs());
        i64::try_from(distance).map_or(Self::ANY, |most| Self::between_signed(-most, most))
    }

    fn modulo(self, other: Self) -> Self {
        if self.most < other.least {
            return self;
        }
        // The remainder of zero gives the dividend.
        let most = match other.least {
            0 => self.most,
            _ => self.most.min(other.most - 1),
        };
        Self::between(0, most)
    }

    fn signed_modulo(self, other: Self) -> Self {
        if self.least_signed >= 0 && other.least_signed >= 0 {
            return self.modulo(other);
        }
        // A remainder has the sign of the dividend, or is zero, and is not further from zero.
        let remainder = Self::between_signed(self.least_signed.min(0), self.most_signed.max(0));
        match other.known().map(|divisor| (divisor as i64).unsigned_abs()) {
            None | Some(0) => remainder,
            Some(divisor) => {
                let most = (divisor - 1) as i64;
                remainder.and_also(Self::between_signed(-most, most))
            }
        }
    }

    fn and(self, other: Self) -> Self {
        if let Some(mask) = other.known()
            && self.bits.most() & !mask == 0
        {
            return self;
        }
        Self::with_bits(self.bits.and(other.bits))
            .and_also(Self::between(0, self.most.min(other.most)))
    }

    pub(super) fn or(self, other: Self) -> Self {
        if self.bits.most() & other.bits.most() == 0 {
            return self.add(other);
        }
        Self::with_bits(self.bits.or(other.bits))
            .and_also(Self::between(self.least.max(other.least), u64::MAX))
    }

    fn xor(self, other: Self) -> Self {
        if self.bits.most() & other.bits.most() == 0 {
            return self.add(other);
        }
        Self::with_bits(self.bits.xor(other.bits))
    }

    /// `count` has members below 64 only.
    fn shift_left(self, count: Self) -> Self {
        let (least, most) = (count.least as u32, count.most as u32);
        let bits = match count.known() {
            Some(_) => self.bits.shift_left(least),
            None => Bits::new(0, u64::MAX << least),
        };
        let shifted = Self::with_bits(bits);
        if self.most.leading_zeros() < most {
            return shifted;
        }
        shifted.and_also(Self::between(self.least << least, self.most << most))
    }

    /// `count` has members below 64 only.
    fn shift_right(self, count: Self) -> Self {
        let (least, most) = (count.least as u32, count.most as u32);
        let shifted = Self::between(self.least >> most, self.most >> least);
        match count.known() {
            Some(_) => shifted.and_also(Self::with_bits(self.bits.shift_right(least))),
            None => shifted,
        }
    }

    /// `count` has members below 64 only.
    fn shift_right_signed(self, count: Self) -> Self {
        // A negative number grows by a shift, the others shrink.
        let (fewest, furthest) = (count.least as u32, count.most as u32);
        let by = |number: i64, grows: bool| number >> if grows { fewest } else { furthest };
        let shifted = Self::between_signed(
            by(self.least_signed, self.least_signed < 0),
            by(self.most_signed, self.most_signed >= 0),
        );
        match count.known() {
            Some(_) => shifted.and_also(Self::with_bits(self.bits.shift_right_signed(fewest))),
            None => shifted,
        }
    }

    /// The low `bits`, the others zero.
    pub(super) fn low(self, bits: u32) -> Self {
        let kept = ones(bits);
        let low = Self::with_bits(self.bits.low(bits));
        if self.least & !kept == self.most & !kept {
            return low.and_also(Self::between(self.least & kept, self.most & kept));
        }
        let (least, most) = (self.least_signed as u64, self.most_signed as u64);
        if least & !kept == most & !kept {
            return low.and_also(Self::between(least & kept, most & kept));
        }
        low
    }

    /// The set with zeros for the bits that are not in `mask`.
    pub(super) fn masked(self, mask: u64) -> Self {
        self.and(Self::constant(mask))
    }

    /// All numbers with bits of `mask` only.
    pub(super) fn of_mask(mask: u64) -> Self {
        Self::with_bits(Bits::new(0, mask))
    }

    /// `bits` of it from bit `first`, below 64, on.
    pub(super) fn field(self, first: u32, bits: u32) -> Self {
        self.shift_right(Self::constant(first.into())).low(bits)
    }

    /// The set moved up by `count` bits, below 64.
    pub(super) fn moved(self, count: u32) -> Self {
        self.shift_left(Self::constant(count.into()))
    }

    /// The low `bits`, 1 to 64, sign-extended.
    pub(super) fn sign_extended(self, bits: u32) -> Self {
        let range = Self::of_signed_bits(bits);
        if range.least_signed <= self.least_signed && self.most_signed <= range.most_signed {
            return self;
        }
        let low = self.low(bits);
        let sign = 1 << (bits - 1);
        if low.most < sign {
            return low;
        }
        if low.least >= sign {
            return low.sub(Self::constant(sign)).sub(Self::constant(sign));
        }
        let rest = 64 - bits;
        let extended = self.bits.shift_left(rest).shift_right_signed(rest);
        range.and_also(Self::with_bits(extended))
    }

    pub(super) fn negated(self, width: Width) -> Self {
        Self::constant(0).alu(width, AluOp::Sub, self)
    }

    pub(super) fn swapped(self, swap: Swap, bits: u32) -> Self {
        let low = self.low(bits);
        if swap == Swap::ToLittle {
            return low;
        }
        let reversed = |number: u64| number.swap_bytes() >> (64 - bits);
        Self::with_bits(Bits::new(
            reversed(low.bits.value),
            reversed(low.bits.unknown),
        ))
    }

    /// `self OP other`.
    pub(super) fn alu(self, width: Width, op: AluOp, other: Self) -> Self {
        if let (Some(a), Some(b)) = (self.known(), other.known()) {
            return Self::constant(op.apply(width, a, b));
        }
        match width {
            Width::W64 => self.operate(op, other, 6),
            Width::W32 => {
                let signed = matches!(
                    op,
                    AluOp::SignedDiv | AluOp::SignedMod | AluOp::ShiftRightSigned
                );
                let half = |number: Self| match signed {
                    true => number.sign_extended(32),
                    false => number.low(32),
                };
                half(self).operate(op, half(other), 5).low(32)
            }
        }
    }

    /// Applies `op`. Only the low `count_bits` of a count matter.
    fn operate(self, op: AluOp, other: Self, count_bits: u32) -> Self {
        match op {
            AluOp::Mov => other,
            AluOp::Add => self.add(other),
            AluOp::Sub => self.sub(other),
            AluOp::Mul => self.mul(other),
            AluOp::Div => self.div(other),
            AluOp::SignedDiv => self.signed_div(other),
            AluOp::Mod => self.modulo(other),
            AluOp::SignedMod => self.signed_modulo(other),
            AluOp::And => self.and(other),
            AluOp::Or => self.or(other),
            AluOp::Xor => self.xor(other),
            AluOp::ShiftLeft => self.shift_left(other.low(count_bits)),
            AluOp::ShiftRight => self.shift_right(other.low(count_bits)),
            AluOp::ShiftRightSigned => self.shift_right_signed(other.low(count_bits)),
        }
    }
}

/// "12", "0 to 255", "-8 to 7", "multiples of 8", "any number".
impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let small = |number: i64| number.unsigned_abs() < 1 << 32;
        if let Some(number) = self.known() {
            return match small(number as i64) {
                true => write!(f, "{}", number as i64),
                false => write!(f, "{number:#x}"),
            };
        }
        if self.least_signed < 0 && self.least_signed > i64::MIN && self.most_signed < i64::MAX {
            return write!(f, "{} to {}", self.least_signed, self.most_signed);
        }
        match (self.least, self.most) {
            (0, u64::MAX) => f.write_str("any number"),
            (least, u64::MAX) => write!(f, "{least} or more"),
            (least, most) if small(most as i64) => write!(f, "{least} to {most}"),
            (least, most) => write!(f, "{least:#x} to {most:#x}"),
        }
    }
}

#[cfg(test)]
mod tests;
