//! Notes about the kernel's functions, made once the kernel is linked.
//!
//! Each is an [`EntryFacts`]: to probe the entry of a function the kernel need not decode it then.
//! Functions with addresses in the exception table have none, because no jump may be in them
//! (`Platform::may_fault` in the crate `probes`). An entry of that table is two words: an
//! instruction that may fault, and where the kernel goes on then.

use anyhow::{Context, Result};
use elf::{ElfBytes, endian::LittleEndian};
use kallsyms::Table;
use probes::insn::{EntryFacts, FunctionCode};

/// The words from one symbol to another; none if the kernel does not have them.
fn words<'a>(
    symbols: &Table<'_>,
    bytes: impl Fn(u64, u64) -> Option<&'a [u8]>,
    from: &str,
    to: &str,
) -> Vec<u64> {
    let at = |name| symbols.lookup(name).ok().map(|symbol| symbol.start);
    let found = at(from).zip(at(to));
    let bytes = found.and_then(|(from, to)| bytes(from, to.checked_sub(from)?));
    let (words, _) = bytes.unwrap_or_default().as_chunks();
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// The content of the section [`kallsyms::NOTES`] for `kernel`, a linked file with symbols.
///
/// # Errors
/// If it is none.
pub fn of(kernel: &[u8]) -> Result<Vec<u8>> {
    let symbols = Table::read(kernel).context("the kernel's symbols cannot be read")?;
    let elf = ElfBytes::<LittleEndian>::minimal_parse(kernel).context("no ELF file")?;
    let segments: Vec<_> = elf.segments().into_iter().flatten().collect();
    let code = |start: u64, size: u64| {
        segments.iter().find_map(|segment| {
            let from = start.checked_sub(segment.p_vaddr)?;
            let to = from.checked_add(size)?;
            elf.segment_data(segment)
                .ok()?
                .get(from as usize..to as usize)
        })
    };
    let fixups = words(&symbols, code, "__ex_table_start", "__ex_table_end");
    let notes = symbols.functions().flat_map(|function| {
        let may_fault = fixups.iter().any(|at| function.contains(*at));
        let facts = match code(function.start, function.size) {
            Some(code) if !may_fault => {
                EntryFacts::of(&mut FunctionCode::new(code.to_vec(), function.start))
            }
            _ => EntryFacts::UNKNOWN,
        };
        facts.to_bits().to_le_bytes()
    });
    Ok(notes.collect())
}
