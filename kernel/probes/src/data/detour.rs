//! Detours: where the jump of an optimised probe leads.
//!
//! A breakpoint costs a trap. Where the code allows it, a jump stands in its place, and the jump
//! leads to code that was made for this one site: its detour. A detour does the work of the trap.
//! It builds a full [`PtRegs`](crate::PtRegs), runs the handlers, restores the registers, executes
//! the displaced instructions and jumps back after them.
//!
//! ```text
//!   start   miss     the hit came inside another hit: it is only counted
//!           leave    a handler has set the instruction pointer: iretq from the frame
//!   enter   frame    push ss, rsp, rflags, cs, ip, -1 and the general registers
//!           call     take the guard; the `chain` of the site's first probe (see `asm`);
//!                    leave, if it says so; drop the guard
//!           restore  pop all, flags last
//!   block            the displaced instructions, translated; a jump back
//! ```
//!
//! A function's entry with one return probe and no other probe has a shorter detour, in which the
//! work of that probe is written out. If the probe has an entry handler or data, the frame is as
//! above. If it has neither, or its entry is that of an action ([`CallAction::jump_entry`]), no
//! frame is built. These detours name the probe, so they are used only while it is alone
//! ([`KretprobeCore::lone_holder`]). In all rare cases they fall back to the general way. Several
//! return probes that want nothing at the entry have one without a frame, too.
//!
//! An address whose only probe is a kprobe with an action has the shortest detour: the probed
//! address, and a call of the action ([`Action`]). `enter` is the call.
//!
//! Else `start` to `block` are a copy of one of the templates, which
//! [`detours!`](crate::detours) defines as functions with their call frame
//! information. A stack walk that meets code in a detour asks the template about it
//! ([`Detour::described`]).
//!
//! Handlers run with DF and AC clear and on an aligned stack. At a function's entry the ABI aligns
//! the stack, and AC is clear because the kernel sets it only where no jump can be. The template
//! for other addresses takes care of both.
//!
//! # Invariants
//! DETOUR-1. The guard is held while handlers run, and detours lie in the slot region. So no CPU is
//!     in a detour when a grace period ends, and no task is switched away from inside one. The
//!     detour without a frame and without an action needs no guard for that reason: an interrupt
//!     on top of it pushes calls of the task and pops them again, so it leaves the instance list as
//!     it was.
//! DETOUR-2. A detour is written before its site points to it. It is freed a grace period after the
//!     site has stopped pointing to it.
//! DETOUR-3. While a site points to a detour, no code is sent to an address under the jump:
//!     [`Hits::executable_ip`](crate::hit::Hits::executable_ip) leads to the displaced copy
//!     instead.
//!
//! # Contexts
//! Code in a detour runs with the interrupt flag of the probed code.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicPtr};

#[cfg(doc)]
use crate::data::action::CallAction;
use crate::{
    data::{action::Action, kretprobe::KretprobeCore, position::PackedPosition, site::Site},
    insn::JUMP_BYTES,
};

/// Bytes of a detour: nine to a page. The longest template takes about 390. Displaced code of 5 to
/// 19 bytes takes about twice its length.
pub(crate) const DETOUR_BYTES: usize = 448;

/// How many bytes are on the stack at each instruction from `enter` on, until ip is pushed: the
/// offset from `enter`, and the bytes.
const PROLOGUE: [(usize, i16); 5] = [(0, 0), (2, 8), (3, 16), (4, 24), (6, 32)];
/// From so many bytes after `enter` on the call frame information finds the frame above.
const FRAMED: usize = 11;
/// The same for the two instructions at the end, `popfq; lea rsp, [rsp + 16]`. Here the offset
/// counts back from the end.
const EPILOGUE: [(usize, i16); 2] = [(6, 24), (5, 16)];

/// See the module's text.
pub(crate) struct Detour {
    /// Where it is executed.
    pub(crate) start: u64,
    /// Offset of where the jump leads to.
    pub(crate) enter: usize,
    /// Offset of the displaced instructions: the length of the template.
    pub(crate) block: usize,
    /// The template that it begins with; 0 if it is for an action.
    pub(crate) template: u64,
    /// The return probe that it names, if it is for one alone.
    pub(crate) kretprobe: *const KretprobeCore,
    /// Whether it is for several return probes and no other.
    pub(crate) only_returns: bool,
    /// Whether it builds no frame.
    pub(crate) frameless: bool,
    /// The action that it calls, if it is for one alone; else null.
    pub(crate) action: *const Action,
    /// Whether it is that of a function's entry.
    pub(crate) at_entry: bool,
    /// The bytes that the jump replaces.
    pub(crate) original: [u8; JUMP_BYTES],
    /// For each address under the jump the offset of its displaced copy. 0: no instruction begins
    /// there.
    pub(crate) copies: [u16; JUMP_BYTES],
    pub(crate) positions: BlockPositions,
    /// Whether the jump is in the text. Under the registry's lock.
    pub(crate) installed: AtomicBool,
    /// The site. Under the registry's lock.
    pub(crate) site: *const Site,
    /// The next detour of the operation under way. Under the registry's lock.
    pub(crate) next: AtomicPtr<Detour>,
}

/// The positions of the probed code in the block.
pub(crate) enum BlockPositions {
    /// The block is so many bytes of the original code, unchanged, and a jump back.
    Unchanged(u8),
    /// Each with the offset in the block from which it is the one.
    Translated(Vec<PackedPosition>),
}

impl Detour {
    /// The site whose detour it is.
    #[inline]
    pub(crate) fn site(&self) -> &Site {
        // SAFETY: a site is freed after its detours.
        unsafe { &*self.site }
    }

    /// Where the jump leads to.
    pub(crate) fn enter(&self) -> u64 {
        self.start + self.enter as u64
    }

    /// Whether `offset` is that of the breakpoint that stands for the one at the function's entry.
    pub(crate) fn is_fallback(&self, offset: usize) -> bool {
        self.frameless && self.action.is_null() && offset + 1 == self.enter
    }

    /// Where the displaced instructions are.
    pub(crate) fn block(&self) -> u64 {
        self.start + self.block as u64
    }

    /// Where the copy is of the instruction that begins `behind` bytes after the probed address.
    /// None if no instruction begins there.
    pub(crate) fn copy_of(&self, behind: usize) -> Option<u64> {
        match self.copies.get(behind) {
            None | Some(0) => None,
            Some(offset) => Some(self.start + u64::from(*offset)),
        }
    }

    /// The address of the displaced instruction whose copy begins at `offset`, if one does.
    pub(crate) fn address_of(&self, offset: usize) -> Option<u64> {
        let behind = self
            .copies
            .iter()
            .position(|copy| *copy != 0 && usize::from(*copy) == offset)?;
        Some(self.site().addr() + behind as u64)
    }

    /// The template's instruction that the one at `offset` is a copy of. Its call frame information
    /// describes the copy, too. None in the displaced instructions, and where `ip` is not on the
    /// stack.
    pub(crate) fn described(&self, offset: usize) -> Option<u64> {
        if !self.action.is_null() {
            return None;
        }
        let framed = if self.frameless {
            offset < self.block
        } else {
            let frame = self.enter + FRAMED..self.block - EPILOGUE[0].0;
            offset < self.enter || frame.contains(&offset)
        };
        framed.then_some(self.template + offset as u64)
    }

    /// The position at the offset `from` in a block that has `len` bytes of the original code.
    fn unchanged_position(&self, len: u8, from: usize) -> PackedPosition {
        if from >= usize::from(len) {
            return PackedPosition::behind(len);
        }
        // The instruction that contains this byte is the last one that begins at it or before.
        let begun = (0..JUMP_BYTES as u8).rev();
        let mut begun = begun.skip_while(|behind| usize::from(*behind) > from);
        begun
            .find(|behind| self.copies[usize::from(*behind)] != 0)
            .map_or(PackedPosition::PROBED, PackedPosition::behind)
    }

    /// The position of the probed code at `offset`, where the template does not describe it.
    pub(crate) fn position(&self, offset: usize) -> PackedPosition {
        if let Some(from) = offset.checked_sub(self.block) {
            return match &self.positions {
                BlockPositions::Unchanged(len) => self.unchanged_position(*len, from),
                BlockPositions::Translated(positions) => {
                    let before = positions.iter().take_while(|packed| packed.from() <= from);
                    before.last().copied().unwrap_or(PackedPosition::PROBED)
                }
            };
        }
        let deep = match (self.block - offset, offset.checked_sub(self.enter)) {
            _ if self.frameless => 0,
            (1..=5, _) => EPILOGUE[1].1,
            (6, _) => EPILOGUE[0].1,
            (_, Some(from)) => {
                let before = PROLOGUE.iter().take_while(|(at, _)| *at <= from);
                before.last().map_or(0, |(_, deep)| *deep)
            }
            _ => 0,
        };
        PackedPosition::probed(deep)
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::{null, null_mut};

    use super::*;
    use crate::data::trap_ip::TrapIp;

    const PROBED: u64 = 0xffff_ffff_8001_2340;
    const START: u64 = 0xffff_ffff_a000_0400;

    #[test]
    fn copies_and_the_instructions_that_they_are_of_name_each_other() {
        let site = Site::sentinel(TrapIp::of(PROBED));
        let detour = Detour {
            start: START,
            enter: 8,
            block: 64,
            template: 0,
            kretprobe: null(),
            only_returns: false,
            frameless: false,
            action: null(),
            at_entry: false,
            original: [0x90; JUMP_BYTES],
            // Instructions of 1, 2 and 2 bytes.
            copies: [64, 65, 0, 70, 0],
            positions: BlockPositions::Translated(Vec::new()),
            installed: AtomicBool::new(true),
            site: &site,
            next: AtomicPtr::new(null_mut()),
        };
        for (behind, offset) in [(0, 64), (1, 65), (3, 70)] {
            assert_eq!(detour.copy_of(behind), Some(START + offset));
            let addr = detour.address_of(offset as usize);
            assert_eq!(addr, Some(PROBED + behind as u64));
        }
        assert_eq!([2, 4, 5].map(|behind| detour.copy_of(behind)), [None; 3]);
        assert_eq!([0, 8, 66, 71].map(|at| detour.address_of(at)), [None; 4]);
    }
}
