//! The lines of `--graph`: calls of a task, deeper by the calls around them.
//!
//! ```text
//! CPU  TASK                    TIME     CALLS
//!   0) workload-3                    |  sys_mkdir(path=0x4001c0, mode=493) {
//!   0) workload-3          10.396 us |    strndup_from_user(…) = Ok("/tmp")
//!   0) workload-3          45.118 us |  } = Err(EEXIST)
//! ```
//!
//! An entry waits for the next record of its task, because a call without shown calls is one line.
//! Tasks take turns in the output, so each line names its task. With a bound of time a tree waits
//! for its end. As JSON, entries and returns are objects. Because records may be lost between an
//! entry and a return, both say when their call began, and only then they are of one call.

use std::{borrow::Cow, collections::HashMap, fmt::Write, time::Duration};

use debug_info::{DebugInfo, short_path};
use serde_json::{Map, Value as Json, json};
use trace_answers::Symbolize;

use crate::{
    calls::{CallOfTree, OTHERS, Told, ToldEntry, ToldReturn, UNAVAILABLE},
    graph::GraphOptions,
    json,
};

/// How the text of values gets to the output.
pub trait Style {
    /// A text of the kernel, as the output may get it.
    fn text<'t>(&self, text: &'t str) -> Cow<'t, str>;
    /// Whether the output shows colours.
    fn has_colours(&self) -> bool;
}

/// The functions of the kernel, by address.
pub trait Functions: Symbolize {
    /// The path of the one that begins there.
    fn path(&self, function: u64) -> Option<String>;
    /// The one that has the instruction at an address: where it begins; and the paths of the
    /// functions that the instruction is of, the innermost first, each with whether it is a copy
    /// that was inlined.
    fn around(&self, address: u64) -> (Option<u64>, Vec<(String, bool)>);
}

impl Functions for DebugInfo {
    fn path(&self, function: u64) -> Option<String> {
        Some(self.function_at(function)?.path)
    }

    fn around(&self, address: u64) -> (Option<u64>, Vec<(String, bool)>) {
        let own = self.function_at(address);
        let frames = self.symbolise(address).into_iter();
        (
            own.map(|function| function.address),
            frames
                .map(|frame| (frame.function, frame.offset.is_none()))
                .collect(),
        )
    }
}

/// What is known of the calls that are open. Tasks by number; idle tasks by CPU.
pub struct Tree {
    over: Option<Duration>,
    is_whole: bool,
    is_json: bool,
    tasks: HashMap<(u32, u32), Task>,
}

#[derive(Default)]
struct Task {
    name: String,
    /// The calls that are open, by depth.
    open: Vec<Open>,
    waiting: Option<Waiting>,
    /// The lines of a tree that waits for its end.
    held: String,
}

/// A call that has begun. Zeros: its entry was lost.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Open {
    function: u64,
    call: CallOfTree,
}

impl Task {
    /// A call begins. Returns the function of the call around it, 0 if that is not known.
    fn begin(&mut self, entry: &ToldEntry) -> u64 {
        let depth = entry.call.depth as usize;
        // The entries of those in between were lost.
        self.open.resize(depth, Open::default());
        let around = self.open.last().map_or(0, |around| around.function);
        self.open.push(Open {
            function: entry.function,
            call: entry.call,
        });
        around
    }

    /// A call has ended, and so has all that is in it.
    fn end(&mut self, end: &ToldReturn) {
        let depth = end.call.unwrap_or_default().depth;
        self.open.truncate(depth as usize);
    }

    /// Whether the entry of a call that ends is there, and nothing around it has ended.
    fn has_open(&self, end: &ToldReturn) -> bool {
        let call = end.call.unwrap_or_default();
        let function = end.function;
        self.open.get(call.depth as usize) == Some(&Open { function, call })
    }
}

/// An entry whose line is not written yet.
struct Waiting {
    cpu: u32,
    /// The function with its arguments.
    call: String,
    /// Through which functions that are not shown it is called.
    through: String,
}

/// Where and when something was told.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub cpu: u32,
    pub tid: u32,
}

/// How many letters of a value are shown.
const MOST_VALUE: usize = 80;

/// The first line.
pub const HEAD: &str = "CPU  TASK                    TIME     CALLS\n";

impl Tree {
    /// Without calls yet.
    pub fn new(options: &GraphOptions, is_json: bool) -> Self {
        Self {
            over: options.over,
            is_whole: options.whole,
            is_json,
            tasks: HashMap::new(),
        }
    }

    /// The lines that a record adds.
    pub fn told(
        &mut self,
        told: &Told,
        origin: Origin,
        symbols: &dyn Functions,
        style: &dyn Style,
    ) -> String {
        let own_key = match origin.tid {
            0 => (0, origin.cpu),
            tid => (tid, 0),
        };
        let mut task = self.tasks.remove(&own_key).unwrap_or_default();
        let mut out = String::new();
        // The tree before has no end, so it has no time.
        let begins_or_has_lost = match told {
            Told::Entry(entry) => entry.call.depth == 0,
            Told::Return(end) => is_first(end) && !task.has_open(end),
        };
        if self.over.is_some() && begins_or_has_lost {
            task.held.clear();
            task.waiting = None;
        }
        match told {
            _ if self.is_json => {
                out = object(told, origin, symbols);
                match told {
                    Told::Entry(entry) => _ = task.begin(entry),
                    Told::Return(end) => task.end(end),
                }
            }
            Told::Entry(entry) => self.entry(&mut task, entry, origin, symbols, style, &mut out),
            Told::Return(end) => self.end(&mut task, end, origin, symbols, style, &mut out),
        }
        if self.over.is_some() {
            task.held.push_str(&std::mem::take(&mut out));
            if let Told::Return(end) = told
                && is_first(end)
            {
                let held = std::mem::take(&mut task.held);
                let is_long = self.over.is_some_and(|over| end.time > over);
                out = if is_long { held } else { String::new() };
            }
        }
        self.tasks.insert(own_key, task);
        out
    }

    /// The lines of entries that waited for more when the trace ended.
    pub fn last(&mut self, style: &dyn Style) -> String {
        let mut out = String::new();
        let mut tasks: Vec<_> = self.tasks.drain().collect();
        tasks.sort_unstable_by_key(|(key, _)| *key);
        for ((tid, _), mut task) in tasks {
            if self.over.is_none() {
                settle(&mut task, tid, style, &mut out);
            }
        }
        out
    }

    fn entry(
        &self,
        task: &mut Task,
        entry: &ToldEntry,
        origin: Origin,
        symbols: &dyn Functions,
        style: &dyn Style,
        out: &mut String,
    ) {
        settle(task, origin.tid, style, out);
        task.name.clone_from(&entry.comm);
        let around = task.begin(entry);
        let mut call = self.name(entry.function, symbols);
        let arguments = entry.arguments.iter();
        let arguments: Vec<String> = arguments
            .map(|(name, value)| match &*value.shown(symbols).to_string() {
                "" if name == OTHERS => OTHERS.into(),
                UNAVAILABLE => format!("{name}=?"),
                value => format!("{name}={}", self.value(value)),
            })
            .collect();
        _ = write!(call, "({})", arguments.join(", "));
        task.waiting = Some(Waiting {
            cpu: origin.cpu,
            call,
            through: self.through(entry.caller, around, symbols),
        });
    }

    fn end(
        &self,
        task: &mut Task,
        end: &ToldReturn,
        origin: Origin,
        symbols: &dyn Functions,
        style: &dyn Style,
        out: &mut String,
    ) {
        let depth = end.call.unwrap_or_default().depth as usize;
        let is_open = task.has_open(end);
        let is_leaf = is_open && task.open.len() == depth + 1;
        let result = match &end.result {
            None => String::new(),
            Some(result) => {
                let result = result.shown(symbols).to_string();
                let result = self.value(&result);
                let result = style.text(&result);
                let is_error = result.starts_with("Err(") && style.has_colours();
                match is_error {
                    true => format!(" = \x1b[31m{result}\x1b[0m"),
                    false => format!(" = {result}"),
                }
            }
        };
        let line = |text: &str| line(origin, &task.name, Some(end.time), depth, text);
        match task.waiting.take_if(|_| is_leaf) {
            Some(waiting) => {
                let call = style.text(&waiting.call);
                let through = dimmed(&waiting.through, style);
                *out += &line(&format!("{call}{result}{through}"));
            }
            None => {
                let name = match is_open {
                    true => String::new(),
                    // The line of its entry is not there.
                    false => format!(" /* {} */", self.name(end.function, symbols)),
                };
                let text = format!("}}{result}{name}");
                let text = line(&text);
                settle(task, origin.tid, style, out);
                *out += &text;
            }
        }
        task.end(end);
    }

    fn name(&self, function: u64, symbols: &dyn Functions) -> String {
        match symbols.path(function) {
            None => format!("{function:#x}"),
            Some(path) => self.path(&path),
        }
    }

    /// A value, cut off if it is long.
    fn value<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match text.char_indices().nth(MOST_VALUE) {
            Some((end, _)) if !self.is_whole => format!("{}…", &text[..end]).into(),
            _ => text.into(),
        }
    }

    fn path(&self, path: &str) -> String {
        match self.is_whole {
            true => path.into(),
            false => short_path(path),
        }
    }

    /// The functions between a call and the shown one around it, the innermost first: copies that
    /// were inlined, and a function that is not shown. Those of the standard library say little.
    fn through(&self, caller: u64, around: u64, symbols: &dyn Functions) -> String {
        let mut text = String::new();
        if around == 0 {
            return text;
        }
        let (own, frames) = symbols.around(caller.wrapping_sub(1));
        for (path, is_inlined) in &frames {
            if *is_inlined && !self.is_whole && is_of_library(path) {
                continue;
            }
            // The address is one that a return probe has put there.
            if path.starts_with("kretprobe_trampoline") {
                text += "  <- tail call";
            } else if *is_inlined {
                _ = write!(text, "  <- {} (inlined)", self.path(path));
            } else if own != Some(around) {
                _ = write!(text, "  <- {}", self.path(path));
            }
        }
        text
    }
}

/// Whether the first call of a tree ends.
fn is_first(end: &ToldReturn) -> bool {
    end.call.is_some_and(|call| call.depth == 0)
}

/// The JSON object of an `entry` or a `return`. Times are in nanoseconds. Arguments that are not
/// recorded are left out.
fn object(told: &Told, origin: Origin, symbols: &dyn Functions) -> String {
    let name = |function| match symbols.path(function) {
        Some(path) => path,
        None => format!("{function:#x}"),
    };
    let Origin { cpu, tid } = origin;
    match told {
        Told::Entry(entry) => {
            let arguments = entry.arguments.iter();
            let arguments: Map<String, Json> = arguments
                .filter(|(name, _)| name != OTHERS)
                .map(|(name, of)| (name.clone(), json::value(of, symbols)))
                .collect();
            let data = json!({
                "cpu": cpu,
                "tid": tid,
                "comm": entry.comm,
                "depth": entry.call.depth,
                "begin": entry.call.begin,
                "function": name(entry.function),
                "arguments": arguments,
            });
            json::line("entry", data)
        }
        Told::Return(end) => {
            let nanoseconds = u64::try_from(end.time.as_nanos()).unwrap_or(u64::MAX);
            let mut data = json!({
                "cpu": cpu,
                "tid": tid,
                "depth": end.call.map(|call| call.depth),
                "begin": end.call.map(|call| call.begin),
                "function": name(end.function),
                "nanoseconds": nanoseconds,
            });
            if let Some(result) = &end.result {
                data["result"] = json::value(result, symbols);
            }
            json::line("return", data)
        }
    }
}

/// Writes the line of an entry that waits: calls follow in it, or it does not return.
fn settle(task: &mut Task, tid: u32, style: &dyn Style, out: &mut String) {
    let Some(waiting) = task.waiting.take() else {
        return;
    };
    let depth = task.open.len().saturating_sub(1);
    let origin = Origin {
        cpu: waiting.cpu,
        tid,
    };
    let call = style.text(&waiting.call);
    let through = dimmed(&waiting.through, style);
    let text = format!("{call} {{{through}");
    *out += &line(origin, &task.name, None, depth, &text);
}

/// Whether a path, or the type of a method, is one of the standard library.
fn is_of_library(path: &str) -> bool {
    let path = path.trim_start_matches('<');
    [
        "core::",
        "alloc::",
        "std::",
        "hashbrown::",
        "compiler_builtins::",
    ]
    .iter()
    .any(|library| path.starts_with(library))
}

fn dimmed(text: &str, style: &dyn Style) -> String {
    match style.has_colours() && !text.is_empty() {
        true => format!("\x1b[2m{text}\x1b[0m"),
        false => text.into(),
    }
}

fn line(origin: Origin, name: &str, time: Option<Duration>, depth: usize, text: &str) -> String {
    let task = format!("{name}-{}", origin.tid);
    let time = time.map_or_else(String::new, |time| {
        let nanoseconds = time.as_nanos();
        format!("{}.{:03} us", nanoseconds / 1000, nanoseconds % 1000)
    });
    let indent = 2 * depth;
    let cpu = origin.cpu;
    format!("{cpu:>3}) {task:<16} {time:>14} |  {:indent$}{text}\n", "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_answers::Value;
    use trace_interface::symbols::Symbol;

    struct Plain;

    impl Style for Plain {
        fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
            text.into()
        }

        fn has_colours(&self) -> bool {
            false
        }
    }

    struct Coloured;

    impl Style for Coloured {
        fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
            text.replace('\x07', "\\x07").into()
        }

        fn has_colours(&self) -> bool {
            true
        }
    }

    /// A function begins at each multiple of 0x100. The byte at 0x50 in it is of two copies, one of
    /// them of the library.
    struct Kernel;

    impl Symbolize for Kernel {
        fn symbol(&self, _address: u64) -> Option<Symbol> {
            None
        }
    }

    impl Functions for Kernel {
        fn path(&self, function: u64) -> Option<String> {
            (function != 0x900).then(|| format!("kernel::fs::File::f{:x}", function / 0x100))
        }

        fn around(&self, address: u64) -> (Option<u64>, Vec<(String, bool)>) {
            let own = address & !0xff;
            let mut frames = Vec::new();
            if address & 0xff == 0x50 {
                frames.push(("core::mem::copy".into(), true));
                frames.push(("kernel::fs::inner".into(), true));
            }
            frames.push(match own {
                0xf00 => ("kretprobe_trampoline_of_slots".into(), false),
                _ => (self.path(own).unwrap_or_default(), false),
            });
            (Some(own), frames)
        }
    }

    fn text(text: &str) -> Value {
        Value::Text {
            text: text.into(),
            cut: false,
        }
    }

    fn entry(function: u64, depth: u64, caller: u64, arguments: &[(&str, &str)]) -> Told {
        let arguments = arguments.iter();
        Told::Entry(ToldEntry {
            function,
            call: CallOfTree { depth, begin: 1 },
            caller,
            comm: "cat".into(),
            arguments: arguments
                .map(|(name, value)| ((*name).into(), text(value)))
                .collect(),
        })
    }

    fn end(function: u64, depth: u64, nanoseconds: u64, result: &str) -> Told {
        Told::Return(ToldReturn {
            function,
            begin: 1,
            time: Duration::from_nanos(nanoseconds),
            result: (!result.is_empty()).then(|| text(result)),
            call: Some(CallOfTree { depth, begin: 1 }),
            arguments: Vec::new(),
        })
    }

    /// What is shown of task 7 on CPU 1.
    fn shown(options: &GraphOptions, is_json: bool, style: &dyn Style, all: &[Told]) -> String {
        let mut tree = Tree::new(options, is_json);
        let origin = Origin { cpu: 1, tid: 7 };
        let mut text = String::new();
        for told in all {
            text += &tree.told(told, origin, &Kernel, style);
        }
        text + &tree.last(style)
    }

    /// Its lines, without what stands before the time.
    fn lines(options: &GraphOptions, style: &dyn Style, all: &[Told]) -> String {
        let text = shown(options, false, style, all);
        let lines = text.lines().map(|line| {
            let line = line.strip_prefix("  1) cat-7            ").expect(line);
            format!("{}\n", line.trim_start())
        });
        lines.collect()
    }

    #[test]
    fn a_call_without_calls_is_one_line_and_others_have_braces() {
        let all = [
            entry(0x100, 0, 0, &[("path", "/tmp")]),
            entry(0x200, 1, 0x110, &[]),
            end(0x200, 1, 1_234, "Ok(())"),
            entry(0x300, 1, 0x120, &[("…", ""), ("a", "<unavailable>")]),
            entry(0x400, 2, 0x310, &[]),
            end(0x400, 2, 5, ""),
            end(0x300, 1, 2_000_000, "3"),
            end(0x100, 0, 3_000_000_000, "Err(EEXIST)"),
        ];
        assert_eq!(
            lines(&GraphOptions::default(), &Plain, &all),
            "|  File::f1(path=/tmp) {\n\
             1.234 us |    File::f2() = Ok(())\n\
             |    File::f3(…, a=?) {\n\
             0.005 us |      File::f4()\n\
             2000.000 us |    } = 3\n\
             3000000.000 us |  } = Err(EEXIST)\n"
        );
    }

    #[test]
    fn functions_between_a_call_and_the_one_around_it_are_named() {
        let through = |caller, options: &GraphOptions| {
            let all = [
                entry(0x100, 0, 0, &[]),
                entry(0x200, 1, caller, &[]),
                end(0x200, 1, 0, ""),
            ];
            let text = lines(options, &Plain, &all);
            let line = text.lines().last().unwrap();
            line.split_once("f2()").unwrap().1.to_owned()
        };
        let options = GraphOptions::default();
        assert_eq!(through(0x101, &options), "");
        assert_eq!(through(0x151, &options), "  <- inner (inlined)");
        assert_eq!(
            through(0x351, &options),
            "  <- inner (inlined)  <- File::f3"
        );
        assert_eq!(through(0xf01, &options), "  <- tail call");
        let whole = GraphOptions {
            whole: true,
            ..GraphOptions::default()
        };
        assert_eq!(
            through(0x151, &whole),
            "  <- core::mem::copy (inlined)  <- kernel::fs::inner (inlined)"
        );
    }

    /// Lost records make no line of another depth, and each line of an end that has no beginning
    /// says whose it is.
    #[test]
    fn what_is_lost_moves_nothing() {
        let all = [
            end(0x200, 1, 1, ""),
            entry(0x400, 2, 0x110, &[]),
            end(0x900, 1, 1, "2"),
            entry(0x100, 0, 0, &[]),
        ];
        assert_eq!(
            lines(&GraphOptions::default(), &Plain, &all[1..]),
            "|      File::f4() {\n\
             0.001 us |    } = 2 /* 0x900 */\n\
             |  File::f1() {\n"
        );
        let mut tree = Tree::new(&GraphOptions::default(), false);
        let origin = Origin { cpu: 0, tid: 0 };
        let text = tree.told(&all[0], origin, &Kernel, &Plain);
        assert!(text.ends_with("us |    } /* File::f2 */\n"), "{text}");
    }

    /// The same function at the same depth, but another call: what is told of the two is not mixed.
    #[test]
    fn a_return_ends_only_the_call_that_it_is_of() {
        let mut all = [
            entry(0x100, 0, 0, &[("a", "1")]),
            // Its return is lost, and the entry of the next one.
            end(0x100, 0, 11, "2"),
        ];
        let Told::Return(ToldReturn {
            call: Some(call), ..
        }) = &mut all[1]
        else {
            panic!("it is a return");
        };
        call.begin = 2;
        let last = "0.011 us |  } = 2 /* File::f1 */\n";
        let text = lines(&GraphOptions::default(), &Plain, &all);
        assert_eq!(text, format!("|  File::f1(a=1) {{\n{last}"));
        // The time of the first one is not known.
        let options = GraphOptions {
            over: Some(Duration::from_nanos(10)),
            ..GraphOptions::default()
        };
        let text = shown(&options, false, &Plain, &all);
        assert!(text.ends_with(last) && text.lines().count() == 1, "{text}");
    }

    #[test]
    fn a_bound_of_time_shows_whole_trees_at_their_end() {
        let call = |time| {
            [
                entry(0x100, 0, 0, &[]),
                entry(0x200, 1, 0x110, &[]),
                end(0x200, 1, time, ""),
                end(0x100, 0, time, ""),
            ]
        };
        let options = GraphOptions {
            over: Some(Duration::from_nanos(10)),
            ..GraphOptions::default()
        };
        let mut all: Vec<Told> = [10, 11].into_iter().flat_map(call).collect();
        // Two that have not ended.
        all.insert(4, entry(0x100, 0, 0, &[]));
        all.extend(call(99).into_iter().take(3));
        assert_eq!(
            lines(&options, &Plain, &all),
            "|  File::f1() {\n0.011 us |    File::f2()\n0.011 us |  }\n"
        );
    }

    #[test]
    fn values_are_cut_off_unless_they_are_to_be_whole() {
        let long = "é".repeat(100);
        let all = || [entry(0x100, 0, 0, &[("a", &long)]), end(0x100, 0, 0, &long)];
        let text = lines(&GraphOptions::default(), &Plain, &all());
        let cut = format!("{}…", "é".repeat(80));
        assert_eq!(text, format!("0.000 us |  File::f1(a={cut}) = {cut}\n"));
        let whole = GraphOptions {
            whole: true,
            ..GraphOptions::default()
        };
        let text = lines(&whole, &Plain, &all());
        let name = "kernel::fs::File::f1";
        assert_eq!(text, format!("0.000 us |  {name}(a={long}) = {long}\n"));
    }

    #[test]
    fn copies_of_the_library_are_told_by_their_paths() {
        for path in [
            "core::f",
            "alloc::f",
            "std::f",
            "hashbrown::f",
            "<core::A as B>::f",
        ] {
            assert!(is_of_library(path), "{path}");
        }
        for path in ["kernel::core::f", "corer::f", "<kernel::A as core::B>::f"] {
            assert!(!is_of_library(path), "{path}");
        }
    }

    /// A task may go on on another CPU. Each CPU has an idle task of its own, and all of these have
    /// one number.
    #[test]
    fn a_line_has_the_cpu_of_its_record_and_an_idle_task_is_that_of_its_cpu() {
        let mut tree = Tree::new(&GraphOptions::default(), false);
        let mut told = |told, cpu, tid| tree.told(&told, Origin { cpu, tid }, &Kernel, &Plain);
        let mut text = told(entry(0x100, 0, 0, &[]), 1, 7);
        text += &told(entry(0x200, 1, 0x110, &[]), 2, 7);
        text += &told(end(0x200, 1, 5, ""), 3, 7);
        for cpu in [0, 1] {
            text += &told(entry(0x300, 0, 0, &[]), cpu, 0);
        }
        for cpu in [0, 1] {
            text += &told(end(0x300, 0, 6, ""), cpu, 0);
        }
        text += &tree.last(&Plain);
        let squeezed = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            squeezed,
            "1) cat-7 | File::f1() { 3) cat-7 0.005 us | File::f2() \
             0) cat-0 0.006 us | File::f3() 1) cat-0 0.006 us | File::f3()"
        );
    }

    /// Each entry and each return is an object, with values of JSON's own kinds. A bound of time
    /// counts for the whole tree, and one without an end is not shown.
    #[test]
    fn calls_are_objects_as_json() {
        let mut all = [
            entry(0x100, 0, 0, &[("path", "/tmp"), ("…", "")]),
            entry(0x900, 1, 0x110, &[]),
            end(0x900, 1, 1_234, ""),
            end(0x100, 0, 2_000, ""),
        ];
        let Told::Return(last) = &mut all[3] else {
            panic!("it is a return");
        };
        last.result = Some(Value::Signed(-17));
        let lines = "\
            {\"data\":{\"arguments\":{\"path\":\"/tmp\"},\"begin\":1,\"comm\":\"cat\",\
            \"cpu\":1,\"depth\":0,\"function\":\"kernel::fs::File::f1\",\"tid\":7},\
            \"type\":\"entry\"}\n\
            {\"data\":{\"arguments\":{},\"begin\":1,\"comm\":\"cat\",\"cpu\":1,\
            \"depth\":1,\"function\":\"0x900\",\"tid\":7},\"type\":\"entry\"}\n\
            {\"data\":{\"begin\":1,\"cpu\":1,\"depth\":1,\"function\":\"0x900\",\
            \"nanoseconds\":1234,\"tid\":7},\"type\":\"return\"}\n\
            {\"data\":{\"begin\":1,\"cpu\":1,\"depth\":0,\"function\":\"kernel::fs::File::f1\",\
            \"nanoseconds\":2000,\"result\":-17,\"tid\":7},\"type\":\"return\"}\n";
        let json = |nanoseconds: Option<u64>, all: &[Told]| {
            let options = GraphOptions {
                over: nanoseconds.map(Duration::from_nanos),
                ..GraphOptions::default()
            };
            shown(&options, true, &Plain, all)
        };
        assert_eq!(json(None, &all), lines);
        assert_eq!(json(Some(1_999), &all), lines);
        assert_eq!(json(Some(2_000), &all), "");
        assert_eq!(
            json(None, &all[..1]),
            lines.split_inclusive('\n').next().unwrap()
        );
        assert_eq!(json(Some(1), &all[..3]), "");
    }

    /// A terminal gets errors in red, and no control character of the kernel's.
    #[test]
    fn errors_have_a_colour() {
        let all = [
            entry(0x100, 0, 0, &[("a", "\x07")]),
            entry(0x200, 1, 0x151, &[]),
            end(0x200, 1, 0, "Err(EIO)"),
        ];
        assert_eq!(
            lines(&GraphOptions::default(), &Coloured, &all),
            "|  File::f1(a=\\x07) {\n\
             0.000 us |    File::f2() = \x1b[31mErr(EIO)\x1b[0m\x1b[2m  <- inner (inlined)\x1b[0m\n"
        );
    }
}
