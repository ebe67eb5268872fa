//! Init text: code that runs only while the kernel boots, and the return of its memory.
//!
//! `#[unsafe(link_section = ".init.text")]` and `#[inline(never)]` put a function there. The linker
//! script forbids references from other text to it, so no other code can call it later. There are
//! two ways in: the loader's jump to the image, and the function pointer with which the first task
//! is started. That task calls [`free`] when it has left init text for good.
//!
//! From then on the addresses are unmapped, for ever, and the frames may hold anything. Text is
//! written by address, through [`paging::text_alias`], and that finds nothing there any more.

use super::{FRAME_SIZE, paging};
use crate::{arch::smp, pr_info};
use alloc::vec::Vec;
use core::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};
use x86_64::VirtAddr;

unsafe extern "C" {
    static __init_text_start: u8;
    static __init_text_end: u8;
}

static FREED: AtomicBool = AtomicBool::new(false);

/// The addresses of init text, mapped or not. Any context.
pub fn range() -> Range<u64> {
    let (start, end) = (&raw const __init_text_start, &raw const __init_text_end);
    start.addr() as u64..end.addr() as u64
}

/// Whether init text has been given up: it is unmapped, or about to be. Any context.
pub fn is_freed() -> bool {
    FREED.load(Ordering::Acquire)
}

/// Unmaps init text and gives its frames back. Task context, once, when no CPU and no task will run
/// there again. `forget` is called with its addresses before they are unmapped: it makes the probes
/// forget theirs.
pub fn free(forget: impl FnOnce(Range<u64>)) {
    let range = range();
    // The store comes first. A registration that has still found init text holds the lock that
    // `forget` takes, so it ends before `forget` marks its probe.
    FREED.store(true, Ordering::Release);
    forget(range.clone());
    let pages = range.clone().step_by(FRAME_SIZE).map(VirtAddr::new);
    let frames: Vec<_> = pages.filter_map(paging::unmap_kernel).collect();
    // No CPU may fetch through a stale translation once the frames hold something else.
    smp::flush_tlb_everywhere();
    pr_info!(
        "init text: {} KiB freed at {:#x}",
        frames.len() * FRAME_SIZE / 1024,
        range.start
    );
}
