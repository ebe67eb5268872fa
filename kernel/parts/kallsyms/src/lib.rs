#![doc = include_str!("../README.md")]
//! The symbols of a linked kernel, read from its own ELF file: names to addresses and addresses to
//! names.
//!
//! Names stay where they are, in the file's string table. The table adds one entry of 24 bytes for
//! each symbol, sorted by address, and an index sorted by name.
//!
//! # Symbols
//! A symbol is a function, object or untyped label that is defined in a section of the running
//! image. An assembly label without a size reaches to the next symbol or to the end of its section.
//! If it lies inside a symbol that has a size, it only names an address and covers nothing. Of
//! several symbols at one address (aliases), the one with a size comes before one without, then
//! global before weak before local, then the first in the file before later ones.
//!
//! # Names
//! A Rust function is known by its mangled name, by its demangled name with the hash, and by its
//! demangled name without it. Only the first is unique, and not always: a function that is
//! instantiated in several codegen units has one local symbol in each. A name that fits several
//! addresses is refused ([`LookupError::Ambiguous`]).
//!
//! # Notes
//! The maker of the file may note 16 bits about each function, in a section ([`NOTES`]) that has
//! them in the order of [`Table::functions`]. They are opaque here ([`Symbol::note`]).
//!
//! # Contexts
//! [`Table::symbol_at`] works in any context, because it neither allocates nor locks. A lookup by
//! name takes memory, and returns an error if there is none.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod last_search;
mod nearest;

use alloc::{string::String, vec::Vec};
use core::{
    cmp::Reverse,
    fmt::{self, Write},
};
use elf::{ElfBytes, abi, endian::LittleEndian};
pub use last_search::LastSearch;
use memchr::memmem::Finder;
use names::one_of;
use rustc_demangle::try_demangle;

/// The kind of memory that a symbol lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SymbolKind {
    /// Code.
    Text,
    /// Code that is freed at the end of the boot.
    Init,
    /// Constants.
    Rodata,
    /// Variables.
    Data,
    /// Variables that start as zero.
    Bss,
}

impl SymbolKind {
    /// Whether it is executable.
    pub const fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::Init)
    }
}

/// Which other files can name a symbol at link time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Binding {
    /// Only its own object file.
    Local,
    /// All files, unless a global one has the same name.
    Weak,
    /// All files.
    Global,
}

/// The name of the section with the notes about functions: 16 bits each, the low byte first, by
/// address. A section with notes about more or fewer functions than there are is left alone.
pub const NOTES: &str = ".function_notes";

/// A symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// The name as the linker knows it: mangled, for most Rust functions.
    pub name: &'a str,
    /// Its first address.
    pub start: u64,
    /// Bytes from there that belong to it. 0: a label inside another symbol.
    pub size: u64,
    /// Where it lies.
    pub kind: SymbolKind,
    /// Which other files can name it.
    pub binding: Binding,
    /// Whether it has a plain name that other languages can use: it is neither mangled nor local.
    pub exported: bool,
    /// The note about this function; 0: none.
    pub note: u16,
}

impl<'a> Symbol<'a> {
    /// The name as it is written in Rust, without the hash.
    pub fn demangled(&self) -> Demangled<'a> {
        Demangled(self.name)
    }

    /// The name without the marks by which a compiler tells the copies of one function apart: the
    /// suffix of a clone, as in `f.llvm.12` and `f.cold`, and the hash, in which the instances of a
    /// generic function differ.
    pub fn name_of_all_clones(&self) -> &'a str {
        // "17h", 16 digits and "E" end a name of this mangling, which may have full stops before.
        const HASH: usize = 20;
        if self.name.starts_with("_ZN") {
            let hash = self.name.match_indices("17h").find(|(at, _)| {
                let hash = self.name.as_bytes().get(at + 3..at + HASH);
                hash.is_some_and(|hash| {
                    let (digits, end) = hash.split_at(hash.len() - 1);
                    end == b"E" && digits.iter().all(u8::is_ascii_hexdigit)
                })
            });
            if let Some((at, _)) = hash {
                return &self.name[..at];
            }
        }
        match self.name.find('.') {
            None | Some(0) => self.name,
            Some(at) => &self.name[..at],
        }
    }

    /// Whether `address` lies in it.
    pub fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.start) < self.size
    }

    /// The letter that `nm` and `/proc/kallsyms` show: upper case for symbols that are not local.
    pub fn letter(&self) -> char {
        let letter = match self.kind {
            SymbolKind::Text | SymbolKind::Init => 't',
            SymbolKind::Rodata => 'r',
            SymbolKind::Data => 'd',
            SymbolKind::Bss => 'b',
        };
        match self.binding {
            Binding::Local => letter,
            Binding::Weak if self.kind.is_text() => 'W',
            Binding::Weak => 'V',
            Binding::Global => letter.to_ascii_uppercase(),
        }
    }
}

/// Prints the demangled name.
impl fmt::Display for Symbol<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.demangled().fmt(f)
    }
}

/// Prints a name as in Rust, without the hash. A name that is not mangled is printed unchanged.
#[derive(Clone, Copy, Debug)]
pub struct Demangled<'a>(pub &'a str);

impl fmt::Display for Demangled<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match try_demangle(self.0) {
            Ok(name) => write!(f, "{name:#}"),
            Err(_) => f.write_str(self.0),
        }
    }
}

/// The content of a section of `file`, an ELF file, whether it is loaded or not.
pub fn section<'a>(file: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let elf = ElfBytes::<LittleEndian>::minimal_parse(file).ok()?;
    let header = elf.section_header_by_name(name).ok()??;
    Some(elf.section_data(&header).ok()?.0)
}

/// Why a file gave no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// It is not a 64-bit little-endian ELF file, or is cut off.
    NotElf,
    /// It has no symbol table: keep `.symtab` and `.strtab` when stripping.
    NoSymbols,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotElf => "not a whole 64-bit little-endian ELF file",
            Self::NoSymbols => "no symbol table; strip debug information only",
        })
    }
}

impl core::error::Error for ReadError {}

/// Why a name was not found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupError<'a> {
    /// There is no table yet, or none at all.
    NoTable,
    /// There is no memory for the symbols found, or for the names to offer.
    OutOfMemory,
    /// No symbol has the name.
    Unknown {
        /// The requested name.
        name: String,
        /// Functions with similar names, the nearest first.
        nearest: Vec<Symbol<'a>>,
    },
    /// Symbols at several addresses have the name.
    Ambiguous {
        /// The requested name.
        name: String,
        /// These symbols, by address.
        candidates: Vec<Symbol<'a>>,
    },
}

/// Shows the full names and addresses of symbols that share a name. Copies of one generic function
/// share their full name, so that only the address tells them apart.
pub struct Candidates<'a, 's>(pub &'a [Symbol<'s>]);

impl fmt::Display for Candidates<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, symbol) in self.0.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{} at {:#x}", symbol.name, symbol.start)?;
        }
        Ok(())
    }
}

impl fmt::Display for LookupError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTable => f.write_str("the kernel's symbol table has not been read"),
            Self::OutOfMemory => {
                f.write_str("out of memory for looking a name up; free some and try again")
            }
            Self::Unknown { name, .. } if name.is_empty() => {
                f.write_str("the name is empty; give that of a function")
            }
            Self::Unknown { name, nearest } => {
                write!(f, "no symbol {name}")?;
                if !nearest.is_empty() {
                    write!(f, "; did you mean {}", one_of(nearest))?;
                }
                f.write_str("; it may have been inlined: then name a function that calls it")
            }
            Self::Ambiguous { name, candidates } => {
                write!(
                    f,
                    "{name} fits {} symbols; give an address or a full name: {}",
                    candidates.len(),
                    Candidates(candidates)
                )
            }
        }
    }
}

impl core::error::Error for LookupError<'_> {}

/// The symbols of one linked file.
pub struct Table<'a> {
    /// The entries by address; of those at one address the preferred one last.
    entries: Vec<Entry>,
    /// Indices into `entries`, by name.
    by_name: Vec<u32>,
    names: &'a str,
    last_search: LastSearch,
}

struct Entry {
    start: u64,
    size: u32,
    name: u32,
    name_len: u16,
    kind: SymbolKind,
    binding: Binding,
    exported: bool,
    note: u16,
}

/// The search for the symbol of an address looks at this many entries before the address. No
/// function has so many labels.
const MAX_LABELS: usize = 256;

impl<'a> Table<'a> {
    /// Reads the symbols of `file`, a linked ELF file that runs at the addresses that the linker
    /// gave it.
    pub fn read(file: &'a [u8]) -> Result<Self, ReadError> {
        Self::read_moved(file, 0)
    }

    /// Reads the symbols of `file`, a position-independent ELF file that runs `distance` bytes
    /// above the addresses that the linker gave it, modulo 2<sup>64</sup>.
    pub fn read_moved(file: &'a [u8], distance: u64) -> Result<Self, ReadError> {
        let elf = ElfBytes::<LittleEndian>::minimal_parse(file).map_err(|_| ReadError::NotElf)?;
        let (symbols, _) = elf
            .symbol_table()
            .map_err(|_| ReadError::NotElf)?
            .ok_or(ReadError::NoSymbols)?;
        let (sections, section_names) = elf
            .section_headers_with_strtab()
            .map_err(|_| ReadError::NotElf)?;
        let (Some(sections), Some(section_names)) = (sections, section_names) else {
            return Err(ReadError::NoSymbols);
        };
        let strings = elf
            .section_headers()
            .into_iter()
            .flat_map(|headers| headers.iter())
            .find(|header| header.sh_type == abi::SHT_SYMTAB)
            .and_then(|symtab| sections.get(symtab.sh_link as usize).ok())
            .and_then(|strtab| elf.section_data(&strtab).ok())
            .map(|(bytes, _)| utf8_part(bytes))
            .ok_or(ReadError::NoSymbols)?;

        let mut table = Self {
            entries: Vec::new(),
            by_name: Vec::new(),
            names: strings,
            last_search: LastSearch::default(),
        };
        // Where the section of each entry ends, until the sizes are known.
        let mut limits = Vec::new();
        for symbol in symbols.iter() {
            let typed = matches!(
                symbol.st_symtype(),
                abi::STT_NOTYPE | abi::STT_OBJECT | abi::STT_FUNC
            );
            if !typed || symbol.st_shndx == abi::SHN_UNDEF || symbol.st_shndx >= abi::SHN_LORESERVE
            {
                continue;
            }
            let Ok(section) = sections.get(usize::from(symbol.st_shndx)) else {
                continue;
            };
            let Some((name, _)) = (strings.get(symbol.st_name as usize..))
                .and_then(|from_name| from_name.split_once('\0'))
            else {
                continue;
            };
            let allocated = section.sh_flags & u64::from(abi::SHF_ALLOC) != 0;
            if !allocated || name.is_empty() || name.starts_with(".L") {
                continue;
            }
            let Ok(name_len) = u16::try_from(name.len()) else {
                continue;
            };
            let binding = match symbol.st_bind() {
                abi::STB_LOCAL => Binding::Local,
                abi::STB_WEAK => Binding::Weak,
                _ => Binding::Global,
            };
            let writable = section.sh_flags & u64::from(abi::SHF_WRITE) != 0;
            let executable = section.sh_flags & u64::from(abi::SHF_EXECINSTR) != 0;
            let section_name = section_names.get(section.sh_name as usize).unwrap_or("");
            let end = section.sh_addr.wrapping_add(section.sh_size);
            limits.push((table.entries.len(), end.wrapping_add(distance)));
            table.entries.push(Entry {
                start: symbol.st_value.wrapping_add(distance),
                size: u32::try_from(symbol.st_size).unwrap_or(u32::MAX),
                name: symbol.st_name,
                name_len,
                kind: match (executable, writable) {
                    (true, _) if section_name.starts_with(".init") => SymbolKind::Init,
                    (true, _) => SymbolKind::Text,
                    (false, true) if section.sh_type == abi::SHT_NOBITS => SymbolKind::Bss,
                    (false, true) => SymbolKind::Data,
                    (false, false) => SymbolKind::Rodata,
                },
                binding,
                exported: binding != Binding::Local && !is_mangled(name),
                note: 0,
            });
        }
        table.sort(limits);
        table.take_notes(section(file, NOTES).unwrap_or_default());
        Ok(table)
    }

    /// Reads a list of symbols as `nm` and `/proc/kallsyms` print it: a line for each, with its
    /// address in hexadecimal digits, a letter and its name, mangled or plain. For kernels that are
    /// given such a list in place of their file. `distance` is that of [`Table::read_moved`].
    ///
    /// There are no sizes in it: a symbol reaches to the next one. What follows the name on a line
    /// is left out, and so are lines that are no symbols.
    ///
    /// # Errors
    /// [`ReadError::NoSymbols`] if no line is a symbol.
    pub fn read_list(list: &'a str, distance: u64) -> Result<Self, ReadError> {
        let mut table = Self {
            entries: Vec::new(),
            by_name: Vec::new(),
            names: list,
            last_search: LastSearch::default(),
        };
        let mut limits = Vec::new();
        for line in list.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(start), Some(letter), Some(name)) =
                (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let (Ok(start), &[letter]) = (u64::from_str_radix(start, 16), letter.as_bytes()) else {
                continue;
            };
            let kind = match letter.to_ascii_lowercase() {
                b't' | b'w' => SymbolKind::Text,
                b'r' => SymbolKind::Rodata,
                b'd' | b'v' => SymbolKind::Data,
                b'b' => SymbolKind::Bss,
                _ => continue,
            };
            let binding = match letter {
                b'w' | b'W' | b'v' | b'V' => Binding::Weak,
                letter if letter.is_ascii_lowercase() => Binding::Local,
                _ => Binding::Global,
            };
            let at = name.as_ptr().addr() - list.as_ptr().addr();
            let (Ok(at), Ok(name_len)) = (u32::try_from(at), u16::try_from(name.len())) else {
                continue;
            };
            limits.push((table.entries.len(), u64::MAX));
            table.entries.push(Entry {
                start: start.wrapping_add(distance),
                size: 0,
                name: at,
                name_len,
                kind,
                binding,
                exported: binding != Binding::Local && !is_mangled(name),
                note: 0,
            });
        }
        if table.entries.is_empty() {
            return Err(ReadError::NoSymbols);
        }
        table.sort(limits);
        Ok(table)
    }

    fn take_notes(&mut self, notes: &[u8]) {
        let (notes, rest) = notes.as_chunks();
        let functions = (0..self.entries.len()).filter(|index| self.is_function(*index));
        let functions: Vec<_> = functions.collect();
        if rest.is_empty() && functions.len() == notes.len() {
            for (index, note) in functions.into_iter().zip(notes) {
                self.entries[index].note = u16::from_le_bytes(*note);
            }
        }
    }

    /// Sorts the entries by address and by name, and gives sizes to those without. `limits` has for
    /// each entry its position in the file and the end of its section.
    fn sort(&mut self, limits: Vec<(usize, u64)>) {
        let mut sorted: Vec<(Entry, usize, u64)> = core::mem::take(&mut self.entries)
            .into_iter()
            .zip(limits)
            .map(|(entry, (position, limit))| (entry, position, limit))
            .collect();
        sorted.sort_unstable_by_key(|(entry, position, _)| {
            (
                entry.start,
                entry.size > 0,
                entry.binding,
                Reverse(*position),
            )
        });

        // The end of the symbols with a size so far.
        let mut covered = 0;
        let mut rest = sorted.as_mut_slice();
        while let Some((first, ..)) = rest.first() {
            let start = first.start;
            let (group, after) =
                rest.split_at_mut(rest.partition_point(|(entry, ..)| entry.start == start));
            let size = group
                .iter()
                .map(|(entry, ..)| entry.size)
                .max()
                .unwrap_or(0);
            if size > 0 {
                covered = covered.max(start + u64::from(size));
            }
            for (entry, _, limit) in group.iter_mut().filter(|(entry, ..)| entry.size == 0) {
                let next = after.first().map_or(u64::MAX, |(next, ..)| next.start);
                entry.size = if size > 0 {
                    size
                } else if start < covered {
                    0
                } else {
                    u32::try_from(next.min(*limit).saturating_sub(start)).unwrap_or(u32::MAX)
                };
            }
            rest = after;
        }

        self.entries = sorted.into_iter().map(|(entry, ..)| entry).collect();
        self.by_name = (0..self.entries.len() as u32).collect();
        let mut by_name = core::mem::take(&mut self.by_name);
        by_name.sort_unstable_by_key(|&index| self.name(&self.entries[index as usize]));
        self.by_name = by_name;
    }

    fn name(&self, entry: &Entry) -> &'a str {
        let start = entry.name as usize;
        &self.names[start..start + usize::from(entry.name_len)]
    }

    fn symbol(&self, entry: &Entry) -> Symbol<'a> {
        Symbol {
            name: self.name(entry),
            start: entry.start,
            size: u64::from(entry.size),
            kind: entry.kind,
            binding: entry.binding,
            exported: entry.exported,
            note: entry.note,
        }
    }

    /// Whether the entry of this index is one of [`Table::functions`].
    fn is_function(&self, index: usize) -> bool {
        let (entry, next) = (&self.entries[index], self.entries.get(index + 1));
        entry.kind.is_text() && entry.size > 0 && next.is_none_or(|next| next.start != entry.start)
    }

    /// The symbol that `address` lies in. Any context.
    pub fn symbol_at(&self, address: u64) -> Option<Symbol<'a>> {
        let after = self
            .last_search
            .of(&self.entries, |entry| entry.start <= address);
        self.entries[..after]
            .iter()
            .rev()
            .take(MAX_LABELS)
            .find(|entry| address - entry.start < u64::from(entry.size))
            .map(|entry| self.symbol(entry))
    }

    /// All symbols, by address.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'a>> {
        self.entries.iter().map(|entry| self.symbol(entry))
    }

    /// The functions, by address: the preferred one of several aliases, and no labels inside
    /// functions.
    pub fn functions(&self) -> impl Iterator<Item = Symbol<'a>> {
        (0..self.entries.len())
            .filter(|index| self.is_function(*index))
            .map(|index| self.symbol(&self.entries[index]))
    }

    /// Finds a symbol by its name: mangled, demangled with or without hash, or plain.
    pub fn lookup(&self, name: &str) -> Result<Symbol<'a>, LookupError<'a>> {
        let found = self.all_named(name)?;
        match found[..] {
            [] => Err(LookupError::Unknown {
                name: try_string(name)?,
                nearest: nearest::nearest(self, name)?,
            }),
            [symbol] => Ok(symbol),
            _ => Err(LookupError::Ambiguous {
                name: try_string(name)?,
                candidates: found,
            }),
        }
    }

    /// The symbols of that name, plain, mangled or demangled, by address: instances of one generic
    /// function have the same demangled name. Empty if there are none.
    ///
    /// # Errors
    /// [`LookupError::OutOfMemory`].
    pub fn all_named(&self, name: &str) -> Result<Vec<Symbol<'a>>, LookupError<'a>> {
        let found = self.by_linker_name(name)?;
        // Every demangled name is a path.
        if found.is_empty() && name.contains("::") {
            self.by_demangled_name(name)
        } else {
            Ok(found)
        }
    }

    /// The symbols of that very name, one for each address.
    fn by_linker_name(&self, name: &str) -> Result<Vec<Symbol<'a>>, LookupError<'a>> {
        let name_at = |&index: &u32| self.name(&self.entries[index as usize]);
        let first = self.by_name.partition_point(|index| name_at(index) < name);
        let mut found = try_collect(
            self.by_name[first..]
                .iter()
                .take_while(|index| name_at(index) == name)
                .map(|&index| self.symbol(&self.entries[index as usize])),
        )?;
        found.sort_unstable_by_key(|symbol| symbol.start);
        found.dedup_by_key(|symbol| symbol.start);
        Ok(found)
    }

    /// The symbols of that demangled name, one for each address: those whose name with the hash it
    /// is, or else those whose name without.
    fn by_demangled_name(&self, name: &str) -> Result<Vec<Symbol<'a>>, LookupError<'a>> {
        let part = Finder::new(longest_identifier(name));
        let (mut with_hash, mut without) = (Vec::new(), Vec::new());
        for symbol in self.iter() {
            if part.find(symbol.name.as_bytes()).is_none() {
                continue;
            }
            let Ok(demangled) = try_demangle(symbol.name) else {
                continue;
            };
            let found = if prints_as(format_args!("{demangled}"), name) {
                &mut with_hash
            } else if prints_as(format_args!("{demangled:#}"), name) {
                &mut without
            } else {
                continue;
            };
            try_push(found, symbol)?;
        }
        let mut found = if with_hash.is_empty() {
            without
        } else {
            with_hash
        };
        found.dedup_by_key(|symbol| symbol.start);
        Ok(found)
    }
}

/// Something that each mangled name of the path `path` contains, and few others do.
///
/// Both manglings keep identifiers of letters, digits and `_` as they are, so it is the longest of
/// a path that consists of such. Of any other path it is nothing: generic arguments, closures and
/// implementations look different when they are mangled.
fn longest_identifier(path: &str) -> &str {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':';
    if path.bytes().all(is_plain) {
        path.split(':').max_by_key(|part| part.len()).unwrap_or("")
    } else {
        ""
    }
}

/// Whether a compiler for Rust has made up `name`. Both manglings begin with what is reserved for
/// such a purpose, so nothing else has to be looked at.
fn is_mangled(name: &str) -> bool {
    name.starts_with("_ZN") || name.starts_with("_R")
}

/// `bytes` as far as they are UTF-8, as the names of linkers for Rust are. Checked once, so that no
/// question about an address checks a name.
fn utf8_part(bytes: &[u8]) -> &str {
    let end = str::from_utf8(bytes).map_or_else(|error| error.valid_up_to(), str::len);
    str::from_utf8(&bytes[..end]).unwrap_or("")
}

fn try_collect<'a, T>(items: impl Iterator<Item = T>) -> Result<Vec<T>, LookupError<'a>> {
    let mut all = Vec::new();
    for item in items {
        try_push(&mut all, item)?;
    }
    Ok(all)
}

fn try_push<'a, T>(all: &mut Vec<T>, item: T) -> Result<(), LookupError<'a>> {
    all.try_reserve(1).map_err(|_| LookupError::OutOfMemory)?;
    all.push(item);
    Ok(())
}

fn try_string<'a>(text: &str) -> Result<String, LookupError<'a>> {
    let mut string = String::new();
    string
        .try_reserve_exact(text.len())
        .map_err(|_| LookupError::OutOfMemory)?;
    string.push_str(text);
    Ok(string)
}

/// Whether `text` prints as `wanted`. Stops at the first difference.
fn prints_as(text: fmt::Arguments<'_>, wanted: &str) -> bool {
    struct Rest<'w>(&'w str);
    impl Write for Rest<'_> {
        fn write_str(&mut self, piece: &str) -> fmt::Result {
            self.0 = self.0.strip_prefix(piece).ok_or(fmt::Error)?;
            Ok(())
        }
    }
    let mut rest = Rest(wanted);
    rest.write_fmt(text).is_ok() && rest.0.is_empty()
}
