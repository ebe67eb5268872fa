//! Jprobes, in a kernel that leaves out the feature `jprobes`: no hit is one.

use crate::{
    data::{
        kprobe::Kprobe,
        per_cpu::{HitGuard, PerCpu},
    },
    hit::{Flow, Hits},
    platform::Platform,
    pt_regs::PtRegs,
};

impl<P: Platform> Hits<P> {
    pub(super) fn enter_jprobe(&self, _: &HitGuard<'_>, _: &Kprobe, _: &mut PtRegs) -> Flow {
        Flow::Execute
    }

    pub(super) fn leave_jprobe(&self, _: &PerCpu, _: &mut PtRegs) -> bool {
        false
    }
}
