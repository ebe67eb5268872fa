//! What the kernel runs: its checks, or what the command line names instead.
//!
//! ```text
//!   checks    what is checked here
//!   figures   what a hit costs here
//!   traced    something to trace
//! ```
#![no_std]
#![no_main]

extern crate alloc;

mod checks;
mod figures;
mod traced;

use bootloader_api::BootInfo;
use second_kernel::{CONFIG, exit, fw_cfg, memory::KernelHeap};

#[global_allocator]
static HEAP: KernelHeap = KernelHeap;

bootloader_api::entry_point!(start, config = &CONFIG);

fn start(info: &'static mut BootInfo) -> ! {
    second_kernel::start(info, main)
}

/// The first task.
fn main() {
    match &*fw_cfg::command_line() {
        "figures" => figures::run(),
        line if line.starts_with("traced") => traced::run(line),
        _ => checks::run(),
    }
    exit(true)
}
