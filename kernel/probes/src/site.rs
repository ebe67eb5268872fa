//! A site: one probed address and all the probes on it (Linux's aggregate).
//!
//! The first probe at an address makes the site, the last one to leave takes it away. What a hit reads is
//! either constant while the site is in the address table or atomic; all writers hold the registry's lock.
//!
//! # Invariants
//! I1. The list runs from the newest probe to the oldest, a jprobe last whatever its age.
//! I2. A probe that was unlinked keeps its `next` until a grace period is over, so a hit can walk on from it.
//! I3. `post_slot` or `emulate` is set before a probe with a post handler is linked.

use core::{
    ptr::null_mut,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering},
};

use crate::{
    insn::{FlagsOp, Insn, StepCopy, Translation},
    kprobe::{Kind, Kprobe},
};

/// See the module's text.
pub struct Site {
    /// The address + 1: what the processor reports after the breakpoint, and the key of the address table.
    pub(crate) key: u64,
    /// Where the translated instruction is, ending in a jump back. Needs no guard.
    pub(crate) slot: u64,
    pub(crate) slot_stack: StackCorrections,
    /// Where the translation that ends in the post stub is; 0 while no probe here has a post handler.
    pub(crate) post_slot: AtomicU64,
    pub(crate) post_stack: StackCorrections,
    /// A post slot that nobody enters any more, to be freed after the grace period.
    pub(crate) retired_post_slot: AtomicU64,
    /// Set while a probe here has a post handler and the instruction is one that is [`Site::emulated`].
    pub(crate) emulate: AtomicBool,
    /// With a post handler the instruction is carried out on the saved registers, not in a slot.
    pub(crate) emulated: Option<Emulated>,
    /// In single-step mode: the copy to step, and where it is.
    pub(crate) step: Option<(u64, StepCopy)>,
    /// The newest probe.
    pub(crate) first: AtomicPtr<Kprobe>,
    /// The first byte of the instruction.
    pub(crate) opcode: u8,
    /// The instruction as it is without probes. None only in the table's sentinels.
    pub(crate) insn: Option<Insn>,
    /// The address of the next instruction.
    pub(crate) next_ip: u64,
    /// Whether the breakpoint is in the text.
    pub(crate) armed: AtomicBool,
    /// The text was freed: never write it again.
    pub(crate) gone: AtomicBool,
    /// Whether the operation under way writes this site's text.
    pub(crate) to_write: AtomicBool,
    /// The next site of the operation under way. The last one points to itself; null: in none.
    pub(crate) touched: AtomicPtr<Site>,
}

/// Instructions that are carried out on the saved registers where a post handler waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Emulated {
    /// Its effect on the interrupt flag must not be felt before the post handler is done.
    Flags(FlagsOp),
    /// Its target and what it pops are known from the stack at once. After the address it discards so many bytes.
    Return(u16),
}

/// What to add to RSP at each place of a slot to get the probed code's stack pointer: pairs of the first offset and the
/// correction from there on. Kept apart from the translation, so that a fault needs no translator.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StackCorrections([(u8, i32); 6]);

impl StackCorrections {
    /// The corrections of `code`; none if it needs more than fit, which no translation does.
    pub(crate) fn of(code: &Translation) -> Option<Self> {
        let mut all = Self::default();
        let mut count = 0;
        let mut last = 0;
        for offset in 0..code.code().len() {
            let correction = code.rsp_correction(offset);
            if correction != last {
                *all.0.get_mut(count)? = (offset as u8, correction);
                count += 1;
                last = correction;
            }
        }
        Some(all)
    }

    /// The correction at `offset`.
    pub(crate) fn at(&self, offset: usize) -> i64 {
        let mut correction = 0;
        for (from, value) in self.0 {
            if from != 0 && usize::from(from) <= offset {
                correction = value;
            }
        }
        i64::from(correction)
    }
}

impl Site {
    /// A site that no address matches, for the address table.
    pub(crate) const fn sentinel(key: u64) -> Self {
        Self {
            key,
            slot: 0,
            slot_stack: StackCorrections([(0, 0); 6]),
            post_slot: AtomicU64::new(0),
            post_stack: StackCorrections([(0, 0); 6]),
            retired_post_slot: AtomicU64::new(0),
            emulate: AtomicBool::new(false),
            emulated: None,
            step: None,
            first: AtomicPtr::new(null_mut()),
            opcode: 0,
            insn: None,
            next_ip: 0,
            armed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            to_write: AtomicBool::new(false),
            touched: AtomicPtr::new(null_mut()),
        }
    }

    /// The probed address.
    pub fn addr(&self) -> u64 {
        self.key - 1
    }

    /// The probes here, newest first. Any context, for as long as the site cannot be freed.
    pub fn probes(&self) -> impl Iterator<Item = &Kprobe> {
        let mut at = self.first.load(Ordering::Acquire);
        core::iter::from_fn(move || {
            // SAFETY: linked probes live until a grace period after they were unlinked (I2), and the caller keeps the site.
            let probe = unsafe { at.as_ref() }?;
            at = probe.next.load(Ordering::Acquire);
            Some(probe)
        })
    }

    /// Whether any probe here wants to fire.
    pub(crate) fn wants_arming(&self) -> bool {
        !self.gone.load(Ordering::Relaxed) && self.probes().any(Kprobe::is_enabled)
    }

    /// Whether any probe here has a post handler.
    pub(crate) fn has_post(&self) -> bool {
        self.probes().any(|probe| probe.post_handler.is_some())
    }

    /// Links `probe` where I1 wants it. Under the registry's lock.
    pub(crate) fn link(&self, probe: &Kprobe) {
        let this = core::ptr::from_ref(probe).cast_mut();
        let mut place = &self.first;
        if probe.kind == Kind::Jprobe {
            // SAFETY: linked probes are live, by I2.
            while let Some(other) = unsafe { place.load(Ordering::Relaxed).as_ref() } {
                place = &other.next;
            }
        }
        probe
            .next
            .store(place.load(Ordering::Relaxed), Ordering::Relaxed);
        // Pairs with the Acquire of `probes`: who finds the probe finds it filled in.
        place.store(this, Ordering::Release);
    }

    /// Takes `probe` out of the list; its `next` stays, by I2. Under the registry's lock.
    pub(crate) fn unlink(&self, probe: &Kprobe) {
        let mut place = &self.first;
        loop {
            let at = place.load(Ordering::Relaxed);
            if core::ptr::eq(at, probe) {
                place.store(probe.next.load(Ordering::Relaxed), Ordering::Release);
                return;
            }
            // SAFETY: linked probes are live, by I2.
            match unsafe { at.as_ref() } {
                Some(other) => place = &other.next,
                None => return,
            }
        }
    }

    /// What to add to RSP at `offset` of this site's slot at `slot`.
    pub(crate) fn stack_correction(&self, slot: u64, offset: usize) -> i64 {
        if slot == self.slot {
            self.slot_stack.at(offset)
        } else if self.step.as_ref().is_some_and(|(step, _)| *step == slot) {
            0
        } else {
            self.post_stack.at(offset)
        }
    }
}
