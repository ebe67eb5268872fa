//! The local APIC of each CPU, the start of the other CPUs, and work that each CPU has to do.
//!
//! The registers are used through the boot loader's map of physical memory, which has the first
//! four GiB. The other CPUs wake in real mode and go from there to long mode at once, in a page
//! below 1 MiB to which the code below is copied. They start one after the other.
//!
//! # Invariants
//! OTHERS-1. A CPU is counted in [`online`] before it can hit a probe, and then answers interrupts.
//! OTHERS-2. The lock [`ONE`] is held while a CPU starts and while each CPU is asked for something,
//!     so all whom a question reaches are waited for.
//!
//! # Contexts
//! [`on_each_cpu`], [`start_others`]: tasks with interrupts on. An interrupt that its CPU takes is
//! the answer, so the CPU that waits answers, too, and may run other tasks meanwhile.

use core::{
    arch::global_asm,
    hint, ptr,
    sync::atomic::{
        AtomicUsize,
        Ordering::{Acquire, Release},
    },
};

use probes::every_cpu::Calls;
use x86_64::{
    instructions::{interrupts::without_interrupts, port::Port},
    structures::paging::PageTableFlags as Flags,
};

use crate::{
    cpu, frame, fw_cfg, memory,
    tasks::{self, Mutex},
};

const END_OF_INTERRUPT: u64 = 0xb0;
const SPURIOUS: u64 = 0xf0;
const COMMAND_LOW: u64 = 0x300;
const COMMAND_HIGH: u64 = 0x310;
const TIMER: u64 = 0x320;
const TIMER_INITIAL: u64 = 0x380;
const TIMER_DIVIDE: u64 = 0x3e0;

const NMI: u32 = 0x4400;
const INIT: u32 = 0x4500;
const START_UP: u32 = 0x4600;
const FIXED: u32 = 0x4000;
const ALL: u32 = 0b10 << 18;
const OTHERS: u32 = 0b11 << 18;
const DELIVERY_PENDING: u32 = 1 << 12;

fn register(offset: u64) -> *mut u32 {
    (memory::APIC + offset) as *mut u32
}

fn write(offset: u64, value: u32) {
    // SAFETY: a register of the local APIC. What is written has the APIC change no memory.
    unsafe { register(offset).write_volatile(value) }
}

fn command(apic: u32, low: u32) {
    without_interrupts(|| {
        // SAFETY: a register of the local APIC, which reading does not change.
        while unsafe { register(COMMAND_LOW).read_volatile() } & DELIVERY_PENDING != 0 {
            hint::spin_loop();
        }
        write(COMMAND_HIGH, apic << 24);
        write(COMMAND_LOW, low);
    });
}

const PERIODIC: u32 = 1 << 17;
const DIVIDE_BY_16: u32 = 0b0011;
/// A millisecond where the bus runs at 1 GHz, as in QEMU.
const TICK: u32 = 62_500;

/// Switches the calling CPU's local APIC on, and its tick. Interrupts off.
pub fn init_cpu() {
    // The interrupt controller of old sends no more.
    for port in [0x21, 0xa1] {
        // SAFETY: its mask.
        unsafe { Port::new(port).write(0xff_u8) };
    }
    write(SPURIOUS, 0x100 | u32::from(frame::SPURIOUS));
    write(TIMER_DIVIDE, DIVIDE_BY_16);
    write(TIMER, PERIODIC | u32::from(frame::TICK));
    write(TIMER_INITIAL, TICK);
}

/// Tells the local APIC that the handler of an interrupt is done.
pub fn end_of_interrupt() {
    write(END_OF_INTERRUPT, 0);
}

/// Sends the interrupt `vector` to CPU number `cpu`.
pub fn send(cpu: usize, vector: u8) {
    command(cpu as u32, FIXED | u32::from(vector));
}

/// Sends an NMI to CPU number `cpu`.
pub fn send_nmi(cpu: usize) {
    command(cpu as u32, NMI);
}

/// Sends an NMI to all other CPUs. One that has not started ignores it.
pub fn send_nmi_to_others() {
    command(0, OTHERS | NMI);
}

static ONLINE: AtomicUsize = AtomicUsize::new(1);
/// See OTHERS-2.
static ONE: Mutex<()> = Mutex::new(());

/// How many CPUs run. They have the numbers from 0 to one less.
pub fn online() -> usize {
    ONLINE.load(Acquire)
}

static CALLS: Calls = Calls::new();

/// Has each CPU that runs do `work` in an interrupt, this one too, and returns when all have.
pub fn on_each_cpu(work: &(dyn Fn() + Sync)) {
    let _one = ONE.lock();
    CALLS.call(work, || {
        command(0, ALL | FIXED | u32::from(frame::CALL));
        online()
    });
}

/// The interrupt that [`on_each_cpu`] sends.
pub fn on_call() {
    CALLS.answer();
}

global_asm!(
    r#"
    .pushsection .rodata.start_up, "a", @progbits
    .balign 16
start_up_begin:
    .code16
    cli
    cld
    mov ax, cs
    mov ds, ax
    .byte 0x0f, 0x01, 0x16              # lgdt [16-bit offset]
    .word start_up_table - start_up_begin
    mov eax, 0x20                       # CR4: PAE
    mov cr4, eax
    .byte 0x66, 0xa1                    # mov eax, [16-bit offset]
    .word start_up_root - start_up_begin
    mov cr3, eax
    mov ecx, 0xc0000080                 # EFER: LME, NXE
    mov eax, 0x900
    xor edx, edx
    wrmsr
    mov eax, 0x80010011                 # CR0: PG, WP, ET, PE
    mov cr0, eax
    .byte 0x66, 0xea                    # far jump, 32-bit offset
    .long {page} + start_up_long_mode - start_up_begin
    .word 0x08
    .code64
start_up_long_mode:
    xor eax, eax
    mov ss, eax
    mov rsp, [rip + start_up_stack]
    mov rdi, [rip + start_up_number]
    push rax
    jmp [rip + start_up_entry]

    .balign 8
start_up_descriptors:
    .quad 0
    .quad 0x00af9b000000ffff            # 0x08: ring 0, 64-bit code
start_up_table:
    .word . - start_up_descriptors - 1
    .long {page} + start_up_descriptors - start_up_begin
    .balign 8
start_up_root: .quad 0
start_up_stack: .quad 0
start_up_number: .quad 0
start_up_entry: .quad 0
start_up_end:
    .popsection
    "#,
    page = const START_PAGE,
);

/// Where CPUs start: a page below 1 MiB that the firmware and the boot loader leave alone.
const START_PAGE: u64 = 0x1000;

unsafe extern "C" {
    static start_up_begin: u8;
    static start_up_root: u8;
    static start_up_end: u8;
}

/// Starts the other CPUs, each of which begins with `entry`, its number, and interrupts off.
/// Returns when they have said [`is_up`]. Once.
pub fn start_others(entry: extern "C" fn(usize) -> !) {
    memory::map(START_PAGE, Some(START_PAGE), Flags::empty());
    let begin = &raw const start_up_begin;
    let page = memory::physical(START_PAGE);
    let bytes = (&raw const start_up_end).addr() - begin.addr();
    // SAFETY: the code lies there, and nothing else uses the page.
    unsafe { ptr::copy_nonoverlapping(begin, page, bytes) };
    let data = (&raw const start_up_root).addr() - begin.addr();
    for number in 1..fw_cfg::cpus().min(cpu::MAX_CPUS) {
        let _one = ONE.lock();
        let stack = tasks::idle_stack(number);
        let words = [memory::root(), stack, number as u64, entry as usize as u64];
        // SAFETY: the words at the end of the code. The page is mapped for writing here.
        unsafe { page.add(data).cast::<[u64; 4]>().write_volatile(words) };
        // The numbers of local APICs are those of the CPUs in QEMU.
        command(number as u32, INIT);
        command(number as u32, START_UP | (START_PAGE >> 12) as u32);
        while online() <= number {
            hint::spin_loop();
        }
    }
}

/// The calling CPU is up.
pub fn is_up() {
    ONLINE.fetch_add(1, Release);
}
