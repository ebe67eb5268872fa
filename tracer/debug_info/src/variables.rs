//! Which names are known at a place of the code, and which variable each of them is.
//!
//! The innermost scope comes first, and of two variables with one name in a scope the later one
//! hides the other. At the entry and at the return of a function its own arguments come first.
//! An argument that is asked for as one is of the function itself, whatever hides its name.

use std::ops::Range;

use trace_interface::symbols::{Moment, ProbePlace, Unavailable, Variable};

use crate::{
    DebugInfo,
    epilogue::GivenBack,
    names::{self, Pattern},
    scope::{self, Local, Location, Scope, ScopeKind},
    search::{NEAR, did_you_mean},
    session::Session,
    types, value,
};

/// A static, as lists show it. By path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Static {
    pub path: String,
    pub type_name: String,
    pub bytes: u64,
}

/// Those scopes of a function whose names are known at a place, the first one first. `all` is the
/// function's own, and `entry` is where its code begins.
fn visible(all: &Scope, entry: u64, place: ProbePlace) -> Vec<&Scope> {
    if place.moment == Moment::Return || place.address == entry {
        // At the entry the arguments of the function itself are meant, even if a copy of
        // another one begins there, too.
        let mut scopes = vec![all];
        if place.moment == Moment::At {
            let mut inner = all.around(place.address);
            inner.remove(0);
            inner.reverse();
            scopes.extend(inner);
        }
        return scopes;
    }
    let mut scopes = all.around(place.address);
    scopes.reverse();
    scopes
}

/// What a name means in scopes, the first one first. The later one of two with one name in a scope
/// hides the other.
fn named<'a>(scopes: &[&'a Scope], name: &str) -> Option<(&'a Scope, &'a Local)> {
    scopes.iter().find_map(|scope| {
        let mut locals = scope.locals.iter().rev();
        Some((*scope, locals.find(|local| local.name == name)?))
    })
}

/// The innermost copy at an address of a function that `is_meant` is true for. It gets the entries
/// of copies.
fn copy_at(all: &Scope, address: u64, is_meant: impl Fn(u64) -> bool) -> Option<&Scope> {
    let mut around = all.around(address).into_iter().rev();
    around.find(|scope| matches!(scope.kind, ScopeKind::Inlined { .. }) && is_meant(scope.entry))
}

/// The arguments of the function with a path, whose outermost scope this is.
///
/// An argument whose value the compiler knows without the call is described as a variable. Those of
/// `let` are in blocks, so such a variable of the outermost scope is an argument, unless a closure
/// has captured it.
fn arguments<'a>(scope: &'a Scope, path: &str) -> impl Iterator<Item = &'a Local> {
    let last = names::segments(path).pop().unwrap_or_default();
    let captures = last.starts_with("{closure");
    let locals = scope.locals.iter();
    locals.filter(move |local| (local.argument || !captures) && !local.name.is_empty())
}

fn without_types(function: &str) -> Unavailable {
    Unavailable {
        reason: format!(
            "the debug information of {function} has no types, so its arguments and variables are \
             not known"
        ),
        help: crate::REGISTERS_INSTEAD.into(),
    }
}

impl DebugInfo {
    pub(crate) fn names_at(&self, place: ProbePlace) -> Vec<String> {
        let Ok((row, known)) = self.known_alone(place.address) else {
            return Vec::new();
        };
        let mut names: Vec<&str> = Vec::new();
        let scopes = visible(&known.scope, row.address, place);
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
        let (row, known) = self.known_alone(place.address)?;
        let scopes = visible(&known.scope, row.address, place);
        if let Some((scope, local)) = named(&scopes, name) {
            return self.pieces(&known, row, place, local, scope);
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
        if !known.is_described {
            return Err(without_types(function));
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

    pub(crate) fn argument_at(
        &self,
        place: ProbePlace,
        copy: Option<&str>,
        name: &str,
    ) -> Result<Variable, Unavailable> {
        let (row, known) = self.known_alone(place.address)?;
        let mut scope = &known.scope;
        let mut function = self.index.name(row.path);
        if let Some(copy) = copy {
            let pattern = Pattern::new(copy);
            let path = |entry| self.index.inlined_path(entry);
            let is_meant = |entry| path(entry).is_some_and(|path| pattern.matches(path));
            scope = copy_at(scope, place.address, is_meant).ok_or_else(|| Unavailable {
                reason: format!("what this copy of {copy} knows is not told here"),
                help: format!("write {name} for what the code around it knows"),
            })?;
            function = path(scope.entry).unwrap_or(copy);
        }
        if let Some(local) = arguments(scope, function).find(|local| local.name == name) {
            return self.pieces(&known, row, place, local, scope);
        }
        // A copy has none of the arguments that it does not use.
        let whole = match scope.kind {
            ScopeKind::Inlined { origin, .. } => Scope::read(&self.session(), origin),
            _ => None,
        };
        let all = arguments(whole.as_ref().unwrap_or(scope), function);
        let names: Vec<&str> = all.map(|local| local.name.as_str()).collect();
        if names.contains(&name) {
            return Err(Unavailable {
                reason: format!("the argument {name} is not there: {}", value::GONE),
                help: "probe where its parts are computed".into(),
            });
        }
        if !known.is_described {
            return Err(without_types(function));
        }
        let is_variable = named(&visible(&known.scope, row.address, place), name).is_some();
        let near = names::nearest(name, names.iter().copied(), NEAR);
        let help = match (is_variable, near.is_empty(), names.is_empty()) {
            (true, ..) => format!("a variable is read by its name alone: {name}"),
            (false, false, _) => did_you_mean(&near),
            (false, true, false) => format!("its arguments are {}", names.join(", ")),
            (false, true, true) => "it has none; a variable is read by its name alone".into(),
        };
        Err(Unavailable {
            reason: format!("{function} has no argument with the name {name}"),
            help,
        })
    }

    /// The names of the arguments of the function that begins at an address, in their order. None:
    /// the debug information does not describe it.
    pub fn arguments(&self, function: u64) -> Option<Vec<String>> {
        let (_, known) = self.known_alone(self.in_file(function)).ok()?;
        if !known.is_described {
            return None;
        }
        let arguments = known.scope.locals.iter().filter(|local| local.argument);
        Some(arguments.map(|local| local.name.clone()).collect())
    }

    /// The statics that have a place in memory and whose path `pattern` matches, by path.
    pub fn statics(&self, pattern: &str) -> Vec<Static> {
        let pattern = Pattern::new(pattern);
        let session = self.session();
        let globals = self.index.globals();
        let matching = globals.filter(|(name, _)| pattern.matches(self.index.name(*name)));
        let mut found: Vec<Static> = matching
            .filter_map(|(name, entry)| {
                let variable = self.static_at(&session, entry)?;
                Some(Static {
                    path: self.index.name(name).into(),
                    type_name: types::name(&session, variable.type_id),
                    bytes: variable
                        .pieces
                        .iter()
                        .map(|piece| u64::from(piece.bytes))
                        .sum(),
                })
            })
            .collect();
        found.sort();
        found.dedup();
        found
    }

    /// The static of an entry.
    pub(crate) fn static_at(&self, session: &Session, entry: u64) -> Option<Variable> {
        let found = session.entry(entry)?;
        let Location::Fixed(expression) = scope::location(session, &found) else {
            return None;
        };
        let type_id = types::of(session, entry);
        let bytes = types::size(session, type_id)?;
        let context = value::Context {
            encoding: found.unit.encoding(),
            slide: self.slide,
            moment: value::Moment::Inside,
            frame_base: &|| Err(String::new()),
            frame_pointer: None,
            epilogue: false,
            given_back: GivenBack::default(),
        };
        let pieces = value::pieces(&expression, bytes, &context).ok()?;
        Some(Variable { type_id, pieces })
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
                reason: format!("there is no static variable {path}"),
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
        self.static_at(&session, entry).ok_or_else(|| Unavailable {
            reason: format!("where {name} lies is not known"),
            help: String::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A scope with variables, of which each is the constant of its place in the list.
    fn scope(entry: u64, range: Range<u64>, names: &[&str], inner: Vec<Scope>) -> Scope {
        let locals = (0_u8..).zip(names).map(|(number, name)| Local {
            name: (*name).into(),
            argument: false,
            type_entry: None,
            location: Location::Constant(vec![number]),
        });
        Scope {
            entry,
            kind: ScopeKind::Block,
            ranges: vec![range],
            locals: locals.collect(),
            inner,
        }
    }

    /// A function at 0x10. A copy begins with it and has a copy in turn; a second copy is further
    /// down.
    fn function() -> Scope {
        let deep = scope(3, 0x10..0x14, &["a", "deep"], Vec::new());
        let first = scope(2, 0x10..0x20, &["a", "first", "x", "x"], vec![deep]);
        let second = scope(4, 0x30..0x40, &["b", "second"], Vec::new());
        scope(1, 0x10..0x80, &["a", "b", "x"], vec![first, second])
    }

    fn seen(address: u64, moment: Moment) -> Vec<u64> {
        let function = function();
        let scopes = visible(&function, 0x10, ProbePlace { address, moment });
        scopes.iter().map(|scope| scope.entry).collect()
    }

    #[test]
    fn inner_scopes_come_first_except_at_the_entry() {
        assert_eq!(seen(0x12, Moment::At), [3, 2, 1]);
        assert_eq!(seen(0x18, Moment::At), [2, 1]);
        assert_eq!(seen(0x38, Moment::At), [4, 1]);
        assert_eq!(seen(0x50, Moment::At), [1]);
        // Its own arguments first, then those of the copies that begin with it.
        assert_eq!(seen(0x10, Moment::At), [1, 3, 2]);
    }

    #[test]
    fn at_the_return_there_are_the_names_of_the_function_alone() {
        assert_eq!(seen(0x10, Moment::Return), [1]);
        assert_eq!(seen(0x38, Moment::Return), [1]);
    }

    /// `let a = a;` makes a variable in a block of the function.
    #[test]
    fn an_argument_is_found_behind_what_hides_it() {
        let mut function = function();
        function.locals[0].argument = true;
        let has_name = |scope: &Scope| named(&[scope], "a").is_some();
        assert!(function.around(0x12).into_iter().all(has_name));
        let found = |path: &str| -> Vec<&str> {
            let found = arguments(&function, path);
            found.map(|local| local.name.as_str()).collect()
        };
        // The others have values that are known without the call.
        assert_eq!(found("of::some"), ["a", "b", "x"]);
        // Here they are captured.
        assert_eq!(found("of::some::{closure#0}"), ["a"]);
        assert_eq!(found("of::{closure#0}::some"), ["a", "b", "x"]);
    }

    #[test]
    fn a_copy_is_the_innermost_one_that_is_meant() {
        let mut function = function();
        let copied = ScopeKind::Inlined {
            origin: 9,
            file: 1,
            line: 1,
        };
        function.inner[0].kind = copied;
        function.inner[0].inner[0].kind = copied;
        let found = |address, meant: &[u64]| {
            let copy = copy_at(&function, address, |entry| meant.contains(&entry));
            copy.map(|scope| scope.entry)
        };
        assert_eq!(found(0x12, &[2, 3]), Some(3));
        assert_eq!(found(0x12, &[2]), Some(2));
        assert_eq!(found(0x18, &[2, 3]), Some(2));
        // Neither a block nor the function is a copy.
        assert_eq!(found(0x38, &[1, 4]), None);
    }

    #[test]
    fn a_name_is_that_of_the_first_scope_that_has_it_and_the_last_one_there() {
        let function = function();
        let found = |address, name: &str| {
            let moment = Moment::At;
            let scopes = visible(&function, 0x10, ProbePlace { address, moment });
            named(&scopes, name).map(|(scope, local)| match &local.location {
                Location::Constant(number) => (scope.entry, number[0]),
                other => panic!("{other:?}"),
            })
        };
        assert_eq!(found(0x12, "a"), Some((3, 0)));
        assert_eq!(found(0x18, "a"), Some((2, 0)));
        assert_eq!(found(0x18, "x"), Some((2, 3)));
        assert_eq!(found(0x18, "b"), Some((1, 1)));
        assert_eq!(found(0x38, "b"), Some((4, 0)));
        assert_eq!(found(0x10, "a"), Some((1, 0)));
        assert_eq!(found(0x10, "deep"), Some((3, 1)));
        assert_eq!(found(0x18, "deep"), None);
        assert_eq!(found(0x50, "second"), None);
    }
}
