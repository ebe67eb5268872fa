//! The types of the traced kernel, and those that a text makes.
//!
//! The debug information describes a type by its number. A cast, and the content of a variant, are
//! types of the text's own; their numbers begin at [`OWN`]. What a type means for a value, such as
//! its size, its variants or the pointer inside of it, is asked here, without a program.

pub(crate) mod library;
mod named;
mod partly;
mod seen;
pub(crate) mod shape;
pub(crate) mod wide;

use alloc::{collections::BTreeMap, format, rc::Rc, string::String, vec::Vec};
use core::cell::{Cell, RefCell};

use bpf::Condition;
use trace_interface::symbols::{Enum, Field, Kernel, Origin, Struct, Tag, Type, TypeId, Variant};
use trace_language::{Diagnostic, tree::Span};

use crate::{
    Lowered,
    number::{Number, Test, extend},
    object::Object,
    options::Options,
};

/// How deep values inside of values are looked into.
pub(crate) const MOST_DEPTH: u32 = 6;

/// Numbers of types from here on are the text's own.
const OWN: u64 = 1 << 63;

/// The name of a structure that is shown as its only field.
const TRANSPARENT: &str = "UnsafeCell";

/// See the module's text.
pub(crate) struct Types<'a> {
    pub(crate) kernel: &'a dyn Kernel,
    /// The program of user mode whose names the text means where it is compiled now, before the
    /// kernel's.
    pub(crate) program: Cell<Option<&'a dyn Kernel>>,
    options: &'a Options,
    own: RefCell<Vec<Rc<Type>>>,
    /// See [`Types::shorten`].
    brevity: Cell<usize>,
    /// See [`Types::seen`], which asks the debug information once for each type.
    seen: RefCell<BTreeMap<TypeId, Option<TypeId>>>,
}

impl<'a> Types<'a> {
    pub(crate) fn new(kernel: &'a dyn Kernel, options: &'a Options) -> Self {
        Self {
            kernel,
            program: Cell::new(None),
            options,
            own: RefCell::new(Vec::new()),
            brevity: Cell::new(0),
            seen: RefCell::default(),
        }
    }

    /// Says whose names are meant from now on: those of the program at a path, or the kernel's
    /// alone. Returns whose they were.
    pub(crate) fn set_program(&self, path: Option<&str>) -> Option<&'a dyn Kernel> {
        let program = path.and_then(|path| self.kernel.program(path));
        self.program.replace(program)
    }

    /// Says how much shorter values in records are from now on than they might be. At
    /// [`MOST_BREVITY`](shape::MOST_BREVITY) they are as short as they can be.
    pub(crate) fn shorten(&self, brevity: usize) {
        self.brevity.set(brevity);
    }

    /// The program of [`Types::set_program`], if its debug information is known.
    pub(crate) fn program(&self) -> Option<&'a dyn Kernel> {
        self.program.get()
    }

    /// Whose code is probed: the program's, or the kernel's.
    pub(crate) fn probed(&self) -> &'a dyn Kernel {
        self.program().unwrap_or(self.kernel)
    }

    /// The type with that number.
    pub(crate) fn describe(&self, id: TypeId) -> Rc<Type> {
        let own = id.0.checked_sub(OWN);
        own.and_then(|own| self.own.borrow().get(own as usize).cloned())
            .unwrap_or_else(|| self.kernel.describe(id))
    }

    /// The number of a type of the text's own; an equal one is used again.
    pub(crate) fn synthetic(&self, new: Type) -> TypeId {
        let mut types = self.own.borrow_mut();
        let known = types.iter().position(|known| **known == new);
        let number = known.unwrap_or_else(|| {
            types.push(Rc::new(new));
            types.len() - 1
        });
        TypeId(OWN + number as u64)
    }

    /// Bytes of a type.
    pub(crate) fn size(&self, id: TypeId) -> u64 {
        self.size_at(id, 0)
    }

    fn size_at(&self, id: TypeId, depth: u32) -> u64 {
        if depth > 16 {
            return 0;
        }
        match &*self.describe(id) {
            Type::Unit => 0,
            Type::Integer { bytes, .. } | Type::Float { bytes } => (*bytes).into(),
            Type::Boolean => 1,
            Type::Character => 4,
            Type::Pointer { .. } => 8,
            Type::Slice { .. } | Type::Str => 16,
            // More than none, because it is a part of its value.
            Type::Tail { .. } => 1,
            Type::Array { of, count } => self.size_at(*of, depth + 1).saturating_mul(*count),
            Type::Struct(of) => of.bytes,
            Type::Enum(of) => of.bytes,
            Type::Opaque { bytes, .. } => *bytes,
        }
    }

    /// Whether a variant has no content.
    pub(crate) fn is_unit(&self, variant: &Variant) -> bool {
        variant
            .fields
            .iter()
            .all(|field| self.size(field.type_id) == 0)
    }

    /// Whether an enum is that variant now.
    pub(crate) fn is_variant(
        &self,
        object: &Object,
        of: &Enum,
        variant: usize,
        span: Span,
    ) -> Lowered<Test> {
        let Some(Tag { offset, bytes, .. }) = of.tag else {
            return Ok(Test::Constant(true));
        };
        let word = |at: u64, bytes: u8| {
            let word = object.read(offset + at, bytes, false);
            word.ok_or_else(|| missing(span))
        };
        let low = word(0, bytes.min(8))?;
        let high = (bytes > 8).then(|| word(8, 8)).transpose()?;
        let equal = |word: &Number, value| {
            Test::compare(Condition::Equal, word.clone(), Number::Constant(value))
        };
        let is = |value: u128| {
            let low = equal(&low, extend(value as u64, bytes.min(8), false));
            match &high {
                Some(high) => low.and(equal(high, (value >> 64) as u64)),
                None => low,
            }
        };
        Ok(match of.variants[variant].tag {
            Some(value) => is(value),
            None => of
                .variants
                .iter()
                .filter_map(|variant| variant.tag)
                .fold(Test::Constant(true), |test, value| {
                    test.and(is(value).negated())
                }),
        })
    }

    /// The value that an `Arc` or `Rc` leads to.
    pub(crate) fn shared_content(&self, object: &Object, span: Span) -> Lowered<Option<Object>> {
        let Some((to, offset)) = self.shared(object.type_id) else {
            return Ok(None);
        };
        let Some((pointer, _)) = self.pointer_in(object, MOST_DEPTH) else {
            return Ok(None);
        };
        if let Some((at, pointer)) = self.field_at(object.type_id, &["ptr"])
            && let Some(pointer_type) = self.only_field(pointer)
            && let Some(counted) = self.tailed(pointer_type)
        {
            let pointer = object.part(pointer_type, at);
            let counted = self.behind_wide(&pointer, counted, span)?;
            return Ok(Some(counted.part(to, offset)));
        }
        let address = pointer.read(0, 8, false).ok_or_else(|| missing(span))?;
        let counted = Object::in_memory(to, (object.space(), address), object.present.clone());
        Ok(Some(counted.part(to, offset)))
    }

    /// Whether a value is shown as what it leads to: a reference, a `Box`, an `Arc` or `Rc`.
    pub(crate) fn leads_on(&self, id: TypeId) -> bool {
        if let Type::Struct(of) = &*self.describe(id)
            && let Some(only) = self.transparent(of)
        {
            return self.leads_on(only.type_id);
        }
        matches!(&*self.describe(id), Type::Pointer { .. })
            || self.shared(id).is_some()
            || self.tailed(id).is_some()
    }

    /// What an `Arc` or `Rc` leads to, and where it is after the counters.
    pub(crate) fn shared(&self, id: TypeId) -> Option<(TypeId, u64)> {
        let described = self.describe(id);
        let Type::Struct(of) = &*described else {
            return None;
        };
        if of.origin != Origin::Library || !matches!(plain_name(&of.name), "Arc" | "Rc") {
            return None;
        }
        let (_, pointer) = self.field_at(id, &["ptr"])?;
        let pointer = self.only_field(pointer)?;
        let at = match *self.describe(pointer) {
            Type::Pointer { to, .. } => to,
            _ => self.tailed(pointer)?,
        };
        let field = |name| self.field_at(at, &[name]);
        let (offset, of) = field("data").or_else(|| field("value"))?;
        Some((of, offset))
    }

    /// The first pointer inside of a value, and the type that it leads to.
    pub(crate) fn pointer_in(&self, object: &Object, depth: u32) -> Option<(Object, TypeId)> {
        match &*self.describe(object.type_id) {
            Type::Pointer { to, .. } => Some((object.clone(), *to)),
            Type::Struct(of) if depth > 0 => of.fields.iter().find_map(|field| {
                self.pointer_in(&object.part(field.type_id, field.offset), depth - 1)
            }),
            _ => None,
        }
    }

    /// The field of a type of the library that is shown as this field, for example an atomic
    /// number.
    pub(crate) fn transparent(&self, of: &Struct) -> Option<Field> {
        let name = plain_name(&of.name);
        let is_transparent = matches!(
            name,
            "UnsafeCell"
                | "SyncUnsafeCell"
                | "Wrapping"
                | "Saturating"
                | "Pin"
                | "NonNull"
                | "Unique"
                | "BinaryHeap"
                | "Alignment"
                // The parts of a time.
                | "Nanoseconds"
                // Of a mutex: whether it is poisoned.
                | "Flag"
                // An error that was made of a text.
                | "StringError"
                | "OsStr"
                | "Path"
                // What an `OsStr` has in it.
                | "Slice"
        );
        let is_number = name.starts_with("Atomic") || name.starts_with("NonZero");
        // The iterators of a heap are shown as those of its elements, and a time as the system's.
        let inner = match name {
            "Iter" | "IntoIter" => field_of(&of.fields, "iter"),
            "Instant" | "SystemTime" => field_of(&of.fields, "0"),
            _ => None,
        };
        let is_same = inner.is_some_and(|field| {
            let described = self.describe(field.type_id);
            matches!(&*described, Type::Struct(of) if plain_name(&of.name) == name)
        });
        if of.origin != Origin::Library || !is_transparent && !is_number && !is_same {
            return None;
        }
        if let [only] = &of.fields[..] {
            return Some(only.clone());
        }
        let mut fields = of
            .fields
            .iter()
            .filter(|field| self.size(field.type_id) != 0 || self.ends_in_tail(field.type_id));
        match (fields.next(), fields.next()) {
            (Some(only), None) => Some(only.clone()),
            _ => None,
        }
    }

    /// An object, or the field that it is shown as.
    pub(crate) fn unwrapped(&self, object: &Object) -> Object {
        let mut object = object.clone();
        while let Type::Struct(of) = &*self.describe(object.type_id)
            && let Some(only) = self.transparent(of)
        {
            object = object.part(only.type_id, only.offset);
        }
        object
    }

    /// The type of the only field of a structure.
    fn only_field(&self, id: TypeId) -> Option<TypeId> {
        match &*self.describe(id) {
            Type::Pointer { .. } => Some(id),
            Type::Struct(of) => match &of.fields[..] {
                [only] => Some(only.type_id),
                _ => None,
            },
            _ => None,
        }
    }

    /// The tag of an enum whose variants hold nothing, so that the tag is all of it.
    pub(crate) fn choice(&self, of: &Enum) -> Option<Tag> {
        let tells = |variant: &Variant| variant.tag.is_some() && self.is_unit(variant);
        of.tag.filter(|_| of.variants.iter().all(tells))
    }

    /// Whether values of a type are texts.
    pub(crate) fn is_text(&self, id: TypeId) -> bool {
        match &*self.describe(id) {
            Type::Str => true,
            Type::Struct(_) => self.text_in(id).is_some(),
            _ => false,
        }
    }

    pub(crate) fn is_scalar(&self, object: &Object) -> bool {
        match &*self.describe(object.type_id) {
            Type::Integer { bytes, .. } => *bytes <= 8,
            Type::Boolean | Type::Character | Type::Pointer { .. } => true,
            _ => false,
        }
    }

    /// The content of a variant: its only field, or all of them as a struct.
    pub(crate) fn content(&self, object: &Object, of: &Enum, variant: usize) -> Object {
        let variant = &of.variants[variant];
        match &variant.fields[..] {
            [only] if is_position(&only.name) => object.part(only.type_id, only.offset),
            _ => {
                let id = self.synthetic(Type::Struct(Struct {
                    name: variant.name.clone(),
                    bytes: of.bytes,
                    fields: variant.fields.clone(),
                    parameters: Vec::new(),
                    origin: Origin::Source,
                }));
                object.part(id, 0)
            }
        }
    }

    /// Where an array is, if it is in memory.
    pub(crate) fn address_of(&self, object: &Object) -> Option<Number> {
        match &*self.describe(object.type_id) {
            Type::Array { .. } => object.address(),
            _ => None,
        }
    }

    /// The type of an object that is an enum.
    pub(crate) fn enum_of(&self, object: &Object) -> Option<Rc<Type>> {
        let described = self.describe(object.type_id);
        matches!(&*described, Type::Enum(_)).then_some(described)
    }
}

/// Bytes of a value that the debug information does not give.
pub(crate) fn missing(span: Span) -> Diagnostic {
    Diagnostic::new(
        span,
        "the compiler left this part of the value out",
        "use another field, or probe another line of the function (line:FILE:N)",
    )
}

pub(crate) fn field_of<'f>(fields: &'f [Field], name: &str) -> Option<&'f Field> {
    fields.iter().find(|field| field.name == name)
}

/// Whether a field has a number for a name, as those of a tuple have.
fn is_position(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_digit())
}

/// The name of a type without its path and parameters.
pub(crate) fn plain_name(name: &str) -> &str {
    let end = name.find('<').unwrap_or(name.len());
    let begin = name[..end].rfind("::").map_or(0, |colons| colons + 2);
    &name[begin..end]
}

/// The first names of a list.
pub(crate) fn shortened(names: &[String]) -> String {
    const MOST: usize = 12;
    match names.len() {
        0..=MOST => names.join(", "),
        _ => format!("{} …", names[..MOST].join(", ")),
    }
}

/// A type in messages.
pub(crate) fn type_name(described: &Type) -> String {
    match described {
        Type::Unit => "a value of no bytes".into(),
        Type::Integer { bytes, signed } => {
            let letter = if *signed { 'i' } else { 'u' };
            let long = if *bytes > 8 { " of 16 bytes" } else { "" };
            format!("a number{long} ({letter}{})", u32::from(*bytes) * 8)
        }
        Type::Boolean => "a bool".into(),
        Type::Character => "a char".into(),
        Type::Float { .. } => "a floating-point number".into(),
        Type::Pointer { name, .. } => format!("a `{name}`"),
        Type::Slice { .. } => "a slice".into(),
        Type::Str => "a `&str`".into(),
        Type::Tail { is_text: true, .. } => "a text".into(),
        Type::Array { .. } | Type::Tail { .. } => "an array".into(),
        Type::Struct(Struct { name, .. })
        | Type::Enum(Enum { name, .. })
        | Type::Opaque { name, .. } => format!("a `{name}`"),
    }
}

/// Bytes and sign of a type of integers, as Rust or C calls it.
pub(crate) fn integer(name: &str) -> Option<(u8, bool)> {
    Some(match name {
        "u8" | "uint8" | "uint8_t" => (1, false),
        "u16" | "uint16" | "uint16_t" => (2, false),
        "u32" | "uint32" | "uint32_t" => (4, false),
        "u64" | "usize" | "uint64" | "uint64_t" | "size_t" => (8, false),
        "i8" | "int8" | "int8_t" => (1, true),
        "i16" | "int16" | "int16_t" => (2, true),
        "i32" | "int32" | "int32_t" | "int" => (4, true),
        "i64" | "isize" | "int64" | "int64_t" | "ssize_t" => (8, true),
        _ => return None,
    })
}
