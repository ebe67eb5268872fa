//! Debug traps: the end of a single step of the probes, and the steps of somebody else through probed code.
//!
//! A debugger sets RFLAGS.TF, and the processor raises #DB behind each instruction. It is to find the code as if no probe were
//! there: told of each instruction once, behind it and behind its post handlers, and of nothing of slots, detours, trampolines and
//! handlers. The way of a hit is the same without TF and with it; the traps on this way say what is to be done otherwise.
//!
//! | the trap finds | executed was | what is done |
//! |---|---|---|
//! | an ip in a slot | a part of the displaced instruction | nothing: the code is stepped on |
//! | `kprobe_post_stub` | the displaced instruction, in its post slot | what the stub does; the debugger is told |
//! | the end of what was carried out | what has the processor trap (see [`Hits::emulate_stepped`]) | the same |
//! | where a detour is entered | the jump | what a breakpoint does in its place: the displaced copies are stepped |
//! | a copy in a detour, not the first | the instruction before it | the debugger is told, with the copy's original address |
//! | a return trampoline | the return of a probed call | the trampoline's work; the debugger is told where the call has come back |
//! | any place, in a step of the probes | the copy of an instruction | the copy's effect is put right, post handlers run |
//!
//! So no handler runs with TF set, and without TF nothing here is executed. A repeated string instruction that is probed is told of once, not
//! for each iteration.
//!
//! While the displaced instruction runs the guard is free (H4 of [`hit`](crate::hit)): a trap that ends a hit takes it again.
//!
//! # Contexts
//! The handler of #DB, interrupts off, on the stack of the code that trapped.

use core::{ptr::null_mut, sync::atomic::Ordering::Relaxed};

use crate::{
    data::{
        per_cpu::{HitGuard, PerCpu, bump},
        site::{Emulated, Site},
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
const BS: u64 = 1 << 14;
/// DR6: a breakpoint or watchpoint of the debug registers has matched, too.
const MATCHED: u64 = 0b1111;

impl<P: Platform> Hits<P> {
    /// Whether a #DB belongs to the probes alone; then `regs` are where to resume. Interrupts off. `dr6` is the debug status
    /// register; of it, only a single step (BS) can be ours.
    ///
    /// False: somebody is to be told of it, with `regs` as they are now. Their ip may be under a jump, so whoever resumes from there does
    /// so at [`Hits::executable_ip`].
    pub fn on_debug(&self, regs: &mut PtRegs, dr6: u64) -> bool {
        let cpu = P::this_cpu();
        bump(&cpu.debug_traps);
        if dr6 & BS == 0 {
            return false;
        }
        // SAFETY: a site lives until a grace period, which does not end while `finishing` is set.
        if let Some(site) = unsafe { cpu.finishing.load(Relaxed).as_ref() } {
            if site.step.is_some() {
                return self.stepped(cpu, site, regs, dr6);
            }
            if self.is_done(cpu, site, regs) {
                return self.finish_stepped(cpu, site, regs);
            }
        }
        if in_slot_region::<P>(regs.ip) {
            return self.stepped_in_region(cpu, regs);
        }
        self.stepped_return(cpu, regs)
    }

    /// Whether this CPU is stepping the copy of an instruction, so that the next #DB is the probes'. Interrupts off.
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
                // SAFETY: the fix-up asks for words that the stepped instruction itself has just written.
                unsafe { (at as *mut u8).add(n).write_volatile(*byte) };
            }
        });
        if progress == StepProgress::Unfinished {
            return true;
        }
        self.end_hit(cpu, site, regs);
        saved & TF == 0 && dr6 & MATCHED == 0
    }

    /// Takes the guard again for the post handlers, and drops it.
    fn end_hit(&self, cpu: &PerCpu, site: &Site, regs: &mut PtRegs) {
        let guard = cpu.enter();
        cpu.finishing.store(null_mut(), Relaxed);
        self.run_post(&guard, site, regs);
    }

    /// Whether the displaced instruction of `site`, which is under way, is done. If not, the trap is one on its way, or that of something
    /// that has come on top of it.
    fn is_done(&self, cpu: &PerCpu, site: &Site, regs: &PtRegs) -> bool {
        if site.emulated.is_some() {
            return !in_slot_region::<P>(regs.ip) && regs.sp == cpu.saved_sp.load(Relaxed);
        }
        regs.ip == self.entry.post_stub.load(Relaxed)
    }

    /// Ends a hit whose instruction was executed with the code's own TF set. Returns whether nobody is to be told.
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
        self.end_hit(cpu, site, regs);
        false
    }

    /// Carries out the instruction of code that is stepped, for [`Hits::on_debug`] to run the post handlers behind it: only the processor
    /// itself can raise the trap. What it executes for that is the `ret`, or the end of the slot once the flags are changed. Neither
    /// can fault.
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

    /// A step has ended in a slot or detour. Returns whether nobody is to be told.
    fn stepped_in_region(&self, cpu: &PerCpu, regs: &mut PtRegs) -> bool {
        if let Some((detour, offset)) = self.detours.owner(regs.ip) {
            let site = detour.site();
            if regs.ip == detour.enter() {
                regs.ip = site.key;
                self.serve(cpu, site, regs);
                return in_slot_region::<P>(regs.ip);
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
        // A `popf` has ended the stepping, so there is no trap behind the slot to tell of it. It leaves nothing on the stack.
        (regs.ip, regs.sp) = self.original_position(regs.ip, regs.sp, |_| None);
        false
    }

    /// A step has ended outside of slots and detours: if at a trampoline, does what that does. Returns whether nobody is to be told.
    fn stepped_return(&self, cpu: &PerCpu, regs: &mut PtRegs) -> bool {
        if regs.ip == self.entry.trampoline.load(Relaxed) {
            let sp = regs.sp;
            let ret_addr = self.leave_call(&cpu.enter(), regs);
            (regs.ip, regs.sp) = (ret_addr, sp);
            return false;
        }
        if self.entry.is_trampoline(regs.ip)
            && let Some(site) = self.table.find(regs.ip + 1)
        {
            regs.ip = site.key;
            self.serve(cpu, site, regs);
            return in_slot_region::<P>(regs.ip);
        }
        false
    }
}
