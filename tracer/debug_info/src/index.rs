//! The index: which names there are and where the debug information speaks of them. It is made from
//! the whole debug information once and kept beside the kernel's file.
//!
//! INDEX-1. The file begins with the hash of the code that makes it, the length, the hash and the
//!     stamp of the kernel's file, and the hash of its own rest. Where the stamp differs, the hash
//!     decides. An index that is damaged or of another kernel is made anew without a question.
//! INDEX-2. Rows are numbers of 4 bytes. Addresses count from [`Index::base`], entries from the
//!     beginning of `.debug_info`. A row that leads outside of the index is read as none.

use std::{
    collections::HashMap,
    fs,
    ops::Range,
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
};

use gimli::{AttributeValue, DebugInfoOffset, UnitOffset};

use crate::{
    Error, files,
    hash::hash,
    image::{Dwarf, DwarfEntry, Image, Unit},
    names::{self, TABLE},
};

const HEADER: usize = 48;
const STAMP: Range<usize> = 24..32;
/// No entry of the debug information.
const NONE: u32 = u32::MAX;

/// A table of the index: its number of columns, in the order of the file.
#[derive(Clone, Copy)]
enum Table {
    /// Where the name with this number ends in the text.
    Names,
    /// Path, symbol, address, length, entry. By address.
    Functions,
    /// Path, address, entry. By entry.
    Inlined,
    /// Path, entry. By path.
    Globals,
    /// Path, entry, of tables of methods that have become one with another table.
    Merged,
    /// Path, unit.
    Files,
    /// Entry of the unit's header.
    Units,
    /// Path, entry. By entry.
    Types,
}

const COLUMNS: [usize; 8] = [1, 5, 3, 2, 2, 2, 1, 2];

/// See the module's text.
pub struct Index {
    bytes: Vec<u8>,
    length: u64,
    hash: u64,
    stamp: u64,
    pub base: u64,
    /// Where each table begins in `bytes`, and its number of rows.
    tables: [(usize, usize); COLUMNS.len()],
    text: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct FunctionRow {
    pub path: u32,
    pub symbol: u32,
    pub address: u64,
    pub bytes: u64,
    pub entry: Option<u64>,
}

/// The number that the file begins with: of the code that makes it.
fn form() -> [u8; 8] {
    let makers = [
        hash(include_bytes!("hash.rs")),
        hash(include_bytes!("image.rs")),
        hash(include_bytes!("index.rs")),
        hash(include_bytes!("names.rs")),
    ];
    hash(makers.map(u64::to_le_bytes).as_flattened()).to_le_bytes()
}

impl Index {
    /// The index in that file, if it is whole and of that kernel.
    pub fn load(path: &Path, image: &Image) -> Option<Self> {
        let mut index = Self::parse(fs::read(path).ok()?)?;
        if index.length != image.bytes().len() as u64 {
            return None;
        }
        if index.stamp != image.stamp() {
            if index.hash != hash(image.bytes()) {
                return None;
            }
            index.stamp = image.stamp();
            index.bytes[STAMP].copy_from_slice(&index.stamp.to_le_bytes());
            index.store(path);
        }
        Some(index)
    }

    fn parse(bytes: Vec<u8>) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        if !bytes.starts_with(&form()) || number(32)? != hash(bytes.get(HEADER - 8..)?) {
            return None;
        }
        let (length, content, stamp) = (number(8)?, number(16)?, number(STAMP.start)?);
        let base = number(40)?;
        let mut at = HEADER;
        let mut tables = [(0, 0); COLUMNS.len()];
        let mut text = HEADER + 4 * COLUMNS.len();
        for (table, columns) in tables.iter_mut().zip(COLUMNS) {
            let rows = u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize;
            *table = (text, rows);
            text = text.checked_add(rows.checked_mul(4 * columns)?)?;
            at += 4;
        }
        (text <= bytes.len()).then_some(Self {
            bytes,
            length,
            hash: content,
            stamp,
            base,
            tables,
            text,
        })
    }

    /// Writes it, whole or not at all. A directory that cannot be written to has none.
    pub fn store(&self, path: &Path) {
        // Several threads may make one at the same time.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        let unfinished = path.with_extension(format!("{process}.{number}.unfinished"));
        let written =
            fs::write(&unfinished, &self.bytes).and_then(|()| fs::rename(&unfinished, path));
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
    }

    fn rows(&self, table: Table) -> usize {
        self.tables[table as usize].1
    }

    fn row<const N: usize>(&self, table: Table, row: usize) -> [u32; N] {
        let start = self.tables[table as usize].0 + row * 4 * N;
        let mut numbers = [NONE; N];
        if let Some(bytes) = self.bytes.get(start..start + 4 * N) {
            for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(4)) {
                *number = u32::from_le_bytes(bytes.try_into().unwrap_or_default());
            }
        }
        numbers
    }

    /// How many names there are.
    pub fn names(&self) -> usize {
        self.rows(Table::Names)
    }

    /// The name with that number.
    pub fn name(&self, name: u32) -> &str {
        std::str::from_utf8(self.bytes_of(name)).unwrap_or_default()
    }

    /// Its bytes, for comparisons with all names.
    pub fn bytes_of(&self, name: u32) -> &[u8] {
        let name = name as usize;
        if name >= self.rows(Table::Names) {
            return &[];
        }
        let end = |row| self.row::<1>(Table::Names, row)[0] as usize;
        let start = if name == 0 { 0 } else { end(name - 1) };
        self.bytes
            .get(self.text + start..self.text + end(name))
            .unwrap_or_default()
    }

    pub fn functions(&self) -> impl ExactSizeIterator<Item = FunctionRow> + '_ {
        (0..self.rows(Table::Functions)).map(|row| self.function(row))
    }

    fn function(&self, row: usize) -> FunctionRow {
        let [path, symbol, address, bytes, entry] = self.row(Table::Functions, row);
        FunctionRow {
            path,
            symbol,
            address: self.base.wrapping_add(u64::from(address)),
            bytes: u64::from(bytes),
            entry: (entry != NONE).then_some(u64::from(entry)),
        }
    }

    /// The function with code at an address. Of several names the one that has debug information.
    pub fn function_at(&self, address: u64) -> Option<FunctionRow> {
        let count = self.rows(Table::Functions);
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.function(middle).address <= address {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        // Labels in assembly have no size, and lie in functions.
        let contains = |row: &FunctionRow| address - row.address < row.bytes.max(1);
        let mut below = (0..low).rev().map(|row| self.function(row));
        let first = below.find(|row| row.bytes > 0 || contains(row))?;
        let same = below.take_while(|row| row.address == first.address);
        core::iter::once(first)
            .chain(same)
            .filter(contains)
            .max_by_key(|row| row.entry.is_some())
    }

    /// Path, address, entry.
    pub fn inlined(&self) -> impl Iterator<Item = (u32, u64, u64)> + '_ {
        (0..self.rows(Table::Inlined)).map(|row| {
            let [path, address, entry] = self.row(Table::Inlined, row);
            let address = self.base.wrapping_add(u64::from(address));
            (path, address, u64::from(entry))
        })
    }

    /// The path of the function that the entry of a copy is of.
    pub fn inlined_path(&self, entry: u64) -> Option<&str> {
        let (mut low, mut high) = (0, self.rows(Table::Inlined));
        while low < high {
            let middle = usize::midpoint(low, high);
            let [path, _, found] = self.row(Table::Inlined, middle);
            let found = u64::from(found);
            if found == entry {
                return Some(self.name(path));
            } else if found < entry {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        None
    }

    /// Path, entry.
    pub fn globals(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.pairs(Table::Globals)
    }

    /// Path, entry, of tables of methods that have no place of their own.
    pub fn merged_tables(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.pairs(Table::Merged)
    }

    /// Path, unit. A file is in as many rows as units have code of it.
    pub fn files(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.pairs(Table::Files)
    }

    /// Path, entry of the structures, unions and enumerations.
    pub fn types(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.pairs(Table::Types)
    }

    /// The rows of a table of paths with something each.
    fn pairs(&self, table: Table) -> impl Iterator<Item = (u32, u64)> + '_ {
        (0..self.rows(table)).map(move |row| self.pair(table, row))
    }

    fn pair(&self, table: Table, row: usize) -> (u32, u64) {
        let [path, other] = self.row(table, row);
        (path, u64::from(other))
    }

    /// The path of the type with that entry.
    pub fn type_path(&self, entry: u64) -> Option<&str> {
        let (mut low, mut high) = (0, self.rows(Table::Types));
        while low < high {
            let middle = usize::midpoint(low, high);
            let (path, found) = self.pair(Table::Types, middle);
            match found.cmp(&entry) {
                std::cmp::Ordering::Equal => return Some(self.name(path)),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// The unit that has an entry.
    pub fn unit_of(&self, entry: u64) -> Option<u64> {
        let count = self.rows(Table::Units);
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = usize::midpoint(low, high);
            if u64::from(self.row::<1>(Table::Units, middle)[0]) <= entry {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let [unit] = self.row(Table::Units, low.checked_sub(1)?);
        Some(u64::from(unit))
    }

    /// Makes it from the debug information.
    pub fn build(image: &Image) -> Result<Self, Error> {
        let dwarf = image.dwarf();
        let mut builder = Builder::default();
        let mut units = dwarf.units();
        loop {
            let header = units.next().map_err(Error::Dwarf)?;
            let Some(header) = header else { break };
            let Some(offset) = header.debug_info_offset() else {
                continue;
            };
            let unit = dwarf.unit(header).map_err(Error::Dwarf)?;
            builder.units.push(offset.0 as u64);
            builder
                .unit(&dwarf, &unit, offset.0 as u64)
                .map_err(Error::Dwarf)?;
        }
        builder.finish(image)
    }
}

/// A subprogram as it stands in the debug information.
#[derive(Default)]
struct Subprogram {
    path: String,
    linkage: Option<String>,
    /// The entry that says what this one does not.
    origin: Option<u64>,
    /// Where its code begins, if it has any.
    code: Option<(u64, u64)>,
    /// The names of its generic parameters.
    parameters: Vec<String>,
}

#[derive(Default)]
struct Builder {
    units: Vec<u64>,
    subprograms: HashMap<u64, Subprogram>,
    /// The copies: the function's entry, the address, and its own entry.
    inlined: Vec<(u64, u64, u64)>,
    globals: Vec<(String, u64)>,
    merged: Vec<(String, u64)>,
    files: Vec<(String, u64)>,
    types: Vec<(String, u64)>,
}

impl Builder {
    fn unit<'a>(&mut self, dwarf: &Dwarf<'a>, unit: &Unit<'a>, offset: u64) -> gimli::Result<()> {
        self.line_files(dwarf, unit, offset)?;
        let mut entries = unit.entries_raw(None)?;
        let mut entry = DwarfEntry::default();
        // The path of the scopes around, and its length at each depth.
        let mut path = String::new();
        let mut lengths: Vec<usize> = Vec::new();
        let mut last_subprogram = (0, 0);
        let mut last_type = usize::MAX;
        while !entries.is_empty() {
            if !entries.read_entry(&mut entry)? {
                continue;
            }
            let depth = usize::try_from(entry.depth()).unwrap_or_default();
            // A scope's own text ends where its children's begins.
            lengths.truncate(depth);
            path.truncate(lengths.last().copied().unwrap_or_default());
            let at = offset + entry.offset().0 as u64;
            if depth <= last_type {
                last_type = usize::MAX;
            }
            match entry.tag() {
                gimli::DW_TAG_subprogram => {
                    let subprogram = self.subprogram(dwarf, unit, offset, &entry, &path)?;
                    self.subprograms.insert(at, subprogram);
                    last_subprogram = (depth, at);
                }
                gimli::DW_TAG_template_type_parameter if last_subprogram.0 + 1 == depth => {
                    if let Some(name) = name(dwarf, unit, &entry)?
                        && let Some(subprogram) = self.subprograms.get_mut(&last_subprogram.1)
                    {
                        subprogram.parameters.push(name);
                    }
                }
                gimli::DW_TAG_inlined_subroutine => {
                    let origin = reference(&entry, gimli::DW_AT_abstract_origin, offset);
                    let code = code(dwarf, unit, &entry)?;
                    if let (Some(origin), Some((start, _))) = (origin, code) {
                        self.inlined.push((origin, start, at));
                    }
                }
                gimli::DW_TAG_variable => {
                    let fixed = entry
                        .attr_value(gimli::DW_AT_location)
                        .and_then(|value| value.exprloc_value())
                        .is_some_and(|location| {
                            location.0.slice().first() == Some(&gimli::DW_OP_addr.0)
                        });
                    let has_place = entry.has_attr(gimli::DW_AT_location);
                    if (fixed || !has_place)
                        && let Some(name) = name(dwarf, unit, &entry)?
                    {
                        let row = (join(&path, &names::short(&name)), at);
                        if fixed {
                            self.globals.push(row);
                        } else if name.ends_with(TABLE) {
                            self.merged.push(row);
                        }
                    }
                }
                gimli::DW_TAG_namespace
                | gimli::DW_TAG_structure_type
                | gimli::DW_TAG_enumeration_type
                | gimli::DW_TAG_union_type => {
                    if let Some(name) = name(dwarf, unit, &entry)? {
                        let own = join(&path, &names::short(&name));
                        // The variants of an enum are structures in it.
                        if entry.has_attr(gimli::DW_AT_byte_size) && last_type == usize::MAX {
                            self.types.push((own.clone(), at));
                            last_type = depth;
                        }
                        if entry.has_children() {
                            path = own;
                        }
                    }
                }
                _ => {}
            }
            lengths.resize(depth, 0);
            lengths.push(path.len());
        }
        Ok(())
    }

    fn subprogram<'a>(
        &self,
        dwarf: &Dwarf<'a>,
        unit: &Unit<'a>,
        offset: u64,
        entry: &DwarfEntry<'a>,
        scope: &str,
    ) -> gimli::Result<Subprogram> {
        let linkage = match entry.attr_value(gimli::DW_AT_linkage_name) {
            Some(value) => Some(dwarf.attr_string(unit, value)?.to_string_lossy().into()),
            None => None,
        };
        let name = name(dwarf, unit, entry)?.unwrap_or_default();
        let origin = reference(entry, gimli::DW_AT_abstract_origin, offset)
            .or_else(|| reference(entry, gimli::DW_AT_specification, offset));
        let path = if name.is_empty() {
            String::new()
        } else {
            join(scope, &own_generics(scope, &names::short(&name)))
        };
        Ok(Subprogram {
            path,
            linkage,
            origin,
            code: code(dwarf, unit, entry)?,
            parameters: Vec::new(),
        })
    }

    /// The files of which the unit has lines.
    fn line_files(&mut self, dwarf: &Dwarf, unit: &Unit, offset: u64) -> gimli::Result<()> {
        let Some(program) = &unit.line_program else {
            return Ok(());
        };
        for file in program.header().file_names() {
            let path = files::path(dwarf, unit, program.header(), file)?;
            self.files.push((path, offset));
        }
        Ok(())
    }

    /// Path and linker's name of a subprogram. Another entry may say them.
    fn resolve(&self, entry: u64) -> (String, Option<&str>) {
        let mut at = entry;
        let mut linkage = None;
        let mut path = "";
        let mut parameters: &[String] = &[];
        // A chain is never longer: concrete, abstract, declaration.
        for _ in 0..4 {
            let Some(subprogram) = self.subprograms.get(&at) else {
                break;
            };
            linkage = linkage.or(subprogram.linkage.as_deref());
            // A definition outside of its type's scope has a name and a declaration, which has the
            // scope.
            if !subprogram.path.is_empty() {
                path = &subprogram.path;
            }
            if parameters.is_empty() {
                parameters = &subprogram.parameters;
            }
            match subprogram.origin {
                Some(origin) => at = origin,
                None => break,
            }
        }
        (of_source(path, linkage, parameters), linkage)
    }

    fn finish(mut self, image: &Image) -> Result<Index, Error> {
        let mut names = Names::default();
        let mut functions: Vec<(u64, String, String, u64, Option<u64>)> = Vec::new();
        let mut by_address: HashMap<u64, (u64, u64)> = HashMap::new();
        for (entry, subprogram) in &self.subprograms {
            if let Some((start, length)) = subprogram.code.filter(|code| image.is_code(code.0)) {
                // The smallest, so that the index does not depend on the order of a hash table.
                let slot = by_address.entry(start).or_insert((*entry, length));
                *slot = (*slot).min((*entry, length));
            }
        }
        let mut seen = std::collections::HashSet::new();
        for symbol in image.symbols() {
            let found = by_address.get(&symbol.address);
            let path = match found.map(|(entry, _)| self.resolve(*entry)) {
                // Another name of the same code says what it is by itself.
                Some((path, linkage)) if linkage.is_none_or(|name| name == symbol.name) => path,
                _ => demangled(&symbol.name),
            };
            let entry = found.map(|(entry, _)| *entry);
            seen.insert(symbol.address);
            functions.push((symbol.address, symbol.name, path, symbol.bytes, entry));
        }
        for (address, (entry, length)) in &by_address {
            if !seen.contains(address) {
                let (path, linkage) = self.resolve(*entry);
                let symbol = linkage.map_or_else(|| path.clone(), String::from);
                functions.push((*address, symbol, path, *length, Some(*entry)));
            }
        }
        functions.sort();
        let base = functions.first().map_or(0, |function| function.0);
        let narrow = |number: u64| {
            u32::try_from(number)
                .ok()
                .filter(|number| *number != NONE)
                .ok_or(Error::Size)
        };
        let mut tables: [Vec<u32>; COLUMNS.len()] = Default::default();
        for (address, symbol, path, bytes, entry) in functions {
            let row = [
                names.number(path),
                names.number(symbol),
                narrow(address - base)?,
                narrow(bytes)?,
                entry.map_or(Ok(NONE), narrow)?,
            ];
            tables[Table::Functions as usize].extend(row);
        }
        let mut paths: HashMap<u64, u32> = HashMap::new();
        let mut inlined = Vec::new();
        for (origin, address, entry) in &self.inlined {
            // Code that the linker threw away is described, too.
            let Some(address) = address
                .checked_sub(base)
                .filter(|_| image.is_code(*address))
            else {
                continue;
            };
            let path = *paths
                .entry(*origin)
                .or_insert_with(|| names.number(self.resolve(*origin).0));
            inlined.push([path, narrow(address)?, narrow(*entry)?]);
        }
        inlined.sort_unstable_by_key(|row: &[u32; 3]| row[2]);
        tables[Table::Inlined as usize] = inlined.into_flattened();
        self.globals.sort();
        self.merged.sort();
        self.files.sort();
        self.files.dedup();
        self.types.sort_by_key(|(_, entry)| *entry);
        for (table, rows) in [
            (Table::Globals, self.globals),
            (Table::Merged, self.merged),
            (Table::Files, self.files),
            (Table::Types, self.types),
        ] {
            for (path, other) in rows {
                tables[table as usize].extend([names.number(path), narrow(other)?]);
            }
        }
        self.units.sort_unstable();
        for unit in self.units {
            tables[Table::Units as usize].push(narrow(unit)?);
        }
        tables[Table::Names as usize] = names.ends;
        let mut body = Vec::new();
        body.extend(base.to_le_bytes());
        for (table, columns) in tables.iter().zip(COLUMNS) {
            body.extend(narrow((table.len() / columns) as u64)?.to_le_bytes());
        }
        for table in &tables {
            body.extend(table.iter().flat_map(|number| number.to_le_bytes()));
        }
        body.extend(names.text.as_bytes());
        let mut bytes = form().to_vec();
        bytes.extend((image.bytes().len() as u64).to_le_bytes());
        bytes.extend(hash(image.bytes()).to_le_bytes());
        bytes.extend(image.stamp().to_le_bytes());
        bytes.extend(hash(&body).to_le_bytes());
        bytes.extend(body);
        Index::parse(bytes).ok_or(Error::Size)
    }
}

/// Texts, each once.
#[derive(Default)]
struct Names {
    numbers: HashMap<String, u32>,
    text: String,
    ends: Vec<u32>,
}

impl Names {
    fn number(&mut self, name: String) -> u32 {
        let next = self.ends.len() as u32;
        *self.numbers.entry(name).or_insert_with_key(|name| {
            self.text.push_str(name);
            self.ends.push(self.text.len() as u32);
            next
        })
    }
}

fn join(scope: &str, name: &str) -> String {
    if scope.is_empty() {
        name.into()
    } else {
        format!("{scope}::{name}")
    }
}

/// A method's name without the generic arguments that its type has already: the debug information
/// gives it those, too.
fn own_generics(scope: &str, name: &str) -> String {
    let last = names::segments(scope).pop().unwrap_or_default();
    let (_, Some(of_type)) = names::generics(last) else {
        return name.into();
    };
    let (base, Some(all)) = names::generics(name) else {
        return name.into();
    };
    match all.strip_prefix(of_type) {
        Some("") => base.into(),
        Some(rest) if rest.starts_with(", ") => format!("{base}<{}>", &rest[2..]),
        _ => name.into(),
    }
}

/// The path as in the source. The debug information numbers the implementations of a module; the
/// linker's name says of what they are.
fn of_source(path: &str, linkage: Option<&str>, parameters: &[String]) -> String {
    let segments = names::segments(path);
    let numbered = segments.iter().rposition(|name| name.starts_with("{impl#"));
    let (Some(at), Some(linkage)) = (numbered, linkage) else {
        return path.into();
    };
    let behind = &segments[at + 1..];
    let demangled = demangled(linkage);
    // The newer mangling says all of it.
    if linkage.starts_with("_R") {
        return demangled;
    }
    let known = names::segments(&demangled);
    let Some(implementation) = known
        .len()
        .checked_sub(behind.len())
        .filter(|left| *left > 0)
        .map(|left| known[..left].join("::"))
    else {
        return demangled;
    };
    let (implementation, behind) = instance(&implementation, behind, parameters);
    join(&implementation, &behind)
}

/// Puts the generic arguments, which the debug information gives to the method, where they stand in
/// the source: `<Vec<T> as Drop>::drop<u8>` is `<Vec<u8> as Drop>::drop`.
fn instance(implementation: &str, behind: &[&str], parameters: &[String]) -> (String, String) {
    let unchanged = || (implementation.to_string(), behind.join("::"));
    let Some((first, rest)) = behind.split_first() else {
        return unchanged();
    };
    let (base, Some(arguments)) = names::generics(first) else {
        return unchanged();
    };
    let arguments = names::list(arguments);
    if arguments.len() != parameters.len() {
        return unchanged();
    }
    let mut text = String::new();
    let mut used = vec![false; arguments.len()];
    let mut word = String::new();
    for character in implementation.chars().chain(['\n']) {
        if character.is_alphanumeric() || character == '_' {
            word.push(character);
            continue;
        }
        match parameters.iter().position(|name| *name == word) {
            Some(at) => {
                used[at] = true;
                text.push_str(arguments[at]);
            }
            None => text.push_str(&word),
        }
        word.clear();
        text.push(character);
    }
    text.pop();
    let own: Vec<&str> = arguments
        .iter()
        .zip(used)
        .filter_map(|(argument, used)| (!used).then_some(*argument))
        .collect();
    let mut method = base.to_string();
    if !own.is_empty() {
        method = format!("{base}<{}>", own.join(", "));
    }
    let mut path = vec![method.as_str()];
    path.extend(rest);
    (text, path.join("::"))
}

/// A linker's name as a path, or itself if it is not mangled.
pub fn demangled(symbol: &str) -> String {
    let text = format!("{:#}", rustc_demangle::demangle(symbol))
        .replace("::<", "<")
        .replace("{{closure}}", "{closure}");
    // `<A>::method`, as the newer mangling writes it, is `A::method` in the source.
    let parts = names::segments(&text);
    let whole = parts.first().and_then(|first| {
        let inner = first.strip_prefix('<')?.strip_suffix('>')?;
        let plain = !inner.contains(" as ") && !inner.starts_with(['[', '(', '&', '*']);
        plain.then(|| join(inner, &parts[1..].join("::")))
    });
    whole.unwrap_or(text)
}

pub fn name(dwarf: &Dwarf, unit: &Unit, entry: &DwarfEntry) -> gimli::Result<Option<String>> {
    match entry.attr_value(gimli::DW_AT_name) {
        Some(value) => Ok(Some(
            dwarf.attr_string(unit, value)?.to_string_lossy().into(),
        )),
        None => Ok(None),
    }
}

/// The entry that an attribute names, from the beginning of the section.
pub fn reference(entry: &DwarfEntry, attribute: gimli::DwAt, unit: u64) -> Option<u64> {
    match entry.attr_value(attribute)? {
        AttributeValue::UnitRef(UnitOffset(offset)) => Some(unit + offset as u64),
        AttributeValue::DebugInfoRef(DebugInfoOffset(offset)) => Some(offset as u64),
        _ => None,
    }
}

/// The code of an entry: where it begins, and how long it is there.
fn code<'a>(
    dwarf: &Dwarf<'a>,
    unit: &Unit<'a>,
    entry: &DwarfEntry<'a>,
) -> gimli::Result<Option<(u64, u64)>> {
    if !entry.has_attr(gimli::DW_AT_low_pc) && !entry.has_attr(gimli::DW_AT_ranges) {
        return Ok(None);
    }
    let mut ranges = dwarf.die_ranges(unit, entry)?;
    let mut first: Option<(u64, u64)> = None;
    while let Some(range) = ranges.next()? {
        // At zero lies what the linker threw away.
        if range.begin != 0 && range.begin < range.end {
            let range = (range.begin, range.end - range.begin);
            first = Some(first.map_or(range, |first| first.min(range)));
        }
    }
    Ok(first)
}
