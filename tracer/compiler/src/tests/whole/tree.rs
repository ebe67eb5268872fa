//! The tree of a random program, and its text.
//!
//! A tree says what its parts are: each expression has its type, each variable its name and number.
//! So neither the text nor the meaning has to find out anything about another part.

use std::fmt::Write as _;

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
}

impl Gather {
    /// Whether it is no value in expressions.
    pub(super) fn is_only_printed(self) -> bool {
        matches!(self, Self::Stats | Self::Hist(_) | Self::Lhist(..))
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
        self.of.is_number() || self.gather.is_some()
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
    Byte(Box<Expr>, usize),
    Length(Box<Expr>),
    /// Whether the texts begin with the same bytes: 0.
    Begins(Box<Expr>, String, usize),
    Contains(Box<Expr>, String),
    Find(Box<Expr>, String),
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
        format!("%{flags}{width}{precision}{length}{letter}")
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
    Interval,
}

#[derive(Clone, Debug)]
pub(super) struct Clause {
    pub(super) place: Place,
    pub(super) condition: Option<Expr>,
    pub(super) body: Vec<Statement>,
    /// What is done at the return of a session.
    pub(super) at_return: Vec<Statement>,
}

#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) most_keys: Option<usize>,
    pub(super) maps: Vec<Map>,
    pub(super) macros: Vec<Macro>,
    pub(super) clauses: Vec<Clause>,
    /// At a place that is never hit: it tells the types of the maps.
    pub(super) typing: Vec<Statement>,
}

fn entry(entry: &Entry) -> String {
    match (entry.keys.is_empty(), entry.as_tuple) {
        (true, _) => entry.map.name.clone(),
        (false, true) => format!("{}[({})]", entry.map.name, list(&entry.keys)),
        (false, false) => format!("{}[{}]", entry.map.name, list(&entry.keys)),
    }
}

/// A map and a key as two arguments of a call.
fn arguments(entry: &Entry) -> String {
    match &entry.keys[..] {
        [key] => format!("{}, {}", entry.map.name, expr(key)),
        keys => format!("{}, ({})", entry.map.name, list(keys)),
    }
}

fn list(values: &[Expr]) -> String {
    let texts: Vec<String> = values.iter().map(expr).collect();
    texts.join(", ")
}

fn step(name: &str, is_up: bool, is_before: bool) -> String {
    let sign = if is_up { "++" } else { "--" };
    match is_before {
        true => format!("{sign}{name}"),
        false => format!("{name}{sign}"),
    }
}

pub(super) fn expr(value: &Expr) -> String {
    match &value.kind {
        Kind::Number(number) if *number < 0 => format!("({number})"),
        Kind::Number(number) => number.to_string(),
        Kind::Truth(is) => is.to_string(),
        Kind::Word(word) => format!("{word:?}"),
        Kind::Joined(a, b) => format!("({a:?} + {b:?})"),
        Kind::Comm => "comm".into(),
        Kind::TextAt(number, None) => format!("str(arg{number})"),
        Kind::TextAt(number, Some(most)) => format!("str(arg{number}, {most})"),
        Kind::Argument(number) => format!("arg{number}"),
        Kind::Variable(variable) => variable.name.clone(),
        Kind::Read(at) => entry(at),
        Kind::Unary(op, a) => format!("{op}({})", expr(a)),
        Kind::Binary(op, a, b) | Kind::Compare(op, a, b) => {
            format!("({} {op} {})", expr(a), expr(b))
        }
        Kind::Choice(c, a, b) => format!("({} ? {} : {})", expr(c), expr(a), expr(b)),
        Kind::IfElse(c, a, b) => {
            format!(
                "(if ({}) {{ {} }} else {{ {} }})",
                expr(c),
                expr(a),
                expr(b)
            )
        }
        Kind::Or(a, b) => format!("({} ?: {})", expr(a), expr(b)),
        Kind::Cast(to, a) => format!("({})({})", to.name(), expr(a)),
        Kind::CastTruth(a) => format!("(bool)({})", expr(a)),
        Kind::Tuple(parts) if parts.len() == 1 => format!("({},)", expr(&parts[0])),
        Kind::Tuple(parts) => format!("({})", list(parts)),
        Kind::Record(fields) => {
            let texts: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{name}={}", expr(value)))
                .collect();
            format!("({})", texts.join(", "))
        }
        Kind::Part(of, number) => format!("{}.{number}", expr(of)),
        Kind::PartAt(of, number) => format!("{}[{number}]", expr(of)),
        Kind::Field(of, name) => format!("{}.{name}", expr(of)),
        Kind::Array(of, count, number) => format!("({}[{count}])({})", of.name(), expr(number)),
        Kind::Element(of, count, index) => format!("{}[({}) % {count}]", expr(of), expr(index)),
        Kind::Byte(of, index) => format!("(uint64){}[{index}]", expr(of)),
        Kind::Length(of) => format!("(uint64)strlen({})", expr(of)),
        Kind::Begins(of, word, bytes) => {
            format!("(strncmp({}, {word:?}, {bytes}) == 0)", expr(of))
        }
        Kind::Contains(of, word) => format!("(bool)strcontains({}, {word:?})", expr(of)),
        Kind::Find(of, word) => format!("(int64)strstr({}, {word:?})", expr(of)),
        Kind::HasKey(at) => format!("(bool)has_key({})", arguments(at)),
        Kind::Delete(at) => format!("(bool)delete({})", arguments(at)),
        Kind::Keys(map) => format!("(uint64)len({})", map.name),
        Kind::Step(variable, is_up, is_before) => step(&variable.name, *is_up, *is_before),
        Kind::StepAt(at, is_up, is_before) => step(&entry(at), *is_up, *is_before),
        Kind::Block(body, value) => format!("{{ {}{} }}", block(body), expr(value)),
        Kind::Parameter(number) => format!("p{number}"),
        Kind::Macro(number, given) => {
            let texts: Vec<String> = given
                .iter()
                .map(|argument| match argument {
                    Argument::Map(map) => map.name.clone(),
                    Argument::Variable(variable) => variable.name.clone(),
                    Argument::Value(value) => expr(value),
                })
                .collect();
            format!("m{number}({})", texts.join(", "))
        }
    }
}

fn type_name(variable: &Variable) -> String {
    match (&variable.of, variable.cut) {
        (_, Some(cut)) => cut.name(),
        (Type::Signed, _) => "int64".into(),
        (Type::Unsigned, _) => "uint64".into(),
        (Type::Truth, _) => "bool".into(),
        (Type::Text, _) => "string".into(),
        (other, _) => unreachable!("{other:?} has no name"),
    }
}

fn declared(is: Let, variable: &Variable) -> String {
    match is {
        Let::No => variable.name.clone(),
        Let::Plain => format!("let {}", variable.name),
        Let::Typed => format!("let {}: {}", variable.name, type_name(variable)),
    }
}

pub(super) fn block(body: &[Statement]) -> String {
    let mut out = String::new();
    for each in body {
        out += &statement(each);
        out.push(' ');
    }
    out
}

fn statement(is: &Statement) -> String {
    match is {
        Statement::Assign(how, variable, value) => {
            format!("{} = {};", declared(*how, variable), expr(value))
        }
        Statement::Declare(how, variable) => format!("{};", declared(*how, variable)),
        Statement::Change(op, variable, value) => {
            format!("{} {op}= {};", variable.name, expr(value))
        }
        Statement::Put(at, value) => format!("{} = {};", entry(at), expr(value)),
        Statement::ChangeAt(op, at, value) => format!("{} {op}= {};", entry(at), expr(value)),
        Statement::Gather(at, gather, value) => {
            format!("{} = {};", entry(at), gather.call(&expr(value)))
        }
        Statement::Do(value) => format!("{};", expr(value)),
        Statement::If(condition, then, None) => {
            format!("if ({}) {{ {}}}", expr(condition), block(then))
        }
        Statement::If(condition, then, Some(otherwise)) => {
            format!(
                "if ({}) {{ {}}} else {{ {}}}",
                expr(condition),
                block(then),
                block(otherwise)
            )
        }
        Statement::Match(value, arms, otherwise) => {
            let mut out = format!("match {} {{ ", expr(value));
            for (pattern, body) in arms {
                let _ = write!(out, "{} => {{ {}}} ", expr(pattern), block(body));
            }
            let _ = write!(out, "_ => {{ {}}} }}", block(otherwise));
            out
        }
        Statement::Block(body) => format!("{{ {}}}", block(body)),
        Statement::Unroll(times, body) => format!("unroll ({times}) {{ {}}}", block(body)),
        Statement::For(variable, from, to, body) => format!(
            "for ({} : {}..{}) {{ {}}}",
            variable.name,
            expr(from),
            expr(to),
            block(body)
        ),
        Statement::While(counter, turns, condition, body) => format!(
            "{0} = (uint64)0; while ({0} < {turns} && {1}) {{ {0}++; {2}}}",
            counter.name,
            expr(condition),
            block(body)
        ),
        Statement::Each(pair, map, body) => {
            format!("for ({} : {}) {{ {}}}", pair.name, map.name, block(body))
        }
        Statement::Find(at, variable, then, otherwise) => format!(
            "if (find({}, {})) {{ {}}} else {{ {}}}",
            arguments(at),
            variable.name,
            block(then),
            block(otherwise)
        ),
        Statement::Break => "break;".into(),
        Statement::Continue => "continue;".into(),
        Statement::Return => "return;".into(),
        Statement::Print(value) => format!("print({});", expr(value)),
        Statement::Printf(parts, is_loose) => {
            let formats: Vec<String> = parts.iter().map(|(is, _)| is.text()).collect();
            let values = parts
                .iter()
                .flat_map(|(is, value)| is.star.iter().chain([value]));
            let values: Vec<String> = values.map(expr).collect();
            let mark = if *is_loose { "~" } else { "" };
            let values = values.join(", ");
            format!("printf(\"{mark}{}|\\n\", {values});", formats.join("|"))
        }
        Statement::PrintMap(map, None) => format!("print({});", map.name),
        Statement::PrintMap(map, Some((top, by))) => format!("print({}, {top}, {by});", map.name),
        Statement::PrintAt(at) => format!("print({});", entry(at)),
        Statement::Clear(map) => format!("clear({});", map.name),
        Statement::Zero(map) => format!("zero({});", map.name),
        Statement::DeleteAt(at, true) => format!("delete({});", entry(at)),
        Statement::DeleteAt(at, false) => format!("delete({});", arguments(at)),
        Statement::ClearAt(at) => format!("clear({});", entry(at)),
        Statement::ZeroAt(at) => format!("zero({});", entry(at)),
    }
}

impl Program {
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        if let Some(most) = self.most_keys {
            let _ = writeln!(out, "config = {{ max_map_keys = {most} }}");
        }
        for map in &self.maps {
            if let Some((kind, keys)) = map.declared {
                let _ = writeln!(out, "let {} = {kind}({keys});", map.name);
            }
        }
        for (number, each) in self.macros.iter().enumerate() {
            let names = each.parameters.iter().enumerate();
            let names: Vec<String> = names
                .map(|(number, parameter)| match parameter {
                    Parameter::Map(map) => map.name.clone(),
                    Parameter::Variable(variable) => variable.name.clone(),
                    Parameter::Value(_) => format!("p{number}"),
                })
                .collect();
            let names = names.join(", ");
            let (body, value) = (block(&each.body), expr(&each.value));
            let _ = writeln!(out, "macro m{number}({names}) {{ {body}{value} }}");
        }
        let _ = writeln!(out, "kprobe:vfs_open {{ {}}}", block(&self.typing));
        for clause in &self.clauses {
            out += match clause.place {
                Place::Write => "kprobe:vfs_write",
                Place::Read => "kprobe:vfs_read",
                Place::Both => "kprobe:vfs_write, kprobe:vfs_read",
                Place::Session => "session:vfs_write",
                Place::Interval => "interval:s:1",
            };
            if let Some(condition) = &clause.condition {
                let _ = write!(out, " /{}/", expr(condition));
            }
            let _ = write!(out, " {{ {}}}", block(&clause.body));
            if clause.place == Place::Session {
                let _ = write!(out, " return {{ {}}}", block(&clause.at_return));
            }
            out.push('\n');
        }
        out
    }
}
