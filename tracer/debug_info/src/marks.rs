//! Static marks of a program: the notes of its section `.note.stapsdt`.
//!
//! A note has an owner (`stapsdt`), a type (3), and a description: three words (the address of the
//! mark, the base, the semaphore), and three texts with a NUL after each (provider, name,
//! arguments). An argument is `SIZE@PLACE`: the number of its bytes, negative if it has a sign, and
//! an operand as the assemblers of Unix write them: `%eax`, `$5`, `-8(%rbp)`, `8(%rdi,%rsi,4)`.
//! This is the format that SystemTap's header `sys/sdt.h` describes.
//!
//! A note that is cut off ends the reading. A place that is written in another way is unknown.

use trace_interface::symbols::{Expression, MarkArgument, Operation, Register};

const OWNER: &[u8] = b"stapsdt\0";
const MARK: u32 = 3;

/// A note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub address: u64,
    pub provider: String,
    pub name: String,
    pub arguments: Vec<MarkArgument>,
    /// The address of the word that counts the tracers; 0: there is none.
    pub semaphore: u64,
}

/// The notes of a section.
pub fn notes(mut section: &[u8]) -> Vec<Note> {
    let mut notes = Vec::new();
    while let Some((owner, kind, description)) = next(&mut section) {
        if owner == OWNER && kind == MARK {
            notes.extend(note(description));
        }
    }
    notes
}

/// Takes the next note: owner, type, description.
fn next<'s>(section: &mut &'s [u8]) -> Option<(&'s [u8], u32, &'s [u8])> {
    let word = |at: usize| {
        let bytes = section.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let (owner, description, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
    let rest = section.get(12..)?;
    let after = |bytes: usize| bytes.checked_next_multiple_of(4);
    let start = after(owner)?;
    let end = start.checked_add(description)?;
    let found = (rest.get(..owner)?, kind, rest.get(start..end)?);
    // The last one may have no padding.
    *section = rest.get(after(end)?..).unwrap_or_default();
    Some(found)
}

fn note(description: &[u8]) -> Option<Note> {
    let (words, texts) = description.split_at_checked(24)?;
    let address = u64::from_le_bytes(words[..8].try_into().ok()?);
    let semaphore = u64::from_le_bytes(words[16..].try_into().ok()?);
    let mut texts = texts
        .split(|byte| *byte == 0)
        .map(|text| String::from_utf8_lossy(text).into_owned());
    let (provider, name, arguments) = (texts.next()?, texts.next()?, texts.next()?);
    // The linker leaves 0 where the code is left out.
    (address != 0).then(|| Note {
        address,
        provider,
        name,
        arguments: arguments.split_whitespace().map(argument).collect(),
        semaphore,
    })
}

/// An argument.
fn argument(text: &str) -> MarkArgument {
    let (size, place) = text.split_once('@').unwrap_or(("8", text));
    match size.parse::<i8>() {
        Ok(size @ (1 | 2 | 4 | 8 | -1 | -2 | -4 | -8)) => MarkArgument {
            bytes: size.unsigned_abs(),
            signed: size < 0,
            value: operand(place, size.unsigned_abs()),
        },
        // Floating-point numbers, and sizes that no register has.
        _ => MarkArgument {
            bytes: 8,
            signed: false,
            value: None,
        },
    }
}

fn operand(text: &str, bytes: u8) -> Option<Expression> {
    if let Some(register) = text.strip_prefix('%') {
        return Some(Expression::Register(register_named(register)?));
    }
    if let Some(number) = text.strip_prefix('$') {
        return Some(Expression::Constant(integer(number)?.cast_unsigned()));
    }
    let (offset, registers) = text.strip_suffix(')')?.split_once('(')?;
    let mut parts = registers.split(',');
    let word = |part: &str| {
        let name = part.trim().strip_prefix('%')?;
        // An address of 32 bits would wrap.
        let is_whole = name.starts_with('r') && !name.ends_with(['d', 'w', 'b']);
        let register = register_named(name).filter(|_| is_whole)?;
        Some(Expression::Register(register))
    };
    let sum = |left, right| Expression::Binary(Operation::Add, Box::new(left), Box::new(right));
    let mut address = match parts.next()? {
        "" => Expression::Constant(0),
        base => word(base)?,
    };
    if let Some(index) = parts.next() {
        let scale = parts.next().map_or(Some(1), integer)?.cast_unsigned();
        let scale = Box::new(Expression::Constant(scale));
        let index = Expression::Binary(Operation::Multiply, Box::new(word(index)?), scale);
        address = sum(address, index);
    }
    if parts.next().is_some() {
        return None;
    }
    if !offset.is_empty() {
        let offset = Expression::Constant(integer(offset)?.cast_unsigned());
        address = sum(address, offset);
    }
    Some(Expression::Load {
        address: Box::new(address),
        bytes,
    })
}

fn integer(text: &str) -> Option<i64> {
    let text = text.trim();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let number = match digits.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    Some(sign * number.ok()?)
}

/// The register that has the low bytes that a name means.
fn register_named(name: &str) -> Option<Register> {
    let known = |name: &str| {
        let mut all = Register::ALL.into_iter();
        all.find(|register| register.name() == name)
    };
    let numbered = name.trim_end_matches(['d', 'w', 'b']);
    if numbered.starts_with('r') && numbered[1..].starts_with(|digit: char| digit.is_ascii_digit())
    {
        return known(numbered);
    }
    match name.as_bytes() {
        // rax, eax, and so on.
        [b'r' | b'e', _, _] => known(&name[1..]).filter(|register| *register != Register::Ip),
        [b'a' | b'b' | b'c' | b'd', b'l'] => known(&format!("{}x", &name[..1])),
        // sil, dil, bpl, spl.
        [_, _, b'l'] => known(&name[..2]),
        [_, b'x' | b'i' | b'p'] => known(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A note as a compiler writes it.
    fn written(owner: &[u8], kind: u32, address: u64, texts: &[u8]) -> Vec<u8> {
        counted(owner, kind, [address, 0], texts)
    }

    /// The same with a semaphore.
    fn counted(owner: &[u8], kind: u32, [address, semaphore]: [u64; 2], texts: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        for word in [owner.len() as u32, 24 + texts.len() as u32, kind] {
            note.extend(word.to_le_bytes());
        }
        note.extend(owner);
        note.resize(note.len().next_multiple_of(4), 0);
        for word in [address, 0, semaphore] {
            note.extend(word.to_le_bytes());
        }
        note.extend(texts);
        note.resize(note.len().next_multiple_of(4), 0);
        note
    }

    #[test]
    fn marks_are_read_among_other_notes() {
        let section = [
            written(b"GNU\0", 3, 1, b"a\0b\0\0"),
            written(OWNER, 3, 0x40_1000, b"shop\0sold\0-4@%eax 8@$7\0"),
            written(OWNER, 4, 0x40_1000, b"shop\0other\0\0"),
            written(OWNER, 3, 0, b"shop\0left_out\0\0"),
            counted(OWNER, 3, [0x40_2000, 0x40_8002], b"shop\0closed\0\0"),
        ];
        let section = section.concat();
        let found = notes(&section);
        let names: Vec<_> = found
            .iter()
            .map(|note| (&*note.provider, &*note.name, note.address, note.semaphore))
            .collect();
        assert_eq!(
            names,
            [
                ("shop", "sold", 0x40_1000, 0),
                ("shop", "closed", 0x40_2000, 0x40_8002)
            ]
        );
        assert_eq!(
            found[0].arguments,
            [
                MarkArgument {
                    bytes: 4,
                    signed: true,
                    value: Some(Expression::Register(Register::Ax)),
                },
                MarkArgument {
                    bytes: 8,
                    signed: false,
                    value: Some(Expression::Constant(7)),
                },
            ]
        );
        for end in 0..section.len() {
            assert!(notes(&section[..end]).len() <= 2, "{end}");
        }
    }

    #[test]
    fn each_form_of_an_operand_is_read() {
        use Expression::{Constant, Register as In};
        let sum = |left, right| Expression::Binary(Operation::Add, Box::new(left), Box::new(right));
        let load = |address, bytes| {
            Some(Expression::Load {
                address: Box::new(address),
                bytes,
            })
        };
        let scaled = Expression::Binary(
            Operation::Multiply,
            Box::new(In(Register::Si)),
            Box::new(Constant(4)),
        );
        let minus_8 = Constant((-8_i64).cast_unsigned());
        for (text, expected) in [
            ("8@%rax", Some(In(Register::Ax))),
            ("-2@%ax", Some(In(Register::Ax))),
            ("1@%al", Some(In(Register::Ax))),
            ("1@%dil", Some(In(Register::Di))),
            ("4@%r9d", Some(In(Register::R9))),
            ("8@%r15", Some(In(Register::R15))),
            ("4@%esp", Some(In(Register::Sp))),
            ("-4@$-3", Some(Constant((-3_i64).cast_unsigned()))),
            ("8@$0x10", Some(Constant(16))),
            ("8@(%rbp)", load(In(Register::Bp), 8)),
            (
                "4@-8(%rbp)",
                load(sum(In(Register::Bp), minus_8.clone()), 4),
            ),
            (
                "2@-8(%rdi,%rsi,4)",
                load(sum(sum(In(Register::Di), scaled), minus_8), 2),
            ),
            // The high byte, a symbol, the program counter, an address of 32 bits.
            ("1@%ah", None),
            ("8@shelves+8(%rip)", None),
            ("8@%rip", None),
            ("8@(%edi)", None),
            ("8f@%xmm0", None),
            ("16@%rax", None),
            ("8@", None),
            ("8@%", None),
            ("8@(%rdi,%rsi,4,5)", None),
        ] {
            assert_eq!(argument(text).value, expected, "{text}");
        }
    }
}
