//! Text for a terminal that belongs between the records: a prompt's answers and echoes.
//!
//! It waits in a queue of its own, so that it takes no room from the log and is not lost when the
//! log is full. Each piece remembers which records were there before it. It is shown when those are
//! printed.

/// A queue of up to `BYTES` bytes of text, in up to `PIECES` places between records.
pub struct Text<const BYTES: usize, const PIECES: usize> {
    bytes: [u8; BYTES],
    /// Where the oldest byte is, and how many there are.
    start: usize,
    len: usize,
    pieces: [Piece; PIECES],
    first_piece: usize,
    piece_count: usize,
}

#[derive(Clone, Copy)]
struct Piece {
    /// Sequence number of the first record that comes after it.
    before: u64,
    bytes: usize,
}

impl<const BYTES: usize, const PIECES: usize> Default for Text<BYTES, PIECES> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const BYTES: usize, const PIECES: usize> Text<BYTES, PIECES> {
    /// An empty queue, all zero bytes.
    pub const fn new() -> Self {
        assert!(BYTES > 0 && PIECES > 0);
        Self {
            bytes: [0; BYTES],
            start: 0,
            len: 0,
            pieces: [Piece {
                before: 0,
                bytes: 0,
            }; PIECES],
            first_piece: 0,
            piece_count: 0,
        }
    }

    /// How many bytes wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes `text` to show it when all records before number `before` have been printed. Takes as
    /// much as leaves `spare` bytes free, and returns how many bytes that is. `before` does not
    /// fall from call to call.
    ///
    /// If there is no room for another piece, the text joins the last piece and is shown a little
    /// early.
    pub fn push(&mut self, before: u64, text: &[u8], spare: usize) -> usize {
        let room = (BYTES - self.len).saturating_sub(spare);
        let text = &text[..text.len().min(room)];
        if text.is_empty() {
            return 0;
        }
        let last = (self.first_piece + self.piece_count + PIECES - 1) % PIECES;
        let joins = self.piece_count > 0 && self.pieces[last].before == before;
        if joins || self.piece_count == PIECES {
            self.pieces[last].bytes += text.len();
        } else {
            let new = (self.first_piece + self.piece_count) % PIECES;
            self.pieces[new] = Piece {
                before,
                bytes: text.len(),
            };
            self.piece_count += 1;
        }
        for (index, byte) in text.iter().enumerate() {
            self.bytes[(self.start + self.len + index) % BYTES] = *byte;
        }
        self.len += text.len();
        text.len()
    }

    /// Moves text that is due to `out`. Returns how many bytes that is. `tail` is the first record
    /// that has not been printed.
    pub fn take(&mut self, tail: u64, out: &mut [u8]) -> usize {
        let mut taken = 0;
        while self.piece_count > 0 && taken < out.len() {
            let piece = &mut self.pieces[self.first_piece];
            if piece.before > tail {
                break;
            }
            let count = piece.bytes.min(out.len() - taken);
            debug_assert!(count > 0, "a piece has bytes");
            for byte in &mut out[taken..taken + count] {
                *byte = self.bytes[self.start];
                self.start = (self.start + 1) % BYTES;
            }
            taken += count;
            self.len -= count;
            piece.bytes -= count;
            if piece.bytes == 0 {
                self.first_piece = (self.first_piece + 1) % PIECES;
                self.piece_count -= 1;
            }
        }
        taken
    }
}
