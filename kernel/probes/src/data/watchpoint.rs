//! The watchpoint: a word of memory, and a handler to run when an instruction has touched it.
//!
//! The processor has four debug registers, so there are four watchpoints at a time. All CPUs have
//! the same ones. The trap comes after the instruction, in the code that has touched the word,
//! whatever that is: a task, an interrupt, the displaced instruction of a probe. Of the code that
//! runs at the trap itself nothing is seen, because a CPU puts its debug registers out of action
//! meanwhile.
//!
//! A builder fills a [`Watchpoint`] in, and then it is only read. What changes later is atomic.
//!
//! # Values
//! The processor does not keep the value that was overwritten. So the watchpoint remembers what the
//! last hit has found, and gives that as the old value. It is the value before this hit, unless two
//! CPUs touch the word at once, or an instruction touched it whose trap was missed
//! ([`Watchpoint::nmissed`], which remembers the value all the same) or that the processor does not
//! watch, such as a device's access.
//!
//! # Moving
//! A watchpoint that is [`Watchpoint::movable`] can be aimed at other memory by a handler, for
//! example at the object that a function has just got. This CPU follows at once, and the others
//! when their interrupt comes, some microseconds later. Until then they do not see what is touched
//! at the new place, and what they touch at the old one is no hit.
//!
//! # Scope
//! A watchpoint with a [`WatchScope`] is in action on a CPU only while that runs a task of the
//! scope: other tasks touch the word and pay nothing. That is how memory of programs is watched
//! ([`Watchpoint::in_programs`]), where each program has its own at the address. The old value of
//! such a watchpoint is the CPU's own: what the last hit there has found, or what there was when
//! the task came, whichever is later.
//!
//! # Contexts
//! Handlers run with interrupts off on the CPU that touched the word, under the guard as those of
//! kprobes: they must not sleep, and probes in what they call are missed.

use alloc::{borrow::Cow, string::String};
use core::{
    arch::asm,
    ptr::null_mut,
    sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use crate::{
    data::{entry_points::WatchStubs, function::function},
    pt_regs::PtRegs,
};

/// How many watchpoints there can be at a time (Intel SDM vol. 3B, 17.2).
pub const MOST_WATCHPOINTS: usize = 4;

/// Which instructions are watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchAccess {
    /// Those that write the word, also with the value that it has.
    Write,
    /// Those that read or write it.
    ReadWrite,
    /// The instruction at the address itself: the hit is before it, and has no values. Its text
    /// stays as it is, so this is for text that may not be changed; a kprobe costs less. The
    /// watchpoint's length has no meaning.
    Execute,
}

/// The tasks during which a watchpoint is in action.
#[derive(Clone, Copy, Debug)]
pub struct WatchScope {
    includes: unsafe fn(task: u64, which: u64) -> bool,
    which: u64,
}

impl WatchScope {
    /// Those for which `includes` is true. It gets the number of a task, as
    /// [`Hits::task_switched`](crate::hit::Hits::task_switched) was told, and `which`. It is called
    /// with interrupts off on the CPU that runs the task or is about to, whenever the debug
    /// registers are loaded there: it takes no lock and does not wait.
    ///
    /// # Safety
    /// `includes` may be called with the number of a task that lives.
    pub const unsafe fn new(includes: unsafe fn(u64, u64) -> bool, which: u64) -> Self {
        Self { includes, which }
    }

    /// Whether `task` is one of them.
    ///
    /// # Safety
    /// 1. The task lives.
    pub(crate) unsafe fn includes(&self, task: u64) -> bool {
        // SAFETY: the contract of `new`, by (1).
        unsafe { (self.includes)(task, self.which) }
    }
}

/// An access, as a handler is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Touched {
    /// Where the code goes on: the instruction after the one that touched the word. If a probe had
    /// displaced that one, it is the address that it would have without the probe. With
    /// [`WatchAccess::Execute`] it is the watched instruction.
    pub ip: u64,
    /// The watched address at this hit.
    pub addr: u64,
    /// What the hit before this one found; at the first hit, what the registration found. The bytes
    /// past the watched ones are zero.
    pub old: u64,
    /// What is there now. With [`WatchAccess::Execute`] both values are 0.
    pub new: u64,
}

/// Runs after the instruction. Changes to the registers are taken.
pub type WatchHandler = extern "C" fn(&Watchpoint, &mut PtRegs, &Touched);

extern "C" fn call_touched<F: Fn(&Watchpoint, &mut PtRegs, &Touched) + Copy>(
    watch: &Watchpoint,
    regs: &mut PtRegs,
    touched: &Touched,
) {
    function::<F>()(watch, regs, touched);
}

/// The stack of a routine that [`Watchpoints::set_routine`](crate::Watchpoints::set_routine) has
/// set, from the return address on. `ip` is where the code goes on.
#[repr(C)]
pub struct WatchpointFrame {
    pub return_address: u64,
    pub watchpoint: u64,
    /// As [`Touched::old`].
    pub old: u64,
    /// As [`Touched::new`].
    pub new: u64,
    pub ax: u64,
    pub cx: u64,
    pub dx: u64,
    pub si: u64,
    pub di: u64,
    pub orig_ax: u64,
    pub ip: u64,
    pub cs: u64,
    pub flags: u64,
    pub sp: u64,
    pub ss: u64,
}

/// A watch of 1, 2, 4 or 8 bytes of memory. See the module's text.
pub struct Watchpoint {
    pub(crate) handler: Option<WatchHandler>,
    pub(crate) symbol_name: Option<Cow<'static, str>>,
    pub(crate) offset: u32,
    pub(crate) len: u8,
    pub(crate) access: WatchAccess,
    pub(crate) starts_disabled: bool,
    pub(crate) movable: bool,
    pub(crate) scope: Option<WatchScope>,
    /// The address is one of programs.
    pub(crate) in_programs: bool,
    /// The address that the user gave. 0: none.
    pub(crate) given: u64,
    pub(crate) aim: Aim,
    /// The stub that serves a hit which has no other cause.
    pub(crate) stub: AtomicU64,
    /// What that stub calls in place of the handler; 0: the handler.
    pub(crate) routine: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) nmissed: AtomicU64,
    pub(crate) disabled: AtomicBool,
    pub(crate) registered: AtomicBool,
    pub(crate) data: AtomicPtr<()>,
}

impl Default for Watchpoint {
    fn default() -> Self {
        Self::new()
    }
}

impl Watchpoint {
    /// A watch for writes of 8 bytes, with no address and no handler yet.
    pub const fn new() -> Self {
        Self {
            handler: None,
            symbol_name: None,
            offset: 0,
            len: 8,
            access: WatchAccess::Write,
            starts_disabled: false,
            movable: false,
            scope: None,
            in_programs: false,
            given: 0,
            aim: Aim::new(),
            stub: AtomicU64::new(0),
            routine: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            nmissed: AtomicU64::new(0),
            disabled: AtomicBool::new(false),
            registered: AtomicBool::new(false),
            data: AtomicPtr::new(null_mut()),
        }
    }

    /// Watches the symbol of that name: plain, mangled or demangled. Not together with
    /// [`Watchpoint::at`].
    pub const fn symbol(mut self, name: &'static str) -> Self {
        // Forgetting is free: nothing owned can be there before a constant builder has run.
        core::mem::forget(self.symbol_name.replace(Cow::Borrowed(name)));
        self
    }

    /// The same as [`Watchpoint::symbol`], for a name that is known only at run time.
    pub fn symbol_string(mut self, name: impl Into<String>) -> Self {
        self.symbol_name = Some(Cow::Owned(name.into()));
        self
    }

    /// Watches the memory at `addr`, a virtual address of the kernel. Not together with
    /// [`Watchpoint::symbol`].
    pub const fn at(mut self, addr: u64) -> Self {
        self.given = addr;
        self
    }

    /// Adds `bytes` to the symbol's or the given address.
    pub const fn offset(mut self, bytes: u32) -> Self {
        self.offset = bytes;
        self
    }

    /// How many bytes are watched: 1, 2, 4 or 8. The address must be a multiple of it.
    pub const fn len(mut self, bytes: u8) -> Self {
        self.len = bytes;
        self
    }

    /// Which instructions are watched for; if not called, those that write.
    pub const fn access(mut self, access: WatchAccess) -> Self {
        self.access = access;
        self
    }

    /// Sets the handler: a function, or a closure that captures nothing. Without one, hits are only
    /// counted.
    pub const fn handler<F>(mut self, handler: F) -> Self
    where
        F: Fn(&Watchpoint, &mut PtRegs, &Touched) + Copy + 'static,
    {
        let _ = handler;
        self.handler = Some(call_touched::<F>);
        self
    }

    /// Keeps a pointer for the handler, which finds it by [`Watchpoint::handler_data`].
    pub const fn data(mut self, data: *const ()) -> Self {
        self.data = AtomicPtr::new(data.cast_mut());
        self
    }

    /// The pointer that was given by [`Watchpoint::data`], or null. Any context.
    pub fn handler_data(&self) -> *const () {
        self.data.load(Relaxed)
    }

    /// Registers it without watching, each time that it is registered.
    pub const fn disabled(mut self) -> Self {
        self.starts_disabled = true;
        self
    }

    /// Lets it be aimed at other memory while it is registered: see
    /// [`Watchpoints::aim`](crate::Watchpoints::aim). Without a symbol and an address it watches
    /// nothing until then.
    pub const fn movable(mut self) -> Self {
        self.movable = true;
        self
    }

    /// Watches only while a CPU runs a task of `scope`. Not together with
    /// [`Watchpoint::movable`].
    pub const fn only_in(mut self, scope: WatchScope) -> Self {
        self.scope = Some(scope);
        self
    }

    /// Watches what the programs of `scope` have at the address that [`Watchpoint::at`] gives. The
    /// kernel's own accesses by that address are seen, too, for example when it copies to the
    /// running program. What it stores there by another address is not.
    pub const fn in_programs(mut self, scope: WatchScope) -> Self {
        self.in_programs = true;
        self.only_in(scope)
    }

    /// The watched address. 0: it was never registered, or is aimed at nothing. Any context.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.aim.addr()
    }

    /// Whether it can be aimed at other memory. Any context.
    pub fn is_movable(&self) -> bool {
        self.movable
    }

    /// How many bytes are watched. Any context.
    pub fn bytes(&self) -> u8 {
        match self.access {
            WatchAccess::Execute => 1,
            WatchAccess::Write | WatchAccess::ReadWrite => self.len,
        }
    }

    /// Whether its hits are left to the general way: no stub knows what they need.
    fn is_unusual(&self) -> bool {
        self.movable || self.scope.is_some() || self.access == WatchAccess::Execute
    }

    /// Which instructions are watched for. Any context.
    pub fn watched_access(&self) -> WatchAccess {
        self.access
    }

    /// The name given by [`Watchpoint::symbol`].
    pub fn symbol_name(&self) -> Option<&str> {
        self.symbol_name.as_deref()
    }

    /// Chooses the stub for its hits: see `asm/watchpoints.rs`.
    pub(crate) fn choose_stub(&self, stubs: &WatchStubs) {
        let by_length = |stubs: [u64; 4]| stubs[self.len.trailing_zeros() as usize % stubs.len()];
        let stub = if self.is_unusual() {
            stubs.any
        } else if self.routine.load(Relaxed) != 0 {
            by_length(stubs.routine)
        } else if self.handler.is_some() {
            by_length(stubs.handler)
        } else {
            stubs.count
        };
        // Release pairs with nothing but the order of the processor's stores: a stub that calls the
        // routine is seen after it.
        self.stub.store(stub, Release);
    }

    /// How often it was hit since registration, and the handler ran, if there is one. Any context.
    pub fn hits(&self) -> u64 {
        self.hits.load(Relaxed)
    }

    /// How often it was hit without its handler, because the CPU was in handlers. Any context.
    pub fn nmissed(&self) -> u64 {
        self.nmissed.load(Relaxed)
    }

    /// Whether it is registered now. Any context.
    pub fn is_registered(&self) -> bool {
        self.registered.load(Acquire)
    }

    /// Whether it is disabled now. Any context.
    pub fn is_disabled(&self) -> bool {
        self.disabled.load(Relaxed)
    }
}

/// Where a movable watchpoint has to be aimed for it to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AimedAt {
    /// It does not matter.
    Anything,
    /// It watches nothing.
    Nothing,
    /// It watches from this address on.
    This(u64),
}

impl AimedAt {
    /// Whether a watchpoint at `addr` is one of these. 0 is nothing.
    pub(crate) const fn includes(self, addr: u64) -> bool {
        match self {
            Self::Anything => true,
            Self::Nothing => addr == 0,
            Self::This(this) => addr == this,
        }
    }
}

/// What a watchpoint watches, and what the last hit found there. Both change together, because a
/// hit may come on another CPU while the watchpoint is moved: its old value must not be that of
/// other memory.
#[repr(C, align(16))]
pub(crate) struct Aim {
    /// The watched address; 0: none.
    pub(crate) addr: AtomicU64,
    pub(crate) last: AtomicU64,
}

impl Aim {
    const fn new() -> Self {
        Self {
            addr: AtomicU64::new(0),
            last: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(crate) fn addr(&self) -> u64 {
        self.addr.load(Relaxed)
    }

    /// Sets both, while no hit can come.
    pub(crate) fn set(&self, addr: u64, last: u64) {
        self.addr.store(addr, Relaxed);
        self.last.store(last, Relaxed);
    }

    /// A hit has found `value`. Returns what the one before it found. The watchpoint does not move.
    #[inline(always)]
    pub(crate) fn note(&self, value: u64) -> u64 {
        self.last.swap(value, Relaxed)
    }

    /// The same for a watchpoint that may be moved meanwhile: a hit has found `value` at `addr`.
    /// None: it is not aimed there any more.
    #[inline(always)]
    pub(crate) fn note_at(&self, addr: u64, value: u64) -> Option<u64> {
        self.update(|at, _| (at == addr).then_some((addr, value)))
            .map(|(_, last)| last)
    }

    /// Moves it to `addr`, where `value` is now, if it is aimed `from` there. Returns whether it
    /// was.
    #[inline(always)]
    pub(crate) fn shift(&self, from: AimedAt, addr: u64, value: u64) -> bool {
        self.update(|at, _| from.includes(at).then_some((addr, value)))
            .is_some()
    }

    /// Puts what `next` says in place of both words, and returns what they were. None: `next` wants
    /// no change. Any context, without waiting for others.
    #[inline(always)]
    fn update(&self, next: impl Fn(u64, u64) -> Option<(u64, u64)>) -> Option<(u64, u64)> {
        // If the two are not of one moment, the exchange fails and says what they are.
        let mut now = (self.addr(), self.last.load(Relaxed));
        loop {
            let (addr, last) = next(now.0, now.1)?;
            let mut found = now;
            // SAFETY: 16-aligned by its `repr`, and all words are atomic. rbx, which LLVM reserves,
            // is restored.
            unsafe {
                asm!(
                    "xchg rsi, rbx",
                    "lock cmpxchg16b [rdi]",
                    "mov rbx, rsi",
                    in("rdi") self,
                    inout("rsi") addr => _,
                    in("rcx") last,
                    inout("rax") found.0,
                    inout("rdx") found.1,
                    options(nostack),
                );
            }
            if found == now {
                return Some(now);
            }
            now = found;
        }
    }
}

/// DR7 with no register in action: bit 10 is always set (Intel SDM vol. 3B, 17.2.4).
pub(crate) const ALL_OFF: u64 = 1 << 10;

/// What the debug registers hold.
pub(crate) struct Watches {
    /// By the bit of DR6 that names the register, so that a hit needs no search. Other places than
    /// those of one bit are null.
    pub(crate) by_status: [AtomicPtr<Watchpoint>; STATUS_PLACES],
    /// The slot region, for the stubs: its first address, and its bytes.
    pub(crate) slots: [AtomicU64; 2],
    /// The value of DR7 where all scopes include the task, or 0 if no watchpoint was ever there.
    pub(crate) control: AtomicU64,
    /// Whether a watchpoint in action has a scope, so that a switch of tasks may change DR7.
    pub(crate) are_scoped: AtomicBool,
    /// Whether an instruction is watched, so that jumps ask which.
    pub(crate) executes: AtomicBool,
    /// What the register of a watchpoint watches that is aimed at nothing. Nothing touches it.
    pub(crate) nothing: u64,
}

impl Watches {
    pub(crate) const fn new() -> Self {
        Self {
            by_status: [const { AtomicPtr::new(null_mut()) }; STATUS_PLACES],
            slots: [const { AtomicU64::new(0) }; 2],
            control: AtomicU64::new(0),
            are_scoped: AtomicBool::new(false),
            executes: AtomicBool::new(false),
            nothing: 0,
        }
    }
}

/// The bits of DR7 that put register `number` in action.
pub(crate) const fn in_action(number: usize) -> u64 {
    0b11 << (2 * number)
}

/// One more than the bit of the last register.
const STATUS_PLACES: usize = (1 << (MOST_WATCHPOINTS - 1)) + 1;

impl Watches {
    /// The place of debug register `number`.
    #[inline(always)]
    pub(crate) fn place(&self, number: usize) -> Option<&AtomicPtr<Watchpoint>> {
        self.by_status.get(1 << number)
    }

    /// The places of all registers, in order.
    pub(crate) fn places(&self) -> impl Iterator<Item = &AtomicPtr<Watchpoint>> {
        (0..MOST_WATCHPOINTS).filter_map(|number| self.place(number))
    }
}

/// The value at `addr`: `len` bytes, and zeros above.
///
/// # Safety
/// `addr` is a multiple of `len` and can be read.
pub(crate) unsafe fn value(addr: u64, len: u8) -> u64 {
    // SAFETY: by the contract. Volatile, because others write it meanwhile.
    unsafe {
        match len {
            1 => (addr as *const u8).read_volatile().into(),
            2 => (addr as *const u16).read_volatile().into(),
            4 => (addr as *const u32).read_volatile().into(),
            _ => (addr as *const u64).read_volatile(),
        }
    }
}
