//! Definitions as lines of text, and refusals with their columns.

use tracefs::{
    commands::Words,
    definition::{Command, Definition, Deletion, File},
    fetch::Grammar,
    refusal::{Reason, Refusal},
};

use super::Kernel;

pub fn parse_in(file: File, line: &str) -> Result<Command, Refusal> {
    let words = Words::of(line).unwrap();
    Command::parse(&words, file, &Kernel, &Grammar::default())
}

pub fn parse(line: &str) -> Result<Command, Refusal> {
    parse_in(File::KprobeEvents, line)
}

#[track_caller]
pub fn definition(line: &str) -> Definition {
    match parse(line) {
        Ok(Command::Create(definition)) => definition,
        other => panic!("{line}: {other:?}"),
    }
}

#[track_caller]
pub fn deletion(line: &str) -> Deletion {
    match parse(line) {
        Ok(Command::Delete(deletion)) => deletion,
        other => panic!("{line}: {other:?}"),
    }
}

/// Checks that the line of a file is refused for `reason`, with the caret where `^` marks the line.
#[track_caller]
pub fn refused_in(file: File, grammar: &Grammar, marked: &str, reason: Reason) {
    let column = marked.find('^').expect("the line marks its mistake");
    let line = marked.replacen('^', "", 1);
    let words = Words::of(&line).unwrap();
    let refusal = Command::parse(&words, file, &Kernel, grammar).expect_err(&line);
    assert_eq!(
        (refusal.reason, words.column(&refusal)),
        (reason, column),
        "{marked}"
    );
}

#[track_caller]
pub fn refused_by(grammar: &Grammar, marked: &str, reason: Reason) {
    refused_in(File::KprobeEvents, grammar, marked, reason);
}

#[track_caller]
pub fn refused(marked: &str, reason: Reason) {
    refused_by(&Grammar::default(), marked, reason);
}
