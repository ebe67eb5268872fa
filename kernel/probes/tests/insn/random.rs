//! Random differential: generated cases, executed in place and by every replacement.

use std::collections::BTreeMap;

use iced_x86::{Code, Instruction, Register};
use instruction_cases::{Case, Ground, Random};
use probes::insn::{classify, decode};

use crate::{
    differential::{Method, compare},
    machine::{Cpu, Layout, Machine, fs_base},
};

const STACK_BYTES: usize = 2 * 4096;
const PROBED: u64 = 0x800;
const LANDING: u64 = 0x1200;
const WINDOW_BYTES: u64 = 0x400;

#[test]
fn random_instructions_do_the_same_out_of_line() {
    for seed in [0x1234_5678, 0x9e37_79b9, 0x0bad_cafe] {
        differential(seed, 5_000);
    }
}

#[test]
#[ignore = "takes minutes"]
fn a_million_random_instructions_do_the_same_out_of_line() {
    differential(0x9e37_79b9, 1_000_000);
}

fn differential(seed: u64, count: u64) {
    let mut machine = Machine::new(Layout::Low, STACK_BYTES);
    let at = machine.text() + PROBED;
    let data = machine.data();
    let holes = [
        0,
        data - 0x800,
        machine.stack_end(),
        1 << 63,
        0xffff_8888 << 32,
    ];
    let unmapped = [
        0..0x1000,
        data - 0x1000..data,
        machine.stack_end()..machine.stack_end() + 0x1000,
    ];
    let is_mapped =
        |address: u64| address < 1 << 47 && !unmapped.iter().any(|hole| hole.contains(&address));
    let windows = [
        data + WINDOW_BYTES..data + 2 * WINDOW_BYTES,
        data..data + WINDOW_BYTES,
        machine.stack_end() - WINDOW_BYTES..machine.stack_end(),
    ];
    let ground = Ground {
        at,
        own: at - 24..at + 64,
        landing: machine.text() + LANDING..machine.text() + LANDING + 0x100,
        windows: &windows,
        stack: machine.stack() + 0x800..machine.stack() + 0xc00,
        fs_base: fs_base(),
        gs_base: data,
        holes: &holes,
        is_mapped: &is_mapped,
        ring0: false,
        emulated: false,
    };
    let (mut executed, mut completed) = (0, 0);
    let mut classes = BTreeMap::<String, u32>::new();
    for number in 0.. {
        if executed == count {
            break;
        }
        let mut random = Random::of_case(seed, number);
        let Some(case) = Case::draw(&mut random, &ground) else {
            continue;
        };
        if !is_repeatable(&case.instruction) {
            continue;
        }
        let Ok(insn) = decode(&case.code, at) else {
            continue;
        };
        let Ok(class) = classify(&insn, insn.bytes()) else {
            continue;
        };
        // A loop to itself finds no code there once it runs elsewhere.
        if insn
            .branch_target()
            .is_some_and(|target| target == at || machine.in_slot_page(target))
        {
            continue;
        }
        for range in windows.iter().chain([&ground.stack]) {
            let mut words = vec![0; (range.end - range.start) as usize / 8];
            case.fill(range.start, &mut words);
            for (address, word) in (range.start..).step_by(8).zip(words) {
                machine.set(address, word);
            }
        }
        let mut cpu = Cpu::new();
        cpu.gpr = case.registers;
        cpu.flags = case.flags;
        for byte in cpu.fx[32..416].iter_mut().chain(&mut cpu.upper) {
            *byte = random.byte();
        }
        let methods = [Method::Resume, Method::Post, Method::Step];
        match compare(&mut machine, &insn, &cpu, &methods) {
            Ok(without_fault) => completed += u64::from(without_fault),
            Err(difference) => panic!(
                "{difference}\ncase {number} of seed {seed:#x}, {:?}: {case:?}",
                case.instruction.code()
            ),
        }
        executed += 1;
        *classes.entry(format!("{class:?}")).or_default() += 1;
    }
    println!("{completed} of {executed} without a fault: {classes:#?}");
    assert!(
        completed > executed / 2,
        "most instructions should do something"
    );
}

/// Whether the instruction gives the same result whenever it is executed in this process, and harms
/// nothing but its memory operand.
fn is_repeatable(instruction: &Instruction) -> bool {
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
    !volatile && !harmful && instruction.memory_segment() != Register::FS
}
