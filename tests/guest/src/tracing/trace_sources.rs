//! Events of the kernel's own: system calls, the scheduler, page faults, interrupts, the timer.
//!
//! These events need no probe of a user: their places are in the kernel's code. Each test turns a
//! group on, has a program do something that is known, and looks for it in the lines, with the
//! values of their fields.

use alloc::{string::String, vec, vec::Vec};
use core::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use abi::open;
use kernel::{
    arch::smp,
    fs,
    task::{WaitQueue, exec::run_program, kthread::spawn_kthread, sleep::sleep_ns},
    time::NSEC_PER_MSEC,
    trace::TRACING,
};

fn write(name: &str, text: &str) {
    let path = alloc::format!("/sys/kernel/tracing/{name}");
    let file = fs::open(&path, open::WRONLY | open::TRUNC).unwrap();
    file.write_at(0, text.as_bytes()).unwrap();
}

fn read(name: &str) -> String {
    let path = alloc::format!("/sys/kernel/tracing/{name}");
    let file = fs::open(&path, open::RDONLY).unwrap();
    let mut text = Vec::new();
    let mut chunk = vec![0; 4096];
    loop {
        match file.read_at(text.len() as u64, &mut chunk).unwrap() {
            0 => return String::from_utf8(text).unwrap(),
            len => text.extend_from_slice(&chunk[..len]),
        }
    }
}

/// The lines that `work` leaves while the events of `group` are on.
fn traced(group: &str, work: impl FnOnce()) -> Vec<String> {
    TRACING.buffer.clear(None);
    let enable = alloc::format!("events/{group}/enable");
    write(&enable, "1");
    work();
    write(&enable, "0");
    let text = read("trace");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(String::from).collect()
}

fn run(program: &str) {
    assert!(run_program(program, &[]).unwrap().success());
}

#[guest_test]
fn system_calls_are_seen_with_their_arguments_and_results() {
    let lines = traced("syscalls", || run("/bin/child"));
    let entered = lines.iter().find(|line| line.contains("sys_enter_write: "));
    let entered = entered.expect("the program writes");
    assert!(entered.contains("__syscall_nr=1 fd=1 buf=0x"), "{entered}");
    assert!(entered.contains("child-"), "{entered}");
    let left = lines.iter().find(|line| line.contains("sys_exit_write: "));
    let left = left.expect("the write returns");
    assert!(left.contains("__syscall_nr=1 ret="), "{left}");
    // Entries and exits of one call are as many as the other.
    let count = |name: &str| lines.iter().filter(|line| line.contains(name)).count();
    // Two calls that do the same are told apart.
    assert_eq!(
        (count("sys_enter_exit: "), count("sys_enter_exit_group: ")),
        (0, 1)
    );
    assert_eq!(count("sys_enter_write: "), count("sys_exit_write: "));
    // Off again: nothing more.
    TRACING.buffer.clear(None);
    run("/bin/child");
    assert_eq!(TRACING.buffer.written(), 0);
}

#[guest_test]
fn the_scheduler_is_seen_at_work() {
    let lines = traced("sched", || {
        static DONE: AtomicBool = AtomicBool::new(false);
        static LOOKS: AtomicUsize = AtomicUsize::new(0);
        static WAITING: WaitQueue = WaitQueue::new();
        DONE.store(false, Relaxed);
        LOOKS.store(0, Relaxed);
        let thread = spawn_kthread("traced_thread", || {
            WAITING.wait_until(|| {
                let done = DONE.load(Relaxed);
                LOOKS.fetch_add(1, Release);
                done
            });
        })
        .unwrap();
        // A waiter looks once before it is in the queue, and once more when it is. It has to be
        // woken only if that look, too, found nothing.
        while LOOKS.load(Acquire) < 2 {
            sleep_ns(NSEC_PER_MSEC);
        }
        DONE.store(true, Relaxed);
        WAITING.wake_all();
        thread.wait_released();
        run("/bin/child");
    });
    let has = |parts: &[&str]| {
        lines
            .iter()
            .any(|line| parts.iter().all(|part| line.contains(part)))
    };
    assert!(
        has(&["sched_switch: ", "next_comm=\"traced_thread\""]),
        "{lines:?}"
    );
    assert!(has(&["sched_switch: ", "prev_comm=\"traced_thread\""]));
    assert!(has(&["sched_wakeup: ", "comm=\"traced_thread\""]));
    assert!(has(&["sched_process_exit: ", "comm=\"child\" code=0"]));
}

#[guest_test]
fn faults_interrupts_and_ticks_are_seen() {
    let faults = traced("exceptions", || run("/bin/child"));
    assert!(
        faults
            .iter()
            .any(|line| line.contains("page_fault: address=0x"))
    );
    let ticks = traced("irq_vectors", || sleep_ns(20_000_000));
    let count = |name: &str| ticks.iter().filter(|line| line.contains(name)).count();
    // An idle CPU takes no ticks, but the alarm of a sleeper is one.
    assert!(count("local_timer_entry: ") >= 1, "{ticks:?}");
    let interrupts = traced("irq", || sleep_ns(20_000_000));
    assert!(
        interrupts
            .iter()
            .any(|line| line.contains("irq_handler_entry: irq="))
    );
    assert!(
        interrupts
            .iter()
            .any(|line| line.contains("irq_handler_exit: irq="))
    );
}

/// The value of the field `name` of a line.
fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let mut words = line.split(' ');
    let value = words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    value.expect(line)
}

/// The values of a field in the lines of one event.
fn values<'a>(lines: &'a [String], event: &str, name: &str) -> Vec<&'a str> {
    let is_it = |line: &&String| line.contains(&alloc::format!("{event}: "));
    let of_event = lines.iter().filter(is_it);
    of_event.map(|line| field(line, name)).collect()
}

/// An attempt that is refused makes no process, and starts no program.
#[guest_test]
fn only_what_comes_to_be_is_an_event() {
    let lines = traced("sched", || {
        assert!(run_program("/bin/exercise", &["exec"]).unwrap().success());
    });
    let executed = values(&lines, "sched_process_exec", "filename");
    assert_eq!(executed, ["\"/bin/exercise\""]);
    let lines = traced("sched", || {
        assert!(
            run_program("/bin/exercise", &["identity"])
                .unwrap()
                .success()
        );
    });
    let forked = values(&lines, "sched_process_fork", "child_pid");
    assert_eq!(forked.len(), 2, "{lines:?}");
    for pid in forked {
        // It is told before the child runs.
        let first = lines.iter().find(|line| {
            line.ends_with(&alloc::format!("child_pid={pid}"))
                || line.ends_with(&alloc::format!("next_pid={pid}"))
        });
        assert!(
            first.is_some_and(|line| line.contains("sched_process_fork: ")),
            "{lines:?}"
        );
    }
}

#[guest_test]
fn a_call_that_starts_a_program_keeps_its_number() {
    let lines = traced("raw_syscalls", || {
        assert!(run_program("/bin/exercise", &["exec"]).unwrap().success());
    });
    let of = |name: &str, end: &str| {
        let is_it = |line: &&String| line.contains(name) && line.contains(end);
        lines.iter().filter(is_it).count()
    };
    let number = alloc::format!("id={}", abi::nr::EXECVE);
    assert_eq!(of("sys_exit: ", "id=-1 "), 0);
    assert_eq!(of("sys_exit: ", &alloc::format!("{number} ret=0")), 1);
    let entered = of("sys_enter: ", &number);
    assert_eq!(of("sys_exit: ", &alloc::format!("{number} ")), entered);
}

/// The time between entry and exit is that of the interrupt alone.
#[guest_test]
fn no_other_task_runs_between_entry_and_exit_of_an_interrupt() {
    write("events/sched/sched_switch/enable", "1");
    // First, so that no entry is without its exit.
    write("events/irq/irq_handler_exit/enable", "1");
    let lines = traced("irq", || {
        for _ in 0..10 {
            sleep_ns(NSEC_PER_MSEC);
        }
    });
    write("events/sched/sched_switch/enable", "0");
    let mut ended = 0;
    for cpu in 0..smp::possible_cpus() {
        let of_cpu = alloc::format!("[{cpu:03}]");
        let mut here = lines.iter().filter(|line| line.contains(&of_cpu));
        while let Some(line) = here.next() {
            if line.contains("irq_handler_entry: ")
                && let Some(next) = here.next()
            {
                assert!(next.contains("irq_handler_exit: "), "{line} {next}");
                assert_eq!(field(next, "irq"), field(line, "irq"));
                // The letter is that of an interrupt.
                assert!(line.contains(" d") && line.contains('h'), "{line}");
                ended += 1;
            }
        }
    }
    assert!(ended > 0, "{lines:?}");
}

#[guest_test]
fn a_filter_and_a_histogram_work_on_them() {
    write("events/syscalls/sys_enter_write/filter", "fd == 77");
    assert_eq!(
        traced("syscalls", || run("/bin/child"))
            .iter()
            .filter(|line| line.contains("sys_enter_write: "))
            .count(),
        0
    );
    write("events/syscalls/sys_enter_write/filter", "0");
    write(
        "events/raw_syscalls/sys_enter/trigger",
        "hist:keys=id.syscall",
    );
    run("/bin/child");
    let text = read("events/raw_syscalls/sys_enter/hist");
    assert!(
        text.contains("{ id: write                         [  1] } hitcount:"),
        "{text}"
    );
    write(
        "events/raw_syscalls/sys_enter/trigger",
        "!hist:keys=id.syscall",
    );
}
