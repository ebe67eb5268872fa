//! A watchpoint that runs a program.
//!
//! One that is movable outlives its program: another program takes its place, and the watchpoint
//! stays aimed where it is. So it is shared. A movable watchpoint of a script also has a number, by
//! which the script's programs aim it ([`bpf::Helper::AimWatch`]).
//!
//! # Contexts
//! Task context, may sleep. [`AimedWatches::aim`] and the handler: a hit, any context.

use core::sync::atomic::{
    AtomicPtr, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use fallible::{OutOfMemory, Shared, try_box};
use probes::{
    AimError, AimedAt, MOST_WATCHPOINTS, PtRegs, RegisteredWatchpoint, Touched, WatchAccess,
    Watchpoint, Watchpoints,
};

use super::{LoadError, Program};
use crate::{Agent, facts::RunAtObject};

/// A watchpoint of these bytes from an address on; without one it is movable, and not aimed yet.
pub fn watchpoint(address: Option<u64>, bytes: u8, access: WatchAccess) -> Watchpoint {
    let watchpoint = Watchpoint::new().len(bytes).access(access);
    match address {
        Some(address) => watchpoint.at(address),
        None => watchpoint.movable(),
    }
}

/// A registered watchpoint whose handler runs a program, or none yet.
pub struct WatchPlace<A: Agent> {
    watchpoint: RegisteredWatchpoint<A>,
    /// What the handler runs. Null, or it outlives its time here.
    program: Shared<AtomicPtr<Program<A>>>,
}

impl<A: Agent> WatchPlace<A> {
    /// Registers the watchpoint, disabled.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn new(watchpoint: Watchpoint) -> Result<Self, LoadError> {
        let program = Shared::try_new(AtomicPtr::new(core::ptr::null_mut()))?;
        let data = core::ptr::from_ref::<AtomicPtr<Program<A>>>(&program).cast();
        let watchpoint = watchpoint.data(data).handler(on_touch::<A>).disabled();
        let watchpoint = Watchpoints::of(A::probes()).register_owned(try_box(watchpoint)?)?;
        Ok(Self {
            watchpoint,
            program,
        })
    }

    /// Aims it. A hit, any context.
    ///
    /// # Errors
    /// Those of [`Watchpoints::aim`].
    #[inline]
    pub fn aim(&self, from: AimedAt, to: Option<u64>) -> Result<bool, AimError> {
        Watchpoints::of(A::probes()).aim(&self.watchpoint, from, to)
    }

    /// The address that it watches; 0: none.
    pub fn addr(&self) -> u64 {
        self.watchpoint.addr()
    }
}

/// A watchpoint that runs a program of [`bpf::ProgramKind::Probe`] from [`AttachedWatch::start`] to
/// [`AttachedWatch::stop`].
///
/// The context has the registers after the instruction. Its `ip` is where the code goes on. In
/// place of `orig_ax` it has the value before the access, and in place of `ss` the one after it.
pub struct AttachedWatch<A: Agent> {
    place: Shared<WatchPlace<A>>,
    program: Shared<Program<A>>,
    /// The misses of programs that were here before.
    misses_before: AtomicU64,
    number: Option<usize>,
}

impl<A: Agent> AttachedWatch<A> {
    /// The program is to run at that place.
    pub fn new(program: Shared<Program<A>>, place: Shared<WatchPlace<A>>) -> Self {
        Self {
            place,
            program,
            misses_before: AtomicU64::new(0),
            number: None,
        }
    }

    /// The same for a watchpoint that programs aim by its number.
    ///
    /// # Errors
    /// [`LoadError::TooManyWatches`] if the number is too large or in use.
    pub fn numbered(mut self, number: u32) -> Result<Self, LoadError> {
        let place = core::ptr::from_ref::<WatchPlace<A>>(&self.place).cast_mut();
        A::tracing().aimed.add(number as usize, place)?;
        self.number = Some(number as usize);
        Ok(self)
    }

    /// The program.
    pub fn program(&self) -> &Shared<Program<A>> {
        &self.program
    }

    /// Its place, for another program.
    pub fn place(&self) -> &Shared<WatchPlace<A>> {
        &self.place
    }

    /// How many hits were missed since it was started, and calls after which it could not be aimed.
    pub fn misses(&self) -> u64 {
        let watchpoint = &self.place.watchpoint;
        let unaimed = self
            .number
            .map_or(0, |number| A::tracing().aimed.misses(number));
        watchpoint
            .nmissed()
            .saturating_sub(self.misses_before.load(Relaxed))
            + unaimed
    }

    /// Runs the program at hits from now on. The program that did before is stopped. If the memory
    /// is gone, nothing changes.
    pub fn start(&self) {
        let place = &self.place;
        self.misses_before
            .store(place.watchpoint.nmissed(), Relaxed);
        let program = core::ptr::from_ref::<Program<A>>(&self.program).cast_mut();
        place.program.store(program, Release);
        let watchpoints = Watchpoints::of(A::probes());
        let routine = self.program.routine_at_watchpoint();
        // SAFETY: code that was compiled for watchpoints, which does what `on_touch` does. This
        // value has the program, and is not dropped before another was started or the watchpoint
        // was disabled.
        let _ = unsafe { watchpoints.set_routine(&place.watchpoint, routine) };
        let _ = watchpoints.enable(&place.watchpoint);
    }

    /// Keeps it from firing. When this returns the program does not run; returns how many hits were
    /// missed.
    pub fn stop(&self) -> u64 {
        // It is registered, and only tasks have it.
        let _ = Watchpoints::of(A::probes()).disable(&self.place.watchpoint);
        self.misses()
    }
}

impl<A: Agent> Drop for AttachedWatch<A> {
    fn drop(&mut self) {
        let program = core::ptr::from_ref::<Program<A>>(&self.program).cast_mut();
        let place = &self.place.program;
        // Another program may have been started here since.
        if place.load(Relaxed) == program {
            let _ = self.stop();
            place.store(core::ptr::null_mut(), Release);
        }
        if let Some(number) = self.number {
            A::tracing().aimed.remove(number);
            A::probes().synchronize_hits();
        }
    }
}

fn on_touch<A: Agent>(watchpoint: &Watchpoint, regs: &mut PtRegs, touched: &Touched) {
    let program = watchpoint.handler_data().cast::<AtomicPtr<Program<A>>>();
    // SAFETY: the place has both, and it is unregistered before it is gone.
    let program = unsafe { &*program }.load(Acquire);
    // SAFETY: null, or a program that is here until the watchpoint was stopped after it.
    let Some(program) = (unsafe { program.as_ref() }) else {
        return;
    };
    run_touched(program, regs, touched);
}

/// What a watch of an object calls: the program, as a watchpoint runs it.
///
/// # Errors
/// There is no memory.
pub(crate) fn run_at_object<A: Agent>(
    program: Shared<Program<A>>,
) -> Result<RunAtObject, OutOfMemory> {
    let run: RunAtObject = try_box(move |regs: &mut PtRegs, touched: &Touched| {
        run_touched(&program, regs, touched);
    })?;
    Ok(run)
}

/// Runs a program at an access, with the registers and values that [`AttachedWatch`] says.
fn run_touched<A: Agent>(program: &Program<A>, regs: &mut PtRegs, touched: &Touched) {
    let kept = (regs.ip, regs.orig_ax, regs.ss);
    (regs.ip, regs.orig_ax, regs.ss) = (touched.ip, touched.old, touched.new);
    let watched = &A::this_cpu_tracing().watched;
    // A hit in an NMI may be in the middle of this one.
    let outer = watched.load(Relaxed);
    watched.store(touched.addr, Relaxed);
    program.run_at_hit(regs);
    watched.store(outer, Relaxed);
    (regs.ip, regs.orig_ax, regs.ss) = kept;
}

/// The watchpoints that programs of the script aim, by number.
pub(crate) struct AimedWatches<A: Agent> {
    places: [AtomicPtr<WatchPlace<A>>; MOST_WATCHPOINTS],
    /// How often one could not be aimed.
    misses: [AtomicU64; MOST_WATCHPOINTS],
}

impl<A: Agent> AimedWatches<A> {
    pub(crate) const fn new() -> Self {
        Self {
            places: [const { AtomicPtr::new(core::ptr::null_mut()) }; MOST_WATCHPOINTS],
            misses: [const { AtomicU64::new(0) }; MOST_WATCHPOINTS],
        }
    }

    /// Gives a place its number, until [`AimedWatches::remove`] and a grace period after it.
    fn add(&self, number: usize, place: *mut WatchPlace<A>) -> Result<(), LoadError> {
        let slot = self.places.get(number);
        let slot = slot.filter(|slot| slot.load(Relaxed).is_null());
        let slot = slot.ok_or(LoadError::TooManyWatches)?;
        self.misses[number].store(0, Relaxed);
        slot.store(place, Release);
        Ok(())
    }

    fn remove(&self, number: usize) {
        self.places[number].store(core::ptr::null_mut(), Release);
    }

    fn misses(&self, number: usize) -> u64 {
        self.misses[number].load(Relaxed)
    }

    /// [`bpf::Helper::AimWatch`].
    pub(crate) fn aim(&self, number: u64, address: u64) -> bool {
        let Some(slot) = self.places.get(number as usize) else {
            return false;
        };
        // SAFETY: null, or a place that lives until a grace period after it has left here.
        let Some(place) = (unsafe { slot.load(Acquire).as_ref() }) else {
            return false;
        };
        if place.aim(AimedAt::Anything, Some(address)).is_ok() {
            return true;
        }
        // It cannot be what fails: nothing can always be watched.
        let _ = place.aim(AimedAt::Anything, None);
        self.misses[number as usize].fetch_add(1, Relaxed);
        false
    }
}
