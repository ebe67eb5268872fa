//! Programs in ring 3: what they can do, and what they cannot do to the kernel or to each other.
//!
//! The programs' side of a test is an exercise of `/bin/exercise`, which checks what it sees and
//! exits with 0.

use crate::{harness::waiting::expect_soon, platform::suite::flags::IF};
use abi::{WaitStatus, signal};
use alloc::{borrow::ToOwned, boxed::Box, format, string::String, vec, vec::Vec};
use core::{
    fmt,
    sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::SeqCst},
};
use kernel::{
    errno::Errno,
    fs::{self, pseudo},
    log,
    mm::{frame, heap, kernel_stack, paging::USER_END, uaccess},
    pr_info,
    probes::{Kprobe, PreVerdict, PtRegs, register},
    task::{
        Pid,
        exec::{run_program, start_program},
        fork::do_fork,
        process::{self, Which},
        sleep::sleep_until,
        wait::wait_for_child,
    },
    time::{NSEC_PER_MSEC, ktime_get},
};

const EXERCISE: &str = "/bin/exercise";

fn exercise(args: &[&str]) -> WaitStatus {
    run_program(EXERCISE, args).expect("the program can be run")
}

fn expect_success(args: &[&str]) {
    assert_eq!(exercise(args), WaitStatus::exited(0), "{args:?}");
}

fn start(args: &[&str]) -> Pid {
    start_program(EXERCISE, args).expect("the program can be started")
}

fn end_of(pid: Pid) -> WaitStatus {
    let ended = wait_for_child(Which::Pid(pid), false).expect("it is a child");
    ended.expect("the wait waits").1
}

#[guest_test]
fn bad_pointer_gives_efault_in_each_system_call() {
    expect_success(&["bad_pointers"]);
}

/// The last message about the end of an exercise, without the process's number.
fn last_report() -> String {
    let reports = log::history()
        .rev()
        .map(|record| String::from_utf8_lossy(record.text()).into_owned());
    let mut reports = reports.filter_map(|text| {
        let (_, report) = text.strip_prefix("exercise[")?.split_once("]: ")?;
        Some(report.to_owned())
    });
    reports.next().expect("the end of a program is told")
}

/// The program ends, and the log tells why.
#[guest_test]
fn wild_access_ends_the_program_alone() {
    let (nothing, not_allowed) = ("nothing is mapped there", "it is not allowed to");
    for (how, what, why) in [
        ("null_read", "cannot read 0x", nothing),
        ("null_write", "cannot write 0x", nothing),
        ("null_call", "cannot execute 0x", nothing),
        ("kernel_read", "cannot read 0xffff", not_allowed),
        ("kernel_write", "cannot write 0xffff", not_allowed),
        ("kernel_call", "cannot execute 0xffff", not_allowed),
        ("unmapped_read", "cannot read 0x", nothing),
        ("last_byte_read", "cannot read 0x", not_allowed),
        (
            "non_canonical_read",
            "general protection fault",
            "error code 0x0",
        ),
        ("text_write", "cannot write 0x", not_allowed),
        ("rodata_write", "cannot write 0x", not_allowed),
        ("data_call", "cannot execute 0x", not_allowed),
        ("rodata_call", "cannot execute 0x", not_allowed),
        ("stack_overflow", "cannot write 0x", nothing),
    ] {
        assert_eq!(
            exercise(&["wild", how]),
            WaitStatus::killed(signal::SEGV),
            "{how}"
        );
        let report = last_report();
        assert!(
            report.starts_with(what)
                && report.contains(" at ip 0x")
                && report.contains(", sp 0x")
                && report.ends_with(why),
            "{how}: {report}"
        );
    }
}

#[guest_test]
fn exception_ends_the_program_with_its_signal() {
    for (what, signal, name) in [
        ("divide", signal::FPE, "divide error"),
        ("single_step", signal::TRAP, "debug exception"),
        ("breakpoint", signal::TRAP, "breakpoint"),
        ("undefined", signal::ILL, "invalid opcode"),
        ("privileged", signal::SEGV, "general protection fault"),
        ("port", signal::SEGV, "general protection fault"),
        ("no_gate", signal::SEGV, "general protection fault"),
        ("kernel_gate", signal::SEGV, "general protection fault"),
        ("bad_stack", signal::SEGV, "general protection fault"),
    ] {
        assert_eq!(
            exercise(&["raise", what]),
            WaitStatus::killed(signal),
            "{what}"
        );
        let report = last_report();
        assert!(
            report.starts_with(&format!("{name} at ip 0x"))
                && report.contains(", sp 0x")
                && report.contains(", error code 0x"),
            "{what}: {report}"
        );
    }
}

/// The end of a program may take time and locks, so it does not begin with interrupts off.
#[guest_test]
fn an_exception_of_a_program_is_handled_with_interrupts_on() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    static ON: AtomicUsize = AtomicUsize::new(0);
    fn look(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        CALLS.fetch_add(1, SeqCst);
        ON.fetch_add((regs.flags & IF != 0).into(), SeqCst);
        PreVerdict::Execute
    }
    let probe = Kprobe::new().symbol("kernel::mm::fault::user_exception");
    let probe = register(Box::new(probe.pre(look))).expect("it is not inlined");
    for (what, signal) in [
        ("divide", signal::FPE),
        ("breakpoint", signal::TRAP),
        ("single_step", signal::TRAP),
    ] {
        assert_eq!(exercise(&["raise", what]), WaitStatus::killed(signal));
    }
    drop(probe);
    assert_eq!((CALLS.load(SeqCst), ON.load(SeqCst)), (3, 3));
}

/// Whatever a handler writes to the saved flags of a program, it may not use ports after that.
#[guest_test]
fn a_program_gets_no_ports_by_its_saved_flags() {
    const IOPL: u64 = 3 << 12;
    static CHANGED: AtomicUsize = AtomicUsize::new(0);
    fn raise(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        // SAFETY: the first argument of the probed function, the frame of the page fault.
        let frame = unsafe { &mut *(regs.di as *mut PtRegs) };
        if frame.user_mode() {
            frame.flags |= IOPL;
            CHANGED.fetch_add(1, SeqCst);
        }
        PreVerdict::Execute
    }
    let probe = register(Box::new(Kprobe::new().symbol("do_page_fault").pre(raise)));
    let probe = probe.expect("it can be probed");
    let status = exercise(&["raise", "port"]);
    drop(probe);
    assert_eq!(status, WaitStatus::killed(signal::SEGV));
    assert!(CHANGED.load(SeqCst) > 0);
}

/// The frame of a program's system call, from a probe on `do_syscall`.
fn frame_of(regs: &mut PtRegs) -> &mut PtRegs {
    // SAFETY: the first argument of the probed function. Nothing else uses it while a handler runs.
    unsafe { &mut *(regs.di as *mut PtRegs) }
}

/// A handler sends a program to an address that no program can have. That ends it as if it had gone
/// there by itself.
#[guest_test]
fn a_program_that_is_sent_to_an_impossible_address_ends_alone() {
    static TO: AtomicU64 = AtomicU64::new(0);
    fn send(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        let frame = frame_of(regs);
        frame.ip = TO.load(SeqCst);
        frame.cx = frame.ip;
        PreVerdict::Execute
    }
    for to in [1 << 63, USER_END, u64::MAX] {
        TO.store(to, SeqCst);
        let probe = register(Box::new(Kprobe::new().symbol("do_syscall").pre(send))).unwrap();
        let status = exercise(&["identity"]);
        drop(probe);
        assert_eq!(status, WaitStatus::killed(signal::SEGV), "{to:#x}");
    }
}

/// The fast way back from a system call takes the address from rcx and the flags from r11. Where
/// those hold something else, it is not taken.
#[guest_test]
fn a_program_goes_on_by_its_frame_whatever_rcx_and_r11_hold() {
    const TF: u64 = 1 << 8;
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    fn other_address(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        frame_of(regs).cx = 0x1234;
        CALLS.fetch_add(1, SeqCst);
        PreVerdict::Execute
    }
    fn other_flags(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        frame_of(regs).r11 |= TF;
        CALLS.fetch_add(1, SeqCst);
        PreVerdict::Execute
    }
    for probe in [
        Kprobe::new().pre(other_address),
        Kprobe::new().pre(other_flags),
    ] {
        CALLS.store(0, SeqCst);
        let probe = register(Box::new(probe.symbol("do_syscall"))).unwrap();
        let status = exercise(&["identity"]);
        drop(probe);
        assert_eq!(status, WaitStatus::exited(0));
        assert!(CALLS.load(SeqCst) > 0);
    }
}

/// There is no vector state to switch, so no program may have any.
#[guest_test]
fn vector_and_x87_instructions_end_the_program() {
    for what in ["sse", "avx", "x87"] {
        assert_eq!(
            exercise(&["raise", what]),
            WaitStatus::killed(signal::ILL),
            "{what}"
        );
    }
}

#[guest_test]
fn system_call_with_odd_flags_works() {
    expect_success(&["raise", "syscall_flags"]);
}

#[guest_test]
fn descriptors_are_the_lowest_free_and_bound_by_their_mode() {
    expect_success(&["descriptors"]);
}

#[guest_test]
fn files_keep_their_contents_and_share_positions_across_fork() {
    expect_success(&["contents"]);
}

#[guest_test]
fn directories_are_made_listed_walked_and_removed() {
    expect_success(&["directories"]);
}

#[guest_test]
fn permission_bits_bind_programs() {
    expect_success(&["permissions"]);
}

#[guest_test]
fn fork_copies_memory_on_write() {
    expect_success(&["copy_on_write"]);
}

#[guest_test]
fn heap_grows_shrinks_and_comes_back_as_zeros() {
    expect_success(&["heap"]);
}

#[guest_test(timeout = 120)]
fn memory_that_is_out_ends_programs_not_the_kernel() {
    expect_success(&["out_of_memory"]);
    expect_success(&["copy_on_write"]);
}

#[guest_test]
fn full_file_system_refuses_and_recovers() {
    expect_success(&["fill_file_system"]);
    expect_success(&["contents"]);
}

#[guest_test]
fn pids_and_parents_are_right() {
    expect_success(&["identity"]);
}

#[guest_test]
fn wait_finds_each_child_once_in_any_order() {
    expect_success(&["wait"]);
}

#[guest_test]
fn exec_passes_arguments_and_refuses_with_reasons() {
    expect_success(&["exec"]);
}

#[guest_test]
fn exec_closes_what_was_opened_so() {
    expect_success(&["descriptors_across_exec"]);
}

#[guest_test]
fn orphan_goes_to_init_and_leaves_no_zombie() {
    let before = process::count();
    expect_success(&["orphan"]);
    expect_soon("the orphan has ended", || process::count() == before);
}

#[guest_test]
fn kill_reaches_programs_wherever_they_are() {
    let before = process::count();
    expect_success(&["kill"]);
    // The child of a killed program goes on as an orphan, for ever if it is not ended.
    for pid in process::pids() {
        process::kill(pid).expect("it runs");
    }
    expect_soon("the orphan has ended", || process::count() == before);
}

#[guest_test(timeout = 120)]
fn too_many_processes_are_refused_and_can_be_ended() {
    let before = process::count();
    expect_success(&["fork_limit"]);
    assert_eq!(process::count(), before);
}

#[guest_test]
fn nanosleep_takes_its_time() {
    let start = ktime_get();
    expect_success(&["sleep", "100"]);
    let took = ktime_get() - start;
    assert!(took >= 100 * NSEC_PER_MSEC, "{took} ns");
}

#[guest_test]
fn kernel_ends_a_spinning_and_a_sleeping_program() {
    for how in ["spin", "block"] {
        let pid = start(&[how]);
        assert_eq!(wait_for_child(Which::Pid(pid), true), Ok(None));
        sleep_until(ktime_get() + 20 * NSEC_PER_MSEC);
        assert_eq!(
            wait_for_child(Which::Pid(pid), true),
            Ok(None),
            "{how} goes on"
        );
        process::kill(pid).expect("it runs");
        assert_eq!(end_of(pid), WaitStatus::killed(signal::KILL), "{how}");
        assert_eq!(process::kill(pid), Err(Errno::ESRCH));
    }
}

#[guest_test]
fn kill_before_the_first_instruction_counts() {
    for _ in 0..50 {
        let pid = start(&["spin"]);
        process::kill(pid).expect("it runs");
        assert_eq!(end_of(pid), WaitStatus::killed(signal::KILL));
    }
}

/// Frames, heap and processes are as before after 100 rounds of fork, execve, exit and wait4.
#[guest_test(timeout = 120)]
fn rounds_of_fork_and_exec_leak_nothing() {
    // The first rounds make the heap as large as it needs to be.
    expect_success(&["rounds", "20"]);
    // Stacks that are kept to be used again count as free: how many there are at once is a matter
    // of time. The heap keeps the frames that it has, and so do the tables that map them.
    let heap_frames = || {
        let mapped = heap::usage().1;
        mapped.div_ceil(4096) + mapped.div_ceil(2 << 20)
    };
    let frames = || frame::free_frames() + kernel_stack::mapped_frames() + heap_frames();
    let state = || (process::count(), heap::usage().0, frames());
    let mut before = state();
    expect_soon("the last program is released", || {
        let now = state();
        core::mem::replace(&mut before, now) == now
    });
    // The last of it, its task, may not be released yet, where another CPU is slow. Then less is in
    // use at the end than before. A leak of a block of the heap in each round is larger.
    expect_success(&["rounds", "100"]);
    expect_soon("everything is given back", || {
        let (processes, used, free) = state();
        let is_back = processes <= before.0 && used <= before.1 && free >= before.2;
        if !is_back {
            pr_info!("{before:?} before, {:?} now", (processes, used, free));
        }
        is_back
    });
}

#[guest_test(ignore, smp = 4, timeout = 900)]
fn long_run_of_programs_on_four_cpus_leaks_nothing() {
    let run = |rounds: &str| {
        let children: Vec<Pid> = (0..8).map(|_| start(&["rounds", rounds])).collect();
        for pid in children {
            assert_eq!(end_of(pid), WaitStatus::exited(0));
        }
    };
    run("50");
    let state = || (process::count(), heap::usage().0);
    let mut before = state();
    expect_soon("the last program is released", || {
        let now = state();
        core::mem::replace(&mut before, now) == now
    });
    run("1000");
    expect_soon("everything is given back", || state() == before);
}

#[guest_test]
fn programs_on_all_cpus_do_not_disturb_each_other() {
    let children: Vec<Pid> = (0..8).map(|_| start(&["copy_on_write"])).collect();
    for pid in children {
        assert_eq!(end_of(pid), WaitStatus::exited(0));
    }
}

#[guest_test]
fn run_program_tells_why_it_cannot() {
    let kind = |path: &str, content: &[u8], mode| {
        fs::install_file(path.as_bytes(), mode, content.to_vec()).expect("room for a file");
        let result = run_program(path, &[]);
        fs::uninstall(path.as_bytes()).expect("it is there");
        result
    };
    assert_eq!(run_program("/bin/none", &[]), Err(Errno::ENOENT));
    assert_eq!(run_program("/bin", &[]), Err(Errno::EACCES));
    assert_eq!(run_program("/dev/console", &[]), Err(Errno::EACCES));
    assert_eq!(run_program("/bin/exercise/x", &[]), Err(Errno::ENOTDIR));
    assert_eq!(run_program(EXERCISE, &["a\0b"]), Err(Errno::EINVAL));
    let long = "x".repeat(200_000);
    assert_eq!(run_program(EXERCISE, &[&long]), Err(Errno::E2BIG));

    let file = fs::open(EXERCISE, abi::open::RDONLY).expect("it is there");
    let mut program = vec![0; file.attributes().expect("it is open").size as usize];
    assert_eq!(file.read_at(0, &mut program), Ok(program.len()));
    assert_eq!(
        kind("/tmp/copy", &program, 0o644),
        Err(Errno::EACCES),
        "not executable"
    );
    assert_eq!(
        kind("/tmp/copy", &program, 0o755),
        Ok(WaitStatus::exited(2)),
        "no such exercise"
    );
    assert_eq!(kind("/tmp/empty", b"", 0o755), Err(Errno::ENOEXEC));
    assert_eq!(
        kind("/tmp/script", b"#!/bin/sh\n", 0o755),
        Err(Errno::ENOEXEC)
    );
    assert_eq!(
        kind("/tmp/short", &program[..5000], 0o755),
        Err(Errno::ENOEXEC)
    );
}

#[guest_test]
fn virtual_file_shows_and_obeys() {
    static VALUE: AtomicI64 = AtomicI64::new(0);
    struct Value;
    impl pseudo::VirtualFile for Value {
        fn show(&self, out: &mut dyn fmt::Write) -> Result<(), Errno> {
            Ok(write!(out, "{}", VALUE.load(SeqCst))?)
        }
        fn store(&self, data: &[u8]) -> Result<(), Errno> {
            let text = core::str::from_utf8(data).map_err(|_| Errno::EINVAL)?;
            VALUE.store(text.parse().map_err(|_| Errno::EINVAL)?, SeqCst);
            Ok(())
        }
    }
    let path = "/sys/kernel/debug/test/value";
    pseudo::create(path, 0o600, Value).expect("the name is free");
    assert_eq!(pseudo::create(path, 0o600, Value), Err(Errno::EEXIST));
    expect_success(&["virtual_file", path, "-1234567890"]);
    assert_eq!(VALUE.load(SeqCst), -1_234_567_890);
    pseudo::remove(path).expect("it is there");
    assert_eq!(pseudo::remove(path), Err(Errno::ENOENT));
}

/// Larger than one copy to user memory, read in one state though it changes meanwhile.
#[guest_test]
fn virtual_file_is_read_in_one_state() {
    static STATE: AtomicUsize = AtomicUsize::new(0);
    fn show(out: &mut dyn fmt::Write) -> fmt::Result {
        let state = STATE.fetch_add(1, SeqCst);
        (0..5000).try_for_each(|_| write!(out, "{state},"))
    }
    STATE.store(0, SeqCst);
    let functions = pseudo::Functions {
        show: Some(show),
        store: None,
    };
    pseudo::create("/proc/test_state", 0o444, functions).expect("the name is free");
    let file = fs::open("/proc/test_state", abi::open::RDONLY).expect("it is there");
    assert!(fs::open("/proc/test_state", abi::open::RDWR).is_err());
    for state in [b'0', b'1'] {
        let (mut at, mut buf) = (0, [0; 333]);
        loop {
            let len = file.read_at(at, &mut buf).expect("it can be read");
            if len == 0 {
                break;
            }
            assert!(buf[..len].iter().all(|&byte| byte == state || byte == b','));
            at += len as u64;
        }
        assert_eq!(at, 10_000);
    }
    pseudo::remove("/proc/test_state").expect("it is there");
}

#[guest_test]
fn kernel_thread_has_no_user_memory_to_copy() {
    let mut buf = [0; 8];
    for address in [
        0,
        0x40_0000,
        0x7fff_fffe_0000,
        0x8000_0000_0000_0000,
        u64::MAX - 3,
    ] {
        assert_eq!(
            uaccess::copy_from_user(&mut buf, address),
            Err(Errno::EFAULT)
        );
        assert_eq!(uaccess::copy_to_user(address, &buf), Err(Errno::EFAULT));
        assert_eq!(
            uaccess::copy_from_user_nofault(&mut buf, address),
            Err(Errno::EFAULT)
        );
    }
    assert_eq!(
        do_fork(u64::from(signal::CHLD), 0, &PtRegs::default(), 0, 0, 0),
        Errno::EINVAL.negated()
    );
}

/// A handler reads the path that a program passes, without ever waiting for a page.
#[guest_test]
fn probe_handler_reads_user_memory_without_waiting() {
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    static ABSENT: AtomicUsize = AtomicUsize::new(0);
    static LAST: AtomicU64 = AtomicU64::new(0);
    fn pre(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        let mut start = [0; 8];
        match uaccess::copy_from_user_nofault(&mut start, regs.di) {
            Ok(()) => {
                SEEN.fetch_add(1, SeqCst);
                LAST.store(u64::from_le_bytes(start), SeqCst);
            }
            Err(_) => {
                ABSENT.fetch_add(1, SeqCst);
            }
        }
        PreVerdict::Execute
    }
    let probe =
        register(Box::new(Kprobe::new().symbol("sys_rmdir").pre(pre))).expect("it can be probed");
    expect_success(&["remove", "/tmp/no_such_directory"]);
    drop(probe);
    // The exercise passes the path once as it is, and once in a page that was never touched.
    assert_eq!((SEEN.load(SeqCst), ABSENT.load(SeqCst)), (1, 1));
    assert_eq!(&LAST.load(SeqCst).to_le_bytes(), b"/tmp/no_");
}

#[guest_test]
fn console_output_of_programs_keeps_its_lines() {
    let children: Vec<Pid> = (0..4)
        .map(|_| start_program("/bin/child", &["0"]).expect("it can be started"))
        .collect();
    for pid in children {
        assert_eq!(end_of(pid), WaitStatus::exited(0));
        let wanted = format!("child {pid} of 1: exit 0");
        let found = log::history()
            .filter(|record| record.text() == wanted.as_bytes())
            .count();
        assert_eq!(found, 1, "{wanted}");
    }
}
