//! Which register of the machine holds each register of the program.
//!
//! A probe must save each register of the machine that its program changes. A program that calls
//! out has the registers of the C calling convention, so that arguments are in place. One of its
//! registers that no call must keep shares a register with an argument, because calls change that
//! one anyway. Any other program gets as few registers as possible. Registers whose contents are
//! never needed at the same time share one.

use bpf::{AluOp, Insn, Operand, Reg, Width};

use crate::{
    asm::{self, Gpr, GprSet},
    flow::{Env, Flow, RegSet, reads},
};

pub type Assignment = [Gpr; 11];

/// Never holds a register of the program: `rsp` and `rbp` hold the frame. `r12` is a poor base: its
/// addresses are a byte longer, so that [`crate::mend()`] would need another shape.
const ORDER: [Gpr; 13] = [
    asm::RAX,
    asm::RCX,
    asm::RDX,
    asm::RSI,
    asm::RDI,
    asm::R8,
    asm::R9,
    asm::R10,
    asm::R11,
    asm::RBX,
    asm::R13,
    asm::R14,
    asm::R15,
];

/// The registers of C for arguments, results and what calls keep. `r10` has no register of its own.
/// Where it must be in one, for example as an argument, it gets one that is free.
const C: Assignment = [
    asm::RAX,
    asm::RDI,
    asm::RSI,
    asm::RDX,
    asm::RCX,
    asm::R8,
    asm::RBX,
    asm::R13,
    asm::R14,
    asm::R15,
    asm::R9,
];

/// Chooses. Registers in `avoid` are taken last.
pub fn assign(env: &Env, flow: &Flow, avoid: GprSet) -> Assignment {
    let (conflicts, used) = conflicts(env, flow);
    let is_reached_call = |i: &usize| flow.before[*i].is_some() && env.is_call_out(*i);
    let calls = (0..env.insns().len()).filter(is_reached_call);
    if let Some(kept) = calls.map(|i| flow.live_out[i]).reduce(RegSet::or) {
        return beside_arguments(used, kept, conflicts, avoid);
    }
    let groups = groups(env, flow, conflicts);
    let order = |avoided| {
        ORDER
            .into_iter()
            .filter(move |&gpr| avoid.has(gpr) == avoided)
    };
    let order = || order(false).chain(order(true));
    let mut assignment = [asm::RAX; 11];
    let mut done = RegSet::default();
    for reg in used.iter() {
        let group = groups[usize::from(reg.number())];
        if done.has(reg) {
            continue;
        }
        let taken = done.iter().filter(|&other| {
            let conflict = |member: Reg| conflicts[usize::from(member.number())].has(other);
            group.iter().any(conflict)
        });
        let taken = taken.fold(GprSet::default(), |mut set, other| {
            set.add(assignment[usize::from(other.number())]);
            set
        });
        let free = order().find(|&register| !taken.has(register));
        for member in group.iter() {
            // There are more registers than the program has.
            assignment[usize::from(member.number())] = free.unwrap_or(asm::RAX);
            done = done.with(member);
        }
    }
    assignment
}

/// The assignment for a program whose calls must keep what is in `kept`.
fn beside_arguments(
    used: RegSet,
    kept: RegSet,
    conflicts: [RegSet; 11],
    avoid: GprSet,
) -> Assignment {
    let mut assignment = C;
    for reg in [Reg::R6, Reg::R7, Reg::R8, Reg::R9] {
        if !used.has(reg) || kept.has(reg) {
            continue;
        }
        let conflict = conflicts[usize::from(reg.number())];
        let is_free = |gpr: &Gpr| {
            let holds = |other: &Reg| assignment[usize::from(other.number())] == *gpr;
            !Reg::ALL
                .iter()
                .filter(|other| holds(other))
                .any(|other| conflict.has(*other))
        };
        // The first argument first: what a call gets last is often that.
        let free = [asm::RDI, asm::RSI, asm::RDX, asm::RCX, asm::RAX]
            .into_iter()
            .filter(is_free);
        if let Some(gpr) = free.min_by_key(|gpr| avoid.has(*gpr)) {
            assignment[usize::from(reg.number())] = gpr;
        }
    }
    assignment
}

/// The other registers whose contents are needed while each register is written, and the registers
/// that are used at all.
fn conflicts(env: &Env, flow: &Flow) -> ([RegSet; 11], RegSet) {
    let mut conflicts = [RegSet::default(); 11];
    let mut used = RegSet::default();
    let mut conflict = |a: Reg, b: Reg| {
        if a != b {
            let (i, j) = (usize::from(a.number()), usize::from(b.number()));
            conflicts[i] = conflicts[i].with(b);
            conflicts[j] = conflicts[j].with(a);
        }
    };
    for (i, insn) in env.insns().iter().enumerate() {
        let Some(before) = flow.before[i] else {
            continue;
        };
        let out = flow.live_out[i];
        let read = reads(env, i, &before, out);
        used = used.or(read);
        let Some((reg, _)) = env.defines(i, &before) else {
            continue;
        };
        // `Add` writes its result only where it is needed.
        let writes = out.has(reg) || !(env.is_pure(i) || matches!(insn, Insn::Call { .. }));
        if !writes {
            continue;
        }
        used = used.with(reg);
        let moved = move_source(insn);
        for other in out.iter().filter(|&other| Some(other) != moved) {
            conflict(reg, other);
        }
        // The code may write the one before it has read the other, unless it is one instruction.
        if !matches!(insn, Insn::Load { .. }) {
            for other in read.iter().filter(|&other| Some(other) != moved) {
                conflict(reg, other);
            }
        }
    }
    (conflicts, used)
}

fn move_source(insn: &Insn) -> Option<Reg> {
    match insn {
        Insn::Alu {
            width: Width::W64,
            op: AluOp::Mov,
            operand: Operand::Reg(src),
            ..
        } => Some(*src),
        _ => None,
    }
}

/// The group of each register: those that share a machine register because one is copied to the
/// other.
fn groups(env: &Env, flow: &Flow, conflicts: [RegSet; 11]) -> [RegSet; 11] {
    let mut groups: [RegSet; 11] = Reg::ALL.map(|reg| RegSet::default().with(reg));
    for (i, insn) in env.insns().iter().enumerate() {
        let (Some(before), Some(src)) = (flow.before[i], move_source(insn)) else {
            continue;
        };
        let Some((dst, _)) = env.defines(i, &before) else {
            continue;
        };
        if !flow.live_out[i].has(dst) || !reads(env, i, &before, flow.live_out[i]).has(src) {
            continue;
        }
        let (a, b) = (
            groups[usize::from(dst.number())],
            groups[usize::from(src.number())],
        );
        let clash = a.iter().any(|reg| {
            b.iter()
                .any(|other| conflicts[usize::from(reg.number())].has(other))
        });
        if !clash {
            let both = a.or(b);
            for member in both.iter() {
                groups[usize::from(member.number())] = both;
            }
        }
    }
    groups
}
