//! The jprobe: a handler with the probed function's own signature, which sees its arguments.
//!
//! At the function's entry the hit saves all registers and the top of the stack. Then it jumps to
//! the handler as if the caller had called the handler: registers and stack pointer are the same,
//! so every argument is where the calling convention puts it. The handler ends in `jprobe_return`,
//! a breakpoint. The hit of that breakpoint puts everything back, and the function runs as if
//! untouched. [`jprobe!`](crate::jprobe!) wraps the handler's body, drops the locals of the body
//! and then issues that return itself.
//!
//! The handler runs with interrupts and preemption off and the CPU's guard held, so probes in the
//! functions it calls are missed. Arguments that it changes are put back, as far as [`STACK_WORDS`]
//! reach. Writes through pointers stay, but not those into these words: a pointer to a variable of
//! the caller may lead there, because the words above the arguments are the caller's.
//!
//! Only `extern "C"` functions under their plain name can be targets, because the Rust convention
//! reorders arguments.

use core::{
    ptr::NonNull,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::{
    data::{
        kprobe::{Kprobe, ProbeKind},
        site::Site,
    },
    pt_regs::PtRegs,
};

/// How many words of stack are put back after a handler: the return address and seven arguments.
pub const STACK_WORDS: usize = 8;

/// The entry point of a handler; only [`jprobe!`](crate::jprobe!) makes one.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct JprobeEntry(NonNull<()>);

// SAFETY: the address of a function.
unsafe impl Send for JprobeEntry {}
// SAFETY: as above.
unsafe impl Sync for JprobeEntry {}

impl JprobeEntry {
    /// Takes the address of a handler.
    ///
    /// # Safety
    /// 1. It is an `extern "C"` function that ends in `jprobe_return` on every path.
    /// 2. Nothing that needs dropping is alive at that point.
    pub const unsafe fn new(entry: *const ()) -> Self {
        // SAFETY: the address of a function.
        Self(unsafe { NonNull::new_unchecked(entry.cast_mut()) })
    }

    /// The handler's address.
    pub fn addr(self) -> u64 {
        self.0.as_ptr() as u64
    }
}

/// A probe on the entry of a function that sees its arguments. See the module's text.
#[repr(C)]
pub struct Jprobe {
    pub(crate) kprobe: Kprobe,
    pub(crate) entry: Option<JprobeEntry>,
}

impl Default for Jprobe {
    fn default() -> Self {
        Self::new()
    }
}

impl Jprobe {
    /// A jprobe with no function and no handler yet.
    pub const fn new() -> Self {
        Self {
            kprobe: Kprobe::of_kind(ProbeKind::Jprobe),
            entry: None,
        }
    }

    const fn take_kprobe(&mut self) -> Kprobe {
        core::mem::replace(&mut self.kprobe, Kprobe::of_kind(ProbeKind::Jprobe))
    }

    const fn map_kprobe(mut self, kprobe: Kprobe) -> Self {
        // The value that is replaced is the empty one that `take_kprobe` has left.
        core::mem::forget(core::mem::replace(&mut self.kprobe, kprobe));
        self
    }

    /// The same as [`Kprobe::symbol`].
    pub const fn symbol(mut self, name: &'static str) -> Self {
        let kprobe = self.take_kprobe().symbol(name);
        self.map_kprobe(kprobe)
    }

    /// The same as [`Kprobe::symbol_string`].
    pub fn symbol_string(mut self, name: impl Into<alloc::string::String>) -> Self {
        self.kprobe = self.take_kprobe().symbol_string(name);
        self
    }

    /// The same as [`Kprobe::at`].
    pub const fn at(mut self, addr: u64) -> Self {
        let kprobe = self.take_kprobe().at(addr);
        self.map_kprobe(kprobe)
    }

    /// The same as [`Kprobe::offset`]; anything but a function entry is refused.
    pub const fn offset(mut self, bytes: u32) -> Self {
        self.kprobe.offset = bytes;
        self
    }

    /// Sets the handler, made by [`jprobe!`](crate::jprobe!).
    pub const fn entry(mut self, entry: JprobeEntry) -> Self {
        self.entry = Some(entry);
        self
    }

    /// The same as [`Kprobe::disabled`].
    pub const fn disabled(mut self) -> Self {
        let kprobe = self.take_kprobe().disabled();
        self.map_kprobe(kprobe)
    }

    /// The jprobe that `kprobe`, which is linked, is part of.
    pub(crate) fn of(kprobe: &Kprobe) -> Option<&Self> {
        // SAFETY: the container of a kprobe of this kind is its jprobe, set before it was linked.
        (kprobe.kind == ProbeKind::Jprobe)
            .then(|| unsafe { &*kprobe.container.load(Ordering::Relaxed).cast::<Self>() })
    }

    /// The kprobe at the function's entry: its address, state and counters.
    pub fn kprobe(&self) -> &Kprobe {
        &self.kprobe
    }

    /// The same as [`Kprobe::addr`].
    pub fn addr(&self) -> u64 {
        self.kprobe.addr()
    }

    /// The address of the handler; 0 without one.
    pub fn entry_addr(&self) -> u64 {
        self.entry.map_or(0, JprobeEntry::addr)
    }
}

/// The registers and the stack that a jprobe's handler must leave as it found them; one per CPU.
#[repr(C)]
pub(crate) struct JprobeFrame {
    /// The site that was hit; null while no jprobe handler runs. A hit stores it last, because an
    /// NMI that finds it takes the other fields to be those of the same hit.
    pub(crate) site: AtomicPtr<Site>,
    /// The jprobe that was hit.
    pub(crate) kprobe: *const Kprobe,
    pub(crate) regs: PtRegs,
    pub(crate) stack: [u64; STACK_WORDS],
    /// How many words of `stack` are in use.
    pub(crate) words: usize,
    /// Whether all of them are, and the function goes on in the plain slot.
    pub(crate) plain: bool,
}

impl JprobeFrame {
    pub(crate) const fn new() -> Self {
        Self {
            site: AtomicPtr::new(core::ptr::null_mut()),
            kprobe: core::ptr::null(),
            regs: PtRegs::new(),
            stack: [0; STACK_WORDS],
            words: 0,
            plain: false,
        }
    }
}

/// Defines a jprobe handler: a function with the target's signature. Its body runs, and then it
/// returns to the target.
///
/// ```ignore
/// jprobe! {
///     fn jdo_fork(clone_flags: u64, stack_start: u64, regs: *const PtRegs, stack_size: u64) {
///         pr_info!("jprobe: clone_flags = {clone_flags:#x}");
///     }
/// }
/// static MY_JPROBE: Jprobe = Jprobe::new().symbol("do_fork").entry(jdo_fork);
/// ```
#[cfg(feature = "jprobes")]
#[macro_export]
macro_rules! jprobe {
    (
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block
    ) => {
        $(#[$attribute])*
        #[allow(non_upper_case_globals, reason = "named like the function that it stands for")]
        $visibility const $name: $crate::JprobeEntry = {
            extern "C" fn $name($($argument: $type),*) {
                // In a closure, so that a `return` in the body and its locals end before the
                // return.
                (move || $body)();
                // SAFETY: this is the end of a jprobe handler and nothing is left to drop.
                unsafe { $crate::jprobe_return() }
            }
            // SAFETY: the function above ends in `jprobe_return` on its only path.
            unsafe { $crate::JprobeEntry::new($name as *const ()) }
        };
    };
}
