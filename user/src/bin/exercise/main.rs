//! The exercises of the guest tests in ring 3: `exercise NAME [ARGUMENT …]` runs one exercise.
//!
//! An exercise that should succeed returns with exit code 0; a check that fails panics. An exercise
//! that the kernel should end exits with code 1 if the kernel does not. Most do the same on a Linux
//! host; do not try `hog`, `out_of_memory`, `fill_file_system` and `fork_limit` there.
#![no_std]
#![no_main]

mod bad_pointers;
mod exceptions;
mod files;
mod memory;
mod probed;
mod registers;
mod tasks;
mod values;
mod watched;

use user::{Args, eprintln};

user::main!(main);

/// Exit code of an exercise that should have been ended by the kernel.
const SURVIVED: i32 = 1;

fn main(mut args: Args) -> i32 {
    args.next();
    let name = args.next_str().unwrap_or("");
    match (name, args.clone().count()) {
        ("bad_pointers", 0) => bad_pointers::run(),
        ("wild", 1) => return exceptions::wild(args),
        ("raise", 1) => return exceptions::raise(args),
        ("descriptors", 0) => files::descriptors(),
        ("contents", 0) => files::contents(),
        ("directories", 0) => files::directories(),
        ("permissions", 0) => files::permissions(),
        ("remove", 1) => memory::remove(args),
        ("virtual_file", 2) => files::virtual_file(args),
        ("read", 2) => files::read(args),
        ("copy", 2) => files::copy(args),
        ("copy_on_write", 0) => memory::copy_on_write(),
        ("heap", 0) => memory::heap(),
        ("hog", 0) => return memory::hog(),
        ("out_of_memory", 0) => memory::out_of_memory(),
        ("registers", 1) => registers::registers(args),
        ("fill_file_system", 0) => memory::fill_file_system(),
        ("calls", 1) => tasks::calls(args),
        ("identity", 0) => tasks::identity(),
        ("wait", 0) => tasks::wait(),
        ("exec", 0) => tasks::exec(),
        ("exec_target", 2) => return tasks::exec_target(args),
        ("descriptors_across_exec", 0) => tasks::descriptors_across_exec(),
        ("only_descriptor_3", 0) => tasks::only_descriptor_3(),
        ("sleep", 1) => tasks::sleep(args),
        ("orphan", 0) => tasks::orphan(),
        ("kill", 0) => tasks::kill(),
        ("spin", 0) => tasks::spin(),
        ("block", 0) => tasks::block(),
        ("rounds", 1) => tasks::rounds(args),
        ("fork_limit", 0) => tasks::fork_limit(),
        ("values", 0) => values::run(),
        ("probed", 1) => probed::run(args),
        ("probed_cost", 0) => probed::cost(),
        ("probed_framed", 0) => probed::framed(),
        ("probed_deep", 1) => probed::deep(args),
        ("probed_fault", 0) => return probed::fault(),
        ("probed_semaphore", 1) => probed::semaphore(args),
        ("probed_semaphore_fork", 1) => probed::semaphore_fork(args),
        ("probed_semaphore_rounds", 1) => probed::semaphore_rounds(args),
        ("probed_semaphore_changes", 0) => probed::semaphore_changes(),
        ("probed_taken", 0) => probed::taken(),
        ("probed_fork", 0) => probed::fork(),
        ("probed_fork_of_one", 0) => probed::fork_of_one(),
        ("probed_wait", 0) => probed::wait(),
        ("probed_forever", 0) => return probed::forever(),
        ("probed_forge", 1) => return probed::forge(args),
        ("probed_stacks", 0) => probed::stacks(),
        ("watched_stores", 1) => watched::stores(args),
        ("watched_forks", 0) => watched::forks(),
        ("watched_copies", 0) => watched::copies(),
        ("watched_progress", 0) => watched::progress(),
        ("probed_wild_return", 1) => return probed::wild_return(args),
        (_, given) => {
            eprintln!("exercise: there is no exercise {name:?} with {given} arguments");
            return 2;
        }
    }
    0
}
