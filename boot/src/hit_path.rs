//! Holds a linked kernel against the rules for the code that a hit of a probe runs through.
//!
//! The compiler cannot: only in the linked file is known what calls what, and what was inlined. See [`::hit_path`].

use std::{fs, path::Path};

use ::hit_path::{file, rules::KERNEL};
use anyhow::{Context, Result, bail};

/// Refuses a kernel on whose way of a hit something may go where nobody can follow, panic, or change the stack.
///
/// # Errors
/// What is wrong, each with its place and what to do. Also where the file cannot be read or has no symbols.
pub fn check(kernel: &Path) -> Result<()> {
    let bytes = fs::read(kernel).with_context(|| format!("cannot read {}", kernel.display()))?;
    let found = file::check(&bytes, &KERNEL)
        .with_context(|| format!("cannot read the symbols of {}", kernel.display()))?;
    if found.is_empty() {
        return Ok(());
    }
    let lines: Vec<_> = found
        .iter()
        .map(|violation| format!("  {violation}"))
        .collect();
    bail!(
        "{} breaks the rules for the code that a hit runs through:\n{}",
        kernel.display(),
        lines.join("\n")
    )
}
