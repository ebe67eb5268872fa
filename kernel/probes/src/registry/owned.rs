//! Probes that a handle owns: dropping it unregisters.

use alloc::{boxed::Box, sync::Arc};
use core::{
    fmt,
    marker::PhantomData,
    ops::Deref,
    ptr::{NonNull, null_mut},
    sync::atomic::{AtomicPtr, Ordering::SeqCst, fence},
};

use crate::{
    data::{kprobe::flags, probe::Probe},
    error::ProbeError,
    registry::{
        memory::try_box,
        state::{Deferred, Host, Probes, defer},
    },
};

impl<P: Host> Probes<P> {
    /// Registers a probe that the returned handle owns; dropping the handle unregisters it.
    ///
    /// # Errors
    /// [`ProbeError`]; the probe is dropped then.
    pub fn register_owned<O: Owner>(&self, owner: O) -> Result<Registered<P, O>, ProbeError> {
        let deferred = try_box(Deferred {
            next: AtomicPtr::new(null_mut()),
            owner: null_mut(),
            finish: finish::<P, O>,
        })?;
        let probe = O::into_raw(owner);
        // SAFETY: `into_raw` keeps the probe alive and in place until `from_raw`, which comes after
        // its unregistration.
        match unsafe { self.register_all(&[&*probe]) } {
            Ok(()) => Ok(Registered {
                // SAFETY: `into_raw` gives no null.
                probe: unsafe { NonNull::new_unchecked(probe.cast_mut()) },
                deferred: Box::into_raw(deferred),
                _owner: PhantomData,
            }),
            Err(error) => {
                // SAFETY: not registered, so the only reference is this one.
                drop(unsafe { O::from_raw(probe) });
                Err(error)
            }
        }
    }
}

/// A type that can own a registered probe: it keeps the probe alive and in place.
///
/// # Safety
/// The pointer that `into_raw` returns stays valid for shared use until it is given to `from_raw`.
pub unsafe trait Owner {
    /// The probe.
    type Probe: Probe;
    /// Gives up the value, keeping the probe alive.
    fn into_raw(self) -> *const Self::Probe;
    /// Takes the value back.
    ///
    /// # Safety
    /// Once for each pointer from `into_raw`.
    unsafe fn from_raw(probe: *const Self::Probe) -> Self;
}

// SAFETY: a box's content neither moves nor dies while it is a raw pointer.
unsafe impl<T: Probe> Owner for Box<T> {
    type Probe = T;
    fn into_raw(self) -> *const T {
        Box::into_raw(self)
    }
    unsafe fn from_raw(probe: *const T) -> Self {
        // SAFETY: by the contract.
        unsafe { Box::from_raw(probe.cast_mut()) }
    }
}

// SAFETY: the count that the raw pointer stands for keeps the content alive, and it never moves.
unsafe impl<T: Probe> Owner for Arc<T> {
    type Probe = T;
    fn into_raw(self) -> *const T {
        Arc::into_raw(self)
    }
    unsafe fn from_raw(probe: *const T) -> Self {
        // SAFETY: by the contract.
        unsafe { Arc::from_raw(probe) }
    }
}

/// A registered probe that this handle owns. Dropping the handle unregisters the probe. Where that
/// may not wait (in a handler, with interrupts off), the probe is disabled at once, and the next
/// call that may wait unregisters it. Forgetting the handle leaves the probe registered for ever.
pub struct Registered<P: Host, O: Owner> {
    probe: NonNull<O::Probe>,
    /// Memory for the deferred case, taken while that can fail.
    deferred: *mut Deferred,
    _owner: PhantomData<(O, fn() -> P)>,
}

// SAFETY: the probe is `Sync` and the handle is its owner.
unsafe impl<P: Host, O: Owner + Send> Send for Registered<P, O> {}

// SAFETY: a shared handle gives shared access to the probe only.
unsafe impl<P: Host, O: Owner + Sync> Sync for Registered<P, O> {}

impl<P: Host, O: Owner> Deref for Registered<P, O> {
    type Target = O::Probe;
    fn deref(&self) -> &O::Probe {
        // SAFETY: alive until the handle is dropped.
        unsafe { self.probe.as_ref() }
    }
}

impl<P: Host, O: Owner> fmt::Debug for Registered<P, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registered({:#x})", self.kprobe().addr())
    }
}

impl<P: Host, O: Owner> Drop for Registered<P, O> {
    fn drop(&mut self) {
        let probe: *mut O::Probe = self.probe.as_ptr();
        if P::can_sleep() {
            // SAFETY: made by `Box::into_raw`, and this handle is its only user.
            drop(unsafe { Box::from_raw(self.deferred) });
            // SAFETY: the handle is gone.
            unsafe { finish::<P, O>(probe.cast()) };
            return;
        }
        let kprobe = self.kprobe();
        kprobe.flags.fetch_or(flags::DISABLED, SeqCst);
        fence(SeqCst);
        kprobe.silence(&P::entry_points());
        // SAFETY: as above; from here on the node belongs to the list.
        unsafe { defer(P::probes(), self.deferred, probe.cast()) };
    }
}

/// Unregisters the probe of a handle that is gone, and drops its owner.
///
/// # Safety
/// `probe` is the probe of such a handle, once, and the caller may sleep.
unsafe fn finish<P: Host, O: Owner>(probe: *mut ()) {
    let probe: *const O::Probe = probe.cast_const().cast();
    // SAFETY: alive until `from_raw` below.
    let removed = P::probes().unregister_all(&[unsafe { &*probe }]);
    if removed.is_ok() {
        // SAFETY: nothing reaches it any more, and the handle is gone.
        drop(unsafe { O::from_raw(probe) });
    }
}
