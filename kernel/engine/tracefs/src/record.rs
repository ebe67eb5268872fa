//! Records: the layout of the bytes that a hit leaves, and the `format` file that describes it.
//!
//! ```text
//!   0      8                       16               24
//!   ├common┼ __probe_ip ───────────┼─ arguments, packed …         an event of a probe
//!   ├common┼ __probe_func ─────────┼ __probe_ret_ip ┼ arguments … an event of a return
//! ```
//!
//! The strings follow the arguments. See [`crate::field`].

use crate::{
    definition::{Definition, EventKind},
    fetch::{Argument, ValueType},
    field::{Element, Field},
};
use alloc::vec::Vec;
use core::fmt::{self, Write};

use fallible::{OutOfMemory, copied};

/// The name of the field with the probed address.
pub const PROBE_IP: &str = "__probe_ip";
/// The name of the field with the address of the function that returns.
pub const PROBE_FUNC: &str = "__probe_func";
/// The name of the field with the address that the function returns to.
pub const PROBE_RET_IP: &str = "__probe_ret_ip";

/// The word of a record at an offset in bytes. None: the record is too short.
pub(crate) fn word(record: &[u8], at: usize) -> Option<u64> {
    let bytes = record.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

/// The layout of an event's records. All probes of an event have the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The kind of the event.
    pub kind: EventKind,
    /// Whether there are no addresses: see [`Definition::fixed`].
    pub fixed: bool,
    /// The fields in the order of their offsets: those that all events have in common, the
    /// addresses, the arguments.
    pub fields: Vec<Field>,
    /// The number of bytes before the strings.
    pub fixed_size: u32,
}

impl Layout {
    /// The layout of the event of `definition`.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn of(definition: &Definition) -> Result<Self, OutOfMemory> {
        let common = Field::common();
        let mut fields = Vec::new();
        let most = common.len() + 2 + definition.arguments.len();
        fields.try_reserve_exact(most).map_err(|_| OutOfMemory)?;
        fields.extend(common);
        match definition.kind {
            _ if definition.fixed => {}
            EventKind::Probe | EventKind::Watch => fields.push(Field::address(PROBE_IP, 8)),
            EventKind::Return => {
                fields.push(Field::address(PROBE_FUNC, 8));
                fields.push(Field::address(PROBE_RET_IP, 16));
            }
        }
        let mut offset = match definition.fixed {
            true => Field::COMMON_SIZE,
            false => definition.kind.header_size(),
        };
        for argument in &definition.arguments {
            let name = copied(&argument.name)?;
            fields.push(match argument.value_type {
                ValueType::SymbolString => Field::symbol_string(name, offset),
                _ => Field::new(name, offset, argument.kind()),
            });
            offset += argument.kind().size();
        }
        Ok(Self {
            kind: definition.kind,
            fixed: definition.fixed,
            fields,
            fixed_size: offset,
        })
    }

    /// The number of fields before the arguments.
    const fn header_fields(&self) -> usize {
        match self.kind {
            _ if self.fixed => 4,
            EventKind::Probe | EventKind::Watch => 5,
            EventKind::Return => 6,
        }
    }

    /// The fields that not all events have: the addresses and the arguments. A filter knows them.
    pub fn own_fields(&self) -> &[Field] {
        &self.fields[Field::common().len()..]
    }

    /// The fields of the arguments.
    pub fn arguments(&self) -> &[Field] {
        &self.fields[self.header_fields()..]
    }

    /// The field named `name`.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// Writes the text of the event's `format` file.
    pub fn write_format(&self, event: &str, id: u16, out: &mut dyn Write) -> fmt::Result {
        write!(out, "name: {event}\nID: {id}\nformat:\n")?;
        for (number, field) in self.fields.iter().enumerate() {
            if number == Field::common().len() {
                out.write_char('\n')?;
            }
            writeln!(
                out,
                "\tfield:{};\toffset:{};\tsize:{};\tsigned:{};",
                field.declaration(),
                field.offset,
                field.size(),
                u8::from(field.is_signed()),
            )?;
        }
        out.write_str("\nprint fmt: ")?;
        self.write_print_format(out)?;
        out.write_char('\n')
    }

    /// Writes the format string of the event and its arguments. A return event names the function
    /// first, and a trace line the caller: so it is in Linux, and tools know both.
    fn write_print_format(&self, out: &mut dyn Write) -> fmt::Result {
        out.write_str(match self.kind {
            _ if self.fixed => "\"",
            EventKind::Probe | EventKind::Watch => "\"(%lx)",
            EventKind::Return => "\"(%lx <- %lx)",
        })?;
        for (number, field) in self.arguments().iter().enumerate() {
            let format = field.kind.element().print_format();
            let space = if self.fixed && number == 0 { "" } else { " " };
            write!(out, "{space}{}=", field.name)?;
            if !field.is_array() {
                out.write_str(format)?;
                continue;
            }
            for index in 0..field.kind.count() {
                write!(out, "{}{format}", if index == 0 { '{' } else { ',' })?;
            }
            out.write_char('}')?;
        }
        out.write_char('"')?;
        for field in &self.fields[Field::common().len()..self.header_fields()] {
            write!(out, ", REC->{}", field.name)?;
        }
        for field in self.arguments() {
            let name = &field.name;
            let is_string = field.kind.element() == Element::String;
            match (field.is_array(), is_string) {
                (false, false) => write!(out, ", REC->{name}")?,
                (false, true) => write!(out, ", __get_str({name})")?,
                (true, _) => {
                    for index in 0..field.kind.count() {
                        match is_string {
                            false => write!(out, ", REC->{name}[{index}]")?,
                            true => write!(out, ", __get_str({name}[{index}])")?,
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// The first argument in which two probes of one event differ, in number, name, type or size.
pub(crate) fn first_difference(a: &[Argument], b: &[Argument]) -> Option<usize> {
    let same = |(a, b): (&Argument, &Argument)| {
        a.name == b.name && a.count == b.count && a.value_type.is_same(b.value_type)
    };
    if a.len() != b.len() {
        return Some(a.len().min(b.len()));
    }
    a.iter().zip(b).position(|pair| !same(pair))
}
