//! What a kernel can name of the crates that it adopts, item by item, as it is listed in
//! `kernel/probes/api.txt`.
//!
//! A change of the list is a change for adopters. A new line is an addition; but a method of a
//! trait that they implement must have a body. A line that is gone or is another breaks them: then
//! the
//! version's first number that is not 0 goes up. `DOCUMENTS=write` writes the list.
//!
//! The list is read from the pages that rustdoc makes, because that works with every toolchain.

use std::{collections::BTreeSet, env, fs, path::Path, process::Command};

use boot::layout;
use regex::Regex;

/// The crates, by the names of their packages here.
const CRATES: [&str; 3] = ["probes", "kallsyms", "hit_path"];
const LIST: &str = "kernel/probes/api.txt";

/// The text of a piece of a page, on one line.
fn text(html: &str) -> String {
    let summary = Regex::new("(?s)<summary.*?</summary>").unwrap();
    let tag = Regex::new("(?s)<[^>]*>").unwrap();
    let html = summary.replace_all(html, "");
    let mut text = tag.replace_all(&html, "").into_owned();
    for (code, character) in [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&nbsp;", " "),
        ("&amp;", "&"),
    ] {
        text = text.replace(code, character);
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The items of a page: the declaration, and the methods of the type's own implementations.
fn items(page: &str) -> Vec<String> {
    // After these come what traits implement and what other types lend.
    const ENDS: [&str; 5] = [
        "id=\"trait-implementations\"",
        "id=\"synthetic-implementations\"",
        "id=\"blanket-implementations\"",
        "id=\"deref-methods-",
        "id=\"implementors\"",
    ];
    let ends = ENDS.iter().filter_map(|end| page.find(end));
    let page = &page[..ends.min().unwrap_or(page.len())];
    let declaration =
        Regex::new("(?s)<pre class=\"rust (?:item-decl|macro)\"><code>(.*?)</code></pre>").unwrap();
    let method = Regex::new(
        "(?s)id=\"(?:method|associatedconstant)\\.[^\"]*\" class=\"[^\"]*\">.*?\
         <h4 class=\"code-header\">(.*?)</h4>",
    )
    .unwrap();
    let is_trait = page.contains("<h1>Trait");
    let methods = method.captures_iter(page).filter(|_| !is_trait);
    let found = declaration.captures_iter(page).chain(methods);
    found.map(|found| text(&found[1])).collect()
}

/// Adds the items of all pages below `folder`.
fn add_pages(top: &Path, folder: &Path, list: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder of the documentation") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            add_pages(top, &path, list);
        } else if path
            .extension()
            .is_some_and(|extension| extension == "html")
        {
            let page = fs::read_to_string(&path).expect("a page is text");
            let name = path
                .strip_prefix(top)
                .expect("below the top")
                .with_extension("");
            let name = name.display().to_string();
            list.extend(items(&page).iter().map(|item| format!("{name}: {item}")));
        }
    }
}

#[test]
fn the_list_of_the_public_interface_is_true() {
    let target = layout::target().join("public-api");
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["doc", "--no-deps", "--offline"])
        .args(CRATES.iter().flat_map(|name| ["--package", name]))
        .current_dir(layout::workspace())
        .env("CARGO_TARGET_DIR", &target)
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTDOCFLAGS");
    let output = command.output().expect("cargo can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let mut list = BTreeSet::new();
    let top = target.join("doc");
    for name in CRATES {
        add_pages(&top, &top.join(name), &mut list);
    }
    assert!(list.len() > 200, "{} items", list.len());
    let real: String = list.iter().map(|item| format!("{item}\n")).collect();
    let path = layout::workspace().join(LIST);
    if env::var("DOCUMENTS").is_ok_and(|mode| mode == "write") {
        fs::write(&path, &real).unwrap();
    }
    let said = fs::read_to_string(&path).unwrap_or_default();
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (real, said) = (lines(&real), lines(&said));
    let gone: Vec<_> = said.difference(&real).collect();
    let new: Vec<_> = real.difference(&said).collect();
    assert!(
        gone.is_empty() && new.is_empty(),
        "{LIST} is not true any more.\nGone, which breaks adopters: {gone:#?}\nNew: {new:#?}"
    );
}
