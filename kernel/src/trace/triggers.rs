//! Triggers that act on something else than their own event: all recording, or another event.
//!
//! A program calls the helper `Trigger` with a number. The number is that of a slot here, which
//! says what to do and how often.
//!
//! # Invariants
//! DEED-1. A slot is taken before a program has its number, and free again when no program has
//!     it: after the grace period of its unregistration. So a hit never acts for another trigger.
//! DEED-2. Any program may name any number. So a slot keeps what it leads to until a grace period
//!     has passed since it was given up.
//!
//! # Contexts and ordering
//! [`act`]: on the hit path, any context; it only loads, stores and exchanges. Slots are
//! filled with Release and read with Acquire. Taking and freeing: under the lock of the events.

use core::sync::atomic::{
    AtomicPtr, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use fallible::Shared;

use super::{TRACING, dump_requests::ask, take_snapshot};
use crate::{arch::percpu, probes::PROBES};

/// The most triggers at once.
pub const MOST: usize = 256;
/// The count of a trigger that acts at every hit.
const UNLIMITED: u64 = u64::MAX;

/// The act of a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Deed {
    Nothing = 0,
    TraceOn,
    TraceOff,
    EnableEvent,
    DisableEvent,
    /// The program does it, if the helper says so.
    StackTrace,
    Snapshot,
    /// All records go to the console.
    Dump,
    /// Those of the CPU go there.
    CpuDump,
}

struct Slot {
    /// A [`Deed`].
    deed: AtomicU64,
    /// How often it still acts.
    left: AtomicU64,
    /// The switch of another event, which [`Taken`] keeps alive. Null if recording as a whole is
    /// switched.
    switch: AtomicPtr<AtomicU64>,
}

static SLOTS: [Slot; MOST] = [const {
    Slot {
        deed: AtomicU64::new(Deed::Nothing as u64),
        left: AtomicU64::new(0),
        switch: AtomicPtr::new(core::ptr::null_mut()),
    }
}; MOST];

/// A slot in use. Free again when it is dropped (DEED-1), which waits for a grace period (DEED-2).
pub struct Taken {
    number: usize,
    /// What the slot leads to.
    _switch: Option<Shared<AtomicU64>>,
}

impl Taken {
    /// Takes a slot for `deed`, to be done at most `count` times. None: all are in use. `switch` is
    /// that of the other event.
    pub fn new(deed: Deed, count: Option<u64>, switch: Option<Shared<AtomicU64>>) -> Option<Self> {
        let is_free = |slot: &Slot| slot.deed.load(Relaxed) == Deed::Nothing as u64;
        let number = SLOTS.iter().position(is_free)?;
        let slot = &SLOTS[number];
        let place = switch
            .as_deref()
            .map_or(core::ptr::null(), core::ptr::from_ref);
        slot.switch.store(place.cast_mut(), Relaxed);
        slot.left.store(count.unwrap_or(UNLIMITED), Relaxed);
        slot.deed.store(deed as u64, Release);
        Some(Self {
            number,
            _switch: switch,
        })
    }

    /// The number for programs.
    pub fn number(&self) -> i32 {
        self.number as i32
    }

    /// How often it still acts; None: always.
    pub fn left(&self) -> Option<u64> {
        Some(SLOTS[self.number].left.load(Relaxed)).filter(|left| *left != UNLIMITED)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        SLOTS[self.number].deed.store(Deed::Nothing as u64, Release);
        PROBES.synchronize_hits();
    }
}

/// The helper `Trigger`. Returns whether the trigger acts. One that would change nothing keeps its
/// count.
#[inline(always)]
pub(super) fn act(number: u64) -> u64 {
    let Some(slot) = SLOTS.get(number as usize) else {
        return 0;
    };
    let deed = slot.deed.load(Acquire);
    if deed == Deed::Nothing as u64 {
        return 0;
    }
    // SAFETY: null, or the switch that the slot keeps until no hit can be here any more (DEED-2).
    let switch = unsafe { slot.switch.load(Relaxed).as_ref() };
    let is_on = switch.map_or(TRACING.recording.wanted().load(Relaxed), |switch| {
        switch.load(Relaxed) != 0
    });
    let on = deed == Deed::TraceOn as u64 || deed == Deed::EnableEvent as u64;
    let off = deed == Deed::TraceOff as u64 || deed == Deed::DisableEvent as u64;
    if on && is_on || off && !is_on {
        return 0;
    }
    let mut left = slot.left.load(Relaxed);
    loop {
        if left == 0 {
            return 0;
        }
        if left == UNLIMITED {
            break;
        }
        match slot
            .left
            .compare_exchange(left, left.wrapping_sub(1), Relaxed, Relaxed)
        {
            Ok(_) => break,
            Err(now) => left = now,
        }
    }
    if on || off {
        match switch {
            Some(switch) => switch.store(on.into(), Relaxed),
            None => TRACING.recording.wanted().store(on, Relaxed),
        }
    } else if deed == Deed::Snapshot as u64 {
        take_snapshot();
    } else if deed == Deed::Dump as u64 {
        ask(None);
    } else if deed == Deed::CpuDump as u64 {
        ask(Some(percpu::cpu_id()));
    }
    1
}
