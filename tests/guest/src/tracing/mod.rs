//! Tracing: programs on probes, scripts, the kernel's events, call stacks and Linux's files.
//!
//! What needs no machine is tested on the host, beside the crates in `kernel/engine`.

mod trace_files;
mod trace_programs;
mod trace_scripts;
mod trace_sources;
mod trace_stacks;
mod trace_stress;
