//! Programs and events while memory is short: every allocation fails once, and nothing comes of it.
//!
//! The work is done again and again, and each time another allocation fails: the first, the second,
//! and so on until none does. After each failure the state is compared with that before: memory,
//! probes, files, and the log.

use abi::open;
use alloc::{format, string::String, vec, vec::Vec};

use bpf::{Builder, Condition, Helper, MapDef, ProgramKind, Reg::*, Size::B8, context::Register};
use kernel::{
    errno::Errno,
    fs::{self, NodeRef},
    mm::allocation_faults::with_room_for,
    probes::{Kprobe, Kretprobe, PROBES},
    symbols,
    trace::{
        TRACING,
        buffer::BufferError,
        events::EVENTS,
        names::KernelSymbols,
        program::{AttachedCall, AttachedProbe, AttachedProbes, LoadError, Program},
    },
};

use tracefs::{filter, trigger};

use super::{Rings, address_of, fired_target, recorder};
use crate::tracing::trace_files::{append, clean_up, echo, path, read};

/// A program with a map of each kind.
fn source() -> bpf::Program {
    let mut b = Builder::new(ProgramKind::Probe);
    let counts = b.map(MapDef::counters("counts", 70));
    let keys = b.map(MapDef::counters_by_key("keys", 8, 16));
    let ring = b.map(MapDef::ring("records"));
    let (full, small) = (b.label(), b.label());
    b.load_register(R6, Register::Di)
        .store(R10, -8, B8, R6)
        .add(counts, 0, 1)
        .add_by_key(keys, -8, 1)
        .branch(Condition::Below, R6, 3, small)
        .add(counts, 1, 1)
        .place(small)
        .reserve(ring, 8, full)
        .store(R0, 0, B8, R6)
        .submit(R0)
        .place(full)
        .exit(0);
    b.finish().unwrap()
}

fn call_sources() -> (bpf::Program, bpf::Program) {
    let mut entry = Builder::new(ProgramKind::Entry { data: 8 });
    entry.map(MapDef::counters("counts", 1));
    entry.call(Helper::EntryData).store(R0, 0, B8, 1).exit(0);
    let mut on_return = Builder::new(ProgramKind::Return { data: 8 });
    let counts = on_return.map(MapDef::counters("counts", 1));
    on_return.add(counts, 0, 1).exit(0);
    (entry.finish().unwrap(), on_return.finish().unwrap())
}

/// The things that could be left behind besides memory: listed probes, slots, and the function's
/// text.
fn state() -> (usize, usize, Vec<u8>) {
    let mut listed = 0;
    PROBES.for_each(|_| listed += 1);
    let symbol = symbols::lookup_name("fired_target").unwrap();
    // SAFETY: kernel text is mapped and readable for ever.
    let text =
        unsafe { core::slice::from_raw_parts(symbol.start as *const u8, symbol.size as usize) };
    (listed, PROBES.slots_in_use(), text.to_vec())
}

/// Has `work` fail for want of memory at its first allocation, at its second, and so on, until it
/// does not fail. `prepare` makes what the work consumes. Then drops the result.
fn each_allocation_fails<S, T>(prepare: impl Fn() -> S, work: impl Fn(S) -> Result<T, LoadError>) {
    // Things that are made once and stay are there before the count.
    drop(work(prepare()));
    let mut failures = 0;
    for room in 0.. {
        let before = state();
        let gone = prepare();
        let of_source = with_room_for(u64::MAX, || drop(gone)).kept;
        let given = prepare();
        let outcome = with_room_for(room, || match work(given) {
            Ok(made) => {
                let sum = fired_target(7);
                drop(made);
                Ok(sum)
            }
            Err(error) => Err(error),
        });
        assert_eq!(outcome.kept, of_source, "bytes kept with room for {room}");
        assert_eq!(state(), before, "allocation {room} has left a trace");
        match outcome.result {
            Err(error) => {
                assert!(error.is_out_of_memory(), "{error}");
                assert_eq!(Errno::from(error), Errno::ENOMEM);
                assert!(outcome.refused > 0);
                failures += 1;
            }
            Ok(sum) => {
                assert_eq!(sum, 37);
                if outcome.refused == 0 {
                    break;
                }
            }
        }
    }
    assert!(failures > 5, "{failures}");
}

#[guest_test]
fn each_allocation_of_a_program_may_fail() {
    drop(recorder());
    each_allocation_fails(source, Program::load);
}

#[guest_test]
fn each_allocation_of_an_attached_program_may_fail() {
    drop(recorder());
    each_allocation_fails(source, |source| {
        AttachedProbe::new(Program::load(source)?, Kprobe::new().symbol("fired_target"))
    });
}

#[guest_test]
fn each_allocation_of_programs_on_many_places_may_fail() {
    let places = [address_of("fired_target"), address_of("body_of_nmi")];
    each_allocation_fails(source, |source| {
        AttachedProbes::new(Program::load(source)?, &places)
    });
}

#[guest_test]
fn each_allocation_of_a_call_may_fail() {
    each_allocation_fails(call_sources, |(entry, on_return)| {
        let on_return = Program::load(on_return)?;
        let entry = Program::load_beside(entry, &on_return)?;
        let probe = Kretprobe::new().symbol("fired_target");
        AttachedCall::new(Some(entry), on_return, probe)
    });
}

/// A place among many that is refused: none has a probe then, and no memory is kept.
#[guest_test]
fn a_place_that_is_refused_leaves_none() {
    let places = [address_of("fired_target"), address_of("kprobe_breakpoint")];
    let program = Program::load(source()).unwrap();
    let attach = || AttachedProbes::new(program.clone(), &places).map(drop);
    let _ = attach();
    let before = state();
    let outcome = with_room_for(u64::MAX, || attach().map_err(Errno::from));
    assert_eq!(outcome.result, Err(Errno::EINVAL));
    assert_eq!(outcome.kept, 0);
    assert_eq!(state(), before);
    assert_eq!(program.holders(), 1);
}

/// New rings, while there is no memory for them: the old ones stay, with what they hold.
#[guest_test]
fn each_allocation_of_new_rings_may_fail() {
    let _rings = Rings::of(8, true);
    let probe = super::attached_recorder();
    for n in 0..10 {
        fired_target(n);
    }
    for room in 0.. {
        let size = TRACING.buffer.size_kib(0);
        let outcome = with_room_for(room, || TRACING.buffer.resize(None, 16));
        if outcome.refused == 0 {
            assert_eq!(outcome.result, Ok(()));
            assert_eq!(
                (TRACING.buffer.size_kib(0), TRACING.buffer.unread()),
                (16, 0)
            );
            break;
        }
        assert_eq!(outcome.result, Err(BufferError::OutOfMemory));
        assert_eq!(outcome.kept, 0, "bytes kept with room for {room}");
        assert_eq!(
            (TRACING.buffer.size_kib(0), TRACING.buffer.unread()),
            (size, 10)
        );
    }
    drop(probe);
}

/// A filter or a trigger, written while there is no memory to read it: ENOMEM, and all is as
/// before. The rings of a snapshot are among what a trigger may find no memory for.
#[guest_test]
fn a_filter_or_a_trigger_that_has_no_memory_changes_nothing() {
    clean_up();
    let _rings = Rings::of(8, true);
    TRACING.buffer.free_snapshot().unwrap();
    echo("p:fired fired_target n=%di:u64", "kprobe_events").unwrap();
    append("p:other body_of_nmi", "kprobe_events").unwrap();
    echo("1", "events/kprobes/fired/enable").unwrap();
    let name = (String::from("kprobes"), String::from("fired"));
    let fields = EVENTS.lock().event(&name).unwrap().layout.fields.clone();
    let files = ["filter", "trigger"].map(|file| {
        let path = path(&format!("events/kprobes/fired/{file}"));
        fs::open(&path, open::RDWR).unwrap()
    });
    let show = || {
        files.each_ref().map(|file| {
            let mut text = vec![0; 512];
            let len = file.read_at(0, &mut text).unwrap();
            String::from_utf8(text[..len].to_vec()).unwrap()
        })
    };
    let nothing = show();
    for (at, line, undo) in [
        (0, "n == 7 && (n != 8 || comm ~ \"a*\")", "0"),
        (1, "traceoff:1 if n == 1000", "!traceoff"),
        (
            1,
            "enable_event:kprobes:other",
            "!enable_event:kprobes:other",
        ),
        (
            1,
            "hist:keys=n.buckets=4,common_pid:vals=n:sort=n",
            "!hist:keys=n.buckets=4,common_pid:vals=n:sort=n",
        ),
    ] {
        // As many as the reading of the line takes.
        let read = with_room_for(u64::MAX, || match at {
            0 => drop(filter::Request::parse(line, &fields, &KernelSymbols).unwrap()),
            _ => drop(trigger::Line::parse(line, &fields, &KernelSymbols).unwrap()),
        });
        assert!(read.granted > 1, "{line}");
        let write = |text: &str| files[at].write_at(0, text.as_bytes()).map(drop);
        // After the reading come programs, maps, places and, at last, jumps, which may be missing.
        for room in 0.. {
            let outcome = with_room_for(room, || write(line));
            let of = format!("{line} with room for {room}");
            assert_eq!(fired_target(7), 37, "{of}");
            if outcome.result.is_ok() {
                assert!(room >= read.granted, "{of}");
                assert_ne!(show(), nothing, "{of}");
                write(undo).unwrap();
            } else {
                assert_eq!(outcome.result, Err(Errno::ENOMEM), "{of}");
                if at == 0 && room < read.granted {
                    // The text of a refusal stays in the file until the next wish.
                    write(undo).unwrap();
                }
            }
            assert_eq!(show(), nothing, "{of}");
            if outcome.refused == 0 {
                assert_eq!(outcome.result, Ok(()), "{of}");
                assert!(room > read.granted + 5, "{of}");
                break;
            }
        }
    }
    // The second rings, by hand and for a trigger.
    for room in 0.. {
        let outcome = with_room_for(room, || TRACING.buffer.take_snapshot(None));
        if outcome.refused == 0 {
            assert_eq!(outcome.result, Ok(()));
            break;
        }
        let refused = Err(BufferError::OutOfMemory);
        assert_eq!((outcome.result, outcome.kept), (refused, 0));
        assert!(!TRACING.buffer.has_snapshot());
        let outcome = with_room_for(room, || TRACING.buffer.arm());
        assert_eq!((outcome.result, outcome.kept), (refused, 0));
        // No trigger keeps it.
        TRACING.buffer.free_snapshot().unwrap();
    }
    TRACING.buffer.free_snapshot().unwrap();
    drop(files);
    clean_up();
}

/// The events, and the names of all groups and of all files of the group `short`.
fn files_of_events() -> (String, Vec<String>) {
    let mut names = Vec::new();
    let mut list = |directory: String| {
        let entries = fs::entries(&NodeRef::root(), directory.as_bytes()).unwrap_or_default();
        let entries = entries.into_iter().map(|(name, _)| {
            let name = format!("{directory}/{}", String::from_utf8(name).unwrap());
            names.push(name.clone());
            name
        });
        entries.collect::<Vec<_>>()
    };
    for root in ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"] {
        list(format!("{root}/events"));
        list(format!("{root}/events/short"))
            .into_iter()
            .for_each(|event| drop(list(event)));
    }
    (read("kprobe_events").unwrap(), names)
}

/// A definition or a deletion, written while memory is out: ENOMEM, and there is neither an event
/// nor a file of one more or less than before.
#[guest_test]
fn a_definition_that_has_no_memory_changes_nothing() {
    clean_up();
    let _rings = Rings::of(8, true);
    let file = fs::open(&path("kprobe_events"), open::WRONLY | open::APPEND).unwrap();
    let write = |text: &str| file.write_at(0, text.as_bytes()).map(drop);
    for (before, line, after) in [
        (
            "",
            "p:short/a fired_target n=%di:u64 t=+0(%si):string",
            "-:short/a",
        ),
        // The group is there.
        (
            "p:short/b fired_target",
            "r4:short/a fired_target r=$retval n=$arg1",
            "-:short/a",
        ),
        // The event is there, and is on.
        (
            "p:short/a fired_target n=%di",
            "p:short/a body_of_nmi n=%di",
            "-:short/a body_of_nmi",
        ),
        (
            "p:short/a fired_target",
            "-:short/a",
            "p:short/a fired_target",
        ),
        (
            "p:short/a fired_target",
            "-:short/",
            "p:short/a fired_target",
        ),
    ] {
        let is_on = line.contains("body_of_nmi");
        let turn = |on: &str| {
            if is_on {
                echo(on, "events/short/a/enable").unwrap();
            }
        };
        if !before.is_empty() {
            write(before).unwrap();
        }
        turn("1");
        // A place that was armed may have lost its jump, for which there was no memory.
        let placed = || match state() {
            (listed, slots, _) if is_on => (listed, slots, Vec::new()),
            state => state,
        };
        let undo = || {
            turn("0");
            write(after).unwrap();
            turn("1");
        };
        // Lists that grow stay as long as they are.
        for _ in 0..2 {
            write(line).unwrap();
            undo();
            with_room_for(0, || write(line)).result.unwrap_err();
        }
        EVENTS.lock().errors.clear();
        let mut failures = 0;
        for room in 0.. {
            let (probes, files) = (placed(), files_of_events());
            let outcome = with_room_for(room, || {
                let result = write(line);
                EVENTS.lock().errors.clear();
                result
            });
            let of = format!("{line} with room for {room}");
            if outcome.result.is_ok() {
                assert_ne!(files_of_events(), files, "{of}");
                undo();
            } else {
                assert_eq!(outcome.result, Err(Errno::ENOMEM), "{of}");
                // It may have freed memory of the round before.
                assert!(outcome.kept <= 0, "{of}: {} bytes", outcome.kept);
                failures += 1;
            }
            assert_eq!((placed(), files_of_events()), (probes, files), "{of}");
            if outcome.refused == 0 {
                assert_eq!(outcome.result, Ok(()), "{of}");
                break;
            }
        }
        let least = if line.starts_with('-') { 1 } else { 30 };
        assert!(failures >= least, "{line}: {failures} failures");
        clean_up();
    }
    drop(file);
}

/// All events go also when there is no memory at all, and so do their files.
#[guest_test]
fn events_are_deleted_without_memory() {
    clean_up();
    let before = files_of_events();
    for line in [
        "p:short/a fired_target n=%di",
        "p:short/b fired_target",
        "p:short/b body_of_nmi",
        "p:other/a body_of_nmi",
    ] {
        append(line, "kprobe_events").unwrap();
    }
    let outcome = with_room_for(0, || {
        EVENTS
            .lock()
            .clear(tracefs::definition::File::DynamicEvents)
    });
    assert_eq!((outcome.result, outcome.refused), (Ok(()), 0));
    assert_eq!(files_of_events(), before);
    clean_up();
}

/// An event is turned off also when there is no memory at all. Its place is kept, and it can be
/// turned on later.
#[guest_test]
fn an_event_is_turned_off_without_memory() {
    clean_up();
    echo("p:fired fired_target n=%di:u64", "kprobe_events").unwrap();
    append(
        "r:fired_back fired_target r=$retval n=$arg1",
        "kprobe_events",
    )
    .unwrap();
    for name in ["fired", "fired_back"] {
        let name = (String::from("kprobes"), String::from(name));
        let mut events = EVENTS.lock();
        let event = events.event(&name).unwrap();
        for _ in 0..3 {
            event.enable(true).unwrap();
            let before = event.probes[0].profile().hits;
            fired_target(1);
            assert_eq!(event.probes[0].profile().hits, before + 1);
            let outcome = with_room_for(0, || event.enable(false));
            assert!(outcome.refused > 0, "there was nothing to refuse");
            assert_eq!((outcome.result, event.is_recorded()), (Ok(()), false));
            fired_target(1);
            assert_eq!(event.probes[0].profile().hits, before + 1);
        }
    }
    clean_up();
}

/// An open while memory is out: ENOMEM, and nothing is kept.
#[guest_test]
fn each_allocation_of_an_open_may_fail() {
    clean_up();
    let opened = |path: &str| fs::open(path, open::RDONLY).map(drop);
    for path in ["/bin/workload".into(), path("trace"), path("trace_pipe")] {
        opened(&path).unwrap();
        for room in 0.. {
            let outcome = with_room_for(room, || opened(&path));
            assert_eq!(outcome.kept, 0, "{path} with room for {room}");
            if outcome.refused == 0 {
                assert_eq!(outcome.result, Ok(()), "{path}");
                assert!(room > 0, "{path}");
                break;
            }
            assert_eq!(outcome.result, Err(Errno::ENOMEM), "{path}");
        }
    }
}

/// A read of records while memory is out: ENOMEM, and the next read has all that is there.
#[guest_test]
fn each_allocation_of_a_read_may_fail() {
    clean_up();
    let _rings = Rings::of(8, true);
    echo(
        "p:fired fired_target n=%di:u64 at=%ip:symbol",
        "kprobe_events",
    )
    .unwrap();
    echo("1", "events/kprobes/fired/enable").unwrap();
    for n in 0..3 {
        fired_target(n);
    }
    let trace = fs::open(&path("trace"), open::RDONLY).unwrap();
    let mut text = vec![0; 4096];
    // The table of names is made at the first read, and stays.
    let expected = trace.read_at(0, &mut text).unwrap();
    let expected = text[..expected].to_vec();
    for room in 0.. {
        let outcome = with_room_for(room, || trace.read_at(0, &mut text));
        if outcome.refused == 0 {
            assert_eq!(outcome.result, Ok(expected.len()));
            assert!(room > 5, "{room} allocations");
            break;
        }
        assert_eq!(outcome.result, Err(Errno::ENOMEM), "room for {room}");
        assert_eq!(trace.read_at(0, &mut text), Ok(expected.len()));
        assert_eq!(text[..expected.len()], expected);
    }
    clean_up();
}

/// The same of a reader that takes the records out: each is read once, in the order of the hits.
#[guest_test]
fn each_allocation_of_a_read_that_takes_records_may_fail() {
    clean_up();
    // Room for all records, because many reads take none.
    let _rings = Rings::of(64, true);
    echo("p:fired fired_target n=%di:u64", "kprobe_events").unwrap();
    echo("1", "events/kprobes/fired/enable").unwrap();
    let pipe = fs::open(&path("trace_pipe"), open::RDONLY | open::NONBLOCK).unwrap();
    let mut text = vec![0; 4096];
    let (mut seen, mut fired, mut waited) = (Vec::new(), 0, 0);
    for room in 0.. {
        fired_target(fired);
        fired += 1;
        let before = TRACING.buffer.unread();
        let outcome = with_room_for(room, || pipe.read_at(0, &mut text));
        let len = match outcome.result {
            Err(Errno::ENOMEM) => {
                waited += before - TRACING.buffer.unread();
                0
            }
            Ok(len @ 1..) => len,
            result => panic!("{result:?} with room for {room}"),
        };
        seen.extend_from_slice(&text[..len]);
        if outcome.refused == 0 {
            break;
        }
    }
    assert!(
        waited > 1,
        "{waited} records were taken by reads that failed"
    );
    // The last read had no room for all of them.
    while let Ok(len) = pipe.read_at(0, &mut text) {
        seen.extend_from_slice(&text[..len]);
    }
    assert_eq!(pipe.read_at(0, &mut text), Err(Errno::EAGAIN));
    let seen = String::from_utf8(seen).unwrap();
    let numbers = seen.lines().map(|line| {
        let (_, number) = line.rsplit_once(" n=").expect(line);
        number.parse::<u64>().expect(line)
    });
    assert!(numbers.eq(0..fired), "{fired} hits:\n{seen}");
    clean_up();
}
