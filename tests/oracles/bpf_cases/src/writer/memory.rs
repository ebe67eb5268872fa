//! Loads, stores and atomic operations, and pointers on their way.
//!
//! An access goes through a register that holds a pointer, inside of what it points to. Pointers
//! are spilled to the stack, loaded again, and moved by numbers between bounds.

use bpf::{
    AluOp, AtomicOp, Insn,
    Reg::{self, R0, R6, R10},
    STACK_BYTES, Size, Width,
    context::{self, Register},
};

use super::{Holds, Writer, bit};
use crate::{
    mistakes::{SIZES, atomic, imm},
    world,
};

impl Writer<'_> {
    pub(super) fn load_register(&mut self) {
        let dst = self.writable();
        let register = self.random.of(&Register::ALL);
        debug_assert!(register.offset() < context::BYTES);
        let size = if self.random.one_in(4) {
            self.random.of(&SIZES)
        } else {
            Size::B8
        };
        self.insns.push(Insn::Load {
            dst,
            base: R6,
            offset: register.offset(),
            size,
            signed: size != Size::B8 && self.random.one_in(8),
        });
        self.set(dst, Holds::Number);
    }

    /// Bytes of what a pointer to it may access, and where they begin from the pointer.
    pub(super) fn extent(&self, holds: Holds) -> Option<(i32, i32)> {
        match holds {
            Holds::Stack(at) => Some((-(STACK_BYTES as i32) - i32::from(at), STACK_BYTES as i32)),
            Holds::Value(map) => Some((0, self.maps[map].value_size as i32)),
            Holds::Record(size) => Some((0, size as i32)),
            Holds::EntryData => Some((0, self.kind.shared_bytes() as i32)),
            Holds::Nothing | Holds::Number | Holds::Context => None,
        }
    }

    /// A place of that many bytes inside of what the pointer accesses.
    fn offset(&mut self, holds: Holds, bytes: u32, is_aligned: bool) -> Option<i16> {
        let (from, size) = self.extent(holds)?;
        let last = size - bytes as i32;
        if last < 0 {
            return None;
        }
        // The places that programs use most are near to each other, so that they meet again.
        let near = match holds {
            Holds::Stack(_) if !self.random.one_in(8) => (last - 56).max(0),
            _ => 0,
        };
        let mut place = near + self.random.below((last - near + 1) as u64) as i32;
        if is_aligned || !self.random.one_in(4) {
            place -= place % bytes as i32;
        }
        i16::try_from(from + place).ok()
    }

    /// The index in the stack of the byte at that offset of that pointer.
    fn stack_byte(holds: Holds, offset: i16) -> Option<usize> {
        match holds {
            Holds::Stack(at) => {
                usize::try_from(STACK_BYTES as i32 + i32::from(at) + i32::from(offset)).ok()
            }
            _ => None,
        }
    }

    /// Notes that numbers were written to the stack. False if pointers are there that must stay.
    pub(super) fn overwrite(&mut self, first: usize, bytes: usize) -> bool {
        let slots = first / 8..=(first + bytes - 1) / 8;
        let has_pointers = slots
            .clone()
            .any(|slot| self.state.pointers[slot] != Holds::Nothing);
        if has_pointers && self.in_loop {
            return false;
        }
        for slot in slots {
            if self.state.pointers[slot] != Holds::Nothing {
                self.state.pointers[slot] = Holds::Nothing;
                self.state.is_set[slot * 8..slot * 8 + 8].fill(false);
            }
        }
        self.state.is_set[first..first + bytes].fill(true);
        true
    }

    fn is_readable(&self, first: usize, bytes: usize) -> bool {
        let slots = first / 8..=(first + bytes - 1) / 8;
        self.state.is_set[first..first + bytes]
            .iter()
            .all(|set| *set)
            && self.state.pointers[slots]
                .iter()
                .all(|pointer| *pointer == Holds::Nothing)
    }

    /// A load, a store, or an atomic operation through a pointer.
    pub(super) fn access(&mut self) {
        let base = if self.random.one_in(2) {
            Some(R10)
        } else {
            let accessible = |holds| {
                matches!(
                    holds,
                    Holds::Stack(_) | Holds::Value(_) | Holds::Record(_) | Holds::EntryData
                )
            };
            self.find(accessible)
        };
        let Some(base) = base else { return };
        let holds = self.holds(base);
        let size = self.random.of(&SIZES);
        let what = self.random.below(5);
        let size = match what {
            4 if size == Size::B1 => Size::B4,
            4 if size == Size::B2 => Size::B8,
            _ => size,
        };
        let bytes = size.bytes() as usize;
        let Some(offset) = self.offset(holds, size.bytes(), what == 4) else {
            return;
        };
        let place = Self::stack_byte(holds, offset);
        let is_readable = place.is_none_or(|place| self.is_readable(place, bytes));
        match what {
            0 | 1 if is_readable => {
                let dst = self.writable();
                self.insns.push(Insn::Load {
                    dst,
                    base,
                    offset,
                    size,
                    signed: size != Size::B8 && self.random.one_in(4),
                });
                self.set(dst, Holds::Number);
                if dst != base && self.random.one_in(3) {
                    self.change(dst, (base, offset, size), place);
                }
            }
            4 if is_readable => {
                let op = atomic(self.random);
                let reg = self.number();
                let has_result = self.holds(R0) == Holds::Number && self.kept & 1 == 0;
                let fetches = !matches!(
                    op,
                    AtomicOp::Add { fetch: false }
                        | AtomicOp::Or { fetch: false }
                        | AtomicOp::And { fetch: false }
                        | AtomicOp::Xor { fetch: false }
                );
                let fits = match op {
                    AtomicOp::CompareExchange => has_result,
                    _ => !fetches || self.kept & bit(reg) == 0,
                };
                // Finding a number may have overwritten the base.
                if fits && self.holds(base) == holds {
                    self.insns.push(Insn::Atomic {
                        op,
                        base,
                        offset,
                        size,
                        reg,
                    });
                }
            }
            _ => {
                let value = self.operand();
                if self.holds(base) != holds {
                    return;
                }
                if place.is_none_or(|place| self.overwrite(place, bytes)) {
                    self.insns.push(Insn::Store {
                        base,
                        offset,
                        size,
                        value,
                    });
                }
            }
        }
    }

    /// Changes a number that was just loaded from there, and stores it back. Now and then only a
    /// part of it is stored.
    fn change(&mut self, dst: Reg, (base, offset, size): (Reg, i16, Size), place: Option<usize>) {
        const OPERATIONS: [AluOp; 6] = [
            AluOp::Add,
            AluOp::Sub,
            AluOp::And,
            AluOp::Or,
            AluOp::Xor,
            AluOp::Mul,
        ];
        let holds = self.holds(base);
        let operand = self.operand();
        if self.holds(base) != holds || self.holds(dst) != Holds::Number {
            return;
        }
        self.insns.push(Insn::Alu {
            width: if self.random.one_in(4) {
                Width::W32
            } else {
                Width::W64
            },
            op: self.random.of(&OPERATIONS),
            dst,
            operand,
        });
        let bytes = if self.random.one_in(8) {
            Size::B1
        } else {
            size
        };
        if place.is_none_or(|place| self.overwrite(place, bytes.bytes() as usize)) {
            self.insns.push(Insn::Store {
                base,
                offset,
                size: bytes,
                value: dst.into(),
            });
            // What nobody needs afterwards may never be in a register.
            if self.kept & bit(dst) == 0 && self.random.one_in(2) {
                self.constant(dst);
            }
        }
    }

    pub(super) fn kernel_load(&mut self) {
        let dst = self.writable();
        let base = if self.random.one_in(2) {
            let value = world::KERNEL + self.random.below(world::KERNEL_BYTES + 16) - 8;
            self.insns.push(Insn::LoadImm { dst, value });
            dst
        } else {
            self.number()
        };
        let size = self.random.of(&SIZES);
        self.insns.push(Insn::Load {
            dst,
            base,
            offset: self.random.below(64) as i16 - 8,
            size,
            signed: size != Size::B8 && self.random.one_in(4),
        });
        self.set(dst, Holds::Number);
    }

    /// Stores a pointer on the stack, or loads one that is there.
    pub(super) fn spill(&mut self) {
        let known = (0..self.state.pointers.len())
            .find(|slot| self.state.pointers[*slot] != Holds::Nothing);
        match known {
            Some(slot) if self.random.one_in(2) => {
                let dst = self.for_pointer();
                self.insns.push(Insn::Load {
                    dst,
                    base: R10,
                    offset: slot as i16 * 8 - STACK_BYTES as i16,
                    size: Size::B8,
                    signed: false,
                });
                self.set(dst, self.state.pointers[slot]);
            }
            // A record that is given back would be left behind.
            _ if self.in_loop => {}
            _ => {
                let spillable =
                    |holds| !matches!(holds, Holds::Nothing | Holds::Number | Holds::Record(_));
                let Some(reg) = self.find(spillable) else {
                    return;
                };
                let Some(offset) = self.buffer(8) else { return };
                self.insns.push(Insn::Store {
                    base: R10,
                    offset,
                    size: Size::B8,
                    value: reg.into(),
                });
                let slot = (STACK_BYTES as i16 + offset) as usize / 8;
                self.state.pointers[slot] = self.holds(reg);
            }
        }
    }

    /// A pointer moved by a number between bounds, and an access there.
    pub(super) fn walk_pointer(&mut self) {
        let movable = |holds| {
            matches!(
                holds,
                Holds::Stack(_) | Holds::Value(_) | Holds::Record(_) | Holds::EntryData
            )
        };
        let Some(from) = self.find(movable) else {
            return;
        };
        let holds = self.holds(from);
        let dst = self.for_pointer();
        if dst == from {
            return;
        }
        if let Holds::Stack(at) = holds
            && self.random.one_in(2)
        {
            // By a constant: the pointer stays known.
            let by = -8 * self.random.below(8) as i16;
            if at + by < -(STACK_BYTES as i16) {
                return;
            }
            self.mov(dst, from);
            self.alu(AluOp::Add, dst, i32::from(by));
            self.set(dst, Holds::Stack(at + by));
            return;
        }
        let Some((start, bytes)) = self.extent(holds) else {
            return;
        };
        // A power of two minus one for a mask; of an object of 8 bytes that is the first 8.
        let (start, room) = match holds {
            Holds::Stack(at) => (-64 - i32::from(at), 64),
            _ => (start, bytes),
        };
        if room < 8 {
            return;
        }
        let span = 1 << (room as u32).ilog2();
        let number = self.number();
        if self.holds(from) != holds || dst == number || number == from {
            return;
        }
        let distance = self.writable();
        if distance == dst || distance == from || self.kept & bit(distance) != 0 {
            return;
        }
        self.mov(distance, number);
        self.set(distance, Holds::Number);
        self.alu(AluOp::And, distance, span - 8);
        if self.random.one_in(2) {
            self.mov(dst, from);
            self.alu(AluOp::Add, dst, distance);
        } else {
            self.mov(dst, distance);
            self.alu(AluOp::Add, dst, from);
        }
        self.set(dst, Holds::Nothing);
        let size = self.random.of(&SIZES);
        let offset = start as i16 + self.random.below(9 - u64::from(size.bytes())) as i16;
        let is_stack = matches!(holds, Holds::Stack(_));
        let is_load = self.random.one_in(2);
        let reaches = STACK_BYTES - 64..STACK_BYTES;
        if is_stack && is_load && !self.is_readable(reaches.start, reaches.len()) {
            return;
        }
        let slots = reaches.start / 8..;
        let reaches_pointers = self.state.pointers[slots]
            .iter()
            .any(|pointer| *pointer != Holds::Nothing);
        if is_stack && reaches_pointers {
            return;
        }
        if is_load {
            let value = self.writable();
            self.insns.push(Insn::Load {
                dst: value,
                base: dst,
                offset,
                size,
                signed: false,
            });
            self.set(value, Holds::Number);
        } else {
            let value = imm(self.random).into();
            self.insns.push(Insn::Store {
                base: dst,
                offset,
                size,
                value,
            });
        }
    }
}
