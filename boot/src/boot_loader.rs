//! The boot loader's stages, built for the chosen firmware.
//!
//! They are the packages of the crate `bootloader`. Its build script builds them all at once,
//! without progress, and each with a `core` of its own. Here they are built one by one, each as
//! cheaply as it can be:
//!
//! | stage | from | its `core` |
//! |---|---|---|
//! | boot sector | `bootloader-x86_64-bios-boot-sector` | for 16-bit code |
//! | stage 2 | `bootloader-x86_64-bios-stage-2` | the same, compiled once for both |
//! | stage 3 | `boot/stage-3` of this workspace | none |
//! | stage 4 | `bootloader-x86_64-bios-stage-4` | the toolchain's for the guest |
//! | UEFI | `bootloader-x86_64-uefi` | compiled |
//!
//! All need `RUSTC_BOOTSTRAP`, because they use unstable features or a `core` compiled by cargo.
//! Only the cargo runs for them have it. A stage is built again when its recipe, the command line
//! that builds it, has changed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{cargo, firmware::Firmware, layout};

/// The version of all packages. 0.11.16 and later need a nightly toolchain of 2026.
const VERSION: &str = "0.11.15";

/// A boot loader, ready to be put into disk images.
#[derive(Clone, Debug)]
pub enum BootLoader {
    Bios {
        /// One sector, with an empty partition table.
        boot_sector: Vec<u8>,
        stage_2: Vec<u8>,
        stage_3: Vec<u8>,
        stage_4: Vec<u8>,
    },
    Uefi {
        /// The program that the firmware starts.
        program: Vec<u8>,
    },
}

impl BootLoader {
    /// Builds the missing stages of the registry for `firmware`: those that take long.
    pub fn install(firmware: Firmware) -> Result<()> {
        match firmware {
            Firmware::Bios => {
                boot_sector()?;
                stage_2()?;
                stage_4()?;
            }
            Firmware::Uefi => {
                uefi()?;
            }
        }
        Ok(())
    }

    /// Builds the missing stages for `firmware`.
    pub fn build(firmware: Firmware) -> Result<Self> {
        let read = |path: PathBuf| {
            fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        Ok(match firmware {
            Firmware::Bios => Self::Bios {
                boot_sector: read(boot_sector()?)?,
                stage_2: read(stage_2()?)?,
                stage_3: read(stage_3()?)?,
                stage_4: read(stage_4()?)?,
            },
            Firmware::Uefi => Self::Uefi {
                program: read(uefi()?)?,
            },
        })
    }
}

/// Completes the command that builds a stage.
type Completion = dyn Fn(&mut Command);

/// 16-bit code, made small because the boot sector has only 446 bytes.
///
/// `core` has the same options for both stages. Otherwise it would be compiled twice.
fn real_mode(overflow_checks: bool) -> impl Fn(&mut Command) {
    move |command| {
        command
            .arg("--target")
            .arg(real_mode_target())
            .args(["-Zjson-target-spec", "-Zbuild-std=core"])
            .arg("-Zbuild-std-features=compiler-builtins-mem")
            .args(["--config", "profile.release.opt-level='z'"])
            .args(["--config", "profile.release.codegen-units=1"]);
        if overflow_checks {
            command.args([
                "--config",
                "profile.release.package.bootloader-x86_64-bios-stage-2.overflow-checks=true",
            ]);
        }
    }
}

fn real_mode_target() -> PathBuf {
    layout::workspace().join("boot/targets/i386-code16.json")
}

/// 64-bit code for the address that the linker's script names. It runs for a moment, so it is made
/// in the way that takes the compiler the least time.
fn long_mode(command: &mut Command) {
    command
        .args(["--target", layout::GUEST_TARGET])
        .args(["--config", "profile.release.overflow-checks=true"])
        .args(["--config", "profile.release.opt-level='s'"])
        .args(["--config", "profile.release.codegen-units=1"])
        .env(
            "CARGO_TARGET_X86_64_UNKNOWN_NONE_RUSTFLAGS",
            "-Crelocation-model=static",
        );
}

fn boot_sector() -> Result<PathBuf> {
    bios_stage("boot-sector", &real_mode(false))
}

fn stage_2() -> Result<PathBuf> {
    bios_stage("stage-2", &real_mode(true))
}

fn stage_4() -> Result<PathBuf> {
    bios_stage("stage-4", &long_mode)
}

/// Builds a stage for BIOS and returns its flat binary.
fn bios_stage(name: &str, complete: &Completion) -> Result<PathBuf> {
    let package = format!("bootloader-x86_64-bios-{name}");
    let what = format!("building the boot loader ({name})");
    install(&package, &format!("{name}.bin"), &what, complete, flatten)
}

fn uefi() -> Result<PathBuf> {
    install(
        "bootloader-x86_64-uefi",
        "uefi.efi",
        "building the boot loader (UEFI)",
        &|command| {
            command
                .args(["--target", "x86_64-unknown-uefi", "-Zbuild-std=core"])
                .arg("-Zbuild-std-features=compiler-builtins-mem");
        },
        |built, program| {
            layout::replace(program, |unfinished| {
                fs::copy(built, unfinished)?;
                Ok(())
            })
        },
    )
}

/// Builds our own stage 3 and returns its flat binary.
fn stage_3() -> Result<PathBuf> {
    let built = cargo::build_stage_3()?;
    let flat = directory()?.join("stage-3.bin");
    if !layout::is_current(&flat, &[&built]) {
        flatten(&built, &flat)?;
    }
    Ok(flat)
}

fn flatten(built: &Path, flat: &Path) -> Result<()> {
    cargo::objcopy(&["--output-target=binary"], built, flat)
}

/// Builds `package` of the registry and makes `stage` from it by `convert`, unless the stage is
/// there already. Returns its path.
fn install(
    package: &str,
    stage: &str,
    what: &str,
    complete: &Completion,
    convert: impl FnOnce(&Path, &Path) -> Result<()>,
) -> Result<PathBuf> {
    let directory = directory()?;
    let mut command = cargo::install(package, VERSION, &directory);
    complete(&mut command);
    let stage = directory.join(stage);
    let recipe = stage.with_extension("recipe");
    layout::write_if_changed(&recipe, text(&command).as_bytes())?;
    if !layout::is_current(&stage, &[recipe, real_mode_target()]) {
        cargo::run(cargo::Nested::Install, &mut command, what)?;
        let suffix = stage.extension().filter(|suffix| *suffix == "efi");
        let mut built = directory.join("bin").join(package);
        built.set_extension(suffix.unwrap_or_default());
        convert(&built, &stage)?;
    }
    Ok(stage)
}

/// Arguments and variables of `command`: all that a stage depends on. The program is left out,
/// because any cargo makes the same stage.
fn text(command: &Command) -> String {
    let words: Vec<_> = command.get_args().collect();
    let variables: Vec<_> = command.get_envs().collect();
    format!("{words:?}\n{variables:?}\n")
}

fn directory() -> Result<PathBuf> {
    let directory = layout::artifacts()?.join("boot-loader");
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    Ok(directory)
}
