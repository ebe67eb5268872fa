//! No historic ways to return: a kernel that leaves out the feature `historic` has none.

/// These functions: none.
#[doc(hidden)]
#[macro_export]
macro_rules! historic_returns {
    () => {
        ""
    };
}

/// Declares none.
#[doc(hidden)]
#[macro_export]
macro_rules! historic_declarations {
    () => {};
}

/// Addresses at which no call returns.
#[doc(hidden)]
#[macro_export]
macro_rules! historic_trampolines {
    () => {
        [u64::MAX; 2]
    };
}
