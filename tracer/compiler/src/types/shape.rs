//! How values of a type are stored: as Rust's `Debug` would show them.
//!
//! A part that the compiler of the kernel left out has no bytes, and the rest is as it would be
//! without it. Values inside of values are stored to a depth, and collections to a length. How
//! deep and how long depends on where they are stored ([`Room`]): the most generous [`Limits`]
//! under which the whole value fits are taken.

use alloc::{boxed::Box, format, rc::Rc, vec::Vec};
use core::cell::Cell;

use trace_interface::{
    shape::{Form, Shape},
    symbols::{Enum, Field, Origin, Struct, Type, TypeId},
};

use super::{
    MOST_DEPTH, Types, field_of,
    library::{Chain, Collection, MOST_OF_TREE, Table, Tree},
    partly, plain_name,
    seen::is_guard,
    wide::Beside,
};
use crate::object::{At, Gaps, Object};

/// The most bytes that are stored of a text that is a part of a value.
const MOST_INSIDE: u32 = 64;

/// The most elements that are stored of a list of which no limit says less.
const MOST_ELEMENTS: u32 = 64;

/// Where a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// In a record. References are followed, and memory that cannot be read is marked.
    Record,
    /// The same for `%s`: bytes are a text.
    Text,
    /// In the stack: a key, a value of a map, a variable. A reference is its address, and bytes are
    /// a text.
    Stack,
}

/// How much of a value is stored.
#[derive(Clone, Copy)]
struct Limits {
    depth: u32,
    /// So many elements are stored even if they are long.
    elements: u32,
    /// The most elements that take instructions of their own.
    items: u32,
    text: u32,
    /// So many trait objects are stored in one another. 0: references are addresses, and bytes are
    /// a text, as they are in the stack.
    objects: u32,
}

impl Limits {
    /// Whether the values that references lead to are stored, and bytes are numbers.
    const fn follows(self) -> bool {
        self.objects > 0
    }
}

/// The limits of a record, the most generous first.
const OF_RECORD: [Limits; 18] = {
    const fn limits(depth: u32, elements: u32, items: u32, text: u32, objects: u32) -> Limits {
        Limits {
            depth,
            elements,
            items,
            text,
            objects,
        }
    }
    [
        limits(11, 24, MOST_ELEMENTS, MOST_INSIDE, MOST_DEPTH),
        limits(8, 24, MOST_ELEMENTS, MOST_INSIDE, MOST_DEPTH),
        limits(MOST_DEPTH, 12, MOST_ELEMENTS, 64, MOST_DEPTH),
        limits(MOST_DEPTH, 12, 16, 64, 2),
        limits(MOST_DEPTH, 8, 8, 40, 2),
        limits(MOST_DEPTH, 5, 5, 40, 2),
        limits(MOST_DEPTH, 3, 3, 32, 1),
        limits(5, 4, 4, 32, 1),
        limits(MOST_DEPTH, 2, 2, 16, 1),
        limits(4, 2, 2, 16, 1),
        limits(3, 2, 2, 16, 1),
        limits(MOST_DEPTH, 16, MOST_ELEMENTS, 64, 0),
        limits(MOST_DEPTH, 4, 8, 32, 0),
        limits(MOST_DEPTH, 2, 2, 16, 0),
        limits(4, 2, 2, 16, 0),
        limits(3, 2, 2, 16, 0),
        limits(2, 2, 2, 16, 0),
        limits(1, 2, 2, 16, 0),
    ]
};

/// How much shorter values can be made: by so many steps in [`OF_RECORD`].
pub(crate) const MOST_BREVITY: usize = OF_RECORD.len() - 1;

/// Those of a record whose values are to be short. Bytes are a text.
const OF_BRIEF_RECORD: [Limits; 1] = [Limits {
    depth: 3,
    elements: 1,
    items: MOST_ELEMENTS,
    text: MOST_INSIDE,
    objects: 0,
}];

/// The most bytes of a value in a record, and about how many instructions may store it.
const MOST_BYTES: u32 = 1536;
const MOST_COST: u32 = 2600;
/// So many types are looked into for one value.
const MOST_TYPES: u32 = 4000;

/// A shape on its way.
struct Shaper<'t, 'a> {
    types: &'t Types<'a>,
    limits: Limits,
    /// The bytes of a list, and how few elements it has if they are longer.
    list_bytes: u32,
    room: Room,
    left: Cell<u32>,
    /// How many trait objects the value is in.
    objects: Cell<u32>,
}

impl Types<'_> {
    /// How an object is stored. A part that the compiler of the kernel left out is
    /// [`Shape::Unavailable`].
    pub(crate) fn shape_of(&self, object: &Object, room: Room) -> Shape {
        let shaper = |limits: Limits, list_bytes| Shaper {
            types: self,
            limits,
            list_bytes,
            room,
            left: Cell::new(MOST_TYPES),
            objects: Cell::new(0),
        };
        let options = self.options;
        if room == Room::Stack {
            let limits = Limits {
                depth: MOST_DEPTH,
                elements: 1,
                items: MOST_ELEMENTS,
                text: MOST_INSIDE,
                objects: 0,
            };
            let shaper = shaper(limits, options.slice_bytes);
            let shape = shaper.shape(object.type_id, 0, object.gaps());
            // Numbers and arrays are zeros then, and lists have a mark of their own.
            let is_marked = matches!(
                shape,
                Shape::Counted(_)
                    | Shape::Bytes(_)
                    | Shape::List { .. }
                    | Shape::Slots { .. }
                    | Shape::Array { .. }
                    | Shape::Items { .. }
            );
            return match &object.at {
                At::Memory { .. } if !is_marked && !shape.is_number() && shape.bytes() > 0 => {
                    Shape::Behind(Box::new(shape))
                }
                _ => shape,
            };
        }
        let mut shape = Shape::Deeper;
        let choice: &[Limits] = match options.brief {
            true => &OF_BRIEF_RECORD,
            false => &OF_RECORD,
        };
        let skipped = self.brevity.get().min(choice.len() - 1);
        for mut limits in choice.iter().skip(skipped).copied() {
            limits.text = limits.text.min(options.text_bytes);
            let shaper = shaper(limits, options.slice_bytes);
            shape = match room {
                Room::Text if self.is_bytes(object.type_id) => Shape::Bytes(options.slice_bytes),
                _ => shaper.shape(object.type_id, 0, object.gaps()),
            };
            let fits = shape.bytes() <= MOST_BYTES && cost(&shape) <= MOST_COST;
            if fits && shaper.left.get() > 0 {
                break;
            }
        }
        match &object.at {
            At::Memory { .. } if shape.bytes() > 0 => Shape::Behind(Box::new(shape)),
            _ => shape,
        }
    }

    /// Whether values of a type are bytes: a slice or a `Vec` of them.
    fn is_bytes(&self, id: TypeId) -> bool {
        if self.is_text(id) {
            return false;
        }
        let of = match &*self.describe(id) {
            Type::Slice { of } => *of,
            Type::Struct(_) => match self.collection(id) {
                Some(Collection::Run { of, .. }) => of,
                _ => return false,
            },
            _ => return false,
        };
        let byte = Type::Integer {
            bytes: 1,
            signed: false,
        };
        *self.describe(of) == byte
    }

    /// Whether an element is stored as it is in memory.
    pub(crate) fn is_plain(&self, id: TypeId, shape: &Shape) -> bool {
        if u64::from(shape.bytes()) != self.size(id) {
            return false;
        }
        match (&*self.describe(id), shape) {
            (
                _,
                Shape::Unsigned(_)
                | Shape::Signed(_)
                | Shape::Literal
                | Shape::Boolean
                | Shape::Character
                | Shape::Float(_)
                | Shape::Address { .. }
                | Shape::Choice { .. },
            ) => true,
            (Type::Array { of: id, .. }, Shape::Array { of, .. }) => self.is_plain(*id, of),
            (Type::Struct(of), Shape::Struct { fields, .. }) => {
                let mut at = 0;
                fields.len() == of.fields.len()
                    && of.fields.iter().zip(fields).all(|(field, (_, shape))| {
                        let follows = field.offset == at;
                        at += u64::from(shape.bytes());
                        follows && self.is_plain(field.type_id, shape)
                    })
            }
            _ => false,
        }
    }
}

/// About how many instructions store a value.
fn cost(shape: &Shape) -> u32 {
    let sum = |costs: &mut dyn Iterator<Item = u32>| costs.fold(0, u32::saturating_add);
    let fields =
        |fields: &[(Rc<str>, Shape)]| sum(&mut fields.iter().map(|(_, shape)| cost(shape)));
    let each = |of: &Shape, more| cost(of).saturating_add(more);
    match shape {
        Shape::Counted(_) => 24,
        Shape::Behind(of) => each(of, 14),
        Shape::List { of, most, .. } if of.is_number() => 30 + most / 8,
        Shape::List { of, most, .. } => each(of, 6).saturating_mul(*most).saturating_add(40),
        Shape::Slots { of, most, .. } => each(of, 45).saturating_mul(*most).saturating_add(120),
        Shape::Array { of, stored, .. } => cost(of).saturating_mul(*stored),
        Shape::Tuple(items) | Shape::Items { items, .. } => sum(&mut items.iter().map(cost)),
        Shape::Struct { fields: of, .. } => fields(of),
        Shape::Enum { variants, .. } => {
            // Those without content in a row are one case, if their tags follow one another.
            let rows = variants.chunk_by(|(_, a), (_, b)| a.is_empty() && b.is_empty());
            sum(&mut rows.map(|row| {
                let contents = sum(&mut row.iter().map(|(_, of)| fields(of)));
                contents.saturating_add(10)
            }))
        }
        _ => 2 + shape.bytes() / 4,
    }
}

impl Shaper<'_, '_> {
    /// The shape of a type at a depth.
    fn shape(&self, id: TypeId, depth: u32, gaps: Option<Gaps<'_>>) -> Shape {
        let types = self.types;
        let described = types.describe(id);
        let size = types.size(id);
        self.left.set(self.left.get().saturating_sub(1));
        if (depth > self.limits.depth || self.left.get() == 0) && size > 0 {
            return Shape::Deeper;
        }
        let gaps = gaps.filter(|gaps| gaps.lacks(0, size));
        if let Some(gaps) = gaps
            && self.is_lost(id, &described, gaps)
        {
            return Shape::Unavailable;
        }
        if !self.limits.follows() && self.limits.elements == 1 && types.is_bytes(id) {
            return Shape::Bytes(self.list_bytes);
        }
        match &*described {
            Type::Unit => Shape::Unit,
            Type::Integer { bytes, signed } => match (bytes, signed) {
                (1 | 2 | 4 | 8 | 16, true) => Shape::Signed(*bytes),
                (1 | 2 | 4 | 8 | 16, false) => Shape::Unsigned(*bytes),
                _ => raw((*bytes).into()),
            },
            Type::Boolean => Shape::Boolean,
            Type::Character => Shape::Character,
            Type::Float { bytes } => Shape::Float(*bytes),
            Type::Pointer { name, to } if self.is_followed(depth) && is_reference(name) => {
                Shape::Behind(Box::new(self.shape(*to, depth + 1, None)))
            }
            Type::Pointer { .. } => Shape::ADDRESS,
            Type::Str => self.text(depth),
            Type::Slice { of } | Type::Tail { of, is_text: false } => {
                self.list(Form::List, self.shape(*of, depth + 1, None))
            }
            Type::Tail { .. } => self.text(depth),
            Type::Array { of, count } => self.array(*of, *count, depth, gaps),
            Type::Struct(of) => self.structure(id, of, depth, gaps),
            Type::Enum(of) => self.enumeration(of, depth, gaps),
            Type::Opaque { bytes, .. } => raw(*bytes),
        }
    }

    /// Whether a reference is stored as what it leads to. In a record the whole value may be one.
    fn is_followed(&self, depth: u32) -> bool {
        self.limits.follows() || depth == 0 && self.room != Room::Stack
    }

    /// Whether so much of a value is missing that nothing of it can be told.
    fn is_lost(&self, id: TypeId, described: &Type, gaps: Gaps<'_>) -> bool {
        let types = self.types;
        match described {
            // Its capacity is not needed.
            Type::Struct(_) if types.is_text(id) || types.collection(id).is_some() => {
                let parts = match (types.text_in(id), types.collection(id)) {
                    (Some((pointer, length, _)), _)
                    | (
                        _,
                        Some(Collection::Run {
                            pointer, length, ..
                        }),
                    ) => [pointer, length],
                    _ => return true,
                };
                parts.iter().any(|at| gaps.lacks(*at, 8))
            }
            Type::Struct(_) | Type::Array { .. } | Type::Unit => false,
            Type::Enum(of) => of
                .tag
                .is_some_and(|tag| gaps.lacks(tag.offset, tag.bytes.into())),
            _ => true,
        }
    }

    /// A text. Of one that is a part of a value fewer bytes are stored, because there may be many.
    fn text(&self, depth: u32) -> Shape {
        Shape::Counted(match depth {
            0 => self.types.options.text_bytes,
            _ => self.limits.text,
        })
    }

    /// How many elements of that shape are stored.
    fn most(&self, of: &Shape) -> u32 {
        let fitting = self.list_bytes / of.bytes().max(1);
        let limit = match of.is_number() {
            true => MOST_ELEMENTS,
            false => self.limits.items,
        };
        fitting.max(self.limits.elements).clamp(1, limit)
    }

    fn list(&self, form: Form, of: Shape) -> Shape {
        self.list_of(form, of, MOST_ELEMENTS)
    }

    /// The same with another limit, which is at least four elements.
    fn list_of(&self, form: Form, of: Shape, limit: u32) -> Shape {
        Shape::List {
            most: self.most(&of).min(limit.max(4)),
            of: Box::new(of),
            form,
        }
    }

    fn array(&self, id: TypeId, count: u64, depth: u32, gaps: Option<Gaps<'_>>) -> Shape {
        let of = self.shape(id, depth + 1, None);
        let stored = u32::try_from(count).unwrap_or(u32::MAX).min(self.most(&of));
        let Some(gaps) = gaps else {
            return Shape::Array {
                of: Box::new(of),
                stored,
                count,
            };
        };
        let size = self.types.size(id);
        let item = |index| {
            let gaps = gaps.behind(size * u64::from(index));
            self.shape(id, depth + 1, Some(gaps))
        };
        Shape::Items {
            items: (0..stored).map(item).collect(),
            more: count - u64::from(stored),
        }
    }

    fn fields<'f>(
        &self,
        fields: impl IntoIterator<Item = &'f Field>,
        depth: u32,
        gaps: Option<Gaps<'_>>,
    ) -> Vec<(Rc<str>, Shape)> {
        let field = |field: &Field| {
            let gaps = gaps.map(|gaps| gaps.behind(field.offset));
            let shape = self.shape(field.type_id, depth + 1, gaps);
            (Rc::from(&*field.name), shape)
        };
        fields.into_iter().map(field).collect()
    }

    fn structure(&self, id: TypeId, of: &Struct, depth: u32, gaps: Option<Gaps<'_>>) -> Shape {
        let types = self.types;
        if types.is_text(id) {
            return self.text(depth);
        }
        if let Some(collection) = types.collection(id) {
            return self.collection(&collection, depth);
        }
        if let Some(rest) = types.rest(id)
            && gaps.is_none()
        {
            let items = self.list(Form::List, self.shape(rest.of, depth + 1, None));
            return Shape::Struct {
                name: Rc::from(&*of.name),
                fields: [("0".into(), items)].into(),
            };
        }
        if of.origin == Origin::Library && matches!(&*of.name, "AtomicBool" | "Atomic<bool>") {
            return Shape::Boolean;
        }
        if let Some(only) = types.transparent(of) {
            let gaps = gaps.map(|gaps| gaps.behind(only.offset));
            return self.shape(only.type_id, depth, gaps);
        }
        let is_raw = types.wide(id).is_some_and(|wide| wide.is_raw);
        if !is_raw && let Some(to) = types.led_to_by(id) {
            return match self.is_followed(depth) {
                true => Shape::Behind(Box::new(self.shape(to, depth + 1, None))),
                false => Shape::ADDRESS,
            };
        }
        if let Some(of) = types.seen(id) {
            return self.shape(of, depth, gaps);
        }
        let named_at = |depth: u32, name: &str, wanted: &[&str]| {
            let fields = wanted.iter().filter_map(|name| field_of(&of.fields, name));
            Shape::Struct {
                name: name.into(),
                fields: self.fields(fields, depth, gaps),
            }
        };
        let named = |name: &str, wanted: &[&str]| named_at(depth, name, wanted);
        // What is shown as one text is as deep as its bytes, which may be behind a pointer.
        let as_one = |name: &str, field| named_at(depth.saturating_sub(3), name, &[field]);
        if let Some(wide) = types.wide(id) {
            let name = if wide.is_raw { "Pointer()" } else { &of.name };
            let mut shape = named(name, &wide.words.map(|(name, _)| name));
            // A table of methods is an address.
            if let (Beside::Table, Shape::Struct { fields, .. }) = (wide.beside, &mut shape)
                && let Some((_, table)) = fields.last_mut()
                && !table.is_lost()
            {
                *table = Shape::ADDRESS;
            }
            return shape;
        }
        match (of.origin, plain_name(&of.name)) {
            // Nothing says which of its fields it has.
            (Origin::Union, "MaybeUninit") => named(&of.name, &[]),
            (Origin::Union, name) => named(&format!("{name} {{ .. }}"), &[]),
            (Origin::Library, "Duration")
                if ["secs", "nanos"].iter().all(|name| {
                    let at = types.field_at(id, &[name]);
                    at.is_some_and(|(at, of)| {
                        gaps.is_none_or(|gaps| !gaps.lacks(at, types.size(of)))
                    })
                }) =>
            {
                Shape::Duration
            }
            (Origin::Library, "Range") => named("..", &["start", "end"]),
            (Origin::Library, "RangeInclusive") if field_of(&of.fields, "last").is_some() => {
                named("..=", &["start", "last"])
            }
            (Origin::Library, "RangeInclusive") => named("..=", &["start", "end", "exhausted"]),
            (Origin::Library, "RangeFrom") => named("a..", &["start"]),
            (Origin::Library, "RangeTo") => named("..a", &["end"]),
            (Origin::Library, "RangeToInclusive") if field_of(&of.fields, "last").is_some() => {
                named("..=a", &["last"])
            }
            (Origin::Library, "RangeToInclusive") => named("..=a", &["end"]),
            (Origin::Library, "RangeFull") => named("..", &[]),
            (Origin::Library, "RefCell") => named("RefCell", &["value"]),
            (Origin::Library, "OnceCell") => named("OnceCell()", &["inner"]),
            (Origin::Library, "LazyCell") => named("LazyCell()", &["state"]),
            (Origin::Library, "TypeId") => named("TypeId()", &["data"]),
            (Origin::Library, "Location") => {
                let mut shape = named("Location()", &["filename", "line", "col"]);
                // A raw pointer leads to it.
                if let Shape::Struct { fields, .. } = &mut shape
                    && let Some((_, file)) = fields.first_mut()
                    && !file.is_lost()
                {
                    *file = self.text(depth + 1);
                }
                shape
            }
            (Origin::Library, "SocketAddrV4") => named("SocketAddr()", &["ip", "port"]),
            (Origin::Library, "SocketAddrV6") => named("SocketAddr()", &["ip", "port", "scope_id"]),
            (Origin::Library, lock @ ("Mutex" | "RwLock"))
                if field_of(&of.fields, "poison").is_some() =>
            {
                named(&format!("{lock}()"), &["data", "poison"])
            }
            // Names that end in `()` are those of tuples, and in `[]` of tuples of the contents of
            // tuples. Those that end in `{}` are of fields with names, which are numbers. ` { .. }`
            // is a part of a name.
            (Origin::Library, "CStr" | "CString") => as_one("CStr()", "inner"),
            (Origin::Library, "Chars") => named("Chars()", &["iter"]),
            (Origin::Library, "IntoIter") if field_of(&of.fields, "list").is_some() => {
                named("IntoIter()", &["list"])
            }
            (Origin::Library, "IntoIter")
                if field_of(&of.fields, "inner")
                    .is_some_and(|field| types.collection(field.type_id).is_some()) =>
            {
                named("IntoIter()", &["inner"])
            }
            (Origin::Library, name @ ("Iter" | "IterMut"))
                if field_of(&of.fields, "i1").is_some() =>
            {
                named(&format!("{name}[]"), &["i1", "i2"])
            }
            (Origin::Library, name) if name.starts_with("__m") => {
                named(&format!("{name}[]"), &["0"])
            }
            (Origin::Library, "Drain") if field_of(&of.fields, "tail_start").is_some() => {
                named("Drain[]", &["iter"])
            }
            (Origin::Library, "Drain") if field_of(&of.fields, "drain_len").is_some() => {
                named("Drain()", &["drain_len", "idx", "tail_len", "remaining"])
            }
            (Origin::Library, "SplitInclusive") if field_of(&of.fields, "0").is_some() => {
                named("SplitInclusive{}", &["0"])
            }
            (Origin::Library, "Weak") => named("(Weak)", &[]),
            (Origin::Library, "Empty") => named("Empty", &[]),
            (Origin::Library, name) if partly::is_closed(types, of) => {
                named(&format!("{name} {{ .. }}"), &[])
            }
            (Origin::Library, "Ipv4Addr" | "Ipv6Addr") => as_one("IpAddr()", "octets"),
            _ => match partly::shown(types, of) {
                Some(fields) => named(&of.name, fields),
                None => Shape::Struct {
                    name: Rc::from(&*of.name),
                    fields: self.fields(&of.fields, depth, gaps),
                },
            },
        }
    }

    fn collection(&self, of: &Collection, depth: u32) -> Shape {
        let form = of.form();
        let parts = |parts: &[(u64, TypeId)]| {
            let mut shapes: Vec<Shape> = parts
                .iter()
                .map(|(_, id)| self.shape(*id, depth + 1, None))
                .collect();
            match (form, shapes.pop()) {
                (Form::Map, Some(value)) => {
                    shapes.push(value);
                    Shape::Tuple(shapes)
                }
                (_, only) => only.unwrap_or(Shape::Unit),
            }
        };
        match of {
            Collection::Run { of, .. } => self.list(form, self.shape(*of, depth + 1, None)),
            // Each of its elements takes instructions of its own, whatever it is.
            Collection::Ring { of, .. } | Collection::Chain(Chain { of, .. }) => {
                self.list_of(form, self.shape(*of, depth + 1, None), self.limits.elements)
            }
            Collection::Tree(Tree { parts: of, .. })
            | Collection::Table(Table { parts: of, .. }) => {
                let of = parts(of);
                let least = if self.room == Room::Stack { 4 } else { 2 };
                let limit = self.limits.elements.clamp(least, MOST_OF_TREE);
                Shape::Slots {
                    most: self.most(&of).min(limit),
                    of: Box::new(of),
                    form,
                }
            }
        }
    }

    fn enumeration(&self, of: &Enum, depth: u32, gaps: Option<Gaps<'_>>) -> Shape {
        if let Some(texts) = partly::texts(of) {
            return Shape::Enum {
                name: Rc::from(&*of.name),
                variants: texts.map(|text| (text.into(), Vec::new())).collect(),
            };
        }
        let is_object = of.origin == Origin::Library && of.name.starts_with("dyn ");
        let objects = self.objects.get();
        if is_object && objects >= self.limits.objects.max(1) {
            return Shape::Deeper;
        }
        self.objects.set(objects + u32::from(is_object));
        let shape = self.variants(of, depth, gaps);
        self.objects.set(objects);
        shape
    }

    fn variants(&self, of: &Enum, depth: u32, gaps: Option<Gaps<'_>>) -> Shape {
        // Of some enums of the library only the content is shown.
        let name = match (of.origin, plain_name(&of.name)) {
            (Origin::Library, "Cow" | "IpAddr" | "SocketAddr") => "()".into(),
            (Origin::Library, name) if is_guard(name) => "()".into(),
            (Origin::Library, name) if name.starts_with("dyn ") => "()".into(),
            (Origin::Library, "AlignmentEnum") => "Alignment()".into(),
            _ => Rc::from(&*of.name),
        };
        let has_no_fields = of.variants.iter().all(|variant| variant.fields.is_empty());
        match self.types.choice(of) {
            Some(tag) if has_no_fields => Shape::Choice {
                name,
                bytes: tag.bytes,
                variants: of
                    .variants
                    .iter()
                    .filter_map(|variant| Some((variant.tag?, Rc::from(&*variant.name))))
                    .collect(),
            },
            _ => Shape::Enum {
                name,
                variants: of
                    .variants
                    .iter()
                    .map(|variant| {
                        let fields = self.fields(&variant.fields, depth, gaps);
                        (Rc::from(&*variant.name), fields)
                    })
                    .collect(),
            },
        }
    }
}

/// Bytes that mean nothing by themselves.
fn raw(bytes: u64) -> Shape {
    const MOST: u32 = 16;
    Shape::Array {
        of: Box::new(Shape::Unsigned(1)),
        stored: u32::try_from(bytes).unwrap_or(u32::MAX).min(MOST),
        count: bytes,
    }
}

/// Whether a pointer is shown as what it leads to: a reference or a `Box`, no raw pointer.
pub(crate) fn is_reference(name: &str) -> bool {
    name.starts_with('&') || plain_name(name) == "Box"
}

#[cfg(test)]
mod tests {
    use alloc::{boxed::Box, vec};

    use super::{Shape, cost};

    #[test]
    fn the_cost_of_a_vast_value_is_the_greatest_there_is() {
        let vast = (0..6).fold(Shape::Unsigned(2), |of, _| Shape::Array {
            of: Box::new(of),
            stored: 64,
            count: 64,
        });
        assert_eq!(
            cost(&Shape::Tuple(vec![vast.clone(), vast.clone()])),
            u32::MAX
        );
        let behind = Shape::Behind(Box::new(vast));
        let variant = (
            "V".into(),
            vec![("0".into(), behind.clone()), ("1".into(), behind)],
        );
        let variants = vec![variant.clone(), variant];
        let name = "E".into();
        assert_eq!(cost(&Shape::Enum { name, variants }), u32::MAX);
    }
}
