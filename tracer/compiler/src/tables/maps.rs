//! The maps of a script: what their keys and values are, as far as the text has told until now.
//!
//! TABLES-1. What is known of a map only grows: a shape takes more values, a kind fewer promises.
//!     So going through the text again comes to an end.

use alloc::{collections::BTreeSet, format, string::String, vec::Vec};

use bpf::{MapDef, MapKind};
use trace_interface::{
    shape::Shape,
    view::{Class, Scale, Series},
};
use trace_language::{
    Diagnostic,
    tree::{Map as MapName, Span},
};

use super::{Declared, Tables};
use crate::{Lowered, names, number::Kind};

/// The most bytes of a key.
const MOST_KEY: u32 = MapDef::MOST_KEY_BYTES;

/// The same for numbers without a sign.
fn unsigned(class: &Class) -> Class {
    let signed = false;
    match class {
        Class::Sum { .. } => Class::Sum { signed },
        Class::Average { .. } => Class::Average { signed },
        Class::Statistics { .. } => Class::Statistics { signed },
        Class::Most { .. } => Class::Most { signed },
        Class::Least { .. } => Class::Least { signed },
        Class::Series(series) => Class::Series(Series { signed, ..*series }),
        other => other.clone(),
    }
}

/// The kind of a map, in messages.
fn class_name(class: &Class) -> &'static str {
    match class {
        Class::Count => "count()",
        Class::Sum { .. } => "sum()",
        Class::Average { .. } => "avg()",
        Class::Statistics { .. } => "stats()",
        Class::Most { .. } => "max()",
        Class::Least { .. } => "min()",
        Class::Histogram(Scale::Log2) => "hist()",
        Class::Histogram(Scale::Split { .. }) => "hist() in other parts",
        Class::Histogram(_) => "lhist()",
        Class::Series(_) => "tseries()",
        Class::Plain(_) => "a value",
    }
}

impl Tables<'_> {
    /// Notes what a map holds.
    pub(crate) fn set_class(&mut self, map: u32, class: Class, span: Span) -> Lowered<()> {
        let entry = &mut self.maps[map as usize];
        match &mut entry.class {
            None => {
                entry.class = Some(class);
                self.learned = true;
                Ok(())
            }
            Some(known) if *known == class => Ok(()),
            Some(Class::Plain(shape)) if matches!(class, Class::Plain(_)) => {
                let Class::Plain(new) = class else {
                    return Ok(());
                };
                match shape.merge(&new) {
                    Some(changed) => {
                        self.learned |= changed;
                        Ok(())
                    }
                    None => {
                        let message = format!(
                            "`@{}` holds {}, and this is {}",
                            entry.name.as_deref().unwrap_or(""),
                            names::shape(shape),
                            names::shape(&new)
                        );
                        Err(Diagnostic::new(span, message, "use another map"))
                    }
                }
            }
            // The same function with numbers of another sign: they are signed if some are.
            Some(known) if unsigned(known) == unsigned(&class) => {
                if unsigned(&class) != class {
                    *known = class;
                    self.learned = true;
                }
                Ok(())
            }
            Some(known) => {
                let message = format!(
                    "`@{}` is assigned {} elsewhere, and {} here",
                    entry.name.as_deref().unwrap_or(""),
                    class_name(known),
                    class_name(&class)
                );
                Err(Diagnostic::new(span, message, "use another map"))
            }
        }
    }

    /// Whether a map holds what expressions cannot have.
    pub(crate) fn is_only_printed(&mut self, map: &MapName) -> bool {
        let number = self.map(&map.name);
        let class = &self.maps[number as usize].class;
        matches!(
            class,
            Some(Class::Histogram(_) | Class::Series(_) | Class::Statistics { .. })
        )
    }

    /// A map of plain numbers, for `++`.
    pub(crate) fn plain_map(&mut self, map: &MapName) -> Lowered<u32> {
        let number = self.map(&map.name);
        // A step says nothing of the sign.
        let steps = Class::Plain(Shape::Literal);
        self.set_class(number, steps, map.span)?;
        Ok(number)
    }

    /// Notes the keys of a map.
    pub(crate) fn set_keys(
        &mut self,
        number: u32,
        map: &MapName,
        shapes: Vec<Shape>,
        spans: &[Span],
    ) -> Lowered<()> {
        let entry = &mut self.maps[number as usize];
        match &mut entry.keys {
            None => {
                entry.keys = Some(shapes);
                self.learned = true;
            }
            Some(known) if known.len() != shapes.len() => {
                let message = format!(
                    "`@{}` has {} keys elsewhere, and {} here",
                    map.name.text,
                    known.len(),
                    shapes.len()
                );
                return Err(Diagnostic::new(
                    map.span,
                    message,
                    "give it the same keys everywhere, or use another map",
                ));
            }
            Some(known) => {
                for ((known, new), span) in known.iter_mut().zip(&shapes).zip(spans) {
                    match known.merge(new) {
                        Some(changed) => self.learned |= changed,
                        None => {
                            let (new, known) = (names::shape(new), names::shape(known));
                            let message = match new == known {
                                true => format!("this key is {new} of another kind than elsewhere"),
                                false => format!("this key is {new}; elsewhere it is {known}"),
                            };
                            return Err(Diagnostic::new(
                                *span,
                                message,
                                "give the map keys of the same types everywhere",
                            ));
                        }
                    }
                }
            }
        }
        let entry = &self.maps[number as usize];
        let bytes: u32 = entry.keys.iter().flatten().map(Shape::bytes).sum();
        let parts = entry.class.as_ref().and_then(Class::parts);
        let bucket = if parts.is_some() { 2 } else { 0 };
        if bytes + bucket > MOST_KEY {
            return Err(Diagnostic::new(
                map.span,
                format!(
                    "the keys have {bytes} bytes; at most {} fit",
                    MOST_KEY - bucket
                ),
                "use fewer keys, a field of the value, or a shorter text: str(address, 16)",
            ));
        }
        if !spans.is_empty() && bytes == 0 {
            return Err(Diagnostic::new(
                map.span,
                "the key has no bytes",
                "use a map without keys",
            ));
        }
        Ok(())
    }

    /// Notes what kind of numbers a map holds.
    pub(crate) fn set_kind(&mut self, number: u32, kind: Option<Kind>) {
        let entry = &mut self.maps[number as usize];
        match (&entry.kind, kind) {
            (None, Some(kind)) => {
                entry.kind = Some(kind);
                self.learned = true;
            }
            (Some(Kind::Boolean), Some(kind)) if kind != Kind::Boolean => {
                entry.kind = Some(kind);
                self.learned = true;
            }
            // An address of two types is one of none, and so is what is a number elsewhere.
            (
                Some(Kind::Pointer {
                    to: Some(to),
                    space,
                }),
                Some(new),
            ) => {
                let is_same = matches!(new, Kind::Pointer { to: Some(of), .. } if of == *to);
                if !is_same {
                    entry.kind = Some(Kind::Pointer {
                        to: None,
                        space: *space,
                    });
                    self.learned = true;
                }
            }
            _ => {}
        }
    }

    /// The definition of a map. None: it is not known yet.
    pub(crate) fn def(&self, number: u32) -> Option<MapDef> {
        let map = self.maps.get(number as usize)?;
        if let Some(def) = &map.def {
            return Some(def.clone());
        }
        let class = map.class.as_ref()?;
        let keys = map.keys.as_ref()?;
        let key_size: u32 = keys.iter().map(Shape::bytes).sum();
        let name = format!("@{}", map.name.as_deref().unwrap_or(""));
        let declared = map.declared.as_ref().map(Declared::entries);
        let with_key = |kind, key_size, value_size| MapDef {
            name: name.clone().into(),
            kind,
            key_size,
            value_size,
            entries: declared.unwrap_or(self.options.map_keys),
        };
        let value_size = match class {
            Class::Count | Class::Histogram(_) => 8,
            Class::Plain(shape) => shape.bytes().max(1).next_multiple_of(8),
            Class::Series(_) => 32,
            _ => 16,
        };
        Some(match class {
            Class::Plain(_) if keys.is_empty() => MapDef {
                entries: 1,
                ..with_key(MapKind::Hash, 8, value_size)
            },
            Class::Plain(_) => with_key(MapKind::Hash, key_size, value_size),
            class if let Some(parts) = class.parts() => match keys.is_empty() {
                true => MapDef {
                    entries: parts,
                    ..with_key(MapKind::PerCpuArray, 4, value_size)
                },
                false => MapDef {
                    entries: self
                        .options
                        .map_keys
                        .saturating_mul(2)
                        .min(MapDef::MOST_ENTRIES),
                    ..with_key(MapKind::PerCpuHash, key_size + 2, value_size)
                },
            },
            _ if keys.is_empty() => MapDef {
                entries: 1,
                ..with_key(MapKind::PerCpuArray, 4, value_size)
            },
            _ => with_key(MapKind::PerCpuHash, key_size, value_size),
        })
    }

    /// Makes maps that only clauses without a place assign to ones of numbers, which stay empty.
    /// False: there is none.
    pub(crate) fn settle(&mut self, names: &BTreeSet<String>) -> bool {
        let mut settled = false;
        for map in &mut self.maps {
            if !map.name.as_ref().is_some_and(|name| names.contains(name)) {
                continue;
            }
            if map.class.is_none() {
                map.class = Some(Class::Plain(Shape::Unsigned(8)));
                settled = true;
            } else if map.keys.is_none() {
                // Where nothing else tells: what has keys is not shown while it is empty.
                map.keys = Some(alloc::vec![Shape::Unsigned(8)]);
                settled = true;
            }
        }
        settled
    }

    pub(crate) fn never_set(&self, number: usize) -> Diagnostic {
        let map = &self.maps[number];
        let name = map.name.as_deref().unwrap_or("");
        let others = self.maps.iter().enumerate();
        let others = others.filter(|(other, map)| *other != number && map.class.is_some());
        let others = others.filter_map(|(_, map)| map.name.as_deref());
        let near = names::nearest(name, others);
        let near: Vec<String> = near.into_iter().map(|name| format!("@{name}")).collect();
        Diagnostic::new(
            map.span,
            format!("`@{name}` is used, but nothing is ever assigned to it"),
            match near.is_empty() {
                true => format!("assign to it, for example `@{name} = count();`"),
                false => names::did_you_mean(&near),
            },
        )
    }
}
