//! The tracer: which arguments are meant for it, and how it takes over.

use std::{
    convert::Infallible,
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt,
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{cargo, layout};

/// The tracer's package.
const PACKAGE: &str = "tracer";
const DIRECTORY: &str = "tracer/tool";

/// The tracer's arguments, if those of this program are meant for it: `trace` comes first, or
/// `--record` is among the options.
pub fn arguments(given: &[OsString]) -> Option<Vec<OsString>> {
    if given.first().is_some_and(|first| first == "trace") {
        return Some(given[1..].to_vec());
    }
    let is_record = |argument: &OsString| {
        let bytes = argument.as_encoded_bytes();
        bytes == b"--record" || bytes.starts_with(b"--record=")
    };
    let mut options = given
        .iter()
        .take_while(|argument| *argument != OsStr::new("--"));
    options.any(is_record).then(|| given.to_vec())
}

/// Builds the tracer and lets it take this program's place.
///
/// # Errors
/// It cannot be built or started.
pub fn run(arguments: &[OsString]) -> Result<Infallible> {
    if !layout::workspace()
        .join(DIRECTORY)
        .join("Cargo.toml")
        .exists()
    {
        bail!("this tree has no tracer: the directory {DIRECTORY} is missing; get the whole tree");
    }
    let program = cargo::build_tool(PACKAGE)?;
    let error = Command::new(&program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed_on(given: &[&str]) -> Option<Vec<OsString>> {
        let given: Vec<OsString> = given.iter().map(OsString::from).collect();
        arguments(&given)
    }

    #[test]
    fn the_tracer_gets_what_is_meant_for_it() {
        let all = |words: &[&str]| Some(words.iter().map(OsString::from).collect());
        assert_eq!(passed_on(&["trace", "-l", "vfs_*"]), all(&["-l", "vfs_*"]));
        assert_eq!(passed_on(&["trace"]), all(&[]));
        for record in [&["--smp", "4", "--record"][..], &["--record=kprobe:f { }"]] {
            assert_eq!(passed_on(record), all(record));
        }
        for other in [&[][..], &["--smp", "2"], &["image", "trace"]] {
            assert_eq!(passed_on(other), None, "{other:?}");
        }
    }
}
