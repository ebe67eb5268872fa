//! The bytes of values whose places the debug information tells, in a stopped process.

use trace_interface::symbols::{Expression, Operation, Piece, Source};

use crate::process::{Process, Registers, register};

impl Process {
    /// The bytes of a value. Those that are nowhere are `filling`.
    pub fn bytes(
        &self,
        pieces: &[Piece],
        filling: u8,
        registers: &Registers,
        at_entry: &Registers,
    ) -> Result<Vec<u8>, String> {
        let number = |expression| self.number(expression, registers, at_entry);
        let mut content = Vec::new();
        for piece in pieces {
            let bytes = piece.bytes as usize;
            match &piece.source {
                Source::Memory(address) => content.extend(self.read(number(address)?, bytes)?),
                Source::Value(value) => {
                    content.extend(&number(value)?.to_le_bytes()[..bytes]);
                }
                Source::Missing => content.extend(vec![filling; bytes]),
            }
        }
        Ok(content)
    }

    fn number(
        &self,
        expression: &Expression,
        registers: &Registers,
        at_entry: &Registers,
    ) -> Result<u64, String> {
        let number = |expression| self.number(expression, registers, at_entry);
        Ok(match expression {
            Expression::Constant(value) => *value,
            Expression::Register(name) => register(registers, *name),
            Expression::AtEntry(name) => register(at_entry, *name),
            Expression::Load { address, bytes } => {
                let mut word = [0; 8];
                let bytes = usize::from(*bytes);
                word[..bytes].copy_from_slice(&self.read(number(address)?, bytes)?);
                u64::from_le_bytes(word)
            }
            Expression::Binary(operation, a, b) => {
                let (a, b) = (number(a)?, number(b)?);
                match operation {
                    Operation::Add => a.wrapping_add(b),
                    Operation::Subtract => a.wrapping_sub(b),
                    Operation::Multiply => a.wrapping_mul(b),
                    Operation::And => a & b,
                    Operation::Or => a | b,
                    Operation::Xor => a ^ b,
                    Operation::ShiftLeft => a << b,
                    Operation::ShiftRight => a >> b,
                    Operation::ShiftRightSigned => (a.cast_signed() >> b).cast_unsigned(),
                }
            }
        })
    }
}
