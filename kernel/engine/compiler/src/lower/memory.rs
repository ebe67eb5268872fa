//! Loads, stores and atomic operations.
//!
//! Only a load of kernel memory may fault. It is in the form that [`mend`](crate::mend()) knows,
//! and a base that is not the kernel's is refused by code out of line ([`Refused`]). All else lies
//! in memory that is there, as the verifier has found out.

use bpf::{AtomicOp, Insn, Memory, Operand, ProgramKind, Reg, Size, Width, context::Register};
use fallible::push;

use super::{
    Lower, Place, Refused,
    arithmetic::operation,
    size_of_access,
    values::{beside_memory, in_instance},
};
use crate::{
    ADDRESS_BEFORE_RETURN, BreakpointFrame, CompileError, Form, INSTANCE_RETURN_ADDRESS,
    KERNEL_MEMORY_END, WatchpointFrame,
    asm::{self, Asm, Bytes, Cc, Gpr, Mem, Op, Rm, Src},
    flow::Value,
};

impl Lower<'_> {
    /// Where a load, store or atomic operation goes that cannot fault.
    pub(super) fn memory(&mut self, base: Reg, offset: i16) -> Result<Mem, CompileError> {
        Ok(match self.env.memory(self.at)? {
            Memory::Stack { offset } => self.stack(i32::from(offset)),
            _ => {
                let place = self.place(base);
                Mem::at(self.in_register(place), i32::from(offset))
            }
        })
    }

    pub(super) fn load_memory(
        &mut self,
        dst: Reg,
        base: Reg,
        offset: i16,
        size: Size,
        signed: bool,
    ) -> Result<(), CompileError> {
        let to = self.phys(dst);
        let bytes = size_of_access(size);
        match self.env.memory(self.at)? {
            Memory::Context { offset } => {
                let Some(register) = Register::at(offset) else {
                    return Err(CompileError::NoFact { insn: self.at });
                };
                self.load_context(to, register, bytes, signed);
            }
            Memory::Kernel => {
                let place = self.place(base);
                let mut base = self.in_register(place);
                if base.0 & 7 == asm::RSP.0 {
                    let from = base;
                    self.taken.add(from);
                    base = self.scratch();
                    if base.0 & 7 == asm::RSP.0 {
                        base = self.scratch();
                    }
                    self.asm.mov(Bytes::B8, base, Rm::Reg(from));
                }
                // The lower half is above it, too, by sign.
                let end = Src::Imm(KERNEL_MEMORY_END);
                self.asm.op(Op::Cmp, Bytes::B8, Rm::Reg(base), end);
                let hole = self.asm.jcc(Cc::GreaterOrEqual);
                self.asm
                    .mov_mendable(to, base, i32::from(offset), bytes, signed);
                let refused = Refused {
                    hole,
                    dst: to,
                    back: self.asm.here(),
                    level: self.level,
                };
                push(&mut self.refused, refused)?;
            }
            Memory::Stack { .. } | Memory::Own => {
                let mem = self.memory(base, offset)?;
                self.asm.mov_extended(to, Rm::Mem(mem), bytes, signed);
            }
        }
        Ok(())
    }

    /// `to = ` the low bytes of a register of the probed code, extended.
    pub(super) fn load_context(&mut self, to: Gpr, register: Register, bytes: Bytes, signed: bool) {
        match (self.env.form, register) {
            (_, Register::Ip) => self.load_ip(to),
            (Form::Jump { .. } | Form::Call, Register::Cs) => self.asm.mov_cs(to),
            (Form::Jump { .. } | Form::Call, Register::Ss) => self.asm.mov_ss(to),
            _ => match self.probed(register) {
                Place::Rm(from) if bytes != Bytes::B8 => {
                    return self.asm.mov_extended(to, from, bytes, signed);
                }
                place => self.load(to, place),
            },
        }
        if bytes != Bytes::B8 {
            self.asm.mov_extended(to, Rm::Reg(to), bytes, signed);
        }
    }

    /// `to = ` the probed address, or where the call returns to.
    pub(super) fn load_ip(&mut self, to: Gpr) {
        let context_ip = i32::from(Register::Ip.offset());
        match (self.env.form, self.env.kind()) {
            (Form::Jump { .. }, _) => {
                let at = self.above_return(0);
                self.asm.mov(Bytes::B8, to, Rm::Mem(at));
                let at = Mem::at(to, -ADDRESS_BEFORE_RETURN);
                self.asm.mov(Bytes::B8, to, Rm::Mem(at));
            }
            (Form::Breakpoint, _) => {
                let at = self.above_return(8 + BreakpointFrame::IP);
                self.asm.mov(Bytes::B8, to, Rm::Mem(at));
                self.asm.lea(to, Mem::at(to, -1));
            }
            (Form::Watchpoint, _) => {
                let at = WatchpointFrame::REST + BreakpointFrame::IP;
                let at = self.above_return(8 + at);
                self.asm.mov(Bytes::B8, to, Rm::Mem(at));
            }
            (Form::Call, ProgramKind::Return { .. }) => {
                let address = in_instance(self, to, INSTANCE_RETURN_ADDRESS);
                self.asm.mov(Bytes::B8, to, Rm::Mem(address));
            }
            (_, ProgramKind::Probe) => {
                let at = Mem::at(self.context(), context_ip);
                self.asm.mov(Bytes::B8, to, Rm::Mem(at));
                self.asm.lea(to, Mem::at(to, -1));
            }
            (_, ProgramKind::Entry { .. }) => load_function(self, to),
            (_, ProgramKind::Return { .. }) => {
                let at = Mem::at(self.context(), context_ip);
                self.asm.mov(Bytes::B8, to, Rm::Mem(at));
            }
        }
    }

    pub(super) fn store_memory(
        &mut self,
        base: Reg,
        offset: i16,
        size: Size,
        value: Operand,
    ) -> Result<(), CompileError> {
        let mem = self.memory(base, offset)?;
        let bytes = size_of_access(size);
        let place = self.operand(value);
        let imm = match (place, size) {
            (Place::Imm(value), Size::B8) => i32::try_from(value as i64).ok(),
            (Place::Imm(value), _) => Some(value as i32),
            _ => None,
        };
        match imm {
            Some(imm) => self.asm.store_imm(mem, imm, bytes),
            None => {
                let src = self.in_register(place);
                self.asm.store(mem, src, bytes);
            }
        }
        Ok(())
    }

    pub(super) fn atomic(&mut self, op: AtomicOp, mem: Mem, size: Bytes, reg: Reg) {
        let fetches = match op {
            AtomicOp::Add { fetch } => fetch.then_some(Op::Add),
            AtomicOp::Or { fetch } => fetch.then_some(Op::Or),
            AtomicOp::And { fetch } => fetch.then_some(Op::And),
            AtomicOp::Xor { fetch } => fetch.then_some(Op::Xor),
            AtomicOp::Exchange => {
                let gpr = self.own(reg);
                return self.asm.xchg(size, mem, gpr);
            }
            AtomicOp::CompareExchange => return self.compare_exchange(mem, size, reg),
        };
        match fetches {
            Some(Op::Add) => {
                let gpr = self.own(reg);
                self.asm.lock_xadd(size, mem, gpr);
            }
            Some(op) => self.fetch(op, mem, size, reg),
            None => {
                let op = match op {
                    AtomicOp::Or { .. } => Op::Or,
                    AtomicOp::And { .. } => Op::And,
                    AtomicOp::Xor { .. } => Op::Xor,
                    _ => Op::Add,
                };
                let width = match size {
                    Bytes::B4 => Width::W32,
                    _ => Width::W64,
                };
                let place = self.place(reg);
                let src = beside_memory(self, width, place);
                self.asm.op_locked(op, size, mem, src);
            }
        }
    }

    /// `mem` and `gpr` with another register in place of `rax`, if they name it. That register also
    /// keeps the content of `rax`.
    fn away_from_rax(&mut self, mem: Mem, gpr: Gpr, needed: bool) -> (Mem, Gpr, Option<Gpr>) {
        self.taken.add(asm::RAX);
        let in_mem = mem.base == Some(asm::RAX);
        if !(needed || in_mem || gpr == asm::RAX) {
            return (mem, gpr, None);
        }
        let copy = self.scratch();
        self.asm.mov(Bytes::B8, copy, Rm::Reg(asm::RAX));
        let base = if in_mem { Some(copy) } else { mem.base };
        let gpr = if gpr == asm::RAX { copy } else { gpr };
        (Mem { base, ..mem }, gpr, needed.then_some(copy))
    }

    /// `mem, reg = mem OP reg, mem`.
    fn fetch(&mut self, op: Op, mem: Mem, size: Bytes, reg: Reg) {
        let to = self.phys(reg);
        let place = self.place(reg);
        let src = self.in_register(place);
        let needed = self.is_needed(asm::RAX, Some(reg));
        let (mem, src, copy) = self.away_from_rax(mem, src, needed);
        let new = self.scratch();
        self.asm.mov_extended(asm::RAX, Rm::Mem(mem), size, false);
        let again = self.asm.here();
        self.asm.mov(Bytes::B8, new, Rm::Reg(asm::RAX));
        self.asm.op(op, size, Rm::Reg(new), Src::Rm(Rm::Reg(src)));
        self.asm.lock_cmpxchg(size, mem, new);
        let hole = self.asm.jcc(Cc::NotEqual);
        self.asm.fill(hole, again);
        mov_sized(&mut self.asm, size, to, asm::RAX);
        if let Some(copy) = copy {
            self.asm.mov(Bytes::B8, asm::RAX, Rm::Reg(copy));
        }
    }

    fn compare_exchange(&mut self, mem: Mem, size: Bytes, reg: Reg) {
        let to = self.phys(Reg::R0);
        let new = self.place(reg);
        let new = self.in_register(new);
        let expected = self.place(Reg::R0);
        let needed = self.is_needed(asm::RAX, Some(Reg::R0));
        // The content of `rax` may be expected, too: it is loaded before it changes.
        let (mem, new, copy) = self.away_from_rax(mem, new, needed);
        self.load(asm::RAX, expected);
        self.asm.lock_cmpxchg(size, mem, new);
        mov_sized(&mut self.asm, size, to, asm::RAX);
        if let Some(copy) = copy {
            self.asm.mov(Bytes::B8, asm::RAX, Rm::Reg(copy));
        }
    }
}

/// Compiles a load, the arithmetic that follows it, and the store of its result to the same
/// place as one instruction, if that has their effect. Returns whether it does.
pub(super) fn change_in_memory(lower: &mut Lower) -> Result<bool, CompileError> {
    let at = lower.at;
    let Some(
        &[
            Insn::Load {
                dst,
                base,
                offset,
                size,
                ..
            },
            Insn::Alu {
                width,
                op,
                dst: changed,
                operand,
            },
            Insn::Store {
                base: store_base,
                offset: store_offset,
                size: store_size,
                value: Operand::Reg(stored),
            },
        ],
    ) = lower.env.insns().get(at..at + 3)
    else {
        return Ok(false);
    };
    let Some(op) = operation(op) else {
        return Ok(false);
    };
    let is_one_place = (base, offset, size) == (store_base, store_offset, store_size);
    let is_one_number = dst == changed && dst == stored && operand != Operand::Reg(dst);
    let is_whole = size != Size::B8 || width == Width::W64;
    let may_be_needed = lower.flow.live_out[at + 2].has(dst);
    if !is_one_place || !is_one_number || base == dst || !is_whole || may_be_needed {
        return Ok(false);
    }
    // Programs write no other memory.
    if !matches!(lower.env.memory(at)?, Memory::Own | Memory::Stack { .. }) {
        return Ok(false);
    }
    let (Some(before), Some(_)) = (lower.flow.before[at + 1], lower.flow.before[at + 2]) else {
        return Ok(false);
    };
    let is_known = |at, before| {
        let value = lower.env.defines(at, before);
        value.is_none_or(|(_, value)| value != Value::Unknown)
    };
    if is_known(at, &lower.before)
        || is_known(at + 1, &before)
        || lower.env.is_entered(at + 1..at + 3)
    {
        return Ok(false);
    }
    let bytes = size_of_access(size);
    let place = lower.operand(operand);
    let src = match (bytes, place) {
        (Bytes::B1 | Bytes::B4, Place::Imm(value)) => Src::Imm(value as i32),
        (Bytes::B4 | Bytes::B8, place) => beside_memory(lower, Width::W64, place),
        _ => return Ok(false),
    };
    let mem = lower.memory(base, offset)?;
    lower.asm.op(op, bytes, Rm::Mem(mem), src);
    Ok(true)
}

/// `to = ` the function whose call this is.
pub(super) fn load_function(lower: &mut Lower, to: Gpr) {
    let running = Mem::gs(lower.machine.running);
    lower.asm.mov(Bytes::B8, to, Rm::Mem(running));
    // A return handler may run for a trap, which marks the pointer.
    if let ProgramKind::Return { .. } = lower.env.kind() {
        let rest = Src::Imm(!lower.machine.marks_of_running);
        lower.asm.op(Op::And, Bytes::B8, Rm::Reg(to), rest);
    }
    let address = Mem::at(to, lower.machine.address_in_probe);
    lower.asm.mov(Bytes::B8, to, Rm::Mem(address));
}

/// `to = ` the low bytes of `from`.
fn mov_sized(asm: &mut Asm, size: Bytes, to: Gpr, from: Gpr) {
    if size != Bytes::B8 || to != from {
        asm.mov(size, to, Rm::Reg(from));
    }
}
