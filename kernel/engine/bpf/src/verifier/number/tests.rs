//! Sets of numbers against their members.
//!
//! An operation on sets must hold the result for every pair of members. Members are drawn from
//! random sets and calculated with as a program would. Some bounds that programs rely on are
//! pinned, because the set of all numbers would be right, too, and of no use.

use proptest::{prelude::*, test_runner::RngSeed};

use super::*;
use crate::{Condition, sign_extend, verifier::branch};

const WIDTHS: [Width; 2] = [Width::W32, Width::W64];

/// Numbers around zero and the powers of two, where mistakes are, and others.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        (-20i64..20).prop_map(|number| number as u64),
        (0u32..64, -3i64..4, any::<bool>()).prop_map(|(shift, near, negative)| {
            let number = (1u64 << shift).wrapping_add(near as u64);
            if negative {
                number.wrapping_neg()
            } else {
                number
            }
        }),
        any::<u64>(),
        any::<u32>().prop_map(u64::from),
    ]
}

/// A set, and two of its members: told by bounds, by bits, or both.
fn set() -> impl Strategy<Value = (Number, [u64; 2])> {
    (number(), number(), 1u8..8, any::<bool>()).prop_map(|(a, b, told, only)| {
        let b = if only { a } else { b };
        let mut set = Number::ANY;
        if told & 1 != 0 {
            (set.least, set.most) = (a.min(b), a.max(b));
        }
        if told & 2 != 0 {
            let (a, b) = (a as i64, b as i64);
            (set.least_signed, set.most_signed) = (a.min(b), a.max(b));
        }
        if told & 4 != 0 {
            set.bits = Bits::new(a, a ^ b);
        }
        (set.settled().unwrap(), [a, b])
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3000,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(0x6e75_6d62_6572),
        ..ProptestConfig::default()
    })]

    /// Each result of members is a member of the result.
    #[test]
    fn operations_lose_no_member((a, a_members) in set(), (b, b_members) in set()) {
        for x in a_members {
            prop_assert!(a.contains(x), "{x:#x} in {a:?}");
            for y in b_members {
                for width in WIDTHS {
                    for op in AluOp::ALL {
                        let set = a.alu(width, op, b);
                        let member = op.apply(width, x, y);
                        prop_assert!(
                            set.contains(member),
                            "{x:#x} {op:?} {y:#x} is {member:#x} ({width:?}), not in {set:?}"
                        );
                    }
                }
            }
            for width in WIDTHS {
                let member = AluOp::Sub.apply(width, 0, x);
                prop_assert!(a.negated(width).contains(member), "-{x:#x} ({width:?})");
            }
            for bits in [8, 16, 32] {
                let member = sign_extend(Width::W64, bits, x).unwrap();
                let set = a.sign_extended(bits.into());
                prop_assert!(set.contains(member), "(s{bits}){x:#x} not in {set:?}");
            }
            for (first, bits) in [(0, 64), (0, 32), (8, 8), (16, 48), (40, 16)] {
                let member = x >> first & (u64::MAX >> (64 - bits));
                let set = a.field(first, bits);
                prop_assert!(set.contains(member), "{bits} bits of {x:#x} not in {set:?}");
            }
            for bits in [16, 32, 64] {
                for swap in [Swap::ToLittle, Swap::ToBig, Swap::Always] {
                    let set = a.swapped(swap, bits.into());
                    let member = swap.apply(bits, x).unwrap();
                    prop_assert!(set.contains(member), "{swap:?}{bits} {x:#x} not in {set:?}");
                }
            }
        }
    }

    /// Members for which a branch is taken are known after it, and the others on the other way.
    #[test]
    fn branches_lose_no_member((a, a_members) in set(), (b, b_members) in set()) {
        for (x, y) in a_members.into_iter().flat_map(|x| b_members.map(|y| (x, y))) {
            for width in WIDTHS {
                for condition in Condition::ALL {
                    let known = match condition.holds(width, x, y) {
                        true => branch::taken(width, condition, a, b),
                        false => branch::not_taken(width, condition, a, b),
                    };
                    prop_assert!(
                        known.is_some_and(|(a, b)| a.contains(x) && b.contains(y)),
                        "{x:#x} {condition:?} {y:#x} ({width:?}): {known:?} of {a:?} and {b:?}"
                    );
                }
            }
        }
    }

    /// A set that includes another has all its members. It includes itself and its narrower kin.
    #[test]
    fn inclusion_is_of_all_members((a, _) in set(), (b, b_members) in set()) {
        prop_assert!(a.includes(&a));
        if let Some(both) = a.meet(b) {
            prop_assert!(a.includes(&both) && b.includes(&both));
        }
        if a.includes(&b) {
            for member in b_members {
                prop_assert!(a.contains(member));
            }
        } else {
            prop_assert!(a.meet(b) != Some(b));
        }
        for member in b_members {
            prop_assert_eq!(a.contains(member), a.includes(&Number::constant(member)));
        }
        if let Some(both) = a.meet(b) {
            for member in b_members {
                prop_assert!(!a.contains(member) || both.contains(member));
            }
        }
    }

    /// One number in, one number out.
    #[test]
    fn operations_on_known_numbers_are_exact(x in number(), y in number()) {
        let (a, b) = (Number::constant(x), Number::constant(y));
        for width in WIDTHS {
            for op in AluOp::ALL {
                let expected = op.apply(width, x, y);
                prop_assert_eq!(
                    a.alu(width, op, b).known(), Some(expected), "{:?} {:?}", width, op
                );
            }
            for condition in Condition::ALL {
                let taken = branch::taken(width, condition, a, b).is_some();
                let not_taken = branch::not_taken(width, condition, a, b).is_some();
                let expected = condition.holds(width, x, y);
                prop_assert_eq!((taken, not_taken), (expected, !expected), "{:?}", condition);
            }
        }
    }
}

/// A set that held everything would lose no member either: what programs rely on is kept.
#[test]
fn operations_keep_the_bounds_that_programs_rely_on() {
    let byte = Number::of_bits(8);
    let to = |least, most| Number::between(least, most);
    let constant = Number::constant;
    let w64 = |a: Number, op, b| a.alu(Width::W64, op, b);
    let w32 = |a: Number, op, b| a.alu(Width::W32, op, b);
    let cases = [
        // Masks.
        (w64(Number::ANY, AluOp::And, constant(63)), to(0, 63)),
        (w32(Number::ANY, AluOp::And, constant(63)), to(0, 63)),
        // Scaled indexes.
        (w64(byte, AluOp::Add, constant(5)), to(5, 260)),
        (w64(to(5, 9), AluOp::Sub, to(1, 2)), to(3, 8)),
        (w64(to(2, 9), AluOp::Mul, to(3, 4)), to(6, 36)),
        (w64(to(20, 99), AluOp::Div, to(2, 10)), to(2, 49)),
        (w64(Number::ANY, AluOp::Mod, constant(10)), to(0, 9)),
        (w64(Number::ANY, AluOp::ShiftRight, constant(58)), to(0, 63)),
        (w64(to(1, 8), AluOp::ShiftLeft, to(0, 2)), to(1, 32)),
        (w64(to(4, 7), AluOp::Or, to(16, 19)), to(20, 23)),
        (w64(to(4, 7), AluOp::Xor, constant(1)), to(4, 7)),
        // Halves.
        (
            w32(Number::ANY, AluOp::Mov, Number::ANY),
            Number::of_bits(32),
        ),
        (w32(to(10, 20), AluOp::Sub, to(1, 2)), to(8, 19)),
        (w32(Number::ANY, AluOp::Div, constant(1 << 31)), to(0, 1)),
        // Signs.
        (
            w64(Number::ANY, AluOp::SignedMod, constant(10)),
            Number::between_signed(-9, 9),
        ),
        (
            w64(Number::ANY, AluOp::ShiftRightSigned, constant(60)),
            Number::between_signed(-8, 7),
        ),
        (
            w64(to(0, 9), AluOp::SignedDiv, constant(-1i64 as u64)),
            Number::between_signed(-9, 9),
        ),
        (
            Number::ANY.sign_extended(8),
            Number::between_signed(-128, 127),
        ),
        // As a comparison has left it, stored and loaded.
        (to(5, u64::MAX).field(0, 64), to(5, u64::MAX)),
        (Number::ANY.swapped(Swap::ToBig, 16), Number::of_bits(16)),
    ];
    for (number, (found, expected)) in cases.into_iter().enumerate() {
        // Bits may tell more than the bounds do.
        assert_eq!(found.and_also(expected), found, "case {number}");
        assert_eq!(
            (
                found.least,
                found.most,
                found.least_signed,
                found.most_signed
            ),
            (
                expected.least,
                expected.most,
                expected.least_signed,
                expected.most_signed
            ),
            "case {number}"
        );
    }
    let scaled = w64(byte, AluOp::Mul, constant(24));
    assert!(scaled.is_multiple_of(8) && !scaled.is_multiple_of(16));
    assert_eq!(scaled.most(), 255 * 24);
    let summed = w64(scaled, AluOp::Add, constant(16));
    assert!(summed.is_multiple_of(8));
}

#[test]
fn branches_keep_the_bounds_that_programs_rely_on() {
    let any = Number::ANY;
    let constant = Number::constant;
    let below = branch::taken(Width::W64, Condition::Below, any, constant(64));
    assert_eq!(below, Some((Number::between(0, 63), constant(64))));
    let above = branch::not_taken(Width::W64, Condition::Above, any, constant(64));
    assert_eq!(above.unwrap().0, Number::between(0, 64));
    let half = branch::taken(
        Width::W32,
        Condition::Below,
        Number::of_bits(32),
        constant(9),
    );
    assert_eq!(half.unwrap().0, Number::between(0, 8));
    let less = branch::taken(Width::W64, Condition::Less, any, constant(4))
        .unwrap()
        .0;
    assert_eq!((less.least(), less.most_signed()), (0, 3));
    let positive = branch::taken(Width::W64, Condition::GreaterOrEqual, less, constant(0));
    assert_eq!(positive.unwrap().0, Number::between(0, 3));
    let signed_half = branch::taken(
        Width::W32,
        Condition::Greater,
        any.sign_extended(32),
        constant(-3i64 as u64),
    );
    assert_eq!(
        signed_half.unwrap().0,
        Number::between_signed(-2, i32::MAX.into())
    );
    let bit = branch::taken(Width::W64, Condition::AnyBit, any, constant(8))
        .unwrap()
        .0;
    assert_eq!(
        branch::not_taken(Width::W64, Condition::AnyBit, bit, constant(8)),
        None
    );
    let no_bit = branch::not_taken(Width::W64, Condition::AnyBit, any, constant(7))
        .unwrap()
        .0;
    assert!(no_bit.is_multiple_of(8));
    let nonzero = branch::taken(
        Width::W64,
        Condition::NotEqual,
        Number::of_bits(8),
        constant(0),
    );
    assert_eq!(nonzero.unwrap().0, Number::between(1, 255));
    // Two unknown numbers that are compared bound each other.
    let pair = branch::taken(Width::W64, Condition::Below, any, Number::between(0, 10));
    assert_eq!(pair, Some((Number::between(0, 9), Number::between(1, 10))));
    assert_eq!(
        branch::taken(
            Width::W64,
            Condition::Above,
            Number::of_bits(8),
            constant(255)
        ),
        None
    );
}

#[test]
fn a_set_is_told_in_few_words() {
    let cases = [
        (Number::constant(12), "12"),
        (Number::constant(-8i64 as u64), "-8"),
        (
            Number::constant(0xffff_8000_0000_0000),
            "0xffff800000000000",
        ),
        (Number::of_bits(8), "0 to 255"),
        (Number::of_signed_bits(8), "-128 to 127"),
        (Number::ANY, "any number"),
        (Number::between(5, u64::MAX), "5 or more"),
        (Number::between(0, 1 << 40), "0x0 to 0x10000000000"),
    ];
    for (set, text) in cases {
        assert_eq!(set.to_string(), text);
    }
}
