#![doc = include_str!("../README.md")]
//! Compiles a verified program of BPF to x86_64 code that runs at a probe.
//!
//! The code is a routine that is called, and that returns with `ret`. There are three forms of it,
//! because a hit comes in three ways ([`Form`]). Compiling takes time and memory once; a hit pays
//! for each instruction. So the code has no frame that it does not need: constants and registers of
//! the probed code are used where they are, only the registers that it writes are saved, and what a
//! call of a helper needs is saved on the paths that call.
//!
//! ```text
//!   Verified ─► flow: what is known, what is needed ─► assign: registers ─► lower: code
//! ```
//!
//! # Levels
//! The code runs on one of two levels. On the *light* one, only the registers that it writes there
//! are saved. Before the first call of a helper on a path, it changes to the *heavy* one: the other
//! registers that a call may change are saved, and the stack is aligned. Once heavy, the code stays
//! heavy until it returns. An instruction that is reached on both levels is there twice. So a
//! filter that rejects costs a comparison, a jump and a return.
//!
//! # Rounds
//! Which registers are saved depends on which the code writes, and where it finds the registers of
//! the probed code depends on which are saved. So the code is made in rounds. Each round takes the
//! sets of what is written from the round before, until they stay the same. The sets only grow, so
//! the rounds end.
//!
//! # Invariants
//! COMPILED-1. A register of the machine that the form keeps has, at `ret`, the content that it had
//!     at the entry. The same holds for the flags.
//! COMPILED-2. All instructions that may fault are loads that [`mend()`] knows.
//! COMPILED-3. A count in a map of one CPU is one instruction, so that an interrupt, also an NMI,
//!     comes before or after it.
//!
//! # Contexts
//! [`compile`] runs in task context. It allocates, and returns an error if there is no memory.
//! [`mend()`] runs in any context.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::vec::Vec;
use core::fmt;

use bpf::{Helper, ProgramKind, Verified};
use fallible::OutOfMemory;

mod asm;
mod assign;
mod flow;
mod lower;
mod mend;

pub use mend::{Mended, mend};

/// How the code is called, and what it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Called by a 5-byte call, with the probe's registers as they are. All are kept. `rsp + 8` at
    /// the entry is the probe's `rsp`; the 8 bytes in front of the call hold the probed address.
    Jump {
        /// The probed code may still use the flags. If not, the arithmetic flags are free, and DF
        /// and AC are clear.
        flags_live: bool,
        /// The probe's `rsp` is 8 below a multiple of 16, as at the entry of a function.
        aligned: bool,
    },
    /// Called by the stub of the breakpoint, with interrupts off and [`BreakpointFrame`] above the
    /// return address. The frame is never changed. All registers are kept but those that the frame
    /// holds.
    Breakpoint,
    /// Called by the stub of a watchpoint's hit, with interrupts off and [`WatchpointFrame`] above
    /// the return address. In place of `orig_ax` the program finds the value before the access, and
    /// in place of `ss` the one after it. Else as [`Form::Breakpoint`].
    Watchpoint,
    /// For [`ProgramKind::Entry`] and [`ProgramKind::Return`]. Called by the detour at a function's
    /// entry, or by the trampoline of its return, with [`EntryFrame`] above the return address, on
    /// an aligned stack, and with DF and AC clear. All registers are kept but those that the frame
    /// holds. An entry has the result of [`Form::Handler`], a return none.
    Call,
    /// Called as a C function `(instance, context) -> u8`. The instance is that of the call, for
    /// [`ProgramKind::Entry`] and [`ProgramKind::Return`]: see [`INSTANCE_WORDS`]. The context is
    /// laid out as [`bpf::context`] says, but for [`ProgramKind::Probe`] `ip` is the probed address
    /// + 1. The result is 1 if the program of an entry returned another number than 0.
    Handler,
}

impl Form {
    fn is_jump(self) -> bool {
        matches!(self, Self::Jump { .. })
    }

    /// The registers of the frame, if it has those of [`BreakpointFrame::AX`] and the like.
    fn has_frame(self) -> bool {
        !matches!(self, Self::Jump { .. } | Self::Handler)
    }
}

/// Where the data that the two programs of a call share are in its instance.
pub const INSTANCE_WORDS: i32 = 32;
/// Where the call returns to, in its instance.
pub const INSTANCE_RETURN_ADDRESS: i32 = 16;

/// The frame of [`Form::Breakpoint`]: where its fields are, counted from the end of the return
/// address. Its beginning is a multiple of 16.
pub struct BreakpointFrame;

impl BreakpointFrame {
    pub const AX: i32 = 0x08;
    pub const CX: i32 = 0x10;
    pub const DX: i32 = 0x18;
    pub const SI: i32 = 0x20;
    pub const DI: i32 = 0x28;
    pub const ORIG_AX: i32 = 0x30;
    /// The probed address + 1.
    pub const IP: i32 = 0x38;
    pub const CS: i32 = 0x40;
    pub const FLAGS: i32 = 0x48;
    pub const SP: i32 = 0x50;
    pub const SS: i32 = 0x58;
}

/// The frame of [`Form::Watchpoint`], counted as that of a breakpoint is. From
/// [`WatchpointFrame::REST`] on it is laid out as that is from its beginning, but `ip` is where the
/// code goes on.
pub struct WatchpointFrame;

impl WatchpointFrame {
    pub const OLD: i32 = 0x08;
    pub const NEW: i32 = 0x10;
    pub const REST: i32 = 0x10;
}

/// The frame of [`Form::Call`]. From [`BreakpointFrame::AX`] to [`BreakpointFrame::DI`] it is laid
/// out as that is.
pub struct EntryFrame;

impl EntryFrame {
    pub const INSTANCE: i32 = 0x00;
    pub const FLAGS: i32 = 0x30;
    /// This is where the probe's `rsp` points to at an entry. At a return it points above this.
    pub const RETURN_SLOT: i32 = 0x38;
}

/// The bytes from the probed address, in front of a call in [`Form::Jump`], to the return address.
pub const ADDRESS_BEFORE_RETURN: i32 = 13;

/// The calling CPU's part of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerCpu {
    /// One part for all CPUs.
    Shared,
    /// A part at `base + (number of the CPU << shift)`.
    Shift(u8),
    /// A part at `base + ` the word at this offset from the GS base.
    Word(i32),
    /// A part at `base + ` the GS base. It is the fastest, because a count is one instruction.
    Gs {
        /// Where the GS base itself is, from the GS base on.
        own_address: i32,
    },
}

/// An array as it is in memory: a value is at the CPU's part + `index * stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    /// Given to helpers that are called.
    pub handle: u64,
    /// See [`PerCpu`].
    pub base: u64,
    pub cpu: PerCpu,
    pub stride: u32,
    pub entries: u32,
}

/// A map as it is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapRuntime {
    Array(Array),
    /// Given to helpers.
    Handle(u64),
}

/// What the pointer to the context points to for helpers that [walk the
/// stack](Helper::walks_the_stack).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
}

/// The process and the task of the calling CPU, each 4 bytes at these offsets from the GS base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PidTgid {
    pub pid: i32,
    pub tgid: i32,
}

/// An argument of a [`Routine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// The register may hold anything.
    Nothing,
    /// The helper's argument at this place.
    Argument,
    /// The 8 bytes that the helper's argument at this place points to.
    Word,
    Constant(u64),
}

/// A routine that does the work of a helper in a call whose constants are known. It changes `rax`,
/// `rcx`, `rdx`, `rsi`, `rdi` and the flags, and nothing else. The stack need not be aligned. Nor
/// need DF and AC be clear, because a routine that calls C code clears them itself. So a program
/// that calls no others saves fewer registers, and leaves these flags alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routine {
    pub address: u64,
    /// What is in `rdi`, `rsi`, `rdx` and `rcx`.
    pub arguments: [Given; 4],
}

/// The arguments of a call, as far as they are known to be the same each time; for a map, its
/// handle.
pub type Constants = [Option<u64>; 5];

/// How helpers are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Calls by distance: each is a [`Relocation`].
    Near,
    /// Calls by address.
    Far,
}

/// The machine that the code runs on. Offsets are from the GS base.
#[derive(Clone, Copy)]
pub struct Machine<'a> {
    /// The number of the CPU, 4 bytes.
    pub cpu_number: i32,
    /// The number of reasons against a switch of tasks, 4 bytes.
    pub preempt_count: i32,
    /// The pointer to the probe whose handler runs, 8 bytes.
    pub running: i32,
    /// Bits of that pointer that are to be cleared before it is used.
    pub marks_of_running: i32,
    /// Where a probe has its address, 8 bytes.
    pub address_in_probe: i32,
    /// Loads that gave zero because nothing was there, 8 bytes.
    pub faults: i32,
    /// None: a helper is called.
    pub pid_tgid: Option<PidTgid>,
    /// The CPU has the flag AC against accesses to user memory, and `clac`.
    pub clears_ac: bool,
    pub calls: Calls,
    /// The address of 4 bytes for [`Helper::NotRecording`]. None: the helper is called.
    pub not_recording: Option<i32>,
    /// Records that were not begun because none are taken, 8 bytes. If this and `not_recording` are
    /// given, code asks that word before it calls a helper or routine that reserves a record, and
    /// counts here. So these need not ask, and a hit saves no register for a record that is not
    /// taken. None: they ask and count.
    pub records_off: Option<i32>,
    /// The addresses of the helpers: C functions of `r1` to `r5` with a result of 64 bits.
    pub helper: &'a dyn Fn(Helper) -> u64,
    /// The routine that is called in place of the helper, if there is one for these constants.
    pub routine: &'a dyn Fn(Helper, &Constants) -> Option<Routine>,
}

/// Code reads the kernel's memory below this address only, which is one of 64 bits by its sign. A
/// kernel has the registers of its devices above it, because a read of one may have effects. A load
/// begins below it and may reach 32 KiB further.
pub const KERNEL_MEMORY_END: i32 = -0x1000_0000;

/// A distance to be filled in: `target - (address of the 4 bytes + 4)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// Where the 4 bytes are in the code.
    pub offset: u32,
    pub target: u64,
}

/// A register that a stack walk begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    Sp,
    Bp,
}

/// From `offset` on, the return address is at `base + bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    pub offset: u32,
    pub base: Base,
    pub bytes: u16,
    /// How many bytes below the return address the caller's `rbp` is; 0 if `rbp` is unchanged.
    pub saved_bp: u16,
}

/// The compiled program. Its code runs at any address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    pub bytes: Vec<u8>,
    pub relocations: Vec<Relocation>,
    /// Ascending; the first is at 0.
    pub depth: Vec<Depth>,
    pub calls_helpers: bool,
}

/// A program that cannot be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompileError {
    OutOfMemory,
    /// There is no such form for a program of this kind.
    Form {
        kind: ProgramKind,
    },
    /// There is not one memory for each map.
    Maps {
        expected: usize,
        found: usize,
    },
    /// The verifier has not said what a load or store reaches. This is a defect of the verifier.
    NoFact {
        insn: usize,
    },
    /// The program goes on past its last instruction. This is a defect of the verifier.
    NoEnd {
        insn: usize,
    },
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory => f.write_str("there is no memory for the code of the program"),
            Self::Form { kind } => write!(
                f,
                "a program of {kind:?} has no such form; choose that of a handler"
            ),
            Self::Maps { expected, found } => {
                write!(f, "the program has {expected} maps, but memory for {found}")
            }
            Self::NoFact { insn } => write!(
                f,
                "instruction {insn}: the verifier has not said which memory it reaches; report it"
            ),
            Self::NoEnd { insn } => write!(
                f,
                "instruction {insn} is past the program's end, and the verifier took it; report \
                 it"
            ),
        }
    }
}

impl core::error::Error for CompileError {}

impl From<OutOfMemory> for CompileError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

/// Compiles `program` for one form. `maps` are its maps, in their order.
///
/// # Errors
/// [`CompileError`].
pub fn compile(
    program: &Verified,
    form: Form,
    maps: &[MapRuntime],
    machine: &Machine,
) -> Result<Code, CompileError> {
    let kind = program.program().kind;
    let is_right = match kind {
        ProgramKind::Probe => form != Form::Call,
        ProgramKind::Entry { .. } | ProgramKind::Return { .. } => {
            matches!(form, Form::Call | Form::Handler)
        }
    };
    if !is_right {
        return Err(CompileError::Form { kind });
    }
    let expected = program.program().maps.len();
    if maps.len() != expected {
        return Err(CompileError::Maps {
            expected,
            found: maps.len(),
        });
    }
    let env = flow::Env {
        verified: program,
        form,
        maps,
        has_pid_tgid: machine.pid_tgid.is_some(),
        has_not_recording: machine.not_recording.is_some(),
    };
    let flow = flow::analyse(&env)?;
    lower::lower(&env, &flow, machine)
}
