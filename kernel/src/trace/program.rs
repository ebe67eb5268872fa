//! Programs in the kernel: verified, with their maps, compiled and placed where a probe can run
//! them.
//!
//! ```text
//!   bpf::Program ─ verify ─► Verified ─ maps ─► compile, once a form ─► ActionCode ─► Action
//!                                                                           │
//!                                   Attached: a kprobe or kretprobe that carries the action
//! ```
//!
//! # Invariants
//! PROGRAM-1. A [`Program`] takes all its memory when it is loaded, or the load fails and gives
//!     back what it had. A hit allocates nothing.
//! PROGRAM-2. The code and the maps of a program live as long as its [`Program`]. Each attached
//!     probe holds it, and drops the probe first. That waits a grace period, so nobody is in the
//!     code or has an address of a map afterwards.
//!
//! # Contexts
//! Loading, attaching and reading maps: tasks that may sleep.

use alloc::{boxed::Box, vec::Vec};
use core::fmt;

use bpf::{
    BuildError, Insn, MapDef, MapIndex, MapKind, ProgramKind, Verified,
    verifier::{Cause, Refusal, verify},
};
use bpf_compiler::{
    Array, Base, Calls, Code, CompileError, Form, Machine, MapRuntime, PerCpu as PerCpuPart,
    PidTgid, compile,
};
use probes::{Action, CallAction, PerCpu, Probe, action::CallRoutine, kprobe::PreHandler};
use trace_maps::{Map, MapError};
use x86_64::instructions::interrupts;

use super::{
    buffer, counters,
    helpers::{self, Tables},
    records,
    shared::{self, Shared, try_box, try_vec},
    stacks,
};
use crate::{
    arch::{PtRegs, cpu, percpu, smp},
    errno::Errno,
    probes::{
        Kernel, Kprobe, Kretprobe, PROBES, ProbeError, Registered,
        action_code::{ActionCode, CodeFrame},
        register, text_poke,
    },
};

/// Why a program cannot be loaded or attached.
#[derive(Clone, Debug)]
pub enum LoadError {
    Build(BuildError),
    Refused(Refusal),
    Map(MapError),
    Compile(CompileError),
    Probe(ProbeError),
    Event(tracefs::compile::CompileError),
    OutOfMemory,
    /// A script asks for too many programs on timer ticks.
    TooManyProfiles,
    /// A program of this kind cannot be attached so.
    Kind(ProgramKind),
    /// The two programs of a call share different numbers of bytes.
    Shared {
        entry: u32,
        on_return: u32,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Build(error) => error.fmt(f),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Map(error) => error.fmt(f),
            Self::Compile(error) => error.fmt(f),
            Self::Probe(error) => error.fmt(f),
            Self::Event(error) => error.fmt(f),
            Self::OutOfMemory => f.write_str("there is no memory for the program"),
            Self::TooManyProfiles => f.write_str("a script has at most 8 profiles; use fewer"),
            Self::Kind(kind) => write!(
                f,
                "a program of {kind:?} cannot be attached there; a kprobe takes one of Probe, a \
                 call one of Entry and one of Return"
            ),
            Self::Shared { entry, on_return } => write!(
                f,
                "the program of the entry shares {entry} bytes, that of the return {on_return}; \
                 give both the same number"
            ),
        }
    }
}

impl core::error::Error for LoadError {}

impl LoadError {
    /// Whether memory was short, so that it may work later.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Event(error) if error.is_out_of_memory())
            || matches!(
                self,
                Self::OutOfMemory
                    | Self::Build(BuildError::OutOfMemory)
                    | Self::Refused(Refusal {
                        cause: Cause::OutOfMemory,
                        ..
                    })
                    | Self::Map(MapError::OutOfMemory(_))
                    | Self::Compile(CompileError::OutOfMemory)
                    | Self::Probe(ProbeError::OutOfMemory)
            )
    }
}

impl From<BuildError> for LoadError {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}

impl From<Refusal> for LoadError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<MapError> for LoadError {
    fn from(error: MapError) -> Self {
        Self::Map(error)
    }
}

impl From<CompileError> for LoadError {
    fn from(error: CompileError) -> Self {
        Self::Compile(error)
    }
}

impl From<ProbeError> for LoadError {
    fn from(error: ProbeError) -> Self {
        Self::Probe(error)
    }
}

impl From<shared::OutOfMemory> for LoadError {
    fn from(_: shared::OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl From<LoadError> for Errno {
    fn from(error: LoadError) -> Self {
        match error {
            error if error.is_out_of_memory() => Self::ENOMEM,
            LoadError::Probe(error) => error.into(),
            _ => Self::EINVAL,
        }
    }
}

/// A map of a loaded program.
pub enum LoadedMap {
    /// Of any kind with memory of its own, and where compiled code finds the tables of a hash.
    Own(Map, Option<Box<Tables>>),
    /// The trace buffer.
    Ring,
}

impl LoadedMap {
    /// Takes the memory of a map.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn new(def: &MapDef) -> Result<Shared<Self>, LoadError> {
        if def.kind == MapKind::Ring {
            buffer::ready().map_err(|_| LoadError::OutOfMemory)?;
            return Ok(Shared::try_new(Self::Ring)?);
        }
        let is_counter = (def.kind, def.value_size, def.entries) == (MapKind::PerCpuArray, 8, 1);
        let counter = if is_counter { counters::take() } else { None };
        let map = match counter {
            Some(counter) => Map::Array(counter),
            None => Map::new(def, smp::possible_cpus())?,
        };
        let tables = match &map {
            Map::Hash(hash) => Some(tables(hash)?),
            Map::Array(array) => Some(try_box(Tables {
                tables: [core::ptr::null(); percpu::MAX_CPUS],
                cpus: array.cpus(),
                array: Some((array.place(), def.value_size as usize)),
            })?),
            Map::Stacks(_) => None,
        };
        Ok(Shared::try_new(Self::Own(map, tables))?)
    }

    /// The sum of a counter over all CPUs, of an array. 0 if there is none.
    pub fn counter(&self, index: usize) -> u64 {
        let mut sum = [0; 1];
        match self.own() {
            Some(Map::Array(array)) => array.read_sum(index, &mut sum),
            _ => false,
        };
        sum[0]
    }

    /// The map, if it has memory of its own.
    pub fn own(&self) -> Option<&Map> {
        match self {
            Self::Own(map, _) => Some(map),
            Self::Ring => None,
        }
    }
}

/// A program, ready to be attached.
pub struct Program {
    verified: Verified,
    maps: Vec<Shared<LoadedMap>>,
    /// Of a probe: its routines. They are in `code`.
    action: Option<Action>,
    /// Of an entry or return: its routine, in `code`.
    routine: Option<CallRoutine>,
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

    /// Runs it once, here and now, with these registers. False: it is none of [`ProgramKind::Probe`].
    pub fn run(&self, regs: &PtRegs) -> bool {
        /// Stands for the probe; the code does not look at it.
        static NO_PROBE: Kprobe = Kprobe::new();
        let Some(action) = self.action else {
            return false;
        };
        // The code takes one off `ip`, because that is behind a breakpoint.
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

/// Takes the memory of a program's maps, except those that `shared` knows.
fn make_maps(
    program: &bpf::Program,
    shared: impl Fn(&str) -> Option<Shared<LoadedMap>>,
) -> Result<Vec<Shared<LoadedMap>>, LoadError> {
    let mut maps = try_vec(program.maps.len())?;
    for def in &program.maps {
        maps.push(match shared(&def.name) {
            Some(map) => map,
            None => LoadedMap::new(def)?,
        });
    }
    Ok(maps)
}

/// Where the table of each CPU is.
fn tables(hash: &trace_maps::Hash) -> Result<Box<Tables>, LoadError> {
    let first = hash.tables();
    let count = if hash.is_shared() { 1 } else { hash.cpus() };
    let mut tables = try_box(Tables {
        tables: [first; percpu::MAX_CPUS],
        cpus: count,
        array: None,
    })?;
    for (cpu, table) in tables.tables.iter_mut().enumerate().take(count) {
        *table = first.wrapping_add(cpu);
    }
    Ok(tables)
}

/// A map as the compiler sees it.
fn runtime(map: &LoadedMap) -> MapRuntime {
    match map {
        LoadedMap::Own(Map::Array(array), tables) => {
            let place = array.place();
            let tables = tables
                .as_deref()
                .map_or(core::ptr::null(), core::ptr::from_ref);
            MapRuntime::Array(Array {
                handle: tables.addr() as u64,
                base: match place.is_lent {
                    true => counters::offset(place.base) as u64,
                    false => place.base,
                },
                cpu: match place.cpu_shift {
                    // The address of the CPU's data is its first word.
                    _ if place.is_lent => PerCpuPart::Gs { own_address: 0 },
                    Some(shift) => PerCpuPart::Shift(shift as u8),
                    None => PerCpuPart::Shared,
                },
                stride: place.stride,
                entries: place.entries,
            })
        }
        LoadedMap::Own(Map::Hash(_), tables) => {
            let tables = tables
                .as_deref()
                .map_or(core::ptr::null(), core::ptr::from_ref);
            MapRuntime::Handle(tables.addr() as u64)
        }
        LoadedMap::Own(Map::Stacks(stacks), _) => {
            MapRuntime::Handle(core::ptr::from_ref(stacks).addr() as u64)
        }
        LoadedMap::Ring => MapRuntime::Handle(0),
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

/// A kprobe that runs a program, from its registration to its drop.
pub struct AttachedProbe {
    // Dropped in this order (PROGRAM-2).
    probe: Registered<Box<Kprobe>>,
    _action: Box<Action>,
    program: Shared<Program>,
}

impl AttachedProbe {
    /// Registers `probe`, which has an address and no handlers, with `program`.
    ///
    /// # Errors
    /// [`LoadError`]; nothing has changed then.
    pub fn new(program: Shared<Program>, probe: Kprobe) -> Result<Self, LoadError> {
        let action = program
            .action
            .ok_or(LoadError::Kind(program.source().kind))?;
        let action = try_box(action)?;
        // SAFETY: the action and its code live until the probe is unregistered, by the order of the
        // fields. The compiler and the verifier see to the rest.
        let probe = unsafe { probe.action(&*action) };
        Ok(Self {
            probe: register(try_box(probe)?)?,
            _action: action,
            program,
        })
    }

    /// The probe.
    pub fn kprobe(&self) -> &Kprobe {
        &self.probe
    }

    /// The program.
    pub fn program(&self) -> &Shared<Program> {
        &self.program
    }

    /// How many hits were missed: beside other probes, while the CPU was in their handlers.
    pub fn misses(&self) -> u64 {
        self.kprobe().nmissed()
    }

    /// Enables the probe, if it was disabled.
    pub fn start(&self) {
        // It is registered, and only tasks that may sleep have attached probes.
        let _ = PROBES.enable(self.kprobe());
    }

    /// Disables the probe. Returns its misses, which do not change any more.
    pub fn stop(&self) -> u64 {
        // As above.
        let _ = PROBES.disable(self.kprobe());
        text_poke::synchronize_hits();
        self.misses()
    }
}

/// A probe that counts what it missed.
trait Misses: Probe {
    /// How many hits or calls were missed so far.
    fn misses(&self) -> u64;
}

impl Misses for Kprobe {
    fn misses(&self) -> u64 {
        self.nmissed()
    }
}

impl Misses for Kretprobe {
    fn misses(&self) -> u64 {
        self.nmissed() + self.kprobe().nmissed()
    }
}

/// Probes with the same action, registered in one call.
struct Batch<P: Misses + 'static, A> {
    /// From `Box::into_raw`. Dropped when they are unregistered.
    probes: *mut [P],
    /// The same, for the registry. Kept, because a detachment must not need memory.
    references: Vec<&'static P>,
    /// None when they are unregistered.
    action: Option<Box<A>>,
}

// SAFETY: this is the probes' owner, and the rest is `Send` by itself.
unsafe impl<P: Misses + Send + Sync, A: Send> Send for Batch<P, A> {}
// SAFETY: the probes are only shared.
unsafe impl<P: Misses + Sync, A: Sync> Sync for Batch<P, A> {}

impl<P: Misses, A> Batch<P, A> {
    /// Registers a probe at each of `addresses`. `probe` makes one with the action, which lives
    /// until [`Batch::remove`] has unregistered it.
    ///
    /// # Errors
    /// [`LoadError`], of the first address that is refused; nothing has changed then.
    fn new(action: A, addresses: &[u64], probe: impl Fn(u64, &A) -> P) -> Result<Self, LoadError> {
        let action = try_box(action)?;
        let mut probes = try_vec(addresses.len())?;
        let mut references = try_vec(addresses.len())?;
        probes.extend(addresses.iter().map(|address| probe(*address, &action)));
        // No bytes are to spare, so this needs no memory.
        let probes = Box::into_raw(probes.into_boxed_slice());
        // SAFETY: they are dropped after their unregistration, in `remove`, and nobody has these
        // references then.
        references.extend(unsafe { &*probes });
        match PROBES.register_batch(&references) {
            Ok(()) => Ok(Self {
                probes,
                references,
                action: Some(action),
            }),
            Err(error) => {
                references.clear();
                // SAFETY: from `into_raw` above, and nobody has them.
                drop(unsafe { Box::from_raw(probes) });
                Err(error.into())
            }
        }
    }

    fn len(&self) -> usize {
        self.references.len()
    }

    fn misses(&self) -> u64 {
        self.references.iter().map(|probe| probe.misses()).sum()
    }

    /// Unregisters them, once. Returns their misses, which do not change any more. `programs` are
    /// those that hits run.
    fn remove<T>(&mut self, programs: impl FnOnce() -> T) -> u64 {
        if self.action.is_none() {
            return 0;
        }
        let removed = PROBES.unregister_batch(&self.references);
        let misses = self.misses();
        let action = self.action.take();
        self.references.clear();
        match removed {
            // SAFETY: from `Box::into_raw`, once; nobody reaches them any more.
            Ok(()) => drop(unsafe { Box::from_raw(self.probes) }),
            // They are hit still. So they stay, with all that a hit needs.
            Err(_) => core::mem::forget((action, programs())),
        }
        misses
    }
}

/// Kprobes that all run one program, registered in one call.
pub struct AttachedProbes {
    batch: Batch<Kprobe, Action>,
    program: Shared<Program>,
}

impl AttachedProbes {
    /// Registers a probe at each of `addresses` with `program`.
    ///
    /// # Errors
    /// [`LoadError`], of the first address that is refused; nothing has changed then.
    pub fn new(program: Shared<Program>, addresses: &[u64]) -> Result<Self, LoadError> {
        let action = program
            .action
            .ok_or(LoadError::Kind(program.source().kind))?;
        // SAFETY: the action lives until the probe is unregistered, and so does its code: the
        // program is dropped after the batch.
        let probe = |at, action: &Action| unsafe { Kprobe::new().at(at).action(action) };
        let batch = Batch::new(action, addresses, probe)?;
        Ok(Self { batch, program })
    }

    /// How many probes there are.
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The program.
    pub fn program(&self) -> &Shared<Program> {
        &self.program
    }

    /// How many hits were missed so far: beside other probes, while the CPU was in their handlers.
    pub fn misses(&self) -> u64 {
        self.batch.misses()
    }

    /// Detaches them. Returns their misses, which do not change any more.
    pub fn detach(mut self) -> u64 {
        self.remove()
    }

    fn remove(&mut self) -> u64 {
        self.batch.remove(|| self.program.clone())
    }
}

impl Drop for AttachedProbes {
    fn drop(&mut self) {
        self.remove();
    }
}

/// The routines of the two programs of a call.
///
/// # Errors
/// [`LoadError::Kind`], [`LoadError::Shared`].
fn call_action(
    entry: Option<&Shared<Program>>,
    on_return: &Program,
) -> Result<CallAction, LoadError> {
    let kind = on_return.source().kind;
    let (ProgramKind::Return { data }, Some(routine)) = (kind, on_return.routine) else {
        return Err(LoadError::Kind(kind));
    };
    if let Some(entry) = entry {
        match entry.source().kind {
            ProgramKind::Entry { data: shared } if shared == data => {}
            ProgramKind::Entry { data: shared } => {
                return Err(LoadError::Shared {
                    entry: shared,
                    on_return: data,
                });
            }
            kind => return Err(LoadError::Kind(kind)),
        }
    }
    Ok(CallAction {
        entry: entry.and_then(|entry| entry.routine),
        on_return: routine,
        shared_words: data.div_ceil(8) as usize,
    })
}

/// A kretprobe that runs programs at the entry and the return of calls.
pub struct AttachedCall {
    // Dropped in this order (PROGRAM-2).
    probe: Registered<Box<Kretprobe>>,
    _action: Box<CallAction>,
    _entry: Option<Shared<Program>>,
    on_return: Shared<Program>,
}

impl AttachedCall {
    /// Registers `probe`, which has an address and no handlers, with the programs.
    ///
    /// # Errors
    /// [`LoadError`]; nothing has changed then.
    pub fn new(
        entry: Option<Shared<Program>>,
        on_return: Shared<Program>,
        probe: Kretprobe,
    ) -> Result<Self, LoadError> {
        let action = try_box(call_action(entry.as_ref(), &on_return)?)?;
        // SAFETY: as in `AttachedProbe::new`.
        let probe = unsafe { probe.action(&*action) };
        Ok(Self {
            probe: register(try_box(probe)?)?,
            _action: action,
            _entry: entry,
            on_return,
        })
    }

    /// The probe.
    pub fn kretprobe(&self) -> &Kretprobe {
        &self.probe
    }

    /// The program of the return.
    pub fn program(&self) -> &Shared<Program> {
        &self.on_return
    }

    /// How many calls were missed: the CPU was in handlers, or no instance was free.
    pub fn misses(&self) -> u64 {
        Misses::misses(self.kretprobe())
    }

    /// Enables the probe, if it was disabled.
    pub fn start(&self) {
        // As for a probe.
        let _ = PROBES.enable(self.kretprobe());
    }

    /// Disables the probe. Returns its misses, which do not change any more. Calls that are under
    /// way are still seen to return.
    pub fn stop(&self) -> u64 {
        // As for a probe.
        let _ = PROBES.disable(self.kretprobe());
        text_poke::synchronize_hits();
        self.misses()
    }
}

/// Kretprobes that all run the same programs, registered in one call.
pub struct AttachedCalls {
    batch: Batch<Kretprobe, CallAction>,
    entry: Option<Shared<Program>>,
    on_return: Shared<Program>,
}

impl AttachedCalls {
    /// Registers a probe on each of the functions that begin at `addresses`.
    ///
    /// # Errors
    /// [`LoadError`], of the first address that is refused; nothing has changed then.
    pub fn new(
        entry: Option<Shared<Program>>,
        on_return: Shared<Program>,
        addresses: &[u64],
    ) -> Result<Self, LoadError> {
        let action = call_action(entry.as_ref(), &on_return)?;
        // SAFETY: the action lives until the probe is unregistered, and so does its code: the
        // programs are dropped after the batch.
        let probe = |at, action: &CallAction| unsafe { Kretprobe::new().at(at).action(action) };
        let batch = Batch::new(action, addresses, probe)?;
        Ok(Self {
            batch,
            entry,
            on_return,
        })
    }

    /// How many probes there are.
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many calls were missed so far: the CPU was in handlers, or no instance was free.
    pub fn misses(&self) -> u64 {
        self.batch.misses()
    }

    /// Detaches them. Returns their misses, which do not change any more. Calls that are under way
    /// are not seen to return.
    pub fn detach(mut self) -> u64 {
        self.remove()
    }

    fn remove(&mut self) -> u64 {
        let Self {
            entry, on_return, ..
        } = self;
        self.batch.remove(|| (entry.clone(), on_return.clone()))
    }
}

impl Drop for AttachedCalls {
    fn drop(&mut self) {
        self.remove();
    }
}
