//! A site: one probed address and all the probes on it (Linux's aggregate).
//!
//! The first probe at an address makes the site, and the last one to leave takes it away. The
//! fields that a hit reads are atomic, or constant while the site is in the address table. All
//! writers hold the registry's lock.
//!
//! # Invariants
//! SITE-1. The list runs from the newest probe to the oldest. A jprobe comes last whatever its age.
//! SITE-2. A probe that was unlinked keeps its `next` until a grace period is over, so a hit can
//!     walk on from it.
//! SITE-3. `post_slot` or `emulate` is set before a probe with a post handler is linked.
//! SITE-4. The stub and the routines of a probe are right for the list that begins with it, both
//!     before and after each change.
//!
//! The short functions that an operation calls for each of its sites are inlined. While all
//! functions are probed, each call would be a hit.

use alloc::boxed::Box;
use core::{
    mem::offset_of,
    ptr::{NonNull, null_mut},
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering},
};

use crate::{
    data::{
        action::Action,
        detour::Detour,
        entry_points::{EntryPoints, Routines},
        instance::NO_HOLDER,
        kprobe::{Kprobe, ProbeKind, flags},
        kretprobe::KretprobeCore,
        position::{PackedPosition, Positions},
        trap_ip::TrapIp,
    },
    insn::{EntryFacts, FlagsOp, Insn, MAX_INSN_BYTES, StepCopy, decode},
};

/// Stands for the probes of a site that has none: a hit may still be on its way to it.
pub(crate) static IDLE: Kprobe = Kprobe::new();

/// See the module's text.
#[repr(C)]
pub struct Site {
    /// The probed address + 1. The processor reports it after the breakpoint, and it is the key of
    /// the address table.
    pub(crate) key: TrapIp,
    /// The newest probe, or [`IDLE`]. Its stub serves a hit. The stub fits the list that begins
    /// with this probe, so a hit that reads this once has a consistent view.
    head: AtomicPtr<Kprobe>,
    /// Where the translated instruction is, ending in a jump back. Needs no guard.
    pub(crate) slot: u64,
    pub(crate) slot_positions: Positions<4>,
    /// Where a hit without a post handler goes on: in `slot` or, while there is a detour, in its
    /// copy of the displaced instructions.
    pub(crate) run: AtomicU64,
    /// The detour that a jump at the address leads to, from before the jump is written until after
    /// it is gone. Null: none.
    pub(crate) detour: AtomicPtr<Detour>,
    /// Where the translation is that ends in the post stub. 0 while no probe here has a post
    /// handler.
    pub(crate) post_slot: AtomicU64,
    /// Its positions. Null before the first probe with a post handler. They follow from the
    /// instruction alone and stay as long as the site.
    pub(crate) post_positions: AtomicPtr<Positions<7>>,
    /// A post slot that no hit enters any more, to be freed after the grace period.
    pub(crate) retired_post_slot: AtomicU64,
    /// The copy to step, and where it is, in single-step mode.
    pub(crate) step: Option<Box<(u64, StepCopy)>>,
    /// The link of the list of the operation under way.
    pub(crate) touched: AtomicPtr<Site>,
    /// The instruction as it is without probes.
    pub(crate) bytes: [u8; MAX_INSN_BYTES],
    /// Its length; 0 only in the table's sentinels.
    pub(crate) len: u8,
    /// If the instruction is `push` of a register: where that register is in
    /// [`PtRegs`](crate::PtRegs). Else negative.
    pub(crate) pushed: i16,
    /// If the address is an entry of which facts are known: these.
    pub(crate) entry: EntryFacts,
    /// With a post handler the instruction is carried out on the saved registers, not in a slot.
    pub(crate) emulated: Option<Emulated>,
    /// Set while a probe here has a post handler and [`Site::emulated`] says how to do the
    /// instruction.
    pub(crate) emulate: AtomicBool,
    /// Whether the breakpoint is in the text.
    pub(crate) armed: AtomicBool,
    /// The text was freed: never write it again.
    pub(crate) gone: AtomicBool,
    /// Whether the operation under way writes this site's text.
    pub(crate) to_write: AtomicBool,
    /// No jump fits here, whatever else changes: found out once.
    pub(crate) obstacle: AtomicBool,
    /// A probe that needs the breakpoint is about to join.
    pub(crate) keeps_breakpoint: AtomicBool,
}

// A registered probe takes 256 bytes at the most: this, a slot with the pointer back, a word for
// each CPU.
const _: () = assert!(size_of::<Site>() <= 160);

/// Instructions that are carried out on the saved registers where a post handler waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Emulated {
    /// Its effect on the interrupt flag must not be felt before the post handler is done.
    Flags(FlagsOp),
    /// The stack tells at once where it goes and what it pops. After the address it discards so
    /// many bytes.
    Return(u16),
}

impl Site {
    /// A site that no address matches, for the address table.
    pub(crate) const fn sentinel(key: TrapIp) -> Self {
        Self {
            key,
            head: AtomicPtr::new((&raw const IDLE).cast_mut()),
            slot: 0,
            slot_positions: Positions::NONE,
            run: AtomicU64::new(0),
            detour: AtomicPtr::new(null_mut()),
            obstacle: AtomicBool::new(false),
            keeps_breakpoint: AtomicBool::new(false),
            post_slot: AtomicU64::new(0),
            post_positions: AtomicPtr::new(null_mut()),
            retired_post_slot: AtomicU64::new(0),
            step: None,
            touched: AtomicPtr::new(null_mut()),
            bytes: [0; MAX_INSN_BYTES],
            len: 0,
            pushed: -1,
            entry: EntryFacts::UNKNOWN,
            emulated: None,
            emulate: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            to_write: AtomicBool::new(false),
        }
    }

    /// Notes the instruction: its bytes without probes.
    #[inline]
    pub(crate) fn set_bytes(&mut self, bytes: &[u8]) {
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        // At most 15.
        self.len = bytes.len() as u8;
    }

    /// The probed address.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.key.address()
    }

    /// The address of the next instruction.
    pub(crate) fn next_ip(&self) -> u64 {
        self.addr() + u64::from(self.len)
    }

    /// The first byte of the instruction.
    #[inline]
    pub(crate) fn opcode(&self) -> u8 {
        self.bytes[0]
    }

    /// The instruction as it is without probes. For registration: it is decoded anew.
    pub(crate) fn insn(&self) -> Option<Insn> {
        decode(&self.bytes[..usize::from(self.len)], self.addr()).ok()
    }

    /// The probes here, newest first. Any context, for as long as the site cannot be freed.
    #[inline]
    pub fn probes(&self) -> impl Iterator<Item = &Kprobe> {
        // SAFETY: linked probes live until a grace period after they were unlinked (SITE-2), and
        // the caller keeps the site.
        let first = unsafe { self.first(Ordering::Acquire).as_ref() };
        core::iter::successors(first, |probe| probe.older())
    }

    /// The newest probe, or null.
    #[inline]
    fn first(&self, order: Ordering) -> *mut Kprobe {
        let head = self.head.load(order);
        if core::ptr::eq(head, &IDLE) {
            null_mut()
        } else {
            head
        }
    }

    /// Whether no probe is here.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first(Ordering::Relaxed).is_null()
    }

    /// Whether any probe here wants to fire.
    #[inline]
    pub(crate) fn wants_arming(&self) -> bool {
        !self.gone.load(Ordering::Relaxed) && self.probes().any(Kprobe::is_enabled)
    }

    /// The detour of the address, if it has one or is to have one. As for [`Site::probes`].
    #[inline]
    pub(crate) fn detour(&self) -> Option<&Detour> {
        // SAFETY: a detour is freed after a grace period since it was taken out of here, under the
        // lock.
        unsafe { self.detour.load(Ordering::Acquire).as_ref() }
    }

    /// Shows in the flags of all probes here whether the address is served by a jump.
    #[inline]
    pub(crate) fn mark_optimized(&self, optimized: bool) {
        for probe in self.probes() {
            if optimized {
                probe.flags.fetch_or(flags::OPTIMIZED, Ordering::Relaxed);
            } else {
                probe.flags.fetch_and(!flags::OPTIMIZED, Ordering::Relaxed);
            }
        }
    }

    /// Whether this is the probes' own site on a trampoline. No knob disarms it, because calls in
    /// flight return to it.
    pub(crate) fn is_trampoline(&self) -> bool {
        self.probes()
            .any(|probe| probe.kind == ProbeKind::Trampoline)
    }

    /// Whether any probe here has a post handler.
    #[inline]
    pub(crate) fn has_post(&self) -> bool {
        self.probes().any(|probe| probe.post_handler.is_some())
    }

    /// Where a stub finds the first probe.
    pub(crate) const fn head_offset() -> usize {
        offset_of!(Self, head)
    }

    /// Links `probe` where SITE-1 wants it. Under the registry's lock.
    pub(crate) fn link(&self, probe: &Kprobe, entry: &EntryPoints) {
        let last = match probe.kind {
            ProbeKind::Jprobe => self.probes().last(),
            _ => None,
        };
        let (place, next) = match last {
            Some(last) => (&last.next, null_mut()),
            None => (&self.head, self.first(Ordering::Relaxed)),
        };
        probe.next.store(next, Ordering::Relaxed);
        self.choose_stub(probe, entry);
        // Pairs with the Acquire of `probes`: who finds the probe finds it filled in.
        place.store(core::ptr::from_ref(probe).cast_mut(), Ordering::Release);
        if last.is_some() {
            // There is more after the others now.
            self.choose_stubs(entry);
        }
    }

    /// Takes `probe` out of the list. Its `next` stays, by SITE-2. Under the registry's lock.
    #[inline]
    pub(crate) fn unlink(&self, probe: &Kprobe, entry: &EntryPoints) {
        let next = probe.next.load(Ordering::Relaxed);
        let newer = self
            .probes()
            .find(|other| core::ptr::eq(other.next.load(Ordering::Relaxed), probe));
        match newer {
            Some(newer) => newer.next.store(next, Ordering::Release),
            None if next.is_null() => self
                .head
                .store((&raw const IDLE).cast_mut(), Ordering::Release),
            None => self.head.store(next, Ordering::Release),
        }
        if let Some(kretprobe) = KretprobeCore::of(probe) {
            kretprobe.set_alone(false);
        }
        self.choose_stubs(entry);
    }

    /// Whether the instruction is `popf`, which is never run in the plain slot.
    pub(crate) fn pops_flags(&self) -> bool {
        matches!(self.emulated, Some(Emulated::Flags(FlagsOp::Pop(_))))
    }

    /// The return probe that is alone here, enabled and of the default method, if there is one.
    /// Under the registry's lock.
    pub(crate) fn lone_kretprobe(&self) -> Option<&KretprobeCore> {
        self.probes()
            .next()
            .and_then(KretprobeCore::of)
            .filter(|kretprobe| {
                !core::ptr::eq(kretprobe.lone_holder.load(Ordering::Relaxed), &NO_HOLDER)
            })
    }

    /// Whether several return probes are here that want nothing at the call, the newest of all
    /// probes among them, and no other enabled probe. Under the registry's lock.
    #[inline]
    pub(crate) fn has_only_returns(&self, routines: impl FnOnce() -> Routines) -> bool {
        let serves = |probe: &Kprobe, routine| probe.routine.load(Ordering::Relaxed) == routine;
        let mut probes = self.probes();
        let (Some(newest), Some(next)) = (probes.next(), probes.next()) else {
            return false;
        };
        if newest.kind != ProbeKind::Kretprobe {
            return false;
        }
        let routines = routines();
        let mut older = core::iter::once(next).chain(probes);
        serves(newest, routines.kretprobe)
            && older
                .all(|probe| serves(probe, routines.kretprobe) || serves(probe, routines.nothing))
    }

    /// The action of the kprobe that is alone here and enabled, if it has one. Under the registry's
    /// lock.
    pub(crate) fn lone_action(&self) -> Option<NonNull<Action>> {
        let mut probes = self.probes();
        let first = probes.next().filter(|probe| probe.is_enabled())?;
        if probes.next().is_some() || first.post_handler.is_some() {
            return None;
        }
        NonNull::new(first.action.cast_mut())
    }

    /// The position of the probed code at `offset` of this site's slot at `slot`.
    pub(crate) fn position(&self, slot: u64, offset: usize) -> PackedPosition {
        if slot == self.slot {
            self.slot_positions.at(offset)
        } else if self.step.as_ref().is_some_and(|step| step.0 == slot) {
            PackedPosition::PROBED
        } else {
            // SAFETY: set to a live box before anything leads to a post slot, and dropped with the
            // site.
            unsafe { self.post_positions.load(Ordering::Acquire).as_ref() }
                .map_or(PackedPosition::PROBED, |positions| positions.at(offset))
        }
    }
}

impl Drop for Site {
    #[inline]
    fn drop(&mut self) {
        let positions = *self.post_positions.get_mut();
        if !positions.is_null() {
            // SAFETY: made by `Box::into_raw`, and the site was its only holder.
            drop(unsafe { Box::from_raw(positions) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::insn::{Ending, step_copy, translate};

    const PROBED: u64 = 0xffff_ffff_8001_2340;
    const PLAIN: u64 = 0xffff_ffff_a000_0040;
    const STEP: u64 = PLAIN + 0x40;
    const POST: u64 = PLAIN + 0x80;

    /// A site may have three slots, for a probe that steps and one with a post handler. Each has
    /// the positions of its own code. The code that is stepped is one instruction.
    #[test]
    fn each_slot_of_a_site_has_its_own_positions() {
        let insn = decode(&[0xff, 0xd0], PROBED).unwrap(); // call rax
        let code = |slot, ending| translate(&insn, slot, ending).unwrap();
        let plain = Positions::of(&code(PLAIN, Ending::Resume)).unwrap();
        let ending = Ending::Post {
            stub: 0xffff_ffff_8000_1000,
            saved_flags: None,
        };
        let post = Positions::of(&code(POST, ending)).unwrap();

        let mut site = Site::sentinel(TrapIp::of(PROBED));
        site.slot = PLAIN;
        site.slot_positions = plain;
        site.step = Some(Box::new((STEP, step_copy(&insn, STEP).unwrap())));
        site.post_positions = AtomicPtr::new(Box::into_raw(Box::new(post)));
        let mut differs = 0;
        for offset in 0..64 {
            assert_eq!(site.position(PLAIN, offset), plain.at(offset), "{offset}");
            assert_eq!(site.position(POST, offset), post.at(offset), "{offset}");
            assert_eq!(site.position(STEP, offset), PackedPosition::PROBED);
            differs += usize::from(post.at(offset) != PackedPosition::PROBED);
        }
        assert!(differs > 0, "the translation pushes a word");
    }
}
