//! Types of the library that are shown as another type: an enum of the text's own over their bytes.

use alloc::{format, vec::Vec};

use trace_interface::symbols::{Enum, Field, Origin, Tag, Type, TypeId, Variant};

use super::{MOST_DEPTH, Types, plain_name};

/// What the state of a `Once` is when its work is done.
const COMPLETE: u128 = 0;

impl Types<'_> {
    /// The enum that a type is shown as: a guard of a `RefCell` by what it leads to, a cell that is
    /// written once by its content, and a pointer to a trait object by what it leads to. The
    /// pointer may be in an `Rc` or `Arc`. None: the type is shown as it is.
    pub(crate) fn seen(&self, id: TypeId) -> Option<TypeId> {
        if let Some(known) = self.seen.borrow().get(&id) {
            return *known;
        }
        let made = self
            .enum_of_implementors(id)
            .or_else(|| self.borrowed(id))
            .or_else(|| self.written_once(id));
        self.seen.borrow_mut().insert(id, made);
        made
    }

    /// What a `Ref` or a `RefMut` leads to.
    fn borrowed(&self, id: TypeId) -> Option<TypeId> {
        let described = self.describe(id);
        let Type::Struct(of) = &*described else {
            return None;
        };
        if of.origin != Origin::Library || !matches!(plain_name(&of.name), "Ref" | "RefMut") {
            return None;
        }
        self.field_at(id, &["borrow"])?;
        let (at, pointer) = self.field_at(id, &["value"])?;
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
        let reference = self.synthetic(reference);
        let content = Field {
            name: "0".into(),
            offset: at,
            type_id: reference,
        };
        let content = Variant {
            name: "Ref".into(),
            tag: None,
            fields: [content].into(),
        };
        Some(self.synthetic(Type::Enum(Enum {
            name: of.name.clone(),
            bytes: of.bytes,
            tag: None,
            variants: [content].into(),
            origin: Origin::Library,
        })))
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
