//! Something to trace: functions with arguments and results of Rust's own types, called again and
//! again while tracers come and go. The command line may say that the kernel is to die of it.
//!
//! # Contexts
//! The first task.

use core::hint;

use second_kernel::{
    fuse::{self, LAST_ORDER},
    memory, say, smp, start_other,
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

/// Takes an order: the texts are ordered in turn. It may be the last one.
#[unsafe(no_mangle)]
#[unsafe(link_section = "probeable")]
#[inline(never)]
pub fn order(number: u32, query: &Query) -> u64 {
    const TEXTS: [&str; 3] = ["1200", "12x0", ""];
    let text = TEXTS[number as usize % TEXTS.len()];
    let cents = price(hint::black_box(text), query);
    if fuse::is_the_last_order(number) {
        // Not by the argument: that would be in memory from the entry on, and not in a register.
        memory::with_heap_locked(|| panic!("order {LAST_ORDER} is too much"));
    }
    cents.unwrap_or(0)
}

/// Calls [`order`] for ever, while a task serves tracers. `command` is `traced`, and it may say
/// where this kernel dies.
pub fn run(command: &str) -> ! {
    fuse::set(command);
    smp::start_others(start_other);
    say(format_args!("a tracer may come"));
    // It is over when the machine is.
    let _server = spawn("tracing", None, tracing::serve, 0);
    let mut number = 0;
    loop {
        let query = Query { pieces: 2, fee: 7 };
        let _ = hint::black_box(order(number, &hint::black_box(query)));
        number = fuse::order_after(number);
        (0..1000).for_each(|_| hint::spin_loop());
        tasks::yield_now();
    }
}
