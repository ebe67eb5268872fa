//! Conditions of `--expect`: expressions of the language over the maps at the end and the books.
//!
//! [`kind`] refuses, before the run, those that no run could meet.
//!
//! EXPECT-1. A key that a map does not have has the value 0, as in a program.

mod kind;

use trace_answers::{Key, Presentation, Symbolize, Totals, Value};
use trace_interface::view::MapView;
use trace_language::{
    Diagnostic, parse_expression,
    tree::{Binary, Expression, ExpressionKind, Map, Unary},
};

use crate::report::report;

/// A condition that was read.
#[derive(Debug)]
pub struct Condition {
    text: String,
    expression: Expression,
}

/// The value of a part of a condition.
#[derive(Clone, Debug, PartialEq)]
enum Found {
    Number(i128),
    Text(String),
    Tuple(Vec<Found>),
}

/// The numbers of the books that conditions may name.
const BOOKS: [&str; 4] = ["hits", "missed", "dropped", "bad_loads"];

impl Condition {
    /// Reads a condition. The error is what is wrong, as it is shown.
    pub fn read(text: &str) -> Result<Self, String> {
        match parse_expression(text, &[]) {
            Ok(expression) => Ok(Self {
                text: text.into(),
                expression,
            }),
            Err(mistake) => Err(report(&[mistake], text, "--expect")),
        }
    }

    /// Refuses it if it cannot hold, whatever is in these maps. The error is as it is shown.
    pub fn check(&self, maps: &[MapView]) -> Result<(), String> {
        let mut names_something = false;
        each(&self.expression, &mut |part| {
            names_something |= is_named(part)
        });
        let checked = kind::check(&self.expression, maps).and_then(|()| match names_something {
            true => Ok(()),
            false => Err(Diagnostic::new(
                self.expression.span,
                "this is the same in each run: it names no map and no number of the books",
                "for example --expect 'hits > 0'",
            )),
        });
        checked.map_err(|mistake| report(&[mistake], &self.text, "--expect"))
    }

    /// Whether it holds at the end. If not, why.
    pub fn holds(
        &self,
        presentation: &Presentation,
        totals: &Totals,
        symbols: &dyn Symbolize,
    ) -> Result<(), String> {
        let maps: Vec<(String, Vec<(Key, Value)>)> = presentation
            .maps()
            .map(|(name, entries)| (name.into(), entries))
            .collect();
        let end = End {
            maps: &maps,
            totals,
            symbols,
        };
        let said = |why: String| format!("--expect '{}' does not hold: {why}", self.text);
        match end.value(&self.expression).map_err(said)? {
            Found::Number(0) => {}
            Found::Number(_) => return Ok(()),
            _ => return Err(said("it is a text, and no condition".into())),
        }
        let mut found = Vec::new();
        each(&self.expression, &mut |part| {
            if is_named(part)
                && let Ok(value) = end.value(part)
            {
                let line = format!("{part} is {}", value.shown());
                if !found.contains(&line) {
                    found.push(line);
                }
            }
        });
        Err(said(found.join(", ")))
    }
}

/// Whether it is a value of the end.
fn is_named(part: &Expression) -> bool {
    matches!(part.kind, ExpressionKind::Map(_) | ExpressionKind::Name(_))
}

/// Calls `see` with an expression and its parts, but not with the keys of maps.
fn each(expression: &Expression, see: &mut impl FnMut(&Expression)) {
    see(expression);
    match &expression.kind {
        ExpressionKind::Unary { operand, .. } => each(operand, see),
        ExpressionKind::Field { of, .. } => each(of, see),
        ExpressionKind::Binary { left, right, .. } => {
            each(left, see);
            each(right, see);
        }
        ExpressionKind::Ternary {
            condition,
            then,
            otherwise,
        } => {
            each(condition, see);
            each(then, see);
            each(otherwise, see);
        }
        ExpressionKind::Call { arguments, .. } => {
            arguments.iter().for_each(|argument| each(argument, see));
        }
        _ => {}
    }
}

impl Found {
    fn shown(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => format!("{text:?}"),
            Self::Tuple(parts) => {
                let parts: Vec<String> = parts.iter().map(Self::shown).collect();
                format!("({})", parts.join(", "))
            }
        }
    }

    fn number(self) -> Result<i128, String> {
        match self {
            Self::Number(number) => Ok(number),
            other => Err(format!("{} is no number", other.shown())),
        }
    }

    /// The kind of value that it is, with an article.
    fn kind(&self) -> &'static str {
        match self {
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::Tuple(_) => "a tuple",
        }
    }

    /// An error, if no two values of these kinds are equal: such a condition is a mistake.
    fn check_comparable(&self, other: &Self) -> Result<(), String> {
        let mut parts = match (self, other) {
            (Self::Tuple(parts), Self::Tuple(others)) if parts.len() == others.len() => {
                parts.iter().zip(others)
            }
            (Self::Number(_), Self::Number(_)) | (Self::Text(_), Self::Text(_)) => return Ok(()),
            _ => {
                return Err(format!(
                    "it compares {} with {}: {} with {}",
                    self.kind(),
                    other.kind(),
                    self.shown(),
                    other.shown()
                ));
            }
        };
        parts.try_for_each(|(part, other)| part.check_comparable(other))
    }
}

/// The end of a trace.
struct End<'a> {
    maps: &'a [(String, Vec<(Key, Value)>)],
    totals: &'a Totals,
    symbols: &'a dyn Symbolize,
}

impl End<'_> {
    fn value(&self, expression: &Expression) -> Result<Found, String> {
        Ok(match &expression.kind {
            ExpressionKind::Integer(number) => Found::Number((*number).into()),
            ExpressionKind::Boolean(value) => Found::Number((*value).into()),
            ExpressionKind::String(text) => Found::Text(text.clone()),
            ExpressionKind::Name(name) => Found::Number(match name.as_str() {
                "hits" => self.totals.hits.into(),
                "missed" => self.totals.missed.into(),
                "bad_loads" => self.totals.bad_loads.into(),
                "dropped" => {
                    let counts = self.totals.lost.iter();
                    counts.map(|(_, count)| i128::from(*count)).sum()
                }
                _ => return Err(format!("there is no `{name}`")),
            }),
            ExpressionKind::Map(map) => match self.entry(map)? {
                Some(value) => self.found(value),
                None => Found::Number(0),
            },
            ExpressionKind::Field { of, name } => {
                let ExpressionKind::Map(map) = &of.kind else {
                    return Err(format!("`{of}` has no fields"));
                };
                match self.entry(map)? {
                    Some(value) => Found::Number(field(value, &name.text)?),
                    None => Found::Number(0),
                }
            }
            ExpressionKind::Call { name, arguments } => {
                let [argument] = &arguments[..] else {
                    return Err(format!("`{}` takes one map", name.text));
                };
                let ExpressionKind::Map(map) = &argument.kind else {
                    return Err(format!("`{argument}` is no map"));
                };
                let entries = self.entries(map);
                Found::Number(match name.text.as_str() {
                    "len" => entries.len() as i128,
                    "sum" => entries.iter().filter_map(|(_, value)| value.number()).sum(),
                    other => {
                        return Err(format!("there is no `{other}` here, but `len` and `sum`"));
                    }
                })
            }
            ExpressionKind::Tuple(parts) => {
                let parts: Result<_, _> = parts.iter().map(|part| self.value(part)).collect();
                Found::Tuple(parts?)
            }
            ExpressionKind::Unary { operation, operand } => {
                let number = self.value(operand)?.number()?;
                Found::Number(match operation {
                    Unary::Negate => number.wrapping_neg(),
                    Unary::Not => (number == 0).into(),
                    Unary::Complement => !number,
                    Unary::Dereference => return Err("there is no memory to read".into()),
                })
            }
            ExpressionKind::Binary {
                operation,
                left,
                right,
            } => self.binary(*operation, left, right)?,
            ExpressionKind::Ternary {
                condition,
                then,
                otherwise,
            } => {
                let holds = self.value(condition)?.number()? != 0;
                self.value(if holds { then } else { otherwise })?
            }
            _ => return Err(format!("`{expression}` is not there at the end of a trace")),
        })
    }

    fn binary(
        &self,
        operation: Binary,
        left: &Expression,
        right: &Expression,
    ) -> Result<Found, String> {
        let (left, right) = (self.value(left)?, self.value(right)?);
        match operation {
            Binary::Equal | Binary::NotEqual => {
                left.check_comparable(&right)?;
                let wanted = operation == Binary::Equal;
                return Ok(Found::Number(((left == right) == wanted).into()));
            }
            _ => {}
        }
        let (a, b) = (left.number()?, right.number()?);
        let shift = u32::try_from(b).unwrap_or(u32::MAX);
        let fits = |result: Option<i128>| result.ok_or_else(|| "a number is too large".to_string());
        Ok(Found::Number(match operation {
            Binary::Or => (a != 0 || b != 0).into(),
            Binary::And => (a != 0 && b != 0).into(),
            Binary::BitOr => a | b,
            Binary::BitXor => a ^ b,
            Binary::BitAnd => a & b,
            Binary::Less => (a < b).into(),
            Binary::LessEqual => (a <= b).into(),
            Binary::Greater => (a > b).into(),
            Binary::GreaterEqual => (a >= b).into(),
            Binary::ShiftLeft => fits(a.checked_shl(shift))?,
            Binary::ShiftRight => fits(a.checked_shr(shift))?,
            Binary::Add => fits(a.checked_add(b))?,
            Binary::Subtract => fits(a.checked_sub(b))?,
            Binary::Multiply => fits(a.checked_mul(b))?,
            Binary::Divide | Binary::Remainder if b == 0 => {
                return Err("it divides by zero".into());
            }
            Binary::Divide => fits(a.checked_div(b))?,
            Binary::Remainder => fits(a.checked_rem(b))?,
            Binary::Equal | Binary::NotEqual => unreachable!("handled above"),
        }))
    }

    fn entries(&self, map: &Map) -> &[(Key, Value)] {
        let name = format!("@{}", map.name.text);
        let found = self.maps.iter().find(|(of, _)| *of == name);
        found.map_or(&[], |(_, entries)| entries)
    }

    fn entry(&self, map: &Map) -> Result<Option<&Value>, String> {
        let keys: Result<Vec<Found>, String> = map.keys.iter().map(|key| self.value(key)).collect();
        let keys = match &mut keys?[..] {
            // One tuple is the same as several keys.
            [Found::Tuple(parts)] => std::mem::take(parts),
            keys => keys.to_vec(),
        };
        let entries = self.entries(map);
        if keys.is_empty() && entries.iter().any(|(key, _)| !key.is_empty()) {
            return Err(format!(
                "`{map}` has keys; write `{map}[KEY]`, `len({map})` or `sum({map})`"
            ));
        }
        // All keys of a map are alike.
        if let Some((key, _)) = entries.first()
            && !self.is_like(parts(key), &keys)
        {
            let shown = parts(key).iter().map(|part| self.found(part).shown());
            let shown: Vec<String> = shown.collect();
            let name = &map.name.text;
            return Err(match key.is_empty() {
                true => format!("`@{name}` has no keys; write `@{name}`"),
                false => format!(
                    "no entry of `@{name}` is like `{map}`; one of them is `@{name}[{}]`",
                    shown.join(", ")
                ),
            });
        }
        let fits = |key: &Key| {
            let key = parts(key);
            key.len() == keys.len() && key.iter().zip(&keys).all(|(one, key)| self.is(one, key))
        };
        Ok(entries
            .iter()
            .find(|(key, _)| fits(key))
            .map(|(_, value)| value))
    }

    /// Whether a key could be what was written: as many parts, and numbers where those are numbers.
    fn is_like(&self, key: &[Value], written: &[Found]) -> bool {
        key.len() == written.len()
            && key
                .iter()
                .zip(written)
                .all(|(key, written)| match (key, written) {
                    (Value::Tuple(parts), Found::Tuple(written)) => self.is_like(parts, written),
                    (Value::Tuple(_), _) | (_, Found::Tuple(_)) => false,
                    (_, Found::Number(_)) => key.number().is_some(),
                    // Each value may be written as it is shown.
                    (_, Found::Text(_)) => true,
                })
    }

    /// Whether a key is what was written. Functions may be written by their last segments.
    fn is(&self, key: &Value, written: &Found) -> bool {
        match (written, key) {
            (Found::Number(number), _) => key.number() == Some(*number),
            (Found::Tuple(parts), Value::Tuple(keys)) => {
                parts.len() == keys.len()
                    && keys.iter().zip(parts).all(|(key, part)| self.is(key, part))
            }
            (Found::Tuple(_), _) => false,
            (Found::Text(text), _) => {
                let shown = key.shown(self.symbols).to_string();
                let ending = shown.strip_suffix(text.as_str());
                ending.is_some_and(|path| path.is_empty() || path.ends_with("::"))
            }
        }
    }

    fn found(&self, value: &Value) -> Found {
        match value {
            Value::Symbol { .. } => Found::Text(value.shown(self.symbols).to_string()),
            Value::Tuple(parts) => {
                Found::Tuple(parts.iter().map(|part| self.found(part)).collect())
            }
            _ => match value.number() {
                Some(number) => Found::Number(number),
                None => Found::Text(value.shown(self.symbols).to_string()),
            },
        }
    }
}

/// The parts of a key. One tuple is the same as several keys.
fn parts(key: &Key) -> &[Value] {
    match &key[..] {
        [Value::Tuple(parts)] => parts,
        key => key,
    }
}

/// A part of an aggregate.
fn field(value: &Value, name: &str) -> Result<i128, String> {
    let (count, of_all) = match value {
        Value::Statistics {
            count,
            total,
            average,
        }
        | Value::Average {
            count,
            total,
            average,
        } => (i128::from(*count), Some((*total, *average))),
        Value::Histogram(buckets) => {
            let counts = buckets.iter().map(|bucket| i128::from(bucket.count));
            (counts.sum(), None)
        }
        _ => {
            return Err(format!(
                "only hist, lhist, stats and avg have fields, such as `{name}`"
            ));
        }
    };
    match (name, of_all) {
        ("count", _) => Ok(count),
        ("total", Some((total, _))) => Ok(total),
        ("average" | "avg", Some((_, average))) => Ok(average),
        _ => Err(format!(
            "there is no field `{name}`, but count, total and average"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_answers::{Bucket, NoSymbols};
    use trace_interface::{
        shape::Shape,
        view::{Class, Gathered, Scale, Series},
    };

    fn text(text: &str) -> Value {
        Value::Text {
            text: text.into(),
            cut: false,
        }
    }

    #[test]
    fn conditions_are_computed_from_maps_and_books() {
        let bucket = |count| Bucket {
            low: Some(0),
            end: Some(1),
            count,
        };
        let maps = [
            ("@".to_string(), vec![(vec![], Value::Unsigned(3))]),
            (
                "@bytes".to_string(),
                vec![
                    (vec![text("x")], Value::Signed(-11)),
                    (vec![text("a::y")], Value::Unsigned(5)),
                ],
            ),
            (
                "@two".to_string(),
                vec![(vec![Value::Unsigned(1), text("c")], Value::Unsigned(9))],
            ),
            (
                "@s".to_string(),
                vec![(
                    vec![],
                    Value::Statistics {
                        count: 4,
                        total: 10,
                        average: 2,
                    },
                )],
            ),
            (
                "@f".to_string(),
                vec![(
                    vec![Value::Symbol {
                        address: 0x10,
                        with_offset: false,
                    }],
                    Value::Average {
                        count: 0,
                        total: 0,
                        average: 0,
                    },
                )],
            ),
            (
                "@h".to_string(),
                vec![(vec![], Value::Histogram(vec![bucket(2), bucket(5)]))],
            ),
            (
                "@texts".to_string(),
                vec![
                    (vec![Value::Unsigned(1)], text("no number")),
                    (vec![Value::Unsigned(2)], Value::Unsigned(4)),
                ],
            ),
        ];
        let totals = Totals {
            hits: 7,
            missed: 1,
            lost: vec![("no room".into(), 2), ("too long".into(), 3)],
            kept_out: 0,
            bad_loads: 0,
            stopped: Vec::new(),
        };
        let end = End {
            maps: &maps,
            totals: &totals,
            symbols: &NoSymbols,
        };
        let value = |text: &str| end.value(&parse_expression(text, &[]).unwrap());
        for (text, number) in [
            ("@ == 3", 1),
            ("@ == 4", 0),
            ("@bytes[\"x\"]", -11),
            ("@bytes[\"y\"] + @bytes[\"none\"]", 5),
            ("@two[1, \"c\"] * 2", 18),
            ("@s.count", 4),
            ("@s.total", 10),
            ("@s.average", 2),
            ("@s.avg", 2),
            ("@h.count", 7),
            ("@h", 7),
            ("len(@bytes) == 2 && sum(@bytes) == -6", 1),
            ("len(@texts)", 2),
            ("sum(@texts)", 4),
            ("hits - missed == 6 && dropped == 5", 1),
            ("bad_loads ? 1 : 2", 2),
            ("1 << 4 | 3", 19),
            ("-1 < 0 && !0", 1),
            ("7 / 2 % 2", 1),
            ("-7 / 2", -3),
            // A function is written by its last segments or its address, and no part of a segment.
            ("@bytes[\":y\"]", 0),
            ("@bytes[\"a::y\"]", 5),
            ("len(@f) + @f[16].count", 1),
            ("@f[\"0x10\"].avg + @f[17]", 0),
            ("@two[(1, \"c\")]", 9),
            ("6 & 3 | 8 ^ 1", 11),
            ("~0", -1),
            ("-16 >> 2", -4),
            ("3 < 3", 0),
            ("3 <= 3", 1),
            ("3 > 3", 0),
            ("3 >= 3", 1),
            ("2 >= 3", 0),
            ("1 != 1", 0),
            ("0 || 0", 0),
            ("1 && 0", 0),
            ("(1, 2) == (1, 2)", 1),
            ("(1, 2) != (1, 2)", 0),
            ("bad_loads ? 1 / 0 : 5", 5),
            ("missed ? 5 : 1 / 0", 5),
            ("true + true", 2),
            ("9223372036854775807 * 2", 18_446_744_073_709_551_614),
        ] {
            assert_eq!(value(text), Ok(Found::Number(number)), "{text}");
        }
        for wrong in [
            "1 / 0",
            "\"a\" + 1",
            "@bytes",
            "$x",
            "@.count",
            "@s.x",
            "f(@)",
            "len(1)",
        ] {
            assert!(value(wrong).is_err(), "{wrong}");
        }
        for (wrong, why) in [
            ("@ == \"3\"", "compares a number with a text: 3 with \"3\""),
            ("\"c\" != @bytes[\"x\"]", "compares a text with a number"),
            ("(1, \"c\") == (1, 2)", "compares a text with a number"),
            ("(1, 2) == (1, 2, 3)", "compares a tuple with a tuple"),
            (
                "@bytes[1]",
                "no entry of `@bytes` is like `@bytes[1]`; one of them is `@bytes[\"x\"]`",
            ),
            ("@two[1]", "one of them is `@two[1, \"c\"]`"),
            ("@two[\"c\", 1]", "no entry of `@two` is like"),
            ("@[7]", "`@` has no keys; write `@`"),
        ] {
            let found = value(wrong);
            assert!(
                found.as_ref().is_err_and(|error| error.contains(why)),
                "{wrong}: {found:?}"
            );
        }
    }

    #[test]
    fn conditions_that_no_run_can_meet_are_refused_before_it() {
        let map = |name: &str, class, keys| MapView {
            name: Some(name.into()),
            class,
            keys,
        };
        let number = || Shape::Unsigned(8);
        let symbol = Shape::Symbol { with_offset: false };
        let series = Series {
            nanoseconds: 1,
            intervals: 1,
            gathered: Gathered::Sum,
            signed: false,
        };
        let maps = [
            map("@", Class::Count, vec![]),
            map("@n", Class::Count, vec![number()]),
            map(
                "@f",
                Class::Sum { signed: true },
                vec![symbol, Shape::Text(16)],
            ),
            map(
                "@one",
                Class::Count,
                vec![Shape::Tuple(vec![number(), Shape::Text(16)])],
            ),
            map("@t", Class::Plain(Shape::Text(16)), vec![]),
            map(
                "@p",
                Class::Plain(Shape::Tuple(vec![number(), Shape::Text(16)])),
                vec![],
            ),
            map("@s", Class::Statistics { signed: false }, vec![number()]),
            map("@h", Class::Histogram(Scale::Log2), vec![]),
            map("@u", Class::Plain(Shape::Unit), vec![]),
            map("@w", Class::Series(series), vec![]),
        ];
        let checked = |text: &str| Condition::read(text).unwrap().check(&maps);
        for taken in [
            "@ == 1 && hits > 2",
            "@n[3] - 1",
            "@f[\"g\", \"sh\"] < 0",
            "@f[0xffff, \"sh\"]",
            "@one[1, \"a\"] == @one[(1, \"a\")]",
            "@t == \"x\" ? 1 : 0",
            "@p == (1, \"x\")",
            "@s[1].count + @s[1].avg + @h.count",
            "len(@n) == sum(@f)",
            "@u == \"()\"",
            "@w == \"<no data>\"",
            "@n[@u]",
            // Which of the two it is, the end tells.
            "(1 ? @t : 3) == 3",
            "(1 ? 3 : @t) == \"x\"",
            "!(missed || dropped || bad_loads)",
        ] {
            assert_eq!(checked(taken), Ok(()), "{taken}");
        }
        for (refused, why) in [
            ("@b == 1", "no `@b`"),
            (
                "@b == 1",
                "there are @, @f, @h, @n, @one, @p, @s, @t, @u, @w, hits, missed, dropped",
            ),
            ("1 == 2", "it names no map and no number of the books"),
            ("hit > 2", "there is no `hit`"),
            ("$x", "`$x` is not there at the end"),
            ("@n == 7", "`@n` has keys"),
            ("@n == 7", "`len(@n)`"),
            ("@[1] == 7", "`@` has no keys"),
            ("@n[\"x\", 1]", "no entry of `@n` has such a key"),
            ("@n[(1, 2)]", "a key of it is a number"),
            ("@f[1, 2]", "a key of it is a text, a text"),
            ("@one[1]", "a key of it is a number, a text"),
            ("@t", "this is a text, and no condition"),
            ("(1, 2)", "this is a tuple, and no condition"),
            ("@ == \"3\"", "it compares a number with a text"),
            ("@p != (1, 2)", "it compares a tuple with a tuple"),
            ("@p == (1, \"x\", 2)", "it compares a tuple with a tuple"),
            ("@t + 1", "`@t` is a text, and a number is wanted"),
            ("-@t", "a number is wanted"),
            ("@t ? 1 : 2", "a number is wanted"),
            ("1 ? @t : \"y\"", "no condition"),
            ("@n[1].count", "only hist, lhist, stats and avg have fields"),
            ("@h.average", "there are count"),
            ("@s[1].x", "there are count, total, average"),
            ("hits.x", "`hits` has no fields"),
            ("max(@n)", "no function `max`"),
            ("len(1)", "`1` is no map"),
            ("len(@n[1])", "`@n[1]` is no map"),
            ("sum(@n, @f)", "`sum` takes one map"),
        ] {
            let error = checked(refused).expect_err(refused);
            assert!(error.contains(why), "{refused}: {error}");
            assert!(error.contains('^'), "{refused}: {error}");
        }
        assert!(Condition::read("@ ==").unwrap_err().contains("--expect"));
    }

    /// What is told of a condition that does not hold: each value that it names, once.
    #[test]
    fn a_condition_that_does_not_hold_tells_the_values() {
        let totals = Totals {
            hits: 7,
            ..Totals::default()
        };
        let holds = |text: &str| {
            let condition = Condition::read(text).unwrap();
            condition.holds(&Presentation::default(), &totals, &NoSymbols)
        };
        assert_eq!(holds("hits == 7"), Ok(()));
        assert_eq!(holds("-1"), Ok(()));
        for text in ["\"x\"", "(1, 2)", "hits == 7 ? \"x\" : 1"] {
            let why = holds(text).expect_err(text);
            assert!(
                why.ends_with("it is a text, and no condition"),
                "{text}: {why}"
            );
        }
        assert_eq!(
            holds("hits != 7 || missed > hits"),
            Err(
                "--expect 'hits != 7 || missed > hits' does not hold: hits is 7, missed is 0"
                    .into()
            )
        );
        assert_eq!(
            holds("1 / missed"),
            Err("--expect '1 / missed' does not hold: it divides by zero".into())
        );
    }
}
