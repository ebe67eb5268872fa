//! The kernel's own symbols, read from the ELF file that the loader has left in memory.
//!
//! Read once in the boot and never changed, so every context may ask.

pub use kallsyms::{Kind, LookupError, Symbol};

use bootloader_api::BootInfo;
use elf::{ElfBytes, endian::LittleEndian};
use kallsyms::Table;
use spin::Once;
use x86_64::PhysAddr;

use crate::mm::paging;

/// The file.
static FILE: Once<&'static [u8]> = Once::new();
static TABLE: Once<Table<'static>> = Once::new();

/// Reads the table. Needs the heap.
pub fn init(info: &BootInfo) {
    let at = paging::phys_to_virt(PhysAddr::new(info.kernel_addr));
    // SAFETY: the loader has left the file there, in memory that is never handed out as usable.
    let file: &'static [u8] =
        unsafe { core::slice::from_raw_parts(at.as_ptr(), info.kernel_len as usize) };
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

/// The symbol that covers `addr`. Allocates nothing.
pub fn lookup_addr(addr: u64) -> Option<Symbol<'static>> {
    TABLE.get()?.symbol_at(addr)
}

/// The bytes of a section of the file, also of one that is not loaded; empty if there is none.
pub fn section(name: &str) -> &'static [u8] {
    FILE.get()
        .and_then(|file| ElfBytes::<LittleEndian>::minimal_parse(file).ok())
        .and_then(|elf| {
            let header = elf.section_header_by_name(name).ok()??;
            elf.section_data(&header).ok()
        })
        .map_or(&[], |(bytes, _)| bytes)
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
