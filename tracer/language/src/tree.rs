//! The content of a text: clauses, statements and expressions, each with its place in the text.
//!
//! TREE-1. A node's span is the part of the text that makes it, without blanks around it. The text
//!     of an expression's span, read alone, makes the same expression, unless it is a type. Of a
//!     macro's body, nodes have the places where they stand in it.
//! TREE-2. No expression is higher than [`crate::MAX_DEPTH`], and blocks and expressions together
//!     are nested at most that deep, so whatever walks a tree may recurse.
//! TREE-3. Positional parameters are gone: `$1` is the integer or the string that was given, `$#`
//!     the number of them.

use alloc::{boxed::Box, string::String, vec::Vec};
use core::{fmt, ops::Range};

/// Bytes of the text.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Span {
    pub start: usize,
    pub end: usize,
}

impl Span {
    pub const fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    /// The span from the beginning of this one to the end of the other one.
    pub const fn to(self, last: Self) -> Self {
        Self::new(self.start, last.end)
    }

    pub const fn range(self) -> Range<usize> {
        self.start..self.end
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}..{}", self.start, self.end)
    }
}

/// A word of the text: a variable's name without its sign, a field, a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub text: String,
    pub span: Span,
}

/// A whole program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// `config = { name = value; … }`.
    pub settings: Vec<Setting>,
    pub maps: Vec<MapDeclaration>,
    pub clauses: Vec<Clause>,
}

/// `name = value`. What there is to set, only the compiler knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub name: Name,
    /// A number, word or text, without its quotes.
    pub value: Name,
}

/// `let @name = kind(keys);`. What kinds there are, only the compiler knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapDeclaration {
    pub name: Name,
    pub kind: Name,
    /// The most keys that it has.
    pub keys: u64,
    pub span: Span,
}

/// `PROBES /PREDICATE/ { BODY }`, and for sessions `return /PREDICATE/ { BODY }` after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clause {
    /// The probes, at least one. All of them are sessions, or none.
    pub probes: Vec<Probe>,
    pub predicate: Option<Expression>,
    pub body: Block,
    /// The second part of a session; other clauses have none. It runs for the calls whose predicate
    /// held at the entry; the variables of the body live on in it.
    pub on_return: Option<ReturnPart>,
    pub span: Span,
}

/// See [`Clause::on_return`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReturnPart {
    pub predicate: Option<Expression>,
    pub body: Block,
    pub span: Span,
}

/// A place or a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    pub kind: ProbeKind,
    pub span: Span,
}

/// Patterns are as `trace_interface::Kernel` takes them: paths or their last segments, with `*`
/// and `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// `kprobe:PATTERN+OFFSET`: at an instruction, the first one if there is no offset.
    Entry { function: Name, offset: u64 },
    /// `kretprobe:PATTERN`: when a call returns.
    Return { function: Name },
    /// `session:PATTERN`: at the entry and the return of a call.
    Session { function: Name },
    /// `inline:PATTERN`: where a copy of the function begins that the compiler inlined.
    Inlined { function: Name },
    /// `line:FILE:N`: where code of that line begins.
    Line { file: Name, line: u32 },
    /// `insn:cli`: each instruction of that name, in small letters; or of that text, if the pattern
    /// has a blank: `insn:"inc dword ptr*"`.
    Instruction { pattern: Name },
    /// `tracepoint:GROUP:EVENT`, each with `*` and `?`.
    Tracepoint { group: Name, event: Name },
    /// `interval:s:1`: on one CPU, at this interval of one nanosecond or more.
    Interval { nanoseconds: u64 },
    /// `profile:hz:99`: on each CPU, at this interval of one nanosecond or more.
    Profile { nanoseconds: u64 },
    /// `watch:STATIC.FIELD:rw`, `watch:FUNCTION(args.NAME.FIELD):rw`,
    /// `watchpoint:ADDRESS:LENGTH:rw` or `watchpoint:FUNCTION+argN:LENGTH:rw`: after an instruction
    /// that has touched the memory. With a path before the static or the address, it is memory of
    /// the processes that run that program.
    Watch {
        program: Option<Name>,
        what: Watched,
        access: Access,
    },
    /// `uprobe:PATH:FUNCTION+OFFSET` and `uretprobe:PATH:FUNCTION`: in a program of the machine.
    User {
        path: Name,
        place: UserPlace,
        returns: bool,
    },
    /// `usdt:PATH:PROVIDER:NAME`: at the static marks that two patterns match.
    Mark {
        path: Name,
        provider: Name,
        name: Name,
    },
    /// `begin`: before anything is attached.
    Begin,
    /// `end`: when everything is detached.
    End,
}

/// A place in a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserPlace {
    /// So many bytes after the start of the functions of a pattern.
    Function { function: Name, offset: u64 },
    /// So many bytes after the start of its file.
    Offset(u64),
}

/// Which instructions a `watch` is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `w`: those that write the memory.
    Write,
    /// `rw`: those that read or write it.
    ReadWrite,
    /// `x`: the one that is there, before it.
    Execute,
}

/// The memory that a `watch` is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// So many bytes from there on.
    Memory { address: u64, bytes: u64 },
    /// A static, or a field of one, as an expression names it.
    Static(Name),
    /// What the last call of a function leads to.
    OfCall(OfCall),
}

/// What an expression names at a function's entry, or with `bytes` so many from the address that
/// the expression is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfCall {
    pub function: Name,
    pub memory: Name,
    pub bytes: Option<u64>,
}

/// `{ … }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub statements: Vec<Statement>,
    pub span: Span,
}

/// A statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    pub kind: StatementKind,
    pub span: Span,
}

/// See [`Statement`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatementKind {
    /// `target = value`, or `target op= value`.
    Assign {
        target: Target,
        operation: Option<Binary>,
        value: Expression,
    },
    /// `let $variable: to = value`: a variable of this block, which holds values of that type only.
    Let {
        variable: Name,
        to: Option<TypeName>,
        value: Option<Expression>,
    },
    /// A call for its effect, `++`, or a value that is thrown away.
    Expression(Expression),
    If {
        condition: Expression,
        then: Block,
        /// The block of `else`; for `else if`, a block with that one statement.
        otherwise: Option<Block>,
    },
    /// `unroll (count) { … }`.
    Unroll {
        count: u64,
        body: Block,
    },
    /// `for ($variable : from..to) { … }`: `to` is not reached.
    For {
        variable: Name,
        from: Expression,
        to: Expression,
        body: Block,
    },
    /// `for ($variable : @map) { … }`: the variable is a tuple of a key and its value.
    ForEach {
        variable: Name,
        map: Name,
        body: Block,
    },
    While {
        condition: Expression,
        body: Block,
    },
    /// `match value { PATTERN => { … }, _ => { … } }`: the first arm that fits.
    Match {
        value: Expression,
        arms: Vec<Arm>,
    },
    /// Ends this run of the clause.
    Return(Option<Expression>),
    Break,
    Continue,
}

/// A place that can be assigned to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Variable(Name),
    Map(Map),
}

/// `@name[key, key]`. The name of `@` is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// Its span includes the sign.
    pub name: Name,
    pub keys: Vec<Expression>,
    pub span: Span,
}

/// `PATTERN | PATTERN => { … }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arm {
    /// The patterns, at least one. If there are several, none binds a variable.
    pub patterns: Vec<Pattern>,
    pub body: Block,
    pub span: Span,
}

/// A form that a value is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    pub kind: PatternKind,
    pub span: Span,
}

/// See [`Pattern`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatternKind {
    /// `_`.
    Any,
    /// Two's complement, as [`ExpressionKind::Integer`].
    Integer(u64),
    String(String),
    Boolean(bool),
    /// `Ok`, `Shape::Circle($radius)`, `Moved { to: $place }`: a variant of an enum, and variables
    /// for some of its fields.
    Variant {
        /// The variant, with as much of its path as is written.
        name: Name,
        bindings: Vec<Binding>,
    },
}

/// A variable for a field of a variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// `0`, `1` and so on where the pattern has no names.
    pub field: Name,
    pub variable: Name,
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    pub kind: ExpressionKind,
    pub span: Span,
}

/// See [`Expression`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpressionKind {
    /// Durations in nanoseconds: `5ms` is 5000000.
    Integer(u64),
    Boolean(bool),
    String(String),
    /// `$name`.
    Variable(String),
    Map(Map),
    /// A word without a sign: a value that is always there (`pid`, `args`, `retval`), or the
    /// path of a static variable.
    Name(String),
    /// `name(argument, argument)`.
    Call {
        name: Name,
        arguments: Vec<Expression>,
    },
    /// `of.name`, `of->name`. For tuples the name is a number.
    Field {
        of: Box<Expression>,
        name: Name,
    },
    /// `of[index]`.
    Index {
        of: Box<Expression>,
        index: Box<Expression>,
    },
    Unary {
        operation: Unary,
        operand: Box<Expression>,
    },
    Binary {
        operation: Binary,
        left: Box<Expression>,
        right: Box<Expression>,
    },
    /// `condition ? then : otherwise`, and `if condition { … } else { … }` as a value.
    Ternary {
        condition: Box<Expression>,
        then: Box<Expression>,
        otherwise: Box<Expression>,
    },
    /// `(to)operand`.
    Cast {
        to: TypeName,
        operand: Box<Expression>,
    },
    /// A type as an argument: `sizeof(u8*)`, `sizeof(typeof($x))`. A word alone is a
    /// [`Self::Name`].
    Type(TypeName),
    /// `(a, b)`, `(a,)`, `()`.
    Tuple(Vec<Expression>),
    /// `value ?: otherwise`: the value, unless it is zero or empty.
    OrElse {
        value: Box<Expression>,
        otherwise: Box<Expression>,
    },
    /// `{ statement; value }`: the statements run, then the value is calculated. It has none if
    /// its last statement ends with `;`, or is no value.
    Block {
        body: Block,
        value: Option<Box<Expression>>,
    },
    /// `(a=1, b=2)`: at least one value, and no name twice.
    Record(Vec<(Name, Expression)>),
    /// `++target`, `target--` and so on.
    Step {
        target: Box<Target>,
        /// Up by one; down if not.
        up: bool,
        /// The value is that before the step; after it if not.
        value_before: bool,
    },
}

/// Operations on one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// `-`
    Negate,
    /// `!`: true of zero, false of the rest.
    Not,
    /// `~`: each bit.
    Complement,
    /// `*`: what a reference or pointer leads to.
    Dereference,
}

/// Operations on two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    Or,
    And,
    BitOr,
    BitXor,
    BitAnd,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    ShiftLeft,
    ShiftRight,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

impl Unary {
    pub const fn sign(self) -> &'static str {
        match self {
            Self::Negate => "-",
            Self::Not => "!",
            Self::Complement => "~",
            Self::Dereference => "*",
        }
    }
}

impl Binary {
    pub const ALL: [Self; 18] = [
        Self::Or,
        Self::And,
        Self::BitOr,
        Self::BitXor,
        Self::BitAnd,
        Self::Equal,
        Self::NotEqual,
        Self::Less,
        Self::LessEqual,
        Self::Greater,
        Self::GreaterEqual,
        Self::ShiftLeft,
        Self::ShiftRight,
        Self::Add,
        Self::Subtract,
        Self::Multiply,
        Self::Divide,
        Self::Remainder,
    ];

    pub const fn sign(self) -> &'static str {
        match self {
            Self::Or => "||",
            Self::And => "&&",
            Self::BitOr => "|",
            Self::BitXor => "^",
            Self::BitAnd => "&",
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessEqual => "<=",
            Self::Greater => ">",
            Self::GreaterEqual => ">=",
            Self::ShiftLeft => "<<",
            Self::ShiftRight => ">>",
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Remainder => "%",
        }
    }

    /// How strongly it binds, as in C. Operations that bind equally go from left to right.
    pub const fn precedence(self) -> u8 {
        match self {
            Self::Or => 0,
            Self::And => 1,
            Self::BitOr => 2,
            Self::BitXor => 3,
            Self::BitAnd => 4,
            Self::Equal | Self::NotEqual => 5,
            Self::Less | Self::LessEqual | Self::Greater | Self::GreaterEqual => 6,
            Self::ShiftLeft | Self::ShiftRight => 7,
            Self::Add | Self::Subtract => 8,
            Self::Multiply | Self::Divide | Self::Remainder => 9,
        }
    }

    /// Whether it compares its sides.
    pub const fn is_comparison(self) -> bool {
        matches!(
            self,
            Self::Equal
                | Self::NotEqual
                | Self::Less
                | Self::LessEqual
                | Self::Greater
                | Self::GreaterEqual
        )
    }

    /// Whether there is `target op= value`.
    pub const fn can_assign(self) -> bool {
        !self.is_comparison() && !matches!(self, Self::Or | Self::And)
    }
}

/// A type, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeName {
    pub kind: TypeKind,
    pub span: Span,
}

/// See [`TypeName`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypeKind {
    /// `u8`, `uint8`, `kernel::fs::File`, `Option<&str>`: with a blank after each comma and none
    /// elsewhere, except for those of `dyn Trait` and the like.
    Named(String),
    /// `&T`, `&mut T`, `*const T`, `*mut T`, and C's `T *`.
    Pointer(Box<TypeName>),
    /// `[T]`, and C's `T[]`.
    Slice(Box<TypeName>),
    /// `[T; count]`, and C's `T[count]`.
    Array { of: Box<TypeName>, count: u64 },
    /// `typeof(value)`: that of a value, which is not calculated. Of `typeof(TYPE)` this is the
    /// type itself; of a word alone only the compiler knows what it is.
    Of(Box<Expression>),
}
