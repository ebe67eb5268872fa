//! The user probes: a place in a program, and the handlers to run when a task gets there.
//!
//! A builder fills a [`Uprobe`] or a [`Uretprobe`] in, and then it is only read. What changes later
//! is atomic. So a `static` serves as well as a [`Shared`] one, and a handler may read its own
//! probe while another CPU disables it.
//!
//! A probe belongs to a file, not to a process: it fires in every task that runs that file, also in
//! those that start later. [`Uprobe::only`] restricts it to one process.
//!
//! # Contexts
//! Handlers run on the kernel stack of the task that got to the place, with interrupts off. They
//! must not sleep. Kernel functions that they call may be probed as usual. They read and write the
//! program's memory by [`copy_from_program`](super::copy_from_program) and
//! [`copy_to_program`](super::copy_to_program), which bring in pages that are the program's but
//! were not touched yet.

use alloc::{borrow::Cow, boxed::Box, string::String};
use core::{
    any::Any,
    mem::offset_of,
    ops::Deref,
    ptr,
    sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed},
};

use trace_agent::facts::RoutineInProgram;

use super::published::Published;
use crate::{
    mm::shared::{OutOfMemory, Shared, try_box},
    probes::{EntryVerdict, PreVerdict, PtRegs},
};

/// Runs before the probed instruction. `regs.ip` is its address.
pub type UprobeHandler = fn(&Uprobe, &mut PtRegs) -> PreVerdict;
/// Runs after the probed instruction. `regs.ip` is where the program goes on.
pub type UprobePostHandler = fn(&Uprobe, &mut PtRegs);
/// Runs at the entry of a call, whose first instruction `regs.ip` is. `Decline` lets the call go.
pub type UretprobeEntryHandler = fn(&mut UserCall, &mut PtRegs) -> EntryVerdict;
/// Runs when a call has returned. `regs.ip` is where it has returned to.
pub type UretprobeHandler = fn(&mut UserCall, &mut PtRegs);

/// The words that a call carries from its entry to its return.
pub const CALL_WORDS: usize = 2;

/// Most calls of one task that are followed at once, as on Linux.
pub const MAX_CALLS: usize = 64;

/// The calls of one return probe that are followed at once if the probe does not say.
const DEFAULT_MAXACTIVE: u32 = 512;

/// A place in a program's file.
pub(super) struct UserPlace {
    pub(super) path: Cow<'static, str>,
    /// A function of its symbol table.
    pub(super) symbol: Option<Cow<'static, str>>,
    /// Bytes from the symbol's start, or from the start of the file.
    pub(super) offset: u64,
    /// The offset in the file of a word of 16 bits that counts the probes at this place.
    pub(super) reference_counter: Option<u64>,
}

/// Bits of [`Common::state`].
pub(super) const REGISTERED: u8 = 1;
const DISABLED: u8 = 2;

/// What both kinds of probes have.
pub(super) struct Common {
    pub(super) place: UserPlace,
    pub(super) only: Option<i32>,
    starts_disabled: bool,
    hits: AtomicU64,
    nmissed: AtomicU64,
    /// [`REGISTERED`] and [`DISABLED`]: one word, because each hit asks for both.
    state: AtomicU8,
    /// How often it was registered.
    generation: AtomicU32,
    /// Where it is registered: the number of the file's node, and the offset.
    site: [AtomicU64; 2],
    data: AtomicPtr<()>,
}

impl Common {
    const fn new() -> Self {
        Self {
            place: UserPlace {
                path: Cow::Borrowed(""),
                symbol: None,
                offset: 0,
                reference_counter: None,
            },
            only: None,
            starts_disabled: false,
            hits: AtomicU64::new(0),
            nmissed: AtomicU64::new(0),
            state: AtomicU8::new(0),
            generation: AtomicU32::new(0),
            site: [const { AtomicU64::new(0) }; 2],
            data: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Marks it as registered at `site`: its counts begin anew.
    pub(super) fn begin(&self, site: (u64, u64)) {
        self.site[0].store(site.0, Relaxed);
        self.site[1].store(site.1, Relaxed);
        self.hits.store(0, Relaxed);
        self.nmissed.store(0, Relaxed);
        self.generation.fetch_add(1, Relaxed);
        let disabled = if self.starts_disabled { DISABLED } else { 0 };
        self.state.store(REGISTERED | disabled, Relaxed);
    }

    pub(super) fn end(&self) {
        self.state.fetch_and(!REGISTERED, Relaxed);
    }

    pub(super) fn set_disabled(&self, disabled: bool) {
        match disabled {
            true => self.state.fetch_or(DISABLED, Relaxed),
            false => self.state.fetch_and(!DISABLED, Relaxed),
        };
    }

    /// Whether it fires, in the process `pid`.
    #[inline]
    pub(super) fn fires_in(&self, pid: i32) -> bool {
        self.fires() && self.only.is_none_or(|only| only == pid)
    }

    /// Whether it fires in some process.
    #[inline]
    pub(super) fn fires(&self) -> bool {
        self.state.load(Relaxed) == REGISTERED
    }

    pub(super) fn is_registered(&self) -> bool {
        self.state.load(Relaxed) & REGISTERED != 0
    }

    fn is_disabled(&self) -> bool {
        self.state.load(Relaxed) & DISABLED != 0
    }

    /// Where it was registered last.
    pub(super) fn site(&self) -> (u64, u64) {
        (self.site[0].load(Relaxed), self.site[1].load(Relaxed))
    }

    pub(super) fn count_hit(&self) {
        self.hits.fetch_add(1, Relaxed);
    }

    pub(super) fn count_miss(&self) {
        self.nmissed.fetch_add(1, Relaxed);
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Relaxed)
    }
}

/// The builders and the readers that both kinds of probes have.
macro_rules! common_methods {
    ($type:ident) => {
        impl $type {
            /// The file of the program, by its absolute path.
            pub const fn program(mut self, path: &'static str) -> Self {
                // Forgetting is free: nothing owned can be there before a constant builder has run.
                core::mem::forget(core::mem::replace(
                    &mut self.common.place.path,
                    Cow::Borrowed(path),
                ));
                self
            }

            /// The same for a path that is known only at run time.
            pub fn program_string(mut self, path: impl Into<String>) -> Self {
                self.common.place.path = Cow::Owned(path.into());
                self
            }

            /// The function of that name in the program's symbol table: plain, mangled or
            /// demangled. Without it the offset counts from the start of the file.
            pub const fn symbol(mut self, name: &'static str) -> Self {
                core::mem::forget(self.common.place.symbol.replace(Cow::Borrowed(name)));
                self
            }

            /// The same for a name that is known only at run time.
            pub fn symbol_string(mut self, name: impl Into<String>) -> Self {
                self.common.place.symbol = Some(Cow::Owned(name.into()));
                self
            }

            /// Bytes from the start of the function, or of the file if none is named.
            pub const fn offset(mut self, bytes: u64) -> Self {
                self.common.place.offset = bytes;
                self
            }

            /// A word of 16 bits at that offset of the file, in data of the program. It is one
            /// larger in each process for each probe that is armed there, so that a program can
            /// leave out the preparation of arguments that nobody wants.
            pub const fn reference_counter(mut self, offset: u64) -> Self {
                self.common.place.reference_counter = Some(offset);
                self
            }

            /// Fires in the process `pid` only.
            pub const fn only(mut self, pid: i32) -> Self {
                self.common.only = Some(pid);
                self
            }

            /// Registers it without firing, each time that it is registered.
            pub const fn disabled(mut self) -> Self {
                self.common.starts_disabled = true;
                self
            }

            /// Keeps a pointer for the handlers, which find it by `handler_data`.
            pub const fn data(mut self, data: *const ()) -> Self {
                self.common.data = AtomicPtr::new(data.cast_mut());
                self
            }

            /// The pointer that was given by `data`, or null. Any context.
            pub fn handler_data(&self) -> *const () {
                self.common.data.load(Relaxed)
            }

            /// The path of the program's file.
            pub fn path(&self) -> &str {
                &self.common.place.path
            }

            /// The name of the function, if one was given.
            pub fn symbol_name(&self) -> Option<&str> {
                self.common.place.symbol.as_deref()
            }

            /// How often its handlers ran since registration. Any context.
            pub fn hits(&self) -> u64 {
                self.common.hits.load(Relaxed)
            }

            /// How often they could not run: no call can be followed any more, or the program's
            /// stack cannot be written. Any context.
            pub fn nmissed(&self) -> u64 {
                self.common.nmissed.load(Relaxed)
            }

            /// Whether it is registered now. Any context.
            pub fn is_registered(&self) -> bool {
                self.common.is_registered()
            }

            /// Whether it is disabled now. Any context.
            pub fn is_disabled(&self) -> bool {
                self.common.is_disabled()
            }
        }
    };
}

/// A handler: a function, or a closure that owns what it works with.
pub(super) enum Handler<F, C: ?Sized> {
    Function(F),
    Closure(Box<C>),
}

/// A [`UprobeHandler`] that owns what it works with.
pub type UprobeClosure = dyn Fn(&Uprobe, &mut PtRegs) -> PreVerdict + Send + Sync;
/// A [`UretprobeHandler`] that owns what it works with.
pub type UretprobeClosure = dyn Fn(&mut UserCall, &mut PtRegs) + Send + Sync;

/// A probe on an instruction of a program. See the module's text.
pub struct Uprobe {
    pub(super) common: Common,
    /// See [`Uprobe::set_action`].
    action: AtomicU64,
    pre: Option<Handler<UprobeHandler, UprobeClosure>>,
    pub(super) post: Option<UprobePostHandler>,
}

common_methods!(Uprobe);

impl Default for Uprobe {
    fn default() -> Self {
        Self::new()
    }
}

/// Where the assembly of a hit finds what it uses, in bytes.
impl Uprobe {
    pub(super) const ACTION_OFFSET: usize = offset_of!(Self, action);
    pub(super) const STATE_OFFSET: usize = offset_of!(Self, common.state);
    pub(super) const HITS_OFFSET: usize = offset_of!(Self, common.hits);
}

impl Uprobe {
    /// A probe with no place and no handler yet.
    pub const fn new() -> Self {
        Self {
            common: Common::new(),
            action: AtomicU64::new(0),
            pre: None,
            post: None,
        }
    }

    /// Sets the handler that runs before the instruction.
    pub const fn handler(mut self, handler: UprobeHandler) -> Self {
        // Forgetting is free: nothing owned can be there before a constant builder has run.
        core::mem::forget(self.pre.replace(Handler::Function(handler)));
        self
    }

    /// The same for a closure that owns what it works with.
    pub fn closure(mut self, handler: Box<UprobeClosure>) -> Self {
        self.pre = Some(Handler::Closure(handler));
        self
    }

    /// Has hits run code in place of the handler where they can ([`super::hit`] says where), or not
    /// any more. Nothing changes if the probe has a post handler or is for one process. What keeps
    /// the code is kept by the probe's handler.
    pub(crate) fn set_action(&self, routine: Option<RoutineInProgram>) {
        if self.post.is_none() && self.common.only.is_none() {
            let address = routine.map_or(0, RoutineInProgram::address);
            self.action.store(address, Relaxed);
        }
    }

    /// Runs the handler before the instruction. Without one the instruction is executed.
    pub(super) fn run(&self, regs: &mut PtRegs) -> PreVerdict {
        match &self.pre {
            None => PreVerdict::Execute,
            Some(Handler::Function(handler)) => handler(self, regs),
            Some(Handler::Closure(handler)) => handler(self, regs),
        }
    }

    /// Sets the handler that runs after the instruction. A hit then takes a second trap.
    pub const fn post_handler(mut self, handler: UprobePostHandler) -> Self {
        self.post = Some(handler);
        self
    }
}

/// A probe on the return of a program's function. See the module's text.
pub struct Uretprobe {
    pub(super) common: Common,
    pub(super) entry: Option<UretprobeEntryHandler>,
    handler: Option<UretprobeHandler>,
    /// In place of `handler`. It goes at the unregistration, and not with the last call that is
    /// followed, because what it owns may need a task to be dropped.
    closure: Published<Box<UretprobeClosure>>,
    maxactive: u32,
    /// Calls that are followed now.
    active: AtomicU32,
}

common_methods!(Uretprobe);

impl Default for Uretprobe {
    fn default() -> Self {
        Self::new()
    }
}

impl Uretprobe {
    /// A probe with no place and no handler yet.
    pub const fn new() -> Self {
        Self {
            common: Common::new(),
            entry: None,
            handler: None,
            closure: Published::none(),
            maxactive: DEFAULT_MAXACTIVE,
            active: AtomicU32::new(0),
        }
    }

    /// Sets the handler that runs when a call has returned.
    pub const fn handler(mut self, handler: UretprobeHandler) -> Self {
        self.handler = Some(handler);
        self
    }

    /// The same for a closure that owns what it works with. It is dropped when the probe is
    /// unregistered.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn closure(self, handler: Box<UretprobeClosure>) -> Result<Self, OutOfMemory> {
        let handler = try_box(handler)?;
        // No hit has found another one.
        drop(self.closure.replace(Some(handler)));
        Ok(self)
    }

    /// Takes the closure out. It must be kept until a grace period is over.
    pub(super) fn take_closure(&self) -> Option<Box<dyn Any>> {
        self.closure
            .replace(None)
            .map(|closure| closure as Box<dyn Any>)
    }

    /// Sets the handler that runs at the entry, and decides whether the call is followed.
    pub const fn entry_handler(mut self, handler: UretprobeEntryHandler) -> Self {
        self.entry = Some(handler);
        self
    }

    /// Most calls that are followed at once; 0 stands for the default, 512. One task can have
    /// [`MAX_CALLS`] of all probes together.
    pub const fn maxactive(mut self, calls: u32) -> Self {
        self.maxactive = if calls == 0 { DEFAULT_MAXACTIVE } else { calls };
        self
    }

    /// Calls that are followed now. Any context.
    pub fn active(&self) -> u32 {
        self.active.load(Relaxed)
    }

    /// Takes the right to follow one more call.
    pub(super) fn take_call(&self) -> bool {
        let one_more = |active| (active < self.maxactive).then_some(active + 1);
        self.active.fetch_update(Relaxed, Relaxed, one_more).is_ok()
    }

    /// Gives it back.
    pub(super) fn give_call_back(&self) {
        self.active.fetch_sub(1, Relaxed);
    }
}

/// A reference that keeps a probe in memory.
pub enum ProbeRef<T: 'static> {
    /// One that lives for ever.
    Static(&'static T),
    /// One that its holders share.
    Shared(Shared<T>),
}

impl<T> Clone for ProbeRef<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Static(probe) => Self::Static(probe),
            Self::Shared(probe) => Self::Shared(probe.clone()),
        }
    }
}

impl<T> Deref for ProbeRef<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Static(probe) => probe,
            Self::Shared(probe) => probe,
        }
    }
}

/// A probe of either kind.
#[derive(Clone)]
pub enum UserProbe {
    /// One on an instruction.
    Probe(ProbeRef<Uprobe>),
    /// One on a return.
    Return(ProbeRef<Uretprobe>),
}

impl UserProbe {
    pub(super) fn common(&self) -> &Common {
        match self {
            Self::Probe(probe) => &probe.common,
            Self::Return(probe) => &probe.common,
        }
    }

    /// Whether the two are one probe.
    pub(super) fn is(&self, other: &Self) -> bool {
        ptr::eq(self.common(), other.common())
    }
}

impl From<ProbeRef<Uprobe>> for UserProbe {
    fn from(probe: ProbeRef<Uprobe>) -> Self {
        Self::Probe(probe)
    }
}

impl From<ProbeRef<Uretprobe>> for UserProbe {
    fn from(probe: ProbeRef<Uretprobe>) -> Self {
        Self::Return(probe)
    }
}

impl From<&'static Uprobe> for UserProbe {
    fn from(probe: &'static Uprobe) -> Self {
        Self::Probe(ProbeRef::Static(probe))
    }
}

impl From<&'static Uretprobe> for UserProbe {
    fn from(probe: &'static Uretprobe) -> Self {
        Self::Return(ProbeRef::Static(probe))
    }
}

// It is moved at each hit: larger values would be by a loop.
const _: () = assert!(size_of::<UserCall>() <= 64);

/// A call of a function with a return probe, from its entry to its return.
pub struct UserCall {
    probe: ProbeRef<Uretprobe>,
    /// The registration that follows it.
    generation: u32,
    /// It has the right to be followed, and gives that back.
    is_followed: bool,
    /// The address of the function.
    pub(super) function: u64,
    /// The address of the word of the program's stack that holds the return address.
    pub(super) slot: u64,
    /// Where the call returns to.
    pub(super) return_address: u64,
    data: [u64; CALL_WORDS],
}

impl UserCall {
    /// The call that begins at `function`. It has taken its right to be followed.
    pub(super) fn new(
        probe: &ProbeRef<Uretprobe>,
        function: u64,
        slot: u64,
        return_address: u64,
    ) -> Self {
        Self {
            generation: probe.common.generation(),
            is_followed: true,
            probe: probe.clone(),
            function,
            slot,
            return_address,
            data: [0; CALL_WORDS],
        }
    }

    /// A copy for a child process, which returns from the call as well. If the probe follows as
    /// many calls as it may, the copy only knows where to return to.
    pub(super) fn duplicate(&self) -> Self {
        let mut is_followed = self.is_followed;
        if self.is_current() && !self.probe.take_call() {
            self.probe.common.count_miss();
            is_followed = false;
        }
        Self {
            probe: self.probe.clone(),
            is_followed,
            ..*self
        }
    }

    /// The return probe.
    pub fn probe(&self) -> &Uretprobe {
        &self.probe
    }

    /// The address of the function's first instruction.
    pub fn function(&self) -> u64 {
        self.function
    }

    /// Where the call returns to.
    pub fn return_address(&self) -> u64 {
        self.return_address
    }

    /// Data that the entry handler leaves for the return handler; zeros at first.
    pub fn data(&mut self) -> &mut [u64; CALL_WORDS] {
        &mut self.data
    }

    /// Runs the handler of the return.
    pub(super) fn leave(&mut self, regs: &mut PtRegs) {
        if let Some(handler) = self.probe.handler {
            handler(self, regs);
            return;
        }
        // SAFETY: a return is served with interrupts off.
        let closure = unsafe { self.probe.closure.get() };
        if let Some(closure) = closure.map(ptr::from_ref) {
            // SAFETY: as above: what is published lives through the grace period, and this call is
            // not where it is kept.
            unsafe { (*closure)(self, regs) };
        }
    }

    /// Whether the registration is still there that follows the call.
    pub(super) fn is_current(&self) -> bool {
        let common = &self.probe.common;
        self.is_followed && common.is_registered() && common.generation() == self.generation
    }
}

impl Drop for UserCall {
    fn drop(&mut self) {
        // A later registration counts from 0, see `Registry`.
        if self.is_followed && self.probe.common.generation() == self.generation {
            self.probe.give_call_back();
        }
    }
}

impl Uretprobe {
    /// Calls of an earlier registration are not counted any more.
    pub(super) fn forget_calls(&self) {
        self.active.store(0, Relaxed);
    }
}
