//! The instructions of the kernel, by their mnemonics, or by their texts.
//!
//! A pattern without a blank is one of mnemonics. One with a blank is one of the whole text in
//! Intel's syntax, with numbers as `0x24`: `inc dword ptr gs:[0x24]`.

use std::collections::BTreeSet;

use iced_x86::{Decoder, DecoderOptions, FastFormatter, Instruction, Mnemonic};
use trace_interface::symbols::{Unavailable, glob};

use crate::{DebugInfo, names};

/// How many near names are offered.
const NEAR: usize = 3;

/// The name of a mnemonic.
fn name(mnemonic: Mnemonic) -> String {
    format!("{mnemonic:?}").to_lowercase()
}

/// A formatter of texts as patterns have them.
fn formatter() -> FastFormatter {
    let mut formatter = FastFormatter::new();
    formatter.options_mut().set_use_hex_prefix(true);
    formatter.options_mut().set_uppercase_hex(false);
    formatter
}

impl DebugInfo {
    /// Visits each instruction of the kernel, in order.
    fn visit_instructions(&self, mut visit: impl FnMut(&Instruction)) {
        // Of several names of one function, and of labels in it, the code is read once.
        let mut end = 0;
        for row in self.index.functions() {
            let code = self.image.code(row.address, row.bytes);
            for instruction in &mut Decoder::with_ip(64, code, row.address, DecoderOptions::NONE) {
                if instruction.ip() >= end && !instruction.is_invalid() {
                    visit(&instruction);
                }
            }
            end = end.max(row.address + row.bytes);
        }
    }

    /// The addresses of the instructions that a pattern matches, in order.
    pub(crate) fn find_instructions(&self, pattern: &str) -> Result<Vec<u64>, Unavailable> {
        let mut found = Vec::new();
        let others = match pattern.contains(' ') {
            true => self.find_by_text(pattern, &mut found),
            false => self.find_by_mnemonic(pattern, &mut found),
        };
        if !found.is_empty() {
            return Ok(found);
        }
        let near = names::nearest(pattern, others.iter().map(String::as_str), NEAR);
        Err(Unavailable {
            reason: format!("the kernel has no instruction `{pattern}`"),
            help: match near.is_empty() {
                true => "write a name of Intel's manual in small letters, such as insn:cli, or a \
                         whole text, such as insn:\"inc dword ptr gs:[0x24]\""
                    .into(),
                false => crate::search::did_you_mean(&near),
            },
        })
    }

    /// Adds those whose mnemonic the pattern matches. Returns the names of others.
    fn find_by_mnemonic(&self, pattern: &str, found: &mut Vec<u64>) -> BTreeSet<String> {
        let matches: Vec<bool> = Mnemonic::values()
            .map(|mnemonic| glob(pattern, &name(mnemonic)))
            .collect();
        let mut others = BTreeSet::new();
        self.visit_instructions(|instruction| {
            let mnemonic = instruction.mnemonic();
            match matches.get(mnemonic as usize) {
                Some(true) => found.push(instruction.ip()),
                _ => _ = others.insert(name(mnemonic)),
            }
        });
        others
    }

    /// Adds those whose text the pattern matches. Returns the texts of others that
    /// begin with the same word.
    fn find_by_text(&self, pattern: &str, found: &mut Vec<u64>) -> BTreeSet<String> {
        let (mut formatter, mut text) = (formatter(), String::new());
        let mut others = BTreeSet::new();
        self.visit_instructions(|instruction| {
            text.clear();
            formatter.format(instruction, &mut text);
            if glob(pattern, &text) {
                found.push(instruction.ip());
            } else if pattern.split(' ').next() == text.split(' ').next() && !others.contains(&text)
            {
                others.insert(text.clone());
            }
        });
        others
    }
}
