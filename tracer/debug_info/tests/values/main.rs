//! Each statement about a program is held against the program itself: a fixture that is compiled
//! as the kernel is runs under the test's control, and its arguments, variables and results are
//! read at each of its instructions.

mod decode;
mod names;
mod pieces;
mod process;
mod programs;
mod stacks;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use debug_info::DebugInfo;
use trace_interface::{
    Kernel,
    symbols::{Function, Moment, ProbePlace, Unavailable, Variable},
};

use crate::{
    decode::Decoder,
    process::{Process, Registers},
};

/// How the compiler writes names for the linker. With the newer way comes the newer version of the
/// debug information, 5 in place of 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mangling {
    Legacy,
    V0,
}

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixture/shapes.rs");

/// The fixture, compiled.
pub fn fixture(mangling: Mangling) -> &'static Path {
    static BUILT: [OnceLock<PathBuf>; 2] = [OnceLock::new(), OnceLock::new()];
    BUILT[mangling as usize].get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{mangling:?}"));
        std::fs::create_dir_all(&directory).unwrap();
        let program = directory.join("shapes");
        let mut command = Command::new("rustc");
        // The flags of the kernel's target and profile.
        command
            .args([
                SOURCE,
                "--edition=2024",
                "--target=x86_64-unknown-none",
                "-o",
            ])
            .arg(&program)
            .args(["-Copt-level=3", "-Cdebuginfo=full", "-Cpanic=abort"])
            .args(["-Crelocation-model=static", "-Ccode-model=kernel"])
            .args(["-Cforce-frame-pointers=yes", "-Cforce-unwind-tables=yes"]);
        if mangling == Mangling::V0 {
            command.args(["-Csymbol-mangling-version=v0", "-Cdwarf-version=5"]);
        }
        let output = command.output().expect("rustc runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        program
    })
}

pub fn open(mangling: Mangling) -> DebugInfo {
    DebugInfo::open(fixture(mangling)).unwrap()
}

/// The number of the line with that mark.
pub fn marked(mark: &str) -> u32 {
    let source = std::fs::read_to_string(SOURCE).unwrap();
    let mark = format!("// line: {mark}");
    let line = source.lines().position(|line| line.ends_with(&mark));
    line.unwrap() as u32 + 1
}

/// The functions of the fixture itself.
fn own_functions(info: &DebugInfo) -> Vec<Function> {
    let mut functions = info.functions("*");
    functions.retain(|function| {
        function.path.starts_with("shapes::") && !function.path.contains("fixture_main")
    });
    functions
}

/// A call of a function, as the debug information shows it.
#[derive(Default)]
struct Call {
    /// At the entry, by name.
    entry: BTreeMap<String, Result<String, String>>,
    /// The same names at other instructions, with the place.
    inside: BTreeSet<(String, String, u64)>,
    result: Option<Result<String, String>>,
    /// The arguments, when the function has returned.
    behind: BTreeMap<String, Result<String, String>>,
}

/// A variable as text.
fn read_variable(
    info: &DebugInfo,
    process: &Process,
    at_entry: &Registers,
    place: ProbePlace,
    name: &str,
    now: &Registers,
) -> Result<String, String> {
    show(info, process, at_entry, info.variable(place, name), now)
}

fn show(
    info: &DebugInfo,
    process: &Process,
    at_entry: &Registers,
    variable: Result<Variable, Unavailable>,
    now: &Registers,
) -> Result<String, String> {
    let variable = variable.map_err(|unavailable| unavailable.to_string())?;
    // Padding is nowhere, which does not show; parts of the value that are nowhere do.
    let decoder = Decoder { info, process };
    let text = |filling| {
        let bytes = process.bytes(&variable.pieces, filling, now, at_entry)?;
        decoder.text(variable.type_id, &bytes)
    };
    match (text(0xa5), text(0x5a)) {
        (Ok(text), Ok(other)) if text == other => Ok(text),
        (Err(error), Err(other)) if error == other && error != decode::TOO_LONG => Err(error),
        _ => Err(PARTLY.into()),
    }
}

/// A part of the value is nowhere.
const PARTLY: &str = "partly nowhere";

/// Follows the first call of each function of the fixture, instruction by instruction.
fn follow(info: &DebugInfo, program: &Path) -> (BTreeMap<String, Call>, String) {
    let mut process = Process::start(program);
    let functions: HashMap<u64, Function> = own_functions(info)
        .into_iter()
        .filter(|function| names_one_shape(&function.path))
        .map(|function| (function.address, function))
        .collect();
    for address in functions.keys() {
        process.stop_at(*address);
    }
    let mut calls: BTreeMap<String, Call> = BTreeMap::new();
    while let Some(at_entry) = process.run() {
        let function = &functions[&at_entry.rip];
        let mut call = Call::default();
        let place = |address| ProbePlace {
            address,
            moment: Moment::At,
        };
        for name in info.variables(place(function.address)) {
            let text = read_variable(
                info,
                &process,
                &at_entry,
                place(function.address),
                &name,
                &at_entry,
            );
            call.entry.insert(name, text);
        }
        let back = process.read(at_entry.rsp, 8).unwrap();
        let back = u64::from_le_bytes(back.try_into().unwrap());
        let end = function.address + function.bytes;
        loop {
            let now = process.step().unwrap();
            if now.rip == back && now.rsp > at_entry.rsp {
                let result = info.returned(function.address);
                call.result = Some(show(info, &process, &at_entry, result, &now));
                let place = ProbePlace {
                    address: function.address,
                    moment: Moment::Return,
                };
                for name in info.variables(place) {
                    let text = read_variable(info, &process, &at_entry, place, &name, &now);
                    call.behind.insert(name, text);
                }
                break;
            }
            // In a copy of another function its names are meant.
            let own = info.symbolise(now.rip).len() == 1;
            if own && (function.address..end).contains(&now.rip) {
                for name in info.variables(place(now.rip)) {
                    let text =
                        read_variable(info, &process, &at_entry, place(now.rip), &name, &now);
                    if text.as_ref().is_err_and(|error| error == PARTLY) {
                        continue;
                    }
                    let text = text.unwrap_or_else(|error| format!("error: {error}"));
                    call.inside.insert((name, text, now.rip - function.address));
                }
            }
        }
        let name = function.path.rsplit("::").next().unwrap().to_string();
        calls.entry(name).or_insert(call);
    }
    (calls, process.output())
}

fn names_one_shape(path: &str) -> bool {
    let source = std::fs::read_to_string(SOURCE).unwrap();
    let name = path.strip_prefix("shapes::").unwrap_or_default();
    // The shapes are indented, because a macro makes them.
    source.contains(&format!("\n    fn {name}("))
}

/// The lines that the fixture writes: of each function the names and values of its arguments, and
/// last its result.
fn expected(output: &str) -> Vec<(String, Vec<(String, String)>)> {
    output
        .lines()
        .map(|line| {
            let mut parts = line.split('\t');
            let name = parts.next().unwrap().strip_prefix("call ").unwrap();
            let values = parts.map(|part| {
                let (name, value) = part.split_once('=').unwrap();
                (name.to_string(), value.to_string())
            });
            (name.to_string(), values.collect())
        })
        .collect()
}

#[test]
fn arguments_and_results_of_all_shapes_are_what_the_program_knows() {
    let info = open(Mangling::Legacy);
    let (calls, output) = follow(&info, fixture(Mangling::Legacy));
    let expected = expected(&output);
    assert!(expected.len() >= 80, "{output}");
    let mut wrong = Vec::new();
    let (mut compared, mut inside) = (0, 0);
    for (function, values) in &expected {
        let Some(call) = calls.get(function) else {
            wrong.push(format!("{function} was not met"));
            continue;
        };
        for (name, value) in values {
            let found = if name == "result" {
                call.result.clone()
            } else {
                call.entry.get(name).cloned()
            };
            compared += 1;
            match found {
                Some(Ok(found)) if found == *value => {}
                found => wrong.push(format!("{function} {name}: {found:?}, not {value}")),
            }
        }
        for (name, found) in &call.behind {
            let value = values.iter().find(|(known, _)| known == name);
            if value.map(|(_, value)| Ok(value)) != Some(found.as_ref()) {
                wrong.push(format!(
                    "{function} {name} behind: {found:?}, not {value:?}"
                ));
            }
        }
        if call.behind.len() != call.entry.len() {
            wrong.push(format!("{function}: {:?} behind", call.behind.keys()));
        }
        for (name, found, at) in &call.inside {
            let value = values.iter().find(|(known, _)| known == name);
            inside += 1;
            if value.is_none_or(|(_, value)| value != found) {
                wrong.push(format!("{function}+{at:#x} {name}: {found}, not {value:?}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(compared > 200 && inside > 500, "{compared}, {inside}");
}

/// The values of variables whenever the code of a line begins.
fn values_at(info: &DebugInfo, line: &str, names: &[&str]) -> Vec<Vec<Result<String, String>>> {
    let mut process = Process::start(fixture(Mangling::Legacy));
    let addresses = info.line("shapes.rs", marked(line)).unwrap();
    for address in addresses {
        process.stop_at(address);
    }
    let mut all = Vec::new();
    while let Some(now) = process.run() {
        let place = ProbePlace {
            address: now.rip,
            moment: Moment::At,
        };
        let read = |name: &&str| read_variable(info, &process, &now, place, name, &now);
        all.push(names.iter().map(read).collect());
    }
    all
}

#[test]
fn local_variables_are_what_the_program_computes() {
    let info = open(Mangling::Legacy);
    let values = values_at(&info, "both", &["doubled", "more"]);
    assert_eq!(values[0], [Ok("42".into()), Ok("45".into())]);
    let values = values_at(&info, "more", &["doubled", "more"]);
    assert_eq!(values[0][0], Ok("42".into()));
    assert!(values[0][1].is_err(), "{values:?}");
    // A line of a function that is inlined is met in each copy.
    let values = values_at(&info, "only_inlined", &["product"]);
    let products: BTreeSet<&str> = values
        .iter()
        .filter_map(|values| values[0].as_deref().ok())
        .collect();
    assert!(
        products.is_superset(&["33", "48", "65"].into()),
        "{values:?}"
    );
    let all = ["33", "48", "65", "93", "376", "475"].into();
    assert!(products.is_subset(&all), "{values:?}");
}
