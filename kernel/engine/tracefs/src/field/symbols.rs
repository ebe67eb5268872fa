//! The symbols of the kernel, as the texts of events name them.

use core::{
    error::Error,
    fmt::{self, Write},
};

use crate::digits::Ascii;

/// A symbol that covers an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolAt<'a> {
    /// Its name.
    pub name: &'a str,
    /// The distance of the address from its start.
    pub offset: u64,
    /// Its size in bytes.
    pub size: u64,
    /// The module that it belongs to.
    pub module: Option<&'a str>,
}

/// The reason why a name has no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// No symbol has this name.
    NotFound,
    /// This many symbols have this name.
    NotUnique(usize),
    /// There is no memory to look for it.
    OutOfMemory,
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("no symbol has this name; see kallsyms for the names"),
            Self::NotUnique(count) => {
                write!(f, "{count} symbols have this name; give an address instead")
            }
            Self::OutOfMemory => f.write_str("there is no memory to look for the name"),
        }
    }
}

impl Error for LookupError {}

/// The symbol table of the kernel.
pub trait Symbols {
    /// How far after the address of an object the address of its name is. The name ends with a
    /// NUL. `None`: objects of the kind have no names.
    fn name_offset(&self, object: Named) -> Option<u32> {
        let _ = object;
        None
    }

    /// The symbol that covers `address`.
    fn symbol(&self, address: u64) -> Option<SymbolAt<'_>>;

    /// The address of the only symbol named `name`.
    fn address(&self, name: &str) -> Result<u64, LookupError>;

    /// The address of the only symbol named `name` of a module; `None` as long as the module is
    /// not loaded.
    fn address_in_module(&self, module: &str, name: &str) -> Result<Option<u64>, LookupError> {
        let _ = (module, name);
        Ok(None)
    }

    /// Whether `path` is the file of a program that user probes may be on.
    ///
    /// # Errors
    /// [`ProgramError`].
    fn program(&self, path: &str) -> Result<(), ProgramError> {
        let _ = path;
        Err(ProgramError::NotFound)
    }

    /// Where in the file of the program at `path` the function called `name` begins.
    ///
    /// # Errors
    /// [`LookupError`].
    fn program_offset(&self, path: &str, name: &str) -> Result<u64, LookupError> {
        let _ = (path, name);
        Err(LookupError::NotFound)
    }

    /// The address at which the program at `path` has the byte at `offset` of its file; `None` if
    /// it has it nowhere.
    fn program_address(&self, path: &str, offset: u64) -> Option<u64> {
        let _ = (path, offset);
        None
    }
}

/// Why a path is not that of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramError {
    /// There is no such file.
    NotFound,
    /// It is no regular file.
    NotRegular,
    /// There is no memory for the question.
    OutOfMemory,
}

/// An object of the kernel that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Named {
    /// An open file: the type `%pD`.
    File,
    /// A use of a node in the tree of names, Linux's dentry: the type `%pd`.
    Node,
}

/// A symbol table without symbols.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSymbols;

impl Symbols for NoSymbols {
    fn symbol(&self, _address: u64) -> Option<SymbolAt<'_>> {
        None
    }

    fn address(&self, _name: &str) -> Result<u64, LookupError> {
        Err(LookupError::NotFound)
    }
}

/// Prints `address` as `symbol+0xoffset/0xsize`, or as a number if no symbol covers it.
pub fn print_symbol(address: u64, symbols: &dyn Symbols, out: &mut dyn Write) -> fmt::Result {
    match symbols.symbol(address) {
        Some(SymbolAt {
            name,
            offset,
            size,
            module,
        }) => {
            // One text, if the name is not among the longest.
            let mut place = Ascii::<88>::new();
            match name.len() {
                ..=48 => place.push(name.as_bytes()),
                _ => out.write_str(name)?,
            }
            place.push(b"+");
            place.push_hex(offset);
            place.push(b"/");
            place.push_hex(size);
            place.write_to(out)?;
            match module {
                Some(module) => write!(out, " [{module}]"),
                None => Ok(()),
            }
        }
        None => {
            let mut number = Ascii::<18>::new();
            number.push_hex(address);
            number.write_to(out)
        }
    }
}
