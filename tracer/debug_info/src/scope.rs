//! The scopes of a function: its arguments and variables, its blocks, the copies of other functions
//! in it. The code of a scope lies within that of the scope around it, in one piece or in several,
//! and two scopes that are side by side share no code.

use std::ops::Range;

use gimli::AttributeValue;

use crate::session::{Found, Session};

/// A function, a block of one, or a copy of another function in it.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Its entry.
    pub entry: u64,
    pub kind: ScopeKind,
    /// Where its code is. Empty for a block that has none.
    pub ranges: Vec<Range<u64>>,
    pub locals: Vec<Local>,
    pub inner: Vec<Scope>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeKind {
    Function,
    Block,
    /// A copy of the function with that entry, called at that line of that file of the unit's
    /// table.
    Inlined {
        origin: u64,
        file: u64,
        line: u32,
    },
}

/// An argument or a variable.
#[derive(Clone, Debug)]
pub struct Local {
    pub name: String,
    pub argument: bool,
    /// The entry of its type.
    pub type_entry: Option<u64>,
    pub location: Location,
}

/// Where a local is, as the debug information says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    Nowhere,
    /// Given by that expression, all over its scope.
    Fixed(Vec<u8>),
    /// Given by those expressions, each in a range of addresses.
    List(Vec<(Range<u64>, Vec<u8>)>),
    Constant(Vec<u8>),
}

impl Location {
    /// The expression that holds at an address.
    pub fn at(&self, address: u64) -> Option<&[u8]> {
        match self {
            Self::Fixed(expression) => Some(expression),
            Self::List(list) => list
                .iter()
                .find(|(range, _)| range.contains(&address))
                .map(|(_, expression)| &expression[..]),
            Self::Nowhere | Self::Constant(_) => None,
        }
    }
}

impl Scope {
    /// The scopes of the function at an entry.
    pub fn read(session: &Session, function: u64) -> Option<Self> {
        let found = session.entry(function)?;
        Some(read(session, &found, ScopeKind::Function))
    }

    pub fn contains(&self, address: u64) -> bool {
        self.ranges.iter().any(|range| range.contains(&address))
    }

    /// The scopes around an address, outermost first.
    pub fn around(&self, address: u64) -> Vec<&Self> {
        let mut all = vec![self];
        let mut last = self;
        while let Some(inner) = last.inner.iter().find(|inner| inner.contains(address)) {
            all.push(inner);
            last = inner;
        }
        all
    }

    /// Calls `visit` for each scope, itself first.
    pub fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Self)) {
        visit(self);
        for inner in &self.inner {
            inner.each(visit);
        }
    }
}

fn read<'a>(session: &Session<'a>, found: &Found<'a>, kind: ScopeKind) -> Scope {
    let mut scope = Scope {
        entry: found.offset(),
        kind,
        ranges: ranges(session, found),
        locals: Vec::new(),
        inner: Vec::new(),
    };
    let mut inner = Vec::new();
    session.children(scope.entry, |child| match child.entry.tag() {
        gimli::DW_TAG_formal_parameter => scope.locals.push(local(session, child, true)),
        gimli::DW_TAG_variable => scope.locals.push(local(session, child, false)),
        gimli::DW_TAG_lexical_block => inner.push(read(session, child, ScopeKind::Block)),
        gimli::DW_TAG_inlined_subroutine => {
            if let Some(origin) = child.reference(gimli::DW_AT_abstract_origin) {
                let number = |attribute| child.number(attribute).unwrap_or_default();
                let kind = ScopeKind::Inlined {
                    origin,
                    file: child.file(gimli::DW_AT_call_file).unwrap_or_default(),
                    line: u32::try_from(number(gimli::DW_AT_call_line)).unwrap_or_default(),
                };
                inner.push(read(session, child, kind));
            }
        }
        _ => {}
    });
    scope.inner = inner;
    scope
}

/// Where the code of an entry is.
pub fn ranges<'a>(session: &Session<'a>, found: &Found<'a>) -> Vec<Range<u64>> {
    let mut all = Vec::new();
    if let Ok(mut ranges) = session.dwarf.die_ranges(&found.unit, &found.entry) {
        while let Ok(Some(range)) = ranges.next() {
            if range.begin != 0 && range.begin < range.end {
                all.push(range.begin..range.end);
            }
        }
    }
    all
}

fn local<'a>(session: &Session<'a>, found: &Found<'a>, argument: bool) -> Local {
    let offset = found.offset();
    let name = session.inherited(offset, |found| found.name(session));
    Local {
        name: name.unwrap_or_default(),
        argument,
        type_entry: session.inherited(offset, |found| found.reference(gimli::DW_AT_type)),
        location: location(session, found),
    }
}

pub fn location<'a>(session: &Session<'a>, found: &Found<'a>) -> Location {
    match found.entry.attr_value(gimli::DW_AT_const_value) {
        Some(AttributeValue::Block(bytes)) => return Location::Constant(bytes.slice().to_vec()),
        Some(value) => {
            let number = value
                .sdata_value()
                .map(i64::cast_unsigned)
                .or_else(|| value.udata_value());
            if let Some(number) = number {
                return Location::Constant(number.to_le_bytes().to_vec());
            }
        }
        None => {}
    }
    let Some(value) = found.entry.attr_value(gimli::DW_AT_location) else {
        return Location::Nowhere;
    };
    if let Some(expression) = value.exprloc_value() {
        return Location::Fixed(expression.0.slice().to_vec());
    }
    let mut list = Vec::new();
    if let Ok(Some(mut locations)) = session.dwarf.attr_locations(&found.unit, value) {
        while let Ok(Some(location)) = locations.next() {
            let range = location.range.begin..location.range.end;
            if !range.is_empty() {
                list.push((range, location.data.0.slice().to_vec()));
            }
        }
    }
    if list.is_empty() {
        Location::Nowhere
    } else {
        Location::List(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(entry: u64, kind: ScopeKind, ranges: &[(u64, u64)], inner: Vec<Scope>) -> Scope {
        Scope {
            entry,
            kind,
            ranges: ranges.iter().map(|(begin, end)| *begin..*end).collect(),
            locals: Vec::new(),
            inner,
        }
    }

    /// A function with a block, in which a copy of another function is in two pieces, and a second
    /// copy after it that has a copy in turn.
    fn function() -> Scope {
        let copy = |origin| ScopeKind::Inlined {
            origin,
            file: 1,
            line: 7,
        };
        let pieces = [(0x20, 0x28), (0x40, 0x48)];
        let first = scope(3, copy(30), &pieces, Vec::new());
        let block = scope(2, ScopeKind::Block, &[(0x18, 0x48)], vec![first]);
        let deep = scope(5, copy(50), &[(0x58, 0x5c)], Vec::new());
        let second = scope(4, copy(40), &[(0x50, 0x60)], vec![deep]);
        scope(1, ScopeKind::Function, &[(0x10, 0x80)], vec![block, second])
    }

    #[test]
    fn scopes_around_an_address_are_those_whose_code_it_is() {
        let function = function();
        let around = |address| -> Vec<u64> {
            let scopes = function.around(address).into_iter();
            scopes.map(|scope| scope.entry).collect()
        };
        for (address, entries) in [
            (0x10, &[1][..]),
            (0x17, &[1]),
            // The first byte of a range belongs to it, and the one after it does not.
            (0x18, &[1, 2]),
            (0x20, &[1, 2, 3]),
            (0x27, &[1, 2, 3]),
            // Between the pieces of a copy is not in it.
            (0x28, &[1, 2]),
            (0x40, &[1, 2, 3]),
            (0x48, &[1]),
            (0x50, &[1, 4]),
            (0x58, &[1, 4, 5]),
            (0x5c, &[1, 4]),
            (0x60, &[1]),
        ] {
            assert_eq!(around(address), entries, "{address:#x}");
        }
        assert!(function.contains(0x7f) && !function.contains(0x80) && !function.contains(0xf));
    }

    #[test]
    fn each_scope_is_visited_once_and_outer_ones_first() {
        let function = function();
        let mut entries = Vec::new();
        function.each(&mut |scope| entries.push(scope.entry));
        assert_eq!(entries, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn the_place_of_a_variable_is_the_one_that_holds_at_the_address() {
        let list = Location::List(vec![
            (0x10..0x20, vec![1]),
            (0x20..0x30, vec![2]),
            (0x28..0x40, vec![3]),
        ]);
        let found = |address| list.at(address).map(|expression| expression[0]);
        for (address, expression) in [
            (0xf, None),
            (0x10, Some(1)),
            (0x1f, Some(1)),
            (0x20, Some(2)),
            // Two hold here, and the first one counts.
            (0x28, Some(2)),
            (0x30, Some(3)),
            (0x3f, Some(3)),
            (0x40, None),
        ] {
            assert_eq!(found(address), expression, "{address:#x}");
        }
        assert_eq!(Location::Fixed(vec![9]).at(0), Some(&[9][..]));
        assert_eq!(Location::Nowhere.at(0x10), None);
        // A constant is in no place.
        assert_eq!(Location::Constant(vec![1]).at(0x10), None);
    }
}
