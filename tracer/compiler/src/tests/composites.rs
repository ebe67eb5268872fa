//! Tuples, records, arrays and texts of the program: parts, comparisons, casts, keys.
//!
//! Each program runs once, with 3 in `arg0` and 0x0102030405060708 in `arg1`, in a task `cat`.

use bpf::context::Register::{Di, Si};

use super::{
    fake::{Fake, compiled_with},
    values::{with_file, write_hit},
    world::{Hit, World},
};
use crate::Options;

/// What a block prints, and the maps after it.
pub(super) fn run(block: &str) -> String {
    let mut world = World::new(&format!("kprobe:vfs_write {{ {block} }}"));
    world.hit(&Hit {
        registers: vec![(Di, 3), (Si, 0x0102_0304_0506_0708)],
        ..Hit::default()
    });
    assert_eq!(world.faults, 0, "{block}");
    let out = core::mem::take(&mut world.out);
    out + world.maps().trim_end()
}

fn all(blocks: &[(&str, &str)]) {
    for (block, shown) in blocks {
        assert_eq!(run(block).trim_end(), *shown, "{block}");
    }
}

/// The cause that a block is refused for.
fn cause(block: &str) -> String {
    let text = format!("kprobe:vfs_write {{ {block} }}");
    match compiled_with(&text, &Fake::new(), &Options::default()) {
        Ok(_) => panic!("{block} is taken"),
        Err(errors) => errors,
    }
}

#[test]
fn records_have_fields_with_names() {
    all(&[
        (
            "$v = (x=1, y=arg0); $r = (a=0, b=comm, c=(5, 6), d=$v); print($r); \
             printf(\"%d %s %d %d\\n\", $r.a, $r.b, $r.c.1, $r.d.y);",
            "{ .a = 0, .b = cat, .c = (5, 6), .d = { .x = 1, .y = 3 } }\n0 cat 6 3",
        ),
        ("print((a=arg0).a);", "3"),
        (
            "@r = (n=arg0, s=\"ab\"); print(@r.n + 1); $r = @r; print($r.s);",
            "4\nab\n@r: { .n = 3, .s = ab }",
        ),
        (
            "@[(x=arg0, y=\"a\")] = count(); @[(y=\"a\", x=3)] = count();",
            "@[{ .x = 3, .y = a }]: 2",
        ),
        // The order is that of the first, and names tell which value is which.
        (
            "$r = (a=1, b=\"x\"); $r = (b=\"longer than that\", a=2); print($r);",
            "{ .a = 2, .b = longer than that }",
        ),
        (
            "@ = (a=1, b=\"x\"); @ = (b=\"longer than that\", a=2);",
            "@: { .a = 2, .b = longer than that }",
        ),
    ]);
    let cause_of_name = cause("$r = (a=1); print($r.b);");
    assert!(
        cause_of_name.contains("the record has no field `b`"),
        "{cause_of_name}"
    );
    assert!(cause("$r = (a=1); $r = (b=1);").contains("`$r` holds a record"));
    assert!(cause("print((a=1) + 1);").contains("compared with == and != only"));
}

#[test]
fn one_tuple_and_several_keys_are_the_same() {
    all(&[
        (
            "@[\"k\", 1] = 5; $t = (\"k\", 1); print(@[$t]); print(@[(\"k\", 1)]); \
             @[$t] = 7; print(@[\"k\", 1]);",
            "5\n5\n7\n@[k, 1]: 7",
        ),
        // Shorter texts in a tuple are stored as those of the keys.
        (
            "@[3, \"a longer text\"] = 1; $t = (3, \"hi\"); @[$t] = 2; @[3, \"hi\"] += 5;",
            "@[3, a longer text]: 1\n@[3, hi]: 7",
        ),
        (
            "@[1, (2, \"x\")] = 1; $k = (2, \"x\"); @[1, $k] += 1; @all = (1, (2, \"x\")); \
             @[@all] += 1;",
            "@[1, (2, x)]: 3\n\n@all: (1, (2, x))",
        ),
        (
            "@[arg0, comm] = count(); @[(arg0, comm)] = count();",
            "@[3, cat]: 2",
        ),
        (
            "$t = (arg0, comm); @[$t] = hist(2); delete(@, $t); print(1);",
            "1",
        ),
    ]);
    let refused = cause("@[1, 2] = 1; @[3] = 1;");
    assert!(
        refused.contains("`@` has 2 keys elsewhere, and 1 here"),
        "{refused}"
    );
}

#[test]
fn a_key_of_a_loop_deletes_its_entry() {
    let mut world = World::new(
        "kprobe:vfs_write { @a[\"k\", arg0] = 1; @a[\"a longer one\", 2] = 2; } \
         interval:s:1 { for ($kv : @a) { if ($kv.1 == 1) { delete(@a, $kv.0); } \
         else { @b[$kv.0] = $kv.1 } } }",
    );
    world.hit(&Hit::default());
    world.tick();
    assert_eq!(
        world.maps(),
        "@a[a longer one, 2]: 2\n\n@b[a longer one, 2]: 2\n\n"
    );
}

#[test]
fn a_variable_has_room_for_each_value_that_it_is_given() {
    let long = "x".repeat(60);
    all(&[
        (
            "$t = (1, \"hi\"); $t = (3, \"hellolongstring\"); print($t);",
            "(3, hellolongstring)",
        ),
        (
            "$t = (1, (\"hi\", 2)); if (arg0 == 3) { $t = (3, (\"hellolongstring\", 4)); } \
             print($t);",
            "(3, (hellolongstring, 4))",
        ),
        (
            "@m = (1, \"a long one at first\"); $t = (2, \"b\"); $t = @m; print($t); \
             @m = (5, \"c\");",
            "(1, a long one at first)\n@m: (5, c)",
        ),
        ("$t = (1, arg0); $t = ($t.1, $t.0); print($t);", "(3, 1)"),
        (&format!("$s = \"a\"; $s = \"{long}\"; print($s);"), &long),
        (
            "$s = \"longer\"; $s = comm; print($s); $s = \"z\"; print($s);",
            "cat\nz",
        ),
    ]);
    let refused = cause("$t = (1, 2); $t = (4, \"other\");");
    assert!(
        refused.contains("`$t` holds a tuple (a number, a number)"),
        "{refused}"
    );
}

#[test]
fn composite_values_are_equal_if_all_parts_are() {
    all(&[
        (
            "$a = (arg0, \"really a long text\"); $b = (3, \"really a long text\"); \
             print($a == $b); print($a != $b); $b = (3, \"bye\"); print($a == $b); \
             print((1, (2, comm)) == (1, (2, \"cat\"))); \
             print((1, (2, comm)) == (1, (3, \"cat\")));",
            "true\nfalse\nfalse\ntrue\nfalse",
        ),
        (
            "$r = (a=arg0, b=2); if ($r == (b=2, a=3)) { print(\"same\"); } \
             if ($r != (b=3, a=2)) { print(\"other\"); }",
            "same\nother",
        ),
        (
            "$a = (int8[8])arg1; $b = (int8[8])72623859790382856; print($a == $b); \
             print($a == (int8[8])1);",
            "true\nfalse",
        ),
        ("@ = (1, \"x\"); print(@ == (1, \"x\"));", "true\n@: (1, x)"),
    ]);
    for (block, why) in [
        ("print((1, 2) == (1, 2, 3));", "cannot be compared with"),
        ("print((1, \"a\") == (1, 2));", "cannot be compared with"),
        ("print((a=1) == (b=1));", "cannot be compared with"),
        ("print((1, 2) < (1, 2));", "with == and != only"),
        (
            "print((int8[4])1 == (int8[2])1);",
            "cannot be compared with",
        ),
    ] {
        let cause = cause(block);
        assert!(cause.contains(why), "{cause}");
    }
}

/// Only some of its elements are there to be compared.
#[test]
fn a_list_of_which_a_part_is_kept_is_not_compared() {
    for statements in [
        "$x = args.block; print($x == args.block);",
        "$x = (1, args.block); print($x != $x);",
        "$x = (a=args.block); print($x == $x);",
        "@x = args.block; print(@x == args.block);",
    ] {
        let text = format!("kprobe:vfs_open {{ {statements} }}");
        let refused = compiled_with(&text, &Fake::new(), &Options::default());
        let told = refused.err().unwrap();
        assert!(
            told.starts_with("error: only the first elements of this list are kept, so it is"),
            "{told}"
        );
    }
    let text = "kprobe:vfs_open { $x = args.triple; print($x == args.triple); }";
    assert!(compiled_with(text, &Fake::new(), &Options::default()).is_ok());
}

#[test]
fn bytes_are_equal_if_all_are() {
    let equal = |a: &str, b: &str| {
        let of = |text: &str| format!("buf({text:?}, {})", text.len());
        run(&format!("print({} == {});", of(a), of(b)))
    };
    for (a, b) in [
        ("abcdefgh", "abcdefgX"),
        ("abcdefgh", "Xbcdefgh"),
        ("abcdefghi", "abcdefghX"),
        ("abcdefghijklmnopq", "abcdefghiXklmnopq"),
        ("ab", "abc"),
    ] {
        assert_eq!(equal(a, a), "true\n", "{a}");
        assert_eq!(equal(a, b), "false\n", "{a} {b}");
    }
}

#[test]
fn one_of_two_composite_values_is_chosen() {
    all(&[
        (
            "$t = arg0 == 3 ? (\"a\", arg0) : (\"hellolongstring\", 2); print($t); \
             print(arg0 != 3 ? (\"a\", arg0) : (\"hellolongstring\", 2));",
            "(a, 3)\n(hellolongstring, 2)",
        ),
        (
            "print(arg0 == 3 ? (a=1, b=\"x\") : (b=\"yyyyyyyyyyy\", a=2)); \
             print(arg0 == 4 ? (a=1, b=\"x\") : (b=\"yyyyyyyyyyy\", a=2));",
            "{ .a = 1, .b = x }\n{ .a = 2, .b = yyyyyyyyyyy }",
        ),
    ]);
    assert!(cause("print(arg0 ? (1, 2) : (1, \"a\"));").contains("this is a tuple"));
}

#[test]
fn parts_are_taken_by_an_index() {
    all(&[
        (
            "$t = (1, \"two\", arg0); print($t[1 + 1]); print($t[1]);",
            "3\ntwo",
        ),
        (
            "$a = (uint8[8])arg1; print($a[0]); $i = 5; print($a[$i]); $i = 8; print($a[$i]);",
            "8\n3\n-",
        ),
        (
            "@a[1] = (int16[4])-2; print(@a[1][0]); print(@a[1][arg0]); @b = @a[1];",
            "-2\n-1\n@a[1]: [-2, -1, -1, -1]\n\n@b: [-2, -1, -1, -1]",
        ),
        (
            "$s = \"foo\"; printf(\"%c%d \", $s[0], $s[3]); printf(\"%c \", comm[arg0 - 1]); \
             if (comm[0] == 99) { print(\"c\"); }",
            "f0 t c",
        ),
    ]);
    assert!(cause("$t = (1, 2); print($t[2]);").contains("this has 2 parts"));
    assert!(cause("$t = (1, 2); print($t[arg0]);").contains("types of their own"));
    assert!(cause("$a = (int8[2])1; print($a[2]);").contains("this has 2 parts"));
}

#[test]
fn values_become_arrays_and_texts() {
    all(&[
        ("print((int8[])\"hello\");", "[104, 101, 108, 108, 111, 0]"),
        (
            "print((int8[4])\"cat\"); print(((uint8[])comm)[1]);",
            "[99, 97, 116, 0]\n97",
        ),
        (
            "print((uint8[8])arg1); print((uint32[2])arg1); print((int64[1])arg1);",
            "[8, 7, 6, 5, 4, 3, 2, 1]\n[84281096, 16909060]\n[72623859790382856]",
        ),
        (
            "print((int8[])12345); print((bool[2])(uint16)256);",
            "[57, 48]\n[false, true]",
        ),
        (
            "@[(int8[2])513] = 1; print(@[(int8[2])513]);",
            "1\n@[[1, 2]]: 1",
        ),
        (
            "$a = (uint8[4])0x01020304; print((int32)$a); print((uint16)(uint8[2])0xfffe);",
            "16909060\n65534",
        ),
        (
            "$s = (string[10])\"hello\"; print($s); print((string)comm);",
            "hello\ncat",
        ),
    ]);
    for (block, why) in [
        ("print((int32[])(int16)1);", "does not fit this array"),
        ("print((int8[2])\"hello\");", "does not fit this array"),
        ("print((int8[16])1);", "does not fit this array"),
        ("print((bool[64])1);", "does not fit this array"),
        ("print((kernel::File[2])1);", "an array of integers only"),
        ("print((string[2])\"hello\");", "up to 6 bytes with its end"),
        ("print((string)5);", "only a text can become a text"),
        (
            "$a = (int8[8])1; print((int32)$a);",
            "this value is not a number",
        ),
    ] {
        let cause = cause(block);
        assert!(cause.contains(why), "{cause}");
    }
}

#[test]
fn texts_decide_conditions_with_others() {
    all(&[
        (
            "if (\"cat\" == comm && arg0 == 3) { print(1); } \
             if (comm == \"dog\" || comm == \"cat\") { print(2); } \
             if (!(comm == \"dog\" || comm != \"cat\")) { print(3); } \
             print(comm == \"ca\" || arg0 == 4 ? \"yes\" : \"no\"); \
             @[comm == \"cat\" && arg0 > 1] = count();",
            "1\n2\n3\nno\n@[true]: 1",
        ),
        // A text that is not empty holds.
        (
            "$none = \"x\"; $none = \"\"; if (comm && !$none && \"x\") { print(1); } \
             if ($none || \"\") { print(2); } print(comm ? 3 : 4); print((bool)$none);",
            "1\n3\nfalse",
        ),
        (
            "print(\"a\" < \"b\"); print(\"b\" <= \"a\"); print(\"\" > \"a\"); \
             print(\"abd\" >= \"abc\"); print(\"foo\" + \"bar\"); print(\"hello\" + 3);",
            "true\nfalse\nfalse\ntrue\nfoobar\nlo",
        ),
    ]);
    assert!(cause("print(comm < \"x\");").contains("this is a text, not a number"));
    all(&[
        (
            "print(\"b\" > \"a\"); print(\"a\" > \"a\"); print(\"a\" >= \"a\"); \
             print(\"a\" < \"a\"); print(\"a\" <= \"a\"); print(\"b\" < \"a\");",
            "true\nfalse\ntrue\nfalse\ntrue\nfalse",
        ),
        (
            "if (strncmp(\"cat\", comm, 3) == 0) { print(1); } \
             if (strncmp(comm, \"cow\", 1) == 0) { print(2); } \
             if (strncmp(\"cow\", comm, 2) == 0) { print(3); }",
            "1\n2",
        ),
        // A letter may have several bytes, of which some are compared.
        (
            "print(strncmp(\"\", \"é\", 1)); print(strncmp(comm, \"é\", 1)); \
             print(strncmp(\"é\", \"éa\", 2)); print(strncmp(\"éx\", \"éa\", 3));",
            "1\n1\n0\n1",
        ),
    ]);
    // A text becomes a truth, and no other number.
    all(&[(
        "print((bool)arg0); print((bool)(arg0 - 3)); print((bool)\"x\");",
        "true\nfalse\ntrue",
    )]);
    assert!(cause("print((int64)comm);").contains("this is a text, not a number"));
}

/// The sign of a result is that of its parts, of numbers of the text and of others.
#[test]
fn results_have_the_sign_of_their_parts() {
    all(&[
        (
            "print(1 - 2); print(-7 / 2); print(-7 % 4); print(-7 >> 1); print(1 << 3);",
            "-1\n-3\n-3\n-4\n8",
        ),
        (
            "$n = (int64)arg0 - 10; print($n / 2); print($n % 4); print($n >> 1); print($n << 1); \
             print(arg0 << 2); print(arg0 >> 1);",
            "-3\n-3\n-4\n-14\n12\n1",
        ),
        (
            "print(arg0 != 3 ? arg0 : (int64)-1); print(arg0 == 3 ? (int64)-2 : arg0);",
            "-1\n-2",
        ),
    ]);
}

#[test]
fn elements_of_an_array_of_truths_are_truths() {
    all(&[(
        "$a = (bool[8])arg0; print($a[0]); print($a[1]); if ($a[0] && !$a[1]) { print(1); }",
        "true\nfalse\n1",
    )]);
}

#[test]
fn a_function_has_at_most_64_arguments() {
    let text = "kprobe:vfs_write { print(arg63); }";
    assert!(compiled_with(text, &Fake::new(), &Options::default()).is_ok());
    let why = cause("print(arg64);");
    assert!(why.contains("no function has so many arguments"), "{why}");
}

#[test]
fn the_clocks_of_nsecs_are_those_that_a_probe_can_read() {
    all(&[(
        "print(nsecs(boot) == nsecs(monotonic) || nsecs > 0);",
        "true",
    )]);
    for clock in ["tai", "sw_tai"] {
        let why = cause(&format!("print(nsecs({clock}));"));
        assert!(why.contains("does not know the time of day"), "{why}");
    }
    let why = cause("print(nsecs(monday));");
    assert!(!why.contains("time of day"), "{why}");
}

#[test]
fn bytes_of_texts_are_values() {
    all(&[
        (
            "$a = buf(\"hi\", 2); $b = buf(\"bye, and much longer\", 20); print($a); print($b); \
             print($a == $a); print($a == $b); print($a != buf(\"hi\", 3)); @ = $a; @ = $b; \
             print(arg0 == 3 ? $a : $b); print(arg0 != 3 ? buf(\"hi\", 2) : $b);",
            "hi\nbye, and much longer\ntrue\nfalse\ntrue\nhi\nbye, and much longer\n\
             @: bye, and much longer",
        ),
        (
            "@[buf(comm, 4)] = 1; @[buf(\"cat\", 4)] += 1;",
            "@[cat\\x00]: 2",
        ),
    ]);
}

#[test]
fn tuples_have_any_number_of_values() {
    all(&[(
        "print((arg0,)); $t = (1,); print($t.0); print(());",
        "(3,)\n1\n()",
    )]);
}

/// An element that is found at the hit may be missing.
#[test]
fn what_is_not_there_is_zero_or_empty_in_a_variable() {
    all(&[
        (
            "$a = (int8[8])1; if (arg0 == 4) { $t = ($a[arg0], 1); } print($t);",
            "(0, 0)",
        ),
        (
            "$a = (int8[8])1; print(($a[arg0 + 6], 1)); $t = ($a[arg0 + 6], 1); print($t); \
             print($t.0 + 5); $t = (arg0, 2); print($t); @ = $t.0;",
            "(-, 1)\n(0, 1)\n5\n(3, 2)\n@: 3",
        ),
        (
            "$a = (int8[8])1; print(arg0 == 3 ? ($a[arg0 + 6], 1) : (arg0, 2));",
            "(0, 1)",
        ),
        (
            "$a = (int8[8])1; if (arg0 == 4) { $t = (x=$a[9 - arg0], y=2); } else { $t = \
             (x=$a[arg0 + 6], y=3); } print($t);",
            "{ .x = 0, .y = 3 }",
        ),
    ]);
    let name = "((File *)(arg0 + (uint8)$a[$i])).name";
    let mut world = with_file(
        &format!(
            "kprobe:vfs_write {{ $a = (uint8[8])0; $i = arg1 & 3; $n = {name}; print($n == \
             \"hello\"); $t = ({name}, 1); $i = 8; $n = {name}; printf(\"<%s>\\n\", $n); \
             print($t); print($t.0 == \"hello\"); $t = ({name}, 2); print($t); }}"
        ),
        "hello",
    );
    world.hit(&write_hit());
    assert_eq!(world.out, "true\n<>\n(hello, 1)\ntrue\n(, 2)\n");
}

/// In memory others come after it, and a register has no more of it.
#[test]
fn a_narrow_number_becomes_an_array_without_its_neighbours() {
    let mut world = with_file(
        "kprobe:vfs_write { print((uint8[4])*(uint8 *)(arg0 + 16)); print((int8[8])args.delta); \
         print((uint16[4])args.words[9]); }",
        "",
    );
    world.hit(&write_hit());
    assert_eq!(
        world.out,
        "[1, 0, 0, 0]\n[-2, -1, -1, -1, -1, -1, -1, -1]\n[0, 0, 0, 0]\n"
    );
}

#[test]
fn a_text_is_cut_to_a_number_of_bytes() {
    let long = "abcdefghijklmnopqrstuvwxyz";
    for (text, printed) in [
        ("print(str(\"abcdef\", 3));", "abc\n"),
        ("print(str(\"aé\", 2));", "a\n"),
        ("print((str(comm, 2), 1));", "(ca, 1)\n"),
        ("print(str(comm, 15));", "cat\n"),
        (
            "$s = \"abcdef\"; print(str($s, 6)); print(str($s, 500));",
            "abcdef\nabcdef\n",
        ),
        (
            "$s = \"abcdef\"; @[str($s, 2)] = 1; print(@);",
            "@[ab]: 1\n\n@[ab]: 1",
        ),
        ("$s = \"abcdef\"; print(str($s, 3) == \"abc\");", "true\n"),
        ("$s = \"abcdef\"; print(strlen(str($s, 5)));", "5\n"),
        ("$s = \"abcdef\"; print(str(str($s, 5), 4));", "abcd\n"),
    ] {
        assert_eq!(run(text), printed, "{text}");
    }
    let why = compiled_with(
        "kprobe:vfs_write { $s = \"abc\"; print(str($s, cpu)); }",
        &Fake::new(),
        &Options::default(),
    );
    let why = why.err().expect("a number that is known at the hit only");
    assert!(why.contains("that the program names"), "{why}");
    let mut world = with_file(
        "kprobe:vfs_write { print(str(args.file.name, 6)); print(str(args.file.name, 40)); }",
        "a name of a file",
    );
    world.hit(&write_hit());
    assert_eq!(world.out, "a name\na name of a file\n");
    for length in 1..=26 {
        let text = format!("$s = \"{long}\"; print(str($s, {length}));");
        assert_eq!(run(&text), format!("{}\n", &long[..length]));
    }
}

#[test]
fn keys_and_texts_are_long() {
    let path = "/a/path/with/more/than/forty/letters/in/all";
    let long = "y".repeat(300);
    all(&[
        (
            &format!("@[comm, pid, \"{path}\"] = count(); @[comm, pid, \"{path}!\"] = count();"),
            &format!("@[cat, 7, {path}]: 1\n@[cat, 7, {path}!]: 1"),
        ),
        (
            &format!("@s = \"{long}\"; print(@s == \"{long}\"); print(@s == \"{long}y\");"),
            &format!("true\nfalse\n@s: {long}"),
        ),
        (
            "@[comm, 1] = (comm, \"x\"); print(@[comm, 1].0 == \"ca\"); \
             print(@[comm, 1].0 == \"cat\");",
            "false\ntrue\n@[cat, 1]: (cat, x)",
        ),
    ]);
}

#[test]
fn the_length_of_a_text_is_that_up_to_its_end() {
    for length in 0..=17 {
        let text = &"abcdefghijklmnopq"[..length];
        let block =
            format!("$s = \"abcdefghijklmnopqrstuvw\"; $s = \"{text}\"; print(strlen($s));");
        assert_eq!(run(&block), format!("{length}\n"));
    }
    assert_eq!(run("$s = \"12345678\\0x\"; print(strlen($s));"), "8\n");
}

#[test]
fn a_step_in_an_expression_is_made_once() {
    all(&[
        (
            "$i = 0; $a = (uint8[8])arg1; print($a[$i++]); print($i); print($a[1 + $i++]); \
             print($i);",
            "8\n1\n6\n2",
        ),
        (
            "$i = 0; if ($i++ < (uint64)arg0) { print($i); } 1 + $i++; print($i);",
            "1\n2",
        ),
        // Also where nothing but the step is wanted, in one of two parts.
        (
            "$i = 0; arg0 == 3 ? $i++ : 0; arg0 == 4 ? 0 : $i++; arg0 == 4 ? $i++ : 0; print($i);",
            "2",
        ),
    ]);
}
