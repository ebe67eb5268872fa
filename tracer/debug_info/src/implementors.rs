//! The types behind a trait object: those whose tables of methods the file has.
//!
//! A table is a static variable without a name in the source. The compiler describes it as
//! `<Type as Trait>::{vtable}`, and its type says which type it is of.
//!
//! IMPLEMENTORS-1. Tables of equal content may have become one. An address that is said to be of
//!     several types tells none of them.

use trace_interface::symbols::{Expression, Implementor, Piece, Source, TypeId};

use crate::{DebugInfo, layout, names, session::Session, types};

const TABLE: &str = "::{vtable}";

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
        let tables = self.index.globals().filter_map(|(path, entry)| {
            if !self.index.name(path).ends_with(&short) {
                return None;
            }
            let full = session.entry(entry)?.name(&session)?;
            let of = full
                .ends_with(&ending)
                .then(|| self.implementor(&session, entry))??;
            Some((full, of))
        });
        distinct(tables)
    }

    /// The type that the table with that entry is of.
    fn implementor(&self, session: &Session, entry: u64) -> Option<Implementor> {
        let variable = self.static_at(session, entry)?;
        let table = match &variable.pieces[..] {
            [
                Piece {
                    source: Source::Memory(Expression::Constant(address)),
                    ..
                },
            ] => *address,
            _ => return None,
        };
        let of = session.entry(variable.type_id.0)?;
        let type_id = TypeId(of.reference(gimli::DW_AT_containing_type)?);
        Some(Implementor {
            table,
            name: types::name(session, type_id),
            align: layout::align(session, type_id)?,
            type_id,
        })
    }
}

/// Those whose tables are of one type each, of tables by their names.
fn distinct(all: impl Iterator<Item = (String, Implementor)>) -> Vec<Implementor> {
    let mut found: Vec<(String, Implementor)> = Vec::new();
    let mut several: Vec<u64> = Vec::new();
    for (name, new) in all {
        match found.iter().find(|(_, known)| known.table == new.table) {
            // Each unit describes its own.
            Some((known, _)) if *known == name => {}
            Some(_) => several.push(new.table),
            None => found.push((name, new)),
        }
    }
    let found = found.into_iter().map(|(_, of)| of);
    found.filter(|of| !several.contains(&of.table)).collect()
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
    use trace_interface::symbols::{Implementor, TypeId};

    use super::{distinct, principal};

    #[test]
    fn a_table_of_two_types_tells_none_of_them() {
        let of = |table, name: &str| Implementor {
            table,
            type_id: TypeId(table + name.len() as u64),
            name: name.into(),
            align: 8,
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
        let all = all.map(|(path, table)| (path.to_string(), of(table, &path[path.len() - 1..])));
        let told = distinct(all.into_iter());
        assert_eq!(told, [of(8, "A"), of(24, "C")]);
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
