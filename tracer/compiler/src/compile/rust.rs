//! Values of the traced kernel: where their bytes are, their fields, variants and elements.

use alloc::{boxed::Box, format, rc::Rc, string::String, vec::Vec};

use bpf::{AluOp, Condition, Reg};
use trace_interface::{
    shape::Shape,
    symbols::{
        Enum, Expression, Field, Moment, Operation, Place as ProbedPlace, Register, Source, Struct,
        Tag, Type, TypeId, Unavailable, Variable, Variant,
    },
};
use trace_language::{
    Diagnostic,
    tree::{self, ExpressionKind, Name, Span, StatementKind, TypeKind, TypeName},
};

use super::{
    body::{Body, SiteKind},
    expression::{Counted, Kind, Lowered, Val},
    names,
};
use crate::{
    asm::{Place, step},
    number::{Number, Space, Test},
};

/// How deep values inside of values are stored.
const MOST_DEPTH: u32 = 6;
/// The most elements that are stored of a slice or an array.
const MOST_ELEMENTS: u32 = 16;

/// A value of a type of the source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Object {
    pub(crate) type_id: TypeId,
    pub(crate) at: At,
    /// It means something only if this holds.
    pub(crate) present: Test,
    /// It is the content of a variant, by the variant's name.
    pub(crate) is_variant: bool,
}

/// Where the bytes of an object are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum At {
    Memory {
        space: Space,
        address: Number,
        offset: i64,
    },
    Pieces {
        pieces: Rc<[Piece]>,
        offset: u64,
    },
}

/// Some bytes of an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Piece {
    pub(crate) bytes: u64,
    pub(crate) from: Origin,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Origin {
    Memory(Number),
    Value(Number),
    Missing,
}

/// Pieces, some of which may be missing, from a place on.
#[derive(Clone, Copy)]
struct Gaps<'p> {
    pieces: &'p [Piece],
    at: u64,
}

impl Gaps<'_> {
    /// Whether some of the `bytes` from an offset on are missing.
    fn lacks(&self, offset: u64, bytes: u64) -> bool {
        let (from, to) = (self.at + offset, self.at + offset + bytes);
        let mut begin = 0;
        self.pieces.iter().any(|piece| {
            let end = begin + piece.bytes;
            let is_there = piece.from != Origin::Missing || end <= from || to <= begin;
            begin = end;
            !is_there
        })
    }

    fn behind(self, offset: u64) -> Self {
        Self {
            at: self.at + offset,
            ..self
        }
    }
}

impl Object {
    pub(super) fn in_memory(
        type_id: TypeId,
        (space, address): (Space, Number),
        present: Test,
    ) -> Self {
        Self {
            type_id,
            at: At::Memory {
                space,
                address,
                offset: 0,
            },
            present,
            is_variant: false,
        }
    }

    /// Whose memory it is in. The addresses that it holds lead into the same.
    pub(super) fn space(&self) -> Space {
        match &self.at {
            At::Memory { space, .. } => *space,
            At::Pieces { .. } => Space::Kernel,
        }
    }

    /// A part of it.
    fn part(&self, type_id: TypeId, bytes: u64) -> Self {
        let at = match &self.at {
            At::Memory {
                space,
                address,
                offset,
            } => At::Memory {
                space: *space,
                address: address.clone(),
                offset: offset.wrapping_add_unsigned(bytes),
            },
            At::Pieces { pieces, offset } => At::Pieces {
                pieces: pieces.clone(),
                offset: offset + bytes,
            },
        };
        Self {
            type_id,
            at,
            present: self.present.clone(),
            is_variant: false,
        }
    }

    /// The pieces that it is made of, if it is not in memory.
    fn gaps(&self) -> Option<Gaps<'_>> {
        match &self.at {
            At::Pieces { pieces, offset } => Some(Gaps {
                pieces,
                at: *offset,
            }),
            At::Memory { .. } => None,
        }
    }

    /// `bytes` (at most 8) of it as a number. None: the compiler of the kernel left them out.
    fn read(&self, at: u64, bytes: u8, signed: bool) -> Option<Number> {
        match &self.at {
            At::Memory {
                space,
                address,
                offset,
            } => Some(load(
                (*space, address),
                offset.wrapping_add_unsigned(at),
                bytes,
                signed,
            )),
            At::Pieces { pieces, offset } => {
                let number = read_pieces(pieces, offset + at, bytes)?;
                Some(match signed || !is_exact(&number, bytes) {
                    true => number.extended(bytes, signed),
                    false => number,
                })
            }
        }
    }
}

/// Whether a number has nothing above so many bytes.
fn is_exact(number: &Number, bytes: u8) -> bool {
    match number {
        Number::Load {
            bytes: of,
            signed: false,
            ..
        } => *of <= bytes,
        Number::Constant(number) => bytes >= 8 || number >> (8 * bytes) == 0,
        _ => bytes >= 8,
    }
}

/// A load of 1 to 8 bytes. Those of other sizes than powers of two are put together.
fn load((space, address): (Space, &Number), offset: i64, bytes: u8, signed: bool) -> Number {
    if bytes.is_power_of_two() {
        return Number::load_in(space, address.clone(), offset, bytes, signed);
    }
    let low = match bytes {
        5.. => 4,
        _ => 2,
    };
    let high = load(
        (space, address),
        offset + i64::from(low),
        bytes - low,
        signed,
    );
    let high = Number::alu(AluOp::ShiftLeft, high, Number::Constant(u64::from(low) * 8));
    let low = Number::load_in(space, address.clone(), offset, low, false);
    Number::alu(AluOp::Or, high, low)
}

/// Bytes of pieces as a number. The bits above them are not defined.
fn read_pieces(pieces: &[Piece], at: u64, bytes: u8) -> Option<Number> {
    let end = at + u64::from(bytes);
    let mut begin = 0;
    let mut sum: Option<Number> = None;
    let mut found = 0;
    for piece in pieces {
        let (from, to) = (at.max(begin), end.min(begin + piece.bytes));
        if from < to {
            let inside = from - begin;
            let part = (to - from) as u8;
            let number = match &piece.from {
                Origin::Missing => return None,
                Origin::Memory(address) => {
                    load((Space::Kernel, address), inside as i64, part, false)
                }
                Origin::Value(_) if inside >= 8 => Number::Constant(0),
                Origin::Value(number) => {
                    let shifted = Number::alu(
                        AluOp::ShiftRight,
                        number.clone(),
                        Number::Constant(inside * 8),
                    );
                    match part == bytes {
                        true => shifted,
                        false => shifted.extended(part, false),
                    }
                }
            };
            let moved = Number::alu(AluOp::ShiftLeft, number, Number::Constant((from - at) * 8));
            sum = Some(match sum {
                None => moved,
                Some(sum) => Number::alu(AluOp::Or, sum, moved),
            });
            found += part;
        }
        begin += piece.bytes;
    }
    sum.filter(|_| found == bytes)
}

/// When the registers of an expression are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// Where the program runs.
    Here,
    /// At the entry of the call whose return the program handles.
    AtEntry,
}

impl Body<'_, '_> {
    fn unavailable(&self, unavailable: Unavailable, span: Span) -> Diagnostic {
        Diagnostic::new(span, unavailable.reason, unavailable.help)
    }

    /// Bytes of a value that the debug information does not give.
    pub(super) fn missing(&self, span: Span) -> Diagnostic {
        Diagnostic::new(
            span,
            "the compiler of the kernel left this part of the value out",
            "use another field, or probe another line of the function (line:FILE:N)",
        )
    }

    /// `args.name`.
    pub(super) fn argument(&mut self, name: &Name) -> Lowered<Val> {
        // Inside of a field's expression `args` has the arguments of the function.
        if let Some(source) = self.site.source.take() {
            let value = match source.field(&name.text) {
                Some(field) => self.value(&field).map_err(|error| Diagnostic {
                    span: name.span,
                    ..error
                }),
                None => {
                    let fields = source.field_names();
                    let near = names::nearest(&name.text, fields);
                    let all: Vec<String> = source.field_names().map(String::from).collect();
                    Err(Diagnostic::new(
                        name.span,
                        format!("this source has no field `{}`", name.text),
                        match (near.is_empty(), all.is_empty()) {
                            (false, _) => names::did_you_mean(&near),
                            (true, false) => format!("it has {}", all.join(", ")),
                            (true, true) => "it has none".into(),
                        },
                    ))
                }
            };
            self.site.source = Some(source);
            return value;
        }
        if !self.c.options.debug_info {
            return Err(Diagnostic::new(
                name.span,
                format!("`args.{}` is a name of the source", name.text),
                names::NO_DEBUG_INFORMATION,
            ));
        }
        match self.local(&name.text) {
            Some(Ok(value)) => Ok(value),
            Some(Err(unavailable)) => Err(self.unavailable(unavailable, name.span)),
            None => Err(Diagnostic::new(
                name.span,
                "there are no arguments here",
                "use them at kprobe:, kretprobe:, session:, inline: and line: probes",
            )),
        }
    }

    /// An argument or local variable of the source. None: there are none here.
    pub(super) fn local(&mut self, name: &str) -> Option<Result<Val, Unavailable>> {
        let address = self.site.address?;
        let when = match self.site.kind {
            SiteKind::Entry | SiteKind::SessionEntry | SiteKind::Inside => When::Here,
            SiteKind::Return => When::AtEntry,
            _ => return None,
        };
        self.depends_on_place = true;
        let place = ProbedPlace {
            address,
            moment: Moment::At,
        };
        let variable = match self.c.kernel.variable(place, name) {
            Ok(variable) => variable,
            Err(unavailable) => {
                let names = self.c.kernel.variables(place);
                let is_known = names.iter().any(|known| known == name);
                return Some(Err(match is_known || !unavailable.help.is_empty() {
                    true => unavailable,
                    false => {
                        let near = names::nearest(name, names.iter().map(|name| &**name));
                        let help = match (near.is_empty(), names.is_empty()) {
                            (false, _) => names::did_you_mean(&near),
                            (true, true) => String::new(),
                            (true, false) => format!("there are {}", names.join(", ")),
                        };
                        Unavailable {
                            help,
                            ..unavailable
                        }
                    }
                }));
            }
        };
        Some(self.object(&variable, when))
    }

    /// The result of the function.
    pub(super) fn returned(&mut self, span: Span) -> Lowered<Val> {
        if self.site.kind != SiteKind::Return {
            return Err(Diagnostic::new(
                span,
                "there is no result before the function returns",
                "use it at kretprobe:FUNCTION, or in the return part of session:FUNCTION",
            ));
        }
        if !self.c.options.debug_info {
            return Ok(Val::number(Number::Register(Register::Ax), Kind::SIGNED));
        }
        let Some(address) = self.site.address else {
            return Ok(Val::number(Number::Register(Register::Ax), Kind::SIGNED));
        };
        self.depends_on_place = true;
        let variable = self.c.kernel.returned(address);
        let object = variable.and_then(|variable| self.object(&variable, When::Here));
        object.map_err(|unavailable| {
            let help = match unavailable.help.is_empty() {
                true => "reg(\"ax\") is the register in which small results are".into(),
                false => unavailable.help,
            };
            Diagnostic::new(span, unavailable.reason, help)
        })
    }

    /// A static variable, by its path.
    pub(super) fn global(&mut self, path: &str) -> Result<Val, Unavailable> {
        let variable = self.c.kernel.global(path)?;
        self.object(&variable, When::Here)
    }

    fn object(&mut self, variable: &Variable, when: When) -> Result<Val, Unavailable> {
        let mut pieces = Vec::new();
        for piece in &variable.pieces {
            let bytes = u64::from(piece.bytes);
            match &piece.source {
                Source::Missing => pieces.push(Piece {
                    bytes,
                    from: Origin::Missing,
                }),
                Source::Value(expression) => {
                    let number = self.convert(expression, when)?;
                    let number = match when {
                        When::Here => number,
                        When::AtEntry => self.kept(number),
                    };
                    pieces.push(Piece {
                        bytes,
                        from: Origin::Value(number),
                    });
                }
                Source::Memory(expression) => {
                    let address = self.convert(expression, when)?;
                    if when == When::Here || address.constant().is_some() {
                        pieces.push(Piece {
                            bytes,
                            from: Origin::Memory(address),
                        });
                        continue;
                    }
                    // The stack of the entry may be overwritten until the return. So
                    // the bytes are kept, not the address.
                    let mut at = 0;
                    while at < bytes {
                        let step = step(bytes - at);
                        let number = Number::load(address.clone(), at as i64, step, false);
                        pieces.push(Piece {
                            bytes: step.into(),
                            from: Origin::Value(self.kept(number)),
                        });
                        at += u64::from(step);
                    }
                }
            }
        }
        let at = match &pieces[..] {
            [
                Piece {
                    from: Origin::Memory(address),
                    ..
                },
            ] => At::Memory {
                space: Space::Kernel,
                address: address.clone(),
                offset: 0,
            },
            _ => At::Pieces {
                pieces: pieces.into(),
                offset: 0,
            },
        };
        Ok(Val::Object(Object {
            type_id: variable.type_id,
            at,
            present: Test::Constant(true),
            is_variant: false,
        }))
    }

    /// A number of the debug information.
    fn convert(&mut self, expression: &Expression, when: When) -> Result<Number, Unavailable> {
        Ok(match expression {
            Expression::Constant(number) => Number::Constant(*number),
            Expression::Register(register) => Number::Register(*register),
            Expression::AtEntry(register) => match (self.site.kind, when) {
                (SiteKind::Entry | SiteKind::SessionEntry, _) | (_, When::AtEntry) => {
                    Number::Register(*register)
                }
                (SiteKind::Return, When::Here) => self.kept(Number::Register(*register)),
                _ => {
                    return Err(Unavailable {
                        reason: "the value is known at the function's entry only".into(),
                        help: "probe the entry (kprobe:), or the return (kretprobe:)".into(),
                    });
                }
            },
            Expression::Load { address, bytes } => {
                Number::load(self.convert(address, when)?, 0, *bytes, false)
            }
            Expression::Binary(operation, left, right) => {
                let left = self.convert(left, when)?;
                let right = self.convert(right, when)?;
                let op = match operation {
                    Operation::Add => AluOp::Add,
                    Operation::Subtract => AluOp::Sub,
                    Operation::Multiply => AluOp::Mul,
                    Operation::And => AluOp::And,
                    Operation::Or => AluOp::Or,
                    Operation::Xor => AluOp::Xor,
                    Operation::ShiftLeft => AluOp::ShiftLeft,
                    Operation::ShiftRight => AluOp::ShiftRight,
                    Operation::ShiftRightSigned => AluOp::ShiftRightSigned,
                };
                Number::alu(op, left, right)
            }
        })
    }

    /// A number of the entry of the call, kept for the return.
    pub(super) fn kept(&mut self, number: Number) -> Number {
        if number.constant().is_some() {
            return number;
        }
        self.asm.shares = true;
        Number::Own(Place {
            base: Reg::R9,
            offset: self.shared.keep(number),
        })
    }

    /// An object as a number: an integer, a type around one, an enum without fields, or a `Result`
    /// of numbers.
    pub(super) fn object_number(&mut self, object: &Object, span: Span) -> Lowered<Counted> {
        let described = self.c.describe(object.type_id);
        let read = |bytes, signed| object.read(0, bytes, signed);
        let (number, kind) = match &*described {
            Type::Integer { bytes, signed } if *bytes <= 8 => {
                let kind = Kind::Integer {
                    bytes: *bytes,
                    signed: *signed,
                };
                (read(*bytes, *signed), kind)
            }
            Type::Boolean => (read(1, false), Kind::Boolean),
            Type::Character => (read(4, false), Kind::Character),
            Type::Pointer { to, .. } => (
                read(8, false),
                Kind::Pointer {
                    to: Some(*to),
                    space: object.space(),
                },
            ),
            Type::Struct(Struct { fields, .. }) => {
                let mut with_bytes = fields.iter().filter(|field| self.size(field.type_id) != 0);
                if let (Some(only), None) = (with_bytes.next(), with_bytes.next()) {
                    return self.object_number(&object.part(only.type_id, only.offset), span);
                }
                return Err(self.no_number(&described, span));
            }
            Type::Enum(of) if of.variants.iter().all(|variant| self.is_unit(variant)) => {
                match of.tag {
                    Some(Tag { offset, bytes }) => (
                        object.read(offset, bytes, false),
                        Kind::Integer {
                            bytes,
                            signed: false,
                        },
                    ),
                    None => (Some(Number::Constant(0)), Kind::Literal),
                }
            }
            Type::Enum(of) => match self.result_number(object, of, span)? {
                Some(counted) => return Ok(counted),
                None => return Err(self.no_number(&described, span)),
            },
            _ => return Err(self.no_number(&described, span)),
        };
        Ok(Counted {
            number: number.ok_or_else(|| self.missing(span))?,
            kind,
            present: object.present.clone(),
        })
    }

    /// A `Result` of numbers as system calls give it: that of `Ok`, or that of `Err`, negated.
    fn result_number(
        &mut self,
        object: &Object,
        of: &Enum,
        span: Span,
    ) -> Lowered<Option<Counted>> {
        let variant = |name: &str| of.variants.iter().position(|variant| variant.name == name);
        let (Some(ok), Some(err), 2) = (variant("Ok"), variant("Err"), of.variants.len()) else {
            return Ok(None);
        };
        let is_ok = self.is_variant(object, of, ok, span)?;
        let mut numbers = [Number::Constant(0), Number::Constant(0)];
        for (number, variant) in numbers.iter_mut().zip([ok, err]) {
            let mut with_bytes = of.variants[variant]
                .fields
                .iter()
                .filter(|field| self.size(field.type_id) != 0);
            match (with_bytes.next(), with_bytes.next()) {
                (None, _) => {}
                (Some(only), None) => {
                    let part = object.part(only.type_id, only.offset);
                    match self.object_number(&part, span) {
                        Ok(counted) => *number = counted.number,
                        Err(_) => return Ok(None),
                    }
                }
                _ => return Ok(None),
            }
        }
        let [ok, err] = numbers;
        let err = Number::alu(AluOp::Sub, Number::Constant(0), err);
        Ok(Some(Counted {
            number: Number::select(is_ok, ok, err),
            kind: Kind::SIGNED,
            present: object.present.clone(),
        }))
    }

    fn no_number(&self, described: &Type, span: Span) -> Diagnostic {
        let help = match described {
            Type::Struct(of) => {
                let fields: Vec<String> = of
                    .fields
                    .iter()
                    .map(|field| format!(".{}", field.name))
                    .collect();
                format!("take a field: {}", shortened(&fields))
            }
            Type::Enum(of) => {
                let variants = of
                    .variants
                    .iter()
                    .map(|variant| format!(".{}", variant.name));
                let variants: Vec<String> = variants.collect();
                format!(
                    "take what a variant holds: {}; or print it whole",
                    shortened(&variants)
                )
            }
            Type::Slice { .. } | Type::Str => "take its length: .len".into(),
            Type::Array { .. } => "take an element: [0]".into(),
            Type::Float { .. } => "floating-point numbers can be printed and be keys only".into(),
            _ => "print it, or use it as a key".into(),
        };
        Diagnostic::new(
            span,
            format!("this is {}, not a number", type_name(described)),
            help,
        )
    }

    /// Bytes of a type.
    pub(super) fn size(&self, id: TypeId) -> u64 {
        self.size_at(id, 0)
    }

    fn size_at(&self, id: TypeId, depth: u32) -> u64 {
        if depth > 16 {
            return 0;
        }
        match &*self.c.describe(id) {
            Type::Unit => 0,
            Type::Integer { bytes, .. } | Type::Float { bytes } => (*bytes).into(),
            Type::Boolean => 1,
            Type::Character => 4,
            Type::Pointer { .. } => 8,
            Type::Slice { .. } | Type::Str => 16,
            Type::Array { of, count } => self.size_at(*of, depth + 1).saturating_mul(*count),
            Type::Struct(of) => of.bytes,
            Type::Enum(of) => of.bytes,
            Type::Opaque { bytes, .. } => *bytes,
        }
    }

    /// Whether a variant has no content.
    fn is_unit(&self, variant: &Variant) -> bool {
        variant
            .fields
            .iter()
            .all(|field| self.size(field.type_id) == 0)
    }

    /// Whether an enum is that variant now.
    pub(super) fn is_variant(
        &self,
        object: &Object,
        of: &Enum,
        variant: usize,
        span: Span,
    ) -> Lowered<Test> {
        let Some(Tag { offset, bytes }) = of.tag else {
            return Ok(Test::Constant(true));
        };
        let tag = object
            .read(offset, bytes, false)
            .ok_or_else(|| self.missing(span))?;
        let is = |value: u64| {
            Test::compare(
                Condition::Equal,
                tag.clone(),
                Number::Constant(crate::number::extend(value, bytes, false)),
            )
        };
        Ok(match of.variants[variant].tag {
            Some(value) => is(value),
            None => of
                .variants
                .iter()
                .filter_map(|variant| variant.tag)
                .fold(Test::Constant(true), |test, value| {
                    test.and(is(value).negated())
                }),
        })
    }

    /// A field, a variant, or the length of a slice.
    pub(super) fn object_field(&mut self, object: &Object, name: &Name) -> Lowered<Val> {
        let described = self.c.describe(object.type_id);
        let word = |at, this: &Self| {
            let number = object.read(at, 8, false);
            number
                .ok_or_else(|| this.missing(name.span))
                .map(|number| Counted {
                    number,
                    kind: Kind::UNSIGNED,
                    present: object.present.clone(),
                })
        };
        match &*described {
            Type::Struct(of) => match field_of(&of.fields, &name.text) {
                Some(field) => Ok(Val::Object(object.part(field.type_id, field.offset))),
                None => match self.shared_content(object, of, name.span)? {
                    Some(content) => self.object_field(&content, name),
                    None => Err(self.no_field(&of.name, &of.fields, name)),
                },
            },
            Type::Pointer { to, .. } => {
                let address = word(0, self)?;
                let place = (object.space(), address.number);
                let object = Object::in_memory(*to, place, address.present);
                self.object_field(&object, name)
            }
            Type::Slice { .. } | Type::Str => match &*name.text {
                "len" | "length" => Ok(Val::Number(word(8, self)?)),
                "ptr" | "data_ptr" => Ok(Val::Number(Counted {
                    kind: Kind::Pointer {
                        to: match &*described {
                            Type::Slice { of } => Some(*of),
                            _ => None,
                        },
                        space: object.space(),
                    },
                    ..word(0, self)?
                })),
                _ => Err(Diagnostic::new(
                    name.span,
                    format!("{} has no field `{}`", type_name(&described), name.text),
                    "it has .len, .ptr and, if it is a slice, elements: [0]",
                )),
            },
            Type::Array { count, .. } if name.text == "len" => {
                Ok(Val::number(Number::Constant(*count), Kind::UNSIGNED))
            }
            Type::Enum(of) => {
                let variant = of
                    .variants
                    .iter()
                    .position(|variant| variant.name == name.text);
                let Some(variant) = variant else {
                    // The only variant's fields need no name of it.
                    if let [only] = &of.variants[..]
                        && let Some(field) = field_of(&only.fields, &name.text)
                    {
                        return Ok(Val::Object(object.part(field.type_id, field.offset)));
                    }
                    let variants = of.variants.iter().map(|variant| &*variant.name);
                    let near = names::nearest(&name.text, variants.clone());
                    let all: Vec<String> = variants.map(|name| format!(".{name}")).collect();
                    return Err(Diagnostic::new(
                        name.span,
                        format!("`{}` has no variant `{}`", of.name, name.text),
                        match near.is_empty() {
                            true => format!("it has {}", shortened(&all)),
                            false => names::did_you_mean(&near),
                        },
                    ));
                };
                let test = self.is_variant(object, of, variant, name.span)?;
                let present = object.present.clone().and(test);
                let mut content = self.content(object, of, variant);
                content.present = present;
                content.is_variant = true;
                Ok(Val::Object(content))
            }
            other => Err(Diagnostic::new(
                name.span,
                format!("{} has no field `{}`", type_name(other), name.text),
                "",
            )),
        }
    }

    /// The value that an `Arc` or `Rc` leads to.
    fn shared_content(
        &mut self,
        object: &Object,
        of: &Struct,
        span: Span,
    ) -> Lowered<Option<Object>> {
        if !matches!(plain_name(&of.name), "Arc" | "Rc") {
            return Ok(None);
        }
        let Some((pointer, to)) = self.pointer_in(object, MOST_DEPTH) else {
            return Ok(None);
        };
        let address = pointer
            .read(0, 8, false)
            .ok_or_else(|| self.missing(span))?;
        let counted = Object::in_memory(to, (object.space(), address), object.present.clone());
        Ok(match &*self.c.describe(to) {
            Type::Struct(Struct { fields, .. }) => fields
                .iter()
                .find(|field| matches!(&*field.name, "data" | "value"))
                .map(|field| counted.part(field.type_id, field.offset)),
            _ => None,
        })
    }

    /// The first pointer inside of a value, and the type that it leads to.
    fn pointer_in(&self, object: &Object, depth: u32) -> Option<(Object, TypeId)> {
        match &*self.c.describe(object.type_id) {
            Type::Pointer { to, .. } => Some((object.clone(), *to)),
            Type::Struct(of) if depth > 0 => of.fields.iter().find_map(|field| {
                self.pointer_in(&object.part(field.type_id, field.offset), depth - 1)
            }),
            _ => None,
        }
    }

    /// The field of a type that is shown as this field: a cell or an atomic number.
    fn transparent(&self, of: &Struct) -> Option<Field> {
        let name = plain_name(&of.name);
        let is_cell = matches!(
            name,
            "UnsafeCell" | "SyncUnsafeCell" | "Cell" | "NonZeroInner"
        );
        if !is_cell && !name.starts_with("Atomic") && !name.starts_with("NonZero") {
            return None;
        }
        let mut fields = of
            .fields
            .iter()
            .filter(|field| self.size(field.type_id) != 0);
        match (fields.next(), fields.next()) {
            (Some(only), None) => Some(only.clone()),
            _ => None,
        }
    }

    /// The tag of an enum whose variants hold nothing, so that the tag is all of it.
    fn choice(&self, of: &Enum) -> Option<Tag> {
        let tells = |variant: &Variant| variant.tag.is_some() && self.is_unit(variant);
        of.tag.filter(|_| of.variants.iter().all(tells))
    }

    /// Whether values of a type are texts.
    pub(super) fn is_text_type(&self, id: TypeId) -> bool {
        match &*self.c.describe(id) {
            Type::Str => true,
            Type::Struct(of) => plain_name(&of.name) == "String",
            _ => false,
        }
    }

    /// The content of a variant: its only field, or all of them as a struct.
    fn content(&mut self, object: &Object, of: &Enum, variant: usize) -> Object {
        let variant = &of.variants[variant];
        match &variant.fields[..] {
            [only] if is_position(&only.name) => object.part(only.type_id, only.offset),
            _ => {
                let id = self.c.synthetic(Type::Struct(Struct {
                    name: variant.name.clone(),
                    bytes: of.bytes,
                    fields: variant.fields.clone(),
                }));
                object.part(id, 0)
            }
        }
    }

    /// A field of a variant, for patterns.
    pub(super) fn variant_field(
        &mut self,
        object: &Object,
        variant: &Variant,
        name: &Name,
    ) -> Lowered<Object> {
        match field_of(&variant.fields, &name.text) {
            Some(field) => Ok(object.part(field.type_id, field.offset)),
            None => Err(self.no_field(&variant.name, &variant.fields, name)),
        }
    }

    fn no_field(&self, of: &str, fields: &[Field], name: &Name) -> Diagnostic {
        let near = names::nearest(&name.text, fields.iter().map(|field| &*field.name));
        let all: Vec<String> = fields
            .iter()
            .map(|field| format!("`{}`", field.name))
            .collect();
        Diagnostic::new(
            name.span,
            format!("`{of}` has no field `{}`", name.text),
            match (near.is_empty(), all.is_empty()) {
                (false, _) => names::did_you_mean(&near),
                (true, false) => format!("it has {}", shortened(&all)),
                (true, true) => "it has none".into(),
            },
        )
    }

    /// `*object`.
    pub(super) fn dereference(&mut self, object: &Object, span: Span) -> Lowered<Val> {
        let described = self.c.describe(object.type_id);
        match &*described {
            Type::Pointer { to, .. } => {
                let address = object.read(0, 8, false).ok_or_else(|| self.missing(span))?;
                Ok(Val::Object(Object::in_memory(
                    *to,
                    (object.space(), address),
                    object.present.clone(),
                )))
            }
            Type::Str | Type::Slice { .. } => Ok(Val::Object(object.clone())),
            other => Err(Diagnostic::new(
                span,
                format!("{} is no reference", type_name(other)),
                "leave the `*` out",
            )),
        }
    }

    /// `value[index]`.
    pub(super) fn index(&mut self, value: Val, index: Counted, span: Span) -> Lowered<Val> {
        let object = match value {
            Val::Object(object) => object,
            Val::Number(Counted {
                number,
                kind:
                    Kind::Pointer {
                        to: Some(to),
                        space,
                    },
                present,
            }) => {
                // As an array without an end, as in C.
                let size = self.size(to);
                let offset = Number::alu(AluOp::Mul, index.number, Number::Constant(size));
                let address = Number::alu(AluOp::Add, number, offset);
                return Ok(Val::Object(Object::in_memory(
                    to,
                    (space, address),
                    present.and(index.present),
                )));
            }
            _ => {
                return Err(Diagnostic::new(
                    span,
                    "this value has no elements",
                    "take an element of a slice, an array or a pointer",
                ));
            }
        };
        let described = self.c.describe(object.type_id);
        let space = object.space();
        let (of, first, count) = match &*described {
            Type::Slice { of } => {
                let first = object.read(0, 8, false).ok_or_else(|| self.missing(span))?;
                let count = object.read(8, 8, false).ok_or_else(|| self.missing(span))?;
                (*of, first, count)
            }
            Type::Array { of, count } => match (&object.at, index.number.constant()) {
                (At::Pieces { .. }, Some(constant)) if constant < *count => {
                    let size = self.size(*of);
                    return Ok(Val::Object(object.part(*of, size * constant)));
                }
                (
                    At::Memory {
                        address, offset, ..
                    },
                    _,
                ) => {
                    let offset = Number::Constant(offset.cast_unsigned());
                    let first = Number::alu(AluOp::Add, address.clone(), offset);
                    (*of, first, Number::Constant(*count))
                }
                (At::Pieces { .. }, Some(_)) => {
                    return Err(Diagnostic::new(
                        span,
                        format!("the array has {count} elements"),
                        "use a smaller index",
                    ));
                }
                (At::Pieces { .. }, None) => {
                    return Err(Diagnostic::new(
                        span,
                        "the array is in registers, so its index must be a number of the text",
                        "use a constant index",
                    ));
                }
            },
            Type::Pointer { to, .. } => {
                let first = object.read(0, 8, false).ok_or_else(|| self.missing(span))?;
                let inner = self.c.describe(*to);
                return match &*inner {
                    // A reference to an array or slice.
                    Type::Array { .. } | Type::Slice { .. } => {
                        let inner = Object::in_memory(*to, (space, first), object.present);
                        self.index(Val::Object(inner), index, span)
                    }
                    _ => self.index(
                        Val::Number(Counted {
                            number: first,
                            kind: Kind::Pointer {
                                to: Some(*to),
                                space,
                            },
                            present: object.present,
                        }),
                        index,
                        span,
                    ),
                };
            }
            Type::Struct(vec) if plain_name(&vec.name) == "Vec" => {
                let of = self.element_type(&vec.name, span)?;
                let name = Name {
                    text: "len".into(),
                    span,
                };
                let count = self.object_field(&object, &name)?;
                let count = self.as_number(count, span)?.number;
                let pointer = self.pointer_in(&object, MOST_DEPTH);
                let first = pointer.and_then(|(pointer, _)| pointer.read(0, 8, false));
                (of, first.ok_or_else(|| self.missing(span))?, count)
            }
            other => {
                return Err(Diagnostic::new(
                    span,
                    format!("{} has no elements", type_name(other)),
                    "",
                ));
            }
        };
        let size = self.size(of);
        let offset = Number::alu(AluOp::Mul, index.number.clone(), Number::Constant(size));
        let address = Number::alu(AluOp::Add, first, offset);
        let inside = Test::compare(Condition::Below, index.number, count);
        let present = object.present.and(index.present).and(inside);
        Ok(Val::Object(Object::in_memory(
            of,
            (space, address),
            present,
        )))
    }

    /// The type of the elements of a `Vec<T, A>`. Its pointer leads to bytes, so the name tells.
    fn element_type(&mut self, name: &str, span: Span) -> Lowered<TypeId> {
        let parameter = name
            .split_once('<')
            .map_or("", |(_, parameters)| parameters);
        let mut depth = 0_u32;
        let end = parameter.find(|letter| {
            match letter {
                '<' | '(' | '[' => depth += 1,
                '>' | ')' | ']' if depth > 0 => depth -= 1,
                ',' | '>' => return depth == 0,
                _ => {}
            }
            false
        });
        let parameter = &parameter[..end.unwrap_or(parameter.len())];
        let text = format!("kprobe:f {{ print((&{parameter})0); }}");
        // As in a cast.
        let parsed = trace_language::parse_with_room(&text, &[], self.c.options.has_room);
        let statement = parsed.ok().and_then(|script| {
            let body = script.clauses.into_iter().next()?.body;
            body.statements.into_iter().next()
        });
        if let Some(StatementKind::Expression(tree::Expression {
            kind: ExpressionKind::Call { arguments, .. },
            ..
        })) = statement.map(|statement| statement.kind)
            && let Some(tree::Expression {
                kind: ExpressionKind::Cast { to, .. },
                ..
            }) = arguments.first()
            && let TypeKind::Pointer(of) = &to.kind
            && let Ok(Some(id)) = self.type_named(of)
        {
            return Ok(id);
        }
        Err(Diagnostic::new(
            span,
            format!("the type of the elements, `{parameter}`, is not found by that name"),
            "cast the pointer: ((&PATH::TYPE)value.buf.inner.ptr)[0]",
        ))
    }

    /// The type that a cast names. None: it is one of plain integers or of nothing in particular.
    pub(super) fn type_named(&mut self, name: &TypeName) -> Lowered<Option<TypeId>> {
        match &name.kind {
            TypeKind::Named(text) => {
                if let Some((bytes, signed)) = super::expression::integer(text) {
                    return Ok(Some(self.c.synthetic(Type::Integer { bytes, signed })));
                }
                match &**text {
                    "void" | "()" => return Ok(None),
                    "bool" => return Ok(Some(self.c.synthetic(Type::Boolean))),
                    "char" => return Ok(Some(self.c.synthetic(Type::Character))),
                    _ => {}
                }
                match self.c.kernel.type_named(text) {
                    Some(id) => Ok(Some(id)),
                    None => Err(Diagnostic::new(
                        name.span,
                        format!("no type of the kernel is called `{text}`"),
                        match self.c.options.debug_info {
                            true => "write its whole path",
                            false => names::NO_DEBUG_INFORMATION,
                        },
                    )),
                }
            }
            TypeKind::Pointer(of) => {
                let Some(to) = self.type_named(of)? else {
                    return Ok(None);
                };
                Ok(Some(self.c.synthetic(Type::Pointer {
                    name: "pointer".into(),
                    to,
                })))
            }
            TypeKind::Slice(_) => Err(Diagnostic::new(
                name.span,
                "a pointer to a slice needs its length",
                "cast to a pointer to the first element",
            )),
            TypeKind::Array { of, count } => {
                let Some(of) = self.type_named(of)? else {
                    return Ok(None);
                };
                Ok(Some(self.c.synthetic(Type::Array { of, count: *count })))
            }
        }
    }

    /// How an object is stored. A part that the compiler of the kernel left out is
    /// [`Shape::Unavailable`].
    pub(super) fn object_shape(&self, object: &Object) -> Shape {
        self.shape_at(object.type_id, 0, object.gaps())
    }

    /// Offset and type of a field.
    fn place_of(&self, id: TypeId, name: &str) -> Option<(u64, TypeId)> {
        match &*self.c.describe(id) {
            Type::Struct(of) => field_of(&of.fields, name).map(|of| (of.offset, of.type_id)),
            _ => None,
        }
    }

    /// Whether the length or the pointer of a `String` is missing. Its capacity is not needed.
    fn lacks_text(&self, id: TypeId, gaps: Gaps<'_>) -> bool {
        let bytes = self.place_of(id, "vec");
        let length = bytes.and_then(|(at, bytes)| {
            let (inside, _) = self.place_of(bytes, "len")?;
            Some(at + inside)
        });
        let pointer = self.offset_of_pointer(id, MOST_DEPTH);
        [length, pointer]
            .into_iter()
            .any(|at| at.is_none_or(|at| gaps.lacks(at, 8)))
    }

    /// Where the first pointer inside of a value is.
    fn offset_of_pointer(&self, id: TypeId, depth: u32) -> Option<u64> {
        match &*self.c.describe(id) {
            Type::Pointer { .. } => Some(0),
            Type::Struct(of) if depth > 0 => of.fields.iter().find_map(|field| {
                let inside = self.offset_of_pointer(field.type_id, depth - 1)?;
                Some(field.offset + inside)
            }),
            _ => None,
        }
    }

    fn shape_at(&self, id: TypeId, depth: u32, gaps: Option<Gaps<'_>>) -> Shape {
        let options = self.c.options;
        let described = self.c.describe(id);
        if depth > MOST_DEPTH {
            return Shape::Unit;
        }
        let size = self.size(id);
        let gaps = gaps.filter(|gaps| gaps.lacks(0, size));
        let inner = |offset: u64| gaps.map(|gaps| gaps.behind(offset));
        if let Some(gaps) = gaps {
            let is_lost = match &*described {
                Type::Struct(of) if plain_name(&of.name) == "String" => self.lacks_text(id, gaps),
                Type::Struct(_) | Type::Array { .. } | Type::Unit => false,
                Type::Enum(of) => of
                    .tag
                    .is_some_and(|tag| gaps.lacks(tag.offset, tag.bytes.into())),
                _ => true,
            };
            if is_lost {
                return Shape::Unavailable;
            }
        }
        let fields = |fields: &[Field]| {
            fields
                .iter()
                .map(|field| {
                    let shape = self.shape_at(field.type_id, depth + 1, inner(field.offset));
                    (Rc::from(&*field.name), shape)
                })
                .collect::<Vec<_>>()
        };
        let elements = |shape: &Shape| {
            let size = shape.bytes().max(1);
            (options.slice_bytes / size).clamp(1, MOST_ELEMENTS)
        };
        match &*described {
            Type::Unit => Shape::Unit,
            Type::Integer { bytes, signed } => match (bytes, signed) {
                (1 | 2 | 4 | 8, true) => Shape::Signed(*bytes),
                (1 | 2 | 4 | 8, false) => Shape::Unsigned(*bytes),
                _ => Shape::Array {
                    of: Box::new(Shape::Unsigned(1)),
                    stored: u32::from(*bytes),
                    count: (*bytes).into(),
                },
            },
            Type::Boolean => Shape::Boolean,
            Type::Character => Shape::Character,
            Type::Float { bytes } => Shape::Float(*bytes),
            Type::Pointer { .. } => Shape::Address,
            Type::Str => Shape::Counted(options.text_bytes),
            Type::Slice { of } => match &*self.c.describe(*of) {
                Type::Integer {
                    bytes: 1,
                    signed: false,
                } => Shape::Bytes(options.slice_bytes),
                _ => {
                    let of = self.shape_at(*of, depth + 1, None);
                    Shape::List {
                        most: elements(&of),
                        of: Box::new(of),
                    }
                }
            },
            Type::Array { of: id, count } => {
                let of = self.shape_at(*id, depth + 1, None);
                let stored = u32::try_from(*count).unwrap_or(u32::MAX).min(elements(&of));
                if gaps.is_none() {
                    return Shape::Array {
                        of: Box::new(of),
                        stored,
                        count: *count,
                    };
                }
                let size = self.size(*id);
                let item = |index| {
                    let gaps = inner(size * u64::from(index));
                    self.shape_at(*id, depth + 1, gaps)
                };
                Shape::Items {
                    items: (0..stored).map(item).collect(),
                    cut: *count > stored.into(),
                }
            }
            Type::Struct(of) if plain_name(&of.name) == "String" => {
                Shape::Counted(options.text_bytes)
            }
            Type::Struct(of) if self.transparent(of).is_some() => {
                let only = self.transparent(of);
                let (id, at) = only.map_or((id, 0), |field| (field.type_id, field.offset));
                self.shape_at(id, depth + 1, inner(at))
            }
            Type::Struct(of) => Shape::Struct {
                name: Rc::from(&*of.name),
                fields: fields(&of.fields),
            },
            Type::Enum(of) if self.choice(of).is_some() => Shape::Choice {
                name: Rc::from(&*of.name),
                bytes: of.tag.map_or(1, |tag| tag.bytes),
                variants: of
                    .variants
                    .iter()
                    .filter_map(|variant| Some((variant.tag?, Rc::from(&*variant.name))))
                    .collect(),
            },
            Type::Enum(of) => Shape::Enum {
                name: Rc::from(&*of.name),
                variants: of
                    .variants
                    .iter()
                    .map(|variant| (Rc::from(&*variant.name), fields(&variant.fields)))
                    .collect(),
            },
            Type::Opaque { bytes, .. } => {
                let stored = u32::try_from(*bytes).unwrap_or(u32::MAX).min(MOST_ELEMENTS);
                Shape::Array {
                    of: Box::new(Shape::Unsigned(1)),
                    stored,
                    count: *bytes,
                }
            }
        }
    }

    /// Stores a value as [`Self::object_shape`] says. `to` is zero before.
    pub(super) fn store_object(
        &mut self,
        object: &Object,
        to: Place,
        depth: u32,
        span: Span,
    ) -> Lowered<()> {
        let missing = object.gaps();
        if depth > MOST_DEPTH
            || missing.is_some()
                && self.shape_at(object.type_id, depth, missing) == Shape::Unavailable
        {
            return Ok(());
        }
        let described = self.c.describe(object.type_id);
        let mark = self.asm.mark();
        // The way to the object is gone once.
        let object = match &object.at {
            At::Memory {
                space,
                address,
                offset,
            } if !address.is_cheap() => {
                let kept = self.keep(address);
                Object {
                    at: At::Memory {
                        space: *space,
                        address: kept,
                        offset: *offset,
                    },
                    ..object.clone()
                }
            }
            _ => object.clone(),
        };
        match &*described {
            Type::Unit => {}
            Type::Integer { .. }
            | Type::Float { .. }
            | Type::Boolean
            | Type::Character
            | Type::Pointer { .. } => {
                let bytes = self.size(object.type_id);
                self.store_bytes(&object, 0, bytes, to, span)?;
            }
            Type::Opaque { .. } => {
                let bytes = self.object_shape(&object).bytes();
                self.store_bytes(&object, 0, bytes.into(), to, span)?;
            }
            Type::Str => {
                let most = self.c.options.text_bytes;
                self.store_run(&object, most, to, span)?;
            }
            Type::Slice { of } => {
                let shape = self.shape_at(object.type_id, depth, None);
                match shape {
                    Shape::Bytes(most) => self.store_run(&object, most, to, span)?,
                    Shape::List { of: element, most } => {
                        let first = object.read(0, 8, false).ok_or_else(|| self.missing(span))?;
                        let count = object.read(8, 8, false).ok_or_else(|| self.missing(span))?;
                        let (first, count) = (self.keep(&first), self.keep(&count));
                        self.store_number(&count, to, 8);
                        let end = self.asm.label();
                        let size = self.size(*of);
                        for index in 0..most {
                            let has = Test::compare(
                                Condition::Above,
                                count.clone(),
                                Number::Constant(index.into()),
                            );
                            self.branch_on(&has, false, end);
                            let place = (object.space(), first.clone());
                            let mut item = Object::in_memory(*of, place, Test::Constant(true));
                            item = item.part(*of, size * u64::from(index));
                            let place = to.at(8 + element.bytes() * index);
                            self.store_object(&item, place, depth + 1, span)?;
                        }
                        self.asm.place(end);
                    }
                    _ => {}
                }
            }
            Type::Array { of: id, .. } => {
                let size = self.size(*id);
                let shapes = match self.shape_at(object.type_id, depth, object.gaps()) {
                    Shape::Array { of, stored, .. } => alloc::vec![*of; stored as usize],
                    Shape::Items { items, .. } => items,
                    _ => Vec::new(),
                };
                let mut place = to;
                for (index, shape) in (0..).zip(&shapes) {
                    let item = object.part(*id, size * index);
                    self.store_object(&item, place, depth + 1, span)?;
                    place = place.at(shape.bytes());
                }
            }
            Type::Struct(of) if plain_name(&of.name) == "String" => {
                let most = self.c.options.text_bytes;
                self.store_run(&object, most, to, span)?;
            }
            Type::Struct(of) => match self.transparent(of) {
                Some(only) => {
                    let part = object.part(only.type_id, only.offset);
                    self.store_object(&part, to, depth + 1, span)?;
                }
                None => self.store_fields(&object, &of.fields, to, depth, span)?,
            },
            Type::Enum(of) if self.choice(of).is_some() => {
                if let Some(Tag { offset, bytes }) = self.choice(of) {
                    self.store_bytes(&object, offset, bytes.into(), to, span)?;
                }
            }
            Type::Enum(of) => {
                let tag = Shape::tag_bytes(of.variants.len());
                let end = self.asm.label();
                for (number, variant) in of.variants.iter().enumerate() {
                    let next = self.asm.label();
                    let test = self.is_variant(&object, of, number, span)?;
                    self.branch_on(&test, false, next);
                    self.store_tag(to, tag as u8, number as u64);
                    self.store_fields(&object, &variant.fields, to.at(tag), depth, span)?;
                    self.asm.jump(end);
                    self.asm.place(next);
                }
                // A tag that no variant has.
                self.store_tag(to, tag as u8, of.variants.len() as u64);
                self.asm.place(end);
            }
        }
        self.asm.release(mark);
        Ok(())
    }

    fn store_fields(
        &mut self,
        object: &Object,
        fields: &[Field],
        mut to: Place,
        depth: u32,
        span: Span,
    ) -> Lowered<()> {
        for field in fields {
            let part = object.part(field.type_id, field.offset);
            self.store_object(&part, to, depth + 1, span)?;
            let shape = self.shape_at(field.type_id, depth + 1, part.gaps());
            to = to.at(shape.bytes());
        }
        Ok(())
    }

    fn store_bytes(
        &mut self,
        object: &Object,
        from: u64,
        bytes: u64,
        to: Place,
        span: Span,
    ) -> Lowered<()> {
        let mut at = 0;
        while at < bytes {
            let step = step(bytes - at);
            let number = object
                .read(from + at, step, false)
                .ok_or_else(|| self.missing(span))?;
            self.store_number(&number, to.at(at as u32), step);
            at += u64::from(step);
        }
        Ok(())
    }

    /// The length and the first bytes of a text or a slice of bytes.
    pub(super) fn store_run(
        &mut self,
        object: &Object,
        most: u32,
        to: Place,
        span: Span,
    ) -> Lowered<()> {
        let (address, length) = match self.text_of(object, span)? {
            Some(found) => found,
            None => {
                let address = object.read(0, 8, false);
                let length = object.read(8, 8, false);
                let address = address.ok_or_else(|| self.missing(span))?;
                (address, length.ok_or_else(|| self.missing(span))?)
            }
        };
        let length = self.keep(&length);
        self.store_number(&length, to, 8);
        self.store_memory((object.space(), &address), &length, most, to.at(8));
        Ok(())
    }

    /// Address and length of a text of the source, if the object is one.
    pub(super) fn text_of(
        &mut self,
        object: &Object,
        span: Span,
    ) -> Lowered<Option<(Number, Number)>> {
        match &*self.c.describe(object.type_id) {
            Type::Str => {
                let address = object.read(0, 8, false).ok_or_else(|| self.missing(span))?;
                let length = object.read(8, 8, false).ok_or_else(|| self.missing(span))?;
                Ok(Some((address, length)))
            }
            Type::Struct(of) if plain_name(&of.name) == "String" => {
                let name = |text: &str| Name {
                    text: text.into(),
                    span,
                };
                let bytes = self.object_field(object, &name("vec"))?;
                let Val::Object(bytes) = bytes else {
                    return Ok(None);
                };
                let length = self.object_field(&bytes, &name("len"))?;
                let length = self.as_number(length, span)?;
                let Some((pointer, _)) = self.pointer_in(&bytes, MOST_DEPTH) else {
                    return Err(self.missing(span));
                };
                let address = pointer
                    .read(0, 8, false)
                    .ok_or_else(|| self.missing(span))?;
                Ok(Some((address, length.number)))
            }
            _ => Ok(None),
        }
    }

    /// Where an array is, if it is in memory.
    pub(super) fn address_of(&self, object: &Object) -> Option<Number> {
        match (&*self.c.describe(object.type_id), &object.at) {
            (
                Type::Array { .. },
                At::Memory {
                    address, offset, ..
                },
            ) => Some(Number::alu(
                AluOp::Add,
                address.clone(),
                Number::Constant(offset.cast_unsigned()),
            )),
            _ => None,
        }
    }

    /// The type of an object that is an enum.
    pub(super) fn enum_of(&self, object: &Object) -> Option<Rc<Type>> {
        let described = self.c.describe(object.type_id);
        matches!(&*described, Type::Enum(_)).then_some(described)
    }
}

fn field_of<'f>(fields: &'f [Field], name: &str) -> Option<&'f Field> {
    let plain = |name: &str| name.trim_start_matches('_').len();
    fields.iter().find(|field| field.name == name).or_else(|| {
        // Debug information calls the fields of tuples `__0`, `__1`.
        fields.iter().find(|field| {
            is_position(&field.name)
                && plain(&field.name) == name.len()
                && field.name.ends_with(name)
        })
    })
}

/// Whether a field has a number for a name.
fn is_position(name: &str) -> bool {
    let name = name.trim_start_matches('_');
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// The name of a type without its path and parameters.
fn plain_name(name: &str) -> &str {
    let end = name.find('<').unwrap_or(name.len());
    let begin = name[..end].rfind("::").map_or(0, |colons| colons + 2);
    &name[begin..end]
}

/// The first names of a list.
fn shortened(names: &[String]) -> String {
    const MOST: usize = 12;
    match names.len() {
        0..=MOST => names.join(", "),
        _ => format!("{} …", names[..MOST].join(", ")),
    }
}

/// A type in messages.
fn type_name(described: &Type) -> String {
    match described {
        Type::Unit => "a value of no bytes".into(),
        Type::Integer { bytes, signed } => {
            let letter = if *signed { 'i' } else { 'u' };
            format!("a number ({letter}{})", u32::from(*bytes) * 8)
        }
        Type::Boolean => "a bool".into(),
        Type::Character => "a char".into(),
        Type::Float { .. } => "a floating-point number".into(),
        Type::Pointer { name, .. } => format!("a `{name}`"),
        Type::Slice { .. } => "a slice".into(),
        Type::Str => "a `&str`".into(),
        Type::Array { .. } => "an array".into(),
        Type::Struct(Struct { name, .. })
        | Type::Enum(Enum { name, .. })
        | Type::Opaque { name, .. } => format!("a `{name}`"),
    }
}
