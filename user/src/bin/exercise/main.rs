//! fill
#![no_std]
#![no_main]
user::main!(main);
fn main(_: user::Args) -> i32 {
    0
}
