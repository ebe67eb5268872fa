//! The memory of the made-up kernel, and what arguments and results lead to there.

use super::{
    TEXTS,
    meaning::At,
    tree::{Cut, FileField, Type, Variants},
    value::Value,
};

/// Where there are numbers.
pub(super) const NUMBERS: u64 = 0xffff_8000_0040_0000;
const NUMBER_BYTES: u64 = 64;
/// Where there are files.
pub(super) const FILES: u64 = 0xffff_8000_0050_0000;
/// How far they are apart, and how many there are.
pub(super) const FILE_STEP: u64 = 64;
pub(super) const FILE_COUNT: u64 = 3;
/// Where there are the addresses of texts, which null ends.
pub(super) const LIST: u64 = 0xffff_8000_0080_0000;
const INODES: u64 = 0xffff_8000_0060_0000;
const NAMES: u64 = 0xffff_8000_0070_0000;

/// Position, whether it is readable, mode, name, number and links of each file.
const CONTENTS: [(i64, bool, u8, &str, u64, u32); FILE_COUNT as usize] = [
    (-5, true, 0, "passwd", 1, 2),
    (i64::MAX, false, 1, "", u64::MAX, u32::MAX),
    (300, true, 1, "a longer name", 77, 0),
];

/// All of it: addresses and their bytes.
pub(super) fn contents() -> Vec<(u64, Vec<u8>)> {
    let mut memory = vec![(NUMBERS, (0..NUMBER_BYTES).map(byte).collect())];
    for (number, (pos, is_readable, mode, name, inode, links)) in (0..).zip(CONTENTS) {
        let (at_inode, at_name) = (INODES + number * 64, NAMES + number * 64);
        let mut file = at_inode.to_le_bytes().to_vec();
        file.extend(pos.to_le_bytes());
        file.extend([is_readable.into(), mode, 0, 0, 0, 0, 0, 0]);
        file.extend(at_name.to_le_bytes());
        file.extend((name.len() as u64).to_le_bytes());
        let mut of_inode = inode.to_le_bytes().to_vec();
        of_inode.extend(links.to_le_bytes());
        of_inode.extend([0; 4]);
        memory.push((FILES + number * FILE_STEP, file));
        memory.push((at_inode, of_inode));
        memory.push((at_name, name.bytes().chain([0]).collect()));
    }
    let list = TEXTS.iter().map(|(address, _)| *address).chain([0]);
    memory.push((LIST, list.flat_map(u64::to_le_bytes).collect()));
    memory
}

/// The texts of the list from an address on.
pub(super) fn listed(from: u64) -> Vec<&'static str> {
    let first = (from - LIST) as usize / 8;
    TEXTS[first..].iter().map(|(_, text)| *text).collect()
}

/// A byte of the numbers: some words there are below zero, and some are small.
fn byte(place: u64) -> u8 {
    match place / 8 {
        0 => 0xff,
        1 => (place as u8).wrapping_mul(37),
        2 if place == 16 => 3,
        2 => 0,
        _ => (place as u8).wrapping_mul(151) ^ 0x5a,
    }
}

/// The bytes of what a pointer leads to.
pub(super) fn size(of: &Type) -> u64 {
    match of {
        Type::Pointer(cut) => u64::from(cut.bits) / 8,
        other => panic!("{other:?} is no pointer"),
    }
}

/// The number at an address; what cannot be read is 0.
pub(super) fn number(address: u64, of: &Type) -> Value {
    let Type::Pointer(cut) = of else {
        panic!("{of:?} is no pointer")
    };
    let mut bits = 0;
    for byte in (0..size(of)).rev() {
        match read(address.wrapping_add(byte)) {
            Some(read) => bits = bits << 8 | u64::from(read),
            None => return Value::cut(0, *cut),
        }
    }
    Value::cut(bits, *cut)
}

fn read(address: u64) -> Option<u8> {
    contents().into_iter().find_map(|(start, bytes)| {
        let place = usize::try_from(address.checked_sub(start)?).ok()?;
        bytes.get(place).copied()
    })
}

pub(super) fn of_file(address: u64, field: FileField) -> Value {
    let place = address.wrapping_sub(FILES);
    let is_file = place.is_multiple_of(FILE_STEP) && place / FILE_STEP < FILE_COUNT;
    let file = is_file.then(|| CONTENTS[(place / FILE_STEP) as usize]);
    let (pos, is_readable, mode, name, number, links) = file.unwrap_or((0, false, 0, "", 0, 0));
    match field {
        FileField::Pos => Value::signed(pos),
        FileField::Readable => Value::Truth(is_readable),
        FileField::Mode => Value::unsigned(mode.into()),
        FileField::Name => Value::Text(name.into()),
        FileField::Number => Value::unsigned(number),
        FileField::Links => Value::unsigned(links.into()),
    }
}

/// The variant that an enum has at a hit, and its fields. None: it has none of them.
pub(super) fn variant(of: Variants, at: &At) -> Option<(usize, Vec<Value>)> {
    match of {
        Variants::Shape => {
            let [_, first, second, ..] = at.arguments;
            let upper = Value::unsigned(first >> 32);
            match first & 0xffff_ffff {
                0 => Some((0, Vec::new())),
                1 => Some((1, vec![upper])),
                2 => Some((2, vec![upper, Value::signed(second.cast_signed())])),
                _ => None,
            }
        }
        Variants::Result => match at.result & 0xff {
            // The register of the argument has something else then.
            0 => Some((0, vec![Value::unsigned(!at.arguments[2])])),
            1 => Some((1, vec![Value::unsigned(at.result >> 8 & 0xff)])),
            _ => None,
        },
    }
}

/// The types to which pointers lead.
pub(super) const TARGETS: [Cut; 5] = [
    Cut {
        bits: 8,
        is_signed: false,
    },
    Cut {
        bits: 16,
        is_signed: true,
    },
    Cut {
        bits: 32,
        is_signed: true,
    },
    Cut {
        bits: 32,
        is_signed: false,
    },
    Cut {
        bits: 64,
        is_signed: true,
    },
];
