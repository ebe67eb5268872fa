//! The table of functions: against what implements them, and against the document.

use std::{collections::BTreeSet, fs, path::Path};

use crate::{FUNCTIONS, Role, program::effects::DONE, values::builtin::GIVEN};

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
    assert_eq!(
        names(Role::Value),
        GIVEN.iter().map(|(name, _)| *name).collect()
    );
    assert_eq!(
        names(Role::Effect),
        DONE.iter().map(|(name, _)| *name).collect()
    );
    assert_eq!(
        GIVEN.len() + DONE.len() + names(Role::Aggregation).len(),
        FUNCTIONS.len()
    );
    for name in names(Role::Aggregation) {
        let function = FUNCTIONS.iter().find(|function| function.name == name);
        let usage = function
            .unwrap()
            .usage
            .replace("from, to, step", "0, 100, 10");
        let text = format!(
            "kprobe:vfs_write {{ @ = {}; }}",
            usage.replace("value", "pid")
        );
        super::fake::compiled(&text);
    }
}

#[test]
fn the_document_has_the_table() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let files = ["trace-language.md", "tracing.md"].map(|name| fs::read_to_string(docs.join(name)));
    let texts: Vec<String> = files.into_iter().flatten().collect();
    let mut tables = texts.iter().filter_map(|text| {
        let (_, rest) = text.split_once(BEGIN)?;
        Some(rest.split_once(END)?.0)
    });
    let mut table = String::from("\n| function | what it does or gives |\n|---|---|\n");
    for function in &FUNCTIONS {
        let forms = function
            .usage
            .replace(" or ", "` or `")
            .replace("), ", ")`, `");
        table += &format!("| `{forms}` | {} |\n", function.purpose);
    }
    table += "\n";
    assert_eq!(
        tables.next(),
        Some(&*table),
        "one of the documents has this between its marks"
    );
    assert_eq!(tables.next(), None, "two documents have a table");
}
