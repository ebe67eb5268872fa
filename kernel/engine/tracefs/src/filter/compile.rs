//! Compiles filters to instructions.
//!
//! The instructions run before a record is reserved, so a value is fetched for the filter alone,
//! and the event's own fetching stays as it is. They go to a label if the hit is to be dropped and
//! fall through if it is to be kept. An `&&` or `||` stops at the first part that decides.
//!
//! A string is copied to the stack, because elsewhere it may change between two looks and because
//! user memory cannot be reached otherwise. A pattern without a search reads no more of it than it
//! needs. A pattern with a search is laid out as straight code for each position, because addresses
//! on the stack are constants: `*abc*` takes about 750 instructions, of which a hit runs three for
//! each byte of its string.
//!
//! A field that the test before has loaded is not loaded again. [`Emitter::held`] is what the
//! value register holds on all paths to the next instruction.

use alloc::vec::Vec;
use core::{error::Error, fmt, mem};

use fallible::{OutOfMemory, collected, push};

use bpf::{AluOp, Builder, Condition, Helper, Insn, Label, Reg, Size, Width as Bits};

use super::{Comparison, Expression, Filter, Pattern, Piece, Subject, Test};
use crate::field::{Field, Width};

/// The bytes of a task's name, with its NUL.
pub(crate) const COMM_BYTES: i16 = 16;

/// Where a compiled filter may work. It loses `r0` to `r5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// A register of `r6` to `r9`. It is lost.
    pub value: Reg,
    /// The offset from `r10` of [`Frame::TEXT_BYTES`] free bytes of the stack, a multiple of 8.
    /// Only tests of strings use them.
    pub text: i16,
}

impl Frame {
    /// The bytes of the stack that tests of strings need.
    pub const TEXT_BYTES: i16 = Pattern::MOST_SEARCHED as i16 + 1;
}

/// The value that a load has put into its register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded<'a> {
    /// The number. Bits above the width of the field may be anything.
    Number,
    /// The address of a string in kernel memory.
    KernelText,
    /// The address of a string in user memory.
    UserText,
    /// Nothing: the string is the task's name.
    Comm,
    /// Nothing: the string is always this.
    Constant(&'a [u8]),
}

/// A value that a filter cannot have before the record is written, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadError(pub &'static str);

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for LoadError {}

/// A filter that cannot be compiled. [`Builder::finish`] reports a filter that is too long instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompileError {
    /// A field has no value yet.
    Load(LoadError),
    /// A field of one type was loaded as another.
    Mismatch,
    /// There is no memory.
    OutOfMemory,
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(error) => error.fmt(f),
            Self::Mismatch => f.write_str(
                "a string was loaded as a number, or a number as a string; load fields as their \
                 types say",
            ),
            Self::OutOfMemory => f.write_str("there is no memory for the filter"),
        }
    }
}

impl Error for CompileError {}

impl From<LoadError> for CompileError {
    fn from(error: LoadError) -> Self {
        Self::Load(error)
    }
}

impl From<OutOfMemory> for CompileError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

/// Puts the value of a field into a register. It may use `r0` to `r5` and must leave all others.
/// It is not asked for `common_pid`.
pub type Load<'a> = dyn FnMut(&mut Builder, &Field, Reg) -> Result<Loaded<'a>, LoadError> + 'a;

impl Filter {
    /// Appends instructions that go to `reject` if the hit does not match, and fall through if it
    /// does.
    ///
    /// # Errors
    /// [`CompileError`].
    pub fn compile(
        &self,
        builder: &mut Builder,
        frame: Frame,
        reject: Label,
        load: &mut Load<'_>,
    ) -> Result<(), CompileError> {
        let mut emitter = Emitter {
            builder,
            frame,
            load,
            held: Held::Field(None),
            waiting: Vec::new(),
        };
        emitter.expression(self.expression(), reject, false)
    }
}

/// Puts a number into `dst`; bits above its width may be anything.
pub(crate) fn load_number(
    builder: &mut Builder,
    field: &Field,
    dst: Reg,
    load: &mut Load<'_>,
) -> Result<(), CompileError> {
    if field.name == "common_pid" {
        builder.call(Helper::PidTgid).mov(dst, Reg::R0);
        return Ok(());
    }
    match load(builder, field, dst)? {
        Loaded::Number => Ok(()),
        _ => Err(CompileError::Mismatch),
    }
}

/// The content of the value register on all paths to one place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held<'a> {
    /// No path leads there.
    NoPath,
    /// This field; `None` is an unknown value.
    Field(Option<&'a Field>),
}

impl Held<'_> {
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::NoPath, held) | (held, Self::NoPath) => held,
            (left, right) if left == right => left,
            _ => Self::Field(None),
        }
    }
}

struct Emitter<'a, 'b, 'l> {
    builder: &'b mut Builder,
    frame: Frame,
    load: &'b mut Load<'l>,
    held: Held<'a>,
    /// What is held on the paths to labels that are not placed yet.
    waiting: Vec<(Label, Held<'a>)>,
}

impl<'a> Emitter<'a, '_, '_> {
    /// A jump to `label` comes next.
    fn leads_to(&mut self, label: Label) -> Result<(), OutOfMemory> {
        match self
            .waiting
            .iter_mut()
            .find(|(waiting, _)| *waiting == label)
        {
            Some((_, held)) => *held = held.or(self.held),
            None => push(&mut self.waiting, (label, self.held))?,
        }
        Ok(())
    }

    fn jump(&mut self, label: Label) -> Result<(), OutOfMemory> {
        self.leads_to(label)?;
        self.builder.jump(label);
        self.held = Held::NoPath;
        Ok(())
    }

    fn place(&mut self, label: Label) {
        if let Some(index) = self
            .waiting
            .iter()
            .position(|(waiting, _)| *waiting == label)
        {
            let (_, held) = self.waiting.swap_remove(index);
            self.held = self.held.or(held);
        }
        self.builder.place(label);
    }

    /// Goes to `target` if the expression is `jump_if`, and falls through otherwise.
    fn expression(
        &mut self,
        expression: &'a Expression,
        target: Label,
        jump_if: bool,
    ) -> Result<(), CompileError> {
        let (parts, stops_at) = match expression {
            Expression::Test(test) => return self.test(test, target, jump_if),
            Expression::Not(part) => return self.expression(part, target, !jump_if),
            Expression::And(parts) => (parts, false),
            Expression::Or(parts) => (parts, true),
        };
        if jump_if == stops_at {
            return parts
                .iter()
                .try_for_each(|part| self.expression(part, target, jump_if));
        }
        let Some((last, parts)) = parts.split_last() else {
            return Ok(());
        };
        let decided = self.builder.label();
        for part in parts {
            self.expression(part, decided, stops_at)?;
        }
        self.expression(last, target, jump_if)?;
        self.place(decided);
        Ok(())
    }

    fn test(&mut self, test: &'a Test, target: Label, jump_if: bool) -> Result<(), CompileError> {
        match test {
            Test::Number {
                subject,
                comparison,
                value,
            } => {
                let register = match subject {
                    Subject::Cpu => {
                        self.builder.call(Helper::CpuId);
                        Reg::R0
                    }
                    Subject::Field(field) => {
                        self.load_number(field)?;
                        self.frame.value
                    }
                    Subject::Comm => return Err(CompileError::Mismatch),
                };
                let Some((width, signed)) = subject.number() else {
                    return Err(CompileError::Mismatch);
                };
                self.leads_to(target)?;
                self.compare(
                    register,
                    width,
                    signed,
                    *comparison,
                    *value,
                    target,
                    jump_if,
                );
                Ok(())
            }
            Test::Function {
                field,
                negated,
                start,
                end,
            } => {
                self.load_number(field)?;
                self.leads_to(target)?;
                let inside = jump_if != *negated;
                let condition = if inside {
                    Condition::Below
                } else {
                    Condition::AboveOrEqual
                };
                self.builder
                    .set(Reg::R0, *start as i64)
                    .mov(Reg::R2, self.frame.value)
                    .alu(AluOp::Sub, Reg::R2, Reg::R0)
                    .set(Reg::R0, end.wrapping_sub(*start) as i64)
                    .branch(condition, Reg::R2, Reg::R0, target);
                Ok(())
            }
            Test::Text {
                subject,
                negated,
                pattern,
            } => self.text(subject, *negated, pattern, target, jump_if),
        }
    }

    /// Puts a number into the value register, if it is not there.
    fn load_number(&mut self, field: &'a Field) -> Result<(), CompileError> {
        if self.held == Held::Field(Some(field)) {
            return Ok(());
        }
        load_number(self.builder, field, self.frame.value, self.load)?;
        self.held = Held::Field(Some(field));
        Ok(())
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "it is one comparison, spelled out"
    )]
    fn compare(
        &mut self,
        register: Reg,
        width: Width,
        signed: bool,
        comparison: Comparison,
        value: u64,
        target: Label,
        jump_if: bool,
    ) {
        let builder = &mut *self.builder;
        // The low 32 bits are compared as they are; fewer are widened to 32 first.
        match (width, signed) {
            (Width::W8 | Width::W16, true) => {
                builder.push(Insn::SignExtend {
                    width: Bits::W32,
                    bits: width.bits() as u8,
                    dst: register,
                    src: register,
                });
            }
            (Width::W8 | Width::W16, false) => {
                builder.alu(AluOp::And, register, width.truncate(u64::MAX) as i32);
            }
            (Width::W32 | Width::W64, _) => {}
        }
        let (condition, otherwise) = conditions(comparison, signed);
        let (condition, target, skip) = match (jump_if, otherwise) {
            (true, _) => (condition, target, None),
            (false, Some(otherwise)) => (otherwise, target, None),
            // "No common bit" is no condition: go around a jump.
            (false, None) => {
                let skip = builder.label();
                (condition, skip, Some((skip, target)))
            }
        };
        if width != Width::W64 {
            builder.branch32(condition, register, value as i32, target);
        } else if let Ok(value) = i32::try_from(value as i64) {
            builder.branch(condition, register, value, target);
        } else {
            builder
                .set(Reg::R0, value as i64)
                .branch(condition, register, Reg::R0, target);
        }
        if let Some((skip, target)) = skip {
            builder.jump(target).place(skip);
        }
    }

    fn text(
        &mut self,
        subject: &'a Subject,
        negated: bool,
        pattern: &Pattern,
        target: Label,
        jump_if: bool,
    ) -> Result<(), CompileError> {
        let loaded = match subject {
            Subject::Comm => Loaded::Comm,
            Subject::Cpu => return Err(CompileError::Mismatch),
            Subject::Field(field) => {
                self.held = Held::Field(None);
                (self.load)(self.builder, field, self.frame.value)?
            }
        };
        let done = self.builder.label();
        let outcome = |result: bool| if result == jump_if { target } else { done };
        let (matched, failed, unread) = (outcome(!negated), outcome(negated), outcome(false));
        // Whatever path leads on, the value register is unknown after a string.
        let held = mem::replace(&mut self.held, Held::Field(None));
        let size = match loaded {
            Loaded::Number => return Err(CompileError::Mismatch),
            Loaded::Constant(text) => {
                let result = pattern.matches(text) != negated;
                self.held = held;
                if result == jump_if {
                    self.jump(target)?;
                }
                return Ok(());
            }
            Loaded::Comm => {
                self.held = held;
                self.leads_to(target)?;
                self.address(Reg::R1);
                self.builder
                    .mov(Reg::R2, i32::from(COMM_BYTES))
                    .call(Helper::Comm);
                COMM_BYTES
            }
            Loaded::KernelText | Loaded::UserText => {
                self.leads_to(target)?;
                let helper = match loaded {
                    Loaded::UserText => Helper::ReadUserStr,
                    _ => Helper::ReadKernelStr,
                };
                let size = bytes_to_read(pattern);
                self.address(Reg::R1);
                self.builder
                    .mov(Reg::R2, i32::from(size))
                    .mov(Reg::R3, self.frame.value)
                    .call(helper)
                    .branch(Condition::Less, Reg::R0, 0, unread);
                size
            }
        };
        let mut text = Text {
            builder: self.builder,
            at: self.frame.text,
            size,
            failed,
            matched,
        };
        if pattern.searches() {
            if loaded == Loaded::Comm {
                text.measure();
            }
            text.search(pattern.pieces())?;
        } else {
            text.prefix(pattern.pieces())?;
        }
        if matched != done {
            self.builder.jump(matched);
        }
        self.builder.place(done);
        Ok(())
    }

    /// `dst = ` the address of the string on the stack.
    fn address(&mut self, dst: Reg) {
        self.builder
            .mov(dst, Reg::R10)
            .alu(AluOp::Add, dst, i32::from(self.frame.text));
    }
}

/// The condition of a comparison, and that of its opposite.
fn conditions(comparison: Comparison, signed: bool) -> (Condition, Option<Condition>) {
    use Condition as C;
    let (condition, otherwise) = match (comparison, signed) {
        (Comparison::Equal, _) => (C::Equal, C::NotEqual),
        (Comparison::NotEqual, _) => (C::NotEqual, C::Equal),
        (Comparison::Less, true) => (C::Less, C::GreaterOrEqual),
        (Comparison::LessOrEqual, true) => (C::LessOrEqual, C::Greater),
        (Comparison::Greater, true) => (C::Greater, C::LessOrEqual),
        (Comparison::GreaterOrEqual, true) => (C::GreaterOrEqual, C::Less),
        (Comparison::Less, false) => (C::Below, C::AboveOrEqual),
        (Comparison::LessOrEqual, false) => (C::BelowOrEqual, C::Above),
        (Comparison::Greater, false) => (C::Above, C::BelowOrEqual),
        (Comparison::GreaterOrEqual, false) => (C::AboveOrEqual, C::Below),
        (Comparison::AnyBit, _) => return (C::AnyBit, None),
    };
    (condition, Some(otherwise))
}

/// The bytes of a string that decide, with the NUL that a copy ends with.
fn bytes_to_read(pattern: &Pattern) -> i16 {
    let pieces = pattern.pieces();
    if pattern.searches() {
        Frame::TEXT_BYTES
    } else if pieces.last() == Some(&Piece::Star) {
        // At least one byte, because only a look at it shows that the string can be read.
        (pieces.len() as i16).max(2)
    } else {
        // One byte more than the pattern has shows whether the string goes on.
        (pieces.len() as i16 + 2).max(bytes_with_nuls(pieces) as i16)
    }
}

/// A pattern without a star, with a NUL at its end, and more of them up to a multiple of 8. This
/// saves comparisons, because what comes after a string on the stack is zero.
fn with_nuls(pieces: &[Piece]) -> Result<Vec<Piece>, OutOfMemory> {
    let nuls = core::iter::repeat_n(&Piece::Byte(0), bytes_with_nuls(pieces) - pieces.len());
    collected(pieces.iter().chain(nuls).cloned())
}

/// The number of bytes of [`with_nuls`].
const fn bytes_with_nuls(pieces: &[Piece]) -> usize {
    (pieces.len() + 1).next_multiple_of(8)
}

/// A string on the stack, and where to go when it is known whether it matches.
struct Text<'b> {
    builder: &'b mut Builder,
    /// Its offset from `r10`.
    at: i16,
    /// The bytes that may be read, the NUL among them.
    size: i16,
    failed: Label,
    /// Falling through means the same.
    matched: Label,
}

impl Text<'_> {
    /// The most bytes that the string can have without its NUL.
    fn most(&self) -> usize {
        self.size as usize - 1
    }

    /// Matches a pattern with at most one star, at its end.
    fn prefix(&mut self, pieces: &[Piece]) -> Result<(), OutOfMemory> {
        let whole;
        let pieces = match pieces {
            [pieces @ .., Piece::Star] => pieces,
            pieces => {
                whole = with_nuls(pieces)?;
                &whole
            }
        };
        if pieces.len() > self.size as usize {
            self.builder.jump(self.failed);
        } else {
            self.compare(pieces, 0, self.failed);
        }
        Ok(())
    }

    /// `r0 = ` the bytes of the string with its NUL, as the helpers that read strings give it.
    fn measure(&mut self) {
        let known = self.builder.label();
        for length in 0..=self.most() {
            self.builder.mov(Reg::R0, length as i32 + 1);
            if length < self.most() {
                self.load(length, Size::B1);
                self.builder.branch32(Condition::Equal, Reg::R1, 0, known);
            }
        }
        self.builder.place(known);
    }

    /// Matches a pattern with stars. `r0` is the number of bytes, with the NUL.
    ///
    /// Each part between two stars goes to the first place where it fits: if the whole pattern
    /// matches, it matches so, too.
    fn search(&mut self, pieces: &[Piece]) -> Result<(), OutOfMemory> {
        let mut parts = pieces.split(|piece| *piece == Piece::Star);
        let (Some(first), Some(last)) = (parts.next(), parts.next_back()) else {
            return Ok(());
        };
        let mut needed = pieces.iter().filter(|piece| **piece != Piece::Star).count();
        if needed > self.most() {
            self.builder.jump(self.failed);
            return Ok(());
        }
        self.needs(needed);
        self.compare(first, 0, self.failed);
        let (mut least, positions) = (first.len(), self.most() - needed + 1);
        needed -= first.len();
        // For each position where the next part may begin: the code that looks for it there. A part
        // that is found leads to the code of the next part at the position after it, and the last
        // part to the end.
        let mut here = self.labels(positions)?;
        for part in parts {
            let behind = self.labels(positions)?;
            for (index, label) in here.iter().enumerate() {
                let position = least + index;
                self.builder.place(*label);
                self.needs(position + needed);
                let next = here.get(index + 1).copied().unwrap_or(self.failed);
                self.compare(part, position, next);
                self.builder.jump(behind[index]);
            }
            needed -= part.len();
            least += part.len();
            here = behind;
        }
        for label in here {
            self.builder.place(label);
        }
        if !last.is_empty() {
            self.suffix(last, least + last.len(), self.most());
        }
        Ok(())
    }

    fn labels(&mut self, count: usize) -> Result<Vec<Label>, OutOfMemory> {
        collected((0..count).map(|_| self.builder.label()))
    }

    /// Fails if the string has fewer bytes.
    fn needs(&mut self, bytes: usize) {
        self.builder
            .branch32(Condition::LessOrEqual, Reg::R0, bytes as i32, self.failed);
    }

    /// Matches the end of a string that has `least` to `most` bytes.
    fn suffix(&mut self, part: &[Piece], least: usize, most: usize) {
        if least == most {
            self.compare(part, least - part.len(), self.failed);
            self.builder.jump(self.matched);
            return;
        }
        let middle = least.midpoint(most);
        let longer = self.builder.label();
        self.builder
            .branch32(Condition::Greater, Reg::R0, middle as i32 + 1, longer);
        self.suffix(part, least, middle);
        self.builder.place(longer);
        self.suffix(part, middle + 1, most);
    }

    /// `r1 = ` bytes of the string.
    fn load(&mut self, offset: usize, size: Size) {
        self.builder
            .load(Reg::R1, Reg::R10, self.at + offset as i16, size);
    }

    /// Goes to `other` if the bytes at `offset` are not those of `pieces`, which have no star.
    fn compare(&mut self, pieces: &[Piece], offset: usize, other: Label) {
        let mut at = 0;
        while let Some(piece) = pieces.get(at) {
            let here = offset + at;
            match piece {
                Piece::Star => {}
                Piece::Any => {
                    self.load(here, Size::B1);
                    self.builder.branch32(Condition::Equal, Reg::R1, 0, other);
                }
                Piece::Set(set) => {
                    self.load(here, Size::B1);
                    let inside = self.builder.label();
                    for (first, last) in set.runs() {
                        self.builder
                            .branch32(Condition::Below, Reg::R1, i32::from(first), other)
                            .branch32(Condition::BelowOrEqual, Reg::R1, i32::from(last), inside);
                    }
                    self.builder.jump(other).place(inside);
                }
                Piece::Byte(_) => {
                    at += self.compare_bytes(&pieces[at..], here, other);
                    continue;
                }
            }
            at += 1;
        }
    }

    /// Compares the longest run of 8, 4, 2 or 1 bytes that `pieces` begin with. Returns how many.
    fn compare_bytes(&mut self, pieces: &[Piece], offset: usize, other: Label) -> usize {
        let mut wanted = [0; 8];
        let mut count = 0;
        for (slot, piece) in wanted.iter_mut().zip(pieces) {
            let Piece::Byte(byte) = piece else { break };
            *slot = *byte;
            count += 1;
        }
        let (count, size) = match count {
            8 => (8, Size::B8),
            4..=7 => (4, Size::B4),
            2..=3 => (2, Size::B2),
            _ => (1, Size::B1),
        };
        wanted[count..].fill(0);
        let value = u64::from_le_bytes(wanted);
        self.load(offset, size);
        if count == 8 {
            self.builder.set(Reg::R2, value as i64).branch(
                Condition::NotEqual,
                Reg::R1,
                Reg::R2,
                other,
            );
        } else {
            self.builder
                .branch32(Condition::NotEqual, Reg::R1, value as i32, other);
        }
        count
    }
}
