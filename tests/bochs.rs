//! `cargo test -p tests --test bochs`: the core of the guest tests in a second emulator.
//!
//! The core is the part that concerns the processor: instructions, hits, calls and returns,
//! interrupts, and several CPUs at once. It takes long and needs Bochs, so it is not part of
//! `cargo test`. docs/emulators.md has the results.

use std::process::ExitCode;

use tests::{
    Catalogue,
    boots::Emulator,
    catalogue::GuestTest,
    trials::{self, Choice},
};

/// The modules of the core.
const CORE: [&str; 19] = [
    "backtraces::",
    "calls::",
    "concurrency::",
    "debugger::",
    "disturbed_hits::",
    "historic::",
    "hits::",
    "instruction_forms::",
    "instruction_fuzz::",
    "interrupts_and_nmis::",
    "optimization::",
    "processor_single_step::",
    "program_probes::",
    "protection::",
    "registration_errors::",
    "regressions::",
    "stores_to_text::",
    "stress::",
    "unusual_instructions::",
];

/// Tests whose size is a number on the command line, and a size that takes minutes here.
const SMALLER: [(&str, &str); 2] = [
    (
        "instruction_fuzz::random_instructions_do_the_same_probed_and_unprobed",
        "fuzz.count=10000",
    ),
    (
        "stress::random_operations_agree_with_a_model",
        "stress.operations=250",
    ),
];

fn choose(test: &GuestTest) -> Choice {
    if test.second_pass || !CORE.iter().any(|module| test.name.starts_with(module)) {
        return Choice::Leave;
    }
    let smaller = SMALLER.iter().find(|(name, _)| test.name == *name);
    smaller.map_or(Choice::Run, |(_, arguments)| Choice::RunWith(arguments))
}

fn main() -> ExitCode {
    trials::main(Emulator::Bochs, Catalogue::build, choose)
}
