//! What this kernel gives the agent of the tracer: the trait [`Agent`].
//!
//! The agent is a crate that knows no kernel. Each method here is a question that it asks, and goes
//! to the part of the kernel that knows the answer. What a hit asks takes no lock and may not be
//! probed.

use alloc::{boxed::Box, format, string::String};
use core::{fmt, ops::Range};

use bpf_compiler::Sample;
use fallible::try_box;
use trace_agent::{
    Agent, PerCpu,
    facts::{
        InProgram, MAX_CPUS, NoTable, PlaceInProgram, ProgramFrame, RunAtObject, RunInProgram,
        Shown, Source, Ticks,
    },
    records,
};
use tracefs::line::{flags, mark, stack};
use unwind::fast::FastTable;
use x86_64::instructions::interrupts;

use super::{sources, triggers, user};
use crate::{
    arch::{apic, cpu, percpu, rtc, smp, switch},
    backtrace,
    mm::{kernel_stack, paging},
    probes::{
        Kernel, WatchScope,
        watched_objects::{ObjectWatch, RegisteredObjectWatch},
    },
    task::{self, Task, comms, running},
    time, uprobes,
};

trace_agent::tracing!(Kernel, TRACING);

const _: () = assert!(percpu::MAX_CPUS == MAX_CPUS);
// The records of stacks are lines of `trace`.
const _: () = assert!(
    stack::ID == records::STACK_TYPE && stack::HEADER_BYTES as usize == records::STACK_HEADER_BYTES
);
// So are those of marks.
const _: () = assert!(
    mark::ID == records::MARK_TYPE && mark::HEADER_BYTES as usize == records::MARK_HEADER_BYTES
);
// So are the flags of all records.
const _: () = assert!(
    flags::NEED_RESCHED == records::flags::NEED_RESCHED
        && flags::HARDIRQ == records::flags::INTERRUPT
        && flags::NMI == records::flags::NMI
);
// A compiler that does not know the command line refuses by this what the agent refuses.
const _: () = assert!(trace_interface::script::TICK_NANOSECONDS == time::TICK_NS);

// SAFETY: clause by clause of `Agent`:
// 1. The data of each CPU hold one `tracing`, to which GS leads (PERCPU-1), and `percpu::init`
//    begins it.
// 2. Interrupts are off, and handlers of IPIs take part in each grace period.
// 3. and 4. By `tracing!`.
// 5. `enter_page_fault` asks first. Devices are mapped from `DEVICES_START` on only (PAGING-4),
//    1 MiB above the end of what is read.
// 6. Stacks are mapped to their ends, for ever.
// 7. They are words of `PerCpu`.
unsafe impl Agent for Kernel {
    const GS_OFFSET: u32 = percpu::TRACING as u32;

    const SHOWN: Shown = Shown {
        need_resched: percpu::NEED_RESCHED as u32,
        interrupt: percpu::INTERRUPT as u32,
        preempt_count: percpu::PREEMPT_COUNT as u32,
    };

    const USER_END: u64 = paging::USER_END;

    const HAS_USER_STACKS: bool = true;

    const HAS_USER_PROBES: bool = true;

    #[inline(always)]
    fn this_cpu_tracing() -> &'static PerCpu {
        &percpu::this().tracing
    }

    #[inline(always)]
    fn cpu_tracing(cpu: usize) -> Option<&'static PerCpu> {
        percpu::get(cpu).map(|data| &data.tracing)
    }

    #[inline(always)]
    fn task_key() -> u64 {
        percpu::current_raw().addr() as u64
    }

    #[inline(always)]
    fn task_name() -> [u64; 2] {
        running().map_or([0; 2], Task::comm_words)
    }

    #[inline(always)]
    fn stack_end(sp: u64) -> u64 {
        kernel_stack::end_of(sp)
    }

    #[inline(always)]
    fn has_smap() -> bool {
        cpu::has_smap()
    }

    #[inline(always)]
    fn program_frame(sample: &Sample) -> Option<ProgramFrame> {
        let frame = |ip, sp, bp| ProgramFrame {
            ip: uprobes::hit::shown_ip(ip),
            bp,
            return_slot: uprobes::hit::return_slot_at_entry(ip, sp),
        };
        let task = task::running()?;
        if sample.ip < paging::USER_END {
            // A sample of the timer, or a hit in the program.
            return Some(frame(sample.ip, sample.sp, sample.bp));
        }
        let regs = switch::user_regs(task.stack_top);
        // Code on another stack, that of the NMI, may have interrupted ring 3. Then the frame is an
        // old one. The first instructions of an entry and the last ones of a return have none.
        let is_of_task = (task.stack_start..=regs.addr() as u64).contains(&sample.sp);
        // The stack of an idle task, whose number is 0, has no frame at its end.
        if !is_of_task || task.pid() == 0 {
            return None;
        }
        // SAFETY: TASK-4 of `task`, and the task runs here, above this frame.
        let regs = unsafe { &*regs };
        // A task may never have been in ring 3.
        (regs.cs & 3 == 3).then(|| frame(regs.ip, regs.sp, regs.bp))
    }

    fn attach_to_program(
        run: RunInProgram,
        place: &PlaceInProgram<'_>,
    ) -> Result<Box<dyn InProgram>, String> {
        user::attach(run, place)
    }

    fn watch_object(object: Range<u64>, run: RunAtObject) -> Result<Box<dyn InProgram>, String> {
        WatchedObject::attach(object, run)
    }

    fn programs_of(path: &str) -> Result<WatchScope, String> {
        user::programs_of(path)
    }

    #[inline(always)]
    fn program_return_address(slot: u64, found: u64) -> u64 {
        uprobes::hit::shown_return_address(slot, found)
    }

    #[inline(always)]
    fn trigger(number: u64, value: u64) -> u64 {
        triggers::act(number, value)
    }

    fn possible_cpus() -> usize {
        smp::possible_cpus()
    }

    fn online_cpus() -> usize {
        smp::online_cpus()
    }

    fn keep_cpu(work: &mut dyn FnMut()) {
        interrupts::without_interrupts(work);
    }

    fn now() -> u64 {
        time::ktime_get()
    }

    fn tsc_hz() -> u64 {
        time::tsc_hz()
    }

    fn seconds_since_1970() -> u64 {
        rtc::seconds_since_1970().unwrap_or(0)
    }

    fn write_task_name(task: u32, to: &mut dyn fmt::Write) -> fmt::Result {
        write!(to, "{}", comms::of(task as i32))
    }

    fn unwind_table() -> Result<FastTable, NoTable> {
        backtrace::unwind::fast_table().ok_or(NoTable::OutOfMemory)
    }

    fn ticks() -> Option<Ticks> {
        let nanoseconds = apic::tick_ns();
        Some(Ticks {
            function: "timer_interrupt",
            nanoseconds,
            advice: (nanoseconds > time::NSEC_PER_MSEC).then_some("boot with `--append tick_ms=1`"),
        })
    }

    fn source(name: &str) -> Result<Source, &'static str> {
        match sources::place(name) {
            Some((true, address)) => Ok(Source::ReturnOf(address)),
            Some((false, address)) => Ok(Source::At(address)),
            None => Err("the directories below /sys/kernel/tracing/events are those that it has"),
        }
    }
}

/// A watch of an object that calls what the agent has given.
struct WatchedObject(RegisteredObjectWatch);

impl WatchedObject {
    fn attach(object: Range<u64>, run: RunAtObject) -> Result<Box<dyn InProgram>, String> {
        let out_of_memory = |_| String::from("no memory is left for the watch");
        let bytes = object.end.saturating_sub(object.start);
        let watch = try_box(ObjectWatch::new(object.start, bytes, run)).map_err(out_of_memory)?;
        let watch = RegisteredObjectWatch::new(watch).map_err(|error| format!("{error}"))?;
        Ok(try_box(Self(watch)).map_err(out_of_memory)?)
    }
}

impl InProgram for WatchedObject {
    fn detach(self: Box<Self>) -> u64 {
        self.0.end()
    }
}
