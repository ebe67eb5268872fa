//! The traced kernel, as a compiler sees it: functions, and the values that a probe can see.
//!
//! SYMBOLS-1. A value that the debug information does not give at a place is [`Unavailable`] with
//!     the reason. It is never guessed.

use alloc::{boxed::Box, rc::Rc, string::String, vec::Vec};
use core::fmt;

pub use bpf::context::Register;
pub use names::glob;

/// A function of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its path as in the source, for example `kernel::fs::vfs::vfs_write`; the symbol's name where
    /// nothing else is known.
    pub path: String,
    /// The linker's name.
    pub symbol: String,
    pub address: u64,
    pub bytes: u64,
}

/// Where a program reads values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProbePlace {
    /// The probed address; for a return, the function's.
    pub address: u64,
    pub moment: Moment,
}

/// The moment at that address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Moment {
    /// The moment before the instruction at the address.
    At,
    /// The moment when the function that begins at the address has returned.
    Return,
}

/// The questions of a compiler. Names are matched as they are written: the whole path, or its last
/// segments (`vfs_write`, `vfs::vfs_write`). `*` matches any text, `?` a character.
pub trait Kernel {
    /// The functions that have code of their own and that a pattern matches, by address.
    fn functions(&self, pattern: &str) -> Vec<Function>;

    /// The addresses at which copies of a function that the compiler inlined begin.
    fn inlined(&self, pattern: &str) -> Vec<u64>;

    /// The addresses at which code of a source line begins. The file's name may be shortened to its
    /// last segments.
    ///
    /// # Errors
    /// [`Unavailable`], with lines nearby that have code.
    fn line(&self, file: &str, line: u32) -> Result<Vec<u64>, Unavailable>;

    /// The addresses of the instructions whose mnemonic a pattern matches: the name in Intel's
    /// manual in small letters, without prefixes, such as `cli` or `cmpxchg`. A pattern with a
    /// blank is one of the whole text: `inc dword ptr gs:[0x24]`.
    ///
    /// # Errors
    /// [`Unavailable`], with near names, if there is none.
    fn instructions(&self, pattern: &str) -> Result<Vec<u64>, Unavailable> {
        let _ = pattern;
        Err(Unavailable {
            reason: "the kernel's code is not at hand".into(),
            help: "trace from the host: cargo run -- trace".into(),
        })
    }

    /// Checks that an instruction begins so many bytes after the beginning of a function. With the
    /// symbols alone that is not known, and all is taken.
    ///
    /// # Errors
    /// [`Unavailable`], with instructions nearby.
    fn instruction(&self, function: &Function, offset: u64) -> Result<(), Unavailable> {
        let _ = (function, offset);
        Ok(())
    }

    /// Checks that a function has a caller, to which it returns. That of a program's entry point
    /// has none.
    ///
    /// # Errors
    /// [`Unavailable`].
    fn returns(&self, function: &Function) -> Result<(), Unavailable> {
        let _ = function;
        Ok(())
    }

    /// The names that [`Kernel::variable`] knows at a place: arguments first, in their order.
    fn variables(&self, place: ProbePlace) -> Vec<String>;

    /// An argument or local variable, by its name in the source.
    ///
    /// # Errors
    /// [`Unavailable`]: it is optimised out there, or there is no such name.
    fn variable(&self, place: ProbePlace, name: &str) -> Result<Variable, Unavailable>;

    /// An argument of the function whose code is at a place, not of one that is inlined there. At
    /// the beginning of a copy that [`Kernel::inlined`] gives, `copy` is the pattern, and the
    /// argument is the copied function's. Where nothing tells arguments from variables, they are
    /// the same.
    ///
    /// # Errors
    /// [`Unavailable`]: it is optimised out there, or the function has no such argument.
    fn argument(
        &self,
        place: ProbePlace,
        copy: Option<&str>,
        name: &str,
    ) -> Result<Variable, Unavailable> {
        let _ = copy;
        self.variable(place, name)
    }

    /// The result of the function that begins at an address, when it has returned. A result that is
    /// too large for registers is where a register pointed at the entry.
    ///
    /// # Errors
    /// [`Unavailable`].
    fn returned(&self, function: u64) -> Result<Variable, Unavailable>;

    /// The type with that number.
    fn describe(&self, id: TypeId) -> Rc<Type>;

    /// The type of that name, for casts: its path as in the source, or its last segments.
    ///
    /// # Errors
    /// The paths of all that are called so, if they are several. None: there is no such type.
    fn type_named(&self, name: &str) -> Result<TypeId, Vec<String>> {
        let _ = name;
        Err(Vec::new())
    }

    /// The types whose values a pointer to a trait object may lead to. The type with that number is
    /// the pointer's, or one of what leads to it, such as `Rc`.
    fn implementors(&self, id: TypeId) -> Vec<Implementor> {
        let _ = id;
        Vec::new()
    }

    /// A static variable, by its path.
    ///
    /// # Errors
    /// [`Unavailable`].
    fn global(&self, path: &str) -> Result<Variable, Unavailable>;

    /// The names nearest to one that is not found, best first, for messages.
    fn nearest(&self, name: &str) -> Vec<String>;

    /// The static marks that two patterns match, by address. Of a user program only.
    fn marks(&self, provider: &str, name: &str) -> Vec<Mark> {
        let _ = (provider, name);
        Vec::new()
    }

    /// The user program of that path on the machine, which answers the same questions of itself.
    /// The numbers of its types are no others' numbers, and [`Kernel::describe`] of the kernel
    /// knows them, too. None: its debug information is not here.
    fn program(&self, path: &str) -> Option<&dyn Kernel> {
        let _ = path;
        None
    }
}

/// A static mark: a place in a program that its source has given a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    pub provider: String,
    pub name: String,
    pub address: u64,
    /// The function that has the place.
    pub function: Function,
    pub arguments: Vec<MarkArgument>,
    /// The place in the program's file of the word that counts the tracers of the mark, if it has
    /// one. While it is 0, the program may leave the mark out.
    pub counter: Option<u64>,
}

/// A value of a [`Mark`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkArgument {
    /// How many of the number's bytes it has: 1, 2, 4 or 8.
    pub bytes: u8,
    pub signed: bool,
    /// None: where it is, is said in a way that is not understood here.
    pub value: Option<Expression>,
}

/// A function, and a place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    pub name: String,
    /// Bytes from its beginning.
    pub offset: u64,
}

/// Tells the names of addresses.
pub trait Symbolize {
    /// The function that has the address.
    fn symbol(&self, address: u64) -> Option<Symbol>;

    /// The function of a frame of a call stack. A function that ends in a call that never returns
    /// has no instruction at the address that the call would return to.
    fn frame(&self, address: u64) -> Option<Symbol> {
        self.symbol(address).or_else(|| {
            let call = self.symbol(address.checked_sub(1)?)?;
            Some(Symbol {
                offset: call.offset + 1,
                ..call
            })
        })
    }

    /// The function of a user program that has the address, by the program's file name, cut off
    /// after 15 bytes.
    fn user_symbol(&self, program: &str, address: u64) -> Option<Symbol> {
        let _ = (program, address);
        None
    }

    /// The function of a frame of a user program's call stack, by the program's file name, cut off
    /// after 15 bytes.
    fn user_frame(&self, program: &str, address: u64) -> Option<Symbol> {
        let _ = (program, address);
        None
    }
}

/// Why a value cannot be had, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    pub reason: String,
    /// A next step, for example lines at which the value is there. Empty if there is none.
    pub help: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        if !self.help.is_empty() {
            write!(f, "; {}", self.help)?;
        }
        Ok(())
    }
}

impl core::error::Error for Unavailable {}

/// A value at a place: its type, and where its bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    pub type_id: TypeId,
    /// The pieces from its first byte on. Together they have as many bytes as the type.
    pub pieces: Vec<Piece>,
}

/// Some bytes of a value. `Of` is how numbers are described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece<Of = Expression> {
    pub bytes: u32,
    pub source: Source<Of>,
}

/// Where bytes of a value are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source<Of = Expression> {
    /// The bytes in memory from that address on.
    Memory(Of),
    /// The low bytes of a number.
    Value(Of),
    /// Nowhere: the compiler left it out, or they are padding.
    Missing,
}

/// A number that is computed where the probe is. Arithmetic wraps at 64 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    Constant(u64),
    /// A register at the probe; for a return, at the return.
    Register(Register),
    /// The register when the function was entered.
    AtEntry(Register),
    /// This many bytes (1, 2, 4 or 8) of memory, with zeros above.
    Load {
        address: Box<Expression>,
        bytes: u8,
    },
    Binary(Operation, Box<Expression>, Box<Expression>),
}

/// An operation on two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Add,
    Subtract,
    Multiply,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    ShiftRightSigned,
}

/// A type that implements the trait of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Implementor {
    /// The address of the table of methods that pointers to such an object have.
    pub table: u64,
    pub type_id: TypeId,
    /// The name as in the source, for example `Square`.
    pub name: String,
    /// Values of the type lie at multiples of so many bytes.
    pub align: u64,
}

/// The number of a type in one [`Kernel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(pub u64);

/// A type of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// `()`, `!`, and other types without bytes.
    Unit,
    Integer {
        bytes: u8,
        signed: bool,
    },
    Boolean,
    Character,
    Float {
        bytes: u8,
    },
    /// A thin reference, raw pointer or `Box`.
    Pointer {
        /// The name as in the source, for example `&mut Task`.
        name: String,
        to: TypeId,
    },
    /// `&[T]`: an address and a number of elements, 8 bytes each.
    Slice {
        of: TypeId,
    },
    /// `&str`: an address and a number of bytes, 8 bytes each.
    Str,
    Array {
        of: TypeId,
        count: u64,
    },
    /// Elements, or the bytes of a text, at the end of a value. How many there are is said by the
    /// pointer that leads to the value, not by the type.
    Tail {
        of: TypeId,
        is_text: bool,
    },
    /// Tuples (fields `0`, `1` …) and closures, too.
    Struct(Struct),
    Enum(Enum),
    /// A type that is not described further.
    Opaque {
        name: String,
        bytes: u64,
    },
}

impl Type {
    /// The same type with other numbers for the types in it.
    #[must_use]
    pub fn renumbered(&self, number: impl Fn(TypeId) -> TypeId) -> Self {
        let fields = |fields: &[Field]| {
            let field = |field: &Field| Field {
                type_id: number(field.type_id),
                ..field.clone()
            };
            fields.iter().map(field).collect()
        };
        match self {
            Self::Pointer { name, to } => Self::Pointer {
                name: name.clone(),
                to: number(*to),
            },
            Self::Slice { of } => Self::Slice { of: number(*of) },
            Self::Array { of, count } => Self::Array {
                of: number(*of),
                count: *count,
            },
            Self::Tail { of, is_text } => Self::Tail {
                of: number(*of),
                is_text: *is_text,
            },
            Self::Struct(of) => Self::Struct(Struct {
                fields: fields(&of.fields),
                parameters: of.parameters.iter().map(|id| number(*id)).collect(),
                ..of.clone()
            }),
            Self::Enum(of) => Self::Enum(Enum {
                variants: of
                    .variants
                    .iter()
                    .map(|variant| Variant {
                        fields: fields(&variant.fields),
                        ..variant.clone()
                    })
                    .collect(),
                ..of.clone()
            }),
            Self::Unit
            | Self::Integer { .. }
            | Self::Boolean
            | Self::Character
            | Self::Float { .. }
            | Self::Str
            | Self::Opaque { .. } => self.clone(),
        }
    }
}

/// Fields at offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Struct {
    /// The name as in the source, for example `Vec<u8>`; a tuple's is `(u8, u16)`.
    pub name: String,
    pub bytes: u64,
    pub fields: Vec<Field>,
    /// The types in angle brackets after its name.
    pub parameters: Vec<TypeId>,
    /// Whose it is.
    pub origin: Origin,
}

/// Whose a structure or an enum is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The traced kernel's.
    Source,
    /// The standard library's, or hashbrown's.
    Library,
    /// A union: nothing says which of its fields it has.
    Union,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    /// Offset in bytes.
    pub offset: u64,
    pub type_id: TypeId,
}

/// Variants, told apart by a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enum {
    pub name: String,
    pub bytes: u64,
    /// None where there is one variant only.
    pub tag: Option<Tag>,
    pub variants: Vec<Variant>,
    pub origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Offset in bytes.
    pub offset: u64,
    /// 1, 2, 4, 8 or 16. The upper half of one of 16 is zero for each value that a variant names.
    pub bytes: u8,
    /// Whether discriminants may be negative.
    pub signed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    pub name: String,
    /// The tag's value, with zeros above the tag's bytes. None marks the variant of all values that
    /// no other one has: the one with data, where a niche is the tag.
    pub tag: Option<u128>,
    /// Its fields, with offsets from the beginning of the enum.
    pub fields: Vec<Field>,
}
