//! The flight recorder: what it records unless a program says it, and how the last calls are
//! read from the rings of a kernel that has died.
//!
//! ```text
//!   functions ─ script ─► kernel: a record at each entry and return, the newest ones stay
//!                                        │ the kernel dies; its memory stays
//!   copies of the rings ─ read ─► Recording ─ timeline ─► pictures::text::tree
//! ```
//!
//! # Invariants
//! FLIGHT-1. A record that is damaged, or that is no record of this script, is counted and left
//!     out. The records of a ring come up to the first damaged one.
//!
//! # Contexts
//! The host. Nothing here panics on what a dead kernel has left.

#![forbid(unsafe_code)]

mod functions;
mod last_calls;

pub use functions::{Functions, Sources};
pub use last_calls::{LastCalls, functions};

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

use bpf::{
    AluOp, BuildError, Builder, Condition, Helper, MapDef, ProgramKind,
    Reg::{self, R0, R1, R2, R3, R4, R6, R7, R8, R9, R10},
    Size::B8,
    context::{self, Register},
};
use pictures::{Builder as Pictures, Timeline};
use trace_answers::{Event, Presentation, Symbolize};
use trace_interface::{
    Frame,
    frame::MapEntry,
    script::{Attachment, Program, RECORD_TYPE, Request, Script, VERSION},
};
use trace_link::{LiveMap, RingCopy};
use trace_ring::image::{Image, ImageError};

/// The requests of the two kinds of records.
const ENTRY: i32 = 0;
const RETURN: i32 = 1;

/// Bytes that the kernel keeps in front of each record: how many of it are used, in 4 bytes.
const PREFIX_BYTES: usize = 8;
/// The arguments that an entry records: the first ones.
const ARGUMENTS: [Register; 3] = *context::ARGUMENTS.first_chunk().unwrap();
/// Where the parts of a record are: the function, then the arguments or the result.
const FUNCTION: usize = 16;
const VALUES: usize = 24;
const COMM: usize = VALUES + ARGUMENTS.len() * 8;
const COMM_BYTES: usize = 16;
const ENTRY_BYTES: usize = COMM + COMM_BYTES;
const RETURN_BYTES: usize = VALUES + 8;

/// Reserves a record and calls `fill` with its beginning in `r0`, if there is room.
fn record(b: &mut Builder, bytes: usize, request: i32, fill: impl FnOnce(&mut Builder)) {
    let ring = b.map(MapDef::ring("ring"));
    let full = b.label();
    b.load_map(R1, ring)
        .mov(R2, bytes as i32)
        .mov(R3, 0)
        .mov(R4, i32::from(RECORD_TYPE))
        .call(Helper::EventReserve)
        .branch(Condition::Equal, R0, 0, full)
        .store(R0, 8, B8, request);
    fill(b);
    b.submit(R0).place(full).exit(0);
}

/// `*(r0 + to) = *(r10 + from)`.
fn copy(b: &mut Builder, to: usize, from: i16) {
    b.load(R1, R10, from, B8).store(R0, to as i16, B8, R1);
}

fn program(kind: ProgramKind, build: impl FnOnce(&mut Builder)) -> Result<Program, BuildError> {
    let mut b = Builder::new(kind);
    build(&mut b);
    let program = b.finish()?;
    let code = bpf::wire::encode(&program.insns).map_err(|_| BuildError::TooLong)?;
    Ok(Program {
        kind,
        code,
        maps: vec![0],
    })
}

/// A script that records the entry of each of `functions`, with three arguments, and its return.
///
/// # Errors
/// None that depends on the functions.
pub fn script(functions: &[u64]) -> Result<Script, BuildError> {
    const FUNC: i16 = -8;
    const NAME: i16 = FUNC - COMM_BYTES as i16;
    let entry = program(ProgramKind::Entry { data: 0 }, |b| {
        const KEPT: [Reg; ARGUMENTS.len()] = [R7, R8, R9];
        for (reg, argument) in KEPT.into_iter().zip(ARGUMENTS) {
            b.load_register(reg, argument);
        }
        b.call(Helper::FuncIp)
            .store(R10, FUNC, B8, R0)
            .mov(R1, R10)
            .alu(AluOp::Add, R1, i32::from(NAME))
            .mov(R2, COMM_BYTES as i32)
            .call(Helper::Comm);
        record(b, ENTRY_BYTES, ENTRY, |b| {
            copy(b, FUNCTION, FUNC);
            for (index, reg) in KEPT.into_iter().enumerate() {
                b.store(R0, (VALUES + 8 * index) as i16, B8, reg);
            }
            copy(b, COMM, NAME);
            copy(b, COMM + 8, NAME + 8);
        });
    })?;
    let on_return = program(ProgramKind::Return { data: 0 }, |b| {
        b.load_register(R6, Register::Ax)
            .call(Helper::FuncIp)
            .store(R10, FUNC, B8, R0);
        record(b, RETURN_BYTES, RETURN, |b| {
            copy(b, FUNCTION, FUNC);
            b.store(R0, VALUES as i16, B8, R6);
        });
    })?;
    Ok(Script {
        version: VERSION,
        maps: vec![MapDef::ring("ring")],
        programs: vec![entry, on_return],
        attachments: vec![Attachment::Call {
            entry: Some(0),
            on_return: 1,
            functions: functions.to_vec(),
        }],
        probes: Vec::new(),
        requests: vec![Request::Forward; 2],
        of_all_tasks: Vec::new(),
        with_tracer: false,
    })
}

/// A record, as [`trace_interface::Frame::Record`] has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub cpu: u32,
    pub tsc: u64,
    /// From the common header on.
    pub bytes: Vec<u8>,
}

/// The content of the rings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// In the order of time.
    pub records: Vec<Record>,
    /// How many records were reserved in front of the oldest one that was there, on all CPUs.
    pub earlier: u64,
    /// How many records were there, and have not come.
    pub cut_off: u64,
    /// Rings that could not be read to their end, by CPU, and why.
    pub damaged: Vec<(u32, String)>,
}

/// Reads copies of the rings, by CPU.
pub fn read(rings: &[RingCopy]) -> Recording {
    let mut recording = Recording::default();
    for (cpu, ring) in rings.iter().enumerate() {
        let cpu = cpu as u32;
        if ring.bytes.is_empty() {
            // The CPU has none.
            continue;
        }
        if let Err(reason) = read_ring(cpu, ring, &mut recording) {
            recording.damaged.push((cpu, reason));
        }
    }
    recording.records.sort_by_key(|record| record.tsc);
    recording
}

fn read_ring(cpu: u32, ring: &RingCopy, recording: &mut Recording) -> Result<(), String> {
    recording.cut_off += ring.cut_off;
    let image = Image::still(&ring.bytes).map_err(|error: ImageError| error.to_string())?;
    for (index, record) in image.records().enumerate() {
        let record = record.map_err(|error| error.to_string())?;
        if index == 0 {
            let earlier = record.sequence.saturating_sub(ring.cut_off);
            recording.earlier = recording.earlier.saturating_add(earlier);
        }
        let used = word(record.payload, 0).unwrap_or(0) as u32 as usize;
        let bytes = record.payload.get(PREFIX_BYTES..).unwrap_or_default();
        recording.records.push(Record {
            cpu,
            tsc: record.tsc,
            bytes: bytes.get(..used).unwrap_or(bytes).to_vec(),
        });
    }
    Ok(())
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

/// The calls of a recording of [`script`]. Times are in nanoseconds from the oldest record on.
pub fn timeline(recording: &Recording, tsc_hz: u64, functions: &impl Functions) -> Timeline {
    const NANOSECONDS: u128 = 1_000_000_000;
    let first = recording.records.first().map_or(0, |record| record.tsc);
    let mut pictures = Pictures::new();
    let mut strange = 0;
    for Record { cpu, tsc, bytes } in &recording.records {
        let ticks = u128::from(tsc.saturating_sub(first));
        let time = (ticks * NANOSECONDS / u128::from(tsc_hz.max(1))) as u64;
        let header = word(bytes, 0).unwrap_or(0);
        let tid = (header >> 32) as u32;
        let request = word(bytes, 8).map(|word| word as u32 as i32);
        let (Some(function), Some(value)) = (word(bytes, FUNCTION), word(bytes, VALUES)) else {
            strange += 1;
            continue;
        };
        if header as u16 != RECORD_TYPE {
            strange += 1;
            continue;
        }
        match request {
            Some(ENTRY) => {
                if let Some(comm) = bytes.get(COMM..COMM + COMM_BYTES) {
                    let end = comm.iter().position(|byte| *byte == 0);
                    let comm = &comm[..end.unwrap_or(COMM_BYTES)];
                    pictures.task(tid, tid, &String::from_utf8_lossy(comm));
                }
                let registers = [0, 1, 2].map(|index| word(bytes, VALUES + 8 * index));
                let [Some(first), Some(second), Some(third)] = registers else {
                    strange += 1;
                    continue;
                };
                let name = functions.name(function);
                let arguments = functions.arguments(function, [first, second, third]);
                pictures.entry(time, tid, *cpu, &name, arguments);
            }
            Some(RETURN) => {
                let name = functions.name(function);
                let result = functions.result(function, value);
                pictures.exit(time, tid, *cpu, &name, result);
            }
            _ => strange += 1,
        }
    }
    lose(&mut pictures, recording, strange);
    pictures.finish()
}

/// A request of a user's program that is not served, as the program has it. The kernel serves none,
/// because it reads no records while it is recorded.
pub fn unserved(script: &Script) -> Option<&'static str> {
    let mut requests = script.requests.iter();
    requests.find_map(|request| match request {
        Request::Forward => None,
        Request::Print { .. } => Some("`print(@map)`"),
        Request::Clear { .. } => Some("`clear(@map)`"),
        Request::Zero { .. } => Some("`zero(@map)`"),
        Request::Exit => Some("`exit()`"),
        Request::Unwatch => Some("`unwatch(address)`"),
    })
}

/// The call stacks in memory that was read, as frames, and the entries of the other maps.
pub fn stacks_and_maps(live: &[LiveMap]) -> (Vec<Frame>, BTreeMap<u32, Vec<MapEntry>>) {
    let (mut stacks, mut maps) = (Vec::new(), BTreeMap::<u32, Vec<MapEntry>>::new());
    for part in live {
        for (key, words) in &part.entries {
            match key.first_chunk() {
                Some(number) if part.is_stacks => stacks.push(Frame::Stack {
                    map: part.map,
                    number: u64::from_le_bytes(*number),
                    addresses: words.clone(),
                }),
                _ => maps.entry(part.map).or_default().push(MapEntry {
                    cpu: part.cpu,
                    key: key.clone(),
                    value: words.iter().copied().flat_map(u64::to_le_bytes).collect(),
                }),
            }
        }
    }
    (stacks, maps)
}

/// The records and maps of a user's program, from the memory of the dead kernel: the lines of the
/// last `last` records and all maps, and a timeline of all records. `started` is the frame of the
/// program's start. Control characters of answers are escapes.
///
/// # Errors
/// Those of a text that cannot grow: none.
pub fn lines(
    presentation: &mut Presentation,
    started: &Frame,
    recording: &Recording,
    live: &[LiveMap],
    last: usize,
    symbols: &dyn Symbolize,
) -> Result<(String, Timeline), fmt::Error> {
    let mut text = String::new();
    let mut pictures = Pictures::new();
    presentation.frame(started, symbols, &mut text)?;
    let (stacks, maps) = stacks_and_maps(live);
    for stack in &stacks {
        // Before the records that name it.
        presentation.frame(stack, symbols, &mut text)?;
    }
    // Probes are attached before the program's start, so there may be records before it.
    let records = recording.records.iter();
    let times = records.filter_map(|record| presentation.nanoseconds_since_start(record.tsc));
    let first = times.min().unwrap_or(0).min(0);
    let skipped = recording.records.len().saturating_sub(last);
    for (index, Record { cpu, tsc, bytes }) in recording.records.iter().enumerate() {
        let frame = Frame::Record {
            cpu: *cpu,
            tsc: *tsc,
            bytes: bytes.clone(),
        };
        let mut line = String::new();
        if let Event::Record(record) = presentation.frame(&frame, symbols, &mut line)? {
            let time = presentation
                .nanoseconds_since_start(record.tsc)
                .unwrap_or(0);
            let time = u64::try_from(time.saturating_sub(first)).unwrap_or(0);
            pictures.instant(time, record.tid, record.cpu, &record.text, Vec::new());
        }
        if index >= skipped {
            text.push_str(&line);
        }
    }
    presentation.live(&maps, symbols, &mut text)?;
    // A hit may have been at work on them when the kernel stopped.
    let left_out: usize = live.iter().map(|part| part.left_out).sum();
    if left_out > 0 {
        writeln!(
            text,
            "entries of maps that were being changed, and are not shown: {left_out}"
        )?;
    }
    lose(&mut pictures, recording, 0);
    Ok((presentation.visible(&text).into_owned(), pictures.finish()))
}

/// Tells of records that are not there, and of `strange` ones that were not understood.
fn lose(pictures: &mut Pictures, recording: &Recording, strange: u64) {
    for (what, count) in [
        ("written over by later ones", recording.earlier),
        ("older than those that have come", recording.cut_off),
        ("not of the flight recorder", strange),
    ] {
        if count > 0 {
            pictures.lost(what, count);
        }
    }
    for (cpu, reason) in &recording.damaged {
        pictures.lost(&format!("the ring of CPU {cpu} ends early: {reason}"), 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pictures::text::{Tree, tree};
    use std::mem::offset_of;
    use trace_interface::{
        shape::{Shape, StackForm},
        view::{Class, MapView, Record as Line, View},
    };
    use trace_ring::{
        layout::{
            self as ring_layout, HEADER_BYTES, Header, MAGIC, PAGE_HEADER_BYTES, Position,
            RECORD_HEADER_BYTES, Shared, Writing, state,
        },
        limits::PAGE_BYTES,
    };

    #[test]
    fn the_programs_are_taken_by_the_verifier() {
        let script = script(&[1, 2]).unwrap();
        let attachment = Attachment::Call {
            entry: Some(0),
            on_return: 1,
            functions: vec![1, 2],
        };
        assert_eq!(script.attachments, [attachment]);
        assert_eq!(script.programs.len(), 2);
        for program in &script.programs {
            let program = bpf::Program {
                kind: program.kind,
                insns: bpf::wire::decode(&program.code).unwrap(),
                maps: vec![MapDef::ring("ring")],
            };
            if let Err(refusal) = bpf::verifier::verify(program) {
                panic!("{refusal}");
            }
        }
    }

    /// Functions with their numbers as names. That with the number 2 has an argument and no result.
    struct Numbers;

    impl Functions for Numbers {
        fn name(&self, address: u64) -> String {
            format!("f{address}")
        }

        fn arguments(&self, address: u64, registers: [u64; 3]) -> Vec<(String, String)> {
            let all = (0..).zip(registers);
            let all = all
                .map(|(index, value): (u32, u64)| (format!("arg{index}"), format!("{value:#x}")));
            all.take(if address == 2 { 1 } else { 3 }).collect()
        }

        fn result(&self, address: u64, register: u64) -> Option<String> {
            (address != 2).then(|| format!("{register:#x}"))
        }
    }

    fn bytes(request: i32, tid: u64, values: &[u64]) -> Vec<u8> {
        let header = u64::from(RECORD_TYPE) | tid << 32;
        let words = [header, request as u64]
            .into_iter()
            .chain(values.iter().copied());
        words.flat_map(u64::to_le_bytes).collect()
    }

    #[test]
    fn the_last_calls_are_a_tree_whose_open_ones_come_last() {
        let comm = u64::from_le_bytes(*b"worker\0\0");
        let mut records = Vec::new();
        for (tsc, bytes) in [
            (1000, bytes(RETURN, 7, &[3, 0x55])),
            (2000, bytes(ENTRY, 7, &[1, 10, 11, 12, comm, 0])),
            (3000, bytes(ENTRY, 7, &[2, 20, 21, 22, comm, 0])),
            (4000, bytes(RETURN, 7, &[2, 0x99])),
            (5000, bytes(ENTRY, 7, &[2, 30, 31, 32, comm, 0])),
            (5001, vec![1, 2, 3]),
        ] {
            records.push(Record { cpu: 1, tsc, bytes });
        }
        let recording = Recording {
            records,
            earlier: 9,
            cut_off: 0,
            damaged: vec![(0, "why".into())],
        };
        let timeline = timeline(&recording, 1_000_000_000, &Numbers);
        let lost = [
            ("written over by later ones", 9),
            ("not of the flight recorder", 1),
            ("the ring of CPU 0 ends early: why", 1),
        ];
        assert_eq!(
            timeline.lost,
            lost.map(|(what, count)| (what.to_string(), count))
        );
        assert_eq!(timeline.task_name(7), "worker");
        let text = tree(&timeline, Tree::default());
        let place = |what: &str| {
            text.find(what)
                .unwrap_or_else(|| panic!("no {what}: {text}"))
        };
        let outer = place("f1(arg0 = 0xa, arg1 = 0xb, arg2 = 0xc)");
        let inner = place("f2(arg0 = 0x14)  1.00 µs");
        let last = place("f2(arg0 = 0x1e)  …");
        assert!(outer < inner && inner < last, "{text}");
        assert!(text[last..].contains("never returned"), "{text}");
    }

    /// The memory of a ring of one page with these records: their times and payloads.
    fn ring(records: &[(u64, Vec<u8>)]) -> Vec<u8> {
        ring_from(0, records)
    }

    /// The same, if the first record that is there has that number.
    fn ring_from(first: u32, records: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let mut page = vec![0; PAGE_HEADER_BYTES];
        for (number, (tsc, payload)) in (u64::from(first)..).zip(records) {
            let word = state::COMMITTED | (payload.len() as u64) << 8 | number << 32;
            page.extend(word.to_le_bytes());
            page.extend(tsc.to_le_bytes());
            page.extend(payload);
            page.resize(page.len().next_multiple_of(8), 0);
        }
        let end = Position::new(first + records.len() as u32, page.len() as u32);
        page.resize(PAGE_BYTES, 0);
        let mut ring = vec![0; HEADER_BYTES];
        let description = [
            MAGIC,
            ring_layout::VERSION,
            HEADER_BYTES as u64,
            PAGE_BYTES as u64,
            PAGE_HEADER_BYTES as u64,
            RECORD_HEADER_BYTES as u64,
            PAGE_BYTES as u64,
        ];
        let words = (0..).step_by(8).zip(description).chain([
            (
                offset_of!(Header, writing) + offset_of!(Writing, committed),
                end.0,
            ),
            (
                offset_of!(Header, shared) + offset_of!(Shared, oldest),
                Position::new(first, PAGE_BYTES as u32).0,
            ),
        ]);
        for (at, word) in words {
            ring[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        ring.extend(page);
        ring
    }

    /// Reads rings of which all has come.
    fn read_whole(rings: &[Vec<u8>]) -> Recording {
        let copy = |bytes: &Vec<u8>| RingCopy {
            bytes: bytes.clone(),
            cut_off: 0,
        };
        read(&rings.iter().map(copy).collect::<Vec<_>>())
    }

    /// A record as the kernel leaves it: how many bytes of it are used, and the bytes.
    fn recorded(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
    }

    /// Each ring is in the order of time by itself. Together they are only if they are sorted.
    #[test]
    fn records_of_several_cpus_come_in_the_order_of_time() {
        let comm = u64::from_le_bytes(*b"worker\0\0");
        let entry = |tid, function| recorded(&bytes(ENTRY, tid, &[function, 1, 2, 3, comm, 0]));
        let leave = |tid, function| recorded(&bytes(RETURN, tid, &[function, 0]));
        let recording = read_whole(&[
            ring(&[
                (1000, entry(7, 1)),
                (4000, leave(7, 1)),
                (5000, entry(8, 3)),
            ]),
            ring(&[
                (2000, entry(8, 2)),
                (3000, leave(8, 2)),
                (6000, entry(7, 4)),
            ]),
        ]);
        assert_eq!((recording.earlier, &recording.damaged[..]), (0, &[][..]));
        let order: Vec<_> = recording.records.iter().map(|r| (r.tsc, r.cpu)).collect();
        let cpus = [
            (1000, 0),
            (2000, 1),
            (3000, 1),
            (4000, 0),
            (5000, 0),
            (6000, 1),
        ];
        assert_eq!(order, cpus);
        let timeline = timeline(&recording, 1_000_000_000, &Numbers);
        assert_eq!(timeline.lost, []);
        let last = Tree {
            last: Some(2),
            from_end: true,
            ..Tree::default()
        };
        let text = tree(&timeline, last);
        let place = |what: &str| {
            text.find(what)
                .unwrap_or_else(|| panic!("no {what}: {text}"))
        };
        assert!(place("f3(") < place("f4("), "{text}");
    }

    /// Bytes after the used ones are no part of a record, and it has no more than are there.
    #[test]
    fn a_record_has_the_bytes_that_are_used() {
        let payload = |used: u64, bytes: &[u8]| [&used.to_le_bytes(), bytes].concat();
        let recording = read_whole(&[ring(&[
            (1, payload(3, &[1, 2, 3, 4, 5])),
            (2, payload(99, &[6, 7])),
            (3, payload(1 << 32, &[8])),
        ])]);
        let bytes = recording.records.iter().map(|record| &record.bytes[..]);
        assert_eq!(bytes.collect::<Vec<_>>(), [&[1, 2, 3][..], &[6, 7], &[]]);
    }

    /// The number of the first record that is there tells how many were before it, on each CPU.
    #[test]
    fn records_that_are_gone_are_counted_on_all_cpus() {
        let later = |first| ring_from(first, &[(5, recorded(&[])), (6, recorded(&[]))]);
        let recording = read_whole(&[later(0), later(30), later(400)]);
        assert_eq!(recording.damaged, []);
        assert_eq!((recording.records.len(), recording.earlier), (6, 430));
        // Of those, some were there when the kernel died, and have not come.
        let cut = |first, cut_off| RingCopy {
            bytes: later(first),
            cut_off,
        };
        let none = RingCopy::default();
        let recording = read(&[cut(30, 0), none, cut(400, 50)]);
        assert_eq!(recording.damaged, []);
        assert_eq!((recording.earlier, recording.cut_off), (380, 50));
        let lost = timeline(&recording, 1_000_000_000, &Numbers).lost;
        let lost: Vec<_> = lost.iter().map(|(why, count)| (&**why, *count)).collect();
        let wanted = [
            ("written over by later ones", 380),
            ("older than those that have come", 50),
        ];
        assert_eq!(lost[..2], wanted);
    }

    #[test]
    fn times_are_nanoseconds_from_the_oldest_record_on() {
        let record = |tsc, request| Record {
            cpu: 0,
            tsc,
            bytes: bytes(request, 7, &[1, 10, 11, 12, 0, 0]),
        };
        let recording = Recording {
            records: vec![
                record(9_000, ENTRY),
                record(9_600, ENTRY),
                record(10_000, RETURN),
            ],
            ..Recording::default()
        };
        let timeline = timeline(&recording, 2_000_000_000, &Numbers);
        let calls = timeline.calls.iter();
        let times: Vec<_> = calls.map(|call| (call.begin, call.end)).collect();
        assert_eq!(times, [(0, 500), (300, 500)]);
        let calls = timeline.calls.iter();
        let ends: Vec<_> = calls
            .map(|call| (call.cpu_at_entry, &call.result))
            .collect();
        assert_eq!(ends, [(Some(0), &None), (Some(0), &Some("0xa".into()))]);
    }

    /// Nothing reads the records while the program runs, so it can ask for nothing then.
    #[test]
    fn requests_that_a_dead_kernel_cannot_serve_are_told() {
        let told = |requests: &[Request]| {
            let requests = [&[Request::Forward], requests].concat();
            let script = script(&[1]).unwrap();
            unserved(&Script { requests, ..script })
        };
        assert_eq!(told(&[]), None);
        let clear = Request::Clear { map: 1 };
        for (request, call) in [
            (Request::Print { map: 1 }, "`print(@map)`"),
            (Request::Zero { map: 1 }, "`zero(@map)`"),
            (Request::Exit, "`exit()`"),
            (Request::Unwatch, "`unwatch(address)`"),
            (clear.clone(), "`clear(@map)`"),
        ] {
            assert_eq!(told(std::slice::from_ref(&request)), Some(call));
            assert_eq!(told(&[request, clear.clone()]), Some(call), "the first one");
        }
    }

    /// The last lines, with the stacks that they name, and all maps of all CPUs. The timeline has
    /// all lines.
    #[test]
    fn a_program_shows_its_last_lines_and_its_maps() {
        let stack = Shape::Stack {
            map: 1,
            is_user: false,
            form: StackForm::default(),
        };
        let view = View {
            maps: vec![MapView {
                name: Some("@n".into()),
                class: Class::Count,
                keys: vec![Shape::Unsigned(8)],
            }],
            records: vec![Line::Value(stack)],
            ..View::default()
        };
        let started = Frame::Started {
            tsc_hz: 1_000_000_000,
            tsc: 100,
            epoch_nanoseconds: 0,
            cpus: 2,
            places: vec![1],
        };
        let records = (1..=3).map(|number| Record {
            cpu: 1,
            tsc: 98 + number,
            bytes: bytes(0, 7, &[number]),
        });
        let recording = Recording {
            records: records.collect(),
            earlier: 4,
            cut_off: 0,
            damaged: Vec::new(),
        };
        let part = |map, cpu, is_stacks, entries: &[(u64, &[u64])]| LiveMap {
            map,
            cpu,
            is_stacks,
            entries: entries
                .iter()
                .map(|(key, words)| (key.to_le_bytes().into(), words.to_vec()))
                .collect(),
            left_out: usize::from(cpu == 1),
        };
        let live = [
            part(0, 0, false, &[(5, &[10]), (6, &[1])]),
            part(0, 1, false, &[(5, &[20])]),
            part(1, 0, true, &[(1, &[0x1]), (2, &[0x2]), (3, &[0x3])]),
        ];
        let mut presentation = Presentation::new(view);
        let symbols = &trace_answers::NoSymbols;
        let (text, timeline) =
            lines(&mut presentation, &started, &recording, &live, 2, symbols).unwrap();
        let unread = "entries of maps that were being changed, and are not shown: 1\n";
        let text = text.strip_suffix(unread).expect("what is left out is told");
        let shown: Vec<_> = text.split_whitespace().collect();
        assert_eq!(
            shown,
            ["0x2", "0x3", "@n[6]:", "1", "@n[5]:", "30"],
            "{text}"
        );
        let instants = timeline.instants.iter();
        let instants: Vec<_> = instants
            .map(|instant| (instant.time, instant.tid, instant.cpu, instant.name.trim()))
            .collect();
        // The first one was before the start.
        let expected = [(0, 7, 1, "0x1"), (1, 7, 1, "0x2"), (2, 7, 1, "0x3")];
        assert_eq!(instants, expected);
        assert_eq!(timeline.lost, [("written over by later ones".into(), 4)]);
    }

    #[test]
    fn bytes_that_are_no_ring_are_told() {
        let recording = read_whole(&[vec![0; 10], vec![0; 8192]]);
        assert_eq!(recording.damaged.len(), 2, "{recording:?}");
        assert!(recording.records.is_empty());
    }
}
