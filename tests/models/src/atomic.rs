//! Atomics for the included files. They have the size and the constant constructors of the
//! processor's atomics, with loom's behind them.
//!
//! A value in memory is only the first value. From the first access in an execution on, its address
//! leads to an atomic of loom. The model makes that first access before its threads start, so the
//! atomic's creation is ordered before all of them.

use std::{
    cell::{Cell, RefCell, UnsafeCell},
    collections::HashMap,
    rc::Rc,
};

pub use std::sync::atomic::Ordering;

use crate::{
    memory,
    weakness::{Weakness, is_weak},
};

thread_local! {
    static BEHIND: RefCell<HashMap<usize, Rc<loom::sync::atomic::AtomicU64>>> = RefCell::default();
    static SEALED: Cell<bool> = const { Cell::new(false) };
}

/// The message of a model that is not well made.
pub(crate) const UNTOUCHED: &str =
    "the model does not touch all its atomics before its threads start";

/// Another execution begins.
pub(crate) fn forget() {
    BEHIND.with_borrow_mut(HashMap::clear);
    SEALED.set(false);
}

/// The model's threads are about to start: every atomic has been touched.
pub(crate) fn seal() {
    SEALED.set(true);
}

/// `order` without the part that the execution leaves out.
fn weakened(order: Ordering) -> Ordering {
    use Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
    match order {
        Release if is_weak(Weakness::Release) => Relaxed,
        AcqRel | SeqCst if is_weak(Weakness::Release) => Acquire,
        Acquire if is_weak(Weakness::Acquire) => Relaxed,
        AcqRel | SeqCst if is_weak(Weakness::Acquire) => Release,
        order => order,
    }
}

/// Does what `core::sync::atomic::fence` does.
pub fn fence(order: Ordering) {
    if !is_weak(Weakness::Fence) {
        loom::sync::atomic::fence(order);
    }
}

/// A value that fits in an atomic.
pub trait Word: Copy + PartialEq {
    fn bits(self) -> u64;
    fn from_bits(bits: u64) -> Self;
}

macro_rules! word {
    ($($type:ty)*) => {$(
        impl Word for $type {
            fn bits(self) -> u64 {
                self as u64
            }
            fn from_bits(bits: u64) -> Self {
                bits as Self
            }
        }
    )*};
}

word!(u64 u32);

impl Word for bool {
    fn bits(self) -> u64 {
        self.into()
    }
    fn from_bits(bits: u64) -> Self {
        bits != 0
    }
}

impl<T> Word for *mut T {
    fn bits(self) -> u64 {
        self.expose_provenance() as u64
    }
    fn from_bits(bits: u64) -> Self {
        std::ptr::with_exposed_provenance_mut(bits as usize)
    }
}

/// An atomic of any of these types.
#[repr(transparent)]
pub struct Atomic<T>(UnsafeCell<T>);

pub type AtomicU64 = Atomic<u64>;
pub type AtomicU32 = Atomic<u32>;
pub type AtomicBool = Atomic<bool>;
pub type AtomicPtr<T> = Atomic<*mut T>;

// SAFETY: the value in memory is only read, and changed only through a `&mut`.
unsafe impl<T: Word> Sync for Atomic<T> {}
// SAFETY: as above.
unsafe impl<T: Word> Send for Atomic<T> {}

impl<T: Word> Atomic<T> {
    pub const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    fn behind(&self) -> Rc<loom::sync::atomic::AtomicU64> {
        let addr = self.0.get().addr();
        assert!(!memory::is_freed(addr), "freed memory is used");
        if let Some(found) = BEHIND.with_borrow(|behind| behind.get(&addr).cloned()) {
            return found;
        }
        assert!(!SEALED.get(), "{UNTOUCHED}");
        // SAFETY: only changed through a `&mut`.
        let first = unsafe { *self.0.get() }.bits();
        let new = Rc::new(loom::sync::atomic::AtomicU64::new(first));
        BEHIND.with_borrow_mut(|behind| behind.insert(addr, Rc::clone(&new)));
        new
    }

    pub fn load(&self, order: Ordering) -> T {
        T::from_bits(self.behind().load(weakened(order)))
    }

    pub fn store(&self, value: T, order: Ordering) {
        self.behind().store(value.bits(), weakened(order));
    }

    pub fn swap(&self, value: T, order: Ordering) -> T {
        T::from_bits(self.behind().swap(value.bits(), weakened(order)))
    }

    pub fn compare_exchange(
        &self,
        old: T,
        new: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<T, T> {
        if is_weak(Weakness::Exchange) {
            let now = self.load(failure);
            if now == old {
                self.store(new, success);
            }
            return if now == old { Ok(now) } else { Err(now) };
        }
        self.behind()
            .compare_exchange(old.bits(), new.bits(), weakened(success), weakened(failure))
            .map(T::from_bits)
            .map_err(T::from_bits)
    }

    #[allow(dead_code)]
    pub fn compare_exchange_weak(
        &self,
        old: T,
        new: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<T, T> {
        self.compare_exchange(old, new, success, failure)
    }

    /// The value, while no other thread shares it.
    pub fn get_mut(&mut self) -> &mut T {
        let addr = self.0.get().addr();
        let behind = BEHIND.with_borrow_mut(|behind| behind.remove(&addr));
        let value = self.0.get_mut();
        if let Some(last) = behind {
            *value = T::from_bits(last.load(Ordering::Relaxed));
        }
        value
    }
}

macro_rules! arithmetic {
    ($($name:ident)*) => {$(
        pub fn $name(&self, operand: T, order: Ordering) -> T {
            T::from_bits(self.behind().$name(operand.bits(), weakened(order)))
        }
    )*};
}

impl<T: Word> Atomic<T> {
    arithmetic!(fetch_add fetch_sub fetch_or fetch_and);
}
