//! The assembly: where control comes back to the probes without an exception.
//!
//! [`entry_points!`](crate::entry_points!) defines a few functions in the crate that implements the platform, so that
//! they carry plain names in backtraces and lists. None of them is called like a function: a return
//! trampoline is entered by a `ret`, the post stub by the end of a slot, `jprobe_return` by a handler that will not
//! be returned to.
//!
//! All of them run Rust on the probed code's stack, with DF and AC clear and the stack 16-byte aligned.
//!
//! # Calling convention
//! In: rdi the probe, rsi the frame, on an aligned stack as at any call; guard held, DF and AC clear. Out: al, a [`Flow`]. All registers are in
//! the frame already, so these routines keep rbp alone: `kprobe_serve_chain` has r15, what it calls rbx and r12 to r14.
//!
//! # Contexts
//! Breakpoints: interrupts off. Detours: with the interrupt flag of the probed code; the guard keeps the CPU.

mod breakpoint;
mod detours;
mod handlers;
pub mod layout;
mod registers;
mod returns;

use core::mem::ManuallyDrop;

use crate::{
    data::{kprobe::Kprobe, site::Site},
    pt_regs::PtRegs,
    registry::Host,
};

// What the macros name.
pub use crate::{
    data::{
        entry_points::{
            EntryPoints, KRETPROBE_MARK, Routines, SITE_MARK, TRAMPOLINE_MARK, Template, Templates,
        },
        jprobe::STACK_WORDS,
    },
    hit::{Flow, IN_POST},
    insn::flags::bits,
};

unsafe extern "C" {
    /// Ends a jprobe handler: puts the stack pointer back to where the handler was entered and traps.
    ///
    /// # Safety
    /// Only at the end of a jprobe handler, with nothing left to drop: the frames in between vanish.
    pub unsafe fn jprobe_return() -> !;
}

/// Defines what a hit jumps to and calls, for a [`Platform`](crate::Platform), and `probe_entry_points`, which has the addresses. Once a program.
#[macro_export]
macro_rules! entry_points {
    ($platform:ty, cs = $cs:expr, ss = $ss:expr) => {
        $crate::return_stubs! { $platform, cs = $cs, ss = $ss }
        $crate::serve_routines! { $platform }
        $crate::detour_templates! { $platform, cs = $cs, ss = $ss }

        fn probe_entry_points() -> $crate::asm::EntryPoints {
            $crate::asm::EntryPoints {
                detours: detour_templates(),
                trampoline: kretprobe_trampoline as *const () as u64,
                historic_trampolines: [
                    kretprobe_trampoline_trap3 as *const () as u64,
                    kretprobe_trampoline_trap4 as *const () as u64,
                ],
                post_stub: kprobe_post_stub as *const () as u64,
                jprobe_return: (&raw const jprobe_return_breakpoint) as u64,
                routines: serve_routines(),
                any_hit: 0,
                hit: 0,
                hit_post: 0,
                one_kretprobe: 0,
                kretprobes: 0,
            }
        }
    };
}

/// Serves one probe of any kind. Called by `kprobe_serve_unusual`.
///
/// # Safety
/// 1. `probe` is linked to a site that was hit, and the guard is held.
/// 2. `regs` is the frame of the hit.
pub unsafe extern "C" fn serve_unusual<P: Host>(probe: *const Kprobe, regs: *mut PtRegs) -> Flow {
    // SAFETY: by the contract: linked probes live until a grace period, which the guard holds up, and the frame is on this stack.
    let (probe, regs) = unsafe { (&*probe, &mut *regs) };
    // SAFETY: by the contract; the assembly drops the guard itself.
    let guard = ManuallyDrop::new(unsafe { P::this_cpu().held() });
    P::probes().serve_probe(&guard, probe, regs)
}

/// Called by `kprobe_any_hit`.
///
/// # Safety
/// `site` was found in the address table for the address of the trap whose frame is `regs`; interrupts are off.
pub unsafe extern "C" fn serve<P: Host>(site: *const Site, regs: *mut PtRegs) {
    // SAFETY: by the contract; the site lives until a grace period begins, which interrupts off hold up, and the frame is on this
    // stack.
    let (site, regs) = unsafe { (&*site, &mut *regs) };
    P::probes().serve(P::this_cpu(), site, regs);
}

/// Called by `kprobe_hit_post` where there is no post slot.
///
/// # Safety
/// As for [`serve`]; the pre handlers have run, and the guard is held.
pub unsafe extern "C" fn finish<P: Host>(site: *const Site, regs: *mut PtRegs) {
    // SAFETY: as in `serve`.
    let (site, regs) = unsafe { (&*site, &mut *regs) };
    // SAFETY: by the contract, and the assembly leaves it to `finish` to drop the guard.
    let guard = unsafe { P::this_cpu().held() };
    P::probes().finish(guard, site, regs);
}

/// Called by `kretprobe_trampoline`.
///
/// # Safety
/// `regs` is the frame that the trampoline has built, and the guard is held.
pub unsafe extern "C" fn on_return<P: Host>(regs: *mut PtRegs) -> u64 {
    // SAFETY: by the contract; the assembly drops the guard itself.
    let guard = ManuallyDrop::new(unsafe { P::this_cpu().held() });
    // SAFETY: by the contract; the frame is on this stack and nobody else knows it.
    P::probes().leave_call(&guard, unsafe { &mut *regs })
}

/// Called by detours that were entered with the guard up.
///
/// # Safety
/// 1. `regs` is the frame that the detour has built.
/// 2. `site` is the detour's.
pub unsafe extern "C" fn miss_in_detour<P: Host>(site: *const Site, regs: *mut PtRegs) {
    // SAFETY: by the contract: the frame is on this stack and nobody else knows it, and the site outlives its detour.
    let (site, regs) = unsafe { (&*site, &mut *regs) };
    P::probes().miss(P::this_cpu(), site, regs);
}

/// Called by detours, and by the entry of breakpoints, when a handler has set where to go on, with the guard still up.
///
/// # Safety
/// `regs` is the frame of the hit.
pub unsafe extern "C" fn resume_at<P: Host>(regs: *mut PtRegs) {
    // SAFETY: by the contract: the frame is on this stack and nobody else knows it.
    let regs = unsafe { &mut *regs };
    regs.ip = P::probes().executable_ip(regs.ip);
}
