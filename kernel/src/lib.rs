//! The kernel: everything but the list of modules that are compiled in.
#![no_std]
#![deny(unsafe_op_in_unsafe_fn)]

extern crate alloc;

pub mod cmdline;
pub mod errno;
pub mod fw_cfg;
pub mod initramfs;
pub mod log;
pub mod module;
pub mod panic;
pub mod probes;
pub mod serial;
pub mod test_runner;
