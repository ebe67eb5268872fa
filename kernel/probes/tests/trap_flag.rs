//! The probes on a Linux process, displaced instructions single-stepped (`StepMethod::TrapFlag`).
//! See `process/mod.rs`.

extern crate alloc;

mod process;
mod suite;

use process as platform;

pub const METHOD: probes::registry::StepMethod = probes::registry::StepMethod::TrapFlag;
pub const RETURNS: probes::registry::ReturnMethod = probes::registry::ReturnMethod::Asm;
