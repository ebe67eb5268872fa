//! Tests of the harness: guest tests that end in every possible way, and the verdicts on them.

use std::{collections::BTreeMap, thread};

use boot::prerequisites::{self, Install};
use tests::{Catalogue, GuestTest, Verdict, boots::Emulator};

const PREFIX: &str = "self_test::";

fn verdicts() -> BTreeMap<String, Verdict> {
    prerequisites::toolchain(Install::Allowed).unwrap();
    let catalogue = Catalogue::build().unwrap();
    let tests = catalogue.tests.iter().filter_map(|test| {
        let name = test.name.strip_prefix(PREFIX)?;
        Some((name, test))
    });
    // One guest waits for the host's time limit, and another test comes after it. Another guest
    // has all others.
    let (waiting, others): (Vec<_>, Vec<_>) =
        tests.partition(|(name, _)| ["e_hangs_without_interrupts", "i_passes"].contains(name));
    let run = |tests: Vec<(&str, &GuestTest)>| {
        let tests: Vec<&GuestTest> = tests.into_iter().map(|(_, test)| test).collect();
        let mut verdicts = Vec::new();
        tests::run(
            Emulator::Qemu,
            &catalogue.kernel,
            &tests,
            false,
            |test, verdict| {
                let name = test.name.strip_prefix(PREFIX).unwrap();
                verdicts.push((name.to_string(), verdict));
            },
        );
        verdicts
    };
    let all = thread::scope(|scope| {
        let waiting = scope.spawn(|| run(waiting));
        let mut all = run(others);
        all.extend(waiting.join().unwrap());
        all
    });
    let mut verdicts = BTreeMap::new();
    for (name, verdict) in all {
        let before = verdicts.insert(name.clone(), verdict);
        assert_eq!(before, None, "{name} was judged twice");
    }
    verdicts
}

#[test]
fn pass_panic_triple_fault_and_hang_are_told_apart() {
    const TOO_LONG: &str = "it took too long: the kernel panicked";
    let verdicts = verdicts();
    let expected = [
        ("a_passes", None),
        (
            "b_panics",
            Some(("the kernel panicked", "arithmetic is odd")),
        ),
        ("c_passes", None),
        (
            "d_triple_faults",
            Some(("the machine was reset: a triple fault", "self-test: in d")),
        ),
        (
            "e_floods_the_log",
            Some((
                TOO_LONG,
                "self_test::e_floods_the_log is not over after 3 s",
            )),
        ),
        (
            "e_hangs",
            // Whichever CPU found out.
            Some((TOO_LONG, "guest_tests::harness::self_test::e_hangs+0x")),
        ),
        (
            "e_hangs_without_interrupts",
            Some(("it hung: not over after 18 s", "self-test: in e")),
        ),
        (
            "e_sleeps",
            Some((TOO_LONG, "self_test::e_sleeps is not over after 3 s")),
        ),
        ("f_panics_as_it_should", None),
        (
            "g_panics_for_another_reason",
            Some((
                "the kernel panicked as it should, but its log does not hold \"one thing\"",
                "another thing",
            )),
        ),
        (
            "h_does_not_panic_though_it_should",
            Some(("it did not panic, as it should", "")),
        ),
        ("i_passes", None),
    ];
    let names: Vec<&str> = verdicts.keys().map(String::as_str).collect();
    assert_eq!(names, expected.map(|(name, _)| name));
    for (name, failure) in expected {
        match (&verdicts[name], failure) {
            (Ok(()), None) => {}
            (Err(text), Some((reason, log))) => {
                assert_eq!(text.lines().next(), Some(reason), "{name}: {text}");
                assert!(text.contains(log), "{name}: {text}");
                // Each one's own part of the log, and nothing of the others.
                for other in ["a", "b", "c", "d", "e", "i"] {
                    let line = format!("self-test: in {other}");
                    let own = name.starts_with(other);
                    assert_eq!(text.contains(&line), own, "{name}: {text}");
                }
            }
            (verdict, _) => panic!("{name}: {verdict:?}"),
        }
    }
}
