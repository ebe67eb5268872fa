//! The registry: which probes there are, which programs are in memory, and the breakpoints that
//! follow from the two.
//!
//! ```text
//!   register ─► the instruction of the file ─► site ─┐
//!                                                    ├─► each program of that file: slot, then
//!                                                    int3
//!   exec, fork ─► program in memory ─────────────────┘
//! ```
//!
//! # Contexts and locks
//! Tasks that may sleep. One sleeping lock, taken before the locks of files and of a program's
//! memory. It is not held while files are read to find a place.

use alloc::{
    boxed::Box,
    sync::{Arc, Weak},
    vec::Vec,
};
use core::{
    any::Any,
    ops::Deref,
    ptr, slice,
    sync::atomic::{AtomicBool, Ordering},
};

use ::probes::insn::{MAX_INSN_BYTES, Translation};
use fallible::{push, try_box};

use super::{
    aftermath::{Aftermath, CountedWords, poke},
    error::UprobeError,
    probe::{ProbeRef, Uprobe, Uretprobe, UserProbe},
    space::{Displaced, How, NO_TRAMPOLINE, ProbeList, ProbedPlace, fires_in},
    target::{self, Target},
};
use crate::{
    errno::Errno,
    fs::NodeRef,
    mm::{
        shared::Shared,
        user_space::{Access, UserSpace},
    },
    pr_warn,
    sync::Mutex,
    task::{self, Pid},
};

/// The pages that slots are taken from at once.
const SLOT_PAGES: u64 = 16;
/// Slots begin at multiples of this.
const SLOT_ALIGN: u64 = 16;
/// The breakpoint.
const INT3: u8 = 0xcc;

/// A place in a file: the number of its node, and the offset.
type SiteKey = (u64, u64);

/// An instruction of a file, and its probes.
struct Site {
    key: SiteKey,
    /// Keeps the file.
    node: NodeRef,
    displaced: Displaced,
    /// In the order of their registration.
    probes: Vec<UserProbe>,
}

/// A program in memory.
struct Program {
    pid: Pid,
    space: Weak<UserSpace>,
}

struct Registry {
    /// In the order of their keys.
    #[expect(
        clippy::vec_box,
        reason = "a site is large, and the others move for a new one"
    )]
    sites: Vec<Box<Site>>,
    programs: Vec<Program>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    sites: Vec::new(),
    programs: Vec::new(),
});

/// The probes of a site that fire, newest first, as hits see them.
fn firing(site: &Site) -> Result<Option<ProbeList>, UprobeError> {
    let firing = site
        .probes
        .iter()
        .rev()
        .filter(|probe| probe.common().fires());
    let mut list = Vec::new();
    for probe in firing {
        push(&mut list, probe.clone())?;
    }
    if list.is_empty() {
        return Ok(None);
    }
    Ok(Some(Shared::try_new(list)?))
}

impl Registry {
    /// Where the site of that key is, or would be.
    fn position(&self, key: SiteKey) -> Result<usize, usize> {
        self.sites.binary_search_by_key(&key, |site| site.key)
    }

    fn site(&self, key: SiteKey) -> Option<&Site> {
        let at = self.position(key).ok()?;
        self.sites.get(at).map(|site| &**site)
    }

    fn site_mut(&mut self, key: SiteKey) -> Option<&mut Site> {
        let at = self.position(key).ok()?;
        self.sites.get_mut(at).map(|site| &mut **site)
    }

    /// Makes the breakpoints at `key` what they are to be in all programs.
    fn apply(&mut self, key: SiteKey, after: &mut Aftermath) -> Result<(), UprobeError> {
        let Some(site) = self.site(key) else {
            return Ok(());
        };
        let list = firing(site)?;
        for program in &self.programs {
            if let Some(space) = program.space.upgrade() {
                let pids = (program.pid, program.pid);
                place(&space, pids, key, site, list.as_ref(), after)?;
            }
        }
        Ok(())
    }

    /// The site that has a probe.
    fn site_of(&self, probe: &UserProbe) -> Option<SiteKey> {
        let key = probe.common().site();
        let site = self.site(key)?;
        site.probes
            .iter()
            .any(|other| other.is(probe))
            .then_some(key)
    }

    /// Enters a probe, without its breakpoints.
    fn enter(&mut self, target: Target, probe: UserProbe) -> Result<SiteKey, UprobeError> {
        if self.site_of(&probe).is_some() {
            return Err(UprobeError::AlreadyRegistered);
        }
        let key = (target.node.number(), target.offset);
        let mut probes = Vec::new();
        probes
            .try_reserve(1)
            .map_err(|_| UprobeError::OutOfMemory)?;
        match self.position(key) {
            Ok(at) => {
                let site = &mut self.sites[at];
                if site.displaced != target.displaced {
                    // The programs that have the old text keep its probes.
                    return Err(UprobeError::FileChanged);
                }
                push(&mut site.probes, probe.clone())?;
            }
            Err(at) => {
                probes.push(probe.clone());
                let site = try_box(Site {
                    key,
                    node: target.node,
                    displaced: target.displaced,
                    probes,
                })?;
                self.sites
                    .try_reserve(1)
                    .map_err(|_| UprobeError::OutOfMemory)?;
                self.sites.insert(at, site);
            }
        }
        probe.begin(key);
        Ok(key)
    }

    /// Takes out the probes whose holders went where nothing could wait.
    fn remove_orphans(&mut self, after: &mut Aftermath) {
        let is_orphan = |probe: &&UserProbe| !probe.common().is_registered();
        let all = self.sites.iter().flat_map(|site| &site.probes);
        let orphans: Vec<UserProbe> = all.filter(is_orphan).cloned().collect();
        self.remove_all(&orphans, after);
    }

    /// Takes probes out, with their breakpoints.
    fn remove_all(&mut self, probes: &[UserProbe], after: &mut Aftermath) {
        probes.iter().for_each(|probe| self.remove(probe, after));
        self.sites.retain(|site| !site.probes.is_empty());
        if self.sites.is_empty() {
            self.sites.shrink_to_fit();
        }
    }

    /// Takes a probe out, with its breakpoints. Its site stays.
    fn remove(&mut self, probe: &UserProbe, after: &mut Aftermath) {
        let Some(key) = self.site_of(probe) else {
            return;
        };
        probe.common().end();
        let Some(site) = self.site_mut(key) else {
            return;
        };
        site.probes.retain(|other| !other.is(probe));
        if let UserProbe::Return(probe) = probe
            && let Some(closure) = probe.take_closure()
        {
            after.retire(closure);
        }
        self.reduce(key, after);
    }

    /// [`Registry::apply`] where fewer probes fire. Without memory for the shorter list a hit finds
    /// the old one, whose probes say themselves that they do not fire; a breakpoint that cannot be
    /// taken away stays, and does nothing.
    fn reduce(&mut self, key: SiteKey, after: &mut Aftermath) {
        after.is_changed = true;
        if let Err(error) = self.apply(key, after) {
            pr_warn!("uprobes: a breakpoint stays: {error}");
        }
    }
}

/// Makes the breakpoint of a site in one program what it is to be. `pids` are the numbers of the
/// process whose breakpoints the program has, and of the one that it is now: the same, but for a
/// child.
fn place(
    space: &Arc<UserSpace>,
    pids: (Pid, Pid),
    key: SiteKey,
    site: &Site,
    list: Option<&ProbeList>,
    after: &mut Aftermath,
) -> Result<(), UprobeError> {
    let Some(address) = space.address_of(key.0, key.1, Access::Execute) else {
        return Ok(());
    };
    let pid = pids.1;
    let list = list.filter(|list| fires_in(list, pid));
    let probes = space.probes();
    let known = probes.place(address);
    if known.is_none() {
        if list.is_none() {
            return Ok(());
        }
        if !has_text(space, address, &site.displaced) {
            pr_warn!("uprobes: process {pid} runs another text of the file, which has changed");
            return Ok(());
        }
        enter(space, address, site, after)?;
    }
    let Some(place) = probes.place(address) else {
        return Ok(());
    };
    let is_return = |probe: &UserProbe| matches!(probe, UserProbe::Return(_));
    if list.is_some_and(|list| list.iter().any(is_return)) && probes.trampoline() == NO_TRAMPOLINE {
        let trampoline = take_slot(space, 1)?;
        poke(space, trampoline, &[INT3], after)?;
        probes.set_trampoline(trampoline)?;
    }
    let new = list.cloned().map(try_box).transpose()?;
    after.reserve_retired()?;
    // SAFETY: only the holder of the registry's lock replaces a list.
    let old = unsafe { place.probes() };
    let words = CountedWords {
        space,
        file: key.0,
        old: (old, pids.0),
        new: (list, pids.1),
    };
    if words.may_change() {
        after.prepare_counts(&words)?;
        after.change_counts(&words);
    }
    let old = place.set_probes(new);
    after.retired.extend(old.map(|old| old as Box<dyn Any>));
    let (is, wanted) = (place.is_armed(), list.is_some());
    if is != wanted {
        let first = site.displaced.bytes()[0];
        after.store(space, address, if wanted { INT3 } else { first })?;
        place.set_armed(wanted);
    }
    Ok(())
}

/// Whether the instruction of a site is at `address`.
fn has_text(space: &UserSpace, address: u64, displaced: &Displaced) -> bool {
    let mut there = [0; MAX_INSN_BYTES];
    let there = &mut there[..displaced.bytes().len()];
    space.peek(address, there).is_ok() && there == displaced.bytes()
}

/// Makes the place at `address` known, with its slot.
fn enter(
    space: &UserSpace,
    address: u64,
    site: &Site,
    after: &mut Aftermath,
) -> Result<(), UprobeError> {
    let displaced = site.displaced;
    let slot = match displaced.how {
        How::SystemCall => 0..0,
        How::InSlot | How::PopFlags => {
            let slot = take_slot(space, Translation::MAX_BYTES as u64)?;
            let replacement = target::replacement(&displaced, address, slot)?;
            poke(space, slot, replacement.code(), after)?;
            slot..slot + replacement.code().len() as u64
        }
    };
    space
        .probes()
        .enter(ProbedPlace::new(address, displaced, slot))?;
    Ok(())
}

/// Takes `bytes` of the addresses for slots.
fn take_slot(space: &UserSpace, bytes: u64) -> Result<u64, UprobeError> {
    let bytes = bytes.next_multiple_of(SLOT_ALIGN);
    let mut area = space.probes().area();
    if area.end - area.next < bytes {
        let more = space.add_code(area.end, SLOT_PAGES);
        let more = more.map_err(|_| UprobeError::NoRoom)?;
        if area.end == 0 {
            (area.start, area.next) = (more.start, more.start);
        }
        area.end = more.end;
    }
    let slot = area.next;
    area.next += bytes;
    space.probes().set_area(area);
    Ok(slot)
}

/// A change of what is registered: the registry, and what the change leaves to be done.
fn change<R>(
    work: impl FnOnce(&mut Registry, &mut Aftermath) -> Result<R, UprobeError>,
) -> Result<R, UprobeError> {
    if !task::may_sleep() {
        return Err(UprobeError::AtomicContext);
    }
    let mut after = Aftermath::default();
    let mut registry = REGISTRY.lock();
    if ORPHANS.swap(false, Ordering::Relaxed) {
        registry.remove_orphans(&mut after);
    }
    let result = work(&mut registry, &mut after);
    // Under the lock: a frame that is replaced next may be one that some CPU still uses.
    after.settle();
    drop(registry);
    result
}

/// Registers several probes, all or none. Task context, may sleep.
///
/// # Errors
/// That of the first one refused; nothing has changed then.
pub fn register(probes: &[UserProbe]) -> Result<(), UprobeError> {
    if probes.is_empty() {
        return Err(UprobeError::EmptyBatch);
    }
    if !task::may_sleep() {
        return Err(UprobeError::AtomicContext);
    }
    let mut targets = Vec::new();
    let mut files = target::Files::default();
    for probe in probes {
        let target = files.resolve(&probe.common().place)?;
        if matches!(probe, UserProbe::Return(_)) {
            target.permit_return()?;
        }
        push(&mut targets, target)?;
    }
    change(|registry, after| {
        let mut done = 0;
        let mut keys = Vec::new();
        let enter_all = || {
            for (target, probe) in targets.into_iter().zip(probes) {
                let key = registry.enter(target, probe.clone())?;
                done += 1;
                if keys.last() != Some(&key) {
                    push(&mut keys, key)?;
                }
            }
            keys.iter().try_for_each(|key| registry.apply(*key, after))
        };
        let result = enter_all();
        if result.is_err() {
            registry.remove_all(&probes[..done], after);
        }
        result
    })
}

/// Registers `probe` at the place of `other`, which has one of its kind.
fn register_beside(other: &UserProbe, probe: &UserProbe) -> Result<(), UprobeError> {
    change(|registry, after| {
        let key = registry.site_of(other).ok_or(UprobeError::NotRegistered)?;
        let site = registry.site_mut(key).ok_or(UprobeError::NotRegistered)?;
        push(&mut site.probes, probe.clone())?;
        probe.begin(key);
        let result = registry.apply(key, after);
        if result.is_err() {
            registry.remove_all(slice::from_ref(probe), after);
        }
        result
    })
}

/// Unregisters several probes. When this returns no handler of them runs or will; those that are
/// not registered stay so. Task context, may sleep.
///
/// # Errors
/// [`UprobeError::AtomicContext`].
pub fn unregister(probes: &[UserProbe]) -> Result<(), UprobeError> {
    change(|registry, after| {
        registry.remove_all(probes, after);
        Ok(())
    })
}

/// Lets a probe fire, or keeps it from firing. When this returns no handler of a disabled one runs.
/// Task context, may sleep.
///
/// # Errors
/// [`UprobeError::NotRegistered`], [`UprobeError::AtomicContext`]; [`UprobeError::OutOfMemory`] if
/// it cannot be enabled.
pub fn set_enabled(probe: &UserProbe, enabled: bool) -> Result<(), UprobeError> {
    change(|registry, after| {
        let key = registry.site_of(probe).ok_or(UprobeError::NotRegistered)?;
        probe.common().set_disabled(!enabled);
        if !enabled {
            registry.reduce(key, after);
            return Ok(());
        }
        let result = registry.apply(key, after);
        if result.is_err() {
            probe.common().set_disabled(true);
            registry.reduce(key, after);
        }
        result
    })
}

/// Visits every registered probe: its file's node, its offset there, and the probe. Task context,
/// may sleep; `visit` must not register or unregister.
pub fn for_each(mut visit: impl FnMut(&NodeRef, u64, &UserProbe)) {
    let registry = REGISTRY.lock();
    for site in &registry.sites {
        for probe in &site.probes {
            visit(&site.node, site.key.1, probe);
        }
    }
}

/// The process `pid` is going to run the program in `space`: it gets its breakpoints. Without
/// memory for one it runs without it. Task context; no task uses the space yet.
pub fn program_starts(space: &Arc<UserSpace>, pid: Pid) -> Result<(), Errno> {
    let mut after = Aftermath::default();
    let mut registry = REGISTRY.lock();
    registry.note(space, pid)?;
    for site in &registry.sites {
        let placed = firing(site)
            .and_then(|list| place(space, (pid, pid), site.key, site, list.as_ref(), &mut after));
        if let Err(error) = placed {
            pr_warn!("uprobes: process {pid} runs without a breakpoint: {error}");
        }
    }
    after.raise_counts();
    Ok(())
}

/// Makes a copy of the running task's memory for a child, with the breakpoints and the calls that
/// are followed, but for what is of its parent alone. [`child_is`] tells its number.
pub fn fork(parent: &UserSpace) -> Result<Arc<UserSpace>, Errno> {
    /// Stands for the number of the child.
    const NO_PROCESS: Pid = 0;
    let mut registry = REGISTRY.lock();
    let child = Arc::new(parent.fork()?);
    child.probes().copy(parent.probes())?;
    let pid = task::current().pid();
    let is_for_parent = |probe: &UserProbe| probe.common().only == Some(pid);
    for site in &registry.sites {
        if site.probes.iter().any(is_for_parent) {
            let pids = (pid, NO_PROCESS);
            // No CPU has used the memory yet.
            let mut after = Aftermath::default();
            let list = firing(site)?;
            place(&child, pids, site.key, site, list.as_ref(), &mut after)?;
        }
    }
    registry.note(&child, NO_PROCESS)?;
    Ok(child)
}

/// The process `pid` runs in `space`, which [`fork`] has made.
pub fn child_is(space: &Arc<UserSpace>, pid: Pid) {
    let mut registry = REGISTRY.lock();
    let is_it = |program: &&mut Program| ptr::eq(program.space.as_ptr(), Arc::as_ptr(space));
    if let Some(program) = registry.programs.iter_mut().find(is_it) {
        program.pid = pid;
    }
}

/// A task has left its program, or was ended: forgets the programs that nobody has any more.
pub fn program_ends() {
    let programs = &mut REGISTRY.lock().programs;
    programs.retain(|program| program.space.strong_count() > 0);
    if programs.capacity() >= 2 * programs.len() {
        programs.shrink_to_fit();
    }
}

impl Registry {
    /// Notes a program in memory.
    fn note(&mut self, space: &Arc<UserSpace>, pid: Pid) -> Result<(), Errno> {
        let program = Program {
            pid,
            space: Arc::downgrade(space),
        };
        Ok(push(&mut self.programs, program)?)
    }
}

/// There are probes whose holders went where nothing could wait.
static ORPHANS: AtomicBool = AtomicBool::new(false);

/// A registered probe that this handle owns. Dropping the handle unregisters it. Where that may not
/// wait (in a handler, with interrupts off), it stops firing at once, and the next change of the
/// registry takes its breakpoints away.
pub struct RegisteredUserProbe<T: 'static>
where
    ProbeRef<T>: Into<UserProbe>,
{
    probe: ProbeRef<T>,
}

impl<T> RegisteredUserProbe<T>
where
    ProbeRef<T>: Into<UserProbe>,
{
    /// Registers `probe`. Task context, may sleep.
    ///
    /// # Errors
    /// [`UprobeError`]; the probe is dropped then.
    pub fn new(probe: T) -> Result<Self, UprobeError> {
        let probe = ProbeRef::Shared(Shared::try_new(probe)?);
        register(&[probe.clone().into()])?;
        Ok(Self { probe })
    }

    /// Registers `probe` at the place of this one, whatever has become of the file's name and
    /// content since. What `probe` says of its own place counts for nothing but its reference
    /// counter, which must be that of this one. Task context, may sleep.
    ///
    /// # Errors
    /// [`UprobeError::AtomicContext`], [`UprobeError::OutOfMemory`]; the probe is dropped then.
    pub fn beside(&self, probe: T) -> Result<Self, UprobeError> {
        let probe = ProbeRef::Shared(Shared::try_new(probe)?);
        register_beside(&self.probe.clone().into(), &probe.clone().into())?;
        Ok(Self { probe })
    }
}

impl<T> RegisteredUserProbe<T>
where
    ProbeRef<T>: Into<UserProbe>,
{
    /// Lets the probe fire, or keeps it from firing: [`set_enabled`].
    ///
    /// # Errors
    /// Those of [`set_enabled`].
    pub fn set_enabled(&self, enabled: bool) -> Result<(), UprobeError> {
        set_enabled(&self.probe.clone().into(), enabled)
    }
}

impl<T> Deref for RegisteredUserProbe<T>
where
    ProbeRef<T>: Into<UserProbe>,
{
    type Target = T;

    fn deref(&self) -> &T {
        &self.probe
    }
}

impl<T> Drop for RegisteredUserProbe<T>
where
    ProbeRef<T>: Into<UserProbe>,
{
    fn drop(&mut self) {
        let probe: UserProbe = self.probe.clone().into();
        if unregister(slice::from_ref(&probe)).is_err() {
            probe.common().end();
            ORPHANS.store(true, Ordering::Relaxed);
        }
    }
}

/// Defines Linux's functions for one kind of probe.
macro_rules! linux_api {
    (
        $kind:literal, $type:ty;
        $register:ident $unregister:ident
        $register_all:ident $unregister_all:ident
        $enable:ident $disable:ident
    ) => {
        #[doc = concat!("Registers a ", $kind, ". Task context, may sleep.")]
        ///
        /// # Errors
        /// [`UprobeError`]; nothing has changed then.
        pub fn $register(probe: &'static $type) -> Result<(), UprobeError> {
            register(&[probe.into()])
        }

        #[doc = concat!("Unregisters a ", $kind, ". No handler of it runs when this returns.")]
        /// Task context, may sleep.
        ///
        /// # Errors
        /// [`UprobeError::AtomicContext`].
        pub fn $unregister(probe: &'static $type) -> Result<(), UprobeError> {
            unregister(&[probe.into()])
        }

        #[doc = concat!("Registers several ", $kind, "s, all or none. Task context, may sleep.")]
        ///
        /// # Errors
        /// That of the first one refused; nothing has changed then.
        pub fn $register_all(probes: &[&'static $type]) -> Result<(), UprobeError> {
            let probes: Vec<UserProbe> = probes.iter().map(|probe| (*probe).into()).collect();
            register(&probes)
        }

        #[doc = concat!("Unregisters several ", $kind, "s at once. Task context, may sleep.")]
        ///
        /// # Errors
        /// [`UprobeError::AtomicContext`].
        pub fn $unregister_all(probes: &[&'static $type]) -> Result<(), UprobeError> {
            let probes: Vec<UserProbe> = probes.iter().map(|probe| (*probe).into()).collect();
            unregister(&probes)
        }

        #[doc = concat!("Lets a disabled ", $kind, " fire again. Task context, may sleep.")]
        ///
        /// # Errors
        /// Those of [`set_enabled`].
        pub fn $enable(probe: &'static $type) -> Result<(), UprobeError> {
            set_enabled(&probe.into(), true)
        }

        #[doc = concat!("Keeps a ", $kind, " from firing. Task context, may sleep.")]
        ///
        /// # Errors
        /// Those of [`set_enabled`].
        pub fn $disable(probe: &'static $type) -> Result<(), UprobeError> {
            set_enabled(&probe.into(), false)
        }
    };
}

linux_api!(
    "uprobe", Uprobe;
    register_uprobe unregister_uprobe
    register_uprobes unregister_uprobes
    enable_uprobe disable_uprobe
);
linux_api!(
    "uretprobe", Uretprobe;
    register_uretprobe unregister_uretprobe
    register_uretprobes unregister_uretprobes
    enable_uretprobe disable_uretprobe
);
