//! The kernel with the benchmark compiled in as a module.
#![no_std]
#![no_main]

mod loader;

use bootloader_api::BootInfo;

bootloader_api::entry_point!(start, config = &loader::CONFIG);

#[unsafe(link_section = ".init.text")]
#[inline(never)]
fn start(info: &'static mut BootInfo) -> ! {
    // The benchmark itself is a module, which registers itself.
    guest_bench::note_entry();
    kernel::kmain(info)
}
