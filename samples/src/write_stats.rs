//! Counts the writes of all programs, and their bytes, by what `vfs_write` returns.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kernel::{
    pr_info,
    probes::{
        Kretprobe, KretprobeInstance, ProbeError, PtRegs, register_kretprobe, unregister_kretprobe,
    },
};

kernel::module! {
    name: write_stats,
    description: "Counts writes and their bytes",
    init: init,
    exit: exit,
}

static WRITES: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

static PROBE: Kretprobe = Kretprobe::new().symbol("vfs_write").handler(written);

/// Runs each time `vfs_write` has returned: a number of bytes, or a negative error number.
fn written(_call: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
    if let Ok(bytes) = u64::try_from(regs.return_value().cast_signed()) {
        WRITES.fetch_add(1, Relaxed);
        BYTES.fetch_add(bytes, Relaxed);
    }
}

fn init() -> Result<(), ProbeError> {
    register_kretprobe(&PROBE)
}

fn exit() {
    let _ = unregister_kretprobe(&PROBE);
    pr_info!(
        "{} writes, {} bytes",
        WRITES.load(Relaxed),
        BYTES.load(Relaxed)
    );
}
