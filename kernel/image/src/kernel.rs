//! The kernel with the samples compiled in as modules.
#![no_std]
#![no_main]

mod loader;

use bootloader_api::BootInfo;
// Its modules register themselves.
use samples as _;

bootloader_api::entry_point!(start, config = &loader::CONFIG);

#[unsafe(link_section = ".init.text")]
#[inline(never)]
fn start(info: &'static mut BootInfo) -> ! {
    kernel::kmain(info)
}
