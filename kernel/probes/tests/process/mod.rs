//! A second kernel for the probes: one Linux process.
//!
//! The crate is meant to be taken into other kernels, so its tests do not run on ours. Here is all
//! that a kernel has to bring, in the smallest form that has every property that matters: real
//! breakpoints in real text, real concurrency, real faults.
//!
//! | in a kernel | here |
//! |---|---|
//! | CPU | a thread whose GS base points to its [`Cpu`](cpu::Cpu) |
//! | #BP, #DB | SIGTRAP, on the stack of the code that trapped ([`traps`]) |
//! | #PF, #GP, #DE, #UD, … | SIGSEGV, SIGBUS, SIGFPE, SIGILL, with the context's vector |
//! | IPI | SIGUSR1, which every synchronisation sends to every other CPU |
//! | device interrupt | SIGUSR2 |
//! | interrupts off | both are blocked; RFLAGS.IF of a [`PtRegs`](probes::PtRegs) says so |
//! | NMI | a hook between any two instructions, as code is single-stepped ([`traps`]) |
//! | task | a thread, or a coroutine that any CPU may resume ([`task`]) |
//! | writable alias of text | `/proc/self/mem`, a second mapping for slots ([`text`]), never RWX |
//! | kallsyms | the binary's own ELF symbol table, and code made at run time ([`symbols`]) |
//!
//! # Differences from ring 0
//! HOST-1. RFLAGS.IF is always set and `iretq` cannot change the signal mask. So a slot with a post
//!     handler, and the stub after it, run with interrupts *on*: a signal there puts the rest of
//!     the hit aside ([`Probes::aside`]), as an NMI does in a kernel.
//! HOST-2. Host code uses the red zone: signals respect it, slots and stubs do not. So probed code
//!     is assembly that keeps nothing below RSP, or is entered at its first instruction, where
//!     nothing is there yet.
//! HOST-3. Handlers that the trampoline or the post stub calls are host code, which may use vector
//!     registers, and nothing saves them. So what runs across those two keeps to general registers.
//! HOST-4. `cli`, `sti` and other privileged instructions fault, as they do without a probe.
//! HOST-5. With RFLAGS.AC the processor checks alignment, which it does not in ring 0; the literals
//!     of slots are not aligned. So AC is tried with nops only.
//!
//! # One machine at a time
//! [`boot`] gives the process to one test; when the test is over the machine checks that it has
//! been left as it was found.

pub mod allocator;
pub mod cpu;
pub mod preempted;
pub mod symbols;
pub mod task;
pub mod text;
mod time_limit;
pub mod traps;

use std::{
    fmt,
    io::Write,
    ops::Range,
    sync::{
        Once, OnceLock,
        atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
};

use events::Event;
pub use parking_lot::Mutex;
use parking_lot::MutexGuard;
use probes::{
    Host, Kretprobe, PerCpu, Platform, ProbeError, Probes, ReturnMethod, StepMethod,
    asm::{handle_slow_path, on_return},
    platform::{Entries, EntryPoints, SlotPage, Symbol},
};

/// The process, as a kernel.
pub enum Process {}

/// The name by which tests call the kernel that they run on.
pub type Kernel = Process;

/// The selectors of its code and its stacks.
pub const CS: u64 = 0x33;
pub const SS: u64 = 0x2b;

/// How much slower than its processors this machine is, roughly.
pub const SLOWNESS: u64 = 1;

/// How displaced instructions are executed unless a probe says otherwise.
pub const fn step_method() -> StepMethod {
    crate::METHOD
}

/// How calls come back unless a kretprobe says otherwise.
pub const fn return_method() -> ReturnMethod {
    crate::RETURNS
}

/// Whether a breakpoint clears RFLAGS.AC.
pub const CLEARS_AC: bool = true;

/// The section of code that may be probed.
macro_rules! code_section {
    () => {
        ".text.suite"
    };
}
pub(crate) use code_section;

/// The one registry.
pub static PROBES: Probes<Process> = Probes::new();

probes::entry_points!(Process, cs = CS, ss = SS);

// SAFETY: 1: `Cpu` is one per thread, and its `probes` are private to it and the crate. 2: symbols
// are sections of the mapped binary, or code in `text::SCRATCH`. 3, 4: see `cpu`. 5: threads are
// never switched away from their CPU. 6: see `text`.
unsafe impl Platform for Process {
    type RawMutex = parking_lot::RawMutex;

    const PER_CPU_GS_OFFSET: u32 = std::mem::offset_of!(cpu::Cpu, probes) as u32;

    fn slots() -> Range<u64> {
        text::SLOTS.range()
    }

    fn this_cpu() -> &'static PerCpu {
        &cpu::this().probes
    }

    fn stack_of(sp: u64) -> Range<u64> {
        task::stack_of(sp)
    }

    fn fatal(message: fmt::Arguments<'_>) -> ! {
        traps::die(message)
    }

    fn orphan_return(message: fmt::Arguments<'_>) -> ! {
        traps::die(message)
    }

    fn per_cpu(cpu: usize) -> Option<&'static PerCpu> {
        cpu::CPUS.get(cpu).map(|cpu| &cpu.probes)
    }

    fn can_sleep() -> bool {
        cpu::this().can_sleep()
    }

    fn lookup_symbol(name: &str) -> Result<u64, ProbeError> {
        symbols::lookup(name).ok_or_else(|| ProbeError::UnknownSymbol {
            name: name.into(),
            hint: "look it up with nm".into(),
        })
    }

    fn symbol_at(addr: u64) -> Option<Symbol> {
        symbols::covering(addr)
    }

    fn blacklisted(addr: u64) -> Option<&'static str> {
        if Fault::Refusals.is_in() {
            return None;
        }
        // They have no symbols here.
        let hit = [
            handle_slow_path::<Self> as *const () as u64,
            on_return::<Self> as *const () as u64,
        ];
        let is_of_a_hit = hit.contains(&addr).then_some("a hit runs through it");
        is_of_a_hit.or_else(|| symbols::refused(addr))
    }

    unsafe fn write_text(addr: u64, byte: u8) {
        if Fault::Text.is_in() {
            return;
        }
        TEXT_WRITES.fetch_add(1, Relaxed);
        events::tell(Event::Write(addr, byte));
        text::write(addr, byte);
    }

    fn slot_page(index: usize) -> Option<SlotPage> {
        (index < SLOT_PAGES.load(Relaxed)).then(|| text::SLOTS.page(index))?
    }

    fn synchronize_cores() {
        CORE_SYNCS.fetch_add(1, Relaxed);
        events::tell(Event::Cores);
        if !Fault::Waits.is_in() {
            cpu::synchronize_cores();
        }
    }

    fn synchronize_hits(_: &(dyn Fn() -> bool + Sync)) {
        HIT_SYNCS.fetch_add(1, Relaxed);
        events::tell(Event::Hits);
        if Fault::Grace.is_in() {
            preempted::GRACE_IS_OVER.store(true, Relaxed);
        } else if !Fault::Waits.is_in() {
            cpu::synchronize_hits();
        }
    }

    fn on_every_cpu(work: &(dyn Fn() + Sync)) {
        cpu::on_every_cpu(work, !Fault::Cpus.is_in());
    }

    fn pass_time() {
        if preempted::GRACE_IS_OVER.load(Relaxed) {
            preempted::MAY_RESUME.store(true, Relaxed);
        }
        std::thread::yield_now();
    }

    fn may_fault(_: Range<u64>) -> bool {
        false
    }

    fn wait_for_preempted(_: &dyn Fn(u64) -> bool) {}

    fn log(message: fmt::Arguments<'_>) {
        LOG.lock().push(message.to_string());
    }
}

impl Entries for Process {
    fn entry_points() -> EntryPoints {
        let entry = probe_entry_points();
        let per_cpu = if Fault::Distance.is_in() { 8 } else { 0 };
        EntryPoints { per_cpu, ..entry }
    }
}

impl Host for Process {
    fn probes() -> &'static Probes<Self> {
        &PROBES
    }
}

/// What this kernel does wrong when a test says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "one of the test binaries puts them in")]
#[repr(usize)]
pub enum Fault {
    None,
    /// The distance of the CPU's data is not what it says.
    Distance,
    /// The other CPUs are not asked.
    Cpus,
    /// Text is not written.
    Text,
    /// Any code may be probed.
    Refusals,
    /// The probes are not asked about breakpoints that are not in the table.
    Stale,
    /// They are not asked about faults.
    Faults,
    /// The breakpoint of user code is lost.
    User,
    /// An NMI takes the rest of a hit for its own.
    Nmi,
    /// Neither wait waits.
    Waits,
    /// Hits are not waited for.
    Grace,
}

static FAULT: AtomicUsize = AtomicUsize::new(Fault::None as usize);

impl Fault {
    /// Has the kernel do this wrong from now on, and all else right.
    pub fn put_in(self) {
        FAULT.store(self as usize, Relaxed);
    }

    /// Whether the kernel does this wrong.
    pub fn is_in(self) -> bool {
        FAULT.load(Relaxed) == self as usize
    }
}

/// How many bytes of text were written since the boot.
static TEXT_WRITES: AtomicU32 = AtomicU32::new(0);
/// How many grace periods there were since the boot.
static HIT_SYNCS: AtomicU32 = AtomicU32::new(0);
/// How many times all cores were synchronised since the boot.
static CORE_SYNCS: AtomicU32 = AtomicU32::new(0);
/// How many pages of slots may be used.
static SLOT_PAGES: AtomicUsize = AtomicUsize::new(usize::MAX);
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The probes' messages since the boot.
pub fn log() -> Vec<String> {
    LOG.lock().clone()
}

/// The machine, for one test. Dropping it checks that the test has cleaned up.
pub struct Machine {
    slots: usize,
    online: Option<cpu::Online>,
    _turn: MutexGuard<'static, ()>,
}

impl Machine {
    fn online(&self) -> &cpu::Online {
        self.online.as_ref().expect("the machine runs")
    }

    /// Makes `task` the current one of this CPU.
    pub fn run_task(&self, task: u64) {
        self.online().run_task(task);
    }

    /// Breakpoints stay breakpoints: they do anyway.
    pub fn without_jumps(self) -> Self {
        self
    }

    /// Makes the test's own task the current one again.
    pub fn run_own_task(&self) {
        self.online().run_own_task();
    }
}

/// Starts the machine, with the calling thread as its only CPU, once no other test has it.
pub fn boot() -> Machine {
    static TURN: Mutex<()> = Mutex::new(());
    static SET_UP: Once = Once::new();
    let turn = TURN.lock();
    SET_UP.call_once(|| {
        time_limit::set_up();
        text::set_up();
        cpu::set_up();
        traps::set_up();
        PROBES.init_table();
        PROBES.init(crate::METHOD, crate::RETURNS, false);
        // Has the breakpoints that return methods need placed, which they keep.
        let _online = cpu::Online::new();
        for method in [ReturnMethod::Trap3, ReturnMethod::Trap4] {
            let first = Kretprobe::<()>::new().symbol("add").return_method(method);
            PROBES
                .register_owned(Box::new(first))
                .expect("it is a function");
        }
        TEXT.get_or_init(text::image);
    });
    time_limit::begin();
    for count in [&TEXT_WRITES, &HIT_SYNCS, &CORE_SYNCS] {
        count.store(0, Relaxed);
    }
    SLOT_PAGES.store(usize::MAX, Relaxed);
    LOG.lock().clear();
    crate::suite::journal::clear();
    traps::clear_hooks();
    text::clear();
    Fault::None.put_in();
    Machine {
        slots: PROBES.slots_in_use(),
        online: Some(cpu::Online::new()),
        _turn: turn,
    }
}

/// All executable bytes of the binary as they were at the start.
static TEXT: OnceLock<Vec<(u64, Vec<u8>)>> = OnceLock::new();

/// Has `clean_up` run if the test fails; if it succeeds it has cleaned up itself.
pub fn at_failure(clean_up: impl FnOnce() + Send + 'static) {
    CLEAN_UPS.lock().push(Box::new(clean_up));
}

static CLEAN_UPS: Mutex<Vec<Box<dyn FnOnce() + Send>>> = Mutex::new(Vec::new());

impl Drop for Machine {
    fn drop(&mut self) {
        time_limit::end();
        let clean_ups = std::mem::take(&mut *CLEAN_UPS.lock());
        if std::thread::panicking() {
            for clean_up in clean_ups {
                clean_up();
            }
            PROBES.set_enabled(true).expect("tests end in task context");
            return;
        }
        crate::suite::assert_nothing_is_left(self.slots);
        for (number, cpu) in cpu::CPUS.iter().enumerate() {
            assert!(!cpu.probes.is_busy(), "CPU {number} was left busy");
        }
        for (start, bytes) in TEXT.get().expect("the machine was set up") {
            let now = text::read(*start, bytes.len());
            if *bytes == now {
                continue;
            }
            // Megabytes, after each test: only a failure looks at single bytes.
            let differs = (0..bytes.len()).find(|n| bytes[*n] != now[*n]);
            let differs = differs.map(|n| symbols::describe(start + n as u64));
            assert_eq!(differs, None, "text was left changed");
        }
        drop(self.online.take());
    }
}

/// The registry's requests to its kernel, in order, and the state of the world just before each is
/// done.
pub mod events {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Event {
        /// A byte of text is written.
        Write(u64, u8),
        /// All cores are synchronised.
        Cores,
        /// Hits that are under way are waited for.
        Hits,
    }

    type Listener = Box<dyn FnMut(Event) + Send>;
    static LISTENER: Mutex<Option<Listener>> = Mutex::new(None);

    /// The registry asks for `event`. In task context.
    pub(super) fn tell(event: Event) {
        if let Some(listener) = &mut *LISTENER.lock() {
            listener(event);
        }
    }

    /// The events during `operation`, each with what `look` finds then. `look` may not take the
    /// registry's lock.
    pub fn during<T: Send + 'static>(
        operation: impl FnOnce(),
        mut look: impl FnMut() -> T + Send + 'static,
    ) -> Vec<(Event, T)> {
        let (sender, events) = std::sync::mpsc::channel();
        *LISTENER.lock() = Some(Box::new(move |event| {
            let _ = sender.send((event, look()));
        }));
        operation();
        *LISTENER.lock() = None;
        events.into_iter().collect()
    }
}

/// Says something that a test which ends the machine wants to be known.
pub fn say(message: fmt::Arguments<'_>) {
    println!("{message}");
}

/// The machine's last words about an unexpected breakpoint.
pub const UNEXPECTED_BREAKPOINT: &str = "exception 3 that nobody expects";

/// A function that may not be probed, and the reason.
pub const BLACKLISTED: (&str, &str) = ("blacklisted", "a test asks for it");

/// Whether breakpoints become jumps where they can: the trampolines of jumps are a kernel's.
pub const fn jumps() -> bool {
    false
}

/// Has a test end the machine with these words, and with what holds of all that it has printed.
macro_rules! dies {
    (#[test] fn $name:ident() saying $words:expr $(, $check:expr)? => $body:block) => {
        #[test]
        fn $name() {
            let name = concat!(module_path!(), "::", stringify!($name));
            let (_binary, name) = name.split_once("::").expect("a test is in a module");
            let printed = $crate::platform::in_doomed_process(name, || $body);
            assert!(printed.contains($words), "{printed}");
            $(
                let check: fn(&str) -> bool = $check;
                assert!(check(&printed), "{printed}");
            )?
        }
    };
}
pub(crate) use dies;

/// Runs `test` in a process of its own, in which it must die. `name` is the calling test's. Returns
/// what that process has printed; within it, runs `last_words` and does not return.
pub fn in_doomed_process(name: &str, last_words: fn()) -> String {
    const MARK: &str = "PROBES_DOOMED_TEST";
    if std::env::var_os(MARK).is_some() {
        last_words();
        println!("survived");
        std::process::exit(0);
    }
    let output =
        std::process::Command::new(std::env::current_exe().expect("a process has a binary"))
            .args([name, "--exact", "--nocapture", "--include-ignored"])
            .env(MARK, "1")
            .output()
            .expect("the binary starts");
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "survived: {printed}");
    assert!(!printed.contains("survived"), "{printed}");
    std::io::stdout().flush().expect("stdout is open");
    printed.into_owned()
}
