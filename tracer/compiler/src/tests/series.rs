//! Series in time.
//!
//! A tick of the machine is 2 nanoseconds, so an interval of a millisecond has 500,000 of them.

use bpf::context::Register::{Di, Si};

use super::world::{Hit, World};

/// The ticks of an interval.
const INTERVAL: u64 = 500_000;

/// A hit somewhere in an interval.
fn hit(world: &mut World, cpu: u32, interval: u64, part: u64, values: (u64, i64)) {
    world.hit(&Hit {
        registers: vec![(Di, values.0), (Si, values.1 as u64)],
        cpu,
        tsc: interval * INTERVAL + part * 1000,
        ..Hit::default()
    });
}

#[test]
fn the_last_intervals_are_drawn() {
    let mut world = World::new("kprobe:vfs_write { @ = tseries((int64)arg1, 1ms, 4); }");
    for (cpu, interval, part, value) in [
        // Too old at the end.
        (0, 1, 1, 100),
        (0, 2, 1, 5),
        (1, 2, 2, -3),
        (0, 3, 9, 4),
        (1, 3, 8, 8),
        (0, 5, 1, 7),
    ] {
        hit(&mut world, cpu, interval, part, (0, value));
    }
    // The machine's clock was 0 a microsecond before midnight.
    assert_eq!(
        world.maps(),
        "@:\n\
         \x20            -3                                                  7\n\
         hh:mm:ss.ms  |___________________________________________________|\n\
         00:00:00.001 *              .                                    | -3\n\
         00:00:00.002 |              .                    *               | 4\n\
         00:00:00.003 |              .                                    | -\n\
         00:00:00.004 |              .                                    * 7\n\
         \x20            v___________________________________________________v\n\
         \x20            -3                                                  7\n\n"
    );
}

#[test]
fn values_of_an_interval_are_gathered_over_the_cpus() {
    for (word, first, second) in [
        ("", -9, 6),
        (", \"avg\"", -2, 6),
        (", \"sum\"", -4, 6),
        (", \"max\"", 5, 6),
        (", \"min\"", -9, 6),
    ] {
        let mut world = World::new(&format!(
            "kprobe:vfs_write {{ @s[arg0, comm] = tseries((int64)arg1, 1ms, 10{word}); }}"
        ));
        hit(&mut world, 1, 7, 1, (1, 5));
        hit(&mut world, 0, 7, 3, (1, -9));
        hit(&mut world, 2, 8, 3, (1, 6));
        let text = world.maps();
        let lines = text.lines().skip(3).take(2);
        let ends: Vec<i64> = lines
            .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(ends, [first, second], "{text}");
        assert!(text.starts_with("@s[1, cat]:\n"), "{text}");
    }
}

/// The smaller of the two intervals of a slot is over when the other one begins.
#[test]
fn a_slot_is_taken_for_a_later_interval() {
    let mut world = World::new("kprobe:vfs_write { @ = tseries(arg1, 1ms, 2, \"sum\"); }");
    for interval in [2, 2, 3, 4, 4, 4] {
        hit(&mut world, 0, interval, 1, (0, 10));
    }
    let text = world.maps();
    let ends: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("00:00:00."))
        .collect();
    assert_eq!(
        ends,
        [
            "002 *                                                   | 10",
            "003 |                                                   * 30",
        ]
    );
}

#[test]
fn keys_end_at_the_same_interval_and_can_be_taken_away() {
    let mut world = World::new(
        "kprobe:vfs_write { @[arg0] = tseries(arg1, 1ms, 5); if (arg1 == 99) { delete(@[3]); } }",
    );
    hit(&mut world, 0, 2, 1, (1, 5));
    hit(&mut world, 0, 3, 1, (3, 5));
    hit(&mut world, 0, 4, 1, (2, 99));
    let text = world.maps();
    assert!(!text.contains("@[3]"), "{text}");
    let of_key = |key: &str| {
        let (_, rest) = text.split_once(key).unwrap();
        let part = rest.split("\n\n").next().unwrap();
        let ends = part.lines().filter(|line| line.starts_with("00:"));
        ends.map(|line| line.rsplit(' ').next().unwrap().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(of_key("@[1]:"), ["5", "-", "-"]);
    assert_eq!(of_key("@[2]:"), ["99"]);
}
