//! The second machine: Bochs and its configuration.
//!
//! Bochs interprets instruction by instruction and gives a second opinion on what a processor does.
//! It has none of QEMU's channels. The kernel command line and a script of `trace` come from files
//! in the disk image, and the verdict is the last line on the serial port. Time is counted in
//! instructions, so a run repeats exactly.
//!
//! All options are on its command line (bochs(1), bochsrc(5)), so that no file is left behind. The
//! serial line goes to standard output, where Bochs itself writes too: a greeting before the
//! kernel's first line, and messages of its debugger after the last one. Some distributions build
//! this debugger in. It waits for a command, which the caller must type ([`GO`]).

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use crate::prerequisites::{self, Install};

/// The command for Bochs's debugger, if it is built in. Otherwise nothing reads it.
pub const GO: &str = "c\n";

/// Bochs's words on standard error when a fault finds no handler and the processor shuts down.
pub const TRIPLE_FAULT: &str = "exception with no resolution";

/// Bochs's words before the reason for which it gives up.
pub const LAST_WORDS: &str = "Bochs is exiting with the following message:";

/// Emulated instructions in a second of the guest.
const INSTRUCTIONS_PER_SECOND: u32 = 50_000_000;

/// A machine to be started.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Number of CPUs, at least 1.
    pub cpus: u32,
    pub memory_mib: u32,
    /// The disk image, from [`Kernel::bochs_image`](crate::image::Kernel::bochs_image). It is only
    /// read.
    pub disk: PathBuf,
    /// The TCP port of this machine that takes the bytes of the second serial port.
    pub answers: Option<u16>,
}

impl Machine {
    /// Returns the command that starts this machine. Installs Bochs first if it is missing.
    pub fn command(&self, install: Install) -> Result<Command> {
        let mut command = Command::new(prerequisites::bochs(install)?);
        // No menu, and an empty configuration file.
        command.args(["-q", "-f", "/dev/null"]);
        command.args([
            // Bochs knows its own directory. `fastboot` saves the seconds in which the BIOS
            // waits for a key.
            "romimage: file=$BXSHARE/BIOS-bochs-latest, options=fastboot",
            "vgaromimage: file=$BXSHARE/VGABIOS-lgpl-latest",
            "config_interface: textconfig",
            // This display is the one that works without a screen.
            "display_library: sdl2",
            "boot: disk",
            "vga: extension=vbe",
            "clock: sync=none, time0=0",
            "com1: enabled=1, mode=file, dev=/dev/stdout",
            "log: /dev/stderr",
            "info: action=ignore",
            "panic: action=fatal",
        ]);
        command.arg(format!("megs: {}", self.memory_mib));
        command.arg(format!(
            "cpu: model=corei7_skylake_x, count={}, ips={INSTRUCTIONS_PER_SECOND}, \
                 reset_on_triple_fault=0, ignore_bad_msrs=0",
            self.cpus
        ));
        if let Some(port) = self.answers {
            command.arg(format!(
                "com2: enabled=1, mode=socket-client, dev=127.0.0.1:{port}"
            ));
        }
        // Volatile: writes are lost at the end, and no lock is left behind.
        command.arg(format!(
            "ata0-master: type=disk, mode=volatile, path=\"{}\", cylinders=0",
            self.disk.display()
        ));
        command.envs([("SDL_VIDEODRIVER", "dummy"), ("SDL_AUDIODRIVER", "dummy")]);
        Ok(command)
    }
}
