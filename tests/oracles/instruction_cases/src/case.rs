//! One case: code, and the state from which it is executed.

use core::{fmt, ops::Range};

use iced_x86::{Instruction, OpKind, Register};

use crate::{Code, Ground, Random};

/// A result that differs from one execution of an instruction to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unpredictable {
    /// General registers, one bit for each.
    pub registers: u16,
    /// The status flags.
    pub flags: bool,
}

/// See the module's text.
#[derive(Clone)]
pub struct Case {
    /// The instruction under test and those after it.
    pub code: Code,
    /// The instruction under test.
    pub instruction: Instruction,
    /// rax rcx rdx rbx rsp rbp rsi rdi r8 to r15.
    pub registers: [u64; 16],
    /// RFLAGS.
    pub flags: u64,
    /// The number of the window in its ground.
    pub window: usize,
    /// The results that differ each time.
    pub unpredictable: Unpredictable,
    /// Whether it may change segment registers, their bases, control registers or model-specific
    /// registers.
    pub touches_system: bool,
    /// The stack below this address is undefined: it was dead before, and nothing was pushed there.
    pub dead_below: u64,
    pub(crate) fill: u64,
    pub(crate) words: [(u64, u64); 4],
    pub(crate) word_count: usize,
}

impl Case {
    /// Length of the instruction under test.
    pub fn first_len(&self) -> usize {
        self.instruction.len()
    }

    /// Fills memory that starts at `address` with the case's contents. All memory of a case is
    /// filled in this way.
    pub fn fill(&self, address: u64, memory: &mut [u64]) {
        let mut random = Random::new(self.fill ^ address);
        memory.fill_with(|| random.next());
        for &(at, word) in &self.words[..self.word_count] {
            for (n, byte) in (0..).zip(word.to_le_bytes()) {
                let offset = at.wrapping_add(n).wrapping_sub(address);
                if let Some(place) = memory.get_mut((offset / 8) as usize) {
                    let shift = offset % 8 * 8;
                    *place = *place & !(0xff << shift) | u64::from(byte) << shift;
                }
            }
        }
    }

    /// Makes memory hold `word` at `address`.
    pub(crate) fn set_word(&mut self, address: u64, word: u64) {
        if let Some(place) = self.words.get_mut(self.word_count) {
            *place = (address, word);
            self.word_count += 1;
        }
    }

    /// The words that memory was made to hold for the case.
    pub fn words(&self) -> &[(u64, u64)] {
        &self.words[..self.word_count]
    }

    /// The value of a register, or the base of a segment.
    pub(crate) fn value(&self, ground: &Ground<'_>, register: Register) -> u64 {
        match register {
            Register::FS => ground.fs_base,
            Register::GS => ground.gs_base,
            Register::RIP => self.instruction.next_ip(),
            _ => match number(register) {
                Some(number) => {
                    let value = self.registers[number];
                    match register.size() {
                        1 => value & 0xff,
                        2 => value & 0xffff,
                        4 => value & 0xffff_ffff,
                        _ => value,
                    }
                }
                None => 0,
            },
        }
    }

    /// The address of the explicit memory operand.
    pub(crate) fn operand_address(&self, ground: &Ground<'_>) -> Option<u64> {
        let operand = (0..self.instruction.op_count())
            .find(|&n| self.instruction.op_kind(n) == OpKind::Memory)?;
        self.instruction
            .virtual_address(operand, 0, |register, _, _| {
                Some(self.value(ground, register))
            })
    }

    /// Where the code lies.
    pub(crate) fn range(&self) -> Range<u64> {
        self.instruction.ip()..self.instruction.ip() + self.code.len() as u64
    }
}

/// Bytes, instruction and state, for whoever looks for the cause of a failure.
impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 16] = [
            "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11",
            "r12", "r13", "r14", "r15",
        ];
        writeln!(
            f,
            "{:?} at {:#x}, the first {} bytes are probed",
            self.code,
            self.instruction.ip(),
            self.first_len()
        )?;
        for (name, value) in NAMES.iter().zip(self.registers) {
            write!(f, "{name} {value:#x} ")?;
        }
        write!(f, "flags {:#x}", self.flags)?;
        for (address, word) in self.words() {
            write!(f, " [{address:#x}] {word:#x}")?;
        }
        Ok(())
    }
}

/// Number of the general register that `register` is part of.
pub(crate) fn number(register: Register) -> Option<usize> {
    let full = register.full_register();
    (Register::RAX..=Register::R15)
        .contains(&full)
        .then(|| full as usize - Register::RAX as usize)
}
