//! The facts at one place of one path: the registers, the stack, the record.
//!
//! STATE-1. A record is reserved on the path, and neither submitted nor discarded, if and only if
//!     [`State::record`] tells where. Then, and only then, registers and stack may hold it.
//! STATE-2. Values with the same site (see [`Value::ValueOrNull`]) in one state are the same
//!     pointer.
//!
//! # Running out
//! Slots of the stack are allocated as a program uses them. If there is no memory for one, that is
//! an error and never a panic.

use alloc::{collections::TryReserveError, vec::Vec};
use core::fmt;

use super::number::Number;
use crate::{MapIndex, Reg, STACK_BYTES};

/// The content of a register or a slot of the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Value {
    /// Nothing that may be read: not written on every path, or lost in a call.
    #[default]
    Unset,
    Number(Number),
    /// The registers of the probed code.
    Context,
    Map(MapIndex),
    /// A place in the stack, by its distance from `r10`.
    Stack(Number),
    /// A place in a value of a map, by its offset.
    MapValue {
        map: MapIndex,
        offset: Number,
    },
    /// A value of a map, or null. `site` is the call that gave it, unless that call was made once
    /// more since.
    ValueOrNull {
        map: MapIndex,
        site: Option<u16>,
    },
    /// A place in the record. `event` if it came from
    /// [`EventReserve`](crate::Helper::EventReserve).
    Record {
        size: u32,
        event: bool,
        offset: Number,
    },
    /// The record, or null.
    RecordOrNull {
        size: u32,
        event: bool,
    },
    /// A place in the data that entry and return share.
    EntryData(Number),
}

impl Value {
    pub(super) const fn constant(number: u64) -> Self {
        Self::Number(Number::constant(number))
    }

    pub(super) const ANY_NUMBER: Self = Self::Number(Number::ANY);

    /// Whether this is the record, or may be it.
    const fn is_record(&self) -> bool {
        matches!(self, Self::Record { .. } | Self::RecordOrNull { .. })
    }

    /// Whether every concrete value that `other` stands for is one that this stands for.
    fn includes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unset, _) => true,
            (Self::Number(a), Self::Number(b))
            | (Self::Stack(a), Self::Stack(b))
            | (Self::EntryData(a), Self::EntryData(b)) => a.includes(b),
            (Self::MapValue { map: a, offset: x }, Self::MapValue { map: b, offset: y }) => {
                a == b && x.includes(y)
            }
            (Self::ValueOrNull { map: a, site: x }, Self::ValueOrNull { map: b, site: y }) => {
                a == b && (x.is_none() || x == y)
            }
            (
                Self::Record {
                    size,
                    event,
                    offset,
                },
                Self::Record {
                    size: other_size,
                    event: other_event,
                    offset: other_offset,
                },
            ) => size == other_size && event == other_event && offset.includes(other_offset),
            _ => self == other,
        }
    }
}

/// "a number, 0 to 255", "the stack at r10-16". It completes "found …".
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset => f.write_str("nothing that was written on every path"),
            Self::Number(number) if number.known().is_some() => write!(f, "the number {number}"),
            Self::Number(number) => write!(f, "a number ({number})"),
            Self::Context => f.write_str("the context"),
            Self::Map(map) => map.fmt(f),
            Self::Stack(offset) => write!(f, "a pointer into the stack (r10 plus {offset})"),
            Self::MapValue { map, offset } => {
                write!(f, "a pointer into a value of {map} (offset {offset})")
            }
            Self::ValueOrNull { map, .. } => write!(f, "a value of {map} or null"),
            Self::Record { size, offset, .. } => {
                write!(
                    f,
                    "a pointer into the record of {size} bytes (offset {offset})"
                )
            }
            Self::RecordOrNull { .. } => f.write_str("the record or null"),
            Self::EntryData(offset) => {
                write!(f, "a pointer into the entry data (offset {offset})")
            }
        }
    }
}

/// Eight bytes of the stack at a multiple of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// Bytes of numbers: those in `written` (bit 0 is the lowest) may be read. `content` is the
    /// number that all eight make, with zeros for those not written.
    Bytes { written: u8, content: Number },
    /// A pointer, whole.
    Pointer(Value),
}

impl Slot {
    const EMPTY: Self = Self::Bytes {
        written: 0,
        content: Number::constant(0),
    };

    fn includes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bytes { written: 0, .. }, _) => true,
            (
                Self::Bytes { written, content },
                Self::Bytes {
                    written: other_written,
                    content: other_content,
                },
            ) => {
                // Most slots are written as a whole, and then there is nothing to mask.
                written & !other_written == 0
                    && match written {
                        0xff => content.includes(other_content),
                        _ => content.includes(&other_content.masked(mask_of(*written))),
                    }
            }
            (Self::Pointer(a), Self::Pointer(b)) => a.includes(b),
            _ => false,
        }
    }
}

/// The bits of the bytes in `written`.
fn mask_of(written: u8) -> u64 {
    (0..8)
        .filter(|byte| written >> byte & 1 == 1)
        .fold(0, |mask, byte| mask | 0xff << (8 * byte))
}

/// The bytes `first` to `first + bytes - 1` of a slot.
const fn bytes_of(first: u32, bytes: u32) -> u8 {
    (((1 << bytes) - 1) << first) as u8
}

/// A part of the stack in one slot.
#[derive(Clone, Copy)]
struct Part {
    /// Counted from `r10` downwards: slot 0 is `r10-8` to `r10-1`.
    slot: usize,
    /// The first byte in the slot.
    first: u32,
    bytes: u32,
}

/// The parts of the stack from `offset` (negative, from `r10`) on. In bounds.
fn parts(offset: i64, bytes: u32) -> impl Iterator<Item = Part> {
    let end = offset + i64::from(bytes);
    let mut at = offset;
    core::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        // The slot that ends at `r10 - 8 * slot`.
        let slot = (-at - 1) / 8;
        let start = -8 * (slot + 1);
        let part_end = end.min(start + 8);
        let part = Part {
            slot: slot as usize,
            first: (at - start) as u32,
            bytes: (part_end - at) as u32,
        };
        at = part_end;
        Some(part)
    })
}

/// See the module's text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct State {
    regs: [Value; 11],
    /// The slots from `r10` downwards; those past the end were never written.
    slots: Vec<Slot>,
    /// The call that reserved the record.
    pub(super) record: Option<u16>,
}

/// A byte of the stack that may not be read: its distance from `r10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotWritten(pub(super) i64);

impl State {
    /// The state that a program finds.
    pub(super) fn at_entry() -> Self {
        let mut regs = [Value::Unset; 11];
        regs[1] = Value::Context;
        regs[10] = Value::Stack(Number::constant(0));
        Self {
            regs,
            slots: Vec::new(),
            record: None,
        }
    }

    pub(super) fn try_clone(&self) -> Result<Self, TryReserveError> {
        let mut slots = Vec::new();
        slots.try_reserve_exact(self.slots.len())?;
        slots.extend_from_slice(&self.slots);
        Ok(Self {
            regs: self.regs,
            slots,
            record: self.record,
        })
    }

    /// Forgets the registers that are not in `live`, a bit for each: no path from here reads them.
    pub(super) fn keep(&mut self, live: u16) {
        for (number, reg) in self.regs.iter_mut().enumerate() {
            if live >> number & 1 == 0 {
                *reg = Value::Unset;
            }
        }
    }

    /// Bytes of memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.slots.capacity() * size_of::<Slot>()
    }

    pub(super) const fn get(&self, reg: Reg) -> Value {
        self.regs[reg.number() as usize]
    }

    pub(super) const fn set(&mut self, reg: Reg, value: Value) {
        self.regs[reg.number() as usize] = value;
    }

    /// Whether each machine state that `other` stands for is one that this stands for, so that
    /// what holds from here on holds from there on.
    pub(super) fn includes(&self, other: &Self) -> bool {
        if self.record.is_some() != other.record.is_some() {
            return false;
        }
        let mut registers = self.regs.iter().zip(&other.regs);
        let mut slots = self.slots.iter().zip(&other.slots);
        let rest = self.slots.iter().skip(other.slots.len());
        registers.all(|(a, b)| a.includes(b))
            && slots.all(|(a, b)| a.includes(b))
            && rest.into_iter().all(|a| a.includes(&Slot::EMPTY))
    }

    fn slot(&self, slot: usize) -> Slot {
        self.slots.get(slot).copied().unwrap_or(Slot::EMPTY)
    }

    fn slot_mut(&mut self, slot: usize) -> Result<&mut Slot, TryReserveError> {
        debug_assert!(slot < STACK_BYTES / 8);
        if slot >= self.slots.len() {
            self.slots.try_reserve(slot + 1 - self.slots.len())?;
            self.slots.resize(slot + 1, Slot::EMPTY);
        }
        Ok(&mut self.slots[slot])
    }

    /// Changes every value in registers and stack.
    fn for_each(&mut self, change: impl Fn(&mut Value)) {
        self.regs.iter_mut().for_each(&change);
        for slot in &mut self.slots {
            if let Slot::Pointer(value) = slot {
                change(value);
                match *value {
                    Value::Unset => *slot = Slot::EMPTY,
                    Value::Number(content) => {
                        *slot = Slot::Bytes {
                            written: 0xff,
                            content,
                        };
                    }
                    _ => {}
                }
            }
        }
    }

    /// The record is the reader's again: no pointer to it may be used.
    pub(super) fn release_record(&mut self) {
        self.record = None;
        self.for_each(|value| {
            if value.is_record() {
                *value = Value::Unset;
            }
        });
    }

    /// A branch has found that the record is there, or that it is null.
    pub(super) fn resolve_record(&mut self, is_null: bool) {
        if is_null {
            self.record = None;
        }
        self.for_each(|value| {
            if let Value::RecordOrNull { size, event } = *value {
                *value = match is_null {
                    true => Value::constant(0),
                    false => Value::Record {
                        size,
                        event,
                        offset: Number::constant(0),
                    },
                };
            }
        });
    }

    /// A branch has found that the value in `reg` is there, or that it is null. So are its copies.
    pub(super) fn resolve_value(&mut self, reg: Reg, is_null: bool) {
        let resolved = |map| match is_null {
            true => Value::constant(0),
            false => Value::MapValue {
                map,
                offset: Number::constant(0),
            },
        };
        let Value::ValueOrNull { map, site } = self.get(reg) else {
            return;
        };
        self.set(reg, resolved(map));
        if site.is_some() {
            self.for_each(|value| {
                if *value == (Value::ValueOrNull { map, site }) {
                    *value = resolved(map);
                }
            });
        }
    }

    /// The call at `site` is made: the pointer that it gave before is not the one that it gives
    /// now.
    pub(super) fn forget_site(&mut self, site: u16) {
        self.for_each(|value| {
            if let Value::ValueOrNull { site: known, .. } = value
                && *known == Some(site)
            {
                *known = None;
            }
        });
    }

    /// Loads `bytes` (1, 2, 4, 8) of the stack at `offset`.
    pub(super) fn load(&self, offset: i64, bytes: u32) -> Result<Value, NotWritten> {
        if bytes == 8
            && offset % 8 == 0
            && let Some(part) = parts(offset, bytes).next()
            && let Slot::Pointer(value) = self.slot(part.slot)
        {
            return Ok(value);
        }
        self.check_written(offset, bytes)?;
        let mut parts = parts(offset, bytes);
        let first = parts.next();
        // A number that crosses slots is not worth the work.
        match (first, parts.next()) {
            (Some(part), None) => match self.slot(part.slot) {
                Slot::Bytes { content, .. } => {
                    Ok(Value::Number(content.field(part.first * 8, bytes * 8)))
                }
                Slot::Pointer(_) => Err(NotWritten(offset)),
            },
            _ => Ok(Value::Number(Number::of_bits(bytes * 8))),
        }
    }

    /// Whether the bytes from `offset` on may be read as numbers.
    pub(super) fn check_written(&self, offset: i64, bytes: u32) -> Result<(), NotWritten> {
        let mut at = offset;
        for part in parts(offset, bytes) {
            let written = match self.slot(part.slot) {
                Slot::Bytes { written, .. } => written,
                Slot::Pointer(_) => 0,
            };
            let missing = bytes_of(part.first, part.bytes) & !written;
            if missing != 0 {
                let byte = missing.trailing_zeros() - part.first;
                return Err(NotWritten(at + i64::from(byte)));
            }
            at += i64::from(part.bytes);
        }
        Ok(())
    }

    /// Stores a number in `bytes` (1, 2, 4, 8) of the stack at `offset`.
    pub(super) fn store_number(
        &mut self,
        offset: i64,
        bytes: u32,
        number: Number,
    ) -> Result<(), TryReserveError> {
        let mut rest = number.low(bytes * 8);
        for part in parts(offset, bytes) {
            let slot = self.slot_mut(part.slot)?;
            let (written, content) = match *slot {
                Slot::Bytes { written, content } => (written, content),
                Slot::Pointer(_) => (0, Number::constant(0)),
            };
            let stored = bytes_of(part.first, part.bytes);
            let kept = content.masked(!mask_of(stored));
            let field = rest.field(0, part.bytes * 8).moved(part.first * 8);
            *slot = Slot::Bytes {
                written: written | stored,
                content: kept.or(field),
            };
            if part.bytes < 8 {
                rest = rest.field(part.bytes * 8, 64 - part.bytes * 8);
            }
        }
        Ok(())
    }

    /// Stores a pointer at `offset`, a multiple of 8.
    pub(super) fn store_pointer(
        &mut self,
        offset: i64,
        pointer: Value,
    ) -> Result<(), TryReserveError> {
        for part in parts(offset, 8) {
            *self.slot_mut(part.slot)? = Slot::Pointer(pointer);
        }
        Ok(())
    }

    /// All bytes from `offset` on hold numbers that nothing is known of.
    pub(super) fn store_unknown(&mut self, offset: i64, bytes: u32) -> Result<(), TryReserveError> {
        for part in parts(offset, bytes) {
            let start = -8 * (part.slot as i64 + 1) + i64::from(part.first);
            let number = Number::of_bits(part.bytes * 8);
            self.store_number(start, part.bytes, number)?;
        }
        Ok(())
    }

    /// Any of the bytes from `offset` on may be written, and others not: those written before stay
    /// so, with unknown content. A pointer that may lose a byte is lost.
    pub(super) fn store_somewhere(&mut self, offset: i64, bytes: u32) {
        for part in parts(offset, bytes) {
            let touched = bytes_of(part.first, part.bytes);
            let Some(slot) = self.slots.get_mut(part.slot) else {
                continue;
            };
            *slot = match *slot {
                Slot::Pointer(_) => Slot::EMPTY,
                Slot::Bytes { written, content } => Slot::Bytes {
                    written,
                    content: content
                        .masked(!mask_of(touched))
                        .or(Number::of_mask(mask_of(touched & written))),
                },
            };
        }
    }
}
