//! The registers at a call of the code, and the driver that loads and stores all of them.
//!
//! The driver keeps its stack pointer in [`SAVED_SP`], loads every register from [`INPUT`], and
//! stores every one to [`OUTPUT`] when the code has returned. A thunk of a helper leads to
//! `bpf_test_helper`, which leaves garbage in all registers that a C function may change.

use super::*;

/// Registers by number, then the flags.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registers {
    pub(super) gpr: [u64; 16],
    pub(super) flags: u64,
}

pub(super) const AX: usize = 0;
pub(super) const CX: usize = 1;
pub(super) const DX: usize = 2;
pub(super) const BX: usize = 3;
pub(super) const SP: usize = 4;
pub(super) const BP: usize = 5;
pub(super) const SI: usize = 6;
pub(super) const DI: usize = 7;

pub(super) static mut INPUT: Registers = Registers {
    gpr: [0; 16],
    flags: 0,
};
pub(super) static mut OUTPUT: Registers = Registers {
    gpr: [0; 16],
    flags: 0,
};
pub(super) static mut TARGET: u64 = 0;
pub(super) static mut SAVED_SP: u64 = 0;

global_asm!(
    ".globl bpf_test_enter, bpf_test_back, bpf_test_helper",
    "bpf_test_enter:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [rip + {saved}], rsp",
    "push [rip + {input} + 128]",
    "popfq",
    "mov rax, [rip + {input}]",
    "mov rcx, [rip + {input} + 8]",
    "mov rdx, [rip + {input} + 16]",
    "mov rbx, [rip + {input} + 24]",
    "mov rsp, [rip + {input} + 32]",
    "mov rbp, [rip + {input} + 40]",
    "mov rsi, [rip + {input} + 48]",
    "mov rdi, [rip + {input} + 56]",
    "mov r8, [rip + {input} + 64]",
    "mov r9, [rip + {input} + 72]",
    "mov r10, [rip + {input} + 80]",
    "mov r11, [rip + {input} + 88]",
    "mov r12, [rip + {input} + 96]",
    "mov r13, [rip + {input} + 104]",
    "mov r14, [rip + {input} + 112]",
    "mov r15, [rip + {input} + 120]",
    "jmp [rip + {target}]",
    "bpf_test_back:",
    "mov [rip + {output}], rax",
    "mov [rip + {output} + 8], rcx",
    "mov [rip + {output} + 16], rdx",
    "mov [rip + {output} + 24], rbx",
    "mov [rip + {output} + 32], rsp",
    "mov [rip + {output} + 40], rbp",
    "mov [rip + {output} + 48], rsi",
    "mov [rip + {output} + 56], rdi",
    "mov [rip + {output} + 64], r8",
    "mov [rip + {output} + 72], r9",
    "mov [rip + {output} + 80], r10",
    "mov [rip + {output} + 88], r11",
    "mov [rip + {output} + 96], r12",
    "mov [rip + {output} + 104], r13",
    "mov [rip + {output} + 112], r14",
    "mov [rip + {output} + 120], r15",
    "mov rsp, [rip + {saved}]",
    "pushfq",
    "pop [rip + {output} + 128]",
    "cld",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    // From a thunk that has put the helper's number into eax.
    "bpf_test_helper:",
    "pushfq",
    "cld",
    "push r8",
    "push rcx",
    "push rdx",
    "push rsi",
    "push rdi",
    "mov edi, eax",
    "mov rsi, rsp",
    "mov rdx, [rsp + 40]",
    "lea rcx, [rsp + 48]",
    "push rbp",
    "mov rbp, rsp",
    "and rsp, -16",
    "call {helper}",
    "mov rsp, rbp",
    "pop rbp",
    "add rsp, 48",
    "movabs rcx, 0x5a5a5a5a5a5a5a5a",
    "mov rdx, rcx",
    "mov rsi, rcx",
    "mov rdi, rcx",
    "mov r8, rcx",
    "mov r9, rcx",
    "mov r10, rcx",
    "mov r11, rcx",
    "cmp rcx, 0",
    "ret",
    saved = sym SAVED_SP,
    input = sym INPUT,
    output = sym OUTPUT,
    target = sym TARGET,
    helper = sym helpers::enter,
);

unsafe extern "C" {
    pub(super) fn bpf_test_enter();
    pub(super) fn bpf_test_back();
    pub(super) fn bpf_test_helper();
}

/// Lets a reading of the time stamp counter fault, or not, if the program reads it.
pub(super) fn read_counter(program: &Program, how: i32) {
    let tsc = Insn::Call {
        helper: Helper::Tsc,
    };
    if program.insns.contains(&tsc) {
        // SAFETY: only this thread's readings change.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_TSC, how) }, 0);
    }
}

/// The memory from the stack pointer on, which belongs to the caller.
pub(super) fn above_stack(registers: &Registers) -> Vec<u8> {
    // SAFETY: the stack has more above it.
    unsafe { std::slice::from_raw_parts(registers.gpr[SP] as *const u8, 0x200).to_vec() }
}

pub(super) const STATUS: u64 = 0x8d5;
pub(super) const DIRECTION: u64 = 0x400;

pub(super) fn check_kept(form: Form, before: &Registers, after: &Registers, code: &Code) {
    let (lost, flags): (&[usize], u64) = match form {
        Form::Jump { flags_live, .. } => (&[], if flags_live { 0 } else { STATUS }),
        Form::Breakpoint | Form::Watchpoint => (&[AX, CX, DX, SI, DI], STATUS | DIRECTION),
        Form::Call => (&[AX, CX, DX, SI, DI], STATUS),
        Form::Handler => (&[AX, CX, DX, SI, DI, 8, 9, 10, 11], STATUS),
    };
    for number in (0..16).filter(|number| !lost.contains(number)) {
        assert_eq!(
            after.gpr[number], before.gpr[number],
            "{form:?}: register {number} is kept: {:02x?}",
            code.bytes
        );
    }
    assert_eq!(
        after.flags | flags | 0x202,
        before.flags | flags | 0x202,
        "{form:?}: flags are kept"
    );
}

/// Makes the selectors in `world` those that the code finds.
fn set_selectors(world: &mut TestMachine) {
    let (cs, ss): (u16, u16);
    // SAFETY: reads registers.
    unsafe {
        std::arch::asm!("mov {:x}, cs", out(reg) cs, options(nomem, nostack));
        std::arch::asm!("mov {:x}, ss", out(reg) ss, options(nomem, nostack));
    }
    world.set_register(Register::Cs, u64::from(cs));
    world.set_register(Register::Ss, u64::from(ss));
}

/// Writes the frame at `top`: the five registers that each frame has, and `others`. Then nothing of
/// the probed code is in these registers. `behind` is added to `ip`.
fn write_frame(
    top: u64,
    others: &[(i32, Register)],
    behind: u64,
    world: &TestMachine,
    registers: &mut Registers,
) {
    let five = [
        (BreakpointFrame::AX, Register::Ax),
        (BreakpointFrame::CX, Register::Cx),
        (BreakpointFrame::DX, Register::Dx),
        (BreakpointFrame::SI, Register::Si),
        (BreakpointFrame::DI, Register::Di),
    ];
    for &(offset, register) in five.iter().chain(others) {
        let added = if register == Register::Ip { behind } else { 0 };
        let value = world.registers[register as usize].wrapping_add(added);
        // SAFETY: inside the stack's mapping, and aligned.
        unsafe { ((top as i64 + i64::from(offset)) as *mut u64).write(value) };
    }
    for number in [AX, CX, DX, SI, DI] {
        registers.gpr[number] = 0xdead_0000 + number as u64;
    }
}

/// The registers at the call, and in `world` those of the probed code.
pub(super) fn registers(
    form: Form,
    kind: ProgramKind,
    world: &mut TestMachine,
    place: &Place,
) -> Registers {
    let pattern = world.registers[Register::Flags as usize];
    let top = place.stack as u64 + STACK_BYTES as u64 - 0x800;
    // SAFETY: inside the stack's mapping.
    unsafe { (top as *mut u8).write_bytes(0xa5, 0x400) };
    let mut registers = Registers {
        gpr: std::array::from_fn(|number| {
            let register = Register::numbered(number as u8).expect("a general register");
            world.registers[register as usize]
        }),
        flags: pattern & STATUS | 0x202,
    };
    match form {
        Form::Jump {
            flags_live,
            aligned,
        } => {
            let misaligned = world.registers[Register::Sp as usize] & 15;
            registers.gpr[SP] = if aligned { top + 8 } else { top + misaligned };
            if flags_live {
                registers.flags |= pattern & DIRECTION;
            }
            set_selectors(world);
            world.set_register(Register::OrigAx, u64::MAX);
            world.set_register(Register::Sp, registers.gpr[SP]);
            world.set_register(Register::Flags, registers.flags);
            world.func_ip = world.registers[Register::Ip as usize];
        }
        Form::Breakpoint => {
            registers.gpr[SP] = top;
            registers.flags |= pattern & DIRECTION;
            let fields = [
                (BreakpointFrame::ORIG_AX, Register::OrigAx),
                (BreakpointFrame::IP, Register::Ip),
                (BreakpointFrame::CS, Register::Cs),
                (BreakpointFrame::FLAGS, Register::Flags),
                (BreakpointFrame::SP, Register::Sp),
                (BreakpointFrame::SS, Register::Ss),
            ];
            write_frame(top, &fields, 1, world, &mut registers);
            world.func_ip = world.registers[Register::Ip as usize];
        }
        Form::Watchpoint => {
            registers.gpr[SP] = top;
            registers.flags |= pattern & DIRECTION;
            let rest = top + WatchpointFrame::REST as u64;
            let fields = [
                (BreakpointFrame::IP, Register::Ip),
                (BreakpointFrame::CS, Register::Cs),
                (BreakpointFrame::FLAGS, Register::Flags),
                (BreakpointFrame::SP, Register::Sp),
            ];
            write_frame(rest, &fields, 0, world, &mut registers);
            for (offset, register) in [
                (WatchpointFrame::OLD, Register::OrigAx),
                (WatchpointFrame::NEW, Register::Ss),
            ] {
                let value = world.registers[register as usize];
                // SAFETY: inside the stack's mapping, and aligned.
                unsafe { ((top + offset as u64) as *mut u64).write(value) };
            }
            world.func_ip = world.registers[Register::Ip as usize];
        }
        Form::Call => {
            registers.gpr[SP] = top;
            let fields = [(EntryFrame::FLAGS, Register::Flags)];
            write_frame(top, &fields, 0, world, &mut registers);
            let slot = top + EntryFrame::RETURN_SLOT as u64;
            let (sp, ip) = match kind {
                ProgramKind::Return { .. } => (slot + 8, world.return_address),
                _ => (slot, world.func_ip),
            };
            world.set_register(Register::Sp, sp);
            world.set_register(Register::Ip, ip);
            set_selectors(world);
            world.set_register(Register::OrigAx, u64::MAX);
        }
        Form::Handler => {
            registers.gpr[SP] = top;
            let context = top + 0x100;
            if kind == ProgramKind::Probe {
                world.func_ip = world.registers[Register::Ip as usize];
            }
            if let ProgramKind::Entry { .. } = kind {
                let ip = world.func_ip;
                world.set_register(Register::Ip, ip);
            }
            for register in Register::ALL {
                let behind = register == Register::Ip && kind == ProgramKind::Probe;
                let value = world.registers[register as usize].wrapping_add(u64::from(behind));
                // SAFETY: inside the stack's mapping, and aligned.
                unsafe { ((context + register.offset() as u64) as *mut u64).write(value) };
            }
            registers.gpr[DI] = 0xdead_beef;
            registers.gpr[SI] = context;
        }
    }
    registers
}
