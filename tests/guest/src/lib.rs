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
//! in a module for its subject, in one of the folders:
//!
//! ```text
//!   probes          what the probes do in this kernel
//!   instructions    displaced instructions: each does what it does without a probe
//!   interruptions   what comes in the middle of a hit
//!   tracing         programs on probes, scripts, events, stacks, Linux's files
//!   kernel          the kernel under the probes
//!   load            everything at once and at random
//!   platform        the suite that a process and a second kernel run as well, and what it sees
//!   glue            what the platform asks of this kernel
//!   tools           what several tests use
//!   harness         the list of the tests, the runner, the tests of both
//! ```
//! A test's name is its path below the folder: `hits::a_mirror_is_seen`, not `probes::hits::…`. So
//! a file may move, and no two of them have the same name. The test runs in task context, in the
//! kernel thread `kernel_init`, after a complete boot. It passes if it returns and fails by
//! panicking. As a panic ends the kernel, a test that passes leaves things as it found them: probes
//! unregistered, threads ended. `cargo test handler_order` runs it; `cargo test handler_order --
//! --nocapture` shows the guest's log too.
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
#![no_std]

extern crate alloc;
// `#[guest_test]`; and in the sources that a process runs as well, `#[test]` is ours.
#[macro_use]
extern crate guest_test_attribute;

mod glue;
mod harness;
mod instructions;
mod interruptions;
mod kernel;
mod load;
mod platform;
mod probes;
mod tools;
mod tracing;

#[doc(hidden)]
pub use harness::registry::Registered;
pub use harness::runner::run;
