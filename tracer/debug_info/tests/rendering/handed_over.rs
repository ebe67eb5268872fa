//! Arguments and results of programs that are compiled as the kernel is, printed at calls of their
//! functions and held against what the program itself says of them.
//!
//! A program is stopped at each call, and once more when the call has returned. What is printed
//! there is what a probe of the function would print.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::OnceLock,
};

use bpf::context::Register;
use debug_info::DebugInfo;
use trace_interface::Kernel;

use crate::{
    compiled,
    process::{self, Process},
    unquoted,
    world::{Call, Registers},
};

const REGISTERS: [Register; 17] = [
    Register::R15,
    Register::R14,
    Register::R13,
    Register::R12,
    Register::Bp,
    Register::Bx,
    Register::R11,
    Register::R10,
    Register::R9,
    Register::R8,
    Register::Ax,
    Register::Cx,
    Register::Dx,
    Register::Si,
    Register::Di,
    Register::Ip,
    Register::Sp,
];

/// The fixture of two tests.
fn fixture() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| of_kernel("handed_over", 3))
}

/// The flags of the kernel's target and profile.
pub const OF_KERNEL: [&str; 5] = [
    "--target=x86_64-unknown-none",
    "-Cpanic=abort",
    "-Ccode-model=kernel",
    "-Cforce-frame-pointers=yes",
    "-Cforce-unwind-tables=yes",
];

/// A fixture, compiled as the kernel is, with an optimisation.
fn of_kernel(name: &str, optimisation: u8) -> PathBuf {
    crate::build(name, &optimisation.to_string(), optimisation, &OF_KERNEL)
}

fn registers(process: &Process) -> Registers {
    let now = process.registers();
    let known = REGISTERS.iter();
    known
        .map(|name| (*name, process::register(&now, *name)))
        .collect()
}

/// What is printed of the values of a call, by their names; the reason if there is nothing.
type Printed = BTreeMap<&'static str, Result<String, String>>;

/// Stops at each call of a function, and prints its arguments and its result. Also returns what
/// the program has written.
fn follow(info: &DebugInfo, program: &Path) -> (BTreeMap<String, Printed>, String) {
    let mut process = Process::start(program);
    let mut functions = HashMap::new();
    let crate_name = program.file_name().unwrap().to_str().unwrap();
    for function in info.functions(&format!("{crate_name}::v_*")) {
        process.stop_at(function.address);
        functions.insert(function.address, function.path);
    }
    let mut calls: BTreeMap<String, Printed> = BTreeMap::new();
    while let Some(at_entry) = process.run() {
        let path = functions[&at_entry.rip].clone();
        let entry = registers(&process);
        let back = process.read(at_entry.rsp, 8).unwrap();
        let back = u64::from_le_bytes(back.try_into().unwrap());
        let mut call = Call {
            memory: &process.memory.try_clone().unwrap(),
            function: at_entry.rip,
            entry,
            on_return: None,
        };
        let print = |call: &Call, probe: &str, value: &str| {
            let text = format!("{probe}:{path} {{ print({value}); }}");
            compiled(info, &text).map(|compiled| call.shown(compiled))
        };
        let mut printed = Printed::new();
        printed.insert("a", print(&call, "kprobe", "args.a"));
        loop {
            let now = process.step().unwrap();
            if now.rip == back && now.rsp > at_entry.rsp {
                break;
            }
        }
        call.on_return = Some(registers(&process));
        printed.insert("a behind", print(&call, "kretprobe", "args.a"));
        let text = format!("session:{path} {{ $kept = args.a; }} return {{ print($kept); }}");
        let kept = compiled(info, &text).map(|compiled| call.shown(compiled));
        // A reference is its address.
        if !kept.as_ref().is_ok_and(|kept| kept.starts_with("0x")) {
            printed.insert("a kept", kept);
        }
        printed.insert("result", print(&call, "kretprobe", "retval"));
        let (_, name) = path.split_once("::").unwrap();
        calls.insert(name.to_string(), printed);
    }
    (calls, process.output())
}

/// Of a result that has no bytes the debug information tells no type.
const RESULTS_WITHOUT_BYTES: [&str; 11] = [
    "v_array_units::first",
    "v_const_none::first",
    "v_ghost::first",
    "v_never_array::first",
    "v_option_never::first",
    "v_pair_unit::first",
    "v_poll_never::first",
    "v_result_never::first",
    "v_unit_struct::first",
    "v_units::first",
    "v_zeros::first",
];

/// A text or a letter by itself has no quotes.
fn as_printed(text: &str) -> &str {
    let letter = text
        .strip_prefix('\'')
        .and_then(|text| text.strip_suffix('\''));
    letter.unwrap_or(unquoted(text))
}

/// What is printed of a value, or why it is refused, and what the program has written of it.
pub struct Judged {
    pub name: String,
    pub shown: Result<String, String>,
    pub debug: String,
}

/// What is printed of all values of a program's calls.
pub fn judged(program: &Path) -> Vec<Judged> {
    let info = DebugInfo::open(program).unwrap();
    let (calls, output) = follow(&info, program);
    let mut judged = Vec::new();
    for line in output.lines() {
        let mut parts = line.split('\t');
        let function = parts.next().unwrap().strip_prefix("call ").unwrap();
        let printed = calls.get(function);
        let printed = printed.unwrap_or_else(|| panic!("{function} was not met"));
        let known: BTreeMap<&str, &str> = parts.map(|part| part.split_once('=').unwrap()).collect();
        for (name, shown) in printed {
            let debug = match known[name.split(' ').next().unwrap_or_default()] {
                _ if *name == "result" && RESULTS_WITHOUT_BYTES.contains(&function) => "()",
                text => text,
            };
            judged.push(Judged {
                name: format!("{function} {name}"),
                shown: shown.clone(),
                debug: as_printed(debug).into(),
            });
        }
    }
    judged
}

/// Holds what is printed of the values of a fixture's calls against what the fixture writes. Where
/// `may_refuse`, what is refused with a reason is left out.
fn compare(program: &Path, least: usize, may_refuse: bool) {
    let mut wrong = Vec::new();
    let mut compared = 0;
    for Judged { name, shown, debug } in judged(program) {
        // Nothing says that a structure has the representation of C, so such values are refused
        // where it makes a difference.
        if (may_refuse || name.starts_with("v_of_c_")) && shown.is_err() {
            continue;
        }
        compared += 1;
        if shown.as_ref() != Ok(&debug) {
            wrong.push(format!("{name}: {shown:?}\n    not {debug}"));
        }
    }
    let count = wrong.len();
    assert!(
        wrong.is_empty(),
        "{count} of {compared} wrong:\n{}",
        wrong.join("\n")
    );
    assert!(compared > least, "{compared}");
}

#[test]
fn values_that_are_handed_over_have_the_text_of_debug() {
    compare(fixture(), 4000, false);
}

#[test]
fn more_values_that_are_handed_over_have_the_text_of_debug() {
    compare(&of_kernel("handed_more", 3), 4000, false);
}

/// Code that was not optimised puts its arguments into its frame first.
#[test]
fn no_value_of_code_that_was_not_optimised_is_another_one() {
    compare(&of_kernel("handed_more", 0), 3000, true);
}

/// Nothing says which of two functions with the same code is called, so what their values are is
/// not known.
#[test]
fn values_of_functions_that_were_made_one_are_refused() {
    let info = DebugInfo::open(fixture()).unwrap();
    let both = ["of_number", "of_bytes"].map(|name| {
        let found = info.functions(&format!("same_code::{name}"));
        assert_eq!(found.len(), 1, "{name}");
        found[0].address
    });
    assert_eq!(both[0], both[1]);
    for name in ["of_number", "of_bytes"] {
        for value in ["kprobe args.a", "kretprobe retval", "kretprobe args.a"] {
            let (probe, value) = value.split_once(' ').unwrap();
            let text = format!("{probe}:same_code::{name} {{ print({value}); }}");
            let why = compiled(&info, &text).err().unwrap();
            assert!(why.contains("whose code is the same"), "{text}: {why}");
        }
        let text = format!("kprobe:same_code::{name} {{ print(arg0); }}");
        assert!(compiled(&info, &text).is_ok(), "{text}");
    }
    assert_eq!(info.arguments(both[0]), None);
}
