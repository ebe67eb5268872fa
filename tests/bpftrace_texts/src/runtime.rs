//! bpftrace's runtime tests: what a program prints there and here.
//!
//! A test has a program and texts that its output has or has not, or a file with the output as
//! JSON. Here the program runs in a process: `begin`, then a few rounds in which each probe is hit,
//! then `end`. What depends on a real machine or an option of the command is left out.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use regex::{Captures, Regex};
use script_world::Form;
use serde_json::Value as Json;

use crate::{
    groups::{Groups, kind_of},
    json,
    rules::Rules,
    world::{AnyKernel, Outcome, compiled, printed},
};

/// A command that only runs a program, of its text or in a file, perhaps with its output as JSON.
const PLAIN: &str = r#"(?x) ^ \{\{BPFTRACE\}\}
    (?: \x20-[qkv] | \x20--unsafe | \x20-f\x20(?<json>json) )*
    (?: \x20-e\x20'(?<text>[^']*)' | \x20(?<file>runtime/scripts/\w+\.bt) )
    (?: \x20(?:-c|--cmd)\x20(?: '(?<one>[^']*)' | "(?<two>[^"]*)" | (?<three>\S+) ) )?
    (?<words> (?: \x20[\w"./:=-]+ )* ) $"#;
/// Where a message is: before what a program says by `errorf` and `warnf`.
const PLACE: &str = r"^[\w./]+:\d+:\d+-\d+: ";
/// The program of the tests that executes others, and one that is executed.
const EXECUTES: &str = "./testprogs/syscall execve ";
const EXECUTED: &str = "./testprogs/true";
/// Names that no function has there.
const NOWHERE: &str = r"nonsense|:bad\b|:rcu_|kaddr\(.asdf|nf_tables|^k:\*|unroll \(101";
/// Words of the environment that mean nothing here.
const OF_BPFTRACE: [&str; 3] = [
    "BPFTRACE_LOG_SIZE",
    "BPFTRACE_MAX_PROBES",
    "BPFTRACE_CACHE_USER_SYMBOLS",
];

/// A test: its lines, by their first words.
#[derive(Debug, Default)]
struct Test {
    name: String,
    items: Vec<(String, String)>,
}

impl Test {
    fn has(&self, word: &str) -> bool {
        self.items.iter().any(|(item, _)| item == word)
    }

    fn value(&self, word: &str) -> Option<&str> {
        let mut items = self.items.iter();
        items
            .find(|(item, _)| item == word)
            .map(|(_, value)| &**value)
    }
}

/// The tests of a file. A line that begins with blanks goes on with the item above.
fn tests(source: &str) -> Vec<Test> {
    let mut tests = Vec::new();
    for paragraph in source.split("\n\n") {
        let mut test = Test::default();
        for line in paragraph.lines().filter(|line| !line.starts_with('#')) {
            let width = test.items.last().map_or(0, |(item, _)| item.len());
            let is_more = line
                .get(..=width)
                .is_some_and(|begin| begin.trim().is_empty());
            match test.items.last_mut() {
                Some((_, value)) if is_more => {
                    value.push('\n');
                    value.push_str(&line[width + 1..]);
                }
                _ => {
                    let (item, value) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
                    if !item.is_empty() {
                        test.items.push((item.into(), value.trim_start().into()));
                    }
                }
            }
        }
        test.name = test.value("NAME").unwrap_or_default().into();
        if !test.name.is_empty() {
            tests.push(test);
        }
    }
    tests
}

/// Whether a list of architectures has x86_64, or excludes others only.
fn is_of_this_processor(list: &str) -> bool {
    let mut names = list.split('|').map(str::trim);
    let has = names.clone().any(|name| ["x86_64", "le"].contains(&name));
    has || names.all(|name| name.starts_with('!') && name != "!x86_64")
}

/// What a test runs.
#[derive(Debug, Default)]
struct Command {
    program: String,
    arguments: Vec<String>,
    /// Its output is wanted as JSON.
    json: bool,
    /// The words of a program that is executed meanwhile.
    executed: Vec<String>,
}

/// What a test runs, or why it does not run here. `directory` is that of the tests' files.
fn command(test: &Test, plain: &Regex, directory: &Path) -> Result<Command, &'static str> {
    let needs = |value: &str| !OF_BPFTRACE.iter().any(|word| value.starts_with(word));
    let wants_error = test.has("WILL_FAIL");
    let env = test.value("ENV");
    if env.is_some_and(|value| wants_error || needs(value))
        || test.has("SETUP")
        || test.has("NEW_PIDNS")
    {
        return Err("needs an environment");
    }
    if test
        .value("ARCH")
        .is_some_and(|arch| !is_of_this_processor(arch))
    {
        return Err("of other processors");
    }
    let own = ["errorf(", "warnf("];
    let is_own = test
        .items
        .iter()
        .any(|(_, text)| own.iter().any(|it| text.contains(it)));
    let expected = |(item, value): &(String, String)| {
        item.starts_with("EXPECT")
            && !item.ends_with("NONE")
            && ["stdin:", "ERROR", "WARNING", "bpftrace v", "expanded from"]
                .iter()
                .any(|it| value.contains(it))
    };
    if !wants_error && !is_own && test.items.iter().any(expected) {
        return Err("expects a message of bpftrace");
    }
    let executed = test.value("AFTER").and_then(executed_by);
    if let Some(program) = test.value("PROG") {
        return Ok(Command {
            program: program.into(),
            json: test.has("EXPECT_JSON"),
            executed: executed.unwrap_or_default(),
            ..Command::default()
        });
    }
    let command = test.value("RUN").unwrap_or_default();
    let found = plain.captures(command).ok_or("options, files, pipes")?;
    let program = match found.name("file") {
        Some(file) => fs::read_to_string(directory.join(file.as_str()))
            .map_err(|_| "a file that is not there")?,
        None => found["text"].into(),
    };
    let words = found["words"].split_whitespace();
    let mut arguments: Vec<String> = words.map(|word| word.trim_matches('"').into()).collect();
    let mut plain = arguments.iter().take_while(|word| *word != "--");
    if plain.any(|word| word.starts_with('-')) {
        return Err("options, files, pipes");
    }
    arguments.retain(|word| word != "--");
    let child = ["one", "two", "three"]
        .iter()
        .find_map(|name| found.name(name));
    let executed = executed.or_else(|| executed_by(child?.as_str()));
    Ok(Command {
        program,
        arguments,
        json: found.name("json").is_some(),
        executed: executed.unwrap_or_default(),
    })
}

/// The words of the program that a command executes.
fn executed_by(command: &str) -> Option<Vec<String>> {
    let words = match command.split_once(EXECUTES) {
        Some((_, words)) => words,
        None if command.starts_with(EXECUTED) => command,
        None => return None,
    };
    let words = words.split(" &>").next()?.split_whitespace();
    Some(words.map(String::from).collect())
}

/// The lines of an output as JSON.
fn json_lines(output: &str) -> Vec<Json> {
    let lines = output.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_default())
        .collect()
}

/// Whether a line is about the run itself: with `-q` there is none.
fn is_of_the_run(line: &Json) -> bool {
    let kinds = ["attached_probes", "books", "lost_events"];
    kinds.iter().any(|kind| line["type"] == *kind)
}

/// Whether an output as JSON is what a test expects.
fn fits_as_json(test: &Test, output: &str, directory: &Path) -> bool {
    let all = json_lines(output);
    let mut output = all.clone();
    output.retain(|line| !is_of_the_run(line));
    let matches = |pattern: &str| {
        // A brace stands for itself there.
        let regex = Regex::new(&pattern.replace('{', r"\{").replace('}', r"\}"));
        let has = |regex: Regex| {
            let mut lines = output.iter();
            lines.any(|line| {
                let (kind, data) = (&line["type"], &line["data"]);
                regex.is_match(&format!(r#"{{"type": {kind}, "data": {data}}}"#))
            })
        };
        regex.is_ok_and(has)
    };
    test.items.iter().all(|(item, value)| match &**item {
        "EXPECT" => serde_json::from_str(value).is_ok_and(|line| all.contains(&line)),
        "EXPECT_REGEX" => matches(value),
        "EXPECT_NONE" | "EXPECT_REGEX_NONE" => !matches(value),
        "EXPECT_JSON" => match fs::read_to_string(directory.join(value)) {
            Ok(wanted) if value.ends_with(".ndjson") => json_lines(&wanted) == output,
            Ok(wanted) => {
                serde_json::from_str(&wanted).is_ok_and(|wanted: Json| [wanted] == *output)
            }
            Err(_) => false,
        },
        _ => true,
    })
}

/// Whether an output is what a test expects, between the lines that bpftrace itself prints.
fn fits(test: &Test, output: &str, directory: &Path) -> bool {
    // Lists are written as Rust's here, with blanks.
    let lists = Regex::new(r"\[[^\[\]\n]*\]");
    let as_there = lists.map_or_else(
        |_| output.into(),
        |lists| lists.replace_all(output, |list: &Captures<'_>| list[0].replace(", ", ",")),
    );
    let output = &match *as_there == *output {
        true => format!("{output}\n\n"),
        false => format!("{output}\n\n{as_there}\n\n"),
    };
    let place = Regex::new(PLACE);
    let has_line = |wanted: &str| {
        let wanted = match &place {
            Ok(place) => place.replace(wanted, ""),
            Err(_) => wanted.into(),
        };
        let pattern = format!(r"(?m)^\s*{}\s*$", regex::escape(&wanted));
        Regex::new(&pattern).is_ok_and(|regex| regex.is_match(output))
    };
    let matches = |pattern: &str| {
        let regex = Regex::new(&format!("(?m){pattern}"));
        regex.is_ok_and(|regex| regex.is_match(output))
    };
    test.items.iter().all(|(item, value)| match &**item {
        "EXPECT" => has_line(value),
        "EXPECT_NONE" => !has_line(value),
        "EXPECT_REGEX" => matches(value),
        "EXPECT_REGEX_NONE" => !matches(value),
        "EXPECT_FILE" => fs::read_to_string(directory.join(value))
            .is_ok_and(|wanted| output.trim().ends_with(wanted.trim())),
        _ => true,
    })
}

/// Whether the output of a command is what a test expects.
fn is_expected(test: &Test, command: &Command, output: &str, directory: &Path) -> bool {
    match command.json {
        true => fits_as_json(test, output, directory),
        false => fits(test, output, directory),
    }
}

/// What a command prints. If it is refused, the message; none if the interpreter objects to it.
fn output(command: &Command) -> Result<String, Option<String>> {
    let words: Vec<&str> = command.arguments.iter().map(String::as_str).collect();
    let kernel = AnyKernel::default();
    let as_json: Form =
        |event, text, presentation, symbols| json::event(event, text, presentation, true, symbols);
    match compiled(&command.program, &words, &kernel) {
        Outcome::Refused { message, .. } => Err(Some(message)),
        Outcome::Taken(compiled) => {
            let form = command.json.then_some(as_json);
            let executed: Vec<&str> = command.executed.iter().map(String::as_str).collect();
            let probes = compiled.script.attachments.len();
            let said = printed(*compiled, &kernel, form, &executed).ok_or(None)?;
            Ok(match command.json {
                true => said,
                false => {
                    let s = if probes == 1 { "" } else { "s" };
                    format!("Attached {probes} probe{s}\n{said}")
                }
            })
        }
    }
}

/// Runs the runtime tests that can be run, and prints the figures.
pub fn hold(checkout: &Path) -> Result<()> {
    let rules = Rules::new();
    let plain = Regex::new(PLAIN)?;
    let nowhere = Regex::new(NOWHERE)?;
    let directory = checkout.join("tests");
    let folder = directory.join("runtime");
    let files = fs::read_dir(&folder).with_context(|| format!("no {}", folder.display()))?;
    let mut files: Vec<_> = files.collect::<std::io::Result<_>>()?;
    files.sort_by_key(fs::DirEntry::file_name);
    let (mut left_out, mut refused) = (Groups::default(), Groups::default());
    let (mut others, mut same, mut run) = (Groups::default(), 0, 0);
    for file in files.iter().filter(|file| file.path().is_file()) {
        let source = fs::read_to_string(file.path())?;
        for test in tests(&source) {
            let place = format!("{}: {}", file.file_name().display(), test.name);
            let found = command(&test, &plain, &directory);
            let found = found.and_then(|found| match rules.left_out(&found.program) {
                Some(rule) => Err(rule),
                None if test.has("WILL_FAIL") && nowhere.is_match(&found.program) => {
                    Err("an error of names and limits that the made-up kernel has not")
                }
                None => Ok(Command {
                    program: rules.renamed(&found.program),
                    ..found
                }),
            });
            let command = match found {
                Ok(found) => found,
                Err(reason) => {
                    left_out.add(reason, &place, "");
                    continue;
                }
            };
            run += 1;
            let text = &command.program;
            if test.has("WILL_FAIL") {
                match output(&command) {
                    Err(_) => same += 1,
                    // One that ends with an error of its own.
                    Ok(output) if is_expected(&test, &command, &output, &directory) => same += 1,
                    Ok(output) => {
                        let said = format!("{text} -> {output}");
                        others.add("an error there", &place, &said);
                    }
                }
                continue;
            }
            match output(&command) {
                Ok(output) if is_expected(&test, &command, &output, &directory) => same += 1,
                Ok(output) => others.add("other output", &place, &format!("{text} -> {output}")),
                Err(Some(message)) => refused.add(&kind_of(&message), &place, text),
                Err(None) => others.add("the interpreter objects", &place, text),
            }
        }
    }
    println!(
        "\n2. Runtime tests: {} cannot be run here",
        left_out.count()
    );
    left_out.print(false);
    println!("\nThe same output: {same} of {run}");
    println!("\nRefused: {}", refused.count());
    refused.print(true);
    println!("\nNot the same: {}", others.count());
    others.print(true);
    Ok(())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_test_is_read_run_and_judged() {
        let source = "# a comment\nNAME it counts\nPROG begin { @n = 1;\n     @n++; }\n\
                      EXPECT @n: 2\nEXPECT_NONE @n: 1\n\nNAME other\nRUN {{BPFTRACE}} -e \
                      'begin { print($1); }' 7\nEXPECT_REGEX ^7$\n";
        let tests = tests(source);
        assert_eq!(tests.len(), 2);
        let plain = Regex::new(PLAIN).unwrap();
        for (test, text) in tests
            .iter()
            .zip(["begin { @n = 1;\n@n++; }", "begin { print($1); }"])
        {
            let command = command(test, &plain, Path::new(".")).unwrap();
            assert_eq!(command.program, text);
            let output = output(&command).unwrap();
            assert!(
                is_expected(test, &command, &output, Path::new(".")),
                "{output}"
            );
            assert!(!fits(test, "@n: 1\n", Path::new(".")));
        }
    }
}
