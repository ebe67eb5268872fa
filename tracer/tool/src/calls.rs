//! The calls that pictures show: the clauses that `--perfetto` and `--html` add to a program, so
//! that each call of a function that it probes is recorded with its arguments and its result.
//!
//! The clauses stand after the program's own text, in the same language. A function whose values
//! the compiler refuses says less and less, until its clause compiles or is left out. So the
//! additions never refuse the user's program.

use std::collections::BTreeMap;

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
) -> Result<Compiled, Vec<Diagnostic>> {
    let compile_options = CompileOptions::default();
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
            .and_then(|whole| compile(&whole, symbols, &compile_options));
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
    let own = compile(tree, symbols, &compile_options)?;
    if let Some(reason) = reason {
        say(format_args!("pictures have no calls: {reason}"));
    }
    Ok(own)
}

/// Most functions whose calls are recorded for pictures.
const MOST_FUNCTIONS: usize = 256;

/// The text that stands for a result that is not recorded.
const NOTHING: &str = "\"\"";

/// The functions that a program probes.
fn calls(tree: &Tree, symbols: &DebugInfo) -> Vec<Call> {
    let mut functions = BTreeMap::new();
    for probe in tree.clauses.iter().flat_map(|clause| &clause.probes) {
        if let ProbeKind::Entry {
            function,
            offset: 0,
        }
        | ProbeKind::Return { function }
        | ProbeKind::Session { function } = &probe.kind
        {
            let found = symbols.functions(&function.text).into_iter();
            functions.extend(found.map(|function| (function.address, function.symbol)));
        }
    }
    if functions.len() > MOST_FUNCTIONS {
        say(format_args!(
            "pictures show the calls of {MOST_FUNCTIONS} of {} functions",
            functions.len()
        ));
    }
    let functions = functions.into_iter().take(MOST_FUNCTIONS);
    functions
        .map(|(address, symbol)| Call::new(address, symbol, symbols))
        .collect()
}

/// A function whose calls are recorded for the pictures.
struct Call {
    symbol: String,
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
            symbol,
            arguments: names.map(argument).collect(),
            result: match symbols.returned(address) {
                Ok(_) => "retval",
                Err(_) => NOTHING,
            },
            is_wrong: false,
            left_out: 0,
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
        format!(
            "session:{:?} {{ $begin = nsecs; }} \
             return {{ print((\"\\x01{}\", func, nsecs - $begin, {result}{arguments})); }}\n",
            self.symbol,
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
            let functions: Vec<String> =
                addresses.iter().map(|address| function(*address)).collect();
            return format!("{ADDED}{}", functions.join(", "));
        };
        let several = origins.iter().filter(|other| *other == origin).count() > 1;
        match addresses {
            [only] if several => format!("{text} ({})", function(*only)),
            [_, _, ..] => format!("{text} ({} places)", addresses.len()),
            _ => text.into(),
        }
    };
    origins.iter().zip(attachments).map(name).collect()
}
