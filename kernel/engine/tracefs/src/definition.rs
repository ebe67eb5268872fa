//! Definitions: the commands of `kprobe_events`, `uprobe_events` and `dynamic_events`.
//!
//! ```text
//!   p[:[GRP/][EVENT]] PLACE [ARGS]      records each time that PLACE is reached
//!   r[N][:[GRP/][EVENT]] PLACE [ARGS]   records each time that the function at PLACE returns
//!   w:[GRP/][EVENT] WATCH [ARGS]        records each time that memory is touched; in
//!                                       dynamic_events only
//!   -:[GRP/][EVENT] [PLACE [ARGS]]      deletes
//!   !…                                  deletes what the rest defines; in dynamic_events only
//! ```
//!
//! PLACE is `[MOD:]SYM[+OFFS]`, `SYM%return`, or an address. In a program it is
//! `PATH:OFFSET[%return][(COUNTER)]`, where OFFSET is one in the file, or `FUNCTION[+OFFS]`, which
//! is replaced by it. WATCH is `[r|w|rw]@ADDR[:LEN]` or `[r|w|rw]@SYM[+OFFS][:LEN]`, `rw` if
//! nothing stands before the `@`.
//!
//! # Invariants
//! DEFINITION-1. The text that a definition prints parses to an equal definition, whatever was
//!     written first: names that were left out are printed, offsets are decimal, and `%return` is
//!     printed as `r`.
//! DEFINITION-2. A refusal changes nothing: a definition is complete or not there.

mod place;

use crate::{
    commands::Words,
    fetch::{Argument, Grammar, Location, Parser, Site, automatic_argument_name, is_identifier},
    field::{Field, LookupError, Symbols},
    number,
    refusal::{Reason, Refusal},
};
use alloc::{string::String, vec::Vec};
use core::fmt;

use fallible::{OutOfMemory, copied, push, written};

pub use self::place::{File, ProbePlace};

/// The group of an event that names none.
pub const DEFAULT_GROUP: &str = "kprobes";
/// The group of an event of a program that names none.
pub const DEFAULT_USER_GROUP: &str = "uprobes";
/// The group of a watch that names none.
pub const DEFAULT_WATCH_GROUP: &str = "wprobes";
/// The name of the file beside the groups. None of them can have it.
const FILE_BESIDE_GROUPS: &str = "enable";
/// The names of the files beside the events of a group. None of them can have one.
const FILES_BESIDE_EVENTS: [&str; 2] = ["enable", "filter"];
/// The most bytes of a group's or an event's name.
pub const MOST_NAME_BYTES: usize = 63;
/// The most arguments of an event.
pub const MOST_ARGUMENTS: usize = 128;
/// The most return instances that an event may ask for.
pub const MOST_MAXACTIVE: u64 = 4096;
/// The most arguments of the function that a return event can keep from the entry.
pub const MOST_ENTRY_ARGUMENTS: usize = bpf::MOST_ENTRY_BYTES as usize / 8;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Recorded when the place is reached.
    Probe,
    /// Recorded when the function returns.
    Return,
    /// Recorded when memory is touched.
    Watch,
}

impl EventKind {
    /// The number of bytes before the arguments of a record.
    pub const fn header_size(self) -> u32 {
        match self {
            Self::Probe | Self::Watch => Field::COMMON_SIZE + 8,
            Self::Return => Field::COMMON_SIZE + 16,
        }
    }

    const fn letter(self) -> char {
        match self {
            Self::Probe => 'p',
            Self::Return => 'r',
            Self::Watch => 'w',
        }
    }
}

/// The definition of one probe of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// The kind of its event.
    pub kind: EventKind,
    /// The number of return instances, if the definition gives one.
    pub maxactive: Option<u16>,
    /// The group of its event.
    pub group: String,
    /// The name of its event.
    pub event: String,
    /// The place of the probe.
    pub place: ProbePlace,
    /// Where its values are taken.
    pub site: Site,
    /// The values.
    pub arguments: Vec<Argument>,
    /// The event is one of the kernel's own, on a fixed place: its records have no addresses.
    pub fixed: bool,
}

impl Definition {
    /// Whether it is a watch of memory.
    pub const fn is_watch(&self) -> bool {
        matches!(self.kind, EventKind::Watch)
    }

    /// Whether it is of a program, and not of the kernel.
    pub const fn is_of_program(&self) -> bool {
        matches!(self.place, ProbePlace::Program { .. })
    }

    /// Its line, with the number of return instances that is in force.
    pub const fn with_maxactive(&self, maxactive: Option<u16>) -> WithMaxactive<'_> {
        WithMaxactive {
            definition: self,
            maxactive,
        }
    }
}

impl fmt::Display for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_maxactive(self.maxactive).fmt(f)
    }
}

/// See [`Definition::with_maxactive`].
#[derive(Clone, Copy, Debug)]
pub struct WithMaxactive<'a> {
    definition: &'a Definition,
    maxactive: Option<u16>,
}

impl fmt::Display for WithMaxactive<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let definition = self.definition;
        write!(f, "{}", definition.kind.letter())?;
        if let Some(maxactive) = self.maxactive {
            write!(f, "{maxactive}")?;
        }
        let Definition {
            group,
            event,
            place,
            arguments,
            ..
        } = definition;
        write!(f, ":{group}/{event} {place}")?;
        for Argument { name, text, .. } in arguments {
            write!(f, " {name}={text}")?;
        }
        Ok(())
    }
}

/// A command to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// The group; `None` for any.
    pub group: Option<String>,
    /// The name; `None` for all of the group.
    pub event: Option<String>,
    /// The place; `None` for any.
    pub place: Option<ProbePlace>,
    /// The first arguments, as name and text.
    pub arguments: Vec<(String, String)>,
}

impl Deletion {
    /// Whether it deletes this probe.
    pub fn matches(&self, probe: &Definition) -> bool {
        let is_named = |wanted: &Option<String>, name| wanted.as_ref().is_none_or(|w| w == name);
        is_named(&self.group, &probe.group)
            && is_named(&self.event, &probe.event)
            && self
                .place
                .as_ref()
                .is_none_or(|place| *place == probe.place)
            && self.arguments.len() <= probe.arguments.len()
            && (self.arguments.iter().zip(&probe.arguments))
                .all(|((name, text), argument)| *name == argument.name && *text == argument.text)
    }
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Adds a probe to a new event or to one that is there.
    Create(Definition),
    /// Deletes probes, and events that have none left.
    Delete(Deletion),
}

impl Command {
    /// Parses the words of a command.
    ///
    /// # Errors
    /// [`Refusal`], the first mistake in the order in which Linux looks for them: number of
    /// instances, place, names, arguments.
    pub fn parse(
        words: &Words<'_>,
        file: File,
        symbols: &dyn Symbols,
        grammar: &Grammar,
    ) -> Result<Self, Refusal> {
        let first = words.first();
        let deleted = match file {
            File::DynamicEvents => first.strip_prefix('!'),
            File::KprobeEvents | File::UprobeEvents => None,
        };
        if let Some(name) = first.strip_prefix('-') {
            let name = name
                .strip_prefix(':')
                .ok_or(Refusal::line(Reason::BadDeletion))?;
            return Deletion::parse(words, name, symbols).map(Self::Delete);
        }
        if let Some(command) = deleted {
            let (_, name) = command
                .split_once(':')
                .ok_or(Refusal::line(Reason::BadDeletion))?;
            return Deletion::parse(words, name, symbols).map(Self::Delete);
        }
        Definition::parse(words, file, symbols, grammar).map(Self::Create)
    }
}

impl Deletion {
    fn parse(words: &Words<'_>, name: &str, symbols: &dyn Symbols) -> Result<Self, Refusal> {
        let (group, event) = match name.split_once('/') {
            Some((group, event)) => (Some(group), event),
            None => (None, name),
        };
        if group.is_none() && event.is_empty() || group == Some("") {
            return Err(Refusal::line(Reason::BadDeletion));
        }
        let place = match words.get(Refusal::PLACE) {
            Some(word) => {
                let parsed = ProbePlace::parse(word, File::DynamicEvents, symbols)
                    .map_err(|(reason, offset)| Refusal::new(reason, Refusal::PLACE, offset))?;
                Some(parsed.0)
            }
            None => None,
        };
        let mut arguments = Vec::new();
        for (number, word) in words.from(Refusal::ARGUMENTS).enumerate() {
            let argument = match word.split_once('=') {
                Some((name, text)) => (copied(name)?, copied(text)?),
                None => (automatic_argument_name(number)?, copied(word)?),
            };
            push(&mut arguments, argument)?;
        }
        Ok(Self {
            group: group.map(copied).transpose()?,
            event: (!event.is_empty()).then(|| copied(event)).transpose()?,
            place,
            arguments,
        })
    }
}

impl Definition {
    /// The definition of an event of the kernel's own.
    ///
    /// # Errors
    /// [`Refusal`]: a defect of the line.
    pub fn of_kernel(line: &str, symbols: &dyn Symbols) -> Result<Self, Refusal> {
        let words = Words::of(line).ok_or(Refusal::line(Reason::BadCommand))?;
        let file = File::KprobeEvents;
        let mut definition = Self::parse(&words, file, symbols, &Grammar::default())?;
        definition.fixed = true;
        Ok(definition)
    }

    /// Parses the words of a definition.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn parse(
        words: &Words<'_>,
        file: File,
        symbols: &dyn Symbols,
        grammar: &Grammar,
    ) -> Result<Self, Refusal> {
        let first = words.first();
        let kind = match first.as_bytes().first() {
            Some(b'p') => EventKind::Probe,
            Some(b'r') => EventKind::Return,
            Some(b'w') if file == File::DynamicEvents => EventKind::Watch,
            _ => return Err(Refusal::line(Reason::BadCommand)),
        };
        let place_word =
            words
                .get(Refusal::PLACE)
                .ok_or(Refusal::new(Reason::NoPlace, Refusal::PLACE, 0))?;
        let (number, name) = match first[1..].split_once(':') {
            Some((number, name)) => (number, Some(name)),
            None => (&first[1..], None),
        };
        let maxactive = parse_maxactive(kind, number)
            .map_err(|reason| Refusal::new(reason, Refusal::NAME, 1))?;

        let (place, has_suffix) = ProbePlace::parse(place_word, file, symbols)
            .map_err(|(reason, offset)| Refusal::new(reason, Refusal::PLACE, offset))?;
        let is_memory = matches!(place, ProbePlace::Memory { .. });
        if is_memory != (kind == EventKind::Watch) {
            return Err(Refusal::place(match is_memory {
                true => Reason::BadProbeAddress,
                false => Reason::BadAccess,
            }));
        }
        let kind = if has_suffix { EventKind::Return } else { kind };
        let site = check_place(&place, kind, symbols).map_err(Refusal::place)?;

        let name_start = first.len() - name.map_or(0, str::len);
        let names = name.map_or(Ok((None, None)), parse_name);
        let (group, event) = names
            .map_err(|(reason, offset)| Refusal::new(reason, Refusal::NAME, name_start + offset))?;
        let event = match event {
            Some(event) => copied(event)?,
            None => automatic_name(kind, &place)?,
        };

        let mut definition = Self {
            kind,
            maxactive,
            group: copied(group.unwrap_or(match &place {
                ProbePlace::Program { .. } => DEFAULT_USER_GROUP,
                ProbePlace::Memory { .. } => DEFAULT_WATCH_GROUP,
                _ => DEFAULT_GROUP,
            }))?,
            event,
            place,
            site,
            arguments: Vec::new(),
            fixed: false,
        };
        definition.parse_arguments(words.from(Refusal::ARGUMENTS), symbols, grammar)?;
        Ok(definition)
    }

    fn parse_arguments<'w>(
        &mut self,
        words: impl Iterator<Item = &'w str> + Clone,
        symbols: &dyn Symbols,
        grammar: &Grammar,
    ) -> Result<(), Refusal> {
        let first = |reason| Refusal::new(reason, Refusal::ARGUMENTS, 0);
        if words.clone().count() > MOST_ARGUMENTS {
            return Err(first(Reason::TooManyArguments));
        }
        let program = match &self.place {
            ProbePlace::Program { path, .. } => Some(&**path),
            _ => None,
        };
        let parser = Parser {
            grammar,
            site: self.site,
            symbols,
            program,
            watched: self.place.watched(symbols).map(|watched| watched.address),
        };
        let mut size = self.kind.header_size();
        for (number, word) in words.enumerate() {
            let used = |name: &str| self.arguments.iter().any(|argument| argument.name == name);
            let refuse =
                |(reason, offset)| Refusal::new(reason, Refusal::ARGUMENTS + number, offset);
            let argument = parser.argument(word, number, used).map_err(refuse)?;
            size += argument.kind().size();
            if size > bpf::MOST_RECORD_BYTES {
                return Err(refuse((Reason::EventTooBig, 0)));
            }
            push(&mut self.arguments, argument)?;
        }
        if self.entry_arguments()?.len() > MOST_ENTRY_ARGUMENTS {
            return Err(first(Reason::TooManyEntryArguments));
        }
        Ok(())
    }

    /// The arguments of the function that a return event keeps from the entry, each once, in the
    /// order of their places in the data that entry and return share.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn entry_arguments(&self) -> Result<Vec<u32>, OutOfMemory> {
        let mut kept = Vec::new();
        if self.site == Site::Return {
            for number in self
                .arguments
                .iter()
                .filter_map(|argument| argument.fetch.argument())
            {
                if !kept.contains(&number) {
                    push(&mut kept, number)?;
                }
            }
        }
        Ok(kept)
    }
}

/// Parses the number of return instances after the letter.
fn parse_maxactive(kind: EventKind, text: &str) -> Result<Option<u16>, Reason> {
    match (kind, text) {
        (_, "") => Ok(None),
        (EventKind::Probe | EventKind::Watch, _) => Err(Reason::BadMaxactiveType),
        (EventKind::Return, _) => match number::digits(text) {
            // Linux reads the number into 32 bits.
            None | Some(0) | Some(0x1_0000_0000..) => Err(Reason::BadMaxactive),
            Some(number) if number > MOST_MAXACTIVE => Err(Reason::MaxactiveTooBig),
            Some(number) => Ok(Some(number as u16)),
        },
    }
}

/// Checks that the place is there and fits the kind.
fn check_place(place: &ProbePlace, kind: EventKind, symbols: &dyn Symbols) -> Result<Site, Reason> {
    match place.address(symbols) {
        Ok(_) => (),
        Err(LookupError::NotFound) => return Err(Reason::BadProbeAddress),
        Err(LookupError::NotUnique(_)) => return Err(Reason::SymbolNotUnique),
        Err(LookupError::OutOfMemory) => return Err(Reason::OutOfMemory),
    }
    match (kind, place.is_function_entry(symbols)) {
        // Whether a function begins there is found when the probe is registered.
        (EventKind::Return, _) if place.program().is_some() => Ok(Site::Return),
        (EventKind::Return, true) => Ok(Site::Return),
        (EventKind::Return, false) => Err(Reason::BadReturnProbe),
        (EventKind::Probe, true) => Ok(Site::Entry),
        (EventKind::Probe, false) | (EventKind::Watch, _) => Ok(Site::Inside),
    }
}

/// A group and an event, each if it is given.
type Names<'a> = (Option<&'a str>, Option<&'a str>);

/// Parses `[GRP/][EVENT]`; `.` separates as `/` does.
fn parse_name(text: &str) -> Result<Names<'_>, (Reason, usize)> {
    let separator = text.find('/').or_else(|| text.find('.'));
    let (group, event, start) = match separator {
        Some(at) => (Some(&text[..at]), &text[at + 1..], at + 1),
        None => (None, text, 0),
    };
    if let Some(group) = group {
        let is_good = |c: char| c.is_ascii_alphabetic() || c == '_' || c == '-';
        if group.is_empty() {
            return Err((Reason::NoGroupName, 0));
        }
        if group.len() > MOST_NAME_BYTES {
            return Err((Reason::GroupTooLong, 0));
        }
        if !group.starts_with(is_good) || !group.chars().all(|c| is_good(c) || c.is_ascii_digit()) {
            return Err((Reason::BadGroupName, 0));
        }
        if group == FILE_BESIDE_GROUPS {
            return Err((Reason::NameOfFile, 0));
        }
    }
    match event {
        "" if group.is_some() => Ok((group, None)),
        "" => Err((Reason::NoEventName, start)),
        event if event.len() > MOST_NAME_BYTES => Err((Reason::EventTooLong, start)),
        event if !is_identifier(event) => Err((Reason::BadEventName, start)),
        event if FILES_BESIDE_EVENTS.contains(&event) => Err((Reason::NameOfFile, start)),
        event => Ok((group, Some(event))),
    }
}

/// The name of an event that gives none: `p_SYM_OFFSET` or `p_0xADDRESS`; in a program
/// `p_NAME_0xOFFSET`, where NAME is that of the file up to a `.`, `-` or `_`, and the letter is `p`
/// also for a return, as in Linux.
///
/// Every letter that an identifier cannot have becomes `_`, because the name has to be read back. A
/// name that is too long ends in a hash of all of it. Otherwise two long symbols with the same
/// beginning would silently share one event.
fn automatic_name(kind: EventKind, place: &ProbePlace) -> Result<String, OutOfMemory> {
    let letter = kind.letter();
    let full = match place {
        ProbePlace::Address(address) => written(&format_args!("{letter}_{address:#x}"))?,
        ProbePlace::Program { path, offset, .. } => {
            let name = path.rsplit('/').next().unwrap_or(path);
            let name = name.split(['.', '-', '_']).next().unwrap_or(name);
            written(&format_args!("p_{name}_{offset:#x}"))?
        }
        ProbePlace::Memory { location, .. } => match location {
            None => written(&format_args!("{letter}_aimed"))?,
            Some(Location::Address(address)) => written(&format_args!("{letter}_{address:#x}"))?,
            Some(Location::Symbol { name, offset }) => {
                written(&format_args!("{letter}_{name}_{offset}"))?
            }
        },
        ProbePlace::Symbol {
            module: Some(module),
            name,
            offset,
        } => written(&format_args!("{letter}_{module}:{name}_{offset}"))?,
        ProbePlace::Symbol {
            module: None,
            name,
            offset,
        } => written(&format_args!("{letter}_{name}_{offset}"))?,
    };
    let letters = full
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    let mut name = String::new();
    // A letter that is not ASCII has more bytes than the one that takes its place.
    let room = name.try_reserve_exact(full.len());
    room.map_err(|_| OutOfMemory)?;
    name.extend(letters);
    if name.len() > MOST_NAME_BYTES {
        let hash = written(&format_args!("_{:08x}", hash(&full)))?;
        name.truncate(MOST_NAME_BYTES - hash.len());
        // There is room for it, because more has been cut off.
        name.push_str(&hash);
    }
    Ok(name)
}

/// The hash FNV-1a, 32 bits.
fn hash(text: &str) -> u32 {
    let step = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    text.bytes().fold(0x811c_9dc5, step)
}
