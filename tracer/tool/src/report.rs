//! Mistakes of a program, as a terminal shows them.

use std::io::{IsTerminal, stderr};

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use debug_info::DebugInfo;
use trace_language::Diagnostic;

/// The mistakes of a text, each with its lines.
pub fn report(mistakes: &[Diagnostic], text: &str, name: &str) -> String {
    shown(&Level::ERROR, mistakes, text, name)
}

/// What is wrong with a text that runs nevertheless, in the same way.
pub fn warnings(mistakes: &[Diagnostic], text: &str, name: &str) -> String {
    shown(&Level::WARNING, mistakes, text, name)
}

/// A kernel's words about addresses, with the functions in front of those that are in one.
pub fn with_functions(text: &str, symbols: &DebugInfo) -> String {
    const MARK: &str = "0x";
    let mut named = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(MARK) {
        let (before, number) = rest.split_at(at);
        let digits = &number[MARK.len()..];
        let length = digits.find(|letter: char| !letter.is_ascii_hexdigit());
        let (digits, after) = digits.split_at(length.unwrap_or(digits.len()));
        named += before;
        let address = u64::from_str_radix(digits, 16).ok();
        let function = address.and_then(|address| Some((address, symbols.function_at(address)?)));
        if let Some((address, function)) = function {
            named += &match address - function.address {
                0 => format!("{} at ", function.path),
                offset => format!("{}+{offset:#x} at ", function.path),
            };
        }
        named += MARK;
        named += digits;
        rest = after;
    }
    named + rest
}

fn shown(level: &Level<'_>, mistakes: &[Diagnostic], text: &str, name: &str) -> String {
    let renderer = if stderr().is_terminal() {
        Renderer::styled()
    } else {
        Renderer::plain()
    };
    let shown = mistakes.iter().map(|mistake| {
        // A place in the additions of the options is not shown.
        let start = floor(text, mistake.span.start);
        let end = floor(text, mistake.span.end).max(start);
        let place = Snippet::source(text)
            .path(name)
            .annotation(AnnotationKind::Primary.span(start..end));
        let group = level.clone().primary_title(&mistake.message).element(place);
        let group = if mistake.help.is_empty() {
            group
        } else {
            group.element(Level::HELP.message(&mistake.help))
        };
        renderer.render(&[group])
    });
    let shown: Vec<String> = shown.collect();
    shown.join("\n\n")
}

/// The last beginning of a character at or before an offset.
fn floor(text: &str, offset: usize) -> usize {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_has_its_place_cause_and_next_step() {
        let text = "kprobe:f {\n  $a = ;\n}";
        let mistakes = trace_language::parse(text).unwrap_err();
        let shown = report(&mistakes, text, "a.bt");
        for part in [
            "error: expected a value",
            "a.bt:2:8",
            "$a = ;",
            "^",
            "help: values are",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let warned = warnings(&mistakes, text, "a.bt");
        for part in ["warning: expected a value", "a.bt:2:8", "help: values are"] {
            assert!(warned.contains(part), "{part}: {warned}");
        }
        // Mistakes at the end of a text, and beyond it, have a place, too.
        for text in ["kprobe:f", "", "kprobe:é"] {
            let mistakes = trace_language::parse(text).unwrap_err();
            assert!(report(&mistakes, text, "x").contains("error: "));
            let beyond = Diagnostic::new(trace_language::tree::Span::new(90, 99), "m", "");
            assert!(report(&[beyond], text, "x").contains("error: m"));
        }
    }
}
