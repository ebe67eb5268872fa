//! Mutants of the linked test kernel: its assembly and the kernel's glue, changed by rules. Nothing
//! is built again.
//!
//! ```text
//!   rules    how an instruction is changed
//!   parts    which functions are changed, and which guest tests should notice
//! ```
//!
//! A mutant is one instruction with other bytes. It is put into a disk image of its own and booted.

mod parts;
mod rules;

use std::{
    collections::HashSet,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    ops::ControlFlow,
    path::{Path, PathBuf},
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
use object::{Object, ObjectSegment};
use test_protocol::Descriptor;
use tests::{
    boots::{self, Emulator},
    catalogue::{Catalogue, GuestTest},
};

pub use self::rules::Rule;
use self::{
    parts::{PARTS, Part},
    rules::Change,
};
use crate::verdict::Verdict;

/// Time from power-on to the first test. An unchanged kernel takes seconds, but much longer if
/// other work keeps the processors busy.
const BOOTING: Duration = Duration::from_secs(90);

/// The time limit of tests that say nothing about it, which take seconds. Those that say something,
/// even less, take longer.
const USUAL: Duration = Duration::from_secs(Descriptor::USUAL_TIMEOUT_S as u64);

/// Which guest tests are tried.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// Those whose names begin so, of any part.
    Named(Vec<String>),
    /// Those of the part that share their boots with most others and say nothing about their time.
    Quick,
    /// Those of the part.
    Part,
    All,
}

/// A changed instruction.
pub struct Mutant {
    /// Part, function, offset, and the change of which instruction.
    pub name: String,
    part: &'static Part,
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
        let symbols = Table::read(&self.elf).map_err(|error| anyhow::anyhow!("{error:?}"))?;
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
    /// A test fails without a mutant.
    pub fn trials(&self, mutants: &[Mutant], effort: Effort) -> Result<Trials<'_>> {
        let mut trials = Trials {
            target: self,
            effort,
            passed: Passed::read(&self.elf)?,
            left_out: Vec::new(),
        };
        // All in one run, because they share their boots.
        let is_needed = |part: &&Part| mutants.iter().any(|mutant| mutant.part.name == part.name);
        let parts = PARTS.iter().filter(is_needed);
        let mut first: Vec<_> = parts
            .flat_map(|part| trials.stages(part).swap_remove(0))
            .collect();
        first.sort_by(|a, b| (&a.boot, &a.name).cmp(&(&b.boot, &b.name)));
        first.dedup();
        trials.baseline(&first)?;
        Ok(trials)
    }
}

/// The tests that have passed without a mutant, kept in a file for the next run with the same
/// kernel.
struct Passed {
    path: PathBuf,
    /// The first line names the kernel, each other line a test.
    lines: Vec<String>,
}

impl Passed {
    fn read(elf: &[u8]) -> Result<Self> {
        let mut hasher = DefaultHasher::new();
        elf.hash(&mut hasher);
        let kernel = format!("{:016x}", hasher.finish());
        let path = layout::artifacts()?.join("mutant.passed");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut lines: Vec<_> = text.lines().map(String::from).collect();
        if lines.first() != Some(&kernel) {
            lines = vec![kernel];
        }
        Ok(Self { path, lines })
    }

    fn has(&self, test: &GuestTest) -> bool {
        self.lines[1..].contains(&test.name)
    }

    fn add(&mut self, tests: &[String]) -> Result<()> {
        self.lines.extend_from_slice(tests);
        layout::write_if_changed(&self.path, self.lines.join("\n").as_bytes())
    }
}

/// Tries mutants.
pub struct Trials<'a> {
    target: &'a Target,
    effort: Effort,
    passed: Passed,
    /// Tests that take too long here without a mutant. They would end each mutant's trial.
    left_out: Vec<String>,
}

impl<'a> Trials<'a> {
    /// # Errors
    /// A test fails without a mutant, or the kernel cannot be written.
    pub fn run(&mut self, mutant: &Mutant) -> Result<Verdict> {
        let mut elf = self.target.elf.clone();
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
        for tests in self.stages(mutant.part) {
            self.baseline(&tests)?;
            let usable = |test: &&GuestTest| !self.left_out.contains(&test.name);
            let tests: Vec<_> = tests.into_iter().filter(usable).collect();
            let (verdict, _) = self.target.boot(&kernel, &tests);
            if verdict != Verdict::Survived {
                return Ok(verdict);
            }
        }
        Ok(Verdict::Survived)
    }

    /// Sees to it that `tests` pass without a mutant. Leaves out those that take too long on this
    /// machine.
    fn baseline(&mut self, tests: &[&GuestTest]) -> Result<()> {
        loop {
            let untried =
                |test: &&&GuestTest| !self.passed.has(test) && !self.left_out.contains(&test.name);
            let tests: Vec<_> = tests.iter().filter(untried).copied().collect();
            let (verdict, passed) = self.target.boot(&self.target.catalogue.kernel, &tests);
            self.passed.add(&passed)?;
            match verdict {
                Verdict::Survived => return Ok(()),
                Verdict::TakesTooLong(test) | Verdict::Hangs(test) => {
                    println!("left out, because it takes too long without a mutant: {test}");
                    self.left_out.push(test);
                }
                verdict => bail!("the unchanged kernel: {verdict}"),
            }
        }
    }

    /// The tests for a mutant of `part`: those that share a boot with most others, the quick ones
    /// first, then those with boots of their own.
    fn stages(&self, part: &Part) -> Vec<Vec<&'a GuestTest>> {
        let is_for_part = |test: &&GuestTest| {
            part.tests
                .iter()
                .any(|prefix| test.name.starts_with(prefix))
        };
        let all = self.target.catalogue.tests.iter();
        let all = all.filter(|test| !test.hidden && !test.ignored);
        if let Effort::Named(names) = &self.effort {
            let is_named = |test: &&GuestTest| names.iter().any(|name| test.name.starts_with(name));
            return vec![all.filter(is_named).collect()];
        }
        let (for_part, others): (Vec<_>, Vec<_>) = all.partition(is_for_part);
        let (usual, unusual): (Vec<_>, Vec<_>) = for_part
            .into_iter()
            .partition(|test| boots_as_usual(test) || part.steps && steps(test));
        let (quick, slow) = usual.into_iter().partition(is_quick);
        let mut stages = vec![quick];
        if self.effort > Effort::Quick {
            stages.extend([slow, unusual]);
        }
        if self.effort > Effort::Part {
            stages.push(others);
        }
        stages
    }
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

/// Whether `test` takes seconds. Those of the probes' suite have a long limit each, for processors
/// that are simulated in steps.
fn is_quick(test: &&GuestTest) -> bool {
    test.timeout == USUAL || test.name.starts_with("suite::")
}

/// Whether `test` shares its boot with most others.
fn boots_as_usual(test: &GuestTest) -> bool {
    ["", "kprobes.optimize=0"].contains(&&*test.boot.cmdline) && has_usual_machine(test)
}

/// Whether `test` runs in the kernel that single-steps.
fn steps(test: &GuestTest) -> bool {
    test.boot.cmdline.starts_with("kprobes.step=tf") && has_usual_machine(test)
}

/// The probes' suite has four CPUs, most other tests two.
fn has_usual_machine(test: &GuestTest) -> bool {
    let boot = &test.boot;
    [2, 4].contains(&boot.smp) && (boot.memory_mib, boot.icount) == (256, false)
}

impl Target {
    /// Boots `kernel` with `tests` until one fails. Returns the names of those that passed, too.
    fn boot(&self, kernel: &Kernel, tests: &[&GuestTest]) -> (Verdict, Vec<String>) {
        let mut passed = Vec::new();
        let mut verdict = Verdict::Survived;
        boots::run_until(
            Emulator::Qemu,
            kernel,
            tests,
            BOOTING,
            false,
            |test, result| {
                let Err(failure) = result else {
                    passed.push(test.name.clone());
                    return ControlFlow::Continue(());
                };
                verdict =
                    Verdict::of_guest_test(&test.name, failure.lines().next().unwrap_or_default());
                ControlFlow::Break(())
            },
        );
        (verdict, passed)
    }
}
