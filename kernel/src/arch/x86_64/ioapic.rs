//! The I/O APIC: it turns the lines of devices into interrupts of a CPU. Firmware leaves all of its
//! lines masked, and the kernel opens those that it wants.
//!
//! Its registers are reached through a window: the number of a register goes into one word, its
//! value from or to another (82093AA data sheet, 3.0).
//!
//! Task context.

use super::{idt::vector, percpu};
use crate::{
    acpi::{self, DeviceLine},
    mm::paging,
    sync::SpinLock,
};
use x86_64::VirtAddr;

/// First register of the redirection table: two for each pin.
const REDIRECTION: u32 = 0x10;
const ACTIVE_LOW: u32 = 1 << 13;
const LEVEL: u32 = 1 << 15;

/// The two words at the beginning of the registers.
struct Window {
    select: *mut u32,
    data: *mut u32,
}

impl Window {
    /// # Safety
    /// 1. The registers of an I/O APIC are mapped at `registers`, for ever, and no other code uses
    ///    them meanwhile.
    unsafe fn new(registers: VirtAddr) -> Self {
        Self {
            select: registers.as_mut_ptr(),
            data: (registers + 0x10).as_mut_ptr(),
        }
    }

    fn write(&self, register: u32, value: u32) {
        // SAFETY: by the promise to `new`; the registers have no effect on memory.
        unsafe {
            self.select.write_volatile(register);
            self.data.write_volatile(value);
        }
    }
}

/// Routes the ISA bus's line `line` to the CPU that booted, with the vector [`vector::SERIAL`]. The
/// error says why it cannot.
pub fn route(line: u8) -> Result<(), &'static str> {
    static ONE_AT_A_TIME: SpinLock<()> = SpinLock::new(());
    let DeviceLine {
        controller,
        pin,
        active_low,
        level,
    } = acpi::device_line(line).ok_or("the firmware tells of no I/O APIC")?;
    let registers = paging::map_device(controller).map_err(|_| "no memory for the I/O APIC")?;
    let _turn = ONE_AT_A_TIME.lock();
    // SAFETY: just mapped, for good, and only this function uses such registers, once at a time.
    let window = unsafe { Window::new(registers) };
    let entry = REDIRECTION + 2 * pin;
    window.write(entry + 1, percpu::of(0).apic_id() << 24);
    let mut low = u32::from(vector::SERIAL);
    low |= if active_low { ACTIVE_LOW } else { 0 };
    low |= if level { LEVEL } else { 0 };
    window.write(entry, low);
    Ok(())
}
