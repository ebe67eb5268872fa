//! Which names are known at a place of the code, and which variable each of them is.
//!
//! The innermost scope comes first, and of two variables with one name in a scope the later one
//! hides the other. At the entry and at the return of a function its own arguments come first.

use std::ops::Range;

use trace_interface::symbols::{Moment, ProbePlace, Unavailable, Variable};

use crate::{
    DebugInfo, Known,
    index::FunctionRow,
    names::{self, Pattern},
    scope::{self, Local, Location, Scope},
    search::{NEAR, did_you_mean},
    types, value,
};

impl DebugInfo {
    /// The scopes whose names are known at a place, the first one first.
    fn visible<'a>(&self, known: &'a Known, row: FunctionRow, place: ProbePlace) -> Vec<&'a Scope> {
        if place.moment == Moment::Return || place.address == row.address {
            // At the entry the arguments of the function itself are meant, even if a copy of
            // another one begins there, too.
            let mut scopes = vec![&known.scope];
            if place.moment == Moment::At {
                let mut inner = known.scope.around(place.address);
                inner.remove(0);
                inner.reverse();
                scopes.extend(inner);
            }
            return scopes;
        }
        let mut scopes = known.scope.around(place.address);
        scopes.reverse();
        scopes
    }

    pub(crate) fn names_at(&self, place: ProbePlace) -> Vec<String> {
        let Ok((row, known)) = self.known(place.address) else {
            return Vec::new();
        };
        let mut names: Vec<&str> = Vec::new();
        let scopes = self.visible(&known, row, place);
        for argument in [true, false] {
            for scope in &scopes {
                let locals = scope.locals.iter();
                for local in locals.filter(|local| local.argument == argument) {
                    if !local.name.is_empty() && !names.contains(&local.name.as_str()) {
                        names.push(&local.name);
                    }
                }
            }
        }
        names.retain(|name| self.variable_at(place, name).is_ok());
        names.into_iter().map(String::from).collect()
    }

    pub(crate) fn variable_at(
        &self,
        place: ProbePlace,
        name: &str,
    ) -> Result<Variable, Unavailable> {
        let (row, known) = self.known(place.address)?;
        let scopes = self.visible(&known, row, place);
        // The later one of two with one name in a scope hides the other.
        for scope in scopes {
            if let Some(local) = scope.locals.iter().rev().find(|local| local.name == name) {
                return self.pieces(&known, row, place, local, scope);
            }
        }
        let mut elsewhere: Vec<(&Scope, &Local)> = Vec::new();
        known.scope.each(&mut |scope| {
            let named = scope.locals.iter().filter(|local| local.name == name);
            elsewhere.extend(named.map(|local| (scope, local)));
        });
        let function = self.index.name(row.path);
        let ranges: Vec<Range<u64>> = elsewhere
            .iter()
            .filter(|(_, local)| local.location != Location::Nowhere)
            .flat_map(|(scope, _)| scope.ranges.iter().cloned())
            .collect();
        if !ranges.is_empty() {
            return Err(Unavailable {
                reason: format!("{name} is not in scope here"),
                help: self.where_it_is(&ranges, row.address),
            });
        }
        if !elsewhere.is_empty() {
            return Err(Unavailable {
                reason: format!("{name} is not in scope here, and {}", value::GONE),
                help: "probe where its parts are computed".into(),
            });
        }
        let known_here = self.names_at(place);
        let near = names::nearest(name, known_here.iter().map(String::as_str), NEAR);
        let help = if near.is_empty() && !known_here.is_empty() {
            format!("here are {}", known_here.join(", "))
        } else {
            did_you_mean(&near)
        };
        Err(Unavailable {
            reason: format!("{function} has nothing with the name {name}"),
            help,
        })
    }

    /// The names of the arguments of the function that begins at an address, in their order. None:
    /// the debug information does not describe it.
    pub fn arguments(&self, function: u64) -> Option<Vec<String>> {
        let (_, known) = self.known(self.in_file(function)).ok()?;
        let arguments = known.scope.locals.iter().filter(|local| local.argument);
        Some(arguments.map(|local| local.name.clone()).collect())
    }

    pub(crate) fn static_variable(&self, path: &str) -> Result<Variable, Unavailable> {
        let pattern = Pattern::new(path);
        let session = self.session();
        let mut found: Vec<(&str, u64)> = Vec::new();
        for (name, entry) in self.index.globals() {
            let name = self.index.name(name);
            if pattern.matches(name) {
                found.push((name, entry));
            }
        }
        let Some((name, entry)) = found.first().copied() else {
            let all: Vec<&str> = self
                .index
                .globals()
                .filter_map(|(name, _)| names::segments(self.index.name(name)).pop())
                .collect();
            let last = names::segments(path).pop().unwrap_or(path);
            return Err(Unavailable {
                reason: format!("the kernel has no static variable {path}"),
                help: did_you_mean(&names::nearest(last, all, NEAR)),
            });
        };
        let mut other: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
        other.dedup();
        if other.len() > 1 {
            other.truncate(NEAR);
            return Err(Unavailable {
                reason: format!("several static variables are called {path}"),
                help: format!("write the whole path, for example {}", other.join(" or ")),
            });
        }
        let place = || {
            let found = session.entry(entry)?;
            let Location::Fixed(expression) = scope::location(&session, &found) else {
                return None;
            };
            let type_id = types::of(&session, entry);
            let bytes = types::size(&session, type_id)?;
            let context = value::Context {
                encoding: found.unit.encoding(),
                slide: self.slide,
                moment: value::Moment::Inside,
                frame_base: &|| Err(String::new()),
                frame_pointer: None,
                epilogue: false,
            };
            let pieces = value::pieces(&expression, bytes, &context).ok()?;
            Some(Variable { type_id, pieces })
        };
        place().ok_or_else(|| Unavailable {
            reason: format!("where {name} lies is not known"),
            help: String::new(),
        })
    }
}
