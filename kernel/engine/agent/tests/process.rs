//! The agent in a Linux process, against the reference of what a script does (`script_world`).
//!
//! | in a kernel | here |
//! |---|---|
//! | CPU | one, whose data the GS base of the test's thread leads to |
//! | code of programs | pages near the text of the process |
//! | page fault | SIGSEGV, whose handler asks [`Tracing::mend`] |
//! | time | a number that the tests set |
//!
//! No probe is registered, so programs run at the begin, at intervals and at the end of a script.
//! Probes of a whole kernel are in the tests of `kernel/second`, and of ours.

use std::{
    fmt,
    ops::Range,
    ptr::{self, NonNull, null_mut},
    rc::Rc,
    sync::{
        Mutex, MutexGuard, Once, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use probes::{
    Host, Platform, ProbeError, Probes, PtRegs,
    platform::{Entries, EntryPoints, SlotPage, Symbol},
};
use script_world::{Hit, World};
use trace_agent::{
    Agent, Local,
    script::{How, Outlet, Refusal, Session},
};
use trace_answers::{Presentation, Symbolize};
use trace_compiler::{Compiled, Options, compile};
use trace_interface::{
    Frame,
    script::Attachment,
    symbols::{self, Function, Kernel, ProbePlace, Type, TypeId, Unavailable, Variable},
};

/// The pages of the region of code, all of them for programs.
const PAGES: usize = 64;
const PAGE_BYTES: usize = 4096;

/// What the GS base leads to.
static CPU: Local = Local::new();

struct Process;

static PROBES: Probes<Process> = Probes::new();
trace_agent::tracing!(Process, TRACING);

/// Nanoseconds since the boot.
static NOW: AtomicU64 = AtomicU64::new(0);

/// The pages of the region. Near the text, because code calls functions there.
fn region() -> Range<u64> {
    static START: OnceLock<u64> = OnceLock::new();
    let bytes = PAGES * PAGE_BYTES;
    let start = *START.get_or_init(|| {
        let text = region as *const () as usize & !(PAGE_BYTES - 1);
        let wanted = ptr::without_provenance_mut(text + (256 << 20));
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory, at a place that the system chooses.
        let start = unsafe { libc::mmap(wanted, bytes, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let distance = start.addr().abs_diff(text);
        assert!(distance < 1 << 30, "the pages are {distance} bytes away");
        start.expose_provenance() as u64
    });
    start..start + bytes as u64
}

// SAFETY: clause by clause: 1. there is one CPU; 2. nothing is text; 3. and 4. nothing else runs
// code of the region while a test holds the machine; 5. there is one task; 6. the pages are mapped
// once; 7. no method of `Hits` is called.
unsafe impl Platform for Process {
    type RawMutex = parking_lot::RawMutex;

    const ACTION_PAGES: usize = PAGES;

    fn per_cpu(cpu: usize) -> Option<&'static probes::PerCpu> {
        (cpu == 0).then_some(&CPU.probes)
    }

    fn slots() -> Range<u64> {
        region()
    }

    fn slot_page(index: usize) -> Option<SlotPage> {
        let exec = region().start + (index * PAGE_BYTES) as u64;
        let alias = ptr::with_exposed_provenance_mut(exec as usize);
        region().contains(&exec).then_some(SlotPage { exec, alias })
    }

    fn stack_of(_: u64) -> Range<u64> {
        0..0
    }

    fn lookup_symbol(name: &str) -> Result<u64, ProbeError> {
        let (name, hint) = (name.into(), "there are no symbols".into());
        Err(ProbeError::UnknownSymbol { name, hint })
    }

    fn symbol_at(_: u64) -> Option<Symbol> {
        None
    }

    fn blacklisted(_: u64) -> Option<&'static str> {
        Some("this process has no probes")
    }

    unsafe fn write_text(_: u64, _: u8) {
        unreachable!("no probe is registered")
    }
}

impl Entries for Process {
    fn entry_points() -> EntryPoints {
        // No probe is registered, so the distance from GS is all that is asked for, and it is 0.
        // SAFETY: all of it are numbers.
        unsafe { std::mem::zeroed() }
    }
}

impl Host for Process {
    fn probes() -> &'static Probes<Self> {
        &PROBES
    }
}

// SAFETY: clause by clause: 1. `machine` sets the GS base; 2. the thread is the one CPU, and
// nothing interrupts it; 3. and 4. those above; 5. `on_fault` asks, and no test reads memory where
// something is mapped but its own; 6. there is none; 7. it is not implemented.
unsafe impl Agent for Process {
    const RING_PAGES: usize = 4;

    fn task_key() -> u64 {
        2
    }

    fn task_name() -> [u64; 2] {
        [u64::from_le_bytes(*b"cat\0\0\0\0\0"), 0]
    }

    fn possible_cpus() -> usize {
        1
    }

    fn keep_cpu(work: &mut dyn FnMut()) {
        work();
    }

    fn now() -> u64 {
        NOW.load(Relaxed)
    }

    fn tsc_hz() -> u64 {
        500_000_000
    }

    fn write_task_name(task: u32, to: &mut dyn fmt::Write) -> fmt::Result {
        write!(to, "task {task}")
    }
}

/// Mends faults of programs; all others end the process.
extern "C" fn on_fault(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes the context of the code that faulted.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let mut regs = PtRegs::default();
    let mut exchange = |store: bool| {
        macro_rules! each {
            ($($name:ident $field:ident)+) => {
                $(
                    let place = &mut registers[libc::$name as usize];
                    match store {
                        true => *place = regs.$field as i64,
                        false => regs.$field = *place as u64,
                    }
                )+
            };
        }
        each! {
            REG_RAX ax REG_RCX cx REG_RDX dx REG_RBX bx REG_RBP bp REG_RSI si REG_RDI di
            REG_R8 r8 REG_R9 r9 REG_R10 r10 REG_R11 r11 REG_R12 r12 REG_R13 r13 REG_R14 r14
            REG_R15 r15 REG_RIP ip
        }
        if !store && !TRACING.mend(&mut regs) {
            std::process::abort();
        }
    };
    exchange(false);
    exchange(true);
}

/// The process as the one CPU, until the value is dropped.
fn machine() -> MutexGuard<'static, ()> {
    const ARCH_SET_GS: libc::c_int = 0x1001;
    static ONE: Mutex<()> = Mutex::new(());
    static HANDLER: Once = Once::new();
    let guard = ONE.lock().unwrap_or_else(|error| error.into_inner());
    HANDLER.call_once(|| {
        // SAFETY: all zero is an action without flags and mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: the handler only touches the context and atomics.
        let done = unsafe { libc::sigaction(libc::SIGSEGV, &action, null_mut()) };
        assert_eq!(done, 0);
    });
    let base = NonNull::from(&CPU).addr().get();
    CPU.probes.init(0);
    CPU.tracing.init(0, base as u64);
    CPU.tracing.task_switched(7, 7);
    // SAFETY: nothing in a Linux process uses GS.
    let done = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, base) };
    assert_eq!(done, 0);
    NOW.store(0, Relaxed);
    guard
}

/// A kernel without functions.
struct Nothing;

fn unavailable() -> Unavailable {
    Unavailable {
        reason: "nothing is known".into(),
        help: "leave it out".into(),
    }
}

impl Kernel for Nothing {
    fn functions(&self, _: &str) -> Vec<Function> {
        Vec::new()
    }

    fn inlined(&self, _: &str) -> Vec<u64> {
        Vec::new()
    }

    fn line(&self, _: &str, _: u32) -> Result<Vec<u64>, Unavailable> {
        Err(unavailable())
    }

    fn variables(&self, _: ProbePlace) -> Vec<String> {
        Vec::new()
    }

    fn variable(&self, _: ProbePlace, _: &str) -> Result<Variable, Unavailable> {
        Err(unavailable())
    }

    fn returned(&self, _: u64) -> Result<Variable, Unavailable> {
        Err(unavailable())
    }

    fn describe(&self, _: TypeId) -> Rc<Type> {
        Rc::new(Type::Unit)
    }

    fn global(&self, _: &str) -> Result<Variable, Unavailable> {
        Err(unavailable())
    }

    fn nearest(&self, _: &str) -> Vec<String> {
        Vec::new()
    }
}

impl Symbolize for Nothing {
    fn symbol(&self, _: u64) -> Option<symbols::Symbol> {
        None
    }
}

fn compiled_text(text: &str) -> Compiled {
    let shown = |errors: Vec<trace_language::Diagnostic>| -> Vec<String> {
        errors
            .iter()
            .map(|error| error.show(text).to_string())
            .collect()
    };
    let tree = trace_language::parse(text).map_err(shown).unwrap();
    compile(&tree, &Nothing, &Options::default())
        .map_err(shown)
        .unwrap()
}

/// The answers as text, and as they came.
struct Reader {
    presentation: Presentation,
    text: String,
    frames: Vec<Frame>,
}

impl Outlet for Reader {
    fn send(&mut self, frame: &Frame) {
        let frame = Frame::decode(&frame.encode()).unwrap();
        let shown = self.presentation.frame(&frame, &Nothing, &mut self.text);
        drop(shown.unwrap());
        self.frames.push(frame);
    }
}

impl Reader {
    fn of(compiled: &Compiled) -> Self {
        Self {
            presentation: Presentation::new(compiled.view.clone()),
            text: String::new(),
            frames: Vec::new(),
        }
    }
}

/// Runs a script to its end, with the clock at these times one after the other.
fn run(compiled: Compiled, times: &[u64]) -> Result<Reader, Refusal> {
    let mut reader = Reader::of(&compiled);
    let mut session = Session::<Process>::start(&compiled.script, How::default(), &mut reader)?;
    for time in times {
        NOW.store(*time, Relaxed);
        while session.serve(&mut reader) {}
    }
    session.end(&mut reader);
    Ok(reader)
}

/// What the last frame says.
struct Closed<'r> {
    /// Hits and misses of each attachment.
    books: Vec<(u64, u64)>,
    bad_loads: u64,
    lost: &'r [(String, u64)],
}

fn closed(reader: &Reader) -> Closed<'_> {
    let Some(Frame::Ended {
        books,
        bad_loads,
        lost,
        ..
    }) = reader.frames.last()
    else {
        panic!("{:?}", reader.frames.last());
    };
    let books = books.iter().map(|books| (books.hits, books.missed));
    Closed {
        books: books.collect(),
        bad_loads: *bad_loads,
        lost,
    }
}

/// Programs of all kinds of maps and records, at the begin. They say the same as the reference.
#[test]
fn a_script_does_what_the_reference_does() {
    let texts = [
        "BEGIN { @n = 5; @n += 2; @k[\"b\", 2] = 7; @k[\"a\", 1] = 3; @k[\"a\", 1]++; }",
        "BEGIN { @s = sum(3); @h = hist(100); @c[pid] = count(); @m = max(9); @a = avg(4); }",
        "BEGIN { printf(\"%d %s %s\\n\", 7, \"a text\", comm); print((1, \"two\")); }",
        "BEGIN { @k[1] = 2; print(@k); clear(@k); @k[3] = 4; print(@k); @z = 1; zero(@z); }",
        "BEGIN { @k[1] = 1; delete(@k, 1); @k[5] = 6; printf(\"%d\\n\", len(@k)); }",
        "BEGIN { $i = 0; while ($i < 5) { @sum += $i; $i++; } if (@sum == 10) { print(@sum); } }",
        "BEGIN { @l = lhist(7, 0, 20, 5); @strings[\"long enough for a word or two\"] = 1; }",
    ];
    for text in texts {
        let _machine = machine();
        let both = compiled_text(text);
        let mut world = World::new(&both.script, both.view, Box::new(Nothing));
        let reader =
            run(compiled_text(text), &[]).unwrap_or_else(|refusal| panic!("{}", refusal.text));
        for attachment in both.script.attachments {
            let Attachment::Begin { program } = attachment else {
                panic!("{attachment:?}");
            };
            world.run(program, &Hit::default());
        }
        let wanted = world.end();
        // The books are other ones.
        let before_books = |text: &str| {
            let lines = text
                .lines()
                .take_while(|line| !line.contains(" recorded + "));
            lines.collect::<Vec<_>>().join("\n")
        };
        assert_eq!(before_books(&reader.text), before_books(&wanted), "{text}");
        let closed = closed(&reader);
        assert_eq!(closed.books, [(1, 0)], "{text}");
        assert_eq!((closed.bad_loads, closed.lost), (0, &[][..]), "{text}");
    }
}

/// A reader to whom maps are on the way while hits go on: each time, 5 are counted.
struct Slow<'s> {
    reader: Reader,
    count: &'s AtomicU64,
}

impl Outlet for Slow<'_> {
    fn send(&mut self, frame: &Frame) {
        if matches!(frame, Frame::Map { .. }) {
            self.count.fetch_add(5, Relaxed);
        }
        self.reader.send(frame);
    }
}

/// What is counted while a map is sent that is emptied next is not taken away with the rest.
#[test]
fn a_map_that_is_printed_and_emptied_is_empty_before_it_is_sent() {
    for (then, shown) in [
        ("clear(@c);", "@c: 77\nbetween\n@c: 5\n"),
        ("zero(@c);", "@c: 77\nbetween\n@c: 5\n"),
        ("print(@c); zero(@c);", "@c: 77\nbetween\n@c: 82\n@c: 5\n"),
        ("@t = 1; clear(@t);", "@c: 77\nbetween\n@c: 82\n"),
    ] {
        let _machine = machine();
        let counts = "unroll (77) { @c = count(); }";
        let prints = "print(@c); printf(\"between\\n\");";
        let compiled = compiled_text(&format!("BEGIN {{ {counts} {prints} {then} }}"));
        let mut reader = Reader::of(&compiled);
        let start = Session::<Process>::start(&compiled.script, How::default(), &mut reader);
        let mut session = start.unwrap_or_else(|refusal| panic!("{}", refusal.text));
        let mut count = None;
        session.for_each_map_part(|_, part| {
            let address = ptr::with_exposed_provenance::<AtomicU64>(part.address as usize);
            // SAFETY: the part has so many words, which are atomic and live as long as the session.
            let words = unsafe { std::slice::from_raw_parts(address, part.layout.bytes() / 8) };
            count = count.or(words.iter().find(|word| word.load(Relaxed) == 77));
        });
        let count = count.expect("the map has it");
        let mut slow = Slow { reader, count };
        while session.serve(&mut slow) {}
        session.end(&mut slow);
        let text = &slow.reader.text;
        assert!(text.starts_with(shown), "{then}: {text}");
    }
}

/// An interval that the reader is late for runs once, and the others are missed.
#[test]
fn intervals_run_when_they_are_due() {
    let _machine = machine();
    let text = "interval:s:1 { @ticks = count(); } END { @end = 1; }";
    let times = [500, 1_000, 1_001, 4_500, 4_900].map(|ms| ms * 1_000_000);
    let reader = run(compiled_text(text), &times).unwrap();
    assert!(reader.text.contains("@ticks: 2\n"), "{}", reader.text);
    assert!(reader.text.contains("@end: 1\n"), "{}", reader.text);
    assert_eq!(closed(&reader).books, [(4, 2), (1, 0)]);
}

/// A load of memory that is not there gives 0 and is counted, in code and in helpers.
#[test]
fn loads_of_nothing_are_mended_and_counted() {
    let _machine = machine();
    let nowhere = "0xffff800000000010";
    let text = format!("BEGIN {{ @a = *(uint64*){nowhere} + 3; @t = str({nowhere}); }}");
    let before = TRACING.bad_loads();
    let reader = run(compiled_text(&text), &[]).unwrap();
    assert!(reader.text.contains("@a: 3\n"), "{}", reader.text);
    let bad_loads = closed(&reader).bad_loads;
    assert!(bad_loads >= 2, "{bad_loads}");
    assert_eq!(TRACING.bad_loads() - before, bad_loads);
}

/// Records for which the ring has no room are counted, and the script goes on.
#[test]
fn a_full_ring_is_in_the_books() {
    let _machine = machine();
    // Each has more than 64 bytes, and the ring has 16 KiB.
    let numbers = ["$i"; 8].join(", ");
    let print = format!("printf(\"%d%d%d%d%d%d%d%d\\n\", {numbers})");
    let text = format!("BEGIN {{ $i = 0; while ($i < 250) {{ {print}; $i++; }} }}");
    let reader = run(compiled_text(&text), &[]).unwrap();
    let records = reader.frames.iter();
    let records = records
        .filter(|frame| matches!(frame, Frame::Record { .. }))
        .count() as u64;
    let lost = closed(&reader).lost;
    let [(reason, count)] = lost else {
        panic!("{records} records, and lost {lost:?}");
    };
    assert_eq!(reason, "records: the trace buffer was full");
    assert_eq!(records + count, 250);
}

/// An array of the CPU's data would be written wherever the GS base that was not told leads.
#[test]
fn a_cpu_that_was_not_told_of_its_data_is_named() {
    let _machine = machine();
    let base = NonNull::from(&CPU).addr().get() as u64;
    for (number, told) in [(0, 0), (0, base + 8), (1, base)] {
        CPU.tracing.init(number, told);
        let refusal = run(compiled_text("BEGIN { @ = 1; }"), &[]).err().unwrap();
        assert!(refusal.text.contains("data of CPU 0"), "{}", refusal.text);
    }
    CPU.tracing.init(0, base);
    assert!(run(compiled_text("BEGIN { @ = 1; }"), &[]).is_ok());
}

/// What this machine has not is refused by its name, nothing is left, and the next script runs.
#[test]
fn what_is_not_here_is_refused_by_name() {
    let _machine = machine();
    let refused = |compiled: Compiled, name: &str| {
        let refusal = run(compiled, &[]).err().expect(name);
        assert!(refusal.text.contains(name), "{}", refusal.text);
        let reader = run(compiled_text("BEGIN { @after = 1; }"), &[]).unwrap();
        assert!(reader.text.contains("@after: 1\n"), "{}", reader.text);
    };
    // The compiler knows what this kernel lacks, so the agent is asked with another place.
    let placed = |text: &str, place: fn(u32) -> Attachment| {
        let mut compiled = compiled_text(text);
        for attachment in &mut compiled.script.attachments {
            if let Attachment::Profile { program, .. } = *attachment {
                *attachment = place(program);
            }
        }
        compiled
    };
    let in_interval = |program| Attachment::Interval {
        program,
        nanoseconds: 1,
    };
    let at_source = |program| Attachment::Source {
        program,
        name: "sched:sched_switch".into(),
    };
    let count = "profile:hz:99 { @ = count(); }";
    let [kernel, user] =
        ["kstack", "ustack"].map(|stack| format!("profile:hz:99 {{ @[{stack}] = count(); }}"));
    refused(placed(&kernel, in_interval), "gives no call stacks");
    refused(placed(&user, in_interval), "call stacks");
    refused(compiled_text(count), "timer ticks");
    refused(
        placed(count, at_source),
        "event source `sched:sched_switch`",
    );
}
