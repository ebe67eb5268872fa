//! `set_wprobe` and `clear_wprobe`: the triggers that aim a watch at what a hit has found.
//!
//! ```text
//! set_wprobe:WATCH:FIELD[+OFFS][:COUNT] [if FILTER]     aims it there, if it is aimed at nothing
//! clear_wprobe:WATCH[:FIELD[+OFFS]][:COUNT] [if FILTER] aims it at nothing; with a field, only if
//!                                                       it is aimed there
//! ```
//!
//! The language is that of linux-next (`Documentation/trace/wprobetrace.rst`). WATCH is the name of
//! an event of the group `wprobes`.

use abi::errno;
use fallible::copied;

use super::{Action, TriggerError};
use crate::{
    field::{Element, Field, FieldKind, Width},
    number,
};

/// An address that a hit has: the number in a field, and bytes after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldAddress {
    pub field: Field,
    pub adjust: i32,
}

/// Why a line about a watch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchReason {
    /// No watch has the name. The owner of the events finds that out, as the next two.
    NotFound,
    /// It is on already, and not by such triggers.
    Busy,
    /// Its definition says what it watches.
    Fixed,
    /// `set_wprobe` without a field.
    NoField,
    /// The event has no such field.
    FieldNotFound,
    /// The field is no number of 8 bytes.
    BadField,
    /// What follows the field is no distance.
    BadOffset,
}

impl WatchReason {
    pub(super) const fn errno(self) -> i32 {
        match self {
            Self::NotFound | Self::FieldNotFound => errno::ENOENT,
            Self::Busy => errno::EBUSY,
            Self::BadField => errno::ENOEXEC,
            Self::Fixed | Self::NoField | Self::BadOffset => errno::EINVAL,
        }
    }

    /// The text in `error_log`.
    pub const fn text(self) -> &'static str {
        match self {
            Self::NotFound => "Watch event not found; dynamic_events lists them",
            Self::Busy => "Watch event is enabled; disable it first",
            Self::Fixed => "Watch event has an address; define it with @-1",
            Self::NoField => "Field is required: the address to watch",
            Self::FieldNotFound => "Field not found",
            Self::BadField => "Field is no number of 8 bytes, as an address is",
            Self::BadOffset => "Invalid offset; write for example +8",
        }
    }
}

/// Reads what follows `set_wprobe:` or `clear_wprobe:` in `line`. The rest begins with the count,
/// if there is one.
pub(super) fn parse<'a>(
    set: bool,
    line: &str,
    text: &'a str,
    fields: &[Field],
) -> Result<(Action, &'a str), TriggerError> {
    let refused = |reason, at: &str| {
        // Both are parts of one text.
        let column = at.as_ptr().addr() - line.as_ptr().addr();
        TriggerError::Watch { reason, column }
    };
    let (event, rest) = part(text);
    if event.is_empty() {
        return Err(refused(WatchReason::NotFound, text));
    }
    let (word, after) = part(rest);
    let is_field = word.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_')
        && !word.starts_with("count=")
        && word != "unlimited"
        && word != "if";
    let address = match is_field {
        false if set => return Err(refused(WatchReason::NoField, rest)),
        false => None,
        true => {
            let (name, distance) = word.split_at(word.find(['+', '-']).unwrap_or(word.len()));
            let adjust = match distance {
                "" => Some(0),
                _ => number::signed(distance).and_then(|bytes| i32::try_from(bytes).ok()),
            };
            let adjust = adjust.ok_or_else(|| refused(WatchReason::BadOffset, distance))?;
            let field = fields.iter().find(|field| field.name == name);
            let field = field.ok_or_else(|| refused(WatchReason::FieldNotFound, word))?;
            let is_address = match field.kind {
                FieldKind::One(Element::Symbol) => true,
                FieldKind::One(
                    Element::Unsigned(width) | Element::Signed(width) | Element::Hex(width),
                ) => width == Width::W64,
                _ => false,
            };
            if !is_address {
                return Err(refused(WatchReason::BadField, word));
            }
            let field = field.try_clone()?;
            Some(FieldAddress { field, adjust })
        }
    };
    let action = Action::AimWatch {
        set,
        event: copied(event)?,
        address,
    };
    Ok((action, if is_field { after } else { rest }))
}

/// The text up to a colon or a blank, and what follows a colon, or the blank.
fn part(text: &str) -> (&str, &str) {
    let end = text.find([':', ' ', '\t']).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    (word, rest.strip_prefix(':').unwrap_or(rest))
}
