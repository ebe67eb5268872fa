//! How a displaced instruction is executed, and how a call comes back.

/// How the displaced instruction is executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepMethod {
    /// Translated into a slot with explicit exits: one trap a hit.
    #[default]
    Translate,
    /// Copied and single-stepped with EFLAGS.TF, as in 2005: two traps a hit.
    TrapFlag,
}

/// How a call comes back to the handlers of its kretprobes. `registry/historic.rs` has the older
/// ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReturnMethod {
    /// It returns to assembly that calls the handlers: no trap.
    #[default]
    Asm,
    /// It returns to a breakpoint, whose pre handler does everything: one trap.
    #[cfg(feature = "historic")]
    Trap3,
    /// It returns to a breakpoint. The pre handler there runs the handlers, and the post handler
    /// sends the call home: two traps.
    #[cfg(feature = "historic")]
    Trap4,
}
