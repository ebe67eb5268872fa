//! The public test vectors of the instruction set, from `vectors.txt`, which describes its form.

use alloc::vec::Vec;

/// A program in wire form, its memory, and its result.
#[derive(Clone, Debug)]
pub struct Vector {
    pub name: &'static str,
    pub wire: Vec<u8>,
    /// `r1` points to it, and `r2` is the number of its bytes.
    pub memory: Vec<u8>,
    pub result: u64,
}

/// All of them.
///
/// # Panics
/// If `vectors.txt` has a line of another form.
pub fn vectors() -> Vec<Vector> {
    let mut vectors: Vec<Vector> = Vec::new();
    for (number, line) in (1..).zip(include_str!("vectors.txt").lines()) {
        let is_text = line.is_empty() || line.starts_with('#');
        if !is_text && read(line, &mut vectors).is_none() {
            panic!("line {number} of vectors.txt is none of its forms: {line}");
        }
    }
    vectors
}

fn read(line: &'static str, vectors: &mut Vec<Vector>) -> Option<()> {
    let (kind, rest) = line.split_once(' ')?;
    if kind == "=" {
        let (name, result) = rest.split_once(' ')?;
        vectors.push(Vector {
            name,
            wire: Vec::new(),
            memory: Vec::new(),
            result: u64::from_str_radix(result.strip_prefix("0x")?, 16).ok()?,
        });
        return Some(());
    }
    let vector = vectors.last_mut()?;
    let bytes = match kind {
        "p" => &mut vector.wire,
        "m" => &mut vector.memory,
        _ => return None,
    };
    for word in rest.split(' ') {
        for digits in word.as_bytes().chunks(2) {
            let digits = core::str::from_utf8(digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
        }
    }
    Some(())
}
