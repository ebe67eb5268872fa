//! The files that the boot loader boots: a stripped kernel and an initramfs, in a disk image.
//!
//! The kernel keeps its symbol table, which is its kallsyms. It loses its debug info, because
//! loading takes about two seconds a megabyte under BIOS. It gets notes about its functions
//! ([`function_notes`]). The initramfs is a cpio archive in the
//! `newc` format. It holds the user programs as `bin/NAME`. For machines without fw_cfg it also
//! holds the kernel command line, as `cmdline`, and the script of a trace.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context, Result};

use crate::{
    boot_loader::BootLoader,
    cargo, children, disk,
    firmware::Firmware,
    function_notes, hit_path, layout,
    prerequisites::{self, Install},
};

/// A kernel ready to be put into disk images.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The binary's name in the package `image`.
    pub name: String,
    /// The booted ELF, with symbol table, without debug info.
    pub elf: PathBuf,
    /// The ELF with debug info, for gdb and objdump.
    pub debug_elf: PathBuf,
}

impl Kernel {
    /// Builds the binary `name` of the package `image` and checks the rules of its hit path.
    pub fn build(name: &str) -> Result<Self> {
        Self::of(name, &cargo::build_kernel(name)?, hit_path::check)
    }

    /// Builds the kernel that users run, and at the same time the boot loader for `firmware`.
    pub fn build_with_loader(install: Install, firmware: Firmware) -> Result<Self> {
        prerequisites::toolchain(install)?;
        let loader = thread::spawn(move || BootLoader::install(firmware));
        let kernel = Self::build(cargo::KERNEL).inspect_err(|_| children::kill_all())?;
        loader.join().expect("building does not panic")?;
        Ok(kernel)
    }

    /// Builds the least kernel that has probes. It has no rules of a hit path: it lists the few
    /// functions that may be probed instead.
    pub fn build_minimal(flags: cargo::Flags) -> Result<Self> {
        let name = match flags {
            cargo::Flags::Tree => "minimal",
            cargo::Flags::Rustc => "minimal-position-independent",
        };
        Self::of(
            name,
            &cargo::build_other_kernel("minimal_kernel", &[], flags)?,
            |_| Ok(()),
        )
    }

    /// Builds the same with the tracer, in the top 2 GiB. Not beside [`Self::build_minimal`], whose
    /// file cargo puts at the same place.
    pub fn build_minimal_traced() -> Result<Self> {
        let (features, flags) = (["tracer"], cargo::Flags::Tree);
        let built = cargo::build_other_kernel("minimal_kernel", &features, flags)?;
        Self::of("minimal-traced", &built, |_| Ok(()))
    }

    /// Builds the kernel that shares nothing with ours but the probes. It says itself what may be
    /// probed.
    pub fn build_second() -> Result<Self> {
        let built = cargo::build_other_kernel("second_kernel", &[], cargo::Flags::Rustc)?;
        Self::of("second", &built, |_| Ok(()))
    }

    /// Builds that kernel with the probes' suite in place of its own checks.
    pub fn build_second_suite() -> Result<Self> {
        let built = cargo::build_other_kernel("second_guest_tests", &[], cargo::Flags::Rustc)?;
        Self::of("second-suite", &built, |_| Ok(()))
    }

    /// Prepares the linked ELF `built`, if it passes `check`.
    fn of(name: &str, built: &Path, check: impl FnOnce(&Path) -> Result<()>) -> Result<Self> {
        let kernel = Self {
            name: name.into(),
            elf: layout::artifacts()?.join(name),
            debug_elf: layout::artifacts()?.join(format!("{name}.debug")),
        };
        if !layout::is_current(&kernel.debug_elf, &[built]) {
            check(built)?;
            layout::replace(&kernel.debug_elf, |copy| {
                fs::copy(built, copy)?;
                Ok(())
            })?;
        }
        // The program knows what is noted about functions.
        let program = this_program()?;
        if !layout::is_current(&kernel.elf, &[&kernel.debug_elf, &program]) {
            let notes = layout::artifacts()?.join(format!("{name}.notes"));
            let content = function_notes::of(&read(&kernel.debug_elf)?)?;
            layout::write_if_changed(&notes, &content)?;
            let add_notes = format!("--add-section={}={}", kallsyms::NOTES, notes.display());
            // Backtraces need it: the ready-made `core` and `alloc` describe their frames only
            // there.
            let options = ["--strip-debug", "--keep-section=.debug_frame", &add_notes];
            cargo::objcopy(&options, &kernel.debug_elf, &kernel.elf)?;
        }
        Ok(kernel)
    }

    /// Writes the disk image for `firmware` to `image`, unless it is current.
    ///
    /// `cmdline` is for machines without fw_cfg.
    pub fn write_image(&self, firmware: Firmware, cmdline: &str, image: &Path) -> Result<()> {
        self.write_disk(firmware, &[("cmdline", cmdline.as_bytes())], image)
    }

    /// Writes the disk image for `firmware`, with these files in its initramfs, unless it is
    /// current.
    fn write_disk(&self, firmware: Firmware, files: &[(&str, &[u8])], image: &Path) -> Result<()> {
        let initramfs = write_initramfs(image, files)?;
        let loader = BootLoader::build(firmware)?;
        // The program knows the layout of the disk, and the loader's recipes.
        let program = this_program()?;
        if layout::is_current(image, &[&self.elf, &initramfs, &program]) {
            return Ok(());
        }
        let disk = disk::layout(&loader, &read(&self.elf)?, &read(&initramfs)?)?;
        layout::replace(image, |unfinished| Ok(fs::write(unfinished, disk)?))
    }

    /// Returns the disk image for `firmware` to run in QEMU. Writes it if needed.
    ///
    /// The command line comes by fw_cfg there.
    pub fn image(&self, firmware: Firmware) -> Result<PathBuf> {
        let image = layout::artifacts()?.join(format!("{}-{firmware}.img", self.name));
        self.write_image(firmware, "", &image)?;
        Ok(image)
    }

    /// Returns the disk image to run in Bochs, with this command line and these files in it. Writes
    /// it if needed.
    pub fn bochs_image(&self, cmdline: &str, files: &[(&str, &[u8])]) -> Result<PathBuf> {
        let image = layout::artifacts()?.join(format!("{}-bochs.img", self.name));
        let files = [&[("cmdline", cmdline.as_bytes())], files].concat();
        self.write_disk(Firmware::Bios, &files, &image)?;
        fs::File::options()
            .append(true)
            .open(&image)
            .and_then(|disk| {
                let length = disk.metadata()?.len();
                if length.is_multiple_of(CYLINDER_BYTES) {
                    return Ok(());
                }
                disk.set_len(length.next_multiple_of(CYLINDER_BYTES))
            })
            .with_context(|| format!("cannot lengthen {}", image.display()))?;
        Ok(image)
    }
}

fn this_program() -> Result<PathBuf> {
    env::current_exe().context("the name of this program is not known")
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// A disk for Bochs consists of whole cylinders: 16 heads of 63 sectors of 512 bytes.
const CYLINDER_BYTES: u64 = 16 * 63 * 512;

/// The user programs that the initramfs has: their names, and their ELFs with symbols. Builds them.
pub fn programs() -> Result<Vec<(String, PathBuf)>> {
    let named = |program: PathBuf| {
        let name = program
            .file_name()
            .context("a user program has no name")?
            .to_string_lossy()
            .into_owned();
        Ok((name, program))
    };
    cargo::build_programs()?.into_iter().map(named).collect()
}

/// Writes the initramfs that goes into `image`, with the programs and `files`. Returns its path.
fn write_initramfs(image: &Path, files: &[(&str, &[u8])]) -> Result<PathBuf> {
    let mut programs = Vec::new();
    for (name, program) in self::programs()? {
        let stripped = layout::artifacts()?.join(format!("user-{name}"));
        if !layout::is_current(&stripped, &[&program]) {
            // The symbols stay, because probes name functions by them.
            // The tracer reads a program's frames from the file with debug information.
            let options = ["--strip-debug", "--remove-section=.eh_frame"];
            cargo::objcopy(&options, &program, &stripped)?;
        }
        let content = fs::read(&stripped)
            .with_context(|| format!("cannot read the user program {}", stripped.display()))?;
        programs.push((name, content));
    }
    programs.sort();
    let name = image.with_extension("initramfs");
    let name = name.file_name().context("a disk image needs a file name")?;
    let path = layout::artifacts()?.join(name);
    layout::write_if_changed(&path, &archive(&programs, files)?)?;
    Ok(path)
}

/// Packs `programs` and `files`, each a name and a content, as a `newc` archive.
fn archive(programs: &[(String, Vec<u8>)], files: &[(&str, &[u8])]) -> Result<Vec<u8>> {
    const DIRECTORY: u32 = 0o040_755;
    const PROGRAM: u32 = 0o100_755;
    const FILE: u32 = 0o100_644;
    let mut archive = Vec::new();
    let mut inode = 0;
    let mut add = |name: &str, mode: u32, content: &[u8]| -> Result<()> {
        inode += 1;
        let header = cpio::newc::Builder::new(name)
            .ino(inode)
            .nlink(1)
            .mode(mode);
        let length = u32::try_from(content.len()).with_context(|| format!("{name} is too big"))?;
        let mut writer = header.write(&mut archive, length);
        std::io::Write::write_all(&mut writer, content)?;
        writer.finish()?;
        Ok(())
    };
    let programs = programs
        .iter()
        .map(|(name, content)| (format!("bin/{name}"), PROGRAM, &**content));
    let files = files
        .iter()
        .map(|(name, content)| (String::from(*name), FILE, *content));
    let mut directories = BTreeSet::new();
    for (name, mode, content) in programs.chain(files) {
        for (end, _) in name.match_indices('/') {
            if directories.insert(name[..end].to_string()) {
                add(&name[..end], DIRECTORY, &[])?;
            }
        }
        add(&name, mode, content)?;
    }
    Ok(cpio::newc::trailer(archive)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn initramfs_holds_programs_and_cmdline() {
        let programs = [("workload".to_string(), b"\x7fELF..".to_vec())];
        let files = [
            ("cmdline", &b"modules=kprobe_example"[..]),
            ("opt/trace/script", b"script"),
            ("opt/trace/options", b"run=x"),
        ];
        let archive = archive(&programs, &files).unwrap();
        let mut rest = &archive[..];
        let mut files = Vec::new();
        loop {
            let mut reader = cpio::newc::Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            let mut content = Vec::new();
            reader.read_to_end(&mut content).unwrap();
            let entry = reader.entry();
            files.push((entry.name().to_string(), entry.mode(), content));
            rest = reader.finish().unwrap();
        }
        let expected = [
            ("bin", 0o040_755, &b""[..]),
            ("bin/workload", 0o100_755, b"\x7fELF.."),
            ("cmdline", 0o100_644, b"modules=kprobe_example"),
            ("opt", 0o040_755, b""),
            ("opt/trace", 0o040_755, b""),
            ("opt/trace/script", 0o100_644, b"script"),
            ("opt/trace/options", 0o100_644, b"run=x"),
        ]
        .map(|(name, mode, content)| (name.to_string(), mode, content.to_vec()));
        assert_eq!(files, expected);
    }
}
