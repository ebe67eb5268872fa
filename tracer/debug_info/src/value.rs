//! The expressions of the debug information, as those of the tracer.
//!
//! VALUE-1. A place that cannot be said exactly is refused: a register that a probe does not keep,
//!     memory as it was at the entry, an operation that the tracer does not have.

use gimli::{Operation as Op, Reader};
use trace_interface::symbols::{Expression, Operation, Piece, Register, Source};

use crate::{epilogue::GivenBack, image::Slice};

/// Where an expression is read.
pub struct Context<'a> {
    pub encoding: gimli::Encoding,
    /// What is to be added to addresses of the file.
    pub slide: u64,
    pub moment: Moment,
    /// The function's frame base.
    pub frame_base: &'a dyn Fn() -> Result<Expression, String>,
    /// The value of `rbp` in the function's body, if that is its frame pointer. In the first and
    /// last instructions it is the caller's, which the debug information passes over.
    pub frame_pointer: Option<Expression>,
    /// Whether the frame is being given up. An interrupt may overwrite its content.
    pub epilogue: bool,
    /// What is the caller's again.
    pub given_back: GivenBack,
}

impl Context<'_> {
    /// The register with a number of the debug information, if the function still has it.
    fn register(&self, number: u16) -> Result<Register, String> {
        let register = register(number)?;
        match self.given_back.registers.contains(&register) {
            true => Err("the function has given its register back here".into()),
            false => Ok(register),
        }
    }
}

/// Which registers the expression means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// At the first instruction: those at the probe are those of the entry.
    Entry,
    Inside,
    /// Those of the entry, read when the function has returned.
    Return,
}

impl Moment {
    pub fn register(self, register: Register) -> Expression {
        match self {
            Self::Entry | Self::Inside => Expression::Register(register),
            Self::Return => Expression::AtEntry(register),
        }
    }

    fn at_entry(self, register: Register) -> Expression {
        match self {
            Self::Entry => Expression::Register(register),
            Self::Inside | Self::Return => Expression::AtEntry(register),
        }
    }
}

/// The register with a number of the debug information.
pub fn register(number: u16) -> Result<Register, String> {
    use Register::{Ax, Bp, Bx, Cx, Di, Dx, Ip, R8, R9, R10, R11, R12, R13, R14, R15, Si, Sp};
    const ALL: [Register; 17] = [
        Ax, Dx, Cx, Bx, Si, Di, Bp, Sp, R8, R9, R10, R11, R12, R13, R14, R15, Ip,
    ];
    ALL.get(usize::from(number)).copied().ok_or_else(|| {
        let name = gimli::X86_64::register_name(gimli::Register(number)).unwrap_or("unknown");
        format!("it is in the register {name}, which a probe does not keep")
    })
}

pub fn binary(operation: Operation, a: Expression, b: Expression) -> Expression {
    use Expression::{Binary, Constant};
    use Operation::{
        Add, And, Multiply, Or, ShiftLeft, ShiftRight, ShiftRightSigned, Subtract, Xor,
    };
    if let (Constant(a), Constant(b)) = (&a, &b) {
        let (a, b) = (*a, *b);
        // A shift by more than all bits leaves none.
        let by = u32::try_from(b).unwrap_or(u32::MAX);
        return Constant(match operation {
            Add => a.wrapping_add(b),
            Subtract => a.wrapping_sub(b),
            Multiply => a.wrapping_mul(b),
            And => a & b,
            Or => a | b,
            Xor => a ^ b,
            ShiftLeft => a.checked_shl(by).unwrap_or(0),
            ShiftRight => a.checked_shr(by).unwrap_or(0),
            ShiftRightSigned => (a.cast_signed() >> by.min(63)).cast_unsigned(),
        });
    }
    match (operation, &a, &b) {
        (Add | Subtract | Or | Xor | ShiftLeft | ShiftRight | ShiftRightSigned, _, Constant(0))
        | (Multiply, _, Constant(1))
        | (And, _, Constant(u64::MAX)) => a,
        (Add | Or | Xor, Constant(0), _) | (Multiply, Constant(1), _) => b,
        _ => Binary(operation, Box::new(a), Box::new(b)),
    }
}

pub fn plus(a: Expression, b: i64) -> Expression {
    binary(Operation::Add, a, Expression::Constant(b.cast_unsigned()))
}

/// 1 if the sign bit is set, else 0.
fn sign(a: Expression) -> Expression {
    binary(Operation::ShiftRight, a, Expression::Constant(63))
}

fn not(a: Expression) -> Expression {
    binary(Operation::Xor, a, Expression::Constant(u64::MAX))
}

/// 1 if `a < b`, both with a sign.
fn less(a: Expression, b: Expression) -> Expression {
    use Operation::{And, Or, Subtract, Xor};
    let below_zero = binary(And, a.clone(), not(b.clone()));
    let same_sign = not(binary(Xor, a.clone(), b.clone()));
    let difference = binary(And, same_sign, binary(Subtract, a, b));
    sign(binary(Or, below_zero, difference))
}

/// 1 if the two differ.
fn differ(a: Expression, b: Expression) -> Expression {
    use Operation::{Or, Subtract, Xor};
    let bits = binary(Xor, a, b);
    let negative = binary(Subtract, Expression::Constant(0), bits.clone());
    sign(binary(Or, bits, negative))
}

fn one_minus(a: Expression) -> Expression {
    binary(Operation::Xor, a, Expression::Constant(1))
}

/// Division with signs, towards zero, by a power of two: the tracer has no other.
fn divide(a: Expression, b: &Expression) -> Result<Expression, String> {
    let by = match b {
        Expression::Constant(by) if by.is_power_of_two() && *by < 1 << 63 => *by,
        _ => return Err("its place is computed with a division".into()),
    };
    let shift = Expression::Constant(u64::from(by.trailing_zeros()));
    let signs = binary(
        Operation::ShiftRightSigned,
        a.clone(),
        Expression::Constant(63),
    );
    let rounding = binary(Operation::And, signs, Expression::Constant(by - 1));
    let rounded = binary(Operation::Add, a, rounding);
    Ok(binary(Operation::ShiftRightSigned, rounded, shift))
}

/// The state after the operations that have been read.
enum Now {
    /// An address or a value, on the stack.
    Stack,
    Register(Register),
    Value(Expression),
    Bytes(Vec<u8>),
}

/// The places of the `bytes` bytes of a value.
pub fn pieces(expression: &[u8], bytes: u64, context: &Context) -> Result<Vec<Piece>, String> {
    let mut reader = Slice::new(expression, gimli::LittleEndian);
    let mut stack: Vec<Expression> = Vec::new();
    let mut now = Now::Stack;
    let mut pieces: Vec<Piece> = Vec::new();
    let mut any_piece = false;
    while !reader.is_empty() {
        let op = Op::parse(&mut reader, context.encoding)
            .map_err(|_| "its place is written in a form that is not known".to_string())?;
        match op {
            Op::Register { register: number } => now = Now::Register(context.register(number.0)?),
            Op::StackValue => now = Now::Value(pop(&mut stack)?),
            Op::ImplicitValue { data } => now = Now::Bytes(data.slice().to_vec()),
            Op::Piece {
                size_in_bits,
                bit_offset: None | Some(0),
            } if size_in_bits % 8 == 0 => {
                any_piece = true;
                let size = size_in_bits / 8;
                let place = std::mem::replace(&mut now, Now::Stack);
                place_of(place, &mut stack, size, context, &mut pieces)?;
            }
            Op::Piece { .. } => return Err("it is kept bit by bit".into()),
            other => step(&other, &mut stack, context)?,
        }
    }
    if any_piece {
        let given: u64 = pieces.iter().map(|piece| u64::from(piece.bytes)).sum();
        if given > bytes {
            return Err("its pieces are more than the value".into());
        }
        if given < bytes {
            push(&mut pieces, bytes - given, Source::Missing)?;
        }
    } else {
        place_of(now, &mut stack, bytes, context, &mut pieces)?;
    }
    if bytes > 0 && pieces.iter().all(|piece| piece.source == Source::Missing) {
        return Err(GONE.into());
    }
    Ok(pieces)
}

/// The value is nowhere.
pub const GONE: &str = "the compiler keeps it nowhere here";

fn pop(stack: &mut Vec<Expression>) -> Result<Expression, String> {
    stack
        .pop()
        .ok_or_else(|| "its place is computed from nothing".to_string())
}

fn push(pieces: &mut Vec<Piece>, bytes: u64, source: Source) -> Result<(), String> {
    let bytes = u32::try_from(bytes).map_err(|_| "it is too large".to_string())?;
    if bytes > 0 {
        pieces.push(Piece { bytes, source });
    }
    Ok(())
}

fn place_of(
    now: Now,
    stack: &mut Vec<Expression>,
    bytes: u64,
    context: &Context,
    pieces: &mut Vec<Piece>,
) -> Result<(), String> {
    let value = match now {
        Now::Stack => {
            let source = stack.pop().map_or(Source::Missing, Source::Memory);
            return push(pieces, bytes, source);
        }
        Now::Bytes(content) => return constant(&content, bytes, pieces),
        Now::Register(register) => context.moment.register(register),
        Now::Value(value) => value,
    };
    if bytes > 8 {
        return Err("the debug information gives only the low 8 bytes of it".into());
    }
    push(pieces, bytes, Source::Value(value))
}

/// The pieces of bytes that are known.
pub fn constant(content: &[u8], bytes: u64, pieces: &mut Vec<Piece>) -> Result<(), String> {
    let bytes = usize::try_from(bytes).map_err(|_| "it is too large".to_string())?;
    let Some(content) = content.get(..bytes) else {
        return Err("the debug information gives only a part of it".into());
    };
    for chunk in content.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        let value = Expression::Constant(u64::from_le_bytes(word));
        push(pieces, chunk.len() as u64, Source::Value(value))?;
    }
    Ok(())
}

/// The value was in the frame.
const GIVEN_UP: &str = "the function gives up its frame here";

/// An address in the function's frame.
pub fn in_frame(
    context: &Context,
    offset: i64,
    base: impl Fn() -> Result<Expression, String>,
) -> Result<Expression, String> {
    // Above the frame pointer are the arguments on the stack, which the caller keeps.
    let is_own = offset < 0 || context.frame_pointer.is_none() && context.given_back.frame;
    if is_own && (context.epilogue || context.given_back.frame) {
        return Err(GIVEN_UP.into());
    }
    Ok(plus(base()?, offset))
}

/// An operation on the stack.
fn step(op: &Op<Slice>, stack: &mut Vec<Expression>, context: &Context) -> Result<(), String> {
    let two = |stack: &mut Vec<Expression>| {
        let b = pop(stack)?;
        Ok::<_, String>((pop(stack)?, b))
    };
    let mut operation = |operation| {
        let (a, b) = two(stack)?;
        Ok::<_, String>(binary(operation, a, b))
    };
    let result = match op {
        Op::Nop => return Ok(()),
        Op::Drop => {
            pop(stack)?;
            return Ok(());
        }
        Op::Swap => {
            let (a, b) = two(stack)?;
            stack.extend([b, a]);
            return Ok(());
        }
        Op::Pick { index } => {
            let at = stack.len().checked_sub(usize::from(*index) + 1);
            at.and_then(|at| stack.get(at).cloned())
                .ok_or("its place is computed from nothing")?
        }
        Op::And => operation(Operation::And)?,
        Op::Or => operation(Operation::Or)?,
        Op::Xor => operation(Operation::Xor)?,
        Op::Plus => operation(Operation::Add)?,
        Op::Minus => operation(Operation::Subtract)?,
        Op::Mul => operation(Operation::Multiply)?,
        Op::Shl => operation(Operation::ShiftLeft)?,
        Op::Shr => operation(Operation::ShiftRight)?,
        Op::Shra => operation(Operation::ShiftRightSigned)?,
        Op::Div => {
            let (a, b) = two(stack)?;
            divide(a, &b)?
        }
        Op::Neg => binary(Operation::Subtract, Expression::Constant(0), pop(stack)?),
        Op::Not => not(pop(stack)?),
        Op::PlusConstant { value } => {
            binary(Operation::Add, pop(stack)?, Expression::Constant(*value))
        }
        Op::Eq | Op::Ne | Op::Lt | Op::Le | Op::Gt | Op::Ge => {
            let (a, b) = two(stack)?;
            match op {
                Op::Eq => one_minus(differ(a, b)),
                Op::Ne => differ(a, b),
                Op::Lt => less(a, b),
                Op::Ge => one_minus(less(a, b)),
                Op::Gt => less(b, a),
                _ => one_minus(less(b, a)),
            }
        }
        Op::UnsignedConstant { value } => Expression::Constant(*value),
        Op::SignedConstant { value } => Expression::Constant(value.cast_unsigned()),
        Op::Address { address } => Expression::Constant(address.wrapping_add(context.slide)),
        Op::RegisterOffset {
            register: gimli::X86_64::RBP,
            offset,
            base_type: gimli::UnitOffset(0),
        } if context.frame_pointer.is_some() => in_frame(context, *offset, || {
            context.frame_pointer.clone().ok_or_else(String::new)
        })?,
        Op::RegisterOffset {
            register: number,
            offset,
            base_type: gimli::UnitOffset(0),
        } => {
            let register = context.register(number.0)?;
            if register == Register::Sp && context.given_back.frame {
                return Err(GIVEN_UP.into());
            }
            plus(context.moment.register(register), *offset)
        }
        Op::FrameOffset { offset } => in_frame(context, *offset, context.frame_base)?,
        Op::Deref {
            base_type: gimli::UnitOffset(0),
            size: size @ (1 | 2 | 4 | 8),
            space: false,
        } => Expression::Load {
            address: Box::new(pop(stack)?),
            bytes: *size,
        },
        Op::EntryValue { expression } => entry_value(*expression, context)?,
        _ => return Err("its place is computed in a way that the tracer does not have".into()),
    };
    stack.push(result);
    Ok(())
}

/// The value of an expression when the function was entered.
fn entry_value(expression: Slice, context: &Context) -> Result<Expression, String> {
    let mut reader = expression;
    let op = Op::parse(&mut reader, context.encoding).map_err(|error| error.to_string())?;
    match op {
        Op::Register { register: number } if reader.is_empty() => {
            Ok(context.moment.at_entry(register(number.0)?))
        }
        _ => Err("it is what memory held when the function was entered".into()),
    }
}

/// A place in a function's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Where it is from the frame base.
    pub offset: i64,
    /// Whether it has the address of the value, not the value itself.
    pub is_address: bool,
}

/// The place in the frame that an expression names, if it says no more than that.
pub fn frame_slot(expression: &[u8], encoding: gimli::Encoding) -> Option<Slot> {
    let mut reader = Slice::new(expression, gimli::LittleEndian);
    let Ok(Op::FrameOffset { offset }) = Op::parse(&mut reader, encoding) else {
        return None;
    };
    let is_address = !reader.is_empty();
    let whole = Op::Deref {
        base_type: gimli::UnitOffset(0),
        size: 8,
        space: false,
    };
    let is_whole = !is_address || Op::parse(&mut reader, encoding) == Ok(whole);
    (is_whole && reader.is_empty()).then_some(Slot { offset, is_address })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_those_of_the_expression() {
        let context = Context {
            encoding: gimli::Encoding {
                address_size: 8,
                format: gimli::Format::Dwarf32,
                version: 4,
            },
            slide: 0,
            moment: Moment::Inside,
            frame_base: &|| Err(String::new()),
            frame_pointer: None,
            epilogue: false,
            given_back: GivenBack::default(),
        };
        for (code, operation) in [
            (gimli::DW_OP_and, Operation::And),
            (gimli::DW_OP_or, Operation::Or),
            (gimli::DW_OP_xor, Operation::Xor),
            (gimli::DW_OP_plus, Operation::Add),
            (gimli::DW_OP_minus, Operation::Subtract),
            (gimli::DW_OP_mul, Operation::Multiply),
            (gimli::DW_OP_shl, Operation::ShiftLeft),
            (gimli::DW_OP_shr, Operation::ShiftRight),
            (gimli::DW_OP_shra, Operation::ShiftRightSigned),
        ] {
            // `rdi`, the number 3, the operation, and that the result is the value.
            let (rdi, three, value) = (
                gimli::DW_OP_breg5.0,
                gimli::DW_OP_lit3.0,
                gimli::DW_OP_stack_value.0,
            );
            let found = pieces(&[rdi, 0, three, code.0, value], 8, &context).unwrap();
            let [piece] = &found[..] else {
                panic!("{code}: {found:?}");
            };
            let left = Box::new(Expression::Register(Register::Di));
            let right = Box::new(Expression::Constant(3));
            let wanted = Expression::Binary(operation, left, right);
            assert_eq!(piece.source, Source::Value(wanted), "{code}");
        }
    }

    /// What lies above the return address, such as an argument, stays as it is.
    #[test]
    fn the_frame_that_a_function_gives_up_is_what_is_below_its_base() {
        let context = |epilogue| Context {
            encoding: gimli::Encoding {
                address_size: 8,
                format: gimli::Format::Dwarf32,
                version: 4,
            },
            slide: 0,
            moment: Moment::Inside,
            frame_base: &|| Err(String::new()),
            frame_pointer: None,
            epilogue,
            given_back: GivenBack::default(),
        };
        let known = |epilogue, offset| {
            let base = || Ok(Expression::Constant(0x1000));
            in_frame(&context(epilogue), offset, base).is_ok()
        };
        for (epilogue, offset, is_known) in [
            (false, -8, true),
            (true, -8, false),
            (true, 0, true),
            (true, 8, true),
        ] {
            assert_eq!(known(epilogue, offset), is_known, "{epilogue} {offset}");
        }
        let mut later = context(false);
        later.given_back.frame = true;
        let base = || Ok(Expression::Constant(0x1000));
        assert_eq!(in_frame(&later, -8, base), Err(GIVEN_UP.into()));
        assert_eq!(in_frame(&later, 8, base), Err(GIVEN_UP.into()));
        later.frame_pointer = Some(Expression::Constant(0x1000));
        assert!(in_frame(&later, 8, base).is_ok());
        // breg7 (rsp) 8; breg3 (rbx) 0; reg3 (rbx)
        later.given_back.registers = vec![Register::Bp];
        for (expression, is_known) in [
            (&[0x77, 8][..], false),
            (&[0x73, 0], true),
            (&[0x53], true),
            (&[0x56], false),
        ] {
            let found = pieces(expression, 8, &later);
            assert_eq!(found.is_ok(), is_known, "{expression:x?}");
        }
    }
}
