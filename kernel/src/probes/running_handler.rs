//! The name of the probe handler that runs, and of its probe, for reports.

use core::fmt;

use super::{PROBES, blacklist};
use crate::{
    backtrace,
    symbols::{self, Address, Symbol},
};
use ::probes::kprobe::ProbeKind;

/// Prints as the handler that runs on this CPU, and its probe. For a CPU that runs one
/// ([`in_probe_handler`](crate::arch::percpu::in_probe_handler)).
pub struct RunningHandler;

impl fmt::Display for RunningHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let running = PROBES.running_probe();
        let handler = match running {
            Some((_, Some(jprobe_entry))) => symbols::lookup_addr(jprobe_entry),
            _ => outermost_handler(),
        };
        match handler {
            Some(symbol) => write!(f, "probe handler {symbol}")?,
            None => f.write_str("a probe handler")?,
        }
        let Some((probe, _)) = running else {
            return Ok(());
        };
        let kind = match probe.kind() {
            ProbeKind::Kprobe => "kprobe",
            ProbeKind::Jprobe => "jprobe",
            ProbeKind::Kretprobe => "kretprobe",
            ProbeKind::Trampoline => "return trampoline",
        };
        write!(
            f,
            " of the {kind} at {}",
            Address::of_instruction(probe.addr())
        )
    }
}

/// The function that the probes have called: the last one before the code of a hit.
fn outermost_handler() -> Option<Symbol<'static>> {
    backtrace::walk_current()
        .take_while(|frame| blacklist::reason(frame.code_address()).is_none())
        .filter_map(|frame| symbols::lookup_addr(frame.code_address()))
        .filter(|symbol| !is_wrapper(symbol))
        .last()
}

/// Whether a function, by its mangled name, only calls a handler: glue of the probes or of a
/// closure.
fn is_wrapper(symbol: &Symbol<'_>) -> bool {
    ["_ZN6probes", "_ZN4core3ops8function"]
        .iter()
        .any(|glue| symbol.name.starts_with(glue))
}
