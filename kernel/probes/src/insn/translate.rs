//! Out-of-line replacements of instructions: code that has the effect of the original from another
//! address, and leaves by explicit exits.
//!
//! Rules that every replacement keeps:
//!
//! 1. Before its commit point only RSP and dead stack below it differ from the state before the
//!    original.
//! 2. It touches no flag and no register that the original does not touch. Scratch space is the
//!    stack below RSP.
//! 3. At each of its instructions the [`Position`] tells the probed code's ip and stack pointer. A
//!    fault is rewound by it, a backtrace shown by it. An interrupt needs neither, because it
//!    resumes in the code.
//! 4. A fault of the original happens in the replacement, too, at an instruction whose position is
//!    the probed address.
//! 5. It holds no data of a hit, so any number of CPUs may execute it at once.
//!
//! # Endings
//! With [`Ending::Resume`] the exits are jumps to the original code. Nothing is held while the code
//! runs, and it may be interrupted anywhere. With [`Ending::Post`] it runs with IF=0. Every exit
//! pushes the address at which to go on and jumps to a stub. The stub finds that address at `[rsp]`
//! and the final stack pointer at `rsp + 8`. Instructions that set or clear IF do not suit that:
//! the caller carries them out on the saved registers before it enters the code
//! ([`FlagsOp::apply`]), and the code only takes the exit. So it is with `pushf`, too, if
//! [`Ending::Post`] does not say where the saved flags are.
//!
//! ```text
//!   original    Resume                             Post
//!   ordinary    copy; jmp next                     copy; push next; jmp stub
//!   jmp rel     jmp target                         push target; jmp stub
//!   jcc rel     jcc target; jmp next               jcc 1f; push next; jmp stub;
//!                                                    1: push target; jmp stub
//!   loop rel    loop 1f; jmp next; 1: jmp target   likewise
//!   call rel    push ret; jmp target               push ret; push target; jmp stub
//!   call reg    push ret; jmp reg                  push ret; push reg; jmp stub
//!   call mem,   push op; push [rsp];               push op; push [rsp];
//!   call rsp      mov [rsp+8], ret; ret              mov [rsp+8], ret; jmp stub
//!   jmp r/m     copy                               push op; jmp stub
//!   ret         copy                               jmp stub
//!   ret n       copy                               push [rsp]; pop [rsp+n]; lea rsp, [rsp+n];
//!                                                    jmp stub
//!   pushf       copy; jmp next                     push gs:[saved]; push next; jmp stub
//! ```
//!
//! The instruction that takes the original's place keeps all prefixes in their order, so that each
//! processor reads them in its own way. Those of an operand (segment, 0x67, 0x66 with REX.W, REX)
//! go to the `push` of it, BND to the branch after that. Prefixes that no replacement can keep are
//! refused by the class ([`Refusal::Prefix`]).
//!
//! `call mem` reads its operand with the original RSP and before anything is written. Its `ret` is
//! the commit point, so a target that cannot be fetched from is reported as the call's own fault.
//! Where an address does not fit into a 32-bit field (never in a kernel in the top 2 GiB), `push`,
//! `jmp` and `mov` take it from a literal after the code.

use super::{
    classify::{Class, has_memory_operand},
    decode::Insn,
    flags::{FlagsOp, OperandSize},
    refusal::Refusal,
    sequence::{Position, ResumeIp, Sequence},
};

/// Bytes that a slot needs when original code, slot and stub all lie in the top (or the lowest) 2
/// GiB.
pub const SLOT_BYTES: usize = 32;

/// How the replacement goes on when the instruction is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Falls through into what is appended next, in a [`Block`]; other exits as with `Resume`.
    Fall,
    /// Jumps to where the original would have gone on.
    Resume,
    /// Pushes the address where the original would have gone on, and jumps to `stub`.
    Post {
        /// Address of the stub.
        stub: u64,
        /// Where `pushf` finds the probed code's flags. Without it `pushf` is left to the caller,
        /// too.
        saved_flags: Option<SavedFlagsOperand>,
    },
}

/// Where the core keeps [`pushed_image`](super::flags::pushed_image) of the probed code's flags
/// while a slot runs with IF=0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedFlagsOperand {
    /// Offset from the GS base, below 2 GiB.
    pub gs_offset: u32,
}

/// The replacement of one instruction, made for one address.
#[derive(Clone, Debug)]
pub struct Translation {
    ip: u64,
    sequence: Sequence<{ Translation::MAX_BYTES }, 8>,
}

impl Translation {
    /// The longest replacement, with all its addresses in literals. With none it is
    /// [`SLOT_BYTES`].
    pub const MAX_BYTES: usize = 64;

    /// The code, to be placed at the `slot_addr` for which it was made.
    pub fn code(&self) -> &[u8] {
        self.sequence.code()
    }

    /// Address of the original.
    pub fn probed_ip(&self) -> u64 {
        self.ip
    }

    /// The position of the probed code when the processor stands at `offset` into the code, as for
    /// a fault or an interrupt there. `offset` is below the code's length.
    pub fn position(&self, offset: usize) -> Position {
        self.sequence
            .position(offset)
            .unwrap_or(Position::known(self.ip, 0))
    }

    /// The offsets at which the position changes, in ascending order, and the positions from there
    /// on.
    pub fn positions(&self) -> impl Iterator<Item = (usize, Position)> {
        self.sequence.positions()
    }
}

/// Translates `insn` for execution at `slot_addr`.
///
/// # Errors
/// The refusals of [`classify`](super::classify()) that do not depend on the next instruction;
/// [`Refusal::DisplacementRange`] if a RIP-relative operand is out of the slot's reach.
pub fn translate(insn: &Insn, slot_addr: u64, ending: Ending) -> Result<Translation, Refusal> {
    let mut translation = Translation {
        ip: insn.ip(),
        sequence: Sequence::new(slot_addr),
    };
    append(&mut translation.sequence, insn, ending)?;
    translation.sequence.finish()?;
    Ok(translation)
}

/// Replacements of several instructions, one after the other in one buffer, such as the original
/// code of a detour.
#[derive(Clone, Debug)]
pub struct Block {
    sequence: Sequence<{ Block::MAX_BYTES }, 48>,
}

impl Block {
    /// Capacity. The region under a jump of 5 bytes holds 19 bytes of code at the most.
    pub const MAX_BYTES: usize = 240;

    /// An empty block for the address `start`.
    pub fn new(start: u64) -> Self {
        Self {
            sequence: Sequence::new(start),
        }
    }

    /// Appends the replacement of `insn`. All but the last instruction take [`Ending::Fall`].
    ///
    /// # Errors
    /// The same as [`translate`]; [`Refusal::NoRoom`] if the block is full. The block is of no use
    /// afterwards.
    pub fn append(&mut self, insn: &Insn, ending: Ending) -> Result<(), Refusal> {
        append(&mut self.sequence, insn, ending)
    }

    /// Appends a jump to `target`.
    ///
    /// # Errors
    /// [`Refusal::NoRoom`] if the block is full.
    pub fn jump(&mut self, target: u64) -> Result<(), Refusal> {
        self.sequence.mark(Position::known(target, 0))?;
        self.sequence.jump(target)
    }

    /// Completes the block; its code may be copied out then.
    ///
    /// # Errors
    /// [`Refusal::NoRoom`] if literals do not fit.
    pub fn finish(&mut self) -> Result<&[u8], Refusal> {
        self.sequence.finish()?;
        Ok(self.sequence.code())
    }

    /// Length so far, in bytes: the offset of the next instruction to be appended.
    pub fn offset(&self) -> usize {
        self.sequence.len()
    }

    /// The position of the probed code when the processor stands at `offset` into the code. `None`
    /// for an empty block.
    pub fn position(&self, offset: usize) -> Option<Position> {
        self.sequence.position(offset)
    }
}

/// Appends the replacement of one instruction.
fn append<const B: usize, const M: usize>(
    seq: &mut Sequence<B, M>,
    insn: &Insn,
    ending: Ending,
) -> Result<(), Refusal> {
    let class = Class::of(insn)?;
    let ret = insn.next_ip();
    let probed = |rsp_correction| Position::known(insn.ip(), rsp_correction);
    seq.mark(probed(0))?;
    match (class, ending) {
        (Class::Flags(op), Ending::Post { saved_flags, .. }) => {
            if let (FlagsOp::Push(size), Some(operand)) = (op, saved_flags) {
                push_saved_flags(seq, size, operand)?;
            }
            exit_next(seq, ret, ending)?;
        }
        (Class::Ordinary | Class::Flags(_), _) => {
            seq.copy(insn)?;
            exit_next(seq, ret, ending)?;
        }
        (Class::Jump, Ending::Fall | Ending::Resume) => seq.jump_like(insn, target(insn))?,
        (Class::Jump, Ending::Post { stub, .. }) => {
            seq.push(target(insn))?;
            seq.mark(Position::EXIT_STACKED)?;
            seq.jump_like(insn, stub)?;
        }
        (Class::ConditionalJump, _) => {
            let condition = condition(insn);
            let direct = match ending {
                Ending::Post { .. } => None,
                Ending::Fall | Ending::Resume => {
                    seq.conditional_jump(insn.prefix_bytes(), condition, target(insn))?
                }
            };
            match direct {
                Some(()) => exit_next(seq, ret, ending)?,
                None => two_exits(seq, 0x70 | condition, insn, ending)?,
            }
        }
        (Class::CountedJump, _) => two_exits(seq, insn.opcode_bytes()[0], insn, ending)?,
        (Class::Call, _) => {
            seq.push(ret)?;
            match ending {
                Ending::Fall | Ending::Resume => {
                    seq.mark(Position::known(target(insn), 0))?;
                    seq.jump_like(insn, target(insn))?;
                }
                Ending::Post { stub, .. } => {
                    seq.mark(probed(8))?;
                    seq.push(target(insn))?;
                    seq.mark(Position::EXIT_STACKED)?;
                    seq.jump_like(insn, stub)?;
                }
            }
        }
        (Class::IndirectCall, _) if has_memory_operand(insn) || branch_register(insn) == RSP => {
            seq.push_branch_operand(insn)?;
            seq.mark(probed(8))?;
            seq.put(&[0xff, 0x34, 0x24])?; // push [rsp]
            seq.store_under_top(ret, probed(16))?;
            match ending {
                Ending::Fall | Ending::Resume => {
                    seq.mark(probed(16))?;
                    seq.put_bound_prefix(insn)?;
                    seq.put(&[0xc3])?;
                }
                Ending::Post { stub, .. } => {
                    seq.mark(Position::EXIT_STACKED)?;
                    seq.put_bound_prefix(insn)?;
                    seq.jump(stub)?;
                }
            }
        }
        (Class::IndirectCall, _) => {
            seq.push(ret)?;
            seq.mark(probed(8))?;
            match ending {
                Ending::Fall | Ending::Resume => jump_register(seq, insn)?,
                Ending::Post { stub, .. } => {
                    seq.push_branch_operand(insn)?;
                    seq.mark(Position::EXIT_STACKED)?;
                    seq.put_bound_prefix(insn)?;
                    seq.jump(stub)?;
                }
            }
        }
        (Class::IndirectJump, Ending::Post { stub, .. }) => {
            seq.push_branch_operand(insn)?;
            seq.mark(Position::EXIT_STACKED)?;
            seq.put_bound_prefix(insn)?;
            seq.jump(stub)?;
        }
        (Class::Return, Ending::Post { stub, .. }) => {
            discard_arguments(seq, insn)?;
            seq.jump_like(insn, stub)?;
        }
        (Class::IndirectJump | Class::Return, Ending::Fall | Ending::Resume) => seq.copy(insn)?,
    }
    Ok(())
}

/// Register number of RSP.
const RSP: u8 = 4;

/// Number of the register operand of an indirect branch.
fn branch_register(insn: &Insn) -> u8 {
    (insn.opcode_bytes()[1] & 7) | (insn.prefixes().rex & 1) << 3
}

/// Where a direct branch leads to.
fn target(insn: &Insn) -> u64 {
    insn.instruction().near_branch64()
}

/// The condition of a `jcc`: the low nibble of 0x7x and 0x0f 0x8x.
fn condition(insn: &Insn) -> u8 {
    match insn.opcode_bytes() {
        [0x0f, opcode, ..] | [opcode, ..] => opcode & 0xf,
        [] => unreachable!("an instruction has an opcode"),
    }
}

/// The exit to any address.
fn exit<const B: usize, const M: usize>(
    seq: &mut Sequence<B, M>,
    ip: u64,
    ending: Ending,
) -> Result<(), Refusal> {
    match ending {
        Ending::Fall | Ending::Resume => seq.jump(ip),
        Ending::Post { stub, .. } => {
            seq.push(ip)?;
            seq.mark(Position::EXIT_STACKED)?;
            seq.jump(stub)
        }
    }
}

/// The exit to the next instruction, after the original's effect is complete.
fn exit_next<const B: usize, const M: usize>(
    seq: &mut Sequence<B, M>,
    next: u64,
    ending: Ending,
) -> Result<(), Refusal> {
    if ending == Ending::Fall {
        return Ok(());
    }
    seq.mark(Position::known(next, 0))?;
    exit(seq, next, ending)
}

/// A branch over the exit to the next instruction to the exit to the target. `opcode`: of its short
/// form. It has the prefixes of `insn`.
fn two_exits<const B: usize, const M: usize>(
    seq: &mut Sequence<B, M>,
    opcode: u8,
    insn: &Insn,
    ending: Ending,
) -> Result<(), Refusal> {
    seq.put(insn.prefix_bytes())?;
    let taken = seq.short_jump(opcode)?;
    let around = if ending == Ending::Fall {
        seq.mark(Position::known(insn.next_ip(), 0))?;
        Some(seq.short_jump(0xeb)?)
    } else {
        exit_next(seq, insn.next_ip(), ending)?;
        None
    };
    seq.land(taken)?;
    seq.mark(Position::known(target(insn), 0))?;
    exit(seq, target(insn), ending)?;
    around.map_or(Ok(()), |jump| seq.land(jump))
}

/// `jmp reg` in place of `call reg`: another opcode extension.
fn jump_register<const B: usize, const M: usize>(
    seq: &mut Sequence<B, M>,
    insn: &Insn,
) -> Result<(), Refusal> {
    seq.put(insn.prefix_bytes())?;
    seq.put(&[0xff, 0xe0 | (branch_register(insn) & 7)])
}

fn push_saved_flags<const B: usize, const M: usize>(
    seq: &mut Sequence<B, M>,
    size: OperandSize,
    operand: SavedFlagsOperand,
) -> Result<(), Refusal> {
    if size == OperandSize::Word {
        seq.put(&[0x66])?;
    }
    seq.put(&[0x65, 0xff, 0x34, 0x25])?; // push gs:[disp32]
    seq.put(&operand.gs_offset.to_le_bytes())
}

/// Moves the return address up over the arguments that a `ret imm16` discards, and RSP with it.
fn discard_arguments<const B: usize, const M: usize>(
    seq: &mut Sequence<B, M>,
    insn: &Insn,
) -> Result<(), Refusal> {
    let bytes = insn.discarded_arguments();
    if bytes == 0 {
        return Ok(());
    }
    let distance = i32::from(bytes);
    seq.put(&[0xff, 0x34, 0x24])?; // push [rsp]
    seq.mark(Position::known(insn.ip(), 8))?;
    seq.put(&[0x8f, 0x84, 0x24])?; // pop [rsp + imm], addressed after the increment
    seq.put(&distance.to_le_bytes())?;
    // From here on the word that held the return address may be overwritten.
    seq.mark(Position {
        ip: ResumeIp::Stacked(distance),
        rsp_correction: distance + 8,
    })?;
    seq.put(&[0x48, 0x8d, 0xa4, 0x24])?; // lea rsp, [rsp + imm]
    seq.put(&distance.to_le_bytes())?;
    seq.mark(Position::EXIT_STACKED)
}
