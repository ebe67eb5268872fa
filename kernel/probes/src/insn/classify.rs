//! Which instructions may be probed, and what sort of replacement each needs.
//!
//! All but a few instructions run anywhere, at most with another displacement
//! ([`Class::Ordinary`]). The other classes say what else a replacement has to do. An instruction
//! is refused in three cases: no copy of it can have the same effect; the probes themselves would
//! not survive it, for example because it changes the GS base; or processors disagree about what it
//! does.
//!
//! The answer depends on the decoded operation. Only `sti` is judged by its neighbour as well,
//! because the instruction after it may rely on interrupts staying off.

use iced_x86::{Code, OpKind, Register};

use super::{
    decode::{Insn, Prefixes, decode},
    flags::{FlagsOp, OperandSize},
    refusal::Refusal,
};

/// With more prefixes a branch's replacement does not fit into a slot. No assembler writes so many.
const MOST_PREFIXES: u8 = 9;

/// The one thing that the replacement of an instruction has to care about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Depends on its own address at most by a RIP-relative operand, and goes on with the next
    /// instruction.
    Ordinary,
    /// `jmp rel`.
    Jump,
    /// `jcc rel`.
    ConditionalJump,
    /// `loop`, `loope`, `loopne`, `jrcxz`, `jecxz`: no encoding with a 32-bit displacement.
    CountedJump,
    /// `call rel`.
    Call,
    /// `jmp r/m`, near.
    IndirectJump,
    /// `call r/m`, near.
    IndirectCall,
    /// `ret`, `ret imm16`, near.
    Return,
    /// Observes or changes the interrupt flag.
    Flags(FlagsOp),
}

impl Class {
    /// The class of an instruction that may be probed whatever follows it.
    pub(super) fn of(insn: &Insn) -> Result<Self, Refusal> {
        use Code as C;
        let prefixes = insn.prefixes();
        if prefixes.void_rex {
            return Err(Refusal::Prefix);
        }
        let class = match insn.code() {
            C::Jmp_rel8_64 | C::Jmp_rel32_64 | C::Jmp_rel16 => Self::Jump,
            code if code.is_jcc_short_or_near() => Self::ConditionalJump,
            code if is_counted(code) => Self::CountedJump,
            C::Call_rel32_64 | C::Call_rel16 => Self::Call,
            C::Jmp_rm64 | C::Jmp_rm32 | C::Jmp_rm16 => Self::IndirectJump,
            C::Call_rm64 | C::Call_rm32 | C::Call_rm16 => Self::IndirectCall,
            C::Retnq | C::Retnq_imm16 | C::Retnd | C::Retnd_imm16 | C::Retnw | C::Retnw_imm16 => {
                Self::Return
            }
            C::Pushfq => Self::Flags(FlagsOp::Push(OperandSize::Quad)),
            C::Pushfw => Self::Flags(FlagsOp::Push(OperandSize::Word)),
            C::Popfq => Self::Flags(FlagsOp::Pop(OperandSize::Quad)),
            C::Popfw => Self::Flags(FlagsOp::Pop(OperandSize::Word)),
            C::Cli => Self::Flags(FlagsOp::Clear),
            C::Sti => Self::Flags(FlagsOp::Set),
            _ => return refusal(insn).map_or(Ok(Self::Ordinary), Err),
        };
        if class.refuses_operand_size() && prefixes.operand_size && !prefixes.rex_w() {
            return Err(Refusal::OperandSizeBranch);
        }
        if class.refuses(prefixes) {
            return Err(Refusal::Prefix);
        }
        Ok(class)
    }

    /// Whether the meaning of 0x66 is unclear. Intel ignores it on a near branch, AMD truncates the
    /// target to 16 bits and shortens the immediate. REX.W overrides it on both.
    const fn refuses_operand_size(self) -> bool {
        !matches!(self, Self::Flags(_) | Self::Ordinary)
    }

    /// Whether the replacement cannot keep all of the prefixes. A copy keeps them. So does a branch
    /// that is replaced by its own kind of branch: whatever a processor makes of the prefixes
    /// happens there, too. For example AMD takes the condition of `loope` and `loopne` from a
    /// repeat prefix, Intel from the opcode. Other replacements are other instructions.
    const fn refuses(self, prefixes: Prefixes) -> bool {
        match self {
            Self::Ordinary => false,
            // Carried out by other means than an instruction (hit.rs), or as a push of a word.
            Self::Flags(_) => prefixes.others,
            // 0xf2 is BND, and means nothing in a kernel that leaves the bounds registers alone.
            Self::Jump | Self::Call | Self::IndirectJump | Self::IndirectCall => {
                prefixes.rep || prefixes.len > MOST_PREFIXES
            }
            // 0xf3 on `ret` is AMD's advice for its older processors, and in a good deal of code.
            Self::ConditionalJump | Self::CountedJump | Self::Return => {
                prefixes.len > MOST_PREFIXES
            }
        }
    }

    /// Whether the instruction after it in memory may be the next one executed.
    pub const fn falls_through(self) -> bool {
        !matches!(self, Self::Jump | Self::IndirectJump | Self::Return)
    }
}

/// Says whether `insn` may be probed, and which kind of care its replacement needs.
///
/// `behind` is the function's original code after it. Only `sti` needs that. `sti` is refused if
/// no instruction is after it, or one that relies on the interrupt shadow of one instruction, as
/// in `sti; hlt`.
///
/// # Errors
/// The reason why it may not be probed.
pub fn classify(insn: &Insn, behind: &[u8]) -> Result<Class, Refusal> {
    let class = Class::of(insn)?;
    if class == Class::Flags(FlagsOp::Set)
        && decode(behind, insn.next_ip()).map_or(true, |next| relies_on_shadow(&next))
    {
        return Err(Refusal::InterruptShadow);
    }
    Ok(class)
}

/// Instructions that idle and exit paths put after an `sti` so that no interrupt comes between.
fn relies_on_shadow(insn: &Insn) -> bool {
    match Class::of(insn) {
        Ok(class) => {
            class == Class::Return || matches!(insn.code(), Code::Tpause_r32 | Code::Tpause_r64)
        }
        Err(refusal) => matches!(
            refusal,
            Refusal::Wait
                | Refusal::SystemCall
                | Refusal::InterruptReturn
                | Refusal::FarTransfer
                | Refusal::VirtualMachineEntry
        ),
    }
}

fn refusal(insn: &Insn) -> Option<Refusal> {
    use Code as C;
    Some(match insn.code() {
        C::Int3 => Refusal::Breakpoint,
        C::Int_imm8 | C::Int1 | C::Into => Refusal::SoftwareInterrupt,
        C::Ud2 if insn.is_forced_emulation_prefix() => Refusal::ForcedEmulation,
        C::Ud2
        | C::Ud0
        | C::Ud0_r16_rm16
        | C::Ud0_r32_rm32
        | C::Ud0_r64_rm64
        | C::Ud1_r16_rm16
        | C::Ud1_r32_rm32
        | C::Ud1_r64_rm64 => Refusal::Undefined,
        C::Mov_Sreg_rm16 | C::Mov_Sreg_r32m16 | C::Mov_Sreg_r64m16 => {
            match insn.instruction().op0_register() {
                Register::SS => Refusal::StackSegmentLoad,
                Register::GS => Refusal::GsBase,
                _ => return None,
            }
        }
        C::Retfw
        | C::Retfd
        | C::Retfq
        | C::Retfw_imm16
        | C::Retfd_imm16
        | C::Retfq_imm16
        | C::Call_m1616
        | C::Call_m1632
        | C::Call_m1664
        | C::Jmp_m1616
        | C::Jmp_m1632
        | C::Jmp_m1664 => Refusal::FarTransfer,
        C::Iretw | C::Iretd | C::Iretq | C::Uiret | C::Eretu | C::Erets => Refusal::InterruptReturn,
        C::Hlt | C::Mwait | C::Mwaitx | C::Umwait_r32 | C::Umwait_r64 => Refusal::Wait,
        C::Syscall | C::Sysretd | C::Sysretq | C::Sysenter | C::Sysexitd | C::Sysexitq => {
            Refusal::SystemCall
        }
        C::Swapgs
        | C::Wrgsbase_r32
        | C::Wrgsbase_r64
        | C::Popw_GS
        | C::Popq_GS
        | C::Lgs_r16_m1616
        | C::Lgs_r32_m1632
        | C::Lgs_r64_m1664
        | C::Vmloadw
        | C::Vmloadd
        | C::Vmloadq => Refusal::GsBase,
        C::Xbegin_rel16 | C::Xbegin_rel32 => Refusal::Transaction,
        C::Vmlaunch | C::Vmresume | C::Vmrunw | C::Vmrund | C::Vmrunq => {
            Refusal::VirtualMachineEntry
        }
        C::Rsm => Refusal::SystemManagementReturn,
        C::Mov_cr_r64 => match insn.instruction().op0_register() {
            Register::CR0 | Register::CR3 | Register::CR4 => Refusal::ControlRegister,
            _ => return None,
        },
        C::Lmsw_rm16 | C::Lmsw_r32m16 | C::Lmsw_r64m16 => Refusal::ControlRegister,
        C::Lgdt_m1664
        | C::Lidt_m1664
        | C::Ltr_rm16
        | C::Ltr_r32m16
        | C::Ltr_r64m16
        | C::Lldt_rm16
        | C::Lldt_r32m16
        | C::Lldt_r64m16 => Refusal::DescriptorTable,
        C::Incsspd_r32
        | C::Incsspq_r64
        | C::Rdsspd_r32
        | C::Rdsspq_r64
        | C::Saveprevssp
        | C::Rstorssp_m64
        | C::Wrssd_m32_r32
        | C::Wrssq_m64_r64
        | C::Wrussd_m32_r32
        | C::Wrussq_m64_r64
        | C::Setssbsy
        | C::Clrssbsy_m64 => Refusal::ShadowStack,
        _ => return None,
    })
}

fn is_counted(code: Code) -> bool {
    code.is_loop() || code.is_loopcc() || code.is_jcx_short()
}

/// Whether the operand of an indirect branch is in memory.
pub(super) fn has_memory_operand(insn: &Insn) -> bool {
    insn.instruction().op0_kind() == OpKind::Memory
}
