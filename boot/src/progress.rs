//! Progress of steps that may take long: silence for two seconds, then what is under way and for how long.
//!
//! On a terminal one line counts the seconds; elsewhere a line is printed now and then.

use std::{
    fmt::Display,
    io::{IsTerminal, Write, stderr},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

/// Prints one line of our own to standard error.
pub fn say(line: impl Display) {
    show(format_args!("boot: {line}\n"));
}

/// Prints `text` to standard error, also from within a test, whose output by `eprint!` would be held back.
pub fn show(text: impl Display) {
    // Nothing can be done about a closed standard error.
    let _ = write!(stderr(), "{text}");
}

/// Does `work`, and says meanwhile that `what` is under way once it has taken two seconds.
pub fn step<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let terminal = stderr().is_terminal();
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut pause = Duration::from_secs(2);
            while is_done.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let seconds = started.elapsed().as_secs();
                if terminal {
                    show(format_args!("\r\x1b[Kboot: {what} ... {seconds} s"));
                    pause = Duration::from_secs(1);
                } else {
                    say(format_args!("{what} ... {seconds} s"));
                    pause = Duration::from_secs(15);
                }
            }
            if terminal && started.elapsed() >= Duration::from_secs(2) {
                show("\r\x1b[K");
            }
        });
        let result = work();
        drop(done);
        result
    })
}
