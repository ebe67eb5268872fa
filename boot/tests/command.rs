//! Tests the command behind `cargo run` from outside: its exit statuses, its last words, and that
//! it leaves nothing running.
//!
//! No kernel is built: the disks here hold a boot sector of a few instructions.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// `hlt` with interrupts off, for ever.
const HALT: &[u8] = &[
    0xfa, // cli
    0xf4, // hlt
    0xeb, 0xfd, // jmp to hlt
];

/// Resets the machine by the keyboard controller.
const RESET: &[u8] = &[
    0xb0, 0xfe, // mov al, 0xfe
    0xe6, 0x64, // out 0x64, al
    0xeb, 0xfe, // jmp $
];

/// Prints `ok` and a newline on COM1.
const PRINT: &[u8] = &[
    0xba, 0xf8, 0x03, // mov dx, 0x3f8
    0xb0, b'o', 0xee, // mov al, 'o'; out dx, al
    0xb0, b'k', 0xee, // likewise
    0xb0, b'\n', 0xee,
];

/// Code that tells the host `verdict`.
fn verdict(verdict: u8) -> Vec<u8> {
    let mut code = vec![0x66, 0xb8, verdict, 0, 0, 0]; // mov eax, verdict
    code.extend([0xba, 0xf4, 0x00]); // mov dx, 0xf4
    code.extend([0x66, 0xef]); // out dx, eax
    code.extend(HALT);
    code
}

/// A bootable disk with `code` in its boot sector; `name` is the test's.
fn disk(name: &str, code: &[u8]) -> PathBuf {
    let mut sector = code.to_vec();
    sector.resize(510, 0);
    sector.extend([0x55, 0xaa]);
    sector.resize(1 << 20, 0);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.img"));
    fs::write(&path, sector).unwrap();
    path
}

fn boot() -> Command {
    Command::new(env!("CARGO_BIN_EXE_boot"))
}

fn boot_disk(name: &str, code: &[u8], timeout: &str) -> Output {
    boot()
        .args(["--timeout", timeout, "--disk"])
        .arg(disk(name, code))
        .output()
        .unwrap()
}

fn last_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().last().unwrap_or_default().to_string()
}

#[test]
fn success_of_the_guest_is_status_0_and_its_log_is_standard_output() {
    let output = boot_disk("success", &[PRINT, &verdict(0x10)].concat(), "30");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(output.stdout, b"ok\n", "{output:?}");
}

#[test]
fn an_example_kernel_boots_by_its_name() {
    let output = boot().args(["--kernel", "minimal"]).output().unwrap();
    let log = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", last_line(&output));
    let mut lines = log.lines();
    assert!(
        lines.any(|line| line == "kretprobe: add returned 7"),
        "{log}"
    );
}

#[test]
fn failure_of_the_guest_is_status_1() {
    let output = boot_disk("failure", &verdict(0x11), "30");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(
        last_line(&output),
        "boot: the guest failed: see its log; it printed nothing"
    );
}

#[test]
fn an_end_without_verdict_is_status_1() {
    let output = boot_disk("reset", &[PRINT, RESET].concat(), "30");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(
        last_line(&output),
        "boot: the guest ended without a verdict: a triple fault, or a reset or power-off by itself"
    );
}

#[test]
fn a_guest_that_never_prints_is_ended() {
    let output = boot_disk("silent", HALT, "2");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(
        last_line(&output),
        "boot: the guest printed nothing within 2 s; --timeout sets another limit"
    );
}

#[test]
fn a_guest_that_never_ends_is_ended() {
    let output = boot_disk("endless", &[PRINT, HALT].concat(), "5");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(output.stdout, b"ok\n", "{output:?}");
    assert_eq!(
        last_line(&output),
        "boot: the guest did not end within 5 s; --timeout sets another limit"
    );
}

#[test]
fn wrong_arguments_are_status_2_and_start_nothing() {
    for (arguments, told) in [
        (&["--smp", "0"][..], "--smp"),
        (&["--frobnicate"], "--frobnicate"),
        (&["--firmware", "coreboot"], "coreboot"),
        (&["--disk", "/no/such/file"], "there is no such file"),
        (&["image"], "<DIRECTORY>"),
    ] {
        let output = boot().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.starts_with("error: "), "{message}");
        assert!(message.contains(told), "{message}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
}

#[test]
fn a_missing_emulator_is_named_with_what_to_install() {
    let output = boot()
        .args(["--no-install", "--disk"])
        .arg(disk("no_emulator", HALT))
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(message.lines().count(), 1, "{message}");
    for told in ["QEMU is missing", "apt-get", "dnf", "pacman", "brew"] {
        assert!(message.contains(told), "{told}: {message}");
    }
}

#[test]
fn a_guest_on_the_terminal_gives_its_verdict_too() {
    for (name, code, status, told) in [
        ("terminal_success", verdict(0x10), 0, "Ctrl-A H helps"),
        (
            "terminal_failure",
            verdict(0x11),
            1,
            "boot: the guest failed: see its log",
        ),
        (
            "terminal_reset",
            RESET.to_vec(),
            1,
            "boot: the guest ended without a verdict",
        ),
    ] {
        let output = boot()
            .args(["--interactive", "--disk"])
            .arg(disk(name, &code))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(status), "{name}: {output:?}");
        assert!(last_line(&output).contains(told), "{name}: {output:?}");
    }
}

/// A directory of programs that write their names and arguments to its file `calls`. `name` is
/// that of the test.
fn tools(name: &str, programs: &[&str]) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // Left by an earlier run, or not there.
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(directory.join("sysroot/lib/rustlib")).unwrap();
    fs::write(directory.join("calls"), "").unwrap();
    let program = |name: &str, text: String| {
        let path = directory.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let at = directory.display();
    program("rustc", format!("echo {at}/sysroot"));
    for name in programs {
        program(name, format!("echo {name} \"$@\" >> {at}/calls"));
    }
    directory
}

/// Runs the command with these arguments; only `tools` are installed. Returns its output and the
/// calls of tools.
fn run_with(tools: &Path, arguments: &[&str]) -> (Output, String) {
    let output = boot().args(arguments).env("PATH", tools).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    (output, fs::read_to_string(tools.join("calls")).unwrap())
}

#[test]
fn parts_of_the_toolchain_are_installed_unless_that_is_forbidden() {
    let tools = tools("toolchain", &["qemu-system-x86_64", "rustup"]);
    let (output, calls) = run_with(&tools, &["--no-install"]);
    assert_eq!(calls, "", "{output:?}");
    assert_eq!(
        last_line(&output),
        "boot: parts of the Rust toolchain are missing; run `rustup component add rust-src && \
         rustup component add llvm-tools && rustup target add x86_64-unknown-none` in this \
         directory"
    );
    let (_, calls) = run_with(&tools, &[]);
    assert_eq!(
        calls,
        "rustup component add rust-src\nrustup component add llvm-tools\n\
         rustup target add x86_64-unknown-none\n"
    );
}

/// Whether `process` waits for a lock of a file, as `/proc/locks` of Linux says: the lines of those
/// who wait have an arrow.
#[cfg(target_os = "linux")]
fn waits_for_a_lock(process: u32) -> bool {
    let locks = fs::read_to_string("/proc/locks").unwrap();
    let process = process.to_string();
    let mut waiting = locks.lines().filter(|line| line.contains("->"));
    waiting.any(|line| line.split_whitespace().any(|word| word == process))
}

#[cfg(target_os = "linux")]
#[test]
fn what_another_process_is_installing_is_not_installed_twice() {
    let tools = tools("installed_twice", &["qemu-system-x86_64", "rustup"]);
    let lock = boot::layout::artifacts().unwrap().join("installing.lock");
    let other = fs::File::create(lock).unwrap();
    other.lock().unwrap();
    let mut boot = boot()
        .env("PATH", &tools)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !waits_for_a_lock(boot.id()) {
        let ended = boot.try_wait().unwrap();
        assert!(ended.is_none(), "it did not wait: {ended:?}");
        std::thread::yield_now();
    }
    // The other one, this test, has them now.
    let library = tools.join("sysroot/lib/rustlib");
    for directory in [
        "src/rust/library/core",
        "host/bin",
        "x86_64-unknown-none/lib",
    ] {
        fs::create_dir_all(library.join(directory)).unwrap();
    }
    fs::write(library.join("host/bin/llvm-objcopy"), "").unwrap();
    drop(other);
    let output = boot.wait_with_output().unwrap();
    let calls = fs::read_to_string(tools.join("calls")).unwrap();
    assert_eq!(calls, "", "{output:?}");
}

#[test]
fn an_emulator_is_installed_unless_that_is_forbidden() {
    // `sudo` for users who are not root.
    let tools = tools("emulator", &["apt-get", "sudo"]);
    let (output, calls) = run_with(&tools, &["--no-install"]);
    assert_eq!(calls, "", "{output:?}");
    assert!(last_line(&output).starts_with("boot: QEMU is missing; install it"));
    let (output, calls) = run_with(&tools, &[]);
    let install = "apt-get install --yes --no-install-recommends qemu-system-x86 ovmf\n";
    assert!(calls.ends_with(install), "{calls}");
    assert!(calls.contains("apt-get update\n"), "{calls}");
    // This one has installed nothing.
    assert!(last_line(&output).starts_with("boot: QEMU is missing; install it"));
}

/// Signals: no process may be left behind in /proc.
#[cfg(target_os = "linux")]
mod signals {
    use super::*;
    use rustix::process::{Pid, Signal, kill_process};
    use std::{
        os::unix::process::ExitStatusExt,
        thread::sleep,
        time::{Duration, Instant},
    };

    /// The processes that are QEMU with `disk`.
    fn emulators(disk: &Path) -> Vec<String> {
        let disk = disk.to_str().unwrap();
        let processes = fs::read_dir("/proc").unwrap().flatten();
        processes
            .filter_map(|process| {
                let cmdline = fs::read_to_string(process.path().join("cmdline")).ok()?;
                let program = cmdline.split('\0').next()?;
                (program.contains("qemu") && cmdline.contains(disk))
                    .then(|| process.file_name().to_string_lossy().into_owned())
            })
            .collect()
    }

    fn wait_until(what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !condition() {
            assert!(Instant::now() < deadline, "{what}: not within 30 s");
            sleep(Duration::from_millis(20));
        }
    }

    /// Starts a guest and sends `signal` to the tool alone. Returns its end once QEMU has
    /// gone.
    fn interrupt(name: &str, signal: Signal) -> Output {
        let disk = disk(name, &[PRINT, HALT].concat());
        let child = boot()
            .args(["--timeout", "60", "--disk"])
            .arg(&disk)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        wait_until("QEMU runs", || emulators(&disk).len() == 1);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        wait_until("QEMU has gone", || emulators(&disk).is_empty());
        output
    }

    #[test]
    fn ctrl_c_leaves_no_emulator() {
        let output = interrupt("sigint", Signal::INT);
        assert_eq!(output.status.code(), Some(130), "{output:?}");
        assert_eq!(last_line(&output), "boot: interrupted");
    }

    #[test]
    fn sigterm_leaves_no_emulator() {
        let output = interrupt("sigterm", Signal::TERM);
        assert_eq!(output.status.code(), Some(130), "{output:?}");
    }

    #[test]
    fn sigkill_leaves_no_emulator() {
        let output = interrupt("sigkill", Signal::KILL);
        assert_eq!(output.status.signal(), Some(9), "{output:?}");
    }
}

/// A QEMU that ends as the real one does where KVM refuses a model-specific register.
#[test]
fn a_register_that_kvm_refuses_is_told_in_a_sentence() {
    use std::os::unix::fs::PermissionsExt;
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("refusing-qemu");
    fs::create_dir_all(&directory).unwrap();
    let qemu = directory.join("qemu-system-x86_64");
    let script = "#!/bin/sh\n\
        echo 'qemu-system-x86_64: error: failed to set MSR 0x10a to 0x2000000000dd00' >&2\n\
        echo 'qemu-system-x86_64: ../target/i386/kvm/kvm.c:2893: kvm_buf_set_msrs: \
        Assertion `ret == cpu->kvm_msr_buf->nmsrs'\\'' failed.' >&2\n\
        kill -ABRT $$\n";
    fs::write(&qemu, script).unwrap();
    fs::set_permissions(&qemu, fs::Permissions::from_mode(0o755)).unwrap();
    for interactive in [false, true] {
        let path = env::var_os("PATH").unwrap();
        let directories = [directory.clone()]
            .into_iter()
            .chain(env::split_paths(&path));
        let output = boot()
            .env("PATH", env::join_paths(directories).unwrap())
            .args(["--accel", "kvm", "--disk"])
            .arg(disk("kvm", HALT))
            .args(interactive.then_some("--interactive"))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(
            last_line(&output),
            "boot: KVM on this host cannot set the model-specific register 0x10a, which QEMU \
             wants for `-cpu host`: \
             leave `--accel kvm` out, or bring QEMU and the host's kernel up to date",
        );
    }
}
