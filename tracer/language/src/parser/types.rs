//! The names of types: in casts, in declarations, and in `typeof`, `sizeof` and `offsetof`.
//!
//! ```text
//!   u8   kernel::fs::File   &[u8]   *const File   struct file *   u8[4]   typeof($x)
//! ```
//!
//! A word may name a type or a value, and only the compiler knows which. So a word alone is a value
//! here, where both may stand, and a type where its form tells that it is one.

use alloc::{boxed::Box, string::String};

use super::{Parsed, Parser, is_keyword};
use crate::{
    depth::{MAX_DEPTH, too_deep},
    diagnostic::Diagnostic,
    lexer::{self, Token},
    tree::{Span, TypeKind, TypeName},
};

/// What helps where `typeof` is written in a way that means nothing.
const OF_HELP: &str = "write `let $y: typeof($x) = value`, `(typeof($x))value` or \
                       `sizeof(typeof($x))`";

impl Parser<'_> {
    /// `(TYPE)` before a value, if that comes next, and how high the values in it are.
    ///
    /// `(a) - b` could be both: it is a cast if `a` is a type by its name, because nothing else
    /// tells. After `(typeof(` nothing is tried twice, so a deep text is read in one go.
    pub(super) fn cast(&mut self) -> Parsed<Option<(TypeName, usize)>> {
        let (position, end) = (self.position, self.end);
        self.take()?;
        let is_named_type = matches!(self.peek(), Ok(Token::Word("struct" | "enum" | "union")));
        let is_of_value = begins_typeof(self);
        let found = type_with_height(self);
        if is_of_value {
            let (to, height) = found?;
            self.expect(")", OF_HELP)?;
            return match self.peek()? {
                Token::Sign(
                    ")" | "]" | "}" | ";" | "," | "=" | "?" | ":" | "." | "->" | "[" | "/",
                )
                | Token::End => Err(not_a_value(to.span)),
                _ => Ok(Some((to, height))),
            };
        }
        if let Ok((to, height)) = found
            && self.peek() == Ok(Token::Sign(")"))
        {
            self.take()?;
            let value_follows = match self.peek() {
                Ok(
                    Token::Word(_)
                    | Token::Variable(_)
                    | Token::Parameter(_)
                    | Token::ParameterCount
                    | Token::Map(_)
                    | Token::Number(_)
                    | Token::String(_),
                ) => true,
                Ok(Token::Sign("(" | "-" | "!" | "~" | "*" | "++" | "--")) => {
                    is_named_type || to.is_type_by_name()
                }
                _ => false,
            };
            if value_follows {
                return Ok(Some((to, height)));
            }
        }
        (self.position, self.end) = (position, end);
        Ok(None)
    }

    /// `u8`, `&Type`, `*const Type`, `&[Type]`, `struct type *`.
    pub(super) fn type_name(&mut self) -> Parsed<TypeName> {
        let (token, start) = lexer::token(self.text, self.position)?;
        let mut name = match token {
            Token::Sign(sign @ ("&" | "&&" | "*")) => {
                self.take()?;
                if let Token::Word("mut" | "const") = self.peek()? {
                    self.take()?;
                } else if sign == "*" {
                    return Err(self.unexpected("`const` or `mut`", ""));
                }
                let to = self.nested(Self::type_name)?;
                let span = start.to(to.span);
                let pointer = |to, start| TypeName {
                    kind: TypeKind::Pointer(Box::new(to)),
                    span: Span::new(start, span.end),
                };
                if sign == "&&" {
                    pointer(pointer(to, start.start + 1), start.start)
                } else {
                    pointer(to, start.start)
                }
            }
            Token::Sign("[") => {
                self.take()?;
                let of = Box::new(self.nested(Self::type_name)?);
                let kind = if self.accept(";")? {
                    let count = array_length(self)?;
                    TypeKind::Array { of, count }
                } else {
                    TypeKind::Slice(of)
                };
                let end = self.expect("]", "")?;
                TypeName {
                    kind,
                    span: start.to(end),
                }
            }
            _ if begins_typeof(self) => type_of(self)?,
            _ => self.type_path()?,
        };
        // C's pointers and arrays.
        let mut signs = 0;
        while let Token::Sign("*" | "[") = self.peek()? {
            signs += 1;
            if self.depth + signs > MAX_DEPTH {
                return Err(too_deep(name.span));
            }
            let (sign, _) = self.take()?;
            let start = name.span.start;
            let kind = match sign {
                Token::Sign("*") => TypeKind::Pointer(Box::new(name)),
                _ => {
                    let of = Box::new(name);
                    match self.peek()? {
                        Token::Sign("]") => TypeKind::Slice(of),
                        _ => TypeKind::Array {
                            of,
                            count: array_length(self)?,
                        },
                    }
                }
            };
            if !matches!(kind, TypeKind::Pointer(_)) {
                self.expect("]", "an array type is written `type[count]`")?;
            }
            name = TypeName {
                kind,
                span: self.taken(start),
            };
        }
        Ok(name)
    }

    /// `path::to::Type<Argument>`, with C's `struct` before it.
    fn type_path(&mut self) -> Parsed<TypeName> {
        let (token, mut start) = lexer::token(self.text, self.position)?;
        if let Token::Word("struct" | "enum" | "union") = token {
            self.take()?;
            start.start = self.start()?;
        }
        if !matches!(self.peek()?, Token::Word(word) if !is_keyword(word)) {
            return Err(self.unexpected("a type", ""));
        }
        let text = &self.text[start.start..];
        let length = path_length(text);
        self.position = start.start + length;
        self.end = self.position;
        Ok(TypeName {
            kind: TypeKind::Named(tidy(&text[..length])),
            span: self.taken(start.start),
        })
    }
}

/// Whether `typeof(` comes next.
pub(super) fn begins_typeof(parser: &Parser<'_>) -> bool {
    let next = lexer::token(parser.text, parser.position);
    matches!(next, Ok((Token::Word("typeof"), span))
        if matches!(lexer::token(parser.text, span.end), Ok((Token::Sign("("), _))))
}

/// Reads a type, and tells how high the values in it are.
pub(super) fn type_with_height(parser: &mut Parser<'_>) -> Parsed<(TypeName, usize)> {
    let before = core::mem::replace(&mut parser.deepest, parser.depth);
    let parsed = parser.type_name();
    let height = parser.deepest - parser.depth;
    parser.deepest = parser.deepest.max(before);
    Ok((parsed?, height))
}

/// A type where a value may stand as well, if its form tells that it is one.
pub(super) fn plain_type(parser: &mut Parser<'_>) -> Parsed<Option<(TypeName, usize)>> {
    if begins_typeof(parser) {
        return type_with_height(parser).map(Some);
    }
    let (position, end) = (parser.position, parser.end);
    let is_struct = matches!(parser.peek()?, Token::Word("struct" | "enum" | "union"));
    if let Ok(found) = type_with_height(parser)
        && matches!(parser.peek(), Ok(Token::Sign(")" | ",")))
    {
        let is_type = match &found.0.kind {
            TypeKind::Named(_) => is_struct,
            // `TABLE[3]` is an element of a static.
            TypeKind::Array { of, .. } => of.is_known(),
            TypeKind::Pointer(_) | TypeKind::Slice(_) | TypeKind::Of(_) => true,
        };
        if is_type {
            return Ok(Some(found));
        }
    }
    (parser.position, parser.end) = (position, end);
    Ok(None)
}

/// `typeof(value)`, or the type itself in `typeof(TYPE)`.
fn type_of(parser: &mut Parser<'_>) -> Parsed<TypeName> {
    let (_, start) = parser.take()?;
    parser.expect("(", OF_HELP)?;
    let of = parser.nested(|parser| match plain_type(parser)? {
        Some((of, _)) => Ok(of),
        None => {
            let in_predicate = core::mem::replace(&mut parser.in_predicate, false);
            let of = parser.expression();
            parser.in_predicate = in_predicate;
            let of = of?;
            Ok(TypeName {
                span: of.span,
                kind: TypeKind::Of(Box::new(of)),
            })
        }
    })?;
    let end = parser.expect(")", OF_HELP)?;
    Ok(TypeName {
        kind: of.kind,
        span: start.to(end),
    })
}

/// A type where a value is wanted.
fn not_a_value(span: Span) -> Diagnostic {
    Diagnostic::new(
        span,
        "`typeof` is a type here, and a value is wanted",
        OF_HELP,
    )
}

fn array_length(parser: &mut Parser<'_>) -> Parsed<u64> {
    let (token, span) = parser.take()?;
    match token {
        Token::Number(digits) => lexer::integer(digits, span),
        _ => Err(Diagnostic::new(
            span,
            "the length of an array type is a number",
            "",
        )),
    }
}

/// The length of the path that a text begins with. Between angle brackets it includes all that
/// types have.
fn path_length(text: &str) -> usize {
    let mut brackets = 0_usize;
    let mut parentheses = 0_usize;
    let mut before = ' ';
    let mut length = 0;
    for (at, letter) in text.char_indices() {
        match letter {
            '<' => brackets += 1,
            '>' if before != '-' && brackets > 0 => brackets -= 1,
            ':' if text[at..].starts_with("::") || before == ':' => {}
            _ if lexer::is_word(letter) => {}
            _ if brackets == 0 => break,
            '(' => parentheses += 1,
            ')' if parentheses > 0 => parentheses -= 1,
            ')' | '"' | '$' | '@' | '?' | '|' | '}' => break,
            _ => {}
        }
        before = letter;
        length = at + letter.len_utf8();
    }
    // A bracket that is not closed is a comparison.
    match (brackets, text.find('<')) {
        (1.., Some(bracket)) => bracket,
        _ => length,
    }
}

/// A path with a blank after each comma, and between words.
fn tidy(path: &str) -> String {
    let mut tidy = String::new();
    let mut letters = path.chars().peekable();
    let mut before = ' ';
    while let Some(letter) = letters.next() {
        if letter.is_whitespace() {
            let next = letters.peek().copied().unwrap_or(' ');
            if lexer::is_word(before) && lexer::is_word(next) {
                tidy.push(' ');
                before = ' ';
            }
            continue;
        }
        tidy.push(letter);
        before = letter;
        if letter == ',' {
            tidy.push(' ');
        }
    }
    tidy
}

impl TypeName {
    /// Whether the name alone says that it is a type.
    pub(crate) fn is_type_by_name(&self) -> bool {
        let TypeKind::Named(path) = &self.kind else {
            return true;
        };
        let head = path.split('<').next().unwrap_or(path);
        let last = head.rsplit("::").next().unwrap_or(head);
        self.is_known() || last.starts_with(char::is_uppercase)
    }

    /// Whether it is not a word, or one that means a type anywhere.
    fn is_known(&self) -> bool {
        const KNOWN: [&str; 29] = [
            "string", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64",
            "i128", "isize", "bool", "char", "str", "uint8", "uint16", "uint32", "uint64", "int8",
            "int16", "int32", "int64", "uint8_t", "uint16_t", "uint32_t", "uint64_t", "int",
        ];
        match &self.kind {
            TypeKind::Named(path) => KNOWN.contains(&path.as_str()),
            _ => true,
        }
    }
}
