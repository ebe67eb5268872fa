//! Names of functions and data that fit into a line of text.
//!
//! The files of tracing divide lines at blanks, and give `:`, `+` and `%` a meaning. A Rust path
//! does not fit there. So each symbol with a mangled name has another one here: its path with `.`
//! for `::` and `_` for every other sign. For example, `kernel::fs::file::vfs_read` would be
//! `kernel.fs.file.vfs_read`. It does not depend on the build, as the linker's name does. A symbol
//! without mangling keeps its name. Both the linker's name and this one are understood.
//!
//! # Contexts
//! Task context. The table is made at the first question that needs it, and stays. The boot asks
//! for names of the linker only, which do not.

#![forbid(unsafe_code)]

use alloc::{borrow::ToOwned, boxed::Box, string::String, vec::Vec};
use core::{cell::Cell, fmt::Write};

use fallible::push;
use spin::Once;
use tracefs::field::{self, LookupError, ProgramError, SymbolAt, Symbols};

use crate::{
    errno::Errno,
    fs::{File, NodeRef},
    mm::init_text,
    probes::{ProbeError, survey},
    symbols::{self, Symbol, SymbolKind},
    uprobes::{self, UprobeError},
};

/// A symbol and its name.
struct Named {
    start: u64,
    size: u64,
    kind: SymbolKind,
    name: Box<str>,
}

/// All symbols: by address, and the order by name.
struct Names {
    by_address: Vec<Named>,
    by_name: Vec<u32>,
}

static NAMES: Once<Names> = Once::new();

fn names() -> &'static Names {
    NAMES.call_once(|| {
        let mut by_address: Vec<Named> = symbols::all()
            .map(|symbol| Named {
                start: symbol.start,
                size: symbol.size,
                kind: symbol.kind,
                name: name_of(&symbol),
            })
            .collect();
        by_address.sort_by_key(|named| named.start);
        let mut by_name: Vec<u32> = (0..by_address.len() as u32).collect();
        by_name.sort_by(|a, b| {
            by_address[*a as usize]
                .name
                .cmp(&by_address[*b as usize].name)
        });
        Names {
            by_address,
            by_name,
        }
    })
}

/// The name of a symbol that fits into a line.
fn name_of(symbol: &Symbol<'_>) -> Box<str> {
    if !symbol.name.starts_with("_R") && !symbol.name.starts_with("_ZN") {
        return symbol.name.into();
    }
    let mut path = String::new();
    // Writing to a string cannot fail.
    let _ = write!(path, "{}", symbol.demangled());
    let mut name = String::with_capacity(path.len());
    for sign in path.replace("::", ".").chars() {
        match sign {
            '.' if name.ends_with('_') => {
                name.pop();
                name.push('.');
            }
            '.' => name.push('.'),
            sign if sign.is_ascii_alphanumeric() => name.push(sign),
            _ if name.is_empty() || name.ends_with(['_', '.']) => {}
            _ => name.push('_'),
        }
    }
    let name = name.trim_end_matches(['_', '.']);
    if name.starts_with(|first: char| first.is_ascii_digit()) || name.is_empty() {
        return symbol.name.into();
    }
    name.to_owned().into_boxed_str()
}

impl Names {
    /// The symbols with that name.
    fn called(&self, name: &str) -> &[u32] {
        let named = |index: &u32| &*self.by_address[*index as usize].name;
        let start = self.by_name.partition_point(|index| named(index) < name);
        let count = self.by_name[start..]
            .iter()
            .take_while(|index| named(index) == name)
            .count();
        &self.by_name[start..start + count]
    }
}

/// The symbols of this kernel, for the files of tracing.
pub struct KernelSymbols;

/// The symbol at an address.
pub fn symbol_at(address: u64) -> Option<SymbolAt<'static>> {
    let symbol = symbols::lookup_addr(address)?;
    let names = names();
    let index = names
        .by_address
        .partition_point(|named| named.start < symbol.start);
    let named = names.by_address.get(index)?;
    Some(SymbolAt {
        name: &named.name,
        offset: address.wrapping_sub(symbol.start),
        size: symbol.size,
        module: None,
    })
}

impl Symbols for KernelSymbols {
    fn symbol(&self, address: u64) -> Option<SymbolAt<'_>> {
        symbol_at(address)
    }

    fn address(&self, name: &str) -> Result<u64, LookupError> {
        // Paths have several parts here, and their names have dots.
        let called: &[u32] = if name.contains('.') {
            names().called(name)
        } else {
            &[]
        };
        match *called {
            [index] => Ok(names().by_address[index as usize].start),
            [] => match symbols::lookup_name(name) {
                Ok(symbol) => Ok(symbol.start),
                Err(symbols::LookupError::Ambiguous { candidates, .. }) => {
                    Err(LookupError::NotUnique(candidates.len()))
                }
                Err(symbols::LookupError::OutOfMemory) => Err(LookupError::OutOfMemory),
                Err(symbols::LookupError::Unknown { .. } | symbols::LookupError::NoTable) => {
                    Err(LookupError::NotFound)
                }
            },
            _ => Err(LookupError::NotUnique(called.len())),
        }
    }

    fn name_offset(&self, object: field::Named) -> Option<u32> {
        Some(match object {
            field::Named::File => File::NAME_OFFSET,
            field::Named::Node => NodeRef::NAME_OFFSET,
        } as u32)
    }

    fn program(&self, path: &str) -> Result<(), ProgramError> {
        uprobes::check_file(path).map_err(|errno| match errno {
            Errno::EINVAL => ProgramError::NotRegular,
            Errno::ENOMEM => ProgramError::OutOfMemory,
            _ => ProgramError::NotFound,
        })
    }

    fn program_offset(&self, path: &str, name: &str) -> Result<u64, LookupError> {
        uprobes::function_offset(path, name).map_err(|error| match error {
            UprobeError::AmbiguousSymbol { .. } => LookupError::NotUnique(2),
            UprobeError::OutOfMemory => LookupError::OutOfMemory,
            _ => LookupError::NotFound,
        })
    }

    fn program_address(&self, path: &str, offset: u64) -> Option<u64> {
        uprobes::address_in_memory(path, offset)
    }

    fn address_in_module(&self, module: &str, name: &str) -> Result<Option<u64>, LookupError> {
        // Modules are part of this kernel, so their symbols are always there.
        let is_known = crate::module::list()
            .iter()
            .any(|known| known.name() == module);
        if is_known {
            self.address(name).map(Some)
        } else {
            Ok(None)
        }
    }
}

/// The same for a reader of many addresses, most of which it has met before: for example, all lines
/// of an event have its place.
pub struct CachedSymbols([Cell<Cached>; Self::PLACES]);

/// An address, and the answer.
type Cached = Option<(u64, Option<SymbolAt<'static>>)>;

impl CachedSymbols {
    const PLACES: usize = 64;

    pub const fn empty() -> Self {
        Self([const { Cell::new(None) }; Self::PLACES])
    }
}

impl Symbols for CachedSymbols {
    fn symbol(&self, address: u64) -> Option<SymbolAt<'_>> {
        // Functions begin at multiples of 16.
        let place = &self.0[(address ^ address >> 4) as usize % Self::PLACES];
        match place.get() {
            Some((known, symbol)) if known == address => symbol,
            _ => {
                let symbol = symbol_at(address);
                place.set(Some((address, symbol)));
                symbol
            }
        }
    }

    fn address(&self, name: &str) -> Result<u64, LookupError> {
        KernelSymbols.address(name)
    }

    fn address_in_module(&self, module: &str, name: &str) -> Result<Option<u64>, LookupError> {
        KernelSymbols.address_in_module(module, name)
    }
}

/// Calls `visit` with the name of each function, by address, whose entry can be probed and that has
/// a name of its own: those that a definition can name.
///
/// # Errors
/// [`Errno::ENOMEM`], and those of `visit`.
pub fn functions(mut visit: impl FnMut(&str) -> Result<(), Errno>) -> Result<(), Errno> {
    let names = names();
    for (_, name) in traceable()? {
        if names.called(name).len() == 1 {
            visit(name)?;
        }
    }
    Ok(())
}

/// The functions whose entries can be probed, by address: where each begins, and its name. Several
/// may have one name.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn traceable() -> Result<impl Iterator<Item = (u64, &'static str)>, Errno> {
    /// Their places in the table. They stay the same, because init text is left out.
    static TRACEABLE: Once<Vec<u32>> = Once::new();
    let names = names();
    let found = TRACEABLE.try_call_once(|| {
        let mut found = Vec::new();
        for (place, named) in (0..).zip(&names.by_address) {
            let is_init = init_text::range().contains(&named.start);
            if named.kind != SymbolKind::Text || named.size == 0 || is_init {
                continue;
            }
            match survey::entry(named.start..named.start + named.size) {
                Ok(()) => push(&mut found, place)?,
                Err(ProbeError::OutOfMemory) => return Err(Errno::ENOMEM),
                Err(_) => {}
            }
        }
        Ok(found)
    })?;
    Ok(found.iter().map(|place| {
        let named = &names.by_address[*place as usize];
        (named.start, &*named.name)
    }))
}
