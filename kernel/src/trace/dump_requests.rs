//! Who may ask for a dump of the buffer, and what is asked for. [`super::dump`] prints it.
//!
//! A hit may not print. So it ends the recording, and leaves here what is to be printed.
//!
//! # Contexts
//! [`ask`]: on the hit path, any context. The rest: tasks that may sleep.

use core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{AcqRel, Release},
};

use super::TRACING;
use crate::{
    arch::percpu::MAX_CPUS,
    sync::{Mutex, MutexGuard},
};

/// A dump of all CPUs is asked for.
static ALL_ASKED: AtomicBool = AtomicBool::new(false);
/// The CPUs of which one is asked for, as bits.
static CPUS_ASKED: AtomicU64 = AtomicU64::new(0);

const _: () = assert!(MAX_CPUS <= u64::BITS as usize);

/// Ends the recording, and asks for a dump of that CPU, or of all.
#[inline(always)]
pub(super) fn ask(cpu: Option<usize>) {
    TRACING.recording.wanted().store(false, Release);
    match cpu {
        None => ALL_ASKED.store(true, Release),
        Some(cpu) => _ = CPUS_ASKED.fetch_or(1_u64.wrapping_shl(cpu as u32), AcqRel),
    }
}

/// What is asked for: whether all CPUs, and which. No other caller gets it then.
pub(super) fn take() -> (bool, u64) {
    (ALL_ASKED.swap(false, AcqRel), CPUS_ASKED.swap(0, AcqRel))
}

/// Those who may ask, and whether there is the task that prints.
pub(super) struct Askers {
    pub(super) count: usize,
    pub(super) has_task: bool,
}

static ASKERS: Mutex<Askers> = Mutex::new(Askers {
    count: 0,
    has_task: false,
});

/// Those who may ask.
pub(super) fn askers() -> MutexGuard<'static, Askers> {
    ASKERS.lock()
}

/// One who may ask. As long as there is any, the task that prints does not end.
pub struct Asker(());

impl Asker {
    /// One more.
    pub(super) fn new(askers: &mut Askers) -> Self {
        askers.count += 1;
        Self(())
    }

    /// One more, while another one is there.
    pub fn another() -> Self {
        Self::new(&mut askers())
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        askers().count -= 1;
    }
}
