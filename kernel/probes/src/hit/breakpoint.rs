//! A hit of any probes, in Rust: from the trap to the displaced instruction and back.
//!
//! This is the slow path of the stubs, and the whole path without them ([`super`] has the table).
//! [`Hits::serve`] takes the guard, runs the probes of the site from the newest on, and leaves to
//! the slot. A post handler or a single step keeps the hit open: `Hits::pause` notes it in the
//! CPU's data, and the post stub or the debug trap takes it up.
//!
//! Some instructions are carried out on the saved registers instead of in a slot: `popf`, and where
//! a post handler waits also the others that work on flags, and returns.
//!
//! # Contexts
//! Interrupts off, any nesting. The guard is held exactly while handlers run (HIT-2, HIT-4).

use core::{
    ptr::null_mut,
    sync::atomic::Ordering::{Acquire, Relaxed},
};

use crate::{
    data::{
        kprobe::{Kprobe, PreVerdict, ProbeKind},
        per_cpu::{HitGuard, IN_POST, PUT_ASIDE, PerCpu, bump},
        site::{Emulated, Site},
        trap_ip::TrapIp,
    },
    hit::{Hits, faults::is_canonical},
    insn::flags::{
        bits::{IF, TF},
        pushed_image,
    },
    platform::Platform,
    pt_regs::PtRegs,
};

impl<P: Platform> Hits<P> {
    /// Whether a #BP belongs to the probes. If so, `regs` are where to resume. Called with
    /// interrupts off, for a #BP that came from the kernel.
    ///
    /// Where a kernel has [`breakpoint_entry!`](crate::breakpoint_entry!) at its gate, only a #BP
    /// that was not in the address table comes here.
    #[inline]
    pub fn on_breakpoint(&self, regs: &mut PtRegs) -> bool {
        let cpu = P::this_cpu();
        bump(&cpu.breakpoints);
        match self.table.find(TrapIp(regs.ip), self.no_grace()) {
            Some(site) => {
                self.serve(cpu, site, regs);
                true
            }
            None => self.other_breakpoint(cpu, regs),
        }
    }

    /// Serves a hit of `site`, whatever probes it has. Interrupts off.
    #[inline(always)]
    pub(crate) fn serve(&self, cpu: &PerCpu, site: &Site, regs: &mut PtRegs) {
        if cpu.is_busy() {
            if !self.miss(cpu, site, regs) {
                bump(&cpu.stale_breakpoints);
            }
            self.run_slot(site, regs);
            return;
        }
        let guard = cpu.enter();
        let mut is_stale = true;
        for probe in site.probes().filter(|probe| probe.is_enabled()) {
            is_stale = false;
            match self.run_probe(&guard, probe, regs) {
                Flow::Execute => {}
                Flow::Resume => {
                    regs.ip = self.executable_ip(regs.ip);
                    return;
                }
                Flow::Jprobe => {
                    guard.keep();
                    return;
                }
            }
        }
        if is_stale {
            bump(&cpu.stale_breakpoints);
        }
        self.finish(guard, site, regs);
    }

    /// Does what `probe`, which is enabled, wants done before the displaced instruction.
    #[inline(always)]
    pub(crate) fn run_probe(&self, cpu: &HitGuard<'_>, probe: &Kprobe, regs: &mut PtRegs) -> Flow {
        match probe.kind {
            ProbeKind::Kprobe | ProbeKind::Trampoline => {
                if probe.action.is_null() {
                    probe.hits.count(cpu);
                }
                let Some(pre) = probe.pre_handler else {
                    return Flow::Execute;
                };
                cpu.running
                    .store(core::ptr::from_ref(probe).cast_mut(), Relaxed);
                let verdict = pre(probe, regs);
                cpu.running.store(null_mut(), Relaxed);
                match verdict {
                    PreVerdict::Execute => Flow::Execute,
                    PreVerdict::Resume => Flow::Resume,
                }
            }
            ProbeKind::Kretprobe => {
                self.enter_call(cpu, probe, regs);
                Flow::Execute
            }
            ProbeKind::Jprobe => {
                probe.hits.count(cpu);
                self.enter_jprobe(cpu, probe, regs)
            }
        }
    }

    /// Counts a hit that runs no handlers, for each probe that would have run. Returns whether
    /// there was one.
    #[cold]
    pub(crate) fn miss(&self, cpu: &PerCpu, site: &Site, regs: &PtRegs) -> bool {
        let mut is_missed = false;
        for probe in site.probes().filter(|probe| probe.is_enabled()) {
            probe.nmissed.fetch_add(1, Relaxed);
            is_missed = true;
        }
        if let Some((jprobe, frame)) = cpu.running_jprobe()
            && regs.sp > frame.regs.sp
            && P::stack_of(frame.regs.sp).contains(&regs.sp)
        {
            // The frame of the handler is gone, and with it the only code that drops the guard.
            P::fatal(format_args!(
                "jprobe at {:#x}: its handler has ended without jprobe_return\n{regs:x?}",
                jprobe.addr()
            ));
        }
        if site.is_trampoline() {
            P::fatal(format_args!(
                "a probed call returned while a handler ran on its CPU\n{regs:x?}"
            ));
        }
        is_missed
    }

    /// Executes the displaced instruction after the pre handlers.
    #[inline(always)]
    pub(crate) fn finish(&self, guard: HitGuard<'_>, site: &Site, regs: &mut PtRegs) {
        if let Some(step) = &site.step {
            self.pause(guard, site, regs, step.0, TF);
            return;
        }
        match site.post_slot.load(Acquire) {
            0 if site.emulate.load(Relaxed) => self.emulate(guard, site, regs),
            0 => {
                drop(guard);
                self.run_slot(site, regs)
            }
            slot => self.pause(guard, site, regs, slot, 0),
        }
    }

    /// Resumes in the displaced instruction.
    #[inline(always)]
    pub(crate) fn run_slot(&self, site: &Site, regs: &mut PtRegs) {
        if site.pops_flags() && regs.flags & TF == 0 {
            // A TF that is popped traps after the next instruction. In the slot that would be the
            // slot's jump.
            self.carry_out(site, regs);
            return;
        }
        // Acquire: what it leads to is written.
        regs.ip = site.run.load(Acquire);
    }

    /// Resumes at `ip` with interrupts off, the guard dropped and the rest of the hit noted.
    /// `kprobe_post_stub` or `on_debug` takes it up (HIT-4). `step` is the flag that has the
    /// processor trap after the next instruction. If the code has it set already, it stays.
    #[inline(always)]
    pub(crate) fn pause(
        &self,
        guard: HitGuard<'_>,
        site: &Site,
        regs: &mut PtRegs,
        ip: u64,
        step: u64,
    ) {
        guard
            .finishing
            .store(core::ptr::from_ref(site).cast_mut(), Relaxed);
        guard.saved_flags.store(pushed_image(regs.flags), Relaxed);
        guard.saved_sp.store(regs.sp, Relaxed);
        regs.flags = regs.flags & !IF | step;
        regs.ip = ip;
        drop(guard);
    }

    /// Carries out the instruction on the saved registers and runs the post handlers at once.
    fn emulate(&self, guard: HitGuard<'_>, site: &Site, regs: &mut PtRegs) {
        if regs.flags & TF != 0 {
            self.emulate_stepped(guard, site, regs);
            return;
        }
        if !self.carry_out(site, regs) {
            drop(guard);
            self.run_slot(site, regs);
            return;
        }
        self.run_post(&guard, site, regs);
    }

    /// Carries out the instruction on the saved registers. False: it cannot be done, and nothing
    /// has changed.
    pub(crate) fn carry_out(&self, site: &Site, regs: &mut PtRegs) -> bool {
        // SAFETY: the word that `popf` or a return would pop, on the live stack above the frame.
        let popped = unsafe { (regs.sp as *const u64).read_unaligned() };
        match site.emulated {
            Some(Emulated::Flags(op)) => {
                regs.flags = op.apply(regs.flags, popped);
                regs.sp = regs.sp.wrapping_add_signed(op.rsp_delta());
                regs.ip = site.next_ip();
            }
            Some(Emulated::Return(discarded)) if is_canonical(popped) => {
                regs.sp = regs.sp.wrapping_add(8 + u64::from(discarded));
                regs.ip = popped;
            }
            _ => return false,
        }
        true
    }

    /// Runs the post handlers, in the order of the pre handlers.
    pub(crate) fn run_post(&self, cpu: &HitGuard<'_>, site: &Site, regs: &mut PtRegs) {
        for probe in site.probes().filter(|probe| probe.is_enabled()) {
            let Some(post) = probe.post_handler else {
                continue;
            };
            let running = core::ptr::from_ref(probe).cast_mut();
            cpu.running
                .store(running.map_addr(|addr| addr | IN_POST), Relaxed);
            post(probe, regs, 0);
            cpu.running.store(null_mut(), Relaxed);
        }
    }

    /// A #BP at an address without a site.
    #[cold]
    fn other_breakpoint(&self, cpu: &PerCpu, regs: &mut PtRegs) -> bool {
        let at = regs.ip - 1;
        if at == self.entry.jprobe_return.load(Relaxed) {
            return self.leave_jprobe(cpu, regs);
        }
        if let Some((detour, offset)) = self.detours.owner(at, self.no_grace())
            && detour.is_fallback(offset)
        {
            let site = detour.site();
            regs.ip = site.key.0;
            self.serve(cpu, site, regs);
            return true;
        }
        // SAFETY: the processor has just fetched an instruction from there.
        if unsafe { (at as *const u8).read_volatile() } != 0xcc {
            // The breakpoint was removed between the fetch and now, so the original instruction is
            // there to be run. Resuming restores the interrupt flag. So a CPU that spins on a stale
            // translation still answers IPIs.
            bump(&cpu.stale_breakpoints);
            regs.ip = at;
            return true;
        }
        false
    }

    /// Runs `handler` as a handler of a watchpoint is run: under the guard, on top of a displaced
    /// instruction that may be under way. If the CPU is in handlers, it does not run. Interrupts
    /// off.
    #[inline(always)]
    pub fn as_handler(&self, handler: impl FnOnce()) {
        let cpu = P::this_cpu();
        if cpu.is_busy() {
            return;
        }
        let rest = Rest::put_aside(cpu);
        let guard = cpu.enter();
        cpu.running.store(null_mut(), Relaxed);
        handler();
        drop(guard);
        rest.take_back(cpu);
    }

    /// Runs `work`, which may interrupt any instruction: an NMI, or a debugger that is told of a
    /// watchpoint. If the hit of a displaced instruction is not over, the rest of it is put aside
    /// meanwhile. So the hits of `work` are hits like others. If a handler is not over, its fault
    /// handler gets no fault of `work`. Interrupts are off or on.
    #[inline(always)]
    pub fn aside<R>(&self, work: impl FnOnce() -> R) -> R {
        let cpu = P::this_cpu();
        let rest = Rest::put_aside(cpu);
        let running = cpu.running.load(Relaxed);
        if !running.is_null() {
            let aside = running.map_addr(|addr| addr | PUT_ASIDE);
            cpu.running.store(aside, Relaxed);
        }
        let result = work();
        cpu.running.store(running, Relaxed);
        rest.take_back(cpu);
        result
    }
}

/// The rest of the hit of a displaced instruction that may be under way on a CPU, put aside.
struct Rest {
    site: *mut Site,
    flags: u64,
    sp: u64,
}

impl Rest {
    #[inline(always)]
    fn put_aside(cpu: &PerCpu) -> Self {
        let rest = Self {
            site: cpu.finishing.load(Relaxed),
            flags: cpu.saved_flags.load(Relaxed),
            sp: cpu.saved_sp.load(Relaxed),
        };
        cpu.finishing.store(null_mut(), Relaxed);
        rest
    }

    #[inline(always)]
    fn take_back(self, cpu: &PerCpu) {
        cpu.saved_sp.store(self.sp, Relaxed);
        cpu.saved_flags.store(self.flags, Relaxed);
        cpu.finishing.store(self.site, Relaxed);
    }
}

/// The way on after the handlers of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Flow {
    /// Runs the displaced instruction.
    Execute = 0,
    /// Resumes where the frame says: a pre handler has set that.
    Resume = 1,
    /// Leaves to the handler of a jprobe, as the frame says, with the guard held.
    Jprobe = 2,
}
