//! Types of the library of which `Debug` shows less than they hold.

use alloc::{format, string::String};

use trace_interface::symbols::{Enum, Origin, Struct, Type};

use super::{Types, field_of, plain_name};

/// Names, a field that no other types of these names have, and the fields that are shown.
const SHOWN: [(&[&str], &str, &[&str]); 10] = [
    (&["FilterMap", "Inspect", "Map"], "f", &["iter"]),
    (&["Filter", "MapWhile"], "predicate", &["iter"]),
    (&["SkipWhile", "TakeWhile"], "predicate", &["iter", "flag"]),
    (&["Scan"], "f", &["iter", "state"]),
    (&["Successors"], "succ", &["next"]),
    (&["ChunkBy", "ChunkByMut"], "predicate", &["slice"]),
    (
        &["Split", "SplitInclusive", "SplitInclusiveMut", "SplitMut"],
        "pred",
        &["v", "finished"],
    ),
    (&["FromFn"], "0", &[]),
    (&["Pending"], "_data", &[]),
    (&["BuildHasherDefault"], "0", &[]),
];

/// Types that are shown without content, by their names and a field.
const CLOSED: [(&[&str], &str); 9] = [
    (&["Barrier"], "num_threads"),
    (
        &["Condvar", "Once", "Receiver", "Sender", "SyncSender"],
        "inner",
    ),
    (&["EncodeUtf16"], "extra"),
    (&["EscapeAscii"], "inner"),
    (&["PoisonError"], "data"),
    (&["RandomState"], "k0"),
    (&["RepeatWith"], "repeater"),
    (&["SendError"], "0"),
    (&["OnceState"], "inner"),
];

/// Iterators of which each element takes those before it: a pair of which one is such is shown
/// with both.
const ONE_BY_ONE: [&str; 20] = [
    "Chain",
    "CharIndices",
    "Chars",
    "Cycle",
    "Empty",
    "Filter",
    "FilterMap",
    "FlatMap",
    "Flatten",
    "FromFn",
    "Once",
    "Peekable",
    "RangeFrom",
    "RangeInclusive",
    "Repeat",
    "RepeatN",
    "Rev",
    "SkipWhile",
    "Successors",
    "TakeWhile",
];

/// The fields of a type that `Debug` shows, if it passes others over.
pub(crate) fn shown(types: &Types<'_>, of: &Struct) -> Option<&'static [&'static str]> {
    let name = plain_name(&of.name);
    if of.origin != Origin::Library {
        return None;
    }
    if name == "Zip" {
        let is_one_by_one = |field: &str| {
            field_of(&of.fields, field).is_some_and(|field| match &*types.describe(field.type_id) {
                Type::Struct(of) => ONE_BY_ONE.contains(&plain_name(&of.name)),
                _ => false,
            })
        };
        return Some(match ["a", "b"].into_iter().any(is_one_by_one) {
            true => &["a", "b"],
            false => &[],
        });
    }
    let mut known = SHOWN.iter();
    known
        .find(|(names, field, _)| names.contains(&name) && field_of(&of.fields, field).is_some())
        .map(|(_, _, fields)| *fields)
}

/// The texts that `Debug` shows in the place of the variants of an enum.
pub(crate) fn texts(of: &Enum) -> Option<impl Iterator<Item = String>> {
    let is_known = of.origin == Origin::Library && plain_name(&of.name) == "TryLockError";
    let names = of.variants.iter().map(|variant| &*variant.name);
    let is_of_lock = is_known && names.clone().any(|name| name == "Poisoned");
    is_of_lock.then(|| {
        names.map(|name| match name {
            "Poisoned" => "\"Poisoned(..)\"".into(),
            other => format!("\"{other}\""),
        })
    })
}

/// Whether `Debug` shows nothing of a type but its name, as `Name { .. }`.
pub(crate) fn is_closed(types: &Types<'_>, of: &Struct) -> bool {
    let name = plain_name(&of.name);
    // That of a byte has four letters at most. That of a `char` is shown.
    if of.origin == Origin::Library
        && name == "EscapeDefault"
        && let [only] = &of.fields[..]
        && let Type::Struct(inner) = &*types.describe(only.type_id)
    {
        return inner.name.starts_with("EscapeIterInner<4,");
    }
    // An iterator is called `Once`, too.
    let is_iterator = name == "Once" && of.name != name;
    let mut known = CLOSED.iter();
    of.origin == Origin::Library
        && !is_iterator
        && known
            .any(|(names, field)| names.contains(&name) && field_of(&of.fields, field).is_some())
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use trace_interface::symbols::Variant;

    use super::*;

    /// Files have an error of the same name, which `Debug` shows in another way.
    #[test]
    fn texts_stand_for_the_variants_of_the_error_of_locks_alone() {
        let of = |name: &str, variants: [&str; 2], origin| Enum {
            name: name.into(),
            bytes: 1,
            tag: None,
            variants: variants
                .map(|name| Variant {
                    name: name.into(),
                    tag: None,
                    fields: Vec::new(),
                })
                .into(),
            origin,
        };
        let of_lock = ["Poisoned", "WouldBlock"];
        let error = "std::sync::TryLockError<u8>";
        let shown = texts(&of(error, of_lock, Origin::Library)).map(Vec::from_iter);
        assert_eq!(
            shown.as_deref(),
            Some(&["\"Poisoned(..)\"".into(), "\"WouldBlock\"".into()][..])
        );
        for other in [
            of(error, of_lock, Origin::Source),
            of(
                "std::fs::TryLockError",
                ["Error", "WouldBlock"],
                Origin::Library,
            ),
            of("std::sync::PoisonError", of_lock, Origin::Library),
        ] {
            assert!(texts(&other).is_none(), "{other:?}");
        }
    }
}
