//! The tasks whose calls the tracers record.
//!
//! # Contexts
//! [`Tasks::choose`]: one caller at a time. The rest: any, on the hit path.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::Agent;

/// A choice of tasks by their numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct TaskChoice<'a> {
    /// These only; if there are none, all.
    pub only: &'a [u32],
    /// Not these, whether they are among the others or not.
    pub without: &'a [u32],
}

impl TaskChoice<'_> {
    /// Whether no task is left out.
    pub(crate) const fn is_all(&self) -> bool {
        self.only.is_empty() && self.without.is_empty()
    }
}

/// A choice that hits read while it changes.
pub struct Tasks {
    only: Numbers,
    without: Numbers,
}

struct Numbers {
    count: AtomicU32,
    numbers: [AtomicU32; Tasks::MOST],
}

impl Numbers {
    const fn none() -> Self {
        Self {
            count: AtomicU32::new(0),
            numbers: [const { AtomicU32::new(0) }; Tasks::MOST],
        }
    }

    fn replace(&self, numbers: &[u32]) {
        for (place, number) in self.numbers.iter().zip(numbers) {
            place.store(*number, Relaxed);
        }
        let count = numbers.len().min(Tasks::MOST);
        self.count.store(count as u32, Relaxed);
    }

    fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    fn has(&self, number: u32) -> bool {
        let count = self.count.load(Relaxed) as usize;
        let mut chosen = self.numbers.iter().take(count);
        chosen.any(|place| place.load(Relaxed) == number)
    }
}

impl Tasks {
    /// How many tasks each list of a choice can have.
    pub const MOST: usize = 64;

    pub(crate) const fn all() -> Self {
        Self {
            only: Numbers::none(),
            without: Numbers::none(),
        }
    }

    /// Makes that choice, of which the numbers after the first [`Tasks::MOST`] of a list are left
    /// out. A call meanwhile may meet some of the old ones.
    pub fn choose(&self, choice: &TaskChoice<'_>) {
        self.only.replace(choice.only);
        self.without.replace(choice.without);
    }

    /// Whether the running task is chosen.
    pub(crate) fn have_current<A: Agent>(&self) -> bool {
        let number = A::this_cpu_tracing().task().0;
        !self.without.has(number) && (self.only.is_empty() || self.only.has(number))
    }
}
