//! The memory of this kernel and of programs that may be watched by the debug registers.
//!
//! The trap reads the word, so the word must be there, and reading it must have no effect. The
//! entries of NMIs and system calls have no stack of their own for some instructions. What these
//! read is in the data of their CPU, so the data of all CPUs are refused as a whole. So are stacks:
//! the entries of exceptions write their frames there, some of them before GS is the kernel's, and
//! the trap's own frame may lie on the word.
//!
//! # Contexts
//! [`refusal`], [`refusal_in_programs`]: task context. [`value`], [`value_in`]: any.

use core::ops::Range;

use trace_agent::{
    KERNEL_MEMORY_END,
    nofault::{self, Space},
};
use x86_64::VirtAddr;

use super::Kernel;
use crate::{
    arch::percpu,
    mm::{
        kernel_stack,
        paging::{self, USER_END},
        user_space::USER_START,
    },
};

/// Why the bytes in `range` may not be watched, if they may not.
pub(super) fn refusal(range: &Range<u64>) -> Option<&'static str> {
    refusal_by_address(range).or_else(|| {
        let is_there = paging::translate_kernel(VirtAddr::new(range.start)).is_some();
        (!is_there).then_some("nothing is mapped there")
    })
}

/// The part of [`refusal`] that the addresses alone tell.
#[inline(always)]
fn refusal_by_address(range: &Range<u64>) -> Option<&'static str> {
    let devices = KERNEL_MEMORY_END as i64 as u64;
    let of_cpus = percpu::range();
    if range.start < USER_END {
        Some("it is memory of programs; name the program")
    } else if VirtAddr::try_new(range.start).is_err() {
        Some("no memory can have that address")
    } else if range.end > devices {
        Some("a device may be there, whose registers the trap would read")
    } else if of_cpus.start < range.end && range.start < of_cpus.end {
        Some("the entry of each interrupt works with it")
    } else if kernel_stack::end_of(range.start) != 0 {
        Some(
            "it is on a stack, where the entry of each interrupt writes; watch an object elsewhere",
        )
    } else {
        None
    }
}

/// The value of the `len` bytes from `addr` on, if they may be watched. On the hit path.
#[inline(always)]
pub(super) fn value(addr: u64, len: u8) -> Option<u64> {
    let range = addr..addr.saturating_add(len.into());
    match refusal_by_address(&range) {
        None => value_in(Space::Kernel, addr, len),
        Some(_) => None,
    }
}

/// Why the bytes in `range` may not be watched in programs, if they may not.
pub(super) fn refusal_in_programs(range: &Range<u64>) -> Option<&'static str> {
    (range.start < USER_START || range.end > USER_END).then_some("no program has memory there")
}

/// The value of the `len` bytes from `addr` on, in `space`, if they are there. On the hit path.
#[inline(always)]
pub(super) fn value_in(space: Space, addr: u64, len: u8) -> Option<u64> {
    let mut value = 0_u64;
    let bytes = u64::from(len).min(size_of::<u64>() as u64);
    // SAFETY: so many bytes of the value may be written.
    let is_there = unsafe { nofault::copy::<Kernel>(space, (&raw mut value).cast(), addr, bytes) };
    is_there.then_some(value)
}
