//! Maps of counts and the like, read and changed by programs.
//!
//! Programs run in a process, on several CPUs one after the other, and what they have gathered is
//! compared with the sum by hand.

use bpf::context::Register::{Di, Si};

use super::world::{Hit, World};

/// A hit on a CPU, with two arguments.
fn hit(cpu: u32, first: u64, second: u64) -> Hit {
    Hit {
        registers: vec![(Di, first), (Si, second)],
        cpu,
        tid: 7,
        ..Hit::default()
    }
}

#[test]
fn a_program_reads_what_all_cpus_have_counted() {
    let mut world = World::new(
        "kprobe:vfs_write { @n = count(); @k[arg0] = count(); @sum[arg0] = sum((int64)arg1); \
         @min[arg0] = min((int64)arg1); @max[arg0] = max((int64)arg1); @avg[arg0] = \
         avg((int64)arg1); @least = min(arg1); @most = max(arg1); @mean = avg(arg1); @all = \
         sum(arg1); } \
         interval:s:1 { printf(\"%d %d %d %d %d %d %u %u %u %u\\n\", @n, @k[1], @sum[1], \
         @min[1], @max[1], @avg[1], @least, @most, @mean, @all); \
         printf(\"%d %d %d %d %d %d\\n\", @k[2], @sum[2], @min[2], @max[2], @avg[2], \
         (int64)@n - 5); \
         if (@n > 2 && @k[1] == 3) { @seen = (int64)@n; \
         print(@max[1] < 0 ? \"below\" : \"above\"); } }",
    );
    world.tick();
    assert_eq!(world.out, "0 0 0 0 0 0 0 0 0 0\n0 0 0 0 0 -5\n");
    world.out.clear();
    for (cpu, value) in [(0, -7_i64), (1, -3), (3, -20)] {
        world.hit(&hit(cpu, 1, value as u64));
    }
    world.tick();
    let (least, most) = (-20_i64 as u64, -3_i64 as u64);
    let mean = (-30_i64 as u64) / 3;
    assert_eq!(
        world.out,
        format!(
            "3 3 -30 -20 -3 -10 {least} {most} {mean} {}\n0 0 0 0 0 -2\nbelow\n",
            -30_i64 as u64
        )
    );
    world.out.clear();
    assert!(world.maps().contains("@seen: 3\n"));
}

/// By hand: the sums are -30 and -31, the averages -10 and -10, toward zero as C divides.
#[test]
fn aggregates_below_zero_are_those_of_all_cpus() {
    let mut world = World::new(
        "kprobe:vfs_write { @avg[arg0] = avg((int64)arg1); @sum = sum((int64)arg1); \
         @min = min((int64)arg1); @max = max((int64)arg1); @stats = stats((int64)arg1); \
         @hist = hist((int64)arg1); @lhist = lhist((int64)arg1, 0, 10, 5); } \
         interval:s:1 { print(@avg, 0, 3); print(@sum, 0, 3); print(@stats, 0, 3); \
         print(@max, 0, 2); print(@hist, 0, 2); }",
    );
    for (cpu, value) in [(0, -7_i64), (1, -3), (3, -20), (2, -1)] {
        world.hit(&hit(cpu, 1, value as u64));
    }
    world.tick();
    assert_eq!(
        world.out,
        format!(
            "@avg[1]: -2\n\n@sum: -10\n@stats: {{ .count = 4, .average = -2, .total = -31 }}\n\
             @max: 0\n\
             @hist:\n(..., 0)               2 |{}|\n\n",
            "@".repeat(52)
        )
    );
    world.out.clear();
    assert_eq!(
        world.maps(),
        format!(
            "@avg[1]: -7\n\n@hist:\n(..., 0)               4 |{0}|\n\n\
             @lhist:\n(..., 0)               4 |{0}|\n\n\
             @max: -1\n@min: -20\n@stats: {{ .count = 4, .average = -7, .total = -31 }}\n\
             @sum: -31\n",
            "@".repeat(52)
        )
    );
}

/// As bpftrace does, so that a script sees that it runs before anything was hit.
#[test]
fn a_map_without_keys_is_zero_before_anything_is_assigned() {
    let mut world = World::new(
        "BEGIN { print(@p); print(@c); print(@s); print(@a); print(@t); print(@h); print(@k); } \
         kprobe:vfs_write { @p = arg0; @c = count(); @s = stats(arg0); @a = avg(arg0); \
         @t = comm; @h = hist(1); @k[1] = 1; }",
    );
    world.tick();
    assert_eq!(
        world.out,
        "@p: 0\n@c: 0\n@s: { .count = 0, .average = 0, .total = 0 }\n@a: 0\n@t: \n"
    );
}

#[test]
fn a_map_of_some_signed_numbers_is_signed() {
    let mut world = World::new(
        "kprobe:vfs_write { @max = max(arg0); @min = min(arg0); @avg = avg(7); } \
         kprobe:vfs_read { @max = max(-5); @min = min(-5); @avg = avg(-9); } \
         kprobe:vfs_write { @address = max(0); @address = max(arg1); }",
    );
    let read = Hit {
        address: super::fake::READ,
        ..hit(1, 0, 0)
    };
    world.hit(&read);
    world.hit(&hit(0, 3, u64::MAX - 1));
    assert_eq!(
        world.maps(),
        "@address: 18446744073709551614\n@avg: -1\n@max: 3\n@min: -5\n"
    );
}

#[test]
fn statistics_are_sorted_by_their_totals_and_averages_by_themselves() {
    let mut world =
        World::new("kprobe:vfs_write { @s[arg0] = stats(arg1); @a[arg0] = avg(arg1); }");
    for (cpu, key, value) in [(0, 1, 10), (0, 2, 3), (1, 2, 4), (2, 2, 5)] {
        world.hit(&hit(cpu, key, value));
    }
    assert_eq!(
        world.maps(),
        "@a[2]: 4\n@a[1]: 10\n\n@s[1]: { .count = 1, .average = 10, .total = 10 }\n\
         @s[2]: { .count = 3, .average = 4, .total = 12 }\n\n"
    );
}

#[test]
fn a_histogram_that_was_set_to_zero_is_not_shown() {
    let mut world = World::new(
        "kprobe:vfs_write { @h = hist(arg0); @k[arg1] = hist(arg0); } \
         interval:s:1 { zero(@h); zero(@k); }",
    );
    world.hit(&hit(0, 3, 1));
    assert!(world.maps().contains("@h:\n[2, 4)"));
    world.tick();
    assert_eq!(world.maps().trim(), "");
}

/// What an expression cannot have is printed as it is in the map.
#[test]
fn one_entry_of_a_map_of_histograms_or_statistics_is_printed() {
    let mut world = World::new(
        "kprobe:vfs_write { @h[arg0] = hist(arg1); @s[arg0, comm] = stats(arg1); } \
         interval:s:1 { print(@h[2]); print(@s[2, \"cat\"]); print(@h[9]); }",
    );
    for (cpu, key, value) in [(0, 1, 1), (0, 2, 5), (1, 2, 6)] {
        world.hit(&hit(cpu, key, value));
    }
    world.tick();
    assert_eq!(
        world.out,
        format!(
            "@h[2]:\n[4, 8)                 2 |{}|\n\n\
             @s[2, cat]: {{ .count = 2, .average = 5, .total = 11 }}\n\n",
            "@".repeat(52)
        )
    );
}

#[test]
fn one_key_of_a_map_of_counts_is_taken_away_on_all_cpus() {
    let mut world = World::new(
        "kprobe:vfs_write { @c[arg0] = count(); @s[arg0, comm] = stats(arg1); @h[arg0] = \
         hist(arg1); @l = lhist(arg1, 0, 10, 5); @n = count(); @p[arg0] = arg1; @z[arg0] = arg1; } \
         kprobe:vfs_read { delete(@c[arg0]); delete(@s, (arg0, comm)); clear(@h[arg0]); \
         delete(@l); zero(@n); delete(@p, arg0); zero(@z[arg0]); zero(@z[99]); \
         print(has_key(@c, arg0)); print(has_key(@c, 2)); print(has_key(@p, 2)); \
         print(has_key(@p[arg0]) || @c[2] != 1); }",
    );
    for cpu in [0, 2] {
        world.hit(&hit(cpu, 1, 5));
    }
    world.hit(&hit(1, 2, 6));
    world.hit(&Hit {
        address: super::fake::READ,
        ..hit(1, 1, 0)
    });
    assert_eq!(world.out, "false\ntrue\ntrue\nfalse\n");
    world.out.clear();
    assert_eq!(
        world.maps(),
        "@c[2]: 1\n\n@h[2]:\n[4, 8)                 1 \
         |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|\n\n@p[2]: 6\n\n\
         @s[2, cat]: { .count = 1, .average = 6, .total = 6 }\n\n@z[1]: 0\n@z[2]: 6\n\n"
    );
}

#[test]
fn keys_of_maps_and_frames_of_stacks_are_counted() {
    let mut world = World::new(
        "kprobe:vfs_write { @n[arg0] = count(); @one[arg0, arg1] = arg1; @stack = kstack(1); \
         printf(\"%d %d %d %d\\n\", len(kstack), len(kstack(1)), len(ustack), len(@stack)); } \
         interval:s:1 { printf(\"%d %d\\n\", len(@n), len(@one)); }",
    );
    world.tick();
    world.hit(&hit(0, 1, 1));
    world.hit(&hit(1, 1, 2));
    world.user_call_stack.clear();
    world.hit(&hit(1, 2, 2));
    world.tick();
    assert_eq!(world.out, "0 0\n2 1 2 1\n2 1 2 1\n2 1 0 1\n2 3\n");
}

/// The third key finds no room.
#[test]
fn a_declared_map_has_so_many_keys() {
    let mut world = World::new(
        "let @n = hash(2); let @c = percpuhash(2); let @unused = hash(9); kprobe:vfs_write { \
         @n[arg0] = arg1; @c[arg0] = count(); }",
    );
    let entries = |name: &str| {
        let mut maps = world.script.maps.iter();
        maps.find(|map| map.name == name).map(|map| map.entries)
    };
    assert_eq!((entries("@n"), entries("@c")), (Some(2), Some(2)));
    assert_eq!(entries("@unused"), None);
    for first in 1..4 {
        world.hit(&hit(0, first, 7));
    }
    assert_eq!(world.maps(), "@c[1]: 1\n@c[2]: 1\n\n@n[1]: 7\n@n[2]: 7\n\n");
}

/// The key that was not used for longest makes room: read, changed in whatever way, or looked for.
#[test]
fn a_map_that_forgets_keeps_the_keys_that_are_used() {
    let mut world = World::new(
        "let @n = lruhash(4); let @sum = lruhash(2); let @text = lruhash(2); kprobe:vfs_write { \
         if (arg0 == 0) { @found += @n[1]; @n[2]++; @n[3] = 33; } \
         else { @n[arg0] = arg0; } \
         @sum[arg0] += 5; @text[\"k\", arg0] = \"v\"; \
         if (has_key(@text, (\"k\", 1))) { @kept = 1; } }",
    );
    for first in [1, 2, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0, 8] {
        world.hit(&hit(0, first, 7));
    }
    assert_eq!(
        world.maps(),
        "@found: 5\n@kept: 1\n@n[1]: 1\n@n[2]: 7\n@n[8]: 8\n@n[3]: 33\n\n@sum[8]: 5\n@sum[0]: 25\n\
         \n@text[k, 1]: v\n@text[k, 8]: v\n\n"
    );
}
