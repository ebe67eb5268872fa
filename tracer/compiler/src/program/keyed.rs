//! Instructions that change maps: add, count in buckets, compare, delete.
//!
//! Several CPUs and their interrupts change a map at once, so each change is one atomic operation,
//! or is tried again.

use alloc::format;

use bpf::{AluOp, AtomicOp, Condition, Helper, Insn, Reg, Size, USE_CHANGED, USE_READ};
use trace_interface::{
    shape::Shape,
    view::{Class, Scale},
};
use trace_language::{Diagnostic, tree::Span};

use super::code::Code;
use crate::{
    Lowered,
    asm::Label,
    memory::Place,
    number::{Counted, Number, Test},
    values::Val,
};

/// How a key is used.
#[derive(Clone, Copy)]
pub(crate) enum Use {
    Read,
    /// It is going to be changed, or inserted.
    Change,
    Changed,
}

/// Tells a map that forgets that the key at `place` is used. `r0` to `r5` are lost.
pub(crate) fn use_key(code: &mut Code<'_, '_>, map: u32, place: Place, how: Use) {
    let declared = code.values.tables.maps[map as usize].declared;
    let Some(declared) = declared.filter(|declared| declared.forgets) else {
        return;
    };
    code.asm.map(Reg::R1, map);
    code.asm.address(Reg::R2, place);
    let how = match how {
        Use::Read => USE_READ,
        Use::Change => declared.keys.into(),
        Use::Changed => USE_CHANGED,
    };
    code.asm.set(Reg::R3, how);
    code.asm.call(Helper::UseKey);
}

impl Code<'_, '_> {
    /// Adds to a number that all CPUs share.
    pub(crate) fn add_shared(&mut self, number: u32, key: usize, delta: &Number, present: &Test) {
        let present = present.clone().and(self.values.keys_present(key));
        let skip = self.asm.label();
        self.branch_on(&present, false, skip);
        let delta = self.keep(delta);
        let place = self.store_key(key);
        use_key(self, number, place, Use::Change);
        self.number(&delta);
        self.asm.mov(Reg::R3, Reg::R0);
        self.asm.map(Reg::R1, number);
        self.asm.address(Reg::R2, place);
        self.asm.call(Helper::AddByKey);
        use_key(self, number, place, Use::Changed);
        self.asm.place(skip);
    }

    /// Counts in the bucket of a value.
    pub(crate) fn count_in_bucket(
        &mut self,
        map: u32,
        scale: Scale,
        keys: &[Val],
        value: Counted,
        span: Span,
    ) -> Lowered<()> {
        let bucket = self.values.memory.take(8);
        let end = self.asm.label();
        self.number(&value.number);
        match scale {
            Scale::Log2 => {
                let plain = self.asm.label();
                if value.kind.is_signed() {
                    self.asm
                        .branch(Condition::GreaterOrEqual, Reg::R0, 0, plain);
                    self.asm.mov(Reg::R0, Scale::NEGATIVE as i32);
                    self.asm.jump(end);
                }
                self.asm.place(plain);
                self.asm.mov(Reg::R1, Reg::R0);
                self.asm.call(Helper::Log2);
            }
            Scale::Split { bits } => {
                let plain = self.asm.label();
                if value.kind.is_signed() {
                    self.asm
                        .branch(Condition::GreaterOrEqual, Reg::R0, 0, plain);
                    self.asm.mov(Reg::R0, Scale::negative_of(bits) as i32);
                    self.asm.jump(end);
                }
                self.asm.place(plain);
                self.asm.branch(Condition::Below, Reg::R0, 1 << bits, end);
                self.asm.store(bucket, 8, Reg::R0);
                self.asm.mov(Reg::R1, Reg::R0);
                self.asm.call(Helper::Log2);
                // The bits behind those that tell the bucket.
                self.asm.alu(AluOp::Sub, Reg::R0, i32::from(bits) + 1);
                self.asm.load(Reg::R1, bucket, 8, false);
                self.asm.alu(AluOp::ShiftRight, Reg::R1, Reg::R0);
                self.asm.alu(AluOp::ShiftLeft, Reg::R0, i32::from(bits));
                self.asm.alu(AluOp::Add, Reg::R0, Reg::R1);
            }
            Scale::Linear { from, to, step } => {
                let (not_below, inside) = (self.asm.label(), self.asm.label());
                let signed = value.kind.is_signed();
                let condition = match signed || from < 0 || to < 0 {
                    true => Condition::GreaterOrEqual,
                    false => Condition::AboveOrEqual,
                };
                self.asm.mov(Reg::R1, Reg::R0);
                if from < 0 && !signed {
                    // Compared with a sign, it would be below zero.
                    self.asm.set(Reg::R0, u64::from(scale.steps()) + 1);
                    self.asm.branch(Condition::Less, Reg::R1, 0, end);
                }
                self.asm.set(Reg::R2, from.cast_unsigned());
                self.asm.branch(condition, Reg::R1, Reg::R2, not_below);
                self.asm.mov(Reg::R0, 0);
                self.asm.jump(end);
                self.asm.place(not_below);
                self.asm.set(Reg::R0, u64::from(scale.steps()) + 1);
                self.asm.set(Reg::R3, to.cast_unsigned());
                self.asm.branch(condition, Reg::R1, Reg::R3, end);
                self.asm.place(inside);
                self.asm.alu(AluOp::Sub, Reg::R1, Reg::R2);
                self.asm.set(Reg::R3, step.cast_unsigned());
                self.asm.alu(AluOp::Div, Reg::R1, Reg::R3);
                self.asm.mov(Reg::R0, Reg::R1);
                self.asm.alu(AluOp::Add, Reg::R0, 1);
            }
        }
        self.asm.place(end);
        if keys.is_empty() {
            self.asm.mov(Reg::R2, Reg::R0);
            self.asm.map(Reg::R1, map);
            self.asm.mov(Reg::R3, 1);
            self.asm.call(Helper::Add);
            return Ok(());
        }
        self.asm.store(bucket, 8, Reg::R0);
        let place = self.key_in_stack(map, keys, 2, span)?;
        let shapes = self.values.tables.maps[map as usize].keys.iter().flatten();
        let bytes: u32 = shapes.map(Shape::bytes).sum();
        self.asm.load(Reg::R0, bucket, 8, false);
        self.asm.store(place.at(bytes), 2, Reg::R0);
        self.asm.map(Reg::R1, map);
        self.asm.address(Reg::R2, place);
        self.asm.mov(Reg::R3, 1);
        self.asm.call(Helper::AddByKey);
        Ok(())
    }

    /// Counts a value, and adds it to the sum or compares it with the most.
    pub(crate) fn gather(
        &mut self,
        map: u32,
        class: &Class,
        keys: &[Val],
        value: &Number,
        skip: Label,
        span: Span,
    ) -> Lowered<()> {
        let kept = self.values.memory.take(8);
        self.number(value);
        if let Class::Most { signed } | Class::Least { signed } = class {
            self.turn(*signed, matches!(class, Class::Least { .. }));
        }
        self.asm.store(kept, 8, Reg::R0);
        if keys.is_empty() {
            let index = self.values.memory.take(8);
            // The verifier must know the index.
            self.asm.push(Insn::Store {
                base: index.base,
                offset: index.offset,
                size: Size::B4,
                value: 0.into(),
            });
            self.asm.map(Reg::R1, map);
            self.asm.address(Reg::R2, index);
            self.asm.call(Helper::MapLookup);
            self.asm.mov(Reg::R1, 1);
            self.asm.push(Insn::Atomic {
                op: AtomicOp::Add { fetch: false },
                base: Reg::R0,
                offset: 0,
                size: Size::B8,
                reg: Reg::R1,
            });
        } else {
            let place = self.key_in_stack(map, keys, 0, span)?;
            self.asm.map(Reg::R1, map);
            self.asm.address(Reg::R2, place);
            self.asm.mov(Reg::R3, 1);
            self.asm.call(Helper::AddByKey);
            self.asm.map(Reg::R1, map);
            self.asm.address(Reg::R2, place);
            self.asm.call(Helper::MapLookup);
            self.asm.branch(Condition::Equal, Reg::R0, 0, skip);
        }
        let total = Place {
            base: Reg::R8,
            offset: 8,
        };
        self.asm.mov(Reg::R8, Reg::R0);
        self.asm.load(Reg::R2, kept, 8, false);
        match class {
            Class::Most { .. } | Class::Least { .. } => self.keep_greatest(total, skip),
            _ => self.add_to(total, Reg::R2),
        }
        Ok(())
    }

    /// Turns `r0` so that the greatest is wanted, and zero is the least.
    pub(super) fn turn(&mut self, signed: bool, least: bool) {
        if signed {
            self.asm.set(Reg::R1, 1 << 63);
            self.asm.alu(AluOp::Xor, Reg::R0, Reg::R1);
        }
        if least {
            self.asm.alu(AluOp::Xor, Reg::R0, -1);
        }
    }

    /// Stores `r2` in a word of a value if it is greater, and goes to a label.
    pub(super) fn keep_greatest(&mut self, place: Place, end: Label) {
        // An interrupt may have changed it in between. Then it is compared once more, and so on:
        // there is an end for the verifier alone, because each time takes another interrupt in the
        // same few instructions.
        const MOST_TIMES: i32 = 16;
        let again = self.asm.label();
        self.asm.mov(Reg::R4, 0);
        self.asm.place(again);
        self.asm.load(Reg::R0, place, 8, false);
        self.asm
            .branch(Condition::AboveOrEqual, Reg::R0, Reg::R2, end);
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm.mov(Reg::R3, Reg::R2);
        self.asm.push(Insn::Atomic {
            op: AtomicOp::CompareExchange,
            base: place.base,
            offset: place.offset,
            size: Size::B8,
            reg: Reg::R3,
        });
        self.asm.branch(Condition::Equal, Reg::R0, Reg::R1, end);
        self.asm.alu(AluOp::Add, Reg::R4, 1);
        self.asm
            .branch(Condition::Below, Reg::R4, MOST_TIMES, again);
    }

    /// Takes a histogram or a series away: each of its parts is a key, or an index.
    pub(crate) fn delete_parts(
        &mut self,
        map: u32,
        parts: u32,
        key: usize,
        span: Span,
    ) -> Lowered<()> {
        const MOST: u32 = 256;
        if parts > MOST {
            return Err(Diagnostic::new(
                span,
                format!(
                    "this map has {parts} parts for each key; those of at most {MOST} can be \
                     deleted by the key"
                ),
                "use a larger step, or clear the whole map: clear(@name)",
            ));
        }
        let (_, values, key_span) = self.values.keys[key].clone();
        let place = self.key_in_stack(map, &values, 2, key_span)?;
        let shapes = self.values.tables.maps[map as usize].keys.iter().flatten();
        let bytes: u32 = shapes.map(Shape::bytes).sum();
        let counter = self.values.memory.take(8);
        let next = self.asm.label();
        // The verifier sees the count, so that it sees the end.
        self.asm.store_plain(counter, 0);
        self.asm.place(next);
        self.asm.load(Reg::R0, counter, 8, false);
        match values.is_empty() {
            true => self.asm.store(place, 8, Reg::R0),
            false => self.asm.store(place.at(bytes), 2, Reg::R0),
        }
        self.asm.map(Reg::R1, map);
        self.asm.address(Reg::R2, place);
        self.asm.call(Helper::DeleteOfCpus);
        self.asm.load(Reg::R0, counter, 8, false);
        self.asm.alu(AluOp::Add, Reg::R0, 1);
        self.asm.store_register_plain(counter, Reg::R0);
        self.asm
            .branch(Condition::Below, Reg::R0, parts as i32, next);
        Ok(())
    }
}
