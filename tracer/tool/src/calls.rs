//! The calls that pictures show: the clauses that `--perfetto` and `--html` add to a program, so
//! that each call of a function that it probes is recorded with its arguments and its result.
//!
//! The clauses stand after the program's own text, in the same language. A function whose values
//! the compiler refuses says less and less, until its clause compiles or is left out. So the
//! additions never refuse the user's program.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use boot::progress::say;
use debug_info::DebugInfo;
use trace_compiler::{Compiled, Options as CompileOptions, Origin, compile};
use trace_interface::{
    Kernel as _,
    script::{Attachment, OPTIONAL},
    symbols::{Moment, ProbePlace},
};
use trace_language::{
    Diagnostic, parse_with,
    tree::{ProbeKind, Tree},
};

use crate::{
    options::Options,
    pictures::{ADDED, CALL},
    source::Source,
};

/// Compiles a program and what the options add to it.
pub fn compile_with_calls(
    options: &Options,
    source: &Source,
    tree: &Tree,
    symbols: &DebugInfo,
    compile_options: &CompileOptions,
) -> Result<Compiled, Vec<Diagnostic>> {
    let arguments = source.arguments();
    let mut calls = match options.perfetto.is_some() || options.html.is_some() {
        true => calls(tree, symbols),
        false => Vec::new(),
    };
    let mut reason = None;
    while !calls.is_empty() {
        // The same text with them after it.
        let mut text = format!("{}\n", source.text);
        let mut ends = Vec::new();
        for call in &calls {
            text.push_str(&call.clause());
            ends.push(text.len());
        }
        let whole = parse_with(&text, &arguments)
            .and_then(|whole| compile(&whole, symbols, compile_options));
        let mistakes = match whole {
            Ok(mut whole) => {
                // A function that the pictures cannot probe does not refuse the user's program.
                for (origin, probe) in whole.origins.iter().zip(&mut whole.script.probes) {
                    if origin.span.start >= source.text.len() {
                        *probe = OPTIONAL;
                    }
                }
                return Ok(whole);
            }
            Err(mistakes) => mistakes,
        };
        // The calls that a mistake is in say less.
        let before = calls.len();
        let mut is_known = false;
        for mistake in &mistakes {
            if mistake.span.start > source.text.len() {
                let index = ends.partition_point(|end| *end <= mistake.span.start);
                if let Some(call) = calls.get_mut(index) {
                    call.is_wrong = true;
                    is_known = true;
                }
            }
        }
        calls.retain_mut(Call::say_less);
        if calls.len() < before || !is_known {
            reason = mistakes.into_iter().next();
        }
        if !is_known {
            break;
        }
    }
    let own = compile(tree, symbols, compile_options)?;
    if let Some(reason) = reason {
        say(format_args!("pictures have no calls: {reason}"));
    }
    Ok(own)
}

/// Most functions whose calls are recorded with arguments and results, because each has a clause of
/// its own.
const MOST_FUNCTIONS: usize = 256;

/// The text that stands for a result that is not recorded.
const NOTHING: &str = "\"\"";

/// The calls of the functions that a program probes.
fn calls(tree: &Tree, symbols: &DebugInfo) -> Vec<Call> {
    let mut patterns: BTreeMap<&str, Functions> = BTreeMap::new();
    for probe in tree.clauses.iter().flat_map(|clause| &clause.probes) {
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
    result: &'static str,
    /// The compiler does not take its clause.
    is_wrong: bool,
    /// How much is left out: see [`Call::clause`].
    left_out: u8,
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
                Err(_) => "\"<unavailable>\"".into(),
            };
            (name, value)
        };
        let names = symbols.variables(place).into_iter();
        Self {
            names: vec![symbol],
            arguments: names.map(argument).collect(),
            result: match symbols.returned(address) {
                Ok(_) => "retval",
                Err(_) => NOTHING,
            },
            is_wrong: false,
            left_out: 0,
        }
    }

    /// For functions that are recorded without arguments and results.
    fn of_all(names: Vec<String>) -> Self {
        Self {
            names,
            arguments: Vec::new(),
            result: NOTHING,
            is_wrong: false,
            left_out: 3,
        }
    }

    /// The clause that records its calls. Left out are nothing, the result, the arguments, or both.
    fn clause(&self) -> String {
        let (has_arguments, has_result) = (self.left_out & 2 == 0, self.left_out & 1 == 0);
        let arguments = self.arguments.iter().filter(|_| has_arguments);
        let arguments: String = arguments
            .map(|(name, value)| format!(", {name:?}, {value}"))
            .collect();
        let result = if has_result { self.result } else { NOTHING };
        let probes = self.names.iter().map(|name| format!("session:{name:?}"));
        format!(
            "{} {{ $begin = nsecs; }} \
             return {{ print((\"\\x01{}\", func, nsecs - $begin, {result}{arguments})); }}\n",
            probes.collect::<Vec<_>>().join(", "),
            CALL.trim_start_matches('\u{1}')
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
/// attachments, each has the functions that are its own.
pub fn probes(
    origins: &[Origin],
    attachments: &[Attachment],
    source: &Source,
    symbols: &DebugInfo,
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
        let function = |address: u64| {
            let function = symbols.function_at(address);
            function.map_or_else(|| format!("{address:#x}"), |function| function.path)
        };
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
mod tests {
    use super::*;

    #[test]
    fn each_function_of_several_patterns_is_named_once() {
        let functions = |numbers: &[u64]| -> Functions {
            numbers
                .iter()
                .map(|number| (*number, format!("f{number}")))
                .collect()
        };
        let patterns = BTreeMap::from([
            ("a*", functions(&[1, 2, 3])),
            ("*3", functions(&[3, 13])),
            ("a1", functions(&[1])),
            ("b*", functions(&[7, 8, 9, 10])),
        ]);
        let names = together(patterns);
        assert_eq!(names, [&["b*"], &["a*"], &["f13"]]);
    }

    #[test]
    fn calls_of_many_functions_have_one_clause_without_values() {
        let call = Call::of_all(vec!["a*".into(), "b".into()]);
        assert_eq!(
            call.clause(),
            "session:\"a*\", session:\"b\" { $begin = nsecs; } \
             return { print((\"\\x01call\", func, nsecs - $begin, \"\")); }\n"
        );
    }

    /// The result is left out first, then the arguments, then both.
    #[test]
    fn a_clause_that_is_wrong_says_less_until_nothing_is_left() {
        let mut call = Call {
            names: vec!["f".into()],
            arguments: vec![("a".into(), "args.a".into())],
            result: "retval",
            is_wrong: false,
            left_out: 0,
        };
        assert!(call.say_less());
        let mut said = Vec::new();
        loop {
            let clause = call.clause();
            said.push((clause.contains("args.a"), clause.contains("retval")));
            call.is_wrong = true;
            if !call.say_less() {
                break;
            }
        }
        assert_eq!(
            said,
            [(true, true), (true, false), (false, true), (false, false)]
        );
    }
}
