//! The command line of `cargo run --`.
//!
//! The options of the build and of the machine are structures of their own, because the tracer and
//! the flight recorder have the same ones beside their own. An option that was not given is none,
//! and its default is chosen where it is used: so a program can tell whether it was given. All is
//! checked here, also what two options say together, before anything is started. A mistake ends the
//! program with status 2 and says what to write instead.

use std::{
    env, ffi::OsString, io::ErrorKind as ErrorKindIo, os::unix::fs::FileTypeExt, path::PathBuf,
    time::Duration,
};

use clap::{Args, Parser, Subcommand, ValueEnum, error::ErrorKind};

use crate::{
    firmware::Firmware,
    prerequisites::Install,
    qemu::{Accelerator, Machine, Serial},
};

/// The modules that are loaded unless `--samples` says otherwise.
const DEFAULT_SAMPLES: [&str; 4] = [
    "kprobe_example",
    "jprobe_example",
    "kretprobe_example",
    "sys_mkdir_return",
];
/// Time that a guest has unless `--timeout` says otherwise.
const DEFAULT_TIMEOUT_S: u64 = 60;

/// A command line of which more is checked than each option by itself.
pub trait Checked: Parser {
    /// Checks what the options say together.
    ///
    /// # Errors
    /// [`Checked::refuse`].
    fn check(&self) -> Result<(), clap::Error>;

    /// Refuses the command line with this message.
    ///
    /// # Errors
    /// Always.
    fn refuse(message: &str) -> Result<(), clap::Error> {
        Err(Self::command().error(ErrorKind::ArgumentConflict, message))
    }

    /// Reads arguments, the first of which is the program's name.
    ///
    /// # Errors
    /// They are wrong.
    fn read<T>(arguments: impl IntoIterator<Item = T>) -> Result<Self, clap::Error>
    where
        T: Into<OsString> + Clone,
    {
        let options = Self::try_parse_from(arguments)?;
        options.check()?;
        Ok(options)
    }

    /// Reads the program's arguments. Prints the error and exits with status 2 if they are wrong.
    fn from_arguments() -> Self {
        Self::read(env::args_os()).unwrap_or_else(|error| error.exit())
    }
}

/// Builds the kernel and runs it in QEMU; its log comes on standard output.
///
/// The exit status is 0 if the guest said that all went well, 1 if anything failed (the last line
/// says what), 2 if these arguments are wrong (nothing is started), and 130 after Ctrl-C or another
/// signal (nothing is left running).
///
/// With --interactive the terminal is the guest's: it gets Ctrl-C, which abandons the line that is
/// being typed. `poweroff` ends it well; Ctrl-A X ends it at once, with status 1; Ctrl-A C leads to
/// QEMU's monitor and back; Ctrl-A A types a Ctrl-A; Ctrl-A H shows more.
#[derive(Clone, Debug, Parser)]
#[command(name = "boot", bin_name = "cargo run --", max_term_width = 100)]
pub struct Options {
    #[command(subcommand)]
    pub command: Option<Subcommands>,
    /// Keep the last calls in memory, and show them if the kernel dies [default program: entry and
    /// return of every function that a task calls]; `--record --help` lists more options
    #[arg(long, value_name = "PROGRAM", num_args = 0..=1)]
    pub record: Option<Option<String>>,
    /// Give the guest a second serial port that ends in this socket: while the guest runs, `cargo
    /// run -- trace --connect unix:PATH 'PROGRAM'` attaches to it, as often as you like
    #[arg(long, value_name = "PATH", value_parser = socket)]
    trace_socket: Option<PathBuf>,
    /// Boot one of the kernels by which the guide for other kernels explains the probes. Its
    /// command line is that of --append: the second one serves --trace-socket if that is `traced`
    #[arg(long, value_name = "KERNEL", conflicts_with_all = ["samples", "interactive", "disk"])]
    pub kernel: Option<Example>,
    #[command(flatten)]
    pub build: BuildOptions,
    #[command(flatten)]
    pub machine: MachineOptions,
}

/// A kernel that is here as an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Example {
    /// The least kernel that has probes
    Minimal,
    /// One that differs from ours wherever it can, with the tracer
    Second,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Subcommands {
    /// Write bootable disk images for BIOS and UEFI, and start nothing
    Image {
        /// Directory for bios.img and uefi.img; made if missing
        directory: PathBuf,
    },
    /// Trace the kernel while it runs a program: `trace 'kprobe:sys_mkdir { @ = count(); }'`;
    /// `trace --help` lists the options
    #[command(disable_help_flag = true)]
    Trace {
        /// Options and arguments of the tracer
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

/// Options that make sense with and without a machine.
#[derive(Clone, Debug, Args)]
pub struct BuildOptions {
    /// Modules to load, in this order; an empty list loads none [default: the four classic samples,
    /// none with --interactive]
    #[arg(long, global = true, value_name = "A,B", value_parser = sample_list)]
    samples: Option<SampleList>,
    /// Text to add to the kernel command line, such as "kretprobe_example.func=sys_mkdir"
    #[arg(
        long,
        global = true,
        value_name = "CMDLINE",
        value_parser = cmdline,
        allow_hyphen_values = true
    )]
    append: Option<String>,
    /// Install nothing that is missing; say which packages to install
    #[arg(long, global = true)]
    no_install: bool,
}

/// Options of the machine that runs the kernel.
#[derive(Clone, Debug, Args)]
pub struct MachineOptions {
    /// Number of virtual CPUs [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=255))]
    smp: Option<u32>,
    /// Memory, in MiB or with a suffix M or G [default: 256M]
    #[arg(long, value_name = "M", value_parser = memory_mib)]
    memory: Option<u32>,
    /// Firmware to boot with [default: bios]
    #[arg(long)]
    firmware: Option<Firmware>,
    /// How to execute the guest [default: tcg]
    #[arg(long)]
    accel: Option<Accelerator>,
    /// Count time by instructions, so that a run repeats exactly
    #[arg(long)]
    icount: bool,
    /// Wait for gdb on TCP port 1234 before the first instruction
    #[arg(long)]
    gdb: bool,
    /// Seconds after which the guest is ended and has failed [default: 60, none with --gdb or
    /// --interactive]
    #[arg(long, value_name = "S", value_parser = seconds, allow_hyphen_values = true)]
    timeout: Option<u64>,
    /// Run a prompt on the terminal and no workload; `help` lists its commands, `poweroff` ends it
    #[arg(long, conflicts_with = "timeout")]
    interactive: bool,
    /// Boot this disk image instead of building one
    #[arg(long, value_name = "FILE", value_parser = existing_file)]
    disk: Option<PathBuf>,
}

impl Options {
    /// Returns the kernel command line.
    pub fn cmdline(&self) -> String {
        if self.kernel.is_some() {
            self.build.cmdline(&[], &[])
        } else if self.machine.interactive {
            self.build.cmdline(&[], &["interactive"])
        } else {
            self.build.cmdline(&DEFAULT_SAMPLES, &[])
        }
    }

    /// Returns the machine that boots `disk`.
    pub fn machine(&self, disk: PathBuf) -> Machine {
        let mut machine = self.machine.machine(disk, self.cmdline());
        if let Some(socket) = &self.trace_socket {
            machine.listen_at(socket);
        }
        machine
    }
}

impl Checked for Options {
    fn check(&self) -> Result<(), clap::Error> {
        let machine = &self.machine;
        if matches!(self.command, Some(Subcommands::Trace { .. })) || self.record.is_some() {
            return Self::refuse(
                "`trace` comes first, and all that follows is the tracer's: cargo run -- trace \
                 OPTIONS 'PROGRAM'",
            );
        }
        if machine.icount && machine.accel == Some(Accelerator::Kvm) {
            return Self::refuse("--icount counts emulated instructions: it needs --accel tcg");
        }
        if self.command.is_some() && (machine.is_given() || self.trace_socket.is_some()) {
            return Self::refuse(
                "`image` starts no machine: of the options it takes only --samples, --append and \
                 --no-install",
            );
        }
        Ok(())
    }
}

impl BuildOptions {
    /// Returns the kernel command line: the modules, which are `default` unless the options name
    /// others, then `words`, then what was to be added.
    pub fn cmdline(&self, default: &[&str], words: &[&str]) -> String {
        let samples = match &self.samples {
            Some(SampleList(samples)) => samples.join(","),
            None => default.join(","),
        };
        let modules = (!samples.is_empty()).then(|| format!("modules={samples}"));
        let words = words.iter().copied().map(String::from);
        let words: Vec<String> = modules
            .into_iter()
            .chain(words)
            .chain(self.append.clone())
            .collect();
        words.join(" ")
    }

    /// Returns whether anything is said of the kernel.
    pub fn is_described(&self) -> bool {
        self.samples.is_some() || self.append.is_some()
    }

    pub fn install(&self) -> Install {
        if self.no_install {
            Install::Forbidden
        } else {
            Install::Allowed
        }
    }
}

impl MachineOptions {
    fn is_given(&self) -> bool {
        self.is_described() || self.timeout.is_some()
    }

    /// Returns whether anything but the time that it has is said of the machine.
    pub fn is_described(&self) -> bool {
        self.smp.is_some()
            || self.memory.is_some()
            || self.firmware.is_some()
            || self.accel.is_some()
            || self.icount
            || self.gdb
            || self.interactive
            || self.disk.is_some()
    }

    /// Returns whether the guest is to run a prompt.
    pub fn is_interactive(&self) -> bool {
        self.interactive
    }

    /// Returns whether a debugger may stop the guest.
    pub fn is_debugged(&self) -> bool {
        self.gdb
    }

    pub fn firmware(&self) -> Firmware {
        self.firmware.unwrap_or(Firmware::Bios)
    }

    /// Returns the disk image to boot instead of building one.
    pub fn disk(&self) -> Option<PathBuf> {
        self.disk.clone()
    }

    /// Returns the machine that boots `disk` with `cmdline`.
    pub fn machine(&self, disk: PathBuf, cmdline: String) -> Machine {
        let default = Machine::new(disk);
        Machine {
            firmware: self.firmware(),
            accelerator: self.accel.unwrap_or(default.accelerator),
            cpus: self.smp.unwrap_or(default.cpus),
            memory_mib: self.memory.unwrap_or(default.memory_mib),
            icount: self.icount,
            gdb: self.gdb,
            serial: if self.interactive {
                Serial::Terminal
            } else {
                Serial::Output
            },
            cmdline,
            ..default
        }
    }

    /// Returns how long the guest may run.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout_or(DEFAULT_TIMEOUT_S)
    }

    /// The same without a default.
    pub fn timeout_if_given(&self) -> Option<Duration> {
        self.timeout.map(Duration::from_secs)
    }

    /// The same with another default, in seconds.
    pub fn timeout_or(&self, default: u64) -> Option<Duration> {
        match self.timeout {
            None if self.gdb || self.interactive => None,
            seconds => Some(Duration::from_secs(seconds.unwrap_or(default))),
        }
    }
}

/// A type of its own, as clap would take a `Vec` for a repeated option.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SampleList(Vec<String>);

fn sample_list(text: &str) -> Result<SampleList, String> {
    if text.is_empty() {
        return Ok(SampleList(Vec::new()));
    }
    text.split(',')
        .map(|name| {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || !name.chars().all(is_name) {
                return Err(format!(
                    "`{name}` is no module name; give names of letters, digits and _, separated by \
             commas"
                ));
            }
            Ok(name.to_string())
        })
        .collect::<Result<_, _>>()
        .map(SampleList)
}

/// A program of the guest and its arguments, for options of tools.
///
/// # Errors
/// There is no program.
pub fn command(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        false => Ok(text.into()),
        true => Err("give the name of a program, such as workload".into()),
    }
}

fn cmdline(text: &str) -> Result<String, String> {
    if text.chars().any(|c| !(' '..='~').contains(&c)) {
        return Err("a kernel command line is one line of printable ASCII".into());
    }
    Ok(text.to_string())
}

fn memory_mib(text: &str) -> Result<u32, String> {
    const RANGE: std::ops::RangeInclusive<u32> = 64..=65536;
    let (number, factor) = match text.strip_suffix(['G', 'g']) {
        Some(number) => (number, 1024),
        None => (text.strip_suffix(['M', 'm']).unwrap_or(text), 1),
    };
    number
        .parse::<u32>()
        .ok()
        .and_then(|number| number.checked_mul(factor))
        .filter(|mib| RANGE.contains(mib))
        .ok_or_else(|| "give a size between 64M and 64G".into())
}

fn seconds(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(seconds @ 1..) => Ok(seconds),
        _ => Err("give a number of seconds, at least 1; without the option the limit is 60".into()),
    }
}

/// A path at which QEMU may make a socket. It takes away what is there.
fn socket(text: &str) -> Result<PathBuf, String> {
    /// What an address of a socket has room for, without the NUL (unix(7)).
    const MOST_BYTES: usize = 107;
    if text.len() > MOST_BYTES {
        return Err(format!(
            "the path of a socket has at most {MOST_BYTES} bytes"
        ));
    }
    let path = PathBuf::from(text);
    match path.symlink_metadata() {
        Ok(found) if !found.file_type().is_socket() => {
            Err("there is something else; give a path that is free".into())
        }
        _ => Ok(path),
    }
}

fn existing_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.metadata() {
        Ok(found) if found.is_file() => Ok(path),
        Ok(found) if found.is_dir() => {
            Err("that is a directory; give the file of a disk image".into())
        }
        Ok(_) => Err("that is no ordinary file; give the file of a disk image".into()),
        Err(error) if error.kind() == ErrorKindIo::NotFound => {
            Err("there is no such file; `cargo run -- image DIRECTORY` writes images".into())
        }
        Err(error) => Err(format!("it cannot be used: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(arguments: &[&str]) -> Result<Options, clap::Error> {
        Options::read([&["boot"], arguments].concat())
    }

    #[test]
    fn definition_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn defaults_are_two_cpus_bios_and_a_limit() {
        let options = parse(&[]).unwrap();
        let machine = options.machine.machine("disk".into(), String::new());
        assert_eq!(machine.cpus, 2);
        assert_eq!(machine.firmware, Firmware::Bios);
        assert_eq!(machine.accelerator, Accelerator::Tcg);
        assert_eq!(options.machine.timeout(), Some(Duration::from_secs(60)));
    }

    #[test]
    fn each_option_of_the_machine_takes_effect() {
        let given = [
            "--smp",
            "3",
            "--memory",
            "1G",
            "--firmware",
            "uefi",
            "--accel",
            "tcg",
            "--icount",
            "--gdb",
        ];
        let options = parse(&given).unwrap().machine;
        let machine = options.machine("disk".into(), "a=b".into());
        assert_eq!((machine.cpus, machine.memory_mib), (3, 1024));
        assert_eq!(machine.firmware, Firmware::Uefi);
        assert!(machine.icount && machine.gdb);
        assert_eq!(machine.serial, Serial::Output);
        assert_eq!(machine.cmdline, "a=b");
        let options = parse(&["--accel", "kvm", "--interactive"]).unwrap().machine;
        let machine = options.machine("disk".into(), String::new());
        assert_eq!(machine.accelerator, Accelerator::Kvm);
        assert_eq!(machine.serial, Serial::Terminal);
        assert!(!machine.icount && !machine.gdb);
        assert_eq!((machine.cpus, machine.memory_mib), (2, 256));
    }

    #[test]
    fn samples_and_appended_text_make_the_command_line() {
        let options = parse(&["--samples", "a,b", "--append", "a.func=f x=1,2"]).unwrap();
        assert_eq!(options.cmdline(), "modules=a,b a.func=f x=1,2");
        let options = parse(&["--samples", "", "--append", "-x"]).unwrap();
        assert_eq!(options.cmdline(), "-x");
    }

    #[test]
    fn a_prompt_starts_without_samples_unless_some_are_named() {
        assert_eq!(parse(&["--interactive"]).unwrap().cmdline(), "interactive");
        let options = parse(&["--interactive", "--samples", "a", "--append", "b=c"]).unwrap();
        assert_eq!(options.cmdline(), "modules=a interactive b=c");
        assert_eq!(options.machine.timeout(), None);
    }

    #[test]
    fn a_debugged_guest_has_no_limit_unless_one_is_given() {
        assert_eq!(parse(&["--gdb"]).unwrap().machine.timeout(), None);
        let options = parse(&["--gdb", "--timeout", "5"]).unwrap();
        assert_eq!(options.machine.timeout(), Some(Duration::from_secs(5)));
    }

    #[test]
    fn memory_is_read_with_and_without_suffix() {
        assert_eq!(memory_mib("512"), Ok(512));
        assert_eq!(memory_mib("512M"), Ok(512));
        assert_eq!(memory_mib("2G"), Ok(2048));
        for least in ["64", "64M", "64m"] {
            assert_eq!(memory_mib(least), Ok(64), "{least}");
        }
        for most in ["65536", "65536M", "64G", "64g"] {
            assert_eq!(memory_mib(most), Ok(64 << 10), "{most}");
        }
        for wrong in [
            "",
            "M",
            "63",
            "0G",
            "65537",
            "65G",
            "-1",
            "4294967296G",
            "x",
        ] {
            assert!(memory_mib(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn wrong_arguments_are_refused() {
        for wrong in [
            &["--smp", "0"][..],
            &["--smp", "two"],
            &["--smp"],
            &["--memory", "1"],
            &["--timeout", "0"],
            &["--timeout", "1", "--interactive"],
            &["--firmware", "coreboot"],
            &["--accel", "hvf"],
            &["--accel", "kvm", "--icount"],
            &["--samples", "a,,b"],
            &["--kernel", "third"],
            &["--kernel", "second", "--interactive"],
            &["--kernel", "minimal", "--samples", ""],
            &["--samples", "a b"],
            &["--append", "a\nb"],
            &["--disk", "/no/such/file"],
            &["--unknown"],
            &["stray"],
            &["image"],
            &["image", "dir", "--smp", "2"],
            &["--smp", "2", "image", "dir"],
            &["--smp", "2", "trace", "BEGIN { }"],
            &["image", "dir", "--trace-socket", "path"],
            &["--trace-socket", "path", "image", "dir"],
        ] {
            let error = parse(wrong).expect_err(&format!("{wrong:?} was taken"));
            assert_eq!(error.exit_code(), 2, "{wrong:?}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_value_is_told() {
        for (wrong, told) in [
            (["--disk", "/"], "that is a directory"),
            (["--disk", "/dev/null"], "that is no ordinary file"),
            (["--disk", "/no/such/file"], "there is no such file"),
            (["--disk", "/dev/null/x"], "it cannot be used: "),
            (["--trace-socket", "/"], "there is something else"),
            (["--timeout", "0"], "give a number of seconds, at least 1"),
            (["--timeout", "-1"], "give a number of seconds, at least 1"),
        ] {
            let error = parse(&wrong).expect_err(wrong[1]).to_string();
            assert!(error.contains(told), "{wrong:?}: {error}");
        }
    }

    #[test]
    fn a_tracer_may_come_through_a_socket() {
        let options = parse(&["--interactive", "--trace-socket", "/tmp/a,b"]).unwrap();
        let machine = options.machine("disk".into());
        let socket = "socket,id=trace,path=/tmp/a,,b,server=on,wait=off";
        let wanted = ["-chardev", socket, "-serial", "chardev:trace"];
        assert_eq!(machine.further, wanted);
        let long = "x".repeat(108);
        let error = parse(&["--trace-socket", &long]).unwrap_err().to_string();
        assert!(error.contains("at most 107 bytes"), "{error}");
    }

    #[test]
    fn an_example_has_a_command_line_of_its_own() {
        let options = parse(&["--kernel", "second", "--append", "traced"]).unwrap();
        assert_eq!(options.kernel, Some(Example::Second));
        assert_eq!(options.cmdline(), "traced");
        assert_eq!(parse(&["--kernel", "minimal"]).unwrap().cmdline(), "");
    }

    #[test]
    fn image_takes_the_options_that_concern_it() {
        let options = parse(&["image", "dir", "--samples", "a", "--append", "b=c"]).unwrap();
        assert_eq!(options.cmdline(), "modules=a b=c");
    }
}
