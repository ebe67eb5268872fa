//! Memory: a map takes all of it when it is made, or none.

#[allow(dead_code)]
#[path = "../../../probes/tests/process/allocator.rs"]
mod allocator;

use allocator::{allocations, kept_with_room_for, with_room_for};
use bpf::{MapDef, MapKind};
use trace_maps::{Map, MapError, When};

fn definition(kind: MapKind) -> MapDef {
    let (key_size, value_size) = match kind {
        MapKind::Array | MapKind::PerCpuArray | MapKind::Stacks => (4, 24),
        MapKind::Hash | MapKind::PerCpuHash => (12, 24),
        MapKind::Ring => (0, 0),
    };
    MapDef {
        name: "map".into(),
        kind,
        key_size,
        value_size,
        entries: 10,
    }
}

const KINDS: [MapKind; 5] = [
    MapKind::Array,
    MapKind::PerCpuArray,
    MapKind::Hash,
    MapKind::PerCpuHash,
    MapKind::Stacks,
];

#[test]
fn a_map_that_gets_only_a_part_of_its_memory_gives_it_back_and_says_so() {
    for kind in KINDS {
        let make = || Map::new(&definition(kind), 3);
        let mut room = 0;
        loop {
            let (map, short, kept) = kept_with_room_for(room, || make().map(drop));
            assert_eq!(kept, 0, "{kind:?} with room for {room}");
            if !short {
                assert_eq!(map, Ok(()), "{kind:?}");
                break;
            }
            assert!(
                matches!(map, Err(MapError::OutOfMemory(_))),
                "{kind:?} with room for {room}"
            );
            room += 1;
        }
        assert!(room > 0, "{kind:?} takes no memory");
    }
}

#[test]
fn a_summary_without_memory_is_an_error() {
    let Ok(Map::Hash(hash)) = Map::new(&definition(MapKind::PerCpuHash), 3) else {
        panic!("a hash");
    };
    for (cpu, key) in [(0, 1), (1, 1), (2, 2)] {
        hash.add(cpu, &[key; 12], 1).unwrap().unwrap();
    }
    let mut room = 0;
    loop {
        let (rows, short, kept) =
            kept_with_room_for(room, || hash.summary().map(|summary| summary.len()).ok());
        assert_eq!((rows, kept), ((!short).then_some(2), 0), "room for {room}");
        if !short {
            break;
        }
        room += 1;
    }
    assert!(room > 0);
}

#[test]
fn hits_and_clearing_allocate_nothing() {
    for kind in KINDS {
        let map = Map::new(&definition(kind), 3).unwrap();
        let count = allocations(|| match &map {
            Map::Array(array) => {
                assert!(array.lookup(9, 2).is_some());
                array.clear();
            }
            Map::Hash(hash) => {
                for key in 0..20 {
                    let added = hash.add(2, &[key; 12], 1).unwrap();
                    assert_eq!(added.is_ok(), key < 10);
                }
                hash.update(2, &[3; 12], &[0; 24], When::Any)
                    .unwrap()
                    .unwrap();
                assert!(hash.delete(2, &[3; 12]) && hash.lookup(2, &[4; 12]).is_some());
                assert_eq!(hash.for_each(|_, _, _| {}), 0);
                hash.clear();
            }
            Map::Stacks(stacks) => {
                stacks.insert(&[1, 2]).unwrap();
                stacks.clear();
            }
        });
        assert_eq!(count, 0, "{kind:?}");
    }
}

#[test]
fn sizes_that_no_memory_could_hold_are_refused() {
    let most = MapDef {
        name: "map".into(),
        kind: MapKind::PerCpuArray,
        key_size: 4,
        value_size: 4096,
        entries: MapDef::MOST_ENTRIES,
    };
    // Not asked for, because the system might promise it.
    let (result, _) = with_room_for(0, || Map::new(&most, 1 << 12).map(drop));
    assert!(matches!(result, Err(MapError::OutOfMemory(error)) if error.bytes >= 1 << 44));
}
