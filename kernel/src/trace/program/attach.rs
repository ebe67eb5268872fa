//! Kprobes and kretprobes that carry programs, one or many at a time.
//!
//! | type | probes | when it is dropped |
//! |---|---|---|
//! | [`AttachedProbe`], [`AttachedCall`] | one, which can be turned on and off | unregistered |
//! | [`AttachedProbes`], [`AttachedCalls`] | a batch at several addresses | unregistered at once |
//!
//! Each has the probe, the action that the probe points to, and the programs whose code the action
//! leads to, and gives them up in this order (PROGRAM-2). A batch that cannot be unregistered stays
//! in memory with all that a hit needs.
//!
//! # Contexts
//! Tasks that may sleep: registering and unregistering wait for a grace period.

use alloc::{boxed::Box, vec::Vec};

use bpf::ProgramKind;
use probes::{Action, CallAction, Probe};

use super::{error::LoadError, load::Program};
use crate::{
    probes::{Kprobe, Kretprobe, PROBES, Registered, register, text_poke},
    trace::shared::{Shared, try_box, try_vec},
};

/// A kprobe that runs a program, from its registration to its drop.
pub struct AttachedProbe {
    // Dropped in this order (PROGRAM-2).
    probe: Registered<Box<Kprobe>>,
    _action: Box<Action>,
    program: Shared<Program>,
}

impl AttachedProbe {
    /// Registers `probe`, which has an address and no handlers, with `program`.
    ///
    /// # Errors
    /// [`LoadError`]; nothing has changed then.
    pub fn new(program: Shared<Program>, probe: Kprobe) -> Result<Self, LoadError> {
        let action = program
            .action
            .ok_or(LoadError::Kind(program.source().kind))?;
        let action = try_box(action)?;
        // SAFETY: the action and its code live until the probe is unregistered, by the order of the
        // fields. The compiler and the verifier see to the rest.
        let probe = unsafe { probe.action(&*action) };
        Ok(Self {
            probe: register(try_box(probe)?)?,
            _action: action,
            program,
        })
    }

    /// The probe.
    pub fn kprobe(&self) -> &Kprobe {
        &self.probe
    }

    /// The program.
    pub fn program(&self) -> &Shared<Program> {
        &self.program
    }

    /// How many hits were missed: beside other probes, while the CPU was in their handlers.
    pub fn misses(&self) -> u64 {
        self.kprobe().nmissed()
    }

    /// Enables the probe, if it was disabled.
    pub fn start(&self) {
        // It is registered, and only tasks that may sleep have attached probes.
        let _ = PROBES.enable(self.kprobe());
    }

    /// Disables the probe. Returns its misses, which do not change any more.
    pub fn stop(&self) -> u64 {
        // As above.
        let _ = PROBES.disable(self.kprobe());
        text_poke::synchronize_hits();
        self.misses()
    }
}

/// A probe that counts what it missed.
trait Misses: Probe {
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
struct Batch<P: Misses + 'static, A> {
    /// From `Box::into_raw`. Dropped when they are unregistered.
    probes: *mut [P],
    /// The same, for the registry. Kept, because a detachment must not need memory.
    references: Vec<&'static P>,
    /// None when they are unregistered.
    action: Option<Box<A>>,
}

// SAFETY: this is the probes' owner, and the rest is `Send` by itself.
unsafe impl<P: Misses + Send + Sync, A: Send> Send for Batch<P, A> {}
// SAFETY: the probes are only shared.
unsafe impl<P: Misses + Sync, A: Sync> Sync for Batch<P, A> {}

impl<P: Misses, A> Batch<P, A> {
    /// Registers a probe at each of `addresses`. `probe` makes one with the action, which lives
    /// until [`Batch::remove`] has unregistered it.
    ///
    /// # Errors
    /// [`LoadError`], of the first address that is refused; nothing has changed then.
    fn new(action: A, addresses: &[u64], probe: impl Fn(u64, &A) -> P) -> Result<Self, LoadError> {
        let action = try_box(action)?;
        let mut probes = try_vec(addresses.len())?;
        let mut references = try_vec(addresses.len())?;
        probes.extend(addresses.iter().map(|address| probe(*address, &action)));
        // No bytes are to spare, so this needs no memory.
        let probes = Box::into_raw(probes.into_boxed_slice());
        // SAFETY: they are dropped after their unregistration, in `remove`, and nothing has these
        // references then.
        references.extend(unsafe { &*probes });
        match PROBES.register_batch(&references) {
            Ok(()) => Ok(Self {
                probes,
                references,
                action: Some(action),
            }),
            Err(error) => {
                references.clear();
                // SAFETY: from `into_raw` above, and nothing else has them.
                drop(unsafe { Box::from_raw(probes) });
                Err(error.into())
            }
        }
    }

    fn len(&self) -> usize {
        self.references.len()
    }

    fn misses(&self) -> u64 {
        self.references.iter().map(|probe| probe.misses()).sum()
    }

    /// Unregisters them, once. Returns their misses, which do not change any more. `programs` are
    /// those that hits run.
    fn remove<T>(&mut self, programs: impl FnOnce() -> T) -> u64 {
        if self.action.is_none() {
            return 0;
        }
        let removed = PROBES.unregister_batch(&self.references);
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
pub struct AttachedProbes {
    batch: Batch<Kprobe, Action>,
    program: Shared<Program>,
}

impl AttachedProbes {
    /// Registers a probe at each of `addresses` with `program`.
    ///
    /// # Errors
    /// [`LoadError`], of the first address that is refused; nothing has changed then.
    pub fn new(program: Shared<Program>, addresses: &[u64]) -> Result<Self, LoadError> {
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
    pub fn program(&self) -> &Shared<Program> {
        &self.program
    }

    /// How many hits were missed so far: beside other probes, while the CPU was in their handlers.
    pub fn misses(&self) -> u64 {
        self.batch.misses()
    }

    /// Detaches them. Returns their misses, which do not change any more.
    pub fn detach(mut self) -> u64 {
        self.remove()
    }

    fn remove(&mut self) -> u64 {
        self.batch.remove(|| self.program.clone())
    }
}

impl Drop for AttachedProbes {
    fn drop(&mut self) {
        self.remove();
    }
}

/// The routines of the two programs of a call.
///
/// # Errors
/// [`LoadError::Kind`], [`LoadError::Shared`].
fn call_action(
    entry: Option<&Shared<Program>>,
    on_return: &Program,
) -> Result<CallAction, LoadError> {
    let kind = on_return.source().kind;
    let (ProgramKind::Return { data }, Some(routine)) = (kind, on_return.routine) else {
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
    Ok(CallAction {
        entry: entry.and_then(|entry| entry.routine),
        on_return: routine,
        shared_words: data.div_ceil(8) as usize,
    })
}

/// A kretprobe that runs programs at the entry and the return of calls.
pub struct AttachedCall {
    // Dropped in this order (PROGRAM-2).
    probe: Registered<Box<Kretprobe>>,
    _action: Box<CallAction>,
    _entry: Option<Shared<Program>>,
    on_return: Shared<Program>,
}

impl AttachedCall {
    /// Registers `probe`, which has an address and no handlers, with the programs.
    ///
    /// # Errors
    /// [`LoadError`]; nothing has changed then.
    pub fn new(
        entry: Option<Shared<Program>>,
        on_return: Shared<Program>,
        probe: Kretprobe,
    ) -> Result<Self, LoadError> {
        let action = try_box(call_action(entry.as_ref(), &on_return)?)?;
        // SAFETY: as in `AttachedProbe::new`.
        let probe = unsafe { probe.action(&*action) };
        Ok(Self {
            probe: register(try_box(probe)?)?,
            _action: action,
            _entry: entry,
            on_return,
        })
    }

    /// The probe.
    pub fn kretprobe(&self) -> &Kretprobe {
        &self.probe
    }

    /// The program of the return.
    pub fn program(&self) -> &Shared<Program> {
        &self.on_return
    }

    /// How many calls were missed: the CPU was in handlers, or no instance was free.
    pub fn misses(&self) -> u64 {
        Misses::misses(self.kretprobe())
    }

    /// Enables the probe, if it was disabled.
    pub fn start(&self) {
        // As for a probe.
        let _ = PROBES.enable(self.kretprobe());
    }

    /// Disables the probe. Returns its misses, which do not change any more. Calls that are under
    /// way are still seen to return.
    pub fn stop(&self) -> u64 {
        // As for a probe.
        let _ = PROBES.disable(self.kretprobe());
        text_poke::synchronize_hits();
        self.misses()
    }
}

/// Kretprobes that all run the same programs, registered in one call.
pub struct AttachedCalls {
    batch: Batch<Kretprobe, CallAction>,
    entry: Option<Shared<Program>>,
    on_return: Shared<Program>,
}

impl AttachedCalls {
    /// Registers a probe on each of the functions that begin at `addresses`.
    ///
    /// # Errors
    /// [`LoadError`], of the first address that is refused; nothing has changed then.
    pub fn new(
        entry: Option<Shared<Program>>,
        on_return: Shared<Program>,
        addresses: &[u64],
    ) -> Result<Self, LoadError> {
        let action = call_action(entry.as_ref(), &on_return)?;
        // SAFETY: the action lives until the probe is unregistered, and so does its code: the
        // programs are dropped after the batch.
        let probe = |at, action: &CallAction| unsafe { Kretprobe::new().at(at).action(action) };
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

impl Drop for AttachedCalls {
    fn drop(&mut self) {
        self.remove();
    }
}
