//! The program of the workload's children. It prints who it is and exits with the code in its
//! argument, 0 by default.
#![forbid(unsafe_code)]
#![no_std]
#![no_main]

use user::{Args, USAGE_EXIT, eprintln, println, syscall};

user::main!(main);

fn main(mut args: Args) -> i32 {
    args.next();
    let Some(code @ 0..=255) = args.parse_last_or(0) else {
        eprintln!("child: usage: child [CODE], an exit code from 0 to 255");
        return USAGE_EXIT;
    };
    println!(
        "child {} of {}: exit {code}",
        syscall::getpid(),
        syscall::getppid()
    );
    code
}
