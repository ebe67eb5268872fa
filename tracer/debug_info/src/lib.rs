//! The kernel's debug information: its functions, its lines, and the places and types of values. It
//! answers [`trace_interface::Kernel`] on the host.
//!
//! ```text
//!   kernel's ELF ─► image ─► index (names; made once, kept beside the file)
//!                     │        │
//!                     └────────┴─► session: entries read for one question
//!                                    ├─ names      patterns, near names
//!                                    ├─ lines      line tables
//!                                    ├─ scope      arguments, variables, copies that were inlined
//!                                    ├─ value      expressions
//!                                    ├─ frame      call frames
//!                                    ├─ prologue   arguments on their way into the frame
//!                                    ├─ symbolise  addresses of call stacks
//!                                    ├─ types      what a type is made of
//!                                    └─ layout     how a result comes back
//!   user programs ─► programs  names of the frames of their call stacks
//! ```
//!
//! # Invariants
//! - DEBUG-1. A place is told only where the debug information or the ABI gives it. Where it does
//!   not, the answer is [`Unavailable`] with the reason, never a place that may be wrong.
//! - DEBUG-2. A damaged file gives fewer answers, never a panic.
//!
//! # Contexts
//! The host. One thread asks; answers about a function are remembered for it.

mod frame;
mod hash;
mod image;
mod index;
mod layout;
mod lines;
mod names;
mod programs;
mod prologue;
mod scope;
mod session;
mod symbolise;
mod types;
mod value;

use std::{
    cell::{OnceCell, RefCell},
    collections::HashMap,
    fmt, io,
    ops::Range,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

use trace_interface::symbols::{
    Expression, Function, Kernel, Moment, Piece, ProbePlace, Register, Source, Symbol, Symbolize,
    Type, TypeId, Unavailable, Variable,
};

use crate::{
    frame::Frames,
    image::Image,
    index::{FunctionRow, Index},
    layout::Shape,
    names::Pattern,
    programs::Programs,
    prologue::Prologue,
    scope::{Kind, Local, Location, Scope},
    session::Session,
};

pub use crate::symbolise::{Frame, InlinedCopy};

/// The debug information of a kernel.
pub struct DebugInfo {
    image: Image,
    index: Index,
    times: Times,
    functions: RefCell<HashMap<u64, Rc<Known>>>,
    types: RefCell<HashMap<TypeId, Rc<Type>>>,
    lines: RefCell<HashMap<u64, Rc<Vec<lines::At>>>>,
    /// The functions by the linker's names, made when one is asked for.
    by_symbol: OnceCell<HashMap<Vec<u8>, Vec<FunctionRow>>>,
    programs: Programs,
}

/// How long opening took.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Opening the kernel's file.
    pub read: Duration,
    /// Reading the index, or making it.
    pub index: Duration,
    /// Whether the index had to be made.
    pub made: bool,
}

/// A function whose values were asked for.
struct Known {
    scope: Scope,
    frames: Frames,
    /// The expression of its frame base.
    frame_base: Option<Vec<u8>>,
    prologue: Prologue,
}

/// Why the debug information cannot be opened.
#[derive(Debug)]
pub enum Error {
    Read {
        path: PathBuf,
        error: io::Error,
    },
    /// The file is not an ELF file of 64 bits, but what is said here.
    Format {
        path: PathBuf,
        found: &'static str,
    },
    /// There is no debug information.
    Stripped {
        path: PathBuf,
    },
    Dwarf(gimli::Error),
    Size,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, error } => write!(
                f,
                "the kernel's file {} cannot be read: {error}; build the kernel first",
                path.display()
            ),
            Self::Format { path, found } => write!(
                f,
                "{} should be an ELF file of 64 bits and is {found}; build the kernel again",
                path.display()
            ),
            Self::Stripped { path } => write!(
                f,
                "{} has no debug information; give the file from before it was stripped \
                 (NAME.debug beside it)",
                path.display()
            ),
            Self::Dwarf(error) => write!(
                f,
                "the debug information is damaged ({error}); build the kernel again"
            ),
            Self::Size => f.write_str(
                "the debug information is larger than 4 GiB, which its index does not hold; build \
                 the kernel with less of it",
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { error, .. } => Some(error),
            Self::Dwarf(error) => Some(error),
            _ => None,
        }
    }
}

/// How a function stands in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// For example `fn vfs_write(file: &File, count: usize) -> i64`.
    pub text: String,
    /// File and line.
    pub place: Option<(String, u32)>,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        if let Some((file, line)) = &self.place {
            write!(f, "  {file}:{line}")?;
        }
        Ok(())
    }
}

/// How many near names a message has.
const NEAR: usize = 5;

impl DebugInfo {
    /// Reads the debug information of the kernel in that file.
    ///
    /// The first time it makes an index and keeps it beside the file, as `NAME.index`.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(elf: &Path) -> Result<Self, Error> {
        let begin = Instant::now();
        let image = Image::read(elf)?;
        if image.section(".debug_info").is_empty() {
            return Err(Error::Stripped { path: elf.into() });
        }
        let read = begin.elapsed();
        let begin = Instant::now();
        let mut beside = elf.as_os_str().to_os_string();
        beside.push(".index");
        let beside = PathBuf::from(beside);
        let (index, made) = match Index::load(&beside, &image) {
            Some(index) => (index, false),
            None => {
                let index = Index::build(&image)?;
                index.store(&beside);
                (index, true)
            }
        };
        let times = Times {
            read,
            index: begin.elapsed(),
            made,
        };
        Ok(Self {
            image,
            index,
            times,
            functions: RefCell::default(),
            types: RefCell::default(),
            lines: RefCell::default(),
            by_symbol: OnceCell::new(),
            programs: Programs::default(),
        })
    }

    /// Makes a user program known, by its file name in the guest. Its symbols name the frames of
    /// its call stacks.
    pub fn add_program(&mut self, name: &str, elf: &Path) {
        self.programs.add(name, elf);
    }

    /// How long opening took.
    pub fn times(&self) -> Times {
        self.times
    }

    fn session(&self) -> Session<'_> {
        Session::new(&self.image, &self.index)
    }

    fn function(&self, row: FunctionRow) -> Function {
        Function {
            path: self.index.name(row.path).into(),
            symbol: self.index.name(row.symbol).into(),
            address: row.address,
            bytes: row.bytes,
        }
    }

    /// The function that has code at an address.
    pub fn function_at(&self, address: u64) -> Option<Function> {
        let row = self.index.function_at(address)?;
        Some(self.function(row))
    }

    /// The functions by the linker's names.
    fn by_symbol(&self) -> &HashMap<Vec<u8>, Vec<FunctionRow>> {
        self.by_symbol.get_or_init(|| {
            let mut rows: HashMap<Vec<u8>, Vec<FunctionRow>> = HashMap::new();
            for row in self.index.functions() {
                let symbol = self.index.bytes_of(row.symbol);
                rows.entry(symbol.to_vec()).or_default().push(row);
            }
            rows
        })
    }

    /// The function at an address, with all that its values need.
    fn known(&self, address: u64) -> Result<(FunctionRow, Rc<Known>), Unavailable> {
        let row = self.index.function_at(address).ok_or_else(|| Unavailable {
            reason: format!("at {address:#x} is no function of the kernel"),
            help: "probe the beginning of a function or of a line".into(),
        })?;
        let missing = || Unavailable {
            reason: format!(
                "{} is written in assembly, or its debug information was left out, so its \
                 arguments and variables are not known",
                self.index.name(row.path)
            ),
            help: "read registers instead, for example arg0 or reg(\"di\")".into(),
        };
        let entry = row.entry.ok_or_else(missing)?;
        if let Some(known) = self.functions.borrow().get(&entry) {
            return Ok((row, known.clone()));
        }
        let session = self.session();
        let frame_base = session.inherited(entry, |found| {
            let value = found.entry.attr_value(gimli::DW_AT_frame_base)?;
            Some(value.exprloc_value()?.0.slice().to_vec())
        });
        let mut prologue = prologue::read(&self.image, row.address, row.bytes);
        // Behind the end of the frame's set-up an argument may have another value.
        let table = self.index.unit_of(entry).map(|unit| self.lines(unit));
        let end = table.iter().flat_map(|table| table.iter()).find(|line| {
            line.prologue_end && (row.address..row.address + row.bytes).contains(&line.address)
        });
        if let Some(end) = end {
            prologue.end = prologue.end.min(end.address);
        }
        let known = Rc::new(Known {
            scope: Scope::read(&session, entry).ok_or_else(missing)?,
            frames: Frames::read(&self.image, row.address),
            frame_base,
            prologue,
        });
        self.functions.borrow_mut().insert(entry, known.clone());
        Ok((row, known))
    }

    /// The rows of the unit that begins there.
    fn lines(&self, unit: u64) -> Rc<Vec<lines::At>> {
        if let Some(table) = self.lines.borrow().get(&unit) {
            return table.clone();
        }
        let table = Rc::new(lines::table(&self.session(), unit));
        self.lines.borrow_mut().insert(unit, table.clone());
        table
    }

    /// Calls `visit` with path, address and entry of each copy of the functions that are meant.
    fn each_inlined(&self, pattern: &Pattern, mut visit: impl FnMut(u32, u64, u64)) {
        // By path, because most functions have many copies.
        let mut meant: Vec<Option<bool>> = vec![None; self.index.names()];
        for (path, address, entry) in self.index.inlined() {
            let Some(is_meant) = meant.get_mut(path as usize) else {
                continue;
            };
            if *is_meant.get_or_insert_with(|| pattern.matches(self.index.name(path))) {
                visit(path, address, entry);
            }
        }
    }

    /// How a function stands in the source.
    pub fn signature(&self, function: &Function) -> Signature {
        self.signature_in(&self.session(), function)
    }

    /// How each of some functions stands in the source: faster than one by one.
    pub fn signatures(&self, functions: &[Function]) -> Vec<Signature> {
        let session = self.session();
        let signature = |function| self.signature_in(&session, function);
        functions.iter().map(signature).collect()
    }

    fn signature_in(&self, session: &Session, function: &Function) -> Signature {
        let name = names::segments(&function.path)
            .pop()
            .unwrap_or_default()
            .to_string();
        let row = self.index.function_at(function.address);
        let Some(entry) = row.and_then(|row| row.entry) else {
            return Signature {
                text: format!("fn {name}(?)"),
                place: None,
            };
        };
        let mut arguments = Vec::new();
        session.children(entry, |child| {
            if child.entry.tag() == gimli::DW_TAG_formal_parameter {
                let name = session.inherited(child.offset(), |found| found.name(session));
                let type_name = types::name(session, types::of(session, child.offset()));
                arguments.push(match name {
                    Some(name) => format!("{name}: {type_name}"),
                    None => format!("_: {type_name}"),
                });
            }
        });
        let mut text = format!("fn {name}({})", arguments.join(", "));
        let result = types::of(session, entry);
        if result != types::UNIT {
            text.push_str(" -> ");
            text.push_str(&types::name(session, result));
        }
        let place = session.inherited(entry, |found| {
            let file = found.file(gimli::DW_AT_decl_file)?;
            let line = found.number(gimli::DW_AT_decl_line)?;
            let file = lines::file(session, &found.unit, file)?;
            Some((file, u32::try_from(line).ok()?))
        });
        Signature { text, place }
    }

    /// The reason and the help for a local that has no place at an address.
    fn no_place(&self, local: &Local, scope: &Scope, address: u64, why: &str) -> Unavailable {
        let ranges: Vec<Range<u64>> = match &local.location {
            Location::List(list) => list.iter().map(|(range, _)| range.clone()).collect(),
            Location::Fixed(_) | Location::Constant(_) => scope.ranges.clone(),
            Location::Nowhere => Vec::new(),
        };
        let what = if local.argument {
            "argument"
        } else {
            "variable"
        };
        let help = if ranges.is_empty() {
            match (local.argument, scope.kind) {
                (true, Kind::Function) => "the function has no use for it, so nothing keeps it; \
                                           at the entry argN gives the raw registers"
                    .to_string(),
                _ => "it is nowhere in the compiled code: probe where its parts are computed"
                    .to_string(),
            }
        } else {
            self.where_it_is(&ranges, address)
        };
        Unavailable {
            reason: format!("the {what} {} is not there: {why}", local.name),
            help,
        }
    }

    /// The lines of some ranges of addresses, and where the first one begins.
    fn where_it_is(&self, ranges: &[Range<u64>], near: u64) -> String {
        let mut lines: Vec<u32> = Vec::new();
        let row = self.index.function_at(near);
        if let Some(row) = row
            && let Some(unit) = row.entry.and_then(|entry| self.index.unit_of(entry))
        {
            let whole = row.address..row.address + row.bytes;
            let table = self.lines(unit);
            let file = lines::at(&table, row.address).map(|row| row.file);
            lines = table
                .iter()
                .filter(|row| whole.contains(&row.address))
                .filter(|row| {
                    Some(row.file) == file
                        && row.line > 0
                        && ranges.iter().any(|range| range.contains(&row.address))
                })
                .map(|row| row.line)
                .collect();
            lines.sort_unstable();
            lines.dedup();
        }
        let at = ranges.iter().map(|range| range.start).min();
        let at = at.zip(row).map_or_else(String::new, |(at, row)| {
            let name = self.index.name(row.path);
            let name = names::segments(name).pop().unwrap_or_default().to_string();
            format!("{name}+{:#x}", at.wrapping_sub(row.address))
        });
        match runs(&lines) {
            lines if lines.is_empty() => format!("it is there at {at}"),
            lines => format!("it is there at lines {lines} (from {at} on)"),
        }
    }

    /// The scopes whose names are known at a place, the first one first.
    fn visible<'a>(&self, known: &'a Known, row: FunctionRow, place: ProbePlace) -> Vec<&'a Scope> {
        if place.moment == Moment::Return || place.address == row.address {
            // At the entry the arguments of the function itself are meant, even if a copy of
            // another one begins there, too.
            let mut scopes = vec![&known.scope];
            if place.moment == Moment::At {
                let mut inner = known.scope.around(place.address);
                inner.remove(0);
                inner.reverse();
                scopes.extend(inner);
            }
            return scopes;
        }
        let mut scopes = known.scope.around(place.address);
        scopes.reverse();
        scopes
    }

    fn pieces(
        &self,
        known: &Known,
        row: FunctionRow,
        place: ProbePlace,
        local: &Local,
        scope: &Scope,
    ) -> Result<Variable, Unavailable> {
        let address = match place.moment {
            Moment::At => place.address,
            Moment::Return => row.address,
        };
        let moment = match place.moment {
            Moment::Return => value::Moment::Return,
            Moment::At if address == row.address => value::Moment::Entry,
            Moment::At => value::Moment::Inside,
        };
        let session = self.session();
        let type_id = local.type_entry.map_or(types::UNIT, TypeId);
        let unknown = |why: &str| self.no_place(local, scope, address, why);
        let bytes = types::size(&session, type_id)
            .ok_or_else(|| unknown("the size of its type is not known"))?;
        let found = |pieces| Ok(Variable { type_id, pieces });
        if bytes == 0 {
            return found(Vec::new());
        }
        let encoding = self
            .index
            .unit_of(scope.entry)
            .and_then(|unit| session.unit(unit))
            .map(|unit| unit.encoding())
            .ok_or_else(|| unknown("its debug information is damaged"))?;
        if let Location::Constant(content) = &local.location {
            let mut pieces = Vec::new();
            value::constant(content, bytes, &mut pieces).map_err(|why| unknown(&why))?;
            return found(pieces);
        }
        let frame_base = || {
            known
                .frames
                .base(known.frame_base.as_deref(), address, moment)
                .ok_or_else(|| "where its frame is here is not known".to_string())
        };
        let table = self
            .index
            .unit_of(known.scope.entry)
            .map(|unit| self.lines(unit))
            .unwrap_or_default();
        let context = value::Context {
            encoding,
            moment,
            frame_base: &frame_base,
            frame_pointer: known.frames.frame_pointer(address, moment),
            epilogue: lines::at(&table, address).is_some_and(|row| row.epilogue),
        };
        let own = local.argument && scope.kind == Kind::Function;
        let moved = || {
            own.then(|| self.moved(known, local, address, bytes, &context))
                .flatten()
        };
        let Some(expression) = local.location.at(address) else {
            return moved().ok_or_else(|| unknown(value::GONE)).and_then(found);
        };
        let fixed = matches!(local.location, Location::Fixed(_));
        let slot =
            value::frame_slot(expression, encoding).filter(|offset| *offset < 0 && own && fixed);
        if let Some(offset) = slot {
            return stored(known, address, offset, bytes, &context)
                .ok_or_else(|| unknown("when it is put into its place is not known"))
                .and_then(found);
        }
        let pieces = value::pieces(expression, bytes, &context).map_err(|why| unknown(&why))?;
        match moved() {
            Some(moved) if missing(&moved) < missing(&pieces) => found(moved),
            _ => found(pieces),
        }
    }

    /// An argument at the entry, of which the debug information says where it is from a later one
    /// of the first instructions on.
    fn moved(
        &self,
        known: &Known,
        local: &Local,
        address: u64,
        bytes: u64,
        context: &value::Context,
    ) -> Option<Vec<Piece>> {
        let Location::List(list) = &local.location else {
            return None;
        };
        if context.moment == value::Moment::Inside {
            return None;
        }
        let inside = value::Context {
            encoding: context.encoding,
            moment: value::Moment::Inside,
            frame_base: context.frame_base,
            frame_pointer: None,
            epilogue: false,
        };
        let (range, expression) = list
            .iter()
            .filter(|(range, _)| address < range.start && range.start <= known.prologue.end)
            .min_by_key(|(range, _)| range.start)?;
        let mut pieces = value::pieces(expression, bytes, &inside).ok()?;
        for piece in &mut pieces {
            let moved = |expression: &Expression| {
                let expression = known.prologue.at_entry(expression, range.start)?;
                Some(at_moment(expression, context.moment))
            };
            piece.source = match &piece.source {
                Source::Memory(place) => Source::Memory(moved(place)?),
                Source::Value(value) => Source::Value(moved(value)?),
                Source::Missing => Source::Missing,
            };
        }
        Some(pieces)
    }
}

/// An expression of the registers at the entry, read at a moment.
fn at_moment(expression: Expression, moment: value::Moment) -> Expression {
    match expression {
        Expression::Register(register) => moment.register(register),
        Expression::Load { address, bytes } => Expression::Load {
            address: Box::new(at_moment(*address, moment)),
            bytes,
        },
        Expression::Binary(operation, a, b) => Expression::Binary(
            operation,
            Box::new(at_moment(*a, moment)),
            Box::new(at_moment(*b, moment)),
        ),
        constant => constant,
    }
}

/// How many bytes are nowhere.
fn missing(pieces: &[Piece]) -> u64 {
    let missing = pieces
        .iter()
        .filter(|piece| piece.source == Source::Missing);
    missing.map(|piece| u64::from(piece.bytes)).sum()
}

/// The pieces of an argument that the first instructions of the function put into its frame: in the
/// register that it came in, as long as it has not been stored.
fn stored(
    known: &Known,
    address: u64,
    offset: i64,
    bytes: u64,
    context: &value::Context,
) -> Option<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut done = 0;
    while done < bytes {
        let at = offset + i64::try_from(done).ok()?;
        let store = known
            .prologue
            .stores
            .iter()
            .find(|store| store.offset == at)?;
        let part = store.bytes.min(bytes - done);
        let source = if address <= store.address {
            Source::Value(context.moment.register(store.register))
        } else {
            Source::Memory(value::plus((context.frame_base)().ok()?, at))
        };
        pieces.push(Piece {
            bytes: u32::try_from(part).ok()?,
            source,
        });
        done += part;
    }
    Some(pieces)
}

/// Numbers as ranges: `3-5, 9`.
fn runs(numbers: &[u32]) -> String {
    let mut text = String::new();
    let mut rest = numbers;
    while let Some(first) = rest.first() {
        let length = rest
            .iter()
            .zip(*first..)
            .take_while(|(number, expected)| *number == expected)
            .count();
        if !text.is_empty() {
            text.push_str(", ");
        }
        text.push_str(&first.to_string());
        if length > 1 {
            text.push_str(&format!("-{}", rest[length - 1]));
        }
        rest = &rest[length..];
    }
    text
}

impl Kernel for DebugInfo {
    fn functions(&self, pattern: &str) -> Vec<Function> {
        let pattern = Pattern::new(pattern);
        if let Some(symbol) = pattern.symbol() {
            let found = self.by_symbol().get(symbol.as_bytes());
            let mut rows = found.cloned().unwrap_or_default();
            rows.dedup_by_key(|row| row.address);
            return rows.into_iter().map(|row| self.function(row)).collect();
        }
        let mut found: Vec<Function> = Vec::new();
        for row in self.index.functions() {
            let matches = pattern.matches(self.index.name(row.path))
                || pattern.matches_symbol(self.index.name(row.symbol));
            // Several names of one function are one place.
            if matches && found.last().is_none_or(|last| last.address != row.address) {
                found.push(self.function(row));
            }
        }
        found
    }

    fn inlined(&self, pattern: &str) -> Vec<u64> {
        let pattern = Pattern::new(pattern);
        let mut addresses = Vec::new();
        self.each_inlined(&pattern, |_, address, _| addresses.push(address));
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    fn line(&self, file: &str, line: u32) -> Result<Vec<u64>, Unavailable> {
        let session = self.session();
        let mut rows: Vec<lines::Row> = Vec::new();
        let mut known = false;
        let mut last_unit = None;
        for (path, unit) in self.index.files() {
            if lines::ends_with(self.index.name(path), file) {
                known = true;
                if last_unit != Some((path, unit)) {
                    let wanted = self.index.name(path);
                    rows.extend(lines::rows(&session, &self.image, unit, |path| {
                        path == wanted
                    }));
                }
                last_unit = Some((path, unit));
            }
        }
        if !known {
            let files: Vec<&str> = self
                .index
                .files()
                .map(|(path, _)| self.index.name(path))
                .collect();
            let base = file.rsplit('/').next().unwrap_or(file);
            let bases = files
                .iter()
                .map(|path| path.rsplit('/').next().unwrap_or(path));
            let near = names::nearest(base, bases, NEAR);
            return Err(Unavailable {
                reason: format!("no code of the kernel is from a file {file}"),
                help: did_you_mean(&near),
            });
        }
        rows.sort_unstable();
        rows.dedup();
        let addresses: Vec<u64> = rows
            .iter()
            .filter(|row| row.line == line)
            .map(|row| row.address)
            .collect();
        if !addresses.is_empty() {
            return Ok(addresses);
        }
        let before = rows.iter().rev().find(|row| row.line < line);
        let after = rows.iter().find(|row| row.line > line);
        let near: Vec<String> = before
            .into_iter()
            .chain(after)
            .map(|row| row.line.to_string())
            .collect();
        Err(Unavailable {
            reason: format!("no code begins at line {line} of {file}"),
            help: if near.is_empty() {
                "no line of the file has code: it is not used, or all of it is computed by the \
                 compiler"
                    .into()
            } else {
                format!("the nearest lines with code are {}", near.join(" and "))
            },
        })
    }

    fn variables(&self, place: ProbePlace) -> Vec<String> {
        let Ok((row, known)) = self.known(place.address) else {
            return Vec::new();
        };
        let mut names: Vec<&str> = Vec::new();
        let scopes = self.visible(&known, row, place);
        for argument in [true, false] {
            for scope in &scopes {
                let locals = scope.locals.iter();
                for local in locals.filter(|local| local.argument == argument) {
                    if !local.name.is_empty() && !names.contains(&local.name.as_str()) {
                        names.push(&local.name);
                    }
                }
            }
        }
        names.retain(|name| self.variable(place, name).is_ok());
        names.into_iter().map(String::from).collect()
    }

    fn variable(&self, place: ProbePlace, name: &str) -> Result<Variable, Unavailable> {
        let (row, known) = self.known(place.address)?;
        let scopes = self.visible(&known, row, place);
        // Of two with one name in a scope the later one hides the other.
        for scope in scopes {
            if let Some(local) = scope.locals.iter().rev().find(|local| local.name == name) {
                return self.pieces(&known, row, place, local, scope);
            }
        }
        let mut elsewhere: Vec<(&Scope, &Local)> = Vec::new();
        known.scope.each(&mut |scope| {
            let named = scope.locals.iter().filter(|local| local.name == name);
            elsewhere.extend(named.map(|local| (scope, local)));
        });
        let function = self.index.name(row.path);
        let ranges: Vec<Range<u64>> = elsewhere
            .iter()
            .filter(|(_, local)| local.location != Location::Nowhere)
            .flat_map(|(scope, _)| scope.ranges.iter().cloned())
            .collect();
        if !ranges.is_empty() {
            return Err(Unavailable {
                reason: format!("{name} is not in scope here"),
                help: self.where_it_is(&ranges, row.address),
            });
        }
        if !elsewhere.is_empty() {
            return Err(Unavailable {
                reason: format!("{name} is not in scope here, and {}", value::GONE),
                help: "probe where its parts are computed".into(),
            });
        }
        let known_here = self.variables(place);
        let near = names::nearest(name, known_here.iter().map(String::as_str), NEAR);
        let help = if near.is_empty() && !known_here.is_empty() {
            format!("here are {}", known_here.join(", "))
        } else {
            did_you_mean(&near)
        };
        Err(Unavailable {
            reason: format!("{function} has nothing with the name {name}"),
            help,
        })
    }

    fn returned(&self, function: u64) -> Result<Variable, Unavailable> {
        let (row, _) = self.known(function)?;
        let path = self.index.name(row.path);
        let refuse = |reason: String, help: &str| Unavailable {
            reason,
            help: help.into(),
        };
        if row.address != function {
            return Err(refuse(
                format!("{function:#x} is inside of {path}, and only whole functions return"),
                "probe the return of the function",
            ));
        }
        let session = self.session();
        let damaged = || refuse(format!("the result of {path} is not described"), "");
        let entry = row.entry.ok_or_else(damaged)?;
        let convention = session.inherited(entry, |found| {
            found
                .entry
                .attr(gimli::DW_AT_calling_convention)
                .map(|_| ())
        });
        if convention.is_some() {
            return Err(refuse(
                format!("the compiler changed how {path} is called, so its result may be nowhere"),
                "probe a line after one of its calls",
            ));
        }
        let type_id = types::of(&session, entry);
        let no_return = session.inherited(entry, |found| {
            found.entry.attr(gimli::DW_AT_noreturn).map(|_| ())
        });
        if no_return.is_some() {
            return Err(refuse(
                format!("{path} never returns"),
                "probe its entry instead",
            ));
        }
        let bytes = types::size(&session, type_id).ok_or_else(damaged)?;
        let shape = match bytes {
            0 => Shape::Empty,
            1..=16 => layout::shape(&session, type_id).ok_or_else(damaged)?,
            _ => Shape::Memory,
        };
        let in_registers = bytes > 0 && (bytes <= 8 || shape != Shape::Memory);
        let sets = |register| prologue::sets(&self.image, row.address, row.bytes, register);
        if in_registers && !sets(Register::Ax) {
            return Err(refuse(
                format!("{path} always has the same result, which the compiler left out"),
                "read the source: the result does not depend on the call",
            ));
        }
        // Of structures the debug information does not say whether the function is one of Rust or
        // of C, but only Rust's have a name that is mangled and use both registers.
        let is_struct =
            matches!(&*self.describe(type_id), Type::Struct(all) if !all.name.starts_with('('));
        let differs = match shape {
            Shape::Pair(..) => bytes <= 8,
            Shape::Memory => (9..=16).contains(&bytes),
            Shape::Empty | Shape::Scalar(_) => false,
        };
        let symbol = self.index.name(row.symbol);
        let mangled = symbol.starts_with("_ZN") || symbol.starts_with("_R");
        let is_rust = mangled && (shape == Shape::Memory || sets(Register::Dx));
        if is_struct && differs && !is_rust {
            return Err(refuse(
                format!(
                    "{path} may have Rust's or C's calling convention, which return such a value \
                     in different registers"
                ),
                "read reg(\"ax\") and reg(\"dx\") instead",
            ));
        }
        let number = |register, bytes: u64| Piece {
            bytes: u32::try_from(bytes).unwrap_or_default(),
            source: Source::Value(Expression::Register(register)),
        };
        let behind_pointer = || {
            Ok(vec![Piece {
                bytes: u32::try_from(bytes).map_err(|_| damaged())?,
                source: Source::Memory(Expression::AtEntry(Register::Di)),
            }])
        };
        let gap = |bytes: u64| {
            (bytes > 0).then_some(Piece {
                bytes: u32::try_from(bytes).unwrap_or_default(),
                source: Source::Missing,
            })
        };
        let pieces = match shape {
            _ if bytes == 0 => Vec::new(),
            Shape::Memory if bytes > 8 => behind_pointer()?,
            Shape::Pair(a, b, at) => {
                let mut pieces = vec![number(Register::Ax, a.bytes)];
                pieces.extend(gap(at - a.bytes));
                pieces.push(number(Register::Dx, b.bytes));
                pieces.extend(gap(bytes - at - b.bytes));
                pieces
            }
            Shape::Empty | Shape::Scalar(_) | Shape::Memory => {
                let mut pieces = vec![number(Register::Ax, bytes.min(8))];
                if bytes > 8 {
                    pieces.push(number(Register::Dx, bytes - 8));
                }
                pieces
            }
        };
        Ok(Variable { type_id, pieces })
    }

    fn describe(&self, id: TypeId) -> Rc<Type> {
        if let Some(known) = self.types.borrow().get(&id) {
            return known.clone();
        }
        let described = Rc::new(types::describe(&self.session(), id));
        self.types.borrow_mut().insert(id, described.clone());
        described
    }

    fn global(&self, path: &str) -> Result<Variable, Unavailable> {
        let pattern = Pattern::new(path);
        let session = self.session();
        let mut found: Vec<(&str, u64)> = Vec::new();
        for (name, entry) in self.index.globals() {
            let name = self.index.name(name);
            if pattern.matches(name) {
                found.push((name, entry));
            }
        }
        let Some((name, entry)) = found.first().copied() else {
            let all: Vec<&str> = self
                .index
                .globals()
                .filter_map(|(name, _)| names::segments(self.index.name(name)).pop())
                .collect();
            let last = names::segments(path).pop().unwrap_or(path);
            return Err(Unavailable {
                reason: format!("the kernel has no static variable {path}"),
                help: did_you_mean(&names::nearest(last, all, NEAR)),
            });
        };
        let mut other: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
        other.dedup();
        if other.len() > 1 {
            other.truncate(NEAR);
            return Err(Unavailable {
                reason: format!("several static variables are called {path}"),
                help: format!("write the whole path, for example {}", other.join(" or ")),
            });
        }
        let place = || {
            let found = session.entry(entry)?;
            let Location::Fixed(expression) = scope::location(&session, &found) else {
                return None;
            };
            let type_id = types::of(&session, entry);
            let bytes = types::size(&session, type_id)?;
            let context = value::Context {
                encoding: found.unit.encoding(),
                moment: value::Moment::Inside,
                frame_base: &|| Err(String::new()),
                frame_pointer: None,
                epilogue: false,
            };
            let pieces = value::pieces(&expression, bytes, &context).ok()?;
            Some(Variable { type_id, pieces })
        };
        place().ok_or_else(|| Unavailable {
            reason: format!("where {name} lies is not known"),
            help: String::new(),
        })
    }

    fn nearest(&self, name: &str) -> Vec<String> {
        let last = names::segments(name).pop().unwrap_or(name);
        let functions = self.index.functions().map(|row| row.path);
        let inlined = self.index.inlined().map(|(path, ..)| path);
        let mut numbers: Vec<u32> = functions.chain(inlined).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let candidates = numbers.into_iter().filter_map(|path| {
            let last = names::segments(self.index.name(path)).pop()?;
            Some(names::generics(last).0)
        });
        names::nearest(last, candidates, NEAR)
            .into_iter()
            .map(String::from)
            .collect()
    }
}

impl Symbolize for DebugInfo {
    fn symbol(&self, address: u64) -> Option<Symbol> {
        let function = self.function_at(address)?;
        Some(Symbol {
            offset: address - function.address,
            name: function.path,
        })
    }

    fn user_frame(&self, program: &str, address: u64) -> Option<Symbol> {
        self.programs.frame(program, address)
    }
}

fn did_you_mean(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        names => format!("did you mean {}?", names.join(" or ")),
    }
}
