//! Physical frames of 4 KiB, and their owners.
//!
//! One bitmap covers memory up to the end of the highest region that is usable or the loader's. A
//! set bit is a free frame. The bitmap lives in frames of its own, and is reached through the
//! physical map, like all physical memory.
//!
//! # Invariants
//! FRAME-1. A frame is in one of three states. It is free in the bitmap. Or it is owned by exactly
//!     one [`Frame`], or by the code that took its address out of one ([`Frame::into_phys`]). Or it
//!     is never handed out: it is not usable, the bitmap's own, frame 0 (so that a null address is
//!     never valid), or the start-up page of the other CPUs ([`start_up_page`]).
//! FRAME-2. Dropping a [`Frame`] frees it. Freeing a free frame panics.
//!
//! Any context but NMI and probe handlers: one spinlock, no waiting. When memory is out, allocation
//! fails and changes nothing.

use crate::{
    errno::Errno,
    mm::{allocation_faults, phys_map::phys_to_virt},
    sync::SpinLock,
};
use bootloader_api::info::{MemoryRegion, MemoryRegionKind};
use core::{
    fmt,
    mem::ManuallyDrop,
    ops::Range,
    slice,
    sync::atomic::{AtomicU64, Ordering},
};
use frame_bitmap::FrameBitmap;
use x86_64::PhysAddr;

/// Bytes in a frame and in a page.
pub const FRAME_SIZE: usize = 4096;

/// No frame is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of memory; start the guest with more of it (--memory)")
    }
}

impl From<OutOfMemory> for Errno {
    fn from(_: OutOfMemory) -> Self {
        Self::ENOMEM
    }
}

/// A frame that belongs to the holder of this value alone.
pub struct Frame(PhysAddr);

impl Frame {
    /// Takes any free frame, with the contents that its last owner left.
    pub fn alloc() -> Result<Self, OutOfMemory> {
        Self::alloc_below(u64::MAX)
    }

    /// Takes a free frame filled with zeros.
    pub fn alloc_zeroed() -> Result<Self, OutOfMemory> {
        let mut frame = Self::alloc()?;
        frame.bytes_mut().fill(0);
        Ok(frame)
    }

    /// Takes a free frame that a 32-bit address reaches.
    pub fn alloc_below_4_gib() -> Result<Self, OutOfMemory> {
        Self::alloc_below(1 << 32)
    }

    fn alloc_below(limit: u64) -> Result<Self, OutOfMemory> {
        if allocation_faults::refuses() {
            return Err(OutOfMemory);
        }
        let number = FRAMES
            .lock()
            .take(limit as usize / FRAME_SIZE)
            .ok_or(OutOfMemory)?;
        allocation_faults::taken(FRAME_SIZE);
        Ok(Self(PhysAddr::new((number * FRAME_SIZE) as u64)))
    }

    /// Where the frame is.
    pub fn phys(&self) -> PhysAddr {
        self.0
    }

    /// Its contents, through the physical map.
    pub fn bytes(&self) -> &[u8; FRAME_SIZE] {
        // SAFETY: the physical map covers all memory, and by FRAME-1 no other code writes here
        // during the borrow.
        unsafe { &*phys_to_virt(self.0).as_ptr() }
    }

    /// Its contents, through the physical map.
    pub fn bytes_mut(&mut self) -> &mut [u8; FRAME_SIZE] {
        // SAFETY: as in `bytes`, and the borrow is exclusive.
        unsafe { &mut *phys_to_virt(self.0).as_mut_ptr() }
    }

    /// Gives the ownership up; [`Frame::from_phys`] takes it back.
    pub fn into_phys(self) -> PhysAddr {
        ManuallyDrop::new(self).0
    }

    /// Takes the ownership of the frame at `phys` back.
    ///
    /// # Safety
    /// 1. `phys` came out of [`Frame::into_phys`], or lies in memory that nothing uses any more.
    /// 2. No one else takes it back.
    pub unsafe fn from_phys(phys: PhysAddr) -> Self {
        Self(phys)
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        allocation_faults::given_back(FRAME_SIZE);
        FRAMES.lock().give(self.0.as_u64() as usize / FRAME_SIZE);
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({:#x})", self.0)
    }
}

static FRAMES: SpinLock<FrameBitmap<'static>> = SpinLock::new(FrameBitmap::empty());

/// Physical address of the page where the other CPUs start in real mode.
static START_UP_PAGE: AtomicU64 = AtomicU64::new(0);

/// How many frames are free.
pub fn free_frames() -> usize {
    FRAMES.lock().free()
}

/// The same; none if the lock is held.
pub(super) fn try_free_frames() -> Option<usize> {
    Some(FRAMES.try_lock()?.free())
}

/// The page below 1 MiB that is kept for starting the other CPUs, if there is one.
pub fn start_up_page() -> Option<PhysAddr> {
    match START_UP_PAGE.load(Ordering::Relaxed) {
        0 => None,
        address => Some(PhysAddr::new(address)),
    }
}

/// The whole frames inside the usable `regions`, except frame 0.
fn usable(regions: &[MemoryRegion]) -> impl Iterator<Item = Range<usize>> + Clone {
    regions
        .iter()
        .filter(|region| region.kind == MemoryRegionKind::Usable)
        .map(|region| {
            let start = region.start.div_ceil(FRAME_SIZE as u64).max(1) as usize;
            start..region.end as usize / FRAME_SIZE
        })
        .filter(|frames| !frames.is_empty())
}

/// Takes over the memory that the firmware and the loader left. The regions may come in any order.
/// Call once, after [`super::phys_map::init`].
///
/// # Panics
/// If no region can hold the bitmap.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn init(regions: &[MemoryRegion]) {
    const REAL_MODE_END: usize = 0xa0000 / FRAME_SIZE;
    let usable = usable(regions);
    // The bitmap covers the loader's memory too, because a part of it comes back (see `init_text`).
    let ours = |kind| {
        matches!(
            kind,
            MemoryRegionKind::Usable | MemoryRegionKind::Bootloader
        )
    };
    let end = regions
        .iter()
        .filter(|region| ours(region.kind))
        .map(|region| region.end)
        .max();
    let frames = end.unwrap_or(0) as usize / FRAME_SIZE;
    let start_up = usable
        .clone()
        .map(|frames| frames.start)
        .min()
        .filter(|&frame| frame < REAL_MODE_END);
    let words = frame_bitmap::words_for(frames);
    let bitmap_frames = (words * size_of::<u64>()).div_ceil(FRAME_SIZE);
    let bitmap_start = usable
        .clone()
        .filter(|frames| frames.start >= REAL_MODE_END && frames.len() >= bitmap_frames)
        .map(|frames| frames.start)
        .next()
        .expect("the memory map has a usable region for the frame bitmap");
    let bitmap_phys = PhysAddr::new((bitmap_start * FRAME_SIZE) as u64);
    // SAFETY: the frames are usable memory that nothing else uses, and they stay reserved below.
    let bitmap: &'static mut [u64] =
        unsafe { slice::from_raw_parts_mut(phys_to_virt(bitmap_phys).as_mut_ptr(), words) };
    let mut bitmap = FrameBitmap::new(bitmap);
    let reserved = |frame: usize| {
        Some(frame) == start_up || (bitmap_start..bitmap_start + bitmap_frames).contains(&frame)
    };
    for frame in usable.flatten().filter(|&frame| !reserved(frame)) {
        if frame < REAL_MODE_END {
            // The loader began here. An emulator looks at each store to a page whose code it has
            // translated, until all of that is overwritten: a counter there made hits slow.
            let phys = PhysAddr::new((frame * FRAME_SIZE) as u64);
            // SAFETY: the frame is usable memory that nothing else uses.
            unsafe {
                phys_to_virt(phys)
                    .as_mut_ptr::<u8>()
                    .write_bytes(0, FRAME_SIZE);
            }
        }
        bitmap.give(frame);
    }
    let phys = (start_up.unwrap_or(0) * FRAME_SIZE) as u64;
    START_UP_PAGE.store(phys, Ordering::Relaxed);
    *FRAMES.lock() = bitmap;
}
