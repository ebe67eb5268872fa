//! Expressions of all kinds, each by its parts.
//!
//! An expression is a value, and where a number or a condition is wanted, it is asked for one. What
//! is not there makes the number not there, and a condition about it false.

use alloc::{boxed::Box, format, vec::Vec};

use trace_interface::{shape::Shape, view::Class};
use trace_language::{
    Diagnostic,
    tree::{Binary, Expression, ExpressionKind, Span, Target, TypeKind, TypeName, Unary},
};

use super::{
    Holds, Val, Values, arithmetic::check_arithmetic, composite, identity, like, literal, pointer,
};
use crate::{
    Lowered,
    number::{Counted, Key, Kind, Number, Test},
    types::integer,
};

impl Values<'_, '_> {
    /// The value of an expression.
    pub(crate) fn value(&mut self, expression: &Expression) -> Lowered<Val> {
        let span = expression.span;
        self.check_room(span)?;
        Ok(match &expression.kind {
            ExpressionKind::Integer(number) => {
                let kind = match i64::try_from(*number) {
                    Ok(_) => Kind::Literal,
                    Err(_) => Kind::UNSIGNED,
                };
                Val::number(Number::Constant(*number), kind)
            }
            ExpressionKind::Boolean(is) => {
                Val::number(Number::Constant((*is).into()), Kind::Boolean)
            }
            ExpressionKind::String(text) => Val::Literal(text.clone()),
            ExpressionKind::Variable(name) => self.variable(name, span)?,
            ExpressionKind::Map(map) => self.element(map)?,
            ExpressionKind::Name(name) => self.name(name, span)?,
            ExpressionKind::Call { name, arguments } => self.call(name, arguments, span)?,
            ExpressionKind::Field { of, name } => self.field(of, name)?,
            ExpressionKind::Index { of, index } => {
                let value = self.value(of)?;
                let index = self.count(index)?;
                self.index(value, index, of.span)?
            }
            ExpressionKind::Unary { operation, operand } => match literal::exact(expression)? {
                Some(number) => literal::value_of(number),
                None => self.unary(*operation, operand, span)?,
            },
            ExpressionKind::Binary {
                operation,
                left,
                right,
            } => match literal::exact(expression)? {
                Some(number) => literal::value_of(number),
                None => self.binary(*operation, left, right, span)?,
            },
            ExpressionKind::Ternary {
                condition,
                then,
                otherwise,
            } => self.ternary(condition, then, otherwise, span)?,
            ExpressionKind::Cast { to, operand } => self.cast(to, operand)?,
            ExpressionKind::Tuple(items) => {
                let items: Lowered<Vec<Val>> = items
                    .iter()
                    .map(|item| composite::item(self, item))
                    .collect();
                Val::Tuple(items?)
            }
            ExpressionKind::Type(_) => {
                return Err(Diagnostic::new(
                    span,
                    "this is a type, and a value is wanted",
                    "write `(typeof($x))value`, or `sizeof(typeof($x))` for its bytes",
                ));
            }
            // The program makes blocks before it asks.
            ExpressionKind::Block { .. } | ExpressionKind::OrElse { .. } => {
                return Err(Diagnostic::new(
                    span,
                    "neither a block nor `?:` can stand here",
                    "keep its value in a variable first: `$value = { … };`",
                ));
            }
            ExpressionKind::Record(fields) => composite::record(self, fields)?,
            ExpressionKind::Step {
                target,
                up,
                value_before,
            } => self.step(target, *up, *value_before, span)?,
        })
    }

    /// Whether the stack has room for what comes next.
    pub(crate) fn check_room(&self, span: Span) -> Lowered<()> {
        match (self.tables.options.has_room)() {
            true => Ok(()),
            false => Err(trace_language::no_room(span)),
        }
    }

    /// An expression as a number.
    pub(crate) fn count(&mut self, expression: &Expression) -> Lowered<Counted> {
        let value = self.value(expression)?;
        self.as_number(value, expression.span)
    }

    /// A value as a number.
    pub(crate) fn as_number(&mut self, value: Val, span: Span) -> Lowered<Counted> {
        match value {
            Val::Number(counted) => Ok(counted),
            Val::Object(object) => self.object_number(&object, span),
            Val::Literal(_) | Val::Comm | Val::Text { .. } => Err(Diagnostic::new(
                span,
                "this is a text, not a number",
                "compare texts with == or !=",
            )),
            Val::Bytes { .. } => Err(Diagnostic::new(span, "these are bytes, not a number", "")),
            Val::Tuple(_) => Err(Diagnostic::new(
                span,
                "this is a tuple, not a number",
                "take one of its fields: .0, .1",
            )),
            Val::Record(_) => Err(Diagnostic::new(
                span,
                "this is a record, not a number",
                "take one of its fields by its name: .name",
            )),
            Val::Stored { place, shape } => match Kind::stored(&shape) {
                Some((kind, bytes, signed)) => Ok(Counted {
                    number: Number::OwnPart {
                        place,
                        bytes,
                        signed,
                    },
                    kind,
                    present: Test::Constant(true),
                }),
                None => Err(Diagnostic::new(span, "this value is not a number", "")),
            },
            Val::Element { .. } => Err(Diagnostic::new(span, "this value is not a number", "")),
        }
    }

    /// An expression as a condition.
    pub(crate) fn test(&mut self, expression: &Expression) -> Lowered<Test> {
        self.check_room(expression.span)?;
        match &expression.kind {
            ExpressionKind::Unary {
                operation: Unary::Not,
                operand,
            } => Ok(self.test(operand)?.negated()),
            ExpressionKind::Binary {
                operation: Binary::And,
                left,
                right,
            } => {
                let left = self.test(left)?;
                Ok(left.and(self.test(right)?))
            }
            ExpressionKind::Binary {
                operation: Binary::Or,
                left,
                right,
            } => {
                let left = self.test(left)?;
                Ok(left.or(self.test(right)?))
            }
            _ => {
                let value = self.value(expression)?;
                // `retval.Err` by itself asks whether it is one.
                if let Val::Object(object) = &value
                    && object.is_variant
                {
                    return Ok(object.present.clone());
                }
                if self.is_text(&value) {
                    return Ok(composite::is_filled(self, &value, expression.span));
                }
                let counted = self.as_number(value, expression.span)?;
                check_arithmetic(&counted.kind, expression.span)?;
                Ok(counted.present.and(Test::not_zero(counted.number)))
            }
        }
    }

    fn ternary(
        &mut self,
        condition: &Expression,
        then: &Expression,
        otherwise: &Expression,
        span: Span,
    ) -> Lowered<Val> {
        if let Some(holds) = literal::decided(self, condition)? {
            return self.value(if holds { then } else { otherwise });
        }
        let test = self.test(condition)?;
        let then_value = self.value(then)?;
        let other_value = self.value(otherwise)?;
        if self.is_text(&then_value) && self.is_text(&other_value) {
            return Ok(self.chosen_text(test, then_value, other_value, span));
        }
        if composite::is_composite(self, &then_value) || composite::is_composite(self, &other_value)
        {
            return composite::chosen(self, test, (then_value, other_value), span);
        }
        let a = self.as_number(then_value, then.span)?;
        let b = self.as_number(other_value, otherwise.span)?;
        // What is only a name, such as a call stack, has no common kind.
        if a.kind != b.kind {
            check_arithmetic(&a.kind, then.span)?;
            check_arithmetic(&b.kind, otherwise.span)?;
        }
        let kind = self.tables.either(
            (&a.kind, a.number.constant()),
            (&b.kind, b.number.constant()),
        );
        let (test, present) = match (&a.present, &b.present) {
            (Test::Constant(true), Test::Constant(true)) => (test, Test::Constant(true)),
            _ => {
                let test = composite::steady_test(self, test, span);
                let present = test.clone().and(a.present);
                let present = present.or(test.clone().negated().and(b.present));
                (test, present)
            }
        };
        Ok(Val::Number(Counted {
            number: Number::select(test, a.number, b.number),
            kind,
            present,
        }))
    }

    fn cast(&mut self, to: &TypeName, operand: &Expression) -> Lowered<Val> {
        let value = self.value(operand)?;
        self.cast_value(to, value, operand.span)
    }

    /// A value as one of a type.
    pub(crate) fn cast_value(&mut self, to: &TypeName, value: Val, span: Span) -> Lowered<Val> {
        if let TypeKind::Of(of) = &to.kind {
            let model = like::like(self, of)?;
            return like::cast_like(self, &model, value, (to.span, span));
        }
        if let Some(cast) = composite::cast(self, to, &value, span)? {
            return Ok(cast);
        }
        let counted = self.as_number(value, span)?;
        check_arithmetic(&counted.kind, span)?;
        let number = counted.number;
        let present = counted.present;
        let (number, kind) = match &to.kind {
            TypeKind::Named(name) => match integer(name) {
                Some((bytes, signed)) => (
                    number.extended(bytes, signed),
                    Kind::Integer { bytes, signed },
                ),
                None => match &**name {
                    "bool" => (Number::test(Test::not_zero(number)), Kind::Boolean),
                    "char" => (number.extended(4, false), Kind::Character),
                    name => {
                        return Err(Diagnostic::new(
                            to.span,
                            format!("a number cannot become a value of type `{name}`"),
                            format!("cast it to a pointer and follow that: *(&{name})value"),
                        ));
                    }
                },
            },
            TypeKind::Pointer(of) => {
                let to = like::type_named(self, of)?;
                let space = self.site.space_of(&counted.kind);
                (number, Kind::Pointer { to, space })
            }
            TypeKind::Slice(_) | TypeKind::Array { .. } | TypeKind::Of(_) => {
                return Err(Diagnostic::new(
                    to.span,
                    "a number cannot become a slice or an array",
                    "cast it to a pointer to the first element",
                ));
            }
        };
        Ok(Val::Number(Counted {
            number,
            kind,
            present,
        }))
    }

    pub(crate) fn step(
        &mut self,
        target: &Target,
        up: bool,
        value_before: bool,
        span: Span,
    ) -> Lowered<Val> {
        let delta_of = |step: u64| match up {
            true => step.cast_signed(),
            false => -step.cast_signed(),
        };
        match target {
            Target::Variable(name) => {
                let Some(variable) = self.find(&name.text) else {
                    return self.variable(&name.text, name.span);
                };
                let Holds::Number(kind) = variable.holds.clone() else {
                    return Err(Diagnostic::new(span, "this variable is not a number", ""));
                };
                if kind == Kind::Boolean {
                    // If nothing declares it so, it is a number the next time.
                    let made = identity(self, &variable.name, variable.made_at);
                    self.tables.variable(made, &Shape::Literal);
                    return Err(Diagnostic::new(
                        span,
                        "this variable is true or false, and no number",
                        "declare it as a number: `let $name: uint8 = …;`",
                    ));
                }
                let place = variable.place;
                let delta = delta_of(pointer::step_of(self.types(), &kind));
                Ok(Val::number(
                    Number::Step {
                        place,
                        delta,
                        value_before,
                        wraps: kind.narrow(),
                    },
                    kind,
                ))
            }
            Target::Map(map) => {
                let number = self.tables.plain_map(map)?;
                let known = &self.tables.maps[number as usize];
                let shape = match &known.class {
                    Some(Class::Plain(shape)) => shape.clone(),
                    _ => Shape::Literal,
                };
                let kind = self.tables.kind_in(number, &shape).unwrap_or(Kind::SIGNED);
                let key = self.key(number, map)?;
                let step = Number::ElementStep {
                    map: number,
                    key: Box::new(Key { stored: key }),
                    delta: delta_of(pointer::step_of(self.types(), &kind)),
                    value_before,
                };
                // A key that is not there is no key.
                let step = Number::select(self.keys_present(key), step, Number::Constant(0));
                Ok(Val::number(step, kind))
            }
        }
    }
}
