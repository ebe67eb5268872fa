//! Instructions that store values of the source, as their shapes say.
//!
//! The way to an object in memory is gone once, and its fields are read from there. Parts that the
//! compiler of the kernel left out have no bytes. Before memory that a pointer leads to is read,
//! it is asked whether all of it can be read; if not, its mark stays zero.

use alloc::rc::Rc;

use bpf::{AluOp, Condition, Helper, Reg};
use trace_interface::{
    shape::{Fields, Shape, UNREADABLE},
    symbols::{Enum, Struct, Tag, Type, TypeId},
};
use trace_language::tree::Span;

use super::code::Code;
use crate::{
    Lowered,
    memory::{Place, step},
    number::{Number, Space, Test},
    object::{At, Object},
    types::{field_of, library::Collection, missing},
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
            let end = self.asm.label();
            self.read_part((object.space(), &address), &length, to, *bytes);
            self.asm.branch(Condition::Equal, Reg::R0, 0, end);
            self.mark_unreadable(to);
            self.asm.place(end);
            return Ok(());
        }
        let before = self.asm.forgetful;
        if shape.varies() {
            self.asm.forgetful = true;
            self.asm.fill(to, shape.bytes());
        }
        let stored = match (shape, &object.at) {
            // The object itself is in memory that may not be there.
            (Shape::Behind(of), At::Memory { .. }) => store_behind(self, object, to, of, span),
            (Shape::Behind(of), _) if !self.values.types().leads_on(object.type_id) => {
                self.asm.store_constant(to, 1, 1);
                self.store_object(object, to.at(1), of, span)
            }
            (
                Shape::Counted(_) | Shape::Bytes(_) | Shape::List { .. } | Shape::Slots { .. },
                At::Memory { .. },
            ) => {
                let object = &once(self, object);
                let stored = self.store_object(object, to, shape, span);
                mark_if_unreadable(self, object, to);
                stored
            }
            _ => self.store_object(object, to, shape, span),
        };
        self.asm.forgetful = before;
        stored
    }

    /// Stores a value as its shape says. `to` is zero before.
    pub(crate) fn store_object(
        &mut self,
        object: &Object,
        to: Place,
        shape: &Shape,
        span: Span,
    ) -> Lowered<()> {
        if matches!(shape, Shape::Unit | Shape::Unavailable | Shape::Deeper) {
            return Ok(());
        }
        let mark = self.values.memory.mark();
        let object = once(self, object);
        let object = &self.values.types().unwrapped(&object);
        let described = self.values.types().describe(object.type_id);
        match (&*described, shape) {
            (Type::Pointer { to: id, .. }, Shape::Behind(of)) => {
                let address = object.read(0, 8, false).ok_or_else(|| missing(span))?;
                let content =
                    Object::in_memory(*id, (object.space(), address), Test::Constant(true));
                store_behind(self, &content, to, of, span)?;
            }
            (_, Shape::Behind(of)) => {
                let content = self.values.types().led_to(object, span)?;
                let content = content.ok_or_else(|| missing(span))?;
                store_behind(self, &content, to, of, span)?;
            }
            (Type::Struct(_), Shape::Address { .. })
                if let Some(content) = self.values.types().led_to(object, span)?
                    && let Some(address) = content.address() =>
            {
                self.store_number(&address, to, 8);
            }
            (_, Shape::Counted(most) | Shape::Bytes(most)) => {
                self.store_run(object, *most, to, span)?;
            }
            (Type::Slice { of: id }, Shape::List { of, most, .. }) => {
                let first = object.read(0, 8, false).ok_or_else(|| missing(span))?;
                let count = object.read(8, 8, false).ok_or_else(|| missing(span))?;
                let first = (object.space(), &first);
                self.store_list(first, &count, *id, to, (of, *most), span)?;
            }
            (Type::Tail { of: id, .. }, Shape::List { of, most, .. }) => {
                let first = object.address().ok_or_else(|| missing(span))?;
                let count = object.length.clone().ok_or_else(|| missing(span))?;
                let first = (object.space(), &first);
                self.store_list(first, &count, *id, to, (of, *most), span)?;
            }
            (Type::Struct(_), Shape::Enum { .. }) => {
                let types = self.values.types();
                let id = types.seen(object.type_id);
                let object = object.part(id.ok_or_else(|| missing(span))?, 0);
                match &*types.describe(object.type_id) {
                    Type::Enum(of) => self.store_variant(&object, of, to, shape, span)?,
                    _ => return Err(missing(span)),
                }
            }
            (Type::Struct(_), Shape::List { .. } | Shape::Slots { .. }) => {
                self.store_collection(object, to, shape, span)?;
            }
            (
                Type::Array { of, .. },
                Shape::Array {
                    of: item, stored, ..
                },
            ) => {
                if self.values.types().is_plain(*of, item) {
                    self.store_bytes(object, 0, shape.bytes().into(), to, span)?;
                } else {
                    let items = core::iter::repeat_n(&**item, *stored as usize);
                    store_items(self, object, *of, to, items, span)?;
                }
            }
            (Type::Array { of, .. }, Shape::Items { items, .. }) => {
                store_items(self, object, *of, to, items.iter(), span)?;
            }
            (Type::Struct(_), Shape::Duration) => {
                let field = |name| self.values.types().field_at(object.type_id, &[name]);
                let (seconds, _) = field("secs").ok_or_else(|| missing(span))?;
                let (nanoseconds, _) = field("nanos").ok_or_else(|| missing(span))?;
                self.store_bytes(object, seconds, 8, to, span)?;
                self.store_bytes(object, nanoseconds, 4, to.at(8), span)?;
            }
            (Type::Struct(_), Shape::Struct { fields, .. })
                if self.values.types().rest(object.type_id).is_some()
                    && matches!(fields[..], [(_, Shape::List { .. })]) =>
            {
                store_rest(self, object, to, &fields[0].1, span)?;
            }
            (Type::Struct(of), Shape::Struct { fields, .. }) => {
                store_fields(self, object, of, to, fields, span)?;
            }
            (Type::Enum(of), Shape::Choice { bytes, .. }) => {
                let Tag { offset, .. } = of.tag.ok_or_else(|| missing(span))?;
                self.store_bytes(object, offset, (*bytes).into(), to, span)?;
            }
            (Type::Enum(of), Shape::Enum { .. }) => {
                self.store_variant(object, of, to, shape, span)?;
            }
            _ => self.store_bytes(object, 0, shape.bytes().into(), to, span)?,
        }
        self.values.memory.release(mark);
        Ok(())
    }

    /// A number of elements that follow one another in memory, and the first of them.
    pub(crate) fn store_list(
        &mut self,
        (space, first): (Space, &Number),
        count: &Number,
        id: TypeId,
        to: Place,
        (of, most): (&Shape, u32),
        span: Span,
    ) -> Lowered<()> {
        let size = self.values.types().size(id);
        let (first, count) = (self.keep(first), self.keep(count));
        self.store_number(&count, to, 8);
        if size == 0 {
            return Ok(());
        }
        let bytes = bytes_of(&count, most, size);
        if self.values.types().is_plain(id, of) {
            self.read_run((space, &first), &bytes, to, most * of.bytes());
            return Ok(());
        }
        let (end, unreadable) = (self.asm.label(), self.asm.label());
        self.can_read((space, &first), &bytes, unreadable);
        for index in 0..most {
            let is_past = Test::compare(
                Condition::BelowOrEqual,
                count.clone(),
                Number::Constant(index.into()),
            );
            self.branch_on(&is_past, true, end);
            let item = Object::in_memory(id, (space, first.clone()), Test::Constant(true));
            let item = item.part(id, size * u64::from(index));
            self.store_object(&item, to.at(8 + of.bytes() * index), of, span)?;
        }
        self.asm.jump(end);
        self.asm.place(unreadable);
        self.asm.store_constant(to, 8, UNREADABLE);
        self.asm.place(end);
        Ok(())
    }

    /// The number of the variant that an enum is, and its fields.
    fn store_variant(
        &mut self,
        object: &Object,
        of: &Enum,
        to: Place,
        shape: &Shape,
        span: Span,
    ) -> Lowered<()> {
        let Shape::Enum { variants, .. } = shape else {
            return Err(missing(span));
        };
        let tag = Shape::tag_bytes(of.variants.len());
        let end = self.asm.label();
        let mut other = None;
        let mut number = 0;
        while number < of.variants.len() {
            let row = match row_of_units(of, variants, number) {
                row @ 3.. => row,
                _ => 1,
            };
            let next = self.asm.label();
            match of.variants[number].tag {
                // What no other variant is.
                None if of.tag.is_some() => other = Some(number),
                Some(first) if row > 1 => {
                    let Tag { offset, bytes, .. } = of.tag.ok_or_else(|| missing(span))?;
                    let word = object.read(offset, bytes, false);
                    let word = self.keep(&word.ok_or_else(|| missing(span))?);
                    let place = Number::alu(AluOp::Sub, word, Number::Constant(first as u64));
                    let last = Number::Constant(row as u64 - 1);
                    let is_there = Test::compare(Condition::BelowOrEqual, place.clone(), last);
                    self.branch_on(&is_there, false, next);
                    let place = Number::alu(AluOp::Add, place, Number::Constant(number as u64));
                    self.store_number(&place, to, tag as u8);
                    self.asm.jump(end);
                }
                _ => {
                    let test = self.values.types().is_variant(object, of, number, span)?;
                    self.branch_on(&test, false, next);
                    store_content(self, object, (of, number), to, &variants[number].1, span)?;
                    self.asm.jump(end);
                }
            }
            self.asm.place(next);
            number += row;
        }
        match other {
            Some(other) => store_content(self, object, (of, other), to, &variants[other].1, span)?,
            // A tag that no variant has.
            None => {
                let none = of.variants.len() as u64;
                self.asm.store_constant(to, tag as u8, none);
            }
        }
        self.asm.place(end);
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
                let collection = self.values.types().collection(object.type_id);
                let (pointer, length, skip) = match collection {
                    Some(Collection::Run {
                        pointer,
                        length,
                        skip,
                        ..
                    }) => (pointer, length, skip),
                    _ => (0, 8, 0),
                };
                let address = object
                    .read(pointer, 8, false)
                    .ok_or_else(|| missing(span))?;
                let length = object.read(length, 8, false).ok_or_else(|| missing(span))?;
                let address = Number::alu(AluOp::Add, address, Number::Constant(skip));
                (address, length)
            }
        };
        let length = self.keep(&length);
        self.store_number(&length, to, 8);
        self.read_run((object.space(), &address), &length, to, most);
        Ok(())
    }

    /// The bytes of a run after its length, which becomes [`UNREADABLE`] if they cannot be read.
    pub(crate) fn read_run(
        &mut self,
        from: (Space, &Number),
        length: &Number,
        to: Place,
        most: u32,
    ) {
        let end = self.asm.label();
        self.read_part(from, length, to.at(8), most);
        self.asm.branch(Condition::Equal, Reg::R0, 0, end);
        self.asm.store_constant(to, 8, UNREADABLE);
        self.asm.place(end);
    }

    /// Copies the first `length` bytes of memory, at most `most`; zeros follow. `r0` is 0, or not
    /// if they cannot be read.
    pub(crate) fn read_part(
        &mut self,
        (space, address): (Space, &Number),
        length: &Number,
        to: Place,
        most: u32,
    ) {
        self.pair(address, length);
        self.asm.mov(Reg::R3, Reg::R0);
        match length.constant() {
            Some(length) => self.asm.set(Reg::R4, length),
            None => self.asm.mov(Reg::R4, Reg::R1),
        }
        self.asm.address(Reg::R1, to);
        self.asm.set(Reg::R2, most.into());
        self.asm.call(match space {
            Space::Kernel => Helper::ReadPart,
            Space::User => Helper::ReadUserPart,
        });
    }

    /// Goes to `otherwise` if not all of that memory can be read.
    pub(crate) fn can_read(
        &mut self,
        (space, address): (Space, &Number),
        bytes: &Number,
        otherwise: crate::asm::Label,
    ) {
        self.pair(address, bytes);
        match bytes.constant() {
            Some(bytes) => self.asm.set(Reg::R2, bytes),
            None => self.asm.mov(Reg::R2, Reg::R1),
        }
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm.set(Reg::R3, (space == Space::User).into());
        self.asm.call(Helper::CanRead);
        self.asm.branch(Condition::Equal, Reg::R0, 0, otherwise);
    }
}

/// How many variants from one on have no content, and tags that follow one another.
fn row_of_units(of: &Enum, variants: &[(Rc<str>, Fields)], from: usize) -> usize {
    let is_short = of.tag.is_some_and(|tag| tag.bytes <= 8);
    let first = of.variants[from].tag.filter(|_| is_short);
    let rest = of.variants[from..].iter().zip(&variants[from..]);
    let in_row = rest
        .zip(0..)
        .take_while(|((variant, (_, shapes)), number)| {
            let is_next = first.is_some_and(|first| variant.tag == first.checked_add(*number));
            is_next && shapes.iter().all(|(_, shape)| shape.bytes() == 0)
        });
    in_row.count()
}

/// The number of a variant and its fields.
fn store_content(
    code: &mut Code<'_, '_>,
    object: &Object,
    (of, number): (&Enum, usize),
    to: Place,
    shapes: &Fields,
    span: Span,
) -> Lowered<()> {
    let tag = Shape::tag_bytes(of.variants.len());
    code.asm.store_constant(to, tag as u8, number as u64);
    let mut place = to.at(tag);
    for (field, (_, shape)) in of.variants[number].fields.iter().zip(shapes) {
        let part = object.part(field.type_id, field.offset);
        code.store_object(&part, place, shape, span)?;
        place = place.at(shape.bytes());
    }
    Ok(())
}

/// The number and the first of the elements that an iterator has yet to give.
fn store_rest(
    code: &mut Code<'_, '_>,
    object: &Object,
    to: Place,
    shape: &Shape,
    span: Span,
) -> Lowered<()> {
    let rest = code.values.types().rest(object.type_id);
    let rest = rest.ok_or_else(|| missing(span))?;
    let word = |at| object.read(at, 8, false).ok_or_else(|| missing(span));
    let (mut first, end) = (word(rest.first)?, word(rest.end)?);
    let count = match rest.inside {
        _ if rest.counts => end,
        Some(at) => {
            let count = Number::alu(AluOp::Sub, end, first.clone());
            let array = object.part(rest.of, at).address();
            let array = array.ok_or_else(|| missing(span))?;
            let before = Number::alu(AluOp::Mul, first, Number::Constant(rest.bytes));
            first = Number::alu(AluOp::Add, array, before);
            count
        }
        None => {
            let bytes = Number::alu(AluOp::Sub, end, first.clone());
            Number::alu(AluOp::Div, bytes, Number::Constant(rest.bytes))
        }
    };
    let Shape::List { of, most, .. } = shape else {
        return Err(missing(span));
    };
    code.store_list(
        (object.space(), &first),
        &count,
        rest.of,
        to,
        (of, *most),
        span,
    )
}

/// The bytes of so many elements, at most `most`.
pub(crate) fn bytes_of(count: &Number, most: u32, size: u64) -> Number {
    let most = Number::Constant(most.into());
    let is_less = Test::compare(Condition::Below, count.clone(), most.clone());
    let stored = Number::select(is_less, count.clone(), most);
    Number::alu(AluOp::Mul, stored, Number::Constant(size))
}

/// Marks a text or list without elements whose own length cannot be read.
fn mark_if_unreadable(code: &mut Code<'_, '_>, object: &Object, to: Place) {
    let Some(address) = object.address() else {
        return;
    };
    let (end, unreadable) = (code.asm.label(), code.asm.label());
    code.asm.load(Reg::R0, to, 8, false);
    code.asm.branch(Condition::NotEqual, Reg::R0, 0, end);
    let size = Number::Constant(code.values.types().size(object.type_id));
    code.can_read((object.space(), &address), &size, unreadable);
    code.asm.jump(end);
    code.asm.place(unreadable);
    code.asm.store_constant(to, 8, UNREADABLE);
    code.asm.place(end);
}

/// The same object, with the way to it gone.
fn once(code: &mut Code<'_, '_>, object: &Object) -> Object {
    match &object.at {
        At::Memory {
            space,
            address,
            offset,
        } if !address.is_cheap() => Object {
            at: At::Memory {
                space: *space,
                address: code.keep(address),
                offset: *offset,
            },
            ..object.clone()
        },
        _ => object.clone(),
    }
}

/// 1 and an object in memory, or nothing if that cannot be read.
fn store_behind(
    code: &mut Code<'_, '_>,
    object: &Object,
    to: Place,
    of: &Shape,
    span: Span,
) -> Lowered<()> {
    let mark = code.values.memory.mark();
    let end = code.asm.label();
    let size = code.values.types().size(object.type_id);
    let object = &once(code, object);
    if let Some(address) = object.address().filter(|_| size > 0) {
        let place = (object.space(), &address);
        if of.is_number() && size == u64::from(of.bytes()) && matches!(size, 1 | 2 | 4 | 8) {
            // A number that is not zero has been read.
            let read = code.asm.label();
            let number = object
                .read(0, size as u8, false)
                .ok_or_else(|| missing(span))?;
            code.store_number(&number, to.at(1), size as u8);
            code.asm.branch(Condition::NotEqual, Reg::R0, 0, read);
            code.can_read(place, &Number::Constant(size), end);
            code.asm.place(read);
            code.asm.store_constant(to, 1, 1);
            code.asm.place(end);
            code.values.memory.release(mark);
            return Ok(());
        }
        code.can_read(place, &Number::Constant(size), end);
    }
    code.asm.store_constant(to, 1, 1);
    code.store_object(object, to.at(1), of, span)?;
    code.asm.place(end);
    code.values.memory.release(mark);
    Ok(())
}

/// The fields of a structure, each in its shape.
fn store_fields(
    code: &mut Code<'_, '_>,
    object: &Object,
    of: &Struct,
    to: Place,
    fields: &Fields,
    span: Span,
) -> Lowered<()> {
    let mut place = to;
    for (name, shape) in fields {
        let field = field_of(&of.fields, name).ok_or_else(|| missing(span))?;
        let part = object.part(field.type_id, field.offset);
        code.store_object(&part, place, shape, span)?;
        place = place.at(shape.bytes());
    }
    Ok(())
}

/// The elements of an array, each in its shape.
fn store_items<'s>(
    code: &mut Code<'_, '_>,
    object: &Object,
    of: TypeId,
    to: Place,
    items: impl Iterator<Item = &'s Shape>,
    span: Span,
) -> Lowered<()> {
    let size = code.values.types().size(of);
    let mut place = to;
    for (index, shape) in (0..).zip(items) {
        code.store_object(&object.part(of, size * index), place, shape, span)?;
        place = place.at(shape.bytes());
    }
    Ok(())
}
