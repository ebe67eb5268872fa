//! The functions of a recording, as the source has them: names of arguments, and values by their
//! types, as far as they were in the registers that were recorded.
//!
//! A part of a value that was elsewhere is [`ELSEWHERE`], and an argument without a name, such as
//! `_`, is left out. Of a function without debug information
//! the registers themselves are shown.

use std::{cell::RefCell, collections::HashMap, rc::Rc};

use bpf::context::Register;
use debug_info::DebugInfo;
use trace_interface::{
    Kernel,
    symbols::{
        Enum, Expression, Field, Moment, Operation, ProbePlace, Source, Struct, Type, TypeId,
        Variable,
    },
};

use crate::ARGUMENTS;

/// Stands for a part of a value that was in no register that is recorded.
const ELSEWHERE: &str = "?";

/// What is known of functions by their addresses.
pub trait Functions {
    /// The name of a function.
    fn name(&self, address: u64) -> String;
    /// Names and values of its arguments, with what was in the registers [`ARGUMENTS`] at its
    /// entry.
    fn arguments(&self, address: u64, registers: [u64; ARGUMENTS.len()]) -> Vec<(String, String)>;
    /// Its result, with what was in `rax` at its return. None: it has none.
    fn result(&self, address: u64, register: u64) -> Option<String>;
}

/// What the debug information says.
pub struct Sources<'a> {
    info: &'a DebugInfo,
    known: RefCell<HashMap<u64, Rc<Known>>>,
}

/// A function.
struct Known {
    name: String,
    /// None: there is no debug information.
    values: Option<Values>,
}

struct Values {
    arguments: Vec<(String, Option<Variable>)>,
    /// None as well if it is always the same, or not certain.
    result: Option<Variable>,
}

impl<'a> Sources<'a> {
    /// Those of a kernel.
    pub fn new(info: &'a DebugInfo) -> Self {
        Self {
            info,
            known: RefCell::default(),
        }
    }

    fn known(&self, address: u64) -> Rc<Known> {
        let mut all = self.known.borrow_mut();
        let known = all.entry(address).or_insert_with(|| {
            let function = self.info.function_at(address);
            let place = ProbePlace {
                address,
                moment: Moment::At,
            };
            let arguments = self.info.arguments(address).map(|names| {
                let argument = |name: String| {
                    let variable = self.info.variable(place, &name).ok();
                    (name, variable)
                };
                let named = names.into_iter().filter(|name| !name.is_empty());
                named.map(argument).collect()
            });
            Rc::new(Known {
                name: function.map_or_else(|| format!("{address:#x}"), |function| function.path),
                values: arguments.map(|arguments| Values {
                    arguments,
                    result: self.info.returned(address).ok(),
                }),
            })
        });
        known.clone()
    }
}

impl Functions for Sources<'_> {
    fn name(&self, address: u64) -> String {
        self.known(address).name.clone()
    }

    fn arguments(&self, address: u64, registers: [u64; ARGUMENTS.len()]) -> Vec<(String, String)> {
        let Some(values) = &self.known(address).values else {
            let raw = (0..).zip(registers);
            return raw
                .map(|(number, value): (u32, u64)| (format!("arg{number}"), format!("{value:#x}")))
                .collect();
        };
        let registers: Vec<_> = ARGUMENTS.into_iter().zip(registers).collect();
        let shown = |(name, variable): &(String, Option<Variable>)| {
            let variable = variable.as_ref();
            let text = variable.map_or(ELSEWHERE.into(), |of| shown(self.info, of, &registers));
            (name.clone(), text)
        };
        values.arguments.iter().map(shown).collect()
    }

    fn result(&self, address: u64, register: u64) -> Option<String> {
        let Some(values) = &self.known(address).values else {
            return Some(format!("{register:#x}"));
        };
        let result = values.result.as_ref().filter(|of| !of.pieces.is_empty())?;
        Some(shown(self.info, result, &[(Register::Ax, register)]))
    }
}

/// A value, of which parts are in registers with that content.
fn shown(kernel: &dyn Kernel, variable: &Variable, registers: &[(Register, u64)]) -> String {
    let mut bytes = Vec::new();
    for piece in &variable.pieces {
        let number = match &piece.source {
            Source::Value(expression) => calculate(expression, registers),
            Source::Memory(_) | Source::Missing => None,
        };
        let of_piece = number.map(u64::to_le_bytes);
        bytes.extend((0..piece.bytes as usize).map(|at| of_piece?.get(at).copied()));
    }
    text(kernel, variable.type_id, &bytes)
}

/// A number, if all that it needs is in those registers.
fn calculate(expression: &Expression, registers: &[(Register, u64)]) -> Option<u64> {
    Some(match expression {
        Expression::Constant(number) => *number,
        Expression::Register(wanted) | Expression::AtEntry(wanted) => {
            let mut all = registers.iter();
            all.find(|(register, _)| register == wanted)?.1
        }
        Expression::Load { .. } => return None,
        Expression::Binary(operation, left, right) => {
            let (a, b) = (calculate(left, registers)?, calculate(right, registers)?);
            let shift = u32::try_from(b).unwrap_or(u32::MAX);
            match operation {
                Operation::Add => a.wrapping_add(b),
                Operation::Subtract => a.wrapping_sub(b),
                Operation::Multiply => a.wrapping_mul(b),
                Operation::And => a & b,
                Operation::Or => a | b,
                Operation::Xor => a ^ b,
                Operation::ShiftLeft => a.checked_shl(shift)?,
                Operation::ShiftRight => a.checked_shr(shift)?,
                Operation::ShiftRightSigned => a.cast_signed().checked_shr(shift)?.cast_unsigned(),
            }
        }
    })
}

/// The number in bytes, if all are known.
fn number(bytes: Option<&[Option<u8>]>) -> Option<u128> {
    let bytes = bytes.filter(|bytes| bytes.len() <= 16)?;
    let mut number = 0;
    for byte in bytes.iter().rev() {
        number = number << 8 | u128::from((*byte)?);
    }
    Some(number)
}

/// A value by its type, as `{:?}` writes it.
fn text(kernel: &dyn Kernel, id: TypeId, bytes: &[Option<u8>]) -> String {
    let part = |from: usize, count: usize| number(bytes.get(from..from.checked_add(count)?));
    let found = match &*kernel.describe(id) {
        Type::Unit => Some("()".into()),
        Type::Integer {
            bytes: length,
            signed,
        } => part(0, (*length).into()).map(|number| match signed {
            true => {
                let above = 128 - 8 * u32::from(*length);
                (number.cast_signed() << above >> above).to_string()
            }
            false => number.to_string(),
        }),
        Type::Boolean => part(0, 1).map(|number| (number != 0).to_string()),
        Type::Character => part(0, 4).map(|number| {
            let character = u32::try_from(number).ok().and_then(char::from_u32);
            character.map_or_else(
                || format!("{number:#x}"),
                |character| format!("{character:?}"),
            )
        }),
        Type::Float { bytes: 4 } => part(0, 4).map(|bits| {
            let float = f32::from_bits(bits as u32);
            format!("{float:?}")
        }),
        Type::Float { .. } => part(0, 8).map(|bits| format!("{:?}", f64::from_bits(bits as u64))),
        Type::Pointer { .. } => part(0, 8).map(|address| format!("{address:#x}")),
        Type::Str | Type::Slice { .. } => part(0, 8)
            .zip(part(8, 8))
            .map(|(address, length)| format!("{address:#x}[{length}]")),
        Type::Struct(Struct { name, fields, .. }) => {
            let name = if name.starts_with('(') {
                ""
            } else {
                short(name)
            };
            Some(format!("{name}{}", listed(kernel, fields, bytes)))
        }
        Type::Enum(of) => variant(kernel, of, bytes),
        Type::Array { .. } | Type::Tail { .. } | Type::Opaque { .. } => None,
    };
    found.unwrap_or_else(|| ELSEWHERE.into())
}

fn variant(kernel: &dyn Kernel, of: &Enum, bytes: &[Option<u8>]) -> Option<String> {
    let tag = match of.tag {
        Some(tag) => {
            let begin = usize::try_from(tag.offset).ok()?;
            Some(number(
                bytes.get(begin..begin.checked_add(tag.bytes.into())?),
            )?)
        }
        None => None,
    };
    let mut all = of.variants.iter();
    let known = all
        .clone()
        .find(|variant| variant.tag.is_some() && variant.tag == tag);
    let found = known.or_else(|| all.find(|variant| variant.tag.is_none()))?;
    Some(format!(
        "{}{}",
        found.name,
        listed(kernel, &found.fields, bytes)
    ))
}

/// `(1, 2)` of fields with numbers, ` { a: 1 }` of fields with names, nothing of no fields.
fn listed(kernel: &dyn Kernel, fields: &[Field], bytes: &[Option<u8>]) -> String {
    let is_number = |name: &str| name.bytes().all(|letter| letter.is_ascii_digit());
    let value = |field: &Field| {
        let begin = usize::try_from(field.offset).ok();
        let rest = begin.and_then(|begin| bytes.get(begin..));
        let text = text(kernel, field.type_id, rest.unwrap_or_default());
        match is_number(&field.name) {
            true => text,
            false => format!("{}: {text}", field.name),
        }
    };
    let values: Vec<String> = fields.iter().map(value).collect();
    let values = values.join(", ");
    match fields.first() {
        None => String::new(),
        Some(first) if is_number(&first.name) => format!("({values})"),
        Some(_) => format!(" {{ {values} }}"),
    }
}

/// `a::b::Name<c::D>` without path and parameters.
fn short(name: &str) -> &str {
    let end = name.find('<').unwrap_or(name.len());
    let begin = name[..end].rfind("::").map_or(0, |colons| colons + 2);
    &name[begin..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_interface::symbols::{Function, Origin, Piece, Tag, Unavailable, Variant};

    /// Types by their numbers, and nothing else.
    struct Types(Vec<Type>);

    impl Kernel for Types {
        fn functions(&self, _: &str) -> Vec<Function> {
            Vec::new()
        }

        fn inlined(&self, _: &str) -> Vec<u64> {
            Vec::new()
        }

        fn line(&self, _: &str, _: u32) -> Result<Vec<u64>, Unavailable> {
            Ok(Vec::new())
        }

        fn variables(&self, _: ProbePlace) -> Vec<String> {
            Vec::new()
        }

        fn variable(&self, _: ProbePlace, _: &str) -> Result<Variable, Unavailable> {
            unreachable!("values are given")
        }

        fn returned(&self, _: u64) -> Result<Variable, Unavailable> {
            unreachable!("values are given")
        }

        fn describe(&self, id: TypeId) -> Rc<Type> {
            Rc::new(self.0[id.0 as usize].clone())
        }

        fn global(&self, _: &str) -> Result<Variable, Unavailable> {
            unreachable!("values are given")
        }

        fn nearest(&self, _: &str) -> Vec<String> {
            Vec::new()
        }
    }

    fn field(name: &str, offset: u64, type_id: u64) -> Field {
        Field {
            name: name.into(),
            offset,
            type_id: TypeId(type_id),
        }
    }

    fn types() -> Types {
        let integer = |bytes, signed| Type::Integer { bytes, signed };
        let variant = |name: &str, tag, fields| Variant {
            name: name.into(),
            tag,
            fields,
        };
        Types(vec![
            integer(4, false),
            integer(4, true),
            Type::Boolean,
            Type::Character,
            Type::Float { bytes: 4 },
            Type::Pointer {
                name: "&Task".into(),
                to: TypeId(0),
            },
            Type::Str,
            Type::Struct(Struct {
                name: "a::Pair<u32>".into(),
                bytes: 8,
                fields: vec![field("first", 0, 0), field("second", 4, 1)],
                parameters: vec![TypeId(0)],
                origin: Origin::Source,
            }),
            Type::Struct(Struct {
                name: "(u32, i32)".into(),
                bytes: 8,
                fields: vec![field("0", 0, 0), field("1", 4, 1)],
                parameters: Vec::new(),
                origin: Origin::Source,
            }),
            Type::Enum(Enum {
                name: "Result".into(),
                bytes: 8,
                tag: Some(Tag {
                    offset: 0,
                    bytes: 4,
                    signed: false,
                }),
                variants: vec![
                    variant("Ok", Some(0), vec![field("0", 4, 1)]),
                    variant("Err", Some(1), vec![]),
                    variant("Other", None, vec![field("why", 0, 0)]),
                ],
                origin: Origin::Source,
            }),
            Type::Unit,
            // A niche of 16 bytes.
            Type::Enum(Enum {
                name: "Option".into(),
                bytes: 16,
                tag: Some(Tag {
                    offset: 0,
                    bytes: 16,
                    signed: false,
                }),
                variants: vec![
                    variant("None", Some(0), vec![]),
                    variant("Some", None, vec![field("0", 8, 0)]),
                ],
                origin: Origin::Library,
            }),
        ])
    }

    fn in_register(bytes: u32, register: Register) -> Piece {
        Piece {
            bytes,
            source: Source::Value(Expression::Register(register)),
        }
    }

    #[test]
    fn values_of_registers_are_shown_by_their_types() {
        let types = types();
        let shown = |id, register| {
            let variable = Variable {
                type_id: TypeId(id),
                pieces: vec![in_register(8, Register::Di)],
            };
            shown(&types, &variable, &[(Register::Di, register)])
        };
        // The upper half of a register is not part of a smaller number.
        assert_eq!(shown(0, 0xdead_0000_0007), "7");
        assert_eq!(shown(1, 0xffff_fffe), "-2");
        assert_eq!(shown(1, 0xdead_7fff_ffff), "2147483647");
        assert_eq!(shown(2, 1), "true");
        assert_eq!(shown(2, 0x100), "false");
        assert_eq!(shown(3, 0xe9), "'é'");
        assert_eq!(shown(3, 0xd800), "0xd800");
        assert_eq!(shown(4, 0x3dcc_cccd), "0.1");
        assert_eq!(shown(5, 0xffff_8000_0000_1000), "0xffff800000001000");
        assert_eq!(
            shown(7, 0xffff_ffff_0000_0005),
            "Pair { first: 5, second: -1 }"
        );
        assert_eq!(shown(8, 0x0000_0002_0000_0005), "(5, 2)");
        assert_eq!(shown(9, 0xffff_ffef_0000_0000), "Ok(-17)");
        assert_eq!(shown(9, 1), "Err");
        assert_eq!(shown(9, 7), "Other { why: 7 }");
        assert_eq!(shown(10, 7), "()");
        // Half of a text is known.
        assert_eq!(shown(6, 0x1000), "?");
    }

    #[test]
    fn numbers_are_calculated_from_registers_as_the_processor_does() {
        let registers = [(Register::Di, u64::MAX - 1), (Register::Si, 3)];
        let (di, si) = (Expression::Register(Register::Di), Register::Si);
        for (operation, number) in [
            (Operation::Add, Some(1)),
            (Operation::Subtract, Some(u64::MAX - 4)),
            (Operation::Multiply, Some(u64::MAX - 5)),
            (Operation::And, Some(2)),
            (Operation::Or, Some(u64::MAX)),
            (Operation::Xor, Some(u64::MAX - 2)),
            (Operation::ShiftLeft, Some(u64::MAX - 15)),
            (Operation::ShiftRight, Some(u64::MAX >> 3)),
            (Operation::ShiftRightSigned, Some(u64::MAX)),
        ] {
            let of = |other: Expression| {
                let both = (Box::new(di.clone()), Box::new(other));
                calculate(&Expression::Binary(operation, both.0, both.1), &registers)
            };
            assert_eq!(of(Expression::AtEntry(si)), number, "{operation:?}");
            assert_eq!(
                of(Expression::Register(Register::Cx)),
                None,
                "{operation:?}"
            );
            // More places than a number has.
            let is_shift = matches!(
                operation,
                Operation::ShiftLeft | Operation::ShiftRight | Operation::ShiftRightSigned
            );
            assert_eq!(
                of(Expression::Constant(64)).is_none(),
                is_shift,
                "{operation:?}"
            );
        }
    }

    #[test]
    fn parts_that_are_elsewhere_are_told() {
        let types = types();
        let shown = |id, pieces: Vec<Piece>| {
            let variable = Variable {
                type_id: TypeId(id),
                pieces,
            };
            let registers = [(Register::Di, 5), (Register::Si, 9)];
            shown(&types, &variable, &registers)
        };
        let missing = |bytes| Piece {
            bytes,
            source: Source::Missing,
        };
        let both = vec![in_register(8, Register::Di), in_register(8, Register::Si)];
        assert_eq!(shown(6, both), "0x5[9]");
        let none = |register| Piece {
            source: Source::Value(Expression::Constant(0)),
            ..in_register(8, register)
        };
        let wide = vec![none(Register::Di), in_register(8, Register::Si)];
        assert_eq!(shown(11, wide), "Some(9)");
        let wide = vec![none(Register::Di), none(Register::Si)];
        assert_eq!(shown(11, wide), "None");
        let one = vec![in_register(4, Register::Di), missing(4)];
        assert_eq!(shown(7, one), "Pair { first: 5, second: ? }");
        assert_eq!(
            shown(7, vec![missing(4), in_register(4, Register::Si)]),
            "Pair { first: ?, second: 9 }"
        );
        assert_eq!(shown(0, vec![in_register(4, Register::Cx)]), "?");
        assert_eq!(shown(0, vec![]), "?");
        let memory = Piece {
            bytes: 4,
            source: Source::Memory(Expression::Register(Register::Di)),
        };
        assert_eq!(shown(0, vec![memory]), "?");
        // Two values that share a register.
        let upper = Expression::Binary(
            Operation::ShiftRight,
            Box::new(Expression::AtEntry(Register::Si)),
            Box::new(Expression::Constant(1)),
        );
        let upper = Piece {
            bytes: 4,
            source: Source::Value(upper),
        };
        assert_eq!(shown(0, vec![upper]), "4");
        // Half of it is in memory, which is not there any more.
        let load = Expression::Load {
            address: Box::new(Expression::Register(Register::Di)),
            bytes: 4,
        };
        let half = Expression::Binary(
            Operation::Add,
            Box::new(Expression::Constant(1)),
            Box::new(load),
        );
        let half = Piece {
            bytes: 4,
            source: Source::Value(half),
        };
        assert_eq!(shown(0, vec![half]), "?");
    }
}
