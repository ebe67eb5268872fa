//! The table of functions: against what implements them, and against the document.

use std::{collections::BTreeSet, fs, path::Path};

use crate::{
    EventTable, FUNCTIONS, Role,
    functions::{ABSENT, named},
    program::effects::DONE,
    values::{builtin::GIVEN, words::WORDS},
};

/// Around the table in the document.
const BEGIN: &str = "<!-- functions: this table is checked against the compiler's -->\n";
const END: &str = "<!-- functions: end -->\n";

fn names(role: Role) -> BTreeSet<&'static str> {
    let of_role = FUNCTIONS.iter().filter(|function| function.role == role);
    of_role.map(|function| function.name).collect()
}

#[test]
fn each_function_has_one_implementation() {
    let all: BTreeSet<&str> = FUNCTIONS.iter().map(|function| function.name).collect();
    assert_eq!(all.len(), FUNCTIONS.len(), "a name is there twice");
    let with_both = |role| &names(role) | &names(Role::Both);
    let given: BTreeSet<&str> = GIVEN.iter().map(|(name, _)| *name).collect();
    let done: BTreeSet<&str> = DONE.iter().map(|(name, _)| *name).collect();
    assert_eq!(with_both(Role::Value), given);
    assert_eq!(with_both(Role::Effect), done);
    assert_eq!((given.len(), done.len()), (GIVEN.len(), DONE.len()));
    for name in names(Role::Aggregation) {
        let function = FUNCTIONS.iter().find(|function| function.name == name);
        let usage = function.unwrap().usage.rsplit(" or ").next().unwrap();
        let usage = usage.replace("from, to, step", "0, 100, 10");
        let text = format!(
            "kprobe:vfs_write {{ @ = {}; }}",
            usage.replace("value", "pid")
        );
        super::fake::compiled(&text);
    }
}

#[test]
fn no_function_is_told_to_be_absent() {
    for (name, _) in ABSENT {
        assert!(named(name).is_none(), "{name}");
    }
}

#[test]
fn the_document_has_the_table() {
    let document = document();
    let (_, rest) = document.split_once(BEGIN).expect("the table begins");
    let (shown, _) = rest.split_once(END).expect("the table ends");
    let mut table = String::from("\n| function | what it does or gives |\n|---|---|\n");
    for function in &FUNCTIONS {
        let forms = function
            .usage
            .replace(" or ", "` or `")
            .replace("), ", ")`, `");
        table += &format!("| `{forms}` | {} |\n", function.purpose);
    }
    table += "\n";
    assert_eq!(shown, table);
}

#[test]
fn the_document_has_each_word() {
    let document = document();
    let table = EventTable::default();
    for word in WORDS.into_iter().chain(table.words()) {
        assert!(document.contains(&format!("`{word}`")), "{word} is missing");
    }
}

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/trace-language.md");
    fs::read_to_string(path).expect("the document is there")
}
