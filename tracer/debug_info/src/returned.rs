//! Where the result of a function is when it returns, and when the answer is not certain.
//!
//! [`layout`] tells how Rust hands back a value of a type. A function is refused if the compiler
//! changed how it is called, if it never returns, if its result was left out, or if it may be one
//! of C whose result would be elsewhere (LAYOUT-1).

use trace_interface::symbols::{
    Expression, Kernel, Piece, Register, Source, Type, TypeId, Unavailable, Variable,
};

use crate::{
    DebugInfo,
    index::FunctionRow,
    layout::{self, Shape},
    prologue,
    session::Session,
    types,
};

fn refuse(reason: String, help: &str) -> Unavailable {
    Unavailable {
        reason,
        help: help.into(),
    }
}

impl DebugInfo {
    /// The result of the function that begins at an address.
    pub(crate) fn result_of(&self, function: u64) -> Result<Variable, Unavailable> {
        let (row, known) = self.known_alone(function)?;
        let path = self.index.name(row.path);
        if !known.is_described {
            return Err(refuse(
                format!("the debug information of {path} has no types, so its result is unknown"),
                "read reg(\"ax\") instead",
            ));
        }
        if row.address != function {
            return Err(refuse(
                format!("{function:#x} is inside of {path}, and only whole functions return"),
                "probe the return of the function",
            ));
        }
        let session = self.session();
        let damaged = || refuse(format!("the result of {path} is not described"), "");
        let entry = row.entry.ok_or_else(damaged)?;
        refuse_other_ways(&session, entry, path)?;
        let type_id = types::of(&session, entry);
        let bytes = types::size(&session, type_id).ok_or_else(damaged)?;
        let shape = match bytes {
            0 => Shape::Empty,
            1..=16 => layout::shape(&session, type_id).ok_or_else(damaged)?,
            _ => Shape::Memory,
        };
        self.refuse_uncertain(row, type_id, shape, bytes)?;
        let pieces = pieces(shape, bytes).ok_or_else(damaged)?;
        Ok(Variable { type_id, pieces })
    }

    /// Refuses a function whose code does not show that it returns the value there.
    fn refuse_uncertain(
        &self,
        row: FunctionRow,
        type_id: TypeId,
        shape: Shape,
        bytes: u64,
    ) -> Result<(), Unavailable> {
        let path = self.index.name(row.path);
        let in_registers = bytes > 0 && (bytes <= 8 || shape != Shape::Memory);
        let sets = |register| prologue::sets(&self.image, row.address, row.bytes, register);
        if in_registers && !sets(Register::Ax) {
            return Err(refuse(
                format!("{path} always has the same result, which the compiler left out"),
                "read the source: the result does not depend on the call",
            ));
        }
        if shape.may_be_memory()
            && !prologue::leaves(&self.image, row.address, row.bytes, Register::Dx)
        {
            return Err(refuse(
                format!(
                    "a structure in the result of {path} may have the representation of C, and \
                     then the result is in different registers"
                ),
                "read reg(\"ax\") and reg(\"dx\") instead",
            ));
        }
        // The debug information does not say whether a function that returns a structure is one of
        // Rust or of C, but only Rust's have a name that is mangled and use both registers.
        let is_struct =
            matches!(&*self.describe(type_id), Type::Struct(all) if !all.name.starts_with('('));
        let differs = match shape {
            Shape::Pair(..) => bytes <= 8,
            Shape::Memory => (9..=16).contains(&bytes),
            Shape::Empty | Shape::Scalar(_) => false,
        };
        let symbol = self.index.name(row.symbol);
        let mangled = symbol.starts_with("_ZN") || symbol.starts_with("_R");
        let is_rust = mangled && (shape == Shape::Memory || sets(Register::Dx));
        if is_struct && differs && !is_rust {
            return Err(refuse(
                format!(
                    "{path} may have Rust's or C's calling convention, which return such a value \
                     in different registers"
                ),
                "read reg(\"ax\") and reg(\"dx\") instead",
            ));
        }
        Ok(())
    }
}

/// Refuses a function that does not return as the ABI says.
fn refuse_other_ways(session: &Session, entry: u64, path: &str) -> Result<(), Unavailable> {
    let has = |attribute| {
        let found = session.inherited(entry, |found| found.entry.attr(attribute).map(|_| ()));
        found.is_some()
    };
    if has(gimli::DW_AT_calling_convention) {
        return Err(refuse(
            format!("the compiler changed how {path} is called, so its result may be nowhere"),
            "probe a line after one of its calls",
        ));
    }
    if has(gimli::DW_AT_noreturn) {
        return Err(refuse(
            format!("{path} never returns"),
            "probe its entry instead",
        ));
    }
    Ok(())
}

/// The pieces of a result of that shape. None: it is too large.
fn pieces(shape: Shape, bytes: u64) -> Option<Vec<Piece>> {
    let piece = |bytes: u64, source| {
        let bytes = u32::try_from(bytes).ok()?;
        Some(Piece { bytes, source })
    };
    let number = |register, bytes| piece(bytes, Source::Value(Expression::Register(register)));
    let mut pieces = Vec::new();
    match shape {
        _ if bytes == 0 => {}
        Shape::Memory if bytes > 8 => {
            let pointer = Expression::AtEntry(Register::Di);
            pieces.push(piece(bytes, Source::Memory(pointer))?);
        }
        Shape::Pair(a, b, at) => {
            pieces.push(number(Register::Ax, a.bytes)?);
            pieces.push(piece(at - a.bytes, Source::Missing)?);
            pieces.push(number(Register::Dx, b.bytes)?);
            pieces.push(piece(bytes - at - b.bytes, Source::Missing)?);
        }
        Shape::Empty | Shape::Scalar(_) | Shape::Memory => {
            pieces.push(number(Register::Ax, bytes.min(8))?);
            pieces.push(number(Register::Dx, bytes.saturating_sub(8))?);
        }
    }
    pieces.retain(|piece| piece.bytes > 0);
    Some(pieces)
}
