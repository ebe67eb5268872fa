//! Jumps are written and taken back while the code under them is executed, interrupted and
//! preempted.
//!
//! The bytes under a jump are written while no CPU and no preempted task is in the middle of them.
//! A handler that lingers in a detour keeps its memory. Calls are counted on the way, so that one
//! that runs neither by breakpoint nor by jump shows.

use super::{
    HITS, address, breakpoints, byte_at, count, is_jump, opt_fill, opt_recursion, opt_rust,
};
use alloc::{boxed::Box, sync::Arc, vec, vec::Vec};
use core::{
    hint::{self, black_box},
    mem::size_of_val,
    sync::atomic::{
        AtomicBool, AtomicU32, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};
use kernel::{
    arch::{idt::vector, percpu, smp},
    probes::{Kprobe, Kretprobe, PROBES, PreVerdict, PtRegs, Registered, register, survey},
    symbols,
    task::{
        kthread::{spawn_kthread, spawn_kthread_on},
        schedule,
        scheduler::is_preempted_in,
        sleep::sleep_until,
    },
    time::{NSEC_PER_MSEC, ktime_get},
};
use probes::kprobe::flags;

/// A probe is being unregistered while its handler runs from a detour.
#[guest_test]
fn unregistering_waits_for_a_handler_in_a_detour_under_interrupts() {
    while_a_handler_lingers(drop);
}

/// Likewise when the jump goes and the probe stays.
#[guest_test]
fn turning_the_knob_waits_for_a_handler_in_a_detour_under_interrupts() {
    while_a_handler_lingers(|probe| {
        PROBES.set_optimization(false).unwrap();
        REMOVED.store(true, SeqCst);
        PROBES.set_optimization(true).unwrap();
        drop(probe);
    });
}

/// A post handler comes to a probed address, where a jump would run none: the breakpoint is back
/// before the first hit sees the probe that has one.
#[guest_test]
fn a_post_handler_that_comes_to_a_jump_runs_from_its_first_hit_on() {
    static BEFORE: AtomicU64 = AtomicU64::new(0);
    static AFTER: AtomicU64 = AtomicU64::new(0);
    fn before(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        BEFORE.fetch_add(1, SeqCst);
        PreVerdict::Execute
    }
    fn after(_: &Kprobe, _: &mut PtRegs, _: u64) {
        AFTER.fetch_add(1, SeqCst);
    }
    static STOP: AtomicBool = AtomicBool::new(false);
    static REST: AtomicBool = AtomicBool::new(false);
    static RESTS: AtomicBool = AtomicBool::new(false);
    let caller = spawn_kthread_on(1 << 1, "calls", || {
        while !STOP.load(SeqCst) {
            let rests = REST.load(SeqCst);
            RESTS.store(rests, SeqCst);
            if !rests {
                assert_eq!(opt_rust(black_box(1), black_box(1)), 4);
            }
        }
    })
    .unwrap();
    let rest = |rest| {
        REST.store(rest, SeqCst);
        while RESTS.load(SeqCst) != rest {
            hint::spin_loop();
        }
    };
    let stays = register(Box::new(Kprobe::new().symbol("opt_rust").pre(count))).unwrap();
    for round in 0..20 {
        assert!(is_jump("opt_rust"), "round {round}");
        let comes = Kprobe::new().symbol("opt_rust").pre(before).post(after);
        let comes = register(Box::new(comes)).unwrap();
        let hits = comes.hits();
        while comes.hits() < hits + 10 {
            hint::spin_loop();
        }
        rest(true);
        assert_eq!(BEFORE.load(SeqCst), AFTER.load(SeqCst), "round {round}");
        drop(comes);
        rest(false);
    }
    STOP.store(true, SeqCst);
    caller.wait_released();
    drop(stays);
}

/// Probes come and go while tasks on all CPUs, more of them than CPUs, execute what the jump
/// replaces, stay in the middle of it for long, and are preempted there.
#[guest_test(smp = 4, timeout = 240)]
fn jumps_come_and_go_under_fire() {
    const BYTES: usize = 40_000;
    let stop = Arc::new(AtomicBool::new(false));
    let calls = Arc::new([const { AtomicU64::new(0) }; 3]);
    let threads: Vec<_> = (0..8)
        .map(|n| {
            let (stop, calls) = (stop.clone(), calls.clone());
            spawn_kthread("fires", move || {
                let mut buffer = vec![0u8; BYTES];
                while !stop.load(Relaxed) {
                    if n % 2 == 0 {
                        let filled = (n as u8).wrapping_add(calls[0].load(Relaxed) as u8);
                        let at = buffer.as_mut_ptr();
                        fill(at, filled, size_of_val(&*buffer));
                        assert!(buffer.iter().all(|byte| *byte == filled));
                    }
                    for i in 0..200 {
                        assert_eq!(opt_rust(i, black_box(1)), i * 3 + 1);
                        assert_eq!(opt_recursion(black_box(i % 3)), i % 3);
                    }
                    calls[n % 3].fetch_add(1, Relaxed);
                }
            })
            .unwrap()
        })
        .collect();
    for round in 0..10 {
        HITS.store(0, SeqCst);
        let in_fill = register(Box::new(Kprobe::new().symbol("opt_fill").pre(count))).unwrap();
        let in_rust = register(Box::new(Kprobe::new().symbol("opt_rust").pre(count))).unwrap();
        let on_return = register(Box::new(
            Kretprobe::<u64>::new()
                .symbol("opt_recursion")
                .maxactive(64)
                .handler(|_, _| {}),
        ))
        .unwrap();
        assert!(is_jump("opt_fill") && is_jump("opt_rust") && is_jump("opt_recursion"));
        let traps = breakpoints();
        let hits = HITS.load(SeqCst);
        while HITS.load(SeqCst) < hits + 300 {
            hint::spin_loop();
        }
        assert_eq!(breakpoints(), traps, "all three are jumps");
        if round % 3 == 0 {
            let neighbour = register(Box::new(
                Kprobe::new().symbol("opt_fill").offset(1).pre(count),
            ))
            .unwrap();
            assert!(!is_jump("opt_fill"));
            drop(neighbour);
            assert!(is_jump("opt_fill"));
        }
        drop((in_fill, in_rust, on_return));
        assert!(!is_jump("opt_fill") && !is_jump("opt_rust") && !is_jump("opt_recursion"));
    }
    stop.store(true, SeqCst);
    for thread in threads {
        thread.wait_released();
    }
    while PROBES.reap().unwrap() > 0 {
        kernel::task::schedule();
    }
    assert_eq!(PROBES.detours_in_use(), 0);
}

/// A task that was preempted in the middle of what the jump will cover: the breakpoint is there at
/// once, the jump only when that task has moved on.
#[guest_test]
fn no_jump_is_written_over_a_preempted_task() {
    static GO_ON: AtomicBool = AtomicBool::new(false);
    /// Where ticks have found calls of the function.
    static IN_DETOUR: AtomicU64 = AtomicU64::new(0);
    static UNDER_JUMP: AtomicU64 = AtomicU64::new(0);
    fn tick(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        // SAFETY: the first argument of the probed function, the frame of the interrupt.
        let ip = unsafe { &*(regs.di as *const PtRegs) }.ip;
        let start = opt_fill as *const () as u64;
        UNDER_JUMP.fetch_add(u64::from((start + 1..start + 5).contains(&ip)), SeqCst);
        IN_DETOUR.fetch_add(
            u64::from(ip != start && PROBES.original_ip(ip) == start),
            SeqCst,
        );
        PreVerdict::Execute
    }
    let ticks = register(Box::new(Kprobe::new().symbol("timer_interrupt").pre(tick))).unwrap();
    let covered = |ip: u64| (address("opt_fill") + 1..address("opt_fill") + 5).contains(&ip);
    let stop = Arc::new(AtomicBool::new(false));
    let filler = {
        let stop = stop.clone();
        spawn_kthread_on(1 << 1, "fills", move || {
            let mut buffer = vec![0u8; 1 << 20];
            while !stop.load(SeqCst) {
                fill(buffer.as_mut_ptr(), 7, buffer.len());
            }
        })
        .unwrap()
    };
    // Keeps CPU 1, once it has found the other one preempted in the right place.
    let keeper = spawn_kthread_on(1 << 1, "keeps", move || {
        loop {
            percpu::preempt_disable();
            if is_preempted_in(&covered) {
                break;
            }
            percpu::preempt_enable();
            schedule();
        }
        IS_PARKED.store(true, SeqCst);
        while !GO_ON.load(SeqCst) {
            hint::spin_loop();
        }
        percpu::preempt_enable();
    })
    .unwrap();
    static IS_PARKED: AtomicBool = AtomicBool::new(false);
    while !IS_PARKED.load(SeqCst) {
        schedule();
    }
    static PROBE: Kprobe = Kprobe::new().symbol("opt_fill").pre(count);
    let registers = spawn_kthread_on(1, "registers", || {
        kernel::probes::register_kprobe(&PROBE).unwrap()
    })
    .unwrap();
    while byte_at(address("opt_fill")) != 0xcc {
        schedule();
    }
    // It counts as optimised as soon as it is to be.
    while PROBE.flags() & flags::OPTIMIZED == 0 {
        schedule();
    }
    assert_eq!(byte_at(address("opt_fill")), 0xcc);
    // Calls in between come by the breakpoint and go by the detour. Each counts once, and does what
    // it should.
    HITS.store(0, SeqCst);
    let traps = breakpoints();
    for call in 1..=100 {
        let mut bytes = [0_u8; 4];
        fill(bytes.as_mut_ptr(), call as u8, 4);
        assert_eq!((bytes, HITS.load(SeqCst)), ([call as u8; 4], call));
    }
    // From when the breakpoint leads to the detour on, calls stay there: one that came back from a
    // slot would be under the jump.
    let mut bytes = vec![0_u8; 1 << 20];
    IN_DETOUR.store(0, SeqCst);
    let mut calls = 100;
    while IN_DETOUR.load(SeqCst) < 3 {
        fill(bytes.as_mut_ptr(), 1, bytes.len());
        calls += 1;
        assert_eq!(byte_at(address("opt_fill")), 0xcc);
        assert!(
            IN_DETOUR.load(SeqCst) > 0 || calls < 1_000,
            "no tick has found a call in the detour"
        );
    }
    UNDER_JUMP.store(0, SeqCst);
    while IN_DETOUR.load(SeqCst) < 10 {
        fill(bytes.as_mut_ptr(), 2, bytes.len());
        calls += 1;
    }
    assert_eq!(
        UNDER_JUMP.load(SeqCst),
        0,
        "calls executed what the jump will replace"
    );
    assert_eq!((PROBE.hits(), breakpoints() - traps), (calls, calls));
    GO_ON.store(true, SeqCst);
    registers.wait_released();
    assert!(is_jump("opt_fill"));
    stop.store(true, SeqCst);
    filler.wait_released();
    keeper.wait_released();
    drop(ticks);
    kernel::probes::unregister_kprobe(&PROBE).unwrap();
}

/// Jumps come over all places of the idle loop that allow one, also where an interrupt has just
/// found the idle task in the middle of what a jump will cover. On the only CPU, that task would
/// run again only when the registration is over.
#[guest_test(smp = 1)]
fn no_jump_waits_for_an_idle_task() {
    /// When the sleeper is to be woken, in nanoseconds since boot; 0 when it has been.
    static DUE_NS: AtomicU64 = AtomicU64::new(0);
    fn wake_sleeper(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        let due_ns = DUE_NS.swap(0, SeqCst);
        if due_ns != 0 {
            while ktime_get() < due_ns {
                hint::spin_loop();
            }
            // Taken as soon as interrupts are on, so at the next instruction where they are.
            smp::send_ipi(percpu::cpu_id(), vector::TIMER);
        }
        PreVerdict::Execute
    }
    let at = |ip: u64| register(Box::new(Kprobe::new().at(ip).pre(wake_sleeper)));
    // The post handler keeps a breakpoint there, at which the idle task may be preempted.
    let beside = |ip: u64| register(Box::new(Kprobe::new().at(ip).post(|_, _, _| ())));
    let idle = symbols::lookup_name("kernel::task::idle::run").expect("it is not inlined");
    let mut jumps = 0;
    for judged in survey::function(&idle).unwrap().iter() {
        let (ip, next) = (judged.insn.ip(), judged.insn.next_ip());
        let Ok(probe) = at(ip) else { continue };
        let becomes_jump = byte_at(ip) == 0xe9 && next < ip + 5;
        drop(probe);
        // A probe under the jump keeps the breakpoint there.
        let Some(under) = becomes_jump.then(|| beside(next).ok()).flatten() else {
            continue;
        };
        let probe = at(ip).unwrap();
        assert_eq!(byte_at(ip), 0xcc);
        let due_ns = ktime_get() + NSEC_PER_MSEC;
        DUE_NS.store(due_ns, SeqCst);
        sleep_until(due_ns);
        DUE_NS.store(0, SeqCst);
        drop(under);
        assert_eq!(byte_at(ip), 0xe9);
        drop(probe);
        jumps += 1;
    }
    assert!(jumps >= 3, "{jumps} places allow a jump");
}

/// A CPU runs in the middle of what the jump will cover, and takes interrupts there: nothing is
/// written under it.
#[guest_test]
fn no_jump_is_written_under_a_running_cpu() {
    /// How often a tick has found it there, and how often the code was another one then.
    static THERE: AtomicU64 = AtomicU64::new(0);
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    static STOP: AtomicBool = AtomicBool::new(false);
    static CODE: AtomicU32 = AtomicU32::new(0);
    fn code() -> u32 {
        // SAFETY: kernel text is mapped and readable for ever.
        unsafe {
            (opt_fill as *const u8)
                .add(1)
                .cast::<u32>()
                .read_unaligned()
        }
    }
    fn tick(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        // SAFETY: the first argument of the probed function, the frame of the interrupt.
        let ip = unsafe { &*(regs.di as *const PtRegs) }.ip;
        let start = opt_fill as *const () as u64;
        if (start + 1..start + 5).contains(&ip) {
            THERE.fetch_add(1, SeqCst);
            WRITTEN.fetch_add(u64::from(code() != CODE.load(SeqCst)), SeqCst);
        }
        PreVerdict::Execute
    }
    CODE.store(code(), SeqCst);
    let ticks = register(Box::new(Kprobe::new().symbol("timer_interrupt").pre(tick))).unwrap();
    let filler = spawn_kthread_on(1 << 1, "fills", || {
        let mut buffer = vec![0_u8; 1 << 21];
        for round in 1.. {
            if STOP.load(SeqCst) {
                break;
            }
            // It stays where it is, so only the CPU is waited for.
            percpu::preempt_disable();
            fill(buffer.as_mut_ptr(), round as u8, buffer.len());
            percpu::preempt_enable();
            assert!(buffer.iter().all(|byte| *byte == round as u8));
        }
    })
    .unwrap();
    for _ in 0..20 {
        let there = THERE.load(SeqCst);
        while THERE.load(SeqCst) == there {
            hint::spin_loop();
        }
        let probe = register(Box::new(Kprobe::new().symbol("opt_fill").pre(count))).unwrap();
        assert!(is_jump("opt_fill"));
        drop(probe);
    }
    STOP.store(true, SeqCst);
    filler.wait_released();
    assert_eq!(WRITTEN.load(SeqCst), 0, "of {} ticks", THERE.load(SeqCst));
    drop(ticks);
}

/// However the jump comes and goes meanwhile, each call is counted once, also those that hit the
/// breakpoint in between.
#[guest_test]
fn each_call_counts_once_while_the_knob_turns() {
    let probe = register(Box::new(Kprobe::new().symbol("opt_rust").pre(count))).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let calls = Arc::new(AtomicU64::new(0));
    let caller = {
        let (stop, calls) = (stop.clone(), calls.clone());
        spawn_kthread_on(1 << 1, "calls", move || {
            while !stop.load(SeqCst) {
                assert_eq!(opt_rust(black_box(5), black_box(1)), 16);
                calls.fetch_add(1, SeqCst);
            }
        })
        .unwrap()
    };
    for _ in 0..30 {
        for on in [false, true] {
            PROBES.set_optimization(on).unwrap();
            let before = calls.load(SeqCst);
            while calls.load(SeqCst) < before + 10 {
                hint::spin_loop();
            }
        }
    }
    stop.store(true, SeqCst);
    caller.wait_released();
    assert_eq!((probe.hits(), probe.nmissed()), (calls.load(SeqCst), 0));
    drop(probe);
}

/// Fills memory by the one instruction of `opt_fill`.
fn fill(at: *mut u8, byte: u8, len: usize) {
    // SAFETY: `opt_fill` writes `len` bytes from `at` on, the caller's.
    unsafe {
        core::arch::asm!(
            "call opt_fill",
            inout("rdi") at => _,
            inout("rcx") len => _,
            inout("al") byte => _,
            clobber_abi("C"),
        );
    }
}

static ENTERED: AtomicBool = AtomicBool::new(false);
static REMOVING: AtomicBool = AtomicBool::new(false);
static REMOVED: AtomicBool = AtomicBool::new(false);
static REMOVED_TOO_SOON: AtomicBool = AtomicBool::new(false);
static PROBE_OF_IPI: Kprobe = Kprobe::new()
    .symbol("kernel::probes::text_poke::on_ipi")
    .pre(count);

fn linger(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    if regs.di != 99 {
        return PreVerdict::Execute;
    }
    ENTERED.store(true, SeqCst);
    while !REMOVING.load(SeqCst) {
        hint::spin_loop();
    }
    // The remover has to ask this CPU, again and again: each of those IPIs comes here, and hits
    // a probe of its own, which is missed. If it does not ask, it is done too soon.
    let asked = PROBE_OF_IPI.nmissed();
    while PROBE_OF_IPI.nmissed() < asked + 20 && !REMOVED.load(SeqCst) {
        hint::spin_loop();
    }
    REMOVED_TOO_SOON.store(REMOVED.load(SeqCst), SeqCst);
    PreVerdict::Execute
}

/// Has `remove` take away the jump of a probe whose handler runs from the detour, with interrupts
/// on top of it: that waits for the handler, and the detour is still there for the way back.
fn while_a_handler_lingers(remove: impl FnOnce(Registered<Box<Kprobe>>)) {
    for flag in [&ENTERED, &REMOVING, &REMOVED, &REMOVED_TOO_SOON] {
        flag.store(false, SeqCst);
    }
    kernel::probes::register_kprobe(&PROBE_OF_IPI).unwrap();
    let probe = register(Box::new(Kprobe::new().symbol("opt_rust").pre(linger))).unwrap();
    assert!(is_jump("opt_rust"));
    let caller = spawn_kthread_on(1 << 1, "lingers", || {
        assert_eq!(opt_rust(black_box(99), black_box(1)), 298)
    })
    .unwrap();
    while !ENTERED.load(SeqCst) {
        hint::spin_loop();
    }
    REMOVING.store(true, SeqCst);
    remove(probe);
    REMOVED.store(true, SeqCst);
    caller.wait_released();
    assert!(!REMOVED_TOO_SOON.load(SeqCst));
    kernel::probes::unregister_kprobe(&PROBE_OF_IPI).unwrap();
    assert_eq!(PROBES.detours_in_use(), 0);
}
