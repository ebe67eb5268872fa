//! Backtraces: the caller is right from every instruction, in every handler, and through borrowed return addresses.

use crate::guest_test;
use alloc::{boxed::Box, format, string::String, vec::Vec};
use core::{
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};
use kernel::{
    backtrace,
    probes::{Kprobe, Kretprobe, KretprobeInstance, PreVerdict, ProbeError, PtRegs, register},
    symbols,
    sync::SpinLock,
};

/// Starts of the functions that the last walk met, innermost first; 0 behind the last.
static CHAIN: SpinLock<[u64; 8]> = SpinLock::new([0; 8]);

fn note(walk: backtrace::Walk) {
    let mut chain = CHAIN.lock();
    *chain = [0; 8];
    for (place, frame) in chain.iter_mut().zip(walk) {
        *place = symbols::lookup_addr(frame.code_address()).map_or(1, |symbol| symbol.start);
    }
}

/// The names of the noted functions.
fn chain(count: usize) -> Vec<String> {
    CHAIN.lock()[..count]
        .iter()
        .map(|start| {
            symbols::lookup_addr(*start)
                .map_or_else(|| format!("{start:#x}"), |symbol| format!("{symbol}"))
        })
        .collect()
}

macro_rules! targets {
    ($($name:ident($($argument:ident),*) $body:block)+) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $name($($argument: u64),*) -> u64 { $body }
        )+
    };
}

targets! {
    trace_leaf(a) { a * 3 + 1 }
    trace_frame(a, b, c) {
        let mut words = [a; 40];
        black_box(&mut words)[black_box(b) as usize % 40] = c;
        words.iter().fold(0, |sum, word| sum ^ black_box(*word))
    }
    trace_early_out(a, b) {
        if a < 10 {
            return b;
        }
        let text = black_box(format!("{a} {b}"));
        text.len() as u64
    }
    trace_caller(which) {
        let n = match which {
            0 => trace_leaf(black_box(4)),
            1 => trace_frame(black_box(1), black_box(2), black_box(3)),
            2 => trace_early_out(black_box(3), black_box(5)),
            _ => trace_early_out(black_box(30), black_box(5)),
        };
        black_box(n + 1)
    }
    trace_inner(a) { black_box(a + 1) }
    trace_middle(a) { black_box(trace_inner(black_box(a)) + 1) }
    trace_outer(a) { black_box(trace_middle(black_box(a)) + 1) }
}

static WRONG: AtomicU64 = AtomicU64::new(0);
static SEEN: AtomicU64 = AtomicU64::new(0);

/// Whether the registers of a handler lead to `trace_caller` right above the probed function.
fn check(regs: &PtRegs) {
    let mut walk = backtrace::walk(regs);
    walk.next();
    let caller = walk
        .next()
        .and_then(|frame| symbols::lookup_addr(frame.code_address()));
    SEEN.fetch_add(1, Relaxed);
    if caller.is_none_or(|symbol| symbol.name != "trace_caller") {
        WRONG.fetch_add(1, Relaxed);
    }
}

fn check_before(_probe: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    check(regs);
    PreVerdict::Execute
}

fn check_after(probe: &Kprobe, regs: &mut PtRegs, _flags: u64) {
    // After a return or a call the ip is in another function.
    let own = symbols::lookup_addr(probe.addr()).map(|symbol| symbol.start);
    if symbols::lookup_addr(regs.ip).map(|symbol| symbol.start) == own {
        check(regs);
    }
}

guest_test! {
    /// From a handler on each instruction of a function, before and after it, the caller is found.
    fn the_caller_is_right_from_every_instruction() {
        for (name, which) in [("trace_leaf", 0), ("trace_frame", 1), ("trace_early_out", 2), ("trace_early_out", 3)] {
            let function = symbols::lookup_name(name).unwrap();
            let mut probed = 0;
            for offset in 0..function.size as u32 {
                let probe = Kprobe::new().symbol(name).offset(offset).pre(check_before).post(check_after);
                let probe = match register(Box::new(probe)) {
                    Ok(probe) => probe,
                    Err(ProbeError::MidInstruction { .. }) => continue,
                    Err(ProbeError::Instruction { .. }) => continue,
                    Err(error) => panic!("{name}+{offset:#x}: {error}"),
                };
                SEEN.store(0, Relaxed);
                WRONG.store(0, Relaxed);
                trace_caller(black_box(which));
                drop(probe);
                assert_eq!(WRONG.load(Relaxed), 0, "{name}+{offset:#x} of {:#x}", function.size);
                probed += u64::from(SEEN.load(Relaxed) > 0);
            }
            assert!(probed >= 3, "{name}: {probed} instructions seen");
        }
    }
}

fn note_before(_probe: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    note(backtrace::walk(regs));
    PreVerdict::Execute
}

fn note_return(_call: &mut KretprobeInstance<u64>, regs: &mut PtRegs) {
    note(backtrace::walk(regs));
}

fn note_own(_call: &mut KretprobeInstance<u64>, _regs: &mut PtRegs) {
    note(backtrace::walk_current());
}

guest_test! {
    /// Return addresses that return probes have borrowed show as what they are.
    fn borrowed_return_addresses_show_the_true_callers() {
        let returns = ["trace_inner", "trace_middle", "trace_outer"]
            .map(|name| register(Box::new(Kretprobe::<u64>::new().symbol(name))).unwrap());
        let probe = register(Box::new(Kprobe::new().symbol("trace_inner").pre(note_before))).unwrap();
        assert_eq!(trace_outer(black_box(1)), 4);
        assert_eq!(chain(3), ["trace_inner", "trace_middle", "trace_outer"]);
        drop((probe, returns));
    }
}

guest_test! {
    /// In a return handler the trace starts with the caller, whose call has just come back.
    fn a_return_handler_sees_its_true_callers() {
        let outer = register(Box::new(Kretprobe::<u64>::new().symbol("trace_middle"))).unwrap();
        let inner = register(Box::new(Kretprobe::<u64>::new().symbol("trace_inner").handler(note_return))).unwrap();
        assert_eq!(trace_outer(black_box(1)), 4);
        assert_eq!(chain(2), ["trace_middle", "trace_outer"]);
        drop(inner);
        let inner = register(Box::new(Kretprobe::<u64>::new().symbol("trace_inner").handler(note_own))).unwrap();
        assert_eq!(trace_outer(black_box(1)), 4);
        let all = chain(8).join(" ");
        assert!(all.contains("kretprobe_trampoline trace_middle trace_outer"), "{all}");
        drop((inner, outer));
    }
}

guest_test! {
    /// A handler's own backtrace goes through the trap to the probed code.
    fn a_handler_finds_its_way_down_through_the_trap() {
        fn note_through_trap(_probe: &Kprobe, _regs: &mut PtRegs) -> PreVerdict {
            note(backtrace::walk_current());
            PreVerdict::Execute
        }
        let probe = register(Box::new(Kprobe::new().symbol("trace_inner").pre(note_through_trap))).unwrap();
        assert_eq!(trace_outer(black_box(1)), 4);
        drop(probe);
        let all = chain(8).join(" ");
        assert!(all.contains("trace_inner trace_middle trace_outer"), "{all}");
    }
}
