//! The effects of the kernel's command line, as its log and its verdict show them.

use std::time::Duration;

use boot::{firmware::Firmware, guest::End, qemu::Machine};
use tests::{Over, built, record};

/// Boots with this command line. Returns how that ended, and the lines of the log without their
/// time stamps.
fn boot(command_line: &str) -> (Over, Vec<String>) {
    let machine = Machine {
        cmdline: command_line.into(),
        ..Machine::new(built::kernel().image(Firmware::Bios).unwrap())
    };
    let (over, log) = record(&machine, Duration::from_secs(120)).unwrap();
    let text_of = |line: &str| line.split_once("] ").map(|(_, text)| text.to_owned());
    (over, log.lines().filter_map(text_of).collect())
}

#[track_caller]
fn assert_holds(log: &[String], line: &str) {
    assert!(
        log.iter().any(|have| have == line),
        "no line {line:?}:\n{}",
        log.join("\n")
    );
}

#[test]
fn unknown_arguments_are_reported_and_ignored() {
    let (over, log) = boot(
        r#"modules=kprobe_example frobnicate="a b" kretprobe_example.func=sys_mkdir no_module.x=1"#,
    );
    assert_eq!(over, Over::Ended(End::Success), "{}", log.join("\n"));
    assert_holds(
        &log,
        r#"Command line: frobnicate="a b" is unknown and ignored"#,
    );
    assert_holds(&log, "Command line: no_module.x=1 is unknown and ignored");
    // Both names are known. The module of the second is there, but it is not loaded.
    assert!(
        !log.iter()
            .any(|line| line.contains("modules=") && line.ends_with("ignored"))
    );
    assert!(
        !log.iter()
            .any(|line| line.contains("func=") && line.ends_with("ignored"))
    );
}

#[test]
fn wrong_parameter_of_a_module_fails_the_run() {
    let (over, log) = boot("modules=kprobe_example kprobe_example.offset=many");
    assert_eq!(over, Over::Ended(End::Failure), "{}", log.join("\n"));
    assert_holds(
        &log,
        "insmod kprobe_example failed: -22 kprobe_example.offset does not take \"many\"; \
         give a number (decimal, 0x... or 0...)",
    );
    assert_eq!(log.last().unwrap(), "Power off: failure");
}

#[test]
fn a_crash_of_an_unknown_kind_is_refused() {
    let (over, log) = boot("modules=crash crash.how=banana");
    assert_eq!(over, Over::Ended(End::Failure), "{}", log.join("\n"));
    assert_holds(
        &log,
        "insmod crash failed: -22 crash.how does not take \"banana\"; give panic, triple_fault or \
         hang",
    );
    assert!(!log.iter().any(|line| line.contains("as it was asked for")));
}

#[test]
fn unknown_module_fails_the_run() {
    let (over, log) = boot("modules=kprobe_sample");
    assert_eq!(over, Over::Ended(End::Failure), "{}", log.join("\n"));
    let line = log
        .iter()
        .find(|line| line.starts_with("insmod kprobe_sample failed: -2 "))
        .unwrap();
    assert!(line.contains("kprobe_example"), "{line}");
}

#[test]
fn an_empty_program_fails_the_run() {
    let (over, log) = boot("init=");
    assert_eq!(over, Over::Ended(End::Failure), "{}", log.join("\n"));
    assert_holds(
        &log,
        "init= names no program; give its path, such as init=/bin/workload",
    );
}

#[test]
fn log_level_keeps_less_urgent_messages_off_the_console() {
    let (over, log) = boot("modules=kprobe_example loglevel=5");
    assert_eq!(over, Over::Ended(End::Success));
    assert!(
        !log.iter().any(|line| line.starts_with("Planted")),
        "{}",
        log.join("\n")
    );
}

#[test]
fn numbers_that_make_no_sense_are_ignored_with_a_reason() {
    let (over, log) = boot("modules=kprobe_example loglevel=loud tick_ms=0");
    assert_eq!(over, Over::Ended(End::Success));
    for told in [
        "loglevel=loud is ignored: ",
        "tick_ms=0 is ignored: it is a number from 1 to 1000",
    ] {
        assert!(
            log.iter().any(|line| line.contains(told)),
            "{told}: {}",
            log.join("\n")
        );
    }
}

/// Probes the console's own functions, with a handler that logs each hit. So each message leads to
/// hits, and these lead to messages. This must end, and the log must say what was left out, if
/// anything was: the return probe's sample leaves kernel threads alone, and it may be that they
/// print each message that a hit of `write` logs.
#[test]
fn a_message_does_not_feed_itself() {
    for (arguments, most, leaves_out) in [
        (
            "kprobe_example kprobe_example.symbol=memset loglevel=5",
            100,
            true,
        ),
        ("kprobe_example kprobe_example.symbol=memset", 5000, true),
        (
            "kprobe_example kprobe_example.symbol=kernel::serial::SerialPort::write \
             kprobe_example.stack=1",
            1000,
            true,
        ),
        (
            "kretprobe_example kretprobe_example.func=memset loglevel=5",
            100,
            true,
        ),
        (
            "kretprobe_example kretprobe_example.func=kernel::serial::SerialPort::write",
            500,
            false,
        ),
    ] {
        let (over, log) = boot(&format!("modules={arguments}"));
        assert_eq!(over, Over::Ended(End::Success), "{arguments}");
        assert!(log.len() < most, "{arguments}: {} lines", log.len());
        let told =
            |line: &String| line.starts_with("** ") && line.ends_with(" messages dropped **");
        let is_told = log.iter().any(told);
        assert!(is_told || !leaves_out, "{arguments}: {}", log.join("\n"));
        let is_hit = |line: &String| line.contains("handler") || line.contains(" returned ");
        assert!(log.iter().any(is_hit) || is_told, "{arguments}: no hit");
    }
}
