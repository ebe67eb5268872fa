//! A jprobe on `do_fork`. Its handler has the signature of the function and sees the arguments of
//! each call.
//!
//! `jprobe_example.symbol=NAME` probes another function with the same leading arguments.

use alloc::boxed::Box;

use kernel::{
    pr_info,
    probes::{Jprobe, ProbeError, PtRegs, Registered, jprobe, register},
    sync::Mutex,
};

kernel::module! {
    name: jprobe_example,
    description: "Tells the arguments of each call of do_fork",
    params: {
        /// The function to probe.
        symbol: &str = "do_fork",
        /// Only 0 is a function's entry. Any other value shows the refusal.
        offset: u32 = 0,
    },
    init: init,
    exit: exit,
}

static PROBE: Mutex<Option<Registered<Box<Jprobe>>>> = Mutex::new(None);

jprobe! {
    /// Runs instead of the first instruction of `do_fork`. Then `do_fork` runs as it would without
    /// it.
    fn jdo_fork(
        clone_flags: u64,
        _stack_start: u64,
        regs: *const PtRegs,
        stack_size: u64,
        _parent_tidptr: u64,
        _child_tidptr: u64,
    ) {
    pr_info!(
        "jprobe: clone_flags = {clone_flags:#x}, stack_size = {stack_size:#x}, regs = {regs:p}"
    );
    }
}

fn init() -> Result<(), ProbeError> {
    let jprobe = Jprobe::new()
        .symbol(params().symbol)
        .offset(params().offset)
        .entry(jdo_fork);
    let probe = register(Box::new(jprobe)).inspect_err(|error| {
        pr_info!("register_jprobe failed, returned -{}", error.errno());
    })?;
    pr_info!(
        "Planted jprobe at {:#x}, handler addr {:#x}",
        probe.addr(),
        probe.entry_addr()
    );
    *PROBE.lock() = Some(probe);
    Ok(())
}

fn exit() {
    if let Some(probe) = PROBE.lock().take() {
        let addr = probe.addr();
        drop(probe);
        pr_info!("jprobe at {addr:#x} unregistered");
    }
}
