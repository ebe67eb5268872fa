//! Fault injection for allocations: one task's allocations fail from a chosen one on.
//!
//! Exhausting memory is a bad test, because other code notices first. Here a single task is refused
//! memory at its first allocation, at its second, and so on. So every failure on a path can be
//! provoked in turn ([`with_room_for`]). Blocks of the heap and frames count alike. The memory that
//! the task keeps is counted, too.
//!
//! # Contexts
//! [`with_room_for`]: one task at a time. [`refuses`], [`taken`] and [`given_back`]: the
//! allocators, any context. They cost a load while no task is chosen. An interrupt that allocates
//! counts for the task that it interrupted.

use core::sync::atomic::{AtomicI64, AtomicPtr, AtomicU64, Ordering::Relaxed};

use crate::arch::percpu;

/// The task whose allocations fail; null: none. Only this task uses the statics below.
static TASK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
/// How many allocations it has left.
static LEFT: AtomicU64 = AtomicU64::new(0);
/// How many it was refused.
static REFUSED: AtomicU64 = AtomicU64::new(0);
/// How many bytes it has taken and not given back.
static KEPT: AtomicI64 = AtomicI64::new(0);

/// The result of some work with refused allocations.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<T> {
    /// The return value of the work.
    pub result: T,
    /// How many allocations were granted.
    pub granted: u64,
    /// How many allocations were refused.
    pub refused: u64,
    /// How many bytes of the heap, and of frames, it has taken and not given back.
    pub kept: i64,
}

/// Runs `work` with room for `count` allocations of this task: later ones fail.
///
/// # Panics
/// If another task is in this function.
pub fn with_room_for<T>(count: u64, work: impl FnOnce() -> T) -> Outcome<T> {
    LEFT.store(count, Relaxed);
    REFUSED.store(0, Relaxed);
    KEPT.store(0, Relaxed);
    let this = percpu::current_raw().cast_mut();
    let before = TASK.swap(this, Relaxed);
    assert!(before.is_null(), "one task at a time is short of memory");
    let result = work();
    TASK.store(core::ptr::null_mut(), Relaxed);
    Outcome {
        result,
        granted: count - LEFT.load(Relaxed),
        refused: REFUSED.load(Relaxed),
        kept: KEPT.load(Relaxed),
    }
}

/// Whether the task that runs is the one in [`with_room_for`].
#[inline(always)]
fn is_short() -> bool {
    let task = TASK.load(Relaxed);
    !task.is_null() && core::ptr::eq(task, percpu::current_raw())
}

/// Whether an allocation is to fail. Counts it if not.
#[inline(always)]
pub(super) fn refuses() -> bool {
    if !is_short() {
        return false;
    }
    let left = LEFT.load(Relaxed);
    LEFT.store(left.saturating_sub(1), Relaxed);
    if left == 0 {
        REFUSED.store(REFUSED.load(Relaxed) + 1, Relaxed);
    }
    left == 0
}

/// `bytes` have been allocated.
#[inline(always)]
pub(super) fn taken(bytes: usize) {
    if is_short() {
        KEPT.store(KEPT.load(Relaxed) + bytes as i64, Relaxed);
    }
}

/// `bytes` have been given back.
#[inline(always)]
pub(super) fn given_back(bytes: usize) {
    if is_short() {
        KEPT.store(KEPT.load(Relaxed) - bytes as i64, Relaxed);
    }
}
