//! The command line of `cargo run -- trace`.
//!
//! The options of the build and of the machine are those of `cargo run` ([`boot::options`]). Words
//! that are no options are the program, or the name of a ready one, and its arguments. Options that
//! users know from bpftrace and that have another name here lead to that name.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use boot::options::{BuildOptions, Checked, MachineOptions};
use clap::{
    CommandFactory, Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};

use trace_link::Address;

use crate::{graph::GraphOptions, ready, record_options::RecordOptions};

/// The options that say something of a run.
const OF_A_RUN: [&str; 11] = [
    "run",
    "duration",
    "json",
    "perfetto",
    "flame",
    "html",
    "expect",
    "top",
    "with_tracer",
    "log",
    "bochs",
];

/// Traces the running kernel by a program in bpftrace's language.
///
/// The program names places (`kprobe:vfs_write`, `kretprobe:`, `session:`, `line:file.rs:124`,
/// `tracepoint:sched:*`, `interval:s:1`, `begin`, `end`) and says what to do there. Arguments,
/// results and variables have their names and types of the source: `args.count`, `retval.Ok`.
///
/// The trace ends with the program that runs meanwhile, with `exit()`, after --duration, or with
/// Ctrl-C. Then all maps are printed.
///
/// The exit status is that of `exit(STATUS)`, else 0; 1 if a condition of --expect does not hold or
/// anything failed; 2 if the program or these arguments are wrong (no machine was started); 130
/// after Ctrl-C, if nothing was attached yet or it is the second one.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "trace",
    bin_name = "cargo run -- trace",
    max_term_width = 100,
    after_help = ready::help()
)]
pub struct Options {
    /// The program, or the name of a ready one, and after it its arguments: `$1`, `$2` and so on
    #[arg(value_name = "PROGRAM")]
    #[arg(required_unless_present_any = ["file", "list", "program", "graph", "record"])]
    pub words: Vec<String>,
    /// The program; all words are its arguments
    #[arg(short = 'e', value_name = "PROGRAM", conflicts_with_all = ["list", "file"])]
    program: Option<String>,
    /// Read the program from this file; all words are its arguments
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// List the functions that can be probed whose path matches, with signature, file and line; or
    /// the events of the kernel with their fields: 'tracepoint:*'; or its statics: 'watch:*'; or
    /// its instructions of a name: 'insn:cli'; or the copies of a function: 'inline:cpu_id'; or the
    /// code of a line: 'line:file.rs:124'
    #[arg(short, long, value_name = "GLOB", conflicts_with_all = ["words", "file"])]
    #[arg(conflicts_with_all = OF_A_RUN)]
    pub list: Option<String>,
    /// Print the program instead of running it: a ready one is a beginning for one of your own
    #[arg(long, conflicts_with = "list", conflicts_with_all = OF_A_RUN)]
    pub source: bool,
    /// The program that runs in the guest meanwhile, with its arguments [default: the workload]
    #[arg(long, value_name = "PROGRAM ARGS", value_parser = boot::options::command)]
    pub run: Option<String>,
    /// End the trace after so many seconds
    #[arg(long, value_name = "S", value_parser = duration, allow_hyphen_values = true)]
    pub duration: Option<Duration>,
    /// Print one JSON object per line, with the fields that bpftrace gives them
    #[arg(long)]
    pub json: bool,
    /// Write a timeline for the Perfetto UI (ui.perfetto.dev)
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
    /// Write a flame graph (SVG) of the maps that have call stacks as keys
    #[arg(long, value_name = "FILE")]
    pub flame: Option<PathBuf>,
    /// Write one page with all that was found out; it needs no network
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// A condition that must hold at the end, such as '@ == 3', '@bytes["x"] > 10' or
    /// 'dropped == 0'; may be given several times
    #[arg(long, value_name = "EXPR")]
    pub expect: Vec<String>,
    /// Say how long each step took, and the time from the command to the first answer
    #[arg(long)]
    pub timing: bool,
    /// Print all maps each second, in place on a terminal, and with --json as one line; they are
    /// read in the guest's memory, so the guest does nothing for it
    #[arg(long)]
    pub top: bool,
    /// Trace the tracer's own tasks in the kernel, too; else their hits are only counted
    #[arg(long)]
    pub with_tracer: bool,
    /// Show the guest's log on standard error
    #[arg(long)]
    pub log: bool,
    /// Run in Bochs, which interprets instruction by instruction: a second opinion, and minutes
    #[arg(long, conflicts_with_all = ["top", "firmware", "accel", "icount", "gdb"])]
    pub bochs: bool,
    /// Attach to a kernel that runs already, over a line of bytes to its agent, and leave it
    /// running: unix:SOCKET, tcp:HOST:PORT, or pty:DEVICE for a terminal
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["run", "top", "bochs"])]
    pub connect: Option<Address>,
    /// The file of that kernel, with debug information [default: this tree's kernel]
    #[arg(long, value_name = "FILE", value_parser = kernel_file)]
    pub elf: Option<PathBuf>,
    /// A file that names the event sources and words of that kernel, in place of what the kernel
    /// says: a line for each, with tabs between GROUP:EVENT, entry or return, FUNCTION, and
    /// NAME=EXPRESSION ..., or between NAME, word and EXPRESSION
    #[arg(long, value_name = "FILE", requires = "connect")]
    pub events: Option<PathBuf>,
    #[command(flatten)]
    pub graph: GraphOptions,
    #[command(flatten)]
    pub record: RecordOptions,
    #[command(flatten)]
    pub build: BuildOptions,
    #[command(flatten)]
    pub machine: MachineOptions,
}

impl Checked for Options {
    fn read<T>(arguments: impl IntoIterator<Item = T>) -> Result<Self, clap::Error>
    where
        T: Into<OsString> + Clone,
    {
        let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
        let mut options = Self::try_parse_from(&arguments).map_err(|error| match error.kind() {
            ErrorKind::DisplayHelp => help_of_ready(&arguments).unwrap_or(error),
            _ => of_bpftrace(error),
        })?;
        if let Some(program) = options.program.take() {
            options.words.insert(0, program);
        }
        options.check()?;
        Ok(options)
    }

    fn check(&self) -> Result<(), clap::Error> {
        if let (true, Some(word)) = (self.graph.is_wanted(), self.words.first()) {
            return Self::refuse(&format!(
                "--graph is a program by itself, and `{word}` is another one; --graph FUNCTION can \
                 be given several times"
            ));
        }
        if self.elf.is_some() && self.connect.is_none() && self.list.is_none() {
            return Self::refuse(
                "--elf is the file of a kernel that runs already: --connect says where it is",
            );
        }
        if self.connect.is_some() && (self.machine.is_described() || self.build.is_described()) {
            return Self::refuse(
                "--connect boots no kernel, so leave out the options of the machine and of the \
                 kernel: --smp, --memory, --firmware, --accel, --icount, --gdb, --interactive, \
                 --disk, --samples and --append",
            );
        }
        if self.machine.is_interactive() {
            return Self::refuse(
                "a trace has no --interactive: at the prompt of `cargo run -- --interactive` there \
                 is `trace PROGRAM`",
            );
        }
        if self.machine.disk().is_some() {
            return Self::refuse("a trace builds its kernel, so that it has its debug information");
        }
        let files = [&self.perfetto, &self.flame, &self.html];
        let files: Vec<&PathBuf> = files.into_iter().flatten().collect();
        if (1..files.len()).any(|index| files[..index].contains(&files[index])) {
            return Self::refuse("two pictures would go to one file; name a file for each");
        }
        Ok(())
    }
}

/// The help of the ready program that the arguments name, if they name one.
fn help_of_ready(arguments: &[OsString]) -> Option<clap::Error> {
    let others = arguments.iter();
    let others = others.filter(|argument| *argument != "--help" && *argument != "-h");
    let options = Options::try_parse_from(others).ok()?;
    if options.program.is_some() || options.file.is_some() {
        return None;
    }
    let help = ready::help_of(options.words.first()?)?;
    let command = clap::Command::new("trace").override_help(help);
    command.try_get_matches_from(["trace", "--help"]).err()
}

/// An option of bpftrace's that is not there is refused with the way to the same end.
fn of_bpftrace(error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let way = match &**option {
        "-c" => "--run 'PROGRAM ARGS' says which program runs in the guest meanwhile",
        "-p" => "a condition chooses a process: `kprobe:vfs_write /pid == 3/ { @ = count(); }`",
        "-o" | "--output" => "the answers go to standard output, and `> FILE` sends them to a file",
        "-v" | "-d" => "--log shows the guest's log, and --timing how long each step took",
        "--unsafe" => "leave it out: nothing that a program can do here needs it",
        "-I" | "--include" => "types come from the debug information, so no header is needed",
        _ => return error,
    };
    let message = format!("a trace has no {option}; {way}");
    Options::command().error(ErrorKind::UnknownArgument, message)
}

fn kernel_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.metadata() {
        Ok(found) if found.is_file() => Ok(path),
        Ok(_) => Err("that is no ordinary file; give the linked kernel".into()),
        Err(error) => Err(format!("it cannot be read: {error}")),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|seconds| *seconds > 0.0)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "give a number of seconds above 0, such as 5 or 0.5".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn parse(arguments: &[&str]) -> Result<Options, clap::Error> {
        Options::read([&["trace"], arguments].concat())
    }

    #[test]
    fn definition_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn words_behind_the_program_are_its_arguments() {
        let options = parse(&["--smp", "4", "funccount", "vfs_*", "--json"]).unwrap();
        assert_eq!(options.words, ["funccount", "vfs_*"]);
        assert!(options.json);
        let options = parse(&["-f", "a.bt", "x", "--duration", "0.5"]).unwrap();
        assert_eq!(options.words, ["x"]);
        assert_eq!(options.duration, Some(Duration::from_millis(500)));
    }

    #[test]
    fn options_of_bpftrace_are_taken_or_lead_to_those_of_this_tool() {
        let options = parse(&["-e", "begin { }", "1"]).unwrap();
        assert_eq!(options.words, ["begin { }", "1"]);
        for (wrong, way) in [
            (&["-c", "ls", "x"][..], "--run"),
            (&["-p", "1", "x"], "/pid == 3/"),
            (&["-o", "file", "x"], "> FILE"),
            (&["-v", "x"], "--log"),
            (&["--unsafe", "x"], "leave it out"),
            (&["--duration", "-1", "x"], "above 0"),
            (&["--run", " ", "x"], "workload"),
        ] {
            let error = parse(wrong).expect_err(&format!("{wrong:?} was taken"));
            assert_eq!(error.exit_code(), 2, "{wrong:?}");
            assert!(error.to_string().contains(way), "{wrong:?}: {error}");
        }
    }

    #[test]
    fn a_ready_program_has_a_help_of_its_own() {
        let help = |arguments: &[&str]| {
            let error = parse(arguments).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DisplayHelp, "{arguments:?}");
            assert_eq!(error.exit_code(), 0, "{arguments:?}");
            error.to_string()
        };
        for arguments in [
            &["funcslower", "--help"][..],
            &["--smp", "4", "funcslower", "-h"],
            &["--help", "funcslower", "vfs_write"],
        ] {
            let help = help(arguments);
            for part in [
                "each call that takes at least so long",
                "Usage: cargo run -- trace funcslower FUNCTION NANOSECONDS",
                "FUNCTION is",
                "Example: cargo run -- trace funcslower ",
                "--source",
            ] {
                assert!(help.contains(part), "{part}: {help}");
            }
        }
        for general in [
            &["--help"][..],
            &["kprobe:f { }", "-h"],
            &["-e", "funcslower", "-h"],
            &["-f", "funcslower", "syscount", "-h"],
        ] {
            assert!(help(general).contains("--expect <EXPR>"), "{general:?}");
        }
    }

    /// The help's example of a line is tried by those who read it.
    #[test]
    fn the_line_of_the_help_is_in_a_file_of_the_kernel() {
        fn has(directory: &Path, name: &str) -> bool {
            let entries = directory.read_dir().unwrap();
            entries.map(|entry| entry.unwrap().path()).any(|path| {
                path.is_dir() && has(&path, name) || path.file_name() == Some(name.as_ref())
            })
        }
        let help = Options::command().render_long_help().to_string();
        let words = help.split_whitespace();
        let words = words.filter_map(|word| word.split_once("line:")?.1.split_once(".rs:"));
        let files: Vec<String> = words.map(|(file, _)| format!("{file}.rs")).collect();
        assert_eq!(files.len(), 2, "{help}");
        let kernel = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel/src");
        for file in files {
            assert!(has(&kernel, &file), "{file}");
        }
    }

    #[test]
    fn wrong_arguments_are_refused() {
        for wrong in [
            &[][..],
            &["-l", "x", "y"],
            &["-l", "x", "--expect", "@ == 1"],
            &["-l", "x", "--run", "workload"],
            &["-l", "x", "--duration", "1"],
            &["-l", "x", "--json"],
            &["-l", "x", "--with-tracer"],
            &["-l", "x", "--html", "page"],
            &["--source", "x", "--expect", "@ == 1"],
            &["--source"],
            &["--source", "-l", "x"],
            &["--duration", "0", "x"],
            &["--duration", "x", "x"],
            &["--interactive", "x"],
            &["--disk", "/dev/null", "x"],
            &["--perfetto", "/dev/null", "--html", "/dev/null", "x"],
            &["--perfetto", "a", "--flame", "b", "--html", "b", "x"],
            &["--unknown", "x"],
            &["--connect", "nowhere", "x"],
            &["--connect", "unix:/a", "--smp", "2", "x"],
            &["--connect", "unix:/a", "--append", "a", "x"],
            &["--connect", "unix:/a", "--run", "workload", "x"],
            &["--connect", "unix:/a", "--top", "x"],
            &["--connect", "unix:/a", "--bochs", "x"],
            &["--elf", "/dev/null", "--connect", "unix:/a", "x"],
            &["--elf", env!("CARGO_MANIFEST_PATH"), "x"],
            &["--events", "file", "x"],
            &["--record", "x"],
            &["--connect", "unix:/a", "--last", "5", "x"],
            &["--connect", "unix:/a", "--record", "--last", "-1"],
            &["--connect", "unix:/a", "--record", "--ring", "0"],
            &["--connect", "unix:/a", "--record", "--ring", "16385"],
            &["--connect", "unix:/a", "--record", "--json"],
            &["--connect", "unix:/a", "--record", "--graph", "x"],
            &["--connect", "unix:/a", "--record", "x", "--functions", "y"],
        ] {
            let error = parse(wrong).expect_err(&format!("{wrong:?} was taken"));
            assert_eq!(error.exit_code(), 2, "{wrong:?}");
        }
        let file = env!("CARGO_MANIFEST_PATH");
        let running = ["--connect", "unix:/a", "--elf", file, "--timeout", "5", "x"];
        assert!(parse(&running).is_ok());
        assert!(parse(&["-l", "x", "--elf", file]).is_ok());
        let recorded = ["--connect", "unix:/a", "--record"];
        let record = parse(&recorded).unwrap().record;
        let plain = (record.functions(), record.last(), record.ring);
        assert_eq!(plain, ("*", 60, None));
        for further in [
            &[][..],
            &["kprobe:f { }"],
            &["--functions", "f*", "--last", "5", "--ring", "64"],
            &["--perfetto", "/dev/null", "--duration", "5"],
        ] {
            assert!(
                parse(&[&recorded[..], further].concat()).is_ok(),
                "{further:?}"
            );
        }
    }
}
