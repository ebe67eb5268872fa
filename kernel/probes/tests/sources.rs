//! The crate's sources: rules that no compiler checks.

use std::{collections::BTreeMap, fs, path::Path};

/// All files below `folder` of the sources, with their paths and texts.
fn sources(folder: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.join(folder)];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = fs::read_to_string(&path).expect("a file of the sources");
                let name = path.strip_prefix(&root).expect("below the root");
                files.push((name.display().to_string(), text));
            }
        }
    }
    assert!(!files.is_empty(), "{folder} is empty");
    files
}

/// The code of a text, without comments.
fn code(text: &str) -> String {
    let without = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    text.lines()
        .map(|line| without(line) + "\n")
        .collect::<String>()
}

/// The words of a text: names and paths fall apart into their parts.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// The layers, lowest first, each with what stands in it. A layer names none above its own.
const LAYERS: [&str; 4] = ["data", "hit", "registry", "asm"];

#[test]
fn no_layer_names_one_above_it() {
    for (level, folder) in LAYERS.iter().enumerate() {
        for (name, text) in sources(folder) {
            let code = code(&text);
            let code = code.split("#[cfg(test)]").next().unwrap_or_default();
            for above in &LAYERS[level + 1..] {
                let path = format!("crate::{above}::");
                assert!(!code.contains(&path), "{name} names {above}");
                let import = code.split("use crate::{").skip(1).any(|tail| {
                    let tree = tail.split("\n};").next().unwrap_or_default();
                    tree.lines()
                        .any(|line| line.trim_start().starts_with(&format!("{above}::")))
                });
                assert!(!import, "{name} names {above}");
            }
        }
    }
}

/// A hit takes no lock, allocates nothing and decodes nothing.
#[test]
fn the_read_side_names_neither_memory_nor_lock_nor_decoder() {
    const FORBIDDEN: [&str; 12] = [
        "alloc",
        "Box",
        "Vec",
        "String",
        "Mutex",
        "lock_api",
        "Insn",
        "decode",
        "translate",
        "Probes",
        "registry",
        "asm",
    ];
    for (name, text) in sources("hit") {
        let code = code(&text);
        for word in words(&code) {
            assert!(!FORBIDDEN.contains(&word), "{name} names {word}");
        }
    }
}

/// The labels of invariants in a text, such as `SITE-1`.
fn labels(text: &str) -> Vec<String> {
    let mut labels = Vec::new();
    for (at, _) in text.match_indices('-') {
        let is_letter = |c: &char| c.is_ascii_uppercase();
        let name: String = text[..at].chars().rev().take_while(is_letter).collect();
        let name: String = name.chars().rev().collect();
        let rest = &text[at + 1..];
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        if name.len() >= 3 && !digits.is_empty() {
            labels.push(format!("{name}-{digits}"));
        }
    }
    labels
}

#[test]
fn each_label_that_is_cited_is_defined_once() {
    let mut defined: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut cited: Vec<(String, String)> = Vec::new();
    for (name, text) in sources("") {
        for line in text.lines() {
            let comment = line.trim_start();
            let definition = comment
                .strip_prefix("//! ")
                .and_then(|rest| Some((labels(rest).first()?.clone(), rest)))
                .filter(|(label, rest)| rest.starts_with(&format!("{label}. ")));
            if let Some((label, _)) = definition {
                defined.entry(label).or_default().push(name.clone());
            } else if comment.contains("//") {
                cited.extend(
                    labels(comment)
                        .into_iter()
                        .map(|label| (label, name.clone())),
                );
            }
        }
    }
    assert!(defined.len() > 20, "{} labels", defined.len());
    for (label, files) in &defined {
        assert_eq!(files.len(), 1, "{label} is defined in {files:?}");
    }
    for (label, file) in cited {
        assert!(defined.contains_key(&label), "{file} cites {label}");
    }
}
