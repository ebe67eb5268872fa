//! Addresses as functions and lines: for call stacks.

use crate::{
    DebugInfo, lines, names,
    scope::{Scope, ScopeKind},
};

/// A function that an address is in, by itself or as a copy in another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its path, as in [`trace_interface::symbols::Function::path`].
    pub function: String,
    /// How many bytes the address is after the function's beginning; none for a copy.
    pub offset: Option<u64>,
    /// File and line: of the address, or of the call of the frame before.
    pub place: Option<(String, u32)>,
}

impl std::fmt::Display for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.function)?;
        match self.offset {
            Some(offset) => write!(f, "+{offset:#x}")?,
            None => f.write_str(" (inlined)")?,
        }
        if let Some((file, line)) = &self.place {
            write!(f, "  {file}:{line}")?;
        }
        Ok(())
    }
}

impl DebugInfo {
    /// The functions that an address is in, innermost first: copies that were inlined, and last the
    /// one with code of its own. None if no function of the kernel is there.
    ///
    /// For a return address on a stack, ask for the byte before it: it belongs to the call.
    pub fn symbolise(&self, address: u64) -> Vec<Frame> {
        let address = self.in_file(address);
        let Some(row) = self.index.function_at(address) else {
            return Vec::new();
        };
        let own = |place| Frame {
            function: self.index.name(row.path).into(),
            offset: Some(address - row.address),
            place,
        };
        let (Some(entry), Ok((_, known))) = (row.entry, self.known(address)) else {
            return vec![own(None)];
        };
        let session = self.session();
        let unit = self
            .index
            .unit_of(entry)
            .and_then(|start| Some((session.unit(start)?, self.lines(start))));
        let Some((unit, table)) = unit else {
            return vec![own(None)];
        };
        let file = |number, line: u32| {
            let file = lines::file(&session, &unit, number)?;
            (line > 0).then_some((file, line))
        };
        let mut place = lines::at(&table, address).and_then(|row| file(row.file, row.line));
        let mut frames = Vec::new();
        let around: Vec<&Scope> = known.scope.around(address);
        for scope in around.iter().rev() {
            if let ScopeKind::Inlined {
                file: number, line, ..
            } = scope.kind
            {
                let function = self.index.inlined_path(scope.entry);
                frames.push(Frame {
                    function: function.unwrap_or("?").into(),
                    offset: None,
                    place: place.take(),
                });
                place = file(number, line);
            }
        }
        frames.push(own(place));
        frames
    }

    /// The copies of a function in others: the function that each one is in, and where its code is.
    /// The first range begins at the address that [`trace_interface::Kernel::inlined`] gives.
    pub fn copies(&self, pattern: &str) -> Vec<InlinedCopy> {
        let pattern = names::Pattern::new(pattern);
        let session = self.session();
        let mut copies = Vec::new();
        self.each_inlined(&pattern, |path, address, entry| {
            let mut ranges = session
                .entry(entry)
                .map(|found| crate::scope::ranges(&session, &found))
                .unwrap_or_default();
            for range in &mut ranges {
                let running = |address: u64| address.wrapping_add(self.slide);
                *range = running(range.start)..running(range.end);
            }
            ranges.sort_by_key(|range| range.start);
            let within = self.index.function_at(address);
            copies.push(InlinedCopy {
                function: self.index.name(path).into(),
                within: within.map_or_else(String::new, |row| self.index.name(row.path).into()),
                ranges,
            });
        });
        copies.sort_by_key(|copy| copy.ranges.first().map(|range| range.start));
        copies
    }
}

/// A copy of a function in another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlinedCopy {
    pub function: String,
    /// The function that it is in.
    pub within: String,
    pub ranges: Vec<std::ops::Range<u64>>,
}
