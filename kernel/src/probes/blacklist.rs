//! What may not be probed: the code that a hit itself runs through.
//!
//! A probe there would need a hit to handle a hit. The list is not written by hand but derived, once in the boot, from the
//! linked kernel: the closure of direct calls and jumps from a few [`ROOTS`], decoded from the text. It ends where a user's
//! handler is called, as that is an indirect call, and at the functions of [`ENDS`], where a hit has either been
//! handed on to the kernel or ended the kernel.
//!
//! By hand, with a reason, are only the roots, and [`STACK_SWITCHERS`].
//!
//! # Contexts
//! [`init`] once in the boot. [`reason`] and [`return_reason`] anywhere afterwards.

use alloc::vec::Vec;

use spin::Once;

use probes::insn::Instructions;

use crate::symbols::{self, Symbol};

/// Where the kernel comes to the probes, and why it must not need them there.
const ROOTS: [(&str, &str); 13] = [
    ("kprobe_breakpoint", "a hit begins in it"),
    (
        "kernel::arch::x86_64::traps::do_breakpoint",
        "a hit runs through it",
    ),
    (
        "kernel::arch::x86_64::traps::do_debug",
        "a single step runs through it",
    ),
    (
        "kernel::arch::x86_64::traps::enter_exception",
        "a fault in a probed instruction runs through it",
    ),
    (
        "kernel::arch::x86_64::traps::enter_page_fault",
        "a page fault in a probed instruction runs through it",
    ),
    (
        "kretprobe_trampoline",
        "return-probed functions return to it",
    ),
    (
        "kprobe_post_stub",
        "a hit with a post handler runs through it",
    ),
    (
        "kprobe_detour_at_entry",
        "hits of optimised probes run through copies of it",
    ),
    (
        "kprobe_detour",
        "hits of optimised probes run through copies of it",
    ),
    (
        "kretprobe_detour",
        "hits of optimised return probes run through copies of it",
    ),
    ("kprobe_detour_one", "detours call it"),
    ("kprobe_detour_any", "detours call it"),
    ("jprobe_return", "a jprobe's handler ends in it"),
];

/// Where the closure ends, by the beginnings of names: from here on a hit was none and has been handed on to the kernel, or
/// the kernel is at its end. None of them may be inlined into the code before it.
const ENDS: [&str; 8] = [
    "kernel::arch::x86_64::traps::do_exception",
    "do_page_fault",
    "kernel::arch::x86_64::traps::unclaimed",
    "<kernel::probes::Kernel as probes::platform::Platform>::fatal",
    "<kernel::probes::Kernel as probes::platform::Platform>::orphan_return",
    "core::panicking::",
    "core::fmt::",
    "__rustc::rust_begin_unwind",
];

/// Routines that leave on another stack than they were entered on: a hit in their middle, or on their return, would find
/// neither its frame nor its task.
const STACK_SWITCHERS: [&str; 2] = ["__switch_to", "ret_from_fork"];

/// A piece of text that may not be probed.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// Why not.
    pub reason: &'static str,
}

static ENTRIES: Once<Vec<Entry>> = Once::new();

/// The list, sorted by address. Empty before [`init`].
pub fn entries() -> &'static [Entry] {
    ENTRIES.get().map_or(&[], Vec::as_slice)
}

/// Why `addr` may not be probed, if it may not.
pub fn reason(addr: u64) -> Option<&'static str> {
    let list = entries();
    let next = list.partition_point(|entry| entry.start <= addr);
    let entry = list.get(next.checked_sub(1)?)?;
    (addr < entry.end).then_some(entry.reason)
}

/// Why the return of the function at `addr` may not be probed, if it may not.
pub fn return_reason(addr: u64) -> Option<&'static str> {
    reason(addr)
}

/// Derives the list. Symbols are there; no probe is.
pub fn init() {
    let mut list = Vec::new();
    let (start, end) = symbols::entry_text();
    list.push(Entry {
        start,
        end,
        reason: "entry from and exit to interrupted code, between saved and live registers",
    });
    for name in STACK_SWITCHERS {
        if let Ok(symbol) = symbols::lookup_name(name) {
            add(&mut list, &symbol, "it switches stacks");
        }
    }
    for (name, reason) in ROOTS {
        match symbols::lookup_name(name) {
            Ok(symbol) => close(&mut list, symbol, reason),
            Err(error) => panic!("the root of the probes' blacklist is gone: {error}"),
        }
    }
    list.sort_unstable_by_key(|entry| entry.start);
    ENTRIES.call_once(|| list);
}

/// Adds a function. False if it is there already.
fn add(list: &mut Vec<Entry>, symbol: &Symbol<'_>, reason: &'static str) -> bool {
    let fresh = !list
        .iter()
        .any(|entry| entry.start <= symbol.start && symbol.start < entry.end);
    if fresh {
        list.push(Entry {
            start: symbol.start,
            end: symbol.start + symbol.size,
            reason,
        });
    }
    fresh
}

/// Adds `root` and everything that it reaches by direct calls and jumps.
fn close(list: &mut Vec<Entry>, root: Symbol<'_>, reason: &'static str) {
    let mut open = Vec::from([root]);
    while let Some(symbol) = open.pop() {
        if !add(list, &symbol, reason) {
            continue;
        }
        // SAFETY: a function symbol of the kernel: mapped, readable, and not written before the first probe.
        let bytes =
            unsafe { core::slice::from_raw_parts(symbol.start as *const u8, symbol.size as usize) };
        for target in Instructions::new(bytes, symbol.start)
            .map_while(Result::ok)
            .filter_map(|insn| insn.branch_target())
        {
            if (symbol.start..symbol.start + symbol.size).contains(&target) {
                continue;
            }
            if let Some(reached) = symbols::lookup_addr(target).filter(|reached| !is_end(reached)) {
                open.push(reached);
            }
        }
    }
}

fn is_end(symbol: &Symbol<'_>) -> bool {
    let name = alloc::format!("{}", symbol.demangled());
    ENDS.iter().any(|end| name.starts_with(end))
}
