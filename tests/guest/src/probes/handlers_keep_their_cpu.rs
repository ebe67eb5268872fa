//! No handler loses its CPU to another task, whether or not its interrupts are on.
//!
//! A task is ready on each CPU all the time. A handler whose interrupts are on stays in it until
//! the scheduler has asked for a switch and ticks have come upon that, each of which would have
//! made it; one whose interrupts are off asks itself.

use crate::{
    tools::handlers::{Deed, after, at_entry, at_return, before},
    tools::jumps::Optimization,
};
use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::{
    hint::{self, black_box},
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};
use kernel::{
    arch::{percpu, smp},
    probes::{Jprobe, Kprobe, Kretprobe, ReturnMethod, jprobe, register},
    task::{self, kthread::spawn_kthread_on},
};
use x86_64::instructions::interrupts::{self, without_interrupts};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn undisturbed(a: u64) -> u64 {
    let words = black_box([a, 3, 4]);
    words[0] + words[1] + words[2]
}

const CPUS: usize = 2;

/// How far the task has come that is ready on each CPU.
static OTHER: [AtomicU64; CPUS] = [const { AtomicU64::new(0) }; CPUS];
/// A probe on the tick. A handler holds the guard of its CPU alone, so what it misses are the ticks
/// that come upon that handler.
static TICKS: Kprobe = Kprobe::new().symbol("timer_interrupt");

/// Handlers that ran, with interrupts on and off.
static RAN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Handlers that were switched away from or moved, and those that were told that they might be.
static SWITCHED: AtomicU64 = AtomicU64::new(0);
static MISLED: AtomicU64 = AtomicU64::new(0);

/// Stays where it is until a switch is due, and some ticks longer.
struct Linger;

impl Deed for Linger {
    fn done() {
        let place = || (percpu::cpu_id(), percpu::current_raw());
        let before = place();
        let other = &OTHER[before.0];
        let others_before = other.load(SeqCst);
        let may_switch = percpu::preemptible() || task::may_sleep() || !percpu::in_probe_handler();
        MISLED.fetch_add(may_switch.into(), SeqCst);
        if interrupts::are_enabled() {
            while !percpu::this().need_resched() {
                hint::spin_loop();
            }
            let ticks = TICKS.nmissed();
            while TICKS.nmissed() < ticks + 3 {
                hint::spin_loop();
            }
        } else {
            percpu::this().set_need_resched();
            // The end of a reason against a switch makes the switch, if it may.
            percpu::preempt_disable();
            percpu::preempt_enable();
        }
        let is_elsewhere = place() != before || other.load(SeqCst) != others_before;
        SWITCHED.fetch_add(is_elsewhere.into(), SeqCst);
        RAN[usize::from(!interrupts::are_enabled())].fetch_add(1, SeqCst);
    }
}

jprobe! {
    fn mirror_that_lingers(_a: u64) {
        Linger::done();
    }
}

/// Runs `calls` with a task ready on each CPU, and a probe on the tick.
fn with_others_ready(calls: impl FnOnce()) {
    assert_eq!(smp::online_cpus(), CPUS);
    for counter in RAN.iter().chain([&SWITCHED, &MISLED]) {
        counter.store(0, SeqCst);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let others: Vec<_> = (0..CPUS)
        .map(|cpu| {
            let stop = stop.clone();
            spawn_kthread_on(1 << cpu, "ready", move || {
                while !stop.load(Relaxed) {
                    OTHER[cpu].fetch_add(1, SeqCst);
                }
            })
            .expect("memory for a thread")
        })
        .collect();
    kernel::probes::register_kprobe(&TICKS).unwrap();
    calls();
    kernel::probes::unregister_kprobe(&TICKS).unwrap();
    stop.store(true, SeqCst);
    others.iter().for_each(|other| other.wait_released());
    assert_eq!(
        MISLED.load(SeqCst),
        0,
        "handlers were told that they may be switched away from"
    );
    assert_eq!(SWITCHED.load(SeqCst), 0, "handlers lost their CPU");
}

/// Calls the function, from code whose interrupts are on and off; how many handlers ran with them
/// on, and off.
fn call() -> [(u64, u64); 2] {
    let ran = || RAN.each_ref().map(|ran| ran.swap(0, SeqCst)).into();
    assert_eq!(undisturbed(black_box(1)), 8);
    let on = ran();
    without_interrupts(|| assert_eq!(undisturbed(black_box(1)), 8));
    // The others get their turn: a switch was due.
    let others: Vec<_> = OTHER.iter().map(|other| other.load(SeqCst)).collect();
    while OTHER
        .iter()
        .zip(&others)
        .any(|(other, before)| other.load(SeqCst) == *before)
    {
        hint::spin_loop();
    }
    [on, ran()]
}

/// At breakpoints only return handlers have the interrupts of the code, by the usual method.
#[guest_test(timeout = 120)]
fn handlers_behind_a_breakpoint_keep_their_cpu() {
    let _knob = Optimization::set(false);
    with_others_ready(|| {
        let probe = register(Box::new(
            Kprobe::new()
                .symbol("undisturbed")
                .pre(before::<Linger>)
                .post(after::<Linger>),
        ))
        .unwrap();
        assert_eq!(call(), [(0, 2), (0, 2)], "pre and post");
        drop(probe);
        let probe = register(Box::new(
            Jprobe::new()
                .symbol("undisturbed")
                .entry(mirror_that_lingers),
        ))
        .unwrap();
        assert_eq!(call(), [(0, 1), (0, 1)], "jprobe");
        drop(probe);
        for method in [ReturnMethod::Asm, ReturnMethod::Trap3, ReturnMethod::Trap4] {
            let probe = Kretprobe::new().symbol("undisturbed").return_method(method);
            let probe = register(Box::new(
                probe.entry(at_entry::<Linger>).handler(at_return::<Linger>),
            ))
            .unwrap();
            let with_interrupts_on = if method == ReturnMethod::Asm {
                (1, 1)
            } else {
                (0, 2)
            };
            assert_eq!(
                call(),
                [with_interrupts_on, (0, 2)],
                "entry and return, {method:?}"
            );
            drop(probe);
        }
    });
}

/// By jumps each handler has the interrupts of the code.
#[guest_test(timeout = 120)]
fn handlers_in_a_detour_keep_their_cpu() {
    let _knob = Optimization::set(true);
    with_others_ready(|| {
        let probe = register(Box::new(
            Kprobe::new().symbol("undisturbed").pre(before::<Linger>),
        ))
        .unwrap();
        assert_eq!(call(), [(1, 0), (0, 1)], "pre");
        let second = register(Box::new(
            Kretprobe::new()
                .symbol("undisturbed")
                .handler(at_return::<Linger>),
        ))
        .unwrap();
        assert_eq!(call(), [(2, 0), (0, 2)], "pre and return, of a chain");
        drop((second, probe));
        let probe = Kretprobe::new()
            .symbol("undisturbed")
            .entry(at_entry::<Linger>)
            .handler(at_return::<Linger>);
        let probe = register(Box::new(probe)).unwrap();
        assert_eq!(call(), [(2, 0), (0, 2)], "entry and return");
        drop(probe);
    });
}
