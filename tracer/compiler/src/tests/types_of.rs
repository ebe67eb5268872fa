//! `typeof`: what a declaration, a cast and `sizeof` take from a value that is not calculated.
//!
//! What is expected was worked out by hand. `count` and `delta` are in one register, whose upper
//! half belongs to neither.

use super::{
    fake::{Fake, compiled_with, refusal},
    world::{Hit, World},
};
use crate::Options;
use bpf::context::Register::{Cx, Di, Si};

/// What a program prints at one hit, where `count` is 0x1_0000_0002.
fn printed(statements: &str) -> String {
    let mut world = World::new(&format!("kprobe:vfs_write {{ {statements} }}"));
    world.hit(&Hit {
        registers: vec![
            (Di, 0xffff_8000_0000_4000),
            (Si, u64::MAX - 1),
            (Cx, 0x1_0000_0002),
        ],
        ..Hit::default()
    });
    core::mem::take(&mut world.out)
}

#[test]
fn a_number_is_cut_to_the_type_of_another() {
    assert_eq!(
        printed(
            "let $x: uint8 = 1; $y = (typeof($x))0x1ff; let $z: typeof($x) = 7; $z += 255; \
             print(($y, $z)); let $n: int16 = 1; print((typeof($n))0x18000); \
             print(((typeof(args.delta))0xffffffff, (typeof(args.count))-1)); \
             print(((typeof(true))5, (typeof(1))-1, (typeof(uint16))-1, (typeof(bool))0));"
        ),
        "(255, 6)\n-32768\n(-1, 4294967295)\n(true, -1, 65535, false)\n"
    );
    // One that is not declared has all 64 bits.
    assert_eq!(printed("$x = (uint8)1; print((typeof($x))0x1ff);"), "511\n");
}

/// It is the sign of the variable, which other assignments tell.
#[test]
fn a_number_cut_to_the_type_of_its_own_variable_tells_no_sign() {
    assert_eq!(
        printed("$x = 14; $x = (typeof($x))($x ^ -12); print($x); $x = arg0;"),
        "18446744073709551610\n"
    );
    assert_eq!(
        printed("$x = 18; $x = ~(typeof($x))9223372036854775807; print($x); $x = arg0;"),
        "9223372036854775808\n"
    );
    assert_eq!(
        printed(
            "$x = 1; $x = (typeof($x))-1; print($x); $y = (typeof((typeof($x))-2))-3; print($y); \
             $x = arg0;"
        ),
        "18446744073709551615\n18446744073709551613\n"
    );
    assert_eq!(printed("$x = 1; $x = (typeof($x))-1; print($x);"), "-1\n");
    assert_eq!(
        printed("@m = 14; @m = (typeof(@m))(arg1 + 1); $m = @m; print($m); @m = (int64)arg0;"),
        "-1\n"
    );
    assert_eq!(
        printed("$x = 14; let $y: typeof($x) = arg1; print($y); $x = arg0;"),
        "18446744073709551614\n"
    );
}

#[test]
fn a_declared_type_may_be_known_from_what_follows() {
    assert_eq!(
        printed(
            "let $x; let $y: typeof($x); print($y); $y = 300; print($y); $x = (uint8)1; \
             let $s; let $t: typeof($s) = \"longer than the other\"; $s = \"short\"; print($t);"
        ),
        "0\n300\nlonger than the other\n"
    );
    assert_eq!(
        printed("let $b; let $c; $a = (typeof($b))-1; $b = (typeof($c))1; $c = true; print($a);"),
        "true\n"
    );
    assert_eq!(
        refusal("begin { let $x; let $y: typeof($x) = 1; }"),
        "`$x` has no value here"
    );
}

#[test]
fn a_map_without_its_keys_stands_for_them() {
    assert_eq!(
        printed(
            "@m[\"hi\", true] = comm; let $k: typeof(@m) = (\"longer\", false); print($k); \
             let $v: typeof(@m[\"a\", true]) = \"text\"; print($v); \
             @n[true] = -3; print(((typeof(@n))7, (typeof(@n[false]))7)); \
             @s = true; print((typeof(@s))9); print(sizeof(@n) + sizeof(typeof(@s)));"
        ),
        "(longer, false)\ntext\n(true, 7)\ntrue\n2\n"
    );
    assert_eq!(
        refusal("begin { print((typeof(@none))1); }"),
        "nothing is assigned to `@none`, so it has no type"
    );
    assert!(refusal("begin { @n[1] = 1; print((typeof({ @n }))1); }").contains("key"));
}

#[test]
fn pointers_lead_to_what_the_value_leads_to() {
    let mut world = World::new(
        "kprobe:vfs_write { $p = (typeof(args.file))arg1; print($p.pos); \
         print(*(typeof(args.count) *)arg1); print((typeof(*args.file) *)arg1 + 1 == arg1 + 40); \
         print(sizeof(typeof(*args.file))); let $q: typeof(args.file) = args.file; \
         print($q.pos); print(offsetof(typeof(*$q), pos)); }",
    );
    let file = |pos: u64| {
        let mut bytes = 7_u64.to_le_bytes().to_vec();
        bytes.extend(pos.to_le_bytes());
        bytes.resize(40, 0);
        bytes
    };
    world.memory.push((0xffff_8000_0000_4000, file(11)));
    world.memory.push((0xffff_8000_0000_5000, file(22)));
    world.hit(&Hit {
        registers: vec![(Di, 0xffff_8000_0000_4000), (Si, 0xffff_8000_0000_5000)],
        ..Hit::default()
    });
    assert_eq!(world.out, "22\n7\ntrue\n40\n11\n8\n");
}

#[test]
fn the_value_is_not_calculated() {
    assert_eq!(
        printed(
            "$n = 1; $a = (typeof($n++))5; print(sizeof($n++)); \
             $b = (typeof({ print(\"never\"); $n++; $n }))6; print(($a, $b, $n)); \
             print(sizeof({ exit(); $n }));"
        ),
        "8\n(5, 6, 1)\n8\n"
    );
    for of in ["(typeof({ @a = 1; 1 }))2", "sizeof({ @a = 1; 1 })"] {
        assert_eq!(
            refusal(&format!("begin {{ print({of}); }}")),
            "what is asked for its type or size does not run, so it assigns to no map"
        );
    }
}

#[test]
fn sizes_are_those_of_types_values_and_pointers() {
    assert_eq!(
        printed(
            "print((sizeof(uint64*), sizeof(uint16[3]), sizeof([u32; 2]), sizeof(&File), \
             sizeof(typeof(uint8[5])), sizeof(typeof(typeof(args.count))), sizeof(struct File), \
             sizeof(typeof((true, 1)))));"
        ),
        "(8, 6, 8, 8, 5, 4, 40, 16)\n"
    );
}

#[test]
fn values_of_other_types_are_refused() {
    for (statements, message) in [
        (
            "$x = \"foo\"; let $y: typeof($x); $y = 2;",
            "`$y` holds a text, and this is a number",
        ),
        (
            "$x = \"foo\"; $y = (typeof($x))2;",
            "only a text can become a text of another length",
        ),
        (
            "$y = (typeof(*args.file))0;",
            "this is a number, and cannot become a `kernel::fs::File`",
        ),
        (
            "let $y: typeof(*args.file);",
            "a variable of this type begins with a value",
        ),
        (
            "$t = (1, true); $y = (typeof($t))(1, \"x\");",
            "this is a tuple (a number, a text), and cannot become a tuple (a number, true or \
             false)",
        ),
        (
            "let $x: uint8 = 1; let $y: typeof($x) = 256;",
            "the variable is of type u8, which has no 256",
        ),
        (
            "$p = (typeof(comm) *)arg0;",
            "this is a text, which no memory holds",
        ),
        (
            "print(typeof(pid));",
            "this is a type, and a value is wanted",
        ),
        (
            "$x = 1; print((typeof($x)));",
            "`typeof` is a type here, and a value is wanted",
        ),
        ("print(sizeof(void));", "no value is of this type"),
        (
            "print(sizeof(Fiel));",
            "no type of the kernel is called `Fiel`",
        ),
        ("print(sizeof(fiel));", "there is no `fiel` here"),
    ] {
        let text = format!("kprobe:vfs_write {{ {statements} }}");
        assert_eq!(refusal(&text), message, "{text}");
    }
}

#[test]
fn what_becomes_of_no_cast_is_made_in_another_way() {
    for (cast, help) in [
        (
            "(typeof(*args.file))0",
            "cast an address to a pointer and follow that: *(&Type)address",
        ),
        (
            "(typeof((1, true)))(1, \"x\")",
            "give it a value of that type",
        ),
    ] {
        let text = format!("kprobe:vfs_write {{ $y = {cast}; }}");
        let refused = compiled_with(&text, &Fake::new(), &Options::default());
        let message = refused.err().unwrap();
        assert!(message.ends_with(&format!("= help: {help}")), "{message}");
    }
}

#[test]
fn a_macro_takes_types() {
    let mut world = World::new(
        "macro bytes(t) { sizeof(t*) + sizeof(t) } macro cut(t, x) { (t)x } \
         macro outer(z) { bytes(typeof(z)) } macro many(b) { sizeof(typeof(b[3])) } \
         macro new(x) { let $y: typeof(x); $y = $y + 1; $y } macro unused() { 1 } \
         begin { print(bytes(typeof(uint16))); print(cut(typeof(uint8), 257)); \
         print(outer((uint32)1)); print(many(typeof(uint32))); print(new((uint8)9)); \
         print(cut(uint8, 258)); print((typeof(unused()))7); }",
    );
    world.tick();
    assert_eq!(world.out, "10\n1\n12\n12\n1\n2\n7\n");
    assert_eq!(
        refusal("macro cut(t) { (t)300 } begin { print(cut(5)); }"),
        "the macro wants a type for `t`, and this is a value"
    );
    // A word alone is no call of a macro there.
    assert_eq!(
        refusal("macro mine() { 1 } begin { print(sizeof(mine)); }"),
        "nothing is called `mine`"
    );
}
