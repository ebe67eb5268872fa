//! The prompt on the serial line. A person can look around there, load modules, and watch probes.
//!
//! With `interactive` on the command line, the first task runs it in place of a user program. A
//! command is a function that gets its arguments and writes text, to the console or to the file
//! behind `>`. The table [`COMMANDS`] has them all.
//!
//! ```text
//!   serial line ─► LineReader ─► syntax::parse ─► Command::run ─► console, or file
//! ```
//!
//! Paths are taken from the root directory.
//!
//! # Contexts
//! Task context, one task, which sleeps until something is typed. The log goes on meanwhile: its
//! lines come between, and an unfinished line on the screen stays above them. Typed commands are
//! obeyed also while the terminal shows nothing, because it pauses or because the log is long.
//! Their text waits ([`crate::console`]).
//!
//! Ctrl-C at the prompt abandons the line. While a command runs, Ctrl-C stops the command and the
//! programs that it has started.

mod command;
mod disas;
mod files;
mod modules;
mod tasks;
mod walkthrough;

use alloc::{format, string::String, vec::Vec};
use core::fmt::{self, Write};

use prompt::{LineReader, Port, ReadError, syntax};

use crate::{
    log,
    probes::survey::Survey,
    terminal::{self, Command as Running},
};
use command::{Command, Failure, Next, no_arguments};

/// The text before each line.
const PROMPT: &str = "# ";

/// All commands, as `help` shows them.
static COMMANDS: &[Command] = &[
    Command {
        name: "help",
        arguments: "",
        help: "this list; COMMAND > FILE and COMMAND >> FILE write what a command says to a file",
        run: help,
    },
    Command {
        name: "ls",
        arguments: "[DIRECTORY|FILE ...]",
        help: "lists files",
        run: files::ls,
    },
    Command {
        name: "cat",
        arguments: "FILE ...",
        help: "shows files, such as /sys/kernel/debug/kprobes/list",
        run: files::cat,
    },
    Command {
        name: "echo",
        arguments: "[TEXT ...]",
        help: "says TEXT; echo 0 > /sys/kernel/debug/kprobes/enabled disarms all probes",
        run: files::echo,
    },
    Command {
        name: "insmod",
        arguments: "MODULE [PARAMETER=VALUE ...]",
        help: "loads a module",
        run: modules::insmod,
    },
    Command {
        name: "rmmod",
        arguments: "MODULE",
        help: "unloads a module",
        run: modules::rmmod,
    },
    Command {
        name: "lsmod",
        arguments: "",
        help: "lists modules, loaded or not, with their parameters",
        run: modules::lsmod,
    },
    Command {
        name: "ps",
        arguments: "",
        help: "lists tasks",
        run: tasks::ps,
    },
    Command {
        name: "run",
        arguments: "PROGRAM [ARGUMENT ...]",
        help: "runs a program of /bin, or one given by its path, and waits for its end",
        run: tasks::run,
    },
    Command {
        name: "dmesg",
        arguments: "",
        help: "shows the kernel's log",
        run: dmesg,
    },
    Command {
        name: "disas",
        arguments: "SYMBOL|ADDRESS",
        help: "shows a function's instructions: offset, whether it can be probed or why not, \
               what is armed there",
        run: disas::disas,
    },
    Command {
        name: "walkthrough",
        arguments: "FUNCTION",
        help: "calls a function under each form of return probe, and shows the interruptions and \
               jumps side by side",
        run: walkthrough::walkthrough,
    },
    Command {
        name: "probeable",
        arguments: "",
        help: "judges every instruction of the kernel: how many can be probed, and why the others \
               cannot",
        run: probeable,
    },
    Command {
        name: "poweroff",
        arguments: "",
        help: "unloads the modules and ends the machine",
        run: poweroff,
    },
];

/// Reads commands and obeys them until one of them ends it. Call it once, because only one task may
/// read the serial line.
pub fn run() {
    terminal::init();
    let mut reader = LineReader::new();
    terminal::echo(b"Type help for the commands.\n");
    loop {
        let line = match reader.read(PROMPT, &mut Terminal) {
            Ok(line) => line,
            Err(ReadError::Abandoned) => continue,
            Err(error @ ReadError::NotAscii) => {
                terminal::echo(format!("{error}\n").as_bytes());
                continue;
            }
        };
        let running = Running::begin();
        let outcome = obey(&line);
        drop(running);
        if Running::is_interrupted() {
            terminal::echo(b"^C\n");
        }
        match outcome {
            Ok(Next::Command) | Err(Failure::Interrupted) => {}
            Ok(Next::PowerOff) => return,
            Err(failure) => terminal::echo(format!("{failure}\n").as_bytes()),
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
        .ok_or_else(|| Failure::UnknownCommand {
            name: (*name).into(),
            known: COMMANDS
                .iter()
                .map(|command| command.name)
                .collect::<Vec<_>>()
                .join(", "),
        })?;
    let Some(redirect) = line.output else {
        let next = (command.run)(arguments, &mut Console);
        return next.map_err(|failure| match failure {
            Failure::Output if Running::is_interrupted() => Failure::Interrupted,
            failure => failure.of(command),
        });
    };
    // The whole output is collected first, so that a command that fails leaves the file as it is.
    let mut output = String::new();
    let next = (command.run)(arguments, &mut output).map_err(|failure| failure.of(command))?;
    files::write(&redirect.path, output.as_bytes(), redirect.append)
        .map_err(|failure| failure.of(command))?;
    Ok(next)
}

/// The terminal, as the line reader wants it.
struct Terminal;

impl Port for Terminal {
    fn read(&mut self) -> u8 {
        terminal::read()
    }

    fn write(&mut self, bytes: &[u8]) {
        terminal::echo(bytes);
    }
}

/// The console, as a command's text goes to it. It takes everything, unless the command is to stop.
struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if Running::say(text) {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}

fn help(arguments: &[&str], out: &mut dyn Write) -> Result<Next, Failure> {
    no_arguments(arguments)?;
    for command in COMMANDS {
        let usage = alloc::format!("{} {}", command.name, command.arguments);
        writeln!(out, "{usage:36} {}", command.help)?;
    }
    Ok(Next::Command)
}

fn dmesg(arguments: &[&str], out: &mut dyn Write) -> Result<Next, Failure> {
    no_arguments(arguments)?;
    log::show_history(out)?;
    Ok(Next::Command)
}

fn probeable(arguments: &[&str], out: &mut dyn Write) -> Result<Next, Failure> {
    no_arguments(arguments)?;
    write!(out, "{}", Survey::take(|_| true)?)?;
    Ok(Next::Command)
}

fn poweroff(arguments: &[&str], _out: &mut dyn Write) -> Result<Next, Failure> {
    no_arguments(arguments)?;
    Ok(Next::PowerOff)
}
