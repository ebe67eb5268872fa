//! What all programs of a script share: its maps, records, loops, names of probes, and types.
//!
//! The types of maps are known only after all their assignments are seen. So the text is gone
//! through again until nothing new is learned about them ([`Tables::learned`]).

mod declared;
mod maps;

use alloc::{borrow::ToOwned, collections::BTreeMap, format, rc::Rc, string::String, vec::Vec};

use bpf::{MapDef, MapKind};
use trace_interface::{
    script::{self, Request},
    shape::Shape,
    symbols::Kernel,
    view::{Class, Record},
};
use trace_language::{
    Diagnostic,
    tree::{self, Span},
};

use crate::{names, number::Kind, options::Options, types::Types};

/// A map of the script.
pub(crate) struct Map {
    /// Its name without the sign; None for one of the compiler's own.
    pub(crate) name: Option<String>,
    pub(crate) span: Span,
    /// The definition of a map of the compiler's own.
    pub(crate) def: Option<MapDef>,
    pub(crate) class: Option<Class>,
    pub(crate) keys: Option<Vec<Shape>>,
    /// What the numbers of a plain map are.
    pub(crate) kind: Option<Kind>,
    pub(crate) declared: Option<Declared>,
}

/// What a declaration says of a map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Declared {
    pub(crate) keys: u32,
    pub(crate) on_each_cpu: bool,
    /// A key that was not used for long makes room for another one.
    pub(crate) forgets: bool,
}

/// A variable without a first value: the kind of its first assignment.
#[derive(Clone, Debug)]
pub(crate) enum Unset {
    Number(Kind),
    Stored(Shape),
}

/// Which variable: its name, where the text makes it, and the place that the clause is compiled
/// for.
pub(crate) type Made = (String, usize, Option<u64>);

/// See the module's text.
pub(crate) struct Tables<'a> {
    pub(crate) options: &'a Options,
    pub(crate) types: Types<'a>,
    /// They are kept from one time to the next.
    pub(crate) maps: Vec<Map>,
    pub(crate) learned: bool,
    pub(crate) errors: Vec<Diagnostic>,
    pub(crate) requests: Vec<Request>,
    pub(crate) records: Vec<Record>,
    /// The names of probes, for `probe`.
    pub(crate) probes: Vec<(Rc<str>, bool)>,
    /// Loops that are ended after so many turns.
    pub(crate) loops: Vec<(Rc<str>, u32)>,
    /// How many watches calls aim.
    pub(crate) aimed: u32,
    /// The program that is being made has such a loop.
    pub(crate) has_open_loop: bool,
    /// The shapes of the values that variables are given.
    variables: BTreeMap<Made, Shape>,
    /// What was assigned numbers of the text only is signed. Until all else is known, it has the
    /// sign of what it meets, as they have.
    signs_settled: bool,
    /// Such a sign was asked for.
    sign_open: bool,
    /// How often a variable was asked for a value before anything tells what it holds.
    pub(crate) guesses: usize,
    /// What variables without a first value hold before their first assignment, in the same way.
    pub(crate) unset: BTreeMap<Made, Unset>,
    /// The functions of patterns.
    functions: BTreeMap<String, Rc<[u64]>>,
}

/// The name of the map of their counters. No script has such a map, because it is no name of the
/// language.
pub(crate) const LOOPS: &str = "(loops)";
/// The most such loops of a script.
pub(crate) const MOST_OPEN_LOOPS: u32 = 256;

impl<'a> Tables<'a> {
    pub(crate) fn new(kernel: &'a dyn Kernel, options: &'a Options) -> Self {
        Self {
            options,
            types: Types::new(kernel, options),
            maps: Vec::new(),
            learned: false,
            errors: Vec::new(),
            requests: Vec::new(),
            records: Vec::new(),
            probes: Vec::new(),
            loops: Vec::new(),
            aimed: 0,
            has_open_loop: false,
            variables: BTreeMap::new(),
            signs_settled: false,
            sign_open: false,
            guesses: 0,
            unset: BTreeMap::new(),
            functions: BTreeMap::new(),
        }
    }

    /// Begins to go through the text once more. What is known of maps and types stays.
    pub(crate) fn begin(&mut self) {
        self.learned = false;
        self.sign_open = false;
        self.errors.clear();
        self.requests.clear();
        self.records.clear();
        self.probes.clear();
        self.loops.clear();
        self.aimed = 0;
    }

    pub(crate) fn error(&mut self, error: Diagnostic) {
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    /// The number of a loop that is ended after so many turns; an equal one is used again.
    pub(crate) fn open_loop(&mut self, text: String, turns: u32) -> u32 {
        let mut known = self.loops.iter();
        if let Some(known) = known.position(|(known, of)| **known == *text && *of == turns) {
            return known as u32;
        }
        self.loops.push((text.into(), turns));
        self.loops.len() as u32 - 1
    }

    /// The counters of loops that were ended.
    pub(crate) fn loop_counters(&mut self) -> u32 {
        self.own_map(MapDef::counters(LOOPS, MOST_OPEN_LOOPS))
    }

    /// The number of a map of the compiler's own.
    fn own_map(&mut self, def: MapDef) -> u32 {
        let known = self
            .maps
            .iter()
            .position(|map| map.def.as_ref() == Some(&def));
        let number = known.unwrap_or_else(|| {
            self.maps.push(Map {
                name: None,
                span: Span::default(),
                def: Some(def),
                class: None,
                keys: None,
                kind: None,
                declared: None,
            });
            self.maps.len() - 1
        });
        number as u32
    }

    pub(crate) fn ring(&mut self) -> u32 {
        self.own_map(MapDef::ring("(ring)"))
    }

    pub(crate) fn clock(&mut self) -> u32 {
        self.own_map(MapDef {
            name: script::CLOCK.into(),
            kind: MapKind::Array,
            key_size: 4,
            value_size: 24,
            entries: 1,
        })
    }

    pub(crate) fn stacks(&mut self, frames: u32, is_user: bool) -> u32 {
        // Two words for the name of the program.
        let (of, words) = match is_user {
            true => ("user ", frames + 2),
            false => ("", frames),
        };
        self.own_map(MapDef {
            name: format!("({of}stacks {frames})").into(),
            kind: MapKind::Stacks,
            key_size: 4,
            value_size: 8 * words,
            entries: self.options.stacks,
        })
    }

    /// The number of a map of the text.
    pub(crate) fn map(&mut self, map: &tree::Name) -> u32 {
        let known = self
            .maps
            .iter()
            .position(|known| known.name.as_deref() == Some(&*map.text));
        let number = known.unwrap_or_else(|| {
            self.maps.push(Map {
                name: Some(map.text.clone()),
                span: map.span,
                def: None,
                class: None,
                keys: None,
                kind: None,
                declared: None,
            });
            self.learned = true;
            self.maps.len() - 1
        });
        number as u32
    }

    /// The shape of a variable that is assigned a value of that shape, too. It takes the values of
    /// all assignments, as far as they are known. None: no shape takes both.
    pub(crate) fn variable(&mut self, made: Made, new: &Shape) -> Option<Shape> {
        let known = self.variables.entry(made).or_insert_with(|| new.clone());
        self.learned |= known.merge(new)?;
        Some(known.clone())
    }

    /// The kind of a number of which nothing tells the sign: that of a number of the text, as long
    /// as others may tell it.
    pub(crate) fn open_kind(&mut self) -> Kind {
        if self.signs_settled {
            return Kind::SIGNED;
        }
        self.sign_open = true;
        Kind::Literal
    }

    /// The kind of a number that a map or a variable holds so.
    pub(crate) fn kind_of(&mut self, shape: &Shape) -> Option<Kind> {
        Some(match shape {
            Shape::Unsigned(8) => Kind::UNSIGNED,
            Shape::Signed(8) => Kind::SIGNED,
            Shape::Literal => self.open_kind(),
            Shape::Flag => Kind::Boolean,
            _ => return None,
        })
    }

    /// The kind of one of two numbers, by the kinds of both and their values, if the text has them.
    pub(crate) fn either(&mut self, a: (&Kind, Option<u64>), b: (&Kind, Option<u64>)) -> Kind {
        if let Some(kind) = Kind::either(a, b) {
            return kind;
        }
        match (a.0, b.0) {
            (a, b) if a == b => a.clone(),
            (Kind::Literal, other) | (other, Kind::Literal) => match other {
                // What holds the truth may be a number, when all that it is given is known.
                Kind::Boolean => self.open_kind(),
                Kind::Character => Kind::SIGNED,
                other => other.clone(),
            },
            (a, b) if a.is_signed() || b.is_signed() => Kind::SIGNED,
            _ => Kind::UNSIGNED,
        }
    }

    /// The kind of the numbers that a map of such values holds. None: they are no numbers.
    pub(crate) fn kind_in(&mut self, map: u32, shape: &Shape) -> Option<Kind> {
        match self.maps[map as usize].kind.clone() {
            // The shape tells the sign that all of them have together.
            integers @ (Some(Kind::Integer { .. }) | None) => self.kind_of(shape).or(integers),
            other => other,
        }
    }

    /// Has the signs that nothing tells settled. False: there is none.
    pub(crate) fn settle_signs(&mut self) -> bool {
        let is_new = self.sign_open && !self.signs_settled;
        self.signs_settled |= is_new;
        is_new
    }

    /// The number of a request; an equal one is used again.
    pub(crate) fn request(&mut self, request: Request, record: Record) -> u32 {
        let mut known = self.requests.iter().zip(&self.records);
        if let Some(known) = known.position(|known| known == (&request, &record)) {
            return known as u32;
        }
        self.requests.push(request);
        self.records.push(record);
        self.requests.len() as u32 - 1
    }

    /// The addresses of the functions of a pattern, sorted.
    pub(crate) fn functions(&mut self, pattern: &str) -> Rc<[u64]> {
        if let Some(known) = self.functions.get(pattern) {
            return known.clone();
        }
        let mut found: Vec<u64> = self
            .types
            .kernel
            .functions(pattern)
            .iter()
            .map(|function| function.address)
            .collect();
        found.sort_unstable();
        found.dedup();
        let found: Rc<[u64]> = found.into();
        self.functions.insert(pattern.to_owned(), found.clone());
        found
    }

    pub(crate) fn no_function(&self, name: &tree::Name) -> Diagnostic {
        let copies = self.types.kernel.inlined(&name.text).len();
        if copies != 0 {
            return Diagnostic::new(
                name.span,
                format!(
                    "`{}` has no code of its own: each of its {copies} copies is inlined",
                    name.text
                ),
                format!("probe where the copies begin: inline:{}", name.text),
            );
        }
        Diagnostic::new(
            name.span,
            format!("no function of the kernel is called `{}`", name.text),
            names::did_you_mean(&self.types.kernel.nearest(&name.text)),
        )
    }
}
