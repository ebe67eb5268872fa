//! The ring as the kernel uses it: lines, laps, and writers that meet.
//!
//! A writer is interrupted in the middle of its message by another one, also while it formats. Each
//! message comes out whole or is counted.

use log_ring::{Dropped, Missing, Record, Ring, Stamp, TEXT_BYTES, Text};
use std::{
    cell::RefCell,
    fmt,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

const STAMP: Stamp = Stamp {
    time_ns: 1_234_567_890,
    level: 6,
    depth: 0,
};

/// Drains the ring as the console does, joining the pieces of long lines.
fn drain<const SLOTS: usize>(ring: &Ring<SLOTS>) -> Vec<String> {
    let mut lines: Vec<Vec<u8>> = Vec::new();
    let mut goes_on = false;
    while let Some(record) = ring.front() {
        assert_eq!(record.continues, goes_on);
        goes_on = record.goes_on;
        if !record.continues {
            lines.push(Vec::new());
        }
        lines.last_mut().unwrap().extend_from_slice(record.text());
        if record.cut {
            lines.last_mut().unwrap().extend_from_slice(b"<cut>");
        }
        ring.advance();
    }
    assert!(!goes_on);
    lines
        .into_iter()
        .map(|line| String::from_utf8(line).unwrap())
        .collect()
}

fn lines_of(message: fmt::Arguments<'_>) -> Vec<String> {
    let ring = Box::new(Ring::<64>::new());
    ring.write(STAMP, message).unwrap();
    drain(&ring)
}

#[test]
fn message_is_cut_at_newlines_and_one_at_its_end_adds_no_line() {
    assert_eq!(lines_of(format_args!("one")), ["one"]);
    assert_eq!(lines_of(format_args!("one\n")), ["one"]);
    assert_eq!(
        lines_of(format_args!("one\ntwo{}", "\nthree\n")),
        ["one", "two", "three"]
    );
    assert_eq!(lines_of(format_args!("a\n\nb")), ["a", "", "b"]);
    assert_eq!(lines_of(format_args!("a\n\n")), ["a", ""]);
    assert_eq!(lines_of(format_args!("\na")), ["", "a"]);
    assert_eq!(lines_of(format_args!("")), [""]);
}

#[test]
fn stamp_and_length_come_back() {
    let ring = Box::new(Ring::<8>::new());
    let stamp = Stamp {
        time_ns: u64::MAX,
        level: 15,
        depth: 3,
    };
    assert_eq!(ring.write(stamp, format_args!("a\nb\n")), Ok(4));
    for text in ["a", "b"] {
        let record = ring.front().unwrap();
        assert_eq!((record.stamp, record.text()), (stamp, text.as_bytes()));
        assert!(!record.continues && !record.cut);
        ring.advance();
    }
}

#[test]
fn long_line_goes_on_in_further_slots() {
    for len in [
        TEXT_BYTES - 1,
        TEXT_BYTES,
        TEXT_BYTES + 1,
        5 * TEXT_BYTES,
        2000,
    ] {
        let line = "x".repeat(len);
        assert_eq!(lines_of(format_args!("{line}")), [line.as_str()]);
        assert_eq!(
            lines_of(format_args!("{line}\nend")),
            [line.as_str(), "end"]
        );
    }
}

#[test]
fn message_longer_than_its_share_of_the_ring_is_cut_and_says_so() {
    let ring = Box::new(Ring::<16>::new());
    let text = "y".repeat(10 * TEXT_BYTES);
    assert_eq!(ring.write(STAMP, format_args!("{text}")), Ok(text.len()));
    let kept = Ring::<16>::MESSAGE_SLOTS as usize * TEXT_BYTES;
    assert_eq!(drain(&ring), [format!("{}<cut>", &text[..kept])]);
}

/// A message that writes to the ring while it is formatted, as a probe handler inside `printk`
/// does.
struct Nested<'a, const SLOTS: usize>(&'a Ring<SLOTS>);

impl<const SLOTS: usize> fmt::Display for Nested<'_, SLOTS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(STAMP, format_args!("inner")).unwrap();
        // The console cannot print past the outer message now. Nothing may be lost or spin for it.
        f.write_str(if self.0.front().is_some() {
            "front"
        } else {
            "blocked"
        })
    }
}

#[test]
fn write_inside_the_formatting_of_a_write_works() {
    let ring = Box::new(Ring::<16>::new());
    ring.write(STAMP, format_args!("outer {}", Nested(&ring)))
        .unwrap();
    // The first formatting (which counts) logs the first "inner"; the text is that of the second.
    assert_eq!(drain(&ring), ["inner", "outer front", "inner"]);
    assert!(!ring.has_front());
}

#[test]
fn the_console_is_told_when_there_is_something_to_print() {
    let ring = Box::new(Ring::<16>::new());
    // More than a lap, so that each slot is used again.
    for line in 0..40 {
        assert!(!ring.has_front(), "before line {line}");
        ring.write(STAMP, format_args!("line {line}")).unwrap();
        assert!(ring.has_front(), "after line {line}");
        assert_eq!(drain(&ring), [format!("line {line}")]);
    }
}

/// Gives more, or less, text the second time.
struct Fickle(AtomicBool, &'static str, &'static str);

impl fmt::Display for Fickle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = !self.0.swap(true, Ordering::Relaxed);
        f.write_str(if first { self.1 } else { self.2 })
    }
}

#[test]
fn formatting_that_changes_between_its_two_runs_stays_within_its_slots() {
    let grows = Fickle(AtomicBool::new(false), "a", "a\nb\nc");
    assert_eq!(lines_of(format_args!("{grows}")), ["a<cut>"]);
    let shrinks = Fickle(AtomicBool::new(false), "a\nb\nc", "a");
    assert_eq!(lines_of(format_args!("{shrinks}")), ["a"]);
}

#[test]
fn full_ring_drops_the_new_message_and_counts_it() {
    let ring = Box::new(Ring::<8>::new());
    for index in 0..8 {
        ring.write(STAMP, format_args!("{index}")).unwrap();
    }
    assert_eq!(ring.write(STAMP, format_args!("late")), Err(Dropped));
    ring.advance();
    assert_eq!(ring.write(STAMP, format_args!("two\nlines")), Err(Dropped));
    assert_eq!(ring.write(STAMP, format_args!("fits")), Ok(4));
    assert_eq!(ring.write(STAMP, format_args!("last")), Err(Dropped));
    let missing = |seq| ring.read(seq).unwrap().dropped_before;
    assert_eq!(
        (missing(7), missing(8)),
        (0, 2),
        "told where they are missing"
    );
    assert_eq!(drain(&ring), ["1", "2", "3", "4", "5", "6", "7", "fits"]);
    assert!(ring.has_front(), "the last drop is still to be reported");
    assert_eq!(ring.take_dropped(), 1);
    assert_eq!(ring.take_dropped(), 0);
    assert!(!ring.has_front());
    ring.write(STAMP, format_args!("two\nlines")).unwrap();
    assert_eq!((missing(9), missing(10)), (0, 0));
}

/// Text and records, in the order in which a console shows them.
fn interleave<const BYTES: usize, const PIECES: usize>(
    text: &mut Text<BYTES, PIECES>,
    ring: &Ring<16>,
) -> String {
    let mut shown = String::new();
    loop {
        assert!(shown.len() < 1000, "it does not end: {shown}");
        let mut bytes = [0; 3];
        let taken = text.take(ring.tail(), &mut bytes);
        if taken > 0 {
            shown += std::str::from_utf8(&bytes[..taken]).unwrap();
        } else if let Some(record) = ring.front() {
            shown += &format!("[{}]", String::from_utf8_lossy(record.text()));
            ring.advance();
        } else {
            return shown;
        }
    }
}

#[test]
fn text_keeps_its_place_between_records() {
    let ring = Box::new(Ring::<16>::new());
    let mut text = Text::<8, 4>::new();
    let mut push = |said: &[u8], spare| text.push(ring.history().end, said, spare);
    assert_eq!(push(b"ab", 0), 2);
    ring.write(STAMP, format_args!("1")).unwrap();
    assert_eq!(push(b"c", 0), 1);
    ring.write(STAMP, format_args!("2\n3")).unwrap();
    assert_eq!(push(b"de", 0), 2);
    assert_eq!(push(b"fgh", 2), 1, "two bytes stay free");
    assert_eq!(push(b"xyz", 0), 2, "but not for all");
    assert_eq!(push(b"!", 0), 0);
    assert_eq!(interleave(&mut text, &ring), "ab[1]c[2][3]defxy");
    assert!(text.is_empty());
    // Round the end of the buffer.
    assert_eq!(text.push(ring.history().end, b"12345678", 0), 8);
    assert_eq!(
        (text.len(), interleave(&mut text, &ring)),
        (8, "12345678".into())
    );
}

#[test]
fn text_in_too_many_places_is_early_and_not_lost() {
    let ring = Box::new(Ring::<16>::new());
    let mut text = Text::<8, 2>::new();
    for letter in [b"a", b"b", b"c", b"d"] {
        assert_eq!(text.push(ring.history().end, letter, 0), 1);
        ring.write(STAMP, format_args!("-")).unwrap();
    }
    assert_eq!(interleave(&mut text, &ring), "a[-]bcd[-][-][-]");
}

/// The slot of a record is filled again: the record is gone, and is not taken for one to come.
#[test]
fn record_whose_slot_is_being_filled_again_is_gone() {
    /// Reads record 0 whenever it is formatted.
    struct Message<'a>(&'a Ring<8>, RefCell<Vec<Option<Missing>>>);
    impl fmt::Display for Message<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.1.borrow_mut().push(self.0.read(0).err());
            f.write_str("a\nb")
        }
    }
    let ring = Box::new(Ring::<8>::new());
    for _ in 0..8 {
        ring.write(STAMP, format_args!("old")).unwrap();
        ring.advance();
    }
    let message = Message(&ring, RefCell::default());
    ring.write(STAMP, format_args!("{message}")).unwrap();
    // Formatted once to be measured, and once into the slot of record 0.
    assert_eq!(*message.1.borrow(), [None, Some(Missing::Gone)]);
    assert_eq!(ring.read(10).err(), Some(Missing::NotYet));
}

/// A reader that meets a record while it is written for the first time waits for it. One that took
/// it for gone would leave it out.
#[test]
fn record_that_is_being_written_for_the_first_time_is_to_come() {
    /// Reads record 0 whenever it is formatted.
    struct Message<'a>(&'a Ring<8>, RefCell<Vec<Option<Missing>>>);
    impl fmt::Display for Message<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.1.borrow_mut().push(self.0.read(0).err());
            f.write_str("a")
        }
    }
    let ring = Box::new(Ring::<8>::new());
    let message = Message(&ring, RefCell::default());
    ring.write(STAMP, format_args!("{message}")).unwrap();
    assert_eq!(*message.1.borrow(), [Some(Missing::NotYet); 2]);
    assert_eq!(ring.read(0).unwrap().text(), b"a");
}

#[test]
fn history_keeps_what_the_console_has_printed_until_the_next_lap() {
    let ring = Box::new(Ring::<8>::new());
    for index in 0..11 {
        ring.write(STAMP, format_args!("{index}")).unwrap();
        drain(&ring);
    }
    assert_eq!(ring.history(), 3..11);
    for seq in ring.history() {
        assert_eq!(ring.read(seq).unwrap().text(), seq.to_string().as_bytes());
    }
    assert_eq!(ring.read(2).unwrap_err(), Missing::Gone);
    assert_eq!(ring.read(11).unwrap_err(), Missing::NotYet);
}

/// `id` of the writer, its message's number, and a text that both determine.
fn parse(record: &Record) -> (u64, u64, &str) {
    let text = std::str::from_utf8(record.text()).unwrap();
    let mut fields = text.splitn(3, ' ');
    let mut number = || fields.next().unwrap().parse().unwrap();
    (number(), number(), fields.next().unwrap())
}

#[test]
#[cfg_attr(
    miri,
    ignore = "its threads wait for each other by spinning, for hours there"
)]
fn concurrent_writers_lose_nothing_uncounted_and_their_lines_stay_together() {
    const WRITERS: u64 = 3;
    const MESSAGES: u64 = 40_000;
    let ring = Box::new(Ring::<64>::new());
    let running = AtomicU64::new(WRITERS);
    let refused = AtomicU64::new(0);

    thread::scope(|scope| {
        for id in 0..WRITERS {
            let (ring, running, refused) = (&ring, &running, &refused);
            scope.spawn(move || {
                for n in 0..MESSAGES {
                    let rest = "z".repeat((n % 90) as usize);
                    let result =
                        ring.write(STAMP, format_args!("{id} {n} a{rest}\n{id} {n} b{rest}"));
                    refused.fetch_add(u64::from(result.is_err()), Ordering::Relaxed);
                }
                running.fetch_sub(1, Ordering::Release);
            });
        }
        // Laps overtake this reader of the history. Each record that it gets must be whole.
        scope.spawn(|| {
            while running.load(Ordering::Acquire) > 0 {
                for record in ring.history().filter_map(|seq| ring.read(seq).ok()) {
                    let (_, n, text) = parse(&record);
                    assert_eq!(text.len() as u64, 1 + n % 90, "{text}");
                    assert!(text[1..].bytes().all(|byte| byte == b'z'), "{text}");
                }
            }
        });

        let mut next = [0; WRITERS as usize];
        let (mut printed, mut told) = (0, 0);
        loop {
            let finished = running.load(Ordering::Acquire) == 0;
            while let Some(first) = ring.front() {
                let (id, n, text) = parse(&first);
                assert!(
                    text.starts_with('a'),
                    "a message starts with its first line: {text}"
                );
                assert!(
                    n >= next[id as usize],
                    "messages of one writer keep their order"
                );
                next[id as usize] = n + 1;
                told += u64::from(first.dropped_before);
                ring.advance();
                let second = loop {
                    if let Some(second) = ring.front() {
                        break second;
                    }
                };
                let (id2, n2, text2) = parse(&second);
                assert_eq!(
                    (id2, n2, &text2[1..]),
                    (id, n, &text[1..]),
                    "lines stay together"
                );
                assert_eq!(second.dropped_before, 0);
                ring.advance();
                printed += 1;
            }
            if finished {
                break;
            }
        }
        assert_eq!(
            printed + refused.load(Ordering::Relaxed),
            WRITERS * MESSAGES
        );
        let told = told + ring.take_dropped();
        assert_eq!(told, refused.load(Ordering::Relaxed));
    });
}
