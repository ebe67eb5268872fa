//! The first return probe of 2005. It prints a message when `sys_mkdir` has exited.

use kernel::{
    pr_info,
    probes::{
        Kretprobe, KretprobeInstance, ProbeError, PtRegs, register_kretprobe, unregister_kretprobe,
    },
};

kernel::module! {
    name: sys_mkdir_return,
    description: "Tells when sys_mkdir has exited",
    init: init,
    exit: exit,
}

fn sys_mkdir_exited(_call: &mut KretprobeInstance<()>, _regs: &mut PtRegs) {
    pr_info!("sys_mkdir exited");
}

static PROBE: Kretprobe = Kretprobe::new()
    .symbol("sys_mkdir")
    .handler(sys_mkdir_exited)
    .maxactive(1);

fn init() -> Result<(), ProbeError> {
    register_kretprobe(&PROBE).inspect_err(|error| {
        pr_info!("register_kretprobe failed, returned -{}", error.errno());
    })
}

fn exit() {
    if let Err(error) = unregister_kretprobe(&PROBE) {
        pr_info!(
            "unregister_kretprobe failed, returned -{}: {error}",
            error.errno()
        );
    }
}
