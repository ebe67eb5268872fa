//! Reading entries of the debug information for the time of one question.

use std::{cell::RefCell, collections::HashMap, rc::Rc};

use crate::{
    image::{Dwarf, DwarfEntry, Image, Unit},
    index::{self, Index},
};

/// See the module's text.
pub struct Session<'a> {
    pub index: &'a Index,
    pub dwarf: Dwarf<'a>,
    image: &'a Image,
    units: RefCell<HashMap<u64, Rc<Unit<'a>>>>,
}

/// An entry, and the unit that it is in.
pub struct Found<'a> {
    pub unit: Rc<Unit<'a>>,
    /// Where the unit begins.
    pub start: u64,
    pub entry: DwarfEntry<'a>,
}

impl<'a> Session<'a> {
    pub fn new(image: &'a Image, index: &'a Index) -> Self {
        Self {
            index,
            dwarf: image.dwarf(),
            image,
            units: RefCell::default(),
        }
    }

    /// The unit that begins there.
    pub fn unit(&self, start: u64) -> Option<Rc<Unit<'a>>> {
        if let Some(unit) = self.units.borrow().get(&start) {
            return Some(unit.clone());
        }
        let offset = gimli::DebugInfoOffset(usize::try_from(start).ok()?);
        let header = self.dwarf.unit_header(offset).ok()?;
        let unit = Rc::new(self.image.unit(&self.dwarf, header).ok()?);
        self.units.borrow_mut().insert(start, unit.clone());
        Some(unit)
    }

    /// The entry at an offset into the section.
    pub fn entry(&self, offset: u64) -> Option<Found<'a>> {
        let start = self.index.unit_of(offset)?;
        let unit = self.unit(start)?;
        let within = gimli::UnitOffset(usize::try_from(offset - start).ok()?);
        let entry = unit.entry(within).ok()?;
        Some(Found { unit, start, entry })
    }

    /// Whether the type with that entry is one of the standard library, or of hashbrown.
    pub fn is_of_library(&self, entry: u64) -> bool {
        let root = self
            .index
            .type_path(entry)
            .and_then(|path| path.split("::").next());
        root.is_some_and(|root| matches!(root, "core" | "alloc" | "std" | "hashbrown"))
    }

    /// Whether the unit that begins there tells types. That of a library may be compiled without
    /// (`debuginfo` 1: lines alone). Then a function without arguments and a result cannot be told
    /// from one whose arguments and result were left out.
    pub fn has_types(&self, start: u64) -> Option<bool> {
        let unit = self.unit(start)?;
        let mut entries = unit.entries();
        while let Ok(Some(entry)) = entries.next_dfs() {
            if entry.attr(gimli::DW_AT_type).is_some() {
                return Some(true);
            }
        }
        Some(false)
    }

    /// Where the unit begins that describes an entry: that of its declaration.
    pub fn described_in(&self, offset: u64) -> Option<u64> {
        let mut start = None;
        self.inherited::<()>(offset, |found| {
            start = Some(found.start);
            None
        });
        start
    }

    /// Calls `visit` for each child of the entry at an offset.
    pub fn children(&self, offset: u64, mut visit: impl FnMut(&Found<'a>)) -> Option<()> {
        let start = self.index.unit_of(offset)?;
        let unit = self.unit(start)?;
        let within = gimli::UnitOffset(usize::try_from(offset - start).ok()?);
        let mut tree = unit.entries_tree(Some(within)).ok()?;
        let mut children = tree.root().ok()?.children();
        while let Ok(Some(child)) = children.next() {
            visit(&Found {
                unit: unit.clone(),
                start,
                entry: child.entry().clone(),
            });
        }
        Some(())
    }
}

impl Found<'_> {
    /// Its offset into the section.
    pub fn offset(&self) -> u64 {
        self.start + self.entry.offset().0 as u64
    }

    pub fn reference(&self, attribute: gimli::DwAt) -> Option<u64> {
        index::reference(&self.entry, attribute, self.start)
    }

    pub fn number(&self, attribute: gimli::DwAt) -> Option<u64> {
        let value = self.entry.attr_value(attribute)?;
        value
            .udata_value()
            .or_else(|| value.sdata_value().map(i64::cast_unsigned))
    }

    pub fn name(&self, session: &Session) -> Option<String> {
        index::name(&session.dwarf, &self.unit, &self.entry)
            .ok()
            .flatten()
    }
}

impl<'a> Session<'a> {
    /// The first of an entry and those that it continues for which `get` has an answer.
    pub fn inherited<T>(
        &self,
        offset: u64,
        mut get: impl FnMut(&Found<'a>) -> Option<T>,
    ) -> Option<T> {
        let mut at = offset;
        // Concrete, abstract, declaration.
        for _ in 0..4 {
            let found = self.entry(at)?;
            if let Some(answer) = get(&found) {
                return Some(answer);
            }
            at = found
                .reference(gimli::DW_AT_abstract_origin)
                .or_else(|| found.reference(gimli::DW_AT_specification))?;
        }
        None
    }
}

impl Found<'_> {
    /// A file, as a number of its unit's line table.
    pub fn file(&self, attribute: gimli::DwAt) -> Option<u64> {
        match self.entry.attr_value(attribute)? {
            gimli::AttributeValue::FileIndex(file) => Some(file),
            value => value.udata_value(),
        }
    }
}
