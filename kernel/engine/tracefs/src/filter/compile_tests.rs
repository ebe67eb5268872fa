//! Compiled filters against [`Filter::matches`], executed by the interpreter of programs.
//!
//! Random filters on random records must decide alike. How many instructions a filter takes, and
//! which loads it saves, is pinned.

use alloc::{
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};

use bpf::{Builder, Program, ProgramKind, Reg, Size};
use bpf_interpreter::{Space, TestMachine};
use proptest::prelude::*;

use super::{
    tests::{Open, fields, record},
    *,
};

/// Where the record lies in kernel memory, for the loads of numbers.
const RECORD: u64 = 0xffff_8000_0000_0000;
/// Where strings lie.
const NAME: u64 = 0xffff_8000_0001_0000;
const PATH: u64 = 0x7000_0000;

const FRAME: Frame = Frame {
    value: Reg::R7,
    text: -Frame::TEXT_BYTES,
};

fn compile(filter: &Filter) -> Program {
    let mut builder = Builder::new(ProgramKind::Probe);
    let reject = builder.label();
    let mut load = |builder: &mut Builder, field: &Field, dst| {
        // Loads may use these registers.
        for scratch in [Reg::R0, Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5] {
            builder.mov(scratch, -1);
        }
        Ok(match &*field.name {
            "name" => {
                builder.set(dst, NAME as i64);
                Loaded::KernelText
            }
            "path" => {
                builder.set(dst, PATH as i64);
                Loaded::UserText
            }
            _ => {
                // Eight bytes of any field, because the upper ones may be anything.
                builder
                    .set(dst, (RECORD + u64::from(field.offset)) as i64)
                    .load(dst, dst, 0, Size::B8);
                Loaded::Number
            }
        })
    };
    filter
        .compile(&mut builder, FRAME, reject, &mut load)
        .unwrap();
    builder.exit(1).place(reject).exit(0);
    let program = builder.finish().unwrap();
    bpf::verifier::verify(program.clone())
        .unwrap_or_else(|refusal| panic!("{}: {refusal}", filter.text()));
    program
}

/// A hit: numbers of fields, strings (`None` cannot be read), name of the task, CPU.
#[derive(Clone, Debug)]
struct Sample {
    numbers: Vec<(&'static str, u64)>,
    name: Option<Vec<u8>>,
    path: Option<Vec<u8>>,
    comm: Vec<u8>,
    cpu: u32,
    pid: u32,
}

impl Sample {
    fn record(&self) -> Vec<u8> {
        let mut numbers = self.numbers.clone();
        numbers.push(("common_pid", self.pid.into()));
        let strings: Vec<(&str, &[u8])> = [("name", &self.name), ("path", &self.path)]
            .into_iter()
            .filter_map(|(field, text)| Some((field, text.as_deref()?)))
            .collect();
        record(&numbers, &strings)
    }

    fn matches(&self, filter: &Filter) -> bool {
        filter.matches(&Hit {
            record: &self.record(),
            comm: &self.comm,
            cpu: self.cpu,
        })
    }

    fn run(&self, program: &Program) -> bool {
        let mut machine = TestMachine::new(program);
        let mut bytes = self.record();
        bytes.extend([0x5a; 8]);
        machine.put(Space::Kernel, RECORD, &bytes);
        for (space, address, text) in [
            (Space::Kernel, NAME, &self.name),
            (Space::User, PATH, &self.path),
        ] {
            if let Some(text) = text {
                machine.put(space, address, text);
                machine.put(space, address + text.len() as u64, &[0]);
            }
        }
        machine.comm = [0; 16];
        machine.comm[..self.comm.len()].copy_from_slice(&self.comm);
        machine.cpu = self.cpu;
        machine.pid_tgid = 7 << 32 | u64::from(self.pid);
        bpf_interpreter::run(program, &mut machine, 100_000).unwrap() == 1
    }
}

/// A few numbers often, so that comparisons for equality are met.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..4_u64,
        Just(0x7f),
        Just(0x80),
        Just(0xff),
        Just(0x8000),
        Just(0x7fff_ffff),
        Just(0x8000_0000),
        Just(0xffff_ffff),
        Just(1 << 63),
        Just(u64::MAX),
        any::<u64>(),
    ]
}

const NUMBERS: [&str; 9] = [
    "u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "letter",
];

fn text(most: usize) -> impl Strategy<Value = Vec<u8>> {
    let short = prop::collection::vec(prop::sample::select(&b"ab"[..]), 0..6.min(most));
    let long = prop::collection::vec(prop::sample::select(&b"abc"[..]), 0..most);
    prop_oneof![short, long]
}

fn sample() -> impl Strategy<Value = Sample> {
    (
        prop::collection::vec((prop::sample::select(&NUMBERS[..]), number()), 0..8),
        prop::option::of(text(140)),
        prop::option::of(text(140)),
        text(15),
        0..4_u32,
        0..4_u32,
    )
        .prop_map(|(numbers, name, path, comm, cpu, pid)| Sample {
            numbers,
            name,
            path,
            comm,
            cpu,
            pid,
        })
}

fn pattern() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(&["a", "b", "ab", "*", "?", "[ab]", "[!a]", "abababab"][..]);
    let any = prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat());
    let long = text(126).prop_map(|text| String::from_utf8(text).unwrap());
    prop_oneof![4 => any, 1 => long]
}

fn test() -> impl Strategy<Value = String> {
    let comparison = prop::sample::select(&["==", "!=", "<", "<=", ">", ">=", "&"][..]);
    let field = prop::sample::select(&NUMBERS[..]);
    let numbers = (field, comparison, number()).prop_map(|(field, sign, value)| {
        let value = match field {
            "s64" => format!("{}", value as i64),
            "s8" | "s16" | "s32" => format!("{}", value as i32),
            _ => format!("{value:#x}"),
        };
        format!("{field} {sign} {value}")
    });
    let own = (prop::sample::select(&["CPU", "common_pid"][..]), 0..4)
        .prop_map(|(field, value)| format!("{field} >= {value}"));
    let sign = prop::sample::select(&["==", "!=", "~", "~ !"][..]);
    let subject = prop::sample::select(&["name", "path", "comm"][..]);
    let texts = (subject, sign, pattern()).prop_map(|(subject, sign, pattern)| {
        let (sign, mark) = sign.split_once(' ').unwrap_or((sign, ""));
        format!("{subject} {sign} \"{mark}{pattern}\"")
    });
    prop_oneof![3 => numbers, 1 => own, 2 => texts]
}

fn filter() -> impl Strategy<Value = Filter> {
    test()
        .prop_recursive(4, 16, 4, |part| {
            prop_oneof![
                part.clone().prop_map(|part| format!("!({part})")),
                (part.clone(), part.clone()).prop_map(|(a, b)| format!("({a}) && ({b})")),
                (part.clone(), part.clone()).prop_map(|(a, b)| format!("({a} || {b})")),
                (part.clone(), part.clone(), part)
                    .prop_map(|(a, b, c)| format!("{a} && {b} || !({c})")),
            ]
        })
        .prop_map(|text| Filter::parse(&text, &fields(), &Open).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn printed_filters_read_as_the_same(filter in filter()) {
        let printed = filter.expression().to_string();
        let again = Filter::parse(&printed, &fields(), &Open).unwrap();
        prop_assert_eq!(again.expression(), filter.expression());
    }

    #[test]
    fn compiled_filters_decide_as_the_reference(
        filter in filter(),
        samples in prop::collection::vec(sample(), 1..8),
    ) {
        let program = compile(&filter);
        for sample in samples {
            prop_assert_eq!(sample.run(&program), sample.matches(&filter), "{:?}", sample);
        }
    }

    #[test]
    fn any_text_is_read_or_refused_at_a_column_in_it(text in "[a-z0-9 ()&|!<>='\"~*-]{0,40}") {
        if let Err(error) = Filter::parse(&text, &fields(), &Open) {
            prop_assert!(error.column <= text.len() + 1);
        }
    }
}

#[test]
fn addresses_of_functions_are_compared_as_ranges() {
    for text in [
        "ip.function == open",
        "ip.function != open",
        "!(ip.function == open)",
    ] {
        let filter = Filter::parse(text, &fields(), &Open).unwrap();
        let program = compile(&filter);
        for address in [0, 0xfff, 0x1000, 0x101f, 0x1020, u64::MAX] {
            let sample = Sample {
                numbers: [("ip", address)].into(),
                name: None,
                path: None,
                comm: Vec::new(),
                cpu: 0,
                pid: 0,
            };
            assert_eq!(
                sample.run(&program),
                sample.matches(&filter),
                "{text} {address:#x}"
            );
        }
    }
}

#[test]
fn a_pattern_that_takes_all_needs_a_string_that_can_be_read() {
    let filter = parse("name ~ \"*\"");
    for name in [None, Some(Vec::new()), Some(b"a".into())] {
        let sample = Sample {
            numbers: Vec::new(),
            name,
            path: None,
            comm: Vec::new(),
            cpu: 0,
            pid: 0,
        };
        assert_eq!(
            sample.run(&compile(&filter)),
            sample.name.is_some(),
            "{sample:?}"
        );
    }
}

#[test]
fn a_field_is_loaded_once_where_all_paths_have_loaded_it() {
    let loads = |text| {
        let mut count = 0;
        let filter = Filter::parse(text, &fields(), &Open).unwrap();
        let mut builder = Builder::new(ProgramKind::Probe);
        let reject = builder.label();
        filter
            .compile(&mut builder, FRAME, reject, &mut |builder, _, dst| {
                count += 1;
                builder.mov(dst, 0);
                Ok(Loaded::Number)
            })
            .unwrap();
        count
    };
    assert_eq!(loads("u8 > 1 && u8 < 9"), 1);
    assert_eq!(loads("(u8 == 1 || u8 == 2) && u8 != 3"), 1);
    assert_eq!(loads("u8 == 1 && u16 == 2 && u8 == 3"), 3);
    // After the first part `u8` is held on one path and `u16` on the other.
    assert_eq!(loads("(u8 == 1 || u16 == 2) && u8 == 3"), 3);
}

#[test]
fn filters_take_few_instructions() {
    let insns = |text| {
        let mut builder = Builder::new(ProgramKind::Probe);
        let reject = builder.label();
        parse(text)
            .compile(&mut builder, FRAME, reject, &mut |builder, field, dst| {
                builder.mov(dst, 0);
                Ok(if field.is_string() {
                    Loaded::KernelText
                } else {
                    Loaded::Number
                })
            })
            .unwrap();
        builder.place(reject).exit(0);
        // Without the load, and the two of the exit.
        builder.finish().unwrap().insns.len() - 3
    };
    assert_eq!(insns("u32 == 5"), 1);
    assert_eq!(insns("s8 < 0"), 2);
    assert_eq!(insns("u64 != 0x123456789"), 2);
    assert_eq!(insns("u8 > 1 && u8 < 9"), 4);
    // Five for the copy, a branch, three for each 8 bytes.
    assert_eq!(insns("name == \"abcdefg\""), 9);
    assert_eq!(insns("name ~ \"abcdefgh*\""), 9);
    assert_eq!(insns("name ~ \"*abc*\""), 757);
}

fn parse(text: &str) -> Filter {
    Filter::parse(text, &fields(), &Open).unwrap()
}

#[test]
fn values_that_are_not_there_yet_are_told() {
    let mut builder = Builder::new(ProgramKind::Probe);
    let reject = builder.label();
    let error = LoadError("this number is known when the record is reserved");
    let result = parse("u8 == 1").compile(&mut builder, FRAME, reject, &mut |_, _, _| Err(error));
    assert_eq!(result, Err(CompileError::Load(error)));
    let result = parse("name == \"x\"").compile(&mut builder, FRAME, reject, &mut |_, _, _| {
        Ok(Loaded::Number)
    });
    assert_eq!(result, Err(CompileError::Mismatch));
}

#[test]
fn constant_strings_are_decided_when_compiling() {
    for (text, kept) in [("name ~ \"a*\"", true), ("name != \"abc\"", false)] {
        let mut builder = Builder::new(ProgramKind::Probe);
        let reject = builder.label();
        parse(text)
            .compile(&mut builder, FRAME, reject, &mut |_, _, _| {
                Ok(Loaded::Constant(b"abc"))
            })
            .unwrap();
        builder.exit(1).place(reject).exit(0);
        let program = builder.finish().unwrap();
        let result = bpf_interpreter::run(&program, &mut TestMachine::new(&program), 100);
        assert_eq!(result, Ok(kept.into()), "{text}");
    }
}

#[test]
fn a_filter_that_needs_too_many_instructions_is_told() {
    let many = ["name ~ \"*abc*\""; 6].join(" && ");
    let mut builder = Builder::new(ProgramKind::Probe);
    let reject = builder.label();
    parse(&many)
        .compile(&mut builder, FRAME, reject, &mut |builder, _, dst| {
            builder.mov(dst, 0);
            Ok(Loaded::KernelText)
        })
        .unwrap();
    builder.exit(1).place(reject).exit(0);
    assert_eq!(builder.finish(), Err(bpf::BuildError::TooLong));
}
