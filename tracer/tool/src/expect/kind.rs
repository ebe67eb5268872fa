//! What kind of value a condition of `--expect` has: known before the run, because the maps have
//! their shapes then. A condition that no run could meet is refused with its place in the text.
//! What is known only at the end, such as the part of a value that may not be there, is taken.

use trace_interface::{
    shape::Shape,
    view::{Class, MapView},
};
use trace_language::{
    Diagnostic,
    tree::{Binary, Expression, ExpressionKind, Map, Name},
};

use super::BOOKS;

/// What is known of a value before the run.
#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Number,
    Text,
    Tuple(Vec<Kind>),
    /// It is known only at the end.
    Any,
}

type Checked<T> = Result<T, Diagnostic>;

/// Refuses a condition that these maps cannot meet.
pub fn check(condition: &Expression, maps: &[MapView]) -> Checked<()> {
    match kind(condition, maps)? {
        Kind::Number | Kind::Any => Ok(()),
        other => Err(Diagnostic::new(
            condition.span,
            format!("this is {}, and no condition", other.shown()),
            "compare it, for example `@ == 3`",
        )),
    }
}

impl Kind {
    /// The kind of values that are stored so, as a key or as the value of a map.
    fn of(shape: &Shape) -> Self {
        match shape {
            Shape::Unsigned(_)
            | Shape::Signed(_)
            | Shape::Literal
            | Shape::Boolean
            | Shape::Flag
            | Shape::Character
            | Shape::Address { .. } => Self::Number,
            Shape::Text(_)
            | Shape::Counted(_)
            | Shape::Symbol { .. }
            | Shape::UserSymbol
            | Shape::Probe => Self::Text,
            Shape::Tuple(parts) => Self::Tuple(parts.iter().map(Self::of).collect()),
            _ => Self::Any,
        }
    }

    fn shown(&self) -> &'static str {
        match self {
            Self::Number => "a number",
            Self::Text => "a text",
            Self::Tuple(_) => "a tuple",
            Self::Any => "a value",
        }
    }

    /// Whether two values of these kinds may be equal.
    fn fits(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) => true,
            (Self::Tuple(parts), Self::Tuple(others)) => {
                parts.len() == others.len()
                    && parts
                        .iter()
                        .zip(others)
                        .all(|(part, other)| part.fits(other))
            }
            _ => self == other,
        }
    }

    /// Whether a key that is stored so may be written as a value of this kind. Each may be written
    /// as the text that it is shown as, and a function as its address.
    fn may_be_key(&self, shape: &Shape) -> bool {
        match (self, shape) {
            (Self::Tuple(parts), Shape::Tuple(shapes)) => {
                parts.len() == shapes.len()
                    && parts
                        .iter()
                        .zip(shapes)
                        .all(|(part, shape)| part.may_be_key(shape))
            }
            (Self::Any, _) => true,
            (Self::Tuple(_), _) | (_, Shape::Tuple(_)) => false,
            (Self::Text, _) => true,
            (Self::Number, Shape::Symbol { .. }) => true,
            (Self::Number, shape) => Self::of(shape) != Self::Text,
        }
    }
}

fn number(expression: &Expression, maps: &[MapView]) -> Checked<()> {
    match kind(expression, maps)? {
        Kind::Number | Kind::Any => Ok(()),
        other => Err(Diagnostic::new(
            expression.span,
            format!(
                "`{expression}` is {}, and a number is wanted here",
                other.shown()
            ),
            "",
        )),
    }
}

/// The kind of a part of a condition.
fn kind(expression: &Expression, maps: &[MapView]) -> Checked<Kind> {
    let refuse = |message: String, help: &str| Err(Diagnostic::new(expression.span, message, help));
    Ok(match &expression.kind {
        ExpressionKind::Integer(_) | ExpressionKind::Boolean(_) => Kind::Number,
        ExpressionKind::String(_) => Kind::Text,
        ExpressionKind::Name(name) if BOOKS.contains(&name.as_str()) => Kind::Number,
        ExpressionKind::Name(name) => {
            return refuse(format!("there is no `{name}`"), &there_are(maps));
        }
        ExpressionKind::Map(map) => match &entry(map, maps)?.class {
            Class::Plain(shape) => Kind::of(shape),
            Class::Series(_) => Kind::Any,
            _ => Kind::Number,
        },
        ExpressionKind::Field { of, name } => {
            let ExpressionKind::Map(map) = &of.kind else {
                return refuse(format!("`{of}` has no fields"), "");
            };
            field(&entry(map, maps)?.class, name)?;
            Kind::Number
        }
        ExpressionKind::Call { name, arguments } => {
            const HELP: &str = "there are `len(@map)` and `sum(@map)`";
            if !["len", "sum"].contains(&name.text.as_str()) {
                let message = format!("a condition has no function `{}`", name.text);
                return Err(Diagnostic::new(name.span, message, HELP));
            }
            match &arguments[..] {
                [argument] => match &argument.kind {
                    ExpressionKind::Map(map) if map.keys.is_empty() => _ = view(map, maps)?,
                    _ => {
                        let message = format!("`{argument}` is no map");
                        return Err(Diagnostic::new(argument.span, message, HELP));
                    }
                },
                _ => return refuse(format!("`{}` takes one map", name.text), HELP),
            }
            Kind::Number
        }
        ExpressionKind::Tuple(parts) => {
            let parts: Checked<_> = parts.iter().map(|part| kind(part, maps)).collect();
            Kind::Tuple(parts?)
        }
        ExpressionKind::Unary { operand, .. } => {
            number(operand, maps)?;
            Kind::Number
        }
        ExpressionKind::Binary {
            operation: Binary::Equal | Binary::NotEqual,
            left,
            right,
        } => {
            let (left, right) = (kind(left, maps)?, kind(right, maps)?);
            if !left.fits(&right) {
                let (left, right) = (left.shown(), right.shown());
                return refuse(
                    format!("it compares {left} with {right}, and they are never equal"),
                    "",
                );
            }
            Kind::Number
        }
        ExpressionKind::Binary { left, right, .. } => {
            number(left, maps)?;
            number(right, maps)?;
            Kind::Number
        }
        ExpressionKind::Ternary {
            condition,
            then,
            otherwise,
        } => {
            number(condition, maps)?;
            let (then, otherwise) = (kind(then, maps)?, kind(otherwise, maps)?);
            if then == otherwise { then } else { Kind::Any }
        }
        _ => {
            return refuse(
                format!("`{expression}` is not there at the end of a trace"),
                &there_are(maps),
            );
        }
    })
}

fn there_are(maps: &[MapView]) -> String {
    let maps = maps.iter().filter_map(|map| map.name.as_deref());
    let mut names: Vec<&str> = maps.collect();
    names.sort_unstable();
    names.extend(BOOKS);
    format!("there are {}", names.join(", "))
}

fn view<'m>(map: &Map, maps: &'m [MapView]) -> Checked<&'m MapView> {
    let name = format!("@{}", map.name.text);
    let mut all = maps.iter();
    let found = all.find(|view| view.name.as_deref() == Some(&*name));
    found.ok_or_else(|| {
        let message = format!("the program has no `{name}`");
        Diagnostic::new(map.name.span, message, there_are(maps))
    })
}

/// The map of an entry whose keys could be there.
fn entry<'m>(map: &Map, maps: &'m [MapView]) -> Checked<&'m MapView> {
    let view = view(map, maps)?;
    let refuse = |message: String, help: String| Err(Diagnostic::new(map.span, message, help));
    let keys: Checked<Vec<Kind>> = map.keys.iter().map(|key| kind(key, maps)).collect();
    // One tuple is the same as several keys.
    let keys = match &mut keys?[..] {
        [Kind::Tuple(parts)] => std::mem::take(parts),
        keys => keys.to_vec(),
    };
    let shapes = match &view.keys[..] {
        [Shape::Tuple(shapes)] => shapes,
        shapes => shapes,
    };
    let name = format!("@{}", map.name.text);
    if keys.is_empty() && !shapes.is_empty() {
        return refuse(
            format!("`{name}` has keys"),
            format!("write `{name}[KEY]`, `len({name})` or `sum({name})`"),
        );
    }
    if shapes.is_empty() && !keys.is_empty() {
        return refuse(format!("`{name}` has no keys"), format!("write `{name}`"));
    }
    let is_like = keys.len() == shapes.len()
        && keys
            .iter()
            .zip(shapes)
            .all(|(key, shape)| key.may_be_key(shape));
    if !is_like {
        let wanted: Vec<&str> = shapes.iter().map(|shape| Kind::of(shape).shown()).collect();
        return refuse(
            format!("no entry of `{name}` has such a key"),
            format!("a key of it is {}", wanted.join(", ")),
        );
    }
    Ok(view)
}

/// Refuses a field that values of the class do not have.
fn field(class: &Class, name: &Name) -> Checked<()> {
    let fields: &[&str] = match class {
        Class::Average { .. } | Class::Statistics { .. } => &["count", "total", "average", "avg"],
        Class::Histogram(_) => &["count"],
        _ => &[],
    };
    if fields.contains(&name.text.as_str()) {
        return Ok(());
    }
    let help = match fields {
        [] => "only hist, lhist, stats and avg have fields, such as `count`".into(),
        fields => format!("there are {}", fields.join(", ")),
    };
    let message = format!("the map has no field `{}`", name.text);
    Err(Diagnostic::new(name.span, message, help))
}
