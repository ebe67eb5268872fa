//! Whole programs that are refused: with which words, and where.
//!
//! A refusal is compared with its place in the text, its cause and its next step. Nothing is
//! compiled.

use trace_language::parse_with;

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

/// The parts of a text that mistakes are about.
fn parts(text: &str) -> Vec<&str> {
    let mistakes = parse_with(text, &[]).unwrap_err();
    let spans = mistakes.iter().map(|mistake| mistake.span.range());
    spans.map(|span| &text[span]).collect()
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
    assert_eq!(parts(text), ["kprob", ";"]);
    // The end of a block that has no beginning ends a clause.
    let text = "kprob:f } kprobe:g { $a = ; }";
    assert_eq!(parts(text), ["kprob", ";"]);
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
