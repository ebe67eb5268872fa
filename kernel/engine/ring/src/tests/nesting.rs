//! All interleavings in which code that interrupts another runs to its end: at each access of the
//! outer one, and at each access of that. A reader on another CPU that runs while a writer stands
//! still is among them, and the other way round.

use super::{
    interrupt,
    world::{End, World},
};
use crate::Mode;

/// Three records of these lengths fill a page: with padding, and exactly.
const PADDED: usize = 56;
const EXACT: usize = 64;
const MAX: usize = crate::layout::MAX_PAYLOAD;

/// Things that happen together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// This many records of this length, by the ring's own CPU.
    Write(usize, usize),
    /// The same; every second one, from the first on, is discarded.
    Doubt(usize, usize),
    /// This many events are taken out.
    Consume(usize),
    /// Everything is shown.
    Show,
    Reset,
}

impl Act {
    fn run(self, world: &World) {
        match self {
            Self::Write(records, bytes) => {
                world.write_many(records, bytes);
            }
            Self::Doubt(records, bytes) => {
                for index in 0..records {
                    let end = [End::Discard, End::Commit][index % 2];
                    world.write(bytes, end);
                }
            }
            Self::Consume(events) => {
                for _ in 0..events {
                    world.consume();
                }
            }
            Self::Show => {
                world.show();
            }
            Self::Reset => {
                world.ring.reset();
            }
        }
    }
}

fn explore(pages: usize, mode: Mode, before: &[Act], acts: &[Act]) -> usize {
    let new = || {
        // 32 bits wrap within the run.
        let world = World::new(pages, mode, u64::from(u32::MAX) - 3);
        before.iter().for_each(|act| act.run(&world));
        world
    };
    let case = std::format!("{pages} pages, {mode:?}, {before:?}");
    let run = |world: &World, act: Act| act.run(world);
    interrupt::explore(case, new, run, acts, |world| {
        let stats = world.close_books();
        // It still works.
        assert!(world.write(MAX, End::Commit) && world.close_books().read > stats.read);
    })
}

/// Explores `acts` in both modes. Two of them meet in rings of 1 to 3 pages that have been filled
/// to any degree, more of them in few of these.
fn explore_all(acts: &[Act]) {
    let bytes = if acts.contains(&Act::Show) {
        PADDED
    } else {
        EXACT
    };
    for mode in [Mode::Overwrite, Mode::Stop] {
        for pages in 1..=3 {
            let full = 3 * pages;
            for records in 0..=full + 3 {
                let few = pages < 3 && [full - 1, full, full + 2].contains(&records);
                if acts.len() == 2 || few {
                    let runs = explore(pages, mode, &[Act::Write(records, bytes)], acts);
                    assert!(runs > acts.len(), "{acts:?}: no interrupt came");
                }
            }
        }
    }
}

#[test]
fn a_writer_in_a_writer_loses_nothing_that_is_not_counted() {
    for records in [1, 2, 3, 4, 7, 10] {
        explore_all(&[Act::Write(1, PADDED), Act::Write(records, PADDED)]);
        explore_all(&[Act::Write(1, EXACT), Act::Write(records, EXACT)]);
        explore_all(&[Act::Write(1, 0), Act::Write(records, MAX)]);
        explore_all(&[Act::Write(1, MAX), Act::Write(records, 24)]);
    }
}

#[test]
fn discarded_records_are_counted_once() {
    for records in [1, 2, 4, 7] {
        explore_all(&[Act::Doubt(1, PADDED), Act::Doubt(records, EXACT)]);
        explore_all(&[Act::Write(2, EXACT), Act::Doubt(records, PADDED)]);
        explore_all(&[Act::Doubt(2, EXACT), Act::Consume(records)]);
    }
    explore_all(&[
        Act::Doubt(2, EXACT),
        Act::Doubt(4, EXACT),
        Act::Doubt(2, EXACT),
    ]);
}

#[test]
fn a_writer_in_a_writer_in_a_writer_loses_nothing_that_is_not_counted() {
    explore_all(&[
        Act::Write(1, EXACT),
        Act::Write(1, PADDED),
        Act::Write(1, EXACT),
    ]);
    explore_all(&[
        Act::Write(1, EXACT),
        Act::Write(3, EXACT),
        Act::Write(4, PADDED),
    ]);
}

#[test]
fn a_reader_sees_whole_records_while_a_writer_stands_still() {
    for reader in [Act::Consume(1), Act::Consume(20), Act::Show, Act::Reset] {
        explore_all(&[Act::Write(2, PADDED), reader]);
        explore_all(&[Act::Write(1, PADDED), Act::Write(3, EXACT), reader]);
    }
}

#[test]
fn a_reader_that_is_overtaken_notices() {
    for reader in [Act::Consume(2), Act::Show, Act::Reset] {
        for records in [1, 2, 3, 4, 7, 10] {
            explore_all(&[reader, Act::Write(records, PADDED)]);
        }
        explore_all(&[reader, Act::Doubt(3, EXACT), Act::Write(1, PADDED)]);
    }
}

#[test]
fn readers_do_not_disturb_each_other() {
    explore_all(&[Act::Show, Act::Consume(1), Act::Write(4, PADDED)]);
    explore_all(&[Act::Show, Act::Reset, Act::Write(4, PADDED)]);
    explore_all(&[Act::Consume(1), Act::Show, Act::Write(4, PADDED)]);
}
