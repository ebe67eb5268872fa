//! Finds out that a guest hangs.

use std::time::{Duration, Instant};

/// Finds out that a guest does not get on.
#[derive(Debug)]
pub struct Watchdog {
    limit: Duration,
    /// The word [`FED`](trace_wire::outbox::FED), and since when it has that value. None: the trace
    /// has not begun.
    seen: Option<(u64, Instant)>,
    barked: bool,
}

impl Watchdog {
    /// One for a guest that hangs when it has not got on for so long.
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            seen: None,
            barked: false,
        }
    }

    /// Whether it barks, for the first time.
    pub fn barks(&mut self, fed: Option<u64>, now: Instant) -> bool {
        // Before the first tick the kernel boots or attaches, and both may take long.
        let Some(fed) = fed.filter(|fed| *fed != 0) else {
            return false;
        };
        match self.seen {
            Some((before, since)) if before == fed => {
                let late = now.saturating_duration_since(since) >= self.limit;
                late && !std::mem::replace(&mut self.barked, true)
            }
            _ => {
                self.seen = Some((fed, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_barks_once_when_nothing_has_changed_for_its_time() {
        let mut watchdog = Watchdog::new(Duration::from_secs(5));
        let start = Instant::now();
        let second = Duration::from_secs(1);
        assert!(!watchdog.barks(None, start));
        // 0 is the kernel before the first tick, for however long.
        assert!(!watchdog.barks(Some(0), start));
        assert!(!watchdog.barks(Some(0), start + 9 * second));
        assert!(!watchdog.barks(Some(1), start + 10 * second));
        assert!(!watchdog.barks(Some(2), start + 14 * second));
        assert!(!watchdog.barks(Some(2), start + 18 * second));
        assert!(watchdog.barks(Some(2), start + 19 * second));
        assert!(!watchdog.barks(Some(2), start + 20 * second));
    }
}
