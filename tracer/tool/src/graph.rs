//! `--graph FUNCTION`: the options of the tree of calls, and the program that makes it.
//!
//! ```text
//!   --graph sys_mkdir ─► session:"sys_mkdir" /FILTER/ { } …   mistakes are told of this text
//!                          │
//!                          ├─ each function that is called directly, nearest first: a clause of
//!                          │  its own, with arguments and result by name and type
//!                          └─ all others together: a clause without values
//! ```
//!
//! A map counts the calls around each task's next one. A function of the pattern opens a tree, and
//! any function is shown inside of one. [`crate::tree`] makes lines of what the clauses say.

use std::{collections::BTreeSet, time::Duration};

use clap::Args;
use debug_info::DebugInfo;
use trace_interface::symbols::Function;

/// The options of the tree.
#[derive(Clone, Debug, Default, Args)]
pub struct GraphOptions {
    /// Show each call of this function, and all calls in it, as a tree with arguments, results and
    /// times; a pattern means several functions, and the option may be given several times
    #[arg(long, value_name = "FUNCTION", conflicts_with_all = ["list", "file", "top"])]
    pub graph: Vec<String>,
    /// Show so many levels of the tree
    #[arg(long, value_name = "N", requires = "graph")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub depth: Option<u32>,
    /// Show only trees whose first call meets this condition, such as 'comm == "workload"' or
    /// 'args.count > 10'
    #[arg(long, value_name = "CONDITION", requires = "graph")]
    pub filter: Option<String>,
    /// Show only trees whose first call takes longer, such as 500ns, 10us, 2ms or 1s. Each is shown
    /// when it has ended
    #[arg(long, value_name = "TIME", requires = "graph", value_parser = time)]
    pub over: Option<Duration>,
    /// Hide the calls of this function, or of all that a pattern matches, and all that is in them,
    /// such as do_interrupt; may be given several times
    #[arg(long, value_name = "FUNCTION", requires = "graph")]
    pub without: Vec<String>,
    /// Show functions by their whole paths, and values of any length
    #[arg(long, requires = "graph")]
    pub whole: bool,
}

/// What is added to the depth in a call that is hidden.
const HIDDEN: u32 = 1 << 20;

/// What stands for the running task in the map of depths. Idle tasks have one number together.
const TASK: &str = "tid == 0 ? 0x100000000 + cpu : tid";

impl GraphOptions {
    /// Whether there is a tree.
    pub fn is_wanted(&self) -> bool {
        !self.graph.is_empty()
    }

    /// The program that the options stand for: the functions, and the condition at each. Those that
    /// are hidden come last.
    pub fn text(&self) -> String {
        let condition = self.filter.as_ref();
        let condition = condition.map_or_else(String::new, |filter| format!(" /({filter})/"));
        let clause = |pattern: &String, condition: &str| {
            let pattern = pattern.trim_matches('"');
            format!("session:\"{pattern}\"{condition} {{ }} return {{ }}\n")
        };
        let shown = self.graph.iter().map(|pattern| clause(pattern, &condition));
        let hidden = self.without.iter().map(|pattern| clause(pattern, ""));
        shown.chain(hidden).collect()
    }

    /// The predicate at a function that opens a tree, or that is only shown inside of one.
    pub fn predicate(&self, opens: bool) -> String {
        let depth = format!("@depth[{TASK}]");
        let most = self.depth.unwrap_or(HIDDEN);
        match (opens, &self.filter) {
            (true, None) => format!("{depth} < {most}"),
            (true, Some(filter)) => format!("(({filter}) || {depth} > 0) && {depth} < {most}"),
            (false, _) => format!("{depth} > 0 && {depth} < {most}"),
        }
    }

    /// The statements of functions that are hidden, at the entry and at the return.
    pub fn hides() -> (String, String) {
        (
            format!("$depth = @depth[{TASK}]; @depth[{TASK}] = $depth + {HIDDEN};"),
            format!("@depth[{TASK}] = $depth;"),
        )
    }

    /// The statements at an entry around `told`, and those at a return before what is told there.
    /// `$call` tells which call of the task it is. The time of the call does not have the telling.
    pub fn statements(told: &str) -> (String, String) {
        let at_entry = format!(
            "$depth = @depth[{TASK}]; @depth[{TASK}] = $depth + 1; $call = nsecs; {told} \
             $begin = nsecs;"
        );
        let at_return = format!("$time = nsecs - $begin; @depth[{TASK}] = $depth;");
        (at_entry, at_return)
    }

    /// What is done at the end of the trace.
    pub const LAST: &str = "end { clear(@depth); }\n";
}

/// The functions that `roots` call directly, and that those call, and so on: the nearest first.
pub fn called_by(roots: &[u64], most: usize, symbols: &DebugInfo) -> Vec<Function> {
    let mut seen: BTreeSet<u64> = roots.iter().copied().collect();
    let mut called: Vec<Function> = Vec::new();
    let mut level = roots.to_vec();
    while !level.is_empty() && called.len() < most {
        let before = called.len();
        for caller in level {
            let callees = symbols.callees(caller).into_iter();
            called.extend(callees.filter(|callee| seen.insert(callee.address)));
        }
        level = called[before..].iter().map(|new| new.address).collect();
    }
    called.truncate(most);
    called
}

fn time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let nanoseconds = match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => f64::NAN,
    };
    let seconds = number.parse::<f64>().unwrap_or(f64::NAN) * nanoseconds / 1e9;
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| "give a number with its unit: 500ns, 10us, 2ms or 1s".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit() {
        assert_eq!(time("500ns"), Ok(Duration::from_nanos(500)));
        assert_eq!(time("1.5us"), Ok(Duration::from_nanos(1_500)));
        assert_eq!(time("2ms"), Ok(Duration::from_millis(2)));
        assert_eq!(time("1s"), Ok(Duration::from_secs(1)));
        for wrong in ["", "5", "us", "-1us", "1 us", "1h", "1.2.3s", "1e9s"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_condition_is_that_of_functions_that_open_a_tree() {
        let options = GraphOptions {
            graph: vec!["a*".into(), "\"b\"".into()],
            filter: Some("pid == 1 || pid == 2".into()),
            depth: Some(3),
            without: vec!["c".into()],
            ..GraphOptions::default()
        };
        assert_eq!(
            options.text(),
            "session:\"a*\" /(pid == 1 || pid == 2)/ { } return { }\n\
             session:\"b\" /(pid == 1 || pid == 2)/ { } return { }\n\
             session:\"c\" { } return { }\n"
        );
        let depth = format!("@depth[{TASK}]");
        assert_eq!(
            options.predicate(true),
            format!("((pid == 1 || pid == 2) || {depth} > 0) && {depth} < 3")
        );
        let plain = GraphOptions::default();
        assert_eq!(plain.predicate(true), format!("{depth} < {HIDDEN}"));
        assert_eq!(
            plain.predicate(false),
            format!("{depth} > 0 && {depth} < {HIDDEN}")
        );
    }
}
