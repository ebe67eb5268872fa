//! The data that a hit reads: the files of the probes, and stand-ins for the rest.

#[path = "../../../../kernel/probes/src/data/action.rs"]
#[allow(dead_code)]
pub(crate) mod action;
#[path = "../../../../kernel/probes/src/data/address_table.rs"]
#[allow(dead_code)]
pub(crate) mod address_table;
#[path = "../../../../kernel/probes/src/data/counters.rs"]
#[allow(dead_code)]
pub(crate) mod counters;
#[path = "../../../../kernel/probes/src/data/dispatch.rs"]
#[allow(dead_code)]
pub(crate) mod dispatch;
#[path = "../../../../kernel/probes/src/data/entry_points.rs"]
#[allow(dead_code)]
pub(crate) mod entry_points;
pub(crate) mod free_list;
#[path = "../../../../kernel/probes/src/data/function.rs"]
#[allow(dead_code)]
pub(crate) mod function;
#[path = "../../../../kernel/probes/src/data/instance.rs"]
#[allow(dead_code)]
pub(crate) mod instance;
pub(crate) mod jprobe;
#[path = "../../../../kernel/probes/src/data/kprobe.rs"]
#[allow(dead_code)]
pub(crate) mod kprobe;
pub(crate) mod kretprobe;
#[path = "../../../../kernel/probes/src/data/no_grace.rs"]
#[allow(dead_code)]
pub(crate) mod no_grace;
#[path = "../../../../kernel/probes/src/data/position.rs"]
#[allow(dead_code)]
pub(crate) mod position;
#[path = "../../../../kernel/probes/src/data/site.rs"]
#[allow(dead_code)]
pub(crate) mod site;
#[path = "../../../../kernel/probes/src/data/trap_ip.rs"]
#[allow(dead_code)]
pub(crate) mod trap_ip;

pub(crate) mod detour {
    pub(crate) struct Detour;
}

pub(crate) mod method {
    pub(crate) use probes::StepMethod;
}

pub(crate) mod per_cpu {
    use core::sync::atomic::AtomicU64;

    pub(crate) struct PerCpu {
        pub(crate) counter_part: AtomicU64,
    }
}
