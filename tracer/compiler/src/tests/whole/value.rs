//! Values, and the numbers that operators make of them.
//!
//! A number is 64 bits and a sign, which the type of its expression tells. Each rule is one of
//! docs/trace-language.md, in its order there.

use super::{
    super::arithmetic::calculated,
    tree::{Cut, Type},
};

#[derive(Clone, Debug, PartialEq, PartialOrd, Eq, Ord)]
pub(super) enum Value {
    Number { bits: u64, is_signed: bool },
    Truth(bool),
    Text(String),
    Tuple(Vec<Value>),
    Record(Vec<(&'static str, Value)>),
    Array(Vec<Value>),
    Address(u64),
    Bytes(Vec<u8>),
}

impl Value {
    pub(super) const fn unsigned(bits: u64) -> Self {
        Self::Number {
            bits,
            is_signed: false,
        }
    }

    pub(super) const fn signed(number: i64) -> Self {
        Self::Number {
            bits: number.cast_unsigned(),
            is_signed: true,
        }
    }

    /// What a variable or an entry has before anything is assigned.
    pub(super) fn zero(of: &Type) -> Self {
        match of {
            Type::Literal | Type::Signed => Self::signed(0),
            Type::Unsigned => Self::unsigned(0),
            Type::Truth => Self::Truth(false),
            Type::Text => Self::Text(String::new()),
            Type::Tuple(parts) => Self::Tuple(parts.iter().map(Self::zero).collect()),
            Type::Record(fields) => {
                let fields = fields.iter().map(|(name, of)| (*name, Self::zero(of)));
                Self::Record(fields.collect())
            }
            Type::Pointer(_) => Self::Address(0),
            Type::Array(cut, count) => Self::Array(vec![Self::cut(0, *cut); *count]),
        }
    }

    pub(super) fn cut(bits: u64, to: Cut) -> Self {
        Self::Number {
            bits: to.of(bits),
            is_signed: to.is_signed,
        }
    }

    pub(super) fn bits(&self) -> u64 {
        match self {
            Self::Number { bits, .. } | Self::Address(bits) => *bits,
            Self::Truth(is) => (*is).into(),
            other => panic!("{other:?} is no number"),
        }
    }

    pub(super) fn is_signed(&self) -> bool {
        matches!(
            self,
            Self::Number {
                is_signed: true,
                ..
            }
        )
    }

    /// The number that it means.
    pub(super) fn exact(&self) -> i128 {
        match self.is_signed() {
            true => self.bits().cast_signed().into(),
            false => self.bits().into(),
        }
    }

    /// Whether it holds as a condition.
    pub(super) fn holds(&self) -> bool {
        match self {
            Self::Text(text) => !text.is_empty(),
            other => other.bits() != 0,
        }
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            other => panic!("{other:?} is no text"),
        }
    }

    /// The same with the signs of that type, and with the fields in its order.
    pub(super) fn of(self, of: &Type) -> Self {
        match (self, of) {
            (value @ (Self::Number { .. } | Self::Truth(_)), Type::Signed) => Self::Number {
                bits: value.bits(),
                is_signed: true,
            },
            (value @ (Self::Number { .. } | Self::Truth(_)), Type::Unsigned) => {
                Self::unsigned(value.bits())
            }
            (Self::Tuple(parts), Type::Tuple(types)) => {
                let parts = parts.into_iter().zip(types);
                Self::Tuple(parts.map(|(part, of)| part.of(of)).collect())
            }
            (Self::Record(fields), Type::Record(types)) => {
                let field = |(name, of): &(&'static str, Type)| {
                    let found = fields.iter().find(|(known, _)| known == name);
                    (*name, found.expect("the field").1.clone().of(of))
                };
                Self::Record(types.iter().map(field).collect())
            }
            (value, _) => value,
        }
    }

    /// As `print` shows it.
    pub(super) fn shown(&self) -> String {
        let list = |values: &[Self]| {
            let texts: Vec<String> = values.iter().map(Self::shown).collect();
            texts.join(", ")
        };
        match self {
            Self::Number { .. } => self.exact().to_string(),
            Self::Truth(is) => is.to_string(),
            Self::Text(text) => text.clone(),
            Self::Tuple(parts) if parts.len() == 1 => format!("({},)", parts[0].shown()),
            Self::Tuple(parts) => format!("({})", list(parts)),
            Self::Record(fields) => {
                let fields: Vec<String> = fields
                    .iter()
                    .map(|(name, value)| format!(".{name} = {}", value.shown()))
                    .collect();
                format!("{{ {} }}", fields.join(", "))
            }
            Self::Array(values) => format!("[{}]", list(values)),
            Self::Bytes(bytes) => {
                let shown = |byte: &u8| match byte {
                    b' '..=b'~' if *byte != b'\\' => char::from(*byte).to_string(),
                    _ => format!("\\x{byte:02x}"),
                };
                bytes.iter().map(shown).collect()
            }
            Self::Address(address) => format!("{address:#x}"),
        }
    }
}

/// Whether two values are equal: numbers by what they mean, others by their parts.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Text(a), Value::Text(b)) => a == b,
        (Value::Tuple(a), Value::Tuple(b)) | (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Record(a), Value::Record(b)) => a.iter().all(|(name, value)| {
            let other = b.iter().find(|(known, _)| known == name);
            other.is_some_and(|(_, other)| equal(value, other))
        }),
        _ => a.exact() == b.exact(),
    }
}

pub(super) fn compare(op: &str, a: &Value, b: &Value) -> bool {
    match op {
        "==" => equal(a, b),
        "!=" => !equal(a, b),
        "<" => a.exact() < b.exact(),
        "<=" => a.exact() <= b.exact(),
        ">" => a.exact() > b.exact(),
        _ => a.exact() >= b.exact(),
    }
}

/// The bits of a result whose operands have that sign together. The left one says how it shifts.
pub(super) fn binary(op: &str, a: &Value, b: &Value, is_signed: bool, shifts_sign: bool) -> u64 {
    calculated(op, (a.bits(), b.bits()), is_signed, shifts_sign)
}
