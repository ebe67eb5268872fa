//! Random operations on probes from four threads, each held against a model.
//!
//! Each thread owns three functions, which no other calls, and all kinds of probes on them. In
//! an order drawn from a seed it registers, unregisters, enables and disables them, alone and in
//! batches, calls the functions, turns the knob and the optimisation switch. A model keeps what
//! each probe has to have counted by then and whether it is to be in the text; it is asked after
//! each operation. The functions return at once, recurse deeper than there are instances, and give
//! way in the middle. The threads also share probes on a function that all of them and NMI handlers
//! call, on the timer interrupt and on a system call in which programs are killed; what those count
//! lies within bounds.
//!
//! # Exactness
//! Nothing but a call by the owner executes an owned function, so counts are predicted to the
//! digit. The knob is turned off with the mutexes of all threads held, each of which holds its own
//! while it calls. The switch of the optimisation may come at any time.
//!
//! # Replay
//! A failure prints the seed and the last operations of each thread. `stress.seed=N` on the kernel
//! command line repeats each thread's operations, though not how they interleave;
//! `stress.operations=N` says how many each thread does, `stress.seconds=N` for how long.

use crate::harness::waiting::expect_soon;
use abi::WaitStatus;
use alloc::{boxed::Box, format, string::String, vec::Vec};
use core::{
    hint::black_box,
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};
use kernel::{
    arch::{smp, traps},
    cmdline, pr_emerg, pr_info,
    probes::{
        EntryVerdict, Jprobe, Kprobe, Kretprobe, KretprobeInstance, PROBES, PreVerdict, Probe,
        ProbeError, PtRegs, jprobe, survey,
    },
    symbols,
    sync::{Mutex, MutexGuard, SpinLock},
    task::{self, exec::start_program, kthread::spawn_kthread, process, wait::wait_for_child},
    time::{NSEC_PER_SEC, ktime_get},
};

const THREADS: usize = 4;
/// Instances of each return probe; recursion goes deeper.
const INSTANCES: u64 = 4;

/// Three functions of each thread: what they return is their argument and a number of the thread's
/// own.
macro_rules! owned_functions {
    ($($thread:literal: $leaf:ident $recursive:ident $yielding:ident;)+) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $leaf(a: u64) -> u64 {
                black_box(black_box(a).wrapping_add(number($thread)))
            }

            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $recursive(a: u64) -> u64 {
                match a {
                    0 => black_box(number($thread)),
                    a => black_box($recursive(black_box(a - 1)) + 1),
                }
            }

            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $yielding(a: u64) -> u64 {
                task::schedule();
                black_box(a.wrapping_add(number($thread)))
            }
        )+

        const FUNCTIONS: [[(&str, extern "C" fn(u64) -> u64); 3]; THREADS] = [$([
            (stringify!($leaf), $leaf),
            (stringify!($recursive), $recursive),
            (stringify!($yielding), $yielding),
        ]),+];
    };
}

owned_functions! {
    0: stress_leaf_0 stress_recursive_0 stress_yielding_0;
    1: stress_leaf_1 stress_recursive_1 stress_yielding_1;
    2: stress_leaf_2 stress_recursive_2 stress_yielding_2;
    3: stress_leaf_3 stress_recursive_3 stress_yielding_3;
}

/// The number that the functions of `thread` add to their argument.
const fn number(thread: u64) -> u64 {
    1000 * (thread + 1)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stress_shared(a: u64) -> u64 {
    black_box(a ^ 0x5555)
}

/// Calls of the shared function that have begun.
static SHARED_CALLS: AtomicU64 = AtomicU64::new(0);

fn call_shared() {
    SHARED_CALLS.fetch_add(1, SeqCst);
    stress_shared(black_box(1));
}

/// How often the handlers of each thread's own probes ran.
static RUNS: [AtomicU64; THREADS] = [const { AtomicU64::new(0) }; THREADS];
/// Returns whose value was not that of the call that the entry handler saw.
static WRONG_RETURNS: AtomicU64 = AtomicU64::new(0);

fn pre<const THREAD: usize>(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    RUNS[THREAD].fetch_add(1, Relaxed);
    PreVerdict::Execute
}

fn post(_: &Kprobe, _: &mut PtRegs, _: u64) {}

fn keep_argument(call: &mut KretprobeInstance<u64>, regs: &mut PtRegs) -> EntryVerdict {
    **call = regs.di;
    EntryVerdict::Track
}

fn check_result<const THREAD: usize>(call: &mut KretprobeInstance<u64>, regs: &mut PtRegs) {
    RUNS[THREAD].fetch_add(1, Relaxed);
    let expected = call.wrapping_add(number(THREAD as u64));
    WRONG_RETURNS.fetch_add(u64::from(regs.return_value() != expected), Relaxed);
}

fn count_return<const THREAD: usize>(_: &mut KretprobeInstance<()>, _: &mut PtRegs) {
    RUNS[THREAD].fetch_add(1, Relaxed);
}

jprobe! {
    fn mirror(_a: u64) {}
}

/// The seed, and what the threads did last: for whoever looks into a failure.
static SEED: AtomicU64 = AtomicU64::new(0);
static LAST: [SpinLock<Option<Vec<String>>>; THREADS] = [const { SpinLock::new(None) }; THREADS];
/// How many operations of each thread are kept.
const KEPT: usize = 24;
/// Held by each thread while it calls its functions; by whoever turns the knob, all.
static CALLING: [Mutex<()>; THREADS] = [const { Mutex::new(()) }; THREADS];

/// Ends the test.
fn fail(thread: usize, what: &str) -> ! {
    pr_emerg!("stress.seed={}", SEED.load(Relaxed));
    for (number, last) in LAST.iter().enumerate() {
        let operations = last.lock().take().unwrap_or_default();
        for operation in operations {
            pr_emerg!("thread {number}: {operation}");
        }
    }
    panic!("thread {thread}: {what}");
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// The functions that execute a probe of the model.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    /// Each execution of the instruction.
    Executions,
    /// Each return that an instance was free for.
    Returns,
}

/// A probe and what the model knows of it.
struct Modelled {
    probe: &'static dyn Probe,
    /// Misses for want of an instance, which are apart from those of the kprobe.
    lost: fn(&'static dyn Probe) -> u64,
    counts: Counts,
    /// Whether its handlers count into [`RUNS`].
    runs: bool,
    registered: bool,
    enabled: bool,
    hits: u64,
    misses: u64,
}

/// A function and its probes.
struct Function {
    name: &'static str,
    call: extern "C" fn(u64) -> u64,
    recurses: bool,
    entry: u64,
    /// The first byte as it is without probes.
    byte: u8,
    probes: Vec<Modelled>,
}

impl Function {
    fn new<const THREAD: usize>(number: usize) -> Self {
        let (name, call) = FUNCTIONS[THREAD][number];
        let symbol = symbols::lookup_name(name).unwrap();
        let executions = |kprobe: Kprobe| {
            let probe: &'static Kprobe = Box::leak(Box::new(kprobe));
            Modelled::new(probe, Counts::Executions, |_| 0, true)
        };
        let mut probes = Vec::new();
        probes.push(executions(Kprobe::new().symbol(name).pre(pre::<THREAD>)));
        probes.push(executions(Kprobe::new().symbol(name).pre(pre::<THREAD>)));
        probes.push(executions(
            Kprobe::new().symbol(name).pre(pre::<THREAD>).post(post),
        ));
        if number == 0 {
            // A function without branches: each instruction is executed once a call.
            for judged in survey::function(&symbol).unwrap().into_iter().skip(1) {
                if judged.verdict.is_ok() && probes.len() < 6 {
                    let offset = (judged.insn.ip() - symbol.start) as u32;
                    let kprobe = Kprobe::new().symbol(name).offset(offset);
                    probes.push(executions(kprobe.pre(pre::<THREAD>)));
                }
            }
        }
        let jprobe: &'static Jprobe = Box::leak(Box::new(Jprobe::new().symbol(name).entry(mirror)));
        probes.push(Modelled::new(jprobe, Counts::Executions, |_| 0, false));
        let bare = Kretprobe::<()>::new()
            .symbol(name)
            .maxactive(INSTANCES as i32)
            .handler(count_return::<THREAD>);
        let full = Kretprobe::<u64>::new()
            .symbol(name)
            .maxactive(INSTANCES as i32)
            .entry(keep_argument)
            .handler(check_result::<THREAD>);
        let (bare, full): (&'static _, &'static _) =
            (Box::leak(Box::new(bare)), Box::leak(Box::new(full)));
        probes.push(Modelled::returns(bare));
        probes.push(Modelled::returns(full));
        let byte = PROBES
            .original_text(symbol.start..symbol.start + 1)
            .unwrap()[0];
        Self {
            name,
            call,
            recurses: number == 1,
            entry: symbol.start,
            byte,
            probes,
        }
    }

    /// Calls it with `argument`; the model counts along.
    fn call(&mut self, argument: u64, knob: bool) -> u64 {
        let executions = if self.recurses { argument + 1 } else { 1 };
        for probe in self.probes.iter_mut() {
            if !(probe.registered && probe.enabled && knob) {
                continue;
            }
            match probe.counts {
                Counts::Executions => probe.hits += executions,
                Counts::Returns => {
                    probe.hits += executions.min(INSTANCES);
                    probe.misses += executions.saturating_sub(INSTANCES);
                }
            }
        }
        (self.call)(black_box(argument))
    }

    /// Whether a breakpoint or jump is to be at its first byte.
    fn is_armed(&self, knob: bool) -> bool {
        let fires = |probe: &Modelled| probe.registered && probe.enabled;
        let at_entry = |probe: &Modelled| probe.probe.kprobe().addr() == self.entry;
        knob && self
            .probes
            .iter()
            .any(|probe| fires(probe) && at_entry(probe))
    }
}

impl Modelled {
    fn new(
        probe: &'static dyn Probe,
        counts: Counts,
        lost: fn(&'static dyn Probe) -> u64,
        runs: bool,
    ) -> Self {
        Self {
            probe,
            lost,
            counts,
            runs,
            registered: false,
            enabled: false,
            hits: 0,
            misses: 0,
        }
    }

    fn returns<D: Copy + Default + Send + 'static>(probe: &'static Kretprobe<D>) -> Self {
        let lost = |probe: &'static dyn Probe| {
            let mut misses = u64::MAX;
            PROBES.for_each(|listed| {
                if core::ptr::eq(listed.probe, probe.kprobe()) {
                    misses = listed.misses;
                }
            });
            misses
        };
        Self::new(probe, Counts::Returns, lost, true)
    }

    fn is_registered_now(&mut self) {
        (self.registered, self.enabled) = (true, true);
        (self.hits, self.misses) = (0, 0);
    }
}

/// Probes that all threads use: each has its own on each of the targets.
struct Shared {
    probe: &'static dyn Probe,
    registered: bool,
    /// Whether its function is the shared one, and how often that had been called at the
    /// registration.
    calls: Option<u64>,
}

impl Shared {
    fn all<const THREAD: usize>() -> Vec<Self> {
        let kprobe = |name, post_too| -> &'static dyn Probe {
            let kprobe = Kprobe::new().symbol(name).pre(|_, _| PreVerdict::Execute);
            let kprobe = if post_too { kprobe.post(post) } else { kprobe };
            Box::leak(Box::new(kprobe))
        };
        let kretprobe = |name| -> &'static dyn Probe {
            Box::leak(Box::new(Kretprobe::<u64>::new().symbol(name).maxactive(64)))
        };
        [
            kprobe("stress_shared", false),
            kprobe("stress_shared", true),
            kretprobe("stress_shared"),
            kprobe("timer_interrupt", THREAD.is_multiple_of(2)),
            kretprobe("timer_interrupt"),
            kretprobe("sys_nanosleep"),
            kretprobe("schedule"),
            kprobe("do_exit", false),
        ]
        .into_iter()
        .enumerate()
        .map(|(number, probe)| Self {
            probe,
            registered: false,
            calls: (number < 2).then_some(0),
        })
        .collect()
    }
}

/// One thread of the storm.
struct Worker {
    thread: usize,
    random: Random,
    functions: Vec<Function>,
    shared: Vec<Shared>,
    /// The expected [`RUNS`].
    runs: u64,
    operations: u64,
}

impl Worker {
    fn new<const THREAD: usize>(seed: u64) -> Self {
        let mut random = Random(seed ^ THREAD as u64);
        random.next();
        Self {
            thread: THREAD,
            random,
            functions: (0..3).map(Function::new::<THREAD>).collect(),
            shared: Shared::all::<THREAD>(),
            runs: RUNS[THREAD].load(SeqCst),
            operations: 0,
        }
    }

    fn note(&self, operation: String) {
        let mut last = LAST[self.thread].lock();
        let old = last.as_mut().map(|last| {
            let old = (last.len() == KEPT).then(|| last.remove(0));
            last.push(operation);
            old
        });
        drop(last);
        // Freed without the lock.
        drop(old);
    }

    fn expect(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            fail(self.thread, &what());
        }
    }

    fn expect_ok(&self, result: Result<(), ProbeError>) {
        if let Err(error) = result {
            fail(self.thread, &format!("{error}"));
        }
    }

    /// Does something.
    fn step(&mut self) {
        self.operations += 1;
        let function = self.random.below(3);
        let probe = self.random.below(self.functions[function].probes.len());
        match self.random.below(100) {
            0..20 => self.register(function, probe),
            20..30 => self.unregister(function, probe),
            30..34 => self.register_rest(function),
            34..37 => self.unregister_all(function),
            37..50 => self.enable_or_disable(function, probe),
            50..76 => {
                let argument = self.random.next() % 8;
                self.note(format!(
                    "call {}({argument})",
                    self.functions[function].name
                ));
                self.call(function, argument);
            }
            76..79 => self.turn_the_knob(function),
            79..83 => {
                let on = self.random.next().is_multiple_of(2);
                self.note(format!("optimization {on}"));
                self.expect_ok(PROBES.set_optimization(on));
            }
            83..94 => self.use_shared(),
            94..98 => {
                let cpu = self.random.below(smp::online_cpus());
                self.note(format!("nmi to {cpu}"));
                smp::send_nmi(cpu);
            }
            _ => self.kill_a_program(),
        }
        self.check(function);
    }

    fn register(&mut self, function: usize, probe: usize) {
        let function = &mut self.functions[function];
        let modelled = &mut function.probes[probe];
        let operation = format!("register {} {probe}", function.name);
        let result = PROBES.register_batch(&[modelled.probe]);
        let twice = modelled.registered;
        if !twice {
            modelled.is_registered_now();
        }
        self.note(operation);
        match result {
            Err(ProbeError::AlreadyRegistered { .. }) if twice => {}
            Ok(()) if !twice => {}
            other => fail(self.thread, &format!("register: {other:?}")),
        }
    }

    fn register_rest(&mut self, function: usize) {
        self.note(format!("register all of {}", self.functions[function].name));
        let mut batch: Vec<&'static dyn Probe> = Vec::new();
        for modelled in &mut self.functions[function].probes {
            if !modelled.registered {
                batch.push(modelled.probe);
                modelled.is_registered_now();
            }
        }
        if !batch.is_empty() {
            self.expect_ok(PROBES.register_batch(&batch));
        }
    }

    fn unregister(&mut self, function: usize, probe: usize) {
        let name = self.functions[function].name;
        self.note(format!("unregister {name} {probe}"));
        let modelled = &mut self.functions[function].probes[probe];
        modelled.registered = false;
        let result = PROBES.unregister_batch(&[modelled.probe]);
        self.expect_ok(result);
    }

    fn unregister_all(&mut self, function: usize) {
        self.note(format!(
            "unregister all of {}",
            self.functions[function].name
        ));
        let probes = &mut self.functions[function].probes;
        let batch: Vec<_> = probes.iter().map(|modelled| modelled.probe).collect();
        probes.iter_mut().for_each(|probe| probe.registered = false);
        self.expect_ok(PROBES.unregister_batch(&batch));
    }

    fn enable_or_disable(&mut self, function: usize, probe: usize) {
        let name = self.functions[function].name;
        let on = self.random.next().is_multiple_of(2);
        self.note(format!("enable {name} {probe}: {on}"));
        let modelled = &mut self.functions[function].probes[probe];
        let kprobe = modelled.probe.kprobe();
        let result = if on {
            PROBES.enable(kprobe)
        } else {
            PROBES.disable(kprobe)
        };
        let registered = modelled.registered;
        if registered {
            modelled.enabled = on;
        }
        match result {
            Ok(()) if registered => {}
            Err(ProbeError::NotRegistered) if !registered => {}
            other => fail(self.thread, &format!("enable or disable: {other:?}")),
        }
    }

    /// Calls a function with the knob on.
    fn call(&mut self, function: usize, argument: u64) {
        let calling = CALLING[self.thread].lock();
        self.call_with(function, argument, true);
        drop(calling);
    }

    fn call_with(&mut self, function: usize, argument: u64, knob: bool) {
        let before = self.predicted_runs();
        let result = self.functions[function].call(argument, knob);
        self.runs += self.predicted_runs() - before;
        let expected = argument + number(self.thread as u64);
        self.expect(result == expected, || {
            format!("{result} instead of {expected}")
        });
        let runs = RUNS[self.thread].load(SeqCst);
        self.expect(runs == self.runs, || {
            format!("handlers ran {runs} times instead of {}", self.runs)
        });
    }

    /// The hits of all own probes whose handlers count their runs.
    fn predicted_runs(&self) -> u64 {
        let probes = self.functions.iter().flat_map(|function| &function.probes);
        probes
            .filter(|probe| probe.runs)
            .map(|probe| probe.hits)
            .sum()
    }

    /// Off, a call that no probe sees, and on again.
    fn turn_the_knob(&mut self, function: usize) {
        self.note(String::from("knob off"));
        let all: Vec<MutexGuard<'_, ()>> = CALLING.iter().map(|calling| calling.lock()).collect();
        self.expect_ok(PROBES.set_enabled(false));
        self.call_with(function, 2, false);
        self.check_text(function, false);
        self.expect_ok(PROBES.set_enabled(true));
        drop(all);
        self.note(String::from("knob on"));
    }

    /// Whether the function's first byte is what the model says.
    fn check_text(&self, function: usize, knob: bool) {
        let function = &self.functions[function];
        // SAFETY: kernel text is mapped and readable for ever.
        let byte = unsafe { (function.entry as *const u8).read_volatile() };
        let armed = function.is_armed(knob);
        let fits = if armed {
            byte == 0xcc || byte == 0xe9
        } else {
            byte == function.byte
        };
        self.expect(fits, || {
            format!("{} begins with {byte:#x}, armed: {armed}", function.name)
        });
    }

    /// Holds the probes of a function against the model.
    fn check(&self, function: usize) {
        for (number, modelled) in self.functions[function].probes.iter().enumerate() {
            let kprobe = modelled.probe.kprobe();
            let name = self.functions[function].name;
            let state = (kprobe.is_registered(), kprobe.hits());
            let expected = (modelled.registered, modelled.hits);
            self.expect(state == expected, || {
                format!("{name} {number}: registered, hits {state:?} instead of {expected:?}")
            });
            if modelled.registered {
                let misses = kprobe.nmissed().max((modelled.lost)(modelled.probe));
                self.expect(misses == modelled.misses, || {
                    format!(
                        "{name} {number}: {misses} misses instead of {}",
                        modelled.misses
                    )
                });
            }
        }
        let wrong = WRONG_RETURNS.load(SeqCst);
        self.expect(wrong == 0, || format!("{wrong} returns of another call"));
        // The knob stays as it is meanwhile.
        let calling = CALLING[self.thread].lock();
        self.check_text(function, true);
        drop(calling);
    }

    /// Registers or unregisters a shared probe, or calls the shared function.
    fn use_shared(&mut self) {
        let number = self.random.below(self.shared.len());
        let what = self.random.below(3);
        self.note(format!("shared probe {number}: {what}"));
        let shared = &mut self.shared[number];
        let kprobe = shared.probe.kprobe();
        match what {
            0 if !shared.registered => {
                shared.calls = shared.calls.map(|_| SHARED_CALLS.load(SeqCst));
                shared.registered = true;
                let result = PROBES.register_batch(&[shared.probe]);
                self.expect_ok(result);
            }
            1 if shared.registered => {
                shared.registered = false;
                let (result, calls) = (PROBES.unregister_batch(&[shared.probe]), shared.calls);
                self.expect_ok(result);
                if let Some(before) = calls {
                    // Each call counts as a hit or as a miss, once; calls under way at the
                    // registration may, too.
                    let most =
                        SHARED_CALLS.load(SeqCst) - before + (THREADS + smp::online_cpus()) as u64;
                    let seen = kprobe.hits() + kprobe.nmissed();
                    self.expect(seen <= most, || format!("{seen} hits of {most} calls"));
                }
            }
            _ => {
                let calling = CALLING[self.thread].lock();
                let is_seen = shared.registered && shared.calls.is_some();
                let seen = || kprobe.hits() + kprobe.nmissed();
                let before = seen();
                (0..4).for_each(|_| call_shared());
                let now = seen();
                drop(calling);
                self.expect(!is_seen || now >= before + 4, || {
                    format!("4 calls between {before} and {now} hits")
                });
            }
        }
    }

    /// Starts a program that sleeps for ever and ends it there.
    fn kill_a_program(&mut self) {
        self.note(String::from("kill a program"));
        let pid = start_program("/bin/exercise", &["sleep", "100000"]);
        let Ok(pid) = pid else {
            fail(self.thread, &format!("no program: {pid:?}"));
        };
        (0..self.random.below(20)).for_each(|_| task::schedule());
        process::kill(pid).unwrap();
        let ended = wait_for_child(process::Which::Pid(pid), false);
        let killed = matches!(ended, Ok(Some((_, status))) if status != WaitStatus::exited(0));
        self.expect(killed, || format!("{ended:?}"));
    }

    /// Takes all probes back.
    fn finish(&mut self) {
        for function in 0..3 {
            self.unregister_all(function);
            self.check(function);
        }
        let batch: Vec<_> = self.shared.iter().map(|shared| shared.probe).collect();
        self.expect_ok(PROBES.unregister_batch(&batch));
    }
}

fn argument(name: &str) -> Option<u64> {
    cmdline::get(name)?.parse().ok()
}

fn call_shared_in_nmi(_: &PtRegs) {
    call_shared();
}

/// Runs one worker for so many operations, or until `end`.
fn work<const THREAD: usize>(seed: u64, operations: u64, end: u64) -> u64 {
    let mut worker = Worker::new::<THREAD>(seed);
    while worker.operations < operations && ktime_get() < end {
        worker.step();
    }
    worker.finish();
    worker.operations
}

/// See the module's text.
fn storm(operations: u64) {
    let seed = argument("stress.seed").unwrap_or(ktime_get());
    let operations = argument("stress.operations").unwrap_or(operations);
    let seconds = argument("stress.seconds");
    let (operations, end) = match seconds {
        Some(seconds) => (u64::MAX, ktime_get() + seconds * NSEC_PER_SEC),
        None => (operations, u64::MAX),
    };
    pr_info!("stress.seed={seed}");
    SEED.store(seed, Relaxed);
    for last in &LAST {
        let empty = Some(Vec::with_capacity(KEPT));
        drop(core::mem::replace(&mut *last.lock(), empty));
    }
    let optimization = PROBES.optimization();
    static DONE: AtomicU64 = AtomicU64::new(0);
    DONE.store(0, SeqCst);
    traps::set_nmi_handler(Some(call_shared_in_nmi));
    let workers: [fn(u64, u64, u64) -> u64; THREADS] = [work::<0>, work::<1>, work::<2>, work::<3>];
    let threads = workers.map(|work| {
        spawn_kthread("stress", move || {
            DONE.fetch_add(work(seed, operations, end), SeqCst);
        })
        .unwrap()
    });
    threads.iter().for_each(|thread| thread.wait_released());
    traps::set_nmi_handler(None);
    PROBES.set_optimization(optimization).unwrap();
    pr_info!(
        "stress: {} operations, {} handlers run, {} shared calls",
        DONE.load(SeqCst),
        RUNS.iter().map(|runs| runs.load(SeqCst)).sum::<u64>(),
        SHARED_CALLS.load(SeqCst)
    );
    assert_eq!(PROBES.slots_in_use(), 0);
    assert_eq!(PROBES.detours_in_use(), 0);
    // A killed program's task gives its calls back when it is released, which comes after its
    // parent has heard of the end.
    expect_soon("no call is in flight", || PROBES.reap() == Ok(0));
}

/// Counts and states are those of the model, whatever four threads do at once.
#[guest_test(cmdline = "stress.seed=1", smp = 4, timeout = 300)]
fn random_operations_agree_with_a_model() {
    storm(1_000);
}

/// The same for ten minutes, from a seed of its own each time.
#[guest_test(cmdline = "stress.seconds=600", smp = 4, timeout = 3600, ignore)]
fn ten_minutes_of_random_operations_agree_with_a_model() {
    storm(0);
}
