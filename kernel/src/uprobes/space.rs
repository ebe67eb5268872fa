//! What the probes know of one program in memory: which of its addresses have a breakpoint, the
//! slots of the displaced instructions, and the calls that are followed.
//!
//! ```text
//!   text of the program          the state here             slots, beside the program's memory
//!   0x401000  int3 …     ──►  address, probes, slot  ──►    the instruction; jmp 0x401001
//!   return address       ──►  calls, newest last     ◄──    int3  (the trampoline)
//! ```
//!
//! # Invariants
//! SPACEPROBES-1. The entry of an address is made before its breakpoint is written, and stays as
//!     long as the program is in memory. So a task that is between the breakpoint and the lookup
//!     when the probe goes finds the slot, and goes on.
//! SPACEPROBES-2. A slot is never written again, because the task may be stopped in it for as long
//!     as it likes. The instruction at an address does not change, so the next probe there uses the
//!     same slot.
//! SPACEPROBES-3. Calls and step belong to the one task that runs the program. Only it touches them.
//!
//! # Contexts and locks
//! One spinlock, which a hit takes for a few instructions. No handler runs under it.

use alloc::{sync::Arc, vec::Vec};
use core::ops::Range;

use ::probes::insn::MAX_INSN_BYTES;

use super::probe::{MAX_CALLS, UserCall, UserProbe};
use crate::{mm::shared::OutOfMemory, sync::SpinLock};

/// The probes at a place, newest first.
pub type ProbeList = Arc<[UserProbe]>;

/// How a displaced instruction is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// From its slot.
    InSlot,
    /// It is `syscall`: as the entry of system calls does it.
    SystemCall,
    /// It is `popfq`: on the saved registers, because a trap flag that it pops must not trap in a
    /// slot. From its slot where its word cannot be read, so that it faults.
    PopFlags,
}

/// An instruction whose first byte a breakpoint has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Displaced {
    pub(super) bytes: [u8; MAX_INSN_BYTES],
    pub(super) len: u8,
    pub(super) how: How,
}

impl Displaced {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// A place of the program that has, or had, a probe.
pub(super) struct ProbedPlace {
    pub(super) address: u64,
    pub(super) displaced: Displaced,
    /// Where its replacement is.
    pub(super) slot: Range<u64>,
    /// The probes that fire here; `None` if there are none.
    pub(super) probes: Option<ProbeList>,
    /// The breakpoint is there.
    pub(super) armed: bool,
}

/// What a hit needs of a place.
pub(super) struct Hit {
    pub(super) displaced: Displaced,
    pub(super) slot: u64,
    pub(super) probes: Option<ProbeList>,
}

/// A task that carries out a displaced instruction with a trap after it.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// The address of the instruction.
    pub(super) address: u64,
    /// The program had set the trap flag itself.
    pub(super) was_stepped: bool,
}

/// The most by which a return raises the stack pointer: its address, and the most arguments that
/// `ret n` takes.
const MOST_TAKEN: u64 = 8 + u16::MAX as u64;

/// The addresses that slots are taken from.
#[derive(Clone, Copy)]
pub(super) struct SlotArea {
    pub(super) next: u64,
    pub(super) end: u64,
}

struct State {
    /// By their addresses.
    places: Vec<ProbedPlace>,
    area: SlotArea,
    /// The address of the trampoline; 0 if there is none.
    trampoline: u64,
    calls: Vec<UserCall>,
    step: Option<Step>,
}

impl State {
    fn find(&self, address: u64) -> Result<usize, usize> {
        self.places
            .binary_search_by_key(&address, |place| place.address)
    }
}

/// See the module's text.
pub struct SpaceProbes {
    state: SpinLock<State>,
}

impl Default for SpaceProbes {
    fn default() -> Self {
        Self::new()
    }
}

impl SpaceProbes {
    /// Those of a program without probes.
    pub const fn new() -> Self {
        Self {
            state: SpinLock::new(State {
                places: Vec::new(),
                area: SlotArea { next: 0, end: 0 },
                trampoline: 0,
                calls: Vec::new(),
                step: None,
            }),
        }
    }

    /// What a breakpoint at `address` means. `None`: it is none of the probes'.
    pub(super) fn hit(&self, address: u64) -> Option<Hit> {
        let state = self.state.lock();
        let place = &state.places[state.find(address).ok()?];
        Some(Hit {
            displaced: place.displaced,
            slot: place.slot.start,
            probes: place.probes.clone(),
        })
    }

    /// Whether the place at `address` is known, and has its breakpoint.
    pub(super) fn armed(&self, address: u64) -> Option<bool> {
        let state = self.state.lock();
        state
            .find(address)
            .ok()
            .map(|index| state.places[index].armed)
    }

    /// Enters a place without its breakpoint.
    pub(super) fn enter(&self, place: ProbedPlace) -> Result<(), OutOfMemory> {
        let mut state = self.state.lock();
        state.places.try_reserve(1).map_err(|_| OutOfMemory)?;
        if let Err(index) = state.find(place.address) {
            state.places.insert(index, place);
        }
        Ok(())
    }

    /// Says which probes fire at `address`, which is known. Returns those that did.
    pub(super) fn set_probes(&self, address: u64, probes: Option<ProbeList>) -> Option<ProbeList> {
        let mut state = self.state.lock();
        let index = state.find(address).ok()?;
        core::mem::replace(&mut state.places[index].probes, probes)
    }

    /// Notes that the breakpoint at `address` is there, or is not.
    pub(super) fn set_armed(&self, address: u64, armed: bool) {
        let mut state = self.state.lock();
        if let Ok(index) = state.find(address) {
            state.places[index].armed = armed;
        }
    }

    /// The addresses that are left for slots.
    pub(super) fn area(&self) -> SlotArea {
        self.state.lock().area
    }

    pub(super) fn set_area(&self, area: SlotArea) {
        self.state.lock().area = area;
    }

    /// The address of the trampoline; 0 if there is none.
    pub(super) fn trampoline(&self) -> u64 {
        self.state.lock().trampoline
    }

    /// Takes memory for the calls, and notes where they return to.
    pub(super) fn set_trampoline(&self, address: u64) -> Result<(), OutOfMemory> {
        let mut state = self.state.lock();
        state
            .calls
            .try_reserve(MAX_CALLS)
            .map_err(|_| OutOfMemory)?;
        state.trampoline = address;
        Ok(())
    }

    /// Follows a call that begins now. `is_chained`: its return slot has the trampoline, because a
    /// call before it has the same slot. If it has not, calls with that slot are over. The call is
    /// given back if as many are followed as may be.
    pub(super) fn begin_call(&self, call: UserCall, is_chained: bool) -> Result<(), UserCall> {
        let mut state = self.state.lock();
        if !is_chained {
            state.calls.retain(|old| old.slot != call.slot);
        }
        if state.calls.len() >= MAX_CALLS {
            return Err(call);
        }
        state.calls.push(call);
        Ok(())
    }

    /// Takes the call that has returned, now that the stack pointer is `sp`: the newest of those
    /// with the slot below `sp`. A return may also have taken arguments off the stack (`ret n`).
    pub(super) fn end_call(&self, sp: u64) -> Option<UserCall> {
        let mut state = self.state.lock();
        let is_below = |call: &UserCall| call.slot.wrapping_add(8) == sp;
        let plain = state.calls.iter().rposition(is_below);
        let index = plain.or_else(|| {
            let calls = state.calls.iter().enumerate();
            let near = calls.filter(|(_, call)| sp.wrapping_sub(call.slot) <= MOST_TAKEN);
            near.max_by_key(|(_, call)| call.slot)
                .map(|(index, _)| index)
        })?;
        Some(state.calls.remove(index))
    }

    /// The return slots of the calls that are followed. Returns how many there are.
    pub(super) fn slots(&self, to: &mut [u64; MAX_CALLS]) -> usize {
        let state = self.state.lock();
        for (to, call) in to.iter_mut().zip(&state.calls) {
            *to = call.slot;
        }
        state.calls.len()
    }

    /// Drops the calls with the slot at `slot`, which has another return address by now.
    pub(super) fn drop_calls(&self, slot: u64) {
        self.state.lock().calls.retain(|call| call.slot != slot);
    }

    /// Where the call with the slot at `slot` returns to. `None` if it is not followed.
    pub(super) fn return_address(&self, slot: u64) -> Option<u64> {
        let state = self.state.lock();
        // The calls of one slot have the same address.
        let call = state.calls.iter().rfind(|call| call.slot == slot)?;
        Some(call.return_address)
    }

    pub(super) fn step(&self) -> Option<Step> {
        self.state.lock().step
    }

    pub(super) fn set_step(&self, step: Option<Step>) {
        self.state.lock().step = step;
    }

    /// The place whose slot has `ip`: its address, its instruction and its slot.
    pub(super) fn place_of_slot(&self, ip: u64) -> Option<(u64, Displaced, u64)> {
        let state = self.state.lock();
        let place = state.places.iter().find(|place| place.slot.contains(&ip))?;
        Some((place.address, place.displaced, place.slot.start))
    }

    /// Takes over what `parent` has, for a program that is a copy of it.
    pub(super) fn copy(&self, parent: &Self) -> Result<(), OutOfMemory> {
        let parent = parent.state.lock();
        let mut state = self.state.lock();
        let places = parent.places.len();
        state.places.try_reserve(places).map_err(|_| OutOfMemory)?;
        if parent.trampoline != 0 {
            state
                .calls
                .try_reserve(MAX_CALLS)
                .map_err(|_| OutOfMemory)?;
        }
        for place in &parent.places {
            state.places.push(ProbedPlace {
                probes: place.probes.clone(),
                slot: place.slot.clone(),
                ..*place
            });
        }
        state.area = parent.area;
        state.trampoline = parent.trampoline;
        for call in &parent.calls {
            // One that may not be followed is followed by nobody: its slot has the trampoline, so
            // the address must stay known.
            state.calls.push(call.duplicate());
        }
        Ok(())
    }

    /// The addresses that have a breakpoint now.
    pub fn armed_places(&self) -> Vec<u64> {
        let state = self.state.lock();
        let armed = state.places.iter().filter(|place| place.armed);
        armed.map(|place| place.address).collect()
    }
}

/// Whether a probe of the list fires in the process `pid`.
pub(super) fn fires_in(list: &[UserProbe], pid: i32) -> bool {
    list.iter().any(|probe| probe.common().fires_in(pid))
}
