//! The instructions of a program, with what its values are.
//!
//! [`Code`] is what calculates and stores: the value of an expression comes from [`Values`], and
//! goes into registers and memory through [`Asm`]. Each file beside this one has the methods of one
//! subject; statements are above it, in [`super::Program`].
//!
//! EVALUATE-1. An expression is evaluated by [`Code::value`] and its kin only, which make the
//!     copies that its value needs before anything else is emitted (COPIES-1).

use core::ops::RangeInclusive;

use bpf::Reg;
use trace_language::tree::{Expression, Map as MapName, Span, TypeName};

use crate::{
    Lowered,
    asm::Asm,
    memory::Place,
    number::{Counted, Number, Test},
    values::{Copied, Val, Values, composite},
};

/// See the module's text.
pub(crate) struct Code<'c, 'a> {
    pub(crate) values: Values<'c, 'a>,
    pub(crate) asm: Asm,
}

/// A value as a variable keeps it.
pub(crate) fn kept(code: &mut Code<'_, '_>, value: Val, span: Span) -> Lowered<Val> {
    let value = composite::kept(&mut code.values, value, span);
    code.make_copies()?;
    Ok(value)
}

impl Code<'_, '_> {
    /// The value of an expression.
    pub(crate) fn value(&mut self, expression: &Expression) -> Lowered<Val> {
        let value = self.values.value(expression)?;
        self.make_copies()?;
        Ok(value)
    }

    /// A value as one of a type.
    pub(crate) fn cast(&mut self, to: &TypeName, value: Val, span: Span) -> Lowered<Val> {
        let value = self.values.cast_value(to, value, span)?;
        self.make_copies()?;
        Ok(value)
    }

    /// An expression as a number.
    pub(crate) fn count(&mut self, expression: &Expression) -> Lowered<Counted> {
        let counted = self.values.count(expression)?;
        self.make_copies()?;
        Ok(counted)
    }

    /// An expression as a condition.
    pub(crate) fn test(&mut self, expression: &Expression) -> Lowered<Test> {
        let test = self.values.test(expression)?;
        self.make_copies()?;
        Ok(test)
    }

    /// The keys of a map, and their number for expressions.
    pub(crate) fn key(&mut self, number: u32, map: &MapName) -> Lowered<usize> {
        let key = self.values.key(number, map)?;
        self.make_copies()?;
        Ok(key)
    }

    /// An argument that must be a number of the text.
    pub(crate) fn constant(
        &mut self,
        argument: &Expression,
        within: RangeInclusive<u32>,
    ) -> Lowered<u32> {
        let constant = self.values.constant(argument, within)?;
        self.make_copies()?;
        Ok(constant)
    }

    /// Makes the copies that an expression needs.
    fn make_copies(&mut self) -> Lowered<()> {
        for copy in core::mem::take(&mut self.values.copies) {
            match &copy.of {
                Copied::Value(value) => self.store(value, copy.to, &copy.shape, copy.span)?,
                Copied::Either(either) => self.store_either(either, &copy)?,
            }
        }
        Ok(())
    }

    /// Calculates a number once, into the stack.
    pub(crate) fn keep(&mut self, number: &Number) -> Number {
        if number.is_cheap() {
            return number.clone();
        }
        let place = self.values.memory.take(8);
        self.number(number);
        self.asm.store(place, 8, Reg::R0);
        Number::Own(place)
    }

    pub(crate) fn store_number(&mut self, number: &Number, to: Place, bytes: u8) {
        if let Some(constant) = number.constant() {
            self.asm.store_constant(to, bytes, constant);
            return;
        }
        self.number(number);
        self.asm.store(to, bytes, Reg::R0);
    }
}
