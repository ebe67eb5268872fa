//! Names of functions, as a registration gets them, and the errors for bad names.
//!
//! If no function has a name, the error gives the nearest names and the usual reason. If several
//! have it, the error lists them all. The texts need memory; without memory the error is that.
//!
//! # Contexts
//! Task context.

#![forbid(unsafe_code)]

use alloc::string::String;
use core::fmt;

use fallible::{OutOfMemory, written};

use crate::symbols::{self, Candidates, LookupError, Symbol};
use ::probes::ProbeError;

/// The address of the symbol called `name`: plain, mangled or demangled.
///
/// # Errors
/// [`ProbeError::UnknownSymbol`], [`ProbeError::AmbiguousSymbol`], [`ProbeError::NotReady`] before
/// there are symbols, [`ProbeError::OutOfMemory`].
pub fn lookup(name: &str) -> Result<u64, ProbeError> {
    match symbols::lookup_name(name) {
        Ok(symbol) => Ok(symbol.start),
        Err(LookupError::NoTable) => Err(ProbeError::NotReady),
        Err(LookupError::OutOfMemory) => Err(ProbeError::OutOfMemory),
        Err(LookupError::Ambiguous { name, candidates }) => Err(ProbeError::AmbiguousSymbol {
            name,
            candidates: text(format_args!("{}", Candidates(&candidates)))?,
        }),
        Err(LookupError::Unknown { name, nearest }) => {
            let list = Demangled(&nearest);
            let (before, after) = match nearest[..] {
                [] => ("", "it"),
                _ => ("did you mean ", "? It"),
            };
            Err(ProbeError::UnknownSymbol {
                name,
                hint: text(format_args!(
                    "{before}{list}{after} may have been inlined: then probe a caller of it"
                ))?,
            })
        }
    }
}

/// Shows the demangled names of symbols, with commas between.
struct Demangled<'a, 's>(&'a [Symbol<'s>]);

impl fmt::Display for Demangled<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, symbol) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{}", symbol.demangled())?;
        }
        Ok(())
    }
}

/// The text, where `format!` would end the kernel.
fn text(text: fmt::Arguments<'_>) -> Result<String, ProbeError> {
    written(&text).map_err(|OutOfMemory| ProbeError::OutOfMemory)
}
