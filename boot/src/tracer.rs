//! The tracer and the flight recorder: which arguments are meant for them, and how they take over.

use std::{
    convert::Infallible,
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt,
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{cargo, layout};

/// A program of the workspace: its name, and where its package is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tool {
    name: &'static str,
    directory: &'static str,
}

/// `trace`.
const TRACER: Tool = Tool {
    name: "trace",
    directory: "tracer/tool",
};
/// `--record`.
const RECORDER: Tool = Tool {
    name: "recorder",
    directory: "tracer/recorder",
};

/// The tool and its arguments, if those of this program are meant for one: `trace` comes first, or
/// `--record` is among the options.
pub fn arguments(given: &[OsString]) -> Option<(Tool, Vec<OsString>)> {
    if given.first().is_some_and(|first| first == "trace") {
        return Some((TRACER, given[1..].to_vec()));
    }
    let is_record = |argument: &OsString| {
        let bytes = argument.as_encoded_bytes();
        bytes == b"--record" || bytes.starts_with(b"--record=")
    };
    let mut options = given
        .iter()
        .take_while(|argument| *argument != OsStr::new("--"));
    options.any(is_record).then(|| (RECORDER, given.to_vec()))
}

/// Builds the tool and lets it take this program's place.
///
/// # Errors
/// It cannot be built or started.
pub fn run(tool: Tool, arguments: &[OsString]) -> Result<Infallible> {
    let Tool { name, directory } = tool;
    if !layout::workspace()
        .join(directory)
        .join("Cargo.toml")
        .exists()
    {
        bail!("this tree lacks the directory {directory}; get the whole tree");
    }
    let program = cargo::build_tool(name)?;
    let error = Command::new(&program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed_on(given: &[&str]) -> Option<(Tool, Vec<OsString>)> {
        let given: Vec<OsString> = given.iter().map(OsString::from).collect();
        arguments(&given)
    }

    #[test]
    fn the_tracer_gets_what_is_meant_for_it() {
        let all = |tool, words: &[&str]| Some((tool, words.iter().map(OsString::from).collect()));
        let traced = passed_on(&["trace", "-l", "vfs_*"]);
        assert_eq!(traced, all(TRACER, &["-l", "vfs_*"]));
        assert_eq!(passed_on(&["trace"]), all(TRACER, &[]));
        for record in [&["--smp", "4", "--record"][..], &["--record=kprobe:f { }"]] {
            assert_eq!(passed_on(record), all(RECORDER, record));
        }
        for other in [&[][..], &["--smp", "2"], &["image", "trace"]] {
            assert_eq!(passed_on(other), None, "{other:?}");
        }
    }
}
