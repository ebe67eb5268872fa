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
//! SPACEPROBES-3. The step belongs to the one task that runs the program. Only it touches it. So
//!     nobody ever waits for its lock. The calls have invariants of their own.
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
use fallible::try_box;

use super::{
    calls::Calls,
    common::{Common, NOBODY},
    probe::{ProbeRef, Uprobe, Uretprobe, UserProbe},
    published::Published,
};
use crate::{
    mm::shared::{OutOfMemory, Shared, try_vec},
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
    /// What is common of the only one of them, where the instruction is carried out in its slot;
    /// else [`NOBODY`]. It says what serves a hit.
    served_by: AtomicPtr<Common>,
    /// That probe, in one of these two.
    lone: AtomicPtr<Uprobe>,
    lone_return: AtomicPtr<ProbeRef<Uretprobe>>,
    /// The breakpoint is there.
    armed: AtomicBool,
}

impl ProbedPlace {
    /// A place without probes and breakpoint.
    pub(super) fn new(address: u64, displaced: Displaced, slot: Range<u64>) -> Self {
        Self {
            address,
            displaced,
            slot,
            probes: Published::none(),
            served_by: AtomicPtr::new((&raw const NOBODY).cast_mut()),
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
        let probes_here = probes.as_deref().map(|probes| &probes[..]);
        let (lone, lone_return) = match probes_here {
            Some([UserProbe::Probe(probe)]) if in_slot => (from_ref::<Uprobe>(probe), null()),
            Some([UserProbe::Return(probe)]) if in_slot => (null(), from_ref(probe)),
            _ => (null(), null()),
        };
        let served_by = match probes_here {
            Some([probe]) if in_slot => probe.common(),
            _ => &NOBODY,
        };
        // The old ones are in what is returned, and the new ones in what is published, so all live
        // while hits can find them.
        self.served_by
            .store(from_ref(served_by).cast_mut(), Release);
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
    entries: Vec<TableEntry>,
}

/// The table of a program without probes: its first entry, which the assembly reads, is free.
static NO_PLACES: Table = Table {
    mask: 0,
    first: AtomicPtr::new((&raw const NO_PLACE).cast_mut()),
    entries: Vec::new(),
};
static NO_PLACE: TableEntry = TableEntry {
    address: AtomicU64::new(0),
    place: AtomicPtr::new(null_mut()),
};

#[repr(C)]
struct TableEntry {
    /// 0: free.
    address: AtomicU64,
    place: AtomicPtr<ProbedPlace>,
}

impl Table {
    fn new(entries: usize) -> Result<Box<Self>, OutOfMemory> {
        let mut all = try_vec(entries)?;
        all.resize_with(entries, || TableEntry {
            address: AtomicU64::new(0),
            place: AtomicPtr::new(null_mut()),
        });
        try_box(Self {
            mask: all.len() as u64 - 1,
            first: AtomicPtr::new(all.as_mut_ptr()),
            entries: all,
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

    use super::{super::calls::layout as calls, ProbedPlace, SpaceProbes, Table, TableEntry};

    pub const TABLE: usize = offset_of!(SpaceProbes, table);
    pub const TRAMPOLINE: usize = offset_of!(SpaceProbes, trampoline);
    pub const NEXT_CALL: usize = offset_of!(SpaceProbes, calls) + calls::NEXT;
    pub const END_OF_CALLS: usize = offset_of!(SpaceProbes, calls) + calls::END;
    pub const MASK: usize = offset_of!(Table, mask);
    pub const ENTRIES: usize = offset_of!(Table, first);
    pub const ENTRY_BITS: u32 = size_of::<TableEntry>().trailing_zeros();
    pub const ENTRY_PLACE: usize = offset_of!(TableEntry, place);
    pub const PLACE_SERVED_BY: usize = offset_of!(ProbedPlace, served_by);
    pub const PLACE_SLOT: usize = offset_of!(ProbedPlace, slot.start);

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

/// No address of a program. A breakpoint there would leave 0 as its ip.
pub(super) const NO_TRAMPOLINE: u64 = u64::MAX;

/// See the module's text.
pub struct SpaceProbes {
    /// The last one of `places`.
    table: AtomicPtr<Table>,
    places: SpinLock<Places>,
    /// The addresses that were given to slots.
    slots_start: AtomicU64,
    slots_end: AtomicU64,
    /// The address of the trampoline, or [`NO_TRAMPOLINE`].
    trampoline: AtomicU64,
    pub(super) calls: Calls,
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
            table: AtomicPtr::new((&raw const NO_PLACES).cast_mut()),
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
            trampoline: AtomicU64::new(NO_TRAMPOLINE),
            calls: Calls::new(),
            step: spin::Mutex::new(None),
            steps: AtomicBool::new(false),
        }
    }

    #[inline(always)]
    fn table(&self) -> &Table {
        // SAFETY: `places` keeps each table for good, and the first one is a static. Acquire pairs
        // with the Release in `enter`.
        unsafe { &*self.table.load(Acquire) }
    }

    /// The place at `address`.
    #[inline(always)]
    pub(super) fn place(&self, address: u64) -> Option<&ProbedPlace> {
        let entry = self.table().find(address)?;
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
        let has_room = 2 * count <= self.table().entries.len();
        if !has_room {
            places.tables.try_reserve(1).map_err(|_| OutOfMemory)?;
            let larger = Table::new((2 * count).next_power_of_two().max(FIRST))?;
            places.all.iter().for_each(|place| larger.insert(place));
            let address = core::ptr::from_ref(&*larger).cast_mut();
            places.tables.push(larger);
            self.table.store(address, Release);
        }
        self.table().insert(&place);
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

    /// The address of the trampoline, or [`NO_TRAMPOLINE`].
    #[inline(always)]
    pub(super) fn trampoline(&self) -> u64 {
        self.trampoline.load(Relaxed)
    }

    /// Takes memory for the calls, and notes where they return to. No call is followed yet.
    pub(super) fn set_trampoline(&self, address: u64) -> Result<(), OutOfMemory> {
        self.calls.prepare()?;
        self.trampoline.store(address, Release);
        Ok(())
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
        self.displaced_at(ip).map_or(ip, |place| place.address)
    }

    /// Where the program goes on after the instruction that has touched memory and left `ip`: if
    /// that is in a slot, after the instruction of the slot. If that is a call, the function is
    /// meant to have returned. On the hit path.
    #[inline(always)]
    pub(super) fn ip_after(&self, ip: u64) -> u64 {
        self.displaced_at(ip)
            .map_or(ip, |place| place.address + u64::from(place.displaced.len))
    }

    /// The place in whose slot `ip` is.
    #[inline(always)]
    fn displaced_at(&self, ip: u64) -> Option<&ProbedPlace> {
        if ip < self.slots_start.load(Relaxed) || ip >= self.slots_end.load(Relaxed) {
            return None;
        }
        for entry in &self.table().entries {
            // SAFETY: a place that was stored is there for good.
            let place = unsafe { entry.place.load(Acquire).as_ref() };
            if let Some(place) = place
                && ip >= place.slot.start
                && ip < place.slot.end
            {
                return Some(place);
            }
        }
        None
    }

    /// The return address that the program wrote at `slot`, where `found` is now. On the hit path:
    /// the calls may just be changing, and then it is not known.
    #[inline(always)]
    pub(super) fn shown_return_address(&self, slot: u64, found: u64) -> u64 {
        if found != self.trampoline() {
            return found;
        }
        self.calls.return_address(slot).unwrap_or(found)
    }

    /// Takes over what `parent`, the running task's, has, for a program that is a copy of it and
    /// does not run yet.
    pub(super) fn copy(&self, parent: &Self) -> Result<(), OutOfMemory> {
        if parent.trampoline() != NO_TRAMPOLINE {
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
        self.calls.copy(&parent.calls);
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
