//! The names and functions of the language.

use alloc::{boxed::Box, format, rc::Rc, string::String, vec::Vec};

use bpf::{AluOp, Condition, Helper, MOST_RECORD_BYTES, Reg, context::ARGUMENTS};
use trace_interface::{
    script::{RECORD_TYPE, Request},
    shape::Shape,
    symbols::Register,
    view::{Class, HEADER, Part, Record, VALUES},
};
use trace_language::{
    Diagnostic,
    tree::{Expression, ExpressionKind, Map as MapName, Name, Span},
};

use super::{
    body::{Body, SiteKind},
    expression::{Counted, Kind, Lowered, Val},
    names,
};
use crate::{
    asm::Place,
    format as conversions,
    number::{Number, Space, Stores, Test},
};

/// The words that are always there.
const WORDS: [&str; 17] = [
    "pid", "tid", "comm", "cpu", "nsecs", "elapsed", "func", "probe", "kstack", "ustack", "retval",
    "args", "arg0", "arg1", "arg2", "caller", "ip",
];

/// The functions that give values, and those that do something.
const FUNCTIONS: [&str; 30] = [
    "has_key", "len", "printf", "print", "join", "clear", "zero", "delete", "exit", "time", "str",
    "ksym", "kaddr", "uptr", "kptr", "buf", "kstack", "ustack", "reg", "strftime", "strncmp",
    "nsecs", "count", "sum", "min", "max", "avg", "stats", "hist", "lhist",
];

/// Names of other tracers, and why they are not here.
const ABSENT: [(&str, &str); 12] = [
    (
        "usym",
        "ustack(1) has the name of the function that has called the kernel; print another address \
         with %p",
    ),
    (
        "uaddr",
        "names of programs are looked up by address only, in ustack",
    ),
    ("uid", "there are no users; use pid or comm"),
    ("gid", "there are no groups; use pid or comm"),
    ("username", "there are no users; use pid or comm"),
    ("cgroup", "there are no control groups; use pid or comm"),
    ("curtask", "use pid, tid and comm"),
    (
        "rand",
        "there is no source of random numbers at a probe; nsecs changes with each hit",
    ),
    (
        "system",
        "the tracer runs no programs; pass its output to one",
    ),
    ("cat", "the tracer prints no files; use cat at the prompt"),
    ("ntop", "there is no network"),
    (
        "signal",
        "a program only looks and counts; use kill at the prompt",
    ),
];

/// How many texts of a list are joined, as elsewhere.
const MOST_JOINED: u32 = 16;

/// "1 argument".
pub(super) fn arguments(count: usize) -> String {
    match count {
        0 => "no arguments".into(),
        1 => "1 argument".into(),
        count => format!("{count} arguments"),
    }
}

/// A register by its name, with or without its first letter.
fn register(name: &str) -> Option<Register> {
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

impl Body<'_, '_> {
    /// Whether the registers are those of a function's entry.
    fn is_at_entry(&self) -> bool {
        matches!(self.site.kind, SiteKind::Entry | SiteKind::SessionEntry)
    }

    /// Whether there is probed code at all.
    fn has_code(&self) -> bool {
        !matches!(
            self.site.kind,
            SiteKind::Begin | SiteKind::End | SiteKind::Interval
        )
    }

    fn no_code(&self, word: &str, span: Span) -> Diagnostic {
        Diagnostic::new(
            span,
            format!("there is no `{word}` here, because no code of the kernel was probed"),
            "use it at kprobe:, kretprobe: and other places of the kernel's code",
        )
    }

    /// A word without a sign.
    pub(super) fn name(&mut self, name: &str, span: Span) -> Lowered<Val> {
        let unsigned = |number| Val::number(number, Kind::UNSIGNED);
        let thin = |number| {
            Val::number(
                number,
                Kind::Integer {
                    bytes: 4,
                    signed: false,
                },
            )
        };
        Ok(match name {
            "pid" => thin(Number::Pid),
            "tid" => thin(Number::Tid),
            "cpu" => thin(Number::Cpu),
            "comm" => Val::Comm,
            "nsecs" => {
                let clock = self.c.clock();
                unsigned(Number::Nanoseconds { clock })
            }
            "elapsed" => {
                let clock = self.c.clock();
                unsigned(Number::Elapsed { clock })
            }
            "func" | "ip" | "probe" | "kstack" | "ustack" | "caller" if !self.has_code() => {
                if name == "probe" {
                    return Ok(self.probe());
                }
                return Err(self.no_code(name, span));
            }
            "func" => Val::number(self.ip(), Kind::Symbol { with_offset: false }),
            "ip" => Val::number(self.ip(), Kind::Symbol { with_offset: true }),
            "probe" => self.probe(),
            "kstack" => self.stack(self.c.options.stack_frames, false),
            "ustack" => self.stack(self.c.options.stack_frames, true),
            "caller" => match self.site.kind {
                SiteKind::Return => {
                    Val::number(Number::ReturnAddress, Kind::Symbol { with_offset: true })
                }
                _ if self.is_at_entry() => {
                    // The return address is on top of the stack.
                    let top = Number::load(Number::Register(Register::Sp), 0, 8, false);
                    Val::number(top, Kind::Symbol { with_offset: true })
                }
                _ => {
                    return Err(Diagnostic::new(
                        span,
                        "the caller is known at the entry and the return of a function only",
                        "use kstack",
                    ));
                }
            },
            "retval" => self.returned(span)?,
            "args" => {
                return Err(Diagnostic::new(
                    span,
                    "`args` by itself is no value",
                    "take one of the arguments: args.NAME",
                ));
            }
            name => match name
                .strip_prefix("arg")
                .and_then(|number| number.parse().ok())
            {
                Some(number) => self.argument_register(name, number, span)?,
                None => self.other_name(name, span)?,
            },
        })
    }

    fn ip(&self) -> Number {
        match self.site.kind {
            SiteKind::Profile => Number::Register(Register::Ip),
            _ => Number::Ip,
        }
    }

    fn probe(&mut self) -> Val {
        let probe = u64::from(self.site.probe) << 48;
        let (_, has_name) = self.c.probes[usize::from(self.site.probe)];
        let number = match has_name {
            true => Number::alu(
                AluOp::Or,
                Number::alu(
                    AluOp::ShiftRight,
                    Number::alu(AluOp::ShiftLeft, Number::Ip, Number::Constant(16)),
                    Number::Constant(16),
                ),
                Number::Constant(probe),
            ),
            false => Number::Constant(probe),
        };
        Val::number(number, Kind::Probe)
    }

    /// A call stack of the kernel or of the program.
    fn stack(&mut self, frames: u32, is_user: bool) -> Val {
        let map = self.c.stacks(frames, is_user);
        Val::number(Number::Stack { map, is_user }, Kind::Stack { map, is_user })
    }

    fn argument_register(&mut self, name: &str, number: usize, span: Span) -> Lowered<Val> {
        if !self.has_code() {
            return Err(self.no_code(name, span));
        }
        let at_return = self.site.kind == SiteKind::Return;
        if !self.is_at_entry() && !at_return {
            return Err(Diagnostic::new(
                span,
                format!(
                    "`{name}` is the argument at the entry of a function; here its register \
                         may hold something else"
                ),
                "use args.NAME, or reg(\"di\") for what the register holds now",
            ));
        }
        let value = match ARGUMENTS.get(number) {
            Some(register) => Number::Register(*register),
            None if number < 64 => {
                // Behind the return address.
                let offset = 8 * (number - ARGUMENTS.len() + 1) as i64;
                Number::load(Number::Register(Register::Sp), offset, 8, false)
            }
            None => {
                return Err(Diagnostic::new(
                    span,
                    "no function has so many arguments",
                    "",
                ));
            }
        };
        let value = if at_return { self.kept(value) } else { value };
        Ok(Val::number(value, Kind::UNSIGNED))
    }

    /// A name that is no word of the language: a variable of the source, or a static one.
    fn other_name(&mut self, name: &str, span: Span) -> Lowered<Val> {
        let mut reason = None;
        if self.c.options.debug_info {
            let is_word = !name.contains("::");
            if is_word && let Some(local) = self.local(name) {
                match local {
                    Ok(value) => return Ok(value),
                    Err(unavailable) => reason = Some(unavailable),
                }
            }
            match self.global(name) {
                Ok(value) => return Ok(value),
                Err(unavailable) => {
                    reason = reason.or(Some(unavailable));
                }
            }
        }
        if let Some((_, why)) = ABSENT.iter().find(|(word, _)| *word == name) {
            return Err(Diagnostic::new(span, format!("there is no `{name}`"), *why));
        }
        let near = names::nearest(name, WORDS.into_iter());
        if !near.is_empty() {
            return Err(Diagnostic::new(
                span,
                format!("nothing is called `{name}`"),
                names::did_you_mean(&near),
            ));
        }
        Err(match reason {
            Some(unavailable) => Diagnostic::new(span, unavailable.reason, unavailable.help),
            None => Diagnostic::new(
                span,
                format!("nothing is called `{name}`"),
                names::NO_DEBUG_INFORMATION,
            ),
        })
    }

    fn constant(&mut self, argument: &Expression, most: u32) -> Lowered<u32> {
        let counted = self.count(argument)?;
        let number = counted.number.constant();
        number
            .and_then(|number| u32::try_from(number).ok())
            .filter(|number| (1..=most).contains(number))
            .ok_or_else(|| {
                Diagnostic::new(
                    argument.span,
                    format!("this must be a number of the text, 1 to {most}"),
                    "",
                )
            })
    }

    fn text<'e>(&self, argument: &'e Expression, example: &str) -> Lowered<&'e str> {
        match &argument.kind {
            ExpressionKind::String(text) => Ok(text),
            _ => Err(Diagnostic::new(
                argument.span,
                "this must be a text",
                format!("for example {example}"),
            )),
        }
    }

    fn wrong_count(&self, name: &Name, span: Span, usage: &str) -> Diagnostic {
        Diagnostic::new(
            span,
            format!("`{}` does not take these arguments", name.text),
            format!("write {usage}"),
        )
    }

    /// A function that gives a value.
    pub(super) fn call(
        &mut self,
        name: &Name,
        arguments: &[Expression],
        span: Span,
    ) -> Lowered<Val> {
        const MOST_TEXT: u32 = 200;
        Ok(match (&*name.text, arguments) {
            ("str", [address]) => self.text_at(address, self.c.options.text_bytes, None)?,
            ("str", [address, length]) => {
                let counted = self.count(length)?;
                if counted.number.constant().is_some() {
                    let most = self.constant(length, MOST_TEXT)?;
                    // With its NUL.
                    self.text_at(address, most + 1, None)?
                } else {
                    let most = self.c.options.text_bytes;
                    self.text_at(address, most, Some(counted.number))?
                }
            }
            ("str", _) => {
                return Err(self.wrong_count(name, span, "str(address) or str(address, bytes)"));
            }
            ("buf", [of]) => {
                let value = self.value(of)?;
                let Val::Object(object) = &value else {
                    return Err(self.wrong_count(name, span, "buf(address, bytes)"));
                };
                let field = |text: &str| Name {
                    text: text.into(),
                    span: of.span,
                };
                let address = self.object_field(object, &field("ptr"))?;
                let length = self.object_field(object, &field("len"))?;
                let address = self.as_number(address, of.span)?;
                let length = self.as_number(length, of.span)?;
                Val::Bytes {
                    space: object.space(),
                    address: address.number,
                    length: length.number,
                    most: self.c.options.slice_bytes.next_multiple_of(8),
                }
            }
            ("buf", [address, length]) => {
                let address = self.count(address)?;
                let length = self.count(length)?;
                let most = match length.number.constant() {
                    Some(constant) => constant.min(MOST_TEXT.into()) as u32,
                    None => self.c.options.slice_bytes,
                };
                Val::Bytes {
                    space: address.kind.space(),
                    address: address.number,
                    length: length.number,
                    most: most.max(1).next_multiple_of(8),
                }
            }
            ("buf", _) => return Err(self.wrong_count(name, span, "buf(address, bytes)")),
            ("ksym" | "sym", [address]) => {
                let counted = self.count(address)?;
                Val::Number(Counted {
                    kind: Kind::Symbol { with_offset: false },
                    ..counted
                })
            }
            ("uptr" | "kptr", [address]) => {
                let counted = self.count(address)?;
                let to = match counted.kind {
                    Kind::Pointer { to, .. } => to,
                    _ => None,
                };
                let space = match &*name.text {
                    "uptr" => Space::User,
                    _ => Space::Kernel,
                };
                Val::Number(Counted {
                    kind: Kind::Pointer { to, space },
                    ..counted
                })
            }
            ("kaddr", [function]) => {
                let text = self.text(function, "kaddr(\"vfs_write\")")?;
                match *self.c.functions(text) {
                    [address] => Val::number(Number::Constant(address), Kind::ADDRESS),
                    [] => {
                        let name = Name {
                            text: text.into(),
                            span: function.span,
                        };
                        return Err(self.c.no_function(&name));
                    }
                    ref several => {
                        return Err(Diagnostic::new(
                            function.span,
                            format!("{} functions are called so", several.len()),
                            "write more of the path",
                        ));
                    }
                }
            }
            (word @ ("kstack" | "ustack"), []) => return self.name(word, span),
            (word @ ("kstack" | "ustack"), [frames]) => {
                if !self.has_code() {
                    return Err(self.no_code(word, span));
                }
                let is_user = word == "ustack";
                let frames = self.constant(frames, if is_user { 125 } else { 127 })?;
                self.stack(frames, is_user)
            }
            ("reg", [register_name]) => {
                if !self.has_code() {
                    return Err(self.no_code("reg", span));
                }
                let text = self.text(register_name, "reg(\"di\")")?;
                match register(text) {
                    Some(register) => Val::number(Number::Register(register), Kind::UNSIGNED),
                    None => {
                        return Err(Diagnostic::new(
                            register_name.span,
                            format!("there is no register `{text}`"),
                            "there are ax, bx, cx, dx, si, di, bp, sp, r8 to r15, ip and flags",
                        ));
                    }
                }
            }
            ("strftime", [format, time]) => {
                let format: Rc<str> = self.text(format, "strftime(\"%H:%M:%S\", nsecs)")?.into();
                let counted = self.count(time)?;
                Val::Number(Counted {
                    kind: Kind::Time { format },
                    ..counted
                })
            }
            ("nsecs", _) => return self.name("nsecs", span),
            ("has_key", [of, keys @ ..]) => match map_and_key(of, keys) {
                Some(map) => Val::number(Number::test(self.has_key(&map)?), Kind::Boolean),
                None => return Err(self.wrong_count(name, span, "has_key(@map, key)")),
            },
            ("has_key", []) => return Err(self.wrong_count(name, span, "has_key(@map, key)")),
            ("len", [of]) => self.length(of, span)?,
            ("len", _) => return Err(self.wrong_count(name, span, "len(@map) or len(kstack)")),
            ("strncmp", [left, right, length]) => {
                let (left_value, right_value) = (self.value(left)?, self.value(right)?);
                let most = self.constant(length, MOST_TEXT)?;
                let cut = |value| match value {
                    Val::Literal(text) => {
                        let end = text
                            .char_indices()
                            .map(|(at, _)| at)
                            .take_while(|at| *at <= most as usize)
                            .last();
                        let end = if text.len() <= most as usize {
                            text.len()
                        } else {
                            end.unwrap_or(0)
                        };
                        Val::Literal(text[..end].into())
                    }
                    other => other,
                };
                let (left_value, right_value) = (cut(left_value), cut(right_value));
                let test =
                    self.texts_start_equal(left_value, right_value, most, (left.span, right.span))?;
                Val::number(Number::test(test.negated()), Kind::Literal)
            }
            (text, _) if super::aggregate::is_aggregation(text) => {
                return Err(Diagnostic::new(
                    span,
                    format!("`{text}` can only be assigned to a map"),
                    format!("write `@name = {text}(…);`"),
                ));
            }
            (text, _) if FUNCTIONS.contains(&text) => {
                return Err(Diagnostic::new(
                    span,
                    format!("`{text}` gives no value, or takes other arguments"),
                    "use it as a statement",
                ));
            }
            _ => return Err(self.no_call(name)),
        })
    }

    /// How many keys a map, frames a call stack, or elements a value of the source has.
    fn length(&mut self, of: &Expression, span: Span) -> Lowered<Val> {
        if let ExpressionKind::Map(map) = &of.kind
            && map.keys.is_empty()
        {
            let number = self.c.map(&map.name);
            let known = &self.c.maps[number as usize];
            let is_table = known.keys.as_ref().is_none_or(|keys| !keys.is_empty());
            if is_table {
                return self.count_keys(number, map, span);
            }
        }
        match self.value(of)? {
            Val::Number(Counted {
                number,
                kind: Kind::Stack { map, is_user },
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
            Val::Object(object) => match self.text_of(&object, of.span)? {
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
                    self.object_field(&object, &name)
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

    fn count_keys(&mut self, number: u32, map: &MapName, span: Span) -> Lowered<Val> {
        if !matches!(
            self.site.kind,
            SiteKind::Begin | SiteKind::End | SiteKind::Interval
        ) {
            return Err(Diagnostic::new(
                span,
                "counting the keys of a map takes long, and the code that hits this probe would \
                 wait for it",
                "use it in interval:, begin or end",
            ));
        }
        if matches!(
            self.c.maps[number as usize].class,
            Some(Class::Histogram(_))
        ) {
            return Err(Diagnostic::new(
                map.span,
                "each bucket of a histogram is a key of its own, so the keys are not counted",
                "count into another map beside it",
            ));
        }
        let number = Number::Keys { map: number };
        Ok(Val::number(number, Kind::UNSIGNED))
    }

    fn no_call(&self, name: &Name) -> Diagnostic {
        if let Some((_, why)) = ABSENT.iter().find(|(word, _)| *word == name.text) {
            return Diagnostic::new(
                name.span,
                format!("there is no function `{}`", name.text),
                *why,
            );
        }
        let near = names::nearest(&name.text, FUNCTIONS.into_iter());
        Diagnostic::new(
            name.span,
            format!("there is no function `{}`", name.text),
            match near.is_empty() {
                true => "the functions are printf, print, clear, zero, delete, exit, time, str, \
                         len, ksym, kaddr, uptr, kptr, buf, kstack, ustack, reg, strftime, \
                         strncmp, and for maps count, sum, min, max, avg, stats, hist and lhist"
                    .into(),
                false => names::did_you_mean(&near),
            },
        )
    }

    fn text_at(&mut self, address: &Expression, most: u32, limit: Option<Number>) -> Lowered<Val> {
        let value = self.value(address)?;
        // A text of the source is one already.
        if self.is_text(&value) {
            return Ok(value);
        }
        // An array of bytes that holds a text.
        if let Val::Object(object) = &value
            && let Some(address) = self.address_of(object)
        {
            return Ok(Val::Text {
                address,
                most,
                limit,
                present: Test::Constant(true),
            });
        }
        let counted = self.as_number(value, address.span)?;
        Ok(Val::Text {
            address: Number::select(counted.present, counted.number, Number::Constant(0)),
            most,
            limit,
            present: Test::Constant(true),
        })
    }

    /// A call for its effect.
    pub(super) fn effect(&mut self, expression: &Expression) -> Lowered<()> {
        let span = expression.span;
        let ExpressionKind::Call { name, arguments } = &expression.kind else {
            let value = self.value(expression)?;
            if let Val::Number(counted) = value
                && counted.number.has_effect()
            {
                self.number(&counted.number);
            }
            return Ok(());
        };
        let map_of = |argument: &Expression| match &argument.kind {
            ExpressionKind::Map(map) => Some(map.clone()),
            _ => None,
        };
        match (&*name.text, &arguments[..]) {
            ("printf", [format, values @ ..]) => self.print_line(format, values),
            ("printf", []) => Err(self.wrong_count(name, span, "printf(\"format\", value)")),
            ("join", [list]) => self.join(list, " "),
            ("join", [list, between]) => {
                let between = self.text(between, "join(arg1, \",\")")?;
                self.join(list, between)
            }
            ("join", _) => Err(self.wrong_count(name, span, "join(array) or join(array, \",\")")),
            ("print", [of, rest @ ..]) if rest.len() <= 2 => match map_of(of) {
                Some(map) if map.keys.is_empty() => self.print_map(&map, rest),
                Some(map) if rest.is_empty() => self.print_element(&map, of.span),
                Some(_) => {
                    Err(self.wrong_count(name, span, "print(@map[key]) or print(@map, top)"))
                }
                None if rest.is_empty() => {
                    let value = self.value(of)?;
                    let value = self.simplified(value, of.span);
                    let shape = self.shape(&value, true);
                    self.record(
                        Record::Value(shape.clone()),
                        alloc::vec![(value, shape, of.span)],
                        span,
                    )
                }
                None => Err(self.wrong_count(name, span, "print(value) or print(@map, top, div)")),
            },
            ("print", _) => Err(self.wrong_count(name, span, "print(@map)")),
            ("clear" | "zero", [of]) => match map_of(of) {
                Some(map) if map.keys.is_empty() => {
                    let map = self.c.map(&map.name);
                    let request = match &*name.text {
                        "clear" => Request::Clear { map },
                        _ => Request::Zero { map },
                    };
                    self.ask(request, Record::Silent, 0)
                }
                Some(map) if name.text == "clear" => self.delete(&map),
                Some(map) => self.zero_key(&map),
                None => Err(self.wrong_count(name, span, "clear(@map) or clear(@map[key])")),
            },
            ("clear" | "zero", _) => Err(self.wrong_count(name, span, "clear(@map)")),
            ("delete", [of, key @ ..]) => match map_and_key(of, key) {
                Some(map) => self.delete(&map),
                None => Err(self.wrong_count(name, span, "delete(@map[key]) or delete(@map, key)")),
            },
            ("delete", []) => Err(self.wrong_count(name, span, "delete(@map[key])")),
            ("exit", []) => self.exit(0),
            ("exit", [status]) => {
                let status = self.count(status)?;
                let Some(status) = status.number.constant() else {
                    return Err(Diagnostic::new(
                        span,
                        "the status must be a number of the text",
                        "use `if (…) { exit(1); }`",
                    ));
                };
                self.exit(status as u32)
            }
            ("exit", _) => Err(self.wrong_count(name, span, "exit() or exit(status)")),
            ("time", formats) if formats.len() <= 1 => {
                let format: Rc<str> = match formats {
                    [format] => self.text(format, "time(\"%H:%M:%S\\n\")")?.into(),
                    _ => "%H:%M:%S\n".into(),
                };
                let clock = self.c.clock();
                let value = Val::number(Number::Nanoseconds { clock }, Kind::Time { format });
                let shape = self.shape(&value, false);
                let parts = conversions::parse("%s").unwrap_or_default();
                self.record(
                    Record::Line {
                        parts,
                        values: alloc::vec![(0, shape.clone())],
                    },
                    alloc::vec![(value, shape, span)],
                    span,
                )
            }
            (text, _) if super::aggregate::is_aggregation(text) => Err(Diagnostic::new(
                span,
                format!("`{text}` has no effect by itself"),
                format!("assign it to a map: `@ = {text}(…);`"),
            )),
            (text, _) if FUNCTIONS.contains(&text) => {
                // For its messages; its value is thrown away.
                self.value(expression)?;
                Ok(())
            }
            _ => Err(self.no_call(name)),
        }
    }

    fn print_line(&mut self, format: &Expression, values: &[Expression]) -> Lowered<()> {
        let text = self.text(format, "printf(\"%d\\n\", pid)")?;
        let parts = conversions::parse(text)
            .map_err(|(cause, next)| Diagnostic::new(format.span, cause, next))?;
        let wanted: Vec<_> = parts
            .iter()
            .filter_map(|part| match part {
                Part::Value(conversion) => Some(*conversion),
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
        for (conversion, expression) in wanted.iter().zip(values) {
            let value = self.value(expression)?;
            let mut value = self.simplified(value, expression.span);
            let mut shape = self.shape(&value, true);
            if !conversion.takes(&shape) {
                // A type around a number, a `Result` of numbers.
                match self.as_number(value.clone(), expression.span) {
                    Ok(counted) if conversion.takes(&counted.kind.shape()) => {
                        value = Val::Number(counted);
                        shape = self.shape(&value, true);
                    }
                    _ => {
                        return Err(Diagnostic::new(
                            expression.span,
                            format!(
                                "`%{}` shows numbers, and this is {}",
                                conversion.letter,
                                super::store::describe(&shape)
                            ),
                            "use %s or %r",
                        ));
                    }
                }
            }
            places.push((offset, shape.clone()));
            offset += shape.bytes();
            stored.push((value, shape, expression.span));
        }
        self.record(
            Record::Line {
                parts,
                values: places,
            },
            stored,
            format.span,
        )
    }

    /// Prints a line of the texts of a list: a slice of texts, or an array of pointers to texts
    /// that a null ends, as `argv`. At most [`MOST_JOINED`].
    fn join(&mut self, list: &Expression, between: &str) -> Lowered<()> {
        let span = list.span;
        let value = self.value(list)?;
        let items: Vec<Val> = match self.simplified(value, span) {
            list @ Val::Object(_) => {
                let element = |index: u32| {
                    let index = Counted {
                        number: Number::Constant(index.into()),
                        kind: Kind::UNSIGNED,
                        present: Test::Constant(true),
                    };
                    self.index(list.clone(), index, span)
                };
                (0..MOST_JOINED).map(element).collect::<Lowered<_>>()?
            }
            array => {
                let Counted {
                    number, present, ..
                } = self.as_number(array, span)?;
                let array = Number::select(present, number, Number::Constant(0));
                let most = self.c.options.text_bytes;
                let texts = self.read_pointers(&array, MOST_JOINED);
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
            if !self.is_text(&item) {
                return Err(Diagnostic::new(
                    span,
                    "the elements of this list are no texts",
                    "use print(), which shows any list",
                ));
            }
            let shape = self.shape(&item, true);
            places.push((offset, shape.clone()));
            offset += shape.bytes();
            stored.push((item, shape, span));
        }
        let record = Record::Joined {
            between: between.into(),
            values: places,
        };
        self.record(record, stored, span)
    }

    fn print_map(&mut self, map: &MapName, rest: &[Expression]) -> Lowered<()> {
        let number = self.c.map(&map.name);
        let mut numbers = [0_u64, 1];
        for (number, argument) in numbers.iter_mut().zip(rest) {
            *number = self.constant(argument, u32::MAX)?.into();
        }
        let [top, divisor] = numbers;
        self.ask(
            Request::Print { map: number },
            Record::Map {
                map: number,
                top,
                divisor,
            },
            0,
        )
    }

    fn print_element(&mut self, map: &MapName, span: Span) -> Lowered<()> {
        let number = self.c.map(&map.name);
        let key = self.key(number, map)?;
        let (_, values, key_span) = self.keys[key].clone();
        let shapes = self.c.maps[number as usize]
            .keys
            .clone()
            .unwrap_or_default();
        let mut stored: Vec<(Val, Shape, Span)> = values
            .into_iter()
            .zip(shapes)
            .map(|(value, shape)| (value, shape, key_span))
            .collect();
        let bytes: u32 = stored.iter().map(|(_, shape, _)| shape.bytes()).sum();
        match self.c.maps[number as usize].class.clone() {
            Some(Class::Plain(shape)) => {
                let value = self.plain_element(number, key, &shape);
                stored.push((value, shape.clone(), span));
                self.record(
                    Record::Element {
                        map: number,
                        key: bytes,
                        value: shape,
                    },
                    stored,
                    span,
                )
            }
            _ => {
                let request = Request::Print { map: number };
                self.write_record(request, Record::Key { map: number }, stored, 0, span)
            }
        }
    }

    /// A record that only asks the kernel for something.
    fn ask(&mut self, request: Request, record: Record, status: u32) -> Lowered<()> {
        self.write_record(request, record, Vec::new(), status, Span::default())
    }

    /// `exit(status)`: the trace is to end, and this block ends at once.
    fn exit(&mut self, status: u32) -> Lowered<()> {
        self.ask(Request::Exit, Record::Exit, status)?;
        self.leave_block();
        Ok(())
    }

    /// A record that the reader shows.
    fn record(
        &mut self,
        record: Record,
        values: Vec<(Val, Shape, Span)>,
        span: Span,
    ) -> Lowered<()> {
        self.write_record(Request::Forward, record, values, 0, span)
    }

    fn write_record(
        &mut self,
        request: Request,
        record: Record,
        values: Vec<(Val, Shape, Span)>,
        status: u32,
        span: Span,
    ) -> Lowered<()> {
        let begin = (HEADER + VALUES) as u32;
        let bytes: u32 = values.iter().fold(begin, |sum, (_, shape, _)| {
            sum.saturating_add(shape.bytes())
        });
        if bytes > MOST_RECORD_BYTES {
            return Err(Diagnostic::new(
                span,
                format!(
                    "the values have {bytes} bytes together; a record has at most \
                         {MOST_RECORD_BYTES}"
                ),
                "print fewer of them, or fields of them",
            ));
        }
        let ring = self.c.ring();
        let request = self.c.request(request, record);
        let end = self.asm.label();
        self.asm.map(Reg::R1, ring);
        self.asm.set(Reg::R2, bytes.into());
        self.asm.mov(Reg::R3, 0);
        self.asm.set(Reg::R4, RECORD_TYPE.into());
        self.asm.call(Helper::EventReserve);
        self.asm.branch(Condition::Equal, Reg::R0, 0, end);
        self.asm.mov(Reg::R7, Reg::R0);
        let to = |offset: u32| Place {
            base: Reg::R7,
            offset: offset as i16,
        };
        self.asm
            .store_constant(to(HEADER as u32), 4, request.into());
        self.asm
            .store_constant(to(HEADER as u32 + 4), 4, status.into());
        let mut place = to(begin);
        let mut stored = Ok(());
        for (value, shape, span) in &values {
            stored = stored.and(self.store(value, place, shape, *span));
            place = place.at(shape.bytes());
        }
        self.asm.mov(Reg::R1, Reg::R7);
        self.asm.mov(Reg::R2, 0);
        self.asm.call(Helper::RingSubmit);
        self.asm.place(end);
        stored
    }

    /// Whether the first bytes of two texts are equal.
    fn texts_start_equal(
        &mut self,
        left: Val,
        right: Val,
        most: u32,
        spans: (Span, Span),
    ) -> Lowered<Test> {
        let (value, literal, span) = match (left, right) {
            (value, Val::Literal(text)) => (value, text, spans.0),
            (Val::Literal(text), value) => (value, text, spans.1),
            _ => {
                return Err(Diagnostic::new(
                    spans.1,
                    "one of the texts of strncmp must be one of the program's text",
                    "compare whole texts with ==",
                ));
            }
        };
        // As a number of bytes below the length of the literal are compared, and its NUL if the
        // comparison is longer than it.
        let compared = (most as usize).min(literal.len() + 1);
        let bytes = (compared as u32 + 1).next_multiple_of(8);
        let shape = Shape::Text(bytes);
        let place = Place::stack(self.asm.take(bytes));
        self.asm.keep_all();
        self.store(&value, place, &shape, span)?;
        let mut test = Test::Constant(true);
        let mut text = literal.into_bytes();
        text.push(0);
        for (number, byte) in text.iter().take(compared).enumerate() {
            let found = Number::OwnPart {
                place: place.at(number as u32),
                bytes: 1,
                signed: false,
            };
            test = test.and(Test::compare(
                Condition::Equal,
                found,
                Number::Constant((*byte).into()),
            ));
        }
        Ok(test)
    }
}

/// `@map[key]`, or `@map, key`, of which the key is a tuple if there are several.
fn map_and_key(of: &Expression, key: &[Expression]) -> Option<MapName> {
    let ExpressionKind::Map(map) = &of.kind else {
        return None;
    };
    match key {
        [] => Some(map.clone()),
        [key] if map.keys.is_empty() => Some(MapName {
            keys: match &key.kind {
                ExpressionKind::Tuple(keys) => keys.clone(),
                _ => alloc::vec![key.clone()],
            },
            ..map.clone()
        }),
        _ => None,
    }
}

fn plural(count: usize) -> String {
    match count {
        1 => "1 value".into(),
        count => format!("{count} values"),
    }
}
