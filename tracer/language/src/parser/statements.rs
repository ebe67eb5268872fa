//! Blocks and statements.
//!
//! A statement that is wrong is told, and reading goes on after it, so that a text has all its
//! mistakes told at once.

use alloc::{format, vec, vec::Vec};

use super::{Parsed, Parser, blocks::as_value, expressions::target, is_keyword};
use crate::{
    diagnostic::Diagnostic,
    lexer::{self, Token},
    tree::{
        Arm, Binary, Binding, Block, Expression, ExpressionKind, Name, Pattern, PatternKind, Span,
        Statement, StatementKind,
    },
};

impl Parser<'_> {
    /// `{ … }`. Mistakes in it are reported, and what follows them is read.
    pub(super) fn block(&mut self) -> Parsed<Block> {
        let open = self.expect("{", "statements stand in a block: `{ … }`")?;
        self.nested(|parser| Ok(parser.statements(open)))
    }

    fn statements(&mut self, open: Span) -> Block {
        let mut statements = Vec::new();
        loop {
            match self.peek() {
                Ok(Token::Sign("}")) => {
                    // Known to be one.
                    let _ = self.take();
                    break;
                }
                Ok(Token::Sign(";")) => {
                    let _ = self.take();
                }
                Ok(Token::End) => {
                    self.tell(Diagnostic::new(
                        open,
                        "this block does not end",
                        "end it with `}`",
                    ));
                    break;
                }
                _ => {
                    let depth = self.depth;
                    match self.statement() {
                        Ok(statement) => statements.push(statement),
                        Err(mistake) => {
                            self.tell(mistake);
                            self.depth = depth;
                            self.skip_statement();
                        }
                    }
                }
            }
        }
        Block {
            statements,
            span: self.taken(open.start),
        }
    }

    fn statement(&mut self) -> Parsed<Statement> {
        let start = self.start()?;
        let (kind, ends_with_block) = match self.peek()? {
            Token::Word("if") => (self.branch()?, true),
            Token::Word("unroll") => (self.unroll()?, true),
            Token::Word("for") => (self.range()?, true),
            Token::Word("while") => (self.while_loop()?, true),
            Token::Word("match") => (self.match_value()?, true),
            Token::Word("let") => (self.declaration()?, false),
            Token::Word("return") => {
                self.take()?;
                let value = match self.peek()? {
                    Token::Sign(";" | "}") | Token::End => None,
                    _ => Some(self.expression()?),
                };
                (StatementKind::Return(value), false)
            }
            Token::Word("break") => {
                self.take()?;
                (StatementKind::Break, false)
            }
            Token::Word("continue") => {
                self.take()?;
                (StatementKind::Continue, false)
            }
            Token::Word("else") => {
                return Err(Diagnostic::new(
                    self.next_span(),
                    "this `else` follows no `if`",
                    "write `if (condition) { … } else { … }`",
                ));
            }
            Token::Sign("{") => {
                let block = self.block()?;
                (StatementKind::Expression(as_value(self, block)?), true)
            }
            _ => (self.assignment()?, false),
        };
        let span = self.taken(start);
        // The end of the text is reported with the block that has no end.
        let ends = ends_with_block
            || self.accept(";")?
            || matches!(self.peek()?, Token::Sign("}") | Token::End);
        if !ends {
            return Err(self.unexpected("`;` or `}`", "statements are separated by `;`"));
        }
        Ok(Statement { kind, span })
    }

    /// A value alone, or `target = value`.
    fn assignment(&mut self) -> Parsed<StatementKind> {
        if self.peek()? == Token::Word("_") {
            self.take()?;
            self.expect("=", "a value is thrown away by `_ = value`")?;
            return Ok(StatementKind::Expression(self.expression()?));
        }
        let left = self.expression()?;
        let Token::Sign(sign) = self.peek()? else {
            return Ok(StatementKind::Expression(left));
        };
        let operation = match sign.strip_suffix('=') {
            Some("") => None,
            Some(operator) => {
                let operation = Binary::ALL
                    .into_iter()
                    .find(|operation| operation.sign() == operator && operation.can_assign());
                match operation {
                    Some(operation) => Some(operation),
                    None => return Ok(StatementKind::Expression(left)),
                }
            }
            None => return Ok(StatementKind::Expression(left)),
        };
        let target = target(left, "assigned to")?;
        self.take()?;
        Ok(StatementKind::Assign {
            target,
            operation,
            value: self.expression()?,
        })
    }

    /// `let $variable`, with a type, a value, or both.
    fn declaration(&mut self) -> Parsed<StatementKind> {
        self.take()?;
        let variable = self.variable()?;
        let to = if self.accept(":")? {
            Some(self.type_name()?)
        } else {
            None
        };
        let value = if self.accept("=")? {
            Some(self.expression()?)
        } else {
            None
        };
        Ok(StatementKind::Let {
            variable,
            to,
            value,
        })
    }

    pub(super) fn branch(&mut self) -> Parsed<StatementKind> {
        self.take()?;
        let condition = self.expression()?;
        let then = self.block()?;
        let otherwise = if self.peek()? == Token::Word("else") {
            self.take()?;
            if self.peek()? == Token::Word("if") {
                let start = self.start()?;
                let kind = self.nested(Self::branch)?;
                let span = self.taken(start);
                Some(Block {
                    statements: vec![Statement { kind, span }],
                    span,
                })
            } else {
                Some(self.block()?)
            }
        } else {
            None
        };
        Ok(StatementKind::If {
            condition,
            then,
            otherwise,
        })
    }

    fn unroll(&mut self) -> Parsed<StatementKind> {
        const HELP: &str = "write `unroll (5) { … }`";
        self.take()?;
        self.expect("(", HELP)?;
        let count = self.expression()?;
        let ExpressionKind::Integer(count @ 1..) = count.kind else {
            return Err(Diagnostic::new(
                count.span,
                "the block is repeated as often as a number says, at least once",
                HELP,
            ));
        };
        self.expect(")", HELP)?;
        let body = self.block()?;
        Ok(StatementKind::Unroll { count, body })
    }

    fn range(&mut self) -> Parsed<StatementKind> {
        const HELP: &str = "write `for ($i : 0..10) { … }`, or `for ($kv : @map) { … }`";
        self.take()?;
        let in_parentheses = self.accept("(")?;
        let variable = self.variable()?;
        self.expect(":", HELP)?;
        let from = self.expression()?;
        match self.peek()? {
            Token::Sign("..") => self.take()?,
            Token::Sign("..=") => {
                return Err(Diagnostic::new(
                    self.next_span(),
                    "`..=` is not in this language",
                    "the end of `..` is not reached: for 1, 2 and 3 write `1..4`",
                ));
            }
            Token::Sign(")" | "{") if matches!(from.kind, ExpressionKind::Map(_)) => {
                if in_parentheses {
                    self.expect(")", HELP)?;
                }
                return self.for_each(variable, from);
            }
            _ => return Err(self.unexpected("`..`", HELP)),
        };
        let to = self.expression()?;
        if in_parentheses {
            self.expect(")", HELP)?;
        }
        let body = self.block()?;
        Ok(StatementKind::For {
            variable,
            from,
            to,
            body,
        })
    }

    /// The rest of `for ($kv : @map) { … }`.
    fn for_each(&mut self, variable: Name, of: Expression) -> Parsed<StatementKind> {
        let ExpressionKind::Map(map) = of.kind else {
            return Err(self.unexpected("`..`", "write `for ($i : 0..10) { … }`"));
        };
        if !map.keys.is_empty() {
            return Err(Diagnostic::new(
                map.span,
                "a loop goes over a whole map, and this is the value of one key",
                format!(
                    "write `for (${} : @{}) {{ … }}`",
                    variable.text, map.name.text
                ),
            ));
        }
        let body = self.block()?;
        Ok(StatementKind::ForEach {
            variable,
            map: map.name,
            body,
        })
    }

    fn while_loop(&mut self) -> Parsed<StatementKind> {
        self.take()?;
        let condition = self.expression()?;
        let body = self.block()?;
        Ok(StatementKind::While { condition, body })
    }

    fn match_value(&mut self) -> Parsed<StatementKind> {
        self.take()?;
        let value = self.expression()?;
        let open = self.expect("{", "write `match value { Variant => { … }, _ => { … } }`")?;
        let mut arms = Vec::new();
        self.nested(|parser| {
            loop {
                match parser.peek()? {
                    Token::Sign("}") => break,
                    Token::End => {
                        return Err(Diagnostic::new(
                            open,
                            "this `match` does not end",
                            "end it with `}`",
                        ));
                    }
                    _ => {}
                }
                arms.push(parser.arm()?);
            }
            Ok(())
        })?;
        self.expect("}", "")?;
        Ok(StatementKind::Match { value, arms })
    }

    fn arm(&mut self) -> Parsed<Arm> {
        let start = self.start()?;
        let mut patterns = vec![self.pattern()?];
        while self.accept("|")? {
            patterns.push(self.pattern()?);
        }
        let binds = |pattern: &Pattern| match &pattern.kind {
            PatternKind::Variant { bindings, .. } => !bindings.is_empty(),
            _ => false,
        };
        if patterns.len() > 1
            && let Some(pattern) = patterns.iter().find(|pattern| binds(pattern))
        {
            self.tell(Diagnostic::new(
                pattern.span,
                "a pattern with variables cannot be one of several",
                "give it an arm of its own",
            ));
        }
        self.expect("=>", "an arm is written `Variant => { … }`")?;
        let body = if self.peek()? == Token::Sign("{") {
            self.block()?
        } else {
            let start = self.start()?;
            let kind = self.assignment()?;
            let span = self.taken(start);
            Block {
                statements: vec![Statement { kind, span }],
                span,
            }
        };
        let span = self.taken(start);
        let ends_with_block = self.text[..self.end].ends_with('}');
        if !self.accept(",")? && !ends_with_block && self.peek()? != Token::Sign("}") {
            return Err(self.unexpected("`,` or `}`", "arms are separated by `,`"));
        }
        Ok(Arm {
            patterns,
            body,
            span,
        })
    }

    fn pattern(&mut self) -> Parsed<Pattern> {
        let (token, span) = lexer::token(self.text, self.position)?;
        let kind = match token {
            Token::Word("_") => {
                self.take()?;
                PatternKind::Any
            }
            Token::Word(word @ ("true" | "false")) => {
                self.take()?;
                PatternKind::Boolean(word == "true")
            }
            Token::Number(digits) => {
                let number = lexer::integer(digits, span)?;
                self.take()?;
                PatternKind::Integer(number)
            }
            Token::Sign("-") => {
                self.take()?;
                let (token, span) = lexer::token(self.text, self.position)?;
                let Token::Number(digits) = token else {
                    return Err(self.unexpected("a number", ""));
                };
                let number = lexer::integer(digits, span)?;
                if number > 1 << 63 {
                    return Err(Diagnostic::new(
                        span,
                        "this number does not fit into 64 bits",
                        "numbers are those from -9223372036854775808 to 18446744073709551615",
                    ));
                }
                self.take()?;
                PatternKind::Integer(number.wrapping_neg())
            }
            Token::String(text) => {
                let text = lexer::string(text, span)?;
                self.take()?;
                PatternKind::String(text)
            }
            Token::Word(word) if !is_keyword(word) => self.variant()?,
            _ => {
                return Err(self.unexpected(
                    "a pattern",
                    "patterns are variants as `Ok` and `Some($x)`, numbers, \"texts\", and `_` for \
                     the rest",
                ));
            }
        };
        Ok(Pattern {
            kind,
            span: self.taken(span.start),
        })
    }

    /// `path::to::Variant`, `Variant($a, _)`, `Variant { field: $a }`.
    fn variant(&mut self) -> Parsed<PatternKind> {
        let mut name = self.word("a variant", "")?;
        while self.accept("::")? {
            let next = self.word("a name after `::`", "")?;
            name.text += "::";
            name.text += &next.text;
            name.span = name.span.to(next.span);
        }
        let mut bindings = Vec::new();
        if self.accept("(")? {
            let mut index = 0;
            while self.peek()? != Token::Sign(")") {
                if self.peek()? == Token::Word("_") {
                    self.take()?;
                } else {
                    let variable = self.variable()?;
                    let field = Name {
                        text: format!("{index}"),
                        span: variable.span,
                    };
                    bindings.push(Binding { field, variable });
                }
                index += 1;
                if !self.accept(",")? {
                    break;
                }
            }
            self.expect(")", "write `Variant($a, _)`")?;
        } else if self.accept("{")? {
            while self.peek()? != Token::Sign("}") {
                let field = self.word("the name of a field", "write `Variant { field: $a }`")?;
                self.expect(":", "write `Variant { field: $a }`")?;
                let variable = self.variable()?;
                bindings.push(Binding { field, variable });
                if !self.accept(",")? {
                    break;
                }
            }
            self.expect("}", "write `Variant { field: $a }`")?;
        }
        Ok(PatternKind::Variant { name, bindings })
    }
}
