//! Where something is in the machine's physical memory.

use alloc::vec::Vec;

/// The first bytes of a message that is a [`Place`]. No frame begins so.
const OUTBOX: [u8; 8] = *b"outbox\0\0";
const RING: [u8; 8] = *b"ring\0\0\0\0";

/// Neighbouring bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The physical address of the first one.
    pub start: u64,
    pub bytes: u64,
}

/// Where something is: its extents, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The outbox, see [`crate::outbox`].
    Outbox(Vec<Extent>),
    /// The ring of a CPU, its header first. One message for each CPU, in their order.
    Ring(Vec<Extent>),
}

impl Place {
    /// As it is sent.
    pub fn encode(&self) -> Vec<u8> {
        let (magic, extents) = match self {
            Self::Outbox(extents) => (OUTBOX, extents),
            Self::Ring(extents) => (RING, extents),
        };
        let mut bytes = magic.to_vec();
        for extent in extents {
            bytes.extend_from_slice(&extent.start.to_le_bytes());
            bytes.extend_from_slice(&extent.bytes.to_le_bytes());
        }
        bytes
    }

    /// The place of a message; none, if it is another kind of message.
    pub fn decode(message: &[u8]) -> Option<Self> {
        let (magic, rest) = message.split_first_chunk()?;
        let word = |bytes: &[u8]| Some(u64::from_le_bytes(*bytes.first_chunk()?));
        let extents = rest.chunks_exact(16).filter_map(|pair| {
            Some(Extent {
                start: word(pair)?,
                bytes: word(&pair[8..])?,
            })
        });
        match *magic {
            OUTBOX => Some(Self::Outbox(extents.collect())),
            RING => Some(Self::Ring(extents.collect())),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_were_written() {
        let mut extents = Vec::new();
        Place::push(&mut extents, 0x1000, 0x1000);
        Place::push(&mut extents, 0x2000, 0x1000);
        Place::push(&mut extents, 0x9000, 0x1000);
        assert_eq!(extents.len(), 2);
        for place in [Place::Outbox(extents.clone()), Place::Ring(extents)] {
            assert_eq!(Place::decode(&place.encode()), Some(place));
        }
        assert_eq!(Place::decode(b"another message"), None);
        assert_eq!(Place::decode(b""), None);
    }
}
