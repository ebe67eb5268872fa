//! The rules for probe handlers, and the end of the kernel if one breaks them.
//!
//! A handler runs between two instructions of any code. The probed code may hold the lock of the
//! heap or of the scheduler, interrupts may be off, and the guard of the CPU is held. So a handler
//! may not allocate or free, may not sleep, and may not take a lock that is waited for asleep.
//! Often a handler that does so gets away with it, until one day the machine hangs. These checks
//! end the kernel the first time, with a message that says what to do instead. The panic report
//! names the handler ([`super::running_handler`]).
//!
//! The checks are compiled in with the feature `handler-checks`. All kernels have it except the one
//! whose speed is measured. The checks are in the functions that handlers may not call, so none is
//! on the hit path.
//!
//! # Contexts
//! [`check`]: any. An interrupt may come in the middle of a handler. Its actions count as the
//! handler's, so interrupt handlers obey the same rules.

use crate::arch::percpu;

/// An action that is forbidden in a probe handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Taking memory from the heap, or giving it back.
    Allocation,
    /// Waiting for anything asleep, or giving the CPU away.
    Sleep,
    /// Taking a lock that is waited for asleep, whether or not it is free.
    SleepingLock,
}

impl Rule {
    /// The rest of a sentence about the handler: its action, and what to do instead.
    const fn sentence(self) -> &'static str {
        match self {
            Self::Allocation => {
                "uses the heap, whose lock the probed code may hold: allocate before the probe is \
                 registered, and free after it is unregistered"
            }
            Self::Sleep => {
                "sleeps, but the probed code may be anywhere, with interrupts off too: leave the \
                 work to a thread"
            }
            Self::SleepingLock => {
                "takes a lock that is waited for asleep: use atomics, or leave the work to a thread"
            }
        }
    }
}

/// Ends the kernel if a probe handler runs, because what comes next is forbidden to it.
#[inline(always)]
pub fn check(rule: Rule) {
    if cfg!(feature = "handler-checks") && percpu::in_probe_handler() {
        broken(rule);
    }
}

#[cold]
#[inline(never)]
fn broken(rule: Rule) -> ! {
    panic!("a probe handler {}", rule.sentence())
}
