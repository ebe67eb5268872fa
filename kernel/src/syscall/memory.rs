//! System calls on the program's memory.

use crate::task;

/// `brk(end)`: moves the end of the heap if that is possible; returns where it is now.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_brk(end: u64) -> i64 {
    match task::current().user_space() {
        Some(space) => space.set_heap_end(end) as i64,
        None => 0,
    }
}
