//! Arguments and results of many shapes, for those who read them from outside.

use core::{
    hint::black_box,
    num::NonZeroU32,
    sync::atomic::{AtomicU32, Ordering},
};
use user::println;

#[derive(Clone, Copy, Debug)]
pub struct Point {
    x: i32,
    y: i32,
}

#[derive(Debug)]
pub enum Shape<'a> {
    Nothing,
    Circle { at: Point, radius: u16 },
    Named(&'a str),
}

#[derive(Debug)]
#[expect(dead_code, reason = "it is only shown")]
pub enum Refusal {
    TooSmall(i32),
    TooLarge,
}

/// Too large for registers.
#[derive(Clone, Copy, Debug)]
#[expect(dead_code, reason = "it is only shown")]
pub struct Summary {
    name: &'static str,
    sums: [u64; 3],
    last: Option<NonZeroU32>,
}

static CALLS: AtomicU32 = AtomicU32::new(0);
static ORIGIN: Point = Point { x: -1, y: 1 };

/// Two pages that are not there before somebody touches them.
static UNTOUCHED: [u8; 8192] = [0; 8192];

#[inline(never)]
fn takes_words(count: u8, offset: i64, letter: char, is_set: bool, wide: u128) -> u128 {
    CALLS.fetch_add(1, Ordering::Relaxed);
    black_box(wide) + u128::from(count) + u128::from(is_set) + offset as u128 + letter as u128
}

#[inline(never)]
fn takes_texts(name: &str, bytes: &[u8], choice: Option<u16>) -> usize {
    CALLS.fetch_add(1, Ordering::Relaxed);
    black_box(name).len() + black_box(bytes).len() + usize::from(choice.unwrap_or(0))
}

#[inline(never)]
fn takes_shapes(shape: &Shape<'_>, points: &[Point], beyond: *const Point) -> i32 {
    CALLS.fetch_add(1, Ordering::Relaxed);
    let of_shape = match black_box(shape) {
        Shape::Nothing => 0,
        Shape::Circle { at, radius } => at.x + at.y + i32::from(*radius),
        Shape::Named(name) => name.len() as i32,
    };
    let points = black_box(points).iter().map(|point| point.x + point.y);
    of_shape + points.sum::<i32>() + i32::from(black_box(beyond).is_null())
}

#[inline(never)]
fn takes_untouched(bytes: &[u8]) -> *const u8 {
    black_box(bytes.as_ptr()).wrapping_add(bytes.len())
}

/// Has more arguments than come in registers.
#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "the last ones are on the stack")]
fn takes_many(a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, far: i16, name: &str, wide: u128) -> u128 {
    let narrow = black_box([a, b, c, d, e, f]).iter().sum::<u8>();
    black_box(wide) - u128::from(narrow) + black_box(name).len() as u128 + black_box(far) as u128
}

/// Marks with values of all sizes, with and without a sign, and one whose values are computed only
/// while somebody traces it.
fn marks(round: u8) {
    marks::mark!(exercise, empty);
    let (small, large) = (-i16::from(round), u64::MAX - u64::from(round));
    let text = if round == 0 { "no" } else { "some" };
    marks::mark!(
        exercise,
        round,
        u8: black_box(round),
        i16: black_box(small),
        char: black_box('ß'),
        u64: black_box(large),
        *const u8: text.as_ptr(),
        usize: text.len(),
    );
    marks::lazy_mark!(exercise, lazy, u32: compute(), u8: round);
    marks::mark!(exercise, computed, u32: COMPUTED.load(Ordering::Relaxed));
}

static COMPUTED: AtomicU32 = AtomicU32::new(0);

/// How often it was called.
fn compute() -> u32 {
    COMPUTED.fetch_add(1, Ordering::Relaxed) + 1
}

#[inline(never)]
fn gives_result(number: i32) -> Result<u64, Refusal> {
    match black_box(number) {
        ..0 => Err(Refusal::TooSmall(number)),
        100.. => Err(Refusal::TooLarge),
        number => Ok(number as u64 * 0x1_0000_0001),
    }
}

#[inline(never)]
fn gives_summary(step: u64) -> Summary {
    Summary {
        name: if step == 0 { "still" } else { "steps" },
        sums: [step, 2 * step, black_box(3) * step],
        last: NonZeroU32::new(step as u32),
    }
}

#[inline(never)]
fn gives_text(is_long: bool) -> &'static str {
    if black_box(is_long) {
        "a longer one"
    } else {
        ""
    }
}

/// Writes what it gives to the functions and gets from them, as Rust shows it.
pub fn run() {
    println!(
        "{:?}",
        takes_words(
            black_box(255),
            black_box(-3),
            black_box('ß'),
            black_box(true),
            black_box(u128::MAX / 3)
        )
    );
    println!("{:?}", takes_texts("grüße", &[0, 7, 255], Some(9)));
    println!("{:?}", takes_texts("", &[], None));
    let beyond = 0x10 as *const Point;
    let circle = Shape::Circle {
        at: ORIGIN,
        radius: 500,
    };
    let points = [ORIGIN, Point { x: 2, y: 3 }];
    for (shape, points, beyond) in [
        (Shape::Nothing, &points[..0], beyond),
        (circle, &points, &raw const ORIGIN),
        (Shape::Named("square"), &points[1..], beyond),
    ] {
        println!(
            "{shape:?} {points:?}: {}",
            takes_shapes(&shape, points, beyond)
        );
    }
    println!("{:?}", takes_untouched(black_box(&UNTOUCHED[4096..4099])));
    println!(
        "{:?}",
        takes_many(1, 2, 3, 4, 5, 6, -7, black_box("eight"), u128::MAX - 9)
    );
    for round in [0, 200] {
        marks(round);
    }
    for number in [-5, 7, 100] {
        println!("{:?}", gives_result(number));
    }
    for step in [0, 5] {
        println!("{:?}", gives_summary(step));
    }
    println!("{:?} {:?}", gives_text(false), gives_text(true));
}
