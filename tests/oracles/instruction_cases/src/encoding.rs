//! Encodings: random bytes that are likely to be an instruction, of every map and every theme.
//!
//! Prefixes, opcode and operands are drawn apart, because random bytes alone would be the same few
//! instructions most of the time. What would do harm is changed to something near it: a
//! displacement to one that reaches the ground, a port to one that nothing listens to.

use core::{fmt, ops::Deref};

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, Register};

use crate::Random;

/// Length limit of one instruction (Intel SDM vol. 2A, 2.3.11).
const MAX_INSN_BYTES: usize = 15;

/// A port that only a diagnostic card uses, which shows its value and perhaps gives it back.
pub const HARMLESS_PORT: u8 = 0x80;

/// A few bytes of code.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Code {
    bytes: [u8; Code::MAX_BYTES],
    len: u8,
}

impl Code {
    /// Capacity.
    pub const MAX_BYTES: usize = 32;

    /// Bytes in which an instruction ends somewhere.
    fn window(&self) -> [u8; MAX_INSN_BYTES] {
        let mut window = [0; MAX_INSN_BYTES];
        window.copy_from_slice(&self.bytes[..MAX_INSN_BYTES]);
        window
    }

    /// Appends `bytes` if they have room.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        let start = usize::from(self.len);
        if let Some(place) = self.bytes.get_mut(start..start + bytes.len()) {
            place.copy_from_slice(bytes);
            self.len += bytes.len() as u8;
        }
    }

    fn push(&mut self, byte: u8) {
        self.extend(&[byte]);
    }
}

impl Deref for Code {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl From<&[u8]> for Code {
    fn from(bytes: &[u8]) -> Self {
        let mut code = Self::default();
        code.extend(bytes);
        code
    }
}

/// The bytes in hexadecimal: `48 8b 05 10 00 00 00`.
impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.iter().enumerate() {
            let gap = if i == 0 { "" } else { " " };
            write!(f, "{gap}{byte:02x}")?;
        }
        Ok(())
    }
}

/// 15 bytes that start with a random encoding, valid or not.
pub fn draw(random: &mut Random) -> [u8; MAX_INSN_BYTES] {
    let mut code = Code::default();
    match random.below(16) {
        0..2 => relative_operand(random, &mut code),
        2..4 => branch(random, &mut code),
        4..6 => string(random, &mut code),
        6..8 => stack(random, &mut code),
        8 => flags(random, &mut code),
        9 => atomic(random, &mut code),
        10 => system(random, &mut code),
        11 => bit_manipulation(random, &mut code),
        _ => any(random, &mut code),
    }
    while code.len() < MAX_INSN_BYTES {
        code.push(random.byte());
    }
    code.window()
}

/// A REX prefix in one of two cases.
fn rex(random: &mut Random, code: &mut Code) {
    if random.one_in(2) {
        code.push(0x40 | random.byte() & 0xf);
    }
}

fn prefixes(random: &mut Random, code: &mut Code) {
    for prefix in [0x66, 0x67, 0xf2, 0xf3, 0xf0, 0x2e, 0x3e, 0x65] {
        if random.one_in(10) {
            code.push(prefix);
        }
    }
    rex(random, code);
}

/// Any opcode of any map.
fn any(random: &mut Random, code: &mut Code) {
    match random.below(20) {
        0 => code.extend(&[0xc5, random.byte(), random.byte()]),
        1 => {
            code.extend(&[0xc4, random.byte() & 0xe0 | (1 + random.below(3)) as u8]);
            code.extend(&[random.byte(), random.byte()]);
        }
        2 => {
            let map = random.of(&[1, 2, 3, 5, 6]);
            code.extend(&[0x62, random.byte() & 0xf0 | map, random.byte() | 4]);
            code.extend(&[random.byte(), random.byte()]);
        }
        _ => {
            prefixes(random, code);
            match random.below(8) {
                0..3 => {}
                3..6 => code.push(0x0f),
                6 => code.extend(&[0x0f, 0x38]),
                _ => code.extend(&[0x0f, 0x3a]),
            }
            code.push(random.byte());
        }
    }
}

/// Any opcode with a RIP-relative operand.
fn relative_operand(random: &mut Random, code: &mut Code) {
    prefixes(random, code);
    if random.one_in(3) {
        code.push(0x0f);
    }
    code.extend(&[random.byte(), random.byte() & 0x38 | 5]);
}

fn branch(random: &mut Random, code: &mut Code) {
    for prefix in [0x66, 0x67, 0xf2, 0xf3, 0x2e, 0x3e] {
        if random.one_in(16) {
            code.push(prefix);
        }
    }
    if random.one_in(4) {
        code.push(0x40 | random.byte() & 0xf);
    }
    match random.below(8) {
        0 => code.push(0x70 | random.byte() & 0xf),
        1 => code.extend(&[0x0f, 0x80 | random.byte() & 0xf]),
        2 => code.push(0xe0 | random.byte() & 3),
        3 => code.push(random.of(&[0xeb, 0xe9])),
        4 => code.push(0xe8),
        5 => code.push(random.of(&[0xc2, 0xc3])),
        _ => {
            let operation = random.of(&[2, 4]);
            code.extend(&[0xff, random.byte() & 0xc7 | operation << 3]);
        }
    }
}

fn string(random: &mut Random, code: &mut Code) {
    for (prefix, n) in [(0xf2, 4), (0xf3, 2), (0x66, 6), (0x67, 12), (0x65, 12)] {
        if random.one_in(n) {
            code.push(prefix);
        }
    }
    if random.one_in(2) {
        code.push(0x48);
    }
    code.push(random.of(&[
        0xa4, 0xa5, 0xa6, 0xa7, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf, 0x6c, 0x6d, 0x6e, 0x6f,
    ]));
}

/// Pushes and pops, and other instructions with RSP as an operand.
fn stack(random: &mut Random, code: &mut Code) {
    if random.one_in(8) {
        code.push(0x66);
    }
    match random.below(8) {
        0..2 => {
            rex(random, code);
            code.push(0x50 | random.byte() & 0xf);
        }
        2 => code.push(random.of(&[0x54, 0x5c, 0x9c, 0x9d, 0xc9, 0x68, 0x6a])),
        3 => {
            rex(random, code);
            let operation = random.of(&[(0xff, 6), (0x8f, 0)]);
            code.extend(&[operation.0, random.byte() & 0xc7 | operation.1 << 3]);
        }
        4 => {
            // With RSP as the base.
            rex(random, code);
            let operation = random.of(&[(0xff, 6), (0x8f, 0), (0x8b, 3), (0x89, 1), (0xff, 2)]);
            code.extend(&[operation.0, 0x44 | operation.1 << 3, 0x24]);
        }
        5 => {
            let (low, level) = (random.byte(), random.of(&[0, 0, 0, 1, 2, 3, 31]));
            code.extend(&[0xc8, low, 0, level]);
        }
        6 => code.extend(&[0x0f, random.of(&[0xa0, 0xa1, 0xa8])]),
        _ => {
            // An operation on RSP itself.
            code.push(random.of(&[0x48, 0x49, 0x4c, 0x48]));
            let opcode = random.of(&[0x89, 0x8b, 0x8d, 0x01, 0x29, 0x21, 0x83, 0x83, 0x87, 0x39]);
            let other = random.byte() & 7;
            code.extend(&[
                opcode,
                random.of(&[0xc4 | other << 3, 0xe0 | other, 0x24, 0x64]),
            ]);
            code.push(0x24);
        }
    }
}

fn flags(random: &mut Random, code: &mut Code) {
    if random.one_in(8) {
        code.push(0x66);
    }
    rex(random, code);
    match random.below(4) {
        0..2 => code.push(random.of(&[
            0x9c, 0x9d, 0x9e, 0x9f, 0xf5, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0x10, 0x11, 0x12,
            0x13, 0x18, 0x19, 0x1a, 0x1b, 0xd1, 0xd3, 0xc1,
        ])),
        2 => code.extend(&[0x0f, 0x90 | random.byte() & 0xf]),
        _ => code.extend(&[0x0f, 0x40 | random.byte() & 0xf]),
    }
}

/// Locked operations, on memory.
fn atomic(random: &mut Random, code: &mut Code) {
    if random.one_in(8) {
        code.push(random.of(&[0x66, 0xf2, 0xf3]));
    }
    code.push(0xf0);
    rex(random, code);
    let modrm = random.byte() & 0x3f | random.of(&[0, 0x40, 0x80]);
    let operation = |n: u8| modrm & 0xc7 | n << 3;
    match random.below(6) {
        0 => code.extend(&[random.byte() & 0x39, modrm]),
        1 => code.extend(&[0x0f, random.of(&[0xb0, 0xb1, 0xc0, 0xc1]), modrm]),
        2 => code.extend(&[random.of(&[0x86, 0x87]), modrm]),
        3 => code.extend(&[0x0f, 0xc7, operation(1)]),
        4 => match random.below(2) {
            0 => code.extend(&[0x0f, 0xba, operation(5 + random.below(3) as u8)]),
            _ => code.extend(&[0x0f, random.of(&[0xab, 0xb3, 0xbb]), modrm]),
        },
        _ => {
            let (opcode, n) = random.of(&[(0xff, 0), (0xfe, 1), (0xf7, 2), (0xf6, 3), (0x83, 4)]);
            code.extend(&[opcode, operation(n)]);
        }
    }
}

fn system(random: &mut Random, code: &mut Code) {
    if random.one_in(8) {
        code.push(random.of(&[0x66, 0xf2, 0xf3, 0x48]));
    }
    match random.below(4) {
        0 => code.extend(&[0xf3, 0x0f, 0x1e, random.of(&[0xfa, 0xfb, 0xc8])]),
        1 => code.push(random.of(&[0x8c, 0x8e, 0xe4, 0xe6, 0xec, 0xee, 0xed, 0xef])),
        _ => code.extend(&[
            0x0f,
            random.of(&[
                0x00, 0x01, 0x01, 0x02, 0x03, 0x06, 0x08, 0x09, 0x0d, 0x18, 0x1c, 0x1e, 0x1f, 0x20,
                0x21, 0x22, 0x23, 0x30, 0x31, 0x32, 0x33, 0xa2, 0xae, 0xae, 0xb4, 0xb5, 0xc7, 0xc7,
            ]),
        ]),
    }
}

/// BMI and ADX: the instructions with VEX that work on general registers.
fn bit_manipulation(random: &mut Random, code: &mut Code) {
    if random.one_in(4) {
        code.push(random.of(&[0x66, 0xf3]));
        rex(random, code);
        code.extend(&[0x0f, 0x38, random.of(&[0xf0, 0xf1, 0xf6])]);
        return;
    }
    let (map, opcode) = random.of(&[
        (2, 0xf2),
        (2, 0xf3),
        (2, 0xf5),
        (2, 0xf6),
        (2, 0xf7),
        (3, 0xf0),
    ]);
    // VEX.L must be 0.
    code.extend(&[
        0xc4,
        random.byte() & 0xe0 | map,
        random.byte() & 0xfb,
        opcode,
    ]);
}

/// Decodes, without any check of the code under test.
pub fn decode_plainly(bytes: &[u8], ip: u64) -> Option<Instruction> {
    let instruction = Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// Changes the displacement of the instruction at the start of `bytes` so that it points to
/// `address`. If the address has registers, makes the displacement small. Returns the instruction's
/// bytes.
pub fn tame_displacement(bytes: &mut [u8; MAX_INSN_BYTES], ip: u64, address: u64) -> Option<Code> {
    let mut decoder = Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        return None;
    }
    let offsets = decoder.get_constant_offsets(&instruction);
    let (offset, size) = (offsets.displacement_offset(), offsets.displacement_size());
    let displacement = match (instruction.memory_base(), instruction.memory_index()) {
        (Register::RIP | Register::EIP, _) => address.wrapping_sub(instruction.next_ip()),
        (Register::None, Register::None) => address,
        // No code uses dead stack.
        (Register::RSP | Register::ESP, _) => u64::from(bytes[offset] & 0x3f),
        (Register::None, _) => address,
        _ => u64::from(bytes[offset]),
    };
    if offsets.has_displacement() {
        bytes[offset..offset + size].copy_from_slice(&displacement.to_le_bytes()[..size]);
    }
    Some(Code::from(&bytes[..instruction.len()]))
}

/// Makes the counts of `ret` and `enter` small, and ports harmless.
pub(crate) fn tame_immediate(code: &mut Code, ip: u64) {
    let mut decoder = Decoder::with_ip(64, code, ip, DecoderOptions::NONE);
    let instruction = decoder.decode();
    let offsets = decoder.get_constant_offsets(&instruction);
    if !offsets.has_immediate() {
        return;
    }
    let immediate = &mut code.bytes[offsets.immediate_offset()..];
    match instruction.mnemonic() {
        Mnemonic::Ret | Mnemonic::Enter => {
            immediate[0] &= 0x7f;
            immediate[1] = 0;
        }
        Mnemonic::In | Mnemonic::Out => immediate[0] = HARMLESS_PORT,
        _ => {}
    }
}
