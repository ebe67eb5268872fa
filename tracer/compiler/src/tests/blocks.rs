//! Blocks and choices as values, as statements, and after `&&` and `||`.
//!
//! A program runs at the beginning of a trace, and what it prints is compared.

use super::{composites::run, fake::compiled_with, world::World};
use crate::{Options, tests::fake::Fake};

/// What a program prints at its begin.
fn printed(body: &str) -> String {
    let mut world = World::new(&format!("begin {{ {body} }}"));
    world.tick();
    world.out.clone()
}

#[test]
fn a_block_has_the_value_of_its_last_expression() {
    assert_eq!(
        printed("$x = { $a = 20; $b = 1; $a * 2 + $b }; print($x);"),
        "41\n"
    );
    assert_eq!(printed("print({ 1 } + { $a = 2; { $a + 3 } });"), "6\n");
    assert_eq!(printed("print({ let $t = \"abc\"; $t });"), "abc\n");
    assert_eq!(printed("$t = ({ 1 }, { \"b\" }); print($t);"), "(1, b)\n");
    assert_eq!(printed("@m[{ $k = 3; $k }] = { 4 }; print(@m[3]);"), "4\n");
}

#[test]
fn variables_of_a_block_are_its_own() {
    let text = "{ let $x = 2; print($x); } let $x = 1; print($x);";
    assert_eq!(printed(text), "2\n1\n");
    assert_eq!(
        printed("let $x = { let $x = 5; $x + 1 }; print($x);"),
        "6\n"
    );
    assert_eq!(printed("$x = 1; { $x = 2; } print($x);"), "2\n");
}

#[test]
fn what_stands_before_a_block_is_calculated_before_it() {
    assert_eq!(printed("$x = 1; print($x + { $x = 10; $x });"), "11\n");
    assert_eq!(
        printed("$x = 1; print(($x, { $x++; $x }, $x));"),
        "(1, 2, 2)\n"
    );
    assert_eq!(
        printed("$x = 1; printf(\"%d %d\\n\", $x * 2, { $x = 7; $x });"),
        "2 7\n"
    );
}

/// Also what is no variable, if the block can change it: entries, and what calls tell of them.
#[test]
fn what_a_block_changes_is_calculated_before_it() {
    for (text, out) in [
        ("@m = 1; print(@m + { @m = 10; @m });", "11"),
        ("@m[1] = 1; print((@m[1], { @m[1] = 5; @m[1] }));", "(1, 5)"),
        (
            "@m[1] = 1; print((has_key(@m, 1), { delete(@m, 1); 7 }, has_key(@m, 1)));",
            "(true, 7, false)",
        ),
        (
            "@m[1] = 1; print((delete(@m, { 1 }), { @m[1] = 2; @m[1] }, @m[1]));",
            "(true, 2, 2)",
        ),
        (
            "$s = \"a\"; print(strlen($s) + { $s = \"longer\"; 0 });",
            "1",
        ),
        (
            "@s = \"a\"; print((strcontains(@s, \"b\"), { @s = \"b\"; 0 }));",
            "(false, 0)",
        ),
        (
            "@c = count(); print((uint64)@c + { @c = count(); 0 });",
            "1",
        ),
    ] {
        assert_eq!(printed(text), format!("{out}\n"), "{text}");
    }
}

/// A number of the text has none, also as the value of a block.
#[test]
fn the_value_of_a_block_has_the_sign_of_what_it_ends_with() {
    let large = "(uint64)-1";
    for (text, out) in [
        (
            "print(if (cpu) { 1 } else { LARGE });",
            "18446744073709551615",
        ),
        ("print(0 ?: LARGE);", "18446744073709551615"),
        ("$x = { 5 }; $x = LARGE; print($x);", "18446744073709551615"),
        ("print(-8 | { LARGE });", "18446744073709551615"),
        ("print({ 5 } - 7);", "-2"),
        ("print({ 5 } - (uint64)pid);", "18446744073709551614"),
        ("print(if (cpu) { 1 } else { (int64)LARGE });", "-1"),
    ] {
        let text = text.replace("LARGE", large);
        assert_eq!(printed(&text), format!("{out}\n"), "{text}");
    }
}

#[test]
fn a_narrow_number_before_a_block_or_of_one_stays_narrow() {
    for (text, out) in [
        (
            "@m = -58; printf(\"%x %d\", (int32)@m, { 1 });",
            "ffffffc6 1",
        ),
        (
            "let $n: int8 = -1; printf(\"%x %d\", $n, { $n++; 2 });",
            "ff 2",
        ),
        (
            "printf(\"%o %x\", { (int8)-3 }, { $x = 5; (int16)-$x });",
            "375 fffb",
        ),
        ("$x = 0x1234; print(bswap({ (uint16)$x }));", "13330\n"),
        ("$x = { (int8)100 }; $x += 100; print($x);", "200\n"),
    ] {
        assert_eq!(printed(text), out, "{text}");
    }
}

#[test]
fn a_choice_runs_one_of_its_blocks() {
    let text = "$x = 3; $y = if ($x > 2) { @a = 1; 10 } else { @b = 1; 20 }; print($y);";
    let mut world = World::new(&format!("begin {{ {text} }}"));
    world.tick();
    assert_eq!(world.out, "10\n");
    world.out.clear();
    assert_eq!(world.maps(), "@a: 1\n");
    let text =
        "$x = 3; print(if ($x == 1) { \"one\" } else if ($x == 3) { \"three\" } else { \"\" });";
    assert_eq!(printed(text), "three\n");
    assert_eq!(
        printed("$x = 0; print($x ? { $x = 5; 1 } : 2); print($x);"),
        "2\n0\n"
    );
    assert_eq!(printed("print({ if (1) { 2 } else { 3 } });"), "2\n");
}

#[test]
fn a_block_after_and_or_or_runs_only_if_it_decides() {
    let text = "$n = 0; if (0 && { $n = 1; 1 }) { } print($n); \
                if (1 && { $n = 2; 1 }) { print(\"both\"); } print($n); \
                if (1 || { $n = 3; 1 }) { } print($n); \
                print(0 || { $n = 4; 7 }); print($n);";
    assert_eq!(printed(text), "0\nboth\n2\n2\ntrue\n4\n");
}

#[test]
fn the_condition_of_a_loop_runs_its_block_each_time() {
    let text = "$i = 0; while ({ $i++; $i < 4 }) { print($i); }";
    assert_eq!(printed(text), "1\n2\n3\n");
}

#[test]
fn effects_can_be_chosen() {
    assert_eq!(printed("$x = 1; $x ? print(\"a\") : print(\"b\");"), "a\n");
    assert_eq!(printed("{ { print(1) } }"), "1\n");
}

#[test]
fn a_block_without_a_value_is_refused_as_one() {
    for body in [
        "$x = { 1; };",
        "$x = { print(1) };",
        "print(if (1) { 1 } else { print(2) });",
        "$x = 1 ? 2 : print(3);",
    ] {
        let text = format!("begin {{ {body} }}");
        let Err(refusal) = compiled_with(&text, &Fake::new(), &Options::default()) else {
            panic!("{text} is taken");
        };
        let says = ["gives no value", "has no value"];
        assert!(says.iter().any(|say| refusal.contains(say)), "{refusal}");
    }
    let refusal = compiled_with(
        "begin { print(if (1) { 1 }); }",
        &Fake::new(),
        &Options::default(),
    );
    assert!(refusal.is_err_and(|refusal| refusal.contains("without an `else`")));
}

#[test]
fn a_variable_without_a_value_gets_the_type_of_its_first_assignment() {
    let text =
        "let $x; let $t; if (cpu == 0) { $x = 5; $t = \"abc\"; } printf(\"%d %s\\n\", $x, $t);";
    assert_eq!(printed(text), "5 abc\n");
    assert_eq!(printed(&text.replace("cpu == 0", "cpu == 1")), "0 \n");
    // It is new in each turn.
    let text = "for ($i : 0..3) { let $x; print($x); $x = $i + 7; print($x); }";
    assert_eq!(printed(text), "0\n7\n0\n8\n0\n9\n");
    assert_eq!(
        printed("let $p; $p = (1, \"a\"); $p = (2, \"longer\"); print($p);"),
        "(2, longer)\n"
    );
    assert_eq!(
        printed("let $a; if ($a) { $a = 1; } $b = $a; print($b);"),
        "0\n"
    );
    let refused = compiled_with(
        "begin { let $x; print($x); }",
        &Fake::new(),
        &Options::default(),
    );
    assert!(refused.is_err_and(|refusal| refusal.contains("`$x` has no value here")));
}

#[test]
fn a_name_is_declared_once() {
    for body in [
        "let $x = 1; let $x = 2;",
        "$x = 1; { let $x = 2; }",
        "let $i = 1; for ($i : 0..3) { }",
        "for ($i : 0..3) { let $i = 1; }",
    ] {
        let text = format!("begin {{ {body} }}");
        let refused = compiled_with(&text, &Fake::new(), &Options::default());
        let refusal = refused.err().unwrap_or_else(|| panic!("{text} is taken"));
        assert!(refusal.contains("already"), "{text}: {refusal}");
    }
}

#[test]
fn find_tells_the_type_of_a_variable() {
    let text = "@m[1] = \"abc\"; let $v; if (find(@m, 1, $v)) { print($v); } \
                let $w; if (!find(@m, 2, $w)) { printf(\"<%s>\\n\", $w); }";
    assert_eq!(printed(text), "abc\n<>\n");
}

#[test]
fn find_gives_a_variable_what_its_type_has() {
    for (text, out) in [
        (
            "@m[1] = -1; let $x: uint8; find(@m, 1, $x); print($x);",
            "255",
        ),
        (
            "@m[1] = 200; let $x: int8 = 3; find(@m, 1, $x); print($x);",
            "-56",
        ),
        (
            "@m[1] = -1; $x = (uint64)cpu; find(@m, 1, $x); print($x);",
            "-1",
        ),
        ("@m[1] = 3; $x = cpu == 0; find(@m, 1, $x); print($x);", "3"),
        (
            "@m[1] = 3; let $x: uint8 = 7; find(@m, 2, $x); print($x);",
            "7",
        ),
    ] {
        assert_eq!(printed(text), format!("{out}\n"), "{text}");
    }
}

#[test]
fn a_value_or_another_is_calculated_once() {
    assert_eq!(
        printed("print(5 ?: 6); print(0 ?: 6); print(0 ?: 0 ?: 7);"),
        "5\n6\n7\n"
    );
    assert_eq!(
        printed("$n = 0; print($n++ ?: 9); print($n); print($n++ ?: 9); print($n);"),
        "9\n1\n1\n2\n"
    );
}

#[test]
fn names_of_the_library_are_the_words_that_they_wrap() {
    assert_eq!(printed("print(__builtin_cpu == cpu);"), "true\n");
}

/// The narrowest integer that has both numbers, as in bpftrace. It shows in the digits of `%x`.
#[test]
fn one_of_two_narrow_numbers_is_as_wide_as_both_need() {
    for (choice, shown) in [
        ("arg0 > 1 ? (int8)-1 : 5", "ff 1"),
        ("arg0 > 1 ? (int8)-1 : (int8)2", "ff 1"),
        ("arg0 > 1 ? (int8)-1 : (uint8)2", "ffff 2"),
        ("arg0 > 1 ? (int16)-1 : (uint8)2", "ffff 2"),
        ("arg0 > 1 ? (int16)-1 : (uint16)2", "ffffffff 4"),
        ("arg0 > 1 ? (int32)-1 : (uint32)2", "ffffffffffffffff 8"),
        ("arg0 > 1 ? 300 : (uint8)1", "12c 2"),
        ("arg0 > 1 ? 200 : (int8)1", "c8 2"),
        ("arg0 > 1 ? -1 : (uint8)1", "ffff 2"),
        ("arg0 > 1 ? -300 : (int8)1", "fed4 2"),
        ("arg0 > 1 ? (int8)-1 : arg1", "ffffffffffffffff 8"),
        ("arg0 > 1 ? true : (uint8)5", "1 8"),
        ("(int8)(arg0 - 4) ?: 5", "ff 1"),
        ("(int8)(arg0 - 3) ?: 300", "12c 2"),
        ("(int8)(arg0 - 4) ?: (uint8)5", "ffff 2"),
        ("if (arg0 > 1) { (int8)-1 } else { 5 }", "ff 1"),
        (
            "if (arg0 > 1) { $n = 1; (int8)-1 } else { (uint8)5 }",
            "ffff 2",
        ),
        ("{ (int8)-1 }", "ff 1"),
        (
            "arg0 > 1 ? { print(0); { print(1); 300 } } : (uint8)1",
            "0\n1\n12c 2",
        ),
    ] {
        let (shown, bytes) = shown.split_once(' ').unwrap_or_default();
        assert_eq!(
            run(&format!("printf(\"%x\\n\", {choice});")),
            format!("{shown}\n"),
            "{choice}"
        );
        assert_eq!(
            run(&format!("print(sizeof({choice}));")),
            format!("{bytes}\n"),
            "{choice}"
        );
    }
    // A number of the text below zero is not one above all others.
    assert_eq!(
        run("print((arg0 > 1 ? -1 : arg1, -1 > (arg0 > 1 ? -2 : arg0)));"),
        "(-1, true)\n"
    );
}

#[test]
fn the_type_of_a_choice_with_blocks_is_that_of_both_sides() {
    assert_eq!(
        run(
            "let $x: typeof(if (arg0 > 1) { (int16)1 } else { 2 }) = arg1; print($x); \
             print(sizeof(typeof(comm ?: \"none\"))); \
             print((typeof(if (true) { true } else { false }))5);"
        ),
        "1800\n16\ntrue\n"
    );
}

#[test]
fn a_let_may_take_the_name_of_a_variable_that_a_block_has_made() {
    assert_eq!(
        printed("if (true) { $x = 1; } if (true) { let $x; if ($x) { $x = 5; } print($x); }"),
        "0\n"
    );
    assert_eq!(
        printed(
            "@a[1] = 1; if (1) { $x = 1; print($x); } for ($kv : @a) { $x = 2; print($x); } \
             let $x = \"text\"; if (true) { $x = \"other\"; } print($x); clear(@a);"
        ),
        "1\n2\nother\n"
    );
    // Here the block has not ended, or the variable is that of the clause.
    for text in [
        "if (true) { $x = 1; let $x = 2; }",
        "if (true) { $x = 1; if (true) { let $x = 2; } }",
        "$x = 1; if (true) { $x = 2; } let $x = 3;",
        "let $x = 1; if (true) { let $x = 2; }",
    ] {
        let refused = compiled_with(
            &format!("begin {{ {text} }}"),
            &Fake::new(),
            &Options::default(),
        );
        let Err(said) = refused else {
            panic!("{text} compiles");
        };
        assert!(said.contains("there is a variable `$x` already"), "{said}");
    }
}

#[test]
fn a_block_may_end_with_what_a_map_gathers() {
    let all = |text: &str| {
        let mut world = World::new(&format!("begin {{ {text} }}"));
        world.tick();
        world.maps().trim_end().to_owned()
    };
    assert_eq!(all("@ = { let $a = 100; avg($a) };"), "@: 100");
    assert_eq!(
        all("$k = 1; @m[$k] = { $k = 2; let $a = 7; $b = -$a; sum($b * 2) };"),
        "@m[1]: -14"
    );
    assert_eq!(all("@c = { $x = 1; count() };"), "@c: 1");
    let steps = all("@h = { $v = 25; lhist($v, 0, 100, 10) };");
    assert!(steps.contains("[20, 30)               1 |@"), "{steps}");
}
