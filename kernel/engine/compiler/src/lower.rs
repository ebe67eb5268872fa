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

use alloc::vec::Vec;
use core::cell::Cell;

use bpf::{
    AluOp, AtomicOp, Condition, Helper, Insn, Kind, Memory, Operand, Reg, Size, Swap, Width,
    context::Register,
};

use crate::{
    ADDRESS_BEFORE_RETURN, Array, Base, BreakpointFrame, Calls, Code, CompileError, Depth, Form,
    Given, Machine, MapRuntime, PerCpu, Relocation, Routine, Sample,
    asm::{self, Asm, Bytes, Cc, Gpr, GprSet, Hole, Mem, Op, Rm, Shift, Src},
    assign::{Assignment, assign},
    flow::{self, Call, Env, Flow, Next, RegSet, State, Value, filled},
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
/// The registers that [`BreakpointFrame`] holds.
const IN_FRAME: GprSet = GprSet::of(&[asm::RAX, asm::RCX, asm::RDX, asm::RSI, asm::RDI]);
/// Arguments of [`Form::Handler`].
const CONTEXT: Gpr = asm::RSI;
const SHARED_DATA: Gpr = asm::RDX;
const FUNCTION: Gpr = asm::RCX;
const RETURN_ADDRESS: Gpr = asm::R8;

/// Where the [`Sample`] is on the heavy level: at its end, where `rsp` is aligned in any case.
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
    /// Arguments of a handler; pushed behind these, not popped.
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

/// Work out of line: a record is not taken. The code goes on behind the call that would have
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
    /// Of the last round.
    hints: [Used; LEVELS],
    frame: Frame,
    used: [Used; LEVELS],
    asm: Asm,
    level: usize,
    /// The instruction that is compiled.
    at: usize,
    before: State,
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

/// The machine's register that a register of the context is.
fn gpr_of(register: Register) -> Option<Gpr> {
    Some(match register {
        Register::R15 => asm::R15,
        Register::R14 => asm::R14,
        Register::R13 => asm::R13,
        Register::R12 => asm::R12,
        Register::Bp => asm::RBP,
        Register::Bx => asm::RBX,
        Register::R11 => asm::R11,
        Register::R10 => asm::R10,
        Register::R9 => asm::R9,
        Register::R8 => asm::R8,
        Register::Ax => asm::RAX,
        Register::Cx => asm::RCX,
        Register::Dx => asm::RDX,
        Register::Si => asm::RSI,
        Register::Di => asm::RDI,
        _ => return None,
    })
}

/// The offset of a register of the context in the frame of a breakpoint.
fn in_breakpoint_frame(register: Register) -> Option<i32> {
    Some(match register {
        Register::Ax => BreakpointFrame::AX,
        Register::Cx => BreakpointFrame::CX,
        Register::Dx => BreakpointFrame::DX,
        Register::Si => BreakpointFrame::SI,
        Register::Di => BreakpointFrame::DI,
        Register::OrigAx => BreakpointFrame::ORIG_AX,
        Register::Ip => BreakpointFrame::IP,
        Register::Cs => BreakpointFrame::CS,
        Register::Flags => BreakpointFrame::FLAGS,
        Register::Sp => BreakpointFrame::SP,
        Register::Ss => BreakpointFrame::SS,
        _ => return None,
    })
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
                match register {
                    Some(Register::Ip) if handler && matches!(env.kind(), Kind::Entry { .. }) => {
                        asked.arguments.add(FUNCTION);
                    }
                    Some(Register::Flags) => asked.flags = true,
                    _ => {}
                }
                if let Some(gpr) = register.and_then(gpr_of)
                    && !handler
                    && (env.form != Form::Breakpoint || !IN_FRAME.has(gpr))
                {
                    asked.registers.add(gpr);
                }
                asked.context = true;
            }
            Insn::Call { helper } => match helper {
                Helper::EntryData if handler => asked.arguments.add(SHARED_DATA),
                Helper::ReturnAddress if handler => asked.arguments.add(RETURN_ADDRESS),
                Helper::FuncIp if handler && env.kind() == Kind::Probe => asked.context = true,
                Helper::FuncIp if handler => asked.arguments.add(FUNCTION),
                helper if helper.walks_the_stack() => {
                    asked.sample = true;
                    asked.context = true;
                    if handler && matches!(env.kind(), Kind::Entry { .. }) {
                        asked.arguments.add(FUNCTION);
                    }
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
            Value::Map(map) => Some(handle(env, map)),
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

/// The word that helpers get for a map.
fn handle(env: &Env, map: bpf::MapIndex) -> u64 {
    match env.map(map) {
        Some(MapRuntime::Array(array)) => array.handle,
        Some(MapRuntime::Handle(handle)) => *handle,
        None => 0,
    }
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

const fn condition(condition: Condition) -> Cc {
    match condition {
        Condition::Equal => Cc::Equal,
        Condition::NotEqual | Condition::AnyBit => Cc::NotEqual,
        Condition::Above => Cc::Above,
        Condition::AboveOrEqual => Cc::AboveOrEqual,
        Condition::Below => Cc::Below,
        Condition::BelowOrEqual => Cc::BelowOrEqual,
        Condition::Greater => Cc::Greater,
        Condition::GreaterOrEqual => Cc::GreaterOrEqual,
        Condition::Less => Cc::Less,
        Condition::LessOrEqual => Cc::LessOrEqual,
    }
}

/// The memory at an address.
fn absolute(address: i32) -> Rm {
    Rm::Mem(Mem {
        gs: false,
        base: None,
        index: None,
        disp: address,
    })
}

fn push<T>(vec: &mut Vec<T>, item: T) -> Result<(), CompileError> {
    vec.try_reserve(1).map_err(|_| CompileError::OutOfMemory)?;
    vec.push(item);
    Ok(())
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

    fn is_jump(&self) -> bool {
        matches!(self.env.form, Form::Jump { .. })
    }

    // ---- The frame ----

    /// The frame for what the last round used.
    fn plan(&self) -> Frame {
        let form = self.env.form;
        let preserved = match form {
            Form::Jump { .. } => ALL,
            Form::Breakpoint => ALL.without(IN_FRAME),
            Form::Handler => ALL.without(CALLER_SAVED),
        };
        let flags_live = matches!(
            form,
            Form::Jump {
                flags_live: true,
                ..
            }
        );
        let stack_bytes = self.env.verified.stack_bytes().next_multiple_of(8);
        let mut frame = Frame::default();
        let mut depth = 0u16;
        let mut done = GprSet::default();
        let mut stack_is_there = false;
        for level in [LIGHT, HEAVY] {
            let heavy = level == HEAVY;
            let mut clobbered = self.hints[level].written;
            if heavy {
                clobbered = clobbered.or(self.calls_change());
            }
            let mut here = LevelFrame::default();
            let asks = self.is_jump() && self.asked.flags && !heavy;
            let changes = flags_live && (self.hints[level].flags || heavy);
            if frame.saved_flags.is_none() && (asks || changes) {
                depth += 8;
                here.flags = true;
                frame.saved_flags = Some((level, depth));
            }
            let context_moves = form == Form::Handler
                && self.asked.context
                && frame.context_in_bp.is_none()
                && (heavy || clobbered.has(CONTEXT));
            let calls_c = heavy && !self.only_routines;
            let aligns = calls_c && matches!(form, Form::Jump { aligned: false, .. });
            let mut restored = clobbered.and(preserved);
            if context_moves || aligns {
                restored.add(asm::RBP);
            }
            let kept = clobbered.and(self.asked.arguments).without(preserved);
            here.restored = restored.without(done);
            here.kept = kept.without(done);
            done = done.or(here.restored).or(here.kept);
            for gpr in here.restored.iter().chain(here.kept.iter()) {
                depth += 8;
                frame.saved[usize::from(gpr.0)] = Some((level, depth));
            }
            if context_moves {
                frame.context_in_bp = Some(level);
            }
            if aligns {
                frame.aligned_from = Some(depth);
            }
            let inner = depth;
            if (self.hints[level].stack || calls_c) && !stack_is_there {
                frame.stack_top = depth;
                depth += stack_bytes;
                stack_is_there = true;
            }
            if heavy && self.asked.sample {
                depth += size_of::<Sample>() as u16;
            }
            if calls_c {
                // `rsp` is a multiple of 16 in front of a call. At the entry it is, too, at an
                // aligned probe; elsewhere it is 8 below one.
                let above = if self.is_jump() { 0 } else { 8 };
                depth = (depth + above).next_multiple_of(16) - above;
            }
            here.room = depth - inner;
            here.depth = depth;
            frame.levels[level] = here;
        }
        frame
    }

    /// The place at a depth.
    fn at_depth(&self, depth: u16) -> Mem {
        self.above_return(-i32::from(depth))
    }

    /// The place this many bytes above the return address.
    fn above_return(&self, bytes: i32) -> Mem {
        match self.frame.aligned_from {
            Some(from) if self.level == HEAVY => Mem::at(asm::RBP, i32::from(from) + bytes),
            _ => Mem::at(
                asm::RSP,
                i32::from(self.frame.levels[self.level].depth) + bytes,
            ),
        }
    }

    /// Notes where the return address is from here on.
    fn note(&mut self, base: Base, bytes: u16) {
        let offset = self.asm.here();
        // Pushed, and not popped yet.
        let saved_bp = match self.frame.saved[usize::from(asm::RBP.0)] {
            Some((_, depth)) if depth <= bytes => depth,
            _ => 0,
        };
        let depth = Depth {
            offset,
            base,
            bytes,
            saved_bp,
        };
        if let Some(last) = self.depth.last_mut() {
            if *last
                == (Depth {
                    offset: last.offset,
                    ..depth
                })
            {
                return;
            }
            if last.offset == offset {
                *last = depth;
                return;
            }
        }
        if push(&mut self.depth, depth).is_err() {
            self.asm.failed = true;
        }
    }

    /// The same, in the body of the level.
    fn note_level(&mut self) {
        match self.frame.aligned_from {
            Some(from) if self.level == HEAVY => self.note(Base::Bp, from),
            _ => self.note(Base::Sp, self.frame.levels[self.level].depth),
        }
    }

    /// Builds the part of the frame that belongs to `level`. The code so far is on the level above.
    fn enter(&mut self, level: usize) {
        let here = self.frame.levels[level];
        let mut depth = match level {
            LIGHT => 0,
            _ => self.frame.levels[LIGHT].depth,
        };
        self.note(Base::Sp, depth);
        if here.flags {
            self.asm.pushfq();
            depth += 8;
            self.note(Base::Sp, depth);
        }
        for gpr in here.restored.iter().chain(here.kept.iter()) {
            self.asm.push(gpr);
            depth += 8;
            self.note(Base::Sp, depth);
        }
        if level == HEAVY && self.frame.aligned_from.is_some() {
            self.asm.mov(Bytes::B8, asm::RBP, Rm::Reg(asm::RSP));
            self.note(Base::Bp, depth);
            if here.room != 0 {
                self.asm.adjust_sp(-i32::from(here.room));
            }
            self.asm
                .op(Op::And, Bytes::B8, Rm::Reg(asm::RSP), Src::Imm(-16));
        } else if here.room != 0 {
            self.asm.adjust_sp(-i32::from(here.room));
            self.note(Base::Sp, depth + here.room);
        }
        if self.frame.context_in_bp == Some(level) {
            self.asm.mov(Bytes::B8, asm::RBP, Rm::Reg(CONTEXT));
        }
        if level == HEAVY {
            match self.env.form {
                Form::Jump { flags_live, .. } => {
                    if flags_live {
                        self.clear_flags();
                    }
                    let count = Mem::gs(self.machine.preempt_count);
                    self.asm.step(Bytes::B4, count, false, false);
                }
                Form::Breakpoint => self.clear_flags(),
                Form::Handler => {}
            }
        }
        self.forget_writes();
        self.level = level;
        self.note_level();
    }

    /// Clears the flags that C code relies on.
    fn clear_flags(&mut self) {
        self.asm.cld();
        if self.machine.clears_ac {
            self.asm.clac();
        }
    }

    /// Takes down the frame, and returns.
    fn leave(&mut self) {
        for level in (LIGHT..=self.level).rev() {
            let here = self.frame.levels[level];
            let mut depth = here.depth;
            if level == HEAVY && self.is_jump() {
                let count = Mem::gs(self.machine.preempt_count);
                self.asm.step(Bytes::B4, count, true, false);
            }
            let room = here.room + 8 * here.kept.iter().count() as u16;
            match self.frame.aligned_from {
                Some(from) if level == HEAVY => {
                    self.asm.mov(Bytes::B8, asm::RSP, Rm::Reg(asm::RBP));
                    depth = from;
                }
                _ => {
                    if room != 0 {
                        self.asm.adjust_sp(i32::from(room));
                    }
                    depth -= room;
                }
            }
            self.note(Base::Sp, depth);
            for gpr in here.restored.iter().rev() {
                self.asm.pop(gpr);
                depth -= 8;
                self.note(Base::Sp, depth);
            }
            if here.flags {
                self.asm.popfq();
                depth -= 8;
                self.note(Base::Sp, depth);
            }
        }
        self.asm.ret();
        self.forget_writes();
    }

    /// A register that only the frame's code writes need not be saved.
    fn forget_writes(&mut self) {
        self.asm.written = GprSet::default();
        self.asm.flags_written = false;
    }

    /// Books what the code since the last call has written.
    fn book_writes(&mut self) {
        let used = &mut self.used[self.level];
        used.written = used.written.or(self.asm.written);
        used.flags |= self.asm.flags_written;
        used.stack |= self.stack_used.take();
        self.forget_writes();
    }

    // ---- The walk ----

    fn all(&mut self) -> Result<(), CompileError> {
        self.enter(LIGHT);
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
                return push(&mut self.holes, (hole, at, self.level));
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
        self.asm.op(Op::Cmp, Bytes::B4, absolute(word), Src::Imm(0));
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
        // Also a result that nobody needs is written.
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

    // ---- Operands ----

    /// The argument of a handler, where it is now.
    fn argument(&self, gpr: Gpr) -> Rm {
        self.entry_register(gpr)
    }

    /// A register's content at the entry.
    fn entry_register(&self, gpr: Gpr) -> Rm {
        match self.frame.saved[usize::from(gpr.0)] {
            Some((level, depth)) if level <= self.level => Rm::Mem(self.at_depth(depth)),
            _ => Rm::Reg(gpr),
        }
    }

    /// The base of the context of a handler.
    fn context(&self) -> Gpr {
        match self.frame.context_in_bp {
            Some(level) if level <= self.level => asm::RBP,
            _ => CONTEXT,
        }
    }

    /// Where a register of the probed code is, if it is in one place.
    fn probed(&self, register: Register) -> Place {
        let form = self.env.form;
        let frame = in_breakpoint_frame(register);
        Place::Rm(match (form, frame, gpr_of(register)) {
            (Form::Handler, ..) => Rm::Mem(Mem::at(self.context(), i32::from(register.offset()))),
            (Form::Breakpoint, Some(offset), _) => Rm::Mem(self.above_return(8 + offset)),
            (_, _, Some(gpr)) => self.entry_register(gpr),
            (Form::Jump { .. }, ..) if register == Register::Flags => {
                // The frame has them because the program asks.
                let depth = self.frame.saved_flags.map_or(0, |(_, depth)| depth);
                Rm::Mem(self.at_depth(depth))
            }
            // `rsp` of a jump. The others are not asked for here.
            _ => return Place::Address(self.above_return(8)),
        })
    }

    fn place_of(&self, value: Value) -> Place {
        match value {
            Value::Const(value) => Place::Imm(value),
            Value::Probed(register) => self.probed(register),
            Value::Stack(offset) => Place::Address(self.stack(offset)),
            Value::Map(map) => Place::Imm(handle(self.env, map)),
            Value::Context if self.env.form == Form::Handler => Place::Rm(Rm::Reg(self.context())),
            // No helper looks at it.
            Value::Context | Value::Unknown => Place::Address(self.above_return(8)),
        }
    }

    fn stack(&self, offset: i32) -> Mem {
        self.stack_used.set(true);
        self.at_depth(self.frame.stack_top).plus(offset)
    }

    fn place(&self, reg: Reg) -> Place {
        match flow::of(&self.before, reg) {
            Value::Unknown => Place::Rm(Rm::Reg(self.phys(reg))),
            value => self.place_of(value),
        }
    }

    fn operand(&self, operand: Operand) -> Place {
        match operand {
            Operand::Reg(reg) => self.place(reg),
            Operand::Imm(imm) => Place::Imm(i64::from(imm) as u64),
        }
    }

    /// `dst = ` the content at `place`.
    fn load(&mut self, dst: Gpr, place: Place) {
        match place {
            Place::Imm(value) => self.asm.mov_imm(dst, value),
            Place::Rm(Rm::Reg(src)) if src == dst => {}
            Place::Rm(src) => self.asm.mov(Bytes::B8, dst, src),
            Place::Address(mem) => self.asm.lea(dst, mem),
        }
    }

    /// A register that holds nothing that this instruction or a later one needs.
    fn scratch(&mut self) -> Gpr {
        let live = self.flow.live_in[self.at].or(self.out());
        let mut busy = self.taken.or(GprSet::of(&[asm::RSP, asm::RBP]));
        for reg in live.iter() {
            busy.add(self.phys(reg));
        }
        if self.env.form == Form::Handler && self.asked.context && self.context() == CONTEXT {
            busy.add(CONTEXT);
        }
        let asked = self.asked.registers.or(self.asked.arguments);
        let needed = asked
            .iter()
            .filter(|&gpr| self.entry_register(gpr) == Rm::Reg(gpr))
            .fold(GprSet::default(), |mut set, gpr| {
                set.add(gpr);
                set
            });
        let mut saved = self.hints[self.level].written;
        if self.level == HEAVY {
            saved = saved.or(self.calls_change());
            saved = saved.or(self.hints[LIGHT].written);
        }
        let free = |set: GprSet| set.without(busy).iter().next();
        let found = free(saved.without(needed))
            .or_else(|| free(CALLER_SAVED.without(needed)))
            .or_else(|| free(ALL.without(needed)))
            .or_else(|| free(ALL));
        let gpr = found.unwrap_or_else(|| {
            self.asm.failed = true;
            asm::RAX
        });
        self.taken.add(gpr);
        gpr
    }

    /// A register with that content; a scratch register if it is in none.
    fn in_register(&mut self, place: Place) -> Gpr {
        match place {
            Place::Rm(Rm::Reg(gpr)) => gpr,
            place => {
                let gpr = self.scratch();
                self.load(gpr, place);
                gpr
            }
        }
    }

    /// The same, but it may stay in memory.
    fn in_rm(&mut self, place: Place) -> Rm {
        match place {
            Place::Rm(rm) => rm,
            place => Rm::Reg(self.in_register(place)),
        }
    }

    /// The same, and a constant that an operation can have may stay one.
    fn source(&mut self, width: Width, place: Place) -> Src {
        match (width, place) {
            (Width::W32, Place::Imm(value)) => Src::Imm(value as i32),
            (Width::W64, Place::Imm(value)) if i32::try_from(value as i64).is_ok() => {
                Src::Imm(value as i32)
            }
            (_, place) => Src::Rm(self.in_rm(place)),
        }
    }

    /// The machine register of `reg`, with its content.
    fn own(&mut self, reg: Reg) -> Gpr {
        let gpr = self.phys(reg);
        let place = self.place(reg);
        self.load(gpr, place);
        gpr
    }

    /// Whether a register other than `except` needs what `gpr` holds, after this instruction.
    fn is_needed(&self, gpr: Gpr, except: Option<Reg>) -> bool {
        let mut live = self.out().iter();
        live.any(|reg| Some(reg) != except && self.phys(reg) == gpr)
    }

    // ---- Arithmetic ----

    fn alu(&mut self, width: Width, op: AluOp, dst: Reg, operand: Operand) {
        let size = bytes_of(width);
        let to = self.phys(dst);
        let place = self.operand(operand);
        let simple = match op {
            AluOp::Mov => {
                match (width, place) {
                    (Width::W64, place) => self.load(to, place),
                    (Width::W32, place) => {
                        let src = self.in_rm(place);
                        self.asm.mov(Bytes::B4, to, src);
                    }
                }
                return;
            }
            AluOp::Add => Op::Add,
            AluOp::Sub => Op::Sub,
            AluOp::And => Op::And,
            AluOp::Or => Op::Or,
            AluOp::Xor => Op::Xor,
            AluOp::Mul => {
                let to = self.own(dst);
                match self.source(width, place) {
                    Src::Imm(imm) => self.asm.imul_imm(size, to, Rm::Reg(to), imm),
                    Src::Rm(src) => self.asm.imul(size, to, src),
                }
                return;
            }
            AluOp::ShiftLeft => return self.shift(Shift::Left, width, dst, place),
            AluOp::ShiftRight => return self.shift(Shift::Right, width, dst, place),
            AluOp::ShiftRightSigned => return self.shift(Shift::RightSigned, width, dst, place),
            AluOp::Div | AluOp::SignedDiv | AluOp::Mod | AluOp::SignedMod => {
                return self.divide(width, op, dst, place);
            }
        };
        let to = self.own(dst);
        let src = self.source(width, place);
        self.asm.op(simple, size, Rm::Reg(to), src);
    }

    fn shift(&mut self, shift: Shift, width: Width, dst: Reg, count: Place) {
        let size = bytes_of(width);
        if let Place::Imm(count) = count {
            let to = self.own(dst);
            let mask = if width == Width::W64 { 63 } else { 31 };
            match (count & mask) as u8 {
                0 if width == Width::W32 => self.asm.mov(Bytes::B4, to, Rm::Reg(to)),
                count => self.asm.shift(shift, size, to, count),
            }
            return;
        }
        let to = self.phys(dst);
        self.taken.add(asm::RCX);
        if to == asm::RCX {
            let value = self.scratch();
            let place = self.place(dst);
            self.load(value, place);
            self.load(asm::RCX, count);
            self.shift_cl(shift, size, value);
            self.asm.mov(Bytes::B8, to, Rm::Reg(value));
            return;
        }
        let saved = self.is_needed(asm::RCX, Some(dst)).then(|| self.scratch());
        if let Some(saved) = saved {
            self.asm.mov(Bytes::B8, saved, Rm::Reg(asm::RCX));
        }
        // Both before `rcx` changes, because it may hold either.
        let to = self.own(dst);
        self.load(asm::RCX, count);
        self.shift_cl(shift, size, to);
        if let Some(saved) = saved {
            self.asm.mov(Bytes::B8, asm::RCX, Rm::Reg(saved));
        }
    }

    /// By a count of 0, a shift of 32 bits leaves the upper half as it is.
    fn shift_cl(&mut self, shift: Shift, size: Bytes, to: Gpr) {
        if size == Bytes::B4 {
            self.asm.mov(Bytes::B4, to, Rm::Reg(to));
        }
        self.asm.shift_by_cl(shift, size, to);
    }

    fn divide(&mut self, width: Width, op: AluOp, dst: Reg, divisor: Place) {
        let size = bytes_of(width);
        let to = self.phys(dst);
        let signed = matches!(op, AluOp::SignedDiv | AluOp::SignedMod);
        let remainder = matches!(op, AluOp::Mod | AluOp::SignedMod);
        let constant = match divisor {
            Place::Imm(value) if width == Width::W32 => Some(value & 0xffff_ffff),
            Place::Imm(value) => Some(value),
            _ => None,
        };
        if let Some(power) = constant.filter(|value| !signed && value.is_power_of_two()) {
            let to = self.own(dst);
            if !remainder {
                match power.trailing_zeros() as u8 {
                    0 if width == Width::W32 => self.asm.mov(Bytes::B4, to, Rm::Reg(to)),
                    count => self.asm.shift(Shift::Right, size, to, count),
                }
            } else {
                let mask = self.source(width, Place::Imm(power - 1));
                self.asm.op(Op::And, size, Rm::Reg(to), mask);
            }
            return;
        }
        self.taken = self.taken.or(GprSet::of(&[asm::RAX, asm::RDX]));
        let by = self.scratch();
        self.load(by, divisor);
        let saved = [asm::RAX, asm::RDX].map(|gpr| {
            let saved = self.is_needed(gpr, Some(dst)).then(|| self.scratch())?;
            self.asm.mov(Bytes::B8, saved, Rm::Reg(gpr));
            Some((saved, gpr))
        });
        let dividend = self.place(dst);
        self.load(asm::RAX, dividend);
        let mut ends = [None, None];
        if constant.is_none_or(|value| value == 0) {
            let by = Rm::Reg(by);
            self.asm.test(size, by, Src::Rm(by));
            let divides = self.asm.jcc(Cc::NotEqual);
            if remainder {
                self.asm.mov(size, asm::RDX, Rm::Reg(asm::RAX));
            } else {
                self.asm.mov_imm(asm::RAX, 0);
            }
            ends[0] = Some(self.asm.jmp());
            self.asm.fill_here(divides);
        }
        if signed {
            // The machine traps on MIN / -1.
            let is_minus_one = match (width, constant) {
                (_, None) => true,
                (Width::W64, Some(value)) => value == u64::MAX,
                (Width::W32, Some(value)) => value == 0xffff_ffff,
            };
            if is_minus_one {
                self.asm.op(Op::Cmp, size, Rm::Reg(by), Src::Imm(-1));
                let divides = self.asm.jcc(Cc::NotEqual);
                if remainder {
                    self.asm.mov_imm(asm::RDX, 0);
                } else {
                    self.asm.neg(size, asm::RAX);
                }
                ends[1] = Some(self.asm.jmp());
                self.asm.fill_here(divides);
            }
        } else {
            self.asm.mov_imm(asm::RDX, 0);
        }
        self.asm.divide(size, by, signed);
        for end in ends.into_iter().flatten() {
            self.asm.fill_here(end);
        }
        let from = if remainder { asm::RDX } else { asm::RAX };
        self.load(to, Place::Rm(Rm::Reg(from)));
        for (saved, gpr) in saved.into_iter().flatten() {
            self.asm.mov(Bytes::B8, gpr, Rm::Reg(saved));
        }
    }

    fn sign_extend(&mut self, width: Width, bits: u8, dst: Reg, src: Reg) {
        let to = self.phys(dst);
        let place = self.place(src);
        let from = self.in_rm(place);
        let size = match bits {
            8 => Bytes::B1,
            16 => Bytes::B2,
            _ => Bytes::B4,
        };
        match (width, size) {
            (Width::W64, size) => self.asm.mov_extended(to, from, size, true),
            (Width::W32, Bytes::B4 | Bytes::B8) => self.asm.mov(Bytes::B4, to, from),
            (Width::W32, size) => self.asm.mov_signed_to_32(to, from, size),
        }
    }

    fn swap(&mut self, swap: Swap, bits: u8, dst: Reg) {
        let to = self.own(dst);
        let reverses = swap != Swap::ToLittle;
        match bits {
            16 => {
                if reverses {
                    self.asm.rotate_16_by_8(to);
                }
                self.asm.mov_extended(to, Rm::Reg(to), Bytes::B2, false);
            }
            32 if reverses => self.asm.bswap(Bytes::B4, to),
            32 => self.asm.mov(Bytes::B4, to, Rm::Reg(to)),
            _ if reverses => self.asm.bswap(Bytes::B8, to),
            _ => {}
        }
    }

    fn branch(
        &mut self,
        width: Width,
        of: Condition,
        dst: Reg,
        operand: Operand,
    ) -> Result<After, CompileError> {
        let target = match self.env.next(self.at, &self.before) {
            Next::Goto(target) => return Ok(After::Goto(target)),
            Next::Either(target) => target,
            Next::Fall => return Ok(After::Next),
            Next::End => return Ok(self.end()),
        };
        if core::mem::take(&mut self.compared) {
            let hole = self.asm.jcc(condition(of));
            push(&mut self.holes, (hole, target, self.level))?;
            push(&mut self.queue, (target, self.level))?;
            return Ok(After::Next);
        }
        let size = bytes_of(width);
        let (a, b) = (self.place(dst), self.operand(operand));
        let b = self.source(width, b);
        let a = match (a, b) {
            (Place::Rm(a @ Rm::Mem(_)), Src::Imm(_) | Src::Rm(Rm::Reg(_))) => a,
            (a, _) => Rm::Reg(self.in_register(a)),
        };
        match (of, b, a) {
            (Condition::AnyBit, b, a) => self.asm.test(size, a, b),
            (_, Src::Imm(0), Rm::Reg(_)) => self.asm.test(size, a, Src::Rm(a)),
            _ => self.asm.op(Op::Cmp, size, a, b),
        }
        let hole = self.asm.jcc(condition(of));
        push(&mut self.holes, (hole, target, self.level))?;
        push(&mut self.queue, (target, self.level))?;
        Ok(After::Next)
    }

    // ---- Memory ----

    /// Where a load, store or atomic operation goes that cannot fault.
    fn memory(&mut self, base: Reg, offset: i16) -> Result<Mem, CompileError> {
        Ok(match self.env.memory(self.at)? {
            Memory::Stack { offset } => self.stack(i32::from(offset)),
            _ => {
                let place = self.place(base);
                Mem::at(self.in_register(place), i32::from(offset))
            }
        })
    }

    fn load_memory(
        &mut self,
        dst: Reg,
        base: Reg,
        offset: i16,
        size: Size,
        signed: bool,
    ) -> Result<(), CompileError> {
        let to = self.phys(dst);
        let bytes = size_of_access(size);
        match self.env.memory(self.at)? {
            Memory::Context { offset } => {
                let Some(register) = Register::at(offset) else {
                    return Err(CompileError::NoFact { insn: self.at });
                };
                self.load_context(to, register, bytes, signed);
            }
            Memory::Kernel => {
                let place = self.place(base);
                let mut base = self.in_register(place);
                if base.0 & 7 == asm::RSP.0 {
                    let from = base;
                    self.taken.add(from);
                    base = self.scratch();
                    if base.0 & 7 == asm::RSP.0 {
                        base = self.scratch();
                    }
                    self.asm.mov(Bytes::B8, base, Rm::Reg(from));
                }
                let base_rm = Rm::Reg(base);
                self.asm.test(Bytes::B8, base_rm, Src::Rm(base_rm));
                let hole = self.asm.jcc(Cc::NotSigned);
                self.asm
                    .mov_mendable(to, base, i32::from(offset), bytes, signed);
                let refused = Refused {
                    hole,
                    dst: to,
                    back: self.asm.here(),
                    level: self.level,
                };
                push(&mut self.refused, refused)?;
            }
            Memory::Stack { .. } | Memory::Own => {
                let mem = self.memory(base, offset)?;
                self.asm.mov_extended(to, Rm::Mem(mem), bytes, signed);
            }
        }
        Ok(())
    }

    /// `to = ` the low bytes of a register of the probed code, extended.
    fn load_context(&mut self, to: Gpr, register: Register, bytes: Bytes, signed: bool) {
        match (self.env.form, register) {
            (_, Register::Ip) => self.load_ip(to),
            (Form::Jump { .. }, Register::Cs) => self.asm.mov_cs(to),
            (Form::Jump { .. }, Register::Ss) => self.asm.mov_ss(to),
            _ => match self.probed(register) {
                Place::Rm(from) if bytes != Bytes::B8 => {
                    return self.asm.mov_extended(to, from, bytes, signed);
                }
                place => self.load(to, place),
            },
        }
        if bytes != Bytes::B8 {
            self.asm.mov_extended(to, Rm::Reg(to), bytes, signed);
        }
    }

    /// `to = ` the probed address, or where the call returns to.
    fn load_ip(&mut self, to: Gpr) {
        let context_ip = i32::from(Register::Ip.offset());
        match (self.env.form, self.env.kind()) {
            (Form::Jump { .. }, _) => {
                let at = self.above_return(0);
                self.asm.mov(Bytes::B8, to, Rm::Mem(at));
                let at = Mem::at(to, -ADDRESS_BEFORE_RETURN);
                self.asm.mov(Bytes::B8, to, Rm::Mem(at));
            }
            (Form::Breakpoint, _) => {
                let at = self.above_return(8 + BreakpointFrame::IP);
                self.asm.mov(Bytes::B8, to, Rm::Mem(at));
                self.asm.lea(to, Mem::at(to, -1));
            }
            (Form::Handler, Kind::Probe) => {
                let at = Mem::at(self.context(), context_ip);
                self.asm.mov(Bytes::B8, to, Rm::Mem(at));
                self.asm.lea(to, Mem::at(to, -1));
            }
            (Form::Handler, Kind::Entry { .. }) => {
                let place = Place::Rm(self.argument(FUNCTION));
                self.load(to, place);
            }
            (Form::Handler, Kind::Return { .. }) => {
                let at = Mem::at(self.context(), context_ip);
                self.asm.mov(Bytes::B8, to, Rm::Mem(at));
            }
        }
    }

    fn store_memory(
        &mut self,
        base: Reg,
        offset: i16,
        size: Size,
        value: Operand,
    ) -> Result<(), CompileError> {
        let mem = self.memory(base, offset)?;
        let bytes = size_of_access(size);
        let place = self.operand(value);
        let imm = match (place, size) {
            (Place::Imm(value), Size::B8) => i32::try_from(value as i64).ok(),
            (Place::Imm(value), _) => Some(value as i32),
            _ => None,
        };
        match imm {
            Some(imm) => self.asm.store_imm(mem, imm, bytes),
            None => {
                let src = self.in_register(place);
                self.asm.store(mem, src, bytes);
            }
        }
        Ok(())
    }

    fn atomic(&mut self, op: AtomicOp, mem: Mem, size: Bytes, reg: Reg) {
        let fetches = match op {
            AtomicOp::Add { fetch } => fetch.then_some(Op::Add),
            AtomicOp::Or { fetch } => fetch.then_some(Op::Or),
            AtomicOp::And { fetch } => fetch.then_some(Op::And),
            AtomicOp::Xor { fetch } => fetch.then_some(Op::Xor),
            AtomicOp::Exchange => {
                let gpr = self.own(reg);
                return self.asm.xchg(size, mem, gpr);
            }
            AtomicOp::CompareExchange => return self.compare_exchange(mem, size, reg),
        };
        match fetches {
            Some(Op::Add) => {
                let gpr = self.own(reg);
                self.asm.lock_xadd(size, mem, gpr);
            }
            Some(op) => self.fetch(op, mem, size, reg),
            None => {
                let op = match op {
                    AtomicOp::Or { .. } => Op::Or,
                    AtomicOp::And { .. } => Op::And,
                    AtomicOp::Xor { .. } => Op::Xor,
                    _ => Op::Add,
                };
                let width = match size {
                    Bytes::B4 => Width::W32,
                    _ => Width::W64,
                };
                let place = self.place(reg);
                let src = match self.source(width, place) {
                    Src::Rm(rm) => Src::Rm(Rm::Reg(self.in_register(Place::Rm(rm)))),
                    imm => imm,
                };
                self.asm.op_locked(op, size, mem, src);
            }
        }
    }

    /// `mem` and `gpr` with another register in place of `rax`, if they name it. That register also
    /// keeps the content of `rax`.
    fn away_from_rax(&mut self, mem: Mem, gpr: Gpr, needed: bool) -> (Mem, Gpr, Option<Gpr>) {
        self.taken.add(asm::RAX);
        let in_mem = mem.base == Some(asm::RAX);
        if !(needed || in_mem || gpr == asm::RAX) {
            return (mem, gpr, None);
        }
        let copy = self.scratch();
        self.asm.mov(Bytes::B8, copy, Rm::Reg(asm::RAX));
        let base = if in_mem { Some(copy) } else { mem.base };
        let gpr = if gpr == asm::RAX { copy } else { gpr };
        (Mem { base, ..mem }, gpr, needed.then_some(copy))
    }

    /// `mem, reg = mem OP reg, mem`.
    fn fetch(&mut self, op: Op, mem: Mem, size: Bytes, reg: Reg) {
        let to = self.phys(reg);
        let place = self.place(reg);
        let src = self.in_register(place);
        let needed = self.is_needed(asm::RAX, Some(reg));
        let (mem, src, copy) = self.away_from_rax(mem, src, needed);
        let new = self.scratch();
        self.asm.mov_extended(asm::RAX, Rm::Mem(mem), size, false);
        let again = self.asm.here();
        self.asm.mov(Bytes::B8, new, Rm::Reg(asm::RAX));
        self.asm.op(op, size, Rm::Reg(new), Src::Rm(Rm::Reg(src)));
        self.asm.lock_cmpxchg(size, mem, new);
        let hole = self.asm.jcc(Cc::NotEqual);
        self.asm.fill(hole, again);
        self.mov_sized(size, to, asm::RAX);
        if let Some(copy) = copy {
            self.asm.mov(Bytes::B8, asm::RAX, Rm::Reg(copy));
        }
    }

    fn compare_exchange(&mut self, mem: Mem, size: Bytes, reg: Reg) {
        let to = self.phys(Reg::R0);
        let new = self.place(reg);
        let new = self.in_register(new);
        let expected = self.place(Reg::R0);
        let needed = self.is_needed(asm::RAX, Some(Reg::R0));
        // The content of `rax` may be expected, too: it is loaded before it changes.
        let (mem, new, copy) = self.away_from_rax(mem, new, needed);
        self.load(asm::RAX, expected);
        self.asm.lock_cmpxchg(size, mem, new);
        self.mov_sized(size, to, asm::RAX);
        if let Some(copy) = copy {
            self.asm.mov(Bytes::B8, asm::RAX, Rm::Reg(copy));
        }
    }

    /// `to = ` the low bytes of `from`.
    fn mov_sized(&mut self, size: Bytes, to: Gpr, from: Gpr) {
        if size != Bytes::B8 || to != from {
            self.asm.mov(size, to, Rm::Reg(from));
        }
    }

    // ---- Calls ----

    fn call(&mut self, helper: Helper) -> Result<(), CompileError> {
        let to = self.phys(Reg::R0);
        match (helper, self.env.call(self.at, helper)) {
            (Helper::Add, Call::Array(array)) => self.add(array),
            (_, Call::Array(array)) => self.lookup(array),
            (helper, Call::Out) => return self.call_out(helper),
            (Helper::CpuId, _) => {
                let number = Mem::gs(self.machine.cpu_number);
                self.asm.mov(Bytes::B4, to, Rm::Mem(number));
            }
            (Helper::PidTgid, _) => self.pid_tgid(to),
            (Helper::NotRecording, _) => self.not_recording(to),
            (Helper::Tsc, _) => self.tsc(to),
            (Helper::Log2, _) => {
                let place = self.place(Reg::R1);
                let src = self.in_rm(place);
                let to_is_free = src != Rm::Reg(to);
                let bit = if to_is_free { to } else { self.scratch() };
                // Of 0 the machine leaves the destination as it is; all processors with 64 bits
                // do.
                self.asm.mov_imm(bit, u64::MAX);
                self.asm.bsr(bit, src);
                self.asm.lea(to, Mem::at(bit, 1));
            }
            (Helper::EntryData, _) => {
                let place = Place::Rm(self.argument(SHARED_DATA));
                self.load(to, place);
            }
            (Helper::ReturnAddress, _) => {
                let place = Place::Rm(self.argument(RETURN_ADDRESS));
                self.load(to, place);
            }
            // FuncIp
            _ => match (self.env.form, self.env.kind()) {
                (Form::Handler, Kind::Entry { .. } | Kind::Return { .. }) => {
                    let place = Place::Rm(self.argument(FUNCTION));
                    self.load(to, place);
                }
                _ => self.load_ip(to),
            },
        }
        Ok(())
    }

    fn pid_tgid(&mut self, to: Gpr) {
        let Some(at) = self.machine.pid_tgid else {
            return;
        };
        if at.tgid == at.pid.wrapping_add(4) {
            self.asm.mov(Bytes::B8, to, Rm::Mem(Mem::gs(at.pid)));
            return;
        }
        let pid = self.scratch();
        self.asm.mov(Bytes::B4, to, Rm::Mem(Mem::gs(at.tgid)));
        self.asm.shift(Shift::Left, Bytes::B8, to, 32);
        self.asm.mov(Bytes::B4, pid, Rm::Mem(Mem::gs(at.pid)));
        self.asm
            .op(Op::Or, Bytes::B8, Rm::Reg(to), Src::Rm(Rm::Reg(pid)));
    }

    fn not_recording(&mut self, to: Gpr) {
        let word = absolute(self.machine.not_recording.unwrap_or_default());
        if self.is_only_compared() {
            self.asm.op(Op::Cmp, Bytes::B4, word, Src::Imm(0));
            self.compared = true;
        } else {
            self.asm.mov(Bytes::B4, to, word);
        }
    }

    /// Whether all that becomes of this call's result is that the next instruction, which is
    /// reached from here alone, compares it with 0.
    fn is_only_compared(&self) -> bool {
        let next = self.at + 1;
        let compares = matches!(
            self.env.insns().get(next),
            Some(Insn::Branch {
                condition: Condition::Equal | Condition::NotEqual,
                dst: Reg::R0,
                operand: Operand::Imm(0),
                ..
            })
        );
        let leads_there = |insn: &Insn| match insn {
            Insn::Jump { target } | Insn::Branch { target, .. } => usize::from(target.0) == next,
            _ => false,
        };
        let is_both_ways = self.flow.before[next]
            .as_ref()
            .is_some_and(|before| matches!(self.env.next(next, before), Next::Either(_)));
        compares
            && is_both_ways
            && !self.flow.live_out[next].has(Reg::R0)
            && !self.env.insns().iter().any(leads_there)
    }

    fn tsc(&mut self, to: Gpr) {
        self.taken = self.taken.or(GprSet::of(&[asm::RAX, asm::RDX]));
        let saved = [asm::RAX, asm::RDX].map(|gpr| {
            let saved = self.is_needed(gpr, Some(Reg::R0)).then(|| self.scratch())?;
            self.asm.mov(Bytes::B8, saved, Rm::Reg(gpr));
            Some((saved, gpr))
        });
        self.asm.rdtsc();
        self.asm.shift(Shift::Left, Bytes::B8, asm::RDX, 32);
        let (low, high) = (Rm::Reg(asm::RAX), Rm::Reg(asm::RDX));
        if to == asm::RDX {
            self.asm.op(Op::Or, Bytes::B8, high, Src::Rm(low));
        } else {
            self.asm.op(Op::Or, Bytes::B8, low, Src::Rm(high));
            self.load(to, Place::Rm(low));
        }
        for (saved, gpr) in saved.into_iter().flatten() {
            self.asm.mov(Bytes::B8, gpr, Rm::Reg(saved));
        }
    }

    /// The scale of an index by `stride`, and the register with the index if it is not `index`.
    fn scaled(&mut self, index: Gpr, stride: u32) -> (Gpr, u8) {
        match stride {
            1 => (index, 0),
            2 => (index, 1),
            4 => (index, 2),
            8 => (index, 3),
            _ => {
                let product = self.scratch();
                self.asm
                    .imul_imm(Bytes::B8, product, Rm::Reg(index), stride as i32);
                (product, 0)
            }
        }
    }

    /// The place `offset + index` in the calling CPU's part of an array.
    fn element(&mut self, array: Array, index: Option<(Gpr, u8)>, offset: u64) -> Mem {
        let start = array.base.wrapping_add(offset);
        let near = i32::try_from(start as i64).ok();
        let part = match array.cpu {
            PerCpu::Shared | PerCpu::Gs { .. } => None,
            PerCpu::Shift(shift) => {
                let part = self.scratch();
                let number = Mem::gs(self.machine.cpu_number);
                self.asm.mov(Bytes::B4, part, Rm::Mem(number));
                self.asm.shift(Shift::Left, Bytes::B8, part, shift);
                Some(part)
            }
            PerCpu::Word(at) => {
                let part = self.scratch();
                self.asm.mov(Bytes::B8, part, Rm::Mem(Mem::gs(at)));
                Some(part)
            }
        };
        let gs = matches!(array.cpu, PerCpu::Gs { .. });
        let mem = |base, index, disp| Mem {
            gs,
            base,
            index,
            disp,
        };
        if let Some(disp) = near {
            return mem(part, index, disp);
        }
        let far = self.scratch();
        self.asm.mov_imm(far, start);
        match (part, index) {
            (None, index) => mem(Some(far), index, 0),
            (Some(part), None) => mem(Some(part), Some((far, 0)), 0),
            (Some(part), Some(index)) => {
                let (part, far) = (Rm::Reg(part), Rm::Reg(far));
                self.asm.op(Op::Add, Bytes::B8, part, Src::Rm(far));
                let Rm::Reg(part) = part else { unreachable!() };
                mem(Some(part), Some(index), 0)
            }
        }
    }

    /// Whether an index that is not known must be compared with the number of entries.
    fn is_index_checked(&self, array: Array) -> bool {
        let most = self.env.most_index(self.at);
        most.is_none_or(|most| most >= u64::from(array.entries))
    }

    fn add(&mut self, array: Array) {
        let mut skip = None;
        let (index, offset) = match self.place(Reg::R2) {
            Place::Imm(index) if index >= u64::from(array.entries) => return,
            Place::Imm(index) => (None, index * u64::from(array.stride)),
            place => {
                if self.is_index_checked(array) {
                    let rm = self.in_rm(place);
                    let entries = Src::Imm(array.entries as i32);
                    self.asm.op(Op::Cmp, Bytes::B8, rm, entries);
                    skip = Some(self.asm.jcc(Cc::AboveOrEqual));
                    let index = self.in_register(Place::Rm(rm));
                    (Some(self.scaled(index, array.stride)), 0)
                } else {
                    let index = self.in_register(place);
                    (Some(self.scaled(index, array.stride)), 0)
                }
            }
        };
        let delta = self.place(Reg::R3);
        let delta = match self.source(Width::W64, delta) {
            Src::Rm(rm) => Src::Rm(Rm::Reg(self.in_register(Place::Rm(rm)))),
            imm => imm,
        };
        let mem = self.element(array, index, offset);
        let shared = array.cpu == PerCpu::Shared;
        match delta {
            Src::Imm(1) => self.asm.step(Bytes::B8, mem, false, shared),
            Src::Imm(-1) => self.asm.step(Bytes::B8, mem, true, shared),
            delta if shared => self.asm.op_locked(Op::Add, Bytes::B8, mem, delta),
            delta => self.asm.op(Op::Add, Bytes::B8, Rm::Mem(mem), delta),
        }
        if let Some(skip) = skip {
            self.asm.fill_here(skip);
        }
    }

    fn lookup(&mut self, array: Array) {
        let to = self.phys(Reg::R0);
        self.taken.add(to);
        let (index, offset, absent) = if self.env.most_index(self.at) == Some(0) {
            (None, 0, None)
        } else {
            let key = match self.place(Reg::R2) {
                Place::Address(mem) => mem,
                place => Mem::at(self.in_register(place), 0),
            };
            let index = self.scratch();
            self.asm.mov(Bytes::B4, index, Rm::Mem(key));
            let absent = self.is_index_checked(array).then(|| {
                let entries = Src::Imm(array.entries as i32);
                self.asm.op(Op::Cmp, Bytes::B4, Rm::Reg(index), entries);
                self.asm.jcc(Cc::AboveOrEqual)
            });
            (Some(self.scaled(index, array.stride)), 0, absent)
        };
        let mem = self.element(array, index, offset);
        match (array.cpu, mem) {
            (PerCpu::Gs { own_address }, mem) => {
                let own = Rm::Mem(Mem::gs(own_address));
                if mem.base.is_none() && mem.index.is_none() {
                    self.asm.mov(Bytes::B8, to, own);
                    self.asm.lea(to, Mem::at(to, mem.disp));
                } else {
                    self.asm.lea(to, Mem { gs: false, ..mem });
                    self.asm.op(Op::Add, Bytes::B8, Rm::Reg(to), Src::Rm(own));
                }
            }
            (
                _,
                Mem {
                    base: None,
                    index: None,
                    disp,
                    ..
                },
            ) => self.asm.mov_imm(to, i64::from(disp) as u64),
            (
                _,
                Mem {
                    base: Some(base),
                    index: None,
                    disp: 0,
                    ..
                },
            ) => self.load(to, Place::Rm(Rm::Reg(base))),
            (_, mem) => self.asm.lea(to, mem),
        }
        if let Some(absent) = absent {
            let found = self.asm.jmp();
            self.asm.fill_here(absent);
            self.asm.mov_imm(to, 0);
            self.asm.fill_here(found);
        }
    }

    fn call_out(&mut self, helper: Helper) -> Result<(), CompileError> {
        self.calls_helpers = true;
        self.ask_whether_taken(self.at)?;
        for argument in [asm::RDI, asm::RSI, asm::RDX, asm::RCX, asm::R8] {
            self.taken.add(argument);
        }
        if helper.walks_the_stack() {
            self.sample();
        }
        let target = match routine(self.env, self.flow, self.machine, self.at) {
            Some(routine) => {
                for (reg, given) in [Reg::R1, Reg::R2, Reg::R3, Reg::R4]
                    .into_iter()
                    .zip(routine.arguments)
                {
                    let gpr = self.phys(reg);
                    match given {
                        Given::Nothing => {}
                        Given::Argument => self.load(gpr, self.place(reg)),
                        Given::Word => {
                            let word = match self.place(reg) {
                                Place::Address(mem) => mem,
                                place => {
                                    self.load(gpr, place);
                                    Mem::at(gpr, 0)
                                }
                            };
                            self.asm.mov(Bytes::B8, gpr, Rm::Mem(word));
                        }
                        Given::Constant(value) => self.asm.mov_imm(gpr, value),
                    }
                }
                routine.address
            }
            None => {
                for (reg, argument) in flow::arguments(helper) {
                    let place = match argument {
                        bpf::Argument::Context => Place::Address(SAMPLE),
                        _ => self.place(reg),
                    };
                    let gpr = self.phys(reg);
                    self.load(gpr, place);
                }
                (self.machine.helper)(helper)
            }
        };
        match self.machine.calls {
            Calls::Near => {
                let offset = self.asm.call_relative();
                let relocation = Relocation { offset, target };
                if push(&mut self.relocations, relocation).is_err() {
                    self.asm.failed = true;
                }
            }
            Calls::Far => {
                self.asm.mov_imm(asm::RAX, target);
                self.asm.call(asm::RAX);
            }
        }
        self.asm.written = self.asm.written.or(self.calls_change());
        self.asm.flags_written = true;
        Ok(())
    }

    /// Writes the [`Sample`].
    fn sample(&mut self) {
        const FIELDS: [(Register, usize); 3] = [
            (Register::Ip, core::mem::offset_of!(Sample, ip)),
            (Register::Sp, core::mem::offset_of!(Sample, sp)),
            (Register::Bp, core::mem::offset_of!(Sample, bp)),
        ];
        let value = self.scratch();
        for (register, offset) in FIELDS {
            self.load_context(value, register, Bytes::B8, false);
            let field = SAMPLE.plus(offset as i32);
            self.asm.store(field, value, Bytes::B8);
        }
    }

    /// The result, where the caller expects it.
    fn result(&mut self) {
        if self.env.form != Form::Handler {
            return;
        }
        let place = match self.env.kind() {
            Kind::Entry { .. } => self.place(Reg::R0),
            Kind::Probe | Kind::Return { .. } => Place::Imm(0),
        };
        match place {
            Place::Imm(value) => self.asm.mov_imm(asm::RAX, u64::from(value != 0)),
            place => {
                let r0 = Rm::Reg(self.in_register(place));
                self.asm.test(Bytes::B8, r0, Src::Rm(r0));
                self.asm.set(Cc::NotEqual, asm::RAX);
            }
        }
    }
}
