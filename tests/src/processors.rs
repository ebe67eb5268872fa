//! The processors of this machine, which guests share.
//!
//! A guest takes one processor for four of its CPUs, because in most tests all but one of them are
//! idle. A guest that wants more than there are takes all. So time limits hold for a guest that has
//! the machine for itself, or a quarter of its CPUs.
//!
//! Guests get processors in the order in which they ask. Otherwise small ones could keep a large
//! one waiting for ever.
//!
//! # Locking
//! [`QUEUE`] is taken before [`FREE`], and held while its holder waits for free processors.

use std::{
    sync::{Condvar, LazyLock, Mutex, PoisonError},
    thread,
};

/// How many processors no guest has.
static FREE: LazyLock<Mutex<usize>> = LazyLock::new(|| Mutex::new(all()));
/// Some more are free.
static FREED: Condvar = Condvar::new();
/// The holder is the next to get processors.
static QUEUE: Mutex<()> = Mutex::new(());

/// How many processors this machine has.
pub(crate) fn all() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// How many processors a guest with `cpus` CPUs takes.
pub(crate) fn wanted(cpus: u32) -> usize {
    (cpus as usize).div_ceil(4).min(all())
}

/// Processors that are taken until this value is dropped.
#[derive(Debug)]
pub struct Taken(usize);

/// Waits until there is room for a guest with `cpus` CPUs. The room is its own while the value
/// exists.
pub fn for_guest(cpus: u32) -> Taken {
    take(wanted(cpus))
}

/// Waits until so many processors are free, and takes them. A panic of another holder leaves
/// nothing behind that concerns us.
fn take(count: usize) -> Taken {
    let _next = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    let free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut free = FREED
        .wait_while(free, |free| *free < count)
        .unwrap_or_else(PoisonError::into_inner);
    *free -= count;
    Taken(count)
}

impl Drop for Taken {
    fn drop(&mut self) {
        *FREE.lock().unwrap_or_else(PoisonError::into_inner) += self.0;
        FREED.notify_all();
    }
}
