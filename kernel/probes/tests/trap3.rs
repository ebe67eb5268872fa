//! The probes on a Linux process as they were in 2005: displaced instructions single-stepped
//! (`StepMethod::TrapFlag`), calls coming back through a breakpoint (`ReturnMethod::Trap3`). See
//! `process/mod.rs`.

extern crate alloc;

mod process;
mod suite;

use process as platform;

pub const METHOD: probes::registry::StepMethod = probes::registry::StepMethod::TrapFlag;
pub const RETURNS: probes::registry::ReturnMethod = probes::registry::ReturnMethod::Trap3;
