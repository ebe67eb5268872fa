//! Instructions that read memory of the kernel and of programs: texts, pointers, bytes.
//!
//! MEMORY-2. No byte after the length that was asked for is read, because its page may not be
//!     there.

use alloc::{boxed::Box, vec::Vec};

use bpf::{AluOp, Condition, Helper, Reg};

use trace_interface::shape::UNREADABLE_TEXT;

use super::code::Code;
use crate::{
    memory::Place,
    number::{Number, Space, Test},
};

impl Code<'_, '_> {
    /// A text that ends with a NUL, of the kernel's or of the task's memory.
    pub(crate) fn read_text(&mut self, address: &Number, to: Place, bytes: u32) {
        let helpers = (Helper::ReadKernelStr, Helper::ReadUserStr);
        self.read(helpers, address, to, bytes);
        let end = self.asm.label();
        self.asm.branch(Condition::GreaterOrEqual, Reg::R0, 0, end);
        self.mark_unreadable(to);
        self.asm.place(end);
    }

    /// Makes a text of zeros one that could not be read. The verifier is not to know how it ended.
    pub(crate) fn mark_unreadable(&mut self, to: Place) {
        let before = core::mem::replace(&mut self.asm.forgetful, true);
        for (at, byte) in (0..).zip(UNREADABLE_TEXT) {
            self.asm.store_constant(to.at(at), 1, byte.into());
        }
        self.asm.forgetful = before;
    }

    /// The pointers of an array, one after the other, up to the first null, at most `count`. Zeros
    /// follow, and nothing after the null is read.
    pub(crate) fn read_pointers(&mut self, array: &Number, count: u32) -> Vec<Number> {
        let array = self.keep(array);
        let words = self.values.memory.take(8 * count);
        let word = |index: u32| words.at(8 * index);
        let end = self.asm.label();
        // The stack must look the same on all ways.
        let before = core::mem::replace(&mut self.asm.forgetful, true);
        self.asm.fill(words, 8 * count);
        self.number(&array);
        self.asm.branch(Condition::Equal, Reg::R0, 0, end);
        for index in 0..count {
            let offset = Number::Constant((8 * index).into());
            let address = Number::alu(AluOp::Add, array.clone(), offset);
            let helpers = (Helper::ReadKernel, Helper::ReadUser);
            self.read(helpers, &address, word(index), 8);
            self.number(&Number::Own(word(index)));
            self.asm.branch(Condition::Equal, Reg::R0, 0, end);
        }
        self.asm.place(end);
        self.asm.forgetful = before;
        (0..count).map(|index| Number::Own(word(index))).collect()
    }

    /// Calls one of the helpers that read memory: the first for the kernel's, the second for that
    /// of a program.
    pub(crate) fn read(
        &mut self,
        helpers: (Helper, Helper),
        address: &Number,
        to: Place,
        bytes: u32,
    ) {
        self.number(address);
        let (user, end) = (self.asm.label(), self.asm.label());
        self.asm.mov(Reg::R3, Reg::R0);
        self.asm.address(Reg::R1, to);
        self.asm.set(Reg::R2, bytes.into());
        // Addresses of the kernel have the highest bit.
        self.asm.branch(Condition::GreaterOrEqual, Reg::R3, 0, user);
        self.asm.call(helpers.0);
        self.asm.jump(end);
        self.asm.place(user);
        self.asm.call(helpers.1);
        self.asm.place(end);
    }

    /// A text that ends with a NUL, or after `limit` bytes.
    pub(crate) fn store_limited_text(
        &mut self,
        address: &Number,
        limit: &Number,
        most: u32,
        to: Place,
        bytes: u32,
    ) {
        let mark = self.values.memory.mark();
        let address = self.keep(address);
        let limit = self.keep(limit);
        // The last byte stays a NUL.
        let longest = Number::Constant(u64::from(most) - 1);
        let is_short = Test::compare(Condition::Below, limit.clone(), longest.clone());
        let limit = self.keep(&Number::select(is_short, limit, longest));
        let length = self.keep(&Number::TextLength {
            address: Box::new(address.clone()),
            most: Box::new(limit.clone()),
        });
        let before = core::mem::replace(&mut self.asm.forgetful, true);
        self.asm.fill(to, bytes);
        let (user, end) = (self.asm.label(), self.asm.label());
        let is_user = Test::compare(
            Condition::GreaterOrEqual,
            address.clone(),
            Number::Constant(0),
        );
        self.branch_on(&is_user, true, user);
        self.read_part((Space::Kernel, &address), &length, to, most.min(bytes));
        self.asm.jump(end);
        self.asm.place(user);
        self.read_part((Space::User, &address), &length, to, most.min(bytes));
        self.asm.place(end);
        // A text has a NUL at least, unless nothing of it was wanted.
        let whole = self.asm.label();
        let is_read = Test::not_zero(length).or(Test::not_zero(limit).negated());
        self.branch_on(&is_read, true, whole);
        self.mark_unreadable(to);
        self.asm.place(whole);
        self.asm.forgetful = before;
        self.values.memory.release(mark);
    }
}
