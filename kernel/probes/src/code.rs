//! What a kernel knows of its code: names, functions, and what may not be probed.
//!
//! # Contexts
//! As the methods of [`Platform`](crate::Platform) of the same meaning. None is asked by a hit.

use alloc::boxed::Box;
use core::{
    ptr::null_mut,
    sync::atomic::{
        AtomicPtr,
        Ordering::{Acquire, Release},
    },
};

use crate::{error::ProbeError, insn::EntryFacts};

/// The symbol that covers an address.
#[derive(Clone, Copy, Debug)]
pub struct Symbol {
    /// Its first address.
    pub start: u64,
    /// Its length in bytes.
    pub size: u64,
    /// The kind of memory it lies in.
    pub text: Text,
    /// Whether it is exported under its plain, unmangled name.
    pub exported: bool,
    /// The facts about its entry that were found when the kernel was built. They hold for its code
    /// as it is without probes. [`EntryFacts::UNKNOWN`] is always right. It must be this in text
    /// other than [`Text::Kernel`], and if
    /// [`Platform::may_fault`](crate::Platform::may_fault) is true of the function.
    pub entry: EntryFacts,
}

impl Symbol {
    /// The entry of this function, if facts are known about it.
    pub(crate) fn known_entry(&self) -> Option<u64> {
        let is_known = self.entry.are_known();
        is_known.then(|| self.start + self.entry.landing_pad_len())
    }
}

/// The kind of memory that a symbol lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text {
    /// Executable for as long as the kernel runs.
    Kernel,
    /// Executable until the end of the boot, and not freed yet.
    Init,
    /// Init text that has been freed.
    Freed,
    /// Data.
    No,
}

/// Answers what the probes ask about code. `hit_path::Symbols` does, from the kernel's own file.
pub trait Code: Send + Sync {
    /// The body of [`Platform::lookup_symbol`](crate::Platform::lookup_symbol).
    ///
    /// # Errors
    /// Those of a registration by a name.
    fn lookup(&self, name: &str) -> Result<u64, ProbeError>;

    /// The body of [`Platform::symbol_at`](crate::Platform::symbol_at).
    fn symbol_at(&self, addr: u64) -> Option<Symbol>;

    /// The body of [`Platform::blacklisted`](crate::Platform::blacklisted).
    fn refused(&self, addr: u64) -> Option<&'static str>;

    /// The bytes of the linker's section `.note.gnu.build-id`, by which a tracer tells whether its
    /// file is this kernel's. Empty: nothing tells it.
    fn build_id_notes(&self) -> &[u8] {
        &[]
    }

    /// Where the code runs, as a distance from where it was linked to. Wraps at 64 bits.
    fn slide(&self) -> u64 {
        0
    }
}

/// The code of the kernel that this program is; null before it is known.
static OF_KERNEL: AtomicPtr<&'static dyn Code> = AtomicPtr::new(null_mut());

/// Makes it known, for good.
pub(crate) fn make_known(code: Box<dyn Code>) {
    let code: &'static dyn Code = Box::leak(code);
    OF_KERNEL.store(Box::leak(Box::new(code)), Release);
}

/// What [`Platform::code`](crate::Platform::code) is.
pub(crate) fn of_kernel() -> Option<&'static dyn Code> {
    // SAFETY: null, or a value that `make_known` has leaked.
    unsafe { OF_KERNEL.load(Acquire).as_ref() }.copied()
}
