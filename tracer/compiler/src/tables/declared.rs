//! Maps that the text declares: `let @name = hash(1000);`.
//!
//! A declaration says how many keys a map has at most. What it holds is learned from its
//! assignments, as of any other map, and must be of the declared kind. A map that forgets
//! (`lruhash`) is shared by all CPUs. If each CPU forgot keys of its own, a count would be that of
//! some CPUs.

use alloc::format;

use bpf::MapDef;
use trace_interface::view::Class;
use trace_language::{Diagnostic, tree::MapDeclaration};

use super::{Declared, Map, Tables};

/// The entries that a map which forgets has beyond the declared ones: for keys that CPUs insert at
/// the same time.
const SPARE: u32 = 64;

impl Declared {
    /// How many entries the map needs.
    pub(crate) fn entries(&self) -> u32 {
        self.keys + if self.forgets { SPARE } else { 0 }
    }
}

impl Tables<'_> {
    /// Checks a declaration, and notes it.
    pub(crate) fn declare(&mut self, of: &MapDeclaration) {
        let number = self.map(&of.name) as usize;
        let name = &of.name.text;
        let (on_each_cpu, forgets) = match &*of.kind.text {
            "hash" => (false, false),
            "percpuhash" => (true, false),
            "lruhash" => (false, true),
            "percpulruhash" => {
                return self.error(Diagnostic::new(
                    of.kind.span,
                    "each CPU would forget keys of its own, and a count would be that of some CPUs",
                    format!(
                        "use percpuhash(keys), which counts at the end what it had no room for, \
                         and make room: delete(@{name}, key), or clear(@{name}) in interval:"
                    ),
                ));
            }
            kind => {
                return self.error(Diagnostic::new(
                    of.kind.span,
                    format!("`{kind}` is no kind of map"),
                    "the kinds are hash, lruhash, and percpuhash for count() and the like",
                ));
            }
        };
        let most = MapDef::MOST_ENTRIES - if forgets { SPARE } else { 0 };
        let keys = u32::try_from(of.keys).ok();
        let Some(keys) = keys.filter(|keys| (1..=most).contains(keys)) else {
            return self.error(Diagnostic::new(
                of.span,
                format!("a map of this kind has 1 to {most} keys"),
                "give it a number of keys that fits",
            ));
        };
        if self.maps[number].declared.is_some() {
            return self.error(Diagnostic::new(
                of.span,
                format!("`@{name}` is declared twice"),
                "leave one of the two out",
            ));
        }
        self.maps[number].declared = Some(Declared {
            keys,
            on_each_cpu,
            forgets,
        });
    }

    /// Whether a map holds what its declaration says. If not, why.
    pub(crate) fn unlike_declared(&self, map: &Map) -> Option<Diagnostic> {
        let (declared, class) = (map.declared?, map.class.as_ref()?);
        let on_each_cpu = !matches!(class, Class::Plain(_));
        let name = map.name.as_deref().unwrap_or("");
        let kind = match declared.forgets {
            true => "lruhash",
            false => "hash",
        };
        (declared.on_each_cpu != on_each_cpu).then(|| match on_each_cpu {
            true => Diagnostic::new(
                map.span,
                format!(
                    "`@{name}` is declared as {kind}, and each CPU has a part of what it holds"
                ),
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
