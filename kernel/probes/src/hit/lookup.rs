//! Questions of the scheduler, of interrupts, of debuggers and of stack walks: about addresses in
//! slots and detours, and about the running handler. And the two reports of the scheduler: a task
//! is switched to, a task is gone.

use core::{
    ptr,
    sync::atomic::Ordering::{Acquire, Relaxed},
};

use crate::{
    data::{detour::Detour, instance, jprobe::Jprobe, kprobe::Kprobe, site::Site, trap_ip::TrapIp},
    hit::{Hits, slots::in_slot_region},
    insn::JUMP_BYTES,
    platform::Platform,
};

impl<P: Platform> Hits<P> {
    /// Whether an interrupt that found its context at `ip` may switch tasks: the context is not in
    /// a slot or detour, not under a jump, and in no hit. The grace period asks the same of each
    /// CPU: it ends when every CPU has been seen where this holds.
    #[inline]
    pub fn may_preempt(&self, ip: u64) -> bool {
        !in_slot_region::<P>(ip) && !P::this_cpu().is_in_hit() && !self.is_covered(ip)
    }

    /// Whether the code that was interrupted at `ip` uses nothing that has left the address table
    /// before, and no probe that was unlinked before, and does not come out under a jump that is
    /// about to be written. That is so where [`Hits::may_preempt`] holds. It is also so in the slot
    /// of a site that is still in the table, if no post handler waits for its end: such code uses
    /// that slot alone. Interrupts off, on the CPU that was interrupted.
    ///
    /// An interrupt that was held up by a hit is taken when the hit leaves for its slot. So where
    /// one instruction is hit again and again, interrupts find the CPU there nearly always.
    pub fn is_settled(&self, ip: u64) -> bool {
        if self.may_preempt(ip) {
            return true;
        }
        if !in_slot_region::<P>(ip) || P::this_cpu().is_in_hit() {
            return false;
        }
        let owner = self.slots.owner(ip, self.no_grace());
        owner.is_some_and(|(site, offset)| {
            let found = self.table.find(site.key, self.no_grace());
            found.is_some_and(|found| ptr::eq(found, site))
                && ip - offset as u64 == site.slot
                && !self.is_covered(site.addr() + u64::from(site.len))
        })
    }

    /// Whether a #BP that left `ip` in its frame is a probe's. Any context.
    pub fn is_breakpoint(&self, ip: u64) -> bool {
        self.table.find(TrapIp(ip), self.no_grace()).is_some()
    }

    /// Whether this CPU runs a pre or entry handler now. The assembly tells a return handler as
    /// one, too: its `ip` is after a call, where no breakpoint is. Any context that keeps its CPU.
    pub fn in_pre_handler(&self) -> bool {
        matches!(P::this_cpu().running_handler(), Some((_, 0)))
    }

    /// The probe whose handler runs on this CPU, and the address of its handler if it is a jprobe.
    /// None in fault handlers of the displaced instruction. Any context that keeps its CPU.
    pub fn running_probe(&self) -> Option<(&Kprobe, Option<u64>)> {
        let cpu = P::this_cpu();
        let Some((_, frame)) = cpu.running_jprobe() else {
            let (probe, _) = cpu.running_handler()?;
            return Some((probe, None));
        };
        // SAFETY: a probe lives while its handler runs.
        let probe = unsafe { frame.kprobe.as_ref() }?;
        Some((probe, Some(Jprobe::of(probe).map_or(0, Jprobe::entry_addr))))
    }

    /// The original address of code that is found at `ip`: the probed address for an ip in a slot
    /// or detour. Any context.
    pub fn original_ip(&self, ip: u64) -> u64 {
        let site = self.slots.owner(ip, self.no_grace()).map(|(site, _)| site);
        let site = site.or_else(|| Some(self.detours.owner(ip, self.no_grace())?.0.site()));
        site.map_or(ip, Site::addr)
    }

    /// The instruction and the stack pointer that code would have without the probe, if it is found
    /// at `ip` with stack pointer `sp`. They are `ip` and `sp` outside slots, and in the part of a
    /// detour that [`Hits::described_ip`] knows. `read` reads a word of the stack. Any context.
    pub fn original_position(
        &self,
        ip: u64,
        sp: u64,
        read: impl FnOnce(u64) -> Option<u64>,
    ) -> (u64, u64) {
        let (site, position) = if let Some((site, offset)) = self.slots.owner(ip, self.no_grace()) {
            (site, site.position(ip - offset as u64, offset))
        } else if let Some((detour, offset)) = self.detours.owner(ip, self.no_grace())
            && detour.described(offset).is_none()
        {
            (detour.site(), detour.position(offset))
        } else {
            return (ip, sp);
        };
        (
            position.ip(site.addr(), sp, read),
            sp.wrapping_add_signed(position.rsp_correction.into()),
        )
    }

    /// The address of the code whose call frame information describes the code at `ip`: in the
    /// template for a copy of it, else `ip`. Any context.
    pub fn described_ip(&self, ip: u64) -> u64 {
        self.detours
            .owner(ip, self.no_grace())
            .and_then(|(detour, offset)| detour.described(offset))
            .unwrap_or(ip)
    }

    /// The true return address of the call of `task` whose return slot, at `slot`, holds `value`.
    /// Any context.
    pub fn return_address(&self, task: u64, slot: u64, value: u64) -> u64 {
        if !self.entry.is_trampoline(value) {
            return value;
        }
        self.tasks.return_address(task, slot).unwrap_or(value)
    }

    /// The scheduler makes `task` current on this CPU. Interrupts off, in the switch, with the
    /// memory of `task` already there. `task` is any number above 1 that no other live task has.
    /// Inlined, because a return probe on it would be entered in one task's name and left in
    /// another's.
    #[inline(always)]
    pub fn task_switched(&self, task: u64) {
        let cpu = P::this_cpu();
        cpu.task.store(task, Relaxed);
        // This comes first, because what it calls may be probed, and returns in the old task's
        // name.
        if self.watches.are_scoped.load(Relaxed) {
            self.watches.load::<P>();
        }
        let cell = self.tasks.find(task).or_else(|| self.tasks.claim(task));
        cpu.cell.store(
            core::ptr::from_ref(cell.unwrap_or(&instance::NO_CELL)).cast_mut(),
            Relaxed,
        );
    }

    /// `task` is gone and its last switch is over: gives its instances back. Handlers are not
    /// called. Any context.
    pub fn flush_task(&self, task: u64) {
        self.tasks.release(task);
    }

    /// Where code goes on that is sent to `ip`. If `ip` is under a jump, or under one that is about
    /// to be written, that is the displaced copy. Else it is `ip`. Interrupts off, or the guard
    /// held, until the code has gone on.
    pub fn executable_ip(&self, ip: u64) -> u64 {
        self.covering(ip)
            .filter(|(site, detour, _)| site.run.load(Acquire) == detour.block())
            .and_then(|(_, detour, behind)| detour.copy_of(behind))
            .unwrap_or(ip)
    }

    /// Whether `ip` is under a jump, or where one is about to be written.
    pub(crate) fn is_covered(&self, ip: u64) -> bool {
        self.covering(ip).is_some()
    }

    /// The site with a detour whose jump covers `ip`, not counting the first byte, and how far
    /// after its address `ip` is.
    fn covering(&self, ip: u64) -> Option<(&Site, &Detour, usize)> {
        if self.detour_count.load(Relaxed) == 0 {
            return None;
        }
        (1..JUMP_BYTES).find_map(|behind| {
            let addr = ip.checked_sub(behind as u64)?;
            let site = self.table.find(TrapIp::of(addr), self.no_grace())?;
            Some((site, site.detour()?, behind))
        })
    }

    /// The slot or detour that `ip` is in. Any context.
    pub fn displaced(&self, ip: u64) -> Option<Displaced> {
        if let Some((_, offset)) = self.slots.owner(ip, self.no_grace()) {
            let start = ip - offset as u64;
            return Some(Displaced::Slot { start, offset });
        }
        let (detour, offset) = self.detours.owner(ip, self.no_grace())?;
        let start = detour.start;
        Some(Displaced::Detour { start, offset })
    }
}

/// The owner of an address in the slot region. Offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Displaced {
    /// A slot: the displaced instruction, or its copy to be stepped.
    Slot { start: u64, offset: usize },
    /// A detour.
    Detour { start: u64, offset: usize },
}
