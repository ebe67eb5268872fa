//! Kernel stacks: 32 KiB each, above a guard of the same size, which is never mapped.
//!
//! Code that runs over the end of a stack hits the guard. The processor cannot push a page fault's
//! frame there either, so it raises #DF. That has a stack of its own, and reports the overflow.
//!
//! A stack is mapped once and reused for ever. Stacks that were given back wait in a list, linked
//! through their topmost words. So no TLB ever holds a stale translation of one. Task context, one
//! spinlock.

use super::{
    frame::{self, FRAME_SIZE, Frame, OutOfMemory},
    heap,
    paging::{self, MapError, Protection, STACKS_START},
};
use crate::sync::SpinLock;
use core::{
    mem::ManuallyDrop,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};
use x86_64::VirtAddr;

/// Size of a kernel stack in bytes.
pub const STACK_BYTES: u64 = 32 * 1024;
/// From one stack to the next: the guard comes first. A power of two, because each call stack that
/// is taken asks where its stack ends.
const SPACING: u64 = GUARD_BYTES + STACK_BYTES;
const GUARD_BYTES: u64 = STACK_BYTES;

const _: () = assert!(SPACING.is_power_of_two());

struct Pool {
    /// How many stacks have been mapped.
    mapped: u64,
    /// Top of the first unused one.
    unused: Option<VirtAddr>,
}

impl Pool {
    fn mapped_frames(&self) -> usize {
        self.mapped as usize * (STACK_BYTES as usize / FRAME_SIZE)
    }
}

static POOL: SpinLock<Pool> = SpinLock::new(Pool {
    mapped: 0,
    unused: None,
});

/// How many frames the stacks hold, both those in use and those that wait for reuse. Task context.
pub fn mapped_frames() -> usize {
    POOL.lock().mapped_frames()
}

/// The same; none if the lock is held.
pub(super) fn try_mapped_frames() -> Option<usize> {
    Some(POOL.try_lock()?.mapped_frames())
}

/// A stack that belongs to the holder of this value. Dropping it gives it back, so nothing may run
/// on it any more.
#[derive(Debug)]
pub struct KernelStack {
    top: VirtAddr,
}

/// The word of an unused stack that names the next one.
fn link(top: VirtAddr) -> *mut Option<VirtAddr> {
    (top - size_of::<Option<VirtAddr>>() as u64).as_mut_ptr()
}

impl KernelStack {
    /// Takes an unused stack or maps a new one.
    pub fn new() -> Result<Self, OutOfMemory> {
        /// Frames of a stack, and of the tables that map it.
        const NEEDED: usize = STACK_BYTES as usize / FRAME_SIZE + 3;
        if frame::free_frames() < NEEDED {
            heap::give_back();
        }
        let mut pool = POOL.lock();
        if let Some(top) = pool.unused {
            // SAFETY: an unused stack is mapped, ours, and has its link there.
            pool.unused = unsafe { link(top).read() };
            return Ok(Self { top });
        }
        let bottom = STACKS_START + pool.mapped * SPACING + GUARD_BYTES;
        let pages = (bottom..bottom + STACK_BYTES)
            .step_by(FRAME_SIZE)
            .map(VirtAddr::new);
        for page in pages.clone() {
            let mapped = Frame::alloc()
                .map_err(MapError::from)
                .and_then(|frame| paging::map_kernel(page, frame, Protection::ReadWrite));
            if mapped.is_err() {
                // No CPU has touched these pages, so none has them in its TLB.
                pages
                    .take_while(|&earlier| earlier < page)
                    .for_each(|page| drop(paging::unmap_kernel(page)));
                return Err(OutOfMemory);
            }
        }
        pool.mapped += 1;
        Ok(Self {
            top: VirtAddr::new(bottom + STACK_BYTES),
        })
    }

    /// Its end, where rsp starts. 16-aligned.
    pub fn top(&self) -> VirtAddr {
        self.top
    }

    /// The addresses of its bytes.
    pub fn range(&self) -> Range<u64> {
        self.top.as_u64() - STACK_BYTES..self.top.as_u64()
    }

    /// Keeps it for ever.
    pub fn leak(self) -> VirtAddr {
        ManuallyDrop::new(self).top
    }
}

impl Drop for KernelStack {
    fn drop(&mut self) {
        let mut pool = POOL.lock();
        // SAFETY: the stack is mapped and ours, and nothing runs on it.
        unsafe { link(self.top).write(pool.unused) };
        pool.unused = Some(self.top);
    }
}

/// Stacks that are not from the pool: the loader's, on which the kernel boots, and those for the
/// exceptions of the CPU that boots.
static OTHERS: [[AtomicU64; 2]; 2] = [const { [const { AtomicU64::new(0) }; 2] }; 2];

/// Makes two further stacks known to [`bounds`]. Once, early in boot.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn note_boot_stacks(stacks: [Range<u64>; 2]) {
    for (other, stack) in OTHERS.iter().zip(stacks) {
        other[0].store(stack.start, Ordering::Relaxed);
        other[1].store(stack.end, Ordering::Relaxed);
    }
}

/// The bounds of the kernel stack that contains the address `sp`; empty if there is none. Any
/// context.
pub fn bounds(sp: u64) -> Range<u64> {
    if let Some(offset) = pool_offset(sp) {
        let guard_end = sp - offset + GUARD_BYTES;
        return if offset < GUARD_BYTES {
            0..0
        } else {
            guard_end..guard_end + STACK_BYTES
        };
    }
    let others = OTHERS
        .iter()
        .map(|[start, end]| start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed));
    others
        .into_iter()
        .find(|stack| stack.contains(&sp))
        .unwrap_or(0..0)
}

/// The end of the kernel stack that contains the address `sp`, or 0 if there is none. As
/// [`bounds`], for the hit path.
#[inline(always)]
pub fn end_of(sp: u64) -> u64 {
    let offset = sp.wrapping_sub(STACKS_START);
    if offset < paging::STACKS_END - STACKS_START {
        let below = offset % SPACING;
        return if below < GUARD_BYTES {
            0
        } else {
            sp.wrapping_sub(below).wrapping_add(SPACING)
        };
    }
    for [start, end] in &OTHERS {
        let end = end.load(Ordering::Relaxed);
        if start.load(Ordering::Relaxed) <= sp && sp < end {
            return end;
        }
    }
    0
}

/// How far `address` is from the start of the guard of its stack, if it lies in the region of
/// stacks.
fn pool_offset(address: u64) -> Option<u64> {
    (STACKS_START..paging::STACKS_END)
        .contains(&address)
        .then(|| (address - STACKS_START) % SPACING)
}

/// Whether `address` lies in the unmapped pages below some kernel stack. Any context.
pub fn is_guard(address: u64) -> bool {
    pool_offset(address).is_some_and(|offset| offset < GUARD_BYTES)
}
