//! The command line of `cargo run -- --record`.

use std::{path::PathBuf, time::Duration};

use boot::options::{BuildOptions, Checked, MachineOptions};
use clap::Parser;

/// Runs the kernel and keeps its last calls in memory. If it dies, they are shown.
///
/// It dies by a panic, by a reset such as a triple fault causes, by a hang (see --watchdog), or
/// because its time is over (see --timeout). Ctrl-C ends it, too, and a second Ctrl-C ends all at
/// once.
///
/// The exit status is 0 if the guest said that all went well, 1 if it died or anything failed, 2 if
/// the program or these arguments are wrong (no machine was started), and 130 after Ctrl-C.
#[derive(Clone, Debug, Parser)]
#[command(name = "record", bin_name = "cargo run --", max_term_width = 100)]
pub struct Options {
    /// The program, in the tracer's language: its lines and maps are shown [default: entry and
    /// return of the functions of --functions]
    #[arg(long, value_name = "PROGRAM", num_args = 0..=1, required = true)]
    record: Option<Option<String>>,
    /// Which functions are recorded without a PROGRAM [default: '*']
    #[arg(long, value_name = "GLOB")]
    functions: Option<String>,
    /// How many calls, or records of a PROGRAM, are shown
    #[arg(
        long,
        value_name = "N",
        default_value = "60",
        value_parser = number,
        allow_hyphen_values = true
    )]
    pub last: usize,
    /// KiB of memory for the records of each CPU
    #[arg(
        long,
        value_name = "KIB",
        default_value = "4096",
        value_parser = ring,
        allow_hyphen_values = true
    )]
    pub ring: u32,
    /// Seconds without progress on a CPU after which the kernel is taken for hanging [default: 20,
    /// never with --gdb]
    #[arg(long, value_name = "S", value_parser = seconds, allow_hyphen_values = true)]
    watchdog: Option<u64>,
    /// Write all that is recorded to this file, for the Perfetto UI, also if the kernel does not
    /// die
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
    /// The program that runs in the guest, and its arguments [default: the workload]
    #[arg(long, value_name = "PROGRAM ARGS", value_parser = boot::options::command)]
    pub run: Option<String>,
    #[command(flatten)]
    pub build: BuildOptions,
    #[command(flatten)]
    pub machine: MachineOptions,
}

impl Checked for Options {
    fn check(&self) -> Result<(), clap::Error> {
        if self.machine.is_interactive() {
            return Self::refuse(
                "--record has no --interactive: it shows the last calls on the terminal",
            );
        }
        if self.machine.disk().is_some() {
            return Self::refuse(
                "--record builds its kernel, so that it has its debug information",
            );
        }
        if self.program().is_some() && self.functions.is_some() {
            return Self::refuse(
                "--functions says what is recorded without a PROGRAM; leave one of them out",
            );
        }
        Ok(())
    }
}

impl Options {
    /// The user's program.
    pub fn program(&self) -> Option<&str> {
        self.record.as_ref()?.as_deref()
    }

    /// The functions that are recorded without a program.
    pub fn functions(&self) -> &str {
        self.functions.as_deref().unwrap_or("*")
    }

    /// After which time without progress the kernel hangs. A guest that a debugger stops does not
    /// get on either.
    pub fn watchdog(&self) -> Option<Duration> {
        const DEFAULT_S: u64 = 20;
        match self.watchdog {
            None if self.machine.is_debugged() => None,
            seconds => Some(Duration::from_secs(seconds.unwrap_or(DEFAULT_S))),
        }
    }
}

fn number(text: &str) -> Result<usize, String> {
    text.parse()
        .map_err(|_| "give a number, such as 60; 0 shows none".into())
}

fn ring(text: &str) -> Result<u32, String> {
    const MOST: u32 = trace_wire::MOST_RING_KIB;
    text.parse()
        .ok()
        .filter(|kib| (1..=MOST).contains(kib))
        .ok_or_else(|| format!("give a number of KiB from 1 to {MOST}"))
}

fn seconds(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(seconds @ 1..) => Ok(seconds),
        _ => Err("give a number of seconds, at least 1".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(arguments: &[&str]) -> Result<Options, clap::Error> {
        Options::read([&["record", "--record"], arguments].concat())
    }

    #[test]
    fn definition_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn without_a_program_all_functions_are_recorded() {
        let options = parse(&["--last", "5"]).unwrap();
        assert_eq!((options.program(), options.functions()), (None, "*"));
        assert_eq!(options.watchdog(), Some(Duration::from_secs(20)));
        let options = parse(&["begin { }", "--watchdog", "7", "--gdb"]).unwrap();
        assert_eq!(options.program(), Some("begin { }"));
        assert_eq!(options.watchdog(), Some(Duration::from_secs(7)));
        assert_eq!(parse(&["--gdb"]).unwrap().watchdog(), None);
        assert_eq!(parse(&["--functions", "f"]).unwrap().functions(), "f");
    }

    #[test]
    fn wrong_arguments_are_refused_with_the_next_step() {
        for (wrong, told) in [
            (&["--last", "-1"][..], "give a number"),
            (&["--last", "99999999999999999999999"], "give a number"),
            (&["--ring", "0"], "from 1 to 16384"),
            (&["--ring", "16385"], "from 1 to 16384"),
            (&["--ring", "-1"], "from 1 to 16384"),
            (&["--watchdog", "0"], "at least 1"),
            (&["--watchdog", "-1"], "at least 1"),
            (&["--interactive"], "has no --interactive"),
            (&["--disk", "/dev/null"], "no ordinary file"),
            (&["--disk", "Cargo.toml"], "builds its kernel"),
            (&["begin { }", "--functions", "f"], "leave one of them out"),
            (&["--samples", "a,,b"], "is no module name"),
            (&["--append", "a\nb"], "one line of printable ASCII"),
            (&["a", "b"], "unexpected argument 'b'"),
        ] {
            let error = parse(wrong).expect_err(&format!("{wrong:?} was taken"));
            assert_eq!(error.exit_code(), 2, "{wrong:?}");
            let said = error.to_string();
            assert!(said.contains(told), "{wrong:?}: {said}");
        }
    }
}
