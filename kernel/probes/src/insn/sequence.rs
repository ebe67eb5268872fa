//! A buffer of machine code that knows the [`Position`] of the probed code for each of its
//! instructions.
//!
//! Code grows at the end. An address that does not fit into an instruction's own field goes to a
//! pool of 8-byte literals after the code. [`Sequence::finish`] places the pool. In a kernel
//! linked in the top 2 GiB every address fits and the pool stays empty.

use super::{
    classify::has_memory_operand,
    decode::Insn,
    rebase::{displacement, rebased},
    refusal::Refusal,
};

/// The instruction pointer of the probed code, while the processor stands in its replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeIp {
    /// This address.
    Known(u64),
    /// The quad word at RSP + offset.
    Stacked(i32),
}

/// The probed code, as seen while the processor stands at some instruction of its replacement.
///
/// Flags and all registers but RIP and RSP are always the probed code's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The probed code's instruction pointer.
    pub ip: ResumeIp,
    /// The number to add to RSP to get the probed code's stack pointer. Only dead stack was written
    /// below that.
    pub rsp_correction: i32,
}

impl Position {
    pub(super) const fn known(ip: u64, rsp_correction: i32) -> Self {
        Self {
            ip: ResumeIp::Known(ip),
            rsp_correction,
        }
    }

    /// On top of the stack lies the ip with which to go on once it is popped.
    pub(super) const EXIT_STACKED: Self = Self {
        ip: ResumeIp::Stacked(0),
        rsp_correction: 8,
    };
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    offset: u8,
    position: Position,
}

/// A 32-bit RIP-relative field whose literal has no address yet.
#[derive(Clone, Copy, Debug, Default)]
struct Reference {
    field: u8,
    literal: u8,
}

/// The prefix of a branch that leaves the bounds registers as they are.
const BND: u8 = 0xf2;

const LITERALS: usize = 4;
const REFERENCES: usize = 8;

/// Machine code of at most `BYTES` bytes (255 or fewer) and `MARKS` instructions.
#[derive(Clone, Debug)]
pub(super) struct Sequence<const BYTES: usize, const MARKS: usize> {
    start: u64,
    code: [u8; BYTES],
    len: usize,
    marks: [Mark; MARKS],
    mark_count: usize,
    literals: [u64; LITERALS],
    literal_count: usize,
    references: [Reference; REFERENCES],
    reference_count: usize,
}

/// A one-byte branch field that waits for its target.
#[must_use]
pub(super) struct ShortJump {
    field: usize,
}

impl<const BYTES: usize, const MARKS: usize> Sequence<BYTES, MARKS> {
    pub fn new(start: u64) -> Self {
        const { assert!(BYTES <= 255 && MARKS > 0) };
        Self {
            start,
            code: [0; BYTES],
            len: 0,
            marks: [Mark {
                offset: 0,
                position: Position::known(0, 0),
            }; MARKS],
            mark_count: 0,
            literals: [0; LITERALS],
            literal_count: 0,
            references: [Reference::default(); REFERENCES],
            reference_count: 0,
        }
    }

    pub fn code(&self) -> &[u8] {
        &self.code[..self.len]
    }

    pub const fn len(&self) -> usize {
        self.len
    }

    /// Address of the next instruction to be appended.
    pub const fn here(&self) -> u64 {
        self.start.wrapping_add(self.len as u64)
    }

    /// The position at `offset`, which should be the start of an instruction of the sequence.
    pub fn position(&self, offset: usize) -> Option<Position> {
        let marks = &self.marks[..self.mark_count];
        marks
            .iter()
            .rev()
            .find(|mark| usize::from(mark.offset) <= offset)
            .map(|mark| mark.position)
    }

    /// The positions that were stated, and the offset from which each holds. One that holds for no
    /// byte is superseded by the next one.
    pub fn positions(&self) -> impl Iterator<Item = (usize, Position)> {
        let marks = &self.marks[..self.mark_count];
        let next = marks.iter().skip(1).map(|mark| Some(mark.offset));
        marks
            .iter()
            .zip(next.chain([None]))
            .filter(|(mark, next)| *next != Some(mark.offset))
            .map(|(mark, _)| (usize::from(mark.offset), mark.position))
    }

    /// States the position at the next instruction to be appended.
    pub fn mark(&mut self, position: Position) -> Result<(), Refusal> {
        let slot = self.marks.get_mut(self.mark_count).ok_or(Refusal::NoRoom)?;
        // `len` is at most BYTES, which is at most 255.
        *slot = Mark {
            offset: self.len as u8,
            position,
        };
        self.mark_count += 1;
        Ok(())
    }

    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        let end = self.len + bytes.len();
        self.code
            .get_mut(self.len..end)
            .ok_or(Refusal::NoRoom)?
            .copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }

    /// A copy of `insn` that does the same from here. Not for relative branches.
    pub fn copy(&mut self, insn: &Insn) -> Result<(), Refusal> {
        let (bytes, len) = rebased(insn, self.here())?;
        self.put(&bytes[..len])
    }

    /// `push value`.
    pub fn push(&mut self, value: u64) -> Result<(), Refusal> {
        match i32::try_from(value as i64) {
            Ok(immediate) => {
                self.put(&[0x68])?;
                self.put(&immediate.to_le_bytes())
            }
            Err(_) => self.with_literal(&[0xff, 0x35], value),
        }
    }

    /// `jmp target`.
    pub fn jump(&mut self, target: u64) -> Result<(), Refusal> {
        match self.relative(target, 5) {
            Some(displacement) => {
                self.put(&[0xe9])?;
                self.put(&displacement.to_le_bytes())
            }
            None => self.with_literal(&[0xff, 0x25], target),
        }
    }

    /// `jmp target`, with the prefixes of `insn`.
    pub fn jump_like(&mut self, insn: &Insn, target: u64) -> Result<(), Refusal> {
        let prefixes = insn.prefix_bytes();
        if self.relative(target, prefixes.len() as u64 + 5).is_some() {
            self.put(prefixes)?;
        } else {
            // The others would change the operand, which is not that of `insn`.
            self.put_bound_prefix(insn)?;
        }
        self.jump(target)
    }

    /// The BND prefix, if `insn` has it, for the branch to come.
    pub fn put_bound_prefix(&mut self, insn: &Insn) -> Result<(), Refusal> {
        self.put_prefixes(insn, |byte| byte == BND)
    }

    fn put_prefixes(&mut self, insn: &Insn, wanted: impl Fn(u8) -> bool) -> Result<(), Refusal> {
        for prefix in insn.prefix_bytes().iter().filter(|&&byte| wanted(byte)) {
            self.put(&[*prefix])?;
        }
        Ok(())
    }

    /// `jcc target`, or `None` and no code if the target is out of reach. `condition` is the low
    /// nibble of the opcode.
    pub fn conditional_jump(
        &mut self,
        prefixes: &[u8],
        condition: u8,
        target: u64,
    ) -> Result<Option<()>, Refusal> {
        let Some(displacement) = self.relative(target, prefixes.len() as u64 + 6) else {
            return Ok(None);
        };
        self.put(prefixes)?;
        self.put(&[0x0f, 0x80 | condition])?;
        self.put(&displacement.to_le_bytes())?;
        Ok(Some(()))
    }

    /// A short branch, its target still open.
    pub fn short_jump(&mut self, opcode: u8) -> Result<ShortJump, Refusal> {
        self.put(&[opcode, 0])?;
        Ok(ShortJump {
            field: self.len - 1,
        })
    }

    /// Makes `jump` lead to the next instruction to be appended.
    pub fn land(&mut self, jump: ShortJump) -> Result<(), Refusal> {
        let distance = i8::try_from(self.len - jump.field - 1).map_err(|_| Refusal::NoRoom)?;
        self.code[jump.field] = distance as u8;
        Ok(())
    }

    /// `push` of the register or memory operand of an indirect branch, with its prefixes but for
    /// that of the branch.
    pub fn push_branch_operand(&mut self, insn: &Insn) -> Result<(), Refusal> {
        let [0xff, modrm, tail @ ..] = insn.opcode_bytes() else {
            unreachable!("near indirect branches have the opcode 0xff and a ModRM byte")
        };
        self.put_prefixes(insn, |byte| byte != BND)?;
        if !has_memory_operand(insn) {
            return self.put(&[0x50 | (modrm & 7)]);
        }
        self.put(&[0xff, (modrm & 0xc7) | 6 << 3])?;
        if insn.ip_relative_offset().is_some() {
            let displacement = displacement(insn, self.here().wrapping_add(4))?;
            self.put(&displacement.to_le_bytes())
        } else {
            self.put(tail)
        }
    }

    /// Stores `value` at RSP + 8, in one or two instructions; `position` is that of the first.
    pub fn store_under_top(&mut self, value: u64, position: Position) -> Result<(), Refusal> {
        self.mark(position)?;
        match i32::try_from(value as i64) {
            Ok(immediate) => {
                self.put(&[0x48, 0xc7, 0x44, 0x24, 0x08])?; // mov qword ptr [rsp + 8], imm32
                self.put(&immediate.to_le_bytes())
            }
            Err(_) => {
                self.push(value)?;
                self.mark(Position {
                    rsp_correction: position.rsp_correction + 8,
                    ..position
                })?;
                self.put(&[0x8f, 0x44, 0x24, 0x08]) // pop [rsp + 8], addressed after the increment
            }
        }
    }

    /// Places the literals. Nothing may be appended afterwards.
    pub fn finish(&mut self) -> Result<(), Refusal> {
        let pool = self.len;
        for index in 0..self.literal_count {
            self.put(&self.literals[index].to_le_bytes())?;
        }
        for reference in &self.references[..self.reference_count] {
            let field = usize::from(reference.field);
            let distance = pool + 8 * usize::from(reference.literal) - (field + 4);
            self.code[field..field + 4].copy_from_slice(&(distance as u32).to_le_bytes());
        }
        (self.literal_count, self.reference_count) = (0, 0);
        Ok(())
    }

    fn relative(&self, target: u64, insn_len: u64) -> Option<i32> {
        i32::try_from(target.wrapping_sub(self.here().wrapping_add(insn_len)) as i64).ok()
    }

    /// An instruction whose RIP-relative operand is a literal of this value.
    fn with_literal(&mut self, opcode: &[u8], value: u64) -> Result<(), Refusal> {
        let known = self.literals[..self.literal_count]
            .iter()
            .position(|&literal| literal == value);
        let literal = match known {
            Some(index) => index,
            None => {
                *self
                    .literals
                    .get_mut(self.literal_count)
                    .ok_or(Refusal::NoRoom)? = value;
                self.literal_count += 1;
                self.literal_count - 1
            }
        };
        self.put(opcode)?;
        let field = self.len as u8;
        self.put(&[0; 4])?;
        *self
            .references
            .get_mut(self.reference_count)
            .ok_or(Refusal::NoRoom)? = Reference {
            field,
            literal: literal as u8,
        };
        self.reference_count += 1;
        Ok(())
    }
}
