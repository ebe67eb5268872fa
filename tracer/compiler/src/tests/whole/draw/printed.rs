//! What is printed: values by themselves, and conversions of `printf`.

use super::{
    super::{
        memory::LIST,
        tree::{Conversion, Expr, Kind, Statement, Type},
    },
    Draw, memory, number,
};

pub(super) fn print(draw: &mut Draw<'_>, height: u32) -> Statement {
    if draw.is() {
        let of = draw.a_type(2);
        let value = draw.make(&of, height);
        return match &value.kind {
            // A map without keys is printed with its name.
            Kind::Read(entry) if entry.keys.is_empty() => {
                Statement::PrintMap(entry.map.clone(), None)
            }
            _ => Statement::Print(value),
        };
    }
    let mut parts = Vec::new();
    for _ in 0..1 + draw.below(3) {
        parts.push(printed(draw, height));
    }
    Statement::Printf(parts, false)
}

pub(super) fn printed(draw: &mut Draw<'_>, height: u32) -> (Conversion, Expr) {
    let letter = draw.random.of(&[
        's', 's', 's', 's', 'r', 'd', 'd', 'i', 'u', 'x', 'x', 'X', 'o', 'c', 'p',
    ]);
    let mut is = Conversion {
        letter,
        ..Conversion::default()
    };
    if draw.is() {
        is.width = draw.below(14);
        is.flags = draw.random.of(&["", "", "-"]);
        is.star = draw.one_in(3).then(|| columns(draw, height));
    }
    let value = match letter {
        'r' if draw.is() => {
            is.dump = draw.random.of(&["", "x", "h"]);
            bytes(draw, height)
        }
        's' | 'r' => {
            is.precision = draw.one_in(4).then(|| draw.below(6));
            match draw.below(8) {
                0 => time(draw, height),
                1..=3 => draw.text_value(height),
                _ => {
                    let of = draw.a_type(2);
                    draw.make(&of, height)
                }
            }
        }
        'c' => a_letter(draw, height),
        'p' => draw.make(&Type::Unsigned, height),
        _ => {
            let flags = [
                "", "", "-", "0", "+", " ", "#", "#0", "-0", "+0", " 0", "-#",
            ];
            is.flags = draw.random.of(&flags);
            is.precision = draw.one_in(4).then(|| draw.below(9));
            is.length = draw.random.of(&["", "l", "ll", "h", "hh"]);
            let is_own = is.length.is_empty() && !"di".contains(letter);
            match is_own {
                // A number of the text, for one, has no length of its own.
                true => memory::narrow(draw, height),
                false => draw.any_number(height),
            }
        }
    };
    (is, value)
}

/// The texts of a list.
pub(super) fn joined(draw: &mut Draw<'_>) -> Statement {
    let from = LIST + 8 * draw.random.below(3);
    Statement::Join(
        from,
        draw.random.of(&[None, Some(","), Some(" - "), Some("")]),
    )
}

/// A time of the first days.
fn time(draw: &mut Draw<'_>, height: u32) -> Expr {
    const DAYS: i128 = 40 * 86_400_000_000_000;
    let formats = ["%H:%M:%S", "%s", "%M:%S.%f", "day %j, %H:%M", "%%%H"];
    let value = Box::new(draw.make(&Type::Unsigned, height));
    let since_boot = Expr {
        of: Type::Unsigned,
        kind: Kind::Binary("%", value, Box::new(number(DAYS))),
    };
    Expr {
        of: Type::Text,
        kind: Kind::Time(draw.random.of(&formats), Box::new(since_boot)),
    }
}

/// A width that only the hit tells.
pub(super) fn columns(draw: &mut Draw<'_>, height: u32) -> Expr {
    let value = Box::new(draw.make(&Type::Signed, height));
    Expr {
        of: Type::Signed,
        kind: Kind::Binary("%", value, Box::new(number(16))),
    }
}

/// Bytes of the memory, or of a text.
pub(super) fn bytes(draw: &mut Draw<'_>, height: u32) -> Expr {
    let of = match draw.below(3) {
        0 => draw.text_value(height),
        1 => memory::address_of_numbers(draw, height),
        _ => {
            let from = Box::new(memory::address_of_numbers(draw, height));
            let count = Box::new(draw.make(&Type::Unsigned, height));
            let few = Expr {
                of: Type::Unsigned,
                kind: Kind::Binary("%", count, Box::new(number(9))),
            };
            return Expr {
                of: Type::Text,
                kind: Kind::SomeBytes(from, Box::new(few)),
            };
        }
    };
    Expr {
        of: Type::Text,
        kind: Kind::Bytes(Box::new(of), 1 + draw.below(8)),
    }
}

/// A number from 33 to 122.
pub(super) fn a_letter(draw: &mut Draw<'_>, height: u32) -> Expr {
    let value = Box::new(draw.make(&Type::Unsigned, height));
    let rest = Expr {
        of: Type::Unsigned,
        kind: Kind::Binary("%", value, Box::new(number(90))),
    };
    Expr {
        of: Type::Unsigned,
        kind: Kind::Binary("+", Box::new(rest), Box::new(number(33))),
    }
}
