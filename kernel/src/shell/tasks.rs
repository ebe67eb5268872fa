//! Commands about tasks.

use alloc::{format, string::String};
use core::fmt::Write;

use super::command::{Failure, Next, no_arguments};
use crate::{
    task::{self, TaskState, exec::run_program_until},
    terminal::Command,
};

/// Lists the tasks: number, number of the parent (0: a kernel thread), state, CPU, name.
pub fn ps(arguments: &[&str], out: &mut dyn Write) -> Result<Next, Failure> {
    no_arguments(arguments)?;
    writeln!(out, "  PID  PPID STATE    CPU NAME")?;
    for task in task::all() {
        let state = match task.state() {
            TaskState::Runnable => "runnable",
            TaskState::Sleeping => "sleeping",
            TaskState::Dead => "dead",
        };
        let (pid, parent) = (task.pid(), task.process.parent());
        writeln!(
            out,
            "{pid:5} {parent:5} {state} {:3} {}",
            task.last_cpu(),
            task.comm()
        )?;
    }
    Ok(Next::Command)
}

/// Runs a program.
pub fn run(arguments: &[&str], _out: &mut dyn Write) -> Result<Next, Failure> {
    let [program, arguments @ ..] = arguments else {
        return Err(Failure::Usage("it needs a program; ls /bin lists them"));
    };
    let path: String = match program.contains('/') {
        true => (*program).into(),
        false => format!("/bin/{program}"),
    };
    match run_program_until(&path, arguments, Command::is_interrupted) {
        Ok(status) if status.success() => Ok(Next::Command),
        Ok(status) => Err(Failure::Program { path, status }),
        Err(errno) => Err(Failure::NoProgram { path, errno }),
    }
}
