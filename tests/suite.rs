//! `cargo test`: the guest tests, in QEMU.

use std::process::ExitCode;

use tests::{
    Catalogue,
    boots::Emulator,
    trials::{self, Choice},
};

fn main() -> ExitCode {
    trials::main(Emulator::Qemu, Catalogue::build, |_| Choice::Run)
}
