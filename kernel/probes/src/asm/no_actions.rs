//! No stub and no trampoline for actions: a kernel that leaves out the feature `actions` has none.

/// Names in a comment what [`breakpoint_entry!`](crate::breakpoint_entry!) gives for the stub,
/// because each operand of an assembly has to be named.
#[macro_export]
macro_rules! action_stub {
    () => {
        "# {action} {action_breakpoint} {lookup_ip}"
    };
}

/// The same for the trampoline.
#[macro_export]
macro_rules! action_returns {
    () => {
        "# {jump_return}"
    };
}

/// An address at which no call returns.
#[doc(hidden)]
#[macro_export]
macro_rules! action_trampoline {
    () => {
        u64::MAX
    };
}

/// The stub's address: there is none.
#[doc(hidden)]
#[macro_export]
macro_rules! action_entry {
    () => {
        0
    };
}
