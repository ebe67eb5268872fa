//! What the guest tests have done in ring 3: `exercise NAME [ARGUMENT …]` runs one exercise.
//!
//! An exercise that is to go well returns, and the exit code is 0; a check that fails panics. One that is to end by the
//! kernel's hand goes on to exit code 1 if the kernel lets it live. Most do the same on a Linux
//! host; do not try `hog`, `out_of_memory`, `fill_file_system` and `fork_limit` there.
#![no_std]
#![no_main]

mod bad_pointers;
mod exceptions;
mod files;
mod memory;
mod registers;
mod tasks;

use user::{Args, eprintln};

user::main!(main);

/// Exit code of an exercise that should have been ended by the kernel.
const SURVIVED: i32 = 1;

fn main(mut args: Args) -> i32 {
    args.next();
    let name = args.next_str().unwrap_or("");
    match name {
        "bad_pointers" => bad_pointers::run(),
        "wild" => return exceptions::wild(args),
        "raise" => return exceptions::raise(args),
        "descriptors" => files::descriptors(),
        "contents" => files::contents(),
        "directories" => files::directories(),
        "permissions" => files::permissions(),
        "remove" => memory::remove(args),
        "virtual_file" => files::virtual_file(args),
        "copy_on_write" => memory::copy_on_write(),
        "heap" => memory::heap(),
        "hog" => return memory::hog(),
        "out_of_memory" => memory::out_of_memory(),
        "registers" => registers::registers(args),
        "fill_file_system" => memory::fill_file_system(),
        "calls" => tasks::calls(args),
        "identity" => tasks::identity(),
        "wait" => tasks::wait(),
        "exec" => tasks::exec(),
        "exec_target" => return tasks::exec_target(args),
        "descriptors_across_exec" => tasks::descriptors_across_exec(),
        "only_descriptor_3" => tasks::only_descriptor_3(),
        "sleep" => tasks::sleep(args),
        "orphan" => tasks::orphan(),
        "kill" => tasks::kill(),
        "spin" => tasks::spin(),
        "block" => tasks::block(),
        "rounds" => tasks::rounds(args),
        "fork_limit" => tasks::fork_limit(),
        _ => {
            eprintln!("exercise: there is no exercise {name:?}");
            return 2;
        }
    }
    0
}
