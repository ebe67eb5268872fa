//! The behaviour of maps, one operation after the other: the same as that of the standard library's
//! collections.
//!
//! What is lost for lack of room is counted exactly. Compiled code finds arrays by their place, and
//! its routines do what the functions of tasks do.

use std::collections::{BTreeMap, HashMap};

use bpf::{MapDef, MapKind};
use proptest::{collection::vec, prelude::*};
use trace_maps::{
    Array, Hash, Lost, MAX_FRAMES, Map, MapError, NotUpdated, Stacks, TABLE_SHIFT, Use, When,
    at_home, compiled,
};

fn definition(kind: MapKind, key_size: usize, value_size: usize, entries: usize) -> MapDef {
    MapDef {
        name: "map".into(),
        kind,
        key_size: key_size as u32,
        value_size: value_size as u32,
        entries: entries as u32,
    }
}

fn make(kind: MapKind, key_size: usize, value_size: usize, entries: usize, cpus: usize) -> Map {
    Map::new(&definition(kind, key_size, value_size, entries), cpus).expect("a map")
}

fn array(kind: MapKind, value_size: usize, entries: usize, cpus: usize) -> Array {
    match make(kind, 4, value_size, entries, cpus) {
        Map::Array(array) => array,
        _ => panic!("an array"),
    }
}

fn hash(kind: MapKind, key_size: usize, value_size: usize, entries: usize, cpus: usize) -> Hash {
    match make(kind, key_size, value_size, entries, cpus) {
        Map::Hash(hash) => hash,
        _ => panic!("a hash"),
    }
}

fn stacks(frames: usize, entries: usize) -> Stacks {
    match make(MapKind::Stacks, 4, frames * 8, entries, 1) {
        Map::Stacks(stacks) => stacks,
        _ => panic!("stacks"),
    }
}

#[test]
fn definitions_out_of_range_are_refused_with_the_range() {
    use MapKind::{Array, Hash, PerCpuArray, PerCpuHash, Stacks};
    let refusal = |kind, key_size, value_size, entries, cpus| {
        Map::new(&definition(kind, key_size, value_size, entries), cpus)
            .err()
            .map(|error| error.to_string())
    };
    for (kind, key, value) in [
        (Array, 4, 1),
        (PerCpuArray, 4, 4096),
        (Hash, 1, 8),
        (Hash, 512, 512),
        (PerCpuHash, 9, 16),
        (Stacks, 4, 127 * 8),
    ] {
        assert_eq!(refusal(kind, key, value, 1, 1), None);
    }
    for (kind, key, value, range) in [
        (
            Array,
            8,
            8,
            "a key of 8 bytes; this kind of map takes 4 to 4",
        ),
        (
            Hash,
            0,
            8,
            "a key of 0 bytes; this kind of map takes 1 to 512",
        ),
        (
            PerCpuHash,
            513,
            8,
            "a key of 513 bytes; this kind of map takes 1 to 512",
        ),
        (
            Hash,
            8,
            7,
            "a value of 7 bytes; this kind of map takes 8 to 512",
        ),
        (
            PerCpuHash,
            9,
            9,
            "a value of 9 bytes; this kind of map takes 8 to 512, and hashes and stacks take",
        ),
        (
            Hash,
            8,
            513,
            "a value of 513 bytes; this kind of map takes 8 to 512",
        ),
        (
            PerCpuArray,
            4,
            0,
            "a value of 0 bytes; this kind of map takes 1 to 4096",
        ),
        (
            Array,
            4,
            4097,
            "a value of 4097 bytes; this kind of map takes 1 to 4096",
        ),
        (
            Stacks,
            4,
            1024,
            "a value of 1024 bytes; this kind of map takes 8 to 1016",
        ),
    ] {
        let refusal = refusal(kind, key, value, 1, 1).expect("refused");
        assert!(refusal.contains(range), "{refusal}");
    }
    assert_eq!(
        Map::new(&MapDef::ring("ring"), 1).err(),
        Some(MapError::Ring)
    );
    let many = (1 << 20) + 1;
    for (entries, cpus, text) in [
        (0, 1, "0 entries; a map takes 1 to 1048576"),
        (many, 1, "1048577 entries; a map takes"),
        (1, 0, "0 CPUs were found where a map expects 1 to 4096"),
        (1, 4097, "4097 CPUs were found"),
    ] {
        let refusal = refusal(Array, 4, 8, entries, cpus).expect("refused");
        assert!(refusal.contains(text), "{refusal}");
    }
}

#[test]
fn compiled_code_finds_each_value_of_an_array_where_its_place_says() {
    for (kind, value_size, entries, cpus) in [
        (MapKind::Array, 8, 5, 3),
        (MapKind::PerCpuArray, 1, 1, 2),
        (MapKind::PerCpuArray, 20, 7, 4),
        (MapKind::PerCpuArray, 8, 64, 1),
    ] {
        let array = array(kind, value_size, entries, cpus);
        let place = array.place();
        assert_eq!(place.entries as usize, entries);
        assert_eq!(place.stride as usize, value_size.next_multiple_of(8));
        assert_eq!(place.base % 64, 0);
        assert_eq!(place.cpu_shift.is_some(), kind == MapKind::PerCpuArray);
        assert!(place.cpu_shift.is_none_or(|shift| shift >= 6));
        let mut seen = BTreeMap::new();
        for cpu in 0..cpus {
            for index in 0..entries {
                let part = place.cpu_shift.map_or(0, |shift| cpu << shift);
                let address = place.base as usize + part + index * place.stride as usize;
                let value = array.lookup(index, cpu).expect("a value");
                assert_eq!(value.addr(), address);
                *seen.entry(address).or_insert(0) += 1;
                // SAFETY: the array lives, and its value has a word.
                unsafe { *value += (cpu * 100 + index) as u64 };
            }
        }
        let sharing = if kind == MapKind::Array { cpus } else { 1 };
        assert!(seen.values().all(|&count| count == sharing));
        for index in 0..entries {
            let mut sum = [9; 3];
            assert!(array.read_sum(index, &mut sum));
            let expected: usize = (0..cpus).map(|cpu| cpu * 100 + index).sum();
            assert_eq!(sum, [expected as u64, 0, 0]);
            let mut last = [0];
            assert!(array.read_per_cpu(index, array.cpus() - 1, &mut last));
            if kind == MapKind::PerCpuArray {
                assert_eq!(last, [((cpus - 1) * 100 + index) as u64]);
            }
        }
        assert_eq!(array.lookup(entries, 0), None);
        assert_eq!(
            array.lookup(0, cpus).is_none(),
            kind == MapKind::PerCpuArray
        );
        assert!(!array.read_per_cpu(entries, 0, &mut [0]));
        assert!(!array.read_sum(entries, &mut [0]));
    }
}

#[test]
fn an_array_clears_the_values_of_one_cpu_or_of_all() {
    let array = array(MapKind::PerCpuArray, 16, 3, 3);
    let set = || {
        for cpu in 0..3 {
            for index in 0..3 {
                // SAFETY: the array lives, and its values have two words.
                unsafe { array.lookup(index, cpu).expect("a value").add(1).write(5) };
            }
        }
    };
    let sum = |index| {
        let mut sum = [0; 2];
        assert!(array.read_sum(index, &mut sum));
        sum
    };
    set();
    array.clear_cpu(1);
    array.clear_cpu(3);
    assert_eq!([sum(0), sum(2)], [[0, 10]; 2]);
    set();
    let mut taken = Vec::new();
    for cpu in [1, 3] {
        array.take_cpu(cpu, |place, word| taken.push((place, word)));
    }
    assert_eq!(taken, [(1, 5), (3, 5), (5, 5)]);
    assert_eq!([sum(0), sum(2)], [[0, 10]; 2]);
    array.clear();
    assert_eq!([sum(0), sum(1), sum(2)], [[0, 0]; 3]);
}

#[derive(Clone, Debug)]
enum Operation {
    Add(usize, u8, u64),
    Update(usize, u8, u8, When),
    Delete(usize, u8),
    Lookup(usize, u8),
    Clear,
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let when = prop_oneof![Just(When::Any), Just(When::Absent), Just(When::Present)];
    let (cpu, key) = (0usize..3, 0u8..24);
    let operation = prop_oneof![
        4 => (cpu.clone(), key.clone(), 0u64..100).prop_map(|(c, k, d)| Operation::Add(c, k, d)),
        3 => (cpu.clone(), key.clone(), any::<u8>(), when)
            .prop_map(|(c, k, v, w)| Operation::Update(c, k, v, w)),
        4 => (cpu.clone(), key.clone()).prop_map(|(c, k)| Operation::Delete(c, k)),
        2 => (cpu, key).prop_map(|(c, k)| Operation::Lookup(c, k)),
        1 => Just(Operation::Clear),
    ];
    vec(operation, 0..200)
}

/// Word `index` of the bytes, filled up with zeros.
fn word(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; 8];
    let rest = &bytes[index * 8..];
    let count = rest.len().min(8);
    word[..count].copy_from_slice(&rest[..count]);
    u64::from_le_bytes(word)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// So does the exact number of those that are lost because the map is full. Some keys differ in
    /// their last byte alone.
    #[test]
    fn a_hash_holds_what_a_hash_map_holds(
        per_cpu in any::<bool>(),
        key_size in 1usize..=512,
        value_words in 1usize..=32,
        entries in 1usize..20,
        operations in operations(),
    ) {
        let kind = if per_cpu { MapKind::PerCpuHash } else { MapKind::Hash };
        let value_size = value_words * 8;
        let hash = hash(kind, key_size, value_size, entries, 3);
        let mut models = vec![HashMap::<Vec<u8>, Vec<u64>>::new(); if per_cpu { 3 } else { 1 }];
        let mut full = 0;
        let key_of = |key: u8| {
            let mut bytes = vec![key % 4; key_size];
            bytes[key_size - 1] = key;
            bytes
        };
        for operation in operations {
            let part = |cpu: usize| if per_cpu { cpu } else { 0 };
            match operation {
                Operation::Add(cpu, key, delta) => {
                    let (model, key) = (&mut models[part(cpu)], key_of(key));
                    let fits = model.contains_key(&key) || model.len() < entries;
                    let result = hash.add(cpu, &key, delta).unwrap();
                    prop_assert_eq!(result, if fits { Ok(()) } else { Err(Lost::Full) });
                    if fits {
                        let words = value_size.div_ceil(8);
                        model.entry(key).or_insert_with(|| vec![0; words])[0] += delta;
                    } else {
                        full += 1;
                    }
                }
                Operation::Update(cpu, key, value, when) => {
                    let (model, key) = (&mut models[part(cpu)], key_of(key));
                    let bytes: Vec<u8> = (0..value_size).map(|n| value ^ n as u8).collect();
                    let is_there = model.contains_key(&key);
                    let expected = match when {
                        When::Absent if is_there => Err(NotUpdated::Present),
                        When::Present if !is_there => Err(NotUpdated::Absent),
                        _ if is_there || model.len() < entries => Ok(()),
                        _ => Err(NotUpdated::Lost(Lost::Full)),
                    };
                    full += u64::from(expected == Err(NotUpdated::Lost(Lost::Full)));
                    prop_assert_eq!(hash.update(cpu, &key, &bytes, when), Some(expected));
                    if expected.is_ok() {
                        let words = (0..value_size.div_ceil(8)).map(|n| word(&bytes, n));
                        model.insert(key, words.collect());
                    }
                }
                Operation::Delete(cpu, key) => {
                    let (model, key) = (&mut models[part(cpu)], key_of(key));
                    prop_assert_eq!(hash.delete(cpu, &key), model.remove(&key).is_some());
                }
                Operation::Lookup(cpu, key) => {
                    let (model, key) = (&models[part(cpu)], key_of(key));
                    // SAFETY: the hash lives, and its values have a word.
                    let found = hash.lookup(cpu, &key).map(|value| unsafe { *value });
                    prop_assert_eq!(found, model.get(&key).map(|value| value[0]));
                }
                Operation::Clear => {
                    hash.clear();
                    models.iter_mut().for_each(HashMap::clear);
                }
            }
        }
        let mut found = vec![HashMap::new(); models.len()];
        let unsettled = hash.for_each(|cpu, key, value| {
            assert_eq!(found[cpu].insert(key.to_vec(), value.to_vec()), None);
        });
        prop_assert_eq!(unsettled, 0);
        prop_assert_eq!(&found, &models);
        prop_assert_eq!((hash.lost().full, hash.lost().busy), (full, 0));
        prop_assert_eq!(hash.len(), models.iter().map(|model| model.len() as u64).sum::<u64>());

        let mut sums = BTreeMap::<Vec<u8>, Vec<u64>>::new();
        for (key, value) in models.into_iter().flatten() {
            let sum = sums.entry(key).or_insert_with(|| vec![0; value.len()]);
            sum.iter_mut().zip(value).for_each(|(sum, word)| *sum = sum.wrapping_add(word));
        }
        let summary = hash.summary().unwrap();
        let rows: Vec<_> = summary.rows().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        prop_assert_eq!(rows, sums.into_iter().collect::<Vec<_>>());
    }

    /// A trace that is too long is cut.
    #[test]
    fn each_different_trace_has_one_number_and_it_leads_back(
        traces in vec(vec(0u64..3, 0..9), 1..40),
    ) {
        let stacks = stacks(6, 2000);
        let mut numbers = HashMap::new();
        for trace in &traces {
            let mut kept = trace.clone();
            kept.truncate(6);
            if kept.is_empty() {
                kept.push(0);
            }
            let number = stacks.insert(trace).unwrap();
            prop_assert_eq!(*numbers.entry(kept).or_insert(number), number);
        }
        let mut frames = [0; MAX_FRAMES];
        let mut different = std::collections::HashSet::new();
        for (trace, number) in numbers {
            prop_assert!(different.insert(number));
            prop_assert_eq!(stacks.first_equal(number), number);
            let count = stacks.frames(number, &mut frames).unwrap();
            prop_assert_eq!(&frames[..count], &trace[..]);
            prop_assert_eq!(stacks.count(number), Some(count));
        }
    }
}

#[test]
fn a_table_whose_slots_have_all_had_keys_takes_new_keys_in_place_of_deleted_ones() {
    for key_size in [8, 24] {
        let hash = hash(MapKind::Hash, key_size, 8, 50, 1);
        let key = |n: u64| n.to_le_bytes().repeat(3)[..key_size].to_vec();
        for n in 0..50 {
            hash.add(0, &key(n), n).unwrap().unwrap();
        }
        for n in 50..5_000 {
            assert_eq!(hash.add(0, &key(n), n), Some(Err(Lost::Full)));
            assert!(hash.delete(0, &key(n - 50)));
            assert_eq!(hash.add(0, &key(n), n), Some(Ok(())), "key {n}");
        }
        assert_eq!((hash.lost().full, hash.lost().busy), (4_950, 0));
        let mut left = Vec::new();
        hash.for_each(|_, key, value| left.push((word(key, 0), value[0])));
        left.sort_unstable();
        assert_eq!(left, (4_950..5_000).map(|n| (n, n)).collect::<Vec<_>>());
    }
}

/// Sets a key of a map that is to have at most so many keys, as programs do.
fn set(hash: &Hash, keys: u64, key: &[u8], value: u64) {
    assert!(hash.use_key(0, key, Use::Change { keys }));
    let updated = hash.update(0, key, &value.to_le_bytes(), When::Any);
    assert_eq!(updated, Some(Ok(())), "{key:?}");
    assert!(hash.use_key(0, key, Use::Changed));
}

/// Keys that come once make room for others. Those that are used all the time, by reads or by
/// changes, stay; and of the others the newest are there.
#[test]
fn a_map_that_forgets_keeps_the_keys_that_are_used() {
    for (key_size, entries) in [(8, 4), (24, 5), (8, 100), (24, 128), (4, 1_000)] {
        let hash = hash(MapKind::Hash, key_size, 8, entries + 2, 1);
        let set = |key: &[u8], value| set(&hash, entries as u64, key, value);
        let key = |n: u64| n.to_le_bytes().repeat(3)[..key_size].to_vec();
        let hot = entries as u64 / 4;
        (0..hot).for_each(|n| set(&key(n), 0));
        let last = 20 * entries as u64;
        for n in hot..last {
            for used in 0..hot {
                match used % 2 {
                    0 => assert!(hash.use_key(0, &key(used), Use::Read)),
                    _ => set(&key(used), n),
                }
            }
            set(&key(n), n);
            assert_eq!(hash.len(), (n + 1).min(entries as u64), "after key {n}");
        }
        let mut left = Vec::new();
        hash.for_each(|_, key, value| {
            let mut word = [0; 8];
            word[..key_size.min(8)].copy_from_slice(&key[..key_size.min(8)]);
            left.push((u64::from_le_bytes(word), value[0]));
        });
        left.sort_unstable();
        assert_eq!(left.len(), entries);
        let (used, rest) = left.split_at(hot as usize);
        let expected = (0..hot).map(|n| (n, if n % 2 == 0 { 0 } else { last - 1 }));
        assert!(used.iter().copied().eq(expected), "{used:?}");
        assert!(rest.iter().all(|(n, value)| n == value), "{rest:?}");
        assert_eq!(rest.last(), Some(&(last - 1, last - 1)));
        // A round of the hand takes about as many insertions as there are keys of this kind.
        let oldest = last - 3 * entries as u64;
        assert!(rest.iter().all(|(n, _)| *n > oldest), "{oldest} {rest:?}");
        assert_eq!(hash.lost().sum(), 0);
    }
}

/// A use of a key that is not there, and one by a key of another size, change nothing; nor does a
/// change of a key that a full map has. Keys that CPUs have inserted at the same time go again.
#[test]
fn only_a_key_that_comes_into_a_full_map_has_others_forgotten() {
    let hash = hash(MapKind::Hash, 8, 8, 5, 1);
    let key = |n: u64| n.to_le_bytes();
    let change = |n| hash.use_key(0, &key(n), Use::Change { keys: 3 });
    (0..3).for_each(|n| set(&hash, 3, &key(n), n));
    for how in [Use::Read, Use::Changed] {
        assert!(hash.use_key(0, &key(7), how));
    }
    assert!(!hash.use_key(0, &key(7)[..4], Use::Change { keys: 3 }));
    assert!((0..3).all(change));
    assert_eq!(hash.len(), 3);
    assert!(change(7));
    assert_eq!(hash.len(), 2, "there is room for it");
    assert!(change(8));
    assert_eq!(hash.len(), 2, "there is room already");
    // A map that was not made so forgets nothing.
    for n in 7..10 {
        assert_eq!(hash.add(0, &key(n), 1), Some(Ok(())));
    }
    assert_eq!(hash.add(0, &key(10), 1), Some(Err(Lost::Full)));
    assert_eq!((hash.len(), hash.lost().full), (5, 1));
    set(&hash, 3, &key(10), 10);
    assert_eq!((hash.len(), hash.lost().full), (3, 1));
}

#[test]
fn a_full_table_of_many_keys_has_room_for_each_of_its_entries() {
    for kind in [MapKind::Hash, MapKind::PerCpuHash] {
        let hash = hash(kind, 8, 8, 10_000, 1);
        // Addresses of functions, as a program counts them.
        let key = |n: u64| (0xffff_ffff_8000_0000 + n * 16).to_le_bytes();
        for n in 0..10_000 {
            assert_eq!(hash.add(0, &key(n), 1), Some(Ok(())));
        }
        assert_eq!(hash.add(0, &key(10_000), 1), Some(Err(Lost::Full)));
        assert_eq!((hash.len(), hash.lost().sum()), (10_000, 1));
    }
}

#[test]
fn keys_that_differ_in_their_upper_bits_alone_share_no_long_run() {
    for shift in [0, 12, 20, 32, 44, 50] {
        let hash = hash(MapKind::Hash, 8, 8, 4096, 1);
        for n in 0..4096u64 {
            let added = hash.add(0, &(n << shift).to_le_bytes(), 1);
            assert_eq!(added, Some(Ok(())), "key {n} << {shift}");
        }
    }
}

#[test]
fn a_deleted_value_stays_memory_of_the_map() {
    let hash = hash(MapKind::Hash, 8, 8, 1, 1);
    let key = |n: u64| n.to_le_bytes();
    hash.update(0, &key(1), &[1; 8], When::Any)
        .unwrap()
        .unwrap();
    let stale = hash.lookup(0, &key(1)).unwrap();
    assert!(hash.delete(0, &key(1)));
    for n in 2..20 {
        hash.add(0, &key(n), n).unwrap().unwrap();
        // SAFETY: memory of the map, which lives.
        unsafe { *stale = 77 };
        assert!(hash.delete(0, &key(n)));
    }
    // The next key begins with its own value, whatever was written there.
    hash.add(0, &key(1), 5).unwrap().unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { *hash.lookup(0, &key(1)).unwrap() }, 5);
}

#[test]
fn sizes_and_cpus_that_a_hash_does_not_have_are_refused() {
    let hash = hash(MapKind::PerCpuHash, 8, 8, 4, 2);
    assert_eq!(hash.add(2, &[0; 8], 1), None);
    assert_eq!(hash.add(0, &[0; 4], 1), None);
    assert_eq!(hash.update(0, &[0; 8], &[0; 9], When::Any), None);
    assert_eq!(hash.lookup(0, &[0; 9]), None);
    assert!(!hash.delete(0, &[]) && hash.is_empty());
    assert_eq!(hash.lost().sum(), 0);
}

#[test]
fn a_trace_without_room_is_counted_and_numbers_end_with_a_clear() {
    let stacks = stacks(2, 1);
    let mut lost = 0;
    let kept: Vec<(u64, u64)> = (0..100)
        .filter_map(|frame| match stacks.insert(&[frame, 7]) {
            Ok(number) => Some((frame, number)),
            Err(reason) => {
                assert_eq!(reason, Lost::Full);
                lost += 1;
                None
            }
        })
        .collect();
    assert!(!kept.is_empty() && lost > 0);
    assert_eq!(stacks.full(), lost);
    let mut frames = [0; MAX_FRAMES];
    for &(frame, number) in &kept {
        assert_eq!(stacks.frames(number, &mut frames), Some(2));
        assert_eq!(frames[..2], [frame, 7]);
        assert_eq!(stacks.count(number), Some(2));
    }
    stacks.clear();
    let again = stacks.insert(&[kept[0].0, 7]).unwrap();
    for &(_, number) in &kept {
        assert_eq!(
            stacks.frames(number, &mut frames),
            None,
            "number {number:#x}"
        );
        assert_ne!(number, again);
    }
    assert_eq!(stacks.frames(again, &mut frames), Some(2));
    assert_eq!(stacks.frames(u64::MAX, &mut frames), None);
    assert_eq!(stacks.count(kept[0].1), None);
    assert!(again as i64 > 0);
}

#[test]
fn compiled_code_gets_values_and_the_numbers_of_bpf() {
    let hash = hash(MapKind::PerCpuHash, 12, 16, 2, 2);
    // SAFETY: the table of CPU 1.
    let table = unsafe { hash.tables().byte_add(1 << TABLE_SHIFT) };
    let keys: [[u8; 12]; 3] = [[1; 12], [2; 12], [3; 12]];
    let key = |n: usize| keys[n].as_ptr();
    let value: [u8; 16] = [9; 16];
    let update = |n, flags| {
        // SAFETY: the hash lives; keys and values have its sizes.
        unsafe { compiled::hash_update(table, key(n), value.as_ptr(), flags) }
    };
    // SAFETY: as above.
    let add = |n, delta| unsafe { compiled::hash_add(table, key(n), delta) };
    // SAFETY: as above.
    let delete = |n| unsafe { compiled::hash_delete(table, key(n)) };
    // SAFETY: as above.
    let lookup = |n| unsafe { compiled::hash_lookup(table, key(n)).as_ref() };

    assert_eq!((lookup(0), delete(0)), (None, compiled::ABSENT));
    assert_eq!(update(0, compiled::EXIST), compiled::ABSENT);
    assert_eq!(update(0, compiled::NO_EXIST), 0);
    assert_eq!(update(0, compiled::NO_EXIST), compiled::PRESENT);
    assert_eq!(update(0, compiled::EXIST), 0);
    assert_eq!(update(0, 3), compiled::NO_SUCH_FLAGS);
    assert_eq!((add(1, 5), add(1, 6), add(2, 1)), (0, 0, compiled::FULL));
    assert_eq!(update(2, compiled::ANY), compiled::FULL);
    let nines = u64::from_le_bytes([9; 8]);
    assert_eq!((lookup(0), lookup(1)), (Some(&nines), Some(&11)));
    assert_eq!((delete(0), delete(0)), (0, compiled::ABSENT));
    let mut left = Vec::new();
    hash.for_each(|cpu, key, value| left.push((cpu, key.to_vec(), value.to_vec())));
    assert_eq!(left, [(1, vec![2; 12], vec![11, 0])]);
    assert_eq!((hash.lost().full, hash.lost().busy), (2, 0));

    let stacks = stacks(3, 4);
    let frames = [5u64, 6, 7, 8];
    // SAFETY: the stacks live, and there are that many frames.
    let number = unsafe { compiled::stacks_insert(&stacks, frames.as_ptr(), 4) };
    let mut found = [0; MAX_FRAMES];
    assert_eq!(stacks.frames(number as u64, &mut found), Some(3));
    assert_eq!(found[..3], frames[..3]);
}

#[test]
fn a_key_in_a_register_is_the_key_in_memory_filled_up_with_zeros() {
    for key_size in 1..=8 {
        let hash = hash(MapKind::Hash, key_size, 8, 2, 1);
        for key in [[0u8; 8], [0xd1; 8], 0xd1b5_4a32_d192_ed03u64.to_le_bytes()] {
            let key = &key[..key_size];
            hash.clear();
            hash.add(0, key, 1).unwrap().unwrap();
            // SAFETY: the hash lives, and its keys have up to 8 bytes.
            let added = unsafe { compiled::hash_add_word(hash.tables(), word(key, 0), 2) };
            assert_eq!(added, 0);
            let mut all = Vec::new();
            hash.for_each(|_, key, value| all.push((key.to_vec(), value[0])));
            assert_eq!(all, [(key.to_vec(), 3)]);
        }
    }
}

/// The key whose slot's first word would be 0.
const UNSTORABLE: u64 = 0xd1b5_4a32_d192_ed03;

proptest! {
    /// A small table, so that keys are away from their homes, or find no room; keys that were
    /// deleted come back.
    #[test]
    fn routines_do_what_the_operations_do(
        steps in vec((0u64..40, any::<u64>(), 0u8..6), 1..300),
    ) {
        let (at_home, plain) = (
            hash(MapKind::Hash, 8, 8, 24, 1),
            hash(MapKind::Hash, 8, 8, 24, 1),
        );
        let lost = |lost| match lost {
            Lost::Full => compiled::FULL,
            Lost::Busy => compiled::BUSY,
        };
        let table = at_home.tables();
        for (number, value, what) in steps {
            let key = if number == 0 { UNSTORABLE } else { number * number };
            let bytes = key.to_ne_bytes();
            // SAFETY: the table lives, and its keys and values have 8 bytes.
            unsafe {
                let before = plain.lookup(0, &bytes).map(|value| *value);
                let found = at_home::hash_find_word_at_home(table, key).as_ref();
                prop_assert_eq!(found.copied(), before);
                match what {
                    0 => {
                        let deleted = at_home::hash_delete_word_at_home(table, key);
                        let was_there = plain.delete(0, &bytes);
                        prop_assert_eq!(deleted, if was_there { 0 } else { compiled::ABSENT });
                    }
                    1 | 2 => {
                        let set = at_home::hash_set_word_at_home(table, key, value);
                        let value = value.to_ne_bytes();
                        let expected = match plain.update(0, &bytes, &value, When::Any) {
                            Some(Ok(())) => 0,
                            Some(Err(NotUpdated::Lost(reason))) => lost(reason),
                            other => panic!("{other:?}"),
                        };
                        prop_assert_eq!(set, expected);
                    }
                    _ => {
                        let added = at_home::hash_add_word_at_home(table, key, value);
                        let expected = plain.add(0, &bytes, value).expect("there is a CPU 0");
                        prop_assert_eq!(added, expected.map_or_else(lost, |()| 0));
                    }
                }
            }
        }
        let content = |hash: &Hash| {
            let mut content = BTreeMap::new();
            hash.for_each(|_, key, value| {
                content.insert(key.to_vec(), value.to_vec());
            });
            content
        };
        prop_assert_eq!(content(&at_home), content(&plain));
        prop_assert_eq!(at_home.len(), plain.len());
        prop_assert_eq!(at_home.lost().full, plain.lost().full);
    }
}

/// Keys of one word and of more, those that two CPUs have among them.
#[test]
fn compiled_code_goes_through_all_keys_and_reads_words_of_any_cpu() {
    for key_size in [3, 8, 12, 64] {
        let hash = hash(MapKind::PerCpuHash, key_size, 16, 64, 3);
        let key = |number: u8| vec![number; key_size];
        for number in 0..40_u8 {
            let cpu = usize::from(number % 3);
            let value = [u64::from(number).to_le_bytes(), 7_u64.to_le_bytes()].concat();
            hash.update(cpu, &key(number), &value, When::Any)
                .unwrap()
                .unwrap();
            hash.update(2, &key(number), &value, When::Any)
                .unwrap()
                .unwrap();
        }
        hash.delete(0, &key(3));
        hash.delete(2, &key(3));
        // SAFETY: one table after the other.
        let table =
            |cpu: usize| (cpu < 3).then(|| unsafe { hash.tables().byte_add(cpu << TABLE_SHIFT) });
        let mut found = Vec::new();
        let mut place = 0;
        loop {
            let mut buffer = [0xff_u8; 72];
            // SAFETY: the tables live, and there are as many bytes.
            place = unsafe {
                compiled::hash_next_key(table, place, buffer.as_mut_ptr(), buffer.len() as u64)
            };
            let (of_key, behind) = buffer.split_at(key_size);
            assert!(behind.iter().all(|byte| *byte == 0));
            if place == 0 {
                assert!(of_key.iter().all(|byte| *byte == 0));
                break;
            }
            assert!(of_key.iter().all(|byte| *byte == of_key[0]));
            found.push(of_key[0]);
        }
        found.sort_unstable();
        let expected: Vec<u8> = (0..40).filter(|number| *number != 3).collect();
        assert_eq!(found, expected);
        let word = |cpu, number, index| {
            // SAFETY: a table of the hash, and a key of its size.
            unsafe { compiled::hash_word(table(cpu).unwrap(), key(number).as_ptr(), index) }
        };
        assert_eq!([word(1, 4, 0), word(1, 4, 1), word(1, 4, 2)], [4, 7, 0]);
        assert_eq!([word(0, 4, 0), word(2, 4, 0), word(2, 3, 0)], [0, 4, 0]);
    }
}
