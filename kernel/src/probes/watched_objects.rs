//! Watches of whole objects: statics and objects of the heap, of any size, as many as
//! [`MOST_WATCHES`] at a time, where debug registers watch four words.
//!
//! The pages of the object are mapped for reading alone. So an instruction that writes there faults
//! before it has done anything:
//!
//! ```text
//!   #PF   keep the words as they are; let this CPU write such pages (CR0.WP); TF on, IF off
//!   ──► the instruction itself
//!   #DB   count; protect again; TF and IF as they were; handlers, with the words before and after
//! ```
//!
//! Only CR0 of this CPU changes, so the other CPUs go on faulting meanwhile, and no translation has
//! to be dropped. The instruction runs where it is, so it may be any, also one in a slot or a
//! detour of a probe, or one that a debugger steps.
//!
//! # Neighbours
//! What else is in the pages faults as well when it is written, and costs as much. That is counted
//! ([`ObjectWatch::beside`]), because nothing else tells why a kernel has become slow.
//!
//! # Invariants
//! OBJECT-1. What the way from the gate of #PF to the change of CR0 writes is in no watched page:
//!     stacks and the data of CPUs. Pages with those are refused.
//! OBJECT-2. On that CPU nothing faults from there until the way from #DB has ended its own writes.
//!     So a step has the CPU's words for itself, and an NMI in between cannot begin another.
//! OBJECT-3. A watch leaves the table when its pages are writable on all CPUs, and goes a grace
//!     period later.
//!
//! # Contexts
//! Registering: a task that may sleep. Hits: any code of the kernel, handlers with interrupts off.
//! What a handler writes to watched objects is done and counts as missed.

use alloc::boxed::Box;
use core::{
    fmt,
    mem::{ManuallyDrop, offset_of},
    ops::{Deref, Range},
    ptr::{self, NonNull},
    sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU64, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use ::probes::{Platform, PtRegs, Touched};
use x86_64::{
    VirtAddr,
    registers::{
        control::{Cr0, Cr0Flags},
        rflags::RFlags,
    },
    structures::paging::PageTableFlags,
};

use super::{Kernel, PROBES};
use crate::{
    arch::{
        debug, gdt,
        percpu::{self, OBJECT_WORDS, ObjectStep},
        smp,
    },
    mm::paging::{self, HEAP_END, HEAP_START},
    symbols,
    sync::Mutex,
    task,
};

/// How many objects can be watched at a time.
pub const MOST_WATCHES: usize = 16;

/// How large an object may be, in bytes.
pub const MOST_BYTES: u64 = 1 << 20;

const PAGE: u64 = 4096;
const WORD: u64 = size_of::<u64>() as u64;

/// Runs after the instruction that has written to the object. `addr` is the first byte that it has
/// written. `old` and `new` are the 8 bytes around that, from a multiple of 8 on. Changes to the
/// registers are taken.
pub type ObjectHandler = dyn Fn(&mut PtRegs, &Touched) + Send + Sync;

/// A watch of an object for writes.
pub struct ObjectWatch {
    start: u64,
    bytes: u64,
    /// The first address of its pages, and their bytes.
    first_page: u64,
    paged_bytes: u64,
    handler: Box<ObjectHandler>,
    /// Whether another object that was watched at the same time has bytes in its pages.
    has_neighbours: AtomicBool,
    hits: AtomicU64,
    nmissed: AtomicU64,
    beside: AtomicU64,
}

/// Why an object cannot be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectError {
    /// It has no bytes, or too many.
    Size,
    /// Its memory cannot be protected; the reason.
    NotWatchable(&'static str),
    /// So many are watched already.
    TooMany,
    /// Called with preemption or interrupts off, or from a probe handler.
    AtomicContext,
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size => write!(
                f,
                "an object of 1 to {MOST_BYTES} bytes can be watched; watch a part of it"
            ),
            Self::NotWatchable(reason) => write!(f, "the object cannot be watched: {reason}"),
            Self::TooMany => write!(
                f,
                "{MOST_WATCHES} objects are watched, and no more can be; end the watch of others"
            ),
            Self::AtomicContext => f.write_str("a watch is registered by a task that may sleep"),
        }
    }
}

impl ObjectWatch {
    /// A watch of the `bytes` from `start` on.
    pub fn new(start: u64, bytes: u64, handler: Box<ObjectHandler>) -> Self {
        let first_page = start & !(PAGE - 1);
        let end = start.saturating_add(bytes) | (PAGE - 1);
        Self {
            start,
            bytes,
            first_page,
            paged_bytes: (end - first_page).saturating_add(1),
            handler,
            has_neighbours: AtomicBool::new(false),
            hits: AtomicU64::new(0),
            nmissed: AtomicU64::new(0),
            beside: AtomicU64::new(0),
        }
    }

    /// How often it was written, and the handler ran. Any context.
    pub fn hits(&self) -> u64 {
        self.hits.load(Relaxed)
    }

    /// How often it was written by a CPU that was in handlers. Any context.
    pub fn nmissed(&self) -> u64 {
        self.nmissed.load(Relaxed)
    }

    /// How often a neighbour in its pages was written. Any context.
    pub fn beside(&self) -> u64 {
        self.beside.load(Relaxed)
    }

    fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }

    /// The addresses of its pages.
    fn pages(&self) -> Range<u64> {
        self.first_page..self.first_page.saturating_add(self.paged_bytes)
    }

    /// Runs the handler.
    #[inline(always)]
    fn tell(&self, regs: &mut PtRegs, addr: u64, old: u64, new: u64) {
        let mut ip = regs.ip;
        if Kernel::slots().contains(&ip) {
            ip = PROBES.original_position(ip, regs.sp, |_| None).0;
        }
        let touched = Touched { ip, addr, old, new };
        PROBES.as_handler(|| (self.handler)(regs, &touched));
    }

    /// Whether an address is in its pages.
    #[inline(always)]
    fn has_page_of(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.first_page) < self.paged_bytes
    }
}

/// What hits find. A place that is null is free.
pub static WATCHES: [AtomicPtr<ObjectWatch>; MOST_WATCHES] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MOST_WATCHES];
/// How many of the places are to be looked at: those after them are free. 0: no object is watched,
/// so that other faults look at one word.
pub static USED: AtomicUsize = AtomicUsize::new(0);
/// Held while the places or the pages change.
static CHANGES: Mutex<()> = Mutex::new(());

/// The watches, with their places.
#[inline(always)]
fn watches() -> impl Iterator<Item = (usize, &'static ObjectWatch)> {
    let places = WATCHES.iter().take(USED.load(Acquire)).enumerate();
    // SAFETY: by OBJECT-3, as hits have interrupts off, and others hold `CHANGES`.
    places.filter_map(|(place, watch)| Some((place, unsafe { watch.load(Acquire).as_ref() }?)))
}

/// Sets [`USED`] as the places say. Under `CHANGES`.
fn set_used() {
    let last = WATCHES
        .iter()
        .rposition(|place| !place.load(Relaxed).is_null());
    USED.store(last.map_or(0, |last| last + 1), Release);
}

/// A registered watch that this handle owns. Dropping it, in a task that may sleep, ends the watch.
pub struct RegisteredObjectWatch(NonNull<ObjectWatch>);

// SAFETY: a watch is `Sync`, and the handle is its owner.
unsafe impl Send for RegisteredObjectWatch {}
// SAFETY: a shared handle gives shared access to the watch only.
unsafe impl Sync for RegisteredObjectWatch {}

impl Deref for RegisteredObjectWatch {
    type Target = ObjectWatch;

    fn deref(&self) -> &ObjectWatch {
        // SAFETY: alive until the handle is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl RegisteredObjectWatch {
    /// Watches the object from now on.
    ///
    /// # Errors
    /// [`ObjectError`]; nothing has changed then.
    pub fn new(watch: Box<ObjectWatch>) -> Result<Self, ObjectError> {
        if !task::may_sleep() {
            return Err(ObjectError::AtomicContext);
        }
        if watch.bytes == 0 || watch.bytes > MOST_BYTES {
            return Err(ObjectError::Size);
        }
        let _changes = CHANGES.lock();
        let free = WATCHES.iter().find(|place| place.load(Relaxed).is_null());
        let free = free.ok_or(ObjectError::TooMany)?;
        if let Some(reason) = refusal(&watch) {
            return Err(ObjectError::NotWatchable(reason));
        }
        let watch = NonNull::from(Box::leak(watch));
        let registered = Self(watch);
        for (_, other) in watches().filter(|(_, other)| overlap(other.pages(), registered.pages()))
        {
            other.has_neighbours.store(true, Relaxed);
            registered.has_neighbours.store(true, Relaxed);
        }
        // A fault that finds a page protected finds the watch.
        free.store(watch.as_ptr(), Release);
        set_used();
        for page in registered.pages().step_by(PAGE as usize) {
            paging::set_kernel_writable(VirtAddr::new(page), false);
        }
        smp::flush_tlb_everywhere();
        Ok(registered)
    }
}

impl Drop for RegisteredObjectWatch {
    fn drop(&mut self) {
        drop(self.finish());
    }
}

impl RegisteredObjectWatch {
    /// Ends the watch. Returns how many writes were missed. A task that may sleep.
    pub fn end(self) -> u64 {
        ManuallyDrop::new(self).finish().nmissed()
    }

    /// Ends the watch, once.
    fn finish(&self) -> Box<ObjectWatch> {
        let _changes = CHANGES.lock();
        let is_other = |watch: &ObjectWatch| !ptr::eq(watch, self.0.as_ptr());
        for page in self.pages().step_by(PAGE as usize) {
            let is_shared =
                watches().any(|(_, watch)| is_other(watch) && watch.pages().contains(&page));
            if !is_shared {
                paging::set_kernel_writable(VirtAddr::new(page), true);
            }
        }
        smp::flush_tlb_everywhere();
        if let Some(place) = WATCHES
            .iter()
            .find(|place| ptr::eq(place.load(Relaxed), self.0.as_ptr()))
        {
            place.store(ptr::null_mut(), Release);
        }
        set_used();
        PROBES.synchronize_hits();
        // SAFETY: leaked in `new`, no hit finds it any more, and those that had are over. The
        // handle is gone after this.
        unsafe { Box::from_raw(self.0.as_ptr()) }
    }
}

/// Whether two ranges have an address in common.
fn overlap(one: Range<u64>, other: Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Why the pages of `watch` cannot be protected, if they cannot.
fn refusal(watch: &ObjectWatch) -> Option<&'static str> {
    let pages = watch.pages();
    let overlaps = |other| overlap(pages.clone(), other);
    let is_in = |memory: Range<u64>| memory.start <= pages.start && pages.end <= memory.end;
    if !is_in(HEAP_START..HEAP_END) && !is_in(symbols::data()) {
        return Some("it is neither a static of the kernel nor in its heap");
    }
    if overlaps(percpu::range()) || overlaps(gdt::boot_stacks()) {
        return Some("the entry of each interrupt writes to its page");
    }
    // Those that are watched already are.
    let is_watched = |page| watches().any(|(_, watch)| watch.pages().contains(&page));
    let is_writable = |page| {
        let mapped = paging::translate_kernel(VirtAddr::new(page));
        mapped.is_some_and(|(_, flags)| flags.contains(PageTableFlags::WRITABLE))
    };
    let mut all = pages.step_by(PAGE as usize);
    match all.all(|page| is_watched(page) || is_writable(page)) {
        true => None,
        false => Some("nothing is mapped there, or nothing that the kernel may write"),
    }
}

/// Forbids this CPU again to write pages that are mapped for reading alone, which the stub of the
/// page fault has allowed.
#[inline(always)]
fn protect_pages() {
    let value = Cr0::read_raw() | Cr0Flags::WRITE_PROTECT.bits();
    // SAFETY: nothing but WP changes, and the kernel runs with it.
    unsafe { Cr0::write_raw(value) };
}

/// The words around `touched`: that with the byte, and the next one if it is in the same page. They
/// are in a watched page.
#[inline(always)]
fn words_at(touched: u64) -> [u64; OBJECT_WORDS] {
    let at = touched & !(WORD - 1);
    let read = |at: u64| {
        // SAFETY: in a page of a watched object, which is mapped.
        unsafe { ptr::with_exposed_provenance::<u64>(at as usize).read_volatile() }
    };
    let has_next = !(at + WORD).is_multiple_of(PAGE);
    [read(at), if has_next { read(at + WORD) } else { 0 }]
}

/// Where the stub of the page fault finds what it asks of a watch.
pub const FIRST_PAGE: usize = offset_of!(ObjectWatch, first_page);
pub const PAGED_BYTES: usize = offset_of!(ObjectWatch, paged_bytes);

/// The error code of a write of the kernel to a page that is there (Intel SDM vol. 3A, figure
/// 4-12).
pub const WRITE_OF_PRESENT: u64 = 0b011;

/// The flags that a step changes.
pub const STEPPED: u64 = RFlags::TRAP_FLAG.bits() | RFlags::INTERRUPT_FLAG.bits();

/// Gives a write up whose instruction has another fault, which left `regs`: that fault comes first,
/// and the instruction begins anew after it. Other faults change nothing. A write itself begins in
/// the stub of the page fault. Any context, interrupts off.
#[inline(always)]
pub fn on_other_fault(regs: &mut PtRegs) {
    if USED.load(Relaxed) != 0 {
        give_up(regs);
    }
}

#[cold]
#[inline(never)]
fn give_up(regs: &mut PtRegs) {
    let step = &percpu::this().object_step;
    if step.is_active.load(Relaxed)
        && regs.ip == step.ip.load(Relaxed)
        && regs.sp == step.sp.load(Relaxed)
    {
        restore_flags(step, regs);
        step.is_active.store(false, Relaxed);
        protect_pages();
    }
}

/// Gives the code the flags back that a step has changed.
#[inline(always)]
fn restore_flags(step: &ObjectStep, regs: &mut PtRegs) {
    regs.flags = regs.flags & !STEPPED | step.flags.load(Relaxed);
}

/// A write to a watched page that is over.
pub struct Written {
    /// The places of the watches whose handlers are to run.
    told: u32,
    addr: u64,
    old: u64,
    new: u64,
    /// The code was being stepped by others as well, who are to have the #DB.
    pub is_stepped: bool,
}

/// Whether the code whose write is under way is being stepped by others as well. Interrupts off.
#[inline(always)]
fn is_stepped_by_others(step: &ObjectStep) -> bool {
    step.flags.load(Relaxed) & RFlags::TRAP_FLAG.bits() != 0
}

/// Whether the #DB of a single step that left `regs` is the end of a write to a watched page. Then
/// [`end_step`] comes. Any context, interrupts off.
#[inline(always)]
pub fn is_step_of(regs: &PtRegs) -> bool {
    let step = &percpu::this().object_step;
    // An instruction that writes memory moves the stack pointer by a word at most. An NMI has
    // another stack.
    step.is_active.load(Relaxed) && regs.sp.abs_diff(step.sp.load(Relaxed)) <= WORD
}

/// The end of a write to a watched page, if the #DB of a single step that left `regs` and `status`
/// is that and nothing else. The usual case: the page has one watched object, and the write begins
/// in it or after it. Interrupts off.
#[inline(always)]
pub fn on_lone_step(regs: &mut PtRegs, status: u64) -> bool {
    let cpu = percpu::this();
    let step = &cpu.object_step;
    if !is_step_of(regs) || is_stepped_by_others(step) {
        return false;
    }
    debug::clear_single_step(status);
    cpu.probes.count_debug_trap();
    // SAFETY: by OBJECT-3, as interrupts are off since the fault has found it.
    let watch = unsafe { &*step.watch.load(Relaxed).cast::<ObjectWatch>() };
    let addr = step.touched.load(Relaxed);
    if watch.has_neighbours.load(Relaxed) || addr < watch.start {
        end_step(regs).tell(regs);
        return true;
    }
    restore_flags(step, regs);
    let (old, [new, _]) = (step.words[0].load(Relaxed), words_at(addr));
    step.is_active.store(false, Relaxed);
    protect_pages();
    if addr - watch.start >= watch.bytes {
        watch.beside.fetch_add(1, Relaxed);
    } else if cpu.probes.is_busy() {
        watch.nmissed.fetch_add(1, Relaxed);
    } else {
        watch.hits.fetch_add(1, Relaxed);
        watch.tell(regs, addr, old, new);
    }
    true
}

/// Ends a write to a watched page: the code goes on as it would without. [`Written::tell`] comes
/// when `regs` are where it does. Interrupts off.
#[inline(never)]
pub fn end_step(regs: &mut PtRegs) -> Written {
    let step = &percpu::this().object_step;
    restore_flags(step, regs);
    let addr = step.touched.load(Relaxed);
    let old = step.words.each_ref().map(|word| word.load(Relaxed));
    let new = words_at(addr);
    step.is_active.store(false, Relaxed);
    let is_missed = percpu::this().probes.is_busy();
    let mut told = 0_u32;
    for (place, watch) in watches() {
        if !watch.has_page_of(addr) {
            continue;
        }
        let count = match is_written(watch, addr, &old, &new) {
            false => &watch.beside,
            true if is_missed => &watch.nmissed,
            true => {
                told |= 1 << place;
                &watch.hits
            }
        };
        count.fetch_add(1, Relaxed);
    }
    protect_pages();
    Written {
        told,
        addr,
        old: old[0],
        new: new[0],
        is_stepped: is_stepped_by_others(step),
    }
}

/// Whether an instruction has written to the object that has written from `addr` on. One that
/// begins in front of the object has if the object has changed: how long it is, nothing tells.
#[inline(always)]
fn is_written(watch: &ObjectWatch, addr: u64, old: &[u64; 2], new: &[u64; 2]) -> bool {
    match addr >= watch.start {
        true => addr - watch.start < watch.bytes,
        false => {
            watch.start - addr < OBJECT_WORDS as u64 * WORD && is_changed(watch, addr, old, new)
        }
    }
}

/// Whether the object has changed that begins after `addr`.
#[cold]
#[inline(never)]
fn is_changed(watch: &ObjectWatch, addr: u64, old: &[u64; 2], new: &[u64; 2]) -> bool {
    let base = addr & !(WORD - 1);
    let mut bytes = 0..OBJECT_WORDS as u64 * WORD;
    bytes.any(|byte| {
        let (word, shift) = ((byte / WORD) as usize % OBJECT_WORDS, byte % WORD * 8);
        let is_of_object = (watch.start..watch.end()).contains(&(base + byte));
        is_of_object && old[word] >> shift & 0xff != new[word] >> shift & 0xff
    })
}

impl Written {
    /// Runs the handlers of the objects that were written.
    #[inline(always)]
    pub fn tell(&self, regs: &mut PtRegs) {
        if self.told != 0 {
            tell(self, regs);
        }
    }
}

#[inline(never)]
fn tell(written: &Written, regs: &mut PtRegs) {
    let mut told = written.told;
    while told != 0 {
        let place = told.trailing_zeros() as usize;
        told &= told - 1;
        let watch = WATCHES.get(place).map(|watch| watch.load(Acquire));
        // SAFETY: by OBJECT-3, as interrupts are off since the place was found.
        if let Some(watch) = watch.and_then(|watch| unsafe { watch.as_ref() }) {
            watch.tell(regs, written.addr, written.old, written.new);
        }
    }
}
