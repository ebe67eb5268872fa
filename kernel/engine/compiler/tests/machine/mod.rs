//! Runs compiled programs in this process, as a probe's hit would.
//!
//! A driver loads all registers and flags with patterns, calls the code, and stores what is in them
//! afterwards. The GS base points to a CPU's data. Helpers are thunks that check what a C function
//! may expect, and leave garbage in all registers that one may change. A load that faults comes to
//! a signal handler, which mends it as a kernel would; where the world of the test has memory, it
//! puts in what is there, because a process has none of the kernel's addresses.
//!
//! The worlds of the interpreter and of the machine code begin alike, and are compared afterwards.

#![allow(dead_code, reason = "each test file uses a part")]

mod driver;
mod helpers;
mod place;
mod time_limit;
mod world;

use std::{
    arch::global_asm,
    collections::BTreeMap,
    ptr::{addr_of, addr_of_mut, null_mut},
    sync::{Mutex, MutexGuard, Once, PoisonError},
};

use bpf::{
    Helper, Insn, MapDef, MapIndex, MapKind, Operand, Program, ProgramKind, Reg, Size, Target,
    Verified, context::Register,
};
use bpf_compiler::{
    Array, BreakpointFrame, Calls, Code, CompileError, EntryFrame, Form, Given,
    INSTANCE_RETURN_ADDRESS, Machine, MapRuntime, PerCpu, PidTgid, Routine, Sample,
    WatchpointFrame, compile, mend,
};
use bpf_interpreter::{Addresses, Environment, TestMachine};

pub use place::CPUS;

use driver::*;
use place::*;
use world::*;

/// The forms of a program of a probe.
pub const FORMS: [Form; 7] = [
    Form::Jump {
        flags_live: false,
        aligned: true,
    },
    Form::Jump {
        flags_live: false,
        aligned: false,
    },
    Form::Jump {
        flags_live: true,
        aligned: true,
    },
    Form::Jump {
        flags_live: true,
        aligned: false,
    },
    Form::Breakpoint,
    Form::Watchpoint,
    Form::Handler,
];

/// How the outside of a program is laid out; any number will do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Variant(pub u64);

impl Variant {
    fn pick(self, what: u32, choices: u64) -> u64 {
        (self.0 >> (what % 32 * 2)) % choices
    }
}

/// Compiles `program`.
pub fn compiled(program: &Verified, form: Form, variant: Variant) -> Result<Code, CompileError> {
    let mut guard = place();
    let place = guard.get_or_insert_with(Place::new);
    place.cpu.number = 0;
    let arrays = arrays(&program.program().maps, place, variant);
    compile_for(program, form, &arrays, place, variant)
}

fn compile_for(
    program: &Verified,
    form: Form,
    arrays: &[Option<ArrayMemory>],
    place: &Place,
    variant: Variant,
) -> Result<Code, CompileError> {
    let maps: Vec<MapRuntime> = arrays
        .iter()
        .enumerate()
        .map(|(number, array)| match array {
            Some(memory) => MapRuntime::Array(memory.array),
            None => MapRuntime::Handle(HANDLES + number as u64),
        })
        .collect();
    let (thunks, routines) = (&place.thunks, &place.routines);
    let not_recording = place.not_recording();
    let offset = |field: usize| field as i32;
    let machine = Machine {
        cpu_number: offset(std::mem::offset_of!(Cpu, number)),
        preempt_count: offset(std::mem::offset_of!(Cpu, preempt_count)),
        running: offset(std::mem::offset_of!(Cpu, running)),
        marks_of_running: 3,
        address_in_probe: 8,
        faults: offset(std::mem::offset_of!(Cpu, faults)),
        pid_tgid: match variant.pick(20, 3) {
            0 => None,
            1 => Some(PidTgid {
                pid: offset(std::mem::offset_of!(Cpu, pid)),
                tgid: offset(std::mem::offset_of!(Cpu, tgid)),
            }),
            _ => Some(PidTgid {
                pid: offset(std::mem::offset_of!(Cpu, pid_of_both)),
                tgid: offset(std::mem::offset_of!(Cpu, tgid_of_both)),
            }),
        },
        clears_ac: false,
        calls: match variant.pick(21, 2) {
            0 => Calls::Near,
            _ => Calls::Far,
        },
        not_recording: (variant.pick(22, 2) == 1).then_some(not_recording as i32),
        records_off: (variant.pick(25, 2) == 1)
            .then_some(offset(std::mem::offset_of!(Cpu, records_off))),
        helper: &|helper| thunks[&helper.number()],
        routine: &|helper, constants| {
            let is_one = match variant.pick(23, 3) {
                0 => false,
                1 => true,
                _ => helper.number() % 2 == 0,
            };
            // The address of the sample is no argument that a routine can have.
            (is_one && !helper.walks_the_stack()).then(|| Routine {
                address: routines[&helper.number()],
                arguments: [0, 1, 2, 3].map(|number| match constants[number] {
                    Some(value) if variant.pick(24, 2) == 1 => Given::Constant(value),
                    _ if number < helper.arguments().len() => Given::Argument,
                    _ => Given::Nothing,
                }),
            })
        },
    };
    compile(program, form, &maps, &machine)
}

/// Compiles and runs `program` in a copy of `world`. Returns the world afterwards, and what `al`
/// was.
///
/// `world` is changed where the form leaves no choice: the registers of the probed code are those
/// that the code was called with.
pub fn run(
    program: &Verified,
    form: Form,
    world: &mut TestMachine,
    variant: Variant,
) -> (World, u8) {
    let mut guard = place();
    let _run = time_limit::begin();
    let place = guard.get_or_insert_with(Place::new);
    place.cpu.own_address = &raw const *place.cpu as u64;
    place.cpu.number = world.cpu;
    place.cpu.preempt_count = 7;
    place.cpu.faults = 0;
    place.cpu.records_off = 0;
    place.cpu.pid = world.pid_tgid as u32;
    place.cpu.tgid = (world.pid_tgid >> 32) as u32;
    place.cpu.pid_of_both = place.cpu.pid;
    place.cpu.tgid_of_both = place.cpu.tgid;
    place.cpu.part = 0x1234_5678_0000;
    place.cpu.probe = [0, world.func_ip];
    let marks = u64::from(matches!(program.program().kind, ProgramKind::Return { .. }));
    place.cpu.running = place.cpu.probe.as_ptr() as u64 | marks;
    // SAFETY: in the mapping.
    unsafe { place.not_recording().write(world.not_recording) };
    place.adopt_thread();
    let arrays = arrays(&program.program().maps, place, variant);
    let code = compile_for(program, form, &arrays, place, variant).expect("the program compiles");
    if let Ok(path) = std::env::var("BPF_CODE") {
        std::fs::write(path, &code.bytes).expect("the code can be written");
    }
    let mut registers = registers(form, program.program().kind, world, place);
    let address = put_code(&code, place, world.registers[Register::Ip as usize]);
    let mut run = World {
        machine: world.clone(),
        maps: program.program().maps.clone(),
        arrays,
        records: Vec::new(),
        errors: Vec::new(),
        sample: Sample {
            ip: match program.program().kind {
                ProgramKind::Entry { .. } => world.func_ip,
                _ => world.registers[Register::Ip as usize],
            },
            sp: world.registers[Register::Sp as usize],
            bp: world.registers[Register::Bp as usize],
        },
        cpu: &raw const *place.cpu,
        counts_preemption: matches!(form, Form::Jump { .. }),
        calls: 0,
    };
    run.machine.addresses = Addresses::Real;
    if program.program().kind != ProgramKind::Probe {
        let return_address = run.machine.return_address.to_le_bytes();
        let instance = run.machine.entry_data.instance();
        instance[INSTANCE_RETURN_ADDRESS as usize..][..8].copy_from_slice(&return_address);
        let instance = instance.as_ptr() as u64;
        if form == Form::Call {
            let place = registers.gpr[SP] as i64 + i64::from(EntryFrame::INSTANCE);
            // SAFETY: inside the stack's mapping, and aligned.
            unsafe { (place as *mut u64).write(instance) };
        } else {
            registers.gpr[DI] = instance;
        }
    }
    // The code of an entry clears what it shares with the return.
    if let ProgramKind::Entry { .. } = program.program().kind {
        world.entry_data.fill(0);
    }
    let above = above_stack(&registers);
    // SAFETY: the mutex is held, so no other thread uses these. The code keeps the stack, and comes
    // back to `bpf_test_back`.
    let output = unsafe {
        WORLD = &raw mut run;
        CODE = (place.code as u64, place.code as u64 + CODE_BYTES as u64);
        addr_of_mut!(INPUT).write(registers);
        TARGET = address;
        read_counter(program.program(), libc::PR_TSC_SIGSEGV);
        bpf_test_enter();
        read_counter(program.program(), libc::PR_TSC_ENABLE);
        WORLD = null_mut();
        addr_of!(OUTPUT).read()
    };
    assert_eq!(above_stack(&registers), above, "memory above rsp is kept");
    assert_eq!(place.cpu.preempt_count, 7, "preemption is as before");
    run.machine.faults += place.cpu.faults;
    run.machine.records_off += place.cpu.records_off;
    for array in run.arrays.iter_mut().flatten() {
        let contents = |part: &*mut u8| {
            // SAFETY: the part has so many bytes.
            let contents = || unsafe { std::slice::from_raw_parts(*part, array.bytes).to_vec() };
            (!part.is_null()).then(contents)
        };
        array.found = array.parts.iter().map(contents).collect();
    }
    check_kept(form, &registers, &output, &code);
    (run, output.gpr[AX] as u8)
}

/// The program with its result stored in one more map, because most forms have no result.
pub fn with_result(program: &Program) -> Program {
    let mut program = program.clone();
    let end = program.insns.len();
    for insn in &mut program.insns {
        if *insn == Insn::Exit {
            *insn = Insn::Jump {
                target: Target(end as u16),
            };
        }
    }
    let map = MapIndex(program.maps.len() as u16);
    let mut def = MapDef::counters("result", 1);
    def.kind = MapKind::Array;
    program.maps.push(def);
    let mov = |dst, operand: Operand| Insn::Alu {
        width: bpf::Width::W64,
        op: bpf::AluOp::Mov,
        dst,
        operand,
    };
    program.insns.extend([
        mov(Reg::R6, Reg::R0.into()),
        Insn::Store {
            base: Reg::R10,
            offset: -4,
            size: Size::B4,
            value: 0.into(),
        },
        Insn::LoadMap { dst: Reg::R1, map },
        mov(Reg::R2, Reg::R10.into()),
        Insn::Alu {
            width: bpf::Width::W64,
            op: bpf::AluOp::Add,
            dst: Reg::R2,
            operand: (-4).into(),
        },
        Insn::Call {
            helper: Helper::MapLookup,
        },
        Insn::Store {
            base: Reg::R0,
            offset: 0,
            size: Size::B8,
            value: Reg::R6.into(),
        },
        mov(Reg::R0, Reg::R6.into()),
        Insn::Exit,
    ]);
    program
}

/// The outcome of a comparison without a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Agreed,
    /// The interpreter objects to what the program does. The verifier's tests judge that.
    Objected,
}

/// Runs `program` in these forms, if it has them, and compares with the interpreter.
pub fn agree(
    program: &Verified,
    forms: &[Form],
    world: &TestMachine,
    variant: Variant,
) -> Result<Outcome, String> {
    let limit = 1 << 20;
    if bpf_interpreter::run(program.program(), &mut world.clone(), limit).is_err() {
        return Ok(Outcome::Objected);
    }
    let forms = match program.program().kind {
        ProgramKind::Probe => forms,
        ProgramKind::Entry { .. } | ProgramKind::Return { .. } => &[Form::Handler, Form::Call],
    };
    for &form in forms {
        compiled(program, form, variant).map_err(|error| format!("{form:?}: {error}"))?;
        let mut world = world.clone();
        let (machine, al) = run(program, form, &mut world, variant);
        let result = bpf_interpreter::run(program.program(), &mut world, limit)
            .map_err(|objection| format!("the interpreter objects: {objection}"))?;
        let mut differences = machine.differences(&world);
        let kind = program.program().kind;
        if form == Form::Handler || matches!(kind, ProgramKind::Entry { .. }) {
            let expected = match kind {
                ProgramKind::Entry { .. } => u8::from(result != 0),
                ProgramKind::Probe | ProgramKind::Return { .. } => 0,
            };
            if al != expected {
                differences.push(format!("al {al}, expected {expected}"));
            }
        }
        if !differences.is_empty() {
            return Err(format!("{form:?}: {}", differences.join("\n")));
        }
    }
    Ok(Outcome::Agreed)
}
