//! Values at a hit: instructions that put what a definition names into registers.
//!
//! They serve the record of an event, its filter, and its triggers. So a value is the same wherever
//! it is used.
//!
//! # Invariants
//! VALUES-1. [`Values::CONTEXT`] is the context and [`Values::ENTRY_DATA`] the data of entry and
//!     return, from [`Values::begin`] on. No instructions here write them.
//! VALUES-2. Instructions here lose `r0` to `r5`, write the register that they are asked for, and
//!     the stack at [`Values::SCRATCH`]. They change nothing else.
//! VALUES-3. A load of memory that is not there gives 0, and the program goes on.

use crate::{
    definition::{Definition, EventKind},
    fetch::{Argument, Fetch, Site, ValueType},
    field::{Element, Field, FieldKind, LookupError, Symbols, Width},
    filter::{LoadError, Loaded},
    record::{Layout, PROBE_FUNC, PROBE_IP, PROBE_RET_IP},
};
use alloc::vec::Vec;

use bpf::{
    AluOp, Builder, Helper, Reg, Size,
    context::{ARGUMENTS, Register},
};
use fallible::OutOfMemory;

/// See the module's text.
pub struct Values<'a> {
    definition: &'a Definition,
    layout: Layout,
    symbols: &'a dyn Symbols,
    /// The arguments of the function that are in the data of entry and return.
    kept: Vec<u32>,
    event: u16,
}

impl<'a> Values<'a> {
    /// Holds the context.
    pub const CONTEXT: Reg = Reg::R6;
    /// Holds the data of entry and return, if the program has any.
    pub const ENTRY_DATA: Reg = Reg::R9;
    /// 8 bytes of the stack, by the offset from `r10`.
    pub const SCRATCH: i16 = -8;

    /// The values of the event with the number `event`.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(
        definition: &'a Definition,
        event: u16,
        symbols: &'a dyn Symbols,
    ) -> Result<Self, OutOfMemory> {
        Ok(Self {
            definition,
            layout: Layout::of(definition)?,
            symbols,
            kept: definition.entry_arguments()?,
            event,
        })
    }

    /// The layout of the record.
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The fields of the record, taken out.
    pub(crate) fn take_fields(&mut self) -> Vec<Field> {
        core::mem::take(&mut self.layout.fields)
    }

    /// Puts them back.
    pub(crate) fn put_fields(&mut self, fields: Vec<Field>) {
        self.layout.fields = fields;
    }

    /// The definition that names the values.
    pub const fn definition(&self) -> &'a Definition {
        self.definition
    }

    /// The number of the event.
    pub const fn event(&self) -> u16 {
        self.event
    }

    /// The number of bytes that entry and return share.
    pub const fn entry_bytes(&self) -> u32 {
        self.kept.len() as u32 * 8
    }

    /// Begins a program: saves the context, and finds the data of entry and return.
    pub fn begin(&self, builder: &mut Builder) {
        builder.mov(Self::CONTEXT, Reg::R1);
        if !self.kept.is_empty() {
            builder
                .call(Helper::EntryData)
                .mov(Self::ENTRY_DATA, Reg::R0);
        }
    }

    /// Stores the arguments of the function into the data of entry and return, at the entry.
    pub fn keep(&self, builder: &mut Builder) {
        for (place, number) in (0..).zip(&self.kept) {
            argument(builder, *number, Reg::R1);
            builder.store(Self::ENTRY_DATA, place * 8, Size::B8, Reg::R1);
        }
    }

    /// Puts the value of a field into `dst`. It is what filters and triggers call; see
    /// [`crate::filter::Filter::compile`].
    ///
    /// # Errors
    /// [`LoadError`] for a field that has no single value before the record is written.
    pub fn load(
        &self,
        builder: &mut Builder,
        field: &Field,
        dst: Reg,
    ) -> Result<Loaded<'a>, LoadError> {
        let named = |argument: &&Argument| argument.name == field.name;
        if let Some(argument) = self.definition.arguments.iter().find(named) {
            return self.load_argument(builder, argument, dst);
        }
        match &*field.name {
            PROBE_IP | PROBE_FUNC | PROBE_RET_IP => self.address(builder, &field.name, dst),
            "common_type" => drop(builder.mov(dst, i32::from(self.event))),
            _ => {
                return Err(LoadError(
                    "this field has no value before the record is written",
                ));
            }
        }
        Ok(Loaded::Number)
    }

    fn load_argument(
        &self,
        builder: &mut Builder,
        argument: &'a Argument,
        dst: Reg,
    ) -> Result<Loaded<'a>, LoadError> {
        const GONE: LoadError = LoadError("a symbol of the event is gone; define the event anew");
        if argument.count.is_some() {
            return Err(LoadError(
                "an array has no single value; give its elements names",
            ));
        }
        match (&argument.fetch, argument.value_type) {
            (_, ValueType::SymbolString) => Err(LoadError(
                "a symstr is known when it is read; use the type symbol",
            )),
            (Fetch::Comm, _) => Ok(Loaded::Comm),
            (Fetch::Text(text), _) => Ok(Loaded::Constant(text.as_bytes())),
            (fetch, ValueType::String | ValueType::UserString) => {
                self.location(builder, fetch, dst).map_err(|_| GONE)?;
                Ok(match is_user_text(argument) {
                    true => Loaded::UserText,
                    false => Loaded::KernelText,
                })
            }
            _ => {
                self.number(builder, argument, dst).map_err(|_| GONE)?;
                Ok(Loaded::Number)
            }
        }
    }

    /// `dst = ` the address in the field `name` of the header.
    pub(crate) fn address(&self, builder: &mut Builder, name: &str, dst: Reg) {
        match (self.definition.kind, name) {
            // The handler has left the address of the function there.
            (EventKind::Return, PROBE_FUNC) if self.definition.is_of_program() => {
                self.register(builder, Register::OrigAx, dst);
            }
            (EventKind::Return, _) if self.definition.is_of_program() => {
                self.register(builder, Register::Ip, dst);
            }
            (EventKind::Probe | EventKind::Watch, _) => {
                builder.load(dst, Self::CONTEXT, Register::Ip.offset(), Size::B8);
            }
            (EventKind::Return, PROBE_RET_IP) => {
                builder.call(Helper::ReturnAddress).mov(dst, Reg::R0);
            }
            (EventKind::Return, _) => {
                builder
                    .mov(Reg::R1, Self::CONTEXT)
                    .call(Helper::FuncIp)
                    .mov(dst, Reg::R0);
            }
        }
    }

    /// `dst = ` the number of an argument that is no array. Bits above its width may be anything,
    /// but not those of a bitfield.
    pub(crate) fn number(
        &self,
        builder: &mut Builder,
        argument: &Argument,
        dst: Reg,
    ) -> Result<(), LookupError> {
        self.value(
            builder,
            &argument.fetch,
            size(argument.value_type.element()),
            dst,
        )?;
        extract(builder, argument.value_type, dst);
        Ok(())
    }

    /// `dst = ` the value of a fetch, of which memory has `size` bytes.
    pub(crate) fn value(
        &self,
        builder: &mut Builder,
        fetch: &Fetch,
        size: Size,
        dst: Reg,
    ) -> Result<(), LookupError> {
        match fetch {
            Fetch::Register(register) => self.register(builder, *register, dst),
            Fetch::StackPointer => self.register(builder, Register::Sp, dst),
            Fetch::Stack(word) => {
                self.register(builder, Register::Sp, dst);
                read(builder, dst, i64::from(*word) * 8, Size::B8);
            }
            Fetch::Argument(number) => match self.kept.iter().position(|kept| kept == number) {
                Some(place) if self.definition.site == Site::Return => {
                    builder.load(dst, Self::ENTRY_DATA, place as i16 * 8, Size::B8);
                }
                _ => argument(builder, *number, dst),
            },
            Fetch::ReturnValue => self.register(builder, Register::Ax, dst),
            Fetch::Immediate(value) => drop(builder.set(dst, *value as i64)),
            Fetch::WatchedAddress => drop(builder.call(Helper::WatchedAddress).mov(dst, Reg::R0)),
            // A text has no number.
            Fetch::Comm | Fetch::Text(_) => drop(builder.mov(dst, 0)),
            Fetch::Memory(_) => {
                self.location(builder, fetch, dst)?;
                read(builder, dst, 0, size);
            }
            Fetch::Dereference {
                user: false,
                offset,
                of,
            } => {
                self.value(builder, of, Size::B8, dst)?;
                read(builder, dst, *offset, size);
            }
            Fetch::Dereference { user: true, .. } => {
                self.location(builder, fetch, Reg::R3)?;
                read_user(builder, size, dst);
            }
        }
        Ok(())
    }

    /// `dst = ` the address of memory that a fetch names; the value of any other fetch.
    pub(crate) fn location(
        &self,
        builder: &mut Builder,
        fetch: &Fetch,
        dst: Reg,
    ) -> Result<(), LookupError> {
        match fetch {
            Fetch::Memory(location) => {
                builder.set(dst, location.address(self.symbols)? as i64);
                Ok(())
            }
            Fetch::Dereference { offset, of, .. } => {
                self.value(builder, of, Size::B8, dst)?;
                advance(builder, dst, *offset);
                Ok(())
            }
            _ => self.value(builder, fetch, Size::B8, dst),
        }
    }

    /// `dst = ` the address of the text number `index` of an argument that is a string or an array
    /// of strings.
    pub(crate) fn text(
        &self,
        builder: &mut Builder,
        argument: &Argument,
        index: u8,
        dst: Reg,
    ) -> Result<(), LookupError> {
        if argument.count.is_none() {
            return self.location(builder, &argument.fetch, dst);
        }
        // The memory holds an array of pointers to texts.
        let user = matches!(argument.fetch, Fetch::Dereference { user: true, .. });
        let offset = i64::from(index) * 8;
        if user {
            self.location(builder, &argument.fetch, Reg::R3)?;
            advance(builder, Reg::R3, offset);
            read_user(builder, Size::B8, dst);
        } else {
            self.location(builder, &argument.fetch, dst)?;
            read(builder, dst, offset, Size::B8);
        }
        Ok(())
    }

    /// `dst = ` the element at `step` bytes of an array of numbers, of which each has `size` bytes.
    pub(crate) fn user_element(
        &self,
        builder: &mut Builder,
        argument: &Argument,
        (step, size): (i16, Size),
        dst: Reg,
    ) -> Result<(), LookupError> {
        self.location(builder, &argument.fetch, Reg::R3)?;
        advance(builder, Reg::R3, step.into());
        read_user(builder, size, dst);
        Ok(())
    }

    fn register(&self, builder: &mut Builder, register: Register, dst: Reg) {
        builder.load(dst, Self::CONTEXT, register.offset(), Size::B8);
    }
}

/// Whether the text of a string is in user memory.
pub(crate) fn is_user_text(argument: &Argument) -> bool {
    argument.value_type == ValueType::UserString
        || matches!(argument.fetch, Fetch::Dereference { user: true, .. })
}

/// The size of a number in a record and in memory.
pub(crate) const fn size(element: Element) -> Size {
    match element {
        Element::Unsigned(width) | Element::Signed(width) | Element::Hex(width) => match width {
            Width::W8 => Size::B1,
            Width::W16 => Size::B2,
            Width::W32 => Size::B4,
            Width::W64 => Size::B8,
        },
        Element::Char => Size::B1,
        Element::Symbol => Size::B8,
        Element::String => Size::B4,
    }
}

/// Moves the bits of a bitfield to the low end of `dst` and clears the others.
pub(crate) fn extract(builder: &mut Builder, value_type: ValueType, dst: Reg) {
    if let ValueType::Bitfield { width, offset, .. } = value_type {
        let above = 64 - i32::from(width) - i32::from(offset);
        let below = 64 - i32::from(width);
        if above != 0 {
            builder.alu(AluOp::ShiftLeft, dst, above);
        }
        if below != 0 {
            builder.alu(AluOp::ShiftRight, dst, below);
        }
    }
}

/// `dst = ` the argument of the function, at its entry. The first six are in registers, the others
/// on the stack, after the return address.
fn argument(builder: &mut Builder, number: u32, dst: Reg) {
    match ARGUMENTS.get(number.saturating_sub(1) as usize) {
        Some(register) => drop(builder.load(dst, Values::CONTEXT, register.offset(), Size::B8)),
        None => {
            builder.load(dst, Values::CONTEXT, Register::Sp.offset(), Size::B8);
            let word = i64::from(number) - ARGUMENTS.len() as i64;
            read(builder, dst, word * 8, Size::B8);
        }
    }
}

/// `dst = *(dst + offset)`, kernel memory.
fn read(builder: &mut Builder, dst: Reg, offset: i64, size: Size) {
    match i16::try_from(offset) {
        Ok(offset) => drop(builder.load(dst, dst, offset, size)),
        Err(_) => {
            advance(builder, dst, offset);
            builder.load(dst, dst, 0, size);
        }
    }
}

/// `dst = *r3`, user memory.
fn read_user(builder: &mut Builder, size: Size, dst: Reg) {
    builder
        .mov(Reg::R1, Reg::R10)
        .alu(AluOp::Add, Reg::R1, i32::from(Values::SCRATCH))
        .mov(Reg::R2, size.bytes() as i32)
        .call(Helper::ReadUser)
        .load(dst, Reg::R10, Values::SCRATCH, size);
}

/// `dst += offset`.
fn advance(builder: &mut Builder, dst: Reg, offset: i64) {
    match i32::try_from(offset) {
        Ok(0) => (),
        Ok(offset) => drop(builder.alu(AluOp::Add, dst, offset)),
        Err(_) => {
            let other = if dst == Reg::R0 { Reg::R1 } else { Reg::R0 };
            builder.set(other, offset).alu(AluOp::Add, dst, other);
        }
    }
}

impl Argument {
    /// Whether the record holds it as one number or an array of them.
    pub(crate) const fn is_numeric(&self) -> bool {
        !matches!(
            self.kind(),
            FieldKind::One(Element::String)
                | FieldKind::Array {
                    element: Element::String,
                    ..
                }
        )
    }
}
