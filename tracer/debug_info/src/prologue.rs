//! The first instructions of a function: they put arguments from registers into its frame.
//!
//! The debug information often says of such an argument that it is in the frame all the time. Until
//! it has been stored there it is in the register that it came in. Of others it says where they are
//! only after these instructions: what they moved tells where it was at the entry.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind,
};
use trace_interface::symbols::{Expression, Function, Operation, Register, Unavailable};

use crate::{image::Image, registers::general, value};

/// A register that is stored as the function received it.
#[derive(Clone, Copy, Debug)]
pub struct Store {
    /// The instruction.
    pub address: u64,
    /// Where, from a register: the frame pointer or the stack pointer.
    pub base: Register,
    pub offset: i64,
    pub bytes: u64,
    pub register: Register,
}

/// Whether an instruction may change a register.
fn writes(
    info: &mut InstructionInfoFactory,
    instruction: &Instruction,
    register: Register,
) -> bool {
    let mut used = info.info(instruction).used_registers().iter();
    used.any(|used| {
        !matches!(used.access(), OpAccess::Read | OpAccess::CondRead)
            && general(used.register()) == Some(register)
    })
}

/// Whether a function may put something into a register, by itself or by what it calls. A function
/// that puts nothing into `rax` has a result that its callers know without it.
pub fn sets(image: &Image, address: u64, bytes: u64, register: Register) -> bool {
    let code = image.code(address, bytes);
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut info = InstructionInfoFactory::new();
    let own = address..address.saturating_add(bytes);
    for instruction in &mut decoder {
        let leaves = match instruction.flow_control() {
            FlowControl::Next | FlowControl::Return | FlowControl::Exception => false,
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                !own.contains(&instruction.near_branch_target())
            }
            // Another function may set it.
            _ => true,
        };
        if leaves || writes(&mut info, &instruction, register) || instruction.is_invalid() {
            return true;
        }
    }
    false
}

/// Whether a function has a return before which it puts something into a register that it does not
/// read again. Compilers do that with results only, but where an instruction has a second result,
/// or another function is called.
pub fn leaves(image: &Image, address: u64, bytes: u64, register: Register) -> bool {
    let code = image.code(address, bytes);
    let decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let all: Vec<Instruction> = decoder.into_iter().collect();
    let mut info = InstructionInfoFactory::new();
    let mut is_put = |instruction: &Instruction| {
        instruction.op0_kind() == OpKind::Register
            && general(instruction.op0_register()) == Some(register)
            && writes(&mut info, instruction, register)
    };
    let puts: Vec<usize> = (0..all.len()).filter(|at| is_put(&all[*at])).collect();
    puts.into_iter().any(|at| is_left(&all, at + 1, register))
}

/// How many instructions there may be between the last use of a register and a return.
const END: usize = 64;

/// Whether code goes on from the instruction `at` to a return, as far as it is seen, and does not
/// use a register.
fn is_left(all: &[Instruction], mut at: usize, register: Register) -> bool {
    let mut info = InstructionInfoFactory::new();
    for _ in 0..END {
        let Some(instruction) = all.get(at) else {
            return false;
        };
        let mut used = info.info(instruction).used_registers().iter();
        if used.any(|used| general(used.register()) == Some(register)) {
            return false;
        }
        at += 1;
        match instruction.flow_control() {
            FlowControl::Return => return true,
            FlowControl::Next | FlowControl::ConditionalBranch => {}
            FlowControl::UnconditionalBranch => {
                let target = instruction.near_branch_target();
                match all.binary_search_by_key(&target, Instruction::ip) {
                    Ok(there) => at = there,
                    Err(_) => return false,
                }
            }
            _ => return false,
        }
    }
    false
}

/// Whether a function names memory by a register, `end` bytes behind it or more.
pub fn names_behind(
    image: &Image,
    (address, bytes): (u64, u64),
    register: Option<Register>,
    end: i64,
) -> bool {
    let code = image.code(address, bytes);
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    decoder.iter().any(|instruction| {
        let offset = instruction.memory_displacement64().cast_signed();
        let base = instruction.memory_base();
        let by_register = base.is_gpr64() && general(base) == register;
        by_register && register.is_some() && (end..1 << 16).contains(&offset)
    })
}

/// Checks that an instruction of a function begins so many bytes after its beginning.
///
/// # Errors
/// [`Unavailable`], with the instructions around that place.
pub fn instruction(image: &Image, function: &Function, offset: u64) -> Result<(), Unavailable> {
    let code = image.code(function.address, function.bytes);
    let name = &function.path;
    if offset >= function.bytes {
        return Err(Unavailable {
            reason: format!("`{name}` has {} bytes of code", function.bytes),
            help: "its first byte is at `+0`".into(),
        });
    }
    for instruction in &mut Decoder::with_ip(64, code, 0, DecoderOptions::NONE) {
        // What follows is no code that can be told apart: the kernel decides.
        if instruction.is_invalid() || instruction.ip() == offset {
            break;
        }
        let before = instruction.ip();
        let next = instruction.next_ip();
        if next > offset {
            let help = match next < function.bytes {
                true => format!("instructions begin at `+{before}` and at `+{next}`"),
                false => format!("the last instruction begins at `+{before}`"),
            };
            return Err(Unavailable {
                reason: format!("no instruction of `{name}` begins at `+{offset}`"),
                help,
            });
        }
    }
    Ok(())
}

/// The moves of a function up to its first branch. Its expressions mean the registers at the entry.
#[derive(Clone, Debug, Default)]
pub struct Prologue {
    pub stores: Vec<Store>,
    /// Where the first branch is.
    pub end: u64,
    /// From which address on a register holds what. None is what was not there at the entry.
    written: Vec<(u64, Register, Option<Expression>)>,
}

/// That of the function at an address.
pub fn read(image: &Image, address: u64, bytes: u64) -> Prologue {
    let code = image.code(address, bytes);
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut info = InstructionInfoFactory::new();
    let mut prologue = Prologue {
        end: address,
        ..Prologue::default()
    };
    for instruction in &mut decoder {
        prologue.end = instruction.ip();
        if instruction.flow_control() != FlowControl::Next || instruction.is_invalid() {
            break;
        }
        if let Some(store) = store(&instruction)
            && prologue.held(store.register, instruction.ip())
                == Some(Expression::Register(store.register))
        {
            prologue.stores.push(store);
        }
        let copied = prologue.copied(&instruction);
        for used in info.info(&instruction).used_registers() {
            if !matches!(used.access(), OpAccess::Read | OpAccess::CondRead)
                && let Some(register) = general(used.register())
            {
                let value = copied
                    .clone()
                    .filter(|_| general(instruction.op0_register()) == Some(register));
                prologue
                    .written
                    .push((instruction.next_ip(), register, value));
            }
        }
    }
    prologue
}

impl Prologue {
    /// The content of a register at an address, if that was there at the entry.
    pub fn held(&self, register: Register, address: u64) -> Option<Expression> {
        let last = self
            .written
            .iter()
            .rev()
            .find(|(from, written, _)| *written == register && *from <= address);
        match last {
            Some((_, _, value)) => value.clone(),
            None => Some(Expression::Register(register)),
        }
    }

    /// The value that an instruction moves into a register, if that was there at the entry.
    fn copied(&self, instruction: &Instruction) -> Option<Expression> {
        let whole = instruction.op0_kind() == OpKind::Register
            && matches!(instruction.op0_register().size(), 4 | 8);
        let moves = matches!(instruction.mnemonic(), Mnemonic::Mov | Mnemonic::Movzx);
        if !whole || !moves {
            return None;
        }
        let bytes = match instruction.op1_kind() {
            OpKind::Register => instruction.op1_register().size(),
            OpKind::Memory => instruction.memory_size().size(),
            _ => return None,
        };
        if instruction.op1_kind() == OpKind::Register {
            let value = self.held(general(instruction.op1_register())?, instruction.ip())?;
            let kept = match bytes {
                8 => return Some(value),
                4 => u64::from(u32::MAX),
                _ => return None,
            };
            return Some(value::binary(
                Operation::And,
                value,
                Expression::Constant(kept),
            ));
        }
        let by_frame = instruction.memory_base() == iced_x86::Register::RBP
            && instruction.memory_index() == iced_x86::Register::None;
        let offset = instruction.memory_displacement64().cast_signed();
        (by_frame && is_argument(offset)).then(|| Expression::Load {
            address: Box::new(argument(offset)),
            bytes: bytes.try_into().unwrap_or(8),
        })
    }

    /// An expression that holds at an address after the beginning, as one of the entry.
    pub fn at_entry(&self, expression: &Expression, address: u64) -> Option<Expression> {
        Some(match expression {
            Expression::Constant(value) => Expression::Constant(*value),
            Expression::Register(Register::Bp | Register::Sp) | Expression::AtEntry(_) => {
                return None;
            }
            Expression::Register(register) => self.held(*register, address)?,
            Expression::Load { address: at, bytes } => Expression::Load {
                address: Box::new(self.at_entry(at, address)?),
                bytes: *bytes,
            },
            Expression::Binary(operation, a, b) => match (operation, &**a, &**b) {
                (
                    Operation::Add,
                    Expression::Register(Register::Bp),
                    Expression::Constant(offset),
                ) if is_argument(offset.cast_signed()) => argument(offset.cast_signed()),
                _ => value::binary(
                    *operation,
                    self.at_entry(a, address)?,
                    self.at_entry(b, address)?,
                ),
            },
        })
    }
}

/// Whether an offset from the frame pointer is that of an argument on the stack: above the frame
/// pointer are the caller's, the return address, and the arguments.
fn is_argument(offset: i64) -> bool {
    (16..1 << 16).contains(&offset)
}

/// The address of an argument on the stack, whose offset from the frame pointer is known.
fn argument(offset: i64) -> Expression {
    // The caller's frame pointer is pushed first.
    value::plus(Expression::Register(Register::Sp), offset - 8)
}

fn store(instruction: &Instruction) -> Option<Store> {
    use iced_x86::Register as Known;
    let to_frame = instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_kind() == OpKind::Memory
        && instruction.op1_kind() == OpKind::Register
        && matches!(instruction.memory_base(), Known::RBP | Known::RSP)
        && instruction.memory_index() == Known::None;
    let source = instruction.op1_register();
    // The second byte of a register has no name of its own for a probe.
    if !to_frame || matches!(source, Known::AH | Known::BH | Known::CH | Known::DH) {
        return None;
    }
    Some(Store {
        address: instruction.ip(),
        base: general(instruction.memory_base())?,
        offset: instruction.memory_displacement64().cast_signed(),
        bytes: source.size() as u64,
        register: general(source)?,
    })
}
