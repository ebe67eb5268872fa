//! The trace buffer: a ring for each CPU, and those who read them.
//!
//! ```text
//!   programs on CPU n ─► ring n ─┬─ Consumer ─► trace_pipe: takes records out, in order of time
//!                                └─ Cursor ───► trace: leaves them there
//! ```
//!
//! The rings are made when the first program that records is loaded, so a kernel that never traces
//! has none.
//!
//! # Invariants
//! BUFFER-1. The ring of a CPU is changed only while no record is being written there: recording
//!     is paused ([`records::pause`]), and a grace period has passed since. So a record is
//!     submitted to the ring in which it was reserved.
//! BUFFER-2. The lock is held by whoever consumes, clears or changes the rings. Cursors hold it,
//!     too, so that no ring goes away below them.
//!
//! # Contexts
//! Task context, may sleep.

use alloc::alloc::{alloc_zeroed, dealloc};
use core::{alloc::Layout, ptr::NonNull, sync::atomic::Ordering};

use alloc::vec::Vec;
use trace_ring::{Cursor, Event, Merge, Mode, Ring, Stats, layout};

use super::records::{self, PREFIX_BYTES, Prefix, RINGS_READY};
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
pub const MOST_KIB: usize = 16 << 10;

/// The rings, by CPU. Empty: there are none yet.
struct Buffer {
    rings: Vec<Owned>,
    pages: usize,
    mode: Mode,
    /// The counts at the last time that the buffer was cleared, by CPU.
    cleared: Vec<Stats>,
    /// The counts of the rings that are gone.
    gone: Totals,
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
    pages: FIRST_PAGES,
    mode: Mode::Overwrite,
    cleared: Vec::new(),
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
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

impl Buffer {
    /// Makes rings of `pages` pages and gives them to the CPUs, in place of those that were there.
    fn make(&mut self, pages: usize) -> Result<(), Errno> {
        let cpus = smp::possible_cpus();
        let mut rings = Vec::new();
        rings.try_reserve_exact(cpus).map_err(|_| Errno::ENOMEM)?;
        for _ in 0..cpus {
            rings.push(Owned::new(pages, self.mode)?);
        }
        let mut cleared = Vec::new();
        cleared.try_reserve_exact(cpus).map_err(|_| Errno::ENOMEM)?;
        cleared.resize(cpus, Stats::default());
        // No record is being written from here on (BUFFER-1).
        records::pause();
        text_poke::synchronize_hits();
        for (cpu, owned) in rings.iter().enumerate() {
            percpu::of(cpu).set_trace_ring(owned.memory.as_ptr());
        }
        for owned in &self.rings {
            self.gone.add(&owned.ring.stats());
        }
        self.gone.cleared += core::mem::take(&mut self.gone.unread);
        self.rings = rings;
        self.cleared = cleared;
        self.pages = pages;
        RINGS_READY.store(true, Ordering::SeqCst);
        records::resume();
        Ok(())
    }

    fn stats_of(&self, cpu: usize) -> Stats {
        match (self.rings.get(cpu), self.cleared.get(cpu)) {
            (Some(owned), Some(cleared)) => owned.ring.stats().since(cleared),
            _ => Stats::default(),
        }
    }
}

/// Makes the rings, if there are none yet.
///
/// # Errors
/// ENOMEM.
pub fn ready() -> Result<(), Errno> {
    let mut buffer = BUFFER.lock();
    if buffer.rings.is_empty() {
        let pages = buffer.pages;
        buffer.make(pages)?;
    }
    Ok(())
}

/// Visits the rings of all CPUs, in their order: where each begins, and its bytes.
pub fn for_each_ring(mut visit: impl FnMut(u64, usize)) {
    let buffer = BUFFER.lock();
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
/// EINVAL for 0 or too much, ENOMEM; nothing has changed then.
pub fn resize(kib: usize) -> Result<(), Errno> {
    if !(1..=MOST_KIB).contains(&kib) {
        return Err(Errno::EINVAL);
    }
    BUFFER.lock().make((kib * 1024).div_ceil(PAGE_BYTES))
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
    for owned in &buffer.rings {
        owned.ring.set_mode(buffer.mode);
    }
}

/// Removes all records, of one CPU or of all. Counts begin anew.
pub fn clear(cpu: Option<usize>) {
    let mut buffer = BUFFER.lock();
    for at in 0..buffer.rings.len() {
        if cpu.is_none_or(|cpu| cpu == at) {
            buffer.cleared[at] = buffer.rings[at].ring.reset();
        }
    }
}

/// The counts of a CPU's ring since it was cleared.
pub fn stats(cpu: usize) -> Stats {
    BUFFER.lock().stats_of(cpu)
}

/// How many records were written and are neither discarded nor cleared, on all CPUs.
pub fn written() -> u64 {
    let buffer = BUFFER.lock();
    (0..buffer.rings.len())
        .map(|cpu| buffer.stats_of(cpu).written)
        .sum()
}

/// How many records are there to be read, on all CPUs.
pub fn unread() -> u64 {
    let buffer = BUFFER.lock();
    (0..buffer.rings.len())
        .map(|cpu| buffer.stats_of(cpu).unread)
        .sum()
}

/// The fates of all records since the boot. The numbers agree with each other while nobody records.
pub fn totals() -> Totals {
    let buffer = BUFFER.lock();
    let mut totals = buffer.gone;
    for owned in &buffer.rings {
        totals.add(&owned.ring.stats());
    }
    totals.off = (0..smp::possible_cpus())
        .map(|cpu| percpu::of(cpu).records_off.load(Ordering::Relaxed))
        .sum();
    totals
}

/// A thing that a reader meets.
pub enum Item<'a> {
    /// A record of an event, without its prefix.
    Record {
        cpu: usize,
        tsc: u64,
        bytes: &'a [u8],
    },
    /// So many records of the CPU are lost before the next one.
    Lost { cpu: usize, count: u64 },
}

/// Cuts a payload to the bytes that its program has used.
fn used(payload: &[u8]) -> &[u8] {
    let (prefix, record) = payload.split_at_checked(PREFIX_BYTES).unwrap_or_default();
    let used = prefix
        .first_chunk::<4>()
        .map_or(0, |bytes| u32::from_le_bytes(*bytes));
    const { assert!(core::mem::offset_of!(Prefix, used) == 0) };
    record.get(..used as usize).unwrap_or(record)
}

fn item<'a>(cpu: usize, event: &Event, payload: &'a [u8]) -> Item<'a> {
    match event {
        Event::Lost(count) => Item::Lost { cpu, count: *count },
        Event::Record(record) => {
            let len = record.bytes.min(payload.len());
            Item::Record {
                cpu,
                tsc: record.tsc,
                bytes: used(&payload[..len]),
            }
        }
    }
}

/// Takes the next record of all CPUs, or of one, out of the rings. False: there is none. A ring
/// that is damaged is cleared.
pub fn consume(cpu: Option<usize>, visit: impl FnOnce(Item<'_>)) -> bool {
    let buffer = BUFFER.lock();
    let mut consumers = Vec::new();
    let chosen = |at: &usize| cpu.is_none_or(|cpu| cpu == *at);
    for at in (0..buffer.rings.len()).filter(chosen) {
        consumers.push(buffer.rings[at].ring.consumer());
    }
    let first = cpu.unwrap_or(0);
    let mut payload = [0; layout::MAX_PAYLOAD];
    match Merge::new(&mut consumers).next(&mut payload) {
        Ok(Some((index, event))) => {
            visit(item(first + index, &event, &payload));
            true
        }
        Ok(None) => false,
        Err((index, _)) => {
            buffer.rings[first + index].ring.reset();
            true
        }
    }
}

/// Takes records of all CPUs out of the rings, in the order of time, until there are none or
/// `visit` says no. A ring that is damaged is cleared.
pub fn consume_while(mut visit: impl FnMut(Item<'_>) -> bool) {
    let buffer = BUFFER.lock();
    let mut consumers = Vec::new();
    if consumers.try_reserve_exact(buffer.rings.len()).is_err() {
        // The next call may find memory.
        return;
    }
    consumers.extend(buffer.rings.iter().map(|owned| owned.ring.consumer()));
    let mut payload = [0; layout::MAX_PAYLOAD];
    let mut merge = Merge::new(&mut consumers);
    loop {
        match merge.next(&mut payload) {
            Ok(Some((index, event))) => {
                if !visit(item(index, &event, &payload)) {
                    return;
                }
            }
            Ok(None) => return,
            Err((index, _)) => _ = buffer.rings[index].ring.reset(),
        }
    }
}

/// Visits the records that are in the rings of all CPUs, or of one, in the order of time, and
/// leaves them there. `visit` says whether to go on.
pub fn view(cpu: Option<usize>, mut visit: impl FnMut(Item<'_>) -> bool) {
    let buffer = BUFFER.lock();
    let chosen = |at: &usize| cpu.is_none_or(|cpu| cpu == *at);
    let mut cursors: Vec<Cursor<'_>> = (0..buffer.rings.len())
        .filter(chosen)
        .map(|at| buffer.rings[at].ring.cursor())
        .collect();
    let first = cpu.unwrap_or(0);
    // A view ends, also if records are written faster than it goes: at what was there now.
    let end = crate::time::read_tsc();
    let mut payload = [0; layout::MAX_PAYLOAD];
    let mut merge = Merge::new(&mut cursors);
    while let Ok(Some((index, event))) = merge.next(&mut payload) {
        let item = item(first + index, &event, &payload);
        let is_later = matches!(item, Item::Record { tsc, .. } if tsc > end);
        if is_later || !visit(item) {
            return;
        }
    }
}
