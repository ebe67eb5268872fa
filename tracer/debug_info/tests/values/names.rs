//! Names, lines and places that tools for C do not find in a Rust program.
//!
//! Names are asked for in the way in which a user writes them: paths with and without generic
//! arguments, functions that were inlined everywhere, closures, lines. Where the compiler's way to
//! write symbols matters, the fixture is asked about in both. What cannot be told must be refused
//! with the reason.

use std::collections::BTreeSet;

use debug_info::DebugInfo;
use trace_interface::{
    Kernel,
    symbols::{Expression, Moment, ProbePlace, Register, Source, Type},
};

use crate::{Mangling, SOURCE, marked, open};

fn paths(info: &DebugInfo, pattern: &str) -> Vec<String> {
    info.functions(pattern)
        .into_iter()
        .map(|function| function.path)
        .collect()
}

fn at(address: u64) -> ProbePlace {
    ProbePlace {
        address,
        moment: Moment::At,
    }
}

/// The mark of the linker is at the same address, and is no other name of it.
#[test]
fn a_function_at_the_mark_of_a_section_is_one_function() {
    for mangling in [Mangling::Legacy, Mangling::V0] {
        let info = open(mangling);
        let path = "shapes::first_in_section";
        assert_eq!(paths(&info, "first_in_section"), [path], "{mangling:?}");
        let address = info.functions(path)[0].address;
        let all = info.functions("*");
        let there = all.iter().filter(|function| function.address == address);
        assert_eq!(there.count(), 1, "{mangling:?}");
        let number = info.variable(at(address), "number").unwrap();
        let Type::Integer { bytes: 8, .. } = &*info.describe(number.type_id) else {
            panic!("{number:?}");
        };
    }
}

#[test]
fn functions_are_found_as_the_source_names_them() {
    for mangling in [Mangling::Legacy, Mangling::V0] {
        let info = open(mangling);
        let one = [
            ("plain_name", "shapes::plain_name"),
            ("shapes::inner::same_name", "shapes::inner::same_name"),
            ("inner::same_name", "shapes::inner::same_name"),
            ("outer::within", "shapes::outer::within"),
            ("Stack<u8>::push", "shapes::Stack<u8>::push"),
            ("Stack<u16>::push", "shapes::Stack<u16>::push"),
            ("convert<u64>", "shapes::Stack<u8>::convert<u64>"),
            (
                "with_closure::{closure#1}",
                "shapes::with_closure::{closure#1}",
            ),
            ("<str as Speak>::speak", "<str as shapes::Speak>::speak"),
            ("str::speak", "<str as shapes::Speak>::speak"),
            (
                "<Stack<u8> as Speak>::speak",
                "<shapes::Stack<u8> as shapes::Speak>::speak",
            ),
            (
                "Stack::speak",
                "<shapes::Stack<u8> as shapes::Speak>::speak",
            ),
        ];
        for (pattern, path) in one {
            assert_eq!(paths(&info, pattern), [path], "{pattern} {mangling:?}");
        }
        let all = paths(&info, "Stack<T>::push");
        let expected = ["shapes::Stack<u8>::push", "shapes::Stack<u16>::push"];
        assert_eq!(
            BTreeSet::from_iter(all.iter().map(String::as_str)),
            BTreeSet::from(expected)
        );
        assert_eq!(info.functions("same_name").len(), 2);
        assert_eq!(info.functions("Speak::speak").len(), 2);
        assert!(paths(&info, "int_u?").contains(&"shapes::int_u8".into()));
        assert_eq!(info.functions("option_*").len(), 18);
        assert!(info.functions("no_such_function").is_empty());
        assert_eq!(info.nearest("same_nam")[0], "same_name");
    }
}

#[test]
fn each_function_is_found_by_its_path_and_by_its_symbol() {
    for mangling in [Mangling::Legacy, Mangling::V0] {
        let info = open(mangling);
        let all = info.functions("*");
        assert!(all.len() > 150, "{}", all.len());
        for function in &all {
            for name in [&function.path, &function.symbol] {
                let found = info.functions(name);
                assert!(found.contains(function), "{name}: {found:?}");
            }
        }
    }
}

#[test]
fn a_function_that_exists_only_inlined_is_found_at_each_copy() {
    let info = open(Mangling::Legacy);
    assert!(info.functions("only_inlined").is_empty());
    let copies = info.inlined("only_inlined");
    // Two functions have one copy and two, and `forgets` may have swallowed none of them.
    assert!(copies.len() >= 3, "{copies:x?}");
    let mut inside: Vec<String> = copies
        .iter()
        .map(|copy| info.function_at(*copy).unwrap().path)
        .collect();
    inside.dedup();
    assert_eq!(inside, ["shapes::inlines_once", "shapes::inlines_twice"]);
    assert_eq!(info.inlined("shapes::only_inlined"), copies);
    // Where a copy begins, its own arguments are known.
    let mut right: Vec<_> = copies
        .iter()
        .map(|copy| {
            info.variable(at(*copy), "right").unwrap().pieces[0]
                .source
                .clone()
        })
        .collect();
    right.truncate(3);
    assert_eq!(
        right,
        [3, 4, 5].map(|value| Source::Value(Expression::Constant(value)))
    );
}

/// An argument is one of the function itself, or, where a copy is asked for, of the copied one.
#[test]
fn neither_variables_nor_the_arguments_of_copies_are_arguments() {
    let info = open(Mangling::Legacy);
    let copies = info.inlined("only_inlined");
    let refused = |address: u64, copy: Option<&str>, name: &str| {
        info.argument(at(address), copy, name).unwrap_err()
    };
    let there = "only_inlined";
    let right = info.argument(at(copies[0]), Some(there), "right");
    let right = right.unwrap().pieces[0].source.clone();
    assert_eq!(right, Source::Value(Expression::Constant(3)));
    let none = refused(copies[0], None, "right");
    assert_eq!(
        none.reason,
        "shapes::inlines_once has no argument with the name right"
    );
    assert_eq!(none.help, "a variable is read by its name alone: right");
    let none = refused(copies[0], Some(there), "a");
    assert_eq!(
        none.reason,
        "shapes::only_inlined has no argument with the name a"
    );
    assert_eq!(none.help, "a variable is read by its name alone: a");
    let none = refused(copies[0], Some(there), "lift");
    assert_eq!(none.help, "did you mean left?");
    // What begins at the place is a copy of another function, if it is one at all.
    assert!(
        refused(copies[0], Some("same_name"), "a")
            .reason
            .contains("same_name")
    );

    let function = &info.functions("local_variables")[0];
    let line = info.line("shapes.rs", marked("both")).unwrap();
    let known = |address: &&u64| info.variable(at(**address), "doubled").is_ok();
    let address = *line.iter().find(known).unwrap();
    let none = refused(address, None, "doubled");
    assert_eq!(none.help, "a variable is read by its name alone: doubled");
    let none = refused(address, None, "something");
    assert_eq!(none.help, "its arguments are a");
    assert!(info.argument(at(function.address), None, "a").is_ok());
}

#[test]
fn arguments_are_named_in_the_order_of_the_source() {
    let info = open(Mangling::Legacy);
    let function = &info.functions("inlines_once")[0];
    assert_eq!(info.arguments(function.address), Some(vec!["a".into()]));
    assert_eq!(info.arguments(1), None);
}

/// Between two instructions none begins, and the next step is one of the two.
#[test]
fn places_between_instructions_are_refused_with_the_ones_around_them() {
    let info = open(Mangling::Legacy);
    let function = &info.functions("local_variables")[0];
    let taken = |offset: &u64| info.instruction(function, *offset).is_ok();
    let begins: Vec<u64> = (0..function.bytes).filter(taken).collect();
    assert!(begins.len() > 3, "{begins:?}");
    let mut refused = 0;
    for offset in (0..function.bytes).filter(|offset| !begins.contains(offset)) {
        let told = info.instruction(function, offset).unwrap_err();
        let next = begins.partition_point(|begin| *begin < offset);
        let before = begins[next - 1];
        let help = match begins.get(next) {
            Some(next) => format!("instructions begin at `+{before}` and at `+{next}`"),
            None => format!("the last instruction begins at `+{before}`"),
        };
        assert_eq!(told.help, help, "{offset}");
        refused += 1;
    }
    assert!(refused > 3, "{begins:?}");
    let behind = info.instruction(function, function.bytes).unwrap_err();
    let reason = format!("has {} bytes of code", function.bytes);
    assert!(behind.reason.contains(&reason), "{behind}");
}

#[test]
fn lines_have_addresses_in_their_functions() {
    for mangling in [Mangling::Legacy, Mangling::V0] {
        let info = open(mangling);
        let line = marked("more");
        let addresses = info.line("shapes.rs", line).unwrap();
        assert!(!addresses.is_empty());
        for address in &addresses {
            let function = info.function_at(*address).unwrap();
            assert_eq!(function.path, "shapes::local_variables");
        }
        assert_eq!(info.line("fixture/shapes.rs", line).unwrap(), addresses);
        assert_eq!(info.line(SOURCE, line).unwrap(), addresses);
        // A line of a function that is inlined has code wherever it is.
        let copies = info.line("shapes.rs", marked("only_inlined")).unwrap();
        assert!(copies.len() >= 3, "{copies:x?}");
        let none = info.line("shapes.rs", 1).unwrap_err();
        assert!(none.help.contains("nearest lines with code"), "{none}");
        let none = info.line("shape.rs", 1).unwrap_err();
        assert!(none.help.contains("shapes.rs"), "{none}");
        assert!(info.line("apes.rs", line).is_err());
    }
}

#[test]
fn a_name_that_is_not_there_is_refused_with_near_ones() {
    let info = open(Mangling::Legacy);
    let function = &info.functions("local_variables")[0];
    let place = at(function.address);
    let refused = info.variable(place, "doubledd").unwrap_err();
    assert!(
        refused.reason.contains("nothing with the name doubledd"),
        "{refused}"
    );
    let refused = info.variable(place, "doubled").unwrap_err();
    assert!(refused.reason.contains("not in scope"), "{refused}");
    assert!(refused.help.contains("lines"), "{refused}");
    let refused = info.variable(place, "b").unwrap_err();
    assert_eq!(refused.help, "did you mean a?");
    // Where it is in scope, it comes after the arguments, whatever scope it is of.
    let line = info.line("shapes.rs", marked("more")).unwrap();
    let names = line.iter().map(|address| info.variables(at(*address)));
    let names: Vec<String> = names.max_by_key(Vec::len).unwrap();
    assert_eq!(names.first().map(String::as_str), Some("a"), "{names:?}");
    assert!(names.len() > 1, "{names:?}");
}

#[test]
fn an_argument_that_is_dead_is_told_by_the_register_it_came_in() {
    let info = open(Mangling::Legacy);
    let addresses = info.line("shapes.rs", marked("forgotten")).unwrap();
    let found: Vec<_> = addresses
        .iter()
        .filter_map(|address| info.variable(at(*address), "a").ok())
        .collect();
    let entry = Source::Value(Expression::AtEntry(Register::Di));
    assert!(
        found
            .iter()
            .any(|variable| variable.pieces[0].source == entry),
        "{found:?}"
    );
}

#[test]
fn an_argument_without_use_is_refused() {
    let info = open(Mangling::Legacy);
    let function = &info.functions("unused_argument")[0];
    assert!(info.variable(at(function.address), "used").is_ok());
    let refused = info.variable(at(function.address), "_unused").unwrap_err();
    assert!(
        refused.reason.contains("argument _unused is not there"),
        "{refused}"
    );
}

/// The help does not send anyone to the place where the variable was refused.
#[test]
fn a_variable_of_an_unknown_frame_is_refused_with_a_way_out() {
    let mut bytes = std::fs::read(crate::fixture(Mangling::Legacy)).unwrap();
    for name in [".eh_frame", ".debug_frame"] {
        let name = [b"\0", name.as_bytes(), b"\0"].concat();
        while let Some(at) = bytes.windows(name.len()).position(|there| there == name) {
            bytes[at + 1] = b'-';
        }
    }
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("without_frames");
    std::fs::write(&path, bytes).unwrap();
    let info = DebugInfo::open(&path).unwrap();
    let function = &info.functions("shapes::many")[0];
    assert!(info.variable(at(function.address), "a").is_ok());
    let refused = info.variable(at(function.address), "g").unwrap_err();
    assert!(refused.reason.contains("frame"), "{refused}");
    assert!(refused.help.contains("reg(\"di\")"), "{refused}");
}

#[test]
fn results_that_cannot_be_told_are_refused() {
    let info = open(Mangling::Legacy);
    let refused = |name: &str| {
        let function = &info.functions(name)[0];
        info.returned(function.address).unwrap_err().reason
    };
    assert!(refused("never").contains("never returns"));
    assert!(refused("plain_name").contains("calling convention"));
    assert!(refused("foreign").contains("calling convention"));
    assert!(refused("always").contains("changed how"));
    // Its own variables are where they are, however it is called.
    let addresses = info.line("shapes.rs", marked("kept")).unwrap();
    let known = |address: &u64| info.variable(at(*address), "kept").is_ok();
    assert!(addresses.iter().any(known), "{addresses:x?}");
    let inside = info.functions("pair")[0].address + 1;
    assert!(
        info.returned(inside)
            .unwrap_err()
            .reason
            .contains("inside of")
    );
}

#[test]
fn signatures_are_as_in_the_source() {
    let info = open(Mangling::Legacy);
    let cases = [
        (
            "option_text",
            "fn option_text(a: Option<&str>) -> Option<&str>",
        ),
        (
            "result_usize",
            "fn result_usize(a: Result<usize, Errno>) -> Result<usize, Errno>",
        ),
        ("array_words", "fn array_words(a: [u32; 3]) -> [u32; 3]"),
        ("nothing", "fn nothing()"),
        ("vector", "fn vector(a: Vec<u32>) -> Vec<u8>"),
        ("mutable", "fn mutable(a: &mut u64) -> Option<&mut u64>"),
        ("object", "fn object(a: &dyn Debug, b: u8) -> &dyn Debug"),
        (
            "Stack<u8>::push",
            "fn push(self: &mut Stack<u8>, item: u8) -> usize",
        ),
    ];
    for (name, expected) in cases {
        let functions = info.functions(name);
        let signature = info.signature(&functions[0]);
        assert_eq!(info.signatures(&functions)[0], signature);
        assert_eq!(signature.text, expected);
        let (file, line) = signature.place.unwrap();
        assert!(
            file.ends_with("fixture/shapes.rs") && line > 0,
            "{file}:{line}"
        );
    }
}

#[test]
fn closures_have_what_they_capture() {
    let info = open(Mangling::Legacy);
    let apply = &info.functions("apply")[0];
    let closure = info.variable(at(apply.address), "function").unwrap();
    let Type::Struct(closure) = &*info.describe(closure.type_id) else {
        panic!("{closure:?}");
    };
    assert_eq!(closure.name, "{closure_env#0}");
    assert_eq!(closure.fields[0].name, "step");
}

#[test]
fn static_variables_are_found_by_their_path() {
    let info = open(Mangling::Legacy);
    for path in ["HEAP_USED", "shapes::HEAP_USED"] {
        let counter = info.global(path).unwrap();
        assert!(
            matches!(
                counter.pieces[0].source,
                Source::Memory(Expression::Constant(_))
            ),
            "{counter:?}"
        );
    }
    let refused = info.global("HEAP_USE").unwrap_err();
    assert!(refused.help.contains("HEAP_USED"), "{refused}");
}

#[test]
fn a_damaged_or_stale_index_is_made_anew() {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("index");
    std::fs::create_dir_all(&directory).unwrap();
    let kernel = directory.join("kernel");
    let index = directory.join("kernel.index");
    std::fs::copy(crate::fixture(Mangling::Legacy), &kernel).unwrap();
    let _ = std::fs::remove_file(&index);
    let made = || {
        let info = DebugInfo::open(&kernel).unwrap();
        assert_eq!(info.functions("int_u8").len(), 1);
        info.times().made
    };
    assert!(made());
    assert!(!made());
    // Another time of the same file.
    let times = std::fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
    let file = std::fs::File::options().write(true).open(&kernel).unwrap();
    file.set_times(times).unwrap();
    assert!(!made());
    let whole = std::fs::read(&index).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    for content in [&damaged[..], &whole[..whole.len() - 1], b"", &whole[..8]] {
        std::fs::write(&index, content).unwrap();
        assert!(made());
    }
    assert_eq!(std::fs::read(&index).unwrap(), whole);
    std::fs::copy(crate::fixture(Mangling::V0), &kernel).unwrap();
    assert!(made());
}

#[test]
fn files_without_debug_information_are_refused() {
    let refused = |path: &str| DebugInfo::open(path.as_ref()).err().unwrap().to_string();
    assert!(refused("/nowhere/kernel").contains("cannot be read"));
    assert!(refused(SOURCE).contains("should be an ELF file"));
}
