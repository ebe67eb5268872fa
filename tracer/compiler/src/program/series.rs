//! Instructions that gather values by intervals of time: `tseries`.
//!
//! Each CPU has a slot for each of the last intervals, with the number of the interval that it is
//! of. The first value of an interval takes the slot over; the others are gathered in it.

use bpf::{AluOp, AtomicOp, Condition, Helper, Insn, Reg, Size};
use trace_interface::{
    shape::Shape,
    view::{Gathered, Series},
};
use trace_language::{
    Diagnostic,
    tree::{Expression, Span},
};

use super::{Program, code::Code};
use crate::{Lowered, asm::Label, functions, memory::Place, number::Number, values::Val};

/// The most intervals of a series.
const MOST_INTERVALS: u64 = 1000;

const USAGE: &str = "for example tseries(value, 100ms, 20) or tseries(value, 1s, 60, \"avg\")";

impl Program<'_, '_> {
    /// What `tseries(value, interval, intervals, "sum")` says of its values.
    pub(super) fn series(&mut self, arguments: &[Expression], signed: bool) -> Lowered<Series> {
        let mut number = |index: usize, most: u64| {
            let argument = &arguments[index];
            let counted = self.code.count(argument)?;
            let constant = counted.number.constant();
            constant
                .filter(|number| (1..=most).contains(number))
                .ok_or_else(|| {
                    let cause = alloc::format!("this must be a number of the text, 1 to {most}");
                    Diagnostic::new(argument.span, cause, USAGE)
                })
        };
        let (nanoseconds, intervals) = (
            number(1, i64::MAX.cast_unsigned())?,
            number(2, MOST_INTERVALS)? as u32,
        );
        let gathered = match arguments.get(3) {
            None => Gathered::Last,
            Some(word) => match functions::text(word, "\"avg\"")? {
                "avg" => Gathered::Average,
                "sum" => Gathered::Sum,
                "max" => Gathered::Most,
                "min" => Gathered::Least,
                _ => {
                    return Err(Diagnostic::new(
                        word.span,
                        "values are not gathered so",
                        "write \"avg\", \"max\", \"min\" or \"sum\", or nothing for the last one",
                    ));
                }
            },
        };
        Ok(Series {
            nanoseconds,
            intervals,
            gathered,
            signed,
        })
    }
}

impl Code<'_, '_> {
    /// Gathers a value in the slot of the present interval.
    pub(super) fn gather_in_time(
        &mut self,
        map: u32,
        series: &Series,
        keys: &[Val],
        value: &Number,
        skip: Label,
        span: Span,
    ) -> Lowered<()> {
        let kept = self.values.memory.take(8);
        self.number(value);
        let order = match series.gathered {
            Gathered::Most => Some(false),
            Gathered::Least => Some(true),
            _ => None,
        };
        if let Some(least) = order {
            self.turn(series.signed, least);
        }
        self.asm.store(kept, 8, Reg::R0);
        let (now, interval) = (self.values.memory.take(8), self.values.memory.take(8));
        let clock = self.values.tables.clock();
        self.number(&Number::Nanoseconds { clock });
        self.asm.store(now, 8, Reg::R0);
        // Its number and 1, because zero is that of no interval.
        self.asm.set(Reg::R1, series.nanoseconds);
        self.asm.alu(AluOp::Div, Reg::R0, Reg::R1);
        self.asm.alu(AluOp::Add, Reg::R0, 1);
        self.asm.store(interval, 8, Reg::R0);
        let slot = match keys.is_empty() {
            true => self.values.memory.take(8),
            false => self.key_in_stack(map, keys, 2, span)?,
        };
        let shapes = self.values.tables.maps[map as usize].keys.iter().flatten();
        let bytes: u32 = shapes.map(Shape::bytes).sum();
        self.asm.load(Reg::R0, interval, 8, false);
        self.asm
            .alu(AluOp::Mod, Reg::R0, series.intervals.cast_signed());
        if keys.is_empty() {
            self.asm.store(slot, 8, Reg::R0);
        } else {
            self.asm.store(slot.at(bytes), 2, Reg::R0);
            // Makes the key if it is new.
            self.asm.map(Reg::R1, map);
            self.asm.address(Reg::R2, slot);
            self.asm.mov(Reg::R3, 0);
            self.asm.call(Helper::AddByKey);
        }
        self.asm.map(Reg::R1, map);
        self.asm.address(Reg::R2, slot);
        self.asm.call(Helper::MapLookup);
        self.asm.branch(Condition::Equal, Reg::R0, 0, skip);
        self.asm.mov(Reg::R8, Reg::R0);
        let word = |number: i16| Place {
            base: Reg::R8,
            offset: 8 * number,
        };
        let same = self.asm.label();
        self.asm.load(Reg::R2, interval, 8, false);
        self.asm.load(Reg::R0, word(0), 8, false);
        self.asm.branch(Condition::Equal, Reg::R0, Reg::R2, same);
        self.asm.mov(Reg::R0, 0);
        self.asm.store(word(1), 8, Reg::R0);
        self.asm.store(word(2), 8, Reg::R0);
        self.asm.store(word(0), 8, Reg::R2);
        self.asm.place(same);
        self.asm.mov(Reg::R1, 1);
        self.add_to(word(1), Reg::R1);
        self.asm.load(Reg::R2, kept, 8, false);
        match series.gathered {
            Gathered::Sum | Gathered::Average => self.add_to(word(2), Reg::R2),
            Gathered::Last => self.asm.store(word(2), 8, Reg::R2),
            Gathered::Most | Gathered::Least => {
                let end = self.asm.label();
                self.keep_greatest(word(2), end);
                self.asm.place(end);
            }
        }
        self.asm.load(Reg::R0, now, 8, false);
        self.asm.store(word(3), 8, Reg::R0);
        Ok(())
    }

    /// Adds a register to a word of a value, in one step.
    pub(super) fn add_to(&mut self, place: Place, reg: Reg) {
        self.asm.push(Insn::Atomic {
            op: AtomicOp::Add { fetch: false },
            base: place.base,
            offset: place.offset,
            size: Size::B8,
            reg,
        });
    }
}
