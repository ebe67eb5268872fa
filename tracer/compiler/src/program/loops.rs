//! Loops: with ends that the text tells, and open ones.
//!
//! A program must end. A loop whose end the text does not tell has a number of turns at most
//! ([`Site::turns`](crate::values::Site::turns)), and one that wants more is ended and counted.
//!
//! LOOPS-1. The verifier knows the count of turns, and no other path to it than the loop's own.
//!     After the loop the count is forgotten.

use alloc::{format, string::String, vec::Vec};

use bpf::{Condition, Helper, Reg};
use trace_interface::{shape::Shape, view::Class};
use trace_language::{
    Diagnostic,
    tree::{self, Block, Name, Span},
};

use super::Program;
use crate::{
    Lowered,
    asm::Label,
    memory::Place,
    number::{Counted, Kind, Number},
    values::{Holds, Home, SiteKind, Val, Variable, close_scope},
};

/// See [`Program::begin_loop`].
pub(crate) struct OpenLoop {
    /// Its number among all of the script.
    number: u32,
    counter: Place,
    pub(crate) top: Label,
    pub(crate) leave: Label,
    /// Where it is ended.
    over: Label,
}

impl Program<'_, '_> {
    /// A loop over numbers.
    pub(crate) fn turns(
        &mut self,
        variable: Option<&Name>,
        from: u64,
        to: u64,
        body: &Block,
        span: Span,
    ) -> Lowered<()> {
        const MOST_TURNS: u64 = 1024;
        let (first, last) = (from.cast_signed(), to.cast_signed());
        if last <= first {
            return Ok(());
        }
        let count = last.wrapping_sub(first).cast_unsigned();
        if count > MOST_TURNS {
            return Err(Diagnostic::new(
                span,
                format!("the loop goes round {count} times; at most {MOST_TURNS} are allowed"),
                "make it shorter",
            ));
        }
        // The count of turns is always kept from the verifier's forgetting, because its end is
        // seen by it. So the program cannot change it.
        let counter = self.values().memory.take_for_good(8);
        self.code.asm.store_plain(counter, from);
        let (top, next, end) = (
            self.code.asm.label(),
            self.code.asm.label(),
            self.code.asm.label(),
        );
        self.code.asm.place(top);
        self.values().scopes.push(Vec::new());
        if let Some(name) = variable {
            let value = Val::number(Number::Own(counter), Kind::SIGNED);
            self.declare(name, value, true, name.span)?;
        }
        self.loops.push((end, next));
        for statement in &body.statements {
            self.statement(statement);
        }
        self.loops.pop();
        close_scope(self.values());
        self.code.asm.place(next);
        self.code.asm.load(Reg::R0, counter, 8, false);
        self.code.asm.alu(bpf::AluOp::Add, Reg::R0, 1);
        self.code.asm.store_register_plain(counter, Reg::R0);
        match i32::try_from(last) {
            Ok(last) => self.code.asm.branch(Condition::Less, Reg::R0, last, top),
            Err(_) => {
                self.code.asm.set(Reg::R1, to);
                self.code.asm.branch(Condition::Less, Reg::R0, Reg::R1, top);
            }
        }
        self.code.asm.place(end);
        self.forget_turns(counter);
        Ok(())
    }

    /// A loop whose end the text does not tell: it has so many turns at most
    /// ([`Site::turns`](crate::values::Site::turns)), and the one that wants more is ended, and
    /// counted.
    pub(crate) fn begin_loop(&mut self, text: String) -> OpenLoop {
        self.values().tables.has_open_loop = true;
        let turns = self.values().site.turns;
        let number = self.values().tables.open_loop(text, turns);
        let counter = self.values().memory.take_for_good(8);
        self.code.asm.store_plain(counter, 0);
        let open = OpenLoop {
            number,
            counter,
            top: self.code.asm.label(),
            leave: self.code.asm.label(),
            over: self.code.asm.label(),
        };
        self.code.asm.place(open.top);
        open
    }

    /// Counts a turn, and leaves the loop if it is one too many.
    pub(crate) fn count_turn(&mut self, open: &OpenLoop) {
        let most = self.values().site.turns.min(u32::from(u16::MAX)) as i32;
        self.code.asm.load(Reg::R0, open.counter, 8, false);
        self.code
            .asm
            .branch(Condition::AboveOrEqual, Reg::R0, most, open.over);
        self.code.asm.alu(bpf::AluOp::Add, Reg::R0, 1);
        self.code.asm.store_register_plain(open.counter, Reg::R0);
    }

    /// The statements of a turn, which may have a variable. `next` is where `continue` leads to.
    pub(crate) fn loop_body(
        &mut self,
        open: &OpenLoop,
        next: Label,
        variable: Option<Variable>,
        body: &Block,
    ) -> Lowered<()> {
        self.values().scopes.push(variable.into_iter().collect());
        self.loops.push((open.leave, next));
        for statement in &body.statements {
            self.statement(statement);
        }
        self.loops.pop();
        close_scope(self.values());
        Ok(())
    }

    pub(crate) fn end_loop(&mut self, open: &OpenLoop) {
        self.code.asm.jump(open.top);
        self.code.asm.place(open.over);
        let map = self.values().tables.loop_counters();
        self.code.asm.map(Reg::R1, map);
        self.code.asm.set(Reg::R2, open.number.into());
        self.code.asm.mov(Reg::R3, 1);
        self.code.asm.call(Helper::Add);
        self.code.asm.place(open.leave);
        self.forget_turns(open.counter);
    }

    /// After a loop the verifier need not know how often it went round. If it did, it would walk
    /// all that follows once for each number of turns.
    fn forget_turns(&mut self, counter: Place) {
        let behind = self.code.asm.label();
        self.code.asm.opaque_zero(Reg::R4);
        self.code.asm.store_register_plain(counter, Reg::R4);
        // The verifier compares states where jumps lead to.
        self.code.asm.jump(behind);
        self.code.asm.place(behind);
    }

    /// `for ($variable : from..to)`, of which only the hit tells the bounds.
    pub(crate) fn range(
        &mut self,
        variable: &Name,
        from: Counted,
        to: Counted,
        body: &Block,
        text: String,
    ) -> Lowered<()> {
        let [at, end] = [from, to].map(|bound| {
            let place = self.values().memory.take_for_good(8);
            self.code.store_number(&bound.or_zero(), place, 8);
            place
        });
        let open = self.begin_loop(text);
        self.code.asm.load(Reg::R0, at, 8, false);
        self.code.asm.load(Reg::R1, end, 8, false);
        self.code
            .asm
            .branch(Condition::GreaterOrEqual, Reg::R0, Reg::R1, open.leave);
        self.count_turn(&open);
        // A turn has a number of its own, so that it may change it.
        let place = self.values().room(8, true);
        self.code.store_number(&Number::Own(at), place, 8);
        let variable = Variable {
            name: variable.text.clone(),
            place,
            holds: Holds::Number(Kind::SIGNED),
            made_at: variable.span.start,
            limit: None,
            home: Home::Own,
        };
        let next = self.code.asm.label();
        self.loop_body(&open, next, Some(variable), body)?;
        self.code.asm.place(next);
        self.code.asm.load(Reg::R0, at, 8, false);
        self.code.asm.alu(bpf::AluOp::Add, Reg::R0, 1);
        self.code.asm.store(at, 8, Reg::R0);
        self.end_loop(&open);
        Ok(())
    }

    /// `for ($kv : @map)`.
    pub(crate) fn for_each(
        &mut self,
        variable: &Name,
        map: &Name,
        body: &Block,
        span: Span,
    ) -> Lowered<()> {
        if !matches!(
            self.values().site.kind,
            SiteKind::Begin | SiteKind::End | SiteKind::Interval
        ) {
            return Err(Diagnostic::new(
                span,
                "a loop over a map takes long, and the code that hits this probe would wait for it",
                "use it in interval:, begin or end; a single key is read as @map[key] anywhere",
            ));
        }
        let number = self.values().tables.map(map);
        let known = &self.values().tables.maps[number as usize];
        let (Some(class), Some(shapes)) = (known.class.clone(), known.keys.clone()) else {
            // They are known the next time.
            return Ok(());
        };
        if shapes.is_empty() {
            return Err(Diagnostic::new(
                map.span,
                format!("`@{}` has no keys to loop over", map.text),
                format!("it is one value: @{}", map.text),
            ));
        }
        let key_bytes: u32 = shapes.iter().map(Shape::bytes).sum();
        let name = tree::Map {
            name: map.clone(),
            keys: Vec::new(),
            span: map.span,
        };
        // The variable is a pair. Its key is the one that the value is looked up by.
        let slot = self.values().memory.take(8);
        let bytes = match class {
            Class::Plain(ref shape) => shape.bytes(),
            _ => 8,
        };
        let pair = self.values().room(key_bytes + bytes, true);
        let mut parts = Vec::new();
        let mut place = pair;
        for shape in &shapes {
            parts.push(Val::Stored {
                place,
                shape: shape.clone(),
            });
            place = place.at(shape.bytes());
        }
        self.values().keys.push((number, parts, map.span));
        let key = self.values().keys.len() - 1;
        let value = self.values().value_of(number, &class, key, &name)?;
        let value_shape = self.values().shape(&value, false);
        self.code.asm.store_plain(slot, 0);
        let open = self.begin_loop(format!("for (${} : @{})", variable.text, map.text));
        self.code.asm.map(Reg::R1, number);
        self.code.asm.load(Reg::R2, slot, 8, false);
        self.code.asm.address(Reg::R3, pair);
        self.code.asm.set(Reg::R4, key_bytes.into());
        self.code.asm.call(Helper::NextKey);
        self.code
            .asm
            .branch(Condition::Equal, Reg::R0, 0, open.leave);
        self.code.asm.store_register_plain(slot, Reg::R0);
        self.count_turn(&open);
        self.code
            .store(&value, pair.at(key_bytes), &value_shape, span)?;
        let key_shape = match &shapes[..] {
            [only] => only.clone(),
            _ => Shape::Tuple(shapes),
        };
        let variable = Variable {
            name: variable.text.clone(),
            place: pair,
            holds: Holds::Stored(Shape::Tuple(alloc::vec![key_shape, value_shape])),
            made_at: variable.span.start,
            limit: None,
            home: Home::Own,
        };
        let before = self.values().scopes[0].len();
        self.loop_body(&open, open.top, Some(variable), body)?;
        // The map may have no keys. Then what is first assigned in the loop has no value after it.
        self.values().scopes[0].truncate(before);
        self.end_loop(&open);
        Ok(())
    }
}
