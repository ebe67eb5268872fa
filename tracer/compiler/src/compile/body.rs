//! One program: statements, variables, blocks.

use alloc::{
    format,
    rc::Rc,
    string::{String, ToString},
    vec::Vec,
};

use bpf::{Condition, Helper, Reg};
use trace_interface::{
    shape::Shape,
    symbols::{Enum, Type},
    view::Class,
};
use trace_language::{
    Diagnostic,
    tree::{
        self, Arm, Block, Expression, ExpressionKind, Name, Pattern, PatternKind, Span, Statement,
        StatementKind, Target,
    },
};

use super::{
    Compiler,
    expression::{Counted, Kind, Lowered, Val},
    names,
    rust::{At, Object, Origin, Piece},
    sources::EventSource,
};
use crate::{
    asm::{Asm, Label, Place},
    number::{Number, Test},
};

/// The kind of place that a program runs at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SiteKind {
    /// The first instruction of a function.
    Entry,
    /// Another instruction.
    Inside,
    Return,
    /// The entry of a call whose return is handled, too.
    SessionEntry,
    Begin,
    End,
    Interval,
    Profile,
}

/// Where a program runs, and how it is made.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) kind: SiteKind,
    pub(super) address: Option<u64>,
    /// The number of the probe's name.
    pub(super) probe: u16,
    pub(super) forgetful: bool,
    /// The most turns of a loop whose end the text does not tell.
    pub(super) turns: u32,
    /// Whose fields `args` has; else it has the arguments of the source.
    pub(super) source: Option<Rc<EventSource>>,
}

/// The data that the entry of a call keeps for its return.
#[derive(Default)]
pub(super) struct Shared {
    kept: Vec<(Number, i16)>,
    bytes: u32,
}

impl Shared {
    pub(super) fn bytes(&self) -> u32 {
        self.bytes
    }

    fn take(&mut self, bytes: u32) -> i16 {
        let offset = self.bytes.min(8192) as i16;
        self.bytes = self.bytes.saturating_add(bytes.next_multiple_of(8));
        offset
    }

    /// Where a number of the entry is kept.
    pub(super) fn keep(&mut self, number: Number) -> i16 {
        if let Some((_, offset)) = self.kept.iter().find(|(known, _)| *known == number) {
            return *offset;
        }
        let offset = self.take(8);
        self.kept.push((number, offset));
        offset
    }
}

/// A variable of the program.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    name: String,
    pub(super) place: Place,
    pub(super) holds: Holds,
}

/// The content of a variable.
#[derive(Clone, Debug)]
pub(super) enum Holds {
    Number(Kind),
    Stored(Shape),
    Object(Object),
}

/// A program that is not finished.
pub(super) struct Parts {
    pub(super) asm: Asm,
    pub(super) depends_on_place: bool,
    /// Where an entry goes whose call is not followed.
    declined: Option<Label>,
}

/// See [`Body::begin_loop`].
struct OpenLoop {
    /// Its number among all of the script.
    number: u32,
    counter: Place,
    top: Label,
    leave: Label,
    /// Where it is ended.
    over: Label,
}

/// See the module's text.
pub(super) struct Body<'c, 'a> {
    pub(super) c: &'c mut Compiler<'a>,
    pub(super) asm: Asm,
    pub(super) site: Site,
    pub(super) shared: &'c mut Shared,
    pub(super) depends_on_place: bool,
    /// Keys and texts that expressions name by number.
    pub(super) keys: Vec<(u32, Vec<Val>, Span)>,
    pub(super) texts: Vec<(Val, Val, (Span, Span))>,
    scopes: Vec<Vec<Variable>>,
    /// Where `break` and `continue` lead to.
    loops: Vec<(Label, Label)>,
    end: Label,
    declined: Option<Label>,
}

impl<'c, 'a> Body<'c, 'a> {
    pub(super) fn new(c: &'c mut Compiler<'a>, site: Site, shared: &'c mut Shared) -> Self {
        let mut asm = Asm::new(site.forgetful);
        let end = asm.label();
        Self {
            c,
            asm,
            site,
            shared,
            depends_on_place: false,
            keys: Vec::new(),
            texts: Vec::new(),
            scopes: alloc::vec![Vec::new()],
            loops: Vec::new(),
            end,
            declined: None,
        }
    }

    /// Goes on with a program.
    pub(super) fn resume(
        c: &'c mut Compiler<'a>,
        site: Site,
        shared: &'c mut Shared,
        parts: Parts,
    ) -> Self {
        let mut body = Self::new(c, site, shared);
        body.asm = parts.asm;
        body.depends_on_place = parts.depends_on_place;
        body.declined = parts.declined;
        body
    }

    /// Leaves the program for later, and its variables.
    pub(super) fn suspend(self) -> (Parts, Vec<Variable>) {
        let parts = Parts {
            asm: self.asm,
            depends_on_place: self.depends_on_place,
            declined: self.declined,
        };
        (parts, self.scopes.into_iter().next().unwrap_or_default())
    }

    /// Gives it the variables of the entry.
    pub(super) fn take_over(&mut self, variables: Vec<Variable>) {
        self.asm.shares |= !variables.is_empty();
        self.scopes[0] = variables;
    }

    /// Compiles predicate and statements. An entry is finished by [`Self::save`].
    pub(super) fn clause(&mut self, predicate: Option<&Expression>, body: &Block) {
        let is_entry = self.site.kind == SiteKind::SessionEntry;
        if let Some(predicate) = predicate {
            let no = if is_entry { self.asm.label() } else { self.end };
            match self.test(predicate) {
                Ok(test) => self.branch_on(&test, false, no),
                Err(error) => self.c.error(error),
            }
            self.declined = is_entry.then_some(no);
        }
        for statement in &body.statements {
            self.statement(statement);
        }
        if !is_entry {
            self.asm.place(self.end);
            self.asm.exit(0);
        } else {
            self.asm.place(self.end);
        }
    }

    /// Goes to the end of the block at once.
    pub(super) fn leave_block(&mut self) {
        self.asm.jump(self.end);
    }

    /// Ends an entry: keeps what the return wants of it.
    pub(super) fn save(&mut self) {
        for (number, offset) in self.shared.kept.clone() {
            self.asm.shares = true;
            let place = Place {
                base: Reg::R9,
                offset,
            };
            self.store_number(&number, place, 8);
        }
        self.asm.exit(0);
        if let Some(declined) = self.declined {
            self.asm.place(declined);
            self.asm.exit(1);
        }
    }

    /// The whole entry of a return that wants something of it.
    pub(super) fn only_save(&mut self) {
        self.save();
    }

    pub(super) fn find(&self, name: &str) -> Option<Variable> {
        let mut scopes = self.scopes.iter().rev();
        scopes.find_map(|scope| scope.iter().rev().find(|known| known.name == name).cloned())
    }

    pub(super) fn variable_names(&self) -> Vec<String> {
        let variables = self.scopes.iter().flatten();
        variables.map(|variable| variable.name.clone()).collect()
    }

    /// Room for a variable: it lives until the program ends, and begins with zero if some path may
    /// not set it.
    fn room(&mut self, bytes: u32, is_inner: bool) -> Place {
        if self.site.kind == SiteKind::SessionEntry {
            self.asm.shares = true;
            return Place {
                base: Reg::R9,
                offset: self.shared.take(bytes),
            };
        }
        let place = Place::stack(self.asm.take(bytes));
        self.asm.keep_all();
        if is_inner {
            self.asm.zero_first(place, bytes);
        }
        place
    }

    /// Makes a variable of a value. `own_block`: of the block, not of the whole clause.
    fn declare(&mut self, name: &Name, value: Val, own_block: bool, span: Span) -> Lowered<()> {
        let is_inner = self.scopes.len() > 1;
        let value = self.simplified(value, span);
        let (place, holds) = match value {
            Val::Number(counted) => {
                let place = self.room(8, is_inner);
                let number = Number::select(counted.present, counted.number, Number::Constant(0));
                self.store_number(&number, place, 8);
                let kind = match counted.kind {
                    Kind::Literal => Kind::SIGNED,
                    Kind::Integer { signed, .. } => Kind::Integer { bytes: 8, signed },
                    kind => kind,
                };
                (place, Holds::Number(kind))
            }
            Val::Object(object) if !self.is_text(&Val::Object(object.clone())) => {
                let object = self.hold(&object, is_inner);
                (Place::stack(0), Holds::Object(object))
            }
            value => {
                let mut shape = self.shape(&value, true);
                // Another text may be assigned later.
                if let Shape::Text(bytes) = &mut shape {
                    *bytes = (*bytes).max(self.c.options.text_bytes);
                }
                let place = self.room(shape.bytes().max(1), is_inner);
                self.store(&value, place, &shape, span)?;
                (place, Holds::Stored(shape))
            }
        };
        let variable = Variable {
            name: name.text.clone(),
            place,
            holds,
        };
        let scope = if own_block { self.scopes.len() - 1 } else { 0 };
        self.scopes[scope].push(variable);
        Ok(())
    }

    /// Keeps where an object is; what is in registers is kept itself.
    fn hold(&mut self, object: &Object, is_inner: bool) -> Object {
        let kept = |this: &mut Self, number: &Number| {
            if number.constant().is_some() {
                return number.clone();
            }
            let place = this.room(8, is_inner);
            this.store_number(number, place, 8);
            Number::Own(place)
        };
        let at = match &object.at {
            At::Memory {
                space,
                address,
                offset,
            } => At::Memory {
                space: *space,
                address: kept(self, address),
                offset: *offset,
            },
            At::Pieces { pieces, offset } => {
                let pieces = pieces.iter().map(|piece| Piece {
                    bytes: piece.bytes,
                    from: match &piece.from {
                        Origin::Memory(number) => Origin::Memory(kept(self, number)),
                        Origin::Value(number) => Origin::Value(kept(self, number)),
                        Origin::Missing => Origin::Missing,
                    },
                });
                At::Pieces {
                    pieces: pieces.collect::<Vec<_>>().into(),
                    offset: *offset,
                }
            }
        };
        let present = match &object.present {
            Test::Constant(is) => Test::Constant(*is),
            test => Test::not_zero(kept(self, &Number::test(test.clone()))),
        };
        Object {
            type_id: object.type_id,
            at,
            present,
            is_variant: object.is_variant,
        }
    }

    fn assign_variable(&mut self, name: &Name, value: Val, span: Span) -> Lowered<()> {
        let Some(variable) = self.find(&name.text) else {
            return self.declare(name, value, false, span);
        };
        let value = self.simplified(value, span);
        match (&variable.holds, value) {
            (Holds::Number(kind), Val::Number(counted)) => {
                let fits = match (kind, &counted.kind) {
                    (Kind::Stack { .. }, other) | (other, Kind::Stack { .. }) => kind == other,
                    _ => true,
                };
                if !fits {
                    return Err(Diagnostic::new(
                        span,
                        format!("`${}` holds something else than this call stack", name.text),
                        "use another variable",
                    ));
                }
                let number = Number::select(counted.present, counted.number, Number::Constant(0));
                self.store_number(&number, variable.place, 8);
                Ok(())
            }
            (Holds::Stored(shape), value) => {
                let shape = shape.clone();
                let mut merged = shape.clone();
                let new = self.shape(&value, true);
                match merged.merge(&new) {
                    Some(_) if merged.bytes() <= shape.bytes() || new.is_text() => {
                        self.store(&value, variable.place, &shape, span)
                    }
                    _ => Err(self.other_type(name, &shape, &new, span)),
                }
            }
            (Holds::Object(held), Val::Object(object)) if held.type_id == object.type_id => {
                self.assign_object(name, held, &object, span)
            }
            _ => Err(Diagnostic::new(
                span,
                format!("`${}` holds a value of another type", name.text),
                "use another variable",
            )),
        }
    }

    fn other_type(&self, name: &Name, shape: &Shape, new: &Shape, span: Span) -> Diagnostic {
        Diagnostic::new(
            span,
            format!(
                "`${}` holds {}, and this is {}",
                name.text,
                super::store::describe(shape),
                super::store::describe(new)
            ),
            "use another variable",
        )
    }

    fn assign_object(
        &mut self,
        name: &Name,
        held: &Object,
        object: &Object,
        span: Span,
    ) -> Lowered<()> {
        let not_again = || {
            Diagnostic::new(
                span,
                format!("`${}` cannot be given this value again", name.text),
                "use another variable",
            )
        };
        let (
            At::Memory {
                space: held_space,
                address: Number::Own(place),
                offset: 0,
            },
            At::Memory {
                space,
                address,
                offset,
            },
            Test::Constant(true),
            Test::Constant(true),
        ) = (&held.at, &object.at, &held.present, &object.present)
        else {
            return Err(not_again());
        };
        if held_space != space {
            return Err(not_again());
        }
        let address = Number::alu(
            bpf::AluOp::Add,
            address.clone(),
            Number::Constant(offset.cast_unsigned()),
        );
        self.store_number(&address, *place, 8);
        Ok(())
    }

    fn block(&mut self, block: &Block) {
        self.scopes.push(Vec::new());
        for statement in &block.statements {
            self.statement(statement);
        }
        self.scopes.pop();
    }

    pub(super) fn statement(&mut self, statement: &Statement) {
        let mark = self.asm.mark();
        if let Err(error) = self.try_statement(statement) {
            self.c.error(error);
        }
        self.asm.release(mark);
    }

    fn try_statement(&mut self, statement: &Statement) -> Lowered<()> {
        let span = statement.span;
        self.check_room(span)?;
        match &statement.kind {
            StatementKind::Assign {
                target,
                operation,
                value,
            } => match target {
                Target::Variable(name) => {
                    let new = match operation {
                        None => {
                            if let ExpressionKind::Call { name, .. } = &value.kind
                                && super::aggregate::is_aggregation(&name.text)
                            {
                                return Err(Diagnostic::new(
                                    value.span,
                                    format!("`{}` can be assigned to maps only", name.text),
                                    format!("write `@{} = …`", name.text),
                                ));
                            }
                            self.value(value)?
                        }
                        Some(operation) => {
                            let old = Expression {
                                kind: ExpressionKind::Variable(name.text.clone()),
                                span: name.span,
                            };
                            let old = self.count(&old)?;
                            let with = self.count(value)?;
                            self.arithmetic(*operation, old, with, (name.span, value.span, span))?
                        }
                    };
                    self.assign_variable(name, new, value.span)
                }
                Target::Map(map) => self.assign_map(map, *operation, value, span),
            },
            StatementKind::Let { variable, value } => {
                let new = match value {
                    Some(value) => self.value(value)?,
                    None => Val::number(Number::Constant(0), Kind::Literal),
                };
                let span = value.as_ref().map_or(variable.span, |value| value.span);
                self.declare(variable, new, true, span)
            }
            StatementKind::Expression(expression) => self.effect(expression),
            StatementKind::If {
                condition,
                then,
                otherwise,
            } => {
                let test = self.test(condition)?;
                let no = self.asm.label();
                self.branch_on(&test, false, no);
                self.block(then);
                match otherwise {
                    None => self.asm.place(no),
                    Some(otherwise) => {
                        let end = self.asm.label();
                        self.asm.jump(end);
                        self.asm.place(no);
                        self.block(otherwise);
                        self.asm.place(end);
                    }
                }
                Ok(())
            }
            StatementKind::Unroll { count, body } => self.turns(None, 0, *count, body, span),
            StatementKind::For {
                variable,
                from,
                to,
                body,
            } => {
                let (first, last) = (self.count(from)?, self.count(to)?);
                match (first.number.constant(), last.number.constant()) {
                    (Some(first), Some(last)) => {
                        self.turns(Some(variable), first, last, body, span)
                    }
                    _ => {
                        let text = format!("for (${} : {from}..{to})", variable.text);
                        self.range(variable, first, last, body, text)
                    }
                }
            }
            StatementKind::ForEach {
                variable,
                map,
                body,
            } => self.for_each(variable, map, body, span),
            StatementKind::While { condition, body } => {
                let open = self.begin_loop(format!("while ({condition})"));
                let test = self.test(condition)?;
                self.branch_on(&test, false, open.leave);
                self.count_turn(&open);
                self.loop_body(&open, open.top, None, body)?;
                self.end_loop(&open);
                Ok(())
            }
            StatementKind::Match { value, arms } => self.match_arms(value, arms),
            StatementKind::Return(_) => {
                self.leave_block();
                Ok(())
            }
            StatementKind::Break | StatementKind::Continue => {
                let Some((end, next)) = self.loops.last().copied() else {
                    return Err(Diagnostic::new(span, "there is no loop here", ""));
                };
                self.asm.jump(match statement.kind {
                    StatementKind::Break => end,
                    _ => next,
                });
                Ok(())
            }
        }
    }

    /// A loop over numbers.
    fn turns(
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
        let counter = Place::stack(self.asm.take(8));
        self.asm.keep_all();
        self.asm.store_plain(counter, from);
        let (top, next, end) = (self.asm.label(), self.asm.label(), self.asm.label());
        self.asm.place(top);
        self.scopes.push(Vec::new());
        if let Some(name) = variable {
            let value = Val::number(Number::Own(counter), Kind::SIGNED);
            self.declare(name, value, true, name.span)?;
        }
        self.loops.push((end, next));
        for statement in &body.statements {
            self.statement(statement);
        }
        self.loops.pop();
        self.scopes.pop();
        self.asm.place(next);
        self.asm.load(Reg::R0, counter, 8, false);
        self.asm.alu(bpf::AluOp::Add, Reg::R0, 1);
        self.asm.store_register_plain(counter, Reg::R0);
        match i32::try_from(last) {
            Ok(last) => self.asm.branch(Condition::Less, Reg::R0, last, top),
            Err(_) => {
                self.asm.set(Reg::R1, to);
                self.asm.branch(Condition::Less, Reg::R0, Reg::R1, top);
            }
        }
        self.asm.place(end);
        self.forget_turns(counter);
        Ok(())
    }

    /// A loop whose end the text does not tell: it has so many turns at most
    /// ([`Site::turns`]), and the one that wants more is ended, and counted.
    fn begin_loop(&mut self, text: String) -> OpenLoop {
        self.c.has_open_loop = true;
        let number = self.c.open_loop(text, self.site.turns);
        let counter = Place::stack(self.asm.take(8));
        self.asm.keep_all();
        self.asm.store_plain(counter, 0);
        let open = OpenLoop {
            number,
            counter,
            top: self.asm.label(),
            leave: self.asm.label(),
            over: self.asm.label(),
        };
        self.asm.place(open.top);
        open
    }

    /// Counts a turn, and leaves the loop if it is one too many.
    fn count_turn(&mut self, open: &OpenLoop) {
        let most = self.site.turns.min(u32::from(u16::MAX)) as i32;
        self.asm.load(Reg::R0, open.counter, 8, false);
        self.asm
            .branch(Condition::AboveOrEqual, Reg::R0, most, open.over);
        self.asm.alu(bpf::AluOp::Add, Reg::R0, 1);
        self.asm.store_register_plain(open.counter, Reg::R0);
    }

    /// The statements of a turn, which may have a variable. `next` is where `continue` leads to.
    fn loop_body(
        &mut self,
        open: &OpenLoop,
        next: Label,
        variable: Option<Variable>,
        body: &Block,
    ) -> Lowered<()> {
        self.scopes.push(variable.into_iter().collect());
        self.loops.push((open.leave, next));
        for statement in &body.statements {
            self.statement(statement);
        }
        self.loops.pop();
        self.scopes.pop();
        Ok(())
    }

    fn end_loop(&mut self, open: &OpenLoop) {
        self.asm.jump(open.top);
        self.asm.place(open.over);
        let map = self.c.loop_counters();
        self.asm.map(Reg::R1, map);
        self.asm.set(Reg::R2, open.number.into());
        self.asm.mov(Reg::R3, 1);
        self.asm.call(Helper::Add);
        self.asm.place(open.leave);
        self.forget_turns(open.counter);
    }

    /// Behind a loop the verifier need not know how often it went round. If it did, it would walk
    /// all that follows once for each number of turns.
    fn forget_turns(&mut self, counter: Place) {
        let behind = self.asm.label();
        self.asm.opaque_zero(Reg::R4);
        self.asm.store_register_plain(counter, Reg::R4);
        // The verifier compares states where jumps lead to.
        self.asm.jump(behind);
        self.asm.place(behind);
    }

    /// `for ($variable : from..to)`, of which only the hit tells the bounds.
    fn range(
        &mut self,
        variable: &Name,
        from: Counted,
        to: Counted,
        body: &Block,
        text: String,
    ) -> Lowered<()> {
        let whole =
            |counted: Counted| Number::select(counted.present, counted.number, Number::Constant(0));
        let [at, end] = [from, to].map(|bound| {
            let place = Place::stack(self.asm.take(8));
            self.asm.keep_all();
            self.store_number(&whole(bound), place, 8);
            place
        });
        let open = self.begin_loop(text);
        self.asm.load(Reg::R0, at, 8, false);
        self.asm.load(Reg::R1, end, 8, false);
        self.asm
            .branch(Condition::GreaterOrEqual, Reg::R0, Reg::R1, open.leave);
        self.count_turn(&open);
        // A turn has a number of its own, so that it may change it.
        let place = self.room(8, true);
        self.store_number(&Number::Own(at), place, 8);
        let variable = Variable {
            name: variable.text.clone(),
            place,
            holds: Holds::Number(Kind::SIGNED),
        };
        let next = self.asm.label();
        self.loop_body(&open, next, Some(variable), body)?;
        self.asm.place(next);
        self.asm.load(Reg::R0, at, 8, false);
        self.asm.alu(bpf::AluOp::Add, Reg::R0, 1);
        self.asm.store(at, 8, Reg::R0);
        self.end_loop(&open);
        Ok(())
    }

    /// `for ($kv : @map)`.
    fn for_each(&mut self, variable: &Name, map: &Name, body: &Block, span: Span) -> Lowered<()> {
        if !matches!(
            self.site.kind,
            SiteKind::Begin | SiteKind::End | SiteKind::Interval
        ) {
            return Err(Diagnostic::new(
                span,
                "a loop over a map takes long, and the code that hits this probe would wait for it",
                "use it in interval:, begin or end; a single key is read as @map[key] anywhere",
            ));
        }
        let number = self.c.map(map);
        let known = &self.c.maps[number as usize];
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
        let slot = Place::stack(self.asm.take(8));
        let bytes = match class {
            Class::Plain(ref shape) => shape.bytes(),
            _ => 8,
        };
        let pair = self.room(key_bytes + bytes, true);
        let mut parts = Vec::new();
        let mut place = pair;
        for shape in &shapes {
            parts.push(Val::Stored {
                place,
                shape: shape.clone(),
            });
            place = place.at(shape.bytes());
        }
        self.keys.push((number, parts, map.span));
        let key = self.keys.len() - 1;
        let value = self.value_of(number, &class, key, &name)?;
        let value_shape = self.shape(&value, false);
        self.asm.store_plain(slot, 0);
        let open = self.begin_loop(format!("for (${} : @{})", variable.text, map.text));
        self.asm.map(Reg::R1, number);
        self.asm.load(Reg::R2, slot, 8, false);
        self.asm.address(Reg::R3, pair);
        self.asm.set(Reg::R4, key_bytes.into());
        self.asm.call(Helper::NextKey);
        self.asm.branch(Condition::Equal, Reg::R0, 0, open.leave);
        self.asm.store_register_plain(slot, Reg::R0);
        self.count_turn(&open);
        self.store(&value, pair.at(key_bytes), &value_shape, span)?;
        let key_shape = match &shapes[..] {
            [only] => only.clone(),
            _ => Shape::Tuple(shapes),
        };
        let variable = Variable {
            name: variable.text.clone(),
            place: pair,
            holds: Holds::Stored(Shape::Tuple(alloc::vec![key_shape, value_shape])),
        };
        self.loop_body(&open, open.top, Some(variable), body)?;
        self.end_loop(&open);
        Ok(())
    }

    fn match_arms(&mut self, value: &Expression, arms: &[Arm]) -> Lowered<()> {
        let lowered = self.value(value)?;
        let end = self.asm.label();
        // It is calculated once.
        let lowered = match self.simplified(lowered, value.span) {
            Val::Number(counted) => Val::Number(Counted {
                number: self.keep(&counted.number),
                ..counted
            }),
            Val::Object(object) => Val::Object(self.hold(&object, self.scopes.len() > 1)),
            other => other,
        };
        for arm in arms {
            let next = self.asm.label();
            let mut test = Test::Constant(false);
            for pattern in &arm.patterns {
                test = test.or(self.pattern(&lowered, pattern, value.span)?);
            }
            self.branch_on(&test, false, next);
            self.scopes.push(Vec::new());
            for pattern in &arm.patterns {
                if let Err(error) = self.bind(&lowered, pattern) {
                    self.c.error(error);
                }
            }
            for statement in &arm.body.statements {
                self.statement(statement);
            }
            self.scopes.pop();
            self.asm.jump(end);
            self.asm.place(next);
        }
        self.asm.place(end);
        Ok(())
    }

    /// The variant that a pattern names.
    fn pattern_variant(&self, of: &Enum, name: &Name) -> Lowered<usize> {
        let last = name.text.rsplit("::").next().unwrap_or(&name.text);
        let found = of.variants.iter().position(|variant| variant.name == last);
        found.ok_or_else(|| {
            let variants = of.variants.iter().map(|variant| &*variant.name);
            let near = names::nearest(last, variants.clone());
            let all: Vec<String> = variants.map(ToString::to_string).collect();
            Diagnostic::new(
                name.span,
                format!("`{}` has no variant `{last}`", of.name),
                match near.is_empty() {
                    true => format!("it has {}", all.join(", ")),
                    false => names::did_you_mean(&near),
                },
            )
        })
    }

    fn pattern(&mut self, value: &Val, pattern: &Pattern, span: Span) -> Lowered<Test> {
        let equal = |this: &mut Self, number: u64| {
            let counted = this.as_number(value.clone(), span)?;
            Ok(Test::compare(
                Condition::Equal,
                counted.number,
                Number::Constant(number),
            ))
        };
        match &pattern.kind {
            PatternKind::Any => Ok(Test::Constant(true)),
            PatternKind::Integer(number) => equal(self, *number),
            PatternKind::Boolean(is) => equal(self, (*is).into()),
            PatternKind::String(text) => self.texts_equal(
                value.clone(),
                Val::Literal(text.clone()),
                (span, pattern.span),
            ),
            PatternKind::Variant { name, .. } => {
                let Val::Object(object) = value else {
                    return Err(Diagnostic::new(
                        pattern.span,
                        "this value is no enum, so it has no variants",
                        "match numbers, texts, true and false, or `_`",
                    ));
                };
                let Some(described) = self.enum_of(object) else {
                    return Err(Diagnostic::new(
                        pattern.span,
                        "this value is no enum, so it has no variants",
                        "match numbers, texts, true and false, or `_`",
                    ));
                };
                let Type::Enum(of) = &*described else {
                    return Ok(Test::Constant(false));
                };
                let variant = self.pattern_variant(of, name)?;
                let is = self.is_variant(object, of, variant, pattern.span)?;
                Ok(object.present.clone().and(is))
            }
        }
    }

    fn bind(&mut self, value: &Val, pattern: &Pattern) -> Lowered<()> {
        let (PatternKind::Variant { name, bindings }, Val::Object(object)) = (&pattern.kind, value)
        else {
            return Ok(());
        };
        let Some(described) = self.enum_of(object) else {
            return Ok(());
        };
        let Type::Enum(of) = &*described else {
            return Ok(());
        };
        let variant = self.pattern_variant(of, name)?;
        for binding in bindings {
            let field = self.variant_field(object, &of.variants[variant], &binding.field)?;
            self.declare(
                &binding.variable,
                Val::Object(field),
                true,
                binding.variable.span,
            )?;
        }
        Ok(())
    }
}
