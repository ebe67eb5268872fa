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

pub use functions::{Functions, Sources};

use std::{collections::BTreeMap, fmt};

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
use trace_link::LiveMap;
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
    /// How many records were reserved in front of the oldest one that is there, on all CPUs.
    pub earlier: u64,
    /// Rings that could not be read to their end, by CPU, and why.
    pub damaged: Vec<(u32, String)>,
}

/// Reads copies of the rings, by CPU.
pub fn read(rings: &[Vec<u8>]) -> Recording {
    let mut recording = Recording::default();
    for (cpu, ring) in rings.iter().enumerate() {
        let cpu = cpu as u32;
        if let Err(reason) = read_ring(cpu, ring, &mut recording) {
            recording.damaged.push((cpu, reason));
        }
    }
    recording.records.sort_by_key(|record| record.tsc);
    recording
}

fn read_ring(cpu: u32, ring: &[u8], recording: &mut Recording) -> Result<(), String> {
    let image = Image::still(ring).map_err(|error: ImageError| error.to_string())?;
    for (index, record) in image.records().enumerate() {
        let record = record.map_err(|error| error.to_string())?;
        if index == 0 {
            recording.earlier = recording.earlier.saturating_add(record.sequence);
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
    })
}

/// The records and maps of a user's program, from the memory of the dead kernel: the lines of the
/// last `last` records and all maps, and a timeline of all records. `started` is the frame of the
/// program's start.
///
/// # Errors
/// Those of a text that cannot grow: none.
pub fn lines(
    mut presentation: Presentation,
    started: &Frame,
    recording: &Recording,
    live: &[LiveMap],
    last: usize,
    symbols: &dyn Symbolize,
) -> Result<(String, Timeline), fmt::Error> {
    let mut text = String::new();
    let mut pictures = Pictures::new();
    presentation.frame(started, symbols, &mut text)?;
    let mut maps: BTreeMap<u32, Vec<MapEntry>> = BTreeMap::new();
    for part in live {
        for (key, words) in &part.entries {
            match key.first_chunk() {
                // Before the records that name it.
                Some(number) if part.is_stacks => {
                    let frame = Frame::Stack {
                        map: part.map,
                        number: u64::from_le_bytes(*number),
                        addresses: words.clone(),
                    };
                    presentation.frame(&frame, symbols, &mut text)?;
                }
                _ => maps.entry(part.map).or_default().push(MapEntry {
                    cpu: part.cpu,
                    key: key.clone(),
                    value: words.iter().copied().flat_map(u64::to_le_bytes).collect(),
                }),
            }
        }
    }
    let skipped = recording.records.len().saturating_sub(last);
    for (index, Record { cpu, tsc, bytes }) in recording.records.iter().enumerate() {
        let frame = Frame::Record {
            cpu: *cpu,
            tsc: *tsc,
            bytes: bytes.clone(),
        };
        let mut line = String::new();
        if let Event::Record(record) = presentation.frame(&frame, symbols, &mut line)? {
            let time = presentation.nanoseconds_since_start(record.tsc);
            let time = time.and_then(|time| u64::try_from(time).ok()).unwrap_or(0);
            pictures.instant(time, record.tid, record.cpu, &record.text, Vec::new());
        }
        if index >= skipped {
            text.push_str(&line);
        }
    }
    presentation.live(&maps, symbols, &mut text)?;
    lose(&mut pictures, recording, 0);
    Ok((text, pictures.finish()))
}

/// Tells of records that are not there, and of `strange` ones that were not understood.
fn lose(pictures: &mut Pictures, recording: &Recording, strange: u64) {
    for (what, count) in [
        ("written over by later ones", recording.earlier),
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
        let mut page = vec![0; PAGE_HEADER_BYTES];
        for (number, (tsc, payload)) in (0_u64..).zip(records) {
            let word = state::COMMITTED | (payload.len() as u64) << 8 | number << 32;
            page.extend(word.to_le_bytes());
            page.extend(tsc.to_le_bytes());
            page.extend(payload);
            page.resize(page.len().next_multiple_of(8), 0);
        }
        let end = Position::new(records.len() as u32, page.len() as u32);
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
                Position::new(0, PAGE_BYTES as u32).0,
            ),
        ]);
        for (at, word) in words {
            ring[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        ring.extend(page);
        ring
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
        let recording = read(&[
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

    #[test]
    fn bytes_that_are_no_ring_are_told() {
        let recording = read(&[vec![0; 10], vec![0; 8192]]);
        assert_eq!(recording.damaged.len(), 2, "{recording:?}");
        assert!(recording.records.is_empty());
    }
}
