//! The probes on a Linux process, displaced instructions translated (`StepMethod::Translate`). See
//! `process/mod.rs`.

extern crate alloc;

#[path = "process/broken.rs"]
mod broken;
mod process;
mod suite;

use process as platform;

pub const METHOD: probes::registry::StepMethod = probes::registry::StepMethod::Translate;
pub const RETURNS: probes::registry::ReturnMethod = probes::registry::ReturnMethod::Asm;
