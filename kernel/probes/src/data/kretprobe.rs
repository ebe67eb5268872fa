//! The kretprobe: a handler for when a function returns, and one for when it is called.
//!
//! A [`Kretprobe<D>`] keeps a `D` for each call in flight. The entry handler fills it in, and the
//! return handler of the same call reads it. Each call starts with `D::default()`. `D` is `Copy`,
//! because a task may die in the middle of a call and no destructor could run then.
//!
//! As many calls are followed at once as there are instances ([`Kretprobe::maxactive`]). A call for
//! which none is free is not followed, and is counted as missed.
//!
//! # Contexts
//! The entry handler runs with interrupts off, the return handler as the function had them. Both
//! run under the guard of their CPU, so they must not sleep.

use core::{
    alloc::Layout,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering},
};

use crate::{
    data::{
        action::{CallAction, EntryRoutine, JumpRoutine, ReturnRoutine},
        function::function,
        instance::{Holder, Instance, NO_HOLDER},
        kprobe::{Kprobe, ProbeKind},
        method::{ReturnMethod, StepMethod},
    },
    pt_regs::PtRegs,
};

pub use crate::data::action::EntryVerdict;

/// Runs when the function is called; `regs` as for a pre handler.
pub type EntryHandler<D> = extern "C" fn(&mut KretprobeInstance<D>, &mut PtRegs) -> EntryVerdict;
/// Runs when it has returned: `regs.return_value()`, and `regs.ip` is where the call came from.
pub type ReturnHandler<D> = extern "C" fn(&mut KretprobeInstance<D>, &mut PtRegs);

extern "C" fn call_entry<D: Default, F>(
    instance: &mut KretprobeInstance<D>,
    regs: &mut PtRegs,
) -> EntryVerdict
where
    F: Fn(&mut KretprobeInstance<D>, &mut PtRegs) -> EntryVerdict + Copy,
{
    // The old value is `Copy` and needs no drop.
    instance.data = D::default();
    function::<F>()(instance, regs)
}

/// The entry handler of a kretprobe that has data and no other.
extern "C" fn only_reset<D: Default>(
    instance: &mut KretprobeInstance<D>,
    _: &mut PtRegs,
) -> EntryVerdict {
    instance.data = D::default();
    EntryVerdict::Track
}

extern "C" fn call_return<D, F>(instance: &mut KretprobeInstance<D>, regs: &mut PtRegs)
where
    F: Fn(&mut KretprobeInstance<D>, &mut PtRegs) + Copy,
{
    function::<F>()(instance, regs);
}

/// The handler of a kretprobe without one.
extern "C" fn no_handler<D>(_: &mut KretprobeInstance<D>, _: &mut PtRegs) {}

/// The entry handler of a kretprobe with an action that shares words and has nothing at the entry.
extern "C" fn clear_words(instance: &mut KretprobeInstance<()>, _: &mut PtRegs) -> EntryVerdict {
    // SAFETY: an instance in hand has a live holder.
    let data = unsafe { (*instance.inner.holder).kretprobe_or_retired().data };
    let words: *mut u64 = (&raw mut instance.data).cast();
    for word in 0..data.size() / size_of::<u64>() {
        // SAFETY: an instance of this kretprobe has so many words after it (`Kretprobe::action`).
        // Volatile, so that it is no call of `memset`: there are few.
        unsafe { words.add(word).write_volatile(0) };
    }
    EntryVerdict::Track
}

/// A call in flight, as its handlers see it. Dereferences to the call's own `D`.
#[repr(C)]
pub struct KretprobeInstance<D> {
    inner: Instance,
    data: D,
}

impl<D> KretprobeInstance<D> {
    /// Where the call will really return to. Also right in the entry handler.
    pub fn ret_addr(&self) -> u64 {
        self.inner.ret_addr
    }

    /// The task that made the call, as the kernel numbers tasks for the probes.
    pub fn task(&self) -> u64 {
        // SAFETY: an instance in hand has a live holder.
        unsafe { (*self.inner.holder).current_task() }
    }

    /// The address of the stack slot that the return address lies in.
    pub fn return_slot(&self) -> u64 {
        self.inner.slot()
    }

    /// The kretprobe; none when it was unregistered since the call.
    pub fn kretprobe(&self) -> Option<&Kretprobe<D>> {
        // SAFETY: an instance in hand has a live holder, and a kretprobe that it names is freed
        // only after a grace period. `Kretprobe<D>` begins with the core (repr(C)), and instances
        // with data `D` are made only for it.
        unsafe {
            let core = (*self.inner.holder).kretprobe()?;
            Some(&*core::ptr::from_ref(core).cast::<Kretprobe<D>>())
        }
    }
}

impl<D> Deref for KretprobeInstance<D> {
    type Target = D;
    fn deref(&self) -> &D {
        &self.data
    }
}

impl<D> DerefMut for KretprobeInstance<D> {
    fn deref_mut(&mut self) -> &mut D {
        &mut self.data
    }
}

/// The routine [`CallAction::jump_return`] of a call whose kretprobe was unregistered.
#[cfg(feature = "actions")]
const NOTHING: Option<JumpRoutine> = Some(kretprobe_retired);
#[cfg(not(feature = "actions"))]
const NOTHING: Option<JumpRoutine> = None;

/// Keeps all registers.
#[cfg(feature = "actions")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn kretprobe_retired() {
    core::arch::naked_asm!(".cfi_startproc", "ret", ".cfi_endproc")
}

/// The part of a kretprobe that does not depend on the type of its data.
#[repr(C)]
pub struct KretprobeCore {
    pub(crate) kprobe: Kprobe,
    pub(crate) holder: AtomicPtr<Holder>,
    /// The holder while this is the only probe of its function, it is enabled, and its calls come
    /// back by the default method. Else [`NO_HOLDER`]. Detours that name this kretprobe take their
    /// instances from here.
    pub(crate) lone_holder: AtomicPtr<Holder>,
    pub(crate) handler: ReturnHandler<()>,
    /// Puts the default into the data of an instance and runs the entry handler. None if there is
    /// neither.
    pub(crate) enter: Option<EntryHandler<()>>,
    pub(crate) data: Layout,
    /// [`CallAction::jump_entry`].
    pub(crate) jump_entry: Option<JumpRoutine>,
    /// [`CallAction::jump_return`]. If there is one, its calls by a jump return to
    /// `kretprobe_trampoline_action`, which calls it.
    pub(crate) jump_return: Option<JumpRoutine>,
    pub(crate) maxactive: AtomicI32,
    pub(crate) nmissed: AtomicU64,
    /// How its calls come back; none: as the registry has it by default.
    pub(crate) method: Option<ReturnMethod>,
    /// The trampoline that its calls return to, while it is registered.
    pub(crate) trampoline: AtomicU64,
}

impl KretprobeCore {
    /// One with no function and no return handler yet.
    pub(crate) const fn new(enter: Option<EntryHandler<()>>, data: Layout) -> Self {
        Self {
            kprobe: Kprobe::of_kind(ProbeKind::Kretprobe),
            holder: AtomicPtr::new(core::ptr::null_mut()),
            lone_holder: AtomicPtr::new((&raw const NO_HOLDER).cast_mut()),
            handler: no_handler::<()>,
            enter,
            data,
            jump_entry: None,
            jump_return: None,
            maxactive: AtomicI32::new(0),
            nmissed: AtomicU64::new(0),
            method: None,
            trampoline: AtomicU64::new(0),
        }
    }

    /// One whose handler and routine do nothing.
    pub(crate) const fn retired() -> Self {
        let mut retired = Self::new(None, Layout::new::<()>());
        retired.jump_return = NOTHING;
        retired
    }

    /// The kretprobe that `kprobe`, which is linked, is part of.
    #[inline]
    pub(crate) fn of(kprobe: &Kprobe) -> Option<&Self> {
        // SAFETY: the container of a kprobe of this kind is its kretprobe, set before it was
        // linked.
        (kprobe.kind == ProbeKind::Kretprobe)
            .then(|| unsafe { &*kprobe.container.load(Ordering::Relaxed).cast::<Self>() })
    }

    /// Says whether detours may serve it alone.
    #[inline]
    pub(crate) fn set_alone(&self, alone: bool) {
        let holder = if alone {
            self.holder.load(Ordering::Relaxed)
        } else {
            (&raw const NO_HOLDER).cast_mut()
        };
        self.lone_holder.store(holder, Ordering::Release);
    }
}

/// A probe on the return of a function. See the module's text.
#[repr(C)]
pub struct Kretprobe<D = ()> {
    pub(crate) core: KretprobeCore,
    data: PhantomData<fn() -> D>,
}

impl<D: Copy + Default + Send + 'static> Default for Kretprobe<D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<D: Copy + Default + Send + 'static> Kretprobe<D> {
    /// A kretprobe with no function and no handlers yet.
    pub const fn new() -> Self {
        let enter = if size_of::<D>() == 0 {
            None
        } else {
            // SAFETY: as in `entry`.
            Some(unsafe {
                core::mem::transmute::<EntryHandler<D>, EntryHandler<()>>(only_reset::<D>)
            })
        };
        Self {
            core: KretprobeCore::new(enter, Layout::new::<D>()),
            data: PhantomData,
        }
    }

    const fn map_kprobe(self, kprobe: Kprobe) -> Self {
        let mut this = self;
        core::mem::forget(core::mem::replace(&mut this.core.kprobe, kprobe));
        this
    }

    const fn take_kprobe(&mut self) -> Kprobe {
        core::mem::replace(&mut self.core.kprobe, Kprobe::of_kind(ProbeKind::Kretprobe))
    }

    /// The same as [`Kprobe::symbol`].
    pub const fn symbol(mut self, name: &'static str) -> Self {
        let kprobe = self.take_kprobe().symbol(name);
        self.map_kprobe(kprobe)
    }

    /// The same as [`Kprobe::symbol_string`].
    pub fn symbol_string(mut self, name: impl Into<alloc::string::String>) -> Self {
        let kprobe = self.take_kprobe().symbol_string(name);
        self.map_kprobe(kprobe)
    }

    /// The same as [`Kprobe::at`].
    pub const fn at(mut self, addr: u64) -> Self {
        let kprobe = self.take_kprobe().at(addr);
        self.map_kprobe(kprobe)
    }

    /// The same as [`Kprobe::offset`]; anything but a function entry is refused.
    pub const fn offset(mut self, bytes: u32) -> Self {
        self.core.kprobe.offset = bytes;
        self
    }

    /// How many calls can be followed at once. 0 or less: max(10, 2 × CPUs), written back at
    /// registration.
    pub const fn maxactive(mut self, calls: i32) -> Self {
        self.core.maxactive = AtomicI32::new(calls);
        self
    }

    /// Sets the handler for the call: a function, or a closure that captures nothing.
    pub const fn entry<F>(mut self, handler: F) -> Self
    where
        F: Fn(&mut KretprobeInstance<D>, &mut PtRegs) -> EntryVerdict + Copy + 'static,
    {
        let _ = handler;
        // SAFETY: the two function types differ in the pointee of one reference only, so their ABIs
        // agree. It is only called with instances whose data is a `D`, because they are made from
        // this kretprobe's layout.
        self.core.enter = Some(unsafe {
            core::mem::transmute::<EntryHandler<D>, EntryHandler<()>>(call_entry::<D, F>)
        });
        self
    }

    /// Sets the handler for the return: a function, or a closure that captures nothing.
    pub const fn handler<F>(mut self, handler: F) -> Self
    where
        F: Fn(&mut KretprobeInstance<D>, &mut PtRegs) + Copy + 'static,
    {
        let _ = handler;
        // SAFETY: as in `entry`.
        self.core.handler = unsafe {
            core::mem::transmute::<ReturnHandler<D>, ReturnHandler<()>>(call_return::<D, F>)
        };
        self
    }

    /// Has its calls come back by `method`, whatever the default is. All kretprobes of one function
    /// have the same method.
    pub const fn return_method(mut self, method: ReturnMethod) -> Self {
        self.core.method = Some(method);
        self
    }

    /// The same as [`Kprobe::step_method`].
    pub const fn step_method(mut self, method: StepMethod) -> Self {
        self.core.kprobe.step = Some(method);
        self
    }

    /// The same as [`Kprobe::disabled`].
    pub const fn disabled(mut self) -> Self {
        let kprobe = self.take_kprobe().disabled();
        self.map_kprobe(kprobe)
    }
}

#[cfg(feature = "actions")]
impl Kretprobe<()> {
    /// Has machine code run at the entry and the return of a call, in place of handlers.
    ///
    /// # Safety
    /// The action's code stays as it is until no call of the function can return to the probe any
    /// more: a grace period after its unregistration. The code does as [`CallAction`] says.
    pub const unsafe fn action(mut self, action: CallAction) -> Self {
        // SAFETY: the function types differ in the pointee of the first argument only, so their
        // ABIs agree.
        unsafe {
            self.core.handler =
                core::mem::transmute::<ReturnRoutine, ReturnHandler<()>>(action.on_return);
            self.core.enter = match action.entry {
                Some(entry) => Some(core::mem::transmute::<EntryRoutine, EntryHandler<()>>(
                    entry,
                )),
                None if action.shared_words > 0 => Some(clear_words),
                None => None,
            };
        }
        self.core.jump_entry = match action.entry {
            Some(_) => action.jump_entry,
            None => None,
        };
        self.core.jump_return = action.jump_return;
        self.core.data = match Layout::array::<u64>(action.shared_words) {
            Ok(layout) => layout,
            Err(_) => panic!("more words than there is memory"),
        };
        self
    }
}

impl<D> Kretprobe<D> {
    /// The kprobe at the function's entry: its address, its state, and its misses because the CPU
    /// was in another hit.
    pub fn kprobe(&self) -> &Kprobe {
        &self.core.kprobe
    }

    /// The same as [`Kprobe::addr`].
    pub fn addr(&self) -> u64 {
        self.core.kprobe.addr()
    }

    /// The number of instances, after registration the one in force.
    pub fn maxactive_in_force(&self) -> i32 {
        self.core.maxactive.load(Ordering::Relaxed)
    }

    /// How many calls were not followed because all instances were in use.
    pub fn nmissed(&self) -> u64 {
        self.core.nmissed.load(Ordering::Relaxed)
    }

    /// How many returns were handled.
    pub fn hits(&self) -> u64 {
        self.core.kprobe.hits()
    }
}
