//! Arithmetic of pointers, as in C: a step is as wide as what the pointer leads to.
//!
//! An address of nothing in particular, such as that of `kaddr`, is a plain number of bytes.

use alloc::format;

use bpf::AluOp;
use trace_interface::symbols::TypeId;
use trace_language::{
    Diagnostic,
    tree::{Binary, Span},
};

use crate::{
    Lowered,
    number::{Counted, Kind, Number},
    types::Types,
};

/// What a pointer leads to. None: it is a number, or an address of nothing in particular.
fn target(kind: &Kind) -> Option<TypeId> {
    match kind {
        Kind::Pointer { to, .. } => *to,
        _ => None,
    }
}

/// The bytes of a step of a number of this kind. What has no bytes is as wide as a byte.
pub(crate) fn step_of(types: &Types<'_>, kind: &Kind) -> u64 {
    target(kind).map_or(1, |to| types.size(to).max(1))
}

/// So many steps of a pointer of this kind, in bytes.
pub(crate) fn steps(types: &Types<'_>, kind: &Kind, count: Number) -> Number {
    Number::alu(AluOp::Mul, count, Number::Constant(step_of(types, kind)))
}

/// An operation of which one side is a pointer at least. None: neither is, or it is a
/// comparison.
pub(super) fn of_pointers(
    types: &Types<'_>,
    operation: Binary,
    left: &Counted,
    right: &Counted,
    span: Span,
) -> Lowered<Option<Counted>> {
    if operation.is_comparison() {
        return Ok(None);
    }
    let present = left.present.clone().and(right.present.clone());
    let moved = |op, from: &Counted, by: &Counted| {
        let by = steps(types, &from.kind, by.number.clone());
        Ok(Some(Counted {
            number: Number::alu(op, from.number.clone(), by),
            kind: from.kind.clone(),
            present: present.clone(),
        }))
    };
    match (operation, target(&left.kind), target(&right.kind)) {
        (_, None, None) => Ok(None),
        (Binary::Add, Some(_), None) => moved(AluOp::Add, left, right),
        (Binary::Add, None, Some(_)) => moved(AluOp::Add, right, left),
        (Binary::Subtract, Some(_), None) => moved(AluOp::Sub, left, right),
        (Binary::Subtract, Some(a), Some(b)) if a == b => {
            let (from, to) = (left.number.clone(), right.number.clone());
            let bytes = Number::alu(AluOp::Sub, from, to);
            let step = Number::Constant(step_of(types, &left.kind));
            Ok(Some(Counted {
                number: Number::alu(AluOp::SignedDiv, bytes, step),
                kind: Kind::SIGNED,
                present,
            }))
        }
        (Binary::Subtract, Some(_), Some(_)) => Err(Diagnostic::new(
            span,
            "these pointers lead to values of different types",
            "cast one to the type of the other, or both to numbers: (uint64)pointer",
        )),
        _ => Err(Diagnostic::new(
            span,
            format!(
                "`{}` is no operation on pointers, which can be moved and compared only",
                operation.sign()
            ),
            "make it a number first: (uint64)pointer",
        )),
    }
}
