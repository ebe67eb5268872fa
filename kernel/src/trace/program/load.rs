//! A program from its instructions to code at an address.
//!
//! A program of [`ProgramKind::Probe`] is compiled once for each way by which a hit comes
//! ([`bpf_compiler::Form`]), all into one piece of [`ActionCode`]. One of an entry or a return has
//! one form. Nothing leads to the code before it is published to all CPUs.
//!
//! # Contexts
//! Loading: tasks that may sleep. [`Program::run`]: any task; it turns interrupts off meanwhile.

use alloc::vec::Vec;

use bpf::{Insn, MapIndex, ProgramKind, Verified, verifier::verify};
use bpf_compiler::{Base, Calls, Code, CompileError, Form, Machine, PidTgid, compile};
use probes::{Action, PerCpu, action::CallRoutine, kprobe::PreHandler};
use trace_maps::Map;
use x86_64::instructions::interrupts;

use super::{
    error::LoadError,
    maps::{LoadedMap, make_maps, runtime},
};
use crate::{
    arch::{PtRegs, cpu, percpu},
    probes::{
        Kernel, Kprobe,
        action_code::{ActionCode, CodeFrame},
    },
    trace::{
        helpers, records,
        shared::{Shared, try_vec},
        stacks,
    },
};

/// A program, ready to be attached.
pub struct Program {
    verified: Verified,
    maps: Vec<Shared<LoadedMap>>,
    /// The routines of a probe, in `code`.
    pub(super) action: Option<Action>,
    /// The routine of an entry or a return, in `code`.
    pub(super) routine: Option<CallRoutine>,
    code: ActionCode,
}

impl Program {
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
        let maps = make_maps(&program, shared)?;
        Self::load_with(program, maps)
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
        Self::load_with(program, maps)
    }

    fn load_with(
        program: bpf::Program,
        maps: Vec<Shared<LoadedMap>>,
    ) -> Result<Shared<Self>, LoadError> {
        let takes_stack =
            |insn: &Insn| matches!(insn, Insn::Call { helper } if helper.walks_the_stack());
        if program.insns.iter().any(takes_stack) {
            stacks::ready()?;
        }
        let verified = verify(program)?;
        let mut runtimes = try_vec(maps.len())?;
        runtimes.extend(maps.iter().map(|map| runtime(map)));
        let compiled = |form| compile(&verified, form, &runtimes, &machine());
        let (action, routine, code) = match verified.program().kind {
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
                let (code, starts) = place(&codes)?;
                let [jump, jump_keeping_flags, breakpoint, handler] = starts[..] else {
                    return Err(LoadError::OutOfMemory);
                };
                let handler = core::ptr::with_exposed_provenance::<()>(handler as usize);
                let action = Action {
                    jump,
                    jump_keeping_flags,
                    breakpoint,
                    // SAFETY: the code of the form for handlers, which takes the probe and the
                    // registers and returns 0, `PreVerdict::Execute`.
                    handler: unsafe { core::mem::transmute::<*const (), PreHandler>(handler) },
                };
                (Some(action), None, code)
            }
            ProgramKind::Entry { .. } | ProgramKind::Return { .. } => {
                let (code, starts) = place(&[compiled(Form::Handler)?])?;
                let start = core::ptr::with_exposed_provenance::<()>(starts[0] as usize);
                // SAFETY: the code of the form for handlers of calls has these arguments, and
                // returns 0, `EntryVerdict::Track`, or 1, `EntryVerdict::Decline`.
                let routine = unsafe { core::mem::transmute::<*const (), CallRoutine>(start) };
                (None, Some(routine), code)
            }
        };
        // The other CPUs see the code before a probe leads there.
        code.publish();
        Ok(Shared::try_new(Self {
            verified,
            maps,
            action,
            routine,
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
        let Some(action) = self.action else {
            return false;
        };
        // The code takes one off `ip`, because that is after a breakpoint.
        let mut regs = PtRegs {
            ip: regs.ip.wrapping_add(1),
            ..*regs
        };
        // A program keeps its CPU, and no grace period ends meanwhile.
        interrupts::without_interrupts(|| (action.handler)(&NO_PROBE, &mut regs));
        true
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

/// This kernel, as the compiler sees it.
fn machine() -> Machine<'static> {
    Machine {
        cpu_number: percpu::CPU_ID as i32,
        // A helper runs under the guard, as handlers do: no grace period ends meanwhile.
        preempt_count: PerCpu::guard_gs_offset::<Kernel>() as i32,
        faults: percpu::BAD_LOADS as i32,
        pid_tgid: Some(PidTgid {
            pid: percpu::CURRENT_IDS as i32,
            tgid: percpu::CURRENT_IDS as i32 + 4,
        }),
        clears_ac: cpu::has_smap(),
        calls: Calls::Near,
        // The kernel is in the upper 2 GiB, so this is there: the routines rely on it.
        not_recording: i32::try_from(records::not_recording() as i64).ok(),
        records_off: Some(percpu::RECORDS_OFF as i32),
        helper: &|helper| helpers::address(helper).unwrap_or_default(),
        routine: &helpers::routine,
    }
}

/// Writes `codes` to memory of their own. Returns it, and where each begins.
fn place(codes: &[Code]) -> Result<(ActionCode, Vec<u64>), LoadError> {
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
