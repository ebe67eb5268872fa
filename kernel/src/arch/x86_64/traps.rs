//! The handlers that the entry stubs call for exceptions and interrupts.
//!
//! ```text
//!   exception of ring 0 ─► the probes ─► a fix-up of the kernel ─► a hook of the tests ─► the end
//!   exception of ring 3 ─► memory that is brought in, or a signal that ends the task
//!   interrupt ─► handle_irq ─► acknowledged ─► perhaps another task
//!   NMI ─► on top of no other NMI; the rest of a hit is put aside meanwhile
//! ```
//!
//! What runs before the probes are asked must not be probed: a hit there would need itself. These
//! are the functions whose names begin with `enter_`, and `do_breakpoint` and `do_debug`. The
//! functions that they leave the rest to (`do_exception`, `do_page_fault`, `do_nmi`) may be probed
//! from their first instruction.
//!
//! # Contexts
//! All functions here run with interrupts off on entry. An exception of user code is handled as
//! task context, with interrupts on: it may sleep and it may kill the task. A switch to another
//! task comes last in an interrupt, when no lock is held.

use super::{
    PtRegs, apic,
    gdt::{USER_CS, USER_DS},
    idt::{exception_name, vector},
    percpu, smp,
};
use crate::{
    console::{self, Interruption},
    mm::{
        fault::{self, PageFault},
        kernel_stack,
        paging::USER_END,
    },
    panic, pr_err, pr_warn,
    probes::{PROBES, hooks, preempt_at_breakpoint, watched_objects},
    task::{self, exit::exit_if_requested, scheduler, sleepers},
    terminal, test_runner, trace,
    uprobes::{self, space::ProbedPlace},
};
use core::{
    arch::asm,
    fmt,
    marker::PhantomData,
    mem, ptr,
    sync::atomic::{AtomicPtr, Ordering},
};
use x86_64::{
    instructions::interrupts,
    registers::{control::Cr2, debug::Dr6, rflags::RFlags},
};

/// #BP that `kprobe_breakpoint` has not served: it is the gate's target, and found no probe at the
/// address. The probes are asked once more, for breakpoints of theirs that are no probe's (see
/// [`crate::probes`]). One of ring 3 goes to [`user_breakpoint`].
pub(super) extern "C" fn do_breakpoint(regs: &mut PtRegs) {
    if !PROBES.on_breakpoint(regs) {
        unclaimed(regs, vector::BREAKPOINT);
    }
}

/// #BP of ring 3: a user probe's, or the program's own. True: `iretq` may restore `regs` as they
/// are.
// Not inlined, because the hit path of the kernel's probes ends here.
#[inline(never)]
pub(super) extern "C" fn user_breakpoint(regs: &mut PtRegs) -> bool {
    let served = uprobes::hit::on_breakpoint(regs);
    after_user_breakpoint(regs, served)
}

/// The same where the running program has no place with a probe.
#[inline(never)]
pub(super) extern "C" fn other_user_breakpoint(regs: &mut PtRegs) -> bool {
    let served = uprobes::hit::on_other_breakpoint(regs);
    after_user_breakpoint(regs, served)
}

/// The same at a place of the running program.
#[inline(never)]
pub(super) extern "C" fn user_place(regs: &mut PtRegs, place: &ProbedPlace) -> bool {
    uprobes::hit::on_place(regs, place);
    after_user_breakpoint(regs, true)
}

/// Whether the task goes straight back to ring 3.
#[inline(always)]
fn after_user_breakpoint(regs: &mut PtRegs, served: bool) -> bool {
    if !served {
        unclaimed(regs, vector::BREAKPOINT);
        return false;
    }
    let is_more_to_do = percpu::this().need_resched()
        || task::running().is_none_or(task::Task::is_interrupted)
        || regs.ip >= USER_END;
    // A handler may have changed them.
    make_user(regs);
    !is_more_to_do
}

/// Gives `regs` the selectors of ring 3, and the flags that it may have.
#[inline(always)]
fn make_user(regs: &mut PtRegs) {
    regs.flags = regs.flags & USER_FLAGS.bits() | OWN_FLAGS;
    regs.cs = USER_CS.into();
    regs.ss = USER_DS.into();
}

/// #DB that only debug registers have caused, in the order of the bits of `status`. True: it was
/// the probes'. The probes come first, so this may not be probed itself.
pub(super) extern "C" fn enter_match(regs: &mut PtRegs, status: u64) -> bool {
    hooks::on_match(regs, status)
}

/// #DB while a write to a watched object is under way. True: it was the end of that, and nothing
/// else. The probes come first, so this may not be probed itself.
pub(super) extern "C" fn enter_object_step(regs: &mut PtRegs, status: u64) -> bool {
    hooks::on_object_step(regs, status)
}

/// #DB.
pub(super) extern "C" fn do_debug(regs: &mut PtRegs) {
    let is_ours = match regs.user_mode() {
        true => hooks::on_user_debug(regs),
        false => hooks::on_debug(regs),
    };
    if is_ours {
        return;
    }
    // A watchpoint may have matched in a displaced instruction.
    PROBES.aside(|| unclaimed(regs, vector::DEBUG));
}

/// Every other exception that has no function of its own. The probes come first, so this may not be
/// probed itself.
pub(super) extern "C" fn enter_exception(regs: &mut PtRegs, vector: u64) {
    let vector = vector as u8;
    if !regs.user_mode() {
        watched_objects::on_other_fault(regs);
        if hooks::on_fault(regs, vector) {
            return;
        }
    }
    do_exception(regs, vector);
}

/// An exception that the probes have left to the kernel, at the address where it happened.
#[inline(never)]
extern "C" fn do_exception(regs: &mut PtRegs, vector: u8) {
    if !regs.user_mode() && fault::fix_up(regs) {
        return;
    }
    unclaimed(regs, vector);
}

/// #PF, before any probe can be hit. `address` is the value of CR2. `error_code` is as in Intel SDM
/// vol. 3A, figure 4-12.
pub(super) extern "C" fn enter_page_fault(regs: &mut PtRegs, error_code: u64, address: u64) {
    if !regs.user_mode() {
        watched_objects::on_other_fault(regs);
        let is_ours = uprobes::hit::is_reading()
            && uprobes::hit::bring_in_for_action(error_code, address)
            || hooks::on_fault(regs, vector::PAGE_FAULT);
        if is_ours {
            return;
        }
    }
    do_page_fault(regs, error_code, address);
}

/// #PF that the probes have left to the kernel, at the address where it happened. It can be probed,
/// from its first instruction on.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn do_page_fault(regs: &mut PtRegs, error_code: u64, address: u64) {
    let exception = Exception {
        vector: vector::PAGE_FAULT,
        error_code,
        address,
    };
    match fault::page_fault(regs, error_code, address) {
        PageFault::Resolved => return,
        PageFault::Program(error) => {
            interrupts::enable();
            if !is_taken_from_program(regs, &exception) {
                fault::kill_for_page_fault(regs, error_code, address, error);
            }
            interrupts::disable();
            return;
        }
        PageFault::Kernel => {}
    }
    if is_taken(regs, &exception) {
        return;
    }
    let verb = match (error_code & 0x10 != 0, error_code & 2 != 0) {
        (true, _) => "execute",
        (_, true) => "write",
        _ => "read",
    };
    die(regs, format_args!("page fault: cannot {verb} {address:#x}"))
}

/// An unexpected exception: it ends the user task that raised it, or the kernel. Not inlined,
/// because the hit path of the probes ends here.
#[cold]
#[inline(never)]
fn unclaimed(regs: &mut PtRegs, vector: u8) {
    let exception = Exception {
        vector,
        error_code: regs.orig_ax,
        address: 0,
    };
    if regs.user_mode() {
        interrupts::enable();
        if !is_taken_from_program(regs, &exception) {
            fault::user_exception(regs, vector);
        }
        return;
    }
    if is_taken(regs, &exception) {
        return;
    }
    die(regs, format_args!("{}", exception_name(vector)))
}

/// A function pointer of type `F` that tests may set and take back at any time. Any context.
struct Hook<F>(AtomicPtr<()>, PhantomData<F>);

impl<F: Copy> Hook<F> {
    const IS_POINTER: () = assert!(size_of::<F>() == size_of::<*mut ()>());

    const fn new() -> Self {
        let () = Self::IS_POINTER;
        Self(AtomicPtr::new(ptr::null_mut()), PhantomData)
    }

    fn set(&self, function: Option<F>) {
        // SAFETY: `F` is of this size, and a function pointer, whose bits make a pointer.
        let bits = |function: F| unsafe { mem::transmute_copy::<F, *mut ()>(&function) };
        // Release pairs with the Acquire in `get`.
        self.0
            .store(function.map_or(ptr::null_mut(), bits), Ordering::Release);
    }

    fn get(&self) -> Option<F> {
        let bits = self.0.load(Ordering::Acquire);
        // SAFETY: `set`, the only writer, stored a value of this type, or null.
        (!bits.is_null()).then(|| unsafe { mem::transmute_copy::<*mut (), F>(&bits) })
    }
}

/// An exception that the kernel or a program would end by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exception {
    /// Its vector (Intel SDM vol. 3A, table 6-1).
    pub vector: u8,
    /// The error code, all ones if the exception has none.
    pub error_code: u64,
    /// The value of CR2 at a page fault; else 0.
    pub address: u64,
}

/// A function that may keep an exception from ending the kernel: it sets where to resume.
/// Interrupts are off, and the stack is that of the code that raised the exception.
pub type ExceptionHandler = fn(&mut PtRegs, &Exception) -> bool;

static EXCEPTION_HANDLER: Hook<ExceptionHandler> = Hook::new();

/// Sets a handler that is asked before an exception of ring 0 ends the kernel; `None` takes it
/// back. Neither probes nor fix-ups have taken such an exception. If the handler returns true,
/// `regs` say where to go on.
pub fn set_exception_handler(handler: Option<ExceptionHandler>) {
    EXCEPTION_HANDLER.set(handler);
}

static PROGRAM_EXCEPTION_HANDLER: Hook<ExceptionHandler> = Hook::new();

/// Sets a handler that is asked before an exception ends a program; `None` takes it back. It is
/// asked with interrupts on, as a system call is served, and says by `regs` where the program goes
/// on, if it returns true.
pub fn set_program_exception_handler(handler: Option<ExceptionHandler>) {
    PROGRAM_EXCEPTION_HANDLER.set(handler);
}

fn is_taken_from_program(regs: &mut PtRegs, exception: &Exception) -> bool {
    let handler = PROGRAM_EXCEPTION_HANDLER.get();
    handler.is_some_and(|handler| handler(regs, exception))
}

fn is_taken(regs: &mut PtRegs, exception: &Exception) -> bool {
    let is_taken = EXCEPTION_HANDLER
        .get()
        .is_some_and(|handler| handler(regs, exception));
    if is_taken {
        regs.ip = PROBES.executable_ip(regs.ip);
    }
    is_taken
}

/// Ends the kernel because of an exception at `regs`.
#[cold]
#[inline(never)]
fn die(regs: &PtRegs, cause: fmt::Arguments<'_>) -> ! {
    let task = task::try_current().map_or(task::Comm::new("boot"), |task| task.comm());
    panic::die(regs, format_args!("{cause}, in task {task}"))
}

/// Interrupts, vectors from 32 on.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn do_interrupt(regs: &mut PtRegs, vector: u64) {
    let interruption = Interruption::new();
    let in_interrupt = percpu::InInterrupt::begin();
    trace::on_interrupt(regs);
    handle_irq(regs, vector);
    // A spurious one is not a real interrupt, and must not be acknowledged.
    if vector as u8 == vector::SPURIOUS {
        return;
    }
    apic::end_of_interrupt();
    drop(in_interrupt);
    drop(interruption);
    preempt_at_breakpoint::on_interrupt_exit(regs);
}

/// The work of an interrupt, without the switch to another task that may follow it. A function of
/// its own, because a tracer looks for it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn handle_irq(regs: &mut PtRegs, vector: u64) {
    match vector as u8 {
        vector::TIMER => timer_interrupt(regs),
        vector::SERIAL => terminal::on_interrupt(),
        // The work is done on the way out.
        vector::RESCHEDULE | vector::SPURIOUS => {}
        vector::FLUSH_TLB => smp::flush_tlb_here(),
        vector::PROBES_SYNC => hooks::on_sync_ipi(regs),
        vector::APIC_ERROR => pr_err!("local APIC error {:#x}", apic::take_error()),
        SPARE_INTERRUPT if spare_interrupt(regs) => {}
        _ => pr_warn!("interrupt {vector} has no handler"),
    }
}

/// A vector that no device has: [`set_interrupt_handler`] says what it means.
pub const SPARE_INTERRUPT: u8 = 0xd0;

/// A function that gets interrupts, with interrupts off.
pub type InterruptHandler = fn(&mut PtRegs);

static INTERRUPT_HANDLER: Hook<InterruptHandler> = Hook::new();

/// Sets a handler for interrupts with the vector [`SPARE_INTERRUPT`]; with `None` they are logged.
pub fn set_interrupt_handler(handler: Option<InterruptHandler>) {
    INTERRUPT_HANDLER.set(handler);
}

fn spare_interrupt(regs: &mut PtRegs) -> bool {
    let handler = INTERRUPT_HANDLER.get();
    if let Some(handler) = handler {
        handler(regs);
    }
    handler.is_some()
}

/// The tick, every [`tick_ns`](crate::time::tick_ns) on each CPU: it wakes sleepers and ends the
/// running task's turn, and a test whose time is over.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn timer_interrupt(regs: &mut PtRegs) {
    test_runner::tick(regs);
    sleepers::tick();
    scheduler::tick();
    terminal::tick();
    // An idle CPU prints when the interrupt is over.
    if !scheduler::is_idle() {
        console::tick();
    }
}

/// A function that gets NMIs which the kernel did not send itself. It runs as part of the NMI.
pub type NmiHandler = fn(&PtRegs);

static NMI_HANDLER: Hook<NmiHandler> = Hook::new();

/// Sets a handler for each NMI that is not the kernel's own; with `None` they are logged.
pub fn set_nmi_handler(handler: Option<NmiHandler>) {
    NMI_HANDLER.set(handler);
}

/// NMI, before any probe can be hit.
///
/// An exception in the handler unmasks NMIs when it returns, so the next NMI may come on top of
/// this one. It is not handled there, because a storm of NMIs would fill the stack. Instead it is
/// noted, as the processor notes one while NMIs are masked, and the handler runs again. The code
/// that notes it must not be probed, because a hit there would unmask the NMI after that.
///
/// CR2 and DR6 are saved and restored. An NMI may come before the entry of a page fault or of #DB
/// has read them, and the NMI's handler may itself fault, or hit a probe that steps.
pub(super) extern "C" fn enter_nmi(regs: &mut PtRegs) {
    let (address, debug_status) = (Cr2::read_raw(), Dr6::read_raw());
    smp::stop_if_asked(regs);
    let seen = &percpu::this().nmis_seen;
    if seen.fetch_add(1, Ordering::Relaxed) == 0 {
        loop {
            let before = seen.load(Ordering::Relaxed);
            let in_nmi = percpu::InInterrupt::begin_nmi();
            PROBES.aside(|| do_nmi(regs));
            drop(in_nmi);
            // The NMIs that came meanwhile count as one.
            let last = seen.compare_exchange(before, 0, Ordering::Relaxed, Ordering::Relaxed);
            if last.is_ok() {
                break;
            }
        }
    }
    // SAFETY: both only report.
    unsafe {
        asm!(
            "mov cr2, {}",
            "mov dr6, {}",
            in(reg) address,
            in(reg) debug_status,
            options(nomem, nostack, preserves_flags)
        );
    };
}

/// An NMI that is on top of no other. Can be probed, from its first instruction.
#[inline(never)]
fn do_nmi(regs: &PtRegs) {
    let _interruption = Interruption::new();
    match NMI_HANDLER.get() {
        Some(handler) => handler(regs),
        None => pr_warn!("NMI at {:#x}, sp {:#x}", regs.ip, regs.sp),
    }
}

/// #DF: most likely the kernel stack ran over its guard page.
pub(super) extern "C" fn do_double_fault(regs: &mut PtRegs) -> ! {
    let address = Cr2::read_raw();
    if kernel_stack::is_guard(address) {
        die(regs, format_args!("kernel stack overflow"));
    }
    die(regs, format_args!("double fault, cr2 {address:#x}"))
}

/// Called last before ring 3 runs again. Switches tasks and ends the task if that was asked for.
/// Interrupts are off on entry and on return. True if `sysretq` restores all that `regs` say.
pub(super) extern "C" fn exit_to_user(regs: &mut PtRegs) -> bool {
    loop {
        if task::running().is_some_and(task::Task::is_interrupted) {
            interrupts::enable();
            exit_if_requested();
            interrupts::disable();
        }
        if !percpu::this().need_resched() {
            break;
        }
        task::schedule();
    }
    // An address that the processor refuses must not reach `iretq`, because `iretq` would fault in
    // ring 0 with the user's GS. The address used instead is never mapped, so the fault comes in
    // ring 3.
    if regs.ip >= USER_END {
        regs.ip = USER_END;
    }
    make_user(regs);
    // `sysretq` takes the address from rcx and the flags from r11, and clears RF.
    regs.cx == regs.ip && regs.r11 == regs.flags && regs.flags & RFlags::RESUME_FLAG.bits() == 0
}

/// The flags that are set in ring 3: IF, and the bit that is always set.
pub(super) const OWN_FLAGS: u64 = RFlags::INTERRUPT_FLAG.bits() | 0b10;

/// The flags that ring 3 may set freely.
pub(super) const USER_FLAGS: RFlags = RFlags::CARRY_FLAG
    .union(RFlags::PARITY_FLAG)
    .union(RFlags::AUXILIARY_CARRY_FLAG)
    .union(RFlags::ZERO_FLAG)
    .union(RFlags::SIGN_FLAG)
    .union(RFlags::TRAP_FLAG)
    .union(RFlags::DIRECTION_FLAG)
    .union(RFlags::OVERFLOW_FLAG)
    .union(RFlags::RESUME_FLAG)
    .union(RFlags::ALIGNMENT_CHECK)
    .union(RFlags::ID);
