//! The firmware of a machine.

use std::fmt;

use clap::ValueEnum;

/// The firmware that loads the boot loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Firmware {
    /// SeaBIOS, which comes with QEMU
    Bios,
    /// OVMF
    Uefi,
}

impl fmt::Display for Firmware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bios => "bios",
            Self::Uefi => "uefi",
        })
    }
}
