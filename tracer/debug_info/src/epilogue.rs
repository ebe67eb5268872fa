//! The last instructions of a function: they give back the registers of its caller, and its frame.
//!
//! The debug information often says of a variable that it is in such a register, or in the frame,
//! up to the end of the function. What the instructions have given back by then is not the
//! variable's any more:
//!
//! ```text
//!   add rsp, 0x20     what is in the frame may be overwritten from here on
//!   pop rbx           rbx is the caller's from here on
//!   ret
//! ```
//!
//! EPILOGUE-1. Only a run of such instructions that leads to the end of the function counts. So a
//!     register that is popped in its body keeps what the debug information says of it.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};
use trace_interface::symbols::Register;

use crate::{image::Image, registers::general};

/// What a function has given back before one of its instructions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenBack {
    pub registers: Vec<Register>,
    /// The stack pointer has left the frame, or a part of it.
    pub frame: bool,
}

impl GivenBack {
    /// That before the instruction at `address` of a function.
    pub fn before(image: &Image, function: u64, bytes: u64, address: u64) -> Self {
        // The usual place: nothing was done yet.
        if address == function {
            return Self::default();
        }
        let code = image.code(function, bytes);
        let all: Vec<Instruction> = Decoder::with_ip(64, code, function, DecoderOptions::NONE)
            .into_iter()
            .collect();
        Self::in_code(&all, function..function.saturating_add(bytes), address)
    }

    fn in_code(all: &[Instruction], own: std::ops::Range<u64>, address: u64) -> Self {
        let mut given = Self::default();
        let Some(at) = all
            .iter()
            .position(|instruction| instruction.ip() == address)
        else {
            return given;
        };
        let ends = all[at..]
            .iter()
            .find(|instruction| !gives_back(instruction));
        if !ends.is_some_and(|instruction| leaves(instruction, &own)) {
            return given;
        }
        for instruction in all[..at].iter().rev().take_while(|each| gives_back(each)) {
            given.frame = true;
            match instruction.mnemonic() {
                Mnemonic::Pop => given.registers.extend(general(instruction.op0_register())),
                Mnemonic::Leave => given.registers.push(Register::Bp),
                _ => {}
            }
        }
        given
    }
}

/// Whether an instruction gives back a register or a part of the frame, if it is one of the last.
fn gives_back(instruction: &Instruction) -> bool {
    let is_to_sp = instruction.op0_kind() == OpKind::Register
        && instruction.op0_register() == iced_x86::Register::RSP;
    match instruction.mnemonic() {
        Mnemonic::Pop => instruction.op0_kind() == OpKind::Register,
        Mnemonic::Leave => true,
        Mnemonic::Add | Mnemonic::Lea | Mnemonic::Mov => is_to_sp,
        _ => false,
    }
}

/// Whether an instruction leaves the function.
fn leaves(instruction: &Instruction, own: &std::ops::Range<u64>) -> bool {
    match instruction.flow_control() {
        FlowControl::Return | FlowControl::IndirectBranch => true,
        FlowControl::UnconditionalBranch => !own.contains(&instruction.near_branch_target()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is given back before each instruction.
    fn given(code: &[u8]) -> Vec<(Vec<Register>, bool)> {
        let all: Vec<Instruction> = Decoder::with_ip(64, code, 0x1000, DecoderOptions::NONE)
            .into_iter()
            .collect();
        let own = 0x1000..0x1000 + code.len() as u64;
        let of = |instruction: &Instruction| {
            let given = GivenBack::in_code(&all, own.clone(), instruction.ip());
            (given.registers, given.frame)
        };
        all.iter().map(of).collect()
    }

    #[test]
    fn what_is_popped_before_a_return_is_given_back() {
        let code = [
            0x48, 0x83, 0xc4, 0x20, // add rsp, 0x20
            0x5b, // pop rbx
            0x41, 0x5e, // pop r14
            0x5d, // pop rbp
            0xc3, // ret
        ];
        use Register::{Bp, Bx, R14};
        assert_eq!(
            given(&code),
            [
                (vec![], false),
                (vec![], true),
                (vec![Bx], true),
                (vec![R14, Bx], true),
                (vec![Bp, R14, Bx], true),
            ]
        );
    }

    #[test]
    fn a_jump_out_of_the_function_ends_it_too() {
        // pop rbx; jmp 0x2000
        let code = [0x5b, 0xe9, 0xfa, 0x0f, 0x00, 0x00];
        assert_eq!(given(&code), [(vec![], false), (vec![Register::Bx], true)]);
        // pop rbx; jmp rax
        let code = [0x5b, 0xff, 0xe0];
        assert_eq!(given(&code), [(vec![], false), (vec![Register::Bx], true)]);
    }

    #[test]
    fn what_is_popped_in_the_body_is_not_given_back() {
        // pop rbx; nop; ret
        let code = [0x5b, 0x90, 0xc3];
        assert_eq!(
            given(&code),
            [(vec![], false), (vec![], false), (vec![], false)]
        );
        // pop rbx; jmp to itself
        let code = [0x5b, 0xeb, 0xfe];
        assert_eq!(given(&code), [(vec![], false), (vec![], false)]);
    }
}
