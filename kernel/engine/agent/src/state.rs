//! The agent of one kernel: what its parts keep, in one static, and the mending of faults.
//!
//! # Contexts
//! [`Tracing::mend`]: on the hit path, interrupts off. Each part says for itself.

use core::sync::atomic::Ordering;

use probes::PtRegs;

use crate::{
    Agent, CodePage,
    buffer::Buffers,
    clock::Clock,
    code::CodeRegion,
    counters::Counters,
    graph::Choice,
    last_words::LastWords,
    nofault,
    per_cpu::count_bad_load,
    program::AimedWatches,
    records::{MOST_MARK_BYTES, Recording, write_mark},
    script::Profiles,
    stacks::StackTable,
};

/// See the module's text.
pub struct Tracing<A: Agent> {
    /// Executable memory for programs.
    pub code: CodeRegion<A>,
    /// Whether records are taken.
    pub recording: Recording,
    /// The rings.
    pub buffer: Buffers<A>,
    /// What call stacks are walked with.
    pub stacks: StackTable<A>,
    /// Which calls a [`GraphTracer`](crate::graph::GraphTracer) records.
    pub graph: Choice,
    pub(crate) counters: Counters,
    pub(crate) profiles: Profiles<A>,
    pub(crate) aimed: AimedWatches<A>,
    pub(crate) last_words: LastWords,
    pub(crate) clock: Clock,
}

impl<A: Agent> Tracing<A> {
    /// Nothing runs. `pages` are as many as [`probes::Platform::ACTION_PAGES`] says; no other value
    /// has them.
    pub const fn new(pages: &'static [CodePage]) -> Self {
        Self {
            code: CodeRegion::new(pages),
            recording: Recording::new(),
            buffer: Buffers::new(),
            stacks: StackTable::new(),
            graph: Choice::all(),
            counters: Counters::new(),
            profiles: Profiles::new(),
            aimed: AimedWatches::new(),
            last_words: LastWords::new(),
            clock: Clock::new(),
        }
    }

    /// Measures how fast the time stamp counter runs, by `clock`, which counts `hz` times a second.
    /// Takes a tenth of a second. Before a tracer is served; tasks, and boots with interrupts on if
    /// it is they that count.
    pub fn calibrate(&self, hz: u64, clock: impl Fn() -> u64) {
        self.clock.measure(hz, clock);
    }

    /// The same, by a PC's interval timer, with interrupts off for 10 ms.
    ///
    /// # Safety
    /// This is a PC, and nothing else uses channel 2 of its timer (the speaker's) meanwhile.
    pub unsafe fn calibrate_by_pit(&self) {
        // SAFETY: the caller's contract.
        unsafe { self.clock.measure_by_pit() };
    }

    /// Another task runs on this CPU: tells the probes and the agent, as
    /// [`probes::hit::Hits::task_switched`],
    /// [`PerCpu::task_switched`](crate::PerCpu::task_switched) and
    /// [`PerCpu::name_task`](crate::PerCpu::name_task) say. For kernels whose processes have
    /// one task each; tasks without names are called "".
    #[inline(always)]
    pub fn task_switched(&self, task: u64, name: &str) {
        A::probes().task_switched(task);
        let cpu = A::this_cpu_tracing();
        cpu.task_switched(task as u32, task as u32);
        cpu.name_task(name);
    }

    /// Mends a fault of a program: of a load in its code, or of a copy in a helper. False: it is
    /// another fault. Interrupts off.
    #[inline(always)]
    pub fn mend(&self, regs: &mut PtRegs) -> bool {
        if nofault::mend(regs) {
            return true;
        }
        let Some(code) = self.code.code_at(regs.ip) else {
            return false;
        };
        let Some(mended) = bpf_compiler::mend(&code) else {
            return false;
        };
        let Some(register) = register(regs, mended.register) else {
            return false;
        };
        *register = 0;
        regs.ip = regs.ip.wrapping_add(mended.length.into());
        count_bad_load::<A>();
        true
    }

    /// Whether a script runs, which takes the records out of the rings then.
    pub fn script_runs(&self) -> bool {
        self.recording.script_runs.load(Ordering::Relaxed)
    }

    /// Records a text: a mark of a task among what the kernel does. Returns how many of its bytes
    /// were recorded, at most [`MOST_MARK_BYTES`]. The buffers are [ready](Buffers::ready).
    ///
    /// # Errors
    /// [`MarkError`]; nothing is recorded then. Task context.
    pub fn mark(&self, text: &[u8]) -> Result<usize, MarkError> {
        let text = &text[..text.len().min(MOST_MARK_BYTES)];
        let mut result = Err(MarkError::ScriptRuns);
        A::keep_cpu(&mut || {
            if !self.script_runs() {
                result = match write_mark::<A>(text) {
                    true => Ok(text.len()),
                    false => Err(MarkError::NotTaken),
                };
            }
        });
        result
    }

    /// Lets no more records be written: the kernel is about to end, and what it calls for that is
    /// not what led there. Any context.
    pub fn stop_recording(&self) {
        self.recording.wanted().store(false, Ordering::Relaxed);
    }

    /// How many loads of programs, and copies for them, found no memory, on all CPUs, since the
    /// boot.
    pub fn bad_loads(&self) -> u64 {
        (0..A::possible_cpus())
            .filter_map(A::cpu_tracing)
            .map(|cpu| cpu.bad_loads.load(Ordering::Relaxed))
            .sum()
    }
}

/// Why a mark is not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkError {
    /// The buffers are those of a script.
    ScriptRuns,
    /// No records are taken, or the buffer is full and keeps what it has.
    NotTaken,
}

/// The register with that number in an instruction.
#[inline(always)]
fn register(regs: &mut PtRegs, number: u8) -> Option<&mut u64> {
    Some(match number {
        0 => &mut regs.ax,
        1 => &mut regs.cx,
        2 => &mut regs.dx,
        3 => &mut regs.bx,
        5 => &mut regs.bp,
        6 => &mut regs.si,
        7 => &mut regs.di,
        8 => &mut regs.r8,
        9 => &mut regs.r9,
        10 => &mut regs.r10,
        11 => &mut regs.r11,
        12 => &mut regs.r12,
        13 => &mut regs.r13,
        14 => &mut regs.r14,
        15 => &mut regs.r15,
        _ => return None,
    })
}
