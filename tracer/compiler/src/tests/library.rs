//! Values of the functions of bpftrace's library.
//!
//! Each is calculated by a program at a hit, whose arguments are in two registers, and printed.
//! What is expected was calculated by hand, or is what Linux prints. A text is in the memory of the
//! machine.

use std::collections::BTreeSet;

use bpf::context::Register::{Di, Si};

use super::world::{Hit, World};

/// What a program prints at one hit with two arguments.
fn printed(statements: &str, first: u64, second: u64) -> String {
    let mut world = World::new(&format!("kprobe:vfs_write {{ {statements} }}"));
    world.hit(&Hit {
        registers: vec![(Di, first), (Si, second)],
        cpu: 1,
        tid: 7,
        ..Hit::default()
    });
    core::mem::take(&mut world.out)
}

#[test]
fn words_may_stand_as_calls() {
    assert_eq!(
        printed(
            "print((pid(), tid(), cpu(), comm(), ncpus(), arg0())); \
             print((pid(init), tid(curr_ns), nsecs(boot) > 0, nsecs(monotonic) > 0)); \
             print(probe()); print(func() == func); print(probetype);",
            3,
            4
        ),
        "(7, 7, 1, cat, 4, 3)\n(7, 7, true, true)\nkprobe:vfs_write\ntrue\nkprobe\n"
    );
}

#[test]
fn a_moment_is_a_special_kind_of_probe() {
    let mut world = World::new("BEGIN { print(probetype()); } interval:s:1 { print(probetype); }");
    world.tick();
    assert_eq!(world.out, "special\ninterval\n");
}

#[test]
fn bytes_are_swapped_by_the_width_of_the_type() {
    assert_eq!(
        printed(
            "printf(\"%x %x %x %x\\n\", bswap((uint8)arg0), bswap((uint16)arg0), \
             bswap((uint32)arg0), bswap(arg0)); \
             printf(\"%x %x %x %x\\n\", bswap(0x12), bswap(0x1234), bswap(0x123456), \
             bswap(0x123456789a));",
            0x0102_0304_0506_07f8,
            0
        ),
        "f8 f807 f8070605 f807060504030201\n12 3412 56341200 9a78563412000000\n"
    );
}

#[test]
fn errors_are_the_last_addresses() {
    let last = -4095_i64 as u64;
    for (address, is) in [
        (0, false),
        (last - 1, false),
        (last, true),
        (u64::MAX, true),
    ] {
        assert_eq!(
            printed("print(is_err(arg0));", address, 0),
            format!("{is}\n")
        );
    }
}

#[test]
fn numbers_are_shown_by_their_names() {
    assert_eq!(
        printed(
            "print(strerror(7)); print(strerror(arg0)); printf(\"%s|%d\\n\", strerror(arg1), \
             arg0); @n[signal_name(9), signal_name(arg0), syscall_name(arg0)] = count(); \
             print(strerror(7) == \"Argument list too long\"); print(strlen(strerror(2))); \
             print(strerror(-1)); print(syscall_name(999));",
            2,
            u64::from(u32::MAX),
        ),
        "Argument list too long\nNo such file or directory\nUnknown error -1|2\n\
         true\n25\nUnknown error -1\nUnknown syscall 999\n"
    );
    let mut world = World::new("kprobe:vfs_write { @[signal_name(arg0)] = count(); }");
    for signal in [9, 2, 99] {
        world.hit(&Hit {
            registers: vec![(Di, signal)],
            ..Hit::default()
        });
    }
    assert_eq!(
        world.maps(),
        "@[Interrupt]: 1\n@[Killed]: 1\n@[Unknown signal 99]: 1\n\n"
    );
}

#[test]
fn texts_have_a_length() {
    let mut world = World::new(
        "kprobe:vfs_write { $t = str(arg0); @t[1] = $t; print(strlen($t)); print(strlen(@t[1])); \
         print(strlen(@t[2])); print(strlen(comm)); print(strlen(\"four\")); \
         print(strlen(str(arg0, 3))); print(strlen(str(0))); \
         if (strlen(str(arg0)) > 4) { print(\"long\"); } }",
    );
    world
        .memory
        .push((0xffff_8000_0000_4000, b"hello\0world".to_vec()));
    world.hit(&Hit {
        registers: vec![(Di, 0xffff_8000_0000_4000)],
        ..Hit::default()
    });
    assert_eq!(world.out, "5\n5\n0\n3\n4\n3\n0\nlong\n");
}

#[test]
fn texts_are_searched() {
    let mut world = World::new(
        "kprobe:vfs_write { $t = str(arg0, 16); print((strstr($t, \"hello\"), strstr($t, \"lo\"), \
         strstr($t, \"lot\"), strstr($t, \"\"), strstr($t, \"o\\0x\"), strstr(comm, \"t\"))); \
         print((strcontains($t, comm), strcontains($t, str(arg1, 8)), strcontains(\"ababac\", \
         str(arg1, 8)), strcontains(str(0, 8), $t), strcontains(str(0, 8), str(0, 8)))); \
         if (strcontains(comm, \"ca\")) { print(\"yes\"); } }",
    );
    world
        .memory
        .push((0xffff_8000_0000_4000, b"hello\0lot\0abac\0".to_vec()));
    world.hit(&Hit {
        registers: vec![(Di, 0xffff_8000_0000_4000), (Si, 0xffff_8000_0000_400a)],
        ..Hit::default()
    });
    assert_eq!(
        world.out,
        "(0, 3, -1, 0, 4, 2)\n(false, false, true, false, true)\nyes\n"
    );
    assert_eq!(
        printed(
            "print((strcontains(\"ababac\", \"abac\"), strcontains(\"hello\\0test\", \"test\"), \
             strcontains(\"\", \"\"), strstr(\"ab\", \"abc\")));",
            0,
            0
        ),
        "(true, false, true, -1)\n"
    );
}

#[test]
fn types_and_values_have_sizes_and_fields_offsets() {
    assert_eq!(
        printed(
            "print((sizeof(uint8), sizeof(int16), sizeof(u32), sizeof(int64_t), sizeof(bool), \
             sizeof(typeof(int32)), sizeof((int16)arg0), sizeof(arg0), sizeof(\"abc\"), \
             sizeof(comm)));",
            0,
            0
        ),
        "(1, 2, 4, 8, 1, 4, 2, 8, 4, 16)\n"
    );
    assert_eq!(
        printed(
            "print((sizeof(File), offsetof(File, inode), offsetof(typeof(File), pos), \
             offsetof(File, mode), offsetof(File, name)));",
            0,
            0
        ),
        "(40, 0, 8, 17, 24)\n"
    );
}

#[test]
fn a_variable_without_a_type_takes_what_is_found() {
    let mut world = World::new(
        "kprobe:vfs_write { @t[1] = comm; @n[1] = -2; let $t; let $n; \
         if (find(@t, 1, $t)) { print($t); } if (find(@n, 1, $n)) { print($n); } }",
    );
    world.hit(&Hit::default());
    assert_eq!(world.out, "cat\n-2\n");
}

#[test]
fn random_numbers_have_32_bits_and_differ() {
    let mut world = World::new("kprobe:vfs_write { print(rand); print(rand() % 10 < 10); }");
    for tsc in 1000..1200 {
        world.hit(&Hit {
            tsc,
            ..Hit::default()
        });
    }
    let numbers: BTreeSet<u64> = world
        .out
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    assert_eq!(numbers.len(), 200);
    assert!(*numbers.last().unwrap() < 1 << 32);
    // Both halves of the range have some, and so have odd and even ones.
    for is in [
        |number: &u64| *number < 1 << 31,
        |number: &u64| *number >= 1 << 31,
        |number: &u64| number & 1 == 0,
        |number: &u64| number & 1 == 1,
    ] {
        assert!(numbers.iter().filter(|number| is(number)).count() > 60);
    }
    assert!(!world.out.contains("false"));
}

#[test]
fn call_stacks_have_three_forms() {
    assert_eq!(
        printed(
            "print(kstack(1)); print(kstack(perf, 1)); print(kstack(raw)); print(ustack(raw, 1)); \
             print(kstack(bpftrace)); print(len(kstack(perf)));",
            0,
            0
        ),
        "\n    vfs_write+1\n\n\n\tffff800000001001 vfs_write+1\n\n\n\
         ffff800000001001\nffff800000002020\n\n\n400010\n\n\n    vfs_write+1\n    \
         vfs_read+32\n\n2\n"
    );
}

#[test]
fn lines_tell_how_serious_they_are() {
    let mut world = World::new(
        "BEGIN { debugf(\"%d\\n\", 1); warnf(\"two %d\", 2); errorf(\"three\\n\"); \
         assert(1 == 1, \"no\"); print(\"on\"); assert(1 == 2, \"yes\"); print(\"never\"); }",
    );
    world.tick();
    assert_eq!(
        world.out,
        "1\nWARNING: two 2\nERROR: three\non\nERROR: assert failed: yes\n"
    );
    assert_eq!(world.status, Some(1));
}

#[test]
fn a_key_tells_whether_it_was_taken_away() {
    let mut world = World::new(
        "kprobe:vfs_write { @p[arg0] = 1; @c[arg0] = count(); @s = 5; \
         print((delete(@p[arg0]), delete(@p[arg0]), delete(@p, 99))); \
         print((delete(@c, arg0), delete(@c, arg0))); \
         print(delete(@s)); print(delete(@s)); \
         if (delete(@p[1])) { print(\"again\"); } delete(@s); @s = 6; }",
    );
    world.hit(&Hit {
        registers: vec![(Di, 1)],
        ..Hit::default()
    });
    assert_eq!(
        world.out,
        "(true, false, false)\n(true, false)\ntrue\nfalse\n"
    );
    world.out.clear();
    assert_eq!(world.maps(), "@s: 6\n");
}

#[test]
fn a_value_is_found_into_a_variable() {
    let mut world = World::new(
        "kprobe:vfs_write { @n[arg0] = -arg0; @t[arg0] = (arg0, comm); @s[arg0] = comm; \
         $n = (int64)9; if (find(@n, arg0, $n)) { print($n); } \
         if (!find(@n, 99, $n)) { print($n); } \
         if (find(@t, arg0, $pair)) { print($pair.1); print($pair.0); } \
         $text = \"some text before\"; print(find(@s, 99, $text)); \
         print($text); \
         print(find(@s, arg0, $text)); print($text); print($text == \"cat\"); }",
    );
    world.hit(&Hit {
        registers: vec![(Di, 3)],
        ..Hit::default()
    });
    assert_eq!(
        world.out,
        "-3\n-3\ncat\n3\nfalse\nsome text before\ntrue\ncat\ntrue\n"
    );
}

#[test]
fn stepping_a_key_gives_each_hit_its_own_number() {
    let mut world = World::new(
        "kprobe:vfs_write { print((@n[arg0]++, ++@n[arg0], @n[arg0]--, --@n[arg0])); @n[arg0]++; }",
    );
    for _ in 0..2 {
        world.hit(&Hit {
            registers: vec![(Di, 3)],
            ..Hit::default()
        });
    }
    assert_eq!(world.out, "(0, 2, 2, 0)\n(1, 3, 3, 1)\n");
    world.out.clear();
    assert_eq!(world.maps(), "@n[3]: 2\n\n");
}
