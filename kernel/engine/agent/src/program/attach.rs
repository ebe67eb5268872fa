//! Kprobes and kretprobes that carry programs, one or many at a time.
//!
//! | type | probes | when it is dropped |
//! |---|---|---|
//! | [`AttachedProbe`], [`AttachedCall`] | one, which can be turned on and off | unregistered |
//! | [`AttachedProbes`], [`AttachedCalls`] | a batch at several addresses | unregistered at once |
//!
//! Each has the probe, the action that the probe points to, and the programs whose code the action
//! leads to, and gives them up in this order (PROGRAM-2). The action is [`Shared`], because a box
//! that is moved claims to be the only way to what is in it. A batch that cannot be unregistered
//! stays in memory with all that a hit needs.
//!
//! # Contexts
//! Tasks that may sleep: registering and unregistering wait for a grace period.

use alloc::{boxed::Box, vec::Vec};
use core::marker::PhantomData;

use bpf::ProgramKind;
use fallible::{Shared, try_box, try_vec};
use probes::{Action, CallAction, Kprobe, Kretprobe, Probe, Registered};

use super::{error::LoadError, load::Program};
use crate::Agent;

/// A kprobe that runs a program, from its registration to its drop.
pub struct AttachedProbe<A: Agent> {
    // Dropped in this order (PROGRAM-2).
    probe: Registered<A, Box<Kprobe>>,
    _action: Shared<Action>,
    program: Shared<Program<A>>,
}

impl<A: Agent> AttachedProbe<A> {
    /// Registers `probe`, which has an address and no handlers, with `program`.
    ///
    /// # Errors
    /// [`LoadError`]; nothing has changed then.
    pub fn new(program: Shared<Program<A>>, probe: Kprobe) -> Result<Self, LoadError> {
        let action = program
            .action
            .ok_or(LoadError::Kind(program.source().kind))?;
        let action = Shared::try_new(action)?;
        // SAFETY: the action and its code live until the probe is unregistered, by the order of the
        // fields. The compiler and the verifier see to the rest.
        let probe = unsafe { probe.action(&*action) };
        Ok(Self {
            probe: A::probes().register_owned(try_box(probe)?)?,
            _action: action,
            program,
        })
    }

    /// The probe.
    pub fn kprobe(&self) -> &Kprobe {
        &self.probe
    }

    /// The program.
    pub fn program(&self) -> &Shared<Program<A>> {
        &self.program
    }

    /// How many hits were missed: beside other probes, while the CPU was in their handlers.
    pub fn misses(&self) -> u64 {
        self.kprobe().nmissed()
    }

    /// Enables the probe, if it was disabled.
    pub fn start(&self) {
        // It is registered, and only tasks that may sleep have attached probes.
        let _ = A::probes().enable(self.kprobe());
    }

    /// Disables the probe. Returns its misses, which do not change any more.
    pub fn stop(&self) -> u64 {
        // As above.
        let _ = A::probes().disable(self.kprobe());
        A::probes().synchronize_hits();
        self.misses()
    }
}

/// A probe that counts what it missed.
pub(crate) trait Misses: Probe {
    /// How many hits or calls were missed so far.
    fn misses(&self) -> u64;
}

impl Misses for Kprobe {
    fn misses(&self) -> u64 {
        self.nmissed()
    }
}

impl Misses for Kretprobe {
    fn misses(&self) -> u64 {
        self.nmissed() + self.kprobe().nmissed()
    }
}

/// Probes with the same action, registered in one call.
pub(crate) struct Batch<A: Agent, P: Misses + 'static, C> {
    /// From `Box::into_raw`. Dropped when they are unregistered.
    probes: *mut [P],
    /// The same, for the registry. Kept, because a detachment must not need memory.
    references: Vec<&'static P>,
    /// None when they are unregistered.
    action: Option<Shared<C>>,
    agent: PhantomData<fn(A)>,
}

// SAFETY: this is the probes' owner, and the rest is `Send` by itself.
unsafe impl<A: Agent, P: Misses + Send + Sync, C: Send> Send for Batch<A, P, C> {}
// SAFETY: the probes are only shared.
unsafe impl<A: Agent, P: Misses + Sync, C: Sync> Sync for Batch<A, P, C> {}

impl<A: Agent, P: Misses, C> Batch<A, P, C> {
    /// Registers a probe at each of `addresses`. `probe` makes one with the action, which lives
    /// until [`Batch::remove`] has unregistered it.
    ///
    /// # Errors
    /// [`LoadError`], of the first address that is refused; nothing has changed then.
    pub(crate) fn new(
        action: C,
        addresses: &[u64],
        probe: impl Fn(u64, &C) -> P,
    ) -> Result<Self, LoadError> {
        let action = Shared::try_new(action)?;
        let mut probes = try_vec(addresses.len())?;
        let mut references = try_vec(addresses.len())?;
        probes.extend(addresses.iter().map(|address| probe(*address, &action)));
        // No bytes are to spare, so this needs no memory.
        let probes = Box::into_raw(probes.into_boxed_slice());
        // SAFETY: they are dropped after their unregistration, in `remove`, and nothing has these
        // references then.
        references.extend(unsafe { &*probes });
        match A::probes().register_batch(&references) {
            Ok(()) => Ok(Self {
                probes,
                references,
                action: Some(action),
                agent: PhantomData,
            }),
            Err(error) => {
                references.clear();
                // SAFETY: from `into_raw` above, and nothing else has them.
                drop(unsafe { Box::from_raw(probes) });
                Err(error.into())
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.references.len()
    }

    pub(crate) fn misses(&self) -> u64 {
        self.references.iter().map(|probe| probe.misses()).sum()
    }

    /// Unregisters those at the addresses that `goes` is true of, and waits once. Their misses are
    /// counted no more.
    pub(crate) fn remove_some(&mut self, goes: impl Fn(u64) -> bool) {
        let mut left = 0;
        for at in 0..self.references.len() {
            if !goes(self.references[at].kprobe().addr()) {
                self.references.swap(left, at);
                left += 1;
            }
        }
        // Those that cannot be unregistered stay, and are hit still.
        if A::probes()
            .unregister_batch(&self.references[left..])
            .is_ok()
        {
            self.references.truncate(left);
        }
    }

    /// Unregisters them, once. Returns their misses, which do not change any more. `programs` are
    /// those that hits run.
    pub(crate) fn remove<T>(&mut self, programs: impl FnOnce() -> T) -> u64 {
        if self.action.is_none() {
            return 0;
        }
        let removed = A::probes().unregister_batch(&self.references);
        let misses = self.misses();
        let action = self.action.take();
        self.references.clear();
        match removed {
            // SAFETY: from `Box::into_raw`, once; nothing reaches them any more.
            Ok(()) => drop(unsafe { Box::from_raw(self.probes) }),
            // They are hit still. So they stay, with all that a hit needs.
            Err(_) => core::mem::forget((action, programs())),
        }
        misses
    }
}

/// Kprobes that all run one program, registered in one call.
pub struct AttachedProbes<A: Agent> {
    batch: Batch<A, Kprobe, Action>,
    program: Shared<Program<A>>,
}

impl<A: Agent> AttachedProbes<A> {
    /// Registers a probe at each of `addresses` with `program`.
    ///
    /// # Errors
    /// [`LoadError`], of the first address that is refused; nothing has changed then.
    pub fn new(program: Shared<Program<A>>, addresses: &[u64]) -> Result<Self, LoadError> {
        let action = program
            .action
            .ok_or(LoadError::Kind(program.source().kind))?;
        // SAFETY: the action lives until the probe is unregistered, and so does its code: the
        // program is dropped after the batch.
        let probe = |at, action: &Action| unsafe { Kprobe::new().at(at).action(action) };
        let batch = Batch::new(action, addresses, probe)?;
        Ok(Self { batch, program })
    }

    /// How many probes there are.
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The program.
    pub fn program(&self) -> &Shared<Program<A>> {
        &self.program
    }

    /// How many hits were missed so far: beside other probes, while the CPU was in their handlers.
    pub fn misses(&self) -> u64 {
        self.batch.misses()
    }

    /// Detaches those at the addresses that `goes` is true of. It needs no memory.
    pub fn detach_some(&mut self, goes: impl Fn(u64) -> bool) {
        self.batch.remove_some(goes);
    }

    /// Detaches them. Returns their misses, which do not change any more.
    pub fn detach(mut self) -> u64 {
        self.remove()
    }

    fn remove(&mut self) -> u64 {
        self.batch.remove(|| self.program.clone())
    }
}

impl<A: Agent> Drop for AttachedProbes<A> {
    fn drop(&mut self) {
        self.remove();
    }
}

/// The routines of the two programs of a call.
///
/// # Errors
/// [`LoadError::Kind`], [`LoadError::Shared`].
fn call_action<A: Agent>(
    entry: Option<&Shared<Program<A>>>,
    on_return: &Program<A>,
) -> Result<CallAction, LoadError> {
    let kind = on_return.source().kind;
    let (ProgramKind::Return { data }, Some(on_return)) = (kind, on_return.on_return) else {
        return Err(LoadError::Kind(kind));
    };
    if let Some(entry) = entry {
        match entry.source().kind {
            ProgramKind::Entry { data: shared } if shared == data => {}
            ProgramKind::Entry { data: shared } => {
                return Err(LoadError::Shared {
                    entry: shared,
                    on_return: data,
                });
            }
            kind => return Err(LoadError::Kind(kind)),
        }
    }
    let entry = entry.and_then(|entry| entry.entry);
    Ok(CallAction {
        entry: entry.map(|entry| entry.routine),
        jump_entry: entry.map(|entry| entry.by_jump),
        on_return: on_return.routine,
        jump_return: Some(on_return.by_jump),
        shared_words: data.div_ceil(8) as usize,
    })
}

/// A kretprobe that runs programs at the entry and the return of calls.
pub struct AttachedCall<A: Agent> {
    // Dropped in this order (PROGRAM-2).
    probe: Registered<A, Box<Kretprobe>>,
    _entry: Option<Shared<Program<A>>>,
    on_return: Shared<Program<A>>,
}

impl<A: Agent> AttachedCall<A> {
    /// Registers `probe`, which has an address and no handlers, with the programs.
    ///
    /// # Errors
    /// [`LoadError`]; nothing has changed then.
    pub fn new(
        entry: Option<Shared<Program<A>>>,
        on_return: Shared<Program<A>>,
        probe: Kretprobe,
    ) -> Result<Self, LoadError> {
        let action = call_action(entry.as_ref(), &on_return)?;
        // SAFETY: as in `AttachedProbe::new`.
        let probe = unsafe { probe.action(action) };
        Ok(Self {
            probe: A::probes().register_owned(try_box(probe)?)?,
            _entry: entry,
            on_return,
        })
    }

    /// The probe.
    pub fn kretprobe(&self) -> &Kretprobe {
        &self.probe
    }

    /// The program of the return.
    pub fn program(&self) -> &Shared<Program<A>> {
        &self.on_return
    }

    /// How many calls were missed: the CPU was in handlers, or no instance was free.
    pub fn misses(&self) -> u64 {
        Misses::misses(self.kretprobe())
    }

    /// Enables the probe, if it was disabled.
    pub fn start(&self) {
        // As for a probe.
        let _ = A::probes().enable(self.kretprobe());
    }

    /// Disables the probe. Returns its misses, which do not change any more. Calls that are under
    /// way are still seen to return.
    pub fn stop(&self) -> u64 {
        // As for a probe.
        let _ = A::probes().disable(self.kretprobe());
        A::probes().synchronize_hits();
        self.misses()
    }
}

/// Kretprobes that all run the same programs, registered in one call.
pub struct AttachedCalls<A: Agent> {
    batch: Batch<A, Kretprobe, CallAction>,
    entry: Option<Shared<Program<A>>>,
    on_return: Shared<Program<A>>,
}

impl<A: Agent> AttachedCalls<A> {
    /// Registers a probe on each of the functions that begin at `addresses`.
    ///
    /// # Errors
    /// [`LoadError`], of the first address that is refused; nothing has changed then.
    pub fn new(
        entry: Option<Shared<Program<A>>>,
        on_return: Shared<Program<A>>,
        addresses: &[u64],
    ) -> Result<Self, LoadError> {
        let action = call_action(entry.as_ref(), &on_return)?;
        // SAFETY: the action lives until the probe is unregistered, and so does its code: the
        // programs are dropped after the batch.
        let probe = |at, action: &CallAction| unsafe { Kretprobe::new().at(at).action(*action) };
        let batch = Batch::new(action, addresses, probe)?;
        Ok(Self {
            batch,
            entry,
            on_return,
        })
    }

    /// How many probes there are.
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of the routine at the return of their calls.
    pub fn return_routine(&self) -> Option<u64> {
        (self.on_return.on_return).map(|of_return| of_return.routine as *const () as u64)
    }

    /// How many calls were missed so far: the CPU was in handlers, or no instance was free.
    pub fn misses(&self) -> u64 {
        self.batch.misses()
    }

    /// Detaches them. Returns their misses, which do not change any more. Calls that are under way
    /// are not seen to return.
    pub fn detach(mut self) -> u64 {
        self.remove()
    }

    fn remove(&mut self) -> u64 {
        let Self {
            entry, on_return, ..
        } = self;
        self.batch.remove(|| (entry.clone(), on_return.clone()))
    }
}

impl<A: Agent> Drop for AttachedCalls<A> {
    fn drop(&mut self) {
        self.remove();
    }
}
