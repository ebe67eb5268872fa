//! Whole programs: what is taken, and what is refused with which words.
//!
//! A refusal is compared with its place in the text, its cause and its next step.
//! Nothing is compiled.

use trace_language::{
    parse_expression, parse_with,
    tree::{Block, Expression, ExpressionKind, ProbeKind, StatementKind, Target},
};

/// A program for each construct, the one-liners of bpftrace's tutorial among them.
const PROGRAMS: &[&str] = &[
    "BEGIN { printf(\"hello world\\n\"); }",
    "begin { printf(\"hello\\n\") } end { clear(@a); }",
    "tracepoint:syscalls:sys_enter_openat { printf(\"%s %s\\n\", comm, str(args.filename)); }",
    "tracepoint:raw_syscalls:sys_enter { @[comm] = count(); }",
    "tracepoint:syscalls:sys_exit_read /pid == 18644/ { @bytes = hist(args.ret); }",
    "kretprobe:vfs_read { @bytes = lhist(retval, 0, 2000, 200); }",
    "kprobe:vfs_read { @start[tid] = nsecs; }\n\
     kretprobe:vfs_read /@start[tid]/ { @ns[comm] = hist(nsecs - @start[tid]); \
     delete(@start, tid); }",
    "tracepoint:sched:sched* { @[probe] = count(); } interval:s:5 { exit(); }",
    "profile:hz:99 { @[kstack] = count(); }",
    "tracepoint:sched:sched_switch { @[kstack] = count(); }",
    "kprobe:vfs_open { printf(\"open path: %s\\n\", str(((struct path *)arg0)->dentry->name)); }",
    "#!/usr/bin/env trace\n// a\n/* b\n c */ kprobe:f { }",
    "k:vfs_*,kr:kernel::fs::vfs::vfs_write,\nkprobe:*write*+0x10 { @++ }",
    "kprobe:<T as Trait>::f, kprobe:kernel::run::{closure#0}, kprobe:\"<impl Foo>::bar\" { }",
    "kprobe:core::ops::{{closure}}::x, inline:Vec<T, A>::push { @ = count() }",
    "kprobe:_ZN4core3ops8function6FnOnce9call_once17h$LT$u20$E.llvm.12 { @ = count() }",
    "session:vfs_write /pid > 1/ { $at = nsecs; } return /retval.Ok/ { @ = hist(nsecs - $at); }",
    "line:kernel/src/fs/vfs.rs:120, line:vfs.rs:7 /$1/ { @ = count(); }",
    "interval:1s, interval:ms:10, interval:us:5, i:hz:99, p:5ms { @ = count(); }",
    "kprobe:f { if (pid == 1) { @a++; } else if pid { --@a; } else { @a -= 2 } }",
    "kprobe:f { unroll (3) { @ = count(); } unroll($1) { @++; } }",
    "kprobe:f { for ($i : 0..10) { if ($i == 5) { break; } @[$i] = $i; continue } }",
    "kprobe:f { $i = 0; while ($i < 5) { $i++; } return; }",
    "kprobe:f { return 1 }",
    "kprobe:f { let $a; let $b = 1; let $c: uint8 = 300; _ = $a; }",
    "kretprobe:f { match retval { Ok($n) => { @ = sum($n); } Err(_) => @errors = count(), } }",
    "kprobe:f { match args.shape { Shape::Circle($r) => {} Moved { to: $t, by: $b } => {}, \
     1 | -2 | \"x\" | true => {}, _ => { @ = 1 } } }",
    "kprobe:f { $t = (1, \"a\", ($x, pid)); print($t.2.0); @[$t] = $t.1; }",
    "kprobe:f { @a = (u8)arg0; @b = (&kernel::fs::File)arg1; @c = (*const [u8; 4])arg2; \
     @d = (Option<&[u8]>)-1; @e = (uint64)$x[3]; @f = (&&mut str)arg3; }",
    "kprobe:f { @x[1, comm] += 2; @y <<= 1; @z |= 0x1f; $q = *args.p; $r = ~$q ^ !$q; }",
    "kprobe:f { $a = pid ? 1 : tid ? 2 : 3; print(1 + 2 * 3 << 4 & 5 | 6 && 7 || 8 == 9); }",
    "kprobe:f { @ = args->buffer.len; @[kernel::sched::COUNT] = reg(\"di\"); print(kstack(3)); }",
    "kprobe:f /args.count / 2 > 5/ { @ = count(); }",
    "kprobe:f { $r = (a=1, b=(c=\"x\", d=(2,))); print($r.b.d.0); @[(a=pid)] = (); }",
    "kprobe:f { $a = (int8[8])arg0; $b = (uint8[])\"x\"; $c = (string[16])comm; \
     $d = (int32[4]*)arg0; $e = (struct file*[2]*)arg1; $f = (string)(uint8[2][2])-1; }",
    "kprobe:f/comm==\"a/ {\"/{@=count();}",
    "kprobe:f { { $a = 1; { let $b = 2; } } $x = { $a = 1; $a + 1 } * 2; _ = { }; }",
    "kprobe:f { print(if (1) { 2 } else if (3) { 4 } else { { 5; }; 6 }); 1 ? exit() : { 1; }; }",
    "kprobe:f { for $i : 0..5 { for $kv : @m { print($i ?: $kv.0); } } }",
    "kprobe:f { let $y: typeof($x); $z = (typeof({ print(1); @m[0] }))-$x; @ = (typeof(u8)*)arg0; \
     print(sizeof(u8*) + sizeof(typeof(*$x)) + sizeof(TABLE[3]) + sizeof(u8[3])); \
     let $w: typeof(struct file *) = (typeof(typeof($y)))(1); f(typeof(args.a[2])); }",
    "macro a { 1 } macro b($x, @y, z) { @y[z] = $x; a } kprobe:f { $n = b($n, @m, 5) + a() + a; }",
];

#[test]
fn each_construct_is_taken() {
    for program in PROGRAMS {
        if let Err(mistakes) = parse_with(program, &["3"]) {
            for mistake in mistakes {
                println!("{}", mistake.show(program));
            }
            panic!("{program}");
        }
    }
}

/// A tree as text, without the places.
fn shape(tree: &impl core::fmt::Debug) -> String {
    let text = format!("{tree:?}");
    let mut shape = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("span: @") {
        shape += &rest[..at];
        rest = rest[at + 7..].trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    }
    shape + rest
}

#[test]
fn printed_programs_are_the_same_programs() {
    for program in PROGRAMS {
        let tree = parse_with(program, &["3"]).unwrap();
        let printed = tree.to_string();
        let again = parse_with(&printed, &[]).unwrap_or_else(|mistakes| {
            panic!("{printed}\n{}", mistakes[0].show(&printed));
        });
        assert_eq!(shape(&again), shape(&tree), "{program}\n{printed}");
    }
}

/// Calls `see` with each expression of a block.
fn expressions(block: &Block, see: &mut impl FnMut(&Expression)) {
    for statement in &block.statements {
        match &statement.kind {
            StatementKind::Assign { target, value, .. } => {
                if let Target::Map(map) = target {
                    map.keys.iter().for_each(|key| inner(key, see));
                }
                inner(value, see);
            }
            StatementKind::Let { value, .. } => {
                value.iter().for_each(|value| inner(value, see));
            }
            StatementKind::Expression(value) => inner(value, see),
            StatementKind::If {
                condition,
                then,
                otherwise,
            } => {
                inner(condition, see);
                expressions(then, see);
                otherwise.iter().for_each(|block| expressions(block, see));
            }
            StatementKind::Unroll { body, .. } | StatementKind::ForEach { body, .. } => {
                expressions(body, see);
            }
            StatementKind::For { from, to, body, .. } => {
                inner(from, see);
                inner(to, see);
                expressions(body, see);
            }
            StatementKind::While { condition, body } => {
                inner(condition, see);
                expressions(body, see);
            }
            StatementKind::Match { value, arms } => {
                inner(value, see);
                arms.iter().for_each(|arm| expressions(&arm.body, see));
            }
            StatementKind::Return(value) => value.iter().for_each(|value| inner(value, see)),
            StatementKind::Break | StatementKind::Continue => {}
        }
    }
}

/// Calls `see` with an expression and each part of it.
fn inner(value: &Expression, see: &mut impl FnMut(&Expression)) {
    see(value);
    match &value.kind {
        ExpressionKind::Map(map) => map.keys.iter().for_each(|key| inner(key, see)),
        ExpressionKind::Call {
            arguments: parts, ..
        }
        | ExpressionKind::Tuple(parts) => {
            parts.iter().for_each(|part| inner(part, see));
        }
        ExpressionKind::Block { body, value } => {
            expressions(body, see);
            value.iter().for_each(|value| inner(value, see));
        }
        ExpressionKind::Record(fields) => {
            fields.iter().for_each(|(_, value)| inner(value, see));
        }
        ExpressionKind::Field { of, .. } => inner(of, see),
        ExpressionKind::Index { of, index } => {
            inner(of, see);
            inner(index, see);
        }
        ExpressionKind::Unary { operand, .. } | ExpressionKind::Cast { operand, .. } => {
            inner(operand, see);
        }
        ExpressionKind::Binary { left, right, .. } => {
            inner(left, see);
            inner(right, see);
        }
        ExpressionKind::Ternary {
            condition,
            then,
            otherwise,
        } => {
            inner(condition, see);
            inner(then, see);
            inner(otherwise, see);
        }
        _ => {}
    }
}

#[test]
fn the_text_of_a_span_makes_the_same_part() {
    let mut seen = 0;
    // A clause alone is without its macros.
    let programs = PROGRAMS
        .iter()
        .filter(|program| !program.starts_with("macro"));
    for program in programs {
        let tree = parse_with(program, &["3"]).unwrap();
        for clause in &tree.clauses {
            let text = &program[clause.span.range()];
            let again = parse_with(text, &["3"]).unwrap();
            assert_eq!(shape(&again.clauses), shape(&[clause]), "{text}");
            for probe in &clause.probes {
                let text = &program[probe.span.range()];
                assert_eq!(text, text.trim());
                assert!(
                    clause.on_return.is_some() || {
                        let again = parse_with(&format!("{text} {{ }}"), &[]).unwrap();
                        shape(&again.clauses[0].probes[0]) == shape(probe)
                    }
                );
            }
            let mut see = |value: &Expression| {
                // A type alone is no expression.
                if matches!(value.kind, ExpressionKind::Type(_)) {
                    return;
                }
                seen += 1;
                let text = &program[value.span.range()];
                let again = parse_expression(text, &["3"])
                    .unwrap_or_else(|mistake| panic!("{program}\n{}", mistake.show(text)));
                assert_eq!(shape(&again), shape(value), "{program}: {text}");
                assert_eq!(again.span.range(), 0..text.len(), "{text}");
            };
            let parts = clause.on_return.iter();
            clause
                .predicate
                .iter()
                .for_each(|value| inner(value, &mut see));
            expressions(&clause.body, &mut see);
            parts.for_each(|part| expressions(&part.body, &mut see));
        }
    }
    assert!(seen > 150, "{seen}");
}

#[test]
fn operators_bind_as_in_c() {
    for (text, grouped) in [
        ("1 + 2 * 3", "1 + (2 * 3)"),
        ("1 * 2 + 3", "(1 * 2) + 3"),
        ("1 - 2 - 3", "(1 - 2) - 3"),
        ("8 / 4 % 3 * 2", "((8 / 4) % 3) * 2"),
        ("1 << 2 + 3", "1 << (2 + 3)"),
        ("1 < 2 << 3", "1 < (2 << 3)"),
        ("1 == 2 < 3", "1 == (2 < 3)"),
        ("1 & 2 == 3", "1 & (2 == 3)"),
        ("1 ^ 2 & 3", "1 ^ (2 & 3)"),
        ("1 | 2 ^ 3", "1 | (2 ^ 3)"),
        ("1 && 2 | 3", "1 && (2 | 3)"),
        ("1 || 2 && 3", "1 || (2 && 3)"),
        ("1 || 2 ? 3 : 4 || 5", "(1 || 2) ? 3 : (4 || 5)"),
        ("1 ? 2 : 3 ? 4 : 5", "1 ? 2 : (3 ? 4 : 5)"),
        ("-1 + 2", "(-1) + 2"),
        ("!$a == 2", "(!$a) == 2"),
        ("-$a.b", "-($a.b)"),
        ("*$a.b[1]", "*(($a.b)[1])"),
        ("(u8)$a + 1", "((u8)$a) + 1"),
        ("(u8)$a.b", "(u8)($a.b)"),
        ("-(u8)-$a", "-((u8)(-$a))"),
        ("(pid) - 1", "pid - 1"),
        ("(u64) - 1", "(u64)(-1)"),
        ("(Foo) * $x", "(Foo)(*$x)"),
        ("(pid) * $x", "pid * $x"),
        ("(pid < 1) + (tid > 2)", "(pid < 1) + (tid > 2)"),
        ("$a++ + ++$b", "($a++) + (++$b)"),
        ("$a - -1", "$a - (-1)"),
        ("a->b.c", "(a.b).c"),
        ("$t.0.1", "($t.0).1"),
    ] {
        let tree = |text| shape(&parse_expression(text, &[]).unwrap());
        assert_eq!(tree(text), tree(grouped), "{text}");
    }
    // Each two of them are told apart by the tables above only if the groupings differ.
    let tree = |text| shape(&parse_expression(text, &[]).unwrap());
    assert_ne!(tree("(1 + 2) * 3"), tree("1 + 2 * 3"));
    assert_ne!(tree("1 - (2 - 3)"), tree("1 - 2 - 3"));
}

#[test]
fn numbers_and_strings_have_their_values() {
    for (text, value) in [
        ("0", 0),
        ("1_000", 1000),
        ("0x1F", 31),
        ("017", 15),
        ("0o17", 15),
        ("0b101", 5),
        ("2e3", 2000),
        ("0e30", 0),
        ("5UL", 5),
        ("0xffUL", 255),
        ("7ns", 7),
        ("7us", 7_000),
        ("5ms", 5_000_000),
        ("2s", 2_000_000_000),
        ("1m", 60_000_000_000),
        ("1h", 3_600_000_000_000),
        ("1d", 86_400_000_000_000),
        ("18446744073709551615", u64::MAX),
    ] {
        let kind = parse_expression(text, &[]).unwrap().kind;
        assert_eq!(kind, ExpressionKind::Integer(value), "{text}");
    }
    for wrong in [
        "18446744073709551616",
        "018",
        "0x",
        "0b2",
        "5x",
        "1e",
        "0e",
        "1e30",
        "10e3",
        "0x5ms",
        "300000d",
        "5msx",
        "5uuuu",
    ] {
        let mistake = parse_expression(wrong, &[]).unwrap_err();
        assert_eq!(mistake.span.range(), 0..wrong.len(), "{wrong}: {mistake}");
    }
    for (text, value) in [
        (r#""a b""#, "a b"),
        (r#""\n\t\r\\\"""#, "\n\t\r\\\""),
        (r#""\033[0m\x1b\1018""#, "\u{1b}[0m\u{1b}A8"),
        (r#""\xc3\xa9é""#, "éé"),
        (r#""// /* {""#, "// /* {"),
    ] {
        let kind = parse_expression(text, &[]).unwrap().kind;
        assert_eq!(kind, ExpressionKind::String(value.into()), "{text}");
    }
}

#[test]
fn arguments_stand_for_their_parameters() {
    let value = |text| {
        parse_expression(text, &["12", "x y", "-1"])
            .unwrap()
            .to_string()
    };
    assert_eq!(value("$1 + $2"), "12 + \"x y\"");
    assert_eq!(value("2 - $3"), "2 - -1");
    assert_eq!(value("$4"), "0");
    assert_eq!(value("$#"), "3");
    assert_eq!(value("$a ?: 1"), "$a ?: 1");
    assert_eq!(value("$a || $b ?: 1"), "$a || $b ?: 1");
    assert_eq!(value("($a ? 2 : 3) ?: 1"), "($a ? 2 : 3) ?: 1");
    assert_eq!(
        value("(str($1), str($4), str($2, 3), str($1, 1), str($4, 4))"),
        "(str(\"12\"), str(\"\"), str(\"x y\", 3), str(\"12\", 1), str(\"\", 4))"
    );
    let script = parse_with("kprobe:vfs_$1, kprobe:a$LT$b+$c { }", &["read"]);
    assert!(script.is_err());
    let script = parse_with(
        "kprobe:vfs_$1, interval:s:$2, kprobe:a$LT$b { }",
        &["read", "2"],
    );
    assert_eq!(
        script.unwrap().to_string(),
        "kprobe:vfs_read, interval:2000000000ns, kprobe:a$LT$b { }"
    );
}

/// What a program with these arguments becomes, or its first mistake.
fn read(program: &str, arguments: &[&str]) -> String {
    match parse_with(program, arguments) {
        Ok(tree) => tree.to_string(),
        Err(mistakes) => mistakes[0].message.clone() + "; " + &mistakes[0].help,
    }
}

#[test]
fn named_arguments_stand_for_their_options() {
    let value = |call: &str, arguments: &[&str]| {
        let read = read(&format!("begin {{ print({call}); }}"), arguments);
        match read.strip_prefix("begin { print(") {
            Some(rest) => rest.trim_end_matches(") }").to_owned(),
            None => read,
        }
    };
    for (call, arguments, expected) in [
        ("getopt(\"a\")", &[][..], "false"),
        ("getopt(\"a\")", &["--a"], "true"),
        ("getopt(\"a\")", &["--a=0"], "false"),
        ("getopt(\"a\", true)", &["--a=False"], "false"),
        ("getopt(\"a\", 10)", &[], "10"),
        ("getopt(\"a\", -10, \"text\")", &["--a=0x10"], "16"),
        ("getopt(\"a\", 10)", &["--a=-7"], "-7"),
        ("getopt(\"a\", \"b\")", &["--a=c=d"], "\"c=d\""),
        (
            "($1, getopt(\"a\", 1), $2, $#)",
            &["x", "--a=2", "y"],
            "(\"x\", 2, \"y\", 2)",
        ),
    ] {
        assert_eq!(value(call, arguments), expected, "{call} {arguments:?}");
    }
    for (call, arguments, says) in [
        (
            "getopt(\"a\", 10)",
            &["--a=x"][..],
            "`--a` was given the value `x`",
        ),
        (
            "getopt(\"a\", 10)",
            &["--a=--7"],
            "`--a` was given the value `--7`",
        ),
        (
            "getopt(\"a\", 10)",
            &["--a"],
            "`--a` was given the value ``",
        ),
        (
            "getopt(\"a\", 10, \"much\")",
            &["--b"],
            "no option `--b`; it has --a (much)",
        ),
        ("1", &["--b"], "no option `--b`; it has none"),
        ("getopt(10)", &[], "an option has a name"),
        ("getopt(\"a\", $x)", &[], "an option has a name"),
        (
            "getopt(\"a\", 1) + getopt(\"a\", 2)",
            &[],
            "has another default",
        ),
    ] {
        let told = value(call, arguments);
        assert!(told.contains(says), "{call} {arguments:?}: {told}");
    }
}

#[test]
fn the_image_of_the_kernel_may_be_named() {
    for name in ["vmlinux:", "vmlinu*:", ""] {
        let text = format!("kprobe:{name}vfs_read, kretprobe:{name}a::b {{ }}");
        assert_eq!(read(&text, &[]), "kprobe:vfs_read, kretprobe:a::b { }");
    }
    assert!(read("kprobe:ext4:f { }", &[]).contains("a single `:`"));
}

#[test]
fn directives_choose_and_name() {
    let text = "#!/usr/bin/env trace\n#ifndef BPFTRACE_HAVE_BTF\n#include <a.h>\nnonsense\n#else\n\
                #include <b.h>\n#endif\n#define MOST 5\n#define LEAST (1 - 2)\n#define FLAG\n\
                #ifdef FLAG\nbegin { print(MOST * LEAST); }\n#else\nnonsense\n#endif\n\
                /* a\n# comment\n*/ end { }\n";
    assert_eq!(read(text, &[]), "begin { print(5 * (1 - 2)) }\nend { }");
    for (text, says) in [
        ("#pragma once\nbegin { }", "there is no such directive"),
        ("#define F(x) x\nbegin { }", "gives a name to a value"),
        ("#define A 1 + 2\nbegin { }", "would tear this value apart"),
        ("#ifdef A\nbegin { }", "this condition does not end"),
        ("#else\nbegin { }", "there is no such directive"),
    ] {
        let told = read(text, &[]);
        assert!(told.contains(says), "{text}: {told}");
    }
    // Places stay what they are.
    let mistakes = parse_with("#include <a.h>\nbegin { $ }", &[]).unwrap_err();
    assert_eq!(mistakes[0].span.start, 23);
}

#[test]
fn probes_are_read() {
    let kind = |text: &str| {
        let tree = parse_with(&format!("{text} {{ }}"), &[]).unwrap();
        tree.clauses[0].probes[0].kind.clone()
    };
    let function = |text| match kind(text) {
        ProbeKind::Entry { function, offset } => (function.text, offset),
        other => panic!("{other:?}"),
    };
    assert_eq!(function("k:a::b::c+0x1f"), ("a::b::c".into(), 31));
    assert_eq!(function("kprobe:*"), ("*".into(), 0));
    assert_eq!(
        function("kprobe:<A<u8> as B>::c"),
        ("<A<u8> as B>::c".into(), 0)
    );
    assert_eq!(
        function("kprobe:<fn(u8) -> u8 as B>::c").0,
        "<fn(u8) -> u8 as B>::c"
    );
    assert_eq!(
        function("kprobe:a::{closure#0}+4"),
        ("a::{closure#0}".into(), 4)
    );
    assert_eq!(function("kprobe:{impl#3}::f").0, "{impl#3}::f");
    assert_eq!(function("kprobe:core[8d0a4e]::f").0, "core[8d0a4e]::f");
    assert_eq!(
        function("kprobe:\"a b::{x y}\"+2"),
        ("a b::{x y}".into(), 2)
    );
    assert_eq!(
        kind("interval:hz:100"),
        ProbeKind::Interval {
            nanoseconds: 10_000_000
        }
    );
    assert_eq!(
        kind("profile:ms:3"),
        ProbeKind::Profile {
            nanoseconds: 3_000_000
        }
    );
    assert_eq!(kind("i:1us"), ProbeKind::Interval { nanoseconds: 1000 });
    let ProbeKind::Line { file, line } = kind("line:kernel/src/a.rs:12") else {
        panic!("no line");
    };
    assert_eq!((file.text.as_str(), line), ("kernel/src/a.rs", 12));
    // The block may follow at once.
    let tree = parse_with("kprobe:a::b{@=count();}", &[]).unwrap();
    assert_eq!(tree.to_string(), "kprobe:a::b { @ = count() }");
}

/// A wrong text, the part that the carets are below, the cause, and words of the help.
const MISTAKES: &[(&str, &str, &str, &str)] = &[
    ("", "", "the program is empty", "kprobe:vfs_write"),
    (
        " // only this",
        " // only this",
        "the program is empty",
        "count()",
    ),
    (
        "kprobe:f",
        "",
        "expected `,`, `/` or `{` after a probe, found the end of the text",
        "PROBE {",
    ),
    (
        "kprobe:f { @ = count( }",
        "}",
        "expected a value, found `}`",
        "calls such as `count()`",
    ),
    ("kprobe:f { @ = 1", "{", "this block does not end", "`}`"),
    (
        "kprobe:f { $r = (a=1, 5); }",
        "5",
        "expected the name of a value, found `5`",
        "(a=1, b=2)",
    ),
    (
        "kprobe:f { $r = (a=1,); }",
        ")",
        "expected the name of a value, found `)`",
        "(a=1, b=2)",
    ),
    (
        "kprobe:f { $r = (a=1, a=2); }",
        "a",
        "the record has `a` already",
        "a name of its own",
    ),
    (
        "kprobe:f { $r = (a=1, b==2); }",
        "==",
        "expected `=`, found `==`",
        "(a=1, b=2)",
    ),
    (
        "kprobe:f { let $r: u8[x] = 1; }",
        "x",
        "the length of an array type is a number",
        "",
    ),
    (
        "kprobe:f { $a = 1 $b = 2 }",
        "$b",
        "expected `;` or `}`, found `$b`",
        "separated by `;`",
    ),
    (
        "kprobe { }",
        "kprobe",
        "`kprobe` alone does not say where",
        "kprobe:FUNCTION",
    ),
    (
        "kprobe: { }",
        "kprobe:",
        "the probe's name ends too early",
        "kprobe:FUNCTION",
    ),
    (
        "kprobe:a:b { }",
        ":",
        "a single `:` is in no name of a function",
        "written with two",
    ),
    (
        "kprobe:a- { }",
        "-",
        "`-` cannot be in a probe's name",
        "quotes",
    ),
    (
        "kprobe:f+x { }",
        "+x",
        "an offset is a number of bytes",
        "+0x10",
    ),
    (
        "kretprobe:f+1 { }",
        "+",
        "only `kprobe` takes an offset",
        "leave it out",
    ),
    (
        "kprob:f { }",
        "kprob",
        "`kprob` is no kind of probe",
        "`kprobe:FUNCTION`",
    ),
    (
        "usdt:x:f:g { }",
        "x",
        "`x` is no absolute path",
        "usdt:/bin/PROGRAM:PROVIDER:NAME",
    ),
    (
        "usdt:/bin/x { }",
        "usdt:/bin/x",
        "`usdt` alone does not say where",
        "usdt:/bin/PROGRAM:PROVIDER:NAME",
    ),
    (
        "uprobe:x:f { }",
        "x",
        "`x` is no absolute path",
        "uprobe:/bin/PROGRAM:FUNCTION",
    ),
    (
        "uprobe:/bin/x { }",
        "uprobe:/bin/x",
        "`uprobe` alone does not say where",
        "uprobe:/bin/PROGRAM:FUNCTION",
    ),
    (
        "uretprobe:/bin/x:f+4 { }",
        "+4",
        "a return has no offset",
        "leave it out",
    ),
    (
        "fexit:f { }",
        "fexit",
        "`fexit` is not in this tracer",
        "session:",
    ),
    (
        "macro x(1) { } begin { }",
        "1",
        "this is no parameter",
        "macro name",
    ),
    (
        "#pragma x\nkprobe:f { }",
        "#pragma x",
        "there is no such directive here",
        "debug",
    ),
    (
        "line:a.rs { }",
        "line:a.rs",
        "`line` alone does not say where",
        "line:FILE:LINE",
    ),
    (
        "line:a.rs:0 { }",
        "0",
        "`0` is no number of a line",
        "file.rs:124",
    ),
    (
        "tracepoint:a { }",
        "tracepoint:a",
        "`tracepoint` alone does not say where",
        "GROUP:EVENT",
    ),
    ("interval:s:0 { }", "0", "`0` is no period", "interval:s:1"),
    // Without its unit.
    (
        "interval:100 { }",
        "100",
        "`100` is no period",
        "interval:5ms",
    ),
    (
        "interval:x:1 { }",
        "x",
        "`x` is no period",
        "interval:hz:99",
    ),
    (
        "profile:hz:2e9 { }",
        "2e9",
        "`2e9` is no period",
        "profile:hz:99",
    ),
    (
        "session:f { }",
        "session:f",
        "this session has no return part",
        "return {",
    ),
    (
        "kprobe:f { } return { }",
        "return",
        "only a session has a return part",
        "session:NAME",
    ),
    (
        "session:f, kprobe:g { } return { }",
        "kprobe:g",
        "a session cannot share its block with other probes",
        "its own",
    ),
    (
        "kprobe:$1 { }",
        "$1",
        "the program was not given the argument `$1`",
        "after the program",
    ),
    (
        "kprobe:f /pid == 1 { }",
        "{",
        "expected `/`, found `{`",
        "/pid == 3/",
    ),
    ("kprobe:f { $ = 1 }", "$", "`$` without a name", "`$name`"),
    (
        "kprobe:f { @ = \"a }",
        "\"a }",
        "this string does not end on its line",
        "end it",
    ),
    (
        "kprobe:f { @ = \"a\\qb\" }",
        "\\q",
        "`\\q` is not in strings",
        "\\x1b",
    ),
    (
        "kprobe:f { @ = \"\\xff\" }",
        "\"\\xff\"",
        "the bytes of this string are no UTF-8",
        "letters",
    ),
    ("kprobe:f { /* }", "/* }", "this comment does not end", "*/"),
    (
        "kprobe:f { @ = 5€; }",
        "€",
        "`€` has no meaning here",
        "take it out",
    ),
    (
        "kprobe:f { @ = 09; }",
        "09",
        "`09` has the digit 9, in base 8",
        "take the 0 away",
    ),
    (
        "kprobe:f { pid = 1; }",
        "pid",
        "only variables and maps can be assigned to",
        "never written",
    ),
    (
        "kprobe:f { args.x++; }",
        "args.x",
        "only variables and maps can be stepped",
        "never written",
    ),
    (
        "kprobe:f { else { } }",
        "else",
        "this `else` follows no `if`",
        "if (condition)",
    ),
    (
        "kprobe:f { $x = if (1) { 2 }; }",
        "if (1) { 2 }",
        "without an `else`, this `if` has no value",
        "else { other }",
    ),
    (
        "kprobe:f { if (1) @ = 1; }",
        "@",
        "expected `{`, found `@`",
        "`{ … }`",
    ),
    (
        "kprobe:f { unroll ($x) { } }",
        "$x",
        "the block is repeated as often as a number says, at \
      least once",
        "unroll (5)",
    ),
    (
        "kprobe:f { for ($k : @m[1]) { } }",
        "@m[1]",
        "a loop goes over a whole map, and this is the value of one key",
        "@m)",
    ),
    (
        "kprobe:f { for ($k : 0..=2) { } }",
        "..=",
        "`..=` is not in this language",
        "1..4",
    ),
    (
        "kprobe:f { @ = &$x; }",
        "&$x",
        "`&` takes no address here",
        "use `$x` itself, and to change it elsewhere a macro",
    ),
    (
        "kprobe:f { $p = & @m[1]; }",
        "& @m",
        "`&` takes no address here",
        "use `@m` itself, and to change it elsewhere a macro",
    ),
    (
        "kprobe:f { $p = &args.file.pos; }",
        "&",
        "`&` takes no address here",
        "write the reference that leads to it",
    ),
    (
        "kprobe:f { @ = $x.len(); }",
        "len",
        "`len` is called on a value, but values have no methods",
        "`len(value)`",
    ),
    (
        "kprobe:f { match 1 { 1 => { } }",
        "{",
        "this block does not end",
        "`}`",
    ),
    (
        "kprobe:f { match 1 { + => { } } }",
        "+",
        "expected a pattern, found `+`",
        "`_`",
    ),
    (
        "kprobe:f { match 1 { -9223372036854775809 => { } } }",
        "9223372036854775809",
        "this number does not fit into 64 bits",
        "from -9223372036854775808",
    ),
    (
        "kprobe:f { match 1 { A($a) | B => { } } }",
        "A($a)",
        "a pattern with variables cannot be one of several",
        "of its own",
    ),
    (
        "kprobe:f { @ = else; }",
        "else",
        "expected a value, found `else`",
        "$variables",
    ),
    (
        "kprobe:f { @ = (1; }",
        ";",
        "expected `)`, found `;`",
        "before it",
    ),
    (
        "kprobe:f { @x[1 = 2; }",
        "=",
        "expected `]`, found `=`",
        "@map[key, key]",
    ),
    (
        "kprobe:f { @ = a ? 1; }",
        ";",
        "expected `:`, found `;`",
        "condition ? value",
    ),
    (
        "kprobe:f { @ = args.; }",
        ";",
        "expected the name of a field, found `;`",
        "value.name",
    ),
];

#[test]
fn mistakes_are_told_with_place_cause_and_next_step() {
    for (text, place, message, help) in MISTAKES {
        let mistakes = parse_with(text, &[]).expect_err(text);
        let first = &mistakes[0];
        assert_eq!(first.message, *message, "{text}");
        assert_eq!(&text[first.span.range()], *place, "{text}");
        assert!(first.help.contains(help), "{text}: {}", first.help);
        // In one line, as a log has it.
        let line = match &*first.help {
            "" => message.to_string(),
            help => format!("{message}; {help}"),
        };
        assert_eq!(first.to_string(), line);
    }
}

#[test]
fn the_kinds_of_probes_are_listed_where_there_is_none() {
    let mistakes = parse_with("{ @ = 1; }", &[]).unwrap_err();
    assert_eq!(
        mistakes[0].help,
        "there are `kprobe:FUNCTION`, `kretprobe:FUNCTION`, `session:FUNCTION`, \
         `inline:FUNCTION`, `line:FILE:LINE`, `insn:NAME`, `tracepoint:GROUP:EVENT`, \
         `interval:s:1`, `profile:hz:99`, `watch:STATIC`, `watch:FUNCTION(args.NAME.FIELD)`, \
         `watchpoint:ADDRESS:LENGTH:w`, `watch:PROGRAM:STATIC`, \
         `uprobe:PROGRAM:FUNCTION`, `uretprobe:PROGRAM:FUNCTION`, \
         `usdt:PROGRAM:PROVIDER:NAME`, `begin` and `end`"
    );
}

#[test]
fn all_mistakes_of_a_text_are_told() {
    let text = "kprobe:f {\n  $a = ;\n  @b = count(;\n  if (1) { $c = 08; $ok = 1; }\n}\n\
                kprob:g { ( }\nkprobe:h /+/ { @ = 1 }\nkprobe:i { @ok = 1; @d = [; }";
    let mistakes = parse_with(text, &[]).unwrap_err();
    let places: Vec<_> = mistakes
        .iter()
        .map(|mistake| {
            (
                text[..mistake.span.start].matches('\n').count() + 1,
                &text[mistake.span.range()],
            )
        })
        .collect();
    assert_eq!(
        places,
        [
            (2, ";"),
            (3, ";"),
            (4, "08"),
            (6, "kprob"),
            (7, "+"),
            (8, "[")
        ]
    );
    // The block of a clause that is not understood is left out with the blocks in it.
    let text = "kprob:f { if (1) { $a = 1; } $b = 2; } kprobe:g { $c = ; }";
    let places = parse_with(text, &[]).unwrap_err();
    let places: Vec<_> = places
        .iter()
        .map(|mistake| &text[mistake.span.range()])
        .collect();
    assert_eq!(places, ["kprob", ";"]);
    // The end of a block that has no beginning ends a clause.
    let text = "kprob:f } kprobe:g { $a = ; }";
    let places = parse_with(text, &[]).unwrap_err();
    let places: Vec<_> = places
        .iter()
        .map(|mistake| &text[mistake.span.range()])
        .collect();
    assert_eq!(places, ["kprob", ";"]);
}

#[test]
fn carets_are_below_their_place() {
    let shown = |text: &str| {
        let mistakes = parse_with(text, &[]).unwrap_err();
        mistakes[0].show(text).to_string()
    };
    assert_eq!(
        shown("kprobe:f { pid = 1; }"),
        "error: only variables and maps can be assigned to\n\
         1 | kprobe:f { pid = 1; }\n  \
           |            ^^^\n  \
           = help: the traced kernel is read and never written; keep values in `$name` or `@name`"
    );
    // Tabs stay, letters of several bytes count once, and the end of the text has a place.
    assert_eq!(
        shown("kprobe:f {\n\t$é = \"é\" 5; }").lines().nth(2),
        Some("  | \t         ^")
    );
    assert_eq!(shown("\n\nkprobe:f").lines().nth(1), Some("3 | kprobe:f"));
    assert_eq!(shown("\n\nkprobe:f").lines().nth(2), Some("  |         ^"));
    // A part that goes over the line's end is marked to that end.
    assert_eq!(
        shown("kprobe:f { /* }\n x").lines().nth(2),
        Some("  |            ^^^^")
    );
}

#[test]
fn depth_is_bounded() {
    let deep = |open: &str, middle: &str, close: &str, levels| {
        format!(
            "kprobe:f {{ {}{middle}{} }}",
            open.repeat(levels),
            close.repeat(levels)
        )
    };
    for (open, middle, close) in [
        ("@ = (", "1", ")"),
        ("(", "1", ")"),
        ("- ", "1", ""),
        ("!", "1", ""),
        ("(u8)", "1", ""),
        ("f(", "1", ")"),
        ("@[", "1", "]"),
        ("1 ? 1 : ", "1", ""),
        ("1 ? ", "1", ": 1"),
        ("", "1", " + 1"),
        ("", "$a", ".b"),
        ("", "$a", "[0]"),
        ("1 + (", "1", ")"),
        ("if (1) { ", "", " }"),
        ("if (1) { } else ", "if (1) { }", ""),
        ("match 1 { _ => { ", "", " } }"),
        ("(&", "u8", ")1"),
        ("(u8 ", "", "*)1"),
    ] {
        let shallow = deep(open, middle, close, 5);
        let taken = parse_with(&shallow, &[]);
        let odd = open == "@ = (" || open.starts_with("(&") || open.starts_with("(u8 ");
        assert!(odd || taken.is_ok(), "{shallow}");
        let text = deep(open, middle, close, 10_000);
        let mistakes = parse_with(&text, &[]).expect_err(open);
        let told = mistakes
            .iter()
            .any(|mistake| mistake.message.contains("nested more than"));
        assert!(odd || told, "{open}: {}", mistakes[0]);
    }
}
