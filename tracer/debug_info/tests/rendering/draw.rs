//! Draws programs of values: types of the source that nobody chose, with types of the library in
//! one another, and a value of each.
//!
//! What is left out has no text of its own that could be compared: addresses, what hashes put into
//! an order of theirs beyond one key, and names of types in texts.

mod library;

use std::fmt::Write as _;

use instruction_cases::Random;

use self::library::{First, GENERIC, Generic, NEVER, PLAIN, Parts, Plain};

#[derive(Clone)]
pub enum Type {
    Plain(&'static Plain),
    Of(&'static Generic, Vec<Type>),
    Tuple(Vec<Type>),
    /// The source's, by its number, with arguments.
    Named(usize, Vec<Type>),
    /// An object of one of those that implement the program's trait.
    Object(&'static str),
    /// A parameter of the type around.
    Parameter(usize),
    /// The type around.
    Itself,
}

/// The fields of a structure or a variant.
#[derive(Clone)]
struct Fields {
    /// None for a tuple's.
    names: Option<Vec<&'static str>>,
    types: Vec<Type>,
}

struct Variant {
    name: String,
    fields: Fields,
    is_never: bool,
}

/// A type of the source.
struct Named {
    name: String,
    parameters: usize,
    /// One without a name for a structure.
    variants: Vec<Variant>,
    is_key: bool,
    has_bytes: bool,
    is_packed: bool,
}

const FIELDS: [&str; 12] = [
    "a", "b", "len", "r#type", "größe", "_hidden", "value", "next", "x1", "r#fn", "data", "Upper",
];
/// How many parts of a value are looked at.
const PARTS: usize = 3;
/// How deep values are in one another.
const DEPTH: u32 = 4;
const REPRESENTATIONS: [&str; 8] = ["u8", "i8", "u16", "i16", "u32", "i64", "C", "C, u8"];
/// Before an object of a type of the source. The value's text goes on to the end of the cast.
const OBJECTS: [(&str, &str); 3] = [
    ("Box<dyn Drawn>", "Box::new("),
    ("Rc<dyn Drawn>", "Rc::new("),
    ("&'static dyn Drawn", "leak("),
];

/// A program of values as it comes about.
pub struct Draw {
    random: Random,
    named: Vec<Named>,
    /// The items of the source.
    items: String,
    /// Whether the program has the system's library.
    has_system: bool,
}

fn is_key(named: &[Named], of: &Type) -> bool {
    match of {
        Type::Plain(plain) => plain.is_key,
        Type::Tuple(parts) => parts.iter().all(|part| is_key(named, part)),
        Type::Named(number, _) => named[*number].is_key,
        _ => false,
    }
}

/// Whether there are bytes in a type, of which a variable may make a text.
fn has_bytes(named: &[Named], of: &Type) -> bool {
    let any = |types: &[Type]| types.iter().any(|part| has_bytes(named, part));
    match of {
        Type::Plain(plain) => plain.name == "u8",
        Type::Of(_, arguments) => any(arguments),
        Type::Tuple(parts) => any(parts),
        Type::Named(number, arguments) => named[*number].has_bytes || any(arguments),
        Type::Object(_) | Type::Parameter(_) | Type::Itself => false,
    }
}

/// Whether a value is shown as a text or a letter.
fn is_text(of: &Type) -> bool {
    match of {
        Type::Plain(plain) => ["str", "Str", "char"]
            .iter()
            .any(|of| plain.name.contains(of)),
        Type::Of(generic, arguments) => {
            matches!(generic.parts, Parts::Behind | Parts::Around) && is_text(&arguments[0])
        }
        _ => false,
    }
}

/// A type with the arguments of the type around in it.
fn resolved(of: &Type, itself: &Type) -> Type {
    let each = |types: &[Type]| types.iter().map(|part| resolved(part, itself)).collect();
    match of {
        Type::Itself => itself.clone(),
        Type::Parameter(number) => match itself {
            Type::Named(_, arguments) => arguments[*number].clone(),
            _ => unreachable!("only types of the source have parameters"),
        },
        Type::Of(generic, arguments) => Type::Of(generic, each(arguments)),
        Type::Tuple(parts) => Type::Tuple(each(parts)),
        Type::Named(number, arguments) => Type::Named(*number, each(arguments)),
        Type::Plain(_) | Type::Object(_) => of.clone(),
    }
}

impl Draw {
    /// The source of a program with `count` values, each of a type of its own. The names of those
    /// with bytes in them say that.
    pub fn source(seed: u64, count: usize, fixtures: &str, has_system: bool) -> String {
        let mut draw = Self {
            random: Random::of_case(seed, u64::from(has_system)),
            named: Vec::new(),
            items: String::new(),
            has_system,
        };
        for _ in 0..count / 4 + 4 {
            draw.define();
        }
        let mut values = String::new();
        for number in 0..count {
            // More than a record holds would be cut.
            let (of, value) = loop {
                let of = draw.composed(2, None);
                let value = draw.value(&of, 0);
                // Texts by themselves have no quotes.
                if value.len() < 500 && !is_text(&of) {
                    break (of, value);
                }
            };
            let name = draw.name(&of);
            let bytes = if has_bytes(&draw.named, &of) {
                "_bytes"
            } else {
                ""
            };
            let _ = write!(values, "    v_{number}{bytes}: {name} = {value}");
            let parts = if has_system { PARTS } else { 0 };
            for (path, steps) in (0..parts).filter_map(|_| draw.part(&of)) {
                let _ = write!(
                    values,
                    ", \"v_{number}{bytes}{path}\" = |whole| whole{steps}"
                );
            }
            values.push_str(";\n");
        }
        let items = &draw.items;
        let names = "borrow::Cow, boxed::Box, collections::{BTreeMap, BTreeSet, BinaryHeap, \
             LinkedList, VecDeque}, ffi::CString, rc::{self, Rc}, string::String, sync::Arc, vec, \
             vec::Vec";
        let core = "alloc::Layout, array, cell::*, cmp::{Ordering, Reverse}, convert::Infallible, \
             ffi::CStr, fmt::Debug, hint::black_box, iter::*, marker::PhantomData, \
             mem::{ManuallyDrop, MaybeUninit}, net::*, num::*, ops::*, option, pin::Pin, slice, \
             sync::atomic::{AtomicBool, AtomicU16}, task::Poll, time::Duration";
        let (attributes, kept, macro_name, end) = if has_system {
            (
                "",
                format!(
                    "#[macro_use] #[path = \"{fixtures}/shown.rs\"] mod shown;\n\
                     use std::{{{names}, {core}, io::Read}};\n\
                     use std::{{collections::{{HashMap, HashSet}}, sync::*}};\n"
                ),
                "values",
                "fn main() {\n    all();\n    println!(\"end\");\n    \
                 let _ = std::io::stdin().read(&mut [0]);\n}\n",
            )
        } else {
            (
                "#![no_std]\n#![no_main]\n",
                format!(
                    "extern crate alloc;\n\
                     #[macro_use] #[path = \"{fixtures}/bare.rs\"] mod bare;\n\
                     use alloc::{{{names}}};\nuse core::{{{core}, fmt::Write}};\n\
                     use bare::{{Output, system}};\n"
                ),
                "handed_over",
                "#[unsafe(no_mangle)]\nextern \"C\" fn fixture_main() -> ! {\n    call_all();\n    \
                 system(60, 0, 0, 0);\n    loop {}\n}\n",
            )
        };
        format!(
            "{attributes}#![allow(warnings, clippy::all)]\n{kept}{HELPERS}{items}\
             {macro_name}! {{\n{values}}}\n{end}"
        )
    }

    /// A part of a value: its name in a trace, and the steps of the source that lead there. None
    /// if it is a text or has no parts.
    fn part(&mut self, of: &Type) -> Option<(String, String)> {
        let (mut of, mut path, mut steps) = (of.clone(), String::new(), String::new());
        for _ in 0..DEPTH {
            let Some((step, source, inner)) = self.step(&of) else {
                break;
            };
            path += &step;
            steps += &source;
            of = inner;
        }
        (!path.is_empty() && !is_text(&of)).then_some((path, steps))
    }

    /// A step into a value.
    fn step(&mut self, of: &Type) -> Option<(String, String, Type)> {
        match of {
            Type::Tuple(parts) => {
                let number = self.random.below(parts.len() as u64) as usize;
                let source = format!(".map(|v| &v.{number})");
                Some((format!(".{number}"), source, parts[number].clone()))
            }
            Type::Of(generic, arguments) => {
                let inner = arguments.first()?.clone();
                let index = self.random.below(3);
                match generic.parts {
                    Parts::None | Parts::Around => None,
                    Parts::Behind => Some((String::new(), ".map(|v| &**v)".into(), inner)),
                    Parts::Some => {
                        Some((".Some".into(), ".and_then(|v| v.as_ref())".into(), inner))
                    }
                    Parts::Elements => Some((
                        format!("[{index}]"),
                        format!(".and_then(|v| v.get({index}))"),
                        inner,
                    )),
                }
            }
            Type::Named(number, _) => {
                let named = &self.named[*number];
                let variant = self.random.below(named.variants.len() as u64) as usize;
                let variant = &named.variants[variant];
                let fields = &variant.fields;
                if named.is_packed || variant.is_never || fields.types.is_empty() {
                    return None;
                }
                let field = self.random.below(fields.types.len() as u64) as usize;
                let inner = resolved(&fields.types[field], of);
                let name = match &fields.names {
                    Some(names) => names[field].to_string(),
                    None => field.to_string(),
                };
                let shown = name.trim_start_matches("r#");
                if named.name.starts_with('S') {
                    return Some((format!(".{shown}"), format!(".map(|v| &v.{name})"), inner));
                }
                let (of, variant) = (&named.name, &variant.name);
                let source = format!(
                    ".and_then(|v| match v {{ {of}::{variant} {{ {name}: part, .. }} => \
                     Some(part), _ => None }})"
                );
                // The only field of a tuple is what the variant's name stands for.
                let path = match fields.names.is_none() && fields.types.len() == 1 {
                    true => format!(".{variant}"),
                    false => format!(".{variant}.{shown}"),
                };
                Some((path, source, inner))
            }
            Type::Plain(_) | Type::Object(_) | Type::Parameter(_) | Type::Itself => None,
        }
    }

    fn fields(&mut self, parameters: usize, may_be_empty: bool) -> Fields {
        let least = u64::from(!may_be_empty);
        let count = (least + self.random.below(4)) as usize;
        let types = (0..count)
            .map(|_| self.of_depth(2, Some(parameters)))
            .collect();
        self.with_names(types)
    }

    fn with_names(&mut self, types: Vec<Type>) -> Fields {
        let start = self.random.below(FIELDS.len() as u64) as usize;
        let names = FIELDS.iter().cycle().skip(start).take(types.len());
        let has_names = self.random.one_in(2);
        Fields {
            names: has_names.then(|| names.copied().collect()),
            types,
        }
    }

    /// Draws a type of the source, and writes its item.
    fn define(&mut self) {
        let parameters = self.random.of(&[0, 0, 0, 1, 2]);
        let is_enum = self.random.one_in(2);
        let name = format!("{}{}", if is_enum { "E" } else { "S" }, self.named.len());
        let is_packed = !is_enum && self.random.one_in(8);
        let mut variants = Vec::new();
        for number in 0..if is_enum { 1 + self.random.below(5) } else { 1 } {
            // A value of the first one needs no other value of the type.
            let fields = if is_packed {
                let types = (0..3).map(|_| self.copied()).collect();
                self.with_names(types)
            } else if is_enum && self.random.one_in(3) {
                self.with_names(Vec::new())
            } else {
                self.fields(parameters, !is_enum)
            };
            let is_never = is_enum && number > 0 && self.random.one_in(10);
            variants.push(Variant {
                name: format!("V{number}"),
                fields,
                is_never,
            });
        }
        // A parameter that nothing is of is an error.
        let parameters = if is_packed { 0 } else { parameters };
        if !is_packed {
            let first = &mut variants[0].fields;
            for number in 0..parameters {
                first.types.push(Type::Parameter(number));
            }
            if let Some(names) = &mut first.names {
                names.extend(["first", "second"].iter().take(parameters));
            }
        }
        for variant in variants.iter_mut().filter(|variant| variant.is_never) {
            variant.fields.types.push(Type::Plain(&NEVER));
            if let Some(names) = &mut variant.fields.names {
                names.push("never");
            }
        }
        let all = |variant: &Variant| {
            let mut types = variant.fields.types.iter();
            types.all(|of| is_key(&self.named, of))
        };
        let is_key = parameters == 0 && !is_packed && variants.iter().all(all);
        let has_bytes = |variant: &Variant| {
            let mut types = variant.fields.types.iter();
            types.any(|of| has_bytes(&self.named, of))
        };
        let named = Named {
            name,
            parameters,
            has_bytes: variants.iter().any(has_bytes),
            variants,
            is_key,
            is_packed,
        };
        self.write_item(&named, is_enum, is_packed);
        self.named.push(named);
    }

    fn write_item(&mut self, named: &Named, is_enum: bool, is_packed: bool) {
        let derived = match named.is_key {
            _ if is_packed => "Clone, Copy, Debug",
            true => "Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord",
            false => "Debug",
        };
        let _ = writeln!(self.items, "#[derive({derived})]");
        let parameters = ["A: 'static", "B: 'static"][..named.parameters].join(", ");
        let parameters = match named.parameters {
            0 => String::new(),
            _ => format!("<{parameters}>"),
        };
        let name = &named.name;
        if !is_enum {
            let of = match self.random.below(6) {
                _ if is_packed => self.random.of(&["packed", "packed(2)", "C, packed"]),
                0 => "C",
                1 => "align(8)",
                2 => "align(32)",
                _ => "Rust",
            };
            let _ = writeln!(self.items, "#[repr({of})]");
            let fields = self.declared(&named.variants[0].fields);
            let end = if fields.starts_with('{') { "" } else { ";" };
            let _ = writeln!(self.items, "struct {name}{parameters} {fields}{end}");
        } else {
            let of = self
                .random
                .one_in(3)
                .then(|| self.random.of(&REPRESENTATIONS));
            if let Some(of) = of {
                let _ = writeln!(self.items, "#[repr({of})]");
            }
            let has_fields = named
                .variants
                .iter()
                .any(|v| v.fields.names.is_some() || !v.fields.types.is_empty());
            let is_numbered =
                (of.is_some_and(|of| of != "C") || !has_fields) && self.random.one_in(2);
            let _ = writeln!(self.items, "enum {name}{parameters} {{");
            let least = if of.is_some_and(|of| of.starts_with('i')) {
                -100
            } else {
                0
            };
            let mut discriminant = least;
            for variant in &named.variants {
                let fields = self.declared(&variant.fields);
                let _ = write!(self.items, "    {}{fields}", variant.name);
                if is_numbered {
                    discriminant += 1 + self.random.below(20) as i32;
                    let _ = write!(self.items, " = {discriminant}");
                }
                self.items.push_str(",\n");
            }
            self.items.push_str("}\n");
        }
        if named.parameters == 0 && self.number_of_objects() < 12 {
            let _ = writeln!(self.items, "impl Drawn for {name} {{}}");
        }
    }

    /// How many types implement the trait.
    fn number_of_objects(&self) -> usize {
        self.items.matches("impl Drawn").count()
    }

    fn declared(&self, fields: &Fields) -> String {
        let types = fields.types.iter().map(|of| self.name(of));
        match &fields.names {
            None if fields.types.is_empty() => String::new(),
            None => format!("({})", types.collect::<Vec<_>>().join(", ")),
            Some(names) => {
                let each = names
                    .iter()
                    .zip(types)
                    .map(|(name, of)| format!("{name}: {of}"));
                format!("{{ {} }}", each.collect::<Vec<_>>().join(", "))
            }
        }
    }

    fn copied(&mut self) -> Type {
        let known: Vec<_> = PLAIN.iter().filter(|plain| plain.is_copy).collect();
        Type::Plain(self.random.of(&known))
    }

    fn key(&mut self) -> Type {
        let named: Vec<_> = (0..self.named.len())
            .filter(|n| self.named[*n].is_key)
            .collect();
        match self.random.below(4) {
            0 if !named.is_empty() => Type::Named(self.random.of(&named), Vec::new()),
            1 => Type::Tuple(vec![self.key(), self.key()]),
            _ => {
                let known: Vec<_> = PLAIN.iter().filter(|plain| plain.is_key).collect();
                Type::Plain(self.random.of(&known))
            }
        }
    }

    /// A type that has `depth` more in one another. In a type of the source, it may have the
    /// `parameters` of that, and the type itself.
    fn of_depth(&mut self, depth: u32, parameters: Option<usize>) -> Type {
        if depth == 0 || self.random.one_in(4) {
            let parameters = parameters.unwrap_or_default();
            return match self.random.below(4) {
                0 if parameters > 0 => {
                    Type::Parameter(self.random.below(parameters as u64) as usize)
                }
                _ => Type::Plain(self.random.of(&PLAIN.each_ref())),
            };
        }
        self.composed(depth, parameters)
    }

    /// The same, but no plain type.
    fn composed(&mut self, depth: u32, parameters: Option<usize>) -> Type {
        let next = depth - 1;
        match self.random.below(10) {
            0..2 => {
                let count = self.random.of(&[1, 2, 3]);
                Type::Tuple(
                    (0..count)
                        .map(|_| self.of_depth(next, parameters))
                        .collect(),
                )
            }
            2..5 if !self.named.is_empty() => {
                let number = self.random.below(self.named.len() as u64) as usize;
                let count = self.named[number].parameters;
                let arguments = (0..count)
                    .map(|_| self.of_depth(next, parameters))
                    .collect();
                Type::Named(number, arguments)
            }
            5 if self.number_of_objects() > 0 && self.random.one_in(4) => {
                Type::Object(self.random.of(&OBJECTS).0)
            }
            _ => self.generic(next, parameters),
        }
    }

    fn generic(&mut self, next: u32, parameters: Option<usize>) -> Type {
        let generic = loop {
            let generic = &GENERIC[self.random.below(GENERIC.len() as u64) as usize];
            if self.has_system || !generic.is_of_system {
                break generic;
            }
        };
        if generic.is_behind && parameters.is_some() && self.random.one_in(4) {
            return Type::Of(generic, vec![Type::Itself]);
        }
        let mut arguments = Vec::new();
        for number in 0..generic.parameters() {
            arguments.push(match generic.first {
                First::Key if number == 0 => self.key(),
                First::Copied if number == 0 => self.copied(),
                _ => self.of_depth(next, parameters),
            });
        }
        Type::Of(generic, arguments)
    }

    fn name(&self, of: &Type) -> String {
        let all = |types: &[Type]| types.iter().map(|of| self.name(of)).collect::<Vec<_>>();
        match of {
            Type::Plain(plain) => plain.name.into(),
            Type::Of(generic, arguments) => {
                let mut name = String::from(generic.name);
                for (number, argument) in all(arguments).iter().enumerate() {
                    name = name.replace(&format!("{{{number}}}"), argument);
                }
                name
            }
            Type::Tuple(parts) => format!("({},)", all(parts).join(", ")),
            Type::Named(number, arguments) if arguments.is_empty() => {
                self.named[*number].name.clone()
            }
            Type::Named(number, arguments) => {
                format!(
                    "{}<{}>",
                    self.named[*number].name,
                    all(arguments).join(", ")
                )
            }
            Type::Object(name) => (*name).into(),
            Type::Parameter(number) => ["A", "B"][*number].into(),
            Type::Itself => "Self".into(),
        }
    }

    fn value(&mut self, of: &Type, depth: u32) -> String {
        match of {
            Type::Plain(plain) => (plain.value)(&mut self.random),
            Type::Tuple(parts) => {
                let parts: Vec<_> = parts.iter().map(|part| self.value(part, depth)).collect();
                format!("({},)", parts.join(", "))
            }
            Type::Of(generic, arguments) => {
                let pattern = match depth {
                    0..DEPTH => self.random.of(generic.values),
                    _ => generic.values[0],
                };
                let mut text = String::new();
                let mut rest = pattern;
                while let Some(at) = ["{0}", "{1}"].iter().filter_map(|p| rest.find(p)).min() {
                    let number = usize::from(&rest[at..at + 3] == "{1}");
                    text += &rest[..at];
                    text += &self.value(&arguments[number], depth + 1);
                    rest = &rest[at + 3..];
                }
                text + rest
            }
            Type::Object(name) => {
                let (_, before) = OBJECTS.iter().find(|(known, _)| known == name).unwrap();
                let known: Vec<_> = (0..self.named.len())
                    .filter(|number| {
                        let item = format!("impl Drawn for {} ", self.named[*number].name);
                        self.items.contains(&item)
                    })
                    .collect();
                let value = match depth {
                    0..DEPTH => {
                        let number = self.random.of(&known);
                        self.value(&Type::Named(number, Vec::new()), depth + 1)
                    }
                    _ => "Least(1)".into(),
                };
                format!("({before}{value}) as {name})")
            }
            Type::Named(number, _) => self.named_value(*number, of, depth),
            Type::Parameter(_) | Type::Itself => unreachable!("a value's type is resolved"),
        }
    }

    fn named_value(&mut self, number: usize, of: &Type, depth: u32) -> String {
        let named = &self.named[number];
        let possible: Vec<_> = (0..named.variants.len())
            .filter(|variant| !named.variants[*variant].is_never)
            .collect();
        let variant = match depth {
            0..DEPTH => self.random.of(&possible),
            _ => 0,
        };
        let named = &self.named[number];
        let is_enum = named.name.starts_with('E');
        let variant = &named.variants[variant];
        let mut text = named.name.clone();
        if is_enum {
            text += "::";
            text += &variant.name;
        }
        let fields = variant.fields.clone();
        let mut values = Vec::new();
        for field in &fields.types {
            values.push(self.value(&resolved(field, of), depth + 1));
        }
        match &fields.names {
            None if values.is_empty() => text,
            None => format!("{text}({})", values.join(", ")),
            Some(names) => {
                let each = names
                    .iter()
                    .zip(&values)
                    .map(|(name, value)| format!("{name}: {value}"));
                format!("{text} {{ {} }}", each.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// What each program has.
const HELPERS: &str = "
trait Drawn: Debug {}
#[derive(Debug)]
struct Least(u8);
impl Drawn for Least {}
#[derive(Debug)]
struct Grid<T, const N: usize> {
    cells: [[T; N]; N],
}
fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}
fn leak_mut<T>(value: T) -> &'static mut T {
    Box::leak(Box::new(value))
}
fn slice<T>(values: Vec<T>) -> &'static [T] {
    Vec::leak(values)
}
fn after<I: Iterator>(mut iterator: I) -> I {
    core::mem::forget(iterator.next());
    iterator
}
fn roomy<T>(mut values: Vec<T>) -> Vec<T> {
    values.reserve(9);
    values
}
// Its elements begin near the end of its memory.
fn turned<T>(values: Vec<T>) -> VecDeque<T> {
    let mut turned = VecDeque::with_capacity(values.len() + 1);
    for value in values {
        turned.push_front(value);
    }
    turned
}
";
