//! Nested cargo runs: the kernel, the user programs and the boot loader.
//!
//! While the outer cargo runs our program or tests, its lock is free. We use another directory
//! anyway. Two variables of the environment are meant for the outer build and are taken out:
//! `RUSTFLAGS` would replace the flags of the guest's target in `.cargo/config.toml`, and
//! `RUSTC_BOOTSTRAP` would permit unstable features in the kernel.

use std::{
    collections::HashMap,
    env,
    io::{self, IsTerminal, Read, stderr},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::{Context, Result, bail};
use tinyjson::JsonValue;

use crate::{
    children, layout,
    progress::{self, Count},
};

/// The kernel that users run, a binary of the package `image`.
pub const KERNEL: &str = "kernel";
/// The package and the binary of stage 3 of the boot loader.
const STAGE_3: &str = "stage-3";

/// The features of the package `image` for one of its binaries.
///
/// The kernel that measures speed has no checks that only help to find mistakes.
fn features(binary: &str) -> &'static str {
    match binary {
        "benchkernel" => "image/bench",
        "testkernel" => "image/handler-checks,image/tests",
        _ => "image/handler-checks",
    }
}

/// A result that is made once in a run of this program, because asking cargo costs a tenth of a
/// second even when there is nothing to do.
struct Once<T>(Mutex<Option<T>>);

impl<T: Clone> Once<T> {
    const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Returns the result, and makes it first if needed.
    fn get_or_try(&self, make: impl FnOnce() -> Result<T>) -> Result<T> {
        // A panic elsewhere left it made or not.
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = &*made {
            return Ok(made.clone());
        }
        Ok(made.insert(make()?).clone())
    }
}

/// The user programs, once they are built.
static PROGRAMS: Once<Vec<PathBuf>> = Once::new();
/// Stage 3 of the boot loader, once it is built.
static BUILT_STAGE_3: Once<PathBuf> = Once::new();

/// Builds a kernel binary of the package `image`, optimised, and returns the ELF with debug info.
///
/// With [`KERNEL`] it builds the user programs and stage 3 of the boot loader in the same run of
/// cargo, because an image needs them, too.
pub fn build_kernel(binary: &str) -> Result<PathBuf> {
    let mut command = guest_build("image");
    command
        .arg("--no-default-features")
        .args(["--features", features(binary)]);
    if binary == KERNEL {
        // All programs of these packages. Other kernels are left out, because their features are.
        command.args(["--bins", "--package", STAGE_3]);
        if has_programs() {
            command.args(["--package", "user"]);
        }
    } else {
        command.args(["--bin", binary]);
    }
    let what = format!("building the kernel ({binary})");
    let mut executables = run(Nested::Build, &mut command, &what)?;
    let mut take = |name: &str| {
        let found = executables.iter().position(|path| path.ends_with(name));
        let found = found.map(|index| executables.remove(index));
        found.with_context(|| format!("cargo named no executable for {name}"))
    };
    let kernel = take(binary)?;
    if binary == KERNEL {
        let stage_3 = take(STAGE_3)?;
        BUILT_STAGE_3.get_or_try(|| Ok(stage_3))?;
        PROGRAMS.get_or_try(|| Ok(executables))?;
    }
    Ok(kernel)
}

/// The flags that the compiler gets for a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flags {
    /// Those of `.cargo/config.toml`: fixed addresses in the top 2 GiB.
    Tree,
    /// None. rustc's own for the target make the kernel position-independent.
    Rustc,
}

/// Builds a package that is a kernel with probes, with these features, and returns its ELF. It lies
/// where that with other features would.
pub fn build_other_kernel(package: &str, features: &[&str], flags: Flags) -> Result<PathBuf> {
    let mut command = guest_build(package);
    command.args(["--features", &features.join(",")]);
    let kind = match flags {
        Flags::Tree => Nested::Build,
        Flags::Rustc => {
            command.env("CARGO_ENCODED_RUSTFLAGS", "");
            Nested::RustcFlags
        }
    };
    run(
        kind,
        &mut command,
        &format!("building the kernel ({package})"),
    )?
    .pop()
    .with_context(|| format!("cargo named no executable for {package}"))
}

/// Builds the program `name` for this machine.
///
/// It has the profile and the features of the build of this program: no package is named, so that
/// cargo chooses the features for all. So the crates that both need are there already.
pub fn build_tool(name: &str) -> Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--bin", name]);
    run(Nested::Tool, &mut command, &format!("building {name}"))?
        .pop()
        .with_context(|| format!("cargo named no executable for {name}"))
}

/// Whether the workspace has a package of user programs.
fn has_programs() -> bool {
    layout::workspace().join("user/Cargo.toml").exists()
}

/// Builds the user programs once in a run and returns their ELFs. There are none if the workspace
/// has no package for them.
pub fn build_programs() -> Result<Vec<PathBuf>> {
    PROGRAMS.get_or_try(make_programs)
}

fn make_programs() -> Result<Vec<PathBuf>> {
    if !has_programs() {
        return Ok(Vec::new());
    }
    run(
        Nested::Build,
        guest_build("user").arg("--bins"),
        "building the user programs",
    )
}

/// Builds the boot loader stage of this workspace once in a run and returns its ELF.
pub fn build_stage_3() -> Result<PathBuf> {
    BUILT_STAGE_3.get_or_try(|| {
        run(
            Nested::Build,
            &mut guest_build(STAGE_3),
            "building the boot loader (stage 3)",
        )?
        .pop()
        .context("cargo named no executable for stage 3 of the boot loader")
    })
}

/// Returns a command that installs a program of the registry into `root`. The caller completes it.
///
/// The program may use unstable features.
pub fn install(package: &str, version: &str, root: &Path) -> Command {
    let mut command = cargo();
    command
        .args(["install", package, "--version", &format!("={version}")])
        .args(["--locked", "--force", "--no-track", "--root"])
        .arg(root)
        .env("RUSTC_BOOTSTRAP", "1");
    command
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

/// A nested run of cargo. Several kinds may be under way at the same time, so each has its own
/// target directory.
#[derive(Clone, Copy)]
pub enum Nested {
    /// `cargo build`, of a package of this workspace.
    Build,
    /// The same, with [`Flags::Rustc`].
    RustcFlags,
    /// `cargo install`, of a stage of the boot loader.
    Install,
    /// `cargo build`, of a program that takes this one's place. It is beside this one, so that both
    /// find the same files, and share their crates.
    Tool,
}

impl Nested {
    fn target(self) -> PathBuf {
        match self {
            Self::Build => layout::nested_target(),
            Self::RustcFlags => layout::target().join("rustc-flags"),
            Self::Install => layout::target().join("boot-loader"),
            Self::Tool => layout::target().to_path_buf(),
        }
    }

    /// Held while a run of this kind is under way, because a second one would wait for the first
    /// one's lock, and say the same.
    fn one_at_a_time(self) -> &'static Mutex<()> {
        static BUILD: Mutex<()> = Mutex::new(());
        static RUSTC_FLAGS: Mutex<()> = Mutex::new(());
        static INSTALL: Mutex<()> = Mutex::new(());
        static TOOL: Mutex<()> = Mutex::new(());
        match self {
            Self::Build => &BUILD,
            Self::RustcFlags => &RUSTC_FLAGS,
            Self::Install => &INSTALL,
            Self::Tool => &TOOL,
        }
    }
}

/// Runs `command`, a run of cargo. Returns the executables that it made or found fresh.
pub fn run(kind: Nested, command: &mut Command, what: &str) -> Result<Vec<PathBuf>> {
    command
        .args(["--quiet", "--message-format", "json-render-diagnostics"])
        .arg("--target-dir")
        .arg(kind.target())
        .args([
            "--color",
            if stderr().is_terminal() {
                "always"
            } else {
                "never"
            },
        ])
        .env("CARGO_TERM_PROGRESS_WHEN", "always")
        .env("CARGO_TERM_PROGRESS_WIDTH", "80")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let lock = kind.one_at_a_time().lock();
    let _one = lock.unwrap_or_else(PoisonError::into_inner);
    let (status, messages, diagnostics) = progress::counted(what, |count| -> Result<_> {
        let cargo = children::spawn(command).context("cannot start cargo")?;
        let stdout = cargo.take_stdout().expect("piped above");
        let stderr = cargo.take_stderr().expect("piped above");
        let (messages, diagnostics) = thread::scope(|scope| {
            let diagnostics = scope.spawn(move || diagnostics(stderr, count));
            let messages = std::io::read_to_string(stdout);
            (messages, diagnostics.join().expect("reading cannot panic"))
        });
        Ok((cargo.wait()?, messages?, diagnostics?))
    })?;
    progress::show(diagnostics);
    if !status.success() {
        bail!("{what} failed: see cargo's messages above");
    }
    Ok(executables(&messages))
}

/// Reads cargo's standard error. Keeps `count` up to date from the progress bar and returns the
/// rest.
fn diagnostics(mut stderr: impl Read, count: &Count) -> io::Result<String> {
    let mut rest = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = stderr.read(&mut buffer)?;
        if read == 0 {
            return Ok(String::from_utf8_lossy(&rest).into_owned());
        }
        rest.extend_from_slice(&buffer[..read]);
        // A bar ends with a carriage return, which leads the next one over it.
        while let Some(end) = rest.iter().position(|byte| *byte == b'\r') {
            let before = &rest[..end];
            let line = before
                .iter()
                .rposition(|byte| *byte == b'\n' || *byte == b'\r');
            let start = line.map_or(0, |newline| newline + 1);
            if let Some((done, all)) = crates(&String::from_utf8_lossy(&rest[start..end])) {
                count.set(done, all);
            }
            rest.drain(start..=end);
        }
    }
}

/// Reads two numbers from a progress bar such as `[==>   ] 12/57: core`: crates done, and all.
fn crates(bar: &str) -> Option<(u32, u32)> {
    let (_, bar) = bar.split_once("] ")?;
    let (numbers, _) = bar.split_once(':')?;
    let (done, all) = numbers.split_once('/')?;
    Some((done.parse().ok()?, all.parse().ok()?))
}

fn executables(messages: &str) -> Vec<PathBuf> {
    messages
        .lines()
        .filter_map(|line| line.parse::<JsonValue>().ok())
        .filter_map(|message| {
            let message: &HashMap<String, JsonValue> = message.get()?;
            let path: &String = message.get("executable")?.get()?;
            Some(PathBuf::from(path))
        })
        .collect()
}

/// Runs llvm-objcopy of the toolchain on `input`.
pub fn objcopy(options: &[&str], input: &Path, output: &Path) -> Result<()> {
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
    fn bars_are_counted_and_kept_from_the_diagnostics() {
        // It comes in pieces of any length.
        struct Pieces<'a>(&'a [u8], usize);
        impl Read for Pieces<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let (piece, rest) = self.0.split_at(self.1.min(self.0.len()));
                buffer[..piece.len()].copy_from_slice(piece);
                self.0 = rest;
                Ok(piece.len())
            }
        }
        let said = "[=>    ] 3/57: core   \r\x1b[K[=>    ] 12/57: a, b(bin)  \r\x1b[K\
                    warning[x]: 1/2: odd\n --> here\n[==>   ] 56/57: b \r\x1b[Kerror: no\n";
        for length in 1..said.len() {
            let count = Count::default();
            let rest = diagnostics(Pieces(said.as_bytes(), length), &count).unwrap();
            assert_eq!(
                rest, "\x1b[Kwarning[x]: 1/2: odd\n --> here\n\x1b[Kerror: no\n",
                "{length}"
            );
            assert_eq!(count.get(), Some((56, 57)), "{length}");
        }
    }

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
