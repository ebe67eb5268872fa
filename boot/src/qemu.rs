//! The machine: QEMU's command line.
//!
//! There are no default devices (`-nodefaults`). The guest uses a serial port for its log,
//! `isa-debug-exit` at port 0xf4 for its verdict, fw_cfg for its command line, and a disk with its
//! image. There is also a VGA card, because the BIOS stages of the boot loader never reach the
//! kernel without one. Disks and firmware variables are opened as snapshots: nothing is written to
//! them, and several machines may use them at once.

use std::{
    fmt,
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use anyhow::Result;
use clap::ValueEnum;
use rustix::io::{FdFlags, fcntl_setfd};

use crate::{
    firmware::Firmware,
    prerequisites::{self, Install},
};

/// How the guest's instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Accelerator {
    /// Emulation; works everywhere
    Tcg,
    /// The host's processor, through /dev/kvm
    Kvm,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcg => "tcg",
            Self::Kvm => "kvm",
        })
    }
}

/// Where the guest's serial line goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serial {
    /// To standard output, and from standard input.
    Output,
    /// To and from the terminal, together with QEMU's monitor: Ctrl-A X quits.
    Terminal,
}

/// A machine to be started.
#[derive(Clone, Debug)]
pub struct Machine {
    pub firmware: Firmware,
    pub accelerator: Accelerator,
    /// Number of virtual CPUs, at least 1.
    pub cpus: u32,
    pub memory_mib: u32,
    /// One tick of the time stamp counter per guest instruction: runs repeat exactly.
    pub icount: bool,
    /// Wait for gdb on TCP port 1234.
    pub gdb: bool,
    pub serial: Serial,
    /// The kernel command line.
    pub cmdline: String,
    /// The disk image.
    pub disk: PathBuf,
    /// Arguments after all others.
    pub further: Vec<String>,
    /// Files that QEMU inherits. `further` names them by their numbers.
    pub inherited: Vec<Arc<OwnedFd>>,
}

impl Machine {
    /// CPUs of a machine unless an option says how many.
    pub const CPUS: u32 = 2;

    /// Returns the machine that the kernel is developed on, with `disk` to boot from.
    pub fn new(disk: PathBuf) -> Self {
        Self {
            firmware: Firmware::Bios,
            accelerator: Accelerator::Tcg,
            cpus: Self::CPUS,
            memory_mib: 256,
            icount: false,
            gdb: false,
            serial: Serial::Output,
            cmdline: String::new(),
            disk,
            further: Vec::new(),
            inherited: Vec::new(),
        }
    }

    /// Gives it a second serial port, to which whoever connects to the socket at `path` talks.
    pub fn listen_at(&mut self, path: &Path) {
        let socket = escaped_path(path);
        self.further.extend([
            "-chardev".into(),
            format!("socket,id=trace,path={socket},server=on,wait=off"),
            "-serial".into(),
            "chardev:trace".into(),
        ]);
    }

    /// Returns the command that starts this machine. Installs QEMU and firmware first if they are
    /// missing.
    pub fn command(&self, install: Install) -> Result<Command> {
        let mut command = Command::new(prerequisites::qemu(install)?);
        command.args([
            "-nodefaults",
            "-no-reboot",
            "-vga",
            "std",
            "-display",
            "none",
        ]);
        command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"]);
        command.args(match self.accelerator {
            Accelerator::Tcg => ["-accel", "tcg", "-cpu", "max"],
            Accelerator::Kvm => ["-accel", "kvm", "-cpu", "host"],
        });
        command.args(["-smp", &self.cpus.to_string()]);
        command.args(["-m", &self.memory_mib.to_string()]);
        command.args(match self.serial {
            Serial::Output => ["-serial", "stdio"],
            Serial::Terminal => ["-serial", "mon:stdio"],
        });
        if self.firmware == Firmware::Uefi {
            let ovmf = prerequisites::ovmf(install)?;
            command.args([
                "-drive",
                &format!(
                    "if=pflash,unit=0,format=raw,readonly=on,file={}",
                    escaped_path(&ovmf.code)
                ),
            ]);
            command.args([
                "-drive",
                &format!(
                    "if=pflash,unit=1,format=raw,snapshot=on,file={}",
                    escaped_path(&ovmf.variables)
                ),
            ]);
        }
        // On AHCI, because the BIOS reads from it in blocks. From an IDE disk it reads word
        // by word, which takes seconds.
        command.args([
            "-drive",
            &format!(
                "if=none,id=disk,format=raw,snapshot=on,file={}",
                escaped_path(&self.disk)
            ),
        ]);
        command.args(["-device", "ahci,id=ahci"]);
        command.args(["-device", "ide-hd,drive=disk,bus=ahci.0"]);
        if !self.cmdline.is_empty() {
            command.args([
                "-fw_cfg",
                &format!("name=opt/cmdline,string={}", escaped(&self.cmdline)),
            ]);
        }
        if self.icount {
            command.args(["-icount", "shift=0"]);
        }
        if self.gdb {
            command.args(["-gdb", "tcp:127.0.0.1:1234", "-S"]);
        }
        command.args(&self.further);
        Ok(self.inherit(command))
    }

    fn inherit(&self, mut command: Command) -> Command {
        if !self.inherited.is_empty() {
            // Ctrl-C ends a trace by a message, so the terminal must not send the signal to QEMU.
            command.process_group(0);
            let files = self.inherited.clone();
            let keep_open = move || {
                for file in &files {
                    fcntl_setfd(file, FdFlags::empty())?;
                }
                Ok(())
            };
            // SAFETY: between fork and exec the closure makes system calls and allocates nothing.
            unsafe { command.pre_exec(keep_open) };
        }
        command
    }
}

/// Doubles the commas, because a single one ends a value in QEMU's options.
fn escaped(value: &str) -> String {
    value.replace(',', ",,")
}

fn escaped_path(path: &Path) -> String {
    escaped(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn arguments(machine: &Machine) -> Vec<String> {
        let command = machine.command(Install::Forbidden).unwrap();
        command
            .get_args()
            .map(|argument| argument.to_str().unwrap().to_string())
            .collect()
    }

    #[test]
    fn commas_in_paths_and_command_line_are_doubled() {
        let machine = Machine {
            cmdline: "modules=a,b".into(),
            ..Machine::new("/a,b.img".into())
        };
        let arguments = arguments(&machine);
        let has = |wanted: &str| arguments.iter().any(|argument| argument == wanted);
        assert!(has("name=opt/cmdline,string=modules=a,,b"), "{arguments:?}");
        assert!(
            has("if=none,id=disk,format=raw,snapshot=on,file=/a,,b.img"),
            "{arguments:?}"
        );
    }

    #[test]
    fn the_size_of_the_machine_is_what_was_asked_for() {
        let machine = Machine {
            memory_mib: 640,
            cpus: 5,
            ..Machine::new("disk.img".into())
        };
        let arguments = arguments(&machine);
        let value_of = |option: &str| {
            let at = arguments.iter().position(|argument| argument == option);
            at.map(|at| arguments[at + 1].as_str())
        };
        assert_eq!(value_of("-m"), Some("640"));
        assert_eq!(value_of("-smp"), Some("5"));
    }

    #[test]
    fn only_the_files_that_are_named_are_inherited() {
        let file = || Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let (given, kept) = (file(), file());
        let number = |file: &Arc<OwnedFd>| file.as_raw_fd().to_string();
        let machine = Machine {
            inherited: vec![given.clone()],
            ..Machine::new("disk.img".into())
        };
        // A shell in place of QEMU, with the same closures.
        let mut command = machine.inherit(Command::new("sh"));
        command.args(["-c", "test -e /dev/fd/$1 && ! test -e /dev/fd/$2", "sh"]);
        command.args([number(&given), number(&kept)]);
        assert!(command.status().unwrap().success());
    }

    #[test]
    fn an_empty_command_line_is_left_out() {
        let arguments = arguments(&Machine::new("disk.img".into()));
        assert!(
            !arguments.iter().any(|argument| argument == "-fw_cfg"),
            "QEMU refuses an empty string: {arguments:?}"
        );
    }
}
