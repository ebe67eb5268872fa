//! Numbers and conditions: how they are calculated at a hit.
//!
//! All numbers have 64 bits and wrap. Division by zero gives zero, the remainder of it the
//! dividend, and shifts take their count modulo 64.

use alloc::boxed::Box;

use bpf::{AluOp, Condition, Helper, Insn, Reg, USER_STACK, Width, context::Register};

use crate::asm::{Asm, Label, Place};

/// A calculation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    Constant(u64),
    /// A register of the probed code.
    Register(Register),
    /// 8 bytes of memory of the program's own.
    Own(Place),
    /// Other sizes of it.
    OwnPart {
        place: Place,
        bytes: u8,
        signed: bool,
    },
    Pid,
    Tid,
    Cpu,
    /// Nanoseconds since the machine started, by the map of the clock.
    Nanoseconds {
        clock: u32,
    },
    /// The same since the script started.
    Elapsed {
        clock: u32,
    },
    /// The probed address; of a return, the function's.
    Ip,
    /// Where a call returns to.
    ReturnAddress,
    /// Memory.
    Load {
        space: Space,
        address: Box<Number>,
        offset: i64,
        bytes: u8,
        signed: bool,
    },
    /// How long a text in memory is, at most so long, with its NUL. 0 if it cannot be read. The
    /// address tells whose memory it is.
    TextLength {
        address: Box<Number>,
        most: Box<Number>,
    },
    Alu(AluOp, Box<Number>, Box<Number>),
    /// The low bits, extended.
    Extended {
        number: Box<Number>,
        bytes: u8,
        signed: bool,
    },
    /// 1 if it holds, else 0.
    Test(Box<Test>),
    Select {
        test: Box<Test>,
        then: Box<Number>,
        otherwise: Box<Number>,
    },
    /// The number of the call stack, of the kernel or of the program in ring 3.
    Stack {
        map: u32,
        is_user: bool,
    },
    /// How many frames a call stack has, by its number.
    Frames {
        map: u32,
        is_user: bool,
        number: Box<Number>,
    },
    /// How many keys a map has.
    Keys {
        map: u32,
    },
    /// A number in a map, or 0. The key is in the stack.
    Element {
        map: u32,
        key: Box<Key>,
    },
    /// A word of a key's value on all CPUs: the greatest, or the sum. 0 if the key is nowhere.
    OfCpus {
        map: u32,
        key: Box<Key>,
        word: u32,
        greatest: bool,
    },
    /// 1 if a map has the key, else 0.
    HasKey {
        map: u32,
        key: Box<Key>,
    },
    /// Adds to a place, and gives the value before or after.
    Step {
        place: Place,
        delta: i64,
        value_before: bool,
    },
    /// Adds to a number in a map.
    ElementStep {
        map: u32,
        key: Box<Key>,
        delta: i64,
        value_before: bool,
    },
}

/// Whose memory an address is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Kernel,
    /// That of the program in ring 3, of the task that runs.
    User,
}

/// The key of a map, which is stored each time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// Its place in the compiler's list of keys.
    pub(crate) stored: usize,
}

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    Constant(bool),
    NotZero(Number),
    Compare(Condition, Number, Number),
    And(Box<Test>, Box<Test>),
    Or(Box<Test>, Box<Test>),
    Not(Box<Test>),
    /// The texts in two places are equal: that is, as many bytes.
    Text(usize),
}

impl Number {
    pub(crate) fn constant(&self) -> Option<u64> {
        match self {
            Self::Constant(number) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn alu(op: AluOp, left: Self, right: Self) -> Self {
        match (op, &left, &right) {
            (_, Self::Constant(a), Self::Constant(b)) => {
                Self::Constant(op.apply(Width::W64, *a, *b))
            }
            (
                AluOp::Add
                | AluOp::Sub
                | AluOp::Or
                | AluOp::Xor
                | AluOp::ShiftLeft
                | AluOp::ShiftRight
                | AluOp::ShiftRightSigned,
                _,
                Self::Constant(0),
            )
            | (AluOp::Mul | AluOp::Div, _, Self::Constant(1)) => left,
            _ => Self::Alu(op, Box::new(left), Box::new(right)),
        }
    }

    /// A load of the kernel's memory.
    pub(crate) fn load(address: Self, offset: i64, bytes: u8, signed: bool) -> Self {
        Self::load_in(Space::Kernel, address, offset, bytes, signed)
    }

    pub(crate) fn load_in(
        space: Space,
        address: Self,
        offset: i64,
        bytes: u8,
        signed: bool,
    ) -> Self {
        Self::Load {
            space,
            address: Box::new(address),
            offset,
            bytes,
            signed,
        }
    }

    pub(crate) fn extended(self, bytes: u8, signed: bool) -> Self {
        if bytes >= 8 {
            return self;
        }
        if let Self::Constant(number) = self {
            return Self::Constant(extend(number, bytes, signed));
        }
        Self::Extended {
            number: Box::new(self),
            bytes,
            signed,
        }
    }

    pub(crate) fn test(test: Test) -> Self {
        match test {
            Test::Constant(is) => Self::Constant(is.into()),
            test => Self::Test(Box::new(test)),
        }
    }

    pub(crate) fn select(test: Test, then: Self, otherwise: Self) -> Self {
        match test {
            Test::Constant(true) => then,
            Test::Constant(false) => otherwise,
            test => Self::Select {
                test: Box::new(test),
                then: Box::new(then),
                otherwise: Box::new(otherwise),
            },
        }
    }

    /// Whether it is calculated in one register, without a call.
    fn is_simple(&self) -> bool {
        matches!(
            self,
            Self::Constant(_) | Self::Register(_) | Self::Own(_) | Self::OwnPart { .. }
        )
    }

    /// Whether calculating it twice costs little and gives the same.
    pub(crate) fn is_cheap(&self) -> bool {
        self.is_simple()
    }

    /// Whether all of it is known before the hit, or is a register or a place.
    pub(crate) fn has_effect(&self) -> bool {
        matches!(self, Self::Step { .. } | Self::ElementStep { .. })
    }
}

/// The low `bytes` of a number, extended to 64 bits.
pub(crate) fn extend(number: u64, bytes: u8, signed: bool) -> u64 {
    let unused = 64 - 8 * u32::from(bytes.min(8));
    if unused == 64 {
        0
    } else if signed {
        ((number << unused).cast_signed() >> unused).cast_unsigned()
    } else {
        number << unused >> unused
    }
}

impl Test {
    pub(crate) fn compare(condition: Condition, left: Number, right: Number) -> Self {
        match (&left, &right) {
            (Number::Constant(a), Number::Constant(b)) => {
                Self::Constant(condition.holds(Width::W64, *a, *b))
            }
            _ => Self::Compare(condition, left, right),
        }
    }

    pub(crate) fn not_zero(number: Number) -> Self {
        match number {
            Number::Constant(number) => Self::Constant(number != 0),
            Number::Test(test) => *test,
            number => Self::NotZero(number),
        }
    }

    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Constant(true), test) | (test, Self::Constant(true)) => test,
            (Self::Constant(false), _) => Self::Constant(false),
            (a, b) => Self::And(Box::new(a), Box::new(b)),
        }
    }

    pub(crate) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Constant(false), test) | (test, Self::Constant(false)) => test,
            (Self::Constant(true), _) => Self::Constant(true),
            (a, b) => Self::Or(Box::new(a), Box::new(b)),
        }
    }

    pub(crate) fn negated(self) -> Self {
        match self {
            Self::Constant(is) => Self::Constant(!is),
            Self::Not(test) => *test,
            test => Self::Not(Box::new(test)),
        }
    }
}

/// The things that numbers need beside instructions: keys and texts, which the compiler stores.
pub(crate) trait Stores {
    fn asm(&mut self) -> &mut Asm;

    /// Stores a key in the stack, and tells where.
    fn store_key(&mut self, stored: usize) -> Place;

    /// Goes to `label` if the comparison of texts comes out as `is`.
    fn branch_on_text(&mut self, comparison: usize, is: bool, label: Label);

    /// Calculates a number into `r0`. `r1` to `r5` are lost.
    fn number(&mut self, number: &Number) {
        let asm = self.asm();
        match number {
            Number::Constant(value) => asm.set(Reg::R0, *value),
            simple if simple.is_simple() => asm.simple(Reg::R0, simple),
            Number::Pid => {
                asm.call(Helper::PidTgid);
                asm.alu(AluOp::ShiftRight, Reg::R0, 32);
            }
            Number::Tid => {
                asm.call(Helper::PidTgid);
                asm.push(Insn::Alu {
                    width: Width::W32,
                    op: AluOp::Mov,
                    dst: Reg::R0,
                    operand: Reg::R0.into(),
                });
            }
            Number::Cpu => asm.call(Helper::CpuId),
            Number::Ip => {
                asm.context_pointer(Reg::R1);
                asm.call(Helper::FuncIp);
            }
            Number::ReturnAddress => asm.call(Helper::ReturnAddress),
            Number::Nanoseconds { clock } => self.time(*clock, false),
            Number::Elapsed { clock } => self.time(*clock, true),
            Number::Load {
                space: Space::User,
                address,
                offset,
                bytes,
                signed,
            } => {
                self.number(address);
                let asm = self.asm();
                let mark = asm.mark();
                let read = Place::stack(asm.take(8));
                asm.mov(Reg::R3, Reg::R0);
                if *offset != 0 {
                    asm.set(Reg::R1, offset.cast_unsigned());
                    asm.alu(AluOp::Add, Reg::R3, Reg::R1);
                }
                asm.address(Reg::R1, read);
                asm.set(Reg::R2, (*bytes).into());
                asm.call(Helper::ReadUser);
                asm.load(Reg::R0, read, *bytes, *signed);
                asm.release(mark);
            }
            Number::TextLength { address, most } => {
                self.pair(address, most);
                let asm = self.asm();
                // A constant length is in no register.
                match most.constant() {
                    Some(most) => asm.set(Reg::R2, most),
                    None => asm.mov(Reg::R2, Reg::R1),
                }
                asm.mov(Reg::R1, Reg::R0);
                let (user, end) = (asm.label(), asm.label());
                // Addresses of the kernel have the highest bit.
                asm.branch(Condition::GreaterOrEqual, Reg::R1, 0, user);
                asm.call(Helper::StrLen);
                asm.jump(end);
                asm.place(user);
                asm.call(Helper::UserStrLen);
                asm.place(end);
            }
            Number::Load {
                space: Space::Kernel,
                address,
                offset,
                bytes,
                signed,
            } => {
                self.number(address);
                let asm = self.asm();
                let offset = match i16::try_from(*offset) {
                    Ok(offset) => offset,
                    Err(_) => {
                        asm.set(Reg::R1, offset.cast_unsigned());
                        asm.alu(AluOp::Add, Reg::R0, Reg::R1);
                        0
                    }
                };
                let base = Reg::R0;
                asm.load(Reg::R0, Place { base, offset }, *bytes, *signed);
            }
            Number::Alu(op, left, right) => {
                self.pair(left, right);
                match right.constant().and_then(small) {
                    Some(imm) => self.asm().alu(*op, Reg::R0, imm),
                    None => self.asm().alu(*op, Reg::R0, Reg::R1),
                }
            }
            Number::Extended {
                number,
                bytes,
                signed,
            } => {
                self.number(number);
                self.asm().extend(*bytes, *signed);
            }
            Number::Test(test) => {
                let asm = self.asm();
                let (no, end) = (asm.label(), asm.label());
                self.branch(test, false, no);
                let asm = self.asm();
                asm.mov(Reg::R0, 1);
                asm.jump(end);
                asm.place(no);
                asm.mov(Reg::R0, 0);
                asm.place(end);
            }
            Number::Select {
                test,
                then,
                otherwise,
            } => {
                let asm = self.asm();
                let (no, end) = (asm.label(), asm.label());
                self.branch(test, false, no);
                self.number(then);
                let asm = self.asm();
                asm.jump(end);
                asm.place(no);
                self.number(otherwise);
                self.asm().place(end);
            }
            Number::Stack { map, is_user } => {
                asm.context_pointer(Reg::R1);
                asm.map(Reg::R2, *map);
                asm.set(Reg::R3, if *is_user { USER_STACK } else { 0 });
                asm.call(Helper::StackId);
            }
            Number::Frames {
                map,
                is_user,
                number,
            } => {
                self.number(number);
                let asm = self.asm();
                asm.mov(Reg::R2, Reg::R0);
                asm.map(Reg::R1, *map);
                asm.call(Helper::CountFrames);
                if *is_user {
                    // Without the name of the program.
                    let end = asm.label();
                    asm.branch(Condition::Equal, Reg::R0, 0, end);
                    asm.alu(AluOp::Sub, Reg::R0, 2);
                    asm.place(end);
                }
            }
            Number::Keys { map } => {
                asm.map(Reg::R1, *map);
                asm.call(Helper::CountKeys);
            }
            Number::Element { map, key } => {
                self.look_up(*map, key);
                let asm = self.asm();
                let end = asm.label();
                asm.branch(Condition::Equal, Reg::R0, 0, end);
                let base = Reg::R0;
                asm.load(Reg::R0, Place { base, offset: 0 }, 8, false);
                asm.place(end);
            }
            Number::OfCpus {
                map,
                key,
                word,
                greatest,
            } => {
                let mark = asm.mark();
                let place = self.store_key(key.stored);
                let asm = self.asm();
                asm.map(Reg::R1, *map);
                asm.address(Reg::R2, place);
                asm.set(Reg::R3, (*word).into());
                asm.call(match greatest {
                    true => Helper::MostOfCpus,
                    false => Helper::SumOfCpus,
                });
                asm.release(mark);
            }
            Number::HasKey { map, key } => {
                self.look_up(*map, key);
                let asm = self.asm();
                let end = asm.label();
                asm.branch(Condition::Equal, Reg::R0, 0, end);
                asm.mov(Reg::R0, 1);
                asm.place(end);
            }
            Number::Step {
                place,
                delta,
                value_before,
            } => {
                asm.load(Reg::R0, *place, 8, false);
                asm.mov(Reg::R1, Reg::R0);
                asm.set(Reg::R2, delta.cast_unsigned());
                asm.alu(AluOp::Add, Reg::R1, Reg::R2);
                if !value_before {
                    asm.mov(Reg::R0, Reg::R1);
                }
                asm.store(*place, 8, Reg::R1);
            }
            Number::ElementStep {
                map,
                key,
                delta,
                value_before,
            } => {
                let mark = asm.mark();
                let place = self.store_key(key.stored);
                let asm = self.asm();
                asm.map(Reg::R1, *map);
                asm.address(Reg::R2, place);
                asm.set(Reg::R3, delta.cast_unsigned());
                asm.call(Helper::AddByKey);
                asm.map(Reg::R1, *map);
                asm.address(Reg::R2, place);
                asm.call(Helper::MapLookup);
                asm.release(mark);
                let end = asm.label();
                asm.branch(Condition::Equal, Reg::R0, 0, end);
                let base = Reg::R0;
                asm.load(Reg::R0, Place { base, offset: 0 }, 8, false);
                if *value_before {
                    asm.set(Reg::R1, delta.cast_unsigned());
                    asm.alu(AluOp::Sub, Reg::R0, Reg::R1);
                }
                asm.place(end);
            }
            // The simple ones.
            Number::Register(_) | Number::Own(_) | Number::OwnPart { .. } => {}
        }
    }

    /// `r0` = the value of a key, or null.
    fn look_up(&mut self, map: u32, key: &Key) {
        let mark = self.asm().mark();
        let place = self.store_key(key.stored);
        let asm = self.asm();
        asm.map(Reg::R1, map);
        asm.address(Reg::R2, place);
        asm.call(Helper::MapLookup);
        asm.release(mark);
    }

    /// `r0 = left`, and `r1 = right` unless it is a small constant.
    fn pair(&mut self, left: &Number, right: &Number) {
        if right.is_simple() {
            self.number(left);
            if right.constant().and_then(small).is_none() {
                self.asm().simple(Reg::R1, right);
            }
            return;
        }
        let mark = self.asm().mark();
        self.number(left);
        let asm = self.asm();
        let kept = Place::stack(asm.take(8));
        asm.store(kept, 8, Reg::R0);
        self.number(right);
        let asm = self.asm();
        asm.mov(Reg::R1, Reg::R0);
        asm.load(Reg::R0, kept, 8, false);
        asm.release(mark);
    }

    /// Goes to `label` if the test comes out as `is`. `r0` to `r5` are lost.
    fn branch(&mut self, test: &Test, is: bool, label: Label) {
        match test {
            Test::Constant(constant) => {
                if *constant == is {
                    self.asm().jump(label);
                }
            }
            Test::NotZero(number) => {
                self.number(number);
                let condition = match is {
                    true => Condition::NotEqual,
                    false => Condition::Equal,
                };
                self.asm().branch(condition, Reg::R0, 0, label);
            }
            Test::Compare(condition, left, right) => {
                self.pair(left, right);
                let condition = if is { *condition } else { negated(*condition) };
                match right.constant().and_then(small) {
                    Some(imm) => self.asm().branch(condition, Reg::R0, imm, label),
                    None => self.asm().branch(condition, Reg::R0, Reg::R1, label),
                }
            }
            Test::And(left, right) | Test::Or(left, right) => {
                // An `and` that is false, or an `or` that is true, is so by either side.
                if matches!(test, Test::And(..)) != is {
                    self.branch(left, is, label);
                    self.branch(right, is, label);
                } else {
                    let end = self.asm().label();
                    self.branch(left, !is, end);
                    self.branch(right, is, label);
                    self.asm().place(end);
                }
            }
            Test::Not(test) => self.branch(test, !is, label),
            Test::Text(comparison) => self.branch_on_text(*comparison, is, label),
        }
    }

    /// Nanoseconds of the clock, since the machine or the script has started.
    fn time(&mut self, clock: u32, since_start: bool) {
        let asm = self.asm();
        let mark = asm.mark();
        let ticks = Place::stack(asm.take(8));
        let key = Place::stack(asm.take(8));
        asm.call(Helper::Tsc);
        asm.store(ticks, 8, Reg::R0);
        // The verifier must know the index, or it would take the value for one that may be missing.
        asm.push(Insn::Store {
            base: key.base,
            offset: key.offset,
            size: bpf::Size::B4,
            value: 0.into(),
        });
        asm.map(Reg::R1, clock);
        asm.address(Reg::R2, key);
        asm.call(Helper::MapLookup);
        let of_value = |offset| Place {
            base: Reg::R0,
            offset,
        };
        asm.load(Reg::R1, ticks, 8, false);
        if since_start {
            asm.load(Reg::R2, of_value(8), 8, false);
            asm.alu(AluOp::Sub, Reg::R1, Reg::R2);
        }
        // ticks * scale / 2^24, the upper and the lower half of the ticks each for itself, because
        // the product has more than 64 bits.
        asm.load(Reg::R2, of_value(0), 8, false);
        asm.mov(Reg::R0, Reg::R1);
        asm.alu(AluOp::ShiftRight, Reg::R0, 32);
        asm.alu(AluOp::Mul, Reg::R0, Reg::R2);
        asm.alu(AluOp::ShiftLeft, Reg::R0, 8);
        asm.push(Insn::Alu {
            width: Width::W32,
            op: AluOp::Mov,
            dst: Reg::R1,
            operand: Reg::R1.into(),
        });
        asm.alu(AluOp::Mul, Reg::R1, Reg::R2);
        asm.alu(AluOp::ShiftRight, Reg::R1, 24);
        asm.alu(AluOp::Add, Reg::R0, Reg::R1);
        asm.release(mark);
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

    /// Extends the low bytes of `r0`.
    fn extend(&mut self, bytes: u8, signed: bool) {
        let bits = bytes * 8;
        if signed && matches!(bits, 8 | 16 | 32) {
            self.push(Insn::SignExtend {
                width: Width::W64,
                bits,
                dst: Reg::R0,
                src: Reg::R0,
            });
        } else {
            let unused = i32::from(64 - bits);
            self.alu(AluOp::ShiftLeft, Reg::R0, unused);
            let back = match signed {
                true => AluOp::ShiftRightSigned,
                false => AluOp::ShiftRight,
            };
            self.alu(back, Reg::R0, unused);
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
