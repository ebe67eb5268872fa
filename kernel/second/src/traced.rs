//! Something to trace: functions with arguments and results of Rust's own types, called again and
//! again while tracers come and go. The command line may say that the kernel is to die of it.
//!
//! # Contexts
//! The first task, except what the task that serves tracers calls.

use core::{
    hint,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use crate::{
    memory, say, smp,
    tasks::{self, spawn},
    tracing::{self, TRACING},
};

/// Where this kernel is to die: a value of the constants below.
static DIES: AtomicU32 = AtomicU32::new(NEVER);
const NEVER: u32 = 0;
/// In the order [`LAST_ORDER`], which is recorded, with the lock of the heap held.
const IN_AN_ORDER: u32 = 1;
/// In the middle of a sign of life to the tracer.
const IN_A_WRITE: u32 = 2;
/// When a script has come in part.
const IN_A_READ: u32 = 3;
/// The number of the order of [`IN_AN_ORDER`].
const LAST_ORDER: u32 = 7;

/// How many bytes a tracer has sent.
static READ: AtomicU32 = AtomicU32::new(0);
/// How many pieces were sent to it while a script ran.
static WRITTEN: AtomicU32 = AtomicU32::new(0);
/// The answer that all is attached has so many.
const ALL_ATTACHED: u32 = 2;

fn dies(place: u32) -> bool {
    DIES.load(Relaxed) == place
}

/// The line to the tracer has given a byte.
pub fn was_read() {
    const IN_A_SCRIPT: u32 = 200;
    if READ.fetch_add(1, Relaxed) == IN_A_SCRIPT && dies(IN_A_READ) {
        panic!("the script came to its byte {IN_A_SCRIPT}");
    }
}

/// Half of a piece was sent to the tracer.
pub fn is_written() {
    if WRITTEN.load(Relaxed) == ALL_ATTACHED && dies(IN_A_WRITE) {
        panic!("half a sign of life");
    }
}

/// The other half was sent, too.
pub fn was_written() {
    if TRACING.script_runs() {
        WRITTEN.fetch_add(1, Relaxed);
    }
}

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
    if number == LAST_ORDER && dies(IN_AN_ORDER) {
        // Not by the argument: that would be in memory from the entry on, and not in a register.
        memory::with_heap_locked(|| panic!("order {LAST_ORDER} is too much"));
    }
    cents.unwrap_or(0)
}

/// Calls [`order`] for ever, while a task serves tracers. `command` is `traced`, and it may say
/// where this kernel dies: `dies=order`, `dies=write` or `dies=read`.
pub fn run(command: &str) -> ! {
    let place = match command.split_once("dies=") {
        None => NEVER,
        Some((_, "order")) => IN_AN_ORDER,
        Some((_, "write")) => IN_A_WRITE,
        Some((_, "read")) => IN_A_READ,
        Some((_, other)) => panic!("dies={other}: order, write or read"),
    };
    DIES.store(place, Relaxed);
    smp::start_others(crate::start_other);
    say(format_args!("a tracer may come"));
    // It is over when the machine is.
    let _server = spawn("tracing", None, tracing::serve, 0);
    let mut number = 0;
    loop {
        let query = Query { pieces: 2, fee: 7 };
        let _ = hint::black_box(order(number, &hint::black_box(query)));
        // As long as nothing is recorded, orders have the first numbers.
        let is_recorded = WRITTEN.load(Relaxed) >= ALL_ATTACHED;
        number = match is_recorded || number < 2 {
            true => number.wrapping_add(1),
            false => 0,
        };
        (0..1000).for_each(|_| hint::spin_loop());
        tasks::yield_now();
    }
}
