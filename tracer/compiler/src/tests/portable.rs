//! What bpftrace refuses with a good reason is refused here, too: a text that is taken means the
//! same there.
//!
//! Each refusal has a text beside it that is nearly the same and holds.

use super::{
    fake::{Fake, compiled_with},
    world::{Hit, World},
};
use crate::Options;

/// The message and its help.
fn refusal(text: &str) -> String {
    let Err(told) = compiled_with(text, &Fake::new(), &Options::default()) else {
        panic!("{text} compiles");
    };
    let lines = told.lines().filter_map(|line| {
        line.strip_prefix("error: ")
            .or_else(|| line.split_once("= help: ").map(|(_, help)| help))
    });
    lines.collect::<Vec<_>>().join(" | ")
}

/// What a program prints, and its maps, after a hit, a tick and the end.
fn printed(text: &str) -> String {
    let mut world = World::new(text);
    world.hit(&Hit::default());
    world.tick();
    world.maps()
}

#[test]
fn a_map_that_counts_is_not_assigned_to_a_new_one() {
    for function in ["count()", "sum(5)", "min(5)", "max(5)", "avg(5)"] {
        let text = format!("kprobe:vfs_write {{ @y = {function}; @x = @y; }}");
        assert_eq!(
            refusal(&text),
            "`@y` counts or gathers, and `@x` would not go on with that | for the number of now \
             write `@x = (int64)@y;`, and to count in both assign the call to both",
            "{function}"
        );
    }
    // The order of the text does not matter.
    let text = "kprobe:vfs_write { @x[1] = @y[2]; @y[2] = count(); }";
    assert!(refusal(text).starts_with("`@y` counts or gathers"));
    for (text, maps) in [
        (
            "kprobe:vfs_write { @y = sum(5); @x = (int64)@y; }",
            "@x: 5\n@y: 5\n",
        ),
        // One that holds numbers by another assignment takes this as one.
        (
            "kprobe:vfs_write { @y = sum(5); @x = @y; } interval:s:1 { @x = 7; }",
            "@x: 7\n@y: 5\n",
        ),
        (
            "kprobe:vfs_write { @y = \"text\"; @x = @y; } interval:s:1 { @z = @x; }",
            "@x: text\n@y: text\n@z: text\n",
        ),
    ] {
        assert_eq!(printed(text), maps, "{text}");
    }
}

#[test]
fn maps_that_are_assigned_to_each_other_have_the_type_of_the_last() {
    let mut text = String::from("interval:s:1 { ");
    for map in 0..13 {
        text += &format!("@m{map} = @m{}; ", map + 1);
    }
    text += "} kprobe:vfs_write { @m13 = \"text\"; }";
    assert!(printed(&text).contains("@m12: text\n"));
    assert_eq!(
        refusal("kprobe:vfs_write { @a = @b; @b = @a; }")
            .split(" | ")
            .next(),
        Some("`@a` is used, but nothing is ever assigned to it")
    );
}

#[test]
fn a_declared_text_or_tuple_keeps_its_room() {
    let text = "kprobe:vfs_write { let $x: string[3] = \"hi\"; $x = \"longer\"; }";
    assert_eq!(
        refusal(text),
        "the text has up to 7 bytes with its end, and these are 3 | make it longer, or take less \
         of the text: str(address, bytes)"
    );
    let text = "kprobe:vfs_write { let $x: string[3]; $x = comm; }";
    assert!(refusal(text).starts_with("the text has up to 16 bytes"));
    let text = "kprobe:vfs_write { let $x: string[3]; $x = \"hi\"; print($x); let $y: string = \
                \"hi\"; $y = \"longer\"; print($y); }";
    assert_eq!(printed(text), "hi\nlonger\n");
    for statements in [
        "let $x: typeof($a) = (1, \"a text that is longer\");",
        "let $x: typeof($a) = (2, \"by\"); $x = (1, \"a text that is longer\");",
        "let $x: typeof($a); $x = (1, 2);",
    ] {
        let text = format!("kprobe:vfs_write {{ $a = (1, \"hi\"); {statements} }}");
        let told = refusal(&text);
        assert!(
            told.contains("and cannot become a tuple (a number, a text)"),
            "{told}"
        );
    }
    let text = "kprobe:vfs_write { $a = (1, \"hi\"); let $x: typeof($a); print($x); \
                $x = (-2, \"by\"); print($x); }";
    assert_eq!(printed(text), "(0, )\n(-2, by)\n");
}

#[test]
fn variables_that_are_assigned_to_each_other_alone_have_no_type() {
    assert_eq!(
        refusal("kprobe:vfs_write { let $a; let $b; $b = $a; $a = $b; }"),
        "`$a` has no value here | assign to it first: `$a = …;` | `$b` has no value here | assign \
         to it first: `$b = …;`"
    );
    let text = "kprobe:vfs_write { let $a; let $b; $b = $a; $a = true; $b = $a; print($b); }";
    assert_eq!(printed(text), "true\n");
}

#[test]
fn what_only_a_loop_over_a_map_assigns_has_no_value_after_it() {
    let body = "for ($kv : @m) { $x = $kv.1; }";
    assert_eq!(
        refusal(&format!("interval:s:1 {{ @m[1] = 5; {body} print($x); }}")),
        "`$x` has no value here | assign to it first: `$x = …;`"
    );
    let text = format!("interval:s:1 {{ @m[1] = 5; $x = 0; {body} print($x); }}");
    assert_eq!(printed(&text), "5\n@m[1]: 5\n\n");
    // Inside of it, and in the next loop, it is a new one.
    let text = "interval:s:1 { @m[1] = 5; for ($kv : @m) { $x = $kv.1; if ($x) { $x++; } \
                print($x); } \
                for ($kv : @m) { $x = \"text\"; print($x); } }";
    assert_eq!(printed(text), "6\ntext\n@m[1]: 5\n\n");
}

#[test]
fn a_series_is_refused_where_the_program_says_so() {
    let text = |word: &str| {
        format!(
            "config = {{ unstable_tseries={word} }} \
             kprobe:vfs_write {{ @ = tseries(4, 1s, 10); }}"
        )
    };
    assert_eq!(
        refusal(&text("error")),
        "the program refuses tseries itself, by unstable_tseries=error | set \
         unstable_tseries=enable, or take the setting out"
    );
    for word in ["warn", "enable"] {
        assert!(compiled_with(&text(word), &Fake::new(), &Options::default()).is_ok());
    }
}

#[test]
fn a_result_with_a_number_below_zero_is_signed() {
    for number in [
        "0x7fffffffffffffff - (-1)",
        "-9223372036854775808 / -1",
        "-9223372036854775808 * -1",
    ] {
        assert_eq!(
            refusal(&format!("begin {{ print({number}); }}")),
            "this number does not fit into 64 bits with a sign | with a number below zero the \
             result is signed, up to 9223372036854775807",
            "{number}"
        );
    }
    let text = "interval:s:1 { print(0x7fffffffffffffff + 1); print(0x7ffffffffffffffe - (-1)); \
                print(-9223372036854775807 * -1); }";
    assert_eq!(
        printed(text),
        "9223372036854775808\n9223372036854775807\n9223372036854775807\n"
    );
}

#[test]
fn a_histogram_of_powers_of_two_has_parts_of_them() {
    assert_eq!(
        printed("kprobe:vfs_write { @ = hist(5, 0); }"),
        printed("kprobe:vfs_write { @ = hist(5); }")
    );
    for (bits, values) in [
        (1, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 15, 16][..]),
        (
            2,
            &[
                0, 3, 7, 8, 9, 10, 13, 14, 15, 16, 19, 20, 1023, 1024, 1279, 1280,
            ],
        ),
        (
            5,
            &[
                31,
                32,
                63,
                64,
                65,
                66,
                127,
                128,
                131,
                132,
                u64::MAX >> 1,
                1 << 63,
                u64::MAX,
            ],
        ),
        (3, &[1 << 32, (1 << 32) - 1, 0x1_2000_0000, 0x1_1fff_ffff]),
    ] {
        for value in values {
            let mut world = World::new(&format!(
                "kprobe:vfs_write {{ @ = hist(arg0, {bits}); @k[1] = hist(arg0, {bits}); }}"
            ));
            world.hit(&Hit {
                registers: vec![(bpf::context::Register::Di, *value)],
                ..Hit::default()
            });
            // Of the bits after the first one, so many count.
            let rest = (64 - value.leading_zeros()).saturating_sub(bits + 1);
            let low = i128::from(value >> rest << rest);
            let maps = world.maps();
            let rows: Vec<&str> = maps
                .lines()
                .filter(|line| line.contains('@') && line.contains('|'))
                .collect();
            assert_eq!(rows.len(), 2, "{maps}");
            for row in rows {
                let label = row.split_once([']', ')']).unwrap().0;
                let bound = |text: &str| -> i128 {
                    let unit = text.trim_start_matches(|letter: char| letter.is_ascii_digit());
                    let digits = text.strip_suffix(unit).unwrap();
                    let power = " KMGTPE"
                        .find(unit)
                        .filter(|_| !unit.is_empty())
                        .unwrap_or(0);
                    digits.parse::<i128>().unwrap() << (10 * power)
                };
                let (begin, end) = match label[1..].split_once(", ") {
                    Some((begin, end)) => (bound(begin), bound(end)),
                    None => (bound(&label[1..]), bound(&label[1..]) + 1),
                };
                assert_eq!(
                    (begin, end),
                    (low, low + (1 << rest)),
                    "{value} in parts of {bits}: {row}"
                );
            }
        }
    }
    let maps = printed("kprobe:vfs_write { @ = hist((int64)-3, 2); @ = hist((int64)6, 2); }");
    assert!(maps.contains("(..., 0)               1 |"), "{maps}");
    assert!(maps.contains("[6]                    1 |"), "{maps}");
    assert_eq!(
        refusal("kprobe:vfs_write { @ = hist(5, 6); }"),
        "this must be a number of the text, 0 to 5"
    );
    let two = refusal("kprobe:vfs_write { @ = hist(5, 1); @ = hist(5, 2); }");
    assert!(two.contains("hist() in other parts"), "{two}");
}

#[test]
fn a_parameter_of_a_macro_is_no_word_of_the_language() {
    assert_eq!(
        refusal("macro of(pid) { pid } begin { print(of(1)); }"),
        "`pid` is a word of the language, which the body would not see | give the parameter \
         another name"
    );
    assert_eq!(
        printed(
            "macro of($pid, @comm) { $pid } interval:s:1 { $a = 3; @m = 1; print(of($a, @m)); }"
        ),
        "3\n@m: 1\n"
    );
}
