//! Rings that are too small, cleared, resized and turned off under fire.
//!
//! A writer numbers its records and never waits. Whatever is done to the rings meanwhile, the
//! reader gets the numbers in order, each once, and the gaps are as large as the counts of lost
//! records say.

use core::sync::atomic::Ordering::SeqCst;

use super::{Fire, Reader, Rings, Since, attached_recorder};
use kernel::trace::{
    TRACING,
    buffer::{self, Which},
    take_snapshot,
};

/// A ring of one page, and a reader that takes a record now and then. The reader is told
/// of each record that is overwritten.
#[guest_test(smp = 4)]
fn a_reader_that_is_too_slow_is_told_what_it_missed() {
    let _rings = Rings::of(4, true);
    let since = Since::now();
    let probe = attached_recorder();
    let fire = Fire::start();
    let mut reader = Reader::default();
    for _ in 0..300 {
        fire.wait_for(50);
        reader.take();
    }
    let calls = fire.end();
    while reader.take() {}
    let totals = since.check(probe.program(), calls);
    assert_eq!((totals.unread, totals.off), (0, 0));
    // No record interrupts another one here.
    assert_eq!(totals.dropped, 0);
    assert!(totals.overwritten > 0, "the reader was fast enough");
    assert_eq!(reader.read, totals.read);
    assert_eq!(reader.lost, totals.overwritten);
}

/// In stop mode the oldest records stay, and the newest are dropped and counted.
#[guest_test(smp = 4)]
fn a_full_ring_that_stops_counts_what_it_drops() {
    let _rings = Rings::of(4, false);
    let since = Since::now();
    let probe = attached_recorder();
    let fire = Fire::start();
    let mut reader = Reader::default();
    for _ in 0..300 {
        fire.wait_for(50);
        reader.take();
    }
    let calls = fire.end();
    while reader.take() {}
    let totals = since.check(probe.program(), calls);
    assert_eq!((totals.unread, totals.off, totals.overwritten), (0, 0, 0));
    assert!(totals.dropped > 0, "the reader was fast enough");
    assert_eq!(reader.read, totals.read);
    // Drops after the last page that was begun are not told yet.
    assert!(reader.lost <= totals.dropped, "{} told", reader.lost);
}

/// Does `disturb` again and again under fire, with a reader beside it.
fn disturbed(rounds: u64, mut disturb: impl FnMut(u64)) -> super::Totals {
    let _rings = Rings::of(4, true);
    let since = Since::now();
    let probe = attached_recorder();
    let fire = Fire::start();
    let mut reader = Reader::default();
    for round in 0..rounds {
        fire.wait_for(20);
        disturb(round);
        for _ in 0..10 {
            reader.take();
        }
    }
    let calls = fire.end();
    while reader.take() {}
    let totals = since.check(probe.program(), calls);
    assert_eq!(reader.read, totals.read);
    assert!(totals.read > 0);
    totals
}

#[guest_test(smp = 4)]
fn rings_are_resized_under_fire() {
    let totals = disturbed(25, |round| {
        let round = round as usize;
        // Of all CPUs, then of each alone.
        let cpu = (round % 5).checked_sub(1);
        let kib = [4, 64, 8, 1, 256, 16][round % 6];
        TRACING.buffer.resize(cpu, kib).unwrap();
    });
    assert!(totals.cleared > 0, "no record was in a ring that went");
}

#[guest_test(smp = 4)]
fn rings_are_cleared_under_fire() {
    let totals = disturbed(200, |round| match round % 3 {
        0 => TRACING.buffer.clear(None),
        cpu => TRACING.buffer.clear(Some(cpu as usize)),
    });
    assert!(totals.cleared > 0);
    assert_eq!((totals.off, totals.dropped), (0, 0));
}

#[guest_test(smp = 4)]
fn recording_is_turned_on_and_off_under_fire() {
    let totals = disturbed(200, |round| {
        TRACING.recording.wanted().store(round % 2 != 0, SeqCst)
    });
    TRACING.recording.wanted().store(true, SeqCst);
    assert!(totals.off > 0 && totals.written > 0, "{totals:?}");
}

#[guest_test(smp = 4)]
fn the_mode_changes_under_fire() {
    let totals = disturbed(200, |round| TRACING.buffer.set_overwrite(round % 2 != 0));
    assert!(totals.dropped > 0 && totals.overwritten > 0, "{totals:?}");
}

/// Takes snapshots under fire, of all CPUs and of each, by hand and as a hit does, and reads them
/// and the live buffer in turn. Each record is intact, in one of them, and in its order.
fn snapshots(kib: usize) {
    const ROUNDS: usize = 16;
    let _rings = Rings::of(kib, true);
    let since = Since::now();
    let probe = attached_recorder();
    TRACING.buffer.take_snapshot(None).unwrap();
    let fire = Fire::start();
    let mut reader = Reader::default();
    let mut shown = 0;
    for round in 0..ROUNDS {
        fire.wait_for(20);
        match round % 4 {
            0 => TRACING.buffer.take_snapshot(None).unwrap(),
            1 => TRACING.buffer.take_snapshot(Some(round / 4 % 4)).unwrap(),
            _ => take_snapshot(),
        }
        TRACING.buffer.settle_snapshot();
        TRACING
            .buffer
            .view(Which::Snapshot, None, |item| {
                let record = matches!(item, buffer::Item::Record { .. });
                shown += u64::from(record);
                if record {
                    reader.note(item);
                }
                true
            })
            .unwrap();
        TRACING.buffer.clear_snapshot(None);
        for _ in 0..10 {
            reader.take();
        }
    }
    let calls = fire.end();
    while reader.take() {}
    let totals = since.check(probe.program(), calls);
    // No record interrupts another one here, and recording never stops.
    assert_eq!((totals.off, totals.dropped, totals.unread), (0, 0, 0));
    assert_eq!(totals.cleared, shown);
    assert_eq!(reader.read, totals.read + shown);
    assert!(shown > 0 && totals.read > 0, "{totals:?}");
    drop(probe);
    TRACING.buffer.free_snapshot().unwrap();
    since.totals();
}

#[guest_test(smp = 4)]
fn snapshots_are_taken_under_fire() {
    snapshots(256);
}

#[guest_test(smp = 4)]
fn snapshots_of_rings_of_one_page_are_taken_under_fire() {
    snapshots(4);
}

/// All CPUs take snapshots of all at each hit, which is far more often than they can be settled.
/// Nothing but the old ones is lost.
#[guest_test(smp = 4)]
fn a_storm_of_snapshots_harms_nothing() {
    let _rings = Rings::of(64, true);
    let since = Since::now();
    let probe = attached_recorder();
    TRACING.buffer.take_snapshot(None).unwrap();
    let storm = super::Fire::of(take_snapshot);
    let fire = Fire::start();
    let mut reader = Reader::default();
    for round in 0..15 {
        fire.wait_for(20);
        match round % 5 {
            0 => TRACING.buffer.clear(None),
            1 => TRACING.buffer.take_snapshot(None).unwrap(),
            2 => (TRACING.buffer)
                .resize([None, Some(2)][round / 5 % 2], [64, 4][round % 2])
                .unwrap(),
            3 => TRACING.buffer.free_snapshot().unwrap(),
            _ => TRACING.buffer.settle_snapshot(),
        }
        for _ in 0..10 {
            reader.take();
        }
    }
    let calls = fire.end();
    storm.end();
    while reader.take() {}
    let totals = since.check(probe.program(), calls);
    assert_eq!(reader.read, totals.read);
    assert_eq!(totals.dropped, 0);
    assert!(totals.cleared > 0 && totals.read > 0, "{totals:?}");
    drop(probe);
    TRACING.buffer.free_snapshot().unwrap();
    since.totals();
}
