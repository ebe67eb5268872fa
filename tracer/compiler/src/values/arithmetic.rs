//! Operations on numbers, and comparisons.
//!
//! Arithmetic is signed if one side is. A comparison is exact, also of a signed with an unsigned
//! number.

use alloc::{boxed::Box, format};

use bpf::{AluOp, Condition};
use trace_language::{
    Diagnostic,
    tree::{Binary, Expression, Span, Unary},
};

use super::{Val, Values, composite, named, pointer};
use crate::{
    Lowered,
    number::{Counted, Kind, Number, Test},
    object::Object,
};

impl Values<'_, '_> {
    pub(crate) fn unary(
        &mut self,
        operation: Unary,
        operand: &Expression,
        span: Span,
    ) -> Lowered<Val> {
        if operation == Unary::Not {
            let test = self.test(operand)?.negated();
            return Ok(Val::number(Number::test(test), Kind::Boolean));
        }
        if operation == Unary::Dereference {
            let value = self.value(operand)?;
            return match value {
                Val::Object(object) => self.dereference(&object, span),
                Val::Number(Counted {
                    number,
                    kind:
                        Kind::Pointer {
                            to: Some(to),
                            space,
                        },
                    present,
                }) => {
                    let number = composite::steady_address(self, number, span);
                    Ok(Val::Object(Object::in_memory(to, (space, number), present)))
                }
                Val::Number(Counted {
                    kind: Kind::Boolean | Kind::Character,
                    ..
                }) => Err(Diagnostic::new(span, "this value leads nowhere", "")),
                Val::Number(counted) => Ok(Val::Number(Counted {
                    number: Number::load_in(
                        self.site.space_of(&counted.kind),
                        counted.number,
                        0,
                        8,
                        false,
                    ),
                    kind: Kind::UNSIGNED,
                    present: counted.present,
                })),
                _ => Err(Diagnostic::new(span, "this value leads nowhere", "")),
            };
        }
        let counted = self.count(operand)?;
        check_arithmetic(&counted.kind, operand.span)?;
        if matches!(counted.kind, Kind::Pointer { to: Some(_), .. }) {
            return Err(Diagnostic::new(
                span,
                format!("`{}` is no operation on pointers", operation.sign()),
                "make it a number first: (uint64)pointer",
            ));
        }
        if operation == Unary::Complement && counted.kind == Kind::Boolean {
            return Err(Diagnostic::new(
                span,
                "`~` changes the bits of a number, and this is true or false",
                "`!` makes the other one of it",
            ));
        }
        let number = match operation {
            Unary::Negate => Number::alu(AluOp::Sub, Number::Constant(0), counted.number),
            _ => Number::alu(AluOp::Xor, counted.number, Number::Constant(u64::MAX)),
        };
        let kind = match (operation, counted.kind) {
            (_, Kind::Literal) => Kind::Literal,
            (Unary::Negate, _) => Kind::SIGNED,
            (_, Kind::Integer { signed, .. }) => Kind::Integer { bytes: 8, signed },
            _ => Kind::UNSIGNED,
        };
        Ok(Val::Number(Counted {
            number,
            kind,
            present: counted.present,
        }))
    }

    pub(crate) fn binary(
        &mut self,
        operation: Binary,
        left: &Expression,
        right: &Expression,
        span: Span,
    ) -> Lowered<Val> {
        if matches!(operation, Binary::And | Binary::Or) {
            let left = self.test(left)?;
            let right = self.test(right)?;
            let test = match operation {
                Binary::And => left.and(right),
                _ => left.or(right),
            };
            return Ok(Val::number(Number::test(test), Kind::Boolean));
        }
        let left_value = self.value(left)?;
        let right_value = self.value(right)?;
        if composite::is_composite(self, &left_value) || composite::is_composite(self, &right_value)
        {
            return composite::compare(
                self,
                operation,
                (left_value, right_value),
                (left.span, right.span),
            );
        }
        let spans = (left.span, right.span);
        if let Some(test) = named::named_equal(self, operation, (&left_value, &right_value), spans)?
        {
            return Ok(Val::number(Number::test(test), Kind::Boolean));
        }
        let is_text = self.is_text(&left_value) || self.is_text(&right_value);
        if is_text && matches!(operation, Binary::Equal | Binary::NotEqual) {
            let test = self.texts_equal(left_value, right_value, (left.span, right.span))?;
            let test = match operation {
                Binary::Equal => test,
                _ => test.negated(),
            };
            return Ok(Val::number(Number::test(test), Kind::Boolean));
        }
        if let Some(value) = of_literals(operation, &left_value, &right_value) {
            return Ok(value);
        }
        let left_count = self.as_number(left_value, left.span)?;
        let right_count = self.as_number(right_value, right.span)?;
        self.arithmetic(
            operation,
            left_count,
            right_count,
            (left.span, right.span, span),
        )
    }

    /// An operation on two numbers.
    pub(crate) fn arithmetic(
        &mut self,
        operation: Binary,
        left: Counted,
        right: Counted,
        (left_span, right_span, span): (Span, Span, Span),
    ) -> Lowered<Val> {
        check_arithmetic(&left.kind, left_span)?;
        check_arithmetic(&right.kind, right_span)?;
        if let Some(moved) = pointer::of_pointers(self.types(), operation, &left, &right, span)? {
            return Ok(Val::Number(moved));
        }
        let present = left.present.and(right.present);
        // What is shifted has a sign of its own, which may be open yet.
        let is_open = left.kind == Kind::Literal
            && left.number.constant().is_none()
            && self.tables.open_kind() == Kind::Literal;
        let (a, b) = (left.number, right.number);
        let condition = match operation {
            Binary::Equal => Some((Condition::Equal, Condition::Equal)),
            Binary::NotEqual => Some((Condition::NotEqual, Condition::NotEqual)),
            Binary::Less => Some((Condition::Less, Condition::Below)),
            Binary::LessEqual => Some((Condition::LessOrEqual, Condition::BelowOrEqual)),
            Binary::Greater => Some((Condition::Greater, Condition::Above)),
            Binary::GreaterEqual => Some((Condition::GreaterOrEqual, Condition::AboveOrEqual)),
            _ => None,
        };
        if let Some((signed, unsigned)) = condition {
            let test = compare(
                self,
                operation,
                (signed, unsigned),
                (a, &left.kind),
                (b, &right.kind),
                span,
            );
            // A comparison with a value that is not there does not hold.
            return Ok(Val::number(Number::test(present.and(test)), Kind::Boolean));
        }
        // Signed if any is, so that adding -1 to an unsigned number means what it says.
        let kind = match (&left.kind, &right.kind) {
            (Kind::Literal, Kind::Literal) => Kind::Literal,
            (Kind::Literal, other) | (other, Kind::Literal) => match other {
                Kind::Integer { signed, .. } => Kind::Integer {
                    bytes: 8,
                    signed: *signed,
                },
                // An address stays one when it is moved.
                Kind::Pointer { to, space } => Kind::Pointer {
                    to: *to,
                    space: *space,
                },
                _ => Kind::UNSIGNED,
            },
            (a, b) if a.is_signed() || b.is_signed() => Kind::SIGNED,
            _ => Kind::UNSIGNED,
        };
        let left_signed = match left.kind {
            Kind::Literal => kind.is_signed(),
            ref other => other.is_signed(),
        };
        let op = match operation {
            Binary::BitOr => AluOp::Or,
            Binary::BitXor => AluOp::Xor,
            Binary::BitAnd => AluOp::And,
            Binary::ShiftLeft => AluOp::ShiftLeft,
            Binary::ShiftRight if left_signed => AluOp::ShiftRightSigned,
            Binary::ShiftRight => AluOp::ShiftRight,
            Binary::Add => AluOp::Add,
            Binary::Subtract => AluOp::Sub,
            Binary::Multiply => AluOp::Mul,
            Binary::Divide if kind.is_signed() => AluOp::SignedDiv,
            Binary::Divide => AluOp::Div,
            _ if kind.is_signed() => AluOp::SignedMod,
            _ => AluOp::Mod,
        };
        let kind = match operation {
            Binary::ShiftLeft | Binary::ShiftRight => match left.kind {
                Kind::Integer { signed, .. } => Kind::Integer { bytes: 8, signed },
                Kind::Literal if is_open => Kind::Literal,
                Kind::Literal => kind,
                _ => Kind::UNSIGNED,
            },
            _ => kind,
        };
        Ok(Val::Number(Counted {
            number: Number::alu(op, a, b),
            kind,
            present,
        }))
    }
}

/// An order of two texts of the program, both of them together, or one from a letter on. None: the
/// values are others, or the operation is.
fn of_literals(operation: Binary, left: &Val, right: &Val) -> Option<Val> {
    let Val::Literal(text) = left else {
        return None;
    };
    if let (Binary::Add, Val::Number(counted)) = (operation, right) {
        let from = usize::try_from(counted.number.constant()?).ok()?;
        return Some(Val::Literal(text.get(from..).unwrap_or_default().into()));
    }
    let Val::Literal(other) = right else {
        return None;
    };
    let holds = match operation {
        Binary::Add => return Some(Val::Literal(alloc::format!("{text}{other}"))),
        Binary::Less => text < other,
        Binary::LessEqual => text <= other,
        Binary::Greater => text > other,
        Binary::GreaterEqual => text >= other,
        _ => return None,
    };
    Some(Val::number(Number::Constant(holds.into()), Kind::Boolean))
}

/// Refuses a number that is only a name, such as a call stack.
pub(super) fn check_arithmetic(kind: &Kind, span: Span) -> Lowered<()> {
    match kind.is_number() {
        true => Ok(()),
        false => Err(Diagnostic::new(
            span,
            "this value cannot be calculated with",
            "use it as a key, or print it",
        )),
    }
}

/// A comparison. That of a signed and an unsigned number is exact: -1 is below all unsigned ones.
fn compare(
    values: &mut Values<'_, '_>,
    operation: Binary,
    (signed, unsigned): (Condition, Condition),
    (a, a_kind): (Number, &Kind),
    (b, b_kind): (Number, &Kind),
    span: Span,
) -> Test {
    // Numbers of less than 8 bytes are the same, signed or not.
    let fits = |kind: &Kind| match kind {
        Kind::Integer { bytes, signed } => *signed || *bytes < 8,
        Kind::Literal | Kind::Boolean | Kind::Character => true,
        _ => false,
    };
    let is_small_literal = |kind: &Kind, number: &Number| {
        *kind == Kind::Literal
            && number
                .constant()
                .is_some_and(|number| number.cast_signed() >= 0)
    };
    if fits(a_kind) && fits(b_kind) {
        return Test::compare(signed, a, b);
    }
    // The sign of one may tell the result, and the other one does what it does all the same.
    let mut done = |number: Number| match number.has_effect() {
        true => composite::steady_address(values, number, span),
        false => number,
    };
    let (a, b) = (done(a), done(b));
    let may_be_negative =
        |kind: &Kind, number: &Number| kind.is_signed() && !is_small_literal(kind, number);
    let (a_negative, b_negative) = (may_be_negative(a_kind, &a), may_be_negative(b_kind, &b));
    // The number whose sign is asked for is calculated there, and used again.
    let mut kept = |number: Number| match number.is_steady() {
        false => {
            let place = values.memory.take_for_good(8);
            let number = Box::new(number);
            (Number::Kept { number, place }, Number::Own(place))
        }
        true => (number.clone(), number),
    };
    let (a, b, plain) = match (a_negative, b_negative) {
        (true, _) => {
            let (a, again) = kept(a);
            let plain = Test::compare(unsigned, again, b.clone());
            (a, b, plain)
        }
        (false, true) => {
            let (b, again) = kept(b);
            let plain = Test::compare(unsigned, a.clone(), again);
            (a, b, plain)
        }
        (false, false) => return Test::compare(unsigned, a, b),
    };
    let is_negative = |number: Number| Test::compare(Condition::Less, number, Number::Constant(0));
    match (a_negative, operation) {
        // A negative number is below the other.
        (true, Binary::Less | Binary::LessEqual | Binary::NotEqual) => is_negative(a).or(plain),
        (true, _) => is_negative(a).negated().and(plain),
        (_, Binary::Greater | Binary::GreaterEqual | Binary::NotEqual) => is_negative(b).or(plain),
        _ => is_negative(b).negated().and(plain),
    }
}
