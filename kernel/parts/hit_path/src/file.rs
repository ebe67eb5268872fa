//! A linked kernel as its ELF file, and whether it keeps the rules.

use alloc::{borrow::ToOwned, vec::Vec};
use core::ops::Range;

use elf::{ElfBytes, abi::PF_W, abi::PT_LOAD, endian::LittleEndian};
use kallsyms::{ReadError, Symbol, Table};

use crate::{Image, Rules, Violation, unlisted_stack_switches, violations};

/// See the module's text.
struct File<'a> {
    symbols: Table<'a>,
    /// The read-only parts of the image: their addresses and their bytes.
    constants: Vec<(u64, &'a [u8])>,
    stubs: Range<u64>,
}

impl<'a> File<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, ReadError> {
        let symbols = Table::read(bytes)?;
        let elf = ElfBytes::<LittleEndian>::minimal_parse(bytes).map_err(|_| ReadError::NotElf)?;
        let segments = elf.segments().into_iter().flatten();
        let constants = segments
            .filter(|segment| segment.p_type == PT_LOAD && segment.p_flags & PF_W == 0)
            .filter_map(|segment| Some((segment.p_vaddr, elf.segment_data(&segment).ok()?)))
            .collect();
        let bound = |name| symbols.lookup(name).map_or(0, |symbol| symbol.start);
        let stubs = bound("__entry_text_start")..bound("__entry_text_end");
        Ok(Self {
            symbols,
            constants,
            stubs,
        })
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
}

/// Checks a linked kernel against `rules`: the closure of the roots, and the stack switches of the
/// entry stubs. The kernel keeps the stubs between `__entry_text_start` and `__entry_text_end`.
/// Returns each violation once.
///
/// # Errors
/// [`ReadError`] if the file is not a linked kernel with symbols.
pub fn check(file: &[u8], rules: &Rules<'_>) -> Result<Vec<Violation>, ReadError> {
    let image = File::read(file)?;
    let mut roots = Vec::new();
    let mut found = Vec::new();
    for (name, _) in rules.roots {
        match image.symbols.lookup(name) {
            Ok(root) => roots.push(root),
            Err(_) => found.push(Violation::NoRoot {
                name: (*name).to_owned(),
            }),
        }
    }
    found.extend(violations(&image, rules, roots));
    let functions = image.symbols.functions();
    for stub in functions.filter(|function| image.stubs.contains(&function.start)) {
        found.extend(unlisted_stack_switches(&image, rules, &stub));
    }
    Ok(found)
}
