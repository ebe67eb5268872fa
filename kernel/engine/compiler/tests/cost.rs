//! How many instructions a hit executes in the routine, with its `ret`.
//!
//! The code is decoded and followed along the path of the hit, so the numbers are exact and the
//! same on every machine. A number that grows fails; one that shrinks is written down as the new
//! bound.

use bpf::{
    AluOp, Builder, Condition, Helper, MapDef, Program, ProgramKind,
    Reg::{R1, R2, R3, R4, R6, R10},
    Size,
    context::Register,
    verifier::verify,
};
use bpf_compiler::{
    Array, Calls, Code, Form, Given, Machine, MapRuntime, PerCpu, PidTgid, Routine, compile,
};
use iced_x86::{Code as Op, Decoder, DecoderOptions, FlowControl};

const DEAD: Form = Form::Jump {
    flags_live: false,
    aligned: true,
};
const LIVE: Form = Form::Jump {
    flags_live: true,
    aligned: false,
};

/// The program as it is compiled for maps far from everything, of which each CPU has a part.
fn compiled(program: Program, form: Form, cpu: PerCpu) -> Code {
    compiled_with(program, form, cpu, false)
}

/// The same; `routines`: whether there is a routine in place of each helper.
fn compiled_with(program: Program, form: Form, cpu: PerCpu, routines: bool) -> Code {
    let maps: Vec<MapRuntime> = program
        .maps
        .iter()
        .map(|def| match def.kind {
            bpf::MapKind::PerCpuArray => MapRuntime::Array(Array {
                handle: 0xffff_8000_0000_1000,
                base: if cpu == PER_CPU {
                    0xffff_8000_1234_5000
                } else {
                    0x1000
                },
                cpu,
                stride: def.value_size,
                entries: def.entries,
            }),
            _ => MapRuntime::Handle(0xffff_8000_0000_2000),
        })
        .collect();
    let machine = Machine {
        cpu_number: 0x10,
        preempt_count: 0x14,
        running: 0x70,
        marks_of_running: 3,
        address_in_probe: 0x28,
        faults: 0x18,
        pid_tgid: Some(PidTgid {
            pid: 0x20,
            tgid: 0x24,
        }),
        clears_ac: true,
        calls: Calls::Near,
        not_recording: Some(0x28),
        records_off: Some(0x30),
        helper: &|_| 0xffff_ffff_8000_0000,
        routine: &|_, _| {
            routines.then_some(Routine {
                address: 0xffff_ffff_8000_0000,
                arguments: [Given::Argument; 4],
            })
        },
    };
    compile(&verify(program).unwrap(), form, &maps, &machine).unwrap()
}

const PER_CPU: PerCpu = PerCpu::Shift(16);
const GS: PerCpu = PerCpu::Gs { own_address: 0 };

/// Counts the instructions of one path, on which the conditional jumps are taken as `taken` says.
fn executed(code: &Code, taken: &[bool]) -> usize {
    let mut decoder = Decoder::with_ip(64, &code.bytes, 0, DecoderOptions::NONE);
    let mut taken = taken.iter();
    let mut count = 0;
    loop {
        let insn = decoder.decode();
        assert!(!insn.is_invalid() && count < 1000);
        count += 1;
        let target = match insn.flow_control() {
            FlowControl::Return => {
                assert_eq!(taken.next(), None, "all jumps were met");
                return count;
            }
            FlowControl::ConditionalBranch if !taken.next().unwrap() => continue,
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                insn.near_branch_target()
            }
            FlowControl::Next | FlowControl::Call => {
                assert_ne!(insn.code(), Op::INVALID);
                continue;
            }
            other => panic!("{other:?}"),
        };
        decoder.set_position(target as usize).unwrap();
        decoder.set_ip(target);
    }
}

fn count() -> Program {
    let mut b = Builder::new(ProgramKind::Probe);
    let calls = b.map(MapDef::counters("calls", 1));
    b.add(calls, 0, 1).exit(0);
    b.finish().unwrap()
}

fn log2_of_di() -> Program {
    let mut b = Builder::new(ProgramKind::Probe);
    let buckets = b.map(MapDef::histogram("buckets"));
    b.load_register(R1, Register::Di)
        .call(Helper::Log2)
        .mov(R2, bpf::Reg::R0)
        .load_map(R1, buckets)
        .mov(R3, 1)
        .call(Helper::Add)
        .exit(0);
    b.finish().unwrap()
}

fn count_by_di() -> Program {
    let mut b = Builder::new(ProgramKind::Probe);
    let calls = b.map(MapDef::counters_by_key("calls", 8, 1024));
    b.load_register(R2, Register::Di)
        .store(R10, -8, Size::B8, R2)
        .load_map(R1, calls)
        .mov(R2, R10)
        .alu(bpf::AluOp::Add, R2, -8)
        .mov(R3, 1)
        .call(Helper::AddByKey)
        .exit(0);
    b.finish().unwrap()
}

/// A record of these arguments, if `di` is 5 or there is no `filter`.
fn event(arguments: &[Register], filter: bool) -> Program {
    let mut b = Builder::new(ProgramKind::Probe);
    let ring = b.map(MapDef::ring("ring"));
    let end = b.label();
    b.mov(R6, R1);
    if filter {
        b.load_register(R2, Register::Di)
            .branch(Condition::NotEqual, R2, 5, end);
    }
    b.load_map(R1, ring)
        .mov(R2, 16 + 8 * arguments.len() as i32)
        .mov(R3, 0)
        .mov(R4, 7)
        .call(Helper::EventReserve)
        .branch(Condition::Equal, bpf::Reg::R0, 0, end)
        .load(R2, R6, Register::Ip.offset(), Size::B8)
        .store(bpf::Reg::R0, 8, Size::B8, R2);
    for (i, register) in arguments.iter().enumerate() {
        b.load(R2, R6, register.offset(), Size::B8).store(
            bpf::Reg::R0,
            16 + 8 * i as i16,
            Size::B8,
            R2,
        );
    }
    b.mov(R1, bpf::Reg::R0)
        .mov(R2, 0)
        .call(Helper::RingSubmit)
        .place(end)
        .exit(0);
    b.finish().unwrap()
}

/// A program, where its maps are, which jumps are taken, and the counts by form.
type Row = (&'static str, Program, PerCpu, &'static [bool], [usize; 4]);

#[test]
fn a_hit_executes_no_more_instructions_than_this() {
    use Register::{Di, Dx, Si};
    let rows: [Row; 8] = [
        ("count", count(), PER_CPU, &[], [9, 11, 5, 6]),
        ("count at GS", count(), GS, &[], [2, 4, 2, 3]),
        ("log2 of di", log2_of_di(), PER_CPU, &[], [15, 17, 9, 10]),
        ("log2 of di at GS", log2_of_di(), GS, &[], [7, 9, 5, 6]),
        ("by key", count_by_di(), PER_CPU, &[], [28, 37, 19, 15]),
        (
            "event, 1",
            event(&[Di], false),
            PER_CPU,
            &[false, false],
            [40, 48, 30, 22],
        ),
        (
            "event, 3",
            event(&[Di, Si, Dx], false),
            PER_CPU,
            &[false, false],
            [44, 52, 34, 26],
        ),
        ("reject", event(&[Di], true), PER_CPU, &[true], [3, 5, 3, 4]),
    ];
    for (name, program, cpu, taken, most) in rows {
        let found = [DEAD, LIVE, Form::Breakpoint, Form::Handler]
            .map(|form| executed(&compiled(program.clone(), form, cpu), taken));
        println!("{name:20} {found:?}");
        assert!(
            found.iter().zip(most).all(|(found, most)| *found <= most),
            "{name}: jump, jump with flags, breakpoint, handler: {found:?}, at most {most:?}"
        );
    }
}

/// A program that ends early because nothing is recorded needs no register for that.
#[test]
fn asking_whether_records_are_taken_is_a_comparison_in_memory() {
    let mut b = Builder::new(ProgramKind::Probe);
    let end = b.label();
    b.call(Helper::NotRecording)
        .branch(Condition::NotEqual, bpf::Reg::R0, 0, end)
        .call(Helper::PidTgid)
        .place(end)
        .exit(0);
    let program = b.finish().unwrap();
    for form in [DEAD, Form::Breakpoint] {
        // cmp, jne, ret
        assert_eq!(executed(&compiled(program.clone(), form, GS), &[true]), 3);
    }
}

/// A record that is not taken costs a hit no register, and no call.
#[test]
fn a_record_that_is_not_taken_is_only_counted() {
    let mut b = Builder::new(ProgramKind::Probe);
    let ring = b.map(MapDef::ring("ring"));
    let end = b.label();
    b.load_map(bpf::Reg::R1, ring)
        .mov(bpf::Reg::R2, 8)
        .mov(bpf::Reg::R3, 0)
        .call(Helper::RingReserve)
        .branch(Condition::Equal, bpf::Reg::R0, 0, end)
        .store(bpf::Reg::R0, 0, bpf::Size::B8, 1)
        .mov(bpf::Reg::R1, bpf::Reg::R0)
        .mov(bpf::Reg::R2, 0)
        .call(Helper::RingSubmit)
        .place(end)
        .exit(0);
    let program = b.finish().unwrap();
    for form in [DEAD, Form::Breakpoint] {
        // cmp, jne, inc, ret
        assert_eq!(executed(&compiled(program.clone(), form, GS), &[true]), 4);
    }
}

/// AC would let helpers reach user memory, and DF would turn their copies round.
#[test]
fn flags_that_c_relies_on_are_cleared_where_the_probed_code_may_have_set_them() {
    let clears = |form, routines| {
        let code = compiled_with(count_by_di(), form, PER_CPU, routines);
        let decoder = Decoder::new(64, &code.bytes, DecoderOptions::NONE);
        let codes: Vec<Op> = decoder.into_iter().map(|insn| insn.code()).collect();
        let before_call = codes
            .split(|code| *code == Op::Call_rel32_64)
            .next()
            .unwrap();
        [Op::Cld, Op::Clac].map(|code| before_call.contains(&code))
    };
    assert_eq!(clears(DEAD, false), [false, false]);
    assert_eq!(clears(LIVE, false), [true, true]);
    assert_eq!(clears(Form::Breakpoint, false), [true, true]);
    assert_eq!(clears(Form::Handler, false), [false, false]);
    // Routines clear them where they need it.
    for form in [DEAD, LIVE, Form::Breakpoint, Form::Handler] {
        assert_eq!(clears(form, true), [false, false]);
    }
}

/// A register of the program that no call must keep costs nothing to save.
#[test]
fn what_no_call_keeps_is_in_a_register_that_calls_change() {
    let record = |is_kept| {
        let mut b = Builder::new(ProgramKind::Probe);
        let ring = b.map(MapDef::ring("ring"));
        let end = b.label();
        b.load_map(R1, ring)
            .mov(R2, 16)
            .mov(R3, 0)
            .call(Helper::RingReserve)
            .branch(Condition::Equal, bpf::Reg::R0, 0, end)
            .mov(R6, bpf::Reg::R0);
        if is_kept {
            b.call(Helper::WatchedAddress);
        }
        b.store(R6, 0, Size::B8, 1)
            .store(R6, 8, Size::B8, 2)
            .mov(R1, R6)
            .mov(R2, 0)
            .call(Helper::RingSubmit)
            .place(end)
            .exit(0);
        let code = compiled_with(b.finish().unwrap(), DEAD, GS, true);
        let decoder = Decoder::new(64, &code.bytes, DecoderOptions::NONE);
        decoder
            .into_iter()
            .filter(|insn| insn.code() == Op::Push_r64)
            .count()
    };
    // Those that a routine changes, and one more.
    assert_eq!([record(false), record(true)], [5, 6]);
}

/// As the words of a key and the flags of a record are changed.
#[test]
fn a_number_is_changed_where_it_is() {
    let changed = |is_needed| {
        let mut b = Builder::new(ProgramKind::Probe);
        b.store(R10, -8, Size::B8, 5)
            .load(R1, R10, -8, Size::B8)
            .alu(AluOp::Add, R1, 7)
            .store(R10, -8, Size::B8, R1);
        if is_needed {
            b.store(R10, -16, Size::B8, R1);
        }
        b.exit(0);
        executed(&compiled(b.finish().unwrap(), DEAD, GS), &[])
    };
    // sub, mov, add, add, ret; else with a register to save and load, and two stores of it.
    assert_eq!([changed(false), changed(true)], [5, 10]);
}
