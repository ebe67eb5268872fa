//! One mutant of the source: the tree is built with it, and commands are tried one after the other
//! until one notices.

use std::{
    collections::HashSet,
    fs::{self, File},
    io,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{
    tree::Tree,
    verdict::{self, End, Verdict},
};

/// All suites, the cheap ones first.
pub const SUITES: [&str; 8] = [
    "-p tests --test models",
    "-p probes --lib",
    "-p probes --test insn",
    "-p probes --test translate",
    "-p probes --test trap_flag",
    "-p probes --test trap3 --test trap4",
    "-p tests --test suite",
    "-p tests --test kernel_text --test machines --test samples --test prompt",
];

/// How long a command may take. The harness of the guest tests has limits of its own, which are
/// shorter.
const LIMIT: Duration = Duration::from_secs(30 * 60);
/// One of the tests on the host hangs if nothing is printed for so long. None takes half a minute.
const SILENCE: Duration = Duration::from_secs(3 * 60);
/// How long a command may go on after its first failure. If no test is left, it reports what has
/// failed, which makes the log more useful.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Beside the copy: the commands that pass in the tree as it is.
const PASSED: &str = "passed";

/// A change of one file.
pub struct Change<'a> {
    /// Names the log.
    pub name: &'a str,
    /// From the top of the tree.
    pub file: &'a str,
    /// The file with the change.
    pub text: &'a str,
}

/// Tries mutants in a tree.
pub struct Trials<'a> {
    tree: &'a Tree,
    /// Commands that pass in the tree as it is.
    pass: HashSet<String>,
}

impl<'a> Trials<'a> {
    /// # Errors
    /// A note of an earlier run cannot be deleted.
    pub fn new(tree: &'a Tree) -> Result<Self> {
        match fs::remove_file(tree.note(PASSED)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(Self::resume(tree)),
        }
    }

    /// Trials in a tree that is the same as in the run before: its notes hold.
    pub fn resume(tree: &'a Tree) -> Self {
        let notes = fs::read_to_string(tree.note(PASSED)).unwrap_or_default();
        let pass = notes.lines().map(String::from).collect();
        Self { tree, pass }
    }

    /// Tries `change` by `commands`, arguments of `cargo test`, in this order. The tree is as
    /// before afterwards.
    ///
    /// # Errors
    /// One of the commands fails in the tree as it is, or the tree cannot be changed.
    pub fn run(&mut self, change: &Change<'_>, commands: &[&str]) -> Result<Verdict> {
        for command in commands {
            self.baseline(command)?;
        }
        self.tree.change(change.file, change.text)?;
        let verdict = self.judge(change.name, commands);
        self.tree.restore()?;
        verdict
    }

    /// Makes sure that `command` passes without a mutant. A command that fails anyway would notice
    /// every mutant.
    fn baseline(&mut self, command: &str) -> Result<()> {
        if !self.pass.contains(command) {
            match self.command("baseline", command)? {
                None => {
                    self.pass.insert(command.into());
                    let notes = Vec::from_iter(self.pass.iter().map(String::as_str));
                    fs::write(self.tree.note(PASSED), notes.join("\n"))?;
                }
                Some(verdict) => {
                    bail!("the unchanged tree does not pass `cargo test {command}`: {verdict}")
                }
            }
        }
        Ok(())
    }

    fn judge(&self, name: &str, commands: &[&str]) -> Result<Verdict> {
        for command in commands {
            if let Some(verdict) = self.command(name, command)? {
                return Ok(verdict);
            }
        }
        Ok(Verdict::Survived)
    }

    /// Runs `cargo test` with `arguments`: builds the tests, then runs them.
    fn command(&self, name: &str, arguments: &str) -> Result<Option<Verdict>> {
        let log = self.tree.copy().join(format!("../{name}.log"));
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let (selection, filter) = arguments.split_once(" -- ").unwrap_or((arguments, ""));
        let cargo = |more: &[&str]| -> Result<Child> {
            Command::new("cargo")
                .arg("test")
                .args(selection.split_whitespace())
                .args(more)
                .current_dir(self.tree.copy())
                .env_remove("CARGO_TARGET_DIR")
                .env("RUST_BACKTRACE", "0")
                .stdin(Stdio::null())
                .stdout(file.try_clone()?)
                .stderr(file.try_clone()?)
                .process_group(0)
                .spawn()
                .context("cannot run cargo")
        };
        let read = || -> Result<String> { Ok(String::from_utf8_lossy(&fs::read(&log)?).into()) };

        let built = end(cargo(&["--no-run"])?, None, &read)?;
        if built != End::Success {
            return Ok(verdict::of_log(&read()?, built));
        }
        let mut options = vec!["--"];
        if is_on_host(arguments) {
            // One by one, so that the log shows which test hangs or kills the process.
            options.push("--test-threads=1");
        }
        options.extend(filter.split_whitespace());
        let silence = is_on_host(arguments).then_some(SILENCE);
        let over = end(cargo(&options)?, silence, &read)?;
        Ok(verdict::of_log(&read()?, over))
    }
}

/// Whether the tests that `arguments` select run in a process on the host, without a harness that
/// ends a test that hangs.
fn is_on_host(arguments: &str) -> bool {
    !arguments.starts_with("-p tests")
}

/// Waits for the end of `child`. Ends it if a test has failed, after [`LIMIT`], or if the log has
/// not grown for `silence`.
fn end(
    mut child: Child,
    silence: Option<Duration>,
    log: &impl Fn() -> Result<String>,
) -> Result<End> {
    let deadline = Instant::now() + LIMIT;
    let (mut seen, mut news) = (0, Instant::now());
    let mut failed_at: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            let success = status.success();
            return Ok(if success { End::Success } else { End::Failure });
        }
        let text = log()?;
        if text.len() != seen {
            (seen, news) = (text.len(), Instant::now());
        }
        if failed_at.is_none() && verdict::failed_test(&text).is_some() {
            failed_at = Some(Instant::now());
        }
        if Instant::now() > deadline
            || silence.is_some_and(|silence| news.elapsed() > silence)
            || failed_at.is_some_and(|at| at.elapsed() > LAST_WORDS)
        {
            // The group is this trial's alone: cargo, the test program and its guests.
            let group = format!("-{}", child.id());
            let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
            child.wait()?;
            return Ok(End::Late);
        }
        thread::sleep(Duration::from_millis(200));
    }
}
