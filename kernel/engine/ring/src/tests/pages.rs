//! The ends of pages, of the ring and of the numbers.
//!
//! Records that fit by a word and do not fit by one, rings of one page, counts that go on where 32
//! and 64 bits end, and memory that is no ring, which is refused with a reason.

use std::vec::Vec;

use super::world::{End, World};
use crate::{
    Event, InitError, Mode, Ring,
    layout::{HEADER_BYTES, MAX_PAGES, MAX_PAYLOAD, Position, next_page},
    limits::PAGE_BYTES,
};

/// The time stamps that are shown: the numbers of the records.
fn shown(world: &World) -> Vec<u64> {
    let events = world.show().into_iter();
    let records = events.filter_map(|event| match event {
        Event::Record(record) => Some(record.tsc),
        Event::Lost(_) => None,
    });
    records.collect()
}

#[test]
fn a_ring_that_cannot_be_is_refused_with_a_reason() {
    let world = World::new(1, Mode::Stop, 0);
    let memory = world.memory.start();
    let init = |memory, pages| {
        // SAFETY: refused before the memory is used.
        unsafe { Ring::init(memory, pages, Mode::Stop) }.err()
    };
    assert_eq!(init(memory, 0), Some(InitError::NoPages));
    let pages = MAX_PAGES + 1;
    assert_eq!(init(memory, pages), Some(InitError::TooManyPages { pages }));
    assert_eq!(Ring::bytes(pages), None);
    assert_eq!(Ring::bytes(2), Some(HEADER_BYTES + 2 * PAGE_BYTES));
    // SAFETY: in the memory.
    let odd = unsafe { memory.add(8) };
    let address = odd.addr().get();
    assert_eq!(init(odd, 1), Some(InitError::Misaligned { address }));
}

#[test]
fn a_record_of_a_whole_page_fits_and_a_longer_one_is_counted() {
    for pages in 1..=2 {
        let world = World::new(pages, Mode::Stop, 0);
        for _ in 0..pages {
            assert!(world.write(MAX_PAYLOAD, End::Commit));
        }
        assert!(!world.write(MAX_PAYLOAD + 1, End::Commit));
        assert!(!world.write(usize::MAX, End::Commit));
        assert!(!world.write(0, End::Commit));
        let stats = world.ring.stats();
        assert_eq!((stats.too_long, stats.full), (2, 1));
        assert_eq!(world.close_books().read, pages as u64);
    }
}

#[test]
fn a_record_that_does_not_fit_by_a_word_goes_to_the_next_page() {
    let room = MAX_PAYLOAD - 40;
    for (bytes, page) in [(room, 0), (room + 1, 1)] {
        let world = World::new(2, Mode::Stop, 0);
        world.write(24, End::Commit);
        let (id, payload, bytes) = world.begin(bytes).expect("room");
        let offset = payload.addr().get() - world.memory.start().addr().get() - HEADER_BYTES;
        assert_eq!(offset / PAGE_BYTES, page);
        world.end((id, payload, bytes), End::Commit);
        assert_eq!(shown(&world), [0, 1]);
        world.close_books();
    }
}

#[test]
fn a_page_that_has_room_for_a_word_alone_is_padded() {
    let left = MAX_PAYLOAD - 8;
    let world = World::new(2, Mode::Overwrite, 0);
    world.write(left, End::Commit);
    world.write(left, End::Commit);
    assert_eq!(shown(&world), [0, 1]);
    world.write(0, End::Commit);
    assert_eq!(shown(&world), [1, 2]);
    world.close_books();
}

#[test]
fn a_page_that_is_ended_takes_no_more_records() {
    for pages in 1..=2 {
        let world = World::new(pages, Mode::Overwrite, 0);
        let end_page = || {
            // SAFETY: no record is being written.
            unsafe { world.ring.end_page() };
            let stats = world.ring.stats();
            // A second time it is at the end already.
            // SAFETY: as above.
            unsafe { world.ring.end_page() };
            assert_eq!(world.ring.stats(), stats);
        };
        end_page();
        assert_eq!(shown(&world), []);
        world.write(0, End::Commit);
        end_page();
        assert_eq!(shown(&world), [0]);
        world.write(0, End::Commit);
        world.write(8, End::Commit);
        // The last page of the ring may have been the one with the first record.
        assert_eq!(shown(&world).last_chunk(), Some(&[1, 2]));
        world.ring.reset();
        end_page();
        assert_eq!(shown(&world), []);
        world.write(0, End::Commit);
        assert_eq!(shown(&world), [3]);
        world.close_books();
    }
}

#[test]
fn overwriting_takes_the_oldest_page_and_stopping_the_newest_records() {
    let half = MAX_PAYLOAD / 2 - 8;
    let world = World::new(2, Mode::Overwrite, 0);
    world.write_many(5, half);
    assert_eq!(shown(&world), [2, 3, 4]);
    world.ring.set_mode(Mode::Stop);
    world.write_many(3, half);
    assert_eq!(shown(&world), [2, 3, 4, 5]);
    let stats = world.ring.stats();
    assert_eq!((stats.overwritten, stats.full, stats.unread), (2, 2, 4));
    assert_eq!(world.consume(), Some(Event::Lost(2)));
    world.close_books();
    assert!(world.write(half, End::Commit));
    // The dropped ones were between the records before and this one.
    assert_eq!(world.consume(), Some(Event::Lost(2)));
    assert!(matches!(world.consume(), Some(Event::Record(_))));
    world.close_books();
}

#[test]
fn a_ring_of_one_page_starts_again_when_it_is_full() {
    let half = MAX_PAYLOAD / 2 - 8;
    let world = World::new(1, Mode::Overwrite, 0);
    world.write_many(3, half);
    assert_eq!(shown(&world), [2]);
    // An interrupt cannot take the page of the record that it interrupted.
    let outer = world.begin(half).expect("room");
    assert!(!world.write(half, End::Commit));
    world.end(outer, End::Commit);
    assert_eq!(shown(&world), [2, 3]);
    let stats = world.close_books();
    assert_eq!((stats.overwritten, stats.nested), (2, 1));
}

#[test]
fn a_reset_starts_the_counts_again() {
    let world = World::new(2, Mode::Overwrite, 0);
    world.write_many(50, 40);
    world.write(0, End::Discard);
    let base = world.ring.reset();
    assert_eq!(shown(&world), []);
    assert_eq!(world.ring.stats().since(&base), crate::Stats::default());
    assert!(world.write(40, End::Commit));
    let stats = world.ring.stats().since(&base);
    assert_eq!((stats.written, stats.unread), (1, 1));
    assert!(matches!(world.consume(), Some(Event::Record(_))));
    world.close_books();
}

#[test]
fn a_cursor_that_is_overtaken_says_how_many_it_lost() {
    let half = MAX_PAYLOAD / 2 - 8;
    let world = World::new(2, Mode::Overwrite, 0);
    world.write_many(4, half);
    let mut cursor = world.ring.cursor();
    let record = |event| match event {
        Some(Event::Record(record)) => Ok(record.sequence),
        other => Err(other),
    };
    assert_eq!(record(world.look(&mut cursor)), Ok(0));
    // It has seen record 0 of those that go.
    world.write_many(4, half);
    assert_eq!(world.look(&mut cursor), Some(Event::Lost(3)));
    assert_eq!(record(world.look(&mut cursor)), Ok(4));
    assert_eq!(world.consume(), Some(Event::Lost(4)));
    assert_eq!(record(world.look(&mut cursor)), Ok(5));
    world.close_books();
}

#[test]
fn numbers_go_on_where_32_bits_end() {
    let first = u64::from(u32::MAX) * 5 - 7;
    let world = World::new(3, Mode::Overwrite, first);
    for index in 0..40 {
        world.write(40, End::Commit);
        let last = world.show().pop();
        let Some(Event::Record(record)) = last else {
            panic!("{last:?}");
        };
        assert_eq!(record.sequence, first + index);
    }
    assert!(world.close_books().overwritten > 0);
}

#[test]
fn numbers_go_on_where_64_bits_end() {
    let world = World::new(2, Mode::Overwrite, u64::MAX - 10);
    world.write_many(40, 24);
    let stats = world.ring.stats();
    assert_eq!(stats.written, stats.overwritten + stats.unread);
}

#[test]
fn something_else_in_the_ring_is_an_error_until_it_is_reset() {
    let world = World::new(2, Mode::Overwrite, 0);
    let (.., payload, _) = {
        let record = world.begin(24).expect("room");
        world.end(record, End::Commit);
        record
    };
    // SAFETY: the record's header, in the ring's memory. No other code runs.
    unsafe { payload.sub(16).write_bytes(0xff, 8) };
    let mut buffer = [];
    use crate::Source;
    let damaged = world.ring.consumer().next(&mut buffer).unwrap_err();
    assert_eq!(damaged.sequence, 0);
    assert_eq!(world.ring.cursor().next(&mut buffer), Err(damaged));
    let stats = world.ring.reset();
    assert_eq!((stats.cleared, stats.unread), (1, 0));
    assert!(world.write(24, End::Commit));
    assert_eq!(shown(&world), [1]);
}

#[test]
fn positions_keep_their_page_to_its_end() {
    let page = PAGE_BYTES as u32;
    assert_eq!(Position::new(0, page).page(), 0);
    assert_eq!(Position::new(0, page + 8).page(), page);
    assert_eq!(next_page(page, 2 * page), page);
    assert_eq!(next_page(page + 8, 2 * page), 0);
    assert!(Position::new(0, 16).shares_page_with(Position::new(1, page)));
    assert!(!Position::new(0, 16).shares_page_with(Position::new(1, page + 8)));
    assert!(!Position::new(0, page).shares_page_with(Position::new(1, page + 32)));
}
