//! The probes on a kernel that shares nothing with ours: its own checks pass, and hits cost there
//! what the page says. A tracer attaches to it, records its last calls, and shows them when the
//! kernel panics.

use std::{
    ffi::OsStr,
    fmt::Write as _,
    fs,
    io::{self, BufRead, BufReader, Read, Write as _},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use boot::{
    firmware::Firmware,
    guest::End,
    image::Kernel,
    layout,
    prerequisites::{self, Install},
    qemu::Machine,
};
use rustix::process::{Pid, Signal, kill_process};
use tests::{
    Document, Over, Traced,
    document::{Masks, words},
    free_path, record,
    tracer::{program as program_of_tracer, words as words_of_shell},
};

/// Boots it with this command line, and returns its log. It ends with success. `exact`: on one CPU
/// whose time stamp counter counts its instructions.
fn log(cmdline: &str, exact: bool) -> String {
    prerequisites::toolchain(Install::Allowed).unwrap();
    let kernel = Kernel::build_second().unwrap();
    let machine = Machine {
        cpus: if exact { 1 } else { 2 },
        icount: exact,
        cmdline: cmdline.into(),
        ..Machine::new(kernel.image(Firmware::Bios).unwrap())
    };
    let (over, log) = record(&machine, Duration::from_secs(300)).unwrap();
    assert_eq!(over, Over::Ended(End::Success), "{log}");
    log
}

#[test]
fn its_checks_pass() {
    let log = log("", false);
    let passed = log.lines().filter(|line| line.starts_with("ok: ")).count();
    let all = format!("all {passed} checks have passed");
    assert!(passed >= 14 && log.contains(&all), "{log}");
}

/// The figures are the same on every machine.
#[test]
fn hits_cost_what_the_page_says() {
    let log = log("figures", true);
    let figures = log.lines().filter_map(|line| line.strip_prefix("figure: "));
    let figures: Vec<_> = figures.filter_map(|line| line.split_once(' ')).collect();
    assert_eq!(figures.len(), 6, "{log}");
    let page = Document::open("docs/cost.md");
    let ours = page.block("The table", "text cargo bench: probes");
    let ours = |row: &str| {
        let mut lines = ours.lines().map(|line| line.split_whitespace());
        let figure = lines.find_map(|mut words| (words.next() == Some(row)).then(|| words.next()));
        figure.flatten().unwrap_or("-")
    };
    let mut table = String::from("row          ours  second kernel\n");
    for (row, figure) in figures {
        writeln!(table, "{row:10} {:>6} {figure:>14}", ours(row)).unwrap();
    }
    let compared = page.compare(
        |block| (block.mark == "text second kernel").then(|| table.clone()),
        |_, text| text.lines().map(words).collect(),
    );
    assert_eq!(compared, 1);
}

/// The page for authors of kernels, and its heading with commands of the tracer.
const PAGE: &str = "kernel/probes/docs/your-kernel.md";
const TRACE: &str = "10. `trace` from another machine";

/// The arguments of the commands on the page: for each block, in order. The words that stand for a
/// socket and a file are those of a kernel.
fn commands_of_the_page(kernel: &Traced) -> Vec<Vec<String>> {
    let page = Document::open(PAGE);
    let blocks = page.blocks();
    let blocks = blocks
        .iter()
        .filter(|block| (block.heading, block.mark) == (TRACE, "console"));
    blocks
        .map(|block| {
            let mut commands = block.commands("$ trace ");
            let command = commands.next().expect("a block has a command");
            assert_eq!(commands.next(), None, "a block has one command");
            let of_kernel = |word: String| match &*word {
                "unix:SOCKET" => format!("unix:{}", kernel.socket.display()),
                "KERNEL" => kernel.kernel.debug_elf.display().to_string(),
                _ => word,
            };
            words_of_shell(command).into_iter().map(of_kernel).collect()
        })
        .collect()
}

/// Boots it with this command line: it calls functions again and again, and tracers may come. A
/// test has a `name` of its own.
fn traced(cmdline: &str, name: &str) -> Traced {
    prerequisites::toolchain(Install::Allowed).unwrap();
    let kernel = Kernel::build_second().unwrap();
    let machine = Machine {
        cmdline: cmdline.into(),
        ..Machine::new(kernel.image(Firmware::Bios).unwrap())
    };
    Traced::boot(kernel, machine, name)
}

/// The tracer comes to it while it runs, and shows values of its own types.
#[test]
fn a_tracer_shows_its_arguments_and_results() {
    let kernel = traced("traced", "second");
    // Three calls follow each other: a price, a letter in it, and nothing.
    let program = "session:price { $text = str(args.text); $pieces = args.query.pieces; } \
                   return { print(($text, $pieces, retval)); @n++; if (@n >= 3) { exit() } }";
    let (said, _) = kernel.trace(&[program], 0);
    for expected in [
        "(1200, 2, Ok(2407))",
        "(12x0, 2, Err(NoDigit { letter: 120, position: 2 }))",
        "(, 2, Err(Empty))",
    ] {
        assert!(said.contains(expected), "{expected} is not in\n{said}");
    }
    // It has left, and comes again.
    let program = "kprobe:price { printf(\"%s\\n\", comm); @n++; if (@n >= 3) { exit() } }";
    let (said, _) = kernel.trace(&[program], 0);
    assert!(said.lines().next() == Some("main"), "{said}");
    // The first command of the page.
    let commands = commands_of_the_page(&kernel);
    assert_eq!(commands.len(), 2);
    let mut command = Command::new(program_of_tracer());
    command.args(&commands[0]).args(["--duration", "1"]);
    let (said, _) = Traced::answer(command, 0);
    let count = said
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("@: "));
    let count = count.and_then(|count| count.parse::<u64>().ok());
    assert!(count.is_some_and(|count| count > 0), "{said}");
}

/// Holds the last calls on the page against real ones.
fn the_page_shows(said: &str) {
    let page = Document::open(PAGE);
    let masks = Masks::new(&[
        (r"0x[0-9a-f]+", "ADDRESS"),
        (r"-?[0-9.]+ (ns|µs|ms|s)\b", "TIME"),
        (r"of \d+ calls", "of N calls"),
        (r"cpu \d", "cpu N"),
    ]);
    let compared = page.compare(
        |block| match (block.heading, block.mark, block.text.split_once('\n')) {
            (TRACE, "console", Some((command, _))) if command.contains("--record") => {
                Some(format!("{command}\n{said}"))
            }
            _ => None,
        },
        |_, text| text.lines().map(|line| words(&masks.mask(line))).collect(),
    );
    assert_eq!(compared, 1);
}

/// Its panic handler sends the rings, with the lock of the heap held.
#[test]
fn its_last_calls_are_shown_when_it_panics() {
    let kernel = traced("traced dies=order", "second.order");
    // The second command of the page.
    let mut command = Command::new(program_of_tracer());
    command.args(&commands_of_the_page(&kernel)[1]);
    let (said, complaints) = Traced::answer(command, 1);
    the_page_shows(&said);
    assert!(
        complaints.contains("the kernel has died: panicked at ")
            && complaints.contains("order 7 is too much"),
        "{complaints}"
    );
    assert!(!complaints.contains("cut off"), "{complaints}");
    // The last order, and in it the price of its text, which has a letter: four bytes of text.
    let lines: Vec<&str> = said.lines().rev().take(2).collect();
    let [price, order] = lines[..] else {
        panic!("{said}");
    };
    assert!(order.contains(" order(number = 7, query = "), "{said}");
    assert!(order.ends_with("  … (never returned)"), "{said}");
    // The fourth argument and the large result are in no register that is recorded.
    assert!(
        price.contains("    price(text = 0x") && price.contains("[4], query = ?) = ?  "),
        "{said}"
    );
    let (_, before) = said.split_once(" order(number = 6, ").unwrap();
    let line = before.lines().next().unwrap();
    assert!(line.contains(") = 2407  "), "{said}");
    let (end, log) = kernel.end();
    assert_eq!(end, End::Failure);
    assert!(log.contains("order 7 is too much"), "{log}");
}
/// The line ends when the tool has the death and no page of a ring: nothing half is shown, and what
/// has not come is counted.
#[test]
fn last_words_that_are_cut_off_are_told() {
    const OF_LAST_WORDS: usize = 3000;
    let kernel = traced("traced dies=order", "second.cut");
    let path = free_path("second.cut.line");
    let listener = UnixListener::bind(&path).unwrap();
    let real = kernel.socket.clone();
    let line = thread::spawn(move || {
        let (tool, _) = listener.accept().unwrap();
        let kernel = UnixStream::connect(real).unwrap();
        let (mut from_tool, mut to_kernel) =
            (tool.try_clone().unwrap(), kernel.try_clone().unwrap());
        // It ends with the line.
        let other_way = thread::spawn(move || io::copy(&mut from_tool, &mut to_kernel));
        let (mut from_kernel, mut to_tool) = (kernel, tool);
        let (mut chunk, mut zeros, mut left) = ([0; 64], 0, None);
        while let Ok(count @ 1..) = from_kernel.read(&mut chunk) {
            if to_tool.write_all(&chunk[..count]).is_err() {
                break;
            }
            for byte in &chunk[..count] {
                zeros = if *byte == 0 { zeros + 1 } else { 0 };
            }
            // No frame before has so many.
            if zeros >= 512 {
                left.get_or_insert(OF_LAST_WORDS);
            }
            left = left.map(|left: usize| left.saturating_sub(count));
            if left == Some(0) {
                break;
            }
        }
        let _ = to_tool.shutdown(Shutdown::Both);
        let _ = other_way.join();
    });
    let mut command = kernel.command(&["--record"]);
    let address = format!("unix:{}", path.display());
    let arguments: Vec<_> = command.get_args().map(OsStr::to_owned).collect();
    command = Command::new(program_of_tracer());
    command.arg("--connect").arg(address).args(&arguments[2..]);
    let (said, complaints) = Traced::answer(command, 1);
    line.join().unwrap();
    fs::remove_file(path).unwrap();
    assert_eq!(said, "", "{complaints}");
    for told in [
        "order 7 is too much",
        "its last words were cut off, because the line ended or fell silent",
        "records: older than those that have come",
    ] {
        assert!(complaints.contains(told), "{told} is not in\n{complaints}");
    }
}

/// What the kernel has for a tracer when it panics: a frame of which half was sent.
#[test]
fn a_panic_in_the_middle_of_an_answer_is_told() {
    let kernel = traced("traced dies=write", "second.write");
    let program = "kprobe:order { @n = count(); @last[comm] = max(arg0); \
                   printf(\"%d %s\\n\", args.number, kstack(1)); }";
    let (said, complaints) = kernel.trace(&["--record", "--last", "2", program], 2);
    let no_stacks = "has no call stacks of the kernel; leave out `kstack`";
    assert!(complaints.contains(no_stacks), "{said}{complaints}");
    let program = program.replace(" %s\\n\", args.number, kstack(1)", "\\n\", args.number");
    let (said, complaints) = kernel.trace(&["--record", "--last", "2", &program], 1);
    let why = "the kernel has died: panicked at ";
    assert!(
        complaints.contains(why) && complaints.contains("half a sign of life"),
        "{said}{complaints}"
    );
    // Two lines, one after the other, and the maps: they agree with each other. Nothing is recorded
    // from the panic on, but the other CPU counts until it is stopped.
    let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
    let [one, two, last, count] = lines[..] else {
        panic!("{said}{complaints}");
    };
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{said}"));
    assert_eq!(number(one) + 1, number(two), "{said}");
    let last = last.strip_prefix("@last[main]: ").map(number);
    assert!(last >= Some(number(two)), "{said}");
    assert!(number(count.strip_prefix("@n: ").unwrap()) > 2, "{said}");
}

/// A trace that shows its answers while they come shows what the kernel had not sent, too.
#[test]
fn a_panic_ends_a_trace_with_its_reason_and_its_maps() {
    let kernel = traced("traced dies=order", "second.plain");
    let program = "kretprobe:order { @sum = sum(retval); @calls = count(); }";
    let (said, complaints) = kernel.trace(&[program], 1);
    assert!(complaints.contains("order 7 is too much"), "{complaints}");
    let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
    let [calls, sum] = lines[..] else {
        panic!("{said}{complaints}");
    };
    // Of three orders that follow each other, one costs something. The seventh has not returned.
    let number = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    assert!(
        calls.starts_with("@calls: ") && sum.starts_with("@sum: "),
        "{said}"
    );
    assert!(number(calls) >= 4, "{said}");
    assert_eq!(number(sum) % 2407, 0, "{said}");
    let dear = number(sum) / 2407;
    assert!(
        (number(calls) / 3..=number(calls) / 3 + 1).contains(&dear),
        "{said}"
    );
}

#[test]
fn a_panic_before_all_is_attached_is_told() {
    let kernel = traced("traced dies=read", "second.read");
    let (said, complaints) = kernel.trace(&["--record"], 1);
    assert_eq!(said, "");
    assert!(
        complaints.contains("the script came to its byte 200")
            && complaints.contains("it died before all was attached"),
        "{complaints}"
    );
}

/// A recording of a kernel that lives ends with Ctrl-C or by --timeout, and the kernel goes on.
#[test]
fn the_last_calls_of_a_kernel_that_lives_are_shown() {
    let kernel = traced("traced", "second.lives");
    let mut child = kernel
        .command(&["--record", "--last", "4", "--timing"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("recording") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0);
    }
    // Some calls are to be recorded.
    thread::sleep(Duration::from_secs(1));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut shown = String::new();
    let mut out = child.stdout.take().unwrap();
    out.read_to_string(&mut shown).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{shown}");
    let calls = shown.lines().filter(|line| line.contains("  cpu ")).count();
    assert_eq!(calls, 4, "{shown}");
    assert!(shown.contains(" order(number = "), "{shown}");
    assert!(!shown.contains("never returned"), "{shown}");

    // It is as it was, and is recorded again: a program's lines and maps.
    let program = "kprobe:order { printf(\"%d\\n\", args.number); @n = count(); }";
    let arguments = ["--record", "--duration", "1", "--last", "3", program];
    let (said, complaints) = kernel.trace(&arguments, 0);
    let lines: Vec<&str> = said.lines().collect();
    let [one, _, three, count, ref books @ ..] = lines[..] else {
        panic!("{said}{complaints}");
    };
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{said}"));
    assert_eq!(number(one) + 2, number(three), "{said}");
    let count = number(count.strip_prefix("@n: ").unwrap());
    let hits = format!("{count} hits = {count} recorded + 0 missed");
    assert!(books.iter().any(|line| line.starts_with(&hits)), "{said}");
}

/// What a stranger asks for that this kernel has not, and what is true of it all the same.
#[test]
fn what_it_has_not_is_told_with_what_to_do() {
    let kernel = traced("traced", "second.odd");
    for (arguments, status, told) in [
        (
            &["kprobe:prices { @ = count(); }"][..],
            2,
            "did you mean `price`",
        ),
        (
            &["kprobe:say { @ = count(); }"],
            1,
            "refused the trace: second_kernel::say at 0xffff",
        ),
        (
            &["--record", "--functions", "say"],
            1,
            "refused to record: second_kernel::say at 0xffff",
        ),
        (
            &["kprobe:price { @[ustack] = count(); }"],
            2,
            "has no call stacks of programs in user mode; leave out `ustack`\n",
        ),
        (
            &["uprobe:/bin/workload:main { @ = count(); }"],
            2,
            "probes in programs of user mode; probe functions of the kernel: kprobe:FUNCTION",
        ),
        (
            &["tracepoint:sched:* { @ = count(); }"],
            2,
            "it has none; name a function: kprobe:PATH",
        ),
        (
            &["-l", "tracepoint:*"],
            1,
            "the kernel has no event sources",
        ),
        (
            &["kprobe:order { @[((Qery*)arg1)->fee] = count(); }"],
            2,
            "write it as the source does: its name, or its path",
        ),
        (
            &["watch:second_kernel::fuse::READ { @ = count(); }"],
            1,
            "cannot be watched: it is not in the section `watchable`",
        ),
        (
            &["--record", "kprobe:order { exit(); }"],
            2,
            "the program has `exit()`, which a recording cannot serve",
        ),
    ] {
        let (said, complaints) = kernel.trace(arguments, status);
        assert_eq!(said, "", "{arguments:?}");
        assert!(complaints.contains(told), "{arguments:?}: {complaints}");
    }
    // It does not know the time of day.
    let program = "begin { time(\"%H:%M\\n\"); print(strftime(\"%H\", nsecs)); exit(); }";
    let (said, _) = kernel.trace(&[program], 0);
    let times: Vec<&str> = said.lines().take(2).collect();
    assert_eq!(times, ["(no time of day)"; 2], "{said}");
    // Types by their paths, of arguments without a name.
    let program = "kprobe:order { $query = (traced::Query*)arg1; \
                   @[$query->pieces, ((Query*)arg1)->fee] = count(); @n++; \
                   if (@n > 3) { exit() } }";
    let (said, _) = kernel.trace(&[program], 0);
    assert!(said.contains("@[2, 7]: "), "{said}");
}

#[test]
fn its_glue_is_short() {
    let glue = layout::workspace().join("kernel/second/src/probes.rs");
    let lines = fs::read_to_string(glue).unwrap().lines().count();
    assert!(lines <= 150, "{lines} lines");
}
