//! The kernel's requests to the boot loader.

use bootloader_api::{BootloaderConfig, config::Mapping};

/// The loader maps everything in the upper half, the whole physical memory included, because the
/// lower half is for users.
pub static CONFIG: BootloaderConfig = {
    let mut config = BootloaderConfig::new_default();
    config.mappings.physical_memory = Some(Mapping::Dynamic);
    config.mappings.dynamic_range_start = Some(0xffff_8000_0000_0000);
    config.mappings.dynamic_range_end = Some(0xffff_ff00_0000_0000);
    config
};
