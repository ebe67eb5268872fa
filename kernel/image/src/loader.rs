//! What the kernel asks of the boot loader.

use bootloader_api::{BootloaderConfig, config::Mapping};

/// All that the loader maps, the whole physical memory included, lies in the upper half: the lower one is for users.
pub static CONFIG: BootloaderConfig = {
    let mut config = BootloaderConfig::new_default();
    config.mappings.physical_memory = Some(Mapping::Dynamic);
    config.mappings.dynamic_range_start = Some(0xffff_8000_0000_0000);
    config.mappings.dynamic_range_end = Some(0xffff_ff00_0000_0000);
    config
};
