//! Macros: what their calls do, and which are refused.

use super::{
    fake::{Fake, compiled_with},
    world::World,
};
use crate::Options;

fn printed(text: &str) -> String {
    let mut world = World::new(text);
    world.tick();
    world.out.clone()
}

#[test]
fn a_call_does_what_the_body_says() {
    let text = "macro add(x, y) { x + y } macro twice(x) { add(x, x) } \
                begin { print(twice(3) * 10); }";
    assert_eq!(printed(text), "60\n");
    assert_eq!(
        printed("macro hello { print(\"hello\"); } begin { hello; hello(); }"),
        "hello\nhello\n"
    );
    let text = "macro up($x, by) { $x += by; $x } begin { $n = 1; print(up($n, 4)); print($n); }";
    assert_eq!(printed(text), "5\n5\n");
    let text = "macro note(@m, key) { @m[key] = 7; @m[key] + 1 } begin { print(note(@a, 3)); }";
    let mut world = World::new(text);
    world.tick();
    assert_eq!(world.maps(), "8\n@a[3]: 7\n\n");
}

#[test]
fn an_argument_stands_wherever_its_name_does() {
    let text = "macro both(x) { x; x } begin { $n = 1; print(both($n++)); print($n); }";
    assert_eq!(printed(text), "2\n3\n");
    let text = "macro product(a, b) { a * b } begin { print(product(1 + 2, 3 + 4)); }";
    assert_eq!(printed(text), "21\n");
}

#[test]
fn variables_of_a_macro_are_its_own() {
    let text =
        "macro next(x) { $n = x; $n++; $n } begin { $n = 10; print(next($n + 1)); print($n); }";
    assert_eq!(printed(text), "12\n10\n");
    let text = "macro sum(n) { $s = 0; for ($i : 0..n) { $s += $i; } $s } \
                begin { print(sum(4) + sum(5)); }";
    assert_eq!(printed(text), "16\n");
}

/// Also of types of their own.
#[test]
fn each_call_of_a_macro_has_variables_of_its_own_types() {
    let text = "macro kept(x) { $x = x; $x } begin { print(kept((uint64)-1)); \
                print(kept((int64)-1)); print(kept(\"text\")); print(kept((1, \"a\"))); }";
    assert_eq!(printed(text), "18446744073709551615\n-1\ntext\n(1, a)\n");
}

#[test]
fn macros_of_one_name_differ_by_their_parameters() {
    let text = "macro of($x) { \"variable\" } macro of(@x) { \"map\" } macro of(x) { \"value\" } \
                macro of() { \"nothing\" } macro of($x, y) { \"two\" } \
                begin { $v = 1; @m = 1; print(of($v)); print(of(@m)); print(of(1)); print(of); \
                print(of($v, 1)); }";
    assert_eq!(printed(text), "variable\nmap\nvalue\nnothing\ntwo\n");
}

#[test]
fn a_word_keeps_its_meaning_where_a_macro_of_its_name_takes_arguments() {
    let text = "macro cpu(x) { x + 40 } begin { print((cpu(2), cpu, cpu())); }";
    assert_eq!(printed(text), "(42, 0, 0)\n");
    assert_eq!(
        printed("macro cpu() { 42 } begin { print((cpu, cpu())); }"),
        "(42, 42)\n"
    );
}

#[test]
fn wrong_macros_and_calls_are_refused() {
    for (text, says) in [
        (
            "macro a($x) { $x } begin { a(1); }",
            "the macro `a` wants a variable here",
        ),
        (
            "macro a(@x) { @x } begin { $v = 1; a($v); }",
            "the macro `a` wants a map here",
        ),
        (
            "macro a(x) { x } begin { a(1, 2); }",
            "takes (x), and there are 2 arguments",
        ),
        (
            "macro a(x, $y, @z) { x } begin { a(1); }",
            "takes (x, $y, @z), and there are 1 arguments",
        ),
        (
            "macro a(x) { x } macro a(y) { y } begin { a(1); }",
            "two macros `a`",
        ),
        (
            "macro a(x, x) { x } begin { a(1, 2); }",
            "a parameter `x` already",
        ),
        (
            "macro a(x) { b(x) } macro b(x) { a(x) } begin { a(1); }",
            "the macro `a` calls itself",
        ),
        (
            "macro a() { @m = 1; } begin { a(); }",
            "cannot use the map `@m` of its caller",
        ),
        (
            "macro a($x) { let $x = 1; } begin { $v = 1; a($v); }",
            "`$x` is a parameter",
        ),
        ("macro a(1) { } begin { }", "this is no parameter"),
        (
            "macro a(x) { x; } begin { print(a(1)); }",
            "this gives no value",
        ),
        (
            "macro a() { $v } begin { $v = 1; print(a()); }",
            "has no value here",
        ),
        (
            "macro a(x) { x + x } macro b(x) { a(a(a(a(x)))) } macro c(x) { b(b(b(b(x)))) } \
             begin { print(c(1)); }",
            "more than 16384 parts",
        ),
    ] {
        let refused = compiled_with(text, &Fake::new(), &Options::default());
        let refusal = refused.err().unwrap_or_else(|| panic!("{text} is taken"));
        assert!(refusal.contains(says), "{text}: {refusal}");
    }
}
