//! The probes on a kernel that shares nothing with ours: its own checks pass.

use std::{fmt::Write as _, fs, process::Command, time::Duration};

use boot::{
    firmware::Firmware,
    guest::{End, Event, Guest},
    image::Kernel,
    layout,
    prerequisites::{self, Install},
    qemu::Machine,
};
use tests::{Document, Over, document::words, record, tracer::program as program_of_tracer};

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

/// The tracer comes to it while it runs, and shows values of its own types.
#[test]
fn a_tracer_shows_its_arguments_and_results() {
    prerequisites::toolchain(Install::Allowed).unwrap();
    let kernel = Kernel::build_second().unwrap();
    let socket = std::env::temp_dir().join(format!("second.{}", std::process::id()));
    let mut machine = Machine {
        cmdline: "traced".into(),
        ..Machine::new(kernel.image(Firmware::Bios).unwrap())
    };
    let socket_at = format!(
        "socket,id=trace,path={},server=on,wait=off",
        socket.display()
    );
    machine
        .further
        .extend(["-chardev", &socket_at, "-serial", "chardev:trace"].map(String::from));
    let mut guest = Guest::start(&machine, Install::Allowed).unwrap();
    let mut log = String::new();
    while !log.contains("a tracer may come") {
        match guest.next(None).unwrap() {
            Event::Output(output) => log += &String::from_utf8_lossy(&output),
            Event::End(_) | Event::Deadline => panic!("it has ended: {log}"),
        }
    }
    let trace = |program: &str| {
        let output = Command::new(program_of_tracer())
            .arg("--connect")
            .arg(format!("unix:{}", socket.display()))
            .arg("--elf")
            .arg(&kernel.debug_elf)
            .arg(program)
            .output()
            .unwrap();
        let [said, complaints] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(output.status.success(), "{said}{complaints}");
        said
    };
    // Three calls follow each other: a price, a letter in it, and nothing.
    let said = trace(
        "session:price { $text = str(args.text); $pieces = args.query.pieces; } \
         return { print(($text, $pieces, retval)); @n++; if (@n >= 3) { exit() } }",
    );
    for expected in [
        "(1200, 2, Ok(2407))",
        "(12x0, 2, Err(NoDigit { letter: 120, position: 2 }))",
        "(, 2, Err(Empty))",
    ] {
        assert!(said.contains(expected), "{expected} is not in\n{said}");
    }
    // It has left, and comes again.
    let said = trace("kprobe:price { printf(\"%s\\n\", comm); @n++; if (@n >= 3) { exit() } }");
    assert!(said.lines().next() == Some("main"), "{said}");
    drop(guest);
}

#[test]
fn its_glue_is_short() {
    let glue = layout::workspace().join("kernel/second/src/probes.rs");
    let lines = fs::read_to_string(glue).unwrap().lines().count();
    assert!(lines <= 150, "{lines} lines");
}
