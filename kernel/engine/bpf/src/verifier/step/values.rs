//! Operands, arithmetic and comparisons: values from values.
//!
//! A pointer moves by numbers whose range is known and near, so no sum of distances overflows. It
//! is compared with null only. Everything else needs two numbers, and what is known of the result
//! is the business of [`Number`].

use crate::{
    AluOp, Condition, Operand, Reg, Width,
    verifier::{
        Cause, Expected, MOST_DISTANCE, branch,
        number::Number,
        state::{State, Value},
    },
};

pub(super) fn known(value: Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.known(),
        _ => None,
    }
}

/// The register of an operand. A constant has none and is never refused.
pub(super) const fn register_of(operand: Operand) -> Reg {
    match operand {
        Operand::Reg(reg) => reg,
        Operand::Imm(_) => Reg::R0,
    }
}

/// The content of an operand.
pub(super) fn operand(state: &State, operand: Operand) -> Result<Value, Cause> {
    match operand {
        Operand::Imm(imm) => Ok(Value::constant(imm as u64)),
        Operand::Reg(reg) => match state.get(reg) {
            Value::Unset => Err(Cause::Register {
                reg,
                expected: Expected::Any,
                found: Value::Unset,
            }),
            value => Ok(value),
        },
    }
}

/// The number in a register.
pub(super) fn number(state: &State, reg: Reg) -> Result<Number, Cause> {
    match state.get(reg) {
        Value::Number(number) => Ok(number),
        found => Err(Cause::Register {
            reg,
            expected: Expected::Number,
            found,
        }),
    }
}

/// The number in a register that is calculated with.
pub(super) fn arithmetic(state: &State, reg: Reg) -> Result<Number, Cause> {
    match state.get(reg) {
        Value::Number(number) => Ok(number),
        Value::Unset => number(state, reg),
        found => Err(Cause::Arithmetic { reg, found }),
    }
}

/// The result of an operation.
pub(super) fn alu(
    state: &State,
    width: Width,
    op: AluOp,
    dst: Reg,
    with: Operand,
) -> Result<Value, Cause> {
    let second = operand(state, with)?;
    if op == AluOp::Mov {
        return match (width, second) {
            (Width::W64, value) => Ok(value),
            (Width::W32, Value::Number(number)) => Ok(Value::Number(number.low(32))),
            (Width::W32, found) => Err(Cause::Arithmetic {
                reg: register_of(with),
                found,
            }),
        };
    }
    let first = operand(state, Operand::Reg(dst))?;
    match (width, op, first, second) {
        (_, _, Value::Number(a), Value::Number(b)) => Ok(Value::Number(a.alu(width, op, b))),
        (Width::W64, AluOp::Add | AluOp::Sub, pointer, Value::Number(distance)) => {
            moved(op, (dst, pointer), (register_of(with), distance))
        }
        (Width::W64, AluOp::Add, Value::Number(distance), pointer) => {
            moved(op, (register_of(with), pointer), (dst, distance))
        }
        (_, _, Value::Number(_), found) => Err(Cause::Arithmetic {
            reg: register_of(with),
            found,
        }),
        (_, _, found, _) => Err(Cause::Arithmetic { reg: dst, found }),
    }
}

/// A pointer, moved by a number.
fn moved(
    op: AluOp,
    (reg, pointer): (Reg, Value),
    (distance_reg, distance): (Reg, Number),
) -> Result<Value, Cause> {
    let mut moved = pointer;
    let (Value::Stack(offset)
    | Value::MapValue { offset, .. }
    | Value::Record { offset, .. }
    | Value::EntryData(offset)) = &mut moved
    else {
        return Err(Cause::Arithmetic {
            reg,
            found: pointer,
        });
    };
    let is_near = |number: Number| {
        -MOST_DISTANCE <= number.least_signed() && number.most_signed() <= MOST_DISTANCE
    };
    if !is_near(distance) {
        return Err(Cause::Register {
            reg: distance_reg,
            expected: Expected::Distance,
            found: Value::Number(distance),
        });
    }
    *offset = offset.alu(Width::W64, op, distance);
    match is_near(*offset) {
        true => Ok(moved),
        false => Err(Cause::Far { reg, found: moved }),
    }
}

/// The findings of a branch.
pub(in crate::verifier) enum Change {
    Nothing,
    Numbers {
        dst: (Reg, Number),
        operand: Option<(Reg, Number)>,
    },
    /// The value in the register.
    Value {
        reg: Reg,
        is_null: bool,
    },
    Record {
        is_null: bool,
    },
}

impl Change {
    pub(in crate::verifier) fn apply(self, state: &mut State) {
        match self {
            Self::Nothing => {}
            Self::Numbers { dst, operand } => {
                state.set(dst.0, Value::Number(dst.1));
                if let Some((reg, number)) = operand {
                    state.set(reg, Value::Number(number));
                }
            }
            Self::Value { reg, is_null } => state.resolve_value(reg, is_null),
            Self::Record { is_null } => state.resolve_record(is_null),
        }
    }
}

/// The facts where a branch is taken, and where it is not.
pub(super) fn branch_on(
    state: &State,
    width: Width,
    condition: Condition,
    dst: Reg,
    with: Operand,
) -> Result<(Option<Change>, Option<Change>), Cause> {
    let second = operand(state, with)?;
    let first = operand(state, Operand::Reg(dst))?;
    if let (Value::Number(a), Value::Number(b)) = (first, second) {
        let change = |known: branch::Known| {
            known.map(|(a, b)| Change::Numbers {
                dst: (dst, a),
                operand: match with {
                    Operand::Reg(reg) => Some((reg, b)),
                    Operand::Imm(_) => None,
                },
            })
        };
        return Ok((
            change(branch::taken(width, condition, a, b)),
            change(branch::not_taken(width, condition, a, b)),
        ));
    }
    // One of them is a pointer: only a comparison with null is meant.
    let (reg, pointer, number) = match (first, second) {
        (Value::Number(_), pointer) => (register_of(with), pointer, first),
        (pointer, number) => (dst, pointer, number),
    };
    let is_equal = match condition {
        Condition::Equal => true,
        Condition::NotEqual => false,
        _ => {
            return Err(Cause::Comparison {
                reg,
                found: pointer,
            });
        }
    };
    if width != Width::W64 || known(number) != Some(0) {
        return Err(Cause::Comparison {
            reg,
            found: pointer,
        });
    }
    let resolved = |is_null| match pointer {
        Value::ValueOrNull { .. } => Some(Change::Value { reg, is_null }),
        Value::RecordOrNull { .. } => Some(Change::Record { is_null }),
        // Every other pointer is not null.
        _ => (!is_null).then_some(Change::Nothing),
    };
    Ok((resolved(is_equal), resolved(!is_equal)))
}
