//! Reads filters.
//!
//! Quotes and parentheses are looked at first, as in Linux, so their errors come before all others.
//! Then the expression is read from left to right with a list of the levels that are open. Depth
//! costs memory and no stack, and the kernel's is small. Each error has the column of Linux.

use alloc::vec::Vec;

use fallible::{OutOfMemory, copied, push, try_box};

use super::{
    Comparison, Expression, Filter, FilterError, FilterReason as Reason, Pattern, Subject, Test,
};
use crate::{
    field::{Element, Field, Symbols, Width},
    number,
};

impl Filter {
    /// Reads a filter of an event with `fields`. The common ones need not be among them.
    ///
    /// # Errors
    /// [`FilterError`].
    pub fn parse(text: &str, fields: &[Field], symbols: &dyn Symbols) -> Result<Self, FilterError> {
        // The spaces in front stay, because columns count them.
        let text = text.trim_end();
        check_quotes_and_parens(text.as_bytes())?;
        let mut parser = Parser {
            text: text.as_bytes(),
            at: 0,
            fields,
            symbols,
        };
        if parser.peek().is_none() {
            return Err(FilterError::new(Reason::NoFilter, 0));
        }
        let root = parser.expression()?;
        Ok(Self {
            text: copied(text.trim_start())?,
            root,
        })
    }
}

/// Linux looks at quotes and parentheses first, so their errors come before all others.
fn check_quotes_and_parens(text: &[u8]) -> Result<(), FilterError> {
    // Where parentheses are open, and how many.
    let (mut open, mut opened) = ([0; Filter::MOST_PARENS], 0);
    let mut quote = None;
    for (at, &byte) in text.iter().enumerate() {
        match (quote, byte) {
            (Some((closing, _)), _) if byte == closing => quote = None,
            (Some(_), _) => {}
            (None, b'\'' | b'"') => quote = Some((byte, at)),
            (None, b'(') => {
                let Some(place) = open.get_mut(opened) else {
                    return Err(FilterError::new(Reason::TooManyOpen, at));
                };
                *place = at;
                opened += 1;
            }
            (None, b')') => match opened.checked_sub(1) {
                Some(left) => opened = left,
                None => return Err(FilterError::new(Reason::TooManyClose, at)),
            },
            _ => {}
        }
    }
    if let Some((_, at)) = quote {
        return Err(FilterError::new(Reason::MissingQuote, at));
    }
    match open[..opened].last() {
        Some(&at) => Err(FilterError::new(Reason::TooManyOpen, at)),
        None => Ok(()),
    }
}

/// The operators. One that begins with another one comes before it.
const OPERATORS: [(&[u8], Operator); 8] = [
    (b"~", Operator::Glob),
    (b"!=", Operator::Number(Comparison::NotEqual)),
    (b"==", Operator::Number(Comparison::Equal)),
    (b"<=", Operator::Number(Comparison::LessOrEqual)),
    (b"<", Operator::Number(Comparison::Less)),
    (b">=", Operator::Number(Comparison::GreaterOrEqual)),
    (b">", Operator::Number(Comparison::Greater)),
    (b"&", Operator::Number(Comparison::AnyBit)),
];

/// The most letters of a number.
const MOST_NUMBER_BYTES: usize = 23;

#[derive(Clone, Copy)]
enum Operator {
    Glob,
    Number(Comparison),
}

/// The part that is read of one pair of parentheses, or of the filter as a whole.
#[derive(Default)]
struct Level {
    /// Whether a `!` stands before it.
    negated: bool,
    /// The parts before the last `||`.
    any: Vec<Expression>,
    /// The parts after it, joined by `&&`.
    all: Vec<Expression>,
}

impl Level {
    /// Joins the parts after the last `||`.
    fn end_all(&mut self) -> Result<(), OutOfMemory> {
        let all = core::mem::take(&mut self.all);
        push_flat(
            &mut self.any,
            join(all, Expression::And),
            |part| match part {
                Expression::Or(parts) => Ok(parts),
                part => Err(part),
            },
        )
    }

    fn end(mut self) -> Result<Expression, OutOfMemory> {
        self.end_all()?;
        let joined = join(self.any, Expression::Or);
        if self.negated {
            negate(joined)
        } else {
            Ok(joined)
        }
    }

    fn push(&mut self, part: Expression) -> Result<(), OutOfMemory> {
        push_flat(&mut self.all, part, |part| match part {
            Expression::And(parts) => Ok(parts),
            part => Err(part),
        })
    }
}

/// Adds a part, or its parts if it is a join of the same kind, because parentheses need not stay.
fn push_flat(
    parts: &mut Vec<Expression>,
    part: Expression,
    same_kind: fn(Expression) -> Result<Vec<Expression>, Expression>,
) -> Result<(), OutOfMemory> {
    match same_kind(part) {
        Ok(inner) => {
            parts.try_reserve(inner.len()).map_err(|_| OutOfMemory)?;
            parts.extend(inner);
            Ok(())
        }
        Err(part) => push(parts, part),
    }
}

fn join(mut parts: Vec<Expression>, kind: fn(Vec<Expression>) -> Expression) -> Expression {
    match parts.len() {
        1 => parts.remove(0),
        _ => kind(parts),
    }
}

fn negate(part: Expression) -> Result<Expression, OutOfMemory> {
    Ok(match part {
        Expression::Not(part) => *part,
        part => Expression::Not(try_box(part)?),
    })
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    fields: &'a [Field],
    symbols: &'a dyn Symbols,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a [u8] {
        &self.text[self.at..]
    }

    fn byte(&self) -> Option<u8> {
        self.rest().first().copied()
    }

    /// The next byte that is no space.
    fn peek(&mut self) -> Option<u8> {
        while self.byte().is_some_and(is_space) {
            self.at += 1;
        }
        self.byte()
    }

    /// Goes over `token`, if it comes next.
    fn take(&mut self, token: &[u8]) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    /// Goes over the bytes that `wanted` holds for, and gives them.
    fn take_while(&mut self, wanted: impl Fn(u8) -> bool) -> &'a [u8] {
        let start = self.at;
        while self.byte().is_some_and(&wanted) {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    /// An error inside a test, where columns count from 1.
    fn error<T>(&self, reason: Reason) -> Result<T, FilterError> {
        Err(FilterError::new(reason, self.at + 1))
    }

    /// Reads all. Levels are on a list instead of the stack, because kernel stacks are small.
    fn expression(&mut self) -> Result<Expression, FilterError> {
        let mut outer: Vec<Level> = Vec::new();
        let mut level = Level::default();
        loop {
            let mut negated = false;
            while self.peek() == Some(b'!') && !matches!(self.rest().get(1), Some(b'=' | b'~')) {
                self.at += 1;
                negated = !negated;
            }
            match self.peek() {
                Some(b'(') => {
                    self.at += 1;
                    // Each level has read a parenthesis of its own.
                    debug_assert!(outer.len() < self.at);
                    let inner = Level {
                        negated,
                        ..Level::default()
                    };
                    push(&mut outer, core::mem::replace(&mut level, inner))?;
                    continue;
                }
                None | Some(b')') => return Err(FilterError::new(Reason::Meaningless, self.at)),
                Some(_) => {}
            }
            let test = Expression::Test(self.test()?);
            level.push(if negated { negate(test)? } else { test })?;
            while self.peek() == Some(b')') {
                self.at += 1;
                let Some(around) = outer.pop() else {
                    return Err(FilterError::new(Reason::TooManyClose, self.at));
                };
                let inner = core::mem::replace(&mut level, around);
                level.push(inner.end()?)?;
            }
            if self.byte().is_none() {
                break;
            } else if self.take(b"||") {
                level.end_all()?;
            } else if !self.take(b"&&") {
                return Err(FilterError::new(Reason::TooManyTerms, self.at));
            }
        }
        if outer.is_empty() {
            Ok(level.end()?)
        } else {
            Err(FilterError::new(Reason::TooManyOpen, self.at))
        }
    }

    fn subject(&self, name: &[u8]) -> Result<Option<Subject>, OutOfMemory> {
        let found = self
            .fields
            .iter()
            .find(|field| field.name.as_bytes() == name);
        Ok(match (found, name) {
            (Some(field), _) => Some(Subject::Field(field.try_clone()?)),
            (None, b"comm" | b"COMM") => Some(Subject::Comm),
            (None, b"cpu" | b"CPU" | b"common_cpu") => Some(Subject::Cpu),
            (None, _) => Field::common()
                .into_iter()
                .find(|field| field.name.as_bytes() == name)
                .map(Subject::Field),
        })
    }

    fn test(&mut self) -> Result<Test, FilterError> {
        let start = self.at;
        self.take_while(is_name);
        let Some(subject) = self.subject(&self.text[start..self.at])? else {
            return self.error(Reason::FieldNotFound);
        };
        if let Subject::Field(field) = &subject
            && field.is_only_in_records()
        {
            return self.error(Reason::OnlyInRecords);
        }
        let function = self.take(b".function");
        self.peek();
        let operator = OPERATORS.iter().find(|(sign, _)| self.take(sign));
        let Some(&(_, operator)) = operator else {
            return self.error(Reason::InvalidOperator);
        };
        self.peek();
        if subject.element().is_none() {
            return self.error(Reason::IllegalFieldOperation);
        }
        if function {
            return self.function(subject, operator);
        }
        match self.byte() {
            Some(quote @ (b'\'' | b'"')) => self.quoted(subject, operator, quote),
            Some(b'-' | b'0'..=b'9') => self.number(subject, operator),
            _ => self.error(Reason::InvalidValue),
        }
    }

    fn quoted(
        &mut self,
        subject: Subject,
        operator: Operator,
        quote: u8,
    ) -> Result<Test, FilterError> {
        let negated = match operator {
            Operator::Glob | Operator::Number(Comparison::Equal) => false,
            Operator::Number(Comparison::NotEqual) => true,
            Operator::Number(_) if subject.element() != Some(Element::Char) => {
                return self.error(Reason::IllegalFieldOperation);
            }
            Operator::Number(_) => false,
        };
        let start = self.at;
        self.at += 1;
        let text = self.take_while(|byte| byte != quote);
        let end = self.at;
        self.at += 1;
        match (subject.element(), operator, text) {
            (Some(Element::String), _, _) => {}
            (Some(Element::Char), Operator::Number(comparison), &[byte]) => {
                return Ok(Test::Number {
                    subject,
                    comparison,
                    value: byte.into(),
                });
            }
            _ => return Err(FilterError::new(Reason::ExpectDigit, start + 1)),
        }
        if text.len() > Pattern::MOST_BYTES {
            return Err(FilterError::new(Reason::OperandTooLong, end + 1));
        }
        let (pattern, negated) = match (operator, text.split_first()) {
            (Operator::Glob, Some((b'!', text))) => (Pattern::glob(text)?, true),
            (Operator::Glob, _) => (Pattern::glob(text)?, false),
            _ => (Pattern::exact(text)?, negated),
        };
        Ok(Test::Text {
            subject,
            negated,
            pattern,
        })
    }

    fn number(&mut self, subject: Subject, operator: Operator) -> Result<Test, FilterError> {
        let start = self.at;
        let Some((width, signed)) = subject.number() else {
            return self.error(Reason::ExpectString);
        };
        let Operator::Number(comparison) = operator else {
            return self.error(Reason::IllegalFieldOperation);
        };
        let negative = self.take(b"-");
        let digits = self.take_while(|byte| byte.is_ascii_alphanumeric());
        let value = core::str::from_utf8(digits).ok().and_then(number::digits);
        let value = value.and_then(|value| match (signed, negative) {
            (true, true) => (value <= 1 << 63).then(|| value.wrapping_neg()),
            (true, false) => (value < 1 << 63).then_some(value),
            (false, false) => Some(value),
            (false, true) => None,
        });
        if self.at - start > MOST_NUMBER_BYTES {
            return self.error(Reason::OperandTooLong);
        }
        let Some(value) = value else {
            return Err(FilterError::new(Reason::IllegalInteger, start + 1));
        };
        let value = match signed {
            true => width.sign_extend(value) as u64,
            false => width.truncate(value),
        };
        Ok(Test::Number {
            subject,
            comparison,
            value,
        })
    }

    fn function(&mut self, subject: Subject, operator: Operator) -> Result<Test, FilterError> {
        let field = match subject {
            Subject::Field(field) if field.size() == Width::W64.bytes() && !field.is_string() => {
                field
            }
            _ => return self.error(Reason::IllegalFieldOperation),
        };
        let negated = match operator {
            Operator::Number(Comparison::Equal) => false,
            Operator::Number(Comparison::NotEqual) => true,
            _ => return self.error(Reason::InvalidOperator),
        };
        let digit = self.byte().is_some_and(|byte| byte.is_ascii_digit());
        let name = self.take_while(|byte| !is_space(byte) && !b")&|".contains(&byte));
        let address = core::str::from_utf8(name)
            .ok()
            .and_then(|name| match digit {
                true => number::digits(name),
                false => self.symbols.address(name).ok(),
            });
        if digit && address.is_none() {
            return self.error(Reason::InvalidValue);
        }
        let range = address.and_then(|address| {
            let symbol = self.symbols.symbol(address)?;
            let start = address.checked_sub(symbol.offset)?;
            Some((start, start.checked_add(symbol.size)?))
        });
        match range {
            Some((start, end)) => Ok(Test::Function {
                field,
                negated,
                start,
                end,
            }),
            None => self.error(Reason::FunctionNotFound),
        }
    }
}

const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

const fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}
