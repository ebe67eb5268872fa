//! The load plan of a program: the headers of a static ELF executable, checked.
//!
//! An [`Executable`] that [`Executable::parse`] returns can be loaded without another check of its
//! numbers:
//!
//! - each segment lies within the addresses that the caller allows, and no two share a page;
//! - a segment's bytes in the file are not more than its bytes in memory, and their range does not
//!   wrap;
//! - no segment is both writable and executable;
//! - the entry point is in an executable segment.
//!
//! Programs are position-dependent and linked statically. A program that needs an interpreter or
//! relocation is refused. Parsing is a pure function of its arguments. It works in any context that
//! may allocate.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::vec::Vec;
use core::{error, fmt, ops::Range};
use elf::{
    ElfBytes,
    abi::{
        EM_X86_64, ET_EXEC, PF_R, PF_W, PF_X, PT_DYNAMIC, PT_INTERP, PT_LOAD, STT_FUNC, STT_OBJECT,
    },
    endian::LittleEndian,
    file::{Class, FileHeader, parse_ident},
    parse::{ParseAt, ParsingTable},
    segment::ProgramHeader,
};
use fallible::push;

/// Unit of protection, in bytes.
const PAGE: u64 = 4096;
/// Size of the file header, in bytes (ELF-64 object file format, figure 2).
const FILE_HEADER_BYTES: usize = 64;
/// Size of its first part, which says how to read the rest.
const IDENT_BYTES: usize = 16;

/// How the program may use the memory of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub read: bool,
    pub write: bool,
    pub execute: bool,
}

/// A part of the program's memory that starts with a part of its file; the rest is zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub access: Access,
    /// Addresses; neither end needs to be at a page's boundary.
    pub memory: Range<u64>,
    /// Offset of its bytes in the file.
    pub file_offset: u64,
    /// How many bytes come from the file.
    pub file_bytes: u64,
}

impl Segment {
    /// Its addresses, widened to whole pages.
    pub fn pages(&self) -> Range<u64> {
        self.memory.start / PAGE * PAGE..self.memory.end.next_multiple_of(PAGE)
    }
}

/// A program that can be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executable {
    pub entry: u64,
    /// The segments by rising address; at least one.
    pub segments: Vec<Segment>,
}

/// Why a file is no program for this kernel. Its errno is ENOEXEC, but for a lack of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The file does not start with a whole, well-formed ELF header.
    NotElf,
    /// It is for another processor, or not an executable.
    WrongMachine,
    /// Its program headers do not lie in the part of the file that was given.
    HeadersOutOfReach,
    /// It wants an interpreter or relocation.
    Dynamic,
    /// A segment's ranges wrap, or its file part is larger than its memory.
    BadSegment,
    /// A segment lies outside the allowed addresses.
    OutOfRange,
    /// Two segments share a page.
    Overlap,
    /// A segment is both writable and executable.
    WritableAndExecutable,
    /// The entry point is in no executable segment.
    BadEntry,
    /// There is no memory for the list of its segments.
    OutOfMemory,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotElf => "not an ELF file: build it for the target x86_64-unknown-none",
            Self::WrongMachine => {
                "not an executable for x86_64: link it as ET_EXEC for that machine"
            }
            Self::HeadersOutOfReach => {
                "its program headers are not at the start of the file: relink it"
            }
            Self::Dynamic => "it is linked dynamically: link it statically, position-dependent",
            Self::BadSegment => "a segment's sizes make no sense: the file is damaged",
            Self::OutOfRange => "a segment lies outside user memory: link it at 0x400000",
            Self::Overlap => "two segments share a page: align each segment to 4096 bytes",
            Self::WritableAndExecutable => {
                "a segment is both writable and executable: separate code from data"
            }
            Self::BadEntry => {
                "its entry point is not in executable memory: see ENTRY in the linker script"
            }
            Self::OutOfMemory => "there is no memory for the list of its segments",
        })
    }
}

impl error::Error for Error {}

/// A function or an object of a program, as its symbol table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// The name in the table: that of a Rust function is mangled.
    pub name: &'a str,
    /// The address of its first byte.
    pub start: u64,
    /// Its bytes; 0 if the table does not say.
    pub size: u64,
}

/// The symbols of one type of the program whose whole file is `file`.
fn symbols(file: &[u8], symbol_type: u8) -> impl Iterator<Item = Symbol<'_>> {
    let tables = ElfBytes::<LittleEndian>::minimal_parse(file)
        .and_then(|elf| elf.symbol_table())
        .unwrap_or(None);
    tables.into_iter().flat_map(move |(symbols, names)| {
        let wanted = symbols
            .into_iter()
            .filter(move |symbol| symbol.st_symtype() == symbol_type && !symbol.is_undefined());
        wanted.filter_map(move |symbol| {
            Some(Symbol {
                name: names.get(symbol.st_name as usize).ok()?,
                start: symbol.st_value,
                size: symbol.st_size,
            })
        })
    })
}

/// The functions of the program whose whole file is `file`. A file without symbols, or with a
/// damaged table of them, has none.
pub fn functions(file: &[u8]) -> impl Iterator<Item = Symbol<'_>> {
    symbols(file, STT_FUNC)
}

/// The same for its objects.
pub fn objects(file: &[u8]) -> impl Iterator<Item = Symbol<'_>> {
    symbols(file, STT_OBJECT)
}

impl Executable {
    /// Checks the headers at the start of a program. `start` holds the file's first bytes, up to a
    /// page of them. Segments must lie in `user`; both ends of it are page boundaries.
    pub fn parse(start: &[u8], user: Range<u64>) -> Result<Self, Error> {
        let header = start.get(..FILE_HEADER_BYTES).ok_or(Error::NotElf)?;
        let (ident, tail) = header.split_at(IDENT_BYTES);
        let ident = parse_ident::<LittleEndian>(ident).map_err(|_| Error::NotElf)?;
        let header = FileHeader::parse_tail(ident, tail).map_err(|_| Error::NotElf)?;
        if header.class != Class::ELF64 || header.e_machine != EM_X86_64 || header.e_type != ET_EXEC
        {
            return Err(Error::WrongMachine);
        }
        let mut segments = Vec::new();
        for header in program_headers(start, &header)? {
            if let Some(segment) = segment(&header, &user)? {
                push(&mut segments, segment).map_err(|_| Error::OutOfMemory)?;
            }
        }
        segments.sort_unstable_by_key(|segment| segment.memory.start);
        if segments
            .windows(2)
            .any(|pair| pair[0].pages().end > pair[1].pages().start)
        {
            return Err(Error::Overlap);
        }
        let entry = header.e_entry;
        if !segments
            .iter()
            .any(|s| s.access.execute && s.memory.contains(&entry))
        {
            return Err(Error::BadEntry);
        }
        Ok(Self { entry, segments })
    }

    /// The address of the code that stands at `offset` of the file; `None` if that byte of the file
    /// is no code.
    pub fn code_address(&self, offset: u64) -> Option<u64> {
        let has_it =
            |s: &&Segment| s.access.execute && offset.wrapping_sub(s.file_offset) < s.file_bytes;
        let segment = self.segments.iter().find(has_it)?;
        Some(segment.memory.start + (offset - segment.file_offset))
    }

    /// The offset in the file of the code at `address`; `None` if no byte of the file is code
    /// there.
    pub fn code_offset(&self, address: u64) -> Option<u64> {
        let has_it =
            |s: &&Segment| s.access.execute && address.wrapping_sub(s.memory.start) < s.file_bytes;
        let segment = self.segments.iter().find(has_it)?;
        Some(segment.file_offset + (address - segment.memory.start))
    }

    /// Where the program's memory ends, rounded up to a page: its heap may start there.
    pub fn end(&self) -> u64 {
        self.segments
            .last()
            .map_or(0, |segment| segment.pages().end)
    }
}

fn program_headers<'a>(
    start: &'a [u8],
    header: &FileHeader<LittleEndian>,
) -> Result<impl Iterator<Item = ProgramHeader> + use<'a>, Error> {
    let entry_bytes = ProgramHeader::size_for(header.class);
    if usize::from(header.e_phentsize) != entry_bytes {
        return Err(Error::NotElf);
    }
    let from = usize::try_from(header.e_phoff).map_err(|_| Error::HeadersOutOfReach)?;
    let table = from
        .checked_add(usize::from(header.e_phnum) * entry_bytes)
        .and_then(|to| start.get(from..to))
        .ok_or(Error::HeadersOutOfReach)?;
    Ok(ParsingTable::new(header.endianness, header.class, table).into_iter())
}

/// Checks one program header; `None` if it describes nothing to load.
fn segment(header: &ProgramHeader, user: &Range<u64>) -> Result<Option<Segment>, Error> {
    match header.p_type {
        PT_INTERP | PT_DYNAMIC => return Err(Error::Dynamic),
        PT_LOAD if header.p_memsz > 0 => {}
        _ => return Ok(None),
    }
    let end = header
        .p_vaddr
        .checked_add(header.p_memsz)
        .ok_or(Error::BadSegment)?;
    header
        .p_offset
        .checked_add(header.p_filesz)
        .ok_or(Error::BadSegment)?;
    if header.p_filesz > header.p_memsz {
        return Err(Error::BadSegment);
    }
    if header.p_vaddr < user.start || end > user.end {
        return Err(Error::OutOfRange);
    }
    let access = Access {
        read: header.p_flags & PF_R != 0,
        write: header.p_flags & PF_W != 0,
        execute: header.p_flags & PF_X != 0,
    };
    if access.write && access.execute {
        return Err(Error::WritableAndExecutable);
    }
    Ok(Some(Segment {
        access,
        memory: header.p_vaddr..end,
        file_offset: header.p_offset,
        file_bytes: header.p_filesz,
    }))
}

#[cfg(test)]
mod tests;
