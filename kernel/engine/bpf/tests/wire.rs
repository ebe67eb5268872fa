//! The wire form: what is encoded is decoded again, and each refusal names its slot.
//!
//! Both directions are tried with random instructions and random slots. Single instructions are
//! pinned to the bytes of RFC 9669, because two mistakes of the same kind would cancel out.

use bpf::{
    AluOp, AtomicOp, Condition, Helper, Insn, MOST_INSNS, MapIndex, Operand, Reg, Size, Swap,
    Target, Width,
    wire::{SLOT_BYTES, WireError, WireReason, decode, encode},
};
use proptest::prelude::*;

fn reg() -> impl Strategy<Value = Reg> {
    proptest::sample::select(&Reg::ALL[..])
}

fn operand() -> impl Strategy<Value = Operand> {
    prop_oneof![
        reg().prop_map(Operand::Reg),
        any::<i32>().prop_map(Operand::Imm),
    ]
}

fn width() -> impl Strategy<Value = Width> {
    prop_oneof![Just(Width::W32), Just(Width::W64)]
}

fn size() -> impl Strategy<Value = Size> {
    prop_oneof![
        Just(Size::B1),
        Just(Size::B2),
        Just(Size::B4),
        Just(Size::B8)
    ]
}

fn atomic() -> impl Strategy<Value = AtomicOp> {
    any::<bool>().prop_flat_map(|fetch| {
        prop_oneof![
            Just(AtomicOp::Add { fetch }),
            Just(AtomicOp::Or { fetch }),
            Just(AtomicOp::And { fetch }),
            Just(AtomicOp::Xor { fetch }),
            Just(AtomicOp::Exchange),
            Just(AtomicOp::CompareExchange),
        ]
    })
}

/// Any instruction of a program of `count`.
fn insn(count: u16) -> impl Strategy<Value = Insn> {
    let target = (0..count).prop_map(Target);
    prop_oneof![
        (
            width(),
            proptest::sample::select(&AluOp::ALL),
            reg(),
            operand()
        )
            .prop_map(|(width, op, dst, operand)| Insn::Alu {
                width,
                op,
                dst,
                operand
            }),
        (width(), reg()).prop_map(|(width, dst)| Insn::Negate { width, dst }),
        (
            proptest::sample::select(
                &[
                    (Width::W32, 8),
                    (Width::W32, 16),
                    (Width::W64, 8),
                    (Width::W64, 16),
                    (Width::W64, 32),
                ][..]
            ),
            reg(),
            reg()
        )
            .prop_map(|((width, bits), dst, src)| Insn::SignExtend {
                width,
                bits,
                dst,
                src
            }),
        (
            prop_oneof![Just(Swap::ToLittle), Just(Swap::ToBig), Just(Swap::Always)],
            prop_oneof![Just(16), Just(32), Just(64)],
            reg()
        )
            .prop_map(|(swap, bits, dst)| Insn::Swap { swap, bits, dst }),
        (reg(), any::<u64>()).prop_map(|(dst, value)| Insn::LoadImm { dst, value }),
        (reg(), any::<u16>()).prop_map(|(dst, map)| Insn::LoadMap {
            dst,
            map: MapIndex(map)
        }),
        (reg(), reg(), any::<i16>(), size(), any::<bool>()).prop_map(
            |(dst, base, offset, size, signed)| Insn::Load {
                dst,
                base,
                offset,
                size,
                signed: signed && size != Size::B8,
            }
        ),
        (reg(), any::<i16>(), size(), operand()).prop_map(|(base, offset, size, value)| {
            Insn::Store {
                base,
                offset,
                size,
                value,
            }
        }),
        (
            atomic(),
            reg(),
            any::<i16>(),
            prop_oneof![Just(Size::B4), Just(Size::B8)],
            reg()
        )
            .prop_map(|(op, base, offset, size, reg)| Insn::Atomic {
                op,
                base,
                offset,
                size,
                reg
            }),
        target.clone().prop_map(|target| Insn::Jump { target }),
        (
            width(),
            proptest::sample::select(&Condition::ALL),
            reg(),
            operand(),
            target
        )
            .prop_map(|(width, condition, dst, operand, target)| Insn::Branch {
                width,
                condition,
                dst,
                operand,
                target
            }),
        proptest::sample::select(&Helper::ALL[..]).prop_map(|helper| Insn::Call { helper }),
        Just(Insn::Exit),
    ]
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded_again(
        insns in (1_u16..40).prop_flat_map(|count| {
            proptest::collection::vec(insn(count), usize::from(count))
        })
    ) {
        let bytes = encode(&insns).unwrap();
        prop_assert_eq!(decode(&bytes), Ok(insns));
    }

    /// So nothing is misread: bytes of another meaning would be encoded differently.
    #[test]
    fn what_is_decoded_is_encoded_again(
        slots in proptest::collection::vec(any_slot(), 1..4)
    ) {
        let bytes = slots.concat();
        if let Ok(insns) = decode(&bytes) {
            let again = encode(&insns).unwrap();
            // The long form of a jump has the short one's meaning.
            let short = |slot: &[u8]| match slot[0] {
                0x06 => [&[0x05, 0], &slot[4..6], &[0; 4]].concat(),
                _ => slot.to_vec(),
            };
            let expected: Vec<u8> = bytes.chunks(SLOT_BYTES).flat_map(short).collect();
            prop_assert_eq!(again, expected);
        }
    }
}

/// A slot whose fields are often zero or small, so that a good share of them means something.
fn any_slot() -> impl Strategy<Value = Vec<u8>> {
    let byte = || prop_oneof![4 => Just(0), 2 => 0_u8..0x42, 1 => any::<u8>()];
    let rare = || prop_oneof![15 => Just(0), 1 => any::<u8>()];
    (
        any::<u8>(),
        byte(),
        byte(),
        rare(),
        byte(),
        rare(),
        rare(),
        rare(),
    )
        .prop_map(|(a, b, c, d, e, f, g, h)| vec![a, b, c, d, e, f, g, h])
}

/// The result of decoding one slot. An exit follows the slot.
fn one(slot: [u8; SLOT_BYTES]) -> Result<Insn, WireReason> {
    let mut bytes = slot.to_vec();
    bytes.extend([0x95, 0, 0, 0, 0, 0, 0, 0]);
    match decode(&bytes) {
        Ok(insns) => Ok(insns[0]),
        Err(WireError { at, reason }) => {
            assert_eq!(at, 0, "{reason}");
            assert!(!reason.to_string().is_empty());
            Err(reason)
        }
    }
}

/// Bytes as `llvm-mc` and the RFC give them.
#[test]
fn instructions_have_the_bytes_of_the_rfc() {
    let alu = |width, op, dst, operand: Operand| Insn::Alu {
        width,
        op,
        dst,
        operand,
    };
    let (w32, w64) = (Width::W32, Width::W64);
    use Reg::*;
    for (bytes, insn) in [
        (
            [0xb7, 1, 0, 0, 0xfe, 255, 255, 255],
            alu(w64, AluOp::Mov, R1, (-2).into()),
        ),
        (
            [0xbc, 0x21, 0, 0, 0, 0, 0, 0],
            alu(w32, AluOp::Mov, R1, R2.into()),
        ),
        (
            [0x0f, 0xa9, 0, 0, 0, 0, 0, 0],
            alu(w64, AluOp::Add, R9, R10.into()),
        ),
        (
            [0x37, 3, 1, 0, 5, 0, 0, 0],
            alu(w64, AluOp::SignedDiv, R3, 5.into()),
        ),
        (
            [0x34, 3, 0, 0, 5, 0, 0, 0],
            alu(w32, AluOp::Div, R3, 5.into()),
        ),
        (
            [0x9f, 0x43, 1, 0, 0, 0, 0, 0],
            alu(w64, AluOp::SignedMod, R3, R4.into()),
        ),
        (
            [0xc7, 3, 0, 0, 5, 0, 0, 0],
            alu(w64, AluOp::ShiftRightSigned, R3, 5.into()),
        ),
        (
            [0x87, 3, 0, 0, 0, 0, 0, 0],
            Insn::Negate {
                width: w64,
                dst: R3,
            },
        ),
        (
            [0xbf, 0x21, 32, 0, 0, 0, 0, 0],
            Insn::SignExtend {
                width: w64,
                bits: 32,
                dst: R1,
                src: R2,
            },
        ),
        (
            [0xdc, 3, 0, 0, 16, 0, 0, 0],
            Insn::Swap {
                swap: Swap::ToBig,
                bits: 16,
                dst: R3,
            },
        ),
        (
            [0xd4, 3, 0, 0, 64, 0, 0, 0],
            Insn::Swap {
                swap: Swap::ToLittle,
                bits: 64,
                dst: R3,
            },
        ),
        (
            [0xd7, 3, 0, 0, 32, 0, 0, 0],
            Insn::Swap {
                swap: Swap::Always,
                bits: 32,
                dst: R3,
            },
        ),
        (
            [0x79, 0x12, 8, 0, 0, 0, 0, 0],
            Insn::Load {
                dst: R2,
                base: R1,
                offset: 8,
                size: Size::B8,
                signed: false,
            },
        ),
        (
            [0x81, 0x12, 0xff, 255, 0, 0, 0, 0],
            Insn::Load {
                dst: R2,
                base: R1,
                offset: -1,
                size: Size::B4,
                signed: true,
            },
        ),
        (
            [0x6a, 10, 0xfe, 255, 7, 0, 0, 0],
            Insn::Store {
                base: R10,
                offset: -2,
                size: Size::B2,
                value: 7.into(),
            },
        ),
        (
            [0x73, 0x3a, 0xff, 255, 0, 0, 0, 0],
            Insn::Store {
                base: R10,
                offset: -1,
                size: Size::B1,
                value: R3.into(),
            },
        ),
        (
            [0xdb, 0x21, 0, 0, 1, 0, 0, 0],
            Insn::Atomic {
                op: AtomicOp::Add { fetch: true },
                base: R1,
                offset: 0,
                size: Size::B8,
                reg: R2,
            },
        ),
        (
            [0xc3, 0x21, 0, 0, 0xf1, 0, 0, 0],
            Insn::Atomic {
                op: AtomicOp::CompareExchange,
                base: R1,
                offset: 0,
                size: Size::B4,
                reg: R2,
            },
        ),
        (
            [0xa6, 1, 0, 0, 7, 0, 0, 0],
            Insn::Branch {
                width: w32,
                condition: Condition::Below,
                dst: R1,
                operand: 7.into(),
                target: Target(1),
            },
        ),
        (
            [0x6d, 0x21, 0xff, 255, 0, 0, 0, 0],
            Insn::Branch {
                width: w64,
                condition: Condition::Greater,
                dst: R1,
                operand: R2.into(),
                target: Target(0),
            },
        ),
        (
            [0x05, 0, 0, 0, 0, 0, 0, 0],
            Insn::Jump { target: Target(1) },
        ),
        (
            [0x85, 0, 0, 0, 131, 0, 0, 0],
            Insn::Call {
                helper: Helper::RingReserve,
            },
        ),
        ([0x95, 0, 0, 0, 0, 0, 0, 0], Insn::Exit),
    ] {
        assert_eq!(one(bytes), Ok(insn));
        assert_eq!(encode(&[insn, Insn::Exit]).unwrap()[..8], bytes, "{insn:?}");
    }
    assert_eq!(
        one([0x06, 0, 0, 0, 255, 255, 255, 255]),
        Ok(Insn::Jump { target: Target(0) })
    );
}

#[test]
fn constants_take_two_slots_and_jumps_count_them() {
    let insns = [
        Insn::Jump { target: Target(3) },
        Insn::LoadImm {
            dst: Reg::R0,
            value: 0x1122_3344_8566_7788,
        },
        Insn::LoadMap {
            dst: Reg::R1,
            map: MapIndex(3),
        },
        Insn::Exit,
        Insn::Jump { target: Target(1) },
    ];
    let bytes = encode(&insns).unwrap();
    assert_eq!(
        bytes,
        [
            [0x05, 0, 4, 0, 0, 0, 0, 0],
            [0x18, 0, 0, 0, 0x88, 0x77, 0x66, 0x85],
            [0, 0, 0, 0, 0x44, 0x33, 0x22, 0x11],
            [0x18, 0x11, 0, 0, 3, 0, 0, 0],
            [0, 0, 0, 0, 0, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
            [0x05, 0, 0xfa, 255, 0, 0, 0, 0],
        ]
        .concat()
    );
    assert_eq!(decode(&bytes).unwrap(), insns);
}

#[test]
fn slots_that_mean_nothing_are_refused() {
    use WireReason as R;
    let field = |name, found| R::Field { name, found };
    for (slot, reason) in [
        // Old loads of packets, calls by register and of functions.
        ([0x20, 0, 0, 0, 0, 0, 0, 0], R::Opcode(0x20)),
        ([0x50, 0, 0, 0, 0, 0, 0, 0], R::Opcode(0x50)),
        ([0x8d, 0, 0, 0, 1, 0, 0, 0], R::Opcode(0x8d)),
        ([0x85, 0x10, 0, 0, 1, 0, 0, 0], R::LocalCall),
        ([0x85, 0x20, 0, 0, 1, 0, 0, 0], field("src", 2)),
        ([0x85, 0, 0, 0, 4, 0, 0, 0], R::Helper(4)),
        ([0x85, 0, 0, 0, 255, 255, 255, 255], R::Helper(-1)),
        // Codes and modes that do not exist.
        ([0x86, 0, 0, 0, 1, 0, 0, 0], R::Opcode(0x86)),
        ([0x96, 0, 0, 0, 0, 0, 0, 0], R::Opcode(0x96)),
        ([0xe7, 0, 0, 0, 0, 0, 0, 0], R::Opcode(0xe7)),
        ([0xe5, 0, 0, 0, 0, 0, 0, 0], R::Opcode(0xe5)),
        ([0x99, 0, 0, 0, 0, 0, 0, 0], R::Opcode(0x99)),
        ([0xcb, 0, 0, 0, 0, 0, 0, 0], R::Opcode(0xcb)),
        ([0xc2, 0, 0, 0, 0, 0, 0, 0], R::Opcode(0xc2)),
        ([0xdf, 0, 0, 0, 16, 0, 0, 0], R::Opcode(0xdf)),
        ([0x8f, 0, 0, 0, 0, 0, 0, 0], R::Opcode(0x8f)),
        // Registers.
        ([0xb7, 11, 0, 0, 0, 0, 0, 0], R::Register(11)),
        ([0xbf, 0xb1, 0, 0, 0, 0, 0, 0], R::Register(11)),
        ([0x79, 0xf1, 0, 0, 0, 0, 0, 0], R::Register(15)),
        // Fields.
        ([0xb7, 0x10, 0, 0, 0, 0, 0, 0], field("src", 1)),
        ([0xbf, 0x10, 0, 0, 5, 0, 0, 0], field("imm", 5)),
        ([0xb7, 0, 8, 0, 0, 0, 0, 0], field("offset", 8)),
        ([0xbc, 0, 32, 0, 0, 0, 0, 0], field("offset", 32)),
        ([0x07, 0, 1, 0, 0, 0, 0, 0], field("offset", 1)),
        ([0x37, 0, 2, 0, 0, 0, 0, 0], field("offset", 2)),
        ([0x87, 0, 0, 0, 1, 0, 0, 0], field("imm", 1)),
        ([0x87, 0x10, 0, 0, 0, 0, 0, 0], field("src", 1)),
        ([0xd4, 0, 0, 0, 8, 0, 0, 0], field("imm", 8)),
        ([0xd4, 0, 1, 0, 16, 0, 0, 0], field("offset", 1)),
        ([0xdb, 0, 0, 0, 0x10, 0, 0, 0], field("imm", 0x10)),
        ([0xdb, 0, 0, 0, 0xe0, 0, 0, 0], field("imm", 0xe0)),
        ([0x61, 0, 0, 0, 1, 0, 0, 0], field("imm", 1)),
        ([0x62, 0x10, 0, 0, 1, 0, 0, 0], field("src", 1)),
        ([0x63, 0, 0, 0, 1, 0, 0, 0], field("imm", 1)),
        ([0x95, 1, 0, 0, 0, 0, 0, 0], field("dst", 1)),
        ([0x95, 0, 0, 0, 1, 0, 0, 0], field("imm", 1)),
        ([0x05, 0, 0, 0, 1, 0, 0, 0], field("imm", 1)),
        ([0x06, 0, 1, 0, 0, 0, 0, 0], field("offset", 1)),
        ([0x85, 0, 1, 0, 1, 0, 0, 0], field("offset", 1)),
        ([0x18, 0x20, 0, 0, 1, 0, 0, 0], R::HalfAConstant),
        ([0x18, 0, 1, 0, 1, 0, 0, 0], field("offset", 1)),
        // Jumps outside the program.
        ([0x05, 0, 1, 0, 0, 0, 0, 0], R::Jump { to: 2 }),
        ([0x15, 0, 0xfe, 255, 0, 0, 0, 0], R::Jump { to: -1 }),
        (
            [0x06, 0, 0, 0, 255, 255, 255, 0x7f],
            R::Jump { to: 0x8000_0000 },
        ),
    ] {
        assert_eq!(one(slot), Err(reason), "{slot:02x?}");
    }
}

#[test]
fn the_second_slot_of_a_constant_is_needed_and_no_target() {
    let at = |slots: &[[u8; 8]]| {
        let error = decode(&slots.concat()).unwrap_err();
        (error.at, error.reason)
    };
    let lddw = [0x18, 1, 0, 0, 1, 0, 0, 0];
    let map = [0x18, 0x11, 0, 0, 1, 0, 0, 0];
    let null = [0; 8];
    let exit = [0x95, 0, 0, 0, 0, 0, 0, 0];
    let half = WireReason::HalfAConstant;
    assert_eq!(at(&[exit, lddw]), (1, half));
    assert_eq!(at(&[exit, lddw, exit]), (1, half));
    assert_eq!(
        at(&[lddw, [0, 0, 0, 0, 9, 0, 0, 0], null]),
        (2, WireReason::Opcode(0))
    );
    let upper = [0, 0, 0, 0, 1, 0, 0, 0];
    let field = |name, found| WireReason::Field { name, found };
    assert_eq!(at(&[exit, map, upper]), (1, field("imm", 1)));
    let large = [0x18, 0x11, 0, 0, 0, 0, 1, 0];
    assert_eq!(at(&[large, null]), (0, field("imm", 65536)));
    assert_eq!(
        at(&[[0x18, 0x21, 0, 0, 0, 0, 0, 0], null]),
        (0, field("src", 2))
    );
    let into = [0x05, 0, 1, 0, 0, 0, 0, 0];
    assert_eq!(at(&[into, lddw, null]), (0, WireReason::Jump { to: 2 }));
    let error = decode(&[0x95, 0, 0, 0, 0, 0, 0, 0, 1, 2]).unwrap_err();
    assert_eq!(
        (error.at, error.reason),
        (1, WireReason::HalfASlot { bytes: 2 })
    );
}

#[test]
fn programs_have_a_greatest_length() {
    let exits = |count: usize| [0x95, 0, 0, 0, 0, 0, 0, 0].repeat(count);
    let too_long = |at| {
        Err(WireError {
            at,
            reason: WireReason::TooLong,
        })
    };
    assert_eq!(
        decode(&exits(MOST_INSNS)).map(|insns| insns.len()),
        Ok(MOST_INSNS)
    );
    assert_eq!(decode(&exits(MOST_INSNS + 1)), too_long(MOST_INSNS));
    assert_eq!(decode(&exits(MOST_INSNS * 2 + 1)), too_long(MOST_INSNS * 2));
    let constant = Insn::LoadImm {
        dst: Reg::R0,
        value: 1,
    };
    let mut constants = encode(&vec![constant; MOST_INSNS]).unwrap();
    assert_eq!(decode(&constants).map(|insns| insns.len()), Ok(MOST_INSNS));
    constants.truncate(constants.len() - 16);
    constants.extend(exits(2));
    assert_eq!(decode(&constants), too_long(MOST_INSNS * 2 - 1));
    assert_eq!(
        encode(&vec![Insn::Exit; MOST_INSNS + 1]).map(|_| Vec::new()),
        too_long(MOST_INSNS)
    );
}

#[test]
fn what_has_no_opcode_is_not_encoded() {
    let one = |insn| {
        let error = encode(&[Insn::Exit, insn]).unwrap_err();
        assert_eq!(error.at, 1);
        error.reason
    };
    let far = Target(2);
    assert_eq!(one(Insn::Jump { target: far }), WireReason::Target(far));
    for insn in [
        Insn::SignExtend {
            width: Width::W32,
            bits: 32,
            dst: Reg::R1,
            src: Reg::R1,
        },
        Insn::SignExtend {
            width: Width::W64,
            bits: 7,
            dst: Reg::R1,
            src: Reg::R1,
        },
        Insn::Swap {
            swap: Swap::Always,
            bits: 8,
            dst: Reg::R1,
        },
        Insn::Load {
            dst: Reg::R1,
            base: Reg::R1,
            offset: 0,
            size: Size::B8,
            signed: true,
        },
        Insn::Atomic {
            op: AtomicOp::Exchange,
            base: Reg::R1,
            offset: 0,
            size: Size::B2,
            reg: Reg::R1,
        },
    ] {
        assert_eq!(one(insn), WireReason::Malformed, "{insn:?}");
    }
}
