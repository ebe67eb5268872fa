//! The text of the program: from the command line, a file, or the ready ones in `tracer/programs`.
//!
//! Arguments stand in it in two ways: `$1` is a value, which the parser puts in, and `text($1)` is
//! a part of the program, which stands in the text before it is parsed.

use std::{fs, path::Path};

use anyhow::{Context, Error, Result, bail};

use crate::{
    options::Options,
    ready::{self, usage},
};

/// How messages call a program that is an argument.
const IN_COMMAND: &str = "program";

/// A text in one line, of so many letters at most.
fn cut(text: &str, most: usize) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    match line.chars().count() > most {
        true => line.chars().take(most).chain(['…']).collect(),
        false => line,
    }
}

/// A program, as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// How messages call it: a file, or that it was an argument.
    pub name: String,
    pub text: String,
    pub arguments: Vec<String>,
}

/// The text of the program with arguments in place of `text($1)`, `text($2)` and so on. They are
/// parts of the program there, such as a probe or a value. The number of the first one that was
/// not given, if there is one.
fn with_texts(program: &str, arguments: &[String]) -> Result<String, usize> {
    const BEGIN: &str = "text($";
    let mut text = String::new();
    let mut rest = program;
    while let Some(at) = rest.find(BEGIN) {
        let (before, call) = rest.split_at(at);
        let number = call[BEGIN.len()..].split_once(')');
        let number = number.and_then(|(number, behind)| Some((number.parse().ok()?, behind)));
        text += before;
        match number {
            Some((number, behind)) => {
                let index = usize::checked_sub(number, 1).ok_or(number)?;
                text += arguments.get(index).ok_or(number)?;
                rest = behind;
            }
            None => {
                text += BEGIN;
                rest = &call[BEGIN.len()..];
            }
        }
    }
    Ok(text + rest)
}

impl Source {
    /// The arguments, as the parser takes them.
    pub fn arguments(&self) -> Vec<&str> {
        self.arguments.iter().map(String::as_str).collect()
    }

    /// The title of a page about it: the program's text in one line, or its name and arguments.
    pub fn title(&self) -> String {
        const MOST: usize = 120;
        let name = match self.name.as_str() {
            IN_COMMAND => return cut(&self.text, MOST),
            name => Path::new(name).file_stem().unwrap_or_default(),
        };
        let name = name.to_string_lossy().into_owned();
        cut(&[&[name], &self.arguments[..]].concat().join(" "), MOST)
    }

    /// The program that the options name.
    pub fn of(options: &Options) -> Result<Self> {
        let source = Self::as_written(options)?;
        match with_texts(&source.text, &source.arguments) {
            Ok(text) => Ok(Self { text, ..source }),
            Err(number) => bail!(
                "{} was not given its argument {number}; it is used as `{}`",
                source.name,
                usage(&source.text).0
            ),
        }
    }

    /// The same, without the arguments in it.
    pub fn as_written(options: &Options) -> Result<Self> {
        if options.graph.is_wanted() {
            return Ok(Self {
                name: "--graph".into(),
                text: options.graph.text(),
                arguments: Vec::new(),
            });
        }
        if let Some(file) = &options.file {
            let text = fs::read_to_string(file).with_context(|| {
                let file = file.display().to_string();
                let next = match &*file {
                    "json" => " (--json prints JSON)",
                    _ => "",
                };
                format!("cannot read the program {file}{next}")
            })?;
            return Ok(Self {
                name: file.display().to_string(),
                text,
                arguments: options.words.clone(),
            });
        }
        let Some((first, arguments)) = options.words.split_first() else {
            bail!("there is no program");
        };
        if let Some(text) = ready::find(first) {
            ready::check_arguments(text, arguments).map_err(Error::msg)?;
            return Ok(Self {
                name: format!("tracer/programs/{first}.bt"),
                text: text.into(),
                arguments: arguments.to_vec(),
            });
        }
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        if first.trim().is_empty() {
            bail!(
                "the program is empty; write, for example, `kprobe:vfs_write {{ @ = count(); }}`"
            );
        }
        let is_file = first.ends_with(".bt") || Path::new(first).is_file();
        if is_file && !first.contains('{') {
            bail!("`{first}` is the name of a file; `-f {first}` reads the program from it");
        }
        if first.chars().all(is_name) {
            let near = ready::near(first);
            if !near.is_empty() {
                bail!("there is no ready program `{first}`; {near}");
            }
            bail!(
                "there is no ready program `{first}`; --help lists them; a program of your own has \
                 a block: `trace 'kprobe:{first} {{ @ = count(); }}'`"
            );
        }
        Ok(Self {
            name: IN_COMMAND.into(),
            text: first.clone(),
            arguments: arguments.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ready::READY;

    #[test]
    fn each_ready_program_is_one_of_the_language_and_tells_its_use() {
        for (name, text) in READY {
            let (used, what) = usage(text);
            assert_eq!(used.split(' ').next(), Some(*name));
            assert!(!what.is_empty(), "{name}");
            let example = text.lines().find_map(|line| {
                let example = line.strip_prefix("// Example")?;
                Some(example.trim_start_matches('s').trim_start_matches(": "))
            });
            assert!(example.is_some_and(|line| line.starts_with(name)), "{name}");
            let arguments = ["kprobe:vfs_write", "arg0"].map(String::from);
            let whole = with_texts(text, &arguments).unwrap();
            let arguments = match used.contains(" PROGRAM") {
                true => ["/bin/workload", "user_main"],
                false => ["vfs_write", "1"],
            };
            let tree = trace_language::parse_with(&whole, &arguments);
            assert!(tree.is_ok(), "{name}: {:?}", tree.err());
        }
        let files = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../programs")).unwrap();
        assert_eq!(files.count(), READY.len());
    }

    #[test]
    fn a_title_tells_what_ran() {
        let title = |name: &str, text: &str, arguments: &[&str]| {
            let arguments = arguments.iter().map(|&word| word.into()).collect();
            let (name, text) = (name.into(), text.into());
            Source {
                name,
                text,
                arguments,
            }
            .title()
        };
        let text = "kprobe:f {\n  @ = count();\n}\n";
        assert_eq!(title(IN_COMMAND, text, &["x"]), "kprobe:f { @ = count(); }");
        let ready = "tracer/programs/funccount.bt";
        assert_eq!(title(ready, text, &["vfs_*"]), "funccount vfs_*");
        let long = title(IN_COMMAND, &"é ".repeat(300), &[]);
        assert_eq!(long.chars().count(), 121, "{long}");
        assert!(long.ends_with("é é…") || long.ends_with("é …"), "{long}");
    }

    #[test]
    fn arguments_stand_in_the_text() {
        let with = |program| with_texts(program, &["a b".into(), "c".into()]);
        assert_eq!(with("text($2){text($1)}"), Ok("c{a b}".into()));
        assert_eq!(with("$1 text($x) text($"), Ok("$1 text($x) text($".into()));
        assert_eq!(with("text($1) text($3)"), Err(3));
        assert_eq!(with("text($0)"), Err(0));
    }
}
