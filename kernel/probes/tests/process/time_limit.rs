//! A limit on the time of a test. The process ends when it is over, because a thread that waits for
//! what does not come cannot be ended alone.

use std::{
    process,
    sync::{Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Far more than a test takes, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(150);

/// The test that runs, and when its time is over.
static RUNNING: Mutex<Option<(String, Instant)>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

/// Starts the thread that watches. Once.
pub fn set_up() {
    thread::spawn(|| {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = match &*running {
                Some((_, deadline)) => deadline.saturating_duration_since(Instant::now()),
                None => LIMIT,
            };
            if left.is_zero() {
                let name = running.as_ref().map_or("a test", |(name, _)| name);
                eprintln!("{name} is not over after {} s", LIMIT.as_secs());
                process::abort();
            }
            let waited = CHANGED.wait_timeout(running, left);
            running = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    });
}

/// The test of the calling thread begins.
pub fn begin() {
    // Where tests run one by one, they run in the main thread.
    let name = thread::current().name().unwrap_or("a test").to_string();
    set(Some((name, Instant::now() + LIMIT)));
}

/// It is over.
pub fn end() {
    set(None);
}

fn set(test: Option<(String, Instant)>) {
    *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) = test;
    CHANGED.notify_one();
}
