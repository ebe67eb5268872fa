//! The data that a hit reads and the registry writes.
//!
//! ```text
//!   AddressTable ─► Site ─head─► Kprobe ─next─► Kprobe ─next─► …      newest first
//!    (trap ip)       │ ▲           │ site, container
//!                    │ └───────────┘     └─► Jprobe, KretprobeCore
//!                    ├─ slot, post_slot: addresses of code              │ holder
//!                    └─ detour ─► Detour                                ▼
//!                                                                    Holder ─► FreeList
//!   PerCpu ─ cell ─► TaskCell ─ head ─► Instance ─ next ─► Instance      ▲        │
//!                                          └──── holder ─────────────────┴────────┘
//! ```
//!
//! The pointers go both ways between a probe and its site, and between a holder and its instances.
//! So these files form the one circle of the crate; no folder is part of one.
//!
//! # Writers
//! | written by | fields |
//! |---|---|
//! | the registry, under its lock | sites, detours, holders, the links and stubs of probes |
//! | any context, atomically | the counters of misses, free lists, claims of task cells |
//! | its own CPU | `PerCpu`, the words of hit counters |
//! | any CPU, atomically | notes about preempted tasks |
//! | its own task | the head of its instance list, the instances on it |
//! | the user, before registration | the builder's fields of a probe |

pub mod action;
pub mod address_table;
pub mod counters;
pub(crate) mod detour;
pub(crate) mod dispatch;
pub mod entry_points;
pub(crate) mod free_list;
pub(crate) mod function;
pub mod instance;
pub(crate) mod interrupted;
pub mod jprobe;
pub mod kprobe;
pub mod kretprobe;
pub mod method;
pub mod no_grace;
pub mod per_cpu;
pub(crate) mod position;
pub mod probe;
pub mod site;
pub mod trap_ip;
pub mod watchpoint;
