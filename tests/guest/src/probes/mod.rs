//! What the probes do in this kernel: registration, handlers, returns, jumps, files, refusals.
//!
//! A promise that holds without the kernel belongs to the suite (`kernel/probes/tests/suite`),
//! which also runs here ([`crate::platform`]). Here are those for which the kernel around the
//! probes matters: its programs, its files, its interrupts, its text, its memory.

mod acceptance;
mod adopters_checks;
mod backtraces;
mod blacklist;
mod calls;
mod concurrency;
mod handler_context;
mod handler_rules;
mod handlers_keep_their_cpu;
mod historic;
mod hits;
mod moved_watchpoints;
mod optimization;
mod probe_files;
mod probed_tasks;
pub mod program_probes;
mod program_watchpoints;
mod registration_errors;
mod regressions;
mod several_returns;
mod shortage;
mod stores_to_text;
mod user_calls;
pub mod user_probes;
pub mod user_returns;
mod watched_instructions;
mod watched_objects;
mod watchpoint_stubs;
pub mod watchpoints;
