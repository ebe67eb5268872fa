//! `cargo run`: builds the kernel, boots it in QEMU, and ends with the guest's verdict.
//!
//! `cargo run -- trace …` and `--record` are the tracer's. It is a program of its own, because it
//! needs crates that a plain run does not. It is built at its first use, and takes the place of
//! this one.

#![forbid(unsafe_code)]

use std::{env, ffi::OsString, fs, path::Path, process::ExitCode};

use anyhow::{Context, Result};
use boot::{
    cargo::Flags,
    children,
    firmware::Firmware,
    guest,
    image::Kernel,
    options::{Checked, Example, Options, Subcommands},
    prerequisites,
    progress::say,
    tracer,
};

/// Exit status after Ctrl-C, as shells report it.
const INTERRUPTED: i32 = 128 + 2;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    if let Some((tool, arguments)) = tracer::arguments(&arguments) {
        return match end_children_on_signal().and_then(|()| tracer::run(tool, &arguments)) {
            Ok(never) => match never {},
            Err(error) => {
                say(format_args!("{error:#}"));
                ExitCode::FAILURE
            }
        };
    }
    let options = Options::from_arguments();
    let done = end_children_on_signal().and_then(|()| match &options.command {
        Some(Subcommands::Image { directory }) => write_images(&options, directory),
        // The tracer's arguments are not taken apart here.
        Some(Subcommands::Trace { .. }) | None => run(&options),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Makes Ctrl-C, SIGTERM and SIGHUP end our children before they end us.
fn end_children_on_signal() -> Result<()> {
    ctrlc::set_handler(|| {
        children::kill_all();
        say("interrupted");
        std::process::exit(INTERRUPTED);
    })
    .context("cannot handle Ctrl-C")
}

/// Builds the kernel, and at the same time the boot loader for `firmware`.
fn build_kernel(options: &Options, firmware: Firmware) -> Result<Kernel> {
    let install = options.build.install();
    let kernel = match options.kernel {
        None => Kernel::build_with_loader(install, firmware)?,
        Some(example) => {
            prerequisites::toolchain(install)?;
            match example {
                Example::Minimal => Kernel::build_minimal(Flags::Tree)?,
                Example::Second => Kernel::build_second()?,
            }
        }
    };
    say(format_args!(
        "kernel with debug info: {}",
        kernel.debug_elf.display()
    ));
    Ok(kernel)
}

fn write_images(options: &Options, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    let kernel = build_kernel(options, Firmware::Bios)?;
    for firmware in [Firmware::Bios, Firmware::Uefi] {
        let image = directory.join(format!("{firmware}.img"));
        kernel.write_image(firmware, &options.cmdline(), &image)?;
        say(format_args!("wrote {}", image.display()));
    }
    Ok(())
}

fn run(options: &Options) -> Result<()> {
    let install = options.build.install();
    let firmware = options.machine.firmware();
    // Before the build, which takes minutes the first time.
    prerequisites::qemu(install)?;
    if firmware == Firmware::Uefi {
        prerequisites::ovmf(install)?;
    }
    let disk = match options.machine.disk() {
        Some(disk) => disk,
        None => build_kernel(options, firmware)?.image(firmware)?,
    };
    let machine = options.machine(disk);
    if machine.gdb {
        say("waiting for gdb: `target remote :1234`");
    }
    guest::run(&machine, install, options.machine.timeout())
}
