//! The end of a task.

use super::scheduler;

/// Ends the running task. Interrupts on, no lock held.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn do_exit(_code: i64) -> ! {
    drop(super::current().set_user_space(None));
    scheduler::exit()
}

/// Ends the running task, which was asked to. The last thing before ring 3 runs: interrupts on.
pub fn exit_if_requested() {
    do_exit(0);
}
