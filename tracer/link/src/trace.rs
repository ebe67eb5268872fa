//! A guest that traces itself, from its start to its end, or a kernel that was there before.
//!
//! One thread has the guest, because a guest ends with the thread that has started it. That thread
//! passes on the guest's log and its end. Another one reads the messages, and ends with the socket.
//! Both write to one channel with a bound: when its reader is slow, the kernel waits. Whoever holds
//! the [`Trace`] reads the channel and looks after the watchdog meanwhile.

use std::{
    io::{ErrorKind, Write},
    net::{Ipv4Addr, Shutdown, TcpListener},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use boot::{
    bochs,
    children::Killer,
    guest::{self, Guest},
    image::Kernel,
    prerequisites::Install,
    qemu::Machine,
};
use trace_wire::{Control, OPTIONS_FILE, Options, SCRIPT_FILE};

use crate::{
    Event, LiveMap, Request, Transport,
    messages::Messages,
    received::{Received, RingCopy},
    remote::Wishes,
    shared::{Shared, memory_file},
    watchdog::Watchdog,
};

/// How often a watchdog looks.
const LOOK: Duration = Duration::from_millis(250);

/// Events that are read ahead. When they are not taken, the kernel waits.
const UNREAD_EVENTS: usize = 1024;

/// A guest that traces itself; killed when dropped.
#[derive(Debug)]
pub struct Trace {
    shared: Option<Arc<Shared>>,
    watchdog: Option<Watchdog>,
    events: Option<Receiver<Event>>,
    /// None: the guest could not be started.
    control: Option<Controls>,
    killer: Option<Killer>,
    /// What a kernel at the other end of a line has sent of its memory.
    received: Option<Arc<Mutex<Received>>>,
    thread: Option<JoinHandle<()>>,
}

/// The way to the kernel.
#[derive(Debug)]
enum Controls {
    Guest {
        port: UnixStream,
        /// The kernel has sent a message, so all is attached, or it refuses the script.
        has_begun: Arc<AtomicBool>,
    },
    Remote(Arc<Wishes>),
}

impl Trace {
    /// Starts `machine`, whose kernel runs the request's script.
    ///
    /// # Errors
    /// Fails if the means of talking to the guest cannot be had. A guest that cannot be started is
    /// an [`Event::Failed`].
    pub fn start(machine: &Machine, install: Install, request: &Request) -> Result<Self> {
        let (ours, theirs) = UnixStream::pair().context("cannot make a socket")?;
        let script = memory_file(&request.script)?;
        let options = memory_file(request.options().to_string().as_bytes())?;
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
        let shared = match request.transport {
            Transport::Memory => Some(Arc::new(Shared::new(&mut machine)?)),
            Transport::Serial => None,
        };
        let start = move || {
            let guest = Guest::start(&machine, install);
            // Our copy of the guest's end of the socket goes, so that its end is seen.
            drop(machine);
            guest
        };
        Ok(Self::of(request, shared, start, move |_, _| Ok(Some(ours))))
    }

    /// Starts Bochs, with the kernel and the CPUs, memory and command line of `machine`. Messages
    /// come through the serial port, whatever the request says.
    ///
    /// # Errors
    /// Same as for [`Self::start`].
    pub fn start_in_bochs(
        kernel: &Kernel,
        machine: &Machine,
        install: Install,
        request: &Request,
    ) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .context("cannot listen on a TCP port")?;
        let port = listener.local_addr().context("a TCP port has no number")?;
        let options = Options {
            memory: false,
            watchdog: false,
            maps: false,
            ..request.options()
        };
        let options = options.to_string();
        let files = [
            (SCRIPT_FILE, &*request.script),
            (OPTIONS_FILE, options.as_bytes()),
        ];
        let machine = bochs::Machine {
            cpus: machine.cpus,
            memory_mib: machine.memory_mib,
            disk: kernel.bochs_image(&machine.cmdline, &files)?,
            answers: Some(port.port()),
        };
        let start = move || Guest::start_in_bochs(&machine, install);
        let connect =
            move |guest: &mut Guest, sender: &SyncSender<Event>| accept(&listener, guest, sender);
        Ok(Self::of(request, None, start, connect))
    }

    /// The trace of the guest that `start` starts. `connect` gives its serial port, or nothing if
    /// the trace is not wanted any more.
    fn of(
        request: &Request,
        shared: Option<Arc<Shared>>,
        start: impl FnOnce() -> Result<Guest> + Send + 'static,
        connect: impl FnOnce(&mut Guest, &SyncSender<Event>) -> Result<Option<UnixStream>>
        + Send
        + 'static,
    ) -> Self {
        let (sender, events) = sync_channel(UNREAD_EVENTS);
        let (tell, started) = sync_channel(1);
        let memory = shared.clone();
        let has_begun = Arc::new(AtomicBool::new(false));
        let begun = has_begun.clone();
        // This thread has the guest, because a guest ends with the thread that has started it.
        let thread = thread::spawn(move || {
            let connected = start().and_then(|mut guest| {
                let Some(socket) = connect(&mut guest, &sender)? else {
                    return Ok(None);
                };
                let control = socket.try_clone().context("cannot copy a socket")?;
                let _ = tell.send((guest.killer(), control));
                Ok(Some((guest, socket)))
            });
            // If the trace has been dropped, the guest is dropped, too, and so killed.
            let _ = match connected {
                Ok(Some((guest, socket))) => {
                    follow(guest, Messages::new(socket, memory, begun), &sender)
                }
                Ok(None) => Ok(()),
                Err(error) => sender.send(Event::Failed(error)).map_err(drop),
            };
        });
        let (killer, port) = started.recv().ok().unzip();
        Self {
            shared,
            watchdog: request.watchdog.map(Watchdog::new),
            events: Some(events),
            control: port.map(|port| Controls::Guest { port, has_begun }),
            killer,
            received: None,
            thread: Some(thread),
        }
    }

    /// The trace of a kernel at the other end of a line, which `follow` has.
    pub(crate) fn remote(
        wishes: Arc<Wishes>,
        received: Arc<Mutex<Received>>,
        follow: impl FnOnce(&SyncSender<Event>) + Send + 'static,
    ) -> Self {
        let (sender, events) = sync_channel(UNREAD_EVENTS);
        Self {
            shared: None,
            watchdog: None,
            events: Some(events),
            control: Some(Controls::Remote(wishes)),
            killer: None,
            received: Some(received),
            thread: Some(thread::spawn(move || follow(&sender))),
        }
    }

    /// Waits for the next event until `deadline`.
    pub fn next(&mut self, deadline: Option<Instant>) -> Event {
        let gone = || Event::Failed(anyhow::anyhow!("the guest has ended already"));
        let Some(events) = &self.events else {
            return gone();
        };
        loop {
            let now = Instant::now();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
            let look = self.watchdog.as_ref().map(|_| LOOK);
            let wait = match (left, look) {
                (Some(left), Some(look)) => Some(left.min(look)),
                (left, look) => left.or(look),
            };
            let Some(wait) = wait else {
                return events.recv().unwrap_or_else(|_| gone());
            };
            match events.recv_timeout(wait) {
                Ok(event) => return event,
                Err(RecvTimeoutError::Disconnected) => return gone(),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let fed = self.shared.as_ref().and_then(|shared| shared.fed());
            if let Some(watchdog) = &mut self.watchdog
                && watchdog.barks(fed, Instant::now())
            {
                self.kill();
                return Event::Hung;
            }
            if left.is_some_and(|left| left <= wait) {
                return Event::Deadline;
            }
        }
    }

    /// Copies of the rings, by CPU: for `trace_ring::image`. After [`Event::End`] they stand still.
    /// Empty without shared memory, and if the script has no records. Those of a kernel at the
    /// other end of a line are the pages that have come.
    pub fn rings(&self) -> Vec<RingCopy> {
        match (&self.shared, self.received()) {
            (Some(shared), _) => shared.copy_rings(),
            (None, Some(received)) => received.rings(),
            (None, None) => Vec::new(),
        }
    }

    /// The maps as they are now, while the guest runs and without its help; or those that a kernel
    /// at the other end of a line has sent when it died. None: they are not there yet, or not any
    /// more, or the request did not ask for them, or not all of them have come.
    pub fn maps(&self) -> Option<Vec<LiveMap>> {
        match &self.shared {
            Some(shared) => shared.copy_maps(),
            None => self.received()?.maps(),
        }
    }

    /// Whether a kernel at the other end of a line has sent all that it had to send.
    pub fn has_all(&self) -> bool {
        self.received().is_none_or(|received| received.is_over())
    }

    fn received(&self) -> Option<MutexGuard<'_, Received>> {
        let received = self.received.as_ref()?;
        // What has come is as good as it was, whoever panicked.
        Some(received.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Kills the guest.
    pub fn kill(&self) {
        if let Some(killer) = &self.killer {
            killer.kill();
        }
    }

    /// The right to kill the guest, for another thread. None: it could not be started.
    pub fn killer(&self) -> Option<Killer> {
        self.killer.clone()
    }

    /// Asks the kernel to end the trace now. Its last frames come, and then the guest ends. False:
    /// it was not asked, because it boots or attaches. It has no answers yet, and would not listen.
    pub fn end(&self) -> bool {
        self.ender().end()
    }

    /// The right to do that, for another thread, for example that of Ctrl-C.
    pub fn ender(&self) -> Ender {
        let control = self.control.as_ref();
        Ender(control.and_then(|control| match control {
            Controls::Guest { port, has_begun } => Some(Controls::Guest {
                port: port.try_clone().ok()?,
                has_begun: has_begun.clone(),
            }),
            Controls::Remote(wishes) => Some(Controls::Remote(wishes.clone())),
        }))
    }
}

/// See [`Trace::ender`].
#[derive(Debug)]
pub struct Ender(Option<Controls>);

impl Ender {
    /// Does what [`Trace::end`] does.
    pub fn end(&self) -> bool {
        match &self.0 {
            Some(Controls::Guest { port, has_begun }) => {
                // The kernel sets up its port before the first message. A byte before that would
                // be lost.
                let has_begun = has_begun.load(Ordering::Acquire);
                if has_begun {
                    let mut port = port;
                    // The only error is that the guest has ended.
                    let _ = port.write_all(&[Control::End.byte()]);
                }
                has_begun
            }
            Some(Controls::Remote(wishes)) => {
                wishes.end.store(true, Ordering::Release);
                true
            }
            None => false,
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
        match &self.control {
            Some(Controls::Guest { port, .. }) => _ = port.shutdown(Shutdown::Both),
            Some(Controls::Remote(wishes)) => wishes.stop.store(true, Ordering::Release),
            None => {}
        }
        if let Some(thread) = self.thread.take() {
            // A panic there has been told.
            let _ = thread.join();
        }
    }
}

/// The connection that a guest makes when it has its devices. None: the trace has been dropped.
///
/// # Errors
/// Fails if the guest ends before.
fn accept(
    listener: &TcpListener,
    guest: &mut Guest,
    sender: &SyncSender<Event>,
) -> Result<Option<UnixStream>> {
    const BETWEEN: Duration = Duration::from_millis(20);
    loop {
        match listener.accept() {
            Ok((connection, _)) => {
                connection
                    .set_nonblocking(false)
                    .context("cannot wait for a connection's bytes")?;
                // It is only read, written and shut down, which is the same for all sockets.
                return Ok(Some(OwnedFd::from(connection).into()));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("cannot take a connection"),
        }
        match guest.next(Some(Instant::now() + BETWEEN))? {
            guest::Event::Output(text) => {
                if sender.send(Event::Log(text)).is_err() {
                    return Ok(None);
                }
            }
            guest::Event::End(end) => bail!("{end}, before it had a second serial port"),
            guest::Event::Deadline => {}
        }
    }
}

/// Passes on what a guest says until it ends. An error: the trace has been
/// dropped.
fn follow(mut guest: Guest, messages: Messages, sender: &SyncSender<Event>) -> Result<(), ()> {
    let copy = sender.clone();
    let mut reader = Some(thread::spawn(move || messages.pass_on(&copy)));
    loop {
        let event = match guest.next(None) {
            Ok(guest::Event::Output(text)) => Event::Log(text),
            Ok(guest::Event::End(end)) => {
                if let Some(reader) = reader.take() {
                    // A panic there has been told.
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
