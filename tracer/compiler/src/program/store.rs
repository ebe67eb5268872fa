//! Instructions that store values, in the shapes that keys, maps and records have.
//!
//! Bytes of a shape that a value does not have are zero, so equal values have equal bytes. Where
//! the ways through a program differ in what they store, the stack is filled first, and numbers are
//! hidden from the verifier ([`crate::asm`]).

use alloc::vec::Vec;

use bpf::{Condition, Helper, Reg};
use trace_interface::shape::Shape;
use trace_language::{Diagnostic, tree::Span};

use super::code::Code;
use crate::{
    Lowered,
    asm::Label,
    memory::Place,
    number::Key,
    values::{COMM_BYTES, Val, composite},
};

impl Code<'_, '_> {
    /// Stores a value in a shape that fits it: its own, or one of a longer text.
    pub(crate) fn store(
        &mut self,
        value: &Val,
        to: Place,
        shape: &Shape,
        span: Span,
    ) -> Lowered<()> {
        let mark = self.values.memory.mark();
        match (value, shape) {
            (_, Shape::Maybe(of)) => self.store_or_not(value, to, (shape, of), span)?,
            (Val::Number(counted), shape) => {
                let bytes = match shape {
                    Shape::Character => 4,
                    Shape::Unsigned(bytes @ ..=8) | Shape::Signed(bytes @ ..=8) => *bytes,
                    _ if shape.bytes() == 8 => 8,
                    _ => return Err(does_not_fit(span)),
                };
                self.store_number(&counted.number, to, bytes);
            }
            (Val::Literal(_) | Val::Comm | Val::Text { .. } | Val::Bytes { .. }, _) => {
                self.store_run_of_program(value, to, shape, span)?;
            }
            (Val::Object(object), shape) => self.store_in_shape(object, to, shape, span)?,
            (Val::Stored { place, shape: from }, shape) if from == shape => {
                self.asm.copy(*place, to, shape.bytes());
            }
            (
                Val::Stored {
                    place,
                    shape: Shape::Bytes(from),
                },
                Shape::Bytes(most),
            ) if from <= most => {
                self.asm.copy(*place, to, from + 8);
                self.asm.zero(to.at(from + 8), most - from);
            }
            (Val::Stored { .. }, Shape::Text(_)) => self.store_as_text(value, to, shape, span)?,
            (
                Val::Element {
                    map,
                    key,
                    shape: from,
                },
                shape,
            ) if from == shape => {
                let bytes = shape.bytes();
                self.asm.fill(to, bytes);
                let key = Key { stored: *key };
                self.look_up(*map, &key);
                let end = self.asm.label();
                self.asm.branch(Condition::Equal, Reg::R0, 0, end);
                let value = Place {
                    base: Reg::R0,
                    offset: 0,
                };
                self.asm.copy(value, to, bytes);
                self.asm.place(end);
            }
            (Val::Element { shape: from, .. }, shape) => {
                let place = self.values.memory.take(from.bytes());
                self.store(value, place, from, span)?;
                let shape_there = from.clone();
                let stored = Val::Stored {
                    place,
                    shape: shape_there,
                };
                self.store(&stored, to, shape, span)?;
            }
            (value, shape) => self.store_parts(value, to, shape, span)?,
        }
        self.values.memory.release(mark);
        Ok(())
    }

    /// Stores each part of a composite value in the shape that has its place or name.
    fn store_parts(&mut self, value: &Val, to: Place, shape: &Shape, span: Span) -> Lowered<()> {
        let parts = composite::parts(value).unwrap_or_default();
        let names = composite::names_of(value);
        let shapes: Vec<(usize, &Shape)> = match shape {
            Shape::Tuple(shapes) if names.is_empty() => shapes.iter().enumerate().collect(),
            Shape::Record(fields) => {
                let place = |name: &str| names.iter().position(|known| **known == *name);
                let fields = fields.iter();
                fields
                    .filter_map(|(name, shape)| Some((place(name)?, shape)))
                    .collect()
            }
            _ => return Err(does_not_fit(span)),
        };
        if shapes.len() != parts.len() {
            return Err(does_not_fit(span));
        }
        let mut place = to;
        for (part, shape) in shapes {
            self.store(&parts[part], place, shape, span)?;
            place = place.at(shape.bytes());
        }
        Ok(())
    }

    /// 0 in a byte and the value, or 1 and zeros: it is not there. So what a variable has before it
    /// is set is a zero that is there.
    fn store_or_not(
        &mut self,
        value: &Val,
        to: Place,
        (shape, of): (&Shape, &Shape),
        span: Span,
    ) -> Lowered<()> {
        let present = value.present();
        let no = self.asm.label();
        // The stack must look the same on both ways.
        let before = core::mem::replace(&mut self.asm.forgetful, true);
        self.asm.fill(to, shape.bytes());
        self.asm.store_constant(to, 1, 1);
        self.branch_on(&present, false, no);
        let stored = self.store(value, to.at(1), of, span);
        self.asm.store_constant(to, 1, 0);
        self.asm.place(no);
        self.asm.forgetful = before;
        stored
    }

    /// Texts and bytes that are no value of the source.
    fn store_run_of_program(
        &mut self,
        value: &Val,
        to: Place,
        shape: &Shape,
        span: Span,
    ) -> Lowered<()> {
        match (value, shape) {
            (Val::Literal(text), Shape::Text(bytes)) => self.store_literal(text, to, *bytes),
            (Val::Comm, Shape::Text(bytes)) => {
                self.asm.address(Reg::R1, to);
                self.asm.set(Reg::R2, u64::from((*bytes).min(COMM_BYTES)));
                self.asm.call(Helper::Comm);
                if *bytes > COMM_BYTES {
                    self.asm.zero(to.at(COMM_BYTES), bytes - COMM_BYTES);
                }
            }
            (
                Val::Text {
                    address,
                    most,
                    limit: Some(limit),
                    ..
                },
                Shape::Text(bytes),
            ) => self.store_limited_text(address, limit, (*most).min(*bytes), to, *bytes),
            (Val::Text { address, most, .. }, Shape::Text(bytes)) => {
                let read = (*most).min(*bytes);
                // Whole words are cleared, because parts of them would not be aligned.
                let whole = read / 8 * 8;
                if read < *bytes {
                    self.asm.zero(to.at(whole), bytes - whole);
                }
                self.read_text(address, to, read);
            }
            (
                Val::Bytes {
                    space,
                    address,
                    length,
                    most,
                },
                Shape::Bytes(bytes),
            ) => {
                let length = self.keep(length);
                self.store_number(&length, to, 8);
                let most = (*most).min(*bytes);
                self.read_run((*space, address), &length, to, most);
                self.asm.zero(to.at(8 + most), bytes - most);
            }
            _ => return Err(does_not_fit(span)),
        }
        Ok(())
    }

    pub(crate) fn store_key(&mut self, stored: usize) -> Place {
        let (map, values, span) = self.values.keys[stored].clone();
        match self.key_in_stack(map, &values, 0, span) {
            Ok(place) => place,
            Err(error) => {
                self.values.tables.error(error);
                Place::stack(-8)
            }
        }
    }

    pub(crate) fn branch_on_text(&mut self, comparison: usize, is: bool, label: Label) {
        let (left, right, spans) = self.values.texts[comparison].clone();
        if let Err(error) = self.compare_texts(&left, &right, spans, is, label) {
            self.values.tables.error(error);
        }
    }

    fn store_literal(&mut self, text: &str, to: Place, bytes: u32) {
        // The last byte stays a NUL.
        let mut rest: Vec<u8> = text
            .bytes()
            .take(bytes.saturating_sub(1) as usize)
            .collect();
        let aligned = bytes / 8 * 8;
        rest.resize(aligned.max(rest.len() as u32) as usize, 0);
        for (number, chunk) in rest.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let at = to.at(8 * number as u32);
            let left = bytes - 8 * number as u32;
            if left >= 8 {
                self.asm.store_constant(at, 8, u64::from_le_bytes(word));
            } else {
                for (number, byte) in (0..left).zip(word) {
                    self.asm.store_constant(at.at(number), 1, byte.into());
                }
            }
        }
    }

    /// The key of a map in the stack, with room for `more` bytes after it.
    pub(crate) fn key_in_stack(
        &mut self,
        map: u32,
        values: &[Val],
        more: u32,
        span: Span,
    ) -> Lowered<Place> {
        let shapes = self.values.tables.maps[map as usize]
            .keys
            .clone()
            .unwrap_or_default();
        let bytes: u32 = shapes.iter().map(Shape::bytes).sum();
        if values.is_empty() {
            // A map without keys that is a hash has this one.
            let place = self.values.memory.take(8);
            self.asm.store_constant(place, 8, 0);
            return Ok(place);
        }
        let first = self.values.memory.take(bytes + more);
        let mut place = first;
        for (value, shape) in values.iter().zip(&shapes) {
            self.store(value, place, shape, span)?;
            place = place.at(shape.bytes());
        }
        Ok(first)
    }
}

pub(super) fn does_not_fit(span: Span) -> Diagnostic {
    Diagnostic::new(
        span,
        "this value is of another type than those that were stored there before",
        "use another map for it",
    )
}
