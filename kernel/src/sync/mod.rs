//! Locks.
//!
//! [`SpinLock`] is for data that interrupt handlers touch, and for data that is locked for a few
//! instructions. While it is held, interrupts are off and the task stays on its CPU. So the holder
//! may not sleep. It may not wait for another CPU's answer to an IPI either: that CPU may be
//! waiting for the lock. A CPU that waits for the lock keeps interrupts as its caller had them.
//!
//! [`Mutex`] is for everything else: waiting for it sleeps, and its holder may sleep too. Task
//! context only.
//!
//! No lock of this module may be taken in an NMI handler or in a probe handler, because the
//! interrupted code may hold it.

mod mutex;
mod spinlock;

pub use mutex::{Mutex, MutexGuard, RawMutex};
pub use spinlock::{SpinLock, SpinLockGuard};
