//! `cargo test`: the guest tests, in the looks and with the options of an ordinary test binary.
//!
//! One thread drives the guests and hands out the verdicts; each trial waits for its own. So verdicts are shown as they
//! come, and filters decide what is booted at all.

use std::{
    collections::HashMap,
    process::ExitCode,
    sync::mpsc::{self, Sender},
    thread,
};

use boot::prerequisites::{self, Install};
use libtest_mimic::{Arguments, Trial};
use tests::{Catalogue, GuestTest, Verdict};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let catalogue = prerequisites::toolchain(Install::Allowed).and_then(|()| Catalogue::build());
    let catalogue = match catalogue {
        Ok(catalogue) => catalogue,
        Err(error) => {
            eprintln!("the guest tests cannot be built: {error:#}");
            return ExitCode::FAILURE;
        }
    };

    let mut selected: Vec<&GuestTest> = Vec::new();
    let mut senders: HashMap<&str, Sender<Verdict>> = HashMap::new();
    let mut trials = Vec::new();
    for test in catalogue.tests.iter().filter(|test| !test.hidden) {
        let (sender, verdict) = mpsc::channel();
        let trial = Trial::test(&test.name, move || {
            let verdict: Verdict = verdict
                .recv()
                .unwrap_or_else(|_| Err("the harness gave no verdict on it".into()));
            Ok(verdict?)
        })
        .with_ignored_flag(test.ignored);
        if !arguments.list && !arguments.is_filtered_out(&trial) && !arguments.is_ignored(&trial) {
            selected.push(test);
            senders.insert(&test.name, sender);
        }
        trials.push(trial);
    }

    thread::scope(|scope| {
        scope.spawn(|| {
            tests::run(
                &catalogue.kernel,
                &selected,
                arguments.nocapture,
                |test, verdict| {
                    // A trial that no longer listens has nothing to be told.
                    let _ = senders[test.name.as_str()].send(verdict);
                },
            );
        });
        libtest_mimic::run(&arguments, trials).exit_code()
    })
}
