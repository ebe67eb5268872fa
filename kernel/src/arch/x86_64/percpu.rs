//! Per-CPU data: one [`PerCpu`] for each CPU, to which its GS base points while it runs in ring 0.
//!
//! # Invariants
//! PERCPU-1. From [`init`] on, GS base holds the address of this CPU's entry of `PERCPU` whenever
//!     Rust code runs. Ring 3 runs with another GS base; the entry stubs swap them.
//! PERCPU-2. The entries live for ever, so `&'static PerCpu` is sound. Fields that several CPUs
//!     write are atomic. `gdt` and `tss` belong to their CPU alone.
//! PERCPU-3. Offsets used by the stubs come from `offset_of!`, never from numbers.
//!
//! # Preemption
//! While preemption is possible, a task may be moved to another CPU at any instruction. So a
//! reference from [`this`] is certain to belong to the running CPU only while `preempt_count` is
//! not zero or interrupts are off. [`current_raw`], [`preempt_disable`] and [`cpu_id`] are single
//! GS-relative instructions, so they need no protection.
//!
//! `preempt_count` counts the reasons why this CPU must not switch tasks: held spinlocks and calls
//! of [`preempt_disable`]. It is zero when a task is switched in or out, except for the run queue's
//! own lock.

use super::{
    PtRegs,
    gdt::{self, Gdt, InterruptStacks, Tss},
};
use core::{
    arch::asm,
    mem::offset_of,
    ptr,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering},
};
use trace_agent::records::flags;
use x86_64::{
    VirtAddr,
    instructions::{
        interrupts,
        segmentation::{GS, Segment},
    },
    registers::{
        model_specific::{GsBase, KernelGsBase},
        rflags::RFlags,
        segmentation::SegmentSelector,
    },
};

/// How many CPUs the kernel can use.
pub const MAX_CPUS: usize = 64;

/// The data of one CPU: a page, so that the probes find the counters of each CPU at one distance.
#[repr(C, align(4096))]
pub struct PerCpu {
    /// This struct's own address, so that one load through GS gives a pointer.
    self_ptr: AtomicPtr<PerCpu>,
    /// The running task. Written by the switch alone.
    pub(crate) current: AtomicPtr<()>,
    /// The start of the running task's stack: rsp for entries from ring 3.
    pub(crate) kernel_stack_top: AtomicU64,
    /// Holds the user's rsp for the two instructions of the system call entry that have no stack.
    user_rsp: AtomicU64,
    cpu_id: AtomicU32,
    preempt_count: AtomicU32,
    /// [`PREEMPT`] if the running task is to be preempted as soon as it may, else 0.
    need_resched: AtomicU8,
    apic_id: AtomicU32,
    /// The tick rests; see [`crate::task`].
    resting: AtomicBool,
    /// NMIs since the handler last began to run, while it runs; else 0.
    pub(super) nmis_seen: AtomicU32,
    /// [`IN_INTERRUPT`] while the handler of an interrupt runs, and [`IN_NMI`] while that of an NMI
    /// does.
    interrupt: AtomicU8,
    /// The tracer's data for the CPU. The running task's numbers in it are written by the switch
    /// alone; they are 0 before the scheduler is up.
    pub tracing: trace_agent::PerCpu,
    /// The write to a watched object that is under way.
    pub(crate) object_step: ObjectStep,
    /// The task state segment.
    pub(crate) tss: Tss,
    pub(crate) gdt: Gdt,
    /// The probes' data for the CPU.
    pub probes: ::probes::PerCpu,
}

/// How many words are kept around a write to a watched object.
pub(crate) const OBJECT_WORDS: usize = 2;

/// A write to a watched object, from its fault to the end of its step: see
/// `probes/watched_objects.rs`.
pub(crate) struct ObjectStep {
    pub(crate) is_active: AtomicBool,
    /// Where the instruction is, and its stack pointer.
    pub(crate) ip: AtomicU64,
    pub(crate) sp: AtomicU64,
    /// TF and IF as the code had them.
    pub(crate) flags: AtomicU64,
    /// The first byte that is written, and the `ObjectWatch` in whose page it is.
    pub(crate) touched: AtomicU64,
    pub(crate) watch: AtomicPtr<()>,
    /// What was there before.
    pub(crate) words: [AtomicU64; OBJECT_WORDS],
}

impl ObjectStep {
    const fn new() -> Self {
        Self {
            is_active: AtomicBool::new(false),
            ip: AtomicU64::new(0),
            sp: AtomicU64::new(0),
            flags: AtomicU64::new(0),
            touched: AtomicU64::new(0),
            watch: AtomicPtr::new(ptr::null_mut()),
            words: [const { AtomicU64::new(0) }; OBJECT_WORDS],
        }
    }
}

/// Offset of [`PerCpu::current`] from GS base.
pub const CURRENT: usize = offset_of!(PerCpu, current);
/// Offset of [`PerCpu::kernel_stack_top`] from GS base.
pub const KERNEL_STACK_TOP: usize = offset_of!(PerCpu, kernel_stack_top);
/// Offset of the system call entry's scratch word from GS base.
pub const USER_RSP: usize = offset_of!(PerCpu, user_rsp);
/// Offset of the CPU number (u32) from GS base.
pub const CPU_ID: usize = offset_of!(PerCpu, cpu_id);
/// Offset of the preemption counter (u32) from GS base.
pub const PREEMPT_COUNT: usize = offset_of!(PerCpu, preempt_count);
/// Offset of the reschedule request (one byte) from GS base.
pub const NEED_RESCHED: usize = offset_of!(PerCpu, need_resched);
/// Offset of the running task's number (u32) from GS base. After it is that of its process.
pub const CURRENT_IDS: usize = TRACING + trace_agent::PerCpu::TASK_OFFSET;
/// Offset of [`PerCpu::interrupt`] (one byte) from GS base.
pub const INTERRUPT: usize = offset_of!(PerCpu, interrupt);
/// Offset from GS base of the byte that says whether a write to a watched object is under way.
pub const OBJECT_STEP: usize = offset_of!(PerCpu, object_step.is_active);
/// Offsets from GS base of the other fields of [`ObjectStep`].
pub const OBJECT_STEP_IP: usize = offset_of!(PerCpu, object_step.ip);
pub const OBJECT_STEP_SP: usize = offset_of!(PerCpu, object_step.sp);
pub const OBJECT_STEP_FLAGS: usize = offset_of!(PerCpu, object_step.flags);
pub const OBJECT_STEP_TOUCHED: usize = offset_of!(PerCpu, object_step.touched);
pub const OBJECT_STEP_WATCH: usize = offset_of!(PerCpu, object_step.watch);
pub const OBJECT_STEP_WORDS: usize = offset_of!(PerCpu, object_step.words);
/// Offset of [`PerCpu::tracing`] from GS base.
pub const TRACING: usize = offset_of!(PerCpu, tracing);
/// Offset of [`PerCpu::probes`] from GS base.
pub const PROBES: usize = offset_of!(PerCpu, probes);

const _: () = assert!(size_of::<PerCpu>() == 4096);

static PERCPU: [PerCpu; MAX_CPUS] = [const { PerCpu::new() }; MAX_CPUS];

impl PerCpu {
    const fn new() -> Self {
        Self {
            self_ptr: AtomicPtr::new(ptr::null_mut()),
            current: AtomicPtr::new(ptr::null_mut()),
            kernel_stack_top: AtomicU64::new(0),
            user_rsp: AtomicU64::new(0),
            cpu_id: AtomicU32::new(0),
            preempt_count: AtomicU32::new(0),
            need_resched: AtomicU8::new(0),
            apic_id: AtomicU32::new(0),
            resting: AtomicBool::new(false),
            nmis_seen: AtomicU32::new(0),
            interrupt: AtomicU8::new(0),
            tracing: trace_agent::PerCpu::new(),
            object_step: ObjectStep::new(),
            tss: Tss::new(),
            gdt: Gdt::new(),
            probes: ::probes::PerCpu::new(),
        }
    }

    /// The number of this CPU, 0 for the one that booted.
    pub fn cpu_id(&self) -> usize {
        self.cpu_id.load(Ordering::Relaxed) as usize
    }

    /// The number of its local APIC.
    pub fn apic_id(&self) -> u32 {
        self.apic_id.load(Ordering::Relaxed)
    }

    pub(super) fn set_apic_id(&self, id: u32) {
        self.apic_id.store(id, Ordering::Relaxed);
    }

    /// Whether the tick rests.
    pub(crate) fn is_resting(&self) -> bool {
        self.resting.load(Ordering::Relaxed)
    }

    pub(crate) fn set_resting(&self, resting: bool) {
        self.resting.store(resting, Ordering::Relaxed);
    }

    /// Asks the CPU to switch tasks when it next can. Another CPU also needs a reschedule IPI to
    /// notice soon.
    pub fn set_need_resched(&self) {
        self.need_resched.store(PREEMPT, Ordering::Relaxed);
    }

    /// Whether the CPU was asked to switch tasks.
    pub fn need_resched(&self) -> bool {
        self.need_resched.load(Ordering::Relaxed) != 0
    }

    /// How many NMIs have come since the handler of one last began to run here, that one included;
    /// 0 while none runs.
    pub fn nmis_seen(&self) -> u32 {
        self.nmis_seen.load(Ordering::Relaxed)
    }

    /// Takes the request back: the scheduler is about to choose.
    pub(crate) fn clear_need_resched(&self) {
        self.need_resched.store(0, Ordering::Relaxed);
    }
}

/// Makes `PERCPU[cpu]` the data of the calling CPU. Comes before everything else on a CPU, also
/// before locks.
pub fn init(cpu: usize) {
    let percpu = &PERCPU[cpu];
    let address = ptr::from_ref(percpu);
    percpu.self_ptr.store(address.cast_mut(), Ordering::Relaxed);
    percpu.cpu_id.store(cpu as u32, Ordering::Relaxed);
    percpu.probes.init(cpu);
    percpu.tracing.init(cpu, address.addr() as u64);
    // SAFETY: a null GS is valid in 64-bit mode. It goes first, because it may clear the base.
    unsafe { GS::set_reg(SegmentSelector::NULL) };
    GsBase::write(VirtAddr::from_ptr(address));
    KernelGsBase::write(VirtAddr::zero());
}

/// Builds and loads the descriptor tables of the calling CPU. Call with interrupts off, once per
/// CPU, after [`init`].
///
/// # Safety
/// 1. `stacks` are as [`InterruptStacks`] says.
pub unsafe fn load_descriptor_tables(stacks: &InterruptStacks) {
    let percpu = this();
    // SAFETY: the tables are this CPU's, and in no use yet; (1).
    unsafe { gdt::init(&percpu.gdt, &percpu.tss, percpu, stacks) };
}

/// The data of CPU number `cpu`.
///
/// # Panics
/// If `cpu` is not below [`MAX_CPUS`].
pub fn of(cpu: usize) -> &'static PerCpu {
    &PERCPU[cpu]
}

/// Where the data of all CPUs are. Any context.
#[inline(always)]
pub fn range() -> core::ops::Range<u64> {
    let start = PERCPU.as_ptr().addr() as u64;
    start..start + size_of_val(&PERCPU) as u64
}

/// The data of CPU number `cpu`, if there can be one. Any context.
#[inline(always)]
pub fn get(cpu: usize) -> Option<&'static PerCpu> {
    PERCPU.get(cpu)
}

/// The data of the CPU that executes this. See the module's note on preemption.
#[inline]
pub fn this() -> &'static PerCpu {
    let address: *const PerCpu;
    // SAFETY: by PERCPU-1 GS points to a `PerCpu`, whose first word holds its own address.
    unsafe {
        asm!("mov {}, gs:[0]", out(reg) address, options(nostack, preserves_flags, readonly))
    };
    // SAFETY: PERCPU-2.
    unsafe { &*address }
}

/// The number of the CPU that executes this. See the module's note on preemption.
#[inline]
pub fn cpu_id() -> usize {
    let id: u32;
    // SAFETY: by PERCPU-1 this reads `PerCpu::cpu_id`.
    unsafe {
        asm!(
            "mov {:e}, gs:[{}]",
            out(reg) id,
            const CPU_ID,
            options(nostack, preserves_flags, readonly)
        );
    }
    id as usize
}

/// The address of the running task, null before the scheduler is up. Any context.
#[inline]
pub fn current_raw() -> *const () {
    let task: *const ();
    // SAFETY: by PERCPU-1 this reads `PerCpu::current`.
    unsafe {
        asm!(
            "mov {}, gs:[{}]",
            out(reg) task,
            const CURRENT,
            options(nostack, preserves_flags, readonly)
        );
    }
    task
}

/// How many reasons there are not to switch tasks on this CPU. Any context.
#[inline]
pub fn preempt_count() -> u32 {
    let count: u32;
    // SAFETY: by PERCPU-1 this reads `PerCpu::preempt_count`.
    unsafe {
        asm!(
            "mov {:e}, gs:[{}]",
            out(reg) count,
            const PREEMPT_COUNT,
            options(nostack, preserves_flags, readonly)
        );
    }
    count
}

/// Whether a probe handler runs on this CPU. It may be the caller, or code that the caller has
/// interrupted. False while a displaced instruction runs, which may be the caller's. Any context.
#[inline]
pub fn in_probe_handler() -> bool {
    const GUARD: usize = PROBES + ::probes::PerCpu::GUARD_OFFSET as usize;
    let depth: u32;
    // SAFETY: by PERCPU-1 this reads the guard of `PerCpu::probes`. It is one instruction, because
    // a task that is in no handler may move to another CPU at any instruction.
    unsafe {
        asm!(
            "mov {:e}, gs:[{}]",
            out(reg) depth,
            const GUARD,
            options(nostack, preserves_flags, readonly)
        );
    }
    depth != ::probes::platform::GUARD_FREE
}

/// The mark of a task that is to be preempted, of an interrupt's handler, and of an NMI's: the bits
/// that records of events have for these.
const PREEMPT: u8 = flags::NEED_RESCHED;
const IN_INTERRUPT: u8 = flags::INTERRUPT;
const IN_NMI: u8 = flags::NMI;

/// While this value exists, the CPU says that the handler of an interrupt or an NMI runs.
pub struct InInterrupt {
    before: u8,
}

impl InInterrupt {
    /// Begins with the handler, interrupts off. It ends before tasks may be switched.
    pub fn begin() -> Self {
        let before = this().interrupt.swap(IN_INTERRUPT, Ordering::Relaxed);
        Self { before }
    }

    /// Begins with the handler of an NMI. What the NMI has interrupted is shown, too.
    pub fn begin_nmi() -> Self {
        // It may come between any two instructions, but ends before the next one of those.
        let before = this().interrupt.fetch_or(IN_NMI, Ordering::Relaxed);
        Self { before }
    }
}

impl Drop for InInterrupt {
    fn drop(&mut self) {
        this().interrupt.store(self.before, Ordering::Relaxed);
    }
}

/// Keeps the running task on this CPU until the matching [`preempt_enable`]. Nests. Any context.
#[inline]
pub fn preempt_disable() {
    // SAFETY: by PERCPU-1 this counts in `PerCpu::preempt_count`. It is one instruction, so neither
    // an interrupt nor a move to another CPU can come in between. It is not `nomem`, because later
    // memory accesses must not move above it.
    unsafe { asm!("inc dword ptr gs:[{}]", const PREEMPT_COUNT, options(nostack)) };
}

unsafe extern "C" {
    /// The scheduler's part of [`preempt_enable`]. It is called by its symbol, because the
    /// scheduler uses the locks, and the locks use this file.
    safe fn preempt_schedule();
}

/// Ends a [`preempt_disable`]. Switches tasks if that was asked for meanwhile and nothing else
/// forbids it. For example, a probe handler forbids it, even with interrupts on.
#[inline]
pub fn preempt_enable() {
    if preempt_enable_no_resched()
        && this().need_resched()
        && interrupts::are_enabled()
        && !in_probe_handler()
    {
        preempt_schedule();
    }
}

/// Ends a [`preempt_disable`] without switching tasks. True if no reason against a switch is left.
#[inline]
pub fn preempt_enable_no_resched() -> bool {
    let zero: u8;
    // SAFETY: as in `preempt_disable`.
    unsafe {
        asm!(
            "dec dword ptr gs:[{}]",
            "setz {}",
            const PREEMPT_COUNT,
            out(reg_byte) zero,
            options(nostack)
        );
    }
    zero != 0
}

/// Whether code with these interrupts could be switched away from: there is no reason against it,
/// and the code is no probe handler. A handler may have its interrupts on.
fn may_switch(interrupts_are_on: bool) -> bool {
    interrupts_are_on && preempt_count() == 0 && !in_probe_handler()
}

/// Whether the running task could be switched out here: interrupts are on, no reason is against it,
/// and no probe handler runs. Any context.
pub fn preemptible() -> bool {
    may_switch(interrupts::are_enabled())
}

/// The same for the code that an exception has interrupted, which left `regs`. Call it before the
/// exception's handler turns interrupts on or takes a lock.
pub fn was_preemptible(regs: &PtRegs) -> bool {
    may_switch(regs.flags & RFlags::INTERRUPT_FLAG.bits() != 0)
}
