//! A return probe on any function. It prints the result of each call and how long the call took.
//!
//! `kretprobe_example.func=NAME` chooses the function.

use alloc::boxed::Box;

use kernel::{
    pr_info,
    probes::{
        EntryVerdict, Kretprobe, KretprobeInstance, ProbeError, PtRegs, Registered, register,
    },
    sync::Mutex,
    task,
    time::ktime_get,
};

kernel::module! {
    name: kretprobe_example,
    description: "Tells the result and the duration of each call of a function",
    params: {
        /// The function to probe.
        func: &str = "do_fork",
    },
    init: init,
    exit: exit,
}

/// The data of each call in flight.
#[derive(Clone, Copy, Default)]
struct Call {
    entry_stamp: u64,
}

static PROBE: Mutex<Option<Registered<Box<Kretprobe<Call>>>>> = Mutex::new(None);

/// Runs when the function is called. Kernel threads, which have no `mm`, are let go.
fn entry_handler(call: &mut KretprobeInstance<Call>, _regs: &mut PtRegs) -> EntryVerdict {
    if !task::current_has_mm() {
        return EntryVerdict::Decline;
    }
    call.entry_stamp = ktime_get();
    EntryVerdict::Track
}

/// Runs when it has returned.
fn ret_handler(call: &mut KretprobeInstance<Call>, regs: &mut PtRegs) {
    let duration = ktime_get() - call.entry_stamp;
    pr_info!(
        "{} returned {} and took {duration} ns to execute",
        params().func,
        regs.return_value().cast_signed()
    );
}

fn init() -> Result<(), ProbeError> {
    let kretprobe = Kretprobe::new()
        .symbol(params().func)
        .entry(entry_handler)
        .handler(ret_handler)
        .maxactive(20);
    let probe = register(Box::new(kretprobe)).inspect_err(|error| {
        pr_info!("register_kretprobe failed, returned -{}", error.errno());
    })?;
    pr_info!(
        "Planted return probe at {}: {:#x}",
        params().func,
        probe.addr()
    );
    *PROBE.lock() = Some(probe);
    Ok(())
}

fn exit() {
    if let Some(probe) = PROBE.lock().take() {
        let (addr, missed) = (probe.addr(), probe.nmissed());
        drop(probe);
        pr_info!("kretprobe at {addr:#x} unregistered");
        pr_info!("Missed probing {missed} instances of {}", params().func);
    }
}
