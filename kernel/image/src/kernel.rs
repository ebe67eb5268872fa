#![no_std]
#![no_main]
use bootloader_api::{BootInfo, BootloaderConfig, config::Mapping};
use core::fmt::Write;
pub static CONFIG: BootloaderConfig = {
    let mut c = BootloaderConfig::new_default();
    c.mappings.physical_memory = Some(Mapping::Dynamic);
    c.mappings.dynamic_range_start = Some(0xffff_8000_0000_0000);
    c.mappings.dynamic_range_end = Some(0xffff_ff00_0000_0000);
    c
};
bootloader_api::entry_point!(kmain, config = &CONFIG);
fn kmain(info: &'static mut BootInfo) -> ! {
    let mut u = unsafe { uart_16550::Uart16550Tty::new_port(0x3f8, uart_16550::Config::default()) }
        .unwrap();
    let _ = writeln!(
        u,
        "hello at {:#x} phys {:?} image {:#x}+{:#x} off {:#x}",
        kmain as *const () as usize,
        info.physical_memory_offset,
        info.kernel_addr,
        info.kernel_len,
        info.kernel_image_offset
    );
    unsafe { x86_64::instructions::port::Port::<u32>::new(0xf4).write(0x10) };
    loop {}
}
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
