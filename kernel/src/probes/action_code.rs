//! Executable memory for actions: the last pages of the text pool.
//!
//! ```text
//!   TEXT_POOL: slots │ … │ detours │ … │ action code (PAGES pages)
//! ```
//!
//! An address here is in an action, so a CPU that is found here ends no grace period and switches
//! no task (ACTION-1 of [`probes::action`]). A page is executed at one address and written through
//! another, so nothing is writable where it executes.
//!
//! # Invariants
//! CODE-1. A page belongs to one [`ActionCode`] or is free. Its frame is mapped at its first use
//!     and stays.
//! CODE-2. An [`ActionCode`] is dropped when no CPU can be in it: a grace period after its probe
//!     was unregistered. The registry's unregistration waits that long.
//!
//! CODE-3. After the code of an action, in its pages, is the list of its frames, see [`CodeFrame`].
//!     [`LISTS`] leads there. Pages stay mapped, so a reader that comes late reads something else
//!     and no more.
//!
//! # Contexts
//! Taking and giving back: task context, may sleep. [`code_at`] and [`frame_at`]: any.
//!
//! # Memory ordering
//! A word of [`LISTS`] is stored with Release after the list, and loaded with Acquire.

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{self, Acquire, Release},
};

use x86_64::VirtAddr;

use crate::{
    mm::{frame::Frame, paging},
    probes::text_poke,
    sync::Mutex,
};

/// How many pages the region has: 64 MiB.
pub const PAGES: usize = 16_384;
const PAGE_BYTES: usize = 4096;
const START: u64 = paging::TEXT_POOL_END - (PAGES * PAGE_BYTES) as u64;

/// Pages below this have frames.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// The code at `ip`, if it may be that of an action: the bytes there are mapped, for ever. A wild
/// jump may lead to where no page is. Any context.
#[inline(always)]
pub fn code_at(ip: u64) -> Option<[u8; 8]> {
    let mapped = (MAPPED.load(Ordering::Acquire) * PAGE_BYTES) as u64;
    if ip.wrapping_sub(START) >= mapped.saturating_sub(8) {
        return None;
    }
    // SAFETY: these bytes are on pages that are mapped, and stay so.
    Some(unsafe { (ip as *const [u8; 8]).read_unaligned() })
}

/// Where code of an action has its return address, from an offset in the code on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeFrame {
    /// The place, in bytes from the start of the [`ActionCode`].
    pub offset: u32,
    /// Whether the return address is found by `rbp`. Otherwise it is by `rsp`.
    pub by_bp: bool,
    /// How far above that register it is, in bytes.
    pub bytes: u16,
    /// How far below the return address `rbp` is saved, in bytes; 0: it has not changed.
    pub saved_bp: u16,
}

impl CodeFrame {
    /// Bytes of a packed one.
    pub const BYTES: usize = 8;

    fn packed(self) -> u64 {
        u64::from(self.offset) << 32
            | u64::from(self.by_bp) << 31
            | u64::from(self.saved_bp & 0x7fff) << 16
            | u64::from(self.bytes)
    }

    const fn of_packed(word: u64) -> Self {
        Self {
            offset: (word >> 32) as u32,
            by_bp: word >> 31 & 1 != 0,
            bytes: word as u16,
            saved_bp: (word >> 16) as u16 & 0x7fff,
        }
    }
}

/// For each page the list of its code: the word where it begins, counted from the start of the
/// region, in the upper half; the number of words; the page's own number in its code. 0: none.
static LISTS: [AtomicU64; PAGES] = [const { AtomicU64::new(0) }; PAGES];
/// The fields of a word of [`LISTS`] below the first.
const COUNT_SHIFT: u32 = 14;
const PAGE_BITS: u64 = (1 << COUNT_SHIFT) - 1;

/// Where code of an action has its return address at `ip`. None: no action is there. Any context.
pub fn frame_at(ip: u64) -> Option<CodeFrame> {
    code_at(ip)?;
    let page = (ip - START) as usize / PAGE_BYTES;
    let list = LISTS.get(page)?.load(Acquire);
    let (first, count) = (list >> 32, (list & 0xffff_ffff) >> COUNT_SHIFT);
    let code = START + ((page as u64) - (list & PAGE_BITS)) * PAGE_BYTES as u64;
    (first..first + count)
        .map(|word| {
            let at = START + word * CodeFrame::BYTES as u64;
            // SAFETY: in a page that was mapped when the list was stored, by CODE-1 and CODE-3.
            CodeFrame::of_packed(unsafe { (at as *const u64).read_volatile() })
        })
        .take_while(|frame| code + u64::from(frame.offset) <= ip)
        .last()
}

/// The pages of the region.
struct Region {
    /// One bit for each page: taken.
    taken: [u64; PAGES / 64],
}

static REGION: Mutex<Region> = Mutex::new(Region {
    taken: [0; PAGES / 64],
});

impl Region {
    fn is_taken(&self, page: usize) -> bool {
        self.taken[page / 64] & 1 << (page % 64) != 0
    }

    fn mark(&mut self, pages: core::ops::Range<usize>, taken: bool) {
        for page in pages {
            let bit = 1 << (page % 64);
            if taken {
                self.taken[page / 64] |= bit;
            } else {
                self.taken[page / 64] &= !bit;
            }
        }
    }

    /// Takes the lowest `count` free pages in a row.
    fn take(&mut self, count: usize) -> Option<usize> {
        let mut first = 0;
        while first + count <= PAGES {
            match (first..first + count)
                .rev()
                .find(|page| self.is_taken(*page))
            {
                Some(taken) => first = taken + 1,
                None => {
                    // Changed under the lock of the region only.
                    let mut mapped = MAPPED.load(Ordering::Relaxed);
                    while mapped < first + count {
                        let address = VirtAddr::new(START + (mapped * PAGE_BYTES) as u64);
                        paging::map_kernel_rx(address, Frame::alloc_zeroed().ok()?).ok()?;
                        mapped += 1;
                        // Release: whoever reads the number finds the page.
                        MAPPED.store(mapped, Ordering::Release);
                    }
                    self.mark(first..first + count, true);
                    return Some(first);
                }
            }
        }
        None
    }
}

/// Code of an action. Its memory is given back when it is dropped (CODE-2).
pub struct ActionCode {
    first: usize,
    pages: usize,
}

impl ActionCode {
    /// Memory for `bytes` bytes of code, filled with breakpoints. None: memory or the region is
    /// used up.
    pub fn new(bytes: usize) -> Option<Self> {
        let pages = bytes.div_ceil(PAGE_BYTES).max(1);
        let first = REGION.lock().take(pages)?;
        let mut code = Self { first, pages };
        for offset in (0..pages * PAGE_BYTES).step_by(PAGE_BYTES) {
            code.write(offset, &[0xcc; PAGE_BYTES]);
        }
        Some(code)
    }

    /// Where it is executed.
    pub fn start(&self) -> u64 {
        START + (self.first * PAGE_BYTES) as u64
    }

    /// Writes `code` at `offset`, in bytes from the start. No CPU executes it yet.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn write(&mut self, offset: usize, code: &[u8]) {
        assert!(
            offset + code.len() <= self.pages * PAGE_BYTES,
            "code runs out of its pages"
        );
        let mut at = self.start() + offset as u64;
        let mut rest = code;
        while !rest.is_empty() {
            let room = PAGE_BYTES - at as usize % PAGE_BYTES;
            let (now, later) = rest.split_at(room.min(rest.len()));
            let alias = paging::text_alias(VirtAddr::new(at));
            // SAFETY: the bytes are in a page of this object's own (CODE-1), which is mapped, and
            // the alias is valid to the end of the page.
            unsafe { alias.copy_from_nonoverlapping(now.as_ptr(), now.len()) };
            at += now.len() as u64;
            rest = later;
        }
    }

    /// Writes the list of frames, which ascend, at `offset`, a multiple of 8 after the code. Once.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn describe(&mut self, offset: usize, frames: &[CodeFrame]) {
        for (frame, at) in frames.iter().zip((offset..).step_by(CodeFrame::BYTES)) {
            self.write(at, &frame.packed().to_le_bytes());
        }
        let first = (self.first * PAGE_BYTES + offset) / CodeFrame::BYTES;
        for page in 0..self.pages {
            let list = (first as u64) << 32 | (frames.len() as u64) << COUNT_SHIFT | page as u64;
            LISTS[self.first + page].store(list, Release);
        }
    }

    /// Has all CPUs see what was written. Before the first one can execute it. May sleep.
    pub fn publish(&self) {
        text_poke::synchronize_cores();
    }
}

impl Drop for ActionCode {
    fn drop(&mut self) {
        for list in &LISTS[self.first..self.first + self.pages] {
            list.store(0, Release);
        }
        REGION
            .lock()
            .mark(self.first..self.first + self.pages, false);
    }
}
