//! Writes a bootable disk image for BIOS or UEFI: `disk-image bios|uefi KERNEL RAMDISK IMAGE`.
//!
//! A program and a workspace of its own, run by `boot`, for two reasons. The `bootloader` crate compiles its boot stages
//! in its build script with `-Z build-std`: that needs `RUSTC_BOOTSTRAP=1`, which would let `#![feature]` slip into the
//! kernel if it were set for the whole workspace. And those stages take a minute or two: `boot` can check its arguments
//! and the machine first, and say what is under way.
//!
//! The image appears under its name only when it is whole: an interrupted run leaves the old one, or none.

use std::{env, fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, bail};
use bootloader::{BootConfig, DiskImageBuilder};

fn main() -> ExitCode {
    match write_image() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn write_image() -> anyhow::Result<()> {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let [firmware, kernel, ramdisk, image] = &arguments[..] else {
        bail!("usage: disk-image bios|uefi KERNEL RAMDISK IMAGE");
    };

    // The serial line belongs to the kernel's log alone, and the screen stays as the firmware left it.
    let mut config = BootConfig::default();
    config.serial_logging = false;
    config.frame_buffer_logging = false;

    let mut builder = DiskImageBuilder::new(PathBuf::from(kernel));
    builder
        .set_ramdisk(PathBuf::from(ramdisk))
        .set_boot_config(&config);

    let image = PathBuf::from(image);
    let mut unfinished = image.clone().into_os_string();
    unfinished.push(format!(".{}", std::process::id()));
    let unfinished = PathBuf::from(unfinished);
    let written = match firmware.to_str() {
        Some("bios") => builder.create_bios_image(&unfinished),
        Some("uefi") => builder.create_uefi_image(&unfinished),
        _ => bail!("the firmware is bios or uefi, not {firmware:?}"),
    }
    .and_then(|()| Ok(fs::rename(&unfinished, &image)?))
    .with_context(|| format!("cannot write {}", image.display()));
    if written.is_err() {
        // The unfinished file may not exist; its removal is a courtesy.
        let _ = fs::remove_file(&unfinished);
    }
    written
}
