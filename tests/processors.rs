//! The instruction tests under other processors than the host's: the test binary of the probes, in
//! QEMU's emulation of Linux processes.
//!
//! Each model is a test. Processors differ in some instructions. The closing lines say what each
//! model does with them, and which instructions it lacks.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use boot::{
    layout,
    prerequisites::{self, Install},
};
use libtest_mimic::{Arguments, Failed, Trial};

/// An AMD and an Intel processor, the least that QEMU has, and all that it can do.
const MODELS: [&str; 4] = ["EPYC", "Skylake-Client", "qemu64", "max"];

/// The tests that execute chosen instructions. Random ones are left to the host and to the guest,
/// because this emulation loses flags when it steps over a locked instruction.
const TESTS: &str = "execution::";

/// Closing lines of the models: see `kernel/probes/tests/closing.rs`.
type Closing = Arc<Mutex<BTreeMap<&'static str, Vec<String>>>>;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let closing = Closing::default();
    let trials = MODELS.map(|model| {
        let closing = closing.clone();
        Trial::test(format!("instructions_on::{model}"), move || {
            run(model, &closing)
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.into());
    let closing = closing.lock().unwrap_or_else(PoisonError::into_inner);
    for (model, lines) in closing.iter() {
        lines.iter().for_each(|line| eprintln!("{model}: {line}"));
    }
    conclusion.exit_code()
}

fn run(model: &'static str, closing: &Closing) -> Result<(), Failed> {
    let note = |lines| {
        let mut all = closing.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(model, lines);
    };
    let qemu = match prerequisites::qemu_user(Install::Allowed) {
        Ok(qemu) => qemu,
        Err(error) => {
            note(vec![format!("left out: the whole processor: {error:#}")]);
            return Ok(());
        }
    };
    let binary = binary()?;
    let output = Command::new(qemu)
        .args(["-cpu", model])
        .arg(binary)
        .arg(TESTS)
        .current_dir(layout::workspace().join("kernel/probes"))
        .env("PROBES_INSN_EMULATED", "1")
        .stdin(Stdio::null())
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let lines = errors.lines();
    note(
        lines
            .filter(|line| line.starts_with("left out: ") || line.starts_with("this processor: "))
            .map(str::to_owned)
            .collect(),
    );
    let results = String::from_utf8_lossy(&output.stdout);
    // A filter that finds nothing makes a run without a failure, too.
    let passed = results.lines().filter(|line| line.ends_with("... ok"));
    if output.status.success() && passed.count() > 20 {
        return Ok(());
    }
    Err(format!("{}\n{results}\n{errors}", output.status).into())
}

/// The test binary `insn` of the probes. It is asked for among all packages, as the outer cargo
/// does it: for one package alone, cargo would choose other features for what that package needs,
/// and build it all again.
fn binary() -> Result<PathBuf, Failed> {
    static BINARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    Ok(BINARY.get_or_init(build).clone()?)
}

fn build() -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["test", "--test", "insn", "--no-run"])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(layout::workspace())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find_map(|message| message.get("executable")?.as_str().map(PathBuf::from))
        .ok_or_else(|| "the instruction tests cannot be built".into())
}
