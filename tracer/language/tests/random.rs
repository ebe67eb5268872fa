//! Random trees come back from their text; random and damaged texts make no panic.
//!
//! Trees are compared without their spans, which are those of the printed text. Damaged texts are
//! good ones of which some letters were changed.

use proptest::{collection::vec, option, prelude::*, sample::select};
use trace_language::{
    parse,
    tree::{
        Access, Arm, Binary, Binding, Block, Clause, Expression, ExpressionKind, Map, Name, OfCall,
        Pattern, PatternKind, Probe, ProbeKind, ReturnPart, Span, Statement, StatementKind, Target,
        Tree, TypeKind, TypeName, Unary, Watched,
    },
};

const PLACE: Span = Span::new(0, 0);

fn name(text: &str) -> Name {
    Name {
        text: text.into(),
        span: PLACE,
    }
}

fn any_name() -> impl Strategy<Value = Name> {
    select(vec!["a", "_b", "size", "x1", "struct_x", "iffy"]).prop_map(name)
}

fn path() -> impl Strategy<Value = String> {
    select(vec![
        "pid",
        "args",
        "retval",
        "kernel::sched::COUNT",
        "a::b",
    ])
    .prop_map(String::from)
}

fn type_name() -> impl Strategy<Value = TypeName> {
    let node = |kind| TypeName { kind, span: PLACE };
    select(vec![
        "u8",
        "file",
        "kernel::fs::File",
        "Option<&str>",
        "A<B<u8>, C>",
        "Box<dyn A + B>",
    ])
    .prop_map(move |text| node(TypeKind::Named(text.replace(" + ", "+"))))
    .prop_recursive(2, 4, 1, move |inner| {
        prop_oneof![
            inner
                .clone()
                .prop_map(move |to| node(TypeKind::Pointer(Box::new(to)))),
            inner.clone().prop_map(move |of| {
                let slice = node(TypeKind::Slice(Box::new(of)));
                node(TypeKind::Pointer(Box::new(slice)))
            }),
            (inner, any::<u64>()).prop_map(move |(of, count)| {
                let array = node(TypeKind::Array {
                    of: Box::new(of),
                    count,
                });
                node(TypeKind::Pointer(Box::new(array)))
            }),
        ]
    })
}

fn type_of(value: Box<Expression>) -> TypeName {
    TypeName {
        kind: TypeKind::Of(value),
        span: PLACE,
    }
}

fn value(kind: ExpressionKind) -> Expression {
    Expression { kind, span: PLACE }
}

fn map(name: Name, keys: Vec<Expression>) -> Map {
    Map {
        name,
        keys,
        span: PLACE,
    }
}

fn target(keys: impl Strategy<Value = Expression> + 'static) -> impl Strategy<Value = Target> {
    prop_oneof![
        any_name().prop_map(Target::Variable),
        (any_name(), vec(keys, 0..3)).prop_map(|(name, keys)| Target::Map(map(name, keys))),
    ]
}

fn expression() -> BoxedStrategy<Expression> {
    let leaf = prop_oneof![
        any::<u64>().prop_map(ExpressionKind::Integer),
        any::<bool>().prop_map(ExpressionKind::Boolean),
        any::<String>().prop_map(ExpressionKind::String),
        any_name().prop_map(|name| ExpressionKind::Variable(name.text)),
        path().prop_map(ExpressionKind::Name),
        Just(ExpressionKind::Map(map(name(""), Vec::new()))),
    ]
    .prop_map(value);
    leaf.prop_recursive(4, 24, 3, |inner| {
        let boxed = || inner.clone().prop_map(Box::new);
        let unary = select(vec![
            Unary::Negate,
            Unary::Not,
            Unary::Complement,
            Unary::Dereference,
        ]);
        prop_oneof![
            (any_name(), vec(inner.clone(), 0..3))
                .prop_map(|(name, keys)| ExpressionKind::Map(map(name, keys))),
            (path(), vec(inner.clone(), 0..3)).prop_map(|(path, arguments)| {
                ExpressionKind::Call {
                    name: name(&path),
                    arguments,
                }
            }),
            (boxed(), select(vec!["a", "len", "0", "12"])).prop_map(|(of, field)| {
                ExpressionKind::Field {
                    of,
                    name: name(field),
                }
            }),
            (boxed(), boxed()).prop_map(|(of, index)| ExpressionKind::Index { of, index }),
            (unary, boxed())
                .prop_map(|(operation, operand)| ExpressionKind::Unary { operation, operand }),
            (select(Binary::ALL.to_vec()), boxed(), boxed()).prop_map(
                |(operation, left, right)| {
                    ExpressionKind::Binary {
                        operation,
                        left,
                        right,
                    }
                }
            ),
            (boxed(), boxed(), boxed()).prop_map(|(condition, then, otherwise)| {
                ExpressionKind::Ternary {
                    condition,
                    then,
                    otherwise,
                }
            }),
            (type_name(), boxed()).prop_map(|(to, operand)| ExpressionKind::Cast { to, operand }),
            (boxed(), boxed()).prop_map(|(of, operand)| ExpressionKind::Cast {
                to: type_of(of),
                operand
            }),
            (path(), boxed(), type_name()).prop_map(|(path, of, to)| {
                let mut arguments = vec![value(ExpressionKind::Type(type_of(of)))];
                // A word alone is a value.
                if !matches!(to.kind, TypeKind::Named(_)) {
                    arguments.push(value(ExpressionKind::Type(to)));
                }
                ExpressionKind::Call {
                    name: name(&path),
                    arguments,
                }
            }),
            vec(inner.clone(), 0..4).prop_map(ExpressionKind::Tuple),
            vec(inner.clone(), 1..4).prop_map(|values| {
                let names = ["a", "b", "c"].map(name);
                ExpressionKind::Record(names.into_iter().zip(values).collect())
            }),
            (target(inner.clone()), any::<bool>(), any::<bool>()).prop_map(
                |(target, up, value_before)| ExpressionKind::Step {
                    target: Box::new(target),
                    up,
                    value_before,
                }
            ),
        ]
        .prop_map(value)
    })
    .boxed()
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let bindings = prop_oneof![
        Just(Vec::new()),
        Just(vec![("0", "a"), ("2", "b")]),
        Just(vec![("size", "a"), ("x", "b")]),
    ];
    prop_oneof![
        Just(PatternKind::Any),
        any::<u64>().prop_map(PatternKind::Integer),
        any::<String>().prop_map(PatternKind::String),
        any::<bool>().prop_map(PatternKind::Boolean),
        (select(vec!["Ok", "Shape::Circle"]), bindings).prop_map(|(variant, bindings)| {
            let binding = |(field, variable)| Binding {
                field: name(field),
                variable: name(variable),
            };
            PatternKind::Variant {
                name: name(variant),
                bindings: bindings.into_iter().map(binding).collect(),
            }
        }),
    ]
    .prop_map(|kind| Pattern { kind, span: PLACE })
}

fn block() -> BoxedStrategy<Block> {
    let operation = select(Binary::ALL.to_vec()).prop_filter("assigns", |one| one.can_assign());
    let leaf = prop_oneof![
        (target(expression()), option::of(operation), expression()).prop_map(
            |(target, operation, value)| StatementKind::Assign {
                target,
                operation,
                value
            }
        ),
        (
            any_name(),
            option::of(prop_oneof![
                type_name(),
                expression().prop_map(|value| type_of(Box::new(value)))
            ]),
            option::of(expression())
        )
            .prop_map(|(variable, to, value)| StatementKind::Let {
                variable,
                to,
                value
            }),
        expression().prop_map(StatementKind::Expression),
        option::of(expression()).prop_map(StatementKind::Return),
        Just(StatementKind::Break),
        Just(StatementKind::Continue),
    ];
    let block_of = |statement: BoxedStrategy<StatementKind>| {
        vec(statement, 0..3).prop_map(|kinds| Block {
            statements: kinds
                .into_iter()
                .map(|kind| Statement { kind, span: PLACE })
                .collect(),
            span: PLACE,
        })
    };
    let statement = leaf.prop_recursive(2, 6, 2, move |inner| {
        let block = block_of(inner.clone()).boxed();
        let arm = (vec(pattern(), 1..2), block.clone()).prop_map(|(patterns, body)| Arm {
            patterns,
            body,
            span: PLACE,
        });
        prop_oneof![
            (expression(), block.clone(), option::of(block.clone())).prop_map(
                |(condition, then, otherwise)| StatementKind::If {
                    condition,
                    then,
                    otherwise
                }
            ),
            (1..u64::MAX, block.clone())
                .prop_map(|(count, body)| StatementKind::Unroll { count, body }),
            (any_name(), expression(), expression(), block.clone()).prop_map(
                |(variable, from, to, body)| StatementKind::For {
                    variable,
                    from,
                    to,
                    body
                }
            ),
            (any_name(), any_name(), block.clone()).prop_map(|(variable, map, body)| {
                StatementKind::ForEach {
                    variable,
                    map,
                    body,
                }
            }),
            (expression(), block)
                .prop_map(|(condition, body)| StatementKind::While { condition, body }),
            (expression(), vec(arm, 0..3))
                .prop_map(|(value, arms)| StatementKind::Match { value, arms }),
        ]
    });
    block_of(statement.boxed()).boxed()
}

fn probe() -> impl Strategy<Value = Probe> {
    let function = || {
        prop_oneof![
            select(vec![
                "vfs_*",
                "a::b::{closure#0}",
                "<A as B<u8>>::f",
                "a b",
                "x$1",
                "{{x",
                "*?"
            ])
            .prop_map(String::from),
            ".+".prop_filter("the name of a function", |text| {
                !text.ends_with("::") && !text.starts_with(|first: char| first.is_ascii_digit())
            }),
        ]
        .prop_map(|text| name(&text))
    };
    prop_oneof![
        (function(), any::<u64>())
            .prop_map(|(function, offset)| ProbeKind::Entry { function, offset }),
        function().prop_map(|function| ProbeKind::Return { function }),
        function().prop_map(|function| ProbeKind::Inlined { function }),
        (1..u32::MAX).prop_map(|line| ProbeKind::Line {
            file: name("a/b-c.rs"),
            line
        }),
        prop_oneof![Just("cmp?x*"), Just("inc dword ptr gs:[0x*]"), Just("a\"b")].prop_map(
            |text| ProbeKind::Instruction {
                pattern: name(text)
            }
        ),
        Just(ProbeKind::Tracepoint {
            group: name("s*"),
            event: name("e.?x")
        }),
        (1..u64::MAX).prop_map(|nanoseconds| ProbeKind::Interval { nanoseconds }),
        (1..u64::MAX).prop_map(|nanoseconds| ProbeKind::Profile { nanoseconds }),
        (any::<u64>(), 0_u32..4, watched_program(), access(true)).prop_map(
            |(address, log2, program, access)| {
                let bytes = 1 << log2;
                ProbeKind::Watch {
                    program,
                    what: Watched::Memory { address, bytes },
                    access,
                }
            }
        ),
        (watched_program(), access(false)).prop_map(|(program, access)| ProbeKind::Watch {
            program,
            what: Watched::Static(name("kernel::task::NEXT.value.0")),
            access,
        }),
        (access(false), any::<bool>()).prop_map(|(access, by_address)| {
            let (memory, bytes) = match by_address {
                true => ("arg1", Some(4)),
                false => ("(*args.x).y[2]", None),
            };
            let what = Watched::OfCall(OfCall {
                function: name("fs::File::open"),
                memory: name(memory),
                bytes,
            });
            ProbeKind::Watch {
                program: None,
                what,
                access,
            }
        }),
        Just(ProbeKind::Begin),
        Just(ProbeKind::End),
    ]
    .prop_map(|kind| Probe { kind, span: PLACE })
}

fn watched_program() -> impl Strategy<Value = Option<Name>> {
    option::of(Just(name("/bin/workload")))
}

fn access(of_instructions: bool) -> impl Strategy<Value = Access> {
    (0..2 + usize::from(of_instructions))
        .prop_map(|which| [Access::Write, Access::ReadWrite, Access::Execute][which])
}

fn clause() -> impl Strategy<Value = Clause> {
    let part = (option::of(expression()), block()).prop_map(|(predicate, body)| ReturnPart {
        predicate,
        body,
        span: PLACE,
    });
    let parts = (
        vec(probe(), 1..3),
        option::of(expression()),
        block(),
        option::of(part),
    );
    parts.prop_map(|(mut probes, predicate, body, on_return)| {
        if on_return.is_some() {
            let function = name("vfs_write");
            probes = vec![Probe {
                kind: ProbeKind::Session { function },
                span: PLACE,
            }];
        }
        Clause {
            probes,
            predicate,
            body,
            on_return,
            span: PLACE,
        }
    })
}

/// A tree as text, without the places.
fn shape(tree: &Tree) -> String {
    let text = format!("{tree:?}");
    let mut shape = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("span: @") {
        shape += &rest[..at];
        rest = rest[at + 7..].trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    }
    shape + rest
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn random_trees_come_back_from_their_text(clauses in vec(clause(), 1..3)) {
        let tree = Tree { settings: Vec::new(), maps: Vec::new(), clauses };
        let text = tree.to_string();
        match parse(&text) {
            Ok(again) => prop_assert_eq!(shape(&again), shape(&tree), "{}", text),
            Err(mistakes) => prop_assert!(false, "{}\n{}", text, mistakes[0].show(&text)),
        }
    }

    #[test]
    fn random_texts_make_no_panic(text in any::<String>()) {
        check(&text)?;
        check(&format!("kprobe:f {{ {text} }}"))?;
    }

    #[test]
    fn random_words_make_no_panic(words in vec(select(WORDS.to_vec()), 0..40)) {
        check(&words.concat())?;
        check(&format!("kprobe:f {{ {} }}", words.join(" ")))?;
    }

    #[test]
    fn damaged_programs_make_no_panic(
        clause in clause(), at in any::<prop::sample::Index>(), cut in 0_usize..8, put in ".{0,3}",
    ) {
        let text = clause.to_string();
        let mut letters: Vec<char> = text.chars().collect();
        let start = at.index(letters.len());
        let end = (start + cut).min(letters.len());
        letters.splice(start..end, put.chars());
        check(&letters.into_iter().collect::<String>())?;
    }
}

const WORDS: [&str; 62] = [
    "kprobe:",
    "session:f",
    "line:",
    "interval:",
    "begin",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "<",
    ">",
    "/",
    "//",
    "/*",
    "*/",
    "\"",
    "\\",
    "$",
    "$a",
    "$1",
    "@",
    "@m",
    "#",
    ",",
    ";",
    ":",
    "::",
    "..",
    ".",
    "->",
    "=>",
    "=",
    "==",
    "+=",
    "++",
    "--",
    "-",
    "*",
    "&",
    "&&",
    "|",
    "?",
    "!",
    "if",
    "else",
    "for",
    "unroll",
    "match",
    "let",
    "return",
    "_",
    "u8",
    "typeof(",
    "sizeof(",
    "Foo<",
    "0x",
    "5ms",
    "1",
    "é",
    "\n",
];

/// A text is taken or refused; whatever is reported has a place in it.
fn check(text: &str) -> Result<(), TestCaseError> {
    if let Err(mistakes) = parse(text) {
        prop_assert!(!mistakes.is_empty());
        for mistake in mistakes {
            let range = mistake.span.range();
            prop_assert!(
                text.get(range.clone()).is_some(),
                "{:?} of {:?}",
                range,
                text
            );
            prop_assert!(!mistake.show(text).to_string().is_empty());
        }
    }
    Ok(())
}
