//! The kernel: everything but the list of modules that are compiled in.
#![no_std]
#![deny(unsafe_op_in_unsafe_fn)]

extern crate alloc;

pub mod acpi;
pub mod arch;
pub mod backtrace;
pub mod cmdline;
pub mod console;
pub mod errno;
pub mod fs;
pub mod fw_cfg;
pub mod init;
pub mod initramfs;
pub mod log;
pub mod mm;
pub mod module;
pub mod panic;
pub mod probes;
pub mod serial;
pub mod shell;
pub mod symbols;
pub mod sync;
pub mod syscall;
pub mod task;
pub mod terminal;
pub mod test_runner;
pub mod time;
pub mod trace;
pub mod uprobes;

use arch::{apic, cpu, entry, gdt, idt, percpu, pit, start_up, syscall as syscall_entry};
use bootloader_api::BootInfo;
use mm::{frame, kernel_stack, paging, phys_map};
use probes::{PROBES, preempt_at_breakpoint};
use task::{idle, scheduler};

/// Brings the machine up, one part after the other. The loader jumps here on the CPU that boots,
/// interrupts off.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn kmain(info: &'static mut BootInfo) -> ! {
    let boot_stack = info.kernel_stack_bottom..info.kernel_stack_bottom + info.kernel_stack_len;
    percpu::init(0); // locks count on it
    console::init();
    initramfs::init(info);
    cmdline::init(initramfs::find(initramfs::archive(), "/cmdline"));
    log::set_console_level(cmdline::get("loglevel"));
    // SAFETY: the boot stacks are for this one call.
    unsafe { percpu::load_descriptor_tables(&gdt::InterruptStacks::of_boot_cpu()) };
    PROBES.init_table(); // the entry of breakpoints searches it
    idt::init(entry::stub); // from here on, faults are reported
    preempt_at_breakpoint::init(entry::stub);
    cpu::init(); // control registers
    syscall_entry::init();
    phys_map::init(info);
    frame::init(&info.memory_regions); // frame allocator
    paging::init(); // own root table; the heap works
    paging::unmap_devices(&info.memory_regions);
    entry::apply_processor_features();
    symbols::init(phys_map::kernel_file(info));
    backtrace::unwind::init();
    acpi::init(info);
    pit::mask_legacy_interrupts();
    time::init(); // from here on, log lines tell the time
    kernel_stack::note_boot_stacks([
        boot_stack.clone(),
        gdt::InterruptStacks::range_of_boot_cpu(),
    ]);
    scheduler::init_cpu(boot_stack); // this code becomes the idle task of this CPU
    apic::init(time::tick_ns(cmdline::get("tick_ms")));
    start_up::start_others(); // each begins with its idle task
    apic::start_timer();
    probes::init();
    pr_info!("memory: {} MiB free", frame::free_frames() * 4 / 1024);
    // Through a pointer, because the thread begins in init text: the code that starts threads may
    // not name that.
    task::spawn_kthread("kernel_init", init::finish_boot as fn())
        .expect("memory for the first task");
    console::start();
    idle::run()
}
