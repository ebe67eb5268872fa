//! The profile of functions: how often each was called on each CPU, and for how long.
//!
//! Two compiled programs serve all functions. That of the entry keeps the time in the call's
//! instance, and that of the return adds to a row of the function in its CPU's table:
//!
//! ```text
//!   calls │ ticks of the time stamp counter │ those by 32 │ squares of these
//! ```
//!
//! Ticks by 32 keep the sum of squares of 1,000 calls of a second each in 64 bits. They are about
//! 10 nanoseconds, which is how exact the variance is.
//!
//! The functions are those of `set_ftrace_filter` when the profile is started. A call counts when
//! it returns, on the CPU where it does. Calls that found no free instance are missed, and told.
//!
//! # Contexts
//! Task context, under the lock of the tracers. The programs are on the hit path.

use alloc::vec::Vec;
use core::fmt::Write;

use bpf::{
    AluOp, BuildError, Builder, Condition, Helper, MapDef, MapIndex, MapKind, Program as Source,
    ProgramKind, Reg, Size::B8,
};
use fallible::push;
use trace_agent::{graph::TIME_WORD, script::read_map};
use trace_interface::frame::MapEntry;
use tracefs::{
    line::write_missed,
    profile::{Calls, variance, write_head, write_row},
};

use super::set::function_name;
use crate::{
    errno::Errno,
    mm::shared::Shared,
    probes::Kernel,
    time::{self, tsc_hz},
    trace::{
        program::{AttachedCalls, LoadError, Program},
        sleep::{self, Timed},
    },
};

/// The table of rows, by function.
const ROWS: MapIndex = MapIndex(0);
/// The shift of ticks whose squares are added up.
const SHIFT: i32 = 5;
const NSEC_PER_SEC: u128 = time::NSEC_PER_SEC as u128;
/// The most functions that have rows.
const MOST_FUNCTIONS: u32 = 16384;

/// See the module's text.
pub struct Profile {
    on_return: Shared<Program>,
    /// None while it is off; its rows are kept.
    attached: Option<AttachedCalls>,
    /// Where its functions begin, ascending.
    functions: Vec<u64>,
    /// The calls that it had missed when it was turned off.
    missed_before: u64,
}

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    ticks: u64,
    function: u64,
    hits: u64,
    shifted: u64,
    squares: u64,
}

fn at_entry() -> Result<Source, BuildError> {
    let mut builder = Builder::new(ProgramKind::Entry { data: 8 });
    builder
        .call(Helper::EntryData)
        .mov(Reg::R6, Reg::R0)
        .call(Helper::Tsc)
        .store(Reg::R6, 8 * TIME_WORD as i16, B8, Reg::R0)
        .exit(0);
    builder.finish()
}

fn at_return() -> Result<Source, BuildError> {
    const TICKS: Reg = Reg::R7;
    const KEY: i16 = -8;
    let mut builder = Builder::new(ProgramKind::Return { data: 8 });
    let rows = builder.map(MapDef {
        name: "rows".into(),
        kind: MapKind::PerCpuHash,
        key_size: 8,
        value_size: 32,
        entries: MOST_FUNCTIONS,
    });
    let (is_there, end) = (builder.label(), builder.label());
    builder
        .call(Helper::FuncIp)
        .store(Reg::R10, KEY, B8, Reg::R0)
        .call(Helper::EntryData)
        .load(Reg::R6, Reg::R0, 8 * TIME_WORD as i16, B8)
        .call(Helper::Tsc)
        .mov(TICKS, Reg::R0)
        .alu(AluOp::Sub, TICKS, Reg::R6)
        .load_map(Reg::R1, rows)
        .mov(Reg::R2, Reg::R10)
        .alu(AluOp::Add, Reg::R2, i32::from(KEY))
        .call(Helper::MapLookup)
        .branch(Condition::NotEqual, Reg::R0, 0, is_there);
    // The first call on this CPU: an addition of nothing makes a row of zeros, which is found then.
    builder
        .load_map(Reg::R1, rows)
        .mov(Reg::R2, Reg::R10)
        .alu(AluOp::Add, Reg::R2, i32::from(KEY))
        .mov(Reg::R3, 0)
        .call(Helper::AddByKey)
        .load_map(Reg::R1, rows)
        .mov(Reg::R2, Reg::R10)
        .alu(AluOp::Add, Reg::R2, i32::from(KEY))
        .call(Helper::MapLookup)
        .branch(Condition::Equal, Reg::R0, 0, end)
        .place(is_there);
    let add = |builder: &mut Builder, word: i16, delta: Reg| {
        builder
            .load(Reg::R1, Reg::R0, 8 * word, B8)
            .alu(AluOp::Add, Reg::R1, delta)
            .store(Reg::R0, 8 * word, B8, Reg::R1);
    };
    builder.mov(Reg::R2, 1);
    add(&mut builder, 0, Reg::R2);
    add(&mut builder, 1, TICKS);
    builder.alu(AluOp::ShiftRight, TICKS, SHIFT);
    add(&mut builder, 2, TICKS);
    builder.alu(AluOp::Mul, TICKS, TICKS);
    add(&mut builder, 3, TICKS);
    builder.place(end).exit(0);
    builder.finish()
}

impl Profile {
    /// A profile of these functions, with empty rows.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn start(functions: Vec<u64>) -> Result<Self, LoadError> {
        let entry = Program::load(at_entry()?)?;
        let on_return = Program::load(at_return()?)?;
        let attached = match &*functions {
            [] => None,
            functions => {
                let calls = AttachedCalls::new(Some(entry), on_return.clone(), functions)?;
                sleep::set_routine(Timed::Profile, calls.return_routine());
                Some(calls)
            }
        };
        Ok(Self {
            on_return,
            attached,
            functions,
            missed_before: 0,
        })
    }

    /// Where its functions begin, ascending.
    pub fn functions(&self) -> &[u64] {
        &self.functions
    }

    /// Whether calls are counted.
    pub fn is_on(&self) -> bool {
        self.attached.is_some()
    }

    /// Counts no more calls; the rows stay.
    pub fn stop(&mut self) {
        sleep::set_routine(Timed::Profile, None);
        if let Some(calls) = self.attached.take() {
            self.missed_before = calls.detach();
        }
    }

    /// How many calls were missed, on all CPUs.
    fn missed(&self) -> u64 {
        (self.attached.as_ref()).map_or(self.missed_before, AttachedCalls::misses)
    }

    /// Writes the rows of a CPU, those of the longest time first.
    ///
    /// # Errors
    /// ENOMEM, and that of `out`.
    pub fn show(&self, cpu: usize, out: &mut dyn Write) -> Result<(), Errno> {
        let mut rows: Vec<Row> = Vec::new();
        let entries = self.on_return.map(ROWS).map(read_map::<Kernel>);
        for MapEntry {
            cpu: of,
            key,
            value,
        } in entries.transpose()?.unwrap_or_default()
        {
            let word = |bytes: &[u8], index: usize| {
                let words = bytes.as_chunks::<8>().0;
                words.get(index).map_or(0, |word| u64::from_le_bytes(*word))
            };
            if of as usize == cpu {
                let row = Row {
                    ticks: word(&value, 1),
                    function: word(&key, 0),
                    hits: word(&value, 0),
                    shifted: word(&value, 2),
                    squares: word(&value, 3),
                };
                push(&mut rows, row)?;
            }
        }
        rows.sort_unstable_by(|a, b| b.cmp(a));
        write_head(out)?;
        write_missed(self.missed(), out)?;
        for row in rows {
            let name = function_name(row.function);
            let in_ticks = u128::from(variance(row.hits, row.shifted, row.squares.into()));
            let hz = u128::from(tsc_hz());
            let unit = NSEC_PER_SEC << SHIFT;
            let in_ns = in_ticks.saturating_mul(unit * unit) / (hz * hz);
            let time_ns = u128::from(row.ticks) * NSEC_PER_SEC / hz;
            let calls = Calls {
                hits: row.hits,
                time_ns: u64::try_from(time_ns).unwrap_or(u64::MAX),
                variance: u64::try_from(in_ns).unwrap_or(u64::MAX),
            };
            write_row(name, &calls, out)?;
        }
        Ok(())
    }
}
