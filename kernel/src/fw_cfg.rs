//! QEMU's firmware configuration device: named files that the host hands to the guest.
//!
//! It has two ports. The selector picks an item and rewinds it. Then each read of the data port
//! gives the next byte (QEMU, `docs/specs/fw_cfg.rst`). Item 0 holds the signature `QEMU`; if
//! another answer comes, there is no such device. Files are found by name in the directory, because
//! their selectors are not fixed.
//!
//! The device keeps one position for all CPUs, so only one may use it at a time: through [`FwCfg`],
//! which exists once.

use core::sync::atomic::{AtomicBool, Ordering};
use x86_64::instructions::port::{PortReadOnly, PortWriteOnly};

const SELECTOR_PORT: u16 = 0x510;
const DATA_PORT: u16 = 0x511;

const SIGNATURE: u16 = 0;
const CPU_COUNT: u16 = 5;
const DIRECTORY: u16 = 0x19;

/// Length of the name in a directory entry, its NUL included, in bytes.
const NAME_BYTES: usize = 56;

static IN_USE: AtomicBool = AtomicBool::new(false);

/// The right to use the device.
#[derive(Debug)]
pub struct FwCfg(());

/// A file that the host offers.
#[derive(Clone, Copy, Debug)]
pub struct File {
    selector: u16,
    /// Its length in bytes.
    pub size: usize,
}

impl FwCfg {
    /// The device, if this machine has one and no other code uses it.
    pub fn open() -> Option<Self> {
        if IN_USE.swap(true, Ordering::Acquire) {
            return None;
        }
        let mut device = Self(());
        let mut signature = [0; 4];
        device.select(SIGNATURE);
        device.read_bytes(&mut signature);
        (signature == *b"QEMU").then_some(device)
    }

    /// How many CPUs the machine has.
    pub fn cpu_count(&mut self) -> u16 {
        let mut count = [0; 2];
        self.select(CPU_COUNT);
        self.read_bytes(&mut count);
        u16::from_le_bytes(count)
    }

    /// Finds a file by its name, such as `opt/cmdline`.
    pub fn find(&mut self, name: &str) -> Option<File> {
        let mut count = [0; 4];
        self.select(DIRECTORY);
        self.read_bytes(&mut count);
        (0..u32::from_be_bytes(count)).find_map(|_| {
            let (mut size, mut selector, mut reserved) = ([0; 4], [0; 2], [0; 2]);
            let mut entry_name = [0; NAME_BYTES];
            self.read_bytes(&mut size);
            self.read_bytes(&mut selector);
            self.read_bytes(&mut reserved);
            self.read_bytes(&mut entry_name);
            let end = entry_name.iter().position(|&byte| byte == 0)?;
            (entry_name[..end] == *name.as_bytes()).then(|| File {
                selector: u16::from_be_bytes(selector),
                size: u32::from_be_bytes(size) as usize,
            })
        })
    }

    /// Reads the beginning of a file into `buffer`, and returns how many bytes of it are filled.
    pub fn read(&mut self, file: File, buffer: &mut [u8]) -> usize {
        let len = file.size.min(buffer.len());
        self.select(file.selector);
        self.read_bytes(&mut buffer[..len]);
        len
    }

    fn select(&mut self, item: u16) {
        // SAFETY: only fw_cfg answers at this port, and `self` is the right to use it. A selection
        // changes only the device's position.
        unsafe { PortWriteOnly::new(SELECTOR_PORT).write(item) };
    }

    fn read_bytes(&mut self, buffer: &mut [u8]) {
        let mut data = PortReadOnly::<u8>::new(DATA_PORT);
        for byte in buffer {
            // SAFETY: as in `select`. Past its end an item reads as zeros.
            *byte = unsafe { data.read() };
        }
    }
}

impl Drop for FwCfg {
    fn drop(&mut self) {
        IN_USE.store(false, Ordering::Release);
    }
}
