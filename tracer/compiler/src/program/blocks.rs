//! Blocks as values.
//!
//! A value is described without an instruction, but a block is statements. So the blocks of a
//! statement are made before it: each leaves its value in a variable of its own, which stands for
//! it in the statement. A block that runs only sometimes (in a choice, or after `&&` and `||`) gets
//! a branch, and so does a step there.
//!
//! BLOCKS-1. What stands before a block in a statement is calculated before it.

use alloc::{boxed::Box, format, vec::Vec};

use trace_language::{
    Diagnostic,
    tree::{
        Binary, Expression, ExpressionKind, Map as MapName, Name, Span, Statement, StatementKind,
        Unary,
    },
};

use super::Program;
use crate::{
    Lowered,
    functions::{self, Role},
    number::Kind,
    values::{Holds, Val, Variable, close_scope, literal},
};

/// The expressions of a statement that are calculated before it, in their order.
fn expressions(statement: &mut Statement) -> Vec<&mut Expression> {
    match statement.kind {
        // An effect may have parts of its own, and the condition is calculated for each turn.
        StatementKind::Expression(_) | StatementKind::While { .. } => Vec::new(),
        _ => statement.parts_mut(),
    }
}

/// What has no value: a call for its effect, or a block that ends with one.
pub(crate) fn is_effect(expression: &Expression) -> bool {
    match &expression.kind {
        ExpressionKind::Call { name, .. } => {
            functions::named(&name.text).is_some_and(|function| function.role == Role::Effect)
        }
        ExpressionKind::Block { value, .. } => value.as_deref().is_none_or(is_effect),
        ExpressionKind::Ternary {
            then, otherwise, ..
        } => is_effect(then) && is_effect(otherwise),
        _ => false,
    }
}

impl Program<'_, '_> {
    /// The statement with variables in place of its blocks, which are made here. None: it has none.
    pub(crate) fn without_blocks(&mut self, statement: &Statement) -> Lowered<Option<Statement>> {
        let mut new = statement.clone();
        let mut all = expressions(&mut new);
        if !all.iter().any(|expression| needs_statements(expression)) {
            return Ok(None);
        }
        self.take_out(&mut all)?;
        Ok(Some(new))
    }

    /// The expression with variables in place of its blocks.
    pub(crate) fn without_blocks_in(&mut self, expression: &Expression) -> Lowered<Expression> {
        let mut new = expression.clone();
        self.take_out(&mut [&mut new])?;
        Ok(new)
    }

    /// Puts variables in place of the blocks of expressions that are calculated in this order.
    fn take_out(&mut self, all: &mut [&mut Expression]) -> Lowered<()> {
        for at in 0..all.len() {
            let [this, rest @ ..] = &mut all[at..] else {
                break;
            };
            self.take_out_of(this)?;
            if rest.iter().any(|later| needs_statements(later)) {
                self.keep(this, may_change)?;
            }
        }
        Ok(())
    }

    /// Calculates an expression now, if it could change later; of a tuple or a record, such parts.
    fn keep(
        &mut self,
        this: &mut Expression,
        could_change: fn(&Expression) -> bool,
    ) -> Lowered<()> {
        if matches!(
            this.kind,
            ExpressionKind::Tuple(_) | ExpressionKind::Record(_)
        ) {
            // Its numbers of the text stay what they are.
            let mut parts = this.parts_mut().into_iter();
            return parts.try_for_each(|part| self.keep(part, could_change));
        }
        if could_change(this) {
            let value = self.code.value(this)?;
            let name = self.hidden(this.span);
            self.declare_hidden(&name, value, this.span)?;
            *this = variable(name);
        }
        Ok(())
    }

    /// Makes a variable that nothing else is assigned to. So a narrow number stays one.
    fn declare_hidden(&mut self, name: &Name, value: Val, span: Span) -> Lowered<()> {
        let value = self.values().simplified(value, span);
        let narrow = match &value {
            Val::Number(counted) if counted.kind.narrow().is_some() => Some(counted.kind.clone()),
            _ => None,
        };
        self.declare(name, value, true, span)?;
        if let (Some(kind), Some(made)) = (narrow, self.last_made()) {
            made.holds = Holds::Number(kind);
        }
        Ok(())
    }

    fn take_out_of(&mut self, expression: &mut Expression) -> Lowered<()> {
        if !needs_statements(expression) {
            return Ok(());
        }
        self.values().check_room(expression.span)?;
        let span = expression.span;
        match &mut expression.kind {
            ExpressionKind::Block { body, value } => {
                let name = self.hidden(span);
                self.values().scopes.push(Vec::new());
                for statement in &body.statements {
                    self.statement(statement);
                }
                let made = match value {
                    Some(value) => self.end_of_block(&name, value),
                    None => Err(no_value(span)),
                };
                // The value outlives the variables of the block.
                let scope = close_scope(self.values()).unwrap_or_default();
                let kept = scope.into_iter().filter(Variable::is_hidden);
                if let Some(outer) = self.values().scopes.last_mut() {
                    outer.extend(kept);
                }
                *expression = made?;
                Ok(())
            }
            ExpressionKind::OrElse { value, otherwise } => {
                let name = self.hidden(span);
                let new = self.value_for(value)?;
                self.declare_hidden(&name, new, value.span)?;
                let known = variable(name);
                *expression = self.choose(&known, &known, otherwise, span)?;
                Ok(())
            }
            ExpressionKind::Ternary {
                condition,
                then,
                otherwise,
            } if is_statements(then) || is_statements(otherwise) => {
                *expression = self.choose(condition, then, otherwise, span)?;
                Ok(())
            }
            ExpressionKind::Binary {
                operation: operation @ (Binary::And | Binary::Or),
                left,
                right,
            } if is_statements(right) => {
                let truth = |is| Expression {
                    kind: ExpressionKind::Boolean(is),
                    span,
                };
                let not = |operand: Expression| Expression {
                    kind: ExpressionKind::Unary {
                        operation: Unary::Not,
                        operand: Box::new(operand),
                    },
                    span,
                };
                let right = not(not((**right).clone()));
                *expression = match operation {
                    Binary::And => self.choose(left, &right, &truth(false), span)?,
                    _ => self.choose(left, &truth(true), &right, span)?,
                };
                Ok(())
            }
            // A map by itself is no value there.
            ExpressionKind::Call { name, arguments }
                if functions::is_of_a_map(&name.text)
                    && matches!(&arguments[..], [map, ..] if is_whole_map(map)) =>
            {
                let mut parts: Vec<_> = arguments.iter_mut().skip(1).collect();
                self.take_out(&mut parts)
            }
            _ => self.take_out(&mut expression.parts_mut()),
        }
    }

    /// What stands for a block that ends with this value.
    fn end_of_block(&mut self, name: &Name, value: &Expression) -> Lowered<Expression> {
        if is_effect(value) {
            return Err(no_value(value.span));
        }
        let mut value = self.without_blocks_in(value)?;
        // A number of the text stays one.
        if literal::constant(&value)?.is_some() {
            return Ok(value);
        }
        // What is gathered is a value that the block has calculated.
        if let ExpressionKind::Call { name, arguments } = &mut value.kind
            && functions::is_aggregation(&name.text)
        {
            for argument in arguments {
                let is_text = matches!(argument.kind, ExpressionKind::String(_));
                if !is_text && literal::constant(argument)?.is_none() {
                    let name = self.hidden(argument.span);
                    let new = self.code.value(argument)?;
                    self.declare_hidden(&name, new, argument.span)?;
                    *argument = variable(name);
                }
            }
            return Ok(value);
        }
        let new = self.code.value(&value)?;
        self.declare_hidden(name, new, value.span)?;
        Ok(variable(name.clone()))
    }

    /// The value of an expression that may have blocks.
    fn value_for(&mut self, expression: &Expression) -> Lowered<Val> {
        if is_effect(expression) {
            return Err(no_value(expression.span));
        }
        let expression = self.without_blocks_in(expression)?;
        self.code.value(&expression)
    }

    /// A variable that has one of two values.
    fn choose(
        &mut self,
        condition: &Expression,
        then: &Expression,
        otherwise: &Expression,
        span: Span,
    ) -> Lowered<Expression> {
        if let Some(holds) = literal::decided(self.values(), condition)? {
            return self.without_blocks_in(if holds { then } else { otherwise });
        }
        let name = self.hidden(span);
        let condition = self.without_blocks_in(condition)?;
        let test = self.code.test(&condition)?;
        let (no, end) = (self.code.asm.label(), self.code.asm.label());
        self.code.branch_on(&test, false, no);
        let value = self.value_for(then)?;
        let kind = integer(self, &value, then.span);
        self.declare(&name, value, true, then.span)?;
        self.code.asm.jump(end);
        self.code.asm.place(no);
        let value = self.value_for(otherwise)?;
        let other = integer(self, &value, otherwise.span);
        self.assign_variable(&name, value, otherwise.span)?;
        self.code.asm.place(end);
        // Nothing else is assigned to it, so it is as narrow as both are.
        if let (Some((a, a_constant)), Some((b, b_constant))) = (kind, other)
            && let Some(kind) = Kind::either((&a, a_constant), (&b, b_constant))
            && kind.narrow().is_some()
        {
            let made = self.values().scopes.iter_mut().flatten();
            for made in made.filter(|made| made.name == name.text) {
                made.holds = Holds::Number(kind.clone());
            }
        }
        Ok(variable(name))
    }

    /// A block, or a choice between effects, as a statement. False: it is neither.
    pub(crate) fn effect_of_parts(&mut self, expression: &Expression) -> Lowered<bool> {
        match &expression.kind {
            ExpressionKind::Block { body, value } => {
                self.values().scopes.push(Vec::new());
                for statement in &body.statements {
                    self.statement(statement);
                }
                let done = value.as_deref().map_or(Ok(()), |value| self.effect(value));
                close_scope(self.values());
                done.map(|()| true)
            }
            ExpressionKind::Ternary {
                condition,
                then,
                otherwise,
            } => {
                let is_block = |of: &Expression| matches!(of.kind, ExpressionKind::Block { .. });
                match (is_effect(then), is_effect(otherwise)) {
                    _ if is_block(then) && is_block(otherwise) => {}
                    (true, true) => {}
                    (false, false) => return Ok(false),
                    (true, false) => return Err(no_value(then.span)),
                    (false, true) => return Err(no_value(otherwise.span)),
                }
                if let Some(holds) = literal::decided(self.values(), condition)? {
                    self.effect(if holds { then } else { otherwise })?;
                    return Ok(true);
                }
                let condition = self.without_blocks_in(condition)?;
                let test = self.code.test(&condition)?;
                let (no, end) = (self.code.asm.label(), self.code.asm.label());
                self.code.branch_on(&test, false, no);
                self.effect(then)?;
                self.code.asm.jump(end);
                self.code.asm.place(no);
                self.effect(otherwise)?;
                self.code.asm.place(end);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// The name of a new variable that the text does not have.
    fn hidden(&mut self, span: Span) -> Name {
        self.hidden += 1;
        Name {
            text: format!("{}", self.hidden),
            span,
        }
    }

    /// Forgets the variables that stood for blocks of a statement.
    pub(crate) fn forget_hidden(&mut self) {
        if let Some(scope) = self.values().scopes.last_mut() {
            scope.retain(|known| !known.is_hidden());
        }
    }
}

/// A map with variables in place of keys that would be others if they were calculated again.
pub(crate) fn with_kept_keys(program: &mut Program<'_, '_>, map: &MapName) -> Lowered<MapName> {
    let mut map = map.clone();
    for key in &mut map.keys {
        program.keep(key, is_fickle)?;
    }
    Ok(map)
}

/// The kind of a value that is a number, and its value if the text has it.
fn integer(program: &mut Program<'_, '_>, value: &Val, span: Span) -> Option<(Kind, Option<u64>)> {
    match program.values().simplified(value.clone(), span) {
        Val::Number(counted) => Some((counted.kind, counted.number.constant())),
        _ => None,
    }
}

fn variable(name: Name) -> Expression {
    Expression {
        kind: ExpressionKind::Variable(name.text),
        span: name.span,
    }
}

/// Whether a block after it could change its value.
fn may_change(expression: &Expression) -> bool {
    match &expression.kind {
        ExpressionKind::Variable(_) | ExpressionKind::Map(_) | ExpressionKind::Step { .. } => true,
        _ => expression.parts().into_iter().any(may_change),
    }
}

/// Whether an expression is calculated by a branch of its own where it is only sometimes: what it
/// steps may be calculated before the statement.
fn is_statements(expression: &Expression) -> bool {
    expression.has_block() || steps(expression)
}

/// Whether an expression has a block, or a part that is stepped only sometimes.
fn needs_statements(expression: &Expression) -> bool {
    let steps_sometimes = |part: &Expression| match &part.kind {
        ExpressionKind::Ternary {
            then, otherwise, ..
        } => steps(then) || steps(otherwise),
        ExpressionKind::Binary {
            operation: Binary::And | Binary::Or,
            right,
            ..
        } => steps(right),
        _ => false,
    };
    expression.has_block() || expression.calculates(&steps_sometimes)
}

/// Whether an expression may be another value each time that it is calculated, or do something.
fn is_fickle(expression: &Expression) -> bool {
    expression.calculates(&|part| match &part.kind {
        ExpressionKind::Step { .. } | ExpressionKind::Map(_) => true,
        ExpressionKind::Name(word)
        | ExpressionKind::Call {
            name: Name { text: word, .. },
            ..
        } => {
            matches!(
                &**word,
                "nsecs" | "elapsed" | "rand" | "delete" | "find" | "len"
            )
        }
        _ => false,
    })
}

/// Whether a variable or an entry is stepped in an expression.
fn steps(expression: &Expression) -> bool {
    expression.calculates(&|part| matches!(part.kind, ExpressionKind::Step { .. }))
}

fn is_whole_map(expression: &Expression) -> bool {
    matches!(&expression.kind, ExpressionKind::Map(map) if map.keys.is_empty())
}

fn no_value(span: Span) -> Diagnostic {
    Diagnostic::new(
        span,
        "this gives no value",
        "the value of a block is its last expression, without a `;` after it: `{ $a = 1; $a + 1 }`",
    )
}
