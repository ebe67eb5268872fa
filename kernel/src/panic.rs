//! The end of the kernel: says why, then tells the host that the run failed.
//!
//! The first CPU that panics stops the others and takes the console by force. Then it prints the
//! message, the use of memory, the probe handler that runs if one does, the registers if an
//! exception brought it here, and a backtrace. Then come the backtraces of the CPUs that it has
//! stopped, because one of them may be what it waited for. A tracer that is attached gets the last
//! records. It waits for no lock and allocates nothing. If that fails in turn, the second panic
//! prints its message only, and a third one prints nothing. The machine goes off in any case.
//!
//! The last line of the log is the verdict, because on machines without isa-debug-exit (Bochs, a
//! real PC) nothing else tells it.

use crate::{
    arch::{PtRegs, percpu, smp},
    backtrace::{self, Registers, Trace},
    console,
    mm::Usage,
    pr_emerg,
    probes::running_handler::RunningHandler,
    task::Task,
    trace,
};
use core::{
    fmt,
    sync::atomic::{AtomicU32, Ordering},
};
use x86_64::instructions::{hlt, interrupts, port::Port};

/// The verdict on the run: QEMU's exit status says it, and the last line of the log.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCode {
    /// All went well.
    Success = 0x10,
    /// Something failed.
    Failure = 0x11,
}

/// Powers the machine off with a verdict for the host.
pub fn exit(code: ExitCode) -> ! {
    let verdict = match code {
        ExitCode::Success => "success",
        ExitCode::Failure => "failure",
    };
    // At a level that is never kept off the console, because the host may depend on it.
    pr_emerg!("Power off: {verdict}");
    power_off(code)
}

fn power_off(code: ExitCode) -> ! {
    console::flush();
    // SAFETY: isa-debug-exit sits at this port in QEMU; elsewhere nothing answers there.
    unsafe { Port::<u32>::new(0xf4).write(code as u32) };
    for letter in *b"Shutdown" {
        // SAFETY: at this port Bochs waits for the word, and ends; elsewhere nothing answers there.
        unsafe { Port::<u8>::new(0x8900).write(letter) };
    }
    halt()
}

fn halt() -> ! {
    loop {
        interrupts::disable();
        hlt();
    }
}

/// Ends the kernel because of an exception without a handler. `regs`: where it happened.
#[cold]
#[inline(never)]
pub fn die(regs: &PtRegs, message: fmt::Arguments<'_>) -> ! {
    end(message, Some(regs))
}

#[cfg(target_os = "none")]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    end(format_args!("{info}"), None)
}

/// The CPU that panics, plus 1; 0: none.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// How often it has.
static DEPTH: AtomicU32 = AtomicU32::new(0);

#[cold]
#[inline(never)]
fn end(message: fmt::Arguments<'_>, regs: Option<&PtRegs>) -> ! {
    interrupts::disable();
    let this = percpu::cpu_id() as u32 + 1;
    let owner = OWNER.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed);
    if owner.is_err_and(|owner| owner != this) {
        // One report is enough.
        halt();
    }
    match DEPTH.fetch_add(1, Ordering::Relaxed) {
        0 => {
            // The last records are those from before.
            trace::TRACING.stop_recording();
            smp::stop_others();
            console::seize();
            pr_emerg!("Kernel panic: {message}");
            print_whereabouts(percpu::cpu_id());
            if let Some(usage) = Usage::try_now() {
                pr_emerg!("Memory: {usage}");
            }
            if percpu::in_probe_handler() {
                pr_emerg!("In {RunningHandler}");
            }
            match regs {
                Some(regs) => {
                    pr_emerg!("{}", Registers(regs));
                    pr_emerg!("{}", Trace::from(backtrace::walk_interrupted(regs)));
                }
                None => pr_emerg!("{}", Trace::from(backtrace::walk_current())),
            }
            smp::other_cpus().for_each(print_stopped);
            if smp::other_cpus().all(|cpu| smp::stopped_at(cpu).is_some()) {
                // SAFETY: they have stopped, and this is the end.
                unsafe { trace::script::remote::tell_tracer(format_args!("{message}")) };
            }
        }
        1 => {
            console::seize();
            pr_emerg!("Kernel panic while panicking: {message}");
        }
        _ => power_off(ExitCode::Failure),
    }
    exit(ExitCode::Failure)
}

/// Prints which task `cpu` runs: this CPU, or one that has stopped.
fn print_whereabouts(cpu: usize) {
    let task = percpu::of(cpu).current.load(Ordering::Relaxed);
    // SAFETY: the task that runs here, or that a stopped CPU ran, is alive, or there is none.
    match unsafe { task.cast::<Task>().as_ref() } {
        Some(task) => pr_emerg!("CPU: {cpu} PID: {} Comm: {}", task.pid(), task.comm()),
        None => pr_emerg!("CPU: {cpu}"),
    }
}

/// Prints where CPU `cpu` was when it was stopped.
fn print_stopped(cpu: usize) {
    let Some(regs) = smp::stopped_at(cpu) else {
        pr_emerg!("CPU: {cpu} has not stopped");
        return;
    };
    print_whereabouts(cpu);
    if regs.user_mode() {
        pr_emerg!("In ring 3, at {:#x}", regs.ip);
    } else {
        pr_emerg!("{}", Trace::from(backtrace::walk_stopped(cpu, regs)));
    }
}
