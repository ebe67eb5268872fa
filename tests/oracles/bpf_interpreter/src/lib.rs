//! The interpreter: executes a program one instruction at a time and checks everything.
//!
//! It is the reference for the compiler, and the judge of the verifier: whatever the verifier takes
//! must run here without an [`Objection`]. Therefore it trusts nothing. It does not know what the
//! verifier found out; it sees only what the program does.
//!
//! # Values
//! A register and an aligned slot of the stack hold a number, and with it what the number points
//! to: the context, the stack, a map's value, a record, the data of entry and return, a map, or
//! nothing in particular. Adding a number to a pointer, and taking one away, give a pointer to the
//! same object. Any other operation gives a number. A pointer may point outside its object; it may
//! not be accessed there.
//!
//! # Rules
//! INTERPRETER-1. A register, and a byte of the stack, is read only after it was written.
//! INTERPRETER-2. An access through a pointer lies inside its object, wholly.
//! INTERPRETER-3. Nothing is written through a number, and nothing in the context.
//! INTERPRETER-4. A load through a number is a load of kernel memory, which the [`Environment`]
//!     answers.
//! INTERPRETER-5. A record is not touched after it was given back, and each one is given back
//!     before the end.
//! INTERPRETER-6. A helper gets what [`Helper::arguments`] says. A pointer is also good for a
//!     `Scalar`, because it has a number.
//! INTERPRETER-7. The program ends by [`Insn::Exit`] with `r0` set.
//!
//! # Memory
//! A run takes memory for the arguments of some helpers and for the list of records.

#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

mod call;
mod environment;
mod test_machine;

use alloc::vec::Vec;
use core::fmt;

use bpf::{
    Argument, AtomicOp, Helper, Insn, MapIndex, Operand, Program, Reg, STACK_BYTES, Size, Width,
    context, sign_extend,
};

pub use environment::{Environment, Fault, Object, Space};
pub use test_machine::{Addresses, EntryData, Published, TestMachine};

/// Where the context begins, as programs see it. Nothing is mapped there.
pub const CONTEXT_ADDRESS: u64 = 0xffff_fe00_0000_1000;
/// Where the stack begins, as programs see it; `r10` is [`STACK_BYTES`] above. Nothing is mapped
/// there.
pub const STACK_ADDRESS: u64 = 0xffff_fe00_0000_2000;
/// Where the memory of [`run_on_memory`] begins, as programs see it. Nothing is mapped there.
pub const MEMORY_ADDRESS: u64 = 0xffff_fe00_1000_0000;

/// An instruction that a program may not execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Objection {
    /// Which instruction of the program.
    pub at: usize,
    pub reason: Reason,
}

/// See [`Objection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It reads a register that nothing was written to.
    RegisterNotSet(Reg),
    /// It reads a byte of the stack that nothing was written to. The offset is that from `r10`.
    StackNotSet { offset: i32 },
    /// It accesses bytes that lie outside the object. `start` counts from the object's beginning.
    Outside {
        object: &'static str,
        start: i64,
        bytes: u64,
        size: u64,
    },
    /// It loads something else of the context than the low bytes of a register.
    NotARegister { start: i64 },
    /// It writes to the context.
    ContextWritten,
    /// It writes through a number.
    WrittenThroughNumber(u64),
    /// It accesses memory through a map.
    MapAccessed,
    /// It uses a record that was given back.
    RecordReleased,
    /// It ends and still holds a record.
    RecordHeld,
    /// It writes to `r10`.
    FramePointerWritten,
    /// It calls a helper with something else than this in this register.
    WrongArgument {
        helper: Helper,
        register: Reg,
        expected: Argument,
    },
    /// It calls a helper that its kind of program does not have.
    NotInThisKind(Helper),
    /// It names a map that the program does not have.
    NoSuchMap(MapIndex),
    /// Its operands are not those of any instruction, for example a sign extension of 7 bits.
    Malformed,
    /// There is no instruction: a jump led outside the program, or it ran past its end.
    NoInstruction,
    /// So many instructions were executed before it, and no more may be.
    LimitReached(u64),
    /// There is no memory to execute it.
    OutOfMemory,
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instruction {}: {}", self.at, self.reason)
    }
}

impl core::error::Error for Objection {}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RegisterNotSet(reg) => {
                write!(f, "r{} is read but not set; set it first", reg.number())
            }
            Self::StackNotSet { offset } => write!(
                f,
                "the stack at r10{offset:+} is read but not set; store something there first"
            ),
            Self::Outside {
                object,
                start,
                bytes,
                size,
            } => write!(
                f,
                "{bytes} bytes from byte {start} on are not inside {object}, which has {size}; \
                 compare the offset with the size first"
            ),
            Self::NotARegister { start } => write!(
                f,
                "byte {start} of the context does not begin a register; load at a multiple of 8"
            ),
            Self::ContextWritten => {
                f.write_str("the context is written; a program may only read it")
            }
            Self::WrittenThroughNumber(number) => write!(
                f,
                "{number:#x} is written through, but is not a pointer to memory of the program; \
                 programs may not write elsewhere"
            ),
            Self::MapAccessed => f.write_str(
                "memory is accessed through a map; ask a helper for a pointer to a value",
            ),
            Self::RecordReleased => {
                f.write_str("a record is used after it was submitted or discarded")
            }
            Self::RecordHeld => {
                f.write_str("a record is still reserved at the end; submit or discard it")
            }
            Self::FramePointerWritten => f.write_str("r10 is written; it is read-only"),
            Self::WrongArgument {
                helper,
                register,
                expected,
            } => write!(
                f,
                "{helper:?} expects {expected:?} in r{}, which holds something else",
                register.number()
            ),
            Self::NotInThisKind(helper) => {
                write!(f, "{helper:?} is not for this kind of program")
            }
            Self::NoSuchMap(map) => write!(f, "the program has no map {}", map.0),
            Self::Malformed => f.write_str("the operands are not those of any instruction"),
            Self::NoInstruction => {
                f.write_str("there is no instruction; end each path of the program with exit")
            }
            Self::LimitReached(limit) => {
                write!(f, "{limit} instructions were executed; bound the loop")
            }
            Self::OutOfMemory => f.write_str("there is no memory for its arguments"),
        }
    }
}

/// The thing that a number points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pointee {
    /// Nothing in particular: the number may be an address of the kernel's.
    None,
    Map(MapIndex),
    Context,
    Stack,
    Object(Object),
    /// The memory of [`run_on_memory`].
    Memory,
}

#[derive(Clone, Copy, Debug)]
struct Value {
    number: u64,
    to: Pointee,
}

impl Value {
    const fn number(number: u64) -> Self {
        Self {
            number,
            to: Pointee::None,
        }
    }

    /// Whether arithmetic keeps what it points to.
    fn is_pointer(self) -> bool {
        !matches!(self.to, Pointee::None | Pointee::Map(_))
    }
}

/// A record that the program holds.
struct Held {
    number: u32,
    /// Bytes that the program sees.
    size: u32,
    /// Bytes after them, and how many of these are used.
    room: u32,
    used: u32,
    /// It is one of [`Helper::EventReserve`].
    is_event: bool,
}

struct Stack {
    bytes: [u8; STACK_BYTES],
    is_set: [bool; STACK_BYTES],
    /// The content of each aligned slot of 8 bytes. A slot that holds a pointer was written as a
    /// whole.
    to: [Pointee; STACK_BYTES / 8],
}

struct Machine<'a, E: ?Sized> {
    program: &'a Program,
    environment: &'a mut E,
    memory: &'a mut [u8],
    registers: [Option<Value>; 11],
    stack: Stack,
    held: Vec<Held>,
}

/// Runs `program` in `environment`, for at most `limit` instructions. `r1` is the context.
///
/// Returns its result, `r0`.
///
/// # Errors
/// [`Objection`]. The effects of the program before it stay.
pub fn run<E: Environment + ?Sized>(
    program: &Program,
    environment: &mut E,
    limit: u64,
) -> Result<u64, Objection> {
    let mut machine = Machine::new(program, environment, &mut []);
    machine.registers[1] = Some(Value {
        number: CONTEXT_ADDRESS,
        to: Pointee::Context,
    });
    machine.run(limit)
}

/// Runs `program` as the public vectors of the instruction set want it: `r1` points to `memory`,
/// which it may write, and `r2` is the number of its bytes. If there are none, `r1` is 0.
///
/// # Errors
/// [`Objection`].
pub fn run_on_memory<E: Environment + ?Sized>(
    program: &Program,
    memory: &mut [u8],
    environment: &mut E,
    limit: u64,
) -> Result<u64, Objection> {
    let bytes = memory.len() as u64;
    let mut machine = Machine::new(program, environment, memory);
    machine.registers[1] = Some(if bytes == 0 {
        Value::number(0)
    } else {
        Value {
            number: MEMORY_ADDRESS,
            to: Pointee::Memory,
        }
    });
    machine.registers[2] = Some(Value::number(bytes));
    machine.run(limit)
}

impl<'a, E: Environment + ?Sized> Machine<'a, E> {
    fn new(program: &'a Program, environment: &'a mut E, memory: &'a mut [u8]) -> Self {
        let mut registers = [None; 11];
        registers[10] = Some(Value {
            number: STACK_ADDRESS + STACK_BYTES as u64,
            to: Pointee::Stack,
        });
        Self {
            program,
            environment,
            memory,
            registers,
            stack: Stack {
                bytes: [0; STACK_BYTES],
                is_set: [false; STACK_BYTES],
                to: [Pointee::None; STACK_BYTES / 8],
            },
            held: Vec::new(),
        }
    }

    fn run(&mut self, limit: u64) -> Result<u64, Objection> {
        let mut at = 0;
        let mut executed = 0;
        loop {
            let object = |reason| Objection { at, reason };
            let insn = *self
                .program
                .insns
                .get(at)
                .ok_or(object(Reason::NoInstruction))?;
            if executed == limit {
                return Err(object(Reason::LimitReached(limit)));
            }
            executed += 1;
            match insn {
                Insn::Exit => {
                    let result = self.get(Reg::R0).map_err(object)?;
                    if !self.held.is_empty() {
                        return Err(object(Reason::RecordHeld));
                    }
                    return Ok(result.number);
                }
                Insn::Jump { target } => at = usize::from(target.0),
                Insn::Branch {
                    width,
                    condition,
                    dst,
                    operand,
                    target,
                } => {
                    let dst = self.get(dst).map_err(object)?.number;
                    let operand = self.operand(operand).map_err(object)?.number;
                    if condition.holds(width, dst, operand) {
                        at = usize::from(target.0);
                    } else {
                        at += 1;
                    }
                }
                _ => {
                    self.step(insn).map_err(object)?;
                    at += 1;
                }
            }
        }
    }

    /// Executes an instruction after which the next one follows.
    fn step(&mut self, insn: Insn) -> Result<(), Reason> {
        match insn {
            Insn::Alu {
                width,
                op,
                dst,
                operand,
            } => {
                let operand = self.operand(operand)?;
                let value = if op == bpf::AluOp::Mov {
                    // The destination is not read.
                    Value {
                        number: width.truncate(operand.number),
                        to: match width {
                            Width::W64 => operand.to,
                            Width::W32 => Pointee::None,
                        },
                    }
                } else {
                    let old = self.get(dst)?;
                    Value {
                        number: op.apply(width, old.number, operand.number),
                        to: pointee_after(width, op, old, operand),
                    }
                };
                self.set(dst, value)
            }
            Insn::Negate { width, dst } => {
                let old = self.get(dst)?.number;
                self.set(dst, Value::number(width.truncate(old.wrapping_neg())))
            }
            Insn::SignExtend {
                width,
                bits,
                dst,
                src,
            } => {
                let src = self.get(src)?.number;
                let value = sign_extend(width, bits, src).ok_or(Reason::Malformed)?;
                self.set(dst, Value::number(value))
            }
            Insn::Swap { swap, bits, dst } => {
                let old = self.get(dst)?.number;
                let value = swap.apply(bits, old).ok_or(Reason::Malformed)?;
                self.set(dst, Value::number(value))
            }
            Insn::LoadImm { dst, value } => self.set(dst, Value::number(value)),
            Insn::LoadMap { dst, map } => {
                if usize::from(map.0) >= self.program.maps.len() {
                    return Err(Reason::NoSuchMap(map));
                }
                self.set(
                    dst,
                    Value {
                        number: self.environment.map_address(map),
                        to: Pointee::Map(map),
                    },
                )
            }
            Insn::Load {
                dst,
                base,
                offset,
                size,
                signed,
            } => {
                let base = self.get(base)?;
                let value = self.load(base, offset, size)?;
                let value = if signed {
                    let unused = 64 - size.bytes() * 8;
                    Value {
                        number: ((value.number << unused) as i64 >> unused) as u64,
                        ..value
                    }
                } else {
                    value
                };
                self.set(dst, value)
            }
            Insn::Store {
                base,
                offset,
                size,
                value,
            } => {
                let base = self.get(base)?;
                let value = self.operand(value)?;
                self.store(base, offset, size, value)
            }
            Insn::Atomic {
                op,
                base,
                offset,
                size,
                reg,
            } => self.atomic(op, base, offset, size, reg),
            Insn::Call { helper } => {
                let result = self.call(helper)?;
                self.registers[1..=5].fill(None);
                self.set(Reg::R0, result)
            }
            Insn::Jump { .. } | Insn::Branch { .. } | Insn::Exit => Err(Reason::Malformed),
        }
    }

    fn get(&self, reg: Reg) -> Result<Value, Reason> {
        self.registers[usize::from(reg.number())].ok_or(Reason::RegisterNotSet(reg))
    }

    fn set(&mut self, reg: Reg, value: Value) -> Result<(), Reason> {
        if reg == Reg::R10 {
            return Err(Reason::FramePointerWritten);
        }
        self.registers[usize::from(reg.number())] = Some(value);
        Ok(())
    }

    fn operand(&self, operand: Operand) -> Result<Value, Reason> {
        match operand {
            Operand::Reg(reg) => self.get(reg),
            Operand::Imm(imm) => Ok(Value::number(i64::from(imm) as u64)),
        }
    }

    fn load(&mut self, base: Value, offset: i16, size: Size) -> Result<Value, Reason> {
        let pointer = moved(base, offset);
        if pointer.to == Pointee::None {
            let loaded = self.environment.kernel_load(pointer.number, size);
            return Ok(Value::number(loaded & low_bits(size)));
        }
        let mut bytes = [0; 8];
        let bytes_read = size.bytes() as usize;
        self.read(pointer, &mut bytes[..bytes_read])?;
        let mut value = Value::number(u64::from_le_bytes(bytes));
        if pointer.to == Pointee::Stack && size == Size::B8 {
            let start = (pointer.number - STACK_ADDRESS) as usize;
            if start.is_multiple_of(8) {
                value.to = self.stack.to[start / 8];
            }
        }
        Ok(value)
    }

    fn store(&mut self, base: Value, offset: i16, size: Size, value: Value) -> Result<(), Reason> {
        let pointer = moved(base, offset);
        let bytes = value.number.to_le_bytes();
        self.write(pointer, &bytes[..size.bytes() as usize])?;
        if pointer.to == Pointee::Stack && size == Size::B8 {
            let start = (pointer.number - STACK_ADDRESS) as usize;
            if start.is_multiple_of(8) {
                self.stack.to[start / 8] = value.to;
            }
        }
        Ok(())
    }

    fn atomic(
        &mut self,
        op: AtomicOp,
        base: Reg,
        offset: i16,
        size: Size,
        reg: Reg,
    ) -> Result<(), Reason> {
        let width = match size {
            Size::B4 => Width::W32,
            Size::B8 => Width::W64,
            Size::B1 | Size::B2 => return Err(Reason::Malformed),
        };
        let base = self.get(base)?;
        let operand = width.truncate(self.get(reg)?.number);
        let expected = match op {
            AtomicOp::CompareExchange => width.truncate(self.get(Reg::R0)?.number),
            _ => 0,
        };
        let pointer = moved(base, offset);
        if pointer.to == Pointee::None {
            return Err(Reason::WrittenThroughNumber(pointer.number));
        }
        if pointer.to == Pointee::Context {
            return Err(Reason::ContextWritten);
        }
        let mut bytes = [0; 8];
        let count = size.bytes() as usize;
        self.read(pointer, &mut bytes[..count])?;
        let old = u64::from_le_bytes(bytes);
        let new = match op {
            AtomicOp::Add { .. } => old.wrapping_add(operand),
            AtomicOp::Or { .. } => old | operand,
            AtomicOp::And { .. } => old & operand,
            AtomicOp::Xor { .. } => old ^ operand,
            AtomicOp::Exchange => operand,
            AtomicOp::CompareExchange if old == expected => operand,
            AtomicOp::CompareExchange => old,
        };
        self.write(pointer, &new.to_le_bytes()[..count])?;
        match op {
            AtomicOp::Add { fetch: true }
            | AtomicOp::Or { fetch: true }
            | AtomicOp::And { fetch: true }
            | AtomicOp::Xor { fetch: true }
            | AtomicOp::Exchange => self.set(reg, Value::number(old)),
            AtomicOp::CompareExchange => self.set(Reg::R0, Value::number(old)),
            _ => Ok(()),
        }
    }

    /// Bytes of the object that `pointer` points to, its address, and its name.
    fn extent(&self, pointer: Value) -> Result<(u64, u64, &'static str), Reason> {
        Ok(match pointer.to {
            Pointee::None => return Err(Reason::WrittenThroughNumber(pointer.number)),
            Pointee::Map(_) => return Err(Reason::MapAccessed),
            Pointee::Context => (context::BYTES as u64, CONTEXT_ADDRESS, "the context"),
            Pointee::Stack => (STACK_BYTES as u64, STACK_ADDRESS, "the stack"),
            Pointee::Memory => (self.memory.len() as u64, MEMORY_ADDRESS, "the memory"),
            Pointee::Object(object) => {
                let (bytes, name) = match object {
                    Object::Value { map, .. } => {
                        let def = self.program.maps.get(usize::from(map.0));
                        (
                            def.ok_or(Reason::NoSuchMap(map))?.value_size,
                            "a value of a map",
                        )
                    }
                    Object::Record { number } => (self.held(number)?.size, "a record"),
                    Object::EntryData => (
                        self.program.kind.shared_bytes(),
                        "the data of entry and return",
                    ),
                };
                (u64::from(bytes), self.environment.address(object), name)
            }
        })
    }

    /// Where in its object `pointer` points, if `bytes` from there on lie inside.
    fn inside(&self, pointer: Value, bytes: usize) -> Result<usize, Reason> {
        let (size, address, object) = self.extent(pointer)?;
        let start = pointer.number.wrapping_sub(address);
        let bytes = bytes as u64;
        if bytes <= size && start <= size - bytes {
            Ok(start as usize)
        } else {
            Err(Reason::Outside {
                object,
                start: start as i64,
                bytes,
                size,
            })
        }
    }

    fn held(&self, number: u32) -> Result<&Held, Reason> {
        let held = self.held.iter().find(|held| held.number == number);
        held.ok_or(Reason::RecordReleased)
    }

    /// Copies the memory that a pointer points to. A number is refused.
    fn read(&mut self, pointer: Value, into: &mut [u8]) -> Result<(), Reason> {
        let start = self.inside(pointer, into.len())?;
        let range = start..start + into.len();
        match pointer.to {
            Pointee::None | Pointee::Map(_) => return Err(Reason::MapAccessed),
            Pointee::Context => {
                let register = context::Register::at(start as i16).filter(|_| into.len() <= 8);
                let register = register.ok_or(Reason::NotARegister {
                    start: start as i64,
                })?;
                let value = self.environment.register(register).to_le_bytes();
                into.copy_from_slice(&value[..into.len()]);
            }
            Pointee::Stack => {
                if let Some(unset) = range.clone().find(|byte| !self.stack.is_set[*byte]) {
                    return Err(Reason::StackNotSet {
                        offset: unset as i32 - STACK_BYTES as i32,
                    });
                }
                into.copy_from_slice(&self.stack.bytes[range]);
            }
            Pointee::Memory => into.copy_from_slice(&self.memory[range]),
            Pointee::Object(object) => {
                into.copy_from_slice(&self.environment.bytes(object)[range]);
            }
        }
        Ok(())
    }

    /// Writes to the memory that a pointer points to. A number is refused.
    fn write(&mut self, pointer: Value, bytes: &[u8]) -> Result<(), Reason> {
        if pointer.to == Pointee::Context {
            return Err(Reason::ContextWritten);
        }
        let start = self.inside(pointer, bytes.len())?;
        let range = start..start + bytes.len();
        match pointer.to {
            Pointee::None | Pointee::Map(_) | Pointee::Context => {
                return Err(Reason::MapAccessed);
            }
            Pointee::Stack => {
                self.stack.bytes[range.clone()].copy_from_slice(bytes);
                self.stack.is_set[range.clone()].fill(true);
                if !bytes.is_empty() {
                    self.stack.to[range.start / 8..=(range.end - 1) / 8].fill(Pointee::None);
                }
            }
            Pointee::Memory => self.memory[range].copy_from_slice(bytes),
            Pointee::Object(object) => {
                self.environment.bytes(object)[range].copy_from_slice(bytes);
            }
        }
        Ok(())
    }
}

fn moved(base: Value, offset: i16) -> Value {
    Value {
        number: base.number.wrapping_add_signed(i64::from(offset)),
        ..base
    }
}

const fn low_bits(size: Size) -> u64 {
    u64::MAX >> (64 - size.bytes() * 8)
}

/// The thing that the result of `a OP b` points to.
fn pointee_after(width: Width, op: bpf::AluOp, a: Value, b: Value) -> Pointee {
    match (width, op) {
        (Width::W64, bpf::AluOp::Add | bpf::AluOp::Sub) if a.is_pointer() && !b.is_pointer() => {
            a.to
        }
        (Width::W64, bpf::AluOp::Add) if b.is_pointer() && !a.is_pointer() => b.to,
        _ => Pointee::None,
    }
}
