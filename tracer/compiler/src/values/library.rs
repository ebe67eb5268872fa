//! Functions of bpftrace's library that calculate from numbers and texts.
//!
//! What is known before the hit is calculated here, and the rest becomes a [`Number`]. Texts are
//! put into the stack first, where zeros fill them up, so that the program may look at each byte.
//! Errors, signals and system calls stay numbers, whose names the reader knows.

use alloc::{boxed::Box, format, string::ToString, vec::Vec};

use bpf::Condition;
use trace_interface::{
    codes,
    shape::{Naming, Shape},
};
use trace_language::{
    Diagnostic,
    tree::{ExpressionKind, Span},
};

use super::{Copied, Either, Val, Values};
use crate::{
    Lowered,
    functions::Call,
    memory::Place,
    number::{Counted, Kind, Number, Test},
};

/// Errors as pointers are the last addresses, from -4095 on.
const FIRST_ERROR: u64 = -4095_i64 as u64;

/// `bswap(number)`: its bytes in the other order, as many as its type has. A number of the text has
/// as many as it needs.
pub(super) fn swapped(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [number] = call.arguments else {
        return call.refuse();
    };
    let counted = values.count(number)?;
    let bytes = match (&counted.kind, counted.number.constant()) {
        (Kind::Literal, Some(constant)) => match constant {
            0..=0xff => 1,
            0x100..=0xffff => 2,
            0x1_0000..=0xffff_ffff => 4,
            _ => 8,
        },
        (Kind::Integer { bytes, .. }, _) => *bytes,
        (Kind::Literal | Kind::Pointer { .. }, _) => 8,
        _ => {
            return Err(Diagnostic::new(
                number.span,
                "only the bytes of an integer can be swapped",
                "cast it to one: (uint32)value",
            ));
        }
    };
    let kind = Kind::Integer {
        bytes,
        signed: false,
    };
    let bits = 8 * bytes;
    let number = match (counted.number, bits) {
        (Number::Constant(constant), _) => {
            Number::Constant(constant.swap_bytes() >> (64 - u32::from(bits)))
        }
        (number, 8) => number.extended(1, false),
        (number, _) => Number::Swapped {
            number: Box::new(number),
            bits,
        },
    };
    Ok(Val::Number(Counted {
        number,
        kind,
        present: counted.present,
    }))
}

/// `is_err(address)`: whether it is an error that was made a pointer.
pub(super) fn is_error(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [address] = call.arguments else {
        return call.refuse();
    };
    let counted = values.count(address)?;
    let first = Number::Constant(FIRST_ERROR);
    let is = Test::compare(Condition::AboveOrEqual, counted.number, first);
    let is = counted.present.and(is);
    Ok(Val::number(Number::test(is), Kind::Boolean))
}

/// A number that is shown by its name: `strerror(errno)` and the like. The name of a number of the
/// text is a text.
pub(super) fn named(values: &mut Values<'_, '_>, call: Call<'_>, naming: Naming) -> Lowered<Val> {
    let [number] = call.arguments else {
        return call.refuse();
    };
    let counted = values.count(number)?;
    if let Some(constant) = counted.number.constant() {
        let constant = constant.cast_signed();
        return Ok(Val::Literal(match codes::name(naming, constant) {
            Some(name) => name.to_string(),
            None => format!("{} {constant}", codes::unknown(naming)),
        }));
    }
    // Errors and the like are numbers of 32 bits.
    Ok(Val::Number(Counted {
        number: counted.number.extended(4, true),
        kind: Kind::Named(naming),
        ..counted
    }))
}

/// The refusal of a value that is no text at the probe. `help` is for one that the reader shows as
/// a number.
pub(super) fn no_text(value: &Val, span: Span, help: &str) -> Diagnostic {
    let kind = match value {
        Val::Number(counted) => &counted.kind,
        _ => &Kind::UNSIGNED,
    };
    let (message, help) = match kind {
        Kind::Symbol { .. } => (
            "this is an address here, and gets its name when it is shown",
            "compare it with a name, as in func == \"vfs_read\", or print it",
        ),
        Kind::Probe => (
            "this is a number here, and gets its name when it is shown",
            "compare it with a name, as in probe == \"kprobe:vfs_read\", or print it",
        ),
        _ => ("this is no text", help),
    };
    Diagnostic::new(span, message, help)
}

/// `strlen(text)`: its bytes.
pub(super) fn text_length(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [of] = call.arguments else {
        return call.refuse();
    };
    let value = values.value(of)?;
    if !values.is_text(&value) {
        return Err(no_text(
            &value,
            of.span,
            "str(address) makes a text of an address; len() counts the elements of other values",
        ));
    }
    let of_source = match &value {
        Val::Object(object) => values.text_of(object, of.span)?,
        _ => None,
    };
    let number = match (value, of_source) {
        (_, Some((_, length))) => length,
        (Val::Literal(text), _) => {
            let end = text.find('\0').unwrap_or(text.len());
            Number::Constant(end as u64)
        }
        (value, _) => {
            let (place, bytes) = text_in_stack(values, value, of.span);
            Number::Length { place, bytes }
        }
    };
    Ok(Val::number(number, Kind::UNSIGNED))
}

/// `strstr(text, part)`: where the part is for the first time, or -1.
pub(super) fn position(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    Ok(Val::number(searched(values, call)?, Kind::SIGNED))
}

/// `strcontains(text, part)`: whether it is anywhere.
pub(super) fn contains(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let position = searched(values, call)?;
    let is = Test::compare(Condition::GreaterOrEqual, position, Number::Constant(0));
    Ok(Val::number(Number::test(is), Kind::Boolean))
}

fn searched(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Number> {
    /// Steps of the verifier, for each byte of the text and of the part.
    const STEPS: u32 = 12;
    const MOST_STEPS: u32 = 50_000;
    let [text, part] = call.arguments else {
        return call.refuse();
    };
    let mut texts = Vec::new();
    for of in [text, part] {
        let value = values.value(of)?;
        if !values.is_text(&value) {
            return Err(no_text(
                &value,
                of.span,
                "str(address) makes a text of an address",
            ));
        }
        texts.push(value);
    }
    if let [Val::Literal(text), Val::Literal(part)] = &texts[..] {
        let until_nul = |text: &str| text.split('\0').next().unwrap_or_default().to_string();
        let at = until_nul(text).find(&until_nul(part));
        let at = at.map_or(-1, |at| at as i64);
        return Ok(Number::Constant(at.cast_unsigned()));
    }
    let bytes: u32 = texts.iter().map(|of| values.text_bytes(of)).product();
    if bytes.saturating_mul(STEPS) > MOST_STEPS {
        return Err(Diagnostic::new(
            call.span,
            "these texts are too long to be searched at a probe",
            "take less of them: str(address, 32)",
        ));
    }
    let mut places = texts.into_iter().zip([text, part]);
    let mut place = || {
        places
            .next()
            .map(|(of, at)| text_in_stack(values, of, at.span))
    };
    match (place(), place()) {
        (Some(text), Some(part)) => Ok(Number::Position { text, part }),
        _ => call.refuse(),
    }
}

/// `pid(curr_ns)` and the like. There is one name space of tasks, so both words mean the same.
pub(super) fn task_number(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    match call.arguments {
        [] => values.name(&call.name.text, call.span),
        [space] if is_word(&space.kind, &["curr_ns", "init"]) => {
            values.name(&call.name.text, call.span)
        }
        _ => call.refuse(),
    }
}

/// `nsecs(boot)`. The machine does not sleep, so `monotonic` is the same.
pub(super) fn nanoseconds(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    match call.arguments {
        [] => values.name("nsecs", call.span),
        [clock] if is_word(&clock.kind, &["boot", "monotonic"]) => values.name("nsecs", call.span),
        [clock] if is_word(&clock.kind, &["tai", "sw_tai"]) => Err(Diagnostic::new(
            clock.span,
            "the code at a probe does not know the time of day",
            "use strftime(\"%s\", nsecs), which the reader makes of it, or nsecs",
        )),
        _ => call.refuse(),
    }
}

fn is_word(of: &ExpressionKind, words: &[&str]) -> bool {
    matches!(of, ExpressionKind::Name(name) if words.contains(&&**name))
}

/// A text in the stack, as one that zeros fill up, and its bytes there.
fn text_in_stack(values: &mut Values<'_, '_>, value: Val, span: Span) -> (Place, u32) {
    let bytes = values.text_bytes(&value).next_multiple_of(8);
    let empty = Val::Literal("".into());
    let either = Either {
        test: value.present(),
        then: value,
        otherwise: empty,
    };
    let shape = Shape::Text(bytes);
    match values.copied(Copied::Either(Box::new(either)), shape, span) {
        Val::Stored { place, .. } => (place, bytes),
        _ => (Place::stack(0), 0),
    }
}
