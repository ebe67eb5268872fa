//! Instructions that compare texts and choose between them.
//!
//! Both texts are stored as ones that zeros fill up. So they are equal if all their bytes are.

use bpf::{AluOp, Condition, Reg};
use trace_interface::shape::Shape;
use trace_language::tree::Span;

use super::{code::Code, store::does_not_fit};
use crate::{
    Lowered,
    asm::{Asm, Label},
    memory::Place,
    values::{COMM_BYTES, Copy, Either, Val},
};

impl Code<'_, '_> {
    pub(crate) fn compare_texts(
        &mut self,
        left: &Val,
        right: &Val,
        spans: (Span, Span),
        is: bool,
        label: Label,
    ) -> Lowered<()> {
        let mark = self.values.memory.mark();
        let bytes = |this: &mut Self, value: &Val| match this.values.shape(value, false) {
            Shape::Text(bytes) | Shape::Counted(bytes) => bytes,
            _ => 8,
        };
        let mut bytes = bytes(self, left)
            .max(bytes(self, right))
            .next_multiple_of(8);
        if let (Val::Literal(text), _) | (_, Val::Literal(text)) = (left, right) {
            // A byte more than the text of the program has tells that the other is longer.
            let enough = (text.len() as u32 + 2).next_multiple_of(8);
            bytes = bytes.min(enough.max(COMM_BYTES));
        }
        // As texts that zeros fill up, both are equal if all their bytes are.
        let shape = Shape::Text(bytes);
        let end = self.asm.label();
        let other = if is { end } else { label };
        let (first, second) = match (left, right) {
            (Val::Literal(_), _) => (right, left),
            _ => (left, right),
        };
        let a = self.values.memory.take(bytes);
        self.store_as_text(first, a, &shape, spans.0)?;
        if let Val::Literal(text) = second {
            let mut rest = text.as_bytes().to_vec();
            rest.truncate(bytes as usize - 1);
            rest.resize(bytes as usize, 0);
            for (number, chunk) in rest.chunks_exact(8).enumerate() {
                let word = chunk.first_chunk().copied().map_or(0, u64::from_le_bytes);
                self.asm.load(Reg::R0, a.at(8 * number as u32), 8, false);
                self.asm.set(Reg::R1, word);
                self.asm
                    .branch(Condition::NotEqual, Reg::R0, Reg::R1, other);
            }
        } else {
            let b = self.values.memory.take(bytes);
            self.store_as_text(second, b, &shape, spans.1)?;
            for number in 0..bytes / 8 {
                self.asm.load(Reg::R0, a.at(8 * number), 8, false);
                self.asm.load(Reg::R1, b.at(8 * number), 8, false);
                self.asm
                    .branch(Condition::NotEqual, Reg::R0, Reg::R1, other);
            }
        }
        if is {
            self.asm.jump(label);
        }
        self.asm.place(end);
        self.values.memory.release(mark);
        Ok(())
    }

    /// How many bytes a text in the stack has. The verifier need not know how many.
    pub(crate) fn length(&mut self, place: Place, bytes: u32) {
        let (last, end) = (self.asm.label(), self.asm.label());
        self.asm.opaque_zero(Reg::R0);
        self.asm.set(Reg::R4, 0x0101_0101_0101_0101);
        self.asm.set(Reg::R5, 0x8080_8080_8080_8080);
        for word in 0..bytes / 8 {
            // Some bit is left if one of its bytes is zero.
            self.asm.load(Reg::R1, place.at(8 * word), 8, false);
            self.asm.mov(Reg::R2, Reg::R1);
            self.asm.alu(AluOp::Sub, Reg::R2, Reg::R4);
            self.asm.mov(Reg::R3, Reg::R1);
            self.asm.alu(AluOp::Xor, Reg::R3, -1);
            self.asm.alu(AluOp::And, Reg::R2, Reg::R3);
            self.asm.alu(AluOp::And, Reg::R2, Reg::R5);
            self.asm.branch(Condition::NotEqual, Reg::R2, 0, last);
            self.asm.alu(AluOp::Add, Reg::R0, 8);
        }
        self.asm.jump(end);
        self.asm.place(last);
        for _ in 0..8 {
            self.asm.mov(Reg::R2, Reg::R1);
            self.asm.alu(AluOp::And, Reg::R2, 0xff);
            self.asm.branch(Condition::Equal, Reg::R2, 0, end);
            self.asm.alu(AluOp::Add, Reg::R0, 1);
            self.asm.alu(AluOp::ShiftRight, Reg::R1, 8);
        }
        self.asm.place(end);
    }

    /// Searches a text in another one: from each byte on, as far as the two are equal.
    pub(crate) fn position(&mut self, (text, bytes): (Place, u32), (part, room): (Place, u32)) {
        let [from, same, next, none, found] = core::array::from_fn(|_| self.asm.label());
        let byte = |asm: &mut Asm, dst: Reg, of: Place, index: Reg| {
            asm.address(dst, of);
            asm.alu(AluOp::Add, dst, index);
            let (base, offset) = (dst, 0);
            asm.load(dst, Place { base, offset }, 1, false);
        };
        self.asm.mov(Reg::R2, 0);
        self.asm.place(from);
        self.asm.mov(Reg::R3, 0);
        self.asm.place(same);
        byte(&mut self.asm, Reg::R4, part, Reg::R3);
        self.asm.branch(Condition::Equal, Reg::R4, 0, found);
        self.asm.mov(Reg::R1, Reg::R2);
        self.asm.alu(AluOp::Add, Reg::R1, Reg::R3);
        let end_of = bytes.cast_signed();
        self.asm
            .branch(Condition::AboveOrEqual, Reg::R1, end_of, none);
        byte(&mut self.asm, Reg::R5, text, Reg::R1);
        self.asm.branch(Condition::NotEqual, Reg::R5, Reg::R4, next);
        self.asm.alu(AluOp::Add, Reg::R3, 1);
        self.asm
            .branch(Condition::Below, Reg::R3, room.cast_signed(), same);
        self.asm.jump(found);
        self.asm.place(next);
        // A part that goes on when the text has ended is nowhere.
        self.asm.branch(Condition::Equal, Reg::R5, 0, none);
        self.asm.alu(AluOp::Add, Reg::R2, 1);
        self.asm.branch(Condition::Below, Reg::R2, end_of, from);
        self.asm.place(none);
        self.asm.mov(Reg::R2, -1);
        self.asm.place(found);
        // All ways look the same to the verifier from here on.
        self.asm.opaque_zero(Reg::R0);
        self.asm.alu(AluOp::Add, Reg::R0, Reg::R2);
        for reg in [Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5] {
            self.asm.mov(reg, 0);
        }
    }

    /// Stores any text as one that zeros fill up.
    pub(crate) fn store_as_text(
        &mut self,
        value: &Val,
        to: Place,
        shape: &Shape,
        span: Span,
    ) -> Lowered<()> {
        let Val::Stored { place, shape: from } = value else {
            return self.store(value, to, shape, span);
        };
        let (from, bytes) = match from {
            Shape::Text(bytes) => (*place, *bytes),
            Shape::Counted(most) => (place.at(8), *most),
            _ => return Err(does_not_fit(span)),
        };
        let copied = bytes.min(shape.bytes());
        self.asm.copy(from, to, copied);
        self.asm.zero(to.at(copied), shape.bytes() - copied);
        Ok(())
    }

    /// Stores one of two texts or composite values.
    pub(crate) fn store_either(&mut self, either: &Either, copy: &Copy) -> Lowered<()> {
        let Either {
            test,
            then,
            otherwise,
        } = either;
        let before = core::mem::replace(&mut self.asm.forgetful, true);
        let (no, end) = (self.asm.label(), self.asm.label());
        self.branch_on(test, false, no);
        let mut stored = self.store(then, copy.to, &copy.shape, copy.span);
        self.asm.jump(end);
        self.asm.place(no);
        stored = stored.and(self.store(otherwise, copy.to, &copy.shape, copy.span));
        self.asm.place(end);
        self.asm.forgetful = before;
        stored
    }
}
