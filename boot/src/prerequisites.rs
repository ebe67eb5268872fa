//! The tools that this machine needs: parts of the Rust toolchain, QEMU, UEFI firmware; and Bochs
//! if it is requested.
//!
//! Missing tools are installed if that needs no question. Rustup installs parts of the toolchain.
//! The system's package manager installs packages if we are root, have password-less sudo, or use
//! Homebrew. Each command is printed before it runs. Otherwise, or with `--no-install`, the failure
//! says what to install.
//!
//! Threads and processes that miss a tool at the same time install it once: who comes first holds
//! the lock of a file in `target/` meanwhile, and the others look again when they have it. Rustup
//! and package managers fail if two of them change the same directory.

use std::{
    env,
    fs::File,
    io::stderr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use anyhow::{Context, Result, bail};

use crate::{children, layout, progress::say};

/// The emulator's program name.
const QEMU: &str = "qemu-system-x86_64";

/// Where distributions put OVMF: the code and the empty variable store, files of the same build.
const OVMF: [(&str, &str); 8] = [
    // Debian, Ubuntu
    (
        "/usr/share/OVMF/OVMF_CODE_4M.fd",
        "/usr/share/OVMF/OVMF_VARS_4M.fd",
    ),
    (
        "/usr/share/OVMF/OVMF_CODE.fd",
        "/usr/share/OVMF/OVMF_VARS.fd",
    ),
    // Fedora
    (
        "/usr/share/edk2/ovmf/OVMF_CODE.fd",
        "/usr/share/edk2/ovmf/OVMF_VARS.fd",
    ),
    // Arch
    (
        "/usr/share/edk2/x64/OVMF_CODE.4m.fd",
        "/usr/share/edk2/x64/OVMF_VARS.4m.fd",
    ),
    // QEMU's own build: as a package, Homebrew on arm64, Homebrew on x86-64
    (
        "/usr/share/qemu/edk2-x86_64-code.fd",
        "/usr/share/qemu/edk2-i386-vars.fd",
    ),
    (
        "/opt/homebrew/share/qemu/edk2-x86_64-code.fd",
        "/opt/homebrew/share/qemu/edk2-i386-vars.fd",
    ),
    (
        "/usr/local/share/qemu/edk2-x86_64-code.fd",
        "/usr/local/share/qemu/edk2-i386-vars.fd",
    ),
    (
        "/home/linuxbrew/.linuxbrew/share/qemu/edk2-x86_64-code.fd",
        "/home/linuxbrew/.linuxbrew/share/qemu/edk2-i386-vars.fd",
    ),
];

/// Whether missing things may be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Install {
    /// Install missing things if that needs no question.
    Allowed,
    /// Install nothing (`--no-install`).
    Forbidden,
}

/// UEFI firmware as two flash images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ovmf {
    /// The code, never written.
    pub code: PathBuf,
    /// The initial variable store; each run works on a copy of its own.
    pub variables: PathBuf,
}

/// The purpose of a package.
#[derive(Clone, Copy)]
enum Emulator {
    /// With firmware for UEFI.
    Qemu,
    /// With a display that needs no screen.
    Bochs,
    /// For Linux processes.
    QemuUser,
}

struct PackageManager {
    system: &'static str,
    program: &'static str,
    /// Arguments that bring the list of packages up to date, where installing does not.
    refresh: Option<&'static [&'static str]>,
    install: &'static [&'static str],
    qemu: &'static str,
    ovmf: Option<&'static str>,
    bochs: &'static [&'static str],
    qemu_user: &'static [&'static str],
    needs_root: bool,
}

const PACKAGE_MANAGERS: [PackageManager; 4] = [
    PackageManager {
        system: "Debian/Ubuntu",
        program: "apt-get",
        refresh: Some(&["update"]),
        install: &["install", "--yes", "--no-install-recommends"],
        qemu: "qemu-system-x86",
        ovmf: Some("ovmf"),
        bochs: &["bochs", "bochsbios", "vgabios", "bochs-sdl"],
        qemu_user: &["qemu-user"],
        needs_root: true,
    },
    PackageManager {
        system: "Fedora",
        program: "dnf",
        refresh: None,
        install: &["install", "--assumeyes"],
        qemu: "qemu-system-x86-core",
        ovmf: Some("edk2-ovmf"),
        bochs: &["bochs"],
        qemu_user: &["qemu-user"],
        needs_root: true,
    },
    PackageManager {
        system: "Arch",
        program: "pacman",
        refresh: Some(&["-Sy"]),
        install: &["-S", "--noconfirm", "--needed"],
        qemu: "qemu-system-x86",
        ovmf: Some("edk2-ovmf"),
        bochs: &["bochs"],
        qemu_user: &["qemu-user"],
        needs_root: true,
    },
    PackageManager {
        system: "Homebrew",
        program: "brew",
        refresh: None,
        install: &["install"],
        qemu: "qemu",
        // Comes with the package of QEMU.
        ovmf: None,
        bochs: &["bochs"],
        qemu_user: &[],
        needs_root: false,
    },
];

impl PackageManager {
    fn packages(&self, emulator: Emulator) -> Vec<&'static str> {
        match emulator {
            Emulator::Qemu => [Some(self.qemu), self.ovmf].into_iter().flatten().collect(),
            Emulator::Bochs => self.bochs.to_vec(),
            Emulator::QemuUser => self.qemu_user.to_vec(),
        }
    }
}

/// Makes sure that the parts of the Rust toolchain which the build needs are there.
pub fn toolchain(install: Install) -> Result<()> {
    let missing = missing_from_toolchain()?;
    if missing.is_empty() {
        return Ok(());
    }
    let command = |arguments: &&[&str]| format!("rustup {}", arguments.join(" "));
    if install == Install::Forbidden || find_program("rustup").is_none() {
        let commands: Vec<String> = missing.iter().map(command).collect();
        bail!(
            "parts of the Rust toolchain are missing; run `{}` in this directory",
            commands.join(" && ")
        );
    }
    let _alone = install_alone()?;
    for arguments in missing_from_toolchain()? {
        run_visibly(
            Command::new("rustup")
                .args(arguments)
                .current_dir(layout::workspace()),
            &command(&arguments),
        )?;
    }
    Ok(())
}

/// Returns the arguments of rustup that add what the build needs and the toolchain lacks.
fn missing_from_toolchain() -> Result<Vec<&'static [&'static str]>> {
    let library = sysroot()?.join("lib/rustlib");
    let mut missing: Vec<&[&str]> = Vec::new();
    if !library.join("src/rust/library/core").is_dir() {
        missing.push(&["component", "add", "rust-src"]);
    }
    if find_llvm_tool("llvm-objcopy")?.is_none() {
        missing.push(&["component", "add", "llvm-tools"]);
    }
    if !library.join(layout::GUEST_TARGET).join("lib").is_dir() {
        missing.push(&["target", "add", layout::GUEST_TARGET]);
    }
    Ok(missing)
}

/// Waits until no other thread or process installs anything. The next one may when the returned
/// file is closed, also by the end of its process.
fn install_alone() -> Result<File> {
    let path = layout::artifacts()?.join("installing.lock");
    let lock = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    lock.lock()
        .with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(lock)
}

/// Returns the path of QEMU, installed first if it is missing.
pub fn qemu(install: Install) -> Result<PathBuf> {
    find_or_install("QEMU", Emulator::Qemu, install, || find_program(QEMU))
}

/// Returns the UEFI firmware, installed first if it is missing.
pub fn ovmf(install: Install) -> Result<Ovmf> {
    find_or_install("UEFI firmware (OVMF)", Emulator::Qemu, install, || {
        OVMF.iter()
            .map(|(code, variables)| (Path::new(code), Path::new(variables)))
            .find(|(code, variables)| code.is_file() && variables.is_file())
            .map(|(code, variables)| Ovmf {
                code: code.into(),
                variables: variables.into(),
            })
    })
}

/// Returns the path of Bochs, installed first if it is missing.
pub fn bochs(install: Install) -> Result<PathBuf> {
    const WHAT: &str = "Bochs, or its SDL display,";
    find_or_install(WHAT, Emulator::Bochs, install, || {
        find_program("bochs").filter(|_| bochs_has_display())
    })
}

/// Returns QEMU's emulator of Linux processes, installed first if it is missing.
pub fn qemu_user(install: Install) -> Result<PathBuf> {
    const WHAT: &str = "QEMU's emulator of Linux processes";
    find_or_install(WHAT, Emulator::QemuUser, install, || {
        find_program("qemu-x86_64")
    })
}

/// Whether Bochs has its SDL 2 display. It is missing only in a distribution that has displays as
/// plugins, without this one.
fn bochs_has_display() -> bool {
    let architectures = Path::new("/usr/lib").read_dir().into_iter().flatten();
    let plugins = architectures.filter_map(|entry| Some(entry.ok()?.path().join("bochs/plugins")));
    plugins
        .filter(|plugins| plugins.is_dir())
        .all(|plugins| plugins.join("libbx_sdl2_gui.so").is_file())
}

/// Returns the path of an LLVM tool of the toolchain's component `llvm-tools`.
pub fn llvm_tool(name: &str) -> Result<PathBuf> {
    find_llvm_tool(name)?
        .with_context(|| format!("{name} is missing; run `rustup component add llvm-tools`"))
}

fn find_llvm_tool(name: &str) -> Result<Option<PathBuf>> {
    let library = sysroot()?.join("lib/rustlib");
    let hosts = library
        .read_dir()
        .with_context(|| format!("cannot read {}", library.display()))?;
    Ok(hosts
        .filter_map(|host| Some(host.ok()?.path().join("bin").join(name)))
        .find(|tool| tool.is_file()))
}

fn sysroot() -> Result<&'static Path> {
    static SYSROOT: OnceLock<PathBuf> = OnceLock::new();
    if let Some(sysroot) = SYSROOT.get() {
        return Ok(sysroot);
    }
    let output = Command::new("rustc")
        .args(["--print", "sysroot"])
        .current_dir(layout::workspace())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run rustc; install Rust from https://rustup.rs")?;
    if !output.status.success() {
        bail!("`rustc --print sysroot` failed: see the message above");
    }
    let path = String::from_utf8_lossy(&output.stdout);
    Ok(SYSROOT.get_or_init(|| PathBuf::from(path.trim_end())))
}

fn find_program(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|directory| directory.join(name))
        .find(|program| program.is_file())
}

fn find_or_install<T>(
    what: &str,
    emulator: Emulator,
    install: Install,
    find: impl Fn() -> Option<T>,
) -> Result<T> {
    if let Some(found) = find() {
        return Ok(found);
    }
    if install == Install::Allowed
        && let Some((manager, root)) = usable_package_manager()
    {
        let _alone = install_alone()?;
        // Somebody else may have installed it meanwhile.
        if let Some(found) = find() {
            return Ok(found);
        }
        say(format_args!("{what} is missing; installing it"));
        for arguments in [
            manager.refresh.map(<[&str]>::to_vec),
            Some([manager.install, &manager.packages(emulator)].concat()),
        ]
        .into_iter()
        .flatten()
        {
            let words = [root, &[manager.program], &arguments].concat();
            let mut command = Command::new(words[0]);
            command
                .args(&words[1..])
                .env("DEBIAN_FRONTEND", "noninteractive");
            run_visibly(&mut command, &words.join(" "))?;
        }
        if let Some(found) = find() {
            return Ok(found);
        }
    }
    bail!(
        "{what} is missing; install it and run again: {}",
        install_hints(emulator)
    )
}

/// Returns the system's package manager and the words to put before its command. Returns nothing
/// if it would ask a question.
fn usable_package_manager() -> Option<(&'static PackageManager, &'static [&'static str])> {
    let manager = PACKAGE_MANAGERS
        .iter()
        .find(|manager| find_program(manager.program).is_some())?;
    if !manager.needs_root || rustix::process::geteuid().is_root() {
        return Some((manager, &[]));
    }
    let asks_nothing = Command::new("sudo")
        .args(["-n", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    asks_nothing.then_some((manager, &["sudo", "-n"]))
}

fn install_hints(emulator: Emulator) -> String {
    PACKAGE_MANAGERS
        .iter()
        .map(|manager| {
            let install = if manager.needs_root { "sudo " } else { "" };
            format!(
                "{} `{install}{} {} {}`",
                manager.system,
                manager.program,
                manager.install[0],
                manager.packages(emulator).join(" ")
            )
        })
        .collect::<Vec<_>>()
        .join(", ")
}

/// Prints `shown` and runs `command`, whose output goes to standard error as it comes.
fn run_visibly(command: &mut Command, shown: &str) -> Result<()> {
    say(format_args!("running `{shown}`"));
    let status = children::spawn(command.stdin(Stdio::null()).stdout(stderr()))
        .with_context(|| format!("cannot start `{shown}`"))?
        .wait()?;
    if !status.success() {
        bail!("`{shown}` failed: see its messages above");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_one_line_for_four_systems() {
        assert_eq!(
            install_hints(Emulator::Qemu),
            "Debian/Ubuntu `sudo apt-get install qemu-system-x86 ovmf`, \
             Fedora `sudo dnf install qemu-system-x86-core edk2-ovmf`, \
             Arch `sudo pacman -S qemu-system-x86 edk2-ovmf`, \
             Homebrew `brew install qemu`"
        );
        assert!(
            install_hints(Emulator::Bochs).starts_with(
                "Debian/Ubuntu `sudo apt-get install bochs bochsbios vgabios bochs-sdl`, Fedora "
            ),
            "{}",
            install_hints(Emulator::Bochs)
        );
    }

    #[test]
    fn what_cannot_be_found_is_named_with_the_way_out() {
        let error =
            find_or_install("QEMU", Emulator::Qemu, Install::Forbidden, || None::<()>).unwrap_err();
        let sentence = error.to_string();
        assert!(
            sentence.starts_with("QEMU is missing; install it and run again: Debian/Ubuntu"),
            "{sentence}"
        );
        assert!(!sentence.contains('\n'), "{sentence}");
    }
}
