//! What the emulator tells its guest: the number of CPUs, and the command line.
//!
//! # Contexts
//! One task, or the boot.

use alloc::{string::String, vec::Vec};

use x86_64::instructions::port::Port;

/// Reads `count` bytes of what `selector` names.
fn read(selector: u16, count: usize) -> Vec<u8> {
    // SAFETY: the ports of the device, which has no effect on memory.
    unsafe {
        Port::new(0x510).write(selector);
        (0..count).map(|_| Port::<u8>::new(0x511).read()).collect()
    }
}

/// How many CPUs there are.
pub fn cpus() -> usize {
    usize::from(u16::from_le_bytes(
        read(5, 2).try_into().expect("two bytes"),
    ))
}

/// The command line; empty if there is none.
pub fn command_line() -> String {
    const DIRECTORY: u16 = 0x19;
    const ENTRY: usize = 64;
    let word = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte))
    };
    let count = word(&read(DIRECTORY, 4));
    let directory = read(DIRECTORY, 4 + count * ENTRY);
    let mut entries = directory[4..].chunks(ENTRY);
    let file = entries.find(|entry| entry[8..].starts_with(b"opt/cmdline\0"));
    let text = file.map(|entry| read(word(&entry[4..6]) as u16, word(&entry[..4])));
    String::from_utf8(text.unwrap_or_default()).unwrap_or_default()
}
