//! What the agent keeps for each CPU. Compiled code reaches it by the GS segment, so a hit that
//! counts needs one instruction.
//!
//! # Contexts
//! Any that keeps its CPU. Only its own CPU writes a value, except rings, counters that are taken,
//! and what is read by others to be summed up. So all of it is atomic.
//!
//! # Memory ordering
//! [`Spare`] tells that of the rings. All else is relaxed.

use core::{
    mem::offset_of,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed},
};

use trace_ring::spare::Spare;

use crate::{Agent, facts::Shown, records::Recording};

/// How many counters each CPU has for programs.
pub const COUNTERS: usize = 256;

/// See the module's text.
#[repr(C)]
pub struct PerCpu {
    /// What the GS base is in kernel code on this CPU.
    gs_base: AtomicU64,
    /// The number of the CPU.
    number: AtomicU32,
    /// Nothing shows more than this: see [`Shown`].
    zero: AtomicU32,
    /// The running task, and its process. 0: none yet.
    ids: [AtomicU32; 2],
    /// The running task's name: see [`name_words`].
    name: [AtomicU64; 2],
    /// This CPU's ring, or null.
    ring: AtomicPtr<u8>,
    /// Whether records are taken, for routines: the same on each CPU.
    recording: AtomicPtr<Recording>,
    /// Its other ring: see [`crate::snapshot`].
    spare: Spare,
    /// Loads of programs that found no memory.
    pub(crate) bad_loads: AtomicU64,
    /// Records that were not begun, because recording was off here or everywhere, or paused while
    /// rings change.
    pub(crate) records_off: AtomicU64,
    /// The address that the watchpoint watches whose program runs; 0: none runs.
    pub(crate) watched: AtomicU64,
    /// The CPU begins no records:
    /// see [`Buffers::choose_cpus`](crate::buffer::Buffers::choose_cpus).
    pub(crate) left_out: AtomicBool,
    /// Counters of programs: see [`crate::counters`].
    counters: [AtomicU64; COUNTERS],
}

impl Default for PerCpu {
    fn default() -> Self {
        Self::new()
    }
}

impl PerCpu {
    /// A CPU that has not run yet.
    pub const fn new() -> Self {
        Self {
            gs_base: AtomicU64::new(0),
            number: AtomicU32::new(0),
            zero: AtomicU32::new(0),
            ids: [const { AtomicU32::new(0) }; 2],
            name: [const { AtomicU64::new(0) }; 2],
            ring: AtomicPtr::new(core::ptr::null_mut()),
            recording: AtomicPtr::new(core::ptr::null_mut()),
            spare: Spare::new(),
            bad_loads: AtomicU64::new(0),
            records_off: AtomicU64::new(0),
            watched: AtomicU64::new(0),
            left_out: AtomicBool::new(false),
            counters: [const { AtomicU64::new(0) }; COUNTERS],
        }
    }

    /// Tells it the number of its CPU, from 0, and what the GS base is there in kernel code. Before
    /// the CPU's first hit.
    pub fn init(&self, number: usize, gs_base: u64) {
        self.gs_base.store(gs_base, Relaxed);
        self.number.store(number as u32, Relaxed);
    }

    /// Another task runs on this CPU: `task` of `process`. In the switch. A kernel whose processes
    /// have one task each passes the same number twice.
    #[inline(always)]
    pub fn task_switched(&self, process: u32, task: u32) {
        self.ids[0].store(task, Relaxed);
        self.ids[1].store(process, Relaxed);
    }

    /// The name of the task that runs on this CPU now, or as much of it as fits. In the switch.
    #[inline]
    pub fn name_task(&self, name: &str) {
        let [first, second] = name_words(name);
        self.name[0].store(first, Relaxed);
        self.name[1].store(second, Relaxed);
    }

    /// The name of the running task, as [`Agent::task_name`] has it.
    #[inline(always)]
    pub fn task_name(&self) -> [u64; 2] {
        [self.name[0].load(Relaxed), self.name[1].load(Relaxed)]
    }

    /// The number of the CPU.
    #[inline(always)]
    pub fn number(&self) -> usize {
        self.number.load(Relaxed) as usize
    }

    /// The running task, and its process.
    #[inline(always)]
    pub fn task(&self) -> (u32, u32) {
        (self.ids[0].load(Relaxed), self.ids[1].load(Relaxed))
    }

    /// How many records were not begun on this CPU since the boot, because recording was off, or
    /// paused while rings change.
    pub fn records_off(&self) -> u64 {
        self.records_off.load(Relaxed)
    }

    /// The place of the CPU's ring, and its other ring.
    #[inline(always)]
    pub fn rings(&self) -> (&AtomicPtr<u8>, &Spare) {
        (&self.ring, &self.spare)
    }

    /// Leads the routines of the tracer of calls to that. Before they run on this CPU.
    pub(crate) fn set_recording(&self, recording: &'static Recording) {
        let recording = core::ptr::from_ref(recording).cast_mut();
        self.recording.store(recording, Relaxed);
    }

    /// The counter with that number, which is below [`COUNTERS`].
    pub(crate) fn counter(&self, number: usize) -> &AtomicU64 {
        &self.counters[number]
    }

    /// Where the counters are in this struct, in bytes.
    pub(crate) const COUNTERS_OFFSET: usize = offset_of!(Self, counters);

    /// [`Shown`] of a kernel that has nothing to show.
    pub const fn nothing_shown(gs_offset: u32) -> Shown {
        let zero = gs_offset + offset_of!(Self, zero) as u32;
        Shown {
            need_resched: zero,
            interrupt: zero,
            preempt_count: zero,
        }
    }

    /// Where the running task's number is, in bytes from the start of this struct, and in the 4
    /// bytes after it that of its process: for switches of tasks in assembly.
    pub const TASK_OFFSET: usize = offset_of!(Self, ids);
}

/// A name as [`Agent::task_name`] has it: its first 15 bytes, the first one lowest.
pub fn name_words(name: &str) -> [u64; 2] {
    let mut words = [0; 2];
    for (at, byte) in name.bytes().take(15).enumerate() {
        words[at / 8] |= u64::from(byte) << (8 * (at % 8));
    }
    words
}

/// Counts a load, or a copy of a helper, that found no memory. Any context.
#[inline(always)]
pub(crate) fn count_bad_load<A: Agent>() {
    A::this_cpu_tracing().bad_loads.fetch_add(1, Relaxed);
}

/// The number of a CPU that runs and whose data was not told where it is, or is not where compiled
/// code looks for it. None: all is well. Task context.
pub(crate) fn misplaced<A: Agent>() -> Option<usize> {
    let this = core::ptr::from_ref(A::this_cpu_tracing());
    (0..A::possible_cpus()).find(|cpu| {
        let (Some(data), Some(probes)) = (A::cpu_tracing(*cpu), A::per_cpu(*cpu)) else {
            return false;
        };
        let address = core::ptr::from_ref(data);
        let base = (address.addr() as u64).wrapping_sub(A::GS_OFFSET.into());
        let has_run = address == this || probes.task() != 0;
        has_run && (data.gs_base.load(Relaxed), data.number()) != (base, *cpu)
    })
}

/// Where compiled code and routines find it, in bytes from the GS base.
pub(crate) const fn gs_base<A: Agent>() -> u32 {
    A::GS_OFFSET + offset_of!(PerCpu, gs_base) as u32
}

#[doc(hidden)]
pub const fn number<A: Agent>() -> u32 {
    A::GS_OFFSET + offset_of!(PerCpu, number) as u32
}

#[doc(hidden)]
pub const fn task<A: Agent>() -> u32 {
    A::GS_OFFSET + offset_of!(PerCpu, ids) as u32
}

#[doc(hidden)]
pub const fn ring<A: Agent>() -> u32 {
    A::GS_OFFSET + offset_of!(PerCpu, ring) as u32
}

#[doc(hidden)]
pub const fn recording<A: Agent>() -> u32 {
    A::GS_OFFSET + offset_of!(PerCpu, recording) as u32
}

pub(crate) const fn bad_loads<A: Agent>() -> u32 {
    A::GS_OFFSET + offset_of!(PerCpu, bad_loads) as u32
}

pub(crate) const fn records_off<A: Agent>() -> u32 {
    A::GS_OFFSET + offset_of!(PerCpu, records_off) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_before_the_last_byte() {
        let cpu = PerCpu::new();
        for (name, told) in [
            ("", b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
            ("shop", b"shop\0\0\0\0\0\0\0\0\0\0\0\0"),
            ("abcdefghijklmnopq", b"abcdefghijklmno\0"),
        ] {
            cpu.name_task(name);
            assert_eq!(cpu.task_name().map(u64::to_le_bytes).as_flattened(), told);
        }
    }
}
