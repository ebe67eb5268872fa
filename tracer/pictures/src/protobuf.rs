//! The wire form of protocol buffers, as far as a writer needs it.
//!
//! A message is a sequence of fields. A field is a key (its number and the form of its value) and
//! the value: a number in groups of seven bits, eight bytes, or a length and so many bytes. A
//! message in a message is of the last form.

/// A message that grows.
#[derive(Debug, Default)]
pub struct Message(Vec<u8>);

impl Message {
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// A field of an unsigned number, a truth value or an enumeration.
    pub fn unsigned(&mut self, field: u32, value: u64) {
        self.key(field, 0);
        self.varint(value);
    }

    /// A field of type `int32` or `int64`.
    pub fn signed(&mut self, field: u32, value: i64) {
        self.unsigned(field, value as u64);
    }

    pub fn double(&mut self, field: u32, value: f64) {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
    }

    pub fn text(&mut self, field: u32, text: &str) {
        self.delimited(field, text.as_bytes());
    }

    /// A message in this message.
    pub fn message(&mut self, field: u32, write: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        write(&mut inner);
        self.delimited(field, &inner.0);
    }

    pub fn delimited(&mut self, field: u32, bytes: &[u8]) {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn key(&mut self, field: u32, form: u64) {
        self.varint(u64::from(field) << 3 | form);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_groups_of_seven_bits() {
        let mut message = Message::default();
        message.unsigned(1, 150);
        message.signed(2, -1);
        message.text(16, "ab");
        let mut expected = vec![0x08, 0x96, 0x01, 0x10];
        expected.extend([0xff; 9]);
        expected.extend([0x01, 0x82, 0x01, 2, b'a', b'b']);
        assert_eq!(message.bytes(), expected);
    }
}
