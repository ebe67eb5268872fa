//! A program from its instructions to code at an address.
//!
//! A program of [`ProgramKind::Probe`] is compiled once for each way by which a hit comes
//! ([`bpf_compiler::Form`]), all into one piece of [`ActionCode`]. One of an entry, of a
//! return or of a watchpoint has two forms. Nothing leads to the code before it is published to all
//! CPUs.
//!
//! # Contexts
//! Loading: tasks that may sleep. [`Program::run`]: any task; interrupts are off meanwhile.

use alloc::vec::Vec;
use core::cell::Cell;

use bpf::{
    Fact, Helper, Insn, MapIndex, Memory, ProgramKind, USER_STACK, Verified, context::Register,
    verifier::verify,
};
use bpf_compiler::{
    Base, Calls, Code, CompileError, Constants, Form, Machine, PidTgid, Routine, compile,
};
use fallible::{OutOfMemory, Shared, try_box, try_vec};
use probes::{
    Action, Kprobe, PtRegs,
    action::{ADDRESS_IN_PROBE, EntryRoutine, JumpRoutine, ReturnRoutine},
    kprobe::PreHandler,
};
use trace_maps::Map;

use super::{
    error::LoadError,
    maps::{LoadedMap, make_maps, runtime},
};
use crate::{
    Agent,
    code::{ActionCode, CodeFrame},
    facts::{RoutineInProgram, RunInProgram},
    helpers, per_cpu,
};

/// A program, ready to be attached.
pub struct Program<A: Agent> {
    verified: Verified,
    maps: Vec<Shared<LoadedMap>>,
    /// The routines of a probe at an instruction, in `code`.
    pub(super) action: Option<Action>,
    /// The routine of a watchpoint's hit, in `code`.
    pub(super) at_watchpoint: Option<u64>,
    /// That of any hit of a probe, with all registers, in `code`.
    handler: Option<PreHandler>,
    /// The routines of an entry, in `code`.
    pub(super) entry: Option<Routines<EntryRoutine>>,
    /// The routines of a return, in `code`.
    pub(super) on_return: Option<Routines<ReturnRoutine>>,
    code: ActionCode<A>,
}

/// What a hit of a probe is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// An instruction.
    Code,
    /// A watched word.
    Data,
}

/// The routines of a program of a call, see [`probes::CallAction`]: with a frame, and by a jump.
#[derive(Clone, Copy)]
pub(super) struct Routines<R> {
    pub(super) routine: R,
    pub(super) by_jump: JumpRoutine,
}

impl<A: Agent> Program<A> {
    /// Verifies and compiles `program`, with maps of its own.
    ///
    /// # Errors
    /// [`LoadError`]; nothing has changed then.
    pub fn load(program: bpf::Program) -> Result<Shared<Self>, LoadError> {
        Self::load_sharing(program, |_| None)
    }

    /// The same, but a map whose name `shared` knows is that one, and not a new one. Its definition
    /// is the same.
    ///
    /// # Errors
    /// [`LoadError`]; nothing has changed then.
    pub fn load_sharing(
        program: bpf::Program,
        shared: impl Fn(&str) -> Option<Shared<LoadedMap>>,
    ) -> Result<Shared<Self>, LoadError> {
        let maps = make_maps::<A>(&program, shared)?;
        Self::load_with(program, maps, Place::Code)
    }

    /// The same for a program of [`ProgramKind::Probe`] that a watchpoint runs.
    ///
    /// # Errors
    /// [`LoadError`]; nothing has changed then.
    pub fn load_for_watchpoint(
        program: bpf::Program,
        shared: impl Fn(&str) -> Option<Shared<LoadedMap>>,
    ) -> Result<Shared<Self>, LoadError> {
        let maps = make_maps::<A>(&program, shared)?;
        Self::load_with(program, maps, Place::Data)
    }

    /// The same with the maps of another program, whose definitions are the same: for the two
    /// programs of a call.
    ///
    /// # Errors
    /// [`LoadError`]; nothing has changed then.
    pub fn load_beside(program: bpf::Program, other: &Self) -> Result<Shared<Self>, LoadError> {
        if program.maps != other.verified.program().maps {
            return Err(LoadError::Compile(CompileError::Maps {
                expected: program.maps.len(),
                found: other.maps.len(),
            }));
        }
        let mut maps = try_vec(other.maps.len())?;
        maps.extend(other.maps.iter().cloned());
        Self::load_with(program, maps, Place::Code)
    }

    fn load_with(
        program: bpf::Program,
        maps: Vec<Shared<LoadedMap>>,
        place: Place,
    ) -> Result<Shared<Self>, LoadError> {
        let takes_stack =
            |insn: &Insn| matches!(insn, Insn::Call { helper } if helper.walks_the_stack());
        if program.insns.iter().any(takes_stack) {
            A::tracing().stacks.ready()?;
        }
        let verified = verify(program)?;
        let mut runtimes = try_vec(maps.len())?;
        runtimes.extend(maps.iter().map(|map| runtime::<A>(map)));
        let wants_user_stack = Cell::new(false);
        let routine = |helper, constants: &Constants| {
            if let (Helper::StackId, [_, _, Some(flags), ..]) = (helper, constants)
                && flags & USER_STACK != 0
            {
                wants_user_stack.set(true);
            }
            helpers::routine::<A>(helper, constants)
        };
        let machine = machine::<A>(&routine);
        let compiled = |form| compile(&verified, form, &runtimes, &machine);
        let (mut action, mut at_watchpoint, mut handler) = (None, None, None);
        let (mut entry, mut on_return) = (None, None);
        let code = match verified.program().kind {
            ProgramKind::Probe if place == Place::Data => {
                let codes = [compiled(Form::Watchpoint)?, compiled(Form::Handler)?];
                let (code, starts) = write_codes::<A>(&codes)?;
                let [routine, with_registers] = starts[..] else {
                    return Err(LoadError::OutOfMemory);
                };
                at_watchpoint = Some(routine);
                handler = Some(as_handler(with_registers));
                code
            }
            ProgramKind::Probe => {
                let forms = [
                    Form::Jump {
                        flags_live: false,
                        aligned: true,
                    },
                    Form::Jump {
                        flags_live: true,
                        aligned: false,
                    },
                    Form::Breakpoint,
                    Form::Handler,
                ];
                let mut codes = try_vec(forms.len())?;
                for form in forms {
                    codes.push(compiled(form)?);
                }
                let (code, starts) = write_codes::<A>(&codes)?;
                let [jump, jump_keeping_flags, breakpoint, with_registers] = starts[..] else {
                    return Err(LoadError::OutOfMemory);
                };
                let with_registers = as_handler(with_registers);
                action = Some(Action {
                    jump,
                    jump_keeping_flags,
                    breakpoint,
                    handler: with_registers,
                });
                handler = Some(with_registers);
                code
            }
            kind @ (ProgramKind::Entry { .. } | ProgramKind::Return { .. }) => {
                let codes = [compiled(Form::Handler)?, compiled(Form::Call)?];
                let (code, starts) = write_codes::<A>(&codes)?;
                let [handler, by_jump] = starts[..] else {
                    return Err(LoadError::OutOfMemory);
                };
                let [handler, by_jump] = [handler, by_jump]
                    .map(|start| core::ptr::with_exposed_provenance::<()>(start as usize));
                // SAFETY: the code has the convention of `CallAction::jump_entry` or
                // `CallAction::jump_return`, as `contract.rs` says.
                let by_jump = unsafe { core::mem::transmute::<*const (), JumpRoutine>(by_jump) };
                if let ProgramKind::Entry { .. } = kind {
                    // SAFETY: the code of the form for handlers of calls has these arguments, and
                    // returns 0, `EntryVerdict::Track`, or 1, `EntryVerdict::Decline`.
                    let routine =
                        unsafe { core::mem::transmute::<*const (), EntryRoutine>(handler) };
                    entry = Some(Routines { routine, by_jump });
                } else {
                    // SAFETY: the same, and what it returns is not looked at.
                    let routine =
                        unsafe { core::mem::transmute::<*const (), ReturnRoutine>(handler) };
                    on_return = Some(Routines { routine, by_jump });
                }
                code
            }
        };
        if wants_user_stack.get() && !A::HAS_USER_STACKS {
            return Err(LoadError::NoUserStacks);
        }
        // The other CPUs see the code before a probe leads there.
        code.publish();
        Ok(Shared::try_new(Self {
            verified,
            maps,
            action,
            at_watchpoint,
            handler,
            entry,
            on_return,
            code,
        })?)
    }

    /// The program as it was verified.
    pub fn source(&self) -> &bpf::Program {
        self.verified.program()
    }

    /// Where its code is: the address, for `disas` and stack walks.
    pub fn code_start(&self) -> u64 {
        self.code.start()
    }

    /// The map with that number, if it has memory of its own.
    pub fn map(&self, index: MapIndex) -> Option<&Map> {
        self.maps.get(usize::from(index.0))?.own()
    }

    /// Its maps, by their names.
    pub fn maps(&self) -> impl Iterator<Item = (&str, &Shared<LoadedMap>)> {
        let names = self.source().maps.iter().map(|def| &*def.name);
        names.zip(&self.maps)
    }

    /// Runs it once, here and now, with these registers. False: it is none of
    /// [`ProgramKind::Probe`].
    pub fn run(&self, regs: &PtRegs) -> bool {
        /// Stands for the probe; the code does not look at it.
        static NO_PROBE: Kprobe = Kprobe::new();
        let Some(handler) = self.handler else {
            return false;
        };
        // The code takes one off `ip`, because that is after a breakpoint.
        let mut regs = PtRegs {
            ip: regs.ip.wrapping_add(1),
            ..*regs
        };
        // A program keeps its CPU, and no grace period ends meanwhile.
        A::keep_cpu(&mut || _ = handler(&NO_PROBE, &mut regs));
        true
    }

    /// Runs it once, here and now, with the registers of code that was interrupted at `regs.ip`.
    /// Interrupts are off. It leaves the registers as they are. False: it is none of
    /// [`ProgramKind::Probe`].
    #[inline]
    pub fn run_at_hit(&self, regs: &mut PtRegs) -> bool {
        /// As in [`Self::run`].
        static NO_PROBE: Kprobe = Kprobe::new();
        let Some(handler) = self.handler else {
            return false;
        };
        // As in [`Self::run`].
        regs.ip = regs.ip.wrapping_add(1);
        let _ = handler(&NO_PROBE, regs);
        regs.ip = regs.ip.wrapping_sub(1);
        true
    }

    /// The routine of a watchpoint's hit, if the hit need not say where it is.
    pub(super) fn routine_at_watchpoint(&self) -> Option<u64> {
        let asks = |insn: &Insn| {
            matches!(
                insn,
                Insn::Call {
                    helper: Helper::WatchedAddress
                }
            )
        };
        let asks = self.source().insns.iter().any(asks);
        self.at_watchpoint.filter(|_| !asks)
    }

    /// What a hit in a program of ring 3 runs.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn in_program(program: &Shared<Self>) -> Result<RunInProgram, OutOfMemory> {
        let asks = |insn: &Insn| matches!(insn, Insn::Call { helper } if helper.asks_the_program());
        let asks = program.source().insns.iter().any(asks);
        let is_place = |fact: &Fact| {
            let Some(Memory::Context { offset }) = fact.memory else {
                return false;
            };
            [Register::OrigAx, Register::Ip, Register::Cs, Register::Ss]
                .iter()
                .any(|register| offset & !7 == register.offset())
        };
        let asks_the_place = program.verified.facts().iter().any(is_place);
        let breakpoint = program.action.map(|action| action.breakpoint);
        let program = program.clone();
        Ok(RunInProgram {
            run: try_box(move |regs: &mut PtRegs| _ = program.run_at_hit(regs))?,
            routine: breakpoint
                .filter(|_| !asks)
                .map(|address| RoutineInProgram {
                    address,
                    asks_the_place,
                }),
        })
    }

    /// The sum of a counter over all CPUs, of an array. 0 if there is none.
    pub fn counter(&self, map: MapIndex, index: usize) -> u64 {
        let map = self.maps.get(usize::from(map.0));
        map.map_or(0, |map| map.counter(index))
    }

    /// The sum of the counters of a key over all CPUs, of a hash. 0 if it is not there.
    pub fn sum_of_key(&self, map: MapIndex, key: &[u8]) -> u64 {
        let mut sum = 0;
        if let Some(Map::Hash(hash)) = self.map(map) {
            hash.for_each(|_, found, value| {
                if found == key {
                    sum += value.first().copied().unwrap_or(0);
                }
            });
        }
        sum
    }
}

/// The kernel, as the compiler sees it.
fn machine<A: Agent>(routine: &dyn Fn(Helper, &Constants) -> Option<Routine>) -> Machine<'_> {
    let not_recording = A::tracing().recording.word();
    let task = per_cpu::task::<A>() as i32;
    let distance = probes::PerCpu::gs_distance::<A>();
    let guard = distance + probes::PerCpu::GUARD_OFFSET;
    Machine {
        cpu_number: per_cpu::number::<A>() as i32,
        // A helper runs under the guard, as handlers do: no grace period ends meanwhile.
        preempt_count: guard as i32,
        running: (distance + probes::PerCpu::RUNNING_OFFSET) as i32,
        marks_of_running: probes::PerCpu::MARKS_OF_RUNNING as i32,
        address_in_probe: ADDRESS_IN_PROBE as i32,
        faults: per_cpu::bad_loads::<A>() as i32,
        pid_tgid: Some(PidTgid {
            pid: task,
            tgid: task + 4,
        }),
        clears_ac: A::has_smap(),
        calls: Calls::Near,
        not_recording,
        records_off: not_recording.map(|_| per_cpu::records_off::<A>() as i32),
        helper: &|helper| helpers::address::<A>(helper).unwrap_or_default(),
        routine,
    }
}

/// The code of [`Form::Handler`] at an address, for a program of [`ProgramKind::Probe`].
fn as_handler(code: u64) -> PreHandler {
    let code = core::ptr::with_exposed_provenance::<()>(code as usize);
    // SAFETY: such code takes the probe and the registers and returns 0, `PreVerdict::Execute`.
    unsafe { core::mem::transmute::<*const (), PreHandler>(code) }
}

/// Writes `codes` to memory of their own. Returns it, and where each begins.
fn write_codes<A: Agent>(codes: &[Code]) -> Result<(ActionCode<A>, Vec<u64>), LoadError> {
    const ALIGNMENT: usize = 16;
    let total = codes
        .iter()
        .map(|code| code.bytes.len().next_multiple_of(ALIGNMENT))
        .sum();
    let described: usize = codes.iter().map(|code| code.depth.len()).sum();
    let mut memory =
        ActionCode::new(total + described * CodeFrame::BYTES).ok_or(LoadError::OutOfMemory)?;
    let mut frames = try_vec(described)?;
    let mut starts = try_vec(codes.len())?;
    let mut offset = 0;
    for code in codes {
        let start = memory.start() + offset as u64;
        let mut bytes = try_vec(code.bytes.len())?;
        bytes.extend_from_slice(&code.bytes);
        for relocation in &code.relocations {
            let at = relocation.offset as usize;
            let distance = relocation.target.wrapping_sub(start + at as u64 + 4);
            bytes[at..at + 4].copy_from_slice(&(distance as u32).to_le_bytes());
        }
        memory.write(offset, &bytes);
        frames.extend(code.depth.iter().map(|depth| CodeFrame {
            offset: offset as u32 + depth.offset,
            by_bp: depth.base == Base::Bp,
            bytes: depth.bytes,
            saved_bp: depth.saved_bp,
        }));
        starts.push(start);
        offset += code.bytes.len().next_multiple_of(ALIGNMENT);
    }
    memory.describe(total, &frames);
    Ok((memory, starts))
}
