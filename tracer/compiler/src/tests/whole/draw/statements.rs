//! Statements: blocks of them, macros, and clauses.
//!
//! A variable belongs to the block that declares it, or to the whole clause. One that a loop is the
//! first to assign has no value after it, and is forgotten there.

use super::{
    super::tree::{
        Clause, Conversion, Cut, Entry, Expr, Gather, Kind, Let, Macro, Map, Parameter, Place,
        Statement, Type, Variable,
    },
    Draw, OPERATORS, Site, cast, named, number,
};

impl Draw<'_> {
    pub(super) fn new_variable(&mut self, of: Type) -> Variable {
        self.variables += 1;
        Variable {
            id: self.variables,
            name: format!("$v{}", self.variables),
            of,
            cut: None,
        }
    }

    /// A name of a few, which other blocks have, too.
    pub(super) fn own_name(&mut self) -> Option<String> {
        let known = self.visible();
        let mut names: Vec<String> = (0..4).map(|number| format!("$own{number}")).collect();
        names.retain(|name| !known.iter().any(|variable| variable.name == *name));
        (!names.is_empty()).then(|| names[self.below(names.len())].clone())
    }

    pub(super) fn a_macro(&mut self) -> Macro {
        self.floor = self.scopes.len();
        self.scopes.push(Vec::new());
        let known = core::mem::take(&mut self.maps);
        let mut parameters = Vec::new();
        for _ in 0..1 + self.below(3) {
            let of = self.simple_type();
            parameters.push(match self.below(4) {
                0 => {
                    let like = self.below(known.len());
                    let own = Map {
                        // No map of the program has its number.
                        id: 100 + self.macros.len() * 10 + self.maps.len(),
                        name: format!("@p{}", self.maps.len()),
                        declared: None,
                        ..known[like].clone()
                    };
                    self.maps.push(own.clone());
                    Parameter::Map(own)
                }
                1 => {
                    let variable = self.new_variable(of);
                    self.scopes[self.floor].push(variable.clone());
                    Parameter::Variable(variable)
                }
                _ => Parameter::Value(of),
            });
        }
        self.parameters = parameters
            .iter()
            .map(|parameter| match parameter {
                Parameter::Variable(_) | Parameter::Map(_) => None,
                Parameter::Value(of) => Some(of.clone()),
            })
            .collect();
        self.has_arguments = false;
        let mut body = Vec::new();
        for _ in 0..self.below(4) {
            let of_map = match self.is() {
                true => self.of_map(2),
                false => None,
            };
            body.extend(of_map.unwrap_or_else(|| self.plain_statement(2)));
        }
        let of = self.number_type();
        let value = self.make(&of, 2);
        self.maps = known;
        self.parameters.clear();
        self.scopes.pop();
        self.floor = 0;
        Macro {
            parameters,
            body,
            value,
        }
    }

    pub(super) fn clause(&mut self) -> Clause {
        let place = self.random.of(&[
            Place::Write,
            Place::Write,
            Place::Read,
            Place::Both,
            Place::Session,
            Place::Interval,
        ]);
        let site = Site {
            depth: 3,
            in_loop: false,
            may_return: true,
            over_maps: place == Place::Interval,
        };
        self.has_arguments = place != Place::Interval;
        let condition = match self.one_in(4) {
            true => Some(self.condition(2)),
            false => None,
        };
        self.scopes.push(Vec::new());
        self.room = 2 + self.below(6) as u32;
        let most = 2 + self.below(5);
        let mut body = self.statements(site, most);
        self.room = 2 + self.below(3) as u32;
        let mut at_return = match place {
            Place::Session => self.statements(site, 4),
            _ => Vec::new(),
        };
        let all = self.visible();
        let last = if place == Place::Session {
            &mut at_return
        } else {
            &mut body
        };
        last.extend(all.iter().map(|variable| Statement::Print(named(variable))));
        self.scopes.pop();
        Clause {
            place,
            condition,
            body,
            at_return,
        }
    }

    pub(super) fn statements(&mut self, site: Site, most: usize) -> Vec<Statement> {
        let mut body = Vec::new();
        for _ in 0..1 + self.below(most) {
            body.extend(self.statement(site));
        }
        body
    }

    /// A block of its own.
    pub(super) fn block(&mut self, site: Site) -> Vec<Statement> {
        self.scopes.push(Vec::new());
        let deeper = Site {
            depth: site.depth - 1,
            ..site
        };
        let body = self.statements(deeper, 3);
        self.scopes.pop();
        body
    }

    /// The block of a loop: what it is the first to assign may have no value after it.
    fn turn(&mut self, site: Site) -> Vec<Statement> {
        let known = self.scopes.clone();
        let body = self.block(site);
        self.scopes = known;
        body
    }

    pub(super) fn assign(&mut self, height: u32) -> Vec<Statement> {
        let existing = self.changeable(|variable| variable.of != Type::Literal);
        if let Some(variable) = existing
            && self.is()
        {
            let value = match (variable.cut, &variable.of) {
                (Some(_), of) if self.one_in(3) => self.make(&of.clone(), height),
                (Some(_), _) => {
                    let of = self.number_type();
                    self.make(&of, height)
                }
                (None, of) => self.assignable(&of.clone(), height),
            };
            let value = self.reordered(value);
            return vec![Statement::Assign(Let::No, variable, value)];
        }
        let of = self.a_type(2);
        let mut variable = self.new_variable(of.clone());
        let mut how = Let::No;
        if self.one_in(3)
            && let Some(name) = self.own_name()
        {
            variable.name = name;
            how = match of {
                Type::Signed | Type::Unsigned | Type::Truth | Type::Text if self.is() => Let::Typed,
                _ => Let::Plain,
            };
            if how == Let::Typed && of.is_number() && of != Type::Truth && self.is() {
                let bits = self.random.of(&[8, 16, 32]);
                let is_signed = of == Type::Signed;
                variable.cut = Some(Cut { bits, is_signed });
            }
        }
        let value = self.make(&of, height);
        let is_own = how != Let::No;
        let mut out = Vec::new();
        let scope = self.scopes.len() - 1;
        if how != Let::No && self.one_in(4) {
            // It has a value on one way only.
            let condition = self.condition(height);
            out.push(Statement::Declare(how, variable.clone()));
            let assigned = Statement::Assign(Let::No, variable.clone(), value);
            out.push(Statement::If(condition, vec![assigned], None));
        } else {
            let is_open = matches!(of, Type::Signed | Type::Unsigned | Type::Tuple(_));
            if how != Let::Typed && is_open && self.one_in(4) {
                // Its type is told only after it was read.
                let first = self.undecided(&of, height);
                out.push(Statement::Assign(how, variable.clone(), first));
                how = Let::No;
                let scope = self.scopes.len();
                self.scopes.push(vec![variable.clone()]);
                let next = self.make(&of, height);
                self.scopes.truncate(scope);
                out.push(Statement::Assign(how, variable.clone(), next));
                out.push(Statement::Print(named(&variable)));
            }
            out.push(Statement::Assign(how, variable.clone(), value));
        }
        self.scopes[if is_own { scope } else { self.floor }].push(variable);
        out
    }

    /// A value that does not tell the type, or not all of it.
    fn undecided(&mut self, of: &Type, height: u32) -> Expr {
        match of {
            Type::Signed if self.is() => self.make(&Type::Unsigned, height),
            Type::Signed | Type::Unsigned => number(self.small()),
            Type::Tuple(parts) => Expr {
                of: of.clone(),
                kind: Kind::Tuple(parts.iter().map(|of| self.undecided(of, height)).collect()),
            },
            _ => self.make(of, height),
        }
    }

    pub(super) fn change(&mut self, height: u32) -> Option<Statement> {
        let is_plain = |of: &Type| matches!(of, Type::Signed | Type::Unsigned);
        let variable = self.changeable(|variable| is_plain(&variable.of))?;
        if self.is() {
            let step = Kind::Step(variable.clone(), self.is(), self.is());
            let step = Expr {
                of: variable.of.clone(),
                kind: step,
            };
            return Some(match self.one_in(3) {
                true => Statement::Print(step),
                false => Statement::Do(step),
            });
        }
        let op = self.random.of(&OPERATORS);
        let value = self.assignable(&variable.of.clone(), height);
        Some(Statement::Change(op, variable, value))
    }

    /// One that changes variables only.
    pub(super) fn plain_statement(&mut self, height: u32) -> Vec<Statement> {
        match self.below(4) {
            0 | 1 => self.assign(height),
            _ => match self.change(height) {
                Some(change) => vec![change],
                None => self.assign(height),
            },
        }
    }

    pub(super) fn print(&mut self, height: u32) -> Statement {
        if self.is() {
            let of = self.a_type(2);
            let value = self.make(&of, height);
            return match &value.kind {
                // A map without keys is printed with its name.
                Kind::Read(entry) if entry.keys.is_empty() => {
                    Statement::PrintMap(entry.map.clone(), None)
                }
                _ => Statement::Print(value),
            };
        }
        let mut parts = Vec::new();
        for _ in 0..1 + self.below(3) {
            parts.push(self.printed(height));
        }
        Statement::Printf(parts, false)
    }

    pub(super) fn printed(&mut self, height: u32) -> (Conversion, Expr) {
        let letter = self.random.of(&[
            's', 's', 's', 's', 'r', 'd', 'd', 'i', 'u', 'x', 'x', 'X', 'o', 'c', 'p',
        ]);
        let mut is = Conversion {
            letter,
            ..Conversion::default()
        };
        if self.is() {
            is.width = self.below(14);
            is.flags = self.random.of(&["", "", "-"]);
            is.star = self.one_in(3).then(|| self.columns(height));
        }
        let value = match letter {
            's' | 'r' => {
                is.precision = self.one_in(4).then(|| self.below(6));
                match self.is() {
                    true => self.text_value(height),
                    false => {
                        let of = self.a_type(2);
                        self.make(&of, height)
                    }
                }
            }
            'c' => self.letter(height),
            'p' => self.make(&Type::Unsigned, height),
            _ => {
                let flags = [
                    "", "", "-", "0", "+", " ", "#", "#0", "-0", "+0", " 0", "-#",
                ];
                is.flags = self.random.of(&flags);
                is.precision = self.one_in(4).then(|| self.below(9));
                is.length = self.random.of(&["", "l", "ll", "h", "hh"]);
                let is_own = is.length.is_empty() && !"di".contains(letter);
                match is_own {
                    // A number of the text, for one, has no length of its own.
                    true => {
                        let value = self.any_number(height);
                        let bits = self.random.of(&[8, 16, 32, 64]);
                        let is_signed = self.is();
                        let of = if is_signed {
                            Type::Signed
                        } else {
                            Type::Unsigned
                        };
                        let kind = Kind::Cast(Cut { bits, is_signed }, Box::new(value));
                        Expr { of, kind }
                    }
                    false => self.any_number(height),
                }
            }
        };
        (is, value)
    }

    /// A width that only the hit tells.
    fn columns(&mut self, height: u32) -> Expr {
        let value = Box::new(self.make(&Type::Signed, height));
        Expr {
            of: Type::Signed,
            kind: Kind::Binary("%", value, Box::new(number(16))),
        }
    }

    /// A number from 33 to 122.
    fn letter(&mut self, height: u32) -> Expr {
        let value = Box::new(self.make(&Type::Unsigned, height));
        let rest = Expr {
            of: Type::Unsigned,
            kind: Kind::Binary("%", value, Box::new(number(90))),
        };
        Expr {
            of: Type::Unsigned,
            kind: Kind::Binary("+", Box::new(rest), Box::new(number(33))),
        }
    }

    pub(super) fn statement(&mut self, site: Site) -> Vec<Statement> {
        self.room = self.room.saturating_sub(1);
        let kinds = if site.depth == 0 || self.room == 0 {
            20
        } else {
            34
        };
        let height = 2;
        let one = match self.below(kinds) {
            0..=4 => return self.plain_statement(height),
            5 | 6 => self.print(height),
            7..=13 => {
                return self
                    .of_map(height)
                    .unwrap_or_else(|| self.plain_statement(height));
            }
            14 | 15 => return self.of_whole_map(),
            16 if site.in_loop => {
                let end = match self.is() {
                    true => Statement::Break,
                    false => Statement::Continue,
                };
                Statement::If(self.condition(1), vec![end], None)
            }
            17 if site.may_return && self.one_in(3) => {
                Statement::If(self.condition(1), vec![Statement::Return], None)
            }
            16..20 => return self.assign(height),
            20..=24 => {
                let condition = self.condition(height);
                let then = self.block(site);
                let otherwise = self.is().then(|| self.block(site));
                Statement::If(condition, then, otherwise)
            }
            25 => Statement::Block(self.block(site)),
            26 => {
                let site = Site {
                    in_loop: false,
                    ..site
                };
                Statement::Unroll(1 + self.random.below(3), self.block(site))
            }
            27 | 28 if !site.in_loop || self.open_loops > 0 => self.counted(site),
            29 if self.open_loops > 0 => self.open(site),
            30 if site.over_maps => return self.each().into_iter().collect(),
            31 => self.matched(site),
            32 => return self.found(site).into_iter().collect(),
            _ => {
                let condition = self.condition(height);
                Statement::If(condition, self.block(site), None)
            }
        };
        vec![one]
    }

    pub(super) fn counted(&mut self, site: Site) -> Statement {
        let mut variable = self.new_variable(Type::Literal);
        variable.name = format!("$i{}", variable.id);
        self.fixed.push(variable.id);
        let (from, to) = match self.open_loops > 0 && self.one_in(3) {
            true => {
                self.open_loops -= 1;
                let few = |this: &mut Self| {
                    let value = this.make(&Type::Unsigned, 1);
                    Expr {
                        of: Type::Unsigned,
                        kind: Kind::Binary("%", Box::new(value), Box::new(number(4))),
                    }
                };
                (few(self), few(self))
            }
            false => {
                let from = self.below(3) as i128;
                let turns = 1 + self.below(4) as i128;
                (number(from), number(from + turns))
            }
        };
        let site = Site {
            in_loop: true,
            ..site
        };
        self.scopes.push(vec![variable.clone()]);
        let body = self.turn(site);
        self.scopes.pop();
        Statement::For(variable, from, to, body)
    }

    pub(super) fn open(&mut self, site: Site) -> Statement {
        self.open_loops -= 1;
        let counter = self.new_variable(Type::Unsigned);
        self.fixed.push(counter.id);
        self.scopes[self.floor].push(counter.clone());
        let condition = self.make(&Type::Truth, 1);
        let site = Site {
            in_loop: true,
            ..site
        };
        let body = self.turn(site);
        Statement::While(counter, 1 + self.random.below(4), condition, body)
    }

    pub(super) fn matched(&mut self, site: Site) -> Statement {
        let is_text = self.one_in(3);
        let value = match is_text {
            true => self.text_value(1),
            false => {
                let value = Box::new(self.make(&Type::Unsigned, 1));
                Expr {
                    of: Type::Unsigned,
                    kind: Kind::Binary("%", value, Box::new(number(4))),
                }
            }
        };
        let mut arms = Vec::new();
        for _ in 0..1 + self.below(3) {
            let pattern = match is_text {
                true => Expr {
                    of: Type::Text,
                    kind: Kind::Word(self.word()),
                },
                false => number(self.below(5) as i128),
            };
            let body = self.block(site);
            arms.push((pattern, body));
        }
        let otherwise = self.block(site);
        Statement::Match(value, arms, otherwise)
    }

    pub(super) fn found(&mut self, site: Site) -> Option<Statement> {
        let entry = self.entry(1, |map| map.gather.is_none() && !map.keys.is_empty())?;
        let of = entry.map.of.clone();
        let is_signed = of == Type::Signed;
        let variable = self.changeable(|variable| {
            let takes = variable.of == of || is_signed && variable.of == Type::Unsigned;
            takes && (variable.of == of || variable.cut.is_some())
                || of == Type::Unsigned && variable.of == Type::Signed
        })?;
        let then = self.block(site);
        let otherwise = self.block(site);
        Some(Statement::Find(entry, variable, then, otherwise))
    }

    /// A loop over a map, whose turns may come in any order.
    pub(super) fn each(&mut self) -> Option<Statement> {
        let maps: Vec<Map> = self
            .maps
            .iter()
            .filter(|map| !map.keys.is_empty())
            .filter(|map| {
                let gather = map.gather;
                !gather.is_some_and(Gather::is_only_printed)
            })
            .cloned()
            .collect();
        if maps.is_empty() {
            return None;
        }
        let map = maps[self.below(maps.len())].clone();
        let key = match &map.keys[..] {
            [one] => one.clone(),
            several => Type::Tuple(several.to_vec()),
        };
        let is_plain = map.gather.is_none();
        let total =
            self.changeable(|variable| matches!(variable.of, Type::Signed | Type::Unsigned));
        let mut pair = self.new_variable(Type::Tuple(vec![key, map.of.clone()]));
        pair.name = format!("$kv{}", pair.id);
        self.fixed.push(pair.id);
        let floor = core::mem::replace(&mut self.floor, self.scopes.len());
        self.scopes.push(vec![pair.clone()]);
        self.has_maps = false;
        let macros = core::mem::take(&mut self.macros);
        let mut body = vec![Statement::Printf(
            vec![(Conversion::natural(), named(&pair))],
            true,
        )];
        if let Some(total) = total {
            let value = self.known(&total.of, 1).filter(|_| is_plain);
            let value = value.unwrap_or_else(|| cast(&total.of, number(1)));
            body.push(Statement::Change("+", total, value));
        }
        if is_plain && self.is() {
            let key = Expr {
                of: Type::Literal,
                kind: Kind::Part(Box::new(named(&pair)), 0),
            };
            let keys = match map.keys.len() {
                1 => vec![key],
                count => (0..count)
                    .map(|part| Expr {
                        of: Type::Literal,
                        kind: Kind::Part(Box::new(key.clone()), part),
                    })
                    .collect(),
            };
            let entry = Entry {
                map: map.clone(),
                keys,
                as_tuple: false,
            };
            let condition = self.condition_of_pair();
            body.push(Statement::If(
                condition,
                vec![Statement::DeleteAt(entry, true)],
                None,
            ));
        }
        self.macros = macros;
        self.has_maps = true;
        self.scopes.pop();
        self.floor = floor;
        Some(Statement::Each(pair, map, body))
    }

    pub(super) fn condition_of_pair(&mut self) -> Expr {
        match self.known(&Type::Unsigned, 1) {
            Some(value) => Expr {
                of: Type::Truth,
                kind: Kind::Compare("<", Box::new(value), Box::new(number(3))),
            },
            None => Expr {
                of: Type::Truth,
                kind: Kind::Truth(self.is()),
            },
        }
    }

    /// One that changes an entry.
    pub(super) fn of_map(&mut self, height: u32) -> Option<Vec<Statement>> {
        let entry = self.entry(height, |_| true)?;
        let map = entry.map.clone();
        if let Some(gather) = map.gather {
            let can_zero = matches!(gather, Gather::Count | Gather::Sum | Gather::Hist(_));
            return Some(vec![match self.below(9) {
                0 if !map.keys.is_empty() => self.deleted(entry),
                2 if !map.keys.is_empty() && gather.is_only_printed() => Statement::PrintAt(entry),
                1 if !map.keys.is_empty() && can_zero => Statement::ZeroAt(entry),
                _ => {
                    let value = match map.of {
                        _ if gather == Gather::Count => number(1),
                        Type::Signed => self.assignable(&map.of, height),
                        _ => self.make(&map.of, height),
                    };
                    Statement::Gather(entry, gather, value)
                }
            }]);
        }
        let is_number = matches!(map.of, Type::Signed | Type::Unsigned);
        Some(vec![match self.below(8) {
            0 if !map.keys.is_empty() => self.deleted(entry),
            1 if !map.keys.is_empty() => Statement::ZeroAt(entry),
            2 if !map.keys.is_empty() => Statement::Print(Expr {
                of: Type::Truth,
                kind: Kind::Delete(Box::new(entry)),
            }),
            3 | 4 if is_number => {
                let op = self.random.of(&OPERATORS);
                let value = self.assignable(&map.of, height);
                Statement::ChangeAt(op, entry, value)
            }
            5 if is_number => {
                let step = Expr {
                    of: map.of.clone(),
                    kind: Kind::StepAt(Box::new(entry), self.is(), self.is()),
                };
                match self.is() {
                    true => Statement::Do(step),
                    false => Statement::Print(step),
                }
            }
            _ => {
                let value = self.assignable(&map.of, height);
                Statement::Put(entry, self.reordered(value))
            }
        }])
    }

    fn deleted(&mut self, entry: Entry) -> Statement {
        match self.below(3) {
            0 => Statement::ClearAt(entry),
            1 => Statement::DeleteAt(entry, true),
            _ => Statement::DeleteAt(entry, false),
        }
    }

    pub(super) fn of_whole_map(&mut self) -> Vec<Statement> {
        let number = self.below(self.maps.len());
        let map = self.maps[number].clone();
        vec![match self.below(5) {
            0 if !map.keys.is_empty() => Statement::Clear(map),
            1 if !map.keys.is_empty() && map.gather.is_none() => Statement::Zero(map),
            2 if !map.keys.is_empty() && map.is_ranked() => {
                let divisor = self.random.of(&[1, 1, 2, 1000]);
                Statement::PrintMap(map, Some((self.below(5), divisor)))
            }
            _ => Statement::PrintMap(map, None),
        }]
    }
}
