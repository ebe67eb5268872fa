//! Return probes on what runs on behalf of user programs: made, loaded and killed.
//!
//! The kernel's functions run here for a program, and may never return to it: `execve` replaces it,
//! a signal kills it in its sleep. Calls that were followed give their instances back all the same.
//! A handler may read a program's memory, and brings no page in.

use abi::{WaitStatus, signal};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use kernel::{
    arch::percpu,
    errno::Errno,
    mm::uaccess::{copy_from_anywhere_nofault, copy_from_user, copy_from_user_nofault},
    probes::{
        EntryVerdict, Kprobe, Kretprobe, KretprobeInstance, PROBES, PreVerdict, PtRegs, register,
    },
    task::{
        self, Comm,
        exec::{STACK_BYTES, STACK_TOP, run_program, start_program},
        process::{self, Which},
        wait::wait_for_child,
    },
    time::{NSEC_PER_MSEC, delay_ns},
};

/// Runs one exercise of `/bin/exercise` to its end.
fn exercise(args: &[&str]) -> WaitStatus {
    run_program("/bin/exercise", args).expect("the program starts")
}

/// Runs an exercise that is to go well.
fn goes_well(args: &[&str]) {
    assert_eq!(exercise(args).code(), Some(0), "{args:?}");
}

static ENTRIES: AtomicU64 = AtomicU64::new(0);
static RETURNS: AtomicU64 = AtomicU64::new(0);
static PIDS: AtomicU64 = AtomicU64::new(0);

fn count_user_entry(_call: &mut KretprobeInstance<u64>, _regs: &mut PtRegs) -> EntryVerdict {
    ENTRIES.fetch_add(1, SeqCst);
    EntryVerdict::Track
}

fn count_return(_call: &mut KretprobeInstance<u64>, _regs: &mut PtRegs) {
    RETURNS.fetch_add(1, SeqCst);
}

fn note_pid(_call: &mut KretprobeInstance<u64>, regs: &mut PtRegs) {
    RETURNS.fetch_add(1, SeqCst);
    PIDS.fetch_max(regs.return_value(), SeqCst);
}

fn reset() {
    for counter in [&ENTRIES, &RETURNS, &PIDS] {
        counter.store(0, SeqCst);
    }
}

/// Return probes on the making and on the loading of programs: parent and child both go on rightly.
#[guest_test]
fn return_probes_on_fork_and_exec_are_followed() {
    reset();
    let fork = register(Box::new(
        Kretprobe::new().symbol("do_fork").handler(note_pid),
    ))
    .unwrap();
    let exec = register(Box::new(
        Kretprobe::new()
            .symbol("do_execve")
            .entry(count_user_entry)
            .handler(count_return),
    ))
    .unwrap();
    goes_well(&["rounds", "5"]);
    assert_eq!(fork.hits(), 5);
    assert!(PIDS.load(SeqCst) > 1, "do_fork returns the pid");
    assert_eq!(
        exec.hits(),
        ENTRIES.load(SeqCst),
        "each call that began has come back"
    );
    assert!(ENTRIES.load(SeqCst) >= 5);
    assert_eq!((fork.nmissed(), exec.nmissed()), (0, 0));
    drop((fork, exec));
}

/// Starts a program that sleeps in a system call, and kills it there. `entered` counts the calls of
/// the system call.
pub fn kill_in_its_sleep(entered: &AtomicU64) {
    let before = entered.load(SeqCst);
    let pid = start_program("/bin/exercise", &["block"]).unwrap();
    while entered.load(SeqCst) == before {
        task::schedule();
    }
    process::kill(pid).unwrap();
    let (_, status) = wait_for_child(Which::Pid(pid), false)
        .unwrap()
        .expect("it has ended");
    assert_eq!(status.signal(), Some(signal::KILL));
}

/// A program is killed while return-probed functions are on its kernel stack: their instances come
/// back.
#[guest_test]
fn a_killed_program_gives_its_instances_back() {
    reset();
    // Idle and sleeping tasks sit in `schedule`, too, an instance each.
    let probe = |name, maxactive| {
        register(Box::new(
            Kretprobe::<u64>::new().symbol(name).maxactive(maxactive),
        ))
        .unwrap()
    };
    let sleep = Kretprobe::new()
        .symbol("sys_nanosleep")
        .maxactive(8)
        .entry(count_user_entry)
        .handler(count_return);
    let sleep = register(Box::new(sleep)).unwrap();
    let probes = [sleep, probe("do_syscall", 8), probe("schedule", 30)];
    for _ in 0..5 * 8 {
        kill_in_its_sleep(&ENTRIES);
    }
    for probe in &probes {
        assert_eq!(probe.nmissed(), 0, "{:?}", probe.kprobe().symbol_name());
    }
    drop(probes);
    // Idle and sleeping tasks are still in `schedule`, but no task is in the others.
    assert!(PROBES.reap().unwrap() <= 1, "a call is left in flight");
}

/// A program is on its way to its last switch when its parent is woken. Who has waited for it finds
/// its task gone and its call given back, however long that way takes.
#[guest_test]
fn nothing_is_left_of_a_program_that_was_waited_for() {
    static DAWDLED: AtomicU64 = AtomicU64::new(0);
    fn is_ours(task: &task::Task) -> bool {
        task.comm() == Comm::new("exercise")
    }
    fn dawdle(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        if is_ours(&task::current()) {
            DAWDLED.fetch_add(1, SeqCst);
            delay_ns(20 * NSEC_PER_MSEC);
        }
        PreVerdict::Execute
    }
    DAWDLED.store(0, SeqCst);
    // Those of other tests may still be in flight.
    let before = PROBES.reap().unwrap();
    let last_steps = Kprobe::new().symbol("kernel::task::scheduler::exit");
    let last_steps = register(Box::new(last_steps.pre(dawdle))).unwrap();
    // Only programs call it.
    let end = Kretprobe::<u64>::new()
        .symbol("sys_exit_group")
        .maxactive(1);
    let end = register(Box::new(end)).unwrap();
    for programs in 1..=5 {
        goes_well(&["calls", "1"]);
        assert!(!task::all().iter().any(|task| is_ours(task)));
        assert_eq!(DAWDLED.load(SeqCst), programs);
        assert_eq!(end.nmissed(), 0);
    }
    drop((last_steps, end));
    let left = PROBES.reap().unwrap();
    assert!(left <= before, "the end of a program is in flight");
}

/// Bringing in a page may wait, so interrupts are on meanwhile. After it the way back to the
/// program goes on with interrupts off, also where the fault ends the program.
#[guest_test]
fn interrupts_are_on_while_a_page_is_brought_in_and_off_behind_it() {
    static ON: AtomicU64 = AtomicU64::new(0);
    static ON_BEHIND: AtomicU64 = AtomicU64::new(0);
    const IF: u64 = 1 << 9;
    fn look(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        ON.fetch_add((regs.flags & IF != 0).into(), SeqCst);
        PreVerdict::Execute
    }
    fn look_behind(_: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
        ON_BEHIND.fetch_add((regs.flags & IF != 0).into(), SeqCst);
    }
    let brings = Kprobe::new().symbol("kernel::mm::user_space::UserSpace::fault");
    let brings = register(Box::new(brings.pre(look))).unwrap();
    let returns = Kretprobe::new().symbol("kernel::mm::fault::page_fault");
    let returns = register(Box::new(returns.maxactive(8).handler(look_behind))).unwrap();
    goes_well(&["rounds", "2"]);
    let status = exercise(&["wild", "null_read"]);
    assert_eq!(status.signal(), Some(signal::SEGV));
    assert!(brings.hits() > 0 && returns.hits() > 0);
    assert_eq!(ON.load(SeqCst), brings.hits());
    assert_eq!(ON_BEHIND.load(SeqCst), 0);
    drop((brings, returns));
}

/// The answers that [`read_far_down`] got to its reads, each as a bit that is set if the read was
/// refused.
static REFUSED: AtomicU64 = AtomicU64::new(0);
/// How often it ran where a task might be switched away from.
static IN_TASK_CONTEXT: AtomicU64 = AtomicU64::new(0);

/// Stands in for a system call: no handler, interrupts on. Reads a page of the program's stack that
/// no program has touched yet.
extern "C" fn read_far_down() -> i64 {
    let mut word = [0; 8];
    let at = STACK_TOP - STACK_BYTES;
    IN_TASK_CONTEXT.fetch_add(percpu::preemptible().into(), SeqCst);
    let reads = [
        copy_from_anywhere_nofault(&mut word, at),
        copy_from_user_nofault(&mut word, at),
        copy_from_user(&mut word, at),
        copy_from_anywhere_nofault(&mut word, at),
        copy_from_user_nofault(&mut word, at),
    ];
    for (bit, read) in reads.iter().enumerate() {
        REFUSED.fetch_or(u64::from(*read == Err(Errno::EFAULT)) << bit, SeqCst);
    }
    task::current().pid().into()
}

/// Reads that must not wait bring no page in, also where they could; one that may wait does,
/// and then they find it.
#[guest_test]
fn reads_that_must_not_wait_bring_no_page_in() {
    fn read_instead(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        regs.ip = read_far_down as *const () as u64;
        PreVerdict::Resume
    }
    let probe = register(Box::new(
        Kprobe::new().symbol("sys_getpid").pre(read_instead),
    ))
    .unwrap();
    for calls in 1..=2 {
        REFUSED.store(0, SeqCst);
        goes_well(&["calls", "1"]);
        let calls_of_a_program = probe.hits() / calls;
        assert!(calls_of_a_program > 0);
        assert_eq!(IN_TASK_CONTEXT.load(SeqCst), probe.hits());
        assert_eq!(REFUSED.load(SeqCst), 0b00011, "the page is a new program's");
    }
    drop(probe);
}
