//! Jprobes: to the handler and back.

use core::{
    ptr::null_mut,
    sync::atomic::Ordering::{Relaxed, Release},
};

use crate::{
    data::{
        jprobe::{Jprobe, STACK_WORDS},
        kprobe::Kprobe,
        per_cpu::{HitGuard, PerCpu},
    },
    hit::{Flow, Hits},
    insn::flags::bits::{IF, TF},
    platform::Platform,
    pt_regs::PtRegs,
};

impl<P: Platform> Hits<P> {
    /// Leaves to a jprobe's handler, if it has one. The caller keeps the guard for the handler.
    pub(super) fn enter_jprobe(
        &self,
        cpu: &HitGuard<'_>,
        probe: &Kprobe,
        regs: &mut PtRegs,
    ) -> Flow {
        let Some(entry) = Jprobe::of(probe).and_then(|jprobe| jprobe.entry) else {
            return Flow::Execute;
        };
        let stack = P::stack_of(regs.sp);
        // SAFETY: this CPU's own, and no other jprobe is under way: the guard is held.
        let frame = unsafe { &mut *cpu.jprobe.get() };
        frame.words = (stack.end.saturating_sub(regs.sp) as usize / 8).min(STACK_WORDS);
        for (n, word) in frame.stack.iter_mut().take(frame.words).enumerate() {
            // SAFETY: between rsp and the end of the stack.
            *word = unsafe { (regs.sp as *const u64).add(n).read_unaligned() };
        }
        frame.regs = *regs;
        cpu.running.store(null_mut(), Relaxed);
        frame.kprobe = probe;
        frame.plain = false;
        // Release: an NMI finds the fields above stored.
        frame.site.store(probe.site.load(Relaxed), Release);
        regs.ip = entry.addr();
        // A debugger that steps through the function does not step through the handler.
        regs.flags &= !(IF | TF);
        Flow::Jprobe
    }

    /// The breakpoint of `jprobe_return`: puts back what the handler was entered with and goes on
    /// with the function.
    pub(super) fn leave_jprobe(&self, cpu: &PerCpu, regs: &mut PtRegs) -> bool {
        // SAFETY: this CPU's own, interrupts off.
        let frame = unsafe { &mut *cpu.jprobe.get() };
        // SAFETY: set by `enter_jprobe`; the site lives while the guard is held.
        let Some(site) = (unsafe { frame.site.load(Relaxed).as_ref() }) else {
            return false;
        };
        if regs.sp != frame.regs.sp {
            P::fatal(format_args!(
                "jprobe at {:#x}: its handler returned with sp {:#x} instead of {:#x}\n\
                 {regs:x?}\n{:x?}",
                site.addr(),
                regs.sp,
                frame.regs.sp,
                frame.regs
            ));
        }
        frame.site.store(null_mut(), Relaxed);
        *regs = frame.regs;
        for (n, word) in frame.stack.iter().take(frame.words).enumerate() {
            // SAFETY: the same live words that `enter_jprobe` read; the trap frame lies below them.
            unsafe { (regs.sp as *mut u64).add(n).write_unaligned(*word) };
        }
        // SAFETY: taken by the hit that `frame.site` tells of, and kept for the handler that has
        // ended.
        let guard = unsafe { cpu.held() };
        self.finish(guard, site, regs);
        true
    }
}
