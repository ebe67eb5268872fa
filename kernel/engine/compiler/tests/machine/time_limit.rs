//! A limit on the time that a program takes to be compiled and run. The process ends when the time
//! is over, because machine code that loops for ever cannot be left.

use std::{
    process,
    sync::{
        Mutex, Once, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// Far more than the millisecond that a program takes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// How often the watching thread looks. A message to it for each program would cost more than the
/// program.
const PAUSE: Duration = Duration::from_secs(1);

/// Counts the beginnings and the ends. It is odd while a program runs.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// The test whose program runs.
static TEST: Mutex<String> = Mutex::new(String::new());

/// A program that runs, until this is dropped.
pub struct Run(());

/// A program begins. They run one at a time.
pub fn begin() -> Run {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        thread::spawn(watch);
    });
    // Where tests run one by one, they run in the main thread.
    let thread = thread::current();
    let mut test = TEST.lock().unwrap_or_else(PoisonError::into_inner);
    test.clear();
    test.push_str(thread.name().unwrap_or("a test"));
    COUNT.fetch_add(1, Relaxed);
    Run(())
}

impl Drop for Run {
    fn drop(&mut self) {
        COUNT.fetch_add(1, Relaxed);
    }
}

fn watch() {
    let (mut seen, mut since) = (0, Instant::now());
    loop {
        thread::sleep(PAUSE);
        let now = COUNT.load(Relaxed);
        if now != seen || now.is_multiple_of(2) {
            (seen, since) = (now, Instant::now());
        } else if since.elapsed() > LIMIT {
            let test = TEST.lock().unwrap_or_else(PoisonError::into_inner);
            eprintln!(
                "a program of {test} is not over after {} s",
                LIMIT.as_secs()
            );
            process::abort();
        }
    }
}
