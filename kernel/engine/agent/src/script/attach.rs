//! Where the programs of a script run.
//!
//! | attachment | place |
//! |---|---|
//! | probe, source | kprobes that carry the program |
//! | call | kretprobes that carry the programs |
//! | watch | a watchpoint, whose handler calls the program |
//! | user | what the kernel has for it ([`Agent::attach_to_program`]) |
//! | profile | a kprobe on the function of [`Ticks`], whose handler calls the program |
//! | interval | the reader's task |
//! | begin, end | the task that starts and ends the script |
//!
//! # Invariants
//! PLACES-1. Of a probe with several places those are left out that cannot be probed, for example
//!     the entry stubs among all functions of the kernel. How many are left is told
//!     ([`Attached::places`]). If none is left, or there is only one, that is a refusal. A probe
//!     has several attachments if its places need programs of their own, because their values are
//!     elsewhere: for example the copies of an inlined function. An attachment that the script
//!     calls optional may be left out in any case.
//! PROFILE-1. The list that [`tick`] reads is set before the kprobe is registered, and freed when
//!     it is unregistered, after a grace period.
//! PROFILE-2. A profile runs as often as it was asked for, on the average, while its CPU has work:
//!     at the tick that is nearest to each multiple of its period. A CPU counts its periods from
//!     its first tick, so there the profile does not run yet. A period below that of the ticks is
//!     refused, because it could not be kept. A CPU that has nothing to do takes no ticks, so a
//!     profile does not run there.
//! PROFILE-3. The profiles of a script begin and end with the same tick of a CPU. So those with the
//!     same period run at the same ticks, and their counts can be compared.
//!
//! # Contexts
//! Task context. [`tick`]: a pre handler, interrupts off.

use alloc::{boxed::Box, vec::Vec};
use core::{
    arch::asm,
    fmt,
    ops::Range,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering},
};

use fallible::{Shared, try_box, try_vec};
use probes::{Kprobe, PreVerdict, PtRegs, Registered, WatchAccess, Watchpoint, platform::Text};
use trace_interface::script::{Attachment, WatchedAccess, WatchedAt};

use super::{loader::Loader, refusal::Refusal};
use crate::{
    Agent,
    facts::{InProgram, NSEC_PER_SEC, PlaceInProgram, Source, Ticks},
    program::{
        AttachedCalls, AttachedProbes, AttachedWatch, LoadError, Program, WatchPlace,
        run_at_object, watchpoint,
    },
    records::read_tsc,
};

/// The most profiles of a script.
const MOST_PROFILES: usize = 8;

/// Programs, loaded for an attachment.
pub struct Ready<'s, A: Agent> {
    program: u32,
    what: What<'s, A>,
}

enum What<'s, A: Agent> {
    Probes(Shared<Program<A>>, &'s [u64]),
    Calls {
        entry: Option<Shared<Program<A>>>,
        on_return: Shared<Program<A>>,
        functions: &'s [u64],
    },
    Source(Shared<Program<A>>, u64),
    SourceReturn(Shared<Program<A>>, u64),
    Profile(Shared<Program<A>>, u64),
    /// With the number by which programs aim it, if they do.
    Watch(Shared<Program<A>>, Watchpoint, Option<u32>),
    Object(Shared<Program<A>>, Range<u64>),
    User(Shared<Program<A>>, PlaceInProgram<'s>),
    /// The session runs it.
    Nothing,
}

/// Loads the programs of an attachment, except those that the session runs.
///
/// # Errors
/// [`Refusal`].
pub fn load<'s, A: Agent>(
    loader: &Loader<'s, A>,
    index: usize,
    attachment: &'s Attachment,
) -> Result<Ready<'s, A>, Refusal> {
    let counted = |program: &u32| loader.load(*program, index);
    let (program, what) = match attachment {
        Attachment::Probe { program, addresses } => {
            (*program, What::Probes(counted(program)?, addresses))
        }
        Attachment::Call {
            entry,
            on_return,
            functions,
        } => {
            let entry = entry.map(|entry| loader.load_entry(entry, index));
            let entry = entry.transpose()?;
            let on_return_program = counted(on_return)?;
            (
                *on_return,
                What::Calls {
                    entry,
                    on_return: on_return_program,
                    functions,
                },
            )
        }
        Attachment::Source { program, name } => {
            let source = A::source(name).map_err(|instead| {
                let text = alloc::format!("this kernel has no event source `{name}`; {instead}");
                Refusal::new(Some(*program), text)
            })?;
            let loaded = counted(program)?;
            let what = match source {
                Source::ReturnOf(address) => What::SourceReturn(loaded, address),
                Source::At(address) => What::Source(loaded, address),
            };
            (*program, what)
        }
        Attachment::Profile {
            program,
            nanoseconds,
        } => (
            *program,
            What::Profile(loader.load_profile(*program, index)?, *nanoseconds),
        ),
        Attachment::Watch {
            program,
            path,
            at,
            bytes,
            access,
        } => {
            let loaded = loader.load_profile(*program, index)?;
            let (address, number) = match *at {
                WatchedAt::Address(address) => (Some(address), None),
                WatchedAt::Aimed(number) => (None, Some(number)),
                WatchedAt::Object(start) => {
                    let end = start.saturating_add((*bytes).into());
                    let (program, what) = (*program, What::Object(loaded, start..end));
                    return Ok(Ready { program, what });
                }
            };
            let access = match access {
                WatchedAccess::Write => WatchAccess::Write,
                WatchedAccess::ReadWrite => WatchAccess::ReadWrite,
                WatchedAccess::Execute => WatchAccess::Execute,
            };
            let mut watchpoint = watchpoint(address, *bytes as u8, access);
            if let Some(path) = path {
                let scope = A::programs_of(path);
                watchpoint = watchpoint
                    .in_programs(scope.map_err(|text| Refusal::new(Some(*program), text))?);
            }
            (*program, What::Watch(loaded, watchpoint, number))
        }
        Attachment::User {
            program,
            path,
            function,
            offset,
            counter,
            returns,
        } => {
            let place = PlaceInProgram {
                path,
                function: function.as_deref(),
                offset: *offset,
                counter: *counter,
                returns: *returns,
            };
            (*program, What::User(counted(program)?, place))
        }
        Attachment::Begin { program }
        | Attachment::End { program }
        | Attachment::Interval { program, .. } => (*program, What::Nothing),
    };
    Ok(Ready { program, what })
}

impl<A: Agent> Ready<'_, A> {
    /// Attaches them.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then.
    pub fn attach(self) -> Result<Attached<A>, Refusal> {
        let program = Some(self.program);
        let refused = |error| Refusal::load(program, error);
        let probes = |loaded: Shared<Program<A>>, addresses: &[u64]| {
            if addresses.is_empty() {
                return Ok(Attached::Nothing);
            }
            let attach = |addresses: &[u64]| AttachedProbes::new(loaded.clone(), addresses);
            Ok(Attached::Probes(
                attach_most::<A, _>(addresses, attach).map_err(refused)?,
            ))
        };
        let calls = |entry: Option<Shared<Program<A>>>,
                     on_return: Shared<Program<A>>,
                     functions: &[u64]| {
            if functions.is_empty() {
                return Ok(Attached::Nothing);
            }
            let attach =
                |functions: &[u64]| AttachedCalls::new(entry.clone(), on_return.clone(), functions);
            Ok(Attached::Calls(
                attach_most::<A, _>(functions, attach).map_err(refused)?,
            ))
        };
        match self.what {
            What::Probes(loaded, addresses) => probes(loaded, addresses),
            What::Source(loaded, address) => probes(loaded, &[address]),
            What::SourceReturn(loaded, address) => calls(None, loaded, &[address]),
            What::Calls {
                entry,
                on_return,
                functions,
            } => calls(entry, on_return, functions),
            What::Profile(loaded, nanoseconds) => {
                let Some(ticks) = A::ticks() else {
                    let text = "this kernel has no timer ticks (`Agent::ticks`), at which \
                                profiles run; use interval or probe a function";
                    return Err(Refusal::new(program, text));
                };
                if nanoseconds < ticks.nanoseconds {
                    return Err(Refusal::new(program, TooOften { nanoseconds, ticks }));
                }
                let profile = Profile::new(loaded, nanoseconds, ticks);
                Ok(Attached::Profile(
                    profile.map_err(|text| Refusal::new(program, text))?,
                ))
            }
            What::Watch(loaded, watchpoint, number) => {
                let place = WatchPlace::new(watchpoint).map_err(refused)?;
                let mut watch = AttachedWatch::new(loaded, Shared::try_new(place)?);
                if let Some(number) = number {
                    watch = watch.numbered(number).map_err(refused)?;
                }
                watch.start();
                Ok(Attached::Watch(watch))
            }
            What::Object(loaded, memory) => {
                let handler = run_at_object(loaded)?;
                let attached = A::watch_object(memory, handler);
                Ok(Attached::User(
                    attached.map_err(|text| Refusal::new(program, text))?,
                ))
            }
            What::User(loaded, place) => {
                let run = Program::in_program(&loaded)?;
                let attached = A::attach_to_program(run, &place);
                Ok(Attached::User(
                    attached.map_err(|text| Refusal::new(program, text))?,
                ))
            }
            What::Nothing => Ok(Attached::Own),
        }
    }
}

/// A profile is to run more often than the timer ticks (PROFILE-2).
struct TooOften {
    nanoseconds: u64,
    ticks: Ticks,
}

impl fmt::Display for TooOften {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NSEC_PER_USEC: u64 = 1000;
        let Self { nanoseconds, ticks } = self;
        write!(
            f,
            "the profile is to run each {} us, and the timer of a CPU ticks each {} us: ask for \
             profile:hz:{} or less",
            nanoseconds / NSEC_PER_USEC,
            ticks.nanoseconds / NSEC_PER_USEC,
            NSEC_PER_SEC / ticks.nanoseconds.max(1),
        )?;
        match ticks.advice {
            Some(advice) => write!(f, ", or {advice}"),
            None => Ok(()),
        }
    }
}

/// How many places that only their registration refuses are left out before it is given up.
const MOST_REFUSED: usize = 256;

/// Attaches to those places that can be probed (PLACES-1).
fn attach_most<A: Agent, T>(
    places: &[u64],
    attach: impl Fn(&[u64]) -> Result<T, LoadError>,
) -> Result<T, LoadError> {
    if places.len() == 1 {
        return attach(places);
    }
    let mut left = try_vec(places.len())?;
    left.extend(places.iter().copied().filter(|place| {
        // Most are found out without asking for all again.
        let symbol = A::symbol_at(*place);
        let stays = symbol.is_none_or(|symbol| symbol.text != Text::Freed);
        stays && A::blacklisted(*place).is_none()
    }));
    if left.is_empty() {
        left.extend(places);
    }
    let mut refused = 0;
    loop {
        match attach(&left) {
            Err(error) if refused < MOST_REFUSED && left.len() > 1 => {
                let Some(place) = error.refused_place() else {
                    return Err(error);
                };
                let before = left.len();
                left.retain(|other| *other != place);
                if left.len() == before {
                    return Err(error);
                }
                refused += 1;
            }
            result => return result,
        }
    }
}

/// An attachment that is in force.
pub enum Attached<A: Agent> {
    Probes(AttachedProbes<A>),
    Calls(AttachedCalls<A>),
    #[expect(dead_code, reason = "held for its probe")]
    Profile(Profile<A>),
    Watch(AttachedWatch<A>),
    User(Box<dyn InProgram>),
    /// The session runs its program.
    Own,
    /// It has no place, or has been detached.
    Nothing,
}

impl<A: Agent> Attached<A> {
    /// Stops it, if it is the watch of that address. Its misses stay counted.
    pub fn unwatch(&self, address: u64) {
        if let Self::Watch(watch) = self
            && watch.place().addr() == address
        {
            let _ = watch.stop();
        }
    }

    /// How many places it has.
    pub fn places(&self) -> u32 {
        match self {
            Self::Probes(probes) => probes.len() as u32,
            Self::Calls(calls) => calls.len() as u32,
            Self::Profile(_) => A::possible_cpus() as u32,
            Self::Own | Self::Watch(_) | Self::User(_) => 1,
            Self::Nothing => 0,
        }
    }

    /// Detaches it. Returns how many hits were missed.
    pub fn detach(&mut self) -> u64 {
        match core::mem::replace(self, Self::Nothing) {
            Self::Probes(probes) => probes.detach(),
            Self::Calls(calls) => calls.detach(),
            Self::Watch(watch) => watch.stop(),
            Self::User(probe) => probe.detach(),
            Self::Profile(_) | Self::Own | Self::Nothing => 0,
        }
    }
}

/// A program that the session runs each so many nanoseconds.
pub struct Timer<A: Agent> {
    program: Shared<Program<A>>,
    attachment: usize,
    period: u64,
    next: u64,
    missed: u64,
}

impl<A: Agent> Timer<A> {
    /// Not begun.
    pub fn new(program: Shared<Program<A>>, attachment: usize, nanoseconds: u64) -> Self {
        Self {
            program,
            attachment,
            period: nanoseconds.max(1),
            next: u64::MAX,
            missed: 0,
        }
    }

    /// The first time is a period from `now`, in nanoseconds since boot.
    pub fn begin(&mut self, now: u64) {
        self.next = now.saturating_add(self.period);
    }

    /// When it is due.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The index of its attachment.
    pub fn attachment(&self) -> usize {
        self.attachment
    }

    /// How many times went by because the reader was late.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Runs the program once, if its time has come.
    pub fn run_if_due(&mut self, now: u64) {
        if now < self.next {
            return;
        }
        let late = (now - self.next) / self.period;
        self.missed += late;
        self.next = self
            .next
            .saturating_add((late + 1).saturating_mul(self.period));
        self.program.run(&registers_here());
    }
}

/// The registers of the calling code that a walk of the stack needs, for programs that are called
/// and not hit. The others are zero.
#[inline(always)]
pub fn registers_here() -> PtRegs {
    let (ip, sp, bp): (u64, u64, u64);
    // SAFETY: it reads registers, and changes no other than its results.
    unsafe {
        asm!(
            "lea {ip}, [rip]",
            "mov {sp}, rsp",
            "mov {bp}, rbp",
            ip = out(reg) ip,
            sp = out(reg) sp,
            bp = out(reg) bp,
            options(nomem, nostack, preserves_flags),
        );
    }
    PtRegs {
        ip,
        sp,
        bp,
        ..PtRegs::default()
    }
}

/// The words that [`tick`] reads.
struct Due<A: Agent> {
    program: Shared<Program<A>>,
    /// How often it runs, in ticks of the time stamp counter.
    period: u64,
    /// How far before its time it may run, because the next tick of the timer would be farther
    /// after it. In the same unit.
    early: u64,
    /// The value of the time stamp counter from which on it is due, by CPU; 0 before the
    /// CPU's first tick.
    next: Vec<AtomicU64>,
}

/// The profiles that run.
pub(crate) struct Profiles<A: Agent> {
    /// Null where there is none.
    due: [AtomicPtr<Due<A>>; MOST_PROFILES],
    /// All profiles of the script are in the list (PROFILE-3).
    run: AtomicBool,
}

impl<A: Agent> Profiles<A> {
    pub(crate) const fn new() -> Self {
        Self {
            due: [const { AtomicPtr::new(core::ptr::null_mut()) }; MOST_PROFILES],
            run: AtomicBool::new(false),
        }
    }

    /// Lets the profiles run, when all are attached.
    pub(super) fn begin(&self) {
        // Release: a tick that sees it sees all of the list.
        self.run.store(true, Ordering::Release);
    }
}

/// A program that runs at timer ticks from [`Profiles::begin`] on, until the value is dropped.
pub struct Profile<A: Agent> {
    /// Dropped first, by hand (PROFILE-1).
    probe: Option<Registered<A, Box<Kprobe>>>,
    slot: usize,
}

impl<A: Agent> Profile<A> {
    fn new(program: Shared<Program<A>>, nanoseconds: u64, timer: Ticks) -> Result<Self, LoadError> {
        let cpus = A::possible_cpus();
        let mut next = try_vec(cpus)?;
        next.extend((0..cpus).map(|_| AtomicU64::new(0)));
        let ticks = |nanoseconds: u64| {
            let ticks = u128::from(nanoseconds) * u128::from(A::tsc_hz());
            u64::try_from(ticks / u128::from(NSEC_PER_SEC)).unwrap_or(u64::MAX)
        };
        let due = Box::into_raw(try_box(Due {
            program,
            period: ticks(nanoseconds),
            early: ticks(timer.nanoseconds / 2),
            next,
        })?);
        let take = |slot: &AtomicPtr<Due<A>>| {
            let free = core::ptr::null_mut();
            slot.compare_exchange(free, due, Ordering::Release, Ordering::Relaxed)
                .is_ok()
        };
        let Some(slot) = A::tracing().profiles.due.iter().position(take) else {
            // SAFETY: from `into_raw` above, and nothing else has it.
            drop(unsafe { Box::from_raw(due) });
            return Err(LoadError::TooManyProfiles);
        };
        // From here on, its drop frees the slot.
        let mut profile = Self { probe: None, slot };
        // One probe serves all profiles: that of the first one.
        if slot == 0 {
            let probe = Kprobe::new().symbol(timer.function).pre(tick::<A>);
            profile.probe = Some(A::probes().register_owned(try_box(probe)?)?);
        }
        Ok(profile)
    }
}

impl<A: Agent> Drop for Profile<A> {
    fn drop(&mut self) {
        // Waits until no tick is under way. Those of other profiles of the script end with it.
        if let Some(probe) = self.probe.take() {
            drop(probe);
            A::tracing().profiles.run.store(false, Ordering::Relaxed);
        }
        let due =
            A::tracing().profiles.due[self.slot].swap(core::ptr::null_mut(), Ordering::AcqRel);
        A::probes().synchronize_hits();
        if !due.is_null() {
            // SAFETY: from `into_raw`, once, and no tick has it any more.
            drop(unsafe { Box::from_raw(due) });
        }
    }
}

/// Runs the profiles that are due on this CPU, with the registers that the timer's interrupt found.
fn tick<A: Agent>(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    let profiles = &A::tracing().profiles;
    if !profiles.run.load(Ordering::Acquire) {
        return PreVerdict::Execute;
    }
    let now = read_tsc();
    let interrupted = core::ptr::with_exposed_provenance::<PtRegs>(regs.di as usize);
    // SAFETY: the argument of the function of `Ticks`, at its entry.
    let interrupted = unsafe { &*interrupted };
    for slot in &profiles.due {
        // SAFETY: freed after a grace period (PROFILE-1).
        let Some(due) = (unsafe { slot.load(Ordering::Acquire).as_ref() }) else {
            continue;
        };
        let Some(next) = due.next.get(A::this_cpu_tracing().number()) else {
            continue;
        };
        let was_due = next.load(Ordering::Relaxed);
        let after_period = now.saturating_add(due.period);
        if was_due == 0 {
            next.store(after_period, Ordering::Relaxed);
            continue;
        }
        if now.saturating_add(due.early) < was_due {
            continue;
        }
        // From when it was due, so that ticks that come late do not add up. After a rest of the
        // CPU it begins anew, and does not make up for what it has slept through.
        let following = was_due.saturating_add(due.period);
        let following = match following > now {
            true => following,
            false => after_period,
        };
        next.store(following, Ordering::Relaxed);
        due.program.run(interrupted);
    }
    PreVerdict::Execute
}
