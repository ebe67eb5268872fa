//! The programs in bpftrace's unit tests: each is valid there or an error, and taken or refused
//! here.
//!
//! A test is a call of a function `test…` with the program as its first text. It says that the
//! program is an error by the function's name, by an argument `Error{…}`, by the text of the
//! message, or by a verdict, whichever the file has.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use crate::{
    calls::{Argument, Call, calls},
    groups::{Groups, kind_of},
    rules::Rules,
    world::{AnyKernel, Outcome, compiled},
};

/// How the tests of a file say that a program is an error.
#[derive(Clone, Copy)]
enum Verdict {
    /// By the function's name or by `Error{…}` only.
    Named,
    /// By the text at this position after the program, or a variable `error…`, if it is not empty.
    Message(usize),
    /// By an argument that is this code.
    Is(&'static str),
}

use Verdict::{Is, Message, Named};

/// The files, and whether their tests only parse: a program that is valid there may mean nothing.
const FILES: [(&str, Verdict, bool); 14] = [
    ("parser", Named, true),
    ("type_checker", Named, false),
    ("type_resolver", Named, false),
    ("pre_type_check", Message(0), false),
    ("fold_literals", Named, true),
    ("field_analyser", Is("false"), false),
    ("builtins", Named, false),
    ("macro_expansion", Message(1), true),
    ("config_analyser", Is("false"), false),
    ("control_flow_analyser", Is("1"), false),
    ("resource_analyser", Is("false"), false),
    ("attachpoint_passes", Message(0), true),
    ("named_param", Named, true),
    ("unstable_feature", Named, false),
];

/// A program of a test.
struct Text {
    place: String,
    program: String,
    is_error: bool,
    /// It is about a Linux that lacks features.
    is_of_old_kernel: bool,
}

/// The program of a call, and what the test says about it.
fn text(file: &str, verdict: Verdict, call: &Call) -> Option<Text> {
    let is_about_objects = |argument: &&Argument| {
        let names = ["bpftrace", "func_info"];
        let code = |name: &&str| match argument {
            Argument::Code(code) => code.trim_start_matches('*') == *name,
            Argument::Text(_) => false,
        };
        names.iter().any(code)
    };
    let objects = call.arguments.iter().take_while(is_about_objects).count();
    let [Argument::Text(program), others @ ..] = &call.arguments[objects..] else {
        return None;
    };
    let named = call.name.contains("error") || call.name.contains("failure");
    let marked = others
        .iter()
        .any(|argument| matches!(argument, Argument::Code(code) if code.starts_with("Error{")));
    let told = match verdict {
        Named => false,
        Message(position) => match others.get(position) {
            Some(Argument::Text(text)) => !text.is_empty(),
            Some(Argument::Code(code)) => code.starts_with("error"),
            None => false,
        },
        Is(wanted) => others.contains(&Argument::Code(wanted.into())),
    };
    let program = match file {
        // These tests are of expressions. So are their functions.
        "fold_literals" => format!("begin {{ {program}; exit(); }}"),
        _ => program.trim_start_matches('\n').into(),
    };
    Some(Text {
        place: format!("{file}.cpp:{}", call.line),
        program,
        is_error: named || marked || told,
        is_of_old_kernel: others.contains(&Argument::Code("NoFeatures::Enable".into())),
    })
}

/// The arguments that the test around a call gives to its program, before the call.
fn parameters<'s>(source: &str, given: &'s [Call], call: &Call) -> Vec<&'s str> {
    let is_with_object =
        |argument: &Argument| matches!(argument, Argument::Code(code) if code.contains("bpftrace"));
    if !call.arguments.iter().any(is_with_object) {
        return Vec::new();
    }
    let lines = source.lines().take(call.line);
    let begins = lines
        .enumerate()
        .filter(|(_, line)| line.starts_with("TEST"));
    let begin = begins.last().map_or(0, |(line, _)| line + 1);
    let of_test = given
        .iter()
        .filter(|given| (begin..call.line).contains(&given.line));
    let texts = of_test.filter_map(|given| match &given.arguments[..] {
        [Argument::Text(text)] => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

/// Holds the programs of the unit tests against the compiler, and prints the figures.
pub fn hold(checkout: &Path) -> Result<()> {
    let rules = Rules::new();
    let mut left_out = Groups::default();
    let (mut refused_here, mut taken_here) = (Groups::default(), Groups::default());
    let (mut both_take, mut both_refuse, mut only_parsed, mut kept) = (0, 0, 0, 0);
    for (file, verdict, only_parses) in FILES {
        let path = checkout.join(format!("tests/{file}.cpp"));
        let source = fs::read_to_string(&path);
        let source = source.with_context(|| format!("cannot read {}", path.display()))?;
        let (found, given) = (calls(&source, "test"), calls(&source, "add_param"));
        let texts = found
            .iter()
            .filter_map(|call| Some((text(file, verdict, call)?, call)));
        for (text, call) in texts {
            let rule = match text.is_of_old_kernel {
                true => Some("kernels of Linux that lack features"),
                false => rules.left_out(&text.program),
            };
            if let Some(rule) = rule {
                left_out.add(rule, &text.place, &text.program);
                continue;
            }
            kept += 1;
            let words = parameters(&source, &given, call);
            let program = rules.renamed(&text.program);
            let outcome = compiled(&program, &words, &AnyKernel::default());
            match (text.is_error, outcome) {
                (false, Outcome::Taken(_)) => both_take += 1,
                (true, Outcome::Refused { .. }) => both_refuse += 1,
                (true, Outcome::Taken(_)) => {
                    let reason = rules.reason(&text.program);
                    taken_here.add(reason, &text.place, &text.program);
                }
                (false, Outcome::Refused { parsed: true, .. }) if only_parses => only_parsed += 1,
                (false, Outcome::Refused { message, .. }) => {
                    refused_here.add(&kind_of(&message), &text.place, &text.program);
                }
            }
        }
    }
    println!(
        "1. Programs of the unit tests: {} mean nothing here",
        left_out.count()
    );
    left_out.print(false);
    println!(
        "\nThe same: {} of {kept}; {both_take} are taken by both, {both_refuse} refused by both, \
         and {only_parsed} only parsed there and parsed here",
        both_take + both_refuse + only_parsed
    );
    println!("\nValid there, refused here: {}", refused_here.count());
    refused_here.print(true);
    println!("\nAn error there, taken here: {}", taken_here.count());
    taken_here.print(true);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(file: &str, verdict: Verdict, source: &str) -> Option<bool> {
        let call = &calls(source, "test")[0];
        text(file, verdict, call).map(|text| text.is_error)
    }

    #[test]
    fn a_program_has_the_arguments_of_its_test() {
        let source = "TEST(a) {\n  b.add_param(\"other\");\n}\nTEST(b) {\n  \
                      b->add_param(\"3\");\n  test(\"x\", Mock{ *bpftrace });\n  test(\"y\");\n  \
                      b->add_param(\"4\");\n  test(*bpftrace, \"z\");\n}\n";
        let given = calls(source, "add_param");
        let words: Vec<_> = calls(source, "test")
            .iter()
            .map(|call| parameters(source, &given, call))
            .collect();
        assert_eq!(words, [vec!["3"], vec![], vec!["3", "4"]]);
    }

    #[test]
    fn tests_of_kernels_without_features_are_known() {
        let of = |source| text("a", Named, &calls(source, "test")[0]).unwrap();
        assert!(of(r#"test("x", NoFeatures::Enable, Error{ "y" })"#).is_of_old_kernel);
        assert!(!of(r#"test("x", Error{ "y" })"#).is_of_old_kernel);
    }

    #[test]
    fn each_way_to_say_error_is_known() {
        assert_eq!(verdict("a", Named, r#"test("x")"#), Some(false));
        assert_eq!(
            verdict("a", Named, r#"test("x", Error{ "y" })"#),
            Some(true)
        );
        assert_eq!(verdict("a", Named, r#"test_error("x", "y")"#), Some(true));
        assert_eq!(
            verdict("a", Named, r#"test_parse_failure(bpftrace, "x")"#),
            Some(true)
        );
        assert_eq!(verdict("a", Message(0), r#"test("x", "y")"#), Some(true));
        assert_eq!(
            verdict("a", Message(0), r#"test("x", error_text)"#),
            Some(true)
        );
        assert_eq!(
            verdict("a", Message(0), r#"test("x", "", "warning")"#),
            Some(false)
        );
        assert_eq!(
            verdict("a", Is("false"), r#"test(*bpftrace, "x", false)"#),
            Some(true)
        );
        assert_eq!(verdict("a", Is("1"), r#"test("x", 0)"#), Some(false));
        assert_eq!(verdict("a", Named, r#"test(prefix + "x")"#), None);
    }
}
