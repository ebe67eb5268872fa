//! Without memory the verifier and the compiler give an error, whichever allocation fails, and keep
//! nothing.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    ptr::null_mut,
};

use bpf::{
    Program,
    verifier::{Cause, verify},
};
use bpf_cases::Case;
use bpf_compiler::{Array, Calls, CompileError, Form, Machine, MapRuntime, PerCpu, compile};

thread_local! {
    /// How many more allocations of this thread succeed; None: all.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    /// Blocks of this thread that are not freed.
    static BLOCKS: Cell<isize> = const { Cell::new(0) };
}

struct Failing;

// SAFETY: the system's allocator, or null, which says that there is no memory.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match LEFT.get() {
            Some(0) => return null_mut(),
            left => LEFT.set(left.map(|left| left - 1)),
        }
        BLOCKS.set(BLOCKS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        BLOCKS.set(BLOCKS.get() - 1);
        // SAFETY: the block is the system's.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

fn maps(program: &Program) -> Vec<MapRuntime> {
    let map = |def: &bpf::MapDef| {
        MapRuntime::Array(Array {
            handle: 1 << 40,
            base: 1 << 41,
            cpu: PerCpu::Shift(12),
            stride: def.value_size,
            entries: def.entries,
        })
    };
    program.maps.iter().map(map).collect()
}

#[test]
fn each_allocation_may_fail() {
    let mut failures = 0;
    for seed in 0..200 {
        let Ok(verified) = verify(Case::of(seed).program) else {
            continue;
        };
        let maps = maps(verified.program());
        let machine = Machine {
            cpu_number: 0,
            preempt_count: 4,
            running: 16,
            marks_of_running: 3,
            address_in_probe: 24,
            faults: 8,
            pid_tgid: None,
            clears_ac: true,
            calls: Calls::Near,
            not_recording: Some(12),
            records_off: Some(16),
            helper: &|_| 1 << 42,
            routine: &|_, _| None,
        };
        for number in 0.. {
            let before = BLOCKS.get();
            LEFT.set(Some(number));
            let code = compile(&verified, Form::Handler, &maps, &machine);
            LEFT.set(None);
            match code {
                Ok(_) => break,
                Err(error) => assert_eq!(error, CompileError::OutOfMemory, "seed {seed}"),
            }
            assert_eq!(BLOCKS.get(), before, "seed {seed}: all is given back");
            failures += 1;
        }
    }
    assert!(failures > 1_000, "{failures} failures");
}

#[test]
fn each_allocation_of_the_verifier_may_fail() {
    let mut failures = 0;
    for seed in 0..50 {
        let program = Case::of(seed).program;
        let expected = verify(program.clone()).err();
        for number in 0.. {
            let before = BLOCKS.get();
            let given = program.clone();
            LEFT.set(Some(number));
            let found = verify(given).err();
            LEFT.set(None);
            assert_eq!(BLOCKS.get(), before, "seed {seed}: all is given back");
            let is_out_of_memory = found
                .as_ref()
                .is_some_and(|refusal| refusal.cause == Cause::OutOfMemory);
            if !is_out_of_memory {
                assert_eq!(found, expected, "seed {seed}");
                break;
            }
            failures += 1;
        }
    }
    assert!(failures > 500, "{failures} failures");
}
