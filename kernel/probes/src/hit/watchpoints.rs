//! Hits of watchpoints: a #DB after an instruction that has touched a watched word.
//!
//! The debug registers of all CPUs are the same, and `data/watchpoint.rs` has what they hold. The
//! processor notes in DR6 which of them have matched. One #DB may be the end of a single step as
//! well; then the rest of [`Hits::on_debug`](crate::hit::Hits::on_debug) deals with that.
//!
//! # Invariants
//! WATCH-1. While a hit is served, the debug registers of its CPU are off (DR7). So a handler that
//!     touches a watched word ends, and nothing that the trap runs through need be refused for
//!     that. Only the words between the gate and that point are: those of the CPU's own data.
//! WATCH-2. A watchpoint leaves its place here after all CPUs have dropped it from their registers,
//!     and is freed a grace period later.
//!
//! # Contexts
//! The handler of #DB, interrupts off. [`Watches::load`]: interrupts off.

use core::{
    ptr::null_mut,
    sync::atomic::Ordering::{Acquire, Relaxed},
};

use crate::{
    data::{
        per_cpu::PerCpu,
        watchpoint::{ALL_OFF, Touched, Watches, Watchpoint, value},
    },
    hit::{Hits, slots::in_slot_region},
    platform::Platform,
    pt_regs::PtRegs,
};

/// DR7: the bits that put registers in action.
const IN_ACTION: u64 = 0xff;

impl Watches {
    /// Makes the debug registers of this CPU what they are on the others. Interrupts off.
    pub(crate) fn load<P: Platform>(&self) {
        // Acquire pairs with the Release of the registry: the addresses were written before.
        let control = self.control.load(Acquire);
        if control != 0 {
            let addrs = self.addrs.each_ref();
            P::set_debug_registers(addrs.map(|addr| addr.load(Relaxed)), control);
        }
    }

    /// Puts the debug registers of this CPU out of action, until [`Watches::serve`]. False: they
    /// are not the probes', and nothing has changed.
    #[inline(always)]
    pub(crate) fn pause<P: Platform>(&self) -> bool {
        let are_ours = self.control.load(Relaxed) & IN_ACTION != 0;
        if are_ours {
            P::set_debug_control(ALL_OFF);
        }
        are_ours
    }

    /// Serves the watchpoints that `matched`, the low bits of DR6, names, and puts the registers
    /// in action again. `hits` has this value.
    #[inline(always)]
    pub(crate) fn serve<P: Platform>(
        &self,
        hits: &Hits<P>,
        cpu: &PerCpu,
        regs: &mut PtRegs,
        matched: u64,
    ) {
        // The processor may note matches of registers that are not in action, too.
        let control = self.control.load(Acquire);
        let mut left = matched;
        while left != 0 {
            let number = left.trailing_zeros() as usize;
            left &= left - 1;
            if control >> (2 * number) & 0b11 == 0 {
                continue;
            }
            let place = self.places.get(number);
            // SAFETY: a watchpoint lives until a grace period after it has left its place
            // (WATCH-2), and none ends in this handler.
            if let Some(watch) = place.and_then(|at| unsafe { at.load(Acquire).as_ref() }) {
                serve_one(hits, cpu, watch, regs);
            }
        }
        P::clear_debug_status(matched);
        // Another CPU may have changed them meanwhile, and its work waits for this CPU. Under QEMU
        // the next #DB would name these matches once more if they were not set anew.
        P::set_debug_control(self.control.load(Acquire));
    }
}

#[inline(always)]
fn serve_one<P: Platform>(hits: &Hits<P>, cpu: &PerCpu, watch: &Watchpoint, regs: &mut PtRegs) {
    // SAFETY: the registration has seen that this is memory of the kernel.
    let new = unsafe { value(watch.addr(), watch.len) };
    let old = watch.last.swap(new, Relaxed);
    if cpu.is_busy() {
        watch.nmissed.fetch_add(1, Relaxed);
        return;
    }
    watch.hits.fetch_add(1, Relaxed);
    let Some(handler) = watch.handler else {
        return;
    };
    let mut touched = Touched {
        ip: regs.ip,
        old,
        new,
    };
    if in_slot_region::<P>(regs.ip) {
        touched.ip = displaced_position(hits, regs);
    }
    let run = |regs: &mut PtRegs| {
        let guard = cpu.enter();
        cpu.running.store(null_mut(), Relaxed);
        handler(watch, regs, &touched);
        drop(guard);
    };
    if cpu.is_in_hit() {
        // The instruction is the displaced one of a hit whose rest is still to come.
        hits.aside(|| run(regs));
    } else {
        run(regs);
    }
}

/// Where the code goes on that has touched the word in a slot or detour, without the probe.
#[cold]
#[inline(never)]
fn displaced_position<P: Platform>(hits: &Hits<P>, regs: &PtRegs) -> u64 {
    hits.original_position(regs.ip, regs.sp, |_| None).0
}
