//! The tracer of calls: a record at the entry of each function, and one at its return.
//!
//! ```text
//!   entry ─► trace_graph_root    every call is recorded          ─┐ two words in the call's
//!          ─ trace_graph_inner   inside a recorded call only      ├ instance: time and depth ─►
//!          ─ trace_graph_hidden  no call, nor any inside it      ─┘        trace_graph_return
//! ```
//!
//! The first two have a twin that records the registers of arguments, too.
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
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use probes::{CallAction, EntryVerdict, Kretprobe, PtRegs, action::CallRoutine};

use crate::{
    Agent,
    program::{Batch, LoadError},
    records,
    tasks::Tasks,
};

/// The types of the two records, as in Linux.
pub const RETURN_TYPE: u16 = 10;
/// See [`RETURN_TYPE`].
pub const ENTRY_TYPE: u16 = 11;

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
    depth: u32,
    /// The CPU of the entry, whose time stamp counter `entered` is of.
    entry_cpu: u32,
    entered: u64,
}

/// Which calls are recorded. A change counts from the next call on.
pub struct Choice {
    /// Calls that have so many recorded calls around them are not. 0: whatever depth.
    pub most_depth: AtomicU32,
    /// Calls of these tasks.
    pub tasks: Tasks,
    /// Only returns are recorded, of calls that took as many ticks of the time stamp counter or
    /// more. 0: all of them, and entries.
    pub least_ticks: AtomicU64,
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

/// What a routine of an entry does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Root,
    Inner,
    Hidden,
}

/// The words of a call's instance: the time of the entry, and this.
const TIME: usize = 0;
const PLACE: usize = 1;
/// In [`PLACE`]: the call is hidden. Else the depth in its low half and the CPU in the high one.
const HIDDEN: u64 = u64::MAX;

const INTERRUPT_FLAG: u64 = 1 << 9;
/// Where the common header has its flags, and the flag that interrupts were off at the call.
const FLAGS: usize = 2;
const IRQS_OFF: u8 = 1;

/// Reserves a record, with its header. None if there is no room, or no records are taken, which is
/// counted.
#[inline(always)]
fn reserve<A: Agent, T, const BYTES: usize>(kind: u16, regs: &PtRegs) -> Option<NonNull<T>> {
    const { assert!(BYTES == size_of::<T>()) };
    let record = NonNull::new(records::reserve_event_of::<A, BYTES>(kind))?;
    let interrupts_off = u8::from(regs.flags & INTERRUPT_FLAG == 0) * IRQS_OFF;
    // SAFETY: the flags in the common header of a record of this hit.
    unsafe { *record.add(FLAGS).as_ptr() |= interrupts_off };
    Some(record.cast())
}

/// The entry of a call in that role.
///
/// # Safety
/// The routine [`CallAction::entry`] calls it with its arguments, of an action with two words.
#[inline(always)]
unsafe fn enter<A: Agent, const ARGUMENTS: bool>(
    role: Role,
    instance: *const (),
    regs: &PtRegs,
    words: *mut u64,
    function: u64,
) -> EntryVerdict {
    if A::tracing().runs.load(Relaxed) {
        return EntryVerdict::Decline;
    }
    // SAFETY: by the contract.
    unsafe {
        match A::tracing().graph.tasks.are_all() {
            true => follow::<A, ARGUMENTS>(role, instance, regs, words, function),
            false => follow_if_chosen::<A, ARGUMENTS>(role, instance, regs, words, function),
        }
    }
}

/// [`follow`], if the running task is chosen. A function of its own, so that the usual way calls
/// nothing for which it would have to save registers.
///
/// # Safety
/// As [`enter`].
#[cold]
#[inline(never)]
unsafe fn follow_if_chosen<A: Agent, const ARGUMENTS: bool>(
    role: Role,
    instance: *const (),
    regs: &PtRegs,
    words: *mut u64,
    function: u64,
) -> EntryVerdict {
    match A::tracing().graph.tasks.have_current::<A>() {
        // SAFETY: by the contract.
        true => unsafe { follow::<A, ARGUMENTS>(role, instance, regs, words, function) },
        false => EntryVerdict::Decline,
    }
}

/// The entry of a call in that role, by a task that is chosen.
///
/// # Safety
/// As [`enter`].
#[inline(always)]
unsafe fn follow<A: Agent, const ARGUMENTS: bool>(
    role: Role,
    instance: *const (),
    regs: &PtRegs,
    words: *mut u64,
    function: u64,
) -> EntryVerdict {
    let choice = &A::tracing().graph;
    // SAFETY: by the contract.
    let outer = unsafe { CallAction::enclosing_words::<A>(instance) };
    let depth = match outer.is_null() {
        true if role == Role::Inner => return EntryVerdict::Decline,
        true => 0,
        // SAFETY: the words of a call with the same action's return, so there are two.
        false => match unsafe { *outer.add(PLACE) } {
            HIDDEN => return EntryVerdict::Decline,
            place => (place as u32).wrapping_add(1),
        },
    };
    if role == Role::Hidden {
        // SAFETY: two words.
        unsafe { *words.add(PLACE) = HIDDEN };
        return EntryVerdict::Track;
    }
    let most_depth = choice.most_depth.load(Relaxed);
    if most_depth != 0 && depth >= most_depth {
        return EntryVerdict::Decline;
    }
    let entered = match choice.least_ticks.load(Relaxed) {
        0 => {
            const BYTES: usize = size_of::<EntryRecord>();
            const LONG_BYTES: usize = size_of::<LongEntryRecord>();
            let record = match ARGUMENTS {
                false => reserve::<A, EntryRecord, BYTES>(ENTRY_TYPE, regs),
                true => {
                    reserve::<A, LongEntryRecord, LONG_BYTES>(ENTRY_TYPE, regs).map(NonNull::cast)
                }
            };
            let Some(record) = record else {
                return EntryVerdict::Decline;
            };
            let record: *mut EntryRecord = record.as_ptr();
            if ARGUMENTS {
                let arguments = [regs.di, regs.si, regs.dx, regs.cx, regs.r8, regs.r9];
                // SAFETY: reserved as a long one, and this hit's until it is submitted.
                unsafe { (*record.cast::<LongEntryRecord>()).arguments = arguments };
            }
            // SAFETY: reserved, aligned to 8, and this hit's until it is submitted.
            unsafe {
                (*record).function = function;
                (*record).depth = depth.into();
                let entered = records::time_of(record.cast());
                records::submit_event_of(record.cast());
                entered
            }
        }
        _ => records::read_tsc(),
    };
    let cpu = A::this_cpu_tracing().number() as u64;
    // SAFETY: two words.
    unsafe {
        *words.add(PLACE) = cpu << 32 | u64::from(depth);
        *words.add(TIME) = entered;
    }
    EntryVerdict::Track
}

/// `trace_graph_root`: a call that is recorded wherever it is.
///
/// # Safety
/// As [`enter`].
#[inline(always)]
pub unsafe fn root<A: Agent>(
    instance: *const (),
    regs: *const PtRegs,
    words: *mut u64,
    function: u64,
    _return_address: u64,
) -> EntryVerdict {
    // SAFETY: by the contract.
    unsafe { enter::<A, false>(Role::Root, instance, &*regs, words, function) }
}

/// `trace_graph_inner`: a call that is recorded inside a recorded one.
///
/// # Safety
/// As [`enter`].
#[inline(always)]
pub unsafe fn inner<A: Agent>(
    instance: *const (),
    regs: *const PtRegs,
    words: *mut u64,
    function: u64,
    _return_address: u64,
) -> EntryVerdict {
    // SAFETY: by the contract.
    unsafe { enter::<A, false>(Role::Inner, instance, &*regs, words, function) }
}

/// `trace_graph_root_arguments`: [`root`] with the registers of arguments.
///
/// # Safety
/// As [`enter`].
#[inline(always)]
pub unsafe fn root_arguments<A: Agent>(
    instance: *const (),
    regs: *const PtRegs,
    words: *mut u64,
    function: u64,
    _return_address: u64,
) -> EntryVerdict {
    // SAFETY: by the contract.
    unsafe { enter::<A, true>(Role::Root, instance, &*regs, words, function) }
}

/// `trace_graph_inner_arguments`: [`inner`] with the registers of arguments.
///
/// # Safety
/// As [`enter`].
#[inline(always)]
pub unsafe fn inner_arguments<A: Agent>(
    instance: *const (),
    regs: *const PtRegs,
    words: *mut u64,
    function: u64,
    _return_address: u64,
) -> EntryVerdict {
    // SAFETY: by the contract.
    unsafe { enter::<A, true>(Role::Inner, instance, &*regs, words, function) }
}

/// `trace_graph_hidden`: a call that is not recorded, nor what it calls.
///
/// # Safety
/// As [`enter`].
#[inline(always)]
pub unsafe fn hidden<A: Agent>(
    instance: *const (),
    regs: *const PtRegs,
    words: *mut u64,
    function: u64,
    _return_address: u64,
) -> EntryVerdict {
    // SAFETY: by the contract.
    unsafe { enter::<A, false>(Role::Hidden, instance, &*regs, words, function) }
}

/// `trace_graph_return`: the return of a call that was followed.
///
/// # Safety
/// The routine [`CallAction::on_return`] calls it with its arguments, of a call whose entry ran one
/// of the three above.
#[inline(always)]
pub unsafe fn on_return<A: Agent>(
    _instance: *const (),
    regs: *const PtRegs,
    words: *mut u64,
    function: u64,
    _return_address: u64,
) -> EntryVerdict {
    // SAFETY: two words, set by the entry.
    let (entered, place) = unsafe { (*words.add(TIME), *words.add(PLACE)) };
    let least = A::tracing().graph.least_ticks.load(Relaxed);
    if place == HIDDEN || least != 0 && records::read_tsc().wrapping_sub(entered) < least {
        return EntryVerdict::Track;
    }
    // SAFETY: the registers of the return.
    let regs = unsafe { &*regs };
    const BYTES: usize = size_of::<ReturnRecord>();
    if let Some(record) = reserve::<A, ReturnRecord, BYTES>(RETURN_TYPE, regs) {
        let record = record.as_ptr();
        // SAFETY: reserved, aligned to 8, and this hit's until it is submitted.
        unsafe {
            (*record).function = function;
            (*record).result = regs.ax;
            (*record).depth = place as u32;
            (*record).entry_cpu = (place >> 32) as u32;
            (*record).entered = entered;
            records::submit_event_of(record.cast());
        }
    }
    EntryVerdict::Track
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
        let entry = A::tracing_entry_points();
        let batch = |routine: u64, addresses: &[u64]| {
            let action = CallAction {
                // SAFETY: the entry points are routines, by `entry_points!`.
                entry: Some(unsafe { as_routine(routine) }),
                // SAFETY: as above.
                on_return: unsafe { as_routine(entry.graph_return) },
                shared_words: 2,
            };
            // SAFETY: the action lives until the probe is unregistered, and its code for ever.
            Batch::new(action, addresses, |at, action: &CallAction| unsafe {
                Kretprobe::new().at(at).maxactive(maxactive).action(action)
            })
        };
        let mut tracer = Self {
            batches: [const { None }; 3],
        };
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
    }
}

/// # Safety
/// `address` is that of a [`CallRoutine`].
unsafe fn as_routine(address: u64) -> CallRoutine {
    let address = core::ptr::with_exposed_provenance::<()>(address as usize);
    // SAFETY: by the contract.
    unsafe { core::mem::transmute::<*const (), CallRoutine>(address) }
}
