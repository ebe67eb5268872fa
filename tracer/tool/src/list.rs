//! `-l GLOB`: what can be probed.

use std::io::Write;

use anyhow::{Context, Result, bail};
use debug_info::DebugInfo;
use trace_model::Kernel as _;

/// Writes a line for each function that the pattern matches, by address.
pub fn list(pattern: &str, symbols: &DebugInfo, out: &mut impl Write) -> Result<()> {
    let pattern = match pattern.split_once(':') {
        Some(("kprobe" | "k" | "kretprobe" | "kr" | "session", pattern))
            if !pattern.starts_with(':') =>
        {
            pattern
        }
        _ => pattern,
    };
    let functions = symbols.functions(pattern);
    if functions.is_empty() {
        let nearest = symbols.nearest(pattern);
        if nearest.is_empty() {
            bail!("no function matches `{pattern}`; `*` stands for any text: `-l 'vfs_*'`");
        }
        bail!(
            "no function matches `{pattern}`; near are {}",
            nearest.join(", ")
        );
    }
    let signatures = symbols.signatures(&functions);
    for (function, signature) in functions.iter().zip(signatures) {
        writeln!(out, "kprobe:{}  {signature}", function.path)
            .context("cannot write the list to standard output")?;
    }
    Ok(())
}
