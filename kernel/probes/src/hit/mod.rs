//! The way of one hit, from the trap to the displaced instruction and back.
//!
//! ```text
//!   #BP ─ on_breakpoint ─ find the site ─ guard held already? ── yes ─► count the miss ─► slot ─► back
//!                                   │ no
//!                         take the guard, run pre handlers (a jprobe last: leaves to its handler,
//!                                   │                       comes back through its return breakpoint)
//!                         post handler here? ── no ── drop the guard ─► slot ─► back, as if nothing had been
//!                                   │ yes: drop the guard, note the site, interrupts off
//!                         post slot ─► kprobe_post_stub ─ take the guard, post handlers, drop it ─► back
//! ```
//!
//! This is the whole of it, for any probe; [`serve`](crate::serve) and [`breakpoint`](crate::breakpoint) do the usual in assembly. What #DB has
//! to do with it, [`debug_trap`](crate::hit::debug_trap) says.
//!
//! # Invariants
//! H1. Nothing here locks, allocates, formats (but for the last words of a broken machine) or can fail.
//! H2. The guard of [`PerCpu`] is held while any handler runs. Whoever finds it held runs the plain slot, which needs
//!     no state of this CPU: hits nest to any depth.
//! H4. The guard is free while the displaced instruction runs, also where a post handler waits for it: the instruction may read the
//!     guard, as each check for a handler does, and reads what it would without a probe. Meanwhile interrupts are off, and the rest of
//!     the hit is noted in [`PerCpu`]. What comes all the same, an NMI, first puts that note aside ([`Probes::aside`]).
//! H3. Everything up to a handler and back from it is blacklisted, so no hit is needed to reach a handler.
//!
//! # Contexts
//! `on_breakpoint` and `on_fault` run with interrupts off. `on_return` runs with the interrupt flag of the function
//! that returned; the trampoline takes the guard, so that its CPU does not switch tasks.

mod debug_trap;

use core::{
    ptr::{null, null_mut},
    sync::atomic::{
        AtomicPtr,
        Ordering::{Acquire, Relaxed, Release, SeqCst},
        compiler_fence,
    },
};

use crate::{
    data::{
        instance::{self, Instance, TaskCell, floor},
        jprobe::{Jprobe, STACK_WORDS},
        kprobe::{FaultVerdict, Kind, Kprobe, PreVerdict},
        kretprobe::{EntryVerdict, KretprobeCore},
        per_cpu::{PerCpu, bump},
        site::{Emulated, Site},
    },
    insn::flags::{
        bits::{IF, TF},
        pushed_image,
    },
    platform::Platform,
    pt_regs::PtRegs,
    registry::Probes,
    slot::in_slot_region,
};

/// What a hit does after a probe's handlers.
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

/// Marks the pointer to the running probe while its post handler runs; probes are aligned.
#[doc(hidden)]
pub const IN_POST: usize = 1;

impl<P: Platform> Probes<P> {
    /// Whether a #BP is the probes'; then `regs` are where to resume. Interrupts off; first thing in the handler of a #BP
    /// that came from the kernel, unless [`breakpoint_entry!`](crate::breakpoint_entry!) is it.
    #[inline]
    pub fn on_breakpoint(&self, regs: &mut PtRegs) -> bool {
        let cpu = P::this_cpu();
        bump(&cpu.breakpoints);
        match self.table.find(regs.ip) {
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
        cpu.enter();
        let mut is_stale = true;
        for probe in site.probes().filter(|probe| probe.is_enabled()) {
            is_stale = false;
            match self.serve_probe(cpu, probe, regs) {
                Flow::Execute => {}
                Flow::Resume => {
                    regs.ip = self.executable_ip(regs.ip);
                    cpu.leave();
                    return;
                }
                Flow::Jprobe => return,
            }
        }
        if is_stale {
            bump(&cpu.stale_breakpoints);
        }
        self.finish(cpu, site, regs);
    }

    /// Does what `probe`, which is enabled, wants done before the displaced instruction. The guard is held.
    #[inline(always)]
    pub(crate) fn serve_probe(&self, cpu: &PerCpu, probe: &Kprobe, regs: &mut PtRegs) -> Flow {
        match probe.kind {
            Kind::Kprobe | Kind::Trampoline => {
                probe.hits.count(cpu);
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
            Kind::Kretprobe => {
                self.enter_call(cpu, probe, regs);
                Flow::Execute
            }
            Kind::Jprobe => {
                probe.hits.count(cpu);
                self.enter_jprobe(cpu, probe, regs)
            }
        }
    }

    /// Counts a hit that runs no handlers, for each probe that would have run. Returns whether there was one.
    #[cold]
    pub(crate) fn miss(&self, cpu: &PerCpu, site: &Site, regs: &PtRegs) -> bool {
        let mut is_missed = false;
        for probe in site.probes().filter(|probe| probe.is_enabled()) {
            probe.nmissed.fetch_add(1, Relaxed);
            is_missed = true;
        }
        // SAFETY: this CPU's own; the site lives while the guard is held.
        let (jprobe, sp) = unsafe {
            let frame = &*cpu.jprobe.get();
            (frame.site.as_ref(), frame.regs.sp)
        };
        if let Some(jprobe) = jprobe
            && regs.sp > sp
            && P::stack_of(sp).contains(&regs.sp)
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

    /// Executes the displaced instruction after the pre handlers. The guard is held.
    #[inline(always)]
    fn finish(&self, cpu: &PerCpu, site: &Site, regs: &mut PtRegs) {
        if let Some(step) = &site.step {
            self.pause(cpu, site, regs, step.0, TF);
            return;
        }
        match site.post_slot.load(Acquire) {
            0 if site.emulate.load(Relaxed) => self.emulate(cpu, site, regs),
            0 => {
                cpu.leave();
                self.run_slot(site, regs)
            }
            slot => self.pause(cpu, site, regs, slot, 0),
        }
    }

    /// Resumes in the displaced instruction.
    #[inline(always)]
    pub(crate) fn run_slot(&self, site: &Site, regs: &mut PtRegs) {
        if site.pops_flags() && regs.flags & TF == 0 {
            // A TF that is popped traps after the next instruction, which in the slot would be the slot's jump.
            self.carry_out(site, regs);
            return;
        }
        // Acquire: what it leads to is written.
        regs.ip = site.run.load(Acquire);
    }

    /// Resumes at `ip` with interrupts off, the guard dropped and the rest of the hit noted, for `kprobe_post_stub` or `on_debug` to take
    /// up (H4). `step`: the flag by which the processor is to trap behind the next instruction. If the code has it set already, it
    /// stays.
    #[inline(always)]
    pub(crate) fn pause(&self, cpu: &PerCpu, site: &Site, regs: &mut PtRegs, ip: u64, step: u64) {
        cpu.finishing
            .store(core::ptr::from_ref(site).cast_mut(), Relaxed);
        cpu.saved_flags.store(pushed_image(regs.flags), Relaxed);
        cpu.saved_sp.store(regs.sp, Relaxed);
        regs.flags = regs.flags & !IF | step;
        regs.ip = ip;
        cpu.leave();
    }

    /// Runs `work`, which comes on top of any instruction, with interrupts off or not: what an NMI does, or a debugger that is told of
    /// a watchpoint. If that is a displaced instruction whose hit is not over, the rest of the hit is put aside meanwhile, so what
    /// `work` hits are hits like others.
    #[inline(always)]
    pub fn aside<R>(&self, work: impl FnOnce() -> R) -> R {
        let cpu = P::this_cpu();
        let site = cpu.finishing.load(Relaxed);
        let (flags, sp) = (cpu.saved_flags.load(Relaxed), cpu.saved_sp.load(Relaxed));
        cpu.finishing.store(null_mut(), Relaxed);
        let result = work();
        cpu.saved_sp.store(sp, Relaxed);
        cpu.saved_flags.store(flags, Relaxed);
        cpu.finishing.store(site, Relaxed);
        result
    }

    /// Carries out the instruction on the saved registers and runs the post handlers at once.
    fn emulate(&self, cpu: &PerCpu, site: &Site, regs: &mut PtRegs) {
        if regs.flags & TF != 0 {
            self.emulate_stepped(cpu, site, regs);
            return;
        }
        if !self.carry_out(site, regs) {
            cpu.leave();
            self.run_slot(site, regs);
            return;
        }
        self.run_post(cpu, site, regs);
        cpu.leave();
    }

    /// Carries out the instruction on the saved registers. False: it cannot be done, and nothing has changed.
    pub(crate) fn carry_out(&self, site: &Site, regs: &mut PtRegs) -> bool {
        // SAFETY: the word that `popf` or a return would pop, on the live stack above the trap's frame.
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

    /// Runs the post handlers, in the order of the pre handlers. The guard is held.
    pub(crate) fn run_post(&self, cpu: &PerCpu, site: &Site, regs: &mut PtRegs) {
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
        if let Some((detour, offset)) = self.detours.owner(at)
            && detour.is_fallback(offset)
        {
            let site = detour.site();
            regs.ip = site.key;
            self.serve(cpu, site, regs);
            return true;
        }
        // SAFETY: the processor has just fetched an instruction from there.
        if unsafe { (at as *const u8).read_volatile() } != 0xcc {
            // It was removed between the fetch and now: the original instruction is there to be run. Resuming restores
            // the interrupt flag, so a CPU that spins on a stale translation still answers IPIs.
            bump(&cpu.stale_breakpoints);
            regs.ip = at;
            return true;
        }
        false
    }

    /// Takes up a call for a kretprobe: borrows its return address. The guard is held.
    #[inline(always)]
    fn enter_call(&self, cpu: &PerCpu, probe: &Kprobe, regs: &mut PtRegs) {
        let Some(kretprobe) = KretprobeCore::of(probe) else {
            return;
        };
        let Some(cell) = cpu.cell() else {
            kretprobe.nmissed.fetch_add(1, Relaxed);
            return;
        };
        let slot = regs.sp as *mut u64;
        // SAFETY: the word at rsp is the return address at a function's entry.
        let word = unsafe { slot.read_unaligned() };
        let sibling = self.sibling(cell, regs.sp, word);
        if sibling.is_some() && regs.sp & instance::SHARED != 0 {
            // The mark of one that joins a call needs the bit; no code has its stack there.
            kretprobe.nmissed.fetch_add(1, Relaxed);
            return;
        }
        // SAFETY: a linked kretprobe has a holder.
        let instance = unsafe { (*kretprobe.holder.load(Relaxed)).take() };
        if instance.is_null() {
            kretprobe.nmissed.fetch_add(1, Relaxed);
            return;
        }
        // SAFETY: the instance is in hand, and the slot is where it was.
        unsafe {
            (*instance).ret_addr = sibling.map_or(word, |sibling| sibling.ret_addr);
            (*instance).set_slot(regs.sp, sibling.is_some());
            if let Some(enter) = kretprobe.enter {
                cpu.running
                    .store(core::ptr::from_ref(probe).cast_mut(), Relaxed);
                let verdict = enter(&mut *instance.cast(), regs);
                cpu.running.store(null_mut(), Relaxed);
                if verdict == EntryVerdict::Decline {
                    instance::give_back(instance);
                    return;
                }
            }
            (*instance).next.store(cell.head.load(Relaxed), Relaxed);
        }
        // Release: a stack walk on another CPU that finds the instance finds it filled in.
        cell.head.store(instance, Release);
        // The ledger first: a stack walk in an NMI that finds the trampoline asks it.
        compiler_fence(SeqCst);
        // SAFETY: the slot is where it was.
        unsafe { slot.write_unaligned(kretprobe.trampoline.load(Relaxed)) };
    }

    /// Handles the return of a probed call and tells its true return address. The guard is held, so no task switch comes
    /// between.
    #[inline(always)]
    pub(crate) fn leave_call(&self, regs: &mut PtRegs) -> u64 {
        let call = self.returning(regs.sp);
        let ret_addr = call.ret_addr();
        regs.ip = ret_addr;
        call.run_handlers(P::this_cpu(), regs);
        call.release();
        ret_addr
    }

    /// The call of the current task that has just returned to a trampoline and left the stack pointer at `sp`. The guard is held,
    /// so no task switch comes between. Does not return if nothing knows of such a call.
    #[inline(always)]
    pub(crate) fn returning(&self, sp: u64) -> Returning {
        let frame = sp - 8;
        // A task that borrowed an address has a cell.
        let Some(cell) = P::this_cpu().cell() else {
            self.orphan(floor(), frame)
        };
        if self.newest_of(cell, frame).is_none() {
            self.orphan(cell.head.load(Relaxed), frame);
        }
        Returning {
            cell,
            first: cell.head.load(Relaxed),
        }
    }

    /// The newest instance of the call whose return slot is at `frame`; it is then at the head of the chain, its siblings
    /// behind it. None if there is none.
    #[inline(always)]
    fn newest_of<'a>(&self, cell: &'a TaskCell, frame: u64) -> Option<&'a Instance> {
        // SAFETY: the chain of the current task is only changed by this CPU, in strict nesting.
        match unsafe { Instance::at(cell.head.load(Relaxed)) } {
            Some(instance) if instance.is_at(frame) => Some(instance),
            _ => self.bring_to_front(cell, frame),
        }
    }

    /// The newest instance of another kretprobe that has borrowed the same return address: the return slot, at `frame`, holds `word`. I3
    /// and I2 of the ledger hold for that slot afterwards.
    #[inline(always)]
    fn sibling<'a>(&self, cell: &'a TaskCell, frame: u64, word: u64) -> Option<&'a Instance> {
        if self.entry.is_trampoline(word) {
            // Of the same call, or of the caller of a tail call.
            return self.newest_of(cell, frame);
        }
        // SAFETY: as in `newest_of`.
        match unsafe { Instance::at(cell.head.load(Relaxed)) } {
            Some(newest) if newest.slot() <= frame => self.drop_abandoned(cell, frame + 8),
            _ => {}
        }
        None
    }

    /// Gives back the instances of calls whose frames are below `end` on its stack: control is above them again, without a
    /// return. Those on other stacks are not comparable and stay.
    #[cold]
    fn drop_abandoned(&self, cell: &TaskCell, end: u64) {
        let stack = P::stack_of(end - 1);
        let mut place = &cell.head;
        // SAFETY: as in `newest_of`.
        while let Some(instance) = unsafe { Instance::at(place.load(Relaxed)) } {
            if !stack.contains(&instance.slot()) {
                place = &instance.next;
            } else if instance.slot() < end {
                place.store(instance.next.load(Relaxed), Relaxed);
                self.stale_instances.fetch_add(1, Relaxed);
                // SAFETY: unlinked just now.
                unsafe { instance::give_back(instance) };
            } else {
                return;
            }
        }
    }

    /// Looks for the call whose return slot is at `frame` behind newer ones.
    #[cold]
    fn bring_to_front<'a>(&self, cell: &'a TaskCell, frame: u64) -> Option<&'a Instance> {
        self.drop_abandoned(cell, frame);
        let mut place = &cell.head;
        // SAFETY: as in `newest_of`.
        while let Some(instance) = unsafe { Instance::at(place.load(Relaxed)) } {
            if instance.is_at(frame) {
                self.move_to_front(cell, place, instance);
                return Some(instance);
            }
            place = &instance.next;
        }
        None
    }

    /// Moves `first` and its siblings, which `place` points to, to the head of the chain.
    fn move_to_front(&self, cell: &TaskCell, place: &AtomicPtr<Instance>, first: &Instance) {
        let mut last = first;
        // SAFETY: as in `newest_of`.
        while let Some(next) = unsafe { Instance::at(last.next.load(Relaxed)) }
            && next.slot() == first.slot()
        {
            last = next;
        }
        if core::ptr::eq(place, &cell.head) {
            return;
        }
        place.store(last.next.load(Relaxed), Relaxed);
        last.next.store(cell.head.load(Relaxed), Relaxed);
        cell.head
            .store(core::ptr::from_ref(first).cast_mut(), Relaxed);
    }

    /// The end: a call returns and nothing knows where to. `newest` is the task's newest instance, if it has any.
    #[cold]
    fn orphan(&self, newest: *mut Instance, frame: u64) -> ! {
        // SAFETY: chained instances and their holders are live.
        let probe = unsafe { Instance::at(newest) }
            .and_then(|instance| unsafe { (*instance.holder).kretprobe() })
            .map_or(null(), core::ptr::from_ref);
        // The platform may end the task, which sleeps: the hit is over.
        P::this_cpu().leave();
        P::orphan_return(format_args!(
            "kretprobe BUG!: Processing kretprobe {probe:p} @ {frame:#x}: no instance knows where this call came from"
        ))
    }

    /// Leaves to a jprobe's handler, if it has one. The guard is held.
    fn enter_jprobe(&self, cpu: &PerCpu, probe: &Kprobe, regs: &mut PtRegs) -> Flow {
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
        frame.site = probe.site.load(Relaxed);
        frame.kprobe = probe;
        frame.plain = false;
        regs.ip = entry.addr();
        // Who steps through the function does not step through the handler.
        regs.flags &= !(IF | TF);
        Flow::Jprobe
    }

    /// The breakpoint of `jprobe_return`: puts back what the handler was entered with and goes on with the function.
    fn leave_jprobe(&self, cpu: &PerCpu, regs: &mut PtRegs) -> bool {
        // SAFETY: this CPU's own, interrupts off.
        let frame = unsafe { &mut *cpu.jprobe.get() };
        // SAFETY: set by `enter_jprobe`; the site lives while the guard is held.
        let Some(site) = (unsafe { frame.site.as_ref() }) else {
            return false;
        };
        if regs.sp != frame.regs.sp {
            P::fatal(format_args!(
                "jprobe at {:#x}: its handler returned with sp {:#x} instead of {:#x}\n{regs:x?}\n{:x?}",
                site.addr(),
                regs.sp,
                frame.regs.sp,
                frame.regs
            ));
        }
        frame.site = null();
        *regs = frame.regs;
        for (n, word) in frame.stack.iter().take(frame.words).enumerate() {
            // SAFETY: the same live words that `enter_jprobe` read; the trap frame lies below them.
            unsafe { (regs.sp as *mut u64).add(n).write_unaligned(*word) };
        }
        self.finish(cpu, site, regs);
        true
    }

    /// Lets the probes look at a fault first: an ip in a slot becomes the probed address, with everything as before the
    /// instruction; then fault handlers are asked. True: handled, resume from `regs`. Interrupts off, kernel mode.
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
                cpu.enter();
                // The last handler's probe may be gone; a fault in the handlers below is not for it.
                cpu.running.store(null_mut(), Relaxed);
                let handled = site
                    .probes()
                    .filter(|probe| probe.is_enabled())
                    .any(|probe| {
                        probe.fault_handler.is_some_and(|handle| {
                            handle(probe, regs, vector) == FaultVerdict::Handled
                        })
                    });
                cpu.leave();
                return handled;
            }
            // The instruction of a missed hit, part of the handler that ran into it; or one behind the probed one, in a detour.
        }
        if !cpu.is_busy() {
            return false;
        }
        // SAFETY: a probe is live while its handler runs, and the guard is held then.
        let running = unsafe {
            cpu.running
                .load(Relaxed)
                .map_addr(|addr| addr & !IN_POST)
                .as_ref()
        };
        running
            .and_then(|probe| Some((probe, probe.fault_handler?)))
            .is_some_and(|(probe, handle)| handle(probe, regs, vector) == FaultVerdict::Handled)
    }

    /// Makes `regs`, of a fault in a slot or detour, those that the original instruction would have faulted with. Returns the site.
    fn rewind(&self, cpu: &PerCpu, regs: &mut PtRegs) -> Option<&Site> {
        if let Some((detour, offset)) = self.detours.owner(regs.ip) {
            let (site, place) = (detour.site(), detour.place(offset));
            regs.sp = regs.sp.wrapping_add_signed(place.rsp_correction.into());
            regs.ip = place.ip(site.addr(), regs.sp, |_| None);
            return Some(site);
        }
        let (site, offset) = self.slots.owner(regs.ip)?;
        let slot = regs.ip - offset as u64;
        if core::ptr::eq(cpu.finishing.load(Relaxed), site) && slot != site.slot {
            // The rest of the hit is not to come: end it as if it had not been.
            let saved = cpu.saved_flags.load(Relaxed);
            regs.flags = regs.flags & !(IF | TF) | saved & (IF | TF);
            cpu.finishing.store(null_mut(), Relaxed);
        }
        let correction = site.place(slot, offset).rsp_correction;
        regs.sp = regs.sp.wrapping_add_signed(correction.into());
        regs.ip = site.addr();
        Some(site)
    }

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
    /// and in the part of a detour that [`Probes::described_ip`] knows. `read` reads a word of the stack. Any context.
    pub fn original_position(
        &self,
        ip: u64,
        sp: u64,
        read: impl FnOnce(u64) -> Option<u64>,
    ) -> (u64, u64) {
        let (site, place) = if let Some((site, offset)) = self.slots.owner(ip) {
            (site, site.place(ip - offset as u64, offset))
        } else if let Some((detour, offset)) = self.detours.owner(ip)
            && detour.described(offset).is_none()
        {
            (detour.site(), detour.place(offset))
        } else {
            return (ip, sp);
        };
        (
            place.ip(site.addr(), sp, read),
            sp.wrapping_add_signed(place.rsp_correction.into()),
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
}

/// A call that has returned to a trampoline: its instances are the newest ones of its task, and stay chained while handlers run,
/// for stack walks. The guard is held for as long as this exists.
pub(crate) struct Returning {
    cell: &'static TaskCell,
    first: *mut Instance,
}

impl Returning {
    /// Where the call really returns to.
    #[inline(always)]
    pub(crate) fn ret_addr(&self) -> u64 {
        // SAFETY: the chain of the current task is only changed by this CPU, in strict nesting.
        unsafe { (*self.first).ret_addr }
    }

    /// The instances of the call, newest first.
    #[inline(always)]
    fn instances(&self) -> impl Iterator<Item = *mut Instance> {
        // SAFETY: as in `ret_addr`.
        let slot = unsafe { (*self.first).slot() };
        let mut at = self.first;
        core::iter::from_fn(move || {
            // SAFETY: as in `ret_addr`.
            let instance =
                unsafe { Instance::at(at) }.filter(|instance| instance.slot() == slot)?;
            Some(core::mem::replace(&mut at, instance.next.load(Relaxed)))
        })
    }

    /// Runs the return handlers, newest kretprobe first.
    #[inline(always)]
    pub(crate) fn run_handlers(&self, cpu: &PerCpu, regs: &mut PtRegs) {
        for instance in self.instances() {
            // SAFETY: as in `ret_addr`. The holder outlives its instances; a kretprobe it names is freed only after a grace
            // period, which the guard holds up.
            let Some(kretprobe) = (unsafe { (*(*instance).holder).kretprobe() }) else {
                continue;
            };
            kretprobe.kprobe.hits.count(cpu);
            let running = (&raw const kretprobe.kprobe).cast_mut();
            cpu.running
                .store(running.map_addr(|addr| addr | IN_POST), Relaxed);
            // SAFETY: `KretprobeInstance<()>` begins with the instance.
            (kretprobe.handler)(unsafe { &mut *instance.cast() }, regs);
            cpu.running.store(null_mut(), Relaxed);
        }
    }

    /// Takes the instances off the chain and gives them back: the slot's address is not borrowed any more.
    #[inline(always)]
    pub(crate) fn release(self) {
        let mut at = self.first;
        let rest = self.instances().last().map_or(at, |last| {
            // SAFETY: as in `ret_addr`.
            unsafe { (*last).next.load(Relaxed) }
        });
        // Release: a stack walk in an NMI that finds the call off the ledger finds where it goes on
        // in the frame.
        self.cell.head.store(rest, Release);
        while at != rest {
            // SAFETY: unlinked just now, so in this CPU's hands.
            unsafe {
                let next = (*at).next.load(Relaxed);
                instance::give_back(at);
                at = next;
            }
        }
    }
}

/// Called by `kprobe_any_hit`.
///
/// # Safety
/// `site` was found in the address table for the address of the trap whose frame is `regs`; interrupts are off.
pub unsafe extern "C" fn serve<P: Platform>(site: *const Site, regs: *mut PtRegs) {
    // SAFETY: by the contract; the site lives until a grace period begins, which interrupts off hold up, and the frame is on this
    // stack.
    let (site, regs) = unsafe { (&*site, &mut *regs) };
    P::probes().serve(P::this_cpu(), site, regs);
}

/// Called by `kprobe_hit_post` where there is no post slot.
///
/// # Safety
/// As for [`serve`]; the pre handlers have run, and the guard is held.
pub unsafe extern "C" fn finish<P: Platform>(site: *const Site, regs: *mut PtRegs) {
    // SAFETY: as in `serve`.
    let (site, regs) = unsafe { (&*site, &mut *regs) };
    P::probes().finish(P::this_cpu(), site, regs);
}

/// Called by `kretprobe_trampoline`.
///
/// # Safety
/// `regs` is the frame that the trampoline has built, and the guard is held.
pub unsafe extern "C" fn on_return<P: Platform>(regs: *mut PtRegs) -> u64 {
    // SAFETY: by the contract; the frame is on this stack and nobody else knows it.
    P::probes().leave_call(unsafe { &mut *regs })
}

/// Whether the processor could go on at `ip`; where it has 57-bit addresses, some that it could are denied.
pub(crate) fn is_canonical(ip: u64) -> bool {
    (ip as i64) << 16 >> 16 == ip as i64
}
