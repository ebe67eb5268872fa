//! Refusals: which instruction, what was expected, what was found, what to do.
//!
//! A refusal holds the facts, and its text is made when it is shown. So a program can be refused
//! without memory. Each [`Cause`] has one sentence, which ends with the next step.

use core::fmt;

use super::{MOST_PATH, MOST_STATE_BYTES, MOST_WALK, state::Value};
use crate::{
    Helper, Insn, MOST_ENTRY_BYTES, MOST_INSNS, MOST_MAPS, MOST_RECORD_BYTES, MapError, MapIndex,
    MapKind, Reg, STACK_BYTES, Target, Width, context,
};

/// A program that is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The instruction, by its number, unless the program as a whole is at fault.
    pub at: Option<(usize, Insn)>,
    pub cause: Cause,
}

/// The type that an instruction wants in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Anything that was written.
    Any,
    Number,
    /// Memory, or a number as an address in the kernel.
    Loadable,
    /// Memory of the program.
    Own,
    /// A number that moves a pointer by at most [`super::MOST_DISTANCE`].
    Distance,
    Context,
    Map(&'static [MapKind]),
    /// A map whose values have a counter of 8 bytes.
    Counters,
    /// A known number.
    Constant,
    /// The number 0.
    Zero,
    /// A known number of bytes of memory.
    Bytes,
    /// A known number of bytes of a record, from `least` on.
    RecordBytes {
        least: u32,
    },
    /// The beginning of a record.
    Record,
    /// The beginning of a record of [`Helper::EventReserve`].
    EventRecord,
}

/// The memory of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    Stack,
    Context,
    MapValue(MapIndex),
    Record,
    EntryData,
}

/// The reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// There are no instructions.
    Empty,
    TooManyInsns {
        found: usize,
    },
    TooManyMaps {
        found: usize,
    },
    TooManyEntryBytes {
        found: u32,
    },
    /// The definition of a map cannot be met.
    Map {
        map: MapIndex,
        error: MapError,
    },
    /// A jump leads out of the program.
    NoSuchTarget {
        target: Target,
        insns: usize,
    },
    NoSuchMap {
        map: MapIndex,
        maps: usize,
    },
    /// `r10` would be written.
    FramePointer,
    /// A sign extension of that many bits does not exist.
    ExtendedBits {
        width: Width,
        found: u8,
    },
    /// A reordering of that many bits does not exist.
    SwappedBits {
        found: u8,
    },
    /// An atomic operation on that many bytes does not exist.
    AtomicBytes {
        found: u32,
    },
    /// The last instruction does not end the program.
    NoExit,
    /// A register holds another type than the instruction wants.
    Register {
        reg: Reg,
        expected: Expected,
        found: Value,
    },
    /// An operation that pointers do not have.
    Arithmetic {
        reg: Reg,
        found: Value,
    },
    /// A pointer would leave its memory by more than [`super::MOST_DISTANCE`].
    Far {
        reg: Reg,
        found: Value,
    },
    /// A comparison that pointers do not have.
    Comparison {
        reg: Reg,
        found: Value,
    },
    /// Bytes `first` to `last` are not all among `from` to `to`.
    Bounds {
        region: Region,
        first: i64,
        last: i64,
        from: i64,
        to: i64,
    },
    /// A byte of the stack is read as a number and does not hold one on every path. Its distance
    /// from `r10`.
    StackNotWritten {
        byte: i64,
    },
    /// More than one register of the probed code, or a part that does not begin with its low byte.
    ContextField {
        offset: i64,
        bytes: u32,
    },
    /// An address that is not a multiple of its size: of a pointer on the stack, and of what an
    /// atomic operation changes.
    Unaligned {
        bytes: u32,
    },
    /// One instruction would reach kernel memory on one path, or the context, and other memory on
    /// another.
    MixedMemory,
    /// One call would get different maps on different paths.
    MixedMaps {
        first: MapIndex,
        second: MapIndex,
    },
    /// A helper that this kind of program does not have.
    NotHere {
        helper: Helper,
    },
    /// A second record is wanted before the first was given back, or the program ends with it.
    RecordHeld {
        reserved_at: u16,
    },
    /// A loop comes back to where it was, and nothing has changed.
    EndlessLoop,
    /// A path is longer than [`MOST_PATH`].
    PathTooLong,
    /// The walk over all paths is longer than [`MOST_WALK`].
    WalkTooLong,
    /// The walk would take more than [`MOST_STATE_BYTES`].
    StatesTooLarge,
    /// There is no memory for the walk.
    OutOfMemory,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "a value",
            Self::Number => "a number",
            Self::Loadable => "an address or a pointer to memory",
            Self::Own => "a pointer into the program's own memory",
            Self::Distance => "a number between bounds of at most 2^29",
            Self::Context => "the context, as r1 holds it at first",
            Self::Map(kinds) => {
                f.write_str("a map of kind ")?;
                for (number, kind) in kinds.iter().enumerate() {
                    if number > 0 {
                        f.write_str(" or ")?;
                    }
                    write!(f, "{kind:?}")?;
                }
                return Ok(());
            }
            Self::Counters => "a map with values of 8 bytes or more, because it adds to 8",
            Self::Constant => "a known number",
            Self::Zero => "the number 0",
            Self::Bytes => "a known number of bytes, 1 or more",
            Self::RecordBytes { least } => {
                return write!(
                    f,
                    "a known number of bytes from {least} to {MOST_RECORD_BYTES}"
                );
            }
            Self::Record => "the record, by its beginning",
            Self::EventRecord => "the record of event_reserve, by its beginning",
        })
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stack => f.write_str("the stack, counted from r10"),
            Self::Context => f.write_str("the context"),
            Self::MapValue(map) => write!(f, "a value of {map}"),
            Self::Record => f.write_str("the record"),
            Self::EntryData => f.write_str("the entry data"),
        }
    }
}

/// The way out of a wrong type.
fn way_out(expected: Expected, found: Value) -> &'static str {
    match (expected, found) {
        (_, Value::Unset) => {
            "write it on every path that leads here; a call loses r1 to r5, and a submitted or \
             discarded record is lost everywhere"
        }
        (_, Value::ValueOrNull { .. } | Value::RecordOrNull { .. }) => {
            "compare it with 0 first, and leave if it is"
        }
        (Expected::Own, Value::Number(_)) => {
            "kernel memory may be read only; store into the stack, a value, a record or entry data"
        }
        (Expected::Own, Value::Context) => "the context may be read only",
        (Expected::Distance, Value::Number(_)) => "compare it with its bounds first, or mask it",
        (Expected::Zero, _) => "there are no flags: set it to 0",
        (Expected::Counters, _) => "give its values more bytes",
        (Expected::Constant | Expected::Bytes | Expected::RecordBytes { .. }, Value::Number(_)) => {
            "set it to a constant on every path that leads here"
        }
        (Expected::Context, _) => "keep the context in r6 to r9 for later calls",
        (Expected::Number, _) => "a pointer of the program is not a number",
        (Expected::Map(_), _) => "load the map with its own instruction",
        (Expected::Record | Expected::EventRecord, Value::Record { .. }) => {
            "pass the pointer that the call gave that reserved it"
        }
        _ => "pass that, or change the instruction",
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty => write!(
                f,
                "expected 1 to {MOST_INSNS} instructions, found none; a program ends with `exit`"
            ),
            Self::TooManyInsns { found } => write!(
                f,
                "expected at most {MOST_INSNS} instructions, found {found}; make it shorter"
            ),
            Self::TooManyMaps { found } => write!(
                f,
                "expected at most {MOST_MAPS} maps, found {found}; use fewer"
            ),
            Self::TooManyEntryBytes { found } => write!(
                f,
                "expected at most {MOST_ENTRY_BYTES} bytes of entry data, found {found}; share \
                 less"
            ),
            Self::Map { map, error } => write!(f, "{map} has {error}; change its definition"),
            Self::NoSuchTarget { target, insns } => write!(
                f,
                "expected a jump to one of the instructions 0 to {}, found one to {}; jump to an \
                 instruction of the program",
                insns.saturating_sub(1),
                target.0
            ),
            Self::NoSuchMap { map, maps } => write!(
                f,
                "expected one of the program's {maps} maps, found {map}; add the map to the program"
            ),
            Self::FramePointer => f.write_str(
                "expected one of r0 to r9 to write, found r10; r10 is read-only: copy it first",
            ),
            Self::ExtendedBits { width, found } => write!(
                f,
                "expected a sign extension of {} bits, found one of {found}; use one of these",
                match width {
                    Width::W32 => "8 or 16",
                    Width::W64 => "8, 16 or 32",
                }
            ),
            Self::SwappedBits { found } => write!(
                f,
                "expected a reordering of 16, 32 or 64 bits, found one of {found}; use one of these"
            ),
            Self::AtomicBytes { found } => write!(
                f,
                "expected an atomic operation on 4 or 8 bytes, found {found}; use one of these"
            ),
            Self::NoExit => f.write_str(
                "expected a next instruction, found the end of the program; end it with `exit`",
            ),
            Self::Register {
                reg,
                expected,
                found,
            } => {
                let way_out = way_out(expected, found);
                write!(f, "expected {expected} in {reg}, found {found}; {way_out}")
            }
            Self::Arithmetic { reg, found } => write!(
                f,
                "expected a number in {reg}, found {found}; a pointer can only be copied, and \
                 moved by a number with `+=` and `-=` of 64 bits, unless it is the context, a map \
                 or possibly null"
            ),
            Self::Far { reg, found } => write!(
                f,
                "expected a pointer within 2^29 bytes of its memory in {reg}, found {found}; check \
                 the distance before it is added"
            ),
            Self::Comparison { reg, found } => write!(
                f,
                "expected a number in {reg}, found {found}; a pointer can only be compared with 0, \
                 by `==` and `!=` of 64 bits"
            ),
            Self::Bounds {
                region,
                first,
                last,
                from,
                to,
            } => write!(
                f,
                "expected bytes {from} to {to} of {region}, found {first} to {last}; check the \
                 offset, or make it smaller"
            ),
            Self::StackNotWritten { byte } => write!(
                f,
                "expected a number at r10 minus {}, found a byte that was not written on every \
                 path, or is of a pointer; write it first, and read pointers whole",
                byte.unsigned_abs()
            ),
            Self::ContextField { offset, bytes } => write!(
                f,
                "expected 1, 2, 4 or 8 bytes inside one register of the context, found {bytes} at \
                 {offset}; each register is 8 bytes, and the context has {} bytes",
                context::BYTES
            ),
            Self::Unaligned { bytes } => write!(
                f,
                "expected an offset that is a multiple of {bytes}, found another; a pointer on the \
                 stack and an atomic operation need that"
            ),
            Self::MixedMemory => f.write_str(
                "expected the same kind of memory on every path, found kernel memory or the \
                 context on one and other memory on another; use an instruction for each",
            ),
            Self::MixedMaps { first, second } => write!(
                f,
                "expected the same map on every path, found {first} and {second}; use a call for \
                 each"
            ),
            Self::NotHere { helper } => write!(
                f,
                "expected a helper of this kind of program, found {helper}; {}",
                match helper {
                    Helper::ReturnAddress => "only the return of a call has a return address",
                    _ => "only the entry and the return of a call that share bytes have entry data",
                }
            ),
            Self::RecordHeld { reserved_at } => write!(
                f,
                "expected no record in hand, found the one reserved at instruction {reserved_at}; \
                 submit or discard it first, on every path"
            ),
            Self::EndlessLoop => f.write_str(
                "expected a loop to change something that ends it, found the same state again; \
                 count its turns in a register or on the stack",
            ),
            Self::PathTooLong => write!(
                f,
                "expected a path of at most {MOST_PATH} steps, found a longer one through here; \
                 bound the loop, or make fewer turns"
            ),
            Self::WalkTooLong => write!(
                f,
                "expected that {MOST_WALK} steps show all paths, found more of them; make loops \
                 and branches fewer"
            ),
            Self::StatesTooLarge => write!(
                f,
                "expected that {MOST_STATE_BYTES} bytes hold the states of all paths, found more; \
                 make loops and branches fewer"
            ),
            Self::OutOfMemory => {
                f.write_str("there is no memory to check the program; free some and try again")
            }
        }
    }
}

/// "insn 3, `r2 = *(u64 *)(r1 + 112)`: expected …, found …; …"
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            Some((at, insn)) => write!(f, "insn {at}, `{insn}`: {}", self.cause),
            None => self.cause.fmt(f),
        }
    }
}

impl core::error::Error for Refusal {}

const _: () = assert!(STACK_BYTES.is_multiple_of(8));
