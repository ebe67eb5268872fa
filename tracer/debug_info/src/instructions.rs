//! The instructions of the kernel, by their mnemonics.

use std::collections::BTreeSet;

use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use trace_interface::symbols::{Unavailable, glob};

use crate::{DebugInfo, names};

/// How many near names are offered.
const NEAR: usize = 3;

/// The name of a mnemonic.
fn name(mnemonic: Mnemonic) -> String {
    format!("{mnemonic:?}").to_lowercase()
}

impl DebugInfo {
    /// The addresses of the instructions whose mnemonic a pattern matches, in order.
    pub(crate) fn find_instructions(&self, pattern: &str) -> Result<Vec<u64>, Unavailable> {
        let matches: Vec<bool> = Mnemonic::values()
            .map(|mnemonic| glob(pattern, &name(mnemonic)))
            .collect();
        let mut found = Vec::new();
        let mut others = BTreeSet::new();
        // Of several names of one function, and of labels in it, the code is read once.
        let mut end = 0;
        for row in self.index.functions() {
            let code = self.image.code(row.address, row.bytes);
            for instruction in &mut Decoder::with_ip(64, code, row.address, DecoderOptions::NONE) {
                if instruction.ip() < end || instruction.is_invalid() {
                    continue;
                }
                match matches.get(instruction.mnemonic() as usize) {
                    Some(true) => found.push(instruction.ip()),
                    _ => _ = others.insert(instruction.mnemonic() as usize),
                }
            }
            end = end.max(row.address + row.bytes);
        }
        if !found.is_empty() {
            return Ok(found);
        }
        let others: Vec<String> = Mnemonic::values()
            .filter(|mnemonic| others.contains(&(*mnemonic as usize)))
            .map(name)
            .collect();
        let near = names::nearest(pattern, others.iter().map(String::as_str), NEAR);
        Err(Unavailable {
            reason: format!("the kernel has no instruction `{pattern}`"),
            help: match near.is_empty() {
                true => "write a name of Intel's manual in small letters, such as insn:cli".into(),
                false => crate::search::did_you_mean(&near),
            },
        })
    }
}
