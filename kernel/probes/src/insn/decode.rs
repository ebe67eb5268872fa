//! One decoded instruction and its original bytes.
//!
//! The decoder crate knows operations and operands. This file adds what replacing an instruction
//! needs besides: the exact bytes, which prefixes there are, also useless ones, and where a
//! displacement relative to the instruction pointer is.
//!
//! Two encodings get an answer of their own. The decoder does not know APX, so it is refused by
//! name instead of being taken for something else. `ud2` with a hypervisor's signature is a prefix
//! of the next instruction, five bytes long.
//!
//! Decoding looks at no byte after the instruction but for that signature, so code may end where
//! the instruction does.

use core::fmt;

use iced_x86::{
    Code, Decoder, DecoderError, DecoderOptions, Instruction, Mnemonic, OpKind, Register,
};

use super::refusal::errno;

/// Length limit of one instruction (Intel SDM vol. 2A, 2.3.11).
pub const MAX_INSN_BYTES: usize = 15;

/// Signatures that turn a preceding `ud2` into a request to the hypervisor to emulate the next
/// instruction (Xen's and KVM's forced-emulation prefixes).
const FORCED_EMULATION: [[u8; 3]; 2] = [*b"xen", *b"kvm"];

/// One instruction of 64-bit code: its address, its exact bytes and its decoded form.
#[derive(Clone, Copy)]
pub struct Insn {
    bytes: [u8; MAX_INSN_BYTES],
    instruction: Instruction,
    /// Offset of the displacement, if the memory operand is relative to the instruction pointer.
    displacement_offset: u8,
    prefixes: Prefixes,
}

/// The prefixes before the opcode of a legacy-encoded instruction. Meaningless for VEX, EVEX and
/// XOP.
#[derive(Clone, Copy, Default)]
pub(super) struct Prefixes {
    /// 0x66 is present.
    pub operand_size: bool,
    /// 0xf3 is present.
    pub rep: bool,
    /// One that neither 0x66 nor REX is is present.
    pub others: bool,
    /// The REX prefix in force, or 0.
    pub rex: u8,
    /// A prefix follows a REX prefix, which is void then (Intel SDM vol. 2A, 2.2.1). Some emulators
    /// do not treat it so.
    pub void_rex: bool,
    /// Number of bytes before the opcode (or before VEX, EVEX, XOP, REX2).
    pub len: u8,
}

impl Prefixes {
    fn scan(bytes: &[u8]) -> Self {
        let mut prefixes = Self::default();
        for &byte in bytes {
            let rex = match byte {
                0x40..=0x4f => byte,
                0x66 | 0x67 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0xf0 | 0xf2 | 0xf3 => 0,
                _ => break,
            };
            prefixes.void_rex |= prefixes.rex != 0;
            prefixes.rex = rex;
            prefixes.operand_size |= byte == 0x66;
            prefixes.rep |= byte == 0xf3;
            prefixes.others |= rex == 0 && byte != 0x66;
            prefixes.len += 1;
        }
        prefixes
    }

    pub const fn rex_w(self) -> bool {
        self.rex & 8 != 0
    }
}

/// Where a near branch takes its target from, if not from itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndirectBranch {
    /// The quad word at this address.
    Word(u64),
    /// One of the quad words from this address on.
    Table(u64),
    /// A register, or memory whose address is not known.
    Unknown,
}

/// Why bytes are not an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes end before the instruction does.
    Truncated { ip: u64 },
    /// No instruction of the 64-bit instruction set, or longer than 15 bytes.
    Invalid { ip: u64 },
    /// An APX encoding (REX2 prefix, EVEX map 4): its length and effect are not known here.
    Apx { ip: u64 },
}

impl DecodeError {
    /// Where the bytes begin.
    pub const fn ip(self) -> u64 {
        match self {
            Self::Truncated { ip } | Self::Invalid { ip } | Self::Apx { ip } => ip,
        }
    }

    /// The errno of a registration that fails so.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Truncated { .. } | Self::Invalid { .. } => errno::EILSEQ,
            Self::Apx { .. } => errno::EOPNOTSUPP,
        }
    }

    /// Short, stable name for tables and statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Truncated { .. } => "truncated",
            Self::Invalid { .. } => "undecodable",
            Self::Apx { .. } => "apx",
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { ip } => write!(
                f,
                "the code ends inside the instruction at {ip:#x}; probe an instruction before it"
            ),
            Self::Invalid { ip } => write!(
                f,
                "the bytes at {ip:#x} are no instruction; if another tool has patched them, \
                    remove its patch first"
            ),
            Self::Apx { ip } => write!(
                f,
                "the instruction at {ip:#x} uses an APX encoding, which cannot be executed out of \
                    line; probe a neighbour"
            ),
        }
    }
}

impl core::error::Error for DecodeError {}

/// Decodes the instruction at the start of `bytes`, whose address is `ip`.
///
/// Looks at no byte beyond the instruction, so `bytes` may end where the instruction ends. The
/// exception is `ud2`: it is looked at together with the three bytes that may follow it.
///
/// # Errors
/// [`DecodeError`], which says why.
pub fn decode(bytes: &[u8], ip: u64) -> Result<Insn, DecodeError> {
    let window = &bytes[..bytes.len().min(MAX_INSN_BYTES)];
    decode_by(&mut decoder(window, ip), window, ip)
}

/// A decoder of the code `bytes` at `ip`. It has 450 bytes, so who decodes much makes one only.
pub(super) fn decoder(bytes: &[u8], ip: u64) -> Decoder<'_> {
    Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE)
}

/// Decodes the instruction at the start of `bytes`, whose address is `ip`, and where `decoder` is.
///
/// # Errors
/// [`DecodeError`]. It is that of [`decode`] if `decoder` sees no more than [`MAX_INSN_BYTES`].
pub(super) fn decode_by(
    decoder: &mut Decoder<'_>,
    bytes: &[u8],
    ip: u64,
) -> Result<Insn, DecodeError> {
    let window = &bytes[..bytes.len().min(MAX_INSN_BYTES)];
    let prefixes = Prefixes::scan(window);
    match window.get(usize::from(prefixes.len)..) {
        Some([0xd5, ..]) => return Err(DecodeError::Apx { ip }),
        Some([0x62, payload, ..]) if payload & 7 == 4 => return Err(DecodeError::Apx { ip }),
        _ => {}
    }
    let mut insn = Insn {
        bytes: [0; MAX_INSN_BYTES],
        displacement_offset: 0,
        instruction: Instruction::default(),
        prefixes,
    };
    decoder.decode_out(&mut insn.instruction);
    let instruction = &insn.instruction;
    if instruction.is_invalid() {
        return Err(match decoder.last_error() {
            DecoderError::NoMoreBytes => DecodeError::Truncated { ip },
            _ => DecodeError::Invalid { ip },
        });
    }
    if instruction.is_ip_rel_memory_operand() {
        // At most 15.
        insn.displacement_offset = decoder
            .get_constant_offsets(instruction)
            .displacement_offset() as u8;
    }
    let mut len = instruction.len();
    if let Some(of_prefix) = forced_emulation_len(window) {
        len = of_prefix;
        insn.instruction.set_len(len);
        insn.instruction.set_next_ip(ip.wrapping_add(len as u64));
    }
    insn.bytes[..len].copy_from_slice(&window[..len]);
    Ok(insn)
}

/// The length of the forced-emulation prefix at the start of `bytes`: `ud2` and its signature. None
/// if there is none.
pub(super) fn forced_emulation_len(bytes: &[u8]) -> Option<usize> {
    match *bytes {
        [0x0f, 0x0b, a, b, c, ..] if FORCED_EMULATION.contains(&[a, b, c]) => Some(5),
        _ => None,
    }
}

impl Insn {
    /// The original bytes, 1 to 15 of them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len()]
    }

    /// Length in bytes, 1 to 15.
    #[allow(clippy::len_without_is_empty, reason = "an instruction is never empty")]
    pub fn len(&self) -> usize {
        self.instruction.len()
    }

    /// Address of the first byte.
    pub fn ip(&self) -> u64 {
        self.instruction.ip()
    }

    /// Address of the byte after the last one.
    pub fn next_ip(&self) -> u64 {
        self.instruction.next_ip()
    }

    /// The target of a direct branch or call (of a conditional one: if taken). `None` for all else.
    pub fn branch_target(&self) -> Option<u64> {
        match self.instruction.op0_kind() {
            OpKind::NearBranch64 => Some(self.instruction.near_branch64()),
            _ => None,
        }
    }

    /// Where an indirect near branch or call takes its target from; `None` for everything else.
    pub fn indirect_branch(&self) -> Option<IndirectBranch> {
        let instruction = &self.instruction;
        let code = instruction.code();
        if !code.is_jmp_near_indirect() && !code.is_call_near_indirect() {
            return None;
        }
        let segment = instruction.memory_segment();
        let flat = instruction.op0_kind() == OpKind::Memory
            && !matches!(segment, Register::FS | Register::GS);
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        Some(match (flat, base, index) {
            (true, Register::RIP | Register::None, Register::None) => {
                IndirectBranch::Word(instruction.memory_displacement64())
            }
            (true, Register::None, _) if instruction.memory_index_scale() == 8 => {
                IndirectBranch::Table(instruction.memory_displacement64())
            }
            _ => IndirectBranch::Unknown,
        })
    }

    /// Whether it gives RSP a value that is neither its own, moved or aligned, nor that of the
    /// frame pointer.
    pub fn switches_stacks(&self) -> bool {
        let instruction = &self.instruction;
        let is_rsp = |register: Register| register.full_register() == Register::RSP;
        let writes = match instruction.mnemonic() {
            Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Call | Mnemonic::Jmp => {
                false
            }
            Mnemonic::Xchg | Mnemonic::Xadd => {
                is_rsp(instruction.op0_register()) || is_rsp(instruction.op1_register())
            }
            _ => instruction.op0_kind() == OpKind::Register && is_rsp(instruction.op0_register()),
        };
        let of_the_frame = match instruction.mnemonic() {
            Mnemonic::Add | Mnemonic::Sub | Mnemonic::And => {
                instruction.op1_kind() != OpKind::Memory
            }
            Mnemonic::Lea => {
                matches!(instruction.memory_base(), Register::RSP | Register::RBP)
            }
            Mnemonic::Mov => instruction.op1_register() == Register::RBP,
            _ => false,
        };
        writes && !of_the_frame
    }

    /// Whether it writes a model-specific register: registers say which, so it may be the GS base.
    pub fn writes_msr(&self) -> bool {
        matches!(self.code(), Code::Wrmsr | Code::Wrmsrns | Code::Wrmsrlist)
    }

    /// How many bytes of arguments a near return discards after the return address. 0 for all
    /// else.
    pub fn discarded_arguments(&self) -> u16 {
        match self.opcode_bytes() {
            [0xc2, low, high] => u16::from_le_bytes([*low, *high]),
            _ => 0,
        }
    }

    /// The number of the 64-bit register that it pushes, if it is `push` of one (Intel SDM vol. 2,
    /// "PUSH") without a useless prefix.
    pub fn pushed_register(&self) -> Option<usize> {
        let plain = !self.prefixes.others && !self.prefixes.operand_size;
        (plain && self.code() == Code::Push_r64).then(|| self.instruction.op0_register().number())
    }

    /// Whether this is a forced-emulation prefix: `ud2` and a signature, which belong to the next
    /// instruction.
    pub fn is_forced_emulation_prefix(&self) -> bool {
        self.code() == Code::Ud2 && self.len() == 5
    }

    pub(super) fn code(&self) -> Code {
        self.instruction.code()
    }

    pub(super) fn prefixes(&self) -> Prefixes {
        self.prefixes
    }

    /// The prefixes of a legacy-encoded instruction, in their order.
    pub(super) fn prefix_bytes(&self) -> &[u8] {
        &self.bytes()[..usize::from(self.prefixes.len)]
    }

    /// The opcode of a legacy-encoded instruction and all that follows it.
    pub(super) fn opcode_bytes(&self) -> &[u8] {
        &self.bytes()[usize::from(self.prefixes.len)..]
    }

    /// The decoded form, for what this interface does not offer.
    pub(super) fn instruction(&self) -> &Instruction {
        &self.instruction
    }

    /// Offset of a 32-bit displacement relative to the instruction pointer, if there is one.
    pub(super) fn ip_relative_offset(&self) -> Option<usize> {
        self.instruction
            .is_ip_rel_memory_operand()
            .then_some(self.displacement_offset.into())
    }

    /// Whether the memory operand's address is truncated to 32 bits (0x67).
    pub(super) fn is_eip_relative(&self) -> bool {
        self.instruction.memory_base() == Register::EIP
    }
}

/// The bytes in hexadecimal: `48 8b 05 10 00 00 00`.
impl fmt::Display for Insn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.bytes().iter().enumerate() {
            let gap = if i == 0 { "" } else { " " };
            write!(f, "{gap}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Insn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Insn({:#x}: {self})", self.ip())
    }
}
