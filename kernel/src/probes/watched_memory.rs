//! The memory of this kernel that may be watched by the debug registers.
//!
//! The trap reads the word, so the word must be there, and reading it must have no effect. The
//! entries of NMIs and system calls have no stack of their own for some instructions. What these
//! read is in the data of their CPU, so these data are refused as a whole.
//!
//! # Contexts
//! Task context.

#![forbid(unsafe_code)]

use core::ops::Range;

use trace_agent::KERNEL_MEMORY_END;
use x86_64::VirtAddr;

use crate::{
    arch::percpu,
    mm::paging::{self, USER_END},
};

/// Why the bytes in `range` may not be watched, if they may not.
pub(super) fn refusal(range: &Range<u64>) -> Option<&'static str> {
    let devices = KERNEL_MEMORY_END as i64 as u64;
    let of_cpu = |cpu| {
        let start = core::ptr::from_ref(percpu::of(cpu)).addr() as u64;
        start..start + size_of::<percpu::PerCpu>() as u64
    };
    let is_of_cpu = |range: &Range<u64>| {
        let mut all = (0..percpu::MAX_CPUS).map(of_cpu);
        all.any(|of| of.start < range.end && range.start < of.end)
    };
    if range.start < USER_END {
        Some("it is memory of programs, and watchpoints are for that of the kernel")
    } else if VirtAddr::try_new(range.start).is_err() {
        Some("no memory can have that address")
    } else if range.end > devices {
        Some("a device may be there, whose registers the trap would read")
    } else if paging::translate_kernel(VirtAddr::new(range.start)).is_none() {
        Some("nothing is mapped there")
    } else if is_of_cpu(range) {
        Some("the entry of each interrupt works with it")
    } else {
        None
    }
}
