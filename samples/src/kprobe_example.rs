//! A kprobe on any instruction. It prints a message before and after each hit.
//!
//! `kprobe_example.symbol=NAME` and `.offset=BYTES` choose the instruction. `.stack=1` adds a
//! backtrace at each hit.

use alloc::boxed::Box;

use kernel::{
    backtrace, pr_info,
    probes::{FaultVerdict, Kprobe, PreVerdict, ProbeError, PtRegs, Registered, register},
    sync::Mutex,
};

kernel::module! {
    name: kprobe_example,
    description: "Tells of each execution of an instruction",
    params: {
        /// The function to probe.
        symbol: &str = "do_fork",
        /// Which of its instructions, in bytes from its start.
        offset: u32 = 0,
        /// Print a backtrace at each hit.
        stack: bool = false,
    },
    init: init,
    exit: exit,
}

static PROBE: Mutex<Option<Registered<Box<Kprobe>>>> = Mutex::new(None);

/// Runs before the probed instruction.
fn pre_handler(p: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    pr_info!(
        "pre_handler: p->addr = {:#x}, ip = {:x}, flags = {:#x}",
        p.addr(),
        regs.ip,
        regs.flags
    );
    if params().stack {
        backtrace::print(regs);
    }
    PreVerdict::Execute
}

/// Runs after it.
fn post_handler(p: &Kprobe, regs: &mut PtRegs, _flags: u64) {
    pr_info!(
        "post_handler: p->addr = {:#x}, flags = {:#x}",
        p.addr(),
        regs.flags
    );
}

/// Runs when the instruction, or a handler above, faults. Afterwards the kernel handles the fault
/// as it would without a probe.
fn fault_handler(p: &Kprobe, _regs: &mut PtRegs, trapnr: u8) -> FaultVerdict {
    pr_info!("fault_handler: p->addr = {:#x}, trap #{trapnr}", p.addr());
    FaultVerdict::Unhandled
}

fn init() -> Result<(), ProbeError> {
    let kprobe = Kprobe::new()
        .symbol(params().symbol)
        .offset(params().offset)
        .pre(pre_handler)
        .post(post_handler)
        .fault(fault_handler);
    let probe = register(Box::new(kprobe)).inspect_err(|error| {
        pr_info!("register_kprobe failed, returned -{}", error.errno());
    })?;
    pr_info!("Planted kprobe at {:#x}", probe.addr());
    *PROBE.lock() = Some(probe);
    Ok(())
}

fn exit() {
    if let Some(probe) = PROBE.lock().take() {
        let addr = probe.addr();
        drop(probe);
        pr_info!("kprobe at {addr:#x} unregistered");
    }
}
