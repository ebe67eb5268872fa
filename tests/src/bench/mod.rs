//! The host's side of `cargo bench`: boots the bench kernel, collects its measurements, and shows
//! them.
//!
//! ```text
//!   options    the command line
//!   rows       the names of the rows, and the boots that measure them
//!   run        boots and collects
//!   linux      the cost of the same under Linux 6.1
//!   table      for people
//!   json       for programs: target/bench/probes.json
//!   plot       pictures: target/bench/*.svg
//!   document   the tables of docs/cost.md
//! ```

pub mod document;
pub mod json;
pub mod linux;
pub mod options;
pub mod plot;
pub mod rows;
pub mod run;
pub mod table;

pub use options::Options;
pub use run::{Results, Value, collect};

/// The unit of a row's figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Guest instructions, under emulation that counts them.
    Instructions,
    /// Cycles of the time stamp counter, on hardware.
    Cycles,
}

impl Unit {
    /// The name in the JSON file.
    pub fn per_call(self) -> &'static str {
        match self {
            Self::Instructions => "guest instructions per call",
            Self::Cycles => "cycles per call",
        }
    }
}
