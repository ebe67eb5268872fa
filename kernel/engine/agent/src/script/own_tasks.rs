//! The tasks that a trace is not of: those of the tracer (RUN-6 of [`super`]).

use crate::Agent;

/// The tracer's own tasks, by the low 32 bits of [`bpf::Helper::PidTgid`]: that which serves the
/// session, and one more. 0 is none of them, because that is what idle CPUs have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnTasks(pub(super) [u32; 2]);

impl OwnTasks {
    /// The task that calls, which is to serve the session. Task context.
    pub fn of_caller<A: Agent>() -> Self {
        let mut task = 0;
        A::keep_cpu(&mut || task = A::this_cpu_tracing().task().0);
        // Two equal numbers are one task.
        Self([task; 2])
    }

    /// These and `another`. If no task is kept out, it is not, either.
    pub fn and(self, another: u32) -> Self {
        match self.are_kept_out() {
            true => Self([self.0[0], another]),
            false => self,
        }
    }

    pub(super) fn are_kept_out(self) -> bool {
        self.0 != [0; 2]
    }
}
