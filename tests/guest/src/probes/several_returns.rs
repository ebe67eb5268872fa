//! Several return probes on one function: each is told of each call, by breakpoint and by jump,
//! whatever the others are.
//!
//! Each probe notes a digit of its own at entry and return, so the sequence shows who was told and
//! when: entries newest first, returns oldest first. Depth, missing instances, disabling, declining
//! and calls that never return are combined with two and three probes.

use crate::tools::jumps::Optimization;
use alloc::{boxed::Box, vec, vec::Vec};
use core::{
    hint::black_box,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};
use kernel::{
    backtrace,
    probes::{
        EntryVerdict, Kprobe, Kretprobe, KretprobeInstance, PROBES, PreVerdict, PtRegs, Registered,
        register,
    },
    symbols,
    sync::SpinLock,
    task::{self, kthread::spawn_kthread, wait_queue::WaitQueue},
};

/// The notes of the handlers: the number of the probe, and 10 and more for returns. Recursion makes
/// the calls of a round.
static SEEN: SpinLock<([u64; 64], usize)> = SpinLock::new(([0; 64], 0));

fn see(what: u64) {
    let mut seen = SEEN.lock();
    let at = seen.1;
    seen.0[at] = what;
    seen.1 += 1;
}

fn seen() -> Vec<u64> {
    let mut seen = SEEN.lock();
    let list = seen.0[..seen.1].to_vec();
    seen.1 = 0;
    list
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn thrice_probed(depth: u64) -> u64 {
    if depth == 0 {
        black_box(500)
    } else {
        black_box(depth) + thrice_probed(black_box(depth - 1))
    }
}

/// Notes its number, and keeps what the call was made with.
fn enter<const N: u64>(call: &mut KretprobeInstance<u64>, regs: &mut PtRegs) -> EntryVerdict {
    **call = regs.di * 100 + N;
    see(N);
    EntryVerdict::Track
}

fn decline(_: &mut KretprobeInstance<u64>, _: &mut PtRegs) -> EntryVerdict {
    EntryVerdict::Decline
}

/// Notes its number, that of the call if an entry handler has kept it, and what went wrong as 99.
fn leave<const N: u64>(call: &mut KretprobeInstance<u64>, regs: &mut PtRegs) {
    let caller = symbols::lookup_addr(call.ret_addr()).map_or("", |symbol| symbol.name);
    let result_fits = regs.return_value() >= 500 && regs.ip == call.ret_addr();
    // The handler's own callers: past the trampoline they go on with that of the function.
    let found = backtrace::walk_current().any(|frame| {
        symbols::lookup_addr(frame.code_address()).is_some_and(|symbol| symbol.name == caller)
    });
    see(if result_fits && found { N + 10 } else { 99 });
    if **call != 0 && **call % 100 != N {
        see(98);
    }
}

fn plain<const N: u64>() -> Kretprobe<u64> {
    Kretprobe::new()
        .symbol("thrice_probed")
        .handler(leave::<N>)
        .maxactive(8)
}

fn with_entry<const N: u64>() -> Kretprobe<u64> {
    plain::<N>().entry(enter::<N>)
}

type Handle = Registered<Box<Kretprobe<u64>>>;

fn registered(probe: Kretprobe<u64>) -> Handle {
    register(Box::new(probe)).unwrap()
}

/// Three probes, the first ones with or without entry handlers, as the bits of `entries` say.
fn three(entries: u64) -> [Handle; 3] {
    [
        if entries & 1 != 0 {
            with_entry::<1>()
        } else {
            plain::<1>()
        },
        if entries & 2 != 0 {
            with_entry::<2>()
        } else {
            plain::<2>()
        },
        if entries & 4 != 0 {
            with_entry::<3>()
        } else {
            plain::<3>()
        },
    ]
    .map(registered)
}

/// The notes of a call `depth` deep with the probes in `probes`, oldest first; those in
/// `entries` have entry handlers.
fn expected(depth: u64, probes: &[u64], entries: u64) -> Vec<u64> {
    let newest_first = probes.iter().rev().copied();
    let entered: Vec<_> = newest_first
        .filter(|n| entries >> (n - 1) & 1 != 0)
        .collect();
    let returned: Vec<_> = probes.iter().map(|n| n + 10).collect();
    let rounds = depth as usize + 1;
    [entered.repeat(rounds), returned.repeat(rounds)].concat()
}

/// Entries newest first, returns oldest first, with data of their own, at any depth.
#[guest_test]
fn two_or_three_return_probes_are_told_of_each_call() {
    for optimize in [false, true] {
        let _knob = Optimization::set(optimize);
        for entries in 0..8 {
            for depth in [0, 3] {
                let probes = three(entries);
                seen();
                assert_eq!(
                    thrice_probed(black_box(depth)),
                    500 + (1..=depth).sum::<u64>()
                );
                assert_eq!(
                    seen(),
                    expected(depth, &[1, 2, 3], entries),
                    "{optimize} {entries:#b}"
                );
                for probe in &probes {
                    assert_eq!((probe.hits(), probe.nmissed()), (depth + 1, 0));
                }
                let [first, second, third] = probes;
                // Two of three, the oldest, the newest or the one between them gone.
                let (gone, left) = match entries % 3 {
                    0 => (first, [(second, 2), (third, 3)]),
                    1 => (second, [(first, 1), (third, 3)]),
                    _ => (third, [(first, 1), (second, 2)]),
                };
                drop(gone);
                thrice_probed(black_box(depth));
                let numbers = left.each_ref().map(|(_, number)| *number);
                assert_eq!(
                    seen(),
                    expected(depth, &numbers, entries),
                    "{optimize} {entries:#b}"
                );
                drop(left);
            }
        }
        assert_eq!(PROBES.reap().unwrap(), 0);
    }
}

/// One of three that is disabled, declines or has no instance left out changes nothing for the
/// others.
#[guest_test]
fn a_return_probe_that_takes_no_part_leaves_the_others_alone() {
    for optimize in [false, true] {
        let _knob = Optimization::set(optimize);
        for entries in [0, 7] {
            for which in 0..3 {
                let probes = three(entries);
                seen();
                PROBES.disable(&*probes[which]).unwrap();
                thrice_probed(black_box(2));
                let others: Vec<u64> = (1..=3).filter(|n| *n != which as u64 + 1).collect();
                assert_eq!(
                    seen(),
                    expected(2, &others, entries),
                    "{optimize} {entries:#b} {which}"
                );
                assert_eq!(probes[which].hits(), 0);
                PROBES.enable(&*probes[which]).unwrap();
                thrice_probed(black_box(2));
                assert_eq!(seen(), expected(2, &[1, 2, 3], entries));
            }
        }
        for which in 0..3 {
            let declines = |n| {
                if n == which {
                    plain::<7>().entry(decline)
                } else {
                    plain::<1>()
                }
            };
            let probes = [0, 1, 2].map(|n| registered(declines(n)));
            seen();
            thrice_probed(black_box(1));
            assert_eq!(seen(), [11, 11, 11, 11], "{optimize} {which}");
            assert_eq!(
                probes.each_ref().map(|probe| probe.hits()),
                [0, 1, 2].map(|n| if n == which { 0 } else { 2 })
            );
            drop(probes);
            // With one instance the outermost call alone is followed.
            let scarce = |n| {
                if n == which {
                    plain::<1>().maxactive(1)
                } else {
                    plain::<1>()
                }
            };
            let probes = [0, 1, 2].map(|n| registered(scarce(n)));
            thrice_probed(black_box(3));
            assert_eq!(seen(), [11; 9], "{optimize} {which}");
            for (n, probe) in probes.iter().enumerate() {
                let counts = if n == which { (1, 3) } else { (4, 0) };
                assert_eq!(
                    (probe.hits(), probe.nmissed()),
                    counts,
                    "{optimize} {which}"
                );
            }
        }
        assert_eq!(PROBES.reap().unwrap(), 0);
    }
}

/// One of three is unregistered while the function runs: its part of the return is quiet, the
/// others' is not.
#[guest_test]
fn return_probes_that_stay_are_told_of_calls_that_outlive_another() {
    static GATE: WaitQueue = WaitQueue::new();
    static OPEN: AtomicBool = AtomicBool::new(false);
    static INSIDE: AtomicU64 = AtomicU64::new(0);
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn thrice_waiting(n: u64) -> u64 {
        INSIDE.fetch_add(1, SeqCst);
        GATE.wait_until(|| OPEN.load(SeqCst));
        black_box(n + 500)
    }
    for optimize in [false, true] {
        let _knob = Optimization::set(optimize);
        for which in 0..3 {
            INSIDE.store(0, SeqCst);
            OPEN.store(false, SeqCst);
            let probe = |n: u64| {
                let probe = match n {
                    1 => plain::<1>(),
                    2 => with_entry::<2>(),
                    _ => plain::<3>(),
                };
                Some(registered(probe.symbol("thrice_waiting")))
            };
            let mut probes = [1, 2, 3].map(probe);
            seen();
            let thread =
                spawn_kthread("waits", || assert_eq!(thrice_waiting(black_box(1)), 501)).unwrap();
            while INSIDE.load(SeqCst) == 0 {
                task::schedule();
            }
            probes[which] = None;
            OPEN.store(true, SeqCst);
            GATE.wake_all();
            thread.wait_released();
            let returns = (11..=13).filter(|n| *n != which as u64 + 11);
            let all: Vec<u64> = vec![2].into_iter().chain(returns).collect();
            assert_eq!(seen(), all, "{optimize} {which}");
            for probe in probes.iter().flatten() {
                assert_eq!((probe.hits(), probe.nmissed()), (1, 0));
            }
        }
        assert_eq!(PROBES.reap().unwrap(), 0);
    }
}

/// Several calls of `thrice_probed` never return; what is left of them goes with the next call, and
/// no return is told twice.
#[guest_test]
fn abandoned_calls_with_several_return_probes_are_given_back() {
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn thrice_abandoned(n: u64) -> u64 {
        black_box(n + 500)
    }
    /// Goes back to the caller of the function, as if its frame had been left by a jump.
    fn leaves(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        if regs.di != 7 {
            return PreVerdict::Execute;
        }
        let slot = regs.sp as *const u64;
        // SAFETY: at a function's entry the stack pointer is the address of the return slot.
        let found = unsafe { *slot };
        regs.ip = PROBES.return_address(task::current().key(), regs.sp, found);
        regs.ax = 1;
        regs.sp += 8;
        PreVerdict::Resume
    }
    for optimize in [false, true] {
        let _knob = Optimization::set(optimize);
        // The kprobe is the oldest, so it runs when the calls are in the ledger.
        let kprobe = register(Box::new(
            Kprobe::new().symbol("thrice_abandoned").pre(leaves),
        ))
        .unwrap();
        let probes =
            [plain::<1>(), plain::<2>()].map(|probe| registered(probe.symbol("thrice_abandoned")));
        seen();
        for _ in 0..20 {
            assert_eq!(thrice_abandoned(black_box(7)), 1);
            assert_eq!(seen(), []);
        }
        assert_eq!(thrice_abandoned(black_box(1)), 501);
        assert_eq!(seen(), [11, 12], "{optimize}");
        assert_eq!(
            probes
                .each_ref()
                .map(|probe| (probe.hits(), probe.nmissed())),
            [(1, 0); 2]
        );
        drop((kprobe, probes));
        assert_eq!(PROBES.reap().unwrap(), 0);
    }
}
