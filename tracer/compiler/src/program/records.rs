//! Instructions that write a record: its request, and the values after it.

use alloc::{format, vec::Vec};

use bpf::{Condition, Helper, MOST_RECORD_BYTES, Reg};
use trace_interface::{
    script::{RECORD_TYPE, Request},
    shape::Shape,
    view::{HEADER, Record, VALUES},
};
use trace_language::{Diagnostic, tree::Span};

use super::code::Code;
use crate::{Lowered, memory::Place, number::Number, values::Val};

impl Code<'_, '_> {
    pub(crate) fn write_record(
        &mut self,
        request: Request,
        record: Record,
        values: Vec<(Val, Shape, Span)>,
        status: &Number,
        span: Span,
    ) -> Lowered<()> {
        let begin = (HEADER + VALUES) as u32;
        let bytes: u32 = values.iter().fold(begin, |sum, (_, shape, _)| {
            sum.saturating_add(shape.bytes())
        });
        if bytes > MOST_RECORD_BYTES {
            return Err(Diagnostic::new(
                span,
                format!(
                    "the values have {bytes} bytes together; a record has at most \
                         {MOST_RECORD_BYTES}"
                ),
                "print fewer of them, or fields of them",
            ));
        }
        let ring = self.values.tables.ring();
        let request = self.values.tables.request(request, record);
        let end = self.asm.label();
        self.asm.map(Reg::R1, ring);
        self.asm.set(Reg::R2, bytes.into());
        self.asm.mov(Reg::R3, 0);
        self.asm.set(Reg::R4, RECORD_TYPE.into());
        self.asm.call(Helper::EventReserve);
        self.asm.branch(Condition::Equal, Reg::R0, 0, end);
        self.asm.mov(Reg::R7, Reg::R0);
        let to = |offset: u32| Place {
            base: Reg::R7,
            offset: offset as i16,
        };
        self.asm
            .store_constant(to(HEADER as u32), 4, request.into());
        self.store_number(status, to(HEADER as u32 + 4), 4);
        let mut place = to(begin);
        let mut stored = Ok(());
        for (value, shape, span) in &values {
            stored = stored.and(self.store(value, place, shape, *span));
            place = place.at(shape.bytes());
        }
        self.asm.mov(Reg::R1, Reg::R7);
        self.asm.mov(Reg::R2, 0);
        self.asm.call(Helper::RingSubmit);
        self.asm.place(end);
        stored
    }
}
