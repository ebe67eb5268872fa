//! What of bpftrace's texts means nothing here, and is left out of the figures.

use regex::Regex;
use trace_compiler::EventTable;

/// The rules: a name, and what a text has that falls under it.
const RULES: [(&str, &str); 10] = [
    (
        "counters, asynchronous watchpoints, iterators: kinds that this kernel has not",
        r"(?x) (?: ^ | [\s,};/] ) (?: software | hardware | asyncwatchpoint | iter | [sh] | aw
          | it ) : [\w/.*\d$\x22]",
    ),
    (
        "programs by a relative path, a pattern, a language, the name of a library; or not there",
        r"(?x) (?: ^ | [\s,};/] ) (?: uprobe | uretprobe | usdt | [uU] | ur ) : (?: [^/]
          | [\w/]* \* [\w/]* : | /notexistfile )
          | (?: uprobe | uretprobe | ur? ) :/[\w/]+: (?: cpp | c\+\+ ) :
          | (?: uprobe | uretprobe ) \s* :?main \s* \{",
    ),
    (
        "BTF: fentry, fexit, raw tracepoints, and fields that only the types of Linux have",
        r"(?x) (?: ^ | [\s,};/] ) (?: fentry | fexit | kfunc | kretfunc | rawtracepoint
          | rt | f | fr ) : [\w*?] | \b(?: curtask | task_struct ) \b",
    ),
    (
        "definitions and headers of C",
        r"\b(?:struct|union|enum)\b|\#\s*include|\btypedef\b",
    ),
    ("imports", r#"\bimport\s+""#),
    ("functions in BPF: fn", r"(?:^|[};\n]\s*)fn\s+\w+\s*\("),
    (
        "network addresses, groups of processes, shells, and what changes the kernel",
        r"(?x) \b(?: ntop | pton | macaddr | cgroup | cgroupid | cgroup_path | system | cat
          | skboutput | override | socket_cookie | dw_ustack | __builtin_dw_ustack | usermode
          | __builtin_usermode | uaddr | __builtin_uaddr | percpu_kaddr
          | kfunc_exist | kfunc_allowed | path ) \b",
    ),
    (
        "probes of bpftrace's own tests",
        r"(?:^|[\s,};])(?:test|bench|self):\w",
    ),
    ("lists of an architecture", r"\breg\("),
    (
        "limits: 100 turns of unroll, 3 values of debugf, registers in a callback, a test's own",
        r"unroll\(101\)|debugf\([^)]*1, 1, 1, 1\)|0\.\.5\) \{ arg0 \}|:f \{ buf\(arg0, 4\)",
    ),
];

/// Why a text that is an error there is right here: a reason, and what such a text has.
const REASONS: [(&str, &str); 10] = [
    ("`%r` shows any value here", r"%r"),
    ("bounds of a loop are any expressions", r"\d\+1"),
    (
        "`arg0` at a return is what the call had at its entry",
        r"kretprobe:\S+ \{ \$x = arg0",
    ),
    (
        "an entry of a map can be cleared by its key",
        r"\b(?:clear|zero)\(@\w*\[",
    ),
    (
        "an entry of a histogram can be printed",
        r"print\(@x\[1\]\)",
    ),
    (
        "what holds numbers has 64 bits here, so no choice by its type changes that",
        r"comptime \(typeinfo\(.*\.(?:full|base)_type ==",
    ),
    ("a row of a histogram may be below zero", r"lhist\(-10"),
    (
        "a text is true if it is not empty",
        r"!\x220|/ @mymap / \{ @mymap = \\?\x22str",
    ),
    (
        "all clocks of the kernel begin with the machine",
        r"strftime\(.*nsecs\(monotonic\)",
    ),
    (
        "an index that is not there is found at the hit",
        r"\$s\[\$i\]|\$x\[4\]",
    ),
];

/// An event of Linux; its fields are not those of another event.
const EVENT: &str = r"\b(?:tracepoint|t):([\w*?]+):([\w*?]+)";
/// What stands for an event that this kernel has not.
const SOME_EVENT: &str = "tracepoint:sched:sched_wakeup";

/// The rules, ready to use.
pub struct Rules {
    rules: Vec<(&'static str, Regex)>,
    reasons: Vec<(&'static str, Regex)>,
    event: Regex,
}

impl Rules {
    pub fn new() -> Self {
        let regex = |text| Regex::new(text).expect("the rule can be read");
        Self {
            rules: RULES.map(|(name, text)| (name, regex(text))).into(),
            reasons: REASONS.map(|(name, text)| (name, regex(text))).into(),
            event: regex(EVENT),
        }
    }

    /// Why a text that is an error there is taken here.
    pub fn reason(&self, text: &str) -> &'static str {
        let reason = self.reasons.iter().find(|(_, regex)| regex.is_match(text));
        reason.map_or("NO REASON", |(name, _)| name)
    }

    /// The rule that leaves a text out.
    pub fn left_out(&self, text: &str) -> Option<&'static str> {
        let rule = self.rules.iter().find(|(_, regex)| regex.is_match(text));
        if let Some((name, _)) = rule {
            return Some(name);
        }
        let has_fields = text.contains("args") && self.renamed(text) != text;
        has_fields.then_some("fields of events that only Linux has")
    }

    /// The text with events that this kernel has, which stand for those that it has not.
    pub fn renamed(&self, text: &str) -> String {
        let events = EventTable::default();
        let rename = |found: &regex::Captures<'_>| match events
            .events(&format!("{}:{}", &found[1], &found[2]))
            .is_empty()
        {
            true => SOME_EVENT.into(),
            false => found[0].to_owned(),
        };
        self.event.replace_all(text, rename).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_means_nothing_here_is_left_out() {
        let rules = Rules::new();
        let out = |text| rules.left_out(text).is_some();
        assert!(out("uprobe:./a:b { }"));
        assert!(out("kprobe:a { } u:libc:b { }"));
        assert!(out("asyncwatchpoint:0x10:8:w { }"));
        assert!(!out("uprobe:/bin/a:b { }"));
        assert!(!out("kprobe:a { } u:/bin/a:b { }"));
        assert!(out("begin { $x = (struct thing *)0; }"));
        assert!(out("tracepoint:net:sent { print(args.length); }"));
        assert!(!out("tracepoint:net:sent { print(1); }"));
        assert!(!out("tracepoint:sched:sched_wakeup { print(args.pid); }"));
        assert!(!out("kprobe:a { $x = cpu ? 1 : 2; }"));
    }

    #[test]
    fn an_unknown_event_becomes_a_known_one() {
        let rules = Rules::new();
        let text = rules.renamed("tracepoint:net:sent, tracepoint:sched:* { }");
        assert_eq!(
            text,
            "tracepoint:sched:sched_wakeup, tracepoint:sched:* { }"
        );
    }
}
