//! Watchpoints, in a kernel that leaves out the feature `watchpoints`: the debug registers are not
//! the probes'.

use crate::{
    data::{per_cpu::PerCpu, watchpoint::Watches},
    hit::Hits,
    platform::Platform,
    pt_regs::PtRegs,
};

impl Watches {
    #[expect(
        clippy::extra_unused_type_parameters,
        reason = "as the real one has it"
    )]
    pub(crate) fn pause<P: Platform>(_: &PerCpu) -> bool {
        false
    }

    pub(crate) fn load<P: Platform>(&self) {}

    pub(crate) fn serve<P: Platform>(
        &self,
        _: &Hits<P>,
        _: &PerCpu,
        _: &mut PtRegs,
        _: (u64, bool),
    ) {
    }
}
