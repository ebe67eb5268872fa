//! Programs in the kernel: verified, with their maps, compiled and placed where a probe can run
//! them.
//!
//! ```text
//!   bpf::Program ─ verify ─► Verified ─ maps ─► compile, once a form ─► ActionCode ─► Action
//!                                                                           │
//!                                   Attached: a kprobe or kretprobe that carries the action
//! ```
//!
//! | file | content |
//! |---|---|
//! | [`load`] | a program: verified, compiled, placed |
//! | [`maps`] | its maps |
//! | [`attach`] | the probes that carry it |
//! | [`watch`] | a watchpoint that carries it |
//! | [`error`] | why it cannot be loaded or attached |
//! | [`contract`] | what the probes promise its code, against what the compiler makes of it |
//!
//! # Invariants
//! PROGRAM-1. A [`Program`] takes all its memory when it is loaded, or the load fails and gives
//!     back what it had. A hit allocates nothing.
//! PROGRAM-2. The code and the maps of a program live as long as its [`Program`]. Each attached
//!     probe holds it, and drops the probe first. That waits a grace period, so no CPU is in
//!     the code or has an address of a map afterwards.
//!
//! # Contexts
//! Loading, attaching and reading maps: tasks that may sleep.

mod attach;
mod contract;
mod error;
mod load;
mod maps;
mod watch;

pub(crate) use attach::Batch;
pub use attach::{AttachedCall, AttachedCalls, AttachedProbe, AttachedProbes};
pub use error::LoadError;
pub use load::Program;
pub use maps::LoadedMap;
pub(crate) use watch::AimedWatches;
pub(crate) use watch::run_at_object;
pub use watch::{AttachedWatch, WatchPlace, watchpoint};
