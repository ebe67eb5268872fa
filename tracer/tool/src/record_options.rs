//! The options of `--record`.

use clap::Args;
use trace_wire::MOST_RING_KIB;

/// The options of the recorder.
#[derive(Clone, Debug, Default, Args)]
pub struct RecordOptions {
    /// Keep the last calls in the rings of the kernel that --connect leads to, or the last lines of
    /// PROGRAM, and show them when it dies or the recording ends
    #[arg(long, requires = "connect")]
    #[arg(conflicts_with_all = ["list", "graph", "json", "flame", "html", "expect", "source"])]
    pub record: bool,
    /// Which functions are recorded without a PROGRAM [default: '*']
    #[arg(long, value_name = "GLOB", requires = "record")]
    #[arg(conflicts_with_all = ["words", "file", "program"])]
    functions: Option<String>,
    /// How many calls or lines of a recording are shown [default: 60]
    #[arg(long, value_name = "N", requires = "record")]
    last: Option<usize>,
    /// KiB of memory for the records of each CPU [default: as the kernel has them]
    #[arg(long, value_name = "KIB", requires = "record")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_RING_KIB)))]
    pub ring: Option<u32>,
}

impl RecordOptions {
    /// Those functions.
    pub fn functions(&self) -> &str {
        self.functions.as_deref().unwrap_or("*")
    }

    /// That number.
    pub fn last(&self) -> usize {
        self.last.unwrap_or(60)
    }
}
