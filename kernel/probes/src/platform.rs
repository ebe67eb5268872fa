//! What a kernel provides: one small trait and a piece of its per-CPU data.

use core::{
    cell::UnsafeCell,
    fmt,
    mem::offset_of,
    ops::Range,
    sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed, compiler_fence},
};

use crate::{
    counters::PART_BYTES,
    detour::Templates,
    error::ProbeError,
    instance::{NO_CELL, TaskCell},
    jprobe::JprobeFrame,
    kprobe::Kprobe,
    registry::Probes,
    routines::Routines,
    site::Site,
};

/// The symbol that covers an address.
#[derive(Clone, Copy, Debug)]
pub struct Symbol {
    /// Its first address.
    pub start: u64,
    /// Its length in bytes.
    pub size: u64,
    /// What kind of memory it lies in.
    pub text: Text,
    /// Whether it is exported under its plain, unmangled name.
    pub exported: bool,
}

/// What kind of memory a symbol lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text {
    /// Executable for as long as the kernel runs.
    Kernel,
    /// Executable until the end of the boot, and not freed yet.
    Init,
    /// Init text that has been freed.
    Freed,
    /// Data.
    No,
}

/// A page of executable memory for slots.
#[derive(Clone, Copy, Debug)]
pub struct SlotPage {
    /// Where it is executed, in [`Platform::slots`].
    pub exec: u64,
    /// Where it is written.
    pub alias: *mut u8,
}

/// The addresses of what [`entry_points!`](crate::entry_points) has defined.
#[derive(Clone, Copy, Debug)]
pub struct EntryPoints {
    /// `kretprobe_trampoline`: where probed functions return to.
    pub trampoline: u64,
    /// `kretprobe_trampoline_trap3` and `kretprobe_trampoline_trap4`: the same, of [`historic`](crate::historic).
    pub historic_trampolines: [u64; 2],
    /// `kprobe_post_stub`: where slots with a post handler end.
    pub post_stub: u64,
    /// The breakpoint at the end of `jprobe_return`.
    pub jprobe_return: u64,
    /// What detours are made from.
    pub detours: Templates,
    /// What serves the probes of a site.
    pub routines: Routines,
    /// In `kprobe_breakpoint`: what takes any hit. Like the next four 0 where a kernel has its own entry for breakpoints.
    pub any_hit: u64,
    /// What takes hits of a site without post handlers.
    pub hit: u64,
    /// What takes hits of a site with post handlers.
    pub hit_post: u64,
    /// What takes hits of a site with one enabled kretprobe that has no entry handler and no data.
    pub one_kretprobe: u64,
    /// What takes hits of a site with several such, and nothing else that is enabled.
    pub kretprobes: u64,
}

/// A kernel, as the probes see it.
///
/// # Safety
/// 1. [`Platform::this_cpu`] and [`Platform::per_cpu`] give one [`PerCpu`] per CPU, which nobody else writes.
/// 2. Text that [`Platform::symbol_at`] calls executable is mapped and readable at its address.
/// 3. [`Platform::synchronize_cores`] returns only when every CPU has executed a serialising instruction
///    after the call began, and has left every #BP handler that it had entered before.
/// 4. [`Platform::synchronize_hits`] returns only when each CPU has been seen, after the call began, in a
///    context for which [`Probes::is_quiescent`] held at every depth of interrupt frames.
/// 5. No task is switched away from while [`Probes::may_preempt`] is false for it.
/// 6. [`Platform::slot_page`] gives memory of its own, executable at `exec` and writable at `alias`, for ever.
pub unsafe trait Platform: Sized + 'static {
    /// A lock that tasks may sleep on; serialises registration.
    type RawMutex: lock_api::RawMutex;

    /// Bytes of a slot; more where addresses do not fit in 32 bits.
    const SLOT_BYTES: usize = crate::insn::SLOT_BYTES;

    /// Where [`Platform::this_cpu`]'s data begins, from the GS base.
    const PER_CPU_GS_OFFSET: u32;

    /// The kernel's one registry.
    fn probes() -> &'static Probes<Self>;

    // For the hit path: any context, no locks.

    /// Where slot pages are executed: within 2 GiB of all text. Constant.
    fn slots() -> Range<u64>;

    /// The data of the CPU that calls, which cannot change CPU meanwhile.
    fn this_cpu() -> &'static PerCpu;

    /// The bounds of the stack that contains `sp`; an empty range where it is none.
    fn stack_of(sp: u64) -> Range<u64>;

    /// Ends the machine's run: the probes' own invariants are broken.
    fn fatal(message: fmt::Arguments<'_>) -> !;

    /// A function returned to the trampoline and nothing knows where to. Prints `message`, ends the task if it is a user
    /// task and the machine's run otherwise.
    fn orphan_return(message: fmt::Arguments<'_>) -> !;

    // For registration: task context.

    /// The data of CPU number `cpu`, from 0; none past the last possible CPU.
    fn per_cpu(cpu: usize) -> Option<&'static PerCpu>;

    /// Whether the caller may sleep: a task, with preemption and interrupts on.
    fn can_sleep() -> bool;

    /// The entry points of this kernel.
    fn entry_points() -> EntryPoints;

    /// The address of a symbol, by plain, mangled or demangled name.
    fn lookup_symbol(name: &str) -> Result<u64, ProbeError>;

    /// The symbol that covers `addr`.
    fn symbol_at(addr: u64) -> Option<Symbol>;

    /// Why `addr` may not be probed, if it may not.
    fn blacklisted(addr: u64) -> Option<&'static str>;

    /// Why the function at `addr` may not be probed at its return, if it may not.
    fn return_blacklisted(addr: u64) -> Option<&'static str>;

    /// Whether the kernel goes on elsewhere, or brings memory in, when an instruction in `range` faults: an entry of an exception
    /// table.
    fn may_fault(range: Range<u64>) -> bool;

    /// Stores one byte of text through a writable alias.
    ///
    /// # Safety
    /// 1. `addr` is live text, and the byte starts an instruction, the old one and the new one; or it is behind a
    ///    breakpoint, where no CPU executes.
    /// 2. The registration lock is held.
    unsafe fn write_text(addr: u64, byte: u8);

    /// Page number `index` of the slot region; none when memory or the region is used up.
    fn slot_page(index: usize) -> Option<SlotPage>;

    /// See clause 3 of the safety list. May sleep.
    fn synchronize_cores();

    /// See clause 4 of the safety list. May sleep.
    fn synchronize_hits();

    /// Returns when no task that was switched away from by an interrupt's exit is to resume at an ip for which `inside` holds. Such
    /// tasks do not become more meanwhile: [`Probes::may_preempt`] is false there. `inside` may run with any lock held. May sleep.
    fn wait_for_preempted(inside: &dyn Fn(u64) -> bool);

    /// Tells the kernel's log.
    fn log(message: fmt::Arguments<'_>);
}

/// The guard of a [`PerCpu`] while no hit is under way.
pub const GUARD_FREE: u32 = u32::MAX;

/// What the probes keep for each CPU. Only its own CPU writes it, with interrupts off or in a nesting that
/// restores what it found; so plain loads and stores do.
#[repr(C, align(16))]
pub struct PerCpu {
    /// The guard: how many hits are with their handlers here, less 1, so that one `inc` takes it and tells whether it was free. A
    /// hit that finds it taken runs no handlers. Free while a displaced instruction runs, which may read it.
    pub(crate) guard: AtomicU32,
    /// Where this CPU's part of a block of counters is, from the part of CPU 0.
    pub(crate) counter_part: AtomicU64,
    /// Its own address.
    pub(crate) this: AtomicPtr<PerCpu>,
    /// The current task's chain of return instances. Never null.
    pub(crate) cell: AtomicPtr<TaskCell>,
    /// The probe whose handler runs, for its fault handler. Means nothing while the guard is free.
    pub(crate) running: AtomicPtr<Kprobe>,
    /// The site whose post slot or single step is under way; the guard is free then.
    pub(crate) finishing: AtomicPtr<Site>,
    /// The flags that the code had, while `finishing`.
    pub(crate) saved_flags: AtomicU64,
    /// The stack pointer that the code had, while `finishing` in a post slot.
    pub(crate) saved_sp: AtomicU64,
    /// What a jprobe handler must leave as it found it.
    pub(crate) jprobe: UnsafeCell<JprobeFrame>,
    /// #BP exceptions that were given to the probes.
    pub breakpoints: AtomicU64,
    /// #DB exceptions that were given to the probes.
    pub debug_traps: AtomicU64,
    /// Breakpoints that had been removed, or that all their probes had left, before they were looked at.
    pub stale_breakpoints: AtomicU64,
}

// SAFETY: the one field that is not atomic, `jprobe`, is only touched by its own CPU under the guard, with interrupts off.
unsafe impl Sync for PerCpu {}

impl Default for PerCpu {
    fn default() -> Self {
        Self::new()
    }
}

impl PerCpu {
    /// A CPU that is in no hit.
    pub const fn new() -> Self {
        Self {
            guard: AtomicU32::new(GUARD_FREE),
            counter_part: AtomicU64::new(0),
            this: AtomicPtr::new(core::ptr::null_mut()),
            cell: AtomicPtr::new((&raw const NO_CELL).cast_mut()),
            running: AtomicPtr::new(core::ptr::null_mut()),
            finishing: AtomicPtr::new(core::ptr::null_mut()),
            saved_flags: AtomicU64::new(0),
            saved_sp: AtomicU64::new(0),
            jprobe: UnsafeCell::new(JprobeFrame::new()),
            breakpoints: AtomicU64::new(0),
            debug_traps: AtomicU64::new(0),
            stale_breakpoints: AtomicU64::new(0),
        }
    }

    /// Tells it the number of its CPU, from 0, the one that [`Platform::per_cpu`] knows it by. Before the CPU's first hit, and where it
    /// stays.
    pub fn init(&self, cpu: usize) {
        self.counter_part.store((cpu * PART_BYTES) as u64, Relaxed);
        self.this
            .store(core::ptr::from_ref(self).cast_mut(), Relaxed);
    }

    /// Whether a hit is with its handlers on this CPU.
    #[inline(always)]
    pub fn is_busy(&self) -> bool {
        self.guard.load(Relaxed) != GUARD_FREE
    }

    /// Whether a hit is under way on this CPU: with its handlers, or at its displaced instruction with a post handler to come.
    #[inline(always)]
    pub(crate) fn is_in_hit(&self) -> bool {
        self.is_busy() || !self.finishing.load(Relaxed).is_null()
    }

    /// The cell of the current task, if it has one.
    #[inline(always)]
    pub(crate) fn cell(&self) -> Option<&'static TaskCell> {
        // SAFETY: cells are static, and the pointer is never null.
        Some(unsafe { &*self.cell.load(Relaxed) }).filter(|cell| !cell.is_none())
    }

    /// Where the guard is, from the GS base. So the others: what the stubs and the post slots use.
    #[doc(hidden)]
    pub const fn guard_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, guard) as u32
    }

    #[doc(hidden)]
    pub const fn breakpoints_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, breakpoints) as u32
    }

    #[doc(hidden)]
    pub const fn counter_part_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, counter_part) as u32
    }

    #[doc(hidden)]
    pub const fn running_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, running) as u32
    }

    #[doc(hidden)]
    pub const fn cell_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, cell) as u32
    }

    #[doc(hidden)]
    pub const fn saved_flags_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, saved_flags) as u32
    }

    #[doc(hidden)]
    pub const fn saved_sp_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, saved_sp) as u32
    }

    #[doc(hidden)]
    pub const fn finishing_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, finishing) as u32
    }

    #[doc(hidden)]
    pub const fn this_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, this) as u32
    }

    #[doc(hidden)]
    pub const fn jprobe_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + Self::JPROBE_OFFSET
    }

    #[doc(hidden)]
    pub const JPROBE_OFFSET: u32 = offset_of!(Self, jprobe) as u32;

    /// Takes the guard. An interrupt between the load and the store gives back what it takes, so no update is lost.
    #[inline(always)]
    pub(crate) fn enter(&self) {
        self.guard
            .store(self.guard.load(Relaxed).wrapping_add(1), Relaxed);
        compiler_fence(core::sync::atomic::Ordering::SeqCst);
    }

    /// Drops the guard.
    #[inline(always)]
    pub(crate) fn leave(&self) {
        compiler_fence(core::sync::atomic::Ordering::SeqCst);
        self.guard
            .store(self.guard.load(Relaxed).wrapping_sub(1), Relaxed);
    }
}

/// Counts up a counter that only this CPU writes.
#[inline(always)]
pub(crate) fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}
