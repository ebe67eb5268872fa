//! The tree of a random program, and its text.
//!
//! A tree says what its parts are: each expression has its type, each variable its name and number.
//! So neither the text nor the meaning has to find out anything about another part.

mod text;

/// What a value is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Type {
    /// A number of the text, which takes the sign of what it meets.
    Literal,
    Signed,
    Unsigned,
    Truth,
    Text,
    Tuple(Vec<Type>),
    Record(Vec<(&'static str, Type)>),
    Array(Cut, usize),
    /// To numbers of that type.
    Pointer(Cut),
}

impl Type {
    pub(super) fn is_number(&self) -> bool {
        use Type::{Literal, Signed, Truth, Unsigned};
        matches!(self, Literal | Signed | Unsigned | Truth)
    }
}

/// A narrow type of integers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cut {
    pub(super) bits: u32,
    pub(super) is_signed: bool,
}

impl Cut {
    pub(super) fn name(self) -> String {
        format!("{}int{}", if self.is_signed { "" } else { "u" }, self.bits)
    }

    /// What such a number has of 64 bits.
    pub(super) fn of(self, number: u64) -> u64 {
        let up = number << (64 - self.bits);
        match self.is_signed {
            true => (up.cast_signed() >> (64 - self.bits)).cast_unsigned(),
            false => up >> (64 - self.bits),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub(super) id: usize,
    pub(super) name: String,
    pub(super) of: Type,
    /// The type that it is declared with, if that is narrower.
    pub(super) cut: Option<Cut>,
}

/// What a map gathers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Gather {
    Count,
    Sum,
    Min,
    Max,
    Avg,
    Stats,
    /// By powers of two, each in two to that power of parts.
    Hist(u32),
    /// From, to, and the step between.
    Lhist(i128, i128, i128),
    /// What of the values of an interval of 100 ms, of which there are 4.
    Series(&'static str),
}

impl Gather {
    /// Whether an entry has so few parts that a hit may take it away.
    pub(super) fn has_few_parts(self) -> bool {
        !matches!(self, Self::Hist(3..))
    }

    /// Whether it is no value in expressions.
    pub(super) fn is_only_printed(self) -> bool {
        use Gather::{Hist, Lhist, Series, Stats};
        matches!(self, Stats | Hist(_) | Lhist(..) | Series(_))
    }

    fn call(self, value: &str) -> String {
        match self {
            Self::Count => "count()".into(),
            Self::Sum => format!("sum({value})"),
            Self::Min => format!("min({value})"),
            Self::Max => format!("max({value})"),
            Self::Avg => format!("avg({value})"),
            Self::Stats => format!("stats({value})"),
            Self::Hist(0) => format!("hist({value})"),
            Self::Hist(bits) => format!("hist({value}, {bits})"),
            Self::Series("") => format!("tseries({value}, 100ms, 4)"),
            Self::Series(of) => format!("tseries({value}, 100ms, 4, {of:?})"),
            Self::Lhist(from, to, step) => format!("lhist({value}, {from}, {to}, {step})"),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Map {
    pub(super) id: usize,
    pub(super) name: String,
    pub(super) keys: Vec<Type>,
    /// The type of a value, or of what is gathered.
    pub(super) of: Type,
    pub(super) gather: Option<Gather>,
    /// The kind that it is declared with, and how many keys it has then.
    pub(super) declared: Option<(&'static str, usize)>,
}

impl Map {
    /// Whether its entries have an order: numbers are by their size.
    pub(super) fn is_ranked(&self) -> bool {
        match self.gather {
            Some(gather) => !matches!(gather, Gather::Series(_)),
            None => self.of.is_number(),
        }
    }
}

/// A map at a key.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) map: Map,
    pub(super) keys: Vec<Expr>,
    /// Several keys are written as one tuple.
    pub(super) as_tuple: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Expr {
    pub(super) of: Type,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Number(i128),
    Truth(bool),
    Word(String),
    /// Two texts of the program, joined.
    Joined(String, String),
    Comm,
    /// The text that an argument leads to, or so much of it.
    TextAt(usize, Option<usize>),
    Argument(usize),
    Variable(Variable),
    Read(Box<Entry>),
    Unary(&'static str, Box<Expr>),
    Binary(&'static str, Box<Expr>, Box<Expr>),
    /// `==` and so on, of any values of one type; `&&` and `||` of conditions.
    Compare(&'static str, Box<Expr>, Box<Expr>),
    Choice(Box<Expr>, Box<Expr>, Box<Expr>),
    /// The same in the words `if` and `else`.
    IfElse(Box<Expr>, Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Cast(Cut, Box<Expr>),
    CastTruth(Box<Expr>),
    Tuple(Vec<Expr>),
    Record(Vec<(&'static str, Expr)>),
    Part(Box<Expr>, usize),
    /// The same in brackets.
    PartAt(Box<Expr>, usize),
    Field(Box<Expr>, &'static str),
    Array(Cut, usize, Box<Expr>),
    /// An element, whose index is the remainder of the expression.
    Element(Box<Expr>, usize, Box<Expr>),
    /// The bytes of a number of so many bits in the other order.
    Swapped(u32, Box<Expr>),
    /// Whether it is an error that was made an address.
    IsError(Box<Expr>),
    /// So many bytes of a text.
    Start(Box<Expr>, usize),
    /// Whether one text of the program is before another one.
    Before(String, String),
    /// The number that an array is.
    OfArray(Box<Expr>),
    /// A text of the program as an array.
    TextArray(Cut, String),
    /// A number as one of the type that a variable is declared with.
    Like(Variable, Box<Expr>),
    /// Whether the hit is at that place, by a word.
    IsAt(&'static str, bool),
    /// So many bytes of the memory at an address, which are there; or of a text.
    Bytes(Box<Expr>, usize),
    /// As many bytes of the memory at an address as a number says.
    SomeBytes(Box<Expr>, Box<Expr>),
    /// The text that an argument leads to, up to a number of bytes that only the hit tells.
    TextUpTo(usize, Box<Expr>),
    /// A time of nanoseconds since the boot, by a format.
    Time(&'static str, Box<Expr>),
    /// The bytes of the type of a value, which is not calculated.
    SizeOf(Box<Expr>),
    /// A size or an offset of a type.
    OfType(&'static str, u64),
    /// One of two values by whether a third one, which is not calculated, is a text.
    ByType(Box<Expr>, Box<Expr>, Box<Expr>),
    Nanoseconds,
    /// An address as a pointer.
    ToPointer(Cut, Box<Expr>),
    /// A pointer and so many steps, by `+` or `-`.
    Moved(&'static str, Box<Expr>, Box<Expr>),
    /// The steps between two pointers.
    Steps(Box<Expr>, Box<Expr>),
    /// What a pointer leads to.
    At(Box<Expr>),
    /// The same with an index, which is the remainder of the expression.
    Indexed(Box<Expr>, Box<Expr>),
    /// Of the file at an address, or of the argument.
    OfFile(Option<Box<Expr>>, FileField),
    /// The arguments `count` and `delta`.
    Count,
    Delta,
    Retval,
    Tid,
    Cpu,
    Byte(Box<Expr>, usize),
    Length(Box<Expr>),
    /// Whether the texts begin with the same bytes: 0.
    Begins(Box<Expr>, String, usize),
    Contains(Box<Expr>, Box<Expr>),
    Find(Box<Expr>, Box<Expr>),
    HasKey(Box<Entry>),
    Delete(Box<Entry>),
    Keys(Map),
    /// Up or down, before or after its value is taken.
    Step(Variable, bool, bool),
    StepAt(Box<Entry>, bool, bool),
    Block(Vec<Statement>, Box<Expr>),
    /// An argument of the macro around.
    Parameter(usize),
    Macro(usize, Vec<Argument>),
}

/// What a file of the made-up kernel has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum FileField {
    Pos,
    Readable,
    Mode,
    Name,
    Number,
    Links,
}

impl FileField {
    fn name(self) -> &'static str {
        match self {
            Self::Pos => "pos",
            Self::Readable => "readable",
            Self::Mode => "mode",
            Self::Name => "name",
            Self::Number => "inode.number",
            Self::Links => "inode.links",
        }
    }
}

/// An enum of the made-up kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Variants {
    /// The argument `shape`.
    Shape,
    /// What `vfs_write` returns.
    Result,
}

impl Variants {
    fn value(self) -> &'static str {
        match self {
            Self::Shape => "args.shape",
            Self::Result => "retval",
        }
    }

    fn pattern(self, number: usize, names: &[Variable]) -> String {
        let name = |number: usize| &names[number].name;
        match (self, number) {
            (Self::Shape, 0) => "Point".into(),
            (Self::Shape, 1) => format!("Shape::Circle({})", name(0)),
            (Self::Shape, _) => format!("Box {{ width: {}, height: {} }}", name(0), name(1)),
            (Self::Result, 0) => format!("Ok({})", name(0)),
            (Self::Result, _) => format!("Err({})", name(0)),
        }
    }
}

/// A conversion of `printf`.
#[derive(Clone, Debug, Default)]
pub(super) struct Conversion {
    pub(super) flags: &'static str,
    pub(super) width: usize,
    /// The value that is its width, in place of that number.
    pub(super) star: Option<Expr>,
    pub(super) precision: Option<usize>,
    pub(super) length: &'static str,
    pub(super) letter: char,
    /// `x` or `h`: how bytes are shown.
    pub(super) dump: &'static str,
}

impl Conversion {
    pub(super) fn natural() -> Self {
        Self {
            letter: 's',
            ..Self::default()
        }
    }

    pub(super) fn is_of_numbers(&self) -> bool {
        "diuxXop".contains(self.letter)
    }

    fn text(&self) -> String {
        let width = match (&self.star, self.width) {
            (Some(_), _) => "*".into(),
            (None, 0) => String::new(),
            (None, width) => width.to_string(),
        };
        let precision = self.precision.map(|least| format!(".{least}"));
        let (flags, length, letter) = (self.flags, self.length, self.letter);
        let precision = precision.unwrap_or_default();
        format!("%{flags}{width}{precision}{length}{letter}{}", self.dump)
    }
}

#[derive(Clone, Debug)]
pub(super) enum Argument {
    Map(Map),
    Variable(Variable),
    Value(Expr),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Let {
    No,
    Plain,
    Typed,
}

#[derive(Clone, Debug)]
pub(super) enum Statement {
    Assign(Let, Variable, Expr),
    /// `let` without a value.
    Declare(Let, Variable),
    Change(&'static str, Variable, Expr),
    Put(Entry, Expr),
    ChangeAt(&'static str, Entry, Expr),
    Gather(Entry, Gather, Expr),
    Do(Expr),
    If(Expr, Vec<Statement>, Option<Vec<Statement>>),
    /// A value, arms with their numbers or texts, and what is done otherwise.
    Match(Expr, Vec<(Expr, Vec<Statement>)>, Vec<Statement>),
    /// An enum, and arms: a variant, the variables of its fields, and a body.
    Fields(
        Variants,
        Vec<(usize, Vec<Variable>, Vec<Statement>)>,
        Vec<Statement>,
    ),
    Block(Vec<Statement>),
    Unroll(u64, Vec<Statement>),
    For(Variable, Expr, Expr, Vec<Statement>),
    /// As long as the counter, which begins with zero, is less and the condition holds.
    While(Variable, u64, Expr, Vec<Statement>),
    Each(Variable, Map, Vec<Statement>),
    /// If the map has the key, its value goes into the variable.
    Find(Entry, Variable, Vec<Statement>, Vec<Statement>),
    Break,
    Continue,
    Return,
    Exit(Option<u8>),
    /// The texts of a list from there on, with something between them.
    Join(u64, Option<&'static str>),
    Print(Expr),
    Printf(Vec<(Conversion, Expr)>, bool),
    /// All of it, or so many of the largest, divided.
    PrintMap(Map, Option<(usize, u64)>),
    /// An entry of what is only printed.
    PrintAt(Entry),
    Clear(Map),
    Zero(Map),
    DeleteAt(Entry, bool),
    ClearAt(Entry),
    ZeroAt(Entry),
}

/// A macro: its parameters, its body, and what the body gives.
#[derive(Clone, Debug)]
pub(super) struct Macro {
    pub(super) parameters: Vec<Parameter>,
    pub(super) body: Vec<Statement>,
    pub(super) value: Expr,
}

#[derive(Clone, Debug)]
pub(super) enum Parameter {
    Map(Map),
    Variable(Variable),
    Value(Type),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    Write,
    Read,
    Both,
    Session,
    SessionRead,
    Return,
    Interval,
}

impl Place {
    /// Whether it is an entry and a return.
    pub(super) fn has_return(self) -> bool {
        matches!(self, Self::Session | Self::SessionRead)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Clause {
    pub(super) place: Place,
    pub(super) condition: Option<Expr>,
    pub(super) body: Vec<Statement>,
    /// What is done at the return of a session.
    pub(super) at_return: Vec<Statement>,
}

/// What a program says before all else.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settings {
    pub(super) most_keys: Option<usize>,
    /// The room of a text with its NUL.
    pub(super) most_text: Option<usize>,
    /// Its maps are not printed at the end.
    pub(super) hides_maps: bool,
}

impl Settings {
    fn text(self) -> String {
        let mut all = Vec::new();
        if let Some(most) = self.most_keys {
            all.push(format!("max_map_keys = {most}"));
        }
        if let Some(most) = self.most_text {
            all.push(format!("max_strlen = {most}"));
        }
        if self.hides_maps {
            all.push("print_maps_on_exit = false".into());
        }
        match all.is_empty() {
            true => String::new(),
            false => format!("config = {{ {} }}\n", all.join("; ")),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) settings: Settings,
    pub(super) maps: Vec<Map>,
    pub(super) macros: Vec<Macro>,
    pub(super) clauses: Vec<Clause>,
    /// At a place that is never hit: it tells the types of the maps.
    pub(super) typing: Vec<Statement>,
}
