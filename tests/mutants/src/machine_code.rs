//! Mutants of the linked test kernel: its assembly and the kernel's glue, changed by rules. Nothing
//! is built again.
//!
//! ```text
//!   rules       how an instruction is changed
//!   parts       which functions are changed, and which guest tests should notice
//!   coverage    which guest tests execute which instructions
//! ```
//!
//! A mutant is one instruction with other bytes. It is put into a disk image of its own and booted
//! with tests that execute the instruction.

mod coverage;
mod parts;
mod rules;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    mem::offset_of,
    ops::ControlFlow,
    path::Path,
    process,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use boot::{
    image::Kernel,
    layout,
    prerequisites::{self, Install},
};
use kallsyms::{Symbol, Table};
use object::{Object, ObjectSection, ObjectSegment};
use test_protocol::{Descriptor, SECTION};
use tests::{
    boots,
    catalogue::{BootOptions, Catalogue, GuestTest},
};

pub use self::rules::Rule;
use self::{
    coverage::Coverage,
    parts::{PARTS, Part},
    rules::Change,
};
use crate::verdict::Verdict;

/// Time from power-on to the first test. An unchanged kernel takes seconds, but much longer if
/// other work keeps the processors busy.
const BOOTING: Duration = Duration::from_secs(90);

/// The longest time limit of the tests that are tried as a rule. That of most tests, which take
/// seconds.
const USUAL: Duration = Duration::from_secs(Descriptor::USUAL_TIMEOUT_S as u64);

/// A trial begins with tests that take so long together, in one boot.
const AT_ONCE: Duration = Duration::from_secs(10);
/// The tests of a trial take so long together as a rule, boots included.
const ENOUGH: Duration = Duration::from_secs(60);
/// About how long a boot takes.
const BOOT: Duration = Duration::from_secs(3);

/// The shortest time limit of a test. Other work may keep the processors busy.
const SHORTEST_LIMIT: Duration = Duration::from_secs(30);

/// Which guest tests are tried.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// Those whose names begin so, whether they execute the instruction or not.
    Named(Vec<String>),
    /// Those that execute the instruction, the part's first, as many as take [`ENOUGH`] time.
    Usual,
    /// All that execute the instruction, and those with long time limits, of which that is not
    /// known.
    All,
}

/// A changed instruction.
pub struct Mutant {
    /// Part, function, offset, and the change of which instruction.
    pub name: String,
    part: &'static Part,
    address: u64,
    /// Where in the file.
    at: usize,
    change: Change,
}

impl Mutant {
    /// The part that it is in, and the rule that it is made by.
    pub fn kind(&self) -> (&'static str, Rule) {
        (self.part.name, self.change.rule)
    }
}

/// The test kernel.
pub struct Target {
    catalogue: Catalogue,
    elf: Vec<u8>,
}

impl Target {
    /// The kernel at `elf`, or that of the current tree.
    pub fn build(elf: Option<&Path>) -> Result<Self> {
        prerequisites::toolchain(Install::Allowed)?;
        let catalogue = match elf {
            None => Catalogue::build()?,
            Some(elf) => Catalogue::of(Kernel {
                name: format!("mutated-{}", process::id()),
                elf: elf.into(),
                debug_elf: elf.into(),
            })?,
        };
        let elf = fs::read(&catalogue.kernel.elf)?;
        Ok(Self { catalogue, elf })
    }

    /// All mutants that the rules make of the parts.
    pub fn mutants(&self) -> Result<Vec<Mutant>> {
        let symbols = symbols(&self.elf)?;
        let mut mutants = Vec::new();
        for part in &PARTS {
            for prefix in part.tests {
                ensure!(
                    self.catalogue
                        .tests
                        .iter()
                        .any(|test| test.name.starts_with(prefix)),
                    "no test is called {prefix}: bring tests/mutants/src/machine_code/parts.rs up \
                     to date"
                );
            }
            for prefix in part.functions {
                let mut known = false;
                for function in symbols.functions() {
                    let name = function.demangled().to_string();
                    if name.starts_with(prefix) && function.size > 0 {
                        known = true;
                        self.mutants_of(part, &name, &function, &symbols, &mut mutants)?;
                    }
                }
                ensure!(
                    known,
                    "no function is called {prefix}: bring tests/mutants/src/machine_code/parts.rs \
                 up to date"
                );
            }
        }
        let mut places = HashSet::new();
        mutants.retain(|mutant: &Mutant| places.insert((mutant.at, mutant.change.clone())));
        Ok(mutants)
    }

    fn mutants_of(
        &self,
        part: &'static Part,
        name: &str,
        function: &Symbol<'_>,
        symbols: &Table<'_>,
        mutants: &mut Vec<Mutant>,
    ) -> Result<()> {
        let at = self
            .file_offset(function.start)
            .with_context(|| format!("{name} is not in the file"))?;
        let code = &self.elf[at..at + function.size as usize];
        let callee = |address| {
            symbols
                .symbol_at(address)
                .map(|symbol| symbol.demangled().to_string())
        };
        for change in rules::changes(code, function.start, callee) {
            mutants.push(Mutant {
                name: format!("{}: {name}+{:#x} {change}", part.name, change.offset),
                part,
                address: function.start + change.offset as u64,
                at: at + change.offset,
                change,
            });
        }
        Ok(())
    }

    fn file_offset(&self, address: u64) -> Option<usize> {
        let elf = object::File::parse(&*self.elf).ok()?;
        elf.segments().find_map(|segment| {
            let (offset, bytes) = segment.file_range();
            let inside = address.checked_sub(segment.address())?;
            (inside < bytes).then_some((offset + inside) as usize)
        })
    }

    /// Trials of `mutants`.
    ///
    /// # Errors
    /// A named test fails without a mutant, or the unchanged kernel does not boot.
    pub fn trials(&self, mutants: &[Mutant], effort: Effort) -> Result<Trials<'_>> {
        let mut hasher = DefaultHasher::new();
        self.elf.hash(&mut hasher);
        let mut trials = Trials {
            target: self,
            elf: self.elf.clone(),
            tests: self.tests().cloned().collect(),
            coverage: Coverage::read(&format!("{:016x}", hasher.finish()))?,
            effort,
        };
        trials.prepare(mutants)?;
        trials.limit_times()?;
        Ok(trials)
    }

    /// The tests that run without being asked for.
    fn tests(&self) -> impl Iterator<Item = &GuestTest> {
        let all = self.catalogue.tests.iter();
        all.filter(|test| !test.hidden && !test.ignored)
    }

    /// Boots `kernel` with `tests` until one fails.
    fn boot(kernel: &Kernel, tests: &[&GuestTest]) -> Verdict {
        let mut verdict = Verdict::Survived;
        boots::run_until(kernel, tests, BOOTING, &[], |test, result| {
            let Err(failure) = result else {
                return ControlFlow::Continue(());
            };
            verdict = judged(test, &failure);
            ControlFlow::Break(())
        });
        verdict
    }

    /// Where the file has the time limit of `test`, in seconds.
    fn limit_of(&self, test: &GuestTest) -> Result<usize> {
        let elf = object::File::parse(&*self.elf)?;
        let section = elf.section_by_name(SECTION);
        let place = section.and_then(|section| section.file_range());
        let (start, _) = place.with_context(|| format!("the kernel has no section {SECTION}"))?;
        Ok(start as usize
            + test.index * size_of::<Descriptor>()
            + offset_of!(Descriptor, timeout_s))
    }
}

/// Tries mutants.
pub struct Trials<'a> {
    target: &'a Target,
    /// The kernel, with the time limits of `tests`.
    elf: Vec<u8>,
    tests: Vec<GuestTest>,
    effort: Effort,
    coverage: Coverage,
}

impl Trials<'_> {
    /// Runs the tests without a mutant, and finds out which of them execute which of `mutants`.
    fn prepare(&mut self, mutants: &[Mutant]) -> Result<()> {
        let target = self.target;
        let kernel = &target.catalogue.kernel;
        if let Effort::Named(_) = self.effort {
            return match Target::boot(kernel, &self.named()) {
                Verdict::Survived => Ok(()),
                verdict => bail!("the unchanged kernel: {verdict}"),
            };
        }
        let addresses = mutants.iter().map(|mutant| mutant.address);
        let unknown = self.coverage.unknown(addresses);
        if unknown.is_empty() {
            return Ok(());
        }
        let mark = symbols(&target.elf)?
            .functions()
            .find(|function| function.demangled().to_string() == coverage::MARK)
            .with_context(|| format!("the kernel has no {}", coverage::MARK))?
            .start;
        let tests: Vec<_> = target.tests().filter(|test| !is_long(test)).collect();
        println!("running {} tests without a mutant", tests.len());
        let run = |tests: &[&GuestTest], further: &[String]| {
            let (mut count, mut verdict) = (0, None);
            boots::run_until(kernel, tests, BOOTING, further, |test, result| {
                count += 1;
                verdict = result.err().map(|failure| judged(test, &failure));
                // Either ends the boot.
                if verdict.is_some() || test.should_panic.is_some() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            match verdict {
                None => Ok((count, None)),
                Some(
                    Verdict::Noticed(test) | Verdict::TakesTooLong(test) | Verdict::Hangs(test),
                ) => {
                    println!("left out, because it does not pass without a mutant: {test}");
                    Ok((count, Some(test)))
                }
                Some(verdict) => bail!("the unchanged kernel: {verdict}"),
            }
        };
        self.coverage.find(&unknown, mark, &tests, run)
    }

    /// Gives each test whose usual time is known a limit near it, because a mutant may make a test
    /// wait for ever. A test has one limit in all its boots.
    fn limit_times(&mut self) -> Result<()> {
        let mut limits: BTreeMap<usize, Duration> = BTreeMap::new();
        for test in &self.tests {
            let time = self.coverage.time(test);
            let limit = time.map_or(test.timeout, |time| {
                test.timeout.min(SHORTEST_LIMIT + 10 * time)
            });
            let known = limits.entry(test.index).or_default();
            *known = limit.max(*known);
        }
        for test in &mut self.tests {
            test.timeout = limits[&test.index];
            let seconds = test.timeout.as_secs() as u32;
            let place = self.target.limit_of(test)?;
            self.elf[place..][..4].copy_from_slice(&seconds.to_le_bytes());
        }
        Ok(())
    }

    /// # Errors
    /// The kernel cannot be written.
    pub fn run(&self, mutant: &Mutant) -> Result<Verdict> {
        let stages = self.stages(mutant);
        if stages.is_empty() {
            return Ok(Verdict::NotExecuted);
        }
        let mut elf = self.elf.clone();
        elf[mutant.at..][..mutant.change.bytes.len()].copy_from_slice(&mutant.change.bytes);
        // Another run beside this one has its own.
        let name = format!("mutant-{}", process::id());
        let kernel = Kernel {
            elf: layout::artifacts()?.join(&name),
            name,
            ..self.target.catalogue.kernel.clone()
        };
        let _files = Files(&kernel);
        fs::write(&kernel.elf, elf)?;
        for tests in stages {
            let verdict = Target::boot(&kernel, &tests);
            if verdict != Verdict::Survived {
                return Ok(verdict);
            }
        }
        Ok(Verdict::Survived)
    }

    /// The tests of [`Effort::Named`].
    fn named(&self) -> Vec<&GuestTest> {
        let Effort::Named(names) = &self.effort else {
            return Vec::new();
        };
        let is_named = |test: &&GuestTest| names.iter().any(|name| test.name.starts_with(name));
        self.tests.iter().filter(is_named).collect()
    }

    /// The tests for `mutant`: a few short ones of one boot, then the others. None if no test
    /// executes it.
    fn stages(&self, mutant: &Mutant) -> Vec<Vec<&GuestTest>> {
        if let Effort::Named(_) = self.effort {
            return vec![self.named()];
        }
        let is_for_part = |test: &GuestTest| {
            let names = mutant.part.tests;
            names.iter().any(|prefix| test.name.starts_with(prefix))
        };
        let mut tests: Vec<_> = self
            .tests
            .iter()
            .filter_map(|test| {
                let itself = self.coverage.executes(test, mutant.address);
                let runs = itself
                    || self.coverage.boot_executes(test, mutant.address)
                    || mutant.part.copied && is_for_part(test);
                let time = self.coverage.time(test)?;
                runs.then_some(((!itself, !is_for_part(test), time), test))
            })
            .collect();
        tests.sort_by_key(|(order, _)| *order);
        let mut stages = stages(
            tests.into_iter().map(|((.., time), test)| (test, time)),
            if self.effort == Effort::All {
                Duration::MAX
            } else {
                ENOUGH
            },
        );
        if self.effort == Effort::All {
            stages.push(self.tests.iter().filter(|test| is_long(test)).collect());
        }
        stages
    }
}

/// Divides `tests`, the best ones first, into stages that share boots, and leaves out those that
/// come after `enough` time.
fn stages<'t>(
    tests: impl Iterator<Item = (&'t GuestTest, Duration)>,
    enough: Duration,
) -> Vec<Vec<&'t GuestTest>> {
    let mut boots: Vec<(&BootOptions, Vec<(&GuestTest, Duration)>)> = Vec::new();
    let mut sum = Duration::ZERO;
    for (test, time) in tests {
        let known = boots.iter().position(|(boot, _)| **boot == test.boot);
        sum += time
            + if known.is_none() {
                BOOT
            } else {
                Duration::ZERO
            };
        if sum > enough && !boots.is_empty() {
            break;
        }
        let at = known.unwrap_or_else(|| {
            boots.push((&test.boot, Vec::new()));
            boots.len() - 1
        });
        boots[at].1.push((test, time));
    }
    boots.sort_by_key(|(_, tests)| Reverse(tests.len()));
    let Some((_, most)) = boots.first_mut() else {
        return Vec::new();
    };
    let mut sum = Duration::ZERO;
    let few = most.iter().take_while(|(_, time)| {
        sum += *time;
        sum <= AT_ONCE
    });
    let few = few.count().max(1);
    let first = most.drain(..few).map(|(test, _)| test).collect();
    let others = boots.into_iter().flat_map(|(_, tests)| tests);
    let others: Vec<_> = others.map(|(test, _)| test).collect();
    let stages = [first, others];
    stages
        .into_iter()
        .filter(|stage| !stage.is_empty())
        .collect()
}

/// The verdict of `test`, which failed with this text.
fn judged(test: &GuestTest, failure: &str) -> Verdict {
    Verdict::of_guest_test(&test.name, failure.lines().next().unwrap_or_default())
}

/// Whether `test` may take longer than usual.
fn is_long(test: &GuestTest) -> bool {
    test.timeout > USUAL
}

fn symbols(elf: &[u8]) -> Result<Table<'_>> {
    Table::read(elf).map_err(|error| anyhow::anyhow!("{error:?}"))
}

/// The files of a mutant, until it is dropped.
struct Files<'a>(&'a Kernel);

impl Drop for Files<'_> {
    fn drop(&mut self) {
        let image = self
            .0
            .elf
            .with_file_name(format!("{}-bios.img", self.0.name));
        for path in [&self.0.elf, &image, &image.with_extension("initramfs")] {
            // One that was not made, or that somebody else has deleted.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests_of_stages {
    use super::*;

    fn test(name: &str, cmdline: &str) -> GuestTest {
        GuestTest {
            name: name.into(),
            full_name: name.into(),
            index: 0,
            boot: BootOptions {
                cmdline: cmdline.into(),
                smp: 2,
                memory_mib: 256,
                icount: false,
            },
            timeout: USUAL,
            ignored: false,
            hidden: false,
            should_panic: None,
            second_pass: false,
        }
    }

    /// The names in the stages of tests with these boots and seconds.
    fn names(tests: &[(&str, &str, u64)], enough: u64) -> Vec<String> {
        let all: Vec<_> = tests
            .iter()
            .map(|(name, cmdline, _)| test(name, cmdline))
            .collect();
        let times = tests.iter().map(|(.., time)| Duration::from_secs(*time));
        stages(all.iter().zip(times), Duration::from_secs(enough))
            .iter()
            .map(|stage| {
                stage
                    .iter()
                    .map(|test| &*test.name)
                    .collect::<Vec<_>>()
                    .join(" ")
            })
            .collect()
    }

    #[test]
    fn a_few_short_tests_of_the_commonest_boot_come_first() {
        let tests = [
            ("a", "x", 1),
            ("b", "", 1),
            ("c", "", 8),
            ("d", "", 2),
            ("e", "x", 9),
        ];
        assert_eq!(names(&tests, 100), ["b c", "d a e"]);
        assert_eq!(names(&[("a", "", 60)], 100), ["a"], "at least one");
    }

    #[test]
    fn tests_after_enough_time_are_left_out() {
        // Each boot takes three seconds.
        let tests = [("a", "", 2), ("b", "", 5), ("c", "x", 1), ("d", "", 1)];
        assert_eq!(names(&tests, 13), ["a b"]);
        assert_eq!(names(&tests, 14), ["a b", "c"]);
        assert_eq!(names(&tests, 1), ["a"], "the first one in any case");
        assert!(names(&[], 100).is_empty());
    }
}
