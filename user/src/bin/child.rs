//! What the workload's children execute: says who it is and exits with the code in its first argument.
#![no_std]
#![no_main]

use user::{Args, println, syscall};

user::main!(main);

fn main(mut args: Args) -> i32 {
    args.next();
    let code = args.parse_next().unwrap_or(0);
    println!(
        "child {} of {}: exit {code}",
        syscall::getpid(),
        syscall::getppid()
    );
    code
}
