//! `typeinfo`, `comptime` and the questions about types: what is known before a program runs.

use super::{
    composites::run,
    fake::refusal,
    values::{with_file, write_hit},
};

#[test]
fn types_have_names() {
    for (of, names) in [
        ("1", "int int64"),
        ("arg0", "int uint64"),
        ("(int16)arg0", "int int16"),
        ("uint32", "int uint32"),
        ("cpu", "int uint32"),
        ("arg0 == 1", "bool bool"),
        ("comm", "string string"),
        ("\"abc\"", "string string"),
        ("(1, arg0, \"ab\")", "tuple (int64,uint64,string)"),
        ("(a=1, b=true)", "record (a=int64,b=bool)"),
        ("(uint8[2])arg0", "array uint8[2]"),
        ("kstack", "kstack kstack"),
        ("func", "ksym ksym"),
        ("(uint16*)arg0", "pointer uint16 *"),
    ] {
        assert_eq!(
            run(&format!(
                "printf(\"%s %s\\n\", typeinfo({of}).base_type, typeinfo({of}).full_type);"
            )),
            format!("{names}\n"),
            "{of}"
        );
    }
    let mut world = with_file(
        "kprobe:vfs_write { print(typeinfo(args.file)); print(typeinfo(*args.file).full_type); \
         print(typeinfo(args.file.name).base_type); print(typeinfo(args.file.mode).base_type); }",
        "name",
    );
    world.hit(&write_hit());
    assert_eq!(
        world.out,
        "{ .base_type = pointer, .full_type = kernel::fs::File * }\n\
         kernel::fs::File\nstring\nenum\n"
    );
}

#[test]
fn questions_about_types_are_answered_by_the_text() {
    let questions = "is_integer(X), is_unsigned_integer(X), is_str(X), is_ptr(X), is_array(X), \
                     is_literal(X)";
    for (of, answers) in [
        ("1", "true, false, false, false, false, true"),
        ("-1", "true, false, false, false, false, true"),
        ("arg0", "true, true, false, false, false, false"),
        ("\"a\"", "false, false, true, false, false, true"),
        ("comm", "false, false, true, false, false, false"),
        ("(uint8*)arg0", "false, false, false, true, false, false"),
        ("(uint8[4])arg0", "false, false, false, false, true, false"),
    ] {
        assert_eq!(
            run(&format!("print(({}));", questions.replace('X', of))),
            format!("({answers})\n"),
            "{of}"
        );
    }
    assert_eq!(
        run("@a = 1; @b[1] = 2; print((is_scalar(@a), is_scalar(@b))); clear(@a); clear(@b);")
            .lines()
            .next(),
        Some("(true, false)")
    );
}

/// The other side may be what does not compile.
#[test]
fn of_a_choice_at_compile_time_one_side_is_left() {
    let shown = "macro shown(x) { if comptime is_str(x) { print(strlen(x)); } else if comptime \
                 is_ptr(x) { print(*x); } else { print(x + 1); } } \
                 macro twice(x) { comptime is_integer(x) ? x * 2 : x } ";
    let mut world = super::world::World::new(&format!(
        "{shown} kprobe:vfs_write {{ shown(\"abc\"); shown(4); shown(pid); \
         print(twice(\"ab\")); print(twice(21)); \
         print(if comptime (sizeof(arg0) == 8) {{ \"wide\" }} else {{ 1 }}); \
         print(sizeof(comptime true ? (uint8)1 : \"text\")); \
         if (comptime 0) {{ fail(\"never\"); }} \
         comptime is_str(1) ? fail(\"never\") : print(\"last\"); print(comptime (1, \"a\").1); }}"
    ));
    world.hit(&write_hit());
    let lines: Vec<_> = world.out.lines().collect();
    assert_eq!(
        [&lines[..2], &lines[3..]].concat(),
        ["3", "5", "ab", "42", "wide", "1", "last", "a"]
    );
}

#[test]
fn what_the_text_does_not_tell_is_refused() {
    assert_eq!(
        refusal("kprobe:vfs_write { if comptime (arg0 > 1) { print(1); } }"),
        "this is not known before the program runs"
    );
    assert_eq!(
        refusal("kprobe:vfs_write { print(comptime arg0); }"),
        "this is not known before the program runs"
    );
    assert_eq!(
        refusal("begin { if comptime is_integer(1) { fail(\"only texts\"); } }"),
        "only texts"
    );
    assert_eq!(
        refusal("begin { print(is_scalar(@none)); }"),
        "nothing is assigned to `@none`, so it has no type"
    );
    assert_eq!(
        refusal("begin { let $x; print(typeinfo($x)); }"),
        "`$x` has no value here"
    );
}

#[test]
fn a_type_may_be_told_later() {
    assert_eq!(
        run(
            "if comptime (typeinfo(@a).full_type == \"uint64\") { print(\"unsigned\"); } else { \
             print(\"signed\"); } @a = 1; @a = arg0; clear(@a);"
        )
        .lines()
        .next(),
        Some("unsigned")
    );
}
