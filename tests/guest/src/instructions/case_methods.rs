//! The ways in which a probed instruction is executed, and what handlers see meanwhile.
//!
//! # Contexts
//! Handlers run on the one CPU of the machine; whoever asks what they saw does so in a task, while
//! no probe is hit.

use core::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};
use iced_x86::Mnemonic;
use instruction_cases::Case;
use kernel::probes::{Kprobe, PreVerdict, PtRegs, StepMethod};

use crate::instructions::case_runner::SLOTS;

/// How a probed instruction is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Out of line, after a breakpoint.
    Slot,
    /// Likewise, and a post handler runs.
    Post,
    /// Single-stepped, with a post handler.
    Step,
    /// In the detour of a jump.
    Jump,
}

impl Method {
    /// A probe for each slot.
    pub fn probes(self) -> &'static [Kprobe; SLOTS] {
        match self {
            Self::Slot | Self::Jump => &PRE,
            Self::Post => &POST,
            Self::Step => &STEP,
        }
    }

    /// Whether a case can be executed so, and leaves behind the same.
    pub fn suits(self, case: &Case) -> bool {
        // No post handler is found by another GS base.
        let may_write_gs_base = matches!(
            case.instruction.mnemonic(),
            Mnemonic::Wrmsr | Mnemonic::Wrmsrns | Mnemonic::Wrmsrlist
        );
        !(self.has_post_handler() && may_write_gs_base)
    }

    /// Whether a post handler runs.
    pub fn has_post_handler(self) -> bool {
        matches!(self, Self::Post | Self::Step)
    }
}

static PRE: [Kprobe; SLOTS] = [const { Kprobe::new().pre(see_before) }; SLOTS];
static POST: [Kprobe; SLOTS] = [const { Kprobe::new().pre(see_before).post(see_after) }; SLOTS];
static STEP: [Kprobe; SLOTS] = [const {
    Kprobe::new()
        .pre(see_before)
        .post(see_after)
        .step_method(StepMethod::TrapFlag)
}; SLOTS];

/// The registers that handlers saw first since the run began, and how many handlers there were.
pub struct Seen {
    regs: UnsafeCell<PtRegs>,
    count: AtomicU32,
}

// SAFETY: there is one CPU, and whoever reads it does so while no probe is hit.
unsafe impl Sync for Seen {}

impl Seen {
    const fn new() -> Self {
        Self {
            regs: UnsafeCell::new(PtRegs::new()),
            count: AtomicU32::new(0),
        }
    }

    /// Notes what a handler sees.
    pub fn note(&self, regs: &PtRegs) {
        if self.count.fetch_add(1, Relaxed) == 0 {
            // SAFETY: handlers do not nest.
            unsafe { *self.regs.get() = *regs };
        }
    }

    /// Takes the registers that were seen, and how often.
    pub fn take(&self) -> (PtRegs, u32) {
        // SAFETY: no probe is hit now.
        (unsafe { *self.regs.get() }, self.count.swap(0, Relaxed))
    }
}

/// The view of pre handlers.
pub static BEFORE: Seen = Seen::new();
/// The view of post handlers.
pub static AFTER: Seen = Seen::new();

fn see_before(_probe: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    BEFORE.note(regs);
    PreVerdict::Execute
}

fn see_after(_probe: &Kprobe, regs: &mut PtRegs, _flags: u64) {
    AFTER.note(regs);
}
