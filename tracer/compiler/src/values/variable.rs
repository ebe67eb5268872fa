//! Variables: of the program, of the probed function, and static ones.
//!
//! The debug information says where a variable of the source is: in memory, or in pieces. At the
//! return of a call, what the entry knew is kept in the data that both share. The bytes are kept,
//! and not the address, because the stack of the entry may be overwritten until then.

use alloc::{format, string::String, vec::Vec};

use bpf::{AluOp, Reg};
use trace_interface::symbols::{
    Expression, Mark, Moment, Operation, Piece, ProbePlace, Register, Source, Unavailable, Variable,
};
use trace_language::{
    Diagnostic,
    tree::{Name, Span},
};

use super::{Holds, SiteKind, UserMoment, Val, Values};
use crate::{
    Lowered,
    memory::{Place, step},
    names,
    number::{Kind, Number, Space, Test},
    object::{At, Object},
};

/// When the registers of an expression are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// Where the program runs.
    Here,
    /// At the entry of the call whose return the program handles.
    AtEntry,
}

/// What a name of the source is to mean.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Argument,
    /// Whatever it means at the place.
    Any,
}

impl Values<'_, '_> {
    pub(crate) fn variable(&mut self, name: &str, span: Span) -> Lowered<Val> {
        if let Some(variable) = self.find(name) {
            return Ok(match &variable.holds {
                Holds::Nothing => {
                    // If a later statement says what it holds, this is forgotten the next time.
                    let error = no_value(name, span, &[]);
                    self.tables.error(error);
                    self.tables.guesses += 1;
                    Val::number(Number::Constant(0), Kind::Literal)
                }
                Holds::Number(kind) => Val::number(Number::Own(variable.place), kind.clone()),
                Holds::Stored(shape) => Val::Stored {
                    place: variable.place,
                    shape: shape.clone(),
                },
                Holds::Object(object) => Val::Object(object.clone()),
            });
        }
        // A variable of a macro has a number after its name.
        let name = name.split('#').next().unwrap_or(name);
        let known = self.variable_names();
        let near = names::nearest(name, known.iter().map(|name| &**name));
        let near: Vec<String> = near.iter().map(|name| format!("${name}")).collect();
        Err(no_value(name, span, &near))
    }

    /// `args.name`.
    pub(crate) fn argument(&mut self, name: &Name) -> Lowered<Val> {
        // Inside of a field's expression `args` has the arguments of the function.
        if let Some(source) = self.site.source.take() {
            let value = match source.field(&name.text) {
                Some(field) => self.value(&field).map_err(|error| Diagnostic {
                    span: name.span,
                    ..error
                }),
                None => {
                    let fields = source.field_names();
                    let near = names::nearest(&name.text, fields);
                    let all: Vec<String> = source.field_names().map(String::from).collect();
                    Err(Diagnostic::new(
                        name.span,
                        format!("this source has no field `{}`", name.text),
                        match (near.is_empty(), all.is_empty()) {
                            (false, _) => names::did_you_mean(&near),
                            (true, false) => format!("it has {}", all.join(", ")),
                            (true, true) => "it has none".into(),
                        },
                    ))
                }
            };
            self.site.source = Some(source);
            return value;
        }
        if !self.tables.options.debug_info {
            return Err(Diagnostic::new(
                name.span,
                format!("`args.{}` is a name of the source", name.text),
                names::NO_DEBUG_INFORMATION,
            ));
        }
        match self.local(&name.text, Asked::Argument) {
            Some(Ok(value)) => Ok(value),
            Some(Err(reason)) => Err(unavailable(reason, name.span)),
            None if self.site.user_moment().is_some() => Err(Diagnostic::new(
                name.span,
                "the types of this place in a program are not known here",
                "name a function of a program that this tool has built, or use arg0 to arg5",
            )),
            None => Err(Diagnostic::new(
                name.span,
                "there are no arguments here",
                "use them at kprobe:, kretprobe:, session:, inline:, line: and uprobe: probes",
            )),
        }
    }

    /// What a name of the source means at the place. None: names have no meaning here.
    pub(crate) fn local(&mut self, name: &str, asked: Asked) -> Option<Result<Val, Unavailable>> {
        let address = self.site.address?;
        let when = match self.site.kind {
            SiteKind::Entry | SiteKind::SessionEntry | SiteKind::Inside => When::Here,
            SiteKind::User(UserMoment::Entry | UserMoment::Inside) => When::Here,
            SiteKind::User(UserMoment::Return) => {
                return Some(Err(Unavailable {
                    reason: "at the return of a program's function its arguments are gone".into(),
                    help: "keep them at its entry (uprobe:) in a map, by tid".into(),
                }));
            }
            SiteKind::Return => When::AtEntry,
            _ => return None,
        };
        let space = self.site.space();
        let probed = self.types().probed();
        self.depends_on_place = true;
        let place = ProbePlace {
            address,
            moment: Moment::At,
        };
        let found = match asked {
            Asked::Argument => probed.argument(place, self.site.copy.as_deref(), name),
            Asked::Any => probed.variable(place, name),
        };
        let variable = match found {
            Ok(variable) => variable,
            Err(unavailable) => {
                let names = probed.variables(place);
                let is_known = names.iter().any(|known| known == name);
                return Some(Err(match is_known || !unavailable.help.is_empty() {
                    true => unavailable,
                    false => {
                        let near = names::nearest(name, names.iter().map(|name| &**name));
                        let help = match (near.is_empty(), names.is_empty()) {
                            (false, _) => names::did_you_mean(&near),
                            (true, true) => String::new(),
                            (true, false) => format!("there are {}", names.join(", ")),
                        };
                        Unavailable {
                            help,
                            ..unavailable
                        }
                    }
                }));
            }
        };
        Some(self.object(&variable, when, space))
    }

    /// The result of the function.
    pub(crate) fn returned(&mut self, span: Span) -> Lowered<Val> {
        let in_kernel = match self.site.kind {
            SiteKind::Return => true,
            SiteKind::User(UserMoment::Return) => false,
            _ => {
                let help = match self.site.space() {
                    Space::User => "use it at uretprobe:PROGRAM:FUNCTION",
                    Space::Kernel => {
                        "use it at kretprobe:FUNCTION, or in the return part of session:FUNCTION"
                    }
                };
                return Err(Diagnostic::new(
                    span,
                    "there is no result before the function returns",
                    help,
                ));
            }
        };
        let is_known = match in_kernel {
            true => self.tables.options.debug_info,
            false => self.types().program().is_some(),
        };
        let Some(address) = self.site.address.filter(|_| is_known) else {
            return Ok(Val::number(Number::Register(Register::Ax), Kind::SIGNED));
        };
        self.depends_on_place = true;
        let space = self.site.space();
        let variable = self.types().probed().returned(address);
        let object = variable.and_then(|variable| self.object(&variable, When::Here, space));
        object.map_err(|unavailable| {
            let help = match unavailable.help.is_empty() {
                true => "reg(\"ax\") is the register in which small results are".into(),
                false => unavailable.help,
            };
            Diagnostic::new(span, unavailable.reason, help)
        })
    }

    /// A static variable, by its path: of the probed program, or else of the kernel.
    pub(crate) fn global(&mut self, path: &str) -> Result<Val, Unavailable> {
        if let Some(Ok(variable)) = self.types().program().map(|program| program.global(path)) {
            return self.object(&variable, When::Here, Space::User);
        }
        let variable = self.types().kernel.global(path)?;
        self.object(&variable, When::Here, Space::Kernel)
    }

    fn object(
        &mut self,
        variable: &Variable,
        when: When,
        space: Space,
    ) -> Result<Val, Unavailable> {
        let mut pieces = Vec::new();
        for Piece { bytes, source } in &variable.pieces {
            let source = match source {
                Source::Missing => Source::Missing,
                Source::Value(expression) => {
                    let number = self.convert(expression, when, space)?;
                    Source::Value(match when {
                        When::Here => number,
                        When::AtEntry => self.kept(number),
                    })
                }
                Source::Memory(expression) => {
                    let address = self.convert(expression, when, space)?;
                    if when == When::AtEntry && address.constant().is_none() {
                        // The stack of the entry may be overwritten until the return. So the bytes
                        // are kept, not the address.
                        let mut at = 0;
                        while at < *bytes {
                            let step = step(bytes - at);
                            let number =
                                Number::load_in(space, address.clone(), at.into(), step, false);
                            pieces.push(Piece {
                                bytes: step.into(),
                                source: Source::Value(self.kept(number)),
                            });
                            at += u32::from(step);
                        }
                        continue;
                    }
                    Source::Memory(address)
                }
            };
            pieces.push(Piece {
                bytes: *bytes,
                source,
            });
        }
        let at = match &pieces[..] {
            [
                Piece {
                    source: Source::Memory(address),
                    ..
                },
            ] => At::Memory {
                space,
                address: address.clone(),
                offset: 0,
            },
            _ => At::Pieces {
                space,
                pieces: pieces.into(),
                offset: 0,
            },
        };
        Ok(Val::Object(Object {
            type_id: variable.type_id,
            at,
            present: Test::Constant(true),
            is_variant: false,
            length: None,
        }))
    }

    /// A number of the debug information.
    fn convert(
        &mut self,
        expression: &Expression,
        when: When,
        space: Space,
    ) -> Result<Number, Unavailable> {
        Ok(match expression {
            Expression::Constant(number) => Number::Constant(*number),
            Expression::Register(register) => Number::Register(*register),
            Expression::AtEntry(register) => match (self.site.kind, when) {
                (SiteKind::Entry | SiteKind::SessionEntry, _) | (_, When::AtEntry) => {
                    Number::Register(*register)
                }
                (SiteKind::User(UserMoment::Entry), _) => Number::Register(*register),
                // A return has it in place of SS.
                (SiteKind::User(UserMoment::Return), When::Here) if *register == Register::Di => {
                    Number::Register(Register::Ss)
                }
                (SiteKind::Return, When::Here) => self.kept(Number::Register(*register)),
                _ => {
                    return Err(Unavailable {
                        reason: "the value is known at the function's entry only".into(),
                        help: "probe the entry of the function, or its return".into(),
                    });
                }
            },
            Expression::Load { address, bytes } => {
                Number::load_in(space, self.convert(address, when, space)?, 0, *bytes, false)
            }
            Expression::Binary(operation, left, right) => {
                let left = self.convert(left, when, space)?;
                let right = self.convert(right, when, space)?;
                let op = match operation {
                    Operation::Add => AluOp::Add,
                    Operation::Subtract => AluOp::Sub,
                    Operation::Multiply => AluOp::Mul,
                    Operation::And => AluOp::And,
                    Operation::Or => AluOp::Or,
                    Operation::Xor => AluOp::Xor,
                    Operation::ShiftLeft => AluOp::ShiftLeft,
                    Operation::ShiftRight => AluOp::ShiftRight,
                    Operation::ShiftRightSigned => AluOp::ShiftRightSigned,
                };
                Number::alu(op, left, right)
            }
        })
    }

    /// A number of the entry of the call, kept for the return.
    pub(crate) fn kept(&mut self, number: Number) -> Number {
        if number.constant().is_some() {
            return number;
        }
        self.memory.shares = true;
        Number::Own(Place {
            base: Reg::R9,
            offset: self.shared.keep(number),
        })
    }
}

/// `argN` at a static mark.
pub(crate) fn argument_of_mark(
    values: &mut Values<'_, '_>,
    mark: &Mark,
    number: usize,
    span: Span,
) -> Lowered<Val> {
    let refused = |message, help: &str| Err(Diagnostic::new(span, message, help));
    let Some(argument) = mark.arguments.get(number) else {
        let help = match mark.arguments.len() {
            0 => "it has none".into(),
            1 => "it has arg0".into(),
            count => format!("it has arg0 to arg{}", count - 1),
        };
        return refused(
            format!("the mark `{}` has no value {number}", mark.name),
            &help,
        );
    };
    let Some(value) = &argument.value else {
        return refused(
            format!(
                "where the mark `{}` has its value {number} is not understood",
                mark.name
            ),
            "use another one, or a local variable by its name",
        );
    };
    values.depends_on_place = true;
    let value = values
        .convert(value, When::Here, Space::User)
        .map_err(|why| Diagnostic::new(span, why.reason, why.help))?;
    let (bytes, signed) = (argument.bytes, argument.signed);
    Ok(Val::number(
        value.extended(bytes, signed),
        Kind::Integer { bytes, signed },
    ))
}

pub(super) fn no_value(name: &str, span: Span, near: &[String]) -> Diagnostic {
    Diagnostic::new(
        span,
        format!("`${name}` has no value here"),
        match near.is_empty() {
            true => format!("assign to it first: `${name} = …;`"),
            false => names::did_you_mean(near),
        },
    )
}

fn unavailable(unavailable: Unavailable, span: Span) -> Diagnostic {
    Diagnostic::new(span, unavailable.reason, unavailable.help)
}
