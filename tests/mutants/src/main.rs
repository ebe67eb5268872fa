//! `cargo run -p mutants`: breaks the probes on purpose, in a copy of the tree, and sees whether the tests notice.
//!
//! ```text
//!   list     mutants.txt: each mutant's file, the text before and after, and which tests should notice
//!   tree     a copy of the working tree in target/mutants, with a target directory of its own
//!   trial    one mutant: its own tests first, then all suites in order of what they cost, up to the first failure
//! ```
//!
//! A mutant is noticed if a test fails or does not end. One that the compiler refuses, or that leaves the code as it is, says
//! nothing: it fails the run, as does an entry whose text is not in its file exactly once.

mod list;
mod tree;
mod trial;

use std::{fs, path::PathBuf, process::ExitCode, time::Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;

use list::Mutant;
use tree::Tree;
use trial::Verdict;

/// Breaks the probes on purpose and sees whether the tests notice.
#[derive(Parser)]
struct Options {
    /// Mutants to try, by parts of their names, in this order; none: all
    names: Vec<String>,
    /// Names the mutants and checks that their texts are in their files
    #[arg(long)]
    list: bool,
    /// Tries only the tests that the list names
    #[arg(long)]
    named_tests_only: bool,
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
    let all = list::read(&tree.original("tests/mutants/mutants.txt"))?;
    let everything = [String::new()];
    let names = match &options.names[..] {
        [] => &everything,
        names => names,
    };
    let with = |part| all.iter().filter(move |mutant| mutant.name.contains(part));
    let chosen: Vec<&Mutant> = names.iter().flat_map(|part| with(part.as_str())).collect();
    ensure!(!chosen.is_empty(), "no mutant has such a name");
    let mut stale = 0;
    for mutant in &chosen {
        if let Err(error) = check(mutant, tree) {
            eprintln!("{error:#}");
            stale += 1;
        } else if options.list {
            println!("{:50} {}", mutant.name, mutant.file);
        }
    }
    ensure!(
        stale == 0,
        "{stale} of {} do not fit the tree",
        chosen.len()
    );
    if options.list {
        println!("{} mutants", chosen.len());
        return Ok(true);
    }
    tree.update()?;
    let (mut noticed, mut unfit) = (0, 0);
    for mutant in &chosen {
        let started = Instant::now();
        let verdict = trial::run(mutant, tree, options.named_tests_only)?;
        let seconds = started.elapsed().as_secs();
        println!("{:50} {seconds:4} s  {verdict}", mutant.name);
        match verdict {
            Verdict::Noticed(_) => noticed += 1,
            Verdict::Missed => {}
            Verdict::DoesNotBuild => unfit += 1,
        }
    }
    let fit = chosen.len() - unfit;
    println!("{noticed} of {fit} mutants noticed, {unfit} do not build");
    Ok(noticed == chosen.len())
}

/// Whether the changes of `mutant` fit its file.
fn check(mutant: &Mutant, tree: &Tree) -> Result<()> {
    let path = tree.original(&mutant.file);
    let text = fs::read_to_string(&path)
        .with_context(|| format!("{}: cannot read {}", mutant.name, path.display()))?;
    mutant.applied_to(&text).map(|_| ())
}
