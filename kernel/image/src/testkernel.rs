//! The kernel with the samples and the guest tests, which it runs in place of the user program.
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
    kernel::test_runner::register(guest_tests::run);
    kernel::kmain(info)
}
