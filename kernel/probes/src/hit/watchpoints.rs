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
//! WATCH-3. A movable watchpoint is moved in its own words first; then the CPU that moves it writes
//!     its register, and has the others write theirs. Each of them writes what the words say then.
//!     So whoever comes last, all registers end up where the watchpoint is. A CPU whose register is
//!     elsewhere has no hit.
//! WATCH-4. A watchpoint with a scope is in action on a CPU only while that runs a task of the
//!     scope and has that task's memory: each switch of tasks loads the registers anew. What is
//!     there then is the value that the next hit takes for the old one.
//!
//! # Contexts
//! The handler of #DB, interrupts off. [`Watches::load`]: interrupts off.

use core::{
    ptr::{self, null_mut},
    sync::atomic::Ordering::{Acquire, Relaxed},
};

use crate::{
    data::{
        per_cpu::PerCpu,
        watchpoint::{
            ALL_OFF, MOST_WATCHPOINTS, Touched, WatchAccess, Watches, Watchpoint, in_action, value,
        },
    },
    hit::{Hits, slots::in_slot_region},
    insn::flags::bits::RF,
    platform::Platform,
    pt_regs::PtRegs,
};

/// DR7: the bits that put registers in action.
const IN_ACTION: u64 = 0xff;

impl Watches {
    /// Makes the debug registers of this CPU what they are on the others. Interrupts off.
    pub(crate) fn load<P: Platform>(&self) {
        // Acquire pairs with the Release of the registry: the addresses were written before.
        let mut control = self.control.load(Acquire);
        if control != 0 {
            let cpu = P::this_cpu();
            if self.are_scoped.load(Relaxed) {
                control &= !self.out_of_scope::<P>(cpu);
            }
            let numbers: [usize; MOST_WATCHPOINTS] = core::array::from_fn(|number| number);
            let watching = &cpu.watching;
            // An NMI may touch a word in between: a match is ours from before the first until after
            // the last.
            watching.store(watching.load(Relaxed) | control, Relaxed);
            P::set_debug_registers(numbers.map(|number| self.address_of(number)), control);
            watching.store(control, Relaxed);
        }
    }

    /// The bits of DR7 for the watchpoints whose scope does not include this CPU's task. Notes what
    /// the others find first. Interrupts off.
    #[cold]
    #[inline(never)]
    fn out_of_scope<P: Platform>(&self, cpu: &PerCpu) -> u64 {
        let mut bits = 0;
        for (number, found) in cpu.found.iter().enumerate() {
            let Some(watch) = self.watch(number) else {
                continue;
            };
            let Some(scope) = &watch.scope else {
                continue;
            };
            let task = cpu.task.load(Relaxed);
            // SAFETY: `task_switched` was told of this task, and it runs here or is about to.
            if task == 0 || !unsafe { scope.includes(task) } {
                bits |= in_action(number);
            } else if watch.access != WatchAccess::Execute
                && let Some(value) = value_of::<P>(watch)
            {
                found.store(value, Relaxed);
            }
        }
        bits
    }

    /// The watchpoint of debug register `number`. Interrupts off.
    #[inline(always)]
    fn watch(&self, number: usize) -> Option<&Watchpoint> {
        let place = self.place(number)?;
        // SAFETY: a watchpoint lives until a grace period after it has left its place (WATCH-2),
        // and none ends while interrupts are off here.
        unsafe { place.load(Acquire).as_ref() }
    }

    /// What debug register `number` is to hold. Interrupts off.
    fn address_of(&self, number: usize) -> u64 {
        match self.watch(number).map(Watchpoint::addr) {
            None => 0,
            Some(0) => ptr::from_ref(&self.nothing).addr() as u64,
            Some(addr) => addr,
        }
    }

    /// The number of the debug register of `watch`, if it is registered.
    pub(crate) fn register_of(&self, watch: &Watchpoint) -> Option<usize> {
        let mut places = self.places();
        places.position(|place| ptr::eq(place.load(Relaxed), watch))
    }

    /// Has the debug register `number` of this CPU hold what it is to hold. Whether it is in action
    /// stays as it is. Interrupts off, or no other task runs on this CPU meanwhile.
    pub(crate) fn follow<P: Platform>(&self, number: usize) {
        P::set_debug_address(number, self.address_of(number));
    }

    /// Puts the debug registers of this CPU out of action, until [`Watches::serve`]. False: they
    /// are not the probes', and nothing has changed.
    #[inline(always)]
    pub(crate) fn pause<P: Platform>(cpu: &PerCpu) -> bool {
        let are_ours = cpu.watching.load(Relaxed) & IN_ACTION != 0;
        if are_ours {
            P::set_debug_control(ALL_OFF);
        }
        are_ours
    }

    /// Serves the watchpoints that `matched`, the low bits of DR6, names, and puts the registers
    /// in action again. After a step, watched instructions are left to the trap that follows.
    /// `hits` has this value.
    #[inline(always)]
    pub(crate) fn serve<P: Platform>(
        &self,
        hits: &Hits<P>,
        cpu: &PerCpu,
        regs: &mut PtRegs,
        (matched, is_step): (u64, bool),
    ) {
        // The processor may note matches of registers that are not in action, too. Others may have
        // put some in action for which this CPU has not been told.
        let control = cpu.watching.load(Relaxed) & self.control.load(Acquire);
        // The handler of one may move another that has matched in the same instruction.
        let several = matched & matched.wrapping_sub(1) != 0;
        let matched_at = several.then(|| core::array::from_fn(P::debug_address));
        let mut left = matched;
        while left != 0 {
            let number = left.trailing_zeros() as usize;
            left &= left - 1;
            if control & in_action(number) == 0 {
                continue;
            }
            if let Some(watch) = self.watch(number)
                && !(is_step && watch.access == WatchAccess::Execute)
            {
                serve_one(hits, cpu, (number, matched_at.as_ref()), watch, regs);
            }
        }
        P::clear_debug_status(matched);
        // Another CPU may want others meanwhile, and its work waits for this CPU. Under QEMU the
        // next
        // #DB would name these matches once more if they were not set anew.
        P::set_debug_control(cpu.watching.load(Relaxed));
    }
}

#[inline(always)]
fn serve_one<P: Platform>(
    hits: &Hits<P>,
    cpu: &PerCpu,
    (number, matched_at): (usize, Option<&[u64; MOST_WATCHPOINTS]>),
    watch: &Watchpoint,
    regs: &mut PtRegs,
) {
    let (addr, old, new);
    if watch.access == WatchAccess::Execute {
        if regs.ip != watch.addr() {
            return;
        }
        // Else the instruction would be watched for ever.
        regs.flags |= RF;
        (addr, old, new) = (regs.ip, 0, 0);
    } else if watch.movable {
        let matched_at = matched_at.and_then(|all| all.get(number));
        let matched_at = matched_at
            .copied()
            .unwrap_or_else(|| P::debug_address(number));
        let Some(found) = look_at_movable(matched_at, watch) else {
            return;
        };
        (addr, old, new) = found;
    } else if watch.scope.is_some() {
        let Some(found) = look_at_scoped::<P>(cpu, number, watch) else {
            watch.nmissed.fetch_add(1, Relaxed);
            return;
        };
        (addr, old, new) = found;
    } else {
        addr = watch.addr();
        // SAFETY: the registration has seen that this is memory of the kernel.
        new = unsafe { value(addr, watch.len) };
        old = watch.aim.note(new);
    }
    let Some(handler) = watch.handler else {
        watch.hits.fetch_add(1, Relaxed);
        return;
    };
    if cpu.is_busy() {
        watch.nmissed.fetch_add(1, Relaxed);
        return;
    }
    watch.hits.fetch_add(1, Relaxed);
    let mut touched = Touched {
        ip: regs.ip,
        addr,
        old,
        new,
    };
    if regs.user_mode() {
        touched.ip = P::position_in_program(regs.ip);
    } else if in_slot_region::<P>(regs.ip) {
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

/// The address `addr` that a movable watchpoint has matched at, and the values before and after.
/// None: it has been moved since, by another CPU or another handler, and what matched is no concern
/// of it any more.
#[inline(never)]
fn look_at_movable(addr: u64, watch: &Watchpoint) -> Option<(u64, u64, u64)> {
    // SAFETY: who aimed it there has seen that this is memory of the kernel, and the access that
    // matched has just found it there.
    let new = unsafe { value(addr, watch.len) };
    Some((addr, watch.aim.note_at(addr, new)?, new))
}

/// The address of a watchpoint with a scope, which is that of debug register `number`, and the
/// values before and after. None: no hit can read the value.
#[inline(never)]
fn look_at_scoped<P: Platform>(
    cpu: &PerCpu,
    number: usize,
    watch: &Watchpoint,
) -> Option<(u64, u64, u64)> {
    let found = cpu.found.get(number)?;
    let new = value_of::<P>(watch)?;
    Some((watch.addr(), found.swap(new, Relaxed), new))
}

/// What a watchpoint with a scope that includes the current task finds now. None: no hit can read
/// it.
#[inline(always)]
fn value_of<P: Platform>(watch: &Watchpoint) -> Option<u64> {
    let (addr, len) = (watch.addr(), watch.len);
    match watch.in_programs {
        true => P::value_in_program(addr, len),
        // SAFETY: the registration has seen that this is memory of the kernel.
        false => Some(unsafe { value(addr, len) }),
    }
}

/// Where the code goes on that has touched the word in a slot or detour, without the probe.
#[cold]
#[inline(never)]
fn displaced_position<P: Platform>(hits: &Hits<P>, regs: &PtRegs) -> u64 {
    hits.original_position(regs.ip, regs.sp, |_| None).0
}
