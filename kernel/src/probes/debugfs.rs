//! The probes as files: the registered probes, the blacklist, and the knob that arms and disarms
//! all.
//!
//! | below `/sys/kernel/debug/kprobes` | mode | a line of it |
//! |---|---|---|
//! | `list` | 0400 | `ffffffff80012340  k  vfs_read+0x0    [DISABLED]` |
//! | `stats` | 0400 | `ffffffff80012340  k  vfs_read+0x0  3 0`: hits, then misses |
//! | `blacklist` | 0400 | `0xffffffff80012340-0xffffffff80012350⇥do_breakpoint` |
//! | `enabled` | 0600 | `1` or `0` |
//!
//! The letter is that of the kind: `k`, `j`, `r`, and for watchpoints, which come last, `w`.
//!
//! The second address in a line of `blacklist` is after the last byte. `enabled` may be written:
//! y, t, 1 and on arm all probes; n, f, 0 and off disarm them. The first letter decides, or the
//! first two.
//!
//! `/proc/sys/debug/kprobes-optimization`, mode 0644, reads 1 or 0: whether breakpoints become
//! jumps where they can. Writing the other value switches it, and returns when all jumps are there
//! or gone. Any other text is refused with EINVAL.
//!
//! The first, third and fourth file have the formats of Linux. Symbols carry the linker's names.
//! These contain no blanks, so a line can be split at blanks. The fifth field of `list` is a
//! module's name on Linux. Here it is always one blank, because modules are part of the kernel.
//! Marks follow it without a gap, in this order: `[GONE]`, or else `[DISABLED]`; `[OPTIMIZED]`.
//!
//! The registry does not count the hits of a kprobe with a compiled program. Of an event, `stats`
//! has what its program counts. Other programs, such as those of tracers, have 0 hits there.
//!
//! Each text is made in one go under the registry's lock. So a reader sees one state of all probes,
//! even if others are registered meanwhile. The hit path does not know of these files.
//!
//! # Contexts
//! Task context; everything may sleep.

#![forbid(unsafe_code)]

use core::{
    fmt::{self, Write},
    ptr,
};

use super::{PROBES, WATCHPOINTS, blacklist};
use crate::{
    errno::Errno,
    fs::pseudo::{self, Functions, Show, Store},
    symbols,
    trace::events::EVENTS,
};
use ::probes::{Watchpoint, kprobe::flags, registry::Listed};

/// Puts the files into the tree. Once, at the end of the boot.
///
/// # Errors
/// ENOMEM.
pub fn create_files() -> Result<(), Errno> {
    let directory = "/sys/kernel/debug/kprobes";
    let files: [(_, _, Show, Option<Store>); 4] = [
        ("list", 0o400, show_list, None),
        ("stats", 0o400, show_stats, None),
        ("blacklist", 0o400, show_blacklist, None),
        ("enabled", 0o600, show_enabled, Some(store_enabled)),
    ];
    for (name, permissions, show, store) in files {
        let show = Some(show);
        let path = alloc::format!("{directory}/{name}");
        pseudo::create(&path, permissions, Functions { show, store })?;
    }
    let (show, store): (Option<Show>, Option<Store>) =
        (Some(show_optimization), Some(store_optimization));
    pseudo::create(
        "/proc/sys/debug/kprobes-optimization",
        0o644,
        Functions { show, store },
    )
}

/// Writes the content of `kprobes-optimization`.
fn show_optimization(out: &mut dyn Write) -> fmt::Result {
    writeln!(out, "{}", u8::from(PROBES.optimization()))
}

/// Obeys text written to `kprobes-optimization`. EINVAL if it is neither 0 nor 1; then nothing has
/// changed.
fn store_optimization(text: &[u8]) -> Result<(), Errno> {
    let number = str::from_utf8(text).map_err(|_| Errno::EINVAL)?.trim();
    let on = match number.parse::<u64>() {
        Ok(0) => false,
        Ok(1) => true,
        _ => return Err(Errno::EINVAL),
    };
    PROBES.set_optimization(on)?;
    Ok(())
}

/// Prints `symbol+0xoffset`, or the bare address where there is no symbol.
pub struct SymbolAt(pub u64);

impl fmt::Display for SymbolAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match symbols::lookup_addr(self.0) {
            Some(symbol) => write!(f, "{}+{:#x}", symbol.name, self.0 - symbol.start),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

/// The blank between the two pairs stands for the module's name.
const BEFORE_MARKS: &str = "    ";

/// Writes the content of `list`.
fn show_list(out: &mut dyn Write) -> fmt::Result {
    show_each(out, |out, listed| {
        out.write_str(BEFORE_MARKS)?;
        let flags = listed.probe.flags();
        if flags & flags::GONE != 0 {
            out.write_str("[GONE]")?;
        } else if flags & flags::DISABLED != 0 {
            out.write_str("[DISABLED]")?;
        }
        if flags & flags::OPTIMIZED != 0 {
            out.write_str("[OPTIMIZED]")?;
        }
        Ok(())
    })?;
    show_each_watchpoint(out, |out, watch| {
        out.write_str(BEFORE_MARKS)?;
        match watch.is_disabled() {
            true => out.write_str("[DISABLED]"),
            false => Ok(()),
        }
    })
}

/// Writes the content of `stats`.
fn show_stats(out: &mut dyn Write) -> fmt::Result {
    // They are locked until the text is there, so no other probe comes to the place of one.
    let events = EVENTS.lock();
    let counted = events.counted_kprobes().map_err(|_| fmt::Error)?;
    show_each(out, |out, listed| {
        let place = ptr::from_ref(listed.probe);
        let hits = match counted.binary_search_by_key(&place, |(kprobe, _)| *kprobe) {
            Ok(at) => counted[at].1,
            Err(_) => listed.hits,
        };
        write!(out, "  {hits} {}", listed.misses)
    })?;
    show_each_watchpoint(out, |out, watch| {
        write!(out, "  {} {}", watch.hits(), watch.nmissed())
    })
}

/// Writes a line for each registered watchpoint, as [`show_each`] does for probes.
fn show_each_watchpoint(
    out: &mut dyn Write,
    mut rest: impl FnMut(&mut dyn Write, &Watchpoint) -> fmt::Result,
) -> fmt::Result {
    let mut result = Ok(());
    WATCHPOINTS.for_each(|watch| {
        if result.is_ok() {
            result = write_line(out, watch.addr(), 'w', |out| rest(out, watch));
        }
    });
    result
}

/// Writes a line for each registered probe: its address, kind and symbol, then the text of `rest`.
fn show_each(
    out: &mut dyn Write,
    mut rest: impl FnMut(&mut dyn Write, &Listed<'_>) -> fmt::Result,
) -> fmt::Result {
    let mut result = Ok(());
    PROBES.for_each(|listed| {
        if result.is_ok() {
            let (addr, kind) = (listed.probe.addr(), listed.probe.kind().letter());
            result = write_line(out, addr, kind, |out| rest(out, &listed));
        }
    });
    result
}

/// Writes a line: address, kind and symbol, then the text of `rest`.
fn write_line(
    out: &mut dyn Write,
    addr: u64,
    kind: char,
    rest: impl FnOnce(&mut dyn Write) -> fmt::Result,
) -> fmt::Result {
    write!(out, "{addr:016x}  {kind}  {}", SymbolAt(addr))?;
    rest(out)?;
    out.write_char('\n')
}

/// Writes the content of `blacklist`: a line for each function, by address.
fn show_blacklist(out: &mut dyn Write) -> fmt::Result {
    for entry in blacklist::entries() {
        for function in symbols::functions()
            .skip_while(|function| function.start < entry.start)
            .take_while(|function| function.start < entry.end)
        {
            let (start, end) = (function.start, function.start + function.size);
            writeln!(out, "{start:#018x}-{end:#018x}\t{}", function.name)?;
        }
    }
    Ok(())
}

/// Writes the content of `enabled`.
fn show_enabled(out: &mut dyn Write) -> fmt::Result {
    writeln!(out, "{}", u8::from(PROBES.enabled()))
}

/// Obeys text written to `enabled`. EINVAL if it says neither on nor off; then nothing has changed.
fn store_enabled(text: &[u8]) -> Result<(), Errno> {
    let on = match text {
        [b'y' | b'Y' | b't' | b'T' | b'1', ..] | [b'o' | b'O', b'n' | b'N', ..] => true,
        [b'n' | b'N' | b'f' | b'F' | b'0', ..] | [b'o' | b'O', b'f' | b'F', ..] => false,
        _ => return Err(Errno::EINVAL),
    };
    PROBES.set_enabled(on)?;
    Ok(())
}
