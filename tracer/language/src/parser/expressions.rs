//! Values.
//!
//! Operators bind by [`Binary::precedence`], and those that bind alike group to the left. They wait
//! in a list, so a chain of them makes no recursion here. Each node knows how high it is, because
//! whoever walks the tree recurses ([`MAX_DEPTH`]).

use alloc::{boxed::Box, format, vec, vec::Vec};

use super::{
    Parsed, Parser,
    blocks::{as_value, if_value},
    is_keyword, named,
    types::{begins_typeof, plain_type, type_with_height},
};
use crate::{
    depth::{MAX_DEPTH, too_deep},
    diagnostic::Diagnostic,
    lexer::{self, Token},
    parts::is_measure,
    tree::{Binary, Expression, ExpressionKind, Map, Name, Span, Target, Unary},
};

/// An expression, and how many levels it has. Chains such as `a + b + c` grow to the left without a
/// recursion here, but whoever walks the tree recurses.
struct Tall {
    expression: Expression,
    height: usize,
}

impl Parser<'_> {
    pub(super) fn expression(&mut self) -> Parsed<Expression> {
        Ok(self.ternary()?.expression)
    }

    /// An expression with parts of at most that height, if the tree is not too high with it.
    fn node(&mut self, kind: ExpressionKind, span: Span, parts: usize) -> Parsed<Tall> {
        let height = parts + 1;
        if self.depth + height > MAX_DEPTH {
            return Err(too_deep(span));
        }
        self.deepest = self.deepest.max(self.depth + height);
        Ok(Tall {
            expression: Expression { kind, span },
            height,
        })
    }

    fn ternary(&mut self) -> Parsed<Tall> {
        let condition = self.operators()?;
        if !self.accept("?")? {
            return Ok(condition);
        }
        if self.accept(":")? {
            let otherwise = self.nested(Self::ternary)?;
            let parts = condition.height.max(otherwise.height);
            let span = condition.expression.span.to(otherwise.expression.span);
            let kind = ExpressionKind::OrElse {
                value: Box::new(condition.expression),
                otherwise: Box::new(otherwise.expression),
            };
            return self.node(kind, span, parts);
        }
        let then = self.nested(Self::ternary)?;
        self.expect(":", "a choice is written `condition ? value : other`")?;
        let otherwise = self.nested(Self::ternary)?;
        let span = condition.expression.span.to(otherwise.expression.span);
        let parts = condition.height.max(then.height).max(otherwise.height);
        let kind = ExpressionKind::Ternary {
            condition: Box::new(condition.expression),
            then: Box::new(then.expression),
            otherwise: Box::new(otherwise.expression),
        };
        self.node(kind, span, parts)
    }

    /// Operands with operators between them.
    fn operators(&mut self) -> Parsed<Tall> {
        // They wait for an operator that binds less. Operands are one more than operators.
        let mut operands = Vec::new();
        let mut operators: Vec<Binary> = Vec::new();
        operands.push(self.unary()?);
        loop {
            let next = self.operator()?;
            while let Some(last) = operators.last()
                && next.is_none_or(|next| next.precedence() <= last.precedence())
                && let (Some(right), Some(left)) = (operands.pop(), operands.pop())
                && let Some(operation) = operators.pop()
            {
                let span = left.expression.span.to(right.expression.span);
                let parts = left.height.max(right.height);
                let kind = ExpressionKind::Binary {
                    operation,
                    left: Box::new(left.expression),
                    right: Box::new(right.expression),
                };
                operands.push(self.node(kind, span, parts)?);
            }
            let Some(next) = next else {
                break;
            };
            self.take()?;
            operators.push(next);
            operands.push(self.unary()?);
        }
        // There is one, because each operator took one away.
        operands.pop().ok_or_else(|| self.unexpected("a value", ""))
    }

    /// The operator that comes next.
    fn operator(&self) -> Parsed<Option<Binary>> {
        let (token, span) = lexer::token(self.text, self.position)?;
        let Token::Sign(sign) = token else {
            return Ok(None);
        };
        if sign == "/" && self.in_predicate {
            let behind = lexer::skip_blanks(self.text, span.end)?;
            if self.text[behind..].starts_with('{') || behind == self.text.len() {
                return Ok(None);
            }
        }
        Ok(Binary::ALL
            .into_iter()
            .find(|operation| operation.sign() == sign))
    }

    fn unary(&mut self) -> Parsed<Tall> {
        let (token, start) = lexer::token(self.text, self.position)?;
        let operation = match token {
            Token::Sign("-") => Unary::Negate,
            Token::Sign("!") => Unary::Not,
            Token::Sign("~") => Unary::Complement,
            Token::Sign("*") => Unary::Dereference,
            Token::Sign("++" | "--") => return self.step_before(),
            Token::Word("comptime") => return known_before(self),
            Token::Sign("(") if let Some((to, height)) = self.cast()? => {
                let operand = self.nested(Self::unary)?;
                let span = start.to(operand.expression.span);
                let kind = ExpressionKind::Cast {
                    to,
                    operand: Box::new(operand.expression),
                };
                return self.node(kind, span, operand.height.max(height));
            }
            _ => return self.postfix(),
        };
        self.take()?;
        let operand = self.nested(Self::unary)?;
        let span = start.to(operand.expression.span);
        let kind = ExpressionKind::Unary {
            operation,
            operand: Box::new(operand.expression),
        };
        self.node(kind, span, operand.height)
    }

    /// `++target`, `--target`.
    fn step_before(&mut self) -> Parsed<Tall> {
        let (token, sign) = self.take()?;
        let operand = self.nested(Self::postfix)?;
        let span = sign.to(operand.expression.span);
        let target = target(operand.expression, "stepped")?;
        let kind = ExpressionKind::Step {
            target: Box::new(target),
            up: token == Token::Sign("++"),
            value_before: false,
        };
        self.node(kind, span, operand.height)
    }

    /// A value, and what is taken from it.
    fn postfix(&mut self) -> Parsed<Tall> {
        let mut value = self.primary()?;
        let start = value.expression.span;
        loop {
            let Token::Sign(sign) = self.peek()? else {
                return Ok(value);
            };
            match sign {
                "." | "->" => {
                    self.take()?;
                    let name = self.field()?;
                    if self.peek()? == Token::Sign("(") {
                        return Err(Diagnostic::new(
                            name.span,
                            format!(
                                "`{}` is called on a value, but values have no methods",
                                name.text
                            ),
                            format!("call functions as `{}(value)`", name.text),
                        ));
                    }
                    let span = start.to(name.span);
                    let kind = ExpressionKind::Field {
                        of: Box::new(value.expression),
                        name,
                    };
                    value = self.node(kind, span, value.height)?;
                }
                "[" => {
                    self.take()?;
                    let index = self.inner()?;
                    let end = self.expect("]", "")?;
                    let parts = value.height.max(index.height);
                    let kind = ExpressionKind::Index {
                        of: Box::new(value.expression),
                        index: Box::new(index.expression),
                    };
                    value = self.node(kind, start.to(end), parts)?;
                }
                "++" | "--" => {
                    let (_, end) = self.take()?;
                    let kind = ExpressionKind::Step {
                        target: Box::new(target(value.expression, "stepped")?),
                        up: sign == "++",
                        value_before: true,
                    };
                    return self.node(kind, start.to(end), value.height);
                }
                _ => return Ok(value),
            }
        }
    }

    fn field(&mut self) -> Parsed<Name> {
        match self.peek()? {
            Token::Number(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => Ok(Name {
                text: digits.into(),
                span: self.take()?.1,
            }),
            _ => self.word(
                "the name of a field",
                "write `value.name`, or `value.0` of a tuple",
            ),
        }
    }

    /// An expression between brackets of any kind.
    fn inner(&mut self) -> Parsed<Tall> {
        let in_predicate = core::mem::replace(&mut self.in_predicate, false);
        let inner = self.nested(Self::ternary);
        self.in_predicate = in_predicate;
        inner
    }

    fn primary(&mut self) -> Parsed<Tall> {
        const HELP: &str = "values are numbers, \"texts\", $variables, @maps, names such as `pid` \
                            and `args.count`, and calls such as `count()`";
        let (token, span) = lexer::token(self.text, self.position)?;
        let kind = match token {
            Token::Number(digits) => {
                let kind = ExpressionKind::Integer(lexer::integer(digits, span)?);
                self.take()?;
                kind
            }
            Token::String(text) => {
                let kind = ExpressionKind::String(lexer::string(text, span)?);
                self.take()?;
                kind
            }
            Token::Variable(name) => {
                self.take()?;
                ExpressionKind::Variable(name.into())
            }
            Token::Parameter(number) => {
                if !matches!(number.parse::<u16>(), Ok(1..)) {
                    return Err(Diagnostic::new(
                        span,
                        format!("there is no argument `${number}`"),
                        "the first one is `$1`, and `$#` is their number",
                    ));
                }
                self.take()?;
                let kind = match self.argument(number) {
                    None => ExpressionKind::Integer(0),
                    Some(text) => named::number_given(text, span)
                        .unwrap_or_else(|| ExpressionKind::String(text.into())),
                };
                let parts = matches!(kind, ExpressionKind::Unary { .. });
                return self.node(kind, span, parts.into());
            }
            Token::ParameterCount => {
                self.take()?;
                ExpressionKind::Integer(self.arguments.len() as u64)
            }
            Token::Map(_) => {
                let (map, height) = self.map()?;
                let span = map.span;
                return self.node(ExpressionKind::Map(map), span, height);
            }
            Token::Word(word @ ("true" | "false")) => {
                self.take()?;
                ExpressionKind::Boolean(word == "true")
            }
            Token::Word("if") => return with_block(self, if_value),
            Token::Word(word) if is_keyword(word) => {
                return Err(self.unexpected("a value", HELP));
            }
            Token::Word("typeof") if begins_typeof(self) => {
                let (of, height) = type_with_height(self)?;
                let span = of.span;
                return self.node(ExpressionKind::Type(of), span, height);
            }
            Token::Word(_) => return self.name_or_call(),
            Token::Sign("(") => return self.parentheses(),
            Token::Sign("{") => {
                return with_block(self, |parser| {
                    let block = parser.block()?;
                    as_value(parser, block)
                });
            }
            Token::Sign("&") => return Err(no_address(self, span)),
            _ => return Err(self.unexpected("a value", HELP)),
        };
        self.node(kind, span, 0)
    }

    /// `@name[key, key]`, and the height of the keys.
    fn map(&mut self) -> Parsed<(Map, usize)> {
        let (token, span) = self.take()?;
        let Token::Map(text) = token else {
            return Err(Diagnostic::new(
                span,
                "expected a map",
                "its name begins with `@`",
            ));
        };
        let name = Name {
            text: text.into(),
            span,
        };
        let mut keys = Vec::new();
        let mut height = 0;
        if self.accept("[")? {
            loop {
                let key = self.inner()?;
                height = height.max(key.height);
                keys.push(key.expression);
                if !self.accept(",")? {
                    break;
                }
            }
            self.expect("]", "keys are written `@map[key, key]`")?;
        }
        let span = self.taken(span.start);
        Ok((Map { name, keys, span }, height))
    }

    /// `word`, `path::to::word`, `word(arguments)`.
    fn name_or_call(&mut self) -> Parsed<Tall> {
        let mut name = self.word("a name", "")?;
        // The library of bpftrace calls what it wraps so.
        if let Some(plain) = name.text.strip_prefix("__builtin_") {
            name.text = plain.into();
        }
        while self.accept("::")? {
            let next = self.word("a name after `::`", "")?;
            name.text += "::";
            name.text += &next.text;
            name.span = name.span.to(next.span);
        }
        if self.peek()? != Token::Sign("(") {
            let span = name.span;
            return self.node(ExpressionKind::Name(name.text), span, 0);
        }
        self.take()?;
        let mut arguments = Vec::new();
        let mut height = 0;
        // The text of an argument of the program, even if it is a number.
        if name.text == "str"
            && let (Token::Parameter(number), span) = lexer::token(self.text, self.position)?
            && let Ok((Token::Sign(")" | ","), _)) = lexer::token(self.text, span.end)
        {
            self.take()?;
            let text = self.argument(number).unwrap_or_default().into();
            let given = self.node(ExpressionKind::String(text), span, 0)?;
            height = given.height;
            arguments.push(given.expression);
            if self.peek()? == Token::Sign(",") {
                self.take()?;
            }
        }
        let is_measure = is_measure(&name.text);
        while self.peek()? != Token::Sign(")") {
            let argument = match is_measure && arguments.is_empty() {
                true => type_or_value(self)?,
                false => self.inner()?,
            };
            height = height.max(argument.height);
            arguments.push(argument.expression);
            if !self.accept(",")? {
                break;
            }
        }
        let end = self.expect(
            ")",
            &format!("the arguments of `{}` end with it", name.text),
        )?;
        let span = name.span.to(end);
        if name.text == "getopt" {
            let expression = named::value(self, &name, arguments, span)?;
            return self.node(expression.kind, span, 1);
        }
        self.node(ExpressionKind::Call { name, arguments }, span, height)
    }

    /// `(value)`, `(value, value)`, or `(name=value)`.
    fn parentheses(&mut self) -> Parsed<Tall> {
        let (_, start) = self.take()?;
        if begins_record(self)? {
            return record(self, start);
        }
        let mut values = Vec::new();
        let mut height = 0;
        let mut ends_with_comma = false;
        while self.peek()? != Token::Sign(")") {
            let value = self.inner()?;
            height = height.max(value.height);
            values.push(value);
            ends_with_comma = self.accept(",")?;
            if !ends_with_comma {
                break;
            }
        }
        let end = self.expect(")", "it belongs to a `(` before it")?;
        let span = start.to(end);
        if !ends_with_comma
            && values.len() == 1
            && let Some(mut alone) = values.pop()
        {
            alone.expression.span = span;
            return Ok(alone);
        }
        let values = values.into_iter().map(|value| value.expression).collect();
        self.node(ExpressionKind::Tuple(values), span, height)
    }
}

/// `comptime value`.
fn known_before(parser: &mut Parser<'_>) -> Parsed<Tall> {
    let name = parser.word("a name", "")?;
    let operand = parser.nested(Parser::unary)?;
    let span = name.span.to(operand.expression.span);
    let kind = ExpressionKind::Call {
        name,
        arguments: vec![operand.expression],
    };
    parser.node(kind, span, operand.height)
}

/// What `sizeof` is asked of.
fn type_or_value(parser: &mut Parser<'_>) -> Parsed<Tall> {
    let (of, height) = match plain_type(parser)? {
        Some(found) => found,
        None => return parser.inner(),
    };
    let span = of.span;
    parser.node(ExpressionKind::Type(of), span, height)
}

/// Refuses `&`, whose span is given, by what it stands before.
fn no_address(parser: &Parser<'_>, span: Span) -> Diagnostic {
    let (what, help) = match lexer::token(parser.text, span.end) {
        Ok((Token::Variable(name), of)) => (
            span.to(of),
            format!(
                "a variable is gone after the hit: use `${name}` itself, and to \
                 change it elsewhere a macro with a parameter, `macro change($x) {{ $x++; }}`"
            ),
        ),
        Ok((Token::Map(name), of)) => (
            span.to(of),
            format!(
                "an entry of a map moves and may be deleted meanwhile: use `@{name}` itself, and \
                 to change it elsewhere a macro with a parameter, `macro note(@m) {{ @m++; }}`"
            ),
        ),
        _ => (
            span,
            "references and pointers are values already; of a place in memory, write the \
             reference that leads to it"
                .into(),
        ),
    };
    Diagnostic::new(what, "`&` takes no address here", help)
}

/// Whether `name=` comes next.
fn begins_record(parser: &Parser<'_>) -> Parsed<bool> {
    let (token, span) = lexer::token(parser.text, parser.position)?;
    let is_name = matches!(token, Token::Word(word) if !is_keyword(word));
    Ok(is_name
        && matches!(
            lexer::token(parser.text, span.end),
            Ok((Token::Sign("="), _))
        ))
}

/// The rest of `(name=value, name=value)`.
fn record(parser: &mut Parser<'_>, start: Span) -> Parsed<Tall> {
    const HELP: &str = "each value of a record has a name: (a=1, b=2)";
    let mut fields: Vec<(Name, Expression)> = Vec::new();
    let mut height = 0;
    loop {
        let name = parser.word("the name of a value", HELP)?;
        if fields.iter().any(|(known, _)| known.text == name.text) {
            return Err(Diagnostic::new(
                name.span,
                format!("the record has `{}` already", name.text),
                "give each value a name of its own",
            ));
        }
        parser.expect("=", HELP)?;
        let value = parser.inner()?;
        height = height.max(value.height);
        fields.push((name, value.expression));
        if !parser.accept(",")? {
            break;
        }
    }
    let end = parser.expect(")", "it belongs to a `(` before it")?;
    parser.node(ExpressionKind::Record(fields), start.to(end), height)
}

/// A value with blocks in it, which is as high as they are.
fn with_block(
    parser: &mut Parser<'_>,
    parse: fn(&mut Parser<'_>) -> Parsed<Expression>,
) -> Parsed<Tall> {
    let in_predicate = core::mem::replace(&mut parser.in_predicate, false);
    let before = core::mem::replace(&mut parser.deepest, parser.depth);
    let parsed = parse(parser);
    let height = parser.deepest - parser.depth;
    parser.deepest = parser.deepest.max(before);
    parser.in_predicate = in_predicate;
    Ok(Tall {
        expression: parsed?,
        height,
    })
}

/// The variable or map that an expression is.
pub(super) fn target(expression: Expression, done: &str) -> Parsed<Target> {
    match expression.kind {
        ExpressionKind::Variable(text) => Ok(Target::Variable(Name {
            text,
            span: expression.span,
        })),
        ExpressionKind::Map(map) => Ok(Target::Map(map)),
        _ => Err(Diagnostic::new(
            expression.span,
            format!("only variables and maps can be {done}"),
            "the traced kernel is read and never written; keep values in `$name` or `@name`",
        )),
    }
}
