//! Something to trace: functions with arguments and results of Rust's own types, called again and
//! again while tracers come and go.
//!
//! # Contexts
//! The first task.

use core::hint;

use crate::{
    say, smp,
    tasks::{self, spawn},
    tracing,
};

/// Why a text is no price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriceError {
    Empty,
    NoDigit { letter: u8, position: u32 },
}

/// What is to be paid.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    pub pieces: u16,
    pub fee: u64,
}

/// Reads the price of a piece, and says what they cost together, in cents. It is exported, because
/// the compiler changes how a function of one crate alone is called.
#[unsafe(no_mangle)]
#[unsafe(link_section = "probeable")]
#[inline(never)]
pub fn price(text: &str, query: &Query) -> Result<u64, PriceError> {
    if text.is_empty() {
        return Err(PriceError::Empty);
    }
    let cents = text
        .bytes()
        .zip(0..)
        .try_fold(0, |sum, (letter, position)| match letter {
            b'0'..=b'9' => Ok(10 * sum + u64::from(letter - b'0')),
            _ => Err(PriceError::NoDigit { letter, position }),
        })?;
    Ok(cents * u64::from(query.pieces) + query.fee)
}

/// Calls [`price`] for ever, while a task serves tracers.
pub fn run() -> ! {
    smp::start_others(crate::start_other);
    say(format_args!("a tracer may come"));
    // It is over when the machine is.
    let _server = spawn("tracing", None, tracing::serve, 0);
    loop {
        for text in ["1200", "12x0", ""] {
            let query = Query { pieces: 2, fee: 7 };
            let _ = hint::black_box(price(hint::black_box(text), &hint::black_box(query)));
        }
        (0..1000).for_each(|_| hint::spin_loop());
        tasks::yield_now();
    }
}
