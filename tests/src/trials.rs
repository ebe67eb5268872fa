//! The guest tests as an ordinary test binary: its looks, its options, its exit status.
//!
//! One thread drives the guests and hands out the verdicts, and each trial waits for its own. So
//! verdicts are shown as they come, and filters decide what is booted at all.

use std::{
    collections::HashMap,
    process::ExitCode,
    sync::mpsc::{self, Sender},
    thread,
};

use anyhow::Result;
use boot::prerequisites::{self, Install};
use libtest_mimic::{Arguments, Completion, Trial};

use crate::{
    boots::{self, Emulator},
    catalogue::{Catalogue, GuestTest},
    transcript::Verdict,
};

/// How a list of trials treats a test of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    Run,
    /// Runs with these arguments after its own on the kernel command line. If a name occurs
    /// several times, the last one counts.
    RunWith(&'static str),
    /// Is not in the list.
    Leave,
    /// Is in the list, with the reason for which it does not run here.
    Skip(&'static str),
}

/// Runs those of the guest tests of `build` that `choose` and the program's arguments select, in
/// `emulator`.
pub fn main(
    emulator: Emulator,
    build: impl FnOnce() -> Result<Catalogue>,
    choose: impl Fn(&GuestTest) -> Choice,
) -> ExitCode {
    let arguments = Arguments::from_args();
    let catalogue = prerequisites::toolchain(Install::Allowed).and_then(|()| build());
    let catalogue = match catalogue {
        Ok(catalogue) => catalogue,
        Err(error) => {
            eprintln!("the guest tests cannot be built: {error:#}");
            return ExitCode::FAILURE;
        }
    };

    let mut selected: Vec<GuestTest> = Vec::new();
    let mut senders: HashMap<&str, Sender<Verdict>> = HashMap::new();
    let mut trials = Vec::new();
    for test in catalogue.tests.iter().filter(|test| !test.hidden) {
        let appended = match choose(test) {
            Choice::Leave => continue,
            Choice::Skip(reason) => {
                trials.push(Trial::ignorable_test(&test.name, move || {
                    Ok(Completion::ignored_with(reason))
                }));
                continue;
            }
            Choice::Run => "",
            Choice::RunWith(arguments) => arguments,
        };
        let (sender, verdict) = mpsc::channel();
        let trial = Trial::test(&test.name, move || {
            let verdict: Verdict = verdict
                .recv()
                .unwrap_or_else(|_| Err("the harness gave no verdict on it".into()));
            Ok(verdict?)
        })
        .with_ignored_flag(test.ignored);
        if !arguments.list && !arguments.is_filtered_out(&trial) && !arguments.is_ignored(&trial) {
            let mut test_here = test.clone();
            test_here.boot.append(appended);
            selected.push(test_here);
            senders.insert(&test.name, sender);
        }
        trials.push(trial);
    }
    selected.sort_by(|a, b| a.boot.cmp(&b.boot));
    let selected: Vec<&GuestTest> = selected.iter().collect();

    thread::scope(|scope| {
        let driver = scope.spawn(|| {
            boots::run(
                emulator,
                &catalogue.kernel,
                &selected,
                arguments.nocapture,
                |test, verdict| {
                    // The test's line says only that it failed. The rest comes when all are over.
                    if let Err(failure) = &verdict {
                        let reason = failure.lines().next().unwrap_or_default();
                        eprintln!("{}: {reason}", test.name);
                    }
                    // A trial that no longer listens needs no verdict.
                    let _ = senders[test.name.as_str()].send(verdict);
                },
            )
        });
        let conclusion = libtest_mimic::run(&arguments, trials);
        if let Ok(times) = driver.join()
            && !selected.is_empty()
        {
            eprintln!("{times}\n");
        }
        conclusion.exit_code()
    })
}
