//! Where something is in the machine's physical memory.

use alloc::vec::Vec;

/// The first bytes of a message that is a [`MemoryPlace`]. No frame begins so.
const OUTBOX: [u8; 8] = *b"outbox\0\0";
const RING: [u8; 8] = *b"ring\0\0\0\0";
const MAP: [u8; 8] = *b"map\0\0\0\0\0";

/// Neighbouring bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The physical address of the first one.
    pub start: u64,
    pub bytes: u64,
}

/// Where something is: its extents, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryPlace {
    /// The outbox, see [`crate::outbox`].
    Outbox(Vec<Extent>),
    /// The ring of a CPU, its header first. One message for each CPU, in their order.
    Ring(Vec<Extent>),
    /// A part of a map: see [`crate::outbox::MAPS`] for when it may be read.
    Map(MapPart),
}

/// Of a map: the memory that one CPU uses, or all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapPart {
    /// The map's number in the script.
    pub map: u32,
    pub cpu: u32,
    /// The form of the memory, as the crate of the maps encodes it.
    pub layout: [u32; 4],
    pub extents: Vec<Extent>,
}

impl MemoryPlace {
    /// As it is sent.
    pub fn encode(&self) -> Vec<u8> {
        let (magic, extents) = match self {
            Self::Outbox(extents) => (OUTBOX, extents),
            Self::Ring(extents) => (RING, extents),
            Self::Map(part) => (MAP, &part.extents),
        };
        let mut bytes = magic.to_vec();
        if let Self::Map(part) = self {
            for number in [part.map, part.cpu].iter().chain(&part.layout) {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
        }
        for extent in extents {
            bytes.extend_from_slice(&extent.start.to_le_bytes());
            bytes.extend_from_slice(&extent.bytes.to_le_bytes());
        }
        bytes
    }

    /// The place of a message; none, if it is another kind of message.
    pub fn decode(message: &[u8]) -> Option<Self> {
        let (magic, rest) = message.split_first_chunk()?;
        match *magic {
            OUTBOX => Some(Self::Outbox(extents(rest))),
            RING => Some(Self::Ring(extents(rest))),
            MAP => {
                let (numbers, rest) = rest.split_first_chunk::<24>()?;
                let mut words = numbers.chunks_exact(4).map(|bytes| {
                    let bytes = bytes.first_chunk().copied();
                    bytes.map_or(0, u32::from_le_bytes)
                });
                let mut next = || words.next().unwrap_or(0);
                Some(Self::Map(MapPart {
                    map: next(),
                    cpu: next(),
                    layout: [next(), next(), next(), next()],
                    extents: extents(rest),
                }))
            }
            _ => None,
        }
    }

    /// Adds `bytes` bytes from `start` on behind the others.
    pub fn push(extents: &mut Vec<Extent>, start: u64, bytes: u64) {
        match extents.last_mut() {
            Some(last) if last.start + last.bytes == start => last.bytes += bytes,
            _ => extents.push(Extent { start, bytes }),
        }
    }
}

/// The extents that make up the rest of a message.
fn extents(bytes: &[u8]) -> Vec<Extent> {
    let word = |bytes: &[u8]| Some(u64::from_le_bytes(*bytes.first_chunk()?));
    let extents = bytes.chunks_exact(16).filter_map(|pair| {
        Some(Extent {
            start: word(pair)?,
            bytes: word(&pair[8..])?,
        })
    });
    extents.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_were_written() {
        let mut extents = Vec::new();
        MemoryPlace::push(&mut extents, 0x1000, 0x1000);
        MemoryPlace::push(&mut extents, 0x2000, 0x1000);
        MemoryPlace::push(&mut extents, 0x9000, 0x1000);
        assert_eq!(extents.len(), 2);
        let part = MemoryPlace::Map(MapPart {
            map: 1,
            cpu: 2,
            layout: [3, 4, 5, 6],
            extents: extents.clone(),
        });
        for place in [
            MemoryPlace::Outbox(extents.clone()),
            MemoryPlace::Ring(extents),
            part,
        ] {
            assert_eq!(MemoryPlace::decode(&place.encode()), Some(place));
        }
        assert_eq!(MemoryPlace::decode(b"map\0\0\0\0\0cut off"), None);
        assert_eq!(MemoryPlace::decode(b"another message"), None);
        assert_eq!(MemoryPlace::decode(b""), None);
    }
}
