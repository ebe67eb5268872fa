//! The stack pointer. An instruction may set it only to a place where there is a stack, or it must
//! fault before that.

use iced_x86::{Code as C, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

use crate::{Case, Ground, GroundPlace, RSP, Random, case::number};

const RBP: usize = 5;

/// Chooses the operands of an instruction that writes RSP. `None` if its new value is unknown.
pub(crate) fn fit(case: &mut Case, random: &mut Random, ground: &Ground<'_>) -> Option<()> {
    let instruction = case.instruction;
    // Dead stack may be uncovered, but not read.
    let wanted = case.registers[RSP] + random.below(64);
    match instruction.code() {
        C::Leaveq | C::Leavew => {
            case.registers[RBP] = if random.one_in(8) {
                ground.hole(random)
            } else {
                wanted
            };
            return Some(());
        }
        C::Enterq_imm16_imm8 | C::Enterw_imm16_imm8 => {
            let window = &ground.windows[case.window];
            case.registers[RBP] = window.start + (window.end - window.start) / 4 * 3;
            let pushed = match instruction.code() {
                C::Enterq_imm16_imm8 => 8 * (1 + u64::from(instruction.immediate8_2nd() % 32)),
                _ => 0,
            };
            case.dead_below = case.registers[RSP] - pushed;
            return Some(());
        }
        C::Popfq | C::Popfw => {
            case.set_word(case.registers[RSP], ground.flags(random));
            return Some(());
        }
        C::Popq_FS | C::Popw_FS => {
            case.set_word(
                case.registers[RSP],
                random.of(&[0, 0, 8, 0x10, 0x1b, 0xfff8]),
            );
            return Some(());
        }
        C::Pop_r64 if instruction.op0_register() == Register::RSP => {
            case.set_word(case.registers[RSP], wanted);
            return Some(());
        }
        C::Mov_Sreg_rm16 | C::Mov_Sreg_r32m16 | C::Mov_Sreg_r64m16 => {
            if let Some(number) = number(instruction.op1_register()).filter(|&number| number != RSP)
            {
                case.registers[number] = random.of(&[0, 0, 8, 0x10, 0x1b, 0xfff8]);
            }
            return Some(());
        }
        _ => {}
    }
    if !writes_stack_pointer(case) {
        return Some(());
    }
    case.dead_below = case.registers[RSP];
    if instruction.op0_register() != Register::RSP {
        // Only the other operand of an exchange, or part of the register.
        return match instruction.code() {
            C::Xchg_rm64_r64 if instruction.op1_register() == Register::RSP => {
                give(case, ground, 0, wanted)
            }
            _ => None,
        };
    }
    match instruction.mnemonic() {
        Mnemonic::Inc | Mnemonic::Dec => Some(()),
        Mnemonic::Lea => {
            let address = case.operand_address(ground)?;
            (ground.stack.start..ground.stack.end - 128)
                .contains(&address)
                .then_some(())
        }
        // An operation on the stack pointer and itself.
        Mnemonic::Add | Mnemonic::Sub | Mnemonic::And
            if number(instruction.op1_register()) == Some(RSP) =>
        {
            None
        }
        Mnemonic::Add | Mnemonic::Sub => match instruction.op1_kind() {
            OpKind::Immediate8to64 => Some(()),
            _ => give(case, ground, 1, random.below(64)),
        },
        Mnemonic::And => match instruction.op1_kind() {
            OpKind::Immediate8to64 if instruction.immediate8to64() < 0 => Some(()),
            OpKind::Immediate8to64 => None,
            _ => give(case, ground, 1, !random.below(64)),
        },
        Mnemonic::Xchg => give(case, ground, 1, wanted),
        Mnemonic::Mov
        | Mnemonic::Cmova
        | Mnemonic::Cmovae
        | Mnemonic::Cmovb
        | Mnemonic::Cmovbe
        | Mnemonic::Cmove
        | Mnemonic::Cmovne
        | Mnemonic::Cmovg
        | Mnemonic::Cmovge
        | Mnemonic::Cmovl
        | Mnemonic::Cmovle
        | Mnemonic::Cmovo
        | Mnemonic::Cmovno
        | Mnemonic::Cmovp
        | Mnemonic::Cmovnp
        | Mnemonic::Cmovs
        | Mnemonic::Cmovns => give(case, ground, 1, wanted),
        _ => None,
    }
}

/// Makes operand `operand`, a 64-bit register or memory, be `value`.
fn give(case: &mut Case, ground: &Ground<'_>, operand: u32, value: u64) -> Option<()> {
    match case.instruction.op_kind(operand) {
        OpKind::Register => {
            let register = case.instruction.op_register(operand);
            match number(register)? {
                RSP => return (register == Register::RSP).then_some(()),
                number => case.registers[number] = value,
            }
        }
        OpKind::Memory => {
            let address = case.operand_address(ground)?;
            if ground.place(case.window, address, 8) == GroundPlace::Inside {
                case.set_word(address, value);
            }
        }
        _ => return None,
    }
    Some(())
}

/// Whether RSP gets a value other than by a push or a pop.
fn writes_stack_pointer(case: &Case) -> bool {
    let instruction = &case.instruction;
    if instruction.is_stack_instruction()
        && instruction.op0_register().full_register() != Register::RSP
    {
        return false;
    }
    if matches!(instruction.code(), C::Push_r64 | C::Push_r16) {
        return false;
    }
    let mut factory = InstructionInfoFactory::new();
    factory
        .info(instruction)
        .used_registers()
        .iter()
        .any(|used| {
            number(used.register()) == Some(RSP)
                && matches!(
                    used.access(),
                    OpAccess::Write
                        | OpAccess::CondWrite
                        | OpAccess::ReadWrite
                        | OpAccess::ReadCondWrite
                )
        })
}
