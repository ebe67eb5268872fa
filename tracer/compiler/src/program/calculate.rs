//! Instructions that calculate numbers and decide conditions.
//!
//! A number comes into `r0`, and `r1` to `r5` are lost. A number of two parts keeps the first in
//! the stack while the second is calculated, unless that takes one register only.

use bpf::{
    AluOp, AtomicOp, Condition, Helper, Insn, Reg, Size, Swap, USER_STACK, Width, context::Register,
};

use super::{
    code::Code,
    keyed::{Use, use_key},
};
use crate::{
    asm::{Asm, Label},
    memory::Place,
    number::{Key, Number, Space, Test},
};

impl Code<'_, '_> {
    /// Calculates a number into `r0`. `r1` to `r5` are lost.
    pub(crate) fn number(&mut self, number: &Number) {
        match number {
            Number::Constant(_) | Number::Register(_) | Number::Own(_) | Number::OwnPart { .. } => {
                self.asm.simple(Reg::R0, number);
            }
            Number::Pid
            | Number::Tid
            | Number::Cpu
            | Number::Ip
            | Number::ReturnAddress
            | Number::Caller
            | Number::WatchedAddress
            | Number::Random => {
                self.identity(number);
            }
            Number::Nanoseconds { clock } => self.time(*clock, false),
            Number::Elapsed { clock } => self.time(*clock, true),
            Number::Cpus { clock } => self.cpus(*clock),
            Number::Load { .. } | Number::TextLength { .. } | Number::OwnElement { .. } => {
                self.load(number);
            }
            Number::Length { place, bytes } => self.length(*place, *bytes),
            Number::Position { text, part } => self.position(*text, *part),
            Number::Kept { number, place } => {
                self.number(number);
                self.asm.store(*place, 8, Reg::R0);
            }
            Number::Alu(..) | Number::Extended { .. } | Number::Swapped { .. } => {
                self.arithmetic(number);
            }
            Number::Test(_) | Number::Select { .. } => self.choice(number),
            Number::Stack { .. } | Number::Frames { .. } => self.stack(number),
            Number::Keys { .. }
            | Number::Element { .. }
            | Number::OfCpus { .. }
            | Number::HasKey { .. } => self.of_map(number),
            Number::Step { .. }
            | Number::ElementStep { .. }
            | Number::Deleted { .. }
            | Number::Found { .. } => {
                self.step(number);
            }
        }
    }

    /// Which task, CPU or place the hit is of.
    fn identity(&mut self, number: &Number) {
        match number {
            Number::Pid => {
                self.asm.call(Helper::PidTgid);
                self.asm.alu(AluOp::ShiftRight, Reg::R0, 32);
            }
            Number::Tid => {
                self.asm.call(Helper::PidTgid);
                self.asm.push(Insn::Alu {
                    width: Width::W32,
                    op: AluOp::Mov,
                    dst: Reg::R0,
                    operand: Reg::R0.into(),
                });
            }
            Number::Cpu => self.asm.call(Helper::CpuId),
            Number::Ip => {
                self.asm.context_pointer(Reg::R1);
                self.asm.call(Helper::FuncIp);
            }
            Number::ReturnAddress => self.asm.call(Helper::ReturnAddress),
            Number::Caller => {
                // It is on top of the stack, unless a return probe has borrowed that place.
                let slot = Number::Register(Register::Sp);
                self.number(&Number::load(slot.clone(), 0, 8, false));
                self.asm.mov(Reg::R2, Reg::R0);
                self.asm.simple(Reg::R1, &slot);
                self.asm.call(Helper::TrueAddress);
            }
            Number::WatchedAddress => self.asm.call(Helper::WatchedAddress),
            Number::Random => {
                // The counter's bits are mixed as splitmix64 does it.
                const MIX: [(i32, u64); 2] =
                    [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)];
                self.asm.call(Helper::Tsc);
                for (shift, factor) in MIX {
                    self.asm.mov(Reg::R1, Reg::R0);
                    self.asm.alu(AluOp::ShiftRight, Reg::R1, shift);
                    self.asm.alu(AluOp::Xor, Reg::R0, Reg::R1);
                    self.asm.set(Reg::R1, factor);
                    self.asm.alu(AluOp::Mul, Reg::R0, Reg::R1);
                }
                self.asm.alu(AluOp::ShiftRight, Reg::R0, 32);
            }
            _ => {}
        }
    }

    /// Memory of the kernel or of a program.
    pub(crate) fn load(&mut self, number: &Number) {
        match number {
            Number::Load {
                space: Space::User,
                address,
                offset,
                bytes,
                signed,
            } => {
                self.number(address);
                let mark = self.values.memory.mark();
                let read = self.values.memory.take(8);
                self.asm.mov(Reg::R3, Reg::R0);
                if *offset != 0 {
                    self.asm.set(Reg::R1, offset.cast_unsigned());
                    self.asm.alu(AluOp::Add, Reg::R3, Reg::R1);
                }
                self.asm.address(Reg::R1, read);
                self.asm.set(Reg::R2, (*bytes).into());
                self.asm.call(Helper::ReadUser);
                self.asm.load(Reg::R0, read, *bytes, *signed);
                self.values.memory.release(mark);
            }
            Number::Load {
                space: Space::Kernel,
                address,
                offset,
                bytes,
                signed,
            } => {
                self.number(address);
                let offset = match i16::try_from(*offset) {
                    Ok(offset) => offset,
                    Err(_) => {
                        self.asm.set(Reg::R1, offset.cast_unsigned());
                        self.asm.alu(AluOp::Add, Reg::R0, Reg::R1);
                        0
                    }
                };
                let base = Reg::R0;
                self.asm
                    .load(Reg::R0, Place { base, offset }, *bytes, *signed);
            }
            Number::OwnElement {
                place,
                index,
                count,
                bytes,
                signed,
            } => {
                let (outside, end) = (self.asm.label(), self.asm.label());
                self.number(index);
                // A copy, because the verifier must know its range.
                self.asm
                    .branch(Condition::AboveOrEqual, Reg::R0, *count as i32, outside);
                self.asm.alu(AluOp::Mul, Reg::R0, i32::from(*bytes));
                self.asm.address(Reg::R1, *place);
                self.asm.alu(AluOp::Add, Reg::R1, Reg::R0);
                let element = Place {
                    base: Reg::R1,
                    offset: 0,
                };
                self.asm.load(Reg::R0, element, *bytes, *signed);
                self.asm.jump(end);
                self.asm.place(outside);
                self.asm.mov(Reg::R0, 0);
                self.asm.place(end);
            }
            Number::TextLength { address, most } => {
                self.pair(address, most);
                // A constant length is in no register.
                match most.constant() {
                    Some(most) => self.asm.set(Reg::R2, most),
                    None => self.asm.mov(Reg::R2, Reg::R1),
                }
                self.asm.mov(Reg::R1, Reg::R0);
                let (user, end) = (self.asm.label(), self.asm.label());
                // Addresses of the kernel have the highest bit.
                self.asm.branch(Condition::GreaterOrEqual, Reg::R1, 0, user);
                self.asm.call(Helper::StrLen);
                self.asm.jump(end);
                self.asm.place(user);
                self.asm.call(Helper::UserStrLen);
                self.asm.place(end);
            }
            _ => {}
        }
    }

    /// Operations on the bits of numbers.
    pub(crate) fn arithmetic(&mut self, number: &Number) {
        match number {
            Number::Alu(op, left, right) => {
                self.pair(left, right);
                match right.constant().and_then(small) {
                    Some(imm) => self.asm.alu(*op, Reg::R0, imm),
                    None => self.asm.alu(*op, Reg::R0, Reg::R1),
                }
            }
            Number::Extended {
                number,
                bytes,
                signed,
            } => {
                self.number(number);
                self.asm.extend(Reg::R0, *bytes, *signed);
            }
            Number::Swapped { number, bits } => {
                self.number(number);
                self.asm.push(Insn::Swap {
                    swap: Swap::Always,
                    bits: *bits,
                    dst: Reg::R0,
                });
            }
            _ => {}
        }
    }

    /// Numbers that a condition makes.
    pub(crate) fn choice(&mut self, number: &Number) {
        match number {
            Number::Test(test) => {
                let (no, end) = (self.asm.label(), self.asm.label());
                self.branch_on(test, false, no);
                self.asm.mov(Reg::R0, 1);
                self.asm.jump(end);
                self.asm.place(no);
                self.asm.mov(Reg::R0, 0);
                self.asm.place(end);
            }
            Number::Select {
                test,
                then,
                otherwise,
            } => {
                let (no, end) = (self.asm.label(), self.asm.label());
                self.branch_on(test, false, no);
                self.number(then);
                self.asm.jump(end);
                self.asm.place(no);
                self.number(otherwise);
                self.asm.place(end);
            }
            _ => {}
        }
    }

    /// Call stacks.
    pub(crate) fn stack(&mut self, number: &Number) {
        match number {
            Number::Stack { map, is_user } => {
                self.asm.context_pointer(Reg::R1);
                self.asm.map(Reg::R2, *map);
                self.asm.set(Reg::R3, if *is_user { USER_STACK } else { 0 });
                self.asm.call(Helper::StackId);
            }
            Number::Frames {
                map,
                is_user,
                number,
            } => {
                self.number(number);
                self.asm.mov(Reg::R2, Reg::R0);
                self.asm.map(Reg::R1, *map);
                self.asm.call(Helper::CountFrames);
                if *is_user {
                    // Without the name of the program.
                    let end = self.asm.label();
                    self.asm.branch(Condition::Equal, Reg::R0, 0, end);
                    self.asm.alu(AluOp::Sub, Reg::R0, 2);
                    self.asm.place(end);
                }
            }
            _ => {}
        }
    }

    /// What a map holds.
    fn of_map(&mut self, number: &Number) {
        match number {
            Number::Keys { map } => {
                self.asm.map(Reg::R1, *map);
                self.asm.call(Helper::CountKeys);
            }
            Number::Element { map, key } => {
                self.look_up(*map, key);
                let end = self.asm.label();
                self.asm.branch(Condition::Equal, Reg::R0, 0, end);
                let base = Reg::R0;
                self.asm.load(Reg::R0, Place { base, offset: 0 }, 8, false);
                self.asm.place(end);
            }
            Number::OfCpus {
                map,
                key,
                word,
                greatest,
            } => {
                let mark = self.values.memory.mark();
                let place = self.store_key(key.stored);
                self.asm.map(Reg::R1, *map);
                self.asm.address(Reg::R2, place);
                self.asm.set(Reg::R3, (*word).into());
                self.asm.call(match greatest {
                    true => Helper::MostOfCpus,
                    false => Helper::SumOfCpus,
                });
                self.values.memory.release(mark);
            }
            Number::HasKey { map, key } => {
                self.look_up(*map, key);
                let end = self.asm.label();
                self.asm.branch(Condition::Equal, Reg::R0, 0, end);
                self.asm.mov(Reg::R0, 1);
                self.asm.place(end);
            }
            _ => {}
        }
    }

    /// Numbers that change when they are calculated.
    pub(crate) fn step(&mut self, number: &Number) {
        match number {
            Number::Step {
                place,
                delta,
                value_before,
                wraps,
            } => {
                self.asm.load(Reg::R0, *place, 8, false);
                self.asm.mov(Reg::R1, Reg::R0);
                self.asm.set(Reg::R2, delta.cast_unsigned());
                self.asm.alu(AluOp::Add, Reg::R1, Reg::R2);
                if let Some((bytes, signed)) = wraps {
                    self.asm.extend(Reg::R1, *bytes, *signed);
                }
                if !value_before {
                    self.asm.mov(Reg::R0, Reg::R1);
                }
                self.asm.store(*place, 8, Reg::R1);
            }
            Number::ElementStep {
                map,
                key,
                delta,
                value_before,
            } => {
                let mark = self.values.memory.mark();
                let place = self.store_key(key.stored);
                use_key(self, *map, place, Use::Change);
                // Makes the key if it is new.
                self.asm.map(Reg::R1, *map);
                self.asm.address(Reg::R2, place);
                self.asm.mov(Reg::R3, 0);
                self.asm.call(Helper::AddByKey);
                use_key(self, *map, place, Use::Changed);
                self.asm.map(Reg::R1, *map);
                self.asm.address(Reg::R2, place);
                self.asm.call(Helper::MapLookup);
                self.values.memory.release(mark);
                let end = self.asm.label();
                self.asm.branch(Condition::Equal, Reg::R0, 0, end);
                // In one step, so that no two hits get the same value.
                self.asm.set(Reg::R1, delta.cast_unsigned());
                self.asm.push(Insn::Atomic {
                    op: AtomicOp::Add { fetch: true },
                    base: Reg::R0,
                    offset: 0,
                    size: Size::B8,
                    reg: Reg::R1,
                });
                self.asm.mov(Reg::R0, Reg::R1);
                if !value_before {
                    self.asm.set(Reg::R1, delta.cast_unsigned());
                    self.asm.alu(AluOp::Add, Reg::R0, Reg::R1);
                }
                self.asm.place(end);
            }
            Number::Found {
                map,
                key,
                to,
                bytes,
                room,
                cut,
            } => {
                self.look_up(*map, key);
                let end = self.asm.label();
                self.asm.branch(Condition::Equal, Reg::R0, 0, end);
                let base = Reg::R0;
                self.asm.copy(Place { base, offset: 0 }, *to, *bytes);
                self.asm.zero(to.at(*bytes), room.saturating_sub(*bytes));
                if let Some((bytes, signed)) = cut {
                    self.asm.load(Reg::R1, *to, 8, false);
                    self.asm.extend(Reg::R1, *bytes, *signed);
                    self.asm.store(*to, 8, Reg::R1);
                }
                self.asm.mov(Reg::R0, 1);
                self.asm.place(end);
            }
            Number::Deleted {
                map,
                key,
                everywhere,
            } => {
                let mark = self.values.memory.mark();
                let place = self.store_key(key.stored);
                self.asm.map(Reg::R1, *map);
                self.asm.address(Reg::R2, place);
                self.asm.call(match everywhere {
                    false => Helper::MapDelete,
                    true => Helper::DeleteOfCpus,
                });
                self.values.memory.release(mark);
                // 0 is success, a negated errno is none.
                self.asm.alu(AluOp::ShiftRight, Reg::R0, 63);
                self.asm.alu(AluOp::Xor, Reg::R0, 1);
            }
            _ => {}
        }
    }

    /// `r0` = the value of a key, or null.
    pub(crate) fn look_up(&mut self, map: u32, key: &Key) {
        let mark = self.values.memory.mark();
        let place = self.store_key(key.stored);
        use_key(self, map, place, Use::Read);
        self.asm.map(Reg::R1, map);
        self.asm.address(Reg::R2, place);
        self.asm.call(Helper::MapLookup);
        self.values.memory.release(mark);
    }

    /// `r0 = left`, and `r1 = right` unless it is a small constant.
    pub(crate) fn pair(&mut self, left: &Number, right: &Number) {
        if right.is_simple() {
            self.number(left);
            if right.constant().and_then(small).is_none() {
                self.asm.simple(Reg::R1, right);
            }
            return;
        }
        let mark = self.values.memory.mark();
        self.number(left);
        let kept = self.values.memory.take(8);
        self.asm.store(kept, 8, Reg::R0);
        self.number(right);
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm.load(Reg::R0, kept, 8, false);
        self.values.memory.release(mark);
    }

    /// Goes to `label` if the test comes out as `is`. `r0` to `r5` are lost.
    pub(crate) fn branch_on(&mut self, test: &Test, is: bool, label: Label) {
        match test {
            Test::Constant(constant) => {
                if *constant == is {
                    self.asm.jump(label);
                }
            }
            Test::NotZero(number) => {
                self.number(number);
                let condition = match is {
                    true => Condition::NotEqual,
                    false => Condition::Equal,
                };
                self.asm.branch(condition, Reg::R0, 0, label);
            }
            Test::Compare(condition, left, right) => {
                self.pair(left, right);
                let condition = if is { *condition } else { negated(*condition) };
                match right.constant().and_then(small) {
                    Some(imm) => self.asm.branch(condition, Reg::R0, imm, label),
                    None => self.asm.branch(condition, Reg::R0, Reg::R1, label),
                }
            }
            Test::And(left, right) | Test::Or(left, right) => {
                // An `and` that is false, or an `or` that is true, is so by either side.
                if matches!(test, Test::And(..)) != is {
                    self.branch_on(left, is, label);
                    self.branch_on(right, is, label);
                } else {
                    let end = self.asm.label();
                    self.branch_on(left, !is, end);
                    self.branch_on(right, is, label);
                    self.asm.place(end);
                }
            }
            Test::Not(test) => self.branch_on(test, !is, label),
            Test::Text(comparison) => self.branch_on_text(*comparison, is, label),
        }
    }

    fn cpus(&mut self, clock: u32) {
        let mark = self.values.memory.mark();
        self.look_up_clock(clock);
        let of_value = Place {
            base: Reg::R0,
            offset: 16,
        };
        self.asm.load(Reg::R0, of_value, 8, false);
        self.values.memory.release(mark);
    }

    /// `r0` = the value of the clock's map.
    fn look_up_clock(&mut self, clock: u32) {
        let key = self.values.memory.take(8);
        // The verifier must know the index, or it would take the value for one that may be missing.
        self.asm.push(Insn::Store {
            base: key.base,
            offset: key.offset,
            size: Size::B4,
            value: 0.into(),
        });
        self.asm.map(Reg::R1, clock);
        self.asm.address(Reg::R2, key);
        self.asm.call(Helper::MapLookup);
    }

    /// Nanoseconds of the clock, since the machine or the script has started.
    pub(crate) fn time(&mut self, clock: u32, since_start: bool) {
        let mark = self.values.memory.mark();
        let ticks = self.values.memory.take(8);
        self.asm.call(Helper::Tsc);
        self.asm.store(ticks, 8, Reg::R0);
        self.look_up_clock(clock);
        let of_value = |offset| Place {
            base: Reg::R0,
            offset,
        };
        self.asm.load(Reg::R1, ticks, 8, false);
        if since_start {
            self.asm.load(Reg::R2, of_value(8), 8, false);
            self.asm.alu(AluOp::Sub, Reg::R1, Reg::R2);
        }
        // ticks * scale / 2^24, the upper and the lower half of the ticks each for itself, because
        // the product has more than 64 bits.
        self.asm.load(Reg::R2, of_value(0), 8, false);
        self.asm.mov(Reg::R0, Reg::R1);
        self.asm.alu(AluOp::ShiftRight, Reg::R0, 32);
        self.asm.alu(AluOp::Mul, Reg::R0, Reg::R2);
        self.asm.alu(AluOp::ShiftLeft, Reg::R0, 8);
        self.asm.push(Insn::Alu {
            width: Width::W32,
            op: AluOp::Mov,
            dst: Reg::R1,
            operand: Reg::R1.into(),
        });
        self.asm.alu(AluOp::Mul, Reg::R1, Reg::R2);
        self.asm.alu(AluOp::ShiftRight, Reg::R1, 24);
        self.asm.alu(AluOp::Add, Reg::R0, Reg::R1);
        self.values.memory.release(mark);
    }
}

impl Asm {
    /// `dst = ` a number that needs one register.
    fn simple(&mut self, dst: Reg, number: &Number) {
        match number {
            Number::Constant(value) => self.set(dst, *value),
            Number::Register(register) => self.context(dst, *register),
            Number::Own(place) => self.load(dst, *place, 8, false),
            Number::OwnPart {
                place,
                bytes,
                signed,
            } => self.load(dst, *place, *bytes, *signed),
            _ => {}
        }
    }

    /// Extends the low bytes of a register.
    pub(crate) fn extend(&mut self, register: Reg, bytes: u8, signed: bool) {
        let bits = bytes * 8;
        if signed && matches!(bits, 8 | 16 | 32) {
            self.push(Insn::SignExtend {
                width: Width::W64,
                bits,
                dst: register,
                src: register,
            });
        } else {
            let unused = i32::from(64 - bits);
            self.alu(AluOp::ShiftLeft, register, unused);
            let back = match signed {
                true => AluOp::ShiftRightSigned,
                false => AluOp::ShiftRight,
            };
            self.alu(back, register, unused);
        }
    }
}

/// The number as an immediate operand.
fn small(number: u64) -> Option<i32> {
    i32::try_from(number.cast_signed()).ok()
}

fn negated(condition: Condition) -> Condition {
    match condition {
        Condition::Equal => Condition::NotEqual,
        Condition::NotEqual => Condition::Equal,
        // Not used: bits are tested by `and` and a comparison.
        Condition::AnyBit => Condition::Equal,
        Condition::Above => Condition::BelowOrEqual,
        Condition::AboveOrEqual => Condition::Below,
        Condition::Below => Condition::AboveOrEqual,
        Condition::BelowOrEqual => Condition::Above,
        Condition::Greater => Condition::LessOrEqual,
        Condition::GreaterOrEqual => Condition::Less,
        Condition::Less => Condition::GreaterOrEqual,
        Condition::LessOrEqual => Condition::Greater,
    }
}
