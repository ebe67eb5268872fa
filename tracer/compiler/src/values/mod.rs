//! What an expression is: its value, and what is to be calculated for it.
//!
//! ```text
//!   Expression ─ words, builtin, field, variable, map … ─► Val ─► program: calculates, stores it
//! ```
//!
//! Nothing here emits an instruction, and nothing here knows of instructions. A value that cannot
//! be described by itself, such as one of two texts, gets a place in the stack, and is noted as a
//! [`Copy`](struct@Copy) that the program makes first. Keys of maps and pairs of texts are noted
//! here, too, and a [`Number`] names them by their place in the list.
//!
//! COPIES-1. Whoever evaluates an expression makes the copies that were noted before it uses the
//!     value: see `program::Code`.

mod arithmetic;
pub(crate) mod builtin;
pub(crate) mod composite;
mod expression;
mod field;
mod index;
mod library;
pub(crate) mod like;
pub(crate) mod literal;
mod map;
mod named;
pub(crate) mod pointer;
mod scalar;
mod sizes;
mod text;
mod typeinfo;
mod variable;
pub(crate) mod words;

use alloc::{boxed::Box, rc::Rc, string::String, vec::Vec};

use bpf::Reg;
use trace_interface::{
    script::{WatchedAccess, WatchedAt},
    shape::Shape,
    symbols::{Mark, Type, TypeId},
};
use trace_language::tree::Span;

use crate::{
    memory::{Memory, Place},
    number::{Counted, Kind, Number, Space, Test},
    object::{At, Object},
    sources::EventSource,
    tables::{Made, Tables},
    types::{Types, shape::Room},
};

/// Bytes of a task's name.
pub(crate) const COMM_BYTES: u32 = 16;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Val {
    Number(Counted),
    /// A text of the program.
    Literal(String),
    /// The task's name.
    Comm,
    /// A text in memory that ends with a NUL.
    Text {
        address: Number,
        most: u32,
        /// A length that is not known before the hit, and no byte past it is read.
        limit: Option<Number>,
        present: Test,
    },
    /// Bytes in memory.
    Bytes {
        space: Space,
        address: Number,
        length: Number,
        most: u32,
    },
    /// A value of the traced kernel.
    Object(Object),
    /// A value that the program has stored.
    Stored {
        place: Place,
        shape: Shape,
    },
    /// A value in a map that is no number. The key is stored each time.
    Element {
        map: u32,
        key: usize,
        shape: Shape,
    },
    Tuple(Vec<Val>),
    Record(Vec<(Rc<str>, Val)>),
}

impl Val {
    pub(crate) fn number(number: Number, kind: Kind) -> Self {
        Self::Number(Counted {
            number,
            kind,
            present: Test::Constant(true),
        })
    }

    pub(crate) fn is_text(&self) -> bool {
        match self {
            Self::Literal(_) | Self::Comm | Self::Text { .. } => true,
            Self::Stored { shape, .. } | Self::Element { shape, .. } => shape.is_text(),
            _ => false,
        }
    }

    /// Whether it is there at all.
    pub(crate) fn present(&self) -> Test {
        match self {
            Self::Number(counted) => counted.present.clone(),
            Self::Object(object) => object.present.clone(),
            Self::Text { present, .. } => present.clone(),
            Self::Tuple(items) => items
                .iter()
                .map(Self::present)
                .fold(Test::Constant(true), Test::and),
            Self::Record(fields) => fields
                .iter()
                .map(|(_, value)| value.present())
                .fold(Test::Constant(true), Test::and),
            _ => Test::Constant(true),
        }
    }
}

/// The kind of place that a program runs at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SiteKind {
    /// The first instruction of a function.
    Entry,
    /// Another instruction.
    Inside,
    Return,
    /// The entry of a call whose return is handled, too.
    SessionEntry,
    Begin,
    End,
    Interval,
    Profile,
    /// After an instruction that has touched this memory.
    Watch(Watched),
    /// In a program of user mode.
    User(UserMoment),
}

/// When the program of a place in user mode runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserMoment {
    /// At the first instruction of a function.
    Entry,
    /// At another instruction, or one of which that is not known.
    Inside,
    /// When a function has returned.
    Return,
}

/// The memory of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watched {
    /// Whose memory it is.
    pub(crate) space: Space,
    pub(crate) at: WatchedAt,
    pub(crate) bytes: u32,
    pub(crate) access: WatchedAccess,
    /// The type of what is there, if the text has named it.
    pub(crate) type_id: Option<TypeId>,
}

/// Where a program runs, and how it is made.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) kind: SiteKind,
    pub(crate) address: Option<u64>,
    /// The number of the probe's name.
    pub(crate) probe: u16,
    pub(crate) forgetful: bool,
    /// The most turns of a loop whose end the text does not tell.
    pub(crate) turns: u32,
    /// Whose fields `args` has; else it has the arguments of the source.
    pub(crate) source: Option<Rc<EventSource>>,
    /// How many of the kernel's words have a meaning, if there are so many: inside of a word those
    /// before it.
    pub(crate) words: usize,
    /// The path of the function in a program of user mode, if it is known.
    pub(crate) function: Option<String>,
    /// The static mark that it is at.
    pub(crate) mark: Option<Rc<Mark>>,
    /// The pattern of the inlined functions of which a copy begins here, if the text asks for
    /// those.
    pub(crate) copy: Option<Rc<str>>,
}

impl Site {
    /// Whose memory the values of the probed code are in.
    pub(crate) fn space(&self) -> Space {
        match self.kind {
            SiteKind::User(_) => Space::User,
            SiteKind::Watch(watched) => watched.space,
            _ => Space::Kernel,
        }
    }

    /// Whose memory a number is an address of, if it is one: a number that does not say, of the
    /// probed code.
    pub(crate) fn space_of(&self, kind: &Kind) -> Space {
        match kind {
            Kind::Pointer { space, .. } => *space,
            _ => self.space(),
        }
    }

    /// The moment of a place in a program of user mode.
    pub(crate) fn user_moment(&self) -> Option<UserMoment> {
        match self.kind {
            SiteKind::User(moment) => Some(moment),
            _ => None,
        }
    }
}

/// The data that the entry of a call keeps for its return.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) kept: Vec<(Number, i16)>,
    bytes: u32,
}

impl Shared {
    pub(crate) fn bytes(&self) -> u32 {
        self.bytes
    }

    pub(crate) fn take(&mut self, bytes: u32) -> i16 {
        let offset = self.bytes.min(8192) as i16;
        self.bytes = self.bytes.saturating_add(bytes.next_multiple_of(8));
        offset
    }

    /// Where a number of the entry is kept.
    pub(crate) fn keep(&mut self, number: Number) -> i16 {
        if let Some((_, offset)) = self.kept.iter().find(|(known, _)| *known == number) {
            return *offset;
        }
        let offset = self.take(8);
        self.kept.push((number, offset));
        offset
    }
}

/// A variable of the program.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) place: Place,
    pub(crate) holds: Holds,
    /// Where the text makes it.
    pub(crate) made_at: usize,
    /// The type of which it was declared, if its values can be too large for that.
    pub(crate) limit: Option<like::Like>,
    pub(crate) home: Home,
}

/// The block that made a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// The one that it belongs to.
    Own,
    /// One at this depth inside of that, which is not left yet.
    Inner(usize),
    /// One that is left.
    Left,
}

/// Leaves a block; its own variables.
pub(crate) fn close_scope(values: &mut Values<'_, '_>) -> Option<Vec<Variable>> {
    let depth = values.scopes.len();
    for variable in values.scopes.iter_mut().flatten() {
        if variable.home == Home::Inner(depth) {
            variable.home = Home::Left;
        }
    }
    values.scopes.pop()
}

impl Variable {
    pub(crate) fn is_hidden(&self) -> bool {
        is_hidden(&self.name)
    }
}

/// Which variable it is, each time that the program is compiled. Calls of a macro make several at
/// one place of the text, and so do the parts of a statement.
pub(crate) fn identity(values: &Values<'_, '_>, name: &str, made_at: usize) -> Made {
    (name.into(), made_at, values.site.address)
}

/// Whether the compiler made a variable for a part of a statement. None of a text is called so.
pub(crate) fn is_hidden(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_digit())
}

/// The content of a variable.
#[derive(Clone, Debug)]
pub(crate) enum Holds {
    /// Nothing yet: `let $name;` says no type, so the first assignment does.
    Nothing,
    Number(Kind),
    Stored(Shape),
    Object(Object),
}

/// Something that the program puts into its stack before it uses the value of an expression.
pub(crate) struct Copy {
    pub(crate) of: Copied,
    pub(crate) to: Place,
    pub(crate) shape: Shape,
    pub(crate) span: Span,
}

/// See [`Copy`](struct@Copy).
pub(crate) enum Copied {
    Value(Val),
    Either(Box<Either>),
}

/// One of two texts.
pub(crate) struct Either {
    pub(crate) test: Test,
    pub(crate) then: Val,
    pub(crate) otherwise: Val,
}

/// See the module's text.
pub(crate) struct Values<'c, 'a> {
    pub(crate) tables: &'c mut Tables<'a>,
    pub(crate) site: Site,
    pub(crate) shared: &'c mut Shared,
    pub(crate) memory: Memory,
    pub(crate) depends_on_place: bool,
    /// The innermost last.
    pub(crate) scopes: Vec<Vec<Variable>>,
    /// Keys and texts that numbers name by their place here.
    pub(crate) keys: Vec<(u32, Vec<Val>, Span)>,
    pub(crate) texts: Vec<(Val, Val, (Span, Span))>,
    /// In the order in which they are made.
    pub(crate) copies: Vec<Copy>,
}

impl<'c, 'a> Values<'c, 'a> {
    pub(crate) fn new(tables: &'c mut Tables<'a>, site: Site, shared: &'c mut Shared) -> Self {
        Self {
            tables,
            site,
            shared,
            memory: Memory::default(),
            depends_on_place: false,
            scopes: alloc::vec![Vec::new()],
            keys: Vec::new(),
            texts: Vec::new(),
            copies: Vec::new(),
        }
    }

    pub(crate) fn types(&self) -> &Types<'a> {
        &self.tables.types
    }

    pub(crate) fn find(&self, name: &str) -> Option<Variable> {
        let mut scopes = self.scopes.iter().rev();
        scopes.find_map(|scope| scope.iter().rev().find(|known| known.name == name).cloned())
    }

    pub(crate) fn variable_names(&self) -> Vec<String> {
        let variables = self.scopes.iter().flatten();
        let named = variables.filter(|variable| !variable.is_hidden());
        named.map(|variable| variable.name.clone()).collect()
    }

    /// Room for a variable: it lives until the program ends, and begins with zero if some path may
    /// not set it.
    pub(crate) fn room(&mut self, bytes: u32, is_inner: bool) -> Place {
        if self.site.kind == SiteKind::SessionEntry {
            self.memory.shares = true;
            return Place {
                base: Reg::R9,
                offset: self.shared.take(bytes),
            };
        }
        match is_inner {
            true => self.memory.take_zero(bytes),
            false => self.memory.take_for_good(bytes),
        }
    }

    /// How a value is stored in a key, a map or a variable. `may_miss`: with a mark whether it is
    /// there.
    pub(crate) fn shape(&self, value: &Val, may_miss: bool) -> Shape {
        shape_in(self.types(), Room::Stack, value, may_miss)
    }

    /// A value as it is printed, and how it is stored for that: whole if it gets room, else as a
    /// number where it is one.
    pub(crate) fn printed(&mut self, value: Val, room: Option<Room>, span: Span) -> (Val, Shape) {
        let is_whole = match &value {
            Val::Object(object) => match &*self.types().describe(object.type_id) {
                Type::Pointer { .. } => room.is_some(),
                _ => matches!(object.at, At::Memory { .. }),
            },
            _ => false,
        };
        let value = match is_whole {
            true => value,
            false => self.simplified(value, span),
        };
        let shape = shape_in(self.types(), room.unwrap_or(Room::Record), &value, true);
        (value, shape)
    }

    pub(crate) fn is_text(&self, value: &Val) -> bool {
        match value {
            Val::Object(object) => self.types().is_text(object.type_id),
            other => other.is_text(),
        }
    }
}

/// How a value is stored in a room.
fn shape_in(types: &Types<'_>, room: Room, value: &Val, may_miss: bool) -> Shape {
    let (shape, present) = match value {
        Val::Number(Counted {
            kind: Kind::Literal,
            number,
            ..
        }) if number
            .constant()
            .is_some_and(|number| number.cast_signed() < 0) =>
        {
            return Shape::Signed(8);
        }
        Val::Number(counted) => (counted.kind.shape(), Some(&counted.present)),
        Val::Literal(text) => {
            return Shape::Text((text.len() as u32 + 1).next_multiple_of(8));
        }
        Val::Comm => return Shape::Text(COMM_BYTES),
        Val::Text { most, present, .. } => (Shape::Text(most.next_multiple_of(8)), Some(present)),
        Val::Bytes { most, .. } => return Shape::Bytes(*most),
        Val::Object(object) => (types.shape_of(object, room), Some(&object.present)),
        Val::Stored { shape, .. } | Val::Element { shape, .. } => return shape.clone(),
        Val::Tuple(items) => {
            return Shape::Tuple(
                items
                    .iter()
                    .map(|item| shape_in(types, room, item, may_miss))
                    .collect(),
            );
        }
        Val::Record(fields) => {
            let field = |(name, value): &(Rc<str>, Val)| {
                (name.clone(), shape_in(types, room, value, may_miss))
            };
            return Shape::Record(fields.iter().map(field).collect());
        }
    };
    match present {
        Some(Test::Constant(true)) | None => shape,
        Some(_) if may_miss => Shape::Maybe(alloc::boxed::Box::new(shape)),
        Some(_) => shape,
    }
}
