//! Maps of a running guest, read from its memory without its help.

use std::sync::atomic::Ordering;

use trace_maps::image::Layout;
use trace_wire::MapPart;

use crate::ram::{Ram, Words};

/// A part of a map, in memory.
#[derive(Debug)]
pub struct MapInMemory {
    map: u32,
    cpu: u32,
    layout: Layout,
    words: Words,
}

impl MapInMemory {
    /// None: it is no part of a map.
    pub fn new(part: MapPart) -> Option<Self> {
        let layout = Layout::decode(part.layout)?;
        let words = Words::new(part.extents);
        let fits = words.bytes() >= layout.bytes() as u64;
        fits.then_some(Self {
            map: part.map,
            cpu: part.cpu,
            layout,
            words,
        })
    }

    /// Copies what is there now. Nothing is written, so the guest does not notice.
    pub fn read(&self, ram: &Ram) -> LiveMap {
        let load = |index, order| {
            let word = self.words.word(ram, index);
            word.map_or(0, |word| word.load(order))
        };
        LiveMap::read(self.map, self.cpu, self.layout, load)
    }
}

/// The content of a part of a map at about one moment: each entry is as it was at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveMap {
    /// The map's number in the script.
    pub map: u32,
    /// The CPU whose part it is; 0 if all CPUs share the map.
    pub cpu: u32,
    /// It has call stacks by their numbers (8 bytes).
    pub is_stacks: bool,
    /// Keys and values. An array has those that are not zero, by index (4 bytes).
    pub entries: Vec<(Vec<u8>, Vec<u64>)>,
    /// Entries that changed while they were looked at.
    pub left_out: usize,
}

impl LiveMap {
    /// Reads a part whose words `load` loads.
    pub(crate) fn read(
        map: u32,
        cpu: u32,
        layout: Layout,
        load: impl FnMut(usize, Ordering) -> u64,
    ) -> Self {
        let mut entries = Vec::new();
        let left_out = layout.for_each(load, |key, value| {
            entries.push((key.to_vec(), value.to_vec()));
        });
        Self {
            map,
            cpu,
            is_stacks: matches!(layout, Layout::Stacks { .. }),
            entries,
            left_out,
        }
    }
}
