//! A watchpoint on any static: tells of each instruction that writes it.
//!
//! `data_breakpoint.ksym=PATH` chooses the static, by its name in `/proc/kallsyms` or its path, as
//! in `ksym=kernel::task::next_pid::NEXT`. Its first 8 bytes are watched, or all if it has fewer.

use alloc::boxed::Box;

use kernel::{
    pr_info,
    probes::{
        ProbeError, PtRegs, RegisteredWatchpoint, Touched, WATCHPOINTS, Watchpoint,
        debugfs::SymbolAt,
    },
    symbols,
    sync::Mutex,
};

kernel::module! {
    name: data_breakpoint,
    description: "Tells of each write to a static",
    params: {
        /// The static to watch.
        ksym: &str = "kernel::task::next_pid::NEXT",
    },
    init: init,
    exit: exit,
}

static WATCH: Mutex<Option<RegisteredWatchpoint>> = Mutex::new(None);

/// Runs after the instruction.
fn handler(_: &Watchpoint, _: &mut PtRegs, touched: &Touched) {
    pr_info!(
        "{} value is changed: {:#x} -> {:#x}, before {}",
        params().ksym,
        touched.old,
        touched.new,
        SymbolAt(touched.ip)
    );
}

fn init() -> Result<(), ProbeError> {
    let ksym = params().ksym;
    let len = match symbols::lookup_name(ksym) {
        Ok(symbol) => symbol.size.clamp(1, 8) as u8,
        // The registration says what is wrong.
        Err(_) => 8,
    };
    let watch = Watchpoint::new().symbol(ksym).len(len).handler(handler);
    let watch = WATCHPOINTS
        .register_owned(Box::new(watch))
        .inspect_err(|_| pr_info!("Breakpoint registration failed"))?;
    pr_info!("HW Breakpoint for {ksym} write installed");
    *WATCH.lock() = Some(watch);
    Ok(())
}

fn exit() {
    if WATCH.lock().take().is_some() {
        pr_info!("HW Breakpoint for {} write uninstalled", params().ksym);
    }
}
