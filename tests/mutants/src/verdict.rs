//! The verdict on a mutant, read from the log of a `cargo test`.
//!
//! A test notices a mutant if it fails: by an assertion, or because the guest or the process under
//! test dies in it. The check of the linked kernel notices a mutant if it says that the code of a
//! hit breaks its rules. After any other end of the command, nothing has looked at the effects of
//! the mutant. Such an end is told apart and does not count as noticed.

use std::{collections::BTreeMap, fmt};

use tests::transcript::Failure;

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Noticed by this test.
    Noticed(String),
    /// Noticed by the check of the linked kernel.
    BreaksTheRules,
    /// All tests passed.
    Survived,
    /// No test executes it.
    NotExecuted,
    /// Noticed by the guest, which ends this test when its time is over.
    TakesTooLong(String),
    /// This test was not over in time, and was ended from outside.
    Hangs(String),
    /// No guest came as far as its first test.
    DoesNotBoot,
    DoesNotBuild,
    /// Why there is none.
    Unjudged(String),
}

impl Verdict {
    pub fn is_noticed(&self) -> bool {
        matches!(
            self,
            Self::Noticed(_) | Self::BreaksTheRules | Self::TakesTooLong(_)
        )
    }

    /// The verdict of a guest test that failed with this first line.
    pub fn of_guest_test(test: &str, line: &str) -> Self {
        match Failure::told_by(line) {
            Failure::InTest => Self::Noticed(test.into()),
            Failure::TooLong => Self::TakesTooLong(test.into()),
            Failure::Hung => Self::Hangs(test.into()),
            Failure::NotBooted => Self::DoesNotBoot,
            Failure::Harness => Self::Unjudged(line.into()),
        }
    }

    /// Its category.
    fn category(&self) -> &'static str {
        match self {
            Self::Noticed(_) => "noticed by a test",
            Self::BreaksTheRules => "noticed by the rules of the hit path",
            Self::Survived => "SURVIVED",
            Self::NotExecuted => "NOT EXECUTED by any test",
            Self::TakesTooLong(_) => "noticed by a test's time limit",
            Self::Hangs(_) => "a test hangs",
            Self::DoesNotBoot => "does not boot",
            Self::DoesNotBuild => "does not build",
            Self::Unjudged(_) => "no verdict",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.category())?;
        match self {
            Self::Noticed(what)
            | Self::TakesTooLong(what)
            | Self::Hangs(what)
            | Self::Unjudged(what) => {
                write!(f, ": {what}")
            }
            _ => Ok(()),
        }
    }
}

/// How many mutants came to which category.
#[derive(Default)]
pub struct Tally(BTreeMap<&'static str, usize>, usize, usize);

impl Tally {
    pub fn add(&mut self, verdict: &Verdict) {
        *self.0.entry(verdict.category()).or_default() += 1;
        self.1 += 1;
        self.2 += usize::from(verdict.is_noticed());
    }

    /// Whether each mutant was noticed.
    pub fn all_noticed(&self) -> bool {
        self.1 == self.2
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(categories, all, noticed) = self;
        write!(f, "{noticed} of {all} mutants noticed")?;
        for (category, count) in categories {
            write!(f, "; {category}: {count}")?;
        }
        Ok(())
    }
}

/// How a command was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Success,
    Failure,
    /// It was ended from here, as it took too long.
    Late,
}

/// The verdict of a `cargo test` with this log and end. None if its tests passed.
pub fn of_log(log: &str, end: End) -> Option<Verdict> {
    if let Some(test) = failed_test(log) {
        let told = format!("{test}: ");
        let reason = log.lines().find_map(|line| line.strip_prefix(&told));
        // Tests that run on the host give no reason in a line of their own: they fail by panicking.
        let verdict = |line| Verdict::of_guest_test(test, line);
        return Some(reason.map_or(Verdict::Noticed(test.into()), verdict));
    }
    let ran = |line: &str| line.starts_with("running ") && !line.starts_with("running 0 ");
    let no_verdict = |why: &str| Some(Verdict::Unjudged(why.into()));
    match end {
        // A filter that fits nothing would notice nothing, ever.
        End::Success if !log.lines().any(ran) => no_verdict("no test ran"),
        End::Success => None,
        End::Late => match unfinished_test(log) {
            Some(test) => Some(Verdict::Hangs(test.into())),
            None => no_verdict("it did not end"),
        },
        End::Failure if log.contains(BREAKS_THE_RULES) => Some(Verdict::BreaksTheRules),
        End::Failure if log.contains("could not compile") => Some(Verdict::DoesNotBuild),
        End::Failure => match (unfinished_test(log), signal(log)) {
            (Some(test), Some(signal)) if DEADLY.contains(&signal) => {
                Some(Verdict::Noticed(format!("{test}, which ends by {signal}")))
            }
            (_, Some(signal)) => no_verdict(signal),
            _ => no_verdict("it failed, and no test did"),
        },
    }
}

/// The words of the check of the linked kernel.
const BREAKS_THE_RULES: &str = "breaks the rules for the code that a hit runs through";

/// Signals that a process brings upon itself; others come from outside.
const DEADLY: [&str; 6] = [
    "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGTRAP",
];

/// The name of the signal that ended a test program.
fn signal(log: &str) -> Option<&str> {
    let (_, text) = log.rsplit_once("(signal: ")?;
    let (text, _) = text.split_once(')')?;
    text.split([',', ':']).nth(1)?.split_whitespace().next()
}

/// The tests in `log`, each with the text after its name until the next test.
fn tests(log: &str) -> Vec<(&str, String)> {
    let mut tests: Vec<(&str, String)> = Vec::new();
    for line in log.lines() {
        // A test may print something between its name and its verdict.
        if let Some((name, rest)) = line
            .strip_prefix("test ")
            .and_then(|test| test.split_once("... "))
        {
            tests.push((name.trim(), rest.into()));
        } else if let Some((_, said)) = tests.last_mut() {
            said.push('\n');
            said.push_str(line);
        }
    }
    tests
}

/// The first test that has failed.
pub fn failed_test(log: &str) -> Option<&str> {
    let failed = |said: &str| {
        said.lines()
            .take_while(|line| !line.starts_with("test result"))
            .any(|line| line.ends_with("FAILED"))
    };
    tests(log)
        .into_iter()
        .find_map(|(test, said)| failed(&said).then_some(test))
}

/// The test that was begun last, if it was not over: only where tests run one by one.
fn unfinished_test(log: &str) -> Option<&str> {
    let over =
        |line: &str| line.ends_with("ok") || line.ends_with("FAILED") || line.contains("ignored");
    let (test, said) = tests(log).pop()?;
    (!said.lines().any(over)).then_some(test)
}

#[cfg(test)]
mod tests_of_the_judgement {
    use super::*;

    const BEGUN: &str = "\nrunning 2 tests\ntest suite::a ... ok\n";

    fn verdict(log: &str, end: End) -> Verdict {
        of_log(log, end).unwrap_or(Verdict::Survived)
    }

    fn noticed(by: &str) -> Verdict {
        Verdict::Noticed(by.into())
    }

    #[test]
    fn tests_that_pass_notice_nothing() {
        let log = format!("{BEGUN}test suite::b ... ok\n\ntest result: ok. 2 passed; 0 failed\n");
        assert_eq!(of_log(&log, End::Success), None);
    }

    #[test]
    fn a_filter_that_fits_no_test_gives_no_verdict() {
        let log = "\nrunning 0 tests\n\ntest result: ok. 0 passed\n";
        assert_eq!(
            verdict(log, End::Success),
            Verdict::Unjudged("no test ran".into())
        );
    }

    #[test]
    fn a_failed_assertion_notices() {
        let log = format!(
            "{BEGUN}test suite::b ... FAILED\n\nfailures:\n\n---- suite::b stdout ----\nleft: 1\n"
        );
        assert_eq!(verdict(&log, End::Failure), noticed("suite::b"));
        assert_eq!(
            verdict(&log, End::Late),
            noticed("suite::b"),
            "and the rest hangs"
        );
    }

    #[test]
    fn what_a_test_prints_may_stand_before_its_verdict() {
        let log = format!(
            "{BEGUN}test suite::b ... probe hit\nmore\nFAILED\ntest result: FAILED. 1 passed\n"
        );
        assert_eq!(verdict(&log, End::Failure), noticed("suite::b"));
    }

    #[test]
    fn the_first_of_several_failures_counts() {
        let log = "running 2 tests\ntest a ... FAILED\ntest b ... FAILED\n";
        assert_eq!(verdict(log, End::Failure), noticed("a"));
    }

    #[test]
    fn a_summary_that_says_failed_is_no_test() {
        let log = format!("{BEGUN}test suite::b ... ok\ntest result: FAILED\n");
        assert_eq!(
            verdict(&log, End::Failure),
            Verdict::Unjudged("it failed, and no test did".into())
        );
    }

    #[test]
    fn a_process_that_dies_in_a_test_is_noticed_by_it() {
        let log = format!(
            "{BEGUN}test suite::b ... error: test failed\n\nCaused by:\n  process didn't exit \
             successfully: `x` (signal: 11, SIGSEGV: invalid memory reference)\n"
        );
        assert_eq!(
            verdict(&log, End::Failure),
            noticed("suite::b, which ends by SIGSEGV")
        );
    }

    #[test]
    fn a_process_that_is_killed_gives_no_verdict() {
        let log = format!(
            "{BEGUN}test suite::b ... \n  process didn't exit successfully: `x` (signal: 9, \
             SIGKILL: kill)\n"
        );
        assert_eq!(
            verdict(&log, End::Failure),
            Verdict::Unjudged("SIGKILL".into())
        );
    }

    #[test]
    fn a_process_that_dies_between_tests_gives_no_verdict() {
        let log = format!(
            "{BEGUN}  process didn't exit successfully: `x` (signal: 6, SIGABRT: process abort \
             signal)\n"
        );
        assert_eq!(
            verdict(&log, End::Failure),
            Verdict::Unjudged("SIGABRT".into())
        );
    }

    #[test]
    fn a_test_that_does_not_end_hangs() {
        let log = format!("{BEGUN}test suite::b ... ");
        assert_eq!(verdict(&log, End::Late), Verdict::Hangs("suite::b".into()));
        let log = format!("{BEGUN}test suite::b has been running for over 60 seconds\n");
        assert_eq!(
            verdict(&log, End::Late),
            Verdict::Unjudged("it did not end".into())
        );
    }

    #[test]
    fn a_build_that_does_not_end_gives_no_verdict() {
        let log = "   Compiling probes v0.1.0\n";
        assert_eq!(
            verdict(log, End::Late),
            Verdict::Unjudged("it did not end".into())
        );
    }

    #[test]
    fn a_build_that_fails_is_no_notice() {
        let log = "error[E0308]: mismatched types\nerror: could not compile `probes` (lib)\n";
        assert_eq!(verdict(log, End::Failure), Verdict::DoesNotBuild);
        let nested = format!(
            "     Running suite.rs\n{log}the guest tests cannot be built: building the kernel \
             failed\n"
        );
        assert_eq!(verdict(&nested, End::Failure), Verdict::DoesNotBuild);
    }

    #[test]
    fn a_harness_that_cannot_build_is_no_notice_but_for_the_rules() {
        let log = "the guest tests cannot be built: cannot run llvm-objcopy\nerror: test failed\n";
        assert_eq!(
            verdict(log, End::Failure),
            Verdict::Unjudged("it failed, and no test did".into())
        );
        let log = "the guest tests cannot be built: /x/testkernel breaks the rules for the code \
                   that a hit runs through:\n  f: may panic\n";
        assert_eq!(verdict(log, End::Failure), Verdict::BreaksTheRules);
    }

    /// The output as the harness of the guest tests writes it: the reason first, then the test's
    /// line.
    #[test]
    fn failures_of_the_guest_are_told_apart() {
        let log =
            |reason: &str| format!("running 1 test\nhits::a: {reason}\ntest hits::a ... FAILED\n");
        let judged = |reason| verdict(&log(reason), End::Failure);
        assert_eq!(judged("the kernel panicked"), noticed("hits::a"));
        assert_eq!(
            judged("the machine was reset: a triple fault"),
            noticed("hits::a")
        );
        assert_eq!(
            judged("after its end, the kernel panicked"),
            noticed("hits::a")
        );
        assert_eq!(
            judged("it hung: not over after 60 s"),
            Verdict::Hangs("hits::a".into())
        );
        assert_eq!(
            judged("it took too long: the kernel panicked"),
            Verdict::TakesTooLong("hits::a".into())
        );
        assert_eq!(
            judged("after its end, it hung: not over after 60 s"),
            Verdict::Hangs("hits::a".into())
        );
        assert_eq!(
            judged(
                "the guest did not get as far as running it: the machine was reset: a triple fault"
            ),
            Verdict::DoesNotBoot
        );
        let no_qemu = "cannot start qemu-system-x86_64";
        assert_eq!(judged(no_qemu), Verdict::Unjudged(no_qemu.into()));
    }

    #[test]
    fn only_tests_and_the_rules_notice() {
        let others = [
            Verdict::Survived,
            Verdict::NotExecuted,
            Verdict::Hangs("a".into()),
            Verdict::DoesNotBoot,
            Verdict::DoesNotBuild,
            Verdict::Unjudged("b".into()),
        ];
        let mut tally = Tally::default();
        for verdict in others
            .iter()
            .chain(&[noticed("a"), Verdict::BreaksTheRules])
        {
            tally.add(verdict);
        }
        assert!(!tally.all_noticed());
        assert_eq!(
            tally.to_string(),
            "2 of 8 mutants noticed; NOT EXECUTED by any test: 1; SURVIVED: 1; a test hangs: 1; \
             does not boot: 1; does not build: 1; \
             no verdict: 1; noticed by a test: 1; noticed by the rules of the hit path: 1"
        );
    }
}
