//! Draws random programs.
//!
//! Each expression is made for a type, and each variable and map keeps the type that it gets first,
//! so nearly all programs are taken. What the reference does not say is not drawn: which of two
//! steps in one expression comes first, a sum of numbers of the text only, an order of keys.

mod expressions;
mod loops;
mod maps;
mod memory;
mod printed;
mod statements;

use super::{
    super::arithmetic::Random,
    memory::TARGETS,
    tree::{Cut, Expr, Kind, Macro, Map, Place, Program, Settings, Type, Variable},
};

const WORDS: [&str; 15] = [
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
    "a\"b\\c\td",
    "naïve",
    "日本",
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
    /// Variables that are each stepped in one place, which may be in any expression.
    steppers: Vec<Variable>,
    /// Variables that only their loop changes.
    fixed: Vec<usize>,
    /// How many variables there were.
    variables: usize,
    /// The place of the clause, where its arguments are in sight; at a return there is the result.
    place: Option<Place>,
    has_result: bool,
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
            steppers: Vec::new(),
            fixed: Vec::new(),
            variables: 0,
            place: None,
            has_result: false,
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
            let map = maps::map(&mut self, id, most_keys.is_some());
            self.maps.push(map);
        }
        for _ in 0..self.below(3) {
            let made = self.a_macro();
            self.macros.push(made);
        }
        let clauses = 1 + self.below(3);
        let clauses = (0..clauses).map(|_| self.clause()).collect();
        self.place = None;
        let maps = self.maps.clone();
        let typing = maps
            .iter()
            .flat_map(|map| maps::typing(&mut self, map))
            .collect();
        Program {
            settings: Settings {
                most_keys,
                most_text: self.one_in(6).then(|| self.random.of(&[16, 64])),
                hides_maps: self.one_in(12),
            },
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
        match self.below(16) {
            0..=9 => self.number_type(),
            10 | 11 => Type::Truth,
            12 => Type::Pointer(self.random.of(&TARGETS)),
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
}
