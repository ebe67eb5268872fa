//! The kernel's own symbols, read from the ELF file that the loader has left in memory.
//!
//! They are read once in the boot and never changed, so every context may ask. Before that there
//! are no symbols.

pub use kallsyms::{Candidates, LookupError, Symbol, SymbolKind};

use alloc::vec::Vec;
use core::{fmt, ops::Range};
use kallsyms::Table;
use spin::Once;

/// The file.
static FILE: Once<&'static [u8]> = Once::new();
static TABLE: Once<Table<'static>> = Once::new();

/// Reads the table from the kernel's ELF file. Needs the heap.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn init(file: &'static [u8]) {
    FILE.call_once(|| file);
    match Table::read(file) {
        Ok(table) => {
            TABLE.call_once(|| table);
        }
        Err(error) => crate::pr_err!("kallsyms: {error}"),
    }
}

/// The symbol of that name: plain, mangled or demangled.
///
/// # Errors
/// [`LookupError`].
pub fn lookup_name(name: &str) -> Result<Symbol<'static>, LookupError<'static>> {
    TABLE.get().ok_or(LookupError::NoTable)?.lookup(name)
}

/// All symbols of that name, by address: the instances of a generic function share one. Empty if
/// there are none, or no memory.
pub fn all_named(name: &str) -> Vec<Symbol<'static>> {
    let table = TABLE.get();
    table
        .and_then(|table| table.all_named(name).ok())
        .unwrap_or_default()
}

/// The symbol that covers `addr`. Allocates nothing.
pub fn lookup_addr(addr: u64) -> Option<Symbol<'static>> {
    TABLE.get()?.symbol_at(addr)
}

/// The bytes of a section of the file, loaded or not; empty if there is no such section.
pub fn section(name: &str) -> &'static [u8] {
    FILE.get()
        .and_then(|file| kallsyms::section(file, name))
        .unwrap_or_default()
}

/// All functions, by address: one symbol for each. Any context.
pub fn functions() -> impl Iterator<Item = Symbol<'static>> {
    TABLE.get().into_iter().flat_map(Table::functions)
}

/// All symbols, by address. Any context.
pub fn all() -> impl Iterator<Item = Symbol<'static>> {
    TABLE.get().into_iter().flat_map(Table::iter)
}

/// Prints an address as Linux does: `symbol+0xoffset/0xsize`, or as a number if there is no symbol.
/// Any context.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    addr: u64,
    /// An address inside the code that is meant.
    code: u64,
}

impl Address {
    /// The address of an instruction, or of data.
    pub const fn of_instruction(addr: u64) -> Self {
        Self { addr, code: addr }
    }

    /// The address to which a call returns. It belongs to the function that contains the call. That
    /// matters if the call never returns, and another function begins after it.
    pub const fn of_return(addr: u64) -> Self {
        Self {
            addr,
            code: addr.wrapping_sub(1),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match lookup_addr(self.code) {
            Some(symbol) => {
                let offset = self.addr - symbol.start;
                write!(f, "{symbol}+{offset:#x}/{:#x}", symbol.size)
            }
            None => write!(f, "{:#x}", self.addr),
        }
    }
}

/// Whether `addr` is in the kernel's text, that of the boot included. Any context.
pub fn is_text(addr: u64) -> bool {
    unsafe extern "C" {
        static __init_text_start: u8;
        static __init_text_end: u8;
        static __text_start: u8;
        static __text_end: u8;
    }
    let between =
        |start: *const u8, end: *const u8| (start.addr() as u64..end.addr() as u64).contains(&addr);
    between(&raw const __text_start, &raw const __text_end)
        || between(&raw const __init_text_start, &raw const __init_text_end)
}

/// The pages of the kernel's statics that may be written.
pub fn data() -> Range<u64> {
    unsafe extern "C" {
        static __data_start: u8;
        static __data_end: u8;
    }
    let [start, end] = [&raw const __data_start, &raw const __data_end].map(|at| at.addr() as u64);
    start..end.next_multiple_of(4096)
}

/// Whether `addr` is in the part of the kernel's image that is never written: constants and text,
/// also that of the boot. Any context.
pub fn is_constant(addr: u64) -> bool {
    unsafe extern "C" {
        static __rodata_start: u8;
        static __text_end: u8;
    }
    ((&raw const __rodata_start).addr() as u64..(&raw const __text_end).addr() as u64)
        .contains(&addr)
}

/// The bounds of the entry stubs.
pub fn entry_text() -> (u64, u64) {
    unsafe extern "C" {
        static __entry_text_start: u8;
        static __entry_text_end: u8;
    }
    (
        (&raw const __entry_text_start) as u64,
        (&raw const __entry_text_end) as u64,
    )
}
