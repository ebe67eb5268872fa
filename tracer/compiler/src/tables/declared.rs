//! Maps that the text declares: `let @name = hash(1000);`.
//!
//! A declaration says how many keys a map has at most. What it holds is learned from its
//! assignments, as of any other map, and must be of the declared kind.

use alloc::format;

use bpf::MapDef;
use trace_interface::view::Class;
use trace_language::{Diagnostic, tree::MapDeclaration};

use super::{Declared, Map, Tables};

impl Tables<'_> {
    /// Checks a declaration, and notes it.
    pub(crate) fn declare(&mut self, of: &MapDeclaration) {
        let number = self.map(&of.name) as usize;
        let keys = u32::try_from(of.keys).ok();
        let keys = keys.filter(|keys| (1..=MapDef::MOST_ENTRIES).contains(keys));
        let name = &of.name.text;
        let error = match (&*of.kind.text, keys) {
            ("hash" | "percpuhash", None) => Diagnostic::new(
                of.span,
                format!("a map has 1 to {} keys", MapDef::MOST_ENTRIES),
                "give it a number of keys that fits",
            ),
            ("hash" | "percpuhash", _) if self.maps[number].declared.is_some() => Diagnostic::new(
                of.span,
                format!("`@{name}` is declared twice"),
                "leave one of the two out",
            ),
            ("hash" | "percpuhash", Some(keys)) => {
                self.maps[number].declared = Some(Declared {
                    keys,
                    on_each_cpu: of.kind.text == "percpuhash",
                });
                return;
            }
            (kind @ ("lruhash" | "percpulruhash"), _) => {
                let kind = kind.replace("lru", "");
                Diagnostic::new(
                    of.kind.span,
                    "no map forgets the keys that were not used for long",
                    format!(
                        "use {kind}(keys), which counts at the end what it had no room for, and \
                         make room: delete(@{name}, key), or clear(@{name}) in interval:"
                    ),
                )
            }
            _ => Diagnostic::new(
                of.kind.span,
                format!("`{}` is no kind of map", of.kind.text),
                "the kinds are hash, and percpuhash for count() and the like",
            ),
        };
        self.error(error);
    }

    /// Whether a map holds what its declaration says. If not, why.
    pub(crate) fn unlike_declared(&self, map: &Map) -> Option<Diagnostic> {
        let (declared, class) = (map.declared?, map.class.as_ref()?);
        let on_each_cpu = !matches!(class, Class::Plain(_));
        let name = map.name.as_deref().unwrap_or("");
        (declared.on_each_cpu != on_each_cpu).then(|| match on_each_cpu {
            true => Diagnostic::new(
                map.span,
                format!("`@{name}` is declared as hash, and each CPU has a part of what it holds"),
                "declare it as percpuhash",
            ),
            false => Diagnostic::new(
                map.span,
                format!("`@{name}` is declared as percpuhash, and all CPUs share what it holds"),
                "declare it as hash",
            ),
        })
    }
}
