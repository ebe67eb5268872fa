//! Expressions: what a value is, and how it is calculated.

use alloc::{boxed::Box, format, rc::Rc, string::String, vec::Vec};

use bpf::{AluOp, Condition};
use trace_interface::{shape::Shape, symbols::TypeId, view::Class};
use trace_language::{
    Diagnostic,
    tree::{
        Binary, Expression, ExpressionKind, Map as MapName, Name, Span, Target, TypeKind, TypeName,
        Unary,
    },
};

use super::{
    body::{Body, Holds},
    names,
    rust::Object,
};
use crate::{
    asm::Place,
    number::{Key, Number, Space, Test},
};

/// The kind of a number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// A number of the text. It takes the type of what it is calculated with.
    Literal,
    Integer {
        bytes: u8,
        signed: bool,
    },
    Boolean,
    Character,
    /// An address; of what, if that is known.
    Pointer {
        to: Option<TypeId>,
        space: Space,
    },
    Symbol {
        with_offset: bool,
    },
    Probe,
    Stack {
        map: u32,
        is_user: bool,
    },
    Time {
        format: Rc<str>,
    },
}

impl Kind {
    pub(super) const UNSIGNED: Self = Self::Integer {
        bytes: 8,
        signed: false,
    };
    pub(super) const SIGNED: Self = Self::Integer {
        bytes: 8,
        signed: true,
    };

    /// An address of the kernel's memory, of nothing in particular.
    pub(super) const ADDRESS: Self = Self::Pointer {
        to: None,
        space: Space::Kernel,
    };

    pub(super) const fn is_signed(&self) -> bool {
        matches!(self, Self::Literal | Self::Integer { signed: true, .. })
    }

    /// Whose memory an address of this kind is one of.
    pub(super) const fn space(&self) -> Space {
        match self {
            Self::Pointer { space, .. } => *space,
            _ => Space::Kernel,
        }
    }

    /// Whether it can be calculated with.
    const fn is_number(&self) -> bool {
        !matches!(self, Self::Stack { .. } | Self::Probe | Self::Time { .. })
    }

    /// How it is stored, in keys, values and records.
    pub(super) fn shape(&self) -> Shape {
        match self {
            Self::Literal => Shape::Signed(8),
            Self::Integer { signed: true, .. } => Shape::Signed(8),
            Self::Integer { signed: false, .. } => Shape::Unsigned(8),
            Self::Boolean => Shape::Flag,
            Self::Character => Shape::Character,
            Self::Pointer { .. } => Shape::Address,
            Self::Symbol { with_offset } => Shape::Symbol {
                with_offset: *with_offset,
            },
            Self::Probe => Shape::Probe,
            Self::Stack { map, is_user } => Shape::Stack {
                map: *map,
                is_user: *is_user,
            },
            Self::Time { format } => Shape::Time {
                format: format.clone(),
            },
        }
    }
}

/// A number, and when there is one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Counted {
    pub(crate) number: Number,
    pub(crate) kind: Kind,
    /// It means something only if this holds.
    pub(crate) present: Test,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Val {
    Number(Counted),
    /// A text of the program.
    Literal(String),
    /// The task's name.
    Comm,
    /// A text in memory that ends with a NUL.
    Text {
        address: Number,
        most: u32,
        /// A length that is not known before the hit, and no byte behind it is read.
        limit: Option<Number>,
        present: Test,
    },
    /// Bytes in memory.
    Bytes {
        space: Space,
        address: Number,
        length: Number,
        most: u32,
    },
    /// A value of the traced kernel.
    Object(Object),
    /// A value that the program has stored.
    Stored {
        place: Place,
        shape: Shape,
    },
    /// A value in a map that is no number. The key is stored each time.
    Element {
        map: u32,
        key: usize,
        shape: Shape,
    },
    Tuple(Vec<Val>),
}

impl Val {
    pub(super) fn number(number: Number, kind: Kind) -> Self {
        Self::Number(Counted {
            number,
            kind,
            present: Test::Constant(true),
        })
    }

    pub(super) fn is_text(&self) -> bool {
        match self {
            Self::Literal(_) | Self::Comm | Self::Text { .. } => true,
            Self::Stored { shape, .. } | Self::Element { shape, .. } => shape.is_text(),
            _ => false,
        }
    }
}

/// An expression, or the reason why it has no value.
pub(super) type Lowered<T> = Result<T, Diagnostic>;

impl Body<'_, '_> {
    /// The value of an expression.
    pub(super) fn value(&mut self, expression: &Expression) -> Lowered<Val> {
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
            ExpressionKind::Unary { operation, operand } => {
                self.unary(*operation, operand, span)?
            }
            ExpressionKind::Binary {
                operation,
                left,
                right,
            } => self.binary(*operation, left, right, span)?,
            ExpressionKind::Ternary {
                condition,
                then,
                otherwise,
            } => self.ternary(condition, then, otherwise, span)?,
            ExpressionKind::Cast { to, operand } => self.cast(to, operand)?,
            ExpressionKind::Tuple(items) => {
                let items: Lowered<Vec<Val>> = items.iter().map(|item| self.value(item)).collect();
                Val::Tuple(items?)
            }
            ExpressionKind::Step {
                target,
                up,
                value_before,
            } => self.step(target, *up, *value_before, span)?,
        })
    }

    /// Whether the stack has room for what comes next.
    pub(super) fn check_room(&self, span: Span) -> Lowered<()> {
        match (self.c.options.has_room)() {
            true => Ok(()),
            false => Err(trace_language::no_room(span)),
        }
    }

    /// An expression as a number.
    pub(super) fn count(&mut self, expression: &Expression) -> Lowered<Counted> {
        let value = self.value(expression)?;
        self.as_number(value, expression.span)
    }

    /// A value as a number.
    pub(super) fn as_number(&mut self, value: Val, span: Span) -> Lowered<Counted> {
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
            Val::Stored { place, shape } => match Self::kind_of(&shape) {
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

    /// The kind of a number that was stored so.
    fn kind_of(shape: &Shape) -> Option<(Kind, u8, bool)> {
        Some(match shape {
            Shape::Unsigned(bytes) => (Kind::UNSIGNED, *bytes, false),
            Shape::Signed(bytes) => (Kind::SIGNED, *bytes, true),
            Shape::Boolean => (Kind::Boolean, 1, false),
            Shape::Flag => (Kind::Boolean, 8, false),
            Shape::Character => (Kind::Character, 4, false),
            Shape::Address => (Kind::ADDRESS, 8, false),
            Shape::Symbol { with_offset } => (
                Kind::Symbol {
                    with_offset: *with_offset,
                },
                8,
                false,
            ),
            _ => return None,
        })
    }

    /// An expression as a condition.
    pub(super) fn test(&mut self, expression: &Expression) -> Lowered<Test> {
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
                let counted = self.as_number(value, expression.span)?;
                Ok(counted.present.and(Test::not_zero(counted.number)))
            }
        }
    }

    fn variable(&mut self, name: &str, span: Span) -> Lowered<Val> {
        if let Some(variable) = self.find(name) {
            return Ok(match &variable.holds {
                Holds::Number(kind) => Val::number(Number::Own(variable.place), kind.clone()),
                Holds::Stored(shape) => Val::Stored {
                    place: variable.place,
                    shape: shape.clone(),
                },
                Holds::Object(object) => Val::Object(object.clone()),
            });
        }
        let known = self.variable_names();
        let near = names::nearest(name, known.iter().map(|name| &**name));
        let near: Vec<String> = near.iter().map(|name| format!("${name}")).collect();
        Err(Diagnostic::new(
            span,
            format!("`${name}` has no value here"),
            match near.is_empty() {
                true => format!("assign to it first: `${name} = …;`"),
                false => names::did_you_mean(&near),
            },
        ))
    }

    /// The value of a key of a map.
    fn element(&mut self, map: &MapName) -> Lowered<Val> {
        let number = self.c.map(&map.name);
        let class = self.c.maps[number as usize].class.clone();
        let key = self.key(number, map)?;
        // If it is not known yet, it is a number for now.
        let class = class.unwrap_or(Class::Plain(Shape::Unsigned(8)));
        self.value_of(number, &class, key, map)
    }

    /// The same for a key that is stored already.
    pub(super) fn value_of(
        &mut self,
        number: u32,
        class: &Class,
        key: usize,
        map: &MapName,
    ) -> Lowered<Val> {
        let shape = match class {
            Class::Plain(shape) => shape.clone(),
            class => return self.gathered(number, class, key, map),
        };
        let kind = self.c.maps[number as usize].kind.clone();
        Ok(match kind.or_else(|| Self::number_kind(&shape)) {
            Some(kind) => Val::number(
                Number::Element {
                    map: number,
                    key: Box::new(Key { stored: key }),
                },
                kind,
            ),
            None => Val::Element {
                map: number,
                key,
                shape,
            },
        })
    }

    fn number_kind(shape: &Shape) -> Option<Kind> {
        Some(match shape {
            Shape::Unsigned(8) => Kind::UNSIGNED,
            Shape::Signed(8) => Kind::SIGNED,
            Shape::Flag => Kind::Boolean,
            _ => return None,
        })
    }

    fn field(&mut self, of: &Expression, name: &Name) -> Lowered<Val> {
        if let ExpressionKind::Name(word) = &of.kind
            && word == "args"
        {
            return self.argument(name);
        }
        let value = match self.value(of)? {
            // A tuple of a map is copied first.
            Val::Element { map, key, shape } if matches!(shape, Shape::Tuple(_)) => {
                let place = Place::stack(self.asm.take(shape.bytes()));
                self.asm.keep_all();
                let element = Val::Element {
                    map,
                    key,
                    shape: shape.clone(),
                };
                self.store(&element, place, &shape, of.span)?;
                Val::Stored { place, shape }
            }
            other => other,
        };
        match value {
            Val::Object(object) => self.object_field(&object, name),
            Val::Number(Counted {
                number,
                kind:
                    Kind::Pointer {
                        to: Some(to),
                        space,
                    },
                present,
            }) => {
                let object = Object::in_memory(to, (space, number), present);
                self.object_field(&object, name)
            }
            Val::Tuple(mut items) => match name.text.parse::<usize>() {
                Ok(number) if number < items.len() => Ok(items.swap_remove(number)),
                _ => Err(Diagnostic::new(
                    name.span,
                    format!("the tuple has no field `{}`", name.text),
                    format!("it has .0 to .{}", items.len().saturating_sub(1)),
                )),
            },
            Val::Stored {
                place,
                shape: Shape::Tuple(items),
            } => {
                let number = name.text.parse::<usize>().ok();
                let Some(shape) = number.and_then(|number| items.get(number)) else {
                    return Err(Diagnostic::new(
                        name.span,
                        format!("the tuple has no field `{}`", name.text),
                        format!("it has .0 to .{}", items.len().saturating_sub(1)),
                    ));
                };
                let before = items.iter().take(number.unwrap_or(0));
                let offset: u32 = before.map(Shape::bytes).sum();
                let place = place.at(offset);
                Ok(match Self::kind_of(shape) {
                    Some((kind, bytes, signed)) => Val::number(
                        Number::OwnPart {
                            place,
                            bytes,
                            signed,
                        },
                        kind,
                    ),
                    None => Val::Stored {
                        place,
                        shape: shape.clone(),
                    },
                })
            }
            Val::Number(_) => Err(Diagnostic::new(
                name.span,
                format!("a number has no field `{}`", name.text),
                match self.c.options.debug_info {
                    true => "cast it to a pointer first: ((&Type)value).field",
                    false => names::NO_DEBUG_INFORMATION,
                },
            )),
            _ => Err(Diagnostic::new(
                name.span,
                format!("this value has no field `{}`", name.text),
                "",
            )),
        }
    }

    fn unary(&mut self, operation: Unary, operand: &Expression, span: Span) -> Lowered<Val> {
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
                }) => Ok(Val::Object(Object::in_memory(to, (space, number), present))),
                Val::Number(counted) => Ok(Val::Number(Counted {
                    number: Number::load_in(counted.kind.space(), counted.number, 0, 8, false),
                    kind: Kind::UNSIGNED,
                    present: counted.present,
                })),
                _ => Err(Diagnostic::new(span, "this value leads nowhere", "")),
            };
        }
        let counted = self.count(operand)?;
        self.check_arithmetic(&counted.kind, operand.span)?;
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

    fn check_arithmetic(&self, kind: &Kind, span: Span) -> Lowered<()> {
        match kind.is_number() {
            true => Ok(()),
            false => Err(Diagnostic::new(
                span,
                "this value cannot be calculated with",
                "use it as a key, or print it",
            )),
        }
    }

    fn binary(
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
        let is_text = self.is_text(&left_value) || self.is_text(&right_value);
        if is_text && matches!(operation, Binary::Equal | Binary::NotEqual) {
            let test = self.texts_equal(left_value, right_value, (left.span, right.span))?;
            let test = match operation {
                Binary::Equal => test,
                _ => test.negated(),
            };
            return Ok(Val::number(Number::test(test), Kind::Boolean));
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
    pub(super) fn arithmetic(
        &mut self,
        operation: Binary,
        left: Counted,
        right: Counted,
        (left_span, right_span, _span): (Span, Span, Span),
    ) -> Lowered<Val> {
        self.check_arithmetic(&left.kind, left_span)?;
        self.check_arithmetic(&right.kind, right_span)?;
        let present = left.present.and(right.present);
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
                operation,
                (signed, unsigned),
                (a, &left.kind),
                (b, &right.kind),
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
                // A pointer stays one when it is moved.
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

    fn ternary(
        &mut self,
        condition: &Expression,
        then: &Expression,
        otherwise: &Expression,
        span: Span,
    ) -> Lowered<Val> {
        let test = self.test(condition)?;
        let then_value = self.value(then)?;
        let other_value = self.value(otherwise)?;
        if self.is_text(&then_value) && self.is_text(&other_value) {
            return self.chosen_text(test, then_value, other_value, span);
        }
        let a = self.as_number(then_value, then.span)?;
        let b = self.as_number(other_value, otherwise.span)?;
        let kind = match (&a.kind, &b.kind) {
            (a, b) if a == b => a.clone(),
            (Kind::Literal, other) | (other, Kind::Literal) => match other {
                Kind::Boolean | Kind::Character => Kind::SIGNED,
                other => other.clone(),
            },
            (a, b) if a.is_signed() || b.is_signed() => Kind::SIGNED,
            _ => Kind::UNSIGNED,
        };
        let present = match (&a.present, &b.present) {
            (Test::Constant(true), Test::Constant(true)) => Test::Constant(true),
            _ => test
                .clone()
                .and(a.present)
                .or(test.clone().negated().and(b.present)),
        };
        Ok(Val::Number(Counted {
            number: Number::select(test, a.number, b.number),
            kind,
            present,
        }))
    }

    fn cast(&mut self, to: &TypeName, operand: &Expression) -> Lowered<Val> {
        let value = self.value(operand)?;
        let counted = self.as_number(value, operand.span)?;
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
                let to = self.type_named(of)?;
                let space = counted.kind.space();
                (number, Kind::Pointer { to, space })
            }
            TypeKind::Slice(_) | TypeKind::Array { .. } => {
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

    fn step(&mut self, target: &Target, up: bool, value_before: bool, span: Span) -> Lowered<Val> {
        let delta = if up { 1 } else { -1 };
        match target {
            Target::Variable(name) => {
                let Some(variable) = self.find(&name.text) else {
                    return self.variable(&name.text, name.span);
                };
                let Holds::Number(kind) = variable.holds.clone() else {
                    return Err(Diagnostic::new(span, "this variable is not a number", ""));
                };
                let place = variable.place;
                Ok(Val::number(
                    Number::Step {
                        place,
                        delta,
                        value_before,
                    },
                    kind,
                ))
            }
            Target::Map(map) => {
                let number = self.plain_map(map, &Kind::SIGNED)?;
                let key = self.key(number, map)?;
                Ok(Val::number(
                    Number::ElementStep {
                        map: number,
                        key: Box::new(Key { stored: key }),
                        delta,
                        value_before,
                    },
                    Kind::SIGNED,
                ))
            }
        }
    }
}

/// A comparison. That of a signed and an unsigned number is exact: -1 is below all unsigned ones.
fn compare(
    operation: Binary,
    (signed, unsigned): (Condition, Condition),
    (a, a_kind): (Number, &Kind),
    (b, b_kind): (Number, &Kind),
) -> Test {
    // Of less than 8 bytes all numbers are the same, signed or not.
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
    let may_be_negative =
        |kind: &Kind, number: &Number| kind.is_signed() && !is_small_literal(kind, number);
    let (a_negative, b_negative) = (may_be_negative(a_kind, &a), may_be_negative(b_kind, &b));
    let plain = Test::compare(unsigned, a.clone(), b.clone());
    let is_negative = |number: Number| Test::compare(Condition::Less, number, Number::Constant(0));
    match (a_negative, b_negative, operation) {
        (false, false, _) => plain,
        // A negative number is below the other.
        (true, _, Binary::Less | Binary::LessEqual | Binary::NotEqual) => is_negative(a).or(plain),
        (true, _, _) => is_negative(a).negated().and(plain),
        (_, _, Binary::Greater | Binary::GreaterEqual | Binary::NotEqual) => {
            is_negative(b).or(plain)
        }
        _ => is_negative(b).negated().and(plain),
    }
}

/// Bytes and sign of a type of integers, as Rust or C calls it.
pub(super) fn integer(name: &str) -> Option<(u8, bool)> {
    Some(match name {
        "u8" | "uint8" | "uint8_t" => (1, false),
        "u16" | "uint16" | "uint16_t" => (2, false),
        "u32" | "uint32" | "uint32_t" => (4, false),
        "u64" | "usize" | "uint64" | "uint64_t" | "size_t" => (8, false),
        "i8" | "int8" | "int8_t" => (1, true),
        "i16" | "int16" | "int16_t" => (2, true),
        "i32" | "int32" | "int32_t" | "int" => (4, true),
        "i64" | "isize" | "int64" | "int64_t" | "ssize_t" => (8, true),
        _ => return None,
    })
}
