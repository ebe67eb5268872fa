//! Turns tokens into a tree, by recursive descent; operators have a stack of their own.
//!
//! PARSER-1. Each recursion goes through [`Parser::nested`], which bounds it.
//! PARSER-2. After a mistake the parser goes on after the next `;` or before the next `}`, always
//!     at least a letter further, so that the rest of the text is checked, too.

mod blocks;
mod declarations;
mod expressions;
mod named;
mod probes;
mod statements;
mod types;

pub(crate) use probes::is_plain_pattern;

use alloc::{format, string::String, vec, vec::Vec};

use crate::{
    depth::{MAX_DEPTH, no_room, too_deep},
    diagnostic::{Diagnostic, quoted},
    directives::without_directives,
    lexer::{self, Token},
    macros::{self, Macro},
    tree::{Clause, Expression, MapDeclaration, Name, ReturnPart, Setting, Span, Tree},
};

/// More mistakes than this in one text are not reported.
const MAX_DIAGNOSTICS: usize = 20;

type Parsed<T> = Result<T, Diagnostic>;

/// Reads a program.
///
/// # Errors
/// All that is found wrong with it, in the order of the text.
pub fn parse(text: &str) -> Result<Tree, Vec<Diagnostic>> {
    parse_with(text, &[])
}

/// Reads a program with arguments: `$1` is the first one, `$#` their number. An argument that is a
/// number is one in the program, too; `str($1)` is its text in any case. One that is not given is
/// 0, or the empty text.
///
/// # Errors
/// Same as [`parse`].
pub fn parse_with(text: &str, arguments: &[&str]) -> Result<Tree, Vec<Diagnostic>> {
    parse_with_room(text, arguments, || true)
}

/// Same as [`parse_with`], on a stack that may be too small for the deepest text: `has_room` tells
/// whether there is enough for another level ([`BYTES_OF_LEVEL`](crate::BYTES_OF_LEVEL)). It is
/// called at each level.
///
/// # Errors
/// Same as [`parse`].
pub fn parse_with_room(
    text: &str,
    arguments: &[&str],
    has_room: fn() -> bool,
) -> Result<Tree, Vec<Diagnostic>> {
    let (plain, definitions) = without_directives(text).map_err(|mistake| vec![mistake])?;
    let mut parser = Parser::new(&plain, arguments);
    parser.has_room = has_room;
    for definition in definitions {
        if let Err(mistake) = declarations::definition(&mut parser, text, &definition) {
            parser.tell(mistake);
        }
    }
    let clauses = parser.clauses();
    parser.diagnostics.extend(named::unknown(&parser));
    if !parser.diagnostics.is_empty() {
        return Err(parser.diagnostics);
    }
    let mut tree = Tree {
        settings: parser.settings,
        maps: parser.maps,
        clauses,
    };
    let mistakes = match parser.macros.is_empty() {
        true => Vec::new(),
        false => macros::expand(&mut tree, &parser.macros, has_room),
    };
    match mistakes.is_empty() {
        true => Ok(tree),
        false => Err(mistakes),
    }
}

/// Reads an expression alone.
///
/// # Errors
/// Its first mistake.
pub fn parse_expression(text: &str, arguments: &[&str]) -> Result<Expression, Diagnostic> {
    let mut parser = Parser::new(text, arguments);
    let expression = parser.expression()?;
    // Statements of a block tell their mistakes and go on.
    if !parser.diagnostics.is_empty() {
        return Err(parser.diagnostics.remove(0));
    }
    match parser.peek()? {
        Token::End => Ok(expression),
        _ => Err(parser.unexpected("the end of the expression", "")),
    }
}

struct Parser<'a> {
    text: &'a str,
    /// The arguments of the program: those without a name, and the others.
    arguments: Vec<&'a str>,
    named: Vec<&'a str>,
    /// The named ones that the program asks for.
    options: Vec<named::Known>,
    /// The position of the first letter that is not taken.
    position: usize,
    /// The end of the token that was taken last.
    end: usize,
    depth: usize,
    /// The deepest place of the block that is being read.
    deepest: usize,
    /// A `/` before `{` is the predicate's end.
    in_predicate: bool,
    /// Whether the stack has room for another level.
    has_room: fn() -> bool,
    settings: Vec<Setting>,
    maps: Vec<MapDeclaration>,
    macros: Vec<Macro>,
    diagnostics: Vec<Diagnostic>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, arguments: &'a [&'a str]) -> Self {
        let (named, arguments) = arguments.iter().partition(|of| named::is_named(of));
        Self {
            text,
            arguments,
            named,
            options: Vec::new(),
            position: 0,
            end: 0,
            depth: 0,
            deepest: 0,
            in_predicate: false,
            has_room: || true,
            settings: Vec::new(),
            maps: Vec::new(),
            macros: Vec::new(),
            diagnostics: Vec::new(),
        }
    }

    fn clauses(&mut self) -> Vec<Clause> {
        let mut clauses = Vec::new();
        loop {
            match self.peek() {
                Ok(Token::End) if clauses.is_empty() && self.diagnostics.is_empty() => {
                    self.tell(Diagnostic::new(
                        Span::new(self.position, self.text.len()),
                        "the program is empty",
                        "write a probe and what to do there: `kprobe:vfs_write { @ = count(); }`",
                    ));
                    return clauses;
                }
                Ok(Token::End) => return clauses,
                Ok(Token::Word("macro")) => match declarations::declared_macro(self) {
                    Ok(of) => self.macros.push(of),
                    Err(mistake) => {
                        self.tell(mistake);
                        self.skip_clause();
                    }
                },
                Ok(Token::Word("let")) => match declarations::map(self) {
                    Ok(of) => self.maps.push(of),
                    Err(mistake) => {
                        self.tell(mistake);
                        self.skip_clause();
                    }
                },
                Ok(Token::Word("config")) => {
                    let is_first =
                        clauses.is_empty() && self.macros.is_empty() && self.maps.is_empty();
                    if let Err(mistake) = declarations::config(self, is_first) {
                        self.tell(mistake);
                        self.skip_clause();
                    }
                }
                _ => match self.clause() {
                    Ok(clause) => clauses.push(clause),
                    Err(mistake) => {
                        self.tell(mistake);
                        self.skip_clause();
                    }
                },
            }
        }
    }

    fn clause(&mut self) -> Parsed<Clause> {
        let start = self.start()?;
        let probes = self.probes()?;
        let predicate = self.predicate()?;
        let body = self.block()?;
        let is_session = probes.iter().any(crate::tree::Probe::is_session);
        let on_return = if self.peek() == Ok(Token::Word("return")) {
            let return_start = self.start()?;
            self.take()?;
            let at = self.taken(return_start);
            if !is_session {
                self.tell(Diagnostic::new(
                    at,
                    "only a session has a return part",
                    "write `session:NAME` for the probe, or `kretprobe:NAME` for a return alone",
                ));
            }
            let predicate = self.predicate()?;
            let body = self.block()?;
            Some(ReturnPart {
                predicate,
                body,
                span: self.taken(return_start),
            })
        } else {
            if is_session {
                self.tell(Diagnostic::new(
                    probes[0].span,
                    "this session has no return part",
                    "write `return { … }` after its block, or `kprobe:` for the entry alone",
                ));
            }
            None
        };
        Ok(Clause {
            probes,
            predicate,
            body,
            on_return,
            span: self.taken(start),
        })
    }

    /// `/EXPRESSION/`, if there is one.
    fn predicate(&mut self) -> Parsed<Option<Expression>> {
        if self.peek()? != Token::Sign("/") {
            return Ok(None);
        }
        self.take()?;
        self.in_predicate = true;
        let predicate = self.expression();
        self.in_predicate = false;
        let predicate = predicate?;
        self.expect("/", "a predicate stands between two of them: `/pid == 3/`")?;
        Ok(Some(predicate))
    }

    /// Notes a mistake, unless there are too many.
    fn tell(&mut self, mistake: Diagnostic) {
        if self.diagnostics.len() < MAX_DIAGNOSTICS {
            self.diagnostics.push(mistake);
        }
    }

    /// The next token.
    fn peek(&self) -> Parsed<Token<'a>> {
        lexer::token(self.text, self.position).map(|(token, _)| token)
    }

    /// The next token's span.
    fn next_span(&self) -> Span {
        match lexer::token(self.text, self.position) {
            Ok((_, span)) => span,
            Err(mistake) => mistake.span,
        }
    }

    /// Where the next token begins.
    fn start(&self) -> Parsed<usize> {
        lexer::skip_blanks(self.text, self.position)
    }

    fn take(&mut self) -> Parsed<(Token<'a>, Span)> {
        let (token, span) = lexer::token(self.text, self.position)?;
        self.position = span.end;
        self.end = span.end;
        Ok((token, span))
    }

    /// The span from `start` to the end of what has been taken.
    fn taken(&self, start: usize) -> Span {
        Span::new(start, self.end.max(start))
    }

    /// Takes that sign if it comes next.
    fn accept(&mut self, sign: &str) -> Parsed<bool> {
        let is_next = matches!(self.peek()?, Token::Sign(found) if found == sign);
        if is_next {
            self.take()?;
        }
        Ok(is_next)
    }

    /// Takes that sign, which must come next.
    fn expect(&mut self, sign: &str, help: &str) -> Parsed<Span> {
        match self.peek()? {
            Token::Sign(found) if found == sign => Ok(self.take()?.1),
            _ => Err(self.unexpected(&format!("`{sign}`"), help)),
        }
    }

    /// The diagnostic for the next token, where something else was expected.
    fn unexpected(&self, expected: &str, help: &str) -> Diagnostic {
        match lexer::token(self.text, self.position) {
            Err(mistake) => mistake,
            Ok((token, span)) => {
                let found = match token {
                    Token::End => "the end of the text".into(),
                    _ => format!("`{}`", quoted(&self.text[span.range()])),
                };
                Diagnostic::new(span, format!("expected {expected}, found {found}"), help)
            }
        }
    }

    fn word(&mut self, expected: &str, help: &str) -> Parsed<Name> {
        match self.peek()? {
            Token::Word(text) => Ok(Name {
                text: text.into(),
                span: self.take()?.1,
            }),
            _ => Err(self.unexpected(expected, help)),
        }
    }

    fn variable(&mut self) -> Parsed<Name> {
        match self.peek()? {
            Token::Variable(text) => Ok(Name {
                text: text.into(),
                span: self.take()?.1,
            }),
            _ => Err(self.unexpected("a variable", "its name begins with `$`, as `$size`")),
        }
    }

    /// The argument of the program with that number, as written after `$`.
    fn argument(&self, number: &str) -> Option<&'a str> {
        let index = number.parse::<usize>().ok()?.checked_sub(1)?;
        self.arguments.get(index).copied()
    }

    /// Runs `parse` a level deeper.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth == MAX_DEPTH {
            return Err(too_deep(self.next_span()));
        }
        if !(self.has_room)() {
            return Err(no_room(self.next_span()));
        }
        self.depth += 1;
        self.deepest = self.deepest.max(self.depth);
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Skips past the next `;`, or to the `}` of the block that we are in.
    fn skip_statement(&mut self) {
        let mut blocks = 0_usize;
        loop {
            match self.peek() {
                Ok(Token::End) => return,
                Ok(Token::Sign("}")) if blocks == 0 => return,
                Ok(Token::Sign("}")) => {
                    blocks -= 1;
                    self.skip_token();
                    if blocks == 0 {
                        return;
                    }
                }
                Ok(Token::Sign("{")) => {
                    blocks += 1;
                    self.skip_token();
                }
                Ok(Token::Sign(";")) if blocks == 0 => {
                    self.skip_token();
                    return;
                }
                _ => self.skip_token(),
            }
        }
    }

    /// Skips past the next block.
    fn skip_clause(&mut self) {
        self.depth = 0;
        loop {
            match self.peek() {
                Ok(Token::End) => return,
                // This one ends a block whose beginning was part of the mistake.
                Ok(Token::Sign("}")) => {
                    self.skip_token();
                    return;
                }
                Ok(Token::Sign("{")) => {
                    self.skip_token();
                    self.skip_block();
                    return;
                }
                _ => self.skip_token(),
            }
        }
    }

    /// Skips past the end of a block whose `{` is taken.
    fn skip_block(&mut self) {
        let mut blocks = 1_usize;
        while blocks > 0 {
            match self.peek() {
                Ok(Token::End) => return,
                Ok(Token::Sign("{")) => blocks += 1,
                Ok(Token::Sign("}")) => blocks -= 1,
                _ => {}
            }
            self.skip_token();
        }
    }

    fn skip_token(&mut self) {
        self.position = self.next_span().end;
    }
}

/// Words that begin a statement or are values, so nothing else has such a name.
fn is_keyword(word: &str) -> bool {
    matches!(
        word,
        "break"
            | "continue"
            | "else"
            | "false"
            | "for"
            | "if"
            | "let"
            | "match"
            | "return"
            | "true"
            | "unroll"
            | "while"
    )
}

/// `` `a`, `b` and `c` ``.
fn listed(words: &[&str]) -> String {
    let mut text = String::new();
    for (index, word) in words.iter().enumerate() {
        if index > 0 {
            text += if index + 1 == words.len() {
                " and "
            } else {
                ", "
            };
        }
        text += &format!("`{word}`");
    }
    text
}
