//! Instructions that store the collections of the library.
//!
//! Each begins with the number of its elements; as many follow as its shape has room for. A ring
//! may continue at the beginning of its room, and a linked list has a node for each. Of a B-tree
//! the entries of the first leaf are stored, which are its least. Of a table the first slots are
//! stored, with a mark in front of each that is in use, so the elements come in the order in which
//! the library goes through them.

use bpf::{AluOp, Condition, Reg};
use trace_interface::{
    shape::{Shape, UNREADABLE},
    symbols::TypeId,
};
use trace_language::tree::Span;

use super::{code::Code, objects::bytes_of};
use crate::{
    Lowered,
    asm::Label,
    memory::Place,
    number::{Number, Space, Test},
    object::Object,
    types::{
        library::{Chain, Collection, Table, Tree},
        missing,
    },
};

/// No tree is higher: its nodes have five entries at least.
const MOST_HEIGHT: u32 = 8;

fn add(a: &Number, b: u64) -> Number {
    Number::alu(AluOp::Add, a.clone(), Number::Constant(b))
}

impl Code<'_, '_> {
    /// Stores a collection: the number of its elements, and the first of them.
    pub(crate) fn store_collection(
        &mut self,
        object: &Object,
        to: Place,
        shape: &Shape,
        span: Span,
    ) -> Lowered<()> {
        let (Shape::List { of, most, .. } | Shape::Slots { of, most, .. }) = shape else {
            return Err(missing(span));
        };
        let collection = self.values.types().collection(object.type_id);
        let collection = collection.ok_or_else(|| missing(span))?;
        let word = |at: u64| object.read(at, 8, false).ok_or_else(|| missing(span));
        let count = word(collection.length())?;
        let space = object.space();
        match collection {
            Collection::Run {
                pointer,
                skip,
                of: id,
                ..
            } => {
                let first = add(&word(pointer)?, skip);
                self.store_list((space, &first), &count, id, to, (of, *most), span)
            }
            Collection::Ring {
                pointer,
                head,
                capacity,
                of: id,
                ..
            } => {
                let ring = [word(pointer)?, word(head)?, word(capacity)?, count];
                let ring = ring.map(|number| self.keep(&number));
                store_ring(self, space, &ring, id, to, (of, *most), span)
            }
            Collection::Chain(chain) => {
                let count = self.keep(&count);
                self.store_number(&count, to, 8);
                let first = word(chain.first)?;
                let node = kept_place(self, &first);
                store_chain(self, (space, node), &chain, &count, to, (of, *most), span)
            }
            Collection::Tree(tree) => {
                let count = self.keep(&count);
                self.store_number(&count, to, 8);
                let (node, height) = (word(tree.node)?, word(tree.height)?);
                let (node, height) = (kept_place(self, &node), kept_place(self, &height));
                let (end, unreadable) = (self.asm.label(), self.asm.label());
                self.branch_on(&Test::not_zero(count), false, end);
                go_to_first_leaf(self, space, &tree, (node, height), unreadable);
                let leaf = Number::Own(node);
                let stored = store_leaf(self, space, &tree, &leaf, (to, end), (of, *most), span);
                end_of_elements(self, to, end, unreadable);
                stored
            }
            Collection::Table(table) => {
                let (control, mask) = (word(table.control)?, word(table.mask)?);
                let (control, mask) = (self.keep(&control), self.keep(&mask));
                let count = self.keep(&count);
                self.store_number(&count, to, 8);
                let (end, unreadable) = (self.asm.label(), self.asm.label());
                self.branch_on(&Test::not_zero(count), false, end);
                let places = (to, end, unreadable);
                let place = (space, control, mask);
                let stored = store_table(self, place, &table, places, (of, *most), span);
                end_of_elements(self, to, end, unreadable);
                stored
            }
        }
    }
}

/// A number in the stack, that may be changed there.
fn kept_place(code: &mut Code<'_, '_>, number: &Number) -> Place {
    let place = code.values.memory.take(8);
    code.store_number(number, place, 8);
    place
}

fn end_of_elements(code: &mut Code<'_, '_>, to: Place, end: Label, unreadable: Label) {
    code.asm.jump(end);
    code.asm.place(unreadable);
    code.asm.store_constant(to, 8, UNREADABLE);
    code.asm.place(end);
}

/// Goes to `end` if there are no more than `index` elements.
fn unless_above(code: &mut Code<'_, '_>, count: &Number, index: u32, end: Label) {
    let index = Number::Constant(index.into());
    let is_past = Test::compare(Condition::BelowOrEqual, count.clone(), index);
    code.branch_on(&is_past, true, end);
}

fn store_ring(
    code: &mut Code<'_, '_>,
    space: Space,
    [first, head, capacity, count]: &[Number; 4],
    id: TypeId,
    to: Place,
    (of, most): (&Shape, u32),
    span: Span,
) -> Lowered<()> {
    let size = code.values.types().size(id);
    code.store_number(count, to, 8);
    if size == 0 {
        return Ok(());
    }
    let (end, unreadable) = (code.asm.label(), code.asm.label());
    for index in 0..most {
        unless_above(code, count, index, end);
        let mark = code.values.memory.mark();
        let at = code.keep(&add(head, index.into()));
        let is_inside = Test::compare(Condition::Below, at.clone(), capacity.clone());
        let wrapped = Number::alu(AluOp::Sub, at.clone(), capacity.clone());
        let at = Number::select(is_inside, at, wrapped);
        let offset = Number::alu(AluOp::Mul, at, Number::Constant(size));
        let address = code.keep(&Number::alu(AluOp::Add, first.clone(), offset));
        code.can_read((space, &address), &Number::Constant(size), unreadable);
        let item = Object::in_memory(id, (space, address), Test::Constant(true));
        code.store_object(&item, to.at(8 + of.bytes() * index), of, span)?;
        code.values.memory.release(mark);
    }
    end_of_elements(code, to, end, unreadable);
    Ok(())
}

fn store_chain(
    code: &mut Code<'_, '_>,
    (space, node): (Space, Place),
    chain: &Chain,
    count: &Number,
    to: Place,
    (of, most): (&Shape, u32),
    span: Span,
) -> Lowered<()> {
    let (end, unreadable) = (code.asm.label(), code.asm.label());
    for index in 0..most {
        unless_above(code, count, index, end);
        let mark = code.values.memory.mark();
        let bytes = Number::Constant(chain.bytes);
        code.can_read((space, &Number::Own(node)), &bytes, unreadable);
        let item = Object::in_memory(chain.of, (space, Number::Own(node)), Test::Constant(true));
        let item = item.part(chain.of, chain.element);
        code.store_object(&item, to.at(8 + of.bytes() * index), of, span)?;
        let next = Number::load_in(space, Number::Own(node), chain.next as i64, 8, false);
        code.store_number(&next, node, 8);
        code.values.memory.release(mark);
    }
    end_of_elements(code, to, end, unreadable);
    Ok(())
}

/// Goes down from the root to the first leaf.
fn go_to_first_leaf(
    code: &mut Code<'_, '_>,
    space: Space,
    tree: &Tree,
    (node, height): (Place, Place),
    unreadable: Label,
) {
    let leaf = code.asm.label();
    for _ in 0..MOST_HEIGHT {
        code.branch_on(&Test::not_zero(Number::Own(height)), false, leaf);
        let bytes = Number::Constant(tree.inner_bytes);
        code.can_read((space, &Number::Own(node)), &bytes, unreadable);
        let first = Number::load_in(space, Number::Own(node), tree.edges as i64, 8, false);
        code.store_number(&first, node, 8);
        let one = Number::Constant(1);
        let lower = Number::alu(AluOp::Sub, Number::Own(height), one);
        code.store_number(&lower, height, 8);
    }
    code.asm.place(leaf);
    let bytes = Number::Constant(tree.leaf_bytes);
    code.can_read((space, &Number::Own(node)), &bytes, unreadable);
}

fn store_leaf(
    code: &mut Code<'_, '_>,
    space: Space,
    tree: &Tree,
    leaf: &Number,
    (to, end): (Place, Label),
    (of, most): (&Shape, u32),
    span: Span,
) -> Lowered<()> {
    let count = Number::load_in(space, leaf.clone(), tree.count as i64, 2, false);
    let count = code.keep(&count);
    for index in 0..most {
        unless_above(code, &count, index, end);
        let place = to.at(8 + of.bytes() * index);
        let parts = tree.parts.iter().map(|(array, id)| {
            let size = code.values.types().size(*id);
            (array + size * u64::from(index), *id)
        });
        let parts: alloc::vec::Vec<_> = parts.collect();
        store_entry(code, (space, leaf), &parts, place, of, span)?;
    }
    Ok(())
}

fn store_table(
    code: &mut Code<'_, '_>,
    (space, control, mask): (Space, Number, Number),
    table: &Table,
    (to, end, unreadable): (Place, Label, Label),
    (of, most): (&Shape, u32),
    span: Span,
) -> Lowered<()> {
    let slots = code.keep(&add(&mask, 1));
    let marks = bytes_of(&slots, most, 1);
    code.can_read((space, &control), &marks, unreadable);
    let bytes = code.keep(&bytes_of(&slots, most, table.entry_bytes));
    let lowest = code.keep(&Number::alu(AluOp::Sub, control.clone(), bytes.clone()));
    code.can_read((space, &lowest), &bytes, unreadable);
    for index in 0..most {
        let next = code.asm.label();
        unless_above(code, &slots, index, end);
        let mark = Number::load_in(space, control.clone(), index.into(), 1, false);
        code.number(&mark);
        // The others are empty, or were taken out.
        code.asm
            .branch(Condition::AboveOrEqual, Reg::R0, 0x80, next);
        let place = to.at(8 + (of.bytes() + 1) * index);
        code.asm.store_constant(place, 1, 1);
        let below = table.entry_bytes * (u64::from(index) + 1);
        let entry = Number::alu(AluOp::Sub, control.clone(), Number::Constant(below));
        store_entry(code, (space, &entry), &table.parts, place.at(1), of, span)?;
        code.asm.place(next);
    }
    Ok(())
}

/// A key, and the value of a map.
fn store_entry(
    code: &mut Code<'_, '_>,
    (space, base): (Space, &Number),
    parts: &[(u64, TypeId)],
    to: Place,
    shape: &Shape,
    span: Span,
) -> Lowered<()> {
    let mark = code.values.memory.mark();
    let base = code.keep(base);
    let shapes = match (shape, parts.len()) {
        (Shape::Tuple(shapes), 2) => &shapes[..],
        (only, _) => core::slice::from_ref(only),
    };
    let mut place = to;
    for ((offset, id), shape) in parts.iter().zip(shapes) {
        let whole = Object::in_memory(*id, (space, base.clone()), Test::Constant(true));
        code.store_object(&whole.part(*id, *offset), place, shape, span)?;
        place = place.at(shape.bytes());
    }
    code.values.memory.release(mark);
    Ok(())
}
