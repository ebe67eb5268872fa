//! After `insn::init`, nothing in the module allocates.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    hint::black_box,
    sync::atomic::{AtomicUsize, Ordering},
};

use probes::insn::{BoundaryWalk, Ending, classify, init, step_copy, translate};

struct Counting;

/// Calls of `alloc` so far.
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Bytes in use.
static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: allocated by `alloc` above, hence by the system's allocator.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn only_the_first_use_allocates() {
    let before = LIVE_BYTES.load(Ordering::Relaxed);
    init();
    let tables = LIVE_BYTES.load(Ordering::Relaxed) - before;
    println!("the decoder's tables take {tables} bytes");
    assert!(tables <= 512 * 1024);

    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let function = [
        0x48, 0x8b, 0x05, 0, 0, 0, 0, 0xff, 0x14, 0x24, 0x74, 0x00, 0xc5, 0xf1, 0xeb, 0xc2, 0x0f,
        0x0b, 0xc3,
    ];
    let start = 0xffff_ffff_8000_0000;
    for offset in 0..function.len() as u64 {
        let mut walk = BoundaryWalk::new();
        let Ok(insn) = walk.find(&function, start, start + offset) else {
            continue;
        };
        let _ = black_box(classify(insn, &function[offset as usize + insn.len()..]));
        let slot = start + 0x1000_0000;
        let _ = black_box(translate(insn, slot, Ending::Resume));
        let _ = black_box(translate(
            insn,
            slot,
            Ending::Post {
                stub: slot + 0x100,
                saved_flags: None,
            },
        ));
        let _ = black_box(step_copy(insn, slot));
    }
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before);
}
