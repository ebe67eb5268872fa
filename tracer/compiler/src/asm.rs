//! Instructions of one program, with labels, a stack, and a beginning that is written last.
//!
//! # Registers
//! `r6` is the context and stays it. `r7` is a record while one is reserved, `r8` a value of a map
//! within one operation, `r9` the data that entry and return share. `r0` to `r5` hold what is being
//! calculated; `r10` is the stack.
//!
//! # Forgetting
//! The verifier walks all paths, and takes two paths for one only if it knows of both the same. A
//! constant in the stack is such knowledge. So a program with many branches may have too many paths
//! to walk. Such a program is made once more in the forgetful way ([`Asm::forgetful`]): each byte
//! of the stack is set at the beginning, and each number is hidden from the verifier before it is
//! stored there.

use alloc::vec::Vec;

use bpf::{
    AluOp, Condition, Helper, Insn, MapIndex, Operand, Reg, STACK_BYTES, Size, Target, Width,
    context::Register,
};

use crate::memory::{Memory, Place, step};

/// A place that jumps name before it is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label(u16);

#[derive(Default)]
pub(crate) struct Asm {
    insns: Vec<Insn>,
    labels: Vec<Option<usize>>,
    /// The script's numbers of the maps that the program uses.
    pub(crate) maps: Vec<u32>,
    pub(crate) forgetful: bool,
    /// Whether `r6` is used.
    needs_context: bool,
}

impl Asm {
    pub(crate) fn new(forgetful: bool) -> Self {
        Self {
            forgetful,
            ..Self::default()
        }
    }

    pub(crate) fn push(&mut self, insn: Insn) {
        self.insns.push(insn);
    }

    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() as u16 - 1)
    }

    pub(crate) fn place(&mut self, label: Label) {
        self.labels[usize::from(label.0)] = Some(self.insns.len());
    }

    pub(crate) fn mov(&mut self, dst: Reg, operand: impl Into<Operand>) {
        self.alu(AluOp::Mov, dst, operand);
    }

    pub(crate) fn alu(&mut self, op: AluOp, dst: Reg, operand: impl Into<Operand>) {
        self.push(Insn::Alu {
            width: Width::W64,
            op,
            dst,
            operand: operand.into(),
        });
    }

    pub(crate) fn set(&mut self, dst: Reg, value: u64) {
        match i32::try_from(value.cast_signed()) {
            Ok(imm) => self.mov(dst, imm),
            Err(_) => self.push(Insn::LoadImm { dst, value }),
        }
    }

    pub(crate) fn context(&mut self, dst: Reg, register: Register) {
        self.needs_context = true;
        self.load(
            dst,
            Place {
                base: Reg::R6,
                offset: register.offset(),
            },
            8,
            false,
        );
    }

    /// `dst = r6`, for helpers.
    pub(crate) fn context_pointer(&mut self, dst: Reg) {
        self.needs_context = true;
        self.mov(dst, Reg::R6);
    }

    pub(crate) fn load(&mut self, dst: Reg, from: Place, bytes: u8, signed: bool) {
        self.push(Insn::Load {
            dst,
            base: from.base,
            offset: from.offset,
            size: size(bytes),
            signed: signed && bytes < 8,
        });
    }

    /// Stores the low bytes of `reg`. `r4` is lost.
    pub(crate) fn store(&mut self, to: Place, bytes: u8, reg: Reg) {
        if self.forgetful && to.base == Reg::R10 && reg != Reg::R4 {
            self.opaque_zero(Reg::R4);
            self.alu(AluOp::Add, reg, Reg::R4);
        }
        self.push(Insn::Store {
            base: to.base,
            offset: to.offset,
            size: size(bytes),
            value: reg.into(),
        });
    }

    /// Stores a constant. `r3` and `r4` are lost.
    pub(crate) fn store_constant(&mut self, to: Place, bytes: u8, value: u64) {
        let imm = i32::try_from(value.cast_signed()).ok();
        match imm.filter(|_| !self.forgetful) {
            Some(imm) => self.push(Insn::Store {
                base: to.base,
                offset: to.offset,
                size: size(bytes),
                value: imm.into(),
            }),
            None => {
                self.set(Reg::R3, value);
                self.store(to, bytes, Reg::R3);
            }
        }
    }

    /// Stores a constant that the verifier shall know. `r3` is lost.
    pub(crate) fn store_plain(&mut self, to: Place, value: u64) {
        self.set(Reg::R3, value);
        self.store_register_plain(to, Reg::R3);
    }

    /// Stores a register, and hides nothing.
    pub(crate) fn store_register_plain(&mut self, to: Place, reg: Reg) {
        self.push(Insn::Store {
            base: to.base,
            offset: to.offset,
            size: Size::B8,
            value: reg.into(),
        });
    }

    /// A zero that the verifier takes for any number.
    pub(crate) fn opaque_zero(&mut self, reg: Reg) {
        self.context(reg, Register::Ax);
        self.alu(AluOp::Xor, reg, reg);
    }

    /// Fills memory with zeros that the verifier takes for any numbers. `r4` is lost.
    pub(crate) fn fill(&mut self, to: Place, bytes: u32) {
        self.opaque_zero(Reg::R4);
        let mut at = 0;
        while at < bytes {
            let step = step(bytes - at);
            self.store(to.at(at), step, Reg::R4);
            at += u32::from(step);
        }
    }

    /// Fills memory with zeros. `r3` and `r4` are lost.
    pub(crate) fn zero(&mut self, to: Place, bytes: u32) {
        let mut at = 0;
        while at < bytes {
            let step = step(bytes - at);
            self.store_constant(to.at(at), step, 0);
            at += u32::from(step);
        }
    }

    /// Copies memory of the program's own. `r3` and `r4` are lost.
    pub(crate) fn copy(&mut self, from: Place, to: Place, bytes: u32) {
        let mut at = 0;
        while at < bytes {
            let step = step(bytes - at);
            self.load(Reg::R3, from.at(at), step, false);
            self.store(to.at(at), step, Reg::R3);
            at += u32::from(step);
        }
    }

    /// `dst = ` the address of memory of the program's own.
    pub(crate) fn address(&mut self, dst: Reg, of: Place) {
        self.mov(dst, of.base);
        if of.offset != 0 {
            self.alu(AluOp::Add, dst, i32::from(of.offset));
        }
    }

    pub(crate) fn jump(&mut self, label: Label) {
        self.push(Insn::Jump {
            target: Target(label.0),
        });
    }

    pub(crate) fn branch(
        &mut self,
        condition: Condition,
        dst: Reg,
        operand: impl Into<Operand>,
        label: Label,
    ) {
        self.push(Insn::Branch {
            width: Width::W64,
            condition,
            dst,
            operand: operand.into(),
            target: Target(label.0),
        });
    }

    pub(crate) fn call(&mut self, helper: Helper) {
        self.push(Insn::Call { helper });
    }

    /// `dst = ` the map with that number in the script.
    pub(crate) fn map(&mut self, dst: Reg, map: u32) {
        let known = self.maps.iter().position(|of| *of == map);
        let number = known.unwrap_or_else(|| {
            self.maps.push(map);
            self.maps.len() - 1
        });
        self.push(Insn::LoadMap {
            dst,
            map: MapIndex(number as u16),
        });
    }

    pub(crate) fn exit(&mut self, result: i32) {
        self.mov(Reg::R0, result);
        self.push(Insn::Exit);
    }

    /// The instructions with their beginning, and jumps resolved.
    pub(crate) fn finish(mut self, memory: &Memory) -> Vec<Insn> {
        let body = core::mem::take(&mut self.insns);
        let sets_stack = self.forgetful && memory.deepest() > 0;
        if self.needs_context || sets_stack {
            self.mov(Reg::R6, Reg::R1);
        }
        if sets_stack {
            let bytes = memory.deepest().min(STACK_BYTES as u32);
            self.forgetful = false;
            self.fill(Place::stack(-(bytes as i16)), bytes);
        }
        if !sets_stack {
            for (place, bytes) in memory.zeroed() {
                self.zero(*place, *bytes);
            }
        }
        if memory.shares {
            self.call(Helper::EntryData);
            self.mov(Reg::R9, Reg::R0);
        }
        let first = self.insns.len();
        self.insns.extend(body);
        let labels = self.labels;
        for insn in &mut self.insns {
            if let Insn::Jump { target } | Insn::Branch { target, .. } = insn {
                let place = labels[usize::from(target.0)].map_or(0, |place| place + first);
                *target = Target(place as u16);
            }
        }
        self.insns
    }
}

/// The size of a power of two.
pub(crate) fn size(bytes: u8) -> Size {
    match bytes {
        1 => Size::B1,
        2 => Size::B2,
        4 => Size::B4,
        _ => Size::B8,
    }
}
