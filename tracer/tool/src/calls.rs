//! The calls that pictures and trees show: the clauses that `--perfetto`, `--html` and `--graph`
//! add to a program, so that each call of a function that it probes is recorded with its arguments
//! and its result; and what their records tell ([`Told`]).
//!
//! The clauses stand after the program's own text, in the same language. A function whose values
//! the compiler refuses says less and less, until its clause compiles or is left out. So the
//! additions never refuse the user's program. A call outside of trees is recorded when it returns,
//! and a map counts those that have not.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use boot::progress::say;
use debug_info::DebugInfo;
use trace_answers::{Recorded, Symbolize, Value};
use trace_compiler::{Compiled, Options as CompileOptions, Origin, compile};
use trace_interface::{
    Kernel as _,
    script::{Attachment, OPTIONAL},
    symbols::{Moment, ProbePlace},
    view::View,
};
use trace_language::{
    Diagnostic, parse_with,
    tree::{Clause, ProbeKind, Tree},
};

use crate::{
    graph::{self, GraphOptions},
    options::Options,
    source::Source,
};

/// The first values of records that tell of calls, without the letter before them. No program
/// prints that letter by chance.
const ENTRY: &str = "entry";
const RETURN: &str = "return";

/// The beginning of the names of probes that the pictures have added to the program.
pub const ADDED: &str = "for the pictures: session:";

/// The name of the map that counts the calls that have not returned. No text of the program has it.
fn count_of(text: &str) -> String {
    let mut name = String::from("@calls_for_pictures");
    while text.contains(&name) {
        name.push('_');
    }
    name
}

/// Takes the map that counts the calls that have not returned out of what is shown. Its number, if
/// calls are counted: those of a tree are told when they begin.
pub fn take_count(source: &Source, view: &mut View) -> Option<u32> {
    let name = count_of(&source.text);
    let mut maps = (0..).zip(&mut view.maps);
    let (number, map) = maps.find(|(_, map)| map.name.as_ref() == Some(&name))?;
    map.name = None;
    Some(number)
}

/// What a record tells of a call.
pub enum Told {
    Entry(ToldEntry),
    Return(ToldReturn),
}

/// Which call of a task's trees something is told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallOfTree {
    /// How many calls of the tree are around it.
    pub depth: u64,
    /// When it began, in nanoseconds since the boot. No other call of the task began then.
    pub begin: u64,
}

impl CallOfTree {
    fn read(of: &Value) -> Option<Self> {
        let Value::Tuple(parts) = of else {
            return None;
        };
        let number = |at: usize| u64::try_from(parts.get(at)?.number()?).ok();
        Some(Self {
            depth: number(0)?,
            begin: number(1)?,
        })
    }
}

/// The beginning of a call in a tree.
pub struct ToldEntry {
    pub function: u64,
    pub call: CallOfTree,
    /// Where it is going to return to.
    pub caller: u64,
    /// The name of the task.
    pub comm: String,
    pub arguments: Vec<(String, Value)>,
}

/// The end of a call.
pub struct ToldReturn {
    pub function: u64,
    /// Since when its time counts, in nanoseconds since the boot.
    pub begin: u64,
    pub time: Duration,
    /// None: it is not recorded.
    pub result: Option<Value>,
    /// In a tree.
    pub call: Option<CallOfTree>,
    /// Unless its entry had them.
    pub arguments: Vec<(String, Value)>,
}

impl Told {
    /// Reads a record. None: it tells of no call.
    pub fn read(record: &Recorded, symbols: &dyn Symbolize) -> Option<Self> {
        let [Value::Tuple(parts)] = &record.values[..] else {
            return None;
        };
        let [Value::Text { text: kind, .. }, function, rest @ ..] = &parts[..] else {
            return None;
        };
        let kind = kind.strip_prefix('\u{1}')?;
        let Value::Symbol {
            address: function, ..
        } = *function
        else {
            return None;
        };
        let shown = |value: &Value| value.shown(symbols).to_string();
        let number = |value: &Value| u64::try_from(value.number()?).ok();
        let pairs = |values: &[Value]| {
            let pairs = values.chunks_exact(2);
            pairs
                .map(|pair| (shown(&pair[0]), pair[1].clone()))
                .collect()
        };
        match (kind, rest) {
            (ENTRY, [call, caller, comm, arguments @ ..]) => Some(Self::Entry(ToldEntry {
                function,
                call: CallOfTree::read(call)?,
                caller: number(caller)?,
                comm: shown(comm),
                arguments: pairs(arguments),
            })),
            (RETURN, [begin, time, result, call, arguments @ ..]) => {
                Some(Self::Return(ToldReturn {
                    function,
                    begin: number(begin)?,
                    time: Duration::from_nanos(number(time).unwrap_or(0)),
                    result: (!shown(result).is_empty()).then(|| result.clone()),
                    call: CallOfTree::read(call),
                    arguments: pairs(arguments),
                }))
            }
            _ => None,
        }
    }
}

/// Compiles a program and what the options add to it.
pub fn compile_with_calls(
    options: &Options,
    source: &Source,
    tree: &Tree,
    symbols: &DebugInfo,
    compile_options: &CompileOptions,
) -> Result<Compiled, Vec<Diagnostic>> {
    let additions = match options.perfetto.is_some() || options.html.is_some() {
        _ if options.graph.is_wanted() => {
            // What is wrong is told of the program that the options stand for.
            compile(tree, symbols, compile_options)?;
            Additions {
                own: " ".repeat(source.text.len()),
                last: GraphOptions::LAST,
                ..calls_of_tree(tree, symbols, options)?
            }
        }
        true => Additions {
            own: source.text.clone(),
            calls: calls(tree, symbols),
            count: count_of(&source.text),
            ..Additions::default()
        },
        false => Additions::default(),
    };
    let attempt = |text: &str| {
        parse_with(text, &source.arguments())
            .and_then(|whole| compile(&whole, symbols, compile_options))
    };
    match additions.compile(attempt) {
        Ok(Some(whole)) => Ok(whole),
        Ok(None) => compile(tree, symbols, compile_options),
        Err(reason) => {
            let own = compile(tree, symbols, compile_options)?;
            say(format_args!("pictures have no calls: {reason}"));
            Ok(own)
        }
    }
}

/// What is added to a program.
#[derive(Default)]
struct Additions {
    /// The text that stands before them.
    own: String,
    /// Functions whose clauses may be wrong, because they have values.
    calls: Vec<Call>,
    /// Clauses without values.
    plain: Vec<Call>,
    /// The map that counts the calls that have not returned, where calls are told at the return.
    count: String,
    last: &'static str,
    /// Whether the trace is refused if the first function cannot be probed.
    first_is_required: bool,
}

impl Additions {
    /// The whole text, with those without values if they are wanted; and where each clause ends.
    fn text(&self, with_plain: bool) -> (String, Vec<usize>) {
        let mut text = format!("{}\n", self.own);
        let plain = self.plain.iter().filter(|_| with_plain);
        let clauses = self.calls.iter().chain(plain).map(|call| {
            text.push_str(&call.clause(&self.count));
            text.len()
        });
        let ends = clauses.collect();
        text.push_str(self.last);
        (text, ends)
    }

    /// Has the whole text compiled by `attempt`, in which clauses say less and less until all are
    /// right. None: there are none.
    ///
    /// # Errors
    /// No clause is right, and why.
    fn compile(
        mut self,
        attempt: impl Fn(&str) -> Result<Compiled, Vec<Diagnostic>>,
    ) -> Result<Option<Compiled>, Diagnostic> {
        let mut reason = None;
        while !self.calls.is_empty() {
            let (text, ends) = self.text(false);
            let mistakes = match attempt(&text) {
                Ok(whole) => {
                    let mut whole = match self.plain.is_empty() {
                        true => whole,
                        false => attempt(&self.text(true).0).unwrap_or(whole),
                    };
                    let optional = match self.first_is_required {
                        true => ends[0],
                        false => self.own.len(),
                    };
                    // A function that cannot be probed does not refuse the user's program.
                    for (origin, probe) in whole.origins.iter().zip(&mut whole.script.probes) {
                        if origin.span.start >= optional {
                            *probe = OPTIONAL;
                        }
                    }
                    return Ok(Some(whole));
                }
                Err(mistakes) => mistakes,
            };
            // The calls that a mistake is in say less.
            let before = self.calls.len();
            let mut is_known = false;
            for mistake in &mistakes {
                if mistake.span.start > self.own.len() {
                    let index = ends.partition_point(|end| *end <= mistake.span.start);
                    if let Some(call) = self.calls.get_mut(index) {
                        call.is_wrong = true;
                        is_known = true;
                    }
                }
            }
            self.calls.retain_mut(Call::say_less);
            if self.calls.len() < before || !is_known {
                reason = mistakes.into_iter().next();
            }
            if !is_known {
                break;
            }
        }
        reason.map_or(Ok(None), Err)
    }
}

/// Most functions whose calls are recorded with arguments and results, because each has a clause of
/// its own.
const MOST_FUNCTIONS: usize = 256;

/// The calls of the tree of a program: those of the functions that it names, and all in them.
///
/// # Errors
/// Nothing is left of them.
fn calls_of_tree(
    tree: &Tree,
    symbols: &DebugInfo,
    options: &Options,
) -> Result<Additions, Vec<Diagnostic>> {
    let shown = options.graph.graph.len().min(tree.clauses.len());
    let (shown, without) = tree.clauses.split_at(shown);
    let meant = |clauses: &[Clause]| -> Functions {
        let patterns = patterns_of(clauses, symbols);
        patterns.into_values().flatten().collect()
    };
    let (mut roots, hidden) = (meant(shown), meant(without));
    roots.retain(|address, _| !hidden.contains_key(address));
    let hides = without.iter().flat_map(|clause| &clause.probes).next();
    if let (true, Some(probe)) = (roots.is_empty(), hides) {
        return Err(vec![Diagnostic::new(
            probe.span,
            "--without hides each function of --graph",
            "hide functions that are called in those of --graph",
        )]);
    }
    let draws = options.perfetto.is_some() || options.html.is_some();
    let in_tree = |opens: bool| InTree::Shown {
        predicate: options.graph.predicate(opens),
        returns_arguments: draws,
    };
    let typed_roots = roots.iter().take(MOST_FUNCTIONS);
    let calls = typed_roots
        .map(|(address, symbol)| Call::new(*address, symbol.clone(), symbols).of(in_tree(true)));
    let mut additions = Additions {
        calls: calls.collect(),
        first_is_required: roots.len() == 1,
        ..Additions::default()
    };
    if !hidden.is_empty() {
        additions
            .plain
            .push(Call::hidden(hidden.values().cloned().collect()));
    }
    let others: Vec<String> = roots.values().skip(MOST_FUNCTIONS).cloned().collect();
    if !others.is_empty() {
        additions.plain.push(Call::of_all(others).of(in_tree(true)));
    }
    if options.graph.depth == Some(1) {
        return Ok(additions);
    }
    let addresses: Vec<u64> = roots.keys().copied().collect();
    let called = graph::called_by(&addresses, MOST_FUNCTIONS, symbols);
    let mut known: BTreeSet<u64> = roots.into_keys().chain(hidden.into_keys()).collect();
    for function in called {
        if !known.insert(function.address) {
            continue;
        }
        let call = Call::new(function.address, function.symbol, symbols);
        additions.calls.push(call.of(in_tree(false)));
    }
    let all = symbols.functions("*").into_iter();
    let others: Vec<String> = all
        .filter(|function| known.insert(function.address))
        .map(|function| function.symbol)
        .collect();
    additions
        .plain
        .push(Call::of_all(others).of(in_tree(false)));
    Ok(additions)
}

/// The functions that a program probes, by the patterns that it has.
fn patterns_of<'t>(clauses: &'t [Clause], symbols: &DebugInfo) -> BTreeMap<&'t str, Functions> {
    let mut patterns: BTreeMap<&str, Functions> = BTreeMap::new();
    for probe in clauses.iter().flat_map(|clause| &clause.probes) {
        if let ProbeKind::Entry {
            function,
            offset: 0,
        }
        | ProbeKind::Return { function }
        | ProbeKind::Session { function } = &probe.kind
        {
            let pattern = patterns.entry(&function.text);
            pattern.or_insert_with(|| {
                let found = symbols.functions(&function.text).into_iter();
                found
                    .map(|function| (function.address, function.symbol))
                    .collect()
            });
        }
    }
    patterns
}

/// What stands for an argument that cannot be read at the entry.
pub const UNAVAILABLE: &str = "<unavailable>";

/// The name of an argument that stands for all that are not recorded.
pub const OTHERS: &str = "…";

/// The text that stands for a result that is not recorded.
const NOTHING: &str = "\"\"";

/// The calls of the functions that a program probes.
fn calls(tree: &Tree, symbols: &DebugInfo) -> Vec<Call> {
    let patterns = patterns_of(&tree.clauses, symbols);
    let functions: Functions = patterns
        .values()
        .flatten()
        .map(|(at, name)| (*at, name.clone()))
        .collect();
    if functions.len() <= MOST_FUNCTIONS {
        let functions = functions.into_iter();
        return functions
            .map(|(address, symbol)| Call::new(address, symbol, symbols))
            .collect();
    }
    say(format_args!(
        "pictures show the calls of {} functions without arguments and results; with \
         {MOST_FUNCTIONS} functions or fewer they show both",
        functions.len()
    ));
    together(patterns).into_iter().map(Call::of_all).collect()
}

/// Functions by address, with the linker's names.
type Functions = BTreeMap<u64, String>;

/// Names for `session:` that mean each of the functions of some patterns once: the patterns as they
/// are, unless functions of one are those of another, too.
fn together(patterns: BTreeMap<&str, Functions>) -> Vec<Vec<String>> {
    let mut patterns: Vec<_> = patterns.into_iter().collect();
    patterns.sort_by_key(|(_, functions)| Reverse(functions.len()));
    let mut known = BTreeSet::new();
    let names = patterns.into_iter().map(|(pattern, functions)| {
        let all = functions.len();
        let new: Vec<String> = functions
            .into_iter()
            .filter_map(|(address, symbol)| known.insert(address).then_some(symbol))
            .collect();
        match new.len() == all {
            true => vec![pattern.into()],
            false => new,
        }
    });
    names.filter(|names| !names.is_empty()).collect()
}

/// Functions whose calls are recorded for the pictures by one clause.
struct Call {
    /// As `session:` takes them. One, if its arguments or result are recorded.
    names: Vec<String>,
    /// Names and expressions of the arguments.
    arguments: Vec<(String, String)>,
    has_known_arguments: bool,
    result: &'static str,
    /// The compiler does not take its clause.
    is_wrong: bool,
    /// How much is left out: see [`Call::clause`].
    left_out: u8,
    /// Its part in a tree.
    in_tree: Option<InTree>,
}

/// What becomes of the calls of a function in a tree.
enum InTree {
    Shown {
        predicate: String,
        /// The arguments are recorded at the return, too.
        returns_arguments: bool,
    },
    Hidden,
}

impl Call {
    /// With all that is known of its values.
    fn new(address: u64, symbol: String, symbols: &DebugInfo) -> Self {
        let place = ProbePlace {
            address,
            moment: Moment::At,
        };
        let argument = |name: String| {
            let value = match symbols.variable(place, &name) {
                Ok(_) => format!("args.{name}"),
                Err(_) => format!("\"{UNAVAILABLE}\""),
            };
            (name, value)
        };
        // Copies of other functions that begin here have names, too, which are none of its own.
        let names = symbols.arguments(address);
        Self {
            names: vec![symbol],
            has_known_arguments: names.is_some(),
            arguments: names.into_iter().flatten().map(argument).collect(),
            result: match symbols.returned(address) {
                Ok(_) => "retval",
                Err(_) => NOTHING,
            },
            is_wrong: false,
            left_out: 0,
            in_tree: None,
        }
    }

    /// The same calls in a tree.
    fn of(self, in_tree: InTree) -> Self {
        Self {
            in_tree: Some(in_tree),
            ..self
        }
    }

    /// For functions that are recorded without arguments and results.
    fn of_all(names: Vec<String>) -> Self {
        Self {
            names,
            arguments: Vec::new(),
            has_known_arguments: false,
            result: NOTHING,
            is_wrong: false,
            left_out: 3,
            in_tree: None,
        }
    }

    /// For functions whose calls are hidden in a tree, with all that is in them.
    fn hidden(names: Vec<String>) -> Self {
        Self::of_all(names).of(InTree::Hidden)
    }

    /// The clause that records its calls. Left out are nothing, the result, the arguments, or both.
    /// A record has the time at which its place in the ring was taken. All times that it tells are
    /// read before that. `count` is the map that counts those that have not returned.
    fn clause(&self, count: &str) -> String {
        let (has_arguments, has_result) = (self.left_out & 2 == 0, self.left_out & 1 == 0);
        let arguments = self.arguments.iter().filter(|_| has_arguments);
        let arguments: String = arguments
            .map(|(name, value)| format!(", {name:?}, {value}"))
            .collect();
        let result = if has_result { self.result } else { NOTHING };
        let probes = self.names.iter().map(|name| format!("session:{name:?}"));
        let probes = probes.collect::<Vec<_>>().join(", ");
        let (predicate, returns_arguments) = match &self.in_tree {
            None => {
                return format!(
                    "{probes} {{ {count} = sum(1); $begin = nsecs; }} \
                     return {{ $time = nsecs - $begin; {count} = sum(-1); \
                     printf(\"%s\\n\", (\"\\x01{RETURN}\", func, $begin, $time, {result}, \
                     {NOTHING}{arguments})); }}\n"
                );
            }
            Some(InTree::Hidden) => {
                let (at_entry, at_return) = GraphOptions::hides();
                return format!("{probes} {{ {at_entry} }} return {{ {at_return} }}\n");
            }
            Some(InTree::Shown {
                predicate,
                returns_arguments,
            }) => (predicate, *returns_arguments),
        };
        let arguments = match has_arguments && self.has_known_arguments {
            true => arguments,
            false => format!(", \"{OTHERS}\", \"\""),
        };
        let (at_entry, at_return) = GraphOptions::statements(&format!(
            "print((\"\\x01{ENTRY}\", func, ($depth, $call), *(uint64*)reg(\"sp\"), \
             comm{arguments}));"
        ));
        let arguments = if returns_arguments { &*arguments } else { "" };
        format!(
            "{probes} /{predicate}/ {{ {at_entry} }} return {{ {at_return} \
             print((\"\\x01{RETURN}\", func, $begin, $time, {result}, \
             ($depth, $call){arguments})); }}\n"
        )
    }

    /// If it is wrong, leaves something out. False: nothing is left, its return cannot be probed.
    fn say_less(&mut self) -> bool {
        if !std::mem::take(&mut self.is_wrong) {
            return true;
        }
        self.left_out += 1;
        self.left_out < 4
    }
}

/// The names of the attachments' probes, as the text has them. Where a probe has several
/// attachments, each has the functions that are its own. `path_at` is the function at an address.
pub fn probes(
    origins: &[Origin],
    attachments: &[Attachment],
    source: &Source,
    path_at: impl Fn(u64) -> Option<String>,
) -> Vec<String> {
    let name = |(origin, attachment): (&Origin, &Attachment)| {
        if let Some(event) = &origin.event {
            return event.clone();
        }
        let addresses: &[u64] = match attachment {
            Attachment::Probe { addresses, .. } => addresses,
            Attachment::Call { functions, .. } => functions,
            _ => &[],
        };
        let function = |address| path_at(address).unwrap_or_else(|| format!("{address:#x}"));
        let of_text = source.text.get(origin.span.start..origin.span.end);
        let is_added = origin.span.start >= source.text.len();
        let Some(text) = of_text.filter(|_| !is_added) else {
            return match addresses {
                [only] => format!("{ADDED}{}", function(*only)),
                _ => format!("{ADDED}{} functions", addresses.len()),
            };
        };
        let several = origins.iter().filter(|other| *other == origin).count() > 1;
        if let Attachment::User {
            function: Some(function),
            ..
        } = attachment
            && several
        {
            return format!("{text} ({})", debug_info::demangled(function));
        }
        match addresses {
            [only] if several => format!("{text} ({})", function(*only)),
            [_, _, ..] => format!("{text} ({} places)", addresses.len()),
            _ => text.into(),
        }
    };
    origins.iter().zip(attachments).map(name).collect()
}

#[cfg(test)]
mod tests;
