//! User programs: the names of the functions that their call stacks have, and their values.
//!
//! All programs are linked to the same addresses, so an address means something only with the name
//! of its program. The debug information of each counts its types from 0. So the number of a
//! program's type has the program's own number in its upper bits.

use std::{
    cell::OnceCell,
    path::{Path, PathBuf},
    rc::Rc,
};

use trace_interface::symbols::{
    Function, Implementor, Kernel, Mark, ProbePlace, Symbol, Type, TypeId, Unavailable, Variable,
};

use crate::{DebugInfo, image, index, types::UNIT};

/// The path of a program on the machine.
pub fn path_of_program(name: &str) -> String {
    format!("/bin/{name}")
}

/// The bit from which on the number of a type has that of its program, which begins at 1. The
/// numbers of a compiler's own types have the highest bit.
const PROGRAM_SHIFT: u32 = 48;
const PROGRAM_BITS: u64 = 0x7fff;

/// How many bytes of a file's name a task's name has.
const COMM: usize = 15;

/// What a file says about the program that the machine has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// It is the same program.
    Whole,
    /// It may be of another build. A wrong name of a frame misleads less than a wrong value.
    Names,
}

/// Programs by their names.
#[derive(Default)]
pub struct Programs {
    all: Vec<Program>,
}

struct Program {
    /// The name of a task that runs it.
    name: Vec<u8>,
    path: String,
    trust: Trust,
    elf: PathBuf,
    /// Symbols by address, read when they are asked for. Empty if the file cannot be read.
    symbols: OnceCell<Vec<image::Symbol>>,
    /// None if the file cannot be read, or has none.
    debug_info: OnceCell<Option<ProgramInfo>>,
}

impl Programs {
    pub fn add(&mut self, name: &str, elf: &Path, trust: Trust) {
        let bytes = name.as_bytes();
        self.all.push(Program {
            name: bytes[..bytes.len().min(COMM)].to_vec(),
            path: path_of_program(name),
            trust,
            elf: elf.into(),
            symbols: OnceCell::new(),
            debug_info: OnceCell::new(),
        });
    }

    /// The program of that path on the machine.
    pub fn at(&self, path: &str) -> Option<&ProgramInfo> {
        let number = self.all.iter().position(|program| program.path == path)?;
        self.info(number)
    }

    /// The program that has a type of that number. None: it is the kernel's.
    pub fn of_type(&self, id: TypeId) -> Option<&ProgramInfo> {
        if id == UNIT {
            return None;
        }
        let number = id.0 >> PROGRAM_SHIFT & PROGRAM_BITS;
        self.info((number as usize).checked_sub(1)?)
    }

    fn info(&self, number: usize) -> Option<&ProgramInfo> {
        let program = self.all.get(number)?;
        let info = program.debug_info.get_or_init(|| {
            let is_same = program.trust == Trust::Whole;
            let debug_info = is_same.then(|| DebugInfo::open(&program.elf).ok());
            Some(ProgramInfo {
                number: number as u64 + 1,
                debug_info: debug_info??,
            })
        });
        info.as_ref()
    }

    /// The function of a frame.
    pub fn frame(&self, name: &str, address: u64) -> Option<Symbol> {
        let within = |address| self.symbol(name, address);
        // After a call that never returns the address is that of the next function.
        let found = within(address).filter(|symbol| symbol.offset > 0);
        let found = found.or_else(|| {
            let call = within(address.checked_sub(1)?)?;
            Some(Symbol {
                offset: call.offset + 1,
                ..call
            })
        });
        found.or_else(|| within(address))
    }

    /// The function that has an address.
    pub fn symbol(&self, name: &str, address: u64) -> Option<Symbol> {
        let mut all = self.all.iter();
        let program = all.find(|program| program.name == name.as_bytes())?;
        let symbols = program.symbols.get_or_init(|| {
            let image = image::Image::read(&program.elf);
            image.map_or_else(|_| Vec::new(), |image| image.symbols())
        });
        let end = symbols.partition_point(|symbol| symbol.address <= address);
        let symbol = &symbols[end.checked_sub(1)?];
        let offset = address - symbol.address;
        // Symbols of assembly may have no size.
        let is_inside = offset < symbol.bytes.max(1) || symbol.bytes == 0;
        is_inside.then(|| Symbol {
            name: index::demangled(&symbol.name),
            offset,
        })
    }
}

/// The debug information of a program.
pub struct ProgramInfo {
    number: u64,
    debug_info: DebugInfo,
}

impl ProgramInfo {
    /// The number of one of its types for others.
    fn outside(&self, id: TypeId) -> TypeId {
        match id {
            UNIT => UNIT,
            TypeId(id) => TypeId(id | self.number << PROGRAM_SHIFT),
        }
    }

    fn inside(id: TypeId) -> TypeId {
        match id {
            UNIT => UNIT,
            TypeId(id) => TypeId(id & !(PROGRAM_BITS << PROGRAM_SHIFT)),
        }
    }

    fn variable_outside(&self, variable: Variable) -> Variable {
        Variable {
            type_id: self.outside(variable.type_id),
            ..variable
        }
    }
}

impl DebugInfo {
    /// The functions that a pattern matches, if this is the information of a program. One with `*`
    /// or `?` leaves out what has no size: labels of assembly, which lie inside of functions. The
    /// kernel refuses their returns, and knows only those that say that they are functions.
    pub fn functions_of_program(&self, pattern: &str) -> Vec<Function> {
        let mut functions = self.functions(pattern);
        if pattern.contains(['*', '?']) {
            functions.retain(|function| function.bytes > 0);
        }
        functions
    }
}

impl Kernel for ProgramInfo {
    fn functions(&self, pattern: &str) -> Vec<Function> {
        self.debug_info.functions_of_program(pattern)
    }

    fn inlined(&self, pattern: &str) -> Vec<u64> {
        self.debug_info.inlined(pattern)
    }

    fn line(&self, file: &str, line: u32) -> Result<Vec<u64>, Unavailable> {
        self.debug_info.line(file, line)
    }

    fn instruction(&self, function: &Function, offset: u64) -> Result<(), Unavailable> {
        self.debug_info.instruction(function, offset)
    }

    fn returns(&self, function: &Function) -> Result<(), Unavailable> {
        match self.debug_info.image.entry() == function.address {
            false => Ok(()),
            true => Err(Unavailable {
                reason: format!(
                    "the program begins at `{}`: nothing has called it, so it does not return",
                    function.path
                ),
                help: "probe a function that it calls".into(),
            }),
        }
    }

    fn variables(&self, place: ProbePlace) -> Vec<String> {
        self.debug_info.variables(place)
    }

    fn variable(&self, place: ProbePlace, name: &str) -> Result<Variable, Unavailable> {
        let variable = self.debug_info.variable(place, name)?;
        Ok(self.variable_outside(variable))
    }

    fn argument(
        &self,
        place: ProbePlace,
        copy: Option<&str>,
        name: &str,
    ) -> Result<Variable, Unavailable> {
        let variable = self.debug_info.argument(place, copy, name)?;
        Ok(self.variable_outside(variable))
    }

    fn returned(&self, function: u64) -> Result<Variable, Unavailable> {
        let variable = self.debug_info.returned(function)?;
        Ok(self.variable_outside(variable))
    }

    fn describe(&self, id: TypeId) -> Rc<Type> {
        let described = self.debug_info.describe(Self::inside(id));
        Rc::new(described.renumbered(|id| self.outside(id)))
    }

    fn type_named(&self, name: &str) -> Result<TypeId, Vec<String>> {
        let id = self.debug_info.type_named(name)?;
        Ok(self.outside(id))
    }

    fn implementors(&self, id: TypeId) -> Vec<Implementor> {
        let mut found = self.debug_info.implementors(Self::inside(id));
        for of in &mut found {
            of.type_id = self.outside(of.type_id);
        }
        found
    }

    fn global(&self, path: &str) -> Result<Variable, Unavailable> {
        let variable = self.debug_info.global(path)?;
        Ok(self.variable_outside(variable))
    }

    fn nearest(&self, name: &str) -> Vec<String> {
        self.debug_info.nearest(name)
    }

    fn marks(&self, provider: &str, name: &str) -> Vec<Mark> {
        self.debug_info.marks(provider, name)
    }
}
