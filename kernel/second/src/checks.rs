//! What is checked in this kernel: each promise of the probes that another kernel could break.
//!
//! Each check leaves nothing registered. They run one after the other in the first task, and the
//! kernel ends by a panic at the first that fails.

use alloc::{boxed::Box, vec::Vec};
use core::{
    arch::global_asm,
    hint,
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use probes::{
    Jprobe, Kprobe, Kretprobe, KretprobeInstance, PreVerdict, ProbeError, PtRegs, Touched,
    Watchpoint, Watchpoints, jprobe, registry::Owner, self_test::Verdict,
};

use second_kernel::{
    PROBES,
    cpu::NUMBER,
    debugger, fixups,
    probes::Second,
    say, self_test, smp, start_other, symbols,
    tasks::{self, Handle, spawn},
    traps, user,
};

/// A registered probe that unregisters itself.
type Registered<O> = probes::Registered<Second, O>;

/// Runs them all.
pub fn run() {
    let checks: [(&str, fn()); 15] = [
        ("each kind of probe, by breakpoints", || kinds(false)),
        ("each kind of probe, by jumps", || kinds(true)),
        ("a hundred probes at once", hundred),
        ("a fault in a slot", fault),
        ("breakpoints of a debugger", debugged),
        ("a CPU that starts later", late),
        ("watchpoints", watched),
        ("the probes' self-test", own_checks),
        ("the probes' self-test with jumps", || optimized(own_checks)),
        ("both CPUs in probed code that is preempted", preempted),
        ("both CPUs in code that is preempted under jumps", || {
            optimized(preempted)
        }),
        ("probes that come and go under fire", churn),
        ("probes that come and go under fire, as jumps", || {
            optimized(churn)
        }),
        ("breakpoints of user programs", users),
        ("an NMI in a handler", nmi),
    ];
    let text = digest();
    for (name, check) in checks {
        PROBES.set_optimization(false).expect("this is a task");
        check();
        assert_eq!(PROBES.slots_in_use(), 0, "slots after {name}");
        assert_eq!(PROBES.detours_in_use(), 0, "detours after {name}");
        assert_eq!(digest(), text, "text after {name}");
        say(format_args!("ok: {name}"));
    }
    say(format_args!("all {} checks have passed", checks.len()));
}

/// A number that stands for all of the kernel's text.
fn digest() -> u64 {
    let words = symbols::text().chunks(8);
    words.fold(0, |sum: u64, word| {
        let word = word
            .iter()
            .fold(0, |word, byte| word << 8 | u64::from(*byte));
        (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

fn optimized(check: fn()) {
    PROBES.set_optimization(true).expect("this is a task");
    check();
}

fn register<O: Owner>(probe: O) -> Registered<O> {
    let registered = PROBES.register_owned(probe);
    registered.unwrap_or_else(|error| panic!("refused: {error}"))
}

/// The first byte of a function: that of a breakpoint, of a jump, or its own.
fn first_byte(name: &str) -> u8 {
    let function = symbols::lookup(name).expect("it is a function");
    // SAFETY: text is mapped for ever.
    unsafe { (function.start as *const u8).read_volatile() }
}

const BREAKPOINT: u8 = 0xcc;
const JUMP: u8 = 0xe9;

/// A function to probe.
#[unsafe(no_mangle)]
#[unsafe(link_section = "probeable")]
#[inline(never)]
extern "C" fn add(a: u64, b: u64) -> u64 {
    hint::black_box(a) + hint::black_box(b)
}

/// Another one, which calls the first.
#[unsafe(no_mangle)]
#[unsafe(link_section = "probeable")]
#[inline(never)]
extern "C" fn triple(a: u64) -> u64 {
    add(a, add(a, a))
}

static SEEN: AtomicU64 = AtomicU64::new(0);

fn see_arguments(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    SEEN.fetch_add(regs.di * 100 + regs.si, Relaxed);
    PreVerdict::Execute
}

fn see_result(_: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
    SEEN.fetch_add(regs.ax, Relaxed);
}

jprobe! {
    fn see_call(a: u64, b: u64) {
        SEEN.fetch_add(a * 10 + b, Relaxed);
    }
}

/// Calls `add(3, 4)` and returns what handlers have seen.
fn seen() -> u64 {
    SEEN.store(0, Relaxed);
    assert_eq!(add(3, 4), 7);
    SEEN.load(Relaxed)
}

fn kinds(jumps: bool) {
    PROBES.set_optimization(jumps).expect("this is a task");
    let armed = if jumps { JUMP } else { BREAKPOINT };
    assert_eq!(seen(), 0);
    let kprobe = register(Box::new(Kprobe::new().symbol("add").pre(see_arguments)));
    assert_eq!((first_byte("add"), seen(), kprobe.hits()), (armed, 304, 1));
    let kretprobe = register(Box::new(Kretprobe::new().symbol("add").handler(see_result)));
    assert_eq!(
        (first_byte("add"), seen(), kretprobe.hits()),
        (armed, 311, 1)
    );
    drop(kprobe);
    assert_eq!((first_byte("add"), seen()), (armed, 7));
    let post = |_: &Kprobe, _: &mut PtRegs, _: u64| {
        SEEN.fetch_add(1000, Relaxed);
    };
    let post = register(Box::new(Kprobe::new().symbol("add").post(post)));
    assert_eq!(
        (first_byte("add"), seen(), post.hits()),
        (BREAKPOINT, 1007, 1)
    );
    drop(post);
    let jprobe = register(Box::new(Jprobe::new().symbol("add").entry(see_call)));
    assert_eq!((first_byte("add"), seen()), (BREAKPOINT, 41));
    drop((kretprobe, jprobe));
    assert_eq!(seen(), 0);
}

/// Words to watch.
#[unsafe(link_section = "watchable")]
static WATCHED: [AtomicU64; 2] = [const { AtomicU64::new(5) }; 2];

fn see_values(_: &Watchpoint, _: &mut PtRegs, touched: &Touched) {
    SEEN.fetch_add(touched.old * 10 + touched.new, Relaxed);
}

fn watched() {
    let watchpoints = Watchpoints::of(&PROBES);
    let [first, second] = WATCHED.each_ref().map(|word| word.as_ptr() as u64);
    let refused = watchpoints.register_owned(Box::new(Watchpoint::new().at(text_word())));
    assert!(matches!(refused, Err(ProbeError::NotWatchable { .. })));
    let told = Watchpoint::new().at(first).handler(see_values);
    let told = watchpoints
        .register_owned(Box::new(told))
        .expect("it can be");
    let counted = watchpoints.register_owned(Box::new(Watchpoint::new().at(second)));
    let counted = counted.expect("it can be");
    SEEN.store(0, Relaxed);
    WATCHED[0].store(6, Relaxed);
    WATCHED[1].store(7, Relaxed);
    assert_eq!(
        (SEEN.load(Relaxed), told.hits(), counted.hits()),
        (56, 1, 1)
    );
    // Those of the other CPU, too.
    spawn("check", Some(1), store_words, 8).join();
    assert_eq!(
        (SEEN.load(Relaxed), told.hits(), counted.hits()),
        (124, 2, 2)
    );
    drop(told);
    WATCHED.iter().for_each(|word| word.store(5, Relaxed));
    assert_eq!((SEEN.load(Relaxed), counted.hits()), (124, 3));
}

extern "C" fn store_words(value: u64) {
    WATCHED.iter().for_each(|word| word.store(value, Relaxed));
}

fn text_word() -> u64 {
    symbols::text().as_ptr().addr() as u64 & !7
}

// A hundred functions of 16 bytes each.
global_asm!(
    r#"
    .pushsection probeable, "ax", @progbits
    .balign 16
    .globl hundred_functions
hundred_functions:
    .macro one_of_hundred
    .type one_of_hundred_\@, @function
one_of_hundred_\@:
    lea rax, [rdi + 1]
    xor ecx, ecx
    nop
    ret
    .size one_of_hundred_\@, . - one_of_hundred_\@
    .balign 16
    .endm
    .rept 100
    one_of_hundred
    .endr
    .popsection
    "#
);

unsafe extern "C" {
    safe static hundred_functions: u8;
}

fn hundred() {
    for jumps in [false, true] {
        PROBES.set_optimization(jumps).expect("this is a task");
        let functions = || (0..100).map(|n| (&raw const hundred_functions).addr() as u64 + 16 * n);
        let probe = |address| register(Box::new(Kprobe::new().at(address).pre(see_arguments)));
        let probes: Vec<_> = functions().map(probe).collect();
        for (calls, function) in functions().enumerate() {
            // SAFETY: the functions above.
            let function: extern "C" fn(u64) -> u64 =
                unsafe { core::mem::transmute(function as *const ()) };
            (0..calls).for_each(|_| assert_eq!(function(7), 8));
        }
        let hits: Vec<_> = probes.iter().map(|probe| probe.hits()).collect();
        assert_eq!(hits, (0..100).collect::<Vec<u64>>());
        assert_eq!(PROBES.detours_in_use(), if jumps { 100 } else { 0 });
    }
}

fn fault() {
    let word = 42_u64;
    let word_at = (&raw const word).addr() as u64;
    let probe = register(Box::new(Kprobe::new().symbol("load_or").pre(see_arguments)));
    let at = |address| fixups::load_or(address, 7);
    // A page that is not mapped, and no address at all.
    let all = [word_at, 0x3000_0000_0000, 1 << 63].map(at);
    assert_eq!((all, probe.hits()), ([42, 7, 7], 3));
}

fn debugged() {
    let probe = register(Box::new(Kprobe::new().symbol("add").pre(see_arguments)));
    let before = debugger::STOPS.load(Relaxed);
    for _ in 0..100 {
        debugger::stop();
        seen();
    }
    assert_eq!(debugger::STOPS.load(Relaxed) - before, 100);
    assert_eq!(probe.hits(), 100);
}

extern "C" fn call_add(calls: u64) {
    for n in 0..calls {
        assert_eq!(add(n, 1), n + 1);
    }
}

fn late() {
    let probe = register(Box::new(Kprobe::new().symbol("add").pre(see_arguments)));
    assert_eq!(smp::online(), 1);
    smp::start_others(start_other);
    assert_eq!(smp::online(), 2, "this is for two CPUs");
    spawn("check", Some(1), call_add, 100).join();
    assert_eq!(probe.hits(), 100);
}

/// On both CPUs, and nothing of it is left out here.
fn own_checks() {
    let report = probes::self_test::<Second>();
    self_test::join();
    say(format_args!("{report}"));
    let mut checks = report.checks().iter();
    assert!(checks.all(|check| check.verdict == Verdict::Passed));
    assert_eq!(report.checks().len(), 10);
}

extern "C" fn call_triple(calls: u64) {
    for n in 0..calls {
        assert_eq!(triple(n), 3 * n);
    }
}

fn preempted() {
    const CALLS: u64 = 20_000;
    const TASKS: u64 = 6;
    let kprobe = register(Box::new(Kprobe::new().symbol("add").pre(see_arguments)));
    let outer = Kretprobe::new().symbol("triple").handler(see_result);
    let outer = register(Box::new(outer.maxactive(TASKS as i32)));
    let inner = Kretprobe::new().symbol("add").handler(see_result);
    let inner = register(Box::new(inner.maxactive(TASKS as i32)));
    let before = tasks::PREEMPTIONS.load(Relaxed);
    let tasks: Vec<_> = (0..TASKS)
        .map(|n| spawn("check", Some(n as usize % 2), call_triple, CALLS))
        .collect();
    tasks.into_iter().for_each(Handle::join);
    assert!(
        tasks::PREEMPTIONS.load(Relaxed) > before,
        "nothing was preempted"
    );
    let calls = CALLS * TASKS;
    assert_eq!((kprobe.hits(), kprobe.nmissed()), (2 * calls, 0));
    assert_eq!((inner.hits(), inner.nmissed()), (2 * calls, 0));
    assert_eq!((outer.hits(), outer.nmissed()), (calls, 0));
}

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn call_until_stopped(_: u64) {
    let mut n = 0;
    while !STOP.load(Acquire) {
        n += 1;
        assert_eq!(triple(n), 3 * n);
    }
}

fn churn() {
    const ROUNDS: u64 = 12;
    STOP.store(false, Relaxed);
    let tasks = [0, 1].map(|cpu| spawn("check", Some(cpu), call_until_stopped, 0));
    for _ in 0..ROUNDS {
        let kprobe = register(Box::new(Kprobe::new().symbol("add").pre(see_arguments)));
        let kretprobe = Kretprobe::new().symbol("triple").handler(see_result);
        let kretprobe = register(Box::new(kretprobe));
        while kprobe.hits() == 0 {
            tasks::yield_now();
        }
        drop(kretprobe);
    }
    STOP.store(true, Release);
    tasks.into_iter().for_each(Handle::join);
    while PROBES.reap().expect("this is a task") > 0 {
        tasks::yield_now();
    }
}

fn users() {
    const BREAKPOINTS: u64 = 2_000;
    // The self-test has run such programs, too.
    let sums = || [&user::BREAKPOINTS, &user::RESULTS].map(|sum| sum.load(Relaxed));
    let before = sums();
    let probe = register(Box::new(Kprobe::new().symbol("add").pre(see_arguments)));
    let programs = [0, 1, 0, 1].map(|cpu| spawn("check", Some(cpu), user::run, BREAKPOINTS));
    let others = [0, 1].map(|cpu| spawn("check", Some(cpu), call_add, 10_000));
    programs.into_iter().for_each(Handle::join);
    others.into_iter().for_each(Handle::join);
    let result = BREAKPOINTS * (BREAKPOINTS + 1) / 2;
    let [breakpoints, results] = before;
    assert_eq!(
        sums(),
        [breakpoints + 4 * BREAKPOINTS, results + 4 * result]
    );
    assert_eq!((probe.hits(), probe.nmissed()), (20_000, 0));
}

/// A handler that ends when an NMI has come.
fn wait_for_nmi(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    let nmis = traps::NMIS.here();
    let before = nmis.load(Relaxed);
    SEEN.store(1 + NUMBER.here().load(Relaxed) as u64, Release);
    while nmis.load(Relaxed) == before {
        hint::spin_loop();
    }
    PreVerdict::Execute
}

extern "C" fn send_nmis(count: u64) {
    for _ in 0..count {
        while SEEN.load(Acquire) == 0 {
            hint::spin_loop();
        }
        let cpu = SEEN.swap(0, Relaxed) - 1;
        smp::send_nmi(cpu as usize);
    }
}

fn nmi() {
    const COUNT: u64 = 50;
    SEEN.store(0, Relaxed);
    let handler = register(Box::new(Kprobe::new().symbol("add").pre(wait_for_nmi)));
    let in_nmi = register(Box::new(Kprobe::new().symbol("on_nmi").pre(see_nothing)));
    let sender = spawn("check", Some(1), send_nmis, COUNT);
    spawn("check", Some(0), call_add, COUNT).join();
    sender.join();
    assert_eq!((handler.hits(), handler.nmissed()), (COUNT, 0));
    assert_eq!((in_nmi.hits(), in_nmi.nmissed()), (0, COUNT));
    // Into code that is no handler.
    let before = traps::NMIS.of(1).load(Relaxed);
    smp::send_nmi(1);
    while traps::NMIS.of(1).load(Relaxed) == before {
        tasks::yield_now();
    }
    assert_eq!(in_nmi.hits(), 1);
}

fn see_nothing(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    PreVerdict::Execute
}
