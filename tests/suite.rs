//! `cargo test`: the guest tests, in QEMU.

use std::process::ExitCode;

use tests::{
    boots::Emulator,
    trials::{self, Choice},
};

fn main() -> ExitCode {
    trials::main(Emulator::Qemu, |_| Choice::Run)
}
