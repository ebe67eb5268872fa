//! Arithmetic of numbers of the text, which is exact.
//!
//! What a calculation of a hit does at the ends of its 64 bits, the text's own numbers do not: a
//! result that has no 64 bits, a division by zero and a shift by more than there is to shift are
//! mistakes of the text, and are refused.

use trace_language::{
    Diagnostic,
    tree::{Binary, Expression, ExpressionKind, Unary},
};

use super::{Val, Values};
use crate::{
    Lowered,
    number::{Kind, Number, Test},
};

/// The number that an expression is which has numbers of the text only. None: it has others, or is
/// a comparison or the like.
///
/// # Errors
/// Refuses a calculation without a result, at its place.
pub(super) fn exact(expression: &Expression) -> Lowered<Option<i128>> {
    let refuse = |cause: &str, help: &'static str| Diagnostic::new(expression.span, cause, help);
    let too_large = || {
        refuse(
            "this number does not fit into 64 bits",
            "numbers are those from -9223372036854775808 to 18446744073709551615",
        )
    };
    let number = match &expression.kind {
        ExpressionKind::Integer(number) => i128::from(*number),
        ExpressionKind::Boolean(is) => i128::from(*is),
        ExpressionKind::Unary {
            operation: Unary::Negate,
            operand,
        } => match exact(operand)? {
            Some(number) => -number,
            None => return Ok(None),
        },
        ExpressionKind::Binary {
            operation,
            left,
            right,
        } => {
            if operation.is_comparison() || matches!(operation, Binary::And | Binary::Or) {
                return Ok(None);
            }
            let (Some(a), Some(b)) = (exact(left)?, exact(right)?) else {
                return Ok(None);
            };
            let is_large = |number: i128| number > i64::MAX.into();
            let mixed = (a < 0 && is_large(b)) || (b < 0 && is_large(a));
            let is_signed = a < 0 || b < 0;
            let number = match operation {
                _ if mixed => return Err(too_large()),
                Binary::Add => a + b,
                Binary::Subtract => a - b,
                Binary::Multiply => a.checked_mul(b).ok_or_else(too_large)?,
                Binary::Divide | Binary::Remainder if b == 0 => {
                    return Err(refuse("this divides by zero", "divide by another number"));
                }
                Binary::Divide => a / b,
                Binary::Remainder => a % b,
                Binary::BitAnd => a & b,
                Binary::BitOr => a | b,
                Binary::BitXor => a ^ b,
                Binary::ShiftLeft | Binary::ShiftRight if !(0..64).contains(&b) => {
                    return Err(refuse("a number has 64 bits to shift", "shift by 0 to 63"));
                }
                // What is shifted out is gone.
                Binary::ShiftLeft if a < 0 => i128::from((a as i64) << b),
                Binary::ShiftLeft => i128::from((a as u64) << b),
                Binary::ShiftRight => a >> b,
                _ => return Ok(None),
            };
            if is_signed && is_large(number) {
                return Err(refuse(
                    "this number does not fit into 64 bits with a sign",
                    "with a number below zero the result is signed, up to 9223372036854775807",
                ));
            }
            number
        }
        _ => return Ok(None),
    };
    let fits = (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&number);
    match fits {
        true => Ok(Some(number)),
        false => Err(too_large()),
    }
}

/// A number of the text as a value. Above the largest signed one it is unsigned.
pub(super) fn value_of(number: i128) -> Val {
    let kind = match i64::try_from(number) {
        Ok(_) => Kind::Literal,
        Err(_) => Kind::UNSIGNED,
    };
    Val::number(Number::Constant(number as u64), kind)
}

/// The number of the text that an expression is, also at the end of a block, if it has a sign in 64
/// bits.
///
/// # Errors
/// As [`exact`].
pub(crate) fn constant(of: &Expression) -> Lowered<Option<u64>> {
    if let ExpressionKind::Block {
        value: Some(value), ..
    } = &of.kind
    {
        return constant(value);
    }
    let number = exact(of)?;
    let number = number.and_then(|number| i64::try_from(number).ok());
    Ok(number.map(i64::cast_unsigned))
}

/// Which side of a choice is meant whose condition is `comptime`: the other one is not compiled.
/// None: it is another condition.
pub(crate) fn decided(
    values: &mut Values<'_, '_>,
    condition: &Expression,
) -> Lowered<Option<bool>> {
    match &condition.kind {
        ExpressionKind::Call { name, arguments } if name.text == COMPTIME => {
            let [of] = &arguments[..] else {
                return Ok(None);
            };
            match values.test(of)? {
                Test::Constant(holds) => Ok(Some(holds)),
                _ => Err(not_known(of)),
            }
        }
        _ => Ok(None),
    }
}

/// The word before a value that is to be known before the program runs.
const COMPTIME: &str = "comptime";

/// Refuses a value that only a hit tells.
pub(super) fn not_known(of: &Expression) -> Diagnostic {
    Diagnostic::new(
        of.span,
        "this is not known before the program runs",
        "after comptime write what follows from the text: sizeof, typeinfo(value).base_type, \
         is_str(value) and the like",
    )
}
