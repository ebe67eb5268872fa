//! The table of commands.

use core::fmt::Write;

use super::{disas, failure::Failure, files, modules, tasks, walkthrough};
use crate::{log, probes::survey::Survey};

/// A command.
pub struct Command {
    /// Its name.
    pub name: &'static str,
    /// What may follow it.
    pub arguments: &'static str,
    /// What it does, in a few words.
    pub help: &'static str,
    /// Does it, with what follows its name; writes what it has to say.
    pub run: fn(&[&str], &mut dyn Write) -> Result<Next, Failure>,
}

/// What comes after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next command.
    Command,
    /// The end of the machine.
    PowerOff,
}

/// All commands, as `help` shows them.
pub static COMMANDS: &[Command] = &[
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
        help: "shows a function's instructions: offset, whether it can be probed or why not, what is armed there",
        run: disas::disas,
    },
    Command {
        name: "walkthrough",
        arguments: "FUNCTION",
        help: "calls a function under each form of return probe, and shows the interruptions and jumps side by side",
        run: walkthrough::walkthrough,
    },
    Command {
        name: "probeable",
        arguments: "",
        help: "judges every instruction of the kernel: how many can be probed, and why the others cannot",
        run: probeable,
    },
    Command {
        name: "poweroff",
        arguments: "",
        help: "unloads the modules and ends the machine",
        run: poweroff,
    },
];

/// Refuses arguments.
pub fn no_arguments(arguments: &[&str]) -> Result<(), Failure> {
    match arguments {
        [] => Ok(()),
        _ => Err(Failure::Usage("it takes no arguments")),
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
