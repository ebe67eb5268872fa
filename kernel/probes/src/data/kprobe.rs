//! The kprobe: an address, and up to three handlers to run when it is executed.
//!
//! A builder fills a [`Kprobe`] in, and then it is only read. The parts that change later (the
//! address that it resolved to, its state, its counters) are atomic. So a `static` serves as well
//! as a `Box`, and a handler may read its own probe while another CPU disables it.
//!
//! Handlers run on the CPU that hit, with preemption off, perhaps in an interrupt or an NMI. At a
//! breakpoint interrupts are off, too; by a jump they are as the code had them. Handlers must not
//! sleep. Functions that they call are not probed meanwhile: such hits count in
//! [`Kprobe::nmissed`].

use alloc::{borrow::Cow, string::String};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::{
    data::{action::Action, counters::Counter, function::function, method::StepMethod, site::Site},
    pt_regs::PtRegs,
};

/// The wish of a pre handler: Linux's return values 0 and non-zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PreVerdict {
    /// Run the probed instruction. A changed `regs.ip` is ignored, every other change is taken.
    Execute,
    /// Do not run it. Resume at `regs.ip`, which the handler has set, with `regs` as they are.
    /// Handlers registered earlier at this address are skipped, and so are all post handlers.
    Resume,
}

/// Whether a fault handler has dealt with the fault: Linux's return values 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultVerdict {
    /// Go on with the kernel's own handling of the fault.
    Unhandled,
    /// Resume from `regs`.
    Handled,
}

/// Runs before the probed instruction. `regs.ip` is the probe's address + 1, as after any
/// breakpoint.
pub type PreHandler = extern "C" fn(&Kprobe, &mut PtRegs) -> PreVerdict;
/// Runs after the probed instruction. `regs.ip` is where execution goes on. The last argument is 0.
pub type PostHandler = extern "C" fn(&Kprobe, &mut PtRegs, u64);
/// Runs when the probed instruction, or another handler of this probe, faults. The last argument is
/// the vector.
pub type FaultHandler = fn(&Kprobe, &mut PtRegs, u8) -> FaultVerdict;

extern "C" fn call_pre<F: Fn(&Kprobe, &mut PtRegs) -> PreVerdict + Copy>(
    probe: &Kprobe,
    regs: &mut PtRegs,
) -> PreVerdict {
    function::<F>()(probe, regs)
}

extern "C" fn call_post<F: Fn(&Kprobe, &mut PtRegs, u64) + Copy>(
    probe: &Kprobe,
    regs: &mut PtRegs,
    flags: u64,
) {
    function::<F>()(probe, regs, flags);
}

/// Bits of [`Kprobe::flags`], with Linux's values.
pub mod flags {
    /// The probed text is gone for good.
    pub const GONE: u32 = 1;
    /// Registered but not to fire.
    pub const DISABLED: u32 = 2;
    /// The address is served by a jump instead of a breakpoint.
    pub const OPTIMIZED: u32 = 4;
}

/// The kind of probe that a [`Kprobe`] belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    Kprobe,
    Jprobe,
    Kretprobe,
    /// The probes' own, on a trampoline of [`historic`](crate::registry::historic). In no list.
    Trampoline,
}

impl ProbeKind {
    /// The type letter of the probe list.
    pub const fn letter(self) -> char {
        match self {
            ProbeKind::Kprobe => 'k',
            ProbeKind::Jprobe => 'j',
            ProbeKind::Kretprobe => 'r',
            ProbeKind::Trampoline => 't',
        }
    }
}

/// A probe on one instruction. See the module's text.
#[repr(C)]
pub struct Kprobe {
    /// The stub that takes a breakpoint hit while this probe is the first one of its site.
    pub(crate) stub: AtomicU64,
    /// The routine that the stub, or a detour, calls: see [`asm`](crate::asm).
    pub(crate) chain: AtomicU64,
    /// The routine for this probe alone.
    pub(crate) routine: AtomicU64,
    pub(crate) pre_handler: Option<PreHandler>,
    /// How often the handlers ran; of a kretprobe, the return handler.
    pub(crate) hits: Counter,
    pub(crate) symbol_name: Option<Cow<'static, str>>,
    pub(crate) offset: u32,
    pub(crate) post_handler: Option<PostHandler>,
    pub(crate) fault_handler: Option<FaultHandler>,
    /// The action whose handler is the pre handler, or null.
    pub(crate) action: *const Action,
    pub(crate) kind: ProbeKind,
    /// How the instruction is executed; none: as the registry does by default.
    pub(crate) step: Option<StepMethod>,
    /// Each registration begins with the probe disabled.
    pub(crate) starts_disabled: bool,
    /// The address that the user gave. 0: none.
    pub(crate) given: AtomicU64,
    /// The same, or what it resolved to at the last registration.
    pub(crate) addr: AtomicU64,
    pub(crate) flags: AtomicU32,
    pub(crate) nmissed: AtomicU64,
    /// The site that this probe is linked to; null while it is not registered. Written under the
    /// registry's lock.
    pub(crate) site: AtomicPtr<Site>,
    /// The next older probe of the same site. Written under the registry's lock, read by hits.
    pub(crate) next: AtomicPtr<Kprobe>,
    /// The jprobe or kretprobe that this kprobe is part of. Written before publication.
    pub(crate) container: AtomicPtr<()>,
    /// The log has been told that this probe was registered twice. Once is enough.
    pub(crate) told_of_double: AtomicBool,
}

// SAFETY: the one field that is not atomic and no plain value is the pointer to the action, which
// is only read (contract of `Kprobe::action`).
unsafe impl Send for Kprobe {}
// SAFETY: as above.
unsafe impl Sync for Kprobe {}

impl Default for Kprobe {
    fn default() -> Self {
        Self::new()
    }
}

impl Kprobe {
    /// A probe with no address and no handlers yet.
    pub const fn new() -> Self {
        Self::of_kind(ProbeKind::Kprobe)
    }

    pub(crate) const fn of_kind(kind: ProbeKind) -> Self {
        Self {
            stub: AtomicU64::new(0),
            chain: AtomicU64::new(0),
            routine: AtomicU64::new(0),
            pre_handler: None,
            hits: Counter::new(),
            symbol_name: None,
            offset: 0,
            post_handler: None,
            fault_handler: None,
            action: core::ptr::null(),
            kind,
            step: None,
            starts_disabled: false,
            given: AtomicU64::new(0),
            addr: AtomicU64::new(0),
            flags: AtomicU32::new(0),
            nmissed: AtomicU64::new(0),
            site: AtomicPtr::new(core::ptr::null_mut()),
            next: AtomicPtr::new(core::ptr::null_mut()),
            container: AtomicPtr::new(core::ptr::null_mut()),
            told_of_double: AtomicBool::new(false),
        }
    }

    /// Probes the symbol of that name: plain, mangled or demangled. Not together with
    /// [`Kprobe::at`].
    pub const fn symbol(mut self, name: &'static str) -> Self {
        // Forgetting is free: nothing owned can be there before a constant builder has run.
        core::mem::forget(self.symbol_name.replace(Cow::Borrowed(name)));
        self
    }

    /// The same as [`Kprobe::symbol`], for a name that is known only at run time.
    pub fn symbol_string(mut self, name: impl Into<String>) -> Self {
        self.symbol_name = Some(Cow::Owned(name.into()));
        self
    }

    /// Probes the instruction at `addr`, a virtual address. Not together with [`Kprobe::symbol`].
    pub const fn at(mut self, addr: u64) -> Self {
        self.given = AtomicU64::new(addr);
        self.addr = AtomicU64::new(addr);
        self
    }

    /// Adds `bytes` to the symbol's or the given address.
    pub const fn offset(mut self, bytes: u32) -> Self {
        self.offset = bytes;
        self
    }

    /// Sets the handler that runs before the instruction: a function, or a closure that captures
    /// nothing.
    pub const fn pre<F>(mut self, handler: F) -> Self
    where
        F: Fn(&Kprobe, &mut PtRegs) -> PreVerdict + Copy + 'static,
    {
        let _ = handler;
        self.pre_handler = Some(call_pre::<F>);
        self.action = core::ptr::null();
        self
    }

    /// Has machine code run before the instruction, in place of a pre handler.
    ///
    /// # Safety
    /// The action and its code stay as they are until the probe is no longer registered. The code
    /// does as [`Action`] says.
    #[cfg(feature = "actions")]
    pub const unsafe fn action(mut self, action: *const Action) -> Self {
        // SAFETY: it lives, by the contract.
        self.pre_handler = Some(unsafe { (*action).handler });
        self.action = action;
        self
    }

    /// Sets the handler that runs after the instruction: a function, or a closure that captures
    /// nothing.
    pub const fn post<F>(mut self, handler: F) -> Self
    where
        F: Fn(&Kprobe, &mut PtRegs, u64) + Copy + 'static,
    {
        let _ = handler;
        self.post_handler = Some(call_post::<F>);
        self
    }

    /// Sets the handler that runs when the instruction or another handler faults.
    pub const fn fault(mut self, handler: FaultHandler) -> Self {
        self.fault_handler = Some(handler);
        self
    }

    /// Has the instruction executed by `method`, whatever the default is. The first probe at an
    /// address decides for all later ones there.
    pub const fn step_method(mut self, method: StepMethod) -> Self {
        self.step = Some(method);
        self
    }

    /// Registers the probe without arming it, each time that it is registered.
    pub const fn disabled(mut self) -> Self {
        self.starts_disabled = true;
        self.flags = AtomicU32::new(flags::DISABLED);
        self
    }

    /// The flags that a registration begins with.
    pub(crate) fn first_flags(&self) -> u32 {
        if self.starts_disabled {
            flags::DISABLED
        } else {
            0
        }
    }

    /// The address that was given or, once the probe has been registered, the one probed. It stays
    /// after an unregistration. 0: neither. Any context.
    pub fn addr(&self) -> u64 {
        self.addr.load(Ordering::Relaxed)
    }

    /// Gives another address, for a probe that is not registered. 0 takes it back.
    pub fn set_addr(&self, addr: u64) {
        self.given.store(addr, Ordering::Relaxed);
        self.addr.store(addr, Ordering::Relaxed);
    }

    /// The name given by [`Kprobe::symbol`].
    pub fn symbol_name(&self) -> Option<&str> {
        self.symbol_name.as_deref()
    }

    /// Bits of [`flags`]. Any context.
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// How often the instruction ran without handlers since registration, because its CPU was in
    /// the handlers of another hit.
    #[inline]
    pub fn nmissed(&self) -> u64 {
        self.nmissed.load(Ordering::Relaxed)
    }

    /// How often the handlers ran since registration. Of the kprobe in a kretprobe: how many
    /// returns were handled. Any context.
    pub fn hits(&self) -> u64 {
        self.hits.get()
    }

    /// Whether the probe is registered now.
    #[inline]
    pub fn is_registered(&self) -> bool {
        !self.site.load(Ordering::Acquire).is_null()
    }

    /// The type of the probe in lists.
    pub fn kind(&self) -> ProbeKind {
        self.kind
    }

    /// The next older probe of its site. Any context, for as long as the site cannot be freed.
    #[inline(always)]
    pub(crate) fn older(&self) -> Option<&Self> {
        // SAFETY: a linked probe lives until a grace period after it was unlinked, and until then
        // it keeps its link (SITE-2).
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }

    /// This probe and the older ones of its site. As for [`Kprobe::older`].
    pub(crate) fn and_older(&self) -> impl Iterator<Item = &Self> {
        core::iter::successors(Some(self), |probe| probe.older())
    }

    #[inline(always)]
    pub(crate) fn is_enabled(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & (flags::DISABLED | flags::GONE) == 0
    }
}
