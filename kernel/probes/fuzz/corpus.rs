//! The corpus of the fuzzer: one file in the repository, a file for each input where it runs.
//!
//! ```text
//!   cargo run -p probes --example fuzz_corpus -- unpack DIRECTORY
//!   cargo run -p probes --example fuzz_corpus -- pack DIRECTORY...
//! ```
//!
//! `unpack` writes each input of `corpus.txt` to a file of its own, as the fuzzer reads them.
//! `pack` writes the inputs in all files of the directories to `corpus.txt`, and nothing else.

use std::{
    collections::BTreeSet,
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
};

#[path = "../tests/insn/corpus.rs"]
mod corpus;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["unpack", directory] => unpack(Path::new(directory)),
        ["pack", ref directories @ ..] if !directories.is_empty() => pack(directories),
        _ => Err("usage: fuzz_corpus unpack DIRECTORY, or fuzz_corpus pack DIRECTORY...".into()),
    }
}

fn unpack(directory: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(directory)?;
    let inputs = corpus::inputs(&fs::read_to_string(corpus::PATH)?)?;
    for (number, input) in inputs.iter().enumerate() {
        fs::write(directory.join(format!("{number:04}")), input)?;
    }
    println!("{} inputs", inputs.len());
    Ok(())
}

fn pack(directories: &[&str]) -> Result<(), Box<dyn Error>> {
    let mut inputs = BTreeSet::new();
    for directory in directories {
        for entry in fs::read_dir(directory)? {
            let path: PathBuf = entry?.path();
            inputs.insert(fs::read(path)?);
        }
    }
    fs::write(corpus::PATH, corpus::text(&inputs))?;
    println!("{} inputs", inputs.len());
    Ok(())
}
