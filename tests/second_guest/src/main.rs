//! The probes' suite in the second kernel.
//!
//! The suite and its platform are those of `tests/guest`, compiled again: what they ask of a kernel
//! is in [`glue`], for this one. The harness on the host selects tests by the command line, as it
//! does in the other kernel, and follows them in the log.
#![no_std]
#![no_main]

extern crate alloc;
// `#[guest_test]`; and in the sources that a process runs as well, `#[test]` is ours.
#[macro_use]
extern crate guest_test_attribute;

mod glue;
#[path = "../../guest/src/platform/mod.rs"]
mod platform;
#[path = "../../guest/src/harness/registry.rs"]
mod registry;

use bootloader_api::BootInfo;
use registry::Registered;
use second_kernel::{CONFIG, exit, say, smp, start_other, tasks};
use test_protocol::{Marker, PARAMETER};

bootloader_api::entry_point!(start, config = &CONFIG);

fn start(info: &'static mut BootInfo) -> ! {
    second_kernel::start(info, main)
}

/// The first task.
fn main() {
    smp::start_others(start_other);
    glue::init();
    // The suite wants a task that stays on CPU 0. It is over when the machine is.
    let _tests = tasks::spawn("tests", Some(0), run, 0);
}

/// Runs the selected tests, one after the other. A test that fails panics.
extern "C" fn run(_: u64) {
    if glue::argument("kprobes.optimize") == Some("0") {
        glue::PROBES
            .set_optimization(false)
            .expect("this is a task");
    }
    let selection = glue::argument(PARAMETER).unwrap_or_default();
    let done = registry::for_each_selected(selection, |_, test| {
        let name = test.name.as_str();
        say(format_args!("{}", Marker::Begin(name)));
        (test.run)();
        say(format_args!("{}", Marker::End(name)));
    });
    if let Err(what) = &done {
        say(format_args!("{what}"));
    }
    exit(done.is_ok())
}
