//! The functions that do something: one function of the compiler for each of the language.
//!
//! All have one signature, and [`DONE`] names them. How they are called is in [`crate::functions`].
//! Most write a record: the kernel acts on its request, and the reader shows it.

use alloc::{
    boxed::Box,
    format,
    rc::Rc,
    string::{String, ToString},
    vec::Vec,
};

use trace_interface::{
    script::Request,
    shape::Shape,
    view::{Conversion, Level, Part, Record, Style},
};
use trace_language::{
    Diagnostic,
    tree::{Expression, ExpressionKind, Map as MapName, Span},
};

use super::Program;
use crate::{
    Lowered, format as conversions,
    functions::{self, Call, Role, map_and_key, text},
    names,
    number::{Counted, Kind, Number, Test},
    types::shape::Room,
    values::Val,
};

/// How many texts of a list are joined, as elsewhere.
const MOST_JOINED: u32 = 16;
/// The most bytes of each, so that a record has room for all.
const MOST_OF_JOINED: u32 = 64;

/// A function that does something.
type Does = fn(&mut Program<'_, '_>, Call<'_>) -> Lowered<()>;

/// See the module's text.
pub(crate) const DONE: [(&str, Does); 14] = [
    ("printf", |program, call| {
        print_line(program, call, Level::Plain)
    }),
    ("debugf", |program, call| {
        print_line(program, call, Level::Plain)
    }),
    ("warnf", |program, call| {
        print_line(program, call, Level::Warning)
    }),
    ("errorf", |program, call| {
        print_line(program, call, Level::Error)
    }),
    ("assert", assert),
    ("fail", fail),
    ("print", print),
    ("join", join),
    ("time", time),
    ("clear", clear),
    ("zero", zero),
    ("delete", delete),
    ("exit", exit),
    ("unwatch", unwatch),
];

impl Program<'_, '_> {
    /// A call for its effect.
    pub(crate) fn effect(&mut self, expression: &Expression) -> Lowered<()> {
        let span = expression.span;
        if self.effect_of_parts(expression)? {
            return Ok(());
        }
        let expression = &self.without_blocks_in(expression)?;
        let ExpressionKind::Call { name, arguments } = &expression.kind else {
            return self.throw_away(expression);
        };
        let call = Call {
            name,
            arguments,
            span,
        };
        let word = &*name.text;
        if let Some((_, does)) = DONE.iter().find(|(known, _)| *known == word) {
            return does(self, call);
        }
        match functions::named(word).map(|function| function.role) {
            Some(Role::Aggregation) => Err(Diagnostic::new(
                span,
                format!("`{word}` has no effect by itself"),
                format!("assign it to a map: `@ = {word}(…);`"),
            )),
            // For its messages, if it has no effect.
            _ => self.throw_away(expression),
        }
    }

    fn throw_away(&mut self, expression: &Expression) -> Lowered<()> {
        let value = self.code.value(expression)?;
        let Val::Number(counted) = value else {
            return Ok(());
        };
        if let Number::ElementStep {
            map, key, delta, ..
        } = &counted.number
        {
            let delta = Number::Constant(delta.cast_unsigned());
            let always = Test::Constant(true);
            self.code.add_shared(*map, key.stored, &delta, &always);
        } else if counted.number.has_effect() {
            self.code.number(&counted.number);
        }
        Ok(())
    }

    /// A record that only asks the kernel for something.
    fn ask(&mut self, request: Request, record: Record, status: &Number) -> Lowered<()> {
        self.code
            .write_record(request, record, Vec::new(), status, Span::default())
    }

    /// A record that the reader shows.
    pub(crate) fn record(
        &mut self,
        record: Record,
        values: Vec<(Val, Shape, Span)>,
        span: Span,
    ) -> Lowered<()> {
        self.code
            .write_record(Request::Forward, record, values, &Number::Constant(0), span)
    }
}

/// `fail("text")`.
fn fail(_: &mut Program<'_, '_>, call: Call<'_>) -> Lowered<()> {
    match call.arguments {
        [of] if let ExpressionKind::String(text) = &of.kind => Err(Diagnostic::new(
            call.span,
            text.clone(),
            "the program refuses itself here, by `fail`",
        )),
        _ => call.refuse(),
    }
}

fn map_of(argument: &Expression) -> Option<&MapName> {
    match &argument.kind {
        ExpressionKind::Map(map) => Some(map),
        _ => None,
    }
}

fn print(program: &mut Program<'_, '_>, call: Call<'_>) -> Lowered<()> {
    let [of, rest @ ..] = call.arguments else {
        return call.refuse_for("print(@map)");
    };
    match map_of(of) {
        _ if rest.len() > 2 => call.refuse_for("print(@map)"),
        Some(map) if map.keys.is_empty() => print_map(program, map, rest),
        Some(map) if rest.is_empty() && program.values().tables.is_only_printed(map) => {
            print_entry(program, map)
        }
        Some(_) if rest.is_empty() => print_value(program, of, call.span),
        Some(_) => call.refuse_for("print(@map[key]) or print(@map, top)"),
        None if rest.is_empty() => print_value(program, of, call.span),
        None => call.refuse_for("print(value) or print(@map, top, div)"),
    }
}

fn print_value(program: &mut Program<'_, '_>, of: &Expression, span: Span) -> Lowered<()> {
    let value = program.code.value(of)?;
    let (value, shape) = program.values().printed(value, Some(Room::Record), of.span);
    let record = Record::Value(shape.clone());
    program.record(record, alloc::vec![(value, shape, of.span)], span)
}

fn print_map(program: &mut Program<'_, '_>, map: &MapName, rest: &[Expression]) -> Lowered<()> {
    let map = program.values().tables.map(&map.name);
    let mut number = |index: usize, least: u32| match rest.get(index) {
        Some(argument) => program.code.constant(argument, least..=u32::MAX),
        None => Ok(least),
    };
    let (top, divisor) = (u64::from(number(0, 0)?), u64::from(number(1, 1)?));
    program.ask(
        Request::Print { map },
        Record::Map { map, top, divisor },
        &Number::Constant(0),
    )
}

/// An entry of a map whose values are no values of the language.
fn print_entry(program: &mut Program<'_, '_>, map: &MapName) -> Lowered<()> {
    let number = program.values().tables.map(&map.name);
    let key = program.code.key(number, map)?;
    let (_, values, span) = program.values().keys[key].clone();
    let shapes = program.values().tables.maps[number as usize].keys.clone();
    let stored = values.into_iter().zip(shapes.unwrap_or_default());
    let stored = stored.map(|(value, shape)| (value, shape, span)).collect();
    let request = Request::Print { map: number };
    let record = Record::Key { map: number };
    let status = Number::Constant(0);
    program
        .code
        .write_record(request, record, stored, &status, span)
}

fn print_line(program: &mut Program<'_, '_>, call: Call<'_>, level: Level) -> Lowered<()> {
    let [format, values @ ..] = call.arguments else {
        return call.refuse();
    };
    let text = text(format, "printf(\"%d\\n\", pid)")?;
    let mut parts = conversions::parse(text)
        .map_err(|(cause, next)| Diagnostic::new(format.span, cause, next))?;
    let mut wanted: Vec<&mut Conversion> = parts
        .iter_mut()
        .filter_map(|part| match part {
            Part::Value(conversion) => Some(conversion),
            Part::Literal(_) => None,
        })
        .collect();
    if wanted.len() != values.len() {
        return Err(Diagnostic::new(
            values
                .get(wanted.len())
                .map_or(format.span, |value| value.span),
            format!(
                "the format shows {}, and there are {}",
                plural(wanted.len()),
                values.len()
            ),
            "give one value for each conversion",
        ));
    }
    let mut stored = Vec::new();
    let mut places = Vec::new();
    let mut offset = 0;
    for (conversion, expression) in wanted.iter_mut().zip(values) {
        let value = program.code.value(expression)?;
        let room = match (conversion.style, conversion.letter) {
            (Style::Natural, 's') | (Style::Dump { .. }, _) => Some(Room::Text),
            (Style::Natural, _) => Some(Room::Record),
            _ => None,
        };
        let (mut value, mut shape) = program.values().printed(value, room, expression.span);
        if !conversion.takes(&shape) {
            // A type around a number, a `Result` of numbers.
            match program.values().as_number(value.clone(), expression.span) {
                Ok(counted) if conversion.takes(&counted.kind.shape()) => {
                    value = Val::Number(counted);
                    shape = program.values().shape(&value, true);
                }
                _ => {
                    let (conversion, shown) = match conversion.style {
                        Style::Dump { escaped: true } => ("rx".into(), "bytes"),
                        Style::Dump { escaped: false } => ("rh".into(), "bytes"),
                        _ => (conversion.letter.to_string(), "numbers"),
                    };
                    return Err(Diagnostic::new(
                        expression.span,
                        format!(
                            "`%{conversion}` shows {shown}, and this is {}",
                            names::shape(&shape)
                        ),
                        "use %s or %r",
                    ));
                }
            }
        }
        // The bits of a negative number are those of its own length.
        if matches!(
            conversion.style,
            Style::Unsigned | Style::Hex { .. } | Style::Octal
        ) {
            conversion.bytes = conversion.bytes.or_else(|| match &value {
                Val::Number(counted) => counted.kind.narrow().map(|(bytes, _)| bytes),
                _ => shape.number_bytes(),
            });
        }
        places.push((offset, shape.clone()));
        offset += shape.bytes();
        stored.push((value, shape, expression.span));
    }
    program.record(
        Record::Line {
            level,
            parts,
            values: places,
        },
        stored,
        format.span,
    )
}

/// Prints a line of the texts of a list: a slice of texts, or an array of pointers to texts
/// that a null ends, as `argv`. At most [`MOST_JOINED`].
fn join(program: &mut Program<'_, '_>, call: Call<'_>) -> Lowered<()> {
    let (list, between) = match call.arguments {
        [list] => (list, " "),
        [list, between] => (list, text(between, "join(arg1, \",\")")?),
        _ => return call.refuse(),
    };
    let span = list.span;
    let value = program.code.value(list)?;
    let items: Vec<Val> = match program.values().simplified(value, span) {
        list @ Val::Object(_) => {
            let element = |index: u32| {
                let index = Counted {
                    number: Number::Constant(index.into()),
                    kind: Kind::UNSIGNED,
                    present: Test::Constant(true),
                };
                program.values().index(list.clone(), index, span)
            };
            (0..MOST_JOINED).map(element).collect::<Lowered<_>>()?
        }
        array => {
            let Counted {
                number, present, ..
            } = program.values().as_number(array, span)?;
            let array = Number::select(present, number, Number::Constant(0));
            let most = program
                .values()
                .tables
                .options
                .text_bytes
                .min(MOST_OF_JOINED);
            let texts = program.code.read_pointers(&array, MOST_JOINED);
            let text = |address: Number| Val::Text {
                present: Test::NotZero(address.clone()),
                address,
                most,
                limit: None,
            };
            texts.into_iter().map(text).collect()
        }
    };
    let mut stored = Vec::new();
    let mut places = Vec::new();
    let mut offset = 0;
    for item in items {
        if !program.values().is_text(&item) {
            return Err(Diagnostic::new(
                span,
                "the elements of this list are no texts",
                "use print(), which shows any list",
            ));
        }
        let (item, shape) = program.values().printed(item, Some(Room::Record), span);
        let shape = for_joining(shape);
        places.push((offset, shape.clone()));
        offset += shape.bytes();
        stored.push((item, shape, span));
    }
    let record = Record::Joined {
        between: between.into(),
        values: places,
    };
    program.record(record, stored, span)
}

/// A text with less room, because there are many.
fn for_joining(shape: Shape) -> Shape {
    match shape {
        Shape::Counted(most) => Shape::Counted(most.min(MOST_OF_JOINED)),
        Shape::Maybe(of) => Shape::Maybe(Box::new(for_joining(*of))),
        Shape::Behind(of) => Shape::Behind(Box::new(for_joining(*of))),
        shape => shape,
    }
}

fn time(program: &mut Program<'_, '_>, call: Call<'_>) -> Lowered<()> {
    let format: Rc<str> = match call.arguments {
        [] => "%H:%M:%S\n".into(),
        [format] => functions::time_format(format, "time(\"%H:%M:%S\\n\")")?.into(),
        _ => return call.refuse(),
    };
    let clock = program.values().tables.clock();
    let value = Val::number(Number::Nanoseconds { clock }, Kind::Time { format });
    let shape = program.values().shape(&value, false);
    let record = Record::Time(shape.clone());
    program.record(record, alloc::vec![(value, shape, call.span)], call.span)
}

fn clear(program: &mut Program<'_, '_>, call: Call<'_>) -> Lowered<()> {
    let [of] = call.arguments else {
        return call.refuse_for("clear(@map)");
    };
    match map_of(of) {
        Some(map) if map.keys.is_empty() => {
            let map = program.values().tables.map(&map.name);
            program.ask(Request::Clear { map }, Record::Silent, &Number::Constant(0))
        }
        Some(map) => program.delete(map),
        None => call.refuse(),
    }
}

fn zero(program: &mut Program<'_, '_>, call: Call<'_>) -> Lowered<()> {
    let [of] = call.arguments else {
        return call.refuse_for("zero(@map)");
    };
    match map_of(of) {
        Some(map) if map.keys.is_empty() => {
            let map = program.values().tables.map(&map.name);
            program.ask(Request::Zero { map }, Record::Silent, &Number::Constant(0))
        }
        Some(map) => program.zero_key(map),
        None => call.refuse(),
    }
}

fn delete(program: &mut Program<'_, '_>, call: Call<'_>) -> Lowered<()> {
    let [of, key @ ..] = call.arguments else {
        return call.refuse_for("delete(@map[key])");
    };
    match map_and_key(of, key) {
        Some(map) => program.delete(&map),
        None => call.refuse(),
    }
}

/// Ends the trace with an error unless a condition holds.
fn assert(program: &mut Program<'_, '_>, call: Call<'_>) -> Lowered<()> {
    let [condition, message] = call.arguments else {
        return call.refuse();
    };
    let test = program.code.test(condition)?;
    let holds = program.code.asm.label();
    program.code.branch_on(&test, true, holds);
    let value = program.code.value(message)?;
    if !program.values().is_text(&value) {
        return call.refuse();
    }
    let shape = program.values().shape(&value, true);
    let record = Record::Line {
        level: Level::Error,
        parts: conversions::parse("assert failed: %s").unwrap_or_default(),
        values: alloc::vec![(0, shape.clone())],
    };
    program.record(record, alloc::vec![(value, shape, message.span)], call.span)?;
    program.ask(Request::Exit, Record::Exit, &Number::Constant(1))?;
    program.leave_block();
    program.code.asm.place(holds);
    Ok(())
}

/// The trace is to end, and this block ends at once.
fn exit(program: &mut Program<'_, '_>, call: Call<'_>) -> Lowered<()> {
    let status = match call.arguments {
        [] => Number::Constant(0),
        [status] => {
            let status = program.code.count(status)?;
            program.code.keep(&status.number)
        }
        _ => return call.refuse(),
    };
    program.ask(Request::Exit, Record::Exit, &status)?;
    program.leave_block();
    Ok(())
}

/// The reader ends the watches of an address, after all records written before the call.
fn unwatch(program: &mut Program<'_, '_>, call: Call<'_>) -> Lowered<()> {
    let [address] = call.arguments else {
        return call.refuse();
    };
    let span = address.span;
    let counted = program.code.count(address)?;
    let address = Val::number(program.code.keep(&counted.number), Kind::UNSIGNED);
    let values = alloc::vec![(address, Shape::Unsigned(8), span)];
    let none = Number::Constant(0);
    program
        .code
        .write_record(Request::Unwatch, Record::Silent, values, &none, call.span)
}

fn plural(count: usize) -> String {
    match count {
        1 => "1 value".into(),
        count => format!("{count} values"),
    }
}
