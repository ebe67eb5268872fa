//! Exceptions and interrupts: signals, turned into the frames that a kernel's entry stubs would
//! build.
//!
//! All handlers run on the stack of the code that they interrupt (no `SA_ONSTACK`), may nest in
//! each other (`SA_NODEFER`), and block the two signals that are interrupts: they run with
//! interrupts off. A handler's [`PtRegs`] are loaded when it returns; its IF
//! decides whether the interrupts stay blocked, save for an ip in a slot, whose exits could not
//! unblock them again.

use std::{
    arch::naked_asm,
    fmt::{self, Write},
    sync::atomic::{
        AtomicPtr, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use probes::PtRegs;

use super::{Fault, PROBES, cpu, preempted, symbols, text};
use crate::suite::flags::{IF, TF};

/// The vector of a debug trap.
pub const DEBUG: u8 = 1;
/// The vector of a breakpoint.
pub const BREAKPOINT: u8 = 3;
/// The vector of a general protection fault.
pub const PROTECTION: u8 = 13;
/// The vector of a page fault.
pub const PAGE_FAULT: u8 = 14;

/// The rest of the kernel, as far as exceptions are concerned: asked when the probes have not
/// handled one. True: resume.
pub type Hook = fn(&mut PtRegs, u8) -> bool;

static EXCEPTION: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
static NMI: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
static INTERRUPT: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Sets who is asked about exceptions that are not the probes'. Without one they end the process.
pub fn on_exception(hook: Hook) {
    EXCEPTION.store(hook as *mut (), Release);
}

/// Runs `work` with an NMI after each of its instructions, wherever that is: slots, stubs, the
/// trampoline, the handlers that it calls. The NMI's handler is `hook`, with the vector [`DEBUG`];
/// it may call anything. Handlers of traps are not interrupted.
///
/// The processor is made to step by a TF that neither the code's frames nor the probes see.
pub fn nmi_storm(hook: Hook, work: impl FnOnce()) {
    let cpu = cpu::this();
    NMI.store(hook as *mut (), Release);
    cpu.storm.store(true, Relaxed);
    cpu.interrupt();
    work();
    cpu.storm.store(false, Relaxed);
    cpu.interrupt();
    NMI.store(std::ptr::null_mut(), Release);
}

/// Has the next debug traps say that debug registers have matched as well: bits 0 to 3.
pub fn match_debug_registers(bits: u64) {
    MATCHED.store(bits, Release);
}

static MATCHED: AtomicU64 = AtomicU64::new(0);

/// Sets what runs at [`cpu::Cpu::interrupt`], with interrupts off. The vector is none of an
/// exception.
pub fn on_interrupt(hook: Hook) {
    INTERRUPT.store(hook as *mut (), Release);
}

/// Takes all hooks back.
pub fn clear_hooks() {
    match_debug_registers(0);
    for hook in [&EXCEPTION, &NMI, &INTERRUPT] {
        hook.store(std::ptr::null_mut(), Release);
    }
}

fn run(hook: &AtomicPtr<()>, regs: &mut PtRegs, vector: u8) -> bool {
    let hook = hook.load(Acquire);
    if hook.is_null() {
        return false;
    }
    // SAFETY: the setters above store hooks only.
    let hook: Hook = unsafe { std::mem::transmute(hook) };
    hook(regs, vector)
}

/// Routes the signals. Once.
pub fn set_up() {
    type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
    let routes: [(i32, Handler); 7] = [
        (libc::SIGTRAP, trap_entry),
        (libc::SIGSEGV, fault_entry),
        (libc::SIGBUS, fault_entry),
        (libc::SIGFPE, fault_entry),
        (libc::SIGILL, fault_entry),
        (libc::SIGUSR1, interrupt_entry),
        (libc::SIGUSR2, interrupt_entry),
    ];
    for (signal, handler) in routes {
        // SAFETY: the handlers have the signature that SA_SIGINFO asks for, and touch only what
        // their comments say.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
            for blocked in [libc::SIGUSR1, libc::SIGUSR2] {
                libc::sigaddset(&raw mut action.sa_mask, blocked);
            }
            assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
        }
    }
}

/// The general registers of a context, with their places in [`PtRegs`].
fn registers(regs: &mut PtRegs) -> [(&mut u64, i32); 18] {
    [
        (&mut regs.r15, libc::REG_R15),
        (&mut regs.r14, libc::REG_R14),
        (&mut regs.r13, libc::REG_R13),
        (&mut regs.r12, libc::REG_R12),
        (&mut regs.bp, libc::REG_RBP),
        (&mut regs.bx, libc::REG_RBX),
        (&mut regs.r11, libc::REG_R11),
        (&mut regs.r10, libc::REG_R10),
        (&mut regs.r9, libc::REG_R9),
        (&mut regs.r8, libc::REG_R8),
        (&mut regs.ax, libc::REG_RAX),
        (&mut regs.cx, libc::REG_RCX),
        (&mut regs.dx, libc::REG_RDX),
        (&mut regs.si, libc::REG_RSI),
        (&mut regs.di, libc::REG_RDI),
        (&mut regs.ip, libc::REG_RIP),
        (&mut regs.flags, libc::REG_EFL),
        (&mut regs.sp, libc::REG_RSP),
    ]
}

/// The frame that an entry stub would have pushed.
fn frame(context: &libc::ucontext_t) -> PtRegs {
    let mut regs = PtRegs {
        orig_ax: !0,
        cs: context.uc_mcontext.gregs[libc::REG_CSGSFS as usize] as u64 & 0xffff,
        ss: 0x2b,
        ..PtRegs::new()
    };
    for (register, index) in registers(&mut regs) {
        *register = context.uc_mcontext.gregs[index as usize] as u64;
    }
    // SAFETY: the kernel has filled in the mask.
    let blocked = unsafe { libc::sigismember(&raw const context.uc_sigmask, libc::SIGUSR1) } == 1;
    regs.flags = regs.flags & !IF | if blocked { 0 } else { IF };
    regs
}

/// Makes the signal return to `regs`, with interrupts on if `on` says so, and off where it says no.
fn resume(context: &mut libc::ucontext_t, mut regs: PtRegs, on: Option<bool>) {
    for signal in [libc::SIGUSR1, libc::SIGUSR2] {
        let mask = &raw mut context.uc_sigmask;
        // SAFETY: the kernel has filled in the mask, and takes it back.
        unsafe {
            match on {
                Some(true) => libc::sigdelset(mask, signal),
                Some(false) => libc::sigaddset(mask, signal),
                None => 0,
            }
        };
    }
    regs.flags |= IF;
    for (register, index) in registers(&mut regs) {
        context.uc_mcontext.gregs[index as usize] = *register as i64;
    }
}

/// The vector of an interrupt; a context has that of the last exception.
const INTERRUPT_VECTOR: u8 = 32;

/// Runs `handle` on the frame of `context`, with the vector: that of the exception, or
/// [`INTERRUPT_VECTOR`].
///
/// # Safety
/// `context` is that of a signal handler with SA_SIGINFO, on a thread that is a CPU.
unsafe fn enter(
    context: *mut libc::c_void,
    is_exception: bool,
    handle: impl FnOnce(&mut PtRegs, u8),
) {
    // SAFETY: by the contract; nothing else has it.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let cpu = cpu::this();
    let depth = cpu.traps.load(Relaxed);
    // Only this CPU writes the count, and what nests restores it.
    cpu.traps.store(depth + 1, Relaxed);
    let mut regs = frame(context);
    let (at, was_on) = (regs.ip, regs.flags & IF != 0);
    let forced = cpu.forced_step.swap(false, Relaxed);
    if forced {
        regs.flags &= !TF;
    }
    let vector = if is_exception {
        context.uc_mcontext.gregs[libc::REG_TRAPNO as usize] as u8
    } else {
        INTERRUPT_VECTOR
    };
    if depth == 0 && vector == DEBUG {
        cpu.look(regs.ip);
        if cpu.storm.load(Relaxed) {
            PROBES.aside(|| run(&NMI, &mut regs, DEBUG));
        }
        if preempted::is_at(regs.ip) {
            preempted::stay();
        }
    }
    if !(forced && vector == DEBUG) {
        handle(&mut regs, vector);
    }
    let in_slot = text::SLOTS.range().contains(&regs.ip) && regs.flags & TF == 0;
    let on = if regs.flags & IF != 0 || !in_slot {
        Some(regs.flags & IF != 0)
    } else if at == super::probe_entry_points().jprobe_return + 1 {
        Some(cpu.on_before_jprobe.load(Relaxed))
    } else {
        // A slot with a post handler: its exits could not turn them on again, so they stay as they
        // are (HOST-1).
        None
    };
    if vector == BREAKPOINT && !in_slot {
        // Perhaps to a jprobe's handler, with interrupts off.
        cpu.on_before_jprobe.store(was_on, Relaxed);
    }
    resume(context, regs, on);
    let is_stepped = cpu.steps() || preempted::is_at(regs.ip);
    if depth == 0 && is_stepped && regs.flags & TF == 0 {
        context.uc_mcontext.gregs[libc::REG_EFL as usize] |= TF as i64;
        cpu.forced_step.store(true, Relaxed);
        keep_stepping_over_iretq(&regs);
    }
    cpu.traps.store(depth, Relaxed);
}

/// After an `iretq` there is a trap only if it loads TF.
fn keep_stepping_over_iretq(regs: &PtRegs) {
    // SAFETY: the code goes on at `ip`, so an instruction is there, and if it is `iretq`, a frame
    // is at `sp`.
    unsafe {
        let next = regs.ip as *const u8;
        if next.read() == 0x48 && next.add(1).read() == 0xcf {
            let flags = (regs.sp as *mut u64).add(2);
            flags.write_unaligned(flags.read_unaligned() | TF);
        }
    }
}

/// Defines what a signal enters: it clears AC, which the kernel leaves as the interrupted code had
/// it and Rust code does not expect (DF it clears), and goes on with the handler.
macro_rules! entries {
    ($($name:ident => $handler:ident),*) => { $(
        #[unsafe(naked)]
        extern "C" fn $name(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
            naked_asm!(
                "pushfq",
                "and dword ptr [rsp], ~(1 << 18)",
                "popfq",
                "jmp {handler}",
                handler = sym $handler,
            )
        }
    )* };
}

entries!(trap_entry => trap, fault_entry => fault, interrupt_entry => interrupt);

/// #BP and #DB.
extern "C" fn trap(_: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives both; probed code runs on CPUs only.
    unsafe {
        let stepped = (*info).si_code == libc::TRAP_TRACE;
        enter(context, true, |regs, vector| {
            let handled = match vector {
                BREAKPOINT if Fault::Stale.is_in() && !PROBES.is_breakpoint(regs.ip) => true,
                BREAKPOINT => PROBES.on_breakpoint(regs),
                _ => PROBES.on_debug(regs, u64::from(stepped) << 14 | MATCHED.load(Acquire)),
            };
            if !handled && !run(&EXCEPTION, regs, vector) {
                die(format_args!(
                    "exception {vector} that nobody expects, signal code {}: {regs:x?}",
                    (*info).si_code
                ));
            }
        });
    }
}

/// All faults.
extern "C" fn fault(signal: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if !cpu::is_cpu() {
        // Not the machine's: let it end the process in the usual way.
        // SAFETY: gives the signal its default meaning.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    // SAFETY: the kernel gives it, and this thread is a CPU.
    unsafe {
        enter(context, true, |regs, vector| {
            if Fault::Faults.is_in() {
                // Steps over the instruction of the self-test.
                regs.ip += 3;
                return;
            }
            if !PROBES.on_fault(regs, vector) && !run(&EXCEPTION, regs, vector) {
                let at = symbols::covering(regs.ip).map_or(0, |symbol| symbol.start);
                die(format_args!(
                    "fault {vector} in the function at {at:#x}, {} bytes into it: {regs:x?}",
                    regs.ip.wrapping_sub(at)
                ));
            }
        });
    }
}

/// Both interrupts.
extern "C" fn interrupt(signal: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives it; only CPUs are sent these signals.
    unsafe {
        enter(context, false, |regs, vector| match signal {
            libc::SIGUSR1 => cpu::this().answer(regs.ip),
            _ => {
                PROBES.aside(|| run(&INTERRUPT, regs, vector));
            }
        });
    }
}

/// Prints without allocating or locking, and ends the process. Any context.
pub fn die(message: fmt::Arguments<'_>) -> ! {
    struct StandardError;
    impl Write for StandardError {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            // SAFETY: the kernel reads the bytes of `text`.
            unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
            Ok(())
        }
    }
    let _ = writeln!(StandardError, "\nmachine died: {message}");
    // SAFETY: no preconditions.
    unsafe { libc::abort() }
}
