//! A probe in a program: tells of each call of a function of `/bin/workload`, and of its result.
//!
//! `uprobe_example.path=PATH` and `uprobe_example.func=NAME` choose another one. The name is that
//! of the program's symbol table, or the path of the function in the source.

use kernel::{
    pr_info,
    probes::{EntryVerdict, PtRegs},
    sync::Mutex,
    task,
    uprobes::{RegisteredUserProbe, UprobeError, Uretprobe, UserCall},
};

kernel::module! {
    name: uprobe_example,
    description: "Tells of calls of a function of a program",
    params: {
        /// The program's file.
        path: &str = "/bin/workload",
        /// Its function.
        func: &str = "workload::run_child",
    },
    init: init,
    exit: exit,
}

static PROBE: Mutex<Option<RegisteredUserProbe<Uretprobe>>> = Mutex::new(None);

/// Runs before the first instruction of the function.
fn entry(call: &mut UserCall, regs: &mut PtRegs) -> EntryVerdict {
    call.data()[0] = regs.di;
    EntryVerdict::Track
}

/// Runs when the function has returned.
fn handler(call: &mut UserCall, regs: &mut PtRegs) {
    let (argument, result) = (call.data()[0], regs.ax);
    let (func, task) = (params().func, task::current());
    pr_info!("{func}({argument:#x}) of {task} returned {result:#x}");
}

fn init() -> Result<(), UprobeError> {
    let (path, func) = (params().path, params().func);
    let probe = Uretprobe::new()
        .program_string(path)
        .symbol_string(func)
        .entry_handler(entry)
        .handler(handler);
    *PROBE.lock() = Some(RegisteredUserProbe::new(probe)?);
    pr_info!("Planted uretprobe at {func} of {path}");
    Ok(())
}

fn exit() {
    if let Some(probe) = PROBE.lock().take() {
        pr_info!("{} hits, {} missed", probe.hits(), probe.nmissed());
    }
}
