//! Answers as text, to the last blank.
//!
//! Programs run, and the text that the presentation makes of their records and maps is compared as
//! a whole.

use bpf::context::Register;
use trace_interface::script::Request;

use super::{
    fake::{READ, WRITE, compiled},
    world::{Hit, World},
};

fn hits(world: &mut World, values: &[u64]) {
    for value in values {
        world.hit(&Hit {
            registers: vec![(Register::Di, *value)],
            ..Hit::default()
        });
    }
}

#[test]
fn a_count_is_added_up_over_the_cpus_and_the_books_stand_behind_it() {
    let mut world = World::new("kprobe:vfs_write { @ = count(); }");
    for cpu in [0, 1, 1] {
        world.hit(&Hit {
            cpu,
            ..Hit::default()
        });
    }
    assert_eq!(
        world.end(),
        "@: 3\n3 hits = 2 recorded + 1 missed; not written: 2 (ring: full)\n"
    );
}

#[test]
fn entries_are_sorted_by_their_values_and_then_by_their_keys() {
    let mut world = World::new("kprobe:vfs_write { @calls[arg0, comm] = count(); }");
    hits(&mut world, &[5, 9, 5, 3]);
    assert_eq!(
        world.maps(),
        "@calls[3, cat]: 1\n@calls[9, cat]: 1\n@calls[5, cat]: 2\n\n"
    );
}

#[test]
fn a_histogram_has_a_row_for_each_power_of_two_between_its_ends() {
    let mut world = World::new("kprobe:vfs_write { @bytes = hist(arg0); }");
    hits(&mut world, &[0, 1, 5, 5, 1024, 2047]);
    let empty = " ".repeat(52);
    let half = format!("{}{}", "@".repeat(26), " ".repeat(26));
    let mut rows = format!("@bytes:\n[0]                    1 |{half}|\n");
    rows += &format!("[1]                    1 |{half}|\n");
    rows += &format!("[2, 4)                 0 |{empty}|\n");
    rows += &format!("[4, 8)                 2 |{}|\n", "@".repeat(52));
    for label in ["[8, 16)", "[16, 32)", "[32, 64)", "[64, 128)", "[128, 256)"] {
        rows += &format!("{label:<16}       0 |{empty}|\n");
    }
    for label in ["[256, 512)", "[512, 1K)"] {
        rows += &format!("{label:<16}       0 |{empty}|\n");
    }
    rows += &format!("[1K, 2K)               2 |{}|\n\n", "@".repeat(52));
    assert_eq!(world.maps(), rows);
}

#[test]
fn negative_values_have_a_row_of_their_own_in_histograms() {
    let mut world = World::new("kretprobe:vfs_read { @[tid] = hist(retval); }");
    for value in [-2_i64, -7, 1] {
        let entry = Hit {
            address: READ,
            ..Hit::default()
        };
        let on_return = Hit {
            registers: vec![(Register::Ax, value as u64)],
            address: READ,
            ..Hit::default()
        };
        world.call(&entry, &on_return);
    }
    let rows = format!(
        "@[7]:\n(..., 0)               2 |{}|\n[0]                    0 |{}|\n\
         [1]                    1 |{}{}|\n\n",
        "@".repeat(52),
        " ".repeat(52),
        "@".repeat(26),
        " ".repeat(26)
    );
    assert_eq!(world.maps(), rows);
}

#[test]
fn a_linear_histogram_has_rows_below_and_above_its_range() {
    let mut world = World::new("kprobe:vfs_write { @ = lhist(arg0, 10, 35, 10); }");
    hits(&mut world, &[9, 10, 19, 20, 34, 35, 1000]);
    let bar = |count: usize| format!("{}{}", "@".repeat(26 * count), " ".repeat(52 - 26 * count));
    let rows = [
        ("(..., 10)", 1),
        ("[10, 20)", 2),
        ("[20, 30)", 1),
        ("[30, 35)", 1),
        ("[35, ...)", 2),
    ];
    let rows = rows.map(|(label, count)| format!("{label:<16}{count:>8} |{}|\n", bar(count)));
    assert_eq!(world.maps(), format!("@:\n{}\n", rows.concat()));
}

/// A number with a sign may lie below a range that begins at 0 or below.
#[test]
fn a_negative_number_is_in_the_row_below_the_range_or_in_its_own() {
    let bar = |count: usize| format!("{}{}", "@".repeat(26 * count), " ".repeat(52 - 26 * count));
    for (value, bits) in [("(int64)arg0", u64::MAX), ("(int32)arg0", u32::MAX.into())] {
        for (bounds, rows) in [
            ("0, 10, 5", &[("(..., 0)", 2), ("[0, 5)", 1)][..]),
            (
                "-1, 3, 2",
                &[("[-1, 1)", 2), ("[1, 3)", 0), ("[3, ...)", 1)],
            ),
        ] {
            let mut world = World::new(&format!(
                "kprobe:vfs_write {{ @ = lhist({value}, {bounds}); }}"
            ));
            hits(
                &mut world,
                &[bits, if bounds.starts_with('0') { bits } else { 0 }, 4],
            );
            let rows = rows.iter();
            let rows =
                rows.map(|(label, count)| format!("{label:<16}{count:>8} |{}|\n", bar(*count)));
            let rows: String = rows.collect();
            assert_eq!(
                world.maps(),
                format!("@:\n{rows}\n"),
                "lhist({value}, {bounds})"
            );
        }
    }
}

#[test]
fn a_number_without_a_sign_is_in_the_last_bucket_however_large_it_is() {
    let bar = "@".repeat(52);
    for from in [0, -10] {
        let mut world = World::new(&format!(
            "kprobe:vfs_write {{ @ = lhist(arg0, {from}, 20, 10); }}"
        ));
        hits(&mut world, &[u64::MAX, 1 << 63]);
        assert_eq!(
            world.maps(),
            format!("@:\n{:<16}{:>8} |{bar}|\n\n", "[20, ...)", 2),
            "from {from}"
        );
    }
}

/// The number of a bucket has two bytes in the key of a map.
#[test]
fn a_linear_histogram_has_more_than_256_rows() {
    for (keys, name) in [("", "@:\n"), ("[pid]", "@[7]:\n")] {
        let mut world = World::new(&format!(
            "kprobe:vfs_write {{ @{keys} = lhist(arg0, 0, 600, 1); }}"
        ));
        hits(&mut world, &[300, 301, 301, 44]);
        let maps = world.maps();
        let rows = maps.lines().filter(|line| line.contains('@'));
        let rows: Vec<_> = rows
            .filter_map(|line| line.strip_prefix('[')?.split_once(' '))
            .map(|(row, rest)| (row, rest.trim_start().split(' ').next()))
            .collect();
        let expected = [("44]", Some("1")), ("300]", Some("1")), ("301]", Some("2"))];
        assert_eq!(rows, expected, "{maps}");
        assert!(maps.starts_with(name), "{maps}");
    }
}

#[test]
fn values_of_maps_are_divided_when_they_are_printed() {
    let mut world = World::new(
        "kprobe:vfs_write { $v = (int64)arg0; @sum = sum($v); @last = arg0; @avg = avg($v); \
         @max = max($v); } \
         end { print(@sum, 9, 10); print(@last, 9, 7); print(@avg, 9, 3); print(@max, 9, 1); }",
    );
    hits(&mut world, &[100, -400_i64 as u64, 60, 500]);
    world.tick();
    assert_eq!(world.out, "@sum: 26\n@last: 71\n@avg: 21\n@max: 500\n");
}

#[test]
fn time_counts_from_the_beginning_of_the_script() {
    let world = World::new("kprobe:vfs_write { print(1); }");
    // It starts at 500, and a tick takes 2 nanoseconds.
    for (tsc, nanoseconds) in [(500, 0), (501, 2), (1500, 2000), (499, -2)] {
        assert_eq!(
            world.presentation.nanoseconds_since_start(tsc),
            Some(nanoseconds)
        );
    }
}

#[test]
fn sums_extremes_averages_and_statistics() {
    let mut world = World::new(
        "kprobe:vfs_write { $v = (int64)arg0; @a = sum($v); @b[1] = sum($v); @c = min($v); \
         @d[1] = max($v); @e = avg($v); @f[1] = stats($v); @g[1] = min(arg0); @h = max(arg0); }",
    );
    hits(&mut world, &[10, -4_i64 as u64, 3]);
    assert_eq!(
        world.maps(),
        "@a: 9\n@b[1]: 9\n\n@c: -4\n@d[1]: 10\n\n@e: 3\n\
         @f[1]: { .count = 3, .average = 3, .total = 9 }\n\n\
         @g[1]: 3\n\n@h: 18446744073709551612\n"
    );
}

/// The sums of two processors and their average, as maps and as numbers of a program.
#[test]
fn sums_have_64_bits_and_wrap() {
    let sums = |value: &str, numbers: &[u64]| {
        let mut world = World::new(&format!(
            "kprobe:vfs_write {{ $v = {value}; @a = sum($v); @b = avg($v); @c[1] = stats($v); }} \
             end {{ printf(\"%d %d\\n\", (int64)@a, (int64)@b); }}"
        ));
        hits(&mut world, numbers);
        world.tick();
        let numbers = world.out.clone();
        world.out.clear();
        (world.maps(), numbers)
    };
    let most = i64::MAX as u64;
    let cases: [(&str, &[u64], &str, i64); 6] = [
        ("arg0", &[u64::MAX], "18446744073709551615", -1),
        ("arg0", &[u64::MAX, 1], "0", 0),
        ("arg0", &[u64::MAX, 3], "2", 2),
        ("(int64)arg0", &[most], "9223372036854775807", i64::MAX),
        ("(int64)arg0", &[most, 1], "-9223372036854775808", i64::MIN),
        (
            "(int64)arg0",
            &[most + 1, u64::MAX],
            "9223372036854775807",
            i64::MAX,
        ),
    ];
    for (value, numbers, sum, number) in cases {
        let count = numbers.len() as i128;
        let average = sum.parse::<i128>().unwrap() / count;
        let (maps, of_program) = sums(value, numbers);
        assert_eq!(
            maps,
            format!(
                "@a: {sum}\n@b: {average}\n\
                 @c[1]: {{ .count = {count}, .average = {average}, .total = {sum} }}\n\n"
            ),
            "{value} {numbers:?}"
        );
        let average = (average as u64).cast_signed();
        assert_eq!(
            of_program,
            format!("{number} {average}\n"),
            "{value} {numbers:?}"
        );
    }
}

#[test]
fn call_stacks_are_keys_with_a_line_for_each_frame() {
    let mut world = World::new("kprobe:vfs_write { @[kstack] = count(); }");
    hits(&mut world, &[1, 2]);
    world.call_stack = vec![READ + 2];
    hits(&mut world, &[3]);
    assert_eq!(
        world.maps(),
        "@[\n    vfs_read+2\n]: 1\n@[\n    vfs_write+1\n    vfs_read+32\n]: 2\n\n"
    );
}

#[test]
fn a_call_stack_with_two_numbers_is_one_key() {
    for (key, shown) in [
        ("kstack", "\n    vfs_write+1\n    vfs_read+32\n"),
        ("(kstack, 7)", "\n    vfs_write+1\n    vfs_read+32\n, 7"),
        (
            "1, (kstack, 7)",
            "1, (\n    vfs_write+1\n    vfs_read+32\n, 7)",
        ),
    ] {
        let mut world = World::new(&format!("kprobe:vfs_write {{ @[{key}] = count(); }}"));
        hits(&mut world, &[1]);
        world.call_stack = vec![READ + 2];
        hits(&mut world, &[2]);
        world.equal_stacks();
        assert_eq!(world.maps(), format!("@[{shown}]: 2\n\n"));
    }
}

#[test]
fn call_stacks_of_programs_have_the_names_of_the_program() {
    let mut world = World::new(
        "kprobe:vfs_write { @[ustack, comm] = count(); @own[kstack, ustack(1)] = count(); \
         print(ustack(1)); }",
    );
    hits(&mut world, &[1, 2]);
    assert_eq!(world.out, "\n    0x400010\n\n\n    0x400010\n\n");
    world.out.clear();
    world.user_call_stack.clear();
    hits(&mut world, &[3]);
    world.out.clear();
    let maps = world.maps();
    let expected = "@[\n    (no call stack)\n, cat]: 1\n\
                    @[\n    0x400010\n    cat::main+35\n, cat]: 2\n";
    assert!(maps.starts_with(expected), "{maps}");
    let own = "@own[\n    vfs_write+1\n    vfs_read+32\n, \n    0x400010\n]: 2\n";
    assert!(maps.contains(own), "{maps}");
}

#[test]
fn functions_and_probes_are_shown_by_name_and_one_program_serves_a_glob() {
    let mut world = World::new("kprobe:vfs_* { @[func] = count(); @p[probe] = count(); }");
    assert_eq!(world.script.programs.len(), 1);
    assert_eq!(world.script.attachments.len(), 1);
    for address in [READ, WRITE, READ] {
        world.hit(&Hit {
            address,
            ..Hit::default()
        });
    }
    assert_eq!(
        world.maps(),
        "@[vfs_write]: 1\n@[vfs_read]: 2\n\n\
         @p[kprobe:vfs_write]: 1\n@p[kprobe:vfs_read]: 2\n\n"
    );
}

#[test]
fn lines_show_values_as_their_conversions_say() {
    let mut world = World::new(
        "kprobe:vfs_write { printf(\"%d|%5d|%-5d|%05d|%x|%X|%o|%u|%c|%p|%%|%s|%10s|%-6s|%.2s\\n\", \
         (int8)arg0, 7, 7, -7, arg0, arg0, 8, -1, 65, arg0, comm, \"ab\", \"ab\", \"abc\"); }",
    );
    hits(&mut world, &[0xfe]);
    assert_eq!(
        world.out,
        "-2|    7|7    |-0007|fe|FE|10|18446744073709551615|A|0xfe|%|cat|        ab|ab    |ab\n"
    );
}

/// The sign is no part of a number, so no zeros follow it.
#[test]
fn what_is_not_there_is_padded_with_blanks() {
    let mut world = World::new(
        "kprobe:vfs_write { printf(\"%05d|%-5d|%3x|%#06x\\n\", args.inode.Some.links, \
         args.inode.Some.links, args.inode.Some.links, args.inode.Some.links); }",
    );
    hits(&mut world, &[0]);
    assert_eq!(world.out, "    -|-    |  -|     -\n");
}

#[test]
fn maps_are_printed_where_the_program_says_and_once_more_at_the_end() {
    let mut world = World::new(
        "kprobe:vfs_write { @n[arg0] = count(); @last = arg0; } \
         interval:s:1 { print(@n, 1); print(@n[5]); print(@last); clear(@n); }",
    );
    hits(&mut world, &[5, 6, 6]);
    world.tick();
    assert_eq!(world.out, "@n[6]: 2\n\n1\n@last: 6\n");
    world.out.clear();
    hits(&mut world, &[9]);
    assert_eq!(world.maps(), "@last: 9\n@n[9]: 1\n\n");
}

#[test]
fn values_and_elements_of_maps_are_printed_by_themselves() {
    let mut world = World::new(
        "kprobe:vfs_write { @t[tid] = (arg0, comm); print(@t[tid]); print((1, \"x\")); \
         print(arg0); print(comm); print(arg0 > 1); print(@t[tid].0 + 1); \
         printf(\"%s\\n\", @t[tid].1); }",
    );
    hits(&mut world, &[4]);
    assert_eq!(world.out, "(4, cat)\n(1, x)\n4\ncat\ntrue\n5\ncat\n");
}

#[test]
fn times_are_those_of_the_clock() {
    let mut world = World::new(
        "kprobe:vfs_write { printf(\"%d %d %s\\n\", nsecs, elapsed, \
         strftime(\"%F %H:%M:%S.%f\", nsecs)); time(\"%T\\n\"); }",
    );
    world.hit(&Hit {
        tsc: 500 + 500_000_000,
        ..Hit::default()
    });
    // Each reading of the counter adds a tick of 2 nanoseconds.
    assert_eq!(
        world.out,
        "1000001000 1000000002 1970-01-02 00:00:01.000000\n00:00:01\n"
    );
}

#[test]
fn letters_of_times_are_those_of_c() {
    let mut world = World::new("BEGIN { time(\"%j %b %a %I %p %e %D %R %z %Z\\n\"); }");
    world.tick();
    assert_eq!(world.out, "002 Jan Fri 12 AM  2 01/02/70 00:00 +0000 UTC\n");
}

#[test]
fn exit_tells_its_status() {
    let mut world = World::new("BEGIN { exit(3); } END { printf(\"bye\\n\"); }");
    world.tick();
    assert_eq!((world.status, &*world.out), (Some(3), "bye\n"));
}

#[test]
fn a_status_is_calculated_at_the_hit() {
    let mut world = World::new("kprobe:vfs_write { $status = arg0 * 2; exit($status); }");
    hits(&mut world, &[21]);
    assert_eq!(world.status, Some(42));
}

/// Names are those of the task's program, and an address that no function has is a number.
#[test]
fn an_address_of_a_program_has_the_name_of_its_function() {
    let mut world = World::new(
        "kprobe:vfs_write { print(usym(arg0)); @[usym(arg0)] = count(); @last = usym(arg0); \
         printf(\"%s|%20s\\n\", usym(arg0), usym(1)); }",
    );
    hits(&mut world, &[0x40_0104, 0x40_00ff, 0x40_0104]);
    let main = "cat::main\ncat::main|                 0x1\n";
    let none = "0x4000ff\n0x4000ff|                 0x1\n";
    assert_eq!(world.out, [main, none, main].concat());
    world.out.clear();
    assert_eq!(
        world.maps(),
        "@[0x4000ff]: 1\n@[cat::main]: 2\n\n@last: cat::main\n"
    );
}

/// The address is asked for, and nothing is shown.
#[test]
fn an_address_is_no_longer_watched_if_a_program_says_so() {
    let compiled = compiled("kprobe:vfs_write { unwatch(arg0 + 1); }");
    let asked = compiled.script.requests.contains(&Request::Unwatch);
    let mut world = World::new("kprobe:vfs_write { unwatch(arg0 + 1); }");
    hits(&mut world, &[1]);
    assert_eq!((asked, &*world.out), (true, ""));
}

/// That of the code that runs the program.
#[test]
fn the_stack_of_a_program_that_is_no_hit_is_known() {
    let mut world =
        World::new("begin { @[kstack(1), len(kstack)] = count(); } end { print(kstack(1)); }");
    world.tick();
    assert_eq!(world.out, "\n    vfs_write+1\n\n");
    world.out.clear();
    assert_eq!(world.maps(), "@[\n    vfs_write+1\n, 2]: 1\n\n");
}

#[test]
fn the_books_have_a_line_of_their_own() {
    let mut world = World::new("BEGIN { printf(\"no end\"); @a = 1; } END { printf(\"\"); }");
    world.tick();
    let text = world.end();
    assert!(text.starts_with("no end\n@a: 1\n"), "{text}");
}

#[test]
fn nothing_behind_exit_is_done() {
    let mut world = World::new(
        "BEGIN { for ($i : 0..9) { @turns = $i; if ($i == 4) { exit(1); } @whole = $i; } \
         @behind = 1; print(@turns); exit(2); } \
         BEGIN { @other = 1; exit(1); @behind = 2; }",
    );
    world.tick();
    assert_eq!((world.status, &*world.out), (Some(1), ""));
    assert_eq!(world.maps(), "@other: 1\n@turns: 4\n@whole: 3\n");
}

#[test]
fn a_pair_of_probes_measures_a_duration() {
    let mut world = World::new(
        "kprobe:vfs_write { @at[tid] = nsecs; } \
         kretprobe:vfs_write /@at[tid]/ { @ns = hist(nsecs - @at[tid]); delete(@at[tid]); }",
    );
    let at = |tsc| Hit {
        tsc,
        ..Hit::default()
    };
    world.call(&at(1000), &at(2000));
    assert_eq!(world.maps(), "");
    world.hit(&at(1000));
    world.call(&at(1000), &at(1250));
    assert_eq!(
        world.maps(),
        format!("@ns:\n[256, 512)             1 |{}|\n\n", "@".repeat(52))
    );
}

#[test]
fn maps_are_shown_meanwhile_and_the_end_is_as_if_they_were_not() {
    let compiled = super::fake::compiled("kprobe:vfs_write { @b[arg0] = count(); @a = count(); }");
    let number = |name: &str| {
        let maps = compiled.script.maps.iter();
        let at = maps.map(|map| &*map.name).position(|found| found == name);
        u32::try_from(at.unwrap()).unwrap()
    };
    let entry = |cpu, key: &[u8], value: u64| trace_interface::frame::MapEntry {
        cpu,
        key: key.to_vec(),
        value: value.to_le_bytes().to_vec(),
    };
    let key = 7_u64.to_le_bytes();
    let live = [
        (number("@b"), vec![entry(0, &key, 1), entry(1, &key, 2)]),
        (number("@a"), vec![entry(0, &[0; 4], 3)]),
    ];
    let mut out = String::new();
    let presentation = trace_answers::Presentation::new(compiled.view);
    presentation
        .live(&live.into(), &trace_answers::NoSymbols, &mut out)
        .unwrap();
    assert_eq!(out, "@a: 3\n@b[7]: 3\n\n");
    assert_eq!(presentation.maps().count(), 0);
}

#[test]
fn each_attachment_knows_its_probe_in_the_text() {
    let text = "kprobe:vfs_write, kprobe:vfs_read { @ = count(); } BEGIN { @x = 1; } \
                tracepoint:syscalls:sys_enter_open { @ = count(); }";
    let compiled = super::fake::compiled(text);
    let probes: Vec<(&str, Option<&str>)> = compiled
        .origins
        .iter()
        .map(|origin| {
            (
                &text[origin.span.start..origin.span.end],
                origin.event.as_deref(),
            )
        })
        .collect();
    assert_eq!(probes.len(), compiled.script.attachments.len());
    let event = "tracepoint:syscalls:sys_enter_open";
    assert!(probes.contains(&("BEGIN", None)), "{probes:?}");
    assert!(probes.contains(&(event, Some(event))), "{probes:?}");
    assert!(probes.contains(&("kprobe:vfs_write", None)), "{probes:?}");
}
