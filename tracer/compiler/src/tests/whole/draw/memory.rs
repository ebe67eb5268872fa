//! Pointers, memory, arguments and results by their names.
//!
//! What is read without a cast is there. Behind a cast a pointer may lead anywhere, because what
//! cannot be read is zero then.

use super::{
    super::{
        memory::{FILE_COUNT, FILE_STEP, FILES, NUMBERS, TARGETS},
        tree::{Cut, Expr, FileField, Kind, Place, Statement, Type, Variants},
    },
    Draw, Site, cast, named, number,
};

/// Where there is memory: so many steps of so many bytes from an address on.
pub(super) fn address(
    draw: &mut Draw<'_>,
    (from, steps, bytes): (u64, u64, u64),
    height: u32,
) -> Expr {
    let index = match draw.is() {
        true => number(draw.random.below(steps).into()),
        false => Expr {
            of: Type::Unsigned,
            kind: Kind::Binary(
                "%",
                Box::new(draw.make(&Type::Unsigned, height)),
                Box::new(number(steps.into())),
            ),
        },
    };
    let of = Type::Unsigned;
    let kind = Kind::Binary("*", Box::new(index), Box::new(number(bytes.into())));
    let distance = Expr {
        of: of.clone(),
        kind,
    };
    let from = cast(&of, number(from.into()));
    let kind = Kind::Binary("+", Box::new(from), Box::new(distance));
    Expr { of, kind }
}

pub(super) fn address_of_numbers(draw: &mut Draw<'_>, height: u32) -> Expr {
    address(draw, (NUMBERS, 8, 8), height)
}

/// A pointer; the numbers that it leads to can be read.
pub(super) fn readable(draw: &mut Draw<'_>, to: Cut, height: u32) -> Expr {
    let address = address_of_numbers(draw, height);
    Expr {
        of: Type::Pointer(to),
        kind: Kind::ToPointer(to, Box::new(address)),
    }
}

pub(super) fn pointer(draw: &mut Draw<'_>, to: Cut, height: u32) -> Kind {
    if height == 0 {
        return readable(draw, to, 0).kind;
    }
    let of = Type::Pointer(to);
    match draw.below(8) {
        0 => Kind::ToPointer(to, Box::new(draw.any_number(height - 1))),
        1 => {
            let other = Type::Pointer(draw.random.of(&TARGETS));
            Kind::ToPointer(to, Box::new(draw.make(&other, height - 1)))
        }
        2 | 3 => {
            let op = draw.random.of(&["+", "-"]);
            let from = Box::new(draw.make(&of, height - 1));
            Kind::Moved(op, from, Box::new(few_steps(draw, height - 1)))
        }
        4 => {
            let condition = Box::new(draw.condition(height - 1));
            let a = Box::new(draw.make(&of, height - 1));
            let b = Box::new(draw.make(&of, height - 1));
            Kind::Choice(condition, a, b)
        }
        _ => readable(draw, to, height - 1).kind,
    }
}

/// How far a pointer moves.
pub(super) fn few_steps(draw: &mut Draw<'_>, height: u32) -> Expr {
    match draw.is() {
        true => number(draw.below(5) as i128 - 2),
        false => {
            let of = draw.number_type();
            let value = Box::new(draw.make(&of, height));
            let kind = Kind::Binary("%", value, Box::new(number(4)));
            Expr { of, kind }
        }
    }
}

/// A size or an offset.
pub(super) fn measured(draw: &mut Draw<'_>, height: u32) -> Kind {
    let of_types = [
        ("sizeof(uint16)", 2),
        ("sizeof(int64)", 8),
        ("sizeof(File)", 40),
        ("sizeof(File *)", 8),
        ("sizeof(int32[3])", 12),
        ("offsetof(File, pos)", 8),
        ("offsetof(File, mode)", 17),
        ("offsetof(Inode, links)", 8),
    ];
    match draw.below(4) {
        0 => {
            let (text, bytes) = draw.random.of(&of_types);
            Kind::OfType(text, bytes)
        }
        1 => {
            let cut = draw.cut();
            let of = match draw.below(3) {
                0 => Type::Truth,
                1 => Type::Pointer(cut),
                _ => Type::Array(cut, 64 / cut.bits as usize),
            };
            Kind::SizeOf(Box::new(draw.make(&of, height)))
        }
        _ => Kind::SizeOf(Box::new(narrow(draw, height))),
    }
}

/// One of two numbers, of which one at least has a length of its own.
fn one_of_narrow(draw: &mut Draw<'_>, height: u32) -> Expr {
    let a = narrow(draw, height);
    let b = match draw.is() {
        true => number(3 * draw.small() - 100),
        false => narrow(draw, height),
    };
    let is_signed = |of: &Expr| of.of == Type::Signed;
    let of = match (&a, &b.kind) {
        (a, Kind::Number(0..)) if !is_signed(a) => Type::Unsigned,
        (_, Kind::Number(_)) => Type::Signed,
        (a, _) if is_signed(a) || is_signed(&b) => Type::Signed,
        _ => Type::Unsigned,
    };
    let (a, b) = match draw.is() {
        true => (Box::new(a), Box::new(b)),
        false => (Box::new(b), Box::new(a)),
    };
    let condition = Box::new(draw.condition(height));
    let kind = match draw.below(4) {
        0 if !matches!(a.kind, Kind::Number(_)) => Kind::Or(a, b),
        1 => Kind::IfElse(condition, a, b),
        _ => Kind::Choice(condition, a, b),
    };
    Expr { of, kind }
}

/// A number with a length of its own.
pub(super) fn narrow(draw: &mut Draw<'_>, height: u32) -> Expr {
    let to = draw.random.of(&TARGETS);
    let of = |cut: Cut| {
        if cut.is_signed {
            Type::Signed
        } else {
            Type::Unsigned
        }
    };
    let declared = draw.visible();
    let mut declared = declared.iter().filter(|variable| variable.cut.is_some());
    match draw.below(8) {
        0 => Expr {
            of: of(to),
            kind: Kind::At(Box::new(readable(draw, to, height))),
        },
        1 => {
            let start = Expr {
                of: Type::Pointer(to),
                kind: Kind::ToPointer(to, Box::new(number(NUMBERS.into()))),
            };
            let index = Box::new(draw.make(&Type::Unsigned, height));
            Expr {
                of: of(to),
                kind: Kind::Indexed(Box::new(start), index),
            }
        }
        2 if draw.place == Some(Place::Write) => Expr {
            of: Type::Signed,
            kind: Kind::Delta,
        },
        3 | 4 if let Some(variable) = declared.next_back() => named(variable),
        5 if height > 0 => one_of_narrow(draw, height - 1),
        _ => {
            let value = Box::new(draw.any_number(height));
            let bits = draw.random.of(&[8, 16, 32, 64]);
            let is_signed = draw.is();
            let cut = Cut { bits, is_signed };
            Expr {
                of: of(cut),
                kind: Kind::Cast(cut, value),
            }
        }
    }
}

/// A number that is read from memory, or that the place has.
pub(super) fn read_number(draw: &mut Draw<'_>, of: &Type, height: u32) -> Kind {
    let is_signed = *of == Type::Signed;
    let of_entry = draw.place.unwrap_or(Place::Interval);
    let kind = match (draw.below(8), of_entry) {
        (0, _) if is_signed => {
            let pointers = Type::Pointer(draw.random.of(&TARGETS));
            let a = Box::new(draw.make(&pointers, height));
            return Kind::Steps(a, Box::new(draw.make(&pointers, height)));
        }
        (0 | 1, Place::Write | Place::Both | Place::Read | Place::Session | Place::SessionRead)
            if !is_signed =>
        {
            return Kind::Count;
        }
        (0 | 1, Place::Write | Place::Session) => return Kind::Delta,
        (2, Place::Write | Place::Session) => of_file(draw, None, is_signed),
        (3, _) => {
            let file = file(draw, height);
            of_file(draw, Some(Box::new(file)), is_signed)
        }
        (4 | 5, _) if draw.has_result && draw.place != Some(Place::Session) => Kind::Retval,
        (0..=5, _) => {
            let mut cut = draw.random.of(&TARGETS);
            while cut.is_signed != is_signed {
                cut = draw.random.of(&TARGETS);
            }
            let pointer = Box::new(readable(draw, cut, height));
            match draw.is() {
                true => return Kind::At(pointer),
                false => {
                    let whole = Box::new(draw.make(&Type::Pointer(cut), height));
                    Kind::Indexed(whole, Box::new(draw.make(&Type::Unsigned, height)))
                }
            }
        }
        _ => {
            let pointer = Type::Pointer(draw.random.of(&TARGETS));
            Kind::At(Box::new(draw.make(&pointer, height)))
        }
    };
    let read = Expr {
        of: Type::Signed,
        kind,
    };
    cast(of, read).kind
}

pub(super) fn file(draw: &mut Draw<'_>, height: u32) -> Expr {
    address(draw, (FILES, FILE_COUNT, FILE_STEP), height)
}

pub(super) fn of_file(draw: &mut Draw<'_>, at: Option<Box<Expr>>, is_signed: bool) -> Kind {
    let field = match is_signed {
        true => FileField::Pos,
        false => draw
            .random
            .of(&[FileField::Mode, FileField::Number, FileField::Links]),
    };
    Kind::OfFile(at, field)
}

/// The name of a file, or whether it can be read.
pub(super) fn field_of_file(draw: &mut Draw<'_>, field: FileField, height: u32) -> Kind {
    let file = file(draw, height);
    Kind::OfFile(Some(Box::new(file)), field)
}

/// A `match` of an enum of the kernel's, where there is one.
pub(super) fn variants(draw: &mut Draw<'_>, site: Site) -> Option<Statement> {
    let of = match (draw.place, draw.has_result) {
        (Some(Place::Write | Place::Session), false) => Variants::Shape,
        (Some(Place::Session), true) => Variants::Result,
        _ => return None,
    };
    let fields: &[&[Type]] = match of {
        Variants::Shape => &[&[], &[Type::Unsigned], &[Type::Unsigned, Type::Signed]],
        Variants::Result => &[&[Type::Unsigned]],
    };
    let mut arms = Vec::new();
    for (number, fields) in fields.iter().enumerate() {
        if draw.one_in(4) {
            continue;
        }
        let names: Vec<_> = fields
            .iter()
            .map(|of| draw.new_variable(of.clone()))
            .collect();
        draw.fixed.extend(names.iter().map(|name| name.id));
        draw.scopes.push(names.clone());
        let body = draw.block(site);
        draw.scopes.pop();
        arms.push((number, names, body));
    }
    let otherwise = draw.block(site);
    Some(Statement::Fields(of, arms, otherwise))
}
