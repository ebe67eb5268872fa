//! The made-up kernel: each function that is named exists, and its result is a number.
//!
//! A program is compiled for it and runs in a process. It reads registers and memory that are zero,
//! so what it prints is the same each time.

use std::{cell::RefCell, collections::BTreeMap, panic, rc::Rc};

use script_world::{Form, Hit, PLACE, World};
use trace_answers::{Event, Symbol, Symbolize};
use trace_compiler::{Compiled, Missing, Options, compile};
use trace_interface::{
    script::Attachment,
    symbols::{
        Expression, Function, Implementor, Kernel, Piece, ProbePlace, Register, Source, Type,
        TypeId, Unavailable, Variable,
    },
};
use trace_language::{Diagnostic, parse_with};

/// How often each probe is hit in a run, and each interval comes.
const ROUNDS: u64 = 10;
/// The time between two ticks.
const TICK_NS: u64 = 4_000_000;
/// The same in a kernel that is asked for many.
const FASTEST_TICK_NS: u64 = 1_000_000;
/// Where the words of a program that is executed are: their addresses, which null ends, and each of
/// them.
const WORDS: u64 = 0x50_0000;
const WORD: u64 = 0x100;
/// The bytes of each function.
const BYTES: u64 = 0x100;

#[derive(Clone, Default)]
pub struct AnyKernel {
    /// The functions that were asked for.
    names: Rc<RefCell<BTreeMap<u64, String>>>,
}

impl Symbolize for AnyKernel {
    fn symbol(&self, address: u64) -> Option<Symbol> {
        let names = self.names.borrow();
        let (begin, name) = names.range(..=address).next_back()?;
        let offset = address - begin;
        let name = name.clone();
        (offset < BYTES).then_some(Symbol { name, offset })
    }
}

/// A number for a name, so that two names are two places.
fn address(name: &str) -> u64 {
    let number = name.bytes().fold(0_u64, |number, byte| {
        number.wrapping_mul(31).wrapping_add(u64::from(byte))
    });
    PLACE + (number % 4096) * BYTES
}

fn unavailable(what: &str) -> Unavailable {
    Unavailable {
        reason: format!("there is no `{what}` here"),
        help: String::new(),
    }
}

impl Kernel for AnyKernel {
    fn functions(&self, pattern: &str) -> Vec<Function> {
        let names = match pattern.contains(['*', '?']) {
            true => vec![
                pattern.replace(['*', '?'], "a"),
                pattern.replace(['*', '?'], "b"),
            ],
            false => vec![pattern.into()],
        };
        let function = |name: String| Function {
            address: address(&name),
            symbol: name.clone(),
            path: name,
            bytes: BYTES,
        };
        let mut functions: Vec<Function> = names.into_iter().map(function).collect();
        functions.sort_by_key(|function| function.address);
        let known = functions.iter();
        let known = known.map(|function| (function.address, function.symbol.clone()));
        self.names.borrow_mut().extend(known);
        functions
    }

    fn inlined(&self, _: &str) -> Vec<u64> {
        Vec::new()
    }

    fn line(&self, file: &str, _: u32) -> Result<Vec<u64>, Unavailable> {
        Err(unavailable(file))
    }

    fn variables(&self, _: ProbePlace) -> Vec<String> {
        Vec::new()
    }

    fn variable(&self, _: ProbePlace, name: &str) -> Result<Variable, Unavailable> {
        Err(unavailable(name))
    }

    fn returned(&self, _: u64) -> Result<Variable, Unavailable> {
        Ok(Variable {
            type_id: TypeId(0),
            pieces: vec![Piece {
                bytes: 8,
                source: Source::Value(Expression::Register(Register::Ax)),
            }],
        })
    }

    fn describe(&self, _: TypeId) -> Rc<Type> {
        Rc::new(Type::Integer {
            bytes: 8,
            signed: false,
        })
    }

    fn global(&self, path: &str) -> Result<Variable, Unavailable> {
        // The kernel's word `jiffies` asks for it.
        match path.ends_with("::TICK_NS") {
            true => Ok(Variable {
                type_id: TypeId(0),
                pieces: vec![Piece {
                    bytes: 8,
                    source: Source::Value(Expression::Constant(TICK_NS)),
                }],
            }),
            false => Err(unavailable(path)),
        }
    }

    fn nearest(&self, _: &str) -> Vec<String> {
        Vec::new()
    }
}

/// How far a text comes.
pub enum Outcome {
    Taken(Box<Compiled>),
    /// It is refused, with the first message; whether it could be parsed.
    Refused {
        message: String,
        parsed: bool,
    },
}

/// Compiles a text.
pub fn compiled(text: &str, arguments: &[&str], kernel: &dyn Kernel) -> Outcome {
    compiled_with(text, arguments, kernel, Missing::Refused)
}

/// Compiles a text, of which probes without a place are treated so.
pub fn compiled_with(
    text: &str,
    arguments: &[&str],
    kernel: &dyn Kernel,
    missing_probes: Missing,
) -> Outcome {
    let refused = |mistakes: Vec<Diagnostic>, parsed| Outcome::Refused {
        message: mistakes
            .first()
            .map_or(String::new(), |first| first.message.clone()),
        parsed,
    };
    let all = || {
        let tree = match parse_with(text, arguments) {
            Ok(tree) => tree,
            Err(mistakes) => return refused(mistakes, false),
        };
        let options = Options {
            tick_nanoseconds: FASTEST_TICK_NS,
            missing_probes,
            ..Options::default()
        };
        match compile(&tree, kernel, &options) {
            Ok(compiled) => Outcome::Taken(Box::new(compiled)),
            Err(mistakes) => refused(mistakes, true),
        }
    };
    panic::catch_unwind(panic::AssertUnwindSafe(all)).unwrap_or_else(|_| Outcome::Refused {
        message: "THE COMPILER PANICS".into(),
        parsed: true,
    })
}

/// What a program prints, with the maps at its end, in a form; None if the interpreter objects to
/// it. `words` are those of a program that is executed at each hit.
pub fn printed(
    compiled: Compiled,
    kernel: &AnyKernel,
    form: Option<Form>,
    words: &[&str],
) -> Option<String> {
    let all = || {
        let Compiled { script, view, .. } = compiled;
        let probes = script.attachments.len();
        let mut world = World::new(&script, view, Box::new(kernel.clone()));
        world.comm = *b"bpftrace\0\0\0\0\0\0\0\0";
        world.form = form;
        if let Some(form) = form {
            let begun = Event::Started {
                places: probes as u64,
            };
            world.out = form(&begun, "", &world.presentation, kernel);
        }
        let addresses = (1..).map(|word| WORDS + WORD * word).take(words.len());
        let list = addresses.clone().chain([0]).flat_map(u64::to_le_bytes);
        world.user.push((WORDS, list.collect()));
        for (address, word) in addresses.zip(words) {
            let bytes: Vec<u8> = word.bytes().chain([0]).collect();
            world.user.push((address, bytes.clone()));
            world.memory.push((address, bytes));
        }
        let of = |world: &World, is: fn(&Attachment) -> bool| {
            let all = world.script.attachments.iter();
            all.filter(|attachment| is(attachment))
                .cloned()
                .collect::<Vec<_>>()
        };
        let executes = !words.is_empty();
        for begin in of(&world, |it| matches!(it, Attachment::Begin { .. })) {
            attached(&mut world, &begin, (0, executes));
        }
        for round in 1..=ROUNDS {
            let others =
                |it: &Attachment| !matches!(it, Attachment::Begin { .. } | Attachment::End { .. });
            for attachment in of(&world, others) {
                if world.status.is_none() {
                    attached(&mut world, &attachment, (round, executes));
                }
            }
        }
        for end in of(&world, |it| matches!(it, Attachment::End { .. })) {
            attached(&mut world, &end, (ROUNDS, executes));
        }
        // A blank line parts the maps from what was printed.
        let said = core::mem::take(&mut world.out);
        format!("{said}\n{}", world.maps())
    };
    panic::catch_unwind(panic::AssertUnwindSafe(all)).ok()
}

/// A hit of an attachment: in which round, and whether it executes a program.
fn attached(world: &mut World, attachment: &Attachment, (round, executes): (u64, bool)) {
    let registers = match executes {
        true => vec![(Register::Di, WORDS + WORD), (Register::Si, WORDS)],
        false => Vec::new(),
    };
    let hit = |address| Hit {
        registers: registers.clone(),
        address,
        tsc: 1000 + round * 100_000_000,
        ..Hit::default()
    };
    match attachment {
        Attachment::Probe { program, addresses } => {
            for address in addresses {
                world.run(*program, &hit(*address));
            }
        }
        Attachment::Call {
            entry,
            on_return,
            functions,
        } => {
            for address in functions {
                let hit = hit(*address);
                let declined = entry.is_some_and(|entry| world.run(entry, &hit) != 0);
                if !declined {
                    world.run(*on_return, &hit);
                }
            }
        }
        Attachment::Watch { program, .. }
        | Attachment::User { program, .. }
        | Attachment::Begin { program }
        | Attachment::End { program }
        | Attachment::Interval { program, .. }
        | Attachment::Profile { program, .. }
        | Attachment::Source { program, .. } => {
            world.run(*program, &hit(PLACE));
        }
    }
}

/// A real kernel, in which another function stands for each that it has not.
pub struct Renamed<'k>(pub &'k dyn Kernel);

/// The function that stands for others.
const SOME_FUNCTION: &str = "vfs_read";

impl Kernel for Renamed<'_> {
    fn functions(&self, pattern: &str) -> Vec<Function> {
        let found = self.0.functions(pattern);
        match found.is_empty() {
            true => self.0.functions(SOME_FUNCTION),
            false => found,
        }
    }

    fn inlined(&self, pattern: &str) -> Vec<u64> {
        self.0.inlined(pattern)
    }

    fn line(&self, file: &str, line: u32) -> Result<Vec<u64>, Unavailable> {
        self.0.line(file, line)
    }

    fn variables(&self, place: ProbePlace) -> Vec<String> {
        self.0.variables(place)
    }

    fn variable(&self, place: ProbePlace, name: &str) -> Result<Variable, Unavailable> {
        self.0.variable(place, name)
    }

    fn argument(
        &self,
        place: ProbePlace,
        copy: Option<&str>,
        name: &str,
    ) -> Result<Variable, Unavailable> {
        self.0.argument(place, copy, name)
    }

    fn returned(&self, function: u64) -> Result<Variable, Unavailable> {
        self.0.returned(function)
    }

    fn describe(&self, id: TypeId) -> Rc<Type> {
        self.0.describe(id)
    }

    fn type_named(&self, name: &str) -> Result<TypeId, Vec<String>> {
        self.0.type_named(name)
    }

    fn implementors(&self, id: TypeId) -> Vec<Implementor> {
        self.0.implementors(id)
    }

    fn global(&self, path: &str) -> Result<Variable, Unavailable> {
        self.0.global(path)
    }

    fn nearest(&self, name: &str) -> Vec<String> {
        self.0.nearest(name)
    }
}
