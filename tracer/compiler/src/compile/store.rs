//! Instructions that store values, compare texts and make keys.

use alloc::{boxed::Box, format, string::String, vec::Vec};

use bpf::{AluOp, Condition, Helper, Reg};
use trace_interface::shape::Shape;
use trace_language::{Diagnostic, tree::Span};

use super::{
    body::Body,
    expression::{Counted, Kind, Lowered, Val},
    rust::Object,
};
use crate::{
    asm::{Asm, Label, Place},
    number::{Number, Space, Stores, Test},
};

/// Bytes of a task's name.
const COMM_BYTES: u32 = 16;

impl Stores for Body<'_, '_> {
    fn asm(&mut self) -> &mut Asm {
        &mut self.asm
    }

    fn store_key(&mut self, stored: usize) -> Place {
        let (map, values, span) = self.keys[stored].clone();
        match self.key_in_stack(map, &values, 0, span) {
            Ok(place) => place,
            Err(error) => {
                self.c.error(error);
                Place::stack(-8)
            }
        }
    }

    fn branch_on_text(&mut self, comparison: usize, is: bool, label: Label) {
        let (left, right, spans) = self.texts[comparison].clone();
        if let Err(error) = self.compare_texts(&left, &right, spans, is, label) {
            self.c.error(error);
        }
    }
}

impl Body<'_, '_> {
    /// Goes to `label` if the test comes out as `is`.
    pub(super) fn branch_on(&mut self, test: &Test, is: bool, label: Label) {
        self.branch(test, is, label);
    }

    /// Calculates a number once, into the stack.
    pub(super) fn keep(&mut self, number: &Number) -> Number {
        if number.is_cheap() {
            return number.clone();
        }
        let place = Place::stack(self.asm.take(8));
        self.number(number);
        self.asm.store(place, 8, Reg::R0);
        Number::Own(place)
    }

    pub(super) fn store_number(&mut self, number: &Number, to: Place, bytes: u8) {
        if let Some(constant) = number.constant() {
            self.asm.store_constant(to, bytes, constant);
            return;
        }
        self.number(number);
        self.asm.store(to, bytes, Reg::R0);
    }

    pub(super) fn store_tag(&mut self, to: Place, bytes: u8, number: u64) {
        self.asm.store_constant(to, bytes, number);
    }

    /// An integer of the source is a number like any other.
    pub(super) fn simplified(&mut self, value: Val, span: Span) -> Val {
        match &value {
            Val::Object(object) if self.is_scalar(object) => {
                match self.object_number(object, span) {
                    Ok(counted) => Val::Number(counted),
                    Err(_) => value,
                }
            }
            _ => value,
        }
    }

    fn is_scalar(&self, object: &Object) -> bool {
        use trace_interface::symbols::Type;
        match &*self.c.describe(object.type_id) {
            Type::Integer { bytes, .. } => *bytes <= 8,
            Type::Boolean | Type::Character | Type::Pointer { .. } => true,
            _ => false,
        }
    }

    /// How a value is stored. `may_miss`: with a mark whether it is there.
    pub(super) fn shape(&mut self, value: &Val, may_miss: bool) -> Shape {
        let (shape, present) = match value {
            Val::Number(Counted {
                kind: Kind::Literal,
                number,
                ..
            }) if number
                .constant()
                .is_some_and(|number| number.cast_signed() < 0) =>
            {
                return Shape::Signed(8);
            }
            Val::Number(counted) => (counted.kind.shape(), Some(&counted.present)),
            Val::Literal(text) => {
                let most = self.c.options.text_bytes.max(8);
                let bytes = (text.len() as u32 + 1).next_multiple_of(8).min(most);
                return Shape::Text(bytes);
            }
            Val::Comm => return Shape::Text(COMM_BYTES),
            Val::Text { most, present, .. } => {
                (Shape::Text(most.next_multiple_of(8)), Some(present))
            }
            Val::Bytes { most, .. } => return Shape::Bytes(*most),
            Val::Object(object) => (self.object_shape(object), Some(&object.present)),
            Val::Stored { shape, .. } | Val::Element { shape, .. } => return shape.clone(),
            Val::Tuple(items) => {
                return Shape::Tuple(
                    items
                        .iter()
                        .map(|item| self.shape(item, may_miss))
                        .collect(),
                );
            }
        };
        match present {
            Some(Test::Constant(true)) | None => shape,
            Some(_) if may_miss => Shape::Maybe(alloc::boxed::Box::new(shape)),
            Some(_) => shape,
        }
    }

    /// Whether a value is there at all.
    pub(super) fn present(value: &Val) -> Test {
        match value {
            Val::Number(counted) => counted.present.clone(),
            Val::Object(object) => object.present.clone(),
            Val::Text { present, .. } => present.clone(),
            Val::Tuple(items) => items
                .iter()
                .map(Self::present)
                .fold(Test::Constant(true), Test::and),
            _ => Test::Constant(true),
        }
    }

    /// Stores a value in a shape that fits it: its own, or one of a longer text.
    pub(super) fn store(
        &mut self,
        value: &Val,
        to: Place,
        shape: &Shape,
        span: Span,
    ) -> Lowered<()> {
        let mark = self.asm.mark();
        match (value, shape) {
            (_, Shape::Maybe(of)) => {
                let present = Self::present(value);
                let no = self.asm.label();
                // The stack must look the same on both ways.
                let before = core::mem::replace(&mut self.asm.forgetful, true);
                self.asm.fill(to, shape.bytes());
                self.branch_on(&present, false, no);
                let stored = self.store(value, to.at(1), of, span);
                self.asm.store_constant(to, 1, 1);
                self.asm.place(no);
                self.asm.forgetful = before;
                stored?;
            }
            (Val::Number(counted), shape) => {
                let bytes = match shape {
                    Shape::Character => 4,
                    Shape::Unsigned(bytes) | Shape::Signed(bytes) => *bytes,
                    _ if shape.bytes() == 8 => 8,
                    _ => return Err(self.does_not_fit(span)),
                };
                self.store_number(&counted.number, to, bytes);
            }
            (Val::Literal(text), Shape::Text(bytes)) => self.store_literal(text, to, *bytes),
            (Val::Literal(text), Shape::Counted(most)) => {
                self.asm.store_constant(to, 8, text.len() as u64);
                self.store_literal(text, to.at(8), most + 1);
            }
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
                self.store_memory((*space, address), &length, most, to.at(8));
            }
            // All of it is missing.
            (Val::Object(_), shape) if shape.is_lost() => return Err(self.missing(span)),
            (Val::Object(object), shape) => {
                if let Shape::Text(bytes) = shape
                    && let Some((address, length)) = self.text_of(object, span)?
                {
                    let length = self.keep(&length);
                    self.store_memory((object.space(), &address), &length, *bytes, to);
                } else {
                    let before = self.asm.forgetful;
                    if shape.varies() {
                        self.asm.forgetful = true;
                        self.asm.fill(to, shape.bytes());
                    }
                    let stored = match shape {
                        // In a key they may be shorter than elsewhere.
                        Shape::Counted(most) | Shape::Bytes(most) => {
                            self.store_run(object, *most, to, span)
                        }
                        _ => self.store_object(object, to, 0, span),
                    };
                    self.asm.forgetful = before;
                    stored?;
                }
            }
            (Val::Stored { place, shape: from }, shape) => {
                let bytes = from.bytes().min(shape.bytes());
                self.asm.copy(*place, to, bytes);
                if bytes < shape.bytes() {
                    self.asm.zero(to.at(bytes), shape.bytes() - bytes);
                }
            }
            (
                Val::Element {
                    map,
                    key,
                    shape: from,
                },
                shape,
            ) => {
                let bytes = from.bytes().min(shape.bytes());
                self.asm.fill(to, shape.bytes());
                let key = crate::number::Key { stored: *key };
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
            (Val::Tuple(items), Shape::Tuple(shapes)) if items.len() == shapes.len() => {
                let mut place = to;
                for (item, shape) in items.iter().zip(shapes) {
                    self.store(item, place, shape, span)?;
                    place = place.at(shape.bytes());
                }
            }
            _ => return Err(self.does_not_fit(span)),
        }
        self.asm.release(mark);
        Ok(())
    }

    fn does_not_fit(&self, span: Span) -> Diagnostic {
        Diagnostic::new(
            span,
            "this value is of another type than those that were stored there before",
            "use another map for it",
        )
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

    /// A text that ends with a NUL, of the kernel's or of the task's memory.
    fn read_text(&mut self, address: &Number, to: Place, bytes: u32) {
        let helpers = (Helper::ReadKernelStr, Helper::ReadUserStr);
        self.read(helpers, address, to, bytes);
    }

    /// The pointers of an array behind each other, up to the first null, at most `count`. Zeros
    /// follow, and nothing behind the null is read.
    pub(super) fn read_pointers(&mut self, array: &Number, count: u32) -> Vec<Number> {
        let array = self.keep(array);
        let words = Place::stack(self.asm.take(8 * count));
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
    fn read(&mut self, helpers: (Helper, Helper), address: &Number, to: Place, bytes: u32) {
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
    fn store_limited_text(
        &mut self,
        address: &Number,
        limit: &Number,
        most: u32,
        to: Place,
        bytes: u32,
    ) {
        let mark = self.asm.mark();
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
        self.asm.release(mark);
    }

    /// Copies `length` bytes of memory, at most `most`, a multiple of 8. Zeros follow. No byte
    /// behind the length is read.
    pub(super) fn store_memory(
        &mut self,
        (space, address): (Space, &Number),
        length: &Number,
        most: u32,
        to: Place,
    ) {
        let mark = self.asm.mark();
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
        self.asm.release(mark);
    }

    /// The word `at` bytes into the memory of a program, of which `length` bytes are copied. To
    /// `end` if it is behind them.
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

    pub(super) fn is_text(&self, value: &Val) -> bool {
        match value {
            Val::Object(object) => self.is_text_type(object.type_id),
            other => other.is_text(),
        }
    }

    /// Whether two texts are equal.
    pub(super) fn texts_equal(
        &mut self,
        left: Val,
        right: Val,
        spans: (Span, Span),
    ) -> Lowered<Test> {
        for (value, span) in [(&left, spans.0), (&right, spans.1)] {
            if !self.is_text(value) {
                return Err(Diagnostic::new(
                    span,
                    "a text can be compared with a text only",
                    "compare numbers with numbers; str(address) makes a text of an address",
                ));
            }
        }
        if let (Val::Literal(a), Val::Literal(b)) = (&left, &right) {
            return Ok(Test::Constant(a == b));
        }
        let present = Self::present(&left).and(Self::present(&right));
        self.texts.push((left, right, spans));
        Ok(present.and(Test::Text(self.texts.len() - 1)))
    }

    fn compare_texts(
        &mut self,
        left: &Val,
        right: &Val,
        spans: (Span, Span),
        is: bool,
        label: Label,
    ) -> Lowered<()> {
        let mark = self.asm.mark();
        let bytes = |this: &mut Self, value: &Val| match this.shape(value, false) {
            Shape::Text(bytes) | Shape::Counted(bytes) => bytes,
            _ => 8,
        };
        let bytes = bytes(self, left)
            .max(bytes(self, right))
            .next_multiple_of(8);
        // As texts that zeros fill up, both are equal if all their bytes are.
        let shape = Shape::Text(bytes);
        let end = self.asm.label();
        let other = if is { end } else { label };
        let (first, second) = match (left, right) {
            (Val::Literal(_), _) => (right, left),
            _ => (left, right),
        };
        let a = Place::stack(self.asm.take(bytes));
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
            let b = Place::stack(self.asm.take(bytes));
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
        self.asm.release(mark);
        Ok(())
    }

    /// Stores any text as one that zeros fill up.
    fn store_as_text(&mut self, value: &Val, to: Place, shape: &Shape, span: Span) -> Lowered<()> {
        if let Val::Stored {
            place,
            shape: Shape::Counted(most),
        } = value
        {
            let copied = (*most).min(shape.bytes());
            self.asm.copy(place.at(8), to, copied);
            self.asm.zero(to.at(copied), shape.bytes() - copied);
            return Ok(());
        }
        if let Val::Element {
            shape: Shape::Counted(most),
            ..
        } = value
        {
            let from = Shape::Counted(*most);
            let place = Place::stack(self.asm.take(from.bytes()));
            self.store(value, place, &from, span)?;
            let stored = Val::Stored { place, shape: from };
            return self.store_as_text(&stored, to, shape, span);
        }
        self.store(value, to, shape, span)
    }

    /// One of two texts.
    pub(super) fn chosen_text(
        &mut self,
        test: Test,
        then: Val,
        otherwise: Val,
        span: Span,
    ) -> Lowered<Val> {
        let bytes = |this: &mut Self, value: &Val| match this.shape(value, false) {
            Shape::Text(bytes) | Shape::Counted(bytes) => bytes,
            _ => 8,
        };
        let bytes = bytes(self, &then).max(bytes(self, &otherwise));
        let shape = Shape::Text(bytes);
        // It lives as long as the program runs, because nobody knows when it is used.
        let place = Place::stack(self.asm.take(bytes));
        self.asm.keep_all();
        let before = core::mem::replace(&mut self.asm.forgetful, true);
        let (no, end) = (self.asm.label(), self.asm.label());
        self.branch_on(&test, false, no);
        let mut stored = self.store_as_text(&then, place, &shape, span);
        self.asm.jump(end);
        self.asm.place(no);
        stored = stored.and(self.store_as_text(&otherwise, place, &shape, span));
        self.asm.place(end);
        self.asm.forgetful = before;
        stored?;
        Ok(Val::Stored { place, shape })
    }

    /// The key of a map in the stack, with room for `more` bytes behind it.
    pub(super) fn key_in_stack(
        &mut self,
        map: u32,
        values: &[Val],
        more: u32,
        span: Span,
    ) -> Lowered<Place> {
        let shapes = self.c.maps[map as usize].keys.clone().unwrap_or_default();
        let bytes: u32 = shapes.iter().map(Shape::bytes).sum();
        if values.is_empty() {
            // A map without keys that is a hash has this one.
            let place = Place::stack(self.asm.take(8));
            self.asm.store_constant(place, 8, 0);
            return Ok(place);
        }
        let first = Place::stack(self.asm.take(bytes + more));
        let mut place = first;
        for (value, shape) in values.iter().zip(&shapes) {
            self.store(value, place, shape, span)?;
            place = place.at(shape.bytes());
        }
        Ok(first)
    }
}

/// A value in messages.
pub(super) fn describe(shape: &Shape) -> String {
    match shape {
        Shape::Unsigned(_) | Shape::Signed(_) => "a number".into(),
        Shape::Boolean | Shape::Flag => "true or false".into(),
        Shape::Character => "a character".into(),
        Shape::Float(_) => "a floating-point number".into(),
        Shape::Address => "an address".into(),
        Shape::Symbol { .. } => "a function".into(),
        Shape::Probe => "a probe".into(),
        Shape::Stack { .. } => "a call stack".into(),
        Shape::Time { .. } => "a time".into(),
        Shape::Text(_) | Shape::Counted(_) => "a text".into(),
        Shape::Bytes(_) => "bytes".into(),
        Shape::List { .. } | Shape::Array { .. } | Shape::Items { .. } => "a list".into(),
        Shape::Tuple(items) => {
            let items: Vec<String> = items.iter().map(describe).collect();
            format!("a tuple ({})", items.join(", "))
        }
        Shape::Struct { name, .. } | Shape::Enum { name, .. } | Shape::Choice { name, .. } => {
            format!("a `{name}`")
        }
        Shape::Maybe(of) => describe(of),
        Shape::Unit => "nothing".into(),
        Shape::Unavailable => "a value that the compiler of the kernel left out".into(),
    }
}
