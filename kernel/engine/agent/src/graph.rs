//! The tracer of calls: a record at the entry of each function, and one at its return.
//!
//! ```text
//!   entry ─► trace_graph_root    every call is recorded          ─┐ three words in the call's
//!          ─ trace_graph_inner   inside a recorded call only      ├ instance: time, depth and
//!          ─ trace_graph_hidden  no call, nor any inside it      ─┘ function ─► trace_graph_return
//! ```
//!
//! The first two have a twin that records the registers of arguments, too. What is here is any
//! case; the usual one is assembly, in [`crate::entry_points::graph`].
//!
//! A call's depth is one more than that of the call around it, which is the next older one of the
//! task that this tracer follows. So the depth needs no counter of the task: what a call that never
//! returns leaves behind is passed over with it.
//!
//! # Invariants
//! GRAPH-1. A call that has a record of its entry has one of its return, unless it never returns,
//!     the tracer is taken away meanwhile, or recording is off at the return, which is counted. A
//!     call whose entry cannot be recorded is not followed.
//! GRAPH-2. The record of a return has both times: that of the entry in it, and its own. So a
//!     duration is right whatever else is lost.
//! GRAPH-3. While a script runs, no call is followed: the rings are the script's then, and its own
//!     records would find no room in them.
//!
//! # Contexts
//! The routines: any, with the CPU kept, on the hit path, as [`mod@crate::entry_points`] says.
//! [`GraphTracer`]: tasks that may sleep.

use core::{
    mem::offset_of,
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use probes::{CallAction, EntryVerdict, Kretprobe, PtRegs, action::WORDS_IN_INSTANCE};

use crate::{
    Agent, Tracing,
    facts::GraphEntry,
    program::{Batch, LoadError},
    records::{self, RecordOfSize},
    tasks::{TaskChoice, Tasks},
};

/// The types of the two records, as in Linux.
pub const RETURN_TYPE: u16 = 10;
/// See [`RETURN_TYPE`].
pub const ENTRY_TYPE: u16 = 11;

/// Which of a call's words has the time stamp counter of its entry.
pub const TIME_WORD: usize = offset_of!(Call, entered) / size_of::<u64>();

/// The record of an entry. Its time is that of the ring.
#[repr(C)]
struct EntryRecord {
    /// The common header.
    header: u64,
    function: u64,
    /// How many recorded calls are around this one.
    depth: u64,
}

/// The same with the registers of [`bpf::context::ARGUMENTS`].
#[repr(C)]
struct LongEntryRecord {
    entry: EntryRecord,
    arguments: [u64; 6],
}

/// The record of a return, whose time is that of the ring, too.
#[repr(C)]
struct ReturnRecord {
    /// The common header.
    header: u64,
    function: u64,
    result: u64,
    /// The depth, and the CPU of the entry, whose time stamp counter `entered` is of.
    place: Place,
    entered: u64,
}

/// What the entry of a call leaves for the return, in the call's instance.
#[repr(C)]
#[derive(Clone, Copy)]
struct Call {
    /// The time of the entry.
    entered: u64,
    place: Place,
    function: u64,
}

/// Where a call is.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Place {
    /// How many recorded calls are around it, or [`HIDDEN`].
    depth: u32,
    entry_cpu: u32,
}

/// In place of a depth: the call is not recorded, nor what it calls.
const HIDDEN: u32 = u32::MAX;

/// Which calls are recorded. A change counts from the next call on.
pub struct Choice {
    /// See [`Tracing::set_graph_depth`].
    most_depth: AtomicU32,
    tasks: Tasks,
    /// See [`Tracing::set_graph_threshold`].
    least_ticks: AtomicU64,
}

impl Choice {
    pub(crate) const fn all() -> Self {
        Self {
            most_depth: AtomicU32::new(0),
            tasks: Tasks::all(),
            least_ticks: AtomicU64::new(0),
        }
    }
}

/// The bits of [`Recording::graph`](crate::records::Recording): what is not as [`Choice::all`] has
/// it.
const DEPTH: u8 = 1;
const TASKS: u8 = 2;
const THRESHOLD: u8 = 4;

impl<A: Agent> Tracing<A> {
    /// Records no calls that have so many recorded calls around them. 0: whatever depth.
    pub fn set_graph_depth(&self, most: u32) {
        self.graph.most_depth.store(most, Relaxed);
        self.mark_graph(DEPTH, most != 0);
    }

    /// See [`Self::set_graph_depth`].
    pub fn graph_depth(&self) -> u32 {
        self.graph.most_depth.load(Relaxed)
    }

    /// Records calls of these tasks. One caller at a time.
    pub fn choose_graph_tasks(&self, choice: &TaskChoice<'_>) {
        self.graph.tasks.choose(choice);
        self.mark_graph(TASKS, !choice.is_all());
    }

    /// Records only returns, of calls that took as many ticks of the time stamp counter or more. 0:
    /// all of them, and entries.
    pub fn set_graph_threshold(&self, least_ticks: u64) {
        self.graph.least_ticks.store(least_ticks, Relaxed);
        self.mark_graph(THRESHOLD, least_ticks != 0);
    }

    fn mark_graph(&self, bit: u8, set: bool) {
        let bits = &self.recording.graph;
        match set {
            true => bits.fetch_or(bit, Relaxed),
            false => bits.fetch_and(!bit, Relaxed),
        };
    }
}

/// What a routine of an entry does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Root,
    Inner,
    Hidden,
}

/// The registers of an entry that are recorded.
#[repr(C)]
pub struct EntryRegisters {
    /// Those of [`bpf::context::ARGUMENTS`].
    pub arguments: [u64; 6],
    pub flags: u64,
}

impl EntryRegisters {
    #[inline(always)]
    fn of(regs: &PtRegs) -> Self {
        Self {
            arguments: [regs.di, regs.si, regs.dx, regs.cx, regs.r8, regs.r9],
            flags: regs.flags,
        }
    }
}

#[doc(hidden)]
pub const INTERRUPT_FLAG: u64 = 1 << 9;
/// Where the common header has its flags, and the flag that interrupts were off at the call.
const FLAGS: usize = 2;
const IRQS_OFF: u8 = 1;
// As an instruction adds it.
const _: () = assert!(IRQS_OFF == 1);

/// Reserves a record, with its header, for a call with these flags. None if there is no room, or no
/// records are taken, which is counted.
#[inline(always)]
fn reserve<A: Agent, T, const BYTES: usize>(kind: u16, flags: u64) -> Option<NonNull<T>> {
    const { assert!(BYTES == size_of::<T>()) };
    let record = NonNull::new(records::reserve_event_of::<A, BYTES>(kind))?;
    let interrupts_off = u8::from(flags & INTERRUPT_FLAG == 0) * IRQS_OFF;
    // SAFETY: the flags in the common header of a record of this hit.
    unsafe { *record.add(FLAGS).as_ptr() |= interrupts_off };
    Some(record.cast())
}

/// The entry of a call in that role.
///
/// # Safety
/// [`CallAction::entry`] or [`CallAction::jump_entry`] calls it, of an action with [`WORDS`].
#[inline(always)]
unsafe fn enter<A: Agent, const ARGUMENTS: bool>(
    role: Role,
    instance: *mut (),
    regs: &EntryRegisters,
) -> EntryVerdict {
    let tracing = A::tracing();
    if tracing.recording.script_runs.load(Relaxed) {
        return EntryVerdict::Decline;
    }
    let choice = &tracing.graph;
    let some_tasks = tracing.recording.graph.load(Relaxed) & TASKS != 0;
    if some_tasks && !choice.tasks.have_current::<A>() {
        return EntryVerdict::Decline;
    }
    // SAFETY: by the contract.
    let outer = unsafe { CallAction::enclosing_words::<A>(instance) };
    let depth = match outer.is_null() {
        true if role == Role::Inner => return EntryVerdict::Decline,
        true => 0,
        // SAFETY: the words of a call with the same action's return.
        false => match unsafe { (*outer.cast::<Call>()).place.depth } {
            HIDDEN => return EntryVerdict::Decline,
            depth => depth.wrapping_add(1),
        },
    };
    let function = CallAction::function::<A>();
    let entry_cpu = A::this_cpu_tracing().number() as u32;
    let mut call = Call {
        entered: 0,
        place: Place { depth, entry_cpu },
        function,
    };
    let most_depth = choice.most_depth.load(Relaxed);
    if role == Role::Hidden {
        call.place.depth = HIDDEN;
    } else if most_depth != 0 && depth >= most_depth {
        return EntryVerdict::Decline;
    } else if choice.least_ticks.load(Relaxed) != 0 {
        call.entered = records::read_tsc();
    } else {
        const BYTES: usize = size_of::<EntryRecord>();
        const LONG_BYTES: usize = size_of::<LongEntryRecord>();
        let record = match ARGUMENTS {
            false => reserve::<A, EntryRecord, BYTES>(ENTRY_TYPE, regs.flags),
            true => {
                reserve::<A, LongEntryRecord, LONG_BYTES>(ENTRY_TYPE, regs.flags).map(NonNull::cast)
            }
        };
        let Some(record) = record else {
            return EntryVerdict::Decline;
        };
        let record: *mut EntryRecord = record.as_ptr();
        if ARGUMENTS {
            // SAFETY: reserved as a long one, and this hit's until it is submitted.
            unsafe { (*record.cast::<LongEntryRecord>()).arguments = regs.arguments };
        }
        // SAFETY: reserved, aligned to 8, and this hit's until it is submitted.
        unsafe {
            (*record).function = function;
            (*record).depth = depth.into();
            call.entered = records::time_of(record.cast());
            records::submit_event_of(record.cast());
        }
    }
    // SAFETY: the words of the call, by the contract.
    unsafe { *call_of(instance) = call };
    EntryVerdict::Track
}

/// The words of a call's instance.
fn call_of(instance: *mut ()) -> *mut Call {
    instance.wrapping_byte_add(WORDS_IN_INSTANCE).cast()
}

/// For the routines: the records.
#[doc(hidden)]
pub const ENTRY: RecordOfSize = RecordOfSize::new(size_of::<EntryRecord>(), ENTRY_TYPE);
#[doc(hidden)]
pub const LONG_ENTRY: RecordOfSize = RecordOfSize::new(size_of::<LongEntryRecord>(), ENTRY_TYPE);
#[doc(hidden)]
pub const RETURN: RecordOfSize = RecordOfSize::new(size_of::<ReturnRecord>(), RETURN_TYPE);

/// For the routines: where the fields of an instance and of the records are.
#[doc(hidden)]
pub mod layout {
    use core::mem::offset_of;

    use probes::action::EntryFrame;

    use super::{Call, EntryRecord, LongEntryRecord, Place, ReturnRecord, WORDS_IN_INSTANCE};

    pub const ENTRY_FRAME_INSTANCE: usize = offset_of!(EntryFrame, instance);
    pub const ENTRY_FRAME_FLAGS: usize = offset_of!(EntryFrame, flags);
    pub const ENTRY_FRAME_DI: usize = offset_of!(EntryFrame, di);
    pub const ENTRY_FRAME_SI: usize = offset_of!(EntryFrame, si);
    pub const ENTRY_FRAME_DX: usize = offset_of!(EntryFrame, dx);
    pub const ENTRY_FRAME_CX: usize = offset_of!(EntryFrame, cx);

    pub const ENTERED: usize = WORDS_IN_INSTANCE + offset_of!(Call, entered);
    pub const DEPTH: usize = WORDS_IN_INSTANCE + offset_of!(Call, place.depth);
    pub const ENTRY_CPU: usize = WORDS_IN_INSTANCE + offset_of!(Call, place.entry_cpu);
    pub const FUNCTION: usize = WORDS_IN_INSTANCE + offset_of!(Call, function);
    pub const RECORD_FUNCTION: usize = offset_of!(EntryRecord, function);
    pub const RECORD_DEPTH: usize = offset_of!(EntryRecord, depth);
    pub const RECORD_RESULT: usize = offset_of!(ReturnRecord, result);
    pub const RECORD_PLACE: usize = offset_of!(ReturnRecord, place);
    pub const RECORD_ENTERED: usize = offset_of!(ReturnRecord, entered);

    // The place is copied whole, and the arguments follow the depth.
    const _: () = assert!(offset_of!(Place, depth) == 0 && size_of::<Place>() == 8);
    const _: () = assert!(offset_of!(LongEntryRecord, arguments) == RECORD_DEPTH + 8);
    const _: () = assert!(offset_of!(ReturnRecord, function) == RECORD_FUNCTION);
}

/// How many words the entry and the return of a call share.
const WORDS: usize = size_of::<Call>() / size_of::<u64>();

/// The roles, as numbers for the entry points.
#[doc(hidden)]
pub const ROOT: u8 = Role::Root as u8;
#[doc(hidden)]
pub const INNER: u8 = Role::Inner as u8;
#[doc(hidden)]
pub const HIDE: u8 = Role::Hidden as u8;

const fn role(number: u8) -> Role {
    match number {
        ROOT => Role::Root,
        INNER => Role::Inner,
        _ => Role::Hidden,
    }
}

/// The entry of a call with a frame.
///
/// # Safety
/// [`CallAction::entry`] calls it, of an action with [`WORDS`].
#[inline(always)]
pub unsafe fn entry<A: Agent, const ROLE: u8, const ARGUMENTS: bool>(
    instance: *mut (),
    regs: *const PtRegs,
) -> EntryVerdict {
    // SAFETY: by the contract.
    unsafe { enter::<A, ARGUMENTS>(role(ROLE), instance, &EntryRegisters::of(&*regs)) }
}

/// The entry of a call by a jump, where that is not usual.
///
/// # Safety
/// [`CallAction::jump_entry`] calls it, of an action with [`WORDS`].
#[inline(always)]
pub unsafe fn entry_by_jump<A: Agent, const ROLE: u8, const ARGUMENTS: bool>(
    instance: *mut (),
    regs: *const EntryRegisters,
) -> EntryVerdict {
    // SAFETY: by the contract.
    unsafe { enter::<A, ARGUMENTS>(role(ROLE), instance, &*regs) }
}

/// The return of a call that was followed, where that is not usual.
///
/// # Safety
/// The routines [`CallAction::on_return`] and [`CallAction::jump_return`] call it, of a call whose
/// entry ran one of those above. `result` and `flags` are what the call has left.
#[inline(always)]
pub unsafe fn on_return<A: Agent>(instance: *mut (), result: u64, flags: u64) {
    // SAFETY: set by the entry.
    let call = unsafe { *call_of(instance) };
    let least = A::tracing().graph.least_ticks.load(Relaxed);
    let took = || records::read_tsc().wrapping_sub(call.entered);
    if call.place.depth == HIDDEN || least != 0 && took() < least {
        return;
    }
    const BYTES: usize = size_of::<ReturnRecord>();
    if let Some(record) = reserve::<A, ReturnRecord, BYTES>(RETURN_TYPE, flags) {
        let record = record.as_ptr();
        // SAFETY: reserved, aligned to 8, and this hit's until it is submitted.
        unsafe {
            (*record).function = call.function;
            (*record).result = result;
            (*record).place = call.place;
            (*record).entered = call.entered;
            records::submit_event_of(record.cast());
        }
    }
}

/// Where functions begin, by what is recorded of them. No function is in two of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Functions<'a> {
    /// All of their calls.
    pub roots: &'a [u64],
    /// Those of their calls that are inside a recorded one.
    pub inner: &'a [u64],
    /// None, and none of the calls inside them.
    pub hidden: &'a [u64],
}

/// Kretprobes that record the calls of functions, from their registration to the drop.
pub struct GraphTracer<A: Agent> {
    batches: [Option<Batch<A, Kretprobe, CallAction>>; 3],
    /// Whether it hides calls.
    hides: bool,
}

impl<A: Agent> GraphTracer<A> {
    /// Follows the calls of `functions`, at most `maxactive` of each function at once. The
    /// registers of arguments are recorded if `with_arguments`.
    ///
    /// # Errors
    /// [`LoadError`]; nothing has changed then.
    pub fn new(
        functions: &Functions<'_>,
        maxactive: i32,
        with_arguments: bool,
    ) -> Result<Self, LoadError> {
        let tracing = A::tracing();
        for cpu in (0..A::possible_cpus()).filter_map(A::cpu_tracing) {
            cpu.set_recording(&tracing.recording);
        }
        let entry = A::tracing_entry_points();
        let batch = |routines: GraphEntry, addresses: &[u64]| {
            let action = CallAction {
                entry: Some(routines.entry),
                jump_entry: routines.by_jump,
                on_return: entry.graph_return,
                jump_return: Some(entry.graph_return_by_jump),
                shared_words: WORDS,
            };
            // SAFETY: the code is the kernel's, and does as `CallAction` says.
            Batch::new(action, addresses, |at, action: &CallAction| unsafe {
                Kretprobe::new().at(at).maxactive(maxactive).action(*action)
            })
        };
        let mut tracer = Self {
            batches: [const { None }; 3],
            hides: !functions.hidden.is_empty(),
        };
        let hiding = u16::from(tracer.hides);
        tracing.recording.hiding.fetch_add(hiding, Relaxed);
        let (root, inner) = match with_arguments {
            true => (entry.graph_root_arguments, entry.graph_inner_arguments),
            false => (entry.graph_root, entry.graph_inner),
        };
        // Those that hide before the roots, because what they hide would be recorded.
        let chosen = [
            (entry.graph_hidden, functions.hidden),
            (inner, functions.inner),
            (root, functions.roots),
        ];
        for (place, (routine, addresses)) in tracer.batches.iter_mut().zip(chosen) {
            if !addresses.is_empty() {
                *place = Some(batch(routine, addresses)?);
            }
        }
        Ok(tracer)
    }

    /// How many functions are followed.
    pub fn functions(&self) -> usize {
        self.batches.iter().flatten().map(Batch::len).sum()
    }

    /// How many calls were missed so far: the CPU was in handlers, or no instance was free.
    pub fn misses(&self) -> u64 {
        self.batches.iter().flatten().map(Batch::misses).sum()
    }
}

impl<A: Agent> Drop for GraphTracer<A> {
    fn drop(&mut self) {
        for batch in self.batches.iter_mut().rev().flatten() {
            batch.remove(|| ());
        }
        let hiding = u16::from(self.hides);
        A::tracing().recording.hiding.fetch_sub(hiding, Relaxed);
    }
}
