//! How fields are declared and printed.

use super::*;
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

struct Main;

impl Symbols for Main {
    fn symbol(&self, address: u64) -> Option<SymbolAt<'_>> {
        (0x1000..0x1020).contains(&address).then(|| SymbolAt {
            name: "main",
            offset: address - 0x1000,
            size: 0x20,
            module: None,
        })
    }

    fn address(&self, name: &str) -> Result<u64, LookupError> {
        if name == "main" {
            Ok(0x1000)
        } else {
            Err(LookupError::NotFound)
        }
    }
}

fn printed(field: &Field, record: &[u8]) -> String {
    let mut out = String::new();
    field.print(record, &Main, &mut out).unwrap();
    out
}

/// Prints the only value of `bytes`, which starts at offset 3 to show that nothing is aligned.
fn one(element: Element, bytes: &[u8]) -> String {
    let record: Vec<u8> = [0xaa; 3].iter().chain(bytes).copied().collect();
    printed(&Field::new("f", 3, FieldKind::One(element)), &record)
}

#[test]
fn each_type_prints_as_linux_prints_it() {
    let ones = [0xff; 8];
    for (element, bytes, text) in [
        (Element::Unsigned(Width::W8), &ones[..], "255"),
        (Element::Unsigned(Width::W16), &ones, "65535"),
        (Element::Unsigned(Width::W32), &ones, "4294967295"),
        (Element::Unsigned(Width::W64), &ones, "18446744073709551615"),
        (Element::Signed(Width::W8), &ones, "-1"),
        (Element::Signed(Width::W16), &[0x00, 0x80], "-32768"),
        (
            Element::Signed(Width::W32),
            &[0xff, 0xff, 0xff, 0x7f],
            "2147483647",
        ),
        (Element::Signed(Width::W64), &ones, "-1"),
        (Element::Hex(Width::W8), &[0x0a], "0xa"),
        (Element::Hex(Width::W16), &[0x34, 0x12], "0x1234"),
        (Element::Hex(Width::W32), &[0, 0, 0, 0], "0x0"),
        (Element::Hex(Width::W64), &ones, "0xffffffffffffffff"),
        (Element::Char, b"t", "'t'"),
        (Element::Symbol, &0x1004_u64.to_le_bytes(), "main+0x4/0x20"),
        (Element::Symbol, &0x2000_u64.to_le_bytes(), "0x2000"),
    ] {
        assert_eq!(one(element, bytes), text, "{element:?}");
    }
}

#[test]
fn string_ends_at_its_nul() {
    let field = Field::new("s", 0, FieldKind::One(Element::String));
    let record = b"\x04\x00\x05\x00ab\0cd";
    assert_eq!(field.string(record), Some(&b"ab"[..]));
    assert_eq!(printed(&field, record), "\"ab\"");
}

#[test]
fn unread_string_prints_as_fault_and_an_empty_one_as_empty() {
    let field = Field::new("s", 0, FieldKind::One(Element::String));
    assert_eq!(printed(&field, &[4, 0, 0, 0]), "(fault)");
    assert_eq!(printed(&field, &[4, 0, 1, 0, 0]), "\"\"");
}

#[test]
fn bytes_beyond_the_record_are_not_read() {
    for element in [
        Element::Unsigned(Width::W32),
        Element::Symbol,
        Element::String,
    ] {
        let field = Field::new("f", 2, FieldKind::One(element));
        assert_eq!(printed(&field, &[0xff; 5]), "(fault)", "{element:?}");
        assert_eq!(field.number(&[0xff; 5]), None);
        assert_eq!(field.string(&[0xff; 5]), None);
    }
    let string = Field::new("s", 0, FieldKind::One(Element::String));
    // The location is in the record, and the text reaches one byte beyond it.
    assert_eq!(printed(&string, &[4, 0, 3, 0, b'a', b'b']), "(fault)");
    assert_eq!(printed(&string, &[0xff; 4]), "(fault)");
    let far = Field::new("f", u32::MAX, FieldKind::One(Element::Char));
    assert_eq!(printed(&far, &[0]), "(fault)");
}

#[test]
fn symbol_string_prints_the_symbol_of_its_address() {
    let field = Field::symbol_string("s", 0);
    let mut record = std::vec![5, 0, 8, 0, 0xaa];
    record.extend(0x1004_u64.to_le_bytes());
    assert_eq!(printed(&field, &record), "\"main+0x4/0x20\"");
    assert_eq!(field.string(&record), None);
    assert_eq!(printed(&field, &record[..12]), "(fault)");
    assert_eq!(field.declaration().to_string(), "__data_loc char[] s");
}

#[test]
fn arrays_print_in_braces() {
    let array = |element, count| Field::new("a", 0, FieldKind::Array { element, count });
    assert_eq!(
        printed(&array(Element::Char, 4), b"test"),
        "{'t','e','s','t'}"
    );
    assert_eq!(
        printed(&array(Element::Signed(Width::W16), 2), &[1, 0, 255, 255]),
        "{1,-1}"
    );
    assert_eq!(
        printed(&array(Element::Unsigned(Width::W8), 1), &[7]),
        "{7}"
    );
    let strings = array(Element::String, 2);
    let record = b"\x08\x00\x02\x00\x00\x00\x00\x00x\0";
    assert_eq!(printed(&strings, record), "{\"x\",(fault)}");
    assert_eq!(strings.size(), 8);
}

#[test]
fn invalid_utf8_is_replaced() {
    let field = Field::new("s", 0, FieldKind::One(Element::String));
    assert_eq!(
        printed(&field, b"\x04\x00\x04\x00a\xffb\0"),
        "\"a\u{fffd}b\""
    );
    assert_eq!(one(Element::Char, b"\xff"), "'\u{fffd}'");
}

#[test]
fn declarations_are_those_of_format_files() {
    let array = |element, count| FieldKind::Array { element, count };
    for (kind, text) in [
        (FieldKind::One(Element::Hex(Width::W64)), "u64 f"),
        (FieldKind::One(Element::Signed(Width::W32)), "s32 f"),
        (FieldKind::One(Element::Symbol), "u64 f"),
        (FieldKind::One(Element::String), "__data_loc char[] f"),
        (array(Element::Char, 4), "u8 f[4]"),
        (array(Element::String, 2), "__data_loc char[][2] f"),
    ] {
        assert_eq!(Field::new("f", 8, kind).declaration().to_string(), text);
    }
    let common: Vec<_> = Field::common()
        .iter()
        .map(|field| format!("{} {} {}", field.declaration(), field.offset, field.size()))
        .collect();
    assert_eq!(
        common,
        [
            "unsigned short common_type 0 2",
            "unsigned char common_flags 2 1",
            "unsigned char common_preempt_count 3 1",
            "int common_pid 4 4",
        ]
    );
    assert!(Field::common()[3].is_signed());
    let ip = Field::address("__probe_ip", 8);
    assert_eq!(ip.declaration().to_string(), "unsigned long __probe_ip");
}

#[test]
fn numbers_carry_their_sign() {
    let field = Field::new("f", 0, FieldKind::One(Element::Signed(Width::W8)));
    assert_eq!(field.number(&[0x80]), Some(-128_i64 as u64));
    let field = Field::new("f", 0, FieldKind::One(Element::Unsigned(Width::W8)));
    assert_eq!(field.number(&[0x80]), Some(128));
    assert_eq!(field.string(&[0x80]), None);
}
