//! Several rings in one stream.

use std::{format, string::String, vec, vec::Vec};

use super::world::World;
use crate::{Cursor, Event, Merge, Mode, layout::MAX_PAYLOAD};

/// Writes records with these time stamps.
fn write(world: &World, bytes: usize, stamps: &[u64]) {
    for &tsc in stamps {
        // SAFETY: this thread is the ring's CPU.
        let payload = unsafe { world.ring.reserve(bytes, tsc) }.expect("room");
        // SAFETY: just reserved.
        unsafe { world.ring.commit(payload) };
    }
}

fn told<S: crate::Source>(sources: &mut [S]) -> String {
    let mut buffer = vec![0; MAX_PAYLOAD];
    let mut merge = Merge::new(sources);
    let mut events = Vec::new();
    while let Some((index, event)) = merge.next(&mut buffer).expect("no damage") {
        events.push(match event {
            Event::Record(record) => format!("{index}:{}", record.tsc),
            Event::Lost(lost) => format!("{index} lost {lost}"),
        });
    }
    events.join(" ")
}

#[test]
fn records_come_by_time_and_losses_before_the_next_record_of_their_cpu() {
    let worlds = [0; 3].map(|_| World::new(2, Mode::Overwrite, 0));
    write(&worlds[0], 0, &[1, 5, 9]);
    write(&worlds[1], MAX_PAYLOAD, &[2, 3, 6, 9]);
    // The first record that the ring still has is the one with 6.
    let mut consumers = worlds.each_ref().map(|world| world.ring.consumer());
    let mut cursors = worlds.each_ref().map(|world| world.ring.cursor());
    assert_eq!(told(&mut cursors), "0:1 0:5 1:6 0:9 1:9");
    assert_eq!(told(&mut consumers), "0:1 0:5 1 lost 2 1:6 0:9 1:9");
    write(&worlds[2], 0, &[4]);
    assert_eq!(told(&mut cursors), "2:4");
    assert_eq!(told(&mut consumers), "2:4");
    assert_eq!(told::<Cursor<'_>>(&mut []), "");
}
