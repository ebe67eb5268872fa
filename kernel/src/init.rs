//! The first task: what the kernel does once it is up.
//!
//! The command line says what: `guest_tests.run=` runs guest tests; otherwise the modules of `modules=` are loaded, in that
//! order, the user program of `init=` runs, and the modules are unloaded again, in the order in which they were
//! loaded. The machine is powered off with the verdict: success only if every module loaded and the
//! program exited with 0.

use crate::{
    cmdline, module,
    panic::{ExitCode, exit},
    pr_err, pr_info, test_runner,
};

/// See the module's text. Never returns: the machine is off then.
pub fn kernel_init() {
    if let Some(runner) = test_runner::requested() {
        runner();
    }
    let loaded = load_modules();
    for module in module::loaded() {
        if let Err(error) = module::unload(module.name()) {
            pr_err!("rmmod {} failed: {error}", module.name());
        }
    }
    let (code, verdict) = if loaded {
        (ExitCode::Success, "success")
    } else {
        (ExitCode::Failure, "failure")
    };
    pr_info!("Power off: {verdict}");
    exit(code)
}

/// Loads what the command line names. False if any of it failed; the rest is loaded all the same.
fn load_modules() -> bool {
    let names = cmdline::get("modules").unwrap_or_default();
    let mut all = true;
    for name in names.split(',').filter(|name| !name.is_empty()) {
        if let Err(error) = module::load(name, "") {
            pr_err!("insmod {name} failed: {error}");
            all = false;
        }
    }
    all
}
