//! Texts: compared, chosen, cut, and read from an address.
//!
//! A text ends with a NUL. Where one is kept, zeros fill it up, so equal texts have equal bytes. A
//! text that is longer than its place is cut there.

use alloc::boxed::Box;

use bpf::Condition;
use trace_interface::shape::Shape;
use trace_language::{
    Diagnostic,
    tree::{Expression, Span},
};

use super::{Copied, Copy, Either, Val, Values};
use crate::{
    Lowered,
    number::{Kind, Number, Test},
};

/// The most bytes of a text that a program asks for.
pub(super) const MOST_TEXT: u32 = 1023;

impl Values<'_, '_> {
    /// A value in the stack, where the program puts it first. It stays there, because it may be
    /// used at any time.
    pub(crate) fn copied(&mut self, of: Copied, shape: Shape, span: Span) -> Val {
        let to = self.memory.take_for_good(shape.bytes());
        self.copies.push(Copy {
            of,
            to,
            shape: shape.clone(),
            span,
        });
        Val::Stored { place: to, shape }
    }

    /// Whether two texts are equal.
    pub(crate) fn texts_equal(
        &mut self,
        left: Val,
        right: Val,
        spans: (Span, Span),
    ) -> Lowered<Test> {
        for (value, span) in [(&left, spans.0), (&right, spans.1)] {
            if !self.is_text(value) {
                return Err(Diagnostic::new(
                    span,
                    "a text can be compared with a text only",
                    "compare numbers with numbers; str(address) makes a text of an address",
                ));
            }
        }
        if let (Val::Literal(a), Val::Literal(b)) = (&left, &right) {
            return Ok(Test::Constant(a == b));
        }
        let present = left.present().and(right.present());
        self.texts.push((left, right, spans));
        Ok(present.and(Test::Text(self.texts.len() - 1)))
    }

    /// One of two texts.
    pub(crate) fn chosen_text(&mut self, test: Test, then: Val, otherwise: Val, span: Span) -> Val {
        let bytes = self.text_bytes(&then).max(self.text_bytes(&otherwise));
        let either = Box::new(Either {
            test,
            then,
            otherwise,
        });
        self.copied(Copied::Either(either), Shape::Text(bytes), span)
    }

    /// The bytes that a text is stored in.
    pub(crate) fn text_bytes(&self, value: &Val) -> u32 {
        match self.shape(value, false) {
            Shape::Text(bytes) | Shape::Counted(bytes) => bytes,
            _ => 8,
        }
    }

    /// Whether the first bytes of two texts are equal.
    pub(crate) fn texts_start_equal(
        &mut self,
        left: Val,
        right: Val,
        most: u32,
        spans: (Span, Span),
    ) -> Lowered<Test> {
        let (value, literal, span) = match (left, right) {
            (value, Val::Literal(text)) => (value, text, spans.0),
            (Val::Literal(text), value) => (value, text, spans.1),
            _ => {
                return Err(Diagnostic::new(
                    spans.1,
                    "one of the texts of strncmp must be one of the program's text",
                    "compare whole texts with ==",
                ));
            }
        };
        // As a number of bytes below the length of the literal are compared, and its NUL if the
        // comparison is longer than it.
        let compared = (most as usize).min(literal.len() + 1);
        let bytes = (compared as u32 + 1).next_multiple_of(8);
        let shape = Shape::Text(bytes);
        let Val::Stored { place, .. } = self.copied(Copied::Value(value), shape, span) else {
            return Ok(Test::Constant(false));
        };
        let mut test = Test::Constant(true);
        let mut text = literal.into_bytes();
        text.push(0);
        for (number, byte) in text.iter().take(compared).enumerate() {
            let found = Number::OwnPart {
                place: place.at(number as u32),
                bytes: 1,
                signed: false,
            };
            test = test.and(Test::compare(
                Condition::Equal,
                found,
                Number::Constant((*byte).into()),
            ));
        }
        Ok(test)
    }

    /// The text at an address, of at most so many bytes with its NUL, and of `limit` without it.
    pub(crate) fn text_at(
        &mut self,
        value: Val,
        span: Span,
        most: u32,
        limit: Option<Number>,
    ) -> Lowered<Val> {
        // A text of the source is one already.
        if self.is_text(&value) {
            return Ok(value);
        }
        // An array of bytes that holds a text.
        if let Val::Object(object) = &value
            && let Some(address) = self.types().address_of(object)
        {
            return Ok(Val::Text {
                address,
                most,
                limit,
                present: Test::Constant(true),
            });
        }
        let counted = self.as_number(value, span)?;
        Ok(Val::Text {
            address: counted.or_zero(),
            most,
            limit,
            present: Test::Constant(true),
        })
    }
}

/// The beginning of a text: as many bytes as `length` says.
pub(crate) fn cut(
    values: &mut Values<'_, '_>,
    text: Val,
    span: Span,
    length: &Expression,
) -> Lowered<Val> {
    let refused = |span, message: &str, help: &str| Err(Diagnostic::new(span, message, help));
    if values.count(length)?.number.constant().is_none() {
        return refused(
            length.span,
            "a text is cut to a number of bytes that the program names",
            "write the number: str($text, 8)",
        );
    }
    let most = values.constant(length, 1..=MOST_TEXT)?;
    if let Val::Literal(text) = &text {
        let end = text.floor_char_boundary(most as usize);
        return Ok(Val::Literal(text[..end].into()));
    }
    if text.present() != Test::Constant(true) {
        return refused(
            span,
            "a text that may not be there cannot be cut",
            "print it whole, or ask for it first: if (value) { $text = value; }",
        );
    }
    let bytes = (most + 1).next_multiple_of(8);
    if values.text_bytes(&text) <= most {
        return Ok(text);
    }
    let place = values.memory.take_for_good(bytes);
    values.copies.push(Copy {
        of: Copied::Value(text),
        to: place,
        shape: Shape::Text(bytes),
        span,
    });
    for after in most..bytes {
        values.copies.push(Copy {
            of: Copied::Value(Val::number(Number::Constant(0), Kind::UNSIGNED)),
            to: place.at(after),
            shape: Shape::Unsigned(1),
            span,
        });
    }
    Ok(Val::Stored {
        place,
        shape: Shape::Text(bytes),
    })
}

/// The first bytes of a text, as bytes. Zeros follow a text that is shorter.
pub(crate) fn bytes_of_text(values: &mut Values<'_, '_>, text: Val, bytes: u32, span: Span) -> Val {
    let most = bytes.next_multiple_of(8);
    // The text is stored with a NUL.
    let place = values.memory.take_for_good(8 + most + 8);
    let length = Val::number(Number::Constant(bytes.into()), Kind::UNSIGNED);
    for (of, to, shape) in [
        (text, place.at(8), Shape::Text(most + 8)),
        (length, place, Shape::Unsigned(8)),
    ] {
        let of = Copied::Value(of);
        values.copies.push(Copy {
            of,
            to,
            shape,
            span,
        });
    }
    Val::Stored {
        place,
        shape: Shape::Bytes(most),
    }
}
