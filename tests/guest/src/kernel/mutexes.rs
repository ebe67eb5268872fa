//! A mutex that its own task waits for. The verdict names lines of this file.

use kernel::sync::Mutex;

static LOCK: Mutex<u32> = Mutex::new(0);

#[guest_test(
    should_panic = "it locks a mutex at tests/guest/src/kernel/mutexes.rs:17:22, and has \
                             had it since tests/guest/src/kernel/mutexes.rs:16:21"
)]
fn a_task_that_locks_a_mutex_twice_is_told_both_places() {
    for _ in 0..3 {
        *LOCK.lock() += 1;
    }
    assert_eq!(LOCK.try_lock().map(|number| *number), Some(3));
    let held = LOCK.lock();
    let again = LOCK.lock();
    drop((held, again));
}
