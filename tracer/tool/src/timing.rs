//! `--timing`: how long each step took.

use std::time::{Duration, Instant};

use boot::progress::say;

/// Tells how long the steps took, if that is wanted.
pub struct Timing {
    wanted: bool,
    last: Instant,
    /// When this program began; the process may be older.
    begin: Instant,
    answered: bool,
}

impl Timing {
    /// Begins now.
    pub fn new(wanted: bool) -> Self {
        let now = Instant::now();
        Self {
            wanted,
            last: now,
            begin: now,
            answered: false,
        }
    }

    /// A step is done.
    pub fn step(&mut self, what: &str) {
        let now = Instant::now();
        if self.wanted {
            let time = now.duration_since(self.last);
            say(format_args!(
                "{what}: {:.1} ms",
                time.as_secs_f64() * 1000.0
            ));
        }
        self.last = now;
    }

    /// The first line of the program's output has been written.
    pub fn answer(&mut self) {
        if self.wanted && !std::mem::replace(&mut self.answered, true) {
            let time = age_of_process().unwrap_or_else(|| self.begin.elapsed());
            say(format_args!(
                "from the command to the first answer: {:.2} s",
                time.as_secs_f64()
            ));
        }
    }
}

/// How long ago this process began. Cargo, the command that it runs and this program are one
/// process, so that is the time since the user typed the command. None: the system does not tell.
fn age_of_process() -> Option<Duration> {
    // Linux counts in hundredths of a second for all programs, whatever the kernel's own unit is.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    // The name, in parentheses, may have any text in it. After it comes field 3.
    let (_, fields) = stat.rsplit_once(')')?;
    let start: f64 = fields.split_ascii_whitespace().nth(22 - 3)?.parse().ok()?;
    let now: f64 = uptime.split_ascii_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(now - start / TICKS).ok()
}
