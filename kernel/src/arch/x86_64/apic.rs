//! The local APIC of each CPU: its timer, and interrupts from CPU to CPU.
//!
//! It is driven through its memory-mapped registers, which every processor of interest has (Intel
//! SDM vol. 3A, chapter 11). Firmware that left it in x2APIC mode is overruled. The registers of
//! all CPUs lie at one address, and each CPU sees its own there.
//!
//! Any context. Sending an interrupt takes two stores, so it is done with interrupts off. An NMI
//! handler must not send.

use super::{idt::vector, percpu};
use crate::{mm::paging, time};
use core::{
    hint,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};
use x86_64::{
    PhysAddr,
    instructions::interrupts::without_interrupts,
    registers::model_specific::{ApicBase, ApicBaseFlags},
};

/// Offsets of registers.
mod register {
    pub const ID: usize = 0x20;
    pub const TASK_PRIORITY: usize = 0x80;
    pub const END_OF_INTERRUPT: usize = 0xb0;
    pub const SPURIOUS_VECTOR: usize = 0xf0;
    pub const ERROR_STATUS: usize = 0x280;
    pub const COMMAND_LOW: usize = 0x300;
    pub const COMMAND_HIGH: usize = 0x310;
    pub const LVT_TIMER: usize = 0x320;
    pub const LVT_LINT0: usize = 0x350;
    pub const LVT_LINT1: usize = 0x360;
    pub const LVT_ERROR: usize = 0x370;
    pub const TIMER_INITIAL: usize = 0x380;
    pub const TIMER_CURRENT: usize = 0x390;
    pub const TIMER_DIVIDE: usize = 0x3e0;
}

const SOFTWARE_ENABLE: u32 = 1 << 8;
const MASKED: u32 = 1 << 16;
const PERIODIC: u32 = 1 << 17;
const DIVIDE_BY_16: u32 = 0b0011;
const DELIVERY_NMI: u32 = 0b100 << 8;
const DELIVERY_INIT: u32 = 0b101 << 8;
const DELIVERY_START_UP: u32 = 0b110 << 8;
const DELIVERY_PENDING: u32 = 1 << 12;
const LEVEL_ASSERT: u32 = 1 << 14;
const ALL_BUT_SELF: u32 = 0b11 << 18;

/// Where the registers are mapped; 0 before [`init`].
static REGISTERS: AtomicU64 = AtomicU64::new(0);

/// Timer ticks per scheduler tick, after division.
static TIMER_COUNT: AtomicU32 = AtomicU32::new(0);
/// Time between two ticks of the scheduler, in nanoseconds.
static TICK_NS: AtomicU64 = AtomicU64::new(0);

fn address(offset: usize) -> *mut u32 {
    (REGISTERS.load(Ordering::Relaxed) as usize + offset) as *mut u32
}

#[inline(always)]
fn read(offset: usize) -> u32 {
    // SAFETY: `init` mapped the registers for ever. Reading those of `register` has no effect on
    // memory.
    unsafe { address(offset).read_volatile() }
}

#[inline(always)]
fn write(offset: usize, value: u32) {
    // SAFETY: as in `read`. The values that the functions below write make the APIC access no
    // memory.
    unsafe { address(offset).write_volatile(value) }
}

/// Maps the registers and measures the timer, for ticks of `tick_ns` nanoseconds. Takes about 10
/// ms. Call once, on the CPU that boots, after [`time::init`].
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn init(tick_ns: u64) {
    let (frame, _) = ApicBase::read();
    let registers =
        paging::map_device(frame.start_address()).expect("memory to map the local APIC");
    REGISTERS.store(registers.as_u64(), Ordering::Relaxed);
    init_cpu();
    write(register::TIMER_DIVIDE, DIVIDE_BY_16);
    write(register::LVT_TIMER, MASKED);
    write(register::TIMER_INITIAL, u32::MAX);
    let current = || read(register::TIMER_CURRENT);
    let (start_tsc, start) = time::read_with_tsc(current);
    time::delay_ns(10 * time::NSEC_PER_MSEC);
    let (end_tsc, end) = time::read_with_tsc(current);
    let ticks = u64::from(start - end);
    let ns = time::ticks_to_ns(end_tsc - start_tsc);
    write(register::TIMER_INITIAL, 0);
    TICK_NS.store(tick_ns, Ordering::Relaxed);
    let count = ticks * tick_ns / ns;
    assert!(count > 0, "the timer of the local APIC stands still");
    TIMER_COUNT.store(count as u32, Ordering::Relaxed);
}

/// Switches the local APIC of the calling CPU on, with its timer stopped. Once per CPU.
pub fn init_cpu() {
    const X2APIC: u64 = 1 << 10;
    let (frame, raw) = ApicBase::read_raw();
    let flags = raw & !X2APIC & !ApicBaseFlags::LAPIC_ENABLE.bits();
    // SAFETY: this leaves the registers where they are. The way from x2APIC mode back leads through
    // "disabled" (Intel SDM vol. 3A, 11.12.5).
    unsafe {
        if raw & X2APIC != 0 {
            ApicBase::write_raw(frame, flags);
        }
        ApicBase::write_raw(frame, flags | ApicBaseFlags::LAPIC_ENABLE.bits());
    }
    write(register::TASK_PRIORITY, 0);
    write(register::LVT_TIMER, MASKED);
    write(register::LVT_LINT0, MASKED);
    // Where the board's NMI button is wired.
    write(register::LVT_LINT1, DELIVERY_NMI);
    write(register::LVT_ERROR, u32::from(vector::APIC_ERROR));
    write(
        register::SPURIOUS_VECTOR,
        SOFTWARE_ENABLE | u32::from(vector::SPURIOUS),
    );
    write(register::ERROR_STATUS, 0);
    end_of_interrupt();
    percpu::this().set_apic_id(read(register::ID) >> 24);
}

/// Starts the periodic timer of the calling CPU.
pub fn start_timer() {
    write(register::TIMER_DIVIDE, DIVIDE_BY_16);
    write(register::LVT_TIMER, PERIODIC | u32::from(vector::TIMER));
    write(register::TIMER_INITIAL, TIMER_COUNT.load(Ordering::Relaxed));
}

/// Time between two interrupts of the periodic timer.
pub fn tick_ns() -> u64 {
    TICK_NS.load(Ordering::Relaxed)
}

/// Stops the periodic timer of the calling CPU. With `ns`, its interrupt comes once, after that
/// time, or earlier if the timer cannot count that far.
pub fn set_alarm(ns: Option<u64>) {
    write(register::LVT_TIMER, u32::from(vector::TIMER));
    let count = ns.map_or(0, |ns| {
        let count = u128::from(ns) * u128::from(TIMER_COUNT.load(Ordering::Relaxed));
        let count = count / u128::from(tick_ns());
        u32::try_from(count).unwrap_or(u32::MAX).max(1)
    });
    write(register::TIMER_INITIAL, count);
}

/// Tells the local APIC that the handler is done.
pub fn end_of_interrupt() {
    write(register::END_OF_INTERRUPT, 0);
}

/// Reads and clears the error status.
pub fn take_error() -> u32 {
    write(register::ERROR_STATUS, 0);
    read(register::ERROR_STATUS)
}

// Each sender has its own copy, because that of hits may not be probed.
#[inline(always)]
fn command(apic_id: u32, low: u32) {
    without_interrupts(|| {
        while read(register::COMMAND_LOW) & DELIVERY_PENDING != 0 {
            hint::spin_loop();
        }
        write(register::COMMAND_HIGH, apic_id << 24);
        write(register::COMMAND_LOW, low);
    });
}

/// Sends interrupt `vector` to the CPU whose local APIC has number `apic_id`.
pub fn send_interrupt(apic_id: u32, vector: u8) {
    command(apic_id, LEVEL_ASSERT | u32::from(vector));
}

/// The same from any context: also in an NMI, and between any two instructions of [`command`],
/// which finds the registers as it left them.
#[inline(never)]
pub fn send_interrupt_from_hit(apic_id: u32, vector: u8) {
    let interrupted = read(register::COMMAND_HIGH);
    command(apic_id, LEVEL_ASSERT | u32::from(vector));
    // The other half takes effect when the low register is written.
    while read(register::COMMAND_LOW) & DELIVERY_PENDING != 0 {
        hint::spin_loop();
    }
    write(register::COMMAND_HIGH, interrupted);
}

/// Sends an NMI to the CPU whose local APIC has number `apic_id`.
pub fn send_nmi(apic_id: u32) {
    command(apic_id, LEVEL_ASSERT | DELIVERY_NMI);
}

/// Resets every other CPU.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn send_init_to_others() {
    command(0, ALL_BUT_SELF | LEVEL_ASSERT | DELIVERY_INIT);
}

/// Starts every other CPU that was reset, in real mode at `page`, an address below 1 MiB.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn send_start_up_to_others(page: PhysAddr) {
    let number = u32::try_from(page.as_u64() >> 12).expect("a page below 1 MiB");
    command(0, ALL_BUT_SELF | LEVEL_ASSERT | DELIVERY_START_UP | number);
}
