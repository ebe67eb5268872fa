//! Scripts of the tracer, built by hand, on a kernel that runs its workload: what the kernel
//! answers, to the last count.

use std::{
    fs,
    time::{Duration, Instant},
};

use boot::{
    guest::End,
    image::{Firmware, Kernel},
    prerequisites::{self, Install},
    qemu::Machine,
    trace::{Event, Request as TraceRequest, Trace},
};
use bpf::{Builder, Condition, Helper, MapDef, MapIndex, Reg::*, Size, context::Register};
use object::{Object, ObjectSymbol};
use tests::boots::one_guest;
use trace_model::{
    Frame, Script,
    script::{Attachment, Kind, Map, MapKind, Program, RECORD_TYPE, Request, VERSION},
};

/// A kernel, and what it said.
struct Run {
    frames: Vec<Frame>,
    log: String,
    end: End,
}

/// The address of a function by its linker's name.
fn address(kernel: &Kernel, name: &str) -> u64 {
    let bytes = fs::read(&kernel.debug_elf).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
    symbol.unwrap_or_else(|| panic!("no {name}")).address()
}

fn kernel() -> Kernel {
    prerequisites::toolchain(Install::Allowed).unwrap();
    Kernel::build("kernel").unwrap()
}

/// Runs `script`. `meanwhile` sees each frame, and may end the trace.
fn run_request(
    kernel: &Kernel,
    request: &TraceRequest,
    mut meanwhile: impl FnMut(&Trace, &Frame),
) -> Run {
    let _one = one_guest();
    let machine = Machine::new(kernel.image(Firmware::Bios).unwrap());
    let mut trace = Trace::start(&machine, Install::Allowed, request).unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    let (mut frames, mut log) = (Vec::new(), Vec::new());
    let end = loop {
        match trace.next(Some(deadline)) {
            Event::Message(bytes) => {
                let frame = Frame::decode(&bytes).unwrap();
                meanwhile(&trace, &frame);
                frames.push(frame);
            }
            Event::Log(text) => log.extend(text),
            Event::End(end) => break end,
            other => panic!("{other:?}\n{}", String::from_utf8_lossy(&log)),
        }
    };
    let log = String::from_utf8_lossy(&log).into_owned();
    Run { frames, log, end }
}

fn run(kernel: &Kernel, script: &Script) -> Run {
    let request = TraceRequest {
        script: script.encode(),
        ..TraceRequest::default()
    };
    run_request(kernel, &request, |_, _| {})
}

impl Run {
    /// The sums of a map's values, by the first 4 bytes of the key.
    fn sums(&self, map: u32) -> Vec<(u32, u64)> {
        let entries = self.frames.iter().rev().find_map(|frame| match frame {
            Frame::Map { map: of, entries } if *of == map => Some(entries),
            _ => None,
        });
        let mut sums = std::collections::BTreeMap::new();
        for entry in entries.unwrap_or_else(|| panic!("no map {map}: {:?}", self.frames)) {
            let key = u32::from_le_bytes(*entry.key.first_chunk().unwrap());
            let value = u64::from_le_bytes(*entry.value.first_chunk().unwrap());
            *sums.entry(key).or_default() += value;
        }
        sums.into_iter().collect()
    }

    /// The first value of each record with that request.
    fn records(&self, request: u32) -> Vec<u64> {
        let value = |frame: &Frame| match frame {
            Frame::Record { bytes, .. } if bytes[8..12] == request.to_le_bytes() => {
                Some(u64::from_le_bytes(*bytes[16..].first_chunk().unwrap()))
            }
            _ => None,
        };
        self.frames.iter().filter_map(value).collect()
    }
}

/// Builds a script part by part.
#[derive(Default)]
struct Writer {
    script: Script,
}

impl Writer {
    fn new() -> Self {
        let mut writer = Self::default();
        writer.script.version = VERSION;
        writer
    }

    fn map(&mut self, def: MapDef) -> u32 {
        self.script.maps.push(Map {
            name: def.name,
            kind: match def.kind {
                bpf::MapKind::Array => MapKind::Array,
                bpf::MapKind::PerCpuArray => MapKind::PerCpuArray,
                bpf::MapKind::Hash => MapKind::Hash,
                bpf::MapKind::PerCpuHash => MapKind::PerCpuHash,
                bpf::MapKind::Stacks => MapKind::Stacks,
                bpf::MapKind::Ring => MapKind::Ring,
            },
            key_size: def.key_size,
            value_size: def.value_size,
            entries: def.entries,
        });
        self.script.maps.len() as u32 - 1
    }

    /// A program whose maps are all those of the script so far, under the same numbers.
    fn program(&mut self, kind: Kind, build: impl FnOnce(&mut Builder)) -> u32 {
        let mut b = Builder::new(match kind {
            Kind::Probe => bpf::Kind::Probe,
            Kind::Entry { data } => bpf::Kind::Entry { data },
            Kind::Return { data } => bpf::Kind::Return { data },
        });
        build(&mut b);
        b.exit(0);
        let program = b.finish().unwrap();
        self.script.programs.push(Program {
            kind,
            code: bpf::wire::encode(&program.insns).unwrap(),
            maps: (0..self.script.maps.len() as u32).collect(),
        });
        self.script.programs.len() as u32 - 1
    }
}

/// Writes a record: the request's index, 4 bytes, and the value of `r7`.
fn record(b: &mut Builder, ring: u32, request: u32) {
    let full = b.label();
    b.load_map(R1, MapIndex(ring as u16))
        .mov(R2, 24)
        .mov(R3, 0)
        .mov(R4, i32::from(RECORD_TYPE))
        .call(Helper::EventReserve)
        .branch(Condition::Equal, R0, 0, full)
        .store(R0, 8, Size::B8, request as i32)
        .store(R0, 16, Size::B8, R7)
        .mov(R1, R0)
        .mov(R2, 0)
        .call(Helper::RingSubmit)
        .place(full);
}

/// Makes directories: one, and twice each of as many as it has children. The second time fails.
const CHILDREN: u64 = 3;
const CALLS: u64 = 1 + 2 * CHILDREN;

#[test]
fn counts_results_and_records_of_a_function_are_exact() {
    let kernel = kernel();
    let sys_mkdir = address(&kernel, "sys_mkdir");
    let mut w = Writer::new();
    let calls = w.map(MapDef::counters("calls", 1));
    let results = w.map(MapDef::histogram("results"));
    let ring = w.map(MapDef::ring("ring"));
    let entry = w.program(Kind::Probe, |b| {
        b.load_register(R7, Register::Si);
        b.add(MapIndex(calls as u16), 0, 1);
        record(b, ring, 0);
    });
    let on_return = w.program(Kind::Return { data: 0 }, |b| {
        b.load_register(R1, Register::Ax)
            .call(Helper::Log2)
            .mov(R2, R0)
            .load_map(R1, MapIndex(results as u16))
            .mov(R3, 1)
            .call(Helper::Add);
    });
    w.script.requests.push(Request::Forward);
    w.script.attachments = vec![
        Attachment::Probe {
            program: entry,
            addresses: vec![sys_mkdir],
        },
        Attachment::Call {
            entry: None,
            on_return,
            functions: vec![sys_mkdir],
        },
    ];
    let run = run(&kernel, &w.script);
    assert_eq!(run.end, End::Success, "{}", run.log);
    let Some(Frame::Started { places, cpus, .. }) = run.frames.first() else {
        panic!("{:?}", run.frames);
    };
    assert_eq!((&places[..], *cpus), (&[1, 1][..], 2));
    assert_eq!(run.sums(calls), [(0, CALLS)]);
    // 0, and a negative number, which has all 64 bits.
    assert_eq!(run.sums(results), [(0, 1 + CHILDREN), (64, CHILDREN)]);
    assert_eq!(run.records(0), [0o755; CALLS as usize]);
    let named: Vec<&str> = run.frames.iter().filter_map(comm).collect();
    assert_eq!(named, ["workload"]);
    let Some(Frame::Ended {
        status,
        books,
        lost,
        bad_loads,
    }) = run.frames.last()
    else {
        panic!("{:?}", run.frames);
    };
    assert_eq!((*status, *bad_loads), (0, 0));
    assert_eq!(lost, &[]);
    for of in books {
        assert_eq!((of.hits, of.missed), (CALLS, 0));
    }
    assert_eq!(books.len(), 2);
}

fn comm(frame: &Frame) -> Option<&str> {
    match frame {
        Frame::Comm { name, .. } => Some(name),
        _ => None,
    }
}
