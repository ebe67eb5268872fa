//! Expressions, against a reference that calculates them from the text's meaning.
//!
//! Numbers have 64 bits. A result is signed if an operand is, except that a number of the text
//! takes the type of the other operand. Comparisons are exact, whatever the types. Division by zero
//! gives zero, the remainder of it the dividend. Shifts take their count modulo 64; those to the
//! right keep the sign of what is signed. What has numbers of the text only is calculated exactly:
//! it is refused if it has no result of 64 bits, and unsigned above the largest signed one.

use bpf::context::Register::{Cx, Di, Dx, R8, R9, Si};

use super::{
    fake::compiled_with,
    world::{Hit, World},
};
use crate::Options;

/// Numbers that look random (a linear congruential generator).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    pub(super) fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    pub(super) fn number(&mut self) -> u64 {
        let any = self.below(1 << 31) << 33 ^ self.below(1 << 31) << 10 ^ self.below(1 << 20);
        match self.below(5) {
            0 => self.of(&[0, 1, 2, 63, 64, 65, u64::MAX, 1 << 63, i64::MAX as u64]),
            1 => self.below(100),
            2 => 0_u64.wrapping_sub(self.below(100)),
            3 => any >> self.below(64),
            _ => any,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Type {
    Literal,
    Signed,
    Unsigned,
    Boolean,
}

/// A text, and what it means.
#[derive(Clone, Debug)]
pub(super) struct Meant {
    pub(super) text: String,
    pub(super) value: u64,
    pub(super) of: Type,
    /// It has numbers of the text only.
    pub(super) is_text: bool,
}

impl Meant {
    fn is_signed(&self) -> bool {
        matches!(self.of, Type::Literal | Type::Signed)
    }

    /// The number that it means.
    fn exact(&self) -> i128 {
        match self.is_signed() {
            true => (self.value as i64).into(),
            false => self.value.into(),
        }
    }
}

/// What 64 bits of operands become, if they have a sign or have none together. The left one says
/// how it shifts.
pub(super) fn calculated(op: &str, (x, y): (u64, u64), signed: bool, shifts_sign: bool) -> u64 {
    let (signed_x, signed_y) = (x.cast_signed(), y.cast_signed());
    match op {
        "+" => x.wrapping_add(y),
        "-" => x.wrapping_sub(y),
        "*" => x.wrapping_mul(y),
        "/" if y == 0 => 0,
        "%" if y == 0 => x,
        "/" if signed => signed_x.wrapping_div(signed_y).cast_unsigned(),
        "%" if signed => signed_x.wrapping_rem(signed_y).cast_unsigned(),
        "/" => x / y,
        "%" => x % y,
        "&" => x & y,
        "|" => x | y,
        "^" => x ^ y,
        "<<" => x << (y & 63),
        _ if shifts_sign => (signed_x >> (y & 63)).cast_unsigned(),
        _ => x >> (y & 63),
    }
}

/// An expression of at most that height.
pub(super) fn expression(random: &mut Random, arguments: &[u64; 6], height: u32) -> Meant {
    if height == 0 || random.below(8) == 0 {
        return leaf(random, arguments);
    }
    let mut inner = || expression(random, arguments, height - 1);
    let (a, b, c) = (inner(), inner(), inner());
    match random.below(12) {
        0 => {
            let op = random.of(&["-", "~", "!"]);
            let is_text = op == "-" && a.is_text;
            let (value, of) = match (op, a.of) {
                ("-", Type::Literal) => (a.value.wrapping_neg(), Type::Literal),
                ("-", _) => (a.value.wrapping_neg(), Type::Signed),
                ("~", Type::Boolean) => (!a.value, Type::Unsigned),
                ("~", of) => (!a.value, of),
                _ => (u64::from(a.value == 0), Type::Boolean),
            };
            Meant {
                text: format!("{op}({})", a.text),
                value,
                of,
                is_text,
            }
        }
        1 => {
            let of = match (a.of, b.of) {
                (a, b) if a == b => a,
                (Type::Literal, Type::Boolean) | (Type::Boolean, Type::Literal) => Type::Signed,
                (Type::Literal, other) | (other, Type::Literal) => other,
                (Type::Signed, _) | (_, Type::Signed) => Type::Signed,
                _ => Type::Unsigned,
            };
            Meant {
                text: format!("(({}) ? ({}) : ({}))", c.text, a.text, b.text),
                value: if c.value != 0 { a.value } else { b.value },
                of,
                is_text: false,
            }
        }
        2 => {
            let (name, bits, signed) = random.of(&[
                ("u8", 8, false),
                ("i8", 8, true),
                ("uint16", 16, false),
                ("int16", 16, true),
                ("u32", 32, false),
                ("i32", 32, true),
                ("usize", 64, false),
                ("isize", 64, true),
            ]);
            let up = a.value << (64 - bits);
            let value = match signed {
                true => (up as i64 >> (64 - bits)) as u64,
                false => up >> (64 - bits),
            };
            Meant {
                text: format!("({name})({})", a.text),
                value,
                of: if signed { Type::Signed } else { Type::Unsigned },
                is_text: false,
            }
        }
        3..=5 => {
            let op = random.of(&["<", "<=", ">", ">=", "==", "!=", "&&", "||"]);
            let (x, y) = (a.exact(), b.exact());
            let is = match op {
                "<" => x < y,
                "<=" => x <= y,
                ">" => x > y,
                ">=" => x >= y,
                "==" => x == y,
                "!=" => x != y,
                "&&" => x != 0 && y != 0,
                _ => x != 0 || y != 0,
            };
            Meant {
                text: format!("({} {op} {})", a.text, b.text),
                value: is.into(),
                of: Type::Boolean,
                is_text: false,
            }
        }
        _ => binary(random, &a, &b),
    }
}

fn binary(random: &mut Random, a: &Meant, b: &Meant) -> Meant {
    let op = random.of(&["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"]);
    let of = match (a.of, b.of) {
        (Type::Literal, Type::Literal) => Type::Literal,
        (Type::Literal, other) | (other, Type::Literal) => match other {
            Type::Boolean => Type::Unsigned,
            other => other,
        },
        (Type::Signed, _) | (_, Type::Signed) => Type::Signed,
        _ => Type::Unsigned,
    };
    let signed = matches!(of, Type::Literal | Type::Signed);
    let shifts_sign = match a.of {
        Type::Literal => signed,
        of => of == Type::Signed,
    };
    let value = calculated(op, (a.value, b.value), signed, shifts_sign);
    let of = match (op, a.of) {
        ("<<" | ">>", Type::Signed) => Type::Signed,
        ("<<" | ">>", Type::Unsigned | Type::Boolean) => Type::Unsigned,
        _ => of,
    };
    let is_text = a.is_text && b.is_text;
    let of = match is_text {
        // Those without a result are refused.
        true if a.exact() >= 0 && b.exact() >= 0 && op != "-" && (value as i64) < 0 => {
            Type::Unsigned
        }
        true => Type::Literal,
        false => of,
    };
    Meant {
        text: format!("({} {op} {})", a.text, b.text),
        value,
        of,
        is_text,
    }
}

fn leaf(random: &mut Random, arguments: &[u64; 6]) -> Meant {
    let number = random.below(6) as usize;
    match random.below(4) {
        0 => {
            let value = random.number() >> random.of(&[1, 8, 40, 57]);
            Meant {
                text: value.to_string(),
                value,
                of: Type::Literal,
                is_text: true,
            }
        }
        1 => Meant {
            text: format!("(int64)arg{number}"),
            value: arguments[number],
            of: Type::Signed,
            is_text: false,
        },
        2 => Meant {
            text: format!("(i32)arg{number}"),
            value: arguments[number] as i32 as i64 as u64,
            of: Type::Signed,
            is_text: false,
        },
        _ => Meant {
            text: format!("arg{number}"),
            value: arguments[number],
            of: Type::Unsigned,
            is_text: false,
        },
    }
}

pub(super) fn hit(arguments: &[u64; 6]) -> Hit {
    let registers = [Di, Si, Dx, Cx, R8, R9];
    Hit {
        registers: registers.into_iter().zip(*arguments).collect(),
        ..Hit::default()
    }
}

#[test]
fn expressions_mean_what_the_reference_says() {
    let mut random = Random(14);
    for _ in 0..1000 {
        let arguments = core::array::from_fn(|_| random.number());
        let meant = expression(&mut random, &arguments, 4);
        let text = format!(
            "kprobe:vfs_write {{ printf(\"%lx \", {0}); $v = {0}; printf(\"%lx \", $v); \
             @m[1] = {0}; printf(\"%lx \", @m[1]); if ({0}) {{ printf(\"1\"); }} else {{ \
             printf(\"0\"); }} }}",
            meant.text
        );
        // A program that is too long is refused with a message; that is not the matter here.
        let Ok(compiled) = compiled_with(&text, &super::fake::Fake::new(), &Options::default())
        else {
            continue;
        };
        let mut world = World::of(compiled);
        world.hit(&hit(&arguments));
        let value = meant.value;
        assert_eq!(
            world.out,
            format!("{value:x} {value:x} {value:x} {}", u64::from(value != 0)),
            "{} with {arguments:x?}",
            meant.text
        );
    }
}

#[test]
fn comparisons_of_different_signs_are_exact() {
    let arguments = [u64::MAX, 1, 1 << 63, 0, 5, 7];
    for (text, is) in [
        ("(int64)arg0 < arg1", 1),
        ("(int64)arg0 > arg1", 0),
        ("arg0 > (int64)arg1", 1),
        ("arg2 == (int64)arg2", 0),
        ("arg2 != (int64)arg2", 1),
        ("(int8)arg0 == (int64)arg0", 1),
        ("arg3 >= (int64)arg2", 1),
        ("-1 < arg3", 1),
    ] {
        let mut world = World::new(&format!("kprobe:vfs_write {{ printf(\"%d\", {text}); }}"));
        world.hit(&hit(&arguments));
        assert_eq!(world.out, is.to_string(), "{text}");
    }
}

#[test]
fn a_cast_keeps_the_bytes_and_the_sign_of_its_type() {
    let number = 0x8182_8384_8586_8788_u64;
    for (names, value) in [
        ("u8 uint8 uint8_t", i128::from(number as u8)),
        ("u16 uint16 uint16_t", i128::from(number as u16)),
        ("u32 uint32 uint32_t", i128::from(number as u32)),
        ("u64 usize uint64 uint64_t size_t", i128::from(number)),
        ("i8 int8 int8_t", i128::from(number as i8)),
        ("i16 int16 int16_t", i128::from(number as i16)),
        ("i32 int32 int32_t int", i128::from(number as i32)),
        ("i64 isize int64 int64_t ssize_t", i128::from(number as i64)),
    ] {
        for name in names.split(' ') {
            let mut world = World::new(&format!("kprobe:vfs_write {{ print(({name})arg0); }}"));
            world.hit(&Hit {
                registers: vec![(Di, number)],
                ..Hit::default()
            });
            assert_eq!(world.out, format!("{value}\n"), "{name}");
        }
    }
}

/// What a program prints at a hit with these arguments.
fn printed(program: &str, arguments: &[u64; 6]) -> String {
    let mut world = World::new(&format!("kprobe:vfs_write {{ {program} }}"));
    world.hit(&hit(arguments));
    world.out.clone()
}

#[test]
fn pointers_move_by_what_they_lead_to() {
    let at = |text: &str| {
        let out = printed(
            &format!("printf(\"%lx\", {text});"),
            &[0x1000, 3, 0, 0, 0, 0],
        );
        u64::from_str_radix(&out, 16).unwrap()
    };
    assert_eq!(at("(int8*)0x100 + 1"), 0x101);
    assert_eq!(at("(uint16*)0x100 + 1"), 0x102);
    assert_eq!(at("(int32*)0x100 + 3"), 0x10c);
    assert_eq!(at("2 + (int64*)0x100"), 0x110);
    assert_eq!(at("(int32*)arg0 - 1"), 0xffc);
    assert_eq!(at("(int32*)arg0 + arg1"), 0x100c);
    assert_eq!(at("(int32*)arg0 + (int8)-1"), 0xffc);
    assert_eq!(at("(int32**)0x100 + 1"), 0x108);
    // Of nothing in particular: bytes.
    assert_eq!(at("(void*)0x100 + 1"), 0x101);
    assert_eq!(at("arg0 + 1"), 0x1001);
    for (text, value) in [
        ("(int32*)0x10c - (int32*)0x100", "3"),
        ("(int32*)0x100 - (int32*)0x10c", "-3"),
        ("(int64*)arg0 - (int64*)0x800", "256"),
        ("(int32*)0x100 + 1 == (int32*)0x104", "1"),
        ("(int32*)0x100 < (int32*)0x104", "1"),
    ] {
        assert_eq!(
            printed(&format!("printf(\"%d\", {text});"), &[0x1000; 6]),
            value,
            "{text}"
        );
    }
}

#[test]
fn pointers_in_variables_and_maps_move_in_the_same_way() {
    for (program, address) in [
        ("$p = (int32*)0x100; $p++; printf(\"%lx\", $p);", "104"),
        (
            "$p = (int32*)0x100; printf(\"%lx \", $p++); printf(\"%lx\", $p);",
            "100 104",
        ),
        ("$p = (int64*)0x100; --$p; printf(\"%lx\", $p);", "f8"),
        (
            "$p = (int32*)0x100; $p += 2; $p -= 1; printf(\"%lx\", $p);",
            "104",
        ),
        (
            "$p = (int32*)0x100; $q = $p + 1; printf(\"%lx %d\", $q + 1, $q - $p);",
            "108 1",
        ),
        ("@p = (int32*)0x100; printf(\"%lx\", @p + 1);", "104"),
        ("@p = (int32*)0x100; @p++; printf(\"%lx\", @p);", "104"),
        ("@p = (int64*)0x100; @p += 2; printf(\"%lx\", @p);", "110"),
        (
            "@p[1] = (int32*)0x100; @p[1] -= 1; printf(\"%lx\", @p[1]);",
            "fc",
        ),
    ] {
        assert_eq!(printed(program, &[0; 6]), address, "{program}");
    }
}

#[test]
fn pointers_have_no_other_arithmetic() {
    for (text, marked) in [
        ("1 - $p", "`-` is no operation on pointers"),
        ("$p * 5", "`*` is no operation on pointers"),
        ("$p & 7", "`&` is no operation on pointers"),
        ("$p + $p", "`+` is no operation on pointers"),
        ("-$p", "`-` is no operation on pointers"),
        ("~$p", "`~` is no operation on pointers"),
        (
            "$p - (int64*)8",
            "these pointers lead to values of different types",
        ),
    ] {
        let program = format!("kprobe:vfs_write {{ $p = (int32*)8; print({text}); }}");
        let fake = super::fake::Fake::new();
        let errors = compiled_with(&program, &fake, &Options::default())
            .err()
            .unwrap();
        assert!(errors.contains(marked), "{text}: {errors:?}");
    }
}

/// C's rules for operators of its largest types, as rustc computes them.
#[test]
fn operators_bind_and_divide_as_in_c() {
    let (a, b) = (-7_i64, 3_i64);
    for (text, value) in [
        ("(int64)-7 / 3", a / b),
        ("(int64)-7 % 3", a % b),
        ("7 / (int64)-3", 7 / -3),
        ("7 % (int64)-3", 7 % -3),
        ("1 + 2 * 3 - 4", 1 + 2 * 3 - 4),
        ("1 << 2 + 1", 1 << (2 + 1)),
        ("6 & 3 == 2", i64::from(false)),
        ("1 | 2 ^ 3 & 4", 3),
        ("10 - 4 - 3", 10 - 4 - 3),
        ("100 / 10 / 5", 100 / 10 / 5),
        ("1 ? 2 : 0 ? 3 : 4", 2),
        ("-1 >> 1", -1),
        ("(int8)200", i64::from(200_u8.cast_signed())),
        ("(uint8)(int8)-1", 255),
        ("(int64)(uint32)-1", i64::from(u32::MAX)),
        ("(int16)0x18000", i64::from(0x8000_u16.cast_signed())),
        ("1 << arg0", 1),
        ("(int64)-8 >> arg1", -4),
        ("!5 + 1", 1),
        ("-2 * -3", 6),
        ("~0 & 0xff", 0xff),
    ] {
        let out = printed(&format!("printf(\"%ld\", {text});"), &[64, 65, 0, 0, 0, 0]);
        assert_eq!(out, value.to_string(), "{text}");
    }
}

#[test]
fn a_declared_variable_keeps_its_type() {
    for (program, out) in [
        ("let $a: uint8 = 255; $a++; print($a);", "0"),
        ("let $a: uint8 = 0; $a--; print($a);", "255"),
        ("let $a: int8 = 127; $a += 1; print($a);", "-128"),
        ("let $a: uint8 = (uint8)300; print($a);", "44"),
        ("let $a: uint8 = 1; $a = arg0; print($a);", "44"),
        ("let $a: int16 = 1; $a = arg1; print($a);", "-1"),
        ("let $a: uint16; print($a); $a = 5; print($a);", "0\n5"),
        ("let $a: int32; $a = -5; print($a);", "-5"),
        (
            "let $a: uint64 = 5; $a = arg1; print($a);",
            "18446744073709551615",
        ),
        ("let $s: string; $s = \"text\"; print($s);", "text"),
        ("let $p: int32*; $p = (int32*)8; print($p + 1);", "0xc"),
        (
            "let $b: bool; print($b); $b = true; print($b);",
            "false\ntrue",
        ),
    ] {
        let arguments = [300, u64::MAX, 0, 0, 0, 0];
        assert_eq!(
            printed(program, &arguments),
            format!("{out}\n"),
            "{program}"
        );
    }
    for program in [
        "let $a: uint8 = 10000;",
        "let $a: uint16 = -1;",
        "let $a: uint64 = -1;",
        "let $a: int8 = 1; $a = -10000;",
        "let $a: uint8; $a = 256;",
        "let $a: nothing_known;",
    ] {
        let text = format!("kprobe:vfs_write {{ {program} }}");
        let refused = compiled_with(&text, &super::fake::Fake::new(), &Options::default());
        assert!(refused.is_err(), "{program}");
    }
}

#[test]
fn conversions_show_so_much_of_a_number_as_they_say() {
    for (text, out) in [
        (
            "\"%hhx %hx %x %lx %jx\", arg0, arg0, arg0, arg0, arg0",
            "ef cdef 12345678abcdef 12345678abcdef 12345678abcdef",
        ),
        (
            "\"%hhd %hd %d %lld\", arg1, arg1, arg1, arg1",
            "-1 -1 -1 -1",
        ),
        (
            "\"%hhu %hu %u %llu\", arg1, arg1, arg1, arg1",
            "255 65535 18446744073709551615 18446744073709551615",
        ),
        ("\"%hhd %hhd %hd\", 200, 300, 40000", "-56 44 -25536"),
        (
            "\"%x %x %x %x\", (int8)-1, (int16)-2, (int32)-3, (int64)-4",
            "ff fffe fffffffd fffffffffffffffc",
        ),
        ("\"%u %o\", (int8)-1, (int8)-1", "255 377"),
        // A width among the values, and below zero to the left.
        (
            "\"%*d|%*s|%5d|%*s|\", 4, 7, -3, \"a\", 6, 0, \"b\"",
            "   7|a  |    6|b|",
        ),
        ("\"%d %d\", (int8)-1, (uint8)255", "-1 255"),
        (
            "\"%lx %x\", (int8)-1, -1",
            "ffffffffffffffff ffffffffffffffff",
        ),
        (
            "\"%rx|%rh\", buf(\"Hi\", 3), buf(\"Hi\", 2)",
            "\\x48\\x69\\x00|48 69",
        ),
        ("\"%d\", arg2", "-9223372036854775808"),
        ("\"%08hhx|%-4hhd|\", arg0, arg1", "000000ef|-1  |"),
        // The least digits, the sign's place, and the prefixes, as in C.
        (
            "\"%.3d|%6.3d|%-6.3d|%06.3d|%.2d\", 5, -5, 5, 5, 123",
            "005|  -005|005   |   005|123",
        ),
        ("\"% d|% d|%+d|%+d\", 3, -3, 3, -3", " 3|-3|+3|-3"),
        (
            "\"%#x|%#X|%#x|%#08x|%#o|%#o|%#.3o\", 255, 255, 0, 255, 8, 0, 8",
            "0xff|0XFF|0|0x0000ff|010|0|010",
        ),
        ("\"%.4x|%.4u|%.4o\", 255, 7, 8", "00ff|0007|0010"),
        (
            "\"%.0d|%+.0d|%3.0x|%#.0o|%.0u\", 0, 0, 0, 0, 1",
            "|+|   |0|1",
        ),
        (
            "\"%+05d|% 05d|%#06X|%-+5d|\", 7, 7, 255, 7",
            "+0007| 0007|0X00FF|+7   |",
        ),
    ] {
        let arguments = [0x12_3456_78ab_cdef, u64::MAX, 1 << 63, 0, 0, 0];
        assert_eq!(
            printed(&format!("printf({text});"), &arguments),
            out,
            "{text}"
        );
    }
}

#[test]
fn a_width_is_at_most_256_columns() {
    for (width, columns) in [("99", 99), ("100", 100), ("256", 256), ("257", 256)] {
        for text in [
            format!("printf(\"%{width}d\", 7);"),
            format!("printf(\"%*d\", {width}, 7);"),
        ] {
            let out = printed(&text, &[0; 6]);
            assert_eq!(out, format!("{:>columns$}", 7), "{text}");
        }
    }
}

#[test]
fn numbers_of_the_text_are_calculated_exactly() {
    for (text, out) in [
        ("6 | 3", "7"),
        ("6 ^ 3", "5"),
        ("6 & 3", "2"),
        ("9223372036854775807 + 1", "9223372036854775808"),
        ("0xffffffffffffffff - 1", "18446744073709551614"),
        ("1 << 63", "9223372036854775808"),
        ("-1 << 3", "-8"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("5 - 7", "-2"),
        ("-7 / 2", "-3"),
        ("-7 % 2", "-1"),
    ] {
        assert_eq!(
            printed(&format!("print({text});"), &[0; 6]),
            format!("{out}\n"),
            "{text}"
        );
    }
    for program in [
        "$p = (int32*)8; @ = sum($p);",
        "@ = max(kstack);",
        "return \"text\";",
        "print(nsecs(xxx));",
        "$a = -1; $a = 9223372036854775808;",
        "@[-1] = 1; print(@[10223372036854775807]);",
        "$p = (int32*)32; $p -= $p;",
    ] {
        let program = format!("kprobe:vfs_write {{ {program} }}");
        let refused = compiled_with(&program, &super::fake::Fake::new(), &Options::default());
        assert!(refused.is_err(), "{program}");
    }
    for text in [
        "0xffffffffffffffff + 1",
        "0x8000000000000000 + (-1)",
        "0 - 0x8000000000000001",
        "0x8000000000000000 * 2",
        "-0x8000000000000001",
        "-1 & 0xffffffffffffffff",
        "123 / 0",
        "-123 % 0",
        "true / false",
        "1 << 64",
        "1 >> -1",
        "~true",
        "*true",
        "kstack ? 1 : 0",
        "pid < 10 ? kstack(1) : kstack(2)",
        "(bool)kstack",
        "strncmp(\"a\", 1, 1)",
        "buf(arg0, -1)",
        "12e4",
        "1_1_",
        "1lul",
    ] {
        let program = format!("kprobe:vfs_write {{ print({text}); }}");
        let parsed = trace_language::parse(&program);
        let refused = parsed.is_err()
            || compiled_with(&program, &super::fake::Fake::new(), &Options::default()).is_err();
        assert!(refused, "{text}");
    }
}

/// A number of the text says nothing of the sign of what is stored in the same place, and numbers
/// of which some are signed are signed.
#[test]
fn the_sign_of_what_is_stored_is_that_of_all_its_values() {
    let arguments = [0, u64::MAX, 1, 2, 3, 4];
    let large = "18446744073709551615";
    for (text, out) in [
        ("@x = 0; @x = arg1; print(@x);", format!("@x: {large}\n")),
        ("$x = 0; $x = arg1; print($x);", format!("{large}\n")),
        ("let $x = 0; $x = arg1; print($x > 5);", "true\n".into()),
        (
            "$x = (1, 0); $x = (arg1, 2); print($x);",
            format!("({large}, 2)\n"),
        ),
        (
            "@x = (1, 0); @x = (arg1, 2); print(@x);",
            format!("@x: ({large}, 2)\n"),
        ),
        (
            "@x[0] = 1; delete(@x[0]); @x[arg1] = 2; print(@x);",
            format!("@x[{large}]: 2\n\n"),
        ),
        ("@x = 0; @x += arg1; print(@x);", format!("@x: {large}\n")),
        ("@x = arg1; @x = -1; print(@x);", "@x: -1\n".into()),
        ("@x = -1; @y = @x; @x = arg2; print(@y);", "@y: -1\n".into()),
        ("$x = arg2; $x = (int64)arg1; print($x);", "-1\n".into()),
        ("$x = 0; $x = -1; print($x);", "-1\n".into()),
        ("$x = 10; $x -= 20; print($x);", "-10\n".into()),
        // Also where it is read before the text tells the sign.
        (
            "$x = 6; @x = max($x); $x = arg1; @x = max($x); print(@x);",
            format!("@x: {large}\n"),
        ),
        (
            "$x = 9; $y = arg1; $y = $x >> (int64)arg0; $x = arg1; $y = arg1; print($y);",
            format!("{large}\n"),
        ),
        (
            "$x = 9; $x /= 5; $x = arg1; print($x);",
            format!("{large}\n"),
        ),
        (
            "$x = 0; $x = $x + 1; $x = arg1; print($x);",
            format!("{large}\n"),
        ),
        (
            "@x = 0; @x += 1; @x = arg1; print(@x);",
            format!("@x: {large}\n"),
        ),
        (
            "@x = arg1; @x = (int64)arg1; $x = @x; print($x);",
            "-1\n".into(),
        ),
        (
            "@x = arg0; @x += (int64)arg1; print(@x);",
            "@x: -1\n".into(),
        ),
        (
            "@x[(arg0, arg1)] = 1; @x[(arg2, 2)] = { 5 }; delete(@x[1, 2]); print(@x);",
            format!("@x[0, {large}]: 1\n\n"),
        ),
        (
            "let $x: uint64 = 0; $x = (uint64)arg1; print($x);",
            format!("{large}\n"),
        ),
        (
            "let $x: int64 = 0; $x = (int64)arg1; print($x);",
            "-1\n".into(),
        ),
    ] {
        assert_eq!(printed(text, &arguments), out, "{text}");
    }
}

#[test]
fn a_step_says_nothing_of_the_sign_of_a_map() {
    let large = "18446744073709551615";
    for (text, out) in [
        ("@x[1] = arg0; print(--@x[1]);", large),
        ("print(--@x[1]); @x[1] = arg0;", large),
        ("@x = arg0; @x--; $x = @x; print($x);", large),
        ("@x--; $x = @x; print($x);", "-1"),
        ("@x = (int64)arg0; print(--@x);", "-1"),
        ("@x = 0; print(--@x);", "-1"),
    ] {
        assert_eq!(printed(text, &[0; 6]), format!("{out}\n"), "{text}");
    }
}

#[test]
fn a_variable_of_truths_and_numbers_has_numbers() {
    for (text, out) in [
        (
            "$x = arg0 > 1; $x = arg1; print($x); print($x + 1);",
            "3\n4",
        ),
        ("$x = arg0 > 1; print($x); $x += 5; print($x);", "0\n5"),
        ("$x = arg0 > 1; print($x++); print($x);", "0\n1"),
        ("$x = arg0 > 1; $x = arg1 > 1; print($x);", "true"),
        // A truth that turns out to be a number has the sign of the variable.
        (
            "$x = arg0 > 1; $x = arg1 ? $x : 28; $x = arg0 - 1; print($x);",
            "18446744073709551615",
        ),
        (
            "let $x: bool; $x = arg1; print($x); print($x == 1); $x = 256; print($x);",
            "true\ntrue\ntrue",
        ),
    ] {
        let arguments = [0, 3, 0, 0, 0, 0];
        assert_eq!(printed(text, &arguments), format!("{out}\n"), "{text}");
    }
    let text = "kprobe:vfs_write { let $x: bool; $x++; }";
    let refused = compiled_with(text, &super::fake::Fake::new(), &Options::default());
    assert!(refused.is_err_and(|refusal| refusal.contains("true or false, and no number")));
}

/// A number of the text has no sign of its own, and neither has what is calculated of several.
#[test]
fn what_is_calculated_from_numbers_of_the_text_has_the_sign_of_what_follows() {
    let mut world = World::new(
        "kprobe:vfs_write { @sum = 1 + 2; @sum = arg0; $product = 2 * 3; print($product); \
         $product = arg0; print($product); print((arg0 ? 1 : 2) - 3); \
         print((arg0 ? 1 : 2) * -3 / 2); print((arg1 ? 1 : 2) - 3 < 0); }",
    );
    world.hit(&Hit {
        registers: vec![(Di, u64::MAX)],
        ..Hit::default()
    });
    assert_eq!(world.out, "6\n18446744073709551615\n-2\n-1\ntrue\n");
    world.out.clear();
    assert_eq!(world.maps(), "@sum: 18446744073709551615\n");
}
