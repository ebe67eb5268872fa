//! The kernel's heap: what it gives out, and that what comes back is enough for the next time.

use crate::numbered_targets::numbered_targets;
use alloc::{boxed::Box, vec::Vec};
use core::hint::black_box;
use kernel::{
    mm::heap,
    probes::{Kprobe, Kretprobe, KretprobeInstance, PROBES, PreVerdict, PtRegs, register},
};

numbered_targets! { heap_one 201 heap_two 202 heap_three 203 heap_four 204 }

const TARGETS: [&str; 4] = ["heap_one", "heap_two", "heap_three", "heap_four"];

/// Calls all targets, which also keeps them in the image.
fn call_targets() {
    for target in [heap_one, heap_two, heap_three, heap_four] {
        let _ = black_box(target(black_box(1)));
    }
}

fn nothing(_probe: &Kprobe, _regs: &mut PtRegs) -> PreVerdict {
    PreVerdict::Execute
}

fn returned(_call: &mut KretprobeInstance<[u64; 32]>, _regs: &mut PtRegs) {}

/// Rounds of registering need no more memory than the first few, which fill the pools: neither in
/// use nor mapped.
#[guest_test(cmdline = "kprobes.optimize=0")]
fn a_hundred_rounds_of_registering_need_no_more_memory() {
    let mut after_the_first = None;
    for round in 0..100 {
        let (mut kprobes, mut kretprobes) = (Vec::new(), Vec::new());
        for name in TARGETS {
            let kprobe = Kprobe::new().symbol(name).pre(nothing);
            kprobes.push(register(Box::new(kprobe)).unwrap());
            // Instances of a larger block, too.
            let kretprobe = Kretprobe::<[u64; 32]>::new()
                .symbol(name)
                .handler(returned)
                .maxactive(30);
            kretprobes.push(register(Box::new(kretprobe)).unwrap());
        }
        call_targets();
        drop((kprobes, kretprobes));
        PROBES.reap().unwrap();
        let now = heap::usage();
        if round < 5 {
            after_the_first = Some(now);
        } else {
            assert_eq!(Some(now), after_the_first, "after round {round}");
        }
    }
}

/// A vector that grows and shrinks through blocks of all sizes keeps what is in it, and leaves
/// nothing.
#[guest_test]
fn a_vector_keeps_its_bytes_through_all_sizes() {
    let (before, _) = heap::usage();
    let byte = |index: usize| (index * 7 + index / 256) as u8;
    let mut bytes = Vec::new();
    while bytes.len() < 100_000 {
        bytes.push(byte(bytes.len()));
    }
    while bytes.len() > 3 {
        bytes.truncate(bytes.len() * 2 / 3);
        bytes.shrink_to_fit();
        assert!(
            bytes
                .iter()
                .enumerate()
                .all(|(index, found)| *found == byte(index))
        );
    }
    drop(bytes);
    assert_eq!(heap::usage().0, before);
}

/// Blocks lie where their layouts want them, however large the alignment.
#[guest_test]
fn blocks_are_aligned() {
    use alloc::alloc::{alloc, dealloc};
    use core::alloc::Layout;
    for shift in 0..16 {
        for size in [1_usize, 24, 1000, 3000, 9000] {
            let layout = Layout::from_size_align(size, 1 << shift).unwrap();
            // SAFETY: the layouts have sizes, and each block is given back as it was taken.
            unsafe {
                let blocks: [*mut u8; 3] = core::array::from_fn(|_| alloc(layout));
                for block in blocks {
                    assert!(!block.is_null());
                    assert_eq!(block as usize % layout.align(), 0, "{layout:?}");
                    dealloc(block, layout);
                }
            }
        }
    }
}
