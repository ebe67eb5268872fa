//! `-l GLOB`: what can be probed, a line for each place.
//!
//! A line begins with the place as a program names it, so that it can be copied. What is known of
//! the place follows: a signature, a type, fields, file and line. A pattern that nothing matches is
//! an error that tells how to see all.

use std::{collections::BTreeMap, io::Write};

use anyhow::{Context, Error, Result, bail};
use debug_info::{DebugInfo, Static};
use trace_compiler::EventTable;
use trace_interface::{
    Kernel as _,
    symbols::{Unavailable, glob},
};

const CANNOT_WRITE: &str = "cannot write the list to standard output";

/// Writes a line for each event of a kernel that the pattern matches.
pub fn list_events(table: &EventTable, pattern: &str, out: &mut impl Write) -> Result<()> {
    let events = table.events(pattern);
    if events.is_empty() && table.events("*").is_empty() {
        bail!("the kernel has no event sources; probe functions: `-l '*'` lists them");
    }
    if events.is_empty() {
        bail!("no event matches `{pattern}`; `-l 'tracepoint:*'` lists them all");
    }
    for (name, what) in events {
        writeln!(out, "tracepoint:{name}  {what}").context(CANNOT_WRITE)?;
    }
    Ok(())
}

/// Writes the timers, if the pattern asks for them: `interval:*`, `profile:hz:*`. Whether it does.
pub fn list_timers(pattern: &str, out: &mut impl Write) -> Result<bool> {
    const KINDS: [&str; 2] = ["interval", "profile"];
    let kind = pattern.split_once(':').map(|(kind, _)| kind);
    if !kind.is_some_and(|kind| KINDS.contains(&kind)) {
        return Ok(false);
    }
    let all = KINDS.into_iter().flat_map(|kind| {
        let units = ["hz", "ms", "s", "us"].into_iter();
        units.map(move |unit| format!("{kind}:{unit}:N"))
    });
    let found: Vec<String> = all.filter(|timer| glob(pattern, timer)).collect();
    if found.is_empty() {
        bail!("no timer matches `{pattern}`; `-l 'interval:*'` and `-l 'profile:*'` list them");
    }
    for timer in found {
        writeln!(out, "{timer}").context(CANNOT_WRITE)?;
    }
    Ok(true)
}

/// Writes a line for each static that the pattern matches, by path, with its type and size.
pub fn list_statics(pattern: &str, symbols: &DebugInfo, out: &mut impl Write) -> Result<()> {
    let found = symbols.statics(pattern);
    if found.is_empty() {
        bail!("no static of the kernel matches `{pattern}`; `-l 'watch:*'` lists them all");
    }
    found
        .iter()
        .try_for_each(|found| write_static("", found, out))
}

/// The line of a static, whose path comes after `program`.
fn write_static(program: &str, found: &Static, out: &mut impl Write) -> Result<()> {
    let Static {
        path,
        type_name,
        bytes,
    } = found;
    let plural = if *bytes == 1 { "" } else { "s" };
    writeln!(
        out,
        "watch:{program}{path}  {type_name}  {bytes} byte{plural}"
    )
    .context(CANNOT_WRITE)
}

/// The same for statics of programs: `PATH:STATIC`, both with `*` and `?`. `programs` are those of
/// the machine, by path.
pub fn list_program_statics<'p>(
    pattern: &str,
    programs: impl IntoIterator<Item = (&'p str, &'p DebugInfo)>,
    out: &mut impl Write,
) -> Result<()> {
    list_in_programs(pattern, "static", programs, |of, symbols, wanted| {
        let found = symbols.statics(wanted);
        let program = format!("{of}:");
        found
            .iter()
            .try_for_each(|found| write_static(&program, found, out))?;
        Ok(found.len())
    })
}

/// Writes a line for each instruction of the kernel whose mnemonic or text the pattern matches. The
/// pattern may be in quotes, as in a program.
pub fn list_instructions(pattern: &str, symbols: &DebugInfo, out: &mut impl Write) -> Result<()> {
    let unquoted = pattern
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    let found = symbols.instructions(unquoted.unwrap_or(pattern));
    list_places(found.map_err(refused)?, symbols, out)
}

/// Writes a line for each place where code of a source line begins: `FILE:LINE`.
pub fn list_line(place: &str, symbols: &DebugInfo, out: &mut impl Write) -> Result<()> {
    let (file, line) = place.rsplit_once(':').unwrap_or((place, ""));
    let Ok(line) = line.parse() else {
        bail!("`line:{place}` names no line; write line:FILE:LINE");
    };
    list_places(symbols.line(file, line).map_err(refused)?, symbols, out)
}

/// Writes a line for each place where a copy of a function begins that the pattern matches.
pub fn list_inlined(pattern: &str, symbols: &DebugInfo, out: &mut impl Write) -> Result<()> {
    let found = symbols.inlined(pattern);
    if found.is_empty() {
        bail!("no copy of a function that matches `{pattern}` is inlined anywhere");
    }
    list_places(found, symbols, out)
}

fn refused(unavailable: Unavailable) -> Error {
    Error::msg(unavailable.to_string())
}

/// Writes a line for each address: the function that it is in, how far, and its line.
fn list_places(mut addresses: Vec<u64>, symbols: &DebugInfo, out: &mut impl Write) -> Result<()> {
    addresses.sort_unstable();
    addresses.dedup();
    for address in addresses {
        let frames = symbols.symbolise(address);
        let Some(own) = frames.last() else { continue };
        write!(out, "kprobe:{}", own.function).context(CANNOT_WRITE)?;
        if let Some(offset @ 1..) = own.offset {
            write!(out, "+{offset:#x}").context(CANNOT_WRITE)?;
        }
        let place = own.place.as_ref();
        let place = place.map_or_else(String::new, |(file, line)| format!("  {file}:{line}"));
        writeln!(out, "{place}").context(CANNOT_WRITE)?;
    }
    Ok(())
}

/// Writes a line for each function of a program that the pattern matches, by address:
/// `PATH:FUNCTION`, both with `*` and `?`. `programs` are those of the machine, by path.
pub fn list_program_functions<'p>(
    pattern: &str,
    programs: impl IntoIterator<Item = (&'p str, &'p DebugInfo)>,
    out: &mut impl Write,
) -> Result<()> {
    list_in_programs(pattern, "function", programs, |of, symbols, wanted| {
        let functions = symbols.functions_of_program(wanted);
        let signatures = symbols.signatures(&functions);
        for (function, signature) in functions.iter().zip(signatures) {
            writeln!(out, "uprobe:{of}:{}  {signature}", function.path).context(CANNOT_WRITE)?;
        }
        Ok(functions.len())
    })
}

/// Has `list` write what is wanted of each program that `PATH:WANTED` matches, and say how much
/// that was. Nothing at all is an error, which calls it `kind`.
fn list_in_programs<'p>(
    pattern: &str,
    kind: &str,
    programs: impl IntoIterator<Item = (&'p str, &'p DebugInfo)>,
    mut list: impl FnMut(&str, &DebugInfo, &str) -> Result<usize>,
) -> Result<()> {
    let (path, wanted) = pattern.split_once(':').unwrap_or((pattern, "*"));
    let (all, matching): (Vec<_>, Vec<_>) = programs
        .into_iter()
        .map(|program| (program.0, glob(path, program.0).then_some(program)))
        .unzip();
    let matching: Vec<_> = matching.into_iter().flatten().collect();
    if matching.is_empty() {
        bail!("no program matches `{path}`; there are {}", all.join(", "));
    }
    let mut found = 0;
    for (of, symbols) in matching {
        found += list(of, symbols, wanted)?;
    }
    if found == 0 {
        bail!("no {kind} of `{path}` matches `{wanted}`; `*` stands for any text");
    }
    Ok(())
}

/// Writes a line for each static mark of a program that the pattern matches, and for each function
/// that has it: `PATH:PROVIDER:NAME`, each with `*` and `?`. `programs` as above.
pub fn list_marks<'p>(
    pattern: &str,
    programs: impl IntoIterator<Item = (&'p str, &'p DebugInfo)>,
    out: &mut impl Write,
) -> Result<()> {
    let mut parts = pattern.split(':');
    let path = parts.next().unwrap_or("*");
    let (provider, name) = match (parts.next(), parts.next()) {
        (Some(provider), Some(name)) => (provider, name),
        (Some(name), None) => ("*", name),
        (None, _) => ("*", "*"),
    };
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for (of, symbols) in programs {
        if !glob(path, of) {
            continue;
        }
        for mark in symbols.marks(provider, name) {
            let arguments = mark.arguments.iter().enumerate();
            let arguments = arguments.map(|(number, argument)| {
                let sign = if argument.signed { 'i' } else { 'u' };
                format!("arg{number}: {sign}{}", 8 * argument.bytes)
            });
            let arguments: Vec<String> = arguments.collect();
            let (arguments, function) = (arguments.join(", "), &mark.function.path);
            let name = format!("usdt:{of}:{}:{}", mark.provider, mark.name);
            *lines
                .entry(format!("{name}  ({arguments})  in {function}"))
                .or_default() += 1;
        }
    }
    if lines.is_empty() {
        bail!("no mark matches `{pattern}`; `-l 'usdt:*'` lists them all");
    }
    for (line, places) in lines {
        match places {
            1 => writeln!(out, "{line}"),
            places => writeln!(out, "{line}, {places} places"),
        }
        .context(CANNOT_WRITE)?;
    }
    Ok(())
}

/// A pattern of functions, which may be written as a probe of them is.
fn of_functions(pattern: &str) -> &str {
    match pattern.split_once(':') {
        // A path may begin with a module of that name.
        Some(("kprobe" | "k" | "kretprobe" | "kr" | "session", functions))
            if !functions.starts_with(':') =>
        {
            functions
        }
        _ => pattern,
    }
}

/// Writes a line for each function that the pattern matches, by address.
pub fn list(pattern: &str, symbols: &DebugInfo, out: &mut impl Write) -> Result<()> {
    let pattern = of_functions(pattern);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_listed_by_a_pattern_or_by_a_probe_of_them() {
        for (written, pattern) in [
            ("vfs_*", "vfs_*"),
            ("kprobe:vfs_*", "vfs_*"),
            ("k:vfs_*", "vfs_*"),
            ("kretprobe:fs::mkdir", "fs::mkdir"),
            ("kr:*", "*"),
            ("session:sys_*", "sys_*"),
            ("k::vfs_*", "k::vfs_*"),
            ("session::new", "session::new"),
            ("fs::mkdir", "fs::mkdir"),
            ("line:a.rs", "line:a.rs"),
        ] {
            assert_eq!(of_functions(written), pattern, "{written}");
        }
    }

    #[test]
    fn timers_are_listed_by_their_units() {
        let listed = |pattern: &str| {
            let mut out = Vec::new();
            list_timers(pattern, &mut out).map(|is_timer| {
                assert_eq!(is_timer, !out.is_empty(), "{pattern}");
                String::from_utf8(out).unwrap()
            })
        };
        assert_eq!(listed("interval:*").unwrap().lines().count(), 4);
        assert_eq!(listed("profile:hz:*").unwrap(), "profile:hz:N\n");
        assert_eq!(listed("vfs_*").unwrap(), "");
        let error = listed("interval:days:*").unwrap_err().to_string();
        assert!(
            error.contains("no timer matches `interval:days:*`"),
            "{error}"
        );
    }
}
