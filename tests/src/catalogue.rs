//! The guest tests, as the test kernel's ELF lists them in a section of its own.

use std::{fs, mem::offset_of, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use boot::image::Kernel;
use object::{Object, ObjectSection};
use test_protocol::{Descriptor, SECTION, Text};

/// The crate whose name comes before each test's path.
const CRATE: &str = "guest_tests::";

/// The machine and the command line of a boot. Tests that agree in these share boots.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootOptions {
    pub cmdline: String,
    pub smp: u32,
    pub memory_mib: u32,
    pub icount: bool,
}

/// A guest test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestTest {
    /// Path of the function, without the crate.
    pub name: String,
    /// Path of the function, as the guest's markers have it.
    pub full_name: String,
    /// Position in the section, by which it is selected.
    pub index: usize,
    pub boot: BootOptions,
    /// Time until it hangs.
    pub timeout: Duration,
    /// Runs only on request.
    pub ignored: bool,
    /// A test for the harness itself.
    pub hidden: bool,
    /// If set, it passes by a panic whose log holds this.
    pub should_panic: Option<String>,
}

/// The test kernel and its tests.
#[derive(Debug)]
pub struct Catalogue {
    pub kernel: Kernel,
    /// Sorted by boot options, then by name.
    pub tests: Vec<GuestTest>,
}

impl Catalogue {
    /// Builds the test kernel and reads its tests.
    pub fn build() -> Result<Self> {
        let kernel = Kernel::build("testkernel")?;
        let tests = read(&kernel.elf)
            .with_context(|| format!("cannot list the tests in {}", kernel.elf.display()))?;
        Ok(Self { kernel, tests })
    }
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
    let mut tests = descriptors
        .chunks_exact(size_of::<Descriptor>())
        .enumerate()
        .map(|(index, bytes)| decode(&elf, bytes, index).with_context(|| format!("test {index}")))
        .collect::<Result<Vec<_>>>()?;
    tests.sort_by(|a, b| (&a.boot, &a.name).cmp(&(&b.boot, &b.name)));
    Ok(tests)
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
    let name = text_at(offset_of!(Descriptor, name))?;
    let flags = u32_at(offset_of!(Descriptor, flags));
    let should_panic = text_at(offset_of!(Descriptor, should_panic))?;
    Ok(GuestTest {
        name: name.strip_prefix(CRATE).unwrap_or(&name).into(),
        full_name: name,
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
