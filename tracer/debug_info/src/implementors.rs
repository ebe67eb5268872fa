//! The types behind a trait object: those whose tables of methods the file has.
//!
//! A table is a static variable without a name in the source. The compiler describes it as
//! `<Type as Trait>::{vtable}`, and its type says which type it is of.
//!
//! Tables of equal content may have become one. That one is described under the name of one of
//! them, and the descriptions of the others have no address.
//!
//! IMPLEMENTORS-1. An address that may be the table of several types tells none of them. A table
//!     with methods is that of one type, because each type has methods of its own, even where their
//!     code is the same. A table without methods has size and alignment alone.

use trace_interface::symbols::{Expression, Implementor, Piece, Source, TypeId};

use crate::{
    DebugInfo, layout,
    names::{self, TABLE},
    session::Session,
    types,
};

/// What each table begins with: the code that drops a value, its size, and what it is aligned to.
const BEFORE_METHODS: u64 = 24;

/// A table of methods, as it is described.
struct Table {
    /// With its path, and those of the type and the trait.
    name: String,
    /// None if it has become one with another one.
    address: Option<u64>,
    bytes: u64,
    of: TypeId,
}

impl DebugInfo {
    /// See [`trace_interface::symbols::Kernel::implementors`].
    pub(crate) fn find_implementors(&self, pointer: TypeId) -> Vec<Implementor> {
        let session = self.session();
        let name = session
            .entry(pointer.0)
            .and_then(|found| found.name(&session));
        let Some(of_trait) = name.as_deref().and_then(principal) else {
            return Vec::new();
        };
        let short = format!(" as {}>{TABLE}", names::short(&of_trait));
        let ending = format!(" as {of_trait}>{TABLE}");
        let is_of_trait = |name: &str| name.ends_with(&short);
        let mut placed = self.tables(&session, self.index.globals(), is_of_trait);
        let mut merged = self.tables(&session, self.index.merged_tables(), is_of_trait);
        placed.retain(|table| table.name.ends_with(&ending));
        merged.retain(|table| table.name.ends_with(&ending));
        // Another unit may have kept it.
        merged.retain(|table| !placed.iter().any(|placed| placed.name == table.name));
        let form = |of| Some((types::size(&session, of)?, layout::align(&session, of)?));
        let mut told = Vec::new();
        for table in distinct(placed) {
            let stands_for = |other: &Table| {
                table.bytes == BEFORE_METHODS
                    && other.bytes == BEFORE_METHODS
                    && form(other.of).is_none_or(|of| form(table.of) == Some(of))
            };
            if !merged.iter().any(stands_for) {
                told.push(table);
            }
        }
        // The table of the same type for a trait with the same methods.
        for table in merged.iter().filter(|table| table.bytes > BEFORE_METHODS) {
            let of_type = table.name.strip_suffix(&ending).unwrap_or_default();
            let beginning = format!("{of_type} as ");
            let short = format!("{} as ", names::short(of_type));
            let is_of_type = |name: &str| name.starts_with(&short) && name.ends_with(TABLE);
            let same = self.tables(&session, self.index.globals(), is_of_type);
            told.extend(
                same.into_iter()
                    .filter(|same| same.name.starts_with(&beginning) && same.bytes == table.bytes)
                    .map(|same| Table {
                        name: table.name.clone(),
                        of: table.of,
                        ..same
                    }),
            );
        }
        let told = distinct(told).into_iter();
        told.filter_map(|table| {
            Some(Implementor {
                table: table.address?,
                name: types::name(&session, table.of),
                align: layout::align(&session, table.of)?,
                type_id: table.of,
            })
        })
        .collect()
    }

    /// The tables among variables whose short names are wanted.
    fn tables(
        &self,
        session: &Session,
        variables: impl Iterator<Item = (u32, u64)>,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Vec<Table> {
        let wanted = variables.filter(|(path, _)| is_wanted(self.index.name(*path)));
        wanted
            .filter_map(|(_, entry)| self.table(session, entry))
            .collect()
    }

    fn table(&self, session: &Session, entry: u64) -> Option<Table> {
        let described = types::of(session, entry);
        let address = match self.static_at(session, entry) {
            None => None,
            Some(variable) => match &variable.pieces[..] {
                [
                    Piece {
                        source: Source::Memory(Expression::Constant(address)),
                        ..
                    },
                ] => Some(*address),
                _ => return None,
            },
        };
        Some(Table {
            name: session.entry(entry)?.name(session)?,
            address,
            bytes: types::size(session, described)?,
            of: TypeId(
                session
                    .entry(described.0)?
                    .reference(gimli::DW_AT_containing_type)?,
            ),
        })
    }
}

/// Those whose addresses are of one type each.
fn distinct(all: Vec<Table>) -> Vec<Table> {
    let mut found: Vec<Table> = Vec::new();
    let mut several: Vec<Option<u64>> = Vec::new();
    for new in all {
        match found.iter().find(|known| known.address == new.address) {
            // Each unit describes its own.
            Some(known) if known.name == new.name => {}
            Some(_) => several.push(new.address),
            None => found.push(new),
        }
    }
    found.retain(|table| !several.contains(&table.address));
    found
}

/// The trait in the name of a pointer to a trait object, with its path, as tables have it: without
/// the marker traits beside it, and without the types that it names (`Output=u8`).
fn principal(pointer: &str) -> Option<String> {
    let (_, object) = pointer.split_once("dyn ")?;
    let end = names::find_in_brackets(object, |depth, letter| {
        depth < 0 || depth == 0 && matches!(letter, ' ' | ',')
    });
    let object = &object[..end.unwrap_or(object.len())];
    let (path, Some(arguments)) = names::generics(object) else {
        return Some(object.into());
    };
    let is_type = |argument: &&str| names::generics(argument).0.split('=').count() == 1;
    let kept: Vec<&str> = names::list(arguments).into_iter().filter(is_type).collect();
    Some(match kept.is_empty() {
        true => path.into(),
        false => format!("{path}<{}>", kept.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use trace_interface::symbols::TypeId;

    use super::{Table, distinct, principal};

    #[test]
    fn a_table_of_two_types_tells_none_of_them() {
        let table = |(name, address): (&str, u64)| Table {
            name: name.into(),
            address: Some(address),
            bytes: 32,
            of: TypeId(address),
        };
        // Two types may have one name, in different modules.
        let all = [
            ("A", 8),
            ("a::B", 16),
            ("A", 8),
            ("C", 24),
            ("b::B", 16),
            ("a::B", 16),
        ];
        let told = distinct(all.map(table).into());
        let told = told.iter().map(|table| (&*table.name, table.address));
        assert!(told.eq([("A", Some(8)), ("C", Some(24))]));
    }

    #[test]
    fn the_trait_of_an_object_is_told_by_the_name_of_its_pointer() {
        let cases = [
            ("&dyn a::Shape", "a::Shape"),
            (
                "alloc::boxed::Box<dyn a::Shape, alloc::alloc::Global>",
                "a::Shape",
            ),
            (
                "alloc::boxed::Box<(dyn a::Error + a::Send + a::Sync), b::Global>",
                "a::Error",
            ),
            ("*const alloc::rc::RcInner<dyn a::Of<u8>>", "a::Of<u8>"),
            (
                "&mut dyn core::ops::Fn<(u8, [u16; 2]), Output=a::B<u8>>",
                "core::ops::Fn<(u8, [u16; 2])>",
            ),
            ("&dyn a::Iterator<Item=u8>", "a::Iterator"),
            ("&dyn a::Of<fn(u8) -> u8>", "a::Of<fn(u8) -> u8>"),
        ];
        for (pointer, of_trait) in cases {
            assert_eq!(principal(pointer).as_deref(), Some(of_trait), "{pointer}");
        }
        assert_eq!(principal("&a::Shape"), None);
    }
}
