//! Maps in expressions: keys, and the values of all CPUs as they are at that moment.
//!
//! A key is stored each time that it is used, so a number names it by its place in the list of
//! keys. What a map holds may not be known yet; then it counts as a number until the text is gone
//! through again.

use alloc::{boxed::Box, format, vec::Vec};

use bpf::AluOp;
use trace_interface::{shape::Shape, view::Class};
use trace_language::{Diagnostic, tree::Map as MapName};

use super::{Val, Values, composite};
use crate::{
    Lowered,
    number::{Key, Kind, Number, Test},
    types::missing,
};

impl Values<'_, '_> {
    /// The value of a key of a map.
    pub(crate) fn element(&mut self, map: &MapName) -> Lowered<Val> {
        let number = self.tables.map(&map.name);
        let class = self.tables.maps[number as usize].class.clone();
        let key = self.key(number, map)?;
        // If it is not known yet, it is for now what can become anything.
        let class = class.unwrap_or(Class::Plain(Shape::Literal));
        self.value_of(number, &class, key, map)
    }

    /// The same for a key that is stored already.
    pub(crate) fn value_of(
        &mut self,
        number: u32,
        class: &Class,
        key: usize,
        map: &MapName,
    ) -> Lowered<Val> {
        let shape = match class {
            Class::Plain(shape) => shape.clone(),
            class => return self.gathered(number, class, key, map),
        };
        Ok(match self.tables.kind_in(number, &shape) {
            Some(kind) => Val::number(
                Number::Element {
                    map: number,
                    key: Box::new(Key { stored: key }),
                },
                kind,
            ),
            None => Val::Element {
                map: number,
                key,
                shape,
            },
        })
    }

    /// The keys of a map, and their number for expressions.
    pub(crate) fn key(&mut self, number: u32, map: &MapName) -> Lowered<usize> {
        let mut values = Vec::new();
        let mut spans = Vec::new();
        for key in &map.keys {
            let value = composite::item(self, key)?;
            values.push(value);
            spans.push(key.span);
        }
        // A tuple alone is as many keys.
        if let [only] = &values[..] {
            let only = composite::at_hand(self, only.clone(), map.span);
            let is_tuple = matches!(self.shape(&only, false), Shape::Tuple(_));
            if is_tuple && let Some(parts) = composite::parts(&only) {
                spans = alloc::vec![spans[0]; parts.len()];
                values = parts;
            }
        }
        let shapes: Vec<Shape> = values
            .iter()
            .map(|value| self.shape(value, false))
            .collect();
        for (shape, span) in shapes.iter().zip(&spans) {
            if shape.is_lost() {
                return Err(missing(*span));
            }
        }
        self.tables.set_keys(number, map, shapes, &spans)?;
        let known = self.tables.maps[number as usize].keys.iter().flatten();
        for ((shape, value), span) in known.zip(&values).zip(&spans) {
            if let (Shape::Signed(8) | Shape::Literal, Val::Number(counted)) = (shape, value)
                && !counted.kind.is_signed()
                && counted
                    .number
                    .constant()
                    .is_some_and(|number| number.cast_signed() < 0)
            {
                return Err(Diagnostic::new(
                    *span,
                    "the keys of this map are signed numbers, and this is above them",
                    "use another map, or a key below 9223372036854775808",
                ));
            }
        }
        self.keys.push((number, values, map.span));
        Ok(self.keys.len() - 1)
    }

    /// Whether all keys are there.
    pub(crate) fn keys_present(&self, key: usize) -> Test {
        let (_, values, _) = &self.keys[key];
        values
            .iter()
            .map(Val::present)
            .fold(Test::Constant(true), Test::and)
    }

    /// Whether a map has a key.
    pub(crate) fn has_key(&mut self, map: &MapName) -> Lowered<Test> {
        let number = self.tables.map(&map.name);
        let class = self.tables.maps[number as usize].class.clone();
        let key = self.key(number, map)?;
        let stored = Box::new(Key { stored: key });
        let is_there = match class {
            Some(class) if class.parts().is_some() => {
                return Err(Diagnostic::new(
                    map.span,
                    "a histogram or a series is kept in parts, so there is no key by itself",
                    "count in another map by the same key: `@n[KEY] = count();`",
                ));
            }
            Some(Class::Plain(_)) | None => Number::HasKey {
                map: number,
                key: stored,
            },
            Some(_) => Number::OfCpus {
                map: number,
                key: stored,
                word: 0,
                greatest: false,
            },
        };
        Ok(self.keys_present(key).and(Test::not_zero(is_there)))
    }

    /// The value of a map of counts and the like, over all CPUs as they are at that moment; 0 if
    /// nothing was counted.
    fn gathered(&mut self, map: u32, class: &Class, key: usize, name: &MapName) -> Lowered<Val> {
        if matches!(
            class,
            Class::Average { .. } | Class::Most { .. } | Class::Least { .. }
        ) {
            // Both words are of one key.
            let (_, values, span) = self.keys[key].clone();
            let values = values.into_iter();
            let values = values.map(|value| composite::steady(self, value, span));
            self.keys[key].1 = values.collect();
        }
        let word = |word, greatest| Number::OfCpus {
            map,
            key: Box::new(Key { stored: key }),
            word,
            greatest,
        };
        let of_sign = |signed| match signed {
            true => Kind::SIGNED,
            false => Kind::UNSIGNED,
        };
        let (number, kind) = match class {
            Class::Count => (word(0, false), Kind::UNSIGNED),
            Class::Sum { signed } => (word(1, false), of_sign(*signed)),
            Class::Average { signed } => {
                let op = match signed {
                    true => AluOp::SignedDiv,
                    false => AluOp::Div,
                };
                let average = Number::alu(op, word(1, false), word(0, false));
                (average, of_sign(*signed))
            }
            Class::Most { signed } | Class::Least { signed } => {
                let mut number = word(1, true);
                // Turned back: see `gather`.
                if matches!(class, Class::Least { .. }) {
                    number = Number::alu(AluOp::Xor, number, Number::Constant(u64::MAX));
                }
                if *signed {
                    number = Number::alu(AluOp::Xor, number, Number::Constant(1 << 63));
                }
                let is_there = Test::not_zero(word(0, false));
                let number = Number::select(is_there, number, Number::Constant(0));
                (number, of_sign(*signed))
            }
            Class::Statistics { .. } => {
                return Err(Diagnostic::new(
                    name.span,
                    format!("`@{}` is of stats(), which is three values", name.name.text),
                    "print it, or keep the one that you need: count(), avg() or sum()",
                ));
            }
            Class::Histogram(_) | Class::Series(_) | Class::Plain(_) => {
                let what = match class {
                    Class::Series(_) => "a series in time",
                    _ => "a histogram",
                };
                return Err(Diagnostic::new(
                    name.span,
                    format!(
                        "`@{}` is {what}, which is no value to calculate with",
                        name.name.text
                    ),
                    "print it, or count in another map: `@n = count();`",
                ));
            }
        };
        Ok(Val::number(number, kind))
    }
}
