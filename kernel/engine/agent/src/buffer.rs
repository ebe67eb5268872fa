//! The trace buffer: a ring for each CPU, and those who read them.
//!
//! ```text
//!   programs on CPU n ─► ring n ─┬─ Consumer ─► trace_pipe: takes records out, in order of time
//!                                └─ Cursor ───► trace: leaves them there
//! ```
//!
//! The rings are made when the first program that records is loaded, so a kernel that never traces
//! has none. The first snapshot, or the first trigger that takes one, gives each CPU a second ring,
//! its spare. From then on the two may be exchanged at any time ([`crate::snapshot`]): so which one
//! is live is what the CPU says, not where it is in a list.
//!
//! # Invariants
//! BUFFER-1. A ring is taken away only while no record is being written to it: recording is paused
//!     ([`pause`](crate::records::Recording::pause)), or the ring is not in use any more; and a
//!     grace period has passed since.
//! BUFFER-2. The lock is held by whoever consumes, clears or changes the rings. Cursors hold it,
//!     too, so that no ring goes away below them.
//! BUFFER-3. With spares, who consumes or clears also holds the pair of the CPU ([`Held`]), for one
//!     record at a time: a snapshot waits for that.
//!
//! # Contexts
//! Task context, may sleep.

mod chosen_cpus;
mod item;

use alloc::{
    alloc::{alloc_zeroed, dealloc},
    vec::Vec,
};
use core::{
    alloc::Layout,
    fmt,
    marker::PhantomData,
    ops::Range,
    ptr::{NonNull, null_mut},
    sync::atomic::{AtomicPtr, Ordering},
};

use fallible::{OutOfMemory, try_vec};
use lock_api::Mutex;
use trace_ring::{
    Cursor, Merge, Mode, Ring, Stats, layout,
    spare::{Held, Spare, may_be_confused},
};

use self::item::item;
pub use self::item::{Item, Waiting};
use crate::{Agent, records::read_tsc, snapshot};

const PAGE_BYTES: usize = trace_ring::limits::PAGE_BYTES;
/// The most that may be asked for, in KiB for each CPU.
pub const MOST_KIB: usize = trace_wire::MOST_RING_KIB as usize;

/// Why the rings are not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferError {
    OutOfMemory,
    /// A size of 0, or above [`MOST_KIB`].
    Size,
    /// They have to stay as they are: the host reads them, or a trigger takes snapshots.
    Busy,
}

impl fmt::Display for BufferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory => f.write_str("there is no memory for the rings; ask for less"),
            Self::Size => write!(f, "a ring has 1 to {MOST_KIB} KiB; give such a number"),
            Self::Busy => f.write_str(
                "the rings have to stay as they are, because the host reads them or a trigger \
                 takes snapshots; end that first",
            ),
        }
    }
}

impl core::error::Error for BufferError {}

impl From<OutOfMemory> for BufferError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

/// The rings of all CPUs.
pub struct Buffers<A: Agent> {
    rings: Mutex<A::RawMutex, Rings<A>>,
}

/// What is under the lock.
struct Rings<A> {
    /// By CPU. Empty: there are none yet.
    rings: Vec<Owned>,
    /// Each CPU's other ring. Empty: there are none. Which of the two is live, the CPU knows.
    others: Vec<Owned>,
    /// Data pages of each, while there are none yet.
    first_pages: usize,
    mode: Mode,
    /// The counts of the rings that are gone.
    gone: Totals,
    /// How many triggers take snapshots.
    triggers: usize,
    /// The host reads the rings from memory, where it was told that they are.
    shared: bool,
    agent: PhantomData<fn(A)>,
}

/// One of the two buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The one that records go to.
    Live,
    /// The last snapshot.
    Snapshot,
}

/// The fates of all records since the boot, those of rings that are gone among them.
///
/// Records that were begun and not given up: `written + dropped + off`. Of the written ones each is
/// read, overwritten, cleared or unread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub written: u64,
    pub read: u64,
    pub overwritten: u64,
    /// Cleared, or gone with their ring.
    pub cleared: u64,
    pub unread: u64,
    /// Not written, because there was no room for them.
    pub dropped: u64,
    /// Not begun, because recording was off, or paused while the rings were changed, or the CPU was
    /// left out.
    pub off: u64,
}

impl Totals {
    const NONE: Self = Self {
        written: 0,
        read: 0,
        overwritten: 0,
        cleared: 0,
        unread: 0,
        dropped: 0,
        off: 0,
    };

    fn add(&mut self, stats: &Stats) {
        self.written += stats.written;
        self.read += stats.read;
        self.overwritten += stats.overwritten;
        self.cleared += stats.cleared;
        self.unread += stats.unread;
        self.dropped += stats.dropped();
    }
}

/// A ring and its memory.
struct Owned {
    /// Data pages.
    pages: usize,
    memory: NonNull<u8>,
    layout: Layout,
    ring: Ring<'static>,
}

// SAFETY: a ring may be used from any CPU, and the memory is the object's own.
unsafe impl Send for Owned {}

impl Owned {
    fn new(pages: usize, mode: Mode) -> Result<Self, BufferError> {
        let bytes = Ring::bytes(pages).ok_or(BufferError::OutOfMemory)?;
        let layout = Layout::from_size_align(bytes, layout::HEADER_BYTES)
            .map_err(|_| BufferError::OutOfMemory)?;
        // SAFETY: the layout is not empty.
        let memory =
            NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(BufferError::OutOfMemory)?;
        // SAFETY: the memory is new, zero, and this object's until it is dropped. By then no CPU
        // has it any more (BUFFER-1), and no reader, because they hold the lock (BUFFER-2).
        match unsafe { Ring::init(memory, pages, mode) } {
            Ok(ring) => Ok(Self {
                pages,
                memory,
                layout,
                ring,
            }),
            Err(_) => {
                // SAFETY: allocated above with this layout.
                unsafe { dealloc(memory.as_ptr(), layout) };
                Err(BufferError::Size)
            }
        }
    }

    fn start(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// The counts of a ring that is not in use any more, after a grace period (BUFFER-1).
    fn final_stats(&self) -> Stats {
        // SAFETY: nothing writes to it.
        unsafe { self.ring.settle() };
        self.ring.stats()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// How often an allocation is tried again whose result may be confused with another ring.
const TRIES: usize = 4;

/// The data pages of a ring of at least `kib` KiB.
fn pages_for(kib: usize) -> usize {
    kib.div_ceil(PAGE_BYTES / 1024)
}

/// So many rings.
fn new_rings(count: usize, pages: usize, mode: Mode) -> Result<Vec<Owned>, BufferError> {
    let mut rings = try_vec(count)?;
    for _ in 0..count {
        rings.push(Owned::new(pages, mode)?);
    }
    Ok(rings)
}

/// Another ring for each of `rings`, of the same size, none of which can be confused with its own.
fn others_of(rings: &[Owned], mode: Mode) -> Result<Vec<Owned>, BufferError> {
    let mut others = try_vec(rings.len())?;
    let mut unfit = try_vec(TRIES)?;
    for first in rings {
        let other = loop {
            let other = Owned::new(first.pages, mode)?;
            let [one, two] = [first, &other].map(|ring| ring.memory.addr().get() as u64);
            if !may_be_confused(one, two, first.layout.size() as u64) {
                break other;
            }
            if unfit.len() == TRIES {
                return Err(BufferError::OutOfMemory);
            }
            // Kept until all are made, so that the next one is elsewhere.
            unfit.push(other);
        };
        others.push(other);
    }
    Ok(others)
}

/// One of so many CPUs, or all. None if there is no such.
fn one_of(count: usize, cpu: Option<usize>) -> Range<usize> {
    cpu.map_or(0..count, |cpu| cpu.min(count)..(cpu + 1).min(count))
}

/// The place of a CPU's ring, and its other ring.
///
/// # Panics
/// If there is no such CPU.
fn rings_of_cpu<A: Agent>(cpu: usize) -> (&'static AtomicPtr<u8>, &'static Spare) {
    let data = A::cpu_tracing(cpu);
    data.expect("the CPUs of the rings are possible ones")
        .rings()
}

/// Keeps the rings of a CPU as they are.
fn hold<A: Agent>(cpu: usize) -> Held<'static> {
    let (live, spare) = rings_of_cpu::<A>(cpu);
    // SAFETY: null, or rings that live until a grace period after they were taken away (BUFFER-1).
    unsafe { spare.hold(live) }
}

/// Lets all snapshots that are wanted be taken, and settles them. Task context, interrupts on.
fn settle<A: Agent>() {
    let waits = || {
        (0..A::possible_cpus()).any(|cpu| {
            let (_, spare) = rings_of_cpu::<A>(cpu);
            spare.is_exchanged() || spare.is_wanted()
        })
    };
    // Twice, because what is wanted is done when the last one is settled. More often only if a hit
    // that takes a snapshot comes in between; under a storm of such hits there is no last one.
    for _ in 0..8 {
        if !waits() {
            return;
        }
        // A task is in no hit.
        A::keep_cpu(&mut snapshot::on_quiet::<A>);
        // The others get an interrupt, again and again until it is a quiet moment.
        A::probes().synchronize_hits();
    }
}

impl<A: Agent> Rings<A> {
    /// Makes rings of `pages` pages for some CPUs and gives them to these, in place of those that
    /// were there. If there were none, it is for all.
    fn make(&mut self, cpus: Range<usize>, pages: usize) -> Result<(), BufferError> {
        let mut rings = new_rings(cpus.len(), pages, self.mode)?;
        let mut others = match self.others.is_empty() {
            true => Vec::new(),
            false => others_of(&rings, self.mode)?,
        };
        // No record is being written from here on (BUFFER-1).
        let _pause = A::tracing().recording.pause();
        A::probes().synchronize_hits();
        for (index, cpu) in cpus.clone().enumerate() {
            let mut held = hold::<A>(cpu);
            let other = others.get(index).map_or(null_mut(), Owned::start);
            // SAFETY: empty rings, which live until they are taken away again; null is none. No
            // record is being written.
            unsafe {
                held.set_spare(other);
                held.set_live(rings[index].start());
            }
        }
        for (old, new) in [
            (&mut self.rings, &mut rings),
            (&mut self.others, &mut others),
        ] {
            if old.is_empty() {
                core::mem::swap(old, new);
            } else {
                old[cpus.clone()].swap_with_slice(new);
            }
        }
        for owned in rings.iter().chain(&others) {
            self.gone.add(&owned.final_stats());
        }
        self.gone.cleared += core::mem::take(&mut self.gone.unread);
        A::tracing()
            .recording
            .has_rings()
            .store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Makes the rings, if there are none yet.
    fn ready(&mut self) -> Result<(), BufferError> {
        match self.rings.is_empty() {
            true => self.make(0..A::possible_cpus(), self.first_pages),
            false => Ok(()),
        }
    }

    /// Gives each CPU another ring, if it has none.
    fn ready_for_snapshots(&mut self) -> Result<(), BufferError> {
        if self.shared {
            return Err(BufferError::Busy);
        }
        self.ready()?;
        if self.others.is_empty() {
            let others = others_of(&self.rings, self.mode)?;
            for (cpu, owned) in others.iter().enumerate() {
                // SAFETY: an empty ring, which lives until it is taken away again.
                unsafe { hold::<A>(cpu).set_spare(owned.start()) };
            }
            self.others = others;
        }
        Ok(())
    }

    /// Takes the spares away.
    fn drop_others(&mut self) {
        for cpu in 0..self.others.len() {
            let mut held = hold::<A>(cpu);
            // SAFETY: null is no ring.
            unsafe { held.set_spare(null_mut()) };
            if held.live() == self.others[cpu].start() {
                core::mem::swap(&mut self.rings[cpu], &mut self.others[cpu]);
            }
        }
        // Writers to one of them are over then (BUFFER-1).
        A::probes().synchronize_hits();
        for owned in core::mem::take(&mut self.others) {
            self.gone.add(&owned.final_stats());
        }
        self.gone.cleared += core::mem::take(&mut self.gone.unread);
    }

    /// Keeps the rings of a CPU as they are, if there is anybody who would exchange them.
    fn hold_pair(&self, cpu: usize) -> Option<Held<'static>> {
        (!self.others.is_empty()).then(|| hold::<A>(cpu))
    }

    /// A ring of a CPU. It may be the other one a moment later, unless the pair is held.
    fn ring(&self, cpu: usize, which: Which) -> Option<Ring<'static>> {
        let first = self.rings.get(cpu)?;
        let Some(other) = self.others.get(cpu) else {
            return (which == Which::Live).then_some(first.ring);
        };
        let (live, _) = rings_of_cpu::<A>(cpu);
        let is_live = live.load(Ordering::Acquire) == first.start();
        Some(match is_live == (which == Which::Live) {
            true => first.ring,
            false => other.ring,
        })
    }

    /// The counts of a CPU since the ring was cleared.
    fn stats_of(&self, cpu: usize, which: Which) -> Stats {
        if cpu >= self.rings.len() {
            return Stats::default();
        }
        let mut held = hold::<A>(cpu);
        let base = held.bases()[which as usize];
        let ring = self.ring(cpu, which);
        ring.map_or(Stats::default(), |ring| ring.stats().since(&base))
    }

    fn clear(&self, cpu: usize, which: Which) {
        let mut held = hold::<A>(cpu);
        if let Some(ring) = self.ring(cpu, which) {
            held.bases()[which as usize] = ring.reset();
        }
    }

    /// Clears a live ring that is damaged. The pair is held.
    fn reset_damaged(&self, cpu: usize) {
        if let Some(ring) = self.ring(cpu, Which::Live) {
            ring.reset();
        }
    }

    /// Data pages of a CPU's ring, which may not be there yet.
    fn pages_of(&self, cpu: usize) -> usize {
        self.rings
            .get(cpu)
            .map_or(self.first_pages, |owned| owned.pages)
    }

    /// The CPU, or all. None if there are no rings yet.
    fn chosen(&self, cpu: Option<usize>) -> Range<usize> {
        one_of(self.rings.len(), cpu)
    }
}

impl<A: Agent> Buffers<A> {
    pub(crate) const fn new() -> Self {
        Self {
            rings: Mutex::from_raw(
                lock_api::RawMutex::INIT,
                Rings {
                    rings: Vec::new(),
                    others: Vec::new(),
                    first_pages: A::RING_PAGES,
                    mode: Mode::Overwrite,
                    triggers: 0,
                    shared: false,
                    gone: Totals::NONE,
                    agent: PhantomData,
                },
            ),
        }
    }

    /// Makes the rings, if there are none yet.
    ///
    /// # Errors
    /// [`BufferError::OutOfMemory`].
    pub fn ready(&self) -> Result<(), BufferError> {
        self.rings.lock().ready()
    }

    /// Visits the rings of all CPUs, in their order, for the host to read them from memory: where
    /// each begins, and its bytes. They stay there: from now on there are no snapshots and no other
    /// sizes. Visits none if there are spares.
    pub fn share(&self, mut visit: impl FnMut(u64, usize)) {
        let mut rings = self.rings.lock();
        if !rings.others.is_empty() {
            return;
        }
        rings.shared = true;
        for owned in &rings.rings {
            let start = owned.memory.addr().get() as u64;
            visit(start, owned.layout.size());
        }
    }

    /// Does some work during which no ring changes: no record is written, and none is exchanged or
    /// taken away. Records that are not begun because of it are counted.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the work was not done.
    pub(crate) fn while_still(&self, work: impl FnOnce()) -> Result<(), OutOfMemory> {
        let rings = self.rings.lock();
        let mut pairs = try_vec(rings.rings.len())?;
        pairs.extend((0..rings.rings.len()).filter_map(|cpu| rings.hold_pair(cpu)));
        let _pause = A::tracing().recording.pause();
        // No record is being written when this has returned.
        A::probes().synchronize_hits();
        work();
        Ok(())
    }

    /// The size of a CPU's ring in KiB.
    pub fn size_kib(&self, cpu: usize) -> usize {
        self.rings.lock().pages_of(cpu) * PAGE_BYTES / 1024
    }

    /// Gives each CPU, or one of them, a ring of at least `kib` KiB. The records of the old ones
    /// are gone.
    ///
    /// # Errors
    /// [`BufferError`]; no size has changed then.
    pub fn resize(&self, cpu: Option<usize>, kib: usize) -> Result<(), BufferError> {
        if !(1..=MOST_KIB).contains(&kib) {
            return Err(BufferError::Size);
        }
        let mut rings = self.rings.lock();
        if rings.shared {
            return Err(BufferError::Busy);
        }
        if cpu.is_some() {
            rings.ready()?;
        }
        rings.make(one_of(A::possible_cpus(), cpu), pages_for(kib))
    }

    /// The same, but rings that have that size stay, with their records, if all of these have it.
    ///
    /// # Errors
    /// The same as [`resize`](Self::resize).
    pub fn set_size_kib(&self, cpu: Option<usize>, kib: usize) -> Result<(), BufferError> {
        let has_size = |cpu| self.rings.lock().pages_of(cpu) == pages_for(kib);
        match one_of(A::possible_cpus(), cpu).all(has_size) {
            true => Ok(()),
            false => self.resize(cpu, kib),
        }
    }

    /// Whether the oldest records go when there is no room, rather than the newest.
    pub fn overwrites(&self) -> bool {
        self.rings.lock().mode == Mode::Overwrite
    }

    /// Sets [`overwrites`](Self::overwrites).
    pub fn set_overwrite(&self, overwrite: bool) {
        let mut rings = self.rings.lock();
        rings.mode = match overwrite {
            true => Mode::Overwrite,
            false => Mode::Stop,
        };
        for owned in rings.rings.iter().chain(&rings.others) {
            owned.ring.set_mode(rings.mode);
        }
    }

    /// Removes all records, of one CPU or of all. Counts begin anew.
    pub fn clear(&self, cpu: Option<usize>) {
        let rings = self.rings.lock();
        for cpu in rings.chosen(cpu) {
            rings.clear(cpu, Which::Live);
        }
    }

    /// The counts of a CPU's ring since it was cleared.
    pub fn stats(&self, cpu: usize) -> Stats {
        self.stats_of(cpu, Which::Live)
    }

    /// The counts of one of a CPU's rings since it was cleared.
    pub fn stats_of(&self, cpu: usize, which: Which) -> Stats {
        self.rings.lock().stats_of(cpu, which)
    }

    /// When the oldest record of a CPU was written, by its time stamp counter.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn oldest(&self, cpu: usize) -> Result<Option<u64>, OutOfMemory> {
        let mut oldest = None;
        self.view(Which::Live, Some(cpu), |item| {
            if let Item::Record { tsc, .. } = item {
                oldest = Some(tsc);
            }
            oldest.is_none()
        })?;
        Ok(oldest)
    }

    /// Takes a snapshot of all CPUs, or of one: its records are those of [`Which::Snapshot`] then,
    /// and the live buffer is empty. The last one is gone. The first one makes the rings that it
    /// needs.
    ///
    /// # Errors
    /// [`BufferError`].
    pub fn take_snapshot(&self, cpu: Option<usize>) -> Result<(), BufferError> {
        let mut rings = self.rings.lock();
        rings.ready_for_snapshots()?;
        settle::<A>();
        for cpu in rings.chosen(cpu) {
            snapshot::take_of::<A>(cpu);
        }
        settle::<A>();
        Ok(())
    }

    /// Waits until the last snapshot is complete.
    pub fn settle_snapshot(&self) {
        let _rings = self.rings.lock();
        settle::<A>();
    }

    /// Whether there are rings for snapshots.
    pub fn has_snapshot(&self) -> bool {
        !self.rings.lock().others.is_empty()
    }

    /// Removes the records of the snapshot.
    pub fn clear_snapshot(&self, cpu: Option<usize>) {
        let rings = self.rings.lock();
        settle::<A>();
        for cpu in rings.chosen(cpu) {
            rings.clear(cpu, Which::Snapshot);
        }
    }

    /// Frees the rings of snapshots.
    ///
    /// # Errors
    /// [`BufferError::Busy`]: a trigger takes snapshots.
    pub fn free_snapshot(&self) -> Result<(), BufferError> {
        let mut rings = self.rings.lock();
        if rings.triggers > 0 {
            return Err(BufferError::Busy);
        }
        if !rings.others.is_empty() {
            rings.drop_others();
        }
        Ok(())
    }

    /// A trigger is going to take snapshots: [`snapshot::take`]. Until [`disarm`](Self::disarm) the
    /// rings for that stay.
    ///
    /// # Errors
    /// The same as for [`take_snapshot`](Self::take_snapshot).
    pub fn arm(&self) -> Result<(), BufferError> {
        let mut rings = self.rings.lock();
        rings.ready_for_snapshots()?;
        rings.triggers += 1;
        Ok(())
    }

    /// Takes an [`arm`](Self::arm) back.
    pub fn disarm(&self) {
        let mut rings = self.rings.lock();
        rings.triggers = rings.triggers.saturating_sub(1);
    }

    /// How many records were written and are neither discarded nor cleared, on all CPUs.
    pub fn written(&self) -> u64 {
        let rings = self.rings.lock();
        (0..rings.rings.len())
            .map(|cpu| rings.stats_of(cpu, Which::Live).written)
            .sum()
    }

    /// How many records are there to be read, on all CPUs.
    pub fn unread(&self) -> u64 {
        let rings = self.rings.lock();
        (0..rings.rings.len())
            .map(|cpu| rings.stats_of(cpu, Which::Live).unread)
            .sum()
    }

    /// The fates of all records since the boot. The numbers agree with each other while no CPU
    /// records.
    pub fn totals(&self) -> Totals {
        let rings = self.rings.lock();
        settle::<A>();
        let mut totals = rings.gone;
        for owned in rings.rings.iter().chain(&rings.others) {
            totals.add(&owned.ring.stats());
        }
        totals.off = (0..A::possible_cpus())
            .filter_map(A::cpu_tracing)
            .map(|cpu| cpu.records_off.load(Ordering::Relaxed))
            .sum();
        totals
    }

    /// Takes the next record of all CPUs, or of one, out of the rings. False: there is none. A ring
    /// that is damaged is cleared.
    ///
    /// # Errors
    /// [`BufferError::OutOfMemory`]; nothing was taken out.
    pub fn consume(
        &self,
        cpu: Option<usize>,
        visit: impl FnOnce(Item<'_>),
    ) -> Result<bool, BufferError> {
        let mut visit = Some(visit);
        let mut is_there = false;
        self.consume_chosen(cpu, |item| {
            is_there = true;
            if let (Some(item), Some(visit)) = (item, visit.take()) {
                visit(item);
            }
            false
        })?;
        Ok(is_there)
    }

    /// Takes records of all CPUs, or of one, out of the rings, in the order of time, until there
    /// are none or `visit` says no. A ring that is damaged is cleared.
    ///
    /// # Errors
    /// [`BufferError::OutOfMemory`]; nothing was taken out.
    pub fn consume_while(
        &self,
        cpu: Option<usize>,
        mut visit: impl FnMut(Item<'_>) -> bool,
    ) -> Result<(), BufferError> {
        self.consume_chosen(cpu, |item| item.is_none_or(&mut visit))
    }

    /// The same as [`consume_while`](Self::consume_while), of one CPU or of all. A ring that was
    /// cleared is no item.
    fn consume_chosen(
        &self,
        cpu: Option<usize>,
        mut visit: impl FnMut(Option<Item<'_>>) -> bool,
    ) -> Result<(), BufferError> {
        let rings = self.rings.lock();
        let chosen = rings.chosen(cpu);
        let (mut consumers, mut pairs) = (try_vec(chosen.len())?, try_vec(chosen.len())?);
        let mut payload = [0; layout::MAX_PAYLOAD];
        loop {
            // One record at a time (BUFFER-3). Without spares the rings stay as they are.
            pairs.extend(chosen.clone().filter_map(|cpu| rings.hold_pair(cpu)));
            consumers.extend(
                (chosen
                    .clone()
                    .filter_map(|cpu| rings.ring(cpu, Which::Live)))
                .map(Ring::consumer),
            );
            let mut merge = Merge::new(&mut consumers);
            loop {
                let next = merge.next(&mut payload);
                if let Err((index, _)) = next {
                    rings.reset_damaged(chosen.start + index);
                }
                pairs.clear();
                let goes_on = match &next {
                    Ok(Some((index, event))) => {
                        visit(Some(item(chosen.start + index, event, &payload)))
                    }
                    Ok(None) => return Ok(()),
                    Err(_) => visit(None),
                };
                if !goes_on {
                    return Ok(());
                }
                if !rings.others.is_empty() {
                    break;
                }
            }
            consumers.clear();
        }
    }

    /// Visits the records that are in the rings of all CPUs, or of one, in the order of time, and
    /// leaves them there. `visit` says whether to go on.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn view(
        &self,
        which: Which,
        cpu: Option<usize>,
        mut visit: impl FnMut(Item<'_>) -> bool,
    ) -> Result<(), OutOfMemory> {
        let rings = self.rings.lock();
        let chosen = rings.chosen(cpu);
        let mut cursors = try_vec::<Cursor<'_>>(chosen.len())?;
        // A snapshot that comes while this goes on leaves the cursors where they are, and its
        // records.
        cursors.extend((chosen.clone().filter_map(|cpu| rings.ring(cpu, which))).map(Ring::cursor));
        // A view ends, also if records are written faster than it goes: at what was there now.
        let end = read_tsc();
        let mut payload = [0; layout::MAX_PAYLOAD];
        let mut merge = Merge::new(&mut cursors);
        while let Ok(Some((index, event))) = merge.next(&mut payload) {
            let item = item(chosen.start + index, &event, &payload);
            let is_later = matches!(item, Item::Record { tsc, .. } if tsc > end);
            if is_later || !visit(item) {
                break;
            }
        }
        Ok(())
    }
}
