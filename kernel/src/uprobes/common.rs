//! What both kinds of user probes have: their place, their state and their counts, and what serves
//! their hits.
//!
//! # Contexts
//! Hits read and count in any state of the registration. The rest: tasks, under the registry's
//! lock, but for the end of a registration.

use alloc::borrow::Cow;
use core::{
    ptr,
    sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU64,
        Ordering::{Relaxed, Release},
    },
};

use trace_agent::facts::RoutineInProgram;

/// A place in a program's file.
pub(super) struct UserPlace {
    pub(super) path: Cow<'static, str>,
    /// A function of its symbol table.
    pub(super) symbol: Option<Cow<'static, str>>,
    /// Bytes from the symbol's start, or from the start of the file.
    pub(super) offset: u64,
    /// The offset in the file of a word of 16 bits that counts the probes at this place.
    pub(super) reference_counter: Option<u64>,
}

/// Bits of [`Common::state`].
pub(super) const REGISTERED: u8 = 1;
const DISABLED: u8 = 2;
/// A bit that no state has: of a call, in a copy of the state.
pub(super) const BY_RUST: u64 = 4;
/// The bits below the number of the registration.
const FLAG_BITS: u32 = 8;

// Of the breakpoint's stub.
unsafe extern "C" {
    fn asm_user_place();
}

/// The code of the breakpoint's stub that serves a hit in Rust.
pub(super) const IN_RUST: *mut () = asm_user_place as *mut ();

/// The probe of a place that has none, or several.
pub(super) static NOBODY: Common = Common::new();

/// What both kinds of probes have. It comes first in both, so its address is that of the probe.
pub(super) struct Common {
    /// What serves a hit where the probe is alone: code of the breakpoint's stub.
    pub(super) serve: AtomicPtr<()>,
    pub(super) place: UserPlace,
    pub(super) only: Option<i32>,
    pub(super) starts_disabled: bool,
    pub(super) hits: AtomicU64,
    pub(super) nmissed: AtomicU64,
    /// [`REGISTERED`] and [`DISABLED`], and from [`FLAG_BITS`] on how often a registration has
    /// begun or ended: one word, because each hit asks for all.
    pub(super) state: AtomicU64,
    /// Its holders share it.
    pub(super) is_shared: AtomicBool,
    /// Where it is registered: the number of the file's node, and the offset.
    site: [AtomicU64; 2],
    pub(super) data: AtomicPtr<()>,
}

impl Common {
    pub(super) const fn new() -> Self {
        Self {
            serve: AtomicPtr::new(IN_RUST),
            place: UserPlace {
                path: Cow::Borrowed(""),
                symbol: None,
                offset: 0,
                reference_counter: None,
            },
            only: None,
            starts_disabled: false,
            hits: AtomicU64::new(0),
            nmissed: AtomicU64::new(0),
            state: AtomicU64::new(0),
            is_shared: AtomicBool::new(false),
            site: [const { AtomicU64::new(0) }; 2],
            data: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Marks it as registered at `site`: its counts begin anew.
    pub(super) fn begin(&self, site: (u64, u64), is_shared: bool) {
        self.site[0].store(site.0, Relaxed);
        self.site[1].store(site.1, Relaxed);
        self.hits.store(0, Relaxed);
        self.nmissed.store(0, Relaxed);
        self.is_shared.store(is_shared, Relaxed);
        let disabled = if self.starts_disabled { DISABLED } else { 0 };
        let number = self.state.load(Relaxed) >> FLAG_BITS;
        let flags = u64::from(REGISTERED | disabled);
        self.state.store((number + 1) << FLAG_BITS | flags, Relaxed);
    }

    /// Ends its registration. When all CPUs have answered after this, no call of the registration
    /// gives its right back any more.
    pub(super) fn end(&self) {
        let ended = |state: u64| {
            let number = state >> FLAG_BITS;
            (state & u64::from(REGISTERED) != 0)
                .then_some((number + 1) << FLAG_BITS | state & u64::from(DISABLED))
        };
        // An error says that it was not registered.
        let _ = self.state.fetch_update(Relaxed, Relaxed, ended);
    }

    pub(super) fn set_disabled(&self, disabled: bool) {
        match disabled {
            true => self.state.fetch_or(DISABLED.into(), Relaxed),
            false => self.state.fetch_and(!u64::from(DISABLED), Relaxed),
        };
    }

    /// Whether it fires, in the process `pid`.
    #[inline]
    pub(super) fn fires_in(&self, pid: i32) -> bool {
        self.fires() && self.only.is_none_or(|only| only == pid)
    }

    /// Whether it fires in some process.
    #[inline]
    pub(super) fn fires(&self) -> bool {
        self.flags() == REGISTERED
    }

    pub(super) fn is_registered(&self) -> bool {
        self.flags() & REGISTERED != 0
    }

    pub(super) fn is_disabled(&self) -> bool {
        self.flags() & DISABLED != 0
    }

    fn flags(&self) -> u8 {
        self.state.load(Relaxed) as u8
    }

    /// Where it was registered last.
    pub(super) fn site(&self) -> (u64, u64) {
        (self.site[0].load(Relaxed), self.site[1].load(Relaxed))
    }

    pub(super) fn count_hit(&self) {
        self.hits.fetch_add(1, Relaxed);
    }

    pub(super) fn count_miss(&self) {
        self.nmissed.fetch_add(1, Relaxed);
    }

    /// Whether `state` is of the registration that is in force.
    pub(super) fn is_of_registration(&self, state: u64) -> bool {
        self.state.load(Relaxed) >> FLAG_BITS == state >> FLAG_BITS
    }
}

/// Has `serve` be what serves hits that run a routine, whose address `action` gets; or, without
/// one, the `usual` code again.
pub(super) fn set_routine(
    (serve, usual): (&AtomicPtr<()>, *mut ()),
    action: &AtomicU64,
    routine: Option<(RoutineInProgram, *mut ())>,
) {
    let server = match routine {
        None => usual,
        Some((routine, server)) => {
            action.store(routine.address(), Relaxed);
            server
        }
    };
    // A hit that finds the server finds the action, which stays for those that have read the old
    // server. Release, and a processor that loads in order.
    serve.store(server, Release);
}
