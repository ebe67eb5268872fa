//! The prompt on the serial line. A person can look around there, load modules, and watch probes.
//!
//! With `interactive` on the command line, the first task runs it in place of a user program. A
//! command is a function that gets its arguments and writes text, to the console or to the file
//! after `>`. The table [`COMMANDS`] has them all.
//!
//! ```text
//!   serial line ─► LineReader ─► syntax::parse ─► Command::run ─► console, or file
//!                      └─ Tab ─► complete::candidates
//! ```
//!
//! Paths are taken from the working directory, which `cd` changes. As in a shell of POSIX, the file
//! after `>` is opened, and so truncated, before the command runs.
//!
//! # Contexts
//! Task context, one task, which sleeps until something is typed. The log goes on meanwhile: its
//! lines come between, and an unfinished line on the screen stays above them. Typed commands are
//! obeyed also while the terminal shows nothing, because it pauses or because the log is long.
//! Their text waits ([`crate::console`]).
//!
//! Ctrl-C at the prompt abandons the line. While a command runs, Ctrl-C stops the command and the
//! programs that it has started.

#![deny(unsafe_code)]

mod command;
mod complete;
mod disas;
mod files;
mod modules;
mod tasks;
mod trace;
mod walkthrough;

use alloc::{format, string::String, vec::Vec};
use core::fmt::{self, Write};

use prompt::{
    LineReader, Port, ReadError,
    syntax::{self, Redirect},
};

use crate::{
    log,
    probes::survey::Survey,
    terminal::{self, Command as Running},
};
use command::{Command, Failure, Next, no_arguments};
use files::Output;

/// The text before each line.
const PROMPT: &str = "# ";

/// All commands, as `help` shows them.
static COMMANDS: &[Command] = &[
    Command {
        name: "help",
        arguments: "",
        help: "this list; COMMAND > FILE and COMMAND >> FILE write what a command says to a file; \
               Tab completes a word, and twice Tab lists how it can go on",
        run: help,
        complete: complete::nothing,
    },
    Command {
        name: "cd",
        arguments: "[DIRECTORY]",
        help: "goes to a directory, such as /sys/kernel/tracing, from which paths are taken then; \
               to / without one",
        run: files::cd,
        complete: complete::paths,
    },
    Command {
        name: "pwd",
        arguments: "",
        help: "says which directory that is",
        run: files::pwd,
        complete: complete::nothing,
    },
    Command {
        name: "ls",
        arguments: "[DIRECTORY|FILE ...]",
        help: "lists files, without an argument those of the directory",
        run: files::ls,
        complete: complete::paths,
    },
    Command {
        name: "cat",
        arguments: "FILE ...",
        help: "shows files, such as /sys/kernel/debug/kprobes/list; Ctrl-C ends a file that waits \
               for more",
        run: files::cat,
        complete: complete::paths,
    },
    Command {
        name: "echo",
        arguments: "[-n] [TEXT ...]",
        help: "says TEXT, with -n without a line's end; echo 0 > \
               /sys/kernel/debug/kprobes/enabled disarms all probes",
        run: files::echo,
        complete: complete::text,
    },
    Command {
        name: "head",
        arguments: "[-n COUNT] FILE",
        help: "shows the first lines of a file, 10 without COUNT",
        run: files::head,
        complete: complete::paths,
    },
    Command {
        name: "tail",
        arguments: "[-n COUNT] FILE",
        help: "shows the last lines of a file, 10 without COUNT",
        run: files::tail,
        complete: complete::paths,
    },
    Command {
        name: "grep",
        arguments: "[-c] [-v] TEXT FILE ...",
        help: "shows the lines with TEXT in them; -v: those without; -c: how many there are",
        run: files::grep,
        complete: complete::paths,
    },
    Command {
        name: "mkdir",
        arguments: "DIRECTORY ...",
        help: "makes directories",
        run: files::mkdir,
        complete: complete::paths,
    },
    Command {
        name: "rm",
        arguments: "FILE ...",
        help: "removes files",
        run: files::rm,
        complete: complete::paths,
    },
    Command {
        name: "rmdir",
        arguments: "DIRECTORY ...",
        help: "removes empty directories",
        run: files::rmdir,
        complete: complete::paths,
    },
    Command {
        name: "trace",
        arguments: "'PROGRAM'",
        help: "traces the kernel, such as trace 'kprobe:vfs_* { @ = count(); }', until Ctrl-C; \
               registers and symbols only, for types trace from the host",
        run: trace::trace,
        complete: complete::text,
    },
    Command {
        name: "insmod",
        arguments: "MODULE [PARAMETER=VALUE ...]",
        help: "loads a module",
        run: modules::insmod,
        complete: complete::new_module,
    },
    Command {
        name: "rmmod",
        arguments: "MODULE",
        help: "unloads a module",
        run: modules::rmmod,
        complete: complete::loaded_module,
    },
    Command {
        name: "lsmod",
        arguments: "",
        help: "lists modules, loaded or not, with their parameters",
        run: modules::lsmod,
        complete: complete::nothing,
    },
    Command {
        name: "ps",
        arguments: "",
        help: "lists tasks",
        run: tasks::ps,
        complete: complete::nothing,
    },
    Command {
        name: "run",
        arguments: "PROGRAM [ARGUMENT ...]",
        help: "runs a program of /bin, or one given by its path, and waits for its end",
        run: tasks::run,
        complete: complete::program,
    },
    Command {
        name: "dmesg",
        arguments: "",
        help: "shows the kernel's log",
        run: dmesg,
        complete: complete::nothing,
    },
    Command {
        name: "disas",
        arguments: "SYMBOL|ADDRESS",
        help: "shows a function's instructions: offset, whether it can be probed or why not, \
               what is armed there",
        run: disas::disas,
        complete: complete::function,
    },
    Command {
        name: "walkthrough",
        arguments: "FUNCTION",
        help: "calls a function under each form of return probe, and shows the interruptions and \
               jumps side by side",
        run: walkthrough::walkthrough,
        complete: complete::callable,
    },
    Command {
        name: "probeable",
        arguments: "",
        help: "judges every instruction of the kernel: how many can be probed, and why the others \
               cannot",
        run: probeable,
        complete: complete::nothing,
    },
    Command {
        name: "poweroff",
        arguments: "",
        help: "unloads the modules and ends the machine",
        run: poweroff,
        complete: complete::nothing,
    },
];

/// Reads commands and obeys them until one of them ends it. Call it once, because only one task may
/// read the serial line.
pub fn run() {
    terminal::init();
    let mut reader = LineReader::new();
    terminal::echo(b"Type help for the commands.\n");
    loop {
        let line = match reader.read(PROMPT, &mut Terminal, |place| {
            complete::candidates(COMMANDS, place)
        }) {
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
    let next = match &line.output {
        None => (command.run)(arguments, &mut Console),
        Some(redirect) => run_into_file(command, arguments, redirect),
    };
    next.map_err(|failure| {
        if failure.may_be_interruption() && Running::is_interrupted() {
            return Failure::Interrupted;
        }
        failure.of(command)
    })
}

/// Carries out a command whose output goes to a file.
fn run_into_file(
    command: &Command,
    arguments: &[&str],
    redirect: &Redirect,
) -> Result<Next, Failure> {
    let mut output = Output::open(redirect)?;
    let next = (command.run)(arguments, &mut output);
    // Its output before it failed is kept.
    let taken = output.finish();
    match next {
        Err(Failure::Output) => taken.and(Err(Failure::Output)),
        Err(failure) => Err(failure),
        Ok(next) => taken.map(|()| next),
    }
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
