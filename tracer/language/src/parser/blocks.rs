//! Blocks as values.

use alloc::boxed::Box;

use super::{Parsed, Parser};
use crate::{
    diagnostic::Diagnostic,
    lexer::{self, Token},
    tree::{Block, Expression, ExpressionKind, Span, Statement, StatementKind},
};

/// A block as a value: that of its last statement, unless this ends with `;`.
pub(super) fn as_value(parser: &Parser<'_>, mut body: Block) -> Parsed<Expression> {
    let span = body.span;
    let value = match last_value(parser, &body)? {
        false => None,
        true => match body.statements.pop() {
            Some(Statement {
                kind: StatementKind::Expression(value),
                ..
            }) => Some(value),
            Some(Statement {
                kind:
                    StatementKind::If {
                        condition,
                        then,
                        otherwise: Some(otherwise),
                    },
                span,
            }) => Some(choice(parser, condition, then, otherwise, span)?),
            _ => None,
        },
    };
    let kind = match value {
        // `else if` has no braces.
        Some(value) if value.span == span => value.kind,
        value => ExpressionKind::Block {
            body,
            value: value.map(Box::new),
        },
    };
    Ok(Expression { kind, span })
}

/// Whether the last statement of a block is its value.
fn last_value(parser: &Parser<'_>, block: &Block) -> Parsed<bool> {
    let Some(last) = block.statements.last() else {
        return Ok(false);
    };
    let may_be = match &last.kind {
        StatementKind::Expression(_) => true,
        StatementKind::If { otherwise, .. } => otherwise.is_some(),
        _ => false,
    };
    // So it is in `else if`.
    let is_all = last.span.end == block.span.end;
    let (next, _) = lexer::token(parser.text, last.span.end)?;
    Ok(may_be && (is_all || next == Token::Sign("}")))
}

fn choice(
    parser: &Parser<'_>,
    condition: Expression,
    then: Block,
    otherwise: Block,
    span: Span,
) -> Parsed<Expression> {
    let kind = ExpressionKind::Ternary {
        condition: Box::new(condition),
        then: Box::new(as_value(parser, then)?),
        otherwise: Box::new(as_value(parser, otherwise)?),
    };
    Ok(Expression { kind, span })
}

/// `if condition { value } else { value }`.
pub(super) fn if_value(parser: &mut Parser<'_>) -> Parsed<Expression> {
    let start = parser.start()?;
    match parser.nested(Parser::branch)? {
        StatementKind::If {
            condition,
            then,
            otherwise: Some(otherwise),
        } => {
            let span = parser.taken(start);
            choice(parser, condition, then, otherwise, span)
        }
        _ => Err(Diagnostic::new(
            parser.taken(start),
            "without an `else`, this `if` has no value",
            "write `if (condition) { value } else { other }`",
        )),
    }
}
