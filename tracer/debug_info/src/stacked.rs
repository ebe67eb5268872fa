//! Arguments that lie on the stack, because there are more than the registers hold.
//!
//! A value in memory of more than 8 bytes is handed over by its address. If the address lies on
//! the stack, the compiler's debug information says of the value that it lies there itself, which
//! would be so by C's calling convention. So the places of all arguments are counted here as
//! Rust's convention gives them, and a place that has an address is followed.
//!
//! STACKED-1. A function that names more words than Rust's convention gives it has C's. Of others,
//!     those without a mangled name may have either, and the compiler may have changed how one is
//!     called: such an argument of them is refused.

use trace_interface::symbols::{Expression, Piece, Source, TypeId};

use crate::{
    DebugInfo, Known,
    index::FunctionRow,
    layout::{self, Shape},
    prologue,
    scope::Scope,
    session::Session,
    types,
};

/// How many words of arguments are in registers.
const REGISTERS: u64 = 6;

/// What is in the words above the return address, the first one first: whether it is the address of
/// an argument.
pub fn words(session: &Session, function: &Scope) -> Option<Vec<bool>> {
    let shape = |entry: Option<u64>| {
        let id = entry.map_or(types::UNIT, TypeId);
        let bytes = types::size(session, id)?;
        let shape = match bytes {
            0 => Shape::Empty,
            1..=16 => layout::shape(session, id)?,
            _ => Shape::Memory,
        };
        (!shape.may_be_memory()).then_some((shape, bytes))
    };
    let mut registers = 0;
    let mut words = Vec::new();
    let result = types::of(session, function.entry);
    let result = (result != types::UNIT).then_some(result.0);
    if let (Shape::Memory, 9..) = shape(result)? {
        registers += 1;
    }
    for argument in function.locals.iter().filter(|local| local.argument) {
        let (shape, bytes) = shape(argument.type_entry)?;
        let (count, is_address) = match shape {
            Shape::Empty => continue,
            Shape::Memory => (1, bytes > 8),
            Shape::Pair(..) => (2, false),
            Shape::Scalar(_) => (bytes.div_ceil(8), false),
        };
        // A number of two words is in two registers or in none. Those of a pair go their own ways.
        let is_wide = matches!(shape, Shape::Scalar(_)) && count > 1;
        if is_wide && registers + count > REGISTERS {
            if words.len() % 2 != 0 {
                words.push(false);
            }
            words.extend([false; 2]);
            continue;
        }
        for _ in 0..count {
            match registers < REGISTERS {
                true => registers += 1,
                false => words.push(is_address),
            }
        }
    }
    Some(words)
}

impl DebugInfo {
    /// The pieces of a value of which the debug information says that it lies as a whole `offset`
    /// bytes behind the frame base.
    pub(crate) fn stacked(
        &self,
        (row, known): (FunctionRow, &Known),
        offset: i64,
        bytes: u64,
        pieces: Vec<Piece>,
    ) -> Result<Vec<Piece>, &'static str> {
        let session = self.session();
        let first = known.frames.first_argument(known.frame_base.as_deref());
        let Some((register, first)) = first.filter(|(_, first)| offset >= *first && bytes > 8)
        else {
            return Ok(pieces);
        };
        let changed = session.inherited(known.scope.entry, |found| {
            let attribute = gimli::DW_AT_calling_convention;
            found.entry.attr(attribute).map(|_| ())
        });
        if changed.is_some() {
            return Err("the compiler changed how the function is called");
        }
        let Some(words) = words(&session, &known.scope) else {
            return Err("what else is on the stack is not certain");
        };
        // By C's convention there is more than by Rust's.
        let end = first.saturating_add_unsigned(8 * words.len() as u64);
        if prologue::names_behind(&self.image, (row.address, row.bytes), register, end) {
            return Ok(pieces);
        }
        let word = usize::try_from((offset - first) / 8)
            .ok()
            .and_then(|at| words.get(at));
        if word != Some(&true) {
            return Ok(pieces);
        }
        let symbol = self.index.name(row.symbol);
        if !symbol.starts_with("_ZN") && !symbol.starts_with("_R") {
            return Err("the function may have Rust's or C's calling convention");
        }
        let [
            Piece {
                bytes,
                source: Source::Memory(address),
            },
        ] = &pieces[..]
        else {
            return Ok(pieces);
        };
        Ok(vec![Piece {
            bytes: *bytes,
            source: Source::Memory(Expression::Load {
                address: Box::new(address.clone()),
                bytes: 8,
            }),
        }])
    }
}
