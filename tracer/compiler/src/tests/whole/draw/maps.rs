//! Maps: which there are, and statements that change or print them.
//!
//! A map keeps the types of its keys and values, which a clause tells that never runs. Keys are
//! few, so that entries are met again.

use super::{
    super::tree::{Entry, Expr, Gather, Kind, Map, Place, Statement, Type},
    Draw, cast, number,
};

pub(super) fn map(draw: &mut Draw<'_>, id: usize, is_small: bool) -> Map {
    let gather = draw.is().then(|| gather(draw));
    let of = match gather {
        Some(Gather::Count) => Type::Unsigned,
        Some(_) => draw.number_type(),
        None => draw.a_type(2),
    };
    let keys = match gather.is_some() && is_small {
        true => vec![Type::Truth; draw.below(2)],
        false => {
            let count = draw.random.of(&[0, 1, 1, 2, 3]);
            (0..count).map(|_| key_type(draw)).collect()
        }
    };
    Map {
        id,
        name: format!("@m{id}"),
        keys,
        of,
        gather,
        declared: declared(draw, gather),
    }
}

pub(super) fn gather(draw: &mut Draw<'_>) -> Gather {
    use Gather::{Avg, Count, Hist, Lhist, Max, Min, Series, Stats, Sum};
    let steps = [
        (-20, 100, 10),
        (0, 50, 7),
        (-3000, 3000, 1024),
        (-9, 1, 20),
        (1, 9, 1),
    ];
    let (from, to, step) = draw.random.of(&steps);
    let hist = match draw.below(6) {
        0 | 1 => Hist(1 + draw.below(5) as u32),
        2 | 3 => Hist(0),
        _ => Lhist(from, to, step),
    };
    let series = Series(draw.random.of(&["", "avg", "sum", "min", "max"]));
    let others = [
        Count, Count, Sum, Sum, Min, Max, Avg, Avg, Stats, hist, hist, series,
    ];
    draw.random.of(&others)
}

/// What is gathered on each CPU has room for all keys there, because a full one has others.
pub(super) fn declared(
    draw: &mut Draw<'_>,
    gather: Option<Gather>,
) -> Option<(&'static str, usize)> {
    match (draw.below(8), gather) {
        (0, None) => Some(("hash", 2 + draw.below(5))),
        (1, None) => Some(("lruhash", 500)),
        (0, Some(Gather::Hist(_) | Gather::Lhist(..) | Gather::Series(_))) => None,
        (0, Some(_)) => Some(("percpuhash", 500)),
        _ => None,
    }
}

pub(super) fn key_type(draw: &mut Draw<'_>) -> Type {
    match draw.below(8) {
        0 => {
            let parts = 2 + draw.below(2);
            Type::Tuple((0..parts).map(|_| draw.simple_type()).collect())
        }
        1 => Type::Record(vec![("n", draw.number_type()), ("s", draw.simple_type())]),
        _ => draw.simple_type(),
    }
}

/// A first value of the type, which says what it is.
fn definite(of: &Type) -> Expr {
    let argument = Expr {
        of: Type::Unsigned,
        kind: Kind::Argument(0),
    };
    let kind = match of {
        Type::Literal | Type::Signed => return cast(&Type::Signed, argument),
        Type::Unsigned => return argument,
        Type::Truth => Kind::Compare(">", Box::new(argument), Box::new(number(1))),
        Type::Text => Kind::Word("first".into()),
        Type::Tuple(parts) => Kind::Tuple(parts.iter().map(definite).collect()),
        Type::Record(fields) => {
            let fields = fields.iter();
            Kind::Record(fields.map(|(name, of)| (*name, definite(of))).collect())
        }
        Type::Array(cut, count) => Kind::Array(*cut, *count, Box::new(argument)),
        Type::Pointer(cut) => Kind::ToPointer(*cut, Box::new(argument)),
    };
    Expr {
        of: of.clone(),
        kind,
    }
}

pub(super) fn typing(draw: &mut Draw<'_>, map: &Map) -> Vec<Statement> {
    let entry = Entry {
        map: map.clone(),
        keys: map.keys.iter().map(definite).collect(),
        as_tuple: false,
    };
    let value = definite(&map.of);
    let assign = |value| match map.gather {
        Some(gather) => Statement::Gather(entry.clone(), gather, value),
        None => Statement::Put(entry.clone(), value),
    };
    // What is signed may get others first.
    match map.of == Type::Signed && draw.is() {
        true => vec![assign(definite(&Type::Unsigned)), assign(value)],
        false => vec![assign(value)],
    }
}

/// One that changes an entry.
pub(super) fn of_map(draw: &mut Draw<'_>, height: u32) -> Option<Vec<Statement>> {
    let entry = draw.entry(height, |_| true)?;
    let map = entry.map.clone();
    if let Some(gather) = map.gather {
        // An interval comes at the beginning of time here.
        if matches!(gather, Gather::Series(_)) && !has_time(draw) {
            return None;
        }
        let can_zero = matches!(gather, Gather::Count | Gather::Sum | Gather::Hist(0..3));
        return Some(vec![match draw.below(9) {
            0 if !map.keys.is_empty() && gather.has_few_parts() => deleted(draw, entry),
            2 if !map.keys.is_empty() && gather.is_only_printed() && map.is_ranked() => {
                Statement::PrintAt(entry)
            }
            1 if !map.keys.is_empty() && can_zero => Statement::ZeroAt(entry),
            _ => {
                let value = match map.of {
                    _ if gather == Gather::Count => number(1),
                    Type::Signed => draw.assignable(&map.of, height),
                    _ => draw.make(&map.of, height),
                };
                Statement::Gather(entry, gather, value)
            }
        }]);
    }
    let is_number = matches!(map.of, Type::Signed | Type::Unsigned | Type::Pointer(_));
    Some(vec![match draw.below(8) {
        0 if !map.keys.is_empty() => deleted(draw, entry),
        1 if !map.keys.is_empty() => Statement::ZeroAt(entry),
        2 if !map.keys.is_empty() => Statement::Print(Expr {
            of: Type::Truth,
            kind: Kind::Delete(Box::new(entry)),
        }),
        3 | 4 if is_number => {
            let (op, value) = draw.operation(&map.of, height);
            Statement::ChangeAt(op, entry, value)
        }
        5 if is_number => {
            let step = Expr {
                of: map.of.clone(),
                kind: Kind::StepAt(Box::new(entry), draw.is(), draw.is()),
            };
            match draw.is() {
                true => Statement::Do(step),
                false => Statement::Print(step),
            }
        }
        _ => {
            let value = draw.assignable(&map.of, height);
            Statement::Put(entry, draw.reordered(value))
        }
    }])
}

pub(super) fn has_time(draw: &Draw<'_>) -> bool {
    !matches!(draw.place, None | Some(Place::Interval))
}

pub(super) fn deleted(draw: &mut Draw<'_>, entry: Entry) -> Statement {
    match draw.below(3) {
        0 => Statement::ClearAt(entry),
        1 => Statement::DeleteAt(entry, true),
        _ => Statement::DeleteAt(entry, false),
    }
}

pub(super) fn of_whole_map(draw: &mut Draw<'_>) -> Vec<Statement> {
    let number = draw.below(draw.maps.len());
    let map = draw.maps[number].clone();
    vec![match draw.below(5) {
        0 if !map.keys.is_empty() => Statement::Clear(map),
        1 if !map.keys.is_empty() && map.gather.is_none() => Statement::Zero(map),
        2 if !map.keys.is_empty() && map.is_ranked() => {
            let divisor = draw.random.of(&[1, 1, 2, 1000]);
            Statement::PrintMap(map, Some((draw.below(5), divisor)))
        }
        _ => Statement::PrintMap(map, None),
    }]
}
