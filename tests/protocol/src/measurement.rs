//! The lines in the serial log with the results of the benchmark.

use core::fmt;

const PREFIX: &str = "bench: ";

/// The measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Ticks per call: guest instructions, or cycles on hardware.
    Cost,
    /// Ticks per call of the worst of several targets.
    Worst,
    /// #BP and #DB exceptions per call.
    Traps,
    /// Bytes each.
    Memory,
    /// Hits per second.
    Rate,
    /// Ticks of a boot.
    Boot,
}

impl Quantity {
    const ALL: [(Self, &str); 6] = [
        (Self::Cost, "cost"),
        (Self::Worst, "worst"),
        (Self::Traps, "traps"),
        (Self::Memory, "memory"),
        (Self::Rate, "rate"),
        (Self::Boot, "boot"),
    ];
}

/// A result of the benchmark: a quantity, as a fraction, so that nothing is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurement<'a> {
    pub quantity: Quantity,
    /// Name of the row.
    pub name: &'a str,
    /// How much for all together.
    pub total: u64,
    /// How many calls (probes, seconds) that is for.
    pub count: u64,
}

impl<'a> Measurement<'a> {
    /// Returns the measurement in a line of the log, which has a time stamp before it.
    pub fn find(line: &'a str) -> Option<Self> {
        let mut words = line.split_once(PREFIX)?.1.split_whitespace();
        let (word, name) = (words.next()?, words.next()?);
        let (quantity, _) = Quantity::ALL.into_iter().find(|(_, text)| *text == word)?;
        let (total, count) = words.next()?.split_once('/')?;
        Some(Self {
            quantity,
            name,
            total: total.parse().ok()?,
            count: count.parse().ok().filter(|count| *count > 0)?,
        })
    }
}

impl fmt::Display for Measurement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Quantity::ALL
            .into_iter()
            .find(|(quantity, _)| *quantity == self.quantity);
        let word = known.map_or("", |(_, word)| word);
        write!(
            f,
            "{PREFIX}{word} {} {}/{}",
            self.name, self.total, self.count
        )
    }
}

/// A row that was not measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skipped<'a> {
    /// Name of the row.
    pub name: &'a str,
    /// Why, in words.
    pub reason: &'a str,
}

impl<'a> Skipped<'a> {
    const WORD: &'static str = "skipped ";

    /// Returns the row that was skipped, according to a line of the log.
    pub fn find(line: &'a str) -> Option<Self> {
        let rest = line.split_once(PREFIX)?.1.strip_prefix(Self::WORD)?;
        let (name, reason) = rest.split_once(": ")?;
        Some(Self {
            name,
            reason: reason.trim_end(),
        })
    }
}

impl fmt::Display for Skipped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}{}: {}", Self::WORD, self.name, self.reason)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    #[test]
    fn measurements_are_found_behind_a_time_stamp() {
        for (quantity, _) in Quantity::ALL {
            let measurement = Measurement {
                quantity,
                name: "k_int3",
                total: 7_800_000_000,
                count: 1000,
            };
            let line = format!("[    1.234567] {measurement}\r");
            assert_eq!(Measurement::find(&line), Some(measurement));
        }
        assert_eq!(
            Measurement::find("[    1.234567] bench: cost k_int3 7/0"),
            None
        );
        assert_eq!(
            Measurement::find("[    1.234567] bench.set=x is unknown"),
            None
        );
    }

    #[test]
    fn skipped_rows_are_no_measurements() {
        let skipped = Skipped {
            name: "k_opt",
            reason: "nothing to measure: none built",
        };
        let line = format!("[    1.234567] {skipped}\r");
        assert_eq!(Skipped::find(&line), Some(skipped));
        assert_eq!(Measurement::find(&line), None);
        assert_eq!(Skipped::find("[    1.2] bench: cost base 7/1"), None);
    }
}
