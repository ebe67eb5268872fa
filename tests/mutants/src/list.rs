//! The list of mutants.
//!
//! ```text
//!   == name
//!   file kernel/probes/src/registry/mod.rs
//!   test -p probes --test translate suite::handlers    arguments of `cargo test`; any number
//!   <<<<
//!   text before
//!   ----
//!   text after
//!   >>>>                                                any number of such changes
//! ```
//!
//! Lines outside an entry, and lines that begin with `#` before its changes, are comments. Text is
//! compared without its indentation.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail, ensure};

use crate::tree::Tree;

/// See the module's text.
#[derive(Debug, Default)]
pub struct Mutant {
    pub name: String,
    /// From the top of the tree.
    pub file: String,
    /// Arguments of `cargo test`, for each test to try first.
    pub tests: Vec<String>,
    changes: Vec<(String, String)>,
}

/// Reads the list at `path`.
pub fn read(path: &Path) -> Result<Vec<Mutant>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut mutants: Vec<Mutant> = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let place = || format!("{}:{}", path.display(), number + 1);
        if let Some(name) = line.strip_prefix("== ") {
            ensure!(
                mutants.iter().all(|other| other.name != name),
                "{}: there is a {name} already",
                place()
            );
            mutants.push(Mutant {
                name: name.into(),
                ..Mutant::default()
            });
            continue;
        }
        let Some(mutant) = mutants.last_mut() else {
            continue;
        };
        if let Some(file) = line.strip_prefix("file ") {
            mutant.file = file.into();
        } else if let Some(test) = line.strip_prefix("test ") {
            mutant.tests.push(test.into());
        } else if line == "<<<<" {
            let mut until = |end: &str| {
                let part: Vec<&str> = lines
                    .by_ref()
                    .map(|(_, line)| line)
                    .take_while(|line| *line != end)
                    .collect();
                part.join("\n")
            };
            mutant.changes.push((until("----"), until(">>>>")));
        } else if !line.is_empty() && !line.starts_with('#') {
            bail!("{}: nothing of an entry: {line}", place());
        }
    }
    Ok(mutants)
}

/// The files of `mutants` as they change them.
///
/// # Errors
/// Some do not fit the tree. The error names all of those.
pub fn texts(mutants: &[&Mutant], tree: &Tree) -> Result<Vec<String>> {
    let mut unfit = Vec::new();
    let mut texts = Vec::new();
    for mutant in mutants {
        let path = tree.original(&mutant.file);
        let text = fs::read_to_string(&path)
            .with_context(|| format!("{}: cannot read {}", mutant.name, path.display()))
            .and_then(|text| mutant.applied_to(&text));
        match text {
            Ok(text) => texts.push(text),
            Err(error) => unfit.push(format!("{error:#}")),
        }
    }
    ensure!(
        unfit.is_empty(),
        "{} of {} do not fit the tree\n{}",
        unfit.len(),
        mutants.len(),
        unfit.join("\n")
    );
    Ok(texts)
}

impl Mutant {
    /// `original`, the content of the file, with the changes.
    ///
    /// # Errors
    /// A text is not there exactly once.
    pub fn applied_to(&self, original: &str) -> Result<String> {
        let mut text = original.to_string();
        for (before, after) in &self.changes {
            text = replaced(&text, before, after)
                .with_context(|| format!("{}: {}: {before}", self.name, self.file))?;
        }
        ensure!(text != original, "{} changes nothing", self.name);
        Ok(text)
    }
}

/// `text` with `after` for `before`. Whole lines are compared, without their indentation.
fn replaced(text: &str, before: &str, after: &str) -> Result<String> {
    let lines: Vec<&str> = text.lines().collect();
    let wanted: Vec<&str> = before.lines().map(str::trim).collect();
    ensure!(!wanted.is_empty(), "the text before is empty");
    let found: Vec<usize> = lines
        .windows(wanted.len())
        .enumerate()
        .filter(|(_, window)| {
            window
                .iter()
                .map(|line| line.trim())
                .eq(wanted.iter().copied())
        })
        .map(|(at, _)| at)
        .collect();
    let [at] = found[..] else {
        bail!("the text is there {} times, not once", found.len());
    };
    let mut result: Vec<&str> = lines[..at].to_vec();
    result.extend(after.lines());
    result.extend(&lines[at + wanted.len()..]);
    Ok(result.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_fits_the_tree() {
        let tree = Tree::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..").into());
        let list = read(&tree.original("tests/mutants/mutants.txt")).unwrap();
        assert!(list.len() > 100, "{} entries", list.len());
        if let Err(error) = texts(&Vec::from_iter(&list), &tree) {
            panic!("bring tests/mutants/mutants.txt up to date: {error:#}");
        }
    }

    #[test]
    fn an_entry_whose_text_is_not_there_once_does_not_fit() {
        let mutant = |before: &str| Mutant {
            name: "m".into(),
            file: "f".into(),
            tests: Vec::new(),
            changes: vec![(before.into(), "new".into())],
        };
        assert_eq!(
            mutant("b").applied_to("a\n  b\nc\n").unwrap(),
            "a\nnew\nc\n"
        );
        assert!(
            mutant("b").applied_to("b\nb\n").is_err(),
            "it is there twice"
        );
        assert!(mutant("x").applied_to("a\n").is_err(), "it is not there");
        assert!(
            mutant("new").applied_to("new\n").is_err(),
            "nothing changes"
        );
    }
}
