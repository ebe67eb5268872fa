//! Single-stepping a copy: the way of 2005 to execute a probed instruction (`kprobes.step=tf`).
//!
//! The hit resumes in a copy of the instruction with EFLAGS.TF set and IF clear. The copy stands at
//! another address, so some of its effects are wrong, and the #DB after it corrects them: the
//! instruction pointer, a return address that a call has pushed, flags that a `pushf` has stored,
//! TF and IF themselves. A `nop` follows the copy, because after `sti` the processor may hold off
//! the #DB until one more instruction is executed (QEMU 7.2 does, Bochs does not).
//!
//! Relative branches are copied as they are. When taken, they arrive at a wrong address, but
//! nothing is fetched from there before the #DB.

use super::{
    classify::Class,
    decode::{Insn, MAX_INSN_BYTES},
    flags::{FlagsOp, OperandSize, bits, pushed_image},
    rebase::rebased,
    refusal::Refusal,
};
use crate::PtRegs;

/// A copy of one instruction, to be executed with EFLAGS.TF set.
#[derive(Clone, Debug)]
pub struct StepCopy {
    ip: u64,
    next_ip: u64,
    slot_addr: u64,
    code: [u8; StepCopy::MAX_BYTES],
    fixup: Fixup,
    branches_to_itself: bool,
}

/// The correction that is due after the step, besides TF and IF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fixup {
    /// The ip becomes that of the next instruction.
    Next,
    /// The ip is off by the distance between copy and original.
    Relative,
    /// Likewise, and so is the return address at the top of the stack.
    RelativeCall,
    /// The ip is right.
    Absolute,
    /// The ip is right, the return address at the top of the stack is not.
    AbsoluteCall,
    /// The next instruction, with flags of its own.
    Flags(FlagsOp),
}

/// Whether a #DB in a copy ends the step.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepProgress {
    /// The instruction is complete and the registers are those of the probed code.
    Done,
    /// A string instruction has iterations left (there is a #DB after each, and may be one before
    /// the first). Nothing was changed: resume with TF still set.
    Unfinished,
}

impl StepCopy {
    /// Bytes that a copy needs.
    pub const MAX_BYTES: usize = MAX_INSN_BYTES + 1;

    /// The code, to be placed at the `slot_addr` for which it was made.
    pub fn code(&self) -> &[u8] {
        &self.code[..self.insn_len() + 1]
    }

    /// Completes the step at the #DB that follows it.
    ///
    /// `regs` is the frame of the #DB, `flags` RFLAGS of the probed code before the step. `store`
    /// writes bytes to the probed code's stack, at addresses that the instruction itself has just
    /// written.
    pub fn finish(
        &self,
        regs: &mut PtRegs,
        flags: u64,
        mut store: impl FnMut(u64, &[u8]),
    ) -> StepProgress {
        if regs.ip == self.slot_addr && !self.branches_to_itself {
            return StepProgress::Unfinished;
        }
        match self.fixup {
            Fixup::Next | Fixup::Flags(_) => regs.ip = self.next_ip,
            Fixup::Relative | Fixup::RelativeCall => {
                regs.ip = regs.ip.wrapping_sub(self.slot_addr).wrapping_add(self.ip);
            }
            Fixup::Absolute | Fixup::AbsoluteCall => {}
        }
        match self.fixup {
            Fixup::RelativeCall | Fixup::AbsoluteCall => {
                store(regs.sp, &self.next_ip.to_le_bytes())
            }
            Fixup::Flags(FlagsOp::Push(size)) => {
                let image = pushed_image(flags).to_le_bytes();
                match size {
                    OperandSize::Word => store(regs.sp, &image[..2]),
                    OperandSize::Quad => store(regs.sp, &image),
                }
            }
            _ => {}
        }
        let kept = match self.fixup {
            // The processor has set them from the popped word.
            Fixup::Flags(FlagsOp::Pop(_)) => 0,
            Fixup::Flags(FlagsOp::Clear | FlagsOp::Set) => bits::TF,
            _ => bits::TF | bits::IF,
        };
        regs.flags = (regs.flags & !(kept | bits::RF)) | (flags & kept);
        StepProgress::Done
    }

    fn insn_len(&self) -> usize {
        self.next_ip.wrapping_sub(self.ip) as usize
    }
}

/// Copies `insn` for single-stepping at `slot_addr`.
///
/// # Errors
/// The refusals of [`classify`](super::classify()) that do not depend on the next instruction;
/// [`Refusal::DisplacementRange`] if a RIP-relative operand is out of the slot's reach.
pub fn step_copy(insn: &Insn, slot_addr: u64) -> Result<StepCopy, Refusal> {
    let fixup = match Class::of(insn)? {
        Class::Ordinary => Fixup::Next,
        Class::Jump | Class::ConditionalJump | Class::CountedJump => Fixup::Relative,
        Class::Call => Fixup::RelativeCall,
        Class::IndirectJump | Class::Return => Fixup::Absolute,
        Class::IndirectCall => Fixup::AbsoluteCall,
        Class::Flags(op) => Fixup::Flags(op),
    };
    let (bytes, len) = rebased(insn, slot_addr)?;
    let mut code = [0x90; StepCopy::MAX_BYTES];
    code[..len].copy_from_slice(&bytes[..len]);
    Ok(StepCopy {
        ip: insn.ip(),
        next_ip: insn.next_ip(),
        slot_addr,
        code,
        fixup,
        branches_to_itself: insn.branch_target() == Some(insn.ip()),
    })
}
