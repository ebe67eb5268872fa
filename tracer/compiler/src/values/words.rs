//! The words of the language: `pid`, `func`, `retval`, `arg0` and the like.
//!
//! A name that is no word is a variable of the probed function, or a static one.

use alloc::format;
use core::mem;

use bpf::{AluOp, context::ARGUMENTS};
use trace_interface::{
    script::{WatchedAccess, WatchedAt},
    shape::StackForm,
    symbols::{Piece, Register, Source},
};
pub(crate) use trace_language::WORDS;
use trace_language::{Diagnostic, tree::Span};

use super::{
    Site, SiteKind, UserMoment, Val, Values, Watched,
    variable::{Asked, argument_of_mark},
};
use crate::{
    Lowered,
    functions::ABSENT,
    names,
    number::{Kind, Number, Space, Test},
    object::{At, Object},
};

impl Values<'_, '_> {
    /// Whether the registers are those of a function's entry.
    fn is_at_entry(&self) -> bool {
        matches!(self.site.kind, SiteKind::Entry | SiteKind::SessionEntry)
    }

    /// Whether there is probed code at all.
    pub(crate) fn has_code(&self) -> bool {
        !matches!(
            self.site.kind,
            SiteKind::Begin | SiteKind::End | SiteKind::Interval
        )
    }

    /// A word without a sign.
    pub(crate) fn name(&mut self, name: &str, span: Span) -> Lowered<Val> {
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
            "rand" => thin(Number::Random),
            "ncpus" => {
                let clock = self.tables.clock();
                unsigned(Number::Cpus { clock })
            }
            "nsecs" => {
                let clock = self.tables.clock();
                unsigned(Number::Nanoseconds { clock })
            }
            "elapsed" => {
                let clock = self.tables.clock();
                unsigned(Number::Elapsed { clock })
            }
            "probetype" => {
                let (probe, _) = &self.tables.probes[usize::from(self.site.probe)];
                let kind = match self.site.kind {
                    SiteKind::Begin | SiteKind::End => "special",
                    _ => probe.split(':').next().unwrap_or_default(),
                };
                Val::Literal(kind.into())
            }
            // That of the code that runs the program.
            "func" | "ip" | "probe" | "ustack" | "caller" if !self.has_code() => {
                if name == "probe" {
                    return Ok(self.probe());
                }
                return Err(no_code(name, span));
            }
            "func" if let Some(function) = self.site.function.clone() => Val::Literal(function),
            "func" | "caller" if self.site.space() == Space::User => {
                return Err(Diagnostic::new(
                    span,
                    format!("`{name}` is of the kernel, and this is a place in a program"),
                    "use probe, ip or ustack",
                ));
            }
            "kstack" if self.site.user_moment().is_some() => {
                return Err(Diagnostic::new(
                    span,
                    format!("`{name}` is of the kernel, and this is a place in a program"),
                    "use probe, ip or ustack",
                ));
            }
            "ip" if self.site.space() == Space::User => unsigned(Number::Register(Register::Ip)),
            "func" => Val::number(self.ip(), Kind::Symbol { with_offset: false }),
            "ip" => Val::number(self.ip(), Kind::Symbol { with_offset: true }),
            "probe" => self.probe(),
            "kstack" | "ustack" => {
                let frames = self.tables.options.stack_frames;
                self.stack(frames, name == "ustack", self.tables.options.stack_form)
            }
            "caller" => match self.site.kind {
                SiteKind::Return => {
                    Val::number(Number::ReturnAddress, Kind::Symbol { with_offset: true })
                }
                _ if self.is_at_entry() => {
                    Val::number(Number::Caller, Kind::Symbol { with_offset: true })
                }
                _ => {
                    return Err(Diagnostic::new(
                        span,
                        "the caller is known at the entry and the return of a function only",
                        "use kstack",
                    ));
                }
            },
            "old" | "new"
                if let SiteKind::Watch(watched) = self.site.kind
                    && watched.access == WatchedAccess::Execute =>
            {
                return Err(Diagnostic::new(
                    span,
                    format!("there is no `{name}` here: an instruction has no value"),
                    "use reg(\"NAME\") for what it works with",
                ));
            }
            "old" | "new" | "addr" if let SiteKind::Watch(watched) = self.site.kind => {
                at_watch(watched, name)
            }
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
                None => match kernel_word(self, name, span) {
                    Some(value) => value?,
                    None => self.other_name(name, span)?,
                },
            },
        })
    }

    pub(crate) fn ip(&self) -> Number {
        match self.site.kind {
            SiteKind::Profile | SiteKind::Watch(_) | SiteKind::User(_) => {
                Number::Register(Register::Ip)
            }
            _ => Number::Ip,
        }
    }

    pub(crate) fn probe(&mut self) -> Val {
        let probe = u64::from(self.site.probe) << 48;
        let (_, has_name) = self.tables.probes[usize::from(self.site.probe)];
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
    pub(crate) fn stack(&mut self, frames: u32, is_user: bool, form: StackForm) -> Val {
        let map = self.tables.stacks(frames, is_user);
        Val::number(
            Number::Stack { map, is_user },
            Kind::Stack { map, is_user, form },
        )
    }

    fn argument_register(&mut self, name: &str, number: usize, span: Span) -> Lowered<Val> {
        if !self.has_code() {
            return Err(no_code(name, span));
        }
        let at_return = self.site.kind == SiteKind::Return;
        if let Some(mark) = self.site.mark.clone() {
            return argument_of_mark(self, &mark, number, span);
        }
        if self.site.user_moment() == Some(UserMoment::Entry) {
            return match ARGUMENTS.get(number) {
                Some(register) => Ok(Val::number(Number::Register(*register), Kind::UNSIGNED)),
                None => Err(Diagnostic::new(
                    span,
                    format!("`{name}` of a program is not in a register"),
                    "arg0 to arg5 are",
                )),
            };
        }
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
                // After the return address.
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
        if self.tables.options.debug_info {
            let is_word = !name.contains("::");
            if is_word && let Some(local) = self.local(name, Asked::Any) {
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
        let mut unknown = MEANT.iter().chain(&ABSENT);
        if let Some((_, why)) = unknown.find(|(word, _)| *word == name) {
            return Err(Diagnostic::new(span, format!("there is no `{name}`"), *why));
        }
        let events = self.tables.options.events.clone();
        let near = names::nearest(name, WORDS.into_iter().chain(events.words()));
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
}

/// A word that the kernel has named. It means the same everywhere, because its expression sees
/// neither the place nor the variables of the text.
fn kernel_word(values: &mut Values<'_, '_>, name: &str, span: Span) -> Option<Lowered<Val>> {
    let events = values.tables.options.events.clone();
    let (before, meaning) = events.word(name, values.site.words)?;
    let nowhere = Site {
        kind: SiteKind::Interval,
        address: None,
        source: None,
        words: before,
        function: None,
        mark: None,
        copy: None,
        ..values.site.clone()
    };
    let here = mem::replace(&mut values.site, nowhere);
    let program = values.types().set_program(None);
    let value = values.value(&meaning);
    values.types().program.set(program);
    values.site = here;
    Some(value.map_err(|error| Diagnostic {
        span,
        message: format!("`{name}`, a word of this kernel: {}", error.message),
        ..error
    }))
}

/// `old`, `new` or `addr` of a watch: the value before the instruction, the one after it, where
/// it is. They are where [`Attachment::Watch`](trace_interface::script::Attachment) says.
fn at_watch(watched: Watched, name: &str) -> Val {
    let register = match name {
        "addr" => {
            let address = match watched.at {
                WatchedAt::Address(address) => Number::Constant(address),
                WatchedAt::Object(_) | WatchedAt::Aimed(_) => Number::WatchedAddress,
            };
            let kind = match watched.space {
                Space::Kernel => Kind::Symbol { with_offset: true },
                space => Kind::Pointer { to: None, space },
            };
            return Val::number(address, kind);
        }
        "old" => Register::OrigAx,
        _ => Register::Ss,
    };
    let number = Number::Register(register);
    let bytes = match watched.at {
        WatchedAt::Object(_) => 8,
        WatchedAt::Address(_) | WatchedAt::Aimed(_) => watched.bytes,
    };
    match watched.type_id {
        None => Val::number(
            number,
            Kind::Integer {
                bytes: bytes as u8,
                signed: false,
            },
        ),
        Some(type_id) => Val::Object(Object {
            type_id,
            at: At::Pieces {
                space: watched.space,
                pieces: [Piece {
                    bytes,
                    source: Source::Value(number),
                }]
                .into(),
                offset: 0,
            },
            present: Test::Constant(true),
            is_variant: false,
            length: None,
        }),
    }
}

/// Names that a user writes for others, and what is meant. The nearest name would be a wrong one.
const MEANT: [(&str, &str); 8] = [
    ("addr", NO_WATCH),
    ("new", NO_WATCH),
    ("old", NO_WATCH),
    (
        "arg",
        "the arguments are args.NAME, or arg0, arg1 and so on",
    ),
    ("exit", "it is a function: exit()"),
    ("ret", RESULT),
    ("result", RESULT),
    ("rv", RESULT),
];

const RESULT: &str = "the result is retval, at kretprobe: and in the return part of session:";

const NO_WATCH: &str = "it is there at watch: and watchpoint:";

/// Refuses a word where no code of the kernel was probed.
pub(crate) fn no_code(word: &str, span: Span) -> Diagnostic {
    Diagnostic::new(
        span,
        format!("there is no `{word}` here, because no code of the kernel was probed"),
        "use it at kprobe:, kretprobe: and other places of the kernel's code",
    )
}
