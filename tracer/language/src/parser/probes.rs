//! Probes: their names are read letter by letter, because paths of Rust have signs in them that are
//! operators elsewhere.
//!
//! A name with other signs stands in quotes. A kind that is unknown is refused with the ones that
//! there are.

use alloc::{format, string::String, vec::Vec};

use super::{Parsed, Parser, listed};
use crate::{
    diagnostic::Diagnostic,
    lexer::{self, Token},
    tree::{Access, Name, OfCall, Probe, ProbeKind, Span, UserPlace, Watched},
};

/// The kinds of probes, as help texts list them.
const KINDS: [&str; 18] = [
    "kprobe:FUNCTION",
    "kretprobe:FUNCTION",
    "session:FUNCTION",
    "inline:FUNCTION",
    "line:FILE:LINE",
    "insn:NAME",
    "tracepoint:GROUP:EVENT",
    "interval:s:1",
    "profile:hz:99",
    "watch:STATIC",
    "watch:FUNCTION(args.NAME.FIELD)",
    "watchpoint:ADDRESS:LENGTH:w",
    "watch:PROGRAM:STATIC",
    "uprobe:PROGRAM:FUNCTION",
    "uretprobe:PROGRAM:FUNCTION",
    "usdt:PROGRAM:PROVIDER:NAME",
    "begin",
    "end",
];
/// Words that bpftrace has and this tracer does not have, with the way out.
const ABSENT: [(&[&str], &str); 8] = [
    (
        &["fentry", "kfunc", "f"],
        "write `kprobe:`; it gives the arguments by name, too",
    ),
    (
        &["fexit", "kretfunc", "fr"],
        "write `kretprobe:` for the result, or `session:` for arguments and result of one call",
    ),
    (
        &["rawtracepoint", "rt"],
        "write `tracepoint:GROUP:EVENT`, or `kprobe:` of the function that does it",
    ),
    (
        &["hardware", "h", "software", "s"],
        "the machine's counters are not read; `profile:hz:99` takes samples",
    ),
    (&["iter", "it"], "probe a function that visits the objects"),
    (
        &["self", "test", "bench"],
        "begin the trace from a test, with `--expect`",
    ),
    (&["import"], "write its text into this program"),
    (
        &["struct", "enum", "union", "typedef"],
        "types come from the kernel's debug information by their names",
    ),
];

impl Probe {
    pub(super) fn is_session(&self) -> bool {
        matches!(self.kind, ProbeKind::Session { .. })
    }
}

impl Parser<'_> {
    /// Reads probes, at least one.
    pub(super) fn probes(&mut self) -> Parsed<Vec<Probe>> {
        let mut probes: Vec<Probe> = Vec::new();
        loop {
            let probe = self.probe()?;
            if let Some(first) = probes.first()
                && first.is_session() != probe.is_session()
            {
                self.tell(Diagnostic::new(
                    probe.span,
                    "a session cannot share its block with other probes",
                    "give it a block of its own",
                ));
            }
            probes.push(probe);
            if !self.accept(",")? {
                break;
            }
        }
        match self.peek()? {
            Token::Sign("/" | "{") => Ok(probes),
            _ => Err(self.unexpected(
                "`,`, `/` or `{` after a probe",
                "write `PROBE { … }`, `PROBE, PROBE { … }` or `PROBE /CONDITION/ { … }`",
            )),
        }
    }

    fn probe(&mut self) -> Parsed<Probe> {
        let start = self.start()?;
        let help = || format!("there are {}", listed(&KINDS));
        let provider = self.word("a probe", &help())?;
        let kind = match provider.text.as_str() {
            "kprobe" | "k" => {
                let function = self.function(&provider)?;
                let (offset, end) = offset(self.text, self.position)?;
                self.position = end;
                self.end = end;
                ProbeKind::Entry { function, offset }
            }
            "kretprobe" | "kr" => ProbeKind::Return {
                function: self.function(&provider)?,
            },
            "session" => ProbeKind::Session {
                function: self.function(&provider)?,
            },
            "inline" => ProbeKind::Inlined {
                function: self.function(&provider)?,
            },
            "line" => self.line(&provider)?,
            "insn" => ProbeKind::Instruction {
                pattern: match quoted(self, &provider, "insn:cli")? {
                    Some(text) => text,
                    None => self.part(&provider, "insn:cli", is_event)?,
                },
            },
            "tracepoint" | "t" => {
                let group = self.part(&provider, "tracepoint:GROUP:EVENT", is_event)?;
                let event = self.part(&provider, "tracepoint:GROUP:EVENT", is_event)?;
                ProbeKind::Tracepoint { group, event }
            }
            "interval" | "i" => ProbeKind::Interval {
                nanoseconds: self.period(&provider, "interval:s:1")?,
            },
            "profile" | "p" => ProbeKind::Profile {
                nanoseconds: self.period(&provider, "profile:hz:99")?,
            },
            "watch" => watch(self, &provider)?,
            "watchpoint" | "w" | "asyncwatchpoint" | "aw" => watchpoint(self, &provider)?,
            "uprobe" | "u" => user(self, &provider, false)?,
            "uretprobe" | "ur" => user(self, &provider, true)?,
            "usdt" | "U" => mark(self, &provider)?,
            "begin" | "BEGIN" => ProbeKind::Begin,
            "end" | "END" => ProbeKind::End,
            other => {
                let absent = ABSENT.iter().find(|(names, _)| names.contains(&other));
                return Err(match absent {
                    Some((_, way_out)) => Diagnostic::new(
                        provider.span,
                        format!("`{other}` is not in this tracer"),
                        *way_out,
                    ),
                    None => Diagnostic::new(
                        provider.span,
                        format!("`{other}` is no kind of probe"),
                        help(),
                    ),
                });
            }
        };
        let rest = &self.text[self.position..];
        let ends = rest.is_empty()
            || rest.starts_with(|next: char| next.is_whitespace() || ",/{".contains(next));
        if !ends {
            let next = rest.chars().next().map_or(0, char::len_utf8);
            let at = Span::new(self.position, self.position + next);
            return Err(match kind {
                ProbeKind::Entry { .. }
                | ProbeKind::Return { .. }
                | ProbeKind::Session { .. }
                | ProbeKind::Inlined { .. }
                    if rest.starts_with(':') =>
                {
                    Diagnostic::new(
                        at,
                        "a single `:` is in no name of a function",
                        "a path is written with two, as `vfs::vfs_write`; there are no modules to \
                         name before the function",
                    )
                }
                ProbeKind::Return { .. }
                | ProbeKind::Session { .. }
                | ProbeKind::Inlined { .. }
                    if rest.starts_with('+') =>
                {
                    Diagnostic::new(at, "only `kprobe` takes an offset", "leave it out here")
                }
                _ => Diagnostic::new(
                    at,
                    format!(
                        "`{}` cannot be in a probe's name",
                        &rest[..next].escape_debug()
                    ),
                    "put a name with unusual signs in quotes: `kprobe:\"<impl File>::read\"`",
                ),
            });
        }
        Ok(Probe {
            kind,
            span: self.taken(start),
        })
    }

    /// Takes the `:` that must come at once.
    fn colon(&mut self, provider: &Name, form: &str) -> Parsed<()> {
        if self.text[self.position..].starts_with(':') {
            self.position += 1;
            self.end = self.position;
            return Ok(());
        }
        Err(Diagnostic::new(
            Span::new(provider.span.start, self.position),
            format!("`{}` alone does not say where", provider.text),
            format!("write `{form}`"),
        ))
    }

    /// `:PATTERN`, or `:"PATTERN"`.
    fn function(&mut self, provider: &Name) -> Parsed<Name> {
        let form = format!("{}:FUNCTION", provider.text);
        self.colon(provider, &form)?;
        // All of the kernel is in one image, which has this name elsewhere, too.
        let module = self.text[self.position..]
            .split(':')
            .next()
            .unwrap_or_default();
        let is_kernel = match module.strip_suffix('*') {
            Some(begin) => !begin.is_empty() && "vmlinux".starts_with(begin),
            None => module == "vmlinux",
        };
        let behind = self.position + module.len();
        if is_kernel && self.text[behind..].starts_with(':') {
            self.position = behind + 1;
        }
        if let Some(name) = text_in_quotes(self, &form)? {
            return Ok(name);
        }
        let start = self.position;
        let rest = &self.text[start..];
        let length = pattern_length(rest);
        let span = Span::new(start, start + length);
        if length == 0 {
            return Err(nothing(Span::new(provider.span.start, start), &form));
        }
        self.position = span.end;
        self.end = span.end;
        let text = self.with_arguments(&rest[..length], span)?;
        if text.ends_with("::") || text.starts_with(|first: char| first.is_ascii_digit()) {
            return Err(Diagnostic::new(
                span,
                format!("`{text}` is no name of a function"),
                "a path ends with a name, and a name begins with a letter",
            ));
        }
        Ok(Name { text, span })
    }

    /// A name with the arguments of the program in place of `$1` and so on.
    fn with_arguments(&self, name: &str, span: Span) -> Parsed<String> {
        let mut text = String::new();
        let mut rest = name;
        while let Some(sign) = rest.find('$') {
            let digits = &rest[sign + 1..];
            let end = digits
                .find(|letter: char| !letter.is_ascii_digit())
                .unwrap_or(digits.len());
            let (number, behind) = digits.split_at(end);
            text += &rest[..sign];
            if number.is_empty() {
                text.push('$');
            } else if let Some(argument) = self.argument(number) {
                text += argument;
            } else {
                return Err(Diagnostic::new(
                    span,
                    format!("the program was not given the argument `${number}`"),
                    "write it after the program",
                ));
            }
            rest = behind;
        }
        text += rest;
        Ok(text)
    }

    /// `:LETTERS`, of those letters.
    fn part(&mut self, provider: &Name, form: &str, is_in: fn(char) -> bool) -> Parsed<Name> {
        self.colon(provider, form)?;
        let start = self.position;
        let rest = &self.text[start..];
        let length = rest.find(|letter| !is_in(letter)).unwrap_or(rest.len());
        let span = Span::new(start, start + length);
        if length == 0 {
            return Err(nothing(Span::new(provider.span.start, start), form));
        }
        self.position = span.end;
        self.end = span.end;
        let text = self.with_arguments(&rest[..length], span)?;
        Ok(Name { text, span })
    }

    fn line(&mut self, provider: &Name) -> Parsed<ProbeKind> {
        const FORM: &str = "line:FILE:LINE";
        let file = self.part(provider, FORM, |letter| {
            !letter.is_whitespace() && !":,{".contains(letter)
        })?;
        let number = self.part(provider, FORM, |letter| {
            letter == '$' || lexer::is_word(letter)
        })?;
        let line = number.text.parse().ok().filter(|line| *line > 0);
        let line = line.ok_or_else(|| {
            Diagnostic::new(
                number.span,
                format!("`{}` is no number of a line", number.text),
                format!("write `{FORM}`, for example `line:file.rs:124`"),
            )
        })?;
        Ok(ProbeKind::Line { file, line })
    }

    /// `:UNIT:NUMBER`, or `:NUMBER` with a unit of time after the digits.
    fn period(&mut self, provider: &Name, form: &str) -> Parsed<u64> {
        const SECOND: u64 = 1_000_000_000;
        let is_in = |letter: char| letter == '$' || lexer::is_word(letter);
        let first = self.part(provider, form, is_in)?;
        let refuse = |span, text: &str| {
            Diagnostic::new(
                span,
                format!("`{text}` is no period"),
                format!(
                    "write `{0}:s:1`, `{0}:ms:10`, `{0}:us:100`, `{0}:hz:99` or `{0}:5ms`",
                    provider.text
                ),
            )
        };
        if !self.text[self.position..].starts_with(':') {
            let period = lexer::integer(&first.text, first.span);
            return match period {
                // With its unit.
                Ok(period @ 1..) if !first.text.ends_with(|c: char| c.is_ascii_digit()) => {
                    Ok(period)
                }
                _ => Err(refuse(first.span, &first.text)),
            };
        }
        let count = self.part(provider, form, is_in)?;
        let number = lexer::integer(&count.text, count.span)
            .ok()
            .filter(|number| *number > 0)
            .ok_or_else(|| refuse(count.span, &count.text))?;
        let period = match first.text.as_str() {
            "hz" => SECOND.checked_div(number).filter(|period| *period > 0),
            "s" | "ms" | "us" => lexer::unit(&first.text).and_then(|unit| unit.checked_mul(number)),
            _ => return Err(refuse(first.span, &first.text)),
        };
        period.ok_or_else(|| refuse(count.span, &count.text))
    }
}

/// `+0x10` at a place of the text, or nothing: the number, and where it ends.
fn offset(text: &str, start: usize) -> Parsed<(u64, usize)> {
    if !text[start..].starts_with('+') {
        return Ok((0, start));
    }
    let digits = lexer::word(&text[start + 1..]);
    let span = Span::new(start, start + 1 + digits.len());
    if !digits.starts_with(|first: char| first.is_ascii_digit()) {
        return Err(Diagnostic::new(
            span,
            "an offset is a number of bytes",
            "write it as `kprobe:vfs_write+0x10`",
        ));
    }
    let offset = lexer::integer(digits, Span::new(start + 1, span.end))?;
    Ok((offset, span.end))
}

/// `:PROGRAM`, by its path.
fn program(parser: &mut Parser<'_>, provider: &Name, form: &str) -> Parsed<Name> {
    let path = parser.part(provider, form, |letter| {
        !letter.is_whitespace() && !":,{".contains(letter)
    })?;
    let why = match path.text.starts_with('/') {
        true if path.text.contains(['*', '?']) => "is no path of one program",
        true => return Ok(path),
        false => "is no absolute path",
    };
    Err(Diagnostic::new(
        path.span,
        format!("`{}` {why}", path.text),
        format!("write `{form}`, with the path that the machine has"),
    ))
}

/// `:PROGRAM:PROVIDER:NAME`, or `:PROGRAM:NAME` for that of any provider.
fn mark(parser: &mut Parser<'_>, kind: &Name) -> Parsed<ProbeKind> {
    let form = format!("{}:/bin/PROGRAM:PROVIDER:NAME", kind.text);
    let path = program(parser, kind, &form)?;
    let first = parser.part(kind, &form, is_event)?;
    let (provider, name) = match parser.text[parser.position..].starts_with(':') {
        true => (first, parser.part(kind, &form, is_event)?),
        false => {
            let any = Name {
                text: "*".into(),
                span: first.span,
            };
            (any, first)
        }
    };
    Ok(ProbeKind::Mark {
        path,
        provider,
        name,
    })
}

/// `:PROGRAM:FUNCTION`, with an offset after the function, or one in the file in its place.
fn user(parser: &mut Parser<'_>, provider: &Name, returns: bool) -> Parsed<ProbeKind> {
    let form = format!("{}:/bin/PROGRAM:FUNCTION", provider.text);
    let path = program(parser, provider, &form)?;
    // What follows the path has to be there at once.
    let before = parser.position;
    parser.colon(provider, &form)?;
    parser.position = before;
    let is_number = |text: &str| text.starts_with(|first: char| first.is_ascii_digit());
    let place = match parser.text[parser.position..].strip_prefix(':') {
        Some(rest) if is_number(rest) => {
            let offset = parser.part(provider, &form, lexer::is_word)?;
            UserPlace::Offset(lexer::integer(&offset.text, offset.span)?)
        }
        _ => {
            let function = parser.function(provider)?;
            if function.text.starts_with('$') {
                return Err(Diagnostic::new(
                    function.span,
                    format!("`{}` is no name of a function", function.text),
                    "the arguments of the command are $1, $2 and so on",
                ));
            }
            let (offset, end) = offset(parser.text, parser.position)?;
            if returns && offset > 0 {
                return Err(Diagnostic::new(
                    Span::new(parser.position, end),
                    "a return has no offset",
                    "leave it out here",
                ));
            }
            parser.position = end;
            parser.end = end;
            UserPlace::Function { function, offset }
        }
    };
    Ok(ProbeKind::User {
        path,
        place,
        returns,
    })
}

/// `:PROGRAM` before a watched place, if a path comes next.
fn watched_program(parser: &mut Parser<'_>, provider: &Name, form: &str) -> Parsed<Option<Name>> {
    match parser.text[parser.position..].starts_with(":/") {
        true => program(parser, provider, form).map(Some),
        false => Ok(None),
    }
}

/// `:STATIC.FIELD`, `:PROGRAM:STATIC.FIELD` or `:FUNCTION(EXPRESSION)`, and perhaps `:w` or `:rw`.
fn watch(parser: &mut Parser<'_>, provider: &Name) -> Parsed<ProbeKind> {
    const FORM: &str = "watch:STATIC.FIELD";
    let program = watched_program(parser, provider, "watch:/bin/PROGRAM:STATIC.FIELD")?;
    parser.colon(provider, FORM)?;
    let start = parser.position;
    let rest = &parser.text[start..];
    let length = pattern_length(rest);
    let span = Span::new(start, start + length);
    let text = parser.with_arguments(&rest[..length], span)?;
    if text.is_empty() || text.ends_with([':', '.']) {
        return Err(nothing(Span::new(provider.span.start, span.end), FORM));
    }
    parser.position = span.end;
    parser.end = span.end;
    let name = Name { text, span };
    let what = match parser.text[span.end..].starts_with('(') {
        true if let Some(program) = &program => {
            return Err(Diagnostic::new(
                program.span,
                "what calls of a program lead to is not watched",
                "name a static of the program, or leave the program out for the kernel",
            ));
        }
        true => Watched::OfCall(OfCall {
            function: name,
            memory: in_brackets(parser)?,
            bytes: None,
        }),
        false => Watched::Static(name),
    };
    let mut access = Access::Write;
    if parser.text[parser.position..].starts_with(':') {
        let letters = parser.part(provider, "watch:STATIC:rw", lexer::is_word)?;
        access = access_of(&letters)?;
        if access == Access::Execute {
            return Err(Diagnostic::new(
                letters.span,
                "`x`: a static is no instruction",
                "write `kprobe:FUNCTION`, or `watchpoint:ADDRESS:1:x`",
            ));
        }
    }
    Ok(ProbeKind::Watch {
        program,
        what,
        access,
    })
}

/// The text between brackets, of which the first comes at once.
fn in_brackets(parser: &mut Parser<'_>) -> Parsed<Name> {
    let start = parser.position;
    let rest = &parser.text[start..];
    let length = closed(rest, '(', ')', |_| true).ok_or_else(|| {
        Diagnostic::new(
            Span::new(start, start + 1),
            "the bracket is not closed on this line",
            "write `watch:FUNCTION(args.NAME.FIELD)`",
        )
    })?;
    let span = Span::new(start + 1, start + length - 1);
    let text = parser.with_arguments(&rest[1..length - 1], span)?;
    parser.position = start + length;
    parser.end = parser.position;
    Ok(Name { text, span })
}

/// `:ADDRESS:LENGTH:ACCESS`, `:PROGRAM:ADDRESS:LENGTH:ACCESS` or `:FUNCTION+argN:LENGTH:ACCESS`.
fn watchpoint(parser: &mut Parser<'_>, provider: &Name) -> Parsed<ProbeKind> {
    const FORM: &str = "watchpoint:ADDRESS:LENGTH:w";
    let is_in = |letter: char| lexer::is_word(letter) || "$+".contains(letter);
    let number = |name: &Name, what: &str| {
        lexer::integer(&name.text, name.span).map_err(|_| {
            Diagnostic::new(
                name.span,
                format!("`{}` is no {what}", name.text),
                format!("write `{FORM}` with numbers, or `watch:STATIC` for a name"),
            )
        })
    };
    let program = watched_program(parser, provider, "watchpoint:/bin/PROGRAM:ADDRESS:LENGTH:w")?;
    let is_number = parser.text[parser.position..]
        .strip_prefix(':')
        .is_none_or(|rest| rest.starts_with(|first: char| first == '$' || first.is_ascii_digit()));
    let what = match is_number || program.is_some() {
        true => {
            let name = parser.part(provider, FORM, is_in)?;
            let address = number(&name, "address")?;
            if address == 0 {
                return Err(Diagnostic::new(
                    name.span,
                    "nothing is at address 0",
                    format!("write `{FORM}` with the address of a value"),
                ));
            }
            Err(address)
        }
        false => Ok((parser.function(provider)?, argument(parser)?)),
    };
    let length = parser.part(provider, FORM, is_in)?;
    let bytes = number(&length, "length")?;
    if !matches!(bytes, 1 | 2 | 4 | 8) {
        return Err(Diagnostic::new(
            length.span,
            format!("{bytes} bytes cannot be watched"),
            "watch 1, 2, 4 or 8",
        ));
    }
    let letters = parser.part(provider, FORM, is_in)?;
    let access = access_of(&letters)?;
    if access == Access::Execute && what.is_ok() {
        return Err(Diagnostic::new(
            letters.span,
            "`x`: an instruction is watched at an address that the text tells",
            "write `watchpoint:ADDRESS:1:x`",
        ));
    }
    Ok(ProbeKind::Watch {
        program,
        what: match what {
            Err(address) => Watched::Memory { address, bytes },
            Ok((function, memory)) => Watched::OfCall(OfCall {
                function,
                memory,
                bytes: Some(bytes),
            }),
        },
        access,
    })
}

/// `+argN`.
fn argument(parser: &mut Parser<'_>) -> Parsed<Name> {
    let start = parser.position;
    let rest = &parser.text[start..];
    let argument = rest.strip_prefix('+').unwrap_or_default();
    let end = argument
        .find(|letter| !lexer::is_word(letter))
        .unwrap_or(argument.len());
    let text = &argument[..end];
    let digits = text.strip_prefix("arg").unwrap_or_default();
    let is_argument = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_argument {
        let next = rest.find([':', ' ', '{']).unwrap_or(rest.len());
        return Err(Diagnostic::new(
            Span::new(start, start + next),
            "an argument of the function is to say what is watched",
            "write `watchpoint:FUNCTION+arg0:8:w`, or `watch:FUNCTION(args.NAME.FIELD)`",
        ));
    }
    let span = Span::new(start + 1, start + 1 + end);
    parser.position = span.end;
    parser.end = span.end;
    Ok(Name {
        text: text.into(),
        span,
    })
}

/// What the letters of an access say.
fn access_of(letters: &Name) -> Parsed<Access> {
    let (what, help) = match &*letters.text {
        "w" => return Ok(Access::Write),
        "rw" | "wr" => return Ok(Access::ReadWrite),
        "x" => return Ok(Access::Execute),
        "r" => (
            "the processor does not watch for reads alone",
            "write `rw`, and a condition on `old` and `new`",
        ),
        _ => ("no access is called so", "write `w`, `rw` or `x`"),
    };
    Err(Diagnostic::new(
        letters.span,
        format!("`{}`: {what}", letters.text),
        help,
    ))
}

/// `:"TEXT"`, if that is what comes.
fn quoted(parser: &mut Parser<'_>, provider: &Name, form: &str) -> Parsed<Option<Name>> {
    if !parser.text[parser.position..].starts_with(":\"") {
        return Ok(None);
    }
    parser.colon(provider, form)?;
    text_in_quotes(parser, form)
}

/// `"TEXT"`, if that is what comes. An empty one is refused.
fn text_in_quotes(parser: &mut Parser<'_>, form: &str) -> Parsed<Option<Name>> {
    if !parser.text[parser.position..].starts_with('"') {
        return Ok(None);
    }
    let (token, span) = parser.take()?;
    let Token::String(quoted) = token else {
        return Ok(None);
    };
    let text = lexer::string(quoted, span)?;
    if text.is_empty() {
        return Err(nothing(span, form));
    }
    Ok(Some(Name { text, span }))
}

fn nothing(span: Span, form: &str) -> Diagnostic {
    Diagnostic::new(
        span,
        "the probe's name ends too early",
        format!("write `{form}`"),
    )
}

fn is_event(letter: char) -> bool {
    lexer::is_word(letter) || "*?-.$".contains(letter)
}

/// The length of the pattern of a function that a text begins with: letters of paths, `*` and `?`,
/// all between angle brackets, and the names that the compiler makes, such as `{closure#0}`.
fn pattern_length(text: &str) -> usize {
    let mut length = 0;
    while let Some(next) = text[length..].chars().next() {
        let rest = &text[length..];
        let taken = match next {
            _ if lexer::is_word(next) || "*?.$".contains(next) => Some(next.len_utf8()),
            ':' if rest.starts_with("::") => Some(2),
            '<' => closed(rest, '<', '>', |_| true),
            '{' if length == 0 || text[..length].ends_with("::") => {
                closed(rest, '{', '}', |letter| {
                    lexer::is_word(letter) || "#:{}".contains(letter)
                })
            }
            '[' if length > 0 => closed(rest, '[', ']', lexer::is_word),
            _ => None,
        };
        let Some(taken) = taken else { break };
        length += taken;
    }
    length
}

/// Whether a pattern can stand in a probe without quotes, and stays as it is there.
pub(crate) fn is_plain_pattern(text: &str) -> bool {
    let is_argument = |rest: &str| rest.starts_with(|letter: char| letter.is_ascii_digit());
    pattern_length(text) == text.len() && !text.split('$').skip(1).any(is_argument)
}

/// The length of the part that begins with an opening bracket and ends with its closing one, if all
/// between them is allowed.
fn closed(text: &str, open: char, close: char, is_in: fn(char) -> bool) -> Option<usize> {
    let mut depth = 0_usize;
    let mut before = ' ';
    for (at, letter) in text.char_indices() {
        if letter == open {
            depth += 1;
        } else if letter == close && !(letter == '>' && before == '-') {
            depth -= 1;
            if depth == 0 {
                return Some(at + letter.len_utf8());
            }
        } else if letter == '\n' || !is_in(letter) {
            return None;
        }
        before = letter;
    }
    None
}
