//! Instructions that read memory of the kernel and of programs: texts, pointers, bytes.
//!
//! MEMORY-2. No byte after the length that was asked for is read, because its page may not be
//!     there.

use alloc::{boxed::Box, vec::Vec};

use bpf::{AluOp, Condition, Helper, Reg};

use super::code::Code;
use crate::{
    asm::Label,
    memory::Place,
    number::{Number, Space, Test},
};

impl Code<'_, '_> {
    /// A text that ends with a NUL, of the kernel's or of the task's memory.
    pub(crate) fn read_text(&mut self, address: &Number, to: Place, bytes: u32) {
        let helpers = (Helper::ReadKernelStr, Helper::ReadUserStr);
        self.read(helpers, address, to, bytes);
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
            most: Box::new(limit),
        });
        let before = core::mem::replace(&mut self.asm.forgetful, true);
        self.asm.fill(to, bytes);
        let (user, end) = (self.asm.label(), self.asm.label());
        let most = most / 8 * 8;
        let is_user = Test::compare(
            Condition::GreaterOrEqual,
            address.clone(),
            Number::Constant(0),
        );
        self.branch_on(&is_user, true, user);
        self.store_memory((Space::Kernel, &address), &length, most, to);
        self.asm.jump(end);
        self.asm.place(user);
        self.store_memory((Space::User, &address), &length, most, to);
        self.asm.place(end);
        self.asm.forgetful = before;
        self.values.memory.release(mark);
    }

    /// Copies `length` bytes of memory, at most `most`, a multiple of 8. Zeros follow. No byte
    /// past the length is read.
    pub(crate) fn store_memory(
        &mut self,
        (space, address): (Space, &Number),
        length: &Number,
        most: u32,
        to: Place,
    ) {
        let mark = self.values.memory.mark();
        let address = self.keep(address);
        let length = self.keep(length);
        let before = core::mem::replace(&mut self.asm.forgetful, true);
        self.asm.fill(to, most);
        let end = self.asm.label();
        for at in (0..most / 8).map(|word| 8 * word) {
            match space {
                Space::Kernel => self.store_word_of_kernel(&address, &length, at, to, end),
                Space::User => self.store_word_of_program(&address, &length, at, to, end),
            }
        }
        self.asm.place(end);
        self.asm.forgetful = before;
        self.values.memory.release(mark);
    }

    /// The word `at` bytes into the memory of a program, of which `length` bytes are copied. To
    /// `end` if it is past them.
    fn store_word_of_program(
        &mut self,
        address: &Number,
        length: &Number,
        at: u32,
        to: Place,
        end: Label,
    ) {
        let add = |a: Number, b: Number| Number::alu(AluOp::Add, a, b);
        let load = |address: Number, offset: i64, bytes: u8| {
            Number::load_in(Space::User, address, offset, bytes, false)
        };
        let compare = |condition, than: u32| {
            Test::compare(condition, length.clone(), Number::Constant(than.into()))
        };
        self.branch_on(&compare(Condition::BelowOrEqual, at), true, end);
        let rest = if at == 0 {
            // 1 to 7 bytes: 4, 2 and 1 of them, as the bits of the length say.
            let mut behind = Number::Constant(0);
            let mut sum = Number::Constant(0);
            for bytes in [4_u8, 2, 1] {
                let bit = Number::Constant(bytes.into());
                let bit = self.keep(&Number::alu(AluOp::And, length.clone(), bit));
                let part = load(add(address.clone(), behind.clone()), 0, bytes);
                let part = Number::select(Test::not_zero(bit.clone()), part, Number::Constant(0));
                let bits = Number::alu(AluOp::ShiftLeft, behind.clone(), Number::Constant(3));
                let part = Number::alu(AluOp::ShiftLeft, part, bits);
                sum = Number::alu(AluOp::Or, part, sum);
                behind = self.keep(&add(behind, bit));
            }
            sum
        } else {
            // The last 8 bytes, without those that are stored already.
            let last = load(add(address.clone(), length.clone()), -8, 8);
            let next = Number::Constant(u64::from(at) + 8);
            let missing = Number::alu(AluOp::Sub, next, length.clone());
            let bits = Number::alu(AluOp::ShiftLeft, missing, Number::Constant(3));
            Number::alu(AluOp::ShiftRight, last, bits)
        };
        let whole = load(address.clone(), at.into(), 8);
        let word = Number::select(compare(Condition::AboveOrEqual, at + 8), whole, rest);
        self.store_number(&word, to.at(at), 8);
    }

    /// The same of the memory of the kernel.
    fn store_word_of_kernel(
        &mut self,
        address: &Number,
        length: &Number,
        at: u32,
        to: Place,
        end: Label,
    ) {
        let offset = i32::try_from(at).unwrap_or(0);
        let (whole, store) = (self.asm.label(), self.asm.label());
        self.number(address);
        self.asm.mov(Reg::R2, Reg::R0);
        self.number(length);
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm
            .branch(Condition::BelowOrEqual, Reg::R1, offset, end);
        self.asm
            .branch(Condition::AboveOrEqual, Reg::R1, offset + 8, whole);
        if at == 0 {
            self.load_short();
        } else {
            // The last 8 bytes, without those that are stored already.
            self.asm.alu(AluOp::Add, Reg::R2, Reg::R1);
            let last = Place {
                base: Reg::R2,
                offset: -8,
            };
            self.asm.load(Reg::R0, last, 8, false);
            self.asm.mov(Reg::R3, offset + 8);
            self.asm.alu(AluOp::Sub, Reg::R3, Reg::R1);
            self.asm.alu(AluOp::ShiftLeft, Reg::R3, 3);
            self.asm.alu(AluOp::ShiftRight, Reg::R0, Reg::R3);
        }
        self.asm.jump(store);
        self.asm.place(whole);
        let here = Place {
            base: Reg::R2,
            offset: offset as i16,
        };
        self.asm.load(Reg::R0, here, 8, false);
        self.asm.place(store);
        self.asm.store(to.at(at), 8, Reg::R0);
    }

    /// `r0` = the `r1` bytes (1 to 7) at `r2`. From the last one on: 1, 2 and 4 bytes.
    fn load_short(&mut self) {
        self.asm.alu(AluOp::Add, Reg::R2, Reg::R1);
        self.asm.opaque_zero(Reg::R0);
        for bytes in [1_u8, 2, 4] {
            let without = self.asm.label();
            self.asm.mov(Reg::R3, Reg::R1);
            self.asm.alu(AluOp::And, Reg::R3, i32::from(bytes));
            self.asm.branch(Condition::Equal, Reg::R3, 0, without);
            self.asm.alu(AluOp::Sub, Reg::R2, i32::from(bytes));
            let part = Place {
                base: Reg::R2,
                offset: 0,
            };
            self.asm.load(Reg::R3, part, bytes, false);
            self.asm
                .alu(AluOp::ShiftLeft, Reg::R0, i32::from(bytes) * 8);
            self.asm.alu(AluOp::Or, Reg::R0, Reg::R3);
            self.asm.place(without);
        }
    }
}
