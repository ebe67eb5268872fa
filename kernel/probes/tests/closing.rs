//! The closing lines of a test binary: how this processor was seen to behave where processors
//! differ, and what was left out because it cannot do it. They are written when the process ends,
//! whatever became of the tests, and past the harness, which swallows what tests that pass have
//! printed.

use std::{
    collections::BTreeSet,
    io::Write,
    sync::{Mutex, Once, PoisonError},
};

static LINES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Says what the processor at hand did.
pub fn saw(what: &str) {
    add(format!("this processor: {what}"));
}

/// Says that `what` was not tested, for want of `lacking`.
pub fn left_out(what: &str, lacking: &str) {
    add(format!("left out: {what}, as there is no {lacking} here"));
}

fn add(line: String) {
    static AT_EXIT: Once = Once::new();
    // SAFETY: `write` may be called at any time.
    AT_EXIT.call_once(|| assert_eq!(unsafe { libc::atexit(write) }, 0));
    let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    lines.insert(line);
}

extern "C" fn write() {
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    // Nothing is left that could be told of an error.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
