//! Nested cargo runs: the kernel, the user programs and the tool that writes disk images.
//!
//! The outer cargo's lock is free while its `run` or `test` child works, and ours is another directory anyway. Flags
//! from the environment that are meant for the outer build are taken out: `RUSTFLAGS` would replace the flags of the
//! guest's target in `.cargo/config.toml`, and `RUSTC_BOOTSTRAP` would admit unstable features to the kernel.

use std::{
    env,
    io::{IsTerminal, Read, stderr},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{children, layout, progress};

/// The features of the package `image` that a binary of it is built with.
///
/// The kernel whose speed is measured has no checks that only help to find mistakes.
fn features(binary: &str) -> &'static str {
    match binary {
        "benchkernel" => "bench",
        "testkernel" => "handler-checks,tests",
        _ => "handler-checks",
    }
}

/// What is made once in a run of this program: asking cargo costs half a second, also when there is nothing to do.
struct Once<T>(Mutex<Option<T>>);

impl<T: Clone> Once<T> {
    const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Returns what was made, or makes it.
    fn get_or_try(&self, make: impl FnOnce() -> Result<T>) -> Result<T> {
        // A panic elsewhere left it made or not.
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = &*made {
            return Ok(made.clone());
        }
        Ok(made.insert(make()?).clone())
    }
}

/// Builds a kernel binary of the package `image`, optimised, and returns the ELF with debug info.
pub fn build_kernel(binary: &str) -> Result<PathBuf> {
    let mut command = guest_build("image");
    command
        .args(["--bin", binary, "--no-default-features"])
        .args(["--features", features(binary)]);
    let executables = run(&mut command, &format!("building the kernel ({binary})"))?;
    executables
        .into_iter()
        .next()
        .with_context(|| format!("cargo named no executable for the kernel binary {binary}"))
}

/// Builds the user programs, once in a run, and returns their ELFs; none, if the workspace has no package for them.
pub fn build_programs() -> Result<Vec<PathBuf>> {
    static PROGRAMS: Once<Vec<PathBuf>> = Once::new();
    PROGRAMS.get_or_try(make_programs)
}

fn make_programs() -> Result<Vec<PathBuf>> {
    if !layout::workspace().join("user/Cargo.toml").exists() {
        return Ok(Vec::new());
    }
    run(
        guest_build("user").arg("--bins"),
        "building the user programs",
    )
}

/// Builds the tool that writes disk images, once in a run, and returns it.
pub fn build_disk_image_tool() -> Result<PathBuf> {
    static TOOL: Once<PathBuf> = Once::new();
    TOOL.get_or_try(make_disk_image_tool)
}

fn make_disk_image_tool() -> Result<PathBuf> {
    let manifest = layout::workspace().join("boot/disk-image/Cargo.toml");
    let mut command = cargo();
    command
        .args(["build", "--locked", "--manifest-path"])
        .arg(manifest)
        .env("RUSTC_BOOTSTRAP", "1");
    run(
        &mut command,
        "building the boot loader (a minute or two, the first time only)",
    )?
    .pop()
    .context("cargo named no executable for the disk image tool")
}

fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(layout::workspace());
    for flags_of_the_outer_build in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_BUILD_TARGET",
        "RUSTC_BOOTSTRAP",
        "RUSTC_WORKSPACE_WRAPPER",
    ] {
        command.env_remove(flags_of_the_outer_build);
    }
    command
}

fn guest_build(package: &str) -> Command {
    let mut command = cargo();
    command
        .args(["build", "--release", "--target", layout::GUEST_TARGET])
        .args(["--package", package]);
    command
}

/// Runs a `cargo build` and returns the executables that it made or found fresh.
fn run(command: &mut Command, what: &str) -> Result<Vec<PathBuf>> {
    command
        .args(["--quiet", "--message-format", "json-render-diagnostics"])
        .arg("--target-dir")
        .arg(layout::nested_target())
        .args([
            "--color",
            if stderr().is_terminal() {
                "always"
            } else {
                "never"
            },
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // A second one would wait for the first one's lock, and say the same.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (status, messages, diagnostics) = progress::step(what, || -> Result<_> {
        let cargo = children::spawn(command).context("cannot start cargo")?;
        let stdout = cargo.take_stdout().expect("piped above");
        let mut stderr = cargo.take_stderr().expect("piped above");
        let (messages, diagnostics) = thread::scope(|scope| {
            let diagnostics = scope.spawn(move || {
                let mut text = Vec::new();
                stderr.read_to_end(&mut text).map(|_| text)
            });
            let messages = std::io::read_to_string(stdout);
            (messages, diagnostics.join().expect("reading cannot panic"))
        });
        Ok((cargo.wait()?, messages?, diagnostics?))
    })?;
    progress::show(String::from_utf8_lossy(&diagnostics));
    if !status.success() {
        bail!("{what} failed: see cargo's messages above");
    }
    Ok(executables(&messages))
}

fn executables(messages: &str) -> Vec<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|message| message.get("executable")?.as_str().map(PathBuf::from))
        .collect()
}

/// Runs llvm-objcopy of the toolchain on `input` with one option that says what to strip.
pub fn strip(options: &[&str], input: &Path, output: &Path) -> Result<()> {
    let objcopy = crate::prerequisites::llvm_tool("llvm-objcopy")?;
    layout::replace(output, |unfinished| {
        let (status, message) = children::run_quietly(
            Command::new(objcopy)
                .args(options)
                .args([input, unfinished]),
        )
        .context("cannot run llvm-objcopy")?;
        if !status.success() {
            bail!("llvm-objcopy failed: {}", message.trim());
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_read_from_cargo_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"lib"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"init"},"executable":"/t/init"}"#,
            "\nnot json\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        assert_eq!(executables(messages), [PathBuf::from("/t/init")]);
    }
}
