//! The samples on the workload: the output of `cargo run`, line by line, on each kind of machine.
//!
//! The workload is the same at each boot, so the lines of a sample are known but for addresses,
//! times and the number of a task. The rest is compared word by word.

use std::time::Duration;

use boot::{
    firmware::Firmware,
    guest::End,
    image::Kernel,
    prerequisites::{self, Install},
    qemu::Machine,
};
use regex::Regex;
use tests::{Document, Over, record};

const SAMPLES: &str = "modules=kprobe_example,jprobe_example,kretprobe_example,sys_mkdir_return";

/// Boots the kernel with this command line and returns how it ended and its log.
fn boot(firmware: Firmware, cpus: u32, command_line: &str) -> (Over, String) {
    prerequisites::toolchain(Install::Allowed).unwrap();
    let kernel = Kernel::build("kernel").unwrap();
    let machine = Machine {
        firmware,
        cpus,
        cmdline: command_line.into(),
        ..Machine::new(kernel.image(firmware).unwrap())
    };
    record(&machine, Duration::from_secs(120)).unwrap()
}

/// The first group of every line that is a time stamp and `pattern`; at least `least` of them.
fn lines<'a>(log: &'a str, pattern: &str, least: usize) -> Vec<&'a str> {
    let regex = Regex::new(&format!(r"(?m)^\[ *\d+\.\d{{6}}\] {pattern}\r?$")).unwrap();
    let found: Vec<_> = regex
        .captures_iter(log)
        .map(|found| found.get(1).map_or("", |group| group.as_str()))
        .collect();
    assert!(
        found.len() >= least,
        "{} lines match {pattern:?}, not {least}:\n{log}",
        found.len()
    );
    found
}

/// The one address that all these lines name.
fn one_address<'a>(log: &'a str, patterns: &[&str]) -> &'a str {
    let all: Vec<_> = patterns
        .iter()
        .flat_map(|pattern| lines(log, pattern, 1))
        .collect();
    assert!(
        all.iter().all(|address| *address == all[0]),
        "{all:?}\n{log}"
    );
    all[0]
}

/// Checks the whole output of the samples and of the workload.
fn check(over: Over, log: &str) {
    assert_eq!(over, Over::Ended(End::Success), "{log}");
    const ADDRESS: &str = "(0xffffffff8[0-9a-f]{7})";
    let probed = one_address(
        log,
        &[
            &format!("Planted kprobe at {ADDRESS}"),
            &format!(
                "pre_handler: p->addr = {ADDRESS}, ip = ffffffff8[0-9a-f]{{7}}, flags = 0x[0-9a-f]+"
            ),
            &format!("post_handler: p->addr = {ADDRESS}, flags = 0x[0-9a-f]+"),
            &format!("Planted jprobe at {ADDRESS}, handler addr 0xffffffff8[0-9a-f]{{7}}"),
            &format!("Planted return probe at do_fork: {ADDRESS}"),
            &format!("kprobe at {ADDRESS} unregistered"),
            &format!("jprobe at {ADDRESS} unregistered"),
            &format!("kretprobe at {ADDRESS} unregistered"),
        ],
    );
    let ip = lines(
        log,
        r"pre_handler: p->addr = 0x[0-9a-f]+, ip = ([0-9a-f]+), flags = 0x[0-9a-f]+",
        2,
    );
    let after = u64::from_str_radix(&probed[2..], 16).unwrap() + 1;
    assert!(ip.iter().all(|ip| *ip == format!("{after:x}")), "{log}");
    lines(
        log,
        r"jprobe: clone_flags = 0x1200011, stack_size = 0x0, regs = 0xffff[0-9a-f]{12}",
        2,
    );
    let pids: Vec<u32> = lines(log, r"do_fork returned (\d+) and took \d+ ns to execute", 2)
        .iter()
        .map(|pid| pid.parse().unwrap())
        .collect();
    assert!(pids.is_sorted() && pids[0] > 1, "{pids:?}");
    lines(log, "sys_mkdir exited", 1);
    lines(log, "Missed probing 0 instances of do_fork", 1);
    // Each fork is seen once by each of the three.
    let seen = |start| lines(log, start, 1).len();
    assert_eq!(seen("pre_handler: .*"), seen("post_handler: .*"), "{log}");
    assert_eq!(seen("pre_handler: .*"), seen("jprobe: .*"), "{log}");
    assert_eq!(
        pids.len(),
        seen("jprobe: clone_flags = 0x1200011,.*"),
        "{log}"
    );
}

#[test]
fn on_two_cpus() {
    let (over, log) = boot(Firmware::Bios, 2, SAMPLES);
    check(over, &log);
}

#[test]
fn on_one_cpu() {
    let (over, log) = boot(Firmware::Bios, 1, SAMPLES);
    check(over, &log);
}

#[test]
fn on_four_cpus() {
    let (over, log) = boot(Firmware::Bios, 4, SAMPLES);
    check(over, &log);
}

#[test]
fn on_uefi() {
    let (over, log) = boot(Firmware::Uefi, 2, SAMPLES);
    check(over, &log);
}

#[test]
fn single_stepped() {
    let (over, log) = boot(Firmware::Bios, 2, &format!("{SAMPLES} kprobes.step=tf"));
    check(over, &log);
}

#[test]
fn another_function() {
    let (over, log) = boot(
        Firmware::Bios,
        2,
        "modules=kretprobe_example kretprobe_example.func=sys_mkdir",
    );
    assert_eq!(over, Over::Ended(End::Success), "{log}");
    lines(&log, "Planted return probe at sys_mkdir: 0x([0-9a-f]+)", 1);
    lines(
        &log,
        r"sys_mkdir returned (-?\d+) and took \d+ ns to execute",
        1,
    );
}

/// Each new task takes a number, which is one more than the last.
#[test]
fn writes_of_a_static_are_told() {
    let (over, log) = boot(Firmware::Bios, 2, "modules=data_breakpoint");
    assert_eq!(over, Over::Ended(End::Success), "{log}");
    lines(&log, "HW Breakpoint for (.*NEXT) write installed", 1);
    let change = r".*NEXT value is changed: 0x([0-9a-f]+ -> 0x[0-9a-f]+), before .*next_pid.*";
    let changes = lines(&log, change, 4);
    let numbers = changes.iter().map(|change| {
        let (old, new) = change.split_once(" -> 0x").unwrap();
        [old, new].map(|hex| u64::from_str_radix(hex, 16).unwrap())
    });
    let numbers: Vec<[u64; 2]> = numbers.collect();
    assert!(numbers.iter().all(|[old, new]| *new == old + 1), "{log}");
    assert!(numbers.is_sorted(), "{log}");
    lines(&log, "HW Breakpoint for (.*NEXT) write uninstalled", 1);

    let (over, log) = boot(
        Firmware::Bios,
        2,
        "modules=data_breakpoint data_breakpoint.ksym=kernel::task::next_pid::NEX",
    );
    assert_eq!(over, Over::Ended(End::Failure), "{log}");
    lines(&log, "(Breakpoint registration failed)", 1);
}

/// The argument is the code that a child is to exit with, and the result the child's number. The
/// child itself returns from `fork` inside that function, but never from the function.
#[test]
fn calls_of_a_program_are_told() {
    let (over, log) = boot(Firmware::Bios, 2, "modules=uprobe_example");
    assert_eq!(over, Over::Ended(End::Success), "{log}");
    lines(
        &log,
        "Planted uretprobe at (workload::run_child) of /bin/workload",
        1,
    );
    let calls = r"workload::run_child\((0x\d)\) of workload\[\d+\] returned 0x[0-9a-f]+";
    let calls = lines(&log, calls, 3);
    assert_eq!(calls, ["0x0", "0x1", "0x2"], "{log}");
    lines(&log, "(3 hits, 0 missed)", 1);

    let (over, log) = boot(
        Firmware::Bios,
        2,
        "modules=uprobe_example uprobe_example.func=run_no_child",
    );
    assert_eq!(over, Over::Ended(End::Failure), "{log}");
    let reason = "insmod uprobe_example failed: -2 (the program has no symbol run_no_child; .*)";
    lines(&log, reason, 1);
}

#[test]
fn an_unknown_function_fails_the_run() {
    let (over, log) = boot(
        Firmware::Bios,
        2,
        "modules=kretprobe_example kretprobe_example.func=do_frok",
    );
    assert_eq!(over, Over::Ended(End::Failure), "{log}");
    lines(
        &log,
        "insmod kretprobe_example failed: -2 \
         (no symbol is called do_frok; did you mean .*do_fork.*)",
        1,
    );
    lines(&log, "register_kretprobe failed, returned -(2)", 1);
    assert_eq!(
        log.matches("do_fork").count(),
        1,
        "the reason is told once: {log}"
    );
}

#[test]
fn the_module_in_the_readme_counts_writes() {
    let readme = Document::open("README.md");
    assert_eq!(
        readme.block("Write a probe", "rust"),
        include_str!("../samples/src/write_stats.rs"),
        "README and samples/src/write_stats.rs differ"
    );
    let (over, log) = boot(Firmware::Bios, 2, "modules=write_stats");
    assert_eq!(over, Over::Ended(End::Success), "{log}");
    let writes = lines(&log, r"(\d+) writes, \d+ bytes", 1);
    assert!(writes[0].parse::<u32>().unwrap() > 0, "{log}");
}

#[test]
fn the_logs_in_the_documents_have_the_lines_of_a_real_one() {
    let samples = Document::open("samples/README.md");
    let log = samples.block("The log of a plain run", "text");
    check(Over::Ended(End::Success), log);
    let readme = Document::open("README.md");
    let mut rest = log.lines();
    for line in readme.block("Two commands", "text").lines() {
        assert!(
            rest.any(|other| other == line),
            "samples/README.md has no {line}"
        );
    }
}

/// A module that attaches a program counts what the workload writes, to the last write.
#[test]
fn a_program_in_a_module_counts_all_writes() {
    let (over, log) = boot(Firmware::Bios, 2, "modules=write_stats,write_sizes");
    assert_eq!(over, Over::Ended(End::Success), "{log}");
    let number = |text: &str| text.parse::<u64>().unwrap();
    let by_size: u64 = lines(&log, r"\d+ to \d+ bytes: (\d+) writes", 1)
        .into_iter()
        .map(number)
        .sum();
    let all = number(lines(&log, r"(\d+) writes, \d+ bytes", 1)[0]);
    assert_eq!(by_size, all, "{log}");
}
