//! Which clauses are added for calls, and what the probes of a program are called.
//!
//! Nothing is compiled and no kernel is there: mistakes are made up where a clause has a word, and
//! functions have names like `f1`.

use super::*;
use trace_interface::{
    Script,
    view::{Class, MapView},
};
use trace_language::tree::Span;

#[test]
fn probes_are_named_as_the_text_has_them_with_what_tells_them_apart() {
    let text = "kprobe:f, kprobe:g*, uprobe:/bin/a:h*, tracepoint:a:* { }";
    let source = Source {
        name: "the program".into(),
        text: text.into(),
        arguments: Vec::new(),
    };
    let of = |part: &str| {
        let begin = text.find(part).unwrap_or(text.len());
        Span::new(begin, begin + part.len())
    };
    let probe = |addresses: &[u64]| Attachment::Probe {
        program: 0,
        addresses: addresses.into(),
    };
    let user = |function: Option<&str>| Attachment::User {
        program: 0,
        path: "/bin/a".into(),
        function: function.map(Into::into),
        offset: 0,
        counter: None,
        returns: false,
    };
    let call = |functions: &[u64]| Attachment::Call {
        entry: None,
        on_return: 0,
        functions: functions.into(),
    };
    let event = |name: &str| Attachment::Source {
        program: 0,
        name: name.into(),
    };
    let (f, g) = ("kprobe:f", "kprobe:g*");
    let (h, all) = ("uprobe:/bin/a:h*", "tracepoint:a:*");
    type Case<'c> = (&'c [(&'c str, Attachment)], &'c [&'c str]);
    let cases: [Case<'_>; 8] = [
        (&[(f, probe(&[1]))], &["kprobe:f"]),
        (&[(f, probe(&[1, 2]))], &["kprobe:f (2 places)"]),
        (&[(f, call(&[1, 2, 3]))], &["kprobe:f (3 places)"]),
        // Each has its own, and is named after it.
        (
            &[(g, probe(&[1])), (f, probe(&[1])), (g, probe(&[9]))],
            &["kprobe:g* (f1)", "kprobe:f", "kprobe:g* (0x9)"],
        ),
        (
            &[(g, probe(&[1])), (g, probe(&[2, 3]))],
            &["kprobe:g* (f1)", "kprobe:g* (2 places)"],
        ),
        (
            &[
                (h, user(Some("h1"))),
                (h, user(None)),
                (f, user(Some("h1"))),
            ],
            &["uprobe:/bin/a:h* (h1)", "uprobe:/bin/a:h*", "kprobe:f"],
        ),
        (&[(all, event("a:b")), (all, event("a:c"))], &["a:b", "a:c"]),
        (
            &[("added", call(&[2])), ("added", call(&[1, 2]))],
            &[
                "for the pictures: session:f2",
                "for the pictures: session:2 functions",
            ],
        ),
    ];
    for (attached, names) in cases {
        let origins = attached.iter().map(|(part, attachment)| Origin {
            span: of(part),
            event: match attachment {
                Attachment::Source { name, .. } => Some(name.clone()),
                _ => None,
            },
        });
        let origins = Vec::from_iter(origins);
        let attachments = attached.iter().map(|(_, attachment)| attachment.clone());
        let path_at = |address| (address < 9).then(|| format!("f{address}"));
        let attachments = Vec::from_iter(attachments);
        assert_eq!(probes(&origins, &attachments, &source, path_at), names);
    }
}

#[test]
fn each_function_of_several_patterns_is_named_once() {
    let functions = |numbers: &[u64]| -> Functions {
        numbers
            .iter()
            .map(|number| (*number, format!("f{number}")))
            .collect()
    };
    let patterns = BTreeMap::from([
        ("a*", functions(&[1, 2, 3])),
        ("*3", functions(&[3, 13])),
        ("a1", functions(&[1])),
        ("b*", functions(&[7, 8, 9, 10])),
    ]);
    let names = together(patterns);
    assert_eq!(names, [&["b*"], &["a*"], &["f13"]]);
}

#[test]
fn calls_of_many_functions_have_one_clause_without_values() {
    let call = Call::of_all(vec!["a*".into(), "b".into()]);
    assert_eq!(
        call.clause("@n"),
        "session:\"a*\", session:\"b\" { @n = sum(1); $begin = nsecs; } \
         return { $time = nsecs - $begin; @n = sum(-1); \
         printf(\"%s\\n\", (\"\\x01return\", func, $begin, $time, \"\", \"\")); }\n"
    );
}

/// The map is no one's but the pictures', whatever maps the program has.
#[test]
fn the_count_of_calls_without_an_end_is_not_shown() {
    let source = |text: &str| Source {
        name: "the program".into(),
        text: text.into(),
        arguments: Vec::new(),
    };
    let map = |name: &str| MapView {
        name: Some(name.into()),
        class: Class::Sum { signed: true },
        keys: Vec::new(),
    };
    let own = count_of("begin { }");
    let text = format!("begin {{ {own} = 1; }}");
    let others = count_of(&text);
    assert_ne!(own, others);
    let mut view = View {
        maps: vec![map("@a"), map(&own), map(&others)],
        ..View::default()
    };
    assert_eq!(take_count(&source(&text), &mut view), Some(2));
    let names = view.maps.iter().map(|map| map.name.as_deref());
    assert_eq!(names.collect::<Vec<_>>(), [Some("@a"), Some(&*own), None]);
    assert_eq!(take_count(&source(&text), &mut view), None);
}

fn call_of(name: &str) -> Call {
    Call {
        arguments: vec![("a".into(), format!("args.{name}"))],
        has_known_arguments: true,
        result: "retval",
        left_out: 0,
        ..Call::of_all(vec![name.into()])
    }
}

/// Compiles the own text `begin { }` with clauses for `f` and `g`, where each of `wrong` is a
/// mistake. The result, and the text that was taken.
fn compiled(wrong: &[&str]) -> (Result<Option<Compiled>, Diagnostic>, Option<String>) {
    let taken = std::cell::RefCell::new(None);
    let attempt = |text: &str| {
        let places = wrong
            .iter()
            .filter_map(|word| Some((text.find(word)?, word)));
        let mistakes: Vec<Diagnostic> = places
            .map(|(at, word)| Diagnostic::new(Span::new(at, at + 1), *word, ""))
            .collect();
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        *taken.borrow_mut() = Some(text.into());
        let clauses = text.match_indices("session:").map(|(at, _)| at);
        let origins: Vec<Origin> = [0]
            .into_iter()
            .chain(clauses)
            .map(|at| Origin {
                span: Span::new(at, at + 1),
                event: None,
            })
            .collect();
        Ok(Compiled {
            script: Script {
                probes: vec![7; origins.len()],
                ..Script::default()
            },
            view: View::default(),
            missing: Vec::new(),
            origins,
        })
    };
    let additions = Additions {
        own: "begin { }".into(),
        calls: vec![call_of("f"), call_of("g")],
        ..Additions::default()
    };
    let result = additions.compile(attempt);
    (result, taken.into_inner())
}

/// The clauses say what can be said, and the user's own probe is the only one that must be
/// there.
#[test]
fn clauses_with_mistakes_say_less_and_are_optional() {
    for (wrong, said) in [
        (&[][..], ["args.f", "args.g", "retval", "\"g\""]),
        (&["args.g"], ["args.f", "-args.g", "retval", "\"g\""]),
        (&["\"g\""], ["args.f", "-args.g", "retval", "-\"g\""]),
        (
            &["args.f", "retval"],
            ["-args.f", "args.g", "-retval", "\"g\""],
        ),
    ] {
        let (result, text) = compiled(wrong);
        let (whole, text) = (result.unwrap().unwrap(), text.unwrap());
        for part in said {
            let is_there = !part.starts_with('-');
            let part = part.trim_start_matches('-');
            assert_eq!(text.contains(part), is_there, "{part}: {text}");
        }
        let calls = whole.script.probes.len() - 1;
        let probes = [&[7][..], &vec![OPTIONAL; calls]].concat();
        assert_eq!(whole.script.probes, probes, "{text}");
    }
}

#[test]
fn why_no_clause_is_taken_is_told() {
    for wrong in [
        &["session:\"f\"", "session:\"g\""][..],
        // A mistake of the user's own text.
        &["begin"],
    ] {
        let (result, _) = compiled(wrong);
        let Err(reason) = result else {
            panic!("{wrong:?} is taken");
        };
        assert!(wrong.contains(&&*reason.message), "{reason:?}");
    }
    let nothing = Additions::default().compile(|_| panic!("there is nothing to compile"));
    assert!(matches!(nothing, Ok(None)));
}

/// The result is left out first, then the arguments, then both.
#[test]
fn a_clause_that_is_wrong_says_less_until_nothing_is_left() {
    let mut call = Call {
        names: vec!["f".into()],
        arguments: vec![("a".into(), "args.a".into())],
        has_known_arguments: true,
        result: "retval",
        is_wrong: false,
        left_out: 0,
        in_tree: None,
    };
    assert!(call.say_less());
    let mut said = Vec::new();
    loop {
        let clause = call.clause("@n");
        said.push((clause.contains("args.a"), clause.contains("retval")));
        call.is_wrong = true;
        if !call.say_less() {
            break;
        }
    }
    assert_eq!(
        said,
        [(true, true), (true, false), (false, true), (false, false)]
    );
}
