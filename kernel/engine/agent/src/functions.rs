//! The tracer of functions: a record at each entry, with the function and its caller.
//!
//! One compiled program serves all functions, because the probed address is at hand in every hit.
//!
//! While a script runs, nothing is recorded: the rings are the script's then, and its own records
//! would find no room in them.
//!
//! # Contexts
//! Tasks that may sleep. The program runs on the hit path, as every compiled program.

use bpf::{
    AluOp, BuildError, Builder, Condition, Helper, MapDef, Program as Source, ProgramKind, Reg,
    Size,
    context::{ARGUMENTS, Register},
};

use crate::{
    Agent,
    program::{AttachedProbes, LoadError, Program},
    tasks::TaskChoice,
};

/// The type of its record, as in Linux.
pub const RECORD_TYPE: u16 = 1;
/// The bytes of its record: the common header, the function, the address in its caller. With
/// arguments their registers follow, [`ARGUMENTS`] words.
pub const RECORD_BYTES: u32 = 24;

/// Kprobes at the entries of functions that record them, from their registration to the drop.
pub struct FunctionTracer<A: Agent> {
    /// None if there are no functions.
    probes: Option<AttachedProbes<A>>,
}

/// What is recorded.
#[derive(Clone, Copy, Debug, Default)]
pub struct How<'a> {
    /// The call stack, too.
    pub with_stack: bool,
    /// The registers of arguments, too.
    pub with_arguments: bool,
    /// Calls of these tasks.
    pub tasks: TaskChoice<'a>,
}

fn program<A: Agent>(how: &How<'_>) -> Result<Source, BuildError> {
    const CONTEXT: Reg = Reg::R6;
    const RECORD: Reg = Reg::R7;
    let mut builder = Builder::new(ProgramKind::Probe);
    let ring = builder.map(MapDef::ring("trace"));
    let end = builder.label();
    let script_runs = core::ptr::from_ref(&A::tracing().recording.script_runs).addr() as i64;
    builder
        .mov(CONTEXT, Reg::R1)
        .set(Reg::R0, script_runs)
        .load(Reg::R0, Reg::R0, 0, Size::B1)
        .branch(Condition::NotEqual, Reg::R0, 0, end);
    let TaskChoice { only, without } = how.tasks;
    if !how.tasks.is_all() {
        let is_chosen = builder.label();
        builder
            .call(Helper::PidTgid)
            .alu(AluOp::ShiftLeft, Reg::R0, 32)
            .alu(AluOp::ShiftRight, Reg::R0, 32);
        for task in without {
            builder.branch(Condition::Equal, Reg::R0, *task as i32, end);
        }
        for task in only {
            builder.branch(Condition::Equal, Reg::R0, *task as i32, is_chosen);
        }
        if !only.is_empty() {
            builder.jump(end);
        }
        builder.place(is_chosen);
    }
    let arguments: &[Register] = match how.with_arguments {
        true => &ARGUMENTS,
        false => &[],
    };
    builder
        .load_map(Reg::R1, ring)
        .mov(Reg::R2, RECORD_BYTES as i32 + 8 * arguments.len() as i32)
        .mov(Reg::R3, 0)
        .mov(Reg::R4, i32::from(RECORD_TYPE))
        .call(Helper::EventReserve)
        .branch(Condition::Equal, Reg::R0, 0, end)
        .mov(RECORD, Reg::R0)
        .note_interrupts_off(RECORD, CONTEXT)
        .mov(Reg::R1, CONTEXT)
        .call(Helper::FuncIp)
        .store(RECORD, 8, Size::B8, Reg::R0)
        .load(Reg::R0, CONTEXT, Register::Sp.offset(), Size::B8)
        .load(Reg::R0, Reg::R0, 0, Size::B8)
        .store(RECORD, 16, Size::B8, Reg::R0);
    for (register, at) in arguments.iter().zip((RECORD_BYTES as i16..).step_by(8)) {
        builder
            .load(Reg::R0, CONTEXT, register.offset(), Size::B8)
            .store(RECORD, at, Size::B8, Reg::R0);
    }
    builder.submit(RECORD);
    if how.with_stack {
        builder.record_stack(ring, CONTEXT);
    }
    builder.place(end).exit(0);
    builder.finish()
}

impl<A: Agent> FunctionTracer<A> {
    /// Records the calls of the functions that begin at `functions`.
    ///
    /// # Errors
    /// [`LoadError`]; nothing has changed then.
    pub fn new(functions: &[u64], how: &How<'_>) -> Result<Self, LoadError> {
        if functions.is_empty() {
            return Ok(Self { probes: None });
        }
        let program = Program::load(program::<A>(how)?)?;
        Ok(Self {
            probes: Some(AttachedProbes::new(program, functions)?),
        })
    }

    /// How many functions there are.
    pub fn functions(&self) -> usize {
        self.probes.as_ref().map_or(0, AttachedProbes::len)
    }

    /// How many calls were missed so far: beside other probes, while the CPU was in handlers.
    pub fn misses(&self) -> u64 {
        self.probes.as_ref().map_or(0, AttachedProbes::misses)
    }
}
