//! Forgetting: which key goes where there is no room for another one.
//!
//! A program that wants a map to forget says how it uses a key ([`Table::use_key`]). Two flags of
//! the slot remember that. Where a key is about to be inserted and there are enough, a hand goes
//! round the slots like that of a clock. It takes a flag off each entry that it meets, and deletes
//! the first one that has none. So a key that is used each round outlives those that came once.
//! Maps that were not made so forget nothing.
//!
//! A hit looks at a bounded number of slots. If all their keys were used, then the last of them
//! goes: which key was not used for longest is an estimate, as in Linux's maps of this kind.

use core::sync::atomic::Ordering::Relaxed;

use super::{
    super::steps::{Steps, add, load},
    Table,
    slots::{ANOTHER, Key, LIVE, ONE_ROUND},
    window::Place,
};

/// The most slots that are looked at for one key to forget. At least a quarter of the slots of a
/// full table are live.
const MOST_SLOTS: usize = 4096;
/// The most keys that are forgotten for one that comes: more than one if CPUs have inserted keys at
/// the same time.
const MOST_FORGOTTEN: u32 = 4;

/// How a program uses a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It reads the value.
    Read,
    /// It is going to set the value, and the map is to have at most so many keys then, at least 1.
    /// CPUs that insert keys at the same time may exceed that, each by one key.
    Change { keys: u64 },
    /// It has set the value.
    Changed,
}

impl Table {
    /// Notes that `key` is used, if it is there. If it is not, and is going to be, makes room for
    /// it: another key is deleted if there are as many as there may be.
    pub(crate) fn use_key<S: Steps>(&self, key: &Key<'_>, how: Use) {
        if let Place::Taken(slot) = self.search::<S>(key) {
            let state = load::<S>(slot.state(), Relaxed);
            if state & LIVE != 0 {
                let rounds = match how {
                    Use::Changed => ONE_ROUND,
                    Use::Read | Use::Change { .. } => ONE_ROUND | ANOTHER,
                };
                if state & rounds != rounds {
                    // The slot may be another key's by now, which stays for longer then.
                    S::step();
                    slot.state().fetch_or(rounds, Relaxed);
                }
                return;
            }
        }
        if let Use::Change { keys } = how {
            let keys = i64::try_from(keys).unwrap_or(i64::MAX);
            for _ in 0..MOST_FORGOTTEN {
                if self.has_fewer::<S>(keys) || !self.forget::<S>() {
                    break;
                }
            }
        }
    }

    /// Deletes the key that was probably not used for longest. False: none was found.
    #[inline(never)]
    fn forget<S: Steps>(&self) -> bool {
        let mut last = None;
        for _ in 0..MOST_SLOTS {
            let turn = add::<S>(&self.hand, 1, Relaxed) as usize;
            // There are some slots.
            let index = turn.checked_rem(self.slots()).unwrap_or(0);
            // SAFETY: below the number of slots.
            let slot = unsafe { self.slot(index) };
            let state = load::<S>(slot.state(), Relaxed);
            if state & LIVE == 0 {
                continue;
            }
            let flag = match state & (ONE_ROUND | ANOTHER) {
                0 if self.delete_live::<S>(slot) => return true,
                0 => continue,
                ONE_ROUND => ONE_ROUND,
                _ => ANOTHER,
            };
            S::step();
            slot.state().fetch_and(!flag, Relaxed);
            last = Some(slot);
        }
        last.is_some_and(|slot| self.delete_live::<S>(slot))
    }
}
