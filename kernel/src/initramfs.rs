//! The initial files: a cpio archive in the `newc` format that the loader put into memory, where it
//! stays.

use crate::{errno::Errno, fs, pr_warn};
use bootloader_api::BootInfo;
use core::slice;
use spin::Once;

static ARCHIVE: Once<&[u8]> = Once::new();

/// Learns where the loader put the archive. Call once, at boot.
pub fn init(info: &BootInfo) {
    if let Some(address) = info.ramdisk_addr.into_option() {
        let address = address as *const u8;
        // SAFETY: the loader mapped the archive there, in memory that it does not report as usable,
        // for good.
        ARCHIVE.call_once(|| unsafe { slice::from_raw_parts(address, info.ramdisk_len as usize) });
    }
}

/// The archive; empty if the loader had none. Any context.
pub fn archive() -> &'static [u8] {
    ARCHIVE.get().copied().unwrap_or_default()
}

/// Finds a regular file in `archive` by its absolute path. Any context; nothing is copied.
pub fn find<'a>(archive: &'a [u8], path: &str) -> Option<&'a [u8]> {
    cpio_reader::iter_files(archive)
        .find(|entry| relative(entry.name()) == relative(path))
        .map(|entry| entry.file())
}

/// A name as archives write it in several ways: `a/b`, `./a/b`, `/a/b`.
fn relative(name: &str) -> &str {
    name.trim_start_matches("./").trim_start_matches('/')
}

/// Copies directories and regular files of the archive into the file system. An entry that does not
/// fit is reported and left out. Task context.
pub fn unpack() {
    for entry in cpio_reader::iter_files(archive()) {
        if let Err(errno) = install(&entry) {
            pr_warn!("initramfs: {} is left out: {errno}", entry.name());
        }
    }
}

fn install(entry: &cpio_reader::Entry<'_>) -> Result<(), Errno> {
    let path = [b"/", relative(entry.name()).as_bytes()].concat();
    let mode = entry.mode().bits();
    match mode & abi::mode::TYPE_MASK {
        _ if path == b"/." || path == b"/" => Ok(()),
        abi::mode::DIRECTORY => fs::install_directory(&path, mode),
        abi::mode::REGULAR => fs::install_file(&path, mode, entry.file().to_vec()),
        _ => Err(Errno::EOPNOTSUPP),
    }
}
