//! A guest that traces itself: gets its script, and its answers come back.
//!
//! ```text
//!   script, options ── memory files ──► fw_cfg ─► the kernel
//!                                                    │ messages        ┌─ control bytes
//!   Event::Message ◄── thread ◄── socket ◄── COM2 ◄──┤        COM2 ◄──┘  [`Trace::end`]
//!                         ▲                          │
//!                         └──── the guest's RAM ◄────┘ the outbox, if the memory is shared
//!   Event::Log, Event::End ◄── thread that has the guest
//! ```
//!
//! Bochs has neither fw_cfg nor memory that can be shared: the script is in the disk image's
//! initramfs, and the second serial port is a TCP connection.
//!
//! The memory is shared unless the request says otherwise. Then all messages go through the outbox
//! there, which costs the kernel a copy, and the serial port only tells of them. The memory stays
//! when the guest is dead: [`Trace::rings`] are its last records then. The script's maps are there,
//! too, and are read while the guest runs ([`Trace::maps`]).
//!
//! The messages are `trace_interface`'s frames, as bytes: this crate does not look into them.
//!
//! # Invariants
//! TRACE-1. Nothing has a name in a file system: QEMU inherits a socket and memory without one. So
//!     nothing is left behind, however this process ends. Only the disk image for Bochs stays, as
//!     each image does.
//! TRACE-2. All messages come before [`Event::End`], because the thread that has the guest waits
//!     for the end of the socket first.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{Ordering, fence},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use trace_maps::image::Layout;
use trace_wire::{
    Control, Extent, MapPart, MemoryPlace, OPTIONS_FILE, Options, Reader, SCRIPT_FILE, WireError,
    outbox::{FED, MAPS},
};

use crate::{
    bochs,
    children::Killer,
    guest::{self, Guest},
    image::Kernel,
    prerequisites::Install,
    qemu::Machine,
    ram::{Inbox, Ram, Words},
};

/// How often a watchdog looks.
const LOOK: Duration = Duration::from_millis(250);

/// Events that are read ahead. When nobody takes them, the kernel waits.
const UNREAD_EVENTS: usize = 1024;

/// The trace that is wanted.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// A `trace_interface::Script`, encoded.
    pub script: Vec<u8>,
    /// The program that runs meanwhile, and its arguments, divided by blanks. None: the workload.
    pub run: Option<String>,
    /// When the trace ends, if the program has not ended before.
    pub limit: Option<Duration>,
    /// How the kernel's messages come.
    pub transport: Transport,
    /// KiB of each CPU's ring. None: as the kernel makes them.
    pub ring_kib: Option<u32>,
    /// A flight recorder: the rings keep the newest records, which are not sent. They are read from
    /// memory at the end ([`Trace::rings`]).
    pub overwrite: bool,
    /// A guest that does not get on for so long is taken for hanging ([`Event::Hung`]).
    pub watchdog: Option<Duration>,
    /// Maps are to be read while the script runs ([`Trace::maps`]).
    pub maps: bool,
}

impl Request {
    /// The part that the kernel is told.
    fn options(&self) -> Options<'_> {
        let limit = self.limit.map(|limit| limit.as_nanos());
        Options {
            run: self.run.as_deref(),
            nanoseconds: limit.map(|limit| limit.try_into().unwrap_or(u64::MAX)),
            memory: self.transport == Transport::Memory,
            ring_kib: self.ring_kib,
            overwrite: self.overwrite,
            watchdog: self.watchdog.is_some(),
            maps: self.maps,
        }
    }
}

/// How the kernel's messages come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Through memory that the guest shares with this process.
    #[default]
    Memory,
    /// Through the second serial port, byte by byte.
    Serial,
}

/// An event of a traced guest.
#[derive(Debug)]
pub enum Event {
    /// The kernel has sent this: a `trace_interface::Frame`, encoded.
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
    /// The watchdog found that it does not get on. It has been killed, and its end comes next.
    Hung,
}

/// The guest's account of its memory.
#[derive(Debug)]
struct Shared {
    ram: Ram,
    inbox: OnceLock<Inbox>,
    /// By CPU.
    rings: Mutex<Vec<Vec<Extent>>>,
    maps: Mutex<Vec<MapPlace>>,
}

/// A part of a map, in memory.
#[derive(Debug)]
struct MapPlace {
    map: u32,
    cpu: u32,
    layout: Layout,
    words: Words,
}

impl MapPlace {
    /// None: it is no part of a map.
    fn new(part: MapPart) -> Option<Self> {
        let layout = Layout::decode(part.layout)?;
        let words = Words::new(part.extents);
        let fits = words.bytes() >= layout.bytes() as u64;
        fits.then_some(Self {
            map: part.map,
            cpu: part.cpu,
            layout,
            words,
        })
    }

    /// Copies what is there now. Nothing is written, so the guest does not notice.
    fn read(&self, ram: &Ram) -> LiveMap {
        let mut live = LiveMap {
            map: self.map,
            cpu: self.cpu,
            is_stacks: matches!(self.layout, Layout::Stacks { .. }),
            entries: Vec::new(),
            left_out: 0,
        };
        let load = |index, order| {
            let word = self.words.word(ram, index);
            word.map_or(0, |word| word.load(order))
        };
        live.left_out = self.layout.for_each(load, |key, value| {
            live.entries.push((key.to_vec(), value.to_vec()));
        });
        live
    }
}

/// The content of a part of a map at about one moment: each entry is as it was at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveMap {
    /// The map's number in the script.
    pub map: u32,
    /// The CPU whose part it is; 0 if all CPUs share the map.
    pub cpu: u32,
    /// It has call stacks by their numbers (8 bytes).
    pub is_stacks: bool,
    /// Keys and values. An array has those that are not zero, by index (4 bytes).
    pub entries: Vec<(Vec<u8>, Vec<u64>)>,
    /// Entries that changed while they were looked at.
    pub left_out: usize,
}

impl Shared {
    fn rings(&self) -> MutexGuard<'_, Vec<Vec<Extent>>> {
        // A list is as good as it was, whoever panicked.
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn map_places(&self) -> MutexGuard<'_, Vec<MapPlace>> {
        // As above.
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// OUTBOX-2.
    fn has_maps(&self) -> bool {
        let word = self
            .inbox
            .get()
            .and_then(|inbox| inbox.word(&self.ram, MAPS));
        word.is_some_and(|word| word.load(Ordering::Acquire) == 1)
    }

    fn fed(&self) -> Option<u64> {
        let word = self.inbox.get()?.word(&self.ram, FED)?;
        Some(word.load(Ordering::Relaxed))
    }
}

/// Finds out that a guest does not get on.
#[derive(Debug)]
struct Watchdog {
    limit: Duration,
    /// The word [`FED`], and since when it has that value. None: the trace has not begun.
    seen: Option<(u64, Instant)>,
    barked: bool,
}

impl Watchdog {
    /// Whether it barks, for the first time.
    fn barks(&mut self, fed: Option<u64>, now: Instant) -> bool {
        // Before the first tick the kernel boots or attaches, and both may take long.
        let Some(fed) = fed.filter(|fed| *fed != 0) else {
            return false;
        };
        match self.seen {
            Some((before, since)) if before == fed => {
                let late = now.saturating_duration_since(since) >= self.limit;
                late && !std::mem::replace(&mut self.barked, true)
            }
            _ => {
                self.seen = Some((fed, now));
                false
            }
        }
    }
}

/// A guest that traces itself; killed when dropped.
#[derive(Debug)]
pub struct Trace {
    shared: Option<Arc<Shared>>,
    watchdog: Option<Watchdog>,
    events: Option<Receiver<Event>>,
    /// None: the guest could not be started.
    control: Option<UnixStream>,
    killer: Option<Killer>,
    thread: Option<JoinHandle<()>>,
}

/// Memory that has a number, but no name (TRACE-1), with `contents`.
pub(crate) fn memory_file(contents: &[u8]) -> Result<OwnedFd> {
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
            Transport::Memory => Some(Arc::new(share_memory(&mut machine)?)),
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
    /// As [`Self::start`].
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
    /// nobody wants it any more.
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
            // If nobody listens, the guest is dropped, and so killed.
            let _ = match connected {
                Ok(Some((guest, socket))) => {
                    let source = Source {
                        socket,
                        shared: memory,
                    };
                    follow(guest, source, &sender)
                }
                Ok(None) => Ok(()),
                Err(error) => sender.send(Event::Failed(error)).map_err(drop),
            };
        });
        let (killer, control) = started.recv().ok().unzip();
        Self {
            shared,
            watchdog: request.watchdog.map(|limit| Watchdog {
                limit,
                seen: None,
                barked: false,
            }),
            events: Some(events),
            control,
            killer,
            thread: Some(thread),
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

    /// Copies of the rings, by CPU, whole: for `trace_ring::image`. After [`Event::End`] they stand
    /// still. Empty without shared memory, and if the script has no records.
    pub fn rings(&self) -> Vec<Vec<u8>> {
        let Some(shared) = &self.shared else {
            return Vec::new();
        };
        let copy = |extents: &Vec<Extent>| {
            let count = extents.iter().map(|extent| extent.bytes).sum();
            let mut bytes = Vec::new();
            shared
                .ram
                .copy(extents, 0, count, &mut bytes)
                .then_some(bytes)
        };
        shared.rings().iter().filter_map(copy).collect()
    }

    /// The maps as they are now, while the guest runs and without its help. None: they are not
    /// there yet, or not any more, or the request did not ask for them.
    pub fn maps(&self) -> Option<Vec<LiveMap>> {
        let shared = self.shared.as_ref()?;
        if !shared.has_maps() {
            return None;
        }
        let places = shared.map_places();
        let maps = places.iter().map(|place| place.read(&shared.ram)).collect();
        // All loads above come before the next look.
        fence(Ordering::Acquire);
        shared.has_maps().then_some(maps)
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

    /// Asks the kernel to end the trace now. Its last frames come, and then the guest ends.
    pub fn end(&self) {
        self.ender().end();
    }

    /// The right to do that, for another thread, for example that of Ctrl-C.
    pub fn ender(&self) -> Ender {
        let control = self.control.as_ref();
        Ender(control.and_then(|control| control.try_clone().ok()))
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
        if let Some(control) = &self.control {
            let _ = control.shutdown(Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            // A panic there has been told.
            let _ = thread.join();
        }
    }
}

/// Has QEMU take the guest's memory from a file, and maps it here, too.
fn share_memory(machine: &mut Machine) -> Result<Shared> {
    let file = memory_file(&[])?;
    let mib = machine.memory_mib;
    let ram = Ram::new(&file, u64::from(mib) << 20)?;
    machine.further.extend([
        "-object".into(),
        format!(
            "memory-backend-file,id=ram,size={mib}M,mem-path=/dev/fd/{},share=on",
            file.as_raw_fd()
        ),
        "-machine".into(),
        "memory-backend=ram".into(),
    ]);
    machine.inherited.push(Arc::new(file));
    Ok(Shared {
        ram,
        inbox: OnceLock::new(),
        rings: Mutex::new(Vec::new()),
        maps: Mutex::new(Vec::new()),
    })
}

/// The connection that a guest makes when it has its devices. None: nobody listens any more.
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

/// Passes on what a guest says until it ends. An error: nobody listens.
fn follow(mut guest: Guest, source: Source, sender: &SyncSender<Event>) -> Result<(), ()> {
    let messages = sender.clone();
    let mut reader = Some(thread::spawn(move || source.read(&messages)));
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

/// Where messages come from.
struct Source {
    socket: UnixStream,
    shared: Option<Arc<Shared>>,
}

/// Why no more messages come.
enum Stop {
    Damaged(WireError),
    /// Nobody listens.
    Unheard,
}

impl Source {
    /// Passes messages on until the socket ends, and then those that are left in the outbox.
    fn read(mut self, sender: &SyncSender<Event>) {
        let (mut port, mut outbox) = (Reader::new(), Reader::new());
        let mut chunk = vec![0; 1 << 16];
        let mut result = Ok(());
        // An error, like the end, means that there is nothing more to read.
        while result.is_ok()
            && let Ok(length @ 1..) = self.socket.read(&mut chunk)
        {
            port.push(&chunk[..length]);
            result = self.read_port(&mut port, &mut outbox, sender);
        }
        let result = result.and_then(|()| self.read_outbox(&mut outbox, sender));
        if let Err(Stop::Damaged(error)) = result {
            // If nobody listens, nobody misses it.
            let _ = sender.send(Event::Damaged(error));
        }
    }

    fn read_port(
        &self,
        port: &mut Reader,
        outbox: &mut Reader,
        sender: &SyncSender<Event>,
    ) -> Result<(), Stop> {
        let mut has_news = false;
        while let Some(message) = port.next_message().map_err(Stop::Damaged)? {
            if message.is_empty() {
                has_news = true;
                continue;
            }
            match (MemoryPlace::decode(message), &self.shared) {
                (Some(MemoryPlace::Outbox(extents)), Some(shared)) => {
                    if let Some(inbox) = Inbox::new(&shared.ram, extents) {
                        // There is one outbox; a second message about it changes nothing.
                        let _ = shared.inbox.set(inbox);
                    }
                }
                (Some(MemoryPlace::Ring(extents)), Some(shared)) => shared.rings().push(extents),
                (Some(MemoryPlace::Map(part)), Some(shared)) => {
                    shared.map_places().extend(MapPlace::new(part));
                }
                (Some(_), None) => {}
                (None, _) => {
                    let event = Event::Message(message.to_vec());
                    sender.send(event).map_err(|_| Stop::Unheard)?;
                }
            }
        }
        match has_news {
            true => self.read_outbox(outbox, sender),
            false => Ok(()),
        }
    }

    fn read_outbox(&self, outbox: &mut Reader, sender: &SyncSender<Event>) -> Result<(), Stop> {
        let Some(shared) = &self.shared else {
            return Ok(());
        };
        let Some(inbox) = shared.inbox.get() else {
            return Ok(());
        };
        let mut bytes = Vec::new();
        if !inbox.take(&shared.ram, &mut bytes) {
            // The kernel has written over the header, so it is about to end.
            return Ok(());
        }
        outbox.push(&bytes);
        while let Some(message) = outbox.next_message().map_err(Stop::Damaged)? {
            let event = Event::Message(message.to_vec());
            sender.send(event).map_err(|_| Stop::Unheard)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_barks_once_when_nothing_has_changed_for_its_time() {
        let limit = Duration::from_secs(5);
        let mut watchdog = Watchdog {
            limit,
            seen: None,
            barked: false,
        };
        let start = Instant::now();
        let second = Duration::from_secs(1);
        assert!(!watchdog.barks(None, start));
        // 0 is the kernel before the first tick, for however long.
        assert!(!watchdog.barks(Some(0), start));
        assert!(!watchdog.barks(Some(0), start + 9 * second));
        assert!(!watchdog.barks(Some(1), start + 10 * second));
        assert!(!watchdog.barks(Some(2), start + 14 * second));
        assert!(!watchdog.barks(Some(2), start + 18 * second));
        assert!(watchdog.barks(Some(2), start + 19 * second));
        assert!(!watchdog.barks(Some(2), start + 20 * second));
    }
}
