//! The facts that a branch tells about the two numbers that it compares.

use super::number::Number;
use crate::{Condition, Width};

/// The facts where a branch leads to: the numbers for which it goes there, or nothing if it never
/// goes there.
pub(super) type Known = Option<(Number, Number)>;

/// The facts where the branch is taken.
pub(super) fn taken(width: Width, condition: Condition, a: Number, b: Number) -> Known {
    at_width(width, a, b, is_signed(condition), |a, b| {
        holds(condition, a, b)
    })
}

/// The facts where the branch is not taken.
pub(super) fn not_taken(width: Width, condition: Condition, a: Number, b: Number) -> Known {
    at_width(width, a, b, is_signed(condition), |a, b| match condition {
        Condition::AnyBit => without_bits(a, b),
        Condition::Equal => holds(Condition::NotEqual, a, b),
        Condition::NotEqual => holds(Condition::Equal, a, b),
        Condition::Above => holds(Condition::BelowOrEqual, a, b),
        Condition::AboveOrEqual => holds(Condition::Below, a, b),
        Condition::Below => holds(Condition::AboveOrEqual, a, b),
        Condition::BelowOrEqual => holds(Condition::Above, a, b),
        Condition::Greater => holds(Condition::LessOrEqual, a, b),
        Condition::GreaterOrEqual => holds(Condition::Less, a, b),
        Condition::Less => holds(Condition::GreaterOrEqual, a, b),
        Condition::LessOrEqual => holds(Condition::Greater, a, b),
    })
}

const fn is_signed(condition: Condition) -> bool {
    matches!(
        condition,
        Condition::Greater | Condition::GreaterOrEqual | Condition::Less | Condition::LessOrEqual
    )
}

/// A branch of 32 bits compares the lower halves. Its finding about a half holds for the number
/// that has this half.
fn at_width(
    width: Width,
    a: Number,
    b: Number,
    signed: bool,
    refine: impl Fn(Number, Number) -> Known,
) -> Known {
    match width {
        Width::W64 => refine(a, b),
        Width::W32 => {
            let half = |number: Number| match signed {
                true => number.sign_extended(32),
                false => number.low(32),
            };
            let (low_a, low_b) = refine(half(a), half(b))?;
            Some((a.with_low_half(low_a)?, b.with_low_half(low_b)?))
        }
    }
}

fn holds(condition: Condition, a: Number, b: Number) -> Known {
    match condition {
        Condition::Equal => a.meet(b).map(|both| (both, both)),
        Condition::NotEqual => {
            let a_rest = match b.known() {
                Some(number) => a.without(number)?,
                None => a,
            };
            let b_rest = match a.known() {
                Some(number) => b.without(number)?,
                None => b,
            };
            Some((a_rest, b_rest))
        }
        Condition::AnyBit => match b.known() {
            Some(bits) => Some((a.with_any_of(bits)?, b)),
            None => Some((a, b)),
        },
        Condition::Above => below(b, a).map(|(b, a)| (a, b)),
        Condition::AboveOrEqual => at_most(b, a).map(|(b, a)| (a, b)),
        Condition::Below => below(a, b),
        Condition::BelowOrEqual => at_most(a, b),
        Condition::Greater => less(b, a).map(|(b, a)| (a, b)),
        Condition::GreaterOrEqual => at_most_signed(b, a).map(|(b, a)| (a, b)),
        Condition::Less => less(a, b),
        Condition::LessOrEqual => at_most_signed(a, b),
    }
}

fn without_bits(a: Number, b: Number) -> Known {
    match b.known() {
        Some(bits) => Some((a.with_none_of(bits)?, b)),
        None => Some((a, b)),
    }
}

fn below(a: Number, b: Number) -> Known {
    Some((
        a.at_most(b.most().checked_sub(1)?)?,
        b.at_least(a.least().checked_add(1)?)?,
    ))
}

fn at_most(a: Number, b: Number) -> Known {
    Some((a.at_most(b.most())?, b.at_least(a.least())?))
}

fn less(a: Number, b: Number) -> Known {
    Some((
        a.at_most_signed(b.most_signed().checked_sub(1)?)?,
        b.at_least_signed(a.least_signed().checked_add(1)?)?,
    ))
}

fn at_most_signed(a: Number, b: Number) -> Known {
    Some((
        a.at_most_signed(b.most_signed())?,
        b.at_least_signed(a.least_signed())?,
    ))
}
