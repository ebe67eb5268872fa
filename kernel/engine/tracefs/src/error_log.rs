//! The file `error_log`: what was wrong with the last lines that were refused.
//!
//! ```text
//! [   12.345678] trace_kprobe: error: Invalid register name
//!   Command: p vfs_read %rax
//!                       ^
//! ```
//!
//! It keeps the last [`ErrorLog::MOST`] entries. The owner locks it, because two writers may be
//! refused at once.

use crate::{
    commands::{BadLine, Words},
    definition::{File, ProbePlace},
    filter::FilterError,
    refusal::Refusal,
};
use alloc::{collections::VecDeque, string::String};
use core::fmt;

use fallible::written;

/// The name that kprobe events have in the log.
pub const KPROBE: &str = "trace_kprobe";

/// The name that events of programs have in the log.
pub const UPROBE: &str = "trace_uprobe";

/// The name that watches have in the log.
pub const WPROBE: &str = "trace_wprobe";
/// The name that triggers have there which aim watches.
pub const WPROBE_TRIGGER: &str = "wprobe_trigger";

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub struct ErrorLog {
    entries: VecDeque<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    time_ns: u64,
    source: String,
    text: String,
    command: String,
    column: usize,
}

impl ErrorLog {
    /// The most entries.
    pub const MOST: usize = 8;

    /// An empty log.
    pub const fn new() -> Self {
        Self {
            entries: VecDeque::new(),
        }
    }

    /// Adds an entry: at `time_ns` since the boot, the filter `text` was refused.
    pub fn add_refused_filter(&mut self, time_ns: u64, error: &FilterError, text: &str) {
        let (reason, location) = (error.reason.text(), FilterError::LOCATION);
        self.add(time_ns, location, &reason, &text, error.column);
    }

    /// Adds an entry: at `time_ns` since the boot, `source` refused `command` because of `text`,
    /// and the mistake is at `column`. Without memory nothing is added.
    pub fn add(
        &mut self,
        time_ns: u64,
        source: &str,
        text: &dyn fmt::Display,
        command: &dyn fmt::Display,
        column: usize,
    ) {
        while self.entries.len() >= Self::MOST {
            self.entries.pop_front();
        }
        let entry = || {
            Some(Entry {
                time_ns,
                source: written(&source).ok()?,
                text: written(text).ok()?,
                command: written(command).ok()?,
                column,
            })
        };
        if self.entries.try_reserve(1).is_ok()
            && let Some(entry) = entry()
        {
            self.entries.push_back(entry);
        }
    }

    /// Adds the refusal of a command of `file`.
    pub fn add_refusal(&mut self, time_ns: u64, file: File, words: &Words<'_>, refusal: &Refusal) {
        self.add(
            time_ns,
            source(file, words),
            &refusal.reason,
            words,
            words.column(refusal),
        );
    }

    /// Adds a line that has no words.
    pub fn add_bad_line(&mut self, time_ns: u64, bad: &BadLine<'_>) {
        self.add(time_ns, KPROBE, &bad.reason, &bad.shown, bad.column);
    }

    /// Forgets all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
    }
}

/// The name in the log of the events that a command is about.
fn source(file: File, words: &Words<'_>) -> &'static str {
    let is_in_program = || {
        let place = words.get(Refusal::PLACE);
        place.is_some_and(ProbePlace::is_in_program)
    };
    match file {
        File::UprobeEvents => UPROBE,
        File::KprobeEvents => KPROBE,
        File::DynamicEvents if words.first().starts_with('w') => WPROBE,
        File::DynamicEvents if is_in_program() => UPROBE,
        File::DynamicEvents => KPROBE,
    }
}

impl fmt::Display for ErrorLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Entry {
            time_ns,
            source,
            text,
            command,
            column,
        } in &self.entries
        {
            let (seconds, micros) = (time_ns / 1_000_000_000, time_ns / 1000 % 1_000_000);
            writeln!(f, "[{seconds:5}.{micros:06}] {source}: error: {text}")?;
            writeln!(f, "  Command: {command}")?;
            writeln!(f, "{:1$}^", "", "  Command: ".len() + column)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::Reason;
    use alloc::{format, string::ToString};

    #[test]
    fn entry_shows_the_mistake_under_the_command() {
        let mut log = ErrorLog::new();
        let words = Words::of("p  vfs_read\t%rax").unwrap();
        let refusal = Refusal::new(Reason::BadRegister, 2, 0);
        log.add_refusal(12_345_678_999, File::KprobeEvents, &words, &refusal);
        let text = "[   12.345678] trace_kprobe: error: Invalid register name\n  \
                    Command: p vfs_read %rax\n                      ^\n";
        assert_eq!(log.to_string(), text);
        // The selftests measure the last line: 13 and the column, with its newline.
        assert_eq!(
            text.lines().last().unwrap().len() + 1,
            13 + "p vfs_read ".len()
        );
    }

    #[test]
    fn last_eight_stay() {
        let mut log = ErrorLog::new();
        for number in 0..10 {
            log.add(0, KPROBE, &number, &"p", 0);
        }
        let text = log.to_string();
        assert_eq!(text.lines().count(), 8 * 3);
        assert!(text.starts_with("[    0.000000] trace_kprobe: error: 2\n"));
        assert!(text.contains(&format!("error: {}\n", 9)));
        log.clear();
        assert_eq!(log.to_string(), "");
    }

    #[test]
    fn column_of_a_long_command_is_not_limited() {
        let mut log = ErrorLog::new();
        log.add(0, KPROBE, &"x", &"y".repeat(4000), 3999);
        assert_eq!(log.to_string().lines().last().unwrap().len(), 11 + 3999 + 1);
    }
}
