//! Triggers that act on something else than their own event: all recording, another event, a watch.
//!
//! A program calls the helper `Trigger` with a number and a value. The number is that of a slot
//! here, which says what to do and how often. The value is the address that a watch is aimed at.
//!
//! # Invariants
//! DEED-1. A slot is taken before a program has its number, and free again when no program has
//!     it: after the grace period of its unregistration. So a hit never acts for another trigger.
//! DEED-2. Any program may name any number. So a slot keeps what it leads to until a grace period
//!     has passed since it was given up.
//!
//! # Contexts and ordering
//! [`act`]: on the hit path, any context; it only loads, stores and exchanges. Slots are
//! filled with Release and read with Acquire. Taking and freeing: tasks that may sleep, one at a
//! time ([`CHANGE`]), because events and commands on functions have different locks.

use core::sync::atomic::{
    AtomicPtr, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use fallible::Shared;

use super::{TRACING, dump_requests::ask, program::WatchPlace, take_snapshot};
use crate::{
    arch::percpu,
    probes::{AimedAt, PROBES},
    sync::Mutex,
};

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
    /// A watch is aimed at the value, if it is aimed at nothing.
    SetWatch,
    /// A watch is aimed at nothing.
    ClearWatch,
    /// A watch is aimed at nothing, if it is aimed at the value.
    ClearWatchAt,
    /// The histograms of another event count.
    EnableHist,
    DisableHist,
}

/// Who takes or frees a slot holds it, until the slot is filled, or nobody can act for it any more.
static CHANGE: Mutex<()> = Mutex::new(());

struct Slot {
    /// A [`Deed`].
    deed: AtomicU64,
    /// How often it still acts.
    left: AtomicU64,
    /// The switch of another event, or the word of its histograms, which [`Taken`] keeps alive.
    /// Null if recording as a whole is switched.
    switch: AtomicPtr<AtomicU64>,
    /// The watch of another event, which [`Taken`] keeps alive, or null.
    watch: AtomicPtr<WatchPlace>,
    /// How often a watch could not be aimed at the value.
    missed: AtomicU64,
}

static SLOTS: [Slot; MOST] = [const {
    Slot {
        deed: AtomicU64::new(Deed::Nothing as u64),
        left: AtomicU64::new(0),
        switch: AtomicPtr::new(core::ptr::null_mut()),
        watch: AtomicPtr::new(core::ptr::null_mut()),
        missed: AtomicU64::new(0),
    }
}; MOST];

impl Slot {
    /// Takes one of the times that it still acts. False: none is left.
    #[inline(always)]
    fn take_turn(&self) -> bool {
        let next = |left: u64| match left {
            0 => None,
            UNLIMITED => Some(UNLIMITED),
            left => Some(left - 1),
        };
        self.left.fetch_update(Relaxed, Relaxed, next).is_ok()
    }
}

/// A slot in use. Free again when it is dropped (DEED-1), which waits for a grace period (DEED-2).
pub struct Taken {
    number: usize,
    /// What the slot leads to.
    _switch: Option<Shared<AtomicU64>>,
    _watch: Option<Shared<WatchPlace>>,
}

/// What a slot leads to.
#[derive(Default)]
pub struct Other {
    /// The switch of another event, or the word of its histograms.
    pub switch: Option<Shared<AtomicU64>>,
    /// The watch of that event.
    pub watch: Option<Shared<WatchPlace>>,
}

impl Taken {
    /// Takes a slot for `deed`, to be done at most `count` times. None: all are in use.
    pub fn new(deed: Deed, count: Option<u64>, other: Other) -> Option<Self> {
        let Other { switch, watch } = other;
        let _change = CHANGE.lock();
        let is_free = |slot: &Slot| slot.deed.load(Relaxed) == Deed::Nothing as u64;
        let number = SLOTS.iter().position(is_free)?;
        let slot = &SLOTS[number];
        let place = switch
            .as_deref()
            .map_or(core::ptr::null(), core::ptr::from_ref);
        slot.switch.store(place.cast_mut(), Relaxed);
        let place = watch
            .as_deref()
            .map_or(core::ptr::null(), core::ptr::from_ref);
        slot.watch.store(place.cast_mut(), Relaxed);
        slot.missed.store(0, Relaxed);
        let taken = Self {
            number,
            _switch: switch,
            _watch: watch,
        };
        taken.set_left(count);
        slot.deed.store(deed as u64, Release);
        Some(taken)
    }

    /// Sets how often it acts from now on; None: always.
    pub fn set_left(&self, count: Option<u64>) {
        SLOTS[self.number]
            .left
            .store(count.unwrap_or(UNLIMITED), Relaxed);
    }

    /// The number for programs.
    pub fn number(&self) -> i32 {
        self.number as i32
    }

    /// How often a watch could not be aimed at what was found.
    pub fn missed(&self) -> u64 {
        SLOTS[self.number].missed.load(Relaxed)
    }

    /// How often it still acts; None: always.
    pub fn left(&self) -> Option<u64> {
        Some(SLOTS[self.number].left.load(Relaxed)).filter(|left| *left != UNLIMITED)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let _change = CHANGE.lock();
        SLOTS[self.number].deed.store(Deed::Nothing as u64, Release);
        PROBES.synchronize_hits();
    }
}

/// The helper `Trigger`. Returns whether the trigger acts. One that would change nothing keeps its
/// count.
#[inline(always)]
pub(super) fn act(number: u64, value: u64) -> u64 {
    let Some(slot) = SLOTS.get(number as usize) else {
        return 0;
    };
    let deed = slot.deed.load(Acquire);
    if deed == Deed::Nothing as u64 {
        return 0;
    }
    // SAFETY: null, or the watch that the slot keeps until no hit can be here any more (DEED-2).
    if let Some(watch) = unsafe { slot.watch.load(Relaxed).as_ref() } {
        return aim(slot, watch, deed, value);
    }
    // SAFETY: null, or the switch that the slot keeps until no hit can be here any more (DEED-2).
    let switch = unsafe { slot.switch.load(Relaxed).as_ref() };
    let on = deed == Deed::TraceOn as u64 || deed == Deed::EnableEvent as u64;
    let off = deed == Deed::TraceOff as u64 || deed == Deed::DisableEvent as u64;
    if on || off {
        // The count is lowered by who has changed something, so CPUs that come here at once take
        // one turn together.
        if slot.left.load(Relaxed) == 0 || !turn(switch, on) {
            return 0;
        }
        slot.take_turn();
        return 1;
    }
    if !slot.take_turn() {
        return 0;
    }
    if deed == Deed::Snapshot as u64 {
        take_snapshot();
    } else if deed == Deed::Dump as u64 {
        ask(None);
    } else if deed == Deed::CpuDump as u64 {
        ask(Some(percpu::cpu_id()));
    } else if let Some(paused) = switch {
        // All of them, a bit each.
        let none = deed == Deed::EnableHist as u64;
        paused.store(if none { 0 } else { u64::MAX }, Relaxed);
    }
    1
}

/// Turns `switch`, or recording as a whole, on or off. Returns whether it was the other way.
#[inline(always)]
fn turn(switch: Option<&AtomicU64>, on: bool) -> bool {
    match switch {
        Some(switch) => {
            let value = u64::from(on);
            switch.load(Relaxed) != value && switch.swap(value, Relaxed) != value
        }
        None => {
            let recording = TRACING.recording.wanted();
            recording.load(Relaxed) != on && recording.swap(on, Relaxed) != on
        }
    }
}

/// [`act`] for a watch. It is aimed before the count is lowered, because only a watch that moves
/// counts.
#[inline(never)]
fn aim(slot: &Slot, watch: &WatchPlace, deed: u64, value: u64) -> u64 {
    let (from, to) = match deed {
        _ if slot.left.load(Relaxed) == 0 => return 0,
        deed if deed == Deed::SetWatch as u64 => (AimedAt::Nothing, Some(value)),
        // There is nothing to clear.
        _ if watch.addr() == 0 => return 0,
        deed if deed == Deed::ClearWatchAt as u64 => (AimedAt::This(value), None),
        _ => (AimedAt::Anything, None),
    };
    match watch.aim(from, to) {
        Ok(true) => {}
        Ok(false) => return 0,
        Err(_) => {
            slot.missed.fetch_add(1, Relaxed);
            return 0;
        }
    }
    // SAFETY: as in `act`.
    if let Some(switch) = unsafe { slot.switch.load(Relaxed).as_ref() } {
        switch.store(to.is_some().into(), Relaxed);
    }
    slot.take_turn();
    1
}
