//! The lines in the serial log by which the host follows the runner.

use core::fmt;

const BEGIN: &str = "guest_tests: begin ";
const END: &str = "guest_tests: end ";

/// A message of the runner to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker<'a> {
    /// The test of this full name is about to run.
    Begin(&'a str),
    /// The test of this full name has returned.
    End(&'a str),
}

impl<'a> Marker<'a> {
    /// Returns the marker in a line of the log, which has a time stamp before it.
    pub fn find(line: &'a str) -> Option<Self> {
        let after = |prefix: &str| Some(line.split_once(prefix)?.1.trim_end());
        after(BEGIN)
            .map(Self::Begin)
            .or_else(|| after(END).map(Self::End))
    }
}

impl fmt::Display for Marker<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prefix, name) = match self {
            Self::Begin(name) => (BEGIN, name),
            Self::End(name) => (END, name),
        };
        write!(f, "{prefix}{name}")
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    #[test]
    fn markers_are_found_behind_a_time_stamp() {
        for marker in [Marker::Begin("a::b"), Marker::End("a::b")] {
            let line = format!("[    1.234567] {marker}\r");
            assert_eq!(Marker::find(&line), Some(marker));
        }
        assert_eq!(Marker::find("[    1.234567] pre_handler: p->addr"), None);
    }
}
