//! The serial line of one boot, read as a sequence of tests.
//!
//! A test begins and ends with a marker. All output from its beginning to the next one is its part
//! of the log. Its verdict is due when the guest is seen well after its end: at the next beginning,
//! or when the guest ends successfully. If the boot ends in any other way, the test that began last
//! has failed.

use std::mem;

use boot::guest::End;
use test_protocol::{Marker, TIME_IS_OVER};

/// The result of a test: passed, or failed with a reason and the test's part of the log.
pub type Verdict = Result<(), String>;

/// How a test has failed: the first line of its failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It said so, or the guest died in it.
    InTest,
    /// The guest ended it because its time was over.
    TooLong,
    /// It was not over in time, and the host ended the guest.
    Hung,
    /// The guest ended, or took too long, before the first test.
    NotBooted,
    /// Nothing of the guest's: the machine could not be started, or the emulator ended.
    Harness,
}

impl Failure {
    /// Reads `line`, the first of a failure.
    pub fn told_by(line: &str) -> Self {
        let line = line.strip_prefix(AFTER_ITS_END).unwrap_or(line);
        let is = |beginnings: &[&str]| beginnings.iter().any(|text| line.starts_with(text));
        if is(&[TOO_LONG]) {
            Self::TooLong
        } else if is(&[HUNG]) {
            Self::Hung
        } else if is(&[NOT_BOOTED]) {
            Self::NotBooted
        } else if is(&[PANICKED, RESET, ENDED, NO_PANIC, NO_END]) {
            Self::InTest
        } else {
            Self::Harness
        }
    }
}

// The beginnings of the reasons.
const PANICKED: &str = "the kernel panicked";
const RESET: &str = "the machine was reset";
const ENDED: &str = "the guest ended";
const TOO_LONG: &str = "it took too long";
const HUNG: &str = "it hung";
const NOT_BOOTED: &str = "the guest did not get as far as running it";
const NO_PANIC: &str = "it did not panic";
const NO_END: &str = "the guest went on";
const AFTER_ITS_END: &str = "after its end, ";

/// Why a boot was over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// The guest ended by itself.
    Ended(End),
    /// The test that ran, or the boot before the first test, took longer than this many seconds.
    Hung(u64),
}

/// A test of this boot.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Full name, as the markers have it.
    pub name: String,
    /// If set, the test passes by a panic whose log holds this.
    pub should_panic: Option<String>,
}

/// Follows the serial line of a boot that runs `tests` in this order.
#[derive(Debug)]
pub struct Transcript {
    tests: Vec<Expected>,
    /// The test that was begun last, as an index into `tests`, and whether it has returned.
    current: Option<(usize, bool)>,
    /// How many tests have been begun.
    begun: usize,
    /// The current test's part of the log; the boot's before the first one.
    log: String,
    /// The beginning of a line whose end has not come yet.
    partial: Vec<u8>,
}

impl Transcript {
    pub fn new(tests: Vec<Expected>) -> Self {
        Self {
            tests,
            current: None,
            begun: 0,
            log: String::new(),
            partial: Vec::new(),
        }
    }

    /// Returns the index of the test that was begun last.
    pub fn current(&self) -> Option<usize> {
        self.current.map(|(test, _)| test)
    }

    /// Takes new output of the serial line. Returns the verdicts that are due by it, with the
    /// tests' indices.
    pub fn output(&mut self, output: &[u8]) -> Vec<(usize, Verdict)> {
        let mut verdicts = Vec::new();
        self.partial.extend_from_slice(output);
        while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            verdicts.extend(self.line(&String::from_utf8_lossy(&line)));
        }
        verdicts
    }

    fn line(&mut self, line: &str) -> Option<(usize, Verdict)> {
        match Marker::find(line) {
            Some(Marker::Begin(name))
                if self.tests.get(self.begun).is_some_and(|t| t.name == name) =>
            {
                let verdict = self.verdict_of_current(&Over::Ended(End::Success));
                self.log.clear();
                self.current = Some((self.begun, false));
                self.begun += 1;
                return verdict;
            }
            Some(Marker::End(name)) => {
                if let Some((test, returned)) = &mut self.current
                    && self.tests[*test].name == name
                {
                    *returned = true;
                }
            }
            _ => self.log.push_str(line),
        }
        None
    }

    /// Returns the verdicts that follow from the end of the boot, at least one if any test had none
    /// yet.
    ///
    /// If this boot ended by the fault of a test, another boot can run the tests that were not
    /// begun. So these get no verdict then.
    pub fn over(mut self, over: &Over) -> Vec<(usize, Verdict)> {
        let partial = mem::take(&mut self.partial);
        self.log.push_str(&String::from_utf8_lossy(&partial));
        let current = self.verdict_of_current(over);
        let boot_is_to_blame = current.is_none() || *over == Over::Ended(End::Success);
        let mut verdicts: Vec<_> = current.into_iter().collect();
        if boot_is_to_blame {
            let reason = match over {
                Over::Ended(End::Success) => format!("{ENDED} without running it"),
                _ => format!("{NOT_BOOTED}: {}", reason(over)),
            };
            let missed = self.begun..self.tests.len();
            verdicts.extend(missed.map(|test| (test, self.failed(&reason))));
        }
        verdicts
    }

    /// Judges the test that began last. The guest was well after it (`Success`), or `over` says how
    /// the boot ended.
    fn verdict_of_current(&self, over: &Over) -> Option<(usize, Verdict)> {
        let (test, returned) = self.current?;
        let wanted_panic = self.tests[test].should_panic.as_deref();
        let well = *over == Over::Ended(End::Success);
        let is_panic = *over == Over::Ended(End::Failure);
        let took_too_long = is_panic && self.log.contains(TIME_IS_OVER);
        let verdict = match wanted_panic {
            _ if took_too_long => self.failed(&format!("{TOO_LONG}: {PANICKED}")),
            Some(text) if is_panic => {
                if self.log.contains(text) {
                    Ok(())
                } else {
                    self.failed(&format!(
                        "{PANICKED} as it should, but its log does not hold {text:?}"
                    ))
                }
            }
            Some(_) if well => self.failed(&format!("{NO_PANIC}, as it should")),
            None if well && returned => Ok(()),
            _ if well => self.failed(&format!(
                "{NO_END}, but the test's end is missing in its log"
            )),
            _ if returned => self.failed(&format!("{AFTER_ITS_END}{}", reason(over))),
            _ => self.failed(&reason(over)),
        };
        Some((test, verdict))
    }

    fn failed(&self, reason: &str) -> Verdict {
        let log = excerpt(self.log.trim_end());
        let of = match self.current {
            Some(_) => "since the test began",
            None => "since the boot",
        };
        Err(format!("{reason}\nlog of the guest {of}:\n{log}\n"))
    }
}

/// Returns `log` with the middle of a very long one left out.
fn excerpt(log: &str) -> String {
    const HEAD: usize = 200;
    const TAIL: usize = 400;
    if log.is_empty() {
        return "(nothing)".into();
    }
    let lines: Vec<&str> = log.lines().collect();
    if lines.len() <= HEAD + TAIL {
        return log.into();
    }
    let (head, rest) = lines.split_at(HEAD);
    let (middle, tail) = rest.split_at(rest.len() - TAIL);
    format!(
        "{}\n... {} lines left out ...\n{}",
        head.join("\n"),
        middle.len(),
        tail.join("\n")
    )
}

fn reason(over: &Over) -> String {
    match over {
        Over::Ended(End::Success) => format!("{ENDED} too early"),
        Over::Ended(End::Failure) => PANICKED.into(),
        Over::Ended(End::Reset) => format!("{RESET}: a triple fault"),
        Over::Ended(End::Emulator(how)) => how.clone(),
        Over::Hung(seconds) => format!("{HUNG}: not over after {seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript(names: &[&str]) -> Transcript {
        Transcript::new(
            names
                .iter()
                .map(|name| Expected {
                    name: (*name).into(),
                    should_panic: name.starts_with("panics").then(|| "text".into()),
                })
                .collect(),
        )
    }

    fn begin(name: &str) -> String {
        format!("[    0.000001] {}\n", Marker::Begin(name))
    }

    fn end(name: &str) -> String {
        format!("[    0.000002] {}\n", Marker::End(name))
    }

    /// Feeds `log`. Returns for each verdict the test and the first line of its failure.
    fn judge(names: &[&str], log: &[String], over: &Over) -> Vec<(usize, String)> {
        let mut transcript = transcript(names);
        let mut verdicts = transcript.output(log.concat().as_bytes());
        verdicts.extend(transcript.over(over));
        verdicts
            .into_iter()
            .map(|(test, verdict)| {
                let text = verdict.err().unwrap_or("passed".into());
                (test, text.lines().next().unwrap().into())
            })
            .collect()
    }

    const SUCCESS: Over = Over::Ended(End::Success);
    const FAILURE: Over = Over::Ended(End::Failure);
    const RESET: Over = Over::Ended(End::Reset);

    #[test]
    fn tests_that_end_well_pass() {
        let log = [begin("a"), end("a"), begin("b"), end("b")];
        let passed = |test| (test, "passed".to_string());
        assert_eq!(judge(&["a", "b"], &log, &SUCCESS), [passed(0), passed(1)]);
    }

    #[test]
    fn a_test_passes_only_when_the_next_begins() {
        let mut transcript = transcript(&["a", "b"]);
        assert_eq!(transcript.output((begin("a") + &end("a")).as_bytes()), []);
        assert_eq!(transcript.output(begin("b").as_bytes()), [(0, Ok(()))]);
    }

    #[test]
    fn the_test_that_was_begun_last_gets_the_blame() {
        let log = [begin("a"), end("a"), begin("b")];
        for (over, reason) in [
            (FAILURE, "the kernel panicked"),
            (RESET, "the machine was reset: a triple fault"),
            (Over::Hung(7), "it hung: not over after 7 s"),
        ] {
            assert_eq!(
                judge(&["a", "b", "c"], &log, &over),
                [(0, "passed".into()), (1, reason.into())]
            );
        }
    }

    #[test]
    fn damage_after_the_end_is_blamed_too() {
        let log = [begin("a"), end("a")];
        assert_eq!(
            judge(&["a", "b"], &log, &FAILURE),
            [(0, "after its end, the kernel panicked".into())]
        );
    }

    #[test]
    fn failures_tell_their_kind() {
        use Failure::{Harness, Hung, InTest, NotBooted};
        let emulator = Over::Ended(End::Emulator("QEMU was killed by signal 9".into()));
        let (began, ended) = ([begin("a")], [begin("a"), end("a")]);
        let cases: [(&[String], &Over, Failure); 11] = [
            (&began, &FAILURE, InTest),
            (&began, &RESET, InTest),
            (&began, &SUCCESS, InTest),
            (&began, &Over::Hung(7), Hung),
            (&began, &emulator, Harness),
            (&ended, &FAILURE, InTest),
            (&ended, &Over::Hung(7), Hung),
            (&[], &FAILURE, NotBooted),
            (&[], &Over::Hung(7), NotBooted),
            (&[], &SUCCESS, InTest),
            (&[begin("a"), begin("b")], &RESET, InTest),
        ];
        for (log, over, failure) in cases {
            let (_, line) = judge(&["a", "b"], log, over).remove(0);
            assert_eq!(Failure::told_by(&line), failure, "{line}");
        }
        let returns = judge(&["panics"], &[begin("panics"), end("panics")], &SUCCESS)
            .remove(0)
            .1;
        assert_eq!(Failure::told_by(&returns), InTest);
        assert_eq!(
            Failure::told_by("cannot run qemu-system-x86_64: not found"),
            Harness
        );
    }

    #[test]
    fn a_boot_that_reaches_no_test_fails_all() {
        let verdicts = judge(&["a", "b"], &[], &RESET);
        assert_eq!(verdicts.len(), 2);
        assert!(verdicts[1].1.contains("did not get as far"), "{verdicts:?}");
    }

    #[test]
    fn tests_left_out_by_the_guest_fail() {
        let verdicts = judge(&["a", "b"], &[begin("a"), end("a")], &SUCCESS);
        assert_eq!(verdicts[0], (0, "passed".into()));
        assert_eq!(
            verdicts[1],
            (1, "the guest ended without running it".into())
        );
    }

    #[test]
    fn a_guest_that_ends_a_test_in_time_says_so() {
        for name in ["a", "panics"] {
            let last = format!("Kernel panic: text: {name}: {TIME_IS_OVER}\n");
            let (_, line) = judge(&[name], &[begin(name), last], &FAILURE).remove(0);
            assert_eq!(Failure::told_by(&line), Failure::TooLong, "{line}");
        }
    }

    #[test]
    fn an_expected_panic_must_happen_and_say_the_text() {
        let panics = ["panics".to_string()];
        let names = ["panics"];
        let say = |text: &str| [begin(&panics[0]), format!("Kernel panic: {text}\n")];
        let judge = |log: &[String], over| judge(&names, log, over).remove(0).1;
        assert_eq!(judge(&say("the text"), &FAILURE), "passed");
        assert!(judge(&say("other"), &FAILURE).contains("does not hold \"text\""));
        assert_eq!(judge(&say("the text"), &RESET), reason(&RESET));
        let returns = [begin("panics"), end("panics")];
        assert_eq!(judge(&returns, &SUCCESS), "it did not panic, as it should");
    }

    #[test]
    fn a_long_log_loses_its_middle() {
        let lines: Vec<String> = (0..1000).map(|line| line.to_string()).collect();
        let shown = excerpt(&lines.join("\n"));
        assert!(
            shown.contains("\n199\n... 400 lines left out ...\n600\n"),
            "{shown}"
        );
        assert_eq!(excerpt("a\nb"), "a\nb");
    }

    #[test]
    fn a_failure_shows_the_tests_part_of_the_log() {
        let mut transcript = transcript(&["a", "b"]);
        let log = [
            "boot\n".into(),
            begin("a"),
            "first\n".into(),
            end("a"),
            begin("b"),
            "second\nthird".into(),
        ];
        // In pieces, as a pipe may deliver it.
        for piece in log.concat().as_bytes().chunks(5) {
            transcript.output(piece);
        }
        let verdicts = transcript.over(&FAILURE);
        let failure = verdicts[0].1.as_ref().unwrap_err();
        let expected =
            "the kernel panicked\nlog of the guest since the test began:\nsecond\nthird\n";
        assert_eq!(failure, expected);
    }
}
