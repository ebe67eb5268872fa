//! The other CPUs: starting them, and reaching them later.
//!
//! One broadcast starts them all (see [`start_up`]). The CPU that boots waits for them by time, never by counting
//! loops: a busy host may run a virtual CPU late.
//!
//! # Invariants
//! C1. CPUs are numbered from 0, the one that booted, in the order in which they come up, without gaps.
//! C2. How many there are is final when [`start_others`] returns. One that comes later halts for good with interrupts
//!     off.
//!
//! # Contexts
//! Sending is possible in any context but NMI. What waits for other CPUs ([`flush_tlb_everywhere`]) is called with
//! interrupts on and no spinlock held: the other one may be waiting for ours.

use super::{
    apic, cpu, gdt,
    idt::{self, vector},
    percpu, start_up, syscall,
};
use crate::{
    acpi,
    mm::{
        frame,
        kernel_stack::{KernelStack, STACK_BYTES},
        paging,
    },
    pr_info, pr_warn,
    task::scheduler,
    time,
};
use core::{
    hint,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};
use percpu::MAX_CPUS;
use x86_64::instructions::{hlt, interrupts};

/// How long a CPU may take to come up.
const START_TIMEOUT_NS: u64 = 5 * time::NSEC_PER_SEC;
/// Between the reset of the others and their start (Intel SDM vol. 3A, 9.4.4).
const RESET_NS: u64 = 10 * time::NSEC_PER_MSEC;
/// Between the first start-up interrupt and the second.
const START_UP_NS: u64 = 200_000;

/// Set in [`NUMBERS`] when no further CPU is let in.
const CLOSED: usize = 1 << 31;

/// How many CPU numbers have been given out, and [`CLOSED`].
static NUMBERS: AtomicUsize = AtomicUsize::new(1);

/// How many CPUs are up. Written with Release after all that a CPU set up for itself.
static ONLINE: AtomicUsize = AtomicUsize::new(1);

/// How many CPUs run; they have the numbers from 0 to one less.
pub fn online_cpus() -> usize {
    ONLINE.load(Ordering::Acquire)
}

/// How many CPUs there may ever be: [`MAX_CPUS`] until it is known.
pub fn possible_cpus() -> usize {
    let numbers = NUMBERS.load(Ordering::Relaxed);
    if numbers & CLOSED != 0 {
        numbers & !CLOSED
    } else {
        MAX_CPUS
    }
}

/// The numbers of the CPUs that run, except the caller's. The caller keeps preemption off as long as that matters.
pub fn other_cpus() -> impl Iterator<Item = usize> {
    let this = percpu::cpu_id();
    (0..online_cpus()).filter(move |&cpu| cpu != this)
}

/// Starts all other CPUs that the firmware tells of, and returns when they are up. Call once, interrupts off.
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
    let let_in = NUMBERS.fetch_or(CLOSED, Ordering::Relaxed);
    // Those that have a number are running; wait until they are through.
    while online_cpus() < let_in {
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

/// Ends of the stacks on which the others start, which become their idle tasks'.
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
    unsafe { start_up::install(page, stacks, ap_main) }.map_err(|_| NO_MEMORY)
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
    while online_cpus() < wanted && time::ktime_get() < deadline {
        time::answer_cpus();
        hint::spin_loop();
    }
}

/// Where another CPU arrives from the start-up page, on its own stack, interrupts off.
extern "C" fn ap_main(ticket: usize) -> ! {
    let number = NUMBERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |given| {
        (given & CLOSED == 0).then_some(given + 1)
    });
    let Ok(number) = number else { halt() };
    percpu::init(number);
    paging::activate_kernel();
    let stack = || {
        KernelStack::new()
            .expect("memory for interrupt stacks")
            .leak()
    };
    // SAFETY: the stacks are new and leaked.
    unsafe {
        gdt::init(&gdt::InterruptStacks {
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
    ONLINE.fetch_add(1, Ordering::Release);
    apic::start_timer();
    scheduler::idle()
}

/// Stops this CPU for good.
fn halt() -> ! {
    loop {
        interrupts::disable();
        hlt();
    }
}

/// Sends interrupt `vector` to CPU `cpu`.
pub fn send_ipi(cpu: usize, vector: u8) {
    apic::send_interrupt(percpu::of(cpu).apic_id(), vector);
}

/// Sends interrupt `vector` to every CPU but this one. The caller keeps preemption off.
pub fn send_ipi_all_but_self(vector: u8) {
    other_cpus().for_each(|cpu| send_ipi(cpu, vector));
}

/// Sends an NMI to CPU `cpu`.
pub fn send_nmi(cpu: usize) {
    apic::send_nmi(percpu::of(cpu).apic_id());
}

/// How many flushes have been asked for; each CPU notes in [`FLUSHED`] how far it is.
static FLUSHES: AtomicU64 = AtomicU64::new(0);
static FLUSHED: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// Drops this CPU's translations and says so.
pub(super) fn flush_tlb_here() {
    // Acquire pairs with the Release of who asked: the page tables as that CPU left them.
    let asked = FLUSHES.load(Ordering::Acquire);
    x86_64::instructions::tlb::flush_all();
    FLUSHED[percpu::cpu_id()].fetch_max(asked, Ordering::Release);
}

/// Drops all translations on all CPUs, and returns when that is done. Task context, interrupts on, no spinlock held.
pub fn flush_tlb_everywhere() {
    debug_assert!(interrupts::are_enabled());
    percpu::preempt_disable();
    let mine = FLUSHES.fetch_add(1, Ordering::AcqRel) + 1;
    interrupts::without_interrupts(flush_tlb_here);
    send_ipi_all_but_self(vector::FLUSH_TLB);
    for cpu in other_cpus() {
        while FLUSHED[cpu].load(Ordering::Acquire) < mine {
            hint::spin_loop();
        }
    }
    percpu::preempt_enable();
}

/// One CPU has begun to end the kernel.
static STOPPING: AtomicBool = AtomicBool::new(false);
static STOPPED: AtomicUsize = AtomicUsize::new(0);

/// Stops all other CPUs for good, wherever they are, by NMI. If another CPU got here first, stops this one. Any
/// context. Returns when they have stopped, or after 100 ms without waiting for the rest.
pub fn stop_others() {
    interrupts::disable();
    if STOPPING.swap(true, Ordering::SeqCst) {
        stop_here();
    }
    other_cpus().for_each(send_nmi);
    let deadline = time::ktime_get() + 100 * time::NSEC_PER_MSEC;
    while STOPPED.load(Ordering::Relaxed) + 1 < online_cpus() && time::ktime_get() < deadline {
        hint::spin_loop();
    }
}

fn stop_here() -> ! {
    STOPPED.fetch_add(1, Ordering::Relaxed);
    halt()
}

/// Called first in the NMI handler: does not return if the kernel is being ended.
pub(super) fn stop_if_asked() {
    if STOPPING.load(Ordering::SeqCst) {
        stop_here();
    }
}
