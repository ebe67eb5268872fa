//! The kernel's event sources, `tracepoint:GROUP:EVENT`: names for functions of the kernel, and for
//! what is to be seen there.
//!
//! A source is a probe at the entry or the return of a function. Each of its fields is an
//! expression of the language, calculated at that place. So a source costs nothing until it is
//! used, and a reader of this file sees how to write the same with `kprobe:`.

use alloc::{format, string::String, vec::Vec};

use trace_interface::symbols::glob;
use trace_language::{
    parse,
    tree::{Expression, ExpressionKind, StatementKind},
};

/// A source.
#[derive(Clone, Debug)]
pub(crate) struct EventSource {
    pub(crate) group: &'static str,
    pub(crate) event: String,
    pub(crate) function: String,
    pub(crate) on_return: bool,
    fields: Vec<(&'static str, String)>,
}

/// System calls: number, name, and the names of the arguments. A text is marked by `*`, a signed
/// number by `-`; `4` in front means that only the low 32 bits count.
#[rustfmt::skip]
const SYSCALLS: [(u64, &str, &[&str]); 25] = [
    (0, "read", &["4fd", "buf", "count"]),
    (1, "write", &["4fd", "buf", "count"]),
    (2, "open", &["*filename", "4flags", "4mode"]),
    (3, "close", &["4fd"]),
    (4, "stat", &["*filename", "statbuf"]),
    (5, "fstat", &["4fd", "statbuf"]),
    (8, "lseek", &["4fd", "-offset", "4whence"]),
    (12, "brk", &["brk"]),
    (24, "sched_yield", &[]),
    (35, "nanosleep", &["rqtp", "rmtp"]),
    (39, "getpid", &[]),
    (56, "clone", &["clone_flags", "newsp", "parent_tidptr", "child_tidptr"]),
    (57, "fork", &[]),
    (59, "execve", &["*filename", "argv", "envp"]),
    (60, "exit", &["4-error_code"]),
    (61, "wait4", &["4-upid", "stat_addr", "4options", "ru"]),
    (62, "kill", &["4-pid", "4sig"]),
    (79, "getcwd", &["buf", "size"]),
    (80, "chdir", &["*filename"]),
    (83, "mkdir", &["*pathname", "4mode"]),
    (84, "rmdir", &["*pathname"]),
    (87, "unlink", &["*pathname"]),
    (110, "getppid", &[]),
    (217, "getdents64", &["4fd", "dirent", "4count"]),
    (231, "exit_group", &["4-error_code"]),
];

/// The others: group and event, function, whether at its return, fields.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    bool,
    &'static [(&'static str, &'static str)],
);

#[rustfmt::skip]
const OTHERS: [Row; 12] = [
    ("raw_syscalls", "sys_enter", "do_syscall", false, &[("id", "args.regs.orig_ax")]),
    ("raw_syscalls", "sys_exit", "do_syscall", true,
        &[("id", "args.regs.orig_ax"), ("ret", "(int64)args.regs.ax")]),
    ("sched", "sched_switch", "context_switch", false,
        &[("prev_comm", "str(args.task.comm, 15)"), ("prev_pid", "(int32)args.task.pid"),
          ("prev_state", "(uint8)args.task.state"), ("next_comm", "str(args.next.comm, 15)"),
          ("next_pid", "(int32)args.next.pid")]),
    ("sched", "sched_wakeup", "ttwu_do_wakeup", false,
        &[("comm", "str(args.task.comm, 15)"), ("pid", "(int32)args.task.pid")]),
    ("sched", "sched_process_fork", "wake_up_new_task", false,
        &[("parent_comm", "comm"), ("parent_pid", "pid"),
          ("child_pid", "(int32)args.child.pid")]),
    ("sched", "sched_process_exec", "begin_new_exec", false,
        &[("filename", "str(arg0)"), ("old_comm", "comm"), ("pid", "pid")]),
    ("sched", "sched_process_exit", "do_exit", false,
        &[("comm", "comm"), ("pid", "pid"), ("code", "(int64)arg0")]),
    ("exceptions", "page_fault", "do_page_fault", false,
        &[("address", "arg2"), ("ip", "args.regs.ip"), ("error_code", "arg1")]),
    ("irq_vectors", "local_timer_entry", "timer_interrupt", false, &[]),
    ("irq_vectors", "local_timer_exit", "timer_interrupt", true, &[]),
    ("irq", "irq_handler_entry", "handle_irq", false, &[("irq", "(uint32)arg1")]),
    ("irq", "irq_handler_exit", "handle_irq", true, &[("irq", "(uint32)arg1")]),
];

/// How an argument of a system call is calculated.
fn argument(position: usize, marked: &'static str) -> (&'static str, String) {
    let name = marked.trim_start_matches(['4', '-', '*']);
    let marks = &marked[..marked.len() - name.len()];
    let text = match marks {
        "*" => format!("str(arg{position})"),
        "4" => format!("(uint32)arg{position}"),
        "4-" => format!("(int32)arg{position}"),
        "-" => format!("(int64)arg{position}"),
        _ => format!("arg{position}"),
    };
    (name, text)
}

fn all() -> impl Iterator<Item = EventSource> {
    let syscalls = SYSCALLS.into_iter().flat_map(|(number, name, arguments)| {
        let source = |event, on_return, mut fields: Vec<(&'static str, String)>| {
            fields.insert(0, ("__syscall_nr", format!("{number}")));
            EventSource {
                group: "syscalls",
                event,
                function: format!("sys_{name}"),
                on_return,
                fields,
            }
        };
        let arguments = arguments.iter().enumerate();
        let arguments = arguments.map(|(position, name)| argument(position, name));
        let enter = source(format!("sys_enter_{name}"), false, arguments.collect());
        // These do not return.
        let returns = !matches!(name, "exit" | "exit_group");
        let result = alloc::vec![("ret", "(int64)retval".into())];
        let exit = returns.then(|| source(format!("sys_exit_{name}"), true, result));
        [Some(enter), exit].into_iter().flatten()
    });
    let others = OTHERS
        .into_iter()
        .map(|(group, event, function, on_return, fields)| EventSource {
            group,
            event: event.into(),
            function: function.into(),
            on_return,
            fields: fields
                .iter()
                .map(|(name, text)| (*name, (*text).into()))
                .collect(),
        });
    syscalls.chain(others)
}

/// The sources that patterns match.
pub(crate) fn matching(group: &str, event: &str) -> Vec<EventSource> {
    all()
        .filter(|source| glob(group, source.group))
        .filter(|source| glob(event, &source.event))
        .collect()
}

/// The names of all sources, `GROUP:EVENT`.
pub(crate) fn names() -> Vec<String> {
    all()
        .map(|source| format!("{}:{}", source.group, source.event))
        .collect()
}

/// The events that a pattern `GROUP:EVENT` matches, each with the names of its fields and the
/// function where it is.
pub fn events(pattern: &str) -> Vec<(String, String)> {
    let name = |source: &EventSource| format!("{}:{}", source.group, source.event);
    let shown = |source: &EventSource| {
        let fields: Vec<&str> = source.field_names().collect();
        let moment = if source.on_return { "return" } else { "entry" };
        let place = format!("{moment} of {}", source.function);
        match fields.is_empty() {
            true => place,
            false => format!("{}  {place}", fields.join(", ")),
        }
    };
    all()
        .filter(|source| glob(pattern, &name(source)))
        .map(|source| (name(&source), shown(&source)))
        .collect()
}

impl EventSource {
    pub(crate) fn field_names(&self) -> impl Iterator<Item = &'static str> {
        self.fields.iter().map(|(name, _)| *name)
    }

    /// How a field is calculated.
    pub(crate) fn field(&self, name: &str) -> Option<Expression> {
        let (_, text) = self.fields.iter().find(|(known, _)| *known == name)?;
        let script = parse(&format!("kprobe:f {{ print({text}); }}")).ok()?;
        let statement = script
            .clauses
            .into_iter()
            .next()?
            .body
            .statements
            .into_iter()
            .next()?;
        let StatementKind::Expression(expression) = statement.kind else {
            return None;
        };
        match expression.kind {
            ExpressionKind::Call { arguments, .. } => arguments.into_iter().next(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_field_of_every_source_is_an_expression() {
        let mut count = 0;
        for source in super::all() {
            for name in source.field_names() {
                assert!(source.field(name).is_some(), "{name} of {}", source.event);
                count += 1;
            }
        }
        assert_eq!(super::matching("sched", "sched_*").len(), 5);
        assert!(count > 60, "{count}");
    }
}
