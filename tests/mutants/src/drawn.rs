//! Mutants of the source that no author chose: those of cargo-mutants, all of them or a random
//! sample.
//!
//! `cargo mutants --list --json` names each with its place and its replacement. They are applied,
//! tried and judged here, as those of the list are, because cargo-mutants takes any unsuccessful
//! end of the tests for a mutant that is noticed.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{tree::Tree, trial::Change};

/// The version whose mutants the figures in docs/testing.md are about.
const VERSION: &str = "27.1.0";

/// Packages that run on the host, so that its tests can notice.
const PACKAGES: [&str; 28] = [
    "abi",
    "block_heap",
    "bpf",
    "bpf_compiler",
    "debug_info",
    "elf_program",
    "ramfs",
    "frame_bitmap",
    "hit_path",
    "intrusive_queue",
    "kallsyms",
    "log_ring",
    "params",
    "pictures",
    "probes",
    "prompt",
    "recorder",
    "tracefs",
    "trace_language",
    "trace_maps",
    "trace_interface",
    "trace_ring",
    "trace_compiler",
    "trace_answers",
    "trace_link",
    "trace_wire",
    "tracer",
    "unwind",
];

/// See the module's text.
pub struct Drawn {
    /// File, line, column, and the change.
    pub name: String,
    pub file: String,
    package: String,
    /// Line and column of the first and after the last character, counted from 1.
    start: (usize, usize),
    end: (usize, usize),
    replacement: String,
}

impl Drawn {
    /// The mutants of `packages` of the copy, in the order of cargo-mutants. No packages means all
    /// that run on the host.
    ///
    /// # Errors
    /// A package is none of those that run on the host, cargo-mutants is not there, or its output
    /// is not understood.
    pub fn all(tree: &Tree, packages: &[String]) -> Result<Vec<Self>> {
        let output = Command::new("cargo")
            .args(["mutants", "--list", "--json"])
            .args(chosen(packages)?.map(|package| format!("--package={package}")))
            .current_dir(tree.copy())
            .output()
            .context("cannot run cargo")?;
        ensure!(
            output.status.success(),
            "cannot list mutants; `cargo install cargo-mutants@{VERSION} --locked` installs \
                 what does"
        );
        let list: Vec<Value> = serde_json::from_slice(&output.stdout)?;
        list.iter()
            .map(|entry| Self::read(entry).with_context(|| format!("not understood: {entry}")))
            .collect()
    }

    fn read(entry: &Value) -> Option<Self> {
        let text = |key: &str| Some(entry.get(key)?.as_str()?.to_string());
        let place = |end: &str| {
            let place = entry.get("span")?.get(end)?;
            let number = |key: &str| place.get(key)?.as_u64().map(|number| number as usize);
            Some((number("line")?, number("column")?))
        };
        Some(Self {
            name: text("name")?,
            file: text("file")?,
            package: text("package")?,
            start: place("start")?,
            end: place("end")?,
            replacement: text("replacement")?,
        })
    }

    /// Its file, `text`, with the change.
    pub fn text(&self, text: &str) -> Result<String> {
        let at =
            |place| offset(text, place).with_context(|| format!("not in the file: {}", self.name));
        let (start, end) = (at(self.start)?, at(self.end)?);
        Ok([&text[..start], &self.replacement, &text[end..]].concat())
    }

    /// The change as a trial wants it, with the file's text.
    pub fn change<'a>(&'a self, text: &'a str) -> Change<'a> {
        Change {
            name: "drawn",
            file: &self.file,
            text,
        }
    }

    /// Whether its tests take a minute. Those of the other packages take seconds.
    pub fn takes_a_minute(&self) -> bool {
        self.package == "probes"
    }

    /// Arguments of `cargo test` for the tests that may notice, the most likely first. `thorough`
    /// includes those that take minutes.
    pub fn commands(&self, thorough: bool) -> Vec<String> {
        const GUEST: &str = "-p tests --test suite";
        let package = &*self.package;
        let mut commands = match package {
            "probes" => self.commands_of_probes(thorough),
            _ => vec![format!("-p {package} --tests")],
        };
        // Their nouns are shared, so the tests are those of the parts that use them.
        let users: &[&str] = match package {
            "bpf" => &[
                "-p bpf_interpreter --tests",
                "-p bpf_compiler --tests",
                "-p tracefs --tests",
            ],
            "trace_language" | "trace_interface" | "trace_answers" => {
                &["-p trace_compiler --tests"]
            }
            _ => &[],
        };
        commands.extend(users.iter().map(|command| (*command).into()));
        if thorough {
            commands.push(match package {
                "hit_path" => "-p tests --test kernel_text".into(),
                "prompt" => "-p tests --test prompt".into(),
                "debug_info" => "-p tests --test debug_info".into(),
                "pictures" | "tracer" => "-p tests --test trace --test tools".into(),
                "recorder" => "-p tests --test record".into(),
                _ if package.starts_with("trace_") => format!("{GUEST} -- trace_"),
                _ => GUEST.into(),
            });
        }
        commands
    }

    fn commands_of_probes(&self, thorough: bool) -> Vec<String> {
        const LIB: &str = "-p probes --lib";
        const INSTRUCTIONS: &str = "-p probes --test insn";
        const TRANSLATE: &str = "-p probes --test translate";
        const TRAP_FLAG: &str = "-p probes --test trap_flag";
        const TRAPS: &str = "-p probes --test trap3 --test trap4";
        const JUMPS: &str = "-p tests --test suite -- optimization::";
        // No jumps are made in a process, so only the kernel can notice.
        let is_of_jumps = ["detour.rs", "optimize.rs", "templates.rs", "asm/detours.rs"]
            .iter()
            .any(|file| self.file.ends_with(file));
        let (quick, more): (&[&str], &[&str]) = if self.file.contains("/insn/") {
            (&[LIB, INSTRUCTIONS], &[TRANSLATE, TRAP_FLAG])
        } else if is_of_jumps {
            (&[LIB, JUMPS], &[])
        } else {
            (&[LIB, TRANSLATE], &[TRAP_FLAG, TRAPS, INSTRUCTIONS])
        };
        let more = if thorough { more } else { &[] };
        quick
            .iter()
            .chain(more)
            .map(|command| (*command).into())
            .collect()
    }
}

/// Those of [`PACKAGES`] that `packages` names, or all if it names none.
fn chosen(packages: &[String]) -> Result<impl Iterator<Item = &'static str>> {
    for package in packages {
        ensure!(
            PACKAGES.contains(&&**package),
            "{package} is none of the packages that run on the host: {}",
            PACKAGES.join(", ")
        );
    }
    let is_chosen = |name: &str| packages.is_empty() || packages.iter().any(|other| other == name);
    Ok(PACKAGES.into_iter().filter(move |name| is_chosen(name)))
}

/// Where line and column, counted from 1, are in `text`.
fn offset(text: &str, (line, column): (usize, usize)) -> Option<usize> {
    let start: usize = text
        .split_inclusive('\n')
        .take(line.checked_sub(1)?)
        .map(str::len)
        .sum();
    let rest = &text[start..];
    let mut places = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    Some(start + places.nth(column.checked_sub(1)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_in_characters_from_one() {
        let text = "ab\nä§c\n";
        assert_eq!(offset(text, (1, 1)), Some(0));
        assert_eq!(offset(text, (2, 3)).map(|at| &text[at..]), Some("c\n"));
        assert_eq!(offset(text, (2, 5)), Some(text.len()));
        assert_eq!(offset(text, (2, 9)), None);
        assert_eq!(offset(text, (0, 1)), None);
    }

    #[test]
    fn packages_are_chosen_by_name() {
        let names = |packages: &[&str]| {
            let packages = Vec::from_iter(packages.iter().map(ToString::to_string));
            chosen(&packages).map(Vec::from_iter)
        };
        assert_eq!(names(&[]).unwrap(), PACKAGES);
        // In the order of the list, so that a seed draws the same sample.
        let both = ["pictures", "tracer"];
        assert_eq!(names(&["tracer", "pictures"]).unwrap(), both);
        let refused = names(&["tracer", "kernel"]).unwrap_err().to_string();
        assert!(refused.starts_with("kernel is none of"), "{refused}");
    }

    #[test]
    fn an_entry_of_the_list_is_read() {
        let entry = serde_json::json!({
                "name": "a.rs:1:2: replace < with >", "file": "a.rs", "package": "params",
                "replacement": ">",
            "span": {"start": {"line": 1, "column": 2}, "end": {"line": 1, "column": 3}},
        });
        let mutant = Drawn::read(&entry).unwrap();
        assert_eq!((mutant.start, mutant.end), ((1, 2), (1, 3)));
        assert_eq!(mutant.commands(false), ["-p params --tests"]);
        assert!(Drawn::read(&serde_json::json!({"name": "a"})).is_none());
    }
}
