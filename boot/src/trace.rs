//! A guest that traces itself: gets its script, and its answers come back.
//!
//! ```text
//!   script, options ── memory files ──► fw_cfg ─► the kernel
//!                                                    │ messages        ┌─ control bytes
//!   Event::Message ◄── thread ◄── socket ◄── COM2 ◄──┘        COM2 ◄──┘  [`Trace::end`]
//!   Event::Log, Event::End ◄── thread that has the guest
//! ```
//!
//! The messages are `trace_model`'s frames, as bytes: this crate does not look into them.
//!
//! # Invariants
//! TRACE-1. Nothing has a name in a file system: QEMU inherits a socket and memory without one. So
//!     nothing is left behind, however this process ends.
//! TRACE-2. All messages come before [`Event::End`], because the thread that has the guest waits
//!     for the end of the socket first.

use std::{
    io::{Read, Write},
    net::Shutdown,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use trace_wire::{Control, OPTIONS_FILE, Options, Reader, SCRIPT_FILE, WireError};

use crate::{
    children::Killer,
    guest::{self, Guest},
    prerequisites::Install,
    qemu::Machine,
};

/// Events that are read ahead. When nobody takes them, the kernel waits.
const UNREAD_EVENTS: usize = 1024;

/// What is to be traced.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// A `trace_model::Script`, encoded.
    pub script: Vec<u8>,
    /// The program that runs meanwhile, and its arguments, divided by blanks. None: the workload.
    pub run: Option<String>,
    /// When the trace ends, if the program has not ended before.
    pub limit: Option<Duration>,
}

/// An event of a traced guest.
#[derive(Debug)]
pub enum Event {
    /// The kernel has sent this: a `trace_model::Frame`, encoded.
    Message(Vec<u8>),
    /// The kernel's messages cannot be read any more. No further ones come.
    Damaged(WireError),
    /// The guest wrote this to its log.
    Log(Vec<u8>),
    /// It ended. Nothing comes behind it.
    End(guest::End),
    /// It could not be run.
    Failed(anyhow::Error),
    /// There was nothing until the deadline.
    Deadline,
}

/// A guest that traces itself; killed when dropped.
#[derive(Debug)]
pub struct Trace {
    events: Option<Receiver<Event>>,
    control: UnixStream,
    killer: Option<Killer>,
    thread: Option<JoinHandle<()>>,
}

/// Memory that has a number, but no name (TRACE-1), with `contents`.
fn memory_file(contents: &[u8]) -> Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    let file = rustix::fs::memfd_create("trace", rustix::fs::MemfdFlags::CLOEXEC)
        .context("cannot make a file in memory")?;
    #[cfg(not(target_os = "linux"))]
    let file = {
        let path = std::env::temp_dir().join(format!("trace.{}", std::process::id()));
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .with_context(|| format!("cannot make the file {}", path.display()))?;
        // From here on it has no name.
        std::fs::remove_file(&path)
            .with_context(|| format!("cannot remove the file {}", path.display()))?;
        OwnedFd::from(file)
    };
    let mut file = std::fs::File::from(file);
    file.write_all(contents)
        .and_then(|()| std::io::Seek::rewind(&mut file))
        .context("cannot write to memory")?;
    Ok(file.into())
}

impl Trace {
    /// Starts `machine`, whose kernel runs the request's script.
    ///
    /// # Errors
    /// Fails if the means of talking to the guest cannot be had. A guest that cannot be started is
    /// an [`Event::Failed`].
    pub fn start(machine: &Machine, install: Install, request: &Request) -> Result<Self> {
        let (ours, theirs) = UnixStream::pair().context("cannot make a socket")?;
        let options = Options {
            run: request.run.as_deref(),
            nanoseconds: request
                .limit
                .map(|limit| limit.as_nanos().try_into().unwrap_or(u64::MAX)),
        };
        let script = memory_file(&request.script)?;
        let options = memory_file(options.to_string().as_bytes())?;
        let theirs = OwnedFd::from(theirs);
        let mut machine = machine.clone();
        let file = |name, fd: &OwnedFd| format!("name={name},file=/dev/fd/{}", fd.as_raw_fd());
        machine.further.extend([
            "-chardev".into(),
            format!("socket,id=trace,fd={}", theirs.as_raw_fd()),
            "-serial".into(),
            "chardev:trace".into(),
            "-fw_cfg".into(),
            file(SCRIPT_FILE, &script),
            "-fw_cfg".into(),
            file(OPTIONS_FILE, &options),
        ]);
        machine
            .inherited
            .extend([script, options, theirs].map(Arc::new));
        let control = ours.try_clone().context("cannot copy a socket")?;
        let (sender, events) = sync_channel(UNREAD_EVENTS);
        let (tell_killer, killer) = sync_channel(1);
        // This thread has the guest, because a guest ends with the thread that has started it.
        let thread = thread::spawn(move || {
            let guest = Guest::start(&machine, install);
            // Our copy of the guest's end of the socket goes, so that its end is seen.
            drop(machine);
            // If nobody listens, the guest is dropped, and so killed.
            let _ = match guest {
                Ok(guest) => {
                    let _ = tell_killer.send(guest.killer());
                    follow(guest, ours, &sender)
                }
                Err(error) => sender.send(Event::Failed(error)).map_err(drop),
            };
        });
        Ok(Self {
            events: Some(events),
            control,
            killer: killer.recv().ok(),
            thread: Some(thread),
        })
    }

    /// Waits for the next event until `deadline`.
    pub fn next(&mut self, deadline: Option<Instant>) -> Event {
        let gone = || Event::Failed(anyhow::anyhow!("the guest has ended already"));
        let Some(events) = &self.events else {
            return gone();
        };
        let Some(deadline) = deadline else {
            return events.recv().unwrap_or_else(|_| gone());
        };
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => Event::Deadline,
            Err(RecvTimeoutError::Disconnected) => gone(),
        }
    }

    /// Asks the kernel to end the trace now. Its last frames come, and then the guest ends.
    pub fn end(&self) {
        self.ender().end();
    }

    /// The right to do that, for another thread, for example that of Ctrl-C.
    pub fn ender(&self) -> Ender {
        Ender(self.control.try_clone().ok())
    }
}

/// See [`Trace::ender`].
#[derive(Debug)]
pub struct Ender(Option<UnixStream>);

impl Ender {
    /// As [`Trace::end`].
    pub fn end(&self) {
        if let Some(mut control) = self.0.as_ref() {
            // The only error is that the guest has ended.
            let _ = control.write_all(&[Control::End.byte()]);
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // Threads that wait for room in the channel give up.
        self.events = None;
        if let Some(killer) = self.killer.take() {
            killer.kill();
        }
        let _ = self.control.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // A panic there has been told.
            let _ = thread.join();
        }
    }
}

/// Passes on what a guest says until it ends. An error: nobody listens.
fn follow(mut guest: Guest, socket: UnixStream, sender: &SyncSender<Event>) -> Result<(), ()> {
    let messages = sender.clone();
    let reader = thread::spawn(move || read_messages(socket, &messages));
    let mut reader = Some(reader);
    loop {
        let event = match guest.next(None) {
            Ok(guest::Event::Output(text)) => Event::Log(text),
            Ok(guest::Event::End(end)) => {
                if let Some(reader) = reader.take() {
                    let _ = reader.join();
                }
                return sender.send(Event::End(end)).map_err(drop);
            }
            Ok(guest::Event::Deadline) => continue,
            Err(error) => return sender.send(Event::Failed(error)).map_err(drop),
        };
        sender.send(event).map_err(drop)?;
    }
}

fn read_messages(mut socket: UnixStream, sender: &SyncSender<Event>) {
    let mut reader = Reader::new();
    let mut chunk = vec![0; 1 << 16];
    // An error, like the end, means that there is nothing more to read.
    while let Ok(length @ 1..) = socket.read(&mut chunk) {
        reader.push(&chunk[..length]);
        loop {
            let event = match reader.next_message() {
                Ok(Some(message)) => Event::Message(message.to_vec()),
                Ok(None) => break,
                Err(error) => {
                    let _ = sender.send(Event::Damaged(error));
                    return;
                }
            };
            if sender.send(event).is_err() {
                return;
            }
        }
    }
}
