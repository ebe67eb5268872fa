//! The scheduler and what sleeps by it.
//!
//! Tasks are switched at ticks and when they wait. Sleepers are woken in the order of their times,
//! by the tick of a CPU that works or by the alarm of one that idles. An idle CPU takes no ticks.

use crate::{
    harness::waiting::soon,
    tools::jumps::{Optimization, byte_at},
};
use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::{
    hint,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
};
use kernel::{
    arch::{percpu, smp},
    mm::{frame, heap},
    probes::{Kprobe, PreVerdict, PtRegs, register},
    symbols,
    sync::{Mutex, SpinLock},
    task::{
        self, TaskRef, WaitQueue,
        kthread::{spawn_kthread, spawn_kthread_on},
        scheduler,
        sleep::{sleep_ns, sleep_until},
    },
    time::{NSEC_PER_MSEC, TICK_NS, ktime_get},
};
use x86_64::instructions::interrupts;

fn spawn(body: impl FnOnce() + Send + 'static) -> TaskRef {
    spawn_kthread("test", body).expect("memory for a thread")
}

/// Timer interrupts on each CPU.
static TICKS: [AtomicUsize; percpu::MAX_CPUS] = [const { AtomicUsize::new(0) }; percpu::MAX_CPUS];

fn count_tick(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    TICKS[percpu::cpu_id()].fetch_add(1, SeqCst);
    PreVerdict::Execute
}

/// Keeps CPU 0 busy for some ticks while the others have nothing to do, and looks at what they take
/// meanwhile.
fn ticks_rest_on_idle_cpus() {
    const BUSY: usize = 50;
    /// For what comes once: what the registration left to do, the end of this task's turn there.
    const FEW: usize = BUSY / 5;
    let probe = register(Box::new(
        Kprobe::new().symbol("timer_interrupt").pre(count_tick),
    ))
    .unwrap();
    let busy = spawn_on(0, || {
        let before: Vec<usize> = TICKS.iter().map(|ticks| ticks.load(SeqCst)).collect();
        while TICKS[0].load(SeqCst) < before[0] + BUSY {
            hint::spin_loop();
        }
        for cpu in 1..smp::online_cpus() {
            let taken = TICKS[cpu].load(SeqCst) - before[cpu];
            assert!(
                taken <= FEW,
                "CPU {cpu} took {taken} ticks and had nothing to do"
            );
        }
    });
    busy.wait_released();
    drop(probe);
}

/// A task on each CPU sleeps alone, and all of them at once: nothing but the alarm of its CPU wakes
/// it.
fn sleepers_wake_on_idle_cpus() {
    for round in 1..=10 {
        let threads: Vec<TaskRef> = (0..smp::online_cpus())
            .map(|cpu| {
                spawn_on(cpu, move || {
                    for times in 1..=3 {
                        let deadline = ktime_get() + (round + cpu as u64) * times * NSEC_PER_MSEC;
                        sleep_until(deadline);
                        assert!(ktime_get() >= deadline, "woken too early");
                    }
                })
            })
            .collect();
        threads.iter().for_each(|thread| thread.wait_released());
    }
}

fn spawn_on(cpu: usize, body: impl FnOnce() + Send + 'static) -> TaskRef {
    spawn_kthread_on(1 << cpu, "test", body).expect("memory for a thread")
}

#[guest_test]
fn an_idle_cpu_of_two_takes_no_ticks() {
    ticks_rest_on_idle_cpus();
}

#[guest_test(smp = 4)]
fn idle_cpus_of_four_take_no_ticks() {
    ticks_rest_on_idle_cpus();
}

#[guest_test(smp = 1)]
fn the_only_cpu_wakes_by_its_alarm() {
    sleepers_wake_on_idle_cpus();
}

#[guest_test]
fn two_cpus_wake_by_their_alarms() {
    sleepers_wake_on_idle_cpus();
}

#[guest_test(smp = 4)]
fn four_cpus_wake_by_their_alarms() {
    sleepers_wake_on_idle_cpus();
}

#[guest_test(icount)]
fn alarms_come_where_time_counts_instructions() {
    sleepers_wake_on_idle_cpus();
}

/// The last reason against a switch ends while another task waits. That task runs at once, and not
/// only when the next interrupt comes.
#[guest_test]
fn a_waiting_task_runs_as_soon_as_no_reason_is_left_against_it() {
    // A new task has the last CPU 0. The switch to it changes that, also if a tick takes the CPU
    // from it before its first instruction.
    let waiting = Arc::new(SpinLock::new(None::<TaskRef>));
    let is_wanted = Arc::new(AtomicBool::new(false));
    let (shared, wanted) = (waiting.clone(), is_wanted.clone());
    let keeper = spawn_on(1, move || {
        percpu::preempt_disable();
        wanted.store(true, SeqCst);
        let other = loop {
            if let Some(other) = shared.lock().clone() {
                break other;
            }
            hint::spin_loop();
        };
        percpu::this().set_need_resched();
        assert_eq!(other.last_cpu(), 0, "preemption was off");
        percpu::preempt_enable();
        assert_eq!(other.last_cpu(), 1, "the other task still waits");
    });
    let maker = spawn_on(0, move || {
        while !is_wanted.load(SeqCst) {
            hint::spin_loop();
        }
        let other = spawn_on(1, || {});
        *waiting.lock() = Some(other.clone());
        other.wait_released();
    });
    keeper.wait_released();
    maker.wait_released();
}

/// A function that takes a jump at its entry.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn switched_target(a: u64) -> u64 {
    hint::black_box(a * 5 + 1)
}

/// A handler that a jump leads to has its interrupts on. It keeps its CPU all the same, also where
/// the last reason against a switch but the handler itself ends.
#[guest_test]
fn a_handler_gives_way_to_nobody() {
    static WANTED: AtomicBool = AtomicBool::new(false);
    static WAITS: AtomicBool = AtomicBool::new(false);
    static RAN: AtomicBool = AtomicBool::new(false);
    static GAVE_WAY: AtomicBool = AtomicBool::new(false);
    fn wait(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        WANTED.store(true, SeqCst);
        while !WAITS.load(SeqCst) {
            hint::spin_loop();
        }
        percpu::preempt_disable();
        percpu::this().set_need_resched();
        percpu::preempt_enable();
        GAVE_WAY.store(RAN.load(SeqCst), SeqCst);
        PreVerdict::Execute
    }
    let _knob = Optimization::set(true);
    let probe = Kprobe::new().symbol("switched_target").pre(wait);
    let probe = register(Box::new(probe)).unwrap();
    assert_eq!(byte_at(probe.addr()), 0xe9);
    let keeper = spawn_on(1, || {
        assert_eq!(switched_target(hint::black_box(2)), 11);
    });
    let other = spawn_on(0, || {
        while !WANTED.load(SeqCst) {
            hint::spin_loop();
        }
        let other = spawn_on(1, || RAN.store(true, SeqCst));
        WAITS.store(true, SeqCst);
        other.wait_released();
    });
    keeper.wait_released();
    other.wait_released();
    assert!(!GAVE_WAY.load(SeqCst));
    drop(probe);
}

/// One that has preemption off, or interrupts.
#[guest_test]
fn a_task_that_may_not_be_switched_away_from_is_not_preemptible() {
    percpu::preempt_disable();
    let counted = percpu::preemptible();
    percpu::preempt_enable();
    let masked = interrupts::without_interrupts(percpu::preemptible);
    assert_eq!(
        (counted, masked, percpu::preemptible()),
        (false, false, true)
    );
}

/// Spins until the flag is set, with no call of another function.
#[inline(never)]
fn spins_until(flag: &AtomicBool) {
    while !flag.load(SeqCst) {
        hint::spin_loop();
    }
}

/// A task that was preempted somewhere and has run since is preempted there no more, also while it
/// waits for its turn again.
#[guest_test]
fn a_task_that_has_run_again_is_preempted_nowhere() {
    static GO_ON: AtomicBool = AtomicBool::new(false);
    static AWAY: AtomicBool = AtomicBool::new(false);
    static STOP: AtomicBool = AtomicBool::new(false);
    let spins = symbols::lookup_addr(spins_until as *const () as u64).unwrap();
    let inside = move |ip: u64| (spins.start..spins.start + spins.size).contains(&ip);
    let spinner = spawn_on(1, || {
        spins_until(&GO_ON);
        // It is not preempted somewhere else.
        interrupts::disable();
        AWAY.store(true, SeqCst);
        while !STOP.load(SeqCst) {
            task::schedule();
        }
        interrupts::enable();
    });
    let keeper = spawn_on(1, move || {
        let preempted = || {
            percpu::preempt_disable();
            let preempted = scheduler::is_preempted_in(&inside);
            percpu::preempt_enable();
            preempted
        };
        while !preempted() {
            task::schedule();
        }
        GO_ON.store(true, SeqCst);
        while !AWAY.load(SeqCst) {
            task::schedule();
        }
        // Both are for this CPU alone, so the other one waits in the queue.
        let still = preempted();
        STOP.store(true, SeqCst);
        assert!(!still);
    });
    spinner.wait_released();
    keeper.wait_released();
}

/// On all CPUs at once, so that some of them have to wait for the locks.
#[guest_test(smp = 4)]
fn starting_tasks_leaves_interrupts_on() {
    let starters: Vec<_> = (0..smp::online_cpus())
        .map(|cpu| {
            spawn_on(cpu, || {
                for _ in 0..100 {
                    let task = spawn(|| ());
                    assert!(interrupts::are_enabled());
                    task.wait_released();
                }
            })
        })
        .collect();
    for starter in starters {
        starter.wait_released();
    }
}

/// Tasks that become ready for a CPU which sleeps without an alarm, from another CPU, all run.
#[guest_test(smp = 4)]
fn a_task_for_an_idle_cpu_runs() {
    for _ in 0..200 {
        for cpu in 0..smp::online_cpus() {
            spawn_on(cpu, move || assert_eq!(percpu::cpu_id(), cpu)).wait_released();
        }
    }
}

#[guest_test]
fn spinning_thread_is_preempted_on_its_cpu() {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = stop.clone();
    let spinner = spawn_on(0, move || {
        while !seen.load(SeqCst) {
            hint::spin_loop();
        }
    });
    let other = spawn_on(0, move || stop.store(true, SeqCst));
    other.wait_released();
    spinner.wait_released();
}

/// A sleeper is woken by a tick, and each of these by another one. Time counts instructions, or the
/// host might stop the CPU until a sleep that has not begun is over.
#[guest_test(icount, smp = 1, cmdline = "tick_ms=50")]
fn ticks_come_as_the_command_line_says() {
    let start = ktime_get();
    for _ in 0..3 {
        sleep_ns(NSEC_PER_MSEC);
    }
    assert!(
        ktime_get() - start >= 2 * 50 * NSEC_PER_MSEC,
        "ticks came early"
    );
}

#[guest_test]
fn preemption_waits_while_it_is_off() {
    let ran = Arc::new(AtomicBool::new(false));
    let other = ran.clone();
    let thread = spawn_on(0, move || {
        percpu::preempt_disable();
        let other = spawn_on(0, move || other.store(true, SeqCst));
        // Until a tick has asked for a switch, and some ticks more.
        while !percpu::this().need_resched() {
            hint::spin_loop();
        }
        let end = ktime_get() + 5 * TICK_NS;
        while ktime_get() < end {
            hint::spin_loop();
        }
        assert!(
            !ran.load(SeqCst),
            "another task ran on a CPU with preemption off"
        );
        percpu::preempt_enable();
        other.wait_released();
    });
    thread.wait_released();
}

#[guest_test(smp = 4)]
fn thread_runs_where_it_is_allowed() {
    for cpu in 0..smp::online_cpus() {
        let thread = spawn_on(cpu, move || {
            for _ in 0..20 {
                assert_eq!(percpu::cpu_id(), cpu);
                task::schedule();
            }
        });
        thread.wait_released();
    }
}

/// Each side sleeps until the other has moved: one lost wake-up, and both sleep for ever.
#[guest_test]
fn ping_pong_across_cpus_loses_no_wake_up() {
    const ROUNDS: usize = 10_000;
    static QUEUE: WaitQueue = WaitQueue::new();
    static TURN: AtomicUsize = AtomicUsize::new(0);
    TURN.store(0, SeqCst);
    let threads = [0, 1].map(|side| {
        spawn_on(side % smp::online_cpus(), move || {
            for round in 0..ROUNDS {
                let mine = 2 * round + side;
                QUEUE.wait_until(|| TURN.load(SeqCst) == mine);
                TURN.store(mine + 1, SeqCst);
                QUEUE.wake_one();
            }
        })
    });
    threads.iter().for_each(|thread| thread.wait_released());
    assert_eq!(TURN.load(SeqCst), 2 * ROUNDS);
}

/// As many wake-ups as units, more tasks than units at any time: a wake-up that goes to a task
/// which does not need it must be passed on.
#[guest_test(smp = 4)]
fn wake_one_reaches_a_task_that_needs_it() {
    const THREADS: usize = 8;
    const UNITS: usize = 2_000;
    static QUEUE: WaitQueue = WaitQueue::new();
    static FREE: AtomicUsize = AtomicUsize::new(0);
    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    FREE.store(0, SeqCst);
    TAKEN.store(0, SeqCst);
    let take = || {
        FREE.fetch_update(SeqCst, SeqCst, |free| free.checked_sub(1))
            .is_ok()
    };
    let threads: Vec<TaskRef> = (0..THREADS)
        .map(|_| {
            spawn(move || {
                for _ in 0..UNITS {
                    QUEUE.wait_until(take);
                    TAKEN.fetch_add(1, SeqCst);
                }
            })
        })
        .collect();
    for _ in 0..THREADS * UNITS {
        FREE.fetch_add(1, SeqCst);
        QUEUE.wake_one();
    }
    threads.iter().for_each(|thread| thread.wait_released());
    assert_eq!(
        (TAKEN.load(SeqCst), FREE.load(SeqCst)),
        (THREADS * UNITS, 0)
    );
}

#[guest_test]
fn wait_with_deadline_ends_at_it() {
    static QUEUE: WaitQueue = WaitQueue::new();
    let deadline = ktime_get() + 20 * NSEC_PER_MSEC;
    let result = QUEUE.wait_until_deadline(deadline, || false);
    assert_eq!(result, Err(kernel::errno::Errno::ETIMEDOUT));
    assert!(ktime_get() >= deadline);
    assert_eq!(QUEUE.wait_until_deadline(deadline, || true), Ok(()));
}

/// Time counts instructions, or the host might stop the CPU until the times of some are over before
/// they sleep.
#[guest_test(icount)]
fn sleepers_wake_in_the_order_of_their_times() {
    let order = Arc::new(SpinLock::new(Vec::new()));
    let start = ktime_get() + 20 * NSEC_PER_MSEC;
    let threads: Vec<TaskRef> = [4, 1, 3, 0, 2]
        .into_iter()
        .map(|place| {
            let order = order.clone();
            // On one CPU, which runs them in the order in which they are woken.
            spawn_on(0, move || {
                let deadline = start + place * 5 * TICK_NS;
                sleep_until(deadline);
                assert!(ktime_get() >= deadline, "woken too early");
                order.lock().push(place);
            })
        })
        .collect();
    threads.iter().for_each(|thread| thread.wait_released());
    assert_eq!(*order.lock(), [0, 1, 2, 3, 4]);
}

#[guest_test]
fn interrupted_task_leaves_its_wait() {
    static QUEUE: WaitQueue = WaitQueue::new();
    let result = Arc::new(SpinLock::new(None));
    let put = result.clone();
    let thread = spawn(move || *put.lock() = Some(QUEUE.wait_interruptible(|| false)));
    while thread.state() != task::TaskState::Sleeping {
        sleep_ns(NSEC_PER_MSEC);
    }
    scheduler::interrupt(&thread);
    thread.wait_released();
    assert_eq!(*result.lock(), Some(Err(kernel::errno::Errno::EINTR)));
}

#[guest_test(smp = 4)]
fn mutex_admits_one_task_at_a_time() {
    const ROUNDS: u64 = 2_000;
    static COUNT: Mutex<u64> = Mutex::new(0);
    *COUNT.lock() = 0;
    let threads: Vec<TaskRef> = (0..6)
        .map(|n| {
            spawn(move || {
                for round in 0..ROUNDS {
                    let mut count = COUNT.lock();
                    let before = *count;
                    if (round + n) % 64 == 0 {
                        // With the lock held: the others must wait.
                        task::schedule();
                    }
                    *count = before + 1;
                }
            })
        })
        .collect();
    threads.iter().for_each(|thread| thread.wait_released());
    assert_eq!(*COUNT.lock(), 6 * ROUNDS);
}

#[guest_test(smp = 4)]
fn spinlock_admits_one_cpu_at_a_time() {
    const ROUNDS: u64 = 20_000;
    static COUNT: SpinLock<u64> = SpinLock::new(0);
    *COUNT.lock() = 0;
    let threads: Vec<TaskRef> = (0..smp::online_cpus())
        .map(|cpu| spawn_on(cpu, || (0..ROUNDS).for_each(|_| *COUNT.lock() += 1)))
        .collect();
    threads.iter().for_each(|thread| thread.wait_released());
    assert_eq!(*COUNT.lock(), ROUNDS * smp::online_cpus() as u64);
}

#[guest_test(should_panic = "gives way while preemption is off")]
fn sleeping_with_a_spinlock_held_is_reported() {
    static LOCK: SpinLock<()> = SpinLock::new(());
    let _guard = LOCK.lock();
    sleep_ns(NSEC_PER_MSEC);
}

#[guest_test]
fn ended_threads_leave_no_memory_behind() {
    static START: WaitQueue = WaitQueue::new();
    // All of them at the same time, so that each round needs as much as the first.
    let run = || {
        let started = Arc::new(AtomicBool::new(false));
        let thread = || {
            let started = started.clone();
            spawn(move || START.wait_until(|| started.load(SeqCst)))
        };
        let threads: Vec<TaskRef> = (0..20).map(|_| thread()).collect();
        started.store(true, SeqCst);
        START.wake_all();
        threads.iter().for_each(|thread| thread.wait_released());
    };
    run();
    // A thread's own reference goes a moment after it is seen as released: this may be a little
    // high.
    let (frames, bytes) = (frame::free_frames(), heap::usage().0);
    for _ in 0..20 {
        run();
    }
    let deadline = soon();
    while (frame::free_frames() < frames || heap::usage().0 > bytes) && ktime_get() < deadline {
        task::schedule();
    }
    assert!(frame::free_frames() >= frames, "frames");
    assert!(
        heap::usage().0 <= bytes,
        "{} > {bytes} bytes of heap",
        heap::usage().0
    );
}

#[guest_test]
fn released_thread_has_given_its_stack_back() {
    let first = spawn(|| ());
    first.wait_released();
    let second = spawn(|| ());
    assert_eq!(first.stack_range(), second.stack_range());
    second.wait_released();
}

#[guest_test(smp = 4)]
fn clock_never_goes_back_between_cpus() {
    static LATEST: AtomicU64 = AtomicU64::new(0);
    let threads: Vec<TaskRef> = (0..smp::online_cpus())
        .map(|cpu| {
            spawn_on(cpu, || {
                for _ in 0..20_000 {
                    let latest = LATEST.load(SeqCst);
                    let now = ktime_get();
                    // If a CPU's TSC is off, then by less than reading another CPU's
                    // takes.
                    assert!(now + 1_000_000 > latest, "{now} came after {latest}");
                    LATEST.fetch_max(now, SeqCst);
                }
            })
        })
        .collect();
    threads.iter().for_each(|thread| thread.wait_released());
}
