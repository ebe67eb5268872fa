//! Boots the bench kernel and collects its measurements.

use std::{fmt, time::Duration};

use anyhow::{Result, bail};
use boot::{guest::End, qemu::Machine};
use test_protocol::{Measurement, Quantity, Skipped};

use crate::{Over, record};

/// A figure: the guest's count, and the number of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    pub total: u64,
    pub count: u64,
}

impl Value {
    pub fn as_f64(self) -> f64 {
        self.total as f64 / self.count as f64
    }
}

/// Prints a whole number as it is, any other to two places.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = if self.total.is_multiple_of(self.count) {
            format!("{}", self.total / self.count)
        } else {
            format!("{:.2}", self.as_f64())
        };
        f.pad_integral(true, "", &text)
    }
}

/// The measurements of one or more boots, in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Results {
    measured: Vec<(Quantity, String, Value)>,
    /// Rows that were not measured, and why.
    skipped: Vec<(String, String)>,
}

impl Results {
    /// Takes those in a guest's log.
    pub fn add(&mut self, log: &str) {
        self.measured
            .extend(log.lines().filter_map(Measurement::find).map(
                |Measurement {
                     quantity,
                     name,
                     total,
                     count,
                 }| { (quantity, name.into(), Value { total, count }) },
            ));
        self.skipped.extend(
            log.lines()
                .filter_map(Skipped::find)
                .map(|Skipped { name, reason }| (name.into(), reason.into())),
        );
    }

    /// All of one quantity.
    pub fn of(&self, wanted: Quantity) -> impl Iterator<Item = (&str, Value)> {
        self.measured
            .iter()
            .filter(move |(quantity, _, _)| *quantity == wanted)
            .map(|(_, name, value)| (name.as_str(), *value))
    }

    /// One of them.
    pub fn get(&self, quantity: Quantity, name: &str) -> Option<Value> {
        self.of(quantity)
            .find(|(other, _)| *other == name)
            .map(|(_, value)| value)
    }

    /// The rows that were not measured, and why.
    pub fn skipped(&self) -> impl Iterator<Item = (&str, &str)> {
        self.skipped
            .iter()
            .map(|(name, reason)| (name.as_str(), reason.as_str()))
    }

    /// Whether the row `name` has a figure or a reason to have none.
    pub fn accounts_for(&self, name: &str) -> bool {
        self.measured.iter().any(|(_, other, _)| other == name)
            || self.skipped().any(|(other, _)| other == name)
    }

    /// The names of the results that differ from `other`.
    pub fn differences<'a>(&'a self, other: &'a Self) -> Vec<&'a str> {
        let missing_in = |theirs: &Self, ours: &'a Self| -> Vec<&'a str> {
            let lost = ours
                .measured
                .iter()
                .filter(|result| !theirs.measured.contains(result));
            lost.map(|(_, name, _)| name.as_str()).collect()
        };
        let mut names = missing_in(other, self);
        names.extend(missing_in(self, other));
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Boots `machine` and adds its measurements to `results`.
///
/// # Errors
/// When it does not end well, with the end of its log.
pub fn collect(machine: &Machine, limit: Duration, results: &mut Results) -> Result<()> {
    /// Lines of the log that are shown when things go wrong.
    const LAST: usize = 40;
    let (over, log) = record(machine, limit)?;
    results.add(&log);
    let reason = match over {
        Over::Ended(End::Success) => return Ok(()),
        Over::Ended(end) => end.to_string(),
        Over::Hung(seconds) => {
            format!("the guest was not done within {seconds} s; --timeout sets another limit")
        }
    };
    let lines: Vec<&str> = log.lines().collect();
    let tail = lines[lines.len().saturating_sub(LAST)..].join("\n");
    bail!("{tail}\n{reason}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_whole_where_they_can_be() {
        let value = |total, count| Value { total, count }.to_string();
        assert_eq!(value(7000, 1000), "7");
        assert_eq!(value(7125, 1000), "7.12");
        assert_eq!(format!("{:>5}", Value { total: 7, count: 1 }), "    7");
    }

    #[test]
    fn results_are_read_from_a_log_and_compared() {
        let mut first = Results::default();
        first.add(
            "[    0.1] bench: cost base 7000/1000\r\n[    0.1] noise\n\
             [    0.2] bench: traps base 0/1000\n",
        );
        assert_eq!(
            first.get(Quantity::Cost, "base"),
            Some(Value {
                total: 7000,
                count: 1000
            })
        );
        assert_eq!(first.get(Quantity::Traps, "k_int3"), None);
        let mut second = first.clone();
        assert!(first.differences(&second).is_empty());
        second.add("[    0.3] bench: cost k_int3 1/1\n");
        assert_eq!(first.differences(&second), ["k_int3"]);
        assert!(second.accounts_for("k_int3") && !second.accounts_for("k_opt"));
        second.add("[    0.4] bench: skipped k_opt: no jumps\n");
        assert!(second.accounts_for("k_opt"));
    }
}
