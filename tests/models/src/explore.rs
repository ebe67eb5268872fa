//! Runs a model in its interleavings, as it is or with a weakness.

use std::{
    cell::RefCell,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{
    atomic, memory,
    weakness::{self, Weakness},
};

thread_local! {
    /// The first panic of the exploration that says something.
    static CAUSE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The source of a panic that ends a thread of the model because another thread has failed, or
/// because the execution is over.
const UNWINDING: &str = "/generator-";
/// The message of a failure that is not the model's: it had too many steps.
const GAVE_UP: &str = "exceeded maximum number of branches";

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
    weakness::set(weakness);
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
    weakness::set(None);
    Exploration {
        interleavings: count.load(Ordering::Relaxed),
        failure: result.err().map(|_| CAUSE.take().unwrap_or_default()),
    }
}
