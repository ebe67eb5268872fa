//! Instructions that store the collections of the library.
//!
//! Each begins with the number of its elements; as many follow as its shape has room for. A ring
//! may continue at the beginning of its room, and a linked list has a node for each. Entries of a
//! tree or a table have a mark in front of them, because there may be fewer than the number says.
//!
//! COLLECTIONS-1. A node of a B-tree has five entries at least, unless it is the root. So the first
//!     entries of a tree are in the first leaves and in the node above these. They come in order:
//!     those of a leaf, the entry of the node behind it, and so on.
//! COLLECTIONS-2. Of a table the first [`MOST_SLOTS`] slots are looked at. Which of them are in use
//!     is one word, whose lowest bit is the next entry: so the elements come in the order in which
//!     the library goes through them.

use alloc::vec::Vec;

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

/// So many slots of a table are looked at.
const MOST_SLOTS: u32 = 64;

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
                let places = (to, end, unreadable);
                self.branch_on(&Test::not_zero(count.clone()), false, end);
                let at = go_to_first_leaf(self, space, &tree, (node, height), unreadable);
                let stored =
                    store_tree(self, (space, &at), &tree, &count, places, (of, *most), span);
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

/// Changes such a number to one that the verifier knows nothing of.
fn set(code: &mut Code<'_, '_>, place: Place, number: &Number) {
    code.number(number);
    code.asm.store_register_plain(place, Reg::R0);
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

/// Where the next entry of a tree is, in the stack.
struct InTree {
    /// The leaf, and how many of its entries have been stored.
    leaf: Place,
    stored: Place,
    /// The node above it, or 0, and which of its children the leaf is.
    above: Place,
    child: Place,
}

/// Goes down from the root to the first leaf.
fn go_to_first_leaf(
    code: &mut Code<'_, '_>,
    space: Space,
    tree: &Tree,
    (node, height): (Place, Place),
    unreadable: Label,
) -> InTree {
    let zero = Number::Constant(0);
    let mut place = |number: &Number| kept_place(code, number);
    let at = InTree {
        leaf: place(&zero),
        stored: place(&zero),
        above: place(&zero),
        child: place(&zero),
    };
    let (leaf, above) = (code.asm.label(), code.asm.label());
    let first_child = Number::load_in(space, Number::Own(node), tree.edges as i64, 8, false);
    let bytes = Number::Constant(tree.inner_bytes);
    for _ in 0..MOST_HEIGHT {
        let is_higher = Test::compare(Condition::Above, Number::Own(height), Number::Constant(1));
        code.branch_on(&is_higher, false, above);
        code.can_read((space, &Number::Own(node)), &bytes, unreadable);
        code.store_number(&first_child, node, 8);
        let one = Number::Constant(1);
        let lower = Number::alu(AluOp::Sub, Number::Own(height), one);
        code.store_number(&lower, height, 8);
    }
    code.asm.place(above);
    code.branch_on(&Test::not_zero(Number::Own(height)), false, leaf);
    code.can_read((space, &Number::Own(node)), &bytes, unreadable);
    code.store_number(&Number::Own(node), at.above, 8);
    code.store_number(&first_child, node, 8);
    code.asm.place(leaf);
    begin_leaf(code, space, tree, &at, Number::Own(node), unreadable);
    at
}

/// Goes on with a leaf.
fn begin_leaf(
    code: &mut Code<'_, '_>,
    space: Space,
    tree: &Tree,
    at: &InTree,
    leaf: Number,
    unreadable: Label,
) {
    set(code, at.leaf, &leaf);
    let leaf = Number::Own(at.leaf);
    let bytes = Number::Constant(tree.leaf_bytes);
    code.can_read((space, &leaf), &bytes, unreadable);
    code.store_number(&Number::Constant(0), at.stored, 8);
}

/// The first entries of a tree, from its first leaf on.
fn store_tree(
    code: &mut Code<'_, '_>,
    (space, at): (Space, &InTree),
    tree: &Tree,
    count: &Number,
    (to, end, unreadable): (Place, Label, Label),
    (of, most): (&Shape, u32),
    span: Span,
) -> Lowered<()> {
    let mark = code.values.memory.mark();
    let parts = tree.parts.iter();
    let parts: Vec<_> = parts
        .map(|(array, id)| (*array, *id, kept_place(code, &Number::Constant(0))))
        .collect();
    let entry: Vec<_> = parts
        .iter()
        .map(|(_, id, place)| (Number::Own(*place), *id))
        .collect();
    let point_to = |code: &mut Code<'_, '_>, node: Place, number: Place| {
        for (array, id, place) in &parts {
            let size = Number::Constant(code.values.types().size(*id));
            let inside = Number::alu(AluOp::Mul, Number::Own(number), size);
            let address = Number::alu(AluOp::Add, Number::Own(node), inside);
            set(code, *place, &add(&address, *array));
        }
        set(code, number, &add(&Number::Own(number), 1));
    };
    let entries = |node| Number::load_in(space, Number::Own(node), tree.count as i64, 2, false);
    for index in 0..most {
        unless_above(code, count, index, end);
        let (behind_leaf, found) = (code.asm.label(), code.asm.label());
        let stored = Number::Own(at.stored);
        let in_leaf = Test::compare(Condition::Below, stored, entries(at.leaf));
        code.branch_on(&in_leaf, false, behind_leaf);
        point_to(code, at.leaf, at.stored);
        code.asm.jump(found);
        code.asm.place(behind_leaf);
        // Where there is none, the tree has been changed meanwhile.
        code.branch_on(&Test::not_zero(Number::Own(at.above)), false, end);
        let child = Number::Own(at.child);
        let has_one = Test::compare(Condition::Below, child.clone(), entries(at.above));
        code.branch_on(&has_one, false, end);
        point_to(code, at.above, at.child);
        let place = Number::alu(AluOp::Mul, child, Number::Constant(8));
        let place = Number::alu(AluOp::Add, Number::Own(at.above), place);
        let leaf = Number::load_in(space, place, tree.edges as i64, 8, false);
        begin_leaf(code, space, tree, at, leaf, unreadable);
        code.asm.place(found);
        let place = to.at(8 + (of.bytes() + 1) * index);
        code.asm.store_constant(place, 1, 1);
        store_entry(code, space, &entry, place.at(1), of, span)?;
    }
    code.values.memory.release(mark);
    Ok(())
}

/// Which of the first slots of a table are in use: a bit for each, the lowest for the first.
fn used_slots(code: &mut Code<'_, '_>, space: Space, control: &Number, slots: &Number) -> Place {
    let used = kept_place(code, &Number::Constant(0));
    let done = code.asm.label();
    for first in (0..MOST_SLOTS).step_by(8) {
        unless_above(code, slots, first, done);
        let marks = Number::load_in(space, control.clone(), first.into(), 8, false);
        let with = |op, a, b| Number::alu(op, a, Number::Constant(b));
        // The highest bit of a mark is 0 if the slot is in use. The product has them in a row.
        let is_used = with(AluOp::Xor, marks, u64::MAX);
        let lowest = with(AluOp::ShiftRight, is_used, 7);
        let lowest = with(AluOp::And, lowest, 0x0101_0101_0101_0101);
        let row = with(AluOp::Mul, lowest, 0x0102_0408_1020_4080);
        let row = with(AluOp::ShiftRight, row, 56);
        let row = with(AluOp::ShiftLeft, row, first.into());
        let all = Number::alu(AluOp::Or, Number::Own(used), row);
        code.store_number(&all, used, 8);
    }
    code.asm.place(done);
    // A table of fewer than eight slots has more marks.
    let is_small = Test::compare(Condition::Below, slots.clone(), Number::Constant(8));
    let bit = Number::alu(AluOp::ShiftLeft, Number::Constant(1), slots.clone());
    let mask = Number::alu(AluOp::Sub, bit, Number::Constant(1));
    let mask = Number::select(is_small, mask, Number::Constant(u64::MAX));
    let all = Number::alu(AluOp::And, Number::Own(used), mask);
    code.store_number(&all, used, 8);
    used
}

/// The number of the lowest bit that is set. `place` is changed.
fn lowest_bit(code: &mut Code<'_, '_>, of: Place, place: Place) -> Number {
    let with = |op, a: Number, b| Number::alu(op, a, Number::Constant(b));
    let own = Number::Own;
    // The bits below it are counted: in pairs, in fours, in bytes.
    let below = with(AluOp::Sub, own(of), 1);
    let not = with(AluOp::Xor, own(of), u64::MAX);
    set(code, place, &Number::alu(AluOp::And, below, not));
    let upper = with(AluOp::ShiftRight, own(place), 1);
    let upper = with(AluOp::And, upper, 0x5555_5555_5555_5555);
    set(code, place, &Number::alu(AluOp::Sub, own(place), upper));
    let upper = with(AluOp::ShiftRight, own(place), 2);
    let [lower, upper] = [own(place), upper].map(|of| with(AluOp::And, of, 0x3333_3333_3333_3333));
    set(code, place, &Number::alu(AluOp::Add, lower, upper));
    let upper = with(AluOp::ShiftRight, own(place), 4);
    let sums = Number::alu(AluOp::Add, own(place), upper);
    let bytes = with(AluOp::And, sums, 0x0f0f_0f0f_0f0f_0f0f);
    let whole = with(AluOp::Mul, bytes, 0x0101_0101_0101_0101);
    with(AluOp::ShiftRight, whole, 56)
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
    // Behind the marks of all slots are some of the first ones again.
    let marks = add(&bytes_of(&slots, MOST_SLOTS, 1), 8);
    code.can_read((space, &control), &marks, unreadable);
    let bytes = code.keep(&bytes_of(&slots, MOST_SLOTS, table.entry_bytes));
    let lowest = code.keep(&Number::alu(AluOp::Sub, control.clone(), bytes.clone()));
    code.can_read((space, &lowest), &bytes, unreadable);
    let used = used_slots(code, space, &control, &slots);
    let mark = code.values.memory.mark();
    let entry = kept_place(code, &Number::Constant(0));
    let parts = table.parts.iter();
    let parts: Vec<_> = parts
        .map(|(offset, id)| (add(&Number::Own(entry), *offset), *id))
        .collect();
    for index in 0..most {
        code.branch_on(&Test::not_zero(Number::Own(used)), false, end);
        let slot = lowest_bit(code, used, entry);
        let below = Number::alu(
            AluOp::Mul,
            add(&slot, 1),
            Number::Constant(table.entry_bytes),
        );
        set(
            code,
            entry,
            &Number::alu(AluOp::Sub, control.clone(), below),
        );
        let rest = Number::alu(AluOp::Sub, Number::Own(used), Number::Constant(1));
        set(
            code,
            used,
            &Number::alu(AluOp::And, Number::Own(used), rest),
        );
        let place = to.at(8 + (of.bytes() + 1) * index);
        code.asm.store_constant(place, 1, 1);
        store_entry(code, space, &parts, place.at(1), of, span)?;
    }
    code.values.memory.release(mark);
    Ok(())
}

/// A key, and the value of a map: addresses and types.
fn store_entry(
    code: &mut Code<'_, '_>,
    space: Space,
    parts: &[(Number, TypeId)],
    to: Place,
    shape: &Shape,
    span: Span,
) -> Lowered<()> {
    let shapes = match (shape, parts.len()) {
        (Shape::Tuple(shapes), 2) => &shapes[..],
        (only, _) => core::slice::from_ref(only),
    };
    let mut place = to;
    for ((address, id), shape) in parts.iter().zip(shapes) {
        let mark = code.values.memory.mark();
        let address = code.keep(address);
        let whole = Object::in_memory(*id, (space, address), Test::Constant(true));
        code.store_object(&whole, place, shape, span)?;
        code.values.memory.release(mark);
        place = place.at(shape.bytes());
    }
    Ok(())
}
