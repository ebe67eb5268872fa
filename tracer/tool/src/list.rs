//! `-l GLOB`: what can be probed.

use std::io::Write;

use anyhow::{Context, Result, bail};
use debug_info::DebugInfo;
use trace_model::Kernel as _;

const CANNOT_WRITE: &str = "cannot write the list to standard output";

/// Writes a line for each event of the kernel that the pattern matches.
pub fn list_events(pattern: &str, out: &mut impl Write) -> Result<()> {
    let events = trace_script::events(pattern);
    if events.is_empty() {
        bail!("no event matches `{pattern}`; `-l 'tracepoint:*'` lists them all");
    }
    for (name, what) in events {
        writeln!(out, "tracepoint:{name}  {what}").context(CANNOT_WRITE)?;
    }
    Ok(())
}

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
        writeln!(out, "kprobe:{}  {signature}", function.path).context(CANNOT_WRITE)?;
    }
    Ok(())
}
