//! What a program prints: its tree is followed as docs/trace-language.md says.
//!
//! Nothing of the compiler is used. A machine has the variables of the clause that runs, the maps
//! of the program, and the requests to the reader, which acts on them after the clause: it prints
//! texts, prints maps as they are then, and clears them.

mod evaluate;

use std::collections::{BTreeMap, HashMap};

use super::{
    memory,
    shown::{self, Order, gathered, histogram, ranked},
    tree::{
        Clause, Cut, Entry, Expr, Gather, Kind, Map, Place, Program, Statement, Type, Variable,
    },
    value::{Value, binary, compare},
};

/// What happens to the traced kernel.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Write(At),
    Read(At),
    Call(At),
    CallRead(At),
    Tick,
}

#[derive(Clone, Debug)]
pub(super) struct At {
    pub(super) cpu: u32,
    pub(super) tid: u32,
    pub(super) arguments: [u64; 6],
    pub(super) result: u64,
    pub(super) is_read: bool,
    /// Nanoseconds since the boot.
    pub(super) time: u64,
}

impl At {
    /// When an interval has gone by.
    pub(super) fn idle() -> Self {
        Self {
            cpu: 0,
            tid: 7,
            arguments: [0; 6],
            result: 0,
            is_read: false,
            time: 0,
        }
    }
}

/// What an entry of a map has.
#[derive(Clone, Debug)]
enum Cell {
    Plain(Value),
    /// All values that were gathered.
    Gathered(Vec<Value>),
    /// The same with the interval of each.
    Timed(Vec<(u64, Value)>),
}

enum Request {
    Text(String),
    Print(Map, Option<(usize, u64)>),
    PrintAt(Map, Vec<Value>),
    Clear(Map),
    Zero(Map),
}

#[derive(PartialEq)]
enum Flow {
    Next,
    Break,
    Continue,
    Return,
}

/// A call of a macro, or the clause itself.
#[derive(Default)]
struct Frame {
    /// The frame of the caller, and what was given for each parameter.
    caller: usize,
    variables: HashMap<usize, Variable>,
    maps: HashMap<usize, Map>,
    values: HashMap<usize, Expr>,
}

pub(super) struct Machine<'p> {
    program: &'p Program,
    /// The texts that the last argument may lead to, by their addresses.
    texts: &'p [(u64, &'static str)],
    maps: Vec<BTreeMap<Vec<Value>, Cell>>,
    variables: HashMap<(usize, usize), Value>,
    frames: Vec<Frame>,
    frame: usize,
    at: At,
    requests: Vec<Request>,
    pub(super) out: String,
}

impl<'p> Machine<'p> {
    pub(super) fn new(program: &'p Program, texts: &'p [(u64, &'static str)]) -> Self {
        Self {
            program,
            texts,
            maps: vec![BTreeMap::new(); program.maps.len()],
            variables: HashMap::new(),
            frames: vec![Frame::default()],
            frame: 0,
            at: At::idle(),
            requests: Vec::new(),
            out: String::new(),
        }
    }

    pub(super) fn event(&mut self, event: &Event) {
        let (is_there, at): (fn(Place) -> bool, _) = match event {
            Event::Write(at) => (|place| matches!(place, Place::Write | Place::Both), at),
            Event::Read(at) => (|place| matches!(place, Place::Read | Place::Both), at),
            Event::Call(at) => (|place| place == Place::Session, at),
            Event::CallRead(at) => (
                |place| matches!(place, Place::SessionRead | Place::Return),
                at,
            ),
            Event::Tick => {
                return self.clauses(|place| place == Place::Interval, &At::idle());
            }
        };
        self.clauses(is_there, at);
    }

    fn clauses(&mut self, is_there: fn(Place) -> bool, at: &At) {
        let program = self.program;
        for clause in &program.clauses {
            if is_there(clause.place) {
                self.at = at.clone();
                self.clause(clause);
            }
        }
    }

    fn clause(&mut self, clause: &Clause) {
        self.variables.clear();
        let holds = |machine: &mut Self, condition: &Expr| machine.value(condition).holds();
        if let Some(condition) = &clause.condition
            && !holds(self, condition)
        {
            // A block in the condition may have printed something.
            return self.answer();
        }
        self.run(&clause.body);
        self.answer();
        if clause.place.has_return() {
            self.run(&clause.at_return);
            self.answer();
        }
    }

    fn answer(&mut self) {
        for request in core::mem::take(&mut self.requests) {
            match request {
                Request::Text(text) => self.out += &text,
                Request::Print(map, part) => {
                    let (top, divisor) = part.unwrap_or((0, 1));
                    let mut shown = self.shown(&map, top, divisor);
                    // A map without keys has a value before anything is assigned.
                    if map.keys.is_empty() && shown.is_empty() {
                        shown = match map.gather {
                            Some(Gather::Hist(_) | Gather::Lhist(..) | Gather::Series(_)) => {
                                String::new()
                            }
                            Some(Gather::Stats) => {
                                let zeros = "{ .count = 0, .average = 0, .total = 0 }";
                                format!("{}: {zeros}\n", map.name)
                            }
                            _ => format!("{}: {}\n", map.name, Value::zero(&map.of).shown()),
                        };
                    }
                    self.out += &shown;
                }
                Request::PrintAt(map, key) => {
                    if let Some(cell) = self.maps[map.id].get(&key) {
                        self.out += &entry(&map, &key, cell, 1);
                    }
                }
                Request::Clear(map) => self.maps[map.id].clear(),
                Request::Zero(map) => {
                    for cell in self.maps[map.id].values_mut() {
                        *cell = Cell::Plain(Value::zero(&map.of));
                    }
                }
            }
        }
    }

    /// All maps at the end.
    pub(super) fn ended(&mut self) -> String {
        if self.program.settings.hides_maps {
            return String::new();
        }
        let maps = self.program.maps.iter();
        maps.map(|map| self.shown(map, 0, 1)).collect()
    }

    /// So many of the largest entries of a map, or all of them, divided.
    fn shown(&self, map: &Map, top: usize, divisor: u64) -> String {
        let mut entries: Vec<_> = self.maps[map.id].iter().collect();
        let order = |(key, cell): &(&Vec<Value>, &Cell)| {
            let value = match (cell, map.gather) {
                (Cell::Gathered(values), Some(gather)) => ranked(gather, values, &map.of),
                (Cell::Plain(value), _) => Order::of(value),
                (Cell::Timed(_), _) => Order::Number(0),
                (Cell::Gathered(_), None) => unreachable!("a map of values gathers nothing"),
            };
            (value, key.iter().map(Order::of).collect::<Vec<_>>())
        };
        entries.sort_by_key(order);
        let before = match top {
            0 => 0,
            _ => entries.len().saturating_sub(top),
        };
        let times = entries.iter().flat_map(|(_, cell)| match cell {
            Cell::Timed(values) => &values[..],
            _ => &[],
        });
        let latest = times.map(|(interval, _)| *interval).max().unwrap_or(0);
        let shown = |(key, cell): &(&Vec<Value>, &Cell)| match (cell, map.gather) {
            (Cell::Timed(values), Some(Gather::Series(of))) => {
                match shown::series(of, values, latest, &map.of) {
                    // All of it is too long ago.
                    none if none.is_empty() => none,
                    series => format!("{}:{series}\n", name_of(map, key)),
                }
            }
            _ => entry(map, key, cell, divisor),
        };
        entries[before..].iter().map(shown).collect()
    }

    fn run(&mut self, body: &[Statement]) -> Flow {
        for statement in body {
            let flow = self.statement(statement);
            if flow != Flow::Next {
                return flow;
            }
        }
        Flow::Next
    }

    fn statement(&mut self, statement: &Statement) -> Flow {
        match statement {
            Statement::Assign(_, variable, value) => {
                let value = self.value(value);
                self.set(variable, value);
            }
            Statement::Declare(_, variable) => self.set(variable, Value::zero(&variable.of)),
            Statement::Change(op, variable, value) => {
                let value = self.value(value);
                let before = self.get(variable);
                let after = changed(op, &variable.of, &before, &value);
                self.set(variable, after);
            }
            Statement::Put(at, value) => {
                let key = self.key(at);
                let value = self.value(value);
                self.put(&at.map, key, value);
            }
            Statement::ChangeAt(op, at, value) => {
                let key = self.key(at);
                let value = self.value(value);
                let before = self.read(&at.map, &key);
                let after = changed(op, &at.map.of, &before, &value);
                self.put(&at.map, key, after);
            }
            Statement::Gather(at, _, value) => {
                let key = self.key(at);
                let value = match at.map.gather {
                    // A step has numbers, whatever others are.
                    Some(Gather::Hist(_) | Gather::Lhist(..)) => self.value(value),
                    _ => self.value(value).of(&at.map.of),
                };
                let interval = self.at.time / shown::INTERVAL;
                if let Some(Gather::Series(_)) = at.map.gather {
                    let cell = self.entries(&at.map).entry(key);
                    if let Cell::Timed(values) = cell.or_insert(Cell::Timed(Vec::new())) {
                        values.push((interval, value));
                    }
                } else if let Some(cell) = self.entries(&at.map).get_mut(&key) {
                    match cell {
                        Cell::Gathered(values) => values.push(value),
                        _ => *cell = Cell::Gathered(vec![value]),
                    }
                } else {
                    self.entries(&at.map)
                        .insert(key, Cell::Gathered(vec![value]));
                }
            }
            Statement::Do(value) => {
                self.value(value);
            }
            Statement::If(condition, then, otherwise) => {
                return match (self.value(condition).holds(), otherwise) {
                    (true, _) => self.run(then),
                    (false, Some(otherwise)) => self.run(otherwise),
                    (false, None) => Flow::Next,
                };
            }
            Statement::Match(value, arms, otherwise) => {
                let value = self.value(value);
                for (pattern, body) in arms {
                    let pattern = self.value(pattern);
                    if compare("==", &value, &pattern) {
                        return self.run(body);
                    }
                }
                return self.run(otherwise);
            }
            Statement::Fields(of, arms, otherwise) => {
                let found = memory::variant(*of, &self.at);
                let arm = found.and_then(|(number, values)| {
                    let arm = arms.iter().find(|(variant, ..)| *variant == number)?;
                    Some((arm, values))
                });
                let Some(((_, names, body), values)) = arm else {
                    return self.run(otherwise);
                };
                for (name, value) in names.iter().zip(values) {
                    self.set(name, value);
                }
                return self.run(body);
            }
            Statement::Block(body) => return self.run(body),
            Statement::Unroll(times, body) => {
                return self.turns(*times, |machine, _| machine.run(body));
            }
            Statement::For(variable, from, to, body) => {
                let from = self.value(from).exact();
                let to = self.value(to).exact();
                let turns = u64::try_from(to - from).unwrap_or(0);
                return self.turns(turns, |machine, turn| {
                    let number = from + i128::from(turn);
                    machine.set(variable, Value::signed(number as i64));
                    machine.run(body)
                });
            }
            Statement::While(counter, turns, condition, body) => {
                self.set(counter, Value::unsigned(0));
                while self.get(counter).bits() < *turns && self.value(condition).holds() {
                    let next = self.get(counter).bits() + 1;
                    self.set(counter, Value::unsigned(next));
                    match self.run(body) {
                        Flow::Break => break,
                        Flow::Return => return Flow::Return,
                        Flow::Next | Flow::Continue => {}
                    }
                }
            }
            Statement::Each(pair, map, body) => {
                let keys: Vec<_> = self.entries(map).keys().cloned().collect();
                for key in keys {
                    let value = self.read(map, &key);
                    let key = match &key[..] {
                        [one] => one.clone(),
                        _ => Value::Tuple(key),
                    };
                    self.set(pair, Value::Tuple(vec![key, value]));
                    match self.run(body) {
                        Flow::Break => break,
                        Flow::Return => return Flow::Return,
                        Flow::Next | Flow::Continue => {}
                    }
                }
            }
            Statement::Find(at, variable, then, otherwise) => {
                let key = self.key(at);
                if !self.entries(&at.map).contains_key(&key) {
                    return self.run(otherwise);
                }
                let value = self.read(&at.map, &key);
                self.set(variable, value);
                return self.run(then);
            }
            Statement::Break => return Flow::Break,
            Statement::Continue => return Flow::Continue,
            // The reader ends the trace later.
            Statement::Return | Statement::Exit(_) => return Flow::Return,
            Statement::Join(from, between) => {
                let room = self.program.settings.most_text.unwrap_or(usize::MAX);
                let texts = memory::listed(*from).into_iter();
                let texts = texts.map(|text| text.chars().take(room - 1).collect());
                let texts: Vec<String> = texts.collect();
                let text = texts.join(between.unwrap_or(" ")) + "\n";
                self.requests.push(Request::Text(text));
            }
            Statement::Print(value) => {
                let shown = self.value(value).shown();
                self.requests.push(Request::Text(shown + "\n"));
            }
            Statement::Printf(parts, is_loose) => {
                let mut texts = Vec::new();
                for (conversion, value) in parts {
                    let bits = self.own_bits(value);
                    let width = conversion.star.as_ref().map(|of| self.value(of).bits());
                    let width = width.map(u64::cast_signed);
                    let value = self.value(value);
                    texts.push(shown::converted(conversion, &value, bits, width));
                }
                let mark = if *is_loose { "~" } else { "" };
                let text = format!("{mark}{}|\n", texts.join("|"));
                self.requests.push(Request::Text(text));
            }
            Statement::PrintMap(map, part) => {
                let map = self.the(map);
                self.requests.push(Request::Print(map, *part));
            }
            Statement::PrintAt(at) => {
                let key = self.key(at);
                let map = self.the(&at.map);
                self.requests.push(Request::PrintAt(map, key));
            }
            Statement::Clear(map) => self.requests.push(Request::Clear(self.the(map))),
            Statement::Zero(map) => self.requests.push(Request::Zero(self.the(map))),
            Statement::DeleteAt(at, _) | Statement::ClearAt(at) => {
                let key = self.key(at);
                self.entries(&at.map).remove(&key);
            }
            Statement::ZeroAt(at) => {
                let key = self.key(at);
                let map = self.entries(&at.map);
                if at.map.gather.is_some() {
                    map.remove(&key);
                } else if let Some(cell) = map.get_mut(&key) {
                    *cell = Cell::Plain(Value::zero(&at.map.of));
                }
            }
        }
        Flow::Next
    }

    fn turns(&mut self, turns: u64, mut turn: impl FnMut(&mut Self, u64) -> Flow) -> Flow {
        for number in 0..turns {
            match turn(self, number) {
                Flow::Break => break,
                Flow::Return => return Flow::Return,
                Flow::Next | Flow::Continue => {}
            }
        }
        Flow::Next
    }

    /// The variable that is meant, and the frame that has it.
    fn place(&self, variable: &Variable) -> ((usize, usize), Variable) {
        let (mut frame, mut variable) = (self.frame, variable.clone());
        while let Some(given) = self.frames[frame].variables.get(&variable.id) {
            variable = given.clone();
            frame = self.frames[frame].caller;
        }
        ((frame, variable.id), variable)
    }

    /// The map that is meant.
    fn the(&self, map: &Map) -> Map {
        let (mut frame, mut map) = (self.frame, map);
        while let Some(given) = self.frames[frame].maps.get(&map.id) {
            map = given;
            frame = self.frames[frame].caller;
        }
        map.clone()
    }

    fn entries(&mut self, map: &Map) -> &mut BTreeMap<Vec<Value>, Cell> {
        let number = self.the(map).id;
        &mut self.maps[number]
    }

    fn get(&self, variable: &Variable) -> Value {
        let (place, variable) = self.place(variable);
        let value = self.variables.get(&place).cloned();
        value.unwrap_or_else(|| Value::zero(&variable.of))
    }

    fn set(&mut self, variable: &Variable, value: Value) {
        let (place, variable) = self.place(variable);
        let value = match variable.cut {
            Some(cut) => Value::cut(value.bits(), cut),
            None => value.of(&variable.of),
        };
        self.variables.insert(place, value);
    }

    /// How many bits a number has by itself.
    fn own_bits(&self, of: &Expr) -> u32 {
        match &of.kind {
            Kind::Cast(cut, _) => cut.bits,
            Kind::At(pointer) | Kind::Indexed(pointer, _) => 8 * memory::size(&pointer.of) as u32,
            Kind::Count | Kind::Delta => 32,
            Kind::Variable(variable) => {
                let (_, variable) = self.place(variable);
                variable.cut.map_or(64, |cut| cut.bits)
            }
            Kind::Choice(_, a, b) | Kind::IfElse(_, a, b) | Kind::Or(a, b) => {
                self.bits_of_both(a, b)
            }
            Kind::Block(_, value) => self.own_bits(value),
            Kind::ByType(of, a, b) => self.own_bits(if of.of == Type::Text { a } else { b }),
            _ => 64,
        }
    }

    /// How many bits the narrowest integer has that has both.
    fn bits_of_both(&self, a: &Expr, b: &Expr) -> u32 {
        let own = |of: &Expr, other: &Expr| match of.kind {
            Kind::Number(number) => {
                let is_signed = number < 0 || other.of == Type::Signed;
                let fits = |bits: &u32| {
                    let cut = Cut {
                        bits: *bits,
                        is_signed,
                    };
                    cut.of(number as u64) == number as u64
                };
                let bits = [8, 16, 32].into_iter().find(fits);
                (bits.unwrap_or(64), is_signed)
            }
            _ => (self.own_bits(of), of.of == Type::Signed),
        };
        match (own(a, b), own(b, a)) {
            ((a, true), (b, false)) | ((b, false), (a, true)) => a.max(2 * b).min(64),
            ((a, _), (b, _)) => a.max(b),
        }
    }

    fn key(&mut self, at: &Entry) -> Vec<Value> {
        let keys = at.keys.iter().zip(&at.map.keys);
        keys.map(|(key, of)| self.value(key).of(of)).collect()
    }

    fn read(&self, map: &Map, key: &[Value]) -> Value {
        match (self.maps[self.the(map).id].get(key), map.gather) {
            (Some(Cell::Plain(value)), _) => value.clone(),
            (Some(Cell::Gathered(values)), Some(gather)) => gathered(gather, values, &map.of),
            _ => Value::zero(&map.of),
        }
    }

    fn put(&mut self, map: &Map, key: Vec<Value>, value: Value) {
        let most = match self.the(map).declared {
            Some((_, keys)) => keys,
            None => self.program.settings.most_keys.unwrap_or(usize::MAX),
        };
        let entries = self.entries(map);
        if entries.len() < most || entries.contains_key(&key) {
            entries.insert(key, Cell::Plain(value.of(&map.of)));
        }
    }
}

/// A map with its key, as it stands in a line.
fn name_of(map: &Map, key: &[Value]) -> String {
    let texts: Vec<String> = match key {
        // A tuple is as good as several keys.
        [Value::Tuple(parts)] => parts.iter().map(Value::shown).collect(),
        _ => key.iter().map(Value::shown).collect(),
    };
    match key.is_empty() {
        true => map.name.clone(),
        false => format!("{}[{}]", map.name, texts.join(", ")),
    }
}

/// A line of a map.
fn entry(map: &Map, key: &[Value], cell: &Cell, divisor: u64) -> String {
    let name = name_of(map, key);
    let divided = |value: &Value| match value {
        Value::Number { .. } => (value.exact() / i128::from(divisor)).to_string(),
        other => other.shown(),
    };
    let value = match (map.gather, cell) {
        (Some(of @ (Gather::Hist(_) | Gather::Lhist(..))), Cell::Gathered(values)) => {
            return format!("{name}:{}\n", histogram(of, values, divisor));
        }
        (Some(Gather::Stats), Cell::Gathered(values)) => {
            let total = gathered(Gather::Sum, values, &map.of).shown();
            let average = divided(&gathered(Gather::Avg, values, &map.of));
            let count = values.len();
            format!("{{ .count = {count}, .average = {average}, .total = {total} }}")
        }
        (Some(gather), Cell::Gathered(values)) => divided(&gathered(gather, values, &map.of)),
        (_, Cell::Plain(value)) => divided(value),
        (_, Cell::Timed(_)) | (None, _) => unreachable!("a map of values gathers nothing"),
    };
    format!("{name}: {value}\n")
}

/// A variable or entry of that type after it was changed by an operator.
fn changed(op: &str, of: &Type, before: &Value, by: &Value) -> Value {
    if let Type::Pointer(_) = of {
        let bytes = by.bits().wrapping_mul(memory::size(of));
        return Value::Address(match op {
            "+" => before.bits().wrapping_add(bytes),
            _ => before.bits().wrapping_sub(bytes),
        });
    }
    let is_signed = before.is_signed();
    Value::unsigned(binary(op, before, by, is_signed, is_signed))
}

fn stepped(of: &Type, before: &Value, is_up: bool) -> Value {
    let op = if is_up { "+" } else { "-" };
    changed(op, of, before, &Value::unsigned(1))
}
