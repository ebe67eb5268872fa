//! What expressions are worth.
//!
//! A value has the type of its expression, whatever it was made of. A step or a block in an
//! expression changes the machine, in the order of the text.

use super::{
    super::{
        memory,
        shown::time_of,
        tree::{Argument, Expr, Kind, Macro, Parameter, Type},
        value::{Value, binary, compare},
    },
    Frame, Machine, changed, stepped,
};

impl<'p> Machine<'p> {
    pub(super) fn value(&mut self, is: &Expr) -> Value {
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
                let room = self.program.settings.most_text.unwrap_or(usize::MAX);
                let most = most.unwrap_or(room - 1);
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
            Kind::Swapped(bits, of) => {
                let number = self.value(of).bits().swap_bytes();
                Value::unsigned(number >> (64 - bits))
            }
            Kind::IsError(of) => {
                let number = self.value(of).bits().cast_signed();
                Value::Truth((-4095..0).contains(&number))
            }
            Kind::Start(of, bytes) => {
                let text = self.value(of);
                let text = text.text();
                Value::Text(text[..text.floor_char_boundary(*bytes)].into())
            }
            Kind::Before(a, b) => Value::Truth(a < b),
            Kind::OfArray(of) => match self.value(of) {
                Value::Array(elements) => {
                    let width = 64 / elements.len() as u32;
                    let cut = |element: &Value| element.bits() << (64 - width) >> (64 - width);
                    let bits = elements.iter().rev().fold(0_u128, |bits, element| {
                        bits << width | u128::from(cut(element))
                    });
                    Value::unsigned(bits as u64)
                }
                other => panic!("{other:?} is no array"),
            },
            Kind::TextArray(of, word) => {
                let bytes = word.bytes().chain([0]);
                Value::Array(bytes.map(|byte| Value::cut(byte.into(), *of)).collect())
            }
            Kind::Like(variable, of) => {
                let number = self.value(of);
                match variable.cut {
                    Some(cut) => Value::cut(number.bits(), cut),
                    None => number,
                }
            }
            Kind::IsAt(_, is_read) => Value::Truth(self.at.is_read == *is_read),
            Kind::Bytes(of, bytes) => Value::Bytes(match self.value(of) {
                Value::Text(text) => {
                    let all = text.bytes().chain(core::iter::repeat(0));
                    all.take(*bytes).collect()
                }
                address => {
                    let place = (address.bits() - memory::NUMBERS) as usize;
                    let (_, numbers) = &memory::contents()[0];
                    numbers[place..place + bytes].to_vec()
                }
            }),
            Kind::SomeBytes(of, bytes) => {
                let place = (self.value(of).bits() - memory::NUMBERS) as usize;
                let bytes = self.value(bytes).bits() as usize;
                let (_, numbers) = &memory::contents()[0];
                Value::Bytes(numbers[place..place + bytes].to_vec())
            }
            Kind::TextUpTo(number, bytes) => {
                let whole = Expr {
                    of: Type::Text,
                    kind: Kind::TextAt(*number, None),
                };
                let most = self.value(bytes).bits() as usize;
                let text = self.value(&whole);
                Value::Text(text.text().chars().take(most).collect())
            }
            Kind::Time(format, of) => Value::Text(time_of(format, self.value(of).bits())),
            Kind::SizeOf(of) => Value::unsigned(match &of.of {
                Type::Truth => 1,
                Type::Array(cut, count) => u64::from(cut.bits) / 8 * *count as u64,
                _ => u64::from(self.own_bits(of)) / 8,
            }),
            Kind::OfType(_, bytes) => Value::unsigned(*bytes),
            Kind::ByType(of, a, b) => match of.of == Type::Text {
                true => self.value(a),
                false => self.value(b),
            },
            // A tick is 2 nanoseconds.
            Kind::Nanoseconds => Value::unsigned(self.at.time / 2 * 2),
            Kind::ToPointer(_, of) => Value::Address(self.value(of).bits()),
            Kind::Moved(op, of, by) => {
                let (of_type, of) = (&of.of, self.value(of));
                let by = self.value(by);
                changed(op, of_type, &of, &by)
            }
            Kind::Steps(a, b) => {
                let size = memory::size(&a.of);
                let bytes = self.value(a).bits().wrapping_sub(self.value(b).bits());
                Value::signed(bytes.cast_signed() / size.cast_signed())
            }
            Kind::At(of) => memory::number(self.value(of).bits(), &of.of),
            Kind::Indexed(of, index) => {
                let at = self.value(of).bits();
                let steps = self.value(index).bits() % 4;
                memory::number(at.wrapping_add(steps * memory::size(&of.of)), &of.of)
            }
            Kind::OfFile(at, field) => {
                let at = match at {
                    Some(at) => self.value(at).bits(),
                    None => self.at.arguments[0],
                };
                memory::of_file(at, *field)
            }
            Kind::Count => {
                let number = if self.at.is_read { 2 } else { 3 };
                Value::unsigned(self.at.arguments[number] & 0xffff_ffff)
            }
            Kind::Delta => Value::signed((self.at.arguments[3] as i32).into()),
            Kind::Retval => Value::signed(self.at.result.cast_signed()),
            Kind::Tid => Value::unsigned(self.at.tid.into()),
            Kind::Cpu => Value::unsigned(self.at.cpu.into()),
            Kind::Byte(of, index) => {
                let text = self.value(of);
                let byte = text.text().as_bytes().get(*index);
                // As in C, it has a sign.
                let byte = byte.copied().unwrap_or(0).cast_signed();
                Value::signed(byte.into())
            }
            Kind::Length(of) => Value::unsigned(self.value(of).text().len() as u64),
            Kind::Begins(of, word, bytes) => {
                let start = |text: &str| {
                    let bytes = text.bytes().chain([0]).take(*bytes);
                    bytes.collect::<Vec<u8>>()
                };
                Value::Truth(start(self.value(of).text()) == start(word))
            }
            Kind::Contains(of, part) => {
                let (text, part) = (self.value(of), self.value(part));
                Value::Truth(text.text().contains(part.text()))
            }
            Kind::Find(of, part) => {
                let (text, part) = (self.value(of), self.value(part));
                let place = text.text().find(part.text());
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
                self.set(variable, stepped(&variable.of, &before, *is_up));
                match is_before {
                    true => self.get(variable),
                    false => before,
                }
            }
            Kind::StepAt(at, is_up, is_before) => {
                let key = self.key(at);
                let before = self.read(&at.map, &key);
                let after = stepped(&at.map.of, &before, *is_up);
                self.put(&at.map, key.clone(), after);
                // A full map has nothing of it.
                match is_before {
                    true => self.read(&at.map, &key),
                    false => before,
                }
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
