//! The text of the program: from the command line, a file, or the ready ones in `tracer/programs`.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::options::Options;

/// A program, as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// How messages call it: a file, or that it was an argument.
    pub name: String,
    pub text: String,
    pub arguments: Vec<String>,
}

macro_rules! ready {
    ($($name:literal),*) => {
        &[$(($name, include_str!(concat!("../../programs/", $name, ".bt")))),*]
    };
}

/// The ready programs: names and texts. The first line of each tells how it is used.
const READY: &[(&str, &str)] = ready![
    "argdist",
    "execsnoop",
    "funccount",
    "funclatency",
    "offcputime",
    "opensnoop",
    "stackcount",
    "syscount"
];

/// The ready programs as the help shows them.
pub fn ready_help() -> String {
    let usage = READY.iter().map(|(_, text)| {
        let line = text.lines().next().unwrap_or_default();
        let (usage, what) = line
            .trim_start_matches("// ")
            .split_once(": ")
            .unwrap_or((line, ""));
        format!("  {usage:<24} {what}")
    });
    let lines: Vec<String> = usage.collect();
    format!(
        "Ready programs, in tracer/programs, to be copied and changed:\n{}",
        lines.join("\n")
    )
}

impl Source {
    /// The program that the options name.
    pub fn of(options: &Options) -> Result<Self> {
        if let Some(file) = &options.file {
            let text = fs::read_to_string(file)
                .with_context(|| format!("cannot read the program {}", file.display()))?;
            return Ok(Self {
                name: file.display().to_string(),
                text,
                arguments: options.words.clone(),
            });
        }
        let Some((first, arguments)) = options.words.split_first() else {
            bail!("there is no program");
        };
        if let Some((name, text)) = READY.iter().find(|(name, _)| name == first) {
            return Ok(Self {
                name: format!("tracer/programs/{name}.bt"),
                text: (*text).into(),
                arguments: arguments.to_vec(),
            });
        }
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        if first.trim().is_empty() {
            bail!(
                "the program is empty; write, for example, `kprobe:vfs_write {{ @ = count(); }}`"
            );
        }
        if first.chars().all(is_name) {
            let names: Vec<&str> = READY.iter().map(|(name, _)| *name).collect();
            bail!(
                "there is no ready program `{first}`; there are {}; a program of your own has a \
                 block: `trace 'kprobe:{first} {{ @ = count(); }}'`",
                names.join(", ")
            );
        }
        Ok(Self {
            name: "program".into(),
            text: first.clone(),
            arguments: arguments.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ready_program_is_one_of_the_language_and_tells_its_use() {
        for (name, text) in READY {
            let usage = text.lines().next().unwrap();
            assert!(usage.starts_with(&format!("// {name}")), "{usage}");
            assert!(usage.contains(": "), "{usage}");
            let tree = trace_language::parse_with(text, &["vfs_write"]);
            assert!(tree.is_ok(), "{name}: {:?}", tree.err());
        }
        let files = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../programs")).unwrap();
        assert_eq!(files.count(), READY.len());
    }
}
