//! Executes hand-picked instructions in place and by every replacement, in every layout of memory.
//!
//! They are one of each kind that could go wrong: operands relative to the instruction pointer,
//! stack words, flags, strings that fault halfway, vector instructions whose opcode byte is a
//! branch's. The layouts put code and slots near each other and far, in an upper half and in a
//! lower one. Vector tests say so where the processor lacks a feature.

mod branches;
mod prefixes;

use probes::insn::{Insn, decode, flags::bits};

use crate::{
    closing,
    differential::check,
    machine::{
        Cpu, Layout, Machine, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP, is_emulated, keeps_component,
    },
};

const LAYOUTS: [Layout; 4] = [Layout::Low, Layout::High, Layout::FarSlot, Layout::FarText];
const STACK_BYTES: usize = 2 * 4096;

/// Offset of the instruction under test in the text pages, and of a place that it may branch to.
const PROBED: u64 = 0x800;
const TARGET: u64 = 0x1234;
/// Offset into the data of a cell for operands.
const CELL: u64 = 0x400;

/// A machine with an instruction's place, and registers worth running it with.
struct Bench {
    machine: Machine,
}

impl Bench {
    fn new(layout: Layout) -> Self {
        Self {
            machine: Machine::new(layout, STACK_BYTES),
        }
    }

    fn probed(&self) -> u64 {
        self.machine.text() + PROBED
    }

    fn target(&self) -> u64 {
        self.machine.text() + TARGET
    }

    fn cell(&self) -> u64 {
        self.machine.data() + CELL
    }

    /// An address that is not mapped.
    fn hole(&self) -> u64 {
        self.machine.data() - 0x100
    }

    fn insn(&self, bytes: &[u8]) -> Insn {
        decode(bytes, self.probed()).unwrap_or_else(|e| panic!("{bytes:02x?}: {e}"))
    }

    /// Registers that point into the data at distances of 0x40, RCX = 3, RSP in the middle of the
    /// stack.
    fn cpu(&self) -> Cpu {
        let mut cpu = Cpu::new();
        for (i, register) in cpu.gpr.iter_mut().enumerate() {
            *register = self.cell() + 0x40 * i as u64;
        }
        cpu.gpr[RCX] = 3;
        cpu.gpr[RSP] = self.machine.stack() + STACK_BYTES as u64 / 2;
        cpu
    }

    fn check(&mut self, bytes: &[u8], cpu: &Cpu) {
        let insn = self.insn(bytes);
        check(&mut self.machine, &insn, cpu);
    }

    /// Checks an instruction given in hexadecimal. `RIP` stands for a displacement to the cell,
    /// `TGT` for one to the branch target.
    fn hex(&mut self, text: &str) {
        let cpu = self.cpu();
        self.hex_with(text, &cpu);
    }

    fn hex_with(&mut self, text: &str, cpu: &Cpu) {
        let bytes = self.assemble(text);
        self.check(&bytes, cpu);
    }

    fn assemble(&self, text: &str) -> Vec<u8> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let len: u64 = words
            .iter()
            .map(|w| if matches!(*w, "RIP" | "TGT") { 4 } else { 1 })
            .sum();
        let next = self.probed() + len;
        words
            .iter()
            .flat_map(|word| match *word {
                "RIP" => ((self.cell() - next) as u32).to_le_bytes().to_vec(),
                "TGT" => ((self.target() - next) as u32).to_le_bytes().to_vec(),
                byte => vec![u8::from_str_radix(byte, 16).unwrap()],
            })
            .collect()
    }
}

/// Runs `test` in every layout; in an emulator, which is many times slower, in that of the kernel.
fn in_every_layout(test: impl Fn(&mut Bench)) {
    let layouts = if is_emulated() {
        &LAYOUTS[..1]
    } else {
        &LAYOUTS
    };
    for &layout in layouts {
        test(&mut Bench::new(layout));
    }
}

/// The 32 combinations of the flags that conditions depend on.
fn flag_combinations() -> impl Iterator<Item = u64> {
    (0..32_u64).map(|n| {
        [bits::CF, bits::PF, bits::ZF, bits::SF, bits::OF]
            .iter()
            .enumerate()
            .filter(|(bit, _)| n >> bit & 1 != 0)
            .fold(0x202, |flags, (_, flag)| flags | flag)
    })
}

#[test]
fn nops_of_every_length() {
    in_every_layout(|bench| {
        for nop in [
            "90",
            "66 90",
            "0f 1f 00",
            "0f 1f 40 00",
            "0f 1f 44 00 00",
            "66 0f 1f 44 00 00",
            "0f 1f 80 00 00 00 00",
            "0f 1f 84 00 00 00 00 00",
            "66 0f 1f 84 00 00 00 00 00",
            "66 2e 0f 1f 84 00 00 00 00 00",
            "66 66 2e 0f 1f 84 00 00 00 00 00",
            "66 66 66 2e 0f 1f 84 00 00 00 00 00",
            "66 66 66 66 2e 0f 1f 84 00 00 00 00 00",
            "66 66 66 66 66 2e 0f 1f 84 00 00 00 00 00",
            "66 66 66 66 66 66 2e 0f 1f 84 00 00 00 00 00",
            "f3 90",
            "f3 0f 1e fa",
        ] {
            bench.hex(nop);
        }
    });
}

#[test]
fn a_nop_keeps_every_flag() {
    in_every_layout(|bench| {
        let mut flags = vec![
            bits::CF,
            bits::PF,
            bits::AF,
            bits::ZF,
            bits::SF,
            bits::OF,
            bits::DF,
        ];
        // In ring 3 AC forbids misaligned accesses, such as those to literals after the code.
        if bench.machine.layout == Layout::Low {
            flags.push(bits::AC);
        }
        for flag in flags {
            let mut cpu = bench.cpu();
            cpu.flags |= flag;
            bench.hex_with("90", &cpu);
        }
    });
}

#[test]
fn pushes_and_pops() {
    in_every_layout(|bench| {
        for register in 0..8 {
            for text in ["5", "41 5", "66 5", "66 41 5"] {
                bench.hex(&format!("{text}{register:x}"));
                // Popping RSP switches stacks: below.
                if register != 4 || text.contains("41") {
                    bench.hex(&format!("{text}{:x}", 8 + register));
                }
            }
        }
        for text in [
            "ff 34 24",             // push [rsp]
            "ff 74 24 08",          // push [rsp + 8]
            "ff 74 24 f8",          // push [rsp - 8]
            "8f 04 24",             // pop [rsp]
            "8f 44 24 08",          // pop [rsp + 8]
            "66 8f 44 24 08",       // pop word [rsp + 8]
            "ff 35 RIP",            // push [rip + disp]
            "8f 05 RIP",            // pop [rip + disp]
            "67 8f 05 RIP",         // pop [eip + disp]
            "6a 7f",                // push imm8
            "6a 80",                // push imm8, negative
            "68 78 56 34 12",       // push imm32
            "68 78 56 34 92",       // push imm32, negative
            "66 68 34 12",          // push imm16
            "66 6a ff",             // push imm8 as word
            "0f a0",                // push fs
            "0f a8",                // push gs
            "c8 20 00 00",          // enter 0x20, 0
            "c8 20 00 01",          // enter 0x20, 1
            "48 83 ec 28",          // sub rsp, 0x28
            "48 81 ec 00 01 00 00", // sub rsp, 0x100
            "48 83 c4 18",          // add rsp, 0x18
            "48 83 e4 f0",          // and rsp, -16
            "48 8d 64 24 10",       // lea rsp, [rsp + 0x10]
            "48 8d 65 f0",          // lea rsp, [rbp - 0x10]
            "48 89 e5",             // mov rbp, rsp
            "48 89 44 24 10",       // mov [rsp + 0x10], rax
            "48 87 04 24",          // xchg [rsp], rax
        ] {
            bench.hex(text);
        }
        // These switch stacks; the next one must be a stack, too.
        for text in ["48 89 ec", "c9", "48 94", "48 89 c4", "5c", "48 8b 24 24"] {
            let mut cpu = bench.cpu();
            let other = bench.machine.stack() + 0x400;
            cpu.gpr[RAX] = other;
            cpu.gpr[RBP] = other;
            bench.machine.set(cpu.gpr[RSP], other);
            bench.hex_with(text, &cpu);
        }
    });
}

#[test]
fn pushed_and_popped_flags() {
    in_every_layout(|bench| {
        let rsp = bench.cpu().gpr[RSP];
        for flags in [
            0x202,
            0x2d7 | bits::OF,
            0x202 | bits::DF,
            0x202 | bits::OF | bits::CF,
        ] {
            let mut cpu = bench.cpu();
            cpu.flags = flags;
            for text in ["9c", "66 9c", "48 9c", "66 48 9c"] {
                bench.hex_with(text, &cpu);
            }
            for mut popped in [
                0x202,
                0x202 | bits::ARITHMETIC,
                0x202 | bits::DF | bits::AC,
                0x202 | bits::AC | bits::SF,
            ] {
                if bench.machine.layout != Layout::Low {
                    popped &= !bits::AC;
                }
                bench.machine.set(rsp, popped);
                for text in ["9d", "66 9d", "48 9d"] {
                    bench.hex_with(text, &cpu);
                }
            }
        }
    });
}

#[test]
fn operands_relative_to_the_instruction_pointer() {
    in_every_layout(|bench| {
        let mut cpu = bench.cpu();
        cpu.flags |= bits::CF;
        for text in [
            "48 8b 05 RIP",                              // mov rax, m
            "8b 1d RIP",                                 // mov ebx, m
            "66 8b 15 RIP",                              // mov dx, m
            "8a 25 RIP",                                 // mov ah, m
            "4c 89 3d RIP",                              // mov m, r15
            "40 88 35 RIP",                              // mov m, sil
            "c7 05 RIP 78 56 34 12",                     // mov dword m, imm32
            "48 c7 05 RIP 78 56 34 92",                  // mov qword m, imm32
            "66 c7 05 RIP 34 12",                        // mov word m, imm16
            "c6 05 RIP 7f",                              // mov byte m, imm8
            "81 3d RIP 78 56 34 12",                     // cmp dword m, imm32
            "83 3d RIP 07",                              // cmp dword m, imm8
            "80 3d RIP 40",                              // cmp byte m, imm8
            "66 81 3d RIP 34 12",                        // cmp word m, imm16
            "48 81 05 RIP 78 56 34 12",                  // add qword m, imm32
            "48 83 2d RIP ff",                           // sub qword m, imm8
            "f7 05 RIP 78 56 34 12",                     // test dword m, imm32
            "48 f7 15 RIP",                              // not m
            "48 f7 1d RIP",                              // neg m
            "48 f7 25 RIP",                              // mul m
            "ff 05 RIP",                                 // inc m
            "f0 ff 0d RIP",                              // lock dec m
            "f0 48 01 05 RIP",                           // lock add m, rax
            "f0 48 0f c1 05 RIP",                        // lock xadd m, rax
            "f0 48 0f b1 0d RIP",                        // lock cmpxchg m, rcx
            "f0 48 0f c7 0d RIP",                        // lock cmpxchg16b m
            "48 87 05 RIP",                              // xchg m, rax
            "48 8d 05 RIP",                              // lea rax, m
            "8d 05 RIP",                                 // lea eax, m
            "66 8d 05 RIP",                              // lea ax, m
            "67 48 8d 05 RIP",                           // lea rax, [eip + disp]
            "67 48 8b 05 RIP",                           // mov rax, [eip + disp]
            "67 81 05 RIP 78 56 34 12",                  // add [eip + disp], imm32
            "69 05 RIP 78 56 34 12",                     // imul eax, m, imm32
            "48 6b 05 RIP 0b",                           // imul rax, m, imm8
            "48 0f a4 05 RIP 05",                        // shld m, rax, imm8
            "48 0f ad 05 RIP",                           // shrd m, rax, cl
            "48 c1 25 RIP 03",                           // shl m, imm8
            "48 d3 1d RIP",                              // rcr m, cl
            "48 0f ba 25 RIP 21",                        // bt m, imm8
            "48 0f ba 2d RIP 21",                        // bts m, imm8
            "48 0f a3 0d RIP",                           // bt m, rcx
            "0f 92 05 RIP",                              // setb m
            "48 0f 42 05 RIP",                           // cmovb rax, m
            "48 0f 47 05 RIP",                           // cmova rax, m
            "0f b6 05 RIP",                              // movzx eax, byte m
            "48 0f bf 05 RIP",                           // movsx rax, word m
            "48 63 05 RIP",                              // movsxd rax, m
            "48 0f bc 05 RIP",                           // bsf rax, m
            "f3 48 0f b8 05 RIP",                        // popcnt rax, m
            "f2 48 0f 38 f1 05 RIP",                     // crc32 rax, m
            "48 0f 38 f0 05 RIP",                        // movbe rax, m
            "48 0f c3 05 RIP",                           // movnti m, rax
            "0f 10 05 RIP",                              // movups xmm0, m
            "0f 11 0d RIP",                              // movups m, xmm1
            "66 0f 6f 15 RIP",                           // movdqa xmm2, m
            "f2 0f 58 05 RIP",                           // addsd xmm0, m
            "66 0f 3a 0f 05 RIP 05",                     // palignr xmm0, m, imm8
            "66 0f 38 00 05 RIP",                        // pshufb xmm0, m
            "66 0f 70 05 RIP 1b",                        // pshufd xmm0, m, imm8
            "66 0f c4 05 RIP 03",                        // pinsrw xmm0, m, imm8
            "dd 05 RIP",                                 // fld qword m
            "d9 3d RIP",                                 // fnstcw m
            "0f 18 0d RIP",                              // prefetcht0 m
            "0f ae 3d RIP",                              // clflush m
            "65 48 8b 04 25 00 04 00 00",                // mov rax, gs:[0x400]
            "65 48 8b 05 00 00 00 00",                   // mov rax, gs:[rip + 0]: faults
            "64 48 8b 04 25 00 00 00 00",                // mov rax, fs:[0]
            "48 8b 04 25 10 00 00 00",                   // mov rax, [0x10]: absolute, faults
            "48 a1 10 00 00 00 00 00 00 00",             // movabs rax, [0x10]: absolute, faults
            "65 48 a1 00 04 00 00 00 00 00 00",          // movabs rax, gs:[0x400]
            "65 48 a3 00 04 00 00 00 00 00 00",          // movabs gs:[0x400], rax
            "65 f0 48 81 04 25 00 04 00 00 78 56 34 12", // lock add gs:[0x400], imm32
        ] {
            bench.hex_with(text, &cpu);
        }
    });
}

/// Executes vector instructions, if the processor has `feature`; else says that they are left out.
macro_rules! with_feature {
    ($feature:tt, $texts:expr) => {
        if std::is_x86_feature_detected!($feature) {
            in_every_layout(|bench| $texts.iter().for_each(|text| bench.hex(text)));
        } else {
            let instructions = format!("{} vector instructions", $texts.len());
            closing::left_out(&instructions, $feature);
        }
    };
}

#[test]
fn vector_instructions_whose_opcode_byte_is_a_branch() {
    with_feature!(
        "avx",
        [
            "c5 f1 eb c2",    // vpor [jmp rel8]
            "c5 f8 77",       // vzeroupper [ja]
            "c5 fc 77",       // vzeroall
            "c5 f9 70 c1 1b", // vpshufd [jo]
            "c5 f1 e8 c2",    // vpsubsb [call]
            "c5 f1 e9 c2",    // vpsubsw [jmp rel32]
            "c5 f0 c2 c2 01", // vcmpps [ret imm16]
            "c5 f4 c2 c2 01", // vcmpps ymm
            "c5 f1 e0 c2",    // vpavgb [loopne]
            "c5 f1 fa c2",    // vpsubd [cli]
            "c5 f1 fb c2",    // vpsubq [sti]
            "c5 f1 f1 c2",    // vpsllw [int1]
            "c5 f4 58 c2",    // vaddps ymm0, ymm1, ymm2
            "c4 41 3c 57 ff", // vxorps ymm15, ymm8, ymm15
        ]
    );
    with_feature!(
        "avx2",
        [
            "c4 e2 71 8e 10", // vpmaskmovd m, xmm [mov ss]
            "c4 e2 75 8e 10", // vpmaskmovd m, ymm
            "c5 f5 eb c2",    // vpor ymm [jmp rel8]
            "c5 fd 70 c1 1b", // vpshufd ymm [jo]
            "c5 f5 e8 c2",    // vpsubsb ymm [call]
            "c5 f5 e9 c2",    // vpsubsw ymm [jmp rel32]
            "c5 f5 fa c2",    // vpsubd ymm [cli]
            "c5 f5 f1 c2",    // vpsllw ymm [int1]
        ]
    );
    with_feature!(
        "fma",
        [
            "c4 e2 f1 9c c2", // vfnmadd132pd [pushf]
            "c4 e2 f5 9c c2", // vfnmadd132pd ymm
            "c4 e2 f1 9d c2", // vfnmadd132sd [popf]
        ]
    );
    with_feature!(
        "avx512f",
        [
            "62 f1 75 48 eb c2",    // vpord zmm [jmp rel8]
            "62 f1 75 4b eb c2",    // under mask k3
            "62 a1 75 40 eb c2",    // zmm16, zmm17, zmm18
            "62 f1 75 48 fa c2",    // vpsubd zmm [cli]
            "62 f1 74 48 c2 ca 01", // vcmpps k1, zmm1, zmm2 [ret imm16]
            "62 f1 7d 48 70 c1 1b", // vpshufd zmm [jo]
            "62 f2 f5 48 9c c2",    // vfnmadd132pd zmm [pushf]
            "c5 f8 92 d8",          // kmovw k3, eax
            "c5 f4 42 d2",          // kandnw k2, k1, k2
        ]
    );
    with_feature!(
        "avx512vl",
        [
            "62 f1 75 08 eb c2", // vpord xmm [jmp rel8]
            "62 f1 75 28 eb c2", // vpord ymm
            "62 f1 75 29 fa c2", // vpsubd ymm under mask k1 [cli]
        ]
    );
    with_feature!(
        "avx512bw",
        [
            "62 f1 75 48 e8 c2", // vpsubsb zmm [call]
            "62 f1 75 48 e9 c2", // vpsubsw zmm [jmp rel32]
            "62 f1 75 48 e0 c2", // vpavgb zmm [loopne]
            "62 f1 75 48 f1 c2", // vpsllw zmm [int1]
        ]
    );
}

#[test]
fn vector_operands_relative_to_the_instruction_pointer() {
    with_feature!(
        "avx",
        [
            "c5 fa 6f 05 RIP",       // vmovdqu xmm0, m
            "c5 fe 6f 05 RIP",       // vmovdqu ymm0, m
            "c5 f8 11 05 RIP",       // vmovups m, xmm0
            "c5 fc 11 0d RIP",       // vmovups m, ymm1
            "c4 e3 71 0f 05 RIP 04", // vpalignr with an immediate after the displacement
            "c4 e2 79 18 05 RIP",    // vbroadcastss
            "67 c5 fe 6f 05 RIP",    // 32-bit address
        ]
    );
    with_feature!(
        "avx2",
        [
            "c4 e3 75 0f 05 RIP 04", // vpalignr ymm
            "c4 e2 7d 5a 05 RIP",    // vbroadcasti128
        ]
    );
    with_feature!("bmi1", ["c4 e2 78 f3 0d RIP"]); // blsr
    with_feature!(
        "avx512f",
        [
            "62 f1 fd 48 6f 05 RIP",    // vmovdqa64 zmm0, m: disp32, never compressed
            "62 f1 7d 48 7f 0d RIP",    // vmovdqa32 m, zmm1
            "62 f1 75 58 eb 05 RIP",    // vpord zmm0, zmm1, m{1to16}
            "62 f3 75 48 25 05 RIP 5a", // vpternlogd with an immediate after the displacement
            "62 e1 fe 4b 6f 05 RIP",    // vmovdqu64 zmm16{k3}, m
        ]
    );
    with_feature!(
        "avx512vl",
        [
            "62 f1 fd 08 6f 05 RIP", // vmovdqa64 xmm0, m
            "62 f1 fd 28 6f 05 RIP", // vmovdqa64 ymm0, m
            "62 f1 75 18 eb 05 RIP", // vpord xmm0, xmm1, m{1to4}
        ]
    );
}

/// The comparison is of all that there is of a vector register, or says that it is not.
#[test]
fn whole_vector_registers_are_compared() {
    for (has, component, name) in [
        (
            std::is_x86_feature_detected!("avx"),
            2,
            "upper halves of YMM registers",
        ),
        (
            std::is_x86_feature_detected!("avx512f"),
            5,
            "mask registers",
        ),
        (
            std::is_x86_feature_detected!("avx512f"),
            6,
            "upper halves of ZMM registers",
        ),
        (
            std::is_x86_feature_detected!("avx512f"),
            7,
            "ZMM16 to ZMM31",
        ),
    ] {
        match (has, keeps_component(component)) {
            (true, true) => {}
            (false, _) => closing::left_out(name, "such registers"),
            // Linux has them all in its frames. QEMU's emulation of Linux knows those of SSE only.
            (true, false) => {
                assert!(is_emulated(), "signal frames lack the {name}");
                closing::left_out(
                    &format!("comparison of the {name}"),
                    "such state in signal frames",
                );
            }
        }
    }
    if !std::is_x86_feature_detected!("avx") || !keeps_component(2) {
        return;
    }
    // It sees what becomes of them.
    let mut machine = Machine::new(Layout::Low, STACK_BYTES);
    let mut cpu = Cpu::new();
    cpu.ip = machine.text();
    let before = cpu.clone();
    machine.prepare(cpu.ip, &[0xc5, 0xf8, 0x77]); // vzeroupper
    machine.resume(&mut cpu);
    assert_eq!(cpu.upper[..256], [0; 256]);
    assert_eq!(cpu.fx[160..416], before.fx[160..416], "XMM0 to XMM15");
}

#[test]
fn string_instructions() {
    in_every_layout(|bench| {
        for count in [0, 1, 2, 10, 100] {
            for direction in [0, bits::DF] {
                for text in [
                    "f3 a4", "f3 48 a5", "f3 66 a5", "f3 aa", "f3 48 ab", "f3 a6", "f2 a6",
                    "f3 ae", "f2 48 af", "f3 ac", "a4", "48 a5", "aa", "ae", "a6", "67 f3 a4",
                    "65 a4",
                ] {
                    let mut cpu = bench.cpu();
                    cpu.gpr[RCX] = count;
                    cpu.gpr[RSI] = bench.cell() + 0x400;
                    cpu.gpr[RDI] = bench.cell() + 0x800;
                    cpu.flags |= direction;
                    bench.hex_with(text, &cpu);
                }
            }
        }
    });
}

#[test]
fn string_instruction_that_faults_in_the_middle_keeps_its_progress() {
    in_every_layout(|bench| {
        let mut cpu = bench.cpu();
        cpu.gpr[RCX] = 100;
        cpu.gpr[RSI] = bench.cell();
        cpu.gpr[RDI] = bench.machine.stack_end() - 24;
        for text in ["f3 a4", "f3 48 a5", "f3 aa"] {
            bench.hex_with(text, &cpu);
        }
    });
}

#[test]
fn conditional_moves_and_sets() {
    in_every_layout(|bench| {
        for condition in 0..16 {
            for flags in flag_combinations() {
                let mut cpu = bench.cpu();
                cpu.flags = flags;
                bench.check(&[0x0f, 0x90 | condition, 0xc0], &cpu);
                bench.check(&[0x0f, 0x90 | condition, 0x44, 0x24, 0x10], &cpu);
                bench.check(&[0x48, 0x0f, 0x40 | condition, 0xc3], &cpu);
            }
        }
    });
}

#[test]
fn arithmetic_and_the_rest() {
    in_every_layout(|bench| {
        for text in [
            "01 d8",
            "48 11 d8",
            "48 29 c3",
            "48 19 c3",
            "48 31 c0",
            "48 21 d8",
            "48 09 d8",
            "48 39 d8",
            "48 85 c0",
            "48 ff c0",
            "48 ff c8",
            "48 f7 d8",
            "48 0f af c3",
            "48 69 c3 78 56 34 12",
            "48 c1 e0 05",
            "48 d3 f8",
            "48 d1 d0",
            "48 0f a3 c8",
            "48 0f bb c8",
            "48 0f c8",
            "48 0f bd c3",
            "f3 48 0f b8 c3",
            "48 98",
            "48 99",
            "66 98",
            "0f b6 c3",
            "48 63 c3",
            "9e",
            "9f",
            "f5",
            "f8",
            "f9",
            "fc",
            "fd",
            "d7",
            "48 8d 44 8b 10",
            "b8 78 56 34 12",
            "48 b8 f0 de bc 9a 78 56 34 12",
            "48 c7 c0 ff ff ff ff",
            "86 e0",
            "48 93",
            "0f c1 d8",
            "f0 48 0f c1 03",
            "f0 48 0f b1 0b",
            "f0 48 0f ab 03",
            "f0 0f c7 0b",
            "f0 48 0f c7 0b",
            "f0 48 ff 03",
            "f0 48 83 03 05",
            "48 0f c7 0b",
            "0f ae e8",
            "0f ae f0",
            "0f ae f8",
            "f3 90",
            "0f 0d 0b",
            "d9 e8",
            "d9 eb",
            "d8 c1",
            "db e3",
            "9b",
            "66 0f ef c1",
            "66 0f 38 dc c1",
            "f3 0f 7f 03",
            "66 0f 7e c0",
            "66 48 0f 7e c8",
            "0f 28 c1",
            "0f a2",
            "8c d0",
            "8c 18",
        ] {
            let mut cpu = bench.cpu();
            cpu.gpr[RAX] &= !0xff;
            if text == "0f a2" {
                cpu.gpr[RAX] = 0;
            }
            bench.hex_with(text, &cpu);
        }
    });
}

#[test]
fn faults_are_those_of_the_probed_address() {
    in_every_layout(|bench| {
        let mut cpu = bench.cpu();
        cpu.gpr[RAX] = bench.hole();
        cpu.gpr[RBX] = 1 << 50;
        cpu.gpr[RDX] = 0;
        for text in [
            "48 8b 00", // load from a hole
            "48 89 00", // store
            "48 8b 03", // non-canonical
            "48 f7 f2", // divide by zero
            "48 f7 fa",
            "0f 22 d0", // mov cr2: privileged
            "0f 30",    // wrmsr
            "0f 32",    // rdmsr
            "0f 01 38", // invlpg
            "0f 06",    // clts
            "ec",
            "ef",
            "6c",                // port I/O
            "0f 09",             // wbinvd
            "f3 48 a5",          // from RSI to RDI, both mapped
            "0f c7 08",          // cmpxchg8b on a hole
            "66 0f 6f 43 01",    // non-canonical vector load
            "66 0f 6f 44 24 01", // misaligned vector load
            "0f 01 d0",          // xgetbv or #GP by ECX
            "50",
        ] {
            bench.hex_with(text, &cpu);
        }
        // RIP-relative into the hole.
        for (head, tail) in [
            ("48 8b 05", ""),
            ("c7 05", "01 00 00 00"),
            ("ff 15", ""),
            ("ff 25", ""),
            ("ff 35", ""),
            ("8f 05", ""),
        ] {
            let len = (head.split(' ').count() + 4 + tail.split_whitespace().count()) as u64;
            let displacement = (bench.hole() - (bench.probed() + len)) as u32;
            let hex: Vec<String> = displacement
                .to_le_bytes()
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect();
            bench.hex(&format!("{head} {} {tail}", hex.join(" ")));
        }
    });
}
