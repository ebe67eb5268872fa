//! Return probes: borrowing a return address, and the way back of a call.
//!
//! At the entry an instance keeps the true return address, and the return slot gets the
//! trampoline's. At the return the instance of that slot says where to go. The instances of a task
//! are a list, newest first; those of one call, of several kretprobes, are neighbours and have one
//! slot.
//!
//! A call may never return: its frame is jumped over or unwound. Its instance is found when the
//! task next enters or leaves a probed call at a slot above it on the same stack. It is given back
//! then and counted.
//!
//! # Memory ordering
//! Only the task's own CPU changes its list, in strict nesting. A stack walk may read it at any
//! moment, in an NMI or from another CPU. So an instance is filled in before it is on the list
//! (Release), and the return slot changes after that: who finds the trampoline finds the instance.
//!
//! # Contexts
//! Interrupts off at the entry. At the return as the function had them, with the guard held, so
//! that the CPU switches no task.

use core::{
    marker::PhantomData,
    ptr::{null, null_mut},
    sync::atomic::{
        AtomicPtr,
        Ordering::{Relaxed, Release, SeqCst},
        compiler_fence,
    },
};

use crate::{
    data::{
        action::CallAction,
        instance::{self, Instance, TaskCell, oldest},
        kprobe::Kprobe,
        kretprobe::{EntryVerdict, KretprobeCore},
        per_cpu::{HitGuard, IN_POST, PerCpu},
    },
    hit::Hits,
    platform::Platform,
    pt_regs::PtRegs,
};

impl<P: Platform> Hits<P> {
    /// Takes up a call for a kretprobe: borrows its return address.
    #[inline(always)]
    pub(super) fn enter_call(&self, cpu: &HitGuard<'_>, probe: &Kprobe, regs: &mut PtRegs) {
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
        // The instance list first: a stack walk in an NMI that finds the trampoline asks the list.
        compiler_fence(SeqCst);
        // SAFETY: the slot is where it was.
        unsafe { slot.write_unaligned(kretprobe.trampoline.load(Relaxed)) };
    }

    /// Handles the return of a probed call and tells its true return address. The guard keeps task
    /// switches away.
    #[inline(always)]
    pub(crate) fn leave_call(&self, cpu: &HitGuard<'_>, regs: &mut PtRegs) -> u64 {
        let call = self.returning(cpu, regs.sp);
        let ret_addr = call.ret_addr();
        regs.ip = ret_addr;
        call.run_handlers(cpu, regs);
        call.release();
        ret_addr
    }

    /// The call of the current task that has just returned to a trampoline and left the stack
    /// pointer at `sp`. Does not return if nothing knows of such a call.
    #[inline(always)]
    pub(crate) fn returning<'a>(&self, guard: &'a HitGuard<'_>, sp: u64) -> Returning<'a> {
        let slot = sp - 8;
        // A task that borrowed an address has a cell.
        let Some(cell) = guard.cell() else {
            self.orphan(guard, oldest(), slot)
        };
        if self.newest_of(cell, slot).is_none() {
            self.orphan(guard, cell.head.load(Relaxed), slot);
        }
        Returning {
            cell,
            first: cell.head.load(Relaxed),
            _guard: PhantomData,
        }
    }

    /// The newest instance of the call whose return slot is at `slot`. It is then at the head of
    /// the list, and its siblings are after it. None if there is none.
    #[inline(always)]
    fn newest_of<'a>(&self, cell: &'a TaskCell, slot: u64) -> Option<&'a Instance> {
        // SAFETY: the chain of the current task is only changed by this CPU, in strict nesting.
        match unsafe { Instance::at(cell.head.load(Relaxed)) } {
            Some(instance) if instance.is_at(slot) => Some(instance),
            _ => self.bring_to_front(cell, slot),
        }
    }

    /// The newest instance of another kretprobe that has borrowed the same return address: the
    /// return slot, at `slot`, holds `word`. INSTANCE-3 and INSTANCE-2 hold for that slot
    /// afterwards.
    #[inline(always)]
    fn sibling<'a>(&self, cell: &'a TaskCell, slot: u64, word: u64) -> Option<&'a Instance> {
        if self.entry.is_trampoline(word) {
            // The word belongs to the same call, or to the caller of a tail call.
            return self.newest_of(cell, slot);
        }
        // SAFETY: as in `newest_of`.
        match unsafe { Instance::at(cell.head.load(Relaxed)) } {
            Some(newest) if newest.slot() <= slot => self.drop_abandoned(cell, slot + 8),
            _ => {}
        }
        None
    }

    /// Gives back the instances of calls whose frames are below `end` on its stack. Control is
    /// above them again, without a return. Frames on other stacks cannot be compared, so their
    /// instances stay.
    #[cold]
    fn drop_abandoned(&self, cell: &TaskCell, end: u64) {
        let stack = P::stack_of(end - 1);
        let mut link = &cell.head;
        // SAFETY: as in `newest_of`.
        while let Some(instance) = unsafe { Instance::at(link.load(Relaxed)) } {
            if !stack.contains(&instance.slot()) {
                link = &instance.next;
            } else if instance.slot() < end {
                link.store(instance.next.load(Relaxed), Relaxed);
                self.stale_instances.fetch_add(1, Relaxed);
                // SAFETY: unlinked just now.
                unsafe { instance::give_back(instance) };
            } else {
                return;
            }
        }
    }

    /// Looks among the older calls for the one whose return slot is at `slot`.
    #[cold]
    fn bring_to_front<'a>(&self, cell: &'a TaskCell, slot: u64) -> Option<&'a Instance> {
        self.drop_abandoned(cell, slot);
        let mut link = &cell.head;
        // SAFETY: as in `newest_of`.
        while let Some(instance) = unsafe { Instance::at(link.load(Relaxed)) } {
            if instance.is_at(slot) {
                self.move_to_front(cell, link, instance);
                return Some(instance);
            }
            link = &instance.next;
        }
        None
    }

    /// Moves `first` and its siblings, which `link` points to, to the head of the list.
    fn move_to_front(&self, cell: &TaskCell, link: &AtomicPtr<Instance>, first: &Instance) {
        let mut last = first;
        // SAFETY: as in `newest_of`.
        while let Some(next) = unsafe { Instance::at(last.next.load(Relaxed)) }
            && next.slot() == first.slot()
        {
            last = next;
        }
        if core::ptr::eq(link, &cell.head) {
            return;
        }
        link.store(last.next.load(Relaxed), Relaxed);
        last.next.store(cell.head.load(Relaxed), Relaxed);
        cell.head
            .store(core::ptr::from_ref(first).cast_mut(), Relaxed);
    }

    /// The end: a call returns and nothing knows where to. `newest` is the task's newest instance,
    /// if it has any.
    #[cold]
    fn orphan(&self, guard: &HitGuard<'_>, newest: *mut Instance, slot: u64) -> ! {
        // SAFETY: chained instances and their holders are live.
        let probe = unsafe { Instance::at(newest) }
            .and_then(|instance| unsafe { (*instance.holder).kretprobe() })
            .map_or(null(), core::ptr::from_ref);
        // The platform may end the task, which sleeps: the hit is over.
        // SAFETY: held, as the value given says. Nothing else drops it, because this does not
        // return.
        drop(unsafe { guard.held() });
        P::orphan_return(format_args!(
            "kretprobe BUG!: Processing kretprobe {probe:p} @ {slot:#x}: \
             no instance knows where this call came from"
        ))
    }
}

impl CallAction {
    /// The function whose call a routine of this CPU handles: in a routine of a call. 0 elsewhere.
    #[inline(always)]
    pub fn function<P: Platform>() -> u64 {
        let running = P::this_cpu().running_handler();
        running.map_or(0, |(probe, _)| probe.addr())
    }

    /// The shared words of the newest call of the current task that the same routine follows to its
    /// return as that of `instance`: the call that encloses this one. Null if there is none. Calls
    /// of other kretprobes are passed over, and so are those whose kretprobe was unregistered.
    ///
    /// # Safety
    /// [`CallAction::entry`] asks, of the instance that it was given,
    /// before it returns. The words are those of a call that goes on: they are read and written on
    /// this CPU only, and as many as its own action says.
    #[inline(always)]
    pub unsafe fn enclosing_words<P: Platform>(instance: *const ()) -> *mut u64 {
        let routine_of = |instance: &Instance| {
            // SAFETY: the instance is in hand or on the list, so its holder is live.
            unsafe { (*instance.holder).kretprobe_or_retired().handler as *const () }
        };
        let Some(cell) = P::this_cpu().cell() else {
            return null_mut();
        };
        let entered: *mut Instance = instance.cast_mut().cast();
        // SAFETY: by the contract.
        let routine = routine_of(unsafe { &*entered });
        let mut link = cell.head.load(Relaxed);
        // The call that is entered may be on the list already.
        if link == entered {
            // SAFETY: as above.
            link = unsafe { (*link).next.load(Relaxed) };
        }
        while link != oldest() {
            // SAFETY: a link of the list of the current task, which is only changed by this CPU, in
            // strict nesting.
            let outer = unsafe { &*link };
            if core::ptr::eq(routine_of(outer), routine) {
                return link.wrapping_add(1).cast();
            }
            link = outer.next.load(Relaxed);
        }
        null_mut()
    }

    /// Calls `visit` with the routine at the return and the shared words of each call that the
    /// current task is in, newest first. A call whose kretprobe was unregistered has another
    /// routine than that of its action.
    ///
    /// # Safety
    /// Interrupts are off. `visit` may use as many words as the action says that it knows by its
    /// routine.
    #[inline(always)]
    pub unsafe fn each_call<P: Platform>(mut visit: impl FnMut(u64, *mut u64)) {
        let Some(cell) = P::this_cpu().cell() else {
            return;
        };
        let mut link = cell.head.load(Relaxed);
        while link != oldest() {
            // SAFETY: a link of the list of the current task, which only this CPU changes. Its
            // holder is live, and the kretprobe that the holder names is so for a grace period,
            // which waits for this CPU.
            let (call, kretprobe) = unsafe { (&*link, (*(*link).holder).kretprobe_or_retired()) };
            let routine = kretprobe.handler as *const () as u64;
            visit(routine, link.wrapping_add(1).cast());
            link = call.next.load(Relaxed);
        }
    }
}

/// A call that has returned to a trampoline. Its instances are the newest ones of its task. They
/// stay on the list while handlers run, for stack walks. It holds on to the guard.
pub(crate) struct Returning<'a> {
    cell: &'static TaskCell,
    first: *mut Instance,
    _guard: PhantomData<&'a ()>,
}

impl Returning<'_> {
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
            // SAFETY: as in `ret_addr`. The holder outlives its instances. A kretprobe that it
            // names is freed only after a grace period, which the guard holds up.
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

    /// Takes the instances off the list and gives them back: the return slot is not borrowed any
    /// more.
    #[inline(always)]
    pub(crate) fn release(self) {
        let mut at = self.first;
        let rest = self.instances().last().map_or(at, |last| {
            // SAFETY: as in `ret_addr`.
            unsafe { (*last).next.load(Relaxed) }
        });
        // Release: a stack walk in an NMI that does not find the call on the list finds in the
        // frame where it goes on.
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
