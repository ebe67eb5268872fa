//! A linked kernel as its ELF file, and whether it keeps the rules.

use alloc::{borrow::ToOwned, vec::Vec};
use core::ops::Range;

use elf::{
    ElfBytes,
    abi::{PF_W, PF_X, PT_LOAD, R_X86_64_RELATIVE, SHT_RELA},
    endian::LittleEndian,
};
use kallsyms::{ReadError, Symbol, Table};

use crate::{Functions, Image, Rules, Violation, unlisted_stack_switches, violations};

/// A linked kernel, from its file.
pub(crate) struct File<'a> {
    symbols: Table<'a>,
    /// The parts of the image that stay as they are, text and constants: their addresses and bytes.
    constants: Vec<(u64, &'a [u8])>,
    /// The words that are moved with the image, by address. In the file they are zero.
    moved: Vec<(u64, u64)>,
    stubs: Range<u64>,
}

impl<'a> File<'a> {
    /// Reads a kernel that runs `distance` bytes above its addresses in the file.
    pub(crate) fn read_moved(bytes: &'a [u8], distance: u64) -> Result<Self, ReadError> {
        let symbols = Table::read_moved(bytes, distance)?;
        let elf = ElfBytes::<LittleEndian>::minimal_parse(bytes).map_err(|_| ReadError::NotElf)?;
        let at = |address: u64| address.wrapping_add(distance);
        let segments = elf.segments().into_iter().flatten();
        // A piece of text that is written, such as one that slots are in, makes the linker call all
        // text writable. It is text all the same.
        let stays = |flags| flags & PF_W == 0 || flags & PF_X != 0;
        let constants = segments
            .filter(|segment| segment.p_type == PT_LOAD && stays(segment.p_flags))
            .filter_map(|segment| Some((at(segment.p_vaddr), elf.segment_data(&segment).ok()?)))
            .collect();
        let sections = elf.section_headers().into_iter().flat_map(|all| all.iter());
        let mut moved: Vec<_> = sections
            .filter(|section| section.sh_type == SHT_RELA)
            .filter_map(|section| elf.section_data_as_relas(&section).ok())
            .flatten()
            .filter(|word| word.r_type == R_X86_64_RELATIVE)
            .map(|word| (at(word.r_offset), at(word.r_addend as u64)))
            .collect();
        moved.sort_unstable();
        let bound = |name| symbols.lookup(name).map_or(0, |symbol| symbol.start);
        let stubs = bound("__entry_text_start")..bound("__entry_text_end");
        Ok(Self {
            symbols,
            constants,
            moved,
            stubs,
        })
    }

    /// All symbols.
    pub(crate) fn into_symbols(self) -> Table<'a> {
        self.symbols
    }
}

impl Functions for File<'_> {
    fn functions_named(&self, name: &str) -> Vec<Symbol<'_>> {
        let mut found = self.symbols.all_named(name).unwrap_or_default();
        found.retain(|symbol| symbol.kind.is_text());
        found
    }

    fn functions(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.symbols.functions()
    }
}

impl Image for File<'_> {
    fn symbol_at(&self, address: u64) -> Option<Symbol<'_>> {
        self.symbols.symbol_at(address)
    }

    fn bytes(&self, range: Range<u64>) -> Option<&[u8]> {
        self.constants.iter().find_map(|(start, bytes)| {
            let from = range.start.checked_sub(*start)?;
            let to = range.end.checked_sub(*start)?;
            bytes.get(from as usize..to as usize)
        })
    }

    fn stubs(&self) -> Range<u64> {
        self.stubs.clone()
    }

    fn word(&self, address: u64) -> Option<u64> {
        let moved = self.moved.binary_search_by_key(&address, |(at, _)| *at);
        if let Ok(index) = moved {
            return Some(self.moved[index].1);
        }
        let bytes = self.bytes(address..address.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

/// Checks a linked kernel against `rules`: the closure of the roots, and the stack switches of the
/// entry stubs. The kernel keeps the stubs between `__entry_text_start` and `__entry_text_end`.
/// Returns each violation once.
///
/// # Errors
/// [`ReadError`] if the file is not a linked kernel with symbols.
pub fn check(file: &[u8], rules: &Rules<'_>) -> Result<Vec<Violation>, ReadError> {
    let image = File::read_moved(file, 0)?;
    let mut roots = Vec::new();
    let mut found = Vec::new();
    for (name, _) in rules.roots {
        let named = image.functions_named(name);
        if named.is_empty() {
            found.push(Violation::NoRoot {
                name: (*name).to_owned(),
            });
        }
        roots.extend(named);
    }
    found.extend(violations(&image, rules, roots));
    let functions = image.symbols.functions();
    for stub in functions.filter(|function| image.stubs.contains(&function.start)) {
        found.extend(unlisted_stack_switches(&image, rules, &stub));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::{env, fs};

    /// The file of this test, with its text in a segment that has these flags as well.
    fn with_text(flags: u32) -> Vec<u8> {
        let mut bytes = fs::read(env::current_exe().unwrap()).unwrap();
        let elf = ElfBytes::<LittleEndian>::minimal_parse(&bytes).unwrap();
        let first = elf.ehdr.e_phoff as usize;
        let size = usize::from(elf.ehdr.e_phentsize);
        let segments = elf.segments().unwrap().iter().enumerate();
        let text = |flags: u32| flags & PF_X != 0;
        let places: Vec<(usize, u32)> = segments
            .filter(|(_, segment)| segment.p_type == PT_LOAD && text(segment.p_flags))
            .map(|(number, segment)| (first + number * size + 4, segment.p_flags | flags))
            .collect();
        assert!(!places.is_empty());
        for (at, flags) in places {
            bytes[at..at + 4].copy_from_slice(&flags.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn text_in_a_writable_segment_is_code_all_the_same() {
        let name = "hit_path::file::tests::with_text";
        for flags in [0, PF_W] {
            let bytes = with_text(flags);
            let file = File::read_moved(&bytes, 0).unwrap();
            let function = file.functions_named(name)[0];
            let edges = crate::edges(&file, &function);
            assert!(!edges.targets.is_empty(), "{flags}");
        }
    }
}
