//! The memory of a kernel at the other end of a line, as far as it has come: at the end of a
//! recording, or when the kernel has died.
//!
//! # Invariants
//! RECEIVED-1. A ring is given out with those pages alone that have come, from the newest one on
//!     backwards, and with the number of records that have not.
//! RECEIVED-2. Maps are given out only if all of them have come whole, because half a map would
//!     show wrong numbers.

use std::collections::{BTreeMap, BTreeSet};

use trace_maps::image::Layout;
use trace_ring::{layout::HEADER_BYTES, rescue::keep_pages};
use trace_wire::stream::{Piece, Whole};

use crate::LiveMap;

/// The most bytes of all wholes together.
const MOST_BYTES: u64 = 4 << 30;

/// A copy of a CPU's ring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RingCopy {
    /// All of its memory: for `trace_ring::image`.
    pub bytes: Vec<u8>,
    /// How many of the records that were in it have not come.
    pub cut_off: u64,
}

/// The pieces that have come of something.
#[derive(Debug, Default)]
struct Pieces {
    bytes: Vec<u8>,
    /// Where they begin.
    starts: BTreeSet<u64>,
    /// The last one has come.
    is_whole: bool,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Received {
    wholes: BTreeMap<Whole, Pieces>,
    room: u64,
    is_over: bool,
}

impl Received {
    /// Adds a piece. False: it does not fit to those before.
    pub fn add(&mut self, piece: Piece, bytes: &[u8]) -> bool {
        let is_new = !self.wholes.contains_key(&piece.of);
        if is_new {
            let fits = match piece.of {
                Whole::Ring { .. } => true,
                Whole::Map { layout, .. } => Layout::decode(layout)
                    .is_some_and(|layout| layout.bytes() as u64 == piece.whole),
            };
            self.room += piece.whole;
            if !fits || self.room > MOST_BYTES {
                return false;
            }
        }
        let known = self.wholes.entry(piece.of).or_default();
        if is_new {
            known.bytes = vec![0; piece.whole as usize];
        }
        let start = piece.at as usize;
        let Some(place) = known.bytes.get_mut(start..start + bytes.len()) else {
            return false;
        };
        place.copy_from_slice(bytes);
        known.starts.insert(piece.at);
        known.is_whole |= piece.at == piece.whole;
        true
    }

    /// All has come.
    pub fn end(&mut self) {
        self.is_over = true;
    }

    /// Whether all has come, if anything has.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// The rings, by CPU (RECEIVED-1).
    pub fn rings(&self) -> Vec<RingCopy> {
        let mut rings = Vec::new();
        for (of, pieces) in &self.wholes {
            let Whole::Ring { cpu } = of else {
                continue;
            };
            // CPUs without a ring have an empty copy, so that the others keep their numbers.
            let at = *cpu as usize;
            if at >= rings.len() {
                rings.resize_with(at + 1, RingCopy::default);
            }
            let mut bytes = pieces.bytes.clone();
            let has = |at: usize| at >= HEADER_BYTES && pieces.starts.contains(&(at as u64));
            // What is no ring is told by whoever reads it.
            let cut_off = keep_pages(&mut bytes, has).unwrap_or(0);
            rings[at] = RingCopy { bytes, cut_off };
        }
        rings
    }

    /// The maps. None: they have not come, or not all of them (RECEIVED-2).
    pub fn maps(&self) -> Option<Vec<LiveMap>> {
        if !self.is_over {
            return None;
        }
        let maps = self.wholes.iter().filter_map(|(of, pieces)| match of {
            Whole::Map { map, cpu, layout } => Some((*map, *cpu, Layout::decode(*layout)?, pieces)),
            Whole::Ring { .. } => None,
        });
        let mut live = Vec::new();
        for (map, cpu, layout, pieces) in maps {
            if !pieces.is_whole {
                return None;
            }
            let load = |index: usize| {
                let word = pieces.bytes.get(8 * index..).and_then(<[u8]>::first_chunk);
                u64::from_le_bytes(*word.unwrap_or(&[0; 8]))
            };
            live.push(LiveMap::read(map, cpu, layout, |index, _| load(index)));
        }
        Some(live)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_ring(cpu: u32, at: u64) -> Piece {
        Piece {
            of: Whole::Ring { cpu },
            whole: 8192,
            at,
        }
    }

    fn of_map(cpu: u32, at: u64) -> Piece {
        let layout = Layout::Array {
            entries: 4,
            value_words: 1,
        };
        let of = Whole::Map {
            map: 5,
            cpu,
            layout: layout.encode(),
        };
        Piece { of, whole: 32, at }
    }

    #[test]
    fn rings_keep_the_numbers_of_their_cpus() {
        let mut received = Received::default();
        assert!(received.add(of_ring(2, 0), &[1, 2, 3]));
        assert!(received.add(of_ring(2, 4096), &[9; 4096]));
        let rings = received.rings();
        assert_eq!(rings.len(), 3);
        assert_eq!(rings[1], RingCopy::default());
        assert_eq!(rings[2].bytes.len(), 8192);
        assert_eq!(rings[2].bytes[..4], [1, 2, 3, 0]);
        assert_eq!(rings[2].bytes[8191], 9);
        let beyond = Piece {
            whole: 1 << 20,
            ..of_ring(2, 8192)
        };
        assert!(!received.add(beyond, &[1]), "the whole has another size");
    }

    #[test]
    fn maps_are_shown_only_if_all_have_come() {
        let mut received = Received::default();
        assert!(received.add(of_map(0, 8), &7_u64.to_le_bytes()));
        assert!(received.add(of_map(0, 32), &[]));
        assert!(received.add(of_map(1, 24), &8_u64.to_le_bytes()));
        assert_eq!(received.maps(), None);
        received.end();
        assert_eq!(received.maps(), None, "half a part");
        assert!(received.add(of_map(1, 32), &[]));
        let maps = received.maps().unwrap();
        let entry = |index: u32, value: u64| (index.to_le_bytes().to_vec(), vec![value]);
        assert_eq!(maps.len(), 2);
        assert_eq!((maps[0].map, maps[0].cpu), (5, 0));
        assert_eq!(maps[0].entries, [entry(1, 7)]);
        assert_eq!((maps[1].cpu, &maps[1].entries[..]), (1, &[entry(3, 8)][..]));
        let wrong = Piece {
            whole: 40,
            ..of_map(2, 0)
        };
        assert!(!received.add(wrong, &[]), "another size than its layout");
    }
}
