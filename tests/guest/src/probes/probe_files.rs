//! The probes as files: exact texts of the lists, the knob, and reading while probes come and go.
//!
//! The files are `/sys/kernel/debug/kprobes/*` and `/proc/sys/debug/kprobes-optimization`, with
//! Linux's texts. They are read in steps of few bytes while probes come and go: a line is whole,
//! and a probe that was there throughout is in the list.

use crate::tools::numbered_targets::numbered_targets;
use abi::open;
use alloc::{
    boxed::Box,
    collections::BTreeMap,
    format,
    string::{String, ToString},
    sync::Arc,
    vec,
    vec::Vec,
};
use core::{
    hint::black_box,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};
use kernel::{
    arch::smp,
    errno::Errno,
    fs::{self, NodeRef},
    log,
    mm::init_text,
    probes::{
        Jprobe, Kernel, Kprobe, Kretprobe, KretprobeInstance, PROBES, PreVerdict, PtRegs, debugfs,
        disable_kprobe, enable_kprobe, jprobe, register, register_kprobe, register_kretprobe,
        unregister_kprobe, unregister_kprobes, unregister_kretprobe,
    },
    symbols,
    task::kthread::{spawn_kthread, spawn_kthread_on},
};
use probes::{Platform, kprobe::flags};

const LIST: &str = "/sys/kernel/debug/kprobes/list";
const STATS: &str = "/sys/kernel/debug/kprobes/stats";
const BLACKLIST: &str = "/sys/kernel/debug/kprobes/blacklist";
const ENABLED: &str = "/sys/kernel/debug/kprobes/enabled";
const KALLSYMS: &str = "/proc/kallsyms";

/// Reads a file to its end, in pieces of `step` bytes.
fn read_in_steps(path: &str, step: usize) -> String {
    let file = fs::open(path, open::RDONLY).unwrap();
    let mut text = Vec::new();
    let mut buf = vec![0; step];
    loop {
        match file.read_at(text.len() as u64, &mut buf).unwrap() {
            0 => return String::from_utf8(text).unwrap(),
            len => text.extend_from_slice(&buf[..len]),
        }
    }
}

fn read(path: &str) -> String {
    read_in_steps(path, 4096)
}

fn write(path: &str, text: &[u8]) -> Result<usize, Errno> {
    fs::open(path, open::WRONLY)?.write_at(0, text)
}

numbered_targets! { listed_one 301 listed_two 302 listed_three 303 listed_recursion_end 304 }

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn listed_recursion(depth: u64) -> u64 {
    match depth {
        0 => listed_recursion_end(0),
        _ => black_box(listed_recursion(black_box(depth - 1)) + 1),
    }
}

fn address(name: &str) -> u64 {
    symbols::lookup_name(name)
        .expect("a function of this file")
        .start
}

fn first_byte(name: &str) -> u8 {
    // SAFETY: kernel text is mapped and readable for ever.
    unsafe { (address(name) as *const u8).read_volatile() }
}

/// Offset of the second instruction of the function.
fn second_instruction(name: &str) -> u64 {
    let symbol = symbols::lookup_name(name).unwrap();
    let judged = kernel::probes::survey::function(&symbol).unwrap();
    judged[1].insn.ip() - symbol.start
}

static HITS: AtomicU64 = AtomicU64::new(0);

fn count(_probe: &Kprobe, _regs: &mut PtRegs) -> PreVerdict {
    HITS.fetch_add(1, SeqCst);
    PreVerdict::Execute
}

/// A handler that runs into its own probe.
fn call_again(_probe: &Kprobe, _regs: &mut PtRegs) -> PreVerdict {
    listed_two(black_box(1));
    PreVerdict::Execute
}

fn on_return(_call: &mut KretprobeInstance<()>, _regs: &mut PtRegs) {}

jprobe! {
    fn mirror(_a: u64) {}
}

/// Texts of the log that contain `part`.
fn logged(part: &str) -> usize {
    log::history()
        .filter(|record| String::from_utf8_lossy(record.text()).contains(part))
        .count()
}

/// Turns the knob on again, even if the test fails before it does so itself.
struct KnobOff;

impl KnobOff {
    fn new() -> Self {
        write(ENABLED, b"0").unwrap();
        Self
    }
}

impl Drop for KnobOff {
    fn drop(&mut self) {
        write(ENABLED, b"1").unwrap();
    }
}

#[guest_test]
fn list_of_no_probes_is_empty() {
    assert_eq!(read(LIST), "");
    assert_eq!(read(STATS), "");
}

/// Siblings come newest first, a jprobe last; marks follow the blank that stands for the module.
#[guest_test]
fn list_shows_each_probe_in_the_format_of_linux() {
    let old = register(Box::new(Kprobe::new().symbol("listed_one").pre(count))).unwrap();
    let jprobe = register(Box::new(Jprobe::new().symbol("listed_one").entry(mirror))).unwrap();
    let returned = register(Box::new(
        Kretprobe::<()>::new()
            .symbol("listed_one")
            .handler(on_return),
    ))
    .unwrap();
    let disabled = register(Box::new(Kprobe::new().symbol("listed_one").disabled())).unwrap();
    let at = address("listed_one");
    let expected = format!(
        "{at:016x}  k  listed_one+0x0    [DISABLED]\n\
         {at:016x}  r  listed_one+0x0    \n\
         {at:016x}  k  listed_one+0x0    \n\
         {at:016x}  j  listed_one+0x0    \n"
    );
    assert_eq!(read(LIST), expected);
    assert_eq!(read_in_steps(LIST, 7), expected, "in small pieces");
    enable_kprobe(&disabled).unwrap();
    assert_eq!(read(LIST), expected.replace("[DISABLED]", ""));
    disable_kprobe(&old).unwrap();
    drop((jprobe, returned, disabled));
    assert_eq!(
        read(LIST),
        format!("{at:016x}  k  listed_one+0x0    [DISABLED]\n")
    );
    drop(old);
    assert_eq!(read(LIST), "");
}

#[guest_test(cmdline = "kprobes.optimize=0")]
fn list_shows_offset_and_rust_name() {
    let offset = second_instruction("listed_two");
    let probe = register(Box::new(
        Kprobe::new().symbol("listed_two").offset(offset as u32),
    ))
    .unwrap();
    let at = address("listed_two") + offset;
    assert_eq!(
        read(LIST),
        format!("{at:016x}  k  listed_two+{offset:#x}    \n")
    );
    drop(probe);

    // Names are those of the linker, which contain no blanks.
    let symbol = symbols::functions()
        .find(|symbol| symbol.to_string() == "kernel::init::load_modules")
        .expect("a Rust function with a mangled name");
    let probe = register(Box::new(Kprobe::new().at(symbol.start))).unwrap();
    assert_eq!(
        read(LIST),
        format!("{:016x}  k  {}+0x0    \n", symbol.start, symbol.name)
    );
    drop(probe);
}

/// The third column's text for a place that has no symbol.
#[guest_test]
fn place_without_symbol_shows_as_its_address() {
    assert_eq!(debugfs::SymbolAt(0x1234).to_string(), "0x1234");
    assert_eq!(
        debugfs::SymbolAt(address("listed_one") + 2).to_string(),
        "listed_one+0x2"
    );
}

/// A probe on text that was freed stays listed, and is marked.
#[guest_test(cmdline = "early=kprobe_example kprobe_example.symbol=kernel::init::finish_boot")]
fn list_marks_probes_on_freed_text() {
    assert!(init_text::is_freed());
    let symbol = symbols::lookup_name("kernel::init::finish_boot").unwrap();
    let line = format!("{:016x}  k  {}+0x0    [GONE]\n", symbol.start, symbol.name);
    assert_eq!(read(LIST), line);
    assert_eq!(PROBES.detours_in_use(), 0, "it had no jump either");
    // The knob leaves it alone: its memory is not mapped any more.
    drop(KnobOff::new());
    assert_eq!(read(LIST), line);
    // That it is disabled, too, is not told.
    let mut gone: *const Kprobe = core::ptr::null();
    PROBES.for_each(|listed| gone = listed.probe);
    // SAFETY: the module is loaded, and its probe lives as long.
    disable_kprobe(unsafe { &*gone }).unwrap();
    PROBES.for_each(|listed| {
        assert_eq!(
            listed.probe.flags() & (flags::GONE | flags::DISABLED),
            flags::GONE | flags::DISABLED
        )
    });
    assert_eq!(read(LIST), line);
    kernel::module::unload("kprobe_example").unwrap();
    assert_eq!(read(LIST), "");
}

#[guest_test]
fn stats_count_hits_and_misses() {
    let plain = register(Box::new(Kprobe::new().symbol("listed_one").pre(count))).unwrap();
    let nested = register(Box::new(Kprobe::new().symbol("listed_two").pre(call_again))).unwrap();
    let returns = register(Box::new(
        Kretprobe::<()>::new()
            .symbol("listed_recursion")
            .maxactive(2)
            .handler(on_return),
    ))
    .unwrap();
    for n in 0..3 {
        listed_one(black_box(n));
    }
    listed_two(black_box(1));
    assert_eq!(listed_recursion(black_box(4)), 308);
    let line = |name, kind, hits, misses| {
        format!(
            "{:016x}  {kind}  {name}+0x0  {hits} {misses}\n",
            address(name)
        )
    };
    let mut expected = [
        line("listed_one", 'k', 3, 0),
        // Its handler's call of the same function runs no handlers.
        line("listed_two", 'k', 1, 1),
        // Five calls at once, of which two have an instance.
        line("listed_recursion", 'r', 2, 3),
    ];
    expected.sort();
    let text = read(STATS);
    let mut lines: Vec<_> = text.split_inclusive('\n').collect();
    lines.sort();
    assert_eq!(lines, expected);
    drop((plain, nested, returns));
}

#[guest_test]
fn blacklist_names_each_function_that_may_not_be_probed() {
    let text = read(BLACKLIST);
    let (mut end_before, mut followed) = (0, 0);
    let mut names = Vec::new();
    for line in text.lines() {
        let (range, name) = line.split_once('\t').expect("a tab before the symbol");
        let (start, end) = range
            .split_once('-')
            .expect("a minus sign between the addresses");
        let parse = |text: &str| {
            assert_eq!(text.len(), 18, "{line}");
            u64::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap()
        };
        let (start, end) = (parse(start), parse(end));
        assert!(end_before <= start && start < end, "{line}");
        end_before = end;
        assert_eq!(
            symbols::lookup_addr(start).map(|symbol| symbol.name),
            Some(name)
        );
        static PROBE: Kprobe = Kprobe::new();
        for at in start..end {
            PROBE.set_addr(at);
            let error = register_kprobe(&PROBE).expect_err(line);
            assert_eq!(
                (error.name(), error.errno()),
                ("Blacklisted", 22),
                "{line} at {at:#x}"
            );
        }
        // The next one may begin there, or padding that is refused with it.
        if symbols::lookup_addr(end).is_some() && !text.contains(&format!("{end:#018x}-")) {
            followed += 1;
            assert_eq!(Kernel::blacklisted(end), None, "{line}");
        }
        names.push(symbols::lookup_addr(start).unwrap().to_string());
    }
    assert!(followed > 0, "no other function follows one of them");
    for name in [
        "kretprobe_trampoline",
        "__switch_to",
        "kernel::arch::x86_64::traps::do_breakpoint",
    ] {
        assert!(
            names.iter().any(|other| other == name),
            "{name} is not in {names:?}"
        );
    }
}

/// No function is refused as one that a hit runs through and yet missing in the file.
#[guest_test(timeout = 120)]
fn blacklist_leaves_out_no_function_that_is_refused() {
    let text = read(BLACKLIST);
    let listed: BTreeMap<u64, u64> = text
        .lines()
        .map(|line| {
            let number = |text: &str| u64::from_str_radix(&text[2..], 16).unwrap();
            (number(&line[..18]), number(&line[19..37]))
        })
        .collect();
    let is_listed = |at: u64| {
        let before = listed.range(..=at).next_back();
        before.is_some_and(|(_, end)| at < *end)
    };
    let mut refused = 0;
    for symbol in symbols::functions() {
        // Nothing can be said of freed text.
        let Ok(judged) = kernel::probes::survey::function(&symbol) else {
            continue;
        };
        for judged in judged {
            if matches!(&judged.verdict, Err(error) if error.name() == "Blacklisted") {
                refused += 1;
                assert!(is_listed(judged.insn.ip()), "{symbol} is not in the file");
            }
        }
    }
    assert!(refused > 1_000, "{refused} instructions are refused");
}

/// Each spelling that Linux takes, and what it does not take; only the first letters count.
#[guest_test]
fn knob_takes_the_spellings_of_linux() {
    assert_eq!(read(ENABLED), "1\n");
    for off in [
        "n", "N", "f", "F", "0", "of", "OFF", "oF\n", "no", "0\n", "false", "0000000",
    ] {
        assert_eq!(write(ENABLED, off.as_bytes()), Ok(off.len()), "{off}");
        assert_eq!(read(ENABLED), "0\n", "{off}");
        for on in [
            "y", "Y", "t", "T", "1", "on", "ON", "oN\n", "yes", "1\n", "true", "1x",
        ] {
            assert_eq!(write(ENABLED, on.as_bytes()), Ok(on.len()), "{on}");
            assert_eq!(read(ENABLED), "1\n", "{on}");
        }
    }
    for wrong in [
        "", "\n", " 1", "2", "o", "O", "ox", "enable", "-1", "x0", "\0", "\u{661}",
    ] {
        assert_eq!(
            write(ENABLED, wrong.as_bytes()),
            Err(Errno::EINVAL),
            "{wrong}"
        );
        assert_eq!(read(ENABLED), "1\n", "{wrong}");
        let off = KnobOff::new();
        assert_eq!(
            write(ENABLED, wrong.as_bytes()),
            Err(Errno::EINVAL),
            "{wrong}"
        );
        assert_eq!(read(ENABLED), "0\n", "{wrong}");
        drop(off);
    }
}

/// Off: every breakpoint leaves the text. On: those of enabled probes come back. No mark changes.
#[guest_test(cmdline = "kprobes.optimize=0")]
fn knob_disarms_and_rearms_without_changing_any_probes_state() {
    HITS.store(0, SeqCst);
    let original = ["listed_one", "listed_two", "listed_three"].map(first_byte);
    let bytes = || ["listed_one", "listed_two", "listed_three"].map(first_byte);
    let live = register(Box::new(Kprobe::new().symbol("listed_one").pre(count))).unwrap();
    let disabled = register(Box::new(
        Kprobe::new().symbol("listed_two").pre(count).disabled(),
    ))
    .unwrap();
    let list = read(LIST);
    assert_eq!(bytes(), [0xcc, original[1], original[2]]);
    listed_one(1);
    assert_eq!(HITS.load(SeqCst), 1);

    let off = KnobOff::new();
    assert_eq!(bytes(), original);
    assert_eq!(read(LIST), list);
    // Registered while it is off: accepted, and not armed.
    let late = register(Box::new(Kprobe::new().symbol("listed_three").pre(count))).unwrap();
    let gone = register(Box::new(Kprobe::new().symbol("listed_three").pre(count))).unwrap();
    assert_eq!(bytes(), original);
    assert!(!read(LIST).contains("listed_three+0x0    [DISABLED]"));
    drop(gone);
    for n in 0..3 {
        listed_one(black_box(n));
        listed_three(black_box(n));
    }
    assert_eq!(HITS.load(SeqCst), 1);

    drop(off);
    assert_eq!(bytes(), [0xcc, original[1], 0xcc]);
    listed_one(1);
    listed_two(1);
    listed_three(1);
    assert_eq!(HITS.load(SeqCst), 3);
    drop((live, disabled, late));
    assert_eq!(bytes(), original);
}

/// Enabling and disabling one probe while the knob is off shows at once, and takes effect when it
/// is turned on.
#[guest_test(cmdline = "kprobes.optimize=0")]
fn one_probe_is_enabled_and_disabled_while_the_knob_is_off() {
    let original = first_byte("listed_one");
    let (first, second) = (
        register(Box::new(
            Kprobe::new().symbol("listed_one").pre(count).disabled(),
        ))
        .unwrap(),
        register(Box::new(Kprobe::new().symbol("listed_two").pre(count))).unwrap(),
    );
    let other = first_byte("listed_two");
    assert_eq!(other, 0xcc);
    let off = KnobOff::new();
    enable_kprobe(&first).unwrap();
    disable_kprobe(&second).unwrap();
    assert_eq!(first_byte("listed_one"), original);
    let list = read(LIST);
    assert!(
        list.contains("listed_one+0x0    \n") && list.contains("listed_two+0x0    [DISABLED]\n"),
        "{list}"
    );
    drop(off);
    assert_eq!(first_byte("listed_one"), 0xcc);
    assert_ne!(first_byte("listed_two"), 0xcc);
    assert_eq!(read(LIST), list);
    // A round without a change of mind leaves it so.
    drop(KnobOff::new());
    assert_eq!(first_byte("listed_one"), 0xcc);
    assert_ne!(first_byte("listed_two"), 0xcc);
    drop((first, second));
}

/// Readers that find the registry taken by a registration sleep. Each one that gives it back wakes
/// the next.
#[guest_test(smp = 4)]
fn all_cpus_read_the_knob_while_probes_come_and_go() {
    let readers: Vec<_> = (0..smp::online_cpus())
        .map(|cpu| {
            let read_often = || {
                for _ in 0..1000 {
                    assert_eq!(read(ENABLED), "1\n");
                }
            };
            spawn_kthread_on(1 << cpu, "reads", read_often).unwrap()
        })
        .collect();
    for _ in 0..100 {
        drop(register(Box::new(Kprobe::new().symbol("listed_one").pre(count))).unwrap());
    }
    for reader in readers {
        reader.wait_released();
    }
}

/// Turning the knob logs one line; writing what it is already logs nothing.
#[guest_test]
fn knob_logs_each_change_once() {
    let (on, off) = ("kprobes globally enabled", "kprobes globally disabled");
    let before = (logged(on), logged(off));
    write(ENABLED, b"1").unwrap();
    assert_eq!((logged(on), logged(off)), before);
    write(ENABLED, b"0").unwrap();
    write(ENABLED, b"n").unwrap();
    assert_eq!((logged(on), logged(off)), (before.0, before.1 + 1));
    write(ENABLED, b"1").unwrap();
    write(ENABLED, b"y").unwrap();
    assert_eq!((logged(on), logged(off)), (before.0 + 1, before.1 + 1));
}

/// The same for the knob of jumps.
#[guest_test]
fn knob_of_jumps_logs_each_change_once() {
    let message = |on| match on {
        true => "kprobe jump-optimization is enabled",
        false => "kprobe jump-optimization is disabled",
    };
    let count = || (logged(message(true)), logged(message(false)));
    let was = PROBES.optimization();
    let before = count();
    PROBES.set_optimization(was).unwrap();
    assert_eq!(count(), before);
    for on in [!was, !was, was, was] {
        PROBES.set_optimization(on).unwrap();
    }
    assert_eq!(count(), (before.0 + 1, before.1 + 1));
}

#[guest_test]
fn files_have_the_modes_of_linux() {
    for (path, mode) in [
        (LIST, 0o400),
        (STATS, 0o400),
        (BLACKLIST, 0o400),
        (ENABLED, 0o600),
        (KALLSYMS, 0o444),
    ] {
        let attributes = fs::attributes(&NodeRef::root(), path.as_bytes()).unwrap();
        assert_eq!(attributes.mode & 0o777, mode, "{path}");
        let writable = fs::open(path, open::WRONLY).map(drop);
        assert_eq!(writable.is_ok(), mode & 0o200 != 0, "{path}: {writable:?}");
    }
}

#[guest_test]
fn kallsyms_lists_all_symbols_by_address() {
    let text = read(KALLSYMS);
    let mut before = 0;
    let mut count = 0;
    for (line, symbol) in text.lines().zip(symbols::all()) {
        assert_eq!(
            line,
            format!("{:016x} {} {}", symbol.start, symbol.letter(), symbol.name)
        );
        assert!(before <= symbol.start, "{line}");
        before = symbol.start;
        count += 1;
    }
    assert_eq!(
        (count, count),
        (text.lines().count(), symbols::all().count())
    );
    assert!(count > 1000);
    let at = address("vfs_read");
    assert!(text.contains(&format!("\n{at:016x} T vfs_read\n")));
}

/// One CPU registers and unregisters; the other reads. Each reading has every probe that stays
/// exactly once, siblings in their order, and no line is torn.
#[guest_test(timeout = 120, cmdline = "kprobes.optimize=0")]
fn lists_are_whole_while_probes_come_and_go() {
    const STAY: usize = 24;
    let symbol = symbols::lookup_name("vfs_read").unwrap();
    let judged = kernel::probes::survey::function(&symbol).unwrap();
    let places: Vec<u64> = judged
        .iter()
        .filter(|judged| judged.verdict.is_ok())
        .map(|judged| judged.insn.ip())
        .collect();
    assert!(places.len() > 2 * STAY);
    let leak = |probe: Kprobe| -> &'static Kprobe { Box::leak(Box::new(probe)) };
    let staying: Vec<_> = places[..STAY]
        .iter()
        .map(|at| leak(Kprobe::new().at(*at).disabled()))
        .collect();
    for probe in &staying {
        register_kprobe(probe).unwrap();
    }

    let stop = Arc::new(AtomicBool::new(false));
    let changer = {
        let stop = stop.clone();
        let places = places.clone();
        spawn_kthread_on(1 << 1, "changer", move || {
            let coming: Vec<_> = places.iter().map(|_| leak(Kprobe::new())).collect();
            static RETURNS: Kretprobe = Kretprobe::new().symbol("listed_three");
            while !stop.load(SeqCst) {
                for (probe, at) in coming.iter().zip(&places) {
                    probe.set_addr(*at);
                    register_kprobe(probe).unwrap();
                }
                register_kretprobe(&RETURNS).unwrap();
                unregister_kprobes(&coming[..STAY]).unwrap();
                unregister_kretprobe(&RETURNS).unwrap();
                unregister_kprobes(&coming[STAY..]).unwrap();
            }
        })
        .unwrap()
    };
    let reader = spawn_kthread("reader", move || {
        let names: Vec<_> = places[..STAY]
            .iter()
            .map(|at| format!("{at:016x}"))
            .collect();
        let mut sizes = BTreeMap::new();
        let mut readings = 0;
        // The other CPU may begin late. If nothing ever comes or goes, the test's time runs out.
        while readings < 200 || sizes.len() < 2 {
            readings += 1;
            let text = read_in_steps(LIST, 1000);
            for line in text.lines() {
                let fields: Vec<_> = line.split_whitespace().collect();
                assert!(
                    fields.len() >= 3 && fields[0].len() == 16 && fields[1].len() == 1,
                    "{line}"
                );
                assert!(matches!(fields[3..], [] | ["[DISABLED]"]), "{line}");
            }
            for name in &names {
                let times = text
                    .lines()
                    .filter(|line| line.starts_with(name.as_str()) && line.ends_with("[DISABLED]"))
                    .count();
                assert_eq!(times, 1, "{name} in\n{text}");
            }
            assert!(
                read(STATS)
                    .lines()
                    .filter(|line| line.ends_with(" 0 0"))
                    .count()
                    >= STAY
            );
            *sizes.entry(text.lines().count()).or_insert(0) += 1;
        }
    })
    .unwrap();
    reader.wait_released();
    stop.store(true, SeqCst);
    changer.wait_released();
    for probe in &staying {
        unregister_kprobe(probe).unwrap();
    }
    assert_eq!(read(LIST), "");
}
