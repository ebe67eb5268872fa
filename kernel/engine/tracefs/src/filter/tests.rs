//! Tests of the language: what is read, how it prints, what it means, and what is refused where.
//!
//! Columns and texts of refusals are those of Linux, whose selftest looks for them. A filter that
//! is printed reads as the same filter.

use alloc::{format, string::ToString, vec, vec::Vec};

use super::*;
use crate::field::{LookupError, SymbolAt, Symbols};
use FilterReason as Reason;

/// One function, `open`, at 0x1000 to 0x1020.
pub(super) struct Open;

impl Symbols for Open {
    fn symbol(&self, address: u64) -> Option<SymbolAt<'_>> {
        (0x1000..0x1020).contains(&address).then(|| SymbolAt {
            name: "open",
            offset: address - 0x1000,
            size: 0x20,
            module: None,
        })
    }

    fn address(&self, name: &str) -> Result<u64, LookupError> {
        if name == "open" {
            Ok(0x1000)
        } else {
            Err(LookupError::NotFound)
        }
    }
}

/// Fields of all types, one after the other.
pub(super) fn fields() -> Vec<Field> {
    let one = FieldKind::One;
    let mut offset = 8;
    [
        ("u8", one(Element::Unsigned(Width::W8))),
        ("s8", one(Element::Signed(Width::W8))),
        ("u16", one(Element::Unsigned(Width::W16))),
        ("s16", one(Element::Signed(Width::W16))),
        ("u32", one(Element::Hex(Width::W32))),
        ("s32", one(Element::Signed(Width::W32))),
        ("u64", one(Element::Unsigned(Width::W64))),
        ("s64", one(Element::Signed(Width::W64))),
        ("letter", one(Element::Char)),
        ("ip", one(Element::Symbol)),
        ("name", one(Element::String)),
        ("path", one(Element::String)),
        (
            "list",
            FieldKind::Array {
                element: Element::Unsigned(Width::W8),
                count: 4,
            },
        ),
    ]
    .into_iter()
    .map(|(name, kind)| {
        let field = Field::new(name, offset, kind);
        offset += kind.size();
        field
    })
    .chain([Field::symbol_string("where", 200)])
    .collect()
}

/// A record in which all numbers are zero and no string could be read, with some fields set.
pub(super) fn record(numbers: &[(&str, u64)], strings: &[(&str, &[u8])]) -> Vec<u8> {
    let fields = fields();
    let common = Field::common();
    let find = |name: &str| {
        let mut all = fields.iter().chain(&common);
        all.find(|field| field.name == name).unwrap()
    };
    let mut record = vec![0; 204];
    for (name, value) in numbers {
        let field = find(name);
        let (start, size) = (field.offset as usize, field.size() as usize);
        record[start..start + size].copy_from_slice(&value.to_le_bytes()[..size]);
    }
    for (name, text) in strings {
        let (start, place) = (find(name).offset as usize, record.len() as u32);
        record.extend(*text);
        record.push(0);
        let location = place | (text.len() as u32 + 1) << 16;
        record[start..start + 4].copy_from_slice(&location.to_le_bytes());
    }
    record
}

fn parse(text: &str) -> Result<Filter, FilterError> {
    Filter::parse(text, &fields(), &Open)
}

fn matches(text: &str, record: &[u8]) -> bool {
    let filter = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    filter.matches(&Hit {
        record,
        comm: b"cat",
        cpu: 2,
    })
}

#[test]
fn numbers_are_compared_in_the_width_and_sign_of_their_field() {
    let record = record(
        &[
            ("u8", 0xff),
            ("s8", 0xff),
            ("u16", 0x8000),
            ("s16", 0x8000),
            ("u32", 0xffff_fff2),
            ("s32", 0xffff_fff2),
            ("u64", u64::MAX),
            ("s64", u64::MAX),
            ("letter", b'x'.into()),
            ("common_pid", 42),
        ],
        &[],
    );
    for (text, expected) in [
        ("u8 == 255", true),
        ("u8 > 254", true),
        ("s8 == -1", true),
        ("s8 < 0", true),
        ("s8 == 255", true),
        ("u16 > 0x7fff", true),
        ("s16 < 0", true),
        ("s16 == -32768", true),
        ("u32 == 0xfffffff2", true),
        ("u32 < 0xfffffff2", false),
        ("u32 <= 0xfffffff2", true),
        ("s32 == 0xfffffff2", true),
        ("s32 == -14", true),
        ("s32 >= -13", false),
        ("u64 == 18446744073709551615", true),
        ("u64 > 1", true),
        ("s64 > 1", false),
        ("s64 == -1", true),
        ("u64 & 0x8000000000000000", true),
        ("u16 & 0x7fff", false),
        ("u8 & 020", true),
        ("u8 != 255", false),
        ("letter == 'x'", true),
        ("letter != \"x\"", false),
        ("letter >= 'y'", false),
        ("letter == 120", true),
        ("common_pid == 42", true),
        ("CPU == 2 && cpu > 1 && common_cpu == 2", true),
        ("CPU < 2", false),
    ] {
        assert_eq!(matches(text, &record), expected, "{text}");
    }
}

#[test]
fn strings_are_compared_with_texts_and_globs() {
    let record = record(&[], &[("name", b"main.rs"), ("path", b"")]);
    for (text, expected) in [
        ("name == \"main.rs\"", true),
        ("name == 'main.rs'", true),
        ("name == \"main\"", false),
        ("name != \"main\"", true),
        ("name ~ \"main\"", false),
        ("name ~ \"*.rs\"", true),
        ("name ~ \"!*.rs\"", false),
        ("name ~ \"m[a-c]in.??\"", true),
        ("name ~ \"*ain*\"", true),
        ("name ~ \"*a(i&&n)*\"", false),
        ("path == \"\"", true),
        ("path ~ \"*\"", true),
        ("comm == \"cat\"", true),
        ("COMM ~ \"c*\"", true),
        ("comm != \"cat\"", false),
    ] {
        assert_eq!(matches(text, &record), expected, "{text}");
    }
}

#[test]
fn a_string_that_was_not_read_equals_nothing_and_differs_from_nothing() {
    let record = record(&[], &[]);
    for text in [
        "name == \"x\"",
        "name != \"x\"",
        "name ~ \"*\"",
        "name ~ \"!x\"",
    ] {
        assert!(!matches(text, &record), "{text}");
        assert!(matches(&format!("!({text})"), &record), "{text}");
    }
}

#[test]
fn functions_are_ranges_of_addresses() {
    for (address, inside) in [
        (0xfff, false),
        (0x1000, true),
        (0x101f, true),
        (0x1020, false),
    ] {
        let record = record(&[("ip", address)], &[]);
        assert_eq!(
            matches("ip.function == open", &record),
            inside,
            "{address:#x}"
        );
        assert_eq!(
            matches("(ip.function == open)", &record),
            inside,
            "{address:#x}"
        );
        assert_eq!(
            matches("ip.function == 0x1010", &record),
            inside,
            "{address:#x}"
        );
        assert_eq!(
            matches("ip.function != open", &record),
            !inside,
            "{address:#x}"
        );
    }
}

#[test]
fn and_binds_more_tightly_than_or() {
    let record = record(&[("u8", 1)], &[]);
    for (text, expected) in [
        ("u8 == 1 || u8 == 2 && u8 == 3", true),
        ("(u8 == 1 || u8 == 2) && u8 == 3", false),
        ("u8 == 3 && u8 == 2 || u8 == 1", true),
        ("!u8 == 1", false),
        ("!!u8 == 1", true),
        ("!(u8 == 1 && u8 == 2)", true),
        ("! ( u8==2 )", true),
        ("u8!=2&&u8!=3", true),
        ("\tu8\n==\r1 ", true),
    ] {
        assert_eq!(matches(text, &record), expected, "{text}");
    }
}

#[test]
fn expressions_print_in_one_form() {
    for (text, printed) in [
        ("u8==1", "u8 == 1"),
        (
            "u8 == 0x10 && (s8 == -1 && s16 < 3)",
            "u8 == 16 && s8 == -1 && s16 < 3",
        ),
        (
            "(u8 == 1 || u8 == 2) && u8 == 3",
            "(u8 == 1 || u8 == 2) && u8 == 3",
        ),
        (
            "u8 == 1 || (u8 == 2 && u8 == 3)",
            "u8 == 1 || u8 == 2 && u8 == 3",
        ),
        ("!(!u8 == 1)", "u8 == 1"),
        (
            "!((u8 == 1) || !(u8 & 2 && CPU == 1))",
            "!(u8 == 1 || !(u8 & 2 && CPU == 1))",
        ),
        ("name ~ \"!a*\"", "name ~ \"!a*\""),
        ("COMM != 'a\"b'", "comm != 'a\"b'"),
        ("ip.function == open", "ip.function == 0x1000"),
        ("letter == 'x'", "letter == 120"),
    ] {
        let filter = parse(text).unwrap();
        assert_eq!(filter.expression().to_string(), printed);
        assert_eq!(
            filter.text(),
            text.trim(),
            "the file shows what was written"
        );
        let again = parse(printed).unwrap();
        assert_eq!(again.expression(), filter.expression(), "{printed}");
    }
}

#[test]
fn refusals_name_reason_and_column_as_linux_does() {
    let long = format!("name == \"{}\"", "x".repeat(127));
    let deep = format!("{}u8 == 1{}", "(".repeat(17), ")".repeat(17));
    for (text, reason, column) in [
        ("", Reason::NoFilter, 0),
        (" \n", Reason::NoFilter, 0),
        // Between tests columns count from 0.
        ("(u8 == 1", Reason::TooManyOpen, 0),
        ("u8 == 1 && (s8 == 1", Reason::TooManyOpen, 11),
        ("((u8 == 1)", Reason::TooManyOpen, 0),
        (&deep, Reason::TooManyOpen, 16),
        ("u8 == 1)", Reason::TooManyClose, 7),
        ("name == \"x", Reason::MissingQuote, 8),
        ("none == \"x' || u8 == 1", Reason::MissingQuote, 8),
        ("u8 == 1 s8 == 1", Reason::TooManyTerms, 8),
        ("u8 == 1 & s8 == 1", Reason::TooManyTerms, 8),
        ("u8 == 1 (s8 == 1)", Reason::TooManyTerms, 8),
        ("u8 == 1 &&", Reason::Meaningless, 10),
        ("()", Reason::Meaningless, 1),
        ("!", Reason::Meaningless, 1),
        ("(u8 == 1 || )", Reason::Meaningless, 12),
        // Inside a test they count from 1, and most stand after the word that is wrong.
        ("none == 1", Reason::FieldNotFound, 5),
        ("u8 == 1 && none == 1", Reason::FieldNotFound, 16),
        ("== 1", Reason::FieldNotFound, 1),
        ("common_flags == 1", Reason::OnlyInRecords, 13),
        ("u8 == 1 || common_preempt_count", Reason::OnlyInRecords, 32),
        ("u8 = 1", Reason::InvalidOperator, 4),
        ("u8", Reason::InvalidOperator, 3),
        ("u8.hex == 1", Reason::InvalidOperator, 3),
        ("u8 == x", Reason::InvalidValue, 7),
        ("u8 ==", Reason::InvalidValue, 6),
        ("u8 == \"1\"", Reason::ExpectDigit, 7),
        ("u8 == 'x'", Reason::ExpectDigit, 7),
        ("letter == 'xy'", Reason::ExpectDigit, 11),
        ("letter ~ 'x'", Reason::ExpectDigit, 10),
        ("name == 1", Reason::ExpectString, 9),
        ("comm == 1", Reason::ExpectString, 9),
        ("name < \"x\"", Reason::IllegalFieldOperation, 8),
        ("u8 ~ 1", Reason::IllegalFieldOperation, 6),
        ("list == 1", Reason::IllegalFieldOperation, 9),
        ("u8 == 1x", Reason::IllegalInteger, 7),
        ("u8 == -1", Reason::IllegalInteger, 7),
        ("u8 == -", Reason::IllegalInteger, 7),
        ("u8 == 08", Reason::IllegalInteger, 7),
        ("u8 == 0x", Reason::IllegalInteger, 7),
        ("s64 == 0x8000000000000000", Reason::IllegalInteger, 8),
        ("s64 == -0x8000000000000001", Reason::IllegalInteger, 8),
        ("u64 == 18446744073709551616", Reason::IllegalInteger, 8),
        (
            "u64 == 000000000000000000000000",
            Reason::OperandTooLong,
            32,
        ),
        (&long, Reason::OperandTooLong, 137),
        ("where == \"open\"", Reason::IllegalFieldOperation, 10),
        ("ip.function == close", Reason::FunctionNotFound, 21),
        ("ip.function == 0x2000", Reason::FunctionNotFound, 22),
        ("ip.function == 0xz", Reason::InvalidValue, 19),
        ("ip.function < open", Reason::InvalidOperator, 15),
        ("u32.function == open", Reason::IllegalFieldOperation, 17),
    ] {
        let error = parse(text).expect_err(text);
        assert_eq!((error.reason, error.column), (reason, column), "{text}");
        assert!(error.to_string().starts_with(reason.text()), "{error}");
    }
    assert!(parse("s64 == -0x8000000000000000").is_ok());
    assert!(parse(&format!("{}u8 == 1{}", "(".repeat(16), ")".repeat(16))).is_ok());
    assert!(parse(&format!("name == \"{}\"", "x".repeat(126))).is_ok());
}

#[test]
fn thousands_of_nots_and_terms_are_read() {
    let record = record(&[("u8", 1)], &[]);
    assert!(!matches(&format!("{}u8 == 1", "!".repeat(4001)), &record));
    assert!(matches(&format!("u8==1{}", "||u8==2".repeat(500)), &record));
}

#[test]
fn file_shows_the_caret_below_a_refused_filter() {
    let text = "u8 == 1 && none == 1\n";
    let error = parse(text).unwrap_err();
    assert_eq!(
        error.shown(text).to_string(),
        "u8 == 1 && none == 1\n                ^\nparse_error: Field not found\n"
    );
    let error = parse("(u8 == 1").unwrap_err();
    assert_eq!(
        error.shown("(u8 == 1").to_string(),
        "(u8 == 1\n^\nparse_error: Too many '('\n"
    );
    // The column of the caret is at most the end of the text.
    let error = parse("u8 ==").unwrap_err();
    assert_eq!(
        error.shown("u8 ==").to_string(),
        "u8 ==\n     ^\nparse_error: Invalid value (did you forget quotes)?\n"
    );
}

#[test]
fn zero_and_none_clear() {
    let request = |text| Request::parse(text, &fields(), &Open);
    assert_eq!(request("0\n"), Ok(Request::Clear));
    assert_eq!(request(" none "), Ok(Request::Clear));
    assert!(matches!(request("u8 == 0"), Ok(Request::Set(_))));
    assert!(request("00").is_err());
}

#[test]
fn fields_of_the_event_come_before_comm_and_cpu() {
    let own = [Field::new(
        "comm",
        8,
        FieldKind::One(Element::Unsigned(Width::W8)),
    )];
    let filter = Filter::parse("comm == 7", &own, &Open).unwrap();
    let record = [0, 0, 0, 0, 0, 0, 0, 0, 7];
    assert!(filter.matches(&Hit {
        record: &record,
        comm: b"cat",
        cpu: 0
    }));
}
