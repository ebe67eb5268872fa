//! The rules by which an instruction is changed. None changes its length: nops fill the rest.
//!
//! A rule stands for a mistake that somebody could make in assembly: a wrong condition, a store or
//! a fence that is missing, the word beside the right one. So what a change is called tells a
//! reader at once which line was to be written otherwise.

use std::fmt;

use iced_x86::{
    Code, ConstantOffsets, Decoder, DecoderOptions, FlowControl, Instruction,
    InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

/// The kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A conditional jump is taken where it was not, and the other way round.
    Inverted,
    /// A store to memory is left out. Pushes and calls are excepted, because they change the stack.
    NotStored,
    /// A memory operand is the next word: 8 bytes, a register of a frame, further on.
    NextWord,
    /// A fence or a wait is left out, or an instruction that lets in interrupts or user memory.
    NotWaited,
}

/// One instruction's bytes, changed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Change {
    pub rule: Rule,
    /// From the beginning of the function.
    pub offset: usize,
    pub bytes: Vec<u8>,
    /// The instruction as it was.
    was: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.rule, self.was)
    }
}

const NOP: u8 = 0x90;

/// Parts of the names of functions that wait for other CPUs.
const WAITS: [&str; 3] = ["synchronize", "wait", "flush"];

/// All changes by the rules of `code`, a function at `start`. `callee` names the function at an
/// address.
pub fn changes(code: &[u8], start: u64, callee: impl Fn(u64) -> Option<String>) -> Vec<Change> {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut info = InstructionInfoFactory::new();
    let mut changes = Vec::new();
    while decoder.can_decode() {
        let insn = decoder.decode();
        let offset = (insn.ip() - start) as usize;
        let bytes = &code[offset..offset + insn.len()];
        let constants = decoder.get_constant_offsets(&insn);
        let mut change = |rule, bytes: Vec<u8>| {
            let was: Vec<_> = code[offset..offset + insn.len()]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            let was = format!("{:?} {}", insn.code(), was.join(" "));
            changes.push(Change {
                rule,
                offset,
                bytes,
                was,
            });
        };
        let left_out = || vec![NOP; bytes.len()];
        if insn.is_jcc_short_or_near() {
            change(Rule::Inverted, inverted(&insn, bytes));
        }
        if stores(&insn, &mut info) {
            change(Rule::NotStored, left_out());
        }
        if let Some(bytes) = next_word(&insn, &constants, bytes) {
            change(Rule::NextWord, bytes);
        }
        if waits(&insn, &callee) {
            change(Rule::NotWaited, left_out());
        }
    }
    changes
}

/// The lowest bit of a conditional jump's opcode negates its condition.
fn inverted(insn: &Instruction, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let displacement = if insn.is_jcc_short() { 1 } else { 4 };
    let opcode = bytes.len() - displacement - 1;
    bytes[opcode] ^= 1;
    bytes
}

fn stores(insn: &Instruction, info: &mut InstructionInfoFactory) -> bool {
    // A decoder may say that a no-op reads its operand, but it does not. Fences have a rule of
    // their own.
    if insn.is_stack_instruction() || insn.flow_control() != FlowControl::Next || is_fence(insn) {
        return false;
    }
    let used = info.info(insn).used_memory();
    used.iter().any(|memory| {
        matches!(
            memory.access(),
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        )
    })
}

/// `bytes` with the next word as their memory operand, or that before it if the displacement has no
/// room for more.
fn next_word(insn: &Instruction, constants: &ConstantOffsets, bytes: &[u8]) -> Option<Vec<u8>> {
    const WORD: i8 = 8;
    let has_operand = (0..insn.op_count()).any(|operand| insn.op_kind(operand) == OpKind::Memory);
    // The address of a constant is that of a text as a rule.
    let is_address_of_constant =
        insn.mnemonic() == Mnemonic::Lea && insn.memory_base() == Register::RIP;
    if !has_operand
        || !constants.has_displacement()
        || insn.mnemonic() == Mnemonic::Nop
        || is_address_of_constant
    {
        return None;
    }
    let mut bytes = bytes.to_vec();
    let place = constants.displacement_offset()
        ..constants.displacement_offset() + constants.displacement_size();
    let place = &mut bytes[place];
    match place.len() {
        1 => {
            let old = place[0] as i8;
            place[0] = old.checked_add(WORD).unwrap_or_else(|| old - WORD) as u8;
        }
        4 => {
            let old = i32::from_le_bytes(place.try_into().ok()?);
            place.copy_from_slice(&old.checked_add(WORD.into())?.to_le_bytes());
        }
        _ => return None,
    }
    Some(bytes)
}

/// A locked no-op on the stack, or an instruction that is only a fence.
fn is_fence(insn: &Instruction) -> bool {
    let on_stack = insn.has_lock_prefix()
        && insn.mnemonic() == Mnemonic::Or
        && insn.memory_base() == Register::RSP;
    on_stack
        || matches!(
            insn.mnemonic(),
            Mnemonic::Mfence | Mnemonic::Lfence | Mnemonic::Sfence
        )
}

fn waits(insn: &Instruction, callee: &impl Fn(u64) -> Option<String>) -> bool {
    let called = || callee(insn.near_branch_target()).unwrap_or_default();
    is_fence(insn)
        || matches!(
            insn.mnemonic(),
            Mnemonic::Cli
                | Mnemonic::Sti
                | Mnemonic::Cld
                | Mnemonic::Clac
                | Mnemonic::Stac
                | Mnemonic::Swapgs
                | Mnemonic::Cpuid
                | Mnemonic::Invlpg
                | Mnemonic::Hlt
        )
        || insn.code() == Code::Call_rel32_64 && WAITS.iter().any(|part| called().contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules and bytes of the changes of one instruction.
    fn changes_of(code: &[u8]) -> Vec<(Rule, Vec<u8>)> {
        let callee = |address| {
            (address == 0x1105).then(|| "kernel::probes::text_poke::synchronize_cores".to_string())
        };
        changes(code, 0x1000, callee)
            .into_iter()
            .map(|change| (change.rule, change.bytes))
            .collect()
    }

    #[test]
    fn conditional_jumps_are_inverted() {
        assert_eq!(
            changes_of(&[0x74, 0x10]),
            [(Rule::Inverted, vec![0x75, 0x10])]
        );
        assert_eq!(
            changes_of(&[0x2e, 0x7f, 0x10]),
            [(Rule::Inverted, vec![0x2e, 0x7e, 0x10])]
        );
        assert_eq!(
            changes_of(&[0x0f, 0x83, 1, 2, 3, 0]),
            [(Rule::Inverted, vec![0x0f, 0x82, 1, 2, 3, 0])]
        );
        assert_eq!(changes_of(&[0xeb, 0x10]), [], "it is always taken");
    }

    #[test]
    fn stores_are_left_out_and_displacements_changed() {
        // mov [rsp+8], rax
        let code = [0x48, 0x89, 0x44, 0x24, 0x08];
        let next = vec![0x48, 0x89, 0x44, 0x24, 0x10];
        assert_eq!(
            changes_of(&code),
            [(Rule::NotStored, vec![NOP; 5]), (Rule::NextWord, next)]
        );
        // mov rax, [rsp+0x78]: there is no room for more
        let code = [0x48, 0x8b, 0x44, 0x24, 0x78];
        assert_eq!(
            changes_of(&code),
            [(Rule::NextWord, vec![0x48, 0x8b, 0x44, 0x24, 0x70])]
        );
        // inc dword ptr gs:[0x10]
        let code = [0x65, 0xff, 0x04, 0x25, 0x10, 0, 0, 0];
        let next = vec![0x65, 0xff, 0x04, 0x25, 0x18, 0, 0, 0];
        assert_eq!(
            changes_of(&code),
            [(Rule::NotStored, vec![NOP; 8]), (Rule::NextWord, next)]
        );
        // mov [rax], rcx: no displacement
        assert_eq!(
            changes_of(&[0x48, 0x89, 0x08]),
            [(Rule::NotStored, vec![NOP; 3])]
        );
        assert_eq!(
            changes_of(&[0xf3, 0xa4]),
            [(Rule::NotStored, vec![NOP; 2])],
            "rep movsb"
        );
    }

    #[test]
    fn the_stack_pointer_stays_as_it_is() {
        // push rax; pop rax; push [rsp+8]; ret
        assert_eq!(changes_of(&[0x50, 0x58, 0xc3]), []);
        let push = [0xff, 0x74, 0x24, 0x08];
        assert_eq!(
            changes_of(&push),
            [(Rule::NextWord, vec![0xff, 0x74, 0x24, 0x10])]
        );
    }

    #[test]
    fn no_ops_stay() {
        // nop dword ptr [rax+0]; int3
        assert_eq!(changes_of(&[0x0f, 0x1f, 0x40, 0x00, 0xcc]), []);
    }

    #[test]
    fn fences_and_waits_are_left_out() {
        assert_eq!(
            changes_of(&[0x0f, 0xae, 0xf0]),
            [(Rule::NotWaited, vec![NOP; 3])],
            "mfence"
        );
        // lock or dword ptr [rsp], 0
        assert_eq!(
            changes_of(&[0xf0, 0x83, 0x0c, 0x24, 0x00]),
            [(Rule::NotWaited, vec![NOP; 5])]
        );
        assert_eq!(changes_of(&[0xfa]), [(Rule::NotWaited, vec![NOP])], "cli");
        assert_eq!(
            changes_of(&[0xe8, 0, 1, 0, 0]),
            [(Rule::NotWaited, vec![NOP; 5])],
            "a call of a wait"
        );
        assert_eq!(changes_of(&[0xe8, 0, 2, 0, 0]), [], "another call");
    }
}
