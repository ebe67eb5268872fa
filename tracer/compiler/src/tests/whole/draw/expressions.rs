//! Expressions: of a type, or of any that may stand somewhere.
//!
//! A half of them are variables, entries of maps, and parts of those. Keys are few, so that they
//! are met again, and keys of keys are those of maps without keys only.

use super::{
    super::{
        memory::TARGETS,
        tree::{
            Argument, Cut, Entry, Expr, FileField, Gather, Kind, Map, Parameter, Place, Type,
            Variable,
        },
    },
    COMPARISONS, Draw, OPERATORS, TEXT_ARGUMENT, WORDS, cast, maps, memory, named, number,
};

impl Draw<'_> {
    /// An expression of that type.
    pub(super) fn make(&mut self, of: &Type, height: u32) -> Expr {
        if (self.one_in(3) || height == 0 && self.is())
            && let Some(found) = self.known(of, height)
        {
            return found;
        }
        let kind = match of {
            Type::Literal => return number(self.small()),
            Type::Signed | Type::Unsigned => return self.a_number(of, height),
            Type::Truth => self.truth(height),
            Type::Text => self.text(height),
            Type::Pointer(to) => memory::pointer(self, *to, height),
            Type::Tuple(parts) if height == 0 || !self.one_in(5) => Kind::Tuple(
                parts
                    .iter()
                    .map(|of| self.make(of, height.saturating_sub(1)))
                    .collect(),
            ),
            Type::Record(fields) if height == 0 || !self.one_in(5) => {
                let made: Vec<_> = fields
                    .iter()
                    .map(|(name, of)| (*name, self.make(of, height.saturating_sub(1))))
                    .collect();
                Kind::Record(made)
            }
            Type::Array(cut, count) => {
                let of = self.number_type();
                let from = self.make(&of, height.saturating_sub(1));
                Kind::Array(*cut, *count, Box::new(from))
            }
            _ => {
                let condition = Box::new(self.condition(height - 1));
                let a = Box::new(self.make(of, height - 1));
                let b = Box::new(self.make(of, height - 1));
                Kind::Choice(condition, a, b)
            }
        };
        Expr {
            of: of.clone(),
            kind,
        }
    }

    /// What may be assigned to something of that type.
    pub(super) fn assignable(&mut self, of: &Type, height: u32) -> Expr {
        match of {
            // With other numbers, a truth is one, too.
            Type::Signed | Type::Unsigned if self.one_in(12) => self.make(&Type::Truth, height),
            Type::Signed => match self.below(4) {
                0 => number(self.small() - 20),
                1 => self.make(&Type::Unsigned, height),
                _ => self.make(of, height),
            },
            Type::Unsigned if self.one_in(4) => number(self.small()),
            Type::Tuple(parts) if self.is() => Expr {
                of: of.clone(),
                kind: Kind::Tuple(parts.iter().map(|of| self.assignable(of, height)).collect()),
            },
            _ => self.make(of, height),
        }
    }

    /// The fields of a record in another order, where the order does not matter.
    pub(super) fn reordered(&mut self, mut value: Expr) -> Expr {
        if let Kind::Record(fields) = &mut value.kind
            && self.is()
        {
            fields.reverse();
        }
        value
    }

    pub(super) fn small(&mut self) -> i128 {
        self.below(100) as i128
    }

    pub(super) fn any_number(&mut self, height: u32) -> Expr {
        match self.below(8) {
            0 => self.make(&Type::Truth, height),
            1 => number(self.small() - 20),
            2 => number(self.small()),
            _ => {
                let of = self.number_type();
                self.make(&of, height)
            }
        }
    }

    pub(super) fn leaf(&mut self, of: &Type) -> Expr {
        let value = match self.below(4) {
            0 => number(self.random.number().into()),
            1 => number(self.small()),
            _ => self.argument(),
        };
        match value.of == *of {
            true => value,
            false => cast(of, value),
        }
    }

    pub(super) fn argument(&mut self) -> Expr {
        if self.one_in(8) {
            let kind = self.random.of(&[true, false]);
            let kind = if kind { Kind::Tid } else { Kind::Cpu };
            return Expr {
                of: Type::Unsigned,
                kind,
            };
        }
        if !self.has_arguments {
            return cast(&Type::Unsigned, number(self.small()));
        }
        Expr {
            of: Type::Unsigned,
            kind: Kind::Argument(self.below(TEXT_ARGUMENT)),
        }
    }

    pub(super) fn a_number(&mut self, of: &Type, height: u32) -> Expr {
        if height == 0 {
            return self.leaf(of);
        }
        let lower = height - 1;
        let kind = match self.below(20) {
            0 => return self.leaf(of),
            18 | 19 => memory::read_number(self, of, lower),
            17 if self.has_maps
                && let Some(stepper) = self.steppers.pop() =>
            {
                let kind = Kind::Step(stepper, self.is(), self.is());
                let step = Expr {
                    of: Type::Unsigned,
                    kind,
                };
                return match *of {
                    Type::Signed => cast(of, step),
                    _ => step,
                };
            }
            16 => match self.of_library(of, lower) {
                Some(kind) => kind,
                None => return self.calculated(of, lower),
            },
            1 | 2 => {
                let cut = Cut {
                    bits: self.random.of(&[8, 16, 32, 64]),
                    is_signed: *of == Type::Signed,
                };
                Kind::Cast(cut, Box::new(self.any_number(lower)))
            }
            3 if *of == Type::Signed => {
                let of = self.number_type();
                Kind::Unary("-", Box::new(self.make(&of, lower)))
            }
            3 => Kind::Unary("~", Box::new(self.make(of, lower))),
            4 | 5 => {
                let condition = Box::new(self.condition(lower));
                let a = Box::new(self.make(of, lower));
                let b = Box::new(self.assignable(of, lower));
                match self.below(3) {
                    0 if self.is() => Kind::IfElse(condition, b, a),
                    0 => Kind::IfElse(condition, a, b),
                    1 => Kind::Choice(condition, b, a),
                    _ => Kind::Choice(condition, a, b),
                }
            }
            6 => {
                let a = Box::new(self.make(of, lower));
                Kind::Or(a, Box::new(self.assignable(of, lower)))
            }
            7 if *of == Type::Unsigned => {
                let text = Box::new(self.text_value(lower));
                match self.is() {
                    true => Kind::Length(text),
                    false => Kind::Byte(Box::new(self.indexed_text(lower)), self.below(4)),
                }
            }
            7 => {
                let text = Box::new(self.text_value(lower));
                Kind::Find(text, Box::new(self.part_of_text(lower)))
            }
            8 if self.is() => self.block_value(of, lower),
            8 if self.place == Some(Place::Interval) && *of == Type::Unsigned => {
                let maps: Vec<Map> = self
                    .maps
                    .iter()
                    .filter(|map| is_counted(map))
                    .cloned()
                    .collect();
                match maps.is_empty() {
                    true => return self.leaf(of),
                    false => Kind::Keys(maps[self.below(maps.len())].clone()),
                }
            }
            9 if !self.macros.is_empty() => match self.call(of, lower) {
                Some(kind) => kind,
                None => return self.leaf(of),
            },
            _ => return self.calculated(of, lower),
        };
        Expr {
            of: of.clone(),
            kind,
        }
    }

    pub(super) fn calculated(&mut self, of: &Type, height: u32) -> Expr {
        let op = self.random.of(&OPERATORS);
        let first = self.make(of, height);
        let second = match (op, of) {
            ("<<" | ">>", _) | (_, Type::Signed) => self.any_number(height),
            _ => match self.below(4) {
                0 => number(self.small() - 20),
                1 => self.make(&Type::Truth, height),
                _ => self.make(of, height),
            },
        };
        let (first, second) = (self.bare(first), self.bare(second));
        let (a, b) = match self.one_in(3) && !matches!(op, "<<" | ">>") {
            true => (second, first),
            false => (first, second),
        };
        Expr {
            of: of.clone(),
            kind: Kind::Binary(op, Box::new(a), Box::new(b)),
        }
    }

    pub(super) fn block_value(&mut self, of: &Type, height: u32) -> Kind {
        let known = self.scopes.len();
        self.scopes.push(Vec::new());
        let mut body = Vec::new();
        for _ in 0..1 + self.below(2) {
            let of_map = match self.one_in(3) {
                true => maps::of_map(self, height),
                false => None,
            };
            body.extend(of_map.unwrap_or_else(|| self.plain_statement(height)));
        }
        let value = self.make(of, height);
        self.scopes.truncate(known);
        Kind::Block(body, Box::new(value))
    }

    pub(super) fn call(&mut self, of: &Type, height: u32) -> Option<Kind> {
        let number = self.below(self.macros.len());
        let called = self.macros[number].clone();
        if called.value.of != *of {
            return None;
        }
        let mut given = Vec::new();
        // An argument stands wherever its name does.
        let steppers = core::mem::take(&mut self.steppers);
        for parameter in &called.parameters {
            given.push(match parameter {
                Parameter::Value(of) => Argument::Value(self.make(of, height)),
                Parameter::Map(own) => {
                    let like = |map: &&Map| {
                        map.keys == own.keys && map.of == own.of && map.gather == own.gather
                    };
                    let maps: Vec<Map> = self.maps.iter().filter(like).cloned().collect();
                    let taken = |map: &Map| {
                        given.iter().any(
                            |given| matches!(given, Argument::Map(given) if given.id == map.id),
                        )
                    };
                    let mut free = maps.into_iter().filter(|map| !taken(map));
                    Argument::Map(free.next()?)
                }
                Parameter::Variable(own) => {
                    let fits =
                        |variable: &Variable| variable.of == own.of && variable.cut.is_none();
                    Argument::Variable(self.changeable(fits)?)
                }
            });
        }
        self.steppers = steppers;
        // Two names of one variable are not drawn.
        let ids = given.iter().filter_map(|argument| match argument {
            Argument::Variable(variable) => Some(variable.id),
            Argument::Value(_) | Argument::Map(_) => None,
        });
        let mut ids: Vec<usize> = ids.collect();
        ids.sort_unstable();
        (!ids.windows(2).any(|pair| pair[0] == pair[1])).then_some(Kind::Macro(number, given))
    }

    pub(super) fn condition(&mut self, height: u32) -> Expr {
        match self.below(10) {
            0 => {
                let of = self.number_type();
                self.make(&of, height)
            }
            1 => self.text_value(height),
            2 => {
                let to = self.random.of(&TARGETS);
                self.make(&Type::Pointer(to), height)
            }
            _ => self.make(&Type::Truth, height),
        }
    }

    pub(super) fn truth(&mut self, height: u32) -> Kind {
        if height == 0 {
            return match self.one_in(5) {
                true => Kind::Truth(self.is()),
                false => {
                    let argument = self.argument();
                    let op = self.random.of(&COMPARISONS);
                    let than = number(self.small() / 20);
                    Kind::Compare(op, Box::new(argument), Box::new(than))
                }
            };
        }
        let lower = height - 1;
        match self.below(17) {
            15 => self.known_at_once(lower),
            16 => {
                let of = self.number_type();
                Kind::IsError(Box::new(self.make(&of, lower)))
            }
            14 => memory::field_of_file(self, FileField::Readable, lower),
            0 => Kind::Unary("!", Box::new(self.condition(lower))),
            1 | 2 => {
                let a = Box::new(self.condition(lower));
                let b = Box::new(self.condition(lower));
                Kind::Compare(self.random.of(&["&&", "||"]), a, b)
            }
            3 => {
                let of = self.number_type();
                Kind::CastTruth(Box::new(self.make(&of, lower)))
            }
            4 => {
                let a = Box::new(self.text_value(lower));
                let b = Box::new(self.text_value(lower));
                Kind::Compare(self.random.of(&["==", "!="]), a, b)
            }
            5 => {
                let of = self.a_type(1);
                let op = match of {
                    Type::Pointer(_) => self.random.of(&COMPARISONS),
                    _ => self.random.of(&["==", "!="]),
                };
                let a = Box::new(self.make(&of, lower));
                let b = self.make(&of, lower);
                Kind::Compare(op, a, Box::new(self.reordered(b)))
            }
            6 => {
                let text = Box::new(self.text_value(lower));
                let word = self.word_with_letters();
                match self.is() {
                    true => Kind::Contains(text, Box::new(self.part_of_text(lower))),
                    false => {
                        let bytes = 1 + self.below(word.len().min(6));
                        Kind::Begins(text, word, bytes)
                    }
                }
            }
            8 if self.one_in(3) => {
                let to = self.random.of(&TARGETS);
                let pointer = Box::new(self.make(&Type::Pointer(to), lower));
                let op = self.random.of(&COMPARISONS);
                Kind::Compare(op, pointer, Box::new(number(self.small())))
            }
            7 | 8 => match self.entry(lower, is_counted) {
                Some(entry) => Kind::HasKey(Box::new(entry)),
                None => Kind::Truth(self.is()),
            },
            _ => {
                let of = self.number_type();
                let a = Box::new(self.make(&of, lower));
                let b = Box::new(self.any_number(lower));
                let (a, b) = (Box::new(self.bare(*a)), Box::new(self.bare(*b)));
                Kind::Compare(self.random.of(&COMPARISONS), a, b)
            }
        }
    }

    /// What a map gathers may be read without a cast where a number is needed.
    fn bare(&mut self, value: Expr) -> Expr {
        match &value.kind {
            Kind::Cast(_, inner)
                if matches!(&inner.kind, Kind::Read(at) if at.map.gather.is_some())
                    && self.is() =>
            {
                (**inner).clone()
            }
            _ => value,
        }
    }

    /// A truth that is known before the hit, or nearly so.
    fn known_at_once(&mut self, height: u32) -> Kind {
        let is_kprobe = matches!(self.place, Some(Place::Write | Place::Read | Place::Both));
        match self.below(3) {
            0 => Kind::Before(self.word(), self.word()),
            _ if is_kprobe => {
                let word = self.random.of(&["func", "probe"]);
                Kind::IsAt(word, self.is())
            }
            _ => Kind::Unary("!", Box::new(self.condition(height))),
        }
    }

    /// What a function of the library makes of a number or an array.
    fn of_library(&mut self, of: &Type, height: u32) -> Option<Kind> {
        match self.below(5) {
            3 if *of == Type::Unsigned => Some(memory::measured(self, height)),
            3 | 4 if self.is() => {
                let like = self.a_type(1);
                let like = Box::new(self.make(&like, 0));
                let a = Box::new(self.make(of, height));
                let b = Box::new(self.make(of, height));
                Some(Kind::ByType(like, a, b))
            }
            4 if *of == Type::Unsigned && maps::has_time(self) => Some(Kind::Nanoseconds),
            0 if *of == Type::Unsigned => {
                let bits = self.random.of(&[16, 32, 64]);
                let is_signed = self.is();
                let value = Box::new(self.any_number(height));
                let narrow = Expr {
                    of: if is_signed {
                        Type::Signed
                    } else {
                        Type::Unsigned
                    },
                    kind: Kind::Cast(Cut { bits, is_signed }, value),
                };
                Some(Kind::Swapped(bits, Box::new(narrow)))
            }
            1 if self.is() => {
                let is_signed = *of == Type::Signed;
                let cut = Cut { bits: 8, is_signed };
                let word = self.word();
                let count = word.len() + 1;
                let letters = Expr {
                    of: Type::Array(cut, count),
                    kind: Kind::TextArray(cut, word),
                };
                let index = Box::new(self.make(&Type::Unsigned, height));
                let kind = Kind::Element(Box::new(letters), count, index);
                Some(
                    cast(
                        of,
                        Expr {
                            of: of.clone(),
                            kind,
                        },
                    )
                    .kind,
                )
            }
            1 => {
                let cut = self.cut();
                let array = Type::Array(cut, 64 / cut.bits as usize);
                Some(Kind::OfArray(Box::new(self.make(&array, height))))
            }
            _ => {
                let all = self.visible();
                let mut like = all.iter().filter(|variable| variable.of == *of);
                let variable = like.next_back()?.clone();
                let value = self.make(of, height);
                Some(Kind::Like(variable, Box::new(value)))
            }
        }
    }

    pub(super) fn word(&mut self) -> String {
        self.random.of(&WORDS).into()
    }

    pub(super) fn word_with_letters(&mut self) -> String {
        self.random.of(&WORDS[1..]).into()
    }

    pub(super) fn text_value(&mut self, height: u32) -> Expr {
        self.make(&Type::Text, height)
    }

    /// What is looked for in a text.
    fn part_of_text(&mut self, height: u32) -> Expr {
        match self.one_in(3) {
            true => self.text_value(height),
            false => Expr {
                of: Type::Text,
                kind: Kind::Word(self.word_with_letters()),
            },
        }
    }

    /// A text that may have an index.
    pub(super) fn indexed_text(&mut self, height: u32) -> Expr {
        let known = self.known(&Type::Text, height);
        known.filter(|text| !is_bare_map(text)).unwrap_or(Expr {
            of: Type::Text,
            kind: Kind::Comm,
        })
    }

    pub(super) fn text(&mut self, height: u32) -> Kind {
        match self.below(10) {
            0 | 1 => Kind::Comm,
            2 if self.has_arguments => Kind::TextAt(TEXT_ARGUMENT, None),
            3 if self.has_arguments && height > 0 && self.is() => {
                // A number of the text may be more than the room of a text.
                let known = Box::new(self.make(&Type::Unsigned, height - 1));
                let argument = Box::new(Expr {
                    of: Type::Unsigned,
                    kind: Kind::Argument(0),
                });
                let value = Box::new(Expr {
                    of: Type::Unsigned,
                    kind: Kind::Binary("+", argument, known),
                });
                let few = Expr {
                    of: Type::Unsigned,
                    kind: Kind::Binary("%", value, Box::new(number(20))),
                };
                Kind::TextUpTo(TEXT_ARGUMENT, Box::new(few))
            }
            3 if self.has_arguments => Kind::TextAt(TEXT_ARGUMENT, Some(1 + self.below(20))),
            4 if height > 0 && self.is() => {
                let a = Box::new(self.text_value(height - 1));
                Kind::Or(a, Box::new(self.text_value(height - 1)))
            }
            4 if height > 0 && self.is() => {
                // A letter of several bytes is not cut.
                let kind = match self.is() && self.has_arguments {
                    true => Kind::TextAt(TEXT_ARGUMENT, None),
                    false => memory::field_of_file(self, FileField::Name, height - 1),
                };
                let of = Type::Text;
                let text = Box::new(Expr { of, kind });
                Kind::Start(text, 1 + self.below(9))
            }
            4 => Kind::Joined(self.word(), self.word()),
            7 if height > 0 => memory::field_of_file(self, FileField::Name, height - 1),
            5 | 6 if height > 0 => {
                let condition = Box::new(self.condition(height - 1));
                let a = Box::new(self.text_value(height - 1));
                let b = Box::new(self.text_value(height - 1));
                match self.one_in(3) {
                    true => Kind::IfElse(condition, a, b),
                    false => Kind::Choice(condition, a, b),
                }
            }
            _ => Kind::Word(self.word()),
        }
    }

    pub(super) fn visible(&self) -> Vec<Variable> {
        self.scopes[self.floor..]
            .iter()
            .flatten()
            .cloned()
            .collect()
    }

    pub(super) fn changeable(&mut self, fits: impl Fn(&Variable) -> bool) -> Option<Variable> {
        let mut all = self.visible();
        all.retain(|variable| !self.fixed.contains(&variable.id) && fits(variable));
        (!all.is_empty())
            .then(|| self.random.of(&(0..all.len()).collect::<Vec<_>>()))
            .map(|index| all.swap_remove(index))
    }

    /// A variable, an entry or a part of one of them, of that type.
    pub(super) fn known(&mut self, of: &Type, height: u32) -> Option<Expr> {
        let mut found = Vec::new();
        for variable in self.visible() {
            if variable.of == Type::Literal {
                for of in [Type::Signed, Type::Unsigned] {
                    parts(cast(&of, named(&variable)), &mut found);
                }
            } else {
                parts(named(&variable), &mut found);
            }
        }
        for (number, of) in self.parameters.iter().enumerate() {
            if let Some(of) = of {
                let kind = Kind::Parameter(number);
                let of = of.clone();
                found.push(Expr { of, kind });
            }
        }
        let maps = if self.has_maps { &self.maps[..] } else { &[] };
        // Keys of keys are few.
        for map in maps.iter().filter(|map| height > 0 || map.keys.is_empty()) {
            let entry = Entry {
                map: map.clone(),
                keys: Vec::new(),
                as_tuple: false,
            };
            let read = Expr {
                of: map.of.clone(),
                kind: Kind::Read(Box::new(entry)),
            };
            match map.gather {
                Some(gather) if gather.is_only_printed() => {}
                Some(_) => found.push(cast(&map.of, read)),
                None => parts(read, &mut found),
            }
        }
        found.retain(|expr| expr.of == *of);
        if found.is_empty() {
            return None;
        }
        let index = self.below(found.len());
        let mut chosen = found.swap_remove(index);
        self.fill(&mut chosen, height);
        Some(chosen)
    }

    /// Draws the keys and the indices.
    pub(super) fn fill(&mut self, expr: &mut Expr, height: u32) {
        match &mut expr.kind {
            Kind::Part(of, _) | Kind::PartAt(of, _) | Kind::Field(of, _) | Kind::Cast(_, of) => {
                self.fill(of, height);
            }
            Kind::Element(of, _, index) => {
                **index = match self.is() {
                    true => self.leaf(&Type::Unsigned),
                    false => self.make(&Type::Unsigned, 0),
                };
                self.fill(of, height);
            }
            Kind::At(of) => self.fill(of, height),
            Kind::Indexed(of, index) => {
                **index = self.make(&Type::Unsigned, 0);
                self.fill(of, height);
            }
            Kind::Read(entry) => **entry = self.keyed(&entry.map.clone(), height.saturating_sub(1)),
            _ => {}
        }
    }

    pub(super) fn keyed(&mut self, map: &Map, height: u32) -> Entry {
        let keys: Vec<Expr> = map.keys.iter().map(|of| self.key(of, height)).collect();
        Entry {
            as_tuple: keys.len() > 1 && self.one_in(4),
            map: map.clone(),
            keys,
        }
    }

    /// Keys are few, so that they are met again.
    pub(super) fn key(&mut self, of: &Type, height: u32) -> Expr {
        match of {
            Type::Signed | Type::Unsigned => match self.below(4) {
                0 if self.one_in(3) => self.make(&Type::Truth, height.min(1)),
                0 => number(self.below(3) as i128),
                1 => self.make(of, height.min(1)),
                _ => {
                    let value = self.make(&Type::Unsigned, height.min(1));
                    let kind = Kind::Binary("%", Box::new(value), Box::new(number(3)));
                    let few = Expr {
                        of: Type::Unsigned,
                        kind,
                    };
                    match *of {
                        Type::Signed => cast(of, few),
                        _ => few,
                    }
                }
            },
            Type::Tuple(parts) => Expr {
                of: of.clone(),
                kind: Kind::Tuple(parts.iter().map(|of| self.key(of, height)).collect()),
            },
            _ => self.make(of, height.min(1)),
        }
    }

    pub(super) fn entry(&mut self, height: u32, fits: impl Fn(&Map) -> bool) -> Option<Entry> {
        if !self.has_maps {
            return None;
        }
        let maps: Vec<Map> = self.maps.iter().filter(|map| fits(map)).cloned().collect();
        if maps.is_empty() {
            return None;
        }
        let map = maps[self.below(maps.len())].clone();
        Some(self.keyed(&map, height))
    }
}

/// Whether its keys can be asked for: a histogram is kept in parts.
fn is_counted(map: &Map) -> bool {
    use Gather::{Hist, Lhist, Series};
    !map.keys.is_empty() && !matches!(map.gather, Some(Hist(_) | Lhist(..) | Series(_)))
}

/// Whether brackets after it would be those of a key.
fn is_bare_map(expr: &Expr) -> bool {
    matches!(&expr.kind, Kind::Read(entry) if entry.map.keys.is_empty())
}

/// The expression and all of its parts.
fn parts(of: Expr, into: &mut Vec<Expr>) {
    match &of.of {
        Type::Tuple(types) => {
            for (number, part) in types.iter().enumerate() {
                let part = part.clone();
                let inner = Box::new(of.clone());
                let kind = match number % 2 == 0 || is_bare_map(&of) {
                    true => Kind::Part(inner, number),
                    false => Kind::PartAt(inner, number),
                };
                parts(Expr { of: part, kind }, into);
            }
        }
        Type::Record(fields) => {
            for (name, part) in fields {
                let kind = Kind::Field(Box::new(of.clone()), name);
                let of = part.clone();
                parts(Expr { of, kind }, into);
            }
        }
        Type::Array(cut, count) if !is_bare_map(&of) => {
            let element = if cut.is_signed {
                Type::Signed
            } else {
                Type::Unsigned
            };
            let kind = Kind::Element(Box::new(of.clone()), *count, Box::new(number(0)));
            let narrow = Expr {
                of: element.clone(),
                kind,
            };
            into.push(cast(&element, narrow));
        }
        Type::Pointer(cut) => {
            let element = if cut.is_signed {
                Type::Signed
            } else {
                Type::Unsigned
            };
            let kind = match is_bare_map(&of) {
                true => Kind::At(Box::new(of.clone())),
                false => Kind::Indexed(Box::new(of.clone()), Box::new(number(0))),
            };
            let read = Expr {
                of: element.clone(),
                kind,
            };
            into.push(cast(&element, read));
        }
        _ => {}
    }
    into.push(of);
}
