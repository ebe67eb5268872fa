//! Actions: machine code that a kprobe carries in place of a pre handler.
//!
//! A handler gets all registers, whether it looks at them or not. An action is code that was made
//! for one purpose, for example to count, so it saves the registers that it uses and no others. It
//! knows where a hit has each register, and there are three such places:
//!
//! ```text
//!   a jump        the detour calls `jump`: all registers are those of the probed code
//!   a breakpoint  the stub calls `breakpoint`: five registers are in the frame, the others live
//!   anything else the routine calls `handler`: all registers are in a `PtRegs`
//! ```
//!
//! The first two serve a probe that is alone at its address. Beside other probes, with a post
//! handler or a single step, the action is a pre handler like any other.
//!
//! # Invariants
//! ACTION-1. An action is code of the slot region's last pages, [`Platform::ACTION_PAGES`], or of
//!     functions that it calls under the guard. So no CPU is in an action when a grace period ends,
//!     and no task is switched away from inside one.
//! ACTION-2. It runs whether the guard is free or held, because it can reach no probe. So a hit of
//!     a lone action is never missed. Its handler form is, as every handler.
//! ACTION-3. The registry counts no hits of it. An action counts whatever it wants itself.
//!
//! # Contexts
//! Those of a pre handler. In the form for jumps interrupts are as the probed code had them.
//!
//! [`Platform::ACTION_PAGES`]: crate::platform::Platform::ACTION_PAGES

use core::mem::offset_of;

use crate::{
    data::{
        instance::Instance,
        kprobe::{Kprobe, PreHandler},
    },
    insn::JUMP_BYTES,
    pt_regs::PtRegs,
};

/// How far the probed address, which a detour holds for its action, is before the return address of
/// [`Action::jump`]: the address itself, and the call instruction, which is as long as a jump.
pub const ADDRESS_BEFORE_RETURN: usize = size_of::<u64>() + JUMP_BYTES;

/// The routines of an action at a probed instruction.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Action {
    /// Called by a detour. It keeps all registers, and may change the arithmetic flags. The 8 bytes
    /// before the call instruction hold the probed address. `rsp + 8` is the stack pointer of the
    /// probed code.
    pub jump: u64,
    /// The same, but it keeps the flags, too.
    pub jump_keeping_flags: u64,
    /// Called by the breakpoint's stub, interrupts off. Above the return address it finds the
    /// words that [`BreakpointFrame`] names. It may change `rax`, `rcx`, `rdx`, `rsi`, `rdi` and
    /// the arithmetic flags, and keeps everything else.
    pub breakpoint: u64,
    /// A pre handler that returns [`PreVerdict::Execute`](crate::PreVerdict).
    pub handler: PreHandler,
}

/// The stack of [`Action::breakpoint`], from the return address on. `ip` is the probed address + 1.
#[repr(C)]
pub struct BreakpointFrame {
    pub return_address: u64,
    pub site: u64,
    pub ax: u64,
    pub cx: u64,
    pub dx: u64,
    pub si: u64,
    pub di: u64,
    pub orig_ax: u64,
    pub ip: u64,
    pub cs: u64,
    pub flags: u64,
    pub sp: u64,
    pub ss: u64,
}

/// The decision of an entry handler: Linux's return values 0 and non-zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryVerdict {
    /// Follow this call to its return.
    Track,
    /// Let it go: its return is not seen, and nothing is counted.
    Decline,
}

/// A routine of an action at the entry of a call. The arguments: the call's instance and the
/// registers.
///
/// In the instance it finds [`WORDS_IN_INSTANCE`] and [`RETURN_ADDRESS_IN_INSTANCE`]. Its function
/// is [`CallAction::function`].
pub type EntryRoutine = extern "C" fn(*mut (), &mut PtRegs) -> EntryVerdict;

/// The same at the return, where there is nothing to decide.
pub type ReturnRoutine = extern "C" fn(*mut (), &mut PtRegs);

/// A routine that a detour or a trampoline calls by a convention of its own.
pub type JumpRoutine = unsafe extern "C" fn();

/// Where the words that the entry and the return of a call share are in its instance, in bytes.
pub const WORDS_IN_INSTANCE: usize = size_of::<Instance>();

/// Where a call returns to, in its instance.
pub const RETURN_ADDRESS_IN_INSTANCE: usize = offset_of!(Instance, ret_addr);

/// Where a probe has its address. With it code finds [`CallAction::function`] by itself: the word
/// at [`PerCpu::RUNNING_OFFSET`](crate::PerCpu::RUNNING_OFFSET) is the probe, but for its low bits,
/// [`PerCpu::MARKS_OF_RUNNING`](crate::PerCpu::MARKS_OF_RUNNING).
pub const ADDRESS_IN_PROBE: usize = offset_of!(Kprobe, addr);

/// The routines of an action at the entry and the return of a call.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CallAction {
    /// At the entry; none: every call is followed to its return. It finds any content in the words.
    pub entry: Option<EntryRoutine>,
    /// The same for a hit by a jump, if nothing else is at the function's entry; none: there is no
    /// such form, and the hit builds a frame for `entry`. Called with the guard held and DF and AC
    /// clear; `rsi` is the probe, and `rax` the instance. Above the return address it finds the
    /// words that [`EntryFrame`] names. It may change `rax`, `rcx`, `rdx`, `rsi`, `rdi` and the
    /// arithmetic flags, and keeps everything else. The verdict is in `al`.
    pub jump_entry: Option<JumpRoutine>,
    /// At the return.
    pub on_return: ReturnRoutine,
    /// The same for a call that was followed by a jump, with nothing else at the function's entry;
    /// none: its return builds a frame for `on_return`, too. Called with the guard held and DF and
    /// AC clear; `rsi` is the probe. Above the return address it finds the words that
    /// [`EntryFrame`] names, but with the stack pointer of the return above
    /// [`EntryFrame::return_slot`]. It may change what `jump_entry` may change.
    pub jump_return: Option<JumpRoutine>,
    /// How many words entry and return share. If there is no entry, they are zero.
    pub shared_words: usize,
}

/// The stack of [`CallAction::jump_entry`] and [`CallAction::jump_return`], from the return address
/// on. At the entry the return slot is not borrowed yet. At the return it holds no address: where
/// the call returns to is in the instance ([`RETURN_ADDRESS_IN_INSTANCE`]).
#[repr(C)]
pub struct EntryFrame {
    pub return_address: u64,
    pub instance: u64,
    pub ax: u64,
    pub cx: u64,
    pub dx: u64,
    pub si: u64,
    pub di: u64,
    pub flags: u64,
    pub return_slot: u64,
}
