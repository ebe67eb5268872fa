//! What a program does: its clause, statements and variables.
//!
//! ```text
//!   statements, loops, assign, effects ─► Program ─► Code: calculate, store, objects, texts, …
//!                                                      │
//!                                          Values: what an expression is      Asm: instructions
//! ```
//!
//! A clause with an entry and a return has two programs. The entry's is left open until the return
//! is made, because only then it is known what the entry has to keep.

pub(crate) mod aim;
mod assign;
pub(crate) mod blocks;
mod calculate;
mod code;
mod collections;
pub(crate) mod effects;
mod keyed;
mod loops;
mod memory;
mod objects;
mod records;
mod series;
mod statements;
mod store;
mod texts;
mod variables;

use alloc::vec::Vec;

use bpf::Reg;
use trace_language::tree::{Block, Expression, Statement};

use self::code::Code;
use crate::{
    asm::{Asm, Label},
    memory::{Memory, Place},
    tables::Tables,
    values::{Shared, Site, SiteKind, Values, Variable, close_scope},
};

/// A program that is not finished.
pub(crate) struct Parts {
    pub(crate) asm: Asm,
    pub(crate) memory: Memory,
    pub(crate) depends_on_place: bool,
    /// Where an entry goes whose call is not followed.
    declined: Option<Label>,
}

/// See the module's text.
pub(crate) struct Program<'c, 'a> {
    code: Code<'c, 'a>,
    /// Where `break` and `continue` lead to.
    loops: Vec<(Label, Label)>,
    end: Label,
    declined: Option<Label>,
    /// How many variables there were that the text does not have.
    hidden: u32,
}

impl<'c, 'a> Program<'c, 'a> {
    pub(crate) fn new(tables: &'c mut Tables<'a>, site: Site, shared: &'c mut Shared) -> Self {
        let mut asm = Asm::new(site.forgetful);
        let end = asm.label();
        Self {
            code: Code {
                values: Values::new(tables, site, shared),
                asm,
            },
            loops: Vec::new(),
            end,
            declined: None,
            hidden: 0,
        }
    }

    /// Goes on with a program.
    pub(crate) fn resume(
        tables: &'c mut Tables<'a>,
        site: Site,
        shared: &'c mut Shared,
        parts: Parts,
    ) -> Self {
        let mut program = Self::new(tables, site, shared);
        program.code.asm = parts.asm;
        program.code.values.memory = parts.memory;
        program.code.values.depends_on_place = parts.depends_on_place;
        program.declined = parts.declined;
        program
    }

    /// Leaves the program for later, and its variables.
    pub(crate) fn suspend(self) -> (Parts, Vec<Variable>) {
        let Values {
            memory,
            depends_on_place,
            scopes,
            ..
        } = self.code.values;
        let parts = Parts {
            asm: self.code.asm,
            memory,
            depends_on_place,
            declined: self.declined,
        };
        (parts, scopes.into_iter().next().unwrap_or_default())
    }

    /// Gives it the variables of the entry.
    pub(crate) fn take_over(&mut self, variables: Vec<Variable>) {
        // Variables may have no bytes.
        let has_data = self.values().shared.bytes() > 0;
        self.values().memory.shares |= has_data && !variables.is_empty();
        self.values().scopes[0] = variables;
    }

    pub(crate) fn values(&mut self) -> &mut Values<'c, 'a> {
        &mut self.code.values
    }

    /// Compiles predicate and statements. An entry is finished by [`Self::save`].
    pub(crate) fn clause(&mut self, predicate: Option<&Expression>, body: &Block) {
        let is_entry = self.values().site.kind == SiteKind::SessionEntry;
        if let Some(predicate) = predicate {
            let no = if is_entry {
                self.code.asm.label()
            } else {
                self.end
            };
            let test = self.without_blocks_in(predicate);
            match test.and_then(|predicate| self.code.test(&predicate)) {
                Ok(test) => self.code.branch_on(&test, false, no),
                Err(error) => self.values().tables.error(error),
            }
            self.declined = is_entry.then_some(no);
        }
        for statement in &body.statements {
            self.statement(statement);
        }
        if !is_entry {
            self.code.asm.place(self.end);
            self.code.asm.exit(0);
        } else {
            self.code.asm.place(self.end);
        }
    }

    /// Goes to the end of the block at once.
    pub(crate) fn leave_block(&mut self) {
        self.code.asm.jump(self.end);
    }

    /// Ends an entry: keeps what the return wants of it.
    pub(crate) fn save(&mut self) {
        for (number, offset) in self.values().shared.kept.clone() {
            self.values().memory.shares = true;
            let place = Place {
                base: Reg::R9,
                offset,
            };
            self.code.store_number(&number, place, 8);
        }
        self.code.asm.exit(0);
        if let Some(declined) = self.declined {
            self.code.asm.place(declined);
            self.code.asm.exit(1);
        }
    }

    pub(crate) fn block(&mut self, block: &Block) {
        self.values().scopes.push(Vec::new());
        for statement in &block.statements {
            self.statement(statement);
        }
        close_scope(self.values());
    }

    pub(crate) fn statement(&mut self, statement: &Statement) {
        let mark = self.values().memory.mark();
        let done = match self.without_blocks(statement) {
            Ok(Some(statement)) => self.try_statement(&statement),
            Ok(None) => self.try_statement(statement),
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            self.values().tables.error(error);
        }
        self.forget_hidden();
        self.values().memory.release(mark);
    }
}
