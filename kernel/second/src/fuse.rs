//! Where this kernel is to die, so that a tracer can see it: the command line says it.
//!
//! # Contexts
//! Tasks: the first one, and that which serves tracers.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// A value of the constants below.
static DIES: AtomicU32 = AtomicU32::new(NEVER);
const NEVER: u32 = 0;
/// In the order [`LAST_ORDER`], which is recorded.
const IN_AN_ORDER: u32 = 1;
/// In the middle of a sign of life to the tracer.
const IN_A_WRITE: u32 = 2;
/// When a script has come in part.
const IN_A_READ: u32 = 3;

/// The number of the order of [`IN_AN_ORDER`].
pub const LAST_ORDER: u32 = 7;

/// How many bytes a tracer has sent.
static READ: AtomicU32 = AtomicU32::new(0);
/// How many pieces were sent to it while a script ran.
static WRITTEN: AtomicU32 = AtomicU32::new(0);
/// It was listened to while a script ran: then all is attached, and its last words are ready.
static IS_HEARD: AtomicBool = AtomicBool::new(false);
/// The answer that all is attached has so many.
const ALL_ATTACHED: u32 = 2;

fn dies(place: u32) -> bool {
    DIES.load(Relaxed) == place
}

/// Reads the command line: `dies=order`, `dies=write`, `dies=read`, or nothing of the kind.
pub fn set(command: &str) {
    let place = match command.split_once("dies=") {
        None => NEVER,
        Some((_, "order")) => IN_AN_ORDER,
        Some((_, "write")) => IN_A_WRITE,
        Some((_, "read")) => IN_A_READ,
        Some((_, other)) => panic!("dies={other}: order, write or read"),
    };
    DIES.store(place, Relaxed);
}

/// Whether the kernel dies in the order of that number.
pub fn is_the_last_order(number: u32) -> bool {
    number == LAST_ORDER && dies(IN_AN_ORDER)
}

/// The number of the next order: as long as nothing is recorded, one of the first.
pub fn order_after(number: u32) -> u32 {
    const FIRST: u32 = 2;
    match IS_HEARD.load(Relaxed) || number < FIRST {
        true => number.wrapping_add(1),
        false => 0,
    }
}

/// The line to the tracer is looked at.
pub fn is_heard(script_runs: bool) {
    if script_runs {
        IS_HEARD.store(true, Relaxed);
    }
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

/// A piece was sent to it.
pub fn was_written(script_runs: bool) {
    if script_runs {
        WRITTEN.fetch_add(1, Relaxed);
    }
}
