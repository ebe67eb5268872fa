//! Instructions that store values of the source, as their shapes say.
//!
//! The way to an object in memory is gone once, and its fields are read from there. Parts that the
//! compiler of the kernel left out have no bytes.

use alloc::vec::Vec;

use bpf::Condition;
use trace_interface::{
    shape::Shape,
    symbols::{Enum, Field, Tag, Type, TypeId},
};
use trace_language::tree::Span;

use super::code::Code;
use crate::{
    Lowered,
    memory::{Place, step},
    number::{Number, Test},
    object::{At, Object},
    types::{MOST_DEPTH, missing, plain_name},
};

impl Code<'_, '_> {
    /// Stores an object in a shape that it has, or as a text.
    pub(crate) fn store_in_shape(
        &mut self,
        object: &Object,
        to: Place,
        shape: &Shape,
        span: Span,
    ) -> Lowered<()> {
        // All of it is missing.
        if shape.is_lost() {
            return Err(missing(span));
        }
        if let Shape::Text(bytes) = shape
            && let Some((address, length)) = self.values.text_of(object, span)?
        {
            let length = self.keep(&length);
            self.store_memory((object.space(), &address), &length, *bytes, to);
            return Ok(());
        }
        let before = self.asm.forgetful;
        if shape.varies() {
            self.asm.forgetful = true;
            self.asm.fill(to, shape.bytes());
        }
        let stored = match shape {
            // In a key they may be shorter than elsewhere.
            Shape::Counted(most) | Shape::Bytes(most) => self.store_run(object, *most, to, span),
            _ => self.store_object(object, to, 0, span),
        };
        self.asm.forgetful = before;
        stored
    }

    /// Stores a value as [`Types::shape_of`](crate::types::Types::shape_of) says. `to` is zero
    /// before.
    fn store_object(&mut self, object: &Object, to: Place, depth: u32, span: Span) -> Lowered<()> {
        let missing = object.gaps();
        if depth > MOST_DEPTH
            || missing.is_some()
                && self.values.types().shape_at(object.type_id, depth, missing)
                    == Shape::Unavailable
        {
            return Ok(());
        }
        let described = self.values.types().describe(object.type_id);
        let mark = self.values.memory.mark();
        // The way to the object is gone once.
        let object = match &object.at {
            At::Memory {
                space,
                address,
                offset,
            } if !address.is_cheap() => {
                let kept = self.keep(address);
                Object {
                    at: At::Memory {
                        space: *space,
                        address: kept,
                        offset: *offset,
                    },
                    ..object.clone()
                }
            }
            _ => object.clone(),
        };
        match &*described {
            Type::Unit => {}
            Type::Integer { .. }
            | Type::Float { .. }
            | Type::Boolean
            | Type::Character
            | Type::Pointer { .. } => {
                let bytes = self.values.types().size(object.type_id);
                self.store_bytes(&object, 0, bytes, to, span)?;
            }
            Type::Opaque { .. } => {
                let bytes = self.values.types().shape_of(&object).bytes();
                self.store_bytes(&object, 0, bytes.into(), to, span)?;
            }
            Type::Str => {
                let most = self.values.types().text_bytes(depth);
                self.store_run(&object, most, to, span)?;
            }
            Type::Slice { of } => self.store_slice(&object, *of, to, depth, span)?,
            Type::Array { of, .. } => self.store_array(&object, *of, to, depth, span)?,
            Type::Struct(of) if plain_name(&of.name) == "String" => {
                let most = self.values.types().text_bytes(depth);
                self.store_run(&object, most, to, span)?;
            }
            Type::Struct(of) => match self.values.types().transparent(of) {
                Some(only) => {
                    let part = object.part(only.type_id, only.offset);
                    self.store_object(&part, to, depth + 1, span)?;
                }
                None => self.store_fields(&object, &of.fields, to, depth, span)?,
            },
            Type::Enum(of) if self.values.types().choice(of).is_some() => {
                if let Some(Tag { offset, bytes }) = self.values.types().choice(of) {
                    self.store_bytes(&object, offset, bytes.into(), to, span)?;
                }
            }
            Type::Enum(of) => self.store_variant(&object, of, to, depth, span)?,
        }
        self.values.memory.release(mark);
        Ok(())
    }

    /// The length of a slice, and its first elements.
    fn store_slice(
        &mut self,
        object: &Object,
        of: TypeId,
        to: Place,
        depth: u32,
        span: Span,
    ) -> Lowered<()> {
        let shape = self.values.types().shape_at(object.type_id, depth, None);
        match shape {
            Shape::Bytes(most) => self.store_run(object, most, to, span)?,
            Shape::List { of: element, most } => {
                let first = object.read(0, 8, false).ok_or_else(|| missing(span))?;
                let count = object.read(8, 8, false).ok_or_else(|| missing(span))?;
                let (first, count) = (self.keep(&first), self.keep(&count));
                self.store_number(&count, to, 8);
                let end = self.asm.label();
                let size = self.values.types().size(of);
                for index in 0..most {
                    let has = Test::compare(
                        Condition::Above,
                        count.clone(),
                        Number::Constant(index.into()),
                    );
                    self.branch_on(&has, false, end);
                    let place = (object.space(), first.clone());
                    let mut item = Object::in_memory(of, place, Test::Constant(true));
                    item = item.part(of, size * u64::from(index));
                    let place = to.at(8 + element.bytes() * index);
                    self.store_object(&item, place, depth + 1, span)?;
                }
                self.asm.place(end);
            }
            _ => {}
        }
        Ok(())
    }

    /// The first elements of an array.
    fn store_array(
        &mut self,
        object: &Object,
        of: TypeId,
        to: Place,
        depth: u32,
        span: Span,
    ) -> Lowered<()> {
        let size = self.values.types().size(of);
        let shapes = match self
            .values
            .types()
            .shape_at(object.type_id, depth, object.gaps())
        {
            Shape::Array { of, stored, .. } => alloc::vec![*of; stored as usize],
            Shape::Items { items, .. } => items,
            _ => Vec::new(),
        };
        let mut place = to;
        for (index, shape) in (0..).zip(&shapes) {
            let item = object.part(of, size * index);
            self.store_object(&item, place, depth + 1, span)?;
            place = place.at(shape.bytes());
        }
        Ok(())
    }

    /// The number of the variant that an enum is, and its fields.
    fn store_variant(
        &mut self,
        object: &Object,
        of: &Enum,
        to: Place,
        depth: u32,
        span: Span,
    ) -> Lowered<()> {
        let tag = Shape::tag_bytes(of.variants.len());
        let end = self.asm.label();
        for (number, variant) in of.variants.iter().enumerate() {
            let next = self.asm.label();
            let test = self.values.types().is_variant(object, of, number, span)?;
            self.branch_on(&test, false, next);
            self.asm.store_constant(to, tag as u8, number as u64);
            self.store_fields(object, &variant.fields, to.at(tag), depth, span)?;
            self.asm.jump(end);
            self.asm.place(next);
        }
        // A tag that no variant has.
        self.asm
            .store_constant(to, tag as u8, of.variants.len() as u64);
        self.asm.place(end);
        Ok(())
    }

    fn store_fields(
        &mut self,
        object: &Object,
        fields: &[Field],
        mut to: Place,
        depth: u32,
        span: Span,
    ) -> Lowered<()> {
        for field in fields {
            let part = object.part(field.type_id, field.offset);
            self.store_object(&part, to, depth + 1, span)?;
            let shape = self
                .values
                .types()
                .shape_at(field.type_id, depth + 1, part.gaps());
            to = to.at(shape.bytes());
        }
        Ok(())
    }

    fn store_bytes(
        &mut self,
        object: &Object,
        from: u64,
        bytes: u64,
        to: Place,
        span: Span,
    ) -> Lowered<()> {
        let mut at = 0;
        while at < bytes {
            let step = step(bytes - at);
            let number = object
                .read(from + at, step, false)
                .ok_or_else(|| missing(span))?;
            self.store_number(&number, to.at(at as u32), step);
            at += u64::from(step);
        }
        Ok(())
    }

    /// The length and the first bytes of a text or a slice of bytes.
    fn store_run(&mut self, object: &Object, most: u32, to: Place, span: Span) -> Lowered<()> {
        let (address, length) = match self.values.text_of(object, span)? {
            Some(found) => found,
            None => {
                let address = object.read(0, 8, false);
                let length = object.read(8, 8, false);
                let address = address.ok_or_else(|| missing(span))?;
                (address, length.ok_or_else(|| missing(span))?)
            }
        };
        let length = self.keep(&length);
        self.store_number(&length, to, 8);
        self.store_memory((object.space(), &address), &length, most, to.at(8));
        Ok(())
    }
}
