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
fn kmain(info: &'static mut BootInfo) -> ! {
    kernel::log::init();
    kernel::cmdline::init(None);
    kernel::log::read_cmdline();
    kernel::pr_info!(
        "hello at {:#x} phys {:?} image {:#x}+{:#x} off {:#x}",
        kmain as *const () as usize,
        info.physical_memory_offset,
        info.kernel_addr,
        info.kernel_len,
        info.kernel_image_offset
    );
    exit(ExitCode::Success)
}
