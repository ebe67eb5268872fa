//! A command of the prompt, and the failures of commands, in sentences that say what to do.
//!
//! A [`Command`] is a row of the table in [`super`]: its name and help, the function that carries
//! it out, and the one that completes its arguments. The function writes to whatever it is given,
//! so it does not know whether its output goes to the console or to a file.
//!
//! A [`Failure`] says one sentence. [`Failure::of`] puts the command's name before it, and its
//! usage after it where the arguments were wrong. The text is made when it is shown.

use alloc::{boxed::Box, string::String};
use core::fmt::{self, Write};

use abi::WaitStatus;
use prompt::{Candidates, WordPlace, syntax::SyntaxError};

use crate::{
    errno::Errno,
    module::{self, ModuleError},
    probes::ProbeError,
    symbols::{LookupError, Symbol},
};

/// Finds the words that may stand in a place of a line.
pub type Complete = fn(&WordPlace) -> Candidates;

/// A command.
pub struct Command {
    /// Its name.
    pub name: &'static str,
    /// The arguments that may follow it.
    pub arguments: &'static str,
    /// Its effect, in a few words.
    pub help: &'static str,
    /// Carries it out, with the words after its name, and writes its output.
    pub run: fn(&[&str], &mut dyn Write) -> Result<Next, Failure>,
    /// Finds the words that its arguments can be.
    pub complete: Complete,
}

/// The step after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next command.
    Command,
    /// The end of the machine.
    PowerOff,
}

/// Refuses arguments.
pub fn no_arguments(arguments: &[&str]) -> Result<(), Failure> {
    match arguments {
        [] => Ok(()),
        _ => Err(Failure::Usage("it takes no arguments")),
    }
}

/// Why a command was not, or not wholly, carried out.
pub enum Failure {
    /// The line cannot be read.
    Syntax(SyntaxError),
    /// A file for output, but no command.
    NoCommand,
    /// There is no such command.
    UnknownCommand {
        name: String,
        /// The names of the commands, with commas between.
        known: String,
    },
    /// The arguments do not fit the command.
    Usage(&'static str),
    /// A file could not be used.
    File { path: String, errno: Errno },
    /// A program could not be started.
    NoProgram { path: String, errno: Errno },
    /// A program has failed.
    Program { path: String, status: WaitStatus },
    /// A module was not loaded or unloaded.
    Module(ModuleError),
    /// There is no such symbol, or several.
    Symbol(LookupError<'static>),
    /// There is no symbol at the address.
    NoSymbolAt(u64),
    /// The symbol is no function.
    Data(Symbol<'static>),
    /// The function was part of the boot.
    Freed(Symbol<'static>),
    /// There is no harmless way to call the function.
    NotCallable {
        name: String,
        /// The names of the functions that can be called, with commas between.
        callable: String,
    },
    /// All probes are disarmed.
    Disarmed,
    /// The function has a return probe already, and forms cannot be mixed.
    ReturnProbed(&'static str),
    /// A call could not be traced to its end.
    NotTraced,
    /// The probes have no answer.
    Probe(ProbeError),
    /// A script of the tracer is refused.
    Script(String),
    /// The output of the command was not taken.
    Output,
    /// It was stopped by Ctrl-C.
    Interrupted,
    /// One of the above, and the command.
    Of(&'static Command, Box<Failure>),
}

impl Failure {
    /// Whether this is how Ctrl-C shows in a command.
    pub fn may_be_interruption(&self) -> bool {
        matches!(
            self,
            Self::Output
                | Self::File {
                    errno: Errno::EINTR,
                    ..
                }
        )
    }

    /// Adds the name of the command that failed.
    pub fn of(self, command: &'static Command) -> Self {
        Self::Of(command, Box::new(self))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(error) => error.fmt(f),
            Self::NoCommand => {
                f.write_str("a file for the output, but no command; write COMMAND > FILE")
            }
            Self::UnknownCommand { name, known } => {
                write!(f, "there is no command {name}; there are {known}")
            }
            Self::Usage(problem) => f.write_str(problem),
            Self::File { path, errno } => {
                write!(f, "{path}: {errno}")?;
                match errno {
                    Errno::ENOENT => f.write_str("; ls DIRECTORY shows what there is"),
                    Errno::EACCES => f.write_str("; ls shows what may be done with it"),
                    Errno::EISDIR => f.write_str("; ls shows what is in it"),
                    Errno::EINVAL => f.write_str("; it does not take this text"),
                    Errno::EBUSY => f.write_str("; it is in use: switch off first what uses it"),
                    Errno::ENODEV => f.write_str("; what it belonged to is gone"),
                    Errno::ENOTEMPTY => f.write_str("; remove first what ls shows in it"),
                    _ => Ok(()),
                }
            }
            Self::NoProgram { path, errno } => {
                write!(f, "{path}: {errno}; ls /bin shows the programs")
            }
            Self::Program { path, status } => write!(f, "{path}: {status:?}"),
            Self::Module(error) => error.fmt(f),
            Self::Symbol(error) => error.fmt(f),
            Self::NoSymbolAt(addr) => write!(
                f,
                "{addr:#x} belongs to no function; /proc/kallsyms lists those that there are"
            ),
            Self::Data(symbol) => write!(
                f,
                "{symbol} is data, not a function; \
                 those that /proc/kallsyms lists with T or t are functions"
            ),
            Self::Freed(symbol) => write!(
                f,
                "{symbol} was part of the boot, and its instructions are gone; \
                 give a function that stays"
            ),
            Self::NotCallable { name, callable } => {
                write!(
                    f,
                    "{name} would need what a prompt does not have, or do harm; \
                     these can be called: {callable}"
                )
            }
            Self::Disarmed => f.write_str(
                "all probes are disarmed; echo 1 > /sys/kernel/debug/kprobes/enabled arms them",
            ),
            Self::ReturnProbed(name) => {
                write!(
                    f,
                    "{name} has a return probe already, which cannot be there beside one of \
                     another form; "
                )?;
                // An event's probe is no module's.
                f.write_str(
                    "turn the events off first: echo 0 > /sys/kernel/tracing/events/enable",
                )?;
                for (index, module) in module::loaded().iter().enumerate() {
                    let before = if index == 0 {
                        ", or unload its module:"
                    } else {
                        " or"
                    };
                    write!(f, "{before} rmmod {}", module.name())?;
                }
                Ok(())
            }
            Self::NotTraced => f.write_str(
                "the call made more stops than there is room for; remove other probes in its way",
            ),
            Self::Probe(error) => error.fmt(f),
            Self::Script(text) => f.write_str(text),
            Self::Output => f.write_str("there is no memory for what it has to say"),
            Self::Interrupted => f.write_str("it was stopped"),
            Self::Of(command, failure) => {
                write!(f, "{}: {failure}", command.name)?;
                match **failure {
                    Self::Usage(_) => {
                        write!(f, "; usage: {} {}", command.name, command.arguments)
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

macro_rules! from {
    ($($error:ty => $variant:ident)+) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })+
    };
}

from! {
    SyntaxError => Syntax
    ModuleError => Module
    LookupError<'static> => Symbol
    ProbeError => Probe
}

impl From<fmt::Error> for Failure {
    fn from(_: fmt::Error) -> Self {
        Self::Output
    }
}
