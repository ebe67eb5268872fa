//! Events of the kernel's own: system calls, the scheduler, page faults, interrupts, the timer.
//!
//! Each is a probe on a fixed place, defined as a line of `kprobe_events` would define it. So it
//! costs nothing while it is off, has a filter, triggers and histograms, and its fields are read by
//! the same programs. Its records lack the address of the place, as on Linux.
//!
//! # Contexts
//! Task context.

use alloc::{format, string::String, vec::Vec};
use core::mem::offset_of;

use abi::nr;
use tracefs::definition::{Definition, EventKind};

use super::names::KernelSymbols;
use crate::{arch::PtRegs, task};

/// A system call: its number, and the names and types of its arguments.
struct Syscall {
    number: u64,
    name: &'static str,
    arguments: &'static [(&'static str, &'static str)],
}

const fn syscall(
    number: u64,
    name: &'static str,
    arguments: &'static [(&'static str, &'static str)],
) -> Syscall {
    Syscall {
        number,
        name,
        arguments,
    }
}

#[rustfmt::skip]
static SYSCALLS: &[Syscall] = &[
    syscall(nr::READ, "read", &[("fd", "u32"), ("buf", "x64"), ("count", "u64")]),
    syscall(nr::WRITE, "write", &[("fd", "u32"), ("buf", "x64"), ("count", "u64")]),
    syscall(nr::OPEN, "open", &[("filename", "ustring"), ("flags", "x32"), ("mode", "x32")]),
    syscall(nr::CLOSE, "close", &[("fd", "u32")]),
    syscall(nr::STAT, "stat", &[("filename", "ustring"), ("statbuf", "x64")]),
    syscall(nr::FSTAT, "fstat", &[("fd", "u32"), ("statbuf", "x64")]),
    syscall(nr::LSEEK, "lseek", &[("fd", "u32"), ("offset", "s64"), ("whence", "u32")]),
    syscall(nr::BRK, "brk", &[("brk", "x64")]),
    syscall(nr::SCHED_YIELD, "sched_yield", &[]),
    syscall(nr::NANOSLEEP, "nanosleep", &[("rqtp", "x64"), ("rmtp", "x64")]),
    syscall(nr::GETPID, "getpid", &[]),
    syscall(nr::CLONE, "clone", &[("clone_flags", "x64"), ("newsp", "x64"),
                                  ("parent_tidptr", "x64"), ("child_tidptr", "x64")]),
    syscall(nr::FORK, "fork", &[]),
    syscall(nr::EXECVE, "execve", &[("filename", "ustring"), ("argv", "x64"), ("envp", "x64")]),
    syscall(nr::EXIT, "exit", &[("error_code", "s32")]),
    syscall(nr::WAIT4, "wait4", &[("upid", "s32"), ("stat_addr", "x64"), ("options", "x32"),
                                  ("ru", "x64")]),
    syscall(nr::KILL, "kill", &[("pid", "s32"), ("sig", "u32")]),
    syscall(nr::GETCWD, "getcwd", &[("buf", "x64"), ("size", "u64")]),
    syscall(nr::CHDIR, "chdir", &[("filename", "ustring")]),
    syscall(nr::MKDIR, "mkdir", &[("pathname", "ustring"), ("mode", "x32")]),
    syscall(nr::RMDIR, "rmdir", &[("pathname", "ustring")]),
    syscall(nr::UNLINK, "unlink", &[("pathname", "ustring")]),
    syscall(nr::GETPPID, "getppid", &[]),
    syscall(nr::GETDENTS64, "getdents64", &[("fd", "u32"), ("dirent", "x64"), ("count", "u32")]),
    syscall(nr::EXIT_GROUP, "exit_group", &[("error_code", "s32")]),
];

/// The name of a system call.
pub fn syscall_name(number: u64) -> Option<&'static str> {
    let call = SYSCALLS.iter().find(|call| call.number == number)?;
    Some(call.name)
}

/// Where an event of the kernel's own is: its name with its group, for example
/// `sched:sched_switch`. Whether it is at a function's return, and the address.
pub fn place(name: &str) -> Option<(bool, u64)> {
    let (group, event) = name.split_once(':')?;
    let line = lines().into_iter().find(|line| {
        let of = line.get(2..).and_then(|rest| rest.split(' ').next());
        of.and_then(|of| of.split_once('/')) == Some((group, event))
    })?;
    let definition = Definition::of_kernel(&line, &KernelSymbols).ok()?;
    let address = definition.place.address(&KernelSymbols).ok().flatten()?;
    Some((definition.kind == EventKind::Return, address))
}

/// How an argument is fetched: a text from the user's memory, else the register's value.
fn fetch(position: usize, kind: &str) -> String {
    let register = ["di", "si", "dx", "cx", "r8", "r9"][position];
    match kind {
        "ustring" => format!("+0(%{register}):ustring"),
        kind => format!("%{register}:{kind}"),
    }
}

/// The lines that define the events.
fn lines() -> Vec<String> {
    let mut lines = Vec::new();
    for call in SYSCALLS {
        let Syscall { name, number, .. } = call;
        let mut enter =
            format!("p:syscalls/sys_enter_{name} sys_{name} __syscall_nr=\\{number}:s32");
        for (position, (argument, kind)) in call.arguments.iter().enumerate() {
            enter += &format!(" {argument}={}", fetch(position, kind));
        }
        lines.push(enter);
        // These do not return.
        if !matches!(*number, nr::EXIT | nr::EXIT_GROUP) {
            lines.push(format!(
                "r:syscalls/sys_exit_{name} sys_{name} __syscall_nr=\\{number}:s32 ret=$retval:s64"
            ));
        }
    }
    let (nr, ax) = (offset_of!(PtRegs, orig_ax), offset_of!(PtRegs, ax));
    let ip = offset_of!(PtRegs, ip);
    let (comm, pid, state) = (task::COMM, task::PID, task::STATE);
    lines.extend([
        format!("p:raw_syscalls/sys_enter do_syscall id=+{nr}(%di):s64"),
        format!("r:raw_syscalls/sys_exit do_syscall id=+{nr}($arg1):s64 ret=+{ax}($arg1):s64"),
        format!(
            "p:sched/sched_switch context_switch prev_comm=+{comm}(%di):string \
             prev_pid=+{pid}(%di):s32 prev_state=+{state}(%di):u8 \
             next_comm=+{comm}(%si):string next_pid=+{pid}(%si):s32"
        ),
        format!("p:sched/sched_wakeup ttwu_do_wakeup comm=+{comm}(%di):string pid=+{pid}(%di):s32"),
        format!(
            "p:sched/sched_process_fork wake_up_new_task parent_comm=$comm \
             child_pid=+{pid}(%di):s32"
        ),
        "p:sched/sched_process_exec begin_new_exec filename=+0(%di):string old_comm=$comm".into(),
        "p:sched/sched_process_exit do_exit comm=$comm code=%di:s64".into(),
        format!(
            "p:exceptions/page_fault do_page_fault address=%dx:x64 ip=+{ip}(%di):x64 \
             error_code=%si:x64"
        ),
        "p:irq_vectors/local_timer_entry timer_interrupt".into(),
        "r:irq_vectors/local_timer_exit timer_interrupt".into(),
        "p:irq/irq_handler_entry handle_irq irq=%si:u32".into(),
        "r:irq/irq_handler_exit handle_irq irq=$arg2:u32".into(),
    ]);
    lines
}

/// The definitions of the events. One whose place this kernel does not have is left out, and told
/// to the log.
pub fn definitions() -> Vec<Definition> {
    let mut definitions = Vec::new();
    for line in lines() {
        match Definition::of_kernel(&line, &KernelSymbols) {
            Ok(definition) => definitions.push(definition),
            Err(refusal) => crate::pr_warn!("trace: {line}: {refusal}"),
        }
    }
    definitions
}
