//! A value of a type of the source: where its bytes are, and how they are read.
//!
//! The bytes are in memory, or in pieces: registers, constants, memory, or nowhere, where the
//! compiler of the kernel left them out. Reading gives a [`Number`], and emits nothing.

use alloc::rc::Rc;

use bpf::AluOp;
use trace_interface::symbols::{Piece, Source, TypeId};

use crate::number::{Number, Space, Test};

/// A value of a type of the source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Object {
    pub(crate) type_id: TypeId,
    pub(crate) at: At,
    /// It means something only if this holds.
    pub(crate) present: Test,
    /// It is the content of a variant, by the variant's name.
    pub(crate) is_variant: bool,
    /// How many elements its tail has, if it ends in a [`Type::Tail`].
    ///
    /// [`Type::Tail`]: trace_interface::symbols::Type::Tail
    pub(crate) length: Option<Number>,
}

/// Where the bytes of an object are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum At {
    Memory {
        space: Space,
        address: Number,
        offset: i64,
    },
    Pieces {
        /// Whose memory those that are in memory are in.
        space: Space,
        pieces: Rc<[Piece<Number>]>,
        offset: u64,
    },
}

/// Pieces, some of which may be missing, from a place on.
#[derive(Clone, Copy)]
pub(crate) struct Gaps<'p> {
    pieces: &'p [Piece<Number>],
    at: u64,
}

impl Gaps<'_> {
    /// Whether some of the `bytes` from an offset on are missing.
    pub(crate) fn lacks(&self, offset: u64, bytes: u64) -> bool {
        let (from, to) = (self.at + offset, self.at + offset + bytes);
        let mut begin = 0;
        self.pieces.iter().any(|piece| {
            let end = begin + u64::from(piece.bytes);
            let is_there = piece.source != Source::Missing || end <= from || to <= begin;
            begin = end;
            !is_there
        })
    }

    pub(crate) fn behind(self, offset: u64) -> Self {
        Self {
            at: self.at + offset,
            ..self
        }
    }
}

impl Object {
    pub(crate) fn in_memory(
        type_id: TypeId,
        (space, address): (Space, Number),
        present: Test,
    ) -> Self {
        Self {
            type_id,
            at: At::Memory {
                space,
                address,
                offset: 0,
            },
            present,
            is_variant: false,
            length: None,
        }
    }

    /// Whose memory it is in. The addresses that it holds lead into the same.
    pub(crate) fn space(&self) -> Space {
        match &self.at {
            At::Memory { space, .. } | At::Pieces { space, .. } => *space,
        }
    }

    /// Where it is, if it is in memory.
    pub(crate) fn address(&self) -> Option<Number> {
        match &self.at {
            At::Memory {
                address, offset, ..
            } => Some(Number::alu(
                AluOp::Add,
                address.clone(),
                Number::Constant(offset.cast_unsigned()),
            )),
            At::Pieces { .. } => None,
        }
    }

    /// A part of it.
    pub(crate) fn part(&self, type_id: TypeId, bytes: u64) -> Self {
        let at = match &self.at {
            At::Memory {
                space,
                address,
                offset,
            } => At::Memory {
                space: *space,
                address: address.clone(),
                offset: offset.wrapping_add_unsigned(bytes),
            },
            At::Pieces {
                space,
                pieces,
                offset,
            } => At::Pieces {
                space: *space,
                pieces: pieces.clone(),
                offset: offset + bytes,
            },
        };
        Self {
            type_id,
            at,
            present: self.present.clone(),
            is_variant: false,
            length: self.length.clone(),
        }
    }

    /// The pieces that it is made of, if it is not in memory.
    pub(crate) fn gaps(&self) -> Option<Gaps<'_>> {
        match &self.at {
            At::Pieces { pieces, offset, .. } => Some(Gaps {
                pieces,
                at: *offset,
            }),
            At::Memory { .. } => None,
        }
    }

    /// `bytes` (at most 8) of it as a number. None: the compiler of the kernel left them out.
    pub(crate) fn read(&self, at: u64, bytes: u8, signed: bool) -> Option<Number> {
        match &self.at {
            At::Memory {
                space,
                address,
                offset,
            } => Some(load(
                (*space, address),
                offset.wrapping_add_unsigned(at),
                bytes,
                signed,
            )),
            At::Pieces {
                space,
                pieces,
                offset,
            } => {
                let number = read_pieces(*space, pieces, offset + at, bytes)?;
                Some(match signed || !is_exact(&number, bytes) {
                    true => number.extended(bytes, signed),
                    false => number,
                })
            }
        }
    }
}

/// Whether a number has nothing above so many bytes.
fn is_exact(number: &Number, bytes: u8) -> bool {
    match number {
        Number::Load {
            bytes: of,
            signed: false,
            ..
        } => *of <= bytes,
        Number::Constant(number) => bytes >= 8 || number >> (8 * bytes) == 0,
        _ => bytes >= 8,
    }
}

/// A load of 1 to 8 bytes. Those of other sizes than powers of two are put together.
fn load((space, address): (Space, &Number), offset: i64, bytes: u8, signed: bool) -> Number {
    if bytes.is_power_of_two() {
        return Number::load_in(space, address.clone(), offset, bytes, signed);
    }
    let low = match bytes {
        5.. => 4,
        _ => 2,
    };
    let high = load(
        (space, address),
        offset + i64::from(low),
        bytes - low,
        signed,
    );
    let high = Number::alu(AluOp::ShiftLeft, high, Number::Constant(u64::from(low) * 8));
    let low = Number::load_in(space, address.clone(), offset, low, false);
    Number::alu(AluOp::Or, high, low)
}

/// Bytes of pieces as a number. The bits above them are not defined.
fn read_pieces(space: Space, pieces: &[Piece<Number>], at: u64, bytes: u8) -> Option<Number> {
    let end = at + u64::from(bytes);
    let mut begin = 0;
    let mut sum: Option<Number> = None;
    let mut found = 0;
    for piece in pieces {
        let (from, to) = (at.max(begin), end.min(begin + u64::from(piece.bytes)));
        if from < to {
            let inside = from - begin;
            let part = (to - from) as u8;
            let number = match &piece.source {
                Source::Missing => return None,
                Source::Memory(address) => load((space, address), inside as i64, part, false),
                Source::Value(_) if inside >= 8 => Number::Constant(0),
                Source::Value(number) => {
                    let shifted = Number::alu(
                        AluOp::ShiftRight,
                        number.clone(),
                        Number::Constant(inside * 8),
                    );
                    match part == bytes {
                        true => shifted,
                        false => shifted.extended(part, false),
                    }
                }
            };
            let moved = Number::alu(AluOp::ShiftLeft, number, Number::Constant((from - at) * 8));
            sum = Some(match sum {
                None => moved,
                Some(sum) => Number::alu(AluOp::Or, sum, moved),
            });
            found += part;
        }
        begin += u64::from(piece.bytes);
    }
    sum.filter(|_| found == bytes)
}
