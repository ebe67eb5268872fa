//! In which order text is written, CPUs are waited for, and what hits use comes and goes.
//!
//! A kernel does not say what it does to its text, so only the process can look.

#![cfg(target_os = "linux")]

use probes::{Kprobe, registry::StepMethod};

use super::{targets::*, *};
use crate::platform::events::{self, Event};

/// A probed address, as each of the events finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    event: Event,
    /// Whether a hit would find its site.
    published: bool,
    /// How many slots belong to it.
    slots: usize,
}

/// The effects of `operation`, as the probed address `addr` sees it.
fn watched(addr: u64, operation: impl FnOnce()) -> Vec<Seen> {
    let events = events::during(operation, move || {
        let slots = text::slots().step_by(64);
        (
            PROBES.is_breakpoint(addr + 1),
            slots.filter(|ip| PROBES.original_ip(*ip) == addr).count(),
        )
    });
    events
        .into_iter()
        .map(|(event, (published, slots))| Seen {
            event,
            published,
            slots,
        })
        .collect()
}

/// How many slots belong to anybody.
fn owned_slots() -> usize {
    let slots = text::slots().step_by(64);
    slots.filter(|ip| PROBES.original_ip(*ip) != *ip).count()
}

/// Expects that `byte` is stored at `addr` and that every CPU then sees it, as often as the kernel
/// finds it right; all that while a hit finds the site and its `slots`.
#[track_caller]
fn assert_stores(seen: &[Seen], addr: u64, byte: u8, slots: usize) {
    let complete = |event| Seen {
        event,
        published: true,
        slots,
    };
    let round = [Event::Write(addr, byte), Event::Cores].map(complete);
    assert!(
        !seen.is_empty() && seen.chunks(2).all(|each| each == round),
        "{seen:x?}"
    );
}

#[test]
fn a_site_is_there_before_its_breakpoint_and_until_after_the_wait() {
    let _machine = boot();
    let addr = address("add");
    let first = byte_at(addr);
    let probe = leak(Kprobe::new().at(addr));
    let slots = if stepping() { 2 } else { 1 };
    let before = owned_slots();
    let seen = watched(addr, || PROBES.register(probe).unwrap());
    assert_stores(&seen, addr, 0xcc, slots);
    let wait = Seen {
        event: Event::Hits,
        published: false,
        slots,
    };
    let mut seen = watched(addr, || PROBES.unregister(probe).unwrap());
    assert_eq!(seen.pop(), Some(wait));
    assert_stores(&seen, addr, first, slots);
    assert_eq!(owned_slots(), before, "slots of nobody");
}

/// The breakpoint stays; the slot that a post handler needs comes before anybody can enter it, and
/// goes when no CPU can be in it.
#[test]
fn a_post_slot_is_synchronised_before_its_use_and_kept_until_after_the_wait() {
    let _machine = boot();
    let addr = address("add");
    let at = || Kprobe::new().at(addr).step_method(StepMethod::Translate);
    let stays = leak(at().pre(pre::<1>));
    let comes = leak(at().post(post::<2>));
    PROBES.register(stays).unwrap();
    let seen = |event| Seen {
        event,
        published: true,
        slots: 2,
    };
    assert_eq!(
        watched(addr, || PROBES.register(comes).unwrap()),
        [seen(Event::Cores)]
    );
    assert_eq!(
        watched(addr, || PROBES.unregister(comes).unwrap()),
        [seen(Event::Hits)]
    );
    assert_eq!(add(20, 22), 42);
    PROBES.unregister(stays).unwrap();
}

/// A batch costs as many waits as one probe does.
#[test]
fn a_batch_shares_its_rounds() {
    let _machine = boot();
    let addresses = STEP_BY_STEP.map(|offset| address("step_by_step") + u64::from(offset));
    let probes = addresses.map(|addr| leak(Kprobe::new().at(addr)));
    let waits = |operation: &dyn Fn()| {
        let events = events::during(operation, || ());
        let waits = |kind| events.iter().filter(|(event, ())| *event == kind).count();
        (waits(Event::Cores), waits(Event::Hits))
    };
    let one = [
        waits(&|| PROBES.register(probes[0]).unwrap()),
        waits(&|| PROBES.unregister(probes[0]).unwrap()),
    ];
    let all = [
        waits(&|| PROBES.register_batch(&probes).unwrap()),
        waits(&|| PROBES.unregister_batch(&probes).unwrap()),
    ];
    assert_eq!(all, one);
    assert!(one[0].0 > 0 && one[1].0 > 0);
    assert_eq!((one[0].1, one[1].1), (0, 1));
}
