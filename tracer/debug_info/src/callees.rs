//! The functions that a function calls by their address: what a reader of the machine code sees.
//! Calls through a pointer, such as those of trait objects, are not among them.

use std::collections::BTreeSet;

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use trace_interface::symbols::Function;

use crate::DebugInfo;

impl DebugInfo {
    /// The functions that the one at an address calls directly, or goes on in by a jump to their
    /// beginning. Each once, in the order of the code.
    pub fn callees(&self, address: u64) -> Vec<Function> {
        let Some(row) = self.index.function_at(self.in_file(address)) else {
            return Vec::new();
        };
        let code = self.image.code(row.address, row.bytes);
        let mut seen = BTreeSet::new();
        let mut called = Vec::new();
        for instruction in &mut Decoder::with_ip(64, code, row.address, DecoderOptions::NONE) {
            let leads_on = matches!(
                instruction.flow_control(),
                FlowControl::Call | FlowControl::UnconditionalBranch
            );
            let target = instruction.near_branch_target();
            if !leads_on || target == row.address {
                continue;
            }
            let callee = self.index.function_at(target);
            if let Some(callee) = callee.filter(|callee| callee.address == target)
                && seen.insert(target)
            {
                called.push(self.function(callee));
            }
        }
        called
    }
}
