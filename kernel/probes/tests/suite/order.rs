//! In which order text is written, CPUs are waited for, and what hits use comes and goes.

use probes::Kprobe;

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

/// What `operation` does, as the probed address `addr` sees it.
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

/// The four steps of storing `byte` at `addr`: twice, as an emulator may keep what it made of the text during the first store.
fn stores(addr: u64, byte: u8, slots: usize) -> Vec<Seen> {
    let seen = |event| Seen {
        event,
        published: true,
        slots,
    };
    let round = [Event::Write(addr, byte), Event::Cores].map(seen);
    [round, round].concat()
}

#[test]
fn a_site_is_there_before_its_breakpoint_and_until_after_the_wait() {
    let _machine = boot();
    let addr = address("add");
    let first = byte_at(addr);
    let probe = leak(Kprobe::new().at(addr));
    let slots = if stepping() { 2 } else { 1 };
    let before = owned_slots();
    assert_eq!(
        watched(addr, || PROBES.register(probe).unwrap()),
        stores(addr, 0xcc, slots)
    );
    let wait = Seen {
        event: Event::Hits,
        published: false,
        slots,
    };
    let mut expected = stores(addr, first, slots);
    expected.push(wait);
    assert_eq!(
        watched(addr, || PROBES.unregister(probe).unwrap()),
        expected
    );
    assert_eq!(owned_slots(), before, "slots of nobody");
}

/// The breakpoint stays; the slot that a post handler needs comes before anybody can enter it, and goes when nobody can be in it.
#[test]
fn a_post_slot_is_synchronised_before_its_use_and_kept_until_after_the_wait() {
    let _machine = boot();
    if stepping() {
        return;
    }
    let addr = address("add");
    let stays = leak(Kprobe::new().at(addr).pre(pre::<1>));
    let comes = leak(Kprobe::new().at(addr).post(post::<2>));
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

#[test]
fn a_batch_shares_its_rounds() {
    let _machine = boot();
    let addresses = STEP_BY_STEP[..3]
        .iter()
        .map(|offset| address("step_by_step") + u64::from(*offset));
    let addresses: Vec<u64> = addresses.collect();
    let probes: Vec<_> = addresses
        .iter()
        .map(|addr| leak(Kprobe::new().at(*addr)))
        .collect();
    let kinds = |events: Vec<(Event, ())>| -> Vec<Option<u8>> {
        let kind = |event| match event {
            Event::Write(_, byte) => Some(byte),
            Event::Cores | Event::Hits => None,
        };
        events.into_iter().map(|(event, ())| kind(event)).collect()
    };
    let round = [Some(0xcc), Some(0xcc), Some(0xcc), None];
    assert_eq!(
        kinds(events::during(
            || PROBES.register_batch(&probes).unwrap(),
            || ()
        )),
        [round, round].concat()
    );
    let events = kinds(events::during(
        || PROBES.unregister_batch(&probes).unwrap(),
        || (),
    ));
    assert_eq!(events.iter().filter(|event| event.is_none()).count(), 3);
    assert_eq!(events.len(), 2 * 3 + 3);
}
