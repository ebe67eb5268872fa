//! What the scheduler, faults, interrupts and stack walks ask.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::{
    data::{detour::Detour, instance, jprobe::Jprobe, kprobe::Kprobe, site::Site},
    hit::{Hits, IN_POST, slots::in_slot_region},
    insn::JUMP_BYTES,
    platform::Platform,
};

impl<P: Platform> Hits<P> {
    /// Whether the context that an interrupt found at `ip` may be switched away from: not in a slot or detour, not under a jump, no hit
    /// under way.
    #[inline]
    pub fn may_preempt(&self, ip: u64) -> bool {
        !in_slot_region::<P>(ip) && !P::this_cpu().is_in_hit() && !self.is_covered(ip)
    }

    /// Whether a CPU that an IPI found at `ip` is outside every slot, detour and handler, and not under a jump: the grace period's question.
    #[inline]
    pub fn is_quiescent(&self, ip: u64) -> bool {
        self.may_preempt(ip)
    }

    /// Whether a #BP that left `ip` in its frame is a probe's. Any context.
    pub fn is_breakpoint(&self, ip: u64) -> bool {
        self.table.find(ip).is_some()
    }

    /// Whether this CPU runs a pre or entry handler now. Any context that keeps its CPU.
    pub fn in_pre_handler(&self) -> bool {
        let cpu = P::this_cpu();
        let running = cpu.running.load(Relaxed);
        cpu.is_busy() && !running.is_null() && running.addr() & IN_POST == 0
    }

    /// The probe whose handler runs on this CPU, and the address of its handler if it is a jprobe. None in fault handlers of the
    /// displaced instruction. Any context that keeps its CPU.
    pub fn running_probe(&self) -> Option<(&Kprobe, Option<u64>)> {
        let cpu = P::this_cpu();
        if !cpu.is_busy() {
            return None;
        }
        // SAFETY: this CPU's own; nothing that runs on top of a jprobe handler writes it.
        let frame = unsafe { &*cpu.jprobe.get() };
        let (probe, is_jprobe) = if frame.site.is_null() {
            let running = cpu.running.load(Relaxed).map_addr(|addr| addr & !IN_POST);
            (running.cast_const(), false)
        } else {
            (frame.kprobe, true)
        };
        // SAFETY: a probe lives while its handler runs.
        let probe = unsafe { probe.as_ref() }?;
        let entry = is_jprobe.then(|| Jprobe::of(probe).map_or(0, Jprobe::entry_addr));
        Some((probe, entry))
    }

    /// Where the code that is found at `ip` really is: the probed address for an ip in a slot or detour. Any context.
    pub fn original_ip(&self, ip: u64) -> u64 {
        let site = self.slots.owner(ip).map(|(site, _)| site);
        let site = site.or_else(|| Some(self.detours.owner(ip)?.0.site()));
        site.map_or(ip, Site::addr)
    }

    /// The instruction and the stack pointer of the probed code, for code that is found at `ip` with stack pointer `sp`: those
    /// that it would have without the probe. They are `ip` and `sp` outside slots,
    /// and in the part of a detour that [`Hits::described_ip`] knows. `read` reads a word of the stack. Any context.
    pub fn original_position(
        &self,
        ip: u64,
        sp: u64,
        read: impl FnOnce(u64) -> Option<u64>,
    ) -> (u64, u64) {
        let (site, position) = if let Some((site, offset)) = self.slots.owner(ip) {
            (site, site.position(ip - offset as u64, offset))
        } else if let Some((detour, offset)) = self.detours.owner(ip)
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

    /// Where the code is whose call frame information describes the code at `ip`: in a template for a copy of it, else there. Any
    /// context.
    pub fn described_ip(&self, ip: u64) -> u64 {
        self.detours
            .owner(ip)
            .and_then(|(detour, offset)| detour.described(offset))
            .unwrap_or(ip)
    }

    /// What the caller of a frame really is: for the return slot at `frame` of `task`, holding `value`. Any context.
    pub fn return_address(&self, task: u64, frame: u64, value: u64) -> u64 {
        if !self.entry.is_trampoline(value) {
            return value;
        }
        self.tasks.return_address(task, frame).unwrap_or(value)
    }

    /// The scheduler makes `task` current on this CPU. Interrupts off, in the switch. `task` is any number above 1 that no
    /// other live task has. Inlined, as a return probe on it would be entered in one task's name and left in another's.
    #[inline(always)]
    pub fn task_switched(&self, task: u64) {
        let cell = self.tasks.find(task).or_else(|| self.tasks.claim(task));
        P::this_cpu().cell.store(
            core::ptr::from_ref(cell.unwrap_or(&instance::NO_CELL)).cast_mut(),
            Relaxed,
        );
    }

    /// `task` is gone and its last switch is over: gives its instances back. Handlers are not called. Any context.
    pub fn flush_task(&self, task: u64) {
        self.tasks.release(task);
    }

    /// Where code goes on that is told to go on at `ip`: at the displaced copy, if that is under a jump or where one is about to be
    /// written; else there. Interrupts off, or the guard held, until it has gone on.
    pub fn executable_ip(&self, ip: u64) -> u64 {
        self.covering(ip)
            .filter(|(site, detour, _)| site.run.load(Acquire) == detour.block())
            .and_then(|(_, detour, behind)| detour.copy_of(behind))
            .unwrap_or(ip)
    }

    /// Whether `ip` is under a jump, or where one is about to be written. Where a grace period does not end.
    pub(crate) fn is_covered(&self, ip: u64) -> bool {
        self.covering(ip).is_some()
    }

    /// The site with a detour whose jump covers `ip`, not counting the first byte; and how far behind its address that is.
    fn covering(&self, ip: u64) -> Option<(&Site, &Detour, usize)> {
        if self.detour_count.load(Relaxed) == 0 {
            return None;
        }
        (1..JUMP_BYTES).find_map(|behind| {
            let site = self.table.find((ip + 1).checked_sub(behind as u64)?)?;
            Some((site, site.detour()?, behind))
        })
    }

    /// What `ip` is in, if it is in a slot or detour. Any context.
    pub fn displaced(&self, ip: u64) -> Option<Displaced> {
        if let Some((_, offset)) = self.slots.owner(ip) {
            let start = ip - offset as u64;
            return Some(Displaced::Slot { start, offset });
        }
        let (detour, offset) = self.detours.owner(ip)?;
        let start = detour.start;
        Some(Displaced::Detour { start, offset })
    }
}

/// What an address in the slot region belongs to. Offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Displaced {
    /// A slot: the displaced instruction, or its copy to be stepped.
    Slot { start: u64, offset: usize },
    /// A detour.
    Detour { start: u64, offset: usize },
}
