//! The kernel's symbols.

use alloc::{format, string::String};

use kernel::symbols;

/// The address of a symbol. Any context: handlers ask, too, so nothing is allocated.
pub fn lookup(name: &str) -> Option<u64> {
    let mut all = symbols::all();
    let found = all.find(|symbol| symbol.name == name);
    found.map(|symbol| symbol.start)
}

/// `symbol+0x4`, for messages.
pub fn describe(addr: u64) -> String {
    match symbols::lookup_addr(addr) {
        Some(symbol) => format!("{}+{:#x}", symbol.name, addr - symbol.start),
        None => format!("{addr:#x}"),
    }
}
