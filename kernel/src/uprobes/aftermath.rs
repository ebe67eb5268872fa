//! What a change of the registry leaves to be done when every program has its breakpoints: what to
//! wait for, what to give back, and which reference counters to raise.
//!
//! A program's word that counts probes is lowered before a breakpoint goes, and raised when every
//! CPU has the new ones (UPROBES-3).
//!
//! # Contexts and locks
//! Tasks that may sleep and hold the registry's lock.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::any::Any;

use super::{error::UprobeError, probe::UserProbe, space::ProbeList};
use crate::{
    arch::smp,
    mm::{
        frame::Frame,
        user_space::{Access, UserSpace},
    },
    task::Pid,
};

/// What is to be done when a change is complete.
#[derive(Default)]
pub(super) struct Aftermath {
    /// Frames that some CPU may still use.
    pub(super) replaced: Vec<Arc<Frame>>,
    /// What a hit may have found before.
    pub(super) retired: Vec<Box<dyn Any>>,
    /// First bytes of instructions that were stored, and where.
    stores: Vec<(Arc<UserSpace>, u64, u8)>,
    /// Words that count one probe more when every CPU has its breakpoint: a program that finds its
    /// word raised is seen at the next call.
    raises: Vec<(Arc<UserSpace>, u64)>,
    pub(super) is_changed: bool,
}

impl Aftermath {
    /// Stores the first byte of an instruction of a program that may be running.
    pub(super) fn store(
        &mut self,
        space: &Arc<UserSpace>,
        at: u64,
        byte: u8,
    ) -> Result<(), UprobeError> {
        self.stores
            .try_reserve(1)
            .map_err(|_| UprobeError::OutOfMemory)?;
        poke(space, at, &[byte], self)?;
        self.stores.push((space.clone(), at, byte));
        Ok(())
    }

    /// Takes memory for one more value that hits may have found: without it the value could not be
    /// kept.
    pub(super) fn reserve_retired(&mut self) -> Result<(), UprobeError> {
        self.retired
            .try_reserve(1)
            .map_err(|_| UprobeError::OutOfMemory)
    }

    /// Drops a value that hits may have found when no hit has it any more.
    pub(super) fn retire(&mut self, value: Box<dyn Any>) {
        self.is_changed = true;
        match self.reserve_retired() {
            Ok(()) => self.retired.push(value),
            Err(_) => {
                smp::flush_tlb_everywhere();
                drop(value);
            }
        }
    }

    /// Makes sure that `words` can be changed without memory: their pages are the program's own
    /// then.
    pub(super) fn prepare_counts(&mut self, words: &CountedWords) -> Result<(), UprobeError> {
        self.raises
            .try_reserve(words.raised().count())
            .map_err(|_| UprobeError::OutOfMemory)?;
        let space = words.space;
        let is_to_be_raised = |word| self.raise_of(space, word).is_some();
        if words.lowered().any(is_to_be_raised) {
            // A change is undone that has prepared them.
            return Ok(());
        }
        for word in words.lowered().chain(words.raised()) {
            add_to_count(space, word, 0, self)?;
        }
        Ok(())
    }

    /// Lowers what is to be lowered, and notes what is to be raised later.
    pub(super) fn change_counts(&mut self, words: &CountedWords) {
        let space = words.space;
        for word in words.lowered() {
            match self.raise_of(space, word) {
                Some(at) => drop(self.raises.swap_remove(at)),
                None => change_prepared_count(space, word, u16::MAX, self),
            }
        }
        let raises = words.raised().map(|word| (space.clone(), word));
        self.raises.extend(raises);
    }

    /// Where a word is among those to be raised.
    fn raise_of(&self, space: &Arc<UserSpace>, word: u64) -> Option<usize> {
        let is_it = |raise: &(Arc<UserSpace>, u64)| Arc::ptr_eq(&raise.0, space) && raise.1 == word;
        self.raises.iter().position(is_it)
    }

    /// Raises the words whose breakpoints every CPU has seen.
    pub(super) fn raise_counts(&mut self) {
        for (space, word) in core::mem::take(&mut self.raises) {
            change_prepared_count(&space, word, 1, self);
        }
    }

    /// Waits until every CPU has seen the change. Then no handler runs that is not registered.
    ///
    /// QEMU drops the translation of a block before the store to it lands. A CPU that translates
    /// the block anew in between keeps the old bytes for ever. So every byte is stored once more
    /// when all CPUs have answered.
    pub(super) fn settle(mut self) {
        if !self.is_changed {
            return;
        }
        smp::flush_tlb_everywhere();
        if !self.stores.is_empty() {
            for (space, at, byte) in core::mem::take(&mut self.stores) {
                // The page is this program's alone since the first store.
                let again = poke(&space, at, &[byte], &mut self);
                debug_assert_eq!(again, Ok(()), "nothing is needed for it");
            }
            smp::flush_tlb_everywhere();
        }
        self.raise_counts();
    }
}

/// Probes that fire at a place, and the process that has them.
pub(super) type FiringIn<'a> = (Option<&'a ProbeList>, Pid);

/// The words of a program that count the probes of a place, where these change from `old` to `new`.
pub(super) struct CountedWords<'a> {
    pub(super) space: &'a Arc<UserSpace>,
    /// The number of the file's node.
    pub(super) file: u64,
    pub(super) old: FiringIn<'a>,
    pub(super) new: FiringIn<'a>,
}

impl CountedWords<'_> {
    /// Whether any of the probes has a reference counter. Most have none.
    pub(super) fn may_change(&self) -> bool {
        let lists = [self.old.0, self.new.0];
        let mut probes = lists.into_iter().flatten().flat_map(|list| list.iter());
        probes.any(|probe| probe.common().place.reference_counter.is_some())
    }

    /// The address of a word for each probe that goes.
    fn lowered(&self) -> impl Iterator<Item = u64> {
        self.only_in(self.old, self.new)
    }

    /// The same for each probe that comes.
    fn raised(&self) -> impl Iterator<Item = u64> {
        self.only_in(self.new, self.old)
    }

    fn only_in(&self, these: FiringIn, others: FiringIn) -> impl Iterator<Item = u64> {
        let is_counted = |probe: &UserProbe, (list, pid): FiringIn| {
            let is_there = list.is_some_and(|list| list.iter().any(|other| other.is(probe)));
            is_there && probe.common().only.is_none_or(|only| only == pid)
        };
        let probes = these.0.into_iter().flat_map(|list| list.iter());
        probes.filter_map(move |probe| {
            let offset = probe.common().place.reference_counter?;
            let is_changed = is_counted(probe, these) && !is_counted(probe, others);
            let address = || self.space.address_of(self.file, offset, Access::Write);
            is_changed.then(address).flatten()
        })
    }
}

/// Adds `change` to the word at `address` of a program.
fn add_to_count(
    space: &UserSpace,
    address: u64,
    change: u16,
    after: &mut Aftermath,
) -> Result<(), UprobeError> {
    let mut word = [0; 2];
    space
        .peek(address, &mut word)
        .map_err(|_| UprobeError::OutOfMemory)?;
    let count = u16::from_le_bytes(word).wrapping_add(change);
    poke(space, address, &count.to_le_bytes(), after)
}

/// The same where [`Aftermath::prepare_counts`] has prepared it.
fn change_prepared_count(space: &UserSpace, address: u64, change: u16, after: &mut Aftermath) {
    let changed = add_to_count(space, address, change, after);
    debug_assert_eq!(changed, Ok(()), "its page is the program's own");
}

/// Stores `bytes` at `address` of a program that may be running.
pub(super) fn poke(
    space: &UserSpace,
    address: u64,
    bytes: &[u8],
    after: &mut Aftermath,
) -> Result<(), UprobeError> {
    after.is_changed = true;
    space
        .poke(address, bytes, &mut after.replaced)
        .map_err(|_| UprobeError::OutOfMemory)
}
