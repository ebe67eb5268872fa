//! One guest test as the linker collects it.
//!
//! The layout is fixed (`repr(C)`, both sides are 64-bit). The guest uses it as it is, and the host
//! decodes it from the ELF.

use core::{slice, str};

/// A guest test: its name, its machine, and its function.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// Full path of the function, crate included.
    pub name: Text,
    /// Arguments for the kernel command line.
    pub cmdline: Text,
    /// Empty, or the test passes if the kernel panics and its log then holds this text.
    pub should_panic: Text,
    /// The test; it fails by panicking.
    pub run: fn(),
    /// Number of CPUs of the machine.
    pub smp: u32,
    /// Memory of the machine in MiB.
    pub memory_mib: u32,
    /// Time that the test may take, in seconds. The guest ends it then.
    pub timeout_s: u32,
    /// [`Descriptor::IGNORED`] and its like, ored.
    pub flags: u32,
}

impl Descriptor {
    /// The time limit of a test that says nothing about it, in seconds.
    pub const USUAL_TIMEOUT_S: u32 = 180;

    /// Runs only on request, as long tests do.
    pub const IGNORED: u32 = 1 << 0;
    /// Runs with one tick of the time stamp counter per instruction.
    pub const ICOUNT: u32 = 1 << 1;
    /// Not in the ordinary list: a test for the harness itself.
    pub const HIDDEN: u32 = 1 << 2;

    /// Describes a test with default options.
    pub const fn new(name: &'static str, run: fn()) -> Self {
        Self {
            name: Text::new(name),
            cmdline: Text::new(""),
            should_panic: Text::new(""),
            run,
            smp: 2,
            memory_mib: 256,
            timeout_s: Self::USUAL_TIMEOUT_S,
            flags: 0,
        }
    }

    /// Sets the number of CPUs; by default 2.
    pub const fn smp(mut self, cpus: u32) -> Self {
        self.smp = cpus;
        self
    }

    /// Sets the size of the memory in MiB; by default 256.
    pub const fn memory(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self
    }

    /// Sets the kernel command line; by default it is empty.
    pub const fn cmdline(mut self, arguments: &'static str) -> Self {
        self.cmdline = Text::new(arguments);
        self
    }

    /// Sets the time that the test may take, in seconds; by default
    /// [`USUAL_TIMEOUT_S`](Self::USUAL_TIMEOUT_S).
    pub const fn timeout(mut self, seconds: u32) -> Self {
        self.timeout_s = seconds;
        self
    }

    /// The test passes if, and only if, the kernel panics and the log since the test began holds
    /// `text`.
    pub const fn should_panic(mut self, text: &'static str) -> Self {
        assert!(!text.is_empty(), "name a part of the panic's message");
        self.should_panic = Text::new(text);
        self
    }

    /// Leaves the test out unless `--ignored` or `--include-ignored` asks for it.
    pub const fn ignore(self) -> Self {
        self.flag(Self::IGNORED)
    }

    /// Counts time by instructions.
    pub const fn icount(self) -> Self {
        self.flag(Self::ICOUNT)
    }

    /// Hides the test from the ordinary list.
    pub const fn hidden(self) -> Self {
        self.flag(Self::HIDDEN)
    }

    const fn flag(mut self, flag: u32) -> Self {
        self.flags |= flag;
        self
    }
}

/// A string with a fixed layout, made from a `&'static str` only.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Text {
    bytes: *const u8,
    len: usize,
}

impl Text {
    /// Offset of the address in bytes.
    pub const ADDRESS: usize = core::mem::offset_of!(Self, bytes);
    /// Offset of the length in bytes.
    pub const LENGTH: usize = core::mem::offset_of!(Self, len);

    const fn new(text: &'static str) -> Self {
        Self {
            bytes: text.as_ptr(),
            len: text.len(),
        }
    }

    /// Returns the string.
    pub const fn as_str(&self) -> &'static str {
        // SAFETY: `new`, the only constructor, took both fields from a `&'static str`.
        unsafe { str::from_utf8_unchecked(slice::from_raw_parts(self.bytes, self.len)) }
    }
}

// SAFETY: a `Text` stands for a `&'static str`, which is `Sync`.
unsafe impl Sync for Text {}
