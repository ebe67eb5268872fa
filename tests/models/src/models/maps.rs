//! The maps of compiled actions: hits on two CPUs, and a reader.
//!
//! Hits claim slots, add to values and take over keys without locks. A reader sees a key with a
//! value that it had, never one half of each. The models use the smallest tables in which two hits
//! meet.

use super::{share, start};
use crate::trace_maps::{
    hash::{Hash, neighbours},
    stacks::{MAX_FRAMES, Stacks},
    table::Lost,
};

fn world(entries: usize, key_words: usize, value_words: usize) -> &'static Hash {
    share(Hash::new(entries, key_words, value_words))
}

/// Two CPUs add to the same new key, and one of them to its neighbour before.
pub(super) fn inserted() {
    let [key, neighbour] = neighbours();
    let hash = world(2, 1, 1);
    hash.touch();
    let other = start(move || {
        assert_eq!(hash.add(key, 1), Ok(()));
    });
    assert_eq!(hash.add(neighbour, 5), Ok(()));
    assert_eq!(hash.add(key, 2), Ok(()));
    other.join().expect("no panic");
    let mut entries = hash.entries();
    entries.sort_unstable();
    let mut expected = [(key, vec![3]), (neighbour, vec![5])];
    expected.sort_unstable();
    assert_eq!((entries, hash.counts()), (expected.to_vec(), (2, 0)));
}

/// A table for one entry without a free slot. Its entry, of 100, is in the slot that the next key
/// takes over.
fn without_free_slots(key_words: usize) -> (&'static Hash, [u64; 3]) {
    let [first, second, third] = neighbours();
    let hash = world(1, key_words, 1);
    hash.touch();
    for key in [first, second] {
        assert_eq!(hash.add(key, 1), Ok(()));
        assert!(hash.delete(key));
    }
    assert_eq!(hash.add(first, 100), Ok(()));
    (hash, [first, second, third])
}

/// One CPU adds to a key. The other one deletes the key, and adds to another one, which takes its
/// slot over. An addition reaches its own key or none.
fn taken_over(key_words: usize) {
    let (hash, [old, _, new]) = without_free_slots(key_words);
    let other = start(move || {
        assert!(hash.delete(old));
        let _: Result<(), Lost> = hash.add(new, 10);
    });
    let added = hash.add(old, 1);
    other.join().expect("no panic");
    let entries = hash.entries();
    for (key, value) in &entries {
        let expected = if *key == new { 10 } else { 1 };
        assert_eq!(*value, [expected], "of {key}");
        assert!(*key == new || added.is_ok());
    }
    assert_eq!(hash.counts().0, entries.len() as u64);
}

pub(super) fn taken_over_word() {
    taken_over(1);
}

pub(super) fn taken_over_words() {
    taken_over(2);
}

/// Two CPUs bring the same key to a table without free slots.
pub(super) fn brought_twice() {
    let (hash, [old, _, new]) = without_free_slots(1);
    assert!(hash.delete(old));
    let other = start(move || {
        let _: Result<(), Lost> = hash.add(new, 1);
    });
    let here = hash.add(new, 2);
    other.join().expect("no panic");
    let entries = hash.entries();
    let (live, lost) = hash.counts();
    assert_eq!((live, entries.len()), (1, 1), "{entries:?}");
    let expected = match (here.is_ok(), lost) {
        (true, 0) => 3,
        (true, _) => 2,
        (false, _) => 1,
    };
    assert_eq!(entries, [(new, vec![expected])]);
}

/// A key comes back while an addition to it, from before its deletion, may still be under way.
pub(super) fn returned() {
    let [key] = neighbours();
    let hash = world(1, 1, 1);
    hash.touch();
    assert_eq!(hash.add(key, 100), Ok(()));
    let other = start(move || {
        let _: Result<(), Lost> = hash.add(key, 1);
    });
    assert!(hash.delete(key));
    let back = hash.add(key, 10);
    other.join().expect("no panic");
    let entries = hash.entries();
    let values: Vec<_> = entries.iter().map(|(_, value)| value[0]).collect();
    match back {
        Ok(()) => assert!(values == [10] || values == [11], "{values:?}"),
        Err(_) => assert!(values.is_empty() || values == [1], "{values:?}"),
    }
}

/// A key of two words is inserted with its value, while another CPU looks it up.
pub(super) fn complete() {
    let [key] = neighbours();
    let hash = world(1, 2, 2);
    hash.touch();
    let other = start(move || {
        if let Some(value) = hash.lookup(key) {
            assert_eq!(value, [7, 7]);
        }
    });
    assert_eq!(hash.update(key, 7), Ok(()));
    other.join().expect("no panic");
    assert_eq!(hash.lookup(key), Some(vec![7, 7]));
}

/// A reader, while a value of two words changes.
pub(super) fn read() {
    let [key] = neighbours();
    let hash = world(1, 1, 2);
    hash.touch();
    assert_eq!(hash.update(key, 1), Ok(()));
    let reader = start(move || {
        let value = hash.first_entry().expect("the key").1;
        assert!(value == [1, 1] || value == [2, 2], "{value:?}");
    });
    assert_eq!(hash.update(key, 2), Ok(()));
    reader.join().expect("no panic");
}

/// A reader, while its slot goes to another key.
pub(super) fn read_another() {
    let (hash, [old, _, new]) = without_free_slots(1);
    let reader = start(move || {
        let Some((key, value)) = hash.first_entry() else {
            return;
        };
        assert_eq!(value, [if key == new { 10 } else { 100 }], "of {key}");
    });
    assert!(hash.delete(old));
    assert_eq!(hash.add(new, 10), Ok(()));
    reader.join().expect("no panic");
}

fn frames(stacks: &Stacks, number: u64) -> Option<Vec<u64>> {
    let mut frames = [0; MAX_FRAMES];
    let count = stacks.frames(number, &mut frames)?;
    Some(frames[..count].to_vec())
}

/// Traces whose search begins at the same slot, because there is only one home.
fn no_traces() -> &'static Stacks {
    let stacks = share(crate::trace_maps::stacks(2));
    crate::trace_maps::touch_stacks(stacks);
    stacks
}

/// Two CPUs insert a trace each, and a number that leads to a trace leads to all of it.
pub(super) fn traced() {
    let stacks = no_traces();
    let other = start(move || {
        let number = stacks.insert(&[3, 3]).expect("room");
        assert_eq!(frames(stacks, number), Some(vec![3, 3]));
    });
    // That of the first slot.
    if let Some(frames) = frames(stacks, 0) {
        assert_eq!(frames, [3, 3]);
    }
    let number = stacks.insert(&[4, 4]).expect("room");
    other.join().expect("no panic");
    assert_eq!(frames(stacks, number), Some(vec![4, 4]));
    assert_eq!(frames(stacks, 1 - number), Some(vec![3, 3]));
}

/// All traces are forgotten, and another one comes to the slot, while its frames are read.
pub(super) fn forgotten() {
    let stacks = no_traces();
    let number = stacks.insert(&[3, 3]).expect("room");
    let other = start(move || {
        if let Some(frames) = frames(stacks, number) {
            assert_eq!(frames, [3, 3]);
        }
    });
    stacks.clear();
    let next = stacks.insert(&[4, 4]).expect("room");
    other.join().expect("no panic");
    assert_ne!(next, number);
    assert_eq!(frames(stacks, next), Some(vec![4, 4]));
    assert_eq!(frames(stacks, number), None);
}
