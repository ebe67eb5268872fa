//! A handler that is known by its type.

use core::ptr::NonNull;

/// The one value of a function's own type: a function item, or a closure that captures nothing. It
/// has no bytes, so it can be made again wherever its type is known. A handler then costs the stubs
/// one direct call.
pub(crate) const fn function<F: Copy>() -> F {
    const {
        assert!(
            size_of::<F>() == 0,
            "a handler is a function or a closure that captures nothing, not a function pointer"
        );
    }
    // SAFETY: nothing is read for a type without bytes. It is `Copy`, and the builder was given a
    // value of it.
    unsafe { NonNull::<F>::dangling().read() }
}
