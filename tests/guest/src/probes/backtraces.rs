//! Backtraces: the caller is right from every instruction, in every handler, and through borrowed
//! return addresses.
//!
//! Tests of this file stop a task at every instruction of a call chain and compare the walk with
//! the chain: by a probe, by an NMI, in handlers, in slots, detours and trampolines. A return
//! address that a kretprobe has borrowed is shown as the true one.

use crate::{platform::cpu, tools::nmi};
use alloc::{
    boxed::Box,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::{
    hint::{self, black_box},
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};
use kernel::{
    arch::traps,
    backtrace, log,
    probes::{
        Kprobe, Kretprobe, KretprobeInstance, PROBES, PreVerdict, ProbeError, PtRegs, register,
    },
    symbols,
    sync::SpinLock,
    task::{kthread::spawn_kthread_on, sleep::sleep_ns},
};

/// Starts of the functions that the last walk met, innermost first; 0 after the last.
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
    trace_inner(a) { black_box(a + 1001) }
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

/// From a handler on each instruction of a function, before and after it, the caller is found.
#[guest_test]
fn the_caller_is_right_from_every_instruction() {
    for (name, which) in [
        ("trace_leaf", 0),
        ("trace_frame", 1),
        ("trace_early_out", 2),
        ("trace_early_out", 3),
    ] {
        let function = symbols::lookup_name(name).unwrap();
        let mut probed = 0;
        for offset in 0..function.size as u32 {
            let probe = Kprobe::new()
                .symbol(name)
                .offset(offset)
                .pre(check_before)
                .post(check_after);
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
            assert_eq!(
                WRONG.load(Relaxed),
                0,
                "{name}+{offset:#x} of {:#x}",
                function.size
            );
            probed += u64::from(SEEN.load(Relaxed) > 0);
        }
        assert!(probed >= 3, "{name}: {probed} instructions seen");
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

/// Return addresses that return probes have borrowed show as what they are.
#[guest_test]
fn borrowed_return_addresses_show_the_true_callers() {
    let returns = ["trace_inner", "trace_middle", "trace_outer"]
        .map(|name| register(Box::new(Kretprobe::<u64>::new().symbol(name))).unwrap());
    let probe = register(Box::new(
        Kprobe::new().symbol("trace_inner").pre(note_before),
    ))
    .unwrap();
    assert_eq!(trace_outer(black_box(1)), 1004);
    assert_eq!(chain(3), ["trace_inner", "trace_middle", "trace_outer"]);
    drop((probe, returns));
}

/// In a return handler the trace starts with the caller, whose call has just come back.
#[guest_test]
fn a_return_handler_sees_its_true_callers() {
    let outer = register(Box::new(Kretprobe::<u64>::new().symbol("trace_middle"))).unwrap();
    let inner = register(Box::new(
        Kretprobe::<u64>::new()
            .symbol("trace_inner")
            .handler(note_return),
    ))
    .unwrap();
    assert_eq!(trace_outer(black_box(1)), 1004);
    assert_eq!(chain(2), ["trace_middle", "trace_outer"]);
    drop(inner);
    let inner = register(Box::new(
        Kretprobe::<u64>::new()
            .symbol("trace_inner")
            .handler(note_own),
    ))
    .unwrap();
    assert_eq!(trace_outer(black_box(1)), 1004);
    let all = chain(8).join(" ");
    assert!(
        all.contains("kretprobe_trampoline trace_middle trace_outer"),
        "{all}"
    );
    drop((inner, outer));
}

/// The trampoline itself calls nothing, and has no name in a printed trace.
#[guest_test]
fn the_trampoline_has_a_fixed_mark_in_a_printed_trace() {
    static TRACE: SpinLock<Option<backtrace::Trace>> = SpinLock::new(None);
    fn trace_own(_: &mut KretprobeInstance<u64>, _: &mut PtRegs) {
        *TRACE.lock() = Some(backtrace::walk_current().into());
    }
    let probe = Kretprobe::<u64>::new()
        .symbol("trace_inner")
        .handler(trace_own);
    let probe = register(Box::new(probe)).unwrap();
    trace_outer(black_box(1));
    drop(probe);
    let printed = TRACE.lock().take().expect("the handler ran").to_string();
    let (_, callers) = printed
        .split_once("[unknown/kretprobe'd]\n")
        .expect("the mark");
    assert!(callers.starts_with(" trace_middle+"), "{printed}");
    assert!(!printed.contains("kretprobe_trampoline"), "{printed}");
}

/// A handler's own backtrace goes through the trap to the probed code.
#[guest_test]
fn a_handler_finds_its_way_down_through_the_trap() {
    fn note_through_trap(_probe: &Kprobe, _regs: &mut PtRegs) -> PreVerdict {
        note(backtrace::walk_current());
        PreVerdict::Execute
    }
    let probe = register(Box::new(
        Kprobe::new().symbol("trace_inner").pre(note_through_trap),
    ))
    .unwrap();
    assert_eq!(trace_outer(black_box(1)), 1004);
    drop(probe);
    let all = chain(8).join(" ");
    assert!(
        all.contains("trace_inner trace_middle trace_outer"),
        "{all}"
    );
}

/// Whether the walk meets the function of that name.
fn meets(mut walk: backtrace::Walk, name: &str) -> bool {
    walk.any(|frame| {
        symbols::lookup_addr(frame.code_address()).is_some_and(|symbol| symbol.name == name)
    })
}

/// Calls that [`trace_under_fire`] has made.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Calls return-probed and probed functions until `stop` says so.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn trace_under_fire(stop: &AtomicBool) {
    while !black_box(stop).load(SeqCst) {
        black_box(trace_outer(black_box(1)));
        CALLS.fetch_add(1, SeqCst);
    }
}

/// Handlers, slots, the post stub and the return trampoline: whatever an NMI from another CPU
/// interrupts, the walk leads through it. Each single instruction has a test of its own, in
/// `between_instructions`.
#[guest_test(timeout = 120)]
fn callers_are_found_from_an_nmi_anywhere_in_the_probes() {
    static STOP: AtomicBool = AtomicBool::new(false);
    static READY: AtomicBool = AtomicBool::new(false);
    static NMIS: AtomicU64 = AtomicU64::new(0);
    static LOST: AtomicU64 = AtomicU64::new(0);
    /// How many NMIs came inside the trampoline, the post stub, and slots.
    static IN_PROBES: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

    fn walk_up(regs: &PtRegs) {
        let name = symbols::lookup_addr(regs.ip).map(|symbol| symbol.name);
        match name {
            Some("kretprobe_trampoline") => drop(IN_PROBES[0].fetch_add(1, Relaxed)),
            Some("kprobe_post_stub") => drop(IN_PROBES[1].fetch_add(1, Relaxed)),
            _ if PROBES.original_ip(regs.ip) != regs.ip => drop(IN_PROBES[2].fetch_add(1, Relaxed)),
            _ => {}
        }
        if STOP.load(SeqCst) {
            return;
        }
        if !meets(backtrace::walk_interrupted(regs), "trace_under_fire")
            && LOST.fetch_add(1, Relaxed) < 3
        {
            kernel::pr_err!("lost at {:#x}, sp {:#x}, in {name:?}", regs.ip, regs.sp);
            backtrace::print(regs);
        }
        NMIS.fetch_add(1, SeqCst);
    }
    fn after(_: &Kprobe, _: &mut PtRegs, _: u64) {}
    fn on_return(_: &mut KretprobeInstance<u64>, _: &mut PtRegs) {}

    // Only the victim is to be interrupted there, and not this task where it waits.
    cpu::stay_on(0);
    CALLS.store(0, SeqCst);
    let returns = ["trace_inner", "trace_middle", "trace_outer"].map(|name| {
        register(Box::new(
            Kretprobe::<u64>::new().symbol(name).handler(on_return),
        ))
        .unwrap()
    });
    let posts = [0, 1].map(|offset| {
        register(Box::new(
            Kprobe::new()
                .symbol("trace_inner")
                .offset(offset)
                .post(after),
        ))
        .unwrap()
    });
    let plain = register(Box::new(Kprobe::new().symbol("trace_middle"))).unwrap();
    let victim = spawn_kthread_on(2, "victim", || {
        READY.store(true, SeqCst);
        trace_under_fire(&STOP);
    })
    .expect("memory for a thread");
    let sender = spawn_kthread_on(1, "sender", || {
        while !READY.load(SeqCst) {
            hint::spin_loop();
        }
        // Past the first call.
        while CALLS.load(SeqCst) == 0 {
            hint::spin_loop();
        }
        traps::set_nmi_handler(Some(walk_up));
        for _ in 0..4_000 {
            nmi::send(1, &NMIS, || false);
        }
        STOP.store(true, SeqCst);
    })
    .expect("memory for a thread");
    sender.wait_released();
    victim.wait_released();
    traps::set_nmi_handler(None);
    drop((returns, posts, plain));
    let seen = [0, 1, 2].map(|kind| IN_PROBES[kind].load(Relaxed));
    kernel::pr_info!("NMIs in trampoline, post stub, slots: {seen:?}");
    assert_eq!(LOST.load(Relaxed), 0, "walks that lost their way");
    assert!(seen[0] > 0, "{seen:?}");
}

/// The tick interrupts a loop; the walk from the tick's handler goes on in the loop and its caller.
/// The printed trace marks both places at which code was interrupted, and no other.
#[guest_test]
fn walk_from_an_interrupt_goes_on_in_what_it_interrupted() {
    static SEEN_BOTH: AtomicBool = AtomicBool::new(false);
    fn in_tick(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        if meets(backtrace::walk(regs), "interrupt_common")
            && meets(backtrace::walk(regs), "trace_under_fire")
            && !SEEN_BOTH.load(SeqCst)
        {
            backtrace::print(regs);
            SEEN_BOTH.store(true, SeqCst);
        }
        PreVerdict::Execute
    }
    cpu::stay_on(0);
    let probe = register(Box::new(
        Kprobe::new().symbol("timer_interrupt").pre(in_tick),
    ))
    .unwrap();
    trace_under_fire(&SEEN_BOTH);
    drop(probe);
    cpu::go_anywhere();

    let mut history = String::new();
    log::show_history(&mut history).expect("a string takes all");
    let (_, trace) = history
        .rsplit_once("Call trace:\n")
        .expect("it was printed");
    let lines: Vec<_> = trace.lines().collect();
    let stub = lines
        .iter()
        .position(|line| line.contains("interrupt_common"))
        .expect("the tick comes through it");
    let marked = lines.iter().enumerate();
    let marked = marked.filter(|(_, line)| line.ends_with(" <interrupted>"));
    let marked: Vec<_> = marked.map(|(number, _)| number).collect();
    assert_eq!(marked, [0, stub + 1], "{trace}");
}

/// A task that sleeps is walked from where it called the scheduler, to its first frame.
#[guest_test]
fn sleeping_task_shows_where_it_waits() {
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn trace_sleeper(stop: &AtomicBool) {
        while !stop.load(SeqCst) {
            sleep_ns(1_000_000);
        }
    }
    static STOP: AtomicBool = AtomicBool::new(false);
    let sleeper =
        spawn_kthread_on(1, "sleeper", || trace_sleeper(&STOP)).expect("memory for a thread");
    // On the sleeper's CPU, so that it is not running while we look.
    let looker = {
        let sleeper = sleeper.clone();
        spawn_kthread_on(1, "looker", move || {
            let walk = || backtrace::walk_task(&sleeper);
            while !meets(walk(), "trace_sleeper") {
                sleep_ns(1_000_000);
            }
            assert!(
                meets(walk(), "ret_from_fork"),
                "{}",
                backtrace::Trace::from(walk())
            );
        })
        .expect("memory for a thread")
    };
    looker.wait_released();
    STOP.store(true, SeqCst);
    sleeper.wait_released();
}

/// A task that sleeps in return-probed calls, several probes on some: seen from outside, its
/// callers are the true ones.
#[guest_test]
fn sleeping_task_in_probed_calls_shows_its_true_callers() {
    static STOP: AtomicBool = AtomicBool::new(false);
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn trace_sleeping_inner(stop: &AtomicBool) -> u64 {
        while !stop.load(SeqCst) {
            sleep_ns(1_000_000);
        }
        black_box(1)
    }
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn trace_sleeping_middle(stop: &AtomicBool) -> u64 {
        black_box(trace_sleeping_inner(stop) + 1)
    }
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn trace_sleeping_outer(stop: &AtomicBool) -> u64 {
        black_box(trace_sleeping_middle(stop) + 1)
    }
    const CALLERS: [&str; 4] = [
        "trace_sleeping_inner",
        "trace_sleeping_middle",
        "trace_sleeping_outer",
        "ret_from_fork",
    ];
    STOP.store(false, SeqCst);
    let probes = [
        "trace_sleeping_inner",
        "trace_sleeping_inner",
        "trace_sleeping_middle",
        "trace_sleeping_outer",
    ]
    .map(|name| register(Box::new(Kretprobe::<u64>::new().symbol(name))).unwrap());
    let sleeper = spawn_kthread_on(2, "sleeper", || assert_eq!(trace_sleeping_outer(&STOP), 3))
        .expect("memory for a thread");
    // On the sleeper's CPU, so that it is not running while we look.
    let looker = {
        let sleeper = sleeper.clone();
        spawn_kthread_on(2, "looker", move || {
            while !meets(backtrace::walk_task(&sleeper), CALLERS[0]) {
                sleep_ns(1_000_000);
            }
            let names: Vec<_> = backtrace::walk_task(&sleeper)
                .filter_map(|frame| symbols::lookup_addr(frame.code_address()))
                .map(|symbol| symbol.name)
                .collect();
            let inner = names
                .iter()
                .position(|name| *name == CALLERS[0])
                .expect("it was just there");
            assert_eq!(names[inner..inner + 3], CALLERS[..3], "{names:?}");
            assert_eq!(names.last(), Some(&CALLERS[3]), "{names:?}");
            assert!(
                !names.iter().any(|name| name.contains("trampoline")),
                "{names:?}"
            );
        })
        .expect("memory for a thread")
    };
    looker.wait_released();
    assert_eq!(
        probes.each_ref().map(|probe| probe.hits()),
        [0; 4],
        "all are in flight"
    );
    STOP.store(true, SeqCst);
    sleeper.wait_released();
    assert_eq!(
        probes
            .each_ref()
            .map(|probe| (probe.hits(), probe.nmissed())),
        [(1, 0); 4]
    );
    drop(probes);
}

/// A call through a null pointer leaves an ip where no code is.
#[guest_test(should_panic = "trace_caller_of_null+0x")]
fn panic_after_a_wild_call_names_the_caller() {
    trace_caller_of_null(black_box(0x1000));
}

/// The registers that the caller had are those for its own caller's frame.
#[guest_test(should_panic = "trace_above_caller_of_null+0x")]
fn panic_after_a_wild_call_names_the_callers_caller() {
    trace_above_caller_of_null(black_box(0x1000));
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn trace_above_caller_of_null(function: usize) -> u64 {
    black_box(trace_caller_of_null(function)) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn trace_caller_of_null(function: usize) -> u64 {
    // SAFETY: none; this call is the test, and it does not come back.
    let function: extern "C" fn() -> u64 = unsafe { core::mem::transmute(function) };
    black_box(function()) + 1
}

/// The message of a panic fails to print. The machine must end all the same.
#[guest_test(should_panic = "Kernel panic while panicking")]
fn panic_in_the_message_of_a_panic_is_reported() {
    struct Fails;
    impl core::fmt::Display for Fails {
        fn fmt(&self, _: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            panic!("it fails twice")
        }
    }
    panic!("{Fails}");
}
