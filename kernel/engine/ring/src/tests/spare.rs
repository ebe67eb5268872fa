//! Exchanges of two rings at each access of writers, readers and exchanges, and writers at each
//! access of an exchange.
//!
//! After each run the books are closed: every record is in one of the two rings, or counted as
//! lost.

use core::{
    cell::{Cell, RefCell},
    ptr::NonNull,
    sync::atomic::{AtomicPtr, Ordering::SeqCst},
};
use std::{collections::BTreeSet, rc::Rc};

use super::{interrupt, world::Memory};
use crate::{
    Event, Mode, Ring, Source,
    layout::MAX_PAYLOAD,
    spare::{Spare, may_be_confused},
};

const PAGES: usize = 3;
const BYTES: usize = 56;

/// Two rings, and a log of what was done with them.
struct Pair {
    live: AtomicPtr<u8>,
    spare: Spare,
    rings: [Ring<'static>; 2],
    next: Cell<u64>,
    committed: RefCell<BTreeSet<u64>>,
    discarded: Cell<u64>,
    dropped: Cell<u64>,
    read: RefCell<BTreeSet<u64>>,
    /// The memory of the rings.
    _memory: [Memory; 2],
}

/// The place where a writer looks for the ring of a record that it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// The live ring, as compiled code does.
    Live,
    /// Both.
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// This many records, by the rings' own CPU.
    Write(usize, Look),
    /// A record that is given up, and one that is not.
    Doubt,
    /// An exchange by any CPU.
    Exchange,
    /// A quiet moment, not on top of a writer.
    Quiet,
    /// This many records are taken out of the live ring.
    Consume(usize),
    /// The live ring is cleared.
    Clear,
}

impl Pair {
    fn new(mode: Mode) -> Self {
        let memory = [Memory::new(PAGES), Memory::new(PAGES)];
        // SAFETY: fresh memory of this size, all 0, that lives as long as the rings are used.
        let rings = [0, 1].map(|at: usize| unsafe { Ring::init(memory[at].start(), PAGES, mode) });
        let rings = rings.map(|ring| ring.expect("a ring"));
        let [a, b] = rings.map(Ring::as_ptr);
        let bytes = Ring::bytes(PAGES).expect("a size") as u64;
        let [one, other] = [a, b].map(|start| start.addr().get() as u64);
        assert!(!may_be_confused(one, other, bytes));
        let spare = Spare::new();
        let live = AtomicPtr::new(a.as_ptr());
        // SAFETY: an empty ring that is not live.
        unsafe { spare.hold(&live).set_spare(b.as_ptr()) };
        Self {
            live,
            spare,
            rings,
            next: Cell::new(0),
            committed: RefCell::default(),
            discarded: Cell::new(0),
            dropped: Cell::new(0),
            read: RefCell::default(),
            _memory: memory,
        }
    }

    fn live(&self) -> Ring<'static> {
        let base = NonNull::new(self.live.load(SeqCst)).expect("a ring");
        // SAFETY: one of the two.
        unsafe { Ring::from_raw(base) }
    }

    fn write(&self, look: Look, commits: bool) {
        let id = self.next.replace(self.next.get() + 1);
        // SAFETY: records end in the reverse order of their beginnings.
        let Some(payload) = (unsafe { self.live().reserve(BYTES, id) }) else {
            self.dropped.set(self.dropped.get() + 1);
            return;
        };
        // SAFETY: reserved.
        unsafe { payload.write_bytes(id as u8 + 1, BYTES) };
        let ring = match look {
            Look::Live => self.live(),
            // SAFETY: both are rings.
            Look::Both => unsafe { self.spare.ring_of(&self.live, payload.as_ptr()) }
                .expect("the ring of a record that is being written"),
        };
        if commits {
            self.committed.borrow_mut().insert(id);
            // SAFETY: begun, and not over.
            unsafe { ring.commit(payload) };
        } else {
            self.discarded.set(self.discarded.get() + 1);
            // SAFETY: as above.
            unsafe { ring.discard(payload) };
        }
    }

    fn note(&self, event: &Event, buffer: &[u8], into: &mut BTreeSet<u64>) {
        if let Event::Record(record) = event {
            assert_eq!(record.bytes, BYTES);
            assert_eq!(buffer[..BYTES], [record.tsc as u8 + 1; BYTES], "torn");
            assert!(into.insert(record.tsc), "record {} twice", record.tsc);
        }
    }

    fn run(&self, act: Act) {
        match act {
            Act::Write(records, look) => (0..records).for_each(|_| self.write(look, true)),
            Act::Doubt => {
                self.write(Look::Both, false);
                self.write(Look::Live, true);
            }
            // SAFETY: both are rings.
            Act::Exchange => unsafe { self.spare.exchange(&self.live) },
            // SAFETY: both are rings, and the caller has chosen a quiet moment.
            Act::Quiet => unsafe { self.spare.on_quiet(&self.live) },
            Act::Consume(records) => {
                // SAFETY: both are rings.
                let _held = unsafe { self.spare.hold(&self.live) };
                for _ in 0..records {
                    let mut buffer = [0; MAX_PAYLOAD];
                    let next = self.live().consumer().next(&mut buffer);
                    if let Some(event) = next.expect("no damage") {
                        self.note(&event, &buffer, &mut self.read.borrow_mut());
                    }
                }
            }
            Act::Clear => {
                // SAFETY: both are rings.
                let mut held = unsafe { self.spare.hold(&self.live) };
                held.bases()[0] = self.live().reset();
            }
        }
    }

    /// Wants each committed record to be in one place of the books. Nothing is under way.
    fn close_books(&self) {
        self.run(Act::Quiet);
        // An exchange that was wanted came in the quiet moment before this one.
        self.run(Act::Quiet);
        assert!(!self.spare.is_exchanged() && !self.spare.is_wanted());
        let mut seen = self.read.borrow().clone();
        let (mut gone, mut written, mut discarded, mut dropped) = (0, 0, 0, 0);
        for ring in self.rings {
            let mut here = BTreeSet::new();
            let mut cursor = ring.cursor();
            let mut buffer = [0; MAX_PAYLOAD];
            while let Some(event) = cursor.next(&mut buffer).expect("no damage") {
                self.note(&event, &buffer, &mut here);
            }
            let stats = ring.stats();
            assert_eq!(here.len() as u64, stats.unread, "{stats:?}");
            gone += stats.cleared + stats.overwritten;
            written += stats.written;
            discarded += stats.discarded;
            dropped += stats.dropped();
            for id in here {
                assert!(seen.insert(id), "record {id} in both rings");
            }
        }
        let committed = self.committed.borrow();
        assert!(seen.is_subset(&committed));
        assert_eq!(written, committed.len() as u64);
        assert_eq!(seen.len() as u64 + gone, written);
        assert_eq!(discarded, self.discarded.get());
        assert_eq!(dropped, self.dropped.get());
    }
}

fn explore(mode: Mode, before: &[Act], acts: &[Act]) -> usize {
    let new = || {
        let pair = Pair::new(mode);
        before.iter().for_each(|act| pair.run(*act));
        pair
    };
    let case = std::format!("{mode:?}, {before:?}");
    interrupt::explore(case, new, Pair::run, acts, |pair| {
        pair.close_books();
        // It still works.
        for act in [Act::Write(1, Look::Live), Act::Exchange, Act::Doubt] {
            pair.run(act);
            pair.close_books();
        }
    })
}

/// Three records fill a page, and nine a ring.
fn explore_all(acts: &[Act]) {
    let fillings: &[usize] = if acts.len() == 2 { &[0, 7, 8, 9] } else { &[8] };
    let mut runs = 0;
    for mode in [Mode::Overwrite, Mode::Stop] {
        for &records in fillings {
            let written = Act::Write(records, Look::Live);
            runs += explore(mode, &[written], acts);
            runs += explore(mode, &[written, Act::Exchange], acts);
            let settled = [written, Act::Exchange, Act::Quiet, written];
            runs += explore(mode, &settled, acts);
        }
    }
    assert!(runs > 6 * fillings.len(), "no interrupt came");
}

#[test]
fn an_exchange_in_the_middle_of_a_record_loses_nothing() {
    for look in [Look::Live, Look::Both] {
        for records in [1, 4] {
            explore_all(&[Act::Write(records, look), Act::Exchange]);
            let nested = Act::Write(records, look);
            explore_all(&[Act::Write(1, look), Act::Exchange, nested]);
            explore_all(&[Act::Write(1, look), nested, Act::Exchange]);
        }
    }
    explore_all(&[Act::Doubt, Act::Exchange]);
    explore_all(&[Act::Doubt, Act::Exchange, Act::Doubt]);
}

#[test]
fn a_second_exchange_waits_for_a_quiet_moment() {
    let pair = Pair::new(Mode::Overwrite);
    let first = pair.live().as_ptr();
    pair.run(Act::Exchange);
    let second = pair.live().as_ptr();
    assert!(first != second);
    pair.run(Act::Exchange);
    assert!(pair.live().as_ptr() == second && pair.spare.is_wanted());
    pair.run(Act::Quiet);
    assert!(pair.live().as_ptr() == first && !pair.spare.is_wanted());
    // Also with writers and exchanges on top of one another.
    let write = Act::Write(1, Look::Live);
    explore_all(&[write, Act::Exchange, Act::Exchange]);
    explore_all(&[Act::Exchange, Act::Exchange, write]);
    explore_all(&[Act::Exchange, Act::Quiet, write]);
    explore_all(&[Act::Quiet, Act::Exchange, write]);
}

/// Runs `work` with `handler` at its first access, at its second, and so on.
fn at_each_access(work: impl Fn(&Pair), handler: impl Fn(&Pair) + Copy + 'static) {
    for step in 0.. {
        let pair = Rc::new(Pair::new(Mode::Overwrite));
        let inner = Rc::clone(&pair);
        let handler: Rc<dyn Fn()> = Rc::new(move || handler(&inner));
        if interrupt::with(&[(step, handler)], || work(&pair)) == 0 {
            assert!(step > 3, "no interrupt came");
            return;
        }
    }
}

#[test]
fn exchanges_at_once_are_one() {
    let work = |pair: &Pair| {
        let first = pair.live().as_ptr();
        pair.run(Act::Exchange);
        // There was no quiet moment.
        assert!(pair.live().as_ptr() != first);
    };
    at_each_access(work, |pair| {
        pair.run(Act::Exchange);
        pair.run(Act::Exchange);
    });
}

/// The writer of a record goes on while another CPU stands still in the middle of an exchange.
#[test]
fn ring_of_a_record_is_found_at_any_time() {
    let work = |pair: &Pair| {
        // SAFETY: the only record.
        let payload = unsafe { pair.live().reserve(BYTES, 0) }.expect("room");
        RECORD.set((payload.as_ptr(), pair.live().as_ptr().as_ptr()));
        pair.run(Act::Exchange);
        RECORD.set((core::ptr::null_mut(), core::ptr::null_mut()));
    };
    at_each_access(work, |pair| {
        let (record, ring) = RECORD.get();
        if !record.is_null() {
            // SAFETY: both are rings.
            let found = unsafe { pair.spare.ring_of(&pair.live, record) };
            assert_eq!(found.map(|found| found.as_ptr().as_ptr()), Some(ring));
            RECORD.set((core::ptr::null_mut(), ring));
        }
    });
}

std::thread_local! {
    /// A record that is being written, and its ring.
    static RECORD: Cell<(*mut u8, *mut u8)> =
        const { Cell::new((core::ptr::null_mut(), core::ptr::null_mut())) };
}

#[test]
fn who_holds_the_rings_is_not_disturbed_and_does_what_was_wanted() {
    let write = Act::Write(2, Look::Live);
    for reader in [Act::Consume(2), Act::Clear] {
        explore_all(&[reader, Act::Exchange]);
        explore_all(&[reader, Act::Exchange, write]);
        explore_all(&[reader, write, Act::Exchange]);
        explore_all(&[Act::Exchange, write, Act::Exchange]);
    }
    let pair = Pair::new(Mode::Overwrite);
    let first = pair.live().as_ptr();
    // SAFETY: both are rings.
    let held = unsafe { pair.spare.hold(&pair.live) };
    pair.run(Act::Exchange);
    assert!(pair.live().as_ptr() == first && pair.spare.is_wanted());
    drop(held);
    assert!(pair.live().as_ptr() != first && !pair.spare.is_wanted());
}

#[test]
fn the_ring_that_becomes_live_is_empty_and_its_counts_begin_anew() {
    let pair = Pair::new(Mode::Stop);
    // Full; in stop mode there is no room then.
    pair.run(Act::Doubt);
    pair.run(Act::Write(20, Look::Live));
    assert!(pair.dropped.get() > 0);
    for round in 0..4 {
        pair.run(Act::Exchange);
        pair.run(Act::Quiet);
        pair.run(Act::Write(round, Look::Live));
        // SAFETY: both are rings.
        let mut held = unsafe { pair.spare.hold(&pair.live) };
        let since = pair.live().stats().since(&held.bases()[0]);
        assert_eq!((since.unread, since.written), (round as u64, round as u64));
        assert_eq!((since.dropped(), since.discarded, since.cleared), (0, 0, 0));
    }
    pair.close_books();
}

#[test]
fn without_a_spare_nothing_is_exchanged() {
    let pair = Pair::new(Mode::Overwrite);
    let first = pair.live().as_ptr();
    // SAFETY: both are rings, and no spare is one, too.
    unsafe { pair.spare.hold(&pair.live).set_spare(core::ptr::null_mut()) };
    pair.run(Act::Exchange);
    assert!(pair.live().as_ptr() == first && !pair.spare.is_wanted());
}

#[test]
fn rings_are_confused_if_their_lower_halves_overlap() {
    for (one, other, expected) in [
        (0x1000, 0x3000, false),
        (0x1000, 0x2fff, true),
        (0x3000, 0x1000, false),
        (0x2000, 0x1000, true),
        (0x1_0000_1000, 0x1000, true),
        (0x1_0000_1000, 0x2fff, true),
        (0x1_0000_1000, 0x3000, false),
        (0xffff_f000, 0x2_0000_0000, true),
    ] {
        assert_eq!(may_be_confused(one, other, 0x2000), expected, "{one:#x}");
    }
}
