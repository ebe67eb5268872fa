//! Random operations, against a plain queue of pages. Records are begun on top of each other, as by
//! interrupts.
//!
//! The queue says which records must be there, which are lost, and what the counts are after each
//! operation.

use core::ptr::NonNull;
use std::{collections::VecDeque, vec, vec::Vec};

use proptest::{collection, prelude::*};

use super::world::{End, World};
use crate::{
    Event, Mode,
    layout::{MAX_PAYLOAD, PAGE_HEADER_BYTES, RECORD_HEADER_BYTES},
    limits::PAGE_BYTES,
};

#[derive(Clone, Copy, Debug)]
enum Act {
    Begin(usize),
    /// The newest record that was begun.
    End(End),
    Consume,
    Show,
    Reset,
    SetMode(Mode),
}

fn act() -> impl Strategy<Value = Act> {
    let length = prop_oneof![0..40usize, 0..=MAX_PAYLOAD + 1, Just(MAX_PAYLOAD)];
    prop_oneof![
        6 => length.prop_map(Act::Begin),
        5 => Just(Act::End(End::Commit)),
        1 => Just(Act::End(End::Discard)),
        2 => Just(Act::Consume),
        1 => Just(Act::Show),
        1 => prop_oneof![
            Just(Act::Reset),
            Just(Act::SetMode(Mode::Overwrite)),
            Just(Act::SetMode(Mode::Stop)),
        ],
    ]
}

/// A record in the model: its state, and whether it was taken out.
#[derive(Clone, Debug)]
struct Item {
    id: u64,
    end: Option<End>,
    taken: bool,
}

#[derive(Clone, Debug, Default)]
struct Page {
    used: usize,
    items: Vec<Item>,
    /// Dropped records before it was begun.
    dropped: u64,
}

/// The ring as it should be.
struct Model {
    pages: usize,
    mode: Mode,
    /// The oldest one first. The last one is written to.
    used: VecDeque<Page>,
    overwritten: u64,
    cleared: u64,
    dropped: [u64; 3],
    /// The counts that the consumer was told.
    reported: [u64; 2],
}

const FULL: usize = 0;
const NESTED: usize = 1;
const TOO_LONG: usize = 2;

impl Model {
    fn items(&mut self) -> impl Iterator<Item = &mut Item> {
        self.used.iter_mut().flat_map(|page| &mut page.items)
    }

    fn is_busy(page: &Page) -> bool {
        page.items.iter().any(|item| item.end.is_none())
    }

    /// Whether there is room.
    fn begin(&mut self, id: u64, bytes: usize) -> bool {
        if bytes > MAX_PAYLOAD {
            self.dropped[TOO_LONG] += 1;
            return false;
        }
        let needed = RECORD_HEADER_BYTES + bytes.next_multiple_of(8);
        let fits = |page: &Page| page.used + needed <= PAGE_BYTES;
        if !self.used.back().is_some_and(fits) {
            if self.used.len() == self.pages {
                let oldest = &self.used[0];
                if Self::is_busy(oldest) {
                    self.dropped[NESTED] += 1;
                    return false;
                }
                let unread = |item: &&Item| !item.taken;
                if self.mode == Mode::Stop && oldest.items.iter().any(|item| !item.taken) {
                    self.dropped[FULL] += 1;
                    return false;
                }
                self.overwritten += oldest
                    .items
                    .iter()
                    .filter(unread)
                    .filter(|item| item.end == Some(End::Commit))
                    .count() as u64;
                self.used.pop_front();
            }
            self.used.push_back(Page {
                used: PAGE_HEADER_BYTES,
                dropped: self.dropped.iter().sum(),
                ..Page::default()
            });
        }
        let page = self.used.back_mut().expect("just begun");
        page.used += needed;
        page.items.push(Item {
            id,
            end: None,
            taken: false,
        });
        true
    }

    /// The record that the consumer takes out next.
    fn next(&mut self) -> Option<(u64, [u64; 2])> {
        let overwritten = self.overwritten;
        for page in &mut self.used {
            let dropped = page.dropped;
            for item in &mut page.items {
                match item.end {
                    None => return None,
                    Some(End::Discard) => item.taken = true,
                    Some(End::Commit) if !item.taken => {
                        return Some((item.id, [overwritten, dropped]));
                    }
                    Some(End::Commit) => {}
                }
            }
        }
        None
    }

    fn consume(&mut self) -> Option<Result<u64, u64>> {
        let (id, lost) = self.next()?;
        let unreported = [0, 1].map(|kind| lost[kind].saturating_sub(self.reported[kind]));
        if unreported != [0, 0] {
            self.reported = [0, 1].map(|kind| self.reported[kind] + unreported[kind]);
            return Some(Err(unreported.iter().sum()));
        }
        let taken = self.items().find(|item| item.id == id).expect("found");
        taken.taken = true;
        Some(Ok(id))
    }

    /// The complete records that no busy one is before.
    fn unread(&mut self) -> Vec<u64> {
        self.items()
            .take_while(|item| item.end.is_some())
            .filter(|item| !item.taken && item.end == Some(End::Commit))
            .map(|item| item.id)
            .collect()
    }

    fn reset(&mut self) {
        self.cleared += self.unread().len() as u64;
        for item in self.items() {
            if item.end.is_none() {
                break;
            }
            item.taken = true;
        }
        self.reported = [self.overwritten, self.dropped.iter().sum()];
    }
}

fn run(pages: usize, mode: Mode, acts: &[Act]) -> Result<(), TestCaseError> {
    let world = World::new(pages, mode, u64::from(u32::MAX) - 20);
    let mut model = Model {
        pages,
        mode,
        used: VecDeque::new(),
        overwritten: 0,
        cleared: 0,
        dropped: [0; 3],
        reported: [0; 2],
    };
    let mut open: Vec<(u64, NonNull<u8>, usize)> = vec![];
    let mut next_id = 0;
    let rest = [Act::End(End::Commit)].into_iter().cycle();
    let begun = acts.iter().filter(|act| matches!(act, Act::Begin(_)));
    let rest = rest.take(begun.count());
    for act in acts.iter().copied().chain(rest) {
        match act {
            Act::Begin(bytes) => {
                let record = world.begin(bytes);
                prop_assert_eq!(record.is_some(), model.begin(next_id, bytes), "{:?}", act);
                next_id += 1;
                open.extend(record);
            }
            Act::End(end) => {
                if let Some(record) = open.pop() {
                    world.end(record, end);
                    let id = record.0;
                    let item = model.items().find(|item| item.id == id);
                    item.expect("busy records are not overwritten").end = Some(end);
                }
            }
            Act::Consume => {
                let found = world.consume().map(|event| match event {
                    Event::Record(record) => Ok(record.tsc),
                    Event::Lost(lost) => Err(lost),
                });
                prop_assert_eq!(found, model.consume());
            }
            Act::Show => {
                let shown: Vec<_> = (world.show().into_iter())
                    .filter_map(|event| match event {
                        Event::Record(record) => Some(record.tsc),
                        Event::Lost(_) => None,
                    })
                    .collect();
                prop_assert_eq!(shown, model.unread());
            }
            Act::Reset => {
                let stats = world.ring.reset();
                prop_assert_eq!(
                    stats.written,
                    stats.read + stats.overwritten + stats.cleared
                );
                model.reset();
            }
            Act::SetMode(mode) => {
                world.ring.set_mode(mode);
                prop_assert_eq!(world.ring.mode(), mode);
                model.mode = mode;
            }
        }
        if open.is_empty() {
            let stats = world.ring.stats();
            prop_assert_eq!(stats.unread, model.unread().len() as u64);
            prop_assert_eq!(stats.overwritten, model.overwritten);
            prop_assert_eq!(stats.cleared, model.cleared);
            let dropped = [stats.full, stats.nested, stats.too_long];
            prop_assert_eq!(dropped, model.dropped);
        }
    }
    world.close_books();
    Ok(())
}

proptest! {
    #[test]
    fn a_ring_is_a_queue_of_pages(
        pages in 1..5usize,
        stop in any::<bool>(),
        acts in collection::vec(act(), 0..120),
    ) {
        run(pages, if stop { Mode::Stop } else { Mode::Overwrite }, &acts)?;
    }
}
