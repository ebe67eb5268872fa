//! Executable memory and its writable aliases.
//!
//! A [`Region`] is a place in the binary's zero-initialised data, so that it is within 2 GiB of all
//! text, over which a memory file is mapped to be executed; a second mapping of the same file,
//! elsewhere, is where it is written. The binary's own text is written through `/proc/self/mem`,
//! which gives the process its own copy of the page and leaves it executable and not writable.

use std::{
    fs::File,
    ops::Range,
    os::{fd::FromRawFd, unix::fs::FileExt},
    sync::{
        OnceLock,
        atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed},
    },
};

use probes::{
    insn::{EntryFacts, FunctionCode},
    platform::{SlotPage, Symbol, Text},
};

use super::{SLOT_PAGES, TEXT_WRITES, symbols};

/// Bytes of a page.
pub const PAGE: usize = 4096;

#[repr(C, align(4096))]
struct Place<const BYTES: usize>([u8; BYTES]);

/// See the module's text.
pub struct Region {
    start: fn() -> u64,
    bytes: usize,
    alias: AtomicPtr<u8>,
}

macro_rules! region {
    ($bytes:expr) => {{
        static PLACE: Place<{ $bytes }> = Place([0; $bytes]);
        // In `.bss`, and never read or written as a Rust object.
        Region {
            start: || (&raw const PLACE) as u64,
            bytes: $bytes,
            alias: AtomicPtr::new(std::ptr::null_mut()),
        }
    }};
}

/// Room for 32,768 slots. Half are for detours, and a probe whose instruction is single-stepped
/// takes two.
pub static SLOTS: Region = region!(512 * PAGE);
/// Code that tests make at run time. Its last page is not mapped.
pub static SCRATCH: Region = region!(65 * PAGE);

impl Region {
    /// Where it is executed.
    pub fn range(&self) -> Range<u64> {
        let start = (self.start)();
        start..start + self.bytes as u64
    }

    /// Page number `index`.
    pub fn page(&self, index: usize) -> Option<SlotPage> {
        (index < self.bytes / PAGE).then(|| SlotPage {
            exec: (self.start)() + (index * PAGE) as u64,
            // SAFETY: inside the second mapping, which is as long.
            alias: unsafe { self.alias.load(Relaxed).add(index * PAGE) },
        })
    }

    /// Fills `addr` and the bytes after it. No CPU executes them now.
    pub fn fill(&self, addr: u64, code: &[u8]) {
        let range = self.range();
        assert!(range.contains(&addr) && code.len() as u64 <= range.end - addr);
        let offset = (addr - range.start) as usize;
        // SAFETY: inside the writable mapping, by the assertion.
        unsafe {
            let to = self.alias.load(Relaxed).add(offset);
            to.copy_from_nonoverlapping(code.as_ptr(), code.len());
        }
    }

    fn set_up(&self) {
        let at = std::ptr::with_exposed_provenance_mut((self.start)() as usize);
        // SAFETY: the fixed mapping replaces pages that only this region knows, and that nothing
        // uses yet; the other one goes where there is room.
        unsafe {
            let file = libc::memfd_create(c"code".as_ptr(), libc::MFD_CLOEXEC);
            assert!(file >= 0 && libc::ftruncate(file, self.bytes as i64) == 0);
            let map = |at, protection, flags| {
                libc::mmap(
                    at,
                    self.bytes,
                    protection,
                    flags | libc::MAP_SHARED,
                    file,
                    0,
                )
            };
            let exec = map(at, libc::PROT_READ | libc::PROT_EXEC, libc::MAP_FIXED);
            assert_eq!(exec, at);
            let alias = map(std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE, 0);
            assert_ne!(alias, libc::MAP_FAILED);
            self.alias.store(alias.cast(), Relaxed);
            libc::close(file);
        }
    }
}

static MEMORY: OnceLock<File> = OnceLock::new();

/// Maps the regions and opens the process's memory. Once.
pub fn set_up() {
    SLOTS.set_up();
    SCRATCH.set_up();
    let last = std::ptr::with_exposed_provenance_mut(SCRATCH.range().end as usize - PAGE);
    // SAFETY: the last page of the region, which nothing uses.
    assert_eq!(unsafe { libc::mprotect(last, PAGE, libc::PROT_NONE) }, 0);
    // SAFETY: opens a file.
    let memory = unsafe { libc::open(c"/proc/self/mem".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    assert!(memory >= 0, "these tests write text through /proc/self/mem");
    // SAFETY: just opened, and nothing else has it.
    MEMORY.get_or_init(|| unsafe { File::from_raw_fd(memory) });
}

/// Stores one byte of text.
pub fn write(addr: u64, byte: u8) {
    if SCRATCH.range().contains(&addr) {
        return SCRATCH.fill(addr, &[byte]);
    }
    let memory = MEMORY.get().expect("set up before the first probe");
    memory
        .write_all_at(&[byte], addr)
        .expect("text can be written");
}

/// Reads text as it is now.
pub fn read(addr: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let memory = MEMORY.get().expect("set up before the first probe");
    memory
        .read_exact_at(&mut bytes, addr)
        .expect("text can be read");
    bytes
}

/// All text of the binary, piece by piece.
pub type Image = Vec<(u64, Vec<u8>)>;

/// A copy of all text of the binary.
pub fn image() -> Image {
    symbols::text_sections()
        .into_iter()
        .map(|range| {
            (
                range.start,
                read(range.start, (range.end - range.start) as usize),
            )
        })
        .collect()
}

/// A value that is another one after text was written.
pub fn stamp() -> u32 {
    TEXT_WRITES.load(Relaxed)
}

/// The same: here no jump may lead elsewhere and do the same.
pub fn digest() -> u32 {
    stamp()
}

/// Where slots can be.
pub fn slots() -> Range<u64> {
    SLOTS.range()
}

/// Lets the probes have `pages` pages of slots at most, those that they have included.
pub fn limit_slot_pages(pages: usize) {
    SLOT_PAGES.store(pages, Relaxed);
}

/// Bytes of a place for code that tests make at run time.
pub const PLACE_BYTES: u64 = 256;

/// How much of the region is in use; code of one test stays where it is until the test is over.
static USED: AtomicU64 = AtomicU64::new(0);

/// The addresses of all places.
pub fn places() -> Range<u64> {
    SCRATCH.range()
}

/// Where the last byte of a place ends that is mapped.
pub fn end_of_places() -> u64 {
    SCRATCH.range().end - PAGE as u64
}

/// A place that no code has had since the boot.
pub fn free_place() -> u64 {
    let start = SCRATCH.range().start + USED.fetch_add(PLACE_BYTES, Relaxed);
    assert!(start + PLACE_BYTES < end_of_places(), "the region is full");
    start
}

/// Makes `code` at `start` a function of its own, until [`remove`]. Facts are known of it, other
/// than of the binary's functions.
pub fn place(start: u64, code: &[u8]) {
    SCRATCH.fill(start, code);
    symbols::add(Symbol {
        start,
        size: code.len() as u64,
        text: Text::Kernel,
        exported: true,
        entry: EntryFacts::of(&mut FunctionCode::new(code.to_vec(), start)),
    });
}

/// Takes the function at `start` back.
pub fn remove(start: u64) {
    symbols::remove(start);
}

/// Stores `bytes` in a place. No CPU executes them now.
pub fn fill(addr: u64, bytes: &[u8]) {
    SCRATCH.fill(addr, bytes);
}

/// Forgets all places. No code is in use.
pub fn clear() {
    USED.store(0, Relaxed);
}
