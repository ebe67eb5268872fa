//! What a program prints: its tree is followed as docs/trace-language.md says.
//!
//! Nothing of the compiler is used. A machine has the variables of the clause that runs, the maps
//! of the program, and the requests to the reader, which acts on them after the clause: it prints
//! texts, prints maps as they are then, and clears them.

use std::collections::{BTreeMap, HashMap};

use super::{
    shown::{self, Order, gathered, histogram, ranked},
    tree::{
        Argument, Clause, Entry, Expr, Gather, Kind, Macro, Map, Parameter, Place, Program,
        Statement, Type, Variable,
    },
    value::{Value, binary, compare},
};

/// What happens to the traced kernel.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Write(At),
    Read(At),
    Call(At),
    Tick,
}

#[derive(Clone, Debug)]
pub(super) struct At {
    pub(super) cpu: u32,
    pub(super) arguments: [u64; 6],
}

/// What an entry of a map has.
#[derive(Clone, Debug)]
enum Cell {
    Plain(Value),
    /// All values that were gathered.
    Gathered(Vec<Value>),
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
            at: At {
                cpu: 0,
                arguments: [0; 6],
            },
            requests: Vec::new(),
            out: String::new(),
        }
    }

    pub(super) fn event(&mut self, event: &Event) {
        let (is_there, at): (fn(Place) -> bool, _) = match event {
            Event::Write(at) => (|place| matches!(place, Place::Write | Place::Both), at),
            Event::Read(at) => (|place| matches!(place, Place::Read | Place::Both), at),
            Event::Call(at) => (|place| place == Place::Session, at),
            Event::Tick => {
                let at = At {
                    cpu: 0,
                    arguments: [0; 6],
                };
                return self.clauses(|place| place == Place::Interval, &at);
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
        if clause.place == Place::Session {
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
                            Some(Gather::Hist(_) | Gather::Lhist(..)) => String::new(),
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
                (Cell::Gathered(_), None) => unreachable!("a map of values gathers nothing"),
            };
            (value, key.iter().map(Order::of).collect::<Vec<_>>())
        };
        entries.sort_by_key(order);
        let before = match top {
            0 => 0,
            _ => entries.len().saturating_sub(top),
        };
        let entries = entries[before..].iter();
        entries
            .map(|(key, cell)| entry(map, key, cell, divisor))
            .collect()
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
                let bits = changed(op, &before, &value);
                self.set(variable, Value::unsigned(bits));
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
                let bits = changed(op, &before, &value);
                self.put(&at.map, key, Value::unsigned(bits));
            }
            Statement::Gather(at, _, value) => {
                let key = self.key(at);
                let value = match at.map.gather {
                    // A step has numbers, whatever others are.
                    Some(Gather::Hist(_) | Gather::Lhist(..)) => self.value(value),
                    _ => self.value(value).of(&at.map.of),
                };
                if let Some(cell) = self.entries(&at.map).get_mut(&key) {
                    match cell {
                        Cell::Gathered(values) => values.push(value),
                        Cell::Plain(_) => *cell = Cell::Gathered(vec![value]),
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
                    if self.run(body) == Flow::Return {
                        return Flow::Return;
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
            Statement::Return => return Flow::Return,
            Statement::Print(value) => {
                let shown = self.value(value).shown();
                self.requests.push(Request::Text(shown + "\n"));
            }
            Statement::Printf(parts, is_loose) => {
                let mut texts = Vec::new();
                for (conversion, value) in parts {
                    let bits = match (&value.kind, conversion.length) {
                        (Kind::Cast(cut, _), "") => cut.bits,
                        _ => 64,
                    };
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
            None => self.program.most_keys.unwrap_or(usize::MAX),
        };
        let entries = self.entries(map);
        if entries.len() < most || entries.contains_key(&key) {
            entries.insert(key, Cell::Plain(value.of(&map.of)));
        }
    }

    fn value(&mut self, is: &Expr) -> Value {
        let value = self.plain(is);
        value.of(&is.of)
    }

    fn plain(&mut self, is: &Expr) -> Value {
        match &is.kind {
            Kind::Number(number) => Value::signed(*number as i64),
            Kind::Truth(truth) => Value::Truth(*truth),
            Kind::Word(word) => Value::Text(word.clone()),
            Kind::Joined(a, b) => Value::Text(a.clone() + b),
            Kind::Comm => Value::Text("cat".into()),
            Kind::TextAt(number, most) => {
                let address = self.at.arguments[*number];
                let text = self.texts.iter().find(|(at, _)| *at == address);
                let text = text.map_or("", |(_, text)| text);
                let most = most.unwrap_or(usize::MAX);
                Value::Text(text.chars().take(most).collect())
            }
            Kind::Argument(number) => Value::unsigned(self.at.arguments[*number]),
            Kind::Variable(variable) => self.get(variable),
            Kind::Read(at) => {
                let key = self.key(at);
                self.read(&at.map, &key)
            }
            Kind::Unary(op, a) => {
                let a = self.value(a);
                match *op {
                    "-" => Value::unsigned(a.bits().wrapping_neg()),
                    "~" => Value::unsigned(!a.bits()),
                    _ => Value::Truth(!a.holds()),
                }
            }
            Kind::Binary(op, a, b) => {
                let shifts_sign = a.of == Type::Signed;
                let (a, b) = (self.value(a), self.value(b));
                let is_signed = is.of == Type::Signed;
                Value::unsigned(binary(op, &a, &b, is_signed, shifts_sign))
            }
            Kind::Compare("&&", a, b) => {
                Value::Truth(self.value(a).holds() && self.value(b).holds())
            }
            Kind::Compare("||", a, b) => {
                Value::Truth(self.value(a).holds() || self.value(b).holds())
            }
            Kind::Compare(op, a, b) => {
                let (a, b) = (self.value(a), self.value(b));
                Value::Truth(compare(op, &a, &b))
            }
            Kind::Choice(c, a, b) | Kind::IfElse(c, a, b) => match self.value(c).holds() {
                true => self.value(a),
                false => self.value(b),
            },
            Kind::Or(a, b) => {
                let value = self.value(a);
                match value.holds() {
                    true => value,
                    false => self.value(b),
                }
            }
            Kind::Cast(to, a) => Value::cut(self.value(a).bits(), *to),
            Kind::CastTruth(a) => Value::Truth(self.value(a).holds()),
            Kind::Tuple(parts) => Value::Tuple(parts.iter().map(|part| self.value(part)).collect()),
            Kind::Record(fields) => {
                let fields = fields.iter();
                Value::Record(fields.map(|(name, is)| (*name, self.value(is))).collect())
            }
            Kind::Part(of, number) | Kind::PartAt(of, number) => match self.value(of) {
                Value::Tuple(mut parts) => parts.swap_remove(*number),
                other => panic!("{other:?} is no tuple"),
            },
            Kind::Field(of, name) => match self.value(of) {
                Value::Record(fields) => {
                    let mut fields = fields.into_iter();
                    fields.find(|(known, _)| known == name).expect("a field").1
                }
                other => panic!("{other:?} is no record"),
            },
            Kind::Array(of, count, number) => {
                let bits = self.value(number).bits();
                let element = |index: usize| {
                    let shift = of.bits * index as u32;
                    Value::cut(bits.checked_shr(shift).unwrap_or(0), *of)
                };
                Value::Array((0..*count).map(element).collect())
            }
            Kind::Element(of, count, index) => {
                let values = self.value(of);
                let index = self.value(index).bits() % *count as u64;
                match values {
                    Value::Array(values) => values[index as usize].clone(),
                    other => panic!("{other:?} is no array"),
                }
            }
            Kind::Byte(of, index) => {
                let text = self.value(of);
                let byte = text.text().as_bytes().get(*index);
                Value::unsigned(byte.copied().unwrap_or(0).into())
            }
            Kind::Length(of) => Value::unsigned(self.value(of).text().len() as u64),
            Kind::Begins(of, word, bytes) => {
                let start = |text: &str| {
                    let bytes = text.bytes().chain([0]).take(*bytes);
                    bytes.collect::<Vec<u8>>()
                };
                Value::Truth(start(self.value(of).text()) == start(word))
            }
            Kind::Contains(of, word) => Value::Truth(self.value(of).text().contains(&**word)),
            Kind::Find(of, word) => {
                let place = self.value(of).text().find(&**word);
                Value::signed(place.map_or(-1, |place| place as i64))
            }
            Kind::HasKey(at) => {
                let key = self.key(at);
                Value::Truth(self.entries(&at.map).contains_key(&key))
            }
            Kind::Delete(at) => {
                let key = self.key(at);
                Value::Truth(self.entries(&at.map).remove(&key).is_some())
            }
            Kind::Keys(map) => Value::unsigned(self.entries(map).len() as u64),
            Kind::Step(variable, is_up, is_before) => {
                let before = self.get(variable);
                self.set(variable, Value::unsigned(stepped(&before, *is_up)));
                match is_before {
                    true => self.get(variable),
                    false => before,
                }
            }
            Kind::StepAt(at, is_up, is_before) => {
                let key = self.key(at);
                let before = self.read(&at.map, &key);
                let after = Value::unsigned(stepped(&before, *is_up));
                self.put(&at.map, key, after.clone());
                if *is_before { after } else { before }
            }
            Kind::Block(body, value) => {
                self.run(body);
                self.value(value)
            }
            Kind::Parameter(number) => {
                let inner = self.frame;
                let given = self.frames[inner].values[number].clone();
                self.frame = self.frames[inner].caller;
                let value = self.value(&given);
                self.frame = inner;
                value
            }
            Kind::Macro(number, given) => self.call(&self.program.macros[*number], given),
        }
    }

    fn call(&mut self, called: &'p Macro, given: &[Argument]) -> Value {
        let mut frame = Frame {
            caller: self.frame,
            ..Frame::default()
        };
        for (number, (parameter, given)) in called.parameters.iter().zip(given).enumerate() {
            match (parameter, given) {
                (Parameter::Variable(own), Argument::Variable(given)) => {
                    frame.variables.insert(own.id, given.clone());
                }
                (Parameter::Map(own), Argument::Map(given)) => {
                    frame.maps.insert(own.id, given.clone());
                }
                (Parameter::Value(_), Argument::Value(given)) => {
                    frame.values.insert(number, given.clone());
                }
                _ => unreachable!("an argument of another kind"),
            }
        }
        let caller = self.frame;
        self.frame = self.frames.len();
        self.frames.push(frame);
        self.run(&called.body);
        let value = self.value(&called.value);
        self.frame = caller;
        value
    }
}

/// A line of a map.
fn entry(map: &Map, key: &[Value], cell: &Cell, divisor: u64) -> String {
    let texts: Vec<String> = match key {
        // A tuple is as good as several keys.
        [Value::Tuple(parts)] => parts.iter().map(Value::shown).collect(),
        _ => key.iter().map(Value::shown).collect(),
    };
    let name = match key.is_empty() {
        true => map.name.clone(),
        false => format!("{}[{}]", map.name, texts.join(", ")),
    };
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
        (None, Cell::Gathered(_)) => unreachable!("a map of values gathers nothing"),
    };
    format!("{name}: {value}\n")
}

fn changed(op: &str, before: &Value, by: &Value) -> u64 {
    let is_signed = before.is_signed();
    binary(op, before, by, is_signed, is_signed)
}

fn stepped(before: &Value, is_up: bool) -> u64 {
    match is_up {
        true => before.bits().wrapping_add(1),
        false => before.bits().wrapping_sub(1),
    }
}
