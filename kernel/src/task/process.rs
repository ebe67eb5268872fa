//! Processes: what a task has because it runs a program.

/// What a task has because it runs a program.
#[derive(Default)]
pub struct Process {}
