//! Virtual files that do more than show and obey: they act when they are opened, take whole lines,
//! let readers wait, and go while they are open.
//!
//! Each test makes a file of its own: a list that is cleared by truncation, one that obeys line by
//! line, a pipe whose readers sleep. What such a file holds lives as long as a descriptor of it is
//! open, even if the file itself is gone.

use abi::{WaitStatus, open, signal};
use alloc::{
    boxed::Box,
    format,
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};
use core::{
    fmt,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};
use kernel::{
    errno::Errno,
    fs::{self, How, NodeRef, Opened, Special, pseudo},
    mm::{frame, user_space::is_memory_short},
    sync::Mutex,
    task::{
        self, TaskRef, WaitQueue,
        exec::start_program,
        kthread::spawn_kthread,
        process::{self, Which},
        wait::wait_for_child,
    },
    terminal,
};

const DIRECTORY: &str = "/sys/kernel/debug/test";

fn path(name: &str) -> String {
    format!("{DIRECTORY}/{name}")
}

fn read(path: &str) -> Result<String, Errno> {
    let file = fs::open(path, open::RDONLY)?;
    let mut buf = [0; 256];
    let len = file.read_at(0, &mut buf)?;
    Ok(String::from_utf8_lossy(&buf[..len]).to_string())
}

/// Removes the test's directory, also when the test fails.
struct Cleaned;

impl Drop for Cleaned {
    fn drop(&mut self) {
        let _ = fs::uninstall_all(DIRECTORY.as_bytes());
    }
}

/// A list of lines. `>` clears it, unless it is in use.
#[derive(Default)]
struct List {
    state: Arc<ListState>,
}

#[derive(Default)]
struct ListState {
    /// The text of each store.
    stores: Mutex<Vec<Vec<u8>>>,
    /// The ways in which it was opened.
    opened: Mutex<Vec<How>>,
    is_used: AtomicBool,
}

impl pseudo::VirtualFile for List {
    fn open(&self, how: How) -> Result<(), Errno> {
        if how.truncate {
            if self.state.is_used.load(SeqCst) {
                return Err(Errno::EBUSY);
            }
            self.state.stores.lock().clear();
        }
        self.state.opened.lock().push(how);
        Ok(())
    }

    fn show(&self, out: &mut dyn fmt::Write) -> Result<(), Errno> {
        for text in self.state.stores.lock().iter() {
            out.write_str(core::str::from_utf8(text).map_err(|_| Errno::EIO)?)?;
        }
        Ok(())
    }

    fn store(&self, data: &[u8]) -> Result<(), Errno> {
        self.state.stores.lock().push(data.into());
        Ok(())
    }

    fn is_of_lines(&self) -> bool {
        true
    }
}

/// A list that is cleared although it refused, or by `>>`, would lose the probes of a session.
#[guest_test]
fn opening_with_truncation_clears_or_is_refused() {
    let _cleaned = Cleaned;
    let list = List::default();
    let state = list.state.clone();
    let path = path("list");
    pseudo::create(&path, 0o600, list).expect("the name is free");
    let write = |flags, text: &[u8]| fs::open(&path, open::WRONLY | flags)?.write_at(0, text);

    assert_eq!(write(0, b"one\n"), Ok(4));
    assert_eq!(write(open::APPEND, b"two\n"), Ok(4));
    assert_eq!(read(&path).as_deref(), Ok("one\ntwo\n"));
    // Truncation by a reader means nothing.
    assert!(fs::open(&path, open::RDONLY | open::TRUNC).is_ok());
    assert_eq!(read(&path).as_deref(), Ok("one\ntwo\n"));

    state.is_used.store(true, SeqCst);
    let opened = state.opened.lock().len();
    assert_eq!(write(open::TRUNC, b"three\n"), Err(Errno::EBUSY));
    assert_eq!(write(open::TRUNC | open::CREAT, b"3\n"), Err(Errno::EBUSY));
    assert_eq!(state.opened.lock().len(), opened);
    assert_eq!(read(&path).as_deref(), Ok("one\ntwo\n"));

    state.is_used.store(false, SeqCst);
    assert_eq!(write(open::TRUNC | open::CREAT, b"three\n"), Ok(6));
    assert_eq!(read(&path).as_deref(), Ok("three\n"));

    state.opened.lock().clear();
    let flags = open::RDWR | open::APPEND | open::NONBLOCK;
    fs::open(&path, flags).expect("it may be read and written");
    let how = How {
        read: true,
        write: true,
        truncate: false,
        append: true,
        nonblocking: true,
    };
    assert_eq!(*state.opened.lock(), [how]);
    // A file without a say in it takes every way that its mode allows.
    let functions = pseudo::Functions {
        show: None,
        store: Some(|_| Ok(())),
    };
    let plain = format!("{DIRECTORY}/plain");
    pseudo::create(&plain, 0o200, functions).expect("the name is free");
    assert!(fs::open(&plain, open::WRONLY | open::TRUNC).is_ok());
    assert_eq!(fs::open(&plain, open::RDONLY).err(), Some(Errno::EACCES));
}

/// A command that is divided between two calls would be refused, or obeyed as another one.
#[guest_test]
fn lines_reach_the_file_whole() {
    let _cleaned = Cleaned;
    let list = List::default();
    let state = list.state.clone();
    let path = path("lines");
    pseudo::create(&path, 0o600, list).expect("the name is free");
    let stores = || core::mem::take(&mut *state.stores.lock());

    // Several lines, the last without its end, in one piece.
    let write = |text: &[u8]| fs::open(&path, open::WRONLY)?.write_at(0, text);
    assert_eq!(write(b"a\nb\nc"), Ok(5));
    assert_eq!(stores(), [b"a\nb\nc"]);

    // More than one piece, from a program.
    let text: String = (0..1500).map(|n| format!("line {n}\n")).collect();
    fs::install_file(b"/tmp/lines", 0o444, text.clone().into_bytes()).expect("room for a file");
    let copied = kernel::task::exec::run_program("/bin/exercise", &["copy", "/tmp/lines", &path]);
    fs::uninstall(b"/tmp/lines").expect("it is there");
    assert_eq!(copied, Ok(WaitStatus::exited(0)));
    let pieces = stores();
    assert!(pieces.len() >= text.len() / fs::CHUNK);
    for piece in &pieces {
        assert!(piece.ends_with(b"\n"), "{}", piece.escape_ascii());
    }
    assert_eq!(pieces.concat(), text.as_bytes());

    // The longest line fills a piece with its end.
    let mut line = alloc::vec![b'x'; fs::CHUNK];
    assert_eq!(write(&line), Err(Errno::EINVAL));
    assert_eq!(stores(), [[]; 0]);
    line[fs::CHUNK - 1] = b'\n';
    assert_eq!(write(&line), Ok(fs::CHUNK));
    assert_eq!(stores(), [line]);
}

/// A pipe whose readers wait for letters.
#[derive(Default)]
struct Pipe {
    letters: AtomicUsize,
    arrived: WaitQueue,
    /// Writers cannot wake.
    is_polled: bool,
}

struct Reader {
    pipe: Arc<Pipe>,
    how: How,
}

/// The file of a pipe.
struct PipeFile(Arc<Pipe>);

impl Special for PipeFile {
    fn open(&self, how: How) -> Result<Box<dyn Opened>, Errno> {
        let pipe = self.0.clone();
        Ok(Box::new(Reader { pipe, how }))
    }
}

impl Opened for Reader {
    fn read(&self, _at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let pipe = &self.pipe;
        let mut taken = 0;
        let mut take = || {
            let most = buf.len();
            let took = pipe
                .letters
                .fetch_update(SeqCst, SeqCst, |n| Some(n - n.min(most)));
            taken = took.map_or(0, |n| n.min(most));
            taken > 0
        };
        if self.how.nonblocking {
            if !take() {
                return Err(Errno::EAGAIN);
            }
        } else if pipe.is_polled {
            fs::poll_for_data(take)?;
        } else {
            fs::wait_for_data(&pipe.arrived, take)?;
        }
        buf[..taken].fill(b'x');
        Ok(taken)
    }

    fn write(&self, _at: u64, _data: &[u8]) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }
}

impl Pipe {
    fn put(&self, letters: usize) {
        self.letters.fetch_add(letters, SeqCst);
        self.arrived.wake_all();
    }
}

type Outcome = Arc<Mutex<Option<Result<usize, Errno>>>>;

/// Waits until `ready` and `task` sleeps. Does not sleep, because a task that asks at each tick
/// wakes with every other sleeper. A task that ends never sleeps again: that is a failure, told at
/// once.
fn wait_for_sleep(task: &TaskRef, ready: impl Fn() -> bool) {
    loop {
        // Before the state: a task that is ready may have slept for another reason until then.
        let ready = ready();
        match task.state() {
            task::TaskState::Sleeping if ready => return,
            task::TaskState::Dead => panic!("{task} has ended and does not wait"),
            _ => task::schedule(),
        }
    }
}

/// Starts a thread that reads from `path` once, as part of a command of the prompt if `commanded`.
/// Returns when it waits.
fn reader(path: &str, commanded: bool) -> (TaskRef, Outcome) {
    let (path, outcome) = (path.to_string(), Outcome::default());
    let (put, reads) = (outcome.clone(), Arc::new(AtomicBool::new(false)));
    let begins = reads.clone();
    let thread = spawn_kthread("reader", move || {
        let command = commanded.then(terminal::Command::begin);
        let file = fs::open(&path, open::RDONLY).expect("it is there");
        begins.store(true, SeqCst);
        let read = file.read_at(0, &mut [0; 8]);
        drop(command);
        *put.lock() = Some(read);
    })
    .expect("memory for a thread");
    wait_for_sleep(&thread, || reads.load(SeqCst));
    (thread, outcome)
}

fn a_read_waits(is_polled: bool) {
    let _cleaned = Cleaned;
    let pipe = Arc::new(Pipe {
        is_polled,
        ..Pipe::default()
    });
    let path = path("pipe");
    pseudo::create_special(&path, 0o400, PipeFile(pipe.clone())).expect("the name is free");

    let nonblocking = fs::open(&path, open::RDONLY | open::NONBLOCK).expect("it is there");
    assert_eq!(nonblocking.read_at(0, &mut [0; 8]), Err(Errno::EAGAIN));
    pipe.put(3);
    assert_eq!(nonblocking.read_at(0, &mut [0; 2]), Ok(2));
    assert_eq!(nonblocking.read_at(0, &mut [0; 2]), Ok(1));

    // Ctrl-C ends the read of the command, and that of no other task.
    let (other, other_read) = reader(&path, false);
    let (command, command_read) = reader(&path, true);
    terminal::Command::stop();
    command.wait_released();
    assert_eq!(*command_read.lock(), Some(Err(Errno::EINTR)));
    assert!(terminal::Command::is_interrupted());
    // Until the next command begins, the word is still set. It is meant for no one.
    let (late, late_read) = reader(&path, false);
    assert_eq!(*other_read.lock(), None);
    pipe.put(8);
    pipe.put(8);
    for (thread, read) in [(other, other_read), (late, late_read)] {
        thread.wait_released();
        assert_eq!(*read.lock(), Some(Ok(8)));
    }
    // The next command waits again.
    let (command, read) = reader(&path, true);
    pipe.put(5);
    command.wait_released();
    assert_eq!(*read.lock(), Some(Ok(5)));

    // A program that is killed, and one that gets something.
    for letters in [0, 4] {
        let pid = start_program("/bin/exercise", &["read", &path, "4"]).expect("it can be run");
        let program = process::find(pid).expect("it waits");
        wait_for_sleep(&program, || true);
        let status = if letters == 0 {
            process::kill(pid).expect("it runs");
            WaitStatus::killed(signal::KILL)
        } else {
            pipe.put(letters);
            WaitStatus::exited(0)
        };
        assert_eq!(
            wait_for_child(Which::Pid(pid), false),
            Ok(Some((pid, status)))
        );
    }
    assert_eq!(pipe.letters.load(SeqCst), 0);
}

/// A reader that misses its data sleeps for ever; one that cannot be stopped holds the prompt.
#[guest_test]
fn a_read_waits_for_data_until_the_reader_is_stopped() {
    a_read_waits(false);
}

/// The same where nothing may wake the reader.
#[guest_test]
fn a_read_that_asks_at_each_tick_waits_as_well() {
    a_read_waits(true);
}

/// A file of something that can go. Its drop uses files.
struct Mortal {
    is_gone: Arc<AtomicBool>,
    drops: Arc<AtomicUsize>,
}

impl pseudo::VirtualFile for Mortal {
    fn open(&self, _how: How) -> Result<(), Errno> {
        self.show(&mut String::new())
    }

    fn show(&self, out: &mut dyn fmt::Write) -> Result<(), Errno> {
        match self.is_gone.load(SeqCst) {
            true => Err(Errno::ENODEV),
            false => Ok(out.write_str("there\n")?),
        }
    }

    fn store(&self, _data: &[u8]) -> Result<(), Errno> {
        self.show(&mut String::new())
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        fs::attributes(&NodeRef::root(), b"/sys/kernel").expect("it stays");
        self.drops.fetch_add(1, SeqCst);
    }
}

/// An event is deleted while its files are open. Its memory goes with the last of them, and the
/// lock of the tree is not held then.
#[guest_test]
fn open_files_outlive_their_directory() {
    let _cleaned = Cleaned;
    let (is_gone, drops) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let create = |name: &str| {
        let file = Mortal {
            is_gone: is_gone.clone(),
            drops: Arc::clone(&drops),
        };
        pseudo::create(&path(name), 0o600, file)
    };
    for name in ["event/id", "event/enable", "event/inner/format"] {
        create(name).expect("the name is free");
    }
    fs::install_directory(path("event/empty").as_bytes(), 0o555).expect("the name is free");
    assert_eq!(create("event/id"), Err(Errno::EEXIST));
    assert_eq!(drops.load(SeqCst), 1, "the refused file");

    let enable = path("event/enable");
    let first = fs::open(&enable, open::RDWR).expect("it is there");
    let second = fs::open(&enable, open::RDONLY).expect("it is there");
    let mut buf = [0; 16];
    assert_eq!(first.read_at(0, &mut buf), Ok(6));
    let directory = fs::open(&path("event"), open::RDONLY | open::DIRECTORY).expect("it is there");

    is_gone.store(true, SeqCst);
    assert_eq!(
        fs::uninstall(path("event").as_bytes()),
        Err(Errno::ENOTEMPTY)
    );
    assert_eq!(fs::uninstall_all(path("event").as_bytes()), Ok(()));
    assert_eq!(drops.load(SeqCst), 3, "two files are not open");
    assert_eq!(fs::open(&enable, open::RDONLY).err(), Some(Errno::ENOENT));
    assert_eq!(
        fs::uninstall_all(path("event").as_bytes()),
        Err(Errno::ENOENT)
    );
    // The text that was read stays; the file decides about the rest.
    assert_eq!(first.read_at(2, &mut buf), Ok(4));
    assert_eq!(first.read_at(0, &mut buf), Err(Errno::ENODEV));
    assert_eq!(second.read_at(0, &mut buf), Err(Errno::ENODEV));
    assert_eq!(first.write_at(0, b"1"), Err(Errno::ENODEV));

    // The same names again are other files, and can be found by another way.
    is_gone.store(false, SeqCst);
    create("event/enable").expect("the name is free");
    drop(first);
    assert_eq!(drops.load(SeqCst), 3, "one user is left");
    drop(second);
    assert_eq!(drops.load(SeqCst), 4);
    drop(directory);
    assert_eq!(read(&enable).as_deref(), Ok("there\n"));
    let alias = path("again");
    fs::install_alias(alias.as_bytes(), path("event").as_bytes()).expect("the name is free");
    let by_alias = format!("{alias}/enable");
    assert_eq!(read(&by_alias).as_deref(), Ok("there\n"));
    let entries = fs::entries(&NodeRef::root(), DIRECTORY.as_bytes()).expect("it is there");
    let kinds = entries.iter().map(|(_, attributes)| attributes.kind);
    assert!(kinds.eq([fs::FileKind::Directory; 2]));
    assert_eq!(fs::uninstall_all(path("event").as_bytes()), Ok(()));
    assert_eq!(read(&by_alias), Err(Errno::ENOENT));
    assert_eq!(drops.load(SeqCst), 5);
    assert_eq!(fs::uninstall_all(DIRECTORY.as_bytes()), Ok(()));
    assert_eq!(drops.load(SeqCst), 5);
}

/// Else nothing could be written that gives memory back.
#[guest_test]
fn a_file_that_is_there_is_opened_when_memory_is_short() {
    let opened = |path: &str| fs::open(path, open::WRONLY | open::CREAT).map(drop);
    let mut held = Vec::with_capacity(frame::free_frames());
    while !is_memory_short() {
        held.push(frame::Frame::alloc().unwrap());
    }
    let new = opened("/memory_is_short");
    let old = opened("/sys/kernel/debug/kprobes/enabled");
    drop(held);
    assert_eq!(new, Err(Errno::ENOSPC));
    assert_eq!(old, Ok(()));
}
