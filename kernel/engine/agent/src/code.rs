//! Executable memory for programs: the last pages of the region of the probes' slots.
//!
//! ```text
//!   Platform::slots(): slots │ … │ detours │ … │ code of programs (Platform::ACTION_PAGES)
//! ```
//!
//! An address here is in an action, so a CPU that is found here ends no grace period and switches
//! no task (ACTION-1 of [`probes::action`]). A page is executed at one address and written through
//! another, if the kernel gives two, so nothing is writable where it executes.
//!
//! # Invariants
//! CODE-1. A page belongs to one [`ActionCode`] or is free. It is mapped at its first use and
//!     stays.
//! CODE-2. An [`ActionCode`] is dropped when no CPU can be in it: a grace period after its probe
//!     was unregistered. The registry's unregistration waits that long.
//! CODE-3. After the code of a program, in its pages, is the list of its frames, see [`CodeFrame`].
//!     [`CodePage`] leads there. Pages stay mapped, so a reader that comes late reads something
//!     else and no more.
//!
//! # Contexts
//! Taking and giving back: task context, may sleep. [`CodeRegion::code_at`] and
//! [`CodeRegion::frame_at`]: any.
//!
//! # Memory ordering
//! The word of a list is stored with Release after the list, and loaded with Acquire.

use core::{
    marker::PhantomData,
    sync::atomic::{
        AtomicPtr, AtomicU64, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use alloc::vec::Vec;
use fallible::try_vec;
use lock_api::Mutex;
use probes::Platform;

use crate::Agent;

const PAGE_BYTES: usize = 4096;

/// What is known of a page of the region.
pub struct CodePage {
    /// The list of its code's frames: the word where it begins, counted from the start of the
    /// region, in the upper half; the number of words; the page's own number in its code. 0: none.
    list: AtomicU64,
    /// Where it is written. Null before it is mapped.
    alias: AtomicPtr<u8>,
}

impl Default for CodePage {
    fn default() -> Self {
        Self::new()
    }
}

impl CodePage {
    /// A page that is not mapped yet.
    pub const fn new() -> Self {
        Self {
            list: AtomicU64::new(0),
            alias: AtomicPtr::new(core::ptr::null_mut()),
        }
    }
}

/// The fields of [`CodePage::list`] below the first.
const COUNT_SHIFT: u32 = 14;
const PAGE_BITS: u64 = (1 << COUNT_SHIFT) - 1;
/// The most pages of a region, because of these fields.
const MOST_PAGES: usize = 1 << COUNT_SHIFT;

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

/// The region.
pub struct CodeRegion<A: Agent> {
    pages: &'static [CodePage],
    /// Pages below this are mapped.
    mapped: AtomicUsize,
    taken: Mutex<A::RawMutex, Taken>,
    agent: PhantomData<fn(A)>,
}

impl<A: Agent> CodeRegion<A> {
    pub(crate) const fn new(pages: &'static [CodePage]) -> Self {
        assert!(
            pages.len() == A::ACTION_PAGES && pages.len() <= MOST_PAGES,
            "give the agent as many pages as Platform::ACTION_PAGES, at most 16384"
        );
        Self {
            pages,
            mapped: AtomicUsize::new(0),
            taken: Mutex::from_raw(lock_api::RawMutex::INIT, Taken(Vec::new())),
            agent: PhantomData,
        }
    }

    /// Where the region begins.
    #[inline(always)]
    fn start() -> u64 {
        A::slots()
            .end
            .wrapping_sub((A::ACTION_PAGES * PAGE_BYTES) as u64)
    }

    /// The code at `ip`, if it may be that of a program: the bytes there are mapped, for ever. A
    /// wild jump may lead to where no page is. Any context.
    #[inline(always)]
    pub fn code_at(&self, ip: u64) -> Option<[u8; 8]> {
        let mapped = (self.mapped.load(Acquire) * PAGE_BYTES) as u64;
        if ip.wrapping_sub(Self::start()) >= mapped.saturating_sub(8) {
            return None;
        }
        // SAFETY: these bytes are on pages that are mapped, and stay so.
        Some(unsafe { (ip as *const [u8; 8]).read_unaligned() })
    }

    /// Where code of a program has its return address at `ip`. None: no program is there. Any
    /// context.
    pub fn frame_at(&self, ip: u64) -> Option<CodeFrame> {
        self.code_at(ip)?;
        let start = Self::start();
        let page = (ip - start) as usize / PAGE_BYTES;
        let list = self.pages.get(page)?.list.load(Acquire);
        let (first, count) = (list >> 32, (list & 0xffff_ffff) >> COUNT_SHIFT);
        let code = start + ((page as u64) - (list & PAGE_BITS)) * PAGE_BYTES as u64;
        (first..first + count)
            .map(|word| {
                let at = start + word * CodeFrame::BYTES as u64;
                // SAFETY: in a page that was mapped when the list was stored, by CODE-1 and CODE-3.
                CodeFrame::of_packed(unsafe { (at as *const u64).read_volatile() })
            })
            .take_while(|frame| code + u64::from(frame.offset) <= ip)
            .last()
    }

    /// Takes the lowest `count` free pages in a row.
    fn take(&self, count: usize) -> Option<usize> {
        let mut taken = self.taken.lock();
        taken.make_room(self.pages.len())?;
        let mut first = 0;
        while first + count <= self.pages.len() {
            match (first..first + count).rev().find(|page| taken.has(*page)) {
                Some(other) => first = other + 1,
                None => {
                    self.map_below(first + count)?;
                    taken.mark(first..first + count, true);
                    return Some(first);
                }
            }
        }
        None
    }

    /// Maps all pages below `end`. Under the lock of the taken ones.
    fn map_below(&self, end: usize) -> Option<()> {
        let all = (A::slots().end - A::slots().start) as usize / PAGE_BYTES;
        for at in self.mapped.load(Relaxed)..end {
            let page = A::slot_page(all - A::ACTION_PAGES + at)?;
            self.pages[at].alias.store(page.alias, Relaxed);
            // Release: whoever reads the number finds the page.
            self.mapped.store(at + 1, Release);
        }
        Some(())
    }
}

/// The pages that are taken: a bit for each. Empty before the first is.
struct Taken(Vec<u64>);

impl Taken {
    fn make_room(&mut self, pages: usize) -> Option<()> {
        if self.0.is_empty() {
            let words = pages.div_ceil(64);
            let mut bits = try_vec(words).ok()?;
            bits.resize(words, 0);
            self.0 = bits;
        }
        Some(())
    }

    fn has(&self, page: usize) -> bool {
        self.0[page / 64] & 1 << (page % 64) != 0
    }

    fn mark(&mut self, pages: core::ops::Range<usize>, taken: bool) {
        for page in pages {
            let bit = 1 << (page % 64);
            if taken {
                self.0[page / 64] |= bit;
            } else {
                self.0[page / 64] &= !bit;
            }
        }
    }
}

/// Code of a program. Its memory is given back when it is dropped (CODE-2).
pub struct ActionCode<A: Agent> {
    first: usize,
    pages: usize,
    agent: PhantomData<fn(A)>,
}

impl<A: Agent> ActionCode<A> {
    /// Memory for `bytes` bytes of code, filled with breakpoints. None: memory or the region is
    /// used up.
    pub fn new(bytes: usize) -> Option<Self> {
        let pages = bytes.div_ceil(PAGE_BYTES).max(1);
        let first = A::tracing().code.take(pages)?;
        let mut code = Self {
            first,
            pages,
            agent: PhantomData,
        };
        for offset in (0..pages * PAGE_BYTES).step_by(PAGE_BYTES) {
            code.write(offset, &[0xcc; PAGE_BYTES]);
        }
        Some(code)
    }

    /// Where it is executed.
    pub fn start(&self) -> u64 {
        CodeRegion::<A>::start() + (self.first * PAGE_BYTES) as u64
    }

    /// What is known of its pages.
    fn own_pages(&self) -> &'static [CodePage] {
        &A::tracing().code.pages[self.first..self.first + self.pages]
    }

    /// Writes `code` at `offset`, in bytes from the start. No CPU executes it yet.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn write(&mut self, mut offset: usize, code: &[u8]) {
        assert!(
            offset + code.len() <= self.pages * PAGE_BYTES,
            "code runs out of its pages"
        );
        let mut rest = code;
        while !rest.is_empty() {
            let (page, at) = (offset / PAGE_BYTES, offset % PAGE_BYTES);
            let (now, later) = rest.split_at((PAGE_BYTES - at).min(rest.len()));
            let alias = self.own_pages()[page].alias.load(Relaxed);
            // SAFETY: the bytes are in a page of this object's own (CODE-1), which is mapped, and
            // the alias is valid to the end of the page.
            unsafe {
                alias
                    .add(at)
                    .copy_from_nonoverlapping(now.as_ptr(), now.len())
            };
            offset += now.len();
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
        for (page, known) in self.own_pages().iter().enumerate() {
            let list = (first as u64) << 32 | (frames.len() as u64) << COUNT_SHIFT | page as u64;
            known.list.store(list, Release);
        }
    }

    /// Has all CPUs see what was written. Before the first one can execute it. May sleep.
    pub fn publish(&self) {
        <A as Platform>::synchronize_cores();
    }
}

impl<A: Agent> Drop for ActionCode<A> {
    fn drop(&mut self) {
        for page in self.own_pages() {
            page.list.store(0, Release);
        }
        let pages = self.first..self.first + self.pages;
        A::tracing().code.taken.lock().mark(pages, false);
    }
}
