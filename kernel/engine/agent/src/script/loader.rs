//! Loads the programs and maps of a script, without attaching anything.
//!
//! A program gets the maps that it names from the script's, and one that the script does not have:
//! the counter of its attachment's hits. The instructions that count come first (RUN-2 of
//! [`super`]). The counter is a map of its own for each attachment, because a map of one counter
//! costs a hit least.
//!
//! # Contexts
//! Task context, may sleep. All memory is asked for fallibly: a script that does not fit is
//! refused.

#![forbid(unsafe_code)]

use alloc::{format, string::String, vec::Vec};
use core::{
    fmt::{self, Write},
    marker::PhantomData,
};

use bpf::{
    AluOp, Helper, Insn, MapDef, MapIndex, MapKind, Operand, ProgramKind, Reg, Target, Width,
    wire::WireReason,
};
use fallible::{OutOfMemory, Shared, try_vec};
use trace_interface::{Script, script::CLOCK};

use super::refusal::Refusal;
use crate::{
    Agent,
    facts::NSEC_PER_SEC,
    program::{LoadError, LoadedMap, Program},
    records::read_tsc,
};

/// The beginning of the names of the counters of hits. No script has such a map, because it is no
/// name of the language.
const HITS: &str = "(hits ";
/// The unit of the first word of [`CLOCK`], in bits.
const CLOCK_SHIFT: u32 = 24;
/// A script while it is loaded.
pub(super) struct Loader<'s, A: Agent> {
    script: &'s Script,
    defs: Vec<MapDef>,
    pub(super) maps: Vec<Shared<LoadedMap>>,
    /// The counters of hits, by attachment. Each is a map of its own, because one of a single
    /// counter costs a hit least.
    pub(super) hits: Vec<Shared<LoadedMap>>,
    agent: PhantomData<fn(A)>,
}

impl<'s, A: Agent> Loader<'s, A> {
    pub(super) fn new(script: &'s Script) -> Result<Self, Refusal> {
        let mut defs: Vec<MapDef> = try_vec(script.maps.len())?;
        let mut loaded = try_vec(script.maps.len())?;
        for map in &script.maps {
            if map.name.starts_with(HITS) || defs.iter().any(|def| def.name == map.name) {
                let text = format!(
                    "there are two maps `{}`; give each a name of its own",
                    map.name
                );
                return Err(Refusal::new(None, text));
            }
            let def = own_definition(map)?;
            let refused = |error: LoadError| match error.is_out_of_memory() {
                true => OutOfMemory.into(),
                false => Refusal::new(None, format_args!("map `{}`: {error}", map.name)),
            };
            loaded.push(LoadedMap::new::<A>(&def).map_err(refused)?);
            defs.push(def);
        }
        let mut hits = try_vec(script.attachments.len())?;
        for index in 0..script.attachments.len() {
            let map = LoadedMap::new::<A>(&counter(index)?);
            hits.push(map.map_err(|error| Refusal::load(None, error))?);
        }
        Ok(Self {
            script,
            defs,
            maps: loaded,
            hits,
            agent: PhantomData,
        })
    }

    /// Loads the program `number`. With `attachment` it counts its hits for that one.
    pub(super) fn load(
        &self,
        number: u32,
        attachment: Option<usize>,
    ) -> Result<Shared<Program<A>>, Refusal> {
        let refused = |text: &dyn fmt::Display| Refusal::new(Some(number), text);
        let program = self.script.programs.get(number as usize).ok_or_else(|| {
            refused(
                &"there is no such program in the script; build the kernel and the tracer from \
                  one tree",
            )
        })?;
        let mut maps = try_vec(program.maps.len() + 1)?;
        for map in &program.maps {
            let def = self.defs.get(*map as usize).ok_or_else(|| {
                refused(&format_args!(
                    "it names the map {map}, and the script has {}",
                    self.defs.len()
                ))
            })?;
            maps.push(own_definition(def)?);
        }
        let mut insns = bpf::wire::decode(&program.code).map_err(|error| match error.reason {
            WireReason::OutOfMemory => OutOfMemory.into(),
            _ => refused(&error),
        })?;
        if let Some(attachment) = attachment {
            let hits = MapIndex(maps.len() as u16);
            maps.push(counter(attachment)?);
            insns = counted(&insns, hits)?;
        }
        let kind = program.kind;
        let program = bpf::Program { kind, insns, maps };
        let shared = |name: &str| {
            match self.defs.iter().position(|def| def.name == name) {
                Some(at) => self.maps.get(at).cloned(),
                // The one map of a program that the script does not have.
                None => self.hits.get(attachment?).cloned(),
            }
        };
        let loaded = Program::load_sharing(program, shared);
        loaded.map_err(|error| Refusal::load(Some(number), error))
    }

    /// The same, for a program that the kernel runs itself.
    pub(super) fn load_own(
        &self,
        number: u32,
        attachment: usize,
    ) -> Result<Shared<Program<A>>, Refusal> {
        let program = self.load(number, Some(attachment))?;
        match program.source().kind {
            ProgramKind::Probe => Ok(program),
            kind => Err(Refusal::new(Some(number), LoadError::Kind(kind))),
        }
    }
}

/// The instructions of a program with the count of a hit in front (RUN-2).
fn counted(insns: &[Insn], hits: MapIndex) -> Result<Vec<Insn>, OutOfMemory> {
    let set = |dst, operand| Insn::Alu {
        width: Width::W64,
        op: AluOp::Mov,
        dst,
        operand,
    };
    let count = [
        set(Reg::R6, Operand::Reg(Reg::R1)),
        Insn::LoadMap {
            dst: Reg::R1,
            map: hits,
        },
        set(Reg::R2, Operand::Imm(0)),
        set(Reg::R3, Operand::Imm(1)),
        Insn::Call {
            helper: Helper::Add,
        },
        set(Reg::R1, Operand::Reg(Reg::R6)),
    ];
    let mut all = try_vec(count.len() + insns.len())?;
    all.extend(count);
    all.extend(insns.iter().map(|insn| {
        let mut insn = *insn;
        if let Insn::Jump { target } | Insn::Branch { target, .. } = &mut insn {
            *target = Target(target.0.saturating_add(count.len() as u16));
        }
        insn
    }));
    Ok(all)
}

fn own_text(text: &str) -> Result<String, OutOfMemory> {
    let mut own = String::new();
    own.try_reserve_exact(text.len()).map_err(|_| OutOfMemory)?;
    own.push_str(text);
    Ok(own)
}

fn own_definition(def: &MapDef) -> Result<MapDef, OutOfMemory> {
    Ok(MapDef {
        name: own_text(&def.name)?.into(),
        ..*def
    })
}

/// The counter of an attachment's hits.
fn counter(attachment: usize) -> Result<MapDef, OutOfMemory> {
    const MOST_DIGITS: usize = 20;
    let mut name = String::new();
    let room = HITS.len() + MOST_DIGITS + 1;
    name.try_reserve_exact(room).map_err(|_| OutOfMemory)?;
    // There is room for it.
    let _ = write!(name, "{HITS}{attachment})");
    Ok(MapDef {
        name: name.into(),
        kind: MapKind::PerCpuArray,
        key_size: 4,
        value_size: 8,
        entries: 1,
    })
}

/// Fills the map [`CLOCK`], if the script has it.
pub(super) fn set_clock<A: Agent>(loader: &Loader<'_, A>) {
    let Some(at) = loader.defs.iter().position(|def| def.name == CLOCK) else {
        return;
    };
    let Some(trace_maps::Map::Array(array)) = loader.maps[at].own() else {
        return;
    };
    let nanoseconds = u128::from(NSEC_PER_SEC) << CLOCK_SHIFT;
    let tick = nanoseconds / u128::from(A::tsc_hz().max(1));
    for cpu in 0..array.cpus() {
        let cpus = A::online_cpus() as u64;
        array.write(0, cpu, &[tick as u64, read_tsc(), cpus]);
    }
}
