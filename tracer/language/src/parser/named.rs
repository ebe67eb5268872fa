//! Named arguments of a program: `getopt("top", 5)` is 5, or what `--top=8` after the program says.
//!
//! Their calls become numbers, truths and texts, as `$1` does.

use alloc::{boxed::Box, format, string::String, vec::Vec};

use super::{Parsed, Parser};
use crate::{
    diagnostic::Diagnostic,
    lexer,
    tree::{Expression, ExpressionKind, Name, Span, Unary},
};

/// An option of a program.
#[derive(Clone, Debug)]
pub(super) struct Known {
    name: String,
    default: Option<Expression>,
    description: Option<String>,
}

impl Known {
    /// The same as far as it is told to users.
    fn is_like(&self, other: &Self) -> bool {
        let value = |known: &Self| known.default.as_ref().map(|default| format!("{default}"));
        value(self) == value(other) && self.description == other.description
    }
}

/// Whether an argument of the program has a name: `--name`, or `--name=value`.
pub(super) fn is_named(argument: &str) -> bool {
    argument.len() > 2 && argument.starts_with("--")
}

/// The value of `getopt(arguments)`.
pub(super) fn value(
    parser: &mut Parser<'_>,
    call: &Name,
    arguments: Vec<Expression>,
    span: Span,
) -> Parsed<Expression> {
    let known = known(call, arguments)?;
    let mut same = parser.options.iter().filter(|of| of.name == known.name);
    if same.any(|other| !other.is_like(&known)) {
        return Err(Diagnostic::new(
            span,
            format!(
                "the option `{}` has another default or description elsewhere",
                known.name
            ),
            "say the same at each place, for example in a macro",
        ));
    }
    let given = parser.named.iter().find_map(|argument| {
        let after = argument.strip_prefix("--")?.strip_prefix(&*known.name)?;
        match after.strip_prefix('=') {
            Some(value) => Some(Some(value)),
            None => after.is_empty().then_some(None),
        }
    });
    let kind = match (given, &known.default) {
        (None, None) => Some(ExpressionKind::Boolean(false)),
        (None, Some(default)) => Some(default.kind.clone()),
        (Some(given), default) => read(given, default.as_ref(), span),
    };
    let Some(kind) = kind else {
        let given = given.flatten().unwrap_or_default();
        return Err(Diagnostic::new(
            span,
            format!("`--{}` was given the value `{given}`", known.name),
            "an option has a value like its default: a number, true or false, or a text",
        ));
    };
    parser.options.push(known);
    Ok(Expression { kind, span })
}

/// The option that a call describes.
fn known(call: &Name, arguments: Vec<Expression>) -> Parsed<Known> {
    let wrong = |span| {
        Diagnostic::new(
            span,
            "an option has a name, perhaps a default and a description, all written out",
            "for example getopt(\"top\", 5) or getopt(\"top\", 5, \"how many are shown\")",
        )
    };
    let mut arguments = arguments.into_iter();
    let text = |of: Expression| match of.kind {
        ExpressionKind::String(text) => Ok(text),
        _ => Err(wrong(of.span)),
    };
    let name = text(arguments.next().ok_or_else(|| wrong(call.span))?)?;
    let default = arguments.next();
    let is_literal = |of: &Expression| match &of.kind {
        ExpressionKind::Integer(_) | ExpressionKind::Boolean(_) | ExpressionKind::String(_) => true,
        ExpressionKind::Unary {
            operation: Unary::Negate,
            operand,
        } => matches!(operand.kind, ExpressionKind::Integer(_)),
        _ => false,
    };
    if let Some(other) = default.as_ref().filter(|default| !is_literal(default)) {
        return Err(wrong(other.span));
    }
    let description = arguments.next().map(text).transpose()?;
    match arguments.next() {
        Some(more) => Err(wrong(more.span)),
        None => Ok(Known {
            name,
            default,
            description,
        }),
    }
}

/// A value that was given, of the kind of the default.
fn read(given: Option<&str>, default: Option<&Expression>, span: Span) -> Option<ExpressionKind> {
    Some(match (default.map(|default| &default.kind), given) {
        (Some(ExpressionKind::String(_)), Some(text)) => ExpressionKind::String(text.into()),
        (None | Some(ExpressionKind::Boolean(_)), given) => {
            let word = given.unwrap_or("true").to_ascii_lowercase();
            ExpressionKind::Boolean(match &*word {
                "true" | "1" => true,
                "false" | "0" => false,
                _ => return None,
            })
        }
        (Some(ExpressionKind::Integer(_) | ExpressionKind::Unary { .. }), Some(text)) => {
            number_given(text, span)?
        }
        _ => return None,
    })
}

/// The mistake of a named argument that the program does not know.
pub(super) fn unknown(parser: &Parser<'_>) -> Option<Diagnostic> {
    let is_known = |argument: &&&str| {
        let name = argument[2..].split('=').next().unwrap_or_default();
        parser.options.iter().any(|known| known.name == name)
    };
    let argument = parser.named.iter().find(|argument| !is_known(argument))?;
    let mut names: Vec<String> = parser
        .options
        .iter()
        .map(|known| match &known.description {
            Some(description) => format!("--{} ({description})", known.name),
            None => format!("--{}", known.name),
        })
        .collect();
    names.sort();
    names.dedup();
    Some(Diagnostic::new(
        Span::default(),
        format!("the program has no option `{argument}`"),
        match names.is_empty() {
            true => "it has none; getopt(\"name\") in the program makes one".into(),
            false => format!("it has {}", names.join(", ")),
        },
    ))
}

/// The number that an argument of the program is, if it is one: as the text would have it there.
pub(super) fn number_given(text: &str, span: Span) -> Option<ExpressionKind> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let number = ExpressionKind::Integer(lexer::integer(digits, span).ok()?);
    Some(match digits.len() == text.len() {
        true => number,
        false => ExpressionKind::Unary {
            operation: Unary::Negate,
            operand: Box::new(Expression { kind: number, span }),
        },
    })
}
