//! The return paths of 2005: a probed call comes back to its handlers through a breakpoint.
//!
//! Both methods have the call return to a trampoline that is one `nop`, with a kprobe of the
//! probes' own on it. They are kept to be seen at work and measured. For the handlers they do the
//! same as the assembly.
//!
//! ```text
//!                    trap4                      trap3                    asm
//!   call    #BP      borrow the return address  the same                 the same
//!           #DB *    the entry's step is over   the same                 the same
//!   return  #BP      pre: run the handlers      pre: run the handlers,   no trap: the trampoline
//!                                               release, go home         calls them and returns
//!           #DB      post: release, go home
//!
//!   * with StepMethod::TrapFlag; translated, the entry's instruction costs no second trap
//! ```
//!
//! So there are four interruptions and three where displaced instructions are stepped. The `nop`
//! itself is always stepped, because its kprobe asks for that.
//!
//! Handlers see one difference, in `regs.ip`: with the assembly it is the true return address, and
//! here it is the address after the trampoline's breakpoint. All methods use the same instance
//! list ([`instance`](crate::data::instance)), so calls of one task may come back by different
//! methods. All kretprobes of one function have the same.
//!
//! # Invariants
//! HISTORIC-1. A trampoline's kprobe is registered before the first return slot names the
//!     trampoline. From then on it stays, because calls in flight outlive their kretprobes. It is
//!     in no list, the knob does not disarm it, and nothing can reach it to unregister it.
//! HISTORIC-2. The guard is free when control comes to a trampoline. A call that started while the
//!     guard was held has no instance, so it cannot come here.
//!
//! # Contexts
//! The handlers below are kprobe handlers: guard held, interrupts off. [`Probes::ready_trampoline`]
//! runs under the registry's lock.

use alloc::boxed::Box;
use core::{
    mem::ManuallyDrop,
    sync::atomic::Ordering::{Relaxed, Release},
};

use crate::{
    data::{
        kprobe::{Kprobe, PreVerdict, ProbeKind},
        method::{ReturnMethod, StepMethod},
        per_cpu::{HitGuard, PerCpu},
    },
    error::ProbeError,
    hit::calls::Returning,
    pt_regs::PtRegs,
    registry::{
        memory::try_box,
        state::{Host, Probes, State},
        target::Function,
        text::write_breakpoints,
    },
};

impl<P: Host> Probes<P> {
    /// The trampoline that calls return to by `method`.
    pub(crate) fn trampoline_of(&self, method: ReturnMethod) -> u64 {
        let [trap3, trap4] = &self.entry.historic_trampolines;
        match method {
            ReturnMethod::Asm => &self.entry.trampoline,
            ReturnMethod::Trap3 => trap3,
            ReturnMethod::Trap4 => trap4,
        }
        .load(Relaxed)
    }

    /// The trampoline that calls return to by `method`, ready for them: with the kprobe there that
    /// the method needs (HISTORIC-1).
    ///
    /// # Errors
    /// [`ProbeError::OutOfMemory`] for that kprobe.
    pub(crate) fn ready_trampoline(
        &self,
        state: &mut State,
        method: ReturnMethod,
    ) -> Result<u64, ProbeError> {
        let addr = self.trampoline_of(method);
        let kprobe = Kprobe::of_kind(ProbeKind::Trampoline).step_method(StepMethod::TrapFlag);
        let (place, kprobe) = match method {
            ReturnMethod::Asm => return Ok(addr),
            ReturnMethod::Trap3 => (&self.historic.trap3, kprobe.pre(handle_and_go_home::<P>)),
            ReturnMethod::Trap4 => (
                &self.historic.trap4,
                kprobe.pre(handle::<P>).post(go_home::<P>),
            ),
        };
        if !place.load(Relaxed).is_null() {
            return Ok(addr);
        }
        let kprobe = try_box(kprobe)?;
        let symbol = P::symbol_at(addr).ok_or(ProbeError::NoSymbolAt { addr })?;
        let mut function = Function::default();
        let target = self.target(addr, &symbol, StepMethod::TrapFlag, &mut function)?;
        let counter = state.counters.take(state.cpus)?;
        let site = match self.make_site(state, &target, StepMethod::TrapFlag) {
            Ok(site) => site,
            Err(error) => {
                state.counters.give_back(counter);
                return Err(error);
            }
        };
        // For ever, with its kprobe and its two slots. One is for a translation, one for a copy to
        // step.
        let kprobe: &Kprobe = Box::leak(kprobe);
        place.store(core::ptr::from_ref(kprobe).cast_mut(), Relaxed);
        // SAFETY: a site is memory of the registry, and this one is never given back.
        let site = unsafe { site.as_ref() };
        state.slots.keep(2);
        kprobe.addr.store(addr, Relaxed);
        kprobe.hits.start(counter, state.counter_origin);
        kprobe
            .site
            .store(core::ptr::from_ref(site).cast_mut(), Release);
        site.link(kprobe, &P::entry_points());
        self.table.insert(&mut state.fill, site);
        site.to_write.store(true, Relaxed);
        write_breakpoints::<P>(core::iter::once(site));
        Ok(addr)
    }
}

/// The guard that is held for the kprobe handler that calls this.
#[inline(always)]
fn guard<P: Host>() -> ManuallyDrop<HitGuard<'static>> {
    // SAFETY: handlers run under the guard, and the hit drops it.
    ManuallyDrop::new(unsafe { P::this_cpu().held() })
}

/// Runs the handlers of a call that is back. As in the assembly, they change general registers and
/// flags, but not the stack pointer.
#[inline(always)]
fn run_handlers(cpu: &PerCpu, call: &Returning<'_>, regs: &mut PtRegs) {
    let sp = regs.sp;
    call.run_handlers(cpu, regs);
    regs.sp = sp;
}

/// Sends the call to where it came from. The address first, because a stack walk in an NMI needs it
/// or the instance list.
#[inline(always)]
fn leave(call: Returning<'_>, regs: &mut PtRegs) {
    regs.ip = call.ret_addr();
    call.release();
}

/// `trap3`, pre handler: everything, and the `nop` is not executed.
fn handle_and_go_home<P: Host>(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    let guard = guard::<P>();
    let call = P::probes().returning(&guard, regs.sp);
    run_handlers(&guard, &call, regs);
    leave(call, regs);
    PreVerdict::Resume
}

/// `trap4`, pre handler.
fn handle<P: Host>(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    let guard = guard::<P>();
    run_handlers(&guard, &P::probes().returning(&guard, regs.sp), regs);
    PreVerdict::Execute
}

/// `trap4`, post handler: the `nop` has been stepped, but control goes elsewhere.
fn go_home<P: Host>(_: &Kprobe, regs: &mut PtRegs, _flags: u64) {
    leave(P::probes().returning(&guard::<P>(), regs.sp), regs);
}
