//! The registers and the memory around a random program.

use alloc::vec::Vec;

use bpf::Program;
use bpf_interpreter::{Space, TestMachine};
use instruction_cases::Random;

/// Where memory of the kernel is mapped. Nothing is mapped before and after it.
pub const KERNEL: u64 = 0xffff_8000_0010_0000;
pub const KERNEL_BYTES: u64 = 512;
/// Where memory of the task is mapped. Nothing is mapped before and after it.
pub const USER: u64 = 0x5000_0000;
pub const USER_BYTES: u64 = 256;

/// Bytes from one text to the next one; numbers and pointers are between them.
const TEXT_STRIDE: u64 = 64;

/// Something that a register may hold: often a pointer into mapped memory.
pub(crate) fn number(random: &mut Random) -> u64 {
    match random.below(8) {
        0..=2 => KERNEL + random.below(KERNEL_BYTES / 8) * 8,
        3 => USER + random.below(USER_BYTES),
        4 => KERNEL + KERNEL_BYTES - random.below(9),
        5 => random.below(300),
        6 => extreme(random),
        _ => random.next(),
    }
}

/// A number at which arithmetic has an edge.
pub(crate) fn extreme(random: &mut Random) -> u64 {
    let power = 1_u64 << random.below(64);
    random.of(&[
        0,
        u64::MAX,
        i64::MIN as u64,
        i64::MAX as u64,
        u32::MAX.into(),
        i32::MIN as u64,
        i32::MAX as u64,
        1 << 31,
        power,
        power.wrapping_sub(1),
        power.wrapping_neg(),
    ])
}

fn memory(random: &mut Random, bytes: u64) -> Vec<u8> {
    let mut memory = Vec::new();
    while (memory.len() as u64) < bytes {
        let is_text = (memory.len() as u64).is_multiple_of(TEXT_STRIDE);
        if is_text {
            let length = random.below(24);
            memory.extend((0..length).map(|_| b'a' + random.below(26) as u8));
            memory.push(0);
            while !memory.len().is_multiple_of(8) {
                memory.push(random.byte());
            }
        } else {
            memory.extend(number(random).to_le_bytes());
        }
    }
    memory.truncate(bytes as usize);
    memory
}

pub(crate) fn draw(random: &mut Random, program: &Program) -> TestMachine {
    let mut machine = TestMachine::new(program);
    for register in &mut machine.registers {
        *register = number(random);
    }
    machine.put(Space::Kernel, KERNEL, &memory(random, KERNEL_BYTES));
    machine.put(Space::User, USER, &memory(random, USER_BYTES));
    machine.cpu = random.below(4) as u32;
    machine.pid_tgid = random.next() & 0x7fff_ffff_7fff_ffff;
    machine.tsc = random.next();
    machine.tsc_step = random.below(1000);
    machine.func_ip = number(random);
    machine.return_address = number(random);
    machine.not_recording = u32::from(random.one_in(4));
    machine.call_stack = (0..random.below(8)).map(|_| number(random)).collect();
    machine.event_flags = random.byte();
    machine.preempt_count = random.byte();
    let name_bytes = random.below(16) as usize;
    machine.comm.fill(0);
    machine.comm[..name_bytes].fill_with(|| b'a' + random.below(26) as u8);
    machine.entry_data.fill_with(|| random.byte());
    if random.one_in(4) {
        machine.room_for_records = random.below(3) as usize;
    }
    machine
}
