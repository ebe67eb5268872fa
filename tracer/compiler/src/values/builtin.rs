//! The functions that give values: one function of the compiler for each of the language.
//!
//! All have one signature, and [`GIVEN`] names them. How they are called is in
//! [`crate::functions`].

use alloc::{boxed::Box, format, rc::Rc};
use core::ops::RangeInclusive;

use trace_interface::{
    shape::{Naming, Shape, StackForm},
    symbols::Register,
    view::Class,
};
use trace_language::{
    Diagnostic,
    tree::{Expression, ExpressionKind, Map as MapName, Name, Span},
};

use super::{
    COMM_BYTES, Copied, Holds, Home, SiteKind, UserMoment, Val, Values, Variable, identity,
    library, sizes, text::MOST_TEXT, typeinfo, words,
};
use crate::{
    Lowered,
    functions::{self, Call, Role, map_and_key, text},
    number::{Counted, Key, Kind, Number, Space},
    tables::Unset,
};

/// A function that gives a value.
type Gives = fn(&mut Values<'_, '_>, Call<'_>) -> Lowered<Val>;

/// See the module's text.
pub(crate) const GIVEN: [(&str, Gives); 39] = [
    ("str", string),
    ("buf", bytes),
    ("ksym", symbol),
    ("usym", user_symbol),
    ("sym", symbol),
    ("kaddr", address_of_function),
    ("uptr", |values, call| pointer(values, call, Space::User)),
    ("kptr", |values, call| pointer(values, call, Space::Kernel)),
    ("reg", register),
    ("kstack", |values, call| stack(values, call, 127)),
    ("ustack", |values, call| stack(values, call, 125)),
    ("nsecs", library::nanoseconds),
    ("pid", library::task_number),
    ("tid", library::task_number),
    ("strftime", time),
    ("strncmp", texts_differ),
    ("strlen", library::text_length),
    ("strstr", library::position),
    ("strcontains", library::contains),
    ("strerror", |values, call| {
        library::named(values, call, Naming::Error)
    }),
    ("signal_name", |values, call| {
        library::named(values, call, Naming::Signal)
    }),
    ("syscall_name", |values, call| {
        library::named(values, call, Naming::SystemCall)
    }),
    ("bswap", library::swapped),
    ("is_err", library::is_error),
    ("delete", deleted),
    ("find", find),
    ("sizeof", sizes::size),
    ("offsetof", sizes::offset),
    ("typeinfo", typeinfo::record),
    ("is_integer", |values, call| {
        typeinfo::is(values, call, "int")
    }),
    ("is_unsigned_integer", typeinfo::is_unsigned),
    ("is_str", |values, call| {
        typeinfo::is(values, call, "string")
    }),
    ("is_ptr", |values, call| {
        typeinfo::is(values, call, "pointer")
    }),
    ("is_array", |values, call| {
        typeinfo::is(values, call, "array")
    }),
    ("is_literal", typeinfo::is_literal),
    ("is_scalar", typeinfo::is_scalar),
    ("comptime", typeinfo::known),
    ("len", length),
    ("has_key", has_key),
];

impl Values<'_, '_> {
    /// A call for its value.
    pub(crate) fn call(
        &mut self,
        name: &Name,
        arguments: &[Expression],
        span: Span,
    ) -> Lowered<Val> {
        let call = Call {
            name,
            arguments,
            span,
        };
        let word = &*name.text;
        if let Some((_, gives)) = GIVEN.iter().find(|(known, _)| *known == word) {
            return gives(self, call);
        }
        // A word may stand as a call, too.
        let is_word =
            words::WORDS.contains(&word) || self.tables.options.events.words().any(|of| of == word);
        if arguments.is_empty() && is_word {
            return self.name(word, span);
        }
        Err(match functions::named(word).map(|function| function.role) {
            Some(Role::Aggregation) => Diagnostic::new(
                span,
                format!("`{word}` can only be assigned to a map"),
                format!("write `@name = {word}(…);`"),
            ),
            Some(_) => Diagnostic::new(
                span,
                format!("`{word}` gives no value, or takes other arguments"),
                "use it as a statement",
            ),
            None => call.unknown(),
        })
    }

    pub(crate) fn constant(
        &mut self,
        argument: &Expression,
        within: RangeInclusive<u32>,
    ) -> Lowered<u32> {
        let counted = self.count(argument)?;
        let number = counted.number.constant();
        number
            .and_then(|number| u32::try_from(number).ok())
            .filter(|number| within.contains(number))
            .ok_or_else(|| {
                Diagnostic::new(
                    argument.span,
                    format!(
                        "this must be a number of the text, {} to {}",
                        within.start(),
                        within.end()
                    ),
                    "",
                )
            })
    }
}

fn string(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    match call.arguments {
        [address] => {
            let value = values.value(address)?;
            let most = values.tables.options.text_bytes;
            values.text_at(value, address.span, most, None)
        }
        [address, length] => {
            let value = values.value(address)?;
            if values.is_text(&value) {
                return super::text::cut(values, value, address.span, length);
            }
            let counted = values.count(length)?;
            if counted.number.constant().is_some() {
                let most = values.constant(length, 1..=MOST_TEXT)?;
                // With its NUL.
                values.text_at(value, address.span, most + 1, None)
            } else {
                let most = values.tables.options.text_bytes;
                values.text_at(value, address.span, most, Some(counted.number))
            }
        }
        _ => call.refuse(),
    }
}

fn bytes(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    match call.arguments {
        [of] => {
            let value = values.value(of)?;
            let Val::Object(object) = &value else {
                return call.refuse();
            };
            let field = |text: &str| Name {
                text: text.into(),
                span: of.span,
            };
            let address = values.object_field(object, &field("ptr"))?;
            let length = values.object_field(object, &field("len"))?;
            let address = values.as_number(address, of.span)?;
            let length = values.as_number(length, of.span)?;
            Ok(Val::Bytes {
                space: object.space(),
                address: address.number,
                length: length.number,
                most: values.tables.options.slice_bytes.next_multiple_of(8),
            })
        }
        [of, length] => {
            let value = values.value(of)?;
            if values.is_text(&value) {
                let bytes = values.constant(length, 1..=MOST_TEXT)?;
                return Ok(super::text::bytes_of_text(values, value, bytes, of.span));
            }
            let address = values.as_number(value, of.span)?;
            let length_span = length.span;
            let length = values.count(length)?;
            let constant = length.number.constant();
            if constant.is_some_and(|bytes| bytes.cast_signed() < 0) {
                return Err(Diagnostic::new(
                    length_span,
                    "no memory has so few bytes",
                    "give the number of bytes: buf(address, 16)",
                ));
            }
            let most = match constant {
                Some(constant) => constant.min(MOST_TEXT.into()) as u32,
                None => values.tables.options.slice_bytes,
            };
            Ok(Val::Bytes {
                space: values.site.space_of(&address.kind),
                address: address.number,
                length: length.number,
                most: most.max(1).next_multiple_of(8),
            })
        }
        _ => call.refuse(),
    }
}

fn symbol(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [address] = call.arguments else {
        return call.refuse();
    };
    let counted = values.count(address)?;
    Ok(Val::Number(Counted {
        kind: Kind::Symbol { with_offset: false },
        ..counted
    }))
}

/// `usym(address)`: the address, and the name of the task, by which the reader finds the program.
fn user_symbol(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [address] = call.arguments else {
        return call.refuse();
    };
    let Counted {
        number, present, ..
    } = values.count(address)?;
    let number = Number::select(present, number, Number::Constant(0));
    let parts = [Val::number(number, Kind::UNSIGNED), Val::Comm];
    let shapes = [Shape::Unsigned(8), Shape::Text(COMM_BYTES)];
    let both = Copied::Value(Val::Tuple(parts.into()));
    Ok(
        match values.copied(both, Shape::Tuple(shapes.into()), call.span) {
            Val::Stored { place, .. } => Val::Stored {
                place,
                shape: Shape::UserSymbol,
            },
            other => other,
        },
    )
}

fn pointer(values: &mut Values<'_, '_>, call: Call<'_>, space: Space) -> Lowered<Val> {
    let [address] = call.arguments else {
        return call.refuse();
    };
    let counted = values.count(address)?;
    let to = match counted.kind {
        Kind::Pointer { to, .. } => to,
        _ => None,
    };
    Ok(Val::Number(Counted {
        kind: Kind::Pointer { to, space },
        ..counted
    }))
}

fn address_of_function(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [function] = call.arguments else {
        return call.refuse();
    };
    let text = text(function, "kaddr(\"vfs_write\")")?;
    match *values.tables.functions(text) {
        [address] => Ok(Val::number(Number::Constant(address), Kind::ADDRESS)),
        [] => {
            let name = Name {
                text: text.into(),
                span: function.span,
            };
            Err(values.tables.no_function(&name))
        }
        ref several => Err(Diagnostic::new(
            function.span,
            format!("{} functions are called so", several.len()),
            "write more of the path",
        )),
    }
}

/// `kstack(frames)` and `ustack(frames)`.
fn stack(values: &mut Values<'_, '_>, call: Call<'_>, most: u32) -> Lowered<Val> {
    let word = &*call.name.text;
    if !values.has_code() && word == "ustack" {
        return Err(words::no_code(word, call.span));
    }
    let (form, frames) = match call.arguments {
        [] => (None, None),
        [only] if matches!(only.kind, ExpressionKind::Name(_)) => (Some(only), None),
        [frames] => (None, Some(frames)),
        [form, frames] => (Some(form), Some(frames)),
        _ => return call.refuse(),
    };
    let form = form.map_or(Ok(values.tables.options.stack_form), stack_form)?;
    let frames = match frames {
        Some(frames) => values.constant(frames, 1..=most)?,
        None => values.tables.options.stack_frames,
    };
    Ok(values.stack(frames, word == "ustack", form))
}

fn stack_form(of: &Expression) -> Lowered<StackForm> {
    match &of.kind {
        ExpressionKind::Name(word) if word == "bpftrace" => Ok(StackForm::Functions),
        ExpressionKind::Name(word) if word == "perf" => Ok(StackForm::Perf),
        ExpressionKind::Name(word) if word == "raw" => Ok(StackForm::Raw),
        _ => Err(Diagnostic::new(
            of.span,
            "this is no form of a call stack",
            "the forms are bpftrace, perf and raw: kstack(perf, 3)",
        )),
    }
}

fn register(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [name] = call.arguments else {
        return call.refuse();
    };
    if !values.has_code() {
        return Err(words::no_code("reg", call.span));
    }
    let text = text(name, "reg(\"di\")")?;
    let is_other = |register| {
        let has_others = match values.site.kind {
            SiteKind::Watch(_) => true,
            kind => kind == SiteKind::User(UserMoment::Return),
        };
        has_others && matches!(register, Register::OrigAx | Register::Ss)
    };
    match register_named(text) {
        Some(register) if is_other(register) => Err(Diagnostic::new(
            name.span,
            format!("`{text}` is not known here"),
            "a probe at an instruction knows it",
        )),
        Some(register) => Ok(Val::number(Number::Register(register), Kind::UNSIGNED)),
        None => Err(Diagnostic::new(
            name.span,
            format!("there is no register `{text}`"),
            "there are ax, bx, cx, dx, si, di, bp, sp, r8 to r15, ip and flags",
        )),
    }
}

fn time(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [format, time] = call.arguments else {
        return call.refuse();
    };
    let format: Rc<str> = functions::time_format(format, "strftime(\"%H:%M:%S\", nsecs)")?.into();
    let counted = values.count(time)?;
    let constant = counted.number.constant();
    if counted.kind == Kind::Literal && constant.is_some_and(|at| at.cast_signed() < 0) {
        return Err(Diagnostic::new(
            call.span,
            "no time is before the machine has started",
            "give nanoseconds since then: strftime(\"%H:%M:%S\", nsecs)",
        ));
    }
    Ok(Val::Number(Counted {
        kind: Kind::Time { format },
        ..counted
    }))
}

fn texts_differ(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [left, right, length] = call.arguments else {
        return call.refuse();
    };
    let (left_value, right_value) = (values.value(left)?, values.value(right)?);
    for (value, span) in [(&left_value, left.span), (&right_value, right.span)] {
        if !values.is_text(value) {
            return Err(library::no_text(
                value,
                span,
                "str(address) makes a text of an address",
            ));
        }
    }
    let most = values.constant(length, 1..=MOST_TEXT)?;
    let spans = (left.span, right.span);
    let test = values.texts_start_equal(left_value, right_value, most, spans)?;
    Ok(Val::number(Number::test(test.negated()), Kind::Literal))
}

fn has_key(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [of, keys @ ..] = call.arguments else {
        return call.refuse();
    };
    match map_and_key(of, keys) {
        Some(map) => {
            let has = values.has_key(&map)?;
            Ok(Val::number(Number::test(has), Kind::Boolean))
        }
        None => call.refuse(),
    }
}

/// Puts the value of a key into a variable, and tells whether it was there.
fn find(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [of, key, to] = call.arguments else {
        return call.refuse();
    };
    let ExpressionKind::Variable(name) = &to.kind else {
        return call.refuse();
    };
    let Some(map) = map_and_key(of, core::slice::from_ref(key)) else {
        return call.refuse();
    };
    let number = values.tables.map(&map.name);
    let stored = values.key(number, &map)?;
    let class = values.tables.maps[number as usize].class.clone();
    let Class::Plain(shape) = class.unwrap_or(Class::Plain(Shape::Unsigned(8))) else {
        return Err(Diagnostic::new(
            map.span,
            "the values of this map are kept on each CPU, so none is found in one step",
            "write `if (has_key(@name, key)) { $value = @name[key]; … }`",
        ));
    };
    let holds = match values.tables.kind_in(number, &shape) {
        Some(kind) => Holds::Number(kind),
        None => Holds::Stored(shape.clone()),
    };
    let mut room = shape.bytes().max(8);
    let mut cut = None;
    let (place, fits) = match values.find(name) {
        Some(variable) if matches!(variable.holds, Holds::Nothing) => {
            let unset = match &holds {
                Holds::Number(kind) => Unset::Number(kind.clone()),
                _ => Unset::Stored(shape.clone()),
            };
            let made = identity(values, &variable.name, variable.made_at);
            values.tables.unset.insert(made, unset);
            // The next time it begins with zero.
            values.tables.learned = true;
            (values.room(room, true), true)
        }
        Some(variable) => {
            let fits = match (&variable.holds, &holds) {
                (Holds::Nothing, holds) => {
                    let unset = match holds {
                        Holds::Number(kind) => Unset::Number(kind.clone()),
                        _ => Unset::Stored(shape.clone()),
                    };
                    let made = identity(values, &variable.name, variable.made_at);
                    values.tables.unset.insert(made, unset);
                    values.tables.learned = true;
                    true
                }
                (Holds::Number(held), Holds::Number(new)) => {
                    cut = held.narrow();
                    if held.takes_others() {
                        let made = identity(values, &variable.name, variable.made_at);
                        values.tables.variable(made, &new.shape());
                    }
                    held == new || held.is_number() && new.is_number()
                }
                (Holds::Stored(held), Holds::Stored(new)) => {
                    let made = identity(values, &variable.name, variable.made_at);
                    // If it has no room yet, it has some the next time.
                    let known = values.tables.variable(made, new);
                    room = held.bytes();
                    known.is_some_and(|known| known == *new || known.is_text())
                }
                _ => false,
            };
            (variable.place, fits)
        }
        None => {
            let place = values.room(room, true);
            values.scopes[0].push(Variable {
                name: name.clone(),
                place,
                holds,
                made_at: to.span.start,
                limit: None,
                home: Home::Own,
            });
            (place, true)
        }
    };
    if !fits {
        return Err(Diagnostic::new(
            to.span,
            format!("`${name}` holds a value of another type than this map"),
            "use another variable",
        ));
    }
    let found = Number::Found {
        map: number,
        key: Box::new(Key { stored }),
        to: place,
        bytes: shape.bytes().min(room),
        room,
        cut,
    };
    let present = values.keys_present(stored);
    let number = Number::select(present, found, Number::Constant(0));
    Ok(Val::number(number, Kind::Boolean))
}

/// Takes a key away, and tells whether it was there.
fn deleted(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [of, key @ ..] = call.arguments else {
        return call.refuse();
    };
    let Some(map) = map_and_key(of, key) else {
        return call.refuse();
    };
    let number = values.tables.map(&map.name);
    let stored = values.key(number, &map)?;
    let everywhere = match values.tables.maps[number as usize].class {
        Some(Class::Plain(_)) | None => false,
        Some(ref class) if class.parts().is_some() => {
            return Err(Diagnostic::new(
                call.span,
                "this map keeps each key in parts, so it is not told whether one was there",
                "write it as a statement: delete(@name[key]);",
            ));
        }
        Some(_) => true,
    };
    let deleted = Number::Deleted {
        map: number,
        key: Box::new(Key { stored }),
        everywhere,
    };
    let present = values.keys_present(stored);
    let number = Number::select(present, deleted, Number::Constant(0));
    Ok(Val::number(number, Kind::Boolean))
}

/// How many keys a map, frames a call stack, or elements a value of the source has.
fn length(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [of] = call.arguments else {
        return call.refuse();
    };
    if let ExpressionKind::Map(map) = &of.kind
        && map.keys.is_empty()
    {
        let number = values.tables.map(&map.name);
        let known = &values.tables.maps[number as usize];
        let is_table = known.keys.as_ref().is_none_or(|keys| !keys.is_empty());
        if is_table {
            return count_keys(values, number, map, call.span);
        }
    }
    match values.value(of)? {
        Val::Number(Counted {
            number,
            kind: Kind::Stack { map, is_user, .. },
            present,
        }) => Ok(Val::Number(Counted {
            number: Number::Frames {
                map,
                is_user,
                number: Box::new(number),
            },
            kind: Kind::UNSIGNED,
            present,
        })),
        Val::Object(object) => match values.text_of(&object, of.span)? {
            Some((_, length)) => Ok(Val::Number(Counted {
                number: length,
                kind: Kind::UNSIGNED,
                present: object.present,
            })),
            None => {
                let name = Name {
                    text: "len".into(),
                    span: of.span,
                };
                values.object_field(&object, &name)
            }
        },
        _ => Err(Diagnostic::new(
            of.span,
            "this value has no length",
            "there is one of a map with keys, of kstack and ustack, and of slices, arrays and \
             texts of the source",
        )),
    }
}

fn count_keys(values: &mut Values<'_, '_>, number: u32, map: &MapName, span: Span) -> Lowered<Val> {
    if !matches!(
        values.site.kind,
        SiteKind::Begin | SiteKind::End | SiteKind::Interval
    ) {
        return Err(Diagnostic::new(
            span,
            "counting the keys of a map takes long, and the code that hits this probe would \
             wait for it",
            "use it in interval:, begin or end",
        ));
    }
    let class = &values.tables.maps[number as usize].class;
    if class.as_ref().is_some_and(|class| class.parts().is_some()) {
        return Err(Diagnostic::new(
            map.span,
            "each part of a histogram or a series is a key of its own, so the keys are not counted",
            "count into another map beside it",
        ));
    }
    let number = Number::Keys { map: number };
    Ok(Val::number(number, Kind::UNSIGNED))
}

/// A register by its name, with or without its first letter.
fn register_named(name: &str) -> Option<Register> {
    let name = name.trim_start_matches('%');
    let known = Register::ALL.into_iter().find(|register| {
        let known = register.name();
        known == name || (known.len() == 2 && name.strip_prefix('r') == Some(known))
    });
    known.or(match name {
        "rflags" | "eflags" => Some(Register::Flags),
        _ => None,
    })
}
