//! Loops whose ends only a hit tells, and loops over maps.

use bpf::context::Register::{Di, Si};

use super::{
    fake::READ,
    world::{Hit, World},
};

fn hit(first: u64, second: u64) -> Hit {
    Hit {
        registers: vec![(Di, first), (Si, second)],
        ..Hit::default()
    }
}

#[test]
fn while_goes_round_as_long_as_its_condition_holds() {
    let mut world = World::new(
        "kprobe:vfs_write { $n = arg0; $steps = 0; while ($n != 1) { if ($n % 2 == 1) \
         { $n = 3 * $n + 1; } else { $n = $n / 2; } $steps++; } print(($n, $steps)); }",
    );
    for (number, steps) in [(1, 0), (6, 8), (27, 111)] {
        world.hit(&hit(number, 0));
        assert_eq!(world.out, format!("(1, {steps})\n"));
        world.out.clear();
    }
    assert!(!world.end().contains("ended early"));
}

#[test]
fn bounds_are_calculated_once_and_turns_can_be_left() {
    let mut world = World::new(
        "kprobe:vfs_write { $to = arg1; $sum = 0; for ($i : arg0..$to) { $to = 1000; \
         if ($i == 3) { continue; } if ($i == 6) { break; } $sum += $i; $i = 77; } \
         print($sum); }",
    );
    for (from, to, sum) in [
        (0, 0, 0_i64),
        (5, 2, 0),
        (0, 5, 7),
        (-3_i64 as u64, 2, -5),
        (0, 100, 12),
        (6, 100, 0),
    ] {
        world.hit(&hit(from, to));
        assert_eq!(world.out, format!("{sum}\n"), "{from} to {to}");
        world.out.clear();
    }
}

#[test]
fn a_loop_with_too_many_turns_is_ended_and_told() {
    let mut world = World::new(
        "kprobe:vfs_write { $n = 0; while (arg0) { $n++; } print($n); } \
         kprobe:vfs_read { for ($i : 0..arg0) { for ($j : 0..arg1) { @n++; } } print(@n); }",
    );
    world.hit(&hit(1, 0));
    world.hit(&hit(1, 0));
    assert_eq!(world.out, "1024\n1024\n");
    world.out.clear();
    world.hit(&Hit {
        address: READ,
        ..hit(3, 4)
    });
    assert_eq!(world.out, "@n: 12\n");
    world.out.clear();
    world.hit(&Hit {
        address: READ,
        ..hit(2, 1 << 40)
    });
    let text = world.end();
    assert!(
        text.contains("; ended early: while (arg0) after 1024 turns (2 times)"),
        "{text}"
    );
    assert!(text.contains("for ($j : 0..arg1) after 32 turns"), "{text}");
}

#[test]
fn loops_over_maps_see_each_key_once() {
    let mut world = World::new(
        "kprobe:vfs_write { @plain[arg0] = arg1; @count[arg0, comm] = count(); \
         @text[arg0] = comm; @max[arg0 > 1] = max(arg1); } \
         interval:s:1 { $sum = 0; $keys = 0; for ($kv : @plain) { $keys += $kv.0; \
         if ($kv.1 == 99) { continue; } $sum += $kv.1; } print(($keys, $sum)); \
         for ($kv : @count) { @seen[$kv.0.0, $kv.0.1] = $kv.1; } \
         for ($t : @text) { if ($t.1 == \"cat\") { delete(@text[$t.0]); print($t); } } \
         for ($kv : @max) { printf(\"%s %d\\n\", $kv.0, $kv.1); } }",
    );
    world.hit(&hit(1, 10));
    world.hit(&Hit {
        cpu: 1,
        ..hit(2, 20)
    });
    world.hit(&Hit {
        cpu: 1,
        ..hit(1, 99)
    });
    world.tick();
    assert_eq!(
        world.out,
        "(3, 20)\n(1, cat)\n(2, cat)\nfalse 99\ntrue 20\n"
    );
    world.out.clear();
    assert_eq!(
        world.maps(),
        "@count[2, cat]: 1\n@count[1, cat]: 2\n\n@max[true]: 20\n@max[false]: 99\n\n\
         @plain[2]: 20\n@plain[1]: 99\n\n@seen[2, cat]: 1\n@seen[1, cat]: 2\n\n"
    );
}

#[test]
fn a_loop_that_prints_has_turns_for_many_keys() {
    let mut world = World::new(
        "kprobe:vfs_write { @n[arg0] = count(); } \
         end { for ($kv : @n) { printf(\"%d: %d\\n\", $kv.0, $kv.1); } }",
    );
    for number in 0..300 {
        world.hit(&hit(number, 0));
    }
    world.tick();
    assert_eq!(world.out.lines().count(), 256);
    assert!(world.end().contains("for ($kv : @n) after 256 turns"));
}

/// What ran before it has used the stack, and given it back.
#[test]
fn a_variable_that_no_way_has_set_is_zero() {
    for before in [
        "@pair[arg1, arg1] = 1;",
        "@word[\"a text of some length\", arg1] = 1;",
        "$sum = (arg1, arg1); if ($sum == (arg1, 5)) { print(1); }",
    ] {
        for (set, zero) in [
            ("$x = 1;", "0"),
            ("$x = (1, 2);", "(0, 0)"),
            ("$x = \"text\";", ""),
        ] {
            let mut world = World::new(&format!(
                "kprobe:vfs_write {{ if (arg0) {{ {before} }} if (!arg0) {{ {set} }} print($x); \
                 while (arg0) {{ {before} if (arg0 > 1) {{ $y = arg1; }} print($y); break; }} }}"
            ));
            world.hit(&hit(1, u64::MAX / 3));
            assert_eq!(world.out, format!("{zero}\n0\n"), "{before} {set}");
        }
    }
}

/// Each of the choices doubles what a variable may be. The verifier takes so many only where the
/// program forgets what it has stored.
#[test]
fn choices_that_are_made_one_after_the_other_need_not_be_few() {
    let bits = 24;
    let choices: String = (0..bits)
        .map(|bit| {
            format!(
                "if (arg0 & {0}) {{ $sum += {0}; $word = \"w{bit}\"; $pair = ({bit}, $sum); \
                 $only{bit} = {0}; }} ",
                1 << bit
            )
        })
        .collect();
    // Variables that no other way has set are zero.
    let only: String = (1..bits).map(|bit| format!(" + $only{bit}")).collect();
    let mut world = World::new(&format!(
        "kprobe:vfs_write {{ $sum = 0; $word = \"none\"; $pair = (0, 0); {choices} \
         print(($sum, $word, $pair, $only0{only})); }}"
    ));
    for number in [0_u64, 1, 0x5a_5a5a, 0xff_ffff, 0x80_0001] {
        world.hit(&hit(number, 0));
        let shown = match number.checked_ilog2() {
            None => "(0, none, (0, 0), 0)\n".into(),
            Some(last) => format!("({number}, w{last}, ({last}, {number}), {number})\n"),
        };
        assert_eq!(world.out, shown);
        world.out.clear();
    }
}
