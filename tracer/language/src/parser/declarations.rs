//! What stands before the clauses: settings, maps and macros.

use alloc::{format, vec::Vec};

use super::{Parsed, Parser, blocks::as_value, is_keyword, parse_expression};
use crate::{
    diagnostic::Diagnostic,
    directives::Definition,
    lexer::{self, Token},
    macros::{Kind, Macro, Parameter},
    tree::{ExpressionKind, MapDeclaration, Name, Setting},
};

/// `config = { name = value; … }`, which stands first.
pub(super) fn config(parser: &mut Parser<'_>, is_first: bool) -> Parsed<()> {
    const HELP: &str = "write `config = { name = value; }` before all else";
    let (_, span) = parser.take()?;
    if !is_first || !parser.settings.is_empty() {
        return Err(Diagnostic::new(
            span,
            "the settings do not stand first",
            HELP,
        ));
    }
    parser.expect("=", HELP)?;
    parser.expect("{", HELP)?;
    while !parser.accept("}")? {
        let name = parser.word("the name of a setting", HELP)?;
        parser.expect("=", HELP)?;
        let (token, span) = parser.take()?;
        let text = match token {
            Token::Word(text) | Token::Number(text) => text.into(),
            Token::String(text) => lexer::string(text, span)?,
            _ => {
                return Err(Diagnostic::new(
                    span,
                    "a setting is a number, a word or a text",
                    HELP,
                ));
            }
        };
        let value = Name { text, span };
        parser.settings.push(Setting { name, value });
        if parser.peek()? != Token::Sign("}") {
            parser.expect(";", HELP)?;
        }
    }
    Ok(())
}

/// `let @name = kind(keys);`
pub(super) fn map(parser: &mut Parser<'_>) -> Parsed<MapDeclaration> {
    const HELP: &str =
        "write `let @name = hash(1000);` for a map; variables are declared in a block";
    let start = parser.start()?;
    parser.take()?;
    let (token, span) = parser.take()?;
    let Token::Map(text) = token else {
        return Err(Diagnostic::new(span, "this is no map", HELP));
    };
    let name = Name {
        text: text.into(),
        span,
    };
    parser.expect("=", HELP)?;
    let kind = parser.word("the kind of the map", HELP)?;
    parser.expect("(", HELP)?;
    let keys = parser.expression()?;
    let ExpressionKind::Integer(keys) = keys.kind else {
        return Err(Diagnostic::new(keys.span, "this is no number", HELP));
    };
    parser.expect(")", HELP)?;
    let span = parser.taken(start);
    parser.expect(";", HELP)?;
    Ok(MapDeclaration {
        name,
        kind,
        keys,
        span,
    })
}

/// `macro name($variable, @map, value) { … }`.
pub(super) fn declared_macro(parser: &mut Parser<'_>) -> Parsed<Macro> {
    const HELP: &str = "write `macro name($variable, @map, value) { … }`";
    parser.take()?;
    let name = parser.word("the name of the macro", HELP)?;
    let mut parameters = Vec::new();
    if parser.accept("(")? {
        while !parser.accept(")")? {
            let (token, span) = parser.take()?;
            let (kind, text) = match token {
                Token::Variable(text) => (Kind::Variable, text),
                Token::Map(text) => (Kind::Map, text),
                Token::Word(text) if !is_keyword(text) => (Kind::Expression, text),
                _ => return Err(Diagnostic::new(span, "this is no parameter", HELP)),
            };
            let name = Name {
                text: text.into(),
                span,
            };
            parameters.push(Parameter { kind, name });
            if parser.peek()? != Token::Sign(")") {
                parser.expect(",", HELP)?;
            }
        }
    }
    let body = parser.block()?;
    let body = as_value(parser, body)?;
    Ok(Macro {
        name,
        parameters,
        body,
    })
}

/// The macro that `#define NAME value` makes. In C the text of the value stands in place of the
/// name, so here it is a value that no operator around it can tear apart.
pub(super) fn definition(
    parser: &mut Parser<'_>,
    text: &str,
    definition: &Definition,
) -> Parsed<()> {
    let name = Name {
        text: text[definition.name.range()].into(),
        span: definition.name,
    };
    if text[definition.value.range()].trim().is_empty() {
        return Ok(());
    }
    // Blanks before it leave its places what they are.
    let value = format!(
        "{}{}",
        " ".repeat(definition.value.start),
        &text[definition.value.range()]
    );
    let body = parse_expression(&value, &parser.arguments)?;
    if matches!(
        body.kind,
        ExpressionKind::Binary { .. } | ExpressionKind::Ternary { .. }
    ) && !text[definition.value.range()].trim().starts_with('(')
    {
        return Err(Diagnostic::new(
            definition.value,
            "operators around the name would tear this value apart",
            "put it into parentheses",
        ));
    }
    parser.macros.push(Macro {
        name,
        parameters: Vec::new(),
        body,
    });
    Ok(())
}
