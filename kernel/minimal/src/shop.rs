//! Something to trace: a function with an argument and a result of Rust's own types.

use core::{
    hint::black_box,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// What a customer wants.
pub struct Order {
    pub article: &'static str,
    pub pieces: u32,
}

/// Why an order is not taken.
pub enum Refusal {
    Nothing,
    TooMany { left: u32 },
}

static ORDERS: [Order; 3] = [
    Order {
        article: "tea",
        pieces: 3,
    },
    Order {
        article: "salt",
        pieces: 0,
    },
    Order {
        article: "bread",
        pieces: 9,
    },
];

/// Says what an order costs: as many cents apiece as its name has letters. It is exported, because
/// the compiler changes how a function of one crate alone is called.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn sell(order: &Order, left: u32) -> Result<u32, Refusal> {
    match order.pieces {
        0 => Err(Refusal::Nothing),
        pieces if pieces > left => Err(Refusal::TooMany { left }),
        pieces => Ok(order.article.len() as u32 * pieces),
    }
}

/// Takes the next order. There are five pieces, and who wants more is told so.
pub fn sell_something() {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let next = TAKEN.fetch_add(1, Relaxed) as usize;
    let answer = match sell(black_box(&ORDERS[next % ORDERS.len()]), black_box(5)) {
        Ok(cents) => cents,
        Err(Refusal::TooMany { left }) => left,
        Err(Refusal::Nothing) => 0,
    };
    black_box(answer);
}
