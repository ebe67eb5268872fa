//! Reading: `trace`, `trace_pipe`, the files of each CPU, and messages about records that are gone.
//!
//! `trace` shows what is there and leaves it, `trace_pipe` takes it away and waits for more. Both
//! merge the CPUs' rings by time. Records that are gone are told where they were, and the profile
//! and the statistics count them.

use super::*;
use crate::tools::jumps::Optimization;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use kernel::{
    arch::{percpu, smp, traps},
    probes::PtRegs,
    sync::SpinLock,
    task::{TaskState, kthread::spawn_kthread_on, schedule},
};
use x86_64::instructions::interrupts;

pub(super) fn define(line: &str) {
    append(line, "kprobe_events").unwrap();
    echo("1", "events/kprobes/enable").unwrap();
}

/// The hits and the misses of an event, from `kprobe_profile`.
pub fn profile(event: &str) -> (u64, u64) {
    let text = show("kprobe_profile");
    let words = text
        .lines()
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
        .find(|words| words.first() == Some(&event))
        .expect(&text);
    (words[1].parse().unwrap(), words[2].parse().unwrap())
}

/// A line of a file `stats`, by the text before its colon.
pub fn stat(cpu: usize, name: &str) -> u64 {
    let text = show(&format!("per_cpu/cpu{cpu}/stats"));
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}: ")));
    line.expect(&text).parse().unwrap()
}

/// The letters for interrupts off and for an interrupt, of a line of `trace`.
fn letters(line: &str) -> (&str, &str) {
    (&line[31..32], &line[33..34])
}

#[guest_test]
fn letters_tell_of_interrupts() {
    clean_up();
    define("p:seen traced_function number=%di:u64");
    append("r:back traced_function", "kprobe_events").unwrap();
    echo("1", "events/kprobes/enable").unwrap();
    call(1);
    interrupts::without_interrupts(|| call(2));
    traps::set_interrupt_handler(Some(|_| call(3)));
    interrupts::without_interrupts(|| {
        smp::send_ipi(percpu::cpu_id(), traps::SPARE_INTERRUPT);
    });
    while read("trace").unwrap().matches(" back: ").count() < 3 {
        core::hint::spin_loop();
    }
    traps::set_interrupt_handler(None);
    call(4);
    let text = show("trace");
    let state: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(letters)
        .collect();
    let (task, off, interrupt) = ((".", "."), ("d", "."), ("d", "h"));
    assert_eq!(
        state,
        [task, task, off, off, interrupt, interrupt, task, task],
        "{text}"
    );
    clean_up();
}

/// NMIs that have been handled.
static NMIS: AtomicU64 = AtomicU64::new(0);

/// Sends an NMI to this CPU, and waits until it has been handled.
fn take_nmi() {
    let before = NMIS.load(SeqCst);
    smp::send_nmi(percpu::cpu_id());
    while NMIS.load(SeqCst) == before {
        core::hint::spin_loop();
    }
}

/// An NMI in a task, and one in the handler of an interrupt, which is told again after it.
#[guest_test]
fn letters_tell_of_nmis_and_of_what_they_have_interrupted() {
    fn in_nmi(_: &PtRegs) {
        call(1);
        NMIS.fetch_add(1, SeqCst);
    }
    static INTERRUPTS: AtomicU64 = AtomicU64::new(0);
    for jumps in [true, false] {
        clean_up();
        let _knob = Optimization::set(jumps);
        define("p:seen traced_function number=%di:u64");
        traps::set_nmi_handler(Some(in_nmi));
        traps::set_interrupt_handler(Some(|_| {
            take_nmi();
            call(2);
            INTERRUPTS.fetch_add(1, SeqCst);
        }));
        take_nmi();
        call(3);
        let before = INTERRUPTS.load(SeqCst);
        interrupts::without_interrupts(|| {
            smp::send_ipi(percpu::cpu_id(), traps::SPARE_INTERRUPT);
        });
        while INTERRUPTS.load(SeqCst) == before {
            core::hint::spin_loop();
        }
        traps::set_interrupt_handler(None);
        traps::set_nmi_handler(None);
        call(4);
        let text = show("trace");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let seen: Vec<_> = lines
            .map(|line| (&line[33..34], line.rsplit('=').next()))
            .collect();
        let expected = [("z", "1"), (".", "3"), ("Z", "1"), ("h", "2"), (".", "4")];
        assert_eq!(
            seen,
            expected.map(|(letter, number)| (letter, Some(number))),
            "{text}"
        );
    }
    clean_up();
}

/// The letter between these two: another task is to have the CPU as soon as this one may be
/// preempted. The task that calls has set that itself, so that no tick decides it.
#[guest_test]
fn a_letter_tells_that_another_task_is_to_have_the_cpu() {
    for jumps in [true, false] {
        clean_up();
        let _knob = Optimization::set(jumps);
        define("p:seen traced_function number=%di:u64");
        interrupts::without_interrupts(|| {
            let before = percpu::this().need_resched();
            call(u64::from(before));
            percpu::this().set_need_resched();
            call(1);
        });
        let text = show("trace");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let seen: Vec<_> = lines
            .map(|line| (&line[32..33], line.ends_with("number=1")))
            .collect();
        let expected = |(letter, waits): &(&str, bool)| *letter == if *waits { "n" } else { "." };
        assert!(seen.len() == 2 && seen.iter().all(expected), "{text}");
        assert!(
            seen.iter().any(|(_, waits)| !waits),
            "no hit without it: {text}"
        );
    }
    clean_up();
}

/// A reader that sleeps because there is nothing to read is woken by the next record and gets it,
/// from the file of all CPUs and from that of one.
#[guest_test]
fn a_reader_that_waits_gets_the_next_record() {
    for name in ["trace_pipe", "per_cpu/cpu0/trace_pipe"] {
        clean_up();
        define("p:late traced_function number=%di:u64");
        let read = Arc::new(SpinLock::new(String::new()));
        let reader = {
            let read = read.clone();
            spawn_kthread_on(1 << 1, "reader", move || {
                let pipe = fs::open(&path(name), open::RDONLY).unwrap();
                let mut buf = vec![0; 512];
                for _ in 0..2 {
                    let len = pipe.read_at(0, &mut buf).unwrap();
                    *read.lock() += str::from_utf8(&buf[..len]).unwrap();
                }
            })
            .unwrap()
        };
        for number in [8, 9] {
            while reader.state() != TaskState::Sleeping {
                schedule();
            }
            assert_eq!(read.lock().lines().count(), number - 8, "{name}");
            on_cpu(0, move || call(number as u64));
            while read.lock().lines().count() < number - 7 {
                schedule();
            }
        }
        reader.wait_released();
        let text = read.lock().clone();
        let ends = |(line, number): (&str, &str)| line.ends_with(number);
        assert!(
            text.lines().zip([" number=8", " number=9"]).all(ends),
            "{name}: {text}"
        );
        // Both are taken out.
        assert_eq!(lines(), [""; 0], "{name}");
    }
    clean_up();
}

#[guest_test]
fn trace_has_its_header_and_stays_until_it_is_cleared() {
    clean_up();
    define("p:seen traced_function number=%di:u64");
    on_cpu(1, || call(1));
    let text = show("trace");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "# tracer: nop");
    assert_eq!(lines[1], "#");
    assert_eq!(lines[2], "# entries-in-buffer/entries-written: 1/1   #P:2");
    assert_eq!(lines.len(), 13, "{text}");
    let line = lines[12];
    assert!(line.starts_with("          caller-"), "{line}");
    assert_eq!(&line[25..31], "[001] ", "{line}");
    // Reading takes nothing.
    assert_eq!(show("trace"), text);
    assert_eq!(show("per_cpu/cpu0/trace").lines().count(), 12);
    assert_eq!(show("per_cpu/cpu1/trace").lines().last(), Some(line));
    echo("", "trace").unwrap();
    assert!(show("trace").contains("entries-written: 0/0 "));
    clean_up();
}

/// What is written to `trace_marker`.
fn mark(bytes: &[u8]) -> Result<usize, Errno> {
    write_bytes("trace_marker", bytes, 0)
}

/// Each write is a record, which stands where it belongs by time, with all of its text.
#[guest_test]
fn marks_stand_among_the_records() {
    clean_up();
    define("p:seen traced_function number=%di:u64");
    call(1);
    echo("the first part", "trace_marker").unwrap();
    call(2);
    for (bytes, shown) in [
        (&b"without an end"[..], "without an end"),
        (b"two\n\n", "two\n"),
        (b"a \xff b", "a \u{fffd} b"),
        ("\u{fc}ber".as_bytes(), "\u{fc}ber"),
        (b"ends\0here", "ends"),
        (b"\n", ""),
    ] {
        echo("", "trace").unwrap();
        assert_eq!(mark(bytes), Ok(bytes.len()));
        let text = show("trace");
        let (_, line) = text.split_once(": tracing_mark_write: ").expect(&text);
        assert_eq!(line, format!("{shown}\n"), "{text}");
    }
    echo("", "trace").unwrap();
    call(1);
    on_cpu(1, || assert_eq!(mark(b"from elsewhere"), Ok(14)));
    call(2);
    let lines = lines();
    let [first, written, last] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert!(first.contains("number=1") && last.contains("number=2"));
    assert_eq!(written, "tracing_mark_write: from elsewhere");
    let text = show("per_cpu/cpu1/trace");
    let line = text.lines().find(|line| line.ends_with("from elsewhere"));
    let line = line.expect(&text);
    assert!(line.starts_with("          caller-"), "{line}");
    assert_eq!(&line[25..31], "[001] ", "{line}");
    assert_eq!(letters(line), (".", "."), "interrupts were on: {line}");
    clean_up();
}

/// More than a record holds is for the next write. Without a record the writer is told so.
#[guest_test]
fn a_mark_is_recorded_or_refused() {
    clean_up();
    let long = vec![b'x'; 5000];
    let first = mark(&long).unwrap();
    assert!((1024..long.len()).contains(&first), "{first}");
    assert_eq!(mark(&long[first..]), Ok(long.len() - first));
    let written: String = lines()
        .iter()
        .map(|line| line.strip_prefix("tracing_mark_write: ").unwrap())
        .collect();
    assert_eq!(written.as_bytes(), long);
    let stats = || {
        (
            stat(0, "entries") + stat(1, "entries"),
            TRACING.buffer.written(),
        )
    };
    let before = stats();
    echo("0", "tracing_on").unwrap();
    assert_eq!(mark(b"off"), Err(Errno::EBADF));
    assert_eq!(stats(), before);
    echo("1", "tracing_on").unwrap();
    assert_eq!(read("trace_marker"), Err(Errno::EACCES));
    clean_up();
}

#[guest_test]
fn records_of_all_cpus_come_in_the_order_of_time() {
    clean_up();
    define("p:turn traced_function number=%di:u64");
    for number in 0..20 {
        on_cpu(number as usize % 2, move || call(number));
    }
    let numbers = |text: &str| -> Vec<u64> {
        let last = |line: &str| {
            line.rsplit_once('=')
                .map(|(_, number)| number.parse().unwrap())
        };
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(last)
            .collect()
    };
    assert_eq!(numbers(&show("trace")), (0..20).collect::<Vec<_>>());
    let odd: Vec<u64> = (0..10).map(|half| 2 * half + 1).collect();
    assert_eq!(numbers(&show("per_cpu/cpu1/trace")), odd);
    // The pipe of one CPU leaves the records of the others.
    let read_pipe = |name: &str| {
        let pipe = fs::open(&path(name), open::RDONLY | open::NONBLOCK).unwrap();
        let mut text = String::new();
        let mut buf = vec![0; 512];
        loop {
            match pipe.read_at(0, &mut buf) {
                Ok(len) => text += str::from_utf8(&buf[..len]).unwrap(),
                Err(errno) => {
                    assert_eq!(errno, Errno::EAGAIN);
                    return text;
                }
            }
        }
    };
    assert_eq!(numbers(&read_pipe("per_cpu/cpu1/trace_pipe")), odd);
    assert_eq!(
        numbers(&show("trace")),
        odd.iter().map(|odd| odd - 1).collect::<Vec<_>>()
    );
    let rest = read_pipe("trace_pipe");
    assert!(!rest.contains('#'), "{rest}");
    assert_eq!(numbers(&rest).len(), 10);
    assert_eq!(lines(), [""; 0]);
    clean_up();
}

/// The records of the other CPU stay when the size of one is changed, and both of its buffers have
/// that size: the live one and that of snapshots.
#[guest_test(smp = 2)]
fn a_cpu_can_have_a_buffer_of_its_own_size() {
    const CALLS: u64 = 1000;
    let of_cpu = |cpu| show(&format!("per_cpu/cpu{cpu}/buffer_size_kb"));
    clean_up();
    define("p:many traced_function number=%di:u64");
    let on_both = || (0..2).for_each(|cpu| on_cpu(cpu, || (0..CALLS).for_each(call)));
    on_cpu(0, || call(7));
    on_cpu(1, || call(8));
    echo("4", "per_cpu/cpu1/buffer_size_kb").unwrap();
    assert_eq!((stat(0, "entries"), stat(1, "entries")), (1, 0));
    assert_eq!(show("buffer_size_kb"), "X\n");
    assert_eq!((of_cpu(0), of_cpu(1)), ("256\n".into(), "4\n".into()));
    assert_eq!(show("buffer_total_size_kb"), "260\n");
    // The same size again keeps the records.
    on_both();
    let kept = stat(1, "entries");
    echo("4", "per_cpu/cpu1/buffer_size_kb").unwrap();
    assert_eq!(stat(1, "entries"), kept);
    for _ in 0..2 {
        assert_eq!((stat(0, "entries") / CALLS, stat(0, "overrun")), (1, 0));
        let (entries, overrun) = (stat(1, "entries"), stat(1, "overrun"));
        assert_eq!(entries + overrun, CALLS);
        assert!(overrun > entries, "{overrun} of {CALLS}");
        echo("1", "snapshot").unwrap();
        on_both();
    }
    for (bad, errno) in [
        ("0", Errno::EINVAL),
        ("x", Errno::EINVAL),
        ("99999999", Errno::EINVAL),
        ("18446744073709551616", Errno::ERANGE),
    ] {
        assert_eq!(
            echo(bad, "per_cpu/cpu0/buffer_size_kb"),
            Err(errno),
            "{bad}"
        );
    }
    assert_eq!(show("buffer_total_size_kb"), "260\n");
    echo("256", "buffer_size_kb").unwrap();
    assert_eq!(show("buffer_size_kb"), "256\n");
    assert_eq!(of_cpu(1), "256\n");
    echo("0", "snapshot").unwrap();
    clean_up();
}

/// A ring of one page is too small, so the oldest records go. Each of them is counted.
#[guest_test]
fn lost_records_are_told_where_they_were() {
    const CALLS: u64 = 1000;
    clean_up();
    echo("4", "buffer_size_kb").unwrap();
    assert_eq!(show("buffer_size_kb"), "4\n");
    define("p:many traced_function number=%di:u64");
    let (before, _) = profile("many");
    on_cpu(1, || (0..CALLS).for_each(call));
    let entries = stat(1, "entries");
    let overrun = stat(1, "overrun");
    assert!(entries > 0 && overrun > 0);
    assert_eq!(entries + overrun, CALLS);
    assert_eq!(profile("many"), (before + CALLS, 0));
    let header = format!("# entries-in-buffer/entries-written: {entries}/{CALLS} ");
    assert!(show("trace").contains(&header));
    let text = show("per_cpu/cpu1/trace");
    assert_eq!(
        text.lines().filter(|line| line.contains("many: ")).count() as u64,
        entries
    );
    let pipe = fs::open(&path("trace_pipe"), open::RDONLY | open::NONBLOCK).unwrap();
    let mut buf = vec![0; 4096];
    let len = pipe.read_at(0, &mut buf).unwrap();
    let text = str::from_utf8(&buf[..len]).unwrap();
    assert_eq!(
        text.lines().next(),
        Some(&*format!("CPU:1 [LOST {overrun} EVENTS]"))
    );
    let second = text.lines().nth(1).unwrap();
    assert!(second.ends_with(&format!(" number={overrun}")), "{second}");

    // Without overwriting, the newest are dropped.
    clean_up();
    echo("nooverwrite", "trace_options").unwrap();
    assert_eq!(show("options/overwrite"), "0\n");
    define("p:many traced_function number=%di:u64");
    on_cpu(1, || (0..CALLS).for_each(call));
    let (entries, dropped) = (stat(1, "entries"), stat(1, "dropped events"));
    assert!(dropped > 0);
    assert_eq!(entries + dropped, CALLS);
    let seen = lines();
    assert!(seen[0].ends_with("number=0"), "{seen:?}");
    assert_eq!(seen.len() as u64, entries);
    echo("1", "options/overwrite").unwrap();
    assert!(show("trace_options").contains("overwrite\n"));
    echo("256", "buffer_size_kb").unwrap();
    for bad in ["0", "x", "-1", "99999999"] {
        assert_eq!(echo(bad, "buffer_size_kb"), Err(Errno::EINVAL), "{bad}");
    }
    let too_large = "18446744073709551616";
    assert_eq!(echo(too_large, "buffer_size_kb"), Err(Errno::ERANGE));
    assert_eq!(show("buffer_size_kb"), "256\n");
    clean_up();
}

#[guest_test]
fn recording_pauses_while_trace_is_open_if_that_is_wanted() {
    clean_up();
    define("p:paused traced_function number=%di:u64");
    call(1);
    echo("1", "options/pause-on-trace").unwrap();
    let first = fs::open(&path("trace"), open::RDONLY).unwrap();
    let second = fs::open(&path("trace"), open::RDONLY).unwrap();
    // The switch is another one.
    assert_eq!(show("tracing_on"), "1\n");
    call(2);
    drop(first);
    call(3);
    drop(second);
    assert_eq!(show("tracing_on"), "1\n");
    call(4);
    echo("nopause-on-trace", "trace_options").unwrap();
    let open = fs::open(&path("trace"), open::RDONLY).unwrap();
    call(5);
    drop(open);
    let numbers: Vec<String> = lines()
        .iter()
        .map(|line| line.rsplit('=').next().unwrap().into())
        .collect();
    assert_eq!(numbers, ["1", "4", "5"]);
    assert_eq!(profile("paused"), (5, 0));
    clean_up();
}

#[guest_test]
fn the_profile_has_a_line_for_each_probe_until_it_is_deleted() {
    clean_up();
    assert_eq!(show("kprobe_profile"), "");
    append("p:counted traced_function", "kprobe_events").unwrap();
    assert_eq!(profile("counted"), (0, 0));
    echo("1", "events/kprobes/counted/enable").unwrap();
    (0..5).for_each(call);
    assert_eq!(profile("counted"), (5, 0));
    // Neither a filter, nor turning the event off and on, takes a hit away.
    echo("common_pid == 0", "events/kprobes/counted/filter").unwrap();
    call(1);
    echo("0", "events/kprobes/counted/enable").unwrap();
    call(1);
    echo("1", "events/kprobes/counted/enable").unwrap();
    call(1);
    assert_eq!(profile("counted"), (7, 0));
    assert_eq!(lines().len(), 5);
    clean_up();
    assert_eq!(show("kprobe_profile"), "");
}

/// The sum over the CPUs of a line of their files `stats`.
fn stats(name: &str) -> u64 {
    (0..smp::online_cpus()).map(|cpu| stat(cpu, name)).sum()
}

/// On all CPUs at once, calls the function with these numbers.
fn call_everywhere(numbers: core::ops::Range<u64>) {
    let calls = |cpu: usize| {
        let numbers = numbers.clone();
        spawn_kthread_on(1 << cpu, "caller", move || numbers.for_each(call)).unwrap()
    };
    let threads: Vec<_> = (0..smp::online_cpus()).map(calls).collect();
    threads.iter().for_each(|thread| thread.wait_released());
}

/// Each hit is counted once: rejected by the filter, while recording was off, while the event was
/// off, recorded, or dropped. The counts stay when other programs take the place of the old ones.
#[guest_test(smp = 4)]
fn each_hit_is_in_one_place_of_the_books() {
    clean_up();
    let cpus = smp::online_cpus() as u64;
    echo("4", "buffer_size_kb").unwrap();
    echo("nooverwrite", "trace_options").unwrap();
    append("p:booked traced_function number=%di:u64", "kprobe_events").unwrap();
    echo("number < 300", "events/kprobes/booked/filter").unwrap();
    echo("1", "events/kprobes/booked/enable").unwrap();
    let off = stats("events while off");
    // A page has room for less than 300 records.
    call_everywhere(0..1000);
    let (entries, dropped) = (stats("entries"), stats("dropped events"));
    assert!(dropped > 0);
    assert_eq!(entries + dropped, 300 * cpus);
    echo("0", "tracing_on").unwrap();
    call_everywhere(250..310);
    echo("1", "tracing_on").unwrap();
    assert_eq!(stats("events while off") - off, 50 * cpus);
    // Only a trigger acts.
    echo("hist:keys=number", "events/kprobes/booked/trigger").unwrap();
    echo("0", "events/kprobes/booked/enable").unwrap();
    call_everywhere(290..307);
    append("!hist:keys=number", "events/kprobes/booked/trigger").unwrap();
    assert_eq!(
        show("events/kprobes/booked/profile"),
        format!(
            "hits: {}\nfiltered: {}\nunasked: {}\nmissed: 0\n",
            (1000 + 60 + 17) * cpus,
            (700 + 10) * cpus,
            17 * cpus,
        )
    );
    assert_eq!(profile("booked"), (1077 * cpus, 0));
    assert_eq!(
        (stats("entries"), stats("dropped events")),
        (entries, dropped)
    );
    echo("1", "options/overwrite").unwrap();
    echo("256", "buffer_size_kb").unwrap();
    clean_up();
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn traced_recursion(depth: u64) -> u64 {
    match depth {
        0 => 0,
        _ => black_box(traced_recursion(black_box(depth - 1)) + 2),
    }
}

/// A return event counts returns, and misses entries that find no instance. Each probe of an event
/// has a line.
#[guest_test]
fn the_profile_counts_returns_and_calls_without_an_instance() {
    clean_up();
    append("r1:deep traced_recursion", "kprobe_events").unwrap();
    append("r1:deep traced_function", "kprobe_events").unwrap();
    echo("1", "events/kprobes/deep/enable").unwrap();
    assert_eq!(traced_recursion(3), 6);
    call(1);
    let line = |hits, misses| format!("  {:<44} {hits:15} {misses:15}\n", "deep");
    assert_eq!(show("kprobe_profile"), line(1, 3) + &line(1, 0));
    assert_eq!(lines().len(), 2);
    // Of both together.
    assert!(show("events/kprobes/deep/profile").starts_with("hits: 2\n"));
    assert!(show("events/kprobes/deep/profile").ends_with("missed: 3\n"));
    clean_up();
}

/// The list of all probes has the hits of events, too, of each probe by itself.
#[guest_test]
fn the_counts_of_all_probes_have_those_of_events() {
    clean_up();
    define("p:here traced_function");
    define("p:here traced_recursion");
    define("r:back traced_function");
    let counts = || -> Vec<String> {
        let text = show("../debug/kprobes/stats");
        let lines = text.lines().map(|line| line.split_ascii_whitespace());
        let counts = lines.map(|words| words.skip(1).collect::<Vec<_>>().join(" "));
        let mut counts: Vec<_> = counts.collect();
        counts.sort();
        counts
    };
    let expected = |times: u64| {
        [
            "k traced_function+0x0 3 0".into(),
            format!("k traced_recursion+0x0 {times} 0"),
            "r traced_function+0x0 3 0".into(),
        ]
    };
    (0..3).for_each(call);
    assert_eq!(counts(), expected(0));
    traced_recursion(3);
    // Hits that a filter rejects are hits.
    echo("common_pid == 0", "events/kprobes/here/filter").unwrap();
    assert_eq!(
        counts()[..2],
        ["k traced_function+0x0 0 0", "k traced_recursion+0x0 0 0"]
    );
    (0..3).for_each(call);
    traced_recursion(3);
    assert_eq!(counts()[..2], expected(4)[..2]);
    clean_up();
}

/// A filter or a trigger for which the program of the event has no room is refused, and the reason
/// is told.
#[guest_test]
fn a_program_that_is_too_large_is_told_as_such() {
    const WHY: &str = "The program of the event's filters and triggers is too large; use fewer \
                       patterns or histograms";
    const FILTER: &str = "events/kprobes/f/filter";
    const TRIGGER: &str = "events/kprobes/f/trigger";
    clean_up();
    append("p:f traced_function s=+0(%si):string", "kprobe_events").unwrap();
    let long = "s ~ \"*a*b*c*d*e*f*\"";
    assert_eq!(echo(long, FILTER), Err(Errno::EINVAL));
    assert_eq!(show(FILTER), format!("{long}\n^\nparse_error: {WHY}\n"));
    for (trigger, source) in [
        ("hist:keys=s", "hist:kprobes:f"),
        ("traceoff", "event filter parse error"),
        ("enable_event:kprobes:f", "event filter parse error"),
    ] {
        echo("", "error_log").unwrap();
        let line = format!("{trigger} if {long}");
        assert_eq!(append(&line, TRIGGER), Err(Errno::EINVAL));
        let log = show("error_log");
        assert!(
            log.contains(&format!("] {source}: error: {WHY}\n")),
            "{log}"
        );
    }
    // An event that is not there is another matter.
    echo("", "error_log").unwrap();
    let line = format!("enable_event:kprobes:none if {long}");
    assert_eq!(append(&line, TRIGGER), Err(Errno::EINVAL));
    assert_eq!(show("error_log"), "");
    clean_up();
}

/// Each filter keeps those of four calls that it should.
#[guest_test]
fn filters_compare_numbers_strings_and_common_fields() {
    clean_up();
    append(
        "p:f traced_function n=%di:s64 s=+0(%si):string",
        "kprobe_events",
    )
    .unwrap();
    echo("1", "events/kprobes/f/enable").unwrap();
    let pid = kernel::task::current().pid();
    let texts = [c"alpha", c"alphabet", c"beta", c""];
    let kept = |filter: &str| -> Vec<usize> {
        echo(filter, "events/kprobes/f/filter").unwrap();
        assert_eq!(show("events/kprobes/f/filter").trim_end(), filter);
        TRACING.buffer.clear(None);
        for (number, text) in (0_i64..).zip(texts) {
            traced_function((number - 1).cast_unsigned(), text.as_ptr().cast());
        }
        lines()
            .iter()
            .map(|line| {
                let (_, number) = line.split_once(" n=").unwrap();
                let (number, _) = number.split_once(' ').unwrap();
                (number.parse::<i64>().unwrap() + 1) as usize
            })
            .collect()
    };
    let own = format!("common_pid == {pid} && n < 1");
    let other = format!("common_pid != {pid} || n == 2");
    let mut wrong = Vec::new();
    for (filter, expected) in [
        ("n == 1", &[2][..]),
        ("n != 1", &[0, 1, 3][..]),
        ("n < 0", &[0][..]),
        ("n <= 0", &[0, 1][..]),
        ("n > 1", &[3][..]),
        ("n >= 1", &[2, 3][..]),
        ("n & 2", &[0, 3][..]),
        ("s == \"alpha\"", &[0][..]),
        ("s != \"alpha\"", &[1, 2, 3][..]),
        ("s ~ \"alpha*\"", &[0, 1][..]),
        ("s ~ \"*et*\"", &[1, 2][..]),
        ("s ~ \"*bet\"", &[1][..]),
        ("s ~ \"?e[st]a\"", &[2][..]),
        (&*own, &[0, 1][..]),
        (&*other, &[3][..]),
        ("!(n == 0) && (s ~ \"a*\" || n > 1)", &[0, 3][..]),
    ] {
        let kept = kept(filter);
        if kept != expected {
            wrong.push((filter, kept));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    // A refusal is shown in the file and in the log.
    assert_eq!(echo("n == ", "events/kprobes/f/filter"), Err(Errno::EINVAL));
    assert!(show("events/kprobes/f/filter").contains('^'));
    assert!(
        show("error_log")
            .lines()
            .rev()
            .nth(2)
            .unwrap()
            .contains(": error: ")
    );
    echo("0", "events/kprobes/f/filter").unwrap();
    assert_eq!(show("events/kprobes/f/filter"), "none\n");
    assert_eq!(profile("f").0, 16 * 4);
    clean_up();
}

/// All functions that the file lists can be probed by their names there. Those of the hit path are
/// not in it.
#[guest_test]
fn functions_that_are_available_can_be_named() {
    clean_up();
    let listed = show("available_filter_functions");
    assert!(listed.lines().count() > 500);
    for name in ["vfs_open", "traced_function", "do_page_fault"] {
        assert!(listed.lines().any(|line| line == name), "{name}");
    }
    let fits = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '_' | '.' | '$');
    for name in ["do_breakpoint", "asm_syscall"] {
        assert!(!listed.lines().any(|line| line == name), "{name}");
    }
    let mut defined = 0;
    for (number, name) in listed.lines().enumerate() {
        assert!(name.chars().all(fits), "{name}");
        if number % 25 != 0 {
            continue;
        }
        if let Err(errno) = append(&format!("p:all/e{number} {name}"), "kprobe_events") {
            panic!("{name}: {errno:?}: {}", show("error_log"));
        }
        defined += 1;
    }
    assert!(defined > 5);
    clean_up();
}

#[guest_test]
fn files_that_choose_among_one_take_only_that() {
    assert_eq!(show("trace_clock"), "[local]\n");
    assert_eq!(echo("global", "trace_clock"), Err(Errno::EINVAL));
    assert_eq!(echo("nothing", "trace_options"), Err(Errno::EINVAL));
    // Any number but 0 turns recording on.
    assert_eq!(echo("on", "tracing_on"), Err(Errno::EINVAL));
    echo("0", "tracing_on").unwrap();
    echo("2", "tracing_on").unwrap();
    assert_eq!(show("tracing_on"), "1\n");
}

/// The file README promises a form exactly if it works.
#[guest_test]
fn each_form_that_the_readme_shows_works() {
    clean_up();
    let readme = show("README");
    for (promise, lines) in [
        (
            "p[:[<group>/][<event>]] <place> [<args>]",
            vec![
                "p traced_function",
                "p:a traced_function",
                "p:g/ traced_function",
                "p:g/a traced_function %di",
            ],
        ),
        (
            "r[maxactive][:[<group>/][<event>]] <place> [<args>]",
            vec!["r traced_function", "r9:g/r traced_function $retval"],
        ),
        (
            "[<module>:]<symbol>[+<offset>]|<memaddr>",
            vec!["p:o traced_function+1", "p:k kprobe_example:vfs_open"],
        ),
        (
            "place (kretprobe): [<module>:]<symbol>[+<offset>]%return|<memaddr>",
            vec!["p:b traced_function%return"],
        ),
        (
            "%<register>, @<address>, @<symbol>[+|-<offset>]",
            vec!["p:c vfs_open %ax @0xffffffff80000000 @TRACED_DATA+8 @TRACED_DATA-8"],
        ),
        (
            "$stack<index>, $stack, $retval, $comm, $arg<N>",
            vec!["r:d vfs_open $stack1 $stack $retval $comm $arg2"],
        ),
        (
            "+|-[u]<offset>(<fetcharg>), \\imm-value, \\\"imm-string\"",
            vec!["p:e vfs_open +0(%di) -8(%di) +u0(%di) -u8(%di) \\1 \\\"text\""],
        ),
        (
            "kernel return probes support: $retval, $arg<N>, $comm",
            vec!["r:h vfs_open $retval $arg1 $comm"],
        ),
        (
            "s8/16/32/64",
            vec!["p:i vfs_open %di:s8 %di:s16 %di:s32 %di:s64"],
        ),
        (
            "u8/16/32/64",
            vec!["p:j vfs_open %di:u8 %di:u16 %di:u32 %di:u64"],
        ),
        (
            "x8/16/32/64",
            vec!["p:l vfs_open %di:x8 %di:x16 %di:x32 %di:x64"],
        ),
        (
            "char, string, symbol",
            vec!["p:m vfs_open +0(%di):char +0(%di):string %ip:symbol"],
        ),
        (
            "b<bit-width>@<bit-offset>/<container-size>, ustring",
            vec!["p:n vfs_open %di:b3@4/32 +0(%di):ustring"],
        ),
        (
            "symstr, %pd/%pD, <type>\\[<array-size>\\]",
            vec![
                "p:q vfs_open %ip:symstr +0(%di):x8[4]",
                "p:s vfs_read %di:%pD",
                "p:t dput $arg1:%pd",
            ],
        ),
    ] {
        assert!(readme.contains(promise), "{promise} is not in\n{readme}");
        for line in lines {
            append(line, "kprobe_events")
                .unwrap_or_else(|errno| panic!("{line}: {errno:?}\n{}", show("error_log")));
        }
    }
    // These are forms of Linux that do not work here.
    for (absent, line) in [
        ("<argname>", "p:y vfs_open request"),
        ("$current", "p:y vfs_open $current"),
    ] {
        assert!(!readme.contains(absent), "{absent}");
        assert!(append(line, "kprobe_events").is_err(), "{line}");
    }
    append("-:g/", "kprobe_events").unwrap();
    assert!(!show("kprobe_events").contains(":g/"));
    for file in [
        "trace",
        "trace_pipe",
        "current_tracer",
        "error_log",
        "kprobe_profile",
        "dynamic_events",
        "kprobe_events",
        "uprobe_events",
        "uprobe_profile",
    ] {
        assert!(
            readme.contains(&format!("\n  {file}\t")) && exists(file),
            "{file}"
        );
    }
    clean_up();
}
