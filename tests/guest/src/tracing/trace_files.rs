//! The files of tracing: events are defined, enabled, hit, read and deleted through them.
//!
//! The rules of definitions are in [`definitions`], those of fetched values in [`arguments`], those
//! of the files that are read in [`reading`], those of call stacks in [`triggers`], those of the
//! second buffer in [`snapshots`], those of dumps in [`dumps`], those of tracers of all functions
//! in [`tracers`], [`choices`], [`commands`], [`durations`] and [`traced_registers`], events of
//! programs in [`programs`], and watches in [`watches`]. What is told of tasks and where CPUs begin
//! is in [`names_of_tasks`], and which CPUs record in [`chosen_cpus`]. Files of groups of events
//! are in [`groups`], and sets that follow tasks in [`children`]. All of them are met by chance in
//! [`walk`]. In [`scripts`] are the steps of
//! scripts that others run.

mod arguments;
mod children;
mod choices;
mod chosen_cpus;
mod commands;
mod definitions;
mod dumps;
mod durations;
mod groups;
mod names_of_tasks;
mod programs;
mod reading;
mod scripts;
mod snapshots;
mod traced_registers;
mod tracers;
mod triggers;
mod walk;
mod watches;

use abi::open;
use alloc::{format, string::String, vec, vec::Vec};
use core::hint::black_box;

use kernel::{
    arch::percpu,
    errno::Errno,
    fs::{self, NodeRef},
    mm::{frame, user_space::is_memory_short},
    task::kthread::spawn_kthread_on,
    trace::TRACING,
};

const ROOT: &str = "/sys/kernel/tracing";

pub fn path(name: &str) -> String {
    format!("{ROOT}/{name}")
}

pub fn read(name: &str) -> Result<String, Errno> {
    let file = fs::open(&path(name), open::RDONLY)?;
    let mut text = Vec::new();
    let mut chunk = vec![0; 4096];
    loop {
        match file.read_at(text.len() as u64, &mut chunk)? {
            0 => return Ok(String::from_utf8(text).unwrap()),
            len => text.extend_from_slice(&chunk[..len]),
        }
    }
}

pub fn show(name: &str) -> String {
    read(name).unwrap()
}

fn write_with(name: &str, text: &str, flags: u32) -> Result<(), Errno> {
    write_bytes(name, text.as_bytes(), flags).map(drop)
}

/// One write. Returns how many bytes were taken.
fn write_bytes(name: &str, bytes: &[u8], flags: u32) -> Result<usize, Errno> {
    let file = fs::open(&path(name), open::WRONLY | flags)?;
    file.write_at(0, bytes)
}

/// Does `echo TEXT > FILE`.
pub fn echo(text: &str, name: &str) -> Result<(), Errno> {
    write_with(name, &format!("{text}\n"), open::TRUNC)
}

/// Does `echo TEXT >> FILE`.
pub fn append(text: &str, name: &str) -> Result<(), Errno> {
    write_with(name, &format!("{text}\n"), open::APPEND)
}

pub fn exists(name: &str) -> bool {
    fs::attributes(&NodeRef::root(), path(name).as_bytes()).is_ok()
}

/// Runs `body` on a CPU and waits for its end.
pub fn on_cpu(cpu: usize, body: impl FnOnce() + Send + 'static) {
    spawn_kthread_on(1 << cpu, "caller", body)
        .unwrap()
        .wait_released();
}

/// Everything as it was before.
pub fn clean_up() {
    echo("0", "events/enable").unwrap();
    echo("", "kprobe_events").unwrap();
    echo("1", "tracing_on").unwrap();
    TRACING.buffer.clear(None);
    assert_eq!(show("kprobe_events"), "");
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn traced_function(number: u64, text: *const u8) -> u64 {
    black_box(text);
    black_box(number) + 1
}

fn call(number: u64) {
    assert_eq!(
        traced_function(number, c"a text".as_ptr().cast()),
        number + 1
    );
}

/// The lines of `trace` after the header, from the name of the event on.
fn lines() -> Vec<String> {
    lines_of("trace")
}

/// The same of another file.
fn lines_of(file: &str) -> Vec<String> {
    show(file)
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.splitn(3, ": ").skip(1).collect::<Vec<_>>().join(": "))
        .collect()
}

#[guest_test]
fn an_event_is_defined_enabled_recorded_and_deleted() {
    clean_up();
    echo(
        "p:mine/first traced_function number=%di:u64 text=+0(%si):string",
        "kprobe_events",
    )
    .unwrap();
    assert_eq!(
        show("kprobe_events"),
        "p:mine/first traced_function number=%di:u64 text=+0(%si):string\n"
    );
    assert_eq!(show("events/mine/first/enable"), "0\n");
    call(1);
    assert_eq!(lines(), [""; 0]);
    assert_eq!(
        show("kprobe_profile"),
        format!("  {:<44} {:15} {:15}\n", "first", 0, 0)
    );
    echo("1", "events/mine/first/enable").unwrap();
    assert_eq!(show("events/mine/enable"), "1\n");
    // In use: nothing changes.
    assert_eq!(echo("", "kprobe_events"), Err(Errno::EBUSY));
    assert_eq!(append("-:mine/first", "kprobe_events"), Err(Errno::EBUSY));
    call(41);
    call(42);
    let size = kernel::symbols::lookup_name("traced_function")
        .unwrap()
        .size;
    let expected =
        |number| format!("first: (traced_function+0x0/{size:#x}) number={number} text=\"a text\"");
    assert_eq!(lines(), [expected(41), expected(42)]);
    echo("0", "events/mine/first/enable").unwrap();
    call(43);
    assert_eq!(lines().len(), 2);
    assert_eq!(
        show("kprobe_profile"),
        format!("  {:<44} {:15} {:15}\n", "first", 2, 0)
    );
    append("-:mine/first", "kprobe_events").unwrap();
    assert!(!exists("events/mine"));
    assert_eq!(append("-:mine/first", "kprobe_events"), Err(Errno::ENOENT));
    clean_up();
}

#[guest_test]
fn a_return_event_records_result_caller_and_arguments() {
    clean_up();
    echo(
        "r:back traced_function result=$retval:s64 number=$arg1:u64",
        "kprobe_events",
    )
    .unwrap();
    echo("1", "events/kprobes/back/enable").unwrap();
    call(7);
    let lines = lines();
    assert_eq!(lines.len(), 1);
    assert!(lines[0].starts_with("back: ("), "{lines:?}");
    assert!(
        lines[0].ends_with(" <- traced_function) result=8 number=7"),
        "{lines:?}"
    );
    clean_up();
}

#[guest_test]
fn a_filter_keeps_what_matches() {
    clean_up();
    echo("p:f traced_function number=%di:u64", "kprobe_events").unwrap();
    assert_eq!(show("events/kprobes/f/filter"), "none\n");
    echo("number > 10 && number != 12", "events/kprobes/f/filter").unwrap();
    echo("1", "events/kprobes/f/enable").unwrap();
    for number in 9..15 {
        call(number);
    }
    assert_eq!(lines().len(), 3);
    // A hit is a hit, whatever the filter says.
    assert!(show("kprobe_profile").contains(" 6 "));
    assert_eq!(
        echo("nothing == 1", "events/kprobes/f/filter"),
        Err(Errno::EINVAL)
    );
    assert!(show("error_log").contains("Field not found"));
    echo("0", "events/kprobes/f/filter").unwrap();
    call(1);
    assert_eq!(lines().len(), 4);
    clean_up();
}

#[guest_test]
fn a_mistake_is_shown_with_a_caret_under_it() {
    clean_up();
    echo("", "error_log").unwrap();
    assert_eq!(
        append("p:bad traced_function a=%nothing", "kprobe_events"),
        Err(Errno::EINVAL)
    );
    let log = show("error_log");
    let lines: Vec<&str> = log.lines().collect();
    assert!(
        lines[0].ends_with("trace_kprobe: error: Invalid register name"),
        "{log}"
    );
    assert_eq!(lines[1], "  Command: p:bad traced_function a=%nothing");
    assert_eq!(lines[2].find('^'), lines[1].find('%'));
    assert!(!exists("events/kprobes/bad"));
    echo("", "error_log").unwrap();
    assert_eq!(show("error_log"), "");
}

#[guest_test]
fn tracing_off_records_nothing_but_counts() {
    clean_up();
    echo("p:off traced_function", "kprobe_events").unwrap();
    echo("1", "events/kprobes/off/enable").unwrap();
    echo("0", "tracing_on").unwrap();
    call(1);
    assert_eq!(lines(), [""; 0]);
    assert!(show("kprobe_profile").contains(" 1 "));
    echo("1", "tracing_on").unwrap();
    call(2);
    assert_eq!(lines().len(), 1);
    clean_up();
}

/// The state in the line of the last record: of the five letters after the CPU's number.
fn last_state() -> Vec<char> {
    let text = show("trace");
    let line = text.lines().last().unwrap();
    let (_, rest) = line.split_once("] ").unwrap();
    rest.chars().take(5).collect()
}

/// The depth is a byte of its own in each record, and the routines that reserve one each write it.
#[guest_test]
fn a_record_tells_how_deep_preemption_is_off() {
    for arguments in ["", " text=+0(%si):string"] {
        clean_up();
        echo(
            &format!("p:deep traced_function{arguments}"),
            "kprobe_events",
        )
        .unwrap();
        echo("1", "events/kprobes/deep/enable").unwrap();
        let state_at = |depth: u32| {
            (0..depth).for_each(|_| percpu::preempt_disable());
            call(1);
            (0..depth).for_each(|_| percpu::preempt_enable());
            last_state()
        };
        let [shallow, deep] = [0, 3].map(state_at);
        let digit = |state: &[char]| state[3].to_digit(16).unwrap_or(0);
        assert_eq!(
            digit(&deep),
            digit(&shallow) + 3,
            "{arguments}: {shallow:?} {deep:?}"
        );
    }
    clean_up();
}

#[guest_test]
fn trace_pipe_takes_records_out() {
    clean_up();
    echo("p:piped traced_function number=%di:u64", "kprobe_events").unwrap();
    echo("1", "events/kprobes/piped/enable").unwrap();
    call(5);
    let pipe = fs::open(&path("trace_pipe"), open::RDONLY | open::NONBLOCK).unwrap();
    let mut buf = vec![0; 4096];
    let len = pipe.read_at(0, &mut buf).unwrap();
    let text = String::from_utf8(buf[..len].to_vec()).unwrap();
    assert!(text.ends_with(" number=5\n"), "{text}");
    assert_eq!(pipe.read_at(0, &mut buf), Err(Errno::EAGAIN));
    assert_eq!(lines(), [""; 0]);
    clean_up();
}

/// A reader of all that there is waits for more until recording is off. Then the file ends, but not
/// for a reader that waits for its beginning.
#[guest_test]
fn trace_pipe_ends_when_recording_is_off() {
    clean_up();
    echo("p:piped traced_function number=%di:u64", "kprobe_events").unwrap();
    echo("1", "events/kprobes/piped/enable").unwrap();
    call(5);
    echo("0", "tracing_on").unwrap();
    for name in ["trace_pipe", "per_cpu/cpu0/trace_pipe"] {
        let early = fs::open(&path(name), open::RDONLY | open::NONBLOCK).unwrap();
        let mut buf = vec![0; 4096];
        while early.read_at(0, &mut buf).is_ok() {}
        assert_eq!(early.read_at(0, &mut buf), Err(Errno::EAGAIN));
        echo("1", "tracing_on").unwrap();
        on_cpu(0, || call(6));
        on_cpu(0, || call(7));
        echo("0", "tracing_on").unwrap();
        let pipe = fs::open(&path(name), open::RDONLY).unwrap();
        let mut text = Vec::new();
        // Each read takes a part of a line, and none of them waits.
        loop {
            match pipe.read_at(0, &mut buf[..7]).unwrap() {
                0 => break,
                len => text.extend_from_slice(&buf[..len]),
            }
        }
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.ends_with(" number=7\n"), "{text}");
        assert_eq!(pipe.read_at(0, &mut buf), Ok(0));
        echo("1", "tracing_on").unwrap();
    }
    clean_up();
}

/// An event can be turned on and off and have a filter with all triggers that it takes.
#[guest_test]
fn what_is_too_much_for_an_event_is_refused_when_it_is_set() {
    const TRIGGER: &str = "events/kprobes/big/trigger";
    clean_up();
    for on in ["0", "1"] {
        echo("p:big traced_function number=%di:u64", "kprobe_events").unwrap();
        echo(on, "events/kprobes/big/enable").unwrap();
        let mut histograms = 0;
        let refused = loop {
            let line = format!("hist:keys=number.buckets={}", histograms + 1);
            match append(&line, TRIGGER) {
                Ok(()) => histograms += 1,
                Err(errno) => break errno,
            }
        };
        assert_eq!((histograms, refused), (6, Errno::EINVAL), "{on}");
        let log = show("error_log");
        assert!(
            log.contains("is too large; use fewer patterns or histograms\n"),
            "{log}"
        );
        append("stacktrace", TRIGGER).unwrap();
        for text in ["number == 2", "0"] {
            echo(text, "events/kprobes/big/filter").unwrap();
            for on in ["1", "0", "1", "0"] {
                echo(on, "events/kprobes/big/enable").unwrap();
                call(2);
            }
        }
        assert_eq!(
            show("events/kprobes/big/hist").matches("Hits: 8\n").count(),
            6
        );
        append("!stacktrace", TRIGGER).unwrap();
        echo("", TRIGGER).unwrap();
        assert!(show(TRIGGER).starts_with("# Available triggers:"));
        echo("", "kprobe_events").unwrap();
    }
    // A filter that an event could not have when it is on.
    echo("p:big traced_function text=+0(%si):string", "kprobe_events").unwrap();
    let part = format!("text ~ \"*{}*\"", "x".repeat(100));
    let filter = vec![part; 36].join("||");
    const FILTER: &str = "events/kprobes/big/filter";
    echo("text == \"a\"", FILTER).unwrap();
    assert_eq!(echo(&filter, FILTER), Err(Errno::EINVAL));
    let reason = "is too large; use fewer patterns or histograms\n";
    assert!(show(FILTER).ends_with(reason));
    assert!(show("error_log").contains(reason));
    echo("0", FILTER).unwrap();
    clean_up();
}

/// `>` takes histograms away, and `>>` adds one. Other triggers stay.
#[guest_test]
fn histograms_begin_anew_when_their_file_is_truncated() {
    const TRIGGER: &str = "events/kprobes/h/trigger";
    clean_up();
    echo("p:h traced_function number=%di:u64", "kprobe_events").unwrap();
    echo("hist:keys=number", TRIGGER).unwrap();
    append("hist:keys=number.hex", TRIGGER).unwrap();
    append("traceoff:0", TRIGGER).unwrap();
    call(1);
    assert_eq!(show(TRIGGER).lines().count(), 3);
    echo("hist:keys=number", TRIGGER).unwrap();
    assert_eq!(
        show(TRIGGER),
        "traceoff:count=0\n\
         hist:keys=number:vals=hitcount:sort=hitcount:size=2048 [active]\n"
    );
    assert!(show("events/kprobes/h/hist").contains("Hits: 0\n"));
    assert_eq!(echo("hist:keys=nothing", TRIGGER), Err(Errno::EINVAL));
    assert_eq!(show(TRIGGER), "traceoff:count=0\n");
    append("!traceoff", TRIGGER).unwrap();
    clean_up();
}

#[guest_test]
fn a_buffer_that_has_its_size_keeps_its_records() {
    clean_up();
    echo("p:kept traced_function number=%di:u64", "kprobe_events").unwrap();
    echo("1", "events/kprobes/kept/enable").unwrap();
    let size = show("buffer_size_kb");
    let size: usize = size.trim().parse().unwrap();
    on_cpu(1, || call(5));
    // The size is that of whole pages.
    echo(&format!("{}", size - 1), "buffer_size_kb").unwrap();
    let kept = lines();
    assert_eq!(kept.len(), 1);
    assert!(kept[0].ends_with(" number=5"), "{kept:?}");
    let stats = |cpu: usize| show(&format!("per_cpu/cpu{cpu}/stats"));
    assert!(stats(0).contains("\noldest event ts:     0.000000\n"));
    let text = show("trace");
    let (time, _) = text.rsplit_once(": kept: ").unwrap();
    let (_, time) = time.rsplit_once(' ').unwrap();
    let oldest = format!("\noldest event ts: {time:>12}\n");
    assert!(stats(1).contains(&oldest), "{text}{}", stats(1));
    echo(&format!("{}", size * 2), "buffer_size_kb").unwrap();
    assert_eq!(lines(), [""; 0]);
    echo(&format!("{size}"), "buffer_size_kb").unwrap();
    clean_up();
}

#[guest_test]
fn files_of_a_deleted_event_say_so() {
    clean_up();
    echo("p:short traced_function", "kprobe_events").unwrap();
    let enable = fs::open(&path("events/kprobes/short/enable"), open::RDWR).unwrap();
    echo("", "kprobe_events").unwrap();
    assert_eq!(enable.write_at(0, b"1"), Err(Errno::ENODEV));
    let mut buf = [0; 16];
    assert_eq!(enable.read_at(0, &mut buf), Err(Errno::ENODEV));
    clean_up();
}

/// Each file of a group that is gone with its last event, and each of the event.
#[guest_test]
fn files_of_a_group_that_is_gone_say_so() {
    clean_up();
    echo("p:gone/one traced_function n=%di:u64", "kprobe_events").unwrap();
    let opened = [
        ("enable", true),
        ("one/enable", true),
        ("one/filter", true),
        ("one/trigger", true),
        ("one/id", false),
        ("one/format", false),
        ("one/hist", false),
        ("one/profile", false),
    ]
    .map(|(name, writable)| {
        let flags = if writable { open::RDWR } else { open::RDONLY };
        let file = fs::open(&path(&format!("events/gone/{name}")), flags).unwrap();
        (name, writable, file)
    });
    echo("", "kprobe_events").unwrap();
    assert!(!exists("events/gone"));
    for (name, writable, file) in opened {
        let mut buf = [0; 16];
        assert_eq!(file.read_at(0, &mut buf), Err(Errno::ENODEV), "{name}");
        if writable {
            assert_eq!(file.write_at(0, b"1"), Err(Errno::ENODEV), "{name}");
        }
    }
    clean_up();
}

/// Values other than the number of hits are added up for each key.
#[guest_test]
fn a_histogram_adds_values_up_by_its_keys() {
    clean_up();
    echo(
        "p:s traced_function parity=\\1:u8 number=%di:u64 half=%di:b8@0/64",
        "kprobe_events",
    )
    .unwrap();
    echo(
        "hist:keys=half:vals=number,parity:sort=number.descending",
        "events/kprobes/s/trigger",
    )
    .unwrap();
    for number in [3, 0x103, 0x1_0000_0003, 5] {
        call(number);
    }
    let text = show("events/kprobes/s/hist");
    let entries: Vec<_> = text.lines().filter(|line| line.starts_with('{')).collect();
    let words = |line: &str| line.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(
        entries.into_iter().map(words).collect::<Vec<_>>(),
        [
            "{ half: 3 } hitcount: 3 number: 4294967561 parity: 3",
            "{ half: 5 } hitcount: 1 number: 5 parity: 1",
        ],
        "{text}"
    );
    echo(
        "!hist:keys=half:vals=number,parity:sort=number.descending",
        "events/kprobes/s/trigger",
    )
    .unwrap();
    clean_up();
}

#[guest_test]
fn format_tells_where_the_fields_are() {
    clean_up();
    echo("p:form traced_function number=%di:u32", "kprobe_events").unwrap();
    let id = show("events/kprobes/form/id");
    assert_eq!(
        show("events/kprobes/form/format"),
        format!(
            "name: form\nID: {id}format:\n\
             \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
             \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
             \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
             \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
             \tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n\
             \tfield:u32 number;\toffset:16;\tsize:4;\tsigned:0;\n\n\
             print fmt: \"(%lx) number=%u\", REC->__probe_ip, REC->number\n"
        )
    );
    clean_up();
}

#[guest_test]
fn a_histogram_counts_by_its_keys() {
    clean_up();
    echo("p:h traced_function number=%di:u64", "kprobe_events").unwrap();
    assert!(show("events/kprobes/h/trigger").starts_with("# Available triggers:\n# traceon"));
    echo(
        "hist:keys=number if number != 3",
        "events/kprobes/h/trigger",
    )
    .unwrap();
    for number in [1, 2, 2, 3, 3, 3] {
        call(number);
    }
    let expected = "# event histogram\n#\n\
         # trigger info: hist:keys=number:vals=hitcount:sort=hitcount:size=2048 \
         if number != 3 [active]\n#\n\n\
         { number:          1 } hitcount:          1\n\
         { number:          2 } hitcount:          2\n\n\
         Totals:\n    Hits: 3\n    Entries: 2\n    Dropped: 0\n";
    assert_eq!(show("events/kprobes/h/hist"), expected);
    // Nothing was recorded, and the counts stay when it is.
    assert_eq!(lines(), [""; 0]);
    echo("1", "events/kprobes/h/enable").unwrap();
    call(1);
    assert_eq!(lines().len(), 1);
    assert!(show("events/kprobes/h/hist").contains("Hits: 4\n"));
    assert_eq!(
        append(
            "hist:keys=number:clear if number != 3",
            "events/kprobes/h/trigger"
        ),
        Ok(())
    );
    assert!(show("events/kprobes/h/hist").contains("Hits: 0\n"));
    echo("0", "events/kprobes/h/enable").unwrap();
    assert_eq!(echo("", "kprobe_events"), Err(Errno::EBUSY));
    append(
        "!hist:keys=number if number != 3",
        "events/kprobes/h/trigger",
    )
    .unwrap();
    assert_eq!(show("events/kprobes/h/hist"), "");
    clean_up();
}

#[guest_test]
fn a_histogram_of_logarithms_is_a_row_of_counters() {
    clean_up();
    echo("p:h traced_function number=%di:u64", "kprobe_events").unwrap();
    echo("hist:keys=number.log2", "events/kprobes/h/trigger").unwrap();
    for number in [0, 1, 2, 3, 4, 5, 1000] {
        call(number);
    }
    let text = show("events/kprobes/h/hist");
    assert!(text.contains("Hits: 7\n"), "{text}");
    assert!(text.contains("~ 2^10 } hitcount:          1\n"), "{text}");
    append("!hist:keys=number.log2", "events/kprobes/h/trigger").unwrap();
    clean_up();
}

#[guest_test]
fn triggers_switch_recording_off_and_another_event_on() {
    clean_up();
    echo("p:a traced_function number=%di:u64", "kprobe_events").unwrap();
    append("p:b vfs_open", "kprobe_events").unwrap();
    echo(
        "enable_event:kprobes:b:1 if number == 5",
        "events/kprobes/a/trigger",
    )
    .unwrap();
    assert_eq!(
        show("events/kprobes/a/trigger"),
        "enable_event:kprobes:b:count=1 if number == 5\n"
    );
    assert_eq!(show("events/kprobes/b/enable"), "0*\n");
    let opens = || {
        lines()
            .iter()
            .filter(|line| line.starts_with("b: "))
            .count()
    };
    fs::open(&path("tracing_on"), open::RDONLY).unwrap();
    call(4);
    fs::open(&path("tracing_on"), open::RDONLY).unwrap();
    assert_eq!(opens(), 0);
    call(5);
    fs::open(&path("tracing_on"), open::RDONLY).unwrap();
    // The file `trace` was opened as well.
    assert!(opens() >= 1);
    assert_eq!(
        show("events/kprobes/a/trigger"),
        "enable_event:kprobes:b:count=0 if number == 5\n"
    );
    // The event stays as the trigger has left it.
    assert_eq!(show("events/kprobes/b/enable"), "1*\n");
    append("!enable_event:kprobes:b", "events/kprobes/a/trigger").unwrap();
    assert_eq!(show("events/kprobes/b/enable"), "1\n");
    let before = opens();
    fs::open(&path("tracing_on"), open::RDONLY).unwrap();
    assert!(opens() > before);
    echo("0", "events/kprobes/b/enable").unwrap();
    echo("traceoff if number == 9", "events/kprobes/a/trigger").unwrap();
    call(8);
    assert_eq!(show("tracing_on"), "1\n");
    call(9);
    assert_eq!(show("tracing_on"), "0\n");
    append("!traceoff", "events/kprobes/a/trigger").unwrap();
    clean_up();
}

#[guest_test]
fn a_trigger_that_would_change_nothing_keeps_its_count() {
    const TRIGGER: &str = "events/kprobes/a/trigger";
    clean_up();
    echo("p:a traced_function number=%di:u64", "kprobe_events").unwrap();
    append("p:b vfs_open", "kprobe_events").unwrap();
    for (kind, switch) in [
        ("traceoff", "tracing_on"),
        ("traceon", "tracing_on"),
        ("enable_event:kprobes:b", "events/kprobes/b/enable"),
        ("disable_event:kprobes:b", "events/kprobes/b/enable"),
    ] {
        let (before, after) = match kind.contains("off") || kind.contains("disable") {
            true => ("1", "0"),
            false => ("0", "1"),
        };
        echo(before, switch).unwrap();
        append(&format!("{kind}:3"), TRIGGER).unwrap();
        for left in [2, 1] {
            call(1);
            call(2);
            assert!(show(switch).starts_with(after), "{kind}");
            assert_eq!(show(TRIGGER), format!("{kind}:count={left}\n"));
            echo(before, switch).unwrap();
        }
        append(&format!("!{kind}"), TRIGGER).unwrap();
    }
    clean_up();
}

/// A file that is there can be written when memory is short: else nothing could give any back.
#[guest_test]
fn memory_that_is_short_leaves_the_files_writable() {
    clean_up();
    let size = show("buffer_size_kb");
    let with_create = |name: &str| fs::open(name, open::WRONLY | open::CREAT).map(drop);
    let file = path("buffer_size_kb");
    let mut held = Vec::with_capacity(frame::free_frames());
    while !is_memory_short() {
        held.push(frame::Frame::alloc().unwrap());
    }
    let new = with_create("/memory_is_short");
    let old = with_create(&file);
    let larger = echo("4096", "buffer_size_kb");
    let same = echo(size.trim(), "buffer_size_kb");
    drop(held);
    assert_eq!(new, Err(Errno::ENOSPC));
    assert_eq!((old, larger), (Ok(()), Err(Errno::ENOMEM)));
    assert_eq!(same, Ok(()));
    assert_eq!(show("buffer_size_kb"), size);
    assert_eq!(echo("16385", "buffer_size_kb"), Err(Errno::EINVAL));
    clean_up();
}
