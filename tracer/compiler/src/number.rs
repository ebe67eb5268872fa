//! Numbers and conditions: what is to be calculated at a hit, and of what kind the result is.
//!
//! They are descriptions. Nothing here emits an instruction.
//!
//! All numbers have 64 bits and wrap. Division by zero gives zero, the remainder of it the
//! dividend, and shifts take their count modulo 64.

use alloc::{boxed::Box, rc::Rc};

use bpf::{AluOp, Condition, Width, context::Register};
use trace_interface::{
    shape::{Naming, Shape, StackForm},
    symbols::TypeId,
};

use crate::memory::Place;

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
    /// An element of an array of the program's own, or 0 past its end.
    OwnElement {
        place: Place,
        index: Box<Number>,
        count: u32,
        bytes: u8,
        signed: bool,
    },
    /// A number that is stored in the stack when it is calculated.
    Kept {
        number: Box<Number>,
        place: Place,
    },
    Pid,
    Tid,
    Cpu,
    /// 32 bits that look random.
    Random,
    /// Nanoseconds since the machine started, by the map of the clock.
    Nanoseconds {
        clock: u32,
    },
    /// The same since the script started.
    Elapsed {
        clock: u32,
    },
    /// How many CPUs there are, by the same map.
    Cpus {
        clock: u32,
    },
    /// The probed address; of a return, the function's.
    Ip,
    /// Where a call returns to.
    ReturnAddress,
    /// The same at the first instruction of the function.
    Caller,
    /// What the watch of this hit watches.
    WatchedAddress,
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
    /// The low bits, with their bytes in the other order. The others are zero.
    Swapped {
        number: Box<Number>,
        bits: u8,
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
    /// How many bytes a text in the stack has before its NUL, and at most.
    Length {
        place: Place,
        bytes: u32,
    },
    /// Where a text in the stack has another one for the first time: bytes from its beginning, or
    /// -1. Each has so many bytes, of which the last is NUL.
    Position {
        text: (Place, u32),
        part: (Place, u32),
    },
    /// Copies a key's value, as many bytes, to a place in the stack, which zeros fill up. 1 if it
    /// was there, else 0, and the place stays as it was.
    Found {
        map: u32,
        key: Box<Key>,
        to: Place,
        bytes: u32,
        room: u32,
        /// The number is cut to so many bytes, and has a sign then.
        cut: Option<(u8, bool)>,
    },
    /// Takes a key away: of one map, or on all CPUs. 1 if it was there, else 0.
    Deleted {
        map: u32,
        key: Box<Key>,
        everywhere: bool,
    },
    /// Adds to a place, and gives the value before or after.
    Step {
        place: Place,
        delta: i64,
        value_before: bool,
        /// Bytes and sign of the sum, if it has less than 8.
        wraps: Option<(u8, bool)>,
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
    pub(crate) fn is_simple(&self) -> bool {
        matches!(
            self,
            Self::Constant(_) | Self::Register(_) | Self::Own(_) | Self::OwnPart { .. }
        )
    }

    /// Whether calculating it twice costs little and gives the same.
    pub(crate) fn is_cheap(&self) -> bool {
        self.is_simple()
    }

    /// Whether it changes something when it is calculated.
    pub(crate) fn has_effect(&self) -> bool {
        self.any(&|part| {
            matches!(
                part,
                Self::Step { .. }
                    | Self::ElementStep { .. }
                    | Self::Deleted { .. }
                    | Self::Found { .. }
            )
        })
    }

    /// Whether it may be another one when it is calculated again in the same hit, or do something
    /// again: also a map may change meanwhile, and its key is calculated each time.
    pub(crate) fn is_fickle(&self) -> bool {
        self.has_effect()
            || self.any(&|part| {
                matches!(
                    part,
                    Self::Random
                        | Self::Nanoseconds { .. }
                        | Self::Elapsed { .. }
                        | Self::Keys { .. }
                        | Self::Element { .. }
                        | Self::OfCpus { .. }
                        | Self::HasKey { .. }
                )
            })
    }

    /// Whether it is the same each time in a hit. Memory of others may change at any moment.
    pub(crate) fn is_steady(&self) -> bool {
        let reads = |part: &Self| matches!(part, Self::Load { .. } | Self::TextLength { .. });
        !self.is_fickle() && !self.any(&reads)
    }

    /// Whether it, or a number that it is calculated from, is a wanted one.
    fn any(&self, wanted: &dyn Fn(&Self) -> bool) -> bool {
        if wanted(self) {
            return true;
        }
        match self {
            Self::Alu(_, left, right) => left.any(wanted) || right.any(wanted),
            Self::Select {
                test,
                then,
                otherwise,
            } => test.any(wanted) || then.any(wanted) || otherwise.any(wanted),
            Self::Test(test) => test.any(wanted),
            Self::Load { address: of, .. }
            | Self::Extended { number: of, .. }
            | Self::Swapped { number: of, .. }
            | Self::Kept { number: of, .. }
            | Self::Frames { number: of, .. }
            | Self::OwnElement { index: of, .. } => of.any(wanted),
            Self::TextLength { address, most } => address.any(wanted) || most.any(wanted),
            _ => false,
        }
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

    /// Whether a number that it compares, or that one is calculated from, is a wanted one.
    fn any(&self, wanted: &dyn Fn(&Number) -> bool) -> bool {
        match self {
            Self::Constant(_) | Self::Text(_) => false,
            Self::NotZero(number) => number.any(wanted),
            Self::Compare(_, left, right) => left.any(wanted) || right.any(wanted),
            Self::And(left, right) | Self::Or(left, right) => left.any(wanted) || right.any(wanted),
            Self::Not(test) => test.any(wanted),
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

/// The kind of a number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// A number of the text. It takes the type of what it is calculated with.
    Literal,
    Integer {
        bytes: u8,
        signed: bool,
    },
    Boolean,
    Character,
    /// An address; of what, if that is known.
    Pointer {
        to: Option<TypeId>,
        space: Space,
    },
    Symbol {
        with_offset: bool,
    },
    Probe,
    Stack {
        map: u32,
        is_user: bool,
        form: StackForm,
    },
    Named(Naming),
    Time {
        format: Rc<str>,
    },
}

impl Kind {
    pub(crate) const UNSIGNED: Self = Self::Integer {
        bytes: 8,
        signed: false,
    };
    pub(crate) const SIGNED: Self = Self::Integer {
        bytes: 8,
        signed: true,
    };

    /// An address of the kernel's memory, of nothing in particular.
    pub(crate) const ADDRESS: Self = Self::Pointer {
        to: None,
        space: Space::Kernel,
    };

    pub(crate) const fn is_signed(&self) -> bool {
        matches!(self, Self::Literal | Self::Integer { signed: true, .. })
    }

    /// The kind of what is one of two integers, of which a constant may be a number of the text:
    /// the narrowest that has both, and signed if one of them is. None: one is no integer.
    pub(crate) fn either(
        (a, a_constant): (&Self, Option<u64>),
        (b, b_constant): (&Self, Option<u64>),
    ) -> Option<Self> {
        let (a, b) = match (a, b) {
            (Self::Integer { bytes, signed }, Self::Literal) => {
                ((*bytes, *signed), of_text(b_constant, *signed))
            }
            (Self::Literal, Self::Integer { bytes, signed }) => {
                (of_text(a_constant, *signed), (*bytes, *signed))
            }
            (
                Self::Integer { bytes, signed },
                Self::Integer {
                    bytes: others,
                    signed: is_other_signed,
                },
            ) => ((*bytes, *signed), (*others, *is_other_signed)),
            _ => return None,
        };
        let (bytes, signed) = match (a, b) {
            ((a, true), (b, false)) | ((b, false), (a, true)) => (a.max(2 * b).min(8), true),
            ((a, signed), (b, _)) => (a.max(b), signed),
        };
        Some(Self::Integer { bytes, signed })
    }

    /// Bytes and sign of integers that have less than 8.
    pub(crate) const fn narrow(&self) -> Option<(u8, bool)> {
        match *self {
            Self::Integer { bytes, signed } if bytes < 8 => Some((bytes, signed)),
            _ => None,
        }
    }

    /// Whether a variable that holds it is of another kind if it is also given others: of the sign
    /// and the kind that all assignments say.
    pub(crate) const fn takes_others(&self) -> bool {
        matches!(
            self,
            Self::Literal | Self::Boolean | Self::Integer { bytes: 8, .. }
        )
    }

    /// Whether it can be calculated with.
    pub(crate) const fn is_number(&self) -> bool {
        !matches!(
            self,
            Self::Stack { .. } | Self::Probe | Self::Time { .. } | Self::Named(_)
        )
    }

    /// How it is stored, in keys, values and records.
    pub(crate) fn shape(&self) -> Shape {
        match self {
            Self::Literal => Shape::Literal,
            Self::Integer { signed: true, .. } => Shape::Signed(8),
            Self::Integer { signed: false, .. } => Shape::Unsigned(8),
            Self::Boolean => Shape::Flag,
            Self::Character => Shape::Character,
            Self::Pointer { to, space } => Shape::Address {
                to: *to,
                is_user: *space == Space::User,
            },
            Self::Symbol { with_offset } => Shape::Symbol {
                with_offset: *with_offset,
            },
            Self::Probe => Shape::Probe,
            Self::Stack { map, is_user, form } => Shape::Stack {
                map: *map,
                is_user: *is_user,
                form: *form,
            },
            Self::Named(naming) => Shape::Named(*naming),
            Self::Time { format } => Shape::Time {
                format: format.clone(),
            },
        }
    }

    /// The kind of a number that was stored so, with its bytes and whether it is signed. Numbers of
    /// more than 8 bytes are not calculated with.
    pub(crate) fn stored(shape: &Shape) -> Option<(Self, u8, bool)> {
        Some(match shape {
            Shape::Unsigned(bytes @ ..=8) => (Self::UNSIGNED, *bytes, false),
            Shape::Signed(bytes @ ..=8) => (Self::SIGNED, *bytes, true),
            Shape::Literal => (Self::SIGNED, 8, true),
            Shape::Boolean => (Self::Boolean, 1, false),
            Shape::Flag => (Self::Boolean, 8, false),
            Shape::Character => (Self::Character, 4, false),
            Shape::Address { to, is_user } => {
                let space = match is_user {
                    true => Space::User,
                    false => Space::Kernel,
                };
                (Self::Pointer { to: *to, space }, 8, false)
            }
            Shape::Symbol { with_offset } => (
                Self::Symbol {
                    with_offset: *with_offset,
                },
                8,
                false,
            ),
            _ => return None,
        })
    }
}

/// The least bytes of a number of the text beside one that is signed or not. Nothing tells them of
/// one that is calculated.
fn of_text(constant: Option<u64>, signed: bool) -> (u8, bool) {
    let Some(constant) = constant else {
        return (8, signed);
    };
    let signed = signed || constant.cast_signed() < 0;
    let bytes = [1, 2, 4].into_iter();
    let mut bytes = bytes.filter(|bytes| extend(constant, *bytes, signed) == constant);
    (bytes.next().unwrap_or(8), signed)
}

/// A number, and when there is one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Counted {
    pub(crate) number: Number,
    pub(crate) kind: Kind,
    /// It means something only if this holds.
    pub(crate) present: Test,
}

impl Counted {
    /// The number, or zero if there is none.
    pub(crate) fn or_zero(self) -> Number {
        Number::select(self.present, self.number, Number::Constant(0))
    }
}
