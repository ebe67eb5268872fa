//! The data that the probes keep for each CPU, and its guard.
//!
//! The guard is a count, one less than the hits that are with their handlers on the CPU. A hit that
//! finds it free takes it and runs handlers; any other hit counts a miss and goes on. So handlers
//! never run within handlers, however deep interrupts and NMIs nest.
//!
//! # Contexts
//! Any that keeps its CPU. The stubs reach the fields by the GS segment, so their places are known
//! to the assembly (`layout` in `asm`).
//!
//! # Memory ordering
//! Only the CPU itself writes its data, and an interrupt leaves what it finds as it was. So loads
//! and stores are relaxed. Compiler fences keep the handlers' accesses between taking the guard and
//! giving it back. A count is one instruction ([`bump`]), so an NMI in between loses none.

use core::{
    arch::asm,
    cell::UnsafeCell,
    ops::Deref,
    sync::atomic::{
        AtomicPtr, AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, SeqCst},
        compiler_fence,
    },
};

use crate::{
    data::{
        instance::{NO_CELL, TaskCell},
        interrupted::Interrupted,
        jprobe::JprobeFrame,
        kprobe::Kprobe,
        site::Site,
        watchpoint::MOST_WATCHPOINTS,
    },
    limits::PART_BYTES,
};

/// The guard of a [`PerCpu`] while no hit is under way.
pub const GUARD_FREE: u32 = u32::MAX;

/// Marks the pointer to the running probe while its post or return handler runs; probes are
/// aligned.
pub const IN_POST: usize = 1;

/// Marks the same pointer while other code runs on top of the handler, such as that of an NMI.
pub(crate) const PUT_ASIDE: usize = 2;

pub(crate) const MARKS: usize = IN_POST | PUT_ASIDE;
const _: () = assert!(align_of::<Kprobe>() > MARKS);

/// The data that the probes keep for each CPU. Only its own CPU writes it: with interrupts off or
/// in a nesting that restores what it found, so plain loads and stores are enough, or counts by one
/// instruction.
#[repr(C, align(16))]
pub struct PerCpu {
    /// The guard: how many hits are in their handlers here, less 1. So one `inc` takes it and tells
    /// whether it was free. A hit that finds it taken runs no handlers. It is free while a
    /// displaced instruction runs, because that instruction may read it.
    pub(crate) guard: AtomicU32,
    /// Where this CPU's part of a block of counters is, from the part of CPU 0.
    pub(crate) counter_part: AtomicU64,
    /// Its own address.
    pub(crate) this: AtomicPtr<PerCpu>,
    /// The current task's chain of return instances. Never null.
    pub(crate) cell: AtomicPtr<TaskCell>,
    /// The probe whose handler runs, for its fault handler, with marks in the pointer's low bits:
    /// [`IN_POST`], [`PUT_ASIDE`]. Means nothing while the guard is free.
    pub(crate) running: AtomicPtr<Kprobe>,
    /// The site whose post slot or single step is under way; the guard is free then.
    pub(crate) finishing: AtomicPtr<Site>,
    /// The flags that the code had, while `finishing`.
    pub(crate) saved_flags: AtomicU64,
    /// The stack pointer that the code had, while `finishing` in a post slot.
    pub(crate) saved_sp: AtomicU64,
    /// The registers and the stack that a jprobe's handler must leave as it found them.
    pub(crate) jprobe: UnsafeCell<JprobeFrame>,
    /// #BP exceptions that were given to the probes.
    pub breakpoints: AtomicU64,
    /// #DB exceptions that were given to the probes.
    pub debug_traps: AtomicU64,
    /// Breakpoints that were gone, or that all their probes had left, before they were looked at.
    pub stale_breakpoints: AtomicU64,
    /// What this CPU's DR7 has been told for the probes; 0: nothing. The registers may be the
    /// kernel's own as long as no register is in action for the probes.
    pub(crate) watching: AtomicU64,
    /// The current task, as `task_switched` was told; 0: not yet.
    pub(crate) task: AtomicU64,
    /// What the last hit of a watchpoint with a scope has found here, by the register's number, or
    /// what there was when its task came.
    pub(crate) found: [AtomicU64; MOST_WATCHPOINTS],
    /// What is interrupted on this CPU, as far as the kernel says so.
    pub(crate) interrupted: Interrupted,
}

// SAFETY: the one field that is not atomic, `jprobe`, is only touched by its own CPU under the
// guard, with interrupts off.
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
            watching: AtomicU64::new(0),
            task: AtomicU64::new(0),
            found: [const { AtomicU64::new(0) }; MOST_WATCHPOINTS],
            interrupted: Interrupted::new(),
        }
    }

    /// Tells it the number of its CPU, from 0: the one that `Platform::per_cpu` knows it by. Call
    /// it before the CPU's first hit, and where the data will stay.
    pub fn init(&self, cpu: usize) {
        self.counter_part.store((cpu * PART_BYTES) as u64, Relaxed);
        self.this
            .store(core::ptr::from_ref(self).cast_mut(), Relaxed);
    }

    /// Counts a #DB that the kernel has served for the probes. This CPU's own.
    #[inline(always)]
    pub fn count_debug_trap(&self) {
        bump(&self.debug_traps);
    }

    /// The task that runs on this CPU, as `task_switched` was told; 0 before the first.
    #[inline(always)]
    pub fn task(&self) -> u64 {
        self.task.load(Relaxed)
    }

    /// Whether a hit is with its handlers on this CPU.
    #[inline(always)]
    pub fn is_busy(&self) -> bool {
        self.guard.load(Relaxed) != GUARD_FREE
    }

    /// Whether a hit is under way on this CPU: in its handlers, or at its displaced instruction
    /// with a post handler to come.
    #[inline(always)]
    pub(crate) fn is_in_hit(&self) -> bool {
        self.is_busy() || !self.finishing.load(Relaxed).is_null()
    }

    /// The probe whose handler runs on this CPU, and the marks of its pointer. None for a jprobe.
    /// This CPU's own, in any context.
    pub(crate) fn running_handler(&self) -> Option<(&Kprobe, usize)> {
        if !self.is_busy() {
            return None;
        }
        let running = self.running.load(Relaxed);
        let probe = running.map_addr(|addr| addr & !MARKS);
        // SAFETY: a probe lives while its handler runs, and the guard is held then.
        let probe = unsafe { probe.as_ref() }?;
        Some((probe, running.addr() & MARKS))
    }

    /// The jprobe whose handler runs on this CPU: its site, and what the handler must leave as it
    /// found it. This CPU's own, in any context.
    pub(crate) fn running_jprobe(&self) -> Option<(&Site, &JprobeFrame)> {
        let frame = self.jprobe.get();
        // SAFETY: an atomic. No reference is made to the other fields, because the hit that this
        // may have interrupted is perhaps about to store them.
        let site = unsafe { &(*frame).site };
        // SAFETY: the site lives while the guard is held. Once it is stored, the frame stays as it
        // is until the handler's end, and what runs on top of that is over before.
        unsafe { Some((site.load(Acquire).as_ref()?, &*frame)) }
    }

    /// The cell of the current task, if it has one.
    #[inline(always)]
    pub(crate) fn cell(&self) -> Option<&'static TaskCell> {
        // SAFETY: cells are static, and the pointer is never null.
        Some(unsafe { &*self.cell.load(Relaxed) }).filter(|cell| !cell.is_none())
    }

    /// Takes the guard. An interrupt between the load and the store gives back what it takes, so no
    /// update is lost.
    #[inline(always)]
    pub(crate) fn enter(&self) -> HitGuard<'_> {
        self.guard
            .store(self.guard.load(Relaxed).wrapping_add(1), Relaxed);
        compiler_fence(SeqCst);
        HitGuard { cpu: self }
    }

    /// The guard that was taken before, by assembly or for a handler that has called.
    ///
    /// # Safety
    /// 1. The guard of this CPU is held.
    /// 2. If the value is dropped, nothing else drops the guard.
    #[inline(always)]
    pub(crate) unsafe fn held(&self) -> HitGuard<'_> {
        HitGuard { cpu: self }
    }
}

/// The guard of a CPU while it is held: handlers may run, and a hit that comes meanwhile runs none.
pub(crate) struct HitGuard<'cpu> {
    cpu: &'cpu PerCpu,
}

impl HitGuard<'_> {
    /// Leaves the guard held when this value goes: a jprobe's handler runs under it.
    #[inline(always)]
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }
}

impl Deref for HitGuard<'_> {
    type Target = PerCpu;

    #[inline(always)]
    fn deref(&self) -> &PerCpu {
        self.cpu
    }
}

impl Drop for HitGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        let held = self.cpu.guard.load(Relaxed);
        self.cpu.guard.store(held.wrapping_sub(1), Relaxed);
    }
}

/// Counts up a counter that only this CPU writes. Any context that keeps its CPU.
///
/// One instruction, so the counts of an NMI are not lost between a load and a store. It needs no
/// `lock`, which would cost more than the rest of the count.
#[inline(always)]
pub(crate) fn bump(counter: &AtomicU64) {
    // SAFETY: a live word that no other CPU writes.
    unsafe { asm!("inc qword ptr [{}]", in(reg) counter.as_ptr(), options(nostack)) };
}
