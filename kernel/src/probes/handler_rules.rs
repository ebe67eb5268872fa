//! What a probe handler must not do, and the end of one that does it.
//!
//! A handler runs between two instructions of any code: with a lock of the heap or of the scheduler held below it, with
//! interrupts off, with its CPU's guard taken. So it may not allocate or free, not sleep, and not take a lock that is waited for
//! asleep. Most of the time nothing comes of it, and then once the machine hangs. Here it ends the first time, with a
//! message that names the handler and what to do instead.
//!
//! The checks are in kernels with the feature `handler-checks`, which all have but the one whose speed is measured. They are
//! at the doors of what is forbidden, none is on the way of a hit.
//!
//! # Contexts
//! [`check`]: any. What an interrupt does that comes in the middle of a handler counts as done by the handler: interrupt
//! handlers obey the same rules.

use core::fmt;

use super::{PROBES, blacklist};
use crate::{
    arch::percpu,
    backtrace,
    symbols::{self, Address, Symbol},
};
use ::probes::kprobe::Kind;

/// What is forbidden in a probe handler.
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
    /// What the handler did, and what it should do.
    const fn sentence(self) -> &'static str {
        match self {
            Self::Allocation => {
                "uses the heap, whose lock the probed code may hold: allocate before the probe is registered, and free after it is \
                 unregistered"
            }
            Self::Sleep => {
                "sleeps, but the probed code may be anywhere, with interrupts off too: leave the work to a thread"
            }
            Self::SleepingLock => {
                "takes a lock that is waited for asleep: use atomics, or leave the work to a thread"
            }
        }
    }
}

/// Ends the kernel if a probe handler runs, as what comes next is forbidden to it.
#[inline(always)]
pub fn check(rule: Rule) {
    if cfg!(feature = "handler-checks") && percpu::in_probe_handler() {
        broken(rule);
    }
}

#[cold]
#[inline(never)]
fn broken(rule: Rule) -> ! {
    panic!("{Culprit} {}", rule.sentence())
}

/// Prints as the handler that runs, and its probe.
struct Culprit;

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let running = PROBES.running_probe();
        let handler = match running {
            Some((_, Some(jprobe_entry))) => symbols::lookup_addr(jprobe_entry),
            _ => outermost_handler(),
        };
        match handler {
            Some(symbol) => write!(f, "probe handler {symbol}")?,
            None => f.write_str("a probe handler")?,
        }
        let Some((probe, _)) = running else {
            return Ok(());
        };
        let kind = match probe.kind() {
            Kind::Kprobe => "kprobe",
            Kind::Jprobe => "jprobe",
            Kind::Kretprobe => "kretprobe",
            Kind::Trampoline => "return trampoline",
        };
        write!(
            f,
            " of the {kind} at {}",
            Address::of_instruction(probe.addr())
        )
    }
}

/// The function that the probes have called: the last one before the code of a hit.
fn outermost_handler() -> Option<Symbol<'static>> {
    backtrace::walk_current()
        .take_while(|frame| blacklist::reason(frame.code_address()).is_none())
        .filter_map(|frame| symbols::lookup_addr(frame.code_address()))
        .filter(|symbol| !is_wrapper(symbol))
        .last()
}

/// Whether a function, by its mangled name, only calls a handler: glue of the probes or of a closure.
fn is_wrapper(symbol: &Symbol<'_>) -> bool {
    ["_ZN6probes", "_ZN4core3ops8function"]
        .iter()
        .any(|glue| symbol.name.starts_with(glue))
}
