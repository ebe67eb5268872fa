//! A random walk over the files: whatever is written, in whatever order, each file shows what was
//! accepted last, and a write that is refused changes nothing.
//!
//! The walk has a model of each file: its text, or the words of a set. Between the steps, functions
//! are called on two CPUs, so that each state meets hits, and the books of the buffer are closed.

use alloc::{
    collections::BTreeSet,
    format,
    string::{String, ToString},
    vec::Vec,
};

use kernel::{arch::smp, trace::TRACING};

use super::{
    append, call, clean_up, echo, on_cpu,
    reading::profile,
    show,
    tracers::{self, begin, end},
};

/// A file with one value: what it takes, and what it refuses.
struct ValueFile {
    name: &'static str,
    takes: &'static [&'static str],
    refuses: &'static [&'static str],
}

const NO_NUMBER: &[&str] = &["", "x", "-1", "1 1", "1x", "18446744073709551616"];

const fn switch(name: &'static str) -> ValueFile {
    ValueFile {
        name,
        takes: &["0", "1"],
        refuses: &["2", "", "x", "-1", "1 1", "18446744073709551616"],
    }
}

const VALUES: [ValueFile; 28] = [
    ValueFile {
        name: "current_tracer",
        takes: &["nop", "function", "function_graph"],
        refuses: &["", "x", "nop nop", "Function", "function_graphs"],
    },
    ValueFile {
        name: "buffer_size_kb",
        takes: &["4", "8", "64"],
        refuses: &["0", "16385", "", "x", "-4"],
    },
    ValueFile {
        name: "saved_cmdlines_size",
        takes: &["1", "300", "256"],
        refuses: &["0", "32769", "", "x", "-1"],
    },
    ValueFile {
        name: "max_graph_depth",
        takes: &["0", "1", "3"],
        refuses: NO_NUMBER,
    },
    ValueFile {
        name: "tracing_thresh",
        takes: &["0", "1", "1000"],
        refuses: NO_NUMBER,
    },
    ValueFile {
        name: "tracing_on",
        takes: &["0", "1"],
        refuses: NO_NUMBER,
    },
    ValueFile {
        name: "tracing_cpumask",
        takes: &["1", "2", "3", "0"],
        refuses: &["x", "-1", "0x1", "ffffffffff", "100000000"],
    },
    switch("function_profile_enabled"),
    switch("events/kprobes/walk/enable"),
    switch("options/overwrite"),
    switch("options/pause-on-trace"),
    switch("options/annotate"),
    switch("options/record-tgid"),
    switch("options/stacktrace"),
    switch("options/event-fork"),
    switch("options/function-fork"),
    switch("options/graph-time"),
    switch("options/sleep-time"),
    switch("options/funcgraph-irqs"),
    switch("options/funcgraph-args"),
    switch("options/func_stack_trace"),
    switch("options/func-args"),
    switch("options/funcgraph-abstime"),
    switch("options/funcgraph-proc"),
    switch("options/funcgraph-tail"),
    switch("options/funcgraph-retval"),
    switch("options/funcgraph-cpu"),
    switch("options/funcgraph-overhead"),
];

/// A file with words.
struct SetFile {
    name: &'static str,
    takes: &'static [&'static str],
    refuses: &'static [&'static str],
    /// A `!` takes a word away.
    has_removal: bool,
    /// It is never empty, because all functions would be traced then.
    keeps: Option<&'static str>,
}

const FUNCTIONS: &[&str] = &["tracer_inner", "tracer_middle", "tracer_outer"];
const NO_FUNCTIONS: &[&str] = &[
    "no_such_function",
    "tracer_inner no_such_function",
    "tracer_?x*",
];
const TASKS: &[&str] = &["2000000000", "2000000001", "1"];
const NO_TASKS: &[&str] = &["x", "-1", "2000000003 x", "4294967296"];

const fn functions(name: &'static str, keeps: Option<&'static str>) -> SetFile {
    SetFile {
        name,
        takes: FUNCTIONS,
        refuses: NO_FUNCTIONS,
        has_removal: true,
        keeps,
    }
}

const fn tasks(name: &'static str) -> SetFile {
    SetFile {
        name,
        takes: TASKS,
        refuses: NO_TASKS,
        has_removal: false,
        keeps: None,
    }
}

const SETS: [SetFile; 8] = [
    functions("set_ftrace_filter", Some("tracer_caller")),
    functions("set_ftrace_notrace", None),
    functions("set_graph_function", None),
    functions("set_graph_notrace", None),
    tasks("set_ftrace_pid"),
    tasks("set_ftrace_notrace_pid"),
    tasks("set_event_pid"),
    tasks("set_event_notrace_pid"),
];

/// Triggers of the event, as they are written and shown. None of them ever acts.
const TRIGGERS: [[&str; 2]; 4] = [
    ["traceoff:0", "traceoff:count=0"],
    [
        "stacktrace if number > 1000",
        "stacktrace:unlimited if number > 1000",
    ],
    [
        "disable_hist:kprobes:walk:0",
        "disable_hist:kprobes:walk:count=0",
    ],
    [
        "hist:keys=number",
        "hist:keys=number:vals=hitcount:sort=hitcount:size=2048 [active]",
    ],
];
const NO_TRIGGERS: [&str; 4] = ["x", "hist:keys=x", "traceoff:x", "enable_hist:kprobes:none"];
const TRIGGER_FILE: &str = "events/kprobes/walk/trigger";

struct Walk {
    /// xorshift, so that a walk can be had again.
    state: u64,
    values: Vec<String>,
    sets: Vec<BTreeSet<&'static str>>,
    triggers: [bool; TRIGGERS.len()],
}

/// The lines of a set, without what stands there when it is empty.
fn words(file: &str) -> BTreeSet<String> {
    let text = show(file);
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && *line != "no pid" && !line.contains(':'));
    lines.map(String::from).collect()
}

fn value(file: &str) -> String {
    show(file).trim_end().trim_end_matches('*').into()
}

impl Walk {
    fn begin(seed: u64) -> Self {
        Self {
            state: seed,
            values: VALUES.iter().map(|file| value(file.name)).collect(),
            sets: SETS
                .iter()
                .map(|file| file.keeps.into_iter().collect())
                .collect(),
            triggers: [false; TRIGGERS.len()],
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state % bound as u64) as usize
    }

    fn pick(&mut self, words: &[&'static str]) -> &'static str {
        words[self.below(words.len())]
    }

    /// Writes to a file of a value. Returns what was done.
    fn write_value(&mut self) -> String {
        let index = self.below(VALUES.len());
        let file = &VALUES[index];
        let (is_good, appends) = (self.below(3) > 0, self.below(2) == 0);
        let text = self.pick(if is_good { file.takes } else { file.refuses });
        let result = match appends {
            true => append(text, file.name),
            false => echo(text, file.name),
        };
        let step = format!("{text:?} to {}: {result:?}", file.name);
        assert_eq!(result.is_ok(), is_good, "{step}");
        if is_good {
            self.values[index] = text.into();
        }
        step
    }

    /// The same by `trace_options`.
    fn write_option(&mut self) -> String {
        let index = self.below(VALUES.len());
        let Some(option) = VALUES[index].name.strip_prefix("options/") else {
            let result = echo("no-such-option", "trace_options");
            assert!(result.is_err());
            return "no option".into();
        };
        let on = self.below(2) == 0;
        let text = format!("{}{option}", if on { "" } else { "no" });
        echo(&text, "trace_options").unwrap();
        self.values[index] = u8::from(on).to_string();
        text
    }

    /// Writes to a file of a set.
    fn write_set(&mut self) -> String {
        let index = self.below(SETS.len());
        let file = &SETS[index];
        let name = file.name;
        let set = &self.sets[index].clone();
        match self.below(5) {
            0 => {
                let text = self.pick(file.refuses);
                let result = match self.below(2) {
                    0 => append(text, name),
                    _ => echo(text, name),
                };
                assert!(result.is_err(), "{text} to {name}");
                format!("{text} to {name}: {result:?}")
            }
            1 if file.has_removal => {
                let word = self.pick(file.takes);
                let result = append(&format!("!{word}"), name);
                assert_eq!(result, Ok(()), "!{word} to {name}");
                self.sets[index].remove(word);
                format!("!{word} to {name}")
            }
            2 => {
                let text = file.keeps.unwrap_or("");
                echo(text, name).unwrap();
                self.sets[index] = file.keeps.into_iter().collect();
                format!("{text:?} in place of {set:?} in {name}")
            }
            _ => {
                let word = self.pick(file.takes);
                append(word, name).unwrap();
                self.sets[index].insert(word);
                format!("{word} to {name}")
            }
        }
    }

    fn write_trigger(&mut self) -> String {
        let index = self.below(TRIGGERS.len() + 1);
        let Some([text, shown]) = TRIGGERS.get(index) else {
            let text = self.pick(&NO_TRIGGERS);
            assert!(append(text, TRIGGER_FILE).is_err(), "{text}");
            return format!("{text} to the trigger");
        };
        if self.triggers[index] && self.below(2) == 0 {
            assert!(append(text, TRIGGER_FILE).is_err(), "{text} twice");
            return format!("{text} twice");
        }
        let sign = if self.triggers[index] { "!" } else { "" };
        let text = match sign {
            "" => *text,
            _ => shown.split(" [").next().unwrap(),
        };
        append(&format!("{sign}{text}"), TRIGGER_FILE).unwrap();
        self.triggers[index] ^= true;
        format!("{sign}{text} to the trigger")
    }

    fn write_other(&mut self) -> String {
        let (file, text) = [
            ("snapshot", "1"),
            ("snapshot", "2"),
            ("snapshot", "0"),
            ("trace", ""),
            ("per_cpu/cpu1/snapshot", "1"),
            ("error_log", ""),
            ("trace_clock", "local"),
        ][self.below(7)];
        let result = echo(text, file);
        assert_eq!(result, Ok(()), "{text:?} to {file}");
        let refused = [
            ("snapshot", "x"),
            ("trace_clock", "global"),
            ("set_event", "none:none"),
        ];
        let (other, wrong) = refused[self.below(3)];
        assert!(append(wrong, other).is_err(), "{wrong} to {other}");
        let definition = [
            "p:walk no_such_function",
            "-:none",
            "p:walk",
            "x:walk vfs_read",
        ];
        let line = self.pick(&definition);
        assert!(append(line, "kprobe_events").is_err(), "{line}");
        format!("{text:?} to {file}")
    }

    /// Each file shows what the model has.
    fn check(&self, step: &str) {
        for (file, model) in VALUES.iter().zip(&self.values) {
            let shown = value(file.name);
            let is_same = match file.name {
                "tracing_cpumask" => shown.trim_start_matches('0') == model.trim_start_matches('0'),
                _ => shown == *model,
            };
            assert!(is_same, "{step}: {} has {shown}, not {model}", file.name);
        }
        for (file, model) in SETS.iter().zip(&self.sets) {
            let model: BTreeSet<String> = model.iter().map(|word| (*word).into()).collect();
            assert_eq!(words(file.name), model, "{step}: {}", file.name);
        }
        let shown = show(TRIGGER_FILE);
        let shown: BTreeSet<&str> = shown
            .lines()
            .filter(|line| !line.starts_with('#'))
            .collect();
        let model = TRIGGERS
            .iter()
            .zip(self.triggers)
            .filter(|(_, is_there)| *is_there);
        let model: BTreeSet<&str> = model.map(|([_, line], _)| *line).collect();
        assert_eq!(shown, model, "{step}");
        let options = show("trace_options");
        for (file, model) in VALUES.iter().zip(&self.values) {
            if let Some(option) = file.name.strip_prefix("options/") {
                let no = if model == "0" { "no" } else { "" };
                let line = format!("{no}{option}");
                assert!(options.lines().any(|known| known == line), "{step}: {line}");
            }
        }
        assert_eq!(
            show("kprobe_events"),
            "p:kprobes/walk traced_function number=%di:u64\n",
            "{step}"
        );
    }

    /// Calls functions, and closes the books.
    fn call(&self, step: &str) {
        let (hits, _) = profile("walk");
        call(7);
        on_cpu(1, || {
            tracers::call(1);
            call(8);
        });
        let is_on = value("events/kprobes/walk/enable") == "1" || self.triggers.contains(&true);
        let expected = hits + 2 * u64::from(is_on);
        assert_eq!(profile("walk").0, expected, "{step}");
        let totals = TRACING.buffer.totals();
        let fates = totals.read + totals.overwritten + totals.cleared + totals.unread;
        assert_eq!(totals.written, fates, "{step}: {totals:?}");
        // The files of records are always text.
        for file in [
            "trace",
            "snapshot",
            "per_cpu/cpu0/trace",
            "trace_stat/function1",
        ] {
            assert!(!show(file).is_empty(), "{step}: {file}");
        }
    }
}

fn walk(seed: u64, steps: usize) {
    // Two CPUs, so that masks mean the same in each run.
    assert_eq!(smp::possible_cpus(), 2);
    begin("nop", "tracer_caller");
    append("p:walk traced_function number=%di:u64", "kprobe_events").unwrap();
    let first: Vec<String> = VALUES.iter().map(|file| value(file.name)).collect();
    let mut walk = Walk::begin(seed);
    for at in 0..steps {
        let step = match walk.below(10) {
            0..=3 => walk.write_value(),
            4 => walk.write_option(),
            5..=6 => walk.write_set(),
            7..=8 => walk.write_trigger(),
            _ => walk.write_other(),
        };
        let step = format!("step {at}, {step}");
        walk.check(&step);
        walk.call(&step);
    }
    while let Some(index) = walk.triggers.iter().position(|is_there| *is_there) {
        let line = TRIGGERS[index][1].split(" [").next().unwrap();
        append(&format!("!{line}"), TRIGGER_FILE).unwrap();
        walk.triggers[index] = false;
    }
    for (file, text) in VALUES.iter().zip(first) {
        echo(&text, file.name).unwrap();
    }
    for file in &SETS {
        echo("", file.name).unwrap();
    }
    echo("0", "snapshot").unwrap();
    end();
    clean_up();
}

#[guest_test(smp = 2)]
fn files_show_what_was_accepted_last() {
    for seed in [0x9e37_79b9, 0x2545_f491_4f6c_dd1d] {
        walk(seed, 250);
    }
}
