//! A hash of many bytes, for the file of the index. It is fast, and no safeguard against intent.

/// A number that changes with the bytes. Four lanes, because a multiplication waits for the last
/// one of its lane.
pub fn hash(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut lanes = [1_u64, 2, 3, 4];
    let mut chunks = bytes.chunks_exact(32);
    for chunk in &mut chunks {
        for (lane, word) in lanes.iter_mut().zip(chunk.chunks_exact(8)) {
            let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
            *lane = (*lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
        }
    }
    for byte in chunks.remainder() {
        lanes[0] = (lanes[0] ^ u64::from(*byte))
            .wrapping_mul(FACTOR)
            .rotate_left(29);
    }
    lanes.iter().fold(bytes.len() as u64, |sum, lane| {
        (sum ^ lane).wrapping_mul(FACTOR).rotate_left(29)
    })
}
