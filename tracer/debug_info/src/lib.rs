//! The kernel's debug information: its functions, its lines, and the places and types of values. It
//! answers [`trace_interface::Kernel`] on the host.
//!
//! ```text
//!   kernel's ELF ─► image ─► index (names; made once, kept beside the file)
//!                     │        │
//!                     └────────┴─► session: entries read for one question
//!                                    ├─ search     names and lines of a program
//!                                    │    ├─ names      patterns, near names
//!                                    │    └─ lines      line tables, and the files that they name
//!                                    ├─ variables  which variable a name is
//!                                    │    └─ scope      arguments, variables, inlined copies
//!                                    ├─ place      where a variable is
//!                                    │    ├─ value      expressions
//!                                    │    ├─ frame      call frames
//!                                    │    └─ prologue   arguments on their way into the frame
//!                                    ├─ returned   where a result is
//!                                    │    └─ layout     how a type comes back
//!                                    ├─ types      what a type is made of
//!                                    ├─ signature  how a function stands in the source
//!                                    ├─ instructions  by their mnemonics, or their texts
//!                                    ├─ callees    what a function calls by its address
//!                                    └─ symbolise  addresses of call stacks
//!   user programs ─► programs  names of the frames of their call stacks
//! ```
//!
//! # Invariants
//! - DEBUG-1. A place is told only where the debug information or the ABI gives it. Where it does
//!   not, the answer is [`Unavailable`] with the reason, never a place that may be wrong.
//! - DEBUG-2. A damaged file gives fewer answers, never a panic.
//! - DEBUG-3. Addresses of the running kernel come in and go out, those of the file are inside.
//!   They differ by the slide ([`DebugInfo::set_slide`]), which is 0 unless it is told.
//!
//! # Contexts
//! The host. One thread asks; answers about a function are remembered for it.

mod callees;
mod epilogue;
mod error;
mod files;
mod frame;
mod hash;
mod image;
mod implementors;
mod index;
mod instructions;
mod layout;
mod lines;
mod marks;
mod names;
mod place;
mod programs;
mod prologue;
mod registers;
mod returned;
mod scope;
mod search;
mod session;
mod signature;
mod stacked;
mod symbolise;
mod types;
mod value;
mod variables;

use std::{
    cell::{OnceCell, RefCell},
    collections::HashMap,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

use trace_interface::symbols::{
    Function, Implementor, Kernel, Mark, ProbePlace, Symbol, Symbolize, Type, TypeId, Unavailable,
    Variable, glob,
};

use crate::{
    frame::Frames,
    image::Image,
    index::{FunctionRow, Index},
    programs::{Programs, Trust},
    prologue::Prologue,
    scope::Scope,
    session::Session,
};

pub use crate::{
    error::Error,
    index::demangled,
    names::short_path,
    programs::path_of_program,
    signature::Signature,
    symbolise::{Frame, InlinedCopy},
    variables::Static,
};

/// The help where no value by name can be told.
const REGISTERS_INSTEAD: &str =
    "read registers instead, for example arg0 or reg(\"di\"), and reg(\"ax\") at a return";

/// The debug information of a kernel.
pub struct DebugInfo {
    image: Image,
    index: Index,
    /// Where the kernel runs, as a distance from where it was linked to.
    slide: u64,
    times: Times,
    functions: RefCell<HashMap<u64, Rc<Known>>>,
    types: RefCell<HashMap<TypeId, Rc<Type>>>,
    lines: RefCell<HashMap<u64, Rc<Vec<lines::At>>>>,
    /// Whether the units that begin there tell types.
    have_types: RefCell<HashMap<u64, bool>>,
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
    /// Whether its arguments and its result are told.
    is_described: bool,
    /// The path of another function that has the same code.
    same_code: Option<u32>,
}

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
            slide: 0,
            times,
            functions: RefCell::default(),
            types: RefCell::default(),
            lines: RefCell::default(),
            have_types: RefCell::default(),
            by_symbol: OnceCell::new(),
            programs: Programs::default(),
        })
    }

    /// Makes a user program known, by its file name in the guest's `/bin`. Its symbols name the
    /// frames of its call stacks, and its debug information the values of probes in it.
    pub fn add_program(&mut self, name: &str, elf: &Path) {
        self.programs.add(name, elf, Trust::Whole);
    }

    /// The same for a program that may be of another build: its symbols name frames, and nothing
    /// else is told about it.
    pub fn add_program_names(&mut self, name: &str, elf: &Path) {
        self.programs.add(name, elf, Trust::Names);
    }

    /// How long opening took.
    pub fn times(&self) -> Times {
        self.times
    }

    /// Says how far from where it was linked to the kernel runs. Wraps at 64 bits.
    pub fn set_slide(&mut self, slide: u64) {
        self.slide = slide;
    }

    /// The section of notes that has the linker's number of the file; empty if it has none.
    pub fn build_id_notes(&self) -> &[u8] {
        self.image.section(".note.gnu.build-id")
    }

    /// The address in the file for one in the running kernel (DEBUG-3).
    fn in_file(&self, address: u64) -> u64 {
        address.wrapping_sub(self.slide)
    }

    fn place_in_file(&self, place: ProbePlace) -> ProbePlace {
        ProbePlace {
            address: self.in_file(place.address),
            ..place
        }
    }

    /// The addresses in the running kernel for some in the file.
    fn running(&self, mut addresses: Vec<u64>) -> Vec<u64> {
        for address in &mut addresses {
            *address = address.wrapping_add(self.slide);
        }
        addresses
    }

    fn session(&self) -> Session<'_> {
        Session::new(&self.image, &self.index)
    }

    fn function(&self, row: FunctionRow) -> Function {
        Function {
            path: self.index.name(row.path).into(),
            symbol: self.index.name(row.symbol).into(),
            address: row.address.wrapping_add(self.slide),
            bytes: row.bytes,
        }
    }

    /// The function that has code at an address.
    pub fn function_at(&self, address: u64) -> Option<Function> {
        let row = self.index.function_at(self.in_file(address))?;
        Some(self.function(row))
    }

    /// Whether the debug information tells the arguments and the result of the function with that
    /// entry.
    fn is_described(&self, session: &Session, entry: u64) -> bool {
        let Some(unit) = session.described_in(entry) else {
            return false;
        };
        let mut known = self.have_types.borrow_mut();
        *(known.entry(unit)).or_insert_with(|| session.has_types(unit).unwrap_or(false))
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
            help: REGISTERS_INSTEAD.into(),
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
        // After the end of the frame's set-up an argument may have another value.
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
            is_described: self.is_described(&session, entry),
            same_code: self.same_code(&row),
        });
        self.functions.borrow_mut().insert(entry, known.clone());
        Ok((row, known))
    }

    /// The same, if the names there can only be those of this function.
    fn known_alone(&self, address: u64) -> Result<(FunctionRow, Rc<Known>), Unavailable> {
        let (row, known) = self.known(address)?;
        match known.same_code {
            None => Ok((row, known)),
            Some(other) => Err(Unavailable {
                reason: format!(
                    "the compiler has made one of {} and {}, whose code is the same, and nothing \
                     says of which of them the values are",
                    self.index.name(row.path),
                    self.index.name(other)
                ),
                help: REGISTERS_INSTEAD.into(),
            }),
        }
    }

    /// The path of another function with the code of `of`. Only one of them has debug information.
    fn same_code(&self, of: &FunctionRow) -> Option<u32> {
        let others = self
            .index
            .functions()
            .filter(|row| row.address == of.address && row.bytes > 0 && row.symbol != of.symbol);
        others.map(|row| row.path).next()
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
}

impl Kernel for DebugInfo {
    fn functions(&self, pattern: &str) -> Vec<Function> {
        self.find(pattern)
    }

    fn inlined(&self, pattern: &str) -> Vec<u64> {
        self.running(self.find_inlined(pattern))
    }

    fn instructions(&self, pattern: &str) -> Result<Vec<u64>, Unavailable> {
        Ok(self.running(self.find_instructions(pattern)?))
    }

    fn line(&self, file: &str, line: u32) -> Result<Vec<u64>, Unavailable> {
        Ok(self.running(self.find_line(file, line)?))
    }

    fn instruction(&self, function: &Function, offset: u64) -> Result<(), Unavailable> {
        let mut in_file = function.clone();
        in_file.address = self.in_file(function.address);
        prologue::instruction(&self.image, &in_file, offset)
    }

    fn variables(&self, place: ProbePlace) -> Vec<String> {
        self.names_at(self.place_in_file(place))
    }

    fn variable(&self, place: ProbePlace, name: &str) -> Result<Variable, Unavailable> {
        self.variable_at(self.place_in_file(place), name)
    }

    fn argument(
        &self,
        place: ProbePlace,
        copy: Option<&str>,
        name: &str,
    ) -> Result<Variable, Unavailable> {
        self.argument_at(self.place_in_file(place), copy, name)
    }

    fn returned(&self, function: u64) -> Result<Variable, Unavailable> {
        self.result_of(self.in_file(function))
    }

    fn describe(&self, id: TypeId) -> Rc<Type> {
        if let Some(known) = self.types.borrow().get(&id) {
            return known.clone();
        }
        let described = match self.programs.of_type(id) {
            Some(program) => program.describe(id),
            None => Rc::new(types::describe(&self.session(), id)),
        };
        self.types.borrow_mut().insert(id, described.clone());
        described
    }

    fn type_named(&self, name: &str) -> Result<TypeId, Vec<String>> {
        self.find_type(name)
    }

    fn implementors(&self, id: TypeId) -> Vec<Implementor> {
        if let Some(program) = self.programs.of_type(id) {
            return program.implementors(id);
        }
        self.find_implementors(id)
    }

    fn global(&self, path: &str) -> Result<Variable, Unavailable> {
        self.static_variable(path)
    }

    fn nearest(&self, name: &str) -> Vec<String> {
        self.near(name)
    }

    fn marks(&self, provider: &str, name: &str) -> Vec<Mark> {
        let is_one = |note: &marks::Note| glob(provider, &note.provider) && glob(name, &note.name);
        let notes = marks::notes(self.image.section(".note.stapsdt"));
        let place = |note: marks::Note| {
            Some(Mark {
                function: self.function_at(note.address)?,
                provider: note.provider,
                name: note.name,
                address: note.address,
                arguments: note.arguments,
                counter: (note.semaphore != 0).then(|| self.image.place_in_file(note.semaphore)),
            })
        };
        let mut found: Vec<Mark> = notes.into_iter().filter(is_one).filter_map(place).collect();
        found.sort_by_key(|mark| mark.address);
        found
    }

    fn program(&self, path: &str) -> Option<&dyn Kernel> {
        self.programs.at(path).map(|program| program as &dyn Kernel)
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

    fn user_symbol(&self, program: &str, address: u64) -> Option<Symbol> {
        self.programs.symbol(program, address)
    }

    fn user_frame(&self, program: &str, address: u64) -> Option<Symbol> {
        self.programs.frame(program, address)
    }
}
