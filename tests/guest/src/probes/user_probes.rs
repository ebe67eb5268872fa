//! Probes in programs: handlers, and programs that come, go and misbehave meanwhile.
//!
//! The program is `/bin/exercise`, whose functions `probed_…` have one kind of instructions each
//! and check their own results. So a probe that changes what an instruction does is noticed.

use crate::harness::waiting::{expect_soon, soon};
use abi::{WaitStatus, open, signal};
use alloc::{borrow::ToOwned, format, string::String, vec, vec::Vec};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use elf_program::{Executable, Segment};
use kernel::{
    errno::Errno,
    fs::{self, NodeRef},
    log,
    mm::{Usage, allocation_faults::with_room_for, paging::USER_END, shared::Shared},
    probes::{PreVerdict, PtRegs},
    task::{
        Pid,
        exec::{run_program, start_program},
        kthread::spawn_kthread,
        process::{self, Which},
        sleep::sleep_until,
        wait::wait_for_child,
    },
    time::{NSEC_PER_MSEC, ktime_get},
    uprobes::{
        Uprobe, UprobeError, Uretprobe, UserCall, UserProbe, copy_from_program,
        probe::ProbeRef,
        registry::{self, RegisteredUserProbe},
    },
};
use probes::insn::Instructions;

const EXERCISE: &str = "/bin/exercise";

pub fn exercise(args: &[&str]) -> WaitStatus {
    run_program(EXERCISE, args).expect("the program can be run")
}

pub fn goes_well(args: &[&str]) {
    assert_eq!(exercise(args), WaitStatus::exited(0), "{args:?}");
}

pub fn start(args: &[&str]) -> Pid {
    start_program(EXERCISE, args).expect("the program can be started")
}

pub fn end_of(pid: Pid) -> WaitStatus {
    let ended = wait_for_child(Which::Pid(pid), false).expect("it is a child");
    ended.expect("the wait waits").1
}

pub fn kill(pid: Pid) {
    process::kill(pid).expect("it runs");
    assert_eq!(end_of(pid), WaitStatus::killed(signal::KILL));
}

fn shared<T>(probe: T) -> Shared<T> {
    Shared::try_new(probe).expect("there is memory")
}

pub fn at(symbol: &'static str) -> Uprobe {
    Uprobe::new().program(EXERCISE).symbol(symbol)
}

pub fn return_of(symbol: &'static str) -> Uretprobe {
    Uretprobe::new().program(EXERCISE).symbol(symbol)
}

pub fn probe(probe: Uprobe) -> RegisteredUserProbe<Uprobe> {
    RegisteredUserProbe::new(probe).expect("the probe can be registered")
}

pub fn return_probe(probe: Uretprobe) -> RegisteredUserProbe<Uretprobe> {
    RegisteredUserProbe::new(probe).expect("the probe can be registered")
}

fn refusal(probe: Uprobe) -> UprobeError {
    RegisteredUserProbe::new(probe)
        .err()
        .expect("it is refused")
}

/// The bytes of a file.
pub fn file(path: &str) -> Vec<u8> {
    let file = fs::open(path, open::RDONLY).expect("the program is there");
    let size = file.attributes().expect("it has attributes").size as usize;
    let mut bytes = vec![0; size];
    let mut done = 0;
    while done < size {
        done += file
            .read_at(done as u64, &mut bytes[done..])
            .expect("it can be read");
    }
    bytes
}

fn program(bytes: &[u8]) -> Executable {
    Executable::parse(&bytes[..4096], 0x1_0000..USER_END).expect("it is a program")
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

/// The address of a function of the exercise.
pub fn address(name: &str) -> u64 {
    let bytes = file(EXERCISE);
    let mut functions = elf_program::functions(&bytes);
    functions
        .find(|function| function.name == name)
        .expect("it is there")
        .start
}

pub static SEEN: AtomicU64 = AtomicU64::new(0);
pub static WRONG: AtomicU64 = AtomicU64::new(0);

/// Adds each result to [`SEEN`].
pub fn note_result(_: &mut UserCall, regs: &mut PtRegs) {
    SEEN.fetch_add(regs.ax, SeqCst);
}

pub fn reset() {
    SEEN.store(0, SeqCst);
    WRONG.store(0, SeqCst);
}

/// A handler sees the address and the arguments, in each process that runs the file, as long as the
/// probe is registered.
#[guest_test]
fn a_handler_sees_the_arguments_of_each_call() {
    reset();
    let place = address("probed_add");
    static PLACE: AtomicU64 = AtomicU64::new(0);
    PLACE.store(place, SeqCst);
    let on_add = |_: &Uprobe, regs: &mut PtRegs| {
        SEEN.fetch_add(regs.di, SeqCst);
        let is_right = regs.ip == PLACE.load(SeqCst) && regs.user_mode();
        WRONG.fetch_add(u64::from(!is_right), SeqCst);
        PreVerdict::Execute
    };
    goes_well(&["probed", "3"]);
    let add = probe(at("probed_add").handler(on_add));
    goes_well(&["probed", "3"]);
    // In each round: directly, three times by `probed_calls`, and by `probed_tail`.
    assert_eq!((add.hits(), add.nmissed()), (15, 0));
    // round; round, round + 3 and 2 * round + 3; round + 1.
    let sums: u64 = (1..=3)
        .map(|round| round + round + (round + 3) + (2 * round + 3) + (round + 1))
        .sum();
    assert_eq!((SEEN.load(SeqCst), WRONG.load(SeqCst)), (sums, 0));
    goes_well(&["probed", "1"]);
    assert_eq!(add.hits(), 20);
    drop(add);
    goes_well(&["probed", "1"]);
    assert_eq!(SEEN.load(SeqCst), sums + 1 + 1 + 4 + 5 + 2);
}

/// What a handler changes is taken: registers, and the address where the program goes on.
#[guest_test]
fn a_handler_changes_registers_and_the_way_on() {
    let argument = probe(at("probed_tail").handler(|_, regs| {
        regs.di += 100;
        PreVerdict::Execute
    }));
    // The program notices the wrong sum.
    assert_eq!(exercise(&["probed", "1"]), WaitStatus::exited(101));
    drop(argument);
    goes_well(&["probed", "1"]);
    // The function is not executed: the handler returns from it.
    let instead = probe(at("probed_jump").handler(|_, regs| {
        let mut word = [0; 8];
        copy_from_program(&mut word, regs.sp).expect("the stack is there");
        (regs.ip, regs.sp, regs.ax) = (u64::from_le_bytes(word), regs.sp + 8, 7);
        PreVerdict::Resume
    }));
    goes_well(&["probed", "2"]);
    assert_eq!(instead.hits(), 2);
}

/// Handlers of one place run newest first, and a disabled one does not.
#[guest_test]
fn handlers_run_newest_first_and_disabled_ones_do_not() {
    reset();
    fn digit(probe: &Uprobe, _: &mut PtRegs) -> PreVerdict {
        let digit = probe.handler_data().addr() as u64;
        SEEN.store(SEEN.load(SeqCst) * 10 + digit, SeqCst);
        PreVerdict::Execute
    }
    fn data(number: usize) -> *const () {
        core::ptr::without_provenance(number)
    }
    static FIRST: Uprobe = at_jump().data(core::ptr::without_provenance(1));
    static SECOND: Uprobe = at_jump().data(core::ptr::without_provenance(2));
    const fn at_jump() -> Uprobe {
        Uprobe::new()
            .program(EXERCISE)
            .symbol("probed_jump")
            .handler(digit)
    }
    kernel::uprobes::register_uprobes(&[&FIRST, &SECOND]).expect("they can be registered");
    let third = probe(at_jump().data(data(3)).disabled());
    goes_well(&["probed", "1"]);
    assert_eq!(SEEN.load(SeqCst), 21);
    let all: [Result<(), UprobeError>; 2] = [
        kernel::uprobes::disable_uprobe(&SECOND),
        kernel::uprobes::register_uprobe(&FIRST),
    ];
    assert_eq!(all, [Ok(()), Err(UprobeError::AlreadyRegistered)]);
    reset();
    goes_well(&["probed", "1"]);
    assert_eq!((SEEN.load(SeqCst), FIRST.hits(), SECOND.hits()), (1, 2, 1));
    assert!(SECOND.is_disabled() && SECOND.is_registered());
    kernel::uprobes::enable_uprobe(&SECOND).expect("it is registered");
    reset();
    goes_well(&["probed", "1"]);
    assert_eq!((SEEN.load(SeqCst), third.hits()), (21, 0));
    kernel::uprobes::unregister_uprobes(&[&FIRST, &SECOND]).expect("this is a task");
    assert!(!FIRST.is_registered());
    assert_eq!(
        kernel::uprobes::enable_uprobe(&FIRST),
        Err(UprobeError::NotRegistered)
    );
}

/// All instructions of a program at once: it does what it does without a probe, each instruction
/// that was executed is counted, and each that is refused has a reason.
#[guest_test(timeout = 400)]
fn every_instruction_of_a_program_can_be_probed() {
    let bytes = file(EXERCISE);
    let program = program(&bytes);
    let mut functions: Vec<_> = elf_program::functions(&bytes)
        .filter(|function| function.size > 0)
        .map(|function| (function.start, function.size))
        .collect();
    functions.sort_unstable();
    functions.dedup();
    let mut accepted: Vec<UserProbe> = Vec::new();
    let mut refused: Vec<String> = Vec::new();
    for (start, size) in functions {
        let offset = program.code_offset(start).expect("functions are code");
        let code = &bytes[offset as usize..][..size as usize];
        let mut of_function: Vec<(u64, UserProbe)> = Instructions::new(code, start)
            .map(|insn| {
                let ip = insn.expect("the compiler makes instructions").ip();
                let offset = offset + (ip - start);
                let one = Uprobe::new().program(EXERCISE).offset(offset);
                (ip, ProbeRef::Shared(shared(one)).into())
            })
            .collect();
        // A batch is all or nothing, and names the first one that is refused.
        loop {
            let all: Vec<UserProbe> = of_function.iter().map(|(_, one)| one.clone()).collect();
            match registry::register(&all) {
                Ok(()) => {
                    accepted.extend(all);
                    break;
                }
                Err(UprobeError::EmptyBatch) => break,
                Err(error) => {
                    let UprobeError::Instruction { addr, .. } = error else {
                        panic!("{error}");
                    };
                    refused.push(format!("{error}"));
                    of_function.retain(|(ip, _)| *ip != addr);
                }
            }
        }
    }
    let total = accepted.len() + refused.len();
    assert!(total > 4000, "{total} instructions");
    // `ud2` and `int3`, the instructions that the exercise raises exceptions with, and padding.
    assert!(
        refused.len() * 20 < total,
        "{} of {total}: {refused:?}",
        refused.len()
    );
    for args in [
        &["probed", "2"][..],
        &["probed_fork"],
        &["identity"],
        &["copy_on_write"],
        &["rounds", "2"],
        &["heap"],
        &["registers", "20"],
    ] {
        goes_well(args);
    }
    assert_eq!(
        exercise(&["raise", "divide"]),
        WaitStatus::killed(signal::FPE)
    );
    let hits: u64 = accepted
        .iter()
        .map(|one| match one {
            UserProbe::Probe(probe) => {
                assert_eq!(probe.nmissed(), 0);
                probe.hits()
            }
            UserProbe::Return(_) => 0,
        })
        .sum();
    assert!(hits > 20_000, "{hits} hits");
    registry::unregister(&accepted).expect("this is a task");
    goes_well(&["probed", "2"]);
}

/// A post handler finds the effect of the instruction, whatever it is: a jump, a call, a loop,
/// flags that are pushed without the probe's trap flag, a system call.
#[guest_test]
fn a_post_handler_runs_after_the_instruction() {
    let bytes = file(EXERCISE);
    let program = program(&bytes);
    let mut probes = Vec::new();
    let mut places = Vec::new();
    fn after(probe: &Uprobe, regs: &mut PtRegs) {
        SEEN.fetch_add(1, SeqCst);
        let insn = probe.handler_data().addr() as u64;
        let is_right = regs.user_mode() && regs.flags & 0x100 == 0 && regs.ip != insn;
        WRONG.fetch_add(u64::from(!is_right), SeqCst);
    }
    reset();
    for function in elf_program::functions(&bytes) {
        if !function.name.starts_with("probed_") {
            continue;
        }
        let offset = program
            .code_offset(function.start)
            .expect("functions are code");
        let code = &bytes[offset as usize..][..function.size as usize];
        for insn in Instructions::new(code, function.start).map_while(Result::ok) {
            let post = Uprobe::new()
                .program(EXERCISE)
                .offset(offset + (insn.ip() - function.start))
                .data(core::ptr::without_provenance(insn.ip() as usize))
                .post_handler(after);
            if let Ok(probe) = RegisteredUserProbe::new(post) {
                places.push(insn.ip());
                probes.push(probe);
            }
        }
    }
    assert!(places.len() > 80, "{}", places.len());
    goes_well(&["probed", "3"]);
    goes_well(&["probed_fork"]);
    let hits: u64 = probes.iter().map(|probe| probe.hits()).sum();
    // `fork` comes back twice.
    assert_eq!((SEEN.load(SeqCst), WRONG.load(SeqCst)), (hits, 0));
    drop(probes);
    // The next instruction is where the handler finds the program.
    reset();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.store(address("probed_factorial"), SeqCst);
    let call = bytes_of(&bytes, &program, "probed_factorial")
        .find(|insn| insn.bytes()[0] == 0xe8)
        .expect("it calls itself");
    let offset = program.code_offset(call.ip()).expect("it is code");
    let post = Uprobe::new()
        .program(EXERCISE)
        .offset(offset)
        .post_handler(|_, regs| {
            let is_right = regs.ip == NEXT.load(SeqCst);
            WRONG.fetch_add(u64::from(!is_right), SeqCst);
        });
    let post = probe(post);
    goes_well(&["probed", "1"]);
    assert_eq!((post.hits(), WRONG.load(SeqCst)), (9, 0));
}

/// The instructions of a function of the exercise.
fn bytes_of<'a>(
    bytes: &'a [u8],
    program: &Executable,
    name: &str,
) -> impl Iterator<Item = probes::insn::Insn> + use<'a> {
    let mut functions = elf_program::functions(bytes);
    let function = functions
        .find(|function| function.name == name)
        .expect("it is there");
    let offset = program
        .code_offset(function.start)
        .expect("functions are code");
    let code = &bytes[offset as usize..][..function.size as usize];
    Instructions::new(code, function.start).map_while(Result::ok)
}

/// Handlers at the beginning of a function find the return address that its caller wrote, also if a
/// return probe came after them.
#[guest_test]
fn handlers_find_the_return_address_that_the_program_wrote() {
    reset();
    let pops = probe(at("probed_pops").handler(|_, regs| {
        let mut word = [0; 8];
        let is_read = copy_from_program(&mut word, regs.sp).is_ok();
        WRONG.fetch_add(u64::from(!is_read), SeqCst);
        SEEN.store(u64::from_le_bytes(word), SeqCst);
        PreVerdict::Execute
    }));
    let back = return_probe(return_of("probed_pops").handler(|_, _| {}));
    goes_well(&["probed", "1"]);
    // After two pushes of a byte each and a call of five.
    assert_eq!(SEEN.load(SeqCst), address("probed_pops_caller") + 7);
    assert_eq!((pops.hits(), back.hits(), WRONG.load(SeqCst)), (1, 1, 0));
}

/// A program that runs already gets its breakpoints, and loses them, on whatever CPU it is.
#[guest_test(smp = 4)]
fn probes_come_to_programs_that_run_and_go_again() {
    let running: Vec<Pid> = (0..6).map(|_| start(&["probed_forever"])).collect();
    for round in 0..20 {
        let add = probe(at("probed_add"));
        let factorial = return_probe(return_of("probed_factorial").handler(|_, regs| {
            WRONG.fetch_add(u64::from(regs.ax == 0), SeqCst);
        }));
        expect_soon("a hit in each program", || {
            add.hits() > 50 && factorial.hits() > 50
        });
        if round % 2 == 0 {
            drop(add);
        } else {
            drop(factorial);
        }
    }
    let only = running[3];
    static PID: AtomicU64 = AtomicU64::new(0);
    PID.store(only as u64, SeqCst);
    reset();
    let of_one = probe(at("probed_pid").only(only).handler(|_, _| {
        let pid = kernel::task::current().pid() as u64;
        WRONG.fetch_add(u64::from(pid != PID.load(SeqCst)), SeqCst);
        PreVerdict::Execute
    }));
    let deadline = soon();
    while of_one.hits() <= 10 {
        if ktime_get() > deadline {
            for pid in &running {
                let Some(task) = process::find(*pid) else {
                    kernel::pr_info!("{pid} is gone");
                    continue;
                };
                // SAFETY: for a diagnosis.
                let regs = unsafe { task.user_regs() };
                let space = task.user_space().expect("it is a program");
                let mut bytes = [0; 16];
                let _ = space.peek(regs.ip, &mut bytes);
                kernel::pr_info!(
                    "{pid}: {task:?} running {} ip {:#x} sp {:#x} armed {:x?} bytes {:x?}",
                    task.is_running(),
                    regs.ip,
                    regs.sp,
                    space.probes().armed_places(),
                    bytes
                );
            }
            panic!("{} hits in {only}", of_one.hits());
        }
        sleep_until(ktime_get() + NSEC_PER_MSEC);
    }
    for pid in &running {
        let task = process::find(*pid).expect("it runs");
        let armed = task
            .user_space()
            .expect("it is a program")
            .probes()
            .armed_places();
        assert_eq!(armed.len(), usize::from(*pid == only));
    }
    running.into_iter().for_each(kill);
    assert_eq!(WRONG.load(SeqCst), 0);
}

/// A fault in a displaced instruction is told with the address of the instruction, and a program's
/// own breakpoint stays its own.
/// A thousand processes of a probed program come and go on four CPUs: each passes the probes once,
/// no call is missed, and none leaves memory behind.
#[guest_test(smp = 4)]
fn a_thousand_processes_pass_the_same_probes() {
    const EACH: u64 = 250;
    let begin = probe(at("user_main").handler(count));
    let end = return_probe(return_of("user_main").handler(|_, _| {}));
    let run = || {
        let runners = [0; 4].map(|_| {
            spawn_kthread("runs", || {
                for _ in 0..EACH {
                    goes_well(&["sleep", "0"]);
                }
            })
            .expect("memory for a thread")
        });
        for runner in runners {
            runner.wait_released();
        }
    };
    // What the first processes leave for the next ones is there then.
    run();
    let before = Usage::now();
    run();
    assert_eq!((begin.hits(), end.hits()), (8 * EACH, 8 * EACH));
    assert_eq!((begin.nmissed(), end.nmissed()), (0, 0));
    let held = Usage::now().held_since(&before);
    assert!(held < 64 << 10, "{held} bytes are left");
}

#[guest_test]
fn faults_and_own_breakpoints_are_the_programs() {
    let read = address("probed_read");
    let bytes = file(EXERCISE);
    let program = program(&bytes);
    let offset = program.code_offset(read).expect("it is code");
    // After the no-operation.
    let on_read = probe(Uprobe::new().program(EXERCISE).offset(offset + 1));
    assert_eq!(
        exercise(&["probed_fault"]),
        WaitStatus::killed(signal::SEGV)
    );
    let report = last_report();
    assert!(
        report.starts_with(&format!("cannot read 0x0 at ip {:#x}", read + 1)),
        "{report}"
    );
    assert_eq!(on_read.hits(), 1);
    assert_eq!(
        exercise(&["raise", "breakpoint"]),
        WaitStatus::killed(signal::TRAP)
    );
    // The trampoline is a breakpoint like another for code that jumps to it without a call.
    let own_return = return_probe(return_of("probed_own_return").handler(note_result));
    assert_eq!(
        exercise(&["probed_forge", "own"]),
        WaitStatus::killed(signal::TRAP)
    );
    assert_eq!((own_return.hits(), own_return.active()), (1, 0));
}

/// A handler reads memory that the program has not touched yet, and no memory that is not its own.
#[guest_test]
fn a_handler_reads_memory_that_nobody_has_touched() {
    reset();
    let length = probe(at("probed_length").handler(|_, regs| {
        let mut text = [0; 18];
        let is_read = copy_from_program(&mut text, regs.di).is_ok();
        WRONG.fetch_add(
            u64::from(!is_read || text != *b"not touched before"),
            SeqCst,
        );
        let outside = copy_from_program(&mut text, 0x10);
        WRONG.fetch_add(u64::from(outside != Err(Errno::EFAULT)), SeqCst);
        let kernel = copy_from_program(&mut text, 0xffff_ffff_8000_0000);
        WRONG.fetch_add(u64::from(kernel != Err(Errno::EFAULT)), SeqCst);
        PreVerdict::Execute
    }));
    goes_well(&["probed", "1"]);
    assert_eq!((length.hits(), WRONG.load(SeqCst)), (1, 0));
}

/// Where the word of the program is that counts probes.
pub fn semaphore() -> u64 {
    let bytes = file(EXERCISE);
    let program = program(&bytes);
    let address = symbol(&bytes, "PROBED_SEMAPHORE");
    let has_it = |segment: &&Segment| segment.memory.contains(&address);
    let segment = program
        .segments
        .iter()
        .find(has_it)
        .expect("it is in memory");
    segment.file_offset + (address - segment.memory.start)
}

/// A process that runs already has its word raised and lowered, and so has a child, whose memory is
/// a copy, but not twice.
#[guest_test]
fn a_word_is_counted_in_processes_that_run_and_fork() {
    let offset = semaphore();
    let running = start(&["probed_semaphore_changes"]);
    goes_well(&["probed_semaphore_fork", "0"]);
    let one = probe(at("probed_add").reference_counter(offset));
    expect_soon("a hit", || one.hits() > 0);
    goes_well(&["probed_semaphore_fork", "1"]);
    let two = probe(at("probed_sign").reference_counter(offset));
    goes_well(&["probed_semaphore_fork", "2"]);
    one.set_enabled(false).expect("it is registered");
    goes_well(&["probed_semaphore_fork", "1"]);
    drop((one, two));
    assert_eq!(end_of(running), WaitStatus::exited(0));
}

/// A word of the program counts the probes at a place, in each process.
#[guest_test]
fn a_word_of_the_program_counts_the_probes() {
    let offset = semaphore();
    goes_well(&["probed_semaphore", "0"]);
    let one = probe(at("probed_add").reference_counter(offset));
    let two = probe(at("probed_sign").reference_counter(offset));
    let other = probe(at("probed_sign"));
    goes_well(&["probed_semaphore", "2"]);
    drop(two);
    goes_well(&["probed_semaphore", "1"]);
    drop((one, other));
    goes_well(&["probed_semaphore", "0"]);
    let bad = refusal(at("probed_add").reference_counter(1));
    assert_eq!(
        (bad.clone(), bad.errno()),
        (UprobeError::NotCounter { offset: 1 }, Errno::EINVAL)
    );
}

/// A program that finds its word raised is seen at its very next call, on any CPU: in its first
/// round, which copies the pages of its text and of its word, and in those after that.
#[guest_test]
fn a_program_whose_word_is_raised_is_seen_at_its_next_call() {
    let offset = semaphore();
    let sees_none = probe(at("probed_sign"));
    for process in 0..10 {
        let running = start(&["probed_semaphore_rounds", "10"]);
        for round in 0..10 {
            let add = probe(at("probed_add").reference_counter(offset));
            expect_soon("its call", || add.hits() == 1);
            drop(add);
            let lowered = process * 10 + round + 1;
            expect_soon("a lowered word", || sees_none.hits() == lowered);
        }
        assert_eq!(end_of(running), WaitStatus::exited(0));
    }
}

/// The address of an object of the program.
fn symbol(bytes: &[u8], name: &str) -> u64 {
    elf_program::objects(bytes)
        .find(|object| object.name == name)
        .expect("it is there")
        .start
}

/// A probe stays on a file whose name is gone, as long as a program runs it; and another file of
/// the same bytes is another program.
#[guest_test]
fn a_probe_belongs_to_the_file_and_not_to_its_name() {
    let bytes = file(EXERCISE);
    let copy = "/tmp/copy";
    fs::install_file(copy.as_bytes(), 0o755, bytes).expect("there is room");
    let of_copy = probe(Uprobe::new().program(copy).symbol("probed_add"));
    goes_well(&["probed", "1"]);
    assert_eq!(of_copy.hits(), 0);
    let running = start_program(copy, &["probed_forever"]).expect("it can be run");
    expect_soon("a hit", || of_copy.hits() > 0);
    fs::unlink(&NodeRef::root(), copy.as_bytes()).expect("it is there");
    let before = of_copy.hits();
    expect_soon("more hits", || of_copy.hits() > before + 10);
    drop(of_copy);
    kill(running);
    let gone = refusal(Uprobe::new().program(copy).symbol("probed_add"));
    assert_eq!(gone.errno(), Errno::ENOENT);
}

/// Each refusal has its reason, and changes nothing.
#[guest_test]
fn refusals_say_why() {
    let bytes = file(EXERCISE);
    let program = program(&bytes);
    let add = address("probed_add");
    let offset = program.code_offset(add).expect("it is code");
    let in_file = |offset| Uprobe::new().program(EXERCISE).offset(offset);
    fs::install_file(b"/tmp/text", 0o755, b"no program".to_vec()).expect("there is room");
    let directory = refusal(Uprobe::new().program("/bin"));
    let unknown = refusal(at("probed_nothing"));
    for (error, errno, text) in [
        (refusal(Uprobe::new()), Errno::ENOENT, "cannot be read"),
        (
            refusal(Uprobe::new().program("/bin/nothing")),
            Errno::ENOENT,
            "cannot be read",
        ),
        (directory, Errno::EACCES, "cannot be read"),
        (
            refusal(Uprobe::new().program("/tmp/text")),
            Errno::EINVAL,
            "is no program",
        ),
        (unknown, Errno::ENOENT, "no symbol probed_nothing"),
        (
            refusal(at("probed_add").offset(5)),
            Errno::ENOENT,
            "5 bytes only",
        ),
        (
            refusal(in_file(0x10_0000)),
            Errno::EINVAL,
            "no code of the program",
        ),
        (
            refusal(in_file(offset + 1)),
            Errno::EILSEQ,
            "inside an instruction",
        ),
    ] {
        assert_eq!(error.errno(), errno, "{error}");
        assert!(format!("{error}").contains(text), "{error}");
    }
    let inside = Uretprobe::new()
        .program(EXERCISE)
        .symbol("probed_add")
        .offset(4);
    let inside = RegisteredUserProbe::new(inside).err();
    assert_eq!(inside, Some(UprobeError::NotFunctionEntry { entry: add }));
    // The word where a return address would be is the number of the program's arguments.
    let start = RegisteredUserProbe::new(return_of("_start")).err();
    assert_eq!(start, Some(UprobeError::EntryPoint));
    let undefined = bytes_of(&bytes, &program, "probed_jump")
        .find(|insn| insn.bytes() == [0x0f, 0x0b])
        .expect("it has one");
    let offset = program.code_offset(undefined.ip()).expect("it is code");
    let error = refusal(in_file(offset));
    assert_eq!(error.errno(), Errno::EILSEQ, "{error}");
    assert_eq!(registry::register(&[]), Err(UprobeError::EmptyBatch));
    let atomic = x86_64::instructions::interrupts::without_interrupts(|| refusal(at("probed_add")));
    assert_eq!(atomic, UprobeError::AtomicContext);
    // A batch with one that is refused leaves none.
    let good: UserProbe = ProbeRef::Shared(shared(at("probed_add"))).into();
    let bad: UserProbe = ProbeRef::Shared(shared(in_file(0))).into();
    assert!(registry::register(&[good, bad]).is_err());
    let mut left = 0;
    registry::for_each(|_, _, _| left += 1);
    assert_eq!(left, 0);
    fs::unlink(&NodeRef::root(), b"/tmp/text").expect("it is there");
}

/// Memory may be short at any step of a registration. Then nothing has changed, also not the word
/// that counts, and the program that runs goes on.
#[guest_test(timeout = 400)]
fn memory_may_be_short_at_any_step() {
    let running = start(&["probed_forever"]);
    let task = process::find(running).expect("it runs");
    let (offset, word) = (semaphore(), symbol(&file(EXERCISE), "PROBED_SEMAPHORE"));
    let armed_and_counted = || {
        let space = task.user_space().expect("it is a program");
        let mut count = [0; 2];
        space.peek(word, &mut count).expect("it has the word");
        (
            space.probes().armed_places().len(),
            u16::from_le_bytes(count),
        )
    };
    // The page of slots is there then. A page of a program is taken only while the kernel's reserve
    // is free, and not one by one.
    drop(return_probe(return_of("probed_pid")));
    let mut refused = 0;
    for room in 0.. {
        let one = at("probed_factorial").reference_counter(offset);
        let one = ProbeRef::Shared(shared(one.handler(count)));
        let back = return_of("probed_factorial").reference_counter(offset);
        let back = ProbeRef::Shared(shared(back.handler(note_result)));
        let both: [UserProbe; 2] = [one.into(), back.into()];
        let outcome = with_room_for(room, || registry::register(&both).map(|()| both));
        match outcome.result {
            Ok(both) => {
                assert_eq!((armed_and_counted(), outcome.refused), ((1, 2), 0));
                let before = SEEN.load(SeqCst);
                expect_soon("hits", || SEEN.load(SeqCst) > before);
                registry::unregister(&both).expect("this is a task");
                assert_eq!(armed_and_counted(), (0, 0));
                break;
            }
            Err(error) => {
                assert_eq!(error.errno(), Errno::ENOMEM, "{error}");
                assert!(outcome.refused > 0);
                assert_eq!(armed_and_counted(), (0, 0), "room {room}");
                refused += 1;
            }
        }
        let mut left = 0;
        registry::for_each(|_, _, _| left += 1);
        assert_eq!(left, 0, "room {room}");
    }
    assert!(refused > 20, "{refused} allocations");
    kill(running);
}

fn count(_: &Uprobe, _: &mut PtRegs) -> PreVerdict {
    SEEN.fetch_add(1, SeqCst);
    PreVerdict::Execute
}
