//! The trait that a kernel implements for the probes.
//!
//! [`Platform`] has three kinds of methods. Those of the hit path are called in any context, also
//! in an NMI, and must not take a lock. Those of registration are called by tasks. Some of them
//! wait, and what they have waited for is what makes it safe to free memory: clauses 3 and 4 of its
//! safety list are the two that all the others here rest on.
//!
//! Many methods have a body. A kernel that says at the borders of its interrupt handlers what they
//! have interrupted (`hit/interrupts.rs`) leaves all the waits to them, and provides one function
//! for the whole: [`Platform::on_every_cpu`].
//!
//! The page [`your_kernel`](crate::your_kernel) implements it, method by method.
//!
//! # Growth
//! A method that a later version adds has a body that is right for every kernel, and [`PerCpu`],
//! [`EntryPoints`] are made by the crate alone. So a kernel that compiles with one version compiles
//! with the next.

use core::{
    arch::{asm, x86_64::__cpuid},
    cell::UnsafeCell,
    fmt, hint,
    mem::offset_of,
    ops::Range,
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Release},
    },
};

use crate::data::interrupted::Interrupted;
use crate::{
    code::{self, Code},
    data::per_cpu::MARKS,
    error::ProbeError,
    insn::{INT3, flags::bits::IF},
};
pub use crate::{
    code::{Symbol, Text},
    data::{
        entry_points::EntryPoints,
        per_cpu::{GUARD_FREE, PerCpu},
    },
};

const PAGE_BYTES: usize = 4096;

/// A page of executable memory for slots.
#[derive(Clone, Copy, Debug)]
pub struct SlotPage {
    /// Where it is executed, in [`Platform::slots`].
    pub exec: u64,
    /// Where it is written.
    pub alias: *mut u8,
}

/// Does `work` with interrupts off, and leaves them as they were. `work` is told whether they were
/// on. Any context of the kernel.
#[inline(always)]
pub fn without_interrupts<R>(work: impl FnOnce(bool) -> R) -> R {
    let flags: u64;
    // SAFETY: reads the flags by a word below the stack pointer that is free.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
    let were_on = flags & IF != 0;
    let result = work(were_on);
    if were_on {
        // SAFETY: as they were.
        unsafe { asm!("sti") };
    }
    result
}

/// Memory for slots that is part of the kernel's image, and so near its text: a static of this
/// type. What makes it executable is the kernel's: the section of the static, or its page tables.
/// Its pages are those of [`Platform::slot_page`] as it is.
#[repr(C, align(4096))]
pub struct SlotMemory<const BYTES: usize>(UnsafeCell<[u8; BYTES]>);

// SAFETY: only the probes write it, each slot before anything executes it.
unsafe impl<const BYTES: usize> Sync for SlotMemory<BYTES> {}

impl<const BYTES: usize> Default for SlotMemory<BYTES> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const BYTES: usize> SlotMemory<BYTES> {
    /// Breakpoints, so that a stray jump ends there.
    pub const fn new() -> Self {
        assert!(
            BYTES.is_multiple_of(PAGE_BYTES),
            "slots come by pages of 4,096 bytes"
        );
        Self(UnsafeCell::new([INT3; BYTES]))
    }

    /// The body of [`Platform::slots`].
    #[inline(always)]
    pub fn range(&self) -> Range<u64> {
        let start = self.0.get() as u64;
        start..start + BYTES as u64
    }
}

/// What the macros have put into a kernel. [`kernel!`](crate::kernel!) implements it.
pub trait Entries {
    /// The addresses that [`entry_points!`](crate::entry_points!) and its like have defined.
    fn entry_points() -> EntryPoints;
}

/// A kernel, as the probes see it.
///
/// # Safety
/// 1. [`Platform::this_cpu`] and [`Platform::per_cpu`] give one [`PerCpu`] for each CPU, which
///    nothing else writes.
/// 2. Text that [`Platform::symbol_at`] calls executable is mapped and readable at its address.
/// 3. [`Platform::synchronize_cores`] returns only when every CPU has executed a serialising
///    instruction after the call began, and has left every #BP handler that it had entered before.
///    Linux calls this `text_poke_sync`.
/// 4. [`Platform::synchronize_hits`] returns only when a grace period is over: each CPU has been
///    seen, after the call began, in a context for which
///    [`Hits::may_preempt`](crate::hit::Hits::may_preempt) held at every depth of interrupt frames.
///    Linux calls this `synchronize_rcu`. [`Platform::synchronize_settled`] is the same with
///    [`Hits::is_settled`](crate::hit::Hits::is_settled).
/// 5. No task is preempted while [`Hits::may_preempt`](crate::hit::Hits::may_preempt) is false for
///    it.
/// 6. [`Platform::slot_page`] gives memory of its own, executable at `exec` and writable at
///    `alias`, for ever.
/// 7. The kernel calls each method of [`Hits`](crate::hit::Hits) only in the contexts that its text
///    allows.
pub unsafe trait Platform: Entries + Sized + 'static {
    /// A lock that tasks may sleep on; serialises registration. A kernel that has none takes
    /// [`TaskLock<Self>`](crate::TaskLock).
    type RawMutex: lock_api::RawMutex;

    /// Bytes of a slot: more where addresses do not fit in 32 bits, because a branch or a call that
    /// has a post handler keeps whole ones there.
    const SLOT_BYTES: usize = match Self::IN_TOP_2_GIB {
        true => crate::insn::SLOT_BYTES,
        false => 2 * crate::insn::SLOT_BYTES,
    };

    /// How many pages at the end of [`Platform::slots`] the registry leaves alone, because the
    /// kernel keeps the code of actions there. See [`crate::action`].
    const ACTION_PAGES: usize = 0;

    /// Whether the kernel runs at the addresses that the linker gave it, in the top 2 GiB. True
    /// saves an instruction at each breakpoint. It must be false in a position-independent kernel,
    /// which does not link otherwise (`R_X86_64_32S`).
    const IN_TOP_2_GIB: bool = false;

    /// Where [`Platform::this_cpu`]'s data begins, from the GS base. A kernel whose linker alone
    /// knows it leaves the 0 here, and names a symbol to
    /// [`entry_points!`](crate::entry_points).
    const PER_CPU_GS_OFFSET: u32 = 0;

    /// Whether the GS base of each CPU is 4,096 bytes after that of the CPU before it. True saves
    /// an instruction at each hit, because a counter is as far from the GS base on every CPU then.
    const PER_CPU_PAGES: bool = false;

    /// Whether [`Platform::load_watches_elsewhere`] does what it says. If not, no watchpoint can be
    /// moved. [`Platform::watchable_value`] is needed, too.
    const CAN_LOAD_WATCHES_ELSEWHERE: bool = false;

    /// Whether the kernel goes on elsewhere, or brings memory in, when an instruction of its own
    /// faults: the answer of [`Platform::may_fault`] for all code.
    const MENDS_FAULTS: bool = true;

    // For the hit path: any context, no locks.

    /// Where slot pages are executed: within 2 GiB of all text. Constant.
    fn slots() -> Range<u64>;

    /// The data of the CPU that calls, which cannot change CPU meanwhile. If not implemented, what
    /// is [`Platform::PER_CPU_GS_OFFSET`] bytes from the GS base, which is set and had
    /// [`PerCpu::init`] before this is called for the first time. A kernel where the linker adds to
    /// that distance implements it.
    #[inline(always)]
    fn this_cpu() -> &'static PerCpu {
        let this: *const PerCpu;
        // SAFETY: by the contract, the data of this CPU is there, and stays. It begins with what
        // `init` has stored: its own address.
        unsafe {
            asm!(
                "mov {}, gs:[{}]",
                out(reg) this,
                const Self::PER_CPU_GS_OFFSET + PerCpu::THIS_OFFSET,
                options(nostack, preserves_flags, readonly),
            );
            &*this
        }
    }

    /// The bounds of the stack that contains `sp`; an empty range where it is none.
    fn stack_of(sp: u64) -> Range<u64>;

    /// Ends the machine's run: the probes' own invariants are broken. If not implemented, panics.
    #[cold]
    #[inline(never)]
    fn fatal(message: fmt::Arguments<'_>) -> ! {
        panic!("{message}")
    }

    /// A function returned to the trampoline and nothing knows where to. Prints `message`, ends the
    /// task if it is a user task and the machine's run otherwise. If not implemented, ends the
    /// machine's run.
    #[cold]
    #[inline(never)]
    fn orphan_return(message: fmt::Arguments<'_>) -> ! {
        Self::fatal(message)
    }

    // For registration: task context.

    /// The data of CPU number `cpu`, from 0; none past the last possible CPU.
    fn per_cpu(cpu: usize) -> Option<&'static PerCpu>;

    /// Whether the caller may sleep: a task, with preemption and interrupts on. If not implemented,
    /// the flags and the interrupts that the kernel has told of decide; a kernel that counts why a
    /// task may not sleep asks that count, too.
    fn can_sleep() -> bool {
        // The task stays on the CPU that is asked.
        without_interrupts(|were_on| {
            let cpu = Self::this_cpu();
            were_on && !cpu.is_in_hit() && cpu.interrupted.is_in_task()
        })
    }

    /// What answers the next three questions, unless they are implemented. As it is, what
    /// [`start`](crate::start) was given.
    fn code() -> Option<&'static dyn Code> {
        code::of_kernel()
    }

    /// The address of a symbol, by plain, mangled or demangled name.
    fn lookup_symbol(name: &str) -> Result<u64, ProbeError> {
        Self::code().ok_or(ProbeError::NotReady)?.lookup(name)
    }

    /// The symbol that covers `addr`.
    fn symbol_at(addr: u64) -> Option<Symbol> {
        Self::code()?.symbol_at(addr)
    }

    /// Why `addr` may not be probed, if it may not. Functions that return as another task or on
    /// another stack are among these, because a return probe would lose their calls.
    fn blacklisted(addr: u64) -> Option<&'static str> {
        Self::code()?.refused(addr)
    }

    /// Whether the kernel goes on elsewhere, or brings memory in, when an instruction in `range`
    /// faults. An entry of an exception table says so. True is right for any kernel. If not
    /// implemented, [`Platform::MENDS_FAULTS`] answers; as long as that is true, no breakpoint
    /// becomes a jump.
    fn may_fault(range: Range<u64>) -> bool {
        let _ = range;
        Self::MENDS_FAULTS
    }

    /// Where the byte of text or of a slot at `addr` is written. If not implemented, there itself:
    /// then text and slots are writable where they are executed. A kernel that implements
    /// [`write_text`](Self::write_text) and [`slot_page`](Self::slot_page) is not asked.
    fn alias(addr: u64) -> *mut u8 {
        addr as *mut u8
    }

    /// Stores one byte of text through a writable alias. If not implemented, through
    /// [`Platform::alias`].
    ///
    /// # Safety
    /// 1. `addr` is live text, and the byte starts an instruction, the old one and the new one. Or
    ///    `addr` is after a breakpoint, where no CPU executes.
    /// 2. The registration lock is held.
    unsafe fn write_text(addr: u64, byte: u8) {
        // SAFETY: live text by the contract, and the alias of live text is writable.
        unsafe { Self::alias(addr).write_volatile(byte) };
    }

    /// Stores four bytes of text that follow each other, which may be on two pages. A platform that
    /// finds its alias by a page does better than this.
    ///
    /// # Safety
    /// The same as [`write_text`](Self::write_text) for each of them. All are after a breakpoint.
    unsafe fn write_tail(addr: u64, bytes: [u8; 4]) {
        for (at, byte) in (addr..).zip(bytes) {
            // SAFETY: the caller's contract.
            unsafe { Self::write_text(at, byte) };
        }
    }

    /// Page number `index` of the slot region; none when memory or the region is used up. If not
    /// implemented, all pages are there already, and are written through [`Platform::alias`].
    fn slot_page(index: usize) -> Option<SlotPage> {
        let exec = Self::slots().start + (index * PAGE_BYTES) as u64;
        Self::slots().contains(&exec).then(|| SlotPage {
            exec,
            alias: Self::alias(exec),
        })
    }

    /// Calls `work` once on every CPU that runs, with interrupts off: on the one that calls, and on
    /// each other in an interrupt handler, between
    /// [`Hits::irq_enter`](crate::hit::Hits::irq_enter) and
    /// [`Hits::irq_exit`](crate::hit::Hits::irq_exit). Returns when all have returned. It is called
    /// by tasks, with interrupts on if there are other CPUs. The bodies of the waits below use it.
    /// If not implemented, there is one CPU, and its handlers preempt by
    /// [`Hits::preempt`](crate::hit::Hits::preempt) only.
    fn on_every_cpu(work: &(dyn Fn() + Sync)) {
        if Self::per_cpu(1).is_some() {
            Self::fatal(format_args!(
                "this kernel has several CPUs, and its Platform has no on_every_cpu: implement it"
            ));
        }
        work();
    }

    /// See clause 3 of the safety list. May sleep.
    fn synchronize_cores() {
        Self::on_every_cpu(&|| {
            let _ = __cpuid(0);
        });
    }

    /// See clause 4 of the safety list. `is_outside` tells, on the CPU that calls it with
    /// interrupts off, whether all that is interrupted there is outside hits, as far as the kernel
    /// has told by `irq_enter`. May sleep.
    ///
    /// The body asks all CPUs, and again those that were in a hit. Between, it leaves them some
    /// time, because code that is interrupted again at once never leaves its slot. How long changes
    /// from one time to the next: a CPU that is hit all the time has interrupts off for most of it,
    /// so most questions reach it in the slot, right after the trap.
    fn synchronize_hits(is_outside: &(dyn Fn() -> bool + Sync)) {
        static WAITS: AtomicU64 = AtomicU64::new(0);
        let wait = WAITS.fetch_add(1, Release) + 1;
        let cpus = || (0..).map_while(Self::per_cpu).map(|cpu| &cpu.interrupted);
        for round in 0u32.. {
            Self::on_every_cpu(&|| {
                let cpu = &Self::this_cpu().interrupted;
                cpu.seen.fetch_max(wait, Release);
                if is_outside() {
                    cpu.outside.fetch_max(wait, Release);
                }
            });
            let is_over = |cpu: &Interrupted| cpu.outside.load(Acquire) >= wait;
            if cpus().all(|cpu| cpu.seen.load(Acquire) < wait || is_over(cpu)) {
                return;
            }
            (0..64u32 << (round % 8)).for_each(|_| hint::spin_loop());
        }
    }

    /// Waits until each CPU has been seen, after the call began, where
    /// [`Hits::is_settled`](crate::hit::Hits::is_settled) held at every depth of interrupt frames.
    /// `is_settled` tells it as `is_outside` does for [`Platform::synchronize_hits`]. May sleep.
    ///
    /// The body is that wait. If that has a body of its own which does not ask, it waits for more
    /// than is needed.
    fn synchronize_settled(is_settled: &(dyn Fn() -> bool + Sync)) {
        Self::synchronize_hits(is_settled);
    }

    /// Waits until no preempted task has an `ip` for which `inside` is true. No further task is
    /// preempted there meanwhile. `inside` may run with any lock held. May sleep.
    ///
    /// The body is right for kernels whose tasks are preempted by
    /// [`Hits::preempt`](crate::hit::Hits::preempt) only.
    fn wait_for_preempted(inside: &dyn Fn(u64) -> bool) {
        for cpu in (0..).map_while(Self::per_cpu) {
            let half = cpu.interrupted.turn();
            while cpu.interrupted.is_preempted_in(half, inside) {
                Self::pass_time();
            }
        }
    }

    /// Why the kernel memory in `range` may not be watched, if it may not. Nothing there may be
    /// missing, because the trap reads it. Nor may it be a word that the kernel's code reads or
    /// writes on the way from the gate of #DB to [`Hits::on_debug`](crate::hit::Hits::on_debug), or
    /// in the entries of NMIs and system calls before they have a stack. The probes' own data are
    /// refused before this is asked. If not implemented, all is refused.
    fn not_watchable(range: Range<u64>) -> Option<&'static str> {
        let _ = range;
        Some("this kernel does not say which of its memory can be watched")
    }

    /// The value of the `len` bytes from `addr` on, if they may be watched: what
    /// [`Platform::not_watchable`] says, for a hit. `len` is 1, 2, 4 or 8, and `addr` a multiple of
    /// it. Any context; it takes no lock, and a fault of its read is no fault of the kernel.
    fn watchable_value(addr: u64, len: u8) -> Option<u64> {
        let _ = (addr, len);
        None
    }

    /// Why the memory of programs in `range` may not be watched, if it may not: for example because
    /// these are no addresses of programs. If not implemented, all is refused. A kernel that lets
    /// programs be watched has #DB of ring 3 that name debug registers go to
    /// [`Watchpoints::on_match`](crate::Watchpoints::on_match), and tells of changes by
    /// [`Watchpoints::program_changed`](crate::Watchpoints::program_changed).
    fn not_watchable_in_programs(range: Range<u64>) -> Option<&'static str> {
        let _ = range;
        Some("this kernel does not watch memory of programs")
    }

    /// The value of the `len` bytes from `addr` on in the program of the current task; none if they
    /// are not there. `len` is 1, 2, 4 or 8, and `addr` a multiple of it. Interrupts off, in a hit
    /// or a switch of tasks; it takes no lock, and a fault of its read is no fault of the kernel.
    fn value_in_program(addr: u64, len: u8) -> Option<u64> {
        let _ = (addr, len);
        None
    }

    /// Where a program goes on after the instruction that has touched memory and left `ip`, if the
    /// kernel has user probes, which displace instructions. On the hit path.
    fn position_in_program(ip: u64) -> u64 {
        ip
    }

    /// Writes DR0 to DR3 and DR7 of the CPU that calls. Interrupts off. If not implemented, by the
    /// instructions.
    fn set_debug_registers(addrs: [u64; 4], control: u64) {
        let [first, second, third, fourth] = addrs;
        // SAFETY: none is in action while the addresses change, and those that are then lead to
        // `on_debug`.
        unsafe {
            asm!(
                "mov dr7, {off}",
                "mov dr0, {first}",
                "mov dr1, {second}",
                "mov dr2, {third}",
                "mov dr3, {fourth}",
                "mov dr7, {control}",
                off = in(reg) 1_u64 << 10,
                first = in(reg) first,
                second = in(reg) second,
                third = in(reg) third,
                fourth = in(reg) fourth,
                control = in(reg) control,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Writes one of DR0 to DR3 of the CPU that calls; `number` is at most 3. Any context that
    /// keeps its CPU. If not implemented, by the instructions.
    fn set_debug_address(number: usize, addr: u64) {
        // SAFETY: whether the register is in action does not change, and a match leads to
        // `on_debug`.
        unsafe {
            match number {
                0 => asm!("mov dr0, {}", in(reg) addr, options(nostack, preserves_flags)),
                1 => asm!("mov dr1, {}", in(reg) addr, options(nostack, preserves_flags)),
                2 => asm!("mov dr2, {}", in(reg) addr, options(nostack, preserves_flags)),
                _ => asm!("mov dr3, {}", in(reg) addr, options(nostack, preserves_flags)),
            }
        }
    }

    /// Reads one of DR0 to DR3 of the CPU that calls; `number` is at most 3. Any context that keeps
    /// its CPU. If not implemented, by the instructions.
    fn debug_address(number: usize) -> u64 {
        let addr;
        // SAFETY: a read of a debug register has no other effect.
        unsafe {
            match number {
                0 => asm!("mov {}, dr0", out(reg) addr, options(nostack, preserves_flags)),
                1 => asm!("mov {}, dr1", out(reg) addr, options(nostack, preserves_flags)),
                2 => asm!("mov {}, dr2", out(reg) addr, options(nostack, preserves_flags)),
                _ => asm!("mov {}, dr3", out(reg) addr, options(nostack, preserves_flags)),
            }
        }
        addr
    }

    /// Has each other CPU call [`Watchpoints::load`](crate::Watchpoints::load) in an interrupt
    /// handler, and does not wait for them. Any context, also an NMI, and between any two
    /// instructions of the kernel's own sending of interrupts. A kernel with one CPU has nothing to
    /// do.
    fn load_watches_elsewhere() {}

    /// Writes DR7 of the CPU that calls. Any context that keeps its CPU. If not implemented, by the
    /// instruction.
    #[inline(always)]
    fn set_debug_control(control: u64) {
        // SAFETY: as above.
        unsafe { asm!("mov dr7, {}", in(reg) control, options(nostack, preserves_flags)) };
    }

    /// Clears `bits` of DR6 of the CPU that calls. Interrupts off. If not implemented, by the
    /// instructions.
    #[inline(always)]
    fn clear_debug_status(bits: u64) {
        // SAFETY: clearing a status bit has no other effect.
        unsafe {
            asm!(
                "mov {status}, dr6",
                "and {status}, {rest}",
                "mov dr6, {status}",
                status = out(reg) _,
                rest = in(reg) !bits,
                options(nostack),
            );
        }
    }

    /// Lets others run while a task waits for them. If not implemented, leaves that to the tick.
    fn pass_time() {
        hint::spin_loop();
    }

    /// Tells the kernel's log. If not implemented, nothing is told.
    fn log(message: fmt::Arguments<'_>) {
        let _ = message;
    }
}

/// Where the stubs and the post slots find what they use.
impl PerCpu {
    /// Where the guard is in this struct.
    pub const GUARD_OFFSET: u32 = offset_of!(Self, guard) as u32;

    /// Where the pointer to the probe is whose handler runs.
    pub const RUNNING_OFFSET: u32 = offset_of!(Self, running) as u32;

    /// The bits of that pointer that are no part of the address.
    pub const MARKS_OF_RUNNING: u32 = MARKS as u32;

    pub(crate) const SAVED_FLAGS_OFFSET: u32 = offset_of!(Self, saved_flags) as u32;

    pub(crate) const THIS_OFFSET: u32 = offset_of!(Self, this) as u32;

    /// Where this CPU's value is, from the GS base: the whole distance, with the part that only the
    /// linker knows. Any context.
    pub fn gs_distance<P: Platform>() -> u32 {
        P::entry_points().per_cpu + P::PER_CPU_GS_OFFSET
    }

    /// Where the guard is, from the GS base, without the part that only the linker knows, which the
    /// assembly adds by itself. So the others: what the stubs and the post slots use.
    pub const fn guard_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, guard) as u32
    }

    pub const fn breakpoints_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, breakpoints) as u32
    }

    pub const fn counter_part_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, counter_part) as u32
    }

    pub const fn running_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, running) as u32
    }

    pub const fn cell_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, cell) as u32
    }

    pub const fn saved_flags_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, saved_flags) as u32
    }

    pub const fn saved_sp_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, saved_sp) as u32
    }

    pub const fn finishing_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, finishing) as u32
    }

    pub const fn debug_traps_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, debug_traps) as u32
    }

    pub const fn watching_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, watching) as u32
    }

    pub const fn this_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + offset_of!(Self, this) as u32
    }

    pub const fn jprobe_gs_offset<P: Platform>() -> u32 {
        P::PER_CPU_GS_OFFSET + Self::JPROBE_OFFSET
    }

    pub const JPROBE_OFFSET: u32 = offset_of!(Self, jprobe) as u32;
}
