//! A watchpoint that runs a program.

use fallible::{Shared, try_box};
use probes::{PtRegs, RegisteredWatchpoint, Touched, Watchpoint, Watchpoints};

use super::{LoadError, Program};
use crate::Agent;

/// A watchpoint that runs a program of [`bpf::ProgramKind::Probe`], until it is dropped.
///
/// The context has the registers after the instruction. Its `ip` is where the code goes on. In
/// place of `orig_ax` it has the value before the access, and in place of `ss` the one after it.
pub struct AttachedWatch<A: Agent> {
    // Dropped in this order: the handler uses the program.
    watchpoint: RegisteredWatchpoint<A>,
    program: Shared<Program<A>>,
}

impl<A: Agent> AttachedWatch<A> {
    /// Registers the watchpoint.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn new(program: Shared<Program<A>>, watchpoint: Watchpoint) -> Result<Self, LoadError> {
        let data = core::ptr::from_ref::<Program<A>>(&program).cast();
        let watchpoint = try_box(watchpoint.data(data).handler(on_touch::<A>))?;
        Ok(Self {
            watchpoint: Watchpoints::of(A::probes()).register_owned(watchpoint)?,
            program,
        })
    }

    /// The program.
    pub fn program(&self) -> &Shared<Program<A>> {
        &self.program
    }

    /// How many hits were missed so far.
    pub fn misses(&self) -> u64 {
        self.watchpoint.nmissed()
    }

    /// Lets a watchpoint that is disabled fire. If its memory is gone, it stays as it is.
    pub fn start(&self) {
        let _ = Watchpoints::of(A::probes()).enable(&self.watchpoint);
    }

    /// Keeps it from firing. When this returns the program does not run; returns how many hits were
    /// missed.
    pub fn stop(&self) -> u64 {
        // It is registered, and only tasks have it.
        let _ = Watchpoints::of(A::probes()).disable(&self.watchpoint);
        self.misses()
    }
}

fn on_touch<A: Agent>(watchpoint: &Watchpoint, regs: &mut PtRegs, touched: &Touched) {
    let kept = (regs.ip, regs.orig_ax, regs.ss);
    (regs.ip, regs.orig_ax, regs.ss) = (touched.ip, touched.old, touched.new);
    let program = watchpoint.handler_data().cast::<Program<A>>();
    // SAFETY: the program outlives the registration of its watchpoint.
    unsafe { &*program }.run_at_hit(regs);
    (regs.ip, regs.orig_ax, regs.ss) = kept;
}
