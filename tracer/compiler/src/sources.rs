//! The kernel's event sources, `tracepoint:GROUP:EVENT`: names for functions of the kernel, and for
//! what is to be seen there. And words of its own, such as `ppid`.
//!
//! A source is a probe at the entry or the return of a function. Each of its fields is an
//! expression of the language, calculated at that place. So a source costs nothing until it is
//! used, and a reader of this file sees how to write the same with `kprobe:`. A word is such an
//! expression, too. It may name the words before it.
//!
//! An [`EventTable`] has the sources and the words of a kernel. The default is that of this tree's
//! kernel. Another one says it in lines, whose parts are divided by tabs:
//!
//! ```text
//!   syscalls:sys_enter_open ⇥ entry ⇥ sys_open ⇥ filename=str(arg0) ⇥ flags=(uint32)arg1
//!   curtask ⇥ word ⇥ (my_kernel::Task*)my_kernel::CPUS[cpu].current
//! ```

use alloc::{borrow::Cow, format, string::String, vec::Vec};
use core::fmt::{self, Write};

use trace_interface::symbols::glob;
use trace_language::{WORDS, parse_expression, tree::Expression};

/// A source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventSource {
    pub(crate) group: Cow<'static, str>,
    pub(crate) event: String,
    pub(crate) function: String,
    pub(crate) on_return: bool,
    fields: Vec<(Cow<'static, str>, String)>,
}

/// A name for an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Word {
    name: Cow<'static, str>,
    text: Cow<'static, str>,
}

/// The event sources and the words of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventTable {
    sources: Vec<EventSource>,
    words: Vec<Word>,
}

impl Default for EventTable {
    /// Those of this tree's kernel.
    fn default() -> Self {
        let word = |(name, text): (&'static str, &'static str)| Word {
            name: name.into(),
            text: text.into(),
        };
        Self {
            sources: all().collect(),
            words: KERNEL_WORDS.map(word).into(),
        }
    }
}

/// A line that is neither an event source nor a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoEvent {
    line: String,
}

impl fmt::Display for NoEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is no event source; its parts, divided by tabs, are GROUP:EVENT, entry or \
             return, FUNCTION, and for each field NAME=EXPRESSION; those of a word are its name, \
             which must be a new one, `word`, and an expression without variables and maps",
            self.line
        )
    }
}

impl core::error::Error for NoEvent {}

impl EventTable {
    /// The sources and words that a kernel has named, a line for each.
    ///
    /// # Errors
    /// [`NoEvent`] for the first line that is none.
    pub fn parse<'l>(lines: impl Iterator<Item = &'l str>) -> Result<Self, NoEvent> {
        let mut table = Self {
            sources: Vec::new(),
            words: Vec::new(),
        };
        for line in lines {
            match (EventSource::parse(line), table.parse_word(line)) {
                (Some(source), _) => table.sources.push(source),
                (None, Some(word)) => table.words.push(word),
                (None, None) => return Err(NoEvent { line: line.into() }),
            }
        }
        Ok(table)
    }

    fn parse_word(&self, line: &str) -> Option<Word> {
        let (name, text) = line.split_once("\tword\t")?;
        let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let is_new = !WORDS.contains(&name) && self.words.iter().all(|word| word.name != name);
        // Variables and maps would be those of the script.
        let is_expression = !text.contains(['$', '@', '{']) && parse_expression(text, &[]).is_ok();
        (is_name && is_new && is_expression).then(|| Word {
            name: String::from(name).into(),
            text: String::from(text).into(),
        })
    }

    /// The same lines.
    pub fn lines(&self) -> String {
        let mut lines = String::new();
        for source in &self.sources {
            // A text takes everything.
            let _ = writeln!(lines, "{source}");
        }
        for Word { name, text } in &self.words {
            let _ = writeln!(lines, "{name}\tword\t{text}");
        }
        lines
    }

    /// The word of that name among the first `visible` ones: which one it is, and what it means.
    pub(crate) fn word(&self, name: &str, visible: usize) -> Option<(usize, Expression)> {
        let mut words = self.words.iter().take(visible);
        let at = words.position(|word| word.name == name)?;
        Some((at, parse_expression(&self.words[at].text, &[]).ok()?))
    }

    /// The names of the words.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        self.words.iter().map(|word| &*word.name)
    }

    /// The sources that patterns match.
    pub(crate) fn matching(&self, group: &str, event: &str) -> Vec<EventSource> {
        let all = self.sources.iter();
        let found = all.filter(|source| glob(group, &source.group) && glob(event, &source.event));
        found.cloned().collect()
    }

    /// The names of all sources, `GROUP:EVENT`.
    pub(crate) fn names(&self) -> Vec<String> {
        self.sources.iter().map(EventSource::name).collect()
    }

    /// The names of the groups.
    pub(crate) fn groups(&self) -> Vec<&str> {
        let mut groups: Vec<&str> = Vec::new();
        for source in &self.sources {
            if !groups.contains(&&*source.group) {
                groups.push(&source.group);
            }
        }
        groups
    }

    /// The events that a pattern `GROUP:EVENT` matches, each with the names of its fields and the
    /// function where it is.
    pub fn events(&self, pattern: &str) -> Vec<(String, String)> {
        let shown = |source: &EventSource| {
            let fields: Vec<&str> = source.field_names().collect();
            let place = format!("{} of {}", source.moment(), source.function);
            match fields.is_empty() {
                true => place,
                false => format!("{}  {place}", fields.join(", ")),
            }
        };
        let all = self.sources.iter();
        all.filter(|source| glob(pattern, &source.name()))
            .map(|source| (source.name(), shown(source)))
            .collect()
    }
}

/// System calls: number, name, and the names of the arguments. A text is marked by `*`, an array of
/// addresses by `&`, a signed number by `-`; `4` in front means that only the low 32 bits count.
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
    (59, "execve", &["*filename", "&argv", "&envp"]),
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

/// The words. The running task stays the one of its CPU as long as a hit lasts.
const KERNEL_WORDS: [(&str, &str); 3] = [
    (
        "curtask",
        "(kernel::task::Task*)kernel::arch::x86_64::percpu::PERCPU[cpu].current",
    ),
    ("ppid", "(uint32)curtask.process.parent"),
    ("jiffies", "nsecs / kernel::arch::x86_64::apic::TICK_NS"),
];

/// How an argument of a system call is calculated.
fn argument(position: usize, marked: &'static str) -> (Cow<'static, str>, String) {
    let name = marked.trim_start_matches(['4', '-', '*', '&']);
    let marks = &marked[..marked.len() - name.len()];
    let text = match marks {
        "*" => format!("str(arg{position})"),
        "&" => format!("(uint64*)uptr(arg{position})"),
        "4" => format!("(uint32)arg{position}"),
        "4-" => format!("(int32)arg{position}"),
        "-" => format!("(int64)arg{position}"),
        _ => format!("arg{position}"),
    };
    (name.into(), text)
}

fn all() -> impl Iterator<Item = EventSource> {
    let syscalls = SYSCALLS.into_iter().flat_map(|(number, name, arguments)| {
        let source = |event, on_return, mut fields: Vec<(Cow<'static, str>, String)>| {
            fields.insert(0, ("__syscall_nr".into(), format!("{number}")));
            EventSource {
                group: "syscalls".into(),
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
        let result = alloc::vec![("ret".into(), "(int64)retval".into())];
        let exit = returns.then(|| source(format!("sys_exit_{name}"), true, result));
        [Some(enter), exit].into_iter().flatten()
    });
    let others = OTHERS
        .into_iter()
        .map(|(group, event, function, on_return, fields)| EventSource {
            group: group.into(),
            event: event.into(),
            function: function.into(),
            on_return,
            fields: fields
                .iter()
                .map(|(name, text)| ((*name).into(), (*text).into()))
                .collect(),
        });
    syscalls.chain(others)
}

impl fmt::Display for EventSource {
    /// Its line, as [`EventTable::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\t{}\t{}", self.name(), self.moment(), self.function)?;
        let mut fields = self.fields.iter();
        fields.try_for_each(|(name, text)| write!(f, "\t{name}={text}"))
    }
}

impl EventSource {
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.split('\t');
        let (group, event) = parts.next()?.split_once(':')?;
        let on_return = match parts.next()? {
            "entry" => false,
            "return" => true,
            _ => return None,
        };
        let function = parts.next()?;
        let fields = parts.map(|part| {
            let (name, text) = part.split_once('=')?;
            Some((String::from(name).into(), text.into()))
        });
        let fields = fields.collect::<Option<_>>()?;
        let is_whole = ![group, event, function].contains(&"");
        is_whole.then(|| Self {
            group: String::from(group).into(),
            event: event.into(),
            function: function.into(),
            on_return,
            fields,
        })
    }

    fn name(&self) -> String {
        format!("{}:{}", self.group, self.event)
    }

    fn moment(&self) -> &'static str {
        if self.on_return { "return" } else { "entry" }
    }

    pub(crate) fn field_names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(name, _)| &**name)
    }

    /// How a field is calculated.
    pub(crate) fn field(&self, name: &str) -> Option<Expression> {
        let (_, text) = self.fields.iter().find(|(known, _)| known == name)?;
        parse_expression(text, &[]).ok()
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
        let table = super::EventTable::default();
        assert_eq!(table.matching("sched", "sched_*").len(), 5);
        assert!(count > 60, "{count}");
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let table = super::EventTable::default();
        assert_eq!(super::EventTable::parse(table.lines().lines()), Ok(table));
        for wrong in [
            "",
            "a:b",
            "a:b\tentry",
            "a:b\tlate\tf",
            "ab\tentry\tf",
            "a:b\tentry\tf\tx",
        ] {
            let error = super::EventTable::parse([wrong].into_iter()).unwrap_err();
            assert!(alloc::string::ToString::to_string(&error).contains("divided by tabs"));
        }
    }
}
