//! The records of several rings in the order of time.

use super::{
    error::Damaged,
    read::{Event, Source},
};

/// Takes the next event of several sources, by the time stamps of their next records.
///
/// Each CPU's records come in the order of their reservation. A writer may read the clock and then
/// be interrupted before it reserves, so the time stamps of a CPU are not quite sorted.
pub struct Merge<'s, S> {
    sources: &'s mut [S],
}

impl<'s, S: Source> Merge<'s, S> {
    /// Merges these sources, for example one for each CPU.
    pub fn new(sources: &'s mut [S]) -> Self {
        Self { sources }
    }

    /// The next event, and the index of its source. The payload of a record goes to `buffer`. An
    /// [`Event::Lost`] comes right before the next record of its source. None if no source has a
    /// record.
    ///
    /// An error has the index, too. The other sources still work: take the damaged one out, or
    /// reset its ring.
    pub fn next(&mut self, buffer: &mut [u8]) -> Result<Option<(usize, Event)>, (usize, Damaged)> {
        loop {
            let mut first: Option<(usize, u64)> = None;
            for (index, source) in self.sources.iter_mut().enumerate() {
                let Some(tsc) = source.peek().map_err(|damaged| (index, damaged))? else {
                    continue;
                };
                // The first of equal ones.
                if first.is_none_or(|(_, least)| tsc < least) {
                    first = Some((index, tsc));
                }
            }
            let Some((index, _)) = first else {
                return Ok(None);
            };
            // There is no event if its records were taken out or cleared meanwhile; then another
            // source is next.
            let event = self.sources[index].next(buffer);
            if let Some(event) = event.map_err(|damaged| (index, damaged))? {
                return Ok(Some((index, event)));
            }
        }
    }
}
