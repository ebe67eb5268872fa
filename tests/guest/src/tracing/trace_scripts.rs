//! Scripts of the tracer in the kernel: loaded and attached as a whole or not at all.
//!
//! A script comes as maps, programs and places, as the tracer on the host sends it. If one part of
//! it is refused, all others are taken back. While it runs no other one does, its programs share
//! its maps, and afterwards the trace buffer is as it was.

use alloc::{string::String, vec, vec::Vec};
use core::{
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

use super::trace_files::{append, clean_up, echo};
use bpf::{
    AluOp, Builder, Helper, MapDef, MapIndex, MapKind, ProgramKind, Reg::*, Size::B8,
    context::Register,
};
use kernel::{
    errno::Errno,
    mm::allocation_faults::with_room_for,
    probes::{Kernel, PROBES},
    symbols,
    task::{schedule, spawn_kthread},
    trace::{
        TRACING,
        script::{How, Outlet, OwnTasks, Session},
    },
};
use trace_interface::{
    Frame, Script,
    script::{Attachment, Program, RECORD_TYPE, Request, VERSION, WatchedAccess, WatchedAt},
};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn scripted_target(a: u64) -> u64 {
    black_box(a) * 3
}

/// Keeps all frames.
#[derive(Default)]
struct Kept(Vec<Frame>);

impl Outlet for Kept {
    fn send(&mut self, frame: &Frame) {
        self.0.push(frame.clone());
    }
}

fn map(name: &'static str, kind: MapKind, key_size: u32, value_size: u32, entries: u32) -> MapDef {
    MapDef {
        name: name.into(),
        kind,
        key_size,
        value_size,
        entries,
    }
}

const COUNTS: u32 = 0;
const RING: u32 = 1;

fn program(kind: ProgramKind, build: impl FnOnce(&mut Builder)) -> Program {
    let mut b = Builder::new(match kind {
        ProgramKind::Probe => ProgramKind::Probe,
        ProgramKind::Entry { data } => ProgramKind::Entry { data },
        ProgramKind::Return { data } => ProgramKind::Return { data },
    });
    // Only their numbers count.
    b.map(MapDef::counters_by_key("counts", 8, 16));
    b.map(MapDef::ring("ring"));
    build(&mut b);
    b.exit(0);
    Program {
        kind,
        code: bpf::wire::encode(&b.finish().unwrap().insns).unwrap(),
        maps: vec![COUNTS, RING],
    }
}

/// Counts the key in `r6`.
fn count(b: &mut Builder) {
    b.store(R10, -8, B8, R6)
        .load_map(R1, MapIndex(COUNTS as u16))
        .mov(R2, R10)
        .alu(AluOp::Add, R2, -8)
        .mov(R3, 1)
        .call(Helper::AddByKey);
}

/// Counts calls of the target by argument and by result, in one map, and records each call.
fn script() -> Script {
    let target = symbols::lookup_name("scripted_target").unwrap().start;
    let entry = program(ProgramKind::Probe, |b| {
        b.load_register(R6, Register::Di);
        count(b);
        let full = b.label();
        b.load_map(R1, MapIndex(RING as u16))
            .mov(R2, 16)
            .mov(R3, 0)
            .mov(R4, i32::from(RECORD_TYPE))
            .call(Helper::EventReserve)
            .branch(bpf::Condition::Equal, R0, 0, full)
            .store(R0, 8, B8, 0)
            .submit(R0)
            .place(full);
    });
    let on_return = program(ProgramKind::Return { data: 0 }, |b| {
        b.load_register(R6, Register::Ax);
        count(b);
    });
    Script {
        version: VERSION,
        maps: vec![
            map("counts", MapKind::PerCpuHash, 8, 8, 16),
            map("ring", MapKind::Ring, 0, 0, 0),
        ],
        programs: vec![entry, on_return],
        attachments: vec![
            Attachment::Probe {
                program: 0,
                addresses: vec![target],
            },
            Attachment::Call {
                entry: None,
                on_return: 1,
                functions: vec![target],
            },
        ],
        probes: Vec::new(),
        requests: vec![Request::Forward],
        of_all_tasks: Vec::new(),
        with_tracer: false,
    }
}

/// The books of a whole run with five calls.
fn run(script: &Script) -> Vec<(u64, u64)> {
    let mut kept = Kept::default();
    let session = Session::start(script, How::default(), &mut kept);
    let session = session.unwrap_or_else(|refusal| panic!("{refusal:?}"));
    for _ in 0..5 {
        assert_eq!(scripted_target(7), 21);
    }
    session.end(&mut kept);
    let records = kept
        .0
        .iter()
        .filter(|frame| matches!(frame, Frame::Record { .. }));
    assert_eq!(records.count(), 5);
    let mut sums = [0; 2];
    for frame in &kept.0 {
        if let Frame::Map { entries, .. } = frame {
            for entry in entries {
                let at = usize::from(entry.key[0] == 21);
                sums[at] += u64::from(entry.value[0]);
            }
        }
    }
    assert_eq!(sums, [5, 5]);
    match kept.0.last() {
        Some(Frame::Ended { books, lost, .. }) => {
            assert_eq!(lost, &Vec::<(String, u64)>::new());
            books.iter().map(|of| (of.hits, of.missed)).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[guest_test]
fn programs_of_a_script_share_its_maps_and_have_books_of_their_own() {
    assert_eq!(run(&script()), [(5, 0), (5, 0)]);
}

/// The reader ends the watch, so it does when it has read the record that asks for it. A record
/// with another address changes nothing.
#[guest_test]
fn a_watch_ends_when_a_program_asks_for_that() {
    static WATCHED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    let mut script = script();
    let watch = program(ProgramKind::Probe, |b| {
        b.mov(R6, 1);
        count(b);
    });
    // The argument says how far the address is behind the word.
    let asks = program(ProgramKind::Probe, |b| {
        let full = b.label();
        b.load_register(R6, Register::Di)
            .set(R7, WATCHED[0].as_ptr() as i64)
            .alu(AluOp::Add, R6, R7)
            .load_map(R1, MapIndex(RING as u16))
            .mov(R2, 24)
            .mov(R3, 0)
            .mov(R4, i32::from(RECORD_TYPE))
            .call(Helper::EventReserve)
            .branch(bpf::Condition::Equal, R0, 0, full)
            .store(R0, 8, B8, 1)
            .store(R0, 16, B8, R6)
            .submit(R0)
            .place(full);
    });
    let target = symbols::lookup_name("scripted_target").unwrap().start;
    script.programs = vec![watch, asks];
    script.attachments = vec![
        Attachment::Watch {
            program: 0,
            at: WatchedAt::Address(WATCHED[0].as_ptr() as u64),
            bytes: 8,
            path: None,
            access: WatchedAccess::Write,
        },
        Attachment::Probe {
            program: 1,
            addresses: vec![target],
        },
    ];
    script.requests.push(Request::Unwatch);
    let mut kept = Kept::default();
    let mut session = Session::start(&script, How::default(), &mut kept).unwrap();
    let store = || WATCHED.iter().for_each(|word| word.store(1, SeqCst));
    store();
    assert_eq!(scripted_target(8), 24);
    session.serve(&mut kept);
    store();
    assert_eq!(scripted_target(0), 0);
    store();
    session.serve(&mut kept);
    for _ in 0..3 {
        store();
    }
    session.end(&mut kept);
    match kept.0.last() {
        Some(Frame::Ended { books, lost, .. }) => {
            assert_eq!(lost, &Vec::<(String, u64)>::new());
            let books: Vec<_> = books.iter().map(|of| (of.hits, of.missed)).collect();
            assert_eq!(books, [(3, 0), (2, 0)]);
        }
        other => panic!("{other:?}"),
    }
}

/// Two tasks are the tracer's, and a third one is not. A BEGIN is run by the tracer itself, so it
/// is not kept out. Entries of calls have no count: their returns have it.
#[guest_test]
fn the_tasks_of_the_tracer_are_kept_out_and_counted_apart() {
    let call = |times: u64| {
        spawn_kthread("caller", move || {
            while GO.load(SeqCst) == 0 {
                schedule();
            }
            for _ in 0..times {
                assert_eq!(scripted_target(7), 21);
            }
        })
        .expect("memory for a thread")
    };
    static GO: AtomicU64 = AtomicU64::new(0);
    GO.store(0, SeqCst);
    let (tracers, another) = (call(2), call(3));
    let mut script = script();
    let begin = program(ProgramKind::Probe, |b| {
        b.mov(R6, 1);
        count(b);
    });
    let counts_at_entry = program(ProgramKind::Entry { data: 0 }, |b| {
        b.mov(R6, 2);
        count(b);
    });
    script.programs.extend([begin, counts_at_entry]);
    script.attachments.push(Attachment::Begin { program: 2 });
    let Attachment::Call { entry, .. } = &mut script.attachments[1] else {
        panic!("the second one is a call");
    };
    *entry = Some(3);
    // As an event of the kernel is.
    let Attachment::Probe { addresses, .. } = &script.attachments[0] else {
        panic!("the first one is a probe");
    };
    let addresses = addresses.clone();
    script.of_all_tasks.push(script.attachments.len() as u32);
    script.attachments.push(Attachment::Probe {
        program: 0,
        addresses,
    });
    let how = How {
        own: OwnTasks::of_caller::<Kernel>().and(tracers.pid().cast_unsigned()),
        ..How::default()
    };
    let mut kept = Kept::default();
    let session = Session::start(&script, how, &mut kept).unwrap();
    GO.store(1, SeqCst);
    for _ in 0..4 {
        assert_eq!(scripted_target(7), 21);
    }
    tracers.wait_released();
    another.wait_released();
    session.end(&mut kept);
    let Some(Frame::Ended {
        books, kept_out, ..
    }) = kept.0.last()
    else {
        panic!("{:?}", kept.0);
    };
    let books: Vec<_> = books.iter().map(|of| (of.hits, of.missed)).collect();
    // Each call of the tracer's is a hit of two attachments.
    assert_eq!(
        (books, *kept_out),
        (vec![(3, 0), (3, 0), (1, 0), (9, 0)], 2 * (4 + 2))
    );
    let mut counts = [0; 4];
    for frame in &kept.0 {
        if let Frame::Map { entries, .. } = frame {
            for entry in entries {
                let key = usize::from(entry.key[0]);
                let at = [1, 2, 7, 21]
                    .iter()
                    .position(|known| *known == key)
                    .unwrap();
                counts[at] += u64::from(entry.value[0]);
            }
        }
    }
    assert_eq!(counts, [1, 3, 3 + 9, 3]);
}

#[guest_test]
fn one_script_runs_at_a_time_and_leaves_the_buffer_as_it_was() {
    let before = TRACING.buffer.overwrites();
    let mut kept = Kept::default();
    let first = Session::start(&script(), How::default(), &mut kept).unwrap();
    assert!(!TRACING.buffer.overwrites());
    let second = Session::start(&script(), How::default(), &mut kept);
    let refusal = second.map(drop).unwrap_err();
    assert!(refusal.text.contains("another script runs"), "{refusal:?}");
    first.end(&mut kept);
    assert_eq!(TRACING.buffer.overwrites(), before);
    assert_eq!(run(&script()).len(), 2);
}

/// The buffers are the script's while it runs: the calls of the kernel would fill them, and what
/// reads them is among these calls.
#[guest_test(memory = 512)]
fn tracers_rest_while_a_script_runs() {
    for tracer in ["function", "function_graph"] {
        echo("", "set_ftrace_filter").unwrap();
        echo(tracer, "current_tracer").unwrap();
        // Nothing of it is lost, so there was room.
        assert_eq!(run(&script()), [(5, 0), (5, 0)], "{tracer}");
        let written = TRACING.buffer.written();
        assert_eq!(scripted_target(7), 21);
        assert!(TRACING.buffer.written() > written, "{tracer} goes on");
        echo("nop", "current_tracer").unwrap();
    }
    clean_up();
}

/// The records of a script are its own: a dump that a command asks for meanwhile takes none of them
/// and says so.
#[guest_test]
fn a_dump_leaves_the_records_of_a_script() {
    const REFUSAL: &str = "   (a script has the buffer; end it, and have the dump again)";
    let refusals = || {
        let texts = kernel::log::history().map(|record| record.text().to_vec());
        texts.filter(|text| text == REFUSAL.as_bytes()).count()
    };
    let before = refusals();
    let mut kept = Kept::default();
    let session = Session::start(&script(), How::default(), &mut kept).unwrap();
    assert_eq!(scripted_target(7), 21);
    append("scripted_target:dump", "set_ftrace_filter").unwrap();
    assert_eq!(scripted_target(7), 21);
    append("!scripted_target:dump", "set_ftrace_filter").unwrap();
    assert_eq!(refusals(), before + 1);
    // Nor are there marks in them.
    assert_eq!(append("a mark", "trace_marker"), Err(Errno::EBUSY));
    session.end(&mut kept);
    let is_record = |frame: &&Frame| matches!(frame, Frame::Record { .. });
    assert!(kept.0.iter().any(|frame| is_record(&frame)));
    clean_up();
}

/// A script ends, also if each of its records, when it is read, leaves one of an event.
#[guest_test]
fn an_event_in_the_way_of_records_does_not_keep_a_script() {
    clean_up();
    echo(
        "p:mine/allocate block_heap.BlockHeap.allocate",
        "kprobe_events",
    )
    .unwrap();
    echo("1", "events/mine/enable").unwrap();
    assert_eq!(run(&script()), [(5, 0), (5, 0)]);
    clean_up();
}

#[guest_test]
fn a_part_that_cannot_be_attached_takes_the_others_back() {
    let listed = || {
        let mut count = 0;
        PROBES.for_each(|_| count += 1);
        count
    };
    let before = listed();
    let target = symbols::lookup_name("scripted_target").unwrap().start;
    for (attachment, at) in [
        (
            Attachment::Probe {
                program: 0,
                addresses: vec![0x1000],
            },
            Some(0),
        ),
        (
            Attachment::Call {
                entry: Some(0),
                on_return: 1,
                functions: vec![target],
            },
            Some(1),
        ),
        (
            Attachment::Source {
                program: 0,
                name: "sched:no_such_event".into(),
            },
            Some(0),
        ),
        (Attachment::Begin { program: 1 }, Some(1)),
        (Attachment::Begin { program: 9 }, Some(9)),
    ] {
        let mut wrong = script();
        wrong.attachments.push(attachment);
        let mut kept = Kept::default();
        let refused = Session::start(&wrong, How::default(), &mut kept);
        let refusal = refused.map(drop).unwrap_err();
        assert_eq!(refusal.program, at, "{refusal:?}");
        assert!(kept.0.is_empty());
        assert_eq!(listed(), before);
    }
}

#[guest_test]
fn an_attachment_without_a_place_is_left_out_if_another_one_of_its_probe_has_one() {
    let mut script = script();
    script.attachments.push(Attachment::Probe {
        program: 0,
        addresses: vec![0x1000],
    });
    for probes in [&[][..], &[0, 1], &[0, 1, 2]] {
        script.probes = probes.to_vec();
        let mut kept = Kept::default();
        let refused = Session::start(&script, How::default(), &mut kept);
        let refusal = refused.map(drop).unwrap_err();
        assert!(refusal.text.contains("0x1000"), "{refusal:?}");
        assert!(kept.0.is_empty());
    }
    script.probes = vec![0, 1, 0];
    assert_eq!(run(&script), [(5, 0), (5, 0), (0, 0)]);
}

#[guest_test]
fn places_that_cannot_be_probed_are_left_out_of_several() {
    let mut script = script();
    let stub = symbols::lookup_name("kretprobe_trampoline").unwrap().start;
    for attachment in &mut script.attachments {
        match attachment {
            Attachment::Probe { addresses, .. } => addresses.extend([0x1000, stub]),
            Attachment::Call { functions, .. } => {
                functions.splice(..0, [stub, 0x1000]).for_each(drop)
            }
            _ => {}
        }
    }
    let mut kept = Kept::default();
    let session = Session::start(&script, How::default(), &mut kept).unwrap();
    let Some(Frame::Started { places, .. }) = kept.0.first() else {
        panic!("{:?}", kept.0);
    };
    assert_eq!(places, &[1, 1]);
    drop(session);
    assert_eq!(run(&script), [(5, 0), (5, 0)]);
}

/// Each allocation fails once: the script is refused, and nothing of it stays.
#[guest_test]
fn a_script_without_memory_is_refused_and_leaves_nothing() {
    let script = script();
    // Things that are kept for good, such as rings and pools, are there then.
    run(&script);
    for room in 0.. {
        let outcome = with_room_for(room, || {
            Session::start(&script, How::default(), &mut Nobody).map(drop)
        });
        match outcome.result {
            // Without memory for a detour, a breakpoint stays.
            Ok(()) if outcome.refused > 0 => {}
            Ok(()) => {
                assert!(room > 0);
                break;
            }
            Err(refusal) => {
                assert!(outcome.refused > 0, "{refusal:?}");
                assert!(refusal.text.contains("no memory"), "{refusal:?}");
                let is_there = |program: u32| (program as usize) < script.programs.len();
                assert!(refusal.program.is_none_or(is_there), "{refusal:?}");
                assert_eq!(
                    outcome.kept, 0,
                    "bytes kept by the failure at allocation {room}"
                );
            }
        }
    }
    assert_eq!(run(&script), [(5, 0), (5, 0)]);
}

/// Hears nothing.
struct Nobody;

impl Outlet for Nobody {
    fn send(&mut self, _: &Frame) {}
}
