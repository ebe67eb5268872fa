//! What a kernel answers the probes about its code, from its own ELF file: names, functions, and
//! what may not be probed.
//!
//! # Contexts
//! [`Symbols::of_file`] allocates; once, before the first probe. A look-up: task context. All else
//! anywhere.

use alloc::string::String;
use core::fmt;

use elf::{ElfBytes, endian::LittleEndian};
use fallible::{OutOfMemory, written};
use kallsyms::{Candidates, LookupError, Table};
use probes::{
    Code, ProbeError,
    insn::EntryFacts,
    platform::{Symbol, Text},
};

use crate::{Blacklist, Rules, blacklist::BlacklistError, file::File};

/// See the module's text. [`probes::start`] takes it, or it is what
/// [`Platform::code`](probes::Platform::code) gives.
pub struct Symbols<'a> {
    table: Table<'a>,
    refused: Blacklist,
    build_id_notes: &'a [u8],
    distance: u64,
}

impl<'a> Symbols<'a> {
    /// Reads the kernel's own ELF file, as [`Blacklist::of_file`] does, with the same rules.
    ///
    /// # Errors
    /// [`BlacklistError`].
    pub fn of_file(
        file: &'a [u8],
        distance: u64,
        own: &Rules<'static>,
    ) -> Result<Self, BlacklistError> {
        let image = File::read_moved(file, distance).map_err(BlacklistError::File)?;
        let refused = Blacklist::of_image(&image, own)?;
        Ok(Self::with(file, distance, image.into_symbols(), refused))
    }

    fn with(file: &'a [u8], distance: u64, table: Table<'a>, refused: Blacklist) -> Self {
        Self {
            table,
            refused,
            build_id_notes: build_id_notes(file).unwrap_or_default(),
            distance,
        }
    }

    /// All symbols.
    pub fn table(&self) -> &Table<'a> {
        &self.table
    }
}

impl Code for Symbols<'_> {
    /// # Errors
    /// [`ProbeError::UnknownSymbol`] with the names that were perhaps meant,
    /// [`ProbeError::AmbiguousSymbol`], [`ProbeError::OutOfMemory`].
    fn lookup(&self, name: &str) -> Result<u64, ProbeError> {
        match self.table.lookup(name) {
            Ok(symbol) => Ok(symbol.start),
            Err(error) => Err(lookup_error(error)),
        }
    }

    fn symbol_at(&self, addr: u64) -> Option<Symbol> {
        let symbol = self.table.symbol_at(addr)?;
        let (text, entry) = if symbol.kind.is_text() {
            (Text::Kernel, EntryFacts::from_bits(symbol.note))
        } else {
            (Text::No, EntryFacts::UNKNOWN)
        };
        Some(Symbol {
            start: symbol.start,
            size: symbol.size,
            text,
            exported: symbol.exported,
            entry,
        })
    }

    fn refused(&self, addr: u64) -> Option<&'static str> {
        self.refused.reason(addr)
    }

    /// Empty if the linker was not told to number the file (`--build-id`).
    fn build_id_notes(&self) -> &[u8] {
        self.build_id_notes
    }

    fn slide(&self) -> u64 {
        self.distance
    }
}

fn build_id_notes(file: &[u8]) -> Option<&[u8]> {
    let elf = ElfBytes::<LittleEndian>::minimal_parse(file).ok()?;
    let notes = elf.section_header_by_name(".note.gnu.build-id").ok()??;
    Some(elf.section_data(&notes).ok()?.0)
}

/// The error of a registration whose symbol was not found.
pub fn lookup_error(error: LookupError<'_>) -> ProbeError {
    let told = match error {
        LookupError::NoTable => return ProbeError::NotReady,
        LookupError::OutOfMemory => Err(OutOfMemory),
        LookupError::Ambiguous { name, candidates } => written(&Candidates(&candidates))
            .map(|candidates| ProbeError::AmbiguousSymbol { name, candidates }),
        LookupError::Unknown { name, nearest } => {
            hint(&nearest).map(|hint| ProbeError::UnknownSymbol { name, hint })
        }
    };
    told.unwrap_or(ProbeError::OutOfMemory)
}

fn hint(nearest: &[kallsyms::Symbol<'_>]) -> Result<String, OutOfMemory> {
    let (before, after) = match nearest {
        [] => ("", "it"),
        _ => ("did you mean ", "? It"),
    };
    let list = Demangled(nearest);
    written(&format_args!(
        "{before}{list}{after} may have been inlined: then probe a caller of it"
    ))
}

/// Shows the demangled names of symbols, with commas between.
struct Demangled<'a, 's>(&'a [kallsyms::Symbol<'s>]);

impl fmt::Display for Demangled<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, symbol) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{}", symbol.demangled())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::{env, format, fs};

    /// Without what is refused.
    fn of(file: &[u8], distance: u64) -> Symbols<'_> {
        let table = Table::read_moved(file, distance).unwrap();
        Symbols::with(file, distance, table, Blacklist::default())
    }

    #[test]
    fn a_file_answers_what_the_probes_ask() {
        let file = fs::read(env::current_exe().unwrap()).unwrap();
        let symbols = of(&file, 0x1000);
        let name = "hit_path::symbols::lookup_error";
        let start = symbols.lookup(name).unwrap();
        assert_eq!(symbols.table().lookup(name).unwrap().start, start);
        let symbol = symbols.symbol_at(start + 1).unwrap();
        assert_eq!(
            (symbol.start, symbol.text, symbol.exported),
            (start, Text::Kernel, false)
        );
        assert_eq!(symbols.refused(start), None);
        let error = symbols
            .lookup("hit_path::symbols::lookup_erorr")
            .unwrap_err();
        let hint = format!("did you mean {name}");
        assert!(format!("{error}").contains(&hint), "{error}");
        for instance in [generic::<u8>, generic::<[u64; 9]>] {
            core::hint::black_box(instance as fn() -> usize)();
        }
        let error = symbols.lookup("hit_path::symbols::tests::generic");
        let is_told = matches!(error, Err(ProbeError::AmbiguousSymbol { .. }));
        assert!(is_told, "{error:?}");
    }

    #[inline(never)]
    fn generic<T>() -> usize {
        size_of::<T>()
    }

    /// A note begins with the length of its name, which is "GNU" with its NUL.
    #[test]
    fn the_notes_are_those_of_the_linker() {
        let file = fs::read(env::current_exe().unwrap()).unwrap();
        let symbols = of(&file, 0);
        assert_eq!(symbols.build_id_notes()[..4], 4_u32.to_le_bytes());
    }
}
