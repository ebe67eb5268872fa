//! The handlers, empty ones for the figures and counting ones for the check, and their probes.
//!
//! A row names the kinds of its probes. Each kind registers one probe with the handlers that it is
//! given, and what comes back counts hits and misses, whatever it is.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kernel::{
    probes::{
        EntryVerdict, Jprobe, JprobeEntry, Kprobe, Kretprobe, KretprobeInstance, PreVerdict,
        ProbeError, PtRegs, Registered, RegisteredWatchpoint, Touched, WATCHPOINTS, Watchpoint,
        jprobe, register,
        watched_objects::{ObjectWatch, RegisteredObjectWatch},
    },
    symbols,
};

/// The handlers of a row's probes.
///
/// It is a type and not a table of pointers, because the builders of probes take functions that are
/// known at compile time.
pub trait Handlers {
    fn pre(probe: &Kprobe, regs: &mut PtRegs) -> PreVerdict;
    fn post(probe: &Kprobe, regs: &mut PtRegs, flags: u64);
    fn entry(instance: &mut KretprobeInstance<()>, regs: &mut PtRegs) -> EntryVerdict;
    fn on_return(instance: &mut KretprobeInstance<()>, regs: &mut PtRegs);
    fn on_touch(watch: &Watchpoint, regs: &mut PtRegs, touched: &Touched);
    fn on_write(regs: &mut PtRegs, touched: &Touched);
    const JPROBE: JprobeEntry;
}

/// They do nothing.
pub enum Empty {}

impl Handlers for Empty {
    fn pre(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        PreVerdict::Execute
    }

    fn post(_: &Kprobe, _: &mut PtRegs, _: u64) {}

    fn entry(_: &mut KretprobeInstance<()>, _: &mut PtRegs) -> EntryVerdict {
        EntryVerdict::Track
    }

    fn on_return(_: &mut KretprobeInstance<()>, _: &mut PtRegs) {}

    fn on_touch(_: &Watchpoint, _: &mut PtRegs, _: &Touched) {}

    fn on_write(_: &mut PtRegs, _: &Touched) {}

    const JPROBE: JprobeEntry = do_nothing;
}

/// They count their calls in [`counted`].
pub enum Counting {}

impl Handlers for Counting {
    fn pre(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        count();
        PreVerdict::Execute
    }

    fn post(_: &Kprobe, _: &mut PtRegs, _: u64) {
        count();
    }

    fn entry(_: &mut KretprobeInstance<()>, _: &mut PtRegs) -> EntryVerdict {
        count();
        EntryVerdict::Track
    }

    fn on_return(_: &mut KretprobeInstance<()>, _: &mut PtRegs) {
        count();
    }

    fn on_touch(_: &Watchpoint, _: &mut PtRegs, _: &Touched) {
        count();
    }

    fn on_write(_: &mut PtRegs, _: &Touched) {
        count();
    }

    const JPROBE: JprobeEntry = do_count;
}

static COUNT: AtomicU64 = AtomicU64::new(0);

fn count() {
    COUNT.fetch_add(1, Relaxed);
}

/// Takes the count of handler calls since the last time.
pub fn counted() -> u64 {
    COUNT.swap(0, Relaxed)
}

jprobe! {
    fn do_nothing() {}
}

jprobe! {
    fn do_count() {
        count();
    }
}

/// A kind of probe, by the handlers it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerKind {
    /// A kprobe with a pre handler.
    Kprobe,
    /// A kprobe with a pre and a post handler.
    KprobePost,
    /// A kretprobe with a return handler.
    Kretprobe,
    /// A kretprobe with an entry and a return handler.
    KretprobeEntry,
    /// A jprobe.
    Jprobe,
    /// A watchpoint for writes of [`WATCHED`], wherever the row's probes would go.
    Watchpoint,
    /// The same without a handler.
    WatchpointCount,
    /// A watch of [`WATCHED`] by the protection of its page.
    Object,
}

/// The word that `bench_store` stores to.
const WATCHED: &str = "bench_watched";

impl HandlerKind {
    /// How many handlers a hit runs.
    pub fn handlers(self) -> u64 {
        match self {
            Self::WatchpointCount => 0,
            Self::Kprobe | Self::Kretprobe | Self::Jprobe | Self::Watchpoint | Self::Object => 1,
            Self::KprobePost | Self::KretprobeEntry => 2,
        }
    }

    /// Registers a probe of this kind on `symbol` + `offset`.
    ///
    /// # Errors
    /// That of the registration.
    pub fn register<H: Handlers + 'static>(
        self,
        symbol: &'static str,
        offset: u32,
    ) -> Result<Box<dyn Armed>, ProbeError> {
        let kprobe = || Kprobe::new().symbol(symbol).offset(offset).pre(H::pre);
        let kretprobe = || {
            Kretprobe::new()
                .symbol(symbol)
                .offset(offset)
                .handler(H::on_return)
        };
        Ok(match self {
            Self::Kprobe => Box::new(register(Box::new(kprobe()))?),
            Self::KprobePost => Box::new(register(Box::new(kprobe().post(H::post)))?),
            Self::Kretprobe => Box::new(register(Box::new(kretprobe()))?),
            Self::KretprobeEntry => Box::new(register(Box::new(kretprobe().entry(H::entry)))?),
            Self::Jprobe => {
                let jprobe = Jprobe::new().symbol(symbol).offset(offset);
                Box::new(register(Box::new(jprobe.entry(H::JPROBE)))?)
            }
            Self::Watchpoint => Box::new(watch(watchpoint().handler(H::on_touch))?),
            Self::WatchpointCount => Box::new(watch(watchpoint())?),
            Self::Object => {
                let start = symbols::lookup_name(WATCHED).expect("it is there").start;
                let handler = Box::new(|regs: &mut PtRegs, touched: &Touched| {
                    H::on_write(regs, touched);
                });
                let watch = Box::new(ObjectWatch::new(start, 4, handler));
                let watch = RegisteredObjectWatch::new(watch);
                Box::new(watch.expect("its page is its own"))
            }
        })
    }
}

fn watchpoint() -> Watchpoint {
    Watchpoint::new().symbol(WATCHED).len(4)
}

fn watch(watchpoint: Watchpoint) -> Result<RegisteredWatchpoint, ProbeError> {
    WATCHPOINTS.register_owned(Box::new(watchpoint))
}

/// Registers a kprobe with an empty pre handler at an address.
///
/// # Errors
/// That of the registration.
pub fn register_empty_at(address: u64) -> Result<Box<dyn Armed>, ProbeError> {
    let probe = Kprobe::new().at(address).pre(Empty::pre);
    Ok(Box::new(register(Box::new(probe))?))
}

/// A registered probe of any kind; dropping it unregisters.
pub trait Armed {
    /// How often its handlers ran.
    fn hits(&self) -> u64;
    /// How often they should have run and did not.
    fn missed(&self) -> u64;
}

impl Armed for Registered<Box<Kprobe>> {
    fn hits(&self) -> u64 {
        Kprobe::hits(self)
    }

    fn missed(&self) -> u64 {
        self.nmissed()
    }
}

impl Armed for Registered<Box<Kretprobe>> {
    fn hits(&self) -> u64 {
        Kretprobe::hits(self)
    }

    fn missed(&self) -> u64 {
        self.nmissed() + self.kprobe().nmissed()
    }
}

impl Armed for Registered<Box<Jprobe>> {
    fn hits(&self) -> u64 {
        self.kprobe().hits()
    }

    fn missed(&self) -> u64 {
        self.kprobe().nmissed()
    }
}

impl Armed for RegisteredWatchpoint {
    fn hits(&self) -> u64 {
        Watchpoint::hits(self)
    }

    fn missed(&self) -> u64 {
        self.nmissed()
    }
}

impl Armed for RegisteredObjectWatch {
    fn hits(&self) -> u64 {
        ObjectWatch::hits(self)
    }

    fn missed(&self) -> u64 {
        self.nmissed()
    }
}
