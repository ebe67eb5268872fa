//! One mutant: built, and tried by one command after the other until one notices.

use std::{
    fmt,
    fs::{self, File},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{list::Mutant, tree::Tree};

/// All suites, the cheap ones first.
const SUITES: [&str; 8] = [
    "-p tests --test models",
    "-p probes --lib",
    "-p probes --test insn",
    "-p probes --test translate",
    "-p probes --test trap_flag",
    "-p probes --test trap3 --test trap4",
    "-p tests --test suite",
    "-p tests --test kernel_text --test machines --test samples --test prompt",
];
/// A command that takes longer, building included, hangs. The harness of the guest tests has limits of its own, which are shorter.
const LIMIT: Duration = Duration::from_secs(20 * 60);
/// One of the probes' own tests hangs if they print nothing for so long. None takes half a minute, nor does building them.
const SILENCE: Duration = Duration::from_secs(3 * 60);

/// How long a command may go on behind its first failure: if no test is left, it says what has failed, and the log is the better for it.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What became of a mutant.
pub enum Verdict {
    /// By this.
    Noticed(String),
    Missed,
    DoesNotBuild,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Noticed(by) => write!(f, "noticed by {by}"),
            Self::Missed => f.write_str("MISSED"),
            Self::DoesNotBuild => f.write_str("DOES NOT BUILD"),
        }
    }
}

/// Tries `mutant` in the copy, which is as before afterwards.
pub fn run(mutant: &Mutant, tree: &Tree, named_tests_only: bool) -> Result<Verdict> {
    let original = tree.read(&mutant.file)?;
    tree.write(&mutant.file, &mutant.applied_to(&original)?)?;
    let verdict = judge(mutant, tree, named_tests_only);
    tree.write(&mutant.file, &original)?;
    verdict
}

fn judge(mutant: &Mutant, tree: &Tree, named_tests_only: bool) -> Result<Verdict> {
    let named = mutant.tests.iter().map(String::as_str);
    let suites = SUITES.into_iter().filter(|_| !named_tests_only);
    for arguments in named.chain(suites) {
        match command(mutant, tree, arguments)? {
            Outcome::Passed => {}
            Outcome::Failed(by) => return Ok(Verdict::Noticed(by)),
            Outcome::NotBuilt => return Ok(Verdict::DoesNotBuild),
        }
    }
    Ok(Verdict::Missed)
}

enum Outcome {
    Passed,
    /// In this test, or in this way.
    Failed(String),
    NotBuilt,
}

/// Runs `cargo test` with `arguments`.
fn command(mutant: &Mutant, tree: &Tree, arguments: &str) -> Result<Outcome> {
    let log = tree.copy().join(format!("../{}.log", mutant.name));
    let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut child = Command::new("cargo")
        .arg("test")
        .args(arguments.split_whitespace())
        .current_dir(tree.copy())
        .env_remove("CARGO_TARGET_DIR")
        .env("RUST_BACKTRACE", "0")
        // Nobody debugs a mutant, and the kernel is built for each.
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0)
        .spawn()
        .context("cannot run cargo")?;
    let deadline = Instant::now() + LIMIT;
    let in_process = arguments.starts_with("-p probes");
    let written =
        || -> Result<String> { Ok(String::from_utf8_lossy(&fs::read(&log)?).into_owned()) };
    let (mut seen, mut news) = (0, Instant::now());
    let mut failed_at = None;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        let text = written()?;
        if text.len() != seen {
            (seen, news) = (text.len(), Instant::now());
        }
        let hangs = Instant::now() > deadline || in_process && news.elapsed() > SILENCE;
        let failed = failed_test(&text);
        if failed.is_some() {
            failed_at.get_or_insert_with(Instant::now);
        }
        if hangs || failed_at.is_some_and(|at: Instant| at.elapsed() > LAST_WORDS) {
            let group = format!("-{}", child.id());
            // The group is this trial's alone: cargo, the test binary and its guests.
            let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
            child.wait()?;
            if let Some(test) = failed {
                return Ok(Outcome::Failed(test));
            }
            break None;
        }
        thread::sleep(Duration::from_millis(500));
    };
    let text = written()?;
    let Some(status) = status else {
        return Ok(Outcome::Failed(format!("a hang of `{arguments}`")));
    };
    if status.success() {
        // A filter that fits nothing would notice nothing, ever.
        let ran = text
            .lines()
            .any(|line| line.starts_with("running ") && !line.starts_with("running 0 "));
        ensure!(ran, "{}: `{arguments}` runs no test", mutant.name);
        return Ok(Outcome::Passed);
    }
    if text.contains("could not compile") {
        return Ok(Outcome::NotBuilt);
    }
    let test = failed_test(&text);
    // The compiler has taken it; a check of the linked kernel may have not.
    let unbuilt = text.lines().find(|line| line.contains("cannot be built"));
    let by = test.or_else(|| unbuilt.map(Into::into));
    ensure!(
        by.is_some() || text.contains("\nrunning "),
        "{}: `{arguments}` does not get as far as a test; see {}",
        mutant.name,
        log.display()
    );
    Ok(Outcome::Failed(by.unwrap_or_else(|| {
        format!("an end of `{arguments}` without a verdict")
    })))
}

/// The first test that has failed.
fn failed_test(text: &str) -> Option<String> {
    let mut lines = text.lines().filter(|line| !line.starts_with("test result"));
    // What a test prints may stand between its name and its verdict.
    let mut running = None;
    let test = lines.find_map(|line| {
        running = line.strip_prefix("test ").or(running);
        line.contains("FAILED").then_some(running?)
    })?;
    Some(test.split(" ...").next().unwrap_or(test).trim().into())
}
