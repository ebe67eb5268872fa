//! Scripts of the tracer, built by hand, on a kernel that runs its workload: what the kernel
//! answers, to the last count.
//!
//! The tracer's compiler is left out: programs, maps and requests are written one by one, also such
//! as it would not make. The answers come by shared memory or by the serial port, from a kernel
//! that ends well, that is stopped, or that dies.

use std::{
    fs,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use boot::{firmware::Firmware, guest::End, image::Kernel, prerequisites::Install, qemu::Machine};
use bpf::{
    AluOp, Builder, Condition, Helper, MapDef, MapIndex, MapKind, ProgramKind, Reg::*, Size,
    context::Register,
};
use debug_info::DebugInfo;
use object::{Object, ObjectSymbol};
use tests::{Session, built::kernel, processors::for_guest};
use trace_interface::{
    Frame, Script,
    script::{Attachment, Program, RECORD_TYPE, Request, VERSION},
};
use trace_link::{Event, Request as TraceRequest, RingCopy, Trace, Transport};
use trace_ring::image::Image;

/// A kernel, and what it said.
struct Run {
    frames: Vec<Frame>,
    log: String,
    end: End,
    hung: bool,
    rings: Vec<RingCopy>,
}

/// The address of a function by its linker's name.
fn address(kernel: &Kernel, name: &str) -> u64 {
    let bytes = fs::read(&kernel.debug_elf).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
    symbol.unwrap_or_else(|| panic!("no {name}")).address()
}

/// Runs `request`. `meanwhile` sees each frame, and may end the trace.
fn run_request(
    kernel: &Kernel,
    request: &TraceRequest,
    cmdline: &str,
    meanwhile: impl FnMut(&Trace, &Frame),
) -> Run {
    let machine = Machine {
        cmdline: cmdline.into(),
        ..Machine::new(kernel.image(Firmware::Bios).unwrap())
    };
    run_on(&machine, request, meanwhile)
}

fn run_on(
    machine: &Machine,
    request: &TraceRequest,
    mut meanwhile: impl FnMut(&Trace, &Frame),
) -> Run {
    let _taken = for_guest(machine.cpus);
    let mut trace = Trace::start(machine, Install::Allowed, request).unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    let (mut frames, mut log, mut hung) = (Vec::new(), Vec::new(), false);
    let end = loop {
        match trace.next(Some(deadline)) {
            Event::Message(bytes) => {
                let frame = Frame::decode(&bytes).unwrap();
                meanwhile(&trace, &frame);
                frames.push(frame);
            }
            Event::Log(text) => log.extend(text),
            Event::Hung => hung = true,
            Event::End(end) => break end,
            other => panic!("{other:?}\n{}", String::from_utf8_lossy(&log)),
        }
    };
    let log = String::from_utf8_lossy(&log).into_owned();
    Run {
        frames,
        log,
        end,
        hung,
        rings: trace.rings(),
    }
}

fn run(kernel: &Kernel, script: &Script) -> Run {
    let request = TraceRequest {
        script: script.encode(),
        ..TraceRequest::default()
    };
    run_request(kernel, &request, "", |_, _| {})
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

    fn ended(&self) -> (i32, Vec<(u64, u64)>) {
        match self.frames.last() {
            Some(Frame::Ended { status, books, .. }) => {
                let books = books.iter().map(|of| (of.hits, of.missed));
                (*status, books.collect())
            }
            _ => panic!("{:?}\n{}", self.frames, self.log),
        }
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
        self.script.maps.push(def);
        self.script.maps.len() as u32 - 1
    }

    /// A program whose maps are all those of the script so far, under the same numbers.
    fn program(&mut self, kind: ProgramKind, build: impl FnOnce(&mut Builder)) -> u32 {
        let mut b = Builder::new(match kind {
            ProgramKind::Probe => ProgramKind::Probe,
            ProgramKind::Entry { data } => ProgramKind::Entry { data },
            ProgramKind::Return { data } => ProgramKind::Return { data },
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

/// The status of all records of request 1.
const STATUS: i32 = 7;

/// Writes a record: the request's index, [`STATUS`] or 0, and the value of `r7`.
fn record(b: &mut Builder, ring: u32, request: u32) {
    let full = b.label();
    b.load_map(R1, MapIndex(ring as u16))
        .mov(R2, 24)
        .mov(R3, 0)
        .mov(R4, i32::from(RECORD_TYPE))
        .call(Helper::EventReserve)
        .branch(Condition::Equal, R0, 0, full)
        .store(R0, 8, Size::B4, request as i32)
        .store(R0, 12, Size::B4, if request == 1 { STATUS } else { 0 })
        .store(R0, 16, Size::B8, R7)
        .submit(R0)
        .place(full);
}

/// Makes directories: one, and twice each of as many as it has children. The second time fails.
const CHILDREN: u64 = 3;
const CALLS: u64 = 1 + 2 * CHILDREN;

/// A script that counts calls of `sys_mkdir`, their results, and writes a record for each.
fn mkdir_script(kernel: &Kernel) -> Script {
    let sys_mkdir = address(kernel, "sys_mkdir");
    let mut w = Writer::new();
    let calls = w.map(MapDef::counters("calls", 1));
    let results = w.map(MapDef::histogram("results"));
    let ring = w.map(MapDef::ring("ring"));
    let entry = w.program(ProgramKind::Probe, |b| {
        b.load_register(R7, Register::Si);
        b.add(MapIndex(calls as u16), 0, 1);
        record(b, ring, 0);
    });
    let on_return = w.program(ProgramKind::Return { data: 0 }, |b| {
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
    w.script
}

#[test]
fn counts_results_and_records_of_a_function_are_exact_through_memory_and_port() {
    let kernel = kernel();
    let script = mkdir_script(kernel).encode();
    for transport in [Transport::Memory, Transport::Serial] {
        let request = TraceRequest {
            script: script.clone(),
            transport,
            ..TraceRequest::default()
        };
        let run = run_request(kernel, &request, "", |_, _| {});
        assert_eq!(run.end, End::Success, "{}", run.log);
        let Some(Frame::Started {
            places,
            cpus,
            epoch_nanoseconds,
            ..
        }) = run.frames.first()
        else {
            panic!("{:?}", run.frames);
        };
        assert_eq!((&places[..], *cpus), (&[1, 1][..], 2));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let day = Duration::from_hours(24).as_nanos();
        assert!(now.as_nanos().abs_diff((*epoch_nanoseconds).into()) < day);
        assert_eq!(run.sums(0), [(0, CALLS)]);
        // 0, and a negative number, which has all 64 bits.
        assert_eq!(run.sums(1), [(0, 1 + CHILDREN), (64, CHILDREN)]);
        assert_eq!(run.records(0), [0o755; CALLS as usize]);
        let named: Vec<&str> = run.frames.iter().filter_map(comm).collect();
        assert_eq!(named, ["workload"]);
        assert_eq!(run.ended(), (0, vec![(CALLS, 0); 2]));
        let Some(Frame::Ended {
            lost, bad_loads, ..
        }) = run.frames.last()
        else {
            panic!("{:?}", run.frames);
        };
        assert_eq!((&lost[..], *bad_loads), (&[][..], 0));
        assert_eq!(run.rings.is_empty(), transport == Transport::Serial);
    }
}

/// A program that ends only when it is ended.
const ENDLESS: &str = "exercise sleep 1000000000";

/// A program that counts its runs, and writes a record with request 0; the fifth time, with
/// request 1.
fn counting_to_five(w: &mut Writer, ring: u32) -> u32 {
    let times = w.map(MapDef {
        kind: MapKind::Array,
        ..MapDef::counters("times", 1)
    });
    w.program(ProgramKind::Probe, |b| {
        let (end, fifth) = (b.label(), b.label());
        b.store(R10, -8, Size::B8, 0)
            .load_map(R1, MapIndex(times as u16))
            .mov(R2, R10)
            .alu(AluOp::Add, R2, -8)
            .call(Helper::MapLookup)
            .branch(Condition::Equal, R0, 0, end)
            .load(R7, R0, 0, Size::B8)
            .alu(AluOp::Add, R7, 1)
            .store(R0, 0, Size::B8, R7)
            .branch(Condition::Equal, R7, 5, fifth);
        record(b, ring, 0);
        b.jump(end).place(fifth);
        record(b, ring, 1);
        b.place(end);
    })
}

/// Each 10 ms: counts to five.
fn interval_script() -> Script {
    let mut w = Writer::new();
    let ring = w.map(MapDef::ring("ring"));
    let begin = w.program(ProgramKind::Probe, |b| {
        b.mov(R7, 1);
        record(b, ring, 0);
    });
    let interval = counting_to_five(&mut w, ring);
    let end = w.program(ProgramKind::Probe, |b| {
        b.mov(R7, 99);
        record(b, ring, 0);
    });
    w.script.requests = vec![Request::Forward, Request::Exit];
    w.script.attachments = vec![
        Attachment::End { program: end },
        Attachment::Begin { program: begin },
        Attachment::Interval {
            program: interval,
            nanoseconds: 10_000_000,
        },
    ];
    w.script
}

#[test]
fn an_interval_ends_the_script_and_the_program() {
    let request = TraceRequest {
        script: interval_script().encode(),
        run: Some(ENDLESS.into()),
        ..TraceRequest::default()
    };
    let run = run_request(kernel(), &request, "", |_, _| {});
    assert_eq!(run.end, End::Success, "{}", run.log);
    assert_eq!(run.records(0), [1, 1, 2, 3, 4, 99]);
    assert_eq!(run.records(1), [5]);
    let (status, books) = run.ended();
    assert_eq!(status, STATUS);
    let ran: Vec<u64> = books.iter().map(|(hits, missed)| hits - missed).collect();
    assert_eq!(ran, [1, 1, 5]);
}

#[test]
fn a_limit_and_the_host_end_the_script_and_the_program() {
    let kernel = kernel();
    let mut script = interval_script();
    // The end is not asked for.
    script.requests[1] = Request::Forward;
    let limited = TraceRequest {
        script: script.encode(),
        run: Some(ENDLESS.into()),
        limit: Some(Duration::from_millis(100)),
        ..TraceRequest::default()
    };
    let run = run_request(kernel, &limited, "", |_, _| {});
    assert_eq!(run.end, End::Success, "{}", run.log);
    assert_eq!(run.ended().0, 0);
    let unlimited = TraceRequest {
        limit: None,
        ..limited
    };
    let run = run_request(kernel, &unlimited, "", |trace, frame| {
        if matches!(frame, Frame::Record { .. }) {
            trace.end();
        }
    });
    assert_eq!(run.end, End::Success, "{}", run.log);
    assert_eq!(run.ended().0, 0);
    assert_eq!(run.records(0).last(), Some(&99));
}

/// On one CPU with long ticks the trace is over before the task that started it runs again.
#[test]
fn a_trace_may_be_over_before_its_program_begins() {
    let request = TraceRequest {
        script: interval_script().encode(),
        limit: Some(Duration::ZERO),
        ..TraceRequest::default()
    };
    let machine = Machine {
        cpus: 1,
        cmdline: "tick_ms=100".into(),
        ..Machine::new(kernel().image(Firmware::Bios).unwrap())
    };
    let run = run_on(&machine, &request, |_, _| {});
    assert_eq!(run.end, End::Success, "{}", run.log);
    assert_eq!(run.ended().0, 0);
    let records = run.records(0);
    let [1, intervals @ .., 99] = &records[..] else {
        panic!("the beginning first and the end last: {records:?}");
    };
    // On a busy host the interval may be over first.
    let expected: Vec<u64> = (1..).take(intervals.len()).collect();
    assert_eq!(intervals, expected, "{records:?}");
}

#[test]
fn a_script_with_one_bad_part_is_refused_as_a_whole() {
    let kernel = kernel();
    let mut script = mkdir_script(kernel);
    let mut b = Builder::new(ProgramKind::Probe);
    // A store to kernel memory.
    b.load_register(R2, Register::Di)
        .store(R2, 0, Size::B8, 1)
        .exit(0);
    script.programs.push(Program {
        kind: ProgramKind::Probe,
        code: bpf::wire::encode(&b.finish().unwrap().insns).unwrap(),
        maps: Vec::new(),
    });
    script.attachments.push(Attachment::Source {
        program: 2,
        name: "sched:sched_switch".into(),
    });
    let refused = |script: &Script, text: &str| {
        let run = run(kernel, script);
        assert_eq!(run.end, End::Failure, "{}", run.log);
        match &run.frames[..] {
            [Frame::Refused { program, text: why }] => {
                assert!(why.contains(text), "{why}");
                *program
            }
            frames => panic!("{frames:?}"),
        }
    };
    assert_eq!(refused(&script, "expected "), Some(2));
    script.attachments.pop();
    script.attachments.push(Attachment::Probe {
        program: 0,
        // No text is there.
        addresses: vec![0x1000],
    });
    assert_eq!(refused(&script, ""), Some(0));
}

#[test]
fn requests_are_served_between_the_records() {
    let mut w = Writer::new();
    let ring = w.map(MapDef::ring("ring"));
    let hash = w.map(MapDef::counters_by_key("hash", 8, 16));
    let begin = w.program(ProgramKind::Probe, |b| {
        b.store(R10, -8, Size::B8, 7)
            .load_map(R1, MapIndex(hash as u16))
            .mov(R2, R10)
            .alu(AluOp::Add, R2, -8)
            .mov(R3, 5)
            .call(Helper::AddByKey)
            .mov(R7, 0);
        for request in [0, 1, 0, 2, 0] {
            record(b, ring, request);
        }
    });
    w.script.requests = vec![
        Request::Print { map: hash },
        Request::Zero { map: hash },
        Request::Clear { map: hash },
    ];
    w.script.attachments = vec![Attachment::Begin { program: begin }];
    let run = run(kernel(), &w.script);
    let values = |frame: &Frame| match frame {
        Frame::Map { map, entries } if *map == hash => {
            let values = entries.iter().map(|entry| entry.value[0]);
            Some(values.collect::<Vec<u8>>())
        }
        _ => None,
    };
    let maps: Vec<Vec<u8>> = run.frames.iter().filter_map(values).collect();
    // The last one is that of the end.
    assert_eq!(maps, [vec![5], vec![0], vec![], vec![]], "{:?}", run.frames);
}

/// Nanoseconds between two ticks of a CPU.
const TICK: u64 = 4_000_000;

#[test]
fn a_profile_that_the_ticks_cannot_keep_is_refused() {
    let mut w = Writer::new();
    let tick = w.program(ProgramKind::Probe, |_| {});
    w.script.attachments = vec![Attachment::Profile {
        program: tick,
        nanoseconds: TICK - 1,
    }];
    let run = run(kernel(), &w.script);
    let [Frame::Refused { program, text }] = &run.frames[..] else {
        panic!("{:?}", run.frames);
    };
    assert_eq!(*program, Some(tick));
    assert!(text.contains("ask for profile:hz:250 or less"), "{text}");
}

#[test]
fn a_profile_runs_at_the_ticks() {
    let mut w = Writer::new();
    let ring = w.map(MapDef::ring("ring"));
    let early = w.map(MapDef::counters("early", 1));
    let tick = counting_to_five(&mut w, ring);
    let never = w.program(ProgramKind::Probe, |b| {
        b.add(MapIndex(early as u16), 0, 1);
    });
    w.script.requests = vec![Request::Forward, Request::Exit];
    w.script.attachments = vec![
        // A period goes by before the first run, and none of these does in a test.
        Attachment::Profile {
            program: never,
            nanoseconds: 1000 * 1_000_000_000,
        },
        // These are more cycles than 64 bits count.
        Attachment::Profile {
            program: never,
            nanoseconds: u64::MAX,
        },
        Attachment::Profile {
            program: tick,
            nanoseconds: TICK,
        },
    ];
    let request = TraceRequest {
        script: w.script.encode(),
        run: Some(ENDLESS.into()),
        ..TraceRequest::default()
    };
    let run = run_request(kernel(), &request, "", |_, _| {});
    assert_eq!(run.end, End::Success, "{}", run.log);
    assert_eq!(run.records(1), [5]);
    assert_eq!(run.sums(early), []);
    let (status, books) = run.ended();
    assert_eq!((status, &books[..2]), (STATUS, &[(0, 0); 2][..]));
    // Further ticks may come before the program has ended.
    let (runs, missed) = books[2];
    assert!(runs >= 5 && missed == 0, "{books:?}");
    let expected: Vec<u64> = (1..=runs).filter(|run| *run != 5).collect();
    assert_eq!(run.records(0), expected);
}

/// The host reads the maps while the guest runs, and sees what the guest itself sends at the end.
/// `pairs` has two words that each hit sets to the same number, so a torn value shows.
#[test]
fn maps_are_read_in_memory_while_the_script_runs() {
    let kernel = kernel();
    let mut w = Writer::new();
    let ring = w.map(MapDef::ring("ring"));
    let counters = w.map(MapDef::counters("counters", 3));
    let one = w.map(MapDef::counters("one", 1));
    let hash = w.map(MapDef::counters_by_key("hash", 24, 16));
    let pairs = w.map(MapDef {
        name: "pairs".into(),
        kind: MapKind::Hash,
        key_size: 8,
        value_size: 16,
        entries: 4,
    });
    let begin = w.program(ProgramKind::Probe, |b| {
        b.add(MapIndex(counters as u16), 2, 5)
            .add(MapIndex(one as u16), 0, 6);
        for (at, word) in [(-24, 7), (-16, 8), (-8, 9)] {
            b.store(R10, at, Size::B8, word);
        }
        b.load_map(R1, MapIndex(hash as u16))
            .mov(R2, R10)
            .alu(AluOp::Add, R2, -24)
            .mov(R3, 5)
            .call(Helper::AddByKey)
            .mov(R7, 0);
        record(b, ring, 0);
    });
    let hit = w.program(ProgramKind::Probe, |b| {
        b.call(Helper::Tsc)
            .store(R10, -24, Size::B8, R0)
            .store(R10, -16, Size::B8, R0)
            .store(R10, -8, Size::B8, 3)
            .load_map(R1, MapIndex(pairs as u16))
            .mov(R2, R10)
            .alu(AluOp::Add, R2, -8)
            .mov(R3, R10)
            .alu(AluOp::Add, R3, -24)
            .mov(R4, 0)
            .call(Helper::MapUpdate);
    });
    w.script.requests = vec![Request::Forward];
    w.script.attachments = vec![
        Attachment::Begin { program: begin },
        Attachment::Probe {
            program: hit,
            addresses: vec![address(kernel, "timer_interrupt")],
        },
    ];
    let request = TraceRequest {
        script: w.script.encode(),
        run: Some("exercise spin".into()),
        maps: true,
        ..TraceRequest::default()
    };
    let mut seen = Vec::new();
    let run = run_request(kernel, &request, "", |trace, frame| {
        if !matches!(frame, Frame::Record { .. }) {
            return;
        }
        // The guest spins until it is told to end, and its ticks change `pairs` meanwhile.
        let mut values = std::collections::BTreeSet::new();
        while values.len() < 20 {
            let maps = trace.maps().expect("the guest has told where the maps are");
            let part = maps.iter().find(|part| part.map == pairs).unwrap();
            if let [(key, value)] = &part.entries[..] {
                assert_eq!(key[..], 3_u64.to_le_bytes());
                assert_eq!(value[0], value[1], "torn");
                values.insert(value[0]);
            }
            seen = maps;
        }
        trace.end();
    });
    assert_eq!(run.end, End::Success, "{}", run.log);
    let live = |map: u32| {
        let parts = seen.iter().filter(|part| part.map == map);
        let entries = parts.flat_map(|part| &part.entries).cloned();
        entries.collect::<Vec<(Vec<u8>, Vec<u64>)>>()
    };
    let key = |number: u32| number.to_le_bytes().to_vec();
    assert_eq!(live(counters), [(key(2), vec![5])]);
    assert_eq!(live(one), [(key(0), vec![6])]);
    let words: Vec<u8> = [7_u64, 8, 9]
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect();
    assert_eq!(live(hash), [(words, vec![5])]);
    assert_eq!(
        (run.sums(counters), run.sums(one)),
        (vec![(2, 5)], vec![(0, 6)])
    );
    assert_eq!(run.sums(hash), [(7, 5)]);
}

#[test]
fn sources_by_name_have_stacks_and_results() {
    let kernel = kernel();
    let mut w = Writer::new();
    let ring = w.map(MapDef::ring("ring"));
    let stacks = w.map(MapDef {
        name: "stacks".into(),
        kind: MapKind::Stacks,
        key_size: 4,
        value_size: 8 * 16,
        entries: 64,
    });
    let exits = w.program(ProgramKind::Probe, |b| {
        b.load_map(R2, MapIndex(stacks as u16))
            .mov(R3, 0)
            .call(Helper::StackId)
            .mov(R7, R0);
        record(b, ring, 0);
    });
    let results = w.program(ProgramKind::Return { data: 0 }, |b| {
        b.load_register(R7, Register::Ax);
        record(b, ring, 1);
    });
    w.script.requests = vec![Request::Forward; 2];
    w.script.attachments = vec![
        Attachment::Source {
            program: exits,
            name: "sched:sched_process_exit".into(),
        },
        Attachment::Source {
            program: results,
            name: "syscalls:sys_exit_mkdir".into(),
        },
    ];
    let run = run(kernel, &w.script);
    assert_eq!(run.end, End::Success, "{}", run.log);
    // The children and the workload.
    let exits = run.records(0);
    assert_eq!(exits.len() as u64, CHILDREN + 1);
    let mut known = Vec::new();
    for frame in &run.frames {
        match frame {
            Frame::Stack {
                number, addresses, ..
            } => {
                assert_eq!(addresses[0], address(kernel, "do_exit"));
                assert!(addresses.len() > 1, "{addresses:x?}");
                known.push(*number);
            }
            Frame::Record { bytes, .. } if bytes[8] == 0 => {
                let stack = u64::from_le_bytes(*bytes[16..].first_chunk().unwrap());
                assert!(known.contains(&stack), "{stack} is not among {known:?}");
            }
            _ => {}
        }
    }
    let failed = run.records(1).into_iter().filter(|result| *result != 0);
    assert_eq!(failed.count() as u64, CHILDREN);
}

#[test]
fn the_last_records_outlive_a_panic_a_triple_fault_and_a_hang() {
    let kernel = kernel();
    let (do_syscall, sys_mkdir) = (address(kernel, "do_syscall"), address(kernel, "sys_mkdir"));
    let mut w = Writer::new();
    let ring = w.map(MapDef::ring("ring"));
    let entry = w.program(ProgramKind::Probe, |b| {
        b.load_register(R7, Register::Ip);
        record(b, ring, 0);
    });
    w.script.requests = vec![Request::Forward];
    w.script.attachments = vec![Attachment::Probe {
        program: entry,
        addresses: vec![do_syscall, sys_mkdir],
    }];
    let request = TraceRequest {
        script: w.script.encode(),
        overwrite: true,
        ring_kib: Some(64),
        watchdog: Some(Duration::from_secs(20)),
        ..TraceRequest::default()
    };
    for how in ["panic", "triple_fault", "hang"] {
        let cmdline = format!("modules=crash crash.how={how} crash.at=3");
        let run = run_request(kernel, &request, &cmdline, |_, _| {});
        assert_eq!(run.hung, how == "hang", "{}", run.log);
        match how {
            "panic" => assert_eq!(run.end, End::Failure, "{}", run.log),
            "triple_fault" => assert_eq!(run.end, End::Reset, "{}", run.log),
            _ => {}
        }
        let mut seen: Vec<(u64, u64)> = Vec::new();
        for ring in &run.rings {
            for record in Image::still(&ring.bytes).unwrap().records() {
                let record = record.unwrap();
                // In front of the record are 8 bytes of the kernel's own.
                let value = record.payload[24..].first_chunk().unwrap();
                seen.push((record.tsc, u64::from_le_bytes(*value)));
            }
        }
        seen.sort_unstable();
        let of_mkdir = seen.iter().filter(|(_, ip)| *ip == sys_mkdir).count();
        assert!((2..=3).contains(&of_mkdir), "{how}: {of_mkdir}");
        let last = seen.iter().rfind(|(_, ip)| *ip == do_syscall).unwrap();
        assert!(
            seen.iter().filter(|record| **record > *last).count() <= 1,
            "{how}: only the call that ended it comes behind its system call: {seen:x?}"
        );
        assert!(
            run.frames
                .iter()
                .all(|frame| !matches!(frame, Frame::Record { .. })),
            "{:?}",
            run.frames
        );
    }
}

fn comm(frame: &Frame) -> Option<&str> {
    match frame {
        Frame::Comm { name, .. } => Some(name),
        _ => None,
    }
}

/// The default of the flight recorder, on some functions: the last calls are a tree, and the call
/// in which the kernel died is its last one and has not returned.
#[test]
fn the_last_calls_of_a_dead_kernel_are_a_tree() {
    let kernel = kernel();
    let names = ["do_syscall", "sys_mkdir", "sys_getpid", "do_fork"];
    let addresses = names.map(|name| address(kernel, name));
    let request = TraceRequest {
        script: recorder::script(&addresses).unwrap().encode(),
        overwrite: true,
        ..TraceRequest::default()
    };
    let cmdline = "modules=crash crash.how=triple_fault crash.at=2";
    let run = run_request(kernel, &request, cmdline, |_, _| {});
    assert_eq!(run.end, End::Reset, "{}", run.log);
    let Some(Frame::Started { tsc_hz, .. }) = run.frames.first() else {
        panic!("{:?}", run.frames);
    };
    let recording = recorder::read(&run.rings);
    assert_eq!(recording.damaged, []);
    let symbols = DebugInfo::open(&kernel.debug_elf).unwrap();
    let timeline = recorder::timeline(&recording, *tsc_hz, &recorder::Sources::new(&symbols));
    let tree = pictures::text::tree(&timeline, pictures::text::Tree::default());
    let last = tree.lines().rfind(|line| line.contains("cpu ")).unwrap();
    assert!(last.contains("never returned"), "{tree}");
    assert!(tree.contains("workload ("), "{tree}");
    let forks = timeline
        .calls
        .iter()
        .filter(|call| call.function.ends_with("::do_fork"));
    assert_eq!(forks.count(), 1, "{tree}");
    assert!(tree.contains("sys_getpid() = 4"), "{tree}");
}

/// The compiler in the kernel: what it prints, what it refuses, and how Ctrl-C ends it.
#[test]
fn a_program_is_compiled_and_run_at_the_prompt() {
    let mut session = Session::interactive();
    let said = session.command(
        "trace 'BEGIN { printf(\"hello %d\\n\", 1 + 2); @x = 4; exit(); } END { @x = 5; }'",
    );
    assert!(said.contains("hello 3\n"), "{said}");
    assert!(said.contains("@x: 5\n"), "{said}");
    // A tick, at least, on one of the CPUs; the function's name comes from the symbols.
    let said = session.command(
        "trace 'kprobe:timer_interrupt { @[func] = count(); } interval:ms:50 { exit(); }'",
    );
    assert!(said.contains("2 places probed\n"), "{said}");
    assert!(said.contains("@[timer_interrupt]: "), "{said}");
    for (program, refusal) in [
        ("kprobe:vfs_wirte { @ = count(); }", "vfs_write"),
        ("kprobe:vfs_write { @ = args.count; }", "debug information"),
        ("kprobe:vfs_write { @ = ; }", "^"),
    ] {
        let said = session.command(&format!("trace '{program}'"));
        assert!(said.contains(refusal), "{program}: {said}");
    }
    session.type_blind("trace 'BEGIN { } END { printf(\"over\\n\"); }'\r");
    session.wait_for("2 places probed");
    let said = session.keys("\x03", "over");
    assert!(said.contains("2 hits = 2 recorded + 0 missed"), "{said}");
    // Nothing stays behind: the next one runs.
    let said = session.command("trace 'BEGIN { exit(); }'");
    assert!(said.contains("1 hit = 1 recorded + 0 missed"), "{said}");
    session.power_off();
}
