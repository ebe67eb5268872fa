//! Makes a case that fails smaller, so that a person can read it.

use bpf::{Insn, Target};

use crate::Case;

/// Leaves out one instruction after the other, as long as the case still fails.
pub(crate) fn smaller(case: &Case, fails: impl Fn(&Case) -> bool) -> Case {
    let mut smallest = case.clone();
    loop {
        let before = smallest.program.insns.len();
        let mut at = before;
        while at > 0 {
            at -= 1;
            let mut candidate = smallest.clone();
            leave_out(&mut candidate, at);
            if !candidate.program.insns.is_empty() && fails(&candidate) {
                smallest = candidate;
            }
        }
        if smallest.program.insns.len() == before {
            return smallest;
        }
    }
}

fn leave_out(case: &mut Case, at: usize) {
    case.program.insns.remove(at);
    for insn in &mut case.program.insns {
        if let Insn::Jump { target } | Insn::Branch { target, .. } = insn
            && usize::from(target.0) > at
        {
            *target = Target(target.0 - 1);
        }
    }
}
