//! The lines of C's preprocessor that programs of bpftrace have.
//!
//! They are blank for the parser, and so are the parts that a condition leaves out. So all places
//! in the text stay what they are. Headers are not read: types come from the kernel's debug
//! information. `#define NAME value` makes a macro.

use alloc::{borrow::Cow, string::String, vec::Vec};

use crate::{diagnostic::Diagnostic, lexer, tree::Span};

/// What bpftrace defines where types come from the kernel.
const DEFINED: [&str; 1] = ["BPFTRACE_HAVE_BTF"];

/// `#define NAME value`: the places of the name and of the value.
pub(crate) struct Definition {
    pub(crate) name: Span,
    pub(crate) value: Span,
}

/// The text without its directives, and the definitions.
///
/// # Errors
/// A directive that has no meaning here.
pub(crate) fn without_directives(
    text: &str,
) -> Result<(Cow<'_, str>, Vec<Definition>), Diagnostic> {
    let is_directive = |line: &str| line.trim_start().starts_with('#');
    if !text.lines().any(is_directive) {
        return Ok((Cow::Borrowed(text), Vec::new()));
    }
    let mut plain = String::new();
    let mut definitions = Vec::new();
    // For each open condition, whether its part is left out.
    let mut conditions: Vec<(bool, Span)> = Vec::new();
    let mut in_comment = false;
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let span = Span::new(start, start + line.trim_end().len());
        start += line.len();
        let is_first = span.start == 0 && line.starts_with("#!");
        let was_comment = in_comment;
        in_comment = ends_in_comment(line, in_comment);
        if was_comment || !is_directive(line) || is_first {
            let left_out = conditions.iter().any(|(left_out, _)| *left_out);
            match left_out || is_first {
                true => blank(&mut plain, line),
                false => plain.push_str(line),
            }
            continue;
        }
        blank(&mut plain, line);
        let sign = span.start + line.find('#').unwrap_or(0);
        let after = &text[sign + 1..span.end];
        let word = lexer::word(after.trim_start());
        let rest = after.trim_start()[word.len()..].trim();
        let is_defined = || {
            let by_text = definitions
                .iter()
                .any(|known: &Definition| &text[known.name.range()] == rest);
            by_text || DEFINED.contains(&rest)
        };
        let left_out = conditions.iter().any(|(left_out, _)| *left_out);
        match word {
            "include" => {}
            "ifdef" => conditions.push((!is_defined(), span)),
            "ifndef" => conditions.push((is_defined(), span)),
            "else" if let Some((is_left_out, _)) = conditions.last_mut() => {
                *is_left_out = !*is_left_out;
            }
            "endif" if conditions.pop().is_some() => {}
            "define" if left_out => {}
            "define" => {
                let name = lexer::word(rest);
                let begin = rest.as_ptr().addr() - text.as_ptr().addr();
                let value = Span::new(begin + name.len(), begin + rest.len());
                if name.is_empty() || text[value.range()].starts_with('(') {
                    return Err(Diagnostic::new(
                        span,
                        "`#define` gives a name to a value here",
                        "write `#define NAME value`, or `macro name(a, b) { a + b }`",
                    ));
                }
                definitions.push(Definition {
                    name: Span::new(begin, begin + name.len()),
                    value,
                });
            }
            _ => {
                return Err(Diagnostic::new(
                    span,
                    "there is no such directive here",
                    "there are #define, #ifdef, #ifndef, #else, #endif and #include, which reads \
                     nothing: types come from the kernel's debug information",
                ));
            }
        }
    }
    match conditions.last() {
        None => Ok((Cow::Owned(plain), definitions)),
        Some((_, span)) => Err(Diagnostic::new(
            *span,
            "this condition does not end",
            "end it with `#endif`",
        )),
    }
}

/// A line of as many bytes that are blanks.
fn blank(plain: &mut String, line: &str) {
    plain.extend(line.bytes().map(|byte| match byte {
        b'\n' => '\n',
        _ => ' ',
    }));
}

/// Whether a line ends in a comment of several lines.
fn ends_in_comment(line: &str, begins_so: bool) -> bool {
    let mut rest = line;
    let mut inside = begins_so;
    loop {
        let next = match inside {
            true => rest.find("*/").map(|at| at + 2),
            false => match (rest.find("/*"), rest.find("//")) {
                (Some(at), Some(line)) if line < at => None,
                (at, _) => at.map(|at| at + 2),
            },
        };
        let Some(next) = next else {
            return inside;
        };
        inside = !inside;
        rest = &rest[next..];
    }
}
