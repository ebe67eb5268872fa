//! Hits where the kernel around them matters: rings, interrupts, exceptions, stacks, memory.
//!
//! A hit runs on the stack of whatever it interrupts. So the tests look at how much of it a hit
//! takes, at breakpoints of programs, at the idle loop, at exceptions that the displaced
//! instruction raises, and at memory that must never be writable where it is executed.

use crate::{
    platform::suite::flags::{AC, CF, DF, DF_AND_AC, IF, MASKED, PLAIN, STATUS},
    tools::handlers::{Deed, after, at_entry, at_return, before},
};
use abi::{WaitStatus, signal};
use alloc::{boxed::Box, string::String, vec::Vec};
use core::{
    arch::{asm, global_asm, naked_asm},
    hint::{self, black_box},
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};
use kernel::{
    arch::{percpu, smp, traps},
    backtrace,
    mm::paging::{self, TEXT_POOL_END, TEXT_POOL_START},
    probes::{
        EntryVerdict, FaultVerdict, Jprobe, Kprobe, Kretprobe, KretprobeInstance, PreVerdict,
        PtRegs, jprobe, register, survey,
    },
    symbols,
    sync::SpinLock,
    task::{exec::run_program, kthread::spawn_kthread_on, sleep::sleep_ns},
    time::NSEC_PER_MSEC,
};
use x86_64::{
    instructions::interrupts,
    registers::{
        debug::{Dr6, Dr6Flags},
        rflags,
    },
};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn hit_target(a: u64) -> u64 {
    black_box(a + 11)
}

fn pass(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    PreVerdict::Execute
}

fn pass_after(_: &Kprobe, _: &mut PtRegs, _: u64) {}

/// A program's breakpoint is the program's own, and so is its single step: it ends by it, and the
/// probes are not even asked.
#[guest_test(cmdline = "kprobes.optimize=0")]
fn a_programs_breakpoint_is_no_hit() {
    let asked = || {
        (0..smp::online_cpus())
            .map(|cpu| &percpu::of(cpu).probes)
            .map(|probes| probes.breakpoints.load(SeqCst) + probes.debug_traps.load(SeqCst))
            .sum::<u64>()
    };
    let before = asked();
    for what in ["breakpoint", "single_step"] {
        let status = run_program("/bin/exercise", &["raise", what]).expect("the program starts");
        assert_eq!(status, WaitStatus::killed(signal::TRAP), "{what}");
        assert_eq!(asked(), before, "{what}");
    }
    // The counter counts: a hit of the kernel's shows.
    let probe = register(Box::new(Kprobe::new().symbol("hit_target").pre(pass))).unwrap();
    hit_target(black_box(1));
    drop(probe);
    assert_eq!(asked(), before + 1);
}

/// Every instruction of the idle loop that can be probed is, while the CPUs fall idle and wake up;
/// sleepers come back.
#[guest_test]
fn the_idle_loop_can_be_probed() {
    let idle = symbols::lookup_name("kernel::task::idle::run").expect("it is not inlined");
    let probes: Vec<_> = survey::function(&idle)
        .unwrap()
        .iter()
        .filter(|judged| judged.verdict.is_ok())
        .map(|judged| register(Box::new(Kprobe::new().at(judged.insn.ip()).pre(pass))).unwrap())
        .collect();
    for _ in 0..10 {
        sleep_ns(5 * NSEC_PER_MSEC);
    }
    let hit = probes.iter().filter(|probe| probe.hits() > 0).count();
    assert!(
        hit >= 3,
        "{hit} of {} probed instructions were executed",
        probes.len()
    );
    drop(probes);
}

/// With probes of every kind in place no page is writable and executable, and all that the probes
/// execute lies within 2 GiB of the text.
#[guest_test]
fn slots_are_near_the_text_and_never_writable_where_executed() {
    let probes = [
        register(Box::new(Kprobe::new().symbol("hit_target").pre(pass))).unwrap(),
        register(Box::new(
            Kprobe::new().symbol("hit_target").post(pass_after),
        ))
        .unwrap(),
    ];
    let mut slots = 0;
    let text = (pass as *const ()).addr() as u64;
    paging::for_each_kernel_mapping(|mapping| {
        assert!(!(mapping.writable && mapping.executable), "{mapping:x?}");
        let page = mapping.page.as_u64();
        if (TEXT_POOL_START..TEXT_POOL_END).contains(&page) {
            assert!(mapping.executable && !mapping.user, "{mapping:x?}");
            assert!(page.abs_diff(text) < 1 << 31);
            slots += 1;
        }
    });
    assert!(slots > 0, "there are slots, as there are probes");
    drop(probes);
}

/// How far below the probed code's stack pointer handlers of each kind ran.
static DEEPEST: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];

/// Notes how much of the stack lies between the probed code and a handler.
#[inline(always)]
fn note_depth(kind: usize, probed: u64) {
    let here: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) here, options(nomem, nostack, preserves_flags)) };
    DEEPEST[kind].fetch_max(probed - here, SeqCst);
}

fn depth_before(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    note_depth(0, regs.sp);
    PreVerdict::Execute
}

fn depth_after(_: &Kprobe, regs: &mut PtRegs, _: u64) {
    note_depth(1, regs.sp);
}

fn depth_at_entry(_: &mut KretprobeInstance<u64>, regs: &mut PtRegs) -> EntryVerdict {
    note_depth(2, regs.sp);
    EntryVerdict::Track
}

fn depth_at_return(_: &mut KretprobeInstance<u64>, regs: &mut PtRegs) {
    note_depth(3, regs.sp);
}

fn depth_at_fault(probe: &Kprobe, regs: &mut PtRegs, vector: u8) -> FaultVerdict {
    note_depth(4, regs.sp);
    skip_faulting_instruction(probe, regs, vector)
}

/// The bytes of stack that a hit may use before its handler begins: two levels of re-entry are then
/// a small part of the smallest stack, and handlers have the rest.
const MOST_STACK: u64 = 1024;

/// The bytes that a hit puts on the stack of the probed code are bounded, for each kind of handler.
#[guest_test]
fn a_hit_takes_little_of_the_stack() {
    let kprobe = register(Box::new(
        Kprobe::new()
            .symbol("hit_target")
            .pre(depth_before)
            .post(depth_after),
    ))
    .unwrap();
    let call = register(Box::new(
        Kretprobe::new()
            .symbol("hit_target")
            .entry(depth_at_entry)
            .handler(depth_at_return),
    ))
    .unwrap();
    let faults = register(Box::new(
        Kprobe::new()
            .symbol("faulting_instructions")
            .pre(pass)
            .fault(depth_at_fault),
    ))
    .unwrap();
    assert_eq!(hit_target(black_box(1)), 12);
    LEN.store(3, SeqCst);
    // SAFETY: the fault handler has it go on after the first instruction, which loads from
    // nowhere, at a `ret`.
    unsafe { faulting_instructions(0x10, 0, 0, 0) };
    drop((faults, call, kprobe));
    let depths = DEEPEST.each_ref().map(|depth| depth.load(SeqCst));
    kernel::pr_info!(
        "bytes of stack before a pre, post, entry, return and fault handler: {depths:?}"
    );
    for depth in depths {
        assert!((1..=MOST_STACK).contains(&depth), "{depths:?}");
    }
}

/// Instructions that raise an exception each; see [`FAULTING`].
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn faulting_instructions(_: u64, _: u64, _: u64, _: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "mov rax, [rdi]", // +0
        "ret",
        "div ecx", // +4
        "ret",
        ".byte 0x0f, 0x57, 0xc0", // +7  xorps xmm0, xmm0
        "ret",
        ".byte 0xd9, 0xe8", // +11 fld1
        "ret",
        "mov ds, ecx", // +14
        "ret",
        ".cfi_endproc",
    )
}

/// One of the instructions, and the exception that it raises.
struct Faulting {
    offset: u32,
    len: u64,
    di: u64,
    cx: u64,
    vector: u8,
}

const fn faulting(offset: u32, len: u64, di: u64, cx: u64, vector: u8) -> Faulting {
    Faulting {
        offset,
        len,
        di,
        cx,
        vector,
    }
}

const NON_CANONICAL: u64 = 0x8000_0000_0000_0000;

const FAULTING: [Faulting; 6] = [
    faulting(0, 3, 0x10, 1, 14),
    faulting(0, 3, NON_CANONICAL, 1, 13),
    faulting(4, 2, 0, 0, 0),
    // CR4.OSFXSR is clear.
    faulting(7, 3, 0, 1, 6),
    // CR0.EM is set.
    faulting(11, 2, 0, 1, 7),
    // A selector that is none.
    faulting(14, 2, 0, 0xfff0, 13),
];

static LEN: AtomicU64 = AtomicU64::new(0);
static SEEN_AT: AtomicU64 = AtomicU64::new(0);
static SEEN_VECTOR: AtomicU64 = AtomicU64::new(0);
static SEEN_TIMES: AtomicU64 = AtomicU64::new(0);
static COMPLETED: AtomicU64 = AtomicU64::new(0);

fn skip_faulting_instruction(_: &Kprobe, regs: &mut PtRegs, vector: u8) -> FaultVerdict {
    SEEN_AT.store(regs.ip, SeqCst);
    SEEN_VECTOR.store(vector.into(), SeqCst);
    SEEN_TIMES.fetch_add(1, SeqCst);
    regs.ip += LEN.load(SeqCst);
    regs.ax = 0xbad;
    FaultVerdict::Handled
}

fn complete(_: &Kprobe, _: &mut PtRegs, _: u64) {
    COMPLETED.fetch_add(1, SeqCst);
}

/// Loads from nowhere, after three bytes that a jump may displace as well.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn ends_the_kernel(from: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "mov rax, rdi",   // +0
        "mov rax, [rax]", // +3
        "ret",
        ".cfi_endproc",
    )
}

/// Has it end the kernel with a probe on the load.
fn end_the_kernel(probe: Kprobe) {
    core::mem::forget(register(Box::new(probe.symbol("ends_the_kernel"))).unwrap());
    ends_the_kernel(black_box(0x10));
}

/// The last words of a kernel that a probed instruction ends name that instruction, not the
/// slot.
#[guest_test(
    cmdline = "kprobes.optimize=0",
    should_panic = "RIP: 0008:ends_the_kernel+0x3/0x"
)]
fn a_report_names_the_probed_instruction_not_its_slot() {
    end_the_kernel(Kprobe::new().offset(3).pre(pass).post(pass_after));
}

/// The same of an instruction that a jump has displaced.
#[guest_test(
    cmdline = "kprobes.optimize=1",
    should_panic = "RIP: 0008:ends_the_kernel+0x3/0x"
)]
fn a_report_names_the_displaced_instruction_not_the_detour() {
    end_the_kernel(Kprobe::new().pre(pass));
}

/// Whatever a probed instruction raises, its fault handler is told the vector and the probed
/// address, and may go on.
#[guest_test]
fn each_exception_of_a_probed_instruction_reaches_its_fault_handler() {
    let start = symbols::lookup_name("faulting_instructions").unwrap().start;
    for shape in [0, 1] {
        for case in &FAULTING {
            let probe = Kprobe::new()
                .symbol("faulting_instructions")
                .offset(case.offset)
                .fault(skip_faulting_instruction);
            let probe = register(Box::new(if shape == 0 {
                probe
            } else {
                probe.post(complete)
            }))
            .unwrap();
            LEN.store(case.len, SeqCst);
            SEEN_TIMES.store(0, SeqCst);
            let at = start + u64::from(case.offset);
            // SAFETY: an instruction that the fault handler skips, and a `ret`.
            let run: extern "C" fn(u64, u64, u64, u64) -> u64 = unsafe { core::mem::transmute(at) };
            assert_eq!(
                run(black_box(case.di), 0, 0, black_box(case.cx)),
                0xbad,
                "vector {}",
                case.vector
            );
            let seen = [&SEEN_TIMES, &SEEN_AT, &SEEN_VECTOR].map(|seen| seen.load(SeqCst));
            assert_eq!(seen, [1, at, case.vector.into()]);
            assert!(!percpu::in_probe_handler() && interrupts::are_enabled());
            drop(probe);
        }
    }
    assert_eq!(
        COMPLETED.load(SeqCst),
        0,
        "none of the instructions was completed"
    );
}

/// Reads, sets or changes the interrupt flag, and the others.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn changes_flags(which: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "cmp rdi, 1",
        "je 2f",
        "cmp rdi, 2",
        "je 3f",
        "cmp rdi, 3",
        "je 4f",
        "cmp rdi, rsp",
        "ret",
        "2: cli",
        "ret",
        "3: sti",
        "ret",
        "4: std",
        "stc",
        "ret",
        ".cfi_endproc",
    )
}

/// Calls `changes_flags(which)` with these flags and returns the flags after the call.
#[unsafe(naked)]
unsafe extern "C" fn flags_after(which: u64, flags: u64) -> u64 {
    naked_asm!(
        "pushfq",
        "push rsi",
        "popfq",
        "call changes_flags",
        "pushfq",
        "pop rax",
        "popfq",
        "ret",
    )
}

unsafe extern "C" {
    /// Called with any interrupt flag; switches interrupts off and on.
    fn switches_interrupts();
}

global_asm!(
    ".pushsection .text.switches_interrupts, \"ax\", @progbits",
    ".globl switches_interrupts",
    ".type switches_interrupts, @function",
    "switches_interrupts:",
    ".cfi_startproc",
    "nop; cli; nop; sti; nop; ret",
    ".cfi_endproc",
    ".size switches_interrupts, . - switches_interrupts",
    ".popsection",
);

/// The interrupt flag in the registers of the pre and of the post handler, at each of the
/// instructions above.
static FLAGS_SEEN: [[AtomicU64; 2]; 6] = [const { [const { AtomicU64::new(0) }; 2] }; 6];

fn note_interrupt_flag(probe: &Kprobe, regs: &PtRegs, when: usize) {
    let at = probe.addr() - switches_interrupts as *const () as u64;
    FLAGS_SEEN[at as usize][when].store(regs.flags & IF, SeqCst);
    HANDLERS.fetch_add(
        u64::from(!rflags::read().contains(rflags::RFlags::INTERRUPT_FLAG)),
        SeqCst,
    );
}

/// Calls `switches_interrupts` with probes on all of its instructions, with interrupts off and on.
fn post_handlers_see_the_interrupt_flag() {
    let probes: Vec<_> = (0..6)
        .map(|offset| {
            let probe = Kprobe::new().symbol("switches_interrupts").offset(offset);
            let probe = probe.pre(|probe, regs| {
                note_interrupt_flag(probe, regs, 0);
                PreVerdict::Execute
            });
            let probe = probe.post(|probe, regs, _| note_interrupt_flag(probe, regs, 1));
            register(Box::new(probe)).unwrap()
        })
        .collect();
    for on in [IF, 0] {
        HANDLERS.store(0, SeqCst);
        let were_on = interrupts::are_enabled();
        if on == 0 {
            interrupts::disable();
        }
        // SAFETY: it ends with interrupts on, as they were.
        unsafe { switches_interrupts() };
        assert!(were_on && interrupts::are_enabled());
        let seen = FLAGS_SEEN
            .each_ref()
            .map(|seen| seen.each_ref().map(|flag| flag.load(SeqCst)));
        let expected = [[on, on], [on, 0], [0, 0], [0, IF], [IF; 2], [IF; 2]];
        assert_eq!(
            seen, expected,
            "before and after nop, cli, nop, sti, nop, ret"
        );
        assert_eq!(
            HANDLERS.load(SeqCst),
            12,
            "handlers themselves run with interrupts off"
        );
    }
    drop(probes);
}

/// As the code goes on with it, at instructions that change it and at others.
#[guest_test]
fn post_handlers_see_the_interrupt_flag_as_it_will_be() {
    post_handlers_see_the_interrupt_flag();
}

#[guest_test(cmdline = "kprobes.step=tf")]
fn single_stepped_post_handlers_see_the_interrupt_flag_as_it_will_be() {
    post_handlers_see_the_interrupt_flag();
}

/// The events around a `cli`, in order: its post handler, a hit after it, an interrupt.
static AROUND_CLI: SpinLock<Vec<&str>> = SpinLock::new(Vec::new());

/// An interrupt that becomes due in the pre handler of a `cli` comes when interrupts are on again:
/// neither between the instruction and its post handler nor at the hit after it.
fn no_interrupt_comes_behind_a_probed_cli() {
    fn due(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        smp::send_ipi(percpu::cpu_id(), traps::SPARE_INTERRUPT);
        PreVerdict::Execute
    }
    fn note(what: &'static str) {
        AROUND_CLI.lock().push(what);
    }
    *AROUND_CLI.lock() = Vec::with_capacity(8);
    traps::set_interrupt_handler(Some(|_| note("interrupt")));
    let cli = Kprobe::new().symbol("switches_interrupts").offset(1);
    let cli = cli.pre(due).post(|_, _, _| note("post handler"));
    let behind = Kprobe::new().symbol("switches_interrupts").offset(2);
    let behind = behind.pre(|_, _| {
        note("hit behind it");
        PreVerdict::Execute
    });
    let probes = [cli, behind].map(|probe| register(Box::new(probe)).unwrap());
    percpu::preempt_disable();
    // SAFETY: it ends with interrupts on, as they were.
    unsafe { switches_interrupts() };
    while AROUND_CLI.lock().len() < 3 {
        hint::spin_loop();
    }
    percpu::preempt_enable();
    drop(probes);
    traps::set_interrupt_handler(None);
    let order = core::mem::take(&mut *AROUND_CLI.lock());
    assert_eq!(order, ["post handler", "hit behind it", "interrupt"]);
}

#[guest_test]
fn no_interrupt_comes_between_a_probed_cli_and_what_follows() {
    no_interrupt_comes_behind_a_probed_cli();
}

#[guest_test(cmdline = "kprobes.step=tf")]
fn no_interrupt_comes_between_a_single_stepped_cli_and_what_follows() {
    no_interrupt_comes_behind_a_probed_cli();
}

/// Handlers that ran, and those that found DF or AC set.
static HANDLERS: AtomicU64 = AtomicU64::new(0);
static SPOILT: AtomicU64 = AtomicU64::new(0);

/// Counts a handler, and whether it runs with the flags that Rust code wants.
struct CheckFlags;

impl Deed for CheckFlags {
    fn done() {
        HANDLERS.fetch_add(1, SeqCst);
        SPOILT.fetch_add(u64::from(rflags::read_raw() & DF_AND_AC != 0), SeqCst);
    }
}

/// Functions that are called with interrupts off, that switch them off or on, and that leave
/// other flags: the caller finds the flags that it finds without probes, and no handler sees DF
/// or AC. By breakpoints: a detour at an entry takes AC as it finds it.
#[guest_test(cmdline = "kprobes.optimize=0")]
fn a_caller_finds_its_flags_after_a_probed_return() {
    flags_survive_probes(&[
        PLAIN,
        MASKED,
        PLAIN | STATUS,
        PLAIN | AC,
        PLAIN | STATUS | DF | AC,
    ]);
}

/// The same with jumps: at a function's entry a detour takes AC as it finds it.
#[guest_test]
fn a_caller_finds_its_flags_after_a_jump() {
    flags_survive_probes(&[PLAIN, MASKED, PLAIN | STATUS, PLAIN | STATUS | DF]);
}

/// Sets DF in front of an instruction that has room for a jump. Returns the flags after that one.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn counts_down() -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "std",
        "movabs rax, 0x1122334455667788",
        "pushfq",
        "pop rax",
        "cld",
        "ret",
        ".cfi_endproc",
    )
}

/// Functions have DF clear at their entries, but it may be set in their midst: a handler runs with
/// DF clear there, too, after a breakpoint and in a detour, and the function finds it set again.
#[guest_test]
fn handlers_in_the_midst_of_a_function_run_with_clean_flags() {
    HANDLERS.store(0, SeqCst);
    SPOILT.store(0, SeqCst);
    let probe = Kprobe::new().symbol("counts_down").offset(1);
    let probe = register(Box::new(probe.pre(before::<CheckFlags>))).unwrap();
    for _ in 0..10 {
        assert_ne!(counts_down() & DF, 0);
    }
    assert_eq!(probe.hits(), 10);
    assert_eq!((HANDLERS.load(SeqCst), SPOILT.load(SeqCst)), (10, 0));
}

/// Calls `changes_flags` with these flags, bare and with probes of every kind.
fn flags_survive_probes(flags: &[u64]) {
    HANDLERS.store(0, SeqCst);
    SPOILT.store(0, SeqCst);
    let cases: Vec<(u64, u64)> = (0..4)
        .flat_map(|which| flags.iter().map(move |&flags| (which, flags)))
        .collect();
    // SAFETY: the flags are put back before the return.
    let run =
        |&(which, flags): &(u64, u64)| unsafe { flags_after(black_box(which), black_box(flags)) };
    let bare: Vec<_> = cases.iter().map(run).collect();
    assert!(
        bare.iter().any(|flags| flags & IF == 0)
            && bare.iter().any(|flags| flags & (CF | DF) == CF | DF)
    );
    let calls = [
        register(Box::new(
            Kretprobe::<u64>::new()
                .symbol("changes_flags")
                .handler(at_return::<CheckFlags>),
        ))
        .unwrap(),
        register(Box::new(
            Kretprobe::<u64>::new()
                .symbol("changes_flags")
                .entry(at_entry::<CheckFlags>)
                .handler(at_return::<CheckFlags>),
        ))
        .unwrap(),
    ];
    assert_eq!(cases.iter().map(run).collect::<Vec<_>>(), bare);
    assert_eq!(
        calls.each_ref().map(|call| call.hits()),
        [cases.len() as u64; 2]
    );
    let function = symbols::lookup_name("changes_flags").unwrap();
    let judged = survey::function(&function).unwrap();
    let probe_all = |shape: fn() -> Kprobe| -> Vec<_> {
        judged
            .iter()
            .filter(|judged| judged.verdict.is_ok())
            .map(|judged| register(Box::new(shape().at(judged.insn.ip()))).unwrap())
            .collect()
    };
    let probes = probe_all(|| Kprobe::new().pre(before::<CheckFlags>));
    assert_eq!(
        cases.iter().map(run).collect::<Vec<_>>(),
        bare,
        "with each instruction probed, too"
    );
    let more = probe_all(|| {
        Kprobe::new()
            .pre(before::<CheckFlags>)
            .post(after::<CheckFlags>)
    });
    assert_eq!(
        cases.iter().map(run).collect::<Vec<_>>(),
        bare,
        "with post handlers"
    );
    drop((more, probes, calls));
    assert!(HANDLERS.load(SeqCst) > 100);
    assert_eq!(
        SPOILT.load(SeqCst),
        0,
        "of {} handlers",
        HANDLERS.load(SeqCst)
    );
}

/// The functions that a jprobe's handler has found above itself.
static ABOVE: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

jprobe! {
    fn mirror_that_walks(_a: u64) {
        for (place, frame) in ABOVE.iter().zip(backtrace::walk_current()) {
            place.store(frame.code_address(), Relaxed);
        }
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn calls_hit_target(a: u64) -> u64 {
    black_box(hit_target(black_box(a)) + 1)
}

/// A jprobe's handler stands in for the function: its caller is the function's.
#[guest_test]
fn a_jprobes_backtrace_shows_the_functions_caller() {
    let probe = register(Box::new(
        Jprobe::new().symbol("hit_target").entry(mirror_that_walks),
    ))
    .unwrap();
    assert_eq!(calls_hit_target(black_box(1)), 13);
    drop(probe);
    let names: Vec<String> = ABOVE
        .iter()
        .filter_map(|address| symbols::lookup_addr(address.load(Relaxed)))
        .map(|symbol| alloc::format!("{symbol}"))
        .collect();
    let names = names.join(" ");
    assert!(
        names.contains("mirror_that_walks calls_hit_target guest_tests::probes::hits"),
        "{names}"
    );
}

/// The stack of a task that runs on another CPU is not walked.
#[guest_test]
fn a_running_task_shows_nothing() {
    static STOP: AtomicBool = AtomicBool::new(false);
    static RUNS: AtomicBool = AtomicBool::new(false);
    let spinner = spawn_kthread_on(1 << 1, "spinner", || {
        x86_64::instructions::interrupts::without_interrupts(|| {
            RUNS.store(true, SeqCst);
            while !STOP.load(SeqCst) {
                hint::spin_loop();
            }
        });
    })
    .expect("memory for a thread");
    while !RUNS.load(SeqCst) {
        kernel::task::schedule();
    }
    assert_eq!(backtrace::walk_task(&spinner).count(), 0);
    STOP.store(true, SeqCst);
    spinner.wait_released();
}

/// The debug status register does not tell of the probes' own steps: its next reader would take
/// them for a debugger's.
#[guest_test(cmdline = "kprobes.step=tf")]
fn a_step_of_the_probes_leaves_no_debug_status() {
    let probe = register(Box::new(Kprobe::new().symbol("hit_target").pre(pass))).unwrap();
    let (steps, status) = interrupts::without_interrupts(|| {
        let traps = &percpu::this().probes.debug_traps;
        let before = traps.load(SeqCst);
        hit_target(black_box(1));
        (traps.load(SeqCst) - before, Dr6::read())
    });
    assert_eq!((probe.hits(), steps), (1, 1));
    assert!(!status.contains(Dr6Flags::STEP), "{status:?}");
    drop(probe);
}

/// The same where displaced instructions are single-stepped.
#[guest_test(cmdline = "kprobes.step=tf")]
fn single_stepped_hits_fit_into_the_kernel_as_well() {
    the_idle_loop_can_be_probed();
    slots_are_near_the_text_and_never_writable_where_executed();
    a_hit_takes_little_of_the_stack();
    each_exception_of_a_probed_instruction_reaches_its_fault_handler();
    a_caller_finds_its_flags_after_a_probed_return();
    a_jprobes_backtrace_shows_the_functions_caller();
}
