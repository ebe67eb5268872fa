//! The kernel with the benchmark compiled in as a module.
#![no_std]
#![no_main]

mod loader;

use bootloader_api::BootInfo;
// It registers itself.
use guest_bench as _;

bootloader_api::entry_point!(start, config = &loader::CONFIG);

#[unsafe(link_section = ".init.text")]
#[inline(never)]
fn start(info: &'static mut BootInfo) -> ! {
    kernel::kmain(info)
}
