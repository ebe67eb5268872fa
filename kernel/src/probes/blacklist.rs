//! The text that may not be probed: the code that a hit itself runs through.
//!
//! A probe there would need a hit to handle a hit. The list is not written by hand. It is derived
//! from the linked kernel, once in the boot: it is everything that calls and jumps reach from a few
//! roots, decoded from the text (see [`hit_path`]). It ends where a user's handler is called,
//! because the image does not say which handler that is. It also ends where the hit has been handed
//! on to the kernel, or has ended it.
//!
//! A function has the same fate as its clones, which the compiler makes of it: copies with a suffix
//! in their names, and the instances of a generic function. So one of them may be refused although
//! no hit comes through it. Another version of the compiler may lead a hit there.
//!
//! Only the roots and the functions that switch stacks are written by hand, each with a reason
//! ([`hit_path::rules`]).
//!
//! # Contexts
//! [`init`] once in the boot. [`reason`] anywhere afterwards.

use alloc::vec::Vec;
use core::ops::Range;

use hit_path::{
    Image,
    rules::{KERNEL, ROOTS, STACK_SWITCHERS},
};
use spin::Once;

use crate::symbols::{self, Symbol};

/// A piece of text that may not be probed.
#[derive(Clone, Copy, Debug)]
pub struct BlacklistEntry {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Why not.
    pub reason: &'static str,
}

/// The reason of functions that are refused only because of a clone.
pub const HAS_CLONE: &str = "a hit runs through a clone of it";

static ENTRIES: Once<Vec<BlacklistEntry>> = Once::new();

/// The list, sorted by address. Empty before [`init`].
pub fn entries() -> &'static [BlacklistEntry] {
    ENTRIES.get().map_or(&[], Vec::as_slice)
}

/// Why `addr` may not be probed, if it may not.
pub fn reason(addr: u64) -> Option<&'static str> {
    let list = entries();
    let next = list.partition_point(|entry| entry.start <= addr);
    let entry = list.get(next.checked_sub(1)?)?;
    (addr < entry.end).then_some(entry.reason)
}

/// Derives the list. Symbols are there; no probe is.
pub fn init() {
    let mut list = Vec::new();
    let (start, end) = symbols::entry_text();
    list.push(BlacklistEntry {
        start,
        end,
        reason: "entry from and exit to interrupted code, between saved and live registers",
    });
    for (name, reason) in ROOTS {
        match symbols::lookup_name(name) {
            Ok(symbol) => close(&mut list, symbol, reason),
            Err(error) => panic!("the root of the probes' blacklist is gone: {error}"),
        }
    }
    for (name, _) in STACK_SWITCHERS {
        if let Ok(symbol) = symbols::lookup_name(name) {
            add(&mut list, &symbol, "it switches stacks");
        }
    }
    add_clones(&mut list);
    list.sort_unstable_by_key(|entry| entry.start);
    ENTRIES.call_once(|| list);
}

/// Adds a function. False if it is there already.
fn add(list: &mut Vec<BlacklistEntry>, symbol: &Symbol<'_>, reason: &'static str) -> bool {
    let fresh = !list
        .iter()
        .any(|entry| entry.start <= symbol.start && symbol.start < entry.end);
    if fresh {
        list.push(BlacklistEntry {
            start: symbol.start,
            end: symbol.start + symbol.size,
            reason,
        });
    }
    fresh
}

/// Adds the clones of the functions that are on the list.
fn add_clones(list: &mut Vec<BlacklistEntry>) {
    let mut names: Vec<_> = list
        .iter()
        .filter_map(|entry| symbols::lookup_addr(entry.start))
        .map(|symbol| symbol.name_of_all_clones())
        .collect();
    names.sort_unstable();
    for symbol in symbols::functions() {
        if names.binary_search(&symbol.name_of_all_clones()).is_ok() {
            add(list, &symbol, HAS_CLONE);
        }
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

/// Adds `root` and everything that it reaches.
fn close(list: &mut Vec<BlacklistEntry>, root: Symbol<'_>, reason: &'static str) {
    hit_path::walk(&Running, &KERNEL, root, |function, _| {
        add(list, function, reason)
    });
}
