//! Programs on probes: verified, compiled, and run by jumps and by breakpoints.
//!
//! Each test builds a program by hand, attaches it to a function of its own, calls that, and reads
//! the program's map or ring. A program that loads from nowhere gets zero and is counted. What the
//! verifier refuses is never attached, and the reason is told.

use crate::platform::suite::flags::AC;
use alloc::vec;
use core::{
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

use bpf::{
    AluOp, Builder, Helper, MapDef, MapIndex, ProgramKind, Reg::*, Size::B8, context::Register,
};
use kernel::{
    mm::{kernel_stack::KernelStack, paging::DEVICES_START},
    probes::{Kprobe, Kretprobe, PreVerdict, PtRegs, register},
    trace::{
        TRACING,
        buffer::Item,
        program::{AttachedCall, AttachedProbe, LoadError, Program},
    },
};
use x86_64::registers::rflags;

/// A function with arguments and a result.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn traced_target(a: u64, b: u64) -> u64 {
    black_box(a) * 3 + b
}

/// A program on `traced_target`.
fn attach(build: impl FnOnce(&mut Builder) -> MapIndex) -> (AttachedProbe, MapIndex) {
    let mut b = Builder::new(ProgramKind::Probe);
    let map = build(&mut b);
    b.exit(0);
    let program = Program::load(b.finish().unwrap()).unwrap();
    let probe = Kprobe::new().symbol("traced_target");
    (AttachedProbe::new(program, probe).unwrap(), map)
}

#[guest_test]
fn a_program_counts_each_hit() {
    let (probe, calls) = attach(|b| {
        let calls = b.map(MapDef::counters("calls", 1));
        b.add(calls, 0, 1);
        calls
    });
    for n in 0..100 {
        assert_eq!(traced_target(n, 1), 3 * n + 1);
    }
    assert_eq!(probe.program().counter(calls, 0), 100);
}

#[guest_test]
fn a_program_beside_a_handler_counts_too() {
    let (probe, calls) = attach(|b| {
        let calls = b.map(MapDef::counters("calls", 1));
        b.add(calls, 0, 1);
        calls
    });
    let other = register(alloc::boxed::Box::new(
        Kprobe::new()
            .symbol("traced_target")
            .pre(|_, _| PreVerdict::Execute),
    ))
    .unwrap();
    for n in 0..10 {
        assert_eq!(traced_target(n, 1), 3 * n + 1);
    }
    assert_eq!(other.hits(), 10);
    drop(other);
    assert_eq!(traced_target(1, 1), 4);
    assert_eq!(probe.program().counter(calls, 0), 11);
}

#[guest_test]
fn a_program_sees_the_registers_and_its_address() {
    let (probe, seen) = attach(|b| {
        let seen = b.map(MapDef::counters("seen", 4));
        for (index, register) in [Register::Di, Register::Si, Register::Ip]
            .into_iter()
            .enumerate()
        {
            b.mov(R6, R1);
            b.load_register(R3, register)
                .load_map(R1, seen)
                .mov(R2, index as i32)
                .call(Helper::Add)
                .mov(R1, R6);
        }
        b.call(Helper::FuncIp)
            .mov(R3, R0)
            .load_map(R1, seen)
            .mov(R2, 3)
            .call(Helper::Add);
        seen
    });
    traced_target(0x1234_5678_9abc, 77);
    let program = probe.program();
    let address = probe.kprobe().addr();
    assert_eq!(program.counter(seen, 0), 0x1234_5678_9abc);
    assert_eq!(program.counter(seen, 1), 77);
    assert_eq!(program.counter(seen, 2), address);
    assert_eq!(program.counter(seen, 3), address);
}

#[guest_test]
fn a_load_of_nothing_gives_zero_and_is_counted() {
    let (probe, sums) = attach(|b| {
        let sums = b.map(MapDef::counters("sums", 2));
        b.load_register(R6, Register::Di)
            .load(R3, R6, 16, B8)
            .load_map(R1, sums)
            .mov(R2, 0)
            .call(Helper::Add)
            .add(sums, 1, 1);
        sums
    });
    let words = [7_u64; 4];
    traced_target(words.as_ptr() as u64, 0);
    assert_eq!(probe.program().counter(sums, 0), 7);
    let before = TRACING.bad_loads();
    // Registers of a device; not mapped; not canonical; the user's half; the first page.
    for address in [
        DEVICES_START,
        0xffff_fff0_0000_0000_u64,
        0x8765_4321_0000_0000,
        0x7fff_0000_0000,
        0,
    ] {
        traced_target(address, 0);
    }
    assert_eq!(TRACING.bad_loads() - before, 5);
    assert_eq!(probe.program().counter(sums, 0), 7);
    assert_eq!(probe.program().counter(sums, 1), 6);
}

/// A buffer is often a key, so no byte of it may be left as it was. After it nothing changes.
#[guest_test]
fn a_read_that_fails_fills_its_buffer_with_zeros() {
    const SIZE: i32 = 19;
    for read in [
        Helper::ReadKernel,
        Helper::ReadUser,
        Helper::ReadKernelStr,
        Helper::ReadUserStr,
    ] {
        let (probe, words) = attach(|b| {
            let words = b.map(MapDef::counters("words", 3));
            b.load_register(R6, Register::Di);
            b.set(R7, -1);
            for place in [-24, -16, -8] {
                b.store(R10, place, B8, R7);
            }
            b.mov(R1, R10)
                .alu(AluOp::Add, R1, -24)
                .mov(R2, SIZE)
                .mov(R3, R6)
                .call(read);
            for (index, place) in [-24, -16, -8].into_iter().enumerate() {
                b.load(R3, R10, place, B8)
                    .load_map(R1, words)
                    .mov(R2, index as i32)
                    .call(Helper::Add);
            }
            words
        });
        // Not mapped, in either half.
        let address = match read {
            Helper::ReadKernel | Helper::ReadKernelStr => 0xffff_fff0_0000_0000,
            _ => 0x7fff_0000_0000,
        };
        traced_target(address, 0);
        let found = [0, 1, 2].map(|index| probe.program().counter(words, index));
        assert_eq!(found, [0, 0, u64::MAX << 24], "{read:?}: {found:x?}");
    }
}

/// A text that does not fit is shortened, and what lies after it need not be there.
#[guest_test]
fn a_text_is_read_as_far_as_it_fits() {
    const PLACES: [i16; 3] = [-24, -16, -8];
    let stack = KernelStack::new().unwrap();
    let end = stack.range().end as usize;
    for size in [1, 2, 7, 8, 9, 15, 16, 17, 19, 24] {
        let (probe, words) = attach(|b| {
            let words = b.map(MapDef::counters("words", 4));
            b.load_register(R6, Register::Di).set(R7, -1);
            for place in PLACES {
                b.store(R10, place, B8, R7);
            }
            b.mov(R1, R10)
                .alu(AluOp::Add, R1, -24)
                .mov(R2, size)
                .mov(R3, R6)
                .call(Helper::ReadKernelStr)
                .mov(R3, R0)
                .load_map(R1, words)
                .mov(R2, 3)
                .call(Helper::Add);
            for (index, place) in PLACES.into_iter().enumerate() {
                b.load(R3, R10, place, B8)
                    .load_map(R1, words)
                    .mov(R2, index as i32)
                    .call(Helper::Add);
            }
            words
        });
        let values = || [0, 1, 2, 3].map(|index| probe.program().counter(words, index));
        let size = size as usize;
        for len in 0..30 {
            // The text without a NUL ends with the page, or a NUL does.
            for text in [vec![b'a'; len], [vec![b'b'; len], vec![0]].concat()] {
                let start = core::ptr::with_exposed_provenance_mut::<u8>(end - text.len());
                // SAFETY: nothing runs on the stack, which is ours.
                unsafe { start.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
                let before = values();
                traced_target(start.addr() as u64, 0);
                let after = values();
                let seen = [0, 1, 2, 3].map(|at| after[at].wrapping_sub(before[at]));
                let mut expected = [0xff; 24];
                expected[..size].fill(0);
                let result = match text.iter().take(size - 1).position(|byte| *byte == 0) {
                    Some(nul) => nul as i64 + 1,
                    None if text.len() >= size - 1 => size as i64,
                    None => bpf::errno::EFAULT,
                };
                if let Ok(copied @ 1..) = usize::try_from(result) {
                    expected[..copied - 1].copy_from_slice(&text[..copied - 1]);
                }
                let (expected, _) = expected.as_chunks();
                let [low, middle, high] = [0, 1, 2].map(|at| u64::from_le_bytes(expected[at]));
                let text = str::from_utf8(&text).unwrap();
                assert_eq!(seen, [low, middle, high, result as u64], "{size}: {text:?}");
            }
        }
    }
}

/// A read of a program's memory permits that for as long as it takes, also if it fails. Handlers
/// of the same hit show it: one of them runs after the action.
#[guest_test]
fn a_read_of_user_memory_permits_no_further_one() {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    static PERMITTED: AtomicU64 = AtomicU64::new(0);
    fn look(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        RUNS.fetch_add(1, SeqCst);
        PERMITTED.fetch_add(u64::from(rflags::read_raw() & AC != 0), SeqCst);
        PreVerdict::Execute
    }
    let handler = || {
        let probe = Kprobe::new().symbol("traced_target").pre(look);
        register(alloc::boxed::Box::new(probe)).unwrap()
    };
    RUNS.store(0, SeqCst);
    PERMITTED.store(0, SeqCst);
    for read in [Helper::ReadUser, Helper::ReadUserStr, Helper::UserStrLen] {
        let first = handler();
        let program = attach(|b| {
            let lengths = b.map(MapDef::counters("lengths", 1));
            b.load_register(R6, Register::Di);
            match read {
                Helper::UserStrLen => b.mov(R1, R6).mov(R2, 8),
                _ => b
                    .mov(R1, R10)
                    .alu(AluOp::Add, R1, -8)
                    .mov(R2, 8)
                    .mov(R3, R6),
            }
            .call(read)
            .add(lengths, 0, 1);
            lengths
        });
        let last = handler();
        traced_target(0x7fff_0000_0000, 0);
        assert_eq!(program.0.program().counter(program.1, 0), 1);
        drop((first, program, last));
    }
    assert_eq!((RUNS.load(SeqCst), PERMITTED.load(SeqCst)), (6, 0));
}

#[guest_test]
fn hits_are_counted_by_key() {
    let (probe, calls) = attach(|b| {
        let calls = b.map(MapDef::counters_by_key("calls", 8, 64));
        b.load_register(R2, Register::Di)
            .store(R10, -8, B8, R2)
            .add_by_key(calls, -8, 1);
        calls
    });
    for n in 0..30 {
        traced_target(n % 3, 1);
    }
    for key in 0_u64..3 {
        assert_eq!(
            probe.program().sum_of_key(calls, &key.to_le_bytes()),
            10,
            "key {key}"
        );
    }
    assert_eq!(probe.program().sum_of_key(calls, &3_u64.to_le_bytes()), 0);
}

#[guest_test]
fn records_come_out_as_they_were_written() {
    let (probe, _) = attach(|b| {
        let ring = b.map(MapDef::ring("records"));
        let full = b.label();
        b.load_register(R6, Register::Di)
            .load_register(R7, Register::Si)
            .reserve(ring, 16, full)
            .store(R0, 0, B8, R6)
            .store(R0, 8, B8, R7)
            .submit(R0)
            .place(full);
        ring
    });
    TRACING.buffer.clear(None);
    for n in 0..50 {
        traced_target(n, n + 1);
    }
    drop(probe);
    let mut last = 0;
    for n in 0_u64..50 {
        let is_there = TRACING.buffer.consume(None, |item| match item {
            Item::Record { tsc, bytes, .. } => {
                assert!(tsc >= last);
                last = tsc;
                assert_eq!(bytes, [n.to_le_bytes(), (n + 1).to_le_bytes()].concat());
            }
            Item::Lost { count, .. } => panic!("{count} records lost"),
        });
        assert_eq!(is_there, Ok(true), "record {n}");
    }
    assert_eq!(TRACING.buffer.consume(None, |_| {}), Ok(false));
}

#[guest_test]
fn entry_and_return_of_a_call_share_data() {
    let mut entry = Builder::new(ProgramKind::Entry { data: 16 });
    entry.map(MapDef::counters("sums", 2));
    entry
        .load_register(R6, Register::Di)
        .call(Helper::EntryData)
        .store(R0, 8, B8, R6)
        .exit(0);
    let mut on_return = Builder::new(ProgramKind::Return { data: 16 });
    let sums = on_return.map(MapDef::counters("sums", 2));
    on_return
        .load_register(R6, Register::Ax)
        .call(Helper::EntryData)
        .load(R3, R0, 8, B8)
        .load_map(R1, sums)
        .mov(R2, 0)
        .call(Helper::Add)
        .mov(R3, R6)
        .load_map(R1, sums)
        .mov(R2, 1)
        .call(Helper::Add)
        .exit(0);
    let on_return = Program::load(on_return.finish().unwrap()).unwrap();
    let entry = Program::load_beside(entry.finish().unwrap(), &on_return).unwrap();
    let probe = Kretprobe::new().symbol("traced_target");
    let call = AttachedCall::new(Some(entry), on_return, probe).unwrap();
    for n in 1..=10 {
        traced_target(n, 0);
    }
    assert_eq!(call.kretprobe().hits(), 10);
    assert_eq!(call.program().counter(sums, 0), 55);
    assert_eq!(call.program().counter(sums, 1), 165);
}

#[guest_test]
fn a_program_that_is_refused_says_why() {
    let mut b = Builder::new(ProgramKind::Probe);
    // A store to kernel memory.
    b.load_register(R2, Register::Di)
        .store(R2, 0, B8, 1)
        .exit(0);
    let refused = Program::load(b.finish().unwrap());
    let Err(LoadError::Refused(refusal)) = refused else {
        panic!("taken");
    };
    assert!(
        alloc::format!("{refusal}").starts_with("insn 1, `*(u64 *)(r2 + 0) = 1`: expected "),
        "{refusal}"
    );

    let mut b = Builder::new(ProgramKind::Return { data: 0 });
    b.exit(0);
    let program = Program::load(b.finish().unwrap()).unwrap();
    let wrong = AttachedProbe::new(program, Kprobe::new().symbol("traced_target"));
    assert!(matches!(
        wrong,
        Err(LoadError::Kind(ProgramKind::Return { data: 0 }))
    ));
}

#[guest_test]
fn values_are_stored_in_arrays_and_hashes() {
    use bpf::MapKind::{Array, PerCpuHash};
    let def = |kind, value_size| MapDef {
        name: "values".into(),
        kind,
        key_size: 4,
        value_size,
        entries: 4,
    };
    for (kind, value_size) in [(Array, 8), (PerCpuHash, 8)] {
        let (probe, values) = attach(|b| {
            let values = b.map(def(kind, value_size));
            let results = b.map(MapDef::counters("results", 2));
            // values[di] = si, and the result is summed up by its sign.
            b.load_register(R6, Register::Di)
                .load_register(R7, Register::Si)
                .store(R10, -16, B8, R7)
                .store(R10, -8, B8, 0)
                .store(R10, -8, bpf::Size::B4, R6)
                .load_map(R1, values)
                .mov(R2, R10)
                .alu(AluOp::Add, R2, -8)
                .mov(R3, R10)
                .alu(AluOp::Add, R3, -16)
                .mov(R4, 0)
                .call(Helper::MapUpdate)
                .mov(R6, R0)
                .alu(AluOp::ShiftRight, R6, 63)
                .load_map(R1, results)
                .mov(R2, R6)
                .mov(R3, 1)
                .call(Helper::Add);
            values
        });
        for index in 0..4 {
            traced_target(index, 100 + index);
        }
        let program = probe.program();
        for index in 0_u32..4 {
            let value = match kind {
                Array => program.counter(values, index as usize),
                _ => program.sum_of_key(values, &index.to_le_bytes()),
            };
            assert_eq!(value, 100 + u64::from(index), "{kind:?} {index}");
        }
        let failed = || program.counter(MapIndex(values.0 + 1), 1);
        assert_eq!(failed(), 0);
        if kind == Array {
            // No such index: refused, and nothing else has changed.
            traced_target(4, 1);
            assert_eq!(failed(), 1);
            assert_eq!(program.counter(values, 3), 103);
        }
    }
}

#[guest_test]
fn a_text_fills_its_buffer_with_zeros() {
    use bpf::MapKind::PerCpuHash;
    let (probe, calls) = attach(|b| {
        let calls = b.map(MapDef {
            name: "texts".into(),
            kind: PerCpuHash,
            key_size: 16,
            value_size: 8,
            entries: 16,
        });
        // Something older on the stack.
        b.load_register(R6, Register::Di)
            .set(R7, -1)
            .store(R10, -16, B8, R7)
            .store(R10, -8, B8, R7)
            .mov(R1, R10)
            .alu(AluOp::Add, R1, -16)
            .mov(R2, 16)
            .mov(R3, R6)
            .call(Helper::ReadKernelStr)
            .add_by_key(calls, -16, 1);
        calls
    });
    traced_target(c"short".as_ptr() as u64, 0);
    traced_target(c"longer than sixteen bytes".as_ptr() as u64, 0);
    traced_target(0xffff_fff0_0000_0000, 0);
    let program = probe.program();
    let count = |text: &[u8]| {
        let mut key = [0; 16];
        key[..text.len()].copy_from_slice(text);
        program.sum_of_key(calls, &key)
    };
    assert_eq!(count(b"short"), 1);
    assert_eq!(count(b"longer than six"), 1);
    assert_eq!(count(b""), 1);
}
