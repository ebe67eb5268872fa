//! Random instructions of all opcode maps, from a seed.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Register};

/// A small deterministic generator (xorshift64*): the same seed gives the same instructions everywhere.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    pub fn byte(&mut self) -> u8 {
        (self.next() >> 24) as u8
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// 15 bytes that start with a random encoding, valid or not.
pub fn random_bytes(random: &mut Random) -> [u8; 15] {
    let mut bytes = Vec::with_capacity(32);
    match random.below(20) {
        // Group 5: indirect calls, jumps and pushes
        19 => {
            if random.one_in(2) {
                bytes.push(0x40 | random.byte() & 0xf);
            }
            bytes.extend([
                0xff,
                random.byte() & 0xc7 | (2 + 2 * random.below(3) as u8) << 3,
            ]);
        }
        0 => {
            bytes.extend([0xc5, random.byte()]);
            bytes.push(random.byte());
        }
        1 => {
            bytes.extend([0xc4, random.byte() & 0xe0 | (1 + random.below(3)) as u8]);
            bytes.extend([random.byte(), random.byte()]);
        }
        2 => {
            const MAPS: [u8; 5] = [1, 2, 3, 5, 6];
            let map = MAPS[random.below(5) as usize];
            bytes.extend([
                0x62,
                random.byte() & 0xf0 | map,
                random.byte() | 4,
                random.byte(),
            ]);
            bytes.push(random.byte());
        }
        _ => {
            for prefix in [0x66, 0x67, 0xf2, 0xf3, 0xf0, 0x2e, 0x3e, 0x65] {
                if random.one_in(10) {
                    bytes.push(prefix);
                }
            }
            if random.one_in(2) {
                bytes.push(0x40 | random.byte() & 0xf);
            }
            match random.below(8) {
                0..3 => {}
                3..6 => bytes.push(0x0f),
                6 => bytes.extend([0x0f, 0x38]),
                _ => bytes.extend([0x0f, 0x3a]),
            }
            bytes.push(random.byte());
        }
    }
    bytes.extend((0..15).map(|_| random.byte()));
    bytes[..15].try_into().unwrap()
}

/// Decodes, without any of our own checks.
pub fn decode_plainly(bytes: &[u8], ip: u64) -> Option<Instruction> {
    let instruction = Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// Points a 32-bit displacement of the instruction at the start of `bytes` to `address`, or if it has registers in its
/// address makes it small. Returns the instruction's bytes.
pub fn tame_displacement(bytes: &mut [u8; 15], ip: u64, address: u64) -> Option<Vec<u8>> {
    let mut decoder = Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        return None;
    }
    let offsets = decoder.get_constant_offsets(&instruction);
    if offsets.displacement_size() == 4 {
        let offset = offsets.displacement_offset();
        let displacement = match (instruction.memory_base(), instruction.memory_index()) {
            (Register::RIP | Register::EIP, _) => {
                address.wrapping_sub(instruction.next_ip()) as u32
            }
            (Register::None, _) => address as u32,
            _ => u32::from(bytes[offset]),
        };
        bytes[offset..offset + 4].copy_from_slice(&displacement.to_le_bytes());
    }
    Some(bytes[..instruction.len()].to_vec())
}

/// Whether the instruction gives the same result whenever it is executed in this process, and harms nothing but
/// its memory operand.
pub fn is_repeatable(instruction: &Instruction) -> bool {
    use Code as C;
    let volatile = matches!(
        instruction.code(),
        C::Cpuid
            | C::Rdtsc
            | C::Rdtscp
            | C::Rdpmc
            | C::Rdpru
            | C::Rdpid_r32
            | C::Rdpid_r64
            | C::Rdrand_r16
            | C::Rdrand_r32
            | C::Rdrand_r64
            | C::Rdseed_r16
            | C::Rdseed_r32
            | C::Rdseed_r64
            | C::Xgetbv
            | C::Tpause_r32
            | C::Tpause_r64
            | C::Lsl_r16_rm16
            | C::Lsl_r32_r32m16
            | C::Lsl_r64_r64m16
    );
    let harmful = matches!(
        instruction.code(),
        // Thread-local storage, segments, memory keys
        C::Wrfsbase_r32
            | C::Wrfsbase_r64
            | C::Mov_Sreg_rm16
            | C::Mov_Sreg_r32m16
            | C::Mov_Sreg_r64m16
            | C::Popw_FS
            | C::Popq_FS
            | C::Lfs_r16_m1616
            | C::Lfs_r32_m1632
            | C::Lfs_r64_m1664
            | C::Lss_r16_m1616
            | C::Lss_r32_m1632
            | C::Lss_r64_m1664
            | C::Wrpkru
            | C::Xrstor_mem
            | C::Xrstor64_mem
            | C::Xrstors_mem
            | C::Xrstors64_mem
            // The hypervisor
            | C::Vmcall
            | C::Vmmcall
            | C::Vmfunc
            | C::Vmgexit
            | C::Vmgexit_F2
            | C::Tdcall
            | C::Seamcall
            | C::Enclu
            // Emulated by the operating system
            | C::Sgdt_m1664
            | C::Sidt_m1664
            | C::Smsw_rm16
            | C::Smsw_r32m16
            | C::Smsw_r64m16
            | C::Sldt_rm16
            | C::Sldt_r32m16
            | C::Sldt_r64m16
            | C::Str_rm16
            | C::Str_r32m16
            | C::Str_r64m16
            // Emulated by the core, as far as it is allowed to in ring 0
            | C::Cli
            | C::Sti
    );
    let scattered = instruction.is_vsib();
    !volatile && !harmful && !scattered && instruction.memory_segment() != Register::FS
}
