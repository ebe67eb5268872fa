//! The form of the corpus of the fuzzer: a text with one input in each line, in hexadecimal.

use std::{collections::BTreeSet, fmt::Write};

/// Where it is.
pub const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus.txt");

const HEAD: &str = "\
# Inputs that the fuzzer has found, each with code or a state that no other one reaches.
# One a line, in hexadecimal, in the order of the bytes. Empty lines and lines that begin with `#`
# do not count. `kernel/probes/fuzz/corpus.rs` writes it.
";

/// The inputs of a corpus.
///
/// # Errors
/// The line that is no input.
pub fn inputs(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let pairs = line.as_bytes().chunks(2).map(|pair| {
                let digits = std::str::from_utf8(pair)
                    .ok()
                    .filter(|pair| pair.len() == 2)?;
                u8::from_str_radix(digits, 16).ok()
            });
            pairs
                .collect::<Option<_>>()
                .ok_or(format!("no input: {line}"))
        })
        .collect()
}

/// The text of a corpus.
pub fn text(inputs: &BTreeSet<Vec<u8>>) -> String {
    let mut text = String::from(HEAD);
    for input in inputs {
        for byte in input {
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
    }
    text
}
