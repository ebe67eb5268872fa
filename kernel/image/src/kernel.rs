#![no_std]
#![no_main]
use bootloader_api::{BootInfo, BootloaderConfig, config::Mapping};
pub static CONFIG: BootloaderConfig = {
    let mut c = BootloaderConfig::new_default();
    c.mappings.physical_memory = Some(Mapping::Dynamic);
    c.mappings.dynamic_range_start = Some(0xffff_8000_0000_0000);
    c.mappings.dynamic_range_end = Some(0xffff_ff00_0000_0000);
    c
};
bootloader_api::entry_point!(start, config = &CONFIG);
fn start(info: &'static mut BootInfo) -> ! {
    kernel::kmain(info)
}
