//! `cargo run -p mutants`: breaks the kernel on purpose, and checks that the tests notice.
//!
//! ```text
//!   list           mutants.txt: mutants written by hand, each with the tests that should notice
//!   drawn          mutants of the source from cargo-mutants, which no author chose
//!   machine_code   mutants of the linked test kernel's assembly and glue, drawn by rules
//!   sample         a random sample of mutants, by its seed
//!   tree           a copy of the working tree in target/mutants, with its own target directory
//!   trial          one mutant of the source: one `cargo test` after the other, until one notices
//!   verdict        the meaning of a test's end for a mutant
//! ```
//!
//! The tests run without a mutant first. If one fails then, the run ends with its name.

#![forbid(unsafe_code)]

mod drawn;
mod list;
mod machine_code;
mod sample;
mod tree;
mod trial;
mod verdict;

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand};

use crate::{
    drawn::Drawn,
    machine_code::Effort,
    tree::Tree,
    trial::{Change, Trials},
    verdict::{Tally, Verdict},
};

/// Breaks the kernel on purpose and sees whether the tests notice.
#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Subcommand)]
enum Kind {
    /// Those of the list mutants.txt
    Written {
        #[command(flatten)]
        choice: Choice,
        /// Tries only the tests that the list names
        #[arg(long)]
        named_tests_only: bool,
    },
    /// Those that cargo-mutants finds in the packages that run on the host
    Drawn {
        #[command(flatten)]
        sample: Sample,
        #[command(flatten)]
        choice: Choice,
        /// Draws from this package alone, or from several; without: from all
        #[arg(long = "package")]
        packages: Vec<String>,
        /// Tries all tests that could notice, the guest's among them: minutes for each that
        /// survives
        #[arg(long)]
        thorough: bool,
    },
    /// Those of the assembly and the kernel's glue in the linked test kernel
    MachineCode {
        #[command(flatten)]
        sample: Sample,
        #[command(flatten)]
        choice: Choice,
        /// Tries all guest tests that execute the instruction, not only a minute of them
        #[arg(long)]
        thorough: bool,
        /// Tries the guest tests whose names begin so, and no others
        #[arg(long = "test", conflicts_with = "thorough")]
        tests: Vec<String>,
        /// Takes this test kernel, as target/boot/testkernel of a build, and builds none
        #[arg(long)]
        kernel: Option<PathBuf>,
    },
}

#[derive(Args)]
struct Choice {
    /// Mutants to try, by parts of their names; none: all
    names: Vec<String>,
    /// Names the mutants, and tries none
    #[arg(long)]
    list: bool,
}

impl Choice {
    fn includes(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|part| name.contains(part))
    }
}

#[derive(Args)]
struct Sample {
    /// The seed of the sample
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many are drawn
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    count: usize,
    /// Leaves out the first of those drawn, which have been tried before, and takes the tree as it
    /// was then
    #[arg(long, default_value_t = 0)]
    skip: usize,
    /// Begins no mutant after so many minutes
    #[arg(long)]
    minutes: Option<u64>,
}

impl Sample {
    /// When no further mutant may begin.
    fn deadline(&self) -> Option<Instant> {
        let minutes = self.minutes?;
        Some(Instant::now() + Duration::from_secs(60 * minutes))
    }

    /// The sample of `all`, from each `part` as many, the `slow` ones last, and of that what
    /// `choice` includes.
    fn of<T, P: PartialEq>(
        &self,
        all: Vec<T>,
        part: impl Fn(&T) -> P,
        slow: impl Fn(&T) -> bool,
        name: impl Fn(&T) -> &str,
        choice: &Choice,
    ) -> Vec<T> {
        let mut sample = sample::draw(all, part, self.seed, self.count);
        sample.sort_by_key(slow);
        sample
            .into_iter()
            .skip(self.skip)
            .filter(|mutant| choice.includes(name(mutant)))
            .collect()
    }
}

fn main() -> ExitCode {
    let workspace = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    match workspace
        .canonicalize()
        .map_err(Into::into)
        .and_then(|workspace| run(&Options::parse(), &Tree::new(workspace)))
    {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutants: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether every mutant was noticed.
fn run(options: &Options, tree: &Tree) -> Result<bool> {
    match &options.kind {
        Kind::Written {
            choice,
            named_tests_only,
        } => written(tree, choice, *named_tests_only),
        Kind::Drawn {
            sample,
            choice,
            packages,
            thorough,
        } => drawn(tree, sample, choice, packages, *thorough),
        Kind::MachineCode {
            sample,
            choice,
            thorough,
            tests,
            kernel,
        } => {
            let effort = match thorough {
                _ if !tests.is_empty() => Effort::Named(tests.clone()),
                false => Effort::Usual,
                true => Effort::All,
            };
            let target = machine_code::Target::build(kernel.as_deref())?;
            let all = target.mutants()?;
            println!("{} mutants by the rules", all.len());
            let chosen = sample.of(
                all,
                |mutant| mutant.kind(),
                |_| false,
                |mutant| &mutant.name,
                choice,
            );
            if choice.list {
                return Ok(listed(chosen.iter().map(|mutant| &*mutant.name)));
            }
            let trials = target.trials(&chosen, effort)?;
            each(
                &chosen,
                sample.deadline(),
                |mutant| &mutant.name,
                |mutant| trials.run(mutant),
            )
        }
    }
}

fn written(tree: &Tree, choice: &Choice, named_tests_only: bool) -> Result<bool> {
    let all = list::read(&tree.original("tests/mutants/mutants.txt"))?;
    let chosen: Vec<_> = all
        .iter()
        .filter(|mutant| choice.includes(&mutant.name))
        .collect();
    let texts = list::texts(&chosen, tree)?;
    if choice.list {
        return Ok(listed(chosen.iter().map(|mutant| &*mutant.name)));
    }
    tree.restore()?;
    tree.update()?;
    let mut trials = Trials::new(tree)?;
    let chosen: Vec<_> = chosen.into_iter().zip(texts).collect();
    each(
        &chosen,
        None,
        |(mutant, _)| &mutant.name,
        |(mutant, text)| {
            let change = Change {
                name: &mutant.name,
                file: &mutant.file,
                text,
            };
            let named = mutant.tests.iter().map(String::as_str);
            let suites = trial::SUITES.into_iter().filter(|_| !named_tests_only);
            trials.run(&change, &Vec::from_iter(named.chain(suites)))
        },
    )
}

fn drawn(
    tree: &Tree,
    sample: &Sample,
    choice: &Choice,
    packages: &[String],
    thorough: bool,
) -> Result<bool> {
    let deadline = sample.deadline();
    // Listed and read in the copy, which stays the same until all of the sample have been tried.
    tree.restore()?;
    if sample.skip == 0 {
        tree.update()?;
    }
    let all = Drawn::all(tree, packages)?;
    println!("{} mutants of cargo-mutants", all.len());
    let chosen = sample.of(
        all,
        |_| (),
        Drawn::takes_a_minute,
        |mutant| &mutant.name,
        choice,
    );
    if choice.list {
        return Ok(listed(chosen.iter().map(|mutant| &*mutant.name)));
    }
    // A sample that was begun goes on in the same tree.
    let mut trials = match sample.skip {
        0 => Trials::new(tree)?,
        _ => Trials::resume(tree),
    };
    each(
        &chosen,
        deadline,
        |mutant| &mutant.name,
        |mutant| {
            let text = mutant.text(&tree.read(&mutant.file)?)?;
            let commands = mutant.commands(thorough);
            let commands = Vec::from_iter(commands.iter().map(String::as_str));
            trials.run(&mutant.change(&text), &commands)
        },
    )
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> bool {
    let count = names.map(|name| println!("{name}")).count();
    println!("{count} mutants");
    true
}

/// Tries `mutants` by `trial` and prints the verdicts. Returns whether all were noticed.
fn each<T>(
    mutants: &[T],
    deadline: Option<Instant>,
    name: impl Fn(&T) -> &str,
    mut trial: impl FnMut(&T) -> Result<Verdict>,
) -> Result<bool> {
    ensure!(!mutants.is_empty(), "no mutant has such a name");
    let mut tally = Tally::default();
    for (number, mutant) in mutants.iter().enumerate() {
        let started = Instant::now();
        if deadline.is_some_and(|deadline| started > deadline) {
            println!("{} are left", mutants.len() - number);
            break;
        }
        let verdict = trial(mutant)?;
        tally.add(&verdict);
        let seconds = started.elapsed().as_secs();
        println!("{number:3} {} | {seconds} s | {verdict}", name(mutant));
    }
    println!("{tally}");
    Ok(tally.all_noticed())
}
