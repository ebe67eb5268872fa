//! The verifier: takes a program only if it ends and stays within its bounds whatever it does.
//!
//! It walks all paths of the program with sets in place of values (abstract interpretation): a
//! register holds not 5 but "a number, 0 to 63", or "a pointer into a value of map 2, offset 8".
//! Each instruction is checked against all that the sets allow. A branch splits them: after
//! `if r1 > 63 goto out`, `r1` is 0 to 63.
//!
//! ```text
//!   verify ─► walk: paths, loops, budgets ─► step: one instruction ─► number: sets of numbers
//!                     └─► liveness               ├─► state: registers, stack    branch
//! ```
//!
//! # The promises about a program that it takes
//! VERIFIER-1. A load reaches the context, the stack, a value of a map, the record, the entry data,
//!     or goes through a number and is marked [`Memory::Kernel`](crate::Memory::Kernel). A store or
//!     an atomic operation never reaches the context or goes through a number.
//! VERIFIER-2. All bytes of such an access are inside. Bytes of the stack are written before they
//!     are read. A record may hold old bytes where the program writes none.
//! VERIFIER-3. A helper gets what [`Helper::arguments`](crate::Helper::arguments) says. It writes
//!     all bytes of a [`Writable`](crate::Argument::Writable) argument, because the verifier takes
//!     them as written.
//! VERIFIER-4. At most one record is reserved at a time. It is submitted or discarded on every
//!     path, once, and not used afterwards.
//! VERIFIER-5. Every path ends with [`Insn::Exit`] and a number in `r0`, after at most
//!     [`MOST_PATH`] steps. A call counts for [`STEPS_OF_CALL`], a load of kernel memory for
//!     [`STEPS_OF_KERNEL_LOAD`], because a fault of it takes long; any other instruction for 1.
//! VERIFIER-6. [`Fact`](crate::Fact)s hold on all paths.
//!
//! # Pointers
//! A pointer of the program is copied, moved by a number between bounds, and compared with 0. It
//! is kept on the stack, whole and at a multiple of 8. It is never used as a number: not stored
//! elsewhere, not multiplied, not compared with another, not passed where a number is wanted. So
//! a program gives the same results wherever its memory is.
//!
//! Some results may be null, and must be compared with 0 before use. A lookup in an array is not
//! null if the verifier knows that its key, 4 bytes on the stack, is below the entries.
//!
//! # Loops
//! A loop is walked turn by turn. It is taken if the walk sees its end within [`MOST_WALK`] steps.
//! So `for i in 0..64` is taken, and "until a pointer is null" is not, without a count of turns.
//!
//! # Contexts and running out
//! The verifier runs in task context: a walk takes up to [`MOST_STATE_BYTES`] of memory and some
//! milliseconds. If there is no memory, the program is refused.

mod branch;
mod liveness;
mod number;
mod refusal;
mod state;
mod step;
mod walk;

pub use number::Number;
pub use refusal::{Cause, Expected, Refusal, Region};
pub use state::Value;

use crate::{
    Insn, MOST_ENTRY_BYTES, MOST_INSNS, MOST_MAPS, MapIndex, Program, Reg, Size, Verified,
    sign_extend,
};

/// The most steps of one path. See VERIFIER-5.
pub const MOST_PATH: u32 = 65_536;
/// The steps that a call counts for on a path.
pub const STEPS_OF_CALL: u32 = 32;
/// The steps that a load of kernel memory counts for on a path.
pub const STEPS_OF_KERNEL_LOAD: u32 = 8;
/// The most instructions that the walk goes through, those of all paths together.
pub const MOST_WALK: u32 = 200_000;
/// The most bytes of memory that the walk takes for states.
pub const MOST_STATE_BYTES: usize = 4 << 20;
/// The farthest that a pointer is moved from its memory, in bytes.
pub const MOST_DISTANCE: i64 = 1 << 29;

/// Checks a program.
///
/// # Errors
/// [`Refusal`], the first reason that was found.
pub fn verify(program: Program) -> Result<Verified, Refusal> {
    check_form(&program)?;
    let (facts, stack_bytes, cost) = walk::walk(&program)?;
    Ok(Verified::new(program, facts, stack_bytes, cost))
}

/// The checks that need no walk. Code that no path reaches must be well-formed, too.
fn check_form(program: &Program) -> Result<(), Refusal> {
    let whole = |cause| Refusal { at: None, cause };
    let insns = program.insns.len();
    if insns == 0 {
        return Err(whole(Cause::Empty));
    }
    if insns > MOST_INSNS {
        return Err(whole(Cause::TooManyInsns { found: insns }));
    }
    let maps = program.maps.len();
    if maps > MOST_MAPS {
        return Err(whole(Cause::TooManyMaps { found: maps }));
    }
    let shared = program.kind.shared_bytes();
    if shared > MOST_ENTRY_BYTES {
        return Err(whole(Cause::TooManyEntryBytes { found: shared }));
    }
    for (number, def) in program.maps.iter().enumerate() {
        let map = MapIndex(number as u16);
        def.check()
            .map_err(|error| whole(Cause::Map { map, error }))?;
    }
    for (at, insn) in program.insns.iter().enumerate() {
        check_insn(insn, insns, maps).map_err(|cause| Refusal {
            at: Some((at, *insn)),
            cause,
        })?;
    }
    Ok(())
}

fn check_insn(insn: &Insn, insns: usize, maps: usize) -> Result<(), Cause> {
    match *insn {
        Insn::SignExtend { width, bits, .. } if sign_extend(width, bits, 0).is_none() => {
            return Err(Cause::ExtendedBits { width, found: bits });
        }
        Insn::Swap { swap, bits, .. } if swap.apply(bits, 0).is_none() => {
            return Err(Cause::SwappedBits { found: bits });
        }
        Insn::Atomic { size, .. } if !matches!(size, Size::B4 | Size::B8) => {
            return Err(Cause::AtomicBytes {
                found: size.bytes(),
            });
        }
        Insn::LoadMap { map, .. } if usize::from(map.0) >= maps => {
            return Err(Cause::NoSuchMap { map, maps });
        }
        Insn::Jump { target } | Insn::Branch { target, .. } if usize::from(target.0) >= insns => {
            return Err(Cause::NoSuchTarget { target, insns });
        }
        _ => {}
    }
    match *insn {
        Insn::Alu { dst: Reg::R10, .. }
        | Insn::Negate { dst: Reg::R10, .. }
        | Insn::SignExtend { dst: Reg::R10, .. }
        | Insn::Swap { dst: Reg::R10, .. }
        | Insn::LoadImm { dst: Reg::R10, .. }
        | Insn::LoadMap { dst: Reg::R10, .. }
        | Insn::Load { dst: Reg::R10, .. } => Err(Cause::FramePointer),
        Insn::Alu { .. }
        | Insn::Negate { .. }
        | Insn::SignExtend { .. }
        | Insn::Swap { .. }
        | Insn::LoadImm { .. }
        | Insn::LoadMap { .. }
        | Insn::Load { .. }
        | Insn::Store { .. }
        | Insn::Atomic { .. }
        | Insn::Jump { .. }
        | Insn::Branch { .. }
        | Insn::Call { .. }
        | Insn::Exit => Ok(()),
    }
}
