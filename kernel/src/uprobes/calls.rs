//! The calls of one task that are followed to their returns, newest last.
//!
//! ```text
//!   before the first:  a call that is none, with the highest slot
//!   the calls          each with the slot of its return address
//!   next ─►            room for the next one
//!   end ─►
//! ```
//!
//! Most calls have their slots below those of all older ones, as a stack grows. Such a call says so
//! ([`UserCall::lowest_slot`]), and the assembly of a hit compares with the newest one only. It
//! enters a call by raising `next`, and takes one by lowering it.
//!
//! # Invariants
//! CALLS-1. The calls belong to the task that runs the program. Only it changes them: in the stub
//!     of its breakpoints with interrupts off, or in here. So no one waits for the lock, and the
//!     assembly does not take it.
//! CALLS-2. A call with a `lowest_slot` has it below the slots of all older calls, and returns to
//!     an address that a program may have. Any other is not taken by the assembly, also where the
//!     program has chosen a stack pointer that makes its slot seem to be 0.

use alloc::vec::Vec;
use core::{
    cell::UnsafeCell,
    mem::MaybeUninit,
    ptr::null_mut,
    slice,
    sync::atomic::{
        AtomicPtr,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use super::probe::{MAX_CALLS, UserCall};
use crate::mm::{
    paging::USER_END,
    shared::{OutOfMemory, try_vec},
};

/// Memory of a call.
type Entry = UnsafeCell<MaybeUninit<UserCall>>;

/// See the module's text.
pub(super) struct Calls {
    /// Room for the next call. All three are null without memory.
    next: AtomicPtr<UserCall>,
    end: AtomicPtr<UserCall>,
    first: AtomicPtr<UserCall>,
    /// Held where calls change.
    memory: spin::Mutex<Vec<Entry>>,
}

/// The least and the most by which a return raises the stack pointer: its address, and the most
/// arguments that `ret n` takes.
const LEAST_TAKEN: u64 = 8;
const MOST_TAKEN: u64 = LEAST_TAKEN + u16::MAX as u64;

impl Calls {
    /// No calls, and no memory for them.
    pub(super) const fn new() -> Self {
        Self {
            next: AtomicPtr::new(null_mut()),
            end: AtomicPtr::new(null_mut()),
            first: AtomicPtr::new(null_mut()),
            memory: spin::Mutex::new(Vec::new()),
        }
    }

    /// Takes memory. No call is followed yet.
    pub(super) fn prepare(&self) -> Result<(), OutOfMemory> {
        let mut entries = try_vec(1 + MAX_CALLS)?;
        // Whatever is in a call's data is a number, also where the assembly does not write it.
        entries.resize_with(1 + MAX_CALLS, || UnsafeCell::new(MaybeUninit::zeroed()));
        let before: *mut UserCall = entries.as_mut_ptr().cast();
        // SAFETY: the first entry is ours, and has room for a call, which is never dropped.
        unsafe { before.write(UserCall::before_all(USER_END - 7)) };
        // SAFETY: all are in the vector, or at its end.
        let (first, end) = unsafe { (before.add(1), before.add(1 + MAX_CALLS)) };
        self.first.store(first, Relaxed);
        self.end.store(end, Relaxed);
        self.next.store(first, Release);
        *self.memory.lock() = entries;
        Ok(())
    }

    fn len(&self) -> usize {
        let bytes = self.next.load(Acquire).addr() - self.first.load(Relaxed).addr();
        bytes / size_of::<UserCall>()
    }

    /// The calls that are followed.
    ///
    /// # Safety
    /// 1. The lock is held, or could be: no call changes while the result is used.
    unsafe fn all(&self) -> &[UserCall] {
        let first = self.first.load(Relaxed);
        if first.is_null() {
            return &[];
        }
        // SAFETY: those before `next` are calls; (1).
        unsafe { slice::from_raw_parts(first, self.len()) }
    }

    /// Takes the call at `index` out.
    ///
    /// # Safety
    /// 1. There is one, and the lock is held.
    unsafe fn remove(&self, index: usize) -> UserCall {
        let last = self.len() - 1;
        // SAFETY: those before `next` are calls; (1). The one that is read leaves the list.
        unsafe {
            let at = self.first.load(Relaxed).add(index);
            let call = at.read();
            at.copy_from(at.add(1), last - index);
            self.next.store(self.first.load(Relaxed).add(last), Release);
            call
        }
    }

    /// Follows a call that begins now. `is_chained`: its return slot has the trampoline, because a
    /// call before it has the same slot. If it has not, calls with that slot are over. The call is
    /// given back if as many are followed as may be.
    pub(super) fn begin(&self, mut call: UserCall, is_chained: bool) -> Result<(), UserCall> {
        let slot = call.slot();
        if !is_chained {
            self.drop_all_at(slot);
        }
        let _lock = self.memory.lock();
        let next = self.next.load(Relaxed);
        if next == self.end.load(Relaxed) {
            return Err(call);
        }
        // SAFETY: the lock is held.
        let is_lowest = unsafe { self.all() }.iter().all(|old| slot < old.slot());
        // The assembly returns to any address that it finds.
        if is_lowest && call.return_address < USER_END {
            call.lowest_slot = slot;
        } else {
            call.leave_to_rust();
        }
        // SAFETY: `next` is before `end`, so there is an entry, which is no call.
        unsafe {
            next.write(call);
            self.next.store(next.add(1), Release);
        }
        Ok(())
    }

    /// Takes the call that has returned, now that the stack pointer is `sp`: the newest of those
    /// with the slot below `sp`. The flag says whether another call has the same slot.
    pub(super) fn end(&self, sp: u64) -> Option<(UserCall, bool)> {
        self.take(|calls| {
            let is_below = |call: &UserCall| call.slot().wrapping_add(8) == sp;
            calls.iter().rposition(is_below)
        })
    }

    /// The same for a return that has taken arguments off the stack (`ret n`): the newest call with
    /// the nearest slot. No call that was left may be followed any more, because its slot may be
    /// where an argument was.
    pub(super) fn end_with_arguments(&self, sp: u64) -> Option<(UserCall, bool)> {
        self.take(|calls| {
            let taken = |call: &UserCall| sp.wrapping_sub(call.slot());
            let near = calls
                .iter()
                .enumerate()
                .rev()
                .filter(|(_, call)| (LEAST_TAKEN..=MOST_TAKEN).contains(&taken(call)));
            near.min_by_key(|(_, call)| taken(call))
                .map(|(index, _)| index)
        })
    }

    /// Takes the call that `find` chooses, by its index.
    fn take(&self, find: impl FnOnce(&[UserCall]) -> Option<usize>) -> Option<(UserCall, bool)> {
        let _lock = self.memory.lock();
        // SAFETY: the lock is held.
        let index = find(unsafe { self.all() })?;
        // SAFETY: there is one at `index`, and the lock is held.
        let call = unsafe { self.remove(index) };
        // SAFETY: as above.
        let calls = unsafe { self.all() };
        let more = calls.iter().any(|other| other.slot() == call.slot());
        Some((call, more))
    }

    /// The return slots of the calls that are followed. Returns how many there are.
    pub(super) fn slots(&self, to: &mut [u64; MAX_CALLS]) -> usize {
        let _lock = self.memory.lock();
        // SAFETY: the lock is held.
        let calls = unsafe { self.all() };
        for (to, call) in to.iter_mut().zip(calls) {
            *to = call.slot();
        }
        calls.len()
    }

    /// Drops the calls with the slot at `slot`.
    pub(super) fn drop_all_at(&self, slot: u64) {
        let _lock = self.memory.lock();
        loop {
            // SAFETY: the lock is held.
            let calls = unsafe { self.all() };
            let Some(index) = calls.iter().rposition(|call| call.slot() == slot) else {
                return;
            };
            // SAFETY: there is one at `index`, and the lock is held.
            drop(unsafe { self.remove(index) });
        }
    }

    /// Where the call with the slot at `slot` returns to. `None` if it is not followed, or if the
    /// calls are just changing, which only an interrupting context finds. On the hit path.
    #[inline(always)]
    pub(super) fn return_address(&self, slot: u64) -> Option<u64> {
        let _lock = self.memory.try_lock()?;
        // SAFETY: the lock is held. The assembly does not change calls on the way here.
        for call in unsafe { self.all() } {
            // The calls of one slot have the same address.
            if call.slot() == slot {
                return Some(call.return_address);
            }
        }
        None
    }

    /// Takes copies of the calls of `parent`, which is the running task's, for a task that does not
    /// run yet.
    pub(super) fn copy(&self, parent: &Self) {
        let _lock = parent.memory.lock();
        // SAFETY: the lock is held.
        for call in unsafe { parent.all() } {
            let next = self.next.load(Relaxed);
            // SAFETY: the caller has prepared as many entries as the parent has. The copy is as low
            // among the others as the call is.
            unsafe {
                next.write(call.duplicate());
                self.next.store(next.add(1), Release);
            }
        }
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        let count = if self.first.get_mut().is_null() {
            0
        } else {
            self.len()
        };
        for index in 0..count {
            // SAFETY: those before `next` are calls, and nobody finds them any more.
            unsafe { self.first.get_mut().add(index).drop_in_place() };
        }
    }
}

/// Where the assembly of a hit finds what it uses, in bytes.
pub(super) mod layout {
    use core::mem::offset_of;

    use super::Calls;

    pub const NEXT: usize = offset_of!(Calls, next);
    pub const END: usize = offset_of!(Calls, end);
}
