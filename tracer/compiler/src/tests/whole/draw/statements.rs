//! Statements: blocks of them, macros, and clauses.
//!
//! A variable belongs to the block that declares it, or to the whole clause. One that a loop is the
//! first to assign has no value after it, and is forgotten there.

use super::{
    super::tree::{
        Clause, Cut, Expr, Kind, Let, Macro, Map, Parameter, Place, Statement, Type, Variable,
    },
    Draw, OPERATORS, Site, cast, loops, maps, memory, named, number, printed,
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
        let site = Site {
            depth: 1,
            in_loop: false,
            may_return: false,
            over_maps: false,
        };
        self.room = 1;
        let mut body = Vec::new();
        for _ in 0..self.below(4) {
            let of_map = match self.is() {
                true => maps::of_map(self, 2),
                false => None,
            };
            body.extend(match of_map {
                Some(of_map) => of_map,
                None if self.one_in(4) => self.statement(site),
                None => self.plain_statement(2),
            });
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
            Place::SessionRead,
            Place::Return,
            Place::Interval,
        ]);
        let site = Site {
            depth: 3,
            in_loop: false,
            may_return: true,
            over_maps: place == Place::Interval,
        };
        self.has_arguments = place != Place::Interval;
        self.place = Some(place);
        self.has_result = place == Place::Return;
        let condition = match self.one_in(4) {
            true => Some(self.condition(2)),
            false => None,
        };
        self.scopes.push(Vec::new());
        let mut steppers = Vec::new();
        for _ in 0..self.below(3) {
            let mut stepper = self.new_variable(Type::Unsigned);
            stepper.name = format!("$s{}", stepper.id);
            steppers.push(stepper);
        }
        self.steppers = steppers.clone();
        self.room = 2 + self.below(6) as u32;
        let most = 2 + self.below(5);
        let mut body: Vec<Statement> = steppers
            .iter()
            .map(|stepper| {
                let first = cast(&Type::Unsigned, number(self.small()));
                Statement::Assign(Let::No, stepper.clone(), first)
            })
            .collect();
        body.extend(self.statements(site, most));
        self.room = 2 + self.below(3) as u32;
        self.has_result |= place.has_return();
        let mut at_return = match place.has_return() {
            true => self.statements(site, 4),
            false => Vec::new(),
        };
        self.steppers.clear();
        let all = [self.visible(), steppers].concat();
        self.place = None;
        let last = if place.has_return() {
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
                Type::Tuple(_) | Type::Record(_) => Let::Plain,
                _ if self.is() => Let::Typed,
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
            Type::Signed | Type::Unsigned if self.one_in(4) => self.make(&Type::Truth, height),
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
        let is_plain = |of: &Type| matches!(of, Type::Signed | Type::Unsigned | Type::Pointer(_));
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
        let (op, value) = self.operation(&variable.of.clone(), height);
        Some(Statement::Change(op, variable, value))
    }

    /// An operator and a value that change something of that type.
    pub(super) fn operation(&mut self, of: &Type, height: u32) -> (&'static str, Expr) {
        match of {
            Type::Pointer(_) => (self.random.of(&["+", "-"]), memory::few_steps(self, height)),
            _ => (self.random.of(&OPERATORS), self.assignable(of, height)),
        }
    }

    /// A macro for what it does.
    fn called(&mut self, height: u32) -> Vec<Statement> {
        let of = self.number_type();
        let call = match self.macros.is_empty() {
            true => None,
            false => self.call(&of, height),
        };
        match call {
            Some(kind) => vec![Statement::Do(Expr { of, kind })],
            None => self.assign(height),
        }
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
            5 | 6 => printed::print(self, height),
            7..=13 => {
                return maps::of_map(self, height).unwrap_or_else(|| self.plain_statement(height));
            }
            14 if self.is() => return self.called(height),
            14 | 15 if !self.maps.is_empty() => return maps::of_whole_map(self),
            16 if site.in_loop => {
                let end = match self.is() {
                    true => Statement::Break,
                    false => Statement::Continue,
                };
                Statement::If(self.condition(1), vec![end], None)
            }
            17 if site.may_return && self.one_in(3) => {
                let end = match self.below(4) {
                    0 => Statement::Exit(None),
                    1 => Statement::Exit(Some(self.below(200) as u8)),
                    _ => Statement::Return,
                };
                Statement::If(self.condition(1), vec![end], None)
            }
            18 if self.one_in(4) => printed::joined(self),
            19 if site.over_maps && self.is() => {
                return loops::each_until(self).into_iter().collect();
            }
            14..20 => return self.assign(height),
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
            27 | 28 if !site.in_loop || self.open_loops > 0 => loops::counted(self, site),
            29 if self.open_loops > 0 => loops::open(self, site),
            30 if site.over_maps => return loops::each(self, None).into_iter().collect(),
            31 => match self.is() {
                true => memory::variants(self, site).unwrap_or_else(|| self.matched(site)),
                false => self.matched(site),
            },
            32 => return self.found(site).into_iter().collect(),
            _ => {
                let condition = self.condition(height);
                Statement::If(condition, self.block(site), None)
            }
        };
        vec![one]
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
}
