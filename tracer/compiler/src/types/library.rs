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
    Chain(Chain),
    Tree(Tree),
    Table(Table),
}

/// A list of nodes, of which each leads to the next one.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    pub(crate) length: u64,
    pub(crate) first: u64,
    /// Offsets in a node, and its whole size.
    pub(crate) next: u64,
    pub(crate) element: u64,
    pub(crate) bytes: u64,
    pub(crate) of: TypeId,
}

/// The elements that an iterator has yet to give.
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    /// Where the pointers to the first one and behind the last one are.
    pub(crate) first: u64,
    pub(crate) end: u64,
    /// Whether the second pointer is the number of elements instead.
    pub(crate) counts: bool,
    /// Where the elements are, if they are in the iterator. Then the pointers are numbers of them.
    pub(crate) inside: Option<u64>,
    /// How far one element is behind another.
    pub(crate) bytes: u64,
    pub(crate) of: TypeId,
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

/// The most entries of a B-tree that are stored. As many are in six leaves and the node above them,
/// of which each has five at least.
pub(crate) const MOST_OF_TREE: u32 = 35;

impl Collection {
    /// How it is written.
    pub(crate) fn form(&self) -> Form {
        match self {
            Self::Run { .. } | Self::Ring { .. } | Self::Chain(_) => Form::List,
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
            Self::Chain(chain) => chain.length,
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
            "LinkedList" => self.chain(id, of).map(Collection::Chain),
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

    /// The elements of an `Rc<[T]>` or the bytes of an `Rc<str>`; the same of an `Arc`. Others have
    /// a length, too: that of the last field of what they lead to.
    fn shared_run(&self, id: TypeId) -> Option<Collection> {
        let Type::Struct(of) = &*self.describe(id) else {
            return None;
        };
        let (_, content) = of.name.split_once('<')?;
        if !content.starts_with('[') && !is_text(content) {
            return None;
        }
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

    /// The elements that an iterator of the library has yet to give.
    pub(crate) fn rest(&self, id: TypeId) -> Option<Rest> {
        let described = self.describe(id);
        let Type::Struct(of) = &*described else {
            return None;
        };
        let end = match (of.origin, plain_name(&of.name)) {
            (Origin::Library, "Iter" | "IterMut") => "end_or_len",
            (Origin::Library, "IntoIter") => "end",
            _ => return None,
        };
        let item = *of.parameters.first()?;
        let bytes = self.size(item);
        if end == "end"
            && let Some((at, alive)) = self.inside(id, "alive", MOST_DEPTH)
        {
            return Some(Rest {
                first: at + self.field_at(alive, &["start"])?.0,
                end: at + self.field_at(alive, &["end"])?.0,
                counts: false,
                inside: Some(self.inside(id, "data", MOST_DEPTH)?.0),
                bytes,
                of: item,
            });
        }
        Some(Rest {
            first: self.field_at(id, &["ptr"])?.0,
            end: self.field_at(id, &[end])?.0,
            counts: bytes == 0 && end == "end_or_len",
            inside: None,
            bytes: bytes.max(1),
            of: item,
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
            (Origin::Library, "OsString" | "PathBuf") => Some((
                // These are some structures around a `Vec`.
                self.offset_of_pointer(id, 2 * MOST_DEPTH)?,
                self.inside(id, "len", MOST_DEPTH)?.0,
                0,
            )),
            (Origin::Library, "Rc" | "Arc")
                if of
                    .name
                    .split_once('<')
                    .is_some_and(|(_, content)| is_text(content)) =>
            {
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
    pub(crate) fn inside(&self, id: TypeId, name: &str, depth: u32) -> Option<(u64, TypeId)> {
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

    /// The first field of the variant `Some` of a field.
    fn if_some(&self, id: TypeId, name: &str) -> Option<(u64, TypeId)> {
        let (at, option) = self.field_at(id, &[name])?;
        let Type::Enum(option) = &*self.describe(option) else {
            return None;
        };
        let mut variants = option.variants.iter();
        let some = variants.find(|variant| variant.name == "Some")?;
        let content = some.fields.first()?;
        Some((at + content.offset, content.type_id))
    }

    /// The nodes of a linked list. None is a null pointer to a node.
    fn chain(&self, id: TypeId, of: &Struct) -> Option<Chain> {
        let (first, pointer) = self.if_some(id, "head")?;
        let (in_pointer, node) = self.pointer_inside(pointer, MOST_DEPTH)?;
        let (next, pointer) = self.if_some(node, "next")?;
        let (in_next, _) = self.pointer_inside(pointer, MOST_DEPTH)?;
        Some(Chain {
            length: self.field_at(id, &["len"])?.0,
            first: first + in_pointer,
            next: next + in_next,
            element: self.field_at(node, &["element"])?.0,
            bytes: self.size(node),
            of: *of.parameters.first()?,
        })
    }

    /// The tree that a map is. `parts`: 2 with its values, 1 without.
    fn tree(&self, id: TypeId, of: &Struct, parts: usize) -> Option<Tree> {
        // None is a null pointer to the node.
        let (root_at, root) = self.if_some(id, "root")?;
        let (height, _) = self.field_at(root, &["height"])?;
        let (in_node, node) = self.field_at(root, &["node"])?;
        let (in_pointer, leaf) = self.pointer_inside(node, MOST_DEPTH)?;
        let (_, parent) = self.if_some(leaf, "parent")?;
        let (_, inner) = self.pointer_inside(parent, MOST_DEPTH)?;
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

/// Whether the parameters of a type begin with that of a text.
fn is_text(parameters: &str) -> bool {
    let after = parameters.strip_prefix("str");
    after.is_some_and(|after| after.starts_with(['>', ',']))
}
