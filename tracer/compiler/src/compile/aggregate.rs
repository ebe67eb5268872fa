//! Assignments to maps: counts, sums, histograms and plain values.

use alloc::{boxed::Box, format, vec::Vec};

use bpf::{AluOp, AtomicOp, Condition, Helper, Insn, Reg, Size};
use trace_interface::{
    shape::Shape,
    view::{Class, Scale},
};
use trace_language::{
    Diagnostic,
    tree::{Binary, Expression, ExpressionKind, Map as MapName, Span},
};

use super::{
    body::Body,
    expression::{Counted, Kind, Lowered, Val},
    store,
};
use crate::{
    asm::Place,
    number::{Key, Number, Stores, Test},
};

/// The most bytes of a key, and of a value of a hash.
const MOST_KEY: u32 = 64;
const MOST_VALUE: u32 = 256;
/// The most buckets of `lhist`.
const MOST_BUCKETS: u32 = 1000;

/// The functions that are assigned to maps.
const AGGREGATIONS: [&str; 8] = [
    "count", "sum", "min", "max", "avg", "stats", "hist", "lhist",
];

pub(super) fn is_aggregation(name: &str) -> bool {
    AGGREGATIONS.contains(&name)
}

/// The kind of a map, in messages.
fn class_name(class: &Class) -> &'static str {
    match class {
        Class::Count => "count()",
        Class::Sum { .. } => "sum()",
        Class::Average { .. } => "avg()",
        Class::Statistics { .. } => "stats()",
        Class::Most { .. } => "max()",
        Class::Least { .. } => "min()",
        Class::Histogram(Scale::Log2) => "hist()",
        Class::Histogram(_) => "lhist()",
        Class::Plain(_) => "a value",
    }
}

impl Body<'_, '_> {
    /// Notes what a map holds.
    fn set_class(&mut self, map: u32, class: Class, span: Span) -> Lowered<()> {
        let entry = &mut self.c.maps[map as usize];
        match &mut entry.class {
            None => {
                entry.class = Some(class);
                self.c.learned = true;
                Ok(())
            }
            Some(known) if *known == class => Ok(()),
            Some(Class::Plain(shape)) if matches!(class, Class::Plain(_)) => {
                let Class::Plain(new) = class else {
                    return Ok(());
                };
                match shape.merge(&new) {
                    Some(changed) => {
                        self.c.learned |= changed;
                        Ok(())
                    }
                    None => {
                        let message = format!(
                            "`@{}` holds {}, and this is {}",
                            entry.name.as_deref().unwrap_or(""),
                            store::describe(shape),
                            store::describe(&new)
                        );
                        Err(Diagnostic::new(span, message, "use another map"))
                    }
                }
            }
            // The same function with numbers of another sign.
            Some(known)
                if core::mem::discriminant(known) == core::mem::discriminant(&class)
                    && !matches!(known, Class::Histogram(_)) =>
            {
                Ok(())
            }
            Some(known) => {
                let message = format!(
                    "`@{}` is assigned {} elsewhere, and {} here",
                    entry.name.as_deref().unwrap_or(""),
                    class_name(known),
                    class_name(&class)
                );
                Err(Diagnostic::new(span, message, "use another map"))
            }
        }
    }

    /// A map of plain numbers, for `++`.
    pub(super) fn plain_map(&mut self, map: &MapName, kind: &Kind) -> Lowered<u32> {
        let number = self.c.map(&map.name);
        self.set_class(number, Class::Plain(kind.shape()), map.span)?;
        Ok(number)
    }

    /// The keys of a map, and their number for expressions.
    pub(super) fn key(&mut self, number: u32, map: &MapName) -> Lowered<usize> {
        let mut values = Vec::new();
        for key in &map.keys {
            let value = self.value(key)?;
            values.push(self.simplified(value, key.span));
        }
        let shapes: Vec<Shape> = values
            .iter()
            .map(|value| self.shape(value, false).for_key())
            .collect();
        for (shape, key) in shapes.iter().zip(&map.keys) {
            if shape.is_lost() {
                return Err(self.missing(key.span));
            }
        }
        let entry = &mut self.c.maps[number as usize];
        match &mut entry.keys {
            None => {
                entry.keys = Some(shapes);
                self.c.learned = true;
            }
            Some(known) if known.len() != shapes.len() => {
                let message = format!(
                    "`@{}` has {} keys elsewhere, and {} here",
                    map.name.text,
                    known.len(),
                    shapes.len()
                );
                return Err(Diagnostic::new(
                    map.span,
                    message,
                    "give it the same keys everywhere, or use another map",
                ));
            }
            Some(known) => {
                for ((known, new), key) in known.iter_mut().zip(&shapes).zip(&map.keys) {
                    match known.merge(new) {
                        Some(changed) => self.c.learned |= changed,
                        None => {
                            let message = format!(
                                "this key is {}; elsewhere it is {}",
                                store::describe(new),
                                store::describe(known)
                            );
                            return Err(Diagnostic::new(
                                key.span,
                                message,
                                "give the map keys of the same types everywhere",
                            ));
                        }
                    }
                }
            }
        }
        let entry = &self.c.maps[number as usize];
        let bytes: u32 = entry.keys.iter().flatten().map(Shape::bytes).sum();
        let bucket = match entry.class {
            Some(Class::Histogram(_)) => 2,
            _ => 0,
        };
        if bytes + bucket > MOST_KEY {
            return Err(Diagnostic::new(
                map.span,
                format!(
                    "the keys have {bytes} bytes; at most {} fit",
                    MOST_KEY - bucket
                ),
                "use fewer keys, a field of the value, or a shorter text: str(address, 16)",
            ));
        }
        if !map.keys.is_empty() && bytes == 0 {
            return Err(Diagnostic::new(
                map.span,
                "the key has no bytes",
                "use a map without keys",
            ));
        }
        self.keys.push((number, values, map.span));
        Ok(self.keys.len() - 1)
    }

    /// `@map[keys] = value`.
    pub(super) fn assign_map(
        &mut self,
        map: &MapName,
        operation: Option<Binary>,
        value: &Expression,
        span: Span,
    ) -> Lowered<()> {
        if let (None, ExpressionKind::Call { name, arguments }) = (operation, &value.kind)
            && is_aggregation(&name.text)
        {
            return self.aggregate(map, &name.text, arguments, value.span);
        }
        let number = self.c.map(&map.name);
        if let Some(operation) = operation {
            let old = Expression {
                kind: ExpressionKind::Map(map.clone()),
                span: map.span,
            };
            let with = self.count(value)?;
            let kind = match with.kind {
                Kind::Literal => Kind::SIGNED,
                ref kind => kind.clone(),
            };
            let class = &self.c.maps[number as usize].class;
            if !matches!(class, Some(Class::Plain(_))) {
                self.set_class(number, Class::Plain(kind.shape()), value.span)?;
            }
            let old = self.count(&old)?;
            if matches!(operation, Binary::Add | Binary::Subtract) {
                let key = self.key(number, map)?;
                let delta = match operation {
                    Binary::Add => with.number,
                    _ => Number::alu(AluOp::Sub, Number::Constant(0), with.number),
                };
                self.add_shared(number, key, &delta, &with.present);
                return Ok(());
            }
            let new = self.arithmetic(operation, old, with, (map.span, value.span, span))?;
            return self.put(number, map, new, value.span);
        }
        let new = self.value(value)?;
        let new = self.simplified(new, value.span);
        self.put(number, map, new, value.span)
    }

    /// Stores a value under a key.
    fn put(&mut self, number: u32, map: &MapName, value: Val, span: Span) -> Lowered<()> {
        let shape = self.shape(&value, false);
        if shape.bytes() > MOST_VALUE {
            return Err(Diagnostic::new(
                span,
                format!(
                    "this value has {} bytes; a map holds at most {MOST_VALUE}",
                    shape.bytes()
                ),
                "store a field of it, or print it",
            ));
        }
        self.set_class(number, Class::Plain(shape), span)?;
        if let Val::Number(counted) = &value {
            let kind = match &counted.kind {
                Kind::Literal => None,
                Kind::Integer { signed, .. } => Some(Kind::Integer {
                    bytes: 8,
                    signed: *signed,
                }),
                kind => Some(kind.clone()),
            };
            let entry = &mut self.c.maps[number as usize];
            match (&entry.kind, kind) {
                (None, Some(kind)) => {
                    entry.kind = Some(kind);
                    self.c.learned = true;
                }
                (Some(Kind::Boolean), Some(kind)) if kind != Kind::Boolean => {
                    entry.kind = Some(kind);
                    self.c.learned = true;
                }
                // An address of two types is one of none.
                (Some(Kind::Pointer { to: Some(a), space }), Some(Kind::Pointer { to: b, .. }))
                    if Some(*a) != b =>
                {
                    entry.kind = Some(Kind::Pointer {
                        to: None,
                        space: *space,
                    });
                    self.c.learned = true;
                }
                _ => {}
            }
        }
        let key = self.key(number, map)?;
        let present = self.keys_present(key).and(Body::present(&value));
        let skip = self.asm.label();
        self.branch_on(&present, false, skip);
        let Some(Class::Plain(shape)) = self.c.maps[number as usize].class.clone() else {
            return Ok(());
        };
        let bytes = shape.bytes().max(1).next_multiple_of(8);
        let stored = Place::stack(self.asm.take(bytes));
        let filled = shape.bytes() / 8 * 8;
        if filled < bytes {
            self.asm.store_constant(stored.at(filled), 8, 0);
        }
        self.store(&value, stored, &shape, span)?;
        let (_, values, key_span) = self.keys[key].clone();
        let place = self.key_in_stack(number, &values, 0, key_span)?;
        self.asm.map(Reg::R1, number);
        self.asm.address(Reg::R2, place);
        self.asm.address(Reg::R3, stored);
        self.asm.mov(Reg::R4, 0);
        self.asm.call(Helper::MapUpdate);
        self.asm.place(skip);
        Ok(())
    }

    /// Whether all keys are there.
    fn keys_present(&self, key: usize) -> Test {
        let (_, values, _) = &self.keys[key];
        values
            .iter()
            .map(Body::present)
            .fold(Test::Constant(true), Test::and)
    }

    /// Adds to a number that all CPUs share.
    fn add_shared(&mut self, number: u32, key: usize, delta: &Number, present: &Test) {
        let present = present.clone().and(self.keys_present(key));
        let skip = self.asm.label();
        self.branch_on(&present, false, skip);
        let delta = self.keep(delta);
        let place = self.store_key(key);
        self.number(&delta);
        self.asm.mov(Reg::R3, Reg::R0);
        self.asm.map(Reg::R1, number);
        self.asm.address(Reg::R2, place);
        self.asm.call(Helper::AddByKey);
        self.asm.place(skip);
    }

    /// The scale of `lhist(value, from, to, step)`.
    fn scale(&mut self, arguments: &[Expression], span: Span) -> Lowered<Scale> {
        let mut bound = |index: usize| {
            let argument = &arguments[index];
            let counted = self.count(argument)?;
            let number = counted.number.constant().map(u64::cast_signed);
            number.ok_or_else(|| {
                Diagnostic::new(
                    argument.span,
                    "this must be a number of the text",
                    "for example lhist(value, 0, 100, 10)",
                )
            })
        };
        let (from, to, step) = (bound(1)?, bound(2)?, bound(3)?);
        if step <= 0 || to <= from {
            return Err(Diagnostic::new(
                span,
                "the ranges of lhist begin below their end, and have a width above 0",
                "for example lhist(value, 0, 100, 10)",
            ));
        }
        let scale = Scale::Linear { from, to, step };
        match scale.steps() <= MOST_BUCKETS {
            true => Ok(scale),
            false => Err(Diagnostic::new(
                span,
                format!("these are more than {MOST_BUCKETS} ranges, which do not fit"),
                "use a larger step",
            )),
        }
    }

    /// `@map[keys] = sum(value)` and the like.
    fn aggregate(
        &mut self,
        map: &MapName,
        function: &str,
        arguments: &[Expression],
        span: Span,
    ) -> Lowered<()> {
        let wanted = match function {
            "count" => 0,
            "lhist" => 4,
            _ => 1,
        };
        if arguments.len() != wanted && !(function == "hist" && arguments.len() == 2) {
            return Err(Diagnostic::new(
                span,
                format!(
                    "`{function}` takes {}, and there are {}",
                    super::builtin::arguments(wanted),
                    arguments.len()
                ),
                match function {
                    "count" => "write count()",
                    "lhist" => "write lhist(value, from, to, step)",
                    _ => "give it the value",
                },
            ));
        }
        if function == "hist" && arguments.len() == 2 {
            return Err(Diagnostic::new(
                arguments[1].span,
                "hist has one bucket for each power of two, and no finer ones",
                "use lhist(value, from, to, step)",
            ));
        }
        let number = self.c.map(&map.name);
        let value = match arguments.first() {
            Some(argument) => Some(self.count(argument)?),
            None => None,
        };
        let signed = value.as_ref().is_some_and(|value| value.kind.is_signed());
        let class = match function {
            "count" => Class::Count,
            "sum" => Class::Sum { signed },
            "avg" => Class::Average { signed },
            "stats" => Class::Statistics { signed },
            "min" => Class::Least { signed },
            "max" => Class::Most { signed },
            "hist" => Class::Histogram(Scale::Log2),
            _ => Class::Histogram(self.scale(arguments, span)?),
        };
        self.set_class(number, class, span)?;
        let class = self.c.maps[number as usize]
            .class
            .clone()
            .unwrap_or(Class::Count);
        let key = self.key(number, map)?;
        let mut present = self.keys_present(key);
        if let Some(value) = &value {
            present = present.and(value.present.clone());
        }
        let skip = self.asm.label();
        self.branch_on(&present, false, skip);
        let (_, keys, key_span) = self.keys[key].clone();
        match (&class, value) {
            (Class::Histogram(scale), Some(value)) => {
                self.count_in_bucket(number, *scale, &keys, value, key_span)?;
            }
            (Class::Count, _) | (_, None) => {
                if keys.is_empty() {
                    self.asm.map(Reg::R1, number);
                    self.asm.mov(Reg::R2, 0);
                    self.asm.mov(Reg::R3, 1);
                    self.asm.call(Helper::Add);
                } else {
                    let place = self.key_in_stack(number, &keys, 0, key_span)?;
                    self.asm.map(Reg::R1, number);
                    self.asm.address(Reg::R2, place);
                    self.asm.mov(Reg::R3, 1);
                    self.asm.call(Helper::AddByKey);
                }
            }
            (class, Some(value)) => {
                self.gather(number, class, &keys, &value.number, skip, key_span)?;
            }
        }
        self.asm.place(skip);
        Ok(())
    }

    /// Counts in the bucket of a value.
    fn count_in_bucket(
        &mut self,
        map: u32,
        scale: Scale,
        keys: &[Val],
        value: Counted,
        span: Span,
    ) -> Lowered<()> {
        let bucket = Place::stack(self.asm.take(8));
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
            Scale::Linear { from, to, step } => {
                let (not_below, inside) = (self.asm.label(), self.asm.label());
                let signed = value.kind.is_signed();
                let condition = match signed || from < 0 || to < 0 {
                    true => Condition::GreaterOrEqual,
                    false => Condition::AboveOrEqual,
                };
                self.asm.mov(Reg::R1, Reg::R0);
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
        let shapes = self.c.maps[map as usize].keys.iter().flatten();
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
    fn gather(
        &mut self,
        map: u32,
        class: &Class,
        keys: &[Val],
        value: &Number,
        skip: crate::asm::Label,
        span: Span,
    ) -> Lowered<()> {
        let kept = Place::stack(self.asm.take(8));
        self.number(value);
        match class {
            Class::Most { signed } | Class::Least { signed } => {
                // Turned so that the greatest is wanted, and zero is the least.
                if *signed {
                    self.asm.set(Reg::R1, 1 << 63);
                    self.asm.alu(AluOp::Xor, Reg::R0, Reg::R1);
                }
                if matches!(class, Class::Least { .. }) {
                    self.asm.alu(AluOp::Xor, Reg::R0, -1);
                }
            }
            _ => {}
        }
        self.asm.store(kept, 8, Reg::R0);
        if keys.is_empty() {
            let index = Place::stack(self.asm.take(8));
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
            Class::Most { .. } | Class::Least { .. } => {
                // An interrupt may have changed it in between. Then it is compared once more, and
                // so on: there is an end for the verifier alone, because each time takes another
                // interrupt in the same few instructions.
                const MOST_TIMES: i32 = 16;
                let again = self.asm.label();
                self.asm.mov(Reg::R4, 0);
                self.asm.place(again);
                self.asm.load(Reg::R0, total, 8, false);
                self.asm
                    .branch(Condition::AboveOrEqual, Reg::R0, Reg::R2, skip);
                self.asm.mov(Reg::R1, Reg::R0);
                self.asm.mov(Reg::R3, Reg::R2);
                self.asm.push(Insn::Atomic {
                    op: AtomicOp::CompareExchange,
                    base: Reg::R8,
                    offset: 8,
                    size: Size::B8,
                    reg: Reg::R3,
                });
                self.asm.branch(Condition::Equal, Reg::R0, Reg::R1, skip);
                self.asm.alu(AluOp::Add, Reg::R4, 1);
                self.asm
                    .branch(Condition::Below, Reg::R4, MOST_TIMES, again);
            }
            _ => self.asm.push(Insn::Atomic {
                op: AtomicOp::Add { fetch: false },
                base: Reg::R8,
                offset: 8,
                size: Size::B8,
                reg: Reg::R2,
            }),
        }
        Ok(())
    }

    /// `delete(@map[key])`.
    pub(super) fn delete(&mut self, map: &MapName) -> Lowered<()> {
        let number = self.c.map(&map.name);
        let key = self.key(number, map)?;
        let skip = self.asm.label();
        let present = self.keys_present(key);
        self.branch_on(&present, false, skip);
        match self.c.maps[number as usize].class.clone() {
            Some(Class::Histogram(scale)) => self.delete_buckets(number, scale, key, map.span)?,
            class => {
                let place = self.store_key(key);
                self.asm.map(Reg::R1, number);
                self.asm.address(Reg::R2, place);
                self.asm.call(match class {
                    Some(Class::Plain(_)) | None => Helper::MapDelete,
                    Some(_) => Helper::DeleteOfCpus,
                });
            }
        }
        self.asm.place(skip);
        Ok(())
    }

    /// Takes a histogram away: each of its buckets is a key, or an index.
    fn delete_buckets(&mut self, map: u32, scale: Scale, key: usize, span: Span) -> Lowered<()> {
        const MOST: u32 = 256;
        let buckets = scale.buckets();
        if buckets > MOST {
            return Err(Diagnostic::new(
                span,
                format!(
                    "this histogram has {buckets} buckets; one of at most {MOST} can be deleted \
                     by its key"
                ),
                "use a larger step, or clear the whole map: clear(@name)",
            ));
        }
        let (_, values, key_span) = self.keys[key].clone();
        let place = self.key_in_stack(map, &values, 2, key_span)?;
        let shapes = self.c.maps[map as usize].keys.iter().flatten();
        let bytes: u32 = shapes.map(Shape::bytes).sum();
        let counter = Place::stack(self.asm.take(8));
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
            .branch(Condition::Below, Reg::R0, buckets as i32, next);
        Ok(())
    }

    /// `zero(@map[key])`.
    pub(super) fn zero_key(&mut self, map: &MapName) -> Lowered<()> {
        let number = self.c.map(&map.name);
        let Some(Class::Plain(shape)) = self.c.maps[number as usize].class.clone() else {
            // A count that is zero is one that nothing was counted in.
            return self.delete(map);
        };
        let key = self.key(number, map)?;
        let skip = self.asm.label();
        let present = self.keys_present(key);
        self.branch_on(&present, false, skip);
        let bytes = shape.bytes().max(1).next_multiple_of(8);
        let zeros = Place::stack(self.asm.take(bytes));
        self.asm.zero(zeros, bytes);
        let place = self.store_key(key);
        self.asm.map(Reg::R1, number);
        self.asm.address(Reg::R2, place);
        self.asm.address(Reg::R3, zeros);
        // Only if the key is there.
        self.asm.mov(Reg::R4, 2);
        self.asm.call(Helper::MapUpdate);
        self.asm.place(skip);
        Ok(())
    }

    /// The value of a map of counts and the like, over all CPUs as they are at that moment; 0 if
    /// nothing was counted.
    pub(super) fn gathered(
        &self,
        map: u32,
        class: &Class,
        key: usize,
        name: &MapName,
    ) -> Lowered<Val> {
        let word = |word, greatest| Number::OfCpus {
            map,
            key: Box::new(Key { stored: key }),
            word,
            greatest,
        };
        let of_sign = |signed| match signed {
            true => Kind::SIGNED,
            false => Kind::UNSIGNED,
        };
        let (number, kind) = match class {
            Class::Count => (word(0, false), Kind::UNSIGNED),
            Class::Sum { signed } => (word(1, false), of_sign(*signed)),
            Class::Average { signed } => {
                let op = match signed {
                    true => AluOp::SignedDiv,
                    false => AluOp::Div,
                };
                let average = Number::alu(op, word(1, false), word(0, false));
                (average, of_sign(*signed))
            }
            Class::Most { signed } | Class::Least { signed } => {
                let mut number = word(1, true);
                // Turned back: see `gather`.
                if matches!(class, Class::Least { .. }) {
                    number = Number::alu(AluOp::Xor, number, Number::Constant(u64::MAX));
                }
                if *signed {
                    number = Number::alu(AluOp::Xor, number, Number::Constant(1 << 63));
                }
                let is_there = Test::not_zero(word(0, false));
                let number = Number::select(is_there, number, Number::Constant(0));
                (number, of_sign(*signed))
            }
            Class::Statistics { .. } => {
                return Err(Diagnostic::new(
                    name.span,
                    format!("`@{}` is of stats(), which is three values", name.name.text),
                    "print it, or keep the one that you need: count(), avg() or sum()",
                ));
            }
            Class::Histogram(_) | Class::Plain(_) => {
                return Err(Diagnostic::new(
                    name.span,
                    format!(
                        "`@{}` is a histogram, which is no value to calculate with",
                        name.name.text
                    ),
                    "print it, or count in another map: `@n = count();`",
                ));
            }
        };
        Ok(Val::number(number, kind))
    }

    /// Whether a map has a key.
    pub(super) fn has_key(&mut self, map: &MapName) -> Lowered<Test> {
        let number = self.c.map(&map.name);
        let class = self.c.maps[number as usize].class.clone();
        let key = self.key(number, map)?;
        let stored = Box::new(Key { stored: key });
        let is_there = match class {
            Some(Class::Histogram(_)) => {
                return Err(Diagnostic::new(
                    map.span,
                    "a histogram is kept by buckets, so there is no key by itself",
                    "count in another map by the same key: `@n[KEY] = count();`",
                ));
            }
            Some(Class::Plain(_)) | None => Number::HasKey {
                map: number,
                key: stored,
            },
            Some(_) => Number::OfCpus {
                map: number,
                key: stored,
                word: 0,
                greatest: false,
            },
        };
        Ok(self.keys_present(key).and(Test::not_zero(is_there)))
    }

    /// A value of a map, for `print(@map[key])`.
    pub(super) fn plain_element(&mut self, map: u32, key: usize, shape: &Shape) -> Val {
        let kind = self.c.maps[map as usize].kind.clone();
        match (kind, shape) {
            (Some(kind), _) => Val::number(
                Number::Element {
                    map,
                    key: Box::new(Key { stored: key }),
                },
                kind,
            ),
            (None, Shape::Unsigned(8) | Shape::Signed(8) | Shape::Flag) => Val::number(
                Number::Element {
                    map,
                    key: Box::new(Key { stored: key }),
                },
                match shape {
                    Shape::Signed(_) => Kind::SIGNED,
                    Shape::Flag => Kind::Boolean,
                    _ => Kind::UNSIGNED,
                },
            ),
            _ => Val::Element {
                map,
                key,
                shape: shape.clone(),
            },
        }
    }
}
