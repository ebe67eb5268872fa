//! Tracing: programs that probes run, and the files that show what they found.
//!
//! | file | content |
//! |---|---|
//! | [`buffer`] | the rings that records go to, and their readers |
//! | [`snapshot`] | the exchange of a CPU's ring with its other one |
//! | [`names`] | names of functions that fit into a line |
//! | [`program`] | a program in the kernel: verified, compiled, attached to a probe |
//! | [`event`], [`events`] | one event; all of them, and the commands that define them |
//! | [`files`], [`output`] | the files below `/sys/kernel/tracing`; lines of `trace` |
//! | [`triggers`] | acts of one event on recording as a whole, or on another event |
//! | [`script`] | a script of the tracer: loaded, attached, run, answered |
//! | [`counters`] | counters that are reached by one instruction |
//! | [`stacks`] | call stacks of hits |
//! | [`helpers`], [`records`] | the functions that compiled programs call |
//! | [`shared`] | values with several holders, whose memory may be refused |
//! | [`nofault`] | reads of memory that may not be there |
//!
//! # A hit
//! A jump or a breakpoint leads to compiled code ([`probes::action`]). It reads registers and
//! memory, counts in maps and writes records to the ring of its CPU. It takes no lock and allocates
//! nothing. A load of memory that is not there is mended by [`mend`], before anything that can be
//! probed: it gives zero and is counted.
//!
//! # Contexts
//! [`mend`]: on the hit path, interrupts off. All else says for itself.

pub mod buffer;
pub mod counters;
pub mod event;
pub mod events;
pub mod files;
pub mod helpers;
pub mod names;
mod nofault;
pub mod output;
pub mod program;
pub mod records;
pub mod script;
pub mod snapshot;
pub mod sources;
pub mod stacks;
pub mod triggers;

pub use crate::mm::shared;

use core::sync::atomic::Ordering;

pub use bpf;

use crate::{
    arch::{PtRegs, percpu, smp},
    probes::action_code,
};

/// Mends a fault of an action: of a load in its code, or of a copy in a helper. False: it is
/// another fault. Interrupts off.
#[inline(always)]
pub fn mend(regs: &mut PtRegs) -> bool {
    if nofault::mend(regs) {
        return true;
    }
    let Some(code) = action_code::code_at(regs.ip) else {
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
    count_bad_load();
    true
}

/// Counts a load, or a copy of a helper, that found no memory. Any context.
#[inline(always)]
fn count_bad_load() {
    percpu::this().bad_loads.fetch_add(1, Ordering::Relaxed);
}

/// Lets no more records be written: the kernel is about to end, and what it calls for that is not
/// what led there. Any context.
pub fn stop_recording() {
    records::TRACING_ON.store(false, Ordering::Relaxed);
}

/// How many loads of programs, and copies for them, found no memory, on all CPUs, since the boot.
pub fn bad_loads() -> u64 {
    (0..smp::possible_cpus())
        .map(|cpu| percpu::of(cpu).bad_loads.load(Ordering::Relaxed))
        .sum()
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
