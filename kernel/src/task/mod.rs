//! Tasks.

pub mod scheduler;

/// A thread of execution.
pub struct Task {}
