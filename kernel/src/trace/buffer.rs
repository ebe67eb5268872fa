//! The trace buffer: a ring for each CPU, and those who read them.
//!
//! ```text
//!   programs on CPU n ─► ring n ─┬─ Consumer ─► trace_pipe: takes records out, in order of time
//!                                └─ Cursor ───► trace: leaves them there
//! ```
//!
//! The rings are made when the first program that records is loaded, so a kernel that never traces
//! has none. The first snapshot, or the first trigger that takes one, gives each CPU a second ring,
//! its spare. From then on the two may be exchanged at any time ([`super::snapshot`]): so which one
//! is live is what the CPU says, not where it is in a list.
//!
//! # Invariants
//! BUFFER-1. A ring is taken away only while no record is being written to it: recording is paused
//!     ([`records::pause`]), or the ring is not in use any more; and a grace period has passed
//!     since.
//! BUFFER-2. The lock is held by whoever consumes, clears or changes the rings. Cursors hold it,
//!     too, so that no ring goes away below them.
//! BUFFER-3. With spares, who consumes or clears also holds the pair of the CPU ([`Held`]), for one
//!     record at a time: a snapshot waits for that.
//!
//! # Contexts
//! Task context, may sleep.

mod item;

use alloc::alloc::{alloc_zeroed, dealloc};
use core::{
    alloc::Layout,
    ops::Range,
    ptr::{NonNull, null_mut},
    sync::atomic::Ordering,
};

use alloc::vec::Vec;
use trace_ring::{
    Cursor, Merge, Mode, Ring, Stats, layout,
    spare::{Held, may_be_confused},
};

use self::item::item;
pub use self::item::{Item, Waiting};
use super::{
    records::{self, RINGS_READY},
    shared::{OutOfMemory, try_vec},
    snapshot,
};
use crate::{
    arch::{percpu, smp},
    errno::Errno,
    probes::text_poke,
    sync::Mutex,
};

/// Data pages of each ring at first.
const FIRST_PAGES: usize = 64;
const PAGE_BYTES: usize = trace_ring::limits::PAGE_BYTES;
/// The most that a file may ask for, in KiB for each CPU.
pub const MOST_KIB: usize = trace_wire::MOST_RING_KIB as usize;

/// The rings, by CPU. Empty: there are none yet.
struct Buffer {
    rings: Vec<Owned>,
    /// Each CPU's other ring. Empty: there are none. Which of the two is live, the CPU knows.
    others: Vec<Owned>,
    pages: usize,
    mode: Mode,
    /// The counts of the rings that are gone.
    gone: Totals,
    /// How many triggers take snapshots.
    triggers: usize,
    /// The host reads the rings from memory, where it was told that they are.
    shared: bool,
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
    /// Not begun, because recording was off, or paused while the rings were changed.
    pub off: u64,
}

impl Totals {
    fn add(&mut self, stats: &Stats) {
        self.written += stats.written;
        self.read += stats.read;
        self.overwritten += stats.overwritten;
        self.cleared += stats.cleared;
        self.unread += stats.unread;
        self.dropped += stats.dropped();
    }
}

static BUFFER: Mutex<Buffer> = Mutex::new(Buffer {
    rings: Vec::new(),
    others: Vec::new(),
    pages: FIRST_PAGES,
    mode: Mode::Overwrite,
    triggers: 0,
    shared: false,
    gone: Totals {
        written: 0,
        read: 0,
        overwritten: 0,
        cleared: 0,
        unread: 0,
        dropped: 0,
        off: 0,
    },
});

/// A ring and its memory.
struct Owned {
    memory: NonNull<u8>,
    layout: Layout,
    ring: Ring<'static>,
}

// SAFETY: a ring may be used from any CPU, and the memory is the object's own.
unsafe impl Send for Owned {}

impl Owned {
    fn new(pages: usize, mode: Mode) -> Result<Self, Errno> {
        let bytes = Ring::bytes(pages).ok_or(Errno::ENOMEM)?;
        let layout =
            Layout::from_size_align(bytes, layout::HEADER_BYTES).map_err(|_| Errno::ENOMEM)?;
        // SAFETY: the layout is not empty.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(Errno::ENOMEM)?;
        // SAFETY: the memory is new, zero, and this object's until it is dropped. By then no CPU
        // has it any more (BUFFER-1), and no reader, because they hold the lock (BUFFER-2).
        match unsafe { Ring::init(memory, pages, mode) } {
            Ok(ring) => Ok(Self {
                memory,
                layout,
                ring,
            }),
            Err(_) => {
                // SAFETY: allocated above with this layout.
                unsafe { dealloc(memory.as_ptr(), layout) };
                Err(Errno::EINVAL)
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

/// A ring for each CPU.
fn rings_of(pages: usize, mode: Mode) -> Result<Vec<Owned>, Errno> {
    let cpus = smp::possible_cpus();
    let mut rings = try_vec(cpus).map_err(|_| Errno::ENOMEM)?;
    for _ in 0..cpus {
        rings.push(Owned::new(pages, mode)?);
    }
    Ok(rings)
}

/// Another ring for each of `rings`, none of which can be confused with its own.
fn others_of(rings: &[Owned], pages: usize, mode: Mode) -> Result<Vec<Owned>, Errno> {
    let mut others = try_vec(rings.len()).map_err(|_| Errno::ENOMEM)?;
    let mut unfit = try_vec(TRIES).map_err(|_| Errno::ENOMEM)?;
    for first in rings {
        let other = loop {
            let other = Owned::new(pages, mode)?;
            let [one, two] = [first, &other].map(|ring| ring.memory.addr().get() as u64);
            if !may_be_confused(one, two, first.layout.size() as u64) {
                break other;
            }
            if unfit.len() == TRIES {
                return Err(Errno::ENOMEM);
            }
            // Kept until all are made, so that the next one is elsewhere.
            unfit.push(other);
        };
        others.push(other);
    }
    Ok(others)
}

/// Keeps the rings of a CPU as they are.
fn hold(cpu: usize) -> Held<'static> {
    let (live, spare) = percpu::of(cpu).trace_rings();
    // SAFETY: null, or rings that live until a grace period after they were taken away (BUFFER-1).
    unsafe { spare.hold(live) }
}

/// Lets all snapshots that are wanted be taken, and settles them. Task context, interrupts on.
fn settle() {
    let waits = || {
        (0..smp::possible_cpus()).any(|cpu| {
            let (_, spare) = percpu::of(cpu).trace_rings();
            spare.is_exchanged() || spare.is_wanted()
        })
    };
    // Twice, because what is wanted is done when the last one is settled. More often only if a hit
    // that takes a snapshot comes in between; under a storm of such hits there is no last one.
    for _ in 0..8 {
        if !waits() {
            return;
        }
        percpu::preempt_disable();
        // A task is in no hit.
        snapshot::on_quiet();
        percpu::preempt_enable();
        // The others get an interrupt, again and again until it is a quiet moment.
        text_poke::synchronize_hits();
    }
}

impl Buffer {
    /// Makes rings of `pages` pages and gives them to the CPUs, in place of those that were there.
    fn make(&mut self, pages: usize) -> Result<(), Errno> {
        let rings = rings_of(pages, self.mode)?;
        let others = match self.others.is_empty() {
            true => Vec::new(),
            false => others_of(&rings, pages, self.mode)?,
        };
        // No record is being written from here on (BUFFER-1).
        records::pause();
        text_poke::synchronize_hits();
        for (cpu, owned) in rings.iter().enumerate() {
            let mut held = hold(cpu);
            let other = others.get(cpu).map_or(null_mut(), Owned::start);
            // SAFETY: empty rings, which live until they are taken away again; null is none. No
            // record is being written.
            unsafe {
                held.set_spare(other);
                held.set_live(owned.start());
            }
        }
        for owned in self.rings.iter().chain(&self.others) {
            self.gone.add(&owned.final_stats());
        }
        self.gone.cleared += core::mem::take(&mut self.gone.unread);
        self.rings = rings;
        self.others = others;
        self.pages = pages;
        RINGS_READY.store(true, Ordering::SeqCst);
        records::resume();
        Ok(())
    }

    /// Makes the rings, if there are none yet.
    fn ready(&mut self) -> Result<(), Errno> {
        match self.rings.is_empty() {
            true => self.make(self.pages),
            false => Ok(()),
        }
    }

    /// Gives each CPU another ring, if it has none.
    fn ready_for_snapshots(&mut self) -> Result<(), Errno> {
        if self.shared {
            return Err(Errno::EBUSY);
        }
        self.ready()?;
        if self.others.is_empty() {
            let others = others_of(&self.rings, self.pages, self.mode)?;
            for (cpu, owned) in others.iter().enumerate() {
                // SAFETY: an empty ring, which lives until it is taken away again.
                unsafe { hold(cpu).set_spare(owned.start()) };
            }
            self.others = others;
        }
        Ok(())
    }

    /// Takes the spares away.
    fn drop_others(&mut self) {
        for cpu in 0..self.others.len() {
            let mut held = hold(cpu);
            // SAFETY: null is no ring.
            unsafe { held.set_spare(null_mut()) };
            if held.live() == self.others[cpu].start() {
                core::mem::swap(&mut self.rings[cpu], &mut self.others[cpu]);
            }
        }
        // Writers to one of them are over then (BUFFER-1).
        text_poke::synchronize_hits();
        for owned in core::mem::take(&mut self.others) {
            self.gone.add(&owned.final_stats());
        }
        self.gone.cleared += core::mem::take(&mut self.gone.unread);
    }

    /// Keeps the rings of a CPU as they are, if there is anybody who would exchange them.
    fn hold_pair(&self, cpu: usize) -> Option<Held<'static>> {
        (!self.others.is_empty()).then(|| hold(cpu))
    }

    /// A ring of a CPU. It may be the other one a moment later, unless the pair is held.
    fn ring(&self, cpu: usize, which: Which) -> Option<Ring<'static>> {
        let first = self.rings.get(cpu)?;
        let Some(other) = self.others.get(cpu) else {
            return (which == Which::Live).then_some(first.ring);
        };
        let (live, _) = percpu::of(cpu).trace_rings();
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
        let mut held = hold(cpu);
        let base = held.bases()[which as usize];
        let ring = self.ring(cpu, which);
        ring.map_or(Stats::default(), |ring| ring.stats().since(&base))
    }

    fn clear(&self, cpu: usize, which: Which) {
        let mut held = hold(cpu);
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

    /// The CPU, or all.
    fn chosen(&self, cpu: Option<usize>) -> Range<usize> {
        let all = 0..self.rings.len();
        cpu.map_or(all.clone(), |cpu| cpu.min(all.end)..(cpu + 1).min(all.end))
    }
}

/// Makes the rings, if there are none yet.
///
/// # Errors
/// ENOMEM.
pub fn ready() -> Result<(), Errno> {
    BUFFER.lock().ready()
}

/// Visits the rings of all CPUs, in their order, for the host to read them from memory: where each
/// begins, and its bytes. They stay there: from now on there are no snapshots and no other sizes.
/// Visits none if there are spares.
pub fn share(mut visit: impl FnMut(u64, usize)) {
    let mut buffer = BUFFER.lock();
    if !buffer.others.is_empty() {
        return;
    }
    buffer.shared = true;
    for owned in &buffer.rings {
        let start = owned.memory.addr().get() as u64;
        visit(start, owned.layout.size());
    }
}

/// The size of each CPU's ring in KiB.
pub fn size_kib() -> usize {
    BUFFER.lock().pages * PAGE_BYTES / 1024
}

/// Gives each CPU a ring of at least `kib` KiB. The records of the old ones are gone.
///
/// # Errors
/// EINVAL for 0 or too much, ENOMEM, EBUSY as of [`take_snapshot`]; nothing has changed then.
pub fn resize(kib: usize) -> Result<(), Errno> {
    if !(1..=MOST_KIB).contains(&kib) {
        return Err(Errno::EINVAL);
    }
    let mut buffer = BUFFER.lock();
    if buffer.shared {
        return Err(Errno::EBUSY);
    }
    buffer.make((kib * 1024).div_ceil(PAGE_BYTES))
}

/// The same, but rings that have that size stay, with their records.
///
/// # Errors
/// The same as [`resize`].
pub fn set_size_kib(kib: usize) -> Result<(), Errno> {
    match kib.checked_next_multiple_of(PAGE_BYTES / 1024) {
        Some(kib) if kib == size_kib() => Ok(()),
        _ => resize(kib),
    }
}

/// Whether the oldest records go when there is no room, rather than the newest.
pub fn overwrites() -> bool {
    BUFFER.lock().mode == Mode::Overwrite
}

/// Sets [`overwrites`].
pub fn set_overwrite(overwrite: bool) {
    let mut buffer = BUFFER.lock();
    buffer.mode = match overwrite {
        true => Mode::Overwrite,
        false => Mode::Stop,
    };
    for owned in buffer.rings.iter().chain(&buffer.others) {
        owned.ring.set_mode(buffer.mode);
    }
}

/// Removes all records, of one CPU or of all. Counts begin anew.
pub fn clear(cpu: Option<usize>) {
    let buffer = BUFFER.lock();
    for cpu in buffer.chosen(cpu) {
        buffer.clear(cpu, Which::Live);
    }
}

/// The counts of a CPU's ring since it was cleared.
pub fn stats(cpu: usize) -> Stats {
    stats_of(cpu, Which::Live)
}

/// The counts of one of a CPU's rings since it was cleared.
pub fn stats_of(cpu: usize, which: Which) -> Stats {
    BUFFER.lock().stats_of(cpu, which)
}

/// When the oldest record of a CPU was written, in nanoseconds since the boot.
///
/// # Errors
/// [`OutOfMemory`].
pub fn oldest(cpu: usize) -> Result<Option<u64>, OutOfMemory> {
    let mut oldest = None;
    view(Which::Live, Some(cpu), |item| {
        if let Item::Record { cpu, tsc, .. } = item {
            oldest = Some(crate::time::tsc_to_ns(cpu, tsc));
        }
        oldest.is_none()
    })?;
    Ok(oldest)
}

/// Takes a snapshot of all CPUs, or of one: its records are those of [`Which::Snapshot`] then, and
/// the live buffer is empty. The last one is gone. The first one makes the rings that it needs.
///
/// # Errors
/// ENOMEM. EBUSY: the rings have to stay where they are, because the host reads them.
pub fn take_snapshot(cpu: Option<usize>) -> Result<(), Errno> {
    let mut buffer = BUFFER.lock();
    buffer.ready_for_snapshots()?;
    settle();
    for cpu in buffer.chosen(cpu) {
        snapshot::take_of(cpu);
    }
    settle();
    Ok(())
}

/// Waits until the last snapshot is complete.
pub fn settle_snapshot() {
    let _buffer = BUFFER.lock();
    settle();
}

/// Whether there are rings for snapshots.
pub fn has_snapshot() -> bool {
    !BUFFER.lock().others.is_empty()
}

/// Removes the records of the snapshot.
pub fn clear_snapshot(cpu: Option<usize>) {
    let buffer = BUFFER.lock();
    settle();
    for cpu in buffer.chosen(cpu) {
        buffer.clear(cpu, Which::Snapshot);
    }
}

/// Frees the rings of snapshots.
///
/// # Errors
/// EBUSY: a trigger takes snapshots.
pub fn free_snapshot() -> Result<(), Errno> {
    let mut buffer = BUFFER.lock();
    if buffer.triggers > 0 {
        return Err(Errno::EBUSY);
    }
    if !buffer.others.is_empty() {
        buffer.drop_others();
    }
    Ok(())
}

/// A trigger is going to take snapshots: [`snapshot::take`]. Until [`disarm`] the rings for that
/// stay.
///
/// # Errors
/// The same as for [`take_snapshot`].
pub fn arm() -> Result<(), Errno> {
    let mut buffer = BUFFER.lock();
    buffer.ready_for_snapshots()?;
    buffer.triggers += 1;
    Ok(())
}

/// Takes an [`arm`] back.
pub fn disarm() {
    let mut buffer = BUFFER.lock();
    buffer.triggers = buffer.triggers.saturating_sub(1);
}

/// How many records were written and are neither discarded nor cleared, on all CPUs.
pub fn written() -> u64 {
    let buffer = BUFFER.lock();
    (0..buffer.rings.len())
        .map(|cpu| buffer.stats_of(cpu, Which::Live).written)
        .sum()
}

/// How many records are there to be read, on all CPUs.
pub fn unread() -> u64 {
    let buffer = BUFFER.lock();
    (0..buffer.rings.len())
        .map(|cpu| buffer.stats_of(cpu, Which::Live).unread)
        .sum()
}

/// The fates of all records since the boot. The numbers agree with each other while no CPU records.
pub fn totals() -> Totals {
    let buffer = BUFFER.lock();
    settle();
    let mut totals = buffer.gone;
    for owned in buffer.rings.iter().chain(&buffer.others) {
        totals.add(&owned.ring.stats());
    }
    totals.off = (0..smp::possible_cpus())
        .map(|cpu| percpu::of(cpu).records_off.load(Ordering::Relaxed))
        .sum();
    totals
}

/// Takes the next record of all CPUs, or of one, out of the rings. False: there is none. A ring
/// that is damaged is cleared.
///
/// # Errors
/// ENOMEM; nothing was taken out.
pub fn consume(cpu: Option<usize>, visit: impl FnOnce(Item<'_>)) -> Result<bool, Errno> {
    let mut visit = Some(visit);
    let mut is_there = false;
    consume_chosen(cpu, |item| {
        is_there = true;
        if let (Some(item), Some(visit)) = (item, visit.take()) {
            visit(item);
        }
        false
    })?;
    Ok(is_there)
}

/// Takes records of all CPUs, or of one, out of the rings, in the order of time, until there are
/// none or `visit` says no. A ring that is damaged is cleared.
///
/// # Errors
/// ENOMEM; nothing was taken out.
pub fn consume_while(
    cpu: Option<usize>,
    mut visit: impl FnMut(Item<'_>) -> bool,
) -> Result<(), Errno> {
    consume_chosen(cpu, |item| item.is_none_or(&mut visit))
}

/// The same as [`consume_while`], of one CPU or of all. A ring that was cleared is no item.
fn consume_chosen(
    cpu: Option<usize>,
    mut visit: impl FnMut(Option<Item<'_>>) -> bool,
) -> Result<(), Errno> {
    let buffer = BUFFER.lock();
    let chosen = buffer.chosen(cpu);
    let (mut consumers, mut pairs) = (try_vec(chosen.len())?, try_vec(chosen.len())?);
    let mut payload = [0; layout::MAX_PAYLOAD];
    loop {
        // One record at a time (BUFFER-3). Without spares the rings stay as they are.
        pairs.extend(chosen.clone().filter_map(|cpu| buffer.hold_pair(cpu)));
        consumers.extend(
            (chosen
                .clone()
                .filter_map(|cpu| buffer.ring(cpu, Which::Live)))
            .map(Ring::consumer),
        );
        let mut merge = Merge::new(&mut consumers);
        loop {
            let next = merge.next(&mut payload);
            if let Err((index, _)) = next {
                buffer.reset_damaged(chosen.start + index);
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
            if !buffer.others.is_empty() {
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
    which: Which,
    cpu: Option<usize>,
    mut visit: impl FnMut(Item<'_>) -> bool,
) -> Result<(), OutOfMemory> {
    let buffer = BUFFER.lock();
    let chosen = buffer.chosen(cpu);
    let mut cursors = try_vec::<Cursor<'_>>(chosen.len())?;
    // A snapshot that comes while this goes on leaves the cursors where they are, and its records.
    cursors.extend((chosen.clone().filter_map(|cpu| buffer.ring(cpu, which))).map(Ring::cursor));
    // A view ends, also if records are written faster than it goes: at what was there now.
    let end = crate::time::read_tsc();
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
