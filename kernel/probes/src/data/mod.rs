//! What a hit reads and the registry writes.

pub mod address_table;
pub mod counters;
pub(crate) mod detour;
pub(crate) mod dispatch;
pub mod entry_points;
pub(crate) mod free_list;
pub mod instance;
pub mod jprobe;
pub mod kprobe;
pub mod kretprobe;
pub mod method;
pub mod per_cpu;
pub(crate) mod position;
pub mod probe;
pub mod site;
