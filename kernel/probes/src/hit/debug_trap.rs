//! Debug traps: the end of the probes' own single steps, and a debugger's steps through probed
//! code.
//!
//! A debugger sets RFLAGS.TF, and the processor raises #DB after each instruction. The debugger
//! must find the code as if no probe were there. So it is told of each instruction once, after the
//! instruction and its post handlers. It is told nothing of slots, detours, trampolines and
//! handlers. A hit takes the same path with TF and without. With TF it raises these traps, and each
//! says what is left to do:
//!
//! ```text
//!   the trap finds                 executed before it           action
//!   an ip in a slot                part of the displaced        none: the code is stepped on
//!                                    instruction
//!   kprobe_post_stub               the displaced instruction,   as the stub; the debugger is told
//!                                    in its post slot
//!   the end of an instruction      the one real instruction     the same
//!     that was carried out on        that raises the trap (see
//!     the saved registers            `emulate_stepped`)
//!   the entry of a detour          the jump                     as a breakpoint there: the
//!                                                                 displaced copies are stepped
//!   a copy in a detour, not the    the instruction before it    the debugger is told, with the
//!     first                                                       original address of the copy
//!   a return trampoline            the return of a probed call  as the trampoline; the debugger is
//!                                                                 told where the call came back
//!   any address, in a step of      the copy of an instruction   the copy's effect is corrected,
//!     the probes                                                  post handlers run
//! ```
//!
//! So no handler runs with TF set, and without TF nothing here is executed. A probed string
//! instruction with a repeat prefix is reported once, not for each iteration.
//!
//! The guard is free while the displaced instruction runs (HIT-4), so a trap that ends a hit takes
//! it again.
//!
//! # Contexts
//! The handler of #DB, interrupts off, on the stack of the code that trapped.

use core::{ptr::null_mut, sync::atomic::Ordering::Relaxed};

use crate::{
    data::{
        per_cpu::{HitGuard, PerCpu, bump},
        site::{Emulated, Site},
        trap_ip::TrapIp,
        watchpoint::Watches,
    },
    hit::{Hits, faults::is_canonical, slots::in_slot_region},
    insn::{
        StepProgress,
        flags::bits::{IF, TF},
    },
    platform::Platform,
    pt_regs::PtRegs,
};

/// DR6: the trap is that of a single step (Intel SDM vol. 3B, 17.2.3).
pub(crate) const BS: u64 = 1 << 14;
/// DR6: a breakpoint or watchpoint of the debug registers has matched, too.
const MATCHED: u64 = 0b1111;
/// DR6: an access to the debug registers (BD), and a switch of hardware tasks (BT).
const OTHER_CAUSES: u64 = 1 << 13 | 1 << 15;

/// Whether a #DB that found `flags` is the end of a single step.
///
/// The processor says so by BS. Under some hypervisors the bit is lost now and then, while another
/// guest wants the processor, and DR6 names no cause at all. Apart from that only the instruction
/// `int1` raises such a #DB, and no place where the probes step has one, because it is refused.
const fn is_step(dr6: u64, flags: u64) -> bool {
    dr6 & BS != 0 || dr6 & (MATCHED | OTHER_CAUSES) == 0 && flags & TF != 0
}

impl<P: Platform> Hits<P> {
    /// Whether a #DB belongs to the probes alone. If so, `regs` are where to resume. Interrupts
    /// off. `dr6` is the debug status register. Of its causes, single steps and watchpoints can be
    /// ours. The bits of watchpoints that were served are clear in the register then; the kernel
    /// clears that of the step.
    ///
    /// False: a debugger is to be told of it, with `regs` as they are now. Their ip may be under a
    /// jump, so code that resumes from there does so at [`Hits::executable_ip`].
    #[inline(always)]
    pub fn on_debug(&self, regs: &mut PtRegs, dr6: u64) -> bool {
        let cpu = P::this_cpu();
        bump(&cpu.debug_traps);
        if dr6 & MATCHED != 0
            && let Some(ours) = on_match(self, cpu, regs, dr6)
        {
            return ours;
        }
        self.on_step(cpu, regs, dr6)
    }

    /// The part of [`Hits::on_debug`] that is about steps.
    #[inline(always)]
    fn on_step(&self, cpu: &PerCpu, regs: &mut PtRegs, dr6: u64) -> bool {
        if !is_step(dr6, regs.flags) {
            return false;
        }
        // SAFETY: a site lives until a grace period, which does not end while `finishing` is set.
        if let Some(site) = unsafe { cpu.finishing.load(Relaxed).as_ref() } {
            if site.step.is_some() {
                return self.stepped(cpu, site, regs, dr6);
            }
            if is_done(self, cpu, site, regs) {
                return self.finish_stepped(cpu, site, regs);
            }
        }
        if in_slot_region::<P>(regs.ip) {
            return self.stepped_in_region(cpu, regs);
        }
        self.stepped_return(cpu, regs)
    }

    /// Whether this CPU is stepping the copy of an instruction, so that the next #DB is the
    /// probes'. Interrupts off.
    pub fn is_stepping(&self) -> bool {
        // SAFETY: as in `on_debug`.
        unsafe { P::this_cpu().finishing.load(Relaxed).as_ref() }
            .is_some_and(|site| site.step.is_some())
    }

    /// The copy of an instruction was stepped: puts its effect right and ends the hit.
    fn stepped(&self, cpu: &PerCpu, site: &Site, regs: &mut PtRegs, dr6: u64) -> bool {
        let Some((_, copy)) = site.step.as_deref() else {
            return false;
        };
        let saved = cpu.saved_flags.load(Relaxed);
        let progress = copy.finish(regs, saved, |at, bytes| {
            for (n, byte) in bytes.iter().enumerate() {
                // SAFETY: the correction asks for words that the stepped instruction itself has
                // just written.
                unsafe { (at as *mut u8).add(n).write_volatile(*byte) };
            }
        });
        if progress == StepProgress::Unfinished {
            return true;
        }
        end_hit(self, cpu, site, regs);
        saved & TF == 0 && dr6 & MATCHED == 0
    }

    /// Ends a hit whose instruction was executed with the code's own TF set. False: a debugger is
    /// told.
    fn finish_stepped(&self, cpu: &PerCpu, site: &Site, regs: &mut PtRegs) -> bool {
        let saved = cpu.saved_flags.load(Relaxed);
        regs.flags = regs.flags & !(IF | TF) | saved & (IF | TF);
        if site.emulated.is_none() {
            // SAFETY: the post slot has pushed where to go on.
            let next = unsafe { (regs.sp as *const u64).read_unaligned() };
            if !is_canonical(next) {
                // The plain slot has the instruction raise its fault, as `kprobe_post_stub` does.
                cpu.finishing.store(null_mut(), Relaxed);
                (regs.ip, regs.sp) = (site.slot, cpu.saved_sp.load(Relaxed));
                return true;
            }
            (regs.ip, regs.sp) = (next, regs.sp.wrapping_add(8));
        }
        end_hit(self, cpu, site, regs);
        false
    }

    /// Carries out the instruction of code that is stepped. [`Hits::on_debug`] runs the post
    /// handlers after it, because only the processor itself can raise the trap. For the trap it
    /// executes the `ret`, or the end of the slot once the flags are changed. Neither can fault.
    #[cold]
    pub(crate) fn emulate_stepped(&self, guard: HitGuard<'_>, site: &Site, regs: &mut PtRegs) {
        let mut after = *regs;
        if !self.carry_out(site, &mut after) {
            drop(guard);
            self.run_slot(site, regs);
            return;
        }
        let at = match site.emulated {
            Some(Emulated::Return(_)) => site.slot,
            _ => {
                *regs = after;
                site.slot + u64::from(site.len)
            }
        };
        let cpu = P::this_cpu();
        self.pause(guard, site, regs, at, TF);
        cpu.saved_sp.store(after.sp, Relaxed);
    }

    /// A step has ended in a slot or detour. Returns whether the kernel is not to be told.
    fn stepped_in_region(&self, cpu: &PerCpu, regs: &mut PtRegs) -> bool {
        if let Some((detour, offset)) = self.detours.owner(regs.ip, self.no_grace()) {
            let site = detour.site();
            if regs.ip == detour.enter() {
                return self.serve_stepped(cpu, site, regs);
            }
            if let Some(addr) = detour.address_of(offset)
                && addr != site.addr()
            {
                regs.ip = addr;
                return false;
            }
        }
        if regs.flags & TF != 0 {
            return true;
        }
        // A `popf` has ended the stepping, so there is no trap after the slot to tell of it. It
        // leaves nothing on the stack.
        (regs.ip, regs.sp) = self.original_position(regs.ip, regs.sp, |_| None);
        false
    }

    /// A step has ended outside of slots and detours. If it ended at a trampoline, does the
    /// trampoline's work. False: a debugger is told.
    fn stepped_return(&self, cpu: &PerCpu, regs: &mut PtRegs) -> bool {
        if self.entry.is_assembly(regs.ip) {
            let sp = regs.sp;
            let ret_addr = self.leave_call(&cpu.enter(), regs);
            (regs.ip, regs.sp) = (ret_addr, sp);
            return false;
        }
        if self.entry.is_trampoline(regs.ip)
            && let Some(site) = self.table.find(TrapIp::of(regs.ip), self.no_grace())
        {
            return self.serve_stepped(cpu, site, regs);
        }
        false
    }

    /// Serves a hit that a step has ended at. Returns whether the kernel is not to be told: the
    /// displaced instruction is still to be stepped. One copy, because [`Hits::serve`] is long and
    /// steps are rare.
    #[cold]
    #[inline(never)]
    fn serve_stepped(&self, cpu: &PerCpu, site: &Site, regs: &mut PtRegs) -> bool {
        regs.ip = site.key.0;
        self.serve(cpu, site, regs);
        in_slot_region::<P>(regs.ip)
    }
}

/// The part of [`Hits::on_debug`] that is about watchpoints. None: they are not the probes'.
#[inline(never)]
fn on_match<P: Platform>(
    hits: &Hits<P>,
    cpu: &PerCpu,
    regs: &mut PtRegs,
    dr6: u64,
) -> Option<bool> {
    if !Watches::pause::<P>(cpu) {
        return None;
    }
    let rest = dr6 & !MATCHED;
    // The step comes first, because it puts `regs` where the code goes on.
    let ours = rest & (BS | OTHER_CAUSES) == 0 || on_watched_step(hits, cpu, regs, rest);
    // QEMU names the next instruction with the step before it. A processor raises a second trap for
    // it, and so does QEMU if this one leaves it out.
    hits.watches
        .serve(hits, cpu, regs, (dr6 & MATCHED, rest & BS != 0));
    Some(ours)
}

/// One copy of [`Hits::on_step`] for the rare case.
#[cold]
#[inline(never)]
fn on_watched_step<P: Platform>(hits: &Hits<P>, cpu: &PerCpu, regs: &mut PtRegs, dr6: u64) -> bool {
    hits.on_step(cpu, regs, dr6)
}

/// Whether the displaced instruction of `site`, which is under way, is done. If not, the trap came
/// earlier on its way, or from code that has interrupted it.
fn is_done<P: Platform>(hits: &Hits<P>, cpu: &PerCpu, site: &Site, regs: &PtRegs) -> bool {
    if site.emulated.is_some() {
        return !in_slot_region::<P>(regs.ip) && regs.sp == cpu.saved_sp.load(Relaxed);
    }
    regs.ip == hits.entry.post_stub.load(Relaxed)
}

/// Takes the guard again for the post handlers, and drops it.
fn end_hit<P: Platform>(hits: &Hits<P>, cpu: &PerCpu, site: &Site, regs: &mut PtRegs) {
    let guard = cpu.enter();
    cpu.finishing.store(null_mut(), Relaxed);
    hits.run_post(&guard, site, regs);
}
