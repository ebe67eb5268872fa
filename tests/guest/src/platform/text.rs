//! The kernel's text, and places in it for code that tests make.
//!
//! The code in a place is followed by breakpoints: the function there is as long as the
//! place.

use alloc::vec::Vec;
use core::{
    ops::Range,
    ptr, slice,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use probes::kprobe::flags::OPTIMIZED;

use super::PROBES;
pub use crate::glue::text as range;
use crate::{
    glue::{synchronize_cores, text_alias},
    platform::code_places::code_places,
};

/// Bytes of a page.
const PAGE: u64 = 4096;
const INT3: u8 = 0xcc;

/// Bytes of a place.
pub const PLACE_BYTES: u64 = 256;
/// How many there are.
const PLACES: u64 = 64;

code_places!("suite_places", align: 256, count: PLACES, bytes: PLACE_BYTES);

unsafe extern "C" {
    static suite_places: [u8; 0];
}

/// The kernel's text in words of eight bytes; the last ones may be missing.
pub fn words() -> &'static [u64] {
    let range = range();
    let count = (range.end - range.start) as usize / 8;
    // SAFETY: kernel text begins at a multiple of eight, is mapped and readable for ever, and is
    // only changed where no test looks meanwhile.
    unsafe { slice::from_raw_parts(range.start as *const u64, count) }
}

/// A value that is another one after text has changed, most likely.
pub fn stamp() -> u64 {
    words().iter().fold(0, |sum, word| add(sum, *word))
}

fn add(sum: u64, word: u64) -> u64 {
    let sum = sum.rotate_left(5).wrapping_add(word);
    sum.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Like [`stamp`], wherever jumps lead: one that was taken back and made again leads to another
/// detour. Waits for the registry.
pub fn digest() -> u64 {
    let mut jumps = Vec::new();
    PROBES.for_each(|listed| {
        if listed.probe.flags() & OPTIMIZED != 0 {
            jumps.push(listed.probe.addr());
        }
    });
    let starts = range().step_by(8);
    starts.zip(words()).fold(0, |sum, (start, word)| {
        let mut bytes = word.to_le_bytes();
        for jump in &jumps {
            (jump + 1..jump + 5)
                .filter(|at| (start..start + 8).contains(at))
                .for_each(|at| bytes[(at - start) as usize] = 0);
        }
        add(sum, u64::from_le_bytes(bytes))
    })
}

/// A number that stands for all text.
pub type Image = u64;

/// All text as it is now, to be compared.
pub fn image() -> Image {
    stamp()
}

/// Text as it is now.
pub fn read(addr: u64, len: usize) -> Vec<u8> {
    let bytes = addr..addr + len as u64;
    // SAFETY: kernel text is mapped and readable for ever.
    bytes
        .map(|at| unsafe { (at as *const u8).read_volatile() })
        .collect()
}

/// How many bytes of the places are in use; code of one test stays where it is until the test is
/// over.
static USED: AtomicU64 = AtomicU64::new(0);

/// The addresses of all places.
pub fn places() -> Range<u64> {
    let start = (&raw const suite_places).addr() as u64;
    start..start + PLACES * PLACE_BYTES
}

/// A place that has not been given out since the test began.
pub fn free_place() -> u64 {
    let used = USED.fetch_add(PLACE_BYTES, Relaxed);
    assert!(used < PLACES * PLACE_BYTES, "all places are taken");
    places().start + used
}

/// Makes `code` at `start` what the function there begins with, until [`remove`].
pub fn place(start: u64, code: &[u8]) {
    let mut bytes = [INT3; PLACE_BYTES as usize];
    bytes[..code.len()].copy_from_slice(code);
    fill(start, &bytes);
}

/// Takes what is at `start` out again.
pub fn remove(start: u64) {
    fill(start, &[INT3; PLACE_BYTES as usize]);
}

/// Stores `bytes` in a place. They are not executed now.
pub fn fill(addr: u64, bytes: &[u8]) {
    let places = places();
    assert!(places.contains(&addr) && bytes.len() as u64 <= places.end - addr);
    assert!(
        addr % PAGE + bytes.len() as u64 <= PAGE,
        "places are within pages"
    );
    let alias = text_alias(addr);
    // SAFETY: the alias of live text is writable to the end of its page, and no CPU executes it.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), alias, bytes.len()) };
    // They may have fetched the old code.
    synchronize_cores();
}

/// Forgets all places. No code is in use.
pub fn clear() {
    USED.store(0, Relaxed);
}
