//! Which guest tests execute which of the sample's instructions, and how long each test takes.
//!
//! The tests run once, without a mutant, in guests under a plugin of QEMU (`tests/mutants/plugin`).
//! It notes each instruction of the sample that is executed since the last mark. The mark is a
//! function that the guest calls when a test begins ([`MARK`]). All that is executed before the
//! first test counts for the boot, and a boot counts for all of its tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use boot::layout;
use tests::catalogue::{BootOptions, GuestTest};

/// The function that the guest calls once for each test, before it runs.
pub const MARK: &str = "kernel::test_runner::limit_time";

/// The part of the sample that one test, or one boot before its first test, has executed.
#[derive(Clone, Debug, Default, PartialEq)]
struct Executed {
    time: Duration,
    addresses: BTreeSet<u64>,
}

/// See the module's text. It is kept in a file for the next run with the same kernel.
pub struct Coverage {
    path: PathBuf,
    kernel: String,
    /// The instructions that the runs so far have looked for.
    known: BTreeSet<u64>,
    executed: BTreeMap<String, Executed>,
}

impl Coverage {
    /// `kernel` tells this kernel from others.
    pub fn read(kernel: &str) -> Result<Self> {
        let path = layout::artifacts()?.join("mutant.coverage");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut coverage = Self {
            path,
            kernel: kernel.into(),
            known: BTreeSet::new(),
            executed: BTreeMap::new(),
        };
        // A file of another form is as good as none.
        if coverage.parse(&text).is_none() {
            coverage.known.clear();
            coverage.executed.clear();
        }
        Ok(coverage)
    }

    /// Takes over `text`, as [`Self::text`] wrote it for the same kernel.
    fn parse(&mut self, text: &str) -> Option<()> {
        let addresses = |text: &str| -> Option<BTreeSet<u64>> {
            let one = |text| u64::from_str_radix(text, 16).ok();
            text.split_whitespace().map(one).collect()
        };
        let mut lines = text.lines();
        if lines.next()? != self.kernel {
            return None;
        }
        self.known = addresses(lines.next()?)?;
        for line in lines {
            let mut parts = line.split('\t');
            let (name, time, executed) = (parts.next()?, parts.next()?, parts.next()?);
            let executed = Executed {
                time: Duration::from_millis(time.parse().ok()?),
                addresses: addresses(executed)?,
            };
            self.executed.insert(name.into(), executed);
        }
        Some(())
    }

    fn text(&self) -> String {
        let addresses = |addresses: &BTreeSet<u64>| {
            let all = addresses.iter().map(|address| format!("{address:x}"));
            all.collect::<Vec<_>>().join(" ")
        };
        let mut text = format!("{}\n{}\n", self.kernel, addresses(&self.known));
        for (name, executed) in &self.executed {
            let (time, executed) = (executed.time.as_millis(), addresses(&executed.addresses));
            text += &format!("{name}\t{time}\t{executed}\n");
        }
        text
    }

    /// Those of `addresses` that no run has looked for.
    pub fn unknown(&self, addresses: impl Iterator<Item = u64>) -> BTreeSet<u64> {
        addresses
            .filter(|address| !self.known.contains(address))
            .collect()
    }

    /// Looks for `addresses` by `run`. It runs tests that share their boots, in a guest with these
    /// further arguments, and returns how many of them it has come through, and the name of the
    /// last one of these if that has not passed. It is left out then. `mark` is the address of
    /// [`MARK`].
    pub fn find<'t>(
        &mut self,
        addresses: &BTreeSet<u64>,
        mark: u64,
        tests: &[&'t GuestTest],
        mut run: impl FnMut(&[&'t GuestTest], &[String]) -> Result<(usize, Option<String>)>,
    ) -> Result<()> {
        let plugin = plugin()?;
        let artifacts = layout::artifacts()?;
        let [input, output] =
            ["mutant.addresses", "mutant.executed"].map(|name| artifacts.join(name));
        let lines = [mark].into_iter().chain(addresses.iter().copied());
        let lines: Vec<_> = lines.map(|address| format!("{address:x}")).collect();
        fs::write(&input, lines.join("\n"))?;
        let paths =
            [&plugin, &input, &output].map(|path| path.to_string_lossy().replace(',', ",,"));
        let further = [
            "-plugin".into(),
            format!("{},in={},out={}", paths[0], paths[1], paths[2]),
        ];
        for tests in tests.chunk_by(|a, b| a.boot == b.boot) {
            let mut rest = tests;
            while !rest.is_empty() {
                let (count, failed) = run(rest, &further)?;
                let executed = executed(&fs::read_to_string(&output)?)?;
                ensure!(
                    executed.len() == count + 1,
                    "{MARK} is called {} times in {count} tests",
                    executed.len() - 1
                );
                let boot = boot_name(&tests[0].boot);
                let tests = rest.iter().map(|test| test.name.clone());
                for (name, new) in [boot].into_iter().chain(tests).zip(executed) {
                    let known = self.executed.entry(name).or_default();
                    known.time = new.time;
                    known.addresses.extend(new.addresses);
                }
                if let Some(failed) = failed {
                    self.executed.remove(&failed);
                }
                rest = &rest[count..];
            }
            self.write()?;
        }
        self.known.extend(addresses);
        self.write()
    }

    fn write(&self) -> Result<()> {
        layout::write_if_changed(&self.path, self.text().as_bytes())
    }

    /// Whether `test` itself executes the instruction at `address`.
    pub fn executes(&self, test: &GuestTest, address: u64) -> bool {
        self.has(&test.name, address)
    }

    /// Whether the boot of `test` executes the instruction at `address`.
    pub fn boot_executes(&self, test: &GuestTest, address: u64) -> bool {
        self.has(&boot_name(&test.boot), address)
    }

    fn has(&self, name: &str, address: u64) -> bool {
        let executed = self.executed.get(name);
        executed.is_some_and(|executed| executed.addresses.contains(&address))
    }

    /// The time that `test` took. None if it has not passed.
    pub fn time(&self, test: &GuestTest) -> Option<Duration> {
        Some(self.executed.get(&test.name)?.time)
    }
}

/// The name of a boot among the tests.
fn boot_name(options: &BootOptions) -> String {
    format!("{options:?}")
}

/// Builds the plugin.
fn plugin() -> Result<PathBuf> {
    let target = layout::workspace().join("target/mutants/plugin");
    let built = Command::new("cargo")
        .args([
            "build",
            "--quiet",
            "--release",
            "--package",
            "coverage_plugin",
        ])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(layout::workspace())
        .status()
        .context("cannot run cargo")?;
    ensure!(built.success(), "cargo cannot build the plugin of QEMU");
    Ok(target.join("release/libcoverage_plugin.so"))
}

/// The parts that the boot and each test have executed, as the plugin tells.
fn executed(text: &str) -> Result<Vec<Executed>> {
    let mut all = vec![Executed::default()];
    for line in text.lines() {
        let now = all.last_mut().context("there is one from the beginning")?;
        match line.split_once(' ') {
            None => {
                let address = u64::from_str_radix(line, 16);
                now.addresses
                    .insert(address.with_context(|| format!("no address: {line}"))?);
            }
            Some((event, time)) => {
                now.time = Duration::from_millis(time.parse()?);
                if event == "begin" {
                    all.push(Executed::default());
                }
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests_of_coverage {
    use super::*;

    fn executed_by(millis: u64, addresses: &[u64]) -> Executed {
        Executed {
            time: Duration::from_millis(millis),
            addresses: addresses.iter().copied().collect(),
        }
    }

    #[test]
    fn what_is_executed_belongs_to_the_test_that_has_begun() {
        let text = "10\n1f\nbegin 1200\nbegin 5\n10\nend 70\n";
        let all = executed(text).unwrap();
        assert_eq!(all[0], executed_by(1200, &[0x10, 0x1f]), "the boot");
        assert_eq!(all[1], executed_by(5, &[]));
        assert_eq!(all[2], executed_by(70, &[0x10]));
        assert!(executed("1x\n").is_err());
    }

    #[test]
    fn a_file_of_the_same_kernel_is_read_back() {
        let of = |kernel: &str| Coverage {
            path: PathBuf::new(),
            kernel: kernel.into(),
            known: BTreeSet::new(),
            executed: BTreeMap::new(),
        };
        let mut coverage = of("a");
        coverage.known = [1, 2].into();
        let tests = [
            ("f::g", executed_by(1234, &[1])),
            ("h", executed_by(5, &[])),
        ];
        coverage.executed = tests.map(|(name, by)| (name.into(), by)).into();
        let text = coverage.text();
        let mut again = of("a");
        again.parse(&text).unwrap();
        assert_eq!(
            (&again.known, &again.executed),
            (&coverage.known, &coverage.executed)
        );
        assert!(of("b").parse(&text).is_none());
        assert!(of("a").parse("").is_none());
    }
}
