//! The start of the other CPUs.
//!
//! One broadcast starts them all. The CPU that boots waits for them by time, never by counting
//! loops, because a busy host may run a virtual CPU late.
//!
//! # The start-up page
//! The other CPUs wake in real mode, in a page under 1 MiB to which the code below is copied. The
//! code runs at the start of the segment that the start-up interrupt names, so it finds its data by
//! offsets from its own start. [`install`] fills in the absolute addresses.
//!
//! ```text
//!   real mode, cs = page >> 4
//!     ──► cr4.PAE, cr3, EFER.LME|NXE, cr0.PG|PE at once ──► far jump ──► 64-bit code in the page
//!     ──► ticket by `lock xadd` ──► stack of that ticket ──► ap_main, in the kernel image
//! ```

use super::{
    apic, cpu,
    gdt::InterruptStacks,
    idt,
    percpu::{self, MAX_CPUS},
    smp, syscall,
};
use crate::{
    acpi,
    mm::{
        frame::{self, FRAME_SIZE, OutOfMemory},
        kernel_stack::{KernelStack, STACK_BYTES},
        paging,
        phys_map::phys_to_virt,
    },
    pr_info, pr_warn,
    task::{idle, scheduler},
    time,
};
use core::{
    arch::global_asm,
    hint, slice,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};
use x86_64::PhysAddr;

global_asm!(
    r#"
    .pushsection .rodata.start_up_page, "a", @progbits
    .balign 16
start_up_begin:
    .code16
    cli
    cld
    mov ax, cs
    mov ds, ax
    .byte 0x0f, 0x01, 0x16              # lgdt [16-bit offset]
    .word start_up_gdt_pointer - start_up_begin
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
start_up_long_mode_address:
    .long start_up_long_mode - start_up_begin
    .word 0x08
    .code64
start_up_long_mode:
    xor eax, eax
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov edi, 1
    mov rax, [rip + start_up_next_ticket]
    lock xadd [rax], edi
    cmp edi, [rip + start_up_tickets]
    jae 2f
    mov rax, [rip + start_up_stacks]
    mov rsp, [rax + rdi * 8]
    xor ebp, ebp
    push rbp
    mov rax, [rip + start_up_entry]
    jmp rax
2:  cli
    hlt
    jmp 2b

    .balign 8
start_up_gdt:
    .quad 0
    .quad 0x00af9b000000ffff            # 0x08: ring 0, 64-bit code
start_up_gdt_pointer:
    .word . - start_up_gdt - 1
start_up_gdt_address:
    .long start_up_gdt - start_up_begin
    .balign 8
start_up_next_ticket: .quad 0
start_up_entry: .quad 0
start_up_stacks: .quad 0
start_up_root: .long 0
start_up_tickets: .long 0
start_up_end:
    .popsection
    "#
);

unsafe extern "C" {
    static start_up_begin: u8;
    static start_up_long_mode_address: u8;
    static start_up_gdt_address: u8;
    static start_up_next_ticket: u8;
    static start_up_entry: u8;
    static start_up_stacks: u8;
    static start_up_root: u8;
    static start_up_tickets: u8;
    static start_up_end: u8;
}

/// The number of the stack that the next CPU takes. Not in the page, because a CPU executes that
/// and may not write it.
static NEXT_TICKET: AtomicU32 = AtomicU32::new(0);

/// Fills `page` with the start-up code. CPU after CPU takes the next of `stacks` (stack ends,
/// 16-aligned) and calls `entry` on it with its number in that list. The page tables are the
/// kernel's, with the page itself mapped too. CPUs beyond the list halt for good.
///
/// # Safety
/// 1. `page` is a frame below 1 MiB that nothing else uses, ever.
/// 2. Each of `stacks` is mapped and unused, for ever.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
unsafe fn install(
    page: PhysAddr,
    stacks: &'static [AtomicU64],
    entry: extern "C" fn(usize) -> !,
) -> Result<(), OutOfMemory> {
    let root = paging::kernel_root_with_identity_page(page)?;
    let begin = &raw const start_up_begin;
    let code_bytes = (&raw const start_up_end).addr() - begin.addr();
    // SAFETY: the symbols enclose the assembly above.
    let code = unsafe { slice::from_raw_parts(begin, code_bytes) };
    // SAFETY: the frame is ours (1) and mapped in the physical map.
    let copy: &mut [u8; FRAME_SIZE] = unsafe { &mut *phys_to_virt(page).as_mut_ptr() };
    copy[..code_bytes].copy_from_slice(code);
    let mut set = |field: *const u8, value: &[u8]| {
        let at = field.addr() - begin.addr();
        copy[at..at + value.len()].copy_from_slice(value);
    };
    let base = page.as_u64() as u32;
    for field in [
        &raw const start_up_long_mode_address,
        &raw const start_up_gdt_address,
    ] {
        // SAFETY: both are words of the assembly above, which hold offsets from its start.
        let offset = unsafe { field.cast::<u32>().read_unaligned() };
        set(field, &(base + offset).to_le_bytes());
    }
    set(
        &raw const start_up_next_ticket,
        &(NEXT_TICKET.as_ptr().addr() as u64).to_le_bytes(),
    );
    set(
        &raw const start_up_entry,
        &(entry as usize as u64).to_le_bytes(),
    );
    set(
        &raw const start_up_stacks,
        &(stacks.as_ptr().addr() as u64).to_le_bytes(),
    );
    set(
        &raw const start_up_root,
        &(root.as_u64() as u32).to_le_bytes(),
    );
    set(
        &raw const start_up_tickets,
        &(stacks.len() as u32).to_le_bytes(),
    );
    Ok(())
}

/// How long a CPU may take to come up.
const START_TIMEOUT_NS: u64 = 5 * time::NSEC_PER_SEC;
/// Between the reset of the others and their start (Intel SDM vol. 3A, 9.4.4).
const RESET_NS: u64 = 10 * time::NSEC_PER_MSEC;
/// Between the first start-up interrupt and the second.
const START_UP_NS: u64 = 200_000;

/// Starts all other CPUs that the firmware tells of, and returns when they are up. Call once,
/// interrupts off.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn start_others() {
    let present = acpi::cpu_count().unwrap_or(1);
    if present > MAX_CPUS {
        pr_warn!("smp: {present} CPUs, of which the kernel uses {MAX_CPUS}");
    }
    let wanted = present.min(MAX_CPUS);
    if wanted > 1 {
        match prepare(wanted - 1) {
            Ok(()) => start(wanted),
            Err(reason) => pr_warn!("smp: only one CPU is used: {reason}"),
        }
    }
    let let_in = smp::close();
    // CPUs that have a number are running; wait until they are up.
    while smp::online_cpus() < let_in {
        time::answer_cpus();
        hint::spin_loop();
    }
    if let_in < wanted {
        pr_warn!(
            "smp: {} of {wanted} CPUs did not start and are not used",
            wanted - let_in
        );
    }
    pr_info!("smp: {let_in} of {present} CPUs");
}

/// Ends of the stacks on which the others start. Their idle tasks keep them.
static STACKS: [AtomicU64; MAX_CPUS - 1] = [const { AtomicU64::new(0) }; MAX_CPUS - 1];

/// Installs the start-up page with a stack for each of `others` CPUs.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
fn prepare(others: usize) -> Result<(), &'static str> {
    const NO_MEMORY: &str = "out of memory for the others' stacks";
    let page =
        frame::start_up_page().ok_or("no usable page below 640 KiB to start the others in")?;
    let stacks = &STACKS[..others];
    for stack in stacks {
        let top = KernelStack::new().map_err(|_| NO_MEMORY)?.leak();
        stack.store(top.as_u64(), Ordering::Relaxed);
    }
    // SAFETY: the page is kept for this; the stacks are new and leaked.
    unsafe { install(page, stacks, ap_main) }.map_err(|_| NO_MEMORY)
}

#[unsafe(link_section = ".init.text")]
#[inline(never)]
fn start(wanted: usize) {
    let page = frame::start_up_page().expect("prepare has checked it");
    apic::send_init_to_others();
    time::delay_ns(RESET_NS);
    apic::send_start_up_to_others(page);
    time::delay_ns(START_UP_NS);
    apic::send_start_up_to_others(page);
    let deadline = time::ktime_get() + START_TIMEOUT_NS;
    while smp::online_cpus() < wanted && time::ktime_get() < deadline {
        time::answer_cpus();
        hint::spin_loop();
    }
}

/// The first Rust code of another CPU, called from the start-up page, on its own stack, interrupts
/// off.
extern "C" fn ap_main(ticket: usize) -> ! {
    let Some(number) = smp::take_number() else {
        smp::halt()
    };
    percpu::init(number);
    paging::activate_kernel();
    let stack = || {
        KernelStack::new()
            .expect("memory for interrupt stacks")
            .leak()
    };
    // SAFETY: the stacks are new and leaked.
    unsafe {
        percpu::load_descriptor_tables(&InterruptStacks {
            double_fault: stack(),
            nmi: stack(),
        })
    };
    idt::load();
    cpu::init();
    syscall::init();
    apic::init_cpu();
    time::synchronise_cpu();
    let stack_end = STACKS[ticket].load(Ordering::Relaxed);
    scheduler::init_cpu(stack_end - STACK_BYTES..stack_end);
    smp::count_online();
    apic::start_timer();
    idle::run()
}
