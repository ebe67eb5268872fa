//! The second ring of a CPU, and the exchange of the two: a snapshot without a stop.
//!
//! ```text
//!             exchange              a quiet moment of the CPU       exchange
//!   A  live ──────────► spare, its tail may grow ───► spare, settled ──────► live, empty
//!   B  spare ─────────► live ───────────────────────────────────────────────► spare ...
//! ```
//!
//! # Theory
//! Writers look up which ring is live when they reserve a record, and once more when they end it.
//! An exchange is one store to that pointer, by any CPU at any time. So it may come in the middle
//! of a record. That record is in the ring that was live. Its writer, or the one that it has
//! interrupted, may not find the record's ring again. Then the record is complete but not
//! published. Nothing is lost, because a ring that is the spare gets no writers but those that had
//! its address already. When they are over, all of its records are complete, and
//! [`Ring::settle`] publishes them.
//!
//! They are known to be over at a *quiet moment*: code runs on the CPU that has interrupted no
//! writer there. Until then there is no other exchange; one that is wanted waits for it. So at most
//! one exchange comes while a writer is under way.
//!
//! The ring that becomes live is emptied first, in a few steps, because no writer uses it.
//!
//! # Invariants
//! - SPARE-1. A CPU's rings are exchanged only if the spare is settled, and by the holder of the
//!   [`Spare`].
//! - SPARE-2. The spare is settled by its own CPU at a quiet moment, so only the ring's own CPU
//!   changes `reserved` and `committed` (WRITER-1).
//! - SPARE-3. A consuming reader and code that clears hold the [`Spare`] while they work. So
//!   neither meets an exchange. Cursors need not, because a ring that is emptied looks to them like
//!   one that was overtaken.
//! - SPARE-4. An end of a record that looks in the wrong ring finds no record of its place there.
//!   So the addresses of the two rings must be told apart by their lower 32 bits, with which
//!   [`Ring::commit`] and compiled code calculate: [`may_be_confused`].
//!
//! # Contexts and ordering
//! [`Spare::exchange`] runs in any context, NMIs included. It does not wait: if the spare is held,
//! its holder obeys when it lets go. [`Spare::on_quiet`] runs on the CPU itself, at a quiet moment.
//! [`Spare::hold`] is for a task, one at a time.
//!
//! `wanted`, `exchanged` and `held` are sequentially consistent: whoever asks stores `wanted` and
//! then looks at the other two, and whoever lets go of them looks at `wanted` afterwards. The live
//! pointer is stored with Release, after the stores that empty the ring.

use core::{
    cell::UnsafeCell,
    hint::spin_loop,
    ptr::{self, NonNull},
    sync::atomic::{
        AtomicBool, AtomicPtr,
        Ordering::{Acquire, Relaxed, Release, SeqCst},
    },
};

use super::{Ring, Stats};

/// The spare ring of a CPU, if it has one, and what is known of the exchange.
///
/// The address of the live ring is not in here, because compiled code wants it at a place of its
/// own. All methods are given that place, always the same for one `Spare`.
pub struct Spare {
    ring: AtomicPtr<u8>,
    /// The spare is not settled since the last exchange.
    exchanged: AtomicBool,
    /// An exchange is wanted.
    wanted: AtomicBool,
    /// A holder has what is below, and may exchange.
    held: AtomicBool,
    /// The counts when the ring was cleared last: of the live one, and of the spare.
    bases: UnsafeCell<[Stats; 2]>,
}

// SAFETY: `bases` are accessed only by the code that has set `held`.
unsafe impl Sync for Spare {}

impl Default for Spare {
    fn default() -> Self {
        Self::new()
    }
}

impl Spare {
    /// No spare ring.
    pub const fn new() -> Self {
        const NOTHING: Stats = Stats {
            written: 0,
            read: 0,
            overwritten: 0,
            cleared: 0,
            unread: 0,
            discarded: 0,
            full: 0,
            nested: 0,
            too_long: 0,
            unread_bytes: 0,
        };
        Self {
            ring: AtomicPtr::new(ptr::null_mut()),
            exchanged: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            held: AtomicBool::new(false),
            bases: UnsafeCell::new([NOTHING; 2]),
        }
    }

    /// Whether it waits for a quiet moment. Any context.
    #[inline(always)]
    pub fn is_exchanged(&self) -> bool {
        self.exchanged.load(Relaxed)
    }

    /// Whether an exchange is wanted that has not been done yet. Any context.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(SeqCst)
    }

    /// The ring that has the record at `record`: the live one or the spare. None if it is in a ring
    /// that has been taken away. Called on the ring's own CPU, by the writer of the record.
    ///
    /// # Safety
    /// Both pointers are null or rings that last for `'m`, or until a grace period after they were
    /// replaced.
    #[inline(always)]
    pub unsafe fn ring_of<'m>(&self, live: &AtomicPtr<u8>, record: *const u8) -> Option<Ring<'m>> {
        // In this order, because an exchange stores them in the other one. So the ring that was
        // live is found at one of the two places at any time.
        for place in [live, &self.ring] {
            step();
            let Some(base) = NonNull::new(place.load(Acquire)) else {
                continue;
            };
            // SAFETY: a ring by the contract.
            let ring = unsafe { Ring::from_raw(base) };
            if ring.contains(record) {
                return Some(ring);
            }
        }
        None
    }

    /// Exchanges the rings now or, if the spare is not settled or is held, as soon as it may be.
    /// Nothing happens without a spare.
    ///
    /// # Safety
    /// `live` has the CPU's live ring, and it and the spare, if there is one, are rings as
    /// [`Ring::from_raw`] wants them until a grace period after they were taken away.
    #[inline(always)]
    pub unsafe fn exchange(&self, live: &AtomicPtr<u8>) {
        if !self.ring.load(Relaxed).is_null() {
            // The same instruction as a store, and in one order with all who ask or obey.
            self.wanted.swap(true, SeqCst);
            // SAFETY: the same contract.
            unsafe { self.obey(live) };
        }
    }

    /// Sets `held`. False: it is held already.
    #[inline(always)]
    fn take(&self) -> bool {
        let taken = (self.held).compare_exchange(false, true, SeqCst, SeqCst);
        taken.is_ok()
    }

    /// Does what is wanted, if it may be done.
    ///
    /// # Safety
    /// Same as for [`Self::exchange`].
    #[inline(always)]
    unsafe fn obey(&self, live: &AtomicPtr<u8>) {
        step();
        // At most twice, unless others exchange and settle meanwhile.
        while self.wanted.load(SeqCst) && !self.exchanged.load(SeqCst) && {
            step();
            self.take()
        } {
            step();
            // Another one may have been faster.
            if !self.exchanged.load(SeqCst) && self.wanted.swap(false, SeqCst) {
                // SAFETY: held, and settled; the rings by the contract.
                unsafe { self.exchange_held(live) };
            }
            step();
            self.held.store(false, SeqCst);
            step();
        }
    }

    /// # Safety
    /// Same as for [`Self::exchange`]; and the caller holds the spare, which is settled.
    #[inline(always)]
    unsafe fn exchange_held(&self, live: &AtomicPtr<u8>) {
        let (old, next) = (live.load(Relaxed), self.ring.load(Relaxed));
        let Some(ring) = NonNull::new(next) else {
            return;
        };
        // SAFETY: no code writes to it (SPARE-1) or consumes it (SPARE-3).
        let base = unsafe { Ring::from_raw(ring).restart() };
        // SAFETY: the caller holds the spare.
        let bases = unsafe { &mut *self.bases.get() };
        *bases = [base, bases[0]];
        self.exchanged.store(true, SeqCst);
        step();
        self.ring.store(old, Release);
        step();
        live.store(next, Release);
        step();
    }

    /// Settles the spare, and exchanges the rings if that is wanted.
    ///
    /// # Safety
    /// 1. As for [`Self::exchange`].
    /// 2. It runs on the CPU itself, which is kept, and has interrupted no writer of records there.
    pub unsafe fn on_quiet(&self, live: &AtomicPtr<u8>) {
        if self.exchanged.load(SeqCst) && self.take() {
            if self.exchanged.load(SeqCst) {
                if let Some(ring) = NonNull::new(self.ring.load(Relaxed)) {
                    // SAFETY: no writer is under way on this CPU (2) but those that interrupt this.
                    // They began after the exchange, so they write to the other ring.
                    unsafe { Ring::from_raw(ring).settle() };
                }
                step();
                self.exchanged.store(false, SeqCst);
            }
            step();
            self.held.store(false, SeqCst);
            // SAFETY: the same contract.
            unsafe { self.obey(live) };
        }
    }

    /// Keeps exchanges off. They are done when the value is dropped. Waits for one that is under
    /// way, which takes a moment.
    ///
    /// # Safety
    /// Same as for [`Self::exchange`].
    pub unsafe fn hold<'a>(&'a self, live: &'a AtomicPtr<u8>) -> Held<'a> {
        while !self.take() {
            spin_loop();
        }
        Held { spare: self, live }
    }
}

/// Keeps the rings of a CPU as they are. For a task.
pub struct Held<'a> {
    spare: &'a Spare,
    live: &'a AtomicPtr<u8>,
}

impl Held<'_> {
    /// The address of the live ring, or null.
    pub fn live(&self) -> *mut u8 {
        self.live.load(Relaxed)
    }

    /// The address of the spare, or null.
    pub fn spare(&self) -> *mut u8 {
        self.spare.ring.load(Relaxed)
    }

    /// The counts when the rings were cleared last: of the live one, and of the spare.
    pub fn bases(&mut self) -> &mut [Stats; 2] {
        // SAFETY: held, and borrowed through the only holder.
        unsafe { &mut *self.spare.bases.get() }
    }

    /// Gives the CPU another spare, or takes it away with null. Nothing is wanted of the new one.
    ///
    /// The old one is in use until a grace period has passed.
    ///
    /// # Safety
    /// `ring` is null, or a ring as [`Spare::exchange`] wants it, empty, and not live.
    pub unsafe fn set_spare(&mut self, ring: *mut u8) {
        self.spare.wanted.store(false, SeqCst);
        self.spare.exchanged.store(false, SeqCst);
        self.spare.ring.store(ring, Release);
        self.bases()[1] = Stats::default();
    }

    /// Gives the CPU another live ring. The old one is in use until a grace period has passed.
    ///
    /// # Safety
    /// 1. `ring` is a ring as [`Spare::exchange`] wants it, empty, and not the spare.
    /// 2. No record is being written on the CPU.
    pub unsafe fn set_live(&mut self, ring: *mut u8) {
        self.live.store(ring, Release);
        self.bases()[0] = Stats::default();
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.spare.held.store(false, SeqCst);
        // SAFETY: as `Spare::hold` was promised.
        unsafe { self.spare.obey(self.live) };
    }
}

/// Tests interrupt an exchange here.
#[inline(always)]
fn step() {
    #[cfg(test)]
    super::tests::interrupt::step();
}

/// Whether the end of a record of one of these rings could be taken for a place in the other
/// (SPARE-4). `bytes`: the memory of each.
pub const fn may_be_confused(one: u64, other: u64, bytes: u64) -> bool {
    let distance = one.wrapping_sub(other) as u32 as u64;
    distance < bytes || (1 << 32) - distance < bytes
}
