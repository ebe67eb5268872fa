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
//! Without the option `graph-time`, a call's time is without that of the calls inside it that are
//! counted, too. Each task has a word in a map of its own then: the time of the calls that have
//! returned inside the newest call that has not.
//!
//! ```text
//!   entry of a call     the call keeps the task's word, which is 0 now
//!   its return          own time = duration − the word; the word = what was kept + duration
//! ```
//!
//! Calls nest, so the word is right when each call goes on. A call that never returns leaves what
//! it had to the next one outside; so at worst too much is taken off.
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
        program::{AttachedCalls, LoadError, LoadedMap, Program},
        sleep::{self, Timed},
    },
};

/// The table of rows, by function.
const ROWS: MapIndex = MapIndex(0);
const ROWS_NAME: &str = "rows";
/// The words of tasks: see the module's text.
const INSIDE_NAME: &str = "inside";
/// The most tasks that have one. The one that was not set for longest makes room.
const MOST_TASKS: i32 = 4096;
/// Where programs have the key of a row, and that of a task.
const ROW_KEY: i16 = -8;
const TASK_KEY: i16 = -16;
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
    /// The calls that probes had missed that are gone.
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

/// What the time of a call has in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// That of the calls inside it: the option `graph-time`.
    WithInner,
    /// Its own only.
    Own,
}

impl Times {
    /// The bytes that a call keeps: the time of its entry, and with [`Times::Own`] the task's word.
    const fn data(self) -> u32 {
        match self {
            Self::WithInner => 8,
            Self::Own => 16,
        }
    }
}

/// Where a call keeps the task's word.
const KEPT: i16 = 8 * (TIME_WORD as i16 + 1);

fn inside(builder: &mut Builder) -> MapIndex {
    builder.map(MapDef {
        name: INSIDE_NAME.into(),
        kind: MapKind::Hash,
        key_size: 8,
        value_size: 8,
        // CPUs that make room at the same time need some more.
        entries: MOST_TASKS as u32 + 64,
    })
}

/// `r1 = ` the map, `r2 = ` where the key is.
fn map_and_key(builder: &mut Builder, map: MapIndex, key: i16) {
    builder
        .load_map(Reg::R1, map)
        .mov(Reg::R2, Reg::R10)
        .alu(AluOp::Add, Reg::R2, i32::from(key));
}

/// `r0 = ` where the task's word is, or null. The task of an idle CPU has the number 0 on each.
fn look_up_task(builder: &mut Builder, inside: MapIndex) {
    const BITS_OF_NUMBER: i32 = 32;
    let has_number = builder.label();
    builder
        .call(Helper::PidTgid)
        .alu(AluOp::ShiftLeft, Reg::R0, BITS_OF_NUMBER)
        .alu(AluOp::ShiftRight, Reg::R0, BITS_OF_NUMBER)
        .branch(Condition::NotEqual, Reg::R0, 0, has_number)
        .call(Helper::CpuId)
        .alu(AluOp::Add, Reg::R0, 1)
        .alu(AluOp::ShiftLeft, Reg::R0, BITS_OF_NUMBER)
        .place(has_number)
        .store(Reg::R10, TASK_KEY, B8, Reg::R0);
    map_and_key(builder, inside, TASK_KEY);
    builder.call(Helper::MapLookup);
}

/// Keeps the task's word in the call, whose data are at `data`, and sets it to 0.
fn begin_own_time(builder: &mut Builder, data: Reg) {
    const VALUE: i16 = -24;
    let inside = inside(builder);
    let (is_new, end) = (builder.label(), builder.label());
    look_up_task(builder, inside);
    builder
        .branch(Condition::Equal, Reg::R0, 0, is_new)
        .load(Reg::R1, Reg::R0, 0, B8)
        .store(data, KEPT, B8, Reg::R1)
        .store(Reg::R0, 0, B8, 0)
        .jump(end)
        .place(is_new);
    // Without it the call finds no word when it returns, and has the time of all inside it.
    map_and_key(builder, inside, TASK_KEY);
    builder.mov(Reg::R3, MOST_TASKS).call(Helper::UseKey);
    builder.store(Reg::R10, VALUE, B8, 0);
    map_and_key(builder, inside, TASK_KEY);
    builder
        .mov(Reg::R3, Reg::R10)
        .alu(AluOp::Add, Reg::R3, i32::from(VALUE))
        .mov(Reg::R4, 0)
        .call(Helper::MapUpdate)
        .store(data, KEPT, B8, 0)
        .place(end);
}

/// Takes the time of the calls inside off `ticks`, and adds that of the call to what was kept.
fn end_own_time(builder: &mut Builder, inside: MapIndex, data: Reg, ticks: Reg) {
    let (is_less, end) = (builder.label(), builder.label());
    look_up_task(builder, inside);
    builder
        .branch(Condition::Equal, Reg::R0, 0, end)
        .load(Reg::R2, Reg::R0, 0, B8)
        .load(Reg::R1, data, KEPT, B8)
        .alu(AluOp::Add, Reg::R1, ticks)
        .store(Reg::R0, 0, B8, Reg::R1)
        .branch(Condition::LessOrEqual, Reg::R2, ticks, is_less)
        .mov(Reg::R2, ticks)
        .place(is_less)
        .alu(AluOp::Sub, ticks, Reg::R2)
        .place(end);
}

fn at_entry(times: Times) -> Result<Source, BuildError> {
    let data = times.data();
    let mut builder = Builder::new(ProgramKind::Entry { data });
    builder.call(Helper::EntryData).mov(Reg::R6, Reg::R0);
    if times == Times::Own {
        begin_own_time(&mut builder, Reg::R6);
    }
    builder
        .call(Helper::Tsc)
        .store(Reg::R6, 8 * TIME_WORD as i16, B8, Reg::R0)
        .exit(0);
    builder.finish()
}

fn at_return(times: Times) -> Result<Source, BuildError> {
    const TICKS: Reg = Reg::R7;
    const DATA: Reg = Reg::R8;
    let data = times.data();
    let mut builder = Builder::new(ProgramKind::Return { data });
    let rows = builder.map(MapDef {
        name: ROWS_NAME.into(),
        kind: MapKind::PerCpuHash,
        key_size: 8,
        value_size: 32,
        entries: MOST_FUNCTIONS,
    });
    let (is_there, end) = (builder.label(), builder.label());
    builder
        .call(Helper::FuncIp)
        .store(Reg::R10, ROW_KEY, B8, Reg::R0)
        .call(Helper::EntryData);
    if times == Times::Own {
        builder.mov(DATA, Reg::R0);
    }
    builder
        .load(Reg::R6, Reg::R0, 8 * TIME_WORD as i16, B8)
        .call(Helper::Tsc)
        .mov(TICKS, Reg::R0)
        .alu(AluOp::Sub, TICKS, Reg::R6);
    if times == Times::Own {
        let inside = inside(&mut builder);
        end_own_time(&mut builder, inside, DATA, TICKS);
    }
    map_and_key(&mut builder, rows, ROW_KEY);
    builder
        .call(Helper::MapLookup)
        .branch(Condition::NotEqual, Reg::R0, 0, is_there);
    // The first call on this CPU: an addition of nothing makes a row of zeros, which is found then.
    map_and_key(&mut builder, rows, ROW_KEY);
    builder.mov(Reg::R3, 0).call(Helper::AddByKey);
    map_and_key(&mut builder, rows, ROW_KEY);
    builder
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

/// The map of a program with that name.
fn map_called(program: Option<&Shared<Program>>, name: &str) -> Option<Shared<LoadedMap>> {
    let mut maps = program?.maps();
    maps.find(|(known, _)| *known == name)
        .map(|(_, map)| map.clone())
}

/// The programs of the entry and of the return. The rows are those of `before`.
fn load(times: Times, before: Option<&Shared<Program>>) -> Result<[Shared<Program>; 2], LoadError> {
    let entry = Program::load(at_entry(times)?)?;
    let on_return = Program::load_sharing(at_return(times)?, |name| match name {
        ROWS_NAME => map_called(before, name),
        _ => map_called(Some(&entry), name),
    })?;
    Ok([entry, on_return])
}

impl Profile {
    /// A profile of these functions, with empty rows.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn start(functions: Vec<u64>, times: Times) -> Result<Self, LoadError> {
        let [entry, on_return] = load(times, None)?;
        let mut profile = Self {
            on_return,
            attached: None,
            functions,
            missed_before: 0,
        };
        profile.attach(entry)?;
        Ok(profile)
    }

    fn attach(&mut self, entry: Shared<Program>) -> Result<(), LoadError> {
        if !self.functions.is_empty() {
            let on_return = self.on_return.clone();
            let calls = AttachedCalls::new(Some(entry), on_return, &self.functions)?;
            sleep::set_routine(Timed::Profile, calls.return_routine());
            self.attached = Some(calls);
        }
        Ok(())
    }

    /// Counts other times from now on, into the same rows. Calls that are under way are not
    /// counted.
    ///
    /// # Errors
    /// [`LoadError`]. If a probe is refused, the profile is off.
    pub fn change(&mut self, times: Times) -> Result<(), LoadError> {
        let [entry, on_return] = load(times, Some(&self.on_return))?;
        // First, so that no call is counted twice.
        self.stop();
        self.on_return = on_return;
        self.attach(entry)
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
            self.missed_before += calls.detach();
        }
    }

    /// How many calls were missed, on all CPUs.
    fn missed(&self) -> u64 {
        self.missed_before + self.attached.as_ref().map_or(0, AttachedCalls::misses)
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
