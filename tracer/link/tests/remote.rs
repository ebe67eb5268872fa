//! The host's end of the link against a kernel's end in a thread: over each kind of line, with
//! answers as they should be, and with all that can go wrong. No test waits for a time, except for
//! the one in which there is no answer.

use std::{
    fs::File,
    io::{Read, Write},
    net::TcpListener,
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    thread::{self, JoinHandle},
    time::Duration,
};

use boot::guest::End;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use trace_link::{Address, Event, Remote, Request};
use trace_wire::stream::{About, Asked, Deathbed, KernelEnd, Piece, Whole};

/// The time that a call may take. Nothing here waits so long, unless there is no answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A kernel's end and its line.
struct Kernel {
    end: KernelEnd,
    line: File,
    script: Vec<u8>,
}

/// What a kernel was asked for.
#[derive(Debug, PartialEq, Eq)]
enum Wish {
    Hello,
    Run,
    End,
    Leave,
    Other,
    /// The line has ended.
    Closed,
}

impl Kernel {
    fn new(line: impl Into<OwnedFd>) -> Self {
        Self {
            end: KernelEnd::new(),
            line: File::from(line.into()),
            script: Vec::new(),
        }
    }

    /// The next wish, byte by byte.
    fn next(&mut self) -> Wish {
        let mut byte = [0];
        let mut input: &[u8] = &[];
        loop {
            if let Some(asked) = self.end.next(&mut input) {
                return match asked {
                    Asked::Hello => Wish::Hello,
                    Asked::Begin { options, .. } => {
                        assert!(options.contains("nanoseconds=7000000000\n"), "{options}");
                        self.script.clear();
                        continue;
                    }
                    Asked::Script(piece) => {
                        self.script.extend(piece);
                        continue;
                    }
                    Asked::Run => Wish::Run,
                    Asked::End => Wish::End,
                    Asked::Leave => Wish::Leave,
                    Asked::Alive | Asked::Damaged(_) => Wish::Other,
                };
            }
            match self.line.read(&mut byte) {
                Ok(1) => input = &byte,
                _ => return Wish::Closed,
            }
        }
    }

    fn wait_for(&mut self, wanted: Wish) {
        loop {
            let wish = self.next();
            if wish == wanted {
                return;
            }
            assert!(
                matches!(wish, Wish::Hello | Wish::Other),
                "{wish:?}, not {wanted:?}"
            );
        }
    }

    fn send(&mut self, send: impl FnOnce(&mut KernelEnd, &mut dyn FnMut(&[u8]))) {
        let mut bytes = Vec::new();
        send(&mut self.end, &mut |more| bytes.extend_from_slice(more));
        // The host may have gone.
        let _ = self.line.write_all(&bytes);
    }

    fn welcome(&mut self) {
        self.wait_for(Wish::Hello);
        let about = About {
            kernel: "a kernel",
            cpus: 3,
            most_script_bytes: 10_000,
            ..About::default()
        };
        self.send(|end, mut out| end.welcome(about, &mut out));
    }

    fn message(&mut self, message: &[u8]) {
        self.send(|end, mut out| end.message(message, &mut out));
    }

    /// Answers the script with itself, and ends when it is asked to.
    fn echo(&mut self) {
        self.welcome();
        self.wait_for(Wish::Run);
        let script = self.script.clone();
        self.message(&script);
        self.wait_for(Wish::End);
        self.message(b"last");
        self.send(|end, mut out| end.over(&mut out));
        self.wait_for(Wish::Leave);
    }
}

fn request(script: &[u8]) -> Request {
    Request {
        script: script.into(),
        limit: Some(Duration::from_secs(7)),
        ..Request::default()
    }
}

/// A kernel at a socket of its own.
fn at_socket(
    serve: impl FnOnce(&mut Kernel) + Send + 'static,
) -> (Address, PathBuf, JoinHandle<()>) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("trace-link-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let listener = UnixListener::bind(&path).unwrap();
    let kernel = thread::spawn(move || {
        let (line, _) = listener.accept().unwrap();
        serve(&mut Kernel::new(line));
    });
    (Address::Unix(path.clone()), path, kernel)
}

/// Calls such a kernel, and gives the error of the call or of the trace.
fn failure(serve: impl FnOnce(&mut Kernel) + Send + 'static) -> String {
    let (address, path, kernel) = at_socket(serve);
    let trace = Remote::call(&address, PATIENCE).and_then(|remote| remote.start(&request(b"x")));
    let failed = match trace {
        Err(error) => format!("{error:#}"),
        Ok(mut trace) => loop {
            match trace.next(None) {
                Event::Message(message) => assert_eq!(message, b"right"),
                Event::Failed(error) => break format!("{error:#}"),
                event => panic!("{event:?}"),
            }
        },
    };
    kernel.join().unwrap();
    std::fs::remove_file(path).unwrap();
    failed
}

/// A whole trace over a line.
fn trace_at(address: &Address) {
    let remote = Remote::call(address, PATIENCE).unwrap();
    assert_eq!(
        (remote.about().kernel, remote.about().cpus),
        ("a kernel", 3)
    );
    let script: Vec<u8> = (0..9000_u32).map(|number| (number * 7) as u8).collect();
    let mut trace = remote.start(&request(&script)).unwrap();
    assert!(matches!(trace.next(None), Event::Message(message) if message == script));
    assert!(trace.end());
    assert!(matches!(trace.next(None), Event::Message(message) if message == b"last"));
    assert!(matches!(trace.next(None), Event::End(_)));
}

#[test]
fn a_kernel_is_traced_over_each_kind_of_line() {
    let (address, path, kernel) = at_socket(Kernel::echo);
    trace_at(&address);
    kernel.join().unwrap();
    std::fs::remove_file(path).unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let kernel = thread::spawn(move || Kernel::new(listener.accept().unwrap().0).echo());
    trace_at(&format!("tcp:127.0.0.1:{port}").parse().unwrap());
    kernel.join().unwrap();

    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let address = format!("pty:{}", name.to_str().unwrap());
    let kernel = thread::spawn(move || Kernel::new(terminal).echo());
    trace_at(&address.parse().unwrap());
    kernel.join().unwrap();
}

/// The line has words of a console, and half an answer to somebody else.
#[test]
fn what_is_on_the_line_before_the_welcome_is_skipped() {
    let (address, path, kernel) = at_socket(|kernel| {
        kernel
            .line
            .write_all(b"[    0.000000] booting\n\xd7\x9b\xd7")
            .unwrap();
        kernel.message(b"of an earlier trace");
        kernel.echo();
    });
    trace_at(&address);
    kernel.join().unwrap();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_trace_that_is_dropped_leaves() {
    let (address, path, kernel) = at_socket(|kernel| {
        kernel.welcome();
        kernel.wait_for(Wish::Run);
        kernel.message(b"right");
        kernel.wait_for(Wish::Leave);
    });
    let remote = Remote::call(&address, PATIENCE).unwrap();
    let mut trace = remote.start(&request(b"x")).unwrap();
    assert!(matches!(trace.next(None), Event::Message(_)));
    drop(trace);
    kernel.join().unwrap();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn another_version_is_told() {
    let said = failure(|kernel| {
        let mut hello = [0; 24];
        kernel.line.read_exact(&mut hello).unwrap();
        // A welcome, but for the version in it.
        let mut input = &hello[..];
        assert!(matches!(kernel.end.next(&mut input), Some(Asked::Hello)));
        let mut sender = trace_wire::stream::frame::Sender::new();
        let mut payload = vec![9, 0, 0, 0];
        payload.extend(&hello[20..]);
        let mut bytes = Vec::new();
        let kind = trace_wire::stream::FrameKind::Welcome;
        sender.send(kind, &payload, &mut |more: &[u8]| {
            bytes.extend_from_slice(more)
        });
        kernel.line.write_all(&bytes).unwrap();
        kernel.wait_for(Wish::Closed);
    });
    assert!(
        said.contains("speaks version 9 of the protocol, and this tool version 3"),
        "{said}"
    );
}

#[test]
fn a_kernel_that_does_not_answer_is_told() {
    let (address, path, kernel) = at_socket(|kernel| kernel.wait_for(Wish::Closed));
    let error = Remote::call(&address, Duration::from_millis(600)).unwrap_err();
    assert!(
        error.to_string().contains("does not answer within"),
        "{error}"
    );
    kernel.join().unwrap();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_line_that_is_unplugged_is_told() {
    let said = failure(|kernel| kernel.wait_for(Wish::Hello));
    assert!(
        said.contains("was closed before the kernel has answered"),
        "{said}"
    );
    let said = failure(|kernel| {
        kernel.welcome();
        kernel.wait_for(Wish::Run);
        kernel.message(b"right");
    });
    assert!(
        said.contains("was closed before the trace was over"),
        "{said}"
    );
}

#[test]
fn damage_on_the_way_is_told_and_no_wrong_answer_is_shown() {
    let said = failure(|kernel| {
        kernel.welcome();
        kernel.wait_for(Wish::Run);
        kernel.message(b"right");
        let mut bytes = Vec::new();
        kernel
            .end
            .message(b"wrong", &mut |more: &[u8]| bytes.extend_from_slice(more));
        *bytes.last_mut().unwrap() ^= 0x20;
        kernel.line.write_all(&bytes).unwrap();
        kernel.message(b"too late");
        kernel.wait_for(Wish::Leave);
    });
    assert!(
        said.contains("were lost or changed (the bytes of a frame"),
        "{said}"
    );
    let said = failure(|kernel| {
        kernel.welcome();
        kernel.wait_for(Wish::Run);
        kernel.message(b"right");
        // A frame is lost.
        kernel.end.message(b"lost", &mut |_: &[u8]| {});
        kernel.message(b"too late");
        kernel.wait_for(Wish::Leave);
    });
    assert!(
        said.contains("(frame 3 came where frame 2 was to come)"),
        "{said}"
    );
}

/// What a host hears of a kernel that dies in the middle of a frame, after so many bytes of it, and
/// whose line ends when so many bytes of its last words are on it.
fn of_death(cut: usize, most: usize) -> (Vec<Event>, bool, usize) {
    let (address, path, kernel) = at_socket(move |kernel| {
        kernel.welcome();
        kernel.wait_for(Wish::Run);
        kernel.message(b"right");
        let mut frame = Vec::new();
        kernel
            .end
            .message(b"never whole", &mut |more: &[u8]| frame.extend(more));
        let mut words = Vec::new();
        let mut out = |more: &[u8]| words.extend(more);
        let call = kernel.end.call().unwrap();
        let mut deathbed = Deathbed::new(call, "out of luck", &mut out);
        let piece = |at| Piece {
            of: Whole::Ring { cpu: 0 },
            whole: 8192,
            at,
        };
        deathbed.memory(&piece(0), 8, &mut |_, to| to.fill(1), &mut out);
        deathbed.memory(&piece(4096), 4096, &mut |_, to| to.fill(2), &mut out);
        deathbed.over(&mut out);
        words.truncate(most);
        let _ = kernel
            .line
            .write_all(&[&frame[..cut], &words].concat())
            .and_then(|()| kernel.line.flush());
    });
    let remote = Remote::call(&address, PATIENCE).unwrap();
    let mut trace = remote.start(&request(b"x")).unwrap();
    let mut events = Vec::new();
    loop {
        let event = trace.next(None);
        let is_last = matches!(event, Event::End(_) | Event::Failed(_));
        events.push(event);
        if is_last {
            break;
        }
    }
    kernel.join().unwrap();
    std::fs::remove_file(path).unwrap();
    let rings = trace.rings();
    let bytes = rings.first().map_or(0, |ring| {
        ring.bytes.iter().filter(|byte| **byte != 0).count()
    });
    (events, trace.has_all(), bytes)
}

#[test]
fn a_kernel_that_dies_in_the_middle_of_a_frame_is_heard() {
    for cut in [0, 1, 16, 20, 26] {
        let (events, has_all, bytes) = of_death(cut, usize::MAX);
        let [
            Event::Message(right),
            Event::Died(why),
            Event::Memory,
            Event::Memory,
            Event::End(End::Failure),
        ] = &events[..]
        else {
            panic!("{cut}: {events:?}");
        };
        assert_eq!((&right[..], &**why), (&b"right"[..], "out of luck"));
        assert_eq!((has_all, bytes), (true, 8 + 4096), "{cut}");
    }
}

#[test]
fn a_line_that_ends_in_the_last_words_leaves_what_has_come() {
    // Zeros, its death, one piece, and a part of the other one.
    let (events, has_all, bytes) = of_death(20, 1040 + 35 + 3 * 16 + 56 + 500);
    let [_, Event::Died(_), Event::Memory, Event::End(End::Failure)] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!((has_all, bytes), (false, 8));
    // Before its death is told, nothing says that it has died.
    let (events, has_all, _) = of_death(20, 1040 + 20);
    let Some(Event::Failed(error)) = events.last() else {
        panic!("{events:?}");
    };
    let said = format!("{error:#}");
    assert!(said.contains("were lost or changed"), "{said}");
    assert!(!has_all);
}

#[test]
fn a_refusal_is_told_with_its_reason() {
    let said = failure(|kernel| {
        kernel.welcome();
        kernel.wait_for(Wish::Run);
        kernel.send(|end, mut out| end.refuse("no room today", &mut out));
        kernel.wait_for(Wish::Closed);
    });
    assert!(said.contains(": no room today"), "{said}");
    let (address, path, kernel) = at_socket(|kernel| {
        kernel.welcome();
        kernel.wait_for(Wish::Closed);
    });
    let remote = Remote::call(&address, PATIENCE).unwrap();
    let error = remote.start(&request(&[0; 10_001])).unwrap_err();
    assert!(error.to_string().contains("has room for 10000"), "{error}");
    kernel.join().unwrap();
    std::fs::remove_file(path).unwrap();
}
