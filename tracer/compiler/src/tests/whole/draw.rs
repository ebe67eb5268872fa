//! Draws random programs.
//!
//! Each expression is made for a type, and each variable and map keeps the type that it gets first,
//! so nearly all programs are taken. What the reference does not say is not drawn: which of two
//! steps in one expression comes first, a sum of numbers of the text only, an order of keys.

mod expressions;
mod statements;

use super::{
    super::arithmetic::Random,
    tree::{Cut, Entry, Expr, Gather, Kind, Macro, Map, Program, Statement, Type, Variable},
};

const WORDS: [&str; 12] = [
    "",
    "a",
    "b",
    "cat",
    "ca",
    "dog",
    "catalog",
    "a word",
    "exactly8",
    "nine more",
    "a text of some length",
    "sixteen letters!",
];
const OPERATORS: [&str; 10] = ["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"];
const COMPARISONS: [&str; 6] = ["<", "<=", ">", ">=", "==", "!="];
/// The argument that leads to a text.
pub(super) const TEXT_ARGUMENT: usize = 5;

/// What may stand where a statement is drawn.
#[derive(Clone, Copy)]
struct Site {
    /// How many more blocks may be in one another.
    depth: u32,
    in_loop: bool,
    may_return: bool,
    /// Whether loops over maps may stand there.
    over_maps: bool,
}

pub(super) struct Draw<'r> {
    random: &'r mut Random,
    maps: Vec<Map>,
    macros: Vec<Macro>,
    scopes: Vec<Vec<Variable>>,
    /// The scopes before this are out of sight.
    floor: usize,
    /// Variables that only their loop changes.
    fixed: Vec<usize>,
    /// How many variables there were.
    variables: usize,
    /// Whether maps are in sight, and arguments.
    has_maps: bool,
    has_arguments: bool,
    /// The types of the parameters of the macro around.
    parameters: Vec<Option<Type>>,
    /// How many more loops without an end in the text there may be.
    open_loops: u32,
    /// How many more statements may have blocks.
    room: u32,
}

fn cast(of: &Type, value: Expr) -> Expr {
    let is_signed = *of == Type::Signed;
    Expr {
        of: of.clone(),
        kind: Kind::Cast(
            Cut {
                bits: 64,
                is_signed,
            },
            Box::new(value),
        ),
    }
}

fn named(variable: &Variable) -> Expr {
    Expr {
        of: variable.of.clone(),
        kind: Kind::Variable(variable.clone()),
    }
}

fn number(value: i128) -> Expr {
    Expr {
        of: Type::Literal,
        kind: Kind::Number(value),
    }
}

impl<'r> Draw<'r> {
    pub(super) fn new(random: &'r mut Random) -> Self {
        // The verifier walks each of them for long.
        let open_loops = random.of(&[0, 0, 0, 1, 2]);
        Self {
            random,
            maps: Vec::new(),
            macros: Vec::new(),
            scopes: Vec::new(),
            floor: 0,
            fixed: Vec::new(),
            variables: 0,
            has_maps: true,
            has_arguments: true,
            parameters: Vec::new(),
            open_loops,
            room: 8,
        }
    }

    pub(super) fn program(mut self) -> Program {
        let most_keys = self.one_in(6).then(|| 3 + self.below(3));
        for id in 0..2 + self.below(4) {
            let map = self.map(id, most_keys.is_some());
            self.maps.push(map);
        }
        for _ in 0..self.below(3) {
            let made = self.a_macro();
            self.macros.push(made);
        }
        let clauses = 1 + self.below(3);
        let clauses = (0..clauses).map(|_| self.clause()).collect();
        let maps = self.maps.clone();
        let typing = maps.iter().flat_map(|map| self.typing(map)).collect();
        Program {
            most_keys,
            maps: self.maps,
            macros: self.macros,
            clauses,
            typing,
        }
    }

    fn below(&mut self, end: usize) -> usize {
        self.random.below(end as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn is(&mut self) -> bool {
        self.one_in(2)
    }

    fn cut(&mut self) -> Cut {
        Cut {
            bits: self.random.of(&[8, 16, 32]),
            is_signed: self.is(),
        }
    }

    fn number_type(&mut self) -> Type {
        if self.is() {
            Type::Signed
        } else {
            Type::Unsigned
        }
    }

    fn simple_type(&mut self) -> Type {
        match self.below(6) {
            0..=3 => self.number_type(),
            4 => Type::Truth,
            _ => Type::Text,
        }
    }

    fn a_type(&mut self, height: u32) -> Type {
        if height == 0 {
            return self.simple_type();
        }
        match self.below(12) {
            0 | 1 => {
                let parts = 1 + self.below(3);
                Type::Tuple((0..parts).map(|_| self.a_type(height - 1)).collect())
            }
            2 => {
                let names = &["a", "b", "c"][..1 + self.below(3)];
                let mut fields = Vec::new();
                for name in names {
                    fields.push((*name, self.a_type(height - 1)));
                }
                Type::Record(fields)
            }
            3 => {
                let cut = self.cut();
                Type::Array(cut, 64 / cut.bits as usize)
            }
            4 | 5 => Type::Text,
            _ => self.simple_type(),
        }
    }

    fn map(&mut self, id: usize, is_small: bool) -> Map {
        let gather = self.is().then(|| self.gather());
        let of = match gather {
            Some(Gather::Count) => Type::Unsigned,
            Some(_) => self.number_type(),
            None => self.a_type(2),
        };
        let keys = match gather.is_some() && is_small {
            true => vec![Type::Truth; self.below(2)],
            false => {
                let count = self.random.of(&[0, 1, 1, 2, 3]);
                (0..count).map(|_| self.key_type()).collect()
            }
        };
        Map {
            id,
            name: format!("@m{id}"),
            keys,
            of,
            gather,
            declared: self.declared(gather),
        }
    }

    fn gather(&mut self) -> Gather {
        use Gather::{Avg, Count, Hist, Lhist, Max, Min, Stats, Sum};
        let steps = [
            (-20, 100, 10),
            (0, 50, 7),
            (-3000, 3000, 1024),
            (-9, 1, 20),
            (1, 9, 1),
        ];
        let (from, to, step) = self.random.of(&steps);
        let hist = match self.below(6) {
            0 | 1 => Hist(1 + self.below(5) as u32),
            2 | 3 => Hist(0),
            _ => Lhist(from, to, step),
        };
        let others = [
            Count, Count, Sum, Sum, Min, Max, Avg, Avg, Stats, hist, hist,
        ];
        self.random.of(&others)
    }

    /// What is gathered on each CPU has room for all keys there, because a full one has others.
    fn declared(&mut self, gather: Option<Gather>) -> Option<(&'static str, usize)> {
        match (self.below(8), gather) {
            (0, None) => Some(("hash", 2 + self.below(5))),
            (1, None) => Some(("lruhash", 500)),
            (0, Some(Gather::Hist(_) | Gather::Lhist(..))) => None,
            (0, Some(_)) => Some(("percpuhash", 500)),
            _ => None,
        }
    }

    fn key_type(&mut self) -> Type {
        match self.below(8) {
            0 => {
                let parts = 2 + self.below(2);
                Type::Tuple((0..parts).map(|_| self.simple_type()).collect())
            }
            1 => Type::Record(vec![("n", self.number_type()), ("s", self.simple_type())]),
            _ => self.simple_type(),
        }
    }

    /// A first value of the type, which says what it is.
    fn definite(&mut self, of: &Type) -> Expr {
        let argument = Expr {
            of: Type::Unsigned,
            kind: Kind::Argument(0),
        };
        let kind = match of {
            Type::Literal | Type::Signed => return cast(&Type::Signed, argument),
            Type::Unsigned => return argument,
            Type::Truth => Kind::Compare(">", Box::new(argument), Box::new(number(1))),
            Type::Text => Kind::Word("first".into()),
            Type::Tuple(parts) => Kind::Tuple(parts.iter().map(|of| self.definite(of)).collect()),
            Type::Record(fields) => {
                let fields = fields.iter();
                Kind::Record(
                    fields
                        .map(|(name, of)| (*name, self.definite(of)))
                        .collect(),
                )
            }
            Type::Array(cut, count) => Kind::Array(*cut, *count, Box::new(argument)),
        };
        Expr {
            of: of.clone(),
            kind,
        }
    }

    fn typing(&mut self, map: &Map) -> Vec<Statement> {
        let entry = Entry {
            map: map.clone(),
            keys: map.keys.iter().map(|of| self.definite(of)).collect(),
            as_tuple: false,
        };
        let value = self.definite(&map.of);
        let assign = |value| match map.gather {
            Some(gather) => Statement::Gather(entry.clone(), gather, value),
            None => Statement::Put(entry.clone(), value),
        };
        // What is signed may get others first.
        match map.of == Type::Signed && self.is() {
            true => vec![assign(self.definite(&Type::Unsigned)), assign(value)],
            false => vec![assign(value)],
        }
    }
}
