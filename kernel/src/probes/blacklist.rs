//! The text that may not be probed: the code that a hit itself runs through.
//!
//! A probe there would need a hit to handle a hit. The list is not written by hand. It is derived
//! from the linked kernel, once in the boot: it is everything that calls and jumps reach from a few
//! roots, decoded from the text (see [`hit_path`]). It ends where a user's handler is called,
//! because the image does not say which handler that is. It also ends where the hit has been handed
//! on to the kernel, or has ended it.
//!
//! Only the roots and the functions that switch stacks are written by hand, each with a reason
//! ([`hit_path::rules`]).
//!
//! # Contexts
//! [`init`] once in the boot. [`reason`] anywhere afterwards.

use alloc::vec::Vec;
use core::ops::Range;

pub use hit_path::blacklist::HAS_CLONE;
use hit_path::{Blacklist, Functions, Image, blacklist::RefusedText, rules::KERNEL};
use spin::Once;

use crate::symbols::{self, Symbol};

static LIST: Once<Blacklist> = Once::new();

/// The list, sorted by address. Empty before [`init`].
pub fn entries() -> &'static [RefusedText] {
    LIST.get().map_or(&[], Blacklist::entries)
}

/// Why `addr` may not be probed, if it may not.
pub fn reason(addr: u64) -> Option<&'static str> {
    LIST.get()?.reason(addr)
}

/// Derives the list. Symbols are there; no probe is.
pub fn init() {
    match Blacklist::of_image(&Running, &KERNEL) {
        Ok(list) => {
            LIST.call_once(|| list);
        }
        Err(error) => panic!("no blacklist for the probes: {error}"),
    }
}

/// The running kernel, before its first probe.
struct Running;

impl Image for Running {
    fn symbol_at(&self, address: u64) -> Option<Symbol<'_>> {
        symbols::lookup_addr(address)
    }

    fn bytes(&self, range: Range<u64>) -> Option<&[u8]> {
        // Each request lies in one symbol, or is a word that the linker has filled in.
        let len = range.end.checked_sub(range.start)?;
        let known = symbols::is_constant(range.start) && symbols::is_constant(range.end - 1);
        // SAFETY: the range lies between the first and the last address of the image's text and
        // constants, which are mapped, readable, and not written before the first probe.
        known
            .then(|| unsafe { core::slice::from_raw_parts(range.start as *const u8, len as usize) })
    }

    fn stubs(&self) -> Range<u64> {
        let (start, end) = symbols::entry_text();
        start..end
    }
}

impl Functions for Running {
    fn functions_named(&self, name: &str) -> Vec<Symbol<'_>> {
        symbols::all_named(name)
    }

    fn functions(&self) -> impl Iterator<Item = Symbol<'_>> {
        /// They live longer than the image that lends them.
        fn lent<'a>(symbol: Symbol<'static>) -> Symbol<'a> {
            symbol
        }
        symbols::functions().map(lent)
    }
}
