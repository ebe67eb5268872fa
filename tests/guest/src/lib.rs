//! The tests that run in the kernel.
//!
//! # Writing one
//! ```ignore
//! /// The meaning of a failure of this test.
//! #[guest_test(smp = 4, cmdline = "kprobes.step=tf")]
//! fn handler_order_is_newest_first() {
//!     assert_eq!(calls, [2, 1]);
//! }
//! ```
//! in a module of this crate, one for each subject. The test runs in task context, in the kernel
//! thread `kernel_init`, after a complete boot. It passes if it returns and fails by panicking. As
//! a panic ends the kernel, a test that passes leaves things as it found them: probes unregistered,
//! threads ended. `cargo test handler_order` runs it; `cargo test handler_order -- --nocapture`
//! shows the guest's log too.
//!
//! The attribute takes options, in any order:
//!
//! | option | meaning | default |
//! |---|---|---|
//! | `smp = 4` | number of CPUs | 2 |
//! | `memory = 512` | memory in MiB | 256 |
//! | `cmdline = "a=b c=d"` | arguments for the kernel command line | none |
//! | `icount` | time counts instructions, the same in each run | off |
//! | `timeout = 120` | seconds that the test may take | 180 |
//! | `should_panic = "text"` | passes if the kernel panics and its log holds this text | off |
//! | `ignore` | runs only with `cargo test -- --ignored` | off |
//! | `hidden` | not in the ordinary list: a test for the harness itself | off |
//!
//! Tests with the same machine and command line share a boot, in the order of their names; a test
//! that needs a boot of its own gets one by a command line of its own. After a test that panics or
//! resets the machine, the harness boots again and goes on with the rest. A test whose time is over
//! is ended by a panic, too: any CPU's tick sees to it.
//!
//! The probes' suite (`kernel/probes/tests/suite`), which a process runs as well, is part of this
//! crate: `platform` has what it needs.
#![no_std]

extern crate alloc;
// `#[guest_test]`; and in the sources that a process runs as well, `#[test]` is ours.
#[macro_use]
extern crate guest_test_attribute;

mod acceptance;
mod backtraces;
mod between_instructions;
mod blacklist;
mod calls;
mod case_methods;
mod case_outcome;
mod case_runner;
mod code_places;
mod command_line;
mod concurrency;
mod debugger;
mod displaced_instructions;
mod disturbed_hits;
mod handler_context;
mod handler_rules;
mod handlers;
mod handlers_keep_their_cpu;
mod heap;
mod historic;
mod hits;
mod instruction_forms;
mod instruction_fuzz;
mod interrupts_and_nmis;
mod kallsyms;
mod modules;
mod nmi;
mod numbered_targets;
mod optimization;
mod own_code;
mod platform;
mod preserved_registers;
mod printk;
mod probe_files;
mod processor_single_step;
mod program_probes;
mod programs;
mod protection;
mod rare_exceptions;
mod registration_errors;
mod registry;
mod regressions;
mod runner;
mod self_test;
mod several_returns;
mod shortage;
mod single_stepped_hits;
mod stepping;
mod stores_to_text;
mod stress;
#[path = "../../../kernel/probes/tests/suite/mod.rs"]
mod suite;
mod tasks;
mod trace_files;
mod trace_programs;
mod trace_scripts;
mod trace_sources;
mod trace_stacks;
mod trace_stress;
mod unusual_instructions;
mod user_memory;
mod virtual_files;
mod whole_kernel;

#[doc(hidden)]
pub use registry::Registered;
pub use runner::run;
