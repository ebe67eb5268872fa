//! `cargo test`: the probes' suite in the second kernel, in QEMU.
//!
//! A list in docs/testing.md names the tests that this kernel cannot run, and why. An entry that is
//! no test of the suite is refused.

use std::process::ExitCode;

use anyhow::ensure;
use tests::{
    Catalogue, Document, GuestTest,
    boots::Emulator,
    catalogue::SECOND,
    trials::{self, Choice},
};

/// What stands before the list.
const LIST: &str = "These tests do not run in the second kernel:";

fn main() -> ExitCode {
    let list: &[(String, String)] = Document::open("docs/testing.md").entries(LIST).leak();
    let is = |test: &GuestTest, name: &str| {
        let rest = test.name.strip_prefix(SECOND).unwrap_or_default();
        let rest = rest.strip_prefix("suite::").unwrap_or_default();
        let rest = rest.strip_prefix(name);
        rest.is_some_and(|way| way.is_empty() || way.starts_with("::"))
    };
    let build = || {
        let catalogue = Catalogue::build_second()?;
        for (name, _) in list {
            let is_test = catalogue.tests.iter().any(|test| is(test, name));
            ensure!(
                is_test,
                "docs/testing.md: no test of the suite is called {name}"
            );
        }
        Ok(catalogue)
    };
    trials::main(Emulator::Qemu, build, |test| {
        let entry = list.iter().find(|(name, _)| is(test, name));
        entry.map_or(Choice::Run, |(_, reason)| Choice::Skip(reason))
    })
}
