//! The kernel's heap: what it gives out, and that what comes back is enough for the next time.
//!
//! What is freed goes together again: rounds of the same work need the memory of the first round
//! and no more, and frames that the heap has no use for go back to programs, also while other CPUs
//! take blocks.

use crate::tools::numbered_targets::numbered_targets;
use abi::WaitStatus;
use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::{
    hint::black_box,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};
use kernel::{
    errno::Errno,
    mm::{
        Usage,
        heap::{self, CHUNK},
    },
    probes::{Kprobe, Kretprobe, KretprobeInstance, PROBES, PreVerdict, PtRegs, register},
    task::{
        self, WaitQueue,
        exec::run_program,
        kthread::{spawn_kthread, spawn_kthread_on},
    },
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
    // The memory of a task that has ended before may go meanwhile.
    assert!(heap::usage().0 <= before);
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

/// Takes blocks of a chunk each until memory is out.
fn take_all() -> Vec<Vec<u8>> {
    let mut blocks = Vec::with_capacity(4096);
    loop {
        let mut block = Vec::new();
        if block.try_reserve_exact(CHUNK).is_err() {
            return blocks;
        }
        assert!(blocks.len() < blocks.capacity(), "no memory is so large");
        blocks.push(block);
    }
}

/// A user of the heap that was greedy once leaves no kernel in which no program can run. Memory
/// that goes to programs comes back to the heap when it is free.
#[guest_test(timeout = 120)]
fn frames_that_the_heap_does_not_use_go_to_programs() {
    let run = || run_program("/bin/exercise", &["rounds", "1"]);
    // The first run leaves a stack or two, and what the kernel makes once.
    assert_eq!(run(), Ok(WaitStatus::exited(0)));
    let first = take_all();
    assert!(first.len() > 100, "{} MiB", first.len());
    assert_eq!(run(), Err(Errno::ENOMEM));
    let taken = first.len();
    drop(first);
    let full = Usage::now();
    assert_eq!(run(), Ok(WaitStatus::exited(0)));
    assert!(Usage::now().heap_mapped < full.heap_mapped, "{full}");

    // Stacks find room, too, although none has asked for the programs' share. The threads hold
    // more than the heap leaves to others at its largest.
    drop(take_all());
    let go = Arc::new((WaitQueue::new(), AtomicBool::new(false)));
    let threads: Vec<_> = (0..200)
        .map(|_| {
            let go = go.clone();
            spawn_kthread("waits", move || go.0.wait_until(|| go.1.load(SeqCst)))
                .expect("memory for a thread")
        })
        .collect();
    go.1.store(true, SeqCst);
    go.0.wake_all();
    threads.iter().for_each(|thread| thread.wait_released());

    let again = take_all();
    // The stacks keep their frames.
    assert!(
        again.len() + 8 >= taken,
        "{taken} MiB, then {}",
        again.len()
    );
    drop(again);
    while heap::give_back() {}
    let empty = Usage::now();
    // Blocks that are in use keep their chunks.
    assert!(
        empty.heap_mapped + taken / 2 * CHUNK < full.heap_mapped,
        "{empty}"
    );
    assert_eq!(run(), Ok(WaitStatus::exited(0)));
}

/// Chunks go while another CPU takes and gives large blocks: no block is in a page without a frame,
/// or in one that somebody else has, too.
#[guest_test]
fn chunks_go_while_others_take_blocks() {
    const ROUNDS: usize = 300;
    let stop = Arc::new(AtomicBool::new(false));
    let stops = stop.clone();
    let mut given = 0;
    task::current().set_allowed_cpus(1);
    let giver = spawn_kthread_on(1 << 1, "giver", move || {
        let mut mine = Vec::new();
        for round in 0_u64.. {
            if stops.load(SeqCst) {
                break;
            }
            // Sizes from less than a chunk to several, some of which stay for a while.
            let words = [CHUNK / 3, CHUNK, 2 * CHUNK + 4096, 5 * CHUNK][round as usize % 4] / 8;
            let mut block: Vec<u64> = Vec::with_capacity(words);
            block.extend((0..words as u64).map(|word| word ^ round << 32));
            mine.push((round, block));
            if mine.len() > 3 {
                let (round, block) = mine.swap_remove(round as usize % 3);
                let is_as_written =
                    |(word, found): (usize, &u64)| *found == word as u64 ^ round << 32;
                assert!(block.iter().enumerate().all(is_as_written), "{round}");
            }
        }
    })
    .expect("memory for a thread");
    while given < ROUNDS {
        given += usize::from(heap::give_back());
        // One of this CPU's own, so that chunks come back from both sides.
        let block: Vec<u8> = Vec::with_capacity(CHUNK + given);
        black_box(block.as_ptr());
    }
    stop.store(true, SeqCst);
    giver.wait_released();
    task::current().set_allowed_cpus(u64::MAX);
}
