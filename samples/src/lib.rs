//! The samples. Each module is one probe in its simplest complete form and uses only the kernel's
//! public API.
//!
//! They are modules like any other: compiled in, loaded and unloaded at run time, with parameters
//! as in `insmod kprobe_example symbol=do_exit`.
#![deny(unsafe_code)]
#![no_std]

extern crate alloc;

pub mod crash;
pub mod data_breakpoint;
pub mod jprobe_example;
pub mod kprobe_example;
pub mod kretprobe_example;
pub mod sys_mkdir_return;
pub mod uprobe_example;
pub mod write_sizes;
pub mod write_stats;
