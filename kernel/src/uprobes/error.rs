//! Why a user probe was refused, what Linux calls it, and what to do about it.
//!
//! A registration answers with one [`UprobeError`] and has then changed nothing.

use alloc::string::String;
use core::fmt;

use ::probes::insn::{DecodeError, Refusal};

use crate::{errno::Errno, mm::shared::OutOfMemory};

/// An error of the registration calls. Nothing has changed when one is returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UprobeError {
    /// The file cannot be opened or read.
    File {
        /// The errno of the file system.
        errno: Errno,
    },
    /// The file is no program for this kernel.
    NotProgram {
        /// What is wrong with it.
        reason: elf_program::Error,
    },
    /// No function of the program has that name.
    UnknownSymbol {
        /// The name as it was given.
        name: String,
        /// The file has no symbols at all.
        stripped: bool,
    },
    /// Several functions of the program have that demangled name.
    AmbiguousSymbol {
        /// The name as it was given.
        name: String,
    },
    /// The offset from the symbol leads out of the function.
    OffsetTooLarge {
        /// The size of the function, in bytes.
        size: u64,
    },
    /// That byte of the file is no code.
    NotText {
        /// The offset in the file.
        offset: u64,
    },
    /// The place is inside an instruction.
    MidInstruction {
        /// The address in the program.
        addr: u64,
        /// The address of that instruction.
        start: u64,
    },
    /// The bytes there are no instruction.
    Undecodable {
        /// The address in the program.
        addr: u64,
        /// What is wrong with them.
        cause: DecodeError,
    },
    /// The instruction cannot be probed.
    Instruction {
        /// The address in the program.
        addr: u64,
        /// The reason.
        refusal: Refusal,
    },
    /// A return probe is on a function's first instruction only.
    NotFunctionEntry {
        /// The address of the function.
        entry: u64,
    },
    /// The program begins there. Where a return address would be are its arguments.
    EntryPoint,
    /// The word of the reference counter is not in the program's writable data.
    NotCounter {
        /// The offset in the file.
        offset: u64,
    },
    /// The file was written to since the other probes at this place were registered.
    FileChanged,
    /// The probe is registered already.
    AlreadyRegistered,
    /// The operation needs a registered probe.
    NotRegistered,
    /// An empty batch.
    EmptyBatch,
    /// No memory for a slot, a page or a table.
    OutOfMemory,
    /// No addresses are left for slots beside the program's memory.
    NoRoom,
    /// Called with preemption or interrupts off, or from a handler.
    AtomicContext,
}

impl UprobeError {
    /// The error number.
    pub fn errno(&self) -> Errno {
        match self {
            Self::File { errno } => *errno,
            Self::UnknownSymbol { .. } | Self::OffsetTooLarge { .. } => Errno::ENOENT,
            Self::AmbiguousSymbol { .. } => Errno::EADDRNOTAVAIL,
            Self::MidInstruction { .. } => Errno::EILSEQ,
            Self::Undecodable { cause, .. } => {
                Errno::from_code(cause.errno()).unwrap_or(Errno::EINVAL)
            }
            Self::Instruction { refusal, .. } => {
                Errno::from_code(refusal.errno()).unwrap_or(Errno::EINVAL)
            }
            Self::OutOfMemory => Errno::ENOMEM,
            Self::NoRoom => Errno::ENOSPC,
            Self::AtomicContext => Errno::EBUSY,
            Self::NotProgram { .. }
            | Self::NotText { .. }
            | Self::NotFunctionEntry { .. }
            | Self::EntryPoint
            | Self::NotCounter { .. }
            | Self::FileChanged
            | Self::AlreadyRegistered
            | Self::NotRegistered
            | Self::EmptyBatch => Errno::EINVAL,
        }
    }
}

impl fmt::Display for UprobeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { errno } => write!(
                f,
                "the program's file cannot be read: {}; give the absolute path of a file that may \
                    be executed",
                errno.text()
            ),
            Self::NotProgram { reason } => write!(f, "the file is no program: {reason}"),
            Self::UnknownSymbol {
                name,
                stripped: true,
            } => write!(
                f,
                "the program has no symbols, so {name} cannot be found; give an offset in the file"
            ),
            Self::UnknownSymbol { name, .. } => write!(
                f,
                "the program has no symbol {name}; `nm --demangle` of the program lists them"
            ),
            Self::AmbiguousSymbol { name } => write!(
                f,
                "several functions of the program are called {name}; give the mangled name, or an \
                    offset in the file"
            ),
            Self::OffsetTooLarge { size } => {
                write!(
                    f,
                    "the function has {size} bytes only; give a smaller offset"
                )
            }
            Self::NotText { offset } => write!(
                f,
                "no code of the program is at offset {offset:#x} of its file; `readelf -l` shows \
                    where the executable segment is"
            ),
            Self::MidInstruction { addr, start } => write!(
                f,
                "{addr:#x} is inside an instruction; probe its start, {start:#x}"
            ),
            Self::Undecodable { addr, cause } => {
                write!(f, "no instruction is at {addr:#x}: {cause}")
            }
            Self::Instruction { addr, refusal } => {
                write!(
                    f,
                    "the instruction at {addr:#x} cannot be probed: {refusal}"
                )
            }
            Self::NotFunctionEntry { entry } => write!(
                f,
                "a return probe belongs on the first instruction of a function; here that is \
                    {entry:#x}"
            ),
            Self::EntryPoint => f.write_str(
                "the program begins there, so nothing has called it and it does not return; probe \
                    a function that it calls",
            ),
            Self::NotCounter { offset } => write!(
                f,
                "offset {offset:#x} of the file is no aligned word of the program's writable data"
            ),
            Self::FileChanged => f.write_str(
                "the file has changed since another probe was registered there; unregister that",
            ),
            Self::AlreadyRegistered => {
                f.write_str("the probe is registered already; unregister it first")
            }
            Self::NotRegistered => f.write_str("the probe is not registered; register it first"),
            Self::EmptyBatch => f.write_str("the batch has no probe; leave the call out"),
            Self::OutOfMemory => {
                f.write_str("out of memory; start the guest with more of it (--memory)")
            }
            Self::NoRoom => f.write_str(
                "the program's memory leaves no addresses for displaced instructions; unregister \
                    other probes of it",
            ),
            Self::AtomicContext => f.write_str(
                "the caller may not sleep; register from a task, outside handlers, with interrupts \
                    on",
            ),
        }
    }
}

impl core::error::Error for UprobeError {}

impl From<OutOfMemory> for UprobeError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl From<UprobeError> for Errno {
    fn from(error: UprobeError) -> Self {
        error.errno()
    }
}
