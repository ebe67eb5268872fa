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
        Some((shape, bytes))
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
    /// The pieces of a value of which the debug information says that it lies as a whole in the
    /// words above the return address, `offset` bytes behind the first one.
    pub(crate) fn stacked(
        &self,
        (row, known): (FunctionRow, &Known),
        offset: u64,
        bytes: u64,
        pieces: Vec<Piece>,
    ) -> Result<Vec<Piece>, &'static str> {
        let session = self.session();
        if bytes <= 8 {
            return Ok(pieces);
        }
        let changed = session.inherited(known.scope.entry, |found| {
            let attribute = gimli::DW_AT_calling_convention;
            found.entry.attr(attribute).map(|_| ())
        });
        let words = words(&session, &known.scope).filter(|_| changed.is_none());
        let Some(words) = words else {
            return Err("the compiler changed how the function is called");
        };
        // By C's convention there is more than by Rust's.
        if prologue::names_word_behind(&self.image, row.address, row.bytes, words.len()) {
            return Ok(pieces);
        }
        let word = usize::try_from(offset / 8)
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

/// How many bytes behind the first word above the return address an offset from a function's frame
/// base is. None: below it, or the frame base is none that stays.
pub fn above_return(frame_base: Option<&[u8]>, offset: i64) -> Option<u64> {
    // By the frame pointer, there are the saved one and the return address in front of it.
    let first = match frame_base? {
        [number] if *number == gimli::DW_OP_reg6.0 => 16,
        [number] if *number == gimli::DW_OP_call_frame_cfa.0 => 0,
        _ => return None,
    };
    u64::try_from(offset - first).ok()
}
