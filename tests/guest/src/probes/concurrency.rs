//! Probes on several CPUs and in interrupts.
//!
//! CPUs call a probed function as fast as they can while probes come and go. Whatever the order,
//! hits and misses together are the calls during which the probe was there, and no call is lost.
//! What becomes of tasks inside probed calls is the matter of `probed_tasks`.
//!
//! The suite has the same laws for CPUs alone (`concurrency` there). Here they hold with
//! interrupts, a scheduler and the exit of tasks, and with text that is written while it is
//! executed.

use crate::platform::cpu;
use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::{
    arch::global_asm,
    hint::{self, black_box},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};
use kernel::{
    arch::{percpu, smp, traps},
    probes::{
        EntryVerdict, Jprobe, Kprobe, Kretprobe, KretprobeInstance, PROBES, PreVerdict, PtRegs,
        disable_kprobe, enable_kprobe, jprobe, register, register_kprobe, text_poke,
        unregister_kprobe,
    },
    task::{
        self, TaskRef,
        kthread::{spawn_kthread, spawn_kthread_on},
    },
    time::{NSEC_PER_SEC, ktime_get},
};
use x86_64::instructions::interrupts::without_interrupts;

/// How often a test's function is called on each CPU.
const CALLS: u64 = 100_000;

pub fn spawn(body: impl FnOnce() + Send + 'static) -> TaskRef {
    spawn_kthread("probed", body).expect("memory for a thread")
}

/// Runs `body` on every CPU at once and waits for all.
fn on_every_cpu(body: impl Fn(usize) + Send + Sync + Clone + 'static) {
    let threads: Vec<_> = (0..smp::online_cpus())
        .map(|cpu| {
            let body = body.clone();
            spawn_kthread_on(1 << cpu, "probed", move || body(cpu)).expect("memory for a thread")
        })
        .collect();
    for thread in threads {
        thread.wait_released();
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn hot_target(a: u64) -> u64 {
    black_box(a + 1)
}

/// Length of the jump in [`jump_to_itself`].
const JUMP_BYTES: u64 = 2;

unsafe extern "C" {
    /// Returns its argument, once the instruction pointer is moved past the first instruction.
    safe fn jump_to_itself(value: u64) -> u64;
}

global_asm!(
    ".pushsection .text.jump_to_itself, \"ax\", @progbits",
    ".globl jump_to_itself",
    ".type jump_to_itself, @function",
    "jump_to_itself:",
    ".cfi_startproc",
    "2: jmp 2b",
    "mov rax, rdi",
    "ret",
    ".cfi_endproc",
    ".size jump_to_itself, . - jump_to_itself",
    ".popsection",
);

/// The stack pointer at the first hit in a round.
static STACK_POINTER: AtomicU64 = AtomicU64::new(0);
/// Hits with another one.
static MOVED: AtomicU64 = AtomicU64::new(0);
/// Interrupts that have been handled.
static ENDINGS: AtomicU64 = AtomicU64::new(0);

/// A loop of one instruction, with a probe and without, is ended by an interrupt that another CPU
/// sends. Until then its stack stays as it is. The probe comes and goes under the loop.
#[guest_test(cmdline = "kprobes.optimize=0")]
fn an_interrupt_from_another_cpu_ends_a_probed_jump_to_itself() {
    fn note_stack(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        let first = STACK_POINTER.compare_exchange(0, regs.sp, SeqCst, SeqCst);
        if first.is_err_and(|first| first != regs.sp) {
            MOVED.fetch_add(1, SeqCst);
        }
        PreVerdict::Execute
    }
    fn end_the_loop(regs: &mut PtRegs) {
        let jump = jump_to_itself as *const () as u64;
        if PROBES.original_ip(regs.ip) == jump {
            regs.ip = jump + JUMP_BYTES;
        }
        ENDINGS.fetch_add(1, SeqCst);
    }
    cpu::stay_on(0);
    traps::set_interrupt_handler(Some(end_the_loop));
    for round in 0..20 {
        STACK_POINTER.store(0, SeqCst);
        let result = Arc::new(AtomicU64::new(0));
        let spinner = {
            let result = result.clone();
            spawn_kthread_on(1 << 1, "spinner", move || {
                result.store(jump_to_itself(7 + round), SeqCst);
            })
            .unwrap()
        };
        let mut probe = None;
        for _ in 0..3 {
            drop(probe.take());
            let new = Box::new(Kprobe::new().symbol("jump_to_itself").pre(note_stack));
            let new = probe.insert(register(new).unwrap());
            while new.hits() < 1000 {
                hint::spin_loop();
            }
        }
        assert_eq!(result.load(SeqCst), 0, "nothing has ended it");
        if round % 2 == 0 {
            drop(probe.take());
        }
        while result.load(SeqCst) == 0 {
            let before = ENDINGS.load(SeqCst);
            smp::send_ipi(1, traps::SPARE_INTERRUPT);
            while ENDINGS.load(SeqCst) == before {
                hint::spin_loop();
            }
        }
        spinner.wait_released();
        assert_eq!(result.load(SeqCst), 7 + round);
        assert_eq!(MOVED.load(SeqCst), 0, "hits with another stack pointer");
    }
    traps::set_interrupt_handler(None);
    cpu::go_anywhere();
}

/// How many CPUs have come to each kind of handler.
static RENDEZVOUS: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];
/// Handlers that have seen those of all CPUs inside.
static MET: AtomicU64 = AtomicU64::new(0);

/// Waits in a handler until all CPUs are in it. Gives up after so long that one of them must be
/// waiting outside.
fn meet(kind: usize) {
    RENDEZVOUS[kind].fetch_add(1, SeqCst);
    let end = ktime_get() + 20 * NSEC_PER_SEC;
    while RENDEZVOUS[kind].load(SeqCst) < smp::online_cpus() as u64 {
        if ktime_get() > end {
            return;
        }
        hint::spin_loop();
    }
    MET.fetch_add(1, SeqCst);
}

fn meet_before(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    meet(0);
    PreVerdict::Execute
}

fn meet_after(_: &Kprobe, _: &mut PtRegs, _: u64) {
    meet(1);
}

fn meet_at_entry(_: &mut KretprobeInstance<u64>, _: &mut PtRegs) -> EntryVerdict {
    meet(2);
    EntryVerdict::Track
}

fn meet_at_return(_: &mut KretprobeInstance<u64>, _: &mut PtRegs) {
    meet(3);
}

jprobe! {
    fn meet_in_mirror(_a: u64) {
        meet(4);
    }
}

fn meet_again(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    meet(5);
    PreVerdict::Execute
}

pub static RUNS: AtomicU64 = AtomicU64::new(0);

pub fn count(_probe: &Kprobe, _regs: &mut PtRegs) -> PreVerdict {
    RUNS.fetch_add(1, SeqCst);
    PreVerdict::Execute
}

pub fn count_return(_call: &mut KretprobeInstance<u64>, regs: &mut PtRegs) {
    assert!(regs.return_value() > 0);
    RUNS.fetch_add(1, SeqCst);
}

/// Switches a probe off and on while another CPU executes its instruction. Each time, until two
/// further calls are over.
fn switch_under_fire(rounds: u64) {
    static PROBE: Kprobe = Kprobe::new().symbol("hot_target").pre(count);
    static STOP: AtomicBool = AtomicBool::new(false);
    static CALLS: AtomicU64 = AtomicU64::new(0);
    STOP.store(false, SeqCst);
    CALLS.store(0, SeqCst);
    register_kprobe(&PROBE).unwrap();
    let caller = spawn_kthread_on(1 << 1, "caller", || {
        while !STOP.load(SeqCst) {
            assert_eq!(hot_target(41), 42);
            CALLS.fetch_add(1, SeqCst);
        }
    })
    .expect("memory for a thread");
    // One call may be under way, and another one counted late.
    let two_calls = || {
        let before = CALLS.load(SeqCst);
        while CALLS.load(SeqCst) < before + 3 {
            hint::spin_loop();
        }
    };
    let switcher = spawn_kthread_on(1, "switcher", move || {
        for round in 0..rounds {
            let hits = PROBE.hits();
            two_calls();
            assert!(
                PROBE.hits() >= hits + 2,
                "calls went unseen in round {round}"
            );
            disable_kprobe(&PROBE).unwrap();
            // Its handler may still run for a call that had begun.
            two_calls();
            let hits = PROBE.hits();
            two_calls();
            assert_eq!(
                PROBE.hits(),
                hits,
                "a handler ran while it was off, in round {round}"
            );
            enable_kprobe(&PROBE).unwrap();
        }
    })
    .expect("memory for a thread");
    switcher.wait_released();
    STOP.store(true, SeqCst);
    caller.wait_released();
    assert!(PROBE.hits() <= CALLS.load(SeqCst) && PROBE.nmissed() == 0);
    unregister_kprobe(&PROBE).unwrap();
}

/// Each execution of the instruction on each CPU runs the handler once or is counted as missed.
#[guest_test(timeout = 120)]
fn every_hit_on_every_cpu_is_counted() {
    RUNS.store(0, SeqCst);
    let probe = register(Box::new(Kprobe::new().symbol("hot_target").pre(count))).unwrap();
    on_every_cpu(|_| (0..CALLS).for_each(|n| assert_eq!(hot_target(n), n + 1)));
    let executions = CALLS * smp::online_cpus() as u64;
    assert_eq!(probe.hits() + probe.nmissed(), executions);
    assert_eq!(RUNS.load(SeqCst), probe.hits());
    assert_eq!(probe.nmissed(), 0, "no handler calls the function");
    drop(probe);
}

/// The same for returns: each call is followed or counted.
#[guest_test(timeout = 120)]
fn every_return_on_every_cpu_is_counted() {
    RUNS.store(0, SeqCst);
    let probe = register(Box::new(
        Kretprobe::<u64>::new()
            .symbol("hot_target")
            .maxactive(1)
            .handler(count_return),
    ))
    .unwrap();
    on_every_cpu(|_| (0..CALLS / 2).for_each(|n| assert_eq!(hot_target(n), n + 1)));
    assert_eq!(
        probe.hits() + probe.nmissed(),
        CALLS / 2 * smp::online_cpus() as u64
    );
    assert_eq!(RUNS.load(SeqCst), probe.hits());
    assert!(probe.hits() > 0, "whoever called first had the instance");
    drop(probe);
}

/// One instance for all CPUs: a call has it on whichever CPU it is made, and while it has,
/// calls on others are missed.
#[guest_test]
fn the_only_instance_goes_to_any_cpu_and_to_one_call_at_a_time() {
    static INSIDE: AtomicBool = AtomicBool::new(false);
    static LEAVE: AtomicBool = AtomicBool::new(false);
    /// The CPUs on which handlers ran, one bit each.
    static HANDLED_ON: AtomicU64 = AtomicU64::new(0);
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn staying_target(stays: bool) -> u64 {
        if stays {
            INSIDE.store(true, SeqCst);
            while !LEAVE.load(SeqCst) {
                hint::spin_loop();
            }
        }
        black_box(8)
    }
    fn note_cpu(_: &mut KretprobeInstance<u64>, _: &mut PtRegs) {
        HANDLED_ON.fetch_or(1 << percpu::cpu_id(), SeqCst);
    }
    let probe = register(Box::new(
        Kretprobe::<u64>::new()
            .symbol("staying_target")
            .maxactive(1)
            .handler(note_cpu),
    ))
    .unwrap();
    for (stays_on, other) in [(0, 1), (1, 0)] {
        let (hits, missed) = (probe.hits(), probe.nmissed());
        for flag in [&INSIDE, &LEAVE] {
            flag.store(false, SeqCst);
        }
        let call = |cpu: usize, stays| {
            spawn_kthread_on(1 << cpu, "calls", move || {
                assert_eq!(staying_target(stays), 8)
            })
            .expect("memory for a thread")
        };
        let first = call(stays_on, true);
        while !INSIDE.load(SeqCst) {
            task::schedule();
        }
        call(other, false).wait_released();
        assert_eq!(
            (probe.hits() - hits, probe.nmissed() - missed),
            (0, 1),
            "the instance is taken"
        );
        HANDLED_ON.store(0, SeqCst);
        LEAVE.store(true, SeqCst);
        first.wait_released();
        assert_eq!(
            (probe.hits() - hits, HANDLED_ON.swap(0, SeqCst)),
            (1, 1 << stays_on)
        );
        call(other, false).wait_released();
        assert_eq!(
            (probe.hits() - hits, HANDLED_ON.swap(0, SeqCst)),
            (2, 1 << other),
            "it is free again, for any CPU"
        );
        assert_eq!(probe.nmissed() - missed, 1);
    }
    drop(probe);
}

/// Each kind of handler, on all CPUs at the same time: each waits in there for the others.
#[guest_test(smp = 4)]
fn a_handler_runs_on_all_cpus_at_once() {
    RENDEZVOUS.iter().for_each(|place| place.store(0, SeqCst));
    MET.store(0, SeqCst);
    let kprobe = register(Box::new(
        Kprobe::new()
            .symbol("hot_target")
            .pre(meet_before)
            .post(meet_after),
    ))
    .unwrap();
    let call = register(Box::new(
        Kretprobe::<u64>::new()
            .symbol("hot_target")
            .entry(meet_at_entry)
            .handler(meet_at_return),
    ))
    .unwrap();
    let jprobe = register(Box::new(
        Jprobe::new().symbol("hot_target").entry(meet_in_mirror),
    ))
    .unwrap();
    on_every_cpu(|_| assert_eq!(hot_target(black_box(1)), 2));
    let cpus = smp::online_cpus() as u64;
    assert_eq!(
        (kprobe.hits(), call.hits(), jprobe.kprobe().hits()),
        (cpus, cpus, cpus)
    );
    drop((jprobe, call, kprobe));
    // Without post handler and jprobe it is a jump, if it may be.
    let kprobe = register(Box::new(Kprobe::new().symbol("hot_target").pre(meet_again))).unwrap();
    on_every_cpu(|_| assert_eq!(hot_target(black_box(1)), 2));
    assert_eq!(kprobe.hits(), cpus);
    drop(kprobe);
    assert_eq!(
        MET.load(SeqCst),
        RENDEZVOUS.len() as u64 * cpus,
        "handlers that met all others"
    );
}

/// Arming and disarming under a CPU that executes the instruction: it always has its effect, and
/// while the probe is registered every execution is seen.
#[guest_test(timeout = 1200)]
fn a_probe_comes_and_goes_1000_times_under_fire() {
    RUNS.store(0, SeqCst);
    let stop = Arc::new(AtomicBool::new(false));
    let calls = Arc::new(AtomicU64::new(0));
    let caller = {
        let (stop, calls) = (stop.clone(), calls.clone());
        spawn_kthread_on(1 << 1, "caller", move || {
            while !stop.load(SeqCst) {
                assert_eq!(hot_target(41), 42);
                calls.fetch_add(1, SeqCst);
            }
        })
        .expect("memory for a thread")
    };
    let thread = spawn_kthread_on(1, "toggler", move || {
        for _ in 0..1000 {
            let probe = register(Box::new(Kprobe::new().symbol("hot_target").pre(count))).unwrap();
            // In this order: a hit between the two must not be asked for again.
            let hits = probe.hits();
            let before = calls.load(SeqCst);
            // Two further calls have begun and ended since the probe was there.
            while calls.load(SeqCst) < before + 3 {
                hint::spin_loop();
            }
            assert!(probe.hits() >= hits + 2, "a call went unseen");
            drop(probe);
            let after = RUNS.load(SeqCst);
            let then = calls.load(SeqCst);
            while calls.load(SeqCst) < then + 2 {
                hint::spin_loop();
            }
            assert_eq!(
                RUNS.load(SeqCst),
                after,
                "a handler ran after the probe was unregistered"
            );
        }
    })
    .expect("memory for a thread");
    thread.wait_released();
    stop.store(true, SeqCst);
    caller.wait_released();
    assert_eq!(PROBES.slots_in_use(), 0);
}

/// A probe that is only enabled and disabled, likewise: each call between two switches is seen,
/// or none is.
#[guest_test(timeout = 1200)]
fn a_probe_is_switched_on_and_off_under_fire() {
    switch_under_fire(100);
}

/// The same for long.
#[guest_test(timeout = 3600, ignore)]
fn a_probe_is_switched_a_hundred_thousand_times_under_fire() {
    switch_under_fire(50_000);
}

/// Misses can be read while they are counted: no number is lower than the one before it.
#[guest_test]
fn misses_never_fall_while_they_are_counted() {
    static STOP: AtomicBool = AtomicBool::new(false);
    static CALLS: AtomicU64 = AtomicU64::new(0);
    fn call(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        hot_target(black_box(1));
        PreVerdict::Execute
    }
    STOP.store(false, SeqCst);
    CALLS.store(0, SeqCst);
    let missed = register(Box::new(Kprobe::new().symbol("hot_target").pre(count))).unwrap();
    let call = register(Box::new(Kprobe::new().symbol("nmi_target").pre(call))).unwrap();
    assert_eq!(missed.nmissed(), 0);
    let caller = spawn_kthread_on(1 << 1, "calls", || {
        while !STOP.load(SeqCst) {
            assert_eq!(nmi_target(black_box(1)), 13);
            CALLS.fetch_add(1, SeqCst);
        }
    })
    .expect("memory for a thread");
    let (mut last, mut rises) = (0, 0);
    while rises < 100 {
        let begun = CALLS.load(SeqCst);
        let now = missed.nmissed();
        assert!(
            now >= last && now >= begun,
            "{now} after {last}, in {begun} calls"
        );
        rises += u64::from(now > last);
        last = now;
    }
    STOP.store(true, SeqCst);
    caller.wait_released();
    assert_eq!(
        (missed.hits(), missed.nmissed(), call.hits()),
        (0, CALLS.load(SeqCst), CALLS.load(SeqCst))
    );
    drop((call, missed));
}

/// A probe in an interrupt handler runs in the interrupt.
#[guest_test]
fn a_probe_in_the_timer_interrupt_fires() {
    static PROBE: Kprobe = Kprobe::new().symbol("timer_interrupt").pre(count);
    RUNS.store(0, SeqCst);
    register_kprobe(&PROBE).unwrap();
    let returned = register(Box::new(Kretprobe::<u64>::new().symbol("timer_interrupt"))).unwrap();
    while PROBE.hits() < 10 || returned.hits() < 10 {
        hint::spin_loop();
    }
    drop(returned);
    unregister_kprobe(&PROBE).unwrap();
    assert_eq!(RUNS.load(SeqCst), PROBE.hits());
}

/// A probe in an NMI's own path, hit on a CPU that is in a handler: counted, harmless.
#[guest_test]
fn an_nmi_in_a_handler_is_a_miss() {
    static IN_HANDLER: AtomicBool = AtomicBool::new(false);
    static NMIS: AtomicU64 = AtomicU64::new(0);
    fn wait_for_nmi(_probe: &Kprobe, _regs: &mut PtRegs) -> PreVerdict {
        let before = NMIS.load(SeqCst);
        IN_HANDLER.store(true, SeqCst);
        while NMIS.load(SeqCst) == before {
            hint::spin_loop();
        }
        PreVerdict::Execute
    }
    fn on_nmi(_regs: &PtRegs) {
        hot_target(black_box(1));
        NMIS.fetch_add(1, SeqCst);
    }
    RUNS.store(0, SeqCst);
    let inner = register(Box::new(Kprobe::new().symbol("hot_target").pre(count))).unwrap();
    let outer = register(Box::new(
        Kprobe::new().symbol("nmi_target").pre(wait_for_nmi),
    ))
    .unwrap();
    traps::set_nmi_handler(Some(on_nmi));
    let victim = spawn_kthread_on(1 << 1, "victim", || {
        for n in 0..20 {
            assert_eq!(nmi_target(n), n + 12);
        }
    })
    .expect("memory for a thread");
    for _ in 0..20 {
        while !IN_HANDLER.swap(false, SeqCst) {
            hint::spin_loop();
        }
        smp::send_nmi(1);
    }
    victim.wait_released();
    traps::set_nmi_handler(None);
    assert_eq!((outer.hits(), inner.nmissed(), inner.hits()), (20, 20, 0));
    drop((inner, outer));
}

/// A wait for the other CPUs does not end before each of them has answered it. Answers to earlier
/// waits do not count.
#[guest_test]
fn a_wait_for_all_cpus_ends_when_the_last_one_has_answered() {
    static DEAF: AtomicBool = AtomicBool::new(false);
    static BEGINS: AtomicBool = AtomicBool::new(false);
    static OVER: AtomicBool = AtomicBool::new(false);
    static HEARS: AtomicBool = AtomicBool::new(false);
    for wait in [
        text_poke::synchronize_cores,
        text_poke::synchronize_hits,
        text_poke::synchronize_settled,
    ] {
        for flag in [&DEAF, &BEGINS, &OVER, &HEARS] {
            flag.store(false, SeqCst);
        }
        let deaf = spawn_kthread_on(1 << 1, "deaf", || {
            without_interrupts(|| {
                DEAF.store(true, SeqCst);
                while !BEGINS.load(SeqCst) {
                    hint::spin_loop();
                }
                // Long enough for a wait that does not wait for this CPU.
                for _ in 0..1_000_000 {
                    if OVER.load(SeqCst) {
                        break;
                    }
                    hint::spin_loop();
                }
                HEARS.store(true, SeqCst);
            });
        })
        .unwrap();
        let waits = spawn_kthread_on(1, "waits", move || {
            while !DEAF.load(SeqCst) {
                hint::spin_loop();
            }
            BEGINS.store(true, SeqCst);
            wait();
            let is_too_soon = !HEARS.load(SeqCst);
            OVER.store(true, SeqCst);
            assert!(!is_too_soon);
        })
        .unwrap();
        deaf.wait_released();
        waits.wait_released();
    }
}

/// Probes come and go quickly while all other CPUs call a function with a breakpoint as fast as
/// they can. Interrupts find such a CPU in the slot of that breakpoint nearly always. It need not
/// be asked until one finds it elsewhere, because the slot stays.
#[guest_test(timeout = 120)]
fn a_busy_breakpoint_does_not_hold_up_other_probes() {
    jprobe! {
        fn mirror_hot_target(_a: u64) {}
    }
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn bystander(a: u64) -> u64 {
        black_box(a + 2026)
    }
    static STOP: AtomicBool = AtomicBool::new(false);
    static ASKED: AtomicU64 = AtomicU64::new(0);
    fn count_question(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        ASKED.fetch_add(1, SeqCst);
        PreVerdict::Execute
    }
    const ROUNDS: u64 = 20;
    STOP.store(false, SeqCst);
    cpu::stay_on(0);
    let busy = register(Box::new(
        Jprobe::new().symbol("hot_target").entry(mirror_hot_target),
    ))
    .unwrap();
    let questions = register(Box::new(
        Kprobe::new()
            .symbol("kernel::probes::text_poke::on_ipi")
            .pre(count_question),
    ))
    .unwrap();
    let callers: Vec<_> = (1..smp::online_cpus())
        .map(|cpu| {
            spawn_kthread_on(1 << cpu, "caller", || {
                while !STOP.load(SeqCst) {
                    assert_eq!(hot_target(41), 42);
                }
            })
            .expect("memory for a thread")
        })
        .collect();
    while busy.kprobe().hits() < 1000 {
        hint::spin_loop();
    }
    let before = ASKED.load(SeqCst);
    for _ in 0..ROUNDS {
        let probe = register(Box::new(Kprobe::new().symbol("bystander").pre(count))).unwrap();
        assert_eq!(bystander(black_box(1)), 2027);
        assert_eq!(probe.hits(), 1);
    }
    let asked = ASKED.load(SeqCst) - before;
    STOP.store(true, SeqCst);
    for caller in callers {
        caller.wait_released();
    }
    drop((busy, questions));
    // Each change waits a few times for each other CPU.
    let others = smp::online_cpus() as u64 - 1;
    assert!(
        asked < 40 * ROUNDS * others,
        "asked {asked} times for {ROUNDS} registrations"
    );
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nmi_target(n: u64) -> u64 {
    black_box(n + 12)
}
