//! The kernel under the probes: tasks, programs, memory, files, symbols, modules and its log.
//!
//! The probes are tested on a kernel that works. These tests say that it does, and some of them
//! run again while everything is probed ([`crate::load`]).

mod command_line;
mod devices;
mod heap;
mod kallsyms;
mod modules;
mod mutexes;
mod printk;
mod programs;
mod protection;
mod tasks;
mod user_memory;
mod virtual_files;
