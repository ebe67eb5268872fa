//! What a kernel runs once, to see that it gives the probes what they need.
//!
//! [`self_test`] tries each thing that a kernel has to do right and that fails late, and far from
//! its cause, if it does it wrong. Each check ends in a [`Verdict`], and a failure has a sentence
//! that says what to change. A check that needs something of the kernel (a second task, an NMI,
//! user code) asks for it by an optional method of [`SelfTest`]. Where there is none, it is
//! skipped.
//!
//! A kernel that is wrong may stop in the middle of a check: a trap may come to a handler that does
//! not expect it. So the name of each check is told to the log before it begins.
//!
//! # Invariants
//! SELFTEST-1. The probes are statics, and their handlers use nothing but statics. So a hit that a
//!     wrong kernel lets go on after an unregistration touches no memory that was freed.
//!
//! # Contexts
//! [`self_test`]: a task that may sleep, once at a time.

use alloc::vec::Vec;
use core::{
    arch::{asm, naked_asm},
    fmt, hint,
    ptr::null_mut,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst},
};

use crate::{
    asm,
    data::{
        kprobe::{FaultVerdict, Kprobe, PreVerdict},
        kretprobe::{Kretprobe, KretprobeInstance},
        per_cpu::PerCpu,
    },
    error::ProbeError,
    pt_regs::PtRegs,
    registry::Host,
};

/// What some checks ask of a kernel. All methods may be left out; then these checks are skipped.
pub trait SelfTest: Host {
    /// Starts a task that calls `work` once and ends. It runs beside the caller, on another CPU or
    /// in turns by preemption. False: there is no such thing.
    fn spawn(work: fn()) -> bool {
        let _ = work;
        false
    }

    /// How many CPUs run now. If not implemented, all that `per_cpu` knows.
    fn cpus() -> usize {
        (0..)
            .take_while(|cpu| Self::per_cpu(*cpu).is_some())
            .count()
    }

    /// Sends an NMI to the CPU that calls, whose handler calls [`answer_nmi`] with the rest of the
    /// hit put aside ([`Hits::aside`](crate::hit::Hits::aside)). False: there is no such thing.
    fn send_nmi() -> bool {
        false
    }

    /// Has an NMI of this CPU call `work`, and returns after that. Called in a handler of a probe.
    /// False: there is no such thing. If not implemented, by [`SelfTest::send_nmi`].
    fn in_nmi(work: fn()) -> bool {
        IN_NMI.store(work as *mut (), SeqCst);
        let is_sent = Self::send_nmi();
        if !is_sent {
            IN_NMI.store(null_mut(), SeqCst);
        }
        while !IN_NMI.load(SeqCst).is_null() {
            hint::spin_loop();
        }
        is_sent
    }

    /// Runs user code with an `int3` of its own. Whether it was treated as on a kernel without
    /// probes. None: there is no such thing.
    fn user_breakpoint() -> Option<bool> {
        None
    }
}

/// What the next NMI is to do, a `fn()`; null: nothing.
static IN_NMI: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Does what the self-test has sent an NMI for, if it has: see [`SelfTest::send_nmi`].
pub fn answer_nmi() {
    let work = IN_NMI.load(SeqCst);
    if !work.is_null() {
        // SAFETY: only `in_nmi` stores something else, and that is such a function.
        let work: fn() = unsafe { core::mem::transmute(work) };
        work();
        IN_NMI.store(null_mut(), SeqCst);
    }
}

/// What came out of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel does it right.
    Passed,
    /// It does not. What to change.
    Failed(&'static str),
    /// A probe of the check was refused.
    Refused(ProbeError),
    /// The check could not be made, and why.
    Skipped(&'static str),
}

impl Verdict {
    fn is_passed(condition: bool, or: &'static str) -> Self {
        if condition {
            Self::Passed
        } else {
            Self::Failed(or)
        }
    }
}

/// A check and its verdict.
#[derive(Clone, Debug)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// What came out.
    pub verdict: Verdict,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name;
        match &self.verdict {
            Verdict::Passed => write!(f, "{name}: passed"),
            Verdict::Failed(advice) => write!(f, "{name}: FAILED: {advice}"),
            Verdict::Refused(error) => write!(f, "{name}: FAILED: a probe was refused: {error}"),
            Verdict::Skipped(reason) => write!(f, "{name}: skipped, because {reason}"),
        }
    }
}

/// The checks that were made, in order.
#[derive(Clone, Debug)]
pub struct Report(Vec<Check>);

impl Report {
    /// All checks.
    pub fn checks(&self) -> &[Check] {
        &self.0
    }

    /// Whether none has failed. Some may have been skipped.
    pub fn is_ok(&self) -> bool {
        self.0
            .iter()
            .all(|check| matches!(check.verdict, Verdict::Passed | Verdict::Skipped(_)))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|check| writeln!(f, "{check}"))
    }
}

/// A check, by its name. An error is that of a probe.
type Named = (&'static str, fn() -> Result<Verdict, ProbeError>);

/// Makes all checks. After a failure of one of the first three, on which the others rest, the rest
/// is skipped. See the module's text.
pub fn self_test<P: SelfTest>() -> Report {
    let checks: [Named; 10] = [
        ("the CPU's data", cpu_data::<P>),
        ("CPUs that answer", cpus_answer::<P>),
        ("a probe that fires", fires::<P>),
        ("the code of a hit", hit_is_refused::<P>),
        ("a stale breakpoint", stale_breakpoint),
        ("a fault in a slot", fault_in_slot::<P>),
        ("an int3 of user code", user_breakpoint::<P>),
        ("an NMI in a handler", nmi_in_handler::<P>),
        ("a probe removed under fire", removed_under_fire::<P>),
        ("preemption in a slot", preemption_in_slot::<P>),
    ];
    const BASIC: usize = 3;
    let mut report = Report(Vec::new());
    for (number, (name, check)) in checks.into_iter().enumerate() {
        P::log(format_args!("probes: self-test: {name}"));
        let verdict = if number >= BASIC && !report.is_ok_so_far(BASIC) {
            Verdict::Skipped("it rests on a check that has failed")
        } else {
            check().unwrap_or_else(Verdict::Refused)
        };
        report.0.push(Check { name, verdict });
    }
    report
}

impl Report {
    fn is_ok_so_far(&self, first: usize) -> bool {
        let mut first = self.0.iter().take(first);
        first.all(|check| check.verdict == Verdict::Passed)
    }
}

/// Whether this CPU's data are where the stubs look, and have been given their number.
fn sees_itself<P: Host>() -> bool {
    let offset = u64::from(PerCpu::gs_distance::<P>() + PerCpu::THIS_OFFSET);
    let found: u64;
    // SAFETY: reads a word of this CPU's data, or of what the kernel has there: the GS base plus
    // the distance that it has given is mapped, or the first hit would not survive either.
    unsafe {
        asm!("mov {}, gs:[{}]", out(reg) found, in(reg) offset, options(nostack, readonly));
    }
    found == core::ptr::from_ref(P::this_cpu()) as u64
}

fn cpu_data<P: SelfTest>() -> Result<Verdict, ProbeError> {
    Ok(Verdict::is_passed(
        sees_itself::<P>(),
        "the stubs do not find the data of this CPU; make PER_CPU_GS_OFFSET, or the symbol of the \
         linker, the distance of its PerCpu from the GS base, and call PerCpu::init on each CPU",
    ))
}

fn cpus_answer<P: SelfTest>() -> Result<Verdict, ProbeError> {
    const MOST: usize = 256;
    static ANSWERS: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
    static LOST: AtomicUsize = AtomicUsize::new(0);
    ANSWERS.iter().for_each(|answers| answers.store(0, SeqCst));
    LOST.store(0, SeqCst);
    P::on_every_cpu(&|| {
        let this =
            |cpu: &usize| P::per_cpu(*cpu).is_some_and(|cpu| core::ptr::eq(cpu, P::this_cpu()));
        let number = (0..MOST).find(this).filter(|_| sees_itself::<P>());
        let answers = number.map_or(&LOST, |number| &ANSWERS[number]);
        answers.fetch_add(1, SeqCst);
    });
    if LOST.load(SeqCst) > 0 {
        return Ok(Verdict::Failed(
            "a CPU does not find its own data among those of per_cpu; call PerCpu::init there with \
             the CPU's number, and load its GS base, before it takes interrupts",
        ));
    }
    let answered = ANSWERS.iter().filter(|answers| answers.load(SeqCst) == 1);
    let silent = ANSWERS.iter().filter(|answers| answers.load(SeqCst) == 0);
    let each_once = answered.count() == P::cpus() && silent.count() == MOST - P::cpus();
    Ok(Verdict::is_passed(
        each_once,
        "not every CPU that runs has run once what on_every_cpu was given; send each an interrupt, \
         and return when all have run it",
    ))
}

/// Adds. Probed at its first instruction.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn probes_self_test_add(a: u64, b: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "mov rax, rdi",
        "add rax, rsi",
        "ret",
        ".cfi_endproc",
    )
}

static POSTS: AtomicU64 = AtomicU64::new(0);
static RETURNED: AtomicU64 = AtomicU64::new(0);

static FIRES: Kprobe = Kprobe::new()
    .symbol("probes_self_test_add")
    .pre(|_, _| PreVerdict::Execute)
    .post(|_, _, _| {
        POSTS.fetch_add(1, SeqCst);
    });
static RETURNS: Kretprobe<()> = Kretprobe::new()
    .symbol("probes_self_test_add")
    .handler(on_return);

fn on_return(_: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
    RETURNED.store(regs.ax, SeqCst);
}

fn fires<P: SelfTest>() -> Result<Verdict, ProbeError> {
    POSTS.store(0, SeqCst);
    RETURNED.store(0, SeqCst);
    P::probes().register(&FIRES)?;
    let sum = hint::black_box(probes_self_test_add)(2, 3);
    P::probes().unregister(&FIRES)?;
    if FIRES.hits() != 1 || POSTS.load(SeqCst) != 1 || sum != 5 {
        return Ok(Verdict::Failed(
            "a probe did not fire once before and once after its instruction, or the instruction \
             was not executed; lead the gate of #BP in each CPU's table to kprobe_breakpoint, and \
             have write_text store to the text that runs",
        ));
    }
    P::probes().register(&RETURNS)?;
    let sum = hint::black_box(probes_self_test_add)(3, 4);
    P::probes().unregister(&RETURNS)?;
    Ok(Verdict::is_passed(
        RETURNED.load(SeqCst) == 7 && sum == 7,
        "a return probe did not see its call return; call task_switched at each switch of tasks, \
         and once for the task that runs first",
    ))
}

/// Asks about the code that every kernel has on its hit path. A list that lacks it lacks the rest.
fn hit_is_refused<P: SelfTest>() -> Result<Verdict, ProbeError> {
    let code = [
        P::entry_points().trampoline,
        asm::handle_slow_path::<P> as *const () as u64,
        asm::on_return::<P> as *const () as u64,
    ];
    Ok(Verdict::is_passed(
        code.iter().all(|addr| P::blacklisted(*addr).is_some()),
        "the kernel lets probes into code that each hit runs through, and the first hit of such a \
         probe ends it; have `blacklisted` refuse what the crate hit_path finds in the linked \
         kernel",
    ))
}

/// Returns 2 if the trap of its `int 3` is taken for a stale breakpoint, else 1.
///
/// This form of the instruction has two bytes, `cd 03`, and so the byte before the address that the
/// processor reports is none of a breakpoint. Whoever resumes there executes `03 c0`, an addition.
/// Whoever resumes after it executes `c0 c3 00`, a rotation of `bl` by no bits.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn probes_self_test_stale() -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "mov eax, 1",
        ".byte 0xcd, 0x03, 0xc0, 0xc3, 0x00",
        "ret",
        ".cfi_endproc",
    )
}

fn stale_breakpoint() -> Result<Verdict, ProbeError> {
    Ok(Verdict::is_passed(
        probes_self_test_stale() == 2,
        "a breakpoint that was removed between its fetch and now went on inside an instruction; \
         offer each #BP of kernel code that is not in the table to on_breakpoint, before its owner \
         takes it",
    ))
}

/// Loads a word. Probed at its first instruction, which has three bytes.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn probes_self_test_load(from: *const u64) -> u64 {
    naked_asm!(".cfi_startproc", "mov rax, [rdi]", "ret", ".cfi_endproc",)
}

/// The address that a fault was reported at, from the probed one; and its vector.
static FAULT_AT: AtomicU64 = AtomicU64::new(u64::MAX);
static FAULT_VECTOR: AtomicU64 = AtomicU64::new(0);

static FAULTS: Kprobe = Kprobe::new()
    .symbol("probes_self_test_load")
    .pre(|_, _| PreVerdict::Execute)
    .fault(on_fault);

fn on_fault(probe: &Kprobe, regs: &mut PtRegs, vector: u8) -> FaultVerdict {
    FAULT_AT.store(regs.ip.wrapping_sub(probe.addr()), SeqCst);
    FAULT_VECTOR.store(vector.into(), SeqCst);
    regs.ax = 6;
    regs.ip = probe.addr().wrapping_add(3);
    FaultVerdict::Handled
}

fn fault_in_slot<P: SelfTest>() -> Result<Verdict, ProbeError> {
    const PROTECTION: u64 = 13;
    FAULT_AT.store(u64::MAX, SeqCst);
    P::probes().register(&FAULTS)?;
    let nowhere = core::ptr::without_provenance(1 << 63);
    // SAFETY: no address is there on any processor. So the load raises #GP, and the fault handler
    // of the probe steps over it.
    let loaded = unsafe { probes_self_test_load(nowhere) };
    P::probes().unregister(&FAULTS)?;
    let is_rewound = FAULT_AT.load(SeqCst) == 0 && FAULT_VECTOR.load(SeqCst) == PROTECTION;
    Ok(Verdict::is_passed(
        is_rewound && loaded == 6,
        "a fault of a displaced instruction did not reach the probe's fault handler as #GP at the \
         probed address; offer each fault of kernel code to on_fault first, with its vector, and \
         resume from the registers that it leaves",
    ))
}

fn user_breakpoint<P: SelfTest>() -> Result<Verdict, ProbeError> {
    Ok(match P::user_breakpoint() {
        None => Verdict::Skipped("the kernel has no user_breakpoint"),
        Some(is_right) => Verdict::is_passed(
            is_right,
            "user code does not get its own breakpoint; hand a #BP from ring 3 to the kernel's own \
             handler untouched, and make the gate's DPL 3",
        ),
    })
}

/// Subtracts. Called by the NMI.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn probes_self_test_subtract(a: u64, b: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "mov rax, rdi",
        "sub rax, rsi",
        "ret",
        ".cfi_endproc",
    )
}

/// At an address, because a kernel without NMIs for it has no symbol of this function.
static INNER: Kprobe = Kprobe::new().pre(|_, _| PreVerdict::Execute);
static OUTER: Kprobe = Kprobe::new()
    .symbol("probes_self_test_add")
    .pre(on_outer)
    .post(|_, _, _| {
        POSTS.fetch_add(1, SeqCst);
    });
/// `SelfTest::in_nmi` with the work for it.
static SEND_NMI: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static NMI_SENT: AtomicBool = AtomicBool::new(false);
static NMI_RESULT: AtomicU64 = AtomicU64::new(0);
static NMI_IS_ASIDE: AtomicBool = AtomicBool::new(false);

fn on_outer(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    let send = SEND_NMI.load(SeqCst);
    // SAFETY: `nmi_in_handler` has stored a function of this type.
    let send: fn() -> bool = unsafe { core::mem::transmute(send) };
    NMI_SENT.store(send(), SeqCst);
    PreVerdict::Execute
}

fn send_nmi<P: SelfTest>() -> bool {
    P::in_nmi(|| {
        NMI_IS_ASIDE.store(!P::probes().in_pre_handler(), SeqCst);
        NMI_RESULT.store(hint::black_box(probes_self_test_subtract)(9, 4), SeqCst);
    })
}

fn nmi_in_handler<P: SelfTest>() -> Result<Verdict, ProbeError> {
    SEND_NMI.store(send_nmi::<P> as fn() -> bool as *mut (), SeqCst);
    POSTS.store(0, SeqCst);
    NMI_RESULT.store(0, SeqCst);
    NMI_IS_ASIDE.store(false, SeqCst);
    INNER.set_addr(probes_self_test_subtract as *const () as u64);
    P::probes().register(&INNER)?;
    if let Err(error) = P::probes().register(&OUTER) {
        P::probes().unregister(&INNER)?;
        return Err(error);
    }
    let missed = INNER.nmissed();
    let sum = hint::black_box(probes_self_test_add)(4, 5);
    let missed = INNER.nmissed() - missed;
    P::probes().unregister_batch(&[&OUTER, &INNER])?;
    if !NMI_SENT.load(SeqCst) {
        return Ok(Verdict::Skipped("the kernel has no send_nmi"));
    }
    if !NMI_IS_ASIDE.load(SeqCst) {
        return Ok(Verdict::Failed(
            "an NMI takes the rest of a hit for its own; wrap what its handler does in aside",
        ));
    }
    Ok(Verdict::is_passed(
        NMI_RESULT.load(SeqCst) == 5 && missed == 1 && sum == 9 && POSTS.load(SeqCst) == 1,
        "a hit in an NMI was not counted as a miss, or the hit below it was not finished; keep #BP \
         off a stack of its own, and the NMI's stack apart from that of #BP",
    ))
}

/// How often a task asks for something that another one is to do, before it gives up.
const PATIENCE: u64 = 1 << 27;

/// Waits for `holds`. False: it has given up.
fn wait_until<P: SelfTest>(mut holds: impl FnMut() -> bool) -> bool {
    (0..PATIENCE).any(|_| {
        P::pass_time();
        holds()
    })
}

const NOT_SPAWNED: &str = "the kernel has no spawn";
const NOT_BESIDE: &str = "the task that spawn has started does not run beside its starter; put \
     it on another CPU, or have a tick preempt";

/// What the second task does, and whether it is to end, and has ended.
static CALLS: AtomicU64 = AtomicU64::new(0);
static IS_WRONG: AtomicBool = AtomicBool::new(false);
static STOP: AtomicBool = AtomicBool::new(false);
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Starts the second task with `work`. False: the kernel has none.
fn start<P: SelfTest>(work: fn()) -> bool {
    CALLS.store(0, SeqCst);
    for flag in [&IS_WRONG, &STOP, &IS_OVER] {
        flag.store(false, SeqCst);
    }
    P::spawn(work)
}

/// Ends the second task. False: it does not end.
fn stop<P: SelfTest>() -> bool {
    STOP.store(true, SeqCst);
    wait_until::<P>(|| IS_OVER.load(SeqCst))
}

fn call_until_stopped() {
    while !STOP.load(SeqCst) {
        let calls = CALLS.fetch_add(1, SeqCst);
        let sum = hint::black_box(probes_self_test_add)(calls, 1);
        if sum != calls + 1 {
            IS_WRONG.store(true, SeqCst);
        }
    }
    IS_OVER.store(true, SeqCst);
}

static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
static IS_LATE: AtomicBool = AtomicBool::new(false);
static UNDER_FIRE: Kprobe = Kprobe::new()
    .symbol("probes_self_test_add")
    .pre(on_fire)
    .post(|_, _, _| {});

/// Runs long enough to be seen by an unregistration that does not wait for it.
fn on_fire(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    (0..10_000).for_each(|_| hint::spin_loop());
    if !IS_REGISTERED.load(SeqCst) {
        IS_LATE.store(true, SeqCst);
    }
    PreVerdict::Execute
}

fn removed_under_fire<P: SelfTest>() -> Result<Verdict, ProbeError> {
    const ROUNDS: usize = 20;
    if !start::<P>(call_until_stopped) {
        return Ok(Verdict::Skipped(NOT_SPAWNED));
    }
    IS_LATE.store(false, SeqCst);
    let mut is_beside = true;
    let mut result = Ok(());
    for _ in 0..ROUNDS {
        IS_REGISTERED.store(true, SeqCst);
        result = P::probes().register(&UNDER_FIRE);
        if result.is_err() {
            break;
        }
        is_beside &= wait_until::<P>(|| UNDER_FIRE.hits() > 0);
        result = P::probes().unregister(&UNDER_FIRE);
        IS_REGISTERED.store(false, SeqCst);
        // Until the calls that were under way are over.
        let calls = CALLS.load(SeqCst);
        is_beside &= wait_until::<P>(|| CALLS.load(SeqCst) > calls + 1);
        if !is_beside || result.is_err() || IS_LATE.load(SeqCst) {
            break;
        }
    }
    is_beside &= stop::<P>();
    result?;
    if !is_beside {
        return Ok(Verdict::Failed(NOT_BESIDE));
    }
    Ok(Verdict::is_passed(
        !IS_LATE.load(SeqCst) && !IS_WRONG.load(SeqCst),
        "a handler ran when its probe was unregistered already, or a call went wrong meanwhile; \
         synchronize_cores must wait until each CPU has left its #BP handlers, and \
         synchronize_hits until each was seen outside hits",
    ))
}

/// Fills `len` bytes with what the probe puts into `al`, and then with 0. The first filling is
/// probed. What comes after it stores 0 to `inside`. A jump leads there, so that no jump of the
/// probes covers it.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn probes_self_test_fill(
    bytes: *const AtomicU8,
    inside: *const AtomicU64,
    len: usize,
) {
    naked_asm!(
        ".cfi_startproc",
        "mov r8, rdi",
        "mov rcx, rdx",
        "test rcx, rcx",
        "jz 3f",
        ".globl probes_self_test_fill_slowly",
        "probes_self_test_fill_slowly:",
        "rep stosb",
        "3:",
        "mov qword ptr [rsi], 0",
        "mov rdi, r8",
        "mov rcx, rdx",
        "xor eax, eax",
        "rep stosb",
        "ret",
        ".cfi_endproc",
    )
}

unsafe extern "C" {
    /// The probed instruction.
    static probes_self_test_fill_slowly: u8;
}

/// Which filling is under way in the slot, by its number; 0: none.
static INSIDE: AtomicU64 = AtomicU64::new(0);
static FILLINGS: AtomicU64 = AtomicU64::new(0);
static BYTES: [AtomicU8; 4096] = [const { AtomicU8::new(0) }; 4096];
static SLOWLY: Kprobe = Kprobe::new().pre(|_, regs| {
    let filling = FILLINGS.fetch_add(1, SeqCst) + 1;
    regs.ax = byte_of(filling).into();
    INSIDE.store(filling, SeqCst);
    PreVerdict::Execute
});

/// What a filling fills with.
const fn byte_of(filling: u64) -> u8 {
    (filling % 255) as u8 + 1
}

fn fill_until_stopped() {
    while !STOP.load(SeqCst) {
        CALLS.fetch_add(1, SeqCst);
        // SAFETY: the length is that of the memory, and `INSIDE` is a word.
        unsafe { probes_self_test_fill(BYTES.as_ptr(), &raw const INSIDE, BYTES.len()) };
    }
    IS_OVER.store(true, SeqCst);
}

fn preemption_in_slot<P: SelfTest>() -> Result<Verdict, ProbeError> {
    /// How often the other task is looked at after it has run.
    const LOOKS: usize = 40;
    /// How often in a row, because a filling can be shorter than `pass_time`.
    const GLANCES: usize = 64;
    INSIDE.store(0, SeqCst);
    SLOWLY.set_addr(&raw const probes_self_test_fill_slowly as u64);
    P::probes().register(&SLOWLY)?;
    if !start::<P>(fill_until_stopped) {
        P::probes().unregister(&SLOWLY)?;
        return Ok(Verdict::Skipped(NOT_SPAWNED));
    }
    let mut is_beside = true;
    let mut has_stayed = false;
    for _ in 0..LOOKS {
        // A kernel that is right may never show the other task inside. Two more calls tell that it
        // has run: the second began after a whole filling.
        let calls = CALLS.load(SeqCst);
        let mut inside = 0;
        is_beside &= wait_until::<P>(|| {
            (0..GLANCES).any(|_| {
                inside = INSIDE.load(SeqCst);
                inside != 0 || CALLS.load(SeqCst) > calls + 1
            })
        });
        if inside != 0 {
            P::probes().synchronize_hits();
            // The last byte first: of the same filling, it tells whether the slot is over.
            let last = BYTES[BYTES.len() - 1].load(SeqCst);
            has_stayed = INSIDE.load(SeqCst) == inside && last != byte_of(inside);
        }
        if !is_beside || has_stayed {
            break;
        }
    }
    is_beside &= stop::<P>();
    P::probes().unregister(&SLOWLY)?;
    if !is_beside {
        return Ok(Verdict::Failed(NOT_BESIDE));
    }
    Ok(Verdict::is_passed(
        !has_stayed,
        "a grace period ended while a task was in a slot; ask may_preempt before an interrupt \
         switches tasks, or have preempt do it, and let synchronize_hits ask each CPU for all that \
         is interrupted there",
    ))
}
