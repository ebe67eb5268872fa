//! The guest tests, as the test kernel's ELF lists them in a section of its own.
//!
//! Tests of probes are in the list twice. One runs as it is written, with jumps in place of
//! breakpoints wherever the code allows it. The other runs with breakpoints only, and its name ends
//! in `::unoptimized`. Tests that choose for themselves run once.
//!
//! Tests of the probes' suite, which a process runs, too, are also there for each historic way to
//! serve a hit: single steps (`::tf`), and with them calls that return by a breakpoint (`::trap3`,
//! `::trap4`).
//!
//! The second kernel has that suite, too, and runs it in the first two of these ways.

use std::{collections::HashSet, fs, mem::offset_of, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use boot::image::Kernel;
use object::{Object, ObjectSection};
use test_protocol::{Descriptor, SECTION, Text};

/// The beginning of a test's name if the second kernel runs it.
pub const SECOND: &str = "second::";

/// The end of a test's name if it runs without jumps.
const UNOPTIMIZED: &str = "::unoptimized";

/// Beginnings of the names of the suite's tests that run in the historic ways, too.
const HISTORIC_TOO: [&str; 1] = ["suite::"];

/// The end of a test's name for each historic way, and the command line that chooses it.
const HISTORIC: [(&str, &str); 3] = [
    ("::tf", "kprobes.step=tf"),
    ("::trap3", "kprobes.step=tf kprobes.return=trap3"),
    ("::trap4", "kprobes.step=tf kprobes.return=trap4"),
];

/// Arguments of the command line by which a test chooses itself how probes are served.
const CHOICES: [&str; 2] = ["kprobes.optimize", "kprobes.step"];

/// Beginnings of the names of tests that run once. They register no probes, count probes that could
/// be registered, turn jumps on and off, or use each way to serve a hit themselves.
const ONCE: [&str; 18] = [
    "acceptance::",
    "blacklist::",
    "command_line::",
    "instruction_fuzz::",
    "interrupts_and_nmis::",
    "kallsyms::",
    "modules::",
    "optimization::",
    "printk::",
    "processor_single_step::",
    "programs::",
    "protection::",
    "self_test::",
    "shortage::a_probe_without_memory_for_its_jump_keeps_the_breakpoint",
    "stores_to_text::jumps_are_stored_behind_a_breakpoint_and_taken_away_behind_one",
    "stress::",
    "tasks::",
    "whole_kernel::jumps_all_over_the_kernel_",
];

/// The tests among [`ONCE`] that run twice nevertheless.
const TWICE: [&str; 4] = [
    "interrupts_and_nmis::storm_of_nmis_passes_over_a_probe_in_their_handler",
    "printk::probe_handler_in_the_console_may_log",
    "printk::probe_handler_in_printk_may_log",
    "programs::probe_handler_reads_user_memory_without_waiting",
];

/// The machine and the command line of a boot. Tests that agree in these share boots.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootOptions {
    pub cmdline: String,
    pub smp: u32,
    pub memory_mib: u32,
    pub icount: bool,
}

impl BootOptions {
    /// Adds arguments to the command line, after those that are there.
    pub(crate) fn append(&mut self, arguments: &str) {
        self.cmdline = format!("{} {arguments}", self.cmdline).trim().into();
    }
}

/// A guest test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestTest {
    /// Path of the function, without crate and folder. It has an ending if it runs again in another
    /// way.
    pub name: String,
    /// Path of the function, as the guest's markers have it.
    pub full_name: String,
    /// Position in the section, by which it is selected.
    pub index: usize,
    pub boot: BootOptions,
    /// Time that it may take.
    pub timeout: Duration,
    /// Runs only on request.
    pub ignored: bool,
    /// A test for the harness itself.
    pub hidden: bool,
    /// If set, it passes by a panic whose log holds this.
    pub should_panic: Option<String>,
    /// In another way than it asks for.
    pub second_pass: bool,
}

impl GuestTest {
    /// Returns the same test in a kernel without jumps, if that may make a difference to it.
    fn unoptimized(&self) -> Option<Self> {
        let is_in = |list: &[&str]| list.iter().any(|prefix| self.name.starts_with(prefix));
        let has_chosen = CHOICES
            .iter()
            .any(|choice| self.boot.cmdline.contains(choice));
        if has_chosen || (is_in(&ONCE) && !is_in(&TWICE)) {
            return None;
        }
        Some(self.again(UNOPTIMIZED, "kprobes.optimize=0"))
    }

    /// Returns the same test for each historic way to serve hits, if it should run there.
    fn historic(&self) -> impl Iterator<Item = Self> {
        let is_in = HISTORIC_TOO
            .iter()
            .any(|prefix| self.name.starts_with(prefix));
        let ways = HISTORIC.iter().filter(move |_| is_in);
        ways.map(|(ending, arguments)| self.again(ending, arguments))
    }

    /// The same test under a name that ends in `ending`, in a kernel with further arguments.
    fn again(&self, ending: &str, arguments: &str) -> Self {
        let mut twin = self.clone();
        twin.name += ending;
        twin.boot.append(arguments);
        twin.second_pass = true;
        twin
    }
}

/// The test kernel and its tests.
#[derive(Debug)]
pub struct Catalogue {
    pub kernel: Kernel,
    /// Sorted by boot options, then by name: tests with equal options are side by side.
    pub tests: Vec<GuestTest>,
}

impl Catalogue {
    /// Builds the test kernel and reads its tests.
    pub fn build() -> Result<Self> {
        Self::of(Kernel::build("testkernel")?)
    }

    /// Builds the second kernel with the probes' suite in it, and reads its tests.
    pub fn build_second() -> Result<Self> {
        let kernel = Kernel::build_second_suite()?;
        let mut tests = listed(&kernel)?;
        for test in &mut tests {
            test.name.insert_str(0, SECOND);
        }
        let unoptimized: Vec<_> = tests.iter().filter_map(GuestTest::unoptimized).collect();
        tests.extend(unoptimized);
        sort(&mut tests);
        Ok(Self { kernel, tests })
    }

    /// Reads the tests of a test kernel that is built.
    pub fn of(kernel: Kernel) -> Result<Self> {
        let mut tests = listed(&kernel)?;
        add_ways(&mut tests)?;
        sort(&mut tests);
        Ok(Self { kernel, tests })
    }
}

/// The tests of a kernel, in the order of the section.
fn listed(kernel: &Kernel) -> Result<Vec<GuestTest>> {
    read(&kernel.elf).with_context(|| format!("cannot list the tests in {}", kernel.elf.display()))
}

/// Puts tests with equal options side by side.
fn sort(tests: &mut [GuestTest]) {
    tests.sort_by(|a, b| (&a.boot, &a.name).cmp(&(&b.boot, &b.name)));
}

fn read(elf: &Path) -> Result<Vec<GuestTest>> {
    let content = fs::read(elf)?;
    let elf = object::File::parse(&*content)?;
    let section = elf
        .section_by_name(SECTION)
        .with_context(|| format!("it has no section {SECTION}"))?;
    let descriptors = section.data()?;
    ensure!(
        descriptors.len().is_multiple_of(size_of::<Descriptor>()),
        "the section {SECTION} holds something else than descriptors"
    );
    descriptors
        .chunks_exact(size_of::<Descriptor>())
        .enumerate()
        .map(|(index, bytes)| decode(&elf, bytes, index).with_context(|| format!("test {index}")))
        .collect()
}

/// Adds the tests of this tree's kernel once more for each other way in which they run.
fn add_ways(tests: &mut Vec<GuestTest>) -> Result<()> {
    for prefix in ONCE.iter().chain(&TWICE).chain(&HISTORIC_TOO) {
        ensure!(
            tests.iter().any(|test| test.name.starts_with(prefix)),
            "no test is called {prefix}: bring the lists in tests/src/catalogue.rs up to date"
        );
    }
    let again: Vec<_> = tests
        .iter()
        .flat_map(|test| test.unoptimized().into_iter().chain(test.historic()))
        .collect();
    tests.extend(again);
    let mut names = HashSet::new();
    for test in &*tests {
        ensure!(
            names.insert(&test.name),
            "two tests are called {}: files of different folders have different names",
            test.name
        );
    }
    Ok(())
}

fn decode(elf: &object::File<'_>, bytes: &[u8], index: usize) -> Result<GuestTest> {
    let u32_at = |offset: usize| u32::from_le_bytes(bytes[offset..][..4].try_into().unwrap());
    let u64_at = |offset: usize| u64::from_le_bytes(bytes[offset..][..8].try_into().unwrap());
    let text_at = |offset: usize| {
        text(
            elf,
            u64_at(offset + Text::ADDRESS),
            u64_at(offset + Text::LENGTH),
        )
    };
    let full_name = text_at(offset_of!(Descriptor, name))?;
    let flags = u32_at(offset_of!(Descriptor, flags));
    let should_panic = text_at(offset_of!(Descriptor, should_panic))?;
    Ok(GuestTest {
        name: test_protocol::name(&full_name)
            .with_context(|| format!("{full_name} is in no folder"))?
            .into(),
        full_name,
        index,
        boot: BootOptions {
            cmdline: text_at(offset_of!(Descriptor, cmdline))?,
            smp: u32_at(offset_of!(Descriptor, smp)),
            memory_mib: u32_at(offset_of!(Descriptor, memory_mib)),
            icount: flags & Descriptor::ICOUNT != 0,
        },
        timeout: Duration::from_secs(u32_at(offset_of!(Descriptor, timeout_s)).into()),
        ignored: flags & Descriptor::IGNORED != 0,
        hidden: flags & Descriptor::HIDDEN != 0,
        should_panic: (!should_panic.is_empty()).then_some(should_panic),
        second_pass: false,
    })
}

/// Reads a string at an address of the linked kernel.
fn text(elf: &object::File<'_>, address: u64, len: u64) -> Result<String> {
    if len == 0 {
        return Ok(String::new());
    }
    let bytes = elf
        .sections()
        .find_map(|section| section.data_range(address, len).ok().flatten())
        .with_context(|| format!("no section holds {len} bytes at {address:#x}"))?;
    Ok(std::str::from_utf8(bytes)?.into())
}
