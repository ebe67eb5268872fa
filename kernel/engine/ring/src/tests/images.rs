//! The ring as it is seen from outside.

use std::{string::ToString, vec::Vec};

use proptest::prelude::*;

use super::world::{End, World};
use crate::{
    Mode,
    image::{Image, ImageError},
    layout::{HEADER_BYTES, MAX_PAYLOAD},
    limits::PAGE_BYTES,
    rescue::keep_pages,
};

fn still(world: &World) -> Vec<u8> {
    world
        .memory
        .copy(0, HEADER_BYTES + world.pages * PAGE_BYTES)
}

#[test]
fn an_image_of_a_machine_that_stands_still_has_all_complete_records() {
    let world = World::new(3, Mode::Overwrite, u64::from(u32::MAX) - 2);
    assert_eq!(Image::still(&still(&world)).unwrap().records().count(), 0);
    for index in 0..30 {
        world.write(index % 60, [End::Commit, End::Discard][index % 3 / 2]);
        let busy = world.begin(16).expect("room");
        let bytes = still(&world);
        let image = Image::still(&bytes).unwrap();
        let found: Vec<_> = image
            .records()
            .map(|record| {
                let record = record.unwrap();
                (
                    record.sequence,
                    world.judge_image(record.tsc, record.payload),
                )
            })
            .collect();
        let shown: Vec<_> = (world.show().iter())
            .filter_map(|event| match event {
                crate::Event::Record(record) => Some((record.sequence, record.tsc)),
                crate::Event::Lost(_) => None,
            })
            .collect();
        assert_eq!(found, shown);
        assert!(!found.is_empty());
        world.end(busy, End::Commit);
    }
}

#[test]
fn bytes_that_are_no_ring_are_refused_with_a_reason() {
    let world = World::new(1, Mode::Stop, 0);
    let good = still(&world);
    let with = |offset: usize, value: u64| {
        let mut bytes = good.clone();
        bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        Image::still(&bytes).unwrap_err()
    };
    assert_eq!(
        Image::still(&good[..100]).unwrap_err(),
        ImageError::Short { bytes: 100 }
    );
    assert_eq!(with(0, 7), ImageError::NoRing { magic: 7 });
    assert_eq!(with(8, 2), ImageError::OtherLayout { version: 2 });
    assert_eq!(with(24, 8), ImageError::OtherLayout { version: 1 });
    let found = PAGE_BYTES;
    assert_eq!(with(48, 1), ImageError::Length { expected: 1, found });
    for position in [0, 12, PAGE_BYTES as u64 + 8] {
        assert_eq!(with(72, position), ImageError::Position { position });
        assert_eq!(with(128, position), ImageError::Position { position });
    }
    assert!(with(0, 7).to_string().contains("is the address right?"));
}

proptest! {
    /// Every record that the image shows was written like that, and what is missing was counted.
    #[test]
    fn an_image_of_a_running_machine_shows_no_torn_record(
        pages in 1..4usize,
        before in 0..40usize,
        piece in prop_oneof![Just(8), Just(24), 1..300usize],
        writes in proptest::collection::vec((0..6usize, 0..=MAX_PAYLOAD, 0..3usize), 1..60),
    ) {
        let world = World::new(pages, Mode::Overwrite, 0);
        world.write_many(before, 50);
        let complete = world.ring.stats().unread;
        let mut steps = writes.iter().cycle();
        let mut open = Vec::new();
        let (header, data, after) = world.copy_while(piece, || {
            let &(what, bytes, consumed) = steps.next().expect("endless");
            match what {
                0 => open.extend(world.begin(bytes)),
                1 | 2 => {
                    if let Some(record) = open.pop() {
                        world.end(record, End::Commit);
                    }
                }
                3 => world.write_many(1, bytes),
                4 => (0..consumed).for_each(|_| _ = world.consume()),
                _ => {}
            }
        });
        let image = Image::new(&header, &data, &after).unwrap();
        let mut found = 0;
        let mut last = None;
        for record in image.records() {
            let record = record.unwrap();
            world.judge_image(record.tsc, record.payload);
            prop_assert!(last.is_none_or(|last| record.sequence == last + 1));
            last = Some(record.sequence);
            found += 1;
        }
        prop_assert_eq!(found + u64::from(image.overtaken()), complete);
    }

    /// The newest pages, sent one by one until the line ends, are the newest records.
    #[test]
    fn the_pages_that_have_come_have_the_newest_records(
        pages in 1..5usize,
        start in prop_oneof![Just(0), Just(u64::from(u32::MAX) - 20)],
        lengths in proptest::collection::vec(0..=MAX_PAYLOAD, 0..40),
        sizes in proptest::collection::vec(0..200usize, 0..80),
        consumed in 0..10usize,
        sent in 0..6usize,
    ) {
        let world = World::new(pages, Mode::Overwrite, start);
        for bytes in lengths.into_iter().chain(sizes) {
            world.write(bytes, [End::Commit, End::Discard][bytes % 5 / 4]);
        }
        (0..consumed).for_each(|_| _ = world.consume());
        let all = still(&world);
        let records = |bytes: &[u8]| -> Vec<_> {
            let image = Image::still(bytes).unwrap();
            let records = image.records().map(|record| record.unwrap());
            records.map(|record| (record.sequence, record.payload.to_vec())).collect()
        };
        let mut copy = std::vec![0; world.ring.memory_bytes()];
        world.ring.copy_bytes(0, &mut copy[..HEADER_BYTES]);
        let there: Vec<usize> = (0..sent).map_while(|back| world.ring.page_back(back)).collect();
        for at in &there {
            world.ring.copy_bytes(*at, &mut copy[*at..at + PAGE_BYTES]);
        }
        let cut = keep_pages(&mut copy, |at| there.contains(&at)).unwrap();
        let (found, wanted) = (records(&copy), records(&all));
        prop_assert!(wanted.ends_with(&found));
        let unread = world.ring.stats().unread;
        if world.ring.page_back(sent).is_none() {
            prop_assert_eq!((cut, found.len() as u64), (0, unread));
        } else {
            let end = found.first().map_or(u64::MAX, |(sequence, _)| *sequence);
            let missing = wanted.iter().filter(|(sequence, _)| *sequence < end).count() as u64;
            // The given-up ones are among those that were cut off.
            prop_assert!(missing <= cut && missing + found.len() as u64 == unread);
            prop_assert!(sent == 0 || cut < wanted.len() as u64 + world.discarded.get());
        }
        // What is not in the memory is 0.
        let mut outside = [9; 24];
        world.ring.copy_bytes(all.len() - 8, &mut outside);
        prop_assert_eq!(&outside[8..], &[0; 16]);
    }

    /// Any bytes are read without a panic.
    #[test]
    fn an_image_of_garbage_ends(
        places in proptest::collection::vec((0..HEADER_BYTES / 8 + 64, any::<u64>()), 0..30),
    ) {
        let world = World::new(2, Mode::Overwrite, 0);
        world.write_many(12, 40);
        let mut bytes = still(&world);
        for (place, value) in places {
            let place = if place >= HEADER_BYTES / 8 { place } else { place % 32 };
            bytes[place * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
        if let Ok(image) = Image::still(&bytes) {
            image.records().for_each(drop);
        }
        if keep_pages(&mut bytes, |at| at % 8192 == 0).is_ok() {
            Image::still(&bytes).unwrap().records().for_each(drop);
        }
    }
}
