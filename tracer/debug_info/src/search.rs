//! Names and lines as a user writes them, and what they mean: functions, copies of functions that
//! were inlined, addresses of lines. For a name that is not there, the near ones.
//!
//! A name is held against all names of the index. That takes milliseconds, and is done once for
//! each name of a program.

use std::collections::HashMap;

use trace_interface::symbols::{Function, TypeId, Unavailable};

use crate::{
    DebugInfo,
    index::FunctionRow,
    lines,
    names::{self, Pattern},
    session::Session,
    types,
};

/// How many near names a message has.
pub const NEAR: usize = 5;

impl DebugInfo {
    pub(crate) fn find(&self, pattern: &str) -> Vec<Function> {
        let pattern = Pattern::new(pattern);
        if let Some(symbol) = pattern.symbol() {
            let found = self.by_symbol().get(symbol.as_bytes());
            let mut rows = found.cloned().unwrap_or_default();
            rows.dedup_by_key(|row| row.address);
            return rows.into_iter().map(|row| self.function(row)).collect();
        }
        let mut found: Vec<Function> = Vec::new();
        for row in self.index.functions() {
            let matches = pattern.matches(self.index.name(row.path))
                || pattern.matches_symbol(self.index.name(row.symbol));
            // Several names of one function are one place.
            if matches && found.last().is_none_or(|last| last.address != row.address) {
                found.push(self.function(row));
            }
        }
        found
    }

    /// The functions by the linker's names.
    fn by_symbol(&self) -> &HashMap<Vec<u8>, Vec<FunctionRow>> {
        self.by_symbol.get_or_init(|| {
            let mut rows: HashMap<Vec<u8>, Vec<FunctionRow>> = HashMap::new();
            for row in self.index.functions() {
                let symbol = self.index.bytes_of(row.symbol);
                rows.entry(symbol.to_vec()).or_default().push(row);
            }
            rows
        })
    }

    pub(crate) fn find_inlined(&self, pattern: &str) -> Vec<u64> {
        let pattern = Pattern::new(pattern);
        let mut addresses = Vec::new();
        self.each_inlined(&pattern, |_, address, _| addresses.push(address));
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Calls `visit` with path, address and entry of each copy of the functions that are meant.
    pub(crate) fn each_inlined(&self, pattern: &Pattern, mut visit: impl FnMut(u32, u64, u64)) {
        // By path, because most functions have many copies.
        let mut meant: Vec<Option<bool>> = vec![None; self.index.names()];
        for (path, address, entry) in self.index.inlined() {
            let Some(is_meant) = meant.get_mut(path as usize) else {
                continue;
            };
            if *is_meant.get_or_insert_with(|| pattern.matches(self.index.name(path))) {
                visit(path, address, entry);
            }
        }
    }

    pub(crate) fn find_line(&self, file: &str, line: u32) -> Result<Vec<u64>, Unavailable> {
        let session = self.session();
        let mut rows: Vec<lines::Row> = Vec::new();
        let mut known = false;
        let mut last_unit = None;
        for (path, unit) in self.index.files() {
            if lines::ends_with(self.index.name(path), file) {
                known = true;
                if last_unit != Some((path, unit)) {
                    let wanted = self.index.name(path);
                    rows.extend(lines::rows(&session, &self.image, unit, |path| {
                        path == wanted
                    }));
                }
                last_unit = Some((path, unit));
            }
        }
        if !known {
            let files: Vec<&str> = self
                .index
                .files()
                .map(|(path, _)| self.index.name(path))
                .collect();
            let base = file.rsplit('/').next().unwrap_or(file);
            let bases = files
                .iter()
                .map(|path| path.rsplit('/').next().unwrap_or(path));
            let near = names::nearest(base, bases, NEAR);
            return Err(Unavailable {
                reason: format!("no code of the kernel is from a file {file}"),
                help: did_you_mean(&near),
            });
        }
        rows.sort_unstable();
        rows.dedup();
        let addresses: Vec<u64> = rows
            .iter()
            .filter(|row| row.line == line)
            .map(|row| row.address)
            .collect();
        if !addresses.is_empty() {
            return Ok(addresses);
        }
        let declared = self.declared_at(&session, file, line);
        if !declared.is_empty() {
            return Ok(declared);
        }
        let before = rows.iter().rev().find(|row| row.line < line);
        let after = rows.iter().find(|row| row.line > line);
        let near: Vec<String> = before
            .into_iter()
            .chain(after)
            .map(|row| row.line.to_string())
            .collect();
        Err(Unavailable {
            reason: format!("no code begins at line {line} of {file}"),
            help: if near.is_empty() {
                "no line of the file has code: it is not used, or all of it is computed by the \
                 compiler"
                    .into()
            } else {
                format!("the nearest lines with code are {}", near.join(" and "))
            },
        })
    }

    /// The type that a name means, or the paths of those that are called so.
    pub(crate) fn find_type(&self, name: &str) -> Result<TypeId, Vec<String>> {
        let pattern = Pattern::new(name);
        let mut found: Vec<(u32, u64)> = self.index.types().collect();
        found.retain(|(path, _)| pattern.matches(self.index.name(*path)));
        let is_whole = |(path, _): &(u32, u64)| self.index.name(*path) == name.trim();
        if found.iter().any(is_whole) {
            found.retain(is_whole);
        }
        // Units that use a type describe it each for itself.
        let mut paths: Vec<&str> = found
            .iter()
            .map(|(path, _)| self.index.name(*path))
            .collect();
        paths.sort_unstable();
        paths.dedup();
        let session = self.session();
        let size = |(_, entry): &(u32, u64)| types::size(&session, TypeId(*entry));
        match (found.first(), &paths[..]) {
            (Some(first), [_]) if found.iter().all(|other| size(other) == size(first)) => {
                Ok(TypeId(first.1))
            }
            _ => Err(paths.into_iter().map(String::from).collect()),
        }
    }

    /// The entries of the functions whose names stand at a line. Their code begins at another one
    /// where the names of their arguments have lines of their own.
    fn declared_at(&self, session: &Session, file: &str, line: u32) -> Vec<u64> {
        let is_there = |row: &FunctionRow| {
            let place = row.entry.and_then(|entry| lines::declared(session, entry));
            place.is_some_and(|place| place.1 == line && lines::ends_with(&place.0, file))
        };
        let rows = self.index.functions().filter(is_there);
        rows.map(|row| row.address).collect()
    }

    pub(crate) fn near(&self, name: &str) -> Vec<String> {
        let last = names::segments(name).pop().unwrap_or(name);
        let functions = self.index.functions().map(|row| row.path);
        let inlined = self.index.inlined().map(|(path, ..)| path);
        let mut numbers: Vec<u32> = functions.chain(inlined).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let candidates = numbers.into_iter().filter_map(|path| {
            let last = names::segments(self.index.name(path)).pop()?;
            Some(names::generics(last).0)
        });
        names::nearest(last, candidates, NEAR)
            .into_iter()
            .map(String::from)
            .collect()
    }
}

/// The help for a name that is not there.
pub fn did_you_mean(names: &[&str]) -> String {
    ::names::did_you_mean(names).to_string()
}
