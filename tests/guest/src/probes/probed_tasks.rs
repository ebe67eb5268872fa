//! Tasks inside probed calls: they are preempted, sleep, migrate or end there.
//!
//! Whatever becomes of a task, its calls give back what they had taken, and handlers and
//! breakpoints hold no other task up. Interrupts find a probed loop in its slots nearly always,
//! where no task may be switched away from, so such a loop gives way at its breakpoints.

use crate::probes::concurrency::{RUNS, count, count_return, hot_target, spawn};
use alloc::{boxed::Box, vec::Vec};
use core::{
    arch::{asm, global_asm},
    hint::{self, black_box},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};
use kernel::{
    arch::{cpu as processor, percpu},
    probes::{
        EntryVerdict, Kprobe, Kretprobe, KretprobeInstance, PROBES, PreVerdict, PtRegs, register,
    },
    task::{self, WaitQueue, kthread::spawn_kthread_on},
};
use probes::instance::TASK_CELLS;
use x86_64::registers::rflags;

unsafe extern "C" {
    /// Returns when the byte at `flag` is not 0 any more.
    fn spin_until_set(flag: *const u8);
}

global_asm!(
    ".pushsection .text.spin_until_set, \"ax\", @progbits",
    ".globl spin_until_set",
    ".type spin_until_set, @function",
    "spin_until_set:",
    ".cfi_startproc",
    "cmp byte ptr [rdi], 0",
    "je spin_until_set",
    "ret",
    ".cfi_endproc",
    ".size spin_until_set, . - spin_until_set",
    ".popsection",
);

/// Return probes on the scheduler and on the exit of tasks lose no instance to tasks that never
/// return.
#[guest_test(timeout = 120)]
fn exiting_tasks_give_their_instances_back() {
    let schedule = register(Box::new(
        Kretprobe::<u64>::new().symbol("schedule").maxactive(20),
    ))
    .unwrap();
    static EXITS: AtomicU64 = AtomicU64::new(0);
    fn count_exit(_: &mut KretprobeInstance<u64>, _: &mut PtRegs) -> EntryVerdict {
        EXITS.fetch_add(1, SeqCst);
        EntryVerdict::Track
    }
    EXITS.store(0, SeqCst);
    let exit = register(Box::new(
        Kretprobe::<u64>::new()
            .symbol("do_exit")
            .maxactive(4)
            .entry(count_exit),
    ))
    .unwrap();
    for exits in 1..=5 * 4 {
        spawn(|| ()).wait_released();
        assert_eq!(
            EXITS.load(SeqCst),
            exits,
            "the entry of do_exit was hit, and had an instance"
        );
    }
    assert_eq!(
        exit.nmissed(),
        0,
        "an instance of do_exit was lost with its task"
    );
    assert_eq!(exit.hits(), 0, "do_exit does not return");
    let before = schedule.hits();
    for _ in 0..50 {
        task::schedule();
    }
    assert!(schedule.hits() >= before + 50);
    for _ in 0..5 * 20 {
        spawn(|| task::schedule()).wait_released();
    }
    assert_eq!(
        schedule.nmissed(),
        0,
        "an instance of schedule was lost with its task"
    );
    drop(exit);
    assert_eq!(
        PROBES.reap(),
        Ok(0),
        "an instance of do_exit stayed with a task that is gone"
    );
    drop(schedule);
}

/// Tasks that end without a call in flight give nothing back, and leave all that they had: the
/// place in the table of tasks and the instances of others. More of them than that table has
/// places.
#[guest_test(timeout = 180)]
fn tasks_without_instances_leave_nothing_behind() {
    static CALLED: AtomicU64 = AtomicU64::new(0);
    CALLED.store(0, SeqCst);
    let probe = register(Box::new(
        Kretprobe::<u64>::new().symbol("hot_target").maxactive(1),
    ))
    .unwrap();
    let stale = PROBES.stale_instances();
    // A task is known by where its `Task` lies, which no other task gets as long as that is kept.
    let tasks: Vec<_> = (0..TASK_CELLS + 100)
        .map(|_| {
            let task = spawn(|| _ = CALLED.fetch_add(1, SeqCst));
            task.wait_released();
            task
        })
        .collect();
    assert_eq!(CALLED.load(SeqCst), tasks.len() as u64);
    assert_eq!(
        (probe.hits(), probe.nmissed(), PROBES.stale_instances()),
        (0, 0, stale)
    );
    for call in 1..=10 {
        spawn(|| assert_eq!(hot_target(1), 2)).wait_released();
        assert_eq!(
            (probe.hits(), probe.nmissed()),
            (call, 0),
            "the one instance is there, and so is a place in the table"
        );
    }
    drop(probe);
    assert_eq!(PROBES.reap(), Ok(0));
}

/// Interrupts are taken in slots there nearly always, where no task may be switched away from.
#[guest_test]
fn a_loop_whose_every_instruction_is_probed_gives_way() {
    static STOP: AtomicBool = AtomicBool::new(false);
    static TICKS: AtomicU64 = AtomicU64::new(0);
    /// The ticks when the other task ran.
    static RAN_AT: AtomicU64 = AtomicU64::new(0);
    fn tick(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        if percpu::cpu_id() == 1 {
            TICKS.fetch_add(1, SeqCst);
        }
        PreVerdict::Execute
    }
    let at = |offset| {
        register(Box::new(
            Kprobe::new()
                .symbol("spin_until_set")
                .offset(offset)
                .pre(count),
        ))
        .unwrap()
    };
    let probes = [at(0), at(3)];
    let ticks = register(Box::new(Kprobe::new().symbol("timer_interrupt").pre(tick))).unwrap();
    for _ in 0..20 {
        STOP.store(false, SeqCst);
        let hits = probes[1].hits();
        // SAFETY: the flag is a byte that lives for ever.
        let spinner = spawn_kthread_on(1 << 1, "spins", || unsafe {
            spin_until_set(STOP.as_ptr().cast())
        })
        .unwrap();
        while probes[1].hits() < hits + 10 {
            hint::spin_loop();
        }
        let other = spawn_kthread_on(1 << 1, "waits", || {
            RAN_AT.store(TICKS.load(SeqCst), SeqCst);
            STOP.store(true, SeqCst);
        })
        .unwrap();
        // When it waits already: what keeps this task from making it does not count.
        let before = TICKS.load(SeqCst);
        other.wait_released();
        spinner.wait_released();
        let waited = RAN_AT.load(SeqCst).saturating_sub(before);
        assert!(waited <= 10, "the other task waited for {waited} ticks");
    }
    assert!(probes.iter().all(|probe| probe.nmissed() == 0));
    drop((probes, ticks));
}

/// The entry that preempts in front of a breakpoint leaves RFLAGS.AC as it finds it. A task that
/// is switched to there would run with the user memory open that the code at the breakpoint uses.
#[guest_test]
fn code_with_user_memory_open_does_not_give_way_at_a_breakpoint() {
    const AC: u64 = 1 << 18;
    static STOP: AtomicBool = AtomicBool::new(false);
    static TICKS: AtomicU64 = AtomicU64::new(0);
    static OPEN: AtomicU64 = AtomicU64::new(0);
    fn tick(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        if percpu::cpu_id() == 1 {
            TICKS.fetch_add(1, SeqCst);
        }
        PreVerdict::Execute
    }
    if !processor::has_smap() {
        // No entry of this kernel touches AC then.
        return;
    }
    let at = |offset| {
        let probe = Kprobe::new().symbol("spin_until_set").offset(offset);
        register(Box::new(probe.pre(count))).unwrap()
    };
    let probes = [at(0), at(3)];
    let ticks = register(Box::new(Kprobe::new().symbol("timer_interrupt").pre(tick))).unwrap();
    for _ in 0..10 {
        STOP.store(false, SeqCst);
        let hits = probes[1].hits();
        let spinner = spawn_kthread_on(1 << 1, "spins", || {
            // SAFETY: AC has a meaning for accesses to user memory alone, and is cleared again. The
            // flag is a byte that lives for ever.
            unsafe {
                asm!("pushfq", "or dword ptr [rsp], {}", "popfq", const AC as u32);
                spin_until_set(STOP.as_ptr().cast());
                asm!("pushfq", "and dword ptr [rsp], {}", "popfq", const !(AC as u32) as i32);
            }
        })
        .unwrap();
        while probes[1].hits() < hits + 10 {
            hint::spin_loop();
        }
        let before = TICKS.load(SeqCst);
        let other = spawn_kthread_on(1 << 1, "waits", || {
            OPEN.fetch_add(rflags::read_raw() & AC, SeqCst);
        })
        .unwrap();
        while TICKS.load(SeqCst) < before + 5 {
            hint::spin_loop();
        }
        STOP.store(true, SeqCst);
        other.wait_released();
        spinner.wait_released();
    }
    assert_eq!(OPEN.load(SeqCst), 0, "a task found user memory open");
    drop((probes, ticks));
}

/// A switch of tasks keeps RFLAGS.DF, so the entry that preempts in front of a breakpoint clears
/// it. Otherwise the next task's copies would go backwards.
#[guest_test]
fn code_that_counts_down_gives_way_to_code_that_counts_up() {
    const DF: u64 = 1 << 10;
    static STOP: AtomicBool = AtomicBool::new(false);
    static DOWN: AtomicU64 = AtomicU64::new(0);
    let at = |offset| {
        let probe = Kprobe::new().symbol("spin_until_set").offset(offset);
        register(Box::new(probe.pre(count))).unwrap()
    };
    let probes = [at(0), at(3)];
    for _ in 0..10 {
        STOP.store(false, SeqCst);
        let hits = probes[1].hits();
        let spinner = spawn_kthread_on(1 << 1, "spins", || {
            // SAFETY: the flag is a byte that lives for ever. DF is clear again at the end.
            unsafe {
                asm!(
                    "std",
                    "call spin_until_set",
                    "cld",
                    in("rdi") STOP.as_ptr(),
                    clobber_abi("C"),
                );
            }
        })
        .unwrap();
        while probes[1].hits() < hits + 10 {
            hint::spin_loop();
        }
        let other = spawn_kthread_on(1 << 1, "waits", || {
            DOWN.fetch_add(rflags::read_raw() & DF, SeqCst);
            STOP.store(true, SeqCst);
        })
        .unwrap();
        other.wait_released();
        spinner.wait_released();
    }
    assert_eq!(DOWN.load(SeqCst), 0, "a task found DF set");
    drop(probes);
}

/// Handlers run with preemption and interrupts off, on the CPU that hit.
#[guest_test(cmdline = "kprobes.optimize=0")]
fn handlers_cannot_be_preempted() {
    fn look(_probe: &Kprobe, _regs: &mut PtRegs) -> PreVerdict {
        assert!(!task::may_sleep());
        assert!(!x86_64::instructions::interrupts::are_enabled());
        assert!(percpu::this().probes.is_busy());
        PreVerdict::Execute
    }
    let probe = register(Box::new(Kprobe::new().symbol("hot_target").pre(look))).unwrap();
    hot_target(black_box(1));
    assert_eq!(probe.hits(), 1);
    drop(probe);
}

/// A hundred tasks sleep inside a return-probed function and come back on any CPU.
#[guest_test]
fn a_probed_call_may_sleep_and_migrate() {
    static GATE: WaitQueue = WaitQueue::new();
    static OPEN: AtomicBool = AtomicBool::new(false);
    static INSIDE: AtomicU64 = AtomicU64::new(0);
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn sleeping_target(n: u64) -> u64 {
        INSIDE.fetch_add(1, SeqCst);
        GATE.wait_until(|| OPEN.load(SeqCst));
        black_box(n * 2)
    }
    RUNS.store(0, SeqCst);
    OPEN.store(false, SeqCst);
    let probe = register(Box::new(
        Kretprobe::<u64>::new()
            .symbol("sleeping_target")
            .maxactive(100)
            .handler(count_return),
    ))
    .unwrap();
    let sleepers: Vec<_> = (1..=100)
        .map(|n| spawn(move || assert_eq!(sleeping_target(n), n * 2)))
        .collect();
    while INSIDE.load(SeqCst) < 100 {
        task::schedule();
    }
    OPEN.store(true, SeqCst);
    GATE.wake_all();
    sleepers.iter().for_each(|sleeper| sleeper.wait_released());
    assert_eq!(
        (RUNS.load(SeqCst), probe.hits(), probe.nmissed()),
        (100, 100, 0)
    );
    drop(probe);
}

/// Unregistering under calls in flight: they return quietly, and what they used is freed
/// afterwards.
#[guest_test]
fn calls_in_flight_outlive_their_probe() {
    static GATE: WaitQueue = WaitQueue::new();
    static OPEN: AtomicBool = AtomicBool::new(false);
    static INSIDE: AtomicU64 = AtomicU64::new(0);
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn waiting_target(n: u64) -> u64 {
        INSIDE.fetch_add(1, SeqCst);
        GATE.wait_until(|| OPEN.load(SeqCst));
        black_box(n * 3)
    }
    RUNS.store(0, SeqCst);
    OPEN.store(false, SeqCst);
    INSIDE.store(0, SeqCst);
    let probe = register(Box::new(
        Kretprobe::<u64>::new()
            .symbol("waiting_target")
            .maxactive(10)
            .handler(count_return),
    ))
    .unwrap();
    let callers: Vec<_> = (1..=10)
        .map(|n| spawn(move || assert_eq!(waiting_target(n), n * 3)))
        .collect();
    while INSIDE.load(SeqCst) < 10 {
        task::schedule();
    }
    drop(probe);
    assert_eq!(PROBES.reap(), Ok(1), "ten calls are still in flight");
    OPEN.store(true, SeqCst);
    GATE.wake_all();
    callers.iter().for_each(|caller| caller.wait_released());
    assert_eq!(RUNS.load(SeqCst), 0, "the handler is gone");
    assert_eq!(PROBES.reap(), Ok(0));
}
