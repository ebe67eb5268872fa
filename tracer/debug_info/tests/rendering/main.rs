//! Values of a program as the tracer prints them, held against `{:?}` of the same values.
//!
//! The fixture is a program that writes its values and waits. For each value the language's
//! compiler makes a program of `print(*args.value)`, with the types of the fixture's debug
//! information. The interpreter runs that on the memory of the fixture's process, and what the
//! reader makes of the record must be the same text.

mod world;

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use debug_info::DebugInfo;
use trace_compiler::{Compiled, Options, compile};
use trace_interface::Kernel;

use crate::world::shown;

/// A fixture, compiled.
fn fixture(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixture");
    let source = directory.join(name).with_extension("rs");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut command = Command::new("rustc");
    command.arg(source).args(["--edition=2024", "-o"]);
    command.arg(&program).args([
        "-Copt-level=1",
        "-Cdebuginfo=full",
        "-Crelocation-model=static",
    ]);
    let output = command.output().expect("rustc runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    program
}

/// A value of the fixture: its function, its address, and its text.
struct Known {
    name: String,
    address: u64,
    text: String,
}

/// The fixture, running.
struct Running {
    child: Child,
    values: Vec<Known>,
}

impl Running {
    fn start(program: &Path) -> Self {
        let mut command = Command::new(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut values = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if line == "end" {
                break;
            }
            let mut parts = line.splitn(3, '\t').map(String::from);
            let mut part = || parts.next().unwrap();
            let (name, address, text) = (part(), part(), part());
            let address = u64::from_str_radix(address.trim_start_matches("0x"), 16).unwrap();
            values.push(Known {
                name,
                address,
                text,
            });
        }
        Self { child, values }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn compiled(info: &DebugInfo, text: &str) -> Result<Compiled, String> {
    let tree = trace_language::parse(text).map_err(|errors| format!("{errors:?}"))?;
    compile(&tree, info, &Options::default()).map_err(|errors| format!("{errors:?}"))
}

/// The text of a value in a trace of a call with its address.
fn printed(info: &DebugInfo, running: &Running, known: &Known, value: &str) -> String {
    let text = format!("kprobe:{} {{ print({value}); }}", known.name);
    let function = info.functions(&known.name)[0].address;
    match compiled(info, &text) {
        Ok(compiled) => shown(compiled, running.child.id(), (function, known.address)),
        Err(why) => why,
    }
}

/// Texts by themselves stand without quotes.
fn unquoted(text: &str) -> &str {
    text.strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .unwrap_or(text)
}

/// Prints each value of a fixture, and returns what is not as `{:?}` of it.
fn differing(fixture_name: &str, least: usize) -> Vec<String> {
    let program = fixture(fixture_name);
    let info = DebugInfo::open(&program).unwrap();
    let running = Running::start(&program);
    assert!(running.values.len() >= least, "{}", running.values.len());
    let mut wrong = Vec::new();
    for known in &running.values {
        let shown = printed(&info, &running, known, "*args.value");
        if shown != unquoted(&known.text) {
            wrong.push(format!("{}: {shown}\n    not {}", known.name, known.text));
        }
        let followed = printed(&info, &running, known, "args.value");
        if followed != shown {
            wrong.push(format!("{}: {followed}\n    by its reference", known.name));
        }
    }
    wrong
}

#[test]
fn values_of_all_types_have_the_text_of_debug() {
    let wrong = differing("values", 170);
    let count = wrong.len();
    assert!(wrong.is_empty(), "{count} wrong:\n{}", wrong.join("\n"));
}

#[test]
fn values_of_odd_types_have_the_text_of_debug() {
    let wrong = differing("odd_values", 130);
    let count = wrong.len();
    assert!(wrong.is_empty(), "{count} wrong:\n{}", wrong.join("\n"));
}
