//! The kernel that runs the guest tests.
#![no_std]
#![no_main]
use bootloader_api::{BootInfo, BootloaderConfig, config::Mapping};
use kernel::panic::{ExitCode, exit};
pub static CONFIG: BootloaderConfig = {
    let mut c = BootloaderConfig::new_default();
    c.mappings.physical_memory = Some(Mapping::Dynamic);
    c.mappings.dynamic_range_start = Some(0xffff_8000_0000_0000);
    c.mappings.dynamic_range_end = Some(0xffff_ff00_0000_0000);
    c
};
bootloader_api::entry_point!(kmain, config = &CONFIG);
fn kmain(_info: &'static mut BootInfo) -> ! {
    kernel::test_runner::register(guest_tests::run);
    kernel::log::init();
    kernel::cmdline::init(None);
    kernel::log::read_cmdline();
    match kernel::test_runner::requested() {
        Some(runner) => runner(),
        None => exit(ExitCode::Failure),
    }
}
