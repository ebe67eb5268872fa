//! The return paths of 2005, and what they cost in interruptions.
//!
//! The kernel counts breakpoint and debug exceptions, so each form of a kretprobe shows what it
//! costs: four interruptions, three, two or one for a call. Calls of all forms mix on all CPUs, and
//! those in flight come home when the knob is turned or their probe has gone.

use crate::probes::program_probes::kill_in_its_sleep;
use alloc::{boxed::Box, vec::Vec};
use core::{
    arch::naked_asm,
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};
use kernel::{
    arch::{percpu, smp},
    probes::{
        EntryVerdict, Kprobe, Kretprobe, KretprobeInstance, PROBES, PtRegs, Registered,
        ReturnMethod::{self, Asm, Trap3, Trap4},
        StepMethod::{self, Translate, TrapFlag},
        register,
    },
    task::kthread::spawn_kthread_on,
};
use x86_64::instructions::interrupts::without_interrupts;

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn historic_target(a: u64) -> u64 {
    black_box(a + 5)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn historic_sum(n: u64) -> u64 {
    if n == 0 {
        0
    } else {
        black_box(n) + historic_sum(black_box(n - 1))
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn historic_caller(callee: extern "C" fn()) -> u64 {
    callee();
    black_box(7)
}

/// Runs `body` on one CPU and tells the #BP and the #DB that the CPU's stubs have counted
/// meanwhile.
fn interruptions(body: impl FnOnce()) -> (u64, u64) {
    without_interrupts(|| {
        let count = || {
            let counters = &percpu::this().probes;
            (
                counters.breakpoints.load(SeqCst),
                counters.debug_traps.load(SeqCst),
            )
        };
        let before = count();
        body();
        let after = count();
        (after.0 - before.0, after.1 - before.1)
    })
}

static RETURNS: AtomicU64 = AtomicU64::new(0);
static LAST: AtomicU64 = AtomicU64::new(0);

fn note_result(_call: &mut KretprobeInstance<u64>, regs: &mut PtRegs) {
    RETURNS.fetch_add(1, SeqCst);
    LAST.store(regs.return_value(), SeqCst);
}

/// Several handlers on one call: the order in which they run is the order of the digits.
fn note_digit<const N: u64>(_call: &mut KretprobeInstance<u64>, _regs: &mut PtRegs) {
    LAST.store(LAST.load(SeqCst) * 10 + N, SeqCst);
}

fn on(symbol: &'static str, step: StepMethod, method: ReturnMethod) -> Kretprobe<u64> {
    Kretprobe::new()
        .symbol(symbol)
        .step_method(step)
        .return_method(method)
}

fn registered(probe: Kretprobe<u64>) -> Registered<Box<Kretprobe<u64>>> {
    register(Box::new(probe)).expect("the function can be probed")
}

/// Step method, return method, #BP and #DB of one call.
const FORMS: [(StepMethod, ReturnMethod, u64, u64); 6] = [
    (TrapFlag, Trap4, 2, 2),
    (TrapFlag, Trap3, 2, 1),
    (TrapFlag, Asm, 1, 1),
    // Here the trampoline's nop is the only instruction that is stepped.
    (Translate, Trap4, 2, 1),
    (Translate, Trap3, 2, 0),
    (Translate, Asm, 1, 0),
];

static ENTERED: AtomicU64 = AtomicU64::new(0);

fn count_entry(_call: &mut KretprobeInstance<u64>, _regs: &mut PtRegs) -> EntryVerdict {
    ENTERED.fetch_add(1, SeqCst);
    EntryVerdict::Track
}

/// Returns to where calls in flight return to, without being one.
#[unsafe(naked)]
extern "C" fn return_to(_address: u64) {
    naked_asm!("push rdi", "ret")
}

extern "C" fn turn_the_knob_off() {
    PROBES.set_enabled(false).expect("in task context");
}

/// Four interruptions, three, two, one: as many as the methods promise, and the call is none the
/// wiser.
#[guest_test(cmdline = "kprobes.optimize=0")]
fn each_form_costs_its_interruptions() {
    for (step, method, breakpoints, steps) in FORMS {
        RETURNS.store(0, SeqCst);
        let probe = registered(on("historic_target", step, method).handler(note_result));
        // The first call, too: all CPUs have left what they knew of the old text.
        for (argument, result) in [(1, 6), (41, 46)] {
            let cost = interruptions(|| assert_eq!(historic_target(argument), result));
            assert_eq!(cost, (breakpoints, steps), "{step:?} {method:?}");
            assert_eq!(LAST.load(SeqCst), result);
        }
        assert_eq!(RETURNS.load(SeqCst), 2);
        assert_eq!(
            (probe.hits(), probe.nmissed(), probe.kprobe().nmissed()),
            (2, 0, 0)
        );
    }
    let cost = interruptions(|| assert_eq!(historic_target(41), 46));
    assert_eq!(cost, (0, 0), "nobody probes it any more");
}

/// Each level of a recursion pays for itself and returns through its own instance.
#[guest_test(cmdline = "kprobes.optimize=0")]
fn recursion_pays_for_each_call() {
    const CALLS: u64 = 20 + 1;
    for (step, method, breakpoints, steps) in FORMS {
        let probe = registered(
            on("historic_sum", step, method)
                .maxactive(CALLS as i32)
                .handler(note_result),
        );
        let cost = interruptions(|| assert_eq!(historic_sum(20), 210));
        assert_eq!(
            cost,
            (breakpoints * CALLS, steps * CALLS),
            "{step:?} {method:?}"
        );
        assert_eq!((probe.hits(), probe.nmissed()), (CALLS, 0));
        assert_eq!(LAST.load(SeqCst), 210, "the outermost call comes last");
    }
}

/// Recursion deeper than there are instances: those that have none are counted, and pay at the
/// entry only.
#[guest_test(cmdline = "kprobes.optimize=0")]
fn calls_without_an_instance_do_not_come_back_by_trap() {
    let probe = registered(
        on("historic_sum", TrapFlag, Trap3)
            .maxactive(5)
            .handler(note_result),
    );
    let cost = interruptions(|| assert_eq!(historic_sum(20), 210));
    assert_eq!((probe.hits(), probe.nmissed()), (5, 16));
    assert_eq!(cost, (21 + 5, 21));
}

/// Several kretprobes on a function share the interruptions of one; of different methods they are
/// refused.
#[guest_test(cmdline = "kprobes.optimize=0")]
fn kretprobes_on_one_function_share_their_interruptions() {
    for (step, method, breakpoints, steps) in FORMS {
        LAST.store(0, SeqCst);
        let probes = [
            registered(on("historic_target", step, method).handler(note_digit::<1>)),
            registered(on("historic_target", step, method).handler(note_digit::<2>)),
            registered(on("historic_target", step, method).handler(note_digit::<3>)),
        ];
        for other in [Asm, Trap3, Trap4]
            .into_iter()
            .filter(|other| *other != method)
        {
            let error = register(Box::new(on("historic_target", step, other))).unwrap_err();
            assert_eq!((error.name(), error.errno()), ("MixedReturnMethods", 22));
        }
        let cost = interruptions(|| assert_eq!(historic_target(1), 6));
        assert_eq!(cost, (breakpoints, steps), "{step:?} {method:?}");
        assert_eq!(
            LAST.load(SeqCst),
            123,
            "the oldest one first, by any method"
        );
        drop(probes);
    }
}

/// The knob disarms entries. Calls that are in flight still come home, through a trampoline that
/// stays armed.
#[guest_test]
fn calls_in_flight_come_home_with_the_knob_off() {
    for method in [Trap3, Trap4] {
        RETURNS.store(0, SeqCst);
        let probe = registered(on("historic_caller", TrapFlag, method).handler(note_result));
        assert_eq!(historic_caller(turn_the_knob_off), 7);
        assert_eq!(
            (RETURNS.load(SeqCst), LAST.load(SeqCst)),
            (1, 7),
            "{method:?}"
        );
        extern "C" fn nothing() {}
        assert_eq!(
            interruptions(|| assert_eq!(historic_caller(nothing), 7)),
            (0, 0)
        );
        PROBES.set_enabled(true).unwrap();
        assert_eq!(historic_caller(nothing), 7);
        assert_eq!(probe.hits(), 2);
    }
}

/// A kretprobe that goes while its call is in flight: the call still comes home, quietly.
#[guest_test]
fn calls_in_flight_outlive_a_historic_kretprobe() {
    static PROBE: Kretprobe<u64> = Kretprobe::new()
        .symbol("historic_caller")
        .step_method(TrapFlag)
        .return_method(Trap4)
        .handler(note_result);
    extern "C" fn unregister() {
        PROBES.unregister(&PROBE).expect("in task context");
        assert_eq!(PROBES.reap().unwrap(), 1);
    }
    RETURNS.store(0, SeqCst);
    PROBES.register(&PROBE).unwrap();
    assert_eq!(historic_caller(unregister), 7);
    assert_eq!(RETURNS.load(SeqCst), 0);
    assert_eq!(PROBES.reap().unwrap(), 0);
}

/// Calls of different functions, on all CPUs at once, by both methods: each goes back to where it
/// came from.
#[guest_test(timeout = 120)]
fn every_cpu_returns_to_its_own_callers() {
    const CALLS: u64 = 5_000;
    let room = 30 * smp::online_cpus() as i32;
    let probes = [
        registered(
            on("historic_target", TrapFlag, Trap4)
                .maxactive(room)
                .handler(note_result),
        ),
        registered(
            on("historic_sum", TrapFlag, Trap3)
                .maxactive(room)
                .handler(note_result),
        ),
    ];
    let threads: Vec<_> = (0..smp::online_cpus())
        .map(|cpu| {
            let body = move || {
                for n in 0..CALLS {
                    assert_eq!(historic_target(n), n + 5);
                    assert_eq!(historic_sum(3), 6);
                }
            };
            spawn_kthread_on(1 << cpu, "historic", body).expect("memory for a thread")
        })
        .collect();
    for thread in threads {
        thread.wait_released();
    }
    let all = CALLS * smp::online_cpus() as u64;
    assert_eq!(
        probes
            .each_ref()
            .map(|probe| (probe.hits(), probe.nmissed())),
        [(all, 0), (4 * all, 0)]
    );
}

/// A program is killed inside calls that would have come back by breakpoints: their instances come
/// back without.
#[guest_test]
fn a_killed_program_gives_instances_of_all_methods_back() {
    ENTERED.store(0, SeqCst);
    let sleep = on("sys_nanosleep", TrapFlag, Trap3)
        .maxactive(8)
        .entry(count_entry)
        .handler(note_result);
    let probes = [
        registered(sleep),
        registered(on("do_syscall", TrapFlag, Trap4).maxactive(8)),
    ];
    for _ in 0..5 * 8 {
        kill_in_its_sleep(&ENTERED);
    }
    assert!(probes.iter().all(|probe| probe.nmissed() == 0));
    drop(probes);
    assert_eq!(PROBES.reap().unwrap(), 0, "no call is left in flight");
}

/// The command line's methods serve all kretprobes that ask for none.
#[guest_test(cmdline = "kprobes.step=tf kprobes.return=trap4")]
fn the_command_line_selects_four_interruptions() {
    let probe = registered(
        Kretprobe::new()
            .symbol("historic_target")
            .handler(note_result),
    );
    let cost = interruptions(|| assert_eq!(historic_target(1), 6));
    assert_eq!((cost, LAST.load(SeqCst)), ((2, 2), 6));
    let mut listed = 0;
    PROBES.for_each(|_| listed += 1);
    assert_eq!(listed, 1, "the trampoline's kprobe is in no list");
    for name in ["kretprobe_trampoline_trap3", "kretprobe_trampoline_trap4"] {
        let error = register(Box::new(Kprobe::new().symbol(name))).unwrap_err();
        assert_eq!(error.name(), "Blacklisted");
    }
    drop(probe);
}

/// Likewise.
#[guest_test(cmdline = "kprobes.step=tf kprobes.return=trap3")]
fn the_command_line_selects_three_interruptions() {
    let probe = registered(
        Kretprobe::new()
            .symbol("historic_target")
            .handler(note_result),
    );
    let cost = interruptions(|| assert_eq!(historic_target(1), 6));
    assert_eq!((cost, LAST.load(SeqCst)), ((2, 1), 6));
    drop(probe);
}

/// An unknown return ends a kernel task, here as with the assembly.
#[guest_test(should_panic = "kretprobe BUG!: Processing kretprobe")]
fn a_return_that_nobody_knows_is_told() {
    static TRAMPOLINE: AtomicU64 = AtomicU64::new(0);
    fn note_slot(_: &Kprobe, regs: &mut PtRegs) -> kernel::probes::PreVerdict {
        // SAFETY: the return slot, as this is the function's first instruction.
        TRAMPOLINE.store(unsafe { *(regs.sp as *const u64) }, SeqCst);
        kernel::probes::PreVerdict::Execute
    }
    // The kprobe is the older one, so the slot is borrowed before it looks.
    let look = register(Box::new(
        Kprobe::new().symbol("historic_target").pre(note_slot),
    ))
    .unwrap();
    let call = registered(on("historic_target", TrapFlag, Trap4));
    assert_eq!(historic_target(1), 6);
    drop((call, look));
    return_to(TRAMPOLINE.load(SeqCst));
}
