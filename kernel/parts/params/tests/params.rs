//! Parameter lists and values as users write them.

use params::{Arg, Args, BadValue, Value, name_eq};
use proptest::prelude::*;

fn args(text: &str) -> Vec<(&str, Option<&str>)> {
    Args::new(text).map(|arg| (arg.name, arg.value)).collect()
}

#[test]
fn white_space_separates_arguments() {
    assert_eq!(args(""), []);
    assert_eq!(args(" \t\n "), []);
    assert_eq!(
        args("  a=1\tb  c=\n"),
        [("a", Some("1")), ("b", None), ("c", Some(""))]
    );
}

#[test]
fn first_equals_sign_ends_the_name() {
    assert_eq!(args("a=b=c"), [("a", Some("b=c"))]);
    assert_eq!(args("=x"), [("", Some("x"))]);
}

#[test]
fn quotes_keep_white_space_together() {
    assert_eq!(args(r#"a="x y" b"#), [("a", Some("x y")), ("b", None)]);
    assert_eq!(args(r#""a=x y" b"#), [("a", Some("x y")), ("b", None)]);
    assert_eq!(args(r#"a=x" "y"#), [("a", Some(r#"x" "y"#))]);
    assert_eq!(args(r#"a="""#), [("a", Some(""))]);
}

#[test]
fn missing_closing_quote_is_taken_as_given() {
    assert_eq!(args(r#"a="x y"#), [("a", Some("x y"))]);
}

#[test]
fn module_parameter_is_split_at_the_first_dot() {
    let arg = Args::new("kprobe_example.symbol=core::ptr.x")
        .next()
        .unwrap();
    assert_eq!(arg.module_param(), Some(("kprobe_example", "symbol")));
    assert_eq!(arg.value, Some("core::ptr.x"));
    assert_eq!(Args::new("loglevel=3").next().unwrap().module_param(), None);
}

#[test]
fn dash_and_underscore_are_the_same_in_names() {
    assert!(name_eq(
        "kprobe-example.max-active",
        "kprobe_example.max_active"
    ));
    assert!(!name_eq("a", "ab"));
    assert!(!name_eq("a", "b"));
}

#[test]
fn numbers_are_decimal_hexadecimal_or_octal() {
    assert_eq!(u32::parse(Some("42")), Ok(42));
    assert_eq!(u32::parse(Some("0x2A")), Ok(42));
    assert_eq!(u32::parse(Some("052")), Ok(42));
    assert_eq!(u32::parse(Some("0")), Ok(0));
    assert_eq!(i32::parse(Some("-42")), Ok(-42));
    assert_eq!(i32::parse(Some("+42")), Ok(42));
    assert_eq!(
        u64::parse(Some("0xffffffff80012340")),
        Ok(0xffff_ffff_8001_2340)
    );
    assert_eq!(i64::parse(Some("-9223372036854775808")), Ok(i64::MIN));
}

#[test]
fn number_that_does_not_fit_names_its_range() {
    let error = u32::parse(Some("4294967296")).unwrap_err();
    assert_eq!(error.to_string(), "give a number from 0 to 4294967295");
    let huge = "9".repeat(60);
    for text in ["-1", huge.as_str()] {
        assert!(
            matches!(u32::parse(Some(text)), Err(BadValue::OutOfRange { .. })),
            "{text}"
        );
    }
}

#[test]
fn malformed_numbers_are_refused() {
    for text in [
        "", "x", "1x", "0x", "0xg", "08", "--1", "+-1", "0x-1", "1 ", "0+1",
    ] {
        assert!(
            matches!(i32::parse(Some(text)), Err(BadValue::Malformed { .. })),
            "{text:?}"
        );
    }
    assert!(matches!(i32::parse(None), Err(BadValue::Missing { .. })));
}

#[test]
fn bare_switch_means_yes() {
    assert_eq!(bool::parse(None), Ok(true));
    assert_eq!(bool::parse(Some("1")), Ok(true));
    assert_eq!(bool::parse(Some("off")), Ok(false));
    assert!(matches!(
        bool::parse(Some("maybe")),
        Err(BadValue::Malformed { .. })
    ));
}

#[test]
fn strings_are_taken_as_they_are() {
    assert_eq!(<&str>::parse(Some("do_fork")), Ok("do_fork"));
    assert_eq!(<&str>::parse(Some("")), Ok(""));
    assert!(matches!(<&str>::parse(None), Err(BadValue::Missing { .. })));
}

proptest! {
    #[test]
    fn list_printed_and_read_again_is_the_same(
        list in prop::collection::vec(
            ("[a-z_.]{1,12}", prop::option::of("[a-zA-Z0-9:<>=, /-]{0,12}")),
            0..8,
        )
    ) {
        let printed: Vec<String> = list
            .iter()
            .map(|(name, value)| Arg { name, value: value.as_deref() }.to_string())
            .collect();
        let printed = printed.join(" ");
        let read: Vec<_> = Args::new(&printed)
            .map(|arg| (arg.name.to_owned(), arg.value.map(str::to_owned)))
            .collect();
        prop_assert_eq!(read, list);
    }

    #[test]
    fn any_text_is_read_without_panic_and_ends(text in any::<String>()) {
        prop_assert!(Args::new(&text).count() <= text.len());
        let _ = (i64::parse(Some(&text)), u32::parse(Some(&text)), bool::parse(Some(&text)));
    }

    #[test]
    fn numbers_round_trip(number in any::<i64>()) {
        prop_assert_eq!(i64::parse(Some(&number.to_string())), Ok(number));
        prop_assert_eq!(u64::parse(Some(&format!("{:#x}", number as u64))), Ok(number as u64));
        prop_assert_eq!(i32::parse(Some(&number.to_string())).ok(), i32::try_from(number).ok());
    }
}

#[test]
fn an_argument_is_known_by_its_name_alone() {
    let arg = Args::new("log-level=5").next().unwrap();
    assert!(arg.is("log-level") && arg.is("log_level"));
    for other in ["", "log", "log_level=5", "log_levels", "5"] {
        assert!(!arg.is(other), "{other}");
    }
}

#[test]
fn an_argument_is_shown_as_it_is_typed() {
    for text in ["debug", "level=5", "empty=", r#"title="two words""#] {
        let arg = Args::new(text).next().unwrap();
        assert_eq!(arg.to_string(), text);
    }
}
