//! Places in user programs, by `cargo run -- trace`: registers, values by their types, marks.
//!
//! The workload makes a known number of calls, and `exercise values` writes what it gives to its
//! functions and gets from them. So each answer is compared with what the program knows.

use tests::tracer::{CHILDREN, answer, refusal, trace};

/// A trace or a list that fails when the program has been read, and says why.
fn fails(arguments: &[&str], part: &str) {
    let output = trace(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(part), "{said}");
}

/// A program that is refused with its place.
fn is_refused(program: &str, part: &str) {
    let said = refusal(&[program]);
    assert!(said.contains(part) && said.contains('^'), "{said}");
}

/// Places in a program: arguments and results of its functions, and its call stack, with names. The
/// program's own side and the kernel's agree.
#[test]
fn places_in_programs_have_their_registers_and_names() {
    let said = answer(&[
        "uprobe:/bin/workload:workload::run_child { @code[arg0] = count(); } \
         uprobe:/bin/workload:workload::run_child { @from[ustack] = count(); } \
         uretprobe:/bin/workload:workload::run_child { printf(\"child %d %s\\n\", retval, comm); } \
         kretprobe:do_fork { printf(\"fork %d\\n\", reg(\"ax\")); } \
         u:/bin/child:user_main, ur:/bin/child:user_main { @[probe] = count(); }",
        "--expect",
        &format!("len(@code) == {CHILDREN} && len(@from) == 1 && sum(@from) == {CHILDREN}"),
    ]);
    let numbers = |word: &str| -> Vec<&str> {
        let words = said.lines().filter_map(|line| line.strip_prefix(word));
        words
            .filter_map(|rest| rest.split_whitespace().next())
            .collect()
    };
    let (children, forks) = (numbers("child "), numbers("fork "));
    assert_eq!(
        (children.len() as u64, &children),
        (CHILDREN, &forks),
        "{said}"
    );
    assert_eq!(
        said.matches(" workload\n").count() as u64,
        CHILDREN,
        "{said}"
    );
    let stack: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("    "))
        .map(|frame| frame.trim().split('+').next().unwrap())
        .collect();
    // The function has not set its frame up yet. Its caller is there all the same.
    let expected = ["workload::run_child", "user_main", "user::start", "_start"];
    assert_eq!(stack, expected, "{said}");
    for kind in ["uprobe", "uretprobe"] {
        let line = format!("@[{kind}:/bin/child:child::user_main]: {CHILDREN}");
        assert!(said.contains(&line), "{said}");
    }
}

/// Arguments and results of programs, by their names and types: in registers, in memory, in pages
/// that nobody has touched, where there is nothing, and larger than registers. What the program
/// itself writes about them is in `exercise values`.
#[test]
fn values_of_programs_are_as_rust_shows_them() {
    let program = "uprobe:/bin/exercise:takes_words { \
            print((args.count, args.offset, args.letter, args.is_set, args.wide)); } \
        uprobe:/bin/exercise:takes_texts { print((args.name, args.bytes, args.choice)); } \
        uprobe:/bin/exercise:takes_shapes { \
            print(args.shape); print(args.points); print(*args.beyond); \
            print(CALLS); print(exercise::values::ORIGIN); @y[((&Point)arg3).y] = 1; } \
        uprobe:/bin/exercise:takes_untouched { print(args.bytes); } \
        uprobe:/bin/exercise:takes_many { \
            print((args.a, args.f, args.far, args.name, args.wide)); } \
        uretprobe:/bin/exercise:gives_result, uretprobe:/bin/exercise:gives_summary, \
        uretprobe:/bin/exercise:gives_text { print(retval); } \
        uprobe:/bin/exercise:*::gives_* { @[func] = count(); }";
    let output = trace(&[program, "--run", "exercise values"]);
    let said = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
    let expected = [
        "(255, -3, ß, true, 113427455640312821154458202477256070485)",
        "(grüße, [0, 7, 255], Some(9))",
        "(, [], None)",
        "Nothing",
        "[]",
        "<unreadable>",
        "3",
        "Point { x: -1, y: 1 }",
        "Circle { at: Point { x: -1, y: 1 }, radius: 500 }",
        "[Point { x: -1, y: 1 }, Point { x: 2, y: 3 }]",
        "Point { x: -1, y: 1 }",
        "4",
        "Point { x: -1, y: 1 }",
        "Named(\"square\")",
        "[Point { x: 2, y: 3 }]",
        "<unreadable>",
        "5",
        "Point { x: -1, y: 1 }",
        "[0, 0, 0]",
        "(1, 6, -7, eight, 340282366920938463463374607431768211446)",
        "Err(TooSmall(-5))",
        "Ok(30064771079)",
        "Err(TooLarge)",
        "Summary { name: \"still\", sums: [0, 0, 0], last: None }",
        "Summary { name: \"steps\", sums: [5, 10, 15], last: Some(5) }",
        "a longer one",
        "@[exercise::values::gives_summary]: 2",
        "@[exercise::values::gives_text]: 2",
        "@[exercise::values::gives_result]: 3",
        "@y[0]: 1",
        "@y[1]: 1",
    ];
    for (line, expected) in lines.iter().zip(expected) {
        assert_eq!(*line, expected, "{said}");
    }
    assert!(lines.len() >= expected.len(), "{said}");
}

/// Static marks have their values with their sizes and signs, at each of their places, and can be
/// listed.
#[test]
fn marks_of_programs_have_their_values() {
    let program = "usdt:/bin/exercise:exercise:round { \
            print((arg0, arg1, arg2, arg3, str(arg4, arg5))); print(round); @p[probe] = count(); } \
        usdt:/bin/exercise:em* { @[func] = count(); }";
    let output = trace(&[program, "--run", "exercise values"]);
    let said = String::from_utf8_lossy(&output.stdout);
    let expected = "(0, 0, 223, 18446744073709551615, no)\n0\n\
        (200, -200, 223, 18446744073709551415, some)\n200\n";
    assert!(said.contains(expected), "{said}");
    assert!(
        said.contains("@p[usdt:/bin/exercise:exercise:round]: 2"),
        "{said}"
    );
    assert!(said.contains("@[exercise::values::"), "{said}");
    let said = answer(&["-l", "usdt:/bin/*:exercise:round"]);
    assert!(
        said.starts_with(
            "usdt:/bin/exercise:exercise:round  (arg0: u8, arg1: i16, arg2: u32, arg3: u64, \
             arg4: u64, arg5: u64)  in exercise::values::"
        ),
        "{said}"
    );
    fails(&["-l", "usdt:nothing"], "no mark matches `nothing`");
    for (program, part) in [
        (
            "usdt:/bin/exercise:exercise:rund { }",
            "did you mean `exercise:round`",
        ),
        ("usdt:/bin/child:x { }", "it has none"),
        ("usdt:/bin/nothing:x { }", "is not known here"),
        (
            "usdt:/bin/exercise:round { print(arg6); }",
            "it has arg0 to arg5",
        ),
        ("usdt:/bin/exercise:empty { print(arg0); }", "it has none"),
        (
            "usdt:/bin/exercise:empty { print(retval); }",
            "before the function returns",
        ),
    ] {
        is_refused(program, part);
    }
}

/// A mark with a semaphore computes its values only while it is traced, in each process.
#[test]
fn lazy_marks_compute_their_values_while_they_are_traced() {
    let computed = "usdt:/bin/exercise:computed { print(arg0); }";
    let said = |program: &str| {
        let output = trace(&[program, "--run", "exercise values"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let without = said(computed);
    assert!(without.starts_with("0\n0\n"), "{without}");
    let lazy = "usdt:/bin/exercise:exercise:lazy { print((arg0, arg1)); }";
    let with = said(&format!("{lazy} {computed}"));
    assert!(with.starts_with("(1, 0)\n1\n(2, 200)\n2\n"), "{with}");
    let both = said(lazy);
    assert!(both.starts_with("(1, 0)\n(2, 200)\n"), "{both}");
}

/// The functions of programs and their arguments can be listed.
#[test]
fn functions_of_programs_are_listed() {
    let said = answer(&["-l", "uprobe:/bin/exe*:*takes_t*"]);
    assert!(
        said.contains(
            "uprobe:/bin/exercise:exercise::values::takes_texts  \
             fn takes_texts(name: &str, bytes: &[u8], choice: Option<u16>) -> usize  \
             user/src/bin/exercise/values.rs:"
        ),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    for (pattern, part) in [
        ("uprobe:/bin/nothing:*", "there are /bin/"),
        ("uprobe:/bin/*:no_such_*", "no function of `/bin/*` matches"),
    ] {
        fails(&["-l", pattern], part);
    }
}

/// A pattern leaves out the labels inside of functions in assembly, from which nothing returns.
#[test]
fn returns_of_all_functions_of_a_program_are_counted() {
    let program = "uretprobe:/bin/exercise:probed_* { @[probe] = count(); }";
    let output = trace(&[program, "--run", "exercise probed 2"]);
    let said = String::from_utf8_lossy(&output.stdout);
    for (name, calls) in [("factorial", 20), ("add", 10), ("tail", 2)] {
        let line = format!("@[uretprobe:/bin/exercise:probed_{name}]: {calls}");
        assert!(said.lines().any(|said| said == line), "{said}");
    }
    fails(&["-l", "uprobe:/bin/exercise:probed_way_b*"], "matches");
}

#[test]
fn places_in_programs_that_cannot_be_are_refused() {
    // The tool does not know these programs or places, so it is the kernel that refuses them.
    for (program, part) in [
        ("uprobe:/bin/nothing:user_main { }", "cannot be read"),
        ("uprobe:/bin/workload:0 { }", "no code of the program"),
    ] {
        fails(&[program], part);
    }
    for (program, part) in [
        (
            "uretprobe:/bin/workload:user_main { print(arg0); }",
            "its register",
        ),
        (
            "uprobe:/bin/workload:user_main { print(retval); }",
            "before the function returns",
        ),
        (
            "uprobe:/bin/workload:user_main { print(kstack); }",
            "a place in a program",
        ),
        (
            "uprobe:/bin/workload:run_chid { }",
            "did you mean `run_child`",
        ),
        ("uprobe:/bin/workload:user_main+2 { }", "no instruction"),
        (
            "uprobe:/bin/workload:make_directory { }",
            "has no code of its own in /bin/workload",
        ),
        ("uprobe:/bin/nothing:f* { }", "name one function"),
        (
            "uprobe:/bin/workload:run_child { print(args.kode); }",
            "did you mean code",
        ),
        (
            "uretprobe:/bin/workload:run_child { print(args.code); }",
            "its arguments are gone",
        ),
        (
            "uretprobe:/bin/workload:run_child { print(reg(\"ss\")); }",
            "`ss` is not known here",
        ),
        ("uprobe:/bin/nothing:f { print(args.x); }", "are not known"),
        (
            "uprobe:/bin/workload:user_main { print(arg6); }",
            "not in a register",
        ),
    ] {
        is_refused(program, part);
    }
}

/// A map that forgets has so many keys and no more: one that is used at each hit, and the newest.
#[test]
fn a_map_forgets_the_keys_that_are_not_used() {
    let program = "let @kept = lruhash(8); uprobe:/bin/exercise:probed_add { @calls++; \
                   @kept[0] = @kept[0] + 1; @kept[(uint64)@calls] = (uint64)@calls; }";
    let output = trace(&[program, "--run", "exercise probed 10"]);
    let said = String::from_utf8_lossy(&output.stdout);
    let value_of = |map: &str| -> Option<u64> {
        let line = said.lines().find(|line| line.starts_with(map))?;
        line.rsplit(' ').next()?.parse().ok()
    };
    let calls = value_of("@calls:").expect(&said);
    assert_eq!(calls, 50, "five in each round: {said}");
    assert_eq!(value_of("@kept[0]:"), Some(calls), "{said}");
    assert_eq!(value_of(&format!("@kept[{calls}]:")), Some(calls), "{said}");
    let kept = said.lines().filter_map(|line| line.strip_prefix("@kept["));
    let rows: Vec<(&str, &str)> = kept.filter_map(|row| row.split_once("]: ")).collect();
    assert_eq!(rows.len(), 8, "{said}");
    let is_its_own = |(key, value): &&(&str, &str)| key == value;
    assert_eq!(rows.iter().filter(is_its_own).count(), 7, "{said}");
}
