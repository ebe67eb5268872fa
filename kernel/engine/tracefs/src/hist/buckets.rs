//! Buckets of numbers, and the picture of how many numbers fell into each.
//!
//! ```text
//! [0, 16)                6 |@@@@@@@@@@@@@@@@@@@@@@@@@@                          |
//! [16, 32)              12 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
//! ```
//!
//! Buckets are of one width ([`Linear`]) or double from one to the next
//! ([`power_of_two`]). The picture is the one that `bpftrace` draws, because people know it.

use core::{
    error::Error,
    fmt::{self, Write},
};

use bpf::{AluOp, Builder, Condition, MapDef, Operand, Reg};

/// The numbers of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first one; `None` if there is none below which it ends.
    pub first: Option<i128>,
    /// The one behind the last one; `None` if it goes on for ever.
    pub end: Option<i128>,
}

impl fmt::Display for Range {
    /// `[16, 32)`, `[1]`, `[1K, 2K)`, `(..., 0)` or `[64, ...)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first.map(Short), self.end.map(Short)) {
            (Some(first), Some(end)) if first.0 + 1 == end.0 => write!(f, "[{first}]"),
            (Some(first), Some(end)) => write!(f, "[{first}, {end})"),
            (None, Some(end)) => write!(f, "(..., {end})"),
            (Some(first), None) => write!(f, "[{first}, ...)"),
            (None, None) => f.write_str("(..., ...)"),
        }
    }
}

/// A number in `K`, `M`, `G` and so on of 1024, if nothing is lost.
#[derive(Clone, Copy)]
struct Short(i128);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut number, mut unit) = (self.0, "");
        for larger in ["K", "M", "G", "T", "P", "E"] {
            if number == 0 || number % 1024 != 0 {
                break;
            }
            (number, unit) = (number / 1024, larger);
        }
        write!(f, "{number}{unit}")
    }
}

/// The numbers of a bucket of [`bpf::Helper::Log2`]: 0 for bucket 0, those from `2^(b-1)` to
/// `2^b - 1` for bucket `b`.
pub const fn power_of_two(bucket: usize) -> Range {
    let (first, end) = match bucket {
        0 => (0, 1),
        _ => (1 << (bucket - 1), 1 << bucket),
    };
    Range {
        first: Some(first),
        end: Some(end),
    }
}

/// Buckets of one width, one for what is below them and one for what is above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    first: i64,
    step: u32,
    /// Those between.
    count: u32,
}

/// Buckets that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearError {
    /// The last number is not above the first one.
    NoRange,
    /// The width is 0, or more than 31 bits.
    BadStep,
    /// There are more than [`Linear::MOST`].
    TooMany,
}

impl fmt::Display for LinearError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRange => f.write_str("the end must be above the beginning"),
            Self::BadStep => write!(f, "the width must be from 1 to {}", i32::MAX),
            Self::TooMany => {
                write!(
                    f,
                    "there are more than {} buckets; make them wider",
                    Linear::MOST
                )
            }
        }
    }
}

impl Error for LinearError {}

impl Linear {
    /// The most buckets between the first and the last number.
    pub const MOST: u32 = 1000;

    /// Buckets of `step` numbers, from `first` to before `end`. If the width does not divide the
    /// range, the last one is cut.
    ///
    /// # Errors
    /// [`LinearError`].
    pub fn new(first: i64, end: i64, step: u64) -> Result<Self, LinearError> {
        let step = u32::try_from(step)
            .ok()
            .filter(|step| (1..1 << 31).contains(step));
        let step = step.ok_or(LinearError::BadStep)?;
        let range = end.checked_sub(first).filter(|range| *range > 0);
        let range = range.ok_or(LinearError::NoRange)? as u64;
        let count = range.div_ceil(step.into());
        match u32::try_from(count) {
            Ok(count) if count <= Self::MOST => Ok(Self { first, step, count }),
            _ => Err(LinearError::TooMany),
        }
    }

    /// All buckets.
    pub const fn buckets(&self) -> u32 {
        self.count + 2
    }

    /// The counters for them.
    pub fn map(&self, name: &'static str) -> MapDef {
        MapDef::counters(name, self.buckets())
    }

    /// The number behind the last bucket of one width.
    const fn end(&self) -> i128 {
        self.first as i128 + self.step as i128 * self.count as i128
    }

    /// The bucket of a number.
    pub const fn bucket(&self, number: i64) -> u32 {
        if number < self.first {
            0
        } else if number as i128 >= self.end() {
            self.count + 1
        } else {
            1 + (number.wrapping_sub(self.first) as u64 / self.step as u64) as u32
        }
    }

    /// The numbers of a bucket.
    pub const fn range(&self, bucket: u32) -> Range {
        let first = self.first as i128 + self.step as i128 * (bucket as i128 - 1);
        Range {
            first: if bucket == 0 { None } else { Some(first) },
            end: if bucket > self.count {
                None
            } else {
                Some(first + self.step as i128)
            },
        }
    }

    /// Appends instructions that put the bucket of the number in `register` into it. They use
    /// `r0`, so `register` is another one.
    pub fn compile(&self, builder: &mut Builder, register: Reg) {
        let (below, above, done) = (builder.label(), builder.label(), builder.label());
        let constant = |builder: &mut Builder, value: i64| match i32::try_from(value) {
            Ok(value) => Operand::Imm(value),
            Err(_) => {
                builder.set(Reg::R0, value);
                Operand::Reg(Reg::R0)
            }
        };
        let operand = constant(builder, self.first);
        builder
            .branch(Condition::Less, register, operand, below)
            // No overflow: the difference is below 2^64, and is compared without a sign.
            .alu(AluOp::Sub, register, operand)
            .alu(AluOp::Div, register, self.step as i32)
            .branch(Condition::AboveOrEqual, register, self.count as i32, above)
            .alu(AluOp::Add, register, 1)
            .jump(done)
            .place(below)
            .mov(register, 0)
            .jump(done)
            .place(above)
            .mov(register, self.count as i32 + 1)
            .place(done);
    }
}

/// The letters of the longest bar.
const BAR: u64 = 52;

/// Draws the buckets from the first to the last one that has something.
///
/// # Errors
/// Those of `out`.
pub fn draw(
    buckets: impl IntoIterator<Item = (Range, u64)> + Clone,
    out: &mut dyn Write,
) -> fmt::Result {
    let most = buckets
        .clone()
        .into_iter()
        .map(|(_, count)| count)
        .max()
        .unwrap_or(0);
    let filled = |(index, (_, count)): (usize, (Range, u64))| (count > 0).then_some(index);
    let last = buckets
        .clone()
        .into_iter()
        .enumerate()
        .filter_map(filled)
        .last();
    let some = buckets
        .into_iter()
        .enumerate()
        .skip_while(|(_, (_, count))| *count == 0);
    for (_, (range, count)) in some.take_while(|(index, _)| Some(*index) <= last) {
        let bar = (u128::from(count) * u128::from(BAR) / u128::from(most.max(1))) as usize;
        let (label, rest, empty) = (alloc::format!("{range}"), BAR as usize - bar, "");
        writeln!(out, "{label:<16}{count:>8} |{empty:@<bar$}{empty:rest$}|")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{string::ToString, vec::Vec};
    use bpf::{
        Kind,
        context::Register,
        interpreter::{self, TestMachine},
    };
    use std::string::String;

    #[test]
    fn compiled_buckets_are_those_of_the_reference() {
        for (first, end, step) in [
            (0, 10, 3),
            (-7, 7, 5),
            (i64::MIN, i64::MIN + 4, 1),
            (i64::MAX - 4, i64::MAX, 2),
            (1 << 40, (1 << 40) + 100, 7),
        ] {
            let linear = Linear::new(first, end, step).unwrap();
            let mut builder = Builder::new(Kind::Probe);
            builder.load_register(Reg::R7, Register::Di);
            linear.compile(&mut builder, Reg::R7);
            builder.mov(Reg::R0, Reg::R7).push(bpf::Insn::Exit);
            let program = builder.finish().unwrap();
            let edges = [first, end]
                .into_iter()
                .flat_map(|edge| (-8..=8).map(move |near| edge.wrapping_add(near)));
            for number in edges.chain([i64::MIN, -1, 0, i64::MAX]) {
                let mut machine = TestMachine::new(&program);
                machine.set_register(Register::Di, number as u64);
                let bucket = interpreter::run(&program, &mut machine, 100).unwrap() as u32;
                assert_eq!(bucket, linear.bucket(number), "{linear:?} {number}");
                let Range { first, end } = linear.range(bucket);
                assert!(
                    first.is_none_or(|first| first <= number.into()),
                    "{linear:?} {number}"
                );
                assert!(
                    end.is_none_or(|end| end > number.into()),
                    "{linear:?} {number}"
                );
                assert!(bucket < linear.buckets());
            }
        }
    }

    #[test]
    fn bad_buckets_are_refused() {
        assert_eq!(Linear::new(5, 5, 1), Err(LinearError::NoRange));
        assert_eq!(
            Linear::new(i64::MIN, i64::MAX, 1),
            Err(LinearError::NoRange)
        );
        assert_eq!(Linear::new(0, 5, 0), Err(LinearError::BadStep));
        assert_eq!(Linear::new(0, 5, 1 << 31), Err(LinearError::BadStep));
        assert_eq!(Linear::new(0, 1001, 1), Err(LinearError::TooMany));
        assert_eq!(Linear::new(0, 1000, 1).unwrap().buckets(), 1002);
    }

    #[test]
    fn ranges_print_as_bpftrace_prints_them() {
        for (range, text) in [
            (power_of_two(0), "[0]"),
            (power_of_two(1), "[1]"),
            (power_of_two(2), "[2, 4)"),
            (power_of_two(11), "[1K, 2K)"),
            (power_of_two(10), "[512, 1K)"),
            (power_of_two(64), "[8E, 16E)"),
            (Linear::new(0, 30, 10).unwrap().range(0), "(..., 0)"),
            (Linear::new(0, 30, 10).unwrap().range(2), "[10, 20)"),
            (Linear::new(-30, 30, 10).unwrap().range(1), "[-30, -20)"),
            (Linear::new(0, 30, 10).unwrap().range(4), "[30, ...)"),
        ] {
            assert_eq!(range.to_string(), text);
        }
    }

    #[test]
    fn empty_buckets_at_both_ends_are_not_drawn() {
        let drawn = |counts: &[u64]| {
            let buckets: Vec<(Range, u64)> = counts
                .iter()
                .enumerate()
                .map(|(b, count)| (power_of_two(b), *count))
                .collect();
            let mut out = String::new();
            draw(buckets, &mut out).unwrap();
            out
        };
        assert_eq!(
            drawn(&[0, 3, 0, 12, 0]),
            "[1]                    3 |@@@@@@@@@@@@@                                       |\n\
             [2, 4)                 0 |                                                    |\n\
             [4, 8)                12 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|\n"
        );
        assert_eq!(drawn(&[0, 0]), "");
        assert_eq!(drawn(&[u64::MAX]).matches('@').count(), 52);
    }
}
