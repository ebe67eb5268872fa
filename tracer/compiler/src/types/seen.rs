//! Types of the library that are shown as another type: an enum of the text's own over their bytes.
//!
//! So what is read, and what a field or a pattern means, is as for any enum. An enum of one variant
//! without a tag is what a structure would be, with parts of its parts as its fields.

use alloc::{format, vec::Vec};

use trace_interface::symbols::{Enum, Field, Origin, Struct, Tag, Type, TypeId, Variant};

use super::{MOST_DEPTH, TRANSPARENT, Types, plain_name};

/// What the state of a `Once` is when its work is done.
const COMPLETE: u128 = 0;

impl Types<'_> {
    /// The enum that a type is shown as: a guard of a `RefCell` or a lock by what it leads to, a
    /// cell that is written once by its content, a pointer to a trait object by what it leads to,
    /// and one of which parts of a part are shown by those. The pointer may be in an `Rc` or `Arc`.
    /// None: the type is shown as it is.
    pub(crate) fn seen(&self, id: TypeId) -> Option<TypeId> {
        if let Some(known) = self.seen.borrow().get(&id) {
            return *known;
        }
        let made = self
            .enum_of_implementors(id)
            .or_else(|| self.borrowed(id))
            .or_else(|| self.locked(id))
            .or_else(|| self.written_once(id))
            .or_else(|| self.flat(id))
            .or_else(|| self.rest_of_chain(id));
        self.seen.borrow_mut().insert(id, made);
        made
    }

    /// What a `Ref`, a `RefMut` or a guard of a lock leads to by itself.
    fn borrowed(&self, id: TypeId) -> Option<TypeId> {
        let described = self.describe(id);
        let Type::Struct(of) = &*described else {
            return None;
        };
        if of.origin != Origin::Library || !is_guard(plain_name(&of.name)) {
            return None;
        }
        let (at, pointer) = match self.field_at(id, &["borrow"]) {
            Some(_) => self.field_at(id, &["value"])?,
            None => self.field_at(id, &["data"])?,
        };
        let pointer = self.only_field(pointer)?;
        let reference = match &*self.describe(pointer) {
            Type::Pointer { to, .. } => Type::Pointer {
                name: "&".into(),
                to: *to,
            },
            Type::Struct(wide) => match wide.name.strip_prefix("*const ")? {
                "str" => Type::Str,
                slice if slice.starts_with('[') => Type::Slice {
                    of: self.wide(pointer)?.to,
                },
                _ => return None,
            },
            _ => return None,
        };
        Some(self.guarded(of, at, reference))
    }

    /// What a guard of a lock leads to, if it leads to the lock.
    fn locked(&self, id: TypeId) -> Option<TypeId> {
        let described = self.describe(id);
        let Type::Struct(of) = &*described else {
            return None;
        };
        if of.origin != Origin::Library || !is_guard(plain_name(&of.name)) {
            return None;
        }
        let (at, pointer) = self.field_at(id, &["lock"])?;
        let Type::Pointer { to, .. } = *self.describe(pointer) else {
            return None;
        };
        let (offset, type_id) = self.field_at(to, &["data"])?;
        let field = Field {
            name: "value".into(),
            offset,
            type_id,
        };
        let data = self.synthetic(Type::Struct(Struct {
            name: TRANSPARENT.into(),
            bytes: offset + self.size(type_id),
            fields: [field].into(),
            parameters: Vec::new(),
            origin: Origin::Library,
        }));
        let reference = Type::Pointer {
            name: "&".into(),
            to: data,
        };
        Some(self.guarded(of, at, reference))
    }

    /// A guard that is shown as the reference that it has at an offset.
    fn guarded(&self, of: &Struct, offset: u64, reference: Type) -> TypeId {
        let content = Field {
            name: "0".into(),
            offset,
            type_id: self.synthetic(reference),
        };
        self.variant_alone(of, "Ref", [content].into())
    }

    /// An enum of one variant in the place of a structure.
    fn variant_alone(&self, of: &Struct, name: &str, fields: Vec<Field>) -> TypeId {
        let variant = Variant {
            name: name.into(),
            tag: None,
            fields,
        };
        self.synthetic(Type::Enum(Enum {
            name: of.name.clone(),
            bytes: of.bytes,
            tag: None,
            variants: [variant].into(),
            origin: Origin::Library,
        }))
    }

    /// A type that is shown with the fields of one of its fields. Pointers are not followed.
    fn flat(&self, id: TypeId) -> Option<TypeId> {
        let described = self.describe(id);
        let Type::Struct(of) = &*described else {
            return None;
        };
        let name = plain_name(&of.name);
        let (inner, shown) = match (of.origin, name) {
            (Origin::Library, "Instant" | "SystemTime") => ("t", ["tv_sec", "tv_nsec"]),
            (Origin::Library, "Waker" | "LocalWaker") => ("waker", ["data", "vtable"]),
            (Origin::Library, "RSplit" | "RSplitMut") => ("inner", ["v", "finished"]),
            (Origin::Library, "CharPredicateSearcher") => ("0", ["haystack", "char_indices"]),
            _ => return None,
        };
        let mut fields = Vec::new();
        for name in shown {
            let (offset, mut type_id) = self.field_at(id, &[inner, name])?;
            if let Type::Pointer { to, .. } = *self.describe(type_id) {
                let name = "*const".into();
                type_id = self.synthetic(Type::Pointer { name, to });
            }
            fields.push(Field {
                name: name.into(),
                offset,
                type_id,
            });
        }
        Some(self.variant_alone(of, name, fields))
    }

    /// An iterator over a linked list, which is shown as the list that is left and its length.
    fn rest_of_chain(&self, id: TypeId) -> Option<TypeId> {
        let described = self.describe(id);
        let Type::Struct(of) = &*described else {
            return None;
        };
        let name = plain_name(&of.name);
        if of.origin != Origin::Library || !matches!(name, "Iter" | "IterMut") {
            return None;
        }
        self.field_at(id, &["head"])?;
        let (offset, length) = self.field_at(id, &["len"])?;
        let list = self.synthetic(Type::Struct(Struct {
            name: "LinkedList".into(),
            ..of.clone()
        }));
        self.collection(list)?;
        let field = |name: &str, offset, type_id| Field {
            name: name.into(),
            offset,
            type_id,
        };
        let fields = [field("0", 0, list), field("1", offset, length)];
        Some(self.variant_alone(of, name, fields.into()))
    }

    /// The content of a `OnceLock` or a `LazyLock`, if it has been written.
    fn written_once(&self, id: TypeId) -> Option<TypeId> {
        let described = self.describe(id);
        let Type::Struct(of) = &*described else {
            return None;
        };
        let content = match (of.origin, plain_name(&of.name)) {
            (Origin::Library, "OnceLock") => "value",
            (Origin::Library, "LazyLock") => "data",
            _ => return None,
        };
        let (once, state) = self.field_at(id, &["once"])?;
        let (at, word) = self.inside(state, "state_and_queued", MOST_DEPTH)?;
        let (offset, _) = self.field_at(id, &[content])?;
        let name = plain_name(&of.name);
        let written = Variant {
            name: name.into(),
            tag: Some(COMPLETE),
            fields: [Field {
                name: "0".into(),
                offset,
                type_id: *of.parameters.first()?,
            }]
            .into(),
        };
        let not_yet = Variant {
            name: format!("{name}(<uninit>)"),
            tag: None,
            fields: Vec::new(),
        };
        Some(self.synthetic(Type::Enum(Enum {
            name: name.into(),
            bytes: of.bytes,
            tag: Some(Tag {
                offset: once + at,
                bytes: u8::try_from(self.size(word)).ok()?,
                signed: false,
            }),
            variants: [written, not_yet].into(),
            origin: Origin::Library,
        })))
    }
}

/// Whether a type of the library of that name is shown as what it leads to.
pub(crate) fn is_guard(name: &str) -> bool {
    let guards = [
        "MutexGuard",
        "Ref",
        "RefMut",
        "RwLockReadGuard",
        "RwLockWriteGuard",
    ];
    guards.contains(&name)
}
