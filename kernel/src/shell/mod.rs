//! The prompt on the serial line: a person's way to look around, load modules, and watch probes.
//!
//! The command line's `interactive` has the first task run it in place of a user program. A command is a function that
//! gets its arguments and writes text, to the console or to the file behind `>`; the table in [`commands`] has them all.
//!
//! ```text
//!   serial line ─► LineReader ─► syntax::parse ─► Command::run ─► console, or file
//! ```
//!
//! Paths are taken from the root directory.
//!
//! # Contexts
//! Task context, one task. Input is polled once a tick; the task sleeps in between. The log goes on meanwhile: its
//! lines come between, and an unfinished line on the screen stands above them.

mod commands;
mod disas;
mod failure;
mod files;
mod modules;
mod tasks;
mod walkthrough;

use alloc::{string::String, vec::Vec};
use core::fmt::{self, Write};

use prompt::{LineReader, Port, syntax};

use crate::{log, serial::SerialInput, task::sleep::sleep_ns, time::TICK_NS};
use commands::{COMMANDS, Next};
use failure::Failure;

/// What stands before each line.
const PROMPT: &str = "# ";

/// Reads commands and obeys them until one of them ends it. Once: nobody else may read the serial line.
pub fn run() {
    let mut terminal = Terminal {
        // SAFETY: the one reader of the line.
        input: unsafe { SerialInput::com1() },
    };
    let mut reader = LineReader::new();
    let _ = writeln!(Console, "Type help for the commands.");
    loop {
        let Ok(line) = reader.read(PROMPT, &mut terminal) else {
            continue;
        };
        match obey(&line) {
            Ok(Next::Command) => {}
            Ok(Next::PowerOff) => return,
            // The console takes everything.
            Err(failure) => drop(writeln!(Console, "{failure}")),
        }
    }
}

/// Carries out one line.
fn obey(line: &str) -> Result<Next, Failure> {
    let line = syntax::parse(line)?;
    let words: Vec<&str> = line.words.iter().map(String::as_str).collect();
    let Some((name, arguments)) = words.split_first() else {
        return match line.output {
            None => Ok(Next::Command),
            Some(_) => Err(Failure::NoCommand),
        };
    };
    let command = COMMANDS
        .iter()
        .find(|command| command.name == *name)
        .ok_or_else(|| Failure::UnknownCommand((*name).into()))?;
    let Some(redirect) = line.output else {
        return (command.run)(arguments, &mut Console).map_err(|failure| failure.of(command));
    };
    // All of it first: a command that fails leaves the file as it is.
    let mut output = String::new();
    let next = (command.run)(arguments, &mut output).map_err(|failure| failure.of(command))?;
    files::write(&redirect.path, output.as_bytes(), redirect.append)?;
    Ok(next)
}

/// The terminal at the other end of the serial line.
struct Terminal {
    input: SerialInput,
}

impl Port for Terminal {
    fn read(&mut self) -> u8 {
        loop {
            match self.input.poll() {
                Some(byte) => return byte,
                None => sleep_ns(TICK_NS),
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        log::write_console(bytes);
    }
}

/// The console, as text goes to it.
struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        log::write_console(text.as_bytes());
        Ok(())
    }
}
