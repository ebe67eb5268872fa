//! Names of functions, as a registration gets them, and the errors for bad names.
//!
//! # Contexts
//! Task context.

#![forbid(unsafe_code)]

use ::probes::ProbeError;
use hit_path::symbols::lookup_error;

use crate::symbols;

/// The address of the symbol called `name`: plain, mangled or demangled.
///
/// # Errors
/// [`ProbeError::UnknownSymbol`], [`ProbeError::AmbiguousSymbol`], [`ProbeError::NotReady`] before
/// there are symbols, [`ProbeError::OutOfMemory`].
pub fn lookup(name: &str) -> Result<u64, ProbeError> {
    let symbol = symbols::lookup_name(name).map_err(lookup_error)?;
    Ok(symbol.start)
}
