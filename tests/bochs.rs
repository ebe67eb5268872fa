//! `cargo test -p tests --test bochs`: the core of the guest tests in a second emulator.
//!
//! What concerns the processor is run: instructions, hits, calls and returns, interrupts, and CPUs at once. It takes long and
//! needs Bochs, so it is not part of `cargo test`. docs/emulators.md tells what came out.

use std::process::ExitCode;

use tests::{
    boots::Emulator,
    catalogue::GuestTest,
    trials::{self, Choice},
};

/// The modules of the core.
const CORE: [&str; 15] = [
    "backtraces::",
    "calls::",
    "concurrency::",
    "debugger::",
    "errors::",
    "historic::",
    "hits::",
    "instruction_forms::",
    "instruction_fuzz::",
    "machine::",
    "optimization::",
    "processor::",
    "program_probes::",
    "regressions::",
    "trouble::",
];

fn choose(test: &GuestTest) -> Choice {
    if test.second_pass || !CORE.iter().any(|module| test.name.starts_with(module)) {
        return Choice::Leave;
    }
    Choice::Run
}

fn main() -> ExitCode {
    trials::main(Emulator::Bochs, choose)
}
