//! Checks a linked kernel against the rules for the code that a hit of a probe runs through.
//!
//! The compiler cannot check this, because only the linked file shows what calls what and what was
//! inlined. See [`::hit_path`].

use std::{fs, path::Path};

use ::hit_path::{file, rules::KERNEL};
use anyhow::{Context, Result, bail};

/// Refuses a kernel if its hit path may take an edge that cannot be followed, panic, or change the
/// stack.
///
/// # Errors
/// Names each violation with its place and what to do. It also fails if the file cannot be read or
/// has no symbols.
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
