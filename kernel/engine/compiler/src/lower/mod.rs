//! The code of a program, instruction by instruction.
//!
//! The stack, from the top down (the crate's text says what the levels are):
//!
//! ```text
//!   return address
//!   flags, registers that the light level writes, the program's stack if used there
//!   flags, registers that calls change, the program's stack if not yet, a Sample    heavy level
//! ```
//!
//! A place on the stack is named by its *depth*: how many bytes it is below the return address.
//!
//! Here is the walk over the instructions, in rounds. Instructions are in `arithmetic.rs`,
//! `memory.rs` and `calls.rs`, their operands in `values.rs`, the stack in `frame.rs`.

mod arithmetic;
mod calls;
mod frame;
mod memory;
mod values;

use alloc::vec::Vec;
use core::cell::Cell;

use bpf::{
    Condition, Helper, Insn, Memory, Operand, ProgramKind, Reg, Size, Width, context::Register,
};
use fallible::push;

use crate::{
    Code, CompileError, Depth, Form, Machine, Relocation, Routine,
    asm::{self, Asm, Bytes, Cc, Gpr, GprSet, Hole, Mem, Op, Rm, Src},
    assign::{Assignment, assign},
    flow::{self, Contents, Env, Flow, RegSet, Value, filled},
};

/// The registers that a C function may change.
const CALLER_SAVED: GprSet = GprSet::of(&[
    asm::RAX,
    asm::RCX,
    asm::RDX,
    asm::RSI,
    asm::RDI,
    asm::R8,
    asm::R9,
    asm::R10,
    asm::R11,
]);
/// All but `rsp`.
const ALL: GprSet = GprSet(0xffef);
/// The registers that a [`Routine`] may change.
const ROUTINE_SAVED: GprSet = IN_FRAME;
/// The registers that [`BreakpointFrame`](crate::BreakpointFrame) holds.
const IN_FRAME: GprSet = GprSet::of(&[asm::RAX, asm::RCX, asm::RDX, asm::RSI, asm::RDI]);
/// Arguments of [`Form::Handler`].
const INSTANCE: Gpr = asm::RDI;
const CONTEXT: Gpr = asm::RSI;

/// Where the [`Sample`](crate::Sample) is on the heavy level: at its end, where `rsp` is aligned in
/// any case.
const SAMPLE: Mem = Mem::at(asm::RSP, 0);

const LIGHT: usize = 0;
const HEAVY: usize = 1;
const LEVELS: usize = 2;

/// The needs of the code of a level, as a round found them: registers to save, and the like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    written: GprSet,
    flags: bool,
    stack: bool,
}

impl Used {
    fn or(self, other: Self) -> Self {
        Self {
            written: self.written.or(other.written),
            flags: self.flags || other.flags,
            stack: self.stack || other.stack,
        }
    }
}

/// Which parts of the outside a program asks for.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    /// Registers of the probed code that are read.
    registers: GprSet,
    /// Arguments of a handler that are needed.
    arguments: GprSet,
    context: bool,
    flags: bool,
    sample: bool,
}

/// The stack of one level.
#[derive(Clone, Copy, Default)]
struct LevelFrame {
    flags: bool,
    /// Pushed in the order of their numbers.
    restored: GprSet,
    /// Arguments of a handler; pushed after these, not popped.
    kept: GprSet,
    /// Bytes below these.
    room: u16,
    /// At the level's end, without alignment.
    depth: u16,
}

/// The stack of a round.
#[derive(Clone, Copy, Default)]
struct Frame {
    levels: [LevelFrame; LEVELS],
    /// Where a register of the entry is kept: the level that saves it, and the depth.
    saved: [Option<(usize, u16)>; 16],
    saved_flags: Option<(usize, u16)>,
    /// The depth that `r10` is.
    stack_top: u16,
    /// On the heavy level `rsp` is aligned, and `rbp` is at this depth.
    aligned_from: Option<u16>,
    /// In a handler: the level from which on `rbp` points to the context.
    context_in_bp: Option<usize>,
}

/// The content of a register, where it is.
#[derive(Clone, Copy, Debug)]
enum Place {
    Imm(u64),
    Rm(Rm),
    /// The address of this.
    Address(Mem),
}

enum After {
    Next,
    Goto(usize),
    End,
}

/// Work out of line: a record is not taken. The code goes on after the call that would have
/// reserved it.
struct Untaken {
    hole: Hole,
    /// The call.
    at: usize,
    level: usize,
}

/// Work out of line: a load that found that its base is not the kernel's.
struct Refused {
    hole: Hole,
    dst: Gpr,
    back: u32,
    level: usize,
}

struct Lower<'a> {
    env: &'a Env<'a>,
    flow: &'a Flow,
    machine: &'a Machine<'a>,
    /// All calls out are of a [`Routine`].
    only_routines: bool,
    /// The flags say already what the next instruction, a branch, compares.
    compared: bool,
    assignment: Assignment,
    asked: Asked,
    /// What the last round has used.
    hints: [Used; LEVELS],
    frame: Frame,
    used: [Used; LEVELS],
    asm: Asm,
    level: usize,
    /// The instruction that is compiled.
    at: usize,
    before: Contents,
    /// Scratch registers of this instruction, and those that it must not take.
    taken: GprSet,
    placed: Vec<[Option<u32>; LEVELS]>,
    holes: Vec<(Hole, usize, usize)>,
    queue: Vec<(usize, usize)>,
    refused: Vec<Refused>,
    untaken: Vec<Untaken>,
    /// The call of this instruction has been asked whether records are taken.
    asked_at: Option<usize>,
    relocations: Vec<Relocation>,
    depth: Vec<Depth>,
    calls_helpers: bool,
    /// An address on the program's stack was asked for since the last booking.
    stack_used: Cell<bool>,
    error: Option<CompileError>,
}

/// See the module's text.
pub fn lower(env: &Env, flow: &Flow, machine: &Machine) -> Result<Code, CompileError> {
    let asked = asked(env, flow);
    let avoid = asked.registers.or(asked.arguments);
    let assignment = assign(env, flow, avoid);
    let only_routines = only_routines(env, flow, machine);
    let mut hints = [Used::default(); LEVELS];
    loop {
        let mut round = Lower {
            env,
            flow,
            machine,
            only_routines,
            compared: false,
            assignment,
            asked,
            hints,
            frame: Frame::default(),
            used: [Used::default(); LEVELS],
            asm: Asm::default(),
            level: LIGHT,
            at: 0,
            before: [Value::Unknown; 11],
            taken: GprSet::default(),
            placed: filled(env.insns().len(), [None; LEVELS])?,
            holes: Vec::new(),
            queue: Vec::new(),
            refused: Vec::new(),
            untaken: Vec::new(),
            asked_at: None,
            relocations: Vec::new(),
            depth: Vec::new(),
            calls_helpers: false,
            stack_used: Cell::new(false),
            error: None,
        };
        round.frame = round.plan();
        round.all()?;
        if let Some(error) = round.error {
            return Err(error);
        }
        if round.asm.failed {
            return Err(CompileError::OutOfMemory);
        }
        let found = [0, 1].map(|level: usize| hints[level].or(round.used[level]));
        if found == hints {
            return Ok(Code {
                bytes: round.asm.bytes,
                relocations: round.relocations,
                depth: round.depth,
                calls_helpers: round.calls_helpers,
            });
        }
        hints = found;
    }
}

/// The machine's register that a register of the context is, if hits keep it in one.
fn gpr_of(register: Register) -> Option<Gpr> {
    let gpr = register.number().map(Gpr);
    gpr.filter(|gpr| *gpr != asm::RSP)
}

fn asked(env: &Env, flow: &Flow) -> Asked {
    let mut asked = Asked::default();
    let handler = env.form == Form::Handler;
    for (i, insn) in env.insns().iter().enumerate() {
        let Some(before) = &flow.before[i] else {
            continue;
        };
        match insn {
            Insn::Load { .. } => {
                let Ok(Memory::Context { offset }) = env.memory(i) else {
                    continue;
                };
                let register = Register::at(offset & !7);
                asked.flags |= register == Some(Register::Flags);
                if let Some(gpr) = register.and_then(gpr_of)
                    && !handler
                    && !(env.form.has_frame() && IN_FRAME.has(gpr))
                {
                    asked.registers.add(gpr);
                }
                asked.context = true;
            }
            Insn::Call { helper } => match helper {
                Helper::EntryData | Helper::ReturnAddress if handler => {
                    asked.arguments.add(INSTANCE);
                }
                Helper::FuncIp if handler && env.kind() == ProgramKind::Probe => {
                    asked.context = true
                }
                helper if helper.walks_the_stack() => {
                    asked.sample = true;
                    asked.context = true;
                }
                _ => {}
            },
            _ => {}
        }
        // A pointer to the context that is kept, for example on the stack.
        let defined = env.defines(i, before);
        asked.context |= matches!(defined, Some((_, Value::Context)));
    }
    if handler && asked.context {
        asked.registers.add(CONTEXT);
    }
    asked
}

/// The routine that is called in place of the helper at `i`.
fn routine(env: &Env, flow: &Flow, machine: &Machine, i: usize) -> Option<Routine> {
    let (Insn::Call { helper }, Some(before)) = (env.insns()[i], &flow.before[i]) else {
        return None;
    };
    let mut constants = [None; 5];
    for ((reg, _), constant) in flow::arguments(helper).zip(&mut constants) {
        *constant = match flow::of(before, reg) {
            Value::Const(value) => Some(value),
            Value::Map(map) => Some(env.handle(map)),
            _ => None,
        };
    }
    (machine.routine)(helper, &constants)
}

/// Whether all calls out are of a [`Routine`].
fn only_routines(env: &Env, flow: &Flow, machine: &Machine) -> bool {
    (0..env.insns().len())
        .filter(|&i| flow.before[i].is_some() && env.is_call_out(i))
        .all(|i| routine(env, flow, machine, i).is_some())
}

const fn bytes_of(width: Width) -> Bytes {
    match width {
        Width::W32 => Bytes::B4,
        Width::W64 => Bytes::B8,
    }
}

const fn size_of_access(size: Size) -> Bytes {
    match size {
        Size::B1 => Bytes::B1,
        Size::B2 => Bytes::B2,
        Size::B4 => Bytes::B4,
        Size::B8 => Bytes::B8,
    }
}

impl Lower<'_> {
    /// The registers that the calls of the heavy level change.
    fn calls_change(&self) -> GprSet {
        if self.only_routines {
            ROUTINE_SAVED
        } else {
            CALLER_SAVED
        }
    }

    fn all(&mut self) -> Result<(), CompileError> {
        self.enter(LIGHT);
        calls::clear_entry_data(self);
        push(&mut self.queue, (0, LIGHT))?;
        loop {
            while let Some((at, level)) = self.queue.pop() {
                if self.placed[at][level].is_none() {
                    self.level = level;
                    self.trace(at)?;
                }
            }
            let Some(untaken) = self.untaken.pop() else {
                break;
            };
            self.count_untaken(&untaken)?;
        }
        for Refused {
            hole,
            dst,
            back,
            level,
        } in core::mem::take(&mut self.refused)
        {
            self.level = level;
            self.note_level();
            self.asm.fill_here(hole);
            let faults = Mem::gs(self.machine.faults);
            self.asm.step(Bytes::B8, faults, false, false);
            self.asm.mov_imm(dst, 0);
            let jump = self.asm.jmp();
            self.asm.fill(jump, back);
            self.book_writes();
        }
        for (hole, at, level) in core::mem::take(&mut self.holes) {
            match self.placed[at][level] {
                Some(target) => self.asm.fill(hole, target),
                None => self.error = Some(CompileError::NoEnd { insn: at }),
            }
        }
        Ok(())
    }

    /// Compiles from `at` on, until the code goes on at a place that is there already.
    fn trace(&mut self, mut at: usize) -> Result<(), CompileError> {
        self.note_level();
        loop {
            if self.placed[at][self.level].is_some() {
                let hole = self.asm.jmp();
                return Ok(push(&mut self.holes, (hole, at, self.level))?);
            }
            self.placed[at][self.level] = Some(self.asm.here());
            if self.level == LIGHT && self.env.is_call_out(at) {
                if self.ask_whether_taken(at)? {
                    // Another way that comes here on the heavy level has not asked. So this place
                    // is none for it.
                    self.asked_at = Some(at);
                    self.enter(HEAVY);
                } else {
                    self.enter(HEAVY);
                    continue;
                }
            }
            self.at = at;
            let Some(before) = self.flow.before[at] else {
                // No run comes here ([`Env::next`]).
                self.end();
                return Ok(());
            };
            self.before = before;
            self.taken = GprSet::default();
            let after = self.insn()?;
            self.book_writes();
            match after {
                After::Next => at += 1,
                After::Goto(target) => at = target,
                After::End => return Ok(()),
            }
        }
    }

    /// Has the code ask whether records are taken, if the call at `at` would reserve one. False: it
    /// need not.
    fn ask_whether_taken(&mut self, at: usize) -> Result<bool, CompileError> {
        let reserves = matches!(
            self.env.insns()[at],
            Insn::Call {
                helper: Helper::RingReserve | Helper::EventReserve
            }
        );
        let (Some(word), Some(_)) = (self.machine.not_recording, self.machine.records_off) else {
            return Ok(false);
        };
        if !reserves || self.asked_at.take() == Some(at) {
            return Ok(false);
        }
        self.asm.op(
            Op::Cmp,
            Bytes::B4,
            Rm::Mem(Mem::absolute(word)),
            Src::Imm(0),
        );
        let hole = self.asm.jcc(Cc::NotEqual);
        let level = self.level;
        push(&mut self.untaken, Untaken { hole, at, level })?;
        self.book_writes();
        Ok(true)
    }

    /// Counts a record that is not taken, and goes on with the answer null.
    fn count_untaken(&mut self, untaken: &Untaken) -> Result<(), CompileError> {
        self.level = untaken.level;
        self.note_level();
        self.asm.fill_here(untaken.hole);
        let off = Mem::gs(self.machine.records_off.unwrap_or_default());
        self.asm.step(Bytes::B8, off, false, false);
        let next = untaken.at + 1;
        let is_null = match self.env.insns().get(next) {
            Some(Insn::Branch {
                condition: Condition::Equal,
                dst: Reg::R0,
                operand: Operand::Imm(0),
                target,
                ..
            }) => Some(usize::from(target.0)),
            _ => None,
        };
        // Most programs branch on the answer at once, and do not need it where they go then.
        let goes_on = match is_null {
            Some(target) if !self.flow.live_in[target].has(Reg::R0) => target,
            _ => {
                self.asm.mov_imm(self.phys(Reg::R0), 0);
                next
            }
        };
        self.book_writes();
        self.trace(goes_on)
    }

    fn out(&self) -> RegSet {
        self.flow.live_out[self.at]
    }

    fn phys(&self, reg: Reg) -> Gpr {
        self.assignment[usize::from(reg.number())]
    }

    fn insn(&mut self) -> Result<After, CompileError> {
        let before = self.before;
        let defined = self.env.defines(self.at, &before);
        if let Some((reg, value)) = defined
            && self.env.is_pure(self.at)
        {
            if !self.out().has(reg) {
                return Ok(After::Next);
            }
            if value != Value::Unknown {
                let place = self.place_of(value);
                self.load(self.phys(reg), place);
                return Ok(After::Next);
            }
        }
        let insn = self.env.insns()[self.at];
        if matches!(insn, Insn::Load { .. }) && memory::change_in_memory(self)? {
            return Ok(After::Goto(self.at + 3));
        }
        // A result that is not needed is written, too.
        if let Some((reg, _)) = defined
            && !matches!(insn, Insn::Call { .. })
        {
            self.taken.add(self.phys(reg));
        }
        match insn {
            Insn::Alu {
                width,
                op,
                dst,
                operand,
            } => self.alu(width, op, dst, operand),
            Insn::Negate { width, dst } => {
                let gpr = self.own(dst);
                self.asm.neg(bytes_of(width), gpr);
            }
            Insn::SignExtend {
                width,
                bits,
                dst,
                src,
            } => self.sign_extend(width, bits, dst, src),
            Insn::Swap { swap, bits, dst } => self.swap(swap, bits, dst),
            Insn::LoadImm { .. } | Insn::LoadMap { .. } => {}
            Insn::Load {
                dst,
                base,
                offset,
                size,
                signed,
            } => self.load_memory(dst, base, offset, size, signed)?,
            Insn::Store {
                base,
                offset,
                size,
                value,
            } => self.store_memory(base, offset, size, value)?,
            Insn::Atomic {
                op,
                base,
                offset,
                size,
                reg,
            } => {
                let mem = self.memory(base, offset)?;
                self.atomic(op, mem, size_of_access(size), reg);
            }
            Insn::Jump { target } => return Ok(After::Goto(usize::from(target.0))),
            Insn::Branch {
                width,
                condition,
                dst,
                operand,
                ..
            } => return self.branch(width, condition, dst, operand),
            Insn::Call { helper } => self.call(helper)?,
            Insn::Exit => return Ok(self.end()),
        }
        // Instructions with an effect beside their result, which is known.
        if let Some((reg, value)) = defined
            && value != Value::Unknown
            && self.out().has(reg)
        {
            let place = self.place_of(value);
            self.load(self.phys(reg), place);
        }
        Ok(After::Next)
    }

    fn end(&mut self) -> After {
        self.result();
        self.book_writes();
        self.leave();
        After::End
    }
}
