//! Faults in displaced instructions and in handlers.

use core::{ptr::null_mut, sync::atomic::Ordering::Relaxed};

use crate::{
    data::{
        kprobe::FaultVerdict,
        per_cpu::{PUT_ASIDE, PerCpu},
        site::Site,
    },
    hit::{Hits, slots::in_slot_region},
    insn::flags::bits::{IF, TF},
    platform::Platform,
    pt_regs::PtRegs,
};

impl<P: Platform> Hits<P> {
    /// Lets the probes look at a fault first. An ip in a slot becomes the probed address, with
    /// everything as before the instruction. Then fault handlers are asked. True: the fault is
    /// handled, resume from `regs`. Interrupts off, kernel mode.
    pub fn on_fault(&self, regs: &mut PtRegs, vector: u8) -> bool {
        let handled = self.handle_fault(regs, vector);
        if handled {
            regs.ip = self.executable_ip(regs.ip);
        }
        handled
    }

    fn handle_fault(&self, regs: &mut PtRegs, vector: u8) -> bool {
        let cpu = P::this_cpu();
        if in_slot_region::<P>(regs.ip) {
            let Some(site) = self.rewind(cpu, regs) else {
                return false;
            };
            if !cpu.is_busy() && regs.ip == site.addr() {
                let _guard = cpu.enter();
                // The probe of the last handler may be gone. A fault in the handlers below is not
                // for it.
                cpu.running.store(null_mut(), Relaxed);
                return site
                    .probes()
                    .filter(|probe| probe.is_enabled())
                    .any(|probe| {
                        probe.fault_handler.is_some_and(|handle| {
                            handle(probe, regs, vector) == FaultVerdict::Handled
                        })
                    });
            }
            // Here the instruction belongs to a missed hit, so it is part of the handler that ran
            // into it. Or it is one after the probed one, in a detour.
        }
        let Some((probe, marks)) = cpu.running_handler() else {
            return false;
        };
        // The fault of an NMI's code is not the handler's.
        marks & PUT_ASIDE == 0
            && probe
                .fault_handler
                .is_some_and(|handle| handle(probe, regs, vector) == FaultVerdict::Handled)
    }

    /// Makes `regs`, of a fault in a slot or detour, those with which the original instruction
    /// would have faulted. Returns the site.
    fn rewind(&self, cpu: &PerCpu, regs: &mut PtRegs) -> Option<&Site> {
        if let Some((detour, offset)) = self.detours.owner(regs.ip, self.no_grace()) {
            let (site, position) = (detour.site(), detour.position(offset));
            regs.sp = regs.sp.wrapping_add_signed(position.rsp_correction.into());
            regs.ip = position.ip(site.addr(), regs.sp, |_| None);
            return Some(site);
        }
        let (site, offset) = self.slots.owner(regs.ip, self.no_grace())?;
        let slot = regs.ip - offset as u64;
        if core::ptr::eq(cpu.finishing.load(Relaxed), site) && slot != site.slot {
            // The rest of the hit is not to come: end it as if it had not been.
            let saved = cpu.saved_flags.load(Relaxed);
            regs.flags = regs.flags & !(IF | TF) | saved & (IF | TF);
            cpu.finishing.store(null_mut(), Relaxed);
        }
        let correction = site.position(slot, offset).rsp_correction;
        regs.sp = regs.sp.wrapping_add_signed(correction.into());
        regs.ip = site.addr();
        Some(site)
    }
}

/// Whether the processor could go on at `ip`. Where it has 57-bit addresses, the answer is no for
/// some addresses to which it could go.
pub(crate) fn is_canonical(ip: u64) -> bool {
    (ip as i64) << 16 >> 16 == ip as i64
}
