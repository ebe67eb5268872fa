//! Collections of the library: where their elements are.
//!
//! A collection is recognised by its name, and by whose it is: a type of the source may have any
//! name. Its parts are found by the names of its fields, so one whose insides have changed is no
//! collection, and is shown as the structure that it is.

use alloc::vec::Vec;

use trace_interface::{
    shape::Form,
    symbols::{Origin, Struct, Type, TypeId},
};

use super::{MOST_DEPTH, Types, plain_name};

/// Where the parts of a collection are: offsets in its value, if nothing else is said.
#[derive(Clone, Debug)]
pub(crate) enum Collection {
    /// Elements that follow one another in memory, `skip` bytes after where the pointer leads to.
    Run {
        pointer: u64,
        length: u64,
        skip: u64,
        of: TypeId,
    },
    /// The same, from `head` on and round the end of the room.
    Ring {
        pointer: u64,
        length: u64,
        head: u64,
        capacity: u64,
        of: TypeId,
    },
    Tree(Tree),
    Table(Table),
}

/// A B-tree.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) length: u64,
    pub(crate) height: u64,
    pub(crate) node: u64,
    /// Offsets in a node: how many entries it has, the first child, and the whole size.
    pub(crate) count: u64,
    pub(crate) edges: u64,
    pub(crate) leaf_bytes: u64,
    pub(crate) inner_bytes: u64,
    /// Offsets in a node, and types, of the keys and of the values of a map.
    pub(crate) parts: Vec<(u64, TypeId)>,
}

/// A table of hashbrown's. Its entries lie below the bytes that tell which of them are there.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) control: u64,
    pub(crate) mask: u64,
    pub(crate) items: u64,
    pub(crate) entry_bytes: u64,
    /// Offsets in an entry, and types, of the key and of the value of a map.
    pub(crate) parts: Vec<(u64, TypeId)>,
}

/// The most entries of a node of a B-tree.
pub(crate) const MOST_IN_NODE: u32 = 11;

impl Collection {
    /// How it is written.
    pub(crate) fn form(&self) -> Form {
        match self {
            Self::Run { .. } | Self::Ring { .. } => Form::List,
            Self::Tree(Tree { parts, .. }) | Self::Table(Table { parts, .. }) => {
                match parts.len() {
                    1 => Form::Set,
                    _ => Form::Map,
                }
            }
        }
    }

    /// Where its number of elements is.
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Run { length, .. } | Self::Ring { length, .. } => *length,
            Self::Tree(tree) => tree.length,
            Self::Table(table) => table.items,
        }
    }
}

impl Types<'_> {
    /// The collection that a type is.
    pub(crate) fn collection(&self, id: TypeId) -> Option<Collection> {
        let described = self.describe(id);
        let Type::Struct(of) = &*described else {
            return None;
        };
        if of.origin != Origin::Library {
            return None;
        }
        let name = plain_name(&of.name);
        match name {
            "Vec" => Some(Collection::Run {
                pointer: self.offset_of_pointer(id, MOST_DEPTH)?,
                length: self.field_at(id, &["len"])?.0,
                skip: 0,
                of: *of.parameters.first()?,
            }),
            "Rc" | "Arc" => self.shared_run(id),
            "VecDeque" => Some(Collection::Ring {
                pointer: self.offset_of_pointer(id, MOST_DEPTH)?,
                length: self.field_at(id, &["len"])?.0,
                head: self.field_at(id, &["head"])?.0,
                capacity: self.inside(id, "cap", MOST_DEPTH)?.0,
                of: *of.parameters.first()?,
            }),
            "BTreeMap" => self.tree(id, of, 2).map(Collection::Tree),
            "BTreeSet" => {
                let (at, map) = self.field_at(id, &["map"])?;
                let Type::Struct(of) = &*self.describe(map) else {
                    return None;
                };
                let mut tree = self.tree(map, of, 1)?;
                tree.length += at;
                tree.height += at;
                tree.node += at;
                Some(Collection::Tree(tree))
            }
            "HashMap" => self.table(id, 2).map(Collection::Table),
            "HashSet" => self.table(id, 1).map(Collection::Table),
            _ => None,
        }
    }

    /// The elements of an `Rc<[T]>` or the bytes of an `Rc<str>`; the same of an `Arc`.
    fn shared_run(&self, id: TypeId) -> Option<Collection> {
        let (at, pointer) = self.field_at(id, &["ptr", "pointer"])?;
        let (data, to) = self.field_at(pointer, &["data_ptr"])?;
        let (length, _) = self.field_at(pointer, &["length"])?;
        let (_, counted) = self.pointer_inside(to, 1)?;
        let field = |name| self.field_at(counted, &[name]);
        let (skip, of) = field("data").or_else(|| field("value"))?;
        Some(Collection::Run {
            pointer: at + data,
            length: at + length,
            skip,
            of,
        })
    }

    /// Where the text of a type of the library is: pointer and length, and how many bytes after the
    /// pointer's target it begins.
    pub(crate) fn text_in(&self, id: TypeId) -> Option<(u64, u64, u64)> {
        let described = self.describe(id);
        let Type::Struct(of) = &*described else {
            return None;
        };
        match (of.origin, plain_name(&of.name)) {
            (Origin::Library, "String") => Some((
                self.offset_of_pointer(id, MOST_DEPTH)?,
                self.field_at(id, &["vec", "len"])?.0,
                0,
            )),
            (Origin::Library, "Rc" | "Arc") if of.name.contains("<str") => {
                match self.shared_run(id)? {
                    Collection::Run {
                        pointer,
                        length,
                        skip,
                        ..
                    } => Some((pointer, length, skip)),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Offset and type of the field that a path of names leads to.
    pub(crate) fn field_at(&self, id: TypeId, path: &[&str]) -> Option<(u64, TypeId)> {
        let (mut offset, mut id) = (0, id);
        for name in path {
            let described = self.describe(id);
            let Type::Struct(of) = &*described else {
                return None;
            };
            let field = of.fields.iter().find(|field| field.name == *name)?;
            offset += field.offset;
            id = field.type_id;
        }
        Some((offset, id))
    }

    /// The first field with that name, however deep inside.
    fn inside(&self, id: TypeId, name: &str, depth: u32) -> Option<(u64, TypeId)> {
        let described = self.describe(id);
        let Type::Struct(of) = &*described else {
            return None;
        };
        if let Some(field) = of.fields.iter().find(|field| field.name == name) {
            return Some((field.offset, field.type_id));
        }
        let depth = depth.checked_sub(1)?;
        of.fields.iter().find_map(|field| {
            let (at, id) = self.inside(field.type_id, name, depth)?;
            Some((field.offset + at, id))
        })
    }

    /// Where the first pointer inside of a value is.
    pub(crate) fn offset_of_pointer(&self, id: TypeId, depth: u32) -> Option<u64> {
        self.pointer_inside(id, depth).map(|(at, _)| at)
    }

    /// The same with what it leads to.
    pub(crate) fn pointer_inside(&self, id: TypeId, depth: u32) -> Option<(u64, TypeId)> {
        match &*self.describe(id) {
            Type::Pointer { to, .. } => Some((0, *to)),
            Type::Struct(of) if depth > 0 => of.fields.iter().find_map(|field| {
                let (at, to) = self.pointer_inside(field.type_id, depth - 1)?;
                Some((field.offset + at, to))
            }),
            _ => None,
        }
    }

    /// The tree that a map is. `parts`: 2 with its values, 1 without.
    fn tree(&self, id: TypeId, of: &Struct, parts: usize) -> Option<Tree> {
        let (root_at, root) = self.field_at(id, &["root"])?;
        // None is a null pointer to the node.
        let Type::Enum(option) = &*self.describe(root) else {
            return None;
        };
        let some = option
            .variants
            .iter()
            .find(|variant| variant.name == "Some")?;
        let reference = some.fields.first()?;
        let root_at = root_at + reference.offset;
        let (height, _) = self.field_at(reference.type_id, &["height"])?;
        let (in_node, node) = self.field_at(reference.type_id, &["node"])?;
        let (in_pointer, leaf) = self.pointer_inside(node, MOST_DEPTH)?;
        let (_, parent) = self.field_at(leaf, &["parent"])?;
        let Type::Enum(parent) = &*self.describe(parent) else {
            return None;
        };
        let some = parent
            .variants
            .iter()
            .find(|variant| variant.name == "Some")?;
        let (_, inner) = self.pointer_inside(some.fields.first()?.type_id, MOST_DEPTH)?;
        let arrays = ["keys", "vals"];
        let part = |(name, id): (&&str, &TypeId)| Some((self.field_at(leaf, &[name])?.0, *id));
        let parameters = arrays.iter().zip(&of.parameters).take(parts);
        Some(Tree {
            length: self.field_at(id, &["length"])?.0,
            height: root_at + height,
            node: root_at + in_node + in_pointer,
            count: self.field_at(leaf, &["len"])?.0,
            edges: self.field_at(inner, &["edges"])?.0,
            leaf_bytes: self.size(leaf),
            inner_bytes: self.size(inner),
            parts: parameters.map(part).collect::<Option<_>>()?,
        })
        .filter(|tree| tree.parts.len() == parts)
    }

    /// The table inside of a map or a set. `parts`: 2 with its values, 1 without.
    fn table(&self, id: TypeId, parts: usize) -> Option<Table> {
        // The entry is the parameter of the typed table around the plain one.
        let (outer, typed) = self.inside(id, "table", MOST_DEPTH)?;
        let Type::Struct(of) = &*self.describe(typed) else {
            return None;
        };
        let entry = *of.parameters.first()?;
        let Type::Struct(pair) = &*self.describe(entry) else {
            return None;
        };
        let (at, plain) = self.field_at(typed, &["table"])?;
        let at = outer + at;
        let field = |name| self.field_at(plain, &[name]).map(|(inside, _)| at + inside);
        Some(Table {
            control: field("ctrl")?,
            mask: field("bucket_mask")?,
            items: field("items")?,
            entry_bytes: pair.bytes,
            parts: (pair.fields.iter().take(parts))
                .map(|field| (field.offset, field.type_id))
                .collect(),
        })
        .filter(|table| table.parts.len() == parts)
    }
}
