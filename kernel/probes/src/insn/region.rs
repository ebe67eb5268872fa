//! The instructions that a jump displaces, and whether it may.
//!
//! A jump is longer than most instructions: [`JUMP_BYTES`] replace the first instruction and the
//! beginning of those after it. That is sound only if control enters the covered bytes by the
//! first one alone. To find out, the whole function is decoded: which addresses it branches to,
//! which addresses of its own code it takes, and whether it jumps to an address that cannot be
//! told.
//!
//! Decoding a function takes some hundred times as long as reading its bytes, and few functions
//! refer to their own beginning. So for a jump at the entry the bytes are read first, as if an
//! instruction began at each of them. If none of these could refer to bytes under the jump, none of
//! the true ones does, and nothing needs to be decoded.
//!
//! Code after an unconditional branch is displaced, too, because a handler may say that a hit goes
//! on there. Padding is not, because no code goes on in it.
//!
//! A function's bytes do not tell everything. The caller looks at the rest: other probes in the
//! region, entries of an exception table, and code that was interrupted in the region before the
//! jump was there.

use alloc::vec::Vec;
use core::{fmt, ops::Range};

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register, RflagsBits};

use super::{
    boundary::{DecodedForms, Instructions},
    classify::{Class, classify},
    decode::{DecodeError, Insn},
    encoding::JUMP_BYTES,
    flags::FlagsOp,
    landing_pad_len,
    refusal::Refusal,
};

/// The instructions that a jump displaces: all that begin under it.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    insns: [Insn; JUMP_BYTES],
    count: usize,
}

impl Region {
    /// The instructions, in order; at least one.
    pub fn insns(&self) -> &[Insn] {
        &self.insns[..self.count]
    }
}

/// Why a jump may not replace the code at some address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The function cannot be decoded, so it is not known where it branches to.
    Undecodable(DecodeError),
    /// The address is not that of an instruction of the function.
    NoInstruction,
    /// The function, and the padding after it, end before the jump would.
    TooShort,
    /// The last instruction of the function is under the jump and runs on into what is after it.
    RunsOff,
    /// The instruction at `at` refers to `to`, which is under the jump.
    Entered { at: u64, to: u64 },
    /// The instruction at `at` jumps to a place that cannot be told.
    IndirectJump { at: u64 },
    /// The call at `at` returns to under the jump.
    Call { at: u64 },
    /// The `popf` at `at` may begin single-stepping, which is to step through the original.
    TrapFlag { at: u64 },
    /// The instruction at `at` cannot be executed elsewhere.
    Unmovable { at: u64, refusal: Refusal },
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Undecodable(error) => error.fmt(f),
            Self::NoInstruction => f.write_str("no instruction of the function starts there"),
            Self::TooShort => f.write_str("the function ends too soon for a jump"),
            Self::RunsOff => f.write_str("the function runs on past its end"),
            Self::Entered { at, to } => write!(f, "the instruction at {at:#x} refers to {to:#x}"),
            Self::IndirectJump { at } => {
                write!(f, "the indirect jump at {at:#x} may lead to anywhere")
            }
            Self::TrapFlag { at } => {
                write!(f, "the popf at {at:#x} may begin single-stepping")
            }
            Self::Call { at } => write!(f, "the call at {at:#x} returns to under the jump"),
            Self::Unmovable { at, refusal } => {
                write!(f, "the instruction at {at:#x} cannot be moved: {refusal}")
            }
        }
    }
}

/// The code of a function, looked at for any number of jumps in it.
pub struct FunctionCode {
    start: u64,
    bytes: Vec<u8>,
    /// Made when a question needs it.
    decoded: Option<Decoded>,
}

/// The facts that decoding a function finds.
struct Decoded {
    /// Where its instructions begin, as offsets, in order.
    instructions: Vec<u32>,
    /// The addresses in it that its instructions refer to, in order, each with the instruction.
    references: Vec<(u64, u64)>,
    /// Its first jump to a place that cannot be told.
    indirect_jump: Option<u64>,
    /// Why decoding could not go on.
    undecodable: Option<DecodeError>,
}

impl Decoded {
    /// Decodes `bytes`, the original code of a function at `start`. None: memory is out.
    fn new(bytes: &[u8], start: u64) -> Option<Self> {
        let (mut instructions, mut references) = (Vec::new(), Vec::new());
        let (mut indirect_jump, mut undecodable) = (None, None);
        // A jump at the end of the function may reach a little past it.
        let reach = (bytes.len() + JUMP_BYTES) as u64;
        let mut forms = DecodedForms::new(bytes, start);
        while let Some(form) = forms.next() {
            let form = match form {
                Ok(form) => form,
                Err(error) => {
                    undecodable = Some(error);
                    break;
                }
            };
            let at = form.ip();
            instructions.try_reserve(1).ok()?;
            instructions.push((at - start) as u32);
            if form.flow_control() == FlowControl::IndirectBranch {
                indirect_jump = indirect_jump.or(Some(at));
            }
            for to in self::references(form).filter(|to| to.wrapping_sub(start) < reach) {
                references.try_reserve(1).ok()?;
                references.push((to, at));
            }
        }
        references.sort_unstable();
        Some(Self {
            instructions,
            references,
            indirect_jump,
            undecodable,
        })
    }

    /// Whether control may enter a jump at `addr`, `offset` bytes into the function, by its first
    /// byte alone.
    ///
    /// # Errors
    /// An [`Obstacle`].
    fn check(&self, offset: u64, addr: u64) -> Result<(), Obstacle> {
        if let Some(error) = self.undecodable {
            return Err(Obstacle::Undecodable(error));
        }
        if let Some(at) = self.indirect_jump {
            return Err(Obstacle::IndirectJump { at });
        }
        let next = self.references.partition_point(|(to, _)| *to <= addr);
        if let Some((to, at)) = self.references.get(next)
            && (addr + 1..addr + JUMP_BYTES as u64).contains(to)
        {
            return Err(Obstacle::Entered { at: *at, to: *to });
        }
        let known = u32::try_from(offset).map(|offset| self.instructions.binary_search(&offset));
        match known {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Obstacle::NoInstruction),
        }
    }
}

impl FunctionCode {
    /// `bytes` are the original code of a function at `start`.
    pub fn new(bytes: Vec<u8>, start: u64) -> Self {
        Self {
            start,
            bytes,
            decoded: None,
        }
    }

    /// The function's original code.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where the function begins.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// How long the function is, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no function is empty")]
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The instructions that a jump at `addr` would displace. `behind` are the bytes that follow
    /// the function and belong to no symbol. None: memory is out.
    ///
    /// # Errors
    /// An [`Obstacle`].
    pub fn region(&mut self, behind: &[u8], addr: u64) -> Option<Result<Region, Obstacle>> {
        let offset = addr.wrapping_sub(self.start);
        let at_entry = offset == 0 || offset == landing_pad_len(&self.bytes) as u64;
        let checked = if at_entry && self.decoded.is_none() {
            self.check_entry(offset, addr)
        } else {
            let decoded = match self.decoded.take() {
                Some(decoded) => decoded,
                None => Decoded::new(&self.bytes, self.start)?,
            };
            self.decoded.insert(decoded).check(offset, addr)
        };
        Some(checked.and_then(|()| self.displaced(behind, addr)))
    }

    /// Whether control may enter a jump at the entry, `addr`, by its first byte alone. Decodes the
    /// function only as far as there are bytes that make it necessary.
    ///
    /// # Errors
    /// An [`Obstacle`].
    fn check_entry(&self, offset: u64, addr: u64) -> Result<(), Obstacle> {
        let Some(last) = last_suspect(&self.bytes, offset, addr) else {
            return Ok(());
        };
        let covered = addr + 1..addr + JUMP_BYTES as u64;
        let mut forms = DecodedForms::new(&self.bytes, self.start);
        while let Some(form) = forms.next() {
            let form = form.map_err(Obstacle::Undecodable)?;
            let at = form.ip();
            if at - self.start > last as u64 {
                break;
            }
            if form.flow_control() == FlowControl::IndirectBranch {
                return Err(Obstacle::IndirectJump { at });
            }
            if let Some(to) = references(form).find(|to| covered.contains(to)) {
                return Err(Obstacle::Entered { at, to });
            }
        }
        Ok(())
    }

    /// The instructions that a jump at `addr` would displace, where control enters by the first
    /// one alone.
    fn displaced(&self, behind: &[u8], addr: u64) -> Result<Region, Obstacle> {
        let end = addr.wrapping_add(JUMP_BYTES as u64);
        let offset = addr.wrapping_sub(self.start);
        let mut behind_last = &self.bytes[offset as usize..];
        let mut instructions = Instructions::new(behind_last, addr);
        let mut region: Option<Region> = None;
        let (mut next_ip, mut goes_on) = (addr, true);
        while next_ip < end
            && let Some(insn) = instructions.next()
        {
            let insn = insn.map_err(Obstacle::Undecodable)?;
            if !goes_on && self.is_padding(next_ip..end) {
                break;
            }
            let region = region.get_or_insert(Region {
                insns: [insn; JUMP_BYTES],
                count: 0,
            });
            region.insns[region.count] = insn;
            region.count += 1;
            next_ip = insn.next_ip();
            behind_last = &behind_last[insn.len()..];
            goes_on = judge(&insn, behind_last, end)?;
        }
        let region = region.ok_or(Obstacle::NoInstruction)?;
        let function_end = self.start.wrapping_add(self.bytes.len() as u64);
        let lacking = end.wrapping_sub(function_end);
        if (1..JUMP_BYTES as u64).contains(&lacking) {
            if goes_on {
                return Err(Obstacle::RunsOff);
            }
            if padding(behind, function_end) < lacking as usize {
                return Err(Obstacle::TooShort);
            }
        }
        Ok(region)
    }

    /// Whether the code from the instruction at `addr` on overwrites each arithmetic flag before it
    /// reads one, without a branch in between. So a routine that runs before it may change them.
    pub fn flags_are_dead(&self, addr: u64) -> bool {
        let offset = addr.wrapping_sub(self.start);
        let Some(bytes) = self.bytes.get(offset as usize..) else {
            return false;
        };
        let mut live = ARITHMETIC;
        let mut forms = DecodedForms::new(bytes, addr);
        while let Some(Ok(instruction)) = forms.next() {
            if instruction.rflags_read() & live != 0
                || instruction.flow_control() != FlowControl::Next
            {
                return false;
            }
            if overwrites_flags(instruction) {
                live &= !(instruction.rflags_written()
                    | instruction.rflags_cleared()
                    | instruction.rflags_set());
            }
            if live == 0 {
                return true;
            }
        }
        false
    }

    /// Whether nothing but padding stands in `range`, as far as it is in the function.
    fn is_padding(&self, range: Range<u64>) -> bool {
        let offset = |addr: u64| ((addr - self.start) as usize).min(self.bytes.len());
        let bytes = &self.bytes[offset(range.start)..];
        padding(bytes, range.start) >= offset(range.end) - offset(range.start)
    }
}

/// The last place in `bytes`, a function's code, where bytes stand that could belong to an
/// instruction that refers to the bytes under a jump at its entry, or that jumps to a place that
/// cannot be told. `entry` is the jump's offset in the code, and `addr` its address. Instructions
/// that begin after that place do neither. None: no instruction does.
///
/// All forms that lead to code or name it are looked for (Intel SDM vol. 2, opcode maps and table
/// 2-2):
/// - branches by 8 bits (70 to 7f, e0 to e3, eb);
/// - anything by 32 bits. Up to 4 bytes of other operands follow them if they are the displacement
///   of a memory operand, whose ModR/M byte stands before it. Nothing follows those of a branch;
/// - numbers of 32 or 64 bits that are the address;
/// - the jumps ff /4 and ff /5. The latter takes no register, so ff e8 and above are none.
fn last_suspect(bytes: &[u8], entry: u64, addr: u64) -> Option<usize> {
    const COVERED: u32 = JUMP_BYTES as u32 - 1;
    const MOST_BEHIND: u32 = 4;
    const BRANCH_REACH: usize = 128;
    if bytes.len() >> 24 != 0 {
        // A reference backward may be of more than 24 bits.
        return Some(bytes.len());
    }
    let first = entry as u32 + 1;
    let address = (addr as u32).wrapping_add(1);
    let is_indirect = |pair: u32| pair & 0x30ff == 0x20ff && (pair as u16) < 0xe800;
    let is_relative_operand = |at: usize| at > 0 && bytes[at - 1] & 0b11_000_111 == 0b00_000_101;
    let by_32_bits = |at: usize, field: u32| {
        // The target less the bytes after the field.
        let target = field.wrapping_add(at as u32 + 4).wrapping_sub(first);
        field.wrapping_sub(address) < COVERED
            || target.wrapping_add(MOST_BEHIND) < COVERED + MOST_BEHIND
                && (target < COVERED || is_relative_operand(at))
    };
    let by_8_bits = |at: usize, opcode: u8, field: u8| {
        matches!(opcode, 0x70..=0x7f | 0xe0..=0xe3 | 0xeb)
            && (at as u32 + 2)
                .wrapping_add_signed(i32::from(field as i8))
                .wrapping_sub(first)
                < COVERED
    };
    // Branches that lead forward to the entry, and those of 8 bits.
    let near = &bytes[..bytes.len().min(entry as usize + JUMP_BYTES + BRANCH_REACH)];
    let field_at = |at: usize| {
        let field = bytes.get(at..at + 4)?;
        Some(u32::from_le_bytes([field[0], field[1], field[2], field[3]]))
    };
    let by_branch = (0..near.len().saturating_sub(1))
        .rev()
        .find(|at| by_8_bits(*at, near[*at], near[*at + 1]));
    let forward = (0..first as usize)
        .rev()
        .find(|at| field_at(*at).is_some_and(|field| by_32_bits(*at, field)));
    // In anything else one byte is 0xff, because it is negative, or the highest of an address under
    // the jump.
    let highest = (address >> 24) as u8;
    let elsewhere = bytes.iter().enumerate().rev().find_map(|(at, byte)| {
        if *byte != 0xff && byte.wrapping_sub(highest) > 1 {
            return None;
        }
        let pair = u32::from(*byte) | u32::from(*bytes.get(at + 1).unwrap_or(&0)) << 8;
        let ends_field =
            |start: usize| field_at(start).is_some_and(|field| by_32_bits(start, field));
        (is_indirect(pair) || at.checked_sub(3).is_some_and(ends_field)).then_some(at)
    });
    elsewhere.max(forward).max(by_branch)
}

/// The arithmetic flags, as the decoder names them.
const ARITHMETIC: u32 = RflagsBits::CF
    | RflagsBits::PF
    | RflagsBits::AF
    | RflagsBits::ZF
    | RflagsBits::SF
    | RflagsBits::OF;

/// Whether `instruction` writes its flags in any case. A shift by a register may shift by nothing,
/// and a repeated one may not be executed at all; then the flags stay (Intel SDM vol. 2).
fn overwrites_flags(instruction: &Instruction) -> bool {
    let counts_in_register = (1..instruction.op_count()).any(|n| {
        instruction.op_kind(n) == OpKind::Register && instruction.op_register(n) == Register::CL
    });
    let is_repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    !counts_in_register && !is_repeated
}

/// Whether `insn`, under a jump that ends at `end`, may be followed by the instruction `behind` it.
/// An error if it cannot be displaced.
fn judge(insn: &Insn, behind: &[u8], end: u64) -> Result<bool, Obstacle> {
    let at = insn.ip();
    let class = classify(insn, behind).map_err(|refusal| Obstacle::Unmovable { at, refusal })?;
    if matches!(class, Class::Call | Class::IndirectCall) && insn.next_ip() < end {
        return Err(Obstacle::Call { at });
    }
    if matches!(class, Class::Flags(FlagsOp::Pop(_))) {
        return Err(Obstacle::TrapFlag { at });
    }
    Ok(class.falls_through())
}

/// Every address of code that `instruction` names: as a branch target, as an operand relative to
/// itself, as a number. Branch targets and numbers of 32 bits and more are last operands (Intel SDM
/// vol. 2, opcode maps).
fn references(instruction: &Instruction) -> impl Iterator<Item = u64> + use<> {
    let relative = instruction
        .is_ip_rel_memory_operand()
        .then(|| instruction.ip_rel_memory_address());
    let named =
        instruction
            .op_count()
            .checked_sub(1)
            .and_then(|last| match instruction.op_kind(last) {
                OpKind::NearBranch64 => Some(instruction.near_branch64()),
                OpKind::Immediate64 | OpKind::Immediate32to64 => Some(instruction.immediate(last)),
                _ => None,
            });
    named.into_iter().chain(relative)
}

/// How many bytes at the start of `bytes`, which are at `at`, do nothing: whole breakpoints and
/// no-operations.
fn padding(bytes: &[u8], at: u64) -> usize {
    Instructions::new(bytes, at)
        .map_while(Result::ok)
        .take_while(|insn| insn.is_int3() || insn.instruction().mnemonic() == Mnemonic::Nop)
        .map(|insn| insn.len())
        .sum()
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::{super::xorshift, *};
    use std::vec;

    const START: u64 = 0xffff_ffff_8001_2340;

    fn lengths(function: &[u8], behind: &[u8], offset: u64) -> Result<Vec<usize>, Obstacle> {
        FunctionCode::new(function.to_vec(), START)
            .region(behind, START + offset)
            .unwrap()
            .map(|region| region.insns().iter().map(Insn::len).collect())
    }

    #[test]
    fn the_instructions_that_begin_under_the_jump_are_displaced() {
        // push rbp; mov rbp, rsp; mov rax, rdi; pop rbp; ret
        let function = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xf8, 0x5d, 0xc3];
        assert_eq!(lengths(&function, &[], 0), Ok(vec![1, 3, 3]));
        assert_eq!(lengths(&function, &[], 4), Ok(vec![3, 1, 1]));
    }

    #[test]
    fn a_long_first_instruction_is_displaced_alone() {
        // movabs rax, imm; ret
        let function = [0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8, 0xc3];
        assert_eq!(lengths(&function, &[], 0), Ok(vec![10]));
    }

    #[test]
    fn padding_behind_a_short_function_is_used_and_nothing_else() {
        let function = [0x55, 0x5d, 0xc3];
        assert_eq!(lengths(&function, &[0xcc; 2], 0), Ok(vec![1, 1, 1]));
        assert_eq!(lengths(&function, &[0x66, 0x90], 0), Ok(vec![1, 1, 1]));
        assert_eq!(lengths(&function, &[0xcc], 0), Err(Obstacle::TooShort));
        assert_eq!(
            lengths(&function, &[0xcc, 0x55], 0),
            Err(Obstacle::TooShort)
        );
        assert_eq!(lengths(&[0xc3], &[0xcc; 4], 0), Ok(vec![1]));
        // push rbp; pop rbp: whatever follows is executed.
        assert_eq!(
            lengths(&function[..2], &[0xcc; 4], 0),
            Err(Obstacle::RunsOff)
        );
    }

    #[test]
    fn code_behind_a_branch_is_displaced_as_a_handler_may_go_on_there() {
        // jmp to itself; inc eax; ret
        let function = [0xeb, 0xfe, 0xff, 0xc0, 0xc3];
        assert_eq!(lengths(&function, &[], 0), Ok(vec![2, 2, 1]));
        // ret; push rbp; and nothing after: it would run off.
        assert_eq!(
            lengths(&[0xc3, 0x55], &[0xcc; 4], 0),
            Err(Obstacle::RunsOff)
        );
        // jmp to itself; call, which returns to under the jump
        let function = [0xeb, 0xfe, 0xff, 0xd0, 0x90, 0xc3];
        assert_eq!(
            lengths(&function, &[], 0),
            Err(Obstacle::Call { at: START + 2 })
        );
    }

    #[test]
    fn padding_behind_a_branch_is_left_out() {
        // jmp +3; int3 x 3; ret
        assert_eq!(
            lengths(&[0xeb, 3, 0xcc, 0xcc, 0xcc, 0xc3], &[], 0),
            Ok(vec![2])
        );
        // ret; nop: it does not run off.
        assert_eq!(lengths(&[0xc3, 0x90], &[0xcc; 3], 0), Ok(vec![1]));
        // jmp far ahead; int3; pop rbp; ret: code again after the breakpoint.
        assert_eq!(
            lengths(&[0xeb, 0x40, 0xcc, 0x5d, 0xc3], &[], 0),
            Err(Obstacle::Unmovable {
                at: START + 2,
                refusal: Refusal::Breakpoint
            })
        );
    }

    #[test]
    fn branches_to_the_first_byte_are_welcome_and_to_the_others_not() {
        // push rbp; pop rbp; nop x 6; and a branch back to `to`.
        for (branch, name) in [
            (&[0xeb][..], "jmp"),
            (&[0x74], "je"),
            (&[0xe2], "loop"),
            (&[0xe3], "jrcxz"),
        ] {
            for to in 0..8u8 {
                let mut function = vec![0x55, 0x5d, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90];
                function.extend(branch);
                function.push(to.wrapping_sub(function.len() as u8 + 1));
                function.push(0xc3);
                let found = lengths(&function, &[], 0);
                let (at, to) = (START + 8, START + u64::from(to));
                let expected = match to - START {
                    1..=4 => Err(Obstacle::Entered { at, to }),
                    _ => Ok(vec![1; 5]),
                };
                assert_eq!(found, expected, "{name} {to:#x}");
            }
        }
    }

    #[test]
    fn calls_and_addresses_that_point_under_the_jump_are_seen() {
        let to = START + 2;
        let tails: [(&[u8], i64); 3] = [
            (&[0xe8], 5),             // call
            (&[0x48, 0x8d, 0x05], 7), // lea rax, [rip + n]
            (&[0x48, 0xc7, 0xc0], 0), // mov rax, n
        ];
        for (opcode, len) in tails {
            let mut function = vec![0x90; 6];
            let at = START + 6;
            let field = match len {
                0 => to as u32,
                len => to.wrapping_sub(at.wrapping_add_signed(len)) as u32,
            };
            function.extend(opcode);
            function.extend(field.to_le_bytes());
            function.push(0xc3);
            assert_eq!(
                lengths(&function, &[], 0),
                Err(Obstacle::Entered { at, to })
            );
            assert_eq!(
                lengths(&function, &[], 1),
                Err(Obstacle::Entered { at, to })
            );
            assert_eq!(lengths(&function, &[], 2).map(|_| ()), Ok(()));
        }
    }

    /// Random code that is full of branches, near its own beginning and elsewhere. Each that leads
    /// under a jump at the entry is seen by its bytes alone.
    #[test]
    fn what_refers_to_the_entry_is_seen_without_decoding() {
        let mut random = xorshift(0x9e37_79b9_7f4a_7c15);
        let mut next = || (random() >> 11) as usize;
        // Each has room for the reference at its end.
        let forms: [(&[u8], usize, usize); 14] = [
            (&[0xeb], 1, 0),
            (&[0x7f], 1, 0),
            (&[0xe2], 1, 0),
            (&[0xe8], 4, 0),
            (&[0xe9], 4, 0),
            (&[0x0f, 0x8c], 4, 0),
            (&[0x48, 0x8d, 0x05], 4, 0),
            (&[0xc6, 0x05], 4, 1),
            (&[0x66, 0xc7, 0x05], 4, 2),
            (&[0x48, 0xc7, 0x05], 4, 4),
            (&[0xff, 0xe0], 0, 0),
            (&[0x41, 0xff, 0x2b], 0, 0),
            (&[0x48, 0xb8], 8, 0),
            (&[0x48, 0xc7, 0xc0], 4, 0),
        ];
        let (mut seen, mut clean) = (0, 0);
        for round in 0..20_000 {
            // The second start: the highest bytes of the addresses under the jump differ.
            let start = [START, 0xffff_ffff_80ff_fffd][round % 2];
            let mut function = vec![0x90; 5];
            for _ in 0..next() % 6 {
                let (opcode, field, behind) = forms[next() % forms.len()];
                function.extend(opcode);
                let end = function.len() + field + behind;
                let to = (next() % 40) as u64;
                let relative = to.wrapping_sub(end as u64);
                let value = match opcode {
                    [0x48, 0xb8] | [0x48, 0xc7, 0xc0] => start + to,
                    _ => relative,
                };
                function.extend(&value.to_le_bytes()[..field]);
                function.extend(&[0x11; 4][..behind]);
            }
            function.push(0xc3);
            let decoded = Decoded::new(&function, start).unwrap();
            let code = FunctionCode::new(function, start);
            let checked = code.check_entry(0, start);
            match decoded.check(0, start) {
                Ok(()) => clean += u32::from(checked.is_ok()),
                Err(_) => {
                    assert!(checked.is_err(), "{:x?}", code.bytes());
                    seen += 1;
                }
            }
        }
        assert!(seen > 1000 && clean > 1000, "{seen} {clean}");
    }

    /// Common code that looks like such a reference where no instruction begins.
    #[test]
    fn common_code_is_not_taken_for_a_reference_to_the_entry() {
        let nops = [0x90; 5];
        // mov [rbp - 192], eax; call: ff e8 would jump far through a register, which cannot be.
        let call = [
            &nops[..],
            &[0x89, 0x85, 0x40, 0xff, 0xff, 0xff, 0xe8, 1, 2, 3, 4],
        ]
        .concat();
        assert_eq!(last_suspect(&call, 0, START), None);
        // A call of the function itself: its field would lead under the jump only if a number of
        // one byte or more stood after it.
        let own = [&nops[..], &[0xe8, 0xf6, 0xff, 0xff, 0xff, 0xc3]].concat();
        assert_eq!(last_suspect(&own, 0, START), None);
        // cmp byte ptr [rip - 11], 1, which has one.
        let operand = [&nops[..], &[0x80, 0x3d, 0xf5, 0xff, 0xff, 0xff, 1]].concat();
        assert_eq!(last_suspect(&operand, 0, START), Some(10));
        for modrm in [0x20, 0x2b, 0x67, 0x6f, 0xa0, 0xaf, 0xe0, 0xe7] {
            let jump = [&nops[..], &[0xff, modrm]].concat();
            assert_eq!(last_suspect(&jump, 0, START), Some(5), "{modrm:#x}");
        }
    }

    #[test]
    fn indirect_jumps_and_unreadable_functions_are_refused() {
        let nops = [0x90; 5];
        let jump = [&nops[..], &[0xff, 0xe0]].concat();
        let at = START + 5;
        assert_eq!(lengths(&jump, &[], 0), Err(Obstacle::IndirectJump { at }));
        let table = [&nops[..], &[0xff, 0x24, 0xc5, 0, 0, 0, 0x80]].concat();
        assert_eq!(lengths(&table, &[], 0), Err(Obstacle::IndirectJump { at }));
        let broken = [&nops[..], &[0x90, 0x06, 0xc3]].concat();
        let cause = DecodeError::Invalid { ip: at + 1 };
        assert_eq!(lengths(&broken, &[], 1), Err(Obstacle::Undecodable(cause)));
        // At the entry the bytes show that nothing can lead there.
        assert_eq!(lengths(&broken, &[], 0), Ok(vec![1; 5]));
        // Nor is what is right after the jump.
        let broken = [&nops[..], &[0x06, 0xc3]].concat();
        assert_eq!(lengths(&broken, &[], 0), Ok(vec![1; 5]));
        // But not what is under the jump.
        let cause = DecodeError::Invalid { ip: START + 1 };
        let broken = [0x90, 0x06, 0x90, 0x90, 0x90, 0xc3];
        assert_eq!(lengths(&broken, &[], 0), Err(Obstacle::Undecodable(cause)));
        assert_eq!(
            lengths(&[0x48, 0x89, 0xf8, 0xc3], &[], 1),
            Err(Obstacle::NoInstruction)
        );
    }

    #[test]
    fn flags_are_dead_where_all_are_overwritten_before_one_is_read() {
        let cases: [(&[u8], bool); 12] = [
            // add eax, ecx; and after a no-operation
            (&[0x01, 0xc8, 0xc3], true),
            (&[0x90, 0x01, 0xc8, 0xc3], true),
            // adc and setb read CF.
            (&[0x11, 0xc8, 0xc3], false),
            (&[0x0f, 0x92, 0xc0, 0x01, 0xc8, 0xc3], false),
            // After a branch the code is not known.
            (&[0xeb, 0x00, 0x01, 0xc8, 0xc3], false),
            // inc ecx leaves CF; xor eax, eax clears it, and stc sets it.
            (&[0xff, 0xc1, 0xc3], false),
            (&[0x31, 0xc0, 0xff, 0xc1, 0xc3], true),
            (&[0xf9, 0xff, 0xc1, 0xc3], true),
            // shl eax, cl may shift by nothing, and a repeated cmpsb may not be executed at all.
            (&[0xd3, 0xe0, 0xff, 0xc1, 0xc3], false),
            (&[0xf3, 0xa6, 0xc3], false),
            (&[0xa6, 0xc3], true),
            // The function ends before it is known.
            (&[0x90], false),
        ];
        for (bytes, are_dead) in cases {
            let code = FunctionCode::new(bytes.to_vec(), START);
            assert_eq!(code.flags_are_dead(START), are_dead, "{bytes:02x?}");
            assert!(!code.flags_are_dead(START + bytes.len() as u64 + 1));
        }
    }

    /// The first indirect jump is named, and a reference to the probed instruction itself does not
    /// hide the one that leads under the jump.
    #[test]
    fn of_several_references_those_that_matter_are_found() {
        let nops = [0x90; 8];
        let jumps = [&nops[..], &[0xff, 0xe0, 0xff, 0xe0]].concat();
        let refused = Err(Obstacle::IndirectJump { at: START + 8 });
        assert_eq!(lengths(&jumps, &[], 0), refused);
        assert_eq!(lengths(&jumps, &[], 1), refused);
        // jmp to 1; jmp to 3; ret
        let back = [&nops[..], &[0xeb, 0xf7, 0xeb, 0xf7, 0xc3]].concat();
        let (at, to) = (START + 10, START + 3);
        assert_eq!(lengths(&back, &[], 1), Err(Obstacle::Entered { at, to }));
    }

    #[test]
    fn a_call_is_displaced_only_if_it_returns_behind_the_jump() {
        let near = [0xe8, 0, 1, 0, 0, 0xc3];
        assert_eq!(lengths(&near, &[], 0), Ok(vec![5]));
        let indirect = [0xff, 0xd0, 0x90, 0x90, 0x90, 0xc3];
        assert_eq!(
            lengths(&indirect, &[], 0),
            Err(Obstacle::Call { at: START })
        );
        let last = [0x90, 0x90, 0x90, 0xff, 0xd0, 0xc3];
        assert_eq!(lengths(&last, &[], 0), Ok(vec![1, 1, 1, 2]));
    }

    #[test]
    fn flags_are_stored_but_not_loaded_under_a_jump() {
        let stores = [0x9c, 0x58, 0x90, 0x90, 0x90, 0xc3];
        assert_eq!(lengths(&stores, &[], 0), Ok(vec![1; 5]));
        let loads = [0x50, 0x9d, 0x90, 0x90, 0x90, 0xc3];
        let refused = Obstacle::TrapFlag { at: START + 1 };
        assert_eq!(lengths(&loads, &[], 0), Err(refused));
    }

    #[test]
    fn instructions_that_cannot_be_moved_are_refused_under_the_jump_only() {
        let function = [0x90, 0xf4, 0x90, 0x90, 0x90, 0x90, 0xc3];
        let refused = Obstacle::Unmovable {
            at: START + 1,
            refusal: Refusal::Wait,
        };
        assert_eq!(lengths(&function, &[], 0), Err(refused));
        assert_eq!(lengths(&function, &[], 2), Ok(vec![1; 5]));
        // sti; hlt keep together, also where the hlt is just after the region.
        let shadow = [0x90, 0x90, 0x90, 0x90, 0xfb, 0xf4, 0xc3];
        let refused = Obstacle::Unmovable {
            at: START + 4,
            refusal: Refusal::InterruptShadow,
        };
        assert_eq!(lengths(&shadow, &[], 0), Err(refused));
    }
}
