//! The kernel's file: its bytes, where the sections of the debug information lie, and its symbols.
//!
//! The file is mapped, and a section is a range of its bytes. So a question costs only the pages
//! that its answer is in. Addresses are those of the file.

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    fs::File,
    ops::Range,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::Arc,
};

use gimli::{Abbreviations, EndianSlice, LittleEndian};
use memmap2::Mmap;
use object::{
    Object, ObjectSection, ObjectSegment, ObjectSymbol, SectionKind, SymbolKind,
    read::elf::{ElfFile64, ElfSymbol64},
};

use crate::{Error, hash::hash};

pub type Slice<'a> = EndianSlice<'a, LittleEndian>;
pub type Dwarf<'a> = gimli::Dwarf<Slice<'a>>;
pub type Unit<'a> = gimli::Unit<Slice<'a>>;
pub type Header<'a> = gimli::UnitHeader<Slice<'a>>;
pub type DwarfEntry<'a> = gimli::DebuggingInformationEntry<Slice<'a>>;

/// See the module's text.
pub struct Image {
    bytes: Mmap,
    stamp: u64,
    /// Name, address, and place in the file.
    sections: Vec<(String, u64, Range<usize>)>,
    /// The addresses of code.
    code: Vec<Range<u64>>,
    /// The addresses of the parts that are loaded, and where each begins in the file.
    segments: Vec<(Range<u64>, u64)>,
    /// Where the program begins.
    entry: u64,
    /// The forms of entries, by their offset. They are read for each unit that a question is about,
    /// and many questions are about the same units.
    abbreviations: RefCell<HashMap<usize, Arc<Abbreviations>>>,
}

/// A function of the symbol table.
#[derive(Clone, Debug)]
pub struct Symbol {
    pub name: String,
    pub address: u64,
    pub bytes: u64,
}

impl Image {
    pub fn read(path: &Path) -> Result<Self, Error> {
        let not_read = |error| Error::Read {
            path: path.into(),
            error,
        };
        let opened = File::open(path).map_err(not_read)?;
        let about = opened.metadata().map_err(not_read)?;
        // SAFETY: the file is what a build made. Builds replace such files and do not write into
        // them, so the bytes stay as they are while they are mapped.
        let bytes = unsafe { Mmap::map(&opened) }.map_err(not_read)?;
        let stamp = [
            about.dev(),
            about.ino(),
            about.mtime().cast_unsigned(),
            about.mtime_nsec().cast_unsigned(),
            about.ctime().cast_unsigned(),
            about.ctime_nsec().cast_unsigned(),
        ];
        let stamp = hash(stamp.map(u64::to_le_bytes).as_flattened());
        let not_elf = |found| Error::Format {
            path: path.into(),
            found,
        };
        let file: ElfFile64 = ElfFile64::parse(&*bytes).map_err(|_| not_elf("another file"))?;
        let mut sections = Vec::new();
        let mut code = Vec::new();
        for section in file.sections() {
            let Ok(name) = section.name() else { continue };
            let Some((start, length)) = section.file_range() else {
                continue;
            };
            let (Ok(start), Ok(length)) = (usize::try_from(start), usize::try_from(length)) else {
                continue;
            };
            let Some(end) = start.checked_add(length).filter(|end| *end <= bytes.len()) else {
                return Err(not_elf("one that is cut off"));
            };
            sections.push((name.to_string(), section.address(), start..end));
            if section.kind() == SectionKind::Text {
                let start = section.address();
                code.push(start..start.saturating_add(section.size()));
            }
        }
        let segments = file.segments().map(|segment| {
            let end = segment.address().saturating_add(segment.size());
            (segment.address()..end, segment.file_range().0)
        });
        let segments = segments.collect();
        let entry = file.entry();
        Ok(Self {
            bytes,
            entry,
            stamp,
            sections,
            code,
            segments,
            abbreviations: RefCell::default(),
        })
    }

    /// The unit with that header.
    pub fn unit<'a>(&self, dwarf: &Dwarf<'a>, header: Header<'a>) -> gimli::Result<Unit<'a>> {
        let offset = header.debug_abbrev_offset().0;
        let known = self.abbreviations.borrow().get(&offset).cloned();
        let abbreviations = match known {
            Some(known) => known,
            None => {
                let read = dwarf.abbreviations(&header)?;
                let mut all = self.abbreviations.borrow_mut();
                all.insert(offset, read.clone());
                read
            }
        };
        gimli::Unit::new_with_abbreviations(dwarf, header, abbreviations)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A number that changes when the file is another one or has been written to.
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    /// A section; empty if there is none of that name.
    pub fn section(&self, name: &str) -> &[u8] {
        self.section_at(name).1
    }

    /// A section and its address.
    pub fn section_at(&self, name: &str) -> (u64, &[u8]) {
        self.sections
            .iter()
            .find(|section| section.0 == name)
            .map_or((0, &[]), |(_, address, range)| {
                (*address, &self.bytes[range.clone()])
            })
    }

    /// Whether there is code at an address. Code that the linker threw away is described at others.
    pub fn is_code(&self, address: u64) -> bool {
        self.code.iter().any(|range| range.contains(&address))
    }

    /// The code of the function of so many bytes at an address, as far as its section has it.
    pub fn code(&self, address: u64, bytes: u64) -> &[u8] {
        let code = self.at(address);
        let length = usize::try_from(bytes).unwrap_or_default();
        &code[..length.min(code.len())]
    }

    /// The bytes at an address of the program, to the end of their section.
    pub fn at(&self, address: u64) -> &[u8] {
        for (_, start, range) in &self.sections {
            let bytes = &self.bytes[range.clone()];
            if *start != 0
                && let Some(offset) = address.checked_sub(*start)
                && let Some(rest) = usize::try_from(offset).ok().and_then(|at| bytes.get(at..))
                && !rest.is_empty()
            {
                return rest;
            }
        }
        &[]
    }

    /// Where the program begins.
    pub fn entry(&self) -> u64 {
        self.entry
    }

    /// Where in the file the byte at an address of the program is. Beyond the end of all files if
    /// nothing is loaded there.
    pub fn place_in_file(&self, address: u64) -> u64 {
        let has_it = |segment: &&(Range<u64>, u64)| segment.0.contains(&address);
        let found = self.segments.iter().find(has_it);
        found.map_or(u64::MAX, |(memory, start)| address - memory.start + start)
    }

    /// The debug information.
    pub fn dwarf(&self) -> Dwarf<'_> {
        let load = |id: gimli::SectionId| {
            Ok::<_, core::convert::Infallible>(EndianSlice::new(
                self.section(id.name()),
                LittleEndian,
            ))
        };
        match gimli::Dwarf::load(load) {
            Ok(dwarf) => dwarf,
            Err(never) => match never {},
        }
    }

    /// The functions of the symbol table, by address.
    pub fn symbols(&self) -> Vec<Symbol> {
        let Ok(file) = ElfFile64::<object::Endianness>::parse(&*self.bytes) else {
            return Vec::new();
        };
        let mut found: Vec<_> = file
            .symbols()
            .filter(|symbol| {
                // Symbols of assembly may have no type. They lie in sections of code. A mark at the
                // end of a section has no code.
                let code = symbol.section_index().is_some_and(|index| {
                    file.section_by_index(index).is_ok_and(|section| {
                        let end = section.address().wrapping_add(section.size());
                        section.kind() == SectionKind::Text && symbol.address() < end
                    })
                });
                code && matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Unknown)
                    && symbol.name().is_ok_and(|name| !name.is_empty())
            })
            .collect();
        // A mark of the linker at the start of a section is no other name of the function there.
        let is_mark = |symbol: &ElfSymbol64<'_, '_>| {
            symbol.kind() == SymbolKind::Unknown && symbol.size() == 0
        };
        let functions = found.iter().filter(|symbol| !is_mark(symbol));
        let functions: HashSet<u64> = functions.map(ObjectSymbol::address).collect();
        found.retain(|symbol| !is_mark(symbol) || !functions.contains(&symbol.address()));
        let symbols = found.into_iter().map(|symbol| Symbol {
            name: symbol.name().unwrap_or_default().to_string(),
            address: symbol.address(),
            bytes: symbol.size(),
        });
        let mut symbols: Vec<_> = symbols.collect();
        symbols.sort_by(|a, b| (a.address, &a.name).cmp(&(b.address, &b.name)));
        symbols
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_loaded_is_in_the_file_where_its_section_is() {
        let image = Image::read(&std::env::current_exe().unwrap()).unwrap();
        let loaded = image.sections.iter();
        let loaded = loaded.filter(|(_, address, range)| *address > 0 && !range.is_empty());
        let mut distances = HashSet::new();
        for (name, address, range) in loaded {
            let last = range.len() as u64 - 1;
            for at in [0, last / 2, last] {
                let place = range.start as u64 + at;
                assert_eq!(image.place_in_file(address + at), place, "{name} + {at}");
            }
            distances.insert(address - range.start as u64);
        }
        // A file in which all is where it is loaded would show little.
        assert!(distances.len() > 1, "{distances:?}");
        assert_eq!(image.place_in_file(0x7fff_ffff_0000), u64::MAX);
    }
}
