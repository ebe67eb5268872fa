//! Loads the programs and maps of a script, without attaching anything.
//!
//! A program gets the maps that it names from the script's, and one that the script does not have:
//! the counter of its attachment's hits. The instructions that count come first (RUN-2 of
//! [`super`]). The counter is a map of its own for each attachment, because a map of one counter
//! costs a hit least. Where the tracer's own tasks are kept out, the comparison with their numbers
//! comes before that (RUN-6).
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
    AluOp, Condition, Helper, Insn, MapDef, MapIndex, MapKind, Operand, ProgramKind, Reg, Target,
    Width, wire::WireReason,
};
use fallible::{OutOfMemory, Shared, try_vec};
use trace_interface::{
    Script,
    script::{Attachment, CLOCK},
};

use super::{own_tasks::OwnTasks, refusal::Refusal};
use crate::{
    Agent,
    facts::NSEC_PER_SEC,
    program::{LoadError, LoadedMap, Program},
    records::read_tsc,
};

/// The beginning of the names of the counters of hits. No script has such a map, because it is no
/// name of the language.
const HITS: &str = "(hits ";
/// The name of the counter of what the tracer's own tasks have hit.
const KEPT_OUT: &str = "(kept out)";
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
    /// The tasks that are kept out, and the counter of their hits.
    own: OwnTasks,
    pub(super) kept_out: Shared<LoadedMap>,
    agent: PhantomData<fn(A)>,
}

/// Whose hits a program handles.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Everyones,
    /// All but those of the tracer's own tasks.
    Others,
}

impl<'s, A: Agent> Loader<'s, A> {
    pub(super) fn new(script: &'s Script, own: OwnTasks) -> Result<Self, Refusal> {
        let mut defs: Vec<MapDef> = try_vec(script.maps.len())?;
        let mut loaded = try_vec(script.maps.len())?;
        for map in &script.maps {
            let is_ours = map.name.starts_with(HITS) || map.name == KEPT_OUT;
            if is_ours || defs.iter().any(|def| def.name == map.name) {
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
            hits.push(new_counter::<A>(hits_of(index)?)?);
        }
        Ok(Self {
            script,
            defs,
            maps: loaded,
            hits,
            own,
            kept_out: new_counter::<A>(own_text(KEPT_OUT)?)?,
            agent: PhantomData,
        })
    }

    /// Loads the program `number` for places of `attachment`, and counts its hits for that one.
    pub(super) fn load(
        &self,
        number: u32,
        attachment: usize,
    ) -> Result<Shared<Program<A>>, Refusal> {
        self.load_for(self.whose(attachment), number, Some(attachment))
    }

    /// The same for the entry of calls, which counts nothing.
    pub(super) fn load_entry(
        &self,
        number: u32,
        attachment: usize,
    ) -> Result<Shared<Program<A>>, Refusal> {
        self.load_for(self.whose(attachment), number, None)
    }

    /// Whose hits count at the places of an attachment (RUN-6).
    fn whose(&self, attachment: usize) -> Whose {
        let mut all = self.script.of_all_tasks.iter();
        match self.script.attachments.get(attachment) {
            Some(Attachment::Source { .. } | Attachment::Watch { .. }) => Whose::Everyones,
            _ if all.any(|number| *number as usize == attachment) => Whose::Everyones,
            _ => Whose::Others,
        }
    }

    fn load_for(
        &self,
        whose: Whose,
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
        let mut maps = try_vec(program.maps.len() + 2)?;
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
            maps.push(counter(hits_of(attachment)?));
            insns = counted(&insns, hits)?;
        }
        if whose == Whose::Others && self.own.are_kept_out() {
            let count = attachment.map(|_| MapIndex(maps.len() as u16));
            if count.is_some() {
                maps.push(counter(own_text(KEPT_OUT)?));
            }
            insns = without(self.own, &insns, count)?;
        }
        let kind = program.kind;
        let program = bpf::Program { kind, insns, maps };
        let shared = |name: &str| {
            match self.defs.iter().position(|def| def.name == name) {
                Some(at) => self.maps.get(at).cloned(),
                None if name == KEPT_OUT => Some(self.kept_out.clone()),
                // The one map that is left.
                None => self.hits.get(attachment?).cloned(),
            }
        };
        let attachment = attachment.and_then(|index| self.script.attachments.get(index));
        let loaded = match attachment {
            Some(Attachment::Watch { .. }) => Program::load_for_watchpoint(program, shared),
            _ => Program::load_sharing(program, shared),
        };
        loaded.map_err(|error| Refusal::load(Some(number), error))
    }

    /// The same, for a program that a handler calls: at a tick of the timer, or of a watch.
    pub(super) fn load_profile(
        &self,
        number: u32,
        attachment: usize,
    ) -> Result<Shared<Program<A>>, Refusal> {
        Self::probe(self.load(number, attachment)?, number)
    }

    /// The same, for a program that the tracer's own task runs.
    pub(super) fn load_own(
        &self,
        number: u32,
        attachment: usize,
    ) -> Result<Shared<Program<A>>, Refusal> {
        let program = self.load_for(Whose::Everyones, number, Some(attachment))?;
        Self::probe(program, number)
    }

    /// A program that the kernel calls, and no detour.
    fn probe(program: Shared<Program<A>>, number: u32) -> Result<Shared<Program<A>>, Refusal> {
        match program.source().kind {
            ProgramKind::Probe => Ok(program),
            kind => Err(Refusal::new(Some(number), LoadError::Kind(kind))),
        }
    }
}

/// `dst = operand`.
fn set(dst: Reg, operand: Operand) -> Insn {
    Insn::Alu {
        width: Width::W64,
        op: AluOp::Mov,
        dst,
        operand,
    }
}

/// Adds 1 to the counter `map`.
fn add_one(map: MapIndex) -> [Insn; 4] {
    [
        Insn::LoadMap { dst: Reg::R1, map },
        set(Reg::R2, Operand::Imm(0)),
        set(Reg::R3, Operand::Imm(1)),
        Insn::Call {
            helper: Helper::Add,
        },
    ]
}

/// The instructions of a program with the count of a hit in front (RUN-2).
fn counted(insns: &[Insn], hits: MapIndex) -> Result<Vec<Insn>, OutOfMemory> {
    let keep = [set(Reg::R6, Operand::Reg(Reg::R1))];
    let give_back = [set(Reg::R1, Operand::Reg(Reg::R6))];
    between(&[&keep, &add_one(hits), &give_back], insns, &[])
}

/// The same instructions, which end at once in the tracer's own tasks (RUN-6). `count` counts that.
fn without(
    own: OwnTasks,
    insns: &[Insn],
    count: Option<MapIndex>,
) -> Result<Vec<Insn>, OutOfMemory> {
    let start = [
        set(Reg::R6, Operand::Reg(Reg::R1)),
        Insn::Call {
            helper: Helper::PidTgid,
        },
    ];
    let give_back = [set(Reg::R1, Operand::Reg(Reg::R6))];
    let before = start.len() + own.0.len() + give_back.len();
    let is_own = own.0.map(|task| Insn::Branch {
        width: Width::W32,
        condition: Condition::Equal,
        dst: Reg::R0,
        operand: Operand::Imm(task as i32),
        target: Target((before + insns.len()) as u16),
    });
    let end = [set(Reg::R0, Operand::Imm(0)), Insn::Exit];
    let count = count.map(add_one);
    let counts: &[Insn] = count.as_ref().map_or(&[], |count| count);
    between(&[&start, &is_own, &give_back], insns, &[counts, &end])
}

/// `insns` between others. Jumps among them lead to where they led.
fn between(
    before: &[&[Insn]],
    insns: &[Insn],
    after: &[&[Insn]],
) -> Result<Vec<Insn>, OutOfMemory> {
    let length = |parts: &[&[Insn]]| parts.iter().map(|part| part.len()).sum::<usize>();
    let shift = length(before);
    let mut all = try_vec(shift + insns.len() + length(after))?;
    all.extend(before.iter().copied().flatten());
    all.extend(insns.iter().map(|insn| {
        let mut insn = *insn;
        if let Insn::Jump { target } | Insn::Branch { target, .. } = &mut insn {
            *target = Target(target.0.saturating_add(shift as u16));
        }
        insn
    }));
    all.extend(after.iter().copied().flatten());
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

/// The name of the counter of an attachment's hits.
fn hits_of(attachment: usize) -> Result<String, OutOfMemory> {
    const MOST_DIGITS: usize = 20;
    let mut name = String::new();
    let room = HITS.len() + MOST_DIGITS + 1;
    name.try_reserve_exact(room).map_err(|_| OutOfMemory)?;
    // There is room for it.
    let _ = write!(name, "{HITS}{attachment})");
    Ok(name)
}

/// A counter of that name.
fn counter(name: String) -> MapDef {
    MapDef {
        name: name.into(),
        kind: MapKind::PerCpuArray,
        key_size: 4,
        value_size: 8,
        entries: 1,
    }
}

fn new_counter<A: Agent>(name: String) -> Result<Shared<LoadedMap>, Refusal> {
    LoadedMap::new::<A>(&counter(name)).map_err(|error| Refusal::load(None, error))
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
