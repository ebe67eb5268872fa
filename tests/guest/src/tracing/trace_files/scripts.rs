//! Steps that published scripts for these files take, one after the other. Each form by itself is
//! tested elsewhere.

use alloc::collections::BTreeSet;

use abi::WaitStatus;
use kernel::{probes::survey, symbols, task::exec::run_program};

use super::*;
use crate::tools::jumps::Optimization;

fn fork() {
    let ended = run_program("/bin/exercise", &["rounds", "1"]);
    assert_eq!(ended, Ok(WaitStatus::exited(0)));
}

/// The event is tried at each of the first 256 bytes after a function's entry. It is taken at
/// each instruction that can be probed, and nowhere else. All of them are hit together.
#[guest_test]
fn only_the_instructions_of_a_function_take_an_event() {
    clean_up();
    let symbol = symbols::lookup_name("do_fork").unwrap();
    let judged = survey::function(&symbol).unwrap();
    let expected: BTreeSet<u64> = (judged.iter())
        .filter(|judged| judged.verdict.is_ok())
        .map(|judged| judged.insn.ip() - symbol.start)
        .filter(|offset| *offset < 256)
        .collect();
    let taken: BTreeSet<u64> = (0..symbol.size.min(256))
        .filter(|offset| {
            let line = format!("p:bound/at{offset} do_fork+{offset}");
            append(&line, "kprobe_events").is_ok()
        })
        .collect();
    assert_eq!(taken, expected);
    assert!(taken.len() > 8, "{taken:?}");
    echo("1", "events/bound/enable").unwrap();
    fork();
    echo("0", "events/bound/enable").unwrap();
    let first = (lines().iter())
        .filter(|line| line.starts_with("at0: "))
        .count();
    assert!(first > 0, "the entry was not hit");
    echo("", "kprobe_events").unwrap();
    echo("", "error_log").unwrap();
    clean_up();
}

/// An event at one of a function's instructions is served by a jump, and the list of all probes
/// says so.
#[guest_test]
fn the_list_of_probes_tells_which_events_jump() {
    clean_up();
    let _jumps = Optimization::set(true);
    let list = || {
        let file = fs::open("/sys/kernel/debug/kprobes/list", open::RDONLY).unwrap();
        let mut text = vec![0; 64 << 10];
        let len = file.read_at(0, &mut text).unwrap();
        String::from_utf8(text[..len].to_vec()).unwrap()
    };
    let is_jump = |line: &str| line.contains("traced_function") && line.contains("[OPTIMIZED]");
    assert!(!list().lines().any(is_jump));
    append("p:jump/e traced_function", "kprobe_events").unwrap();
    echo("1", "events/jump/e/enable").unwrap();
    assert!(list().lines().any(is_jump), "{}", list());
    echo("0", "events/jump/e/enable").unwrap();
    assert!(!list().lines().any(is_jump));
    clean_up();
}

/// Events at entry and return of one call have the same argument, and are next to each other. The
/// name of the file shows in events of files and of nodes.
#[guest_test]
fn entry_and_return_of_an_open_have_the_same_argument() {
    clean_up();
    append("p:open/in vfs_open arg=$arg1", "kprobe_events").unwrap();
    append("r:open/out vfs_open arg=$arg1", "kprobe_events").unwrap();
    append("p:open/put dput name=$arg1:%pd", "kprobe_events").unwrap();
    let file = path("events/open/in/enable");
    echo("1", "events/open/enable").unwrap();
    drop(fs::open(&file, open::RDONLY).unwrap());
    echo("0", "events/open/enable").unwrap();
    let lines = lines();
    let argument = |line: &str| String::from(line.split_once("arg=").unwrap().1);
    let mut pairs = 0;
    for pair in lines.windows(2) {
        if pair[0].starts_with("in: ") && pair[1].starts_with("out: ") {
            assert_eq!(argument(&pair[0]), argument(&pair[1]), "{lines:?}");
            pairs += 1;
        }
    }
    assert!(pairs > 0, "{lines:?}");
    let put = |line: &String| line.starts_with("put: ") && line.ends_with("name=\"enable\"");
    assert!(lines.iter().any(put), "{lines:?}");
    clean_up();
}

/// Two ways to write a return probe make the same event.
#[guest_test]
fn a_return_probe_by_its_suffix_is_one_by_its_letter() {
    let listed = |line: &str| {
        clean_up();
        append(line, "kprobe_events").unwrap();
        let text = show("kprobe_events");
        clean_up();
        text
    };
    let by_letter = listed("r:ret/n vfs_read r=$retval");
    assert_eq!(by_letter, listed("p:ret/n vfs_read%return r=$retval"));
    assert!(by_letter.starts_with("r"), "{by_letter}");
}

/// A place by its symbol, by its address, and by the distance from the symbol before it.
#[guest_test]
fn a_place_may_be_told_in_several_ways() {
    clean_up();
    let address = symbols::lookup_name("traced_function").unwrap().start;
    for place in [
        String::from("traced_function"),
        format!("{address:#x}"),
        String::from("traced_function+0"),
    ] {
        append(&format!("p:place/e {place}"), "kprobe_events").unwrap();
        echo("1", "events/place/e/enable").unwrap();
        call(1);
        assert_eq!(lines().len(), 1, "{place}");
        echo("0", "events/place/e/enable").unwrap();
        clean_up();
    }
    for place in ["traced_function-1", "traced_function+18446744073709551615"] {
        let refused = append(&format!("p:place/e {place}"), "kprobe_events");
        assert_eq!(refused, Err(Errno::EINVAL), "{place}");
    }
    echo("", "error_log").unwrap();
    clean_up();
}

/// Events after the entries of many functions, defined by one write after the other, all on, hit,
/// and gone by one write.
#[guest_test]
fn many_events_are_listed_enabled_and_cleared() {
    const MANY: usize = 256;
    clean_up();
    let mut defined = 0;
    for name in show("available_filter_functions").lines() {
        if !name.contains(['.', ' ', '[']) {
            let line = format!("p:many/e{defined} {name}+5");
            defined += usize::from(append(&line, "kprobe_events").is_ok());
        }
        if defined == MANY {
            break;
        }
    }
    assert!(defined > 100, "{defined} events");
    assert_eq!(show("kprobe_events").lines().count(), defined);
    echo("1", "events/many/enable").unwrap();
    fork();
    echo("0", "events/many/enable").unwrap();
    assert_eq!(show("kprobe_profile").lines().count(), defined);
    echo("", "kprobe_events").unwrap();
    assert!(!exists("events/many"));
    echo("", "error_log").unwrap();
    clean_up();
}
