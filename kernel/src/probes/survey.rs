//! Verdicts on all instructions of the kernel: each is judged as a registration would judge it, but
//! nothing is registered.
//!
//! The starts of instructions are found by decoding a function from its first byte. Bytes that
//! belong to no function (padding between two) do not count as instructions.
//!
//! # Contexts
//! Task context; everything may sleep.

#![forbid(unsafe_code)]

use alloc::{collections::BTreeMap, vec::Vec};
use core::{fmt, ops::Range};

use super::{PROBES, blacklist};
use crate::{
    mm::init_text,
    symbols::{self, Symbol, SymbolKind},
};
use ::probes::{
    ProbeError,
    insn::{Insn, Instructions, MAX_INSN_BYTES},
};

/// An instruction and whether it can be probed.
pub struct Judged {
    /// The instruction, as it is without probes.
    pub insn: Insn,
    /// The error that a registration would end in.
    pub verdict: Result<(), ProbeError>,
}

/// Judges the instructions of a function, in order.
///
/// # Errors
/// [`ProbeError`] if the function's bytes cannot be read: its text was freed, or memory is out.
pub fn function(symbol: &Symbol<'_>) -> Result<Vec<Judged>, ProbeError> {
    let end = symbol.start + symbol.size;
    let bytes = PROBES.original_text(symbol.start..end)?;
    let mut judged = Vec::new();
    for insn in Instructions::new(&bytes, symbol.start).map_while(Result::ok) {
        let behind = &bytes[(insn.next_ip() - symbol.start) as usize..];
        let verdict = verdict(&insn, behind);
        judged.push(Judged { insn, verdict });
    }
    Ok(judged)
}

/// Judges the first instruction of the function that has the bytes of `range`.
///
/// # Errors
/// The [`ProbeError`] that a registration would end in.
pub fn entry(range: Range<u64>) -> Result<(), ProbeError> {
    let addr = range.start;
    // The verdict may need the second instruction.
    let end = range.end.min(addr + 2 * MAX_INSN_BYTES as u64);
    let bytes = PROBES.original_text(addr..end)?;
    match Instructions::new(&bytes, addr).next() {
        Some(Ok(insn)) => verdict(&insn, &bytes[insn.len()..]),
        Some(Err(cause)) => Err(ProbeError::Undecodable { addr, cause }),
        None => Err(ProbeError::NoSymbolAt { addr }),
    }
}

/// Judges an instruction with the code after it.
fn verdict(insn: &Insn, behind: &[u8]) -> Result<(), ProbeError> {
    let addr = insn.ip();
    match blacklist::reason(addr) {
        Some(reason) => Err(ProbeError::Blacklisted { addr, reason }),
        None => PROBES.judge(insn, behind),
    }
}

/// How many instructions there are of each verdict.
#[derive(Default)]
pub struct Survey {
    functions: usize,
    accepted: usize,
    blacklisted: BTreeMap<&'static str, usize>,
    refused: BTreeMap<&'static str, usize>,
    undecoded: Vec<u64>,
}

impl Survey {
    /// Judges all functions that are mapped and that `wanted` accepts.
    ///
    /// # Errors
    /// [`ProbeError::OutOfMemory`].
    pub fn take(mut wanted: impl FnMut(&Symbol<'_>) -> bool) -> Result<Self, ProbeError> {
        let mut survey = Self::default();
        for symbol in symbols::functions() {
            let mapped = symbol.kind == SymbolKind::Text || !init_text::is_freed();
            if mapped && wanted(&symbol) {
                survey.add(&symbol, &function(&symbol)?);
            }
        }
        Ok(survey)
    }

    fn add(&mut self, symbol: &Symbol<'_>, judged: &[Judged]) {
        self.functions += 1;
        for Judged { verdict, .. } in judged {
            match verdict {
                Ok(()) => self.accepted += 1,
                Err(ProbeError::Blacklisted { reason, .. }) => {
                    *self.blacklisted.entry(reason).or_default() += 1;
                }
                Err(error) => *self.refused.entry(error.name()).or_default() += 1,
            }
        }
        let end = judged
            .last()
            .map_or(symbol.start, |last| last.insn.next_ip());
        if end != symbol.start + symbol.size {
            self.undecoded.push(end);
        }
    }

    /// All instructions.
    pub fn instructions(&self) -> usize {
        self.accepted + self.blacklisted() + self.refused()
    }

    /// The instructions that can be probed.
    pub fn accepted(&self) -> usize {
        self.accepted
    }

    /// The instructions on the hit path, and in the few functions that are listed by hand.
    pub fn blacklisted(&self) -> usize {
        self.blacklisted.values().sum()
    }

    /// The instructions that are refused for what they are.
    pub fn refused(&self) -> usize {
        self.refused.values().sum()
    }

    /// The addresses in functions at which decoding could not go on.
    pub fn undecoded(&self) -> &[u64] {
        &self.undecoded
    }
}

/// Prints a table: count, share of all instructions, verdict.
impl fmt::Display for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.instructions();
        let mut row = |count, verdict, reason| {
            let share = Share(count, all);
            writeln!(f, "{count:8} {share}  {verdict}{reason}")
        };
        row(all, "instructions", "")?;
        row(self.accepted, "can be probed", "")?;
        row(self.blacklisted(), "blacklisted", "")?;
        for (reason, count) in &self.blacklisted {
            row(*count, "  ", reason)?;
        }
        row(self.refused(), "refused for what they are", "")?;
        for (reason, count) in &self.refused {
            row(*count, "  ", reason)?;
        }
        let free = all - self.blacklisted();
        writeln!(
            f,
            "{} functions; outside the blacklist {} can be probed",
            self.functions,
            Share(self.accepted, free)
        )
    }
}

/// Prints a part of a whole in percent, with three digits after the point.
struct Share(usize, usize);

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let thousandths = (self.0 * 100_000).checked_div(self.1).unwrap_or(0);
        write!(f, "{:3}.{:03} %", thousandths / 1000, thousandths % 1000)
    }
}
