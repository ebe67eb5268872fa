//! `trace --connect`: a tracer comes to a kernel that runs already, leaves it, and comes again.
//!
//! The kernel is ours, with a second serial port that ends in a socket. What our kernel never does,
//! because it has all that a script may ask for and runs where it was linked to, a kernel's end of
//! the protocol in this process does.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
};

use boot::{firmware::Firmware, guest::End, qemu::Machine};
use rustix::process::{Pid, Signal, kill_process};
use tests::{
    Session, built, free_path,
    tracer::{CHILDREN, program},
};
use trace_interface::{
    Frame, Kernel as _, Script,
    frame::{Books, MapEntry},
    script::Attachment,
};
use trace_wire::stream::{About, Asked, BuildId, Capabilities, Capability, Events, KernelEnd};

/// `trace`, attached to the kernel at that socket, with its file.
fn trace_at(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.arg("--connect");
    command.arg(format!("unix:{}", socket.display()));
    command.arg("--elf").arg(&built::kernel().debug_elf);
    command.args(arguments);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn failure(command: &mut Command, status: i32) -> String {
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{said}");
    said
}

/// A trace that runs: all is attached.
struct Attached {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Attached {
    /// The program says `here` when it begins.
    fn new(socket: &Path, program: &str) -> Self {
        let program = format!("{program} begin {{ printf(\"here\\n\"); }}");
        let mut command = trace_at(socket, &[&program]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut answers = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        assert_eq!(line, "here\n");
        Self { child, answers }
    }

    /// Ends it by a signal. Gives its status and the rest of its output.
    fn end(mut self, signal: Signal) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let mut said = String::new();
        self.answers.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

/// Passes bytes on between a tracer and a kernel, and spoils them: `spoil` gets the bytes of one
/// direction as they come, and gives those that are to be passed on. None: it is unplugged.
fn spoiled(
    kernel: &Path,
    name: &str,
    from_kernel: bool,
    mut spoil: impl FnMut(Vec<u8>) -> Option<Vec<u8>> + Send + 'static,
) -> (PathBuf, thread::JoinHandle<()>) {
    let path = free_path(name);
    let listener = UnixListener::bind(&path).unwrap();
    let kernel = kernel.to_path_buf();
    let thread = thread::spawn(move || {
        let (host, _) = listener.accept().unwrap();
        let kernel = UnixStream::connect(kernel).unwrap();
        let (from, to) = match from_kernel {
            true => (&kernel, &host),
            false => (&host, &kernel),
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                // However it ends, the other direction ends, too.
                let _ = io::copy(&mut &*to, &mut &*from);
                let _ = from.shutdown(Shutdown::Both);
            });
            let (mut reader, mut writer) = (from, to);
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut chunk) {
                let passed = spoil(chunk[..count].to_vec());
                if passed.is_none_or(|bytes| writer.write_all(&bytes).is_err()) {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        });
    });
    (path, thread)
}

/// Changes a bit of the byte with that number.
fn flip(at: usize) -> impl FnMut(Vec<u8>) -> Option<Vec<u8>> {
    let mut passed = 0;
    move |mut bytes| {
        if let Some(byte) = at.checked_sub(passed).and_then(|at| bytes.get_mut(at)) {
            *byte ^= 4;
        }
        passed += bytes.len();
        Some(bytes)
    }
}

const MKDIRS: u64 = 1 + 2 * CHILDREN;

/// All in one boot, because each step is to find the kernel as the step before has left it.
#[test]
fn a_kernel_that_runs_is_traced_again_and_again() {
    let socket = free_path("trace.socket");
    let mut machine = Machine {
        cmdline: "interactive".into(),
        ..Machine::new(built::kernel().image(Firmware::Bios).unwrap())
    };
    machine.listen_at(&socket);
    let mut kernel = Session::start(&machine);

    let counts = "kprobe:sys_mkdir { @[comm] = count(); }";
    let trace = Attached::new(&socket, counts);
    kernel.command("run workload");
    let (status, said) = trace.end(Signal::INT);
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(
        said.lines().next(),
        Some(&*format!("@[workload]: {MKDIRS}"))
    );
    let list = "cat /sys/kernel/debug/kprobes/list";
    assert_eq!(kernel.command(list).trim(), "");

    // Another program, of other kinds: arguments, results, an event of the kernel, stacks.
    let trace = Attached::new(
        &socket,
        "kretprobe:sys_mkdir { @r[retval] = count(); @k[kstack(2)] = count(); } \
         tracepoint:syscalls:sys_enter_mkdir { @p[str(args.pathname)] = count(); }",
    );
    kernel.command("run workload");
    let (status, said) = trace.end(Signal::INT);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains(&format!("@r[-17]: {CHILDREN}\n")), "{said}");
    assert!(
        said.contains(&format!("@r[0]: {}\n", 1 + CHILDREN)),
        "{said}"
    );
    assert!(said.contains("/0]: 2\n"), "{said}");
    assert!(said.contains("::do_syscall+"), "{said}");

    // A tracer that has no time to say goodbye. The next one takes its place.
    let trace = Attached::new(&socket, counts);
    assert_eq!(trace.end(Signal::KILL).0, None);
    let trace = Attached::new(&socket, counts);
    kernel.command("run workload");
    let (status, said) = trace.end(Signal::INT);
    assert_eq!(status, Some(0), "{said}");
    assert!(
        said.starts_with(&format!("@[workload]: {MKDIRS}\n")),
        "{said}"
    );

    refused_by_the_tool_or_the_kernel(&socket);
    told_when_the_line_is_bad(&socket);

    // After all that the kernel is as it was.
    assert_eq!(kernel.command(list).trim(), "");
    let ends = trace_at(&socket, &["begin { printf(\"%d\\n\", 42); exit(3); }"])
        .output()
        .unwrap();
    assert_eq!(
        (ends.status.code(), text(&ends.stdout)),
        (Some(3), "42\n1 hit = 1 recorded + 0 missed\n".into())
    );
    kernel.power_off();
}

/// A recording that has begun, of the functions that a pattern matches.
fn recording(socket: &Path, arguments: &[&str]) -> (Child, BufReader<std::process::ChildStderr>) {
    let mut command = trace_at(socket, &["--record", "--timing"]);
    command.args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("all attached, and recording") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0);
    }
    (child, said)
}

/// The end of a recording: its status, what it shows, and what it says.
fn ended(
    (child, mut said): (Child, BufReader<std::process::ChildStderr>),
) -> (Option<i32>, String, String) {
    let mut complaints = String::new();
    said.read_to_string(&mut complaints).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), text(&output.stdout), complaints)
}

/// First a recording of a kernel that lives, which is ended, and then one of its death.
#[test]
fn the_last_calls_of_a_kernel_that_runs_are_shown() {
    let socket = free_path("trace.last");
    let mut machine = Machine {
        cmdline: "interactive".into(),
        ..Machine::new(built::kernel().image(Firmware::Bios).unwrap())
    };
    machine.listen_at(&socket);
    let mut kernel = Session::start(&machine);

    let program = "kprobe:sys_mkdir { printf(\"%s%s\", str(args.path), kstack(1)); \
                   @[comm] = count(); }";
    let recording_of_program = recording(&socket, &["--last", "2", program]);
    kernel.command("run workload");
    kill_process(Pid::from_child(&recording_of_program.0), Signal::INT).unwrap();
    let (status, shown, said) = ended(recording_of_program);
    assert_eq!(status, Some(0), "{shown}{said}");
    let stack = "\n    kernel::syscall::paths::sys_mkdir+0\n";
    assert_eq!(shown.matches(stack).count(), 2, "{shown}");
    assert_eq!(shown.matches("/tmp/workload.").count(), 2, "{shown}");
    let map = format!("@[workload]: {MKDIRS}\n");
    assert_eq!(shown.matches(&map).count(), 1, "{shown}");
    let list = "cat /sys/kernel/debug/kprobes/list";
    assert_eq!(kernel.command(list).trim(), "");

    // The newest probe of a place is hit first, so the call is recorded before it ends the kernel.
    kernel.command("insmod crash how=panic at=3");
    let recording_of_calls = recording(&socket, &["--functions", "sys_*", "--last", "3"]);
    let (end, log) = kernel.last_command("run workload");
    assert_eq!(end, End::Failure, "{log}");
    let (status, shown, said) = ended(recording_of_calls);
    assert_eq!(status, Some(1), "{shown}{said}");
    assert!(
        said.contains("the kernel has died: ") && said.contains("crash: as it was asked for"),
        "{said}"
    );
    assert!(!said.contains("cut off"), "{said}");
    let calls = shown.lines().filter(|line| line.contains("  cpu ")).count();
    assert_eq!(calls, 3, "{shown}");
    let last = shown.lines().last().unwrap_or_default();
    let (_, call) = last.split_once("sys_mkdir(path = ").unwrap_or_default();
    assert!(
        call.ends_with(", mode = 493)  … (never returned)"),
        "{shown}"
    );
}

fn refused_by_the_tool_or_the_kernel(socket: &Path) {
    // A file like that of the kernel, but for its build id.
    let mut other = fs::read(&built::kernel().debug_elf).unwrap();
    let name = b"\x03\0\0\0GNU\0";
    let note = other
        .windows(name.len())
        .position(|bytes| bytes == name)
        .unwrap();
    other[note + name.len()] ^= 1;
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("other.debug");
    fs::write(&file, other).unwrap();
    let mut command = Command::new(program());
    command
        .arg("--connect")
        .arg(format!("unix:{}", socket.display()));
    command
        .arg("--elf")
        .arg(&file)
        .arg("kprobe:sys_mkdir { @ = count(); }");
    let said = failure(&mut command, 2);
    assert!(said.contains(" has the build id "), "{said}");
    assert!(
        said.contains("give the file of the kernel that runs: --elf FILE"),
        "{said}"
    );
    fs::remove_file(&file).unwrap();

    // What the kernel itself refuses.
    let mut command = trace_at(socket, &["kprobe:kprobe_breakpoint { @ = count(); }"]);
    let said = failure(&mut command, 1);
    assert!(said.contains("the kernel refused the trace: "), "{said}");

    // Its events are those that it says.
    let listed = trace_at(socket, &["-l", "tracepoint:sched:*"])
        .output()
        .unwrap();
    assert_eq!(text(&listed.stdout).lines().count(), 5, "{listed:?}");
}

fn told_when_the_line_is_bad(kernel: &Path) {
    let program = "begin { printf(\"%s\\n\", \"here\"); }";
    let end = |(path, thread): (PathBuf, thread::JoinHandle<()>)| {
        let said = failure(&mut trace_at(&path, &[program]), 1);
        thread.join().unwrap();
        fs::remove_file(path).unwrap();
        said
    };
    // The welcome has more bytes than that. The first of its frames has 1040.
    let said = end(spoiled(kernel, "trace.from", true, flip(2000)));
    assert!(
        said.contains("were lost or changed (the bytes of"),
        "{said}"
    );
    // The hello has 24 bytes, and what comes after it is the script.
    let said = end(spoiled(kernel, "trace.to", false, flip(24 + 60)));
    assert!(
        said.contains("bytes on the way to the kernel were lost or changed"),
        "{said}"
    );
    let mut left = 3000;
    let unplug = move |bytes: Vec<u8>| {
        left -= bytes.len() as i32;
        (left > 0).then_some(bytes)
    };
    let said = end(spoiled(kernel, "trace.cut", true, unplug));
    assert!(said.contains(" was closed before "), "{said}");
}

/// A kernel of others, as far as the tool sees one. It serves so many calls, and gives `answer` the
/// scripts.
fn foreign(
    name: &str,
    about: String,
    calls: usize,
    answer: impl Fn(&Script) -> Vec<Frame> + Send + 'static,
) -> (PathBuf, thread::JoinHandle<()>) {
    let path = free_path(name);
    let listener = UnixListener::bind(&path).unwrap();
    let thread = thread::spawn(move || {
        for _ in 0..calls {
            let (mut line, _) = listener.accept().unwrap();
            serve(&mut line, &about, &answer);
        }
    });
    (path, thread)
}

fn serve(line: &mut UnixStream, about: &str, answer: &impl Fn(&Script) -> Vec<Frame>) {
    let mut end = KernelEnd::new();
    let mut script = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(count @ 1..) = line.read(&mut chunk) {
        let mut input = &chunk[..count];
        let mut out = Vec::new();
        let mut push = |bytes: &[u8]| out.extend_from_slice(bytes);
        while let Some(asked) = end.next(&mut input) {
            match asked {
                Asked::Hello => end.welcome(about, &mut push),
                Asked::Script(piece) => script.extend_from_slice(piece),
                Asked::Run => {
                    for frame in answer(&Script::decode(&script).unwrap()) {
                        end.message(&frame.encode(), &mut push);
                    }
                    end.over(&mut push);
                }
                _ => {}
            }
        }
        // The tool may have gone.
        let _ = line.write_all(&out);
    }
}

#[test]
fn what_a_kernel_has_not_is_refused_by_its_name() {
    let about = About {
        kernel: "bare",
        most_script_bytes: 1 << 20,
        capabilities: Capabilities::of(&[Capability::Records, Capability::Tasks]),
        ..About::default()
    };
    let refusals = [
        (
            "kretprobe:sys_mkdir { @ = count(); }",
            "return of functions; probe entries",
        ),
        (
            "profile:hz:99 { @ = count(); }",
            "profiles; leave out `profile`",
        ),
        (
            "interval:s:1 { @ = count(); }",
            "timers; leave out `interval`",
        ),
        (
            "kprobe:sys_mkdir { @[ustack] = count(); }",
            "in user mode; leave out `ustack`",
        ),
        (
            "kprobe:sys_mkdir { @[kstack] = count(); }",
            "stacks of the kernel; leave out",
        ),
        (
            "tracepoint:syscalls:sys_enter_open { @ = count(); }",
            "it has none; name a function",
        ),
    ];
    let answer = |_: &Script| unreachable!("a script was sent that needs what is not there");
    let (path, kernel) = foreign("trace.bare", about.to_string(), refusals.len(), answer);
    for (program, told) in refusals {
        let said = failure(&mut trace_at(&path, &[program]), 2);
        assert!(said.contains(told), "{program}: {said}");
        assert!(
            said.contains("has no build id, so whether"),
            "{program}: {said}"
        );
    }
    kernel.join().unwrap();
    fs::remove_file(path).unwrap();
}

/// Addresses go to the kernel as it runs, and come back to names. Its events are its own.
#[test]
fn a_kernel_that_was_moved_and_has_its_own_events_is_traced() {
    const SLIDE: u64 = 0x3560_0000;
    let info = debug_info::DebugInfo::open(&built::kernel().debug_elf).unwrap();
    let address = |name: &str| info.functions(name)[0].address.wrapping_add(SLIDE);
    let (mkdir, rmdir) = (address("sys_mkdir"), address("sys_rmdir"));
    let about = About {
        kernel: "moved",
        cpus: 1,
        clock_hz: 1_000_000_000,
        build_id: BuildId::in_notes(info.build_id_notes()),
        slide: SLIDE,
        most_script_bytes: 1 << 20,
        capabilities: Capabilities::of(&[]),
        events: Events::Lines("disk:remove\tentry\tsys_rmdir\tpath=arg0"),
        ..About::default()
    };
    let answer = move |script: &Script| {
        let addresses = script
            .attachments
            .iter()
            .flat_map(|attachment| match attachment {
                Attachment::Probe { addresses, .. } => addresses.clone(),
                _ => Vec::new(),
            });
        assert_eq!(addresses.collect::<Vec<u64>>(), [mkdir, rmdir]);
        let map = |name: &str| {
            let found = script.maps.iter().position(|map| map.name.ends_with(name));
            found.unwrap() as u32
        };
        let entry = |key: u64, value: u64| MapEntry {
            cpu: 0,
            key: key.to_le_bytes().into(),
            value: value.to_le_bytes().into(),
        };
        let of = |name, entry| Frame::Map {
            map: map(name),
            entries: vec![entry],
        };
        let (hits, missed) = (3, 0);
        vec![
            Frame::Started {
                tsc_hz: 1_000_000_000,
                tsc: 0,
                epoch_nanoseconds: 0,
                cpus: 1,
                places: vec![1, 1],
            },
            of("calls", entry(mkdir, 2)),
            of("removed", entry(7, 1)),
            Frame::Ended {
                status: 0,
                books: vec![Books { hits, missed }, Books { hits, missed }],
                kept_out: 0,
                lost: Vec::new(),
                bad_loads: 0,
            },
        ]
    };
    let (path, kernel) = foreign("trace.moved", about.to_string(), 2, answer);
    // The events of a file take the place of the kernel's.
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("events");
    fs::write(&file, "mine:away\tentry\tsys_rmdir\tpath=arg0\n\n").unwrap();
    let named = ["--events", file.to_str().unwrap()];
    for (event, options) in [("disk:remove", &[][..]), ("mine:away", &named)] {
        let program = format!(
            "kprobe:sys_mkdir {{ @calls[func] = count(); }} \
             tracepoint:{event} {{ @removed[args.path] = count(); }}"
        );
        let Output {
            status,
            stdout,
            stderr,
        } = trace_at(&path, &[options, &[&*program]].concat())
            .output()
            .unwrap();
        assert!(status.success(), "{}", text(&stderr));
        let said = text(&stdout);
        assert!(said.contains("::sys_mkdir]: 2\n"), "{said}");
        assert!(said.contains("@removed[7]: 1\n"), "{said}");
        assert_eq!(text(&stderr), "");
    }
    kernel.join().unwrap();
    fs::remove_file(path).unwrap();
}
