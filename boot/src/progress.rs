//! Progress of steps that may take long. For two seconds there is silence; then it says which step
//! is under way, how far it is and for how long.
//!
//! On a terminal one line is kept up to date; elsewhere a line is printed now and then. Steps that
//! are under way at the same time share it.

use std::{
    fmt::{self, Display},
    io::{IsTerminal, Write, stderr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

/// Prints one line of our own to standard error.
pub fn say(line: impl Display) {
    show(format_args!("boot: {line}\n"));
}

/// Prints `text` to standard error, also from within a test. `eprint!` would be held back there.
pub fn show(text: impl Display) {
    // Nothing can be done about a closed standard error.
    let _ = write!(stderr(), "{text}");
}

/// The number of crates of a build that are done, and of all its crates, once these are known.
#[derive(Debug, Default)]
pub struct Count(Mutex<Option<(u32, u32)>>);

impl Count {
    pub fn set(&self, done: u32, all: u32) {
        *lock(&self.0) = Some((done, all));
    }

    pub fn get(&self) -> Option<(u32, u32)> {
        *lock(&self.0)
    }
}

/// Something that is under way.
#[derive(Debug)]
struct Step {
    what: String,
    count: Count,
    started: Instant,
}

impl Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some((done, all)) = self.count.get() {
            write!(f, ": {done} of {all} crates")?;
        }
        write!(f, " ... {} s", self.started.elapsed().as_secs())
    }
}

/// The steps under way, oldest first. The oldest speaks for all.
static UNDER_WAY: Mutex<Vec<Arc<Step>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves the list as it was.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does `work`. Once it has taken two seconds, says meanwhile that `what` is under way.
pub fn step<T>(what: &str, work: impl FnOnce() -> T) -> T {
    counted(what, |_| work())
}

/// Does `work`, which keeps its [`Count`] up to date, and says meanwhile how far it is.
pub fn counted<T>(what: &str, work: impl FnOnce(&Count) -> T) -> T {
    let step = Arc::new(Step {
        what: what.to_string(),
        count: Count::default(),
        started: Instant::now(),
    });
    lock(&UNDER_WAY).push(step.clone());
    let terminal = stderr().is_terminal();
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(|| {
            // It is dropped here, if not before: `work` may panic.
            let is_done = is_done;
            let mut pause = Duration::from_secs(2);
            while is_done.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                pause = Duration::from_secs(if terminal { 1 } else { 15 });
                let under_way = lock(&UNDER_WAY);
                if !Arc::ptr_eq(&under_way[0], &step) {
                    continue;
                }
                let line: Vec<_> = under_way.iter().map(|step| step.to_string()).collect();
                let line = line.join("; ");
                if terminal {
                    show(format_args!("\r\x1b[Kboot: {line}"));
                } else {
                    say(line);
                }
            }
            lock(&UNDER_WAY).retain(|other| !Arc::ptr_eq(other, &step));
            if terminal && step.started.elapsed() >= Duration::from_secs(2) {
                show("\r\x1b[K");
            }
        });
        let result = work(&step.count);
        drop(done);
        result
    })
}
