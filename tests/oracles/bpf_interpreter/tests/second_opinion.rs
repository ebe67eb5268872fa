//! Random programs of arithmetic, jumps, loads and stores, in our interpreter and in rbpf's.
//!
//! rbpf does not have signed division, sign extension and atomic operations. The programs avoid the
//! places where it departs from RFC 9669: it compares 64 bits with a negative constant as if that
//! were 32 bits, it leaves the upper half as it was when a remainder of 32 bits is by zero, and it
//! cannot negate the least number of 64 bits.

use bpf::{
    AluOp, Condition, Insn, Operand, Program, ProgramKind, Reg, Reg::*, Size, Swap, Target, Width,
    wire::encode,
};
use bpf_interpreter::{TestMachine, run_on_memory};
use proptest::prelude::*;

/// Bytes of the memory that both get.
const MEMORY: usize = 64;
/// Registers that are calculated with. `r9` points to the memory.
const REGS: [Reg; 9] = [R0, R1, R2, R3, R4, R5, R6, R7, R8];

fn reg() -> impl Strategy<Value = Reg> {
    proptest::sample::select(&REGS[..])
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (any::<u32>(), 0..64_u32).prop_map(|(number, shift)| u64::from(number) << shift),
        (-3..4_i64, 0..64_u32).prop_map(|(near, bit)| (1_u64 << bit).wrapping_add_signed(near)),
    ]
}

fn imm() -> impl Strategy<Value = i32> {
    prop_oneof![any::<i32>(), -70..70_i32, Just(i32::MIN), Just(i32::MAX)]
}

fn operand(imm: impl Strategy<Value = i32> + 'static) -> impl Strategy<Value = Operand> {
    prop_oneof![reg().prop_map(Operand::Reg), imm.prop_map(Operand::Imm),]
}

fn alu() -> impl Strategy<Value = Vec<Insn>> {
    let op = proptest::sample::select(
        &[
            AluOp::Mov,
            AluOp::Add,
            AluOp::Sub,
            AluOp::Mul,
            AluOp::Div,
            AluOp::Mod,
            AluOp::And,
            AluOp::Or,
            AluOp::Xor,
            AluOp::ShiftLeft,
            AluOp::ShiftRight,
            AluOp::ShiftRightSigned,
        ][..],
    );
    (any::<bool>(), op, reg(), operand(imm())).prop_map(|(is_half, op, dst, operand)| {
        let width = if is_half { Width::W32 } else { Width::W64 };
        let mut insns = vec![Insn::Alu {
            width,
            op,
            dst,
            operand,
        }];
        if (width, op) == (Width::W32, AluOp::Mod) {
            // Clears the upper half in both.
            insns.push(Insn::Alu {
                width,
                op: AluOp::Mov,
                dst,
                operand: dst.into(),
            });
        }
        insns
    })
}

fn branch() -> impl Strategy<Value = (Width, Condition, Operand)> {
    let unsigned = proptest::sample::select(
        &[
            Condition::Equal,
            Condition::NotEqual,
            Condition::Above,
            Condition::AboveOrEqual,
            Condition::Below,
            Condition::BelowOrEqual,
        ][..],
    );
    let any_condition = proptest::sample::select(&Condition::ALL[..]);
    let signed = proptest::sample::select(
        &[
            Condition::AnyBit,
            Condition::Greater,
            Condition::GreaterOrEqual,
            Condition::Less,
            Condition::LessOrEqual,
        ][..],
    );
    prop_oneof![
        (any_condition, operand(imm()))
            .prop_map(|(condition, operand)| { (Width::W32, condition, operand) }),
        (signed, operand(imm()))
            .prop_map(|(condition, operand)| { (Width::W64, condition, operand) }),
        (unsigned, operand(0..i32::MAX))
            .prop_map(|(condition, operand)| { (Width::W64, condition, operand) }),
    ]
}

/// A few instructions; a branch counts, in its target, how many instructions it leaves out.
fn insns() -> impl Strategy<Value = Vec<Insn>> {
    let place = prop_oneof![
        Just(Size::B1),
        Just(Size::B2),
        Just(Size::B4),
        Just(Size::B8)
    ]
    .prop_flat_map(|size| (Just(size), 0..=(MEMORY as i16 - size.bytes() as i16)));
    prop_oneof![
        8 => alu(),
        1 => reg().prop_map(|dst| vec![Insn::Negate { width: Width::W32, dst }]),
        1 => (any::<bool>(), prop_oneof![Just(16), Just(32), Just(64)], reg()).prop_map(
            |(to_big, bits, dst)| {
                let swap = if to_big { Swap::ToBig } else { Swap::ToLittle };
                vec![Insn::Swap { swap, bits, dst }]
            }
        ),
        1 => (reg(), number()).prop_map(|(dst, value)| vec![Insn::LoadImm { dst, value }]),
        2 => (reg(), place.clone()).prop_map(|(dst, (size, offset))| vec![Insn::Load {
            dst,
            base: R9,
            offset,
            size,
            signed: false,
        }]),
        2 => (operand(imm()), place).prop_map(|(value, (size, offset))| vec![Insn::Store {
            base: R9,
            offset,
            size,
            value,
        }]),
        3 => (branch(), reg(), 0..6_u16).prop_map(|((width, condition, operand), dst, skip)| {
            vec![Insn::Branch { width, condition, dst, operand, target: Target(skip) }]
        }),
    ]
}

/// Sets all registers, executes the instructions, and puts something of each register into `r0`.
fn program(numbers: [u64; 9], body: Vec<Insn>) -> Program {
    let alu = |op, dst, operand: Operand| Insn::Alu {
        width: Width::W64,
        op,
        dst,
        operand,
    };
    let mut insns = vec![alu(AluOp::Mov, R9, R1.into())];
    for (dst, value) in REGS.into_iter().zip(numbers) {
        insns.push(Insn::LoadImm { dst, value });
    }
    let end = insns.len() + body.len();
    for insn in body {
        let at = insns.len();
        insns.push(match insn {
            Insn::Branch {
                width,
                condition,
                dst,
                operand,
                target,
            } => Insn::Branch {
                width,
                condition,
                dst,
                operand,
                target: Target((at + 1 + usize::from(target.0)).min(end) as u16),
            },
            other => other,
        });
    }
    for reg in &REGS[1..] {
        insns.push(alu(AluOp::Mul, R0, 31.into()));
        insns.push(alu(AluOp::Add, R0, (*reg).into()));
    }
    insns.push(Insn::Exit);
    Program {
        kind: ProgramKind::Probe,
        insns,
        maps: vec![],
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn another_interpreter_has_the_same_results(
        numbers in proptest::array::uniform9(number()),
        body in proptest::collection::vec(insns(), 1..40),
        memory in proptest::array::uniform32(any::<u16>()),
    ) {
        let program = program(numbers, body.concat());
        let mut ours: Vec<u8> = memory.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut theirs = ours.clone();
        let mut machine = TestMachine::new(&program);
        let result = run_on_memory(&program, &mut ours, &mut machine, 1_000).unwrap();

        let wire = encode(&program.insns).unwrap();
        let vm = rbpf::EbpfVmRaw::new(Some(&wire)).unwrap();
        let other = vm.execute_program(&mut theirs);
        prop_assert_eq!(result, other.unwrap());
        prop_assert_eq!(ours, theirs);
    }
}
