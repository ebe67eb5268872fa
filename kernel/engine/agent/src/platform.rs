//! What a kernel gives the agent: the trait [`Agent`].
//!
//! It stands on [`probes::Platform`], which says already where code may lie, which text may be
//! probed, where stacks end and how to wait for all CPUs. No method is required. Some are right as
//! they are for most kernels, and some stand for what a kernel may lack: as they are, they say that
//! it is not there.

use alloc::{boxed::Box, string::String};
use core::{arch::x86_64::_rdtsc, fmt, ops::Range};

use bpf_compiler::Sample;
use probes::{Host, WatchScope, platform::without_interrupts};
use unwind::fast::FastTable;

use crate::{
    Local, PerCpu, Tracing,
    facts::{
        EntryPoints, InProgram, NSEC_PER_SEC, NoTable, PlaceInProgram, ProgramFrame, RunAtObject,
        RunInProgram, Shown, Source, Ticks,
    },
};

/// Where the upper half of the addresses begins.
pub(crate) const UPPER_HALF: u64 = 1 << 63;

/// The end of user memory where all of the lower half may be mapped, except its last page.
const LOWER_HALF: u64 = (1 << 47) - 4096;

/// What the macros have put into a kernel. [`tracing!`](crate::tracing!) implements it.
pub trait Traced: Sized {
    /// The agent of this kernel.
    fn tracing() -> &'static Tracing<Self>
    where
        Self: Agent;

    /// What [`entry_points!`](crate::entry_points!) has made.
    fn tracing_entry_points() -> EntryPoints;
}

/// A kernel, as the agent sees it.
///
/// # Safety
/// 1. [`Agent::this_cpu_tracing`] and [`Agent::cpu_tracing`] give one [`PerCpu`] for each CPU, and
///    that of the running CPU is [`Agent::GS_OFFSET`] bytes from the GS base in kernel code. It was
///    given to [`PerCpu::init`] before the CPU's first hit. As they are, they find it in
///    [`Local`]s, of which the probes' parts are what [`probes::Platform::per_cpu`] gives.
/// 2. While [`Agent::keep_cpu`] runs what it was given, the task stays on its CPU, no interrupt
///    comes, and no grace period of [`probes::Platform::synchronize_hits`] ends.
/// 3. [`Traced::tracing`] gives one value, whose pages of code no other [`Tracing`] has.
/// 4. [`Traced::tracing_entry_points`] gives those of [`entry_points!`](crate::entry_points!) for
///    this type.
/// 5. The handlers of page faults and of protection faults (vectors 14 and 13) call
///    [`Tracing::mend`] before anything that may be probed. A kernel address at which nothing is
///    mapped faults, in one of these ways. Reading a mapped one below
///    [`KERNEL_MEMORY_END`](crate::KERNEL_MEMORY_END) has no effect, so a map of all physical
///    memory is without the registers of devices. Nothing is mapped in the 1 MiB after that end.
/// 6. [`Agent::stack_end`] is the end of a mapped stack, or 0.
/// 7. [`Agent::SHOWN`] names words that exist on each CPU.
pub unsafe trait Agent: Host + Traced {
    /// Where [`Agent::this_cpu_tracing`] is, in bytes from the GS base.
    const GS_OFFSET: u32 = Self::PER_CPU_GS_OFFSET + Local::TRACING;

    /// The words that the header of an event's record shows beside the running task. A kernel
    /// without them shows 0.
    const SHOWN: Shown = PerCpu::nothing_shown(Self::GS_OFFSET);

    /// User memory ends here.
    const USER_END: u64 = LOWER_HALF;

    /// Kernel memory begins here, not below [`Agent::USER_END`]. As it is, it is the upper half.
    const KERNEL_START: u64 = UPPER_HALF;

    /// Whether [`Agent::program_frame`] knows programs.
    const HAS_USER_STACKS: bool = false;

    /// Data pages of each CPU's ring at first, 4 KiB each.
    const RING_PAGES: usize = 64;

    // For the hit path: any context, no locks. They may not be probed, nor what they call.

    /// The agent's data of the CPU that calls, which cannot change CPU meanwhile.
    #[inline(always)]
    fn this_cpu_tracing() -> &'static PerCpu {
        // SAFETY: by the contract.
        unsafe { Local::tracing_beside(Self::this_cpu()) }
    }

    /// The agent's data of CPU number `cpu`; none past the last possible CPU.
    fn cpu_tracing(cpu: usize) -> Option<&'static PerCpu> {
        // SAFETY: by the contract.
        Self::per_cpu(cpu).map(|probes| unsafe { Local::tracing_beside(probes) })
    }

    /// The running task, by the number that [`probes::hit::Hits::task_switched`] was told.
    #[inline(always)]
    fn task_key() -> u64 {
        Self::this_cpu().task()
    }

    /// The name of the running task: 16 bytes, the first one lowest. After the name, and in the
    /// last byte, are zeros. As it is, what [`PerCpu::name_task`] was told; tasks have no names
    /// without that.
    #[inline(always)]
    fn task_name() -> [u64; 2] {
        Self::this_cpu_tracing().task_name()
    }

    /// The end of the stack that contains `sp`; 0 if it is none.
    #[inline(always)]
    fn stack_end(sp: u64) -> u64 {
        Self::stack_of(sp).end
    }

    /// Whether user memory has to be opened by `stac`: CR4.SMAP is set.
    #[inline(always)]
    fn has_smap() -> bool {
        false
    }

    /// Whether [`Agent::attach_to_program`] does something.
    const HAS_USER_PROBES: bool = false;

    /// Calls `run` at each hit of a place in user programs, with the registers of the program and
    /// with interrupts off, until what is returned is detached. At a return, SS is what DI was at
    /// the entry of the function: the address of a result that is too large for registers. Task
    /// context, may sleep.
    ///
    /// # Errors
    /// The reason, in words for the person who wrote the script. Nothing has changed then.
    fn attach_to_program(
        run: RunInProgram,
        _place: &PlaceInProgram<'_>,
    ) -> Result<Box<dyn InProgram>, String> {
        drop(run);
        Err("this kernel has no probes in user programs; probe the kernel's side".into())
    }

    /// Calls `run` after each instruction that has written to the kernel's memory in `object`,
    /// until what is returned is detached. Task context, may sleep.
    ///
    /// # Errors
    /// The reason, in words for the person who wrote the script.
    fn watch_object(object: Range<u64>, run: RunAtObject) -> Result<Box<dyn InProgram>, String> {
        drop((object, run));
        Err("this kernel watches words of 1, 2, 4 or 8 bytes only; watch a field".into())
    }

    /// The processes that run the program in the file at `path`, for watchpoints of their memory.
    /// Task context, may sleep.
    ///
    /// # Errors
    /// The reason, in words for the person who wrote the script.
    fn programs_of(_path: &str) -> Result<WatchScope, String> {
        Err("this kernel does not watch memory of programs; watch the kernel's".into())
    }

    /// The return address that the running program wrote at `slot` of its stack, where `found` is
    /// now. They differ where a probe has borrowed the place.
    #[inline(always)]
    fn program_return_address(_slot: u64, found: u64) -> u64 {
        found
    }

    /// Where the program of the running task was when it entered the kernel, or at `sample` if that
    /// is user code. None: the task has none.
    #[inline(always)]
    fn program_frame(_sample: &Sample) -> Option<ProgramFrame> {
        None
    }

    /// Takes the trigger with that number: [`bpf::Helper::Trigger`].
    #[inline(always)]
    fn trigger(_number: u64, _value: u64) -> u64 {
        0
    }

    // For tasks.

    /// How many CPUs there may ever be, from 1 to [`MAX_CPUS`](crate::facts::MAX_CPUS). Constant.
    /// As it is, all that [`probes::Platform::per_cpu`] knows.
    fn possible_cpus() -> usize {
        (0..).map_while(Self::per_cpu).count()
    }

    /// How many CPUs run.
    fn online_cpus() -> usize {
        Self::possible_cpus()
    }

    /// Runs `work` as clause 2 of the safety list says: with interrupts off.
    fn keep_cpu(work: &mut dyn FnMut()) {
        without_interrupts(|_| work());
    }

    /// Nanoseconds since the boot. As it is, the time stamp counter tells them.
    fn now() -> u64 {
        // SAFETY: every processor has the counter.
        let ticks = u128::from(unsafe { _rdtsc() });
        let nanoseconds = (ticks * u128::from(NSEC_PER_SEC)).checked_div(Self::tsc_hz().into());
        nanoseconds.unwrap_or(0) as u64
    }

    /// Ticks of the time stamp counter in a second. As it is, what
    /// [`Tracing::calibrate`] has measured; 0 before.
    fn tsc_hz() -> u64 {
        Self::tracing().clock.hz()
    }

    /// The time of day in seconds since 1970; 0 if nothing tells it.
    fn seconds_since_1970() -> u64 {
        0
    }

    /// Writes the name of the task with that number, which may have ended.
    ///
    /// # Errors
    /// Those of `to`.
    fn write_task_name(_task: u32, to: &mut dyn fmt::Write) -> fmt::Result {
        to.write_str("<...>")
    }

    /// The table for walks of stacks.
    ///
    /// # Errors
    /// [`NoTable`].
    fn unwind_table() -> Result<FastTable, NoTable> {
        Err(NoTable::NotHere)
    }

    /// The timer's ticks. None: there are no profiles.
    fn ticks() -> Option<Ticks> {
        None
    }

    /// The place of an event source by its name with its group, as in `sched:sched_switch`.
    ///
    /// # Errors
    /// There is none of that name: what there is instead, for a person.
    fn source(_name: &str) -> Result<Source, &'static str> {
        Err("it has none at all; probe a function instead")
    }
}
