//! `disas`: a function's instructions, for a person who looks for a place to probe.
//!
//! ```text
//!   do_fork at 0xffffffff8005e480, 1126 bytes
//!     offset  probe here  probes   instruction
//!     +0x0    yes         R        push rbp
//!     +0x1    yes         K k      mov rbp,rsp
//!     …
//!     +0x464  no                   ud2  ; it is meant to trap …
//! ```
//!
//! The instructions are those of the kernel without probes. The third column has a letter for each
//! probe at the instruction, as in the list of all probes, the newest first. It is a capital if the
//! probe's breakpoint is in the text now.

use alloc::{boxed::Box, collections::BTreeMap, format, string::String};
use core::fmt::Write;

use iced_x86::{Decoder, DecoderOptions, FastFormatter, Instruction, SymbolResolver, SymbolResult};
use probes::{insn::Insn, kprobe::flags};

use super::command::{Failure, Next};
use crate::{
    probes::{PROBES, ProbeError, survey},
    symbols::{self, Symbol, SymbolKind},
};

/// Shows a function.
pub fn disas(arguments: &[&str], out: &mut dyn Write) -> Result<Next, Failure> {
    let [place] = arguments else {
        return Err(Failure::Usage("it needs one function"));
    };
    let symbol = find(place)?;
    match symbol.kind {
        SymbolKind::Text => {}
        SymbolKind::Init => return Err(Failure::Freed(symbol)),
        SymbolKind::Rodata | SymbolKind::Data | SymbolKind::Bss => {
            return Err(Failure::Data(symbol));
        }
    }
    let judged = survey::function(&symbol)?;
    let probes = probes_in(&symbol);
    writeln!(
        out,
        "{symbol} at {:#x}, {} bytes",
        symbol.start, symbol.size
    )?;
    writeln!(out, "  offset  probe here  probes   instruction")?;
    let mut formatter = formatter()?;
    for judged in judged {
        let offset = format!("+{:#x}", judged.insn.ip() - symbol.start);
        let verdict = if judged.verdict.is_ok() { "yes" } else { "no" };
        let probes = probes.get(&judged.insn.ip()).map_or("", String::as_str);
        let text = text(&mut formatter, &judged.insn);
        write!(out, "  {offset:7} {verdict:11} {probes:8} {text}")?;
        match &judged.verdict {
            Ok(()) => writeln!(out)?,
            Err(error) => writeln!(out, "  ; {}", reason(error))?,
        }
    }
    Ok(Next::Command)
}

/// The function of that name, or the one around that address. An address has `0x` in front, or all
/// sixteen digits, as in lists.
fn find(place: &str) -> Result<Symbol<'static>, Failure> {
    let prefixed = place.strip_prefix("0x").or(place.strip_prefix("0X"));
    let is_address = place.len() == 16 && place.bytes().all(|digit| digit.is_ascii_hexdigit());
    let Some(digits) = prefixed.or(is_address.then_some(place)) else {
        return Ok(symbols::lookup_name(place)?);
    };
    // `from_str_radix` would take a sign.
    let addr = Some(digits)
        .filter(|digits| !digits.starts_with('+'))
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or(Failure::Usage(
            "an address is 0x and up to sixteen hexadecimal digits",
        ))?;
    symbols::lookup_addr(addr).ok_or(Failure::NoSymbolAt(addr))
}

/// Why an instruction cannot be probed. The address stands on the line already.
fn reason(error: &ProbeError) -> String {
    match error {
        ProbeError::Blacklisted { reason, .. } => (*reason).into(),
        ProbeError::Instruction { refusal, .. } => format!("{refusal}"),
        other => format!("{other}"),
    }
}

/// The probes at each address of the function: a letter for each, newest first, with its mark.
fn probes_in(symbol: &Symbol<'_>) -> BTreeMap<u64, String> {
    let mut probes: BTreeMap<u64, String> = BTreeMap::new();
    PROBES.for_each(|listed| {
        let addr = listed.probe.addr();
        if !symbol.contains(addr) {
            return;
        }
        let letter = listed.probe.kind().letter();
        let text = probes.entry(addr).or_default();
        if !text.is_empty() {
            text.push(' ');
        }
        text.push(if listed.armed {
            letter.to_ascii_uppercase()
        } else {
            letter
        });
        if listed.probe.flags() & flags::DISABLED != 0 {
            text.push_str("[DISABLED]");
        }
    });
    probes
}

/// Names addresses by the kernel's symbols.
struct Names;

impl SymbolResolver for Names {
    fn symbol(
        &mut self,
        _instruction: &Instruction,
        _operand: u32,
        _instruction_operand: Option<u32>,
        address: u64,
        _address_size: u32,
    ) -> Option<SymbolResult<'_>> {
        let symbol = symbols::lookup_addr(address)?;
        Some(SymbolResult::with_string(symbol.start, format!("{symbol}")))
    }
}

fn formatter() -> Result<FastFormatter, Failure> {
    // Its one error is for a resolver where the options forbid one.
    let mut formatter =
        FastFormatter::try_with_options(Some(Box::new(Names))).map_err(|_| Failure::Output)?;
    let options = formatter.options_mut();
    options.set_space_after_operand_separator(false);
    options.set_use_hex_prefix(true);
    options.set_uppercase_hex(false);
    Ok(formatter)
}

/// The instruction in Intel syntax.
fn text(formatter: &mut FastFormatter, insn: &Insn) -> String {
    let mut decoder = Decoder::with_ip(64, insn.bytes(), insn.ip(), DecoderOptions::NONE);
    let mut text = String::new();
    formatter.format(&decoder.decode(), &mut text);
    text
}
