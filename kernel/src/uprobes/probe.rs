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
    mem::ManuallyDrop,
    ops::Deref,
    ptr::{self, NonNull},
    sync::atomic::{
        AtomicI32, AtomicPtr, AtomicU64,
        Ordering::{Relaxed, Release},
    },
};

use trace_agent::facts::RoutineInProgram;

use super::{
    common::{BY_RUST, Common, IN_RUST, set_routine},
    published::Published,
};
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

// Of the breakpoint's stub.
unsafe extern "C" {
    fn asm_user_action();
    fn asm_user_handler();
    fn asm_user_call();
    fn asm_user_return_handler();
    fn asm_user_return_action();
    fn asm_user_return_action_in_place();
}

/// The words that a call carries from its entry to its return.
pub const CALL_WORDS: usize = 2;

/// Most calls of one task that are followed at once, as on Linux.
pub const MAX_CALLS: usize = 64;

/// The most calls of one return probe that are followed at once.
const MOST_ACTIVE: u32 = i32::MAX as u32;

/// The calls of one return probe that are followed at once if the probe does not say.
const DEFAULT_MAXACTIVE: i32 = 512;

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
            /// leave out the preparation of arguments that nobody wants. A program that finds it
            /// raised is seen at its next call.
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
#[repr(C)]
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
        if self.is_plain() {
            set_routine(
                (&self.common.serve, asm_user_handler as *mut ()),
                &self.action,
                routine.map(|routine| (routine, asm_user_action as *mut ())),
            );
        }
    }

    /// Nothing is to be done but to run the handler, in any process.
    fn is_plain(&self) -> bool {
        self.post.is_none() && self.common.only.is_none()
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
#[repr(C)]
pub struct Uretprobe {
    pub(super) common: Common,
    /// What serves a return of the newest call, as [`Common::serve`].
    serve_return: AtomicPtr<()>,
    /// See [`Uretprobe::set_action`].
    action: AtomicU64,
    /// Calls that may be followed beside those that are. Less than 0 for a moment, where a hit has
    /// found none.
    left: AtomicI32,
    pub(super) entry: Option<UretprobeEntryHandler>,
    pub(super) keeps_di: bool,
    handler: Option<UretprobeHandler>,
    /// In place of `handler`. It goes at the unregistration, and not with the last call that is
    /// followed, because what it owns may need a task to be dropped.
    closure: Published<Box<UretprobeClosure>>,
    maxactive: i32,
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
            serve_return: AtomicPtr::new(asm_user_return_handler as *mut ()),
            action: AtomicU64::new(0),
            left: AtomicI32::new(0),
            entry: None,
            keeps_di: false,
            handler: None,
            closure: Published::none(),
            maxactive: DEFAULT_MAXACTIVE,
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
        self.maxactive = match calls {
            0 => DEFAULT_MAXACTIVE,
            1..=MOST_ACTIVE => calls as i32,
            _ => MOST_ACTIVE as i32,
        };
        self
    }

    /// Has a call keep what DI was at the entry, as the first word of its data. For probes without
    /// an entry handler.
    pub(crate) const fn keep_di(mut self) -> Self {
        self.keeps_di = true;
        self
    }

    /// Calls that the registration follows now. Any context.
    pub fn active(&self) -> u32 {
        if !self.common.is_registered() {
            return 0;
        }
        let active = self.maxactive - self.left.load(Relaxed);
        active.clamp(0, self.maxactive) as u32
    }

    /// Takes the right to follow one more call.
    pub(super) fn take_call(&self) -> bool {
        let one_less = |left| (left > 0).then_some(left - 1);
        self.left.fetch_update(Relaxed, Relaxed, one_less).is_ok()
    }

    /// Gives it back.
    pub(super) fn give_call_back(&self) {
        self.left.fetch_add(1, Relaxed);
    }

    /// Has returns run code in place of the handler where they can ([`super::hit`] says where), or
    /// not any more. The code finds the function in place of the number of the system call, and
    /// what DI was at the entry in place of SS. What keeps it is kept by the probe's handler.
    pub(crate) fn set_action(&self, routine: Option<RoutineInProgram>) {
        let server = |routine: RoutineInProgram| match routine.asks_the_place() {
            true => asm_user_return_action_in_place as *mut (),
            false => asm_user_return_action as *mut (),
        };
        set_routine(
            (&self.serve_return, asm_user_return_handler as *mut ()),
            &self.action,
            // The assembly counts the holders itself.
            routine
                .filter(|_| self.common.is_shared.load(Relaxed))
                .map(|routine| (routine, server(routine))),
        );
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

    /// Marks it as registered at `site`. Calls of an earlier registration are not counted any more.
    pub(super) fn begin(&self, site: (u64, u64)) {
        match self {
            Self::Probe(probe) => {
                probe
                    .common
                    .begin(site, matches!(probe, ProbeRef::Shared(_)));
                let server = match probe.is_plain() {
                    true => asm_user_handler as *mut (),
                    false => IN_RUST,
                };
                probe.common.serve.store(server, Release);
            }
            Self::Return(probe) => {
                let is_shared = matches!(probe, ProbeRef::Shared(_));
                probe.common.begin(site, is_shared);
                probe.left.store(probe.maxactive, Relaxed);
                // The assembly counts the holders itself, and asks for no process.
                let is_plain = is_shared && probe.entry.is_none() && probe.common.only.is_none();
                let server = match is_plain {
                    true => asm_user_call as *mut (),
                    false => IN_RUST,
                };
                probe.common.serve.store(server, Release);
            }
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

/// A holder of a return probe, in one word.
struct HeldProbe(NonNull<Uretprobe>);

// SAFETY: as `ProbeRef`, which it stands for.
unsafe impl Send for HeldProbe {}

impl From<&ProbeRef<Uretprobe>> for HeldProbe {
    fn from(probe: &ProbeRef<Uretprobe>) -> Self {
        match probe.clone() {
            ProbeRef::Static(probe) => Self(NonNull::from(probe)),
            ProbeRef::Shared(probe) => Self(probe.into_raw()),
        }
    }
}

impl Deref for HeldProbe {
    type Target = Uretprobe;

    fn deref(&self) -> &Uretprobe {
        // SAFETY: it lives for ever, or this is a holder.
        unsafe { self.0.as_ref() }
    }
}

impl HeldProbe {
    /// The same as a holder that counts itself. None: the probe lives for ever.
    fn shared(&self) -> Option<ManuallyDrop<Shared<Uretprobe>>> {
        let is_shared = self.common.is_shared.load(Relaxed);
        // SAFETY: a registered probe says whether it is shared, and has been registered before a
        // call was followed. The pointer came from `into_raw`, or the assembly of a hit has counted
        // a holder more. The result is dropped in place of this one, or not at all.
        is_shared.then(|| ManuallyDrop::new(unsafe { Shared::from_raw(self.0) }))
    }
}

impl Clone for HeldProbe {
    fn clone(&self) -> Self {
        match self.shared() {
            None => Self(self.0),
            Some(probe) => Self(Shared::clone(&probe).into_raw()),
        }
    }
}

impl Drop for HeldProbe {
    fn drop(&mut self) {
        if let Some(probe) = self.shared() {
            drop(ManuallyDrop::into_inner(probe));
        }
    }
}

/// A call of a function with a return probe, from its entry to its return.
///
/// The assembly of a hit makes one, too. It leaves `slot` and all data but the first word as they
/// are in memory, and that word has DI.
#[repr(C)]
pub struct UserCall {
    probe: HeldProbe,
    /// [`Common::state`] when it began, if it has the right to be followed, and gives that back;
    /// else 0. With [`BY_RUST`], the assembly does not take it.
    followed: u64,
    /// The address of the function.
    pub(super) function: u64,
    /// The address of the word of the program's stack that holds the return address, if that is
    /// below those of all older calls of the task; else 0.
    pub(super) lowest_slot: u64,
    /// Where the call returns to.
    pub(super) return_address: u64,
    /// The address of that word in any case, where `lowest_slot` is 0.
    slot: u64,
    data: [u64; CALL_WORDS],
}

// The assembly counts on it.
const _: () = assert!(size_of::<UserCall>() == 64);

impl UserCall {
    /// The call that begins at `function`. It has taken its right to be followed.
    pub(super) fn new(
        probe: &ProbeRef<Uretprobe>,
        function: u64,
        slot: u64,
        return_address: u64,
    ) -> Self {
        Self {
            probe: probe.into(),
            followed: probe.common.state.load(Relaxed),
            function,
            lowest_slot: 0,
            return_address,
            slot,
            data: [0; CALL_WORDS],
        }
    }

    /// What stands before the first call: a call of no function, with a probe that is not
    /// registered. It holds nothing.
    pub(super) fn before_all(lowest_slot: u64) -> Self {
        static NOBODY: Uretprobe = Uretprobe::new();
        let mut call = Self::new(&ProbeRef::Static(&NOBODY), 0, 0, 0);
        call.lowest_slot = lowest_slot;
        // No state of the probe.
        call.followed = 1;
        call
    }

    /// The address of the word of the program's stack that holds the return address.
    pub(super) fn slot(&self) -> u64 {
        match self.lowest_slot {
            0 => self.slot,
            slot => slot,
        }
    }

    /// Has its return served in Rust: no state of a probe is equal to `followed` then.
    pub(super) fn leave_to_rust(&mut self) {
        self.followed |= BY_RUST;
    }

    /// A copy for a child process, which returns from the call as well. If the probe is for the
    /// parent alone, or follows as many calls as it may, the copy only knows where to return to.
    pub(super) fn duplicate(&self) -> Self {
        let mut followed = self.followed;
        if self.probe.common.only.is_some() {
            followed = 0;
        } else if self.is_current() && !self.probe.take_call() {
            self.probe.common.count_miss();
            followed = 0;
        }
        Self {
            probe: self.probe.clone(),
            followed,
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
        if self.probe.entry.is_none() {
            // The assembly may have made the call.
            let di = if self.probe.keeps_di { self.data[0] } else { 0 };
            self.data = [di, 0];
        }
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
        self.followed != 0 && common.is_registered() && common.is_of_registration(self.followed)
    }
}

impl Drop for UserCall {
    fn drop(&mut self) {
        // A later registration counts from 0, see `Registry`.
        if self.followed != 0 && self.probe.common.is_of_registration(self.followed) {
            self.probe.give_call_back();
        }
    }
}

/// Where the assembly of a hit finds what it uses, in bytes. Both kinds of probes begin with
/// [`Common`].
pub mod layout {
    use core::mem::offset_of;

    use super::{
        super::common::{self, Common},
        Shared, Uprobe, Uretprobe, UserCall,
    };

    pub const REGISTERED: u8 = common::REGISTERED;
    pub const SERVE: usize = offset_of!(Common, serve);
    pub const STATE: usize = offset_of!(Common, state);
    pub const HITS: usize = offset_of!(Common, hits);
    pub const ACTION: usize = offset_of!(Uprobe, action);
    pub const SERVE_RETURN: usize = offset_of!(Uretprobe, serve_return);
    pub const RETURN_ACTION: usize = offset_of!(Uretprobe, action);
    pub const LEFT: usize = offset_of!(Uretprobe, left);
    pub const KEEPS_DI: usize = offset_of!(Uretprobe, keeps_di);
    pub const HOLDERS: isize = Shared::<Uretprobe>::HOLDERS;
    pub const CALL_BYTES: usize = size_of::<UserCall>();
    pub const CALL_PROBE: usize = offset_of!(UserCall, probe);
    pub const CALL_FOLLOWED: usize = offset_of!(UserCall, followed);
    pub const CALL_FUNCTION: usize = offset_of!(UserCall, function);
    pub const CALL_SLOT: usize = offset_of!(UserCall, lowest_slot);
    pub const CALL_RETURN: usize = offset_of!(UserCall, return_address);
    pub const CALL_DI: usize = offset_of!(UserCall, data);

    const _: () = assert!(offset_of!(Uprobe, common) == 0 && offset_of!(Uretprobe, common) == 0);
}
