//! `cargo test -p tests --test bochs`: the core of the guest tests in a second emulator.
//!
//! Not part of `cargo test`, as it takes long. docs/emulators.md tells what came out.

use std::process::ExitCode;

use tests::{
    boots::Emulator,
    trials::{self, Choice},
};

fn main() -> ExitCode {
    trials::main(Emulator::Bochs, |_| Choice::Run)
}
