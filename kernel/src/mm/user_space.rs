//! User memory: the addresses that a program may touch, and the frames behind them.
//!
//! A [`UserSpace`] has three layers. Only the first says what is allowed. Each of the others can be
//! made from the one before it:
//!
//! ```text
//!   regions   addresses that may be touched, and how       set by exec and brk
//!   pages     which frame holds a page's contents;         filled by exec and by faults
//!             shared by the spaces that came from one      (zeros, copies)
//!             by fork
//!   tables    the part that the processor knows            filled by faults;
//!                                                          emptied or protected by fork, brk
//! ```
//!
//! # Invariants
//! SPACE-1. A page is in the tables only with the frame that `pages` has for it, and with no more
//!     rights than its region gives.
//! SPACE-2. A page is writable in the tables only if its frame is in no other space. So a store to
//!     a shared frame faults, and the fault makes a copy first (copy on write).
//! SPACE-3. A frame is freed when the last space that has it lets go of it: `pages` holds it by
//!     [`Arc`], and the tables hold nothing.
//! SPACE-4. Regions do not overlap, start and end at page boundaries, and lie in
//!     [`USER_START`]..[`USER_END`].
//!
//! # Contexts and locks
//! Task context. Each space has one sleeping lock. Faults take it too, so code that holds it must
//! not touch user memory. A space is used by one task, or by none yet. So a changed entry is
//! flushed from the TLB of the current CPU only: a switch to the task on another CPU loads CR3.
//! [`UserSpace::poke`] alone changes the space of another task, which may be running: its caller
//! flushes all CPUs, and keeps the old frames until then. [`UserSpace::bring_in`] waits for
//! nothing, so it may be called where the running program was interrupted.
//!
//! # Running out
//! Programs get no more memory when only [`KERNEL_RESERVE`] frames are free ([`is_memory_short`]):
//! the rest keeps the kernel going. Free memory that the heap holds comes back first. Then a fault
//! ends its task, `fork` and `exec` fail, and files do not grow.

use crate::{
    errno::Errno,
    mm::{
        frame::{self, FRAME_SIZE, Frame},
        heap,
        paging::{AddressSpace, Protection, USER_END},
    },
    sync::Mutex,
    uprobes::space::SpaceProbes,
};
use alloc::{collections::BTreeMap, sync::Arc, vec::Vec};
use core::{
    mem::offset_of,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};
use x86_64::{PhysAddr, VirtAddr, instructions::interrupts};

/// First address that a program may use. Nothing is mapped below it, so a null pointer with a small
/// offset faults.
pub const USER_START: u64 = 0x1_0000;

/// Frames that user memory leaves to the kernel.
pub const KERNEL_RESERVE: usize = 2048;

/// Bytes of a page.
const PAGE: u64 = FRAME_SIZE as u64;

/// Most bytes that a heap may grow to.
const HEAP_MAX: u64 = 64 << 20;

/// The kind of access of an instruction to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    Execute,
}

/// Why a fault cannot be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultError {
    /// No region holds the address.
    Unmapped,
    /// The region does not allow the access.
    Forbidden,
    /// No frame is left for user memory.
    OutOfMemory,
}

#[derive(Clone, Copy)]
struct Region {
    end: u64,
    protection: Protection,
}

impl Region {
    fn permits(self, access: Access) -> bool {
        match access {
            Access::Read => true,
            Access::Write => self.protection == Protection::ReadWrite,
            Access::Execute => self.protection == Protection::ReadExecute,
        }
    }
}

/// Addresses that a part of a file was copied to.
#[derive(Clone)]
struct FilePart {
    /// The number of the file's node.
    file: u64,
    offset: u64,
    memory: Range<u64>,
}

struct Memory {
    /// What came from a file.
    image: Vec<FilePart>,
    /// The areas, by their first address.
    regions: BTreeMap<u64, Region>,
    /// The frames, by the address of the page.
    pages: BTreeMap<u64, Arc<Frame>>,
    tables: AddressSpace,
    /// The heap as `brk` sees it; its end need not be at a page boundary.
    heap: Range<u64>,
}

/// The memory of one user program.
pub struct UserSpace {
    memory: Mutex<Memory>,
    root: PhysAddr,
    probes: SpaceProbes,
    /// The number of the file's node whose program it has; 0: none yet.
    program: AtomicU64,
}

/// Whether programs get no more memory, although the heap has given back what it does not use. Task
/// context, no spinlock held. With interrupts off the heap is not asked.
pub fn is_memory_short() -> bool {
    while frame::free_frames() <= KERNEL_RESERVE {
        // All CPUs are waited for.
        if !interrupts::are_enabled() || !heap::give_back() {
            return true;
        }
    }
    false
}

/// Takes a frame of zeros for user memory.
fn user_frame() -> Result<Arc<Frame>, FaultError> {
    if is_memory_short() {
        return Err(FaultError::OutOfMemory);
    }
    Frame::alloc_zeroed()
        .map(Arc::new)
        .map_err(|_| FaultError::OutOfMemory)
}

/// The pieces of `len` bytes from `address` on that lie in one page each: the page, where in it the
/// piece starts, and its bytes.
fn pieces(address: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = address.saturating_add(len as u64);
    let mut at = address;
    core::iter::from_fn(move || {
        let page = at / PAGE * PAGE;
        let start = at - page;
        let len = (end - at).min(PAGE - start);
        at += len;
        (len > 0).then_some((page, start as usize, len as usize))
    })
}

fn errno(error: FaultError) -> Errno {
    match error {
        FaultError::OutOfMemory => Errno::ENOMEM,
        FaultError::Unmapped | FaultError::Forbidden => Errno::EFAULT,
    }
}

impl UserSpace {
    /// Makes an empty space; ENOMEM without memory.
    pub fn new() -> Result<Self, Errno> {
        if is_memory_short() {
            return Err(Errno::ENOMEM);
        }
        let tables = AddressSpace::new()?;
        Ok(Self {
            root: tables.root(),
            probes: SpaceProbes::new(),
            program: AtomicU64::new(0),
            memory: Mutex::new(Memory {
                image: Vec::new(),
                regions: BTreeMap::new(),
                pages: BTreeMap::new(),
                tables,
                heap: 0..0,
            }),
        })
    }

    /// Physical address of the root table, for CR3.
    pub fn root(&self) -> PhysAddr {
        self.root
    }

    /// Where that is, for the assembly of a hit.
    pub const PROBES_OFFSET: usize = offset_of!(Self, probes);

    /// What the probes know of the program.
    pub fn probes(&self) -> &SpaceProbes {
        &self.probes
    }

    /// Notes that `memory` has the bytes of the file with the node `file` from `offset` on. ENOMEM
    /// without memory.
    pub fn note_file(&self, file: u64, offset: u64, memory: Range<u64>) -> Result<(), Errno> {
        let image = &mut self.memory.lock().image;
        image.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        image.push(FilePart {
            file,
            offset,
            memory,
        });
        Ok(())
    }

    /// Notes which file's program it has, by the number of the node.
    pub fn set_program(&self, file: u64) {
        self.program.store(file, Relaxed);
    }

    /// The number of the node of the file whose program it has; 0: none yet. Any context.
    pub fn program(&self) -> u64 {
        self.program.load(Relaxed)
    }

    /// The address to which the byte at `offset` of the file with the node `file` was copied, if it
    /// is one that allows `access`.
    pub fn address_of(&self, file: u64, offset: u64, access: Access) -> Option<u64> {
        let memory = self.memory.lock();
        memory.image.iter().find_map(|part| {
            let distance = offset.checked_sub(part.offset)?;
            let address = part.memory.start.checked_add(distance)?;
            let is_there = part.file == file
                && part.memory.contains(&address)
                && memory
                    .region(address)
                    .is_some_and(|region| region.permits(access));
            is_there.then_some(address)
        })
    }

    /// Lets the program execute `pages` of code that [`UserSpace::poke`] is to write, above all
    /// that its heap can take. Returns where they are; EINVAL if something else is there.
    pub fn add_code(&self, after: u64, pages: u64) -> Result<Range<u64>, Errno> {
        let mut memory = self.memory.lock();
        let start = match after {
            // One page stays free after the heap.
            0 => memory.heap.start + HEAP_MAX + PAGE,
            after => after,
        };
        let range = start..start + pages * PAGE;
        memory.add_region(range.clone(), Protection::ReadExecute)?;
        Ok(range)
    }

    /// Copies what the program has at `address` into all of `to`. EFAULT if it has nothing there.
    pub fn peek(&self, address: u64, mut to: &mut [u8]) -> Result<(), Errno> {
        let memory = self.memory.lock();
        for (page, start, len) in pieces(address, to.len()) {
            let (piece, rest) = to.split_at_mut(len);
            memory.region(page).ok_or(Errno::EFAULT)?;
            match memory.pages.get(&page) {
                Some(frame) => piece.copy_from_slice(&frame.bytes()[start..start + len]),
                // A page that was not touched yet is one of zeros.
                None => piece.fill(0),
            }
            to = rest;
        }
        Ok(())
    }

    /// Stores `bytes` at `address` of a program that may be running, whatever the protection there
    /// is. A byte is stored at once. A frame that is replaced goes to `replaced`: it must be kept
    /// until no CPU can use it any more ([`crate::arch::smp::flush_tlb_everywhere`]).
    ///
    /// # Errors
    /// EFAULT if nothing is there, ENOMEM; then some of the bytes may have been stored.
    pub fn poke(
        &self,
        address: u64,
        mut bytes: &[u8],
        replaced: &mut Vec<Arc<Frame>>,
    ) -> Result<(), Errno> {
        let mut memory = self.memory.lock();
        replaced.try_reserve(2).map_err(|_| Errno::ENOMEM)?;
        for (page, start, len) in pieces(address, bytes.len()) {
            let (piece, rest) = bytes.split_at(len);
            if let Some(frame) = memory.pages.get(&page)
                && Arc::strong_count(frame) > 1
            {
                replaced.push(frame.clone());
            }
            let frame = memory.own_frame(page).map_err(errno)?;
            frame.bytes_mut()[start..start + len].copy_from_slice(piece);
            bytes = rest;
        }
        Ok(())
    }

    /// Brings the pages of the running program that hold the `len` bytes from `start` on in, if it
    /// may access them so. It waits for nothing, so interrupts may be off; the program itself was
    /// interrupted, or has called the kernel, and holds no lock.
    ///
    /// # Errors
    /// That of the first page; [`FaultError::OutOfMemory`] also if another task looks at this
    /// memory.
    pub fn bring_in(&self, start: u64, len: usize, access: Access) -> Result<(), FaultError> {
        let mut memory = self.memory.try_lock().ok_or(FaultError::OutOfMemory)?;
        let end = start.checked_add(len as u64).ok_or(FaultError::Unmapped)?;
        for page in (start / PAGE * PAGE..end).step_by(FRAME_SIZE) {
            memory.fault(page, access)?;
        }
        Ok(())
    }

    /// Lets the program touch `range`, as zeros at first. EINVAL if it breaks SPACE-4.
    pub fn add_region(&self, range: Range<u64>, protection: Protection) -> Result<(), Errno> {
        self.memory.lock().add_region(range, protection)
    }

    /// Starts an empty heap at `start`, a page boundary.
    pub fn start_heap(&self, start: u64) {
        self.memory.lock().heap = start..start;
    }

    /// Moves the end of the heap to `end`, if that is possible, and returns where it is then.
    pub fn set_heap_end(&self, end: u64) -> u64 {
        let mut memory = self.memory.lock();
        if (memory.heap.start..=memory.heap.start + HEAP_MAX).contains(&end) {
            memory.set_heap_end(end);
        }
        memory.heap.end
    }

    /// Lets `fill` write the initial contents of `range`, which regions cover, whatever their
    /// protection is. It is called for each piece that lies in one page, with the piece and its
    /// distance from the start of the range in bytes. For a space in which no program runs yet.
    pub fn fill(
        &self,
        range: Range<u64>,
        mut fill: impl FnMut(&mut [u8], u64) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut memory = self.memory.lock();
        let mut at = range.start;
        while at < range.end {
            let page = at / PAGE * PAGE;
            let end = range.end.min(page + PAGE);
            let frame = memory.own_frame(page).map_err(errno)?;
            let piece = &mut frame.bytes_mut()[(at - page) as usize..(end - page) as usize];
            fill(piece, at - range.start)?;
            at = end;
        }
        Ok(())
    }

    /// Stores `bytes` at `address` for the program; EFAULT if the program may not write there. For
    /// a space in which no task runs yet.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        let end = address
            .checked_add(bytes.len() as u64)
            .ok_or(Errno::EFAULT)?;
        let pages = address / PAGE * PAGE..end;
        {
            let memory = self.memory.lock();
            let writable = |page| {
                memory
                    .region(page)
                    .is_some_and(|region| region.permits(Access::Write))
            };
            if !pages.step_by(FRAME_SIZE).all(writable) {
                return Err(Errno::EFAULT);
            }
        }
        self.fill(address..end, |piece, at| {
            piece.copy_from_slice(&bytes[at as usize..][..piece.len()]);
            Ok(())
        })
    }

    /// Makes the page at `address` accessible to the program, if this access is allowed. Called for
    /// a fault of the running task, whose space this is.
    // A place that ready programs of the tracer name.
    #[inline(never)]
    pub fn fault(&self, address: u64, access: Access) -> Result<(), FaultError> {
        self.memory.lock().fault(address, access)
    }

    /// Makes a copy for a child process. The two share frames until one of them writes. This must
    /// be the space of the running task, whose pages become read-only.
    pub fn fork(&self) -> Result<Self, Errno> {
        let child = Self::new()?;
        child.set_program(self.program());
        {
            let mut memory = self.memory.lock();
            let Memory {
                image,
                regions,
                pages,
                tables,
                heap,
            } = &mut *memory;
            let mut copy = child.memory.lock();
            copy.image = image.clone();
            copy.regions = regions.clone();
            copy.heap = heap.clone();
            // This keeps SPACE-2 for both: the pages that this task may write to are protected, and
            // the child's tables are empty.
            for page in pages.keys() {
                tables.write_protect(VirtAddr::new(*page));
            }
            copy.pages = pages.clone();
        }
        Ok(child)
    }
}

impl Memory {
    fn region(&self, address: u64) -> Option<Region> {
        let (_, region) = self.regions.range(..=address).next_back()?;
        (address < region.end).then_some(*region)
    }

    fn add_region(&mut self, range: Range<u64>, protection: Protection) -> Result<(), Errno> {
        let aligned = range.start.is_multiple_of(PAGE) && range.end.is_multiple_of(PAGE);
        let inside = USER_START <= range.start && range.start < range.end && range.end <= USER_END;
        let below = self.regions.range(..range.end).next_back();
        if !aligned || !inside || below.is_some_and(|(_, region)| region.end > range.start) {
            return Err(Errno::EINVAL);
        }
        let end = range.end;
        self.regions.insert(range.start, Region { end, protection });
        Ok(())
    }

    fn set_heap_end(&mut self, end: u64) {
        let start = self.heap.start;
        let pages = start..end.next_multiple_of(PAGE);
        let old = self.regions.remove(&start);
        if !pages.is_empty()
            && self
                .add_region(pages.clone(), Protection::ReadWrite)
                .is_err()
        {
            // Another region is in the way: leave the heap as it was.
            if let Some(old) = old {
                self.regions.insert(start, old);
            }
            return;
        }
        let old_end = self.heap.end.next_multiple_of(PAGE);
        for page in (pages.end..old_end).step_by(FRAME_SIZE) {
            // SPACE-1: out of the tables first.
            self.tables.unmap(VirtAddr::new(page));
            self.pages.remove(&page);
        }
        self.heap.end = end;
    }

    /// Returns the frame of `page`, which no other space shares, made or copied if need be.
    fn own_frame(&mut self, page: u64) -> Result<&mut Frame, FaultError> {
        if self.region(page).is_none() {
            return Err(FaultError::Unmapped);
        }
        let frame = match self.pages.entry(page) {
            alloc::collections::btree_map::Entry::Vacant(entry) => entry.insert(user_frame()?),
            alloc::collections::btree_map::Entry::Occupied(entry) => {
                let frame = entry.into_mut();
                if Arc::get_mut(frame).is_none() {
                    let mut copy = user_frame()?;
                    let bytes = Arc::get_mut(&mut copy).map(Frame::bytes_mut);
                    bytes
                        .expect("a new frame is not shared")
                        .copy_from_slice(frame.bytes());
                    // SPACE-1: the old frame goes out of the tables before it may be freed.
                    self.tables.unmap(VirtAddr::new(page));
                    *frame = copy;
                }
                frame
            }
        };
        Ok(Arc::get_mut(frame)
            .expect("not shared: new, copied, or found so; only this space could share it"))
    }

    fn fault(&mut self, address: u64, access: Access) -> Result<(), FaultError> {
        let page = address / PAGE * PAGE;
        let region = self.region(page).ok_or(FaultError::Unmapped)?;
        if !region.permits(access) {
            return Err(FaultError::Forbidden);
        }
        let shared = self
            .pages
            .get(&page)
            .filter(|frame| Arc::strong_count(frame) > 1);
        let (phys, protection) = match shared {
            // Reading does not need a copy. The other owner may let go right now. Then a later
            // store makes a copy that is not needed, which does no harm.
            Some(frame) if access != Access::Write => {
                let protection = match region.protection {
                    Protection::ReadWrite => Protection::Read,
                    other => other,
                };
                (frame.phys(), protection)
            }
            _ => (self.own_frame(page)?.phys(), region.protection),
        };
        // SAFETY: `pages` keeps the frame until it is out of the tables (SPACE-1, SPACE-3). Only
        // `own_frame` makes references into frames, under the lock that is held here, and they end
        // before it is released.
        let mapped = unsafe { self.tables.map(VirtAddr::new(page), phys, protection) };
        mapped.map_err(|_| FaultError::OutOfMemory)
    }
}
