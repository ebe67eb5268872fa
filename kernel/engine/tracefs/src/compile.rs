//! Programs of events: what a hit of one probe does.
//!
//! ```text
//!   filter ── does not match ── count it ──┐
//!   count the hit                          │
//!   measure the strings                    │
//!   are records taken? ── no ──────────────┤
//!   reserve a record ── no room ───────────┤
//!   store the addresses and the values     │
//!   append the strings                     │
//!   submit the record                      ▼
//!   exit 0
//! ```
//!
//! A return event that records arguments of the function has a second program, which keeps them at
//! the entry. The kernel compiles both to machine code.
//!
//! # Invariants
//! EVENTCODE-1. Every byte of the fixed part is stored, even where a value cannot be read. So
//!     nothing of an older record is shown.
//! EVENTCODE-2. Each hit is counted in one of the counters, and in one only: [`HITS`] if it is to
//!     be recorded (whether or not there is room, and whether or not records are taken),
//!     [`FILTERED`] if the filter does not match, [`UNASKED`] if the event is off and only triggers
//!     act. So a filter costs nothing but itself.
//! EVENTCODE-3. A string is measured before the record is reserved and copied afterwards. If it has
//!     grown in between, it is cut; it never takes the room of the next one.
//! EVENTCODE-4. The verifier takes every program, unless it is too long. A longer one is refused
//!     here.
//!
//! # Stack
//! Below `r10`: 8 bytes of scratch, the measured lengths of strings with 2 bytes each, and at the
//! bottom [`TEXT_BYTES`] for a text of constant bytes, for the task's name, and for the filter.

use crate::{
    definition::{Definition, EventKind},
    fetch::{Argument, Fetch, ValueType},
    field::{Field, LookupError, Symbols},
    filter::{self, Filter, Frame, load_number},
    hist::Hist,
    line::flags,
    values::{Values, extract, is_user_text, size},
};
use alloc::vec::Vec;
use bpf::{
    AluOp, BuildError, Builder, Condition, Helper, Label, MOST_RECORD_BYTES, MapDef, MapIndex,
    Program, ProgramKind, Reg, Size,
};
use core::{error::Error, fmt};

use fallible::{OutOfMemory, push};

/// The map that counts the hits that are to be recorded: one counter for each CPU.
pub const HITS: MapIndex = MapIndex(0);
/// The name of the map that counts hits that the filter has rejected. A program without a filter
/// has none.
pub const FILTERED: &str = "filtered";
/// The name of the map that counts hits at which the event was off, and only triggers acted. A
/// program has it if that may be.
pub const UNASKED: &str = "unasked";
/// The trace buffer.
pub const RING: MapIndex = MapIndex(1);

/// The bytes of the stack that an event uses at most.
const FRAME_BYTES: i16 = 512;
/// Those of them for texts.
const TEXT_BYTES: i16 = 256;
/// Where they begin, from `r10`.
const TEXT: i16 = -FRAME_BYTES;
/// The bytes of a task's name.
const COMM_BYTES: i16 = 16;
/// The most strings that are measured in one event.
pub const MOST_STRINGS: usize = ((FRAME_BYTES - TEXT_BYTES + Values::SCRATCH) / 2) as usize;
/// Holds the record, and a value of the filter before there is one.
const RECORD: Reg = Reg::R7;
/// Holds the bytes of strings before there is a record, and the address of an array later.
const ROOM: Reg = Reg::R8;

const _: () = assert!(Frame::TEXT_BYTES <= TEXT_BYTES);

/// The programs of one probe.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The program for the entry of a function whose arguments the return records.
    pub entry: Option<Program>,
    /// The program for the probed instruction, or for the return. It counts hits as EVENTCODE-2
    /// says.
    pub hit: Program,
}

/// An event that has no program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompileError {
    /// A symbol of an argument has no address any more.
    Symbol(LookupError),
    /// There are more than [`MOST_STRINGS`] strings.
    TooManyStrings(usize),
    /// A constant text does not fit the stack.
    TooLongText(usize),
    /// The filter cannot be compiled.
    Filter(filter::CompileError),
    /// The program cannot be built.
    Build(BuildError),
    /// There is no memory.
    OutOfMemory,
}

impl CompileError {
    /// Whether memory was short, so that it may work later.
    pub const fn is_out_of_memory(&self) -> bool {
        matches!(
            self,
            Self::OutOfMemory
                | Self::Symbol(LookupError::OutOfMemory)
                | Self::Build(BuildError::OutOfMemory)
                | Self::Filter(filter::CompileError::OutOfMemory)
        )
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Symbol(error) => write!(f, "a symbol of an argument is gone: {error}"),
            Self::TooManyStrings(count) => {
                write!(
                    f,
                    "{count} strings; an event records at most {MOST_STRINGS}"
                )
            }
            Self::TooLongText(bytes) => {
                write!(f, "a text of {bytes} bytes; {} is the most", TEXT_BYTES - 1)
            }
            Self::Filter(error) => error.fmt(f),
            Self::Build(error) => error.fmt(f),
            Self::OutOfMemory => f.write_str("there is no memory for the program"),
        }
    }
}

impl Error for CompileError {}

impl From<LookupError> for CompileError {
    fn from(error: LookupError) -> Self {
        Self::Symbol(error)
    }
}

impl From<OutOfMemory> for CompileError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl From<filter::CompileError> for CompileError {
    fn from(error: filter::CompileError) -> Self {
        Self::Filter(error)
    }
}

impl From<BuildError> for CompileError {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}

/// Compiles a probe of the event with the number `event`. A hit that `filter` does not match leaves
/// no record.
///
/// # Errors
/// [`CompileError`].
pub fn compile(
    definition: &Definition,
    event: u16,
    symbols: &dyn Symbols,
    filter: Option<&Filter>,
) -> Result<Programs, CompileError> {
    let mut program = EventProgram::new(definition, event, symbols)?;
    program.record(filter)?;
    program.finish()
}

/// The program of a probe while it is made. Between [`EventProgram::new`] and
/// [`EventProgram::finish`] come the record and the actions of triggers, in any order.
pub struct EventProgram<'a> {
    /// Takes more instructions. They may use all registers but [`Values::CONTEXT`] and
    /// [`Values::ENTRY_DATA`], and all of the stack, because nothing else is kept there.
    pub builder: Builder,
    /// Puts values into registers.
    pub values: Values<'a>,
    /// Each record is followed by one of the call stack.
    pub with_stacks: bool,
}

impl<'a> EventProgram<'a> {
    /// A program that does nothing yet, and does not count the hit.
    ///
    /// # Errors
    /// [`CompileError::OutOfMemory`].
    pub fn new(
        definition: &'a Definition,
        event: u16,
        symbols: &'a dyn Symbols,
    ) -> Result<Self, CompileError> {
        let values = Values::new(definition, event, symbols)?;
        let kind = match definition.kind {
            // What the return of a program's function needs is in the registers.
            _ if definition.is_of_program() => ProgramKind::Probe,
            EventKind::Probe | EventKind::Watch => ProgramKind::Probe,
            EventKind::Return => ProgramKind::Return {
                data: values.entry_bytes(),
            },
        };
        let mut builder = Builder::new(kind);
        builder.map(MapDef::counters("hits", 1));
        builder.map(MapDef::ring("trace"));
        values.begin(&mut builder);
        Ok(Self {
            builder,
            values,
            with_stacks: false,
        })
    }

    /// Goes on only if the filter matches, and to `reject` otherwise.
    ///
    /// # Errors
    /// [`CompileError::Filter`].
    pub fn filter(&mut self, filter: &Filter, reject: Label) -> Result<(), CompileError> {
        let Self {
            builder, values, ..
        } = self;
        let frame = Frame {
            value: RECORD,
            text: TEXT,
        };
        filter.compile(builder, frame, reject, &mut |builder, field, dst| {
            values.load(builder, field, dst)
        })?;
        Ok(())
    }

    /// Puts the number in a field into `dst`; bits above its width may be anything. Calls of
    /// helpers may be on the way.
    ///
    /// # Errors
    /// [`CompileError::Filter`].
    pub fn number(&mut self, field: &Field, dst: Reg) -> Result<(), CompileError> {
        let Self {
            builder, values, ..
        } = self;
        load_number(builder, field, dst, &mut |builder, field, dst| {
            values.load(builder, field, dst)
        })?;
        Ok(())
    }

    /// Counts the hit in a histogram whose maps are called `name` and so on.
    ///
    /// # Errors
    /// [`CompileError`].
    pub fn count(&mut self, hist: &Hist, name: &str) -> Result<(), CompileError> {
        let Self {
            builder, values, ..
        } = self;
        let maps = hist.add_maps(builder, name)?;
        let frame = Frame {
            value: RECORD,
            text: TEXT,
        };
        hist.compile(
            builder,
            frame,
            Values::CONTEXT,
            maps,
            &mut |builder, field, dst| values.load(builder, field, dst),
        )?;
        Ok(())
    }

    /// Counts a hit at which the event is off.
    pub fn count_unasked(&mut self) {
        let unasked = self.builder.map(MapDef::counters(UNASKED, 1));
        self.builder.add(unasked, 0, 1);
    }

    /// Counts the hit, and writes a record if all filters match, and its stack if that is wanted.
    ///
    /// # Errors
    /// [`CompileError`].
    pub fn record<'f>(
        &mut self,
        filters: impl IntoIterator<Item = &'f Filter>,
    ) -> Result<(), CompileError> {
        let (end, reject) = (self.builder.label(), self.builder.label());
        let mut is_filtered = false;
        for filter in filters {
            self.filter(filter, reject)?;
            is_filtered = true;
        }
        self.builder.add(HITS, 0, 1);
        let strings = self.measure()?;
        self.reserve(&strings, end);
        let fields = self.values.take_fields();
        let stored = self.store(&fields, &strings);
        self.values.put_fields(fields);
        stored?;
        self.builder
            .mov(Reg::R1, RECORD)
            .mov(Reg::R2, 0)
            .call(Helper::RingSubmit);
        if self.with_stacks {
            self.record_stack();
        }
        if is_filtered {
            let filtered = self.builder.map(MapDef::counters(FILTERED, 1));
            self.builder.jump(end).place(reject).add(filtered, 0, 1);
        }
        self.builder.place(end);
        Ok(())
    }

    /// Stores the addresses and the values into the record.
    fn store(&mut self, fields: &[Field], strings: &Strings) -> Result<(), CompileError> {
        let definition = self.values.definition();
        let header = fields.len() - definition.arguments.len();
        for field in &fields[Field::common().len()..header] {
            self.values.address(&mut self.builder, &field.name, Reg::R0);
            self.builder
                .store(RECORD, field.offset as i16, Size::B8, Reg::R0);
        }
        let mut slots = strings.slots.iter().copied();
        for (argument, field) in definition.arguments.iter().zip(&fields[header..]) {
            if argument.is_numeric() {
                self.store_numbers(argument, field)?;
            } else {
                self.append_strings(argument, field, &mut slots)?;
            }
        }
        Ok(())
    }

    /// Ends the program.
    ///
    /// # Errors
    /// [`CompileError::Build`].
    pub fn finish(mut self) -> Result<Programs, CompileError> {
        self.builder.exit(0);
        let hit = self.builder.finish()?;
        let data = self.values.entry_bytes();
        let entry = match data {
            0 => None,
            data => {
                let mut builder = Builder::new(ProgramKind::Entry { data });
                self.values.begin(&mut builder);
                self.values.keep(&mut builder);
                builder.exit(0);
                Some(builder.finish()?)
            }
        };
        Ok(Programs { entry, hit })
    }

    /// The most bytes that the strings have together.
    fn most_room(&self) -> u32 {
        MOST_RECORD_BYTES - self.values.layout().fixed_size
    }

    /// Measures the strings whose length is not known: their sum with the lengths that are known
    /// goes to [`ROOM`], and each to a slot of the stack.
    fn measure(&mut self) -> Result<Strings, CompileError> {
        let definition = self.values.definition();
        let is_measured = |argument: &&Argument| is_measured(argument);
        let count: usize = (definition.arguments.iter().filter(is_measured))
            .map(|argument| argument.kind().count() as usize)
            .sum();
        if count > MOST_STRINGS {
            return Err(CompileError::TooManyStrings(count));
        }
        let known: u32 = definition.arguments.iter().map(known_bytes).sum();
        let room = self.most_room();
        let mut slots = Vec::new();
        if count > 0 && known > 0 {
            self.builder.mov(ROOM, known as i32);
        }
        for argument in definition.arguments.iter().filter(is_measured) {
            for index in 0..argument.kind().count() as u8 {
                let slot = Values::SCRATCH - 2 * (slots.len() as i16 + 1);
                push(&mut slots, slot)?;
                self.values
                    .text(&mut self.builder, argument, index, Reg::R1)?;
                self.builder
                    .mov(Reg::R2, room as i32)
                    .call(match is_user_text(argument) {
                        true => Helper::UserStrLen,
                        false => Helper::StrLen,
                    })
                    .store(Reg::R10, slot, Size::B2, Reg::R0);
                match known == 0 && slots.len() == 1 {
                    true => self.builder.mov(ROOM, Reg::R0),
                    false => self.builder.alu(AluOp::Add, ROOM, Reg::R0),
                };
            }
        }
        if count > 1 || count == 1 && known > 0 {
            let fits = self.builder.label();
            self.builder
                .branch(Condition::BelowOrEqual, ROOM, room as i32, fits)
                .mov(ROOM, room as i32)
                .place(fits);
        }
        Ok(Strings {
            slots,
            known: known.min(room),
        })
    }

    /// Reserves the record, or goes to `end`.
    fn reserve(&mut self, strings: &Strings, end: Label) {
        let layout = self.values.layout();
        self.builder
            .load_map(Reg::R1, RING)
            .mov(Reg::R2, layout.fixed_size as i32);
        match strings.slots[..] {
            [] => self.builder.mov(Reg::R3, strings.known as i32),
            _ => self.builder.mov(Reg::R3, ROOM),
        };
        self.builder
            .mov(Reg::R4, i32::from(self.values.event()))
            .call(Helper::EventReserve)
            .branch(Condition::Equal, Reg::R0, 0, end)
            .mov(RECORD, Reg::R0);
        const _: () = assert!(flags::IRQS_OFF == 1);
        self.builder.note_interrupts_off(RECORD, Values::CONTEXT);
    }

    /// Writes a record of the call stack.
    pub fn record_stack(&mut self) {
        self.builder.record_stack(RING, Values::CONTEXT);
    }

    fn store_numbers(&mut self, argument: &Argument, field: &Field) -> Result<(), CompileError> {
        let Self {
            builder, values, ..
        } = self;
        let size = size(argument.value_type.element());
        let offset = field.offset as i16;
        let Some(count) = argument.count else {
            values.number(builder, argument, Reg::R0)?;
            builder.store(RECORD, offset, size, Reg::R0);
            return Ok(());
        };
        let is_user = is_user_text(argument);
        if !is_user {
            values.location(builder, &argument.fetch, ROOM)?;
        }
        for index in 0..i16::from(count) {
            let step = index * size.bytes() as i16;
            match is_user {
                true => values.user_element(builder, argument, (step, size), Reg::R0)?,
                false => drop(builder.load(Reg::R0, ROOM, step, size)),
            }
            extract(builder, argument.value_type, Reg::R0);
            builder.store(RECORD, offset + step, size, Reg::R0);
        }
        Ok(())
    }

    fn append_strings(
        &mut self,
        argument: &Argument,
        field: &Field,
        slots: &mut impl Iterator<Item = i16>,
    ) -> Result<(), CompileError> {
        let offset = field.offset as i16;
        match (&argument.fetch, argument.value_type) {
            (fetch, ValueType::SymbolString) => {
                self.values
                    .value(&mut self.builder, fetch, Size::B8, Reg::R1)?;
                self.builder.store(Reg::R10, TEXT, Size::B8, Reg::R1);
                self.append_bytes(8, offset);
            }
            (Fetch::Comm, _) => {
                self.text_address(Reg::R1);
                self.builder
                    .mov(Reg::R2, i32::from(COMM_BYTES))
                    .call(Helper::Comm);
                self.append_bytes(COMM_BYTES, offset);
            }
            (Fetch::Text(text), _) => {
                let bytes = text.len() + 1;
                if bytes > TEXT_BYTES as usize {
                    return Err(CompileError::TooLongText(text.len()));
                }
                // The text, and the byte 0 that ends it.
                for index in 0..bytes.div_ceil(8) as i16 {
                    let rest = &text.as_bytes()[8 * index as usize..];
                    let word = &rest[..rest.len().min(8)];
                    let mut whole = [0; 8];
                    whole[..word.len()].copy_from_slice(word);
                    self.builder.set(Reg::R1, i64::from_le_bytes(whole)).store(
                        Reg::R10,
                        TEXT + index * 8,
                        Size::B8,
                        Reg::R1,
                    );
                }
                self.append_bytes(bytes as i16, offset);
            }
            _ => {
                for (index, slot) in (0..argument.kind().count() as u8).zip(slots) {
                    let place = offset + i16::from(index) * 4;
                    self.append_measured(argument, index, slot, place)?;
                }
            }
        }
        Ok(())
    }

    /// Appends a string whose length is in the slot. One that could not be read has the length 0,
    /// which is printed as a fault.
    fn append_measured(
        &mut self,
        argument: &Argument,
        index: u8,
        slot: i16,
        place: i16,
    ) -> Result<(), CompileError> {
        self.values
            .text(&mut self.builder, argument, index, Reg::R2)?;
        self.builder
            .load(Reg::R3, Reg::R10, slot, Size::B2)
            .mov(Reg::R1, RECORD)
            .call(match is_user_text(argument) {
                true => Helper::AppendUserStr,
                false => Helper::AppendStr,
            })
            .store(RECORD, place, Size::B4, Reg::R0);
        Ok(())
    }

    /// Appends bytes of the stack's text.
    fn append_bytes(&mut self, count: i16, place: i16) {
        self.builder.mov(Reg::R1, RECORD);
        self.text_address(Reg::R2);
        self.builder
            .mov(Reg::R3, i32::from(count))
            .call(Helper::AppendBytes)
            .store(RECORD, place, Size::B4, Reg::R0);
    }

    /// `dst = ` the address of the stack's text.
    fn text_address(&mut self, dst: Reg) {
        self.builder
            .mov(dst, Reg::R10)
            .alu(AluOp::Add, dst, i32::from(TEXT));
    }
}

/// The strings of an event.
struct Strings {
    /// Where the measured lengths are, in the order of the strings.
    slots: Vec<i16>,
    /// The bytes of all strings whose length is known.
    known: u32,
}

/// Whether the length of a string is not known before the hit.
fn is_measured(argument: &Argument) -> bool {
    matches!(
        argument.value_type,
        ValueType::String | ValueType::UserString
    ) && !matches!(argument.fetch, Fetch::Comm | Fetch::Text(_))
}

/// The bytes of a string whose length is known.
fn known_bytes(argument: &Argument) -> u32 {
    match (&argument.fetch, argument.value_type) {
        (_, ValueType::SymbolString) => 8,
        (Fetch::Comm, _) => COMM_BYTES as u32,
        (Fetch::Text(text), _) => text.len() as u32 + 1,
        _ => 0,
    }
}
