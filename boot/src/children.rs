//! Child processes. None of them outlives this process.
//!
//! Every child is in the list from before it can be lost until it has been reaped. [`kill_all`]
//! kills all children in the list and keeps the list locked, so that nothing is started between a
//! signal and the exit that it causes. On Linux the kernel also kills a child when the thread that
//! started it ends. This covers even SIGKILL, and it means that the thread must wait for its child.
//!
//! A process id stays ours until the child is reaped. Therefore waiting has two steps: wait for the
//! end without reaping and without the lock, then reap under the lock that `kill` takes.

use std::{
    io,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

static LIVE: Mutex<Vec<Arc<Mutex<Child>>>> = Mutex::new(Vec::new());

/// A child process; killed and reaped when dropped.
#[derive(Debug)]
pub struct Running {
    child: Arc<Mutex<Child>>,
    pid: Pid,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves a list of processes as good as it was.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts `command`.
pub fn spawn(command: &mut Command) -> io::Result<Running> {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, getppid, set_parent_process_death_signal};
        use std::os::unix::process::CommandExt;
        let parent = Pid::from_raw(std::process::id() as i32);
        let die_with_parent = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            if getppid() != parent {
                // The parent died before the request took effect.
                return Err(io::Error::from(io::ErrorKind::BrokenPipe));
            }
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes two system calls and allocates nothing.
        unsafe { command.pre_exec(die_with_parent) };
    }
    let mut live = lock(&LIVE);
    let child = command.spawn()?;
    let pid = Pid::from_child(&child);
    let child = Arc::new(Mutex::new(child));
    live.push(child.clone());
    Ok(Running { child, pid })
}

/// Kills a child from another thread than that which has it.
#[derive(Clone, Debug)]
pub struct Killer(Arc<Mutex<Child>>);

impl Killer {
    /// Kills the child; no effect if it has ended.
    pub fn kill(&self) {
        // The only error is that it has ended.
        let _ = lock(&self.0).kill();
    }
}

impl Running {
    /// The right to kill it, for another thread.
    pub fn killer(&self) -> Killer {
        Killer(self.child.clone())
    }

    /// Takes the writing end of the child's standard input, if that is piped.
    pub fn take_stdin(&self) -> Option<ChildStdin> {
        lock(&self.child).stdin.take()
    }

    /// Takes the reading end of the child's standard output, if that is piped.
    pub fn take_stdout(&self) -> Option<ChildStdout> {
        lock(&self.child).stdout.take()
    }

    /// Takes the reading end of the child's standard error, if that is piped.
    pub fn take_stderr(&self) -> Option<ChildStderr> {
        lock(&self.child).stderr.take()
    }

    /// Waits for the child to end.
    pub fn wait(&self) -> io::Result<ExitStatus> {
        loop {
            match waitid(
                WaitId::Pid(self.pid),
                WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
            ) {
                Err(rustix::io::Errno::INTR) => {}
                // An error means that it has been reaped: `Child` remembers its status.
                _ => return lock(&self.child).wait(),
            }
        }
    }

    /// Whether the child has ended.
    pub fn has_ended(&self) -> io::Result<bool> {
        Ok(lock(&self.child).try_wait()?.is_some())
    }

    /// Kills the child; no effect if it has ended.
    pub fn kill(&self) {
        // The only error is that it has ended.
        let _ = lock(&self.child).kill();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        // It was killed, so this returns at once. The status is not needed.
        let _ = self.wait();
        lock(&LIVE).retain(|other| !Arc::ptr_eq(other, &self.child));
    }
}

/// Runs `command` to its end. Returns its status and its output on standard error.
pub fn run_quietly(command: &mut Command) -> io::Result<(ExitStatus, String)> {
    let child = spawn(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped()),
    )?;
    let stderr = child.take_stderr().expect("piped above");
    let message = io::read_to_string(stderr)?;
    Ok((child.wait()?, message))
}

/// Kills all children and lets no more be started. The caller must then end this process.
pub fn kill_all() {
    let live = lock(&LIVE);
    for child in live.iter() {
        // The only error is that it has ended.
        let _ = lock(child).kill();
    }
    std::mem::forget(live);
}
