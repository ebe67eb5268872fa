//! `cargo run -- --record` from its arguments to the exit status: what it shows of a kernel that
//! has died, and what it refuses.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Command, Output, Stdio},
};

use boot::qemu::Machine;
use rustix::process::{Pid, Signal, kill_process};
use tests::{processors::for_guest, tracer::recorder};

/// The answer of the recorder.
fn record(arguments: &[&str]) -> Output {
    let _taken = for_guest(Machine::CPUS);
    let mut command = Command::new(recorder());
    command.args(["--timeout", "120"]).args(arguments);
    command.output().unwrap()
}

/// The module that ends the kernel at the third directory: the workload's own is the first one, and
/// that of its first child the second and the third one.
const CRASH: [&str; 4] = [
    "--samples",
    "crash",
    "--append",
    "crash.how=panic crash.at=3",
];

/// Standard output of a kernel that died, after its log; and standard error.
fn last_words(arguments: &[&str]) -> (String, String) {
    let output = record(&[&CRASH, arguments].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, behind) = shown
        .split_once("Power off: failure\n")
        .unwrap_or_else(|| panic!("{arguments:?}: {shown}: {said}"));
    (behind.into(), said)
}

/// Lines, maps and call stacks are in the memory of the dead kernel. Only the two calls that the
/// crash let through have returned.
#[test]
fn a_program_shows_its_lines_stacks_and_maps_after_a_panic() {
    let file = std::env::temp_dir().join(format!("record.{}", std::process::id()));
    let program = "kprobe:sys_mkdir { printf(\"%s%s\", str(args.path), kstack); \
                   @from[ustack(1), comm] = count(); } \
                   kretprobe:kernel::fs::mkdir { printf(\"%r\", retval); @ok = count(); }";
    let (shown, said) = last_words(&[
        "--record",
        program,
        "--last",
        "4",
        "--perfetto",
        file.to_str().unwrap(),
    ]);
    let paths = shown.matches("/tmp/workload.").count();
    assert_eq!((paths, shown.matches("Ok(())").count()), (2, 2), "{shown}");
    let stack = "    kernel::syscall::paths::sys_mkdir+0\n    kernel::syscall::do_syscall+";
    assert_eq!(shown.matches(stack).count(), 2, "{shown}");
    assert!(shown.contains("@ok: 2\n"), "{shown}");
    assert_eq!(shown.matches(", workload]: 1\n").count(), 3, "{shown}");
    assert_eq!(shown.matches("    user_main+").count(), 3, "{shown}");
    assert!(said.contains("for ui.perfetto.dev"), "{said}");
    // The file has all records, as texts.
    let picture = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let texts = picture.windows(6).filter(|bytes| bytes == b"Ok(())");
    assert!(texts.count() >= 1, "{} bytes", picture.len());
}

#[test]
fn without_a_program_the_last_calls_are_a_tree() {
    let (shown, said) = last_words(&["--record", "--functions", "sys_*", "--last", "3"]);
    let calls = shown.lines().filter(|line| line.contains("  cpu ")).count();
    assert_eq!(calls, 3, "{shown}");
    let last = shown.lines().last().unwrap_or_default();
    // By the names and types of the source: octal 755 is 493.
    let (_, call) = last.split_once("sys_mkdir(path = ").unwrap_or_default();
    assert!(
        call.ends_with(", mode = 493)  … (never returned)"),
        "{shown}"
    );
    assert!(said.contains("the guest failed"), "{said}");
}

/// Functions without arguments or without a result have none, and others have their own.
#[test]
fn the_last_calls_have_the_values_of_the_source() {
    let functions = ["--functions", "kernel::syscall::*"];
    let (shown, _) = last_words(&[&["--record", "--last", "500"], &functions[..]].concat());
    let calls = |name: &str| {
        let lines = shown
            .lines()
            .filter(|line| line.contains(&format!(" {name}(")));
        let texts = lines.map(|line| line.split("  ").find(|part| part.contains(name)).unwrap());
        texts
            .map(|text| text.trim_start().to_owned())
            .collect::<Vec<_>>()
    };
    // The workload is the third task and asks for itself and for each of its children.
    let pids = calls("sys_getpid");
    assert!(!pids.is_empty(), "{shown}");
    assert!(
        pids.iter().all(|call| call.starts_with("sys_getpid() = ")),
        "{pids:?}"
    );
    let exits = calls("sys_exit_group");
    assert!(
        exits.contains(&"sys_exit_group(code = 0)".into()),
        "{shown}"
    );
    assert!(!shown.contains("arg0"), "{shown}");
}

/// The file that was asked for is there, though there is nothing to be shown.
#[test]
fn a_kernel_that_lives_has_its_timeline_too() {
    let file = std::env::temp_dir().join(format!("record.lives.{}", std::process::id()));
    let path = file.to_str().unwrap();
    let output = record(&["--record", "--functions", "sys_*", "--perfetto", path]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("did not die"), "{said}");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.ends_with("Power off: success\n"), "{shown}");
    let picture = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let name = b"sys_mkdir";
    assert!(picture.windows(name.len()).any(|bytes| bytes == name));
}

/// The guest of a program that waits for a signal would run on for long.
#[test]
fn ctrl_c_shows_the_last_calls() {
    let _taken = for_guest(Machine::CPUS);
    let mut child = Command::new(recorder())
        .args(["--timeout", "120", "--samples", "crash"])
        .args(["--append", "crash.how=hang crash.at=3", "--watchdog", "120"])
        .args(["--record", "--functions", "sys_*", "--last", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut shown = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("exit 0") {
        line.clear();
        assert_ne!(shown.read_line(&mut line).unwrap(), 0);
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut behind = String::new();
    shown.read_to_string(&mut behind).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{behind}");
    let calls = behind.lines().filter(|line| line.contains("  cpu "));
    assert_eq!(calls.count(), 1, "{behind}");
}

#[test]
fn wrong_arguments_are_refused_before_a_machine_starts() {
    for (arguments, told) in [
        (
            &["--record", "kprobe:sys_mkdir { exit(); }"][..],
            "the program has `exit()`",
        ),
        (
            &["--record", "interval:s:1 { @ = count(); clear(@); }"],
            "the program has `clear(@map)`",
        ),
        (&["--record", "kprobe:sys_mkdirr { }"], "`sys_mkdir`"),
        (
            &["--record", "--functions", "sys_mkdirr"],
            "near are sys_mkdir",
        ),
        (
            &["--record", "--functions", ""],
            "no function matches --functions ''",
        ),
        (
            &["--record", "--perfetto", "/nowhere/file"],
            "cannot write /nowhere/file",
        ),
        (&["--record", "--perfetto", "/"], "Is a directory"),
        (&["--record", "--ring", "0"], "from 1 to 16384"),
    ] {
        let output = Command::new(recorder()).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(told), "{arguments:?}: {said}");
        assert_eq!(output.stdout, b"", "{arguments:?}");
    }
}
