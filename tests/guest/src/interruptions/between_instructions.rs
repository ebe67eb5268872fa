//! An NMI between any two instructions of a hit: what serves it in assembly and in Rust, the
//! handlers, the displaced instruction, the way back.
//!
//! Each case steps through one call of a probed function. At each step an NMI comes whose handler
//! calls the same function and another one, which is probed, too, and runs into a probed
//! instruction that faults. Where the guard is held, those are missed; where not, they are hits
//! like any others. Stack walks lead through each step to the caller. In the end each kind of place
//! that the case is about has been interrupted.

use crate::{
    interruptions::disturbed_hits::{UNMAPPED, copying_instruction},
    tools::jumps::Optimization,
    tools::stepping::{step_through, step_through_tasks},
};
use alloc::{boxed::Box, vec, vec::Vec};
use core::{
    arch::naked_asm,
    hint::{self, black_box},
    mem::offset_of,
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};
use kernel::{
    arch::{percpu, smp, traps},
    backtrace,
    errno::Errno,
    mm::uaccess::copy_from_user_nofault,
    pr_info,
    probes::{
        EntryVerdict, Jprobe, Kernel, Kprobe, Kretprobe, KretprobeInstance, PROBES, PreVerdict,
        PtRegs, Registered, ReturnMethod, StepMethod, jprobe, register,
    },
    symbols,
    task::{kthread::spawn_kthread_on, schedule},
};
use probes::{CallAction, Platform, action::EntryFrame};
use x86_64::instructions::interrupts::without_interrupts;

/// A jump fits at +0, over two instructions, and at +1, over two others.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn stepped_target(a: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "push rbx", // +0
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbx, 0",
        "lea rax, [rdi + 1]", // +1
        "add rbx, rax",       // +5, which overwrites the flags
        "pop rbx",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbx",
        "ret",
        ".cfi_endproc",
    )
}

/// All calls of [`stepped_target`] come through it. Its first instructions write no flags, and the
/// next one leads elsewhere, so a detour at its entry keeps them.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn stepped_around(a: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "push rbp", // +0
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbp, 0",
        "mov rbp, rsp", // +1
        "mov eax, edi", // +4
        "call {target}",
        "pop rbp",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbp",
        "ret",
        ".cfi_endproc",
        target = sym stepped_target,
    )
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stepped_in_nmi(a: u64) -> u64 {
    black_box(a + 402)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stepped_in_handler(a: u64) -> u64 {
    black_box(a + 3)
}

/// The argument of the stepped call.
const ARGUMENT: u64 = 0x5_7e99_ed00;

/// The call that is stepped through.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stepped_caller() {
    RESULT.store(stepped_around(black_box(ARGUMENT)), SeqCst);
}

static RESULT: AtomicU64 = AtomicU64::new(0);
/// NMIs that found the guard free, and those that found it held.
static FREE: AtomicU64 = AtomicU64::new(0);
static BUSY: AtomicU64 = AtomicU64::new(0);
/// Calls in NMIs that returned what they should.
static RIGHT: AtomicU64 = AtomicU64::new(0);
/// Steps whose walk did not lead to the caller, and the address of the last one.
static LOST: AtomicU64 = AtomicU64::new(0);
static LOST_AT: AtomicU64 = AtomicU64::new(0);
/// The stack pointer at the first instruction of the caller; 0 before it.
static CALLER_SP: AtomicU64 = AtomicU64::new(0);

/// The kinds of places, and how often an NMI came there.
const PLACES: [&str; 35] = [
    SLOT,
    "kprobe_breakpoint",
    "kprobe_hit",
    "kprobe_hit_post",
    "kprobe_any_hit",
    "kprobe_one_kretprobe",
    "kprobe_kretprobes",
    "kprobe_hit_pushed",
    "kprobe_handle_count",
    "kprobe_handle_kprobe",
    "kprobe_handle_nothing",
    "kprobe_handle_chain",
    "kprobe_handle_slow_path",
    "kprobe_run_posts",
    "kprobe_post_stub",
    "kretprobe_handle",
    "kretprobe_handle_entry",
    "kretprobe_decline",
    "kretprobe_give_back",
    "kretprobe_trampoline",
    "kretprobe_trampoline_action",
    "kretprobe_trampoline_trap3",
    "kretprobe_trampoline_trap4",
    "jprobe_handle",
    "jprobe_leave",
    "jprobe_return",
    "kprobe_detour_at_entry",
    "kprobe_detour",
    "kretprobe_detour_entry",
    "kretprobe_detour_action",
    "kretprobe_detour",
    "kretprobe_detour_keeping_flags",
    "kretprobes_detour",
    "context_switch",
    "__switch_to",
];
const SLOT: &str = "a slot";

static AT: [AtomicU64; PLACES.len()] = [const { AtomicU64::new(0) }; PLACES.len()];

/// The name of the place, if `ip` is at one of the probes.
fn place_of(ip: u64) -> Option<&'static str> {
    let described = PROBES.described_ip(ip);
    if described == ip && Kernel::slots().contains(&ip) {
        return Some(SLOT);
    }
    Some(symbols::lookup_addr(described)?.name)
}

/// An NMI at this step, and a walk from it.
fn interrupt(regs: &PtRegs) {
    if let Some(name) = place_of(regs.ip)
        && let Some(at) = PLACES.iter().position(|place| *place == name)
    {
        AT[at].fetch_add(1, Relaxed);
    }
    if CALLER_SP.load(Relaxed) == 0 && regs.ip == CALLER.load(Relaxed) {
        CALLER_SP.store(regs.sp, Relaxed);
    }
    let mut walk = backtrace::walk_interrupted(regs);
    if regs.sp > CALLER_SP.load(Relaxed) {
        // It leads somewhere and ends.
        walk.for_each(drop);
    } else {
        let caller = CALLER.load(Relaxed);
        let is_found = walk.any(|frame| {
            symbols::lookup_addr(frame.code_address()).is_some_and(|symbol| symbol.start == caller)
        });
        if !is_found {
            LOST.fetch_add(1, Relaxed);
            LOST_AT.store(regs.ip, Relaxed);
        }
    }
    if !is_wanted(regs.ip) {
        return;
    }
    let before = FREE.load(SeqCst) + BUSY.load(SeqCst);
    smp::send_nmi(percpu::cpu_id());
    while FREE.load(SeqCst) + BUSY.load(SeqCst) == before {
        hint::spin_loop();
    }
}

static CALLER: AtomicU64 = AtomicU64::new(0);

/// Whether there have been no more than three NMIs in front of this instruction. Taking an instance
/// starts anew if somebody else has taken one meanwhile, so an NMI in each round would keep it from
/// ever being done.
pub fn is_wanted(ip: u64) -> bool {
    let mut place = ip as usize % VISITS.len();
    loop {
        let [address, times] = &VISITS[place];
        if address.load(Relaxed) == 0 {
            address.store(ip, Relaxed);
        }
        if address.load(Relaxed) == ip {
            return times.fetch_add(1, Relaxed) < 3;
        }
        place = (place + 1) % VISITS.len();
    }
}

/// [`is_wanted`] begins anew.
pub fn forget_visits() {
    for count in VISITS.as_flattened() {
        count.store(0, SeqCst);
    }
}

/// Addresses at which steps began, and how many did; more than a call has instructions.
static VISITS: [[AtomicU64; 2]; 2048] = [const { [const { AtomicU64::new(0) }; 2] }; 2048];

/// Calls the stepped function from a frame far below the caller's.
#[inline(never)]
extern "C" fn call_from_below(a: u64) -> u64 {
    let room = black_box([a; 32]);
    let result = stepped_around(black_box(a));
    black_box(&room);
    result
}

/// The calls come from two depths of the NMI's stack, because a hit must not take what an earlier
/// one has left in the data of its CPU for its own.
fn in_nmi(_: &PtRegs) {
    let is_busy = percpu::in_probe_handler();
    let targets: [extern "C" fn(u64) -> u64; CALLS as usize] = [stepped_around, call_from_below];
    for (n, target) in (1..).zip(targets) {
        let is_right = target(black_box(n)) == n + 1
            && stepped_in_nmi(black_box(n)) == n + 402
            && copy_from_user_nofault(&mut [0; 8], UNMAPPED) == Err(Errno::EFAULT);
        RIGHT.fetch_add(is_right.into(), SeqCst);
    }
    if is_busy { &BUSY } else { &FREE }.fetch_add(1, SeqCst);
}

/// How often each call in an NMI is made.
const CALLS: u64 = 2;

/// The counts of a probe.
trait Counts {
    fn hits(&self) -> u64;
    fn misses(&self) -> u64;
}

impl Counts for Registered<Box<Kprobe>> {
    fn hits(&self) -> u64 {
        (**self).hits()
    }

    fn misses(&self) -> u64 {
        self.nmissed()
    }
}

impl<D: Copy + Default + Send + 'static> Counts for Registered<Box<Kretprobe<D>>> {
    fn hits(&self) -> u64 {
        (**self).hits()
    }

    fn misses(&self) -> u64 {
        assert_eq!(self.nmissed(), 0, "there are instances enough");
        self.kprobe().nmissed()
    }
}

impl Counts for Registered<Box<Jprobe>> {
    fn hits(&self) -> u64 {
        self.kprobe().hits()
    }

    fn misses(&self) -> u64 {
        self.kprobe().nmissed()
    }
}

fn pass(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    PRE.fetch_add(u64::from(regs.di == ARGUMENT), SeqCst);
    PreVerdict::Execute
}

fn pass_after(_: &Kprobe, regs: &mut PtRegs, _: u64) {
    POST.fetch_add(u64::from(regs.di == ARGUMENT), SeqCst);
}

fn call_again(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    stepped_in_handler(black_box(4));
    PreVerdict::Execute
}

fn note_entry(_: &mut KretprobeInstance<u64>, regs: &mut PtRegs) -> EntryVerdict {
    PRE.fetch_add(u64::from(regs.di == ARGUMENT), SeqCst);
    EntryVerdict::Track
}

fn decline(_: &mut KretprobeInstance<u64>, regs: &mut PtRegs) -> EntryVerdict {
    if regs.di == ARGUMENT {
        EntryVerdict::Decline
    } else {
        EntryVerdict::Track
    }
}

fn note_return<D>(_: &mut KretprobeInstance<D>, regs: &mut PtRegs) {
    POST.fetch_add(u64::from(regs.return_value() == ARGUMENT + 1), SeqCst);
}

/// As [`note_entry`] and [`note_return`], by an action: in its frame, and by a jump.
fn action() -> CallAction {
    extern "C" fn entry(_: *mut (), regs: &mut PtRegs) -> EntryVerdict {
        PRE.fetch_add(u64::from(regs.di == ARGUMENT), SeqCst);
        EntryVerdict::Track
    }
    extern "C" fn on_return(_: *mut (), regs: &mut PtRegs) {
        POST.fetch_add(u64::from(regs.return_value() == ARGUMENT + 1), SeqCst);
    }
    CallAction {
        entry: Some(entry),
        jump_entry: Some(note_entry_by_jump),
        on_return,
        jump_return: Some(note_return_by_jump),
        shared_words: 1,
    }
}

/// The same for a call that is let go, as by [`decline`].
fn action_that_declines() -> CallAction {
    CallAction {
        jump_entry: Some(decline_by_jump),
        ..action()
    }
}

/// It changes all registers that it may.
#[unsafe(naked)]
extern "C" fn note_entry_by_jump() {
    naked_asm!(
        ".cfi_startproc",
        "movabs rcx, {argument}",
        "cmp [rsp + {di}], rcx",
        "sete al",
        "movzx eax, al",
        "lock add [rip + {pre}], rax",
        "mov rcx, -1",
        "mov rdx, rcx",
        "mov rsi, rcx",
        "mov rdi, rcx",
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
        di = const offset_of!(EntryFrame, di),
        argument = const ARGUMENT,
        pre = sym PRE,
    )
}

/// The same.
#[unsafe(naked)]
unsafe extern "C" fn note_return_by_jump() {
    naked_asm!(
        ".cfi_startproc",
        "movabs rcx, {result}",
        "cmp [rsp + {ax}], rcx",
        "sete al",
        "movzx eax, al",
        "lock add [rip + {post}], rax",
        "mov rcx, -1",
        "mov rdx, rcx",
        "mov rsi, rcx",
        "mov rdi, rcx",
        "mov rax, rcx",
        "ret",
        ".cfi_endproc",
        ax = const offset_of!(EntryFrame, ax),
        result = const ARGUMENT + 1,
        post = sym POST,
    )
}

#[unsafe(naked)]
extern "C" fn decline_by_jump() {
    naked_asm!(
        ".cfi_startproc",
        "movabs rcx, {argument}",
        "cmp [rsp + {di}], rcx",
        "sete al",
        "ret",
        ".cfi_endproc",
        di = const offset_of!(EntryFrame, di),
        argument = const ARGUMENT,
    )
}

jprobe! {
    fn stepped_mirror(a: u64) {
        PRE.fetch_add(u64::from(a == ARGUMENT), SeqCst);
    }
}

/// Handlers of the stepped call that ran before the instruction or at the entry, and after it or at
/// the return.
static PRE: AtomicU64 = AtomicU64::new(0);
static POST: AtomicU64 = AtomicU64::new(0);

fn kprobe(probe: Kprobe) -> Box<dyn Counts> {
    Box::new(register(Box::new(probe.symbol("stepped_target"))).unwrap())
}

fn kretprobe<D: Copy + Default + Send + 'static>(probe: Kretprobe<D>) -> Box<dyn Counts> {
    kretprobe_of("stepped_target", probe)
}

fn kretprobe_of<D: Copy + Default + Send + 'static>(
    name: &'static str,
    probe: Kretprobe<D>,
) -> Box<dyn Counts> {
    let probe = probe.symbol(name).maxactive(16);
    Box::new(register(Box::new(probe)).unwrap())
}

fn jprobe() -> Box<dyn Counts> {
    let probe = Jprobe::new().symbol("stepped_target").entry(stepped_mirror);
    Box::new(register(Box::new(probe)).unwrap())
}

/// Steps through a call of the function with these probes. `own`: how often each is hit by that
/// call; `handlers`: how many run in it, before and after; `places`: where NMIs must have come.
#[track_caller]
fn case(name: &str, probes: Vec<Box<dyn Counts>>, own: u64, handlers: (u64, u64), places: &[&str]) {
    let step = || step_through(stepped_caller, interrupt);
    case_of(name, step, probes, own, handlers, places);
}

/// The same, where `step` steps through a call in which [`stepped_caller`] is called.
#[track_caller]
fn case_of(
    name: &str,
    step: impl FnOnce(),
    probes: Vec<Box<dyn Counts>>,
    own: u64,
    handlers: (u64, u64),
    places: &[&str],
) {
    for counter in [
        &RESULT, &FREE, &BUSY, &RIGHT, &LOST, &PRE, &POST, &CALLER_SP,
    ] {
        counter.store(0, SeqCst);
    }
    AT.iter().for_each(|count| count.store(0, SeqCst));
    forget_visits();
    CALLER.store(stepped_caller as *const () as u64, SeqCst);
    let before = |probe: &dyn Counts| (probe.hits(), probe.misses());
    let counts: Vec<_> = probes.iter().map(|probe| before(&**probe)).collect();
    let inner = [
        Box::new(
            register(Box::new(
                Kprobe::new()
                    .symbol("stepped_in_nmi")
                    .pre(pass)
                    .post(pass_after),
            ))
            .unwrap(),
        ) as Box<dyn Counts>,
        // Its instruction faults.
        Box::new(
            register(Box::new(
                Kprobe::new()
                    .symbol("copy_user")
                    .offset(copying_instruction().1)
                    .pre(pass)
                    .post(pass_after),
            ))
            .unwrap(),
        ),
        Box::new(
            register(Box::new(
                Kretprobe::<u64>::new()
                    .symbol("stepped_in_nmi")
                    .maxactive(16)
                    .handler(note_return),
            ))
            .unwrap(),
        ),
    ];
    traps::set_nmi_handler(Some(in_nmi));
    step();
    traps::set_nmi_handler(None);
    let (free, busy) = (FREE.load(SeqCst), BUSY.load(SeqCst));
    pr_info!("{name}: {free} NMIs with the guard free, {busy} with it held");
    assert_eq!(RESULT.load(SeqCst), ARGUMENT + 1, "{name}");
    assert_eq!(
        RIGHT.load(SeqCst),
        CALLS * (free + busy),
        "{name}: results of calls in NMIs"
    );
    assert_eq!((PRE.load(SeqCst), POST.load(SeqCst)), handlers, "{name}");
    for (probe, (hits, misses)) in probes.iter().zip(counts) {
        assert_eq!(
            (probe.hits() - hits, probe.misses() - misses),
            (own + CALLS * free, CALLS * busy),
            "{name}"
        );
    }
    for probe in &inner {
        assert_eq!(
            (probe.hits(), probe.misses()),
            (CALLS * free, CALLS * busy),
            "{name}"
        );
    }
    for place in places {
        let at = PLACES.iter().position(|other| other == place).unwrap();
        assert!(
            AT[at].load(Relaxed) > 0,
            "{name}: no NMI in {place}: {:?}",
            PLACES.iter().zip(&AT).collect::<Vec<_>>()
        );
    }
    let (lost, at) = (LOST.load(Relaxed), LOST_AT.load(Relaxed));
    assert_eq!(
        lost,
        0,
        "{name}: walks lost their way, the last one at {}",
        symbols::Address::of_instruction(at)
    );
    assert!(!percpu::in_probe_handler());
    drop((inner, probes));
}

/// Breakpoints: each stub and each routine.
#[guest_test(timeout = 40)]
fn an_nmi_between_any_two_instructions_of_a_breakpoint_is_a_hit_or_miss() {
    let _knob = Optimization::set(false);
    let plain = || Kprobe::new().pre(pass);
    let calls = || Kretprobe::<()>::new().handler(note_return);
    let with_data = || Kretprobe::<u64>::new().handler(note_return);
    case(
        "pre",
        vec![kprobe(plain())],
        1,
        (1, 0),
        &[
            "kprobe_breakpoint",
            "kprobe_hit",
            "kprobe_handle_kprobe",
            SLOT,
        ],
    );
    case(
        "no handler",
        vec![kprobe(Kprobe::new())],
        1,
        (0, 0),
        &["kprobe_hit", "kprobe_handle_count", SLOT],
    );
    case(
        "pre and post at a push",
        vec![kprobe(plain().post(pass_after))],
        1,
        (1, 1),
        &["kprobe_hit_post", "kprobe_hit_pushed", "kprobe_run_posts"],
    );
    case(
        "pre and post",
        vec![kprobe(plain().post(pass_after).offset(1))],
        1,
        (1, 1),
        &[
            "kprobe_hit_post",
            SLOT,
            "kprobe_post_stub",
            "kprobe_run_posts",
        ],
    );
    case(
        "siblings",
        vec![
            kprobe(plain()),
            kprobe(plain().post(pass_after)),
            kprobe(plain()),
        ],
        1,
        (3, 1),
        &["kprobe_hit_post", "kprobe_handle_chain", "kprobe_run_posts"],
    );
    case(
        "a return probe",
        vec![kretprobe(calls())],
        1,
        (0, 1),
        &["kprobe_one_kretprobe", SLOT, "kretprobe_trampoline"],
    );
    case(
        "a return probe with entry handler",
        vec![kretprobe(with_data().entry(note_entry))],
        1,
        (1, 1),
        &[
            "kprobe_hit",
            "kretprobe_handle_entry",
            SLOT,
            "kretprobe_trampoline",
        ],
    );
    case(
        "a call let go",
        vec![kretprobe(with_data().entry(decline))],
        0,
        (0, 0),
        &[
            "kretprobe_handle_entry",
            "kretprobe_decline",
            "kretprobe_give_back",
        ],
    );
    case(
        "a kprobe and a return probe",
        vec![kprobe(plain()), kretprobe(calls())],
        1,
        (1, 1),
        &[
            "kprobe_handle_chain",
            "kretprobe_handle",
            "kretprobe_trampoline",
        ],
    );
    case(
        "two return probes",
        vec![kretprobe(calls()), kretprobe(calls())],
        1,
        (0, 2),
        &["kprobe_kretprobes", "kretprobe_trampoline"],
    );
    case(
        "a jprobe",
        vec![jprobe()],
        1,
        (1, 0),
        &[
            "kprobe_hit",
            "jprobe_handle",
            "jprobe_return",
            "jprobe_leave",
            SLOT,
        ],
    );
    case(
        "a jprobe with a post handler",
        vec![jprobe(), kprobe(plain().post(pass_after))],
        1,
        (2, 1),
        &[
            "kprobe_hit_post",
            "jprobe_handle",
            "jprobe_return",
            "kprobe_run_posts",
        ],
    );
}

/// The ways that Rust serves: single steps, and what returns by breakpoints.
#[guest_test(timeout = 40)]
fn an_nmi_between_any_two_instructions_of_a_hit_in_rust_is_a_hit_or_miss() {
    let _knob = Optimization::set(false);
    let stepped = || {
        Kprobe::new()
            .pre(pass)
            .post(pass_after)
            .step_method(StepMethod::TrapFlag)
    };
    case(
        "single-stepped",
        vec![kprobe(stepped())],
        1,
        (1, 1),
        &["kprobe_any_hit", SLOT],
    );
    case(
        "a jprobe",
        vec![kprobe(stepped()), jprobe()],
        1,
        (2, 1),
        &["kprobe_any_hit", "jprobe_return", SLOT],
    );
    for (method, trampoline) in [
        (ReturnMethod::Trap3, "kretprobe_trampoline_trap3"),
        (ReturnMethod::Trap4, "kretprobe_trampoline_trap4"),
    ] {
        let calls = Kretprobe::<()>::new()
            .handler(note_return)
            .return_method(method)
            .step_method(StepMethod::TrapFlag);
        case(
            "returns by breakpoint",
            vec![kretprobe(calls)],
            1,
            (0, 1),
            &["kprobe_any_hit", SLOT, trampoline],
        );
    }
}

/// Jumps: each template of a detour.
#[guest_test(timeout = 40)]
fn an_nmi_between_any_two_instructions_of_a_detour_is_a_hit_or_miss() {
    let _knob = Optimization::set(true);
    let plain = || Kprobe::new().pre(pass);
    let calls = || Kretprobe::<()>::new().handler(note_return);
    let with_data = || Kretprobe::<u64>::new().handler(note_return);
    case(
        "at an entry",
        vec![kprobe(plain())],
        1,
        (1, 0),
        &["kprobe_detour_at_entry", "kprobe_handle_kprobe", SLOT],
    );
    case(
        "elsewhere",
        vec![kprobe(plain().offset(1))],
        1,
        (1, 0),
        &["kprobe_detour", "kprobe_handle_kprobe", SLOT],
    );
    case(
        "siblings",
        vec![kprobe(plain()), kretprobe(calls()), kprobe(plain())],
        1,
        (2, 1),
        &[
            "kprobe_detour_at_entry",
            "kprobe_handle_chain",
            "kretprobe_handle",
            "kretprobe_trampoline",
        ],
    );
    case(
        "a return probe",
        vec![kretprobe(calls())],
        1,
        (0, 1),
        &["kretprobe_detour", SLOT, "kretprobe_trampoline"],
    );
    case(
        "a return probe where the flags are kept",
        vec![kretprobe_of("stepped_around", calls())],
        1,
        (0, 1),
        &["kretprobe_detour_keeping_flags", "kretprobe_trampoline"],
    );
    case(
        "two return probes",
        vec![kretprobe(calls()), kretprobe(calls())],
        1,
        (0, 2),
        &["kretprobes_detour", SLOT, "kretprobe_trampoline"],
    );
    case(
        "a return probe with entry handler",
        vec![kretprobe(with_data().entry(note_entry))],
        1,
        (1, 1),
        &["kretprobe_detour_entry", SLOT, "kretprobe_trampoline"],
    );
    // SAFETY: the code is that of this file, and does as `CallAction` says.
    let with_action = |action| unsafe { Kretprobe::new().action(action) };
    case(
        "a return probe with an action",
        vec![kretprobe(with_action(action()))],
        1,
        (1, 1),
        &[
            "kretprobe_detour_action",
            SLOT,
            "kretprobe_trampoline_action",
        ],
    );
    let without_entry = CallAction {
        entry: None,
        shared_words: 0,
        ..action()
    };
    case(
        "a return probe with an action at the return alone",
        vec![kretprobe(with_action(without_entry))],
        1,
        (0, 1),
        &["kretprobe_detour", SLOT, "kretprobe_trampoline_action"],
    );
    case(
        "a return probe with an action, and one with a handler",
        vec![kretprobe(with_action(without_entry)), kretprobe(calls())],
        1,
        (0, 2),
        &["kretprobes_detour", SLOT, "kretprobe_trampoline"],
    );
    case(
        "a call that an action lets go",
        vec![kretprobe(with_action(action_that_declines()))],
        0,
        (0, 0),
        &[
            "kretprobe_detour_action",
            "kretprobe_decline",
            "kretprobe_give_back",
        ],
    );
    case(
        "a call let go",
        vec![kretprobe(with_data().entry(decline))],
        0,
        (0, 0),
        &[
            "kretprobe_detour_entry",
            "kretprobe_decline",
            "kretprobe_give_back",
        ],
    );
}

/// Missed hits: what counts them is interrupted as well.
#[guest_test(timeout = 40)]
fn an_nmi_between_any_two_instructions_of_a_missed_hit_changes_nothing() {
    for optimized in [false, true] {
        let _knob = Optimization::set(optimized);
        let missed = Kprobe::new().symbol("stepped_in_handler").pre(pass);
        // A post handler would keep the breakpoint.
        let missed = register(Box::new(if optimized {
            missed
        } else {
            missed.post(pass_after)
        }))
        .unwrap();
        let missed_call = register(Box::new(
            Kretprobe::<u64>::new()
                .symbol("stepped_in_handler")
                .handler(note_return),
        ))
        .unwrap();
        let outer = kprobe(Kprobe::new().pre(call_again));
        let miss = if optimized {
            "kprobe_detour_at_entry"
        } else {
            "kprobe_any_hit"
        };
        case("a call in a handler", vec![outer], 1, (0, 0), &[miss, SLOT]);
        // The stepped call counts, and so do those in NMIs that were hits.
        let calls = 1 + CALLS * FREE.load(SeqCst);
        assert_eq!((missed.hits(), missed.nmissed()), (0, calls));
        assert_eq!(
            (
                missed_call.hits(),
                missed_call.nmissed(),
                missed_call.kprobe().nmissed()
            ),
            (0, 0, calls)
        );
        drop((missed, missed_call));
    }
}

/// Two tasks give way to each other, each in a followed call: from any two instructions of both
/// switches, also where one task has the stack already and the other one still the calls.
#[guest_test(timeout = 60)]
fn an_nmi_between_any_two_instructions_of_a_task_switch_is_a_hit_or_miss() {
    /// Both tasks have this one.
    const CPU: u64 = 1 << 0;
    const TURNS: u64 = 3;
    static TURN: AtomicU64 = AtomicU64::new(0);
    extern "C" fn give_way() {
        while TURN.load(SeqCst) < TURNS {
            schedule();
        }
        stepped_caller();
    }
    fn step() {
        TURN.store(0, SeqCst);
        // Interrupts stay off, because a tick's preemption replaces the table of interrupts.
        let other = spawn_kthread_on(CPU, "other", || {
            without_interrupts(|| {
                for turn in 1..=TURNS {
                    TURN.store(turn, SeqCst);
                    schedule();
                }
            });
        })
        .expect("memory for a thread");
        while TURN.load(SeqCst) == 0 {
            schedule();
        }
        step_through_tasks(give_way, interrupt, || other.wait_released());
    }
    let stepped = spawn_kthread_on(CPU, "stepped", || {
        for optimized in [false, true] {
            let _knob = Optimization::set(optimized);
            let call = Kretprobe::<()>::new().symbol("schedule").maxactive(16);
            let call = register(Box::new(call)).unwrap();
            case_of(
                "a task switch",
                step,
                vec![kretprobe(Kretprobe::<()>::new().handler(note_return))],
                1,
                (0, 1),
                &["context_switch", "__switch_to", "kretprobe_trampoline"],
            );
            assert!(call.hits() >= 2 * TURNS, "{} hits", call.hits());
            assert_eq!((call.nmissed(), call.kprobe().nmissed()), (0, 0));
            drop(call);
        }
    })
    .expect("memory for a thread");
    stepped.wait_released();
}
