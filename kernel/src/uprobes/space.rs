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
//! SPACEPROBES-1. The place of an address is entered before its breakpoint is written, and stays as
//!     long as the program is in memory. So a task that is between the breakpoint and the lookup
//!     when the probe goes finds the slot, and goes on.
//! SPACEPROBES-2. A slot is never written again, because the task may be stopped in it for as long
//!     as it likes. The instruction at an address does not change, so the next probe there uses the
//!     same slot.
//! SPACEPROBES-3. Calls and step belong to the one task that runs the program. Only it touches
//!     them. So nobody ever waits for their lock.
//! SPACEPROBES-4. Places, table, slots and the trampoline change under the registry's lock alone.
//!
//! # Contexts
//! A hit reads the table and the places without a lock. Both stay as long as the program is in
//! memory, also a table that has become too small. Lists of probes are read with interrupts off
//! ([`Published`]). All other methods: tasks, under the registry's lock, but for those about calls
//! and steps.

use alloc::{boxed::Box, vec::Vec};
use core::{
    ops::Range,
    ptr::{from_ref, null, null_mut},
    sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use ::probes::insn::MAX_INSN_BYTES;
use fallible::{push, try_box};

use super::{
    probe::{MAX_CALLS, ProbeRef, Uprobe, Uretprobe, UserCall, UserProbe},
    published::Published,
};
use crate::{
    mm::shared::{OutOfMemory, Shared},
    sync::SpinLock,
};

/// The probes at a place, newest first.
pub(super) type ProbeList = Shared<Vec<UserProbe>>;

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
    /// A caller's return address is on top of the stack there, because a function begins.
    pub(super) begins_function: bool,
}

impl Displaced {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// A place of the program that has, or had, a probe.
pub struct ProbedPlace {
    pub(super) address: u64,
    pub(super) displaced: Displaced,
    /// Where its replacement is.
    pub(super) slot: Range<u64>,
    /// The probes that fire here, if there are any.
    probes: Published<ProbeList>,
    /// The only one of them, where the instruction is carried out in its slot: one of these two, or
    /// none. So most hits look at a word or two.
    lone: AtomicPtr<Uprobe>,
    lone_return: AtomicPtr<ProbeRef<Uretprobe>>,
    /// The breakpoint is there.
    armed: AtomicBool,
}

impl ProbedPlace {
    /// A place without probes and breakpoint.
    pub(super) const fn new(address: u64, displaced: Displaced, slot: Range<u64>) -> Self {
        Self {
            address,
            displaced,
            slot,
            probes: Published::none(),
            lone: AtomicPtr::new(null_mut()),
            lone_return: AtomicPtr::new(null_mut()),
            armed: AtomicBool::new(false),
        }
    }

    /// The probes that fire here.
    ///
    /// # Safety
    /// That of [`Published::get`].
    #[inline(always)]
    pub(super) unsafe fn probes(&self) -> Option<&ProbeList> {
        // SAFETY: by the contract.
        unsafe { self.probes.get() }
    }

    /// The only probe that fires here, if it is no return probe, and the instruction is carried out
    /// in its slot.
    ///
    /// # Safety
    /// That of [`Published::get`]: the list of the probes keeps it.
    #[inline(always)]
    pub(super) unsafe fn lone(&self) -> Option<&Uprobe> {
        // SAFETY: by the contract. Acquire pairs with the Release in `set_probes`.
        unsafe { self.lone.load(Acquire).as_ref() }
    }

    /// The only probe that fires here, if it is a return probe, and the instruction is carried out
    /// in its slot.
    ///
    /// # Safety
    /// The same.
    #[inline(always)]
    pub(super) unsafe fn lone_return(&self) -> Option<&ProbeRef<Uretprobe>> {
        // SAFETY: by the contract. Acquire pairs with the Release in `set_probes`.
        unsafe { self.lone_return.load(Acquire).as_ref() }
    }

    /// Says which probes fire here. What is returned must be kept until a grace period is over.
    pub(super) fn set_probes(&self, probes: Option<Box<ProbeList>>) -> Option<Box<ProbeList>> {
        let in_slot = self.displaced.how == How::InSlot;
        let (lone, lone_return) = match probes.as_deref().map(|probes| &probes[..]) {
            Some([UserProbe::Probe(probe)]) if in_slot => (from_ref::<Uprobe>(probe), null()),
            Some([UserProbe::Return(probe)]) if in_slot => (null(), from_ref(probe)),
            _ => (null(), null()),
        };
        // The old ones are in what is returned, and the new ones in what is published, so all live
        // while hits can find them.
        self.lone.store(lone.cast_mut(), Release);
        self.lone_return.store(lone_return.cast_mut(), Release);
        self.probes.replace(probes)
    }

    pub(super) fn is_armed(&self) -> bool {
        self.armed.load(Relaxed)
    }

    pub(super) fn set_armed(&self, armed: bool) {
        self.armed.store(armed, Relaxed);
    }
}

/// The places by their addresses: each where its address says, or at the next free entry after
/// that. At most half of the entries are used.
struct Table {
    /// One less than there are entries.
    mask: u64,
    /// The first of `entries`, for the assembly of a hit.
    first: AtomicPtr<TableEntry>,
    entries: Box<[TableEntry]>,
}

#[repr(C)]
struct TableEntry {
    /// 0: free.
    address: AtomicU64,
    place: AtomicPtr<ProbedPlace>,
}

impl Table {
    fn new(entries: usize) -> Result<Box<Self>, OutOfMemory> {
        let mut all = Vec::new();
        all.try_reserve_exact(entries).map_err(|_| OutOfMemory)?;
        all.resize_with(entries, || TableEntry {
            address: AtomicU64::new(0),
            place: AtomicPtr::new(null_mut()),
        });
        let mut entries = all.into_boxed_slice();
        try_box(Self {
            mask: entries.len() as u64 - 1,
            first: AtomicPtr::new(entries.as_mut_ptr()),
            entries,
        })
    }

    /// Where the search for an address begins. Instructions are a few bytes apart, and functions
    /// begin at multiples of 16.
    #[inline(always)]
    const fn first(address: u64) -> usize {
        (address ^ address >> 4) as usize
    }

    /// The entry of an address, if it has one.
    #[inline(always)]
    fn find(&self, address: u64) -> Option<&TableEntry> {
        let mask = self.entries.len().wrapping_sub(1);
        let mut at = Self::first(address) & mask;
        loop {
            let entry = self.entries.get(at)?;
            // Acquire pairs with the Release in `insert`.
            let found = entry.address.load(Acquire);
            if found == address {
                return Some(entry);
            }
            if found == 0 {
                return None;
            }
            at = at.wrapping_add(1) & mask;
        }
    }

    fn insert(&self, place: &ProbedPlace) {
        let mask = self.entries.len() - 1;
        let mut at = Self::first(place.address) & mask;
        while self.entries[at].address.load(Relaxed) != 0 {
            at = (at + 1) & mask;
        }
        let entry = &self.entries[at];
        entry.place.store(from_ref(place).cast_mut(), Relaxed);
        entry.address.store(place.address, Release);
    }
}

/// Where the assembly of a hit finds what it uses, in bytes.
pub mod layout {
    use core::mem::offset_of;

    use super::{super::probe, ProbedPlace, SpaceProbes, Table, TableEntry, Uprobe};

    pub const TABLE: usize = offset_of!(SpaceProbes, table);
    pub const MASK: usize = offset_of!(Table, mask);
    pub const ENTRIES: usize = offset_of!(Table, first);
    pub const ENTRY_BITS: u32 = size_of::<TableEntry>().trailing_zeros();
    pub const ENTRY_PLACE: usize = offset_of!(TableEntry, place);
    pub const PLACE_LONE: usize = offset_of!(ProbedPlace, lone);
    pub const PLACE_SLOT: usize = offset_of!(ProbedPlace, slot.start);
    pub const PROBE_ACTION: usize = Uprobe::ACTION_OFFSET;
    pub const PROBE_STATE: usize = Uprobe::STATE_OFFSET;
    pub const PROBE_HITS: usize = Uprobe::HITS_OFFSET;
    pub const REGISTERED: u8 = probe::REGISTERED;

    // As the assembly has it.
    const _: () = assert!(1 << ENTRY_BITS == size_of::<TableEntry>());
    const _: () = assert!(offset_of!(TableEntry, address) == 0);
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
    pub(super) start: u64,
    pub(super) next: u64,
    pub(super) end: u64,
}

struct Places {
    /// The table, and those before it, which are half as large each.
    #[expect(clippy::vec_box, reason = "hits have their addresses")]
    tables: Vec<Box<Table>>,
    // In boxes, because the table has their addresses.
    #[expect(clippy::vec_box, reason = "a place stays where it is")]
    all: Vec<Box<ProbedPlace>>,
    area: SlotArea,
}

/// See the module's text.
pub struct SpaceProbes {
    /// The last one of `places`.
    table: AtomicPtr<Table>,
    places: SpinLock<Places>,
    /// The addresses that were given to slots.
    slots_start: AtomicU64,
    slots_end: AtomicU64,
    /// The address of the trampoline; 0 if there is none.
    trampoline: AtomicU64,
    calls: spin::Mutex<Vec<UserCall>>,
    step: spin::Mutex<Option<Step>>,
    /// There is one.
    steps: AtomicBool,
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
            table: AtomicPtr::new(null_mut()),
            places: SpinLock::new(Places {
                tables: Vec::new(),
                all: Vec::new(),
                area: SlotArea {
                    start: 0,
                    next: 0,
                    end: 0,
                },
            }),
            slots_start: AtomicU64::new(0),
            slots_end: AtomicU64::new(0),
            trampoline: AtomicU64::new(0),
            calls: spin::Mutex::new(Vec::new()),
            step: spin::Mutex::new(None),
            steps: AtomicBool::new(false),
        }
    }

    #[inline(always)]
    fn table(&self) -> Option<&Table> {
        // SAFETY: `places` keeps each table for good. Acquire pairs with the Release in `enter`.
        unsafe { self.table.load(Acquire).as_ref() }
    }

    /// The place at `address`.
    #[inline(always)]
    pub(super) fn place(&self, address: u64) -> Option<&ProbedPlace> {
        let entry = self.table()?.find(address)?;
        // SAFETY: the place is in `places` for good, and was stored before the address.
        unsafe { entry.place.load(Relaxed).as_ref() }
    }

    /// Whether the probed instruction at `ip` is the first one of a function. On the hit path.
    #[inline(always)]
    pub(super) fn begins_function(&self, ip: u64) -> bool {
        self.place(ip)
            .is_some_and(|place| place.displaced.begins_function)
    }

    /// Enters a place.
    pub(super) fn enter(&self, place: ProbedPlace) -> Result<(), OutOfMemory> {
        const FIRST: usize = 16;
        let place = try_box(place)?;
        let mut places = self.places.lock();
        places.all.try_reserve(1).map_err(|_| OutOfMemory)?;
        let count = places.all.len() + 1;
        let table = self.table();
        let has_room = table.is_some_and(|table| 2 * count <= table.entries.len());
        if !has_room {
            places.tables.try_reserve(1).map_err(|_| OutOfMemory)?;
            let larger = Table::new((2 * count).next_power_of_two().max(FIRST))?;
            places.all.iter().for_each(|place| larger.insert(place));
            let address = core::ptr::from_ref(&*larger).cast_mut();
            places.tables.push(larger);
            self.table.store(address, Release);
        }
        if let Some(table) = self.table() {
            table.insert(&place);
        }
        places.all.push(place);
        Ok(())
    }

    /// The addresses that are left for slots.
    pub(super) fn area(&self) -> SlotArea {
        self.places.lock().area
    }

    pub(super) fn set_area(&self, area: SlotArea) {
        self.places.lock().area = area;
        self.slots_start.store(area.start, Relaxed);
        self.slots_end.store(area.end, Relaxed);
    }

    /// The address of the trampoline; 0 if there is none.
    #[inline(always)]
    pub(super) fn trampoline(&self) -> u64 {
        self.trampoline.load(Relaxed)
    }

    /// Takes memory for the calls, and notes where they return to. No call is followed yet.
    pub(super) fn set_trampoline(&self, address: u64) -> Result<(), OutOfMemory> {
        let mut calls = Vec::new();
        calls
            .try_reserve_exact(MAX_CALLS)
            .map_err(|_| OutOfMemory)?;
        *self.calls.lock() = calls;
        self.trampoline.store(address, Release);
        Ok(())
    }

    /// Follows a call that begins now. `is_chained`: its return slot has the trampoline, because a
    /// call before it has the same slot. If it has not, calls with that slot are over. The call is
    /// given back if as many are followed as may be.
    pub(super) fn begin_call(&self, call: UserCall, is_chained: bool) -> Result<(), UserCall> {
        let mut calls = self.calls.lock();
        if !is_chained && calls.iter().any(|old| old.slot == call.slot) {
            calls.retain(|old| old.slot != call.slot);
        }
        if calls.len() >= MAX_CALLS {
            return Err(call);
        }
        calls.push(call);
        Ok(())
    }

    /// Takes the call that has returned, now that the stack pointer is `sp`: the newest of those
    /// with the slot below `sp`. A return may also have taken arguments off the stack (`ret n`).
    /// The flag says whether another call has the same slot.
    pub(super) fn end_call(&self, sp: u64) -> Option<(UserCall, bool)> {
        let mut calls = self.calls.lock();
        let is_below = |call: &UserCall| call.slot.wrapping_add(8) == sp;
        let plain = calls.iter().rposition(is_below);
        let index = plain.or_else(|| {
            let near = calls
                .iter()
                .enumerate()
                .filter(|(_, call)| sp.wrapping_sub(call.slot) <= MOST_TAKEN);
            near.max_by_key(|(_, call)| call.slot)
                .map(|(index, _)| index)
        })?;
        let call = match index + 1 == calls.len() {
            true => calls.pop()?,
            false => calls.remove(index),
        };
        let more = calls.iter().rev().any(|other| other.slot == call.slot);
        Some((call, more))
    }

    /// The return slots of the calls that are followed. Returns how many there are.
    pub(super) fn slots(&self, to: &mut [u64; MAX_CALLS]) -> usize {
        let calls = self.calls.lock();
        for (to, call) in to.iter_mut().zip(&*calls) {
            *to = call.slot;
        }
        calls.len()
    }

    /// Drops the calls with the slot at `slot`, which has another return address by now.
    pub(super) fn drop_calls(&self, slot: u64) {
        self.calls.lock().retain(|call| call.slot != slot);
    }

    /// Where the call with the slot at `slot` returns to. `None` if it is not followed.
    pub(super) fn return_address(&self, slot: u64) -> Option<u64> {
        let calls = self.calls.lock();
        // The calls of one slot have the same address.
        let call = calls.iter().rfind(|call| call.slot == slot)?;
        Some(call.return_address)
    }

    pub(super) fn step(&self) -> Option<Step> {
        match self.steps.load(Relaxed) {
            true => *self.step.lock(),
            false => None,
        }
    }

    pub(super) fn set_step(&self, step: Option<Step>) {
        self.steps.store(step.is_some(), Relaxed);
        *self.step.lock() = step;
    }

    /// The place whose slot has `ip`: its address, its instruction and its slot. Any context but
    /// NMI and handlers of the kernel's probes.
    pub(super) fn place_of_slot(&self, ip: u64) -> Option<(u64, Displaced, u64)> {
        let places = self.places.lock();
        let place = places.all.iter().find(|place| place.slot.contains(&ip))?;
        Some((place.address, place.displaced, place.slot.start))
    }

    /// The address of the instruction in whose slot `ip` is; `ip` if it is in none. On the hit
    /// path.
    #[inline(always)]
    pub(super) fn shown_ip(&self, ip: u64) -> u64 {
        if ip < self.slots_start.load(Relaxed) || ip >= self.slots_end.load(Relaxed) {
            return ip;
        }
        let Some(table) = self.table() else {
            return ip;
        };
        for entry in &table.entries {
            // SAFETY: a place that was stored is there for good.
            let place = unsafe { entry.place.load(Acquire).as_ref() };
            if let Some(place) = place
                && ip >= place.slot.start
                && ip < place.slot.end
            {
                return place.address;
            }
        }
        ip
    }

    /// The return address that the program wrote at `slot`, where `found` is now. On the hit path:
    /// the calls may just be changing, and then it is not known.
    #[inline(always)]
    pub(super) fn shown_return_address(&self, slot: u64, found: u64) -> u64 {
        if found != self.trampoline() {
            return found;
        }
        let Some(calls) = self.calls.try_lock() else {
            return found;
        };
        for call in &*calls {
            if call.slot == slot {
                return call.return_address;
            }
        }
        found
    }

    /// Takes over what `parent`, the running task's, has, for a program that is a copy of it and
    /// does not run yet.
    pub(super) fn copy(&self, parent: &Self) -> Result<(), OutOfMemory> {
        if parent.trampoline() != 0 {
            self.set_trampoline(parent.trampoline())?;
        }
        self.set_area(parent.area());
        let count = parent.places.lock().all.len();
        for index in 0..count {
            let copy = {
                let places = parent.places.lock();
                let place = &places.all[index];
                let copy = ProbedPlace::new(place.address, place.displaced, place.slot.clone());
                copy.set_armed(place.is_armed());
                // SAFETY: it is replaced under the registry's lock, which the caller has.
                if let Some(list) = unsafe { place.probes() } {
                    drop(copy.set_probes(Some(try_box(list.clone())?)));
                }
                copy
            };
            self.enter(copy)?;
        }
        let mut calls = self.calls.lock();
        for call in &*parent.calls.lock() {
            push(&mut calls, call.duplicate())?;
        }
        Ok(())
    }

    /// The addresses that have a breakpoint now.
    pub fn armed_places(&self) -> Vec<u64> {
        let places = self.places.lock();
        let armed = places.all.iter().filter(|place| place.is_armed());
        armed.map(|place| place.address).collect()
    }
}

/// Whether a probe of the list fires in the process `pid`.
pub(super) fn fires_in(list: &[UserProbe], pid: i32) -> bool {
    list.iter().any(|probe| probe.common().fires_in(pid))
}
