//! User programs: system calls, memory, faults, and probes on what runs on their behalf.

use crate::guest_test;
use abi::{WaitStatus, signal};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use kernel::{
    mm::frame,
    probes::{EntryVerdict, Kretprobe, KretprobeInstance, PROBES, PtRegs, register},
    task::{
        self,
        exec::{run_program, start_program},
        process::{self, Which},
        wait::wait_for_child,
    },
};

/// Runs one exercise of `/bin/exercise` to its end.
fn exercise(args: &[&str]) -> WaitStatus {
    run_program("/bin/exercise", args).expect("the program starts")
}

/// Runs an exercise that is to go well.
fn goes_well(args: &[&str]) {
    assert_eq!(exercise(args).code(), Some(0), "{args:?}");
}

/// Runs an exercise that the kernel is to end with a signal.
fn is_ended(args: &[&str], signal: u32) {
    assert_eq!(exercise(args).signal(), Some(signal), "{args:?}");
}

guest_test! {
    fn a_bad_pointer_to_a_system_call_is_refused_with_efault() {
        goes_well(&["bad_pointers"]);
    }

    fn a_wild_access_ends_the_program_and_not_the_kernel() {
        for how in [
            "null_read", "null_write", "null_call", "kernel_read", "kernel_write", "kernel_call", "unmapped_read",
            "last_byte_read", "non_canonical_read", "text_write", "rodata_write", "data_call", "stack_overflow",
        ] {
            is_ended(&["wild", how], signal::SEGV);
        }
    }

    fn an_exception_of_a_program_ends_it_with_its_signal() {
        for (what, expected) in [
            ("divide", signal::FPE),
            ("single_step", signal::TRAP),
            ("breakpoint", signal::TRAP),
            ("undefined", signal::ILL),
            ("sse", signal::ILL),
            ("privileged", signal::SEGV),
            ("port", signal::SEGV),
            ("no_gate", signal::SEGV),
            ("kernel_gate", signal::SEGV),
        ] {
            is_ended(&["raise", what], expected);
        }
        goes_well(&["raise", "syscall_flags"]);
    }

    fn files_and_directories_behave_as_programs_expect() {
        for exercise in ["descriptors", "contents", "directories", "permissions"] {
            goes_well(&[exercise]);
        }
    }

    fn memory_of_a_child_is_its_own() {
        goes_well(&["copy_on_write"]);
        goes_well(&["heap"]);
    }

    fn processes_fork_execute_and_wait() {
        for exercise in ["identity", "wait", "exec", "descriptors_across_exec", "orphan", "kill"] {
            goes_well(&[exercise]);
        }
        goes_well(&["sleep", "100"]);
    }

    fn the_number_of_processes_is_limited() {
        goes_well(&["fork_limit"]);
    }

    /// A hundred rounds of fork, exec, exit and wait leave no memory behind.
    #[timeout(120)]
    fn processes_give_all_their_memory_back() {
        goes_well(&["rounds", "20"]);
        let before = frame::free_frames();
        goes_well(&["rounds", "100"]);
        let after = frame::free_frames();
        assert!(after + 4 >= before, "{before} frames were free, {after} are");
        assert_eq!(process::count(), 0);
    }
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

guest_test! {
    /// Return probes on the making and on the loading of programs: parent and child both go on rightly.
    fn return_probes_on_fork_and_exec_are_followed() {
        reset();
        let fork = register(Box::new(Kretprobe::new().symbol("do_fork").handler(note_pid))).unwrap();
        let exec = register(Box::new(Kretprobe::new().symbol("do_execve").entry(count_user_entry).handler(count_return))).unwrap();
        goes_well(&["rounds", "5"]);
        assert_eq!(fork.hits(), 5);
        assert!(PIDS.load(SeqCst) > 1, "do_fork returns the pid");
        assert_eq!(exec.kprobe().hits() + exec.kprobe().nmissed(), ENTRIES.load(SeqCst));
        assert!(ENTRIES.load(SeqCst) >= 5);
        assert_eq!((fork.nmissed(), exec.nmissed()), (0, 0));
        drop((fork, exec));
    }

    /// A program is killed while return-probed functions are on its kernel stack: their instances come back.
    fn a_killed_program_gives_its_instances_back() {
        reset();
        let probes = ["sys_nanosleep", "do_syscall", "schedule"]
            .map(|name| register(Box::new(Kretprobe::new().symbol(name).maxactive(8).entry(count_user_entry).handler(count_return))).unwrap());
        for _ in 0..5 * 8 {
            let pid = start_program("/bin/exercise", &["block"]).unwrap();
            let entered = ENTRIES.load(SeqCst);
            while ENTRIES.load(SeqCst) == entered {
                task::schedule();
            }
            process::kill(pid).unwrap();
            let (_, status) = wait_for_child(Which::Pid(pid), false).unwrap().expect("it has ended");
            assert_eq!(status.signal(), Some(signal::KILL));
        }
        for probe in &probes {
            assert_eq!(probe.nmissed(), 0, "{:?}", probe.kprobe().symbol_name());
        }
        drop(probes);
        assert_eq!(PROBES.reap(), Ok(0), "no call is left in flight");
    }
}
