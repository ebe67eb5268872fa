//! Why a probe was refused, what Linux calls it, and what to do about it.
//!
//! A registration answers with one [`ProbeError`] and has then changed nothing. Each kind has a
//! short name for statistics, the errno with which Linux refuses the same, and a sentence that ends
//! in the way out. What is wrong with an instruction is a [`Refusal`] or a [`DecodeError`] inside
//! it.
//!
//! The name in an error may be empty: there was no memory for it.

use alloc::string::String;
use core::fmt;

use crate::{
    data::watchpoint::MOST_WATCHPOINTS,
    insn::{DecodeError, Refusal},
};

/// An error of the registration calls. Nothing has changed when one is returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeError {
    /// Both a symbol and an address were given.
    SymbolAndAddress,
    /// Neither a symbol nor an address was given.
    NoTarget,
    /// No symbol has that name.
    UnknownSymbol { name: String, hint: String },
    /// Several symbols have that demangled name.
    AmbiguousSymbol { name: String, candidates: String },
    /// No symbol covers the address.
    NoSymbolAt { addr: u64 },
    /// The offset leads from the symbol to where no symbol is.
    OffsetTooLarge {
        /// The symbol's name; empty if there is no memory for it.
        name: String,
        /// The symbol's size in bytes.
        size: u64,
        /// The number of bytes to add to its address.
        offset: u32,
    },
    /// The address is not in executable kernel text.
    NotText { addr: u64 },
    /// The probe is registered already.
    AlreadyRegistered { addr: u64 },
    /// The operation needs a registered probe.
    NotRegistered,
    /// The probed text was freed.
    Gone { addr: u64 },
    /// Code that a hit runs through, or that switches stacks.
    Blacklisted { addr: u64, reason: &'static str },
    /// The address is inside an instruction.
    MidInstruction { addr: u64, start: u64 },
    /// The bytes at or before the address are no instructions, or none that can be judged.
    Undecodable { addr: u64, cause: DecodeError },
    /// The instruction itself cannot be probed.
    Instruction { addr: u64, refusal: Refusal },
    /// Only function entries can carry this kind of probe.
    NotFunctionEntry { addr: u64, entry: u64 },
    /// A jprobe's target has the Rust calling convention.
    NotExternC { addr: u64 },
    /// The function has a jprobe already.
    SecondJprobe { addr: u64 },
    /// The function's other kretprobes have another return method.
    MixedReturnMethods { addr: u64 },
    /// Per-call data of a kretprobe is limited.
    DataTooLarge { bytes: usize },
    /// A jprobe without a handler.
    NoHandler,
    /// A jprobe's handler is not the first byte of a function in kernel text.
    HandlerNotFunction { handler: u64 },
    /// An empty batch.
    EmptyBatch,
    /// No memory for a slot, a table or instances.
    OutOfMemory,
    /// The address table is full.
    TooManySites { limit: usize },
    /// A watchpoint covers 1, 2, 4 or 8 bytes.
    WatchLength { len: u8 },
    /// A watchpoint's address is not a multiple of its length.
    WatchUnaligned { addr: u64, len: u8 },
    /// Memory that may not be watched.
    NotWatchable { addr: u64, reason: &'static str },
    /// All debug registers are in use, for these addresses.
    NoWatchRegister { addrs: [u64; MOST_WATCHPOINTS] },
    /// Called with preemption or interrupts off, or from a probe handler.
    AtomicContext,
    /// The subsystem is not initialised yet.
    NotReady,
}

/// Why a watchpoint was not moved. It owns no memory, because hits have to do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AimError {
    /// The watchpoint is not movable, or the kernel cannot tell its other CPUs.
    NotMovable,
    /// It is not registered.
    NotRegistered,
    /// The address is not a multiple of the watched length.
    Unaligned,
    /// The memory may not be watched, or no hit can read it.
    NotWatchable,
}

impl AimError {
    /// The positive Linux error number.
    pub const fn errno(self) -> i32 {
        22
    }
}

impl fmt::Display for AimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotMovable => {
                "the watchpoint cannot be moved; make it with movable(), in a kernel whose \
                 Platform has load_watches_elsewhere"
            }
            Self::NotRegistered => "the watchpoint is not registered; register it first",
            Self::Unaligned => "the address is not a multiple of the watched length; watch less",
            Self::NotWatchable => {
                "the memory cannot be watched: it is none of the kernel's, the trap works with \
                 it, or no hit can read it"
            }
        })
    }
}

impl core::error::Error for AimError {}

/// Largest per-call data of a kretprobe, in bytes.
pub const MAX_INSTANCE_DATA: usize = 4096;

impl ProbeError {
    /// The positive Linux error number.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::UnknownSymbol { .. } | Self::NoSymbolAt { .. } | Self::OffsetTooLarge { .. } => 2,
            Self::DataTooLarge { .. } => 7,
            Self::OutOfMemory | Self::TooManySites { .. } => 12,
            Self::AtomicContext | Self::NotReady | Self::NoWatchRegister { .. } => 16,
            Self::SecondJprobe { .. } => 17,
            Self::MidInstruction { .. } => 84,
            Self::AmbiguousSymbol { .. } => 99,
            Self::Undecodable { cause, .. } => cause.errno(),
            Self::Instruction { refusal, .. } => refusal.errno(),
            Self::SymbolAndAddress
            | Self::NoTarget
            | Self::NotText { .. }
            | Self::AlreadyRegistered { .. }
            | Self::NotRegistered
            | Self::Gone { .. }
            | Self::Blacklisted { .. }
            | Self::NotFunctionEntry { .. }
            | Self::NotExternC { .. }
            | Self::MixedReturnMethods { .. }
            | Self::NoHandler
            | Self::HandlerNotFunction { .. }
            | Self::WatchLength { .. }
            | Self::WatchUnaligned { .. }
            | Self::NotWatchable { .. }
            | Self::EmptyBatch => 22,
        }
    }

    /// The variant's name: short and stable, for logs and tables.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::SymbolAndAddress => "SymbolAndAddress",
            Self::NoTarget => "NoTarget",
            Self::UnknownSymbol { .. } => "UnknownSymbol",
            Self::AmbiguousSymbol { .. } => "AmbiguousSymbol",
            Self::NoSymbolAt { .. } => "NoSymbolAt",
            Self::OffsetTooLarge { .. } => "OffsetTooLarge",
            Self::NotText { .. } => "NotText",
            Self::AlreadyRegistered { .. } => "AlreadyRegistered",
            Self::NotRegistered => "NotRegistered",
            Self::Gone { .. } => "Gone",
            Self::Blacklisted { .. } => "Blacklisted",
            Self::MidInstruction { .. } => "MidInstruction",
            Self::Undecodable { .. } => "Undecodable",
            Self::Instruction { refusal, .. } => refusal.name(),
            Self::NotFunctionEntry { .. } => "NotFunctionEntry",
            Self::NotExternC { .. } => "NotExternC",
            Self::SecondJprobe { .. } => "SecondJprobe",
            Self::MixedReturnMethods { .. } => "MixedReturnMethods",
            Self::DataTooLarge { .. } => "DataTooLarge",
            Self::NoHandler => "NoHandler",
            Self::HandlerNotFunction { .. } => "HandlerNotFunction",
            Self::EmptyBatch => "EmptyBatch",
            Self::OutOfMemory => "OutOfMemory",
            Self::TooManySites { .. } => "TooManySites",
            Self::WatchLength { .. } => "WatchLength",
            Self::WatchUnaligned { .. } => "WatchUnaligned",
            Self::NotWatchable { .. } => "NotWatchable",
            Self::NoWatchRegister { .. } => "NoWatchRegister",
            Self::AtomicContext => "AtomicContext",
            Self::NotReady => "NotReady",
        }
    }
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SymbolAndAddress => {
                f.write_str("both a symbol and an address are given; give one of them")
            }
            Self::NoTarget => {
                f.write_str("neither a symbol nor an address is given; give one of them")
            }
            Self::UnknownSymbol { name, .. } if name.is_empty() => {
                f.write_str("the name of the symbol is empty; give that of a function")
            }
            Self::UnknownSymbol { name, hint } => {
                write!(f, "no symbol is called {name}; {hint}")
            }
            Self::AmbiguousSymbol { name, candidates } => {
                write!(
                    f,
                    "several functions are called {name}; give a full name or an address: \
                    {candidates}"
                )
            }
            Self::NoSymbolAt { addr } => {
                write!(
                    f,
                    "{addr:#x} belongs to no symbol of the kernel; give an address inside a \
                    function"
                )
            }
            Self::OffsetTooLarge { name, size, offset } => {
                write!(
                    f,
                    "{name}+{offset:#x} belongs to no symbol of the kernel; {name} has \
                    {size} bytes, so give an offset below that"
                )
            }
            Self::NotText { addr } => {
                write!(
                    f,
                    "{addr:#x} is not executable kernel text; give an address inside a function"
                )
            }
            Self::AlreadyRegistered { addr } => {
                write!(
                    f,
                    "this probe is registered already, at {addr:#x}; unregister it first or \
                    use another one"
                )
            }
            Self::NotRegistered => f.write_str("this probe is not registered; register it first"),
            Self::Gone { addr } => {
                write!(
                    f,
                    "the text at {addr:#x} was freed; unregister the probe, it can never fire again"
                )
            }
            Self::Blacklisted { addr, reason } => {
                write!(
                    f,
                    "{addr:#x} may not be probed ({reason}); probe a caller of it instead"
                )
            }
            Self::MidInstruction { addr, start } => {
                write!(
                    f,
                    "{addr:#x} is inside an instruction; the nearest start is {start:#x}"
                )
            }
            Self::Undecodable { addr, cause } => {
                write!(
                    f,
                    "whether {addr:#x} starts an instruction cannot be told: {cause}"
                )
            }
            Self::Instruction { addr, refusal } => {
                write!(f, "the instruction at {addr:#x}: {refusal}")
            }
            Self::NotFunctionEntry { addr, entry } => {
                write!(
                    f,
                    "{addr:#x} is not the entry of a function; the function starts at {entry:#x}"
                )
            }
            Self::NotExternC { addr } => write!(
                f,
                "the function at {addr:#x} has the Rust calling convention, which a jprobe cannot \
                    mirror; export it as extern \"C\" under its plain name, or use a kprobe"
            ),
            Self::SecondJprobe { addr } => {
                write!(
                    f,
                    "the function at {addr:#x} has a jprobe already; unregister it first, \
                    or use a kprobe"
                )
            }
            Self::MixedReturnMethods { addr } => write!(
                f,
                "the function at {addr:#x} has a kretprobe with another return method; \
                 unregister that one first, or give both the same by return_method()"
            ),
            Self::DataTooLarge { bytes } => write!(
                f,
                "{bytes} bytes of data per call are more than {MAX_INSTANCE_DATA}; keep a \
                    reference instead"
            ),
            Self::HandlerNotFunction { handler } => write!(
                f,
                "a jprobe's handler must be a function of the kernel, but {handler:#x} is not the \
                    first byte of one; make it with jprobe!"
            ),
            Self::NoHandler => f.write_str(
                "a jprobe needs a handler; make one with jprobe! and give it with entry()",
            ),
            Self::EmptyBatch => f.write_str("the batch is empty; give at least one probe"),
            Self::OutOfMemory => {
                f.write_str("out of memory for the probe; unregister others or free memory")
            }
            Self::TooManySites { limit } => write!(
                f,
                "{limit} addresses are probed, and no more can be; unregister others"
            ),
            Self::WatchLength { len } => write!(
                f,
                "a watchpoint covers 1, 2, 4 or 8 bytes, not {len}; watch a part"
            ),
            Self::WatchUnaligned { addr, len } => write!(
                f,
                "{addr:#x} is not a multiple of {len}; watch fewer bytes, or from {:#x} on",
                addr & !(u64::from(*len) - 1)
            ),
            Self::NotWatchable { addr, reason } => {
                write!(f, "the memory at {addr:#x} cannot be watched: {reason}")
            }
            Self::NoWatchRegister { addrs } => {
                f.write_str("all debug registers are in use, for")?;
                for (index, addr) in addrs.iter().enumerate() {
                    let before = if index == 0 { "" } else { "," };
                    write!(f, "{before} {addr:#x}")?;
                }
                f.write_str("; unregister one of these watchpoints first")
            }
            Self::AtomicContext => f.write_str(
                "probes cannot be changed with interrupts or preemption off or in a handler; do \
                    it from a task",
            ),
            Self::NotReady => {
                f.write_str("probes are not initialised yet; register later in the boot")
            }
        }
    }
}

impl core::error::Error for ProbeError {}
