//! Runs a model in its interleavings, as it is or with a weakness.

use std::{
    cell::{Cell, RefCell},
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{atomic, memory};

/// A part of the code that can be left out, to see a model fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weakness {
    /// Stores order nothing before them.
    Release,
    /// Loads order nothing behind them.
    Acquire,
    /// Fences do nothing.
    Fence,
    /// A comparing exchange is a load and a store.
    Exchange,
    /// No task waits for hits that are under way.
    Grace,
    /// A pop does not raise the tag of a free list.
    Tag,
    /// A pop reads the head before the tag.
    HeadBeforeTag,
    /// The breakpoint is in the text before the site is in the table.
    ArmFirst,
    /// An interrupt that finds its CPU in a hit says that it found it elsewhere.
    AlwaysQuiescent,
}

thread_local! {
    static WEAKNESS: Cell<Option<Weakness>> = const { Cell::new(None) };
    /// The first panic of the exploration that says something.
    static CAUSE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The source of a panic that ends a thread of the model because another thread has failed, or
/// because the execution is over.
const UNWINDING: &str = "/generator-";
/// Of a failure that is not the model's: it had too many steps.
const GAVE_UP: &str = "exceeded maximum number of branches";

/// Whether this execution leaves `weakness` out.
pub(crate) fn is_weak(weakness: Weakness) -> bool {
    WEAKNESS.get() == Some(weakness)
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Exploration {
    /// How many interleavings were run.
    pub interleavings: usize,
    /// Why the last one failed, if it did.
    pub failure: Option<String>,
}

impl Exploration {
    /// Whether a property of the code does not hold. Otherwise the model itself is wrong.
    pub fn is_found(&self) -> bool {
        let cause = self.failure.as_ref();
        cause.is_some_and(|cause| !cause.contains(GAVE_UP) && !cause.contains(atomic::UNTOUCHED))
    }
}

/// Runs `model` in all interleavings with up to `preemptions` preemptions; with any number if none.
pub fn explore(model: fn(), preemptions: Option<usize>, weakness: Option<Weakness>) -> Exploration {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 20_000;
    WEAKNESS.set(weakness);
    CAUSE.set(None);
    let before = panic::take_hook();
    panic::set_hook(Box::new(|panic| {
        if panic
            .location()
            .is_none_or(|at| !at.file().contains(UNWINDING))
        {
            CAUSE.with_borrow_mut(|cause| cause.get_or_insert(panic.to_string()).len());
        }
    }));
    let result = panic::catch_unwind(AssertUnwindSafe(|| {
        builder.check(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            atomic::forget();
            memory::forget();
            model();
        });
    }));
    panic::set_hook(before);
    WEAKNESS.set(None);
    Exploration {
        interleavings: count.load(Ordering::Relaxed),
        failure: result.err().map(|_| CAUSE.take().unwrap_or_default()),
    }
}
