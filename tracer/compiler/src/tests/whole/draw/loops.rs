//! Loops: over numbers, while a condition holds, over maps.
//!
//! The turns of a loop over a map may come in any order, so all of them together do the same in
//! each.

use super::{
    super::tree::{Conversion, Entry, Expr, Gather, Kind, Map, Statement, Type, Variable},
    COMPARISONS, Draw, Site, cast, named, number,
};

/// The block of a loop: what it is the first to assign may have no value after it.
pub(super) fn turn(draw: &mut Draw<'_>, site: Site) -> Vec<Statement> {
    let known = draw.scopes.clone();
    let body = draw.block(site);
    draw.scopes = known;
    body
}

pub(super) fn counted(draw: &mut Draw<'_>, site: Site) -> Statement {
    let mut variable = draw.new_variable(Type::Literal);
    variable.name = format!("$i{}", variable.id);
    draw.fixed.push(variable.id);
    let (from, to) = match draw.open_loops > 0 && draw.one_in(3) {
        true => {
            draw.open_loops -= 1;
            let few = |this: &mut Draw<'_>| {
                let value = this.make(&Type::Unsigned, 1);
                Expr {
                    of: Type::Unsigned,
                    kind: Kind::Binary("%", Box::new(value), Box::new(number(4))),
                }
            };
            (few(draw), few(draw))
        }
        false => {
            let from = draw.below(3) as i128;
            let turns = 1 + draw.below(4) as i128;
            (number(from), number(from + turns))
        }
    };
    let site = Site {
        in_loop: true,
        ..site
    };
    draw.scopes.push(vec![variable.clone()]);
    let body = turn(draw, site);
    draw.scopes.pop();
    Statement::For(variable, from, to, body)
}

pub(super) fn open(draw: &mut Draw<'_>, site: Site) -> Statement {
    draw.open_loops -= 1;
    let counter = draw.new_variable(Type::Unsigned);
    draw.fixed.push(counter.id);
    draw.scopes[draw.floor].push(counter.clone());
    let condition = draw.make(&Type::Truth, 1);
    let site = Site {
        in_loop: true,
        ..site
    };
    let body = turn(draw, site);
    Statement::While(counter, 1 + draw.random.below(4), condition, body)
}

/// A loop over a map, whose turns may come in any order.
pub(super) fn each(draw: &mut Draw<'_>, outer: Option<&Variable>) -> Option<Statement> {
    let maps: Vec<Map> = draw
        .maps
        .iter()
        .filter(|map| !map.keys.is_empty())
        .filter(|map| {
            let gather = map.gather;
            !gather.is_some_and(Gather::is_only_printed)
        })
        .cloned()
        .collect();
    if maps.is_empty() {
        return None;
    }
    let map = maps[draw.below(maps.len())].clone();
    let key = match &map.keys[..] {
        [one] => one.clone(),
        several => Type::Tuple(several.to_vec()),
    };
    let is_plain = map.gather.is_none();
    let total = draw.changeable(|variable| matches!(variable.of, Type::Signed | Type::Unsigned));
    let mut pair = draw.new_variable(Type::Tuple(vec![key, map.of.clone()]));
    pair.name = format!("$kv{}", pair.id);
    draw.fixed.push(pair.id);
    let floor = core::mem::replace(&mut draw.floor, draw.scopes.len());
    draw.scopes.push(vec![pair.clone()]);
    let had_maps = core::mem::replace(&mut draw.has_maps, false);
    let macros = core::mem::take(&mut draw.macros);
    let mut body = Vec::new();
    if draw.one_in(4) {
        let skipped = vec![Statement::Continue];
        body.push(Statement::If(condition_of_pair(draw), skipped, None));
    }
    let inner = match outer {
        None if draw.one_in(3) => each(draw, Some(&pair)),
        _ => None,
    };
    let is_alone = outer.is_none() && inner.is_none();
    body.extend(inner);
    let values = [Some(&pair), outer].into_iter().flatten();
    let values = values.map(|pair| (Conversion::natural(), named(pair)));
    body.push(Statement::Printf(values.collect(), true));
    if let Some(total) = total {
        let value = draw.known(&total.of, 1).filter(|_| is_plain);
        let value = value.unwrap_or_else(|| cast(&total.of, number(1)));
        body.push(Statement::Change("+", total, value));
    }
    if is_plain && is_alone && draw.is() {
        let key = Expr {
            of: Type::Literal,
            kind: Kind::Part(Box::new(named(&pair)), 0),
        };
        let keys = match map.keys.len() {
            1 => vec![key],
            count => (0..count)
                .map(|part| Expr {
                    of: Type::Literal,
                    kind: Kind::Part(Box::new(key.clone()), part),
                })
                .collect(),
        };
        let entry = Entry {
            map: map.clone(),
            keys,
            as_tuple: false,
        };
        let condition = condition_of_pair(draw);
        body.push(Statement::If(
            condition,
            vec![Statement::DeleteAt(entry, true)],
            None,
        ));
    }
    draw.macros = macros;
    draw.has_maps = had_maps;
    draw.scopes.pop();
    draw.floor = floor;
    Some(Statement::Each(pair, map, body))
}

/// A loop over a map that ends before its last turn. Which keys it had, nothing tells.
pub(super) fn each_until(draw: &mut Draw<'_>) -> Option<Statement> {
    let is_looped =
        |map: &&Map| !map.keys.is_empty() && !map.gather.is_some_and(Gather::is_only_printed);
    let maps: Vec<Map> = draw.maps.iter().filter(is_looped).cloned().collect();
    let total = draw.changeable(|variable| matches!(variable.of, Type::Signed | Type::Unsigned))?;
    if maps.is_empty() {
        return None;
    }
    let map = maps[draw.below(maps.len())].clone();
    let mut pair = draw.new_variable(Type::Tuple(Vec::new()));
    pair.name = format!("$kv{}", pair.id);
    let by = cast(&total.of, number(1 + draw.small()));
    let end = Expr {
        of: Type::Truth,
        kind: Kind::Compare(
            draw.random.of(&COMPARISONS),
            Box::new(named(&total)),
            Box::new(number(draw.small())),
        ),
    };
    let ends = draw.random.of(&[Ends::Break, Ends::Return, Ends::Skip]);
    let mut body = vec![Statement::Change("+", total.clone(), by)];
    body.push(match ends {
        Ends::Break => Statement::If(end, vec![Statement::Break], None),
        Ends::Return if draw.is() => Statement::Break,
        Ends::Return => Statement::If(end, vec![Statement::Return], None),
        Ends::Skip => Statement::If(end, vec![Statement::Continue], None),
    });
    if let Ends::Skip = ends {
        body.push(Statement::Change("+", total, number(1)));
    }
    Some(Statement::Each(pair, map, body))
}

/// How a turn of a loop over a map ends early.
#[derive(Clone, Copy)]
enum Ends {
    Break,
    Return,
    Skip,
}

pub(super) fn condition_of_pair(draw: &mut Draw<'_>) -> Expr {
    match draw.known(&Type::Unsigned, 1) {
        Some(value) => Expr {
            of: Type::Truth,
            kind: Kind::Compare("<", Box::new(value), Box::new(number(3))),
        },
        None => Expr {
            of: Type::Truth,
            kind: Kind::Truth(draw.is()),
        },
    }
}
