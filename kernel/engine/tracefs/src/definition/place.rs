//! The places of definitions: code of the kernel, code of a program, memory.
//!
//! A place is written as [`super`] says, and printed so that it parses to an equal one. Which forms
//! a command may have depends on the file that it is written to.

use crate::{
    fetch::Location,
    field::{LookupError, ProgramError, Symbols},
    number,
    refusal::{Reason, no_memory},
};
use alloc::string::String;
use core::fmt;

use fallible::copied;

/// The file that a command is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// `kprobe_events`.
    KprobeEvents,
    /// `uprobe_events`.
    UprobeEvents,
    /// `dynamic_events`, which also takes a leading `!`.
    DynamicEvents,
}

/// A place to probe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ProbePlace {
    /// An address.
    Address(u64),
    /// A distance from a symbol.
    Symbol {
        /// The module that the symbol belongs to.
        module: Option<String>,
        /// Its name.
        name: String,
        /// The distance in bytes.
        offset: u32,
    },
    /// A place in a program.
    Program {
        /// The absolute path of its file.
        path: String,
        /// The place in the file, in bytes.
        offset: u64,
        /// The offset in the file of the word that counts probes.
        counter: Option<u64>,
    },
    /// Memory of the kernel.
    Memory {
        /// Whether reads count, too.
        reads: bool,
        /// Where it begins. None: nowhere, until a trigger says where ([`Action::AimWatch`]).
        ///
        /// [`Action::AimWatch`]: crate::trigger::Action::AimWatch
        location: Option<Location>,
        /// How many bytes it has, if the definition says it.
        bytes: Option<u8>,
    },
}

/// The memory of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Where it begins. None: triggers say where.
    pub address: Option<u64>,
    /// How many bytes it has: 1, 2, 4 or 8.
    pub bytes: u8,
}

impl fmt::Display for ProbePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address:#x}"),
            Self::Memory {
                reads,
                location,
                bytes,
            } => {
                let access = if *reads { "rw" } else { "w" };
                match location {
                    Some(location) => write!(f, "{access}@{location}")?,
                    None => write!(f, "{access}@-1")?,
                }
                match bytes {
                    Some(bytes) => write!(f, ":{bytes}"),
                    None => Ok(()),
                }
            }
            Self::Program {
                path,
                offset,
                counter,
            } => {
                write!(f, "{path}:{offset:#018x}")?;
                match counter {
                    Some(counter) => write!(f, "({counter:#x})"),
                    None => Ok(()),
                }
            }
            Self::Symbol {
                module,
                name,
                offset,
            } => {
                if let Some(module) = module {
                    write!(f, "{module}:")?;
                }
                f.write_str(name)?;
                match offset {
                    0 => Ok(()),
                    offset => write!(f, "+{offset}"),
                }
            }
        }
    }
}

impl ProbePlace {
    /// Parses PLACE. The flag says whether `%return` follows.
    pub(super) fn parse(
        word: &str,
        file: File,
        symbols: &dyn Symbols,
    ) -> Result<(Self, bool), (Reason, usize)> {
        if let Some((path, place)) = Self::split_program(word) {
            return match file {
                File::KprobeEvents => Err((Reason::UserProbe, 0)),
                _ => Self::parse_in_program(path, place, symbols),
            };
        }
        if file == File::UprobeEvents {
            return Err((Reason::KernelProbe, 0));
        }
        if let (File::DynamicEvents, Some((access, memory))) = (file, word.split_once('@')) {
            return Ok((Self::parse_watch(access, memory, symbols)?, false));
        }
        if let Some(address) = number::digits(word) {
            return Ok((Self::Address(address), false));
        }
        let (word, is_return) = match word.split_once('%') {
            Some((word, "return")) => (word, true),
            Some((word, _)) => return Err((Reason::BadAddressSuffix, word.len())),
            None => (word, false),
        };
        let (symbol, offset) = match word.find(['+', '-']) {
            Some(sign) => word.split_at(sign),
            None => (word, "+0"),
        };
        let offset = number::signed(offset).and_then(|offset| u32::try_from(offset).ok());
        let offset = offset.ok_or((Reason::BadProbeAddress, 0))?;
        let (module, name) = match symbol.split_once(':') {
            Some((module, name)) => (Some(copied(module).map_err(no_memory)?), name),
            None => (None, symbol),
        };
        if name.is_empty() || module.as_ref().is_some_and(String::is_empty) {
            return Err((Reason::BadProbeAddress, 0));
        }
        Ok((
            Self::Symbol {
                module,
                name: copied(name).map_err(no_memory)?,
                offset,
            },
            is_return,
        ))
    }

    /// Parses `r`, `w`, `rw` or nothing, and what follows the `@` after it.
    fn parse_watch(
        access: &str,
        memory: &str,
        symbols: &dyn Symbols,
    ) -> Result<Self, (Reason, usize)> {
        let start = access.len() + 1;
        let reads = match access {
            "w" => false,
            "rw" | "" => true,
            "r" => return Err((Reason::ReadsAlone, 0)),
            _ => return Err((Reason::BadAccess, 0)),
        };
        // The path of a static has colons, too.
        let length = memory.rsplit_once(':');
        let length = length.filter(|(path, _)| !path.ends_with(':'));
        let (memory, bytes) = match length {
            Some((memory, length)) => {
                let bytes = number::digits(length).and_then(|bytes| u8::try_from(bytes).ok());
                let bytes = bytes.filter(|bytes| [1, 2, 4, 8].contains(bytes));
                let column = start + memory.len() + 1;
                (memory, Some(bytes.ok_or((Reason::BadWatchLength, column))?))
            }
            None => (memory, None),
        };
        let location = match memory {
            "-1" => None,
            _ => Some(
                Location::parse(memory, symbols).map_err(|reason| match reason {
                    Reason::BadMemoryAddress => (Reason::BadProbeAddress, start),
                    other => (other, start),
                })?,
            ),
        };
        Ok(Self::Memory {
            reads,
            location,
            bytes,
        })
    }

    /// The watched memory. Without a length its bytes are those of the symbol that begins there, or
    /// else 8, and fewer if the address is no multiple of them. None: it is a place in code, or its
    /// symbol is gone.
    pub fn watched(&self, symbols: &dyn Symbols) -> Option<Watched> {
        let Self::Memory {
            location, bytes, ..
        } = self
        else {
            return None;
        };
        let Some(location) = location else {
            return Some(Watched {
                address: None,
                bytes: bytes.unwrap_or(8),
            });
        };
        let address = location.address(symbols).ok()?;
        let bytes = bytes.unwrap_or_else(|| {
            let symbol = symbols.symbol(address).filter(|symbol| symbol.offset == 0);
            let size = symbol.map_or(8, |symbol| symbol.size).clamp(1, 8);
            let alignment = 1 << address.trailing_zeros().min(3);
            1 << size.min(alignment).ilog2()
        });
        Some(Watched {
            address: Some(address),
            bytes,
        })
    }

    /// Whether the word of a place is that of one in a program.
    pub(crate) fn is_in_program(word: &str) -> bool {
        Self::split_program(word).is_some()
    }

    /// Divides `PATH:PLACE`. A path may have colons, so a number is what follows the last one. The
    /// name of a function follows the first colon that is not doubled.
    fn split_program(word: &str) -> Option<(&str, &str)> {
        if !word.contains('/') {
            return None;
        }
        let (path, place) = word.rsplit_once(':')?;
        if place.starts_with(|c: char| c.is_ascii_digit()) {
            return Some((path, place));
        }
        let bytes = word.as_bytes();
        let is_single = |at: &usize| {
            bytes[*at] == b':'
                && (*at == 0 || bytes[at - 1] != b':')
                && bytes.get(at + 1) != Some(&b':')
        };
        let at = (0..bytes.len()).find(is_single)?;
        Some((&word[..at], &word[at + 1..]))
    }

    /// Parses `PATH` and `OFFSET[%return][(COUNTER)]`, with a colon between them.
    fn parse_in_program(
        path: &str,
        place: &str,
        symbols: &dyn Symbols,
    ) -> Result<(Self, bool), (Reason, usize)> {
        let start = path.len() + 1;
        symbols.program(path).map_err(|error| match error {
            ProgramError::NotFound => (Reason::FileNotFound, 0),
            ProgramError::NotRegular => (Reason::NoRegularFile, 0),
            ProgramError::OutOfMemory => (Reason::OutOfMemory, 0),
        })?;
        let (place, counter) = match place.split_once('(') {
            Some((place, rest)) => {
                let rest_start = start + place.len() + 1;
                let (digits, suffix) = rest
                    .split_once(')')
                    .ok_or((Reason::ReferenceCounterNotClosed, rest_start + rest.len()))?;
                if !suffix.is_empty() {
                    let column = rest_start + digits.len() + 1;
                    return Err((Reason::BadReferenceCounterSuffix, column));
                }
                let counter = number::digits(digits);
                (
                    place,
                    Some(counter.ok_or((Reason::BadReferenceCounter, rest_start))?),
                )
            }
            None => (place, None),
        };
        let (place, is_return) = match place.split_once('%') {
            Some((place, "return")) => (place, true),
            Some((place, _)) => return Err((Reason::BadAddressSuffix, start + place.len())),
            None => (place, false),
        };
        let offset = match number::digits(place) {
            Some(offset) => offset,
            None => offset_of_function(path, place, symbols).map_err(|reason| (reason, start))?,
        };
        Ok((
            Self::Program {
                path: copied(path).map_err(no_memory)?,
                offset,
                // Linux takes 0 as none.
                counter: counter.filter(|counter| *counter != 0),
            },
            is_return,
        ))
    }

    /// The path of the program that it is in, if it is in one.
    pub fn program(&self) -> Option<&str> {
        match self {
            Self::Program { path, .. } => Some(path),
            _ => None,
        }
    }

    /// Its address; `None` as long as its module is not loaded, and for a place in a program.
    pub fn address(&self, symbols: &dyn Symbols) -> Result<Option<u64>, LookupError> {
        match self {
            Self::Address(address) => Ok(Some(*address)),
            Self::Program { .. } => Ok(None),
            Self::Memory { location: None, .. } => Ok(None),
            Self::Memory {
                location: Some(location),
                ..
            } => location.address(symbols).map(Some),
            Self::Symbol {
                module,
                name,
                offset,
            } => {
                let start = match module {
                    Some(module) => symbols.address_in_module(module, name)?,
                    None => Some(symbols.address(name)?),
                };
                Ok(start.map(|start| start.wrapping_add(u64::from(*offset))))
            }
        }
    }

    /// Whether a function begins here, as far as the symbols tell. The symbol of a module that is
    /// not loaded counts as a function.
    pub(super) fn is_function_entry(&self, symbols: &dyn Symbols) -> bool {
        match self {
            Self::Address(address) => symbols
                .symbol(*address)
                .is_some_and(|symbol| symbol.offset == 0),
            Self::Symbol { offset, .. } => *offset == 0,
            Self::Program { .. } | Self::Memory { .. } => false,
        }
    }
}

/// The offset in the file of `FUNCTION[+OFFS]`.
fn offset_of_function(path: &str, place: &str, symbols: &dyn Symbols) -> Result<u64, Reason> {
    let (name, offset) = match place.rsplit_once('+') {
        Some((name, offset)) => (name, number::digits(offset).ok_or(Reason::BadUserOffset)?),
        None => (place, 0),
    };
    match symbols.program_offset(path, name) {
        Ok(start) => Ok(start.saturating_add(offset)),
        Err(LookupError::NotFound) => Err(Reason::BadUserOffset),
        Err(LookupError::NotUnique(_)) => Err(Reason::SymbolNotUnique),
        Err(LookupError::OutOfMemory) => Err(Reason::OutOfMemory),
    }
}
